//! Vectors of the program that are pinned in place.

use std::panic::Location;
use std::sync::Arc;

use super::{Pinned, Pod, Refused};
use crate::error::Result;
use crate::op::{DeviceId, Memory, Mode};
use crate::tracker::{Block, BlockState, Conflicts, Grant, Place, Runtime, Uses, Vector};
use parking_lot::Mutex;

impl<T: Pod> Pinned<T> {
    /// Pins a vector. See [`Device::register`](crate::device::Device::register).
    pub(crate) fn register(
        runtime: &Arc<Runtime>,
        values: Vec<T>,
        at: Place,
    ) -> Result<Pinned<T>, Refused<Vec<T>>> {
        let len = values.len();
        let size_bytes = (len * size_of::<T>()) as u64;
        let vector = Vector::of(values);
        if let Err(error) = runtime.pin(&vector, size_bytes, at) {
            // SAFETY: the vector was taken apart above, and no device has seen it.
            let value = Some(unsafe { vector.into_vec(len) });
            return Err(Refused { error, value });
        }
        let before = runtime.pinned.gone.come_again(vector.address(), size_bytes);
        let uses = Uses::before(before).carried(size_bytes);
        let block = Box::new(Block {
            runtime: Arc::clone(runtime),
            memory: Memory::Pinned,
            device: DeviceId(0),
            address: vector.address(),
            size_bytes,
            home: None,
            at,
            state: Mutex::new(BlockState::new(uses)),
            grant: Grant::Registered(vector),
        });
        block.tell_alloc();
        Ok(Pinned::new(block, len))
    }

    /// Unpins memory that [`Device::register`](crate::device::Device::register) pinned, and returns the vector.
    ///
    /// # Ordering
    /// Blocks the host until all uses of the memory are complete, which they already are unless a call that used it
    /// failed. The driver may wait for the whole device to unpin it.
    ///
    /// # Errors
    /// The error returns the memory: [`Error::Invalid`](crate::error::Error::Invalid) if the memory was not
    /// registered but comes from [`Device::pinned`](crate::device::Device::pinned) (copy the values out with
    /// `to_vec`), or if called from a function on the host, which may not call the driver. If the device is lost the
    /// memory is lost as well, because the device may still use it.
    #[track_caller]
    pub fn into_vec(mut self) -> Result<Vec<T>, Refused<Pinned<T>>> {
        let at = Location::caller();
        let runtime = Arc::clone(&self.block().runtime);
        let is_registered = matches!(self.block().grant, Grant::Registered(_));
        let uses = self.all_uses();
        let waited = runtime.may_unpin(is_registered).and_then(|()| {
            let mut marks = uses.iter();
            marks.try_for_each(|mark| runtime.synchronize(mark, at))
        });
        if let Err(error) = waited {
            return Err(Refused::new(error, self));
        }
        let len = self.len();
        let block = self.block_mut();
        let Grant::Registered(vector) = std::mem::take(&mut block.grant) else {
            unreachable!("memory that is not registered was refused above")
        };
        if runtime.live.is_on() {
            let gone = &runtime.pinned.gone;
            gone.note(vector.address(), block.size_bytes, uses);
            block.tell_free();
        }
        // SAFETY: the vector was taken apart in `register`, with this many values of this type. No device uses the
        // memory: all its uses are complete, and the block no longer has it.
        unsafe {
            runtime.unpin(&vector, block.size_bytes);
            Ok(vector.into_vec(len))
        }
    }

    fn all_uses(&self) -> Conflicts {
        let mut uses = Conflicts::new();
        let all = 0..self.block().size_bytes;
        let state = self.block().state.lock();
        (state.uses).conflicts(all, Mode::Write, |mark| uses.push(mark.clone()));
        uses
    }
}
