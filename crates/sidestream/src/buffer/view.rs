//! Ranges of a buffer, borrowed for one call.

use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

use super::Pod;
use crate::backend::{Address, Arg};
use crate::op::Mode;
use crate::tracker::{Block, Touch};

/// Values of a device buffer, for reading.
pub struct View<'a, T> {
    block: &'a Block,
    first: usize,
    len: usize,
    holds: PhantomData<&'a T>,
}

/// Values of a device buffer, for writing (and reading).
///
/// As with `&mut`, no two of these views share a value. [`ViewMut::split_at`] returns parts that may be used on
/// different streams and threads.
pub struct ViewMut<'a, T> {
    block: &'a Block,
    first: usize,
    len: usize,
    holds: PhantomData<&'a mut T>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

impl<'a, T: Pod> View<'a, T> {
    pub(crate) fn new(block: &'a Block, first: usize, len: usize) -> View<'a, T> {
        View {
            block,
            first,
            len,
            holds: PhantomData,
        }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a range of the view.
    ///
    /// # Panics
    /// If the range is not within the view.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> View<'a, T> {
        let range = within(range, self.len);
        View::new(self.block, self.first + range.start, range.len())
    }

    /// Splits the view into the values before index `mid` and the rest.
    ///
    /// # Panics
    /// If `mid` is not within the view.
    #[track_caller]
    pub fn split_at(self, mid: usize) -> (View<'a, T>, View<'a, T>) {
        (self.slice(..mid), self.slice(mid..))
    }

    pub(crate) fn address(&self) -> Address {
        self.block.address.offset(self.bytes().start)
    }

    pub(crate) fn touch(&self) -> Touch<'a> {
        touch(self.block, self.bytes(), Mode::Read)
    }

    pub(crate) fn arg(&self) -> Arg {
        arg(self.address(), self.bytes(), Mode::Read)
    }

    fn bytes(&self) -> Range<u64> {
        bytes_of::<T>(self.first, self.len)
    }
}

impl<'a, T: Pod> ViewMut<'a, T> {
    pub(crate) fn new(block: &'a Block, first: usize, len: usize) -> ViewMut<'a, T> {
        ViewMut {
            block,
            first,
            len,
            holds: PhantomData,
        }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a range of the view.
    ///
    /// # Panics
    /// If the range is not within the view.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> ViewMut<'a, T> {
        let range = within(range, self.len);
        ViewMut::new(self.block, self.first + range.start, range.len())
    }

    /// Splits the view into the values before index `mid` and the rest.
    ///
    /// # Panics
    /// If `mid` is not within the view.
    #[track_caller]
    pub fn split_at(self, mid: usize) -> (ViewMut<'a, T>, ViewMut<'a, T>) {
        let (first, len) = (self.first, self.len);
        assert!(
            mid <= len,
            "the view has {len} values and cannot be split at {mid}"
        );
        (
            ViewMut::new(self.block, first, mid),
            ViewMut::new(self.block, first + mid, len - mid),
        )
    }

    /// Returns a view of the same values with a shorter lifetime.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut::new(self.block, self.first, self.len)
    }

    /// Returns a view of the same values for reading.
    pub fn as_view(&self) -> View<'_, T> {
        View::new(self.block, self.first, self.len)
    }

    pub(crate) fn address(&self) -> Address {
        self.block.address.offset(self.bytes().start)
    }

    pub(crate) fn touch(&self) -> Touch<'a> {
        touch(self.block, self.bytes(), Mode::Write)
    }

    pub(crate) fn arg(&self) -> Arg {
        arg(self.address(), self.bytes(), Mode::Write)
    }

    fn bytes(&self) -> Range<u64> {
        bytes_of::<T>(self.first, self.len)
    }
}

fn bytes_of<T>(first: usize, len: usize) -> Range<u64> {
    let start = (first * size_of::<T>()) as u64;
    start..start + (len * size_of::<T>()) as u64
}

fn touch(block: &Block, bytes: Range<u64>, mode: Mode) -> Touch<'_> {
    Touch {
        block,
        start: bytes.start,
        end: bytes.end,
        mode,
    }
}

fn arg(at: Address, bytes: Range<u64>, mode: Mode) -> Arg {
    let bytes = bytes.end - bytes.start;
    Arg::Memory { at, bytes, mode }
}

/// Resolves a range within `len` values, and panics if it is out of bounds.
#[track_caller]
pub(crate) fn within(range: impl RangeBounds<usize>, len: usize) -> Range<usize> {
    let behind = |at: usize| at.saturating_add(1);
    let start = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => behind(at),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => behind(at),
        Bound::Excluded(&at) => at,
        Bound::Unbounded => len,
    };
    assert!(
        start <= end && end <= len,
        "the range {start}..{end} is out of bounds: there are {len} values"
    );
    start..end
}
