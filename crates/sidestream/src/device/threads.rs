//! What each host thread knows of each runtime.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use super::Runtime;
use crate::op::{DeviceId, ThreadId};
use crate::order::live::ThreadClock;

/// A host thread, as one runtime sees it.
pub(crate) struct Thread {
    pub id: ThreadId,
    /// Its current device, where blocking calls run.
    pub current: DeviceId,
    pub clock: ThreadClock,
}

thread_local! {
    static KNOWN: RefCell<Known> = const { RefCell::new(Known(Vec::new())) };
}

/// This thread, in every runtime that it called. A thread calls one or two in its life.
struct Known(Vec<Entry>);

struct Entry {
    /// Where the runtime lies: it cannot move or be replaced while `runtime` is there.
    at: *const Runtime,
    runtime: Weak<Runtime>,
    thread: Option<Thread>,
}

/// Does something as the calling thread.
#[inline]
pub(crate) fn as_thread<R>(runtime: &Arc<Runtime>, act: impl FnOnce(&mut Thread) -> R) -> R {
    let mut act = Some(act);
    let at = Arc::as_ptr(runtime);
    let done = KNOWN.try_with(|known| {
        // Borrowed only if a destructor of the calling code runs inside `act`: then it acts as
        // another thread, which knows less and is therefore as safe.
        let mut known = known.try_borrow_mut().ok()?;
        let index = match known.0.iter().position(|entry| entry.at == at) {
            Some(index) => index,
            None => known.add(runtime),
        };
        let thread = known.0[index].thread.as_mut()?;
        act.take().map(|act| act(thread))
    });
    match (done.ok().flatten(), act) {
        (Some(done), _) => done,
        // The thread is ending, and its table with it.
        (None, Some(act)) => {
            let mut thread = runtime.new_thread();
            let done = act(&mut thread);
            runtime.end_thread(thread);
            done
        }
        (None, None) => unreachable!("what acts gives a result"),
    }
}

impl Known {
    #[cold]
    fn add(&mut self, runtime: &Arc<Runtime>) -> usize {
        self.0.retain(|entry| entry.runtime.strong_count() > 0);
        self.0.push(Entry {
            at: Arc::as_ptr(runtime),
            runtime: Arc::downgrade(runtime),
            thread: Some(runtime.new_thread()),
        });
        self.0.len() - 1
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        for entry in self.0.drain(..) {
            if let (Some(runtime), Some(thread)) = (entry.runtime.upgrade(), entry.thread) {
                runtime.end_thread(thread);
            }
        }
    }
}
