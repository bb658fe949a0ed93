//! The kind of the calling code, and a thread that drops values which must not be dropped on the calling thread.

use std::any::Any;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use crate::process::Process;

/// The kind of the calling code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// Code of the program.
    Program,
    /// A function on the host that a stream runs.
    Stream,
    /// A kernel in Rust, or the function that states its cost. It is run by a thread that calls the simulated device
    /// and may hold any locks at that moment, including the device's own.
    Kernel,
}

thread_local! {
    static CALLER: Cell<Caller> = const { Cell::new(Caller::Program) };
}

/// Whether the calling code is a kernel in Rust, or a function that states the cost of one: a call of the runtime from
/// there would wait for itself.
#[inline]
pub(crate) fn is_kernel() -> bool {
    CALLER.with(Cell::get) == Caller::Kernel
}

/// Whether the calling code is ordinary code of the program.
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

/// Runs an action that calls the driver or waits for a lock: at once, or on a separate thread if the calling code is
/// a function on the host or a kernel, which may do neither.
pub(crate) fn outside_callbacks(act: impl FnOnce() + Send + 'static) {
    match CALLER.with(Cell::get) {
        Caller::Program => act(),
        Caller::Stream | Caller::Kernel => drop_elsewhere(Box::new(Later(Some(act)))),
    }
}

/// Runs an action when it is dropped.
struct Later<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Later<F> {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

type Value = Box<dyn Any + Send>;

/// Drops a value on a separate thread, not on the driver's callback thread, where the value's destructor might call
/// the driver.
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
        // No thread could be started, or the thread belongs to the process from which this one was forked: leaking the
        // value is safe.
        _ => std::mem::forget(value),
    }
}

/// Starts a thread; returns whether that succeeded.
pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(run).is_ok()
}
