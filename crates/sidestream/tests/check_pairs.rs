//! Compares the checker with a search of all pairs of conflicting accesses in random programs: it must report no ordered
//! pair, and every unordered pair between which no other access hides the first.
//!
//! Here order is reachability in the whole graph of steps, and memory is single bytes with every access that was ever
//! made to them, without clocks, cells or pruning. The graph comes from the same rule book, so this tests the
//! bookkeeping of the checker and not the rules.

use std::collections::BTreeMap;

use sidestream::check::{Checker, RaceKind};
use sidestream::log::Within;
use sidestream::op::*;
use sidestream::order::{Chain, Force, Frontier, Order, Performs, Steps};

use crate::drawn::Random;

const STREAMS: u32 = 5;
const GRAIN: u64 = 64;
/// The buffers: memory, their bytes in a flat memory, and the buffer that contains them. The second is within the
/// first, the third within the second.
const BUFFERS: [(Memory, u64, u64, Option<u32>); 6] = [
    (Memory::Device, 0, 8, None),
    (Memory::Device, 2, 6, Some(0)),
    (Memory::Device, 3, 5, Some(1)),
    (Memory::Pinned, 8, 12, None),
    (Memory::Pageable, 12, 14, None),
    (Memory::Managed, 14, 18, None),
];

#[test]
fn every_adjacent_pair_and_no_ordered_one() {
    let mut reported = 0;
    for seed in 0..10_000 {
        let program = Random(seed).program();
        reported += compare(seed, &program);
    }
    // The programs are useful only if many of them race and many do not.
    assert!(reported > 50_000, "{reported} races");
}

/// One access that was made.
#[derive(Clone, Copy)]
struct Made {
    op: u32,
    node: usize,
    chain: Chain,
    buffer: BufferId,
    mode: Mode,
    host: bool,
    begins: bool,
    ends: bool,
}

fn compare(seed: u64, program: &[Op]) -> usize {
    let mut checker = Checker::new();
    let mut order = Order::new();
    declare(checker.order_mut());
    declare(&mut order);
    for (memory, start, end, within) in BUFFERS {
        let within = within.map(|outer| Within {
            buffer: BufferId(outer),
            start: (start - BUFFERS[outer as usize].1) * GRAIN,
        });
        checker.add_buffer(memory, (end - start) * GRAIN, within);
    }
    for op in program {
        checker.push(op).expect("nothing here is refused");
    }
    let report = checker.report();
    let mut got = BTreeMap::new();
    for race in report.races {
        let buffer = race.buffer.expect("no times are asked");
        let key = (race.second.0, race.first.0, buffer.0);
        assert_eq!(race.count, 1);
        let twice = got.insert(key, race.kind);
        assert_eq!(twice, None, "seed {seed}: {key:?} is listed twice");
    }

    let (fitting, adjacent) = all_pairs(program, &mut order);
    for (pair, kind) in &got {
        let fits = fitting.get(pair).is_some_and(|kinds| kinds.contains(kind));
        assert!(
            fits,
            "seed {seed}: {kind:?} of {pair:?} is ordered\n{program:?}"
        );
    }
    for (pair, kind) in &adjacent {
        let vague = names_bytes_twice(&program[pair.1 as usize]);
        let known = got.get(pair).is_some_and(|known| known <= kind || vague);
        assert!(
            known,
            "seed {seed}: {kind:?} of {pair:?} is missing\n{program:?}"
        );
    }
    got.len()
}

/// Returns whether an operation touches bytes by the names of several tenants. The checker remembers it by one of
/// them, so the kind of its later pairs may be that of the other.
fn names_bytes_twice(op: &Op) -> bool {
    let tenants = op.accesses.iter().map(|access| access.buffer);
    let mut tenants = tenants.filter(|buffer| buffer.0 < 3);
    let first = tenants.next();
    tenants.any(|other| Some(other) != first)
}

fn declare(order: &mut Order) {
    use StreamKind::{Blocking, Legacy, NonBlocking, PerThread};
    for kind in [NonBlocking, NonBlocking, Blocking, PerThread, Legacy] {
        order.add_stream(kind, DeviceId(0));
        order.add_event(true, None);
    }
}

