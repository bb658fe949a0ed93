//! [`Requests`] for threads: with a lock, the clock, and the wait of a slot for its next batch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Error;
use super::answer::Cell;
use super::requests::{Batch, Refusal, Requests, Took};
use super::rule::Rule;
use super::statistics::Statistics;
use crate::buffer::Pod;

pub(super) struct Request<I, O: Pod> {
    pub values: Box<[I]>,
    pub cell: Arc<Cell<O>>,
}

pub(super) struct Queue<I, O: Pod> {
    pub rule: Rule,
    limit: usize,
    names: Vec<String>,
    started: Instant,
    requests: Mutex<Requests<Request<I, O>>>,
    /// By class: signalled when a waiting slot must look at the requests again.
    changed: Vec<Condvar>,
}

impl<I, O: Pod> Queue<I, O> {
    pub(super) fn new(names: Vec<String>, rule: Rule, limit: usize, slots: usize) -> Queue<I, O> {
        let requests = Requests::new(rule.clone(), limit, names.len(), slots);
        Queue {
            rule,
            limit,
            changed: names.iter().map(|_| Condvar::new()).collect(),
            names,
            started: Instant::now(),
            requests: Mutex::new(requests),
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Queues a request, and returns its class.
    pub(super) fn put(
        &self,
        class: Option<&str>,
        request: Request<I, O>,
        deadline: Option<Instant>,
    ) -> Result<usize, Error> {
        let of = match class {
            None => 0,
            Some(name) => self
                .names
                .iter()
                .position(|known| known == name)
                .ok_or_else(|| Error::NoSuchClass(name.to_owned()))?,
        };
        let deadline = deadline.map(|at| at.saturating_duration_since(self.started));
        let mut requests = self.requests.lock();
        let taken = requests.submit(of, request, self.now(), deadline, None);
        drop(requests);
        let waiting = taken.map_err(|refusal| match refusal {
            Refusal::Closed => Error::Closed,
            Refusal::Full => Error::Full { limit: self.limit },
            Refusal::Late(expected) => Error::Late { expected },
        })?;
        if waiting == 1 || waiting == self.rule.largest() {
            self.changed[of].notify_one();
        }
        Ok(of)
    }

    /// Cancels a request; returns whether it will not be computed.
    pub(super) fn cancel(&self, of: usize, cell: &Arc<Cell<O>>) -> bool {
        let is_it = |request: &Request<I, O>| Arc::ptr_eq(&request.cell, cell);
        let taken = self.requests.lock().cancel(of, is_it);
        let is_taken = taken.is_some();
        if let Some(request) = taken {
            request.cell.answer(Err(Error::Cancelled));
        }
        is_taken
    }

    /// Blocks until the next batch of a class is due, and returns it; `None` when there will be no more.
    pub(super) fn take(&self, of: usize) -> Option<Batch<Request<I, O>>> {
        let changed = &self.changed[of];
        loop {
            let mut requests = self.requests.lock();
            let batch = loop {
                let now = self.now();
                if let Some(batch) = requests.take(of, now) {
                    break batch;
                }
                match requests.due(of) {
                    Some(due) => drop(changed.wait_for(&mut requests, due.saturating_sub(now))),
                    None if requests.is_closed() => return None,
                    None => changed.wait(&mut requests),
                }
            };
            // Another slot takes the requests that are left.
            if requests.due(of).is_some() {
                changed.notify_one();
            }
            drop(requests);
            for request in batch.expired {
                request.cell.answer(Err(Error::Expired));
            }
            if !batch.keys.is_empty() {
                let expired = Vec::new();
                return Some(Batch { expired, ..batch });
            }
        }
    }

    /// Notes that the requests of a batch were computed: all of them, or only the one with the number `alone`.
    pub(super) fn answered(&self, of: usize, slot: usize, alone: Option<usize>, took: Took) {
        let mut requests = self.requests.lock();
        requests.answered(of, slot, alone, took, self.now());
    }

    /// Notes that a request of a batch failed.
    pub(super) fn failed(&self) {
        self.requests.lock().failed(1);
    }

    /// Notes that all requests of a batch have their answers; `due` is the time at which the batch was due.
    pub(super) fn over(&self, of: usize, slot: usize, due: Duration) {
        let mut requests = self.requests.lock();
        let now = self.now();
        requests.over(of, slot, now);
        requests.told(of, due, now);
    }

    pub(super) fn statistics(&self) -> Statistics {
        self.requests.lock().statistics()
    }

    /// Closes the batcher to new requests. Waiting requests are computed if `are_computed` is set, and otherwise ended.
    pub(super) fn close(&self, are_computed: bool) {
        let ended = self.requests.lock().close(are_computed);
        for changed in &self.changed {
            changed.notify_all();
        }
        for request in ended {
            request.cell.answer(Err(Error::Closed));
        }
    }
}
