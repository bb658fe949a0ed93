//! Threads of our own: one that drops what may not be dropped where it is, one that wakes whoever
//! awaits a [`Pending`](crate::buffer::Pending).

use std::any::Any;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;
use std::time::Duration;

use super::process::Process;
use crate::event::Event;

thread_local! {
    static IS_HOST_FUNC: Cell<bool> = const { Cell::new(false) };
}

thread_local! {
    static IS_KERNEL: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling code is a kernel in Rust: the simulated device runs it while it holds its
/// own lock, so that a call of the runtime would wait for itself.
#[inline]
pub(crate) fn is_kernel() -> bool {
    IS_KERNEL.with(Cell::get)
}

/// Runs the code of a kernel.
pub(crate) fn as_kernel<R>(run: impl FnOnce() -> R) -> R {
    struct Ends;
    impl Drop for Ends {
        fn drop(&mut self) {
            IS_KERNEL.with(|is| is.set(false));
        }
    }
    IS_KERNEL.with(|is| is.set(true));
    let _ends = Ends;
    run()
}

/// Whether the calling code is a function on the host that a stream runs.
pub(crate) fn is_host_func() -> bool {
    IS_HOST_FUNC.with(Cell::get)
}

/// Runs a function on the host for a stream.
pub(crate) fn as_host_func<R>(run: impl FnOnce() -> R) -> R {
    IS_HOST_FUNC.with(|is| is.set(true));
    let result = run();
    IS_HOST_FUNC.with(|is| is.set(false));
    result
}

type Value = Box<dyn Any + Send>;

/// Drops a value on a thread of its own, not on the driver's callback thread, where the value's
/// destructor might call the driver.
pub(crate) fn drop_elsewhere(value: Value) {
    static DROPS: OnceLock<(Process, Option<Sender<Value>>)> = OnceLock::new();
    let (process, drops) = DROPS.get_or_init(|| {
        let (sender, values) = channel();
        let is_there = spawn("sidestream-drop", move || {
            for value in values {
                let dropped = std::panic::AssertUnwindSafe(|| drop::<Value>(value));
                let _ = std::panic::catch_unwind(dropped);
            }
        });
        (Process::this(), is_there.then_some(sender))
    });
    match drops {
        Some(drops) if process.is_this() => {
            let _ = drops.send(value);
        }
        // No thread can be had, or it is that of the process from which this one was forked: to leak it is safe.
        _ => std::mem::forget(value),
    }
}

/// Wakes a task when an event is over, or has failed: the task asks itself then.
pub(crate) fn wake_when_over(event: &Event, waker: &Waker) {
    static WAKES: OnceLock<Option<Sender<(Event, Waker)>>> = OnceLock::new();
    let wakes = WAKES.get_or_init(|| {
        let (sender, asked) = channel();
        spawn("sidestream-wake", move || wake_all(&asked)).then_some(sender)
    });
    let sent = match wakes {
        Some(wakes) => wakes.send((event.clone(), waker.clone())).is_ok(),
        None => false,
    };
    if !sent {
        // No thread can be had: the task asks again at once, which is slow and right.
        waker.wake_by_ref();
    }
}

/// Between two looks at all events it waits for the oldest one, for this long.
const TURN: Duration = Duration::from_millis(1);

fn wake_all(asked: &Receiver<(Event, Waker)>) {
    let mut waiting: Vec<(Event, Waker)> = Vec::new();
    loop {
        if waiting.is_empty() {
            match asked.recv() {
                Ok(next) => waiting.push(next),
                Err(_) => return,
            }
        }
        waiting.extend(asked.try_iter());
        // An error is over, too: the task will meet it.
        let _ = waiting[0].0.synchronize_for(TURN);
        waiting.retain(|(event, waker)| {
            let is_over = event.query().unwrap_or(true);
            if is_over {
                waker.wake_by_ref();
            }
            !is_over
        });
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(run).is_ok()
}
