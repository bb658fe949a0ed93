//! Tries all legal executions of small programs: the checker reports exactly the pairs that can happen in both
//! orders, and where it reports nothing, only one outcome is possible.
//!
//! # Why trying sets of completed points tries all executions
//! The rule book says for each point of a program (a step on a thread or a stream) which points come before it. An
//! execution is a sequence of all points in which each comes after those. Its prefixes, seen as sets, contain with
//! each point everything before it, and each such set is a prefix of some execution. What happens next depends on the
//! set of completed points and on the memory, not on the sequence that led there. So every reachable pair of set and
//! memory is visited once, with every point that may come next, and nothing is sampled.
//!
//! Memory is divided into cells: the bytes between two neighbouring bounds of accesses, which all have the same
//! history. A cell stores who wrote it last. The outcome of an execution is, for every access, whose write it found
//! (a write finds what it replaces), and whose writes remain in the end.
//!
//! The search uses neither the clocks nor the shadow memory of the checker, only the promised edges.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::oracle;
use crate::oracle::generate::{Options, random_prog};
use crate::oracle::prog::{Act, Prog};
use crate::oracle::vary::varied;
use sidestream::check::{Checker, RaceKind};
use sidestream::log::Within;
use sidestream::op::{Access, BufferId, Kind, Mode, Op, SiteId};
use sidestream::order::{Chain, Early, Force, Frontier, Order, Outside, Performs, Step, Steps};
use sidestream_program::{Command, Lowered, lower};

#[test]
fn the_checker_reports_what_can_happen_in_both_orders() {
    let programs = oracle::programs(6_000, 60_000);
    println!("seeds 0..{programs}, options drawn from each seed");
    let mut total = Counts::default();
    for seed in 0..programs {
        let prog = draw(seed);
        let lowered = lower(&prog.to_program());
        let all = Executions::of(&lowered);
        let reported = reported(&lowered);
        let faults = faults(&all, &reported);
        assert!(
            faults.is_empty(),
            "seed {seed}\n{}\n{}",
            faults.join("\n"),
            prog.to_yaml()
        );
        total.add(&all, &reported);
    }
    println!("{total:#?}");
    let least = |times: f64| (times * programs as f64) as usize;
    assert!(total.clean as usize > least(0.33) && total.racy as usize > least(0.33));
    assert!(total.timing > least(0.08) && total.reversible > least(1.7));
    assert!(total.ordered_conflicts > least(8.3));
    assert!(total.executions > 1e3 * programs as f64);
}

/// The comparison is meaningful only if a wrong report fails it.
#[test]
fn a_report_with_one_race_more_or_less_is_noticed() {
    let (mut dropped, mut unnoticed, mut added) = (0, 0, 0);
    for seed in 0..300 {
        let lowered = lower(&draw(seed).to_program());
        let all = Executions::of(&lowered);
        let right = reported(&lowered);
        for left_out in 0..right.len() {
            let mut fewer = right.clone();
            fewer.remove(left_out);
            dropped += 1;
            unnoticed += u32::from(faults(&all, &fewer).is_empty());
        }
        let ordered = all.conflicts().into_iter().find(|c| !all.reversible(c));
        if let Some(conflict) = ordered {
            let mut more = right.clone();
            more.push(Reported {
                first: all.points[conflict.a].op,
                second: all.points[conflict.b].op,
                buffer: Some(conflict.buffer),
            });
            assert!(!faults(&all, &more).is_empty(), "seed {seed}");
            added += 1;
        }
    }
    println!("{dropped} races left out, {unnoticed} of them not adjacent; {added} added");
    assert!(dropped > 300 && added > 100);
    // A pair that is not adjacent may or may not be reported.
    assert!(unnoticed * 10 < dropped);
}

