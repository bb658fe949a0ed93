//! Tensor maps, and the bytes of the boxes that kernels copy by them.

use std::collections::HashMap;

use sidestream_inject::areas::{array, words_at};
use sidestream_inject::calls::Word;

use super::touched::{EARLY, MAY_WRITE, Range};

/// The tensor maps of a process, by the hash of their words. Those of long ago are forgotten, unless they are used.
#[derive(Default)]
pub struct Maps {
    recent: HashMap<u64, Map>,
    older: HashMap<u64, Map>,
    /// By address in the host's memory: the map that was made there.
    at: HashMap<u64, u64>,
}

#[derive(Clone)]
struct Map {
    address: u64,
    /// The bits of an element.
    bits: u64,
    /// By dimension, the innermost first: the elements, and the bytes from one to the next (of the innermost, none).
    dimensions: Vec<[u64; 2]>,
    /// By dimension: the box and the step, in elements. Empty if the map is not tiled.
    tile: Vec<[u64; 2]>,
}

/// The largest number of maps that are kept, twice.
const MAPS: usize = 1 << 16;
/// The largest number of ranges of a call, and of rows of a launch.
const RANGES: usize = 4 << 20;

impl Maps {
    /// Takes a map that was encoded, by the words of the call and where the map begins there.
    pub fn encoded(&mut self, words: &[u64], first: Word) {
        const BITS: [u64; 16] = [8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6];
        let [host, element, address] = words_at(words, 0);
        let mut rest = words.get(usize::from(first) + 16..).unwrap_or_default();
        let [elements, strides, sides, steps] = std::array::from_fn(|_| array(&mut rest));
        let Some(&bits) = BITS.get(element as u32 as usize) else {
            return;
        };
        if !(1..=5).contains(&elements.len()) || strides.len() + 1 != elements.len() {
            return;
        }
        let pairs = |x: &[u64], y: &[u64]| x.iter().zip(y).map(|(x, y)| [*x, *y]).collect();
        let mut map = Map {
            address,
            bits,
            dimensions: pairs(elements, &[&[0], strides].concat()),
            tile: pairs(sides, steps),
        };
        let is_interleaved = words_at::<1>(words, 7)[0] as u32 != 0;
        if map.tile.len() != elements.len() || is_interleaved {
            map.tile.clear();
        }
        self.add(host, hash(words_at(words, first)), map);
    }

    /// Takes a map that got another address.
    pub fn moved(&mut self, words: &[u64], first: Word) {
        let [host, address] = words_at(words, 0);
        if let Some(map) = self.at.get(&host).copied().and_then(|old| self.find(old)) {
            let map = Map {
                address,
                ..map.clone()
            };
            self.add(host, hash(words_at(words, first)), map);
        }
    }

    fn add(&mut self, host: u64, hash: u64, map: Map) {
        if self.recent.len() >= MAPS {
            self.older = std::mem::take(&mut self.recent);
        }
        if self.at.len() >= MAPS {
            self.at.clear();
        }
        self.recent.insert(hash, map);
        self.at.insert(host, hash);
    }

    fn find(&mut self, hash: u64) -> Option<&Map> {
        if let Some(map) = self.older.remove(&hash) {
            self.recent.entry(hash).or_insert(map);
        }
        self.recent.get(&hash)
    }

