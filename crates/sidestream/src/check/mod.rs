//! The race checker: finds accesses to common memory that nothing orders.
//!
//! A [`Checker`] reads operations in call order. Each goes through the rule book ([`crate::order`]), which
//! returns the ordering edges that CUDA guarantees; these update vector clocks. Every access is compared with the
//! last accesses to the same physical bytes. Nothing is executed and no device is needed.
//!
//! The checker reports a [`Race`] for two operations that touch a common byte, that the rules do not order, and of
//! which one writes, allocates or frees the byte; the race names a call that orders them. A pair that the rules do
//! order is never reported. `docs/guide/check.md` explains the kinds of races and remarks.
//!
//! ```
//! use sidestream::check::{Checker, Names};
//! use sidestream::op::*;
//!
//! let mut checker = Checker::new();
//! let [s1, s2] = [(); 2].map(|()| {
//!     checker.order_mut().add_stream(StreamKind::NonBlocking, DeviceId(0))
//! });
//! let buffer = checker.add_buffer(Memory::Device, 1024, None);
//! let kernel = |id, stream, mode| Op {
//!     id: OpId(id),
//!     thread: ThreadId(0),
//!     site: SiteId(id),
//!     kind: Kind::kernel(stream),
//!     accesses: [Access { buffer, start: 0, end: 1024, mode }].into_iter().collect(),
//! };
//! checker.push(&kernel(0, s1, Mode::Write))?;
//! checker.push(&kernel(1, s2, Mode::Read))?;
//! let report = checker.report();
//! assert_eq!(report.races[0].kind.code(), "RAW");
//! let fix = report.races[0].fix.text(&Names::default());
//! assert_eq!(fix, "wait_stream s=stream1 src=stream0 before 1");
//! # Ok::<(), sidestream::check::Refused>(())
//! ```

#![deny(clippy::wildcard_enum_match_arm)]

mod hazard;
mod lint;
mod live;
mod mend;
mod page;
mod ranges;
mod reads;
mod replay;
mod report;
mod run;
mod shadow;
mod spans;
mod trail;
mod unseen;
mod waits;

use std::collections::HashMap;

use crate::log::{Record, Within};
use crate::op::{
    BufferId, Class, EventId, Kind, Memory, Op, OpId, SiteId, SourceOrder, StreamId, ThreadId,
};
use crate::order::{
    Chain, Clocks, Early, Epoch, Force, Open, Order, Outside, Performs, Runs, Step, Steps,
};
use hazard::{Now, Use};
use lint::Lints;
use shadow::{Shadow, Unordered};
use spans::Spans;
use trail::Trails;
use unseen::Unseen;
use waits::Waits;

pub use hazard::{Doubt, RaceKind, Severity};
pub use lint::{Lint, LintCode};
pub use live::{Findings, LIVE_MEMORY_BYTES, OnRace, live};
pub use mend::Mend;
pub use page::{Listed, Listing, Page};
pub use replay::{Replay, replay};
pub use report::{Fix, HandedOn, Names, Race, Reach, Refused, Report, Verdict, counted, one_line};
pub use run::MEMORY_BYTES;
pub use spans::SpanId;
pub use waits::Waited;

/// The input of a check: calls as plain data, the ordering rules, and the log format.
#[doc(inline)]
pub use crate::{log, op, order};

/// Reads operations and finds accesses that nothing orders.
#[derive(Debug)]
pub struct Checker {
    order: Order,
    clocks: Clocks,
    steps: Steps,
    shadow: Shadow,
    trails: Trails,
    lints: Lints,
    spans: Spans,
    /// Set if waits are tracked, to find those that no access needs.
    waits: Option<Box<Waits>>,
    /// By event: its last record.
    records: Vec<Option<Recorded>>,
    /// By chain: its last kernel that starts after all before it.
    kernels: Vec<u32>,
    races: Races,
    error: Option<Refused>,
}

/// The races, and what their reports need.
#[derive(Debug, Default)]
struct Races {
    list: Vec<Race>,
    /// The index in `list` at which pairs of this key are counted.
    known: HashMap<Alike, usize>,
    /// The earlier accesses unordered with the current operation; the vector is reused.
    found: Vec<Unordered>,
    unseen: Unseen,
    /// Operations that may not make their accesses, in order.
    doubted: Vec<OpId>,
    /// By buffer: its allocation and free by the caching allocator.
    tenancies: Vec<Tenancy>,
}

