//! A compact record of a rank's exchanges with other ranks: enough to join them with those of the other ranks, in 40 bytes
//! each.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

mod beside;
mod part;

use crate::idle::{Cause, Idle};
use crate::measure::{Class, Collectives, Links, Spans, Steps, WorkOfCalls, class, held};
use crate::model::{ExchangeKind, Exchanges, Name, Names, ProcessGroup, ThreadIndex, Trace};
use crate::sort::order_by;
pub use part::{Part, Parts};

/// The `seq` of an exchange that has no sequence number.
pub const NO_SEQ: u32 = u32::MAX;

/// The exchanges of a rank with other ranks, and the parts of its own steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Digest {
    /// The process groups to which the rank belongs.
    pub groups: Vec<ProcessGroup>,
    /// The kinds of its exchanges.
    pub kinds: Vec<ExchangeKind>,
    /// Its exchanges, in the order of their starts.
    pub rows: Vec<Row>,
    /// Number of further exchanges that do not state their process group, in a trace whose other exchanges do: they were
    /// enqueued before the trace begins.
    pub unsaid: u64,
    /// When its devices completed each step, in nanoseconds.
    pub ends_ns: Vec<i64>,
    /// The mean time of each part of a step.
    pub parts: Parts,
    /// Whether the trace is incomplete.
    pub is_cut: bool,
}

/// One exchange. Its times are on the rank's own clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Start of its kernel.
    pub start_ns: i64,
    /// Duration of its kernel.
    pub duration_ns: f32,
    /// Nanoseconds before its start in which the rank had done what it exchanges: the exchange waited for its stream, which the
    /// rank's exchange before it in the group held.
    pub queued_ns: f32,
    /// Nanoseconds before its end in which only communication ran; negative where other work ran at its end.
    pub stalled_ns: f32,
    /// Nanoseconds that kernels beside it took longer than they do without an exchange.
    pub slowed_ns: f32,
    /// Nanoseconds before it was ready in which it had been launched; negative where its call is not known.
    pub ahead_ns: f32,
    /// Nanoseconds of the host's own work since it launched the exchange before; negative where a step begins between them.
    pub host_ns: f32,
    /// Its sequence number, or [`NO_SEQ`].
    pub seq: u32,
    /// Index into the kinds.
    pub kind: u32,
}

const _: () = assert!(size_of::<Row>() == 40);

impl Row {
    /// Returns when the exchange ended.
    pub fn end_ns(&self) -> i64 {
        self.start_ns.saturating_add(self.duration_ns as i64)
    }

    /// Returns when the rank had done what it exchanges.
    pub fn ready_ns(&self) -> i64 {
        self.start_ns.saturating_sub(self.queued_ns as i64)
    }

    /// Returns the span before the end in which nothing else ran, if something waited for that end.
    pub fn stall(&self) -> Option<(i64, i64)> {
        let end = self.end_ns();
        (self.stalled_ns >= 0.0).then(|| (end.saturating_sub(self.stalled_ns as i64), end))
    }
}

