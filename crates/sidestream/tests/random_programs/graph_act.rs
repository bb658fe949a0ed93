//! The calls that concern graphs, as data.

use super::act::{Act, Place, Table, place, table};
use super::dice::Dice;
use super::plan::Plan;

/// One call that builds a graph, launches it, or uses its memory between launches.
#[derive(Clone, Copy, Debug)]
pub enum GraphAct {
    /// Opens a new graph without nodes, for the device of this number.
    Open(usize),
    /// Takes the buffer of a slot.
    Own(usize),
    /// Takes pinned memory of this many values.
    OwnPinned(usize),
    Node(Node),
    /// An explicit edge.
    After(usize, usize),
    Build,
    Launch(usize),
    /// A copy of a buffer to the host.
    Out(usize, usize),
    /// Another stream writes a buffer.
    Fill(usize, usize, u32),
    /// A kernel reads a buffer and writes a part of a slot.
    Lend(usize, Place),
    /// Pinned memory is read, is written, or is waited for and written.
    Pinned(usize),
    PinnedMut(usize, u32),
    SyncPinned(usize, u32),
    /// The graph is dropped, and this much of its memory is taken back.
    Take(usize),
    Drop,
    Forget,
    DropElsewhere,
}

/// A node. Its work determines which of these parts it touches.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    pub work: Work,
    pub x: Part,
    pub z: Part,
    pub y: Part,
    pub pinned: Part,
    pub value: u32,
}

#[derive(Clone, Copy, Debug)]
pub enum Work {
    One,
    Two,
    Three,
    Four,
    Trap,
    Copy,
    CopyRows(Table),
    Fill,
    Memset,
    Upload,
    UploadRows(Table),
    Download,
    DownloadRows(Table),
}

/// A part of a buffer of the graph. The ends are in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub which: usize,
    pub from: usize,
    pub to: usize,
}

/// Number of graphs at the same time.
pub const GRAPHS: usize = 2;

/// Draws a graph from its first call to its first launches.
pub fn draw_new(plan: &Plan, dice: &mut Dice) -> Vec<Act> {
    let mut acts = vec![GraphAct::Open(dice.below(plan.devices))];
    acts.extend((0..1 + dice.below(3)).map(|_| GraphAct::Own(dice.below(plan.slots))));
    acts.extend((0..dice.below(3)).map(|_| GraphAct::OwnPinned(dice.below(40))));
    let nodes = dice.below(10);
    acts.extend((0..nodes).map(|_| GraphAct::Node(node(plan, dice))));
    if dice.chance(300) {
        acts.push(GraphAct::After(dice.below(nodes), dice.below(nodes)));
    }
    acts.push(GraphAct::Build);
    acts.extend((0..dice.below(4)).map(|_| GraphAct::Launch(dice.below(plan.streams))));
    if dice.chance(400) {
        acts.push(GraphAct::Take(6));
    }
    let at = dice.below(GRAPHS);
    acts.into_iter().map(|act| Act::Graph(at, act)).collect()
}

/// Draws a call to an existing graph.
pub fn draw_use(plan: &Plan, dice: &mut Dice) -> Act {
    let (which, stream) = (dice.below(4), dice.below(plan.streams));
    let value = dice.next() as u32;
    let act = match dice.below(40) {
        0..16 => GraphAct::Launch(stream),
        16..19 => GraphAct::Out(which, stream),
        19..23 => GraphAct::Fill(which, stream, value),
        23..27 => GraphAct::Lend(which, place(plan, dice)),
        27..29 => GraphAct::Pinned(which),
        29..31 => GraphAct::PinnedMut(which, value),
        31..35 => GraphAct::SyncPinned(which, value),
        35..37 => GraphAct::Take(dice.below(6)),
        37 => GraphAct::Drop,
        38 => GraphAct::Forget,
        _ => GraphAct::DropElsewhere,
    };
    Act::Graph(dice.below(GRAPHS), act)
}

/// Returns whether a plan may have calls of this kind.
pub fn allowed(act: &GraphAct, plan: &Plan) -> bool {
    match act {
        GraphAct::Drop | GraphAct::Forget => plan.drops,
        GraphAct::DropElsewhere => plan.drops && plan.threads > 1,
        GraphAct::Out(..)
        | GraphAct::Pinned(_)
        | GraphAct::PinnedMut(..)
        | GraphAct::SyncPinned(..) => plan.waits,
        _ => true,
    }
}

fn node(plan: &Plan, dice: &mut Dice) -> Node {
    let work = match dice.below(26) {
        0..4 => Work::One,
        4..8 => Work::Two,
        8..11 => Work::Three,
        11..13 => Work::Four,
        13..16 => Work::Copy,
        16..18 => Work::Fill,
        18 => Work::Memset,
        19..21 => Work::Upload,
        21..23 => Work::Download,
        23 if plan.traps => Work::Trap,
        // More than 64 rows are tracked as one range, including the gaps between them.
        _ if !plan.drops && !plan.waits => Work::One,
        23 => Work::CopyRows(table(dice)),
        24 => Work::UploadRows(table(dice)),
        _ => Work::DownloadRows(table(dice)),
    };
    Node {
        work,
        x: part(dice),
        z: part(dice),
        y: part(dice),
        pinned: part(dice),
        value: dice.next() as u32,
    }
}

fn part(dice: &mut Dice) -> Part {
    let (a, b) = match dice.below(3) {
        0 => (0, 1000),
        _ => (dice.below(1001), dice.below(1001)),
    };
    Part {
        which: dice.below(4),
        from: a.min(b),
        to: a.max(b),
    }
}
