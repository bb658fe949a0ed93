//! The thread on which a machine runs host functions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A host function.
pub(super) type HostFunc = Box<dyn FnOnce() + Send>;

/// Runs host functions one after the other, in the order in which they are handed over. The thread
/// is started by the first one.
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

/// The number of functions that have returned.
#[derive(Default)]
struct Returned {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Callback {
    /// Hands a function to the thread, without waiting for it.
    pub(super) fn run(&self, function: HostFunc) {
        let mut thread = self.thread.lock();
        let running = thread.get_or_insert_with(|| start(Arc::clone(&self.returned)));
        // The thread ends only after the sender is dropped, so this does not fail.
        let _ = running.functions.send(function);
    }

    /// Waits until `count` functions have returned, for at most this time; returns whether they have.
    pub(super) fn wait(&self, count: u64, at_most: Duration) -> bool {
        let changed = &self.returned.changed;
        let mut returned = self.returned.count.lock();
        let is_short = |returned: &mut u64| *returned < count;
        match Instant::now().checked_add(at_most) {
            None => changed.wait_while(&mut returned, is_short),
            Some(until) => _ = changed.wait_while_until(&mut returned, is_short, until),
        }
        *returned >= count
    }

    /// Whether the caller runs inside one of the functions.
    pub(super) fn is_current(&self) -> bool {
        let thread = self.thread.lock();
        thread
            .as_ref()
            .is_some_and(|t| t.id == thread::current().id())
    }
}

impl Drop for Callback {
    /// Blocks until all functions handed over have run. If dropped inside one of the functions, detaches
    /// the thread instead.
    fn drop(&mut self) {
        let Some(running) = self.thread.get_mut().take() else {
            return;
        };
        drop(running.functions);
        if running.id != thread::current().id() {
            // A panic of a function was already caught on the thread.
            let _ = running.handle.join();
        }
    }
}

fn start(returned: Arc<Returned>) -> Running {
    let (functions, handed_over) = channel::<HostFunc>();
    let handle = thread::spawn(move || {
        for function in handed_over {
            // Functions catch their own panics; should one not, it must not stop the later ones.
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
