//! The report for people: short, the worst first.

use std::cmp::Reverse;
use std::fmt::{Result, Write};

use sidestream::check::counted;

use super::base::measured;
use super::lanes::pictures;
use super::plain::{plain, written};
use super::worth::{has_share, is_open, is_worth_nothing, range};
use crate::findings::{Code, Finding, size, time};
use crate::idle::Idle;
use crate::measure::{Copies, DeviceTime};
use crate::model::{Base, Direction, Warning};
use crate::replay::{Change, Prediction, Replay};
use crate::report::{Link, Report};
use crate::sort::order_by;

/// Shares below this are summed up as the rest.
const SHOWN: f64 = 0.01;
/// Idle time outside of the steps is reported if it is at least this part of the trace.
const OUTSIDE: f64 = 0.05;
/// The maximum number of devices that are shown; further ones are only counted.
const MOST_DEVICES: usize = 16;
/// A change that gains less is not drawn.
const DRAWN: f64 = 0.05;
/// Warnings that change no figure by much. All others may change the meaning of the rest, and come first.
const MINOR: [&str; 4] = ["ORPHANS", "UNKNOWN_MEMORY", "MISSING_NAMES", "WORKERS"];

/// Returns the report of one trace for a terminal of this width, under a title such as the name of its file.
pub fn text(title: &str, report: &Report, columns: usize) -> String {
    written(|out| write_text(out, title, report, columns))
}

/// Returns the report in a few lines, for one of many traces.
pub fn brief(title: &str, report: &Report) -> String {
    written(|out| write_brief(out, title, report))
}

fn write_text(out: &mut String, title: &str, report: &Report, columns: usize) -> Result {
    write_head(out, title, report)?;
    for copies in &report.copies {
        write_copies(out, copies)?;
    }
    write_link(out, report)?;
    writeln!(out)?;
    for finding in &report.findings {
        // Findings outside of steps are at the top.
        if finding.code != Code::ProfilerOverhead {
            write_finding(out, report, finding)?;
        }
    }
    write_replay(out, report)?;
    write_pictures(out, report, columns)?;
    for warning in report.warnings.iter().filter(|w| is_minor(w)) {
        writeln!(out, "note: {}", plain(&warning.text))?;
    }
    writeln!(out)
}

fn write_brief(out: &mut String, title: &str, report: &Report) -> Result {
    write_head(out, title, report)?;
    for finding in &report.findings {
        let (code, worth) = (finding.code.as_str(), worth(report, finding));
        let share = 100.0 * finding.share;
        match finding.code {
            Code::NothingToGain => writeln!(out, "{code}")?,
            Code::Startup | Code::Initialisation => {
                writeln!(out, "{code}  {share:.1} % of the trace")?
            }
            _ if has_share(finding) => {
                writeln!(out, "{code}  {share:.1} % of {}{worth}", whole(report))?
            }
            _ => writeln!(out, "{code}{}", worth.replacen(',', " ", 1))?,
        }
    }
    writeln!(out)
}

/// Writes what the trace is, its warnings, and what the devices did.
fn write_head(out: &mut String, title: &str, report: &Report) -> Result {
    let (kind, events) = (report.source.as_str(), report.events);
    let rank = match (report.rank, report.world) {
        (Some(rank), Some(world)) => format!(", rank {rank} of {world}"),
        (Some(rank), None) => format!(", rank {rank}"),
        _ => String::new(),
    };
    let events = counted(events, "event");
    writeln!(out, "{}: {kind} trace, {events}{rank}", plain(title))?;
    for warning in report.warnings.iter().filter(|w| !is_minor(w)) {
        writeln!(out, "first:  {}", plain(&warning.text))?;
    }
    let own = |finding: &&Finding| finding.code == Code::ProfilerOverhead;
    for finding in report.findings.iter().filter(own) {
        writeln!(out, "first:  {}", plain(&finding.text))?;
    }
    for device in report.devices.iter().take(MOST_DEVICES) {
        write_device(out, device)?;
    }
    let more = report.devices.len().saturating_sub(MOST_DEVICES);
    if more > 0 {
        let (devices, are) = match more {
            1 => ("device", "is"),
            _ => ("devices", "are"),
        };
        writeln!(out, "        {more} more {devices} {are} left out")?;
    }
    let Some((mean, median)) = report.steps.mean_ns().zip(report.steps.median_ns()) else {
        return writeln!(
            out,
            "steps   none found: figures are of the whole trace, and only upper bounds of gains are known"
        );
    };
    let (low, high) = report.steps.spread_ns().unwrap_or((median, median));
    let (count, by) = (report.steps.steps.len(), report.steps.by.as_str());
    writeln!(
        out,
        "steps   {count} by {by}, {} each in the mean (median {}, from {} to {})",
        time(mean),
        time(median),
        time(low),
        time(high)
    )?;
    if let Base::Measured(unprofiled) = &report.base {
        writeln!(out, "        {}", measured(unprofiled))?;
    }
    for device in report.devices.iter().take(MOST_DEVICES) {
        let outside = report.idle_outside(device);
        if outside > OUTSIDE {
            writeln!(
                out,
                "        outside of them device {} is idle for {:.1} % of the trace, which no figure of a step includes",
                device.0.device,
                100.0 * outside
            )?;
        }
    }
    Ok(())
}

