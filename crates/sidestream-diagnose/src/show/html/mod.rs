//! The report as one page for a browser, which loads nothing and can be printed.
//!
//! Text of a trace is not to be trusted. All of it passes through [`esc`]; besides, the page's content security policy allows a
//! browser to run only this script, to load nothing and to send nothing. A page has at most about 2 MB, regardless of the
//! trace.

mod escape;
mod parts;
mod ranks;
mod sorted;
mod steps;
mod tables;

use std::cmp::Reverse;
use std::fmt::{self, Write};

use super::marks::{count, percent, sentence};
use super::plain::written;
use crate::findings::time;
use crate::idle::{Cause, Idle};
use crate::measure::DeviceTime;
use crate::model::Source;
use crate::report::Report;
use crate::sort::order_by;
pub use escape::esc;
use parts::{
    MOST_WARNINGS, STYLE, TITLE_LETTERS, WARNING_LETTERS, changes, fact, factor, swatch,
    than_without_profiler,
};
pub use ranks::ranks_html;
pub use steps::{best, tick_ns, tick_time};

const SCRIPT: &str = include_str!("page.js");
/// The hash by which a browser recognizes the page's script: `openssl dgst -sha256 -binary page.js | base64`. The tests in a
/// browser fail if it is stale.
const SCRIPT_SHA256: &str = "I/eZOHcHKqlemCFGX2vkEoUUmMbaqrFcqw8OBeh552M=";

/// The maximum number of devices, and of warnings, that are shown; further ones are only counted.
const MOST_DEVICES: usize = 16;

/// Returns the report of one trace as an HTML page, under a title such as the name of its file.
///
/// The page is a complete document in one file. It needs no network, shows text of the trace as text only, follows the reader's
/// choice of light or dark, and is at most some 2 MB long.
pub fn html(title: &str, report: &Report) -> String {
    written(|out| write(out, title, report))
}

