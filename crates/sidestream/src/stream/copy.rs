//! Memory on a stream: allocating, copying, filling.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Stream;
use super::plan::{CopyPlan, FillPlan, Rows};
use crate::backend::Payload;
use crate::buffer::{DeviceBuf, Held, Pending, Pinned, Pod, Refused, View, ViewMut};
use crate::error::{Error, Result};
use crate::op::{Kind, Mode};
use crate::tracker::{Block, Call, Mark, Place, Source, Touch, belong, is_of};

impl Stream {
    /// Allocates device memory for `len` values; their content is unspecified.
    ///
    /// # Ordering
    /// Does not wait for the stream. A previous owner's uses of the memory may still be pending: the first use on
    /// this stream waits for them.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the sizes, after waiting for all memory that was freed.
    #[track_caller]
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<DeviceBuf<T>> {
        let block = self.block(size_of_all::<T>("alloc", len)?, Location::caller())?;
        Ok(DeviceBuf::new(block, len))
    }

    /// Allocates device memory for `len` values, all zero.
    ///
    /// # Ordering
    /// As for [`Stream::alloc`]; the zeros are written in stream order.
    ///
    /// # Errors
    /// As for [`Stream::alloc`] and [`Stream::memset`].
    #[track_caller]
    pub fn alloc_zeroed<T: Pod>(&self, len: usize) -> Result<DeviceBuf<T>> {
        let at = Location::caller();
        let block = self.block(size_of_all::<T>("alloc_zeroed", len)?, at)?;
        let mut buffer = DeviceBuf::new(block, len);
        self.set(FillPlan::bytes::<T>(0), len, buffer.view_mut().touch(), at)?;
        Ok(buffer)
    }

    /// Allocates device memory with a copy of these values, which are staged in pinned memory of the runtime.
    ///
    /// # Ordering
    /// As for [`Stream::memcpy_h2d`]: blocks the host during the copy into pinned memory, but not until the device has
    /// the values.
    ///
    /// # Errors
    /// As for [`Stream::alloc`] and [`Stream::memcpy_h2d`].
    #[track_caller]
    pub fn alloc_from<T: Pod>(&self, values: &[T]) -> Result<DeviceBuf<T>> {
        let mut buffer = self.alloc(values.len())?;
        self.memcpy_h2d(values, buffer.view_mut())?;
        Ok(buffer)
    }

    /// Copies pinned host memory to the device. The [`Pending`] gives the memory back.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream and all uses of the destination. Does not block the host.
    ///
    /// # Errors
    /// The error returns the memory: if the lengths differ, or any error that the driver returns.
    #[track_caller]
    pub fn upload<T: Pod>(
        &self,
        from: Pinned<T>,
        to: ViewMut<'_, T>,
    ) -> Result<Pending<Pinned<T>>, Refused<Pinned<T>>> {
        let at = Location::caller();
        let plan = CopyPlan::all::<T>("upload", from.len(), to.len());
        let copied =
            plan.and_then(|plan| self.copy("upload", plan, from.touch(Mode::Read), to.touch(), at));
        self.pending(copied, from)
    }

    /// Copies many pieces of pinned host memory to consecutive places on the device. The [`Pending`] gives the pieces
    /// back.
    ///
    /// One kernel reads all pieces, so each piece costs next to nothing: separate copies would take almost 3 µs each
    /// on the device, and as long on the host (H200). For a few large pieces [`Stream::upload`] is as good.
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
    /// As for [`Stream::upload`].
    ///
    /// # Errors
    /// As for [`Stream::upload`]; also if the total length of the pieces is not that of the destination.
    #[track_caller]
    #[expect(clippy::type_complexity, reason = "the error returns the pieces")]
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
    /// As for [`Stream::upload`].
    ///
    /// # Errors
    /// As for [`Stream::upload`]; also if a side is too small for its rows, or the rows of the two sides do not
    /// match.
    #[track_caller]
    pub fn upload_rows<T: Pod>(
        &self,
        from: Pinned<T>,
        from_rows: Rows,
        to: ViewMut<'_, T>,
        to_rows: Rows,
    ) -> Result<Pending<Pinned<T>>, Refused<Pinned<T>>> {
        let at = Location::caller();
        let sides = ((from_rows, from.len()), (to_rows, to.len()));
        let copied = CopyPlan::rows::<T>("upload_rows", sides.0, sides.1)
            .and_then(|plan| self.copy("upload", plan, from.touch(Mode::Read), to.touch(), at));
        self.pending(copied, from)
    }

