//! The rule book against the oracle, an independent model of the same rules, on random programs; and the rule book
//! with one rule broken, which the comparison must notice.

use std::collections::{BTreeSet, HashMap};

use crate::oracle;
use crate::oracle::generate::{Options, random_prog};
use crate::oracle::model::{Answer, Point, judge};
use crate::oracle::prog::Prog;
use crate::oracle::vary::varied;
use sidestream::op::{DeviceId, FlagId, Kind, Memory, Op, StreamKind, ThreadId};
use sidestream::order::{
    After, Chain, Clocks, Early, Edge, Epoch, Force, Order, Outside, Performs, RecordId, Rule,
    Runs, Step, Steps,
};
use sidestream_program::{Command, Lowered, lower};

/// Number of random programs that are compared: `a_broken_rule_is_noticed` says how many of them its list needs.
fn programs() -> u64 {
    oracle::programs(6_000, 20_000)
}

#[test]
fn order_agrees_with_the_oracle() {
    let programs = programs();
    println!("seeds 0..{programs}, options drawn from each seed");
    let mut total = Counts::default();
    for seed in 0..programs {
        let prog = draw(seed);
        match compare(&prog, Break::Nothing) {
            Ok(counts) => total.add(&counts),
            Err(why) => panic!(
                "seed {seed}, {:?}\n{why}\n{}",
                Options::from_seed(seed),
                prog.to_yaml()
            ),
        }
    }
    println!("{total:?}");
    assert!(total.programs * 100 > programs * 99);
    assert!(total.ordered > 200 * programs && total.unordered > 100 * programs);
}

/// Numbers of compared pairs of points: ordered ones and unordered ones.
#[derive(Debug, Default)]
struct Counts {
    programs: u64,
    ordered: u64,
    unordered: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.programs += other.programs;
        self.ordered += other.ordered;
        self.unordered += other.unordered;
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
            match compare(&prog, Break::Nothing) {
                Ok(counts) => compared += counts.programs,
                Err(why) => panic!("{why}\n{}", prog.to_yaml()),
            }
        }
    }
    assert!(compared >= 14);
}