#[test]
fn two_kernels_without_an_order_have_two_outcomes() {
    let text = "version: 1\nname: two\nops:\n\
                - {do: kernel, s: s1, w: [A]}\n- {do: kernel, s: s2, r: [A]}\n";
    let all = explored(text);
    assert_eq!(all.executions, 2.0);
    assert_eq!(all.found[1][0], BTreeSet::from([UNWRITTEN, 0]));
    assert_eq!(all.left[0], BTreeSet::from([0]));
    let text = format!("{text}- {{do: sync_device}}\n- {{do: host_write, buf: A}}\n");
    let all = explored(&text.replace("[A]", "[M]").replace("buf: A", "buf: M"));
    assert_eq!(all.executions, 2.0);
    assert_eq!(all.found[3][0], BTreeSet::from([0]));
    assert_eq!(all.left[0], BTreeSet::from([3]));
}

fn explored(text: &str) -> Executions {
    let document = sidestream_program::parse(text, &Default::default()).expect("a document");
    let program = document.programs[0].as_ref().expect("a program");
    Executions::of(&lower(program))
}

/// Draws a program. Of every four programs one is small (at most seven things on streams); the others have up to
/// twelve things on streams, more ops and, in two of them, less care: the more is unordered, the more executions
/// there are. Every second group of four is varied.
fn draw(seed: u64) -> Prog {
    let (small, large) = (Options::small(seed), Options::from_seed(seed));
    let (ops, max_device_ops, care) = match seed % 4 {
        0 => (small.ops, 7, small.care),
        1 => (12, 12, large.care),
        2 => (14, 12, 30),
        _ => (10, 12, 0),
    };
    let options = Options {
        ops,
        max_device_ops,
        care,
        timing: large.timing,
        stream_lifetimes: large.stream_lifetimes,
        ..small
    };
    let mut prog = random_prog(seed, &options);
    // Here an atomic access is a write: only the last writer of some bytes is known.
    for line in &mut prog.ops {
        if let Act::Kernel { w, atomic, .. } | Act::GraphLaunch { w, atomic, .. } = &mut line.act {
            w.append(atomic);
        }
    }
    if seed / 4 % 2 == 1 {
        varied(&prog, seed)
    } else {
        prog
    }
}

#[derive(Debug, Default)]
struct Counts {
    executions: f64,
    states: usize,
    most_states: usize,
    points: usize,
    clean: u32,
    racy: u32,
    reported: usize,
    timing: usize,
    /// Numbers of conflicting pairs of accesses that happen in both orders, and in one only.
    reversible: usize,
    ordered_conflicts: usize,
    /// Numbers of accesses of one cell that find different writes, and always the same one.
    several_outcomes: usize,
    one_outcome: usize,
}

impl Counts {
    fn add(&mut self, all: &Executions, reported: &[Reported]) {
        self.executions += all.executions;
        self.states += all.states;
        self.most_states = self.most_states.max(all.states);
        self.points += all.points.len();
        self.clean += u32::from(reported.is_empty());
        self.racy += u32::from(!reported.is_empty());
        self.reported += reported.len();
        self.timing += reported.iter().filter(|r| r.buffer.is_none()).count();
        let conflicts = all.conflicts();
        let reversible = conflicts.iter().filter(|c| all.reversible(c)).count();
        self.reversible += reversible;
        self.ordered_conflicts += conflicts.len() - reversible;
        let found = all.found.iter().flatten().filter(|f| !f.is_empty());
        let several = found.clone().filter(|f| f.len() > 1).count();
        self.several_outcomes += several;
        self.one_outcome += found.count() - several;
    }
}

// ------------------------------------------------------------------ the checker's report

/// The parts of a race that are compared: the ops, and the buffer, which a TIMING race does not have.
#[derive(Clone, PartialEq, Debug)]
struct Reported {
    first: u32,
    second: u32,
    buffer: Option<BufferId>,
}

