//! The rule book against the oracle, an independent model of the same rules, on random programs;
//! and the rule book with a rule broken, which the comparison has to notice.

mod oracle;

use std::collections::HashMap;

use oracle::generate::{Options, random_prog};
use oracle::model::{Answer, Point, judge};
use oracle::prog::Prog;
use sidestream::op::{DeviceId, Kind, Memory, Op, StreamKind, ThreadId};
use sidestream::order::{
    After, Chain, Clocks, Edge, Epoch, Force, Order, Performs, RecordId, Rule, Step, Steps,
};
use sidestream_program::{Command, Lowered, lower};

/// How many random programs are compared.
const PROGRAMS: u64 = 20_000;

#[test]
fn order_agrees_with_the_oracle() {
    println!("seeds 0..{PROGRAMS}, options drawn from each seed");
    for seed in 0..PROGRAMS {
        let prog = draw(seed);
        if let Some(why) = disagreement(&prog, Break::Nothing) {
            panic!(
                "seed {seed}, {:?}\n{why}\n{}",
                Options::from_seed(seed),
                prog.to_yaml()
            );
        }
    }
}

#[test]
fn order_agrees_with_the_oracle_on_the_samples() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/litmus");
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).expect("the samples are there") {
        let text = std::fs::read_to_string(entry.expect("readable").path()).expect("readable");
        let document = sidestream_program::parse(&text, &Default::default()).expect("well formed");
        for program in document.programs {
            let prog = Prog::from_program(&program.expect("well formed"));
            if let Some(why) = disagreement(&prog, Break::Nothing) {
                panic!("{why}\n{}", prog.to_yaml());
            }
            compared += 1;
        }
    }
    assert!(compared >= 14);
}

/// A rule book with one rule broken. The list, with what noticed it, is in docs/reliability.md.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Break {
    Nothing,
    /// Edges of this rule are left out.
    Drop(u8),
    /// R1: every second step of a stream is on another chain.
    StreamsOutOfOrder,
    /// R2: every stream action waits for all streams of device 0.
    EverythingOrdered,
    /// R4: a thread that feeds a stream learns what others did there.
    FeedingOrdersThreads,
    /// R5: a record stands for what its stream gets later, too.
    RecordsGrow,
    /// R7: recording again changes nothing.
    FirstRecordStays,
    /// R10: a query that answers "not yet" proves as much as one that answers "done".
    NotYetIsDone,
    /// R13: destroying a stream waits for it.
    DestroyWaits,
    /// R15: non-blocking streams are blocking ones.
    NoNonBlocking,
    /// R20: a blocking copy within devices blocks.
    DeviceCopyBlocks,
    /// R22, R27, R31: what was observed is promised.
    ObservedIsPromised,
    /// R25: an asynchronous copy of pinned memory blocks.
    PinnedCopyBlocks,
    /// R26: managed memory counts as pinned.
    ManagedIsPinned,
    /// R40: a wait for an event of another device waits for nothing.
    NoForeignWaits,
    /// R41: a device synchronisation covers device 0 whatever is asked.
    SyncsDeviceZero,
    /// R42: all devices share the legacy stream of device 0.
    OneLegacyStream,
    /// R54: the events of a free stand for later work, too.
    FreesGrow,
    /// R11, R38, R43, R45 to R48: calls that this rule refuses succeed.
    Allow(u8),
}

const BREAKS: &[Break] = &[
    Break::Drop(3),
    Break::Drop(6),
    Break::Drop(9),
    Break::Drop(14),
    Break::Drop(16),
    Break::Drop(18),
    Break::Drop(19),
    Break::Drop(21),
    Break::Drop(23),
    Break::Drop(24),
    Break::Drop(28),
    Break::Drop(49),
    Break::Drop(50),
    Break::Drop(53),
    Break::StreamsOutOfOrder,
    Break::EverythingOrdered,
    Break::FeedingOrdersThreads,
    Break::RecordsGrow,
    Break::FirstRecordStays,
    Break::NotYetIsDone,
    Break::DestroyWaits,
    Break::NoNonBlocking,
    Break::DeviceCopyBlocks,
    Break::ObservedIsPromised,
    Break::PinnedCopyBlocks,
    Break::ManagedIsPinned,
    Break::NoForeignWaits,
    Break::SyncsDeviceZero,
    Break::OneLegacyStream,
    Break::FreesGrow,
    Break::Allow(11),
    Break::Allow(38),
    Break::Allow(43),
    Break::Allow(45),
    Break::Allow(46),
    Break::Allow(47),
    Break::Allow(48),
];

