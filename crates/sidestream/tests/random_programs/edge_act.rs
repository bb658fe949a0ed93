//! What others do beside the safe API, and code of the program's that fails, as data.

use super::act::{Place, place};
use super::dice::Dice;
use super::plan::{Edges, Plan};

/// One of these. Numbers are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
pub enum EdgeAct {
    /// Other code gets to know a stream.
    Meet(Known),
    /// Other code uses the buffer of a slot, and the program sees to it that nobody else does meanwhile.
    Work(Work),
    /// A capture begins on one of these streams, or goes on, or ends and is launched.
    Begin {
        stream: usize,
        by: By,
    },
    Node {
        stream: usize,
        value: u8,
    },
    End {
        stream: usize,
    },
    /// Code of the program's panics that the runtime calls.
    Panic(Called),
    /// A child of a fork tries all handles.
    Fork,
}

/// How other code knows a stream.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    /// The handle of this stream of the safe API was given to it.
    Safe(usize),
    /// It made the stream itself, and the program adopted that.
    Adopted(usize),
    /// A stream of the explicit style on this device, and whether its handle was given away.
    Explicit {
        device: usize,
        is_blocking: bool,
        is_shared: bool,
    },
    /// The legacy default stream.
    Legacy(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub at: Place,
    /// On which of the streams that other code knows.
    pub on: usize,
    pub by: By,
    pub value: u8,
    /// How many operations.
    pub count: usize,
    pub settles: Settles,
}

/// Who calls the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The program, by the explicit style, so that the log is told.
    Program,
    /// Other code, of which nobody tells.
    Others,
}

/// How the promise of lent memory is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settles {
    /// The program waits for the stream, or asks until it is over, and goes on.
    Synchronize,
    Query,
    /// The next stream that uses it waits for an event, or for the whole stream.
    Event,
    WaitStream,
    /// It is noted on the stream, behind the work or before it, and dropped.
    Note,
    NoteBefore,
    /// Nothing is done: a race, which only the tests for that have.
    Never,
}

/// Which code of the program's.
#[derive(Clone, Copy, Debug)]
pub enum Called {
    /// What states the cost of a kernel.
    Cost(Place),
    Benchmark(Place),
    /// A sink that is told so many things before.
    Sink(u32),
    /// The file of a recording, behind so many writes.
    File(u32),
    /// Who waits for something that flies.
    Waker(usize),
    /// The drop of what a function on the host owns.
    Drop(usize),
    /// A function on the host in the explicit style.
    HostFunc(usize),
    /// A part of a pipeline, at an item.
    Pipeline {
        device: usize,
        part: Part,
        item: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Source,
    Stage,
    Consumer,
    Progress,
}

/// One of them, if the plan has any.
pub fn draw(plan: &Plan, edges: &Edges, dice: &mut Dice) -> Option<EdgeAct> {
    let value = dice.next() as u8;
    let stream = dice.below(4);
    let act = match dice.below(16) {
        0..2 => EdgeAct::Meet(known(dice)),
        2..8 => EdgeAct::Work(Work {
            at: place(plan, dice),
            on: stream,
            by: dice.pick(&[By::Program, By::Others, By::Others]),
            value,
            count: 1 + dice.below(3),
            settles: dice.pick(&[
                Settles::Synchronize,
                Settles::Query,
                Settles::Event,
                Settles::WaitStream,
                Settles::Note,
                Settles::Note,
                Settles::NoteBefore,
            ]),
        }),
        8..10 => EdgeAct::Begin {
            stream,
            by: dice.pick(&[By::Program, By::Others]),
        },
        10 => EdgeAct::Node { stream, value },
        11 => EdgeAct::End { stream },
        12..15 => EdgeAct::Panic(called(plan, dice)),
        _ => EdgeAct::Fork,
    };
    let is_drawn = match act {
        EdgeAct::Meet(_) => edges.others || edges.captures,
        EdgeAct::Work(_) => edges.others,
        EdgeAct::Begin { .. } | EdgeAct::Node { .. } | EdgeAct::End { .. } => edges.captures,
        EdgeAct::Panic(Called::Waker(_) | Called::Drop(_)) => edges.panics && plan.threads > 1,
        // What its thread was doing, others see half done.
        // Whether a call that begins or ends a capture has done so, who has it panic under his hands does not hear.
        EdgeAct::Panic(Called::Sink(_)) => edges.panics && plan.threads == 1 && !edges.captures,
        EdgeAct::Panic(_) => edges.panics,
        EdgeAct::Fork => edges.forks && dice.chance(100),
    };
    is_drawn.then_some(act)
}

fn known(dice: &mut Dice) -> Known {
    let number = dice.below(4);
    match dice.below(8) {
        0..3 => Known::Safe(number),
        3..5 => Known::Adopted(number),
        5..7 => Known::Explicit {
            device: number,
            is_blocking: dice.chance(300),
            is_shared: dice.chance(500),
        },
        _ => Known::Legacy(number),
    }
}

fn called(plan: &Plan, dice: &mut Dice) -> Called {
    let number = dice.below(4);
    match dice.below(8) {
        0 => Called::Cost(place(plan, dice)),
        1 => Called::Benchmark(place(plan, dice)),
        2 => Called::Sink(dice.below(60) as u32),
        3 => Called::File(dice.below(3) as u32),
        4 => Called::Waker(number),
        5 => Called::Drop(number),
        6 => Called::HostFunc(number),
        _ => Called::Pipeline {
            device: number,
            part: dice.pick(&[Part::Source, Part::Stage, Part::Consumer, Part::Progress]),
            item: dice.below(4) as u64,
        },
    }
}
