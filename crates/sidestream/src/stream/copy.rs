//! Memory of a stream: allocating, copying, filling.

use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Stream;
use crate::backend::{self, Payload};
use crate::buffer::{DeviceBuf, Held, Pending, Pinned, Pod, Refused, View, ViewMut};
use crate::error::{Error, Result};
use crate::op::{Kind, Memory, Mode};
use crate::tracker::{Block, Call, Mark, Place, Source, Touch, belong, is_of};

/// Rows of a table that lies row by row: how long they are, and how many values lie from the start
/// of one to the start of the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// Values in each row.
    pub len: usize,
    /// How many rows.
    pub count: usize,
    /// Values from the start of a row to the start of the next; at least `len`.
    pub pitch: usize,
}

/// Up to so many rows of a copy are tracked one by one; of more, all that lies between the first
/// byte and the last.
const ROWS_TRACKED: usize = 64;

type Touches<'a> = SmallVec<[Touch<'a>; 4]>;

impl Stream {
    /// Device memory for `len` values; their content is unspecified.
    ///
    /// # Ordering
    /// Never waits for the stream. The memory may have had another owner, whose uses may not be
    /// over: the first use here waits for them.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the sizes, after all that was freed has been waited for.
    #[track_caller]
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<DeviceBuf<T>> {
        let block = self.block(size_of_all::<T>("alloc", len)?, Location::caller())?;
        Ok(DeviceBuf::new(block, len))
    }

    /// Device memory for `len` values, all zero.
    ///
    /// # Ordering
    /// As [`Stream::alloc`]; the zeros are written in stream order.
    ///
    /// # Errors
    /// As [`Stream::alloc`] and [`Stream::memset`].
    #[track_caller]
    pub fn alloc_zeroed<T: Pod>(&self, len: usize) -> Result<DeviceBuf<T>> {
        let at = Location::caller();
        let block = self.block(size_of_all::<T>("alloc_zeroed", len)?, at)?;
        let mut buffer = DeviceBuf::new(block, len);
        let view = buffer.view_mut();
        let count = view.len() as u64 * size_of::<T>() as u64;
        self.fill(view.address(), view.touch(), 0, 1, count, at)?;
        Ok(buffer)
    }

    /// Device memory with a copy of these values, by way of pinned memory of our own.
    ///
    /// # Ordering
    /// As [`Stream::memcpy_h2d`]: holds up the host for the copy into pinned memory, not for the device.
    ///
    /// # Errors
    /// As [`Stream::alloc`] and [`Stream::memcpy_h2d`].
    #[track_caller]
    pub fn alloc_from<T: Pod>(&self, values: &[T]) -> Result<DeviceBuf<T>> {
        let mut buffer = self.alloc(values.len())?;
        self.memcpy_h2d(values, buffer.view_mut())?;
        Ok(buffer)
    }

    /// Copies pinned host memory to the device. The memory comes back from the [`Pending`].
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream and all uses of the destination. Does not hold
    /// up the host.
    ///
    /// # Errors
    /// The value comes back with the error: if the lengths differ, or what the driver answers.
    #[track_caller]
    pub fn upload<T: Pod>(
        &self,
        from: Pinned<T>,
        to: ViewMut<'_, T>,
    ) -> Result<Pending<Pinned<T>>, Refused<Pinned<T>>> {
        let at = Location::caller();
        let rows = one_row(from.len());
        let copied = same_len("upload", from.len(), to.len())
            .and_then(|()| self.upload_to(&from, rows, &to, one_row(to.len()), at));
        self.pending(copied, from)
    }

    /// Copies many pieces of pinned host memory to the device, one behind the other. The pieces come
    /// back from the [`Pending`].
    ///
    /// One kernel reads all of them, so that each costs next to nothing: copies of their own would take
    /// the device almost 3 µs each, and the host as long (H200). For some large pieces [`Stream::upload`] is as
    /// good.
    ///
    /// ```
    /// use sidestream::device::Device;
    ///
    /// let device = Device::open("sim:h200")?;
    /// let stream = device.stream("upload")?;
    /// let mut pieces = vec![device.pinned::<u32>(3)?, device.pinned(2)?];
    /// pieces[0].fill(7);
    /// pieces[1].fill(8);
    /// let mut all = stream.alloc(5)?;
    /// let pieces = stream.upload_pieces(pieces, all.view_mut())?.synchronize()?;
    /// let mut host = [0; 5];
    /// stream.memcpy_d2h(all.view(), &mut host)?;
    /// assert_eq!((host, pieces.len()), ([7, 7, 7, 8, 8], 2));
    /// # Ok::<(), sidestream::error::Error>(())
    /// ```
    ///
    /// # Ordering
    /// As [`Stream::upload`].
    ///
    /// # Errors
    /// As [`Stream::upload`]; if the pieces together are not as long as the destination.
    #[track_caller]
    #[expect(clippy::type_complexity, reason = "what was given, both ways")]
    pub fn upload_pieces<T: Pod>(
        &self,
        pieces: Vec<Pinned<T>>,
        to: ViewMut<'_, T>,
    ) -> Result<Pending<Vec<Pinned<T>>>, Refused<Vec<Pinned<T>>>> {
        let mut pieces = pieces;
        let issued = self.gather(&mut pieces, &to, Location::caller());
        self.pending(issued, pieces)
    }

