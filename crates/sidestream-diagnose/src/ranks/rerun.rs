//! Replays a run from each rank's own work and its stalls: how long would a step take if one rank were as fast as the median?
//!
//! A rank's time consists of its own work and its stalls: times before the end of an exchange in which only communication ran,
//! so that the rank stalled until the exchange was complete. Own work is replayed as it was. An exchange starts when the rank's
//! own work reaches it, and not before the previous exchange in its group is complete; it ends as long after the arrival of its
//! last member as it did in the trace; a rank that stalled before its end does so again, if it has arrived by then.
//!
//! Where a change makes ranks wait less, two things that waiting hid or caused are replayed as well: the host, which may launch
//! an exchange later than the rank would be ready for it, and the kernels, which were slower beside an exchange that waited.

use std::collections::HashMap;

use super::clocks::Clocks;
use super::join::{Bond, Joined, row};
use crate::digest::Digest;
use crate::sort::order_by;

/// The events of a rank in order, each with the rank's own work since the previous event.
#[derive(Clone, Copy, Debug)]
struct Event {
    what: What,
    own_ns: f32,
    /// Number of steps that the rank has completed.
    step: u32,
}

/// Own work that would be shorter if an exchange did not wait.
#[derive(Clone, Copy, Debug)]
struct Slowed {
    /// Index of the event before which the work is done.
    event: usize,
    /// The row of the exchange.
    row: u32,
    ns: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The rank stalls until this exchange is complete.
    Stall(u32),
    /// A measured span begins (true) or ends (false).
    Mark(bool),
    /// The rank starts this exchange.
    Start(u32),
}

/// A run that is ready to be replayed.
pub struct Rerun<'r> {
    ranks: &'r [(u32, &'r Digest)],
    joined: &'r Joined,
    clocks: &'r Clocks,
    events: Vec<Vec<Event>>,
    /// How much of the events' own work exchanges that wait cost, in the order of the events.
    slowed: Vec<Vec<Slowed>>,
    /// How long each rank waited in each of its rows.
    waited: Vec<Vec<f32>>,
    /// The exchanges in the order of their ends.
    order: Vec<u32>,
    /// Start of the first of all rows.
    begin_ns: i64,
    /// Number of steps between the marks of a rank.
    steps: u64,
}

/// How a rank's own work is changed.
pub enum Pace<'p> {
    /// The length of each stretch of work before an exchange, in nanoseconds, and that of the host's work before its launch.
    Each(&'p [[f32; 2]]),
    /// All of the rank's own work takes this many times as long.
    Factor(f64),
}

