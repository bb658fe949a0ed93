//! Reads exports of Nsight Systems to SQLite (`nsys export --type sqlite`), schemas 2.9 to 3.25.
//!
//! The columns that schemas share are read by name; columns and tables that a file lacks are absent values, since exports leave
//! out what is empty. No row depends on another: in an excerpt of a longer recording the call of a kernel, or the name of a
//! stream, may be missing.

mod database;
mod describe;
mod kinds;
mod rows;
mod strings;
mod syncs;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use super::error::Problem;
use super::{Limits, Progress};
use crate::model::{Builder, Overflow, Source, StreamIndex, Trace};
use database::{Column, Database, Row, Scan, integer, text};
use kinds::Kinds;
use strings::Strings;

const KERNEL: &str = "CUPTI_ACTIVITY_KIND_KERNEL";
const MEMCPY: &str = "CUPTI_ACTIVITY_KIND_MEMCPY";
const MEMSET: &str = "CUPTI_ACTIVITY_KIND_MEMSET";
const GRAPH: &str = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
const RUNTIME: &str = "CUPTI_ACTIVITY_KIND_RUNTIME";
const SYNC: &str = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION";
const EVENT: &str = "CUPTI_ACTIVITY_KIND_CUDA_EVENT";
const NVTX: &str = "NVTX_EVENTS";
const SYSTEM: &str = "OSRT_API";
const OVERHEAD: &str = "CUPTI_ACTIVITY_KIND_OVERHEAD";
const PROFILER: &str = "PROFILER_OVERHEAD";
/// The tables of rows with times, in the order in which they are read.
const ACTIVITIES: [&str; 11] = [
    KERNEL, MEMCPY, MEMSET, GRAPH, EVENT, SYNC, RUNTIME, NVTX, SYSTEM, OVERHEAD, PROFILER,
];

const STREAMS: &str = "TARGET_INFO_CUDA_STREAM";
const NULL_STREAMS: &str = "TARGET_INFO_CUDA_NULL_STREAM";
const CONTEXTS: &str = "TARGET_INFO_CUDA_CONTEXT_INFO";
const GPUS: &str = "TARGET_INFO_GPU";
const CUDA_DEVICES: &str = "TARGET_INFO_CUDA_DEVICE";
const THREADS: &str = "ThreadNames";
const CAPTURE: &str = "META_DATA_CAPTURE";
const DIAGNOSTICS: &str = "DIAGNOSTIC_EVENT";
const OTHERS: [&str; 9] = [
    STREAMS,
    NULL_STREAMS,
    CONTEXTS,
    GPUS,
    CUDA_DEVICES,
    THREADS,
    CAPTURE,
    DIAGNOSTICS,
    "StringIds",
];
/// Number of rows between two calls of the progress callback.
const ROWS_BETWEEN_REPORTS: u64 = 1 << 12;

/// Reads an export.
///
/// # Errors
/// The file is not a database, not an export of Nsight Systems, or has no device work that can be read. A damaged file is read
/// up to the damage, with a warning.
pub fn read(path: &Path, limits: &Limits, progress: Progress) -> Result<Trace, Problem> {
    let wanted = [&ACTIVITIES[..], &OTHERS[..], &Kinds::TABLES[..]].concat();
    let database = Database::open(path, &wanted)?;
    if !ACTIVITIES.iter().any(|table| database.has(table)) {
        return Err(Problem::Database {
            why: none_of_nsight(&database),
        });
    }
    let mut builder = Builder::new(Source::Nsight);
    let strings = Strings::new(&database, &mut builder);
    let rows = ACTIVITIES
        .iter()
        .map(|table| database.about_rows(table))
        .sum();
    let mut reader = Reader {
        kinds: Kinds::read(&database),
        strings,
        database: &database,
        builder,
        limits,
        progress,
        rows_read: 0,
        rows_expected: rows,
        streams: Vec::new(),
        by_place: HashMap::new(),
        threads: Vec::new(),
        has_graph_launch: false,
        whole_graphs: 0,
    };
    for name in database.not_plain() {
        let text = format!(
            "{name} is a view or a virtual table, which is code from the author of the file: it was not read"
        );
        reader.builder.warn("NOT_A_TABLE", text);
    }
    reader.work()?;
    if reader.builder.rows().work == 0 {
        if let Some(warning) = reader.builder.trace.warnings.first() {
            return Err(Problem::Database {
                why: warning.text.clone(),
            });
        }
        reader.host()?;
        return Err(Problem::NoWork(reader.builder.asked()));
    }
    reader.host()?;
    reader.describe();
    Ok(reader.builder.finish())
}

fn none_of_nsight(database: &Database) -> String {
    let instead = if database.is_empty() {
        "it has no tables that can be read"
    } else {
        "it has none of the tables with CUDA activity"
    };
    format!(
        "the database is not an export of Nsight Systems with CUDA in it: {instead}; record with \
         `nsys profile --trace=cuda,nvtx` and export with `nsys export --type sqlite`"
    )
}

