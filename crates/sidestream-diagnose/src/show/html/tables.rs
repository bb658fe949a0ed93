//! The tables of a report: findings, changes, copies, blocking calls.

use std::fmt::{self, Write};

use super::escape::{BACKTICK, esc};
use super::parts::{MOST_ROWS, NAME_LETTERS, changes, factor};
use crate::findings::{Evidence, Finding, size, time};
use crate::model::Base;
use crate::report::{Link, Report};
use crate::show::base::measured;
use crate::show::marks::{count, meter, percent, sentence};
use crate::show::worth::{has_share, is_open, is_worth_nothing, range};

use super::steps::best;

/// The maximum number of characters in a sentence.
const TEXT_LETTERS: usize = 600;

/// Writes the findings, the worst first.
pub fn findings(out: &mut String, report: &Report) -> fmt::Result {
    if report.findings.is_empty() {
        return Ok(());
    }
    write!(
        out,
        "<section id=\"findings\"><h2>Findings</h2><p class=\"sub\">The most valuable first: the time \
         that a step would save without the cause, and where to look in the trace.</p>\
         <ol class=\"findings\">"
    )?;
    let step_ns = report.judged_step_ns();
    let whole = match report.steps.mean_ns() {
        Some(_) => "a step",
        None => "the trace",
    };
    for finding in &report.findings {
        write!(
            out,
            "<li><div><h3><code>{}</code></h3><p>{}</p>",
            finding.code.as_str(),
            code(&esc(&sentence(&finding.text), TEXT_LETTERS).to_string())
        )?;
        evidence(out, report, finding)?;
        write!(out, "</div><div class=\"gain\">")?;
        gain(out, finding, step_ns, whole)?;
        if is_worth_nothing(report, finding) {
            write!(
                out,
                "<br>next to nothing by itself, according to the replay"
            )?;
        }
        write!(out, "</div></li>")?;
    }
    write!(out, "</ol></section>")
}

/// Writes the gain of a finding, as words and as a range on the length of a step.
fn gain(out: &mut String, finding: &Finding, step_ns: u64, whole: &str) -> fmt::Result {
    let saving = finding.saving_ns;
    if saving.high > 0 {
        let step_ns = step_ns.max(1) as f64;
        let part = |ns: u64| (100.0 * ns as f64 / step_ns).min(100.0);
        let (low, likely, high) = (part(saving.low), part(saving.likely), part(saving.high));
        match saving.likely {
            0 if is_open(finding) => write!(out, "<b>not known from a trace</b>")?,
            0 => write!(out, "<b>not predicted</b>")?,
            ns => write!(out, "<b>{} less</b>", time(ns))?,
        }
        write!(
            out,
            "<svg aria-hidden=\"true\"><rect class=\"track\" y=\"4\" width=\"100%\" \
             height=\"2\"/><rect class=\"range\" x=\"{low:.2}%\" y=\"3\" width=\"{:.2}%\" \
             height=\"4\"/>",
            high - low
        )?;
        if saving.likely > 0 {
            write!(
                out,
                "<rect class=\"mark\" x=\"{:.2}%\" width=\"3\" height=\"10\"/>",
                likely.min(99.0)
            )?;
        }
        match saving.likely {
            0 => write!(out, "</svg>at most {}<br>", time(saving.high))?,
            _ => write!(out, "</svg>{}<br>", range(saving))?,
        }
    }
    if has_share(finding) {
        let whole = if finding.code.is_of_the_trace() {
            "the trace"
        } else {
            whole
        };
        write!(out, "takes {} of {whole}", percent(finding.share))?;
    }
    Ok(())
}

/// Marks text between backticks as code. The text and the backticks are escaped already.
fn code(text: &str) -> String {
    let mut parts = text.split(BACKTICK);
    let mut out = parts.next().unwrap_or_default().to_owned();
    while let Some(inside) = parts.next() {
        match parts.next() {
            Some(behind) => out.push_str(&format!("<code>{inside}</code>{behind}")),
            // The text was cut before the closing backtick.
            None => out.push_str(&format!("{BACKTICK}{inside}")),
        }
    }
    out
}

fn evidence(out: &mut String, report: &Report, finding: &Finding) -> fmt::Result {
    let place = |evidence: &Evidence| {
        let (offset_ns, step) = report.place(evidence.start_ns);
        let step = step.map_or(String::new(), |step| format!(", in step {step}"));
        format!(
            "{}{} at {}{step}",
            if evidence.is_gap { "a gap of " } else { "" },
            time(evidence.duration_ns),
            time(offset_ns)
        )
    };
    let Some(first) = finding.evidence.first() else {
        return Ok(());
    };
    write!(
        out,
        "<details><summary>Evidence: {}</summary><ul>",
        place(first)
    )?;
    for evidence in finding.evidence.iter().take(MOST_ROWS) {
        write!(
            out,
            "<li><b>{}</b>, <code>{}</code></li>",
            place(evidence),
            esc(&evidence.what, NAME_LETTERS)
        )?;
    }
    write!(out, "</ul></details>")
}

