//! Calls of other code outside the safe API, and code of the program that panics, as data.

use super::act::{Place, place};
use super::dice::Dice;
use super::plan::{Edges, Plan};

/// One call. Numbers are taken modulo the number of objects.
#[derive(Clone, Copy, Debug)]
pub enum EdgeAct {
    /// Other code is given a stream.
    Meet(Known),
    /// Other code uses the buffer of a slot, and the program makes sure that nothing else uses it meanwhile.
    Work(Work),
    /// A capture begins on one of these streams, or continues, or ends and is launched.
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
    /// Code of the program that the runtime calls panics.
    Panic(Called),
    /// A child of a fork tries all handles.
    Fork,
}

/// How other code got to know a stream.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    /// Other code was given the handle of this stream of the safe API.
    Safe(usize),
    /// Other code created the stream itself, and the program adopted it.
    Adopted(usize),
    /// A stream of the explicit style on this device, and whether other code was given its handle.
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
    /// Index of the stream among those that other code knows.
    pub on: usize,
    pub by: By,
    pub value: u8,
    /// Number of operations.
    pub count: usize,
    pub settles: Settles,
}

/// Who calls the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The program, through the explicit style, so that the log records the calls.
    Program,
    /// Other code, whose calls are not recorded.
    Others,
}

/// How the promise for lent memory is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settles {
    /// The program waits for the stream, or polls until it is idle, and continues.
    Synchronize,
    Query,
    /// The next stream that uses the memory waits for an event, or for the whole stream.
    Event,
    WaitStream,
    /// The memory is recorded on the stream, after the work or before it, and dropped.
    Note,
    NoteBefore,
    /// The promise is broken. That makes a race, so only the tests of this race do it.
    Never,
}

/// Which code of the program panics.
#[derive(Clone, Copy, Debug)]
pub enum Called {
    /// The cost function of a kernel.
    Cost(Place),
    Benchmark(Place),
    /// A sink, after this many records.
    Sink(u32),
    /// The file of a recording, after this many writes.
    File(u32),
    /// The waker of a pending value.
    Waker(usize),
    /// The drop of what a host function owns.
    Drop(usize),
    /// A host function of the explicit style.
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

/// Draws a call, if the plan has any of these.
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
        // Other threads see the work of its thread half done.
        // If a call that begins or ends a capture panics, its caller does not know whether it had an effect.
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