type Pair = (u32, u32, u32);

/// By pair (second, first, buffer): all kinds that fit, and the first kind of an adjacent one.
fn all_pairs(
    program: &[Op],
    order: &mut Order,
) -> (BTreeMap<Pair, Vec<RaceKind>>, BTreeMap<Pair, RaceKind>) {
    let mut memory: Vec<Vec<Made>> = vec![Vec::new(); 18];
    // By node: the nodes before it.
    let mut before: Vec<Vec<bool>> = Vec::new();
    let mut frontier = Frontier::default();
    let mut steps = Steps::new();
    for op in program {
        order.push(op, &mut steps).expect("nothing here is refused");
        for step in &steps {
            let mut parents: Vec<usize> = Vec::new();
            frontier.before(step, Force::Promised, order, &mut parents);
            let node = before.len();
            let mut reached = vec![false; node + 1];
            for parent in parents {
                let theirs = before[parent].iter().enumerate();
                theirs.for_each(|(at, &yes)| reached[at] |= yes);
                reached[parent] = true;
            }
            before.push(reached);
            frontier.advance(step, node);
            make(op, step.performs, step.chain, node, &mut memory);
        }
    }
    let mut fitting: BTreeMap<Pair, Vec<RaceKind>> = BTreeMap::new();
    let mut adjacent: BTreeMap<Pair, RaceKind> = BTreeMap::new();
    for byte in &memory {
        for (at, second) in byte.iter().enumerate() {
            for (from, first) in byte[..at].iter().enumerate() {
                let reads = first.mode == Mode::Read && second.mode == Mode::Read;
                if reads || first.op == second.op || before[second.node][first.node] {
                    continue;
                }
                let pair = (second.op, first.op, second.buffer.0);
                let kind = kind(first, second);
                fitting.entry(pair).or_default().push(kind);
                let hidden = byte[from..at].iter().any(|between| {
                    let again = first.mode == Mode::Read && between.chain == first.chain;
                    first.op < between.op
                        && between.op < second.op
                        && (between.mode == Mode::Write || again)
                });
                if !hidden {
                    let known = adjacent.entry(pair).or_insert(kind);
                    *known = kind.min(*known);
                }
            }
        }
    }
    (fitting, adjacent)
}

fn make(op: &Op, performs: Performs, chain: Chain, node: usize, memory: &mut [Vec<Made>]) {
    let on_thread = matches!(chain, Chain::Thread(_));
    for access in op
        .accesses
        .iter()
        .filter(|access| performs.includes(access))
    {
        let base = BUFFERS[access.buffer.0 as usize].1;
        for byte in base + access.start / GRAIN..base + access.end / GRAIN {
            memory[byte as usize].push(Made {
                op: op.id.0,
                node,
                chain,
                buffer: access.buffer,
                mode: access.mode,
                host: on_thread || matches!(op.kind, Kind::HostFunc { .. }),
                begins: matches!(op.kind, Kind::MallocAsync { .. }),
                ends: matches!(
                    op.kind,
                    Kind::FreeAsync { .. } | Kind::CudaFree { .. } | Kind::FreePinned
                ),
            });
        }
    }
}

/// Returns the kind of two accesses of which one writes, exactly as defined.
fn kind(first: &Made, second: &Made) -> RaceKind {
    use Mode::{Read, Write};
    if first.ends || second.ends || first.buffer != second.buffer {
        return RaceKind::Uaf;
    }
    if first.begins || second.begins {
        return RaceKind::Uba;
    }
    match (first.host, second.host, first.mode, second.mode) {
        (false, false, Write, Read) => RaceKind::Raw,
        (false, false, Read, Write) => RaceKind::War,
        (false, false, Write, Write) => RaceKind::Waw,
        (true, true, Write, Read) => RaceKind::HostRaw,
        (true, true, Read, Write) => RaceKind::HostWar,
        (true, false, Read, Write) | (false, true, Write, Read) => RaceKind::HostRaw,
        (true, false, Write, Read) | (false, true, Read, Write) => RaceKind::HostWar,
        (_, _, Write, Write) => RaceKind::HostWaw,
        _ => unreachable!("two reads are no pair, and nothing here only may write"),
    }
}

