//! The calls of a random program, as data that can be printed, and dropped one by one.

use super::dice::Dice;
use super::edge_act::{self, EdgeAct};
use super::graph_act::{self, GraphAct};
use super::plan::Plan;

/// One call, or a few that belong together. Numbers are taken modulo the number of objects.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// A buffer of `len` values, of which `used` are touched, starting at `first`.
    Alloc {
        slot: usize,
        stream: usize,
        used: usize,
        first: usize,
        spare: usize,
        start: Start,
    },
    Drop(usize),
    /// The buffer is neither used nor dropped any more.
    Forget(usize),
    DropElsewhere(usize),
    Fill(Place, u32),
    Memset(Place, u8),
    Upload(Place, u32),
    Download(Place),
    /// `rows` rows of `len` values, with a pitch on the device.
    UploadRows(Place, Table),
    DownloadRows(Place, Table),
    CopyRows(Place, usize, Table),
    /// A copy from a slice on the host, and one into a slice.
    In(Place, u32),
    Out(Place),
    /// A copy from this slot into the place.
    Copy(usize, Place),
    /// A copy from one half of a buffer into the other.
    Within(Place),
    One(Place),
    Two(usize, Place),
    Three(usize, usize, Place),
    Four(usize, usize, Place, u32),
    /// The halves of a buffer on two streams, on two threads if the program has several.
    Halves(Place, usize, u32),
    Trap(Place),
    HostFunc(usize, Hosted),
    Record(usize),
    RecordTimed(usize),
    Elapsed,
    WaitEvent(usize, usize),
    WaitStream(usize, usize),
    QueryEvent(usize),
    SyncEvent(usize),
    DropEvent(usize),
    Land(usize, Landing),
    QueryStream(usize),
    SyncStream(usize),
    SyncStreamFor(usize, u32),
    SyncDevice(usize),
    EmptyCache(usize),
    Statistics,
    NewStream(usize, usize),
    DropDevice(usize),
    Benchmark(Place),
    Span(Place),
    /// One of the graphs, by its number.
    Graph(usize, GraphAct),
    /// A call outside the safe API.
    Edge(EdgeAct),
}

/// Where a call acts: a part of a slot, and the stream. The ends are in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub slot: usize,
    pub stream: usize,
    pub from: usize,
    pub to: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub len: usize,
    pub count: usize,
    pub gap: usize,
}

/// The first use of a buffer.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    Zeros,
    Fill,
    In,
    Upload,
}

/// What a host function owns and does.
#[derive(Clone, Copy, Debug)]
pub enum Hosted {
    Values(u32),
    Panics,
    /// Takes the buffer of a slot and gives it back.
    Buffer(usize),
    /// Writes pinned memory.
    Pinned(u32),
    /// Drops what it captured: a buffer, a stream, an event.
    Drops(usize),
}

/// How the program waits for a value that the device or a function may still use.
#[derive(Clone, Copy, Debug)]
pub enum Landing {
    Sync,
    SyncFor(u32),
    Query,
    Drop,
    Forget,
    DropElsewhere,
    /// Polled as a future: to the end, or once and then dropped.
    Await,
    PollOnce,
    /// Polled once with a waker that panics.
    PollBadly,
}

/// Draws the program of a plan: the calls of each thread.
pub fn draw(plan: &Plan) -> Vec<Vec<Act>> {
    let mut dice = Dice::new(plan.seed ^ 0xac75);
    let starts = (0..plan.slots).map(|slot| alloc(slot, plan, &mut dice));
    let starts: Vec<Act> = starts.collect();
    let mut programs = vec![Vec::new(); plan.threads];
    programs[0] = starts;
    let mut edge_dice = Dice::new(plan.seed ^ 0x6e_5bed);
    for n in 0..plan.acts {
        if let Some(edges) = &plan.edges
            && edge_dice.chance(500)
        {
            let act = edge_act::draw(plan, edges, &mut edge_dice);
            programs[n % plan.threads].extend(act.map(Act::Edge));
        }
        if dice.chance(40) {
            programs[n % plan.threads].extend(graph_act::draw_new(plan, &mut dice));
        }
        let act = loop {
            let act = one(plan, &mut dice);
            if allowed(&act, plan) {
                break act;
            }
        };
        programs[n % plan.threads].push(act);
    }
    programs
}

/// Returns whether a plan may have calls of this kind.
fn allowed(act: &Act, plan: &Plan) -> bool {
    match act {
        Act::Drop(_)
        | Act::Forget(_)
        | Act::EmptyCache(_)
        | Act::NewStream(..)
        | Act::DropDevice(_) => plan.drops,
        // A drop on another thread happens at a time that no seed determines.
        Act::DropElsewhere(_) | Act::HostFunc(_, Hosted::Drops(_)) => {
            plan.drops && plan.threads > 1
        }
        Act::HostFunc(_, Hosted::Buffer(_)) => plan.drops,
        // Such a wait queries from a thread of the runtime.
        Act::Land(
            _,
            Landing::Await | Landing::PollOnce | Landing::PollBadly | Landing::DropElsewhere,
        ) => plan.drops && plan.waits && plan.threads > 1,
        Act::Land(_, Landing::Drop | Landing::Forget) => plan.drops,
        Act::Land(..) => plan.waits,
        Act::Out(_)
        | Act::Elapsed
        | Act::WaitEvent(..)
        | Act::WaitStream(..)
        | Act::QueryEvent(_)
        | Act::SyncEvent(_)
        | Act::QueryStream(_)
        | Act::SyncStream(_)
        | Act::SyncStreamFor(..)
        | Act::SyncDevice(_)
        | Act::Benchmark(_) => plan.waits,
        Act::Trap(_) => plan.traps,
        Act::Graph(_, act) => graph_act::allowed(act, plan),
        // More than 64 rows are tracked as one range, including the gaps between them.
        Act::UploadRows(_, table) | Act::DownloadRows(_, table) | Act::CopyRows(_, _, table) => {
            plan.drops || plan.waits || table.count <= 64
        }
        _ => true,
    }
}