impl<'r> Rerun<'r> {
    /// Prepares a run.
    pub fn of(ranks: &'r [(u32, &'r Digest)], joined: &'r Joined, clocks: &'r Clocks) -> Rerun<'r> {
        let end = |at: &u32| {
            let members = joined.of(&joined.instances[*at as usize]);
            let ends = members
                .iter()
                .map(|m| clocks.common_ns(m.rank, row(ranks, m).end_ns()));
            ends.max().unwrap_or(0)
        };
        let mut order: Vec<u32> = (0..joined.instances.len() as u32).collect();
        order_by(&mut order, |at| end(at));
        let steps = ranks
            .iter()
            .map(|(_, digest)| digest.ends_ns.len())
            .min()
            .unwrap_or(0);
        let steps = (steps as u64).saturating_sub(1);
        let none = ranks.iter().map(|(_, digest)| vec![0.0; digest.rows.len()]);
        let mut waited: Vec<Vec<f32>> = none.collect();
        let mut worked = waited.clone();
        for instance in &joined.instances {
            let members = joined.of(instance);
            let durations = members.iter().map(|m| row(ranks, m).duration_ns);
            let least = durations.fold(f32::INFINITY, f32::min);
            if !matches!(instance.bond, Bond::Together | Bond::Pair) {
                continue;
            }
            for member in members {
                let (rank, at) = (member.rank as usize, member.row as usize);
                waited[rank][at] = row(ranks, member).duration_ns - least;
                worked[rank][at] = least;
            }
        }
        let each = ranks.iter().zip(waited.iter().zip(&mut worked));
        let each = each.map(|((_, digest), (waited, worked))| {
            queued(digest, worked);
            events(digest, steps as usize, (waited, worked))
        });
        let (events, slowed) = each.unzip();
        let firsts = ranks.iter().enumerate().filter_map(|(at, (_, digest))| {
            Some(clocks.common_ns(at as u32, digest.rows.first()?.start_ns))
        });
        Rerun {
            ranks,
            joined,
            clocks,
            events,
            slowed,
            waited,
            order,
            begin_ns: firsts.min().unwrap_or(0),
            steps: steps.max(1),
        }
    }

    /// Returns the time of a rank's own work in each step, and how much of it exchanges that waited cost.
    pub fn own_ns(&self, rank: usize) -> Vec<[f64; 2]> {
        let events = &self.events[rank];
        let mut each = vec![[0.0; 2]; self.steps as usize];
        let mut add = |event: &Event, part: usize, ns: f32| {
            let at = event.step.checked_sub(1);
            if let Some(of_step) = at.and_then(|at| each.get_mut(at as usize)) {
                of_step[part] += f64::from(ns);
            }
        };
        events.iter().for_each(|event| add(event, 0, event.own_ns));
        let slowed = self.slowed[rank].iter();
        slowed.for_each(|slowed| add(&events[slowed.event], 1, slowed.ns));
        each
    }

    /// Returns the time of a rank's own work before each of its exchanges, and of its host's; `had_none_waited` leaves out what
    /// exchanges that waited cost.
    pub fn stretches(&self, rank: usize, had_none_waited: bool) -> Vec<[f32; 2]> {
        let mut stretches = Vec::new();
        let mut own = 0.0;
        let mut slowed = self.slowed[rank].iter().peekable();
        for (at, event) in self.events[rank].iter().enumerate() {
            own += event.own_ns;
            while let Some(of_event) = slowed.next_if(|s| s.event == at) {
                own -= if had_none_waited { of_event.ns } else { 0.0 };
            }
            if let What::Start(row) = event.what {
                stretches.push([own, self.ranks[rank].1.rows[row as usize].host_ns]);
                own = 0.0;
            }
        }
        stretches
    }

    /// Returns the time of a step, with another pace for one rank; and how long that rank's device then waits for its host in
    /// each.
    pub fn step_ns(&self, changed: Option<(usize, &Pace)>) -> (f64, Vec<f64>) {
        let mut run = Run::of(self, changed);
        for at in &self.order {
            let instance = &self.joined.instances[*at as usize];
            let members = self.joined.of(instance);
            let mut last = f64::MIN;
            for member in members {
                last = last.max(run.start(member.rank as usize, member.row));
            }
            let durations = members.iter().map(|m| row(self.ranks, m).duration_ns);
            let least = f64::from(durations.fold(f32::INFINITY, f32::min));
            let came = match instance.bond {
                Bond::Rooted => members
                    .iter()
                    .map(|m| self.since(m.rank, row(self.ranks, m).start_ns))
                    .fold(f64::MIN, f64::max),
                Bond::Together | Bond::Pair | Bond::Buffered => 0.0,
            };
            let sent = members
                .iter()
                .map(|m| self.since(m.rank, row(self.ranks, m).end_ns()));
            let sent = sent.fold(f64::INFINITY, f64::min);
            for member in members {
                let rank = member.rank as usize;
                let of_row = row(self.ranks, member);
                let start = run.starts[rank][member.row as usize];
                let alone = start + f64::from(of_row.duration_ns);
                let end = match instance.bond {
                    Bond::Together | Bond::Pair => last + least,
                    // The member that ended first is the send, which waits for no other rank.
                    Bond::Buffered if self.since(member.rank, of_row.end_ns()) <= sent => alone,
                    Bond::Buffered => {
                        let of_send = members.iter().filter(|m| m.rank != member.rank).map(|m| {
                            let lasted = f64::from(row(self.ranks, m).duration_ns);
                            run.starts[m.rank as usize][m.row as usize] + lasted
                        });
                        of_send.fold(alone, f64::max)
                    }
                    Bond::Rooted => {
                        let behind = self.since(member.rank, of_row.end_ns()) - came;
                        if behind < 0.0 { alone } else { last + behind }
                    }
                };
                run.ends[rank][member.row as usize] = end;
                run.waits[rank][member.row as usize] = last - start;
            }
        }
        run.finish()
    }

    fn since(&self, rank: u32, time_ns: i64) -> f64 {
        self.clocks
            .common_ns(rank, time_ns)
            .saturating_sub(self.begin_ns) as f64
    }
}

