//! Keys of the memory that a graph owns, and the parts of that memory that a node touches.

use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};

use crate::backend::Arg;
use crate::buffer::{Pod, within};
use crate::op::Mode;

/// Names a device buffer that a graph owns.
///
/// Made by [`GraphBuilder::own`](crate::graph::GraphBuilder::own) and valid for that graph only. Copies name the same
/// buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufKey<T> {
    pub(crate) at: At,
    len: usize,
    holds: PhantomData<T>,
}

/// Names pinned host memory that a graph owns.
///
/// Made by [`GraphBuilder::own_pinned`](crate::graph::GraphBuilder::own_pinned); otherwise like a [`BufKey`].
#[derive(Clone, Copy, Debug)]
pub struct PinnedKey<T> {
    pub(crate) at: At,
    len: usize,
    holds: PhantomData<T>,
}

/// Values of a device buffer that a node reads.
#[derive(Clone, Copy, Debug)]
pub struct Part<T>(Values<T>);

/// Values of a device buffer that a node writes (and may read).
#[derive(Clone, Copy, Debug)]
pub struct PartMut<T>(Values<T>);

/// Values in pinned host memory that a copy reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct PinnedPart<T>(Values<T>);

/// A node of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeId(pub(crate) At);

/// An index in a list: of a graph's buffers, or of the nodes of one description of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    /// The number of the list, which no other list of the process has.
    pub list: u64,
    pub index: u32,
}

/// Bytes of a buffer, with the mode in which a node touches them.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub(crate) at: At,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) mode: Mode,
}

/// An argument of a kernel on its way into a node.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum NodeArg {
    Memory(Piece),
    Value(Arg),
}

#[derive(Clone, Copy, Debug)]
struct Values<T> {
    at: At,
    first: usize,
    len: usize,
    holds: PhantomData<T>,
}

impl<T: Pod> BufKey<T> {
    pub(crate) fn new(at: At, len: usize) -> BufKey<T> {
        let holds = PhantomData;
        BufKey { at, len, holds }
    }

    /// Returns the number of values.
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the whole buffer, for a node to read.
    pub fn view(self) -> Part<T> {
        Part(Values::all(self.at, self.len))
    }

    /// Returns the whole buffer, for a node to write.
    pub fn view_mut(self) -> PartMut<T> {
        PartMut(Values::all(self.at, self.len))
    }

    /// Returns a range of the buffer, for a node to read.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> Part<T> {
        self.view().slice(range)
    }

    /// Returns a range of the buffer, for a node to write.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[track_caller]
    pub fn slice_mut(self, range: impl RangeBounds<usize>) -> PartMut<T> {
        self.view_mut().slice(range)
    }
}

impl<T: Pod> PinnedKey<T> {
    pub(crate) fn new(at: At, len: usize) -> PinnedKey<T> {
        let holds = PhantomData;
        PinnedKey { at, len, holds }
    }

    /// Returns the number of values.
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns a range of the memory.
    ///
    /// # Panics
    /// If the range is not within the memory.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> PinnedPart<T> {
        PinnedPart(Values::all(self.at, self.len).slice(range))
    }
}

impl<T: Pod> From<PinnedKey<T>> for PinnedPart<T> {
    /// Converts to the whole memory.
    fn from(key: PinnedKey<T>) -> PinnedPart<T> {
        PinnedPart(Values::all(key.at, key.len))
    }
}

impl<T: Pod> Part<T> {
    /// Returns the number of values.
    pub fn len(self) -> usize {
        self.0.len
    }

    /// Returns whether there are no values.
    pub fn is_empty(self) -> bool {
        self.0.len == 0
    }

    /// Returns a range of the part.
    ///
    /// # Panics
    /// If the range is not within the part.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> Part<T> {
        Part(self.0.slice(range))
    }

    pub(crate) fn piece(self) -> Piece {
        self.0.piece(Mode::Read)
    }
}

impl<T: Pod> PartMut<T> {
    /// Returns the number of values.
    pub fn len(self) -> usize {
        self.0.len
    }

    /// Returns whether there are no values.
    pub fn is_empty(self) -> bool {
        self.0.len == 0
    }

    /// Returns a range of the part.
    ///
    /// # Panics
    /// If the range is not within the part.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> PartMut<T> {
        PartMut(self.0.slice(range))
    }

    pub(crate) fn piece(self) -> Piece {
        self.0.piece(Mode::Write)
    }
}

impl<T: Pod> PinnedPart<T> {
    /// Returns the number of values.
    pub fn len(self) -> usize {
        self.0.len
    }

    /// Returns whether there are no values.
    pub fn is_empty(self) -> bool {
        self.0.len == 0
    }

    /// Returns a range of the part.
    ///
    /// # Panics
    /// If the range is not within the part.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> PinnedPart<T> {
        PinnedPart(self.0.slice(range))
    }

    pub(crate) fn piece(self, mode: Mode) -> Piece {
        self.0.piece(mode)
    }
}

impl<T: Pod> Values<T> {
    fn all(at: At, len: usize) -> Values<T> {
        Values {
            at,
            first: 0,
            len,
            holds: PhantomData,
        }
    }

    #[track_caller]
    fn slice(self, range: impl RangeBounds<usize>) -> Values<T> {
        let range = within(range, self.len);
        Values {
            first: self.first + range.start,
            len: range.len(),
            ..self
        }
    }

    fn piece(self, mode: Mode) -> Piece {
        let start = (self.first * size_of::<T>()) as u64;
        Piece {
            at: self.at,
            start,
            end: start + (self.len * size_of::<T>()) as u64,
            mode,
        }
    }
}

impl Piece {
    pub(crate) fn bytes(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Returns whether the two overlap and at least one of them is a write.
    pub(crate) fn conflicts(&self, other: &Piece) -> bool {
        let overlap = self.start.max(other.start) < self.end.min(other.end);
        let writes = self.mode == Mode::Write || other.mode == Mode::Write;
        self.at == other.at && overlap && writes
    }
}

impl At {
    /// Returns the index in the list of a graph's buffers; panics if the list belongs to another graph.
    #[track_caller]
    pub(crate) fn of(self, graph: u64) -> usize {
        self.within(
            graph,
            "the key belongs to another graph; use a key from this graph's builder",
        )
    }

    /// Returns the index in a list; panics if the list has another number.
    #[track_caller]
    pub(crate) fn within(self, list: u64, else_says: &str) -> usize {
        assert!(self.list == list, "{else_says}");
        self.index as usize
    }
}
