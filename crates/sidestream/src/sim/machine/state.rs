//! The state of a machine, and how a call becomes tasks of the engine.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::callback::Callback;
use super::capture::Captures;
use super::command::{Command, Effect};
use super::space::Space;
use super::tables::Tables;
use crate::backend::Done;
use crate::engine::{Call, Event, Profile, Task, TaskId, What, Work};
use crate::error::{Error, Lost, Result};
use crate::op::{DeviceId, Kind, Op, OpId, StreamId, ThreadId};
use crate::order::{Chain, Misuse, Runs};
use crate::sim::core::Core;
use crate::sim::schedule::Schedule;
use crate::sim::work;

/// The state that the lock of a machine protects.
pub(super) struct State {
    pub profile: Profile,
    pub core: Core<Part>,
    pub space: Space,
    pub tables: Tables,
    pub captures: Captures,
    /// By device: the reason why the device was lost, if it was.
    pub lost: Vec<Option<Lost>>,
    /// The number of calls so far, by which the schedules number them.
    pub calls: u64,
    /// The number of negative query results in a row while nothing else happened.
    pub noes: u32,
    /// The end of a host function that may still run; no later event is processed before it returns.
    pub held: Option<Event>,
    /// The number of functions handed to the callback thread.
    pub handed_over: u64,
    /// The number of these functions that are known to have returned.
    pub acknowledged: u64,
    pub keeps_times: bool,
    /// Whether bytes are read and written; if not, only times are simulated.
    pub computes: bool,
    /// By the number of the call: its times.
    pub times: HashMap<u64, Times>,
    pub done: Vec<Done>,
    /// Values of the program, to be dropped after the lock is released.
    pub dropped: Vec<Effect>,
    next_purge: u64,
}

/// The meaning of a task of the engine.
pub(super) struct Part {
    /// The number of its call.
    pub serial: u64,
    pub op: OpId,
    pub call: &'static str,
    pub device: DeviceId,
    pub is_on_device: bool,
    pub is_done: bool,
    pub start_ns: u64,
    pub effect: Effect,
}

impl Part {
    pub(super) fn new(op: &Op, serial: u64, device: DeviceId, is_on_device: bool) -> Part {
        Part {
            serial,
            op: op.id,
            call: op.kind.name(),
            device,
            is_on_device,
            is_done: false,
            start_ns: 0,
            effect: Effect::Nothing,
        }
    }
}

impl Core<Part> {
    /// Whether a task has finished, and so has its host function.
    pub(super) fn is_done(&self, task: TaskId) -> bool {
        self.is_forgotten(task) || self.part(task).is_done
    }
}

/// The times of the tasks of a call that have run.
pub(super) struct Times {
    pub left: u64,
    pub done: Done,
}

/// The tasks that a call waits for.
pub(super) type Targets = SmallVec<[TaskId; 4]>;

/// The result of the next step of the engine.
pub(super) enum Turn {
    Happened,
    /// Nothing can happen before this many host functions have returned.
    Runs(u64),
    Nothing,
}

/// The largest number of later tasks that may be added while a task stays delayed.
const LONGEST_DELAY: u64 = 1 << 16;

// ------------------------------------------------------------------ calls

impl State {
    pub(super) fn new(profiles: Vec<Profile>, schedule: Schedule, space: Space) -> State {
        State {
            profile: profiles[0].clone(),
            lost: profiles.iter().map(|_| None).collect(),
            core: Core::new(profiles, schedule),
            space,
            tables: Tables::default(),
            captures: Captures::default(),
            calls: 0,
            noes: 0,
            held: None,
            handed_over: 0,
            acknowledged: 0,
            keeps_times: false,
            computes: true,
            times: HashMap::new(),
            done: Vec::new(),
            dropped: Vec::new(),
            next_purge: 0,
        }
    }

    /// Adds a call to the engine. Returns the task that the caller must wait for, if the call blocks its caller.
    pub(super) fn submit(&mut self, mut command: Command) -> Result<Option<TaskId>> {
        let outcome = self.take(&mut command);
        self.dropped.push(command.effect);
        outcome
    }

    fn take(&mut self, command: &mut Command) -> Result<Option<TaskId>> {
        let device = self.device_of(&command.op.kind, command.op.thread)?;
        self.refuse_lost(device)?;
        let Some(kind) = self.tables.ordered(&command.op.kind)? else {
            self.push_call(&command.op, device, work::call(&command.op, 0));
            return Ok(None);
        };
        self.captures.refuse(&command.op.kind)?;
        let caller_kind = std::mem::replace(&mut command.op.kind, kind);
        let (runs, steps) = self.core.ordered(&command.op);
        let outcome = match runs {
            Ok(Runs::Now) => {
                self.captures.ran(&caller_kind, device);
                Ok(self.enqueue(command, &caller_kind, device, &steps))
            }
            Ok(Runs::Captured) => {
                self.push_call(&command.op, device, work::call(&command.op, 0));
                self.captures.took(&caller_kind, command);
                Ok(None)
            }
            Err(misuse) => Err(refused(&caller_kind, misuse)),
        };
        self.core.reuse(steps);
        self.noes = 0;
        outcome
    }

    /// Whether work enqueued in a stream now would become part of a capture, or be refused because of one.
    pub(super) fn is_captured(&mut self, stream: StreamId) -> bool {
        // If the stream does not exist, the next call that names it returns the error.
        let ordered = self.tables.stream(stream).map(|stream| stream.ordered);
        ordered.is_ok_and(|stream| self.core.order.is_captured(stream))
    }

