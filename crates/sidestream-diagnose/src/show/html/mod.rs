//! The report as one page for a browser: nothing is loaded from anywhere, and it can be printed.
//!
//! What comes from a trace is not to be trusted. All of it passes [`esc`]; besides, the page's own
//! rules allow a browser to run no script but ours, to load nothing and to send nothing. A page has
//! at most some 2 MB, whatever the trace.

mod escape;
mod ranks;
mod sorted;
mod steps;
mod tables;

use std::fmt::{self, Write};

use crate::findings::time;
use crate::idle::{Cause, Idle};
use crate::measure::DeviceTime;
use crate::model::Source;
use crate::replay::{Prediction, Replay};
use crate::report::Report;
use escape::esc;
pub use escape::is_unseen;
pub use ranks::ranks_html;
use tables::sentence;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// By this number a browser knows our script from any other:
/// `openssl dgst -sha256 -binary page.js | base64`. The tests in a browser fail if it is stale.
const SCRIPT_SHA256: &str = "I/eZOHcHKqlemCFGX2vkEoUUmMbaqrFcqw8OBeh552M=";

/// Letters of a title, and of a warning.
const TITLE_LETTERS: usize = 300;
const WARNING_LETTERS: usize = 600;
/// More devices and warnings than these are counted only.
const MOST_DEVICES: usize = 16;
const MOST_WARNINGS: usize = 30;

/// A page under construction.
struct Page {
    out: String,
}

/// The report of one trace as a page of HTML, under a title such as the name of its file.
///
/// The page is a whole document in one file. It needs no network, shows text of the trace as text
/// only, follows the reader's choice of light or dark, and is at most some 2 MB long.
pub fn html(title: &str, report: &Report) -> String {
    let mut page = Page { out: String::new() };
    // Writing to a string cannot fail.
    let _ = page.write(title, report);
    page.out
}

impl Page {
    fn write(&mut self, title: &str, report: &Report) -> fmt::Result {
        let shown = esc(title, TITLE_LETTERS);
        write!(
            self.out,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src 'unsafe-inline'; script-src 'sha256-{SCRIPT_SHA256}'; base-uri 'none'; \
             form-action 'none'\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\">\
             <title>{shown}: sidestream diagnose</title>\n<style>{STYLE}</style></head>\n<body>"
        )?;
        self.patterns()?;
        self.head(title, report)?;
        self.warnings(report)?;
        steps::strip(self, report)?;
        self.idle(report)?;
        steps::section(self, report)?;
        tables::findings(self, report)?;
        tables::what_if(self, report)?;
        tables::copies(self, report)?;
        tables::blocking(self, report)?;
        tables::launches(self, report)?;
        sorted::ranges(self, report)?;
        sorted::operators(self, report)?;
        sorted::kernels(self, report)?;
        sorted::memory(self, report)?;
        write!(
            self.out,
            "<footer>sidestream {} · all times from the trace</footer>\
             <div id=\"tip\" role=\"tooltip\" hidden></div>\n<script>{SCRIPT}</script></body></html>\n",
            env!("CARGO_PKG_VERSION")
        )
    }

    /// Hatching, so that waits can be told from work without colours.
    fn patterns(&mut self) -> fmt::Result {
        let pattern = |id: &str, ground: &str, line: &str| {
            format!(
                "<pattern id=\"{id}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
                 patternTransform=\"rotate(45)\"><rect class=\"{ground}\" width=\"6\" \
                 height=\"6\"/><path class=\"{line}\" d=\"M0 0V6\"/></pattern>"
            )
        };
        write!(
            self.out,
            "<svg aria-hidden=\"true\" style=\"position:absolute;width:0;height:0\"><defs>\
             {}{}{}</defs></svg>",
            pattern("wait", "p1", "pl"),
            pattern("load", "p2", "pl"),
            pattern("save", "p0", "ps")
        )
    }

    fn head(&mut self, title: &str, report: &Report) -> fmt::Result {
        let kind = match report.source {
            Source::Kineto => "trace of PyTorch’s profiler",
            Source::Nsight => "export of Nsight Systems",
            Source::Sidestream => "trace of sidestream",
        };
        write!(
            self.out,
            "<header><div class=\"kind\">sidestream diagnose</div><h1>{}</h1><div class=\"meta\">\
             {}, {} events",
            esc(title, TITLE_LETTERS),
            sentence(kind),
            count(report.events)
        )?;
        if let Some(rank) = report.rank {
            write!(self.out, ", rank {rank}")?;
        }
        let mut names: Vec<&str> = report.devices.iter().map(|d| &*d.0.name).collect();
        names.sort_unstable();
        names.dedup();
        for name in names.iter().filter(|name| !name.is_empty()).take(4) {
            write!(self.out, ", {}", esc(name, 80))?;
        }
        write!(self.out, "</div><dl class=\"facts\">")?;
        self.step_fact(report)?;
        self.idle_fact(report)?;
        self.change_fact(report)?;
        self.finding_fact(report)?;
        write!(self.out, "</dl></header>")
    }

