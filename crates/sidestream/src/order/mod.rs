//! The rule book: which operation must finish before which may start.
//!
//! CUDA's rules of order follow from the order of submission alone. [`Order::push`] takes the
//! operations in that order and says, for each, behind what it stands: symbolic [`Edge`]s, each
//! with the rule that demands it. It holds neither clocks nor sets of operations, so that all its
//! readers can use it: [`Clocks`] fold the edges into vector clocks and answer "is this ordered
//! before that?"; a [`Frontier`] turns them into edges between nodes of a graph, for a simulator.
//!
//! The rules R1 to R60 and where each is kept and tested are listed in `docs/order.md`. No other
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

mod capture;
mod clocks;
mod frontier;
mod misuse;

use std::fmt;

use smallvec::SmallVec;

use crate::op::{
    Access, BufferId, DeviceId, EventId, FlagId, GraphId, Kind, Memory, Op, StreamId, StreamKind,
    ThreadId,
};
use capture::{Capture, CaptureId, Seen};

pub use clocks::{Clocks, Epoch};
pub use frontier::Frontier;
pub use misuse::{Code, Misuse};

/// A rule of order, by its number in `docs/order.md`.
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
/// last launch. Freezing it again overwrites it (R5).
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
    /// What was frozen here last.
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
    /// By flag and by graph: where its last raise or launch is kept.
    flags: Vec<Option<RecordId>>,
    graphs: Vec<Option<RecordId>>,
    /// By buffer: what the caching allocator knows of it.
    blocks: Vec<Block>,
    records: u32,
}

#[derive(Debug)]
struct Stream {
    kind: StreamKind,
    device: DeviceId,
    capture: Option<CaptureId>,
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
        self.device(device);
        self.streams.push(Stream {
            kind,
            device,
            capture: None,
        });
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
        match op.kind {
            Kind::CopyBlocking { .. } | Kind::MemsetBlocking { .. } => {
                Some(self.legacy_stream(self.current_device(op.thread)))
            }
            _ => op.kind.stream(),
        }
    }

    /// Whether the event has a record that a wait placed now would wait for.
    pub fn is_recorded(&self, event: EventId) -> bool {
        !matches!(self.events[event.0 as usize].last, Last::Never)
    }

    fn device(&mut self, device: DeviceId) -> &mut Device {
        grow(&mut self.devices, device.0)
    }

    fn new_record(&mut self) -> RecordId {
        self.records += 1;
        RecordId(self.records - 1)
    }
}

// ------------------------------------------------------------------ the rules