    /// Returns the tasks that must finish before a query returns true or a synchronize returns.
    pub(super) fn targets(&mut self, op: &Op) -> Result<Targets> {
        let device = self.device_of(&op.kind, op.thread)?;
        self.refuse_lost(device)?;
        let kind = match self.tables.ordered(&op.kind)? {
            // The tasks that a positive answer is ordered after.
            Some(Kind::QueryStream { stream, .. }) => Kind::QueryStream { stream, done: true },
            Some(Kind::QueryEvent { event, .. }) => Kind::QueryEvent { event, done: true },
            Some(kind) => kind,
            None => return Ok(Targets::new()),
        };
        let ordered = Op { kind, ..op.clone() };
        let (pushed, steps) = self.core.ordered(&ordered);
        let mut tasks = Vec::new();
        for step in &steps {
            // A step is also ordered after its own thread, which does not concern the query.
            let weakest = self.core.schedule.weakest();
            let order = &self.core.order;
            self.core.frontier.asked(step, weakest, order, &mut tasks);
        }
        self.core.reuse(steps);
        pushed.map_err(|misuse| refused(&op.kind, misuse))?;
        Ok(tasks.into_iter().collect())
    }

    /// Adds the call of a query or a synchronize: time of its thread.
    pub(super) fn push_ask(&mut self, op: &Op) -> Result<TaskId> {
        let device = self.device_of(&op.kind, op.thread)?;
        Ok(self.push_call(op, device, work::call(op, 0)))
    }

    /// Orders the thread after these tasks, which have finished.
    pub(super) fn push_answer(&mut self, op: &Op, targets: &Targets) -> Result<TaskId> {
        let device = self.device_of(&op.kind, op.thread)?;
        let chain = Chain::Thread(op.thread);
        // No call with this number keeps times.
        let part = Part::new(op, u64::MAX, device, false);
        let lane = self.core.lane(chain);
        let work = Work::Call(Call::HostNs(0));
        let task = Task::new(lane, work).after(targets);
        let task = self.core.push(task, part);
        self.core.frontier.set_last(chain, task);
        Ok(task)
    }

    /// Advances the virtual time of a thread.
    pub(super) fn push_pause(&mut self, op: &Op, ns: u64) -> Result<TaskId> {
        let device = self.device_of(&op.kind, op.thread)?;
        Ok(self.push_call(op, device, Work::Call(Call::HostNs(ns))))
    }

    /// Notes that the call of a query lasted from the start of one task to the end of another.
    pub(super) fn note_question(&mut self, op: &Op, first: TaskId, last: TaskId) {
        let spans = [first, last].map(|task| self.core.engine.scheduled(task));
        if let (true, [Some(first), Some(last)]) = (self.keeps_times, spans) {
            self.done.push(Done {
                op: op.id,
                call_ns: Some((first.start_ns, last.end_ns)),
                work_ns: None,
            });
        }
    }

    pub(super) fn refuse_lost(&self, device: DeviceId) -> Result<()> {
        match self.lost.get(device.0 as usize) {
            Some(None) => Ok(()),
            Some(Some(lost)) => Err(Error::DeviceLost(lost.clone())),
            None => Err(Error::Refused {
                call: "device",
                code: 101,
                why: format!("there is no device {}", device.0),
            }),
        }
    }

    /// Returns the device of a call.
    pub(super) fn device_of(&self, kind: &Kind, thread: ThreadId) -> Result<DeviceId> {
        if let Kind::SyncEvent { event } | Kind::QueryEvent { event, .. } = kind {
            return Ok(self.tables.event(*event)?.device);
        }
        if let Kind::SyncDevice {
            device: Some(device),
        }
        | Kind::SetDevice { device } = kind
        {
            return Ok(*device);
        }
        match kind.stream() {
            Some(stream) => Ok(self.tables.stream(stream)?.device),
            None => Ok(self.core.order.current_device(thread)),
        }
    }
}

/// Returns the error of the driver for a call that the rules refuse.
pub(super) fn refused(kind: &Kind, misuse: Misuse) -> Error {
    Error::Refused {
        call: kind.name(),
        code: misuse.code.number() as i32,
        why: misuse.to_string(),
    }
}

// ------------------------------------------------------------------ unfinished tasks

impl State {
    /// Processes one event of the engine, if there is one up to this time; without a time, the next one.
    pub(super) fn turn(&mut self, until_ns: Option<u64>, callback: &Callback) -> Turn {
        let next = self.held.take().or_else(|| match until_ns {
            Some(until_ns) => self.core.engine.step_to(until_ns),
            None => self.core.engine.step(),
        });
        let Some(event) = next else {
            return Turn::Nothing;
        };
        let effect = &self.core.part(event.task).effect;
        if let (What::Finished, Effect::Running(number)) = (event.what, effect)
            && *number > self.acknowledged
        {
            let number = *number;
            self.held = Some(event);
            return Turn::Runs(number);
        }
        self.happen(event, callback);
        Turn::Happened
    }

    /// Forgets finished tasks, and releases memory that no task can use any more.
    pub(super) fn settle(&mut self) {
        let unfinished = self.core.forget(|part| part.is_done);
        self.space.settle(unfinished.0);
        let tasks = self.core.engine.tasks() as u64;
        if tasks >= self.next_purge {
            self.next_purge = tasks + LONGEST_DELAY / 4;
            let oldest = tasks.saturating_sub(LONGEST_DELAY);
            self.core.engine.release_before(TaskId(oldest));
        }
    }
}
