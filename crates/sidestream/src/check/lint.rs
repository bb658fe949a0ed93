//! Remarks on calls that are correct but slow or fragile.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use crate::op::{Class, DeviceId, Kind, Memory, Op, OpId, SiteId, StreamId, StreamKind, ThreadId};
use crate::order::{Chain, Clocks, Epoch, Order, Runs};

/// A remark on one operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lint {
    /// The operation that the remark is about.
    pub op: OpId,
    /// The kind of remark.
    pub code: LintCode,
    /// The call site of the operation, if it is known.
    pub site: Option<SiteId>,
}

/// The kind of a [`Lint`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LintCode {
    /// An asynchronous copy of pageable memory may block the host and does not overlap (R22).
    UnpinnedAsyncCopy,
    /// Work in the legacy stream makes one blocking stream wait for another (R60).
    DefaultStreamSerialization,
    /// The event has no record yet, so the wait does nothing (R8).
    WaitOnUnrecordedEvent,
    /// The host blocks in a loop; reported the third time at one call site that work was submitted since it last blocked there.
    SyncInLoop,
    /// A kernel launch on a stream of a device that is not the current one: fails before CUDA 13 (R37).
    ForeignDeviceLaunch,
    /// The program took more streams from the pool than it holds, so some of them are the same stream (R51).
    StreamPoolAlias,
}

impl LintCode {
    /// Returns the name used in reports.
    pub fn code(self) -> &'static str {
        match self {
            LintCode::UnpinnedAsyncCopy => "UNPINNED_ASYNC_COPY",
            LintCode::DefaultStreamSerialization => "DEFAULT_STREAM_SERIALIZATION",
            LintCode::WaitOnUnrecordedEvent => "WAIT_ON_UNRECORDED_EVENT",
            LintCode::SyncInLoop => "SYNC_IN_LOOP",
            LintCode::ForeignDeviceLaunch => "FOREIGN_DEVICE_LAUNCH",
            LintCode::StreamPoolAlias => "STREAM_POOL_ALIAS",
        }
    }
}

/// The remarks so far, and the state that later ones depend on.
#[derive(Debug, Default)]
pub(super) struct Lints {
    pub list: Vec<Lint>,
    /// The remarks known so far, if only the first remark of a kind at each call site is kept: keeping all would make
    /// the memory of a long check grow with each remark.
    pub once: Option<HashSet<(SiteId, LintCode)>>,
    /// The number of pieces of work submitted so far.
    submitted: u64,
    /// By call site: the number of times that the host blocked there with work submitted since the time before, and
    /// `submitted` at the last.
    waits: HashMap<SiteId, (u32, u64)>,
    /// By blocking stream: the epoch of its last work.
    worked: Vec<Option<Epoch>>,
    serial: HashMap<DeviceId, Serial>,
    /// By thread and device: the streams seen pending at the thread's last scan.
    looked: HashMap<(ThreadId, DeviceId), Looked>,
}

/// At most two blocking streams with work that a thread does not know to be complete. Any other stream with
/// such work acted after the first `calls` calls.
#[derive(Debug, Default)]
struct Looked {
    pending: SmallVec<[StreamId; 2]>,
    calls: u64,
}

/// The work in one legacy stream after which no second blocking stream has worked yet.
#[derive(Debug, Default)]
struct Serial {
    /// The operations after which no blocking stream has worked yet. Each has the stream that it waits for, or `None`
    /// if it waits for several.
    fresh: Vec<(Place, Option<StreamId>)>,
    /// Work after which only `stream` has worked; `stream` is also the one that it waits for.
    waiting: Vec<Place>,
    stream: Option<StreamId>,
}

/// An operation and its call site.
#[derive(Clone, Copy, Debug)]
struct Place {
    op: OpId,
    site: SiteId,
}

impl Place {
    fn of(op: &Op) -> Place {
        let (op, site) = (op.id, op.site);
        Place { op, site }
    }
}

