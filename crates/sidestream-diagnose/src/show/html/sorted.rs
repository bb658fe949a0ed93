//! Tables that a reader sorts by picking a column: ranges, operators, kernels; and the memory of devices.
//!
//! A cell has its value beside its text, and a row says how deep it stands: what is inside another row stays below it.

use std::fmt::{self, Write};

use super::escape::esc;
use super::tables::{MOST_ROWS, NAME_LETTERS, meter};
use super::{Page, count};
use crate::findings::{size, time};
use crate::measure::RowKind;
use crate::report::Report;
use crate::show::table::{
    holder_name, kernels as kernel_rows, memory_name, operator_name, operators as operator_rows,
    range_name, ranges as range_rows,
};

/// The rows of ranges and of operators.
const MOST_LONG: usize = 100;

/// The head of a table; columns that a narrow window leaves out have a star.
fn head(out: &mut String, (id, heading, sub): (&str, &str, &str), columns: &[&str]) -> fmt::Result {
    write!(
        out,
        "<section id=\"{id}\"><h2>{heading}</h2><p class=\"sub\">{sub} <span class=\"script\">Pick a column to sort by \
         it.</span></p><table class=\"sorts\"><thead><tr><th class=\"wide\" data-sort>name"
    )?;
    for column in columns {
        let (name, class) = match column.strip_prefix('*') {
            Some(name) => (name, "n opt"),
            None => (*column, "n"),
        };
        write!(out, "<th class=\"{class}\" data-sort>{name}")?;
    }
    write!(out, "</thead><tbody>")
}

/// A cell with a time.
fn cell(out: &mut String, ns: u64, class: &str) -> fmt::Result {
    let text = if ns == 0 { "–".to_owned() } else { time(ns) };
    write!(out, "<td class=\"{class}\" data-v=\"{ns}\">{text}")
}

/// The ranges that the program named.
pub fn ranges(page: &mut Page, report: &Report) -> fmt::Result {
    let rows = range_rows(report, None, MOST_LONG);
    if rows.is_empty() {
        return Ok(());
    }
    let out = &mut page.out;
    let sub = "What the program named, one inside the other: the time of the host in it, of what it launched on devices, and in \
               which devices did nothing for it.";
    let columns = [
        "device",
        "*by itself",
        "host",
        "*by itself",
        "idle",
        "*by itself",
        "calls",
    ];
    head(out, ("ranges", "Ranges", sub), &columns)?;
    for node in rows {
        write!(
            out,
            "<tr data-depth=\"{}\"><td style=\"padding-left:{}rem\"><code class=\"clamp\">{}</code>",
            node.depth,
            node.depth.min(12),
            esc(&range_name(&report.names, node), NAME_LETTERS)
        )?;
        let (total, own) = (&node.total, &node.own);
        for (total, own) in [
            (total.device_ns, own.device_ns),
            (total.host_ns, own.host_ns),
            (total.idle_ns, own.idle_ns),
        ] {
            cell(out, total, "n")?;
            cell(out, own, "n opt")?;
        }
        write!(
            out,
            "<td class=\"n\" data-v=\"{}\">{}",
            node.calls,
            count(node.calls)
        )?;
    }
    write!(out, "</tbody></table>")?;
    let outside = &report.ranges.outside;
    let some = |ns: u64| {
        if ns == 0 {
            "nothing".to_owned()
        } else {
            time(ns)
        }
    };
    if outside.device_ns > 0 || outside.idle_ns > 0 {
        let (device, idle) = (some(outside.device_ns), some(outside.idle_ns));
        write!(
            out,
            "<p class=\"sub\">Outside of all of them: {device} of the time of devices, and {idle} of their idle time.</p>"
        )?;
    }
    write!(out, "</section>")
}

/// Operators, ranges and calls by name.
pub fn operators(page: &mut Page, report: &Report) -> fmt::Result {
    let rows = operator_rows(report, None, MOST_LONG, false);
    if rows.is_empty() {
        return Ok(());
    }
    let out = &mut page.out;
    let sub = "Operators, ranges and calls over the whole trace, as <code>key_averages</code> of PyTorch’s profiler has them.";
    let columns = [
        "device by itself",
        "*device",
        "host by itself",
        "*host",
        "calls",
    ];
    head(out, ("operators", "Operators", sub), &columns)?;
    for row in rows {
        let kind = match row.kind {
            RowKind::Range => " <span class=\"kind\">range</span>",
            _ => "",
        };
        write!(
            out,
            "<tr><td><code class=\"clamp\">{}</code>{kind}",
            esc(&operator_name(&report.names, &row), NAME_LETTERS)
        )?;
        cell(out, row.device_self_ns, "n")?;
        cell(out, row.device_ns, "n opt")?;
        cell(out, row.host_self_ns, "n")?;
        cell(out, row.host_ns, "n opt")?;
        write!(
            out,
            "<td class=\"n\" data-v=\"{}\">{}",
            row.calls,
            count(row.calls)
        )?;
    }
    write!(out, "</tbody></table></section>")
}