/// Writes what changes would gain, or why that is not predicted.
pub fn what_if(out: &mut String, report: &Report) -> fmt::Result {
    write!(out, "<section id=\"what-if\"><h2>What if</h2>")?;
    let replay = match &report.replay {
        Ok(replay) => replay,
        Err(why) => {
            let why = esc(why, TEXT_LETTERS);
            return write!(
                out,
                "<p class=\"sub\">Nothing is predicted: {why}.</p></section>"
            );
        }
    };
    let mut replayed = format!(
        "The replay of the unmodified trace takes {} a step instead of {}: it is {} off.",
        time(replay.replayed_ns),
        time(replay.measured_ns),
        percent(replay.error())
    );
    if let Base::Measured(unprofiled) = &replay.base {
        replayed.push_str(&format!(
            " The figures below refer to the step {}.",
            measured(unprofiled)
        ));
    } else if replay.is_slowed_by_profiler() {
        let unprofiled = time(replay.unprofiled_ns);
        replayed.push_str(&format!(
            " The figures below refer to a step without the profiler, which takes about {unprofiled}."
        ));
    }
    if !replay.is_ok() {
        return write!(
            out,
            "<p class=\"sub\">{replayed} Beyond 3 % nothing is predicted.</p></section>"
        );
    }
    if replay.predictions.is_empty() {
        return write!(
            out,
            "<p class=\"sub\">{replayed} None of the changes can be predicted.</p></section>"
        );
    }
    write!(
        out,
        "<p class=\"sub\">{replayed}</p><table><thead><tr><th class=\"wide\">change<th \
         class=\"opt\"><th class=\"n\">step<th class=\"n opt\">between<th class=\"n\">of \
         unmodified</thead><tbody>"
    )?;
    let best = best(replay);
    for (at, prediction) in replay.predictions.iter().take(MOST_ROWS).enumerate() {
        let factor = factor(replay, prediction);
        let class = match () {
            () if factor > 0.99 => "nil",
            () if best == Some(at) => "best",
            () => "",
        };
        write!(
            out,
            "<tr class=\"{class}\"><td>{}<td class=\"meter opt\">{}<td class=\"n\">{}<td \
             class=\"n opt\">{} to {}<td class=\"n\">{}",
            changes(prediction),
            meter(factor),
            time(prediction.likely_ns),
            time(prediction.low_ns),
            time(prediction.high_ns),
            percent(factor)
        )?;
    }
    write!(out, "</tbody></table></section>")
}

/// Writes copies by direction and memory, and the speed assumed for pinned ones.
pub fn copies(out: &mut String, report: &Report) -> fmt::Result {
    if report.copies.is_empty() {
        return Ok(());
    }
    let (speed, by) = report.link;
    let by = match by {
        Link::Stated => "as stated",
        Link::Measured => "as measured in the trace",
        Link::Assumed => "as assumed for this device",
    };
    write!(
        out,
        "<section id=\"copies\"><h2>Copies</h2><p class=\"sub\">Pinned copies are assumed to run at \
         {speed:.1} GB/s, {by}.</p><table><thead><tr><th>direction<th>memory<th \
         class=\"n opt\">count<th class=\"n\">bytes<th class=\"n\">time<th class=\"n\">GB/s</thead>\
         <tbody>"
    )?;
    for copies in report.copies.iter().take(MOST_ROWS) {
        let rate = copies.gb_per_s();
        let rate = rate.map_or("–".to_owned(), |rate| format!("{rate:.1}"));
        write!(
            out,
            "<tr><td>{}<td>{}<td class=\"n opt\">{}<td class=\"n\">{}<td class=\"n\">{}<td \
             class=\"n\">{rate}",
            copies.direction.as_str(),
            copies.memory.as_str(),
            count(copies.count as u64),
            size(copies.bytes),
            time(copies.duration_ns)
        )?;
    }
    write!(out, "</tbody></table></section>")
}

/// Writes the calls that blocked the host.
pub fn blocking(out: &mut String, report: &Report) -> fmt::Result {
    if report.blocking.is_empty() {
        return Ok(());
    }
    write!(
        out,
        "<section id=\"blocking\"><h2>Calls that block</h2><p class=\"sub\">Time inside a call is not a \
         loss by itself: the device may be busy meanwhile.</p><table><thead><tr><th \
         class=\"wide\">call<th class=\"n\">count<th class=\"n\">inside<th class=\"n\">device idle \
         meanwhile</thead><tbody>"
    )?;
    for call in report.blocking.iter().take(MOST_ROWS) {
        write!(
            out,
            "<tr><td><code>{}</code><td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}",
            esc(report.names.text(call.name), NAME_LETTERS),
            count(call.count as u64),
            time(call.duration_ns),
            time(call.idle_ns)
        )?;
    }
    write!(out, "</tbody></table></section>")
}

/// Writes how launches reach the devices.
pub fn launches(out: &mut String, report: &Report) -> fmt::Result {
    let launches = &report.launches;
    if launches.linked == 0 {
        return Ok(());
    }
    write!(
        out,
        "<section id=\"launches\"><h2>Launches</h2><table><thead><tr><th>operations with their \
         call<th class=\"n\">without<th class=\"n\">call to start, median<th class=\"n\">queued \
         then, median<th class=\"n\">with nothing queued behind</thead><tbody><tr><td>{}<td \
         class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}</tbody></table>\
         </section>",
        count(launches.linked as u64),
        count(launches.orphans as u64),
        time(launches.latency_ns),
        launches.queue_depth,
        percent(launches.launch_bound_per_mille as f64 / 1e3)
    )
}
