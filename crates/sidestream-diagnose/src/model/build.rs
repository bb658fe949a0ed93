//! The builder with which readers fill a trace.

use std::collections::HashMap;

use super::*;
use crate::sort::order_by;

/// The maximum number of streams, and of threads, that a trace may name. Programs have tens of them; a file with more is not a
/// GPU trace.
const MOST_LANES: usize = 1 << 16;
/// The maximum size of all names of a trace together, in bytes.
const NAMES_BYTES: usize = 64 << 20;

/// A trace under construction.
#[derive(Debug)]
pub struct Builder {
    /// What was read so far. Rows may be added in any order.
    pub(crate) trace: Trace,
    streams: HashMap<(Option<i64>, i64, i64, i64), StreamIndex>,
    threads: HashMap<(i64, i64), ThreadIndex>,
    /// The classification of each name as a function, where it was needed.
    apis: HashMap<Name, Api>,
    kinds: HashMap<ExchangeKind, u32>,
    groups: HashMap<ProcessGroup, u32>,
}

/// The maximum number of kinds of exchanges, and of process groups, that are distinguished.
const MOST_KINDS: usize = 1 << 16;

/// Number of calls by what they asked of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Calls that launch a kernel or a graph.
    pub launches: usize,
    /// Calls that copy.
    pub copies: usize,
    /// All calls.
    pub calls: usize,
}

/// Number of rows that are kept, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Kernels, copies and memsets.
    pub work: usize,
    /// Calls of CUDA.
    pub calls: usize,
    /// Everything else.
    pub others: usize,
}

/// A trace names more streams or threads than any program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// A plural noun for what exceeds the limit: `streams` or `threads`.
    pub what: &'static str,
    /// The limit.
    pub limit: usize,
}

impl Builder {
    /// Returns an empty trace.
    pub fn new(source: Source) -> Builder {
        Builder {
            trace: Trace {
                source,
                events: 0,
                rank: None,
                world: None,
                base: Base::Estimated,
                names: Names::new(NAMES_BYTES),
                devices: Vec::new(),
                streams: Vec::new(),
                threads: Vec::new(),
                work: Vec::new(),
                calls: Vec::new(),
                ranges: Vec::new(),
                syncs: Vec::new(),
                records: Vec::new(),
                shapes: Vec::new(),
                memory: Vec::new(),
                launched: HashMap::new(),
                exchanges: Exchanges {
                    groups: vec![ProcessGroup::default()],
                    ..Exchanges::default()
                },
                warnings: Vec::new(),
            },
            streams: HashMap::new(),
            threads: HashMap::new(),
            apis: HashMap::new(),
            kinds: HashMap::new(),
            groups: HashMap::new(),
        }
    }

    /// Interns a string and returns its name.
    pub fn name(&mut self, text: &str) -> Name {
        self.trace.names.intern(text)
    }

    /// Returns the name of a function without its version, and its classification.
    pub fn function(&mut self, text: &str) -> (Name, Api) {
        let name = self.trace.names.intern(api::plain(text));
        let api = *self.apis.entry(name).or_insert_with(|| Api::of(text));
        (name, api)
    }

    /// Returns the index of the stream with this identity, which is added if it is new.
    ///
    /// # Errors
    /// The trace names more streams than any program has.
    pub fn stream(
        &mut self,
        process: Option<i64>,
        device: i64,
        context: i64,
        number: i64,
    ) -> Result<StreamIndex, Overflow> {
        let key = (process, device, context, number);
        if let Some(index) = self.streams.get(&key) {
            return Ok(*index);
        }
        let index = StreamIndex(lane(self.trace.streams.len(), "streams")?);
        self.trace.streams.push(Stream {
            process,
            device,
            context,
            number,
            flag: StreamFlag::Unknown,
            priority: None,
        });
        self.streams.insert(key, index);
        Ok(index)
    }

    /// Returns the index of the thread with this identity, which is added if it is new.
    ///
    /// # Errors
    /// The trace names more threads than any program has.
    pub fn thread(&mut self, process: i64, thread: i64) -> Result<ThreadIndex, Overflow> {
        if let Some(index) = self.threads.get(&(process, thread)) {
            return Ok(*index);
        }
        let index = ThreadIndex(lane(self.trace.threads.len(), "threads")?);
        self.trace.threads.push(Thread {
            process,
            thread,
            name: String::new(),
        });
        self.threads.insert((process, thread), index);
        Ok(index)
    }

    /// Adds the description of a device.
    pub fn device(&mut self, device: Device) {
        // The limit is that of streams, since each stream names one device.
        if self.trace.devices.len() < MOST_LANES {
            self.trace.devices.push(device);
        }
    }

    /// Returns the number of calls by what they asked of devices.
    pub fn asked(&self) -> Asked {
        let count = |test: &dyn Fn(ApiKind) -> bool| {
            let calls = self.trace.calls.iter();
            calls.filter(|call| test(call.api.kind)).count()
        };
        Asked {
            launches: count(&|kind| matches!(kind, ApiKind::Launch | ApiKind::GraphLaunch)),
            copies: count(&|kind| matches!(kind, ApiKind::Copy | ApiKind::CopyAsync)),
            calls: self.trace.calls.len(),
        }
    }

    /// Records how a kernel was launched; of the kernels of one name the longest is kept.
    pub fn launched(&mut self, name: Name, launched: Launched) {
        let kept = self.trace.launched.entry(name).or_insert(launched);
        if kept.duration_ns < launched.duration_ns {
            *kept = launched;
        }
    }