/// Kernels by name, with how the longest of each was launched.
pub fn kernels(page: &mut Page, report: &Report) -> fmt::Result {
    let rows = kernel_rows(report, None, MOST_ROWS);
    let longest = rows.iter().map(|line| line.total_ns).max().unwrap_or(0);
    if longest == 0 {
        return Ok(());
    }
    let out = &mut page.out;
    let sub = "The longest, over the whole trace, with how the longest of each was launched.";
    let columns = [
        "*",
        "time",
        "calls",
        "each",
        "*grid",
        "*block",
        "*registers",
        "*shared",
        "*occupancy",
    ];
    head(out, ("kernels", "Kernels", sub), &columns)?;
    for line in rows {
        let each_ns = line.total_ns / line.calls.max(1) as u64;
        write!(
            out,
            "<tr><td><code class=\"clamp\">{}</code><td class=\"meter opt\" data-v=\"{}\">{}",
            esc(report.names.text(line.name), NAME_LETTERS),
            line.total_ns,
            meter(line.total_ns as f64 / longest as f64)
        )?;
        cell(out, line.total_ns, "n")?;
        let calls = line.calls as u64;
        write!(out, "<td class=\"n\" data-v=\"{calls}\">{}", count(calls))?;
        cell(out, each_ns, "n")?;
        let Some(launched) = report.launched.get(&line.name) else {
            write!(out, "{}", "<td class=\"n opt\" data-v=\"0\">–".repeat(5))?;
            continue;
        };
        for sizes in [launched.grid, launched.block] {
            let all: u64 = sizes
                .iter()
                .fold(1, |all, n| all.saturating_mul(u64::from(*n)));
            let [x, y, z] = sizes;
            write!(out, "<td class=\"n opt\" data-v=\"{all}\">{x}×{y}×{z}")?;
        }
        let occupancy = launched
            .occupancy
            .map_or("–".to_owned(), |percent| format!("{percent} %"));
        write!(
            out,
            "<td class=\"n opt\" data-v=\"{0}\">{0}<td class=\"n opt\" data-v=\"{1}\">{2}<td class=\"n opt\" \
             data-v=\"{3}\">{occupancy}",
            launched.registers,
            launched.shared_bytes,
            size(launched.shared_bytes.into()),
            launched.occupancy.unwrap_or(0)
        )?;
    }
    write!(out, "</tbody></table></section>")
}

/// The memory of devices over time, and who held it when most was taken.
pub fn memory(page: &mut Page, report: &Report) -> fmt::Result {
    if report.memory.is_empty() {
        return Ok(());
    }
    let out = &mut page.out;
    write!(
        out,
        "<section id=\"memory\"><h2>Memory</h2><p class=\"sub\">What the allocator had handed out over time, and who held it \
         when that was most.</p>"
    )?;
    for of in report.memory.iter().take(8) {
        let at = report.place(of.peak_ns).0;
        write!(
            out,
            "<div class=\"device\"><h3>{} <span>{} at the most, at {}</span></h3><svg role=\"img\" \
             aria-label=\"memory over time\" style=\"height:48px\">",
            memory_name(of),
            size(of.peak_bytes),
            time(at)
        )?;
        let first = of.points.first().map_or(0, |point| point.0);
        let last = of.points.last().map_or(0, |point| point.0);
        let extent = first.abs_diff(last).max(1) as f64;
        let ends = of.points.iter().skip(1).map(|point| point.0).chain([last]);
        for ((start, bytes), end) in of.points.iter().zip(ends) {
            let height = 48.0 * *bytes as f64 / of.peak_bytes.max(1) as f64;
            write!(
                out,
                "<rect class=\"s3\" x=\"{:.2}%\" width=\"{:.2}%\" y=\"{:.1}\" height=\"{height:.1}\"/>",
                100.0 * first.abs_diff(*start) as f64 / extent,
                100.0 * start.abs_diff(end) as f64 / extent,
                48.0 - height
            )?;
        }
        write!(out, "</svg><table><tbody>")?;
        for holder in of.holders.iter().take(10) {
            write!(
                out,
                "<tr><td><code>{}</code><td class=\"n\">{}<td class=\"n\">{}",
                esc(
                    &holder_name(&report.names, holder.operator, holder.range),
                    NAME_LETTERS
                ),
                count(holder.pieces),
                size(holder.bytes)
            )?;
        }
        if of.before_bytes > 0 {
            write!(
                out,
                "<tr><td>taken before the trace begins, or not shown by it<td><td class=\"n\">{}",
                size(of.before_bytes)
            )?;
        }
        write!(out, "</tbody></table></div>")?;
    }
    write!(out, "</section>")
}