// ------------------------------------------------------------------ random programs

impl Random {
    fn program(&mut self) -> Vec<Op> {
        let calls = 10 + self.below(40);
        let mut flags = Vec::new();
        (0..calls).map(|id| self.call(id, &mut flags)).collect()
    }

    fn call(&mut self, id: u32, flags: &mut Vec<FlagId>) -> Op {
        let stream = StreamId(self.below(STREAMS));
        let event = EventId(self.below(STREAMS));
        let mut accesses = Accesses::new();
        let device_kinds = self.below(24);
        let kind = match device_kinds {
            0..=5 => {
                self.some(&mut accesses, 4);
                Kind::kernel(stream)
            }
            6 | 7 => {
                let (from, to) = self.copy(&mut accesses);
                Kind::Copy { stream, from, to }
            }
            8 | 9 => {
                let (from, to) = self.copy(&mut accesses);
                Kind::CopyBlocking { from, to }
            }
            10 => {
                accesses.push(self.access(Mode::Write));
                let to = BUFFERS[accesses[0].buffer.0 as usize].0;
                Kind::MemsetBlocking { to }
            }
            11 => {
                self.some(&mut accesses, 2);
                let flag = FlagId(id);
                flags.push(flag);
                Kind::HostFunc {
                    stream,
                    raises: Some(flag),
                }
            }
            12 => {
                self.some(&mut accesses, 3);
                let graph = GraphId(self.below(2));
                Kind::GraphLaunch { stream, graph }
            }
            13 | 14 => Kind::Record { event, stream },
            15 | 16 => Kind::Wait { stream, event },
            17 => {
                let source = StreamId(self.below(STREAMS));
                Kind::WaitStream { stream, source }
            }
            18 => match self.below(3) {
                0 => Kind::SyncStream { stream },
                1 => Kind::SyncEvent { event },
                _ => Kind::QueryStream { stream, done: true },
            },
            19 => match flags.last() {
                Some(&flag) => Kind::WaitFlag { flag },
                None => Kind::SyncDevice { device: None },
            },
            20 => {
                let flag = FlagId(id);
                flags.push(flag);
                Kind::SetFlag { flag }
            }
            21 => {
                self.some(&mut accesses, 2);
                Kind::HostAccess
            }
            _ => {
                let mut access = self.access(Mode::Write);
                let (_, start, end, _) = BUFFERS[access.buffer.0 as usize];
                (access.start, access.end) = (0, (end - start) * GRAIN);
                accesses.push(access);
                match self.below(4) {
                    0 => Kind::MallocAsync { stream },
                    1 => Kind::FreeAsync { stream },
                    2 => Kind::FreePinned,
                    _ => Kind::CudaFree {
                        stream_ordered: false,
                    },
                }
            }
        };
        Op {
            id: OpId(id),
            thread: ThreadId(self.below(3) / 2),
            site: SiteId(id),
            kind,
            accesses,
        }
    }

    fn some(&mut self, accesses: &mut Accesses, most: u32) {
        for _ in 0..1 + self.below(most) {
            let mode = match self.below(3) {
                0 => Mode::Write,
                _ => Mode::Read,
            };
            accesses.push(self.access(mode));
        }
    }

    fn copy(&mut self, accesses: &mut Accesses) -> (Memory, Memory) {
        accesses.push(self.access(Mode::Read));
        accesses.push(self.access(Mode::Write));
        let memory = |at: usize| BUFFERS[accesses[at].buffer.0 as usize].0;
        (memory(0), memory(1))
    }

    fn access(&mut self, mode: Mode) -> Access {
        let buffer = self.below(BUFFERS.len() as u32);
        let (_, start, end, _) = BUFFERS[buffer as usize];
        let grains = (end - start) as u32;
        let (start, end) = match self.below(2) {
            0 => (0, grains),
            _ => {
                let start = self.below(grains);
                (start, start + self.below(grains - start + 1))
            }
        };
        Access {
            buffer: BufferId(buffer),
            start: u64::from(start) * GRAIN,
            end: u64::from(end) * GRAIN,
            mode,
        }
    }
}
