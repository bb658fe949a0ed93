//! Shows the tables of a report as text, each sorted by one of its columns and cut to its first rows.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::str::FromStr;

use sidestream::check::counted;

use super::columns::{
    Cell, Column, KERNELS, OPERATORS, RANGES, Sort, heads, sorted_by, sorts, texts,
};
use super::figures::{Figures, LEAST_NAME, short};
use super::plain::{plain, written};
use super::why::{COUNTERS, why};
use crate::findings::{size, time};
use crate::measure::{DeviceMemory, Line, Node, Operator, RowKind, by_name};
use crate::model::{Name, Names};
use crate::report::Report;
use crate::sort::order_by;
use crate::words::words;

/// Columns of the picture of memory over time.
const PICTURE: usize = 60;
/// The maximum number of characters of a name in a table, where there is room.
const NAME_LETTERS: usize = 160;
/// The number of kernels for which the table gives possible limits, and the maximum number of characters of their names.
const MOST_WHYS: usize = 5;
const WHY_NAME: usize = 60;
/// The maximum number of characters of a name that is followed by a shape.
const SHAPED_NAME: usize = 60;

words! {
    /// A table of a report.
    pub enum Table {
        /// Operators, ranges and calls by name.
        Operators = "operators",
        /// Ranges of the program, nested.
        Ranges = "ranges",
        /// Kernels by name.
        Kernels = "kernels",
        /// Memory at the peak, by where it was allocated.
        Memory = "memory",
    }
}

/// A table, sorted and cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The table.
    pub table: Table,
    /// The column by which it is sorted; `None` for the usual one.
    pub sort: Option<Sort>,
    /// The maximum number of rows.
    pub limit: usize,
    /// Whether operators with inputs of different shapes are separate rows.
    pub by_shape: bool,
}

impl Table {
    /// Returns the columns by which the table can be sorted.
    pub fn sorts(self) -> Vec<Sort> {
        match self {
            Table::Operators => sorts(&OPERATORS),
            Table::Ranges => sorts(&RANGES),
            Table::Kernels => sorts(&KERNELS),
            Table::Memory => Vec::new(),
        }
    }
}

impl FromStr for Table {
    type Err = String;

    fn from_str(text: &str) -> Result<Table, String> {
        word(&Self::ALL, Table::as_str, text)
    }
}

impl FromStr for Sort {
    type Err = String;

    fn from_str(text: &str) -> Result<Sort, String> {
        word(&Self::ALL, Sort::as_str, text)
    }
}

fn word<T: Copy>(all: &[T], word: fn(T) -> &'static str, text: &str) -> Result<T, String> {
    let found = all.iter().find(|one| word(**one) == text);
    found.copied().ok_or_else(|| {
        let words: Vec<&str> = all.iter().map(|one| word(*one)).collect();
        format!("there is {}", words.join(", "))
    })
}

impl View {
    /// Checks that the table has the column by which it is to be sorted, and shapes if rows are to be split by them.
    ///
    /// # Errors
    /// The columns by which it can be sorted instead.
    pub fn check(&self) -> Result<(), String> {
        if self.by_shape && self.table != Table::Operators {
            return Err(format!(
                "{} have no shapes of inputs; state them for operators",
                self.table.as_str()
            ));
        }
        let sorts = self.table.sorts();
        match self.sort {
            Some(sort) if !sorts.contains(&sort) => {
                let words: Vec<&str> = sorts.iter().map(|sort| sort.as_str()).collect();
                Err(if words.is_empty() {
                    format!("{} is sorted by size only", self.table.as_str())
                } else {
                    format!(
                        "{} cannot be sorted by {}; sort by {}",
                        self.table.as_str(),
                        sort.as_str(),
                        words.join(", ")
                    )
                })
            }
            _ => Ok(()),
        }
    }
}

