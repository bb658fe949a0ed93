//! The source of items: user code that fills pinned memory, on separate threads or on the consumer's.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Condvar, Mutex};

use super::failed::{BoxError, Cause, Failed, guarded};

/// Fills the pinned memory of an item, and returns its number of rows; `None` after the last item.
pub(super) type Fill<H> = Box<dyn FnMut(u64, &mut H) -> Result<Option<usize>, BoxError> + Send>;

/// The source of a running pipeline.
pub(super) struct Source<H> {
    /// The function that fills items on the consumer's thread; `None` if other threads fill them.
    here: Option<Fill<H>>,
    /// Memory to fill on the consumer's thread.
    empty: VecDeque<H>,
    /// The number of the next item.
    next: u64,
    shared: Arc<Shared<H>>,
}

/// The answer of the source for the next item.
pub(super) enum Next<H> {
    Filled(Filled<H>),
    /// There are no more items.
    End,
    /// The next item is not filled yet.
    NotYet,
}

/// A filled item that was not submitted yet.
pub(super) struct Filled<H> {
    pub index: u64,
    pub rows: usize,
    pub host: H,
}

/// The state that the consumer shares with the filling threads.
struct Shared<H> {
    state: Mutex<State<H>>,
    /// Signalled when there is memory to fill, or nothing more to do.
    to_fill: Condvar,
    /// Signalled when an item was filled, or the source has ended.
    filled: Condvar,
}

struct State<H> {
    empty: VecDeque<H>,
    /// The number of the next item that a thread begins.
    next: u64,
    filled: BTreeMap<u64, Result<Filled<H>, Failed>>,
    /// The number of items, once the end is known.
    end: Option<u64>,
    is_closed: bool,
    waker: Option<Waker>,
}

/// A handle that ends a pipeline from another place: no further item is started; the items already started are delivered.
#[derive(Clone)]
pub struct Cancel {
    close: Arc<dyn Fn() + Send + Sync>,
}

impl Cancel {
    /// Ends the source: no further item is started, and a thread or task that waits for the source is woken.
    pub fn cancel(&self) {
        (self.close)();
    }
}

impl<H: Send + 'static> Source<H> {
    /// Returns a source that fills on the consumer's thread, or one for which other threads fill.
    fn new(here: Option<Fill<H>>) -> Source<H> {
        let state = State {
            empty: VecDeque::new(),
            next: 0,
            filled: BTreeMap::new(),
            end: None,
            is_closed: false,
            waker: None,
        };
        Source {
            here,
            empty: VecDeque::new(),
            next: 0,
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                to_fill: Condvar::new(),
                filled: Condvar::new(),
            }),
        }
    }

    /// Returns a source that fills on the consumer's thread.
    pub(super) fn here(fill: Fill<H>) -> Source<H> {
        Source::new(Some(fill))
    }

    /// Returns a source that fills on separate threads, one for each function.
    ///
    /// # Errors
    /// If the system cannot start another thread.
    pub(super) fn on_threads(fills: Vec<Fill<H>>) -> Result<Source<H>, Failed> {
        let source = Source::new(None);
        for fill in fills {
            let shared = Arc::clone(&source.shared);
            let thread = std::thread::Builder::new().name("sidestream-fill".into());
            let spawned = thread.spawn(move || fill_all(&shared, fill));
            spawned.map_err(|error| Failed::new("source", 0, Cause::User(Box::new(error))))?;
        }
        Ok(source)
    }

    pub(super) fn cancel(&self) -> Cancel {
        let shared = Arc::clone(&self.shared);
        Cancel {
            close: Arc::new(move || shared.close()),
        }
    }

    /// Returns memory to the source, to be filled again.
    pub(super) fn give(&mut self, host: H) {
        match self.here {
            Some(_) => self.empty.push_back(host),
            None => {
                self.shared.state.lock().empty.push_back(host);
                self.shared.to_fill.notify_one();
            }
        }
    }

    /// Returns the next item. If `may_wait` is set, blocks until the item is filled; otherwise the task, if one is
    /// given, is woken when it is filled.
    pub(super) fn next(
        &mut self,
        may_wait: bool,
        waker: Option<&Waker>,
    ) -> Result<Next<H>, Failed> {
        let next = match &mut self.here {
            Some(fill) if !self.shared.state.lock().is_closed => {
                let Some(host) = self.empty.pop_front() else {
                    return Ok(Next::NotYet);
                };
                fill_one(fill, self.next, host)?.map_or(Next::End, Next::Filled)
            }
            Some(_) => Next::End,
            None => self.shared.next(self.next, may_wait, waker)?,
        };
        if let Next::Filled(_) = next {
            self.next += 1;
        }
        Ok(next)
    }
}

impl<H> Drop for Source<H> {
    /// Does not wait for the filling threads, since a source may block forever. Each ends when its function returns.
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.to_fill.notify_all();
    }
}

impl<H> Shared<H> {
    fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let waker = state.waker.take();
        drop(state);
        self.to_fill.notify_all();
        self.filled.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn next(&self, index: u64, may_wait: bool, waker: Option<&Waker>) -> Result<Next<H>, Failed> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return Ok(Next::End);
            }
            match state.filled.remove(&index) {
                Some(filled) => return filled.map(Next::Filled),
                None if state.end.is_some_and(|end| index >= end) => return Ok(Next::End),
                None if may_wait => self.filled.wait(&mut state),
                None => {
                    state.waker = waker.cloned();
                    return Ok(Next::NotYet);
                }
            }
        }
    }

    /// Returns the next item to fill, with its memory; `None` when there is nothing more to do.
    fn begin(&self) -> Option<(u64, H)> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed || state.end.is_some() {
                return None;
            }
            if let Some(host) = state.empty.pop_front() {
                let index = state.next;
                state.next += 1;
                return Some((index, host));
            }
            self.to_fill.wait(&mut state);
        }
    }

    fn end(&self, index: u64, filled: Option<Result<Filled<H>, Failed>>) {
        let mut state = self.state.lock();
        let is_last = !matches!(filled, Some(Ok(_)));
        if let Some(filled) = filled {
            state.filled.insert(index, filled);
        }
        if is_last {
            // If several threads find the end, the smallest number counts.
            let end = state.end.map_or(index, |end| end.min(index));
            state.end = Some(end);
            self.to_fill.notify_all();
        }
        let waker = state.waker.take();
        drop(state);
        self.filled.notify_all();
        if let Some(waker) = waker {
            // A panic in the waker is the program's and was reported by its hook; this thread has more items to fill.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// Runs a filling thread.
fn fill_all<H>(shared: &Shared<H>, mut fill: Fill<H>) {
    while let Some((index, host)) = shared.begin() {
        shared.end(index, fill_one(&mut fill, index, host).transpose());
    }
}

fn fill_one<H>(fill: &mut Fill<H>, index: u64, mut host: H) -> Result<Option<Filled<H>>, Failed> {
    let rows = guarded("source", index, || fill(index, &mut host))?;
    Ok(rows.map(|rows| Filled { index, rows, host }))
}
