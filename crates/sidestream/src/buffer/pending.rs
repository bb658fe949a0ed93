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

/// A value that comes back when the work that uses it is over.
///
/// [`Pending::synchronize`] waits for it; `.await` waits without holding up a thread. Dropping it is
/// sound and does not wait: the memory goes to the allocator with its pending use, and what a function
/// on the host owns is dropped on a separate thread when the function has run. Forgetting it leaks the
/// value and nothing else.
#[must_use = "the value comes back from here; drop it only if it is not needed"]
pub struct Pending<T> {
    event: Event,
    held: Option<Held<T>>,
}

/// Where the value is.
pub(crate) enum Held<T> {
    /// Here. Only the device uses it.
    Here(T),
    /// With a function on the host.
    Lent(Arc<Mutex<Lent<T>>>),
}

/// A value that a function on the host works on, shared with that function. What the back end holds
/// is a handle: wherever it drops that, no destructor of the user's runs under its locks.
pub(crate) struct Lent<T> {
    state: Loan<T>,
    /// Whether somebody waits for it.
    is_wanted: bool,
}

enum Loan<T> {
    /// The function has not run.
    Ready(T, Box<dyn FnOnce(&mut T) + Send>),
    Running,
    /// It ran, and panicked if there is a message.
    Back(T, Option<String>),
    Taken,
}

/// A call that was refused, with the value that it would have taken.
///
/// The value is missing if the device was lost, since nobody can tell whether the device still uses it. It is also
/// missing if the call failed after the device had taken it ([`Error::Submitted`]), for instance if a device that was
/// opened synchronous could not wait for it: the memory goes to the next owner when that work is over.
pub struct Refused<T> {
    /// Why.
    pub error: Error,
    /// The value, idle again.
    pub value: Option<T>,
}

impl<T> Pending<T> {
    pub(crate) fn new(runtime: Arc<Runtime>, mark: Mark, held: Held<T>) -> Pending<T> {
        Pending {
            event: Event { runtime, mark },
            held: Some(held),
        }
    }

    /// When the value comes back, as an event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Whether it is there.
    ///
    /// # Ordering
    /// Does not hold up the host.
    ///
    /// # Errors
    /// What failed on the device.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        self.event.query()
    }

    /// Waits for it.
    ///
    /// # Ordering
    /// Holds up the host until the work that uses it is over.
    ///
    /// # Errors
    /// What failed on the device; the value is then lost with it. [`Error::Panicked`] if it belonged
    /// to a function on the host that panicked.
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

    /// The same for no longer than this. `None` if the time has passed first; the value stays here.
    ///
    /// # Errors
    /// As [`Pending::synchronize`]; and [`Error::Invalid`] if it was taken before.
    #[track_caller]
    pub fn synchronize_for(&mut self, at_most: Duration) -> Result<Option<T>> {
        match self.event.synchronize_for(at_most)? {
            true => self.take().map(Some),
            false => Ok(None),
        }
    }

    /// The value, once the event is known to be over.
    fn take(&mut self) -> Result<T> {
        let held = self.held.take().ok_or_else(|| Error::Invalid {
            call: "synchronize",
            why: "the value was taken before".into(),
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
                why: "the back end said that the function has run, and it has not".into(),
            }),
        }
    }

    /// Nobody can tell whether the device still uses it: it is never used again.
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
    /// Nobody waits for it.
    pub(crate) fn leave(self) {
        if let Held::Lent(lent) = self {
            // If the function has run the value is dropped here, else by whoever brings it back.
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
    /// Lends a value to a function that will run on the host: where the value is from now on, and
    /// what to run. That leaves the value behind and no panic.
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

/// What the back end holds of a function on the host.
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
    /// The function may never run, because the call is refused or the device is lost. The back end
    /// drops it at a moment when locks are held: if nobody waits, what it owns goes elsewhere.
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
    text.unwrap_or_else(|| "a value that is no text".to_owned())
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
        let value = match is_lost {
            true => {
                std::mem::forget(value);
                None
            }
            false => Some(value),
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