/// Returns the operators, sorted and cut.
pub fn operators(
    report: &Report,
    sort: Option<Sort>,
    limit: usize,
    by_shape: bool,
) -> Vec<Operator> {
    let mut rows = if by_shape {
        report.rows.clone()
    } else {
        by_name(&report.rows)
    };
    let has_device = rows.iter().any(|row| row.device_self_ns > 0);
    let sort = sort.unwrap_or(if has_device {
        Sort::DeviceSelf
    } else {
        Sort::HostSelf
    });
    rows.sort_by_key(|row| {
        (
            u64::MAX - sorted_by(&OPERATORS, sort, report, row),
            u64::MAX - row.host_self_ns,
            row.kind,
            row.name,
            row.shape,
        )
    });
    rows.truncate(limit);
    rows
}

/// Returns the ranges, sorted and cut: by a column that includes inner ranges, each after the range around it; otherwise the
/// largest first.
pub fn ranges(report: &Report, sort: Option<Sort>, limit: usize) -> Vec<&Node> {
    let nodes = &report.ranges.nodes;
    let has_device = nodes.iter().any(|node| node.own.device_ns > 0);
    let sort = sort.unwrap_or(if has_device { Sort::Device } else { Sort::Host });
    let key = |at: &u32| {
        let node = &nodes[*at as usize];
        (Reverse(sorted_by(&RANGES, sort, report, node)), *at)
    };
    let mut chosen: Vec<u32> = (0..nodes.len() as u32).collect();
    order_by(&mut chosen, key);
    // Of ranges with equal values, the outer one comes before the inner ones, so that no range is chosen without the range
    // around it.
    chosen.truncate(limit);
    if matches!(sort, Sort::Device | Sort::Host | Sort::Idle) {
        chosen = nested(nodes, &chosen);
    }
    chosen.iter().map(|at| &nodes[*at as usize]).collect()
}

/// Sorts the chosen places so that each comes after the place around it; otherwise their order is kept.
fn nested(nodes: &[Node], chosen: &[u32]) -> Vec<u32> {
    let mut inner: HashMap<Option<u32>, Vec<u32>> = HashMap::new();
    for at in chosen {
        let parent = nodes[*at as usize].parent;
        inner.entry(parent).or_default().push(*at);
    }
    let mut next = inner.remove(&None).unwrap_or_default();
    next.reverse();
    let mut out = Vec::with_capacity(chosen.len());
    while let Some(at) = next.pop() {
        out.push(at);
        let inside = inner.remove(&Some(at)).unwrap_or_default();
        next.extend(inside.into_iter().rev());
    }
    out
}

/// Returns the kernels, sorted and cut.
pub fn kernels(report: &Report, sort: Option<Sort>, limit: usize) -> Vec<Line> {
    let mut rows = report.kernels.clone();
    if sort == Some(Sort::Calls) {
        order_by(&mut rows, |row| {
            (Reverse(row.calls), Reverse(row.total_ns), row.name)
        });
    }
    rows.truncate(limit);
    rows
}

/// Returns the name of a row of operators.
pub fn operator_name(names: &Names, row: &Operator) -> String {
    match row.kind {
        RowKind::Step => "ProfilerStep*".to_owned(),
        _ => names.text(row.name).to_owned(),
    }
}

/// Returns the name of a range.
pub fn range_name(names: &Names, node: &Node) -> String {
    if node.is_step {
        "ProfilerStep*".to_owned()
    } else {
        names.text(node.name).to_owned()
    }
}

/// Returns the name of the place where memory was allocated.
pub fn holder_name(names: &Names, operator: Option<Name>, range: Option<Name>) -> String {
    let text = |name: Option<Name>| name.map(|name| names.text(name));
    match (text(operator), text(range)) {
        (Some(operator), Some(range)) => format!("{operator} in {range}"),
        (Some(one), None) | (None, Some(one)) => one.to_owned(),
        (None, None) => "outside of operators and ranges".to_owned(),
    }
}

/// Returns the name of a device in the table of memory.
pub fn memory_name(of: &DeviceMemory) -> String {
    match of.device {
        Some(device) => format!("GPU {device}"),
        None => "host".to_owned(),
    }
}

/// Returns one table as text, in lines of at most `columns` characters where the width is known: longer names are cut.
pub fn table_text(title: &str, report: &Report, view: &View, columns: Option<usize>) -> String {
    written(|out| write_table(out, title, report, view, columns))
}

