//! Translates what PyTorch did into operations for the checker. It judges nothing: the rules are in `order`, and
//! `check` finds the races.
//!
//! For the checker, all host threads are one, so any observed order between them is taken as guaranteed, and no race
//! is reported that a lock prevents. What only the timing of two threads orders is found separately, in `threads`.

use std::collections::{HashMap, HashSet, VecDeque};

use sidestream::check::{Findings, OnRace, live};
use sidestream::log::{Record, Sink};
use sidestream::op::{
    Access, Accesses, BufferId, DeviceId, EventId, Kind, Memory, Mode, Op, OpId, SiteId, StreamId,
    StreamKind, ThreadId,
};

use super::graphs::{Capture, Graph};

use super::host::Watch;
use super::memory::{HostMemory, Space};
use super::reduce::Told;
use super::remarks::Noticed;
use super::threads::Threads;
use super::touch::{Real, Touch, add, meet};

/// The one thread that represents all host threads.
const HOST: ThreadId = ThreadId(0);
/// The size of the buffer that covers every address.
const ALL_BYTES: u64 = 1 << 62;
/// The size of a tenancy before its real size is learned from its uses; no tenancy is this large.
const MOST_BYTES: u64 = 1 << 48;
/// A handle that no real stream has: the stream of a process group's collectives.
pub const COLLECTIVES: u64 = 1 << 62;
/// The number of operations whose touched shapes are remembered.
const NOTES: usize = 1 << 15;

/// A stream as PyTorch identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RawStream {
    /// The device of the stream.
    pub device: u32,
    /// The handle of the stream.
    pub raw: u64,
}

impl RawStream {
    pub fn of(device: u32, raw: u64) -> RawStream {
        RawStream { device, raw }
    }
}

/// Where an operation was called: the operator, the stack and the thread, each by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Site {
    /// The number of the operator's name.
    pub name: u32,
    /// The number of the stack.
    pub stack: u32,
    /// The number of the thread.
    pub thread: u32,
    /// Whether a library that the program calls waits here, not the program itself.
    pub waits_by_itself: bool,
}

/// What an operation touched.
struct Note {
    op: OpId,
    touches: Vec<Touch>,
}

/// The translation, with the checker that it feeds.
pub struct Core {
    pub(super) sink: Told,
    pub findings: Findings,
    pub(super) op: Op,
    next: u32,
    pub operations: u64,
    pub streams: HashMap<RawStream, StreamId>,
    pub stream_names: Vec<(RawStream, String)>,
    /// The program's names for streams, as far as known.
    pub program_names: HashMap<StreamId, String>,
    /// The places at which a stream's name was already looked up.
    asked_names: HashSet<(StreamId, u32)>,
    blocking: Vec<u64>,
    pub(super) events: HashMap<u64, (EventId, u32)>,
    pub(super) event_count: u32,
    pub space: Space,
    pub host: HostMemory,
    pub watch: Watch,
    /// Absent while there is only one thread.
    pub threads: Option<Threads>,
    pub sites: Vec<Site>,
    known_sites: HashMap<Site, SiteId>,
    notes: VecDeque<Note>,
    /// Buffers for which the span of a tensor with gaps was reported.
    spanned: HashSet<BufferId>,
    /// Buffers for which the reported range includes bytes that an operator may touch, but not certainly.
    unsure: HashSet<BufferId>,
    pub(super) graphs: HashMap<u64, Graph>,
    pub(super) graph_count: u32,
    /// cuBLAS has one workspace per stream. A captured matrix product keeps the workspace of the stream on which it
    /// was captured, wherever its graph runs.
    pub workspaces: HashMap<StreamId, BufferId>,
    pub(super) captures: Vec<Capture>,
    seen: usize,
    told: usize,
    remarks: usize,
    /// The places of remarks, by the operation that caused them.
    pub remarked: HashMap<OpId, Site>,
    /// The stream and the operation that recorded each event last.
    pub(super) recorded: HashMap<EventId, (StreamId, OpId)>,
    /// Observations for remarks, which are not races.
    pub noticed: Noticed,
}

