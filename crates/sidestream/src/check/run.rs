//! Feeds the records of a log, read from a file or from a running program, to a checker, within a memory limit.

use super::report::numbered;
use super::{Checker, Names, Report};
use crate::log::{Problem, Record};
use crate::op::{BufferId, Class, Named, Op};

/// The default memory limit of a check: 8 GiB.
pub const MEMORY_BYTES: u64 = 8 << 30;

/// A checker with the names of its ids and its memory limit.
pub(super) struct Run {
    pub checker: Checker,
    pub sites: Vec<String>,
    pub ops: u64,
    names: Names,
    /// The number of events declared.
    events: u32,
    buffers: u32,
    threads: u32,
    room: Room,
}

type Taken = Result<(), Problem>;

impl Run {
    /// Returns an empty run that may use this much memory.
    pub(super) fn new(memory_bytes: u64) -> Run {
        Run {
            checker: Checker::new(),
            sites: Vec::new(),
            ops: 0,
            names: Names::default(),
            events: 0,
            buffers: 0,
            threads: 0,
            room: Room {
                limit_bytes: memory_bytes,
                ..Room::default()
            },
        }
    }

    /// Processes the next record. A call that CUDA refuses is in the report.
    #[inline]
    pub(super) fn take(&mut self, record: &Record<'_>) -> Taken {
        match record {
            Record::Op(op) => self.op(op),
            Record::Stream { .. }
            | Record::Event { .. }
            | Record::Buffer { .. }
            | Record::Thread { .. }
            | Record::Site { .. }
            | Record::Pool { .. }
            | Record::Span { .. }
            | Record::Done(_) => self.declare(record),
        }
    }

    fn declare(&mut self, record: &Record<'_>) -> Taken {
        let spans = self.checker.span_names().len();
        match record {
            Record::Stream { kind, device, name } => {
                self.room.chains += 1;
                let id = self.checker.order_mut().add_stream(*kind, *device);
                if id.0 as usize != self.names.streams.len() {
                    return Err(Problem::LateLegacy);
                }
                self.names.streams.push(name.to_string());
                return self.room.check();
            }
            Record::Event { name, .. } => {
                self.room.records += 1;
                self.room.fixed_bytes += EVENT_BYTES + name.len() as u64;
                set(&mut self.names.events, "event", self.events, name);
                self.events += 1;
            }
            Record::Buffer { name, .. } => {
                self.room.fixed_bytes += BUFFER_BYTES + name.len() as u64;
                set(&mut self.names.buffers, "buffer", self.buffers, name);
                self.buffers += 1;
            }
            Record::Thread { name } => {
                self.room.chains += 1;
                set(&mut self.names.threads, "t", self.threads, name);
                self.threads += 1;
            }
            Record::Site { text } => {
                self.room.fixed_bytes += SITE_BYTES + text.len() as u64;
                self.sites.push(text.to_string());
            }
            Record::Pool { .. } | Record::Op(_) | Record::Span { .. } | Record::Done(_) => {}
        }
        // Only a call can be refused.
        let _ = self.checker.take(record);
        if let Record::Span { enters, .. } = record
            && self.checker.span_names().len() > spans
        {
            let name_bytes = enters.as_ref().map_or(0, |name| name.len() as u64);
            self.room.fixed_bytes += SPAN_BYTES + 2 * name_bytes;
        }
        self.room.check()
    }

    #[inline]
    fn op(&mut self, op: &Op) -> Taken {
        // Some operations of these classes keep a copy of a clock: one for each flag and graph.
        match op.kind.class() {
            Class::HostFunc | Class::Graph | Class::Told | Class::Host | Class::Allocator => {
                self.keeping(op)
            }
            Class::Kernel
            | Class::Copy { .. }
            | Class::Memset { .. }
            | Class::MallocAsync
            | Class::FreeAsync
            | Class::Record
            | Class::Wait
            | Class::Sync(_)
            | Class::Query(_)
            | Class::Malloc
            | Class::Free
            | Class::Make
            | Class::HostAccess => self.push(op),
        }
    }

    /// Processes a call that may name a flag, a graph or a buffer of the caching allocator.
    fn keeping(&mut self, op: &Op) -> Taken {
        let (mut kind, is_allocator) = (op.kind, op.kind.class() == Class::Allocator);
        let mut first = None;
        kind.each_named(|named| match named {
            Named::Flag(flag) => self.room.flag(flag.0),
            Named::Graph(graph) => self.room.graph(graph.0),
            Named::Buffer(buffer) => {
                first = first.or(Some(*buffer));
                Ok(())
            }
            Named::Stream(_) | Named::Event(_) | Named::Device(_) => Ok(()),
        })?;
        match first {
            Some(buffer) if is_allocator => self.allocator_op(op, buffer),
            _ => self.push(op),
        }
    }