    /// Copies rows of pinned host memory into rows on the device.
    ///
    /// # Ordering
    /// As [`Stream::upload`].
    ///
    /// # Errors
    /// As [`Stream::upload`]; if a side has no room for its rows, or they do not match.
    #[track_caller]
    pub fn upload_rows<T: Pod>(
        &self,
        from: Pinned<T>,
        from_rows: Rows,
        to: ViewMut<'_, T>,
        to_rows: Rows,
    ) -> Result<Pending<Pinned<T>>, Refused<Pinned<T>>> {
        let at = Location::caller();
        let copied = same_rows("upload_rows", from_rows, from.len(), to_rows, to.len())
            .and_then(|()| self.upload_to(&from, from_rows, &to, to_rows, at));
        self.pending(copied, from)
    }

    /// Copies device memory into pinned host memory, which comes back from the [`Pending`].
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream and the last writes of the source. Does not
    /// hold up the host.
    ///
    /// # Errors
    /// As [`Stream::upload`].
    #[track_caller]
    pub fn download<T: Pod>(
        &self,
        from: View<'_, T>,
        to: Pinned<T>,
    ) -> Result<Pending<Pinned<T>>, Refused<Pinned<T>>> {
        let at = Location::caller();
        let rows = one_row(from.len());
        let copied = same_len("download", from.len(), to.len())
            .and_then(|()| self.download_from(from, rows, &to, one_row(to.len()), at));
        self.pending(copied, to)
    }

    /// Copies rows on the device into rows of pinned host memory.
    ///
    /// # Ordering
    /// As [`Stream::download`].
    ///
    /// # Errors
    /// As [`Stream::upload_rows`].
    #[track_caller]
    pub fn download_rows<T: Pod>(
        &self,
        from: View<'_, T>,
        from_rows: Rows,
        to: Pinned<T>,
        to_rows: Rows,
    ) -> Result<Pending<Pinned<T>>, Refused<Pinned<T>>> {
        let at = Location::caller();
        let copied = same_rows("download_rows", from_rows, from.len(), to_rows, to.len())
            .and_then(|()| self.download_from(from, from_rows, &to, to_rows, at));
        self.pending(copied, to)
    }

    /// Copies a slice of ordinary memory to the device: first into pinned memory of our own, on the
    /// calling thread, and from there in stream order. The slice is free when the call returns.
    ///
    /// # Ordering
    /// Holds up the host for the copy into pinned memory, not for the device.
    ///
    /// # Errors
    /// If the lengths differ, the pinned memory runs out, or what the driver answers.
    #[track_caller]
    pub fn memcpy_h2d<T: Pod>(&self, from: &[T], to: ViewMut<'_, T>) -> Result<()> {
        let at = Location::caller();
        same_len("memcpy_h2d", from.len(), to.len())?;
        let mut staged = self.device().pinned_at::<T>(from.len(), at)?;
        staged.copy_from_slice(from);
        let rows = one_row(from.len());
        let copied = self.upload_to(&staged, rows, &to, rows, at);
        // The memory goes back to its pool with the copy as its last use.
        let pending = self.pending(copied, staged)?;
        drop(pending);
        Ok(())
    }

    /// Copies device memory into a slice of ordinary memory, and waits for it.
    ///
    /// # Ordering
    /// Holds up the host until the values are there.
    ///
    /// # Errors
    /// As [`Stream::memcpy_h2d`].
    #[track_caller]
    pub fn memcpy_d2h<T: Pod>(&self, from: View<'_, T>, to: &mut [T]) -> Result<()> {
        same_len("memcpy_d2h", from.len(), to.len())?;
        to.copy_from_slice(&self.awaited(from)?);
        Ok(())
    }

