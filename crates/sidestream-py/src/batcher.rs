//! The requests of a Python batcher, built on `sidestream::batcher`: which requests wait, when a batch is launched,
//! which are refused and what is counted.
//!
//! Python's event loops and threads call in with the GIL. The thread that launches batches for other threads waits
//! here without it. While the state's lock is taken, no Python code runs and no Python object is dropped.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sidestream::batcher::{self, Histogram, Refusal, Rule, Statistics, Took};

/// A snapshot of a batcher's counters.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct BatcherStatistics(Statistics);

/// The requests of a batcher. Times are in seconds of the caller's clock.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct Requests {
    state: Mutex<State>,
    /// Notified when a batch is due earlier than the launching thread is going to wake.
    sooner: Condvar,
    /// Notified when a slot becomes free, or no more requests are accepted.
    freed: Condvar,
    by_urgency: Vec<usize>,
    grace: Duration,
}

struct State {
    all: batcher::Requests<Py<PyAny>>,
    /// When the launching thread wakes by itself.
    wakes: Duration,
    /// The class and slot that a `claim` waits for, and whether the slot is reserved for that call.
    wanted: Option<(usize, usize)>,
    is_kept: bool,
}

/// Answers, expired answers, slot, batch size, and the time at which the batch was due.
type Taken = (Vec<Py<PyAny>>, Vec<Py<PyAny>>, usize, usize, f64);

/// How often a wait on the program's own thread checks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

#[pymethods]
impl Requests {
    #[new]
    fn new(
        sizes: Vec<usize>,
        max_delay_s: f64,
        max_queue: usize,
        priorities: Vec<i32>,
        slots: usize,
        grace_s: f64,
    ) -> PyResult<Requests> {
        let rule = Rule::new(&sizes, seconds(max_delay_s)).map_err(PyValueError::new_err)?;
        let mut by_urgency: Vec<usize> = (0..priorities.len()).collect();
        by_urgency.sort_by_key(|of| priorities[*of]);
        Ok(Requests {
            state: Mutex::new(State {
                all: batcher::Requests::new(rule, max_queue, priorities.len(), slots),
                wakes: Duration::ZERO,
                wanted: None,
                is_kept: false,
            }),
            sooner: Condvar::new(),
            freed: Condvar::new(),
            by_urgency,
            grace: seconds(grace_s),
        })
    }

    /// Queues a request. Returns the number of waiting requests, or why the request is refused: 0 if the batcher is
    /// closed, -1 if the queue is full, -2 if the answer would come too late.
    fn submit(
        &self,
        of: usize,
        answer: Py<PyAny>,
        now_s: f64,
        deadline_s: Option<f64>,
        home: Option<usize>,
    ) -> isize {
        let mut state = self.state.lock();
        let now = seconds(now_s);
        let taken = state
            .all
            .submit(of, answer, now, deadline(now, deadline_s), home);
        match taken {
            Ok(waiting) => {
                // A request of an event loop changes when the next batch is due only if it is first in the queue or
                // fills a batch.
                if home.is_none() || waiting == 1 || waiting == state.all.rule().largest() {
                    self.look(&mut state);
                }
                waiting as isize
            }
            Err(Refusal::Closed) => 0,
            Err(Refusal::Full) => -1,
            Err(Refusal::Late(_)) => -2,
        }
    }

    /// Refuses a request that would be late before any work is done for it. Returns the expected seconds until its
    /// answer, or `None` if it is admitted.
    fn late(&self, of: usize, now_s: f64, deadline_s: f64) -> Option<f64> {
        let now = seconds(now_s);
        let by = deadline(now, Some(deadline_s))?;
        match self.state.lock().all.admit(of, now, by) {
            Err(Refusal::Late(expected)) => Some(expected.as_secs_f64()),
            _ => None,
        }
    }

    fn cancel(&self, of: usize, answer: &Bound<'_, PyAny>) -> bool {
        let is_it = |other: &Py<PyAny>| other.as_ptr() == answer.as_ptr();
        let taken = self.state.lock().all.cancel(of, is_it);
        taken.is_some()
    }