impl Digest {
    /// Returns the digest of a trace.
    pub fn of(trace: &Trace, links: &Links, steps: &Steps, idles: &[&Idle]) -> Digest {
        let collectives = &Collectives::of(trace);
        let mut work = Spans::default();
        let mut computing = Spans::default();
        let mut kernels = Spans::default();
        let mut copies = Spans::default();
        for one in &trace.work {
            let (start, end) = (one.start_ns, one.end_ns());
            let class = class(one, collectives);
            match class {
                Some(Class::Upload | Class::Download) => copies.push(start, end),
                Some(Class::Compute) | None => computing.push(start, end),
                Some(Class::Collective) => {}
            }
            match class {
                Some(Class::Collective) => kernels.push(start, end),
                Some(Class::Compute) => {
                    kernels.push(start, end);
                    work.push(start, end);
                }
                _ => work.push(start, end),
            }
        }
        let ends_ns = increasing(steps.steps.iter().map(|step| step.last_gpu_ns));
        let whole = || {
            let ends = trace.work.iter().map(|work| work.end_ns());
            let first = trace.work.first().map_or(0, |work| work.start_ns);
            (first, ends.max().unwrap_or(first), 1)
        };
        let (from, to, count) = match ends_ns[..] {
            [first, .., last] => (first, last, ends_ns.len() as u64 - 1),
            _ => whole(),
        };
        let mut parts = Parts::default();
        parts.add(Part::Compute, computing.within_ns(from, to));
        let exposed = copies.without(&kernels);
        parts.add(Part::Copies, exposed.within_ns(from, to));
        for idle in idles {
            for (cause, ns) in &idle.in_steps {
                parts.add(Part::of(*cause), *ns / idles.len().max(1) as u64);
            }
        }
        parts.divide(count);
        parts.names = names(idles, &trace.names);
        let is_cut = trace.warnings.iter().any(|warning| {
            let cut = ["TRUNCATED", "LIMIT", "DAMAGED", "INCOMPLETE"];
            cut.contains(&warning.code)
        });
        let exchanges = &trace.exchanges;
        let mut rows = rows(exchanges, &work, &readies(trace, links, steps, collectives));
        let all = rows.len();
        let says = |row: &Row| {
            let kind = exchanges.kinds.get(row.kind as usize);
            let group = kind.and_then(|kind| exchanges.groups.get(kind.group as usize));
            group.is_some_and(|group| !group.name.is_empty())
        };
        if rows.iter().any(says) {
            rows.retain(says);
        }
        beside::add_slowed(trace, steps, collectives, &mut rows);
        Digest {
            groups: exchanges.groups.clone(),
            kinds: exchanges.kinds.clone(),
            unsaid: (all - rows.len()) as u64,
            rows,
            ends_ns,
            parts,
            is_cut,
        }
    }

    /// Returns the digest as JSON, in flat lists: about 25 characters per exchange.
    pub fn json(&self) -> Value {
        let mut before = 0;
        let starts = self.rows.iter().map(|row| {
            let since = row.start_ns.wrapping_sub(before);
            before = row.start_ns;
            since
        });
        json!({
            "groups": self.groups,
            "kinds": self.kinds,
            "starts": starts.collect::<Vec<_>>(),
            "durations": self.rows.iter().map(|row| row.duration_ns).collect::<Vec<_>>(),
            "queued": self.rows.iter().map(|row| row.queued_ns).collect::<Vec<_>>(),
            "stalled": self.rows.iter().map(|row| row.stalled_ns).collect::<Vec<_>>(),
            "slowed": self.rows.iter().map(|row| row.slowed_ns).collect::<Vec<_>>(),
            "ahead": self.rows.iter().map(|row| row.ahead_ns).collect::<Vec<_>>(),
            "host": self.rows.iter().map(|row| row.host_ns).collect::<Vec<_>>(),
            "seqs": self.rows.iter().map(|row| row.seq).collect::<Vec<_>>(),
            "of": self.rows.iter().map(|row| row.kind).collect::<Vec<_>>(),
            "ends": self.ends_ns,
            "parts": self.parts.json(),
            "names": self.parts.names,
            "unsaid": self.unsaid,
            "is_cut": self.is_cut,
        })
    }

