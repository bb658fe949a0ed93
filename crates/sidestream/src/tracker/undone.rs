//! The rest of a list of tasks that a panic may interrupt.

use parking_lot::Mutex;

/// Items to be processed one by one. A wait may panic with a sink's finding: then the remaining items are kept.
pub(crate) struct Undone<'a, T> {
    /// The remaining items in reverse order.
    left: Vec<T>,
    kept: &'a Mutex<Vec<T>>,
}

impl<'a, T> Undone<'a, T> {
    pub(super) fn new(kept: &'a Mutex<Vec<T>>, each: impl Iterator<Item = T>) -> Undone<'a, T> {
        let mut left: Vec<T> = each.collect();
        left.reverse();
        Undone { left, kept }
    }

    pub(super) fn next(&self) -> Option<&T> {
        self.left.last()
    }

    /// Takes the next item.
    pub(super) fn take(&mut self) -> Option<T> {
        self.left.pop()
    }
}

impl<T> Drop for Undone<'_, T> {
    fn drop(&mut self) {
        if !self.left.is_empty() {
            self.kept.lock().append(&mut self.left);
        }
    }
}
