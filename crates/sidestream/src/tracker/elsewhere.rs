//! On whose behalf code runs, and a thread of our own that drops what may not be dropped where it is.

use std::any::Any;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use crate::process::Process;

/// On whose behalf the calling code runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// The program's own.
    Program,
    /// A stream's that runs a function on the host.
    Stream,
    /// A simulated device's that runs a kernel in Rust or asks what it costs. Whoever asks the device runs it,
    /// with whatever locks are held at that moment, the device's own among them.
    Kernel,
}

thread_local! {
    static CALLER: Cell<Caller> = const { Cell::new(Caller::Program) };
}

/// Whether the calling code is a kernel in Rust, or states the cost of one: a call of the runtime would wait for
/// itself.
#[inline]
pub(crate) fn is_kernel() -> bool {
    CALLER.with(Cell::get) == Caller::Kernel
}

/// Whether the calling code is the program's own.
#[inline]
pub(super) fn is_program() -> bool {
    CALLER.with(Cell::get) == Caller::Program
}

/// Runs the code of a kernel.
pub(crate) fn as_kernel<R>(run: impl FnOnce() -> R) -> R {
    run_for(Caller::Kernel, run)
}

/// Whether the calling code is a function on the host that a stream runs.
pub(crate) fn is_host_func() -> bool {
    CALLER.with(Cell::get) == Caller::Stream
}

/// Runs a function on the host for a stream.
pub(crate) fn as_host_func<R>(run: impl FnOnce() -> R) -> R {
    run_for(Caller::Stream, run)
}

fn run_for<R>(caller: Caller, run: impl FnOnce() -> R) -> R {
    struct Ends(Caller);
    impl Drop for Ends {
        fn drop(&mut self) {
            CALLER.with(|caller| caller.set(self.0));
        }
    }
    let _ends = Ends(CALLER.with(|known| known.replace(caller)));
    run()
}

/// Does something that calls the driver or waits for a lock: at once, or on a thread of its own where the calling
/// code may do neither, since it is a function on the host or a kernel.
pub(crate) fn outside_callbacks(act: impl FnOnce() + Send + 'static) {
    match CALLER.with(Cell::get) {
        Caller::Program => act(),
        Caller::Stream | Caller::Kernel => drop_elsewhere(Box::new(Later(Some(act)))),
    }
}

/// Does something when it is dropped.
struct Later<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Later<F> {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
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

/// Whether there is a thread that does this.
pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(run).is_ok()
}