fn write_table(
    out: &mut String,
    title: &str,
    report: &Report,
    view: &View,
    columns: Option<usize>,
) -> fmt::Result {
    writeln!(out, "{}: {}", plain(title), view.table.as_str())?;
    match view.table {
        Table::Operators => write_operators(out, report, view, columns),
        Table::Ranges => write_ranges(out, report, view, columns),
        Table::Kernels => write_kernels(out, report, view, columns),
        Table::Memory => write_memory(out, report, view, columns),
    }?;
    writeln!(out)
}

/// Begins a table with the heads of its columns and that of the names.
fn table_of<'o, R>(
    out: &'o mut String,
    columns: &[Column<R>],
    name: &'static str,
    figures: &[Vec<String>],
    width: Option<usize>,
) -> Result<Figures<'o>, fmt::Error> {
    let mut heads = heads(columns);
    heads.push(name);
    Figures::new(out, &heads, figures, width)
}

fn write_operators(
    out: &mut String,
    report: &Report,
    view: &View,
    columns: Option<usize>,
) -> fmt::Result {
    let rows = operators(report, view.sort, view.limit, view.by_shape);
    if rows.is_empty() {
        return writeln!(out, "  the trace has no operators, ranges and calls");
    }
    let figures: Vec<Vec<String>> = rows
        .iter()
        .map(|row| texts(&OPERATORS, report, row))
        .collect();
    let mut table = table_of(out, &OPERATORS, "name", &figures, columns)?;
    for (row, figures) in rows.iter().zip(&figures) {
        let kind = match row.kind {
            RowKind::Range => " (range)",
            _ => "",
        };
        let name = operator_name(&report.names, row);
        match row.shape.map_or("", |shape| report.names.text(shape)) {
            "" => table.row(figures, &short(&name, NAME_LETTERS), kind)?,
            // The shape distinguishes the row: a long name must not push it out.
            shape => {
                let letters = columns.map_or(NAME_LETTERS, |_| SHAPED_NAME);
                let (name, shape) = (short(&name, letters), short(shape, NAME_LETTERS));
                table.row(figures, &format!("{name}{kind} {shape}"), "")?;
            }
        }
    }
    Ok(())
}

fn write_ranges(
    out: &mut String,
    report: &Report,
    view: &View,
    columns: Option<usize>,
) -> fmt::Result {
    let rows = ranges(report, view.sort, view.limit);
    if rows.is_empty() {
        return writeln!(out, "  the trace has no ranges that the program named");
    }
    let threads = |node: &Node| node.thread;
    let first = rows.first().map(|node| threads(node));
    let several = report
        .ranges
        .nodes
        .iter()
        .any(|node| Some(node.thread) != first);
    let is_tree = matches!(
        view.sort,
        None | Some(Sort::Device | Sort::Host | Sort::Idle)
    );
    let mut figures: Vec<Vec<String>> = rows
        .iter()
        .map(|row| texts(&RANGES, report, *row))
        .collect();
    let outside = &report.ranges.outside;
    let of_outside = RANGES.iter().map(|column| match column.sort {
        Some(Sort::Device) => Cell::Sum(outside.device_ns).text(),
        Some(Sort::Idle) => Cell::Sum(outside.idle_ns).text(),
        _ => String::new(),
    });
    figures.push(of_outside.collect());
    let mut table = table_of(out, &RANGES, "range", &figures, columns)?;
    for (node, figures) in rows.iter().zip(&figures) {
        let margin = if is_tree {
            " ".repeat(2 * node.depth.min(20) as usize)
        } else {
            String::new()
        };
        let thread = report.threads.get(node.thread.0 as usize);
        let thread = match thread.filter(|_| several && (node.depth == 0 || !is_tree)) {
            Some(thread) => format!(" (thread {})", thread.thread),
            None => String::new(),
        };
        let name = short(&range_name(&report.names, node), NAME_LETTERS);
        let name = format!("{margin}{name}");
        table.row(figures, &name, &thread)?;
    }
    match figures.last() {
        Some(figures) => table.row(figures, "outside of ranges", ""),
        None => Ok(()),
    }
}