impl Core {
    /// Makes an empty translation. The checker may use this much memory.
    pub fn new(memory_bytes: u64) -> Core {
        let (findings, mut sink) = live(OnRace::Report, memory_bytes);
        findings.follow_waits();
        begin(&mut *sink);
        Core {
            sink: Told::new(sink),
            findings,
            op: Op {
                id: OpId(0),
                thread: HOST,
                site: SiteId(0),
                kind: Kind::HostAccess,
                accesses: Accesses::new(),
            },
            next: 0,
            operations: 0,
            streams: HashMap::new(),
            stream_names: Vec::new(),
            program_names: HashMap::new(),
            asked_names: HashSet::new(),
            blocking: Vec::new(),
            events: HashMap::new(),
            event_count: 0,
            space: Space::new(BufferId(0), BufferId(1)),
            host: HostMemory::default(),
            watch: Watch::default(),
            threads: None,
            sites: Vec::new(),
            known_sites: HashMap::new(),
            notes: VecDeque::new(),
            spanned: HashSet::new(),
            unsure: HashSet::new(),
            graphs: HashMap::new(),
            graph_count: 0,
            workspaces: HashMap::new(),
            captures: Vec::new(),
            seen: 0,
            told: 0,
            remarks: 0,
            remarked: HashMap::new(),
            recorded: HashMap::new(),
            noticed: Noticed::default(),
        }
    }

    /// Adds a log, which receives the same records as the checker. Called before any operation.
    pub fn log_to(&mut self, mut log: Box<dyn Sink>) {
        begin(&mut *log);
        self.sink.also(log);
    }

    /// The stream for a handle. Handles 0 and 1 are the default stream of the device, 2 that of the thread; all
    /// streams that PyTorch makes are non-blocking (R51).
    pub fn stream(&mut self, stream: RawStream) -> StreamId {
        let key = match stream.raw {
            0 | 1 => RawStream { raw: 0, ..stream },
            2 => stream,
            raw if raw & COLLECTIVES != 0 => stream,
            // A handle belongs to one stream of one device.
            raw => RawStream::of(0, raw),
        };
        if let Some(&known) = self.streams.get(&key) {
            return known;
        }
        let id = StreamId(self.stream_names.len() as u32);
        let (kind, name) = match stream.raw {
            0 | 1 => (StreamKind::Legacy, "default".to_owned()),
            2 => (StreamKind::PerThread, "per_thread".to_owned()),
            raw if self.blocking.contains(&raw) => {
                (StreamKind::Blocking, format!("stream{}", id.0))
            }
            raw if raw & COLLECTIVES != 0 => {
                (StreamKind::NonBlocking, format!("collectives{}", id.0))
            }
            _ => (StreamKind::NonBlocking, format!("stream{}", id.0)),
        };
        let name = match stream.device {
            0 => name,
            device => format!("{name}_of_cuda{device}"),
        };
        let device = DeviceId(stream.device);
        self.sink.take(&Record::stream(kind, device, &name));
        self.stream_names.push((stream, name));
        self.streams.insert(key, id);
        id
    }

    /// Whether a stream's name in the program is unknown, and was not yet looked up at this place.
    pub fn lacks_name(&mut self, site: Site, stream: RawStream) -> bool {
        let id = self.stream(stream);
        !self.program_names.contains_key(&id) && self.asked_names.insert((id, site.stack))
    }

    /// Learns the program's name for a stream. The first name is kept, since it was already reported.
    pub fn learn_name(&mut self, stream: RawStream, name: Option<String>) {
        // `torch.cuda.default_stream()` is a call, not a name in the program.
        if let Some(name) = name.filter(|name| !name.contains('(')) {
            let id = self.stream(stream);
            self.program_names.entry(id).or_insert(name);
        }
    }

    /// Marks a stream that PyTorch did not make as blocking: the default stream waits for it.
    pub fn note_blocking(&mut self, raw: u64) {
        if !self.blocking.contains(&raw) {
            self.blocking.push(raw);
        }
    }

    fn site(&mut self, site: Site) -> SiteId {
        if let Some(&known) = self.known_sites.get(&site) {
            return known;
        }
        let id = SiteId(self.sites.len() as u32);
        self.sites.push(site);
        self.known_sites.insert(site, id);
        self.sink.take(&Record::site(""));
        id
    }

    /// Where an operation was called, by the index of its site.
    pub fn site_of(&self, site: SiteId) -> Site {
        let known = self.sites.get(site.0 as usize);
        known.copied().unwrap_or_default()
    }

    // -------------------------------------------------------------- reports to the checker

    /// Reports an operation without accesses. The last operation's accesses are kept for the report.
    pub(super) fn tell(&mut self, kind: Kind, site: Site) {
        let accesses = std::mem::take(&mut self.op.accesses);
        self.push(kind, site);
        self.op.accesses = accesses;
    }

