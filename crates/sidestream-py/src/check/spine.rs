//! The spine of the check: what PyTorch does becomes an operation, the checker gets it, and the topics hear of it.
//!
//! # The algorithm
//!
//! 1. **A call touches bytes.** An operator's schema says which arguments it reads and writes (`plan`), and a tensor's
//!    bytes are a range of addresses, with rows if it has gaps (`tensor`, `touch`). Kernels that are not operators are
//!    described by Python (`launches`).
//! 2. **Bytes belong to a tenancy.** PyTorch's allocator says where one starts, its uses say how far it reaches, and at
//!    its first use it is declared to the checker as a buffer, after all earlier tenants of its bytes (`memory`). A range
//!    of addresses is thereby an access of a buffer ([`Core::put`]).
//! 3. **A call becomes an operation**, with a number, a place in the program (`stack`) and its accesses ([`Core::push`]).
//!    Copies, records, waits, allocations and frees are operations, too (`copies`, `events`, and below).
//! 4. **Clocks order operations.** The checker applies CUDA's rules to each operation (`sidestream::order`) and so keeps a
//!    clock for each stream and for the host: how far it is ordered after each other one. It compares the operation's
//!    accesses with the last ones to the same bytes: two that conflict and that no clock orders are a race. Nothing of
//!    this is here.
//! 5. **The topics hear of the operation** ([`Core::hear`]): `threads`, whether it conflicts with one of another thread
//!    to which nothing was handed over; `remarks`, `idle` and `held`, whether it deserves a remark.
//! 6. **A new race is described** while its tensors and names are there ([`Core::found`], `report`), and raised if that
//!    was asked for.
//!
//! [`Core::operator`] is all of it for an operator. While a graph is captured nothing runs: its calls' touches are kept,
//! and are those of one operation at each replay (`graphs`).
//!
//! # Topics
//!
//! Each is a file with a type that holds its state: streams and their names, events and waits, graphs and workspaces,
//! tenancies and host memory, the host's own accesses (`host`), backward passes, threads, remarks. The spine judges
//! nothing.
//!
//! For the checker, all host threads are one, so any observed order between them is taken as guaranteed, and no race
//! is reported that a lock prevents. What only the timing of two threads orders is found separately, in `threads`.

use indexmap::IndexSet;
use sidestream::check::{Findings, OnRace, live};
use sidestream::log::{Record, Sink};
use sidestream::op::{
    Access, Accesses, BufferId, Kind, Memory, Op, OpId, SiteId, StreamId, ThreadId,
};

use super::events::Events;
use super::graphs::Graphs;
use super::memory::{First, HostMemory, Space};
use super::reduce::Told;
use super::remarks::Noticed;
use super::streams::{RawStream, Streams};
use super::threads::{Deed, Threads};
use super::touch::{Notes, Real, Touch};

/// The one thread that represents all host threads.
const HOST: ThreadId = ThreadId(0);
/// The size of the buffer that covers every address.
const ALL_BYTES: u64 = 1 << 62;
/// The size of a tenancy before its real size is learned from its uses; no tenancy is this large.
const MOST_BYTES: u64 = 1 << 48;

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

/// The spine, with the checker that it feeds and the topics.
pub struct Core {
    pub findings: Findings,
    pub(super) feed: Feed,
    pub operations: u64,
    pub sites: IndexSet<Site>,
    pub streams: Streams,
    pub(super) events: Events,
    pub(super) graphs: Graphs,
    pub space: Space,
    pub host: HostMemory,
    pub notes: Notes,
    /// Absent while there is only one thread.
    pub threads: Option<Threads>,
    /// Observations for remarks, which are not races.
    pub noticed: Noticed,
}

/// What the checker gets, one operation after the other.
pub(super) struct Feed {
    pub(super) sink: Told,
    /// The last operation; the vector of its accesses is reused.
    pub(super) op: Op,
    pub(super) next: u32,
    /// The number of races found so far, and at the last call of [`Core::found`].
    races: usize,
    seen: usize,
}

// -------------------------------------------------------------- the algorithm

