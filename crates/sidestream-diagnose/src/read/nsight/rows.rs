//! Converts rows to the model, with one function for each table.

use super::kinds::Class;
use super::*;
use crate::model::{
    Api, ApiKind, Call, Direction, Kernel, Launched, Memory, Name, Names, Range, RangeKind,
    ThreadIndex, What, Work,
};

/// The columns of all tables of device work; [`Reader::push_work`] reads them.
const WORK: [Column; 9] = [
    integer("start"),
    integer("end"),
    integer("deviceId"),
    integer("contextId"),
    integer("streamId"),
    integer("correlationId"),
    integer("globalPid"),
    integer("graphNodeId"),
    integer("graphId"),
];

/// Returns these columns, followed by those of one table.
const fn work_and<const OWN: usize, const ALL: usize>(own: [Column; OWN]) -> [Column; ALL] {
    assert!(ALL == WORK.len() + OWN);
    let mut all = [WORK[0]; ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < WORK.len() {
            WORK[at]
        } else {
            own[at - WORK.len()]
        };
        at += 1;
    }
    all
}

pub(super) const KERNEL: [Column; 20] = work_and([
    integer("demangledName"),
    integer("shortName"),
    integer("gridX"),
    integer("gridY"),
    integer("gridZ"),
    integer("blockX"),
    integer("blockY"),
    integer("blockZ"),
    integer("registersPerThread"),
    integer("staticSharedMemory"),
    integer("dynamicSharedMemory"),
]);
pub(super) const MEMCPY: [Column; 14] = work_and([
    integer("copyKind"),
    integer("srcKind"),
    integer("dstKind"),
    integer("bytes"),
    integer("migrationCause"),
]);
/// The cause of a migration that the program requested with `cudaMemPrefetchAsync`.
const PREFETCHED: i64 = 1;
pub(super) const MEMSET: [Column; 11] = work_and([integer("memKind"), integer("bytes")]);
pub(super) const GRAPH: [Column; 9] = WORK;
pub(super) const RUNTIME: [Column; 6] = [
    integer("start"),
    integer("end"),
    integer("globalTid"),
    integer("correlationId"),
    integer("nameId"),
    integer("eventClass"),
];
pub(super) const NVTX: [Column; 6] = [
    integer("start"),
    integer("end"),
    integer("globalTid"),
    integer("eventType"),
    integer("textId"),
    text("text"),
];
pub(super) const OVERHEAD: [Column; 4] = [
    integer("start"),
    integer("end"),
    integer("globalTid"),
    integer("nameId"),
];

/// Shorter operating system calls are left out: there may be millions.
const LEAST_OF_SYSTEM_NS: u64 = 100_000;

/// The suffixes that PyTorch's wrappers append to a name, each followed by a number that differs for every range.
const NUMBERED: [&str; 2] = [", seq = ", ", op_id = "];