#[test]
fn a_broken_rule_is_noticed() {
    let mut unnoticed = Vec::new();
    for &broken in BREAKS {
        let noticed = (0..PROGRAMS).find(|&seed| disagreement(&draw(seed), broken).is_some());
        match noticed {
            Some(seed) => println!("{broken:?}: noticed by seed {seed}"),
            None => unnoticed.push(broken),
        }
    }
    assert!(unnoticed.is_empty(), "nothing notices {unnoticed:?}");
}

fn draw(seed: u64) -> Prog {
    random_prog(seed, &Options::from_seed(seed))
}

/// Where the rule book and the oracle differ on a program.
fn disagreement(prog: &Prog, broken: Break) -> Option<String> {
    let answer = judge(prog);
    if !answer.outside.is_empty() {
        return None;
    }
    let lowered = lower(&prog.to_program());
    let mut book = Book::new(&lowered, broken);
    for command in &lowered.commands {
        let Command::Op(op) = command else { continue };
        let at = op.id.0 as usize;
        let refused = answer.error.filter(|&(failing, _)| failing == at);
        match (book.push(op), refused) {
            (Err(code), Some((_, wanted))) if code == wanted => return book.compare(&answer),
            (Ok(()), None) => {}
            (seen, wanted) => {
                return Some(format!(
                    "op {at}: order says {seen:?}, the oracle {wanted:?}"
                ));
            }
        }
    }
    book.compare(&answer)
}

/// The rule book with its clocks, asking after every step what is known of every point before it.
struct Book<'a> {
    lowered: &'a Lowered,
    broken: Break,
    order: Order,
    clocks: Clocks,
    steps: Steps,
    points: Vec<((usize, Point), Epoch)>,
    /// By pair of points: whether the rule book says that they are ordered.
    known: Vec<((usize, Point), (usize, Point), bool)>,
    recorded_in: HashMap<RecordId, Chain>,
    of_free: HashMap<RecordId, bool>,
    flips: u32,
}

impl<'a> Book<'a> {
    fn new(lowered: &'a Lowered, broken: Break) -> Book<'a> {
        let mut order = Order::new();
        let mut declared = lowered.clone();
        for stream in &mut declared.streams {
            if broken == Break::NoNonBlocking && stream.kind == StreamKind::NonBlocking {
                stream.kind = StreamKind::Blocking;
            }
        }
        declared.declare(&mut order);
        Book {
            lowered,
            broken,
            order,
            clocks: Clocks::new(match broken {
                Break::ObservedIsPromised => Force::Observed,
                _ => Force::Promised,
            }),
            steps: Steps::new(),
            points: Vec::new(),
            known: Vec::new(),
            recorded_in: HashMap::new(),
            of_free: HashMap::new(),
            flips: 0,
        }
    }

    fn push(&mut self, op: &Op) -> Result<(), &'static str> {
        let at = op.id.0 as usize;
        let thread = Chain::Thread(op.thread);
        self.ask(thread, (at, Point::Call));
        let mut op = op.clone();
        self.break_op(&mut op);
        let mut steps = std::mem::take(&mut self.steps);
        let runs = self.order.push(&op, &mut steps);
        if let Err(misuse) = runs {
            self.steps = steps;
            if self.broken == Break::Allow(misuse.rule.0) {
                return Ok(());
            }
            return Err(misuse.code.name());
        }
        self.break_steps(&op, &mut steps);
        let mut device = 0;
        for step in &steps {
            let epoch = self.clocks.apply(step, &self.order);
            let point = match step.chain {
                Chain::Stream(_) => {
                    device += 1;
                    Point::Device(device - 1)
                }
                Chain::Thread(_) if step.performs != Performs::Nothing => Point::Host,
                Chain::Thread(_) => continue,
            };
            self.ask(step.chain, (at, point));
            self.points.push(((at, point), epoch));
        }
        self.ask(thread, (at, Point::Return));
        self.steps = steps;
        Ok(())
    }

    /// What the end of a chain knows of every earlier point.
    fn ask(&mut self, chain: Chain, at: (usize, Point)) {
        for &(point, epoch) in &self.points {
            self.known
                .push((point, at, self.clocks.ordered(epoch, chain)));
        }
    }

    fn compare(&self, answer: &Answer) -> Option<String> {
        let graph = &answer.graph;
        for &(first, second, ordered) in &self.known {
            let both = graph
                .node(first.0, first.1)
                .zip(graph.node(second.0, second.1));
            let Some((a, b)) = both else { continue };
            // The last device step of an op and its return are compared too.
            if graph.reaches(a, b) != ordered {
                return Some(format!(
                    "{first:?} before {second:?}: order says {ordered}, the oracle {}",
                    !ordered
                ));
            }
        }
        None
    }

