//! The columns of the tables, shared by all outputs: the value of each row, and the column's name as text, on a page and in
//! JSON.

use std::fmt::{self, Write};

use serde_json::{Value, json};

use Sort::{Calls, Device, DeviceSelf, Host, HostSelf, Idle, IdleSelf};

use super::marks::{count, meter};
use crate::findings::{size, time};
use crate::measure::{Line, Node, Operator};
use crate::model::Launched;
use crate::report::Report;
use crate::words::words;

words! {
    /// The column by which a table is sorted, the largest first.
    pub enum Sort {
        /// Device time, including that of inner rows.
        Device = "device",
        /// Device time, without that of inner rows.
        DeviceSelf = "device-self",
        /// Host time, including that of inner rows.
        Host = "host",
        /// Host time, without that of inner rows.
        HostSelf = "host-self",
        /// Idle time of devices, including that of inner rows.
        Idle = "idle",
        /// Idle time of devices, without that of inner rows.
        IdleSelf = "idle-self",
        /// Number of calls.
        Calls = "calls",
    }
}

/// A column of a table. It is left out of an output in which it has no name.
pub struct Column<R> {
    /// Its head as text.
    pub head: &'static str,
    /// Its head on a page; with a star, narrow windows leave it out.
    pub page: &'static str,
    /// Its field as JSON.
    pub key: &'static str,
    /// The sort order that uses the column.
    pub sort: Option<Sort>,
    /// Returns the value of a row in the column.
    pub of: fn(&Report, &R) -> Cell,
}

/// The value of a row in a column.
pub enum Cell {
    /// A sum of times; 0 is shown as a dash.
    Sum(u64),
    /// A time.
    Time(u64),
    /// A count.
    Count(u64),
    /// A number as it is.
    Number(u32),
    /// Extents in three dimensions.
    Extents([u32; 3]),
    /// Bytes.
    Bytes(u32),
    /// A percentage.
    Percent(u8),
    /// A part of a whole.
    Part(u64, u64),
    /// An unknown value.
    Unknown,
}

impl Cell {
    /// Returns the number by which rows are sorted.
    pub fn value(&self) -> u64 {
        match self {
            Cell::Sum(n) | Cell::Time(n) | Cell::Count(n) | Cell::Part(n, _) => *n,
            Cell::Number(n) | Cell::Bytes(n) => u64::from(*n),
            Cell::Extents(sizes) => {
                let sizes = sizes.iter().map(|n| u64::from(*n));
                sizes.fold(1, u64::saturating_mul)
            }
            Cell::Percent(n) => u64::from(*n),
            Cell::Unknown => 0,
        }
    }

    /// Returns the value as text, with `nothing` for an absent value and `by` between extents.
    fn shown(&self, nothing: &str, by: &str) -> String {
        match self {
            Cell::Sum(0) | Cell::Unknown => nothing.to_owned(),
            Cell::Sum(ns) | Cell::Time(ns) => time(*ns),
            Cell::Count(n) => n.to_string(),
            Cell::Number(n) => n.to_string(),
            Cell::Extents(sizes) => sizes.map(|n| n.to_string()).join(by),
            Cell::Bytes(n) => size(u64::from(*n)),
            Cell::Percent(n) => format!("{n} %"),
            Cell::Part(part, whole) => meter(*part as f64 / *whole as f64),
        }
    }

    /// Returns the value as text.
    pub fn text(&self) -> String {
        self.shown("-", "x")
    }

    fn json(&self) -> Value {
        match self {
            Cell::Unknown => Value::Null,
            Cell::Extents(sizes) => json!(sizes),
            _ => self.value().into(),
        }
    }
}

/// Returns the cells of a row, as text.
pub fn texts<R>(columns: &[Column<R>], report: &Report, row: &R) -> Vec<String> {
    let shown = columns.iter().filter(|column| !column.head.is_empty());
    shown
        .map(|column| (column.of)(report, row).text())
        .collect()
}

/// Returns the sort orders of a table.
pub fn sorts<R>(columns: &[Column<R>]) -> Vec<Sort> {
    columns.iter().filter_map(|column| column.sort).collect()
}

/// Returns the value of a row in the column that sorts it.
pub fn sorted_by<R>(columns: &[Column<R>], sort: Sort, report: &Report, row: &R) -> u64 {
    let column = columns.iter().find(|column| column.sort == Some(sort));
    column.map_or(0, |column| (column.of)(report, row).value())
}

/// Returns the heads of the cells, as text.
pub fn heads<R>(columns: &[Column<R>]) -> Vec<&'static str> {
    let heads = columns.iter().map(|column| column.head);
    heads.filter(|head| !head.is_empty()).collect()
}

/// Writes the heads of a table on a page.
pub fn page_heads<R>(out: &mut String, columns: &[Column<R>]) -> fmt::Result {
    for column in columns.iter().filter(|column| !column.page.is_empty()) {
        let (name, class) = match column.page.strip_prefix('*') {
            Some(name) => (name, "n opt"),
            None => (column.page, "n"),
        };
        write!(out, "<th class=\"{class}\" data-sort>{name}")?;
    }
    Ok(())
}