impl Reader<'_> {
    pub(super) fn kernel(&mut self, row: &Row) -> Result<bool, Stop> {
        let name = self.strings.name(&mut self.builder, row.integer(9));
        let name = match name {
            Some(name) => Some(name),
            None => self.strings.name(&mut self.builder, row.integer(10)),
        };
        let number = |at| whole(row.integer(at));
        let product = |columns: [usize; 3]| {
            let sizes = columns.map(number);
            sizes.into_iter().fold(1, u64::saturating_mul)
        };
        let kernel = Kernel {
            blocks: u32::try_from(product([11, 12, 13])).unwrap_or(u32::MAX),
            threads: u16::try_from(product([14, 15, 16])).unwrap_or(u16::MAX),
            registers: u16::try_from(number(17)).unwrap_or(u16::MAX),
            shared_bytes: u32::try_from(number(18).saturating_add(number(19))).unwrap_or(u32::MAX),
        };
        let name = name.unwrap_or(Names::OTHER);
        let size = |at| u32::try_from(number(at)).unwrap_or(u32::MAX);
        if let (Some((_, duration_ns)), true) = (times(row), kernel.blocks > 0) {
            let launched = Launched {
                duration_ns,
                grid: [11, 12, 13].map(size),
                block: [14, 15, 16].map(size),
                registers: kernel.registers,
                shared_bytes: kernel.shared_bytes,
                occupancy: None,
            };
            self.builder.launched(name, launched);
        }
        self.push_work(row, What::Kernel(kernel), name)
    }

    pub(super) fn copy(&mut self, row: &Row) -> Result<bool, Stop> {
        let direction = self.kinds.direction(row.integer(9));
        let (mut from, mut to) = (
            self.kinds.memory(row.integer(10)),
            self.kinds.memory(row.integer(11)),
        );
        // Exports do not state the kinds of memory of a migration.
        if self.kinds.is_unified(row.integer(9)) {
            let is_asked = row.integer(13) == Some(PREFETCHED);
            (from, to) = match (is_asked, direction) {
                (true, Direction::Download) => (Memory::Device, Memory::Managed),
                (true, _) => (Memory::Managed, Memory::Device),
                (false, _) => (Memory::Managed, Memory::Managed),
            };
        }
        let name = self.builder.name(&copy_name(direction, from, to));
        let what = What::Copy {
            direction,
            from,
            to,
            bytes: whole(row.integer(12)),
        };
        self.push_work(row, what, name)
    }

    pub(super) fn memset(&mut self, row: &Row) -> Result<bool, Stop> {
        let memory = self.kinds.memory(row.integer(9));
        let name = format!("Memset ({})", title(memory));
        let name = self.builder.name(&name);
        let what = What::Memset {
            memory,
            bytes: whole(row.integer(10)),
        };
        self.push_work(row, what, name)
    }

    /// Adds a graph that was traced as a whole: the device was busy with it, but its operations are not known.
    pub(super) fn graph(&mut self, row: &Row) -> Result<bool, Stop> {
        let name = format!("graph {}", row.integer(8).unwrap_or(0));
        let name = self.builder.name(&name);
        self.whole_graphs += 1;
        self.push_work(row, What::Kernel(Kernel::default()), name)
    }

    fn push_work(&mut self, row: &Row, what: What, name: Name) -> Result<bool, Stop> {
        let Some((start_ns, duration_ns)) = times(row) else {
            return Ok(false);
        };
        let (Some(device), Some(number)) = (row.integer(2), row.integer(4)) else {
            return Ok(false);
        };
        let context = row.integer(3).unwrap_or(0);
        let stream = self.stream(row.integer(6).map(process), device, context, number)?;
        self.builder.trace.work.push(Work {
            start_ns,
            duration_ns,
            what,
            stream,
            name,
            correlation: small(row.integer(5)),
            graph: graph(row.integer(8), row.integer(7)),
        });
        Ok(true)
    }

    /// Returns whether the row is not a CUDA call, or is the second row of one.
    pub(super) fn is_no_call(&self, row: &Row) -> bool {
        let class = row.integer(5);
        class.is_some() && self.kinds.class(class) == Class::Other
    }

    pub(super) fn call(&mut self, row: &Row) -> Result<Option<Call>, Stop> {
        let (Some((start_ns, duration_ns)), Some(thread)) = (times(row), row.integer(2)) else {
            return Ok(None);
        };
        // Work may still be joined to a call whose name is missing.
        let unnamed = Api {
            kind: ApiKind::Other,
            is_driver: false,
        };
        let (name, api) = self
            .strings
            .function(&mut self.builder, row.integer(4))
            .unwrap_or((Names::OTHER, unnamed));
        self.has_graph_launch |= api.kind == ApiKind::GraphLaunch;
        Ok(Some(Call {
            start_ns,
            duration_ns,
            name,
            thread: self.thread(thread)?,
            correlation: small(row.integer(3)),
            api,
        }))
    }

    pub(super) fn nvtx(&mut self, row: &Row) -> Result<bool, Stop> {
        // Marks, and ranges that were never closed, are not spans of time.
        if !self.kinds.is_range(row.integer(3)) || row.integer(1).is_none() {
            return Ok(true);
        }
        let (Some(times), Some(thread)) = (times(row), row.integer(2)) else {
            return Ok(false);
        };
        let builder = &mut self.builder;
        let named = match row.text(5) {
            Some(text) => Some(range(builder, &text)),
            None => {
                let id = row.integer(4);
                self.strings.text(builder, id, range)
            }
        };
        let named = named.unwrap_or((Names::OTHER, RangeKind::Annotation));
        self.push_range(times, thread, named)
    }

    fn push_range(
        &mut self,
        (start_ns, duration_ns): (i64, u64),
        thread: i64,
        (name, kind): (Name, RangeKind),
    ) -> Result<bool, Stop> {
        let thread = self.thread(thread)?;
        self.builder.trace.ranges.push(Range {
            start_ns,
            duration_ns,
            name,
            thread,
            kind,
        });
        Ok(true)
    }

    /// Adds a long operating system call: it may explain why nothing was launched meanwhile.
    pub(super) fn system(&mut self, row: &Row) -> Result<bool, Stop> {
        let (Some(times), Some(thread)) = (times(row), row.integer(2)) else {
            return Ok(false);
        };
        if times.1 < LEAST_OF_SYSTEM_NS {
            return Ok(true);
        }
        let named = self
            .strings
            .text(&mut self.builder, row.integer(3), |builder, text| {
                builder.name(&format!("{text} (operating system)"))
            });
        let name = named.unwrap_or(Names::OTHER);
        self.push_range(times, thread, (name, RangeKind::System))
    }

    pub(super) fn overhead(&mut self, row: &Row) -> Result<bool, Stop> {
        let Some(times) = times(row) else {
            return Ok(false);
        };
        let name = self.strings.name(&mut self.builder, row.integer(3));
        let named = (name.unwrap_or(Names::OTHER), RangeKind::Overhead);
        self.push_range(times, row.integer(2).unwrap_or(0), named)
    }

    pub(super) fn stream(
        &mut self,
        process: Option<i64>,
        device: i64,
        context: i64,
        number: i64,
    ) -> Result<StreamIndex, Overflow> {
        let index = self.builder.stream(process, device, context, number)?;
        if index.0 as usize == self.streams.len() {
            let place = (process, context, number);
            self.streams.push(place);
            self.by_place.entry(place).or_insert(index);
        }
        Ok(index)
    }

    /// Returns the stream of a row that names a device unreliably: schema 3.25 has device 0 in the rows of waits on other
    /// devices.
    pub(super) fn stream_somewhere(
        &mut self,
        process: Option<i64>,
        device: i64,
        context: i64,
        number: i64,
    ) -> Result<StreamIndex, Overflow> {
        match self.by_place.get(&(process, context, number)) {
            Some(index) => Ok(*index),
            None => self.stream(process, device, context, number),
        }
    }

    fn thread(&mut self, global: i64) -> Result<ThreadIndex, Overflow> {
        let key = (process(global), global & 0xFF_FFFF);
        let index = self.builder.thread(key.0, key.1)?;
        if index.0 as usize == self.threads.len() {
            self.threads.push(key);
        }
        Ok(index)
    }
}

