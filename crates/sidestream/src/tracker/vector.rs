//! A vector of the program, taken apart into its address and capacity.

use bytemuck::Pod;

use crate::backend::Address;

/// A vector, taken apart. Dropping it leaks it, which is required for memory that a lost device may still use.
///
/// The vector is kept as an address, since devices access it by address and not through a Rust pointer.
pub(crate) struct Vector {
    /// Address of the first value, with its provenance exposed.
    start: u64,
    capacity: usize,
    free: unsafe fn(u64, usize),
}

impl Vector {
    pub(crate) fn of<T: Pod>(mut values: Vec<T>) -> Vector {
        let start = values.as_mut_ptr().expose_provenance() as u64;
        let capacity = values.capacity();
        std::mem::forget(values);
        Vector {
            start,
            capacity,
            free: free::<T>,
        }
    }

    pub(crate) fn address(&self) -> Address {
        Address(self.start)
    }

    /// Returns the vector.
    ///
    /// # Safety
    /// The vector was one of `T` and had at least `len` values. Nothing else uses the memory.
    pub(crate) unsafe fn into_vec<T: Pod>(self, len: usize) -> Vec<T> {
        // SAFETY: the caller promises that these are the parts of a vector of this type, which was
        // forgotten when it was taken apart.
        unsafe { vec_of(self.start, len, self.capacity) }
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// Nothing uses the memory.
    pub(crate) unsafe fn free(self) {
        // SAFETY: `free` is for the type that the vector had, and the vector was forgotten when it was taken apart.
        unsafe { (self.free)(self.start, self.capacity) };
    }
}

/// # Safety
/// The parts are those of a vector of `T` that was forgotten, and nothing uses its memory.
unsafe fn free<T: Pod>(start: u64, capacity: usize) {
    // SAFETY: the caller promises this. Plain values need no drop.
    drop(unsafe { vec_of::<T>(start, 0, capacity) });
}

/// # Safety
/// The parts are those of a vector of `T` that was forgotten and had at least `len` values.
unsafe fn vec_of<T>(start: u64, len: usize, capacity: usize) -> Vec<T> {
    let start = std::ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: the caller promises this; the address was exposed when the vector was taken apart.
    unsafe { Vec::from_raw_parts(start, len, capacity) }
}
