//! Values that the device or a host function may still use, and their expected contents afterwards.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sidestream::buffer::{Pending, Pinned};
use sidestream::error::Error;

use super::act::Landing;
use super::world::{Slot, World, bad_waker};

pub enum Flying {
    /// A copy, and the expected contents of its memory.
    Pinned(Pending<Pinned<u32>>, Vec<u32>),
    /// A host function that writes, and the expected contents of its memory.
    Written(Pending<Pinned<u32>>, Vec<u32>),
    Values(Pending<Vec<u32>>, Vec<u32>),
    Panics(Pending<Vec<u32>>),
    Buffer(Pending<Slot>),
}

/// How the wait ended.
enum Landed<T> {
    Back(T),
    Still(Pending<T>),
    Gone(Option<Error>),
}

impl World {
    /// Waits for the value as the program says. It stays pending, comes back, or is dropped.
    pub fn land(&self, flying: Flying, how: Landing) {
        // The values that its function still owns are dropped on a thread of the runtime, at a time that no seed
        // determines.
        let is_elsewhere = matches!(flying, Flying::Written(..) | Flying::Buffer(_));
        if is_elsewhere && self.plan.threads == 1 && matches!(how, Landing::Drop) {
            return self.fly(flying);
        }
        match flying {
            Flying::Pinned(pending, expected) | Flying::Written(pending, expected) => {
                match self.try_land(pending, how) {
                    Landed::Back(value) => {
                        self.compare("pinned memory", &value, &expected);
                        self.idle.lock().push(value);
                    }
                    Landed::Still(pending) if is_elsewhere => {
                        self.fly(Flying::Written(pending, expected));
                    }
                    Landed::Still(pending) => self.fly(Flying::Pinned(pending, expected)),
                    Landed::Gone(error) => self.gone(error),
                }
            }
            Flying::Values(pending, expected) => match self.try_land(pending, how) {
                Landed::Back(value) => {
                    self.compare("the values of a function on the host", &value, &expected);
                }
                Landed::Still(pending) => self.fly(Flying::Values(pending, expected)),
                Landed::Gone(error) => self.gone(error),
            },
            Flying::Panics(pending) => match self.try_land(pending, how) {
                Landed::Back(_) => self.wrong("a function that panicked gave its value".into()),
                Landed::Still(pending) => self.fly(Flying::Panics(pending)),
                Landed::Gone(Some(Error::Panicked { message })) if message == "not today" => {}
                Landed::Gone(error) => self.gone(error),
            },
            Flying::Buffer(pending) => match self.try_land(pending, how) {
                Landed::Back(slot) => self.put_anywhere(slot),
                Landed::Still(pending) => self.fly(Flying::Buffer(pending)),
                Landed::Gone(error) => self.gone(error),
            },
        }
    }

    fn gone(&self, error: Option<Error>) {
        if let Some(error) = error {
            self.tried::<()>(Err(error));
        }
    }

    fn try_land<T: Unpin + Send + 'static>(
        &self,
        mut pending: Pending<T>,
        how: Landing,
    ) -> Landed<T> {
        match how {
            Landing::Sync => match pending.synchronize() {
                Ok(value) => Landed::Back(value),
                Err(error) => Landed::Gone(Some(error)),
            },
            Landing::SyncFor(ns) => {
                match pending.synchronize_for(Duration::from_nanos(u64::from(ns))) {
                    Ok(Some(value)) => Landed::Back(value),
                    Ok(None) => Landed::Still(pending),
                    Err(error @ Error::Panicked { .. }) => Landed::Gone(Some(error)),
                    Err(error) => {
                        self.gone(Some(error));
                        Landed::Still(pending)
                    }
                }
            }
            Landing::Query => match pending.query() {
                Ok(true) => self.try_land(pending, Landing::Sync),
                Ok(false) => Landed::Still(pending),
                Err(error) => {
                    self.gone(Some(error));
                    Landed::Still(pending)
                }
            },
            Landing::Drop => Landed::Gone(None),
            Landing::Forget => {
                self.forgotten.lock().push(Box::new(pending));
                Landed::Gone(None)
            }
            Landing::DropElsewhere => {
                drop_elsewhere(pending);
                Landed::Gone(None)
            }
            Landing::Await => match self.block_on(pending) {
                Ok(value) => Landed::Back(value),
                Err(error) => Landed::Gone(Some(error)),
            },
            Landing::PollOnce | Landing::PollBadly => {
                let waker = match how {
                    Landing::PollBadly => bad_waker(),
                    _ => Waker::from(Arc::new(Flag::default())),
                };
                match Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(Ok(value)) => Landed::Back(value),
                    Poll::Ready(Err(error)) => Landed::Gone(Some(error)),
                    // Another executor continues with the pending value, with another waker.
                    Poll::Pending => Landed::Still(pending),
                }
            }
        }
    }

    /// The smallest executor: polls when it was woken, and yields otherwise.
    fn block_on<T>(&self, mut future: impl Future<Output = T> + Unpin) -> T {
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(Arc::clone(&flag));
        for _ in 0..1_000 {
            if let Poll::Ready(done) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker))
            {
                return done;
            }
            wait_until("a future was never woken", || {
                flag.0.swap(false, Ordering::AcqRel)
            });
        }
        panic!("a future was woken a thousand times and is not ready");
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls a condition a bounded number of times.
pub fn wait_until(why: &str, is_so: impl Fn() -> bool) {
    // Some 15 seconds on an idle machine: a thread that others keep from running is not broken.
    for _ in 0..50_000_000u32 {
        if is_so() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("{why}");
}

/// Drops a value on a thread that never called the runtime before.
pub fn drop_elsewhere<T: Send + 'static>(value: T) {
    let thread = std::thread::spawn(move || drop(value));
    thread.join().expect("a drop does not panic");
}
