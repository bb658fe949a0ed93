//! The rule book: which operation must complete before which may start.
//!
//! CUDA's ordering rules depend on the order of submission alone. [`Order::push`] takes the operations in that order and
//! returns what each is ordered after: symbolic [`Edge`]s, each with the rule that requires it. It stores neither clocks
//! nor sets of operations, so that all its users can share it: [`Clocks`] turn the edges into vector clocks and answer
//! "is this ordered before that?"; a [`Frontier`] turns them into edges between nodes of a graph, for a simulator.
//!
//! `docs/explanation/order.md` lists the rules R1 to R69, with the place of their implementation and test. No other module may
//! implement an ordering rule of CUDA.
//!
//! # How an operation becomes steps
//! There is one *chain* for each host thread and for each stream; the steps of a chain are in order (R1). An operation is
//! one or more [`Step`]s on chains: a kernel is one step on its stream, ordered after the calling thread (R3); a
//! synchronize is one step on the thread, ordered after a stream (R9); a blocking download is both, one after the
//! other (R21).
//!
//! # Promised and observed
//! [`Force::Promised`] edges are guaranteed by CUDA; nothing else proves a program correct. [`Force::Observed`] edges are
//! further orders that devices were seen to keep. A schedule that is shown to users may keep them, a proof may not.

mod acted;
mod capture;
mod clocks;
mod far;
mod frontier;
pub mod live;
mod misuse;
mod open;
mod rules;

use std::collections::VecDeque;
use std::fmt;

use smallvec::SmallVec;

use crate::op::{
    Access, BufferId, Compare, DeviceId, EventId, FlagId, Op, OpId, StreamId, StreamKind, ThreadId,
};
use acted::{Acted, Link};
use capture::{Capture, CaptureId, Seen};

pub use clocks::{Clocks, Epoch, Known, Near};
pub use frontier::Frontier;
pub use misuse::{Code, Misuse};
pub use open::Open;
pub use rules::{STAGING_BYTES, may_block};

/// An ordering rule, by its number in `docs/explanation/order.md`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rule(pub u8);

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{}", self.0)
    }
}

/// A thread or a stream: its steps are in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Chain {
    /// A host thread.
    Thread(ThreadId),
    /// A stream.
    Stream(StreamId),
}

/// A record that stores a point of a chain: an event's last record, a flag that was set, a graph's last launch. Storing
/// another point overwrites it (R5), unless [`Step::beside`] is set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordId(pub u32);

/// The steps that an edge orders a step after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// All steps so far on this chain.
    Chain(Chain),
    /// All steps so far on every blocking and per-thread stream of the device (R14).
    Blocking(DeviceId),
    /// All steps so far on every stream of the device (R9).
    Device(DeviceId),
    /// The point stored last in this record; if the record stores several points ([`Step::beside`]), everything that
    /// all of them are ordered after.
    Record(RecordId),
}

/// How certain an edge is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Force {
    /// The documentation of CUDA or PyTorch guarantees the order.
    Promised,
    /// Devices were observed to keep the order, but it is not documented.
    Observed,
}

/// One reason for a step to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The earlier steps that are waited for.
    pub after: After,
    /// The rule that requires the wait.
    pub rule: Rule,
    /// How certain the edge is.
    pub force: Force,
}

/// The accesses of its operation that a step performs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Performs {
    /// No access: the step is only a point in the order.
    Nothing,
    /// All accesses.
    All,
    /// The reads.
    Reads,
    /// The writes.
    Writes,
}

impl Performs {
    /// Whether such a step performs `access`.
    pub fn includes(self, access: &Access) -> bool {
        use crate::op::Mode;
        match self {
            Performs::Nothing => false,
            Performs::All => true,
            Performs::Reads => access.mode == Mode::Read,
            Performs::Writes => access.mode != Mode::Read,
        }
    }
}

/// Which accesses of a step in a stream may come before earlier steps of the stream. Edges do not say so: a schedule that
/// keeps the order of the stream is legal, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Early {
    /// None.
    Nothing,
    /// The reads, at any time after the call (R63).
    Reads,
    /// All, before the kernels right before the step in its stream are complete (R66); if the step may wait, it is not known
    /// whether they do.
    Kernels { may_wait: bool },
}

/// What a step has to do with waits for what no call shows; such a wait may come after any step (R64, R65).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outside {
    /// Nothing.
    Nothing,
    /// It is such a wait; for a value of this word, if it is for one.
    Waits(Option<FlagId>),
    /// Now a call shows the write of this word that ends the waits of this stream: they, and what comes after them, come
    /// after it.
    Ends(FlagId),
}

/// One point on a chain: the edges that it waits for, the accesses that it performs, and the record that stores it.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// The chain that it extends.
    pub chain: Chain,
    /// The edges that order the step after others, besides the earlier steps of its chain.
    pub edges: SmallVec<[Edge; 4]>,
    /// The accesses that it performs.
    pub performs: Performs,
    /// The accesses that may come before earlier steps of the stream.
    pub early: Early,
    /// Whether the step waits for what no call has shown.
    pub outside: Outside,
    /// Whether the driver was observed to read the source during the call (R22), which is not guaranteed.
    pub staged: bool,
    /// The record that stores this point of the chain for later edges.
    pub freezes: Option<RecordId>,
    /// Whether the record keeps its earlier points in addition to this one: a waiter is released by one of them, but it
    /// is unknown which one (R28).
    pub beside: bool,
}