    /// Copies device memory into pinned host memory, which the [`Pending`] gives back.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream and the last writes of the source. Does not block the host.
    ///
    /// # Errors
    /// As for [`Stream::upload`].
    #[track_caller]
    pub fn download<T: Pod>(
        &self,
        from: View<'_, T>,
        to: Pinned<T>,
    ) -> Result<Pending<Pinned<T>>, Refused<Pinned<T>>> {
        let at = Location::caller();
        let plan = CopyPlan::all::<T>("download", from.len(), to.len());
        let copied = plan
            .and_then(|plan| self.copy("download", plan, from.touch(), to.touch(Mode::Write), at));
        self.pending(copied, to)
    }

    /// Copies rows on the device into rows of pinned host memory.
    ///
    /// # Ordering
    /// As for [`Stream::download`].
    ///
    /// # Errors
    /// As for [`Stream::upload_rows`].
    #[track_caller]
    pub fn download_rows<T: Pod>(
        &self,
        from: View<'_, T>,
        from_rows: Rows,
        to: Pinned<T>,
        to_rows: Rows,
    ) -> Result<Pending<Pinned<T>>, Refused<Pinned<T>>> {
        let at = Location::caller();
        let sides = ((from_rows, from.len()), (to_rows, to.len()));
        let copied = CopyPlan::rows::<T>("download_rows", sides.0, sides.1)
            .and_then(|plan| self.copy("download", plan, from.touch(), to.touch(Mode::Write), at));
        self.pending(copied, to)
    }

    /// Copies a slice of pageable memory to the device: first into pinned memory of the runtime, on the calling
    /// thread, and from there in stream order. The slice may be reused as soon as the call returns.
    ///
    /// # Ordering
    /// Blocks the host during the copy into pinned memory, but not until the device has the values.
    ///
    /// # Errors
    /// If the lengths differ, if pinned memory runs out, or any error that the driver returns.
    #[track_caller]
    pub fn memcpy_h2d<T: Pod>(&self, from: &[T], to: ViewMut<'_, T>) -> Result<()> {
        let at = Location::caller();
        let plan = CopyPlan::all::<T>("memcpy_h2d", from.len(), to.len())?;
        let mut staged = self.device().pinned_at::<T>(from.len(), at)?;
        staged.copy_from_slice(from);
        let copied = self.copy("upload", plan, staged.touch(Mode::Read), to.touch(), at);
        // The staging memory returns to its pool with the copy as its last use.
        let pending = self.pending(copied, staged)?;
        drop(pending);
        Ok(())
    }

    /// Copies device memory into a slice of pageable memory, and waits for the copy.
    ///
    /// # Ordering
    /// Blocks the host until the copy is complete.
    ///
    /// # Errors
    /// As for [`Stream::memcpy_h2d`].
    #[track_caller]
    pub fn memcpy_d2h<T: Pod>(&self, from: View<'_, T>, to: &mut [T]) -> Result<()> {
        CopyPlan::all::<T>("memcpy_d2h", from.len(), to.len())?;
        to.copy_from_slice(&self.awaited(from)?);
        Ok(())
    }

    /// Copies device memory into a vector, and waits for the copy.
    ///
    /// # Ordering
    /// Blocks the host until the copy is complete.
    ///
    /// # Errors
    /// If pinned memory runs out, or any error that the driver returns.
    #[track_caller]
    pub fn to_vec<T: Pod>(&self, from: View<'_, T>) -> Result<Vec<T>> {
        Ok(self.awaited(from)?.to_vec())
    }

    /// Copies the values into pinned memory of the runtime and waits for the copy.
    #[track_caller]
    fn awaited<T: Pod>(&self, from: View<'_, T>) -> Result<Pinned<T>> {
        let at = Location::caller();
        let staged = self.device().pinned_at::<T>(from.len(), at)?;
        let plan = CopyPlan::values::<T>(from.len());
        let copied = self.copy(
            "download",
            plan,
            from.touch(),
            staged.touch(Mode::Write),
            at,
        );
        self.pending(copied, staged)?.synchronize()
    }

    /// Copies device memory, on one device or from one to another.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream, the last writes of the source and all uses of the destination, on
    /// any stream. Does not block the host.
    ///
    /// # Errors
    /// If the lengths differ, or any error that the driver returns.
    #[track_caller]
    pub fn memcpy_d2d<T: Pod>(&self, from: View<'_, T>, to: ViewMut<'_, T>) -> Result<()> {
        let at = Location::caller();
        let plan = CopyPlan::all::<T>("memcpy_d2d", from.len(), to.len())?;
        self.copy("memcpy_d2d", plan, from.touch(), to.touch(), at)?;
        Ok(())
    }