fn is_minor(warning: &Warning) -> bool {
    MINOR.contains(&warning.code)
}

fn write_copies(out: &mut String, copies: &Copies) -> Result {
    let (direction, memory) = (copies.direction.as_str(), copies.memory.as_str());
    let rate = copies.gb_per_s();
    // For a few bytes the rate is meaningless.
    let rate = rate.filter(|rate| *rate >= 0.05);
    let rate = rate.map_or(String::new(), |rate| format!(", {rate:.1} GB/s"));
    writeln!(
        out,
        "copies  {direction} {memory}: {}, {} in {}{rate}",
        copies.count,
        size(copies.bytes),
        time(copies.duration_ns)
    )
}

/// Writes the speed assumed for pinned copies, where there are copies that could be pinned.
fn write_link(out: &mut String, report: &Report) -> Result {
    let with_host = |c: &Copies| matches!(c.direction, Direction::Upload | Direction::Download);
    if !report.copies.iter().any(with_host) {
        return Ok(());
    }
    let (speed, by) = report.link;
    let speed = match by {
        Link::Measured if speed < 10.0 => format!("{speed:.2}"),
        Link::Stated if speed < 10.0 => format!("{speed}"),
        _ => format!("{speed:.1}"),
    };
    let speed = speed.trim_end_matches(".0");
    let name = report
        .devices
        .first()
        .map_or("", |(device, _)| &device.name);
    let by = match (by, name) {
        (Link::Stated, _) => "as stated".to_owned(),
        (Link::Measured, _) => {
            "measured: the best that the trace has; --link-gbps states another".to_owned()
        }
        (Link::Assumed, "") => "assumed; --link-gbps states another".to_owned(),
        (Link::Assumed, name) => {
            format!("assumed for {}; --link-gbps states another", plain(name))
        }
    };
    writeln!(out, "link    pinned copies at {speed} GB/s ({by})")
}

fn write_finding(out: &mut String, report: &Report, finding: &Finding) -> Result {
    let (code, text) = (finding.code.as_str(), plain(&finding.text));
    let share = match (finding.code, 100.0 * finding.share) {
        (Code::NothingToGain, _) => String::new(),
        (Code::Startup | Code::Initialisation, share) => format!("{share:.1} % of the trace: "),
        (_, share) if has_share(finding) => format!("{share:.1} % of {}: ", whole(report)),
        _ => String::new(),
    };
    writeln!(out, "{code}  {share}{text}")?;
    let saving = finding.saving_ns;
    if is_open(finding) {
        writeln!(
            out,
            "    worth at most {} of {}{} with {}, or nothing: no trace shows which",
            time(saving.high),
            whole(report),
            percent_of_step(report, saving.high),
            plain(&Change::names(&finding.changes))
        )?;
    } else if is_worth_nothing(report, finding) {
        writeln!(
            out,
            "    worth next to nothing by itself, according to the replay"
        )?;
    } else if saving.likely == 0 && saving.high > 0 {
        let most = percent_of_step(report, saving.high);
        writeln!(
            out,
            "    worth at most {} of {}{most}; not predicted",
            time(saving.high),
            whole(report)
        )?;
    } else if saving.high > 0 {
        writeln!(
            out,
            "    worth {} of {}{}, {}, with {}",
            time(saving.likely),
            whole(report),
            percent_of_step(report, saving.likely),
            range(saving),
            plain(&Change::names(&finding.changes))
        )?;
    }
    if let Some(first) = finding.evidence.first() {
        let what: String = plain(&first.what).chars().take(90).collect();
        let (offset_ns, step) = report.place(first.start_ns);
        let step = step.map_or(String::new(), |step| format!(", in step {step}"));
        writeln!(
            out,
            "    such as {what}, {}{} at {}{step}",
            if first.is_gap { "a gap of " } else { "" },
            time(first.duration_ns),
            time(offset_ns)
        )?;
    }
    Ok(())
}

