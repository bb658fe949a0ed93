//! Finds waits that no access needs: without them all conflicting accesses of the program would still be ordered.
//!
//! A wait of a stream for an event orders the stream after steps of other chains; the steps that it was not ordered
//! after before are the *news* of the wait. A pair of accesses to a common byte, one of them a write, needs the wait if
//! the first is among the news, the second is ordered after the wait, and the two are of different chains. A wait is
//! tracked from its call until the host itself is ordered after all of the news, by a wait for the stream of the event:
//! whatever is called later is ordered after that, with the wait or without.
//!
//! # Why all waits that are not needed may be removed at once
//! Remove all of them, and suppose that two conflicting accesses `a` and `b` are then unordered. Of the path of edges that
//! ordered them, consider the last removed wait, on stream `s`. If `a` was among its news, the pair needed it, unless the
//! host was ordered after `a` meanwhile: then `b` is ordered by that, through an earlier path of edges. If `a` was not among
//! the news, `s` was ordered after `a` before the wait, by an earlier path of edges, too. So each removed wait leads to an
//! earlier one, and there is a first. For a pair that [`Shadow`](super::shadow::Shadow) does not compare, there is an access
//! in between with which both are compared, and the argument applies to each half.
//!
//! Accesses that were not recorded may need a wait all the same: kernels that were not declared, and host reads after a copy
//! to the host, for which the host waits later. So a wait with host memory among its news counts as needed.

use std::collections::{HashMap, VecDeque};

use smallvec::SmallVec;

use super::Recorded;
use crate::op::{Class, Kind, Op, SiteId, StreamId};
use crate::order::{After, Chain, Clocks, Epoch, Known, Order, Performs, Step};

/// The largest number of waits tracked at a time. Older ones stay undecided.
const MOST: usize = 128;

/// The waits of one call site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waited {
    /// The call site.
    pub site: SiteId,
    /// The stream that waited last.
    pub stream: StreamId,
    /// The stream that was waited for.
    pub source: StreamId,
    /// The number of waits.
    pub count: u64,
    /// The number of waits that an access needed or may have needed.
    pub needed: u64,
    /// The number of waits that no access needed, with work on both sides.
    pub not_needed: u64,
}

/// The waits that are tracked.
#[derive(Debug, Default)]
pub(super) struct Waits {
    open: VecDeque<Open>,
    sites: HashMap<SiteId, Waited>,
    /// By chain: the last step that did work.
    worked: Vec<u32>,
    /// By chain: the last step whose work touched host memory or is not recorded in detail.
    with_host: Vec<u32>,
    /// Set once there are more chains than can be tracked.
    is_off: bool,
    known: [Vec<u32>; 2],
}

/// A wait that is tracked.
#[derive(Debug)]
struct Open {
    site: SiteId,
    /// The step of the wait.
    step: Epoch,
    /// The stream that was waited for.
    source: StreamId,
    /// The step of the event's record on that stream.
    record: Epoch,
    /// By chain: the last step that is not news, and the last one that is.
    news: SmallVec<[(u32, u32, u32); 4]>,
    /// Whether the waiting stream has done work since the wait.
    worked: bool,
}

impl Waits {
    /// Processes a step before the clocks are updated: for a wait, saves the steps that its stream is ordered after
    /// without the wait.
    #[inline]
    pub(super) fn before_step(&mut self, op: &Op, step: &Step, clocks: &Clocks) {
        if !self.is_off && matches!(op.kind, Kind::Wait { .. }) {
            self.before(op, step, clocks);
        }
    }

    /// Processes the step of the last [`Waits::before_step`] after the clocks were updated.
    pub(super) fn after_step(
        &mut self,
        op: &Op,
        step: &Step,
        epoch: Epoch,
        clocks: &Clocks,
        order: &Order,
        records: &[Option<Recorded>],
    ) {
        if self.is_off {
            return;
        }
        if let Chain::Thread(_) = step.chain {
            self.host_waits(step, clocks, order);
        }
        if let Kind::Wait { stream, event } = op.kind
            && let Some(record) = records.get(event.0 as usize).copied().flatten()
        {
            self.wait(op, stream, (record.stream, record.epoch), epoch, clocks);
        }
        self.work(op, step, epoch);
    }

    fn before(&mut self, op: &Op, step: &Step, clocks: &Clocks) {
        let [known, thread] = &mut self.known;
        let near = clocks.copy_known(step.chain, known);
        self.is_off |= !(near & clocks.copy_known(Chain::Thread(op.thread), thread));
        if self.is_off {
            self.open.clear();
        }
        if known.len() < thread.len() {
            known.resize(thread.len(), 0);
        }
        for (mine, theirs) in known.iter_mut().zip(&*thread) {
            *mine = (*mine).max(*theirs);
        }
    }