    /// Copies device memory into a vector, and waits for it.
    ///
    /// # Ordering
    /// Holds up the host until the values are there.
    ///
    /// # Errors
    /// If pinned memory runs out, or what the driver answers.
    #[track_caller]
    pub fn to_vec<T: Pod>(&self, from: View<'_, T>) -> Result<Vec<T>> {
        Ok(self.awaited(from)?.to_vec())
    }

    /// The values, in pinned memory of our own, once they are there.
    #[track_caller]
    fn awaited<T: Pod>(&self, from: View<'_, T>) -> Result<Pinned<T>> {
        let at = Location::caller();
        let staged = self.device().pinned_at::<T>(from.len(), at)?;
        let rows = one_row(from.len());
        let copied = self.download_from(from, rows, &staged, rows, at);
        self.pending(copied, staged)?.synchronize()
    }

    /// Copies device memory, also from one device to another.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream, the last writes of the source and all uses of
    /// the destination, on whichever streams. Does not hold up the host.
    ///
    /// # Errors
    /// If the lengths differ, or what the driver answers.
    #[track_caller]
    pub fn memcpy_d2d<T: Pod>(&self, from: View<'_, T>, to: ViewMut<'_, T>) -> Result<()> {
        let at = Location::caller();
        same_len("memcpy_d2d", from.len(), to.len())?;
        self.copy_rows(from, one_row(from.len()), to, one_row(from.len()), at)
    }

    /// Copies rows on the device into other rows there.
    ///
    /// # Ordering
    /// As [`Stream::memcpy_d2d`].
    ///
    /// # Errors
    /// As [`Stream::upload_rows`].
    #[track_caller]
    pub fn memcpy_d2d_rows<T: Pod>(
        &self,
        from: View<'_, T>,
        from_rows: Rows,
        to: ViewMut<'_, T>,
        to_rows: Rows,
    ) -> Result<()> {
        let at = Location::caller();
        same_rows("memcpy_d2d_rows", from_rows, from.len(), to_rows, to.len())?;
        self.copy_rows(from, from_rows, to, to_rows, at)
    }

    /// Sets every byte.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream and all uses of the memory. Does not hold up the
    /// host.
    ///
    /// # Errors
    /// What the driver answers.
    #[track_caller]
    pub fn memset<T: Pod>(&self, to: ViewMut<'_, T>, byte: u8) -> Result<()> {
        let count = to.len() as u64 * size_of::<T>() as u64;
        let at = Location::caller();
        self.fill(to.address(), to.touch(), u32::from(byte), 1, count, at)
    }

    /// Sets every value. Devices fill with one, two or four bytes: larger values have to consist of the same four
    /// bytes again and again, as zero and -1 do.
    ///
    /// # Ordering
    /// As [`Stream::memset`].
    ///
    /// # Errors
    /// As [`Stream::memset`]; [`Error::Invalid`] for values of another size.
    #[track_caller]
    pub fn fill_with<T: Pod>(&self, to: ViewMut<'_, T>, value: T) -> Result<()> {
        let at = Location::caller();
        let Pattern { word, width, times } = pattern(&value)?;
        let count = to.len() as u64 * times;
        self.fill(to.address(), to.touch(), word, width, count, at)
    }
}

// ------------------------------------------------------------------ what they have in common

impl Stream {
    fn block(&self, size_bytes: u64, at: Place) -> Result<Box<Block>> {
        let memories = &self.runtime.device(self.core.device).memories;
        memories.take(&self.runtime, size_bytes, Some(self.core.id), at)
    }

    #[track_caller]
    fn upload_to<T: Pod>(
        &self,
        from: &Pinned<T>,
        from_rows: Rows,
        to: &ViewMut<'_, T>,
        to_rows: Rows,
        at: Place,
    ) -> Result<Option<Mark>> {
        let mut touches = Touches::new();
        let size = size_of::<T>();
        push_rows(&mut touches, from.block(), 0, from_rows, size, Mode::Read);
        let start = to.touch().start;
        push_rows(&mut touches, to.block(), start, to_rows, size, Mode::Write);
        let kind = Kind::Copy {
            stream: self.core.id,
            from: Memory::Pinned,
            to: Memory::Device,
        };
        let copy = copy::<T>(from.block().address, from_rows, to.address(), to_rows);
        self.copy("upload", kind, copy, &touches, at)
    }

