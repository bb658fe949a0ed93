//! Tensor maps, and the bytes of the boxes that kernels copy by them.

use std::collections::{HashMap, HashSet};

use super::touched::{EARLY, MAY_WRITE, Range};

/// The tensor maps of a process, by the hash of their words.
#[derive(Default)]
pub struct Maps(HashMap<u64, Map>);

struct Map {
    address: u64,
    /// The bytes of an element.
    bytes: u64,
    /// By dimension, the innermost first: the elements, and the bytes from one to the next (of the innermost, none).
    dimensions: Vec<[u64; 2]>,
    /// By dimension: the box and the step, in elements. Empty if the map is not tiled.
    tile: Vec<[u64; 2]>,
}

/// The largest number of maps that are kept. Each is told once; those beyond are not known.
const MAPS: usize = 1 << 18;
/// The largest number of ranges of a call, and of rows of a launch.
const RANGES: usize = 4 << 20;

impl Maps {
    /// Takes a map, by the words of [`Tag::Map`](sidestream_inject::wire::Tag::Map).
    pub fn add(&mut self, record: &[u64]) {
        if let Some((&hash, words)) = record.split_first()
            && let Some(map) = words.first_chunk().and_then(Map::of)
            && self.0.len() < MAPS
        {
            self.0.insert(hash, map);
        }
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
            let Some(map) = self.0.get(&hash) else {
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

/// Appends all bytes of the maps among a launch's parameters that none of its boxes names: it may store by them. Returns whether
/// there are any.
pub fn stores(maps: &[u64], boxes: &[u64], into: &mut Vec<Range>) -> bool {
    let ((maps, _), (boxes, _), from) = (maps.as_chunks(), boxes.as_chunks::<5>(), into.len());
    let loads: HashSet<u64> = boxes.iter().map(|each| each[0]).collect();
    let others = maps.iter().filter(|map| !loads.contains(&Map::hash(map)));
    into.extend(others.filter_map(Map::of).map(|map| map.all(MAY_WRITE)));
    into.len() > from
}

impl Map {
    /// The hash by which the boxes of a map name it.
    fn hash(words: &[u64; 16]) -> u64 {
        words.iter().fold(0, |hash, word| {
            let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^ hash >> 29
        })
    }

    /// Reads a map as devices do (measured under driver 580 on Hopper: NVIDIA documents no layout). The probe tells of maps
    /// only where the driver encodes as it is read here. Returns `None` for packed elements.
    fn of(words: &[u64; 16]) -> Option<Map> {
        // By `CUtensorMapDataType`, up to bfloat16.
        const BYTES: [u64; 11] = [1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2];
        // Some bits of a half of a word, as the layout counts.
        let bits = |half: usize, first: usize, count: usize| {
            let half = words[half / 2] >> (32 * (half % 2)) & 0xffff_ffff;
            half >> first & ((1 << count) - 1)
        };
        let rank = bits(2, 4, 3) as usize + 1;
        let dimension = |at: usize| {
            let stride = at.checked_sub(1).map_or(0, |outer| {
                (bits(7, 4 * outer, 4) << 32 | bits(3 + outer, 0, 32)) << 4
            });
            [bits(8 + at, 0, 32) + 1, stride]
        };
        let tile = |at: usize| {
            let side = match at.checked_sub(1) {
                None => bits(13, 24, 8),
                Some(outer) => bits(14, 8 * outer, 8),
            };
            [side + 1, bits(13, 3 * at, 3) + 1]
        };
        // Of interleaved layouts and im2col, boxes are not followed.
        let is_tiled = bits(2, 0, 1) == 0 && bits(2, 11, 2) == 0;
        Some(Map {
            address: words[0],
            bytes: *BYTES.get(bits(2, 7, 4) as usize)?,
            dimensions: (rank <= 5).then(|| (0..rank).map(dimension).collect())?,
            tile: (0..rank).filter(|_| is_tiled).map(tile).collect(),
        })
    }

    /// All bytes of the tensor.
    fn all(&self, class: u8) -> Range {
        let bytes = self
            .dimensions
            .iter()
            .map(|[elements, stride]| elements.saturating_sub(1).saturating_mul(*stride));
        let row = self.dimensions[0][0].saturating_mul(self.bytes);
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
            let step = *step as i64;
            let last = first.saturating_add_unsigned(*side);
            let end = if dimension == 0 { end } else { last };
            let end = end.min(elements as i64);
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
                let start = row.wrapping_add(element * self.bytes);
                let end = row.wrapping_add((element + piece) * self.bytes);
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