fn write(out: &mut String, title: &str, report: &Report) -> fmt::Result {
    let shown = esc(title, TITLE_LETTERS);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src 'sha256-{SCRIPT_SHA256}'; base-uri 'none'; \
         form-action 'none'\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{shown}: sidestream diagnose</title>\n<style>{STYLE}</style></head>\n<body>"
    )?;
    patterns(out)?;
    head(out, title, report)?;
    warnings(out, report)?;
    steps::strip(out, report)?;
    idle(out, report)?;
    steps::section(out, report)?;
    tables::findings(out, report)?;
    tables::what_if(out, report)?;
    tables::copies(out, report)?;
    tables::blocking(out, report)?;
    tables::launches(out, report)?;
    sorted::ranges(out, report)?;
    sorted::operators(out, report)?;
    sorted::kernels(out, report)?;
    sorted::memory(out, report)?;
    write!(
        out,
        "<footer>sidestream {} · all times from the trace</footer>\
         <div id=\"tip\" role=\"tooltip\" hidden></div>\n<script>{SCRIPT}</script></body></html>\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// Writes the hatching patterns, which distinguish waits from work without colours.
fn patterns(out: &mut String) -> fmt::Result {
    let pattern = |id: &str, ground: &str, line: &str| {
        format!(
            "<pattern id=\"{id}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect class=\"{ground}\" width=\"6\" \
             height=\"6\"/><path class=\"{line}\" d=\"M0 0V6\"/></pattern>"
        )
    };
    write!(
        out,
        "<svg aria-hidden=\"true\" style=\"position:absolute;width:0;height:0\"><defs>\
         {}{}{}</defs></svg>",
        pattern("wait", "p1", "pl"),
        pattern("load", "p2", "pl"),
        pattern("save", "p0", "ps")
    )
}

fn head(out: &mut String, title: &str, report: &Report) -> fmt::Result {
    let kind = match report.source {
        Source::Kineto => "trace of PyTorch’s profiler",
        Source::Nsight => "export of Nsight Systems",
        Source::Sidestream => "trace of sidestream",
    };
    write!(
        out,
        "<header><div class=\"kind\">sidestream diagnose</div><h1>{}</h1><div class=\"meta\">\
         {}, {} events",
        esc(title, TITLE_LETTERS),
        sentence(kind),
        count(report.events)
    )?;
    if let Some(rank) = report.rank {
        write!(out, ", rank {rank}")?;
    }
    let mut names: Vec<&str> = report.devices.iter().map(|d| &*d.0.name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names.iter().filter(|name| !name.is_empty()).take(4) {
        write!(out, ", {}", esc(name, 80))?;
    }
    write!(out, "</div><dl class=\"facts\">")?;
    step_fact(out, report)?;
    idle_fact(out, report)?;
    change_fact(out, report)?;
    finding_fact(out, report)?;
    write!(out, "</dl></header>")
}

fn step_fact(out: &mut String, report: &Report) -> fmt::Result {
    let steps = &report.steps;
    let Some((mean, median)) = steps.mean_ns().zip(steps.median_ns()) else {
        let span = report.devices.iter().map(|d| d.0.span_ns).max();
        let note = "no steps were found: figures are of the whole trace";
        return fact(out, "Trace", &time(span.unwrap_or(0)), note);
    };
    let (low, high) = steps.spread_ns().unwrap_or((median, median));
    let by = match steps.by.as_str() {
        "profiler_step" => "marked by the profiler",
        "annotation" => "by an annotation",
        "graph_launch" => "by graph launches",
        _ => "where the work repeats itself",
    };
    let note = format!(
        "mean of {} {by}, median {}, most from {} to {}",
        count(steps.steps.len() as u64),
        time(median),
        time(low),
        time(high)
    );
    fact(out, "Step", &time(mean), &note)
}

fn idle_fact(out: &mut String, report: &Report) -> fmt::Result {
    let part = |device: &DeviceTime| device.idle_ns() as f64 / device.span_ns.max(1) as f64;
    let parts: Vec<f64> = report.devices.iter().map(|d| part(&d.0)).collect();
    let Some(most) = parts.iter().copied().max_by(f64::total_cmp) else {
        return Ok(());
    };
    let least = parts.iter().copied().min_by(f64::total_cmp).unwrap_or(most);
    let (label, note) = match parts.len() {
        1 => ("GPU idle", String::new()),
        n => (
            "GPU idle at most",
            format!("{n} devices, at least {}", percent(least)),
        ),
    };
    let copies = report.devices.iter().map(|d| d.0.host_copy_ns);
    let hidden = report.devices.iter().map(|d| d.0.hidden_copy_ns);
    let copies = copies.fold(0, u64::saturating_add);
    let hidden = hidden.fold(0, u64::saturating_add);
    let note = match (note.is_empty(), copies) {
        (true, 1..) => {
            let part = percent(hidden as f64 / copies as f64);
            format!("{part} of the copies’ time is hidden under kernels")
        }
        _ => note,
    };
    fact(out, label, &percent(most), &note)
}

fn change_fact(out: &mut String, report: &Report) -> fmt::Result {
    let Ok(replay) = &report.replay else {
        return fact(out, "Predicted step", "–", "the trace cannot be replayed");
    };
    let best = steps::best(replay).map(|at| &replay.predictions[at]);
    match best {
        Some(best) if factor(replay, best) < 0.99 => {
            let ratio = 1.0 / factor(replay, best).max(1e-9);
            let (own, changes) = (than_without_profiler(replay), changes(best));
            let note = format!("with {changes}: {ratio:.2}× as fast{own}");
            fact(out, "Predicted step", &time(best.likely_ns), &note)
        }
        Some(_) => fact(
            out,
            "Predicted step",
            "no change",
            "none of the changes gains 1 %",
        ),
        None => {
            let why = if replay.is_ok() {
                "no change can be predicted"
            } else {
                "the replay is more than 3 % off"
            };
            fact(out, "Predicted step", "–", why)
        }
    }
}

fn finding_fact(out: &mut String, report: &Report) -> fmt::Result {
    let Some(first) = report.findings.first() else {
        return Ok(());
    };
    let code = first.code.as_str().replace('_', " ").to_lowercase();
    let note = match report.findings.len() {
        1 => "the only finding".to_owned(),
        n => format!("the first of {n} findings"),
    };
    fact(out, "First of all", &sentence(&code), &note)
}

fn warnings(out: &mut String, report: &Report) -> fmt::Result {
    if report.warnings.is_empty() {
        return Ok(());
    }
    write!(out, "<ul class=\"warnings\">")?;
    for warning in report.warnings.iter().take(MOST_WARNINGS) {
        let text = sentence(&warning.text);
        let text = esc(&text, WARNING_LETTERS);
        write!(out, "<li><code>{}</code>{text}</li>", warning.code)?;
    }
    let more = report.warnings.len().saturating_sub(MOST_WARNINGS);
    if more > 0 {
        write!(out, "<li>{more} more</li>")?;
    }
    write!(out, "</ul>")
}

fn idle(out: &mut String, report: &Report) -> fmt::Result {
    write!(
        out,
        "<section id=\"idle\"><h2>Idle time by cause</h2><p class=\"sub\">From the first GPU \
         operation to the last. Every idle nanosecond has one cause.</p>"
    )?;
    for (device, idle) in report.devices.iter().take(MOST_DEVICES) {
        causes_of(out, report, device, idle)?;
    }
    let more = report.devices.len().saturating_sub(MOST_DEVICES);
    if more > 0 {
        write!(
            out,
            "<p class=\"sub\">{more} more devices are left out.</p>"
        )?;
    }
    write!(out, "</section>")
}

fn causes_of(out: &mut String, report: &Report, device: &DeviceTime, idle: &Idle) -> fmt::Result {
    let part = |ns: u64| ns as f64 / device.span_ns.max(1) as f64;
    write!(out, "<div class=\"device\"><h3>GPU {}", device.device)?;
    if let Some(process) = device.process.filter(|_| report.devices.len() > 1) {
        write!(out, " of process {process}")?;
    }
    write!(
        out,
        " <span>{}, {} operations in {}, idle {}</span></h3><svg role=\"img\" aria-label=\"busy \
         and idle time\">",
        esc(&device.name, 80),
        count(device.gpu_ops as u64),
        time(device.span_ns),
        percent(part(device.idle_ns()))
    )?;
    let mut causes: Vec<(Cause, u64)> = idle.by_cause.iter().map(|(c, ns)| (*c, *ns)).collect();
    order_by(&mut causes, |(cause, ns)| (Reverse(*ns), *cause));
    let busy = 100.0 * part(device.busy_ns());
    write!(
        out,
        "<rect class=\"busy\" width=\"{busy:.3}%\" height=\"100%\"/>"
    )?;
    let mut x = busy;
    for (cause, ns) in &causes {
        let ((_, class), width) = (cause.told(), 100.0 * part(*ns));
        write!(
            out,
            "<rect class=\"c{class}\" x=\"{x:.3}%\" width=\"{width:.3}%\" height=\"100%\"/>"
        )?;
        x += width;
    }
    write!(
        out,
        "</svg><table><tbody><tr><td><svg class=\"swatch\" aria-hidden=\"true\"><rect \
         class=\"busy\" width=\"100%\" height=\"100%\"/></svg>busy<td class=\"opt\">kernels, \
         copies and memsets<td class=\"n\">{}<td class=\"n\">{}<td class=\"opt\">",
        percent(part(device.busy_ns())),
        time(device.busy_ns())
    )?;
    for (cause, ns) in causes {
        let longest = idle.longest_of_all.get(&cause);
        let (meaning, class) = cause.told();
        write!(
            out,
            "<tr><td>{}<code>{}</code><td class=\"opt\">{}<td class=\"n\">{}<td \
             class=\"n\">{}<td class=\"opt what\">",
            swatch('c', class),
            cause.as_str(),
            meaning,
            percent(part(ns)),
            time(ns)
        )?;
        if let Some(longest) = longest {
            write!(out, "longest {}", time(longest.duration_ns))?;
            if let Some(because) = longest.because {
                let name = esc(report.names.text(because.name), 80);
                write!(out, ", <code>{name}</code>")?;
            }
        }
    }
    write!(out, "</tbody></table></div>")
}
