//! Values that the device, or a function on the host, may still be using.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::event::Event;
use crate::tracker::{Mark, Runtime, as_host_func, drop_elsewhere, wake_when_over};

/// A value that is given back when the work that uses it is complete.
///
/// [`Pending::synchronize`] waits for the value; `.await` waits without blocking a thread. Dropping a `Pending` is
/// sound and does not wait: the memory goes to the allocator with its pending use, and a value that a function on the
/// host owns is dropped on a separate thread after the function has run. Forgetting a `Pending` leaks the value and
/// has no other effect.
#[must_use = "it gives the value back; drop it only if the value is not needed"]
pub struct Pending<T> {
    event: Event,
    held: Option<Held<T>>,
}

/// Where the value is while the work is pending.
pub(crate) enum Held<T> {
    /// In the `Pending`; only the device uses the value.
    Here(T),
    /// Shared with a function on the host, which uses the value.
    Lent(Arc<Mutex<Lent<T>>>),
}

/// A value shared with the function on the host that works on it. The back end holds only a handle: wherever it drops
/// the handle, no destructor of the program runs under the back end's locks.
pub(crate) struct Lent<T> {
    state: Loan<T>,
    /// Whether the `Pending` still exists, and so has to get the value back.
    is_wanted: bool,
}

enum Loan<T> {
    /// The function has not run.
    Ready(T, Box<dyn FnOnce(&mut T) + Send>),
    Running,
    /// The function has run; the message is that of its panic, if it panicked.
    Back(T, Option<String>),
    Taken,
}

/// A call that was refused, with the value that it was given.
///
/// The value is missing if the device was lost, since the device may still use it. It is also missing if the call
/// failed after the device had accepted it ([`Error::Submitted`]), for instance if a device opened in synchronous mode
/// could not wait for it: the memory is reused once that work is complete.
pub struct Refused<T> {
    /// The reason.
    pub error: Error,
    /// The value, which is not in use.
    pub value: Option<T>,
}

impl<T> Pending<T> {
    pub(crate) fn new(runtime: Arc<Runtime>, mark: Mark, held: Held<T>) -> Pending<T> {
        Pending {
            event: Event { runtime, mark },
            held: Some(held),
        }
    }

    /// Returns the event after which the value is available.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Returns whether the value is available.
    ///
    /// # Ordering
    /// Does not block the host.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        self.event.query()
    }

    /// Waits for the value and returns it.
    ///
    /// # Ordering
    /// Blocks the host until the work that uses the value is complete.
    ///
    /// # Errors
    /// The error of work that failed on the device; the value is then lost as well. [`Error::Panicked`] if the value
    /// belonged to a function on the host that panicked.
    #[track_caller]
    pub fn synchronize(mut self) -> Result<T> {
        let at = Location::caller();
        let waited = self.event.runtime.synchronize(&self.event.mark, at);
        if let Err(error) = waited {
            self.quarantine();
            return Err(error);
        }
        self.take()
    }

    /// Like [`Pending::synchronize`], but waits no longer than `at_most`. Returns `None` if that time passes first;
    /// the value stays here.
    ///
    /// # Errors
    /// As for [`Pending::synchronize`]; [`Error::Invalid`] if the value was already taken.
    #[track_caller]
    pub fn synchronize_for(&mut self, at_most: Duration) -> Result<Option<T>> {
        if self.event.synchronize_for(at_most)? {
            self.take().map(Some)
        } else {
            Ok(None)
        }
    }

    /// Takes the value, after the event is known to be complete.
    fn take(&mut self) -> Result<T> {
        let held = self.held.take().ok_or_else(|| Error::Invalid {
            call: "synchronize",
            why: "the value was already taken".into(),
        })?;
        let lent = match held {
            Held::Here(value) => return Ok(value),
            Held::Lent(lent) => std::mem::replace(&mut lent.lock().state, Loan::Taken),
        };
        match lent {
            Loan::Back(value, None) => Ok(value),
            Loan::Back(_, Some(message)) => Err(Error::Panicked { message }),
            Loan::Ready(..) | Loan::Running | Loan::Taken => Err(Error::Invalid {
                call: "host_func",
                why: "the back end reported that the function has run, but it has not".into(),
            }),
        }
    }

    /// Leaks the value if the device is lost, because the device may still use it.
    fn quarantine(&mut self) {
        if self.event.runtime.is_lost() {
            std::mem::forget(self.held.take());
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.quarantine();
        if let Some(held) = self.held.take() {
            held.leave();
        }
    }
}

