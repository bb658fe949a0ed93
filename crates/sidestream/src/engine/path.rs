//! The executed schedule and its critical path, which includes the time spent in queues.

use super::*;

/// The cause of a task's start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The time at which the task was pushed.
    Pushed,
    /// The end of the previous task of its lane.
    Lane(TaskId),
    /// The end of a task that is named in `after`.
    Edge(TaskId),
    /// The end of the task that occupied the resource that this task needed.
    Resource(TaskId),
    /// A delay until nothing else could progress; this task had finished last.
    Idle(TaskId),
    /// The release of its lane.
    Released,
}

impl Cause {
    /// Returns the task that caused the start, if a task did.
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
    /// The cause of the task's start time.
    pub cause: Cause,
    /// The end of the previous piece; between it and the start there is a hop or another latency.
    pub from_ns: u64,
    /// The start of the task.
    pub start_ns: u64,
    /// The beginning of the next piece. It precedes the task's own end if the next task waited only for a part of it: a
    /// kernel releases its slots before its tail.
    pub to_ns: u64,
}

impl Engine {
    /// Returns the time span of a finished task.
    ///
    /// # Panics
    /// If there is no such task.
    #[track_caller]
    pub fn scheduled(&self, task: TaskId) -> Option<Span> {
        let slot = self.slots.get(task.0)?;
        (slot.state == State::Done).then(|| Span {
            start_ns: slot.start_ns,
            end_ns: slot.end_ns,
            resource: self.resource(slot),
        })
    }

    /// Returns all finished tasks with their lanes, in the order in which they were pushed.
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

    /// Returns the cause of a task's start time, as far as it is known.
    ///
    /// # Panics
    /// If there is no such task.
    #[track_caller]
    pub fn cause(&self, task: TaskId) -> Cause {
        self.slots[task.0].cause
    }

    /// Returns the chain of causes that ends with a task or, without one, with the task that finished last. The first piece
    /// begins at 0, each begins where the one before it ends, and the last ends with the task, so their
    /// lengths add up to the whole time. Empty if the task has not finished.
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
            // The cause may end after this start, if it only released its slots early, or if the task was pushed late.
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
