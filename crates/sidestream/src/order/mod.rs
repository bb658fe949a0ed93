//! The rule book: which operation must finish before which may start.
//!
//! CUDA's rules of order follow from the order of submission alone. [`Order::push`] takes the
//! operations in that order and says, for each, behind what it stands: symbolic [`Edge`]s, each
//! with the rule that demands it. It holds neither clocks nor sets of operations, so that all its
//! readers can use it: [`Clocks`] fold the edges into vector clocks and answer "is this ordered
//! before that?"; a [`Frontier`] turns them into edges between nodes of a graph, for a simulator.
//!
//! The rules R1 to R60 and where each is kept and tested are listed in `docs/explanation/order.md`. No other
//! module may know a rule of CUDA's.
//!
//! # How an operation becomes steps
//! Things happen on *chains*: one for each host thread, one for each stream. A chain is in order by
//! itself (R1). An operation is one or more [`Step`]s on chains: a kernel is one step on its stream,
//! which stands behind the calling thread (R3); a synchronisation is one step on the thread, which
//! stands behind a stream (R9); a blocking download is both, one after the other (R21).
//!
//! # Promised and observed
//! [`Force::Promised`] edges are what CUDA guarantees; nothing else proves a program right.
//! [`Force::Observed`] edges are what devices were seen to do besides. A schedule for people may
//! keep them, a proof may not.

mod acted;
mod capture;
mod clocks;
mod far;
mod frontier;
pub mod live;
mod misuse;
mod open;
mod rules;

use std::fmt;

use smallvec::SmallVec;

use crate::op::{Access, BufferId, DeviceId, EventId, Op, OpId, StreamId, StreamKind, ThreadId};
use acted::{Acted, Link};
use capture::{Capture, CaptureId, Seen};

pub use clocks::{Clocks, Epoch, Known, Near};
pub use frontier::Frontier;
pub use misuse::{Code, Misuse};
pub use open::Open;
pub use rules::may_hold_up;

/// A rule of order, by its number in `docs/explanation/order.md`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rule(pub u8);

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{}", self.0)
    }
}

/// Something whose steps are in order by themselves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Chain {
    /// A host thread.
    Thread(ThreadId),
    /// A stream.
    Stream(StreamId),
}

/// A place that keeps a frozen point of a chain: an event's last record, a raised flag, a graph's
/// last launch. Freezing it again overwrites it (R5), unless the step says [`Step::beside`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordId(pub u32);

/// What a step stands behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// All steps so far on this chain.
    Chain(Chain),
    /// All steps so far on every blocking and per-thread stream of the device (R14).
    Blocking(DeviceId),
    /// All steps so far on every stream of the device (R9).
    Device(DeviceId),
    /// What was frozen here last; of several points beside each other, what all of them stand behind.
    Record(RecordId),
}

/// Who says that an edge holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Force {
    /// CUDA's or PyTorch's documentation promises it.
    Promised,
    /// Devices were seen to do it; nobody promises it.
    Observed,
}

/// One reason for a step to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// What it waits for.
    pub after: After,
    /// The rule that says so.
    pub rule: Rule,
    /// How sure that is.
    pub force: Force,
}

/// Which of its operation's accesses happen in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Performs {
    /// None: the step is only a point in the order.
    Nothing,
    /// All of them.
    All,
    /// The reads.
    Reads,
    /// The writes.
    Writes,
}

impl Performs {
    /// Whether `access` happens in such a step.
    pub fn includes(self, access: &Access) -> bool {
        use crate::op::Mode;
        match self {
            Performs::Nothing => false,
            Performs::All => true,
            Performs::Reads => access.mode == Mode::Read,
            Performs::Writes => access.mode == Mode::Write,
        }
    }
}

/// One point on a chain: what it waits for, what happens at it, what it freezes.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// The chain that it extends.
    pub chain: Chain,
    /// What it stands behind, besides the earlier steps of its chain.
    pub edges: SmallVec<[Edge; 4]>,
    /// The accesses that happen here.
    pub performs: Performs,
    /// Observed, not promised: the driver reads the source away during the call (R22).
    pub staged: bool,
    /// Where this point of the chain is kept for later edges.
    pub freezes: Option<RecordId>,
    /// Whether what is kept there already stays beside it: whoever waits goes on at one of them, and
    /// nobody knows at which (R28).
    pub beside: bool,
}

/// Whether the operation runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Runs {
    /// It does; its steps say when.
    Now,
    /// It became part of a graph under construction. There are no steps.
    Captured,
}

/// The state of the rule book: what streams, events and captures there are.
#[derive(Debug, Default)]
pub struct Order {
    streams: Vec<Stream>,
    events: Vec<Event>,
    devices: Vec<Device>,
    captures: Vec<Capture>,
    /// By thread: its current device.
    current: Vec<DeviceId>,
    flags: Vec<Flag>,
    /// By graph: where its last launch is kept.
    graphs: Vec<Option<RecordId>>,
    /// By buffer: what the caching allocator knows of it.
    blocks: Vec<Block>,
    records: u32,
    /// Of those, the ones that frees have made, and the ones of them that nobody needs any more.
    records_of_frees: u32,
    spare: Vec<RecordId>,
    /// The call that is being taken, and which one it is.
    present: OpId,
    calls: u64,
}