/// Adds to each exchange that others of its group queued behind, while it waited, how long those work: had it not waited, they
/// would have worked in that time.
fn queued(digest: &Digest, worked: &mut [f32]) {
    let mut first: HashMap<u32, usize> = HashMap::new();
    for (at, row) in digest.rows.iter().enumerate() {
        let group = digest.kinds[row.kind as usize].group;
        match first.get(&group) {
            Some(held) if digest.rows[*held].end_ns() > row.ready_ns() => {
                worked[*held] += worked[at]
            }
            _ => _ = first.insert(group, at),
        }
    }
}

/// Returns the events of a rank, over the first `steps` steps after the first one, and which of their work exchanges slowed that
/// waited, and worked, this long.
fn events(
    digest: &Digest,
    steps: usize,
    (waited, worked): (&[f32], &[f32]),
) -> (Vec<Event>, Vec<Slowed>) {
    let mut stalls: Vec<(i64, i64)> = digest.rows.iter().filter_map(|row| row.stall()).collect();
    stalls.sort_unstable();
    // The union of the spans, with the total time covered before each of them.
    let mut union: Vec<(i64, i64, i64)> = Vec::new();
    let mut before: i64 = 0;
    for (from, to) in stalls {
        match union.last_mut() {
            Some(last) if from <= last.1 => {
                before = i64::saturating_add(before, to.saturating_sub(last.1).max(0));
                last.1 = last.1.max(to);
            }
            _ => {
                union.push((from, to, before));
                before = before.saturating_add(to.saturating_sub(from));
            }
        }
    }
    let own = |time: i64| {
        let at = union.partition_point(|stall| stall.0 < time);
        let stalled = at.checked_sub(1).map_or(0, |at| {
            let (from, to, before) = union[at];
            before.saturating_add(time.min(to).saturating_sub(from))
        });
        time.saturating_sub(stalled)
    };
    let mut times: Vec<(i64, What)> = Vec::with_capacity(2 * digest.rows.len() + 2);
    for (at, row) in digest.rows.iter().enumerate() {
        times.push((row.ready_ns(), What::Start(at as u32)));
        if row.stalled_ns >= 0.0 {
            times.push((row.end_ns(), What::Stall(at as u32)));
        }
    }
    let marks = match digest.ends_ns.get(steps) {
        Some(last) if steps > 0 => Some((digest.ends_ns[0], *last)),
        _ => {
            let ends = digest.rows.iter().map(|row| row.end_ns()).max();
            digest.rows.first().map(|row| row.start_ns).zip(ends)
        }
    };
    if let Some((from, to)) = marks {
        times.push((from, What::Mark(false)));
        times.push((to, What::Mark(true)));
    }
    times.sort_unstable();
    let mut before = times.first().map_or(0, |first| own(first.0));
    let mut events = Vec::with_capacity(times.len());
    let mut slowed: Vec<Slowed> = Vec::new();
    for (row, waited_ns) in waited.iter().enumerate() {
        let of_row = &digest.rows[row];
        let from = of_row.start_ns;
        // The kernels beside the exchange ran while it waited and while it worked, but not while the rank stalled.
        let to = of_row.stall().map_or(of_row.end_ns(), |stall| stall.0);
        let beside = own(to).saturating_sub(own(from));
        if of_row.slowed_ns <= 0.0 || *waited_ns <= 0.0 || beside <= 0 {
            continue;
        }
        let rate = (of_row.slowed_ns / beside as f32).min(1.0);
        let mut start = own(from);
        let to = start
            .saturating_add(beside)
            .saturating_sub(worked[row] as i64);
        let to = to.min(own(from.saturating_add(*waited_ns as i64)));
        let first = times.partition_point(|event| event.0 <= from);
        for (event, end) in times
            .iter()
            .enumerate()
            .skip(first)
            .map(|(at, e)| (at, own(e.0)))
        {
            let ns = rate * end.min(to).saturating_sub(start).max(0) as f32;
            slowed.push(Slowed {
                event,
                row: row as u32,
                ns,
            });
            start = start.max(end);
            if end >= to {
                break;
            }
        }
    }
    order_by(&mut slowed, |s| (s.event, s.row));
    for (time, what) in times {
        let own = own(time);
        events.push(Event {
            what,
            own_ns: own.saturating_sub(before).max(0) as f32,
            step: match steps {
                0 => 1,
                _ => digest.ends_ns.partition_point(|end| *end < time) as u32,
            },
        });
        before = own;
    }
    (events, slowed)
}