fn write_kernels(
    out: &mut String,
    report: &Report,
    view: &View,
    columns: Option<usize>,
) -> fmt::Result {
    let rows = kernels(report, view.sort, view.limit);
    if rows.is_empty() {
        return writeln!(out, "  the trace has no kernels");
    }
    let figures: Vec<Vec<String>> = rows
        .iter()
        .map(|row| texts(&KERNELS, report, row))
        .collect();
    let mut table = table_of(out, &KERNELS, "name", &figures, columns)?;
    for (row, figures) in rows.iter().zip(&figures) {
        let name = short(report.names.text(row.name), NAME_LETTERS);
        table.row(figures, &name, "")?;
    }
    let launched = rows.iter().filter_map(|row| {
        let launched = report.launched.get(&row.name)?;
        Some((row.name, why(launched, report.sms)?))
    });
    let launched: Vec<_> = launched.take(MOST_WHYS).collect();
    if launched.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n  why a kernel may be far from its roofline, as far as its launch shows:"
    )?;
    for (name, (why, measure)) in launched {
        let why = match why.join("; ") {
            none if none.is_empty() => "nothing in its launch".to_owned(),
            why => why,
        };
        let name = short(report.names.text(name), WHY_NAME);
        writeln!(out, "  {name}: {why}; measure {measure}")?;
    }
    writeln!(
        out,
        "  unaligned accesses, bank conflicts and cache misses are in no trace: `ncu --metrics {COUNTERS}`"
    )
}

fn write_memory(
    out: &mut String,
    report: &Report,
    view: &View,
    columns: Option<usize>,
) -> fmt::Result {
    if report.memory.is_empty() {
        return writeln!(
            out,
            "  the trace has no records of memory allocations; PyTorch's profiler records it with profile_memory=True"
        );
    }
    for of in &report.memory {
        let (offset_ns, step) = report.place(of.peak_ns);
        let step = step.map_or(String::new(), |step| format!(", in step {step}"));
        writeln!(
            out,
            "{}: peak {} at {}{step}; allocated {}, freed {}",
            memory_name(of),
            size(of.peak_bytes),
            time(offset_ns),
            counted(of.taken, "time"),
            counted(of.given_back, "time")
        )?;
        writeln!(out, "  |{}|", picture(of))?;
        for holder in of.holders.iter().take(view.limit) {
            let name = holder_name(&report.names, holder.operator, holder.range);
            let room = columns.map_or(NAME_LETTERS, |columns| {
                columns.saturating_sub(22).max(LEAST_NAME)
            });
            writeln!(
                out,
                "{:>11} {:>8}  {}",
                size(holder.bytes),
                holder.pieces,
                short(&name, room)
            )?;
        }
        if of.before_bytes > 0 {
            writeln!(
                out,
                "{:>11} {:>8}  allocated before the trace begins, or not shown by it",
                size(of.before_bytes),
                ""
            )?;
        }
    }
    Ok(())
}

/// Returns a picture of memory over time, in eighths of the peak.
fn picture(of: &DeviceMemory) -> String {
    let (Some(first), Some(last)) = (of.points.first(), of.points.last()) else {
        return String::new();
    };
    let extent = first.0.abs_diff(last.0).max(1);
    let mut columns = [None::<u64>; PICTURE];
    for (at, bytes) in &of.points {
        let column = u128::from(first.0.abs_diff(*at)) * (PICTURE as u128 - 1) / u128::from(extent);
        let column = &mut columns[(column as usize).min(PICTURE - 1)];
        *column = Some(column.unwrap_or(0).max(*bytes));
    }
    let mut level = 0;
    let mut signs = String::new();
    for column in columns {
        // Without an event the level stays as it was.
        level = column.unwrap_or(level);
        let eighths = u128::from(level) * 8 / u128::from(of.peak_bytes.max(1));
        let sign = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][(eighths as usize).min(8)];
        signs.push(sign);
    }
    signs
}
