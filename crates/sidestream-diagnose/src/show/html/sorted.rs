//! Tables that a reader sorts by picking a column: ranges, operators, kernels; and the memory of devices.
//!
//! Each cell has its value in addition to its text, and each row its depth: inner rows stay below the outer one.

use std::fmt::{self, Write};

use super::escape::esc;
use super::parts::{MOST_ROWS, NAME_LETTERS};
use crate::findings::{size, time};
use crate::measure::RowKind;
use crate::report::Report;
use crate::show::columns::{Column, KERNELS, OPERATORS, RANGES, page_cells, page_heads};
use crate::show::marks::count;
use crate::show::table::{
    holder_name, kernels as kernel_rows, memory_name, operator_name, operators as operator_rows,
    range_name, ranges as range_rows,
};

/// The maximum number of rows of ranges, and of operators.
const MOST_LONG: usize = 100;

/// Writes the head of a table.
fn head<R>(
    out: &mut String,
    (id, heading, sub): (&str, &str, &str),
    columns: &[Column<R>],
) -> fmt::Result {
    write!(
        out,
        "<section id=\"{id}\"><h2>{heading}</h2><p class=\"sub\">{sub} <span class=\"script\">Pick a column to sort by \
         it.</span></p><table class=\"sorts\"><thead><tr><th class=\"wide\" data-sort>name"
    )?;
    page_heads(out, columns)?;
    write!(out, "</thead><tbody>")
}

/// Writes the ranges that the program named.
pub fn ranges(out: &mut String, report: &Report) -> fmt::Result {
    let rows = range_rows(report, None, MOST_LONG);
    if rows.is_empty() {
        return Ok(());
    }
    let sub = "The ranges that the program named, nested: the host’s time in each, the device time of the work that was launched in \
               it, and the time for which devices were idle because of the range.";
    head(out, ("ranges", "Ranges", sub), &RANGES)?;
    for node in rows {
        write!(
            out,
            "<tr data-depth=\"{}\"><td style=\"padding-left:{}rem\"><code class=\"clamp\">{}</code>",
            node.depth,
            node.depth.min(12),
            esc(&range_name(&report.names, node), NAME_LETTERS)
        )?;
        page_cells(out, &RANGES, report, node)?;
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
            "<p class=\"sub\">Outside all ranges: {device} of the devices’ time, and {idle} of their idle time.</p>"
        )?;
    }
    write!(out, "</section>")
}

/// Writes operators, ranges and calls by name.
pub fn operators(out: &mut String, report: &Report) -> fmt::Result {
    let rows = operator_rows(report, None, MOST_LONG, false);
    if rows.is_empty() {
        return Ok(());
    }
    let sub = "Operators, ranges and calls over the whole trace, as <code>key_averages</code> of PyTorch’s profiler has them.";
    head(out, ("operators", "Operators", sub), &OPERATORS)?;
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
        page_cells(out, &OPERATORS, report, &row)?;
    }
    write!(out, "</tbody></table></section>")
}

/// Writes kernels by name, with the launch of the longest kernel of each.
pub fn kernels(out: &mut String, report: &Report) -> fmt::Result {
    let rows = kernel_rows(report, None, MOST_ROWS);
    if rows.iter().all(|line| line.total_ns == 0) {
        return Ok(());
    }
    let sub = "The longest, over the whole trace, each with the launch of its longest kernel.";
    head(out, ("kernels", "Kernels", sub), &KERNELS)?;
    for line in rows {
        write!(
            out,
            "<tr><td><code class=\"clamp\">{}</code>",
            esc(report.names.text(line.name), NAME_LETTERS)
        )?;
        page_cells(out, &KERNELS, report, &line)?;
    }
    write!(out, "</tbody></table></section>")
}

/// Writes the memory of devices over time, and the operators and ranges that held it at the peak.
pub fn memory(out: &mut String, report: &Report) -> fmt::Result {
    if report.memory.is_empty() {
        return Ok(());
    }
    write!(
        out,
        "<section id=\"memory\"><h2>Memory</h2><p class=\"sub\">What the allocator had handed out over time, and what held it \
         at the peak.</p>"
    )?;
    for of in report.memory.iter().take(8) {
        let at = report.place(of.peak_ns).0;
        write!(
            out,
            "<div class=\"device\"><h3>{} <span>peak {} at {}</span></h3><svg role=\"img\" \
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
