//! Keys of the memory that a graph owns, and the parts of it that a node touches.

use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};

use crate::backend::Arg;
use crate::buffer::{Pod, within};
use crate::op::Mode;

/// Stands for a device buffer that a graph owns.
///
/// A key is made by [`GraphBuilder::own`](crate::graph::GraphBuilder::own) and is good for that graph
/// alone. Copies stand for the same buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufKey<T> {
    pub(crate) at: At,
    len: usize,
    holds: PhantomData<T>,
}

/// Stands for pinned host memory that a graph owns.
///
/// Made by [`GraphBuilder::own_pinned`](crate::graph::GraphBuilder::own_pinned), and otherwise like a
/// [`BufKey`].
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

/// Values in pinned host memory, which a copy reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct PinnedPart<T>(Values<T>);

/// A node of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeId(pub(crate) At);

/// A place in a list: of the buffers of a graph, or of the nodes of one description of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    /// Whose list it is. No other list of the process has the number.
    pub list: u64,
    pub index: u32,
}

/// Bytes of a buffer, and what a node does to them.
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

    /// How many values.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// All of it, for a node to read.
    pub fn view(self) -> Part<T> {
        Part(Values::all(self.at, self.len))
    }

    /// All of it, for a node to write.
    pub fn view_mut(self) -> PartMut<T> {
        PartMut(Values::all(self.at, self.len))
    }

    /// A range of it, for a node to read.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> Part<T> {
        self.view().slice(range)
    }

    /// A range of it, for a node to write.
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

    /// How many values.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// A range of it.
    ///
    /// # Panics
    /// If the range is not within the memory.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> PinnedPart<T> {
        PinnedPart(Values::all(self.at, self.len).slice(range))
    }
}

impl<T: Pod> From<PinnedKey<T>> for PinnedPart<T> {
    /// All of it.
    fn from(key: PinnedKey<T>) -> PinnedPart<T> {
        PinnedPart(Values::all(key.at, key.len))
    }
}

impl<T: Pod> Part<T> {
    /// How many values.
    pub fn len(self) -> usize {
        self.0.len
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0.len == 0
    }

    /// A range of it.
    ///
    /// # Panics
    /// If the range is not within it.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> Part<T> {
        Part(self.0.slice(range))
    }

    pub(crate) fn piece(self) -> Piece {
        self.0.piece(Mode::Read)
    }
}

impl<T: Pod> PartMut<T> {
    /// How many values.
    pub fn len(self) -> usize {
        self.0.len
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0.len == 0
    }

    /// A range of it.
    ///
    /// # Panics
    /// If the range is not within it.
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> PartMut<T> {
        PartMut(self.0.slice(range))
    }

    pub(crate) fn piece(self) -> Piece {
        self.0.piece(Mode::Write)
    }
}

impl<T: Pod> PinnedPart<T> {
    /// How many values.
    pub fn len(self) -> usize {
        self.0.len
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0.len == 0
    }

    /// A range of it.
    ///
    /// # Panics
    /// If the range is not within it.
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

    /// Whether one writes what the other touches, too.
    pub(crate) fn conflicts(&self, other: &Piece) -> bool {
        let overlap = self.start.max(other.start) < self.end.min(other.end);
        let writes = self.mode == Mode::Write || other.mode == Mode::Write;
        self.at == other.at && overlap && writes
    }
}

impl At {
    /// The place in the list of the buffers of a graph, if the list is this graph's.
    #[track_caller]
    pub(crate) fn of(self, graph: u64) -> usize {
        self.within(
            graph,
            "the key belongs to another graph; use the one that this graph's builder gave",
        )
    }

    /// The place in a list, if the list is the one with this number.
    #[track_caller]
    pub(crate) fn within(self, list: u64, else_says: &str) -> usize {
        assert!(self.list == list, "{else_says}");
        self.index as usize
    }
}