    /// Reads the digest from its JSON; returns `None` if a part of it is missing.
    pub fn of_json(value: &Value) -> Option<Digest> {
        fn list<T: DeserializeOwned>(value: &Value) -> Option<Vec<T>> {
            Vec::deserialize(value).ok()
        }
        let groups: Vec<ProcessGroup> = list(&value["groups"])?;
        let kinds: Vec<ExchangeKind> = list(&value["kinds"])?;
        let starts: Vec<i64> = list(&value["starts"])?;
        let (durations, stalled) = (list(&value["durations"])?, list(&value["stalled"])?);
        let more = ["queued", "slowed", "ahead", "host"].map(|name| list(&value[name]));
        let [Some(queued), Some(slowed), Some(ahead), Some(host)]: [Option<Vec<f32>>; 4] = more
        else {
            return None;
        };
        let (seqs, of): (Vec<u32>, Vec<u32>) = (list(&value["seqs"])?, list(&value["of"])?);
        let lengths = [
            durations.len(),
            queued.len(),
            slowed.len(),
            ahead.len(),
            host.len(),
            stalled.len(),
            seqs.len(),
            of.len(),
        ];
        let are_known = kinds.iter().all(|k| (k.group as usize) < groups.len())
            && of.iter().all(|kind| (*kind as usize) < kinds.len());
        if lengths != [starts.len(); 8] || !are_known {
            return None;
        }
        let mut start_ns: i64 = 0;
        let row = |at: usize| {
            start_ns = start_ns.wrapping_add(starts[at]);
            Row {
                start_ns,
                duration_ns: durations[at],
                queued_ns: queued[at],
                stalled_ns: stalled[at],
                slowed_ns: slowed[at],
                ahead_ns: ahead[at],
                host_ns: host[at],
                seq: seqs[at],
                kind: of[at],
            }
        };
        let names = list(&value["names"])?.try_into().ok()?;
        Some(Digest {
            rows: (0..starts.len()).map(row).collect(),
            unsaid: value["unsaid"].as_u64()?,
            ends_ns: increasing(list(&value["ends"])?.into_iter()),
            parts: Parts::of_json(&value["parts"], names)?,
            is_cut: value["is_cut"].as_bool()?,
            groups,
            kinds,
        })
    }
}

/// Returns the ends of steps, keeping only those that are later than the one before.
fn increasing(ends: impl Iterator<Item = i64>) -> Vec<i64> {
    let mut kept: Vec<i64> = Vec::new();
    for end in ends {
        if kept.last().is_none_or(|last| *last < end) {
            kept.push(end);
        }
    }
    kept
}

/// What the calls tell of each exchange, by the start and the duration of its kernel: when the rank had done what it exchanges,
/// where that is known; when it was launched; and the host's own work since the launch before it in its step.
type Readies = HashMap<(i64, u64), (Option<i64>, i64, Option<u64>)>;

/// Returns what the calls tell of each exchange. A rank has done what it exchanges once it is launched and the work is complete
/// that the same thread launched last before it: PyTorch lets an exchange wait for that work's stream.
fn readies(trace: &Trace, links: &Links, steps: &Steps, collectives: &Collectives) -> Readies {
    let mut readies = HashMap::new();
    if trace.exchanges.rows.is_empty() {
        return readies;
    }
    let call = |at: usize| links.call_of(at).map(|call| (&trace.calls[call], at));
    let mut launched: Vec<_> = (0..trace.work.len()).filter_map(call).collect();
    order_by(&mut launched, |(call, at)| (call.start_ns, *at));
    let mut blocked = Spans::default();
    let works = WorkOfCalls::of(trace, links);
    for (at, call) in trace.calls.iter().enumerate() {
        if held(trace, at, works.first(at)).is_some() {
            blocked.push(call.start_ns, call.end_ns());
        }
    }
    let step_of = |time: i64| steps.steps.partition_point(|step| step.start_ns <= time);
    let mut last: HashMap<ThreadIndex, i64> = HashMap::new();
    let mut before: Option<i64> = None;
    for (call, at) in launched {
        let work = &trace.work[at];
        if class(work, collectives) != Some(Class::Collective) {
            last.insert(call.thread, work.end_ns());
            continue;
        }
        let before = before.replace(call.start_ns);
        let before = before.filter(|time| step_of(*time) == step_of(call.start_ns));
        let host_ns = before.map(|time| {
            let waited_ns = blocked.within_ns(time, call.start_ns);
            call.start_ns.abs_diff(time).saturating_sub(waited_ns)
        });
        let ready = last.get(&call.thread).map(|end| call.start_ns.max(*end));
        readies.insert(
            (work.start_ns, work.duration_ns),
            (ready, call.start_ns, host_ns),
        );
    }
    readies
}

