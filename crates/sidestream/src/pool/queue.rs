//! The requests that wait, by class, and the count of those that have ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Error;
use super::answer::Cell;
use super::rule::{Leave, Pace, Rule};
use super::statistics::Statistics;
use crate::buffer::Pod;

pub(super) struct Request<I, O: Pod> {
    pub values: Box<[I]>,
    pub arrived: Instant,
    pub deadline: Option<Instant>,
    pub cell: Arc<Cell<O>>,
}

pub(super) struct Queue<I, O: Pod> {
    pub rule: Rule,
    limit: usize,
    slots: usize,
    names: Vec<String>,
    state: Mutex<State<I, O>>,
    /// By class: there is something to look at for the slot that forms a batch, or for the one that will form the next.
    changed: Vec<Condvar>,
}

struct State<I, O: Pod> {
    classes: Vec<Class<I, O>>,
    statistics: Statistics,
    is_closed: bool,
}

struct Class<I, O: Pod> {
    waiting: VecDeque<Request<I, O>>,
    /// Whether a slot forms a batch. The others wait until it has.
    is_forming: bool,
    /// Batches that are with the device.
    in_flight: usize,
    pace: Pace,
}

impl<I, O: Pod> Queue<I, O> {
    pub fn new(names: Vec<String>, rule: Rule, limit: usize, slots: usize) -> Queue<I, O> {
        let class = |_: &String| Class {
            waiting: VecDeque::new(),
            is_forming: false,
            in_flight: 0,
            pace: Pace::default(),
        };
        let state = State {
            classes: names.iter().map(class).collect(),
            statistics: Statistics::default(),
            is_closed: false,
        };
        Queue {
            rule,
            limit,
            slots,
            changed: names.iter().map(|_| Condvar::new()).collect(),
            names,
            state: Mutex::new(state),
        }
    }

    pub fn put(&self, class: Option<&str>, request: Request<I, O>) -> Result<(), Error> {
        let at = match class {
            None => 0,
            Some(name) => self
                .names
                .iter()
                .position(|known| known == name)
                .ok_or_else(|| Error::NoSuchClass(name.to_owned()))?,
        };
        let mut guard = self.state.lock();
        let State {
            classes,
            statistics,
            is_closed,
        } = &mut *guard;
        if *is_closed {
            return Err(Error::Closed);
        }
        let class = &mut classes[at];
        if class.waiting.len() >= self.limit {
            statistics.refused_full += 1;
            return Err(Error::Full { limit: self.limit });
        }
        if let Some(deadline) = request.deadline {
            let waiting = class.waiting.len();
            let expected = class
                .pace
                .expected(&self.rule, waiting, class.in_flight, self.slots);
            if request.arrived + expected > deadline {
                statistics.refused_late += 1;
                return Err(Error::Late { expected });
            }
        }
        class.waiting.push_back(request);
        let many = class.waiting.len();
        drop(guard);
        if many == 1 || many == self.rule.largest() {
            self.changed[at].notify_all();
        }
        Ok(())
    }

    /// The next batch of a class; waits for one. None when there will be no more. What has expired or was taken back is left out, and a batch may be
    /// empty for that.
    pub fn take(&self, at: usize) -> Option<Vec<Request<I, O>>> {
        let changed = &self.changed[at];
        let mut guard = self.state.lock();
        while guard.classes[at].is_forming {
            changed.wait(&mut guard);
        }
        guard.classes[at].is_forming = true;
        let many = loop {
            let state = &mut *guard;
            let now = Instant::now();
            let waiting = &state.classes[at].waiting;
            let oldest = waiting.front().map_or(Duration::ZERO, |oldest| {
                now.saturating_duration_since(oldest.arrived)
            });
            match self.rule.leave(waiting.len(), oldest, !state.is_closed) {
                Leave::Now(many) => break many,
                Leave::In(time) => {
                    changed.wait_until(&mut guard, now + time);
                }
                Leave::Empty if state.is_closed => {
                    state.classes[at].is_forming = false;
                    changed.notify_all();
                    return None;
                }
                Leave::Empty => changed.wait(&mut guard),
            }
        };
        let State {
            classes,
            statistics,
            ..
        } = &mut *guard;
        let class = &mut classes[at];
        class.is_forming = false;
        class.in_flight += 1;
        let taken: Vec<Request<I, O>> = class.waiting.drain(..many).collect();
        let now = Instant::now();
        let mut batch = Vec::with_capacity(taken.len());
        let mut expired = Vec::new();
        for request in taken {
            if request.deadline.is_some_and(|deadline| deadline <= now) {
                expired.push(request);
            } else if request.cell.launch() {
                statistics.queue.add(now - request.arrived);
                statistics.in_flight += 1;
                batch.push(request);
            } else {
                statistics.cancelled += 1;
            }
        }
        drop(guard);
        changed.notify_all();
        let mut cancelled = 0;
        let late = expired.len() as u64;
        for request in expired {
            cancelled += u64::from(!request.cell.answer(Err(Error::Expired)));
        }
        if late > 0 {
            let statistics = &mut self.state.lock().statistics;
            statistics.expired += late - cancelled;
            statistics.cancelled += cancelled;
        }
        Some(batch)
    }

    /// A batch is over that left then.
    pub fn over(&self, at: usize, left: Instant) {
        let class = &mut self.state.lock().classes[at];
        class.in_flight -= 1;
        class.pace.note(left.elapsed());
    }

    /// Lets something be noted of what happened.
    pub fn note(&self, note: impl FnOnce(&mut Statistics)) {
        note(&mut self.state.lock().statistics);
    }

    pub fn statistics(&self) -> Statistics {
        let state = self.state.lock();
        let mut statistics = state.statistics.clone();
        let waiting = state.classes.iter().map(|class| class.waiting.len());
        statistics.waiting = waiting.sum::<usize>() as u64;
        statistics
    }

    /// No more requests. Those that wait are computed, or ended.
    pub fn close(&self, are_computed: bool) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let mut ended = Vec::new();
        if !are_computed {
            for class in &mut state.classes {
                ended.extend(class.waiting.drain(..));
            }
        }
        drop(state);
        for changed in &self.changed {
            changed.notify_all();
        }
        let mut dropped = 0;
        let all = ended.len() as u64;
        for request in ended {
            dropped += u64::from(request.cell.answer(Err(Error::Closed)));
        }
        self.note(|statistics| {
            statistics.dropped += dropped;
            statistics.cancelled += all - dropped;
        });
    }
}
