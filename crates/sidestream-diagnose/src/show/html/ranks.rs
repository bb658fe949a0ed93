//! The ranks of one run as one page for a browser: which rank waited in which exchange, and the longest waits.

use std::fmt::{self, Write};

use super::escape::esc;
use super::parts::{MOST_WARNINGS, STYLE, TITLE_LETTERS, WARNING_LETTERS, fact};
use crate::digest::Part;
use crate::findings::time;
use crate::ranks::Ranks;
use crate::show::marks::{count, sentence};
use crate::show::plain::written;
use crate::show::together::{chosen, group_line, pipeline, verdict};

/// The height of a row of the heat map, and the width of a column.
const CELL: (usize, usize) = (10, 6);
/// A cell below this part of the longest wait is drawn empty.
const DRAWN: f64 = 0.01;
/// The maximum number of ranks that are listed; of more, those that matter most.
const LISTED: usize = 256;
/// The maximum number of kinds of groups that are listed.
const GROUPS: usize = 40;

/// Returns the ranks of one run as an HTML page, under a title such as the name of their folder.
///
/// Like the page of a report it needs no network, shows text of the traces as text only, and is at most some 2 MB long.
pub fn ranks_html(title: &str, ranks: &Ranks) -> String {
    written(|out| write(out, title, ranks))
}

fn write(out: &mut String, title: &str, ranks: &Ranks) -> fmt::Result {
    let shown = esc(title, TITLE_LETTERS);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         base-uri 'none'; form-action 'none'\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{shown}: ranks, sidestream diagnose</title>\n<style>{STYLE}</style></head>\n<body>\
         <header><div class=\"kind\">sidestream diagnose, ranks together</div><h1>{shown}</h1><div class=\"meta\">"
    )?;
    write!(out, "{} ranks", count(ranks.ranks.len() as u64))?;
    if let Some(world) = ranks.world {
        write!(out, " of {}", count(world.into()))?;
    }
    if let Some(ns) = ranks.clock_error_ns {
        write!(out, ", clocks aligned to {}", time(ns))?;
    }
    write!(out, "</div><dl class=\"facts\">")?;
    facts(out, ranks)?;
    write!(out, "</dl></header>")?;
    if !ranks.warnings.is_empty() {
        write!(out, "<ul class=\"warnings\">")?;
        for warning in ranks.warnings.iter().take(MOST_WARNINGS) {
            write!(out, "<li>{}</li>", esc(&sentence(warning), WARNING_LETTERS))?;
        }
        write!(out, "</ul>")?;
    }
    write!(out, "<section id=\"verdict\"><h2>The slow rank</h2>")?;
    for line in verdict(ranks) {
        write!(out, "<p>{}</p>", esc(&sentence(&line), 600))?;
    }
    write!(out, "</section>")?;
    heat(out, ranks)?;
    worst(out, ranks)?;
    groups(out, ranks)?;
    table(out, ranks)?;
    writeln!(
        out,
        "<footer>sidestream {} · all times from the traces</footer></body></html>",
        env!("CARGO_PKG_VERSION")
    )
}

fn facts(out: &mut String, ranks: &Ranks) -> fmt::Result {
    match ranks.slow() {
        Some(slow) => {
            let rank = format!("rank {}", ranks.number(slow.at));
            fact(
                out,
                "Slow",
                &rank,
                &format!("by its {}", slow.cause.as_str()),
            )?;
            let (step, predicted) = slow.step_ns;
            let note = format!("instead of {}, were it as fast as the median", time(step));
            fact(out, "Predicted step", &time(predicted), &note)?;
        }
        None => fact(
            out,
            "Slow",
            "–",
            "no single rank is known to make the step longer",
        )?,
    }
    let most = (0..ranks.ranks.len()).max_by_key(|at| ranks.waits_ns[*at]);
    if let Some(most) = most {
        let note = format!("a step in exchanges, rank {}", ranks.number(most));
        fact(out, "Longest wait", &time(ranks.waits_ns[most]), &note)?;
    }
    let slowest = &ranks.ranks[ranks.slowest].per_step;
    let note = format!("the longest, rank {}", ranks.number(ranks.slowest));
    fact(out, "Step", &time(slowest.time_ns), &note)
}