/// Returns what the checker reports if every op has its own call site, so that no two races count as equal.
fn reported(lowered: &Lowered) -> Vec<Reported> {
    let mut checker = Checker::new();
    lowered.declare(checker.order_mut());
    for buffer in &lowered.buffers {
        let within = buffer.over.map(|(buffer, start)| Within { buffer, start });
        checker.add_buffer(buffer.memory, buffer.size_bytes, within);
    }
    for op in ops(lowered) {
        let op = Op {
            site: SiteId(op.id.0),
            ..op.clone()
        };
        if checker.push(&op).is_err() {
            break;
        }
    }
    let races = checker.report().races;
    let reported = races.iter().map(|race| {
        assert_eq!(race.buffer.is_none(), race.kind == RaceKind::Timing);
        Reported {
            first: race.first.0,
            second: race.second.0,
            buffer: race.buffer,
        }
    });
    reported.collect()
}

fn ops(lowered: &Lowered) -> impl Iterator<Item = &Op> {
    lowered.commands.iter().filter_map(|command| match command {
        Command::Op(op) => Some(op),
        _ => None,
    })
}

// ------------------------------------------------------------------ all executions

/// No point has written the cell. Any other value is the number of the point that wrote it.
const UNWRITTEN: u8 = u8::MAX;

/// A step of an op, or the moment at which a thread asks for an elapsed time.
struct Point {
    op: u32,
    chain: Chain,
    /// The points that come directly before it, and a set of points of which one comes before it, if there is one.
    before: u64,
    any_of: u64,
    touches: Vec<Touch>,
    /// For an elapsed time: the records of the later and of the earlier event.
    asks: Option<[usize; 2]>,
}

/// An access, restricted to one cell.
#[derive(Clone, Copy)]
struct Touch {
    cell: usize,
    writes: bool,
    buffer: BufferId,
}

struct Executions {
    points: Vec<Point>,
    /// Number of executions.
    executions: f64,
    /// Number of visited pairs of completed points and memory.
    states: usize,
    /// By point: the points that, in some execution, are not complete when this point is.
    ahead_of: Vec<u64>,
    /// By point and cell: whose writes the point finds there, over all executions.
    found: Vec<Vec<BTreeSet<u8>>>,
    /// By cell: whose writes remain in the end.
    left: Vec<BTreeSet<u8>>,
}

/// Two accesses of two ops to one cell, at least one of which is a write. `buffer` is the name that the second op
/// uses.
struct Conflict {
    a: usize,
    b: usize,
    cell: usize,
    buffer: BufferId,
    first_reads: bool,
}

impl Executions {
    fn of(lowered: &Lowered) -> Executions {
        let (points, cells) = points(lowered);
        assert!(points.len() < 64, "points are bits of a word");
        let mut all = Executions {
            executions: 0.0,
            states: 0,
            ahead_of: vec![0; points.len()],
            found: vec![vec![BTreeSet::new(); cells]; points.len()],
            left: vec![BTreeSet::new(); cells],
            points,
        };
        all.explore(cells);
        all
    }

    fn explore(&mut self, cells: usize) {
        let everything = (1u64 << self.points.len()) - 1;
        // All states with the same number of completed points, each with the number of ways that lead to its set of
        // points.
        let mut states = HashSet::from([(0u64, vec![UNWRITTEN; cells])]);
        let mut ways = HashMap::from([(0u64, 1.0)]);
        for _ in 0..self.points.len() {
            let mut next_ways = HashMap::new();
            for (&done, &ways) in &ways {
                for at in self.enabled(done) {
                    self.ahead_of[at] |= everything & !done & !(1 << at);
                    *next_ways.entry(done | 1 << at).or_insert(0.0) += ways;
                }
            }
            let mut next = HashSet::new();
            for (done, memory) in &states {
                for at in self.enabled(*done) {
                    let mut after = memory.clone();
                    for touch in &self.points[at].touches {
                        self.found[at][touch.cell].insert(memory[touch.cell]);
                        if touch.writes {
                            after[touch.cell] = at as u8;
                        }
                    }
                    next.insert((done | 1 << at, after));
                }
            }
            self.states += states.len();
            (states, ways) = (next, next_ways);
        }
        self.executions = ways[&everything];
        for (_, memory) in &states {
            for (left, &writer) in self.left.iter_mut().zip(memory) {
                left.insert(writer);
            }
        }
    }