    fn step_fact(&mut self, report: &Report) -> fmt::Result {
        let steps = &report.steps;
        let Some((mean, median)) = steps.mean_ns().zip(steps.median_ns()) else {
            let span = report.devices.iter().map(|d| d.0.span_ns).max();
            let note = "no steps were found: figures are of the whole trace";
            return self.fact("Trace", &time(span.unwrap_or(0)), note);
        };
        let (low, high) = steps.spread_ns().unwrap_or((median, median));
        let by = match steps.by.as_str() {
            "profiler_step" => "marked by the profiler",
            "annotation" => "by an annotation",
            "graph_launch" => "by launches of graphs",
            _ => "where the work repeats itself",
        };
        let note = format!(
            "mean of {} {by}, median {}, most from {} to {}",
            count(steps.steps.len() as u64),
            time(median),
            time(low),
            time(high)
        );
        self.fact("Step", &time(mean), &note)
    }

    fn idle_fact(&mut self, report: &Report) -> fmt::Result {
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
        self.fact(label, &percent(most), &note)
    }

    fn change_fact(&mut self, report: &Report) -> fmt::Result {
        let Ok(replay) = &report.replay else {
            return self.fact("Predicted step", "–", "the trace cannot be replayed");
        };
        let best = steps::best(replay).map(|at| &replay.predictions[at]);
        match best {
            Some(best) if factor(replay, best) < 0.99 => {
                let ratio = 1.0 / factor(replay, best).max(1e-9);
                let (own, changes) = (than_without_profiler(replay), changes(best));
                let note = format!("with {changes}: {ratio:.2}× as fast{own}");
                self.fact("Predicted step", &time(best.likely_ns), &note)
            }
            Some(_) => self.fact(
                "Predicted step",
                "no change",
                "none of the changes gains 1 %",
            ),
            None => {
                let why = match replay.is_ok() {
                    true => "no change can be predicted",
                    false => "the replay is more than 3 % off",
                };
                self.fact("Predicted step", "–", why)
            }
        }
    }

    fn finding_fact(&mut self, report: &Report) -> fmt::Result {
        let Some(first) = report.findings.first() else {
            return Ok(());
        };
        let code = first.code.as_str().replace('_', " ").to_lowercase();
        let note = match report.findings.len() {
            1 => "the only finding".to_owned(),
            n => format!("the first of {n} findings"),
        };
        self.fact("First of all", &sentence(&code), &note)
    }

    /// One figure of the head. All three are text of ours.
    fn fact(&mut self, label: &str, big: &str, note: &str) -> fmt::Result {
        write!(
            self.out,
            "<div><dt>{label}</dt><dd class=\"big\">{big}</dd><dd class=\"note\">{note}</dd></div>"
        )
    }

    fn warnings(&mut self, report: &Report) -> fmt::Result {
        if report.warnings.is_empty() {
            return Ok(());
        }
        write!(self.out, "<ul class=\"warnings\">")?;
        for warning in report.warnings.iter().take(MOST_WARNINGS) {
            let text = sentence(&warning.text);
            let text = esc(&text, WARNING_LETTERS);
            write!(self.out, "<li><code>{}</code>{text}</li>", warning.code)?;
        }
        let more = report.warnings.len().saturating_sub(MOST_WARNINGS);
        if more > 0 {
            write!(self.out, "<li>{more} more</li>")?;
        }
        write!(self.out, "</ul>")
    }

    fn idle(&mut self, report: &Report) -> fmt::Result {
        write!(
            self.out,
            "<section id=\"idle\"><h2>Idle time by cause</h2><p class=\"sub\">From the first GPU \
             operation to the last. Every idle nanosecond has one cause.</p>"
        )?;
        for (device, idle) in report.devices.iter().take(MOST_DEVICES) {
            self.device(report, device, idle)?;
        }
        let more = report.devices.len().saturating_sub(MOST_DEVICES);
        if more > 0 {
            write!(
                self.out,
                "<p class=\"sub\">{more} more devices are left out.</p>"
            )?;
        }
        write!(self.out, "</section>")
    }

