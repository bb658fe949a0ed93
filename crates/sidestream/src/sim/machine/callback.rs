//! The thread on which a machine runs functions on the host.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A function on the host.
pub(super) type HostFunc = Box<dyn FnOnce() + Send>;

/// Runs functions one after the other, in the order in which they are handed over. The thread
/// starts with the first one.
#[derive(Default)]
pub(super) struct Callback {
    returned: Arc<Returned>,
    thread: Mutex<Option<Running>>,
}

struct Running {
    functions: Sender<HostFunc>,
    handle: JoinHandle<()>,
    id: ThreadId,
}

/// How many functions have returned.
#[derive(Default)]
struct Returned {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Callback {
    /// Hands a function over. Does not wait for it.
    pub(super) fn run(&self, function: HostFunc) {
        let mut thread = self.thread.lock();
        let running = thread.get_or_insert_with(|| start(Arc::clone(&self.returned)));
        // The thread ends only after its sender is gone.
        let _ = running.functions.send(function);
    }

    /// Waits until so many functions have returned, for so long at most; whether they have.
    pub(super) fn wait(&self, count: u64, at_most: Duration) -> bool {
        let until = Instant::now().checked_add(at_most);
        let mut returned = self.returned.count.lock();
        while *returned < count {
            match until {
                None => self.returned.changed.wait(&mut returned),
                Some(until) => {
                    if self
                        .returned
                        .changed
                        .wait_until(&mut returned, until)
                        .timed_out()
                    {
                        return *returned >= count;
                    }
                }
            }
        }
        true
    }

    /// Whether the caller is one of the functions.
    pub(super) fn is_current(&self) -> bool {
        let thread = self.thread.lock();
        thread
            .as_ref()
            .is_some_and(|t| t.id == thread::current().id())
    }
}

impl Drop for Callback {
    /// What was handed over still runs. From one of the functions itself the thread is left to end
    /// on its own.
    fn drop(&mut self) {
        let Some(running) = self.thread.get_mut().take() else {
            return;
        };
        drop(running.functions);
        if running.id != thread::current().id() {
            // A panic of a function was caught where it ran.
            let _ = running.handle.join();
        }
    }
}

fn start(returned: Arc<Returned>) -> Running {
    let (functions, handed_over) = channel::<HostFunc>();
    let handle = thread::spawn(move || {
        for function in handed_over {
            // It catches its own panics; one that does not may not stop those behind it.
            let _ = catch_unwind(AssertUnwindSafe(function));
            *returned.count.lock() += 1;
            returned.changed.notify_all();
        }
    });
    let id = handle.thread().id();
    Running {
        functions,
        handle,
        id,
    }
}