#[derive(Debug, Default)]
struct Flag {
    /// Where its raises are kept.
    record: Option<RecordId>,
    /// It was raised, and nobody has waited for it since.
    is_up: bool,
}

#[derive(Debug)]
struct Stream {
    kind: StreamKind,
    device: DeviceId,
    capture: Option<CaptureId>,
    /// The call that made it take part in its present or last capture.
    entered: OpId,
    /// Its place among the streams of its device.
    link: Link,
}

#[derive(Debug)]
struct Event {
    timing: bool,
    /// The device it was created on, where that is known.
    device: Option<DeviceId>,
    last: Last,
    /// Where its records are kept; one place for all of them, since only the last one counts (R7).
    slot: Option<RecordId>,
}

/// What an event was last recorded in.
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
    /// How many of its blocking and of all its streams are being captured.
    capturing_blocking: u32,
    capturing: u32,
}

#[derive(Debug, Default)]
struct Block {
    home: Option<StreamId>,
    noted: SmallVec<[StreamId; 2]>,
    /// The events that the free recorded.
    freed: SmallVec<[RecordId; 2]>,
}

/// The steps of one operation; reused from call to call.
pub type Steps = Vec<Step>;

// ------------------------------------------------------------------ declarations

impl Order {
    /// An empty rule book: no stream, no event, every thread on device 0.
    pub fn new() -> Order {
        Order::default()
    }

    /// Makes a stream known. A device has one legacy stream: asking for it again gives the same.
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
            entered: OpId(0),
            link: Link::default(),
        });
        self.device(device).streams.push(fresh);
        self.keep_track(device);
        fresh
    }

    /// Makes an event known: whether it keeps times, and the device it was created on, if that is
    /// to be held against later calls.
    pub fn add_event(&mut self, timing: bool, device: Option<DeviceId>) -> EventId {
        self.events.push(Event {
            timing,
            device,
            last: Last::Never,
            slot: None,
        });
        EventId(self.events.len() as u32 - 1)
    }

    /// The kind of a stream.
    pub fn kind_of(&self, stream: StreamId) -> StreamKind {
        self.streams[stream.0 as usize].kind
    }

    /// The device of a stream.
    pub fn device_of(&self, stream: StreamId) -> DeviceId {
        self.streams[stream.0 as usize].device
    }

    /// All streams, in the order of their ids.
    pub fn streams(&self) -> impl ExactSizeIterator<Item = (StreamId, StreamKind, DeviceId)> {
        let numbered = self.streams.iter().enumerate();
        numbered.map(|(i, s)| (StreamId(i as u32), s.kind, s.device))
    }

    /// The legacy default stream of a device; known from the first call on that uses it.
    pub fn legacy_stream(&mut self, device: DeviceId) -> StreamId {
        self.add_stream(StreamKind::Legacy, device)
    }

    /// The current device of a thread.
    pub fn current_device(&self, thread: ThreadId) -> DeviceId {
        let known = self.current.get(thread.0 as usize);
        known.copied().unwrap_or(DeviceId(0))
    }

    /// The stream in which an operation's work runs: the one it names, or the legacy stream of the
    /// thread's device for the blocking calls.
    pub fn work_stream(&mut self, op: &Op) -> Option<StreamId> {
        match op.kind.stream() {
            None if op.kind.class().is_work() => {
                Some(self.legacy_stream(self.current_device(op.thread)))
            }
            named => named,
        }
    }

    /// Since which call a stream can be neither recorded nor waited for, if it cannot: because it
    /// takes part in a capture, or is the legacy stream beside one (R45, R46).
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

    /// What the caching allocator knows of a buffer that is handed out: its home stream, and the
    /// other streams that were noted for its free (R53).
    pub fn known_uses(&self, buffer: BufferId) -> (Option<StreamId>, &[StreamId]) {
        let block = self.blocks.get(buffer.0 as usize);
        block.map_or((None, &[]), |block| (block.home, &block.noted))
    }

    /// How many places are kept for what frees have recorded; one that no allocation can see any more
    /// is used again.
    pub(crate) fn records_of_frees(&self) -> u32 {
        self.records_of_frees
    }

    /// Whether the event has a record that a wait placed now would wait for.
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

// ------------------------------------------------------------------ small parts

impl Step {
    /// A point on a chain that waits for nothing and does nothing.
    pub fn on(chain: Chain) -> Step {
        Step {
            chain,
            edges: SmallVec::new(),
            performs: Performs::Nothing,
            staged: false,
            freezes: None,
            beside: false,
        }
    }
}

/// A further step, which is filled in where it stands: moving one costs more than writing it.
#[inline]
fn push_step(chain: Chain, steps: &mut Steps) -> &mut Step {
    steps.push(Step::on(chain));
    steps.last_mut().expect("it was pushed")
}

/// A step on the thread that waits.
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

/// The entry of a table that grows with the ids it is asked for.
#[inline]
fn grow<T: Default>(table: &mut Vec<T>, index: u32) -> &mut T {
    let index = index as usize;
    if table.len() <= index {
        grow_to(table, index + 1);
    }
    &mut table[index]
}

/// Happens once an id, and its code would stand in the way of every look-up.
#[cold]
fn grow_to<T: Default>(table: &mut Vec<T>, len: usize) {
    table.resize_with(len, T::default);
}