fn one(plan: &Plan, dice: &mut Dice) -> Act {
    let slot = dice.below(plan.slots);
    let other = dice.below(plan.slots);
    let stream = dice.below(plan.streams);
    let at = place(plan, dice);
    let value = dice.next() as u32;
    match dice.below(112) {
        0..6 => {
            if plan.drops {
                alloc(slot, plan, dice)
            } else {
                Act::One(at)
            }
        }
        6..9 => Act::Drop(slot),
        9 => Act::Forget(slot),
        10 => Act::DropElsewhere(slot),
        11..15 => Act::Fill(at, value),
        15..18 => Act::Memset(at, value as u8),
        18..24 => Act::Upload(at, value),
        24..30 => Act::Download(at),
        30..32 => Act::UploadRows(at, table(dice)),
        32..34 => Act::DownloadRows(at, table(dice)),
        34..36 => Act::CopyRows(at, slot, table(dice)),
        36..39 => Act::In(at, value),
        39..42 => Act::Out(at),
        42..46 => Act::Copy(slot, at),
        46..48 => Act::Within(at),
        48..51 => Act::One(at),
        51..57 => Act::Two(slot, at),
        57..62 => Act::Three(slot, other, at),
        62..66 => Act::Four(slot, other, at, value),
        66..69 => Act::Halves(at, stream, value),
        69 => Act::Trap(at),
        70..76 => Act::HostFunc(stream, hosted(slot, value, dice)),
        76..78 => Act::Record(stream),
        78 => Act::RecordTimed(stream),
        79 => Act::Elapsed,
        80 => Act::WaitEvent(stream, dice.below(8)),
        81..83 => Act::WaitStream(stream, dice.below(plan.streams)),
        83 => Act::QueryEvent(dice.below(8)),
        84 => Act::SyncEvent(dice.below(8)),
        85 => Act::DropEvent(dice.below(8)),
        86..92 => Act::Land(dice.below(8), landing(dice)),
        92 => Act::QueryStream(stream),
        93 => Act::SyncStream(stream),
        94 => Act::SyncStreamFor(stream, value % 50_000),
        95 => Act::SyncDevice(slot),
        96 => Act::EmptyCache(slot),
        97 => Act::NewStream(stream, slot),
        98 => Act::DropDevice(slot),
        100.. => graph_act::draw_use(plan, dice),
        _ => match dice.below(3) {
            0 => Act::Benchmark(at),
            1 => Act::Span(at),
            _ => Act::Statistics,
        },
    }
}

fn alloc(slot: usize, plan: &Plan, dice: &mut Dice) -> Act {
    // Usually little memory; sometimes so much that the limit is reached.
    let spare = if plan.drops && dice.chance(200) {
        dice.below(400_000)
    } else {
        0
    };
    Act::Alloc {
        slot,
        stream: dice.below(plan.streams),
        used: if dice.chance(120) {
            dice.below(200)
        } else {
            dice.below(48)
        },
        first: dice.below(3) * 5,
        spare,
        start: dice.pick(&[Start::Zeros, Start::Fill, Start::In, Start::Upload]),
    }
}

pub fn place(plan: &Plan, dice: &mut Dice) -> Place {
    let (a, b) = match dice.below(3) {
        0 => (0, 1000),
        _ => (dice.below(1001), dice.below(1001)),
    };
    Place {
        slot: dice.below(plan.slots),
        stream: dice.below(plan.streams),
        from: a.min(b),
        to: a.max(b),
    }
}

pub fn table(dice: &mut Dice) -> Table {
    Table {
        len: dice.below(6),
        count: dice.pick(&[0, 1, 2, 3, 5, 8, 70]),
        gap: dice.below(4),
    }
}

fn hosted(slot: usize, value: u32, dice: &mut Dice) -> Hosted {
    match dice.below(8) {
        0 => Hosted::Panics,
        1 => Hosted::Buffer(slot),
        2..4 => Hosted::Pinned(value),
        4 => Hosted::Drops(slot),
        _ => Hosted::Values(value),
    }
}

fn landing(dice: &mut Dice) -> Landing {
    match dice.below(16) {
        0..4 => Landing::Sync,
        4..6 => Landing::SyncFor(dice.next() as u32 % 100_000),
        6..9 => Landing::Query,
        9..11 => Landing::Drop,
        11 => Landing::Forget,
        12 => Landing::DropElsewhere,
        13..15 => Landing::Await,
        _ => Landing::PollOnce,
    }
}