    /// Returns the points that may come next.
    fn enabled(&self, done: u64) -> Vec<usize> {
        let next = |&at: &usize| {
            let Point { before, any_of, .. } = self.points[at];
            let is_next = done >> at & 1 == 0 && before & !done == 0;
            is_next && (any_of == 0 || any_of & done != 0)
        };
        (0..self.points.len()).filter(next).collect()
    }

    /// Returns whether some execution has the two points in this order.
    fn happens(&self, first: usize, second: usize) -> bool {
        self.ahead_of[first] >> second & 1 == 1
    }

    fn reversible(&self, conflict: &Conflict) -> bool {
        self.happens(conflict.a, conflict.b) && self.happens(conflict.b, conflict.a)
    }

    fn conflicts(&self) -> Vec<Conflict> {
        let mut conflicts = Vec::new();
        for (b, later) in self.points.iter().enumerate() {
            for (a, earlier) in self.points.iter().enumerate() {
                if earlier.op >= later.op {
                    continue;
                }
                for x in &earlier.touches {
                    let same = later.touches.iter().filter(|y| y.cell == x.cell);
                    conflicts.extend(same.filter(|y| x.writes || y.writes).map(|y| Conflict {
                        a,
                        b,
                        cell: x.cell,
                        buffer: y.buffer,
                        first_reads: !x.writes,
                    }));
                }
            }
        }
        conflicts
    }

    /// Returns whether nothing comes between the two in call order: no write to the cell and, if the first reads, no
    /// later read of the same stream or thread.
    fn adjacent(&self, conflict: &Conflict) -> bool {
        let (first, second) = (&self.points[conflict.a], &self.points[conflict.b]);
        !self.points.iter().any(|point| {
            first.op < point.op
                && point.op < second.op
                && point.touches.iter().any(|touch| {
                    let hides = touch.writes || conflict.first_reads && point.chain == first.chain;
                    touch.cell == conflict.cell && hides
                })
        })
    }
}

/// Returns the points of a program, as the rule book orders them, and the number of cells of its memory.
fn points(lowered: &Lowered) -> (Vec<Point>, usize) {
    let cells = cells(lowered);
    let mut order = Order::new();
    lowered.declare(&mut order);
    let mut frontier = Frontier::default();
    let mut points: Vec<Point> = Vec::new();
    let mut records = HashMap::new();
    let mut steps = Steps::new();
    for op in ops(lowered) {
        // A call that CUDA refuses ends the program.
        if order.push(op, &mut steps).is_err() {
            break;
        }
        let mut asks = None;
        if let Kind::Elapsed { from, to } = op.kind {
            asks = Some([records[&to], records[&from]]);
            steps.push(Step {
                chain: Chain::Thread(op.thread),
                edges: Default::default(),
                performs: Performs::Nothing,
                early: Early::Nothing,
                outside: Outside::Nothing,
                staged: false,
                freezes: None,
                beside: false,
            });
        }
        for step in &steps {
            let mut before = Vec::new();
            frontier.before(step, Force::Promised, &order, &mut before);
            let any_of = frontier.any_of(step, Force::Promised);
            let any_of = any_of.iter().fold(0_u64, |set, at| set | 1_u64 << at);
            let here = points.len();
            frontier.advance(step, here);
            let accesses = op.accesses.iter().filter(|a| step.performs.includes(a));
            points.push(Point {
                op: op.id.0,
                chain: step.chain,
                before: before.iter().fold(0, |set, at| set | 1 << at),
                any_of,
                touches: accesses.flat_map(|a| cells.of(lowered, a)).collect(),
                asks,
            });
            if let Kind::Record { event, .. } = op.kind {
                records.insert(event, here);
            }
        }
    }
    (points, cells.count)
}