    #[track_caller]
    fn gather<T: Pod>(
        &self,
        pieces: &mut [Pinned<T>],
        to: &ViewMut<'_, T>,
        at: Place,
    ) -> Result<Option<Mark>> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        same_len("upload_pieces", len, to.len())?;
        let touches = [to.touch()];
        belong(self, "upload_pieces", &touches)?;
        let mut copies = Vec::with_capacity(pieces.len());
        let mut sources = Vec::with_capacity(pieces.len());
        let mut place = to.address();
        for piece in pieces {
            let rows = one_row(piece.len());
            let end = (piece.len() * size_of::<T>()) as u64;
            let block = piece.block_mut();
            is_of(self, "upload_pieces", block)?;
            copies.push(copy::<T>(block.address, rows, place, rows));
            sources.push(Source { block, end });
            place = place.offset(end);
        }
        self.issue(Call {
            kind: Kind::kernel(self.core.id),
            payload: Payload::Gather(&copies),
            touches: &touches,
            sources: &mut sources,
            behind: None,
            is_awaited: true,
            at,
        })
    }

    #[track_caller]
    fn download_from<T: Pod>(
        &self,
        from: View<'_, T>,
        from_rows: Rows,
        to: &Pinned<T>,
        to_rows: Rows,
        at: Place,
    ) -> Result<Option<Mark>> {
        let mut touches = Touches::new();
        let size = size_of::<T>();
        let start = from.touch().start;
        push_rows(
            &mut touches,
            from.block(),
            start,
            from_rows,
            size,
            Mode::Read,
        );
        push_rows(&mut touches, to.block(), 0, to_rows, size, Mode::Write);
        let kind = Kind::Copy {
            stream: self.core.id,
            from: Memory::Device,
            to: Memory::Pinned,
        };
        let copy = copy::<T>(from.address(), from_rows, to.block().address, to_rows);
        self.copy("download", kind, copy, &touches, at)
    }

    #[track_caller]
    fn copy_rows<T: Pod>(
        &self,
        from: View<'_, T>,
        from_rows: Rows,
        to: ViewMut<'_, T>,
        to_rows: Rows,
        at: Place,
    ) -> Result<()> {
        let mut touches = Touches::new();
        let size = size_of::<T>();
        let (read, written) = (from.touch(), to.touch());
        push_rows(
            &mut touches,
            read.block,
            read.start,
            from_rows,
            size,
            Mode::Read,
        );
        push_rows(
            &mut touches,
            written.block,
            written.start,
            to_rows,
            size,
            Mode::Write,
        );
        let sides = [read.block, written.block].map(|block| (Memory::Device, block.device));
        let kind = Kind::copy(self.core.id, self.core.device, sides[0], sides[1]);
        let copy = copy::<T>(from.address(), from_rows, to.address(), to_rows);
        self.copy("memcpy_d2d", kind, copy, &touches, at)?;
        Ok(())
    }

    #[track_caller]
    fn copy(
        &self,
        call: &'static str,
        kind: Kind,
        copy: backend::Copy,
        touches: &[Touch<'_>],
        at: Place,
    ) -> Result<Option<Mark>> {
        belong(self, call, touches)?;
        self.issue(Call {
            kind,
            payload: Payload::Copy(copy),
            touches,
            sources: &mut [],
            behind: None,
            is_awaited: true,
            at,
        })
    }

    #[track_caller]
    fn fill(
        &self,
        at: backend::Address,
        touch: Touch<'_>,
        value: u32,
        width: u8,
        count: u64,
        place: Place,
    ) -> Result<()> {
        belong(self, "memset", &[touch])?;
        let fill = backend::Fill {
            at,
            value,
            width,
            count,
        };
        self.issue(Call {
            kind: Kind::Memset {
                stream: self.core.id,
            },
            payload: Payload::Fill(fill),
            touches: &[touch],
            sources: &mut [],
            behind: None,
            is_awaited: false,
            at: place,
        })?;
        Ok(())
    }

    /// The value waits where the call ends, or comes back with the error.
    fn pending<T>(&self, issued: Result<Option<Mark>>, value: T) -> Result<Pending<T>, Refused<T>> {
        let mark = match issued {
            Ok(Some(mark)) => mark,
            Ok(None) => unreachable!("a call that is awaited has a mark"),
            // It may be under way for all that one knows. The value goes to its pool, with the copy as
            // its last use.
            Err(error @ Error::Submitted { .. }) => {
                drop(value);
                return Err(Refused { error, value: None });
            }
            Err(error) => return Err(Refused::new(error, value)),
        };
        let runtime = Arc::clone(&self.runtime);
        Ok(Pending::new(runtime, mark, Held::Here(value)))
    }
}