/// The key of a race: pairs with equal keys are reported once. The last field is whether there is a doubt other than
/// [`Doubt::Waits`]: such a race must not hide one that is certain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Alike(RaceKind, Option<BufferId>, SiteId, SiteId, bool);

impl Alike {
    fn of(
        kind: RaceKind,
        buffer: Option<BufferId>,
        sites: (SiteId, SiteId),
        doubt: Option<Doubt>,
    ) -> Alike {
        let is_uncertain = doubt.is_some_and(|doubt| doubt != Doubt::Waits);
        Alike(kind, buffer, sites.0, sites.1, is_uncertain)
    }
}

#[derive(Clone, Copy, Debug)]
struct Recorded {
    epoch: Epoch,
    op: OpId,
    site: SiteId,
    stream: StreamId,
    span: Option<SpanId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tenancy {
    home: Option<StreamId>,
    freed: Option<(OpId, ThreadId)>,
    /// The thread that queried the events of the free as complete.
    seen_by: Option<ThreadId>,
}

impl Default for Checker {
    fn default() -> Self {
        Checker::new()
    }
}

impl Checker {
    /// Returns a checker without streams, events or buffers.
    pub fn new() -> Checker {
        Checker {
            order: Order::new(),
            clocks: Clocks::new(Force::Promised),
            steps: Steps::new(),
            shadow: Shadow::default(),
            trails: Trails::default(),
            lints: Lints::default(),
            spans: Spans::default(),
            waits: None,
            records: Vec::new(),
            kernels: Vec::new(),
            races: Races::default(),
            error: None,
        }
    }

    /// Returns the rule book, in which streams and events are declared: each at any time before
    /// the first operation that names it.
    pub fn order_mut(&mut self) -> &mut Order {
        &mut self.order
    }

    /// Returns the rule book.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// Declares a buffer, at any time before the first operation that names it. Memory that is freed and
    /// allocated again is a new buffer; `within` names the earlier buffer with which it shares bytes.
    ///
    /// # Panics
    /// If the earlier buffer of [`Within`] was not declared.
    #[track_caller]
    pub fn add_buffer(&mut self, memory: Memory, bytes: u64, within: Option<Within>) -> BufferId {
        self.shadow.add(memory, bytes, within)
    }

    /// Returns the names of spans, by id.
    pub(crate) fn span_names(&self) -> &[String] {
        self.spans.names()
    }

    /// Starts to track waits: see [`Checker::waits_not_needed`].
    pub fn follow_waits(&mut self) {
        self.waits.get_or_insert_default();
    }

    /// Returns the call sites none of whose waits was needed: without these waits, all conflicting accesses would still be
    /// ordered. A wait is judged only after the host itself has waited for the same work, because until then a later access
    /// may still need it. Pass `ended` if the program makes no further calls: then the remaining waits are judged too.
    ///
    /// This is true only of the calls that were recorded: the program must have a single host thread, and a kernel that was
    /// not recorded may need a wait that this function returns.
    pub fn waits_not_needed(&mut self, ended: bool) -> Vec<Waited> {
        let Some(waits) = self.waits.as_mut().filter(|_| self.error.is_none()) else {
            return Vec::new();
        };
        if ended {
            waits.over();
        }
        waits.not_needed()
    }

    /// Checks the next record of a log. Records of threads, call sites and times do not affect the order.
    ///
    /// # Errors
    /// Like [`Checker::push`].
    ///
    /// # Panics
    /// Like [`Checker::push`] and [`Checker::add_buffer`].
    pub fn take(&mut self, record: &Record<'_>) -> Result<(), Refused> {
        match record {
            Record::Op(op) => return self.push(op),
            Record::Stream { kind, device, .. } => _ = self.order.add_stream(*kind, *device),
            Record::Event { timing, device, .. } => _ = self.order.add_event(*timing, *device),
            Record::Buffer {
                memory,
                bytes,
                within,
                ..
            } => _ = self.add_buffer(*memory, *bytes, *within),
            Record::Span { thread, enters } => match enters {
                Some(name) => self.spans.enter(*thread, name),
                None => self.spans.leave(*thread),
            },
            Record::Pool { op, asked, size } if self.error.is_none() => {
                self.lints.pool(*op, *asked, *size);
            }
            Record::Pool { .. } | Record::Thread { .. } | Record::Site { .. } | Record::Done(_) => {
            }
        }
        Ok(())
    }