fn heat(out: &mut String, ranks: &Ranks) -> fmt::Result {
    let heat = &ranks.heat;
    let longest = heat
        .cells
        .iter()
        .flatten()
        .flatten()
        .copied()
        .max()
        .unwrap_or(0);
    if longest == 0 {
        return Ok(());
    }
    let (height, width) = CELL;
    let (rows, columns) = (heat.rows.len(), heat.columns.len());
    write!(
        out,
        "<section id=\"heat\"><h2>Ranks and exchanges</h2><p class=\"sub\">How long each rank waited for others, the darker the \
         longer, up to {}. A row is {}, a column {} in the order of their ends; the longest wait of each is drawn. Grey: it took \
         part in none.</p><svg role=\"img\" aria-label=\"waits of ranks by exchange\" viewBox=\"0 0 {} {}\" \
         preserveAspectRatio=\"none\" style=\"height:{}px;background:var(--panel)\">",
        time(longest),
        match heat.rows.first() {
            Some((from, to)) if to > from => format!("{} ranks", to - from + 1),
            _ => "a rank".to_owned(),
        },
        match heat.exchanges {
            1 => "an exchange".to_owned(),
            many => format!("{} exchanges", count(many as u64)),
        },
        columns * width,
        rows * height,
        (rows * height).max(40)
    )?;
    for (y, row) in heat.cells.iter().enumerate() {
        let (from, to) = heat.rows[y];
        for (x, cell) in row.iter().enumerate() {
            let place = format!(
                "x=\"{}\" y=\"{}\" width=\"{width}\" height=\"{height}\"",
                x * width,
                y * height
            );
            match cell {
                None => write!(out, "<rect class=\"busy\" {place}/>")?,
                Some(ns) if *ns as f64 >= DRAWN * longest as f64 => {
                    let (from, to) = (ranks.number(from), ranks.number(to));
                    let who = if from == to {
                        format!("rank {from}")
                    } else {
                        format!("ranks {from} to {to}")
                    };
                    write!(
                        out,
                        "<rect class=\"c3\" fill-opacity=\"{:.2}\" {place}><title>{who}: {}</title></rect>",
                        *ns as f64 / longest as f64,
                        time(*ns)
                    )?;
                }
                Some(_) => {}
            }
        }
    }
    write!(out, "</svg></section>")
}

fn worst(out: &mut String, ranks: &Ranks) -> fmt::Result {
    if ranks.worst.is_empty() {
        return Ok(());
    }
    write!(
        out,
        "<section id=\"worst\"><h2>The longest waits</h2><p class=\"sub\">Of the ranks with a trace, the last to arrive and the one \
         that had waited longest.</p><table><thead><tr><th>exchange<th>group<th class=\"n\">number<th class=\"n\">elements<th \
         class=\"n\">ended after<th class=\"n\">last<th class=\"n\">waited<th class=\"n\">for<th class=\"n\">all \
         together</thead><tbody>"
    )?;
    for (worst, group) in &ranks.worst {
        let seq = worst.seq.map_or(String::new(), |seq| seq.to_string());
        write!(
            out,
            "<tr><td><code>{}</code><td>{}<td class=\"n\">{seq}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">rank {}<td \
             class=\"n\">rank {}<td class=\"n\">{}<td class=\"n\">{}",
            esc(&worst.operation, 60),
            esc(group, 60),
            count(worst.elements),
            time(worst.offset_ns),
            ranks.number(worst.last),
            ranks.number(worst.waited.0),
            time(worst.waited.1),
            time(worst.all_ns)
        )?;
    }
    write!(out, "</tbody></table></section>")
}

fn groups(out: &mut String, ranks: &Ranks) -> fmt::Result {
    let pipeline = pipeline(ranks);
    if ranks.groups.is_empty() && pipeline.is_none() {
        return Ok(());
    }
    write!(out, "<section id=\"groups\"><h2>By process group</h2>")?;
    for groups in ranks.groups.iter().take(GROUPS) {
        write!(out, "<p>{}</p>", esc(&group_line(ranks, groups), 400))?;
    }
    if let Some(line) = pipeline {
        write!(out, "<p>Pipeline bubbles: {}</p>", esc(&line, 300))?;
    }
    write!(out, "</section>")
}

fn table(out: &mut String, ranks: &Ranks) -> fmt::Result {
    write!(
        out,
        "<section id=\"ranks\"><h2>Ranks</h2><p class=\"sub\">A step of each rank: the median activity of its devices, the time \
         for which it waited for others and others waited for it, and the mean parts of its own time.</p><table><thead><tr><th \
         class=\"n\">rank<th class=\"n\">step<th class=\"n\">busy<th class=\"n\">exchanging<th class=\"n\">waits<th \
         class=\"n\">waited for"
    )?;
    for part in Part::ALL {
        write!(out, "<th class=\"n\">{}", part.as_str())?;
    }
    write!(out, "</thead><tbody>")?;
    let listed = chosen(ranks, LISTED);
    for at in &listed {
        let rank = &ranks.ranks[*at];
        let step = &rank.per_step;
        write!(out, "<tr><td class=\"n\">{}", ranks.number(*at))?;
        let times = [step.time_ns, step.busy_ns, step.communication_ns];
        let parts = Part::ALL.iter().map(|part| rank.digest.parts.ns(*part));
        let waits = [ranks.waits_ns[*at], ranks.late_ns[*at]];
        for ns in times.into_iter().chain(waits).chain(parts) {
            write!(out, "<td class=\"n\">{}", time(ns))?;
        }
    }
    write!(out, "</tbody></table>")?;
    let more = ranks.ranks.len() - listed.len();
    if more > 0 {
        write!(
            out,
            "<p class=\"sub\">{more} ranks that wait less and are waited for less are left out.</p>"
        )?;
    }
    write!(out, "</section>")
}
