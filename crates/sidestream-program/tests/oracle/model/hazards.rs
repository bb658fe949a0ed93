//! The last step: all pairs of accesses, and the lint that needs the whole program.

use std::collections::{BTreeMap, BTreeSet};

use super::state::{Access, Mode, Place, Run, Work};
use super::{Answer, Kind, Outcome, Point, Race, Severity};
use crate::oracle::prog::{Act, MemKind, StreamKind};

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
        let mut found: BTreeMap<(usize, usize, String), Race> = BTreeMap::new();
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
                if cells.is_empty() || (a.mode == Mode::Read && b.mode == Mode::Read) {
                    continue;
                }
                if self.graph.reaches(a.node, b.node) || self.graph.reaches(b.node, a.node) {
                    continue;
                }
                let kind = kind_of(a, b);
                let adjacent = cells.iter().any(|&cell| self.adjacent(a, b, cell));
                let severity = self.severity_of(a, b);
                let race = found
                    .entry((b.op, a.op, b.buffer.clone()))
                    .or_insert_with(|| Race {
                        kind,
                        fits: BTreeSet::new(),
                        adjacent: None,
                        buffer: Some(b.buffer.clone()),
                        first: a.op,
                        second: b.op,
                        severity,
                        places: (a.shown_place.clone(), b.shown_place.clone()),
                    });
                assert_eq!(
                    race.severity, severity,
                    "one pair of ops and one buffer has one severity"
                );
                race.fits.insert(kind);
                race.kind = race.kind.min(kind);
                if adjacent {
                    race.adjacent = Some(race.adjacent.map_or(kind, |k| k.min(kind)));
                }
            }
        }
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
                    places: (String::new(), self.prog.ops[op].thread.clone()),
                },
            );
        }
        found.into_values().collect()
    }

    /// Returns whether nothing comes in between, in the order of the list, for one cell of memory: no write (a birth
    /// or an end counts), and if the first one reads, no later read of the same stream or thread. A host function
    /// belongs to its stream.
    pub(super) fn adjacent(&self, a: &Access, b: &Access, cell: u64) -> bool {
        !self.accesses.iter().any(|k| {
            let between = a.op < k.op && k.op < b.op;
            let here = k.bytes.region == a.bytes.region && k.bytes.lo <= cell && cell < k.bytes.hi;
            let hides = k.mode != Mode::Read || (a.mode == Mode::Read && k.place == a.place);
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
        let r31 = matches!(act(b), Act::CudaFree { .. })
            && !self.buffers[&b.buffer].from_malloc_async
            && matches!(a.place, Place::Stream(_))
            && matches!(a.mode, Mode::Read | Mode::Write);
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
            _ => Severity::Error,
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
    let writes = |x: &Access| x.mode == Mode::Write;
    match (a.host, b.host) {
        (false, false) => match (writes(a), writes(b)) {
            (true, false) => Kind::Raw,
            (false, _) => Kind::War,
            (true, true) => Kind::Waw,
        },
        // One side is the host: what the host does counts, not which op is listed first.
        (true, false) | (false, true) => {
            let (host, device) = if a.host { (a, b) } else { (b, a) };
            match (writes(host), writes(device)) {
                (false, _) => Kind::HostRaw,
                (true, false) => Kind::HostWar,
                (true, true) => Kind::HostWaw,
            }
        }
        // Both sides are the host: the order of the list counts.
        (true, true) => match (writes(a), writes(b)) {
            (true, false) => Kind::HostRaw,
            (false, _) => Kind::HostWar,
            (true, true) => Kind::HostWaw,
        },
    }
}