/// A rule book with one rule broken. broken_rules.txt lists the breaks, with what noticed them.
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
    /// R20: a blocking copy from device to device blocks the host.
    DeviceCopyBlocks,
    /// R22, R27, R31: observed behaviour counts as promised.
    ObservedIsPromised,
    /// R25: an asynchronous copy to or from pinned memory blocks the host.
    PinnedCopyBlocks,
    /// R26: managed memory counts as pinned.
    ManagedIsPinned,
    /// R40: a wait for an event of another device waits for nothing.
    NoForeignWaits,
    /// R41: a device synchronisation covers device 0, whichever device is requested.
    SyncsDeviceZero,
    /// R42: all devices share the legacy stream of device 0.
    OneLegacyStream,
    /// R54: the events of a free stand for later work, too.
    FreesGrow,
    /// R8: a wait for an event without a record is an action.
    EmptyWaitActs,
    /// R10: a query that answers "done" proves nothing.
    DoneIsNotYet,
    /// R12: an event keeps its record when it is destroyed or created again.
    EventsOutlive,
    /// R14: the legacy stream does not wait for blocking streams.
    LegacyWaitsForNone,
    /// R14: blocking streams do not wait for the legacy stream.
    NoneWaitsForLegacy,
    /// R16: waiting for a blocking stream covers the legacy stream.
    BlockingCoversLegacy,
    /// R17: records and waits are no actions.
    RecordsAreNoActions,
    /// R19: a blocking pageable upload is complete when the call returns.
    PageableUploadBlocks,
    /// R24: a blocking memset blocks the host for every kind of memory.
    EveryMemsetBlocks,
    /// R28: a host function raises its flag at the call.
    FlagsRiseEarly,
    /// R28: all flags are the same flag.
    OneFlag,
    /// R28: of several raises the last one counts.
    LastRaiseCounts,
    /// R33: memory of `cudaMallocAsync` exists from the call on, not in stream order.
    MallocOnHost,
    /// R34: `cudaFreeAsync` acts at the call.
    FreeOnHost,
    /// R39: the host does not wait for events of devices other than the current one.
    NoForeignSyncs,
    /// R41: a device synchronisation covers all devices.
    SyncsAllDevices,
    /// R49: all graphs are the same graph.
    OneGraph,
    /// R52: a stream that is handed a block waits for its home stream.
    HandOutWaits,
    /// R53: `record_stream` of the home stream is noted, too.
    HomeIsNoted,
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
    Break::EmptyWaitActs,
    Break::DoneIsNotYet,
    Break::EventsOutlive,
    Break::LegacyWaitsForNone,
    Break::NoneWaitsForLegacy,
    Break::BlockingCoversLegacy,
    Break::RecordsAreNoActions,
    Break::PageableUploadBlocks,
    Break::EveryMemsetBlocks,
    Break::FlagsRiseEarly,
    Break::OneFlag,
    Break::LastRaiseCounts,
    Break::MallocOnHost,
    Break::FreeOnHost,
    Break::NoForeignSyncs,
    Break::SyncsAllDevices,
    Break::OneGraph,
    Break::HandOutWaits,
    Break::HomeIsNoted,
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
    let page = include_str!("broken_rules.txt");
    let (mut unnoticed, mut unlisted, mut needed) = (Vec::new(), Vec::new(), 0);
    for &broken in BREAKS {
        let mut differences =
            (0..programs()).filter_map(|seed| Some((seed, compare(&draw(seed), broken).err()?)));
        match differences.next() {
            Some((seed, why)) => {
                println!("{broken:?}: noticed by seed {seed}: {why}");
                needed = needed.max(seed + 1);
                let row = format!("| `{broken:?}` | {seed} |");
                if !page.contains(&row) {
                    unlisted.push(row);
                }
            }
            None => unnoticed.push(broken),
        }
    }
    println!(
        "{needed} programs notice all of them; {} are compared",
        programs()
    );
    assert!(unnoticed.is_empty(), "nothing notices {unnoticed:?}");
    assert!(
        unlisted.is_empty(),
        "tests/broken_rules.txt lacks {unlisted:#?}"
    );
}

/// Every second program is varied.
fn draw(seed: u64) -> Prog {
    let prog = random_prog(seed, &Options::from_seed(seed));
    if seed % 2 == 1 {
        varied(&prog, seed)
    } else {
        prog
    }
}

/// Returns where the rule book and the oracle differ on a program, or how much they agree on.
fn compare(prog: &Prog, broken: Break) -> Result<Counts, String> {
    let answer = judge(prog);
    if !answer.outside.is_empty() {
        return Ok(Counts::default());
    }
    let lowered = lower(&prog.to_program());
    let mut book = Book::new(&lowered, broken);
    for command in &lowered.commands {
        let Command::Op(op) = command else { continue };
        let at = op.id.0 as usize;
        let refused = answer.error.filter(|&(failing, _)| failing == at);
        match (book.push(op), refused) {
            (Err(code), Some((_, wanted))) if code == wanted => break,
            (Ok(()), None) => {}
            (seen, wanted) => {
                return Err(format!(
                    "op {at}: order says {seen:?}, the oracle {wanted:?}"
                ));
            }
        }
    }
    book.compare(&answer)
}

/// An op and a point of it.
type Moment = (usize, Point);

