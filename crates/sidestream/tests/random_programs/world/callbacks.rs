//! Code of the program that the runtime calls, and that panics there.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

use sidestream::benchmark::{Options, benchmark};
use sidestream::kernel::{Kernel, Write};
use sidestream::log::{Record, Sink};
use sidestream::pipeline::{Cause, Pipeline, per_row};

use super::super::act::{Landing, Place};
use super::super::edge_act::{Called, Part};
use super::super::reference;
use super::values::{clone_at, take_at};
use super::{GRID, Line, World};

/// Message of all these panics.
pub const SAID: &str = "the test said so";

/// Not `panic!`, whose hook would print it.
pub(super) fn panic_quietly() -> ! {
    resume_unwind(Box::new(SAID))
}

impl World {
    pub(super) fn panics(&self, called: Called) {
        match called {
            Called::Cost(at) => self.cost(at),
            Called::Benchmark(at) => {
                let Line { stream, .. } = self.stream(at.stream);
                let options = Options {
                    calls: 1,
                    ..Options::default()
                };
                let ran = caught(|| benchmark(&stream, &options, |_| panic_quietly()));
                if let Some(measured) = ran {
                    self.tried(measured);
                }
            }
            Called::Sink(after) => {
                let sink = Box::new(Fragile(after));
                let id = caught(|| self.device(0).listen(sink));
                self.sinks.lock().extend(id);
            }
            Called::File(after) => {
                let recording = caught(|| self.device(0).record(Bomb(after)));
                // A file that panics at once makes no recording.
                self.recordings
                    .lock()
                    .extend(recording.and_then(Result::ok));
            }
            Called::Waker(which) => {
                if let Some(flying) = take_at(&self.flying, which) {
                    self.land(flying, Landing::PollBadly);
                }
            }
            Called::Drop(stream) => {
                let Line { stream, .. } = self.stream(stream);
                let given = caught(|| stream.host_func(Fuse, |_| ()));
                if let Some(pending) = given.and_then(|given| self.issued(given)) {
                    // The `Fuse` is dropped on a thread of the runtime.
                    drop(pending);
                }
            }
            Called::HostFunc(stream) => {
                let Some(other) = clone_at(&self.others, stream) else {
                    return;
                };
                if !other.is_captured() && self.plan.threads == 1 && !self.captures() {
                    // SAFETY: the function makes no calls and touches no memory.
                    let given = unsafe { other.stream().host_func(&[], &[], || panic_quietly()) };
                    self.issued(given);
                }
            }
            Called::Pipeline { device, part, item } => self.pipeline(device, part, item),
        }
    }

    /// Nothing is submitted: the buffer is unchanged.
    fn cost(&self, at: Place) {
        let kernel = Kernel::<(Write<u32>,)>::on_host("dear", |_, (y,)| reference::one(y));
        let kernel = kernel.with_cost(|_| panic_quietly());
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let stream = self.stream_near(at.stream, slot);
        let range = slot.range(at);
        let launched = caught(|| stream.launch(&kernel, GRID, (slot.view_mut(&range),)));
        if let Some(launched) = launched
            && self.launched(launched, &stream, &[slot]).is_some()
        {
            self.wrong("a kernel without a cost was launched".into());
        }
    }

    fn pipeline(&self, device: usize, bad: Part, at: u64) {
        const ROWS: usize = 4;
        let device = self.device(device);
        let two = self.kernels.two.clone();
        let here = move |part, index| {
            if part == bad && index == at {
                panic_quietly();
            }
        };
        let running = Pipeline::new(&device, ROWS)
            .upload(per_row::<u32>(1))
            .stage("two", per_row::<u32>(1), move |slot, x, y| {
                slot.stream().fill_with(y.view_mut(), 1)?;
                here(Part::Stage, slot.index());
                slot.stream().launch(&two, GRID, (x.view(), y.view_mut()))
            })
            .download(per_row::<u32>(1), |(_, y)| y)
            .depth(2)
            .progress(move |item| here(Part::Progress, item))
            .fill(move |index, x| {
                here(Part::Source, index);
                x.fill(index as u32);
                Ok((index < 4).then_some(ROWS))
            });
        caught(|| {
            for item in running {
                match item {
                    Ok(item) => {
                        let mut expected = [1; ROWS];
                        reference::two(&[item.index() as u32; ROWS], &mut expected);
                        self.compare("an item", &item, &expected);
                        here(Part::Consumer, item.index());
                    }
                    Err(failed) => match failed.cause {
                        Cause::Runtime(error) => drop(self.tried::<()>(Err(error))),
                        Cause::Panicked(message) if message.contains(SAID) => {}
                        _ => self.wrong(format!("{failed}")),
                    },
                }
            }
        });
    }

    /// Detaches the sinks and ends the recordings. A remaining panic of a sink is taken out here.
    pub(super) fn stop_listening(&self) {
        let device = &self.all[0];
        for sink in self.sinks.lock().drain(..) {
            device.stop_listening(sink);
        }
        for recording in self.recordings.lock().drain(..) {
            // The file is the test's own: some recordings were cut.
            drop(recording.finish());
        }
        for _ in 0..64 {
            caught(|| drop(device.synchronize()));
        }
    }
}

/// Returns the result of a call, unless code of the test panics in it.
///
/// # Panics
/// If any other code panics.
pub(super) fn caught<R>(call: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(panic) if is_ours(&*panic) => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// Returns whether code of the test has panicked.
pub(super) fn is_ours(panic: &(dyn std::any::Any + Send)) -> bool {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.is_some_and(|text| text.contains(SAID))
}

/// A sink that panics after this many records.
struct Fragile(u32);

impl Fragile {
    fn told(&mut self) {
        match self.0.checked_sub(1) {
            Some(left) => self.0 = left,
            None => panic_quietly(),
        }
    }
}

impl Sink for Fragile {
    fn take(&mut self, _: &Record<'_>) {
        self.told();
    }
    fn alarm(&mut self) -> Option<String> {
        self.told();
        None
    }
}

/// A file that panics after this many writes.
pub(super) struct Bomb(u32);

/// How often this process has written or flushed such a file.
pub(super) static WRITTEN: AtomicU64 = AtomicU64::new(0);

impl io::Write for Bomb {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        match self.0.checked_sub(1) {
            Some(left) => self.0 = left,
            None => panic_quietly(),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        WRITTEN.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A value whose drop panics.
struct Fuse;

impl Drop for Fuse {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic_quietly();
        }
    }
}

/// A waker that panics.
pub fn bad_waker() -> Waker {
    struct Bad;
    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            panic_quietly();
        }
    }
    Waker::from(Arc::new(Bad))
}