    fn device(&mut self, report: &Report, device: &DeviceTime, idle: &Idle) -> fmt::Result {
        let part = |ns: u64| ns as f64 / device.span_ns.max(1) as f64;
        write!(self.out, "<div class=\"device\"><h3>GPU {}", device.device)?;
        if let Some(process) = device.process.filter(|_| report.devices.len() > 1) {
            write!(self.out, " of process {process}")?;
        }
        write!(
            self.out,
            " <span>{}, {} operations in {}, idle {}</span></h3><svg role=\"img\" aria-label=\"busy \
             and idle time\">",
            esc(&device.name, 80),
            count(device.gpu_ops as u64),
            time(device.span_ns),
            percent(part(device.idle_ns()))
        )?;
        let mut causes: Vec<(Cause, u64)> = idle.by_cause.iter().map(|(c, ns)| (*c, *ns)).collect();
        causes.sort_by_key(|(cause, ns)| (u64::MAX - ns, *cause));
        let busy = 100.0 * part(device.busy_ns());
        write!(
            self.out,
            "<rect class=\"busy\" width=\"{busy:.3}%\" height=\"100%\"/>"
        )?;
        let mut x = busy;
        for (cause, ns) in &causes {
            let (class, width) = (class(*cause), 100.0 * part(*ns));
            write!(
                self.out,
                "<rect class=\"c{class}\" x=\"{x:.3}%\" width=\"{width:.3}%\" height=\"100%\"/>"
            )?;
            x += width;
        }
        write!(
            self.out,
            "</svg><table><tbody><tr><td><svg class=\"swatch\" aria-hidden=\"true\"><rect \
             class=\"busy\" width=\"100%\" height=\"100%\"/></svg>busy<td class=\"opt\">kernels, \
             copies and memsets<td class=\"n\">{}<td class=\"n\">{}<td class=\"opt\">",
            percent(part(device.busy_ns())),
            time(device.busy_ns())
        )?;
        for (cause, ns) in causes {
            let longest = idle.longest_of_all.get(&cause);
            write!(
                self.out,
                "<tr><td>{}<code>{}</code><td class=\"opt\">{}<td class=\"n\">{}<td \
                 class=\"n\">{}<td class=\"opt what\">",
                steps::swatch('c', class(cause)),
                cause.as_str(),
                meaning(cause),
                percent(part(ns)),
                time(ns)
            )?;
            if let Some(longest) = longest {
                write!(self.out, "longest {}", time(longest.duration_ns))?;
                if let Some(because) = longest.because {
                    let name = esc(report.names.text(because.name), 80);
                    write!(self.out, ", <code>{name}</code>")?;
                }
            }
        }
        write!(self.out, "</tbody></table></div>")
    }
}

/// The class of a cause in the style sheet.
fn class(cause: Cause) -> usize {
    match cause {
        Cause::Startup => 0,
        Cause::ProfilerOverhead => 1,
        Cause::HostStarved => 2,
        Cause::SyncInStep => 3,
        Cause::BlockingCopy => 4,
        Cause::PageableCopy => 5,
        Cause::LaunchBound => 6,
        Cause::DeviceLatency => 7,
        Cause::Unattributed => 8,
        Cause::Initialisation => 9,
        Cause::HostWork => 10,
        Cause::StreamWait => 11,
    }
}

/// What the host did meanwhile.
fn meaning(cause: Cause) -> &'static str {
    match cause {
        Cause::Startup => "before the first step, or after the last",
        Cause::ProfilerOverhead => "the profiler or the driver was busy with itself",
        Cause::Initialisation => "the program did what it does once",
        Cause::HostStarved => "the host waited for data",
        Cause::HostWork => "the host did work of its own, or nothing that the trace shows",
        Cause::StreamWait => "what was submitted waited for an event or a function of the host",
        Cause::SyncInStep => "a synchronisation had held up the host",
        Cause::BlockingCopy => "a copy had held up the host",
        Cause::PageableCopy => "the host prepared an upload from pageable memory",
        Cause::LaunchBound => "the host was on its way through framework and launches",
        Cause::DeviceLatency => "the device passed from one work to the next",
        Cause::Unattributed => "the trace does not show why",
    }
}

/// The changes of a prediction, as text of a page: stages have names of the trace.
fn changes(prediction: &Prediction) -> String {
    let words = prediction
        .changes
        .iter()
        .map(|c| esc(&c.to_string(), 200).to_string());
    words.collect::<Vec<_>>().join(" + ")
}

/// A predicted step as a part of the unmodified one, both without the profiler.
fn factor(replay: &Replay, prediction: &Prediction) -> f64 {
    prediction.likely_ns as f64 / replay.unprofiled_ns.max(1) as f64
}

/// What such a part is of, where it is not the step that was measured.
fn than_without_profiler(replay: &Replay) -> String {
    match replay.is_slowed_by_profiler() {
        true => format!(
            " as the {} without the profiler",
            time(replay.unprofiled_ns)
        ),
        false => String::new(),
    }
}

/// A part of a whole in hundredths.
fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// A number with its thousands apart.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