/// A replay in progress.
struct Run<'r, 'p> {
    rerun: &'r Rerun<'r>,
    changed: Option<(usize, &'p Pace<'p>)>,
    /// The time of own work before each exchange of the rank that is changed.
    stretches: Vec<[f32; 2]>,
    ranks: Vec<State>,
    starts: Vec<Vec<f64>>,
    ends: Vec<Vec<f64>>,
    waits: Vec<Vec<f64>>,
    /// How long the device of the changed rank waits for its host in each step.
    hosted_ns: Vec<f64>,
}

struct State {
    next: usize,
    stretch: usize,
    slowed: usize,
    time: f64,
    /// When the host launched the last exchange.
    launched: f64,
    marks: [f64; 2],
    /// The last exchange that was started in each group.
    last: HashMap<u32, u32>,
}

impl<'r, 'p> Run<'r, 'p> {
    fn of(rerun: &'r Rerun<'r>, changed: Option<(usize, &'p Pace<'p>)>) -> Run<'r, 'p> {
        let state = |(at, (_, digest)): (usize, &(u32, &Digest))| {
            let mut first = digest.rows.iter().map(|row| row.ready_ns()).min();
            if let [end, ..] = digest.ends_ns[..] {
                first = Some(first.map_or(end, |first| first.min(end)));
            }
            State {
                next: 0,
                stretch: 0,
                slowed: 0,
                launched: f64::MIN,
                time: first.map_or(0.0, |first| rerun.since(at as u32, first)),
                marks: [0.0; 2],
                last: HashMap::new(),
            }
        };
        let rows = |value: f64| -> Vec<Vec<f64>> {
            let each = rerun.ranks.iter();
            each.map(|(_, digest)| vec![value; digest.rows.len()])
                .collect()
        };
        Run {
            rerun,
            changed,
            stretches: changed.map_or_else(Vec::new, |(rank, _)| rerun.stretches(rank, false)),
            ranks: rerun.ranks.iter().enumerate().map(state).collect(),
            starts: rows(f64::NAN),
            ends: rows(f64::NAN),
            waits: rows(f64::NAN),
            hosted_ns: vec![0.0; rerun.steps as usize],
        }
    }

    /// Advances a rank to the start of an exchange, and returns its time.
    fn start(&mut self, rank: usize, row: u32) -> f64 {
        while self.starts[rank][row as usize].is_nan() && self.next(rank) {}
        let start = self.starts[rank][row as usize];
        if start.is_nan() {
            self.ranks[rank].time
        } else {
            start
        }
    }

