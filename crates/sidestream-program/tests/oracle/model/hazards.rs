//! The last step: all pairs of accesses, and the lint that needs the whole program.

use std::collections::{BTreeMap, BTreeSet};

use super::state::{Access, Mode, Place, Run, Work};
use super::{Answer, Kind, Outcome, Point, Race, Severity};
use crate::oracle::prog::{Act, MemKind, StreamKind};

/// A conflict of two accesses of a pair of ops.
struct Conflict<'a> {
    sides: (&'a Access, &'a Access),
    kind: Kind,
    adjacent: bool,
    /// Whether the two conflict only if one writes that may only read, or a kernel does not wait that may wait.
    guess: bool,
}

impl Run<'_> {
    pub(super) fn finish(mut self) -> Answer {
        self.graph.close();
        self.default_stream_lints();
        let races = self.races();
        let mut lints = self.lints;
        lints.sort_by_key(|&(code, op)| (op, code));
        lints.dedup();
        let sites = self
            .prog
            .ops
            .iter()
            .enumerate()
            // A name cannot begin with a digit, so the numbers of ops do not collide with explicit sites.
            .map(|(op, line)| line.site.clone().unwrap_or_else(|| op.to_string()))
            .collect();
        Answer {
            outcome: match (self.error, races.is_empty()) {
                (Some(_), _) => Outcome::Error,
                (None, false) => Outcome::Race,
                (None, true) => Outcome::Clean,
            },
            races,
            lints,
            error: self.error,
            graph: self.graph,
            outside: self.outside,
            sites,
        }
    }

    /// R60. Both sides of the condition are tested in the order of the list; "not yet known complete by the calling
    /// thread" is tested at the moment of the call. Reading: captured work is not work, nor are `malloc_async` and
    /// `free_async`, and a stream that is created again under an old name is another stream.
    pub(super) fn default_stream_lints(&mut self) {
        for middle in &self.work {
            let device = self.streams[middle.stream].device;
            if self.streams[middle.stream].kind != StreamKind::Legacy {
                continue;
            }
            let blocking = |w: &&Work| {
                self.streams[w.stream].device == device && self.streams[w.stream].kind.is_blocking()
            };
            let held_back = self.work.iter().filter(blocking).any(|before| {
                before.op < middle.op
                    && !self.graph.reaches(before.node, middle.call)
                    && self
                        .work
                        .iter()
                        .filter(blocking)
                        .any(|after| after.op > middle.op && after.stream != before.stream)
            });
            if held_back {
                self.lints.push(("DEFAULT_STREAM_SERIALIZATION", middle.op));
            }
        }
    }

    pub(super) fn races(&self) -> Vec<Race> {
        // Regions are cut where an access begins or ends; between two cuts all bytes have the same history, so one
        // "cell" represents all of them.
        let mut cuts: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
        for a in &self.accesses {
            let cuts = cuts.entry(a.bytes.region).or_default();
            cuts.insert(a.bytes.lo);
            cuts.insert(a.bytes.hi);
        }
        let mut conflicts: BTreeMap<(usize, usize, String), Vec<Conflict<'_>>> = BTreeMap::new();
        for a in &self.accesses {
            for b in &self.accesses {
                if a.op >= b.op || a.bytes.region != b.bytes.region {
                    continue;
                }
                let lo = a.bytes.lo.max(b.bytes.lo);
                let hi = a.bytes.hi.min(b.bytes.hi);
                let cells: Vec<u64> = cuts[&a.bytes.region]
                    .range(lo..)
                    .copied()
                    .take_while(|&c| c < hi)
                    .collect();
                let harmless = match (a.mode, b.mode) {
                    (Mode::Read, Mode::Read) => true,
                    // Two tenants of some bytes are not meant to add to the same number.
                    (Mode::Atomic, Mode::Atomic) => a.buffer == b.buffer,
                    _ => false,
                };
                if cells.is_empty() || harmless {
                    continue;
                }
                let running = self.early.get(&b.op);
                let early = running.is_some_and(|running| running.contains(&a.op));
                let ordered =
                    self.graph.reaches(a.node, b.node) || self.graph.reaches(b.node, a.node);
                if ordered && !early {
                    continue;
                }
                let pair = conflicts.entry((b.op, a.op, b.buffer.clone()));
                pair.or_default().push(Conflict {
                    sides: (a, b),
                    kind: kind_of(a, b),
                    adjacent: cells.iter().any(|&cell| self.adjacent(a, b, cell)),
                    guess: early || is_guess(a, b),
                });
            }
        }
        let mut found: BTreeMap<(usize, usize, String), Race> = conflicts
            .into_iter()
            .map(|(key, all)| (key, self.race(&all)))
            .collect();
        for &(op, call, records) in &self.timings {
            let known = records.map(|(_, node)| self.graph.reaches(node, call));
            // "first = the record of that event, of b if neither is"
            let unknown = match known {
                [true, true] => continue,
                [false, true] => records[0],
                [_, false] => records[1],
            };
            found.insert(
                (op, unknown.0, String::new()),
                Race {
                    kind: Kind::Timing,
                    fits: BTreeSet::from([Kind::Timing]),
                    adjacent: Some(Kind::Timing),
                    buffer: None,
                    first: unknown.0,
                    second: op,
                    severity: Severity::Error,
                    is_guess: false,
                    places: (String::new(), self.prog.ops[op].thread.clone()),
                },
            );
        }
        found.into_values().collect()
    }

    /// Returns the race of the conflicts of one pair of ops and one buffer. A conflict that needs no guess counts for more
    /// than one that does; where only the latter is adjacent, a checker may find either.
    fn race(&self, all: &[Conflict<'_>]) -> Race {
        let certain = || all.iter().filter(|conflict| !conflict.guess);
        let is_guess = certain().next().is_none();
        let is_either = !is_guess
            && all.iter().any(|one| one.guess)
            && !certain().any(|conflict| conflict.adjacent);
        let counts = |one: &&Conflict<'_>| is_either || one.guess == is_guess;
        let fits: BTreeSet<Kind> = all.iter().filter(counts).map(|one| one.kind).collect();
        let adjacent = all.iter().filter(counts).filter(|one| one.adjacent);
        let adjacent = adjacent.map(|one| one.kind).min();
        let (a, b) = certain().next().unwrap_or(&all[0]).sides;
        let severity = match (is_guess, is_either) {
            (true, _) => Severity::Warn,
            (false, true) => Severity::Either,
            (false, false) => self.severity_of(a, b),
        };
        for (a, b) in certain().map(|one| one.sides) {
            let same = is_either || self.severity_of(a, b) == severity;
            assert!(same, "one pair of ops and one buffer has one severity");
        }
        Race {
            kind: *fits.first().expect("a conflict fits"),
            // Where either may be found, any kind will do.
            adjacent: if is_either {
                adjacent.and(fits.last().copied())
            } else {
                adjacent
            },
            fits,
            buffer: Some(b.buffer.clone()),
            first: a.op,
            second: b.op,
            severity,
            is_guess: is_guess || self.severity_of_waits(a, b) == Severity::Warn,
            places: (a.shown_place.clone(), b.shown_place.clone()),
        }
    }

    /// Returns whether nothing comes in between, in the order of the list, for one cell of memory: no write (a birth
    /// or an end counts), and if the first one reads, no later read of the same stream or thread. A host function
    /// belongs to its stream. Of what may write, and of what is atomic, the same is true.
    pub(super) fn adjacent(&self, a: &Access, b: &Access, cell: u64) -> bool {
        !self.accesses.iter().any(|k| {
            let between = a.op < k.op && k.op < b.op;
            let here = k.bytes.region == a.bytes.region && k.bytes.lo <= cell && cell < k.bytes.hi;
            let hides = match (a.mode, k.mode) {
                (Mode::Read, Mode::Read) | (Mode::MayWrite, Mode::MayWrite) => k.place == a.place,
                (Mode::Atomic, Mode::Atomic) => k.place == a.place && k.buffer == a.buffer,
                (_, Mode::Read | Mode::MayWrite | Mode::Atomic) => false,
                _ => true,
            };
            between && here && hides
        })
    }

    /// Returns the severity: `warn` if CUDA leaves the behaviour of this pair open, which means whether a call blocks
    /// its caller. So the call is `a`, listed first, and `b` is something that would be ordered if the call blocked.
    pub(super) fn severity_of(&self, a: &Access, b: &Access) -> Severity {
        let act = |x: &Access| &self.prog.ops[x.op].act;
        let host_uses = b.host && matches!(b.mode, Mode::Read | Mode::Write);
        // R22: a host access after a copy_async on pageable memory. Reading: also if the copy goes from host to host.
        // An end of life is not an access of this kind.
        let r22 = matches!(act(a), Act::CopyAsync { .. }) && a.mem == MemKind::Pageable;
        // R20, R26: a host access to managed memory after a blocking device-to-device copy.
        let r20 = b.mem == MemKind::Managed
            && matches!(act(a), Act::Copy { from, to } if !self.on_host(from) && !self.on_host(to));
        // R31: cuda_free of memory not from malloc_async with work pending. Reading: work that was submitted before the
        // free (so the free is `second`) and runs in a stream; against a host thread's access, or if the free is listed
        // first, the free is plainly too early.
        // R67: likewise, of memory that is unregistered.
        let r67 = matches!(act(b), Act::Unregister { .. });
        let r31 =
            matches!(act(b), Act::CudaFree { .. }) && !self.buffers[&b.buffer].from_malloc_async;
        let r31 = (r31 || r67)
            && matches!(a.place, Place::Stream(_))
            && !matches!(a.mode, Mode::Birth | Mode::End);
        let returned = self
            .graph
            .node(a.op, Point::Return)
            .is_some_and(|ret| self.graph.reaches(ret, b.node));
        let same_thread = self.prog.ops[a.op].thread == self.prog.ops[b.op].thread;
        match ((r22 || r20) && host_uses, r31) {
            // A thread that is ordered after the return is ordered after the copy, if the copy blocked the call.
            (true, _) if returned => Severity::Warn,
            // The free may wait for what was submitted before. Reading: a thread that is ordered after the submission
            // only by way of other work may get either answer.
            (_, true) if same_thread => Severity::Warn,
            (_, true) if returned => Severity::Either,
            _ => self.severity_of_waits(a, b),
        }
    }
}

