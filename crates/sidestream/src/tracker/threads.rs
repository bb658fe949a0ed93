//! What each host thread knows of each runtime.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::runtime::{Runtime, Thread};

thread_local! {
    static KNOWN: RefCell<Known> = const { RefCell::new(Known(Vec::new())) };
}

/// This thread, in every runtime that it called. A thread calls one or two in its life.
struct Known(Vec<Entry>);

struct Entry {
    /// Where the runtime lies: it cannot move or be replaced while `runtime` is there.
    at: *const Runtime,
    /// The thread as the system has it.
    system: std::thread::ThreadId,
    runtime: Weak<Runtime>,
    thread: Rc<Slot>,
}

/// Where a thread is kept while it is in no call.
type Slot = Cell<Option<Box<Thread>>>;

/// The calling thread, in a call.
pub(crate) struct Caller<'r> {
    runtime: &'r Runtime,
    slot: Option<Rc<Slot>>,
    thread: Option<Box<Thread>>,
}

impl<'r> Caller<'r> {
    // Part of every call: as calls of their own this and the drop take some twenty instructions more.
    #[inline(always)]
    pub fn of(runtime: &'r Arc<Runtime>) -> Caller<'r> {
        let slot = KNOWN.try_with(|known| Some(known.try_borrow_mut().ok()?.slot(runtime)));
        let slot = slot.ok().flatten();
        let thread = slot.as_ref().and_then(|slot| slot.take());
        match thread.is_some() {
            true => Caller {
                runtime,
                slot,
                thread,
            },
            false => Caller::other(runtime),
        }
    }

    /// The thread is ending, and its table with it; or a destructor of the calling code runs inside a
    /// call. It acts as another thread, which knows less and is therefore as safe.
    #[cold]
    fn other(runtime: &'r Runtime) -> Caller<'r> {
        Caller {
            runtime,
            slot: None,
            thread: Some(Box::new(runtime.new_thread())),
        }
    }

    #[inline]
    pub fn thread(&mut self) -> &mut Thread {
        match &mut self.thread {
            Some(thread) => thread,
            None => unreachable!("it is there until the caller goes"),
        }
    }
}

impl Drop for Caller<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match &self.slot {
            Some(slot) => slot.set(self.thread.take()),
            None => self.end(),
        }
    }
}

impl Caller<'_> {
    #[cold]
    fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.runtime.end_thread(*thread);
        }
    }
}

/// Does something as the calling thread.
#[inline]
pub(crate) fn as_thread<R>(runtime: &Arc<Runtime>, act: impl FnOnce(&mut Thread) -> R) -> R {
    act(Caller::of(runtime).thread())
}

impl Known {
    #[inline(always)]
    fn slot(&mut self, runtime: &Arc<Runtime>) -> Rc<Slot> {
        let at = Arc::as_ptr(runtime);
        match self.0.iter().find(|entry| entry.at == at) {
            Some(entry) => Rc::clone(&entry.thread),
            None => self.add(runtime),
        }
    }

    #[cold]
    fn add(&mut self, runtime: &Arc<Runtime>) -> Rc<Slot> {
        self.0.retain(|entry| entry.runtime.strong_count() > 0);
        let thread = Rc::new(Cell::new(Some(Box::new(runtime.new_thread()))));
        self.0.push(Entry {
            at: Arc::as_ptr(runtime),
            system: std::thread::current().id(),
            runtime: Arc::downgrade(runtime),
            thread: Rc::clone(&thread),
        });
        thread
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        for entry in self.0.drain(..) {
            let Some(runtime) = entry.runtime.upgrade() else {
                continue;
            };
            for device in &runtime.devices {
                device.explicit.end_thread(entry.system);
            }
            if let Some(thread) = entry.thread.take() {
                runtime.end_thread(*thread);
            }
        }
    }
}
