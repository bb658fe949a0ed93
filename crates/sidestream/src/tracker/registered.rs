//! Memory of the program that its owner has dropped, and that is pinned still.

use parking_lot::Mutex;

use super::uses::Uses;
use super::vector::Vector;
use crate::backend::Backend;

/// What is kept of registered memory.
#[derive(Default)]
pub(crate) struct Registered {
    /// Dropped by its owner, pinned still, and perhaps in use.
    pub(super) left: Mutex<Vec<Left>>,
}

pub(super) struct Left {
    pub(super) vector: Vector,
    pub(super) size_bytes: u64,
    pub(super) uses: Uses,
}

impl Registered {
    /// Its owner is gone. Neither waits nor calls the driver.
    pub(crate) fn leave(&self, vector: Vector, size_bytes: u64, uses: Uses) {
        self.left.lock().push(Left {
            vector,
            size_bytes,
            uses: uses.all(),
        });
    }

    /// Gives everything back: nobody holds any of it. What a device may still use stays where it is.
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

/// Unpins and frees memory whose uses are over.
pub(super) fn free(backend: &dyn Backend, vector: Vector, size_bytes: u64) {
    // SAFETY: its owner is gone and its uses are over; then it is not pinned any more.
    unsafe {
        unpin(backend, &vector, size_bytes);
        vector.free();
    }
}

/// An empty vector was never pinned.
///
/// # Safety
/// It was pinned, and all its uses are over.
pub(super) unsafe fn unpin(backend: &dyn Backend, vector: &Vector, size_bytes: u64) {
    if size_bytes > 0 {
        // SAFETY: the caller's promise.
        unsafe { backend.unregister(vector.address()) };
    }
}