/// The rule book with its clocks, queried after every step for the order of every earlier point.
struct Book<'a> {
    lowered: &'a Lowered,
    broken: Break,
    order: Order,
    clocks: Clocks,
    steps: Steps,
    points: Vec<(Moment, Epoch)>,
    /// By pair of points: whether the rule book says that they are ordered.
    known: Vec<(Moment, Moment, bool)>,
    recorded_in: HashMap<RecordId, Chain>,
    frozen_by: HashMap<RecordId, Kind>,
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
            frozen_by: HashMap::new(),
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
        self.break_steps(&op, runs == Ok(Runs::Now), &mut steps);
        let (mut device, mut on_thread) = (0, None);
        for step in &steps {
            let epoch = self.clocks.apply(step, &self.order);
            let point = match step.chain {
                Chain::Stream(_) => {
                    device += 1;
                    Point::Device(device - 1)
                }
                Chain::Thread(_) if step.performs != Performs::Nothing => Point::Host,
                // A blocking call has completed at the return; a flag is raised at the call.
                Chain::Thread(_) => {
                    let raises = matches!(op.kind, Kind::SetFlag { .. });
                    on_thread = Some((if raises { Point::Call } else { Point::Return }, epoch));
                    continue;
                }
            };
            self.ask(step.chain, (at, point));
            self.points.push(((at, point), epoch));
        }
        self.ask(thread, (at, Point::Return));
        self.points
            .extend(on_thread.map(|(point, epoch)| ((at, point), epoch)));
        self.steps = steps;
        Ok(())
    }

    /// Queries what the end of a chain knows of every earlier point.
    fn ask(&mut self, chain: Chain, at: (usize, Point)) {
        for &(point, epoch) in &self.points {
            self.known
                .push((point, at, self.clocks.ordered(epoch, chain)));
        }
    }

    fn compare(&self, answer: &Answer) -> Result<Counts, String> {
        let graph = &answer.graph;
        let until = answer.error.map_or(usize::MAX, |(failing, _)| failing);
        // The rule book and the oracle must have the same points where something runs or is touched: a point that only
        // one of them has would be compared with nothing.
        let runs = |&&(op, point): &&(usize, Point)| {
            op < until && !matches!(point, Point::Call | Point::Return)
        };
        let mine = self.points.iter().map(|(point, _)| point).filter(runs);
        let mine: BTreeSet<_> = mine.collect();
        let theirs: BTreeSet<_> = graph.nodes.iter().filter(runs).collect();
        if let Some(point) = mine.symmetric_difference(&theirs).next() {
            return Err(format!("{point:?} is a point for one of the two only"));
        }
        let mut counts = Counts {
            programs: 1,
            ..Counts::default()
        };
        let nodes: HashMap<_, _> = graph.nodes.iter().zip(0..).collect();
        for (first, second, ordered) in &self.known {
            let (Some(&a), Some(&b)) = (nodes.get(first), nodes.get(second)) else {
                return Err(format!("the oracle lacks {first:?} or {second:?}"));
            };
            if graph.reaches(a, b) != *ordered {
                return Err(format!(
                    "{first:?} before {second:?}: order says {ordered}, the oracle {}",
                    !ordered
                ));
            }
            counts.ordered += u64::from(*ordered);
            counts.unordered += u64::from(!*ordered);
        }
        Ok(counts)
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
            (
                Kind::QueryStream { done, .. } | Kind::QueryEvent { done, .. },
                Break::DoneIsNotYet,
            ) => *done = false,
            (Kind::CreateEvent { .. } | Kind::DestroyEvent { .. }, Break::EventsOutlive) => {
                op.kind = Kind::CudaMalloc;
            }
            (Kind::MemsetBlocking { to }, Break::EveryMemsetBlocks) => *to = Memory::Pinned,
            (Kind::SetFlag { flag } | Kind::WaitFlag { flag }, Break::OneFlag) => flag.0 = 0,
            (Kind::HostFunc { raises, .. }, Break::OneFlag) => {
                *raises = raises.map(|_| FlagId(0));
            }
            (Kind::GraphLaunch { graph, .. }, Break::OneGraph) => graph.0 = 0,
            (Kind::Alloc { stream, .. }, Break::HomeIsNoted) => *stream = None,
            (Kind::SyncDevice { device }, Break::SyncsDeviceZero) => *device = Some(DeviceId(0)),
            _ => {}
        }
    }

    fn break_steps(&mut self, op: &Op, runs: bool, steps: &mut Steps) {
        for step in steps.iter_mut() {
            if let Some(record) = step.freezes {
                let again = self.recorded_in.contains_key(&record);
                let is_record = matches!(op.kind, Kind::Record { .. });
                if self.broken == Break::FirstRecordStays && is_record && again {
                    step.freezes = None;
                } else {
                    self.recorded_in.insert(record, step.chain);
                    self.frozen_by.insert(record, op.kind);
                }
            }
            step.beside &= self.broken != Break::LastRaiseCounts;
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
            (Kind::Wait { stream, .. }, Break::EmptyWaitActs) if runs && steps.is_empty() => {
                let mut step = waits(After::Chain(Chain::Thread(op.thread)));
                step.chain = Chain::Stream(stream);
                steps.push(step);
            }
            (
                Kind::SyncStream { stream } | Kind::QueryStream { stream, done: true },
                Break::BlockingCoversLegacy,
            ) if self.order.kind_of(stream).is_blocking() => {
                let device = self.order.device_of(stream);
                let legacy = self.order.legacy_stream(device);
                steps.push(waits(After::Chain(Chain::Stream(legacy))));
            }
            (
                Kind::CopyBlocking {
                    from: Memory::Pageable,
                    ..
                },
                Break::PageableUploadBlocks,
            ) => {
                let last = steps.last().map(|step| step.chain);
                steps.extend(last.map(|chain| waits(After::Chain(chain))));
            }
            (Kind::HostFunc { .. }, Break::FlagsRiseEarly) => {
                let raises = steps.first_mut().filter(|step| step.freezes.is_some());
                if let Some(raises) = raises {
                    let mut step = thread_step(op.thread);
                    step.freezes = raises.freezes.take();
                    step.beside = std::mem::take(&mut raises.beside);
                    steps.push(step);
                }
            }
            (Kind::MallocAsync { .. }, Break::MallocOnHost)
            | (Kind::FreeAsync { .. }, Break::FreeOnHost) => {
                for step in steps.iter_mut() {
                    step.chain = Chain::Thread(op.thread);
                    step.edges.clear();
                }
            }
            (Kind::SyncDevice { .. }, Break::SyncsAllDevices) => {
                let devices = (0..4).map(|device| promised(After::Device(DeviceId(device))));
                steps[0].edges.extend(devices);
            }
            (
                Kind::Alloc {
                    stream: Some(home), ..
                },
                Break::HandOutWaits,
            ) => steps.push(waits(After::Chain(Chain::Stream(home)))),
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
                    let grows = match self.frozen_by.get(&record) {
                        Some(Kind::Record { .. }) => self.broken == Break::RecordsGrow,
                        Some(Kind::Free { .. }) => self.broken == Break::FreesGrow,
                        _ => false,
                    };
                    if !grows {
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
                self.forget_records(step, mine);
            }
            Break::LegacyWaitsForNone => {
                let on_stream = |edge: &Edge| matches!(edge.after, After::Blocking(_));
                step.edges
                    .retain(|edge| edge.rule != Rule(14) || !on_stream(edge));
            }
            Break::NoneWaitsForLegacy => {
                let on_legacy = |edge: &Edge| matches!(edge.after, After::Chain(_));
                step.edges
                    .retain(|edge| edge.rule != Rule(14) || !on_legacy(edge));
            }
            Break::RecordsAreNoActions
                if matches!(op.kind, Kind::Record { .. } | Kind::Wait { .. }) =>
            {
                let legacy = [Rule(14), Rule(18)];
                step.edges.retain(|edge| !legacy.contains(&edge.rule));
            }
            Break::NoForeignSyncs => {
                if !matches!(op.kind, Kind::SyncEvent { .. } | Kind::QueryEvent { .. }) {
                    return;
                }
                let mine = self.order.current_device(op.thread);
                self.forget_records(step, mine);
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

impl Book<'_> {
    /// Drops the edges after records of other devices than this one.
    fn forget_records(&self, step: &mut Step, device: DeviceId) {
        step.edges.retain(|edge| match edge.after {
            After::Record(record) => match self.recorded_in.get(&record) {
                Some(&Chain::Stream(other)) => self.order.device_of(other) == device,
                _ => true,
            },
            _ => true,
        });
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
        early: Early::Nothing,
        outside: Outside::Nothing,
        staged: false,
        freezes: None,
        beside: false,
    }
}
