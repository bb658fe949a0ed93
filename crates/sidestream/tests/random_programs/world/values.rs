//! Values and rows of them, and lists that can be indexed by any number.

use parking_lot::Mutex;
use sidestream::stream::Rows;

use super::super::act::Table;

pub(super) fn pattern(seed: u32, len: usize) -> Vec<u32> {
    let values = 0..len as u32;
    values
        .map(|at| (seed ^ at).wrapping_mul(0x85eb_ca6b))
        .collect()
}

impl Table {
    /// Returns tight rows, and rows with gaps.
    pub(super) fn rows(self) -> (Rows, Rows) {
        let Table { len, count, gap } = self;
        let rows = |pitch| Rows { len, count, pitch };
        (rows(len), rows(len + gap))
    }
}

/// Returns the number of values that rows extend over.
pub(super) fn needs(rows: Rows) -> usize {
    match rows.count {
        0 => 0,
        count => (count - 1) * rows.pitch + rows.len,
    }
}

/// Returns whether the rows fit into `len` values.
pub(super) fn fits(rows: Rows, len: usize) -> bool {
    needs(rows) <= len
}

pub(super) fn scatter(from: &[u32], from_rows: Rows, to: &mut [u32], to_rows: Rows) {
    for row in 0..from_rows.count {
        let (read, written) = (row * from_rows.pitch, row * to_rows.pitch);
        let row = &from[read..read + from_rows.len];
        to[written..written + to_rows.len].copy_from_slice(row);
    }
}

pub(super) fn take_at<T>(from: &Mutex<Vec<T>>, at: usize) -> Option<T> {
    let mut from = from.lock();
    match from.len() {
        0 => None,
        len => Some(from.remove(at % len)),
    }
}

pub(super) fn clone_at<T: Clone>(from: &Mutex<Vec<T>>, at: usize) -> Option<T> {
    let from = from.lock();
    from.get(at.checked_rem(from.len())?).cloned()
}

/// Keeps the last eight values.
pub(super) fn keep<T>(into: &Mutex<Vec<T>>, value: Option<T>) {
    let mut into = into.lock();
    into.extend(value);
    if into.len() > 8 {
        let oldest = into.remove(0);
        drop(into);
        drop(oldest);
    }
}