/// Returns the exchanges, each with the time before its end in which no other work ran. The kernels of one exchange become one
/// row.
fn rows(exchanges: &Exchanges, work: &Spans, readies: &Readies) -> Vec<Row> {
    let work: Vec<(i64, i64)> = work.iter().collect();
    let stalled = |start: i64, end: i64| {
        let before = work.partition_point(|span| span.0 < end);
        match before.checked_sub(1).map(|at| work[at].1) {
            Some(last) if last >= end => -1.0,
            Some(last) => end.abs_diff(start.max(last)) as f32,
            None => end.abs_diff(start) as f32,
        }
    };
    let group = |kind: u32| {
        let kind = exchanges.kinds.get(kind as usize);
        kind.map_or(0, |kind| kind.group)
    };
    let mut rows: Vec<Row> = Vec::with_capacity(exchanges.rows.len());
    // The last row of each group, with its number and end: one exchange may be several kernels in a row.
    let mut last: HashMap<u32, (u32, u32, usize)> = HashMap::new();
    let mut merged = 0;
    // When the last exchange of each group was ready, and its end.
    let mut held: HashMap<u32, (i64, i64)> = HashMap::new();
    for one in &exchanges.rows {
        let end = one.start_ns.saturating_add_unsigned(one.duration_ns);
        // The rank's stream may have waited for exchanges of other groups. What else delays a start, such as the host, is the
        // rank's own.
        let others = held.iter().filter(|held| *held.0 != group(one.kind));
        let others = others
            .map(|held| held.1.1)
            .filter(|end| *end <= one.start_ns);
        let known = readies.get(&(one.start_ns, one.duration_ns)).copied();
        let ready = known.and_then(|(ready, ..)| Some(others.fold(ready?, i64::max)));
        let ready = match (ready, held.get(&group(one.kind))) {
            (Some(ready), Some((first, end))) if ready < *end && *end <= one.start_ns => {
                ready.max(*first)
            }
            _ => one.start_ns,
        };
        held.insert(group(one.kind), (ready, end));
        let queued_ns = one.start_ns.abs_diff(ready) as f32;
        let seq = one.seq.filter(|seq| *seq != NO_SEQ);
        if let Some(seq) = seq {
            if let Some((before, kind, at)) = last.get(&group(one.kind))
                && (*before, *kind) == (seq, one.kind)
            {
                let row = &mut rows[*at];
                let end = end.max(row.end_ns());
                row.duration_ns = end.abs_diff(row.start_ns) as f32;
                row.stalled_ns = stalled(row.start_ns, end);
                merged += 1;
                continue;
            }
            last.insert(group(one.kind), (seq, one.kind, rows.len()));
        }
        rows.push(Row {
            start_ns: one.start_ns,
            duration_ns: one.duration_ns as f32,
            queued_ns,
            stalled_ns: stalled(one.start_ns, end),
            slowed_ns: 0.0,
            ahead_ns: known.map_or(-1.0, |(_, call, _)| ready.abs_diff(call) as f32),
            host_ns: known
                .and_then(|(.., host)| host)
                .map_or(-1.0, |ns| ns as f32),
            seq: seq.unwrap_or(NO_SEQ),
            kind: one.kind,
        });
    }
    if 2 * merged > exchanges.rows.len() {
        // Sequence numbers that hardly change do not identify exchanges.
        let unnumbered = exchanges.rows.iter().map(|one| Row {
            start_ns: one.start_ns,
            duration_ns: one.duration_ns as f32,
            queued_ns: 0.0,
            stalled_ns: stalled(
                one.start_ns,
                one.start_ns.saturating_add_unsigned(one.duration_ns),
            ),
            slowed_ns: 0.0,
            ahead_ns: -1.0,
            host_ns: -1.0,
            seq: NO_SEQ,
            kind: one.kind,
        });
        return unnumbered.collect();
    }
    rows
}

/// Returns two names: that with the most loader time, and that with the most time of the host's own work.
fn names(idles: &[&Idle], names: &Names) -> [String; 2] {
    let longest = |causes: &[Cause]| {
        let mut sums: HashMap<Name, u64> = HashMap::new();
        for idle in idles {
            for ((cause, because), (_, ns)) in &idle.reasons {
                if causes.contains(cause) {
                    *sums.entry(because.name).or_default() += ns;
                }
            }
        }
        let longest = sums.into_iter().max_by_key(|(name, ns)| (*ns, name.0));
        longest.map_or(String::new(), |(name, _)| {
            names.text(name).chars().take(120).collect()
        })
    };
    [longest(&[Cause::HostStarved]), longest(&[Cause::HostWork])]
}
