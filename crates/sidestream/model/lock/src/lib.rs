//! The part of `parking_lot` that the library uses, on top of Shuttle's locks: a thread that takes a lock may block there,
//! and Shuttle chooses which thread runs next.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use shuttle::sync;

/// A mutex.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

/// A locked mutex.
pub struct MutexGuard<'a, T: ?Sized> {
    of: &'a Mutex<T>,
    /// `None` during a wait.
    held: Option<sync::MutexGuard<'a, T>>,
}

/// A condition variable.
#[derive(Default)]
pub struct Condvar(sync::Condvar);

/// The result of a wait with a time limit. No wait times out here.
pub struct WaitTimeoutResult;

const POISONED: &str = "a thread that panics ends its run";
const HELD: &str = "it is locked except during a wait";

impl<T> Mutex<T> {
    /// Returns a mutex around a value.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Blocks until the mutex is locked.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            of: self,
            held: Some(self.0.lock().expect(POISONED)),
        }
    }

    /// Returns the value; exclusive access makes the lock unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect(POISONED)
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Calls a function while the mutex is unlocked.
    pub fn unlocked<R>(guard: &mut Self, act: impl FnOnce() -> R) -> R {
        guard.held = None;
        let result = act();
        guard.held = Some(guard.of.0.lock().expect(POISONED));
        result
    }
}

impl Condvar {
    /// Returns a condition variable without waiters.
    pub const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Unlocks the mutex and blocks until woken.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect(HELD);
        guard.held = Some(self.0.wait(held).expect(POISONED));
    }

    /// Blocks until the condition does not hold.
    pub fn wait_while<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// Like [`Condvar::wait_while`], regardless of the time limit: no time passes here.
    pub fn wait_while_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
        _: Instant,
    ) -> WaitTimeoutResult {
        self.wait_while(guard, condition);
        WaitTimeoutResult
    }

    /// Blocks until woken, regardless of the time limit: no time passes here.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }

    /// Like [`Condvar::wait_until`].
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }
}

impl WaitTimeoutResult {
    /// Returns false: no wait times out here.
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