    /// Reports the operation with the accesses in `self.op`.
    pub(super) fn push(&mut self, kind: Kind, site: Site) {
        if self.next >= u32::MAX - 1 {
            self.sink.full();
            return;
        }
        self.op.site = self.site(site);
        self.op.id = OpId(self.next);
        self.op.kind = kind;
        self.next += 1;
        self.sink.take(&Record::op(&self.op));
        if self.threads.is_some() && !self.op.accesses.is_empty() {
            self.called(site.thread);
        }
        let (races, remarks) = self.findings.found();
        self.told = races;
        if remarks > self.remarks {
            self.remarks = remarks;
            self.remarked.insert(self.op.id, site);
        }
    }

    /// While paused, operations count for no thread.
    pub fn pause_threads(&mut self, paused: bool) {
        if let Some(threads) = &mut self.threads {
            threads.paused = paused;
        }
    }

    /// Reports the operation to `threads`, with the thread that called it.
    #[cold]
    fn called(&mut self, thread: u32) {
        let Some(mut threads) = self.threads.take() else {
            return;
        };
        // The end of a storage's life is not an access by the thread in which it happens.
        if self.op.kind != Kind::FreePinned {
            let own = |access: &Access| self.workspace_of(access.buffer).is_none();
            let stream = self.op.kind.stream();
            for (first, second, buffer) in threads.called(&self.op, thread, stream, own) {
                if self.is_real(first.op, second.op, Some(buffer)) != Real::No {
                    let places = [first, second].map(|deed| {
                        let site = self.sites[deed.site.0 as usize];
                        (site.stack, site.name)
                    });
                    let bytes = self.last_touched(buffer);
                    threads.keep((first, second), (places[0], places[1]), bytes);
                }
            }
        }
        self.threads = Some(threads);
    }

    /// Puts what an operator touches on devices into `self.op`. Memory that is used for the first time gets its
    /// tenancy here.
    pub(super) fn put(&mut self, touches: &[Touch], site: Site) {
        let mut firsts = std::mem::take(&mut self.space.firsts);
        let mut accesses = std::mem::take(&mut self.op.accesses);
        accesses.clear();
        for touch in touches.iter().filter(|touch| touch.device >= 0) {
            let (buffer, base) = self.space.locate(touch.ptr, touch.end, &mut firsts);
            if !add(&mut accesses, touch, buffer, base) {
                self.spanned.insert(buffer);
            }
            if touch.may.is_some() {
                self.unsure.insert(buffer);
            }
        }
        self.settle(&mut firsts, site);
        self.space.firsts = firsts;
        self.op.accesses = accesses;
        self.note(touches);
    }

    fn note(&mut self, touches: &[Touch]) {
        let mut room = if self.notes.len() == NOTES {
            self.notes.pop_front().map(|note| note.touches)
        } else {
            None
        }
        .unwrap_or_default();
        room.clear();
        room.extend_from_slice(touches);
        self.notes.push_back(Note {
            op: OpId(self.next),
            touches: room,
        });
    }

    /// Reports the tenancies of which an operator is the first user.
    fn settle(&mut self, firsts: &mut Vec<super::memory::First>, site: Site) {
        use super::memory::First;
        for first in firsts.drain(..) {
            match first {
                First::Buffer(within) => {
                    let within = Some(within);
                    let record = Record::buffer(Memory::Device, MOST_BYTES, within, "");
                    self.sink.take(&record);
                }
                First::Alloc {
                    buffer,
                    home,
                    saw_events_of,
                } => {
                    if let Some(threads) = &mut self.threads {
                        threads.handed_out(buffer);
                    }
                    let stream = Some(home);
                    self.tell(
                        Kind::Alloc {
                            buffer,
                            stream,
                            saw_events_of,
                        },
                        site,
                    );
                }
                First::Unmapped { device } => {
                    let device = Some(DeviceId(device));
                    self.tell(Kind::SyncDevice { device }, site);
                }
            }
        }
    }

    // -------------------------------------------------------------- what PyTorch does

    /// Reports an operator that launches kernels. Returns whether something was found.
    pub fn operator(&mut self, site: Site, stream: RawStream, touches: &[Touch]) -> bool {
        self.launched(site, stream, touches, false)
    }

    /// Reports a matrix product, which cuBLAS computes.
    pub fn product(&mut self, site: Site, stream: RawStream, touches: &[Touch]) -> bool {
        self.launched(site, stream, touches, true)
    }