/// Whether the operation runs or is captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Runs {
    /// The operation runs; its steps determine when.
    Now,
    /// The operation became part of a graph under construction, and has no steps.
    Captured,
}

/// The state of the rule book: its streams, events and captures.
#[derive(Debug, Default)]
pub struct Order {
    streams: Vec<Stream>,
    events: Vec<Event>,
    devices: Vec<Device>,
    captures: Vec<Capture>,
    /// By thread: its current device.
    current: Vec<DeviceId>,
    flags: Vec<Flag>,
    words: Vec<Word>,
    /// By graph: the record of its last launch.
    graphs: Vec<Option<RecordId>>,
    /// By buffer: its state in the caching allocator.
    blocks: Vec<Block>,
    records: u32,
    /// The number of records made by frees.
    records_of_frees: u32,
    /// Records made by frees that are no longer needed, to be reused.
    spare: Vec<RecordId>,
    /// The current call.
    present: OpId,
    calls: u64,
}

#[derive(Debug, Default)]
struct Flag {
    /// The record of the points at which the flag was set.
    record: Option<RecordId>,
    /// Whether the flag was set, and no thread has waited for it since.
    is_up: bool,
}

/// A word of memory that streams write and wait for.
#[derive(Debug, Default)]
struct Word {
    /// The last values that streams wrote there, the latest last.
    written: VecDeque<Written>,
    /// The last waits of streams that no write has ended, each with the value and the comparison.
    waits: VecDeque<(StreamId, u32, Compare)>,
}

/// A value that a stream wrote to memory.
#[derive(Debug)]
struct Written {
    value: u32,
    stream: StreamId,
    /// The record that stores the point of the write.
    record: RecordId,
    fenced: bool,
}

#[derive(Debug)]
struct Stream {
    kind: StreamKind,
    device: DeviceId,
    capture: Option<CaptureId>,
    /// Whether its last action was a kernel.
    after_kernel: bool,
    /// The call by which the stream joined its current or last capture.
    entered: OpId,
    /// Its links in the list of streams of its device.
    link: Link,
}

#[derive(Debug)]
struct Event {
    timing: bool,
    /// The device on which it was created, if known.
    device: Option<DeviceId>,
    last: Last,
    /// The record that stores the point of the event's last record; one for all of its records, since only the last one
    /// counts (R7).
    slot: Option<RecordId>,
}

/// The place of an event's last record.
#[derive(Debug)]
enum Last {
    Never,
    Stream(DeviceId),
    Capture(CaptureId, Seen),
}

#[derive(Debug, Default)]
struct Device {
    legacy: Option<StreamId>,
    streams: Vec<StreamId>,
    acted: Acted,
    /// The number of the device's blocking streams that are being captured, and that of all its captured streams.
    capturing_blocking: u32,
    capturing: u32,
}

#[derive(Debug, Default)]
struct Block {
    home: Option<StreamId>,
    noted: SmallVec<[StreamId; 2]>,
    /// The records that the free made.
    freed: SmallVec<[RecordId; 2]>,
}

/// The steps of one operation; the vector is reused from call to call.
pub type Steps = Vec<Step>;

// ------------------------------------------------------------------ declarations

impl Order {
    /// Returns a rule book without streams and events, and with every thread on device 0.
    pub fn new() -> Order {
        Order::default()
    }

    /// Declares a stream. A device has one legacy stream: a second declaration returns the first.
    pub fn add_stream(&mut self, kind: StreamKind, device: DeviceId) -> StreamId {
        let fresh = StreamId(self.streams.len() as u32);
        if kind == StreamKind::Legacy {
            match self.device(device).legacy {
                Some(known) => return known,
                None => self.device(device).legacy = Some(fresh),
            }
        }
        self.streams.push(Stream {
            kind,
            device,
            capture: None,
            after_kernel: false,
            entered: OpId(0),
            link: Link::default(),
        });
        self.device(device).streams.push(fresh);
        self.keep_track(device);
        fresh
    }

    /// Declares an event. `timing` is whether it records the device's time; `device` is the device on which it was
    /// created, if later calls are to be checked against it.
    pub fn add_event(&mut self, timing: bool, device: Option<DeviceId>) -> EventId {
        self.events.push(Event {
            timing,
            device,
            last: Last::Never,
            slot: None,
        });
        EventId(self.events.len() as u32 - 1)
    }

    /// Returns the kind of a stream.
    pub fn kind_of(&self, stream: StreamId) -> StreamKind {
        self.streams[stream.0 as usize].kind
    }

    /// Returns the device of a stream.
    pub fn device_of(&self, stream: StreamId) -> DeviceId {
        self.streams[stream.0 as usize].device
    }