impl Lints {
    /// Examines a call that succeeded, before the clocks are updated for it.
    #[inline]
    pub(super) fn before(&mut self, op: &Op, order: &mut Order, clocks: &Clocks) {
        if let Kind::Kernel { stream, .. } | Kind::DependentKernel { stream, .. } = op.kind
            && order.device_of(stream) != order.current_device(op.thread)
        {
            self.add(op, LintCode::ForeignDeviceLaunch);
        }
        if let Kind::Copy { from, to, .. } = op.kind
            && (from == Memory::Pageable || to == Memory::Pageable)
        {
            self.add(op, LintCode::UnpinnedAsyncCopy);
        }
        if let Kind::Wait { event, .. } = op.kind
            && !order.is_recorded(event)
        {
            self.add(op, LintCode::WaitOnUnrecordedEvent);
        }
        let class = op.kind.class();
        if class.is_work()
            && let Some(stream) = order.work_stream(op)
            && order.kind_of(stream) == StreamKind::Legacy
        {
            self.legacy_work(op, order.device_of(stream), order, clocks);
        }
        if let Class::Sync(_) = class {
            let (waits, at_last) = self.waits.entry(op.site).or_default();
            // A loop that only collects what was queued ahead of it is no reason for a remark.
            if *at_last < self.submitted {
                *at_last = self.submitted;
                *waits = waits.saturating_add(1);
                if *waits == 3 {
                    self.add(op, LintCode::SyncInLoop);
                }
            }
        }
    }

    /// Examines the work of a call, after the clocks were updated for it.
    #[inline]
    pub(super) fn after(&mut self, op: &Op, runs: Runs, epoch: Epoch, chain: Chain, order: &Order) {
        let Chain::Stream(stream) = chain else {
            return;
        };
        if runs == Runs::Now && op.kind.class().is_work() {
            self.submitted += 1;
            if order.kind_of(stream).is_blocking() {
                self.blocking_work(stream, epoch, order);
            }
        }
    }

    /// Records that a program has taken `asked` streams from a pool of `size` streams.
    pub(super) fn pool(&mut self, op: OpId, asked: u32, size: u32) {
        if asked > size {
            let code = LintCode::StreamPoolAlias;
            let site = None;
            self.list.push(Lint { op, code, site });
        }
    }

    #[cold]
    fn add(&mut self, op: &Op, code: LintCode) {
        self.add_at(Place::of(op), code);
    }

    fn add_at(&mut self, place: Place, code: LintCode) {
        let fresh = |said: &mut HashSet<_>| said.insert((place.site, code));
        if self.once.as_mut().is_none_or(fresh) {
            let (op, site) = (place.op, Some(place.site));
            self.list.push(Lint { op, code, site });
        }
    }

    /// R60: finds the blocking streams that this work in the legacy stream orders.
    fn legacy_work(&mut self, op: &Op, device: DeviceId, order: &Order, clocks: &Clocks) {
        let thread = Chain::Thread(op.thread);
        let worked = &self.worked;
        let is_pending = |stream: StreamId| {
            let worked = worked.get(stream.0 as usize).copied().flatten();
            worked.is_some_and(|epoch| !clocks.ordered(epoch, thread))
        };
        let mut fresh = Looked::default();
        let looked = if order.has_many_streams(device) {
            self.looked.entry((op.thread, device)).or_default()
        } else {
            &mut fresh
        };
        looked.pending.retain(|stream| is_pending(*stream));
        let mut acted = order.acted_since(device, looked.calls);
        // Two streams are enough to decide.
        while looked.pending.len() < 2 {
            let Some((stream, kind)) = acted.next() else {
                looked.calls = order.calls_before();
                break;
            };
            if kind.is_blocking() && !looked.pending.contains(&stream) && is_pending(stream) {
                looked.pending.push(stream);
            }
        }
        if let Some(&one) = looked.pending.first() {
            let only = (looked.pending.len() == 1).then_some(one);
            let serial = self.serial.entry(device).or_default();
            let fresh = &mut serial.fresh;
            let is_known = |&(at, to): &(Place, _)| at.site == op.site && to == only;
            if self.once.is_none() || !fresh.iter().any(is_known) {
                fresh.push((Place::of(op), only));
            }
        }
    }

    fn blocking_work(&mut self, stream: StreamId, epoch: Epoch, order: &Order) {
        let index = stream.0 as usize;
        if self.worked.len() <= index {
            self.worked.resize(index + 1, None);
        }
        self.worked[index] = Some(epoch);
        let Some(serial) = self.serial.get_mut(&order.device_of(stream)) else {
            return;
        };
        let code = LintCode::DefaultStreamSerialization;
        let mut serialized = Vec::new();
        if serial.stream != Some(stream) {
            serialized.append(&mut serial.waiting);
            serial.stream = Some(stream);
        }
        for (place, only) in serial.fresh.drain(..) {
            let is_known = |at: &Place| at.site == place.site;
            if only != Some(stream) {
                serialized.push(place);
            } else if self.once.is_none() || !serial.waiting.iter().any(is_known) {
                serial.waiting.push(place);
            }
        }
        for place in serialized {
            self.add_at(place, code);
        }
    }
}
