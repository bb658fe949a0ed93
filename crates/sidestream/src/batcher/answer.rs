//! The answer to a request: a cell that is filled exactly once.

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

/// The pending answer to a request.
///
/// An answer is a future; a thread may block on it with [`Answer::wait`] instead. Dropping the answer, or
/// [`Answer::cancel`], cancels the request unless its batch was already submitted to the device.
pub struct Answer<O: Pod> {
    cell: Arc<Cell<O>>,
    recall: Arc<Recall<O>>,
    /// The class of the request.
    of: usize,
}

/// A function that cancels a waiting request of a class, and returns whether it did.
pub(super) type Recall<O> = dyn Fn(usize, &Arc<Cell<O>>) -> bool + Send + Sync;

/// The values of one row of a batch's results. The values stay valid and unchanged while this row exists, because it
/// keeps the batch's memory.
pub struct Row<O: Pod> {
    batch: Arc<Results<O>>,
    at: Range<usize>,
}

pub(super) struct Cell<O: Pod> {
    state: Mutex<State<O>>,
    changed: Condvar,
}

enum State<O: Pod> {
    Waiting(Option<Waker>),
    Answered(Result<Row<O>, Error>),
    Fetched,
}

impl<O: Pod> Answer<O> {
    pub(super) fn new(cell: Arc<Cell<O>>, recall: Arc<Recall<O>>, of: usize) -> Answer<O> {
        Answer { cell, recall, of }
    }

    /// Blocks until the request is answered.
    ///
    /// # Ordering
    /// Blocks the host until the request's batch is complete on the device, or the request has ended otherwise.
    ///
    /// # Errors
    /// The reason why the request ended without an answer.
    pub fn wait(self) -> Result<Row<O>, Error> {
        let mut state = self.cell.state.lock();
        loop {
            if let Some(answer) = state.fetch() {
                return answer;
            }
            self.cell.changed.wait(&mut state);
        }
    }

    /// Like [`Answer::wait`], but for at most this time; after that the request continues, and this answer is returned.
    ///
    /// # Errors
    /// The outer error is this answer, so that it can be waited for again.
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

    /// Whether the answer is available, so that [`Answer::wait`] would not block.
    pub fn is_ready(&self) -> bool {
        matches!(*self.cell.state.lock(), State::Answered(_))
    }

    /// Cancels the request. Returns true if it will not be computed; then the answer is [`Error::Cancelled`]. Returns false if its
    /// batch is on the device or complete.
    pub fn cancel(&self) -> bool {
        let is_open = matches!(*self.cell.state.lock(), State::Waiting(_));
        is_open && (self.recall)(self.of, &self.cell)
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
    pub(super) fn new() -> Arc<Cell<O>> {
        Arc::new(Cell {
            state: Mutex::new(State::Waiting(None)),
            changed: Condvar::new(),
        })
    }

    /// Sets the answer. Called only by the thread that has taken the request out of the queue.
    pub(super) fn answer(&self, answer: Result<Row<O>, Error>) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Answered(answer));
        self.changed.notify_all();
        if let State::Waiting(Some(waker)) = before {
            // The waker is code of the caller: its panic must not affect other requests.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                std::mem::forget(panic);
            }
        }
    }
}

impl<O: Pod> Future for Answer<O> {
    type Output = Result<Row<O>, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.cell.state.lock();
        match &mut *state {
            State::Waiting(waker) => {
                // If several tasks have polled, only the last one is woken.
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