/// An export being read.
struct Reader<'a> {
    database: &'a Database,
    kinds: Kinds,
    strings: Strings<'a>,
    builder: Builder,
    limits: &'a Limits,
    progress: Progress<'a>,
    rows_read: u64,
    rows_expected: u64,
    /// Process, context and number of each stream, in the order of the builder's streams.
    streams: Vec<(Option<i64>, i64, i64)>,
    by_place: HashMap<(Option<i64>, i64, i64), StreamIndex>,
    /// Process and number of each thread, likewise.
    threads: Vec<(i64, i64)>,
    has_graph_launch: bool,
    /// Number of graphs that were traced as one row each.
    whole_graphs: u64,
}

/// Why reading a table stopped.
enum Stop {
    Overflow(Overflow),
    /// The limit of memory is reached.
    Full,
}

impl From<Overflow> for Stop {
    fn from(overflow: Overflow) -> Stop {
        Stop::Overflow(overflow)
    }
}

impl Reader<'_> {
    /// Reads the device work.
    fn work(&mut self) -> Result<(), Problem> {
        self.table(KERNEL, &rows::KERNEL, Reader::kernel)?;
        self.table(MEMCPY, &rows::MEMCPY, Reader::copy)?;
        self.table(MEMSET, &rows::MEMSET, Reader::memset)?;
        self.table(GRAPH, &rows::GRAPH, Reader::graph)
    }

    /// Reads the host activity.
    fn host(&mut self) -> Result<(), Problem> {
        let mut waits = syncs::Waits::default();
        self.table(EVENT, &syncs::EVENT, |reader, row| {
            waits.record(reader, row)
        })?;
        self.table(SYNC, &syncs::SYNC, |reader, row| waits.sync(reader, row))?;
        waits.sort();
        self.table(RUNTIME, &rows::RUNTIME, |reader, row| {
            if reader.is_no_call(row) {
                return Ok(true);
            }
            let Some(call) = reader.call(row)? else {
                return Ok(false);
            };
            let thread = call.thread.0 as usize;
            if let Some((process, _)) = reader.threads.get(thread) {
                waits.called(*process, &call);
            }
            reader.builder.trace.calls.push(call);
            Ok(true)
        })?;
        waits.finish(&mut self.builder);
        self.table(NVTX, &rows::NVTX, Reader::nvtx)?;
        self.table(SYSTEM, &rows::OVERHEAD, Reader::system)?;
        self.table(OVERHEAD, &rows::OVERHEAD, Reader::overhead)?;
        self.table(PROFILER, &rows::OVERHEAD, Reader::overhead)
    }

    /// Reads a table; `each` returns whether it could use a row.
    fn table(
        &mut self,
        table: &str,
        columns: &[Column],
        mut each: impl FnMut(&mut Self, &Row) -> Result<bool, Stop>,
    ) -> Result<(), Problem> {
        let database = self.database;
        let mut unusable: u64 = 0;
        let scan = database.rows(table, columns, |row| {
            self.rows_read += 1;
            if self.rows_read.is_multiple_of(ROWS_BETWEEN_REPORTS) {
                self.report();
            }
            if self.builder.kept_bytes() >= self.limits.rows_bytes {
                return ControlFlow::Break(Stop::Full);
            }
            match each(self, row) {
                Ok(true) => ControlFlow::Continue(()),
                Ok(false) => {
                    unusable += 1;
                    ControlFlow::Continue(())
                }
                Err(stop) => ControlFlow::Break(stop),
            }
        });
        self.builder.trace.events += scan.rows;
        if unusable > 0 {
            self.builder.warn(
                "UNUSABLE_ROWS",
                format!("{unusable} rows of {table} have no usable times, names or numbers and are left out"),
            );
        }
        self.ended(table, scan)
    }

    fn ended(&mut self, table: &str, scan: Scan<Stop>) -> Result<(), Problem> {
        let rows = scan.rows;
        if let Some(damage) = scan.damage {
            self.builder.warn(
                "DAMAGED",
                format!(
                    "{table} could be read for {rows} rows only ({damage}); export the report again"
                ),
            );
        }
        match scan.stopped {
            None => {}
            Some(Stop::Overflow(overflow)) => return Err(Problem::Overflow(overflow)),
            Some(Stop::Full) => self.builder.warn(
                "LIMIT",
                format!(
                    "{table} was read for {rows} rows only: the trace is larger than the limit"
                ),
            ),
        }
        Ok(())
    }

    fn report(&mut self) {
        let size_bytes = self.database.size_bytes();
        let share = self.rows_read as f64 / self.rows_expected.max(self.rows_read) as f64;
        (self.progress)((share * size_bytes as f64) as u64, size_bytes);
    }
}
