//! Shows a comparison to people.

use std::fmt::{Result, Write};

use super::plain::{plain, written};
use crate::compare::{Comparison, Gate, Shift, Two, Verdict};
use crate::findings::{Code, time};

/// Changes of a step by less than this part are not listed.
const SHOWN: f64 = 0.005;
/// The maximum number of names of a table that are listed.
const NAMES: usize = 8;
/// The maximum number of characters of a name that are shown.
const NAME_CHARS: usize = 28;

/// Returns a comparison for a terminal, with the titles of the trace and of its baseline.
pub fn comparison_text(title: &str, baseline: &str, comparison: &Comparison) -> String {
    written(|out| write(out, title, baseline, comparison))
}

/// Returns the verdict of a gate for a terminal: one line, and one for the cause.
pub fn gate_text(gate: &Gate) -> String {
    let said = match gate.verdict {
        Verdict::Unknown => "cannot tell",
        verdict => verdict.as_str(),
    };
    let mut out = format!(
        "gate    {said} at {} %: {}\n",
        gate.percent,
        plain(&gate.why)
    );
    if let Some(cause) = &gate.cause {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "cause   {}", plain(cause));
    }
    out
}

fn write(out: &mut String, title: &str, against: &str, comparison: &Comparison) -> Result {
    let (title, against) = (plain(title), plain(against));
    writeln!(out, "{title} compared with the baseline {against}")?;
    for note in &comparison.notes {
        writeln!(out, "note: {}", plain(note))?;
    }
    let Two { now, baseline } = &comparison.per_step;
    write_time(out, comparison)?;
    let whole = match now.steps {
        0 => "the trace",
        _ => "a step",
    };
    writeln!(
        out,
        "\n{:32} {:>11} {:>11} {:>12}",
        whole, "now", "baseline", "change"
    )?;
    for (name, now, baseline) in [
        ("  busy", now.busy_ns, baseline.busy_ns),
        ("  kernels", now.kernel_ns, baseline.kernel_ns),
        ("  copies with the host", now.copy_ns, baseline.copy_ns),
        (
            "    not under kernels",
            now.exposed_copy_ns,
            baseline.exposed_copy_ns,
        ),
        (
            "  communication",
            now.communication_ns,
            baseline.communication_ns,
        ),
        (
            "    not under kernels",
            now.exposed_communication_ns,
            baseline.exposed_communication_ns,
        ),
        ("  idle", now.idle_ns, baseline.idle_ns),
    ] {
        let ns = Two { now, baseline };
        if ns.now > 0 || ns.baseline > 0 {
            write_row(out, name, ns, "")?;
        }
    }
    let least_ns = (SHOWN * baseline.time_ns as f64) as u64;
    let causes = comparison.idle.iter();
    let mut causes = causes.filter(|(_, ns)| ns.now.max(ns.baseline) > least_ns);
    if let Some(first) = causes.next() {
        writeln!(out, "idle by cause, in the mean")?;
        for (cause, ns) in [first].into_iter().chain(causes) {
            write_row(out, &format!("  {}", cause.as_str()), *ns, "")?;
        }
    }
    for (what, shifts) in [
        ("calls that block the host", &comparison.blocking),
        ("kernels", &comparison.kernels),
        ("operators, on the host", &comparison.operators),
    ] {
        write_shifts(out, what, shifts, least_ns)?;
    }
    writeln!(out)?;
    for (what, codes) in [
        ("gone", &comparison.gone),
        ("new", &comparison.new),
        ("still there", &comparison.same),
    ] {
        let codes: Vec<&str> = codes.iter().map(|code: &Code| code.as_str()).collect();
        if !codes.is_empty() {
            writeln!(out, "{what}: {}", codes.join(", "))?;
        }
    }
    writeln!(out)
}

fn write_time(out: &mut String, comparison: &Comparison) -> Result {
    let Two { now, baseline } = &comparison.per_step;
    let change = comparison.ratio().map_or(String::new(), |ratio| {
        let percent = 100.0 * (ratio - 1.0);
        if percent < 0.0 {
            format!(", {:.1} % less", -percent)
        } else {
            format!(", {percent:.1} % more")
        }
    });
    let (new, old) = (time(now.time_ns), time(baseline.time_ns));
    if now.steps == 0 {
        return writeln!(out, "trace   {new} instead of {old}{change}");
    }
    writeln!(out, "step    {new} instead of {old}{change}, in the median")?;
    let verdict = match &comparison.slowdown {
        Ok(slowdown) if slowdown.low > 1.0 || slowdown.high < 1.0 => {
            "more than the steps within each trace differ"
        }
        Ok(_) => "no more than the steps within each trace differ: this may be chance",
        Err(_) => "too few steps to say whether this is chance",
    };
    let ((low, high), (old_low, old_high)) =
        ((now.p10_ns, now.p90_ns), (baseline.p10_ns, baseline.p90_ns));
    writeln!(
        out,
        "        from {} to {} now, from {} to {} before: {verdict}",
        time(low),
        time(high),
        time(old_low),
        time(old_high)
    )
}

fn write_row(out: &mut String, name: &str, ns: Two<u64>, more: &str) -> Result {
    let (now, baseline) = (time(ns.now), time(ns.baseline));
    let change = signed(ns.change());
    let row = format!("{name:32} {now:>11} {baseline:>11} {change:>12}  {more}");
    writeln!(out, "{}", row.trim_end())
}

/// Shortens a name to fit into its column; the JSON has the full name.
fn short(name: &str) -> String {
    let name = plain(name);
    match name.char_indices().nth(NAME_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name,
    }
}

/// Writes the names whose time changed, with the change of their calls.
fn write_shifts(out: &mut String, what: &str, shifts: &[Shift], least_ns: u64) -> Result {
    let changed: Vec<&Shift> = shifts
        .iter()
        .filter(|shift| shift.ns.change().unsigned_abs() > least_ns)
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    writeln!(out, "{what}")?;
    for shift in changed.iter().take(NAMES) {
        let calls = match (shift.calls.now, shift.calls.baseline) {
            (0.0, calls) => format!("gone, {} a step", count(calls)),
            (calls, 0.0) => format!("new, {} a step", count(calls)),
            (now, before) if now == before => format!("{} a step", count(now)),
            (now, before) => format!("{} a step instead of {}", count(now), count(before)),
        };
        write_row(out, &format!("  {}", short(&shift.name)), shift.ns, &calls)?;
    }
    if changed.len() > NAMES {
        writeln!(out, "  and {} more", changed.len() - NAMES)?;
    }
    Ok(())
}

fn count(calls: f64) -> String {
    if calls.fract() == 0.0 {
        format!("{calls}")
    } else {
        format!("{calls:.1}")
    }
}

fn signed(change_ns: i64) -> String {
    let sign = match change_ns {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", time(change_ns.unsigned_abs()))
}