    fn launched(
        &mut self,
        site: Site,
        stream: RawStream,
        touches: &[Touch],
        product: bool,
    ) -> bool {
        self.operations += 1;
        let stream = self.stream(stream);
        if let Some(graph) = self.captured_graph() {
            graph
                .touches
                .extend(touches.iter().filter(|t| t.device >= 0).cloned());
            if product && !graph.workspaces.contains(&stream) {
                graph.workspaces.push(stream);
            }
            return false;
        }
        self.put(touches, site);
        // If nothing was captured, only its own stream uses the workspace.
        if product && self.workspaces.contains_key(&stream) {
            self.use_workspaces(&[stream]);
        }
        self.push(Kind::kernel(stream), site);
        self.launched_at(site, stream, true);
        self.found()
    }

    /// The engine passes gradients to work on this stream. For gradients of another stream it records this one,
    /// without an operator that would show it. It does so for nothing else that backward uses.
    pub fn passed_by_engine(&mut self, site: Site, stream: RawStream, touches: &[Touch]) {
        let id = self.stream(stream);
        for touch in touches.iter().filter(|touch| touch.device >= 0) {
            if self.space.is_away(touch.ptr, id) {
                self.note_stream(site, touch, stream);
            }
        }
    }

    /// Reports a collective: it runs on the stream of its group, ordered after the work submitted to the current
    /// stream, until its event is waited for.
    pub fn collective(
        &mut self,
        site: Site,
        (current, group): (RawStream, RawStream),
        touches: &[Touch],
        event: u64,
    ) -> bool {
        let (stream, source) = (self.stream(group), self.stream(current));
        if !self.is_capturing() {
            self.tell(Kind::WaitStream { stream, source }, site);
        }
        let found = self.operator(site, group, touches);
        // PyTorch keeps the tensors alive, or records the stream for them, until the collective is complete.
        for touch in touches.iter().filter(|touch| touch.device >= 0) {
            self.record_stream(site, touch, group);
        }
        self.event_record(site, event, group);
        found
    }

    /// Reports a copy between the host and a device.
    pub fn copy(
        &mut self,
        site: Site,
        stream: RawStream,
        (from, to): (Memory, Memory),
        (read, written): (&Touch, &Touch),
        host: Option<(BufferId, u64)>,
    ) -> bool {
        self.operations += 1;
        if let Some(graph) = self.captured_graph() {
            let both = [read, written].into_iter().filter(|t| t.device >= 0);
            graph.touches.extend(both.cloned());
            return false;
        }
        let stream = self.stream(stream);
        self.put(&[read.clone(), written.clone()], site);
        if let Some((buffer, base)) = host {
            let touch = if read.device < 0 { read } else { written };
            if !add(&mut self.op.accesses, touch, buffer, base) {
                self.spanned.insert(buffer);
            }
        }
        self.push(Kind::Copy { stream, from, to }, site);
        self.launched_at(site, stream, false);
        self.found()
    }

    /// Reports a copy from one device to another: it runs on the source's stream, and both streams wait for each
    /// other before and after it.
    pub fn copy_across(
        &mut self,
        site: Site,
        (source, target): (RawStream, RawStream),
        touches: &[Touch],
    ) -> bool {
        let (from, to) = (self.stream(source), self.stream(target));
        if !self.is_capturing() {
            self.tell(
                Kind::WaitStream {
                    stream: from,
                    source: to,
                },
                site,
            );
        }
        let found = self.operator(site, source, touches);
        if !self.is_capturing() {
            self.tell(
                Kind::WaitStream {
                    stream: to,
                    source: from,
                },
                site,
            );
        }
        found
    }

    /// Reports that the host itself reads or writes memory that copies use.
    pub fn host_access(&mut self, site: Site, touch: &Touch) -> bool {
        let Some((buffer, base)) = self.host.locate(touch.ptr) else {
            return false;
        };
        if self.is_capturing() {
            return false;
        }
        self.operations += 1;
        self.noticed.idle.host_used(buffer, touch.write);
        self.op.accesses.clear();
        if !add(&mut self.op.accesses, touch, buffer, base) {
            self.spanned.insert(buffer);
        }
        self.note(std::slice::from_ref(touch));
        self.host_stored(touch);
        self.push(Kind::HostAccess, site);
        self.found()
    }

    /// Reports that the life of these storages as pinned memory ends.
    pub fn end_pinned(&mut self, site: Site, all: Vec<(BufferId, u64)>) -> bool {
        self.op.accesses.clear();
        let whole = |(buffer, end)| Access {
            buffer,
            start: 0,
            end,
            mode: Mode::Write,
        };
        self.op.accesses.extend(all.into_iter().map(whole));
        self.push(Kind::FreePinned, site);
        self.found()
    }