impl Order {
    /// Takes the next call. `steps` is cleared and filled with what the call does.
    ///
    /// # Errors
    /// A call that CUDA refuses is a [`Misuse`] with CUDA's code; it changes nothing.
    pub fn push(&mut self, op: &Op, steps: &mut Steps) -> Result<Runs, Misuse> {
        steps.clear();
        let thread = op.thread;
        match op.kind {
            Kind::Kernel { stream, .. }
            | Kind::Memset { stream }
            | Kind::MallocAsync { stream }
            | Kind::FreeAsync { stream } => self.work(stream, thread, None, steps),
            Kind::Copy { stream, from, to } => {
                let runs = self.work(stream, thread, None, steps)?;
                if runs == Runs::Now {
                    let bytes = op.accesses.first().map_or(0, Access::len_bytes);
                    async_copy_and_host(stream, thread, from, to, bytes, steps);
                }
                Ok(runs)
            }
            Kind::HostFunc { stream, raises } => {
                let runs = self.work(stream, thread, None, steps)?;
                if let (Runs::Now, Some(flag)) = (runs, raises) {
                    steps[0].freezes = Some(self.flag(flag));
                }
                Ok(runs)
            }
            Kind::GraphLaunch { stream, graph } => self.graph_launch(stream, graph, thread, steps),
            Kind::CopyBlocking { from, to } => self.copy_blocking(thread, from, to, steps),
            Kind::MemsetBlocking { to } => {
                let legacy = self.legacy_stream(self.current_device(thread));
                let runs = self.work(legacy, thread, None, steps)?;
                if matches!(to, Memory::Pinned | Memory::Managed) {
                    steps.push(host_waits(thread, stream_edge(legacy, 24)));
                }
                Ok(runs)
            }
            Kind::Record { event, stream } => self.record(event, stream, thread, steps),
            Kind::Wait { stream, event } => self.wait(stream, event, thread, steps),
            Kind::WaitStream { stream, source } => self.wait_stream(stream, source, thread, steps),
            Kind::SyncStream { stream } => self.sync_stream(stream, true, thread, steps),
            Kind::QueryStream { stream, done } => self.sync_stream(stream, done, thread, steps),
            Kind::SyncEvent { event } => self.sync_event(event, true, thread, steps),
            Kind::QueryEvent { event, done } => self.sync_event(event, done, thread, steps),
            Kind::SyncDevice { device } => {
                let device = device.unwrap_or_else(|| self.current_device(thread));
                if self.device(device).capturing > 0 {
                    return Err(misuse(
                        Code::StreamCaptureUnsupported,
                        46,
                        "a stream of the device is being captured; synchronise after the capture",
                    ));
                }
                steps.push(host_waits(thread, promised(After::Device(device), 9)));
                Ok(Runs::Now)
            }
            Kind::SetFlag { flag } => {
                let mut step = Step::on(Chain::Thread(thread));
                step.freezes = Some(self.flag(flag));
                steps.push(step);
                Ok(Runs::Now)
            }
            Kind::WaitFlag { flag } => {
                let raised = self.flag(flag);
                steps.push(host_waits(thread, promised(After::Record(raised), 28)));
                Ok(Runs::Now)
            }
            Kind::HostAccess => {
                let mut step = Step::on(Chain::Thread(thread));
                step.performs = Performs::All;
                steps.push(step);
                Ok(Runs::Now)
            }
            Kind::Alloc {
                buffer,
                stream,
                saw_events_of,
            } => {
                self.alloc(buffer, stream, saw_events_of, thread, steps);
                Ok(Runs::Now)
            }
            Kind::RecordStream { buffer, stream } => {
                let block: &mut Block = grow(&mut self.blocks, buffer.0);
                if block.home != Some(stream) && !block.noted.contains(&stream) {
                    block.noted.push(stream);
                }
                Ok(Runs::Now)
            }
            Kind::Free { buffer } => {
                self.free(buffer, thread, steps);
                Ok(Runs::Now)
            }
            Kind::CudaFree { stream_ordered } => {
                self.end_of_life(thread, !stream_ordered, 31, steps);
                Ok(Runs::Now)
            }
            Kind::FreePinned => {
                self.end_of_life(thread, true, 27, steps);
                Ok(Runs::Now)
            }
            Kind::Elapsed { from, to } => self.elapsed(from, to),
            Kind::CreateEvent { event } | Kind::DestroyEvent { event } => {
                self.events[event.0 as usize].last = Last::Never;
                Ok(Runs::Now)
            }
            Kind::SetDevice { device } => {
                if self.current.len() <= thread.0 as usize {
                    self.current.resize(thread.0 as usize + 1, DeviceId(0));
                }
                self.current[thread.0 as usize] = device;
                Ok(Runs::Now)
            }
            Kind::BeginCapture { stream } => self.begin_capture(stream, thread),
            Kind::EndCapture { stream } => self.end_capture(stream, thread),
            // R13, R31: these give no order and wait for nothing.
            Kind::CudaMalloc | Kind::CreateStream { .. } | Kind::DestroyStream { .. } => {
                Ok(Runs::Now)
            }
        }
    }

    /// Work in a stream: behind the thread that submits it, and for a legacy or blocking stream
    /// behind the other side of the legacy rule.
    fn work(
        &mut self,
        stream: StreamId,
        thread: ThreadId,
        also: Option<Edge>,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        self.refuse_legacy_beside_capture(stream)?;
        if let Some(capture) = self.capture_of(stream) {
            self.capture(capture).add_node(stream);
            return Ok(Runs::Captured);
        }
        let mut step = self.action(stream, thread);
        step.performs = Performs::All;
        if let Some(edge) = also {
            step.edges.push(edge);
        }
        steps.push(step);
        Ok(Runs::Now)
    }

