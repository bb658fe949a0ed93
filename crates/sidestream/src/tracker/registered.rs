//! Registered memory that its owner has dropped but that is still pinned.

use parking_lot::Mutex;

use super::uses::Uses;
use super::vector::Vector;
use crate::backend::Backend;

/// Registered memory to be unpinned later.
#[derive(Default)]
pub(crate) struct Registered {
    /// Memory that was dropped by its owner, is still pinned, and may be in use.
    pub(super) left: Mutex<Vec<Left>>,
}

pub(super) struct Left {
    pub(super) vector: Vector,
    pub(super) size_bytes: u64,
    pub(super) uses: Uses,
}

impl Registered {
    /// Takes memory whose owner is gone. Neither waits nor calls the driver.
    pub(crate) fn leave(&self, vector: Vector, size_bytes: u64, uses: Uses) {
        self.left.lock().push(Left {
            vector,
            size_bytes,
            uses: uses.all(),
        });
    }

    /// Unpins and frees all of the memory when the machine is closed. Memory that a device may still use is leaked.
    pub(crate) fn close(&mut self, backend: &dyn Backend, is_over: bool) {
        for Left {
            vector, size_bytes, ..
        } in self.left.get_mut().drain(..)
        {
            if is_over {
                free(backend, vector, size_bytes);
            }
        }
    }
}

/// Unpins and frees memory whose uses are complete.
pub(super) fn free(backend: &dyn Backend, vector: Vector, size_bytes: u64) {
    // SAFETY: the memory's owner is gone and its uses are complete; it is unpinned before it is freed.
    unsafe {
        unpin(backend, &vector, size_bytes);
        vector.free();
    }
}

/// Unpins a vector; an empty vector was never pinned.
///
/// # Safety
/// The vector was pinned, and all its uses are complete.
pub(super) unsafe fn unpin(backend: &dyn Backend, vector: &Vector, size_bytes: u64) {
    if size_bytes > 0 {
        // SAFETY: the caller's promise.
        unsafe { backend.unregister(vector.address()) };
    }
}