    /// Takes the oldest requests of a class, and a slot for them, if a batch is due.
    fn take(&self, of: usize, now_s: f64) -> Option<Taken> {
        let mut state = self.state.lock();
        let batch = state.all.take(of, seconds(now_s))?;
        // Another request is now the first in the queue.
        self.look(&mut state);
        let due_s = batch.due.as_secs_f64();
        Some((batch.keys, batch.expired, batch.slot, batch.size, due_s))
    }

    /// Seconds until the next batch of a class is due.
    fn due(&self, of: usize, now_s: f64) -> Option<f64> {
        let due = self.state.lock().all.due(of)?;
        Some(due.saturating_sub(seconds(now_s)).as_secs_f64())
    }

    /// Waits until a batch is due for the launching thread, and returns its class. `None` once no more requests are
    /// accepted and none wait.
    fn wait(&self, py: Python<'_>, now_s: f64) -> Option<usize> {
        let begun = Instant::now();
        py.detach(|| {
            let mut state = self.state.lock();
            loop {
                let now = seconds(now_s) + begun.elapsed();
                let soonest = self.soonest(&state, now);
                match soonest {
                    Some((due, of)) if due <= now => {
                        state.wakes = Duration::ZERO;
                        return Some(of);
                    }
                    None if state.all.is_closed() && state.all.statistics().waiting == 0 => {
                        return None;
                    }
                    Some((due, _)) => {
                        state.wakes = due;
                        self.sooner.wait_for(&mut state, due - now);
                    }
                    None => {
                        state.wakes = Duration::MAX;
                        self.sooner.wait(&mut state);
                    }
                }
            }
        })
    }

    /// Marks all requests of a slot's batch as computed, or only the one with the index `alone`, with the
    /// milliseconds that the device took.
    fn answered(
        &self,
        of: usize,
        slot: usize,
        alone: Option<usize>,
        device_ms: Option<[f64; 3]>,
        now_s: f64,
    ) {
        let took = device_ms.map_or(Took::Unknown, |ms| {
            Took::Parts(ms.map(|ms| seconds(ms / 1e3)))
        });
        let mut state = self.state.lock();
        state.all.answered(of, slot, alone, took, seconds(now_s));
    }

    fn failed(&self) {
        self.state.lock().all.failed(1);
    }

    /// Frees a slot. Returns the oldest waiting request of the class.
    fn over(&self, py: Python<'_>, of: usize, slot: usize, now_s: f64) -> Option<Py<PyAny>> {
        let mut state = self.state.lock();
        state.all.over(of, slot, seconds(now_s));
        if state.wanted == Some((of, slot)) && state.all.claim(of, slot) {
            // Otherwise, under load, the next batch would always take the slot first.
            state.wanted = None;
            state.is_kept = true;
        }
        self.look(&mut state);
        self.freed.notify_all();
        state.all.oldest(of).map(|answer| answer.clone_ref(py))
    }

    fn told(&self, of: usize, due_s: f64, now_s: f64) {
        let mut state = self.state.lock();
        state.all.told(of, seconds(due_s), seconds(now_s));
    }

    /// Waits until this slot is free, and takes it out of service. Returns `false` if the batcher is closed.
    fn claim(&self, py: Python<'_>, of: usize, slot: usize) -> bool {
        py.detach(|| {
            let mut state = self.state.lock();
            loop {
                if std::mem::take(&mut state.is_kept) || state.all.claim(of, slot) {
                    return true;
                }
                if state.all.is_closed() {
                    state.wanted = None;
                    return false;
                }
                state.wanted = Some((of, slot));
                self.freed.wait(&mut state);
            }
        })
    }

