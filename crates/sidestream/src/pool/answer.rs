//! The answer to a request: a cell that is filled once.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Error;
use super::slot::Results;
use crate::buffer::Pod;

/// What a request will be answered with.
///
/// It is a future; [`Answer::wait`] is the same for a thread. Dropping it, or [`Answer::cancel`], takes the request back unless its batch
/// has been given to the device already.
pub struct Answer<O: Pod> {
    cell: Arc<Cell<O>>,
}

/// The values of one row of a batch's results. They stay as they are as long as this is held, and with it the batch's memory.
pub struct Row<O: Pod> {
    batch: Arc<Results<O>>,
    at: Range<usize>,
}

pub(super) struct Cell<O: Pod> {
    state: Mutex<State<O>>,
    changed: Condvar,
}

enum State<O: Pod> {
    Queued(Option<Waker>),
    /// Its batch is with the device: too late to take it back.
    Launched(Option<Waker>),
    Answered(Result<Row<O>, Error>),
    Fetched,
}

impl<O: Pod> Answer<O> {
    pub(super) fn new() -> (Answer<O>, Arc<Cell<O>>) {
        let cell = Arc::new(Cell {
            state: Mutex::new(State::Queued(None)),
            changed: Condvar::new(),
        });
        let other = Arc::clone(&cell);
        (Answer { cell }, other)
    }

    /// Waits for the answer.
    ///
    /// # Ordering
    /// Holds up the host until the request's batch is over on the device, or the request was ended otherwise.
    ///
    /// # Errors
    /// How the request ended, if not by an answer.
    pub fn wait(self) -> Result<Row<O>, Error> {
        let mut state = self.cell.state.lock();
        loop {
            if let Some(answer) = state.fetch() {
                return answer;
            }
            self.cell.changed.wait(&mut state);
        }
    }

    /// The same, for at most so long; then the request goes on, and its answer is still to come.
    ///
    /// # Errors
    /// The outer one is this, so that it can be waited for again.
    pub fn wait_for(self, at_most: Duration) -> Result<Result<Row<O>, Error>, Answer<O>> {
        let until = Instant::now() + at_most;
        let mut state = self.cell.state.lock();
        loop {
            if let Some(answer) = state.fetch() {
                return Ok(answer);
            }
            if self.cell.changed.wait_until(&mut state, until).timed_out() {
                let answer = state.fetch();
                drop(state);
                return answer.ok_or(self);
            }
        }
    }

    /// Whether it can be had without waiting.
    pub fn is_ready(&self) -> bool {
        matches!(*self.cell.state.lock(), State::Answered(_))
    }

    /// Takes the request back. True if it will not be computed; then the answer is [`Error::Cancelled`]. False if its batch is with the device or
    /// over.
    pub fn cancel(&self) -> bool {
        self.cell.end(Err(Error::Cancelled), true)
    }
}

impl<O: Pod> State<O> {
    fn fetch(&mut self) -> Option<Result<Row<O>, Error>> {
        match std::mem::replace(self, State::Fetched) {
            State::Answered(answer) => Some(answer),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl<O: Pod> Cell<O> {
    /// Says that its batch goes to the device now; false if it was taken back.
    pub fn launch(&self) -> bool {
        let mut state = self.state.lock();
        match &mut *state {
            State::Queued(waker) => {
                *state = State::Launched(waker.take());
                true
            }
            State::Launched(_) => true,
            State::Answered(_) | State::Fetched => false,
        }
    }

    /// Ends it, unless it has ended.
    pub fn answer(&self, answer: Result<Row<O>, Error>) -> bool {
        self.end(answer, false)
    }

    fn end(&self, answer: Result<Row<O>, Error>, only_queued: bool) -> bool {
        let mut state = self.state.lock();
        let waker = match &mut *state {
            State::Queued(waker) => waker.take(),
            State::Launched(waker) if !only_queued => waker.take(),
            State::Launched(_) | State::Answered(_) | State::Fetched => return false,
        };
        *state = State::Answered(answer);
        drop(state);
        self.changed.notify_all();
        if let Some(waker) = waker {
            // The waker is the caller's code: its panic harms no other request.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                std::mem::forget(panic);
            }
        }
        true
    }
}

impl<O: Pod> Future for Answer<O> {
    type Output = Result<Row<O>, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.cell.state.lock();
        match &mut *state {
            State::Queued(waker) | State::Launched(waker) => {
                // Of two tasks that have asked the last one is woken.
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            State::Answered(_) | State::Fetched => {
                let answer = state.fetch();
                Poll::Ready(answer.unwrap_or(Err(Error::Fetched)))
            }
        }
    }
}

impl<O: Pod> Drop for Answer<O> {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl<O: Pod> Row<O> {
    pub(super) fn new(batch: Arc<Results<O>>, at: Range<usize>) -> Row<O> {
        Row { batch, at }
    }
}

impl<O: Pod> Deref for Row<O> {
    type Target = [O];

    fn deref(&self) -> &[O] {
        &self.batch[self.at.clone()]
    }
}

impl<O: Pod + fmt::Debug> fmt::Debug for Row<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<O: Pod> fmt::Debug for Answer<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("is_ready", &self.is_ready())
            .finish()
    }
}