impl<T> Held<T> {
    /// Gives up the value: no caller waits for it.
    pub(crate) fn leave(self) {
        if let Held::Lent(lent) = self {
            // If the function has run, the value is dropped here, otherwise by the thread that runs or drops the
            // function.
            let mut lent = lent.lock();
            lent.is_wanted = false;
            let left = match lent.state {
                Loan::Back(..) => std::mem::replace(&mut lent.state, Loan::Taken),
                _ => Loan::Taken,
            };
            drop(lent);
            drop(left);
        }
    }
}

impl<T: Send + 'static> Held<T> {
    /// Lends a value to a function that will run on the host. Returns the handle to the value, and the closure to
    /// run, which stores the value back and never panics.
    pub(crate) fn lend(
        value: T,
        act: impl FnOnce(&mut T) + Send + 'static,
    ) -> (Held<T>, Box<dyn FnOnce() + Send>) {
        let lent = Arc::new(Mutex::new(Lent {
            state: Loan::Ready(value, Box::new(act)),
            is_wanted: true,
        }));
        let job = Job(Arc::clone(&lent));
        (Held::Lent(lent), Box::new(move || job.run()))
    }
}

/// The back end's handle of a function on the host.
struct Job<T: Send + 'static>(Arc<Mutex<Lent<T>>>);

impl<T: Send + 'static> Job<T> {
    fn run(self) {
        let loan = std::mem::replace(&mut self.0.lock().state, Loan::Running);
        let Loan::Ready(mut value, act) = loan else {
            return;
        };
        let act = std::panic::AssertUnwindSafe(|| act(&mut value));
        let ran = as_host_func(|| std::panic::catch_unwind(act));
        let message = ran.err().map(message_of);
        let mut lent = self.0.lock();
        if lent.is_wanted {
            lent.state = Loan::Back(value, message);
        } else {
            drop(lent);
            drop_elsewhere(Box::new(value));
        }
    }
}

impl<T: Send + 'static> Drop for Job<T> {
    /// The function may never run, because the call is refused or the device is lost. The back end drops the job
    /// while it holds locks, so a value that no caller wants is dropped on another thread.
    fn drop(&mut self) {
        let mut lent = self.0.lock();
        if !lent.is_wanted {
            let left = std::mem::replace(&mut lent.state, Loan::Taken);
            drop(lent);
            if let Loan::Ready(value, act) = left {
                drop_elsewhere(Box::new((value, act)));
            }
        }
    }
}

fn message_of(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    drop_elsewhere(panic);
    text.unwrap_or_else(|| "the panic value is not a string".to_owned())
}

impl<T: Unpin> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        match this.query() {
            Ok(true) => Poll::Ready(this.take()),
            Ok(false) => {
                let Event { mark, runtime } = &this.event;
                wake_when_over(runtime, mark, context.waker());
                Poll::Pending
            }
            Err(error) => {
                this.quarantine();
                Poll::Ready(Err(error))
            }
        }
    }
}

impl<T> Refused<T> {
    pub(crate) fn new(error: Error, value: T) -> Refused<T> {
        let is_lost = matches!(error, Error::DeviceLost(_));
        let value = if is_lost {
            std::mem::forget(value);
            None
        } else {
            Some(value)
        };
        Refused { error, value }
    }
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Error {
        refused.error
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for Refused<T> {}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({:?})", self.event)
    }
}
