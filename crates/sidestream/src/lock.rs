//! A lock for what nearly every call takes and hardly anybody waits for: a stream, a block of memory, an event.
//!
//! To let it go is a store, where other locks take a second locked instruction, which lasts as long as dozens of
//! others, and a call takes several of these locks. The price is paid by who finds it held. He says that he waits, and sleeps;
//! whoever lets go looks behind the store whether anybody has said so. The processor may do the two the other way
//! round, and then nobody is woken. So who sleeps looks again by himself, and nothing depends on that but how long it
//! takes.

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A value that one thread at a time may reach. A panic leaves it usable.
#[derive(Default)]
pub(crate) struct Lock<T> {
    is_held: AtomicBool,
    /// How many threads sleep, or are about to.
    waiting: AtomicU32,
    gate: Mutex<()>,
    freed: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: a reference to the value is had from `Locked` alone, of which there is one at a time, or from `&mut`.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The value, as long as this is there.
pub(crate) struct Locked<'a, T> {
    lock: &'a Lock<T>,
    /// It stays on its thread, and is not shared with others.
    is_here: PhantomData<*const ()>,
}

/// So often it is tried before the thread sleeps.
const TRIES: u32 = 64;
/// After so long a thread that sleeps looks by itself.
const MOMENT: Duration = Duration::from_millis(1);

impl<T> Lock<T> {
    pub fn new(value: T) -> Lock<T> {
        Lock {
            is_held: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            gate: Mutex::new(()),
            freed: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until nobody else holds it.
    #[inline(always)]
    pub fn lock(&self) -> Locked<'_, T> {
        if !self.take() {
            self.wait();
        }
        Locked {
            lock: self,
            is_here: PhantomData,
        }
    }

    /// The value of a lock that nobody else has.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    #[inline(always)]
    fn take(&self) -> bool {
        let taken =
            self.is_held
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..TRIES {
            spin_loop();
            if !self.is_held.load(Ordering::Relaxed) && self.take() {
                return;
            }
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut gate = self.gate.lock();
        while !self.take() {
            let _ = self.freed.wait_until(&mut gate, Instant::now() + MOMENT);
        }
        drop(gate);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    #[cold]
    fn wake(&self) {
        // With the gate: who has tried in vain sleeps by now.
        let _gate = self.gate.lock();
        self.freed.notify_one();
    }
}

impl<T> Drop for Locked<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.is_held.store(false, Ordering::Release);
        if self.lock.waiting.load(Ordering::Relaxed) != 0 {
            self.lock.wake();
        }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, and nobody else reaches the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More threads than cores: some sleep, and none is left asleep.
    #[test]
    fn each_of_many_threads_adds_what_no_other_one_loses() {
        const THREADS: u64 = 8;
        let turns = if cfg!(miri) { 100 } else { 20_000 };
        let sum = Lock::new([0u64; 2]);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for turn in 0..turns {
                        let mut sum = sum.lock();
                        let [a, b] = *sum;
                        assert_eq!(a, b);
                        sum[0] += turn;
                        if turn % 64 == 0 {
                            std::thread::yield_now();
                        }
                        sum[1] += turn;
                    }
                });
            }
        });
        let all = THREADS * (0..turns).sum::<u64>();
        assert_eq!(*sum.lock(), [all; 2]);
        assert_eq!(sum.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_panic_lets_it_go() {
        let lock = Lock::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut held = lock.lock();
            *held = 2;
            panic!("while it is held");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 2);
    }
}