/// Returns the gain of a finding, as the end of a line.
fn worth(report: &Report, finding: &Finding) -> String {
    let likely = finding.saving_ns.likely;
    match likely {
        0 if finding.saving_ns.high > 0 => {
            let high = finding.saving_ns.high;
            format!(
                ", worth at most {}{}",
                time(high),
                percent_of_step(report, high)
            )
        }
        0 => String::new(),
        _ => format!(
            ", worth {}{}",
            time(likely),
            percent_of_step(report, likely)
        ),
    }
}

fn percent_of_step(report: &Report, ns: u64) -> String {
    match report.judged_step_ns() {
        0 => String::new(),
        step_ns => format!(" ({:.1} %)", 100.0 * ns as f64 / step_ns as f64),
    }
}

/// Returns the base of the figures: a step or the trace.
fn whole(report: &Report) -> &'static str {
    match report.steps.mean_ns() {
        Some(_) => "a step",
        None => "the trace",
    }
}

/// Writes the replay. Its error comes first, since it shows how reliable the rest is.
fn write_replay(out: &mut String, report: &Report) -> Result {
    let replay = match &report.replay {
        Ok(replay) => replay,
        Err(why) => return writeln!(out, "what-if: none, since {why}"),
    };
    writeln!(
        out,
        "replay  the trace as it is, replayed: {} a step instead of {}, {:.1} % off{}",
        time(replay.replayed_ns),
        time(replay.measured_ns),
        100.0 * replay.error(),
        match report.steps.steps.len() {
            all if replay.steps < all => format!(", by the first {} of {all} steps", replay.steps),
            _ => String::new(),
        }
    )?;
    if !replay.is_ok() {
        return writeln!(out, "what-if: none, since the replay is more than 3 % off");
    }
    if let Base::Measured(_) = replay.base {
        writeln!(
            out,
            "        the figures below refer to the step as it was measured without the profiler"
        )?;
    } else if replay.is_slowed_by_profiler() {
        let (low, high) = replay.unprofiled_between_ns;
        writeln!(
            out,
            "        {} without the profiler and one-time work, to which the figures below refer: an estimate, from {} to {}",
            time(replay.unprofiled_ns),
            time(low),
            time(high)
        )?;
    }
    let (shown, others) = worthwhile(replay, report.what_if_asked);
    let before = if shown.is_empty() {
        "what-if: these"
    } else {
        "        the others"
    };
    for prediction in shown {
        writeln!(
            out,
            "what-if {}: {} a step, {} (from {} to {}){}",
            changes(prediction),
            time(prediction.likely_ns),
            in_words(gain(replay, prediction)),
            time(prediction.low_ns),
            time(prediction.high_ns),
            condition(prediction)
        )?;
    }
    if !others.is_empty() {
        let others: Vec<String> = others.into_iter().map(changes).collect();
        writeln!(
            out,
            "{before} gain less than 1 %, alone or over a part of them: {}",
            others.join("; ")
        )?;
    }
    Ok(())
}

