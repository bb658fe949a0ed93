//! The part of `parking_lot` that the library uses, over Shuttle's locks: whoever takes one may be held up there, by
//! whichever thread Shuttle lets go first.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use shuttle::sync;

/// A lock.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

/// A lock that is held.
pub struct MutexGuard<'a, T: ?Sized> {
    of: &'a Mutex<T>,
    /// Absent while it waits.
    held: Option<sync::MutexGuard<'a, T>>,
}

/// Something to wait for with a lock.
#[derive(Default)]
pub struct Condvar(sync::Condvar);

/// Whether a wait gave up. Here none does: the time has no end.
pub struct WaitTimeoutResult;

const POISONED: &str = "a thread that panics ends its run";
const HELD: &str = "it is held but for the time of a wait";

impl<T> Mutex<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            of: self,
            held: Some(self.0.lock().expect(POISONED)),
        }
    }

    /// The value of a lock that nobody else has.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect(POISONED)
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Does something without the lock.
    pub fn unlocked<R>(guard: &mut Self, act: impl FnOnce() -> R) -> R {
        guard.held = None;
        let result = act();
        guard.held = Some(guard.of.0.lock().expect(POISONED));
        result
    }
}

impl Condvar {
    /// One that nobody waits for.
    pub const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    /// Wakes one that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits without the lock until it is woken.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect(HELD);
        guard.held = Some(self.0.wait(held).expect(POISONED));
    }

    /// Waits until it is woken: no time passes here.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }

    /// No time passes here, either.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }
}

impl WaitTimeoutResult {
    /// It never gave up.
    pub fn timed_out(&self) -> bool {
        false
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect(HELD)
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}