    fn wait(
        &mut self,
        op: &Op,
        stream: StreamId,
        of: (StreamId, Epoch),
        step: Epoch,
        clocks: &Clocks,
    ) {
        let (source, record) = of;
        let [before, after] = &mut self.known;
        clocks.copy_known(Chain::Stream(stream), after);
        let old = |chain: usize| before.get(chain).copied().unwrap_or(0);
        let news: SmallVec<[_; 4]> = after
            .iter()
            .enumerate()
            .filter(|&(chain, &to)| chain as u32 != step.chain && to > old(chain))
            .map(|(chain, &to)| (chain as u32, old(chain), to))
            .collect();
        let has = |last: &[u32]| {
            let some = |&(chain, from, _): &(u32, u32, u32)| {
                last.get(chain as usize).is_some_and(|&at| at > from)
            };
            news.iter().any(some)
        };
        let place = self.sites.entry(op.site).or_insert(Waited {
            site: op.site,
            stream,
            source,
            count: 0,
            needed: 0,
            not_needed: 0,
        });
        (place.stream, place.source) = (stream, source);
        place.count += 1;
        if has(&self.with_host) {
            place.needed += 1;
        } else if has(&self.worked) {
            if self.open.len() == MOST {
                self.open.pop_front();
            }
            let site = op.site;
            let open = Open {
                site,
                step,
                source,
                record,
                news,
                worked: false,
            };
            self.open.push_back(open);
        }
    }

    /// Whether any wait is tracked, so that [`Waits::met`] must be called.
    #[inline]
    pub(super) fn is_following(&self) -> bool {
        !self.open.is_empty()
    }

    fn work(&mut self, op: &Op, step: &Step, epoch: Epoch) {
        if step.performs == Performs::Nothing {
            return;
        }
        let chain = epoch.chain as usize;
        let unseen = match op.kind.class() {
            Class::Copy { from, to, .. } => from.is_host() || to.is_host(),
            Class::HostFunc | Class::Graph => true,
            Class::Kernel
            | Class::Memset { .. }
            | Class::MallocAsync
            | Class::FreeAsync
            | Class::Record
            | Class::Wait
            | Class::Sync(_)
            | Class::Query(_)
            | Class::Malloc
            | Class::Free
            | Class::Allocator
            | Class::Make
            | Class::HostAccess
            | Class::Told
            | Class::Host => false,
        };
        for last in [
            Some(&mut self.worked),
            unseen.then_some(&mut self.with_host),
        ]
        .into_iter()
        .flatten()
        {
            if last.len() <= chain {
                last.resize(chain + 1, 0);
            }
            last[chain] = epoch.tick;
        }
        for open in self
            .open
            .iter_mut()
            .filter(|open| open.step.chain == epoch.chain)
        {
            open.worked = true;
        }
    }

    /// Records a conflict of an earlier access with one that is ordered after `known`.
    pub(super) fn met(&mut self, first: Epoch, known: &Known<'_>) {
        let sites = &mut self.sites;
        self.open.retain(|open| {
            let is_news = |&(chain, from, to): &(u32, u32, u32)| {
                chain == first.chain && from < first.tick && first.tick <= to
            };
            let needed = open.news.iter().any(is_news) && known.has(open.step);
            if needed && let Some(place) = sites.get_mut(&open.site) {
                place.needed += 1;
            }
            !needed
        });
    }

    /// Processes a step of a host thread: decides the waits that no later access can need.
    fn host_waits(&mut self, step: &Step, clocks: &Clocks, order: &Order) {
        for edge in &step.edges {
            let learned = |open: &Open| match edge.after {
                After::Chain(chain) => chain == Chain::Stream(open.source),
                After::Record(record) => clocks
                    .step_of(record)
                    .is_some_and(|at| at.chain == open.record.chain && at.tick >= open.record.tick),
                After::Device(device) => order.device_of(open.source) == device,
                After::Blocking(_) => false,
            };
            self.close(learned);
        }
    }

    /// Decides all waits: the program makes no further calls.
    pub(super) fn over(&mut self) {
        self.close(|_| true);
    }

    fn close(&mut self, learned: impl Fn(&Open) -> bool) {
        let sites = &mut self.sites;
        self.open.retain(|open| {
            let closed = learned(open);
            if closed
                && open.worked
                && let Some(place) = sites.get_mut(&open.site)
            {
                place.not_needed += 1;
            }
            !closed
        });
    }

    /// Returns the call sites whose waits no access needed, as far as they could be tracked.
    pub(super) fn not_needed(&self) -> Vec<Waited> {
        let some = self
            .sites
            .values()
            .filter(|place| !self.is_off && place.needed == 0 && place.not_needed > 0);
        let mut found: Vec<Waited> = some.copied().collect();
        found.sort_by_key(|place| place.site);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Checker, Report};
    use super::*;
    use crate::op::*;

    const STREAMS: u32 = 3;
    const EVENTS: u32 = 3;
    const BUFFERS: u32 = 4;

