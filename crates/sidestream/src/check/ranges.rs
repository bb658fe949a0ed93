//! A map from the bytes of a memory range to values, kept in as few cells as possible.
//!
//! Most memory is only ever accessed as a whole: that is one cell, stored inline. The first access
//! to a part splits the cells at both of its ends; [`Ranges::merge`] joins them into one cell again.
//! A few cells are kept in sorted vectors; many are kept in a tree, once inserting into a vector costs
//! more than walking the tree.

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};

/// The end of all memory: `0..END` contains every byte.
pub(super) const END: u64 = u64::MAX;

/// The largest number of cells that is kept in vectors rather than in a tree.
const FEW: usize = 64;

/// Cells over the bytes `0..END`.
#[derive(Debug, Default)]
pub(super) struct Ranges<C> {
    /// The only cell, unless the range is split.
    whole: C,
    /// Freed when the cells are joined into one: memory that the allocator hands out again is likely in the
    /// cache, while memory kept since long ago is not.
    parts: Option<Box<Parts<C>>>,
}

/// The cells of a range that is split.
#[derive(Debug)]
struct Parts<C> {
    /// The first bytes of the cells in `few`, sorted. The first is zero, and each cell ends where the next starts. They
    /// are stored separately from the cells, so that they fit into a few cache lines.
    starts: SmallVec<[u64; 8]>,
    few: Vec<C>,
    /// The cells by first byte, once there are many.
    many: BTreeMap<u64, C>,
}

impl<C: Clone + Default> Ranges<C> {
    /// Returns the cell of `start..end`, if that is the whole range and is not split, as it is nearly always.
    #[inline]
    pub(super) fn whole(&mut self, start: u64, end: u64) -> Option<&mut C> {
        let whole = start == 0 && end == END && self.parts.is_none();
        whole.then_some(&mut self.whole)
    }

    /// Calls `each` for the cells that make up `start..end`, after splitting those that reach beyond it.
    #[inline]
    pub(super) fn visit(&mut self, start: u64, end: u64, mut each: impl FnMut(&mut C)) {
        if let Some(cell) = self.whole(start, end) {
            each(cell);
        } else if let Some(parts) = &mut self.parts {
            parts.visit(start, end, each);
        } else {
            self.split().visit(start, end, each);
        }
    }

    /// Joins the cells of `start..end` into one, with the value of the first. Both ends must have been split
    /// by [`Ranges::visit`].
    #[inline]
    pub(super) fn merge(&mut self, start: u64, end: u64) {
        if let Some(parts) = &mut self.parts
            && let Some(last) = parts.merge(start, end)
        {
            self.whole = last;
            self.parts = None;
        }
    }

    /// Returns the number of cells.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let parts = self.parts.as_ref();
        parts.map_or(1, |parts| parts.few.len() + parts.many.len())
    }

    fn split(&mut self) -> &mut Parts<C> {
        // Room for the three cells of a split around a part in the middle, and for one more.
        let mut few = Vec::with_capacity(4);
        few.push(std::mem::take(&mut self.whole));
        self.parts.insert(Box::new(Parts {
            starts: smallvec![0],
            few,
            many: BTreeMap::new(),
        }))
    }
}

impl<C: Clone> Parts<C> {
    fn visit(&mut self, start: u64, end: u64, each: impl FnMut(&mut C)) {
        let from = self.cut(start);
        let to = self.cut(end);
        if self.many.is_empty() {
            self.few[from..to].iter_mut().for_each(each);
        } else {
            let parts = self.many.range_mut(start..end);
            parts.map(|(_, cell)| cell).for_each(each);
        }
    }

    /// Splits the cell that contains `at`, and returns the index of the cell that starts there.
    fn cut(&mut self, at: u64) -> usize {
        if at == 0 || at == END {
            return if at == 0 { 0 } else { self.few.len() };
        }
        if self.few.len() == FEW {
            let starts = self.starts.drain(..);
            self.many.extend(starts.zip(self.few.drain(..)));
        }
        if self.many.is_empty() {
            let next = self.starts.partition_point(|start| *start < at);
            if self.starts.get(next) != Some(&at) {
                let upper = self.few[next - 1].clone();
                self.starts.insert(next, at);
                self.few.insert(next, upper);
            }
            return next;
        }
        if let Some((&start, cell)) = self.many.range(..=at).next_back()
            && start != at
        {
            let upper = cell.clone();
            self.many.insert(at, upper);
        }
        0
    }

    /// Joins the cells of `start..end` into one, and returns it if no other is left.
    fn merge(&mut self, start: u64, end: u64) -> Option<C> {
        if self.many.is_empty() {
            let from = self.starts.partition_point(|at| *at <= start);
            let to = self.starts.partition_point(|at| *at < end);
            if from < to {
                self.starts.drain(from..to);
                self.few.drain(from..to);
            }
            return self.few.pop_if(|_| self.starts.len() == 1);
        }
        // Every cell removed was once inserted, so the removals cost no more than the splits did.
        while let Some((&at, _)) = self.many.range(start + 1..end).next() {
            self.many.remove(&at);
        }
        let only = self.many.last_entry().filter(|last| *last.key() == 0);
        only.map(|last| last.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes ranges into cells and into plain bytes, and asserts that both have equal content afterwards.
    fn check(writes: impl Iterator<Item = (u64, u64)>, bytes: usize) -> Ranges<u32> {
        let mut ranges = Ranges::<u32>::default();
        let mut plain = vec![0; bytes];
        for (value, (start, end)) in (1..).zip(writes) {
            let (first, last) = (start as usize, end as usize);
            plain[first..last].fill(value);
            let end = if last == bytes { END } else { end };
            ranges.visit(start, end, |cell| *cell = value);
            ranges.merge(start, end);
        }
        for (at, &value) in plain.iter().enumerate() {
            let (mut seen, at) = (Vec::new(), at as u64);
            ranges.visit(at, at + 1, |cell| seen.push(*cell));
            assert_eq!(seen, [value], "byte {at}");
        }
        ranges
    }

    #[test]
    fn few_and_many_parts_hold_what_was_written() {
        let mut state = 7_u64;
        let mut draw = move |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % below
        };
        for bytes in [8, 64, 400] {
            let writes = (0..600).map(|_| {
                let start = draw(bytes);
                (start, start + 1 + draw((bytes - start).min(9)))
            });
            check(writes.collect::<Vec<_>>().into_iter(), bytes as usize);
        }
    }

    #[test]
    fn a_whole_write_leaves_one_cell() {
        for parts in [3, 300] {
            let tiles = (0..parts).map(|at| (at, at + 1));
            let mut ranges = check(tiles, parts as usize);
            assert!(ranges.len() >= parts as usize);
            ranges.visit(0, END, |cell| *cell = 1);
            ranges.merge(0, END);
            assert_eq!(ranges.len(), 1);
        }
    }
}