    /// Checks the next call.
    ///
    /// # Errors
    /// A call that CUDA refuses ends the check: that call and every later one return the same error, and
    /// the report keeps what was found before.
    ///
    /// # Panics
    /// If the operation names a stream, event or buffer that was not declared.
    pub fn push(&mut self, op: &Op) -> Result<(), Refused> {
        if let Some(refused) = self.error {
            return Err(refused);
        }
        let Checker {
            order,
            clocks,
            steps,
            shadow,
            trails,
            lints,
            spans,
            waits,
            records,
            races,
            kernels,
            ..
        } = self;
        let found = &mut races.found;
        let runs = match order.push(op, steps) {
            Ok(runs) => runs,
            Err(misuse) => {
                let refused = Refused { op: op.id, misuse };
                self.error = Some(refused);
                return Err(refused);
            }
        };
        if runs == Runs::Now && matches!(Open::of(&op.kind), Some(Open::Blocks(_))) {
            // A step for the return of the call: everything that is ordered after this step was called later.
            steps.push(Step::on(Chain::Thread(op.thread)));
        }
        lints.before(op, order, clocks);
        let span = spans.innermost(op.thread);
        let mut last = None;
        for step in steps.iter() {
            if let Some(waits) = waits {
                waits.before_step(op, step, clocks);
            }
            let epoch = clocks.apply(step, order);
            if step.outside != Outside::Nothing {
                races
                    .unseen
                    .step(step.outside, epoch, clocks, &mut races.list);
            }
            trails.extend(epoch, step.chain, op.id);
            if let Some(waits) = waits {
                waits.after_step(op, step, epoch, clocks, order, records);
            }
            if step.performs != Performs::Nothing {
                let now = Now::new(op, step.chain, epoch, span);
                let known = clocks.known_to(epoch.chain);
                if let Some(waits) = waits.as_mut().filter(|waits| waits.is_following()) {
                    shadow.conflicts(&op.accesses, step.performs, epoch.chain, |first| {
                        waits.met(first, &known);
                    });
                }
                if let Early::Kernels { may_wait } = step.early {
                    let early = if may_wait { now.early() } else { now };
                    let since = kernels[epoch.chain as usize];
                    shadow.overlapping(&op.accesses, since, &early, found);
                } else if op.kind.class() == Class::Kernel {
                    *crate::order::grow(kernels, epoch.chain) = epoch.tick;
                }
                let mut performs = step.performs;
                if step.early == Early::Reads {
                    // R63: the reads come after the call, and not after the stream.
                    performs = Performs::Writes;
                    let call = clocks.index(Chain::Thread(op.thread));
                    let known = clocks.known_to(call.unwrap_or(epoch.chain));
                    shadow.perform(&op.accesses, Performs::Reads, &now, known, found);
                }
                shadow.perform(&op.accesses, performs, &now, known, found);
                lints.after(op, runs, epoch, step.chain, order);
            }
            last = Some(epoch);
        }
        if let Kind::Record { event, stream } = op.kind {
            if let Some(epoch) = last {
                self.recorded(op, event, stream, epoch);
            }
        } else if let Kind::Elapsed { from, to } = op.kind {
            self.elapsed(op, from, to);
        } else if let Kind::Free { buffer } = op.kind {
            self.races.tenancy(buffer).freed = Some((op.id, op.thread));
        } else if let Kind::Alloc {
            buffer,
            stream,
            saw_events_of,
        } = op.kind
        {
            self.allocated(op, buffer, stream, saw_events_of);
        }
        if !self.races.found.is_empty() {
            self.report_found(op);
        }
        Ok(())
    }