    /// Returns all streams, in the order of their ids.
    pub fn streams(&self) -> impl ExactSizeIterator<Item = (StreamId, StreamKind, DeviceId)> {
        let numbered = self.streams.iter().enumerate();
        numbered.map(|(i, s)| (StreamId(i as u32), s.kind, s.device))
    }

    /// Returns the legacy default stream of a device, which is declared if it was not used before.
    pub fn legacy_stream(&mut self, device: DeviceId) -> StreamId {
        self.add_stream(StreamKind::Legacy, device)
    }

    /// Returns the current device of a thread.
    pub fn current_device(&self, thread: ThreadId) -> DeviceId {
        let known = self.current.get(thread.0 as usize);
        known.copied().unwrap_or(DeviceId(0))
    }

    /// Returns the stream in which an operation's work runs: the one it names, or for the blocking calls the legacy stream of
    /// the thread's device.
    pub fn work_stream(&mut self, op: &Op) -> Option<StreamId> {
        match op.kind.stream() {
            None if op.kind.class().is_work() => {
                Some(self.legacy_stream(self.current_device(op.thread)))
            }
            named => named,
        }
    }

    /// If a stream can be neither recorded nor waited for, because it takes part in a capture or is the legacy stream
    /// during one, returns the call by which that began (R45, R46).
    pub(crate) fn closed_since(&self, stream: StreamId) -> Option<OpId> {
        let Stream { kind, device, .. } = self.streams[stream.0 as usize];
        if self.devices[device.0 as usize].capturing == 0 {
            return None;
        }
        let closing = |other: &Stream, is_it: bool| {
            let beside = kind == StreamKind::Legacy && other.kind.is_blocking();
            other.capture.is_some() && (is_it || (beside && other.device == device))
        };
        let streams = self.streams.iter().enumerate();
        let closed = streams.filter(|(at, other)| closing(other, *at == stream.0 as usize));
        closed.map(|(_, other)| other.entered).min()
    }

    /// Returns the state of an allocated buffer in the caching allocator: its home stream, and the other streams that
    /// were noted for its free (R53).
    pub fn known_uses(&self, buffer: BufferId) -> (Option<StreamId>, &[StreamId]) {
        let block = self.blocks.get(buffer.0 as usize);
        block.map_or((None, &[]), |block| (block.home, &block.noted))
    }

    /// Returns the number of records made by frees; one that no allocation can name any longer is reused.
    pub(crate) fn records_of_frees(&self) -> u32 {
        self.records_of_frees
    }

    /// Whether the event has a record that a wait enqueued now would wait for.
    pub(crate) fn is_recorded(&self, event: EventId) -> bool {
        !matches!(self.events[event.0 as usize].last, Last::Never)
    }

    fn device(&mut self, device: DeviceId) -> &mut Device {
        grow(&mut self.devices, device.0)
    }

    fn new_record_of_free(&mut self) -> RecordId {
        self.spare.pop().unwrap_or_else(|| {
            self.records_of_frees += 1;
            self.new_record()
        })
    }

    fn new_record(&mut self) -> RecordId {
        self.records += 1;
        RecordId(self.records - 1)
    }
}

// ------------------------------------------------------------------ helper functions

impl Step {
    /// Returns a step on a chain that waits for nothing and performs nothing.
    pub fn on(chain: Chain) -> Step {
        Step {
            chain,
            edges: SmallVec::new(),
            performs: Performs::Nothing,
            early: Early::Nothing,
            outside: Outside::Nothing,
            staged: false,
            freezes: None,
            beside: false,
        }
    }
}

/// Appends a step and returns it, to be filled in place: moving a step costs more than writing it.
#[inline]
fn push_step(chain: Chain, steps: &mut Steps) -> &mut Step {
    steps.push(Step::on(chain));
    steps.last_mut().expect("it was pushed")
}

/// Returns a step on a thread, with an edge that the thread waits for.
fn host_waits(thread: ThreadId, edge: Edge) -> Step {
    let mut step = Step::on(Chain::Thread(thread));
    step.edges.push(edge);
    step
}

fn promised(after: After, rule: u8) -> Edge {
    Edge {
        after,
        rule: Rule(rule),
        force: Force::Promised,
    }
}

fn observed(after: After, rule: u8) -> Edge {
    Edge {
        after,
        rule: Rule(rule),
        force: Force::Observed,
    }
}

fn stream_edge(stream: StreamId, rule: u8) -> Edge {
    promised(After::Chain(Chain::Stream(stream)), rule)
}

fn misuse(code: Code, rule: u8, why: &'static str) -> Misuse {
    let rule = Rule(rule);
    Misuse { code, rule, why }
}

/// Returns the entry of an id in a table, which grows as needed.
#[inline]
pub(crate) fn grow<T: Default>(table: &mut Vec<T>, index: u32) -> &mut T {
    let index = index as usize;
    if table.len() <= index {
        grow_to(table, index + 1);
    }
    &mut table[index]
}

/// Grows a table; separate, since it happens once per id and would slow down every look-up.
#[cold]
fn grow_to<T: Default>(table: &mut Vec<T>, len: usize) {
    table.resize_with(len, T::default);
}
