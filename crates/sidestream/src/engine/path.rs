//! What was executed, and why it took so long: the critical path is walked on the executed schedule, queues included.

use super::*;

/// What let a task start when it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing before it: the time at which it was pushed.
    Pushed,
    /// The previous task of its lane.
    Lane(TaskId),
    /// A task named in its `after`.
    Edge(TaskId),
    /// The task that held what it needed.
    Resource(TaskId),
    /// It was delayed until nothing else could progress; this task had finished last.
    Idle(TaskId),
    /// The release of its lane.
    Released,
}

impl Cause {
    /// The task to look at next.
    pub fn task(self) -> Option<TaskId> {
        match self {
            Self::Pushed | Self::Released => None,
            Self::Lane(t) | Self::Edge(t) | Self::Resource(t) | Self::Idle(t) => Some(t),
        }
    }
}

/// One piece of a critical path: from `from_ns` to `start_ns` the task waited, from `start_ns` to `to_ns` it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The task.
    pub task: TaskId,
    /// What ended its wait.
    pub cause: Cause,
    /// Where the previous piece ends: a hop or another latency lies between that and the start.
    pub from_ns: u64,
    /// Its start.
    pub start_ns: u64,
    /// Where the next piece begins. Before the task's own end when the next task only waited for a part of it: a kernel
    /// gives its slots away before its tail.
    pub to_ns: u64,
}

impl Engine {
    /// When a finished task ran.
    ///
    /// # Panics
    /// When there is no such task.
    #[track_caller]
    pub fn scheduled(&self, task: TaskId) -> Option<Span> {
        let slot = self.slots.get(task.0)?;
        (slot.state == State::Done).then(|| Span {
            start_ns: slot.start_ns,
            end_ns: slot.end_ns,
            resource: self.resource(slot),
        })
    }

    /// All finished tasks with their lanes, in the order of their pushes.
    pub fn schedule(&self) -> impl Iterator<Item = (TaskId, LaneId, Span)> {
        self.slots.numbered().filter_map(|(n, slot)| {
            self.scheduled(TaskId(n))
                .map(|span| (TaskId(n), LaneId(slot.lane), span))
        })
    }

    fn resource(&self, slot: &Slot) -> Resource {
        match (slot.job, self.lanes[slot.lane as usize].device, slot.side) {
            (Job::Marker, _, _) => Resource::None,
            (_, Some(device), Side::Device(engine)) => Resource::Engine { device, engine },
            _ => Resource::Host,
        }
    }

    /// What let a task start when it did, as far as is known.
    ///
    /// # Panics
    /// When there is no such task.
    #[track_caller]
    pub fn cause(&self, task: TaskId) -> Cause {
        self.slots[task.0].cause
    }

    /// The chain of causes up to the end of a task, first piece first; without a task, up to the last end. Its pieces
    /// touch each other, begin at 0 and end at the end of the task, so their lengths add up to the whole time.
    /// Empty when the task has not finished.
    pub fn critical_path(&self, task: Option<TaskId>) -> Vec<Link> {
        let last = || {
            self.slots
                .numbered()
                .filter(|(_, s)| s.state == State::Done)
                .max_by_key(|(n, s)| (s.end_ns, *n))
                .map(|(n, _)| TaskId(n))
        };
        let Some(task) = task
            .or_else(last)
            .filter(|t| self.slots.get(t.0).is_some_and(|s| s.state == State::Done))
        else {
            return Vec::new();
        };
        let mut links = Vec::new();
        let mut at = task;
        let mut to_ns = self.slots[at.0].end_ns;
        loop {
            let slot = &self.slots[at.0];
            // The cause may end after this start, when it only gave away what it held, or the client's push came late.
            let from_ns = slot
                .cause
                .task()
                .map_or(0, |t| self.slots[t.0].end_ns.min(slot.start_ns));
            links.push(Link {
                task: at,
                cause: slot.cause,
                from_ns,
                start_ns: slot.start_ns,
                to_ns,
            });
            let Some(before) = slot.cause.task() else {
                break;
            };
            at = before;
            to_ns = from_ns;
        }
        links.reverse();
        links
    }
}