impl Core {
    /// Reports an operator that launches kernels; cuBLAS computes a matrix product, and needs a workspace. Returns whether
    /// something was found.
    pub fn operator(
        &mut self,
        site: Site,
        stream: RawStream,
        touches: &[Touch],
        is_product: bool,
    ) -> bool {
        self.operations += 1;
        let stream = self.stream(stream);
        if self.graphs.captured(touches, is_product.then_some(stream)) {
            return false;
        }
        self.put(touches, site);
        if is_product && self.graphs.are_shared(stream) {
            self.use_workspaces(&[stream]);
        }
        self.push(Kind::kernel(stream), site);
        self.found()
    }

    /// Makes accesses of what an operator touches on devices. Memory that is used for the first time gets its tenancy
    /// here.
    pub(super) fn put(&mut self, touches: &[Touch], site: Site) {
        let accesses = &mut self.feed.op.accesses;
        accesses.clear();
        for touch in touches.iter().filter(|touch| touch.device >= 0) {
            let (buffer, base) = self.space.locate(touch.ptr, touch.end);
            self.notes.add(accesses, touch, buffer, base);
        }
        self.settle(site);
        self.notes.note(OpId(self.feed.next), touches);
    }

    /// Reports an operation with the accesses that were put.
    pub(super) fn push(&mut self, kind: Kind, site: Site) {
        let feed = &mut self.feed;
        if feed.next >= u32::MAX - 1 {
            feed.sink.full();
            return;
        }
        let (number, is_new) = self.sites.insert_full(site);
        if is_new {
            feed.sink.take(&Record::site(""));
        }
        feed.op.id = OpId(feed.next);
        feed.op.site = SiteId(number as u32);
        feed.op.kind = kind;
        feed.next += 1;
        feed.sink.take(&Record::op(&feed.op));
        self.hear(site);
    }

    /// The topics hear of the operation that the checker has received.
    fn hear(&mut self, site: Site) {
        if self.threads.is_some() {
            self.heard_by_threads(site.thread);
        }
        let (races, remarks) = self.findings.found();
        self.feed.races = races;
        let op = &self.feed.op;
        self.noticed.hear(op, site, remarks, &self.findings);
    }

    /// Reports an operation without accesses. The last operation's accesses are kept for the report.
    pub(super) fn tell(&mut self, kind: Kind, site: Site) {
        let accesses = std::mem::take(&mut self.feed.op.accesses);
        self.push(kind, site);
        self.feed.op.accesses = accesses;
    }

    /// Reports the tenancies of which an operation is the first user.
    fn settle(&mut self, site: Site) {
        let mut firsts = std::mem::take(&mut self.space.firsts);
        for first in firsts.drain(..) {
            match first {
                First::Buffer(within) => {
                    let record = Record::buffer(Memory::Device, MOST_BYTES, Some(within), "");
                    self.feed.sink.take(&record);
                }
                First::Call(kind) => self.tell(kind, site),
            }
        }
        self.space.firsts = firsts;
    }

    /// Whether the last operation raced in a way that was not yet known.
    pub(super) fn found(&mut self) -> bool {
        std::mem::replace(&mut self.feed.seen, self.feed.races) < self.feed.races
    }

    /// Passes the operation to `threads`, with the thread that called it.
    #[cold]
    fn heard_by_threads(&mut self, thread: u32) {
        let Some(mut threads) = self.threads.take() else {
            return;
        };
        let own = |access: &Access| self.graphs.workspace_of(access.buffer).is_none();
        for (first, second, buffer) in threads.hear(&self.feed.op, thread, own) {
            if self.notes.is_real(first.op, second.op, Some(buffer)) != Real::No {
                let place = |deed: Deed| {
                    let site = self.site_of(deed.site);
                    (site.stack, site.name)
                };
                let bytes = self.last_touched(buffer);
                threads.keep((first, second), (place(first), place(second)), bytes);
            }
        }
        self.threads = Some(threads);
    }
}

// -------------------------------------------------------------- what PyTorch does