    /// Processes a call of the caching allocator: the streams that use a buffer are kept and, after its free, a record
    /// of each.
    #[cold]
    fn allocator_op(&mut self, op: &Op, buffer: BufferId) -> Taken {
        let noted = |run: &Run| run.checker.order().known_uses(buffer).1.len() as u64;
        let before = noted(self);
        self.push(op)?;
        self.room.noted = self.room.noted + noted(self) - before;
        self.room.freed = u64::from(self.checker.order().records_of_frees());
        self.room.check()
    }

    #[inline]
    fn push(&mut self, op: &Op) -> Taken {
        self.ops += 1;
        let _refused = self.checker.push(op);
        let found = self.found_bytes();
        if found > self.room.found_bytes {
            self.room.found_bytes = found;
            self.room.check()?;
        }
        self.room.steps += self.checker.steps.len() as u64;
        if self.room.steps > MAX_STEPS {
            let (what, limit) = ("steps of streams and threads", MAX_STEPS);
            return Err(Problem::TooMuch { what, limit });
        }
        Ok(())
    }

    /// Returns the findings so far.
    pub(super) fn report(&self) -> Report {
        self.checker.report()
    }

    /// Returns the names of the ids. The log need not name its streams, nor declare a legacy stream that only
    /// blocking calls use.
    pub(super) fn names(&self) -> Names {
        let mut streams = Names::of_legacy_streams(self.checker.order()).streams;
        for (name, given) in streams.iter_mut().zip(&self.names.streams) {
            if !given.is_empty() {
                name.clone_from(given);
            }
        }
        Names {
            streams,
            spans: self.checker.span_names().to_vec(),
            ..self.names.clone()
        }
    }

    fn found_bytes(&self) -> u64 {
        let races = self.checker.races.list.len() as u64 * RACE_BYTES;
        races + self.checker.lints.list.len() as u64 * LINT_BYTES
    }
}

/// Sets the name of an id; earlier ids without a name are named by their number.
fn set(names: &mut Vec<String>, what: &str, id: u32, name: &str) {
    if name.is_empty() {
        return;
    }
    while names.len() < id as usize {
        let unnamed = names.len() as u32;
        names.push(numbered(what, unnamed));
    }
    names.push(name.to_owned());
}

// ------------------------------------------------------------------ memory

/// The limit on the steps of all chains together: clocks count the steps of one chain in 32 bits.
const MAX_STEPS: u64 = u32::MAX as u64 - (1 << 24);

// Approximate bytes in the tables of the checker and the rule book, for each object.
const EVENT_BYTES: u64 = 160;
const BUFFER_BYTES: u64 = 500;
const SITE_BYTES: u64 = 64;
const SPAN_BYTES: u64 = 128;
const RACE_BYTES: u64 = 300;
const LINT_BYTES: u64 = 16;

/// An estimate of the memory that a check may use for its declarations. Clocks are the largest part: one
/// for every chain and every record, with an entry for every chain.
#[derive(Default)]
struct Room {
    limit_bytes: u64,
    fixed_bytes: u64,
    chains: u64,
    records: u64,
    /// The number of streams noted as users of buffers.
    noted: u64,
    /// The number of records made by frees.
    freed: u64,
    found_bytes: u64,
    flags: u32,
    graphs: u32,
    steps: u64,
}

impl Room {
    fn check(&self) -> Result<(), Problem> {
        // A record keeps a clock and, in a capture, the graph nodes that it is ordered after.
        let records = self.records + self.freed;
        let clocks = self.chains * (self.chains + 2 * records) * 4;
        let noted_bytes = self.noted * 8;
        let needed_bytes = self.fixed_bytes + self.found_bytes + noted_bytes + clocks;
        if needed_bytes > self.limit_bytes {
            let limit_bytes = self.limit_bytes;
            return Err(Problem::Memory { limit_bytes });
        }
        Ok(())
    }

    #[inline]
    fn flag(&mut self, id: u32) -> Result<(), Problem> {
        if id < self.flags {
            return Ok(());
        }
        self.records += u64::from(id + 1 - self.flags);
        self.flags = id + 1;
        self.check()
    }

    #[inline]
    fn graph(&mut self, id: u32) -> Result<(), Problem> {
        if id < self.graphs {
            return Ok(());
        }
        self.records += u64::from(id + 1 - self.graphs);
        self.graphs = id + 1;
        self.check()
    }
}