/// The bounds of a program's accesses, by memory, with the number of the cell that begins there.
struct Cells {
    borders: HashMap<BufferId, BTreeMap<u64, usize>>,
    count: usize,
}

fn cells(lowered: &Lowered) -> Cells {
    let mut borders: HashMap<BufferId, BTreeMap<u64, usize>> = HashMap::new();
    for access in ops(lowered).flat_map(|op| &op.accesses) {
        let (memory, start, end) = physical(lowered, access);
        let borders = borders.entry(memory).or_default();
        borders.extend([(start, 0), (end, 0)]);
    }
    let mut count = 0;
    for number in borders.values_mut().flat_map(BTreeMap::values_mut) {
        *number = count;
        count += 1;
    }
    Cells { borders, count }
}

impl Cells {
    fn of(&self, lowered: &Lowered, access: &Access) -> Vec<Touch> {
        let (memory, start, end) = physical(lowered, access);
        let within = self.borders[&memory].range(start..end);
        let touch = |(_, &cell): (&u64, &usize)| Touch {
            cell,
            writes: access.mode != Mode::Read,
            buffer: access.buffer,
        };
        within.map(touch).collect()
    }
}

/// Returns the memory of an access: bytes of the buffer at the bottom of all tenancies.
fn physical(lowered: &Lowered, access: &Access) -> (BufferId, u64, u64) {
    let (mut buffer, mut offset) = (access.buffer, 0);
    while let Some((below, start)) = lowered.buffers[buffer.0 as usize].over {
        (buffer, offset) = (below, offset + start);
    }
    (buffer, access.start + offset, access.end + offset)
}

// ------------------------------------------------------------------ the comparison

/// Returns the differences between a report and the executions; empty if the report is right.
fn faults(all: &Executions, reported: &[Reported]) -> Vec<String> {
    let mut faults = Vec::new();
    let conflicts = all.conflicts();
    let races: Vec<&Conflict> = conflicts.iter().filter(|c| all.reversible(c)).collect();
    let as_reported = |c: &Conflict| Reported {
        first: all.points[c.a].op,
        second: all.points[c.b].op,
        buffer: Some(c.buffer),
    };
    for wanted in races.iter().filter(|c| all.adjacent(c)) {
        if !reported.contains(&as_reported(wanted)) {
            faults.push(format!("not reported: {:?}", as_reported(wanted)));
        }
    }
    for entry in reported.iter().filter(|entry| entry.buffer.is_some()) {
        let mut same = races.iter().filter(|c| as_reported(c) == *entry);
        if !same.clone().any(|_| true) {
            faults.push(format!("never happens in both orders: {entry:?}"));
        } else if !same.all(|c| all.found[c.a][c.cell].len() + all.found[c.b][c.cell].len() > 2) {
            faults.push(format!("the outcome is always the same: {entry:?}"));
        }
    }
    // A cell has several outcomes exactly if some pair races there.
    for cell in 0..all.left.len() {
        let open = all.left[cell].len() > 1 || all.found.iter().any(|found| found[cell].len() > 1);
        if open != races.iter().any(|c| c.cell == cell) {
            faults.push(format!("cell {cell}: several outcomes is {open}"));
        }
    }
    if reported.is_empty() && !races.is_empty() {
        faults.push("called clean, with races".to_owned());
    }
    for point in &all.points {
        let entry = reported
            .iter()
            .find(|r| r.buffer.is_none() && r.second == point.op);
        let here = all.points.iter().position(|p| std::ptr::eq(p, point));
        let early = |&record: &usize| here.is_some_and(|here| all.happens(here, record));
        let unknown = point
            .asks
            .and_then(|records| records.into_iter().find(early));
        let wanted = unknown.map(|record| all.points[record].op);
        if point.asks.is_some() && entry.map(|r| r.first) != wanted {
            faults.push(format!("op {}: time of {wanted:?}, {entry:?}", point.op));
        }
    }
    faults
}