    /// Returns a random program in which each call has its own call site.
    fn drawn(seed: u64) -> Vec<Op> {
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let mut draw = move |below: u32| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((state >> 33) % u64::from(below)) as u32
        };
        let accesses = |draw: &mut dyn FnMut(u32) -> u32| {
            let access = Access {
                buffer: BufferId(draw(BUFFERS)),
                start: 0,
                end: 64,
                mode: match draw(5) {
                    0 | 1 => Mode::Read,
                    2 | 3 => Mode::Write,
                    _ => Mode::Atomic,
                },
            };
            std::iter::once(access).collect::<Accesses>()
        };
        let ops = (0..60).map(|id| {
            let (stream, event) = (StreamId(draw(STREAMS)), EventId(draw(EVENTS)));
            let (kind, accesses) = match draw(20) {
                0..=7 => (Kind::kernel(stream), accesses(&mut draw)),
                8..=11 => (Kind::Record { event, stream }, Accesses::new()),
                12..=16 => (Kind::Wait { stream, event }, Accesses::new()),
                17 => (Kind::SyncStream { stream }, Accesses::new()),
                18 => (Kind::SyncEvent { event }, Accesses::new()),
                _ => (Kind::HostAccess, accesses(&mut draw)),
            };
            Op {
                id: OpId(id),
                thread: ThreadId(0),
                site: SiteId(id),
                kind,
                accesses,
            }
        });
        ops.collect()
    }

    /// Returns the report, and the waits that no access needs.
    fn checked(ops: &[Op], ended: bool) -> (Report, Vec<Waited>) {
        let mut checker = Checker::new();
        checker.follow_waits();
        for _ in 0..STREAMS {
            checker
                .order_mut()
                .add_stream(StreamKind::NonBlocking, DeviceId(0));
        }
        for _ in 0..EVENTS {
            checker.order_mut().add_event(false, Some(DeviceId(0)));
        }
        for _ in 0..BUFFERS {
            checker.add_buffer(Memory::Pinned, 64, None);
        }
        for op in ops {
            checker.push(op).expect("a program without refused calls");
        }
        (checker.report(), checker.waits_not_needed(ended))
    }

    #[test]
    fn without_the_waits_that_no_access_needs_nothing_more_is_unordered() {
        let (mut named, mut waits) = (0, 0);
        for seed in 0..3000 {
            let ops = drawn(seed);
            let (with, unneeded) = checked(&ops, true);
            let left: Vec<Op> = ops
                .iter()
                .filter(|op| unneeded.iter().all(|waited| waited.site != op.site))
                .cloned()
                .collect();
            let (without, _) = checked(&left, true);
            let pairs = |report: &Report| {
                let pairs = report.races.iter();
                let pairs = pairs.map(|race| (race.kind, race.first, race.second, race.buffer));
                pairs.collect::<Vec<_>>()
            };
            assert_eq!(
                pairs(&with),
                pairs(&without),
                "seed {seed}: without {unneeded:?}"
            );
            named += unneeded.len();
            waits += ops
                .iter()
                .filter(|op| matches!(op.kind, Kind::Wait { .. }))
                .count();
        }
        // Guards against a vacuous test: enough waits must be found.
        assert!(named > 500 && waits > 10 * named / 2, "{named} of {waits}");
    }

    #[test]
    fn a_wait_counts_once_the_host_has_waited_for_its_source_and_not_before() {
        let stream = |id| StreamId(id);
        let op = |id, kind, buffer| {
            let access = |buffer| Access {
                buffer: BufferId(buffer),
                start: 0,
                end: 64,
                mode: Mode::Write,
            };
            let accesses = Option::<u32>::into_iter(buffer).map(access).collect();
            Op {
                id: OpId(id),
                thread: ThreadId(0),
                site: SiteId(id),
                kind,
                accesses,
            }
        };
        let kernel = |id| Kind::kernel(stream(id));
        let event = EventId(0);
        let mut ops = vec![
            op(0, kernel(0), Some(0)),
            op(
                1,
                Kind::Record {
                    event,
                    stream: stream(0),
                },
                None,
            ),
            op(
                2,
                Kind::Wait {
                    stream: stream(1),
                    event,
                },
                None,
            ),
            op(3, kernel(1), Some(1)),
            // A host wait for the waiting stream does not decide that stream's wait.
            op(4, Kind::SyncStream { stream: stream(1) }, None),
        ];
        assert_eq!(checked(&ops, false).1, []);
        assert_eq!(checked(&ops, true).1.len(), 1);
        ops.push(op(5, Kind::SyncStream { stream: stream(0) }, None));
        assert_eq!(checked(&ops, false).1.len(), 1);
        // Whatever is called after the host's wait is ordered by that wait.
        ops.push(op(6, kernel(1), Some(0)));
        assert_eq!(checked(&ops, false).1.len(), 1);
        ops.swap(5, 6);
        assert_eq!(checked(&ops, true).1, []);
    }
}