    /// An action in a stream: work, a record or a wait (R3, R14).
    fn action(&self, stream: StreamId, thread: ThreadId) -> Step {
        let mut step = Step::on(Chain::Stream(stream));
        step.edges
            .push(promised(After::Chain(Chain::Thread(thread)), 3));
        let Stream { kind, device, .. } = self.streams[stream.0 as usize];
        if kind == StreamKind::Legacy {
            step.edges.push(promised(After::Blocking(device), 14));
        } else if kind.is_blocking()
            && let Some(legacy) = self.devices[device.0 as usize].legacy
        {
            let rule = if kind == StreamKind::PerThread {
                18
            } else {
                14
            };
            step.edges.push(stream_edge(legacy, rule));
        }
        step
    }

    /// R49: an executable graph never overlaps itself.
    fn graph_launch(
        &mut self,
        stream: StreamId,
        graph: GraphId,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        let known = *grow(&mut self.graphs, graph.0);
        let earlier = known.map(|record| promised(After::Record(record), 49));
        let runs = self.work(stream, thread, earlier, steps)?;
        if runs == Runs::Now {
            let record = known.unwrap_or_else(|| self.new_record());
            self.graphs[graph.0 as usize] = Some(record);
            steps[0].freezes = Some(record);
        }
        Ok(runs)
    }

    /// R19 to R21, R23, R26: `cudaMemcpy`.
    fn copy_blocking(
        &mut self,
        thread: ThreadId,
        from: Memory,
        to: Memory,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        let device = self.current_device(thread);
        let legacy = self.legacy_stream(device);
        self.refuse_legacy_beside_capture(legacy)?;
        match (from.is_host(), to.is_host()) {
            // R19, pageable: a stream synchronisation, the caller copies to staging memory, and
            // the transfer into the device may still run when the call returns.
            (true, false) if from == Memory::Pageable => {
                let mut staging = host_waits(thread, stream_edge(legacy, 19));
                staging.edges.push(promised(After::Blocking(device), 16));
                staging.performs = Performs::Reads;
                steps.push(staging);
                let mut transfer = self.action(legacy, thread);
                transfer.performs = Performs::Writes;
                steps.push(transfer);
            }
            // R20, R26: neither side is the host's; the call returns at once.
            (false, false) => {
                self.work(legacy, thread, None, steps)?;
            }
            (from_host, to_host) => {
                self.work(legacy, thread, None, steps)?;
                let rule = match (from_host, to_host) {
                    (true, false) => 19,
                    (false, true) => 21,
                    _ => 23,
                };
                steps.push(host_waits(thread, stream_edge(legacy, rule)));
            }
        }
        Ok(Runs::Now)
    }

    /// R5, R38: the event takes the stream's content at the call.
    fn record(
        &mut self,
        event: EventId,
        stream: StreamId,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        let at = self.device_of(stream);
        let created_on = self.events[event.0 as usize].device;
        if created_on.is_some_and(|device| device != at) {
            return Err(misuse(
                Code::InvalidResourceHandle,
                38,
                "the event belongs to another device than the stream; record an event created there",
            ));
        }
        self.refuse_legacy_beside_capture(stream)?;
        if let Some(capture) = self.capture_of(stream) {
            let seen = self.capture(capture).record(stream);
            self.events[event.0 as usize].last = Last::Capture(capture, seen);
            return Ok(Runs::Captured);
        }
        let slot = match self.events[event.0 as usize].slot {
            Some(slot) => slot,
            None => self.new_record(),
        };
        let event = &mut self.events[event.0 as usize];
        event.slot = Some(slot);
        event.last = Last::Stream(at);
        let mut step = self.action(stream, thread);
        step.freezes = Some(slot);
        steps.push(step);
        Ok(Runs::Now)
    }

