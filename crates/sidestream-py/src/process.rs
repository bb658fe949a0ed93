//! Tables that a child of a fork begins anew.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;

/// A table of this process. A child of a fork has an empty one of its own: in the parent's are things of the
/// parent's devices, and its lock may be held by a thread that the child does not have.
pub struct PerProcess<T: 'static>(AtomicPtr<Table<T>>);

/// The process, and what is its own.
struct Table<T>(u32, Mutex<T>);

impl<T: Default> PerProcess<T> {
    pub const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }

    /// The table, which stays as long as the process.
    pub fn get(&self) -> &'static Mutex<T> {
        let process = std::process::id();
        let there = self.0.load(Ordering::Acquire);
        // SAFETY: what is in here was leaked below, and stays.
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
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        };
        // SAFETY: as above. Another thread that was quicker is one of the same process.
        unsafe { &(*table).1 }
    }
}