    /// Copies rows on the device into other rows on the device.
    ///
    /// # Ordering
    /// As for [`Stream::memcpy_d2d`].
    ///
    /// # Errors
    /// As for [`Stream::upload_rows`].
    #[track_caller]
    pub fn memcpy_d2d_rows<T: Pod>(
        &self,
        from: View<'_, T>,
        from_rows: Rows,
        to: ViewMut<'_, T>,
        to_rows: Rows,
    ) -> Result<()> {
        let at = Location::caller();
        let sides = ((from_rows, from.len()), (to_rows, to.len()));
        let plan = CopyPlan::rows::<T>("memcpy_d2d_rows", sides.0, sides.1)?;
        self.copy("memcpy_d2d", plan, from.touch(), to.touch(), at)?;
        Ok(())
    }

    /// Sets every byte to `byte`.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream and all uses of the memory. Does not block the host.
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub fn memset<T: Pod>(&self, to: ViewMut<'_, T>, byte: u8) -> Result<()> {
        let plan = FillPlan::bytes::<T>(byte);
        self.set(plan, to.len(), to.touch(), Location::caller())
    }

    /// Sets every value. Devices fill with patterns of one, two or four bytes: a larger value has to repeat the same
    /// four bytes, as zero and -1 do.
    ///
    /// # Ordering
    /// As for [`Stream::memset`].
    ///
    /// # Errors
    /// As for [`Stream::memset`]; [`Error::Invalid`] for values of another size.
    #[track_caller]
    pub fn fill_with<T: Pod>(&self, to: ViewMut<'_, T>, value: T) -> Result<()> {
        let plan = FillPlan::value(&value)?;
        self.set(plan, to.len(), to.touch(), Location::caller())
    }
}

// ------------------------------------------------------------------ shared by the calls above

impl Stream {
    fn block(&self, size_bytes: u64, at: Place) -> Result<Box<Block>> {
        let memories = &self.runtime.device(self.core.device).memories;
        memories.take(&self.runtime, size_bytes, Some(self.core.id), at)
    }

    #[track_caller]
    fn gather<T: Pod>(
        &self,
        pieces: &mut [Pinned<T>],
        to: &ViewMut<'_, T>,
        at: Place,
    ) -> Result<Option<Mark>> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        CopyPlan::all::<T>("upload_pieces", len, to.len())?;
        let touches = [to.touch()];
        belong(self, "upload_pieces", &touches)?;
        let mut copies = Vec::with_capacity(pieces.len());
        let mut sources = Vec::with_capacity(pieces.len());
        let mut place = to.address();
        for piece in pieces {
            let plan = CopyPlan::values::<T>(piece.len());
            let end = (piece.len() * size_of::<T>()) as u64;
            let block = piece.block_mut();
            is_of(self, "upload_pieces", block)?;
            copies.push(plan.work(block.address, place));
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
    fn copy(
        &self,
        call: &'static str,
        plan: CopyPlan,
        from: Touch<'_>,
        to: Touch<'_>,
        at: Place,
    ) -> Result<Option<Mark>> {
        let mut touches: SmallVec<[Touch<'_>; 4]> = SmallVec::new();
        plan.each_touched((from, from.start), (to, to.start), |side, bytes| {
            touches.push(Touch {
                start: bytes.start,
                end: bytes.end,
                ..side
            });
        });
        belong(self, call, &touches)?;
        let sides = [from, to].map(|side| (side.block.memory, side.block.device));
        self.issue(Call {
            kind: Kind::copy(self.core.id, self.core.device, sides[0], sides[1]),
            payload: Payload::Copy(plan.work(from.address(), to.address())),
            touches: &touches,
            sources: &mut [],
            behind: None,
            is_awaited: true,
            at,
        })
    }

    #[track_caller]
    fn set(&self, plan: FillPlan, len: usize, touch: Touch<'_>, at: Place) -> Result<()> {
        belong(self, "memset", &[touch])?;
        self.issue(Call {
            kind: Kind::Memset {
                stream: self.core.id,
            },
            payload: Payload::Fill(plan.work(touch.address(), len as u64)),
            touches: &[touch],
            sources: &mut [],
            behind: None,
            is_awaited: false,
            at,
        })?;
        Ok(())
    }

    /// Returns the value in a [`Pending`] that is complete when the call is, or together with the error.
    fn pending<T>(&self, issued: Result<Option<Mark>>, value: T) -> Result<Pending<T>, Refused<T>> {
        let mark = match issued {
            Ok(Some(mark)) => mark,
            Ok(None) => unreachable!("a call that is awaited has a mark"),
            // The copy may be in flight. The value goes to its pool, with the copy as its last use.
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