    /// Waits until no batch is in flight.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        loop {
            let is_settled = py.detach(|| {
                let mut state = self.state.lock();
                let is_idle = |state: &State| {
                    self.by_urgency
                        .iter()
                        .all(|of| state.all.in_flight(*of) == 0)
                };
                if !is_idle(&state) {
                    self.freed.wait_for(&mut state, SIGNALS);
                }
                is_idle(&state)
            });
            if is_settled {
                return Ok(());
            }
            py.check_signals()?;
        }
    }

    /// Stops accepting requests. Those that wait are computed, or returned.
    fn close(&self, are_computed: bool) -> Vec<Py<PyAny>> {
        let ended = self.state.lock().all.close(are_computed);
        self.sooner.notify_all();
        self.freed.notify_all();
        ended
    }

    /// Returns the counts, without the times of requests where the caller's clock says nothing about them.
    #[pyo3(signature = (has_clock = true))]
    fn statistics(&self, has_clock: bool) -> BatcherStatistics {
        let mut counts = self.state.lock().all.statistics();
        if !has_clock {
            (counts.queue, counts.total) = Default::default();
        }
        BatcherStatistics(counts)
    }
}

impl Requests {
    /// The class that a thread is to launch next, and when: of those due by now, the most urgent.
    fn soonest(&self, state: &State, now: Duration) -> Option<(Duration, usize)> {
        let due = |of: &usize| Some((state.all.due_to_threads(*of, self.grace)?.max(now), *of));
        let found = self.by_urgency.iter().filter_map(due);
        found.min_by_key(|(due, _)| *due)
    }

    /// Wakes the launching thread if a batch is due before it would wake by itself.
    fn look(&self, state: &mut MutexGuard<'_, State>) {
        if let Some((due, _)) = self.soonest(state, Duration::ZERO)
            && due < state.wakes
        {
            state.wakes = Duration::ZERO;
            self.sooner.notify_all();
        }
    }
}

/// Durations, by batch size.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct Times(Histogram);

/// `None` if the deadline is too far away for the clock to represent.
fn deadline(now: Duration, left_s: Option<f64>) -> Option<Duration> {
    now.checked_add(Duration::try_from_secs_f64(left_s?.max(0.0)).ok()?)
}

fn seconds(seconds: f64) -> Duration {
    // If the clock went back, the negative time counts as zero.
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Defines a getter for each counter.
macro_rules! counted {
    ($($count:ident)+; $($times:ident)+) => {
        #[pymethods]
        impl BatcherStatistics {
            $(#[getter]
            fn $count(&self) -> u64 {
                self.0.$count
            })+

            $(#[getter]
            fn $times(&self) -> Times {
                Times(self.0.$times.clone())
            })+
        }
    };
}

counted! {
    answered refused_full refused_late expired cancelled failed dropped waiting in_flight padding_rows;
    queue upload compute download total
}

#[pymethods]
impl BatcherStatistics {
    #[getter]
    fn batches(&self) -> BTreeMap<usize, u64> {
        self.0.batches.clone()
    }

    #[getter]
    fn mean_batch(&self) -> f64 {
        self.0.mean_batch()
    }

    #[pyo3(signature = (model="model"))]
    fn prometheus(&self, model: &str) -> String {
        self.0.prometheus(model)
    }

    fn __repr__(&self) -> String {
        let Statistics {
            answered, waiting, ..
        } = self.0;
        format!(
            "<BatcherStatistics: {answered} answered in batches of {:.1}, {waiting} waiting>",
            self.0.mean_batch()
        )
    }
}

#[pymethods]
impl Times {
    #[getter]
    fn count(&self) -> u64 {
        self.0.count()
    }

    #[getter]
    fn sum_s(&self) -> f64 {
        self.0.sum().as_secs_f64()
    }

    #[getter]
    fn longest_s(&self) -> f64 {
        self.0.longest().as_secs_f64()
    }

    fn quantile_s(&self, share: f64) -> PyResult<f64> {
        if (0.0..=1.0).contains(&share) {
            Ok(self.0.quantile(share).as_secs_f64())
        } else {
            Err(PyValueError::new_err(format!(
                "share is {share}; give one from 0 to 1, such as 0.99"
            )))
        }
    }

    fn __repr__(&self) -> String {
        format!(
            "<Times: {} of them, median {:?}, 99 % up to {:?}>",
            self.0.count(),
            self.0.quantile(0.5),
            self.0.quantile(0.99)
        )
    }
}
