//! A table indexed by dense ids that any thread may read while another extends it.

use std::sync::OnceLock;

/// Entries begin as `T::default()` and never move. An entry is found with one load if its id is among the first, as
/// in most programs, otherwise with two; there is no lock.
pub(super) struct Table<T> {
    first: Box<[T; FIRST]>,
    /// Chunk `k` has `FIRST << k` entries; chunk 0 is `first`.
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

const FIRST: usize = 64;
/// Enough for every 32-bit id.
const CHUNKS: usize = 27;

impl<T: Default> Table<T> {
    /// Returns the entry of an id.
    #[inline(always)]
    pub(super) fn at(&self, id: u32) -> &T {
        match self.first.get(id as usize) {
            Some(entry) => entry,
            None => self.further(id),
        }
    }

    #[inline(never)]
    fn further(&self, id: u32) -> &T {
        let (chunk, within) = place(id as usize);
        match self.chunks[chunk].get() {
            Some(entries) => &entries[within],
            None => self.longer(chunk, within),
        }
    }

    #[cold]
    fn longer(&self, chunk: usize, within: usize) -> &T {
        let entries = self.chunks[chunk].get_or_init(|| {
            let entries = std::iter::repeat_with(T::default);
            entries.take(FIRST << chunk).collect()
        });
        &entries[within]
    }

    /// Returns all existing entries, including those never used.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        let further = self.chunks.iter().filter_map(OnceLock::get).flatten();
        self.first.iter().chain(further)
    }
}

impl<T: Default> Default for Table<T> {
    fn default() -> Table<T> {
        Table {
            first: Box::new(std::array::from_fn(|_| T::default())),
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }
}

fn place(id: usize) -> (usize, usize) {
    let chunk = (id / FIRST + 1).ilog2() as usize;
    (chunk, id - FIRST * ((1 << chunk) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn every_id_has_an_entry_of_its_own() {
        let table = Table::<AtomicU32>::default();
        for id in (0..1000).chain([65_535, 65_536, 1 << 20]) {
            table.at(id).store(id, Ordering::Relaxed);
        }
        for id in (0..1000).chain([65_535, 65_536, 1 << 20]) {
            assert_eq!(table.at(id).load(Ordering::Relaxed), id);
        }
    }

    #[test]
    fn the_last_id_has_a_place() {
        let (chunk, within) = place(u32::MAX as usize);
        assert!(chunk < CHUNKS && within < FIRST << chunk);
    }
}