    /// Processes the next event of a rank; returns false if there is none.
    fn next(&mut self, rank: usize) -> bool {
        let state = &mut self.ranks[rank];
        let Some(event) = self.rerun.events[rank].get(state.next) else {
            return false;
        };
        let at = state.next;
        state.next += 1;
        let mut own = f64::from(event.own_ns);
        let all_slowed = &self.rerun.slowed[rank];
        while let Some(slowed) = all_slowed.get(state.slowed).filter(|s| s.event == at) {
            state.slowed += 1;
            let waits = self.waits[rank][slowed.row as usize];
            let waited = f64::from(self.rerun.waited[rank][slowed.row as usize]);
            if self.changed.is_some() && waits < waited {
                own -= f64::from(slowed.ns) * (1.0 - waits / waited);
            }
        }
        let pace = self.changed.filter(|(changed, _)| *changed == rank);
        let mut host_ns = None;
        state.time += match pace.map(|(_, pace)| pace) {
            Some(Pace::Factor(factor)) => own * factor,
            Some(Pace::Each(paces)) => {
                let measured = self.stretches.get(state.stretch).map_or(0.0, |s| s[0]);
                match paces.get(state.stretch) {
                    Some([pace, host]) if measured > 0.0 => {
                        host_ns = Some(*host);
                        f64::from(event.own_ns * pace / measured)
                    }
                    _ => own,
                }
            }
            None => own,
        };
        let digest = self.rerun.ranks[rank].1;
        // An exchange that was not joined ends as long after its start as it did in the trace.
        let end = |run: &[Vec<f64>], starts: &[Vec<f64>], at: u32| match run[rank][at as usize] {
            end if end.is_nan() => {
                starts[rank][at as usize] + f64::from(digest.rows[at as usize].duration_ns)
            }
            end => end,
        };
        match event.what {
            What::Stall(at) => state.time = state.time.max(end(&self.ends, &self.starts, at)),
            What::Mark(is_end) => state.marks[usize::from(is_end)] = state.time,
            What::Start(at) => {
                state.stretch += 1;
                let of_row = &digest.rows[at as usize];
                if of_row.ahead_ns >= 0.0 {
                    let ahead = state.time - f64::from(of_row.ahead_ns);
                    let host_ns = host_ns.unwrap_or(of_row.host_ns);
                    // Between steps, the host may have waited for what the trace does not show.
                    state.launched = if host_ns >= 0.0 {
                        ahead.max(state.launched + f64::from(host_ns))
                    } else {
                        ahead
                    };
                    let late = (state.launched - state.time).max(0.0);
                    state.time += late;
                    let step = event.step.checked_sub(1).map(|step| step as usize);
                    let of_step = step.and_then(|step| self.hosted_ns.get_mut(step));
                    if let Some(ns) = of_step.filter(|_| pace.is_some()) {
                        *ns += late;
                    }
                }
                let group = digest.kinds[digest.rows[at as usize].kind as usize].group;
                let before = state.last.insert(group, at);
                let free = before.filter(|before| {
                    let (before, this) =
                        (&digest.rows[*before as usize], &digest.rows[at as usize]);
                    before.end_ns() <= this.start_ns
                });
                let free = free.map_or(f64::MIN, |before| end(&self.ends, &self.starts, before));
                self.starts[rank][at as usize] = state.time.max(free);
            }
        }
        true
    }

    fn finish(mut self) -> (f64, Vec<f64>) {
        for rank in 0..self.ranks.len() {
            while self.next(rank) {}
        }
        // Only ranks with a common time are compared; of several such sets, the longest step counts.
        let mut sets: HashMap<u32, [f64; 2]> = HashMap::new();
        for (at, state) in self.ranks.iter().enumerate() {
            if !self.rerun.ranks[at].1.rows.is_empty() {
                let most = sets
                    .entry(self.rerun.clocks.parts[at])
                    .or_insert([f64::MIN; 2]);
                most[0] = most[0].max(state.marks[0]);
                most[1] = most[1].max(state.marks[1]);
            }
        }
        let steps = sets.values().map(|[from, to]| to - from);
        let step_ns = steps.fold(0.0, f64::max) / self.rerun.steps as f64;
        (step_ns, self.hosted_ns)
    }
}