    fn break_op(&self, op: &mut Op) {
        match (&mut op.kind, self.broken) {
            (
                Kind::QueryStream { done, .. } | Kind::QueryEvent { done, .. },
                Break::NotYetIsDone,
            ) => {
                *done = true;
            }
            (
                Kind::Copy { from, to, .. } | Kind::CopyBlocking { from, to },
                Break::ManagedIsPinned,
            ) => {
                for memory in [from, to] {
                    if *memory == Memory::Managed {
                        *memory = Memory::Pinned;
                    }
                }
            }
            (Kind::SyncDevice { device }, Break::SyncsDeviceZero) => *device = Some(DeviceId(0)),
            _ => {}
        }
    }

    fn break_steps(&mut self, op: &Op, steps: &mut Steps) {
        for step in steps.iter_mut() {
            if let Some(record) = step.freezes {
                if self.broken == Break::FirstRecordStays && self.recorded_in.contains_key(&record)
                {
                    step.freezes = None;
                } else {
                    self.recorded_in.insert(record, step.chain);
                    self.of_free
                        .insert(record, matches!(op.kind, Kind::Free { .. }));
                }
            }
            self.break_edges(op, step);
        }
        let waits = |after| {
            let edge = promised(after);
            let mut step = thread_step(op.thread);
            step.edges.push(edge);
            step
        };
        match (op.kind, self.broken) {
            (Kind::DestroyStream { stream }, Break::DestroyWaits) => {
                steps.push(waits(After::Chain(Chain::Stream(stream))));
            }
            (Kind::CopyBlocking { from, to }, Break::DeviceCopyBlocks)
                if !from.is_host() && !to.is_host() =>
            {
                steps.push(waits(After::Chain(steps[0].chain)));
            }
            (Kind::Copy { from, to, stream }, Break::PinnedCopyBlocks)
                if (from == Memory::Pinned || to == Memory::Pinned) && !steps.is_empty() =>
            {
                steps.push(waits(After::Chain(Chain::Stream(stream))));
            }
            (_, Break::FeedingOrdersThreads) => {
                let fed = steps
                    .iter()
                    .find(|step| matches!(step.chain, Chain::Stream(_)));
                if let Some(chain) = fed.map(|step| step.chain) {
                    steps.insert(0, waits(After::Chain(chain)));
                }
            }
            _ => {}
        }
    }

    fn break_edges(&mut self, op: &Op, step: &mut Step) {
        let on_stream = matches!(step.chain, Chain::Stream(_));
        match self.broken {
            Break::Drop(rule) => step.edges.retain(|edge| edge.rule != Rule(rule)),
            Break::StreamsOutOfOrder if on_stream => {
                self.flips += 1;
                if let (Chain::Stream(stream), 1) = (&mut step.chain, self.flips % 2) {
                    stream.0 += 1000;
                }
            }
            Break::EverythingOrdered if on_stream => {
                step.edges.push(promised(After::Device(DeviceId(0))));
            }
            Break::RecordsGrow | Break::FreesGrow => {
                for edge in &mut step.edges {
                    let After::Record(record) = edge.after else {
                        continue;
                    };
                    let of_free = self.of_free.get(&record) == Some(&true);
                    if of_free != (self.broken == Break::FreesGrow) {
                        continue;
                    }
                    if let Some(&chain) = self.recorded_in.get(&record) {
                        edge.after = After::Chain(chain);
                    }
                }
            }
            Break::NoForeignWaits => {
                let Kind::Wait { stream, .. } = op.kind else {
                    return;
                };
                let mine = self.lowered.streams[stream.0 as usize].device;
                let recorded_in = &self.recorded_in;
                let order = &self.order;
                step.edges.retain(|edge| match edge.after {
                    After::Record(record) => match recorded_in.get(&record) {
                        Some(&Chain::Stream(other)) => order.device_of(other) == mine,
                        _ => true,
                    },
                    _ => true,
                });
            }
            Break::OneLegacyStream => {
                for edge in &mut step.edges {
                    if let After::Blocking(device) = &mut edge.after {
                        *device = DeviceId(0);
                    }
                }
            }
            _ => {}
        }
    }
}

fn promised(after: After) -> Edge {
    Edge {
        after,
        rule: Rule(0),
        force: Force::Promised,
    }
}

fn thread_step(thread: ThreadId) -> Step {
    Step {
        chain: Chain::Thread(thread),
        edges: Default::default(),
        performs: Performs::Nothing,
        staged: false,
        freezes: None,
    }
}
