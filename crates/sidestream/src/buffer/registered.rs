//! Vectors of the program that are pinned where they are.

use std::panic::Location;
use std::sync::Arc;

use parking_lot::Mutex;

use super::block::{Block, BlockState};
use super::uses::{Conflicts, Uses};
use super::{Pinned, Pod, Refused};
use crate::backend::Address;
use crate::device::{Grant, Place, Runtime};
use crate::error::Result;
use crate::op::{DeviceId, Memory, Mode};

/// A vector, taken apart. Dropping it leaks it, which is what has to happen to memory that a lost
/// device may still use.
///
/// It is kept as an address, since devices reach it by that and not through a Rust pointer.
pub(crate) struct Vector {
    /// Exposed.
    start: u64,
    capacity: usize,
    free: unsafe fn(u64, usize),
}

impl Vector {
    pub fn of<T: Pod>(mut values: Vec<T>) -> Vector {
        let start = values.as_mut_ptr().expose_provenance() as u64;
        let capacity = values.capacity();
        std::mem::forget(values);
        Vector {
            start,
            capacity,
            free: free::<T>,
        }
    }

    pub fn address(&self) -> Address {
        Address(self.start)
    }

    /// The vector again.
    ///
    /// # Safety
    /// It was a vector of `T` and had at least `len` values. Nobody else uses the memory.
    pub unsafe fn into_vec<T: Pod>(self, len: usize) -> Vec<T> {
        // SAFETY: the caller promises that these are the parts of a vector of this type, which was
        // forgotten when it was taken apart.
        unsafe { vec_of(self.start, len, self.capacity) }
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// Nobody uses the memory.
    pub unsafe fn free(self) {
        // SAFETY: `free` is of the type that the vector had, and it was forgotten when it was taken
        // apart.
        unsafe { (self.free)(self.start, self.capacity) };
    }
}

/// # Safety
/// The parts are those of a vector of `T` that was forgotten, and nobody uses its memory.
unsafe fn free<T: Pod>(start: u64, capacity: usize) {
    // SAFETY: the caller promises it. Plain values need not be dropped.
    drop(unsafe { vec_of::<T>(start, 0, capacity) });
}

/// # Safety
/// The parts are those of a vector of `T` that was forgotten and had at least `len` values.
unsafe fn vec_of<T>(start: u64, len: usize, capacity: usize) -> Vec<T> {
    let start = std::ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: the caller promises it; the address was exposed when the vector was taken apart.
    unsafe { Vec::from_raw_parts(start, len, capacity) }
}

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
            // SAFETY: it was taken apart above, and no device has seen it.
            let value = Some(unsafe { vector.into_vec(len) });
            return Err(Refused { error, value });
        }
        let before = runtime.pinned.gone.come_again(vector.address(), size_bytes);
        let uses = Uses::carried(size_bytes, before);
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
        runtime.registered.tell(&block);
        Ok(Pinned::new(block, len))
    }

    /// Unpins memory that [`Device::register`](crate::device::Device::register) has pinned, and gives the
    /// vector back.
    ///
    /// # Ordering
    /// Holds up the host until all its uses are over, which they are unless a call that used it failed; the
    /// driver may wait for the whole device to unpin it.
    ///
    /// # Errors
    /// The memory comes back with the error: [`Error::Invalid`](crate::error::Error::Invalid) if it was not
    /// registered but comes from [`Device::pinned`](crate::device::Device::pinned) (copy the values out
    /// with `to_vec`), or in a function on the host, which may not call the driver. It is lost with a
    /// device that is lost, which may still use it.
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
            unreachable!("what is not registered was refused")
        };
        if runtime.live.is_on() {
            let gone = &runtime.pinned.gone;
            gone.note(vector.address(), block.size_bytes, uses);
            runtime.pinned.tell_free(block);
        }
        // SAFETY: it was taken apart in `register`, with so many values of this type. No device uses it:
        // all its uses are over, and the block holds nothing any more.
        unsafe {
            runtime.unpin(&vector, block.size_bytes);
            Ok(vector.into_vec(len))
        }
    }

    fn all_uses(&self) -> Conflicts {
        let mut uses = Conflicts::new();
        let all = 0..self.block().size_bytes;
        let state = self.block().state.lock();
        state.uses.conflicts(all, Mode::Write, |_| false, &mut uses);
        uses
    }
}