/// A value as devices fill with it.
pub(crate) struct Pattern {
    /// What is written again and again.
    pub word: u32,
    /// How many bytes of it count.
    pub width: u8,
    /// How often for one value.
    pub times: u64,
}

pub(crate) fn pattern<T: Pod>(value: &T) -> Result<Pattern> {
    let bytes = bytemuck::bytes_of(value);
    let repeated = bytes.len().is_multiple_of(4) && bytes.chunks(4).all(|part| part == &bytes[..4]);
    let width = match bytes.len() {
        width @ (1 | 2) => width,
        1.. if repeated => 4,
        other => {
            return Err(Error::Invalid {
                call: "fill_with",
                why: format!(
                    "a value has {other} bytes, and devices fill with 1, 2 or 4; copy a slice of such values with \
                     memcpy_h2d, or launch a kernel"
                ),
            });
        }
    };
    let mut word = [0; 4];
    word[..width].copy_from_slice(&bytes[..width]);
    Ok(Pattern {
        word: u32::from_le_bytes(word),
        width: width as u8,
        times: (bytes.len() / width) as u64,
    })
}

pub(crate) fn copy<T>(
    from: backend::Address,
    from_rows: Rows,
    to: backend::Address,
    to_rows: Rows,
) -> backend::Copy {
    let size = size_of::<T>() as u64;
    // From one row there is no way to a next one, which may be any number of values.
    let pitch = |rows: Rows| match rows.count {
        0 | 1 => rows.len as u64 * size,
        _ => rows.pitch as u64 * size,
    };
    backend::Copy {
        from,
        to,
        row_bytes: from_rows.len as u64 * size,
        rows: from_rows.count as u64,
        from_pitch: pitch(from_rows),
        to_pitch: pitch(to_rows),
    }
}

fn push_rows<'a>(
    touches: &mut Touches<'a>,
    block: &'a Block,
    start: u64,
    rows: Rows,
    size: usize,
    mode: Mode,
) {
    each_row(start, rows, size, |bytes| {
        touches.push(Touch {
            block,
            start: bytes.start,
            end: bytes.end,
            mode,
        });
    });
}

/// The bytes of rows that start at `start`, as they are tracked.
pub(crate) fn each_row(start: u64, rows: Rows, size: usize, mut tell: impl FnMut(Range<u64>)) {
    let bytes = |values: usize| (values * size) as u64;
    let mut push = |first: u64, len: u64| tell(first..first + len);
    if rows.count > ROWS_TRACKED {
        push(start, bytes((rows.count - 1) * rows.pitch + rows.len));
    } else {
        for row in 0..rows.count {
            push(start + bytes(row * rows.pitch), bytes(rows.len));
        }
    }
}

pub(crate) fn one_row(len: usize) -> Rows {
    Rows {
        len,
        count: 1,
        pitch: len,
    }
}

pub(crate) fn same_len(call: &'static str, from: usize, to: usize) -> Result<()> {
    if from == to {
        return Ok(());
    }
    Err(Error::Invalid {
        call,
        why: format!("{from} values cannot be copied to where there are {to}; take a slice"),
    })
}

pub(crate) fn same_rows(
    call: &'static str,
    from: Rows,
    from_len: usize,
    to: Rows,
    to_len: usize,
) -> Result<()> {
    let fits = |rows: Rows, len: usize| {
        let last = rows
            .count
            .checked_sub(1)
            .map(|last| last.checked_mul(rows.pitch));
        let needed = match last {
            None => Some(0),
            Some(start) => start.and_then(|start| start.checked_add(rows.len)),
        };
        rows.pitch >= rows.len && needed.is_some_and(|needed| needed <= len)
    };
    let why = if (from.len, from.count) != (to.len, to.count) {
        format!(
            "{} rows of {} cannot be copied to {} rows of {}",
            from.count, from.len, to.count, to.len
        )
    } else if !fits(from, from_len) {
        format!("the source has {from_len} values, too few for {from:?}")
    } else if !fits(to, to_len) {
        format!("the destination has {to_len} values, too few for {to:?}")
    } else {
        return Ok(());
    };
    Err(Error::Invalid { call, why })
}

pub(crate) fn size_of_all<T>(call: &'static str, len: usize) -> Result<u64> {
    let bytes = len.checked_mul(size_of::<T>());
    let bytes = bytes.filter(|&bytes| bytes <= isize::MAX as usize);
    bytes
        .map(|bytes| bytes as u64)
        .ok_or_else(|| Error::Invalid {
            call,
            why: format!(
                "{len} values of {} bytes are more than any machine holds",
                size_of::<T>()
            ),
        })
}
