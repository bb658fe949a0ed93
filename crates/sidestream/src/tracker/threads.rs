//! Per-thread state of each runtime.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

use super::runtime::{Runtime, Thread};

thread_local! {
    static KNOWN: Known = const { Known {
        last: Cell::new(std::ptr::null()),
        thread: Cell::new(None),
        entries: RefCell::new(Vec::new()),
    } };
}

/// The calling thread's records in every runtime that it has called. A thread calls one or two runtimes in its life,
/// and mostly the same one repeatedly: the last one is checked first.
struct Known {
    /// The runtime that was called last; it has an entry in the list.
    last: Cell<*const Runtime>,
    /// The thread's record in that runtime, unless a call is using it.
    thread: Cell<Option<Box<Thread>>>,
    entries: RefCell<Vec<Entry>>,
}

struct Entry {
    /// Address of the runtime, which cannot be moved or replaced while `runtime` exists.
    at: *const Runtime,
    /// The system's id of the thread.
    system: std::thread::ThreadId,
    runtime: Weak<Runtime>,
    /// `None` during a call, and for the runtime that was called last.
    thread: Option<Box<Thread>>,
}

/// The calling thread, during a call.
pub(crate) struct Caller<'r> {
    runtime: &'r Runtime,
    is_known: bool,
    thread: Option<Box<Thread>>,
}

impl<'r> Caller<'r> {
    // Inlined, because it is part of every call: otherwise it and the drop would cost some twenty more instructions.
    #[inline(always)]
    pub(super) fn of(runtime: &'r Arc<Runtime>) -> Caller<'r> {
        let thread = KNOWN.try_with(|known| known.take(runtime)).ok().flatten();
        if thread.is_some() {
            Caller {
                runtime,
                is_known: true,
                thread,
            }
        } else {
            Caller::other(runtime)
        }
    }

    /// Returns a temporary record: the thread is ending and its table is gone, or a destructor of the calling code runs
    /// inside a call. The record is that of another thread, which is safe, because it is ordered after less.
    #[cold]
    fn other(runtime: &'r Runtime) -> Caller<'r> {
        Caller {
            runtime,
            is_known: false,
            thread: Some(Box::new(runtime.new_thread())),
        }
    }

    #[inline]
    pub(super) fn thread(&mut self) -> &mut Thread {
        match &mut self.thread {
            Some(thread) => thread,
            None => unreachable!("the record is present until the caller is dropped"),
        }
    }
}

/// Ends a call that panics, or that does not [leave](Caller::leave).
impl Drop for Caller<'_> {
    #[inline]
    fn drop(&mut self) {
        self.back();
    }
}

impl Caller<'_> {
    /// Ends the call. Leaving this to the drop would cost some thirty more instructions.
    #[inline(always)]
    pub(super) fn leave(mut self) {
        self.back();
        // The record was taken out, so there is nothing to drop.
        std::mem::forget(self);
    }

    #[inline(always)]
    fn back(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if self.is_known {
            _ = KNOWN.try_with(|known| known.give(self.runtime, thread))
        } else {
            self.end(*thread)
        }
    }

    #[cold]
    fn end(&self, thread: Thread) {
        self.runtime.end_thread(thread);
    }
}

/// Runs an action with the calling thread's record.
#[inline]
pub(crate) fn as_thread<R>(runtime: &Arc<Runtime>, act: impl FnOnce(&mut Thread) -> R) -> R {
    let mut caller = Caller::of(runtime);
    let done = act(caller.thread());
    caller.leave();
    done
}

impl Known {
    #[inline(always)]
    fn take(&self, runtime: &Arc<Runtime>) -> Option<Box<Thread>> {
        if self.last.get() == Arc::as_ptr(runtime) {
            self.thread.take()
        } else {
            self.turn_to(runtime)
        }
    }

    #[inline(always)]
    fn give(&self, runtime: &Runtime, thread: Box<Thread>) {
        if std::ptr::eq(self.last.get(), runtime) {
            self.thread.set(Some(thread))
        } else {
            self.give_back(runtime, thread)
        }
    }

    /// Switches to another runtime than that of the last call.
    #[cold]
    fn turn_to(&self, runtime: &Arc<Runtime>) -> Option<Box<Thread>> {
        let mut entries = self.entries.try_borrow_mut().ok()?;
        let last = self.last.replace(Arc::as_ptr(runtime));
        if let Some(thread) = self.thread.take() {
            let known = entries.iter_mut().find(|entry| entry.at == last);
            if let Some(known) = known {
                known.thread = Some(thread);
            }
        }
        let known = entries.iter_mut().find(|entry| entry.at == self.last.get());
        if let Some(known) = known {
            return known.thread.take();
        }
        entries.retain(|entry| entry.runtime.strong_count() > 0);
        entries.push(Entry {
            at: Arc::as_ptr(runtime),
            system: std::thread::current().id(),
            runtime: Arc::downgrade(runtime),
            thread: None,
        });
        Some(Box::new(runtime.new_thread()))
    }

    /// Gives a record back if a destructor of the calling code has called another runtime meanwhile.
    #[cold]
    fn give_back(&self, runtime: &Runtime, thread: Box<Thread>) {
        let Ok(mut entries) = self.entries.try_borrow_mut() else {
            return;
        };
        let known = entries
            .iter_mut()
            .find(|entry| std::ptr::eq(entry.at, runtime));
        if let Some(known) = known {
            known.thread = Some(thread);
        }
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        for mut entry in self.entries.take() {
            if entry.at == self.last.get() {
                entry.thread = self.thread.take();
            }
            let Some(runtime) = entry.runtime.upgrade() else {
                continue;
            };
            for device in &runtime.devices {
                device.explicit.end_thread(entry.system);
            }
            if let Some(thread) = entry.thread {
                runtime.end_thread(*thread);
            }
        }
    }
}
