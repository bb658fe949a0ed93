//! The report for people: short, the worst first.

use std::fmt::Write;

use crate::findings::{size, time};
use crate::idle::Idle;
use crate::measure::DeviceTime;
use crate::report::{Report, kind};

/// Shares below this are summed up as the rest.
const SHOWN: f64 = 0.01;

/// The report of one trace for a terminal, under a title such as the name of its file.
pub fn text(title: &str, report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(&mut out, title, report);
    out
}

fn write_text(out: &mut String, title: &str, report: &Report) -> std::fmt::Result {
    let (kind, events) = (kind(report.source), report.events);
    writeln!(out, "{}: {kind} trace, {events} events", plain(title))?;
    for device in &report.devices {
        write_device(out, device)?;
    }
    match report.steps.median_ns() {
        Some(median) => {
            let (low, high) = report.steps.spread_ns().unwrap_or((median, median));
            writeln!(
                out,
                "steps   {} by {}, {} each (from {} to {})",
                report.steps.steps.len(),
                report.steps.by.as_str(),
                time(median),
                time(low),
                time(high)
            )?;
        }
        None => writeln!(out, "steps   none found: figures are of the whole trace")?,
    }
    for copies in &report.copies {
        let (direction, memory) = (copies.direction.as_str(), copies.memory.as_str());
        let rate = copies.gb_per_s();
        let rate = rate.map_or(String::new(), |rate| format!(", {rate:.1} GB/s"));
        writeln!(
            out,
            "copies  {direction} {memory}: {}, {} in {}{rate}",
            copies.count,
            size(copies.bytes),
            time(copies.duration_ns)
        )?;
    }
    writeln!(out)?;
    for finding in &report.findings {
        let saving = finding.saving_ns;
        writeln!(out, "{}  {}", finding.code.as_str(), plain(&finding.text))?;
        if saving.high > 0 {
            writeln!(
                out,
                "    worth {} of a step, between {} and {}",
                time(saving.likely),
                time(saving.low),
                time(saving.high)
            )?;
        }
        if let Some(first) = finding.evidence.first() {
            let what: String = plain(&first.what).chars().take(90).collect();
            let (took, at) = (time(first.duration_ns), first.start_ns);
            writeln!(out, "    such as {what}, {took} at {at} ns")?;
        }
    }
    write_replay(out, report)?;
    for warning in &report.warnings {
        writeln!(out, "note: {}", plain(&warning.text))?;
    }
    writeln!(out)
}

/// How far the replay is off comes first: it says what the rest is worth.
fn write_replay(out: &mut String, report: &Report) -> std::fmt::Result {
    let replay = match &report.replay {
        Ok(replay) => replay,
        Err(why) => return writeln!(out, "what-if: none, since {why}"),
    };
    writeln!(
        out,
        "replay  {} a step instead of {}, {:.1} % off",
        time(replay.replayed_ns),
        time(replay.measured_ns),
        100.0 * replay.error()
    )?;
    if !replay.is_ok() {
        return writeln!(out, "what-if: none, since the replay is more than 3 % off");
    }
    for prediction in &replay.predictions {
        let changes: Vec<String> = prediction.changes.iter().map(|c| c.to_string()).collect();
        let part = prediction.likely_ns as f64 / replay.unprofiled_ns.max(1) as f64;
        // What changes nothing is not worth a line unless it was asked for.
        if (part - 1.0).abs() >= SHOWN || replay.predictions.len() == 1 {
            writeln!(
                out,
                "what-if {}: {} a step ({} to {})",
                changes.join(","),
                time(prediction.likely_ns),
                time(prediction.low_ns),
                time(prediction.high_ns)
            )?;
        }
    }
    Ok(())
}

fn write_device(out: &mut String, (device, idle): &(DeviceTime, Idle)) -> std::fmt::Result {
    let share = |part: u64| 100.0 * part as f64 / device.span_ns.max(1) as f64;
    let name = match &*device.name {
        "" => String::new(),
        name => format!(" ({})", plain(name)),
    };
    writeln!(
        out,
        "device  {}{name}: {} operations in {}, idle {:.1} %",
        device.device,
        device.gpu_ops,
        time(device.span_ns),
        share(device.idle_ns())
    )?;
    if device.host_copy_ns > 0 {
        let hidden = 100.0 * device.hidden_copy_ns as f64 / device.host_copy_ns as f64;
        writeln!(
            out,
            "        copies with the host {}, {hidden:.1} % of it under kernels",
            time(device.host_copy_ns)
        )?;
    }
    let mut causes: Vec<_> = idle.by_cause.iter().collect();
    causes.sort_by_key(|(_, ns)| u64::MAX - **ns);
    for (cause, ns) in causes {
        let share = share(*ns);
        if share >= 100.0 * SHOWN {
            let cause = cause.as_str();
            writeln!(out, "        idle {share:4.1} %  {cause} {}", time(*ns))?;
        }
    }
    Ok(())
}

/// Text of a trace for a terminal: what would move its cursor is left out.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