    /// Returns the findings so far.
    pub fn report(&self) -> Report {
        // A race may have turned out to be ordered.
        let races = self.races.list.iter().filter(|race| race.count > 0);
        let mut races: Vec<Race> = races.copied().collect();
        races.sort_by_key(|race| (race.second, race.first, race.buffer, race.kind));
        let mut lints = self.lints.list.clone();
        lints.sort();
        Report {
            races,
            lints,
            error: self.error,
        }
    }
}

impl Checker {
    fn recorded(&mut self, op: &Op, event: EventId, stream: StreamId, epoch: Epoch) {
        let index = event.0 as usize;
        if self.records.len() <= index {
            self.records.resize(index + 1, None);
        }
        self.records[index] = Some(Recorded {
            epoch,
            op: op.id,
            site: op.site,
            stream,
            span: self.spans.innermost(op.thread),
        });
    }

    /// Checks that the calling thread knows both events to be complete when it queries an elapsed time (R11).
    fn elapsed(&mut self, op: &Op, from: EventId, to: EventId) {
        let thread = Chain::Thread(op.thread);
        for event in [to, from] {
            let last = self.records.get(event.0 as usize).copied().flatten();
            let Some(record) = last.filter(|last| !self.clocks.ordered(last.epoch, thread)) else {
                continue;
            };
            let stream = Chain::Stream(record.stream);
            let race = Race {
                kind: RaceKind::Timing,
                doubt: None,
                buffer: None,
                handed_on: None,
                first: record.op,
                second: op.id,
                sites: (record.site, op.site),
                spans: (record.span, self.spans.innermost(op.thread)),
                chains: (stream, thread),
                ordered_up_to: self.trails.reach(&self.clocks, stream, thread),
                fix: Fix::SyncEvent {
                    event,
                    before: op.id,
                    thread: op.thread,
                },
                count: 1,
            };
            self.races.count(race);
            return;
        }
    }

    fn allocated(
        &mut self,
        op: &Op,
        buffer: BufferId,
        home: Option<StreamId>,
        saw_events_of: Option<BufferId>,
    ) {
        if let Some(earlier) = saw_events_of {
            self.races.tenancy(earlier).seen_by = Some(op.thread);
        }
        *self.races.tenancy(buffer) = Tenancy {
            home,
            ..Tenancy::default()
        };
    }
}

impl Races {
    fn count(&mut self, race: Race) {
        let alike = Alike::of(race.kind, race.buffer, race.sites, race.doubt);
        let fresh = self.list.len();
        let at = *self.known.entry(alike).or_insert(fresh);
        if at == fresh {
            self.list.push(race);
        } else {
            self.list[at].count += 1;
        }
    }

    fn tenancy(&mut self, buffer: BufferId) -> &mut Tenancy {
        let index = buffer.0 as usize;
        if self.tenancies.len() <= index {
            self.tenancies.resize(index + 1, Tenancy::default());
        }
        &mut self.tenancies[index]
    }
}

// ------------------------------------------------------------------ making the report

impl Checker {
    #[cold]
    fn report_found(&mut self, op: &Op) {
        let mut found = std::mem::take(&mut self.races.found);
        Unordered::keep_one_a_pair(&mut found);
        for pair in found.drain(..) {
            self.count_pair(op, &pair, pair.kind());
        }
        self.races.found = found;
    }

    fn count_pair(&mut self, op: &Op, pair: &Unordered, kind: RaceKind) {
        let Unordered { first, second } = pair;
        let chains = (
            self.trails.chain(first.epoch),
            self.trails.chain(second.epoch),
        );
        let in_stream = matches!(chains.0, Chain::Stream(_));
        let memory = self.shadow.memory_of(second.buffer);
        let doubt = hazard::doubt_of(first, in_stream, second, memory, || {
            self.is_after_return(second, first, op.thread)
        });
        let is_doubted = |one: &hazard::Use| self.races.doubted.binary_search(&one.op).is_ok();
        let elsewhere = is_doubted(first) || is_doubted(second);
        let doubt = elsewhere.then_some(Doubt::Elsewhere).or(doubt);
        let is_unseen = doubt.is_none() && self.races.unseen.may_order(chains, &self.clocks);
        let doubt = doubt.or(is_unseen.then_some(Doubt::Outside));
        let alike = Alike::of(kind, Some(second.buffer), (first.site, second.site), doubt);
        let known = self.races.known.get(&alike).copied();
        if is_unseen {
            let at = known.unwrap_or(self.races.list.len());
            self.races.unseen.note(at, (first.epoch, second.epoch));
        }
        if let Some(at) = known {
            self.races.list[at].count += 1;
            return;
        }
        let race = Race {
            kind,
            doubt,
            buffer: Some(second.buffer),
            handed_on: self.handed_on(first, second, chains.0),
            first: first.op,
            second: second.op,
            sites: (first.site, second.site),
            spans: (first.span.span(), second.span.span()),
            chains,
            ordered_up_to: self.trails.reach(&self.clocks, chains.0, chains.1),
            fix: self.fix(op, first, second, chains),
            count: 1,
        };
        self.races.count(race);
    }