    /// Adds a process group and returns its index. Beyond the limit it returns the group of which nothing is known.
    pub fn process_group(&mut self, group: ProcessGroup) -> u32 {
        if group == ProcessGroup::default() {
            return 0;
        }
        let groups = &mut self.trace.exchanges.groups;
        if let Some(at) = self.groups.get(&group) {
            return *at;
        }
        if groups.len() >= MOST_KINDS {
            return 0;
        }
        let at = groups.len() as u32;
        groups.push(group.clone());
        self.groups.insert(group, at);
        at
    }

    /// Adds a kind of exchange and returns its index. Beyond the limit it returns the first one.
    pub fn exchange_kind(&mut self, kind: ExchangeKind) -> u32 {
        let kinds = &mut self.trace.exchanges.kinds;
        if let Some(at) = self.kinds.get(&kind) {
            return *at;
        }
        if kinds.len() >= MOST_KINDS {
            return 0;
        }
        let at = kinds.len() as u32;
        kinds.push(kind.clone());
        self.kinds.insert(kind, at);
        at
    }

    /// Adds an exchange and returns its index, which is valid until the trace is finished.
    pub fn exchange(&mut self, exchange: Exchange) -> usize {
        let rows = &mut self.trace.exchanges.rows;
        rows.push(exchange);
        rows.len() - 1
    }

    /// Completes an exchange with what another event says about it.
    pub fn complete_exchange(&mut self, at: usize, kind: u32, seq: Option<u32>) {
        if let Some(row) = self.trace.exchanges.rows.get_mut(at) {
            row.kind = kind;
            row.seq = row.seq.or(seq);
        }
    }

    /// Adds a warning, once for each code and text.
    pub fn warn(&mut self, code: &'static str, text: impl Into<String>) {
        let warning = Warning {
            code,
            text: text.into(),
        };
        if !self.trace.warnings.contains(&warning) {
            self.trace.warnings.push(warning);
        }
    }

    /// Returns the number of rows that are kept.
    pub fn rows(&self) -> Rows {
        let trace = &self.trace;
        Rows {
            work: trace.work.len(),
            calls: trace.calls.len(),
            others: [
                trace.ranges.len(),
                trace.syncs.len(),
                trace.records.len(),
                trace.shapes.len(),
                trace.memory.len(),
            ]
            .iter()
            .sum(),
        }
    }

    /// Returns the bytes of the rows that are kept.
    pub fn kept_bytes(&self) -> u64 {
        let trace = &self.trace;
        let bytes = size_of_val(&trace.work[..])
            + size_of_val(&trace.calls[..])
            + size_of_val(&trace.ranges[..])
            + size_of_val(&trace.syncs[..])
            + size_of_val(&trace.records[..])
            + size_of_val(&trace.shapes[..])
            + size_of_val(&trace.memory[..])
            + size_of_val(&trace.exchanges.rows[..]);
        bytes as u64
    }

    /// Assigns the streams to the process of the calls if all calls are from one process. For traces that do not state the
    /// process of a stream.
    pub fn one_process(&mut self) {
        let trace = &mut self.trace;
        let process = |call: &Call| trace.threads.get(call.thread.0 as usize).map(|t| t.process);
        let mut processes = trace.calls.iter().map(process);
        let Some(first) = processes.next() else {
            return;
        };
        if processes.all(|process| process == first) {
            for stream in &mut trace.streams {
                stream.process = stream.process.or(first);
            }
        }
    }

    /// Finishes the trace and puts its rows in order.
    pub fn finish(mut self) -> Trace {
        if self.trace.names.overflowed() {
            self.warn(
                "NAMES",
                "the file has more different names than fit; some are shown as (other)",
            );
        }
        let mut trace = self.trace;
        // Of two rows that start together, the longer one is the outer one. The order of rows that are equal in everything else
        // does not matter.
        let longer_first = |duration_ns: u64| u64::MAX - duration_ns;
        sort(&mut trace.work, |w| {
            (w.start_ns, w.duration_ns, w.stream.0.into(), w.correlation)
        });
        // If whole microseconds give two calls of one thread the same time, the calls were made in the order of their numbers.
        // A call inside another one has the later number.
        sort(&mut trace.calls, |c| {
            let number = (u64::from(c.thread.0) << 32) | u64::from(c.correlation);
            let longer = longer_first(c.duration_ns);
            (c.start_ns, number, (longer >> 32) as u32, longer as u32)
        });
        sort(&mut trace.ranges, |r| {
            (
                r.start_ns,
                longer_first(r.duration_ns),
                r.thread.0.into(),
                r.name.0,
            )
        });
        let exchanges = &mut trace.exchanges.rows;
        sort(exchanges, |e| {
            (e.start_ns, e.duration_ns, e.kind, e.seq.unwrap_or(0))
        });
        sort(&mut trace.syncs, |s| {
            (s.start_ns, s.duration_ns, 0, s.correlation)
        });
        sort(&mut trace.shapes, |s| {
            (s.start_ns, s.name.0.into(), s.thread.0.into(), s.shape.0)
        });
        // Memory events of equal times must keep their order, so this sort is stable.
        if !trace.memory.is_sorted_by_key(|memory| memory.time_ns) {
            order_by(&mut trace.memory, |memory| memory.time_ns);
        }
        trace
    }
}

/// Files are mostly in order already; sorting in place takes no memory besides the rows.
fn sort<T>(rows: &mut [T], key: impl Fn(&T) -> (i64, u64, u32, u32)) {
    if !rows.is_sorted_by_key(&key) {
        rows.sort_unstable_by_key(key);
    }
}

fn lane(len: usize, what: &'static str) -> Result<u16, Overflow> {
    u16::try_from(len).map_err(|_| Overflow {
        what,
        limit: MOST_LANES,
    })
}
