//! The bytes that copies read and write, by the words of a call.

use crate::calls::{ApiCall, Does, Word};

/// A copy that a call submits.
#[derive(Clone, Copy)]
pub struct Copied {
    /// The destination.
    pub to: Area,
    /// The source.
    pub from: Area,
    /// By `CUmemcpySrcAccessOrder`, when a copy of a batch reads its source.
    pub order: Option<u32>,
}

impl ApiCall {
    /// Returns the copies that the call submits.
    pub fn copies(&self, words: &[u64]) -> Vec<Copied> {
        let one = |(to, from), order| vec![Copied { to, from, order }];
        let plain = |to, from, bytes| {
            let [to, from, bytes] = [to, from, bytes].map(|at| words_at::<1>(words, at)[0]);
            (Area::of_bytes(to, bytes), Area::of_bytes(from, bytes))
        };
        match self.what {
            Does::Copy(to, from, bytes, _) => one(plain(to, from, bytes), None),
            Does::Copy2D(first, _) => one(Area::both_2d(words, first), None),
            Does::Copy3D(first, _) => one(Area::both_3d(words, first), None),
            Does::CopyWith(to, from, bytes, order, _) => {
                let [order] = words_at(words, order);
                one(plain(to, from, bytes), Some(order as u32))
            }
            Does::CopyBatch(first, _) => batch(words.get(usize::from(first)..).unwrap_or_default()),
            _ => Vec::new(),
        }
    }

    /// The position of the stream of a copy; `None` if the caller waits for it, or it is none.
    pub fn copies_in(&self) -> Option<Word> {
        match self.what {
            Does::Copy(.., stream) | Does::Copy2D(_, stream) | Does::Copy3D(_, stream) => stream,
            Does::CopyWith(.., stream) | Does::CopyBatch(_, stream) => Some(stream),
            _ => None,
        }
    }
}

/// The copies of a batch: arrays of destinations, sources and sizes, then of attributes and of the first copies that have
/// them.
fn batch(mut rest: &[u64]) -> Vec<Copied> {
    let [to, from, bytes, attributes, firsts] = std::array::from_fn(|_| array(&mut rest));
    let all = to.iter().zip(from).zip(bytes).enumerate();
    let copies = all.map(|(copy, ((&to, &from), &bytes))| {
        let with = firsts.iter().rposition(|first| *first <= copy as u64);
        let order = with.and_then(|with| attributes.get(3 * with));
        Copied {
            to: Area::of_bytes(to, bytes),
            from: Area::of_bytes(from, bytes),
            order: Some(order.map_or(1, |order| *order as u32)),
        }
    });
    copies.collect()
}

/// Returns the array at the beginning of some words, after its length, and leaves the rest.
fn array<'a>(rest: &mut &'a [u64]) -> &'a [u64] {
    let (&len, after) = rest.split_first().unwrap_or((&0, &[]));
    let (array, after) = after.split_at_checked(len as usize).unwrap_or_default();
    *rest = after;
    array
}

/// Rows of bytes at equal distances, in slices.
#[derive(Clone, Copy)]
pub struct Area {
    /// The first address.
    pub start: u64,
    /// The bytes of a row.
    pub width: u64,
    pitch: u64,
    rows: u64,
    slice: u64,
    slices: u64,
}

/// The largest number of rows that are told one by one. Of more, only these are.
const MAX_ROWS: usize = 256;

impl Area {
    /// Bytes in a row.
    pub fn of_bytes(start: u64, bytes: u64) -> Area {
        Area::of_rows(start, bytes, bytes, 1)
    }

    /// Rows of bytes.
    pub fn of_rows(start: u64, width: u64, pitch: u64, rows: u64) -> Area {
        Area {
            start,
            width,
            pitch,
            rows,
            slice: 0,
            slices: 1,
        }
    }

    /// The destination and the source of the `CUDA_MEMCPY2D` whose first word is at this position.
    pub fn both_2d(words: &[u64], first: Word) -> (Area, Area) {
        let [width, rows] = words_at(words, first + 14);
        let side = |first| {
            let [x, y, kind, host, device, _, pitch] = words_at(words, first);
            let start = address(kind, host, device)
                .wrapping_add(x)
                .wrapping_add(y.wrapping_mul(pitch));
            Area::of_rows(start, width, pitch, rows)
        };
        (side(first + 7), side(first))
    }

    /// The destination and the source of the `CUDA_MEMCPY3D` whose first word is at this position.
    pub fn both_3d(words: &[u64], first: Word) -> (Area, Area) {
        let [width, rows, slices] = words_at(words, first + 22);
        let side = |first| {
            let [x, y, z, _, kind, host, device, _, _, pitch, height] = words_at(words, first);
            let slice = pitch.wrapping_mul(height);
            let start = address(kind, host, device).wrapping_add(x);
            let start = start
                .wrapping_add(y.wrapping_mul(pitch))
                .wrapping_add(z.wrapping_mul(slice));
            Area {
                start,
                width,
                pitch,
                rows,
                slice,
                slices,
            }
        };
        (side(first + 11), side(first))
    }

    /// The first address, and the address after the last byte.
    pub fn bounds(self) -> (u64, u64) {
        let rows = self.pitch.saturating_mul(self.rows.saturating_sub(1));
        let slices = self.slice.saturating_mul(self.slices.saturating_sub(1));
        let bytes = rows.saturating_add(slices).saturating_add(self.width);
        let is_empty = self.rows == 0 || self.slices == 0;
        let bytes = if is_empty { 0 } else { bytes };
        (self.start, self.start.saturating_add(bytes))
    }

    /// Whether nothing is between the rows.
    pub fn is_dense(self) -> bool {
        let rows = self.rows <= 1 || self.width >= self.pitch;
        rows && (self.slices <= 1 || self.slice <= self.pitch.saturating_mul(self.rows))
    }

    /// The first address and the length of each row, or of the whole if there is nothing between the rows.
    pub fn parts(self) -> impl Iterator<Item = (u64, u64)> {
        let Area {
            start,
            width,
            pitch,
            rows,
            slice,
            slices,
        } = self;
        let (rows, slices, width) = if self.is_dense() {
            (1, 1, width.saturating_mul(rows).saturating_mul(slices))
        } else {
            (rows, slices, width)
        };
        // No more than are told, also where there are no rows.
        let slices = slices.min(MAX_ROWS as u64);
        let places = (0..slices).flat_map(move |z| (0..rows).map(move |y| (y, z)));
        let at = move |(y, z): (u64, u64)| {
            start
                .wrapping_add(y.wrapping_mul(pitch))
                .wrapping_add(z.wrapping_mul(slice))
        };
        places.take(MAX_ROWS).map(move |place| (at(place), width))
    }
}

/// The words from a position on; zeros where there are none.
pub fn words_at<const N: usize>(words: &[u64], first: Word) -> [u64; N] {
    std::array::from_fn(|at| words.get(usize::from(first) + at).copied().unwrap_or(0))
}

/// The address, by `CUmemorytype`: of the host (1), or of the device (2) or unified (4). An array (3) has none.
fn address(kind: u64, host: u64, device: u64) -> u64 {
    match kind as u32 {
        1 => host,
        2 | 4 => device,
        _ => 0,
    }
}
