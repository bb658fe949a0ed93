//! What is left of a piece of work that a panic may end.

use parking_lot::Mutex;

/// What is to be done with each of some things. A wait may panic with what a sink has to say: then what is left is kept.
pub(crate) struct Undone<'a, T> {
    /// The next one at the end.
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

    /// Takes the next one.
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
