//! Functions on the host that streams run.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;

/// A function on the host. It catches its own panics.
pub(super) type HostFunc = Box<dyn FnOnce() + Send>;

/// The functions that have not run yet. The driver never runs those that were enqueued after a failure, and does not
/// report that: so it gets only a ticket with a number, and the function itself stays here.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Functions>);

#[derive(Default)]
struct Functions {
    next: u64,
    by_number: HashMap<u64, HostFunc>,
}

/// The user data that the driver passes to [`run`].
struct Ticket {
    waiting: Arc<Waiting>,
    number: u64,
}

impl Waiting {
    /// Stores a function, and returns the ticket for [`run`].
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

    /// Takes back a function that the driver refused. The caller drops it.
    ///
    /// # Safety
    /// `ticket` comes from [`keep`](Waiting::keep), and the driver did not take it.
    pub(super) unsafe fn take_back(ticket: *mut c_void) -> Option<HostFunc> {
        // SAFETY: the caller promises that it is the box that `keep` made, and that nothing else uses it.
        let ticket = unsafe { Box::from_raw(ticket.cast::<Ticket>()) };
        ticket.take()
    }

    /// Takes out the functions that will not run any more.
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

/// The callback that the driver calls, on its own thread.
///
/// # Safety
/// `ticket` comes from [`Waiting::keep`], and this is its only call: functions are only submitted to streams that are
/// not being captured.
pub(super) unsafe extern "C" fn run(ticket: *mut c_void) {
    // SAFETY: the driver passes back the ticket once.
    let ticket = unsafe { Box::from_raw(ticket.cast::<Ticket>()) };
    if let Some(function) = ticket.take() {
        function();
    }
}
