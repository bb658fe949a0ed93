//! Tables that start empty in a forked child.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;
use sidestream::process::Process;

/// A table of this process. A forked child gets an empty table of its own: the parent's entries belong to the
/// parent's devices, and the parent's lock may be held by a thread that does not exist in the child.
pub struct PerProcess<T: 'static>(AtomicPtr<Table<T>>);

/// The process, and its table.
struct Table<T>(Process, Mutex<T>);

impl<T: Default> PerProcess<T> {
    pub const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the table, which lives as long as the process.
    pub fn get(&self) -> &'static Mutex<T> {
        let process = Process::this();
        let there = self.0.load(Ordering::Acquire);
        // SAFETY: a table is leaked below, and is never freed.
        if let Some(table) = unsafe { there.as_ref() }
            && table.0 == process
        {
            return &table.1;
        }
        let fresh = Box::into_raw(Box::new(Table(process, Mutex::default())));
        let swapped = self
            .0
            .compare_exchange(there, fresh, Ordering::AcqRel, Ordering::Acquire);
        let table = match swapped {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        };
        // SAFETY: as above. If another thread was quicker, its table is also of this process.
        unsafe { &(*table).1 }
    }
}
