//! Waits that no access needs: without them nothing that was called would be unordered.
//!
//! A wait of a stream for an event teaches the stream that some steps of other chains come first: its *news*. It is needed
//! by a pair of accesses to a common byte, one of them a write, if the first is among the news, the second stands behind the
//! wait, and the two are of different chains. A wait is followed from its call until the host has learned all of the news
//! by waiting for the stream of the event itself: whatever is called later stands behind that, with the wait or without.
//!
//! # Why all that are not needed may go at once
//! Take them all away, and suppose that two conflicting accesses `a` and `b` were unordered then. Of the chain of edges that
//! ordered them, look at the last wait that is gone, on stream `s`. If `a` was among its news, the pair needed it, unless the
//! host had learned of `a` meanwhile: then `b` is ordered by that, which is an earlier chain of edges. If `a` was not among
//! the news, `s` knew of `a` before the wait, by an earlier chain of edges, too. So each wait that is gone leads to an earlier
//! one, and there is a first. Of a pair that [`Shadow`](super::shadow::Shadow) does not compare, one access comes in between
//! with which both are compared, and the same holds for the two halves.
//!
//! What no call tells may need a wait all the same: kernels that nobody announced, and loads of the host behind a copy to it,
//! for which the host waits later. So where host memory is among the news, the wait is taken to be needed.

use std::collections::{HashMap, VecDeque};

use smallvec::SmallVec;

use super::Recorded;
use crate::op::{Class, Kind, Op, SiteId, StreamId};
use crate::order::{After, Chain, Clocks, Epoch, Known, Order, Performs, Step};

/// So many waits are followed at a time. Older ones stay undecided.
const MOST: usize = 128;

/// The waits of one call site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waited {
    /// Where they were called.
    pub site: SiteId,
    /// The stream that waited last.
    pub stream: StreamId,
    /// The stream that it waited for.
    pub source: StreamId,
    /// How many there were.
    pub count: u64,
    /// How many an access needed, or may have.
    pub needed: u64,
    /// How many no access needed, with work on both sides.
    pub not_needed: u64,
}

/// What is followed.
#[derive(Debug, Default)]
pub(super) struct Waits {
    open: VecDeque<Open>,
    sites: HashMap<SiteId, Waited>,
    /// By chain: the last step that did something, and the last that did so to memory of the host's or unseen.
    worked: Vec<u32>,
    with_host: Vec<u32>,
    /// More chains than can be followed.
    is_off: bool,
    known: [Vec<u32>; 2],
}

/// A wait that is followed.
#[derive(Debug)]
struct Open {
    site: SiteId,
    /// Its step.
    step: Epoch,
    /// The stream that it waited for, and the step there that it knows.
    source: StreamId,
    record: Epoch,
    /// By chain: the first step that is not news, and the last that is.
    news: SmallVec<[(u32, u32, u32); 4]>,
    /// Whether its stream has worked since.
    worked: bool,
}

impl Waits {
    /// A step, before the clocks know of it: of a wait, what is known without it.
    #[inline]
    pub(super) fn before_step(&mut self, op: &Op, step: &Step, clocks: &Clocks) {
        if !self.is_off && matches!(op.kind, Kind::Wait { .. }) {
            self.before(op, step, clocks);
        }
    }

    /// The same step, which the clocks took.
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

    /// Whether accesses have to be looked at.
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

    /// Two accesses conflict, and the later one stands where this is known.
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

    /// A step of the host's: which of the waits can nothing need from here on?
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

    /// Nothing more is called.
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

    /// The call sites whose waits no access needed, as far as they could be followed.
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

    /// A drawn program; each call is a site of its own.
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
                mode: if draw(2) == 0 {
                    Mode::Read
                } else {
                    Mode::Write
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

    /// What is found, and the waits that no access needs.
    fn checked(ops: &[Op], is_over: bool) -> (Report, Vec<Waited>) {
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
            checker.push(op).expect("nothing that CUDA refuses");
        }
        (checker.report(), checker.waits_not_needed(is_over))
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
        // A search that names none would find no fault.
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
            // That it waited for the stream that waits says nothing.
            op(4, Kind::SyncStream { stream: stream(1) }, None),
        ];
        assert_eq!(checked(&ops, false).1, []);
        assert_eq!(checked(&ops, true).1.len(), 1);
        ops.push(op(5, Kind::SyncStream { stream: stream(0) }, None));
        assert_eq!(checked(&ops, false).1.len(), 1);
        // What is called behind that is ordered by it.
        ops.push(op(6, kernel(1), Some(0)));
        assert_eq!(checked(&ops, false).1.len(), 1);
        ops.swap(5, 6);
        assert_eq!(checked(&ops, true).1, []);
    }
}