    /// Whether `access`, called by `thread`, comes after the return of the call of `earlier`: the same thread
    /// called it later, or the access is ordered after a later step of the thread that called `earlier`.
    fn is_after_return(&self, access: &Use, earlier: &Use, thread: ThreadId) -> bool {
        let Some(caller) = earlier.thread() else {
            return false;
        };
        let at = self.trails.chain(access.epoch);
        let heard = || self.trails.reach(&self.clocks, Chain::Thread(caller), at);
        caller == thread || matches!(heard(), Reach::UpTo(op) if op >= earlier.op)
    }

    fn handed_on(&self, first: &Use, second: &Use, chain: Chain) -> Option<HandedOn> {
        if first.buffer == second.buffer {
            return None;
        }
        let tenancy = self.races.tenancies.get(first.buffer.0 as usize);
        let tenancy = tenancy.copied().unwrap_or_default();
        let freed = tenancy
            .freed
            .map(|(free, _)| free)
            .filter(|&free| first.op < free);
        let not_noted = match chain {
            Chain::Stream(stream) if freed.is_some() && tenancy.home != Some(stream) => {
                Some(stream)
            }
            Chain::Stream(_) | Chain::Thread(_) => None,
        };
        Some(HandedOn {
            from: first.buffer,
            freed,
            not_noted,
        })
    }

    /// Returns the call that orders a pair: a wait right before the second operation, or a `record_stream`
    /// where the caching allocator would have waited had it known of the use.
    fn fix(&self, op: &Op, first: &Use, second: &Use, chains: (Chain, Chain)) -> Fix {
        let thread = op.thread;
        // A wait for a stream that is being captured would be refused, or would pull the waiting stream into the
        // capture: so the call belongs before the capture.
        let closed = |chain: Chain| match chain {
            Chain::Stream(stream) => self.order.closed_since(stream),
            Chain::Thread(_) => None,
        };
        let open = [closed(chains.0), closed(chains.1)]
            .into_iter()
            .flatten()
            .min();
        let before = open.unwrap_or(op.id);
        // What is read out of the order of its stream is ordered by the host alone.
        let is_early = matches!(
            op.kind,
            Kind::CopyBatch {
                source: SourceOrder::Any,
                ..
            }
        );
        if let (Chain::Stream(stream), true, false) = (chains.0, is_early, second.writes()) {
            return Fix::SyncStream {
                stream,
                before,
                thread,
            };
        }
        match chains {
            (Chain::Stream(source), Chain::Stream(stream)) => self
                .record_stream(op, first, second, source)
                .unwrap_or(Fix::WaitStream {
                    stream,
                    source,
                    before,
                    thread,
                }),
            (Chain::Stream(stream), Chain::Thread(_)) => self
                .record_stream(op, first, second, stream)
                .unwrap_or(Fix::SyncStream {
                    stream,
                    before,
                    thread,
                }),
            (Chain::Thread(by), _) => Fix::Flag {
                after: first.op,
                by,
                before,
                on: thread,
            },
        }
    }

    /// R53: if the allocator saw the events of the free complete, and the second operation comes from the
    /// thread that queried them, an event recorded in this stream would have ordered the two.
    fn record_stream(&self, op: &Op, first: &Use, second: &Use, stream: StreamId) -> Option<Fix> {
        let tenancy = self.races.tenancies.get(first.buffer.0 as usize)?;
        let (free, thread) = tenancy.freed?;
        let told = first.buffer != second.buffer
            && first.op < free
            && tenancy.home != Some(stream)
            && tenancy.seen_by == Some(op.thread);
        told.then_some(Fix::RecordStream {
            buffer: first.buffer,
            stream,
            before: free,
            thread,
        })
    }
}