/// Returns the condition on which a prediction depends and which no trace shows, or a note that there is nothing to change.
fn condition(prediction: &Prediction) -> &'static str {
    let has = |test: fn(&Change) -> bool| prediction.changes.iter().any(test);
    match () {
        () if !prediction.is_effective && prediction.changes.len() == 1 => {
            "; the trace has nothing that this would change"
        }
        () if !prediction.is_effective => "; the trace has nothing that one of these would change",
        () if has(|c| matches!(c, Change::SecondStream)) => {
            ", if the kernels do not depend on each other"
        }
        () if has(|c| matches!(c, Change::Pipeline(_))) => {
            ", if the first stage needs nothing that the last makes"
        }
        () if has(|c| matches!(c, Change::DropWait(..))) => {
            ", if the wait is not needed, which no trace shows"
        }
        () if has(Change::is_of_the_host) => ", if there are CPU cores for the workers",
        () => "",
    }
}

fn in_words(gain: f64) -> String {
    match gain {
        gain if gain < 0.0 => format!("{:.1} % more", -100.0 * gain),
        gain => format!("{:.1} % less", 100.0 * gain),
    }
}

/// Returns the names of the changes of a prediction.
pub fn changes(prediction: &Prediction) -> String {
    plain(&Change::names(&prediction.changes))
}

/// Returns how much shorter a step would be, relative to one without the profiler.
fn gain(replay: &Replay, prediction: &Prediction) -> f64 {
    1.0 - prediction.likely_ns as f64 / replay.unprofiled_ns.max(1) as f64
}

/// Returns the predictions worth showing, the best first, and the others: those that gain next to nothing, or next to nothing
/// over a part of their changes. All that were asked for are worth showing.
fn worthwhile(replay: &Replay, asked: bool) -> (Vec<&Prediction>, Vec<&Prediction>) {
    let says_something = |prediction: &&Prediction| {
        let gained = gain(replay, prediction);
        let parts = replay.predictions.iter().filter(|part| {
            let all = &prediction.changes;
            part.changes.len() < all.len() && part.changes.iter().all(|c| all.contains(c))
        });
        let best_part = parts.map(|part| gain(replay, part)).fold(0.0, f64::max);
        asked || gained >= SHOWN && gained - best_part >= SHOWN
    };
    let (mut shown, others): (Vec<_>, Vec<_>) = replay.predictions.iter().partition(says_something);
    // Predictions that depend on more than the trace shows come last.
    let is_conditional = |p: &Prediction| p.changes.iter().any(Change::is_conditional);
    order_by(&mut shown, |prediction| {
        (is_conditional(prediction), prediction.likely_ns)
    });
    (shown, others)
}

/// Draws the median step, and the step after the change that gains most.
fn write_pictures(out: &mut String, report: &Report, columns: usize) -> Result {
    let Some(measured) = &report.timeline else {
        return Ok(());
    };
    let title = match measured.step {
        Some(step) => format!("step {step} took {}:", time(measured.length_ns)),
        None => format!("the trace took {}:", time(measured.length_ns)),
    };
    let mut drawn = vec![(title, measured)];
    let replay = report.replay.as_ref().ok().filter(|replay| replay.is_ok());
    let best = replay.and_then(|replay| {
        let (shown, _) = worthwhile(replay, report.what_if_asked);
        let known = |p: &&Prediction| !p.changes.iter().any(Change::is_conditional);
        let best = shown
            .into_iter()
            .find(|p| report.what_if_asked || known(p))?;
        (gain(replay, best) > DRAWN).then_some(best)
    });
    if let (Some(best), Some(_)) = (best, measured.step) {
        let length = time(best.timeline.length_ns);
        let title = format!("with {} one would take {length}:", changes(best));
        drawn.push((title, &best.timeline));
    }
    write!(out, "\n{}", pictures(&drawn, columns))
}

fn write_device(out: &mut String, (device, idle): &(DeviceTime, Idle)) -> Result {
    let share = |part: u64| 100.0 * part as f64 / device.span_ns.max(1) as f64;
    let name = match &*device.name {
        "" => String::new(),
        name => format!(" ({})", plain(name)),
    };
    writeln!(
        out,
        "device  {}{name}: {} in {}, idle {:.1} %",
        device.device,
        counted(device.gpu_ops as u64, "operation"),
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
    order_by(&mut causes, |(_, ns)| Reverse(**ns));
    for (cause, ns) in causes {
        let share = share(*ns);
        if share >= 100.0 * SHOWN {
            let cause = cause.as_str();
            writeln!(out, "        idle {share:4.1} %  {cause} {}", time(*ns))?;
        }
    }
    Ok(())
}
