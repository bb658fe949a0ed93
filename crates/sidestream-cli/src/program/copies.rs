//! Copies, memsets, and words of memory by which streams wait for each other.

use sidestream::op::{Accesses, Compare, FlagId, Kind, Memory, Mode, SourceOrder};
use sidestream::order::may_block;
use sidestream_inject::calls::Word;

use super::translate::{Hears, Now, Process};

/// Rows of bytes at equal distances, in slices.
#[derive(Clone, Copy)]
pub struct Area {
    start: u64,
    width: u64,
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
        Area {
            start,
            width: bytes,
            pitch: bytes,
            rows: 1,
            slice: bytes,
            slices: 1,
        }
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
    pub fn both_2d(now: &Now<'_>, first: Word) -> (Area, Area) {
        let (width, rows) = (now.word(first + 14), now.word(first + 15));
        let side = |first| {
            let [x, y, kind, host, device, _, pitch] = now.words_at(first);
            let start = address(kind, host, device)
                .wrapping_add(x)
                .wrapping_add(y.wrapping_mul(pitch));
            Area::of_rows(start, width, pitch, rows)
        };
        (side(first + 7), side(first))
    }

    /// The destination and the source of the `CUDA_MEMCPY3D` whose first word is at this position.
    pub fn both_3d(now: &Now<'_>, first: Word) -> (Area, Area) {
        let [width, rows, slices] = now.words_at(first + 22);
        let side = |first| {
            let [x, y, z, _, kind, host, device, _, _, pitch, height] = now.words_at(first);
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

    /// The first address and the length of each row, or of the whole if there is nothing between the rows.
    fn parts(self) -> impl Iterator<Item = (u64, u64)> {
        let Area {
            start,
            width,
            pitch,
            rows,
            slice,
            slices,
        } = self;
        let is_dense =
            (rows <= 1 || width >= pitch) && (slices <= 1 || slice <= pitch.saturating_mul(rows));
        let (rows, slices, width) = if is_dense {
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

/// The address, by `CUmemorytype`: of the host (1), or of the device (2) or unified (4). An array (3) has none.
fn address(kind: u64, host: u64, device: u64) -> u64 {
    match kind as u32 {
        1 => host,
        2 | 4 => device,
        _ => 0,
    }
}

impl Process {
    /// A copy. `of_device` is whether the call says that the destination and the source are in the memory of a device.
    pub(super) fn copy(
        &mut self,
        now: &Now<'_>,
        to: Area,
        from: Area,
        of_device: (bool, bool),
        stream: Option<u64>,
        out: &mut dyn Hears,
    ) {
        let (from, to, accesses) = self.sides(now, to, from, of_device, out);
        match stream {
            Some(stream) => {
                let stream = self.stream(now, stream, out);
                self.op(now, Kind::Copy { stream, from, to }, &accesses, out);
            }
            None if now.per_thread => {
                let stream = self.stream(now, 0, out);
                self.op(now, Kind::Copy { stream, from, to }, &accesses, out);
                if may_block(Kind::CopyBlocking { from, to }) {
                    self.waits(now, Kind::SyncStream { stream }, out);
                }
            }
            None => {
                self.blocks(now, out);
                let kind = Kind::CopyBlocking { from, to };
                self.op(now, kind, &accesses, out);
                if may_block(kind) {
                    self.has_waited(now);
                }
            }
        }
    }

    /// Returns the kinds of memory of a copy's source and destination, and its accesses.
    fn sides(
        &mut self,
        now: &Now<'_>,
        to: Area,
        from: Area,
        of_device: (bool, bool),
        out: &mut dyn Hears,
    ) -> (Memory, Memory, Accesses) {
        let mut accesses = Accesses::new();
        for (area, _) in [(from, of_device.1), (to, of_device.0)]
            .into_iter()
            .filter(|(_, is_known)| *is_known)
        {
            self.found(now, area.start, area.width, out);
        }
        let from = self.touched(from, Mode::Read, &mut accesses);
        let to = self.touched(to, Mode::Write, &mut accesses);
        // The driver guesses in the same way where it is told an address only.
        (
            from.unwrap_or(Memory::Pageable),
            to.unwrap_or(Memory::Pageable),
            accesses,
        )
    }

    pub(super) fn memset(
        &mut self,
        now: &Now<'_>,
        area: Area,
        stream: Option<u64>,
        out: &mut dyn Hears,
    ) {
        let mut accesses = Accesses::new();
        self.found(now, area.start, area.width, out);
        let to = self
            .touched(area, Mode::Write, &mut accesses)
            .unwrap_or(Memory::Device);
        match stream {
            None if !now.per_thread => {
                self.blocks(now, out);
                self.op(now, Kind::MemsetBlocking { to }, &accesses, out);
            }
            stream => {
                let stream = self.stream(now, stream.unwrap_or(0), out);
                self.op(now, Kind::Memset { stream }, &accesses, out);
            }
        }
    }

    /// Appends the accesses to an area, as far as it is in known memory; returns its kind.
    pub(super) fn touched(
        &mut self,
        area: Area,
        mode: Mode,
        into: &mut Accesses,
    ) -> Option<Memory> {
        let mut memory = None;
        for (at, bytes) in area.parts() {
            let Some(range) = self.memory.at(at) else {
                continue;
            };
            range.is_in_parts |= at != range.start || at.saturating_add(bytes) < range.end;
            into.push(range.access(at, bytes, mode));
            memory = Some(range.memory);
        }
        memory
    }

    /// The copies of a batch: arrays of destinations, sources and sizes, then of attributes and of the first copies that have
    /// them.
    pub(super) fn batch(&mut self, now: &Now<'_>, first: Word, stream: u64, out: &mut dyn Hears) {
        let mut rest = now.words.get(usize::from(first)..).unwrap_or_default();
        let mut array = || {
            let (&len, after) = rest.split_first().unwrap_or((&0, &[]));
            let (array, after) = after.split_at_checked(len as usize).unwrap_or_default();
            rest = after;
            array
        };
        let [to, from, bytes, attributes, firsts] = std::array::from_fn(|_| array());
        for (copy, ((&to, &from), &bytes)) in to.iter().zip(from).zip(bytes).enumerate() {
            let with = firsts.iter().rposition(|first| *first <= copy as u64);
            let order = with.and_then(|with| attributes.get(3 * with)).copied();
            let (to, from) = (Area::of_bytes(to, bytes), Area::of_bytes(from, bytes));
            self.copy_with(now, to, from, order.unwrap_or(1), stream, out);
        }
    }

    /// A copy that says when it reads its source, by `CUmemcpySrcAccessOrder`.
    pub(super) fn copy_with(
        &mut self,
        now: &Now<'_>,
        to: Area,
        from: Area,
        order: u64,
        stream: u64,
        out: &mut dyn Hears,
    ) {
        let source = match order as u32 {
            2 => SourceOrder::DuringCall,
            3 => SourceOrder::Any,
            _ => SourceOrder::Stream,
        };
        let (from, to, accesses) = self.sides(now, to, from, (false, false), out);
        let stream = self.stream(now, stream, out);
        let kind = Kind::CopyBatch {
            stream,
            from,
            to,
            source,
        };
        self.op(now, kind, &accesses, out);
    }

    /// Waits for values in memory and writes of them, as `CUstreamBatchMemOpParams`.
    pub(super) fn values(&mut self, now: &Now<'_>, stream: u64, all: &[u64], out: &mut dyn Hears) {
        for one in all.chunks_exact(6) {
            let (address, value, flags) = (one[1], one[2], one[3]);
            match one[0] as u32 {
                1 | 4 => self.value(now, stream, (address, value), flags, false, out),
                2 | 5 => self.value(now, stream, (address, value), flags, true, out),
                _ => {}
            }
        }
    }

    /// A write of a value, or a wait for it.
    pub(super) fn value(
        &mut self,
        now: &Now<'_>,
        stream: u64,
        (address, value): (u64, u64),
        flags: u64,
        writes: bool,
        out: &mut dyn Hears,
    ) {
        let stream = self.stream(now, stream, out);
        // Flag 0 is what threads hand over.
        let fresh = FlagId(self.words.len() as u32 + 1);
        let word = *self.words.entry(address).or_insert(fresh);
        let value = value as u32;
        let kind = if writes {
            Kind::WriteValue {
                stream,
                word,
                value,
                fenced: flags & 1 == 0,
            }
        } else {
            let compare = match flags & 3 {
                0 => Compare::AtLeast,
                1 => Compare::Equal,
                2 => Compare::And,
                _ => Compare::Nor,
            };
            Kind::WaitValue {
                stream,
                word,
                value,
                compare,
            }
        };
        self.op(now, kind, &[], out);
    }
}