    /// R6 to R8, R17, R40, R47, R48.
    fn wait(
        &mut self,
        stream: StreamId,
        event: EventId,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        self.refuse_legacy_beside_capture(stream)?;
        let Event { last, slot, .. } = &self.events[event.0 as usize];
        match (self.capture_of(stream), last) {
            (None, Last::Capture(capture, seen)) => {
                let (capture, seen) = (*capture, seen.clone());
                self.join_capture(stream, capture, &seen)?;
                Ok(Runs::Captured)
            }
            (None, last) => {
                // R8: waiting for an event that has no record is an action like any other, and
                // waits for nothing.
                let record = slot.filter(|_| matches!(last, Last::Stream(_)));
                let mut step = self.action(stream, thread);
                if let Some(slot) = record {
                    step.edges.push(promised(After::Record(slot), 6));
                }
                steps.push(step);
                Ok(Runs::Now)
            }
            (Some(_), Last::Never) => Ok(Runs::Captured),
            (Some(_), Last::Stream(_)) => Err(misuse(
                Code::StreamCaptureIsolation,
                47,
                "the event was recorded outside the capture; record it inside, or wait before the capture begins",
            )),
            (Some(mine), Last::Capture(other, seen)) => {
                let (other, seen) = (*other, seen.clone());
                if mine == other {
                    self.capture(mine).wait(stream, &seen);
                    return Ok(Runs::Captured);
                }
                self.refuse_ended(other)?;
                Err(misuse(
                    Code::StreamCaptureMerge,
                    47,
                    "the event belongs to another capture; two captures cannot be merged",
                ))
            }
        }
    }

    /// R50: a record in `source` and a wait in `stream`, with an event of its own.
    fn wait_stream(
        &mut self,
        stream: StreamId,
        source: StreamId,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        self.refuse_legacy_beside_capture(source)?;
        self.refuse_legacy_beside_capture(stream)?;
        match (self.capture_of(source), self.capture_of(stream)) {
            (None, None) => {
                steps.push(self.action(source, thread));
                let mut wait = self.action(stream, thread);
                wait.edges.push(stream_edge(source, 50));
                steps.push(wait);
                Ok(Runs::Now)
            }
            (None, Some(_)) => Err(misuse(
                Code::StreamCaptureIsolation,
                47,
                "the awaited stream takes no part in the capture; fork it from the capture first",
            )),
            (Some(from), to) => {
                if to.is_some_and(|to| to != from) {
                    return Err(misuse(
                        Code::StreamCaptureMerge,
                        47,
                        "the two streams belong to different captures, which cannot be merged",
                    ));
                }
                let seen = self.capture(from).record(source);
                self.join_capture(stream, from, &seen)?;
                Ok(Runs::Captured)
            }
        }
    }

    /// R9, R10, R16, R46: the host waits for a stream, or learns that it is done.
    fn sync_stream(
        &mut self,
        stream: StreamId,
        done: bool,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        self.refuse_legacy_beside_capture(stream)?;
        if self.capture_of(stream).is_some() {
            return Err(misuse(
                Code::StreamCaptureUnsupported,
                46,
                "the stream is being captured, its work does not run; ask after the capture",
            ));
        }
        if done {
            let mut step = host_waits(thread, stream_edge(stream, 9));
            if self.kind_of(stream) == StreamKind::Legacy {
                let device = self.device_of(stream);
                step.edges.push(promised(After::Blocking(device), 16));
            }
            steps.push(step);
        }
        Ok(Runs::Now)
    }

    /// R7 to R10, R39, R46: the host waits for an event, or learns that it is complete.
    fn sync_event(
        &mut self,
        event: EventId,
        done: bool,
        thread: ThreadId,
        steps: &mut Steps,
    ) -> Result<Runs, Misuse> {
        let Event { last, slot, .. } = &self.events[event.0 as usize];
        match last {
            Last::Capture(capture, _) => {
                self.refuse_ended(*capture)?;
                return Err(misuse(
                    Code::CapturedEvent,
                    46,
                    "the event was recorded in a capture that still runs, so it never completes",
                ));
            }
            Last::Stream(_) if done => {
                let record = slot.map(|slot| promised(After::Record(slot), 9));
                steps.extend(record.map(|edge| host_waits(thread, edge)));
            }
            _ => {}
        }
        Ok(Runs::Now)
    }