/// Writes the cells of a row on a page: each has its value in addition to its text, for the script that sorts.
pub fn page_cells<R>(
    out: &mut String,
    columns: &[Column<R>],
    report: &Report,
    row: &R,
) -> fmt::Result {
    for column in columns.iter().filter(|column| !column.page.is_empty()) {
        let cell = (column.of)(report, row);
        let text = match cell {
            Cell::Count(n) => count(n),
            _ => cell.shown("–", "×"),
        };
        let class = match (&cell, column.page.starts_with('*')) {
            (Cell::Part(..), _) => "meter opt",
            (_, true) => "n opt",
            (_, false) => "n",
        };
        write!(
            out,
            "<td class=\"{class}\" data-v=\"{}\">{text}",
            cell.value()
        )?;
    }
    Ok(())
}

/// Adds the cells of a row, as fields after those that it already has.
pub fn fields<'c, R: 'c>(
    mut row: Value,
    columns: impl Iterator<Item = &'c Column<R>>,
    report: &Report,
    of: &R,
) -> Value {
    for column in columns.filter(|column| !column.key.is_empty()) {
        row[column.key] = (column.of)(report, of).json();
    }
    row
}

/// Operators, ranges and calls by name.
#[rustfmt::skip]
pub const OPERATORS: [Column<Operator>; 5] = [
    Column { head: "device self", page: "device by itself", key: "device_self_ns", sort: Some(DeviceSelf), of: |_, row| Cell::Sum(row.device_self_ns) },
    Column { head: "device",      page: "*device",          key: "device_ns",      sort: Some(Device),     of: |_, row| Cell::Sum(row.device_ns) },
    Column { head: "host self",   page: "host by itself",   key: "host_self_ns",   sort: Some(HostSelf),   of: |_, row| Cell::Sum(row.host_self_ns) },
    Column { head: "host",        page: "*host",            key: "host_ns",        sort: Some(Host),       of: |_, row| Cell::Sum(row.host_ns) },
    Column { head: "calls",       page: "calls",            key: "",               sort: Some(Calls),      of: |_, row| Cell::Count(row.calls) },
];

/// Ranges of the program. In JSON they have all fields of [`crate::measure::Shares`].
#[rustfmt::skip]
pub const RANGES: [Column<Node>; 7] = [
    Column { head: "device",      page: "device",     key: "", sort: Some(Device),     of: |_, row| Cell::Sum(row.total.device_ns) },
    Column { head: "device self", page: "*by itself", key: "", sort: Some(DeviceSelf), of: |_, row| Cell::Sum(row.own.device_ns) },
    Column { head: "host",        page: "host",       key: "", sort: Some(Host),       of: |_, row| Cell::Sum(row.total.host_ns) },
    Column { head: "host self",   page: "*by itself", key: "", sort: Some(HostSelf),   of: |_, row| Cell::Sum(row.own.host_ns) },
    Column { head: "idle",        page: "idle",       key: "", sort: Some(Idle),       of: |_, row| Cell::Sum(row.total.idle_ns) },
    Column { head: "idle self",   page: "*by itself", key: "", sort: Some(IdleSelf),   of: |_, row| Cell::Sum(row.own.idle_ns) },
    Column { head: "calls",       page: "calls",      key: "", sort: Some(Calls),      of: |_, row| Cell::Count(row.calls) },
];

/// Kernels by name, with the launch of the longest kernel of each.
#[rustfmt::skip]
pub const KERNELS: [Column<Line>; 10] = [
    Column { head: "",          page: "*",          key: "",                  sort: None,         of: |report, row| Cell::Part(row.total_ns, longest(report)) },
    Column { head: "device",    page: "time",       key: "total_ns",          sort: Some(Device), of: |_, row| Cell::Sum(row.total_ns) },
    Column { head: "calls",     page: "calls",      key: "",                  sort: Some(Calls),  of: |_, row| Cell::Count(row.calls as u64) },
    Column { head: "",          page: "each",       key: "",                  sort: None,         of: |_, row| Cell::Sum(row.total_ns / row.calls.max(1) as u64) },
    Column { head: "longest",   page: "",           key: "longest_ns",        sort: None,         of: |report, row| launched(report, row, |l| Some(Cell::Time(l.duration_ns))) },
    Column { head: "grid",      page: "*grid",      key: "grid",              sort: None,         of: |report, row| launched(report, row, |l| Some(Cell::Extents(l.grid))) },
    Column { head: "block",     page: "*block",     key: "block",             sort: None,         of: |report, row| launched(report, row, |l| Some(Cell::Extents(l.block))) },
    Column { head: "registers", page: "*registers", key: "registers",         sort: None,         of: |report, row| launched(report, row, |l| Some(Cell::Number(l.registers.into()))) },
    Column { head: "shared",    page: "*shared",    key: "shared_bytes",      sort: None,         of: |report, row| launched(report, row, |l| Some(Cell::Bytes(l.shared_bytes))) },
    Column { head: "occupancy", page: "*occupancy", key: "occupancy_percent", sort: None,         of: |report, row| launched(report, row, |l| l.occupancy.map(Cell::Percent)) },
];

/// Returns the longest total time of any kernel name.
fn longest(report: &Report) -> u64 {
    report
        .kernels
        .first()
        .map_or(1, |line| line.total_ns.max(1))
}

fn launched(report: &Report, row: &Line, of: fn(&Launched) -> Option<Cell>) -> Cell {
    let launched = report.launched.get(&row.name);
    launched.and_then(of).unwrap_or(Cell::Unknown)
}
