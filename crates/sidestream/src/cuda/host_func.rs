//! Functions on the host that streams run.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;

/// A function on the host. It catches its own panics.
pub(super) type HostFunc = Box<dyn FnOnce() + Send>;

/// The functions that have not run yet. The driver never runs those behind a failure and does not
/// say so: what it was given is only a number here, and the function itself stays ours.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Functions>);

#[derive(Default)]
struct Functions {
    next: u64,
    by_number: HashMap<u64, HostFunc>,
}

/// What the driver is given.
struct Ticket {
    waiting: Arc<Waiting>,
    number: u64,
}

impl Waiting {
    /// Keeps a function, and gives what [`run`] is to be called with.
    pub(super) fn keep(self: &Arc<Self>, function: HostFunc) -> *mut c_void {
        let mut functions = self.0.lock();
        let number = functions.next;
        functions.next += 1;
        functions.by_number.insert(number, function);
        let ticket = Ticket {
            waiting: Arc::clone(self),
            number,
        };
        Box::into_raw(Box::new(ticket)).cast()
    }

    /// Takes back a function that the driver refused. It is for the caller to drop.
    ///
    /// # Safety
    /// `ticket` comes from [`keep`](Waiting::keep), and the driver did not take it.
    pub(super) unsafe fn take_back(ticket: *mut c_void) -> Option<HostFunc> {
        // SAFETY: the caller says that it is the box that `keep` made, and nobody else's.
        let ticket = unsafe { Box::from_raw(ticket.cast::<Ticket>()) };
        ticket.take()
    }

    /// Takes out what will not run any more.
    pub(super) fn clear(&self) -> Vec<HostFunc> {
        let functions = std::mem::take(&mut self.0.lock().by_number);
        functions.into_values().collect()
    }
}

impl Ticket {
    fn take(&self) -> Option<HostFunc> {
        self.waiting.0.lock().by_number.remove(&self.number)
    }
}

/// What the driver calls, on a thread of its own.
///
/// # Safety
/// `ticket` comes from [`Waiting::keep`], and this is its only call: only streams that are not
/// being captured are given functions.
pub(super) unsafe extern "C" fn run(ticket: *mut c_void) {
    // SAFETY: the driver gives back what it was given, once.
    let ticket = unsafe { Box::from_raw(ticket.cast::<Ticket>()) };
    if let Some(function) = ticket.take() {
        function();
    }
}