impl Core {
    /// Starts with nothing observed. The checker may use this much memory.
    pub fn new(memory_bytes: u64) -> Core {
        let (findings, mut sink) = live(OnRace::Report, memory_bytes);
        findings.follow_waits();
        begin(&mut *sink);
        let op = Op {
            id: OpId(0),
            thread: HOST,
            site: SiteId(0),
            kind: Kind::HostAccess,
            accesses: Accesses::new(),
        };
        Core {
            findings,
            feed: Feed {
                sink: Told(vec![sink]),
                op,
                next: 0,
                races: 0,
                seen: 0,
            },
            operations: 0,
            sites: IndexSet::new(),
            streams: Streams::default(),
            events: Events::default(),
            graphs: Graphs::default(),
            space: Space::new(BufferId(0), BufferId(1)),
            host: HostMemory::default(),
            notes: Notes::default(),
            threads: None,
            noticed: Noticed::default(),
        }
    }

    /// Adds a log, which receives the same records as the checker. Called before any operation.
    pub fn log_to(&mut self, mut log: Box<dyn Sink>) {
        begin(&mut *log);
        self.feed.sink.0.push(log);
    }

    /// The stream for a handle.
    pub fn stream(&mut self, stream: RawStream) -> StreamId {
        self.streams.of(stream, &mut self.feed.sink)
    }

    /// Reports that the allocator returned memory, whose size is not known.
    pub fn allocated(&mut self, ptr: u64, stream: RawStream) {
        self.freed(ptr, Site::default());
        self.noticed.held.allocated(ptr);
        let home = self.stream(stream);
        self.space.allocated(ptr, home, stream.device);
    }

    /// Reports that the last reference to some memory was dropped.
    pub fn freed(&mut self, ptr: u64, site: Site) {
        let in_capture = self.is_capturing();
        if let Some((start, end)) = self.space.bounds(ptr)
            && start == ptr
        {
            self.noticed.held.freed(start, end);
        }
        if let Some(buffer) = self.space.freed(ptr, !in_capture)
            && !in_capture
        {
            self.tell(Kind::Free { buffer }, site);
        }
    }

    /// `tensor.record_stream(stream)`.
    pub fn record_stream(&mut self, site: Site, touch: &Touch, stream: RawStream) {
        self.note_stream(site, touch, stream);
        if self.is_capturing() || site.waits_by_itself {
            return;
        }
        let id = self.stream(stream);
        if let Some((start, _)) = self.space.bounds(touch.ptr)
            && self.space.is_away(touch.ptr, id)
        {
            self.noticed.held.note(start, site, id);
        }
    }

    /// Reports that the allocator records a stream, which the free of some memory waits for.
    pub(super) fn note_stream(&mut self, site: Site, touch: &Touch, stream: RawStream) {
        if self.is_capturing() {
            return;
        }
        let stream = self.stream(stream);
        let noted = self.space.noted(touch.ptr, touch.end, stream);
        self.settle(site);
        if let Some(buffer) = noted {
            self.tell(Kind::RecordStream { buffer, stream }, site);
        }
    }
}

// -------------------------------------------------------------- what is asked

impl Core {
    /// Where an operation was called, by the index of its site.
    pub fn site_of(&self, site: SiteId) -> Site {
        let known = self.sites.get_index(site.0 as usize);
        known.copied().unwrap_or_default()
    }

    /// The ID of the last operation.
    pub fn last(&self) -> OpId {
        OpId(self.feed.next.saturating_sub(1))
    }

    /// The range of addresses that the last operation touched of a buffer.
    pub fn last_touched(&self, buffer: BufferId) -> Option<(u64, u64)> {
        let of_device = self.space.base_of(buffer);
        let base = of_device.or_else(|| self.host.base_of(buffer))?;
        let all = self.feed.op.accesses.iter();
        let bounds = all
            .filter(|access| access.buffer == buffer)
            .map(|access| (base + access.start, base + access.end));
        bounds.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

/// Declares the thread and the buffers that exist from the start.
fn begin(sink: &mut dyn Sink) {
    sink.take(&Record::thread("host"));
    sink.take(&Record::buffer(Memory::Device, ALL_BYTES, None, ""));
    sink.take(&Record::buffer(Memory::Device, 1, None, ""));
}