/// Returns the process in a global process or thread number.
pub(super) fn process(global: i64) -> i64 {
    (global >> 24) & 0xFF_FFFF
}

/// Returns start and length, if they are plausible. Zeros mean that no time was recorded.
pub(super) fn times(row: &Row) -> Option<(i64, u64)> {
    const FARTHEST_NS: i64 = 1 << 62;
    let (start, end) = (row.integer(0)?, row.integer(1)?);
    let is_near = |ns: i64| (-FARTHEST_NS..=FARTHEST_NS).contains(&ns);
    let is_real = is_near(start) && is_near(end) && (start, end) != (0, 0);
    let duration = end.checked_sub(start).filter(|_| is_real)?;
    Some((start, u64::try_from(duration).ok()?))
}

/// Returns a number that fits into 32 bits; 0 for any other.
pub(super) fn small(number: Option<i64>) -> u32 {
    number.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
}

/// Returns a size or a count; 0 if there is none.
fn whole(number: Option<i64>) -> u64 {
    number.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

/// Returns the graph of a node: from its own column in new files, otherwise from the upper half of the node's number.
fn graph(graph: Option<i64>, node: Option<i64>) -> u32 {
    match (small(graph), node) {
        (0, Some(node)) if node != 0 => small(Some(node >> 32)).max(1),
        (graph, _) => graph,
    }
}

/// Returns a range's name without the numbers of its call, and its kind.
fn range(builder: &mut Builder, text: &str) -> (Name, RangeKind) {
    let cut = NUMBERED.iter().filter_map(|mark| text.find(mark)).min();
    let name = builder.name(&text[..cut.unwrap_or(text.len())]);
    let kind = if text.starts_with("ProfilerStep#") {
        RangeKind::Step
    } else if cut.is_some() || text.starts_with("aten::") {
        RangeKind::Operator
    } else {
        RangeKind::Annotation
    };
    (name, kind)
}

/// Returns a copy's name as PyTorch's profiler writes it, so that both formats use the same names.
fn copy_name(direction: Direction, from: Memory, to: Memory) -> String {
    let direction = direction.as_str();
    format!("Memcpy {direction} ({} -> {})", title(from), title(to))
}

fn title(memory: Memory) -> &'static str {
    match memory {
        Memory::Unknown => "Unknown",
        Memory::Pageable => "Pageable",
        Memory::Pinned => "Pinned",
        Memory::Device => "Device",
        Memory::Array => "Array",
        Memory::Managed => "Managed",
    }
}