    /// Registers a piece of host memory at its first use in an asynchronous copy.
    pub fn host_buffer(&mut self, start: u64, end: u64, memory: Memory, storage: (u64, u64)) {
        self.host.made += 1;
        let id = self.space.next_buffer();
        let bytes = end.saturating_sub(start);
        self.sink.take(&Record::buffer(memory, bytes, None, ""));
        self.host.insert(start, end, id, memory, storage);
    }

    /// Reports that the allocator returned memory, whose size is not known.
    pub fn allocated(&mut self, ptr: u64, stream: RawStream) {
        let site = Site::default();
        self.freed(ptr, site);
        self.notice_allocated(ptr);
        let home = self.stream(stream);
        self.space.allocated(ptr, home, stream.device);
    }

    /// Reports that the last reference to some memory was dropped.
    pub fn freed(&mut self, ptr: u64, site: Site) {
        let in_capture = self.is_capturing();
        self.notice_freed(ptr);
        if let Some(buffer) = self.space.freed(ptr, !in_capture)
            && !in_capture
        {
            self.tell(Kind::Free { buffer }, site);
        }
    }

    /// `tensor.record_stream(stream)`.
    pub fn record_stream(&mut self, site: Site, touch: &Touch, stream: RawStream) {
        self.note_stream(site, touch, stream);
        self.noted_by_program(site, touch.ptr, stream);
    }

    /// Reports that the allocator records a stream, which the free of some memory waits for.
    fn note_stream(&mut self, site: Site, touch: &Touch, stream: RawStream) {
        if self.is_capturing() {
            return;
        }
        let stream = self.stream(stream);
        let mut firsts = std::mem::take(&mut self.space.firsts);
        let noted = self.space.noted(touch.ptr, touch.end, stream, &mut firsts);
        self.settle(&mut firsts, site);
        self.space.firsts = firsts;
        if let Some(buffer) = noted {
            self.tell(Kind::RecordStream { buffer, stream }, site);
        }
    }

    // -------------------------------------------------------------- what is found

    /// Whether the last operation raced in a way that was not yet known.
    pub(super) fn found(&mut self) -> bool {
        std::mem::replace(&mut self.seen, self.told) < self.told
    }

    /// The ID of the last operation.
    pub fn last(&self) -> OpId {
        OpId(self.next.saturating_sub(1))
    }

    /// The range of addresses that the last operation touched of a buffer.
    pub fn last_touched(&self, buffer: BufferId) -> Option<(u64, u64)> {
        let some = self.op.accesses.iter().filter(|a| a.buffer == buffer);
        let base = self
            .space
            .base_of(buffer)
            .or_else(|| self.host.base_of(buffer))?;
        let bounds = some.map(|a| (base + a.start, base + a.end));
        bounds.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// Whether a race that the checker reports is real. For tensors with many gaps, it received the span; such a race
    /// counts only if the touched bytes are known to overlap. If an argument may touch its bytes, but not certainly,
    /// they need not overlap.
    pub fn is_real(&self, first: OpId, second: OpId, buffer: Option<BufferId>) -> Real {
        let is_in = |set: &HashSet<BufferId>| buffer.is_some_and(|buffer| set.contains(&buffer));
        let unsure = is_in(&self.unsure);
        if !unsure && !is_in(&self.spanned) {
            return Real::Yes;
        }
        let find = |op| self.notes.iter().rev().find(|note| note.op == op);
        let (Some(a), Some(b)) = (find(first), find(second)) else {
            return if unsure { Real::May(None) } else { Real::No };
        };
        let mut real = Real::No;
        for one in &a.touches {
            for two in b.touches.iter().filter(|two| two.write || one.write) {
                // A part that is not empty is a part of what the other touches in full.
                if (one.any && two.covers(one)) || (two.any && one.covers(two)) {
                    return Real::Yes;
                }
                if meet(one, two) == Some(true) {
                    match two
                        .may
                        .map(|name| (name, second))
                        .or(one.may.map(|name| (name, first)))
                    {
                        Some(may) => real = Real::May(Some(may)),
                        None => return Real::Yes,
                    }
                }
            }
        }
        real
    }
}

/// Declares the thread and the buffers that exist from the start.
fn begin(sink: &mut dyn Sink) {
    sink.take(&Record::thread("host"));
    sink.take(&Record::buffer(Memory::Device, ALL_BYTES, None, ""));
    sink.take(&Record::buffer(Memory::Device, 1, None, ""));
}