    /// Appends the bytes of boxes, by the words of [`Tag::Boxes`](sidestream_inject::wire::Tag::Boxes). Returns whether all are
    /// known.
    pub fn boxes(&mut self, words: &[u64], into: &mut Vec<Range>) -> bool {
        let (words, _) = words.as_chunks();
        let each = words.iter().map(|&[hash, what, ab, cd, e]| {
            let coordinates = [e, cd >> 32, cd, ab >> 32, ab].map(|x| i64::from(x as i32));
            (hash, what as u32, coordinates)
        });
        // The innermost dimension comes last: boxes side by side become wide ones.
        let mut boxes: Vec<_> = each.collect();
        boxes.sort_unstable();
        boxes.dedup();
        let (mut boxes, mut is_known, mut rows) = (boxes.into_iter().peekable(), true, 0);
        while let Some((hash, what, at)) = boxes.next() {
            let Some(map) = self.find(hash) else {
                is_known = false;
                continue;
            };
            let (class, mode, rank) = (what as u8, what >> 8 & 0xff, what >> 16 & 0xff);
            let early = if what >> 24 == 0 { 0 } else { EARLY };
            let is_tiled = mode == 0 && rank as usize == map.dimensions.len();
            let Some(&[side, step]) = map.tile.first().filter(|_| is_tiled) else {
                let class = if class == 0 { 0 } else { MAY_WRITE };
                push(into, map.all(class | early));
                continue;
            };
            let mut end = at[4].saturating_add_unsigned(side);
            let is_beside = |next: &(u64, u32, [i64; 5]), end| {
                let is_same = (next.0, next.1, &next.2[..4]) == (hash, what, &at[..4]);
                is_same && step == 1 && next.2[4] <= end
            };
            while let Some(next) = boxes.next_if(|next| is_beside(next, end)) {
                end = next.2[4].saturating_add_unsigned(side);
            }
            is_known &= map.tile(class & 3 | early, at, end, &mut rows, into);
        }
        is_known
    }
}

impl Map {
    /// All bytes of the tensor.
    fn all(&self, class: u8) -> Range {
        let bytes = self
            .dimensions
            .iter()
            .map(|[elements, stride]| elements.saturating_sub(1).saturating_mul(*stride));
        let row = self.dimensions[0][0].saturating_mul(self.bits).div_ceil(8);
        let bytes = bytes.fold(row, u64::saturating_add);
        (class, self.address, self.address.saturating_add(bytes))
    }

    /// Appends the bytes of a box, which ends before the element `end` of the innermost dimension, as far as it is inside
    /// the tensor. Returns whether there was room for all.
    fn tile(
        &self,
        class: u8,
        at: [i64; 5],
        end: i64,
        rows: &mut usize,
        into: &mut Vec<Range>,
    ) -> bool {
        // By dimension: the first element inside, their number, and the step.
        let inside = |(dimension, [side, step]): (usize, &[u64; 2])| {
            let (first, elements) = (at[4 - dimension], self.dimensions[dimension][0]);
            let step = (*step).clamp(1, 1 << 32) as i64;
            let last = first.saturating_add_unsigned(*side);
            let end = if dimension == 0 { end } else { last };
            let end = end.min(elements.min(1 << 40) as i64);
            let skipped = first.min(0).unsigned_abs().next_multiple_of(step as u64);
            let first = first.saturating_add_unsigned(skipped);
            let count = (end.saturating_sub(first).max(0) as u64).div_ceil(step as u64);
            [first as u64, count, step as u64]
        };
        let inside: Vec<_> = self.tile.iter().enumerate().map(inside).collect();
        let ([first, count, step], outer) = (inside[0], &inside[1..]);
        // Elements next to each other are one piece of the row.
        let (pieces, piece) = if step == 1 { (1, count) } else { (count, 1) };
        if count == 0 || outer.iter().any(|[_, count, _]| *count == 0) {
            return true;
        }
        let mut places = vec![0; outer.len()];
        loop {
            let mut row = self.address;
            for ((place, [first, _, step]), [_, stride]) in
                places.iter().zip(outer).zip(&self.dimensions[1..])
            {
                row = row.wrapping_add((first + place * step).wrapping_mul(*stride));
            }
            for element in (0..pieces).map(|piece| first + piece * step) {
                *rows += 1;
                if *rows > RANGES || into.len() >= RANGES {
                    return false;
                }
                let start = row.wrapping_add(element * self.bits / 8);
                let end = row.wrapping_add(((element + piece) * self.bits).div_ceil(8));
                push(into, (class, start, end));
            }
            let Some(next) = places
                .iter()
                .zip(outer)
                .position(|(at, [_, count, _])| at + 1 < *count)
            else {
                return true;
            };
            places[..next].fill(0);
            places[next] += 1;
        }
    }
}

/// Appends a range, or makes the last one longer.
fn push(into: &mut Vec<Range>, range: Range) {
    match into.last_mut() {
        Some(last) if last.0 == range.0 && (last.1..=last.2).contains(&range.1) => {
            last.2 = last.2.max(range.2);
        }
        _ => into.push(range),
    }
}

/// The hash by which a kernel's copies name a map.
fn hash(words: [u64; 16]) -> u64 {
    words.into_iter().fold(0, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 29
    })
}