    /// R11, R43: what `cudaEventElapsedTime` refuses. Whether both are complete is a question of
    /// order, which the checker asks.
    fn elapsed(&self, from: EventId, to: EventId) -> Result<Runs, Misuse> {
        let device_of = |id: EventId| {
            let event = &self.events[id.0 as usize];
            match event.last {
                Last::Never => Err("an event has never been recorded; record both first"),
                _ if !event.timing => Err("an event was created without timing"),
                Last::Stream(device) => Ok(device),
                Last::Capture(..) => Err("an event was last recorded in a capture"),
            }
        };
        let refuse = |why| misuse(Code::InvalidResourceHandle, 11, why);
        if device_of(from).map_err(refuse)? != device_of(to).map_err(refuse)? {
            return Err(misuse(
                Code::InvalidResourceHandle,
                43,
                "the events were recorded on two devices, whose clocks cannot be compared",
            ));
        }
        Ok(Runs::Now)
    }

    /// R52, R53: whoever saw the events of the free complete may count on it.
    fn alloc(
        &mut self,
        buffer: BufferId,
        home: Option<StreamId>,
        saw_events_of: Option<BufferId>,
        thread: ThreadId,
        steps: &mut Steps,
    ) {
        if let Some(earlier) = saw_events_of {
            let block: &Block = grow(&mut self.blocks, earlier.0);
            let events = block.freed.iter();
            steps.extend(events.map(|&r| host_waits(thread, promised(After::Record(r), 53))));
        }
        *grow(&mut self.blocks, buffer.0) = Block {
            home,
            ..Block::default()
        };
    }

    /// R53, R54: an event in every noted stream, with the work queued up to here.
    fn free(&mut self, buffer: BufferId, thread: ThreadId, steps: &mut Steps) {
        let noted = std::mem::take(&mut grow(&mut self.blocks, buffer.0).noted);
        for stream in noted {
            // The allocator records no events in a stream that is being captured.
            if self.capture_of(stream).is_some() {
                continue;
            }
            let record = self.new_record();
            let mut step = self.action(stream, thread);
            step.freezes = Some(record);
            step.edges.iter_mut().for_each(|edge| {
                if edge.rule == Rule(3) {
                    edge.rule = Rule(54);
                }
            });
            steps.push(step);
            self.blocks[buffer.0 as usize].freed.push(record);
        }
    }

    /// R27, R31, R35: the life of memory ends at the call. Devices were seen to wait first.
    fn end_of_life(&mut self, thread: ThreadId, waits: bool, rule: u8, steps: &mut Steps) {
        let mut step = Step::on(Chain::Thread(thread));
        step.performs = Performs::All;
        if waits {
            let device = self.current_device(thread);
            step.edges.push(observed(After::Device(device), rule));
        }
        steps.push(step);
    }
}

/// R22, R23: what an asynchronous copy that touches host memory does to its caller.
fn async_copy_and_host(
    stream: StreamId,
    thread: ThreadId,
    from: Memory,
    to: Memory,
    bytes: u64,
    steps: &mut Steps,
) {
    if from.is_host() && to.is_host() {
        steps.push(host_waits(thread, stream_edge(stream, 23)));
    } else if to == Memory::Pageable {
        let edge = observed(After::Chain(Chain::Stream(stream)), 22);
        steps.push(host_waits(thread, edge));
    } else if from == Memory::Pageable {
        if bytes < STAGING_BYTES {
            steps[0].staged = true;
        } else {
            let edge = observed(After::Chain(Chain::Stream(stream)), 22);
            steps.push(host_waits(thread, edge));
        }
    }
}

/// R22: uploads from pageable memory were seen to return early below this size (4 MiB of staging
/// room a stream), and to wait for the stream from it on.
const STAGING_BYTES: u64 = 4 << 20;

// ------------------------------------------------------------------ captures

impl Order {
    fn begin_capture(&mut self, stream: StreamId, thread: ThreadId) -> Result<Runs, Misuse> {
        if self.kind_of(stream) == StreamKind::Legacy {
            return Err(misuse(
                Code::StreamCaptureUnsupported,
                45,
                "the legacy default stream cannot be captured; capture a stream of your own",
            ));
        }
        if self.capture_of(stream).is_some() {
            return Err(misuse(
                Code::IllegalState,
                45,
                "the stream is being captured already",
            ));
        }
        let id = CaptureId(self.captures.len() as u32);
        self.captures.push(Capture::begin(stream, thread));
        self.enter(stream, id);
        Ok(Runs::Now)
    }