impl Run<'_> {
    /// R65: after a wait for what no op shows, anything may be ordered. What the stream of the first learned after it does
    /// not count, though a checker may count it.
    fn severity_of_waits(&self, a: &Access, b: &Access) -> Severity {
        let mut waits = self.outside_waits.iter();
        let any = !self.outside_waits.is_empty() || !self.ended_waits.is_empty();
        let reaches =
            |&wait: &usize| self.graph.reaches(wait, a.node) || self.graph.reaches(wait, b.node);
        match (waits.any(reaches), any) {
            (true, _) => Severity::Warn,
            (false, true) => Severity::Either,
            (false, false) => Severity::Error,
        }
    }
}

/// Returns the kind of an unordered conflict.
pub(super) fn kind_of(a: &Access, b: &Access) -> Kind {
    if a.mode == Mode::End || b.mode == Mode::End || a.buffer != b.buffer {
        return Kind::Uaf;
    }
    if a.mode == Mode::Birth || b.mode == Mode::Birth {
        return Kind::Uba;
    }
    // What may write is taken to do both: a later read reads what it wrote, and it reads what was written before.
    let (writes, reads) = (
        |x: &Access| x.mode != Mode::Read,
        |x: &Access| !matches!(x.mode, Mode::Write | Mode::Atomic),
    );
    // Between host and device, what the host does counts, not which op is listed first.
    let (earlier, later) = match (a.host, b.host) {
        (true, false) => (b, a),
        _ => (a, b),
    };
    let host = a.host || b.host;
    match (writes(earlier) && reads(later), reads(earlier)) {
        (true, _) if host => Kind::HostRaw,
        (true, _) => Kind::Raw,
        (false, true) if host => Kind::HostWar,
        (false, true) => Kind::War,
        (false, false) if host => Kind::HostWaw,
        (false, false) => Kind::Waw,
    }
}

/// Returns whether two accesses conflict only if one writes that may only read.
fn is_guess(a: &Access, b: &Access) -> bool {
    let may_read = |x: &Access| matches!(x.mode, Mode::Read | Mode::MayWrite);
    may_read(a) && may_read(b)
}
