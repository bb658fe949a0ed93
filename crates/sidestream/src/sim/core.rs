//! The common core of both simulated GPUs: the rule book determines what a call is ordered after, a schedule picks
//! one of the allowed orders, and the engine computes times. The two differ in what a call does to memory.

use std::collections::VecDeque;

use super::connections::Connections;
use super::schedule::Schedule;
use super::work;
use crate::engine::{Delay, Engine, LaneId, Profile, Task, TaskId, Work};
use crate::op::{Op, OpId, StreamId};
use crate::order::{Chain, Frontier, Misuse, Order, Runs, Step, Steps};

/// Turns calls into tasks of the engine; `P` is the meaning of a task.
pub(super) struct Core<P> {
    pub order: Order,
    pub frontier: Frontier<TaskId>,
    pub engine: Engine,
    pub schedule: Schedule,
    /// The meaning of each task from `first` on; all earlier ones have finished and are forgotten.
    parts: VecDeque<P>,
    first: u64,
    random: u64,
    threads: Vec<Option<LaneId>>,
    /// The lanes of streams, by the stream's id in the rule book.
    streams: Vec<Option<LaneId>>,
    /// `None` if each stream has its own connection.
    pub connections: Option<Connections<P>>,
    // Reused from call to call, to avoid allocations.
    steps: Steps,
    before: Vec<TaskId>,
}

impl<P> Core<P> {
    pub(super) fn new(devices: Vec<Profile>, schedule: Schedule) -> Core<P> {
        Core {
            order: Order::new(),
            frontier: Frontier::default(),
            engine: Engine::new(devices),
            schedule,
            parts: VecDeque::new(),
            first: 0,
            random: schedule.seed(),
            threads: Vec::new(),
            streams: Vec::new(),
            connections: None,
            steps: Steps::new(),
            before: Vec::new(),
        }
    }

    /// Passes a call to the rule book. [`Core::reuse`] takes the steps back.
    pub(super) fn ordered(&mut self, op: &Op) -> (Result<Runs, Misuse>, Steps) {
        let mut steps = std::mem::take(&mut self.steps);
        let runs = self.order.push(op, &mut steps);
        (runs, steps)
    }

    pub(super) fn reuse(&mut self, steps: Steps) {
        self.steps = steps;
    }
}

// ------------------------------------------------------------------ adding tasks to the engine

impl<P> Core<P> {
    pub(super) fn push(&mut self, task: Task<'_>, part: P) -> TaskId {
        self.parts.push_back(part);
        self.engine.push(task)
    }

    /// Adds the call itself: time of its thread before any of the work that the call enqueues.
    pub(super) fn push_call(&mut self, op: &Op, work: Work, part: P) -> TaskId {
        let chain = Chain::Thread(op.thread);
        let lane = self.lane(chain);
        let task = self.push(Task::new(lane, work), part);
        self.frontier.set_last(chain, task);
        task
    }

    /// Returns the host work of a call, including the host's copy to staging memory. The bytes are nevertheless read
    /// when the transfer starts: reading them early would overtake a host function of the stream.
    pub(super) fn call_work(op: &Op, steps: &[Step]) -> Work {
        let staged = steps.first().is_some_and(|step| step.staged);
        let source = op.accesses.first().filter(|_| staged);
        work::call(op, source.map_or(0, |source| source.len_bytes()))
    }

    /// Returns the delay that the schedule gives a step: `number` is the operation by which a schedule can single out
    /// the step, `rank` grows from call to call, and `works` says whether the operation has work in a stream.
    pub(super) fn delay(&mut self, number: OpId, rank: u64, step: &Step, works: bool) -> Delay {
        let is_late = self.schedule.singles_out(number, step.chain, works);
        self.schedule
            .delay(&mut self.random, rank, step.chain, step.performs, is_late)
    }

    /// Adds a step, after everything that the rule book names. The caller then makes it the end of its chain with
    /// [`Frontier::advance`].
    pub(super) fn push_step(&mut self, step: &Step, work: Work, delay: Delay, part: P) -> TaskId {
        let lane = self.lane(step.chain);
        let weakest = self.schedule.weakest();
        self.before.clear();
        self.frontier
            .before(step, weakest, &self.order, &mut self.before);
        let turn = self.push_turn(step.chain, &part);
        self.before.extend(turn);
        let any_of = self.frontier.any_of(step, weakest);
        let task = Task::new(lane, work).after(&self.before).after_any(any_of);
        self.parts.push_back(part);
        self.engine.push(task.delay(delay))
    }

    /// Adds the turn of a task in the connection of its stream, after everything that the task is ordered after; `None` if no
    /// other stream has that connection. It is a marker on a host lane, which takes no time and is no pending wait of the device.
    fn push_turn(&mut self, chain: Chain, part: &P) -> Option<TaskId> {
        let (Chain::Stream(stream), Some(connections)) = (chain, &mut self.connections) else {
            return None;
        };
        let lane = connections.shared(stream, || self.engine.add_thread())?;
        self.parts.push_back((connections.turn)(part));
        let turn = Task::new(lane, Work::Marker).after(&self.before);
        Some(self.engine.push(turn))
    }

    /// Returns the lane of a chain in the engine.
    pub(super) fn lane(&mut self, chain: Chain) -> LaneId {
        match chain {
            Chain::Thread(thread) => {
                let lane = grow(&mut self.threads, thread.0);
                *lane.get_or_insert_with(|| self.engine.add_thread())
            }
            Chain::Stream(stream) => self.stream_lane(stream, 0),
        }
    }

    /// Returns the lane of a stream, which is added with this priority if it is new.
    pub(super) fn stream_lane(&mut self, stream: StreamId, priority: i32) -> LaneId {
        let device = self.order.device_of(stream);
        let lane = grow(&mut self.streams, stream.0);
        *lane.get_or_insert_with(|| {
            if let Some(connections) = &mut self.connections {
                connections.add(stream, device);
            }
            self.engine.add_stream(device.0, priority)
        })
    }

    /// Returns the largest number of a thread that has called, plus one.
    pub(super) fn threads(&self) -> u32 {
        self.threads.len() as u32
    }
}

// ------------------------------------------------------------------ unfinished tasks

impl<P> Core<P> {
    /// Whether a task was forgotten, because it and all earlier ones have finished.
    pub(super) fn is_forgotten(&self, task: TaskId) -> bool {
        task.0 < self.first
    }

    /// Returns the meaning of a task that is not forgotten.
    pub(super) fn part(&self, task: TaskId) -> &P {
        &self.parts[(task.0 - self.first) as usize]
    }

    pub(super) fn part_mut(&mut self, task: TaskId) -> &mut P {
        &mut self.parts[(task.0 - self.first) as usize]
    }

    /// Returns all tasks that are not forgotten, with their meaning.
    pub(super) fn parts(&self) -> impl Iterator<Item = (TaskId, &P)> {
        (self.first..).map(TaskId).zip(&self.parts)
    }

    /// Forgets the finished tasks at the front; returns the first one that is kept.
    pub(super) fn forget(&mut self, is_done: impl Fn(&P) -> bool) -> TaskId {
        while self.parts.front().is_some_and(&is_done) {
            self.parts.pop_front();
            self.first += 1;
        }
        self.engine.retire();
        TaskId(self.first)
    }
}

/// Returns the entry of an id, for which the table grows.
pub(super) fn grow<T>(table: &mut Vec<Option<T>>, id: u32) -> &mut Option<T> {
    let at = id as usize;
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    &mut table[at]
}