    fn end_capture(&mut self, stream: StreamId, thread: ThreadId) -> Result<Runs, Misuse> {
        let Some(id) = self
            .capture_of(stream)
            .filter(|&id| self.captures[id.0 as usize].origin == stream)
        else {
            return Err(misuse(
                Code::StreamCaptureUnmatched,
                48,
                "no capture began in this stream; end it where it began",
            ));
        };
        let capture = self.capture(id);
        if capture.thread != thread {
            return Err(misuse(
                Code::StreamCaptureWrongThread,
                48,
                "another thread began the capture; end it there",
            ));
        }
        if !capture.is_joined() {
            return Err(misuse(
                Code::StreamCaptureUnjoined,
                48,
                "a forked stream has captured work that was not joined; make the first stream wait for it",
            ));
        }
        capture.open = false;
        let members: Vec<StreamId> = capture.streams().collect();
        for stream in members {
            self.leave(stream);
        }
        Ok(Runs::Now)
    }

    /// R48: a wait for a captured event pulls the stream into the capture.
    fn join_capture(
        &mut self,
        stream: StreamId,
        capture: CaptureId,
        seen: &Seen,
    ) -> Result<(), Misuse> {
        self.refuse_ended(capture)?;
        if self.kind_of(stream) == StreamKind::Legacy {
            return Err(misuse(
                Code::StreamCaptureUnsupported,
                45,
                "the legacy default stream cannot take part in a capture",
            ));
        }
        self.capture(capture).wait(stream, seen);
        if self.capture_of(stream).is_none() {
            self.enter(stream, capture);
        }
        Ok(())
    }

    /// R45: nothing may be done in the legacy stream while a blocking stream is captured.
    fn refuse_legacy_beside_capture(&mut self, stream: StreamId) -> Result<(), Misuse> {
        let Stream { kind, device, .. } = self.streams[stream.0 as usize];
        if kind == StreamKind::Legacy && self.device(device).capturing_blocking > 0 {
            return Err(misuse(
                Code::StreamCaptureImplicit,
                45,
                "a blocking stream is being captured, and the legacy stream would wait for it",
            ));
        }
        Ok(())
    }

    /// An event of a capture that has ended stands for nothing until it is recorded anew.
    fn refuse_ended(&self, capture: CaptureId) -> Result<(), Misuse> {
        if self.captures[capture.0 as usize].open {
            return Ok(());
        }
        Err(misuse(
            Code::InvalidValue,
            46,
            "the event was last recorded in a capture that has ended; record it anew",
        ))
    }

    fn capture_of(&self, stream: StreamId) -> Option<CaptureId> {
        self.streams[stream.0 as usize].capture
    }

    fn capture(&mut self, id: CaptureId) -> &mut Capture {
        &mut self.captures[id.0 as usize]
    }

    fn enter(&mut self, stream: StreamId, capture: CaptureId) {
        self.streams[stream.0 as usize].capture = Some(capture);
        self.count_capturing(stream, 1);
    }

    fn leave(&mut self, stream: StreamId) {
        self.streams[stream.0 as usize].capture = None;
        self.count_capturing(stream, -1);
    }

    fn count_capturing(&mut self, stream: StreamId, by: i32) {
        let Stream { kind, device, .. } = self.streams[stream.0 as usize];
        let device = self.device(device);
        device.capturing = device.capturing.saturating_add_signed(by);
        if kind.is_blocking() {
            device.capturing_blocking = device.capturing_blocking.saturating_add_signed(by);
        }
    }

    /// Where the last raise of a flag is kept.
    fn flag(&mut self, flag: FlagId) -> RecordId {
        if let Some(known) = *grow(&mut self.flags, flag.0) {
            return known;
        }
        let fresh = self.new_record();
        self.flags[flag.0 as usize] = Some(fresh);
        fresh
    }
}

// ------------------------------------------------------------------ small parts

impl Step {
    fn on(chain: Chain) -> Step {
        Step {
            chain,
            edges: SmallVec::new(),
            performs: Performs::Nothing,
            staged: false,
            freezes: None,
        }
    }
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
fn grow<T: Default>(table: &mut Vec<T>, index: u32) -> &mut T {
    let index = index as usize;
    if table.len() <= index {
        table.resize_with(index + 1, T::default);
    }
    &mut table[index]
}
