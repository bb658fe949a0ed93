//! Memory allocated by the driver, and pageable memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr;

use parking_lot::Mutex;

use super::driver::{
    Code as Answer, Driver, HOST_PORTABLE, HOST_WRITE_COMBINED, OUT_OF_MEMORY, SUCCESS,
};
use crate::backend::{Address, Reserve};
use crate::error::{Error, OutOfMemory};
use crate::op::Memory;

/// Layouts of the pageable allocations, needed to free them.
#[derive(Default)]
pub(super) struct Memories {
    pageable: Mutex<HashMap<u64, Layout>>,
}

/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: Answer = 1;

impl Memories {
    /// Allocates memory. The context of the device is current.
    ///
    /// # Errors
    /// The driver's code. A request for a particular address is always refused: the driver chooses addresses.
    pub(super) fn reserve(&self, driver: &Driver, wanted: Reserve) -> Result<Address, Answer> {
        if wanted.at.is_some() {
            return Err(INVALID_VALUE);
        }
        let bytes = usize::try_from(wanted.bytes.max(1)).map_err(|_| OUT_OF_MEMORY)?;
        match wanted.memory {
            Memory::Device | Memory::Managed => {
                let mut at = 0;
                // SAFETY: writes one address.
                match unsafe { (driver.cuMemAlloc_v2)(&mut at, bytes) } {
                    SUCCESS => Ok(Address(at)),
                    code => Err(code),
                }
            }
            Memory::Pinned => {
                let flags = if wanted.write_combined {
                    HOST_PORTABLE | HOST_WRITE_COMBINED
                } else {
                    HOST_PORTABLE
                };
                let mut at = 0;
                // SAFETY: writes one address, of memory that is then zeroed in its whole length.
                unsafe {
                    match (driver.cuMemHostAlloc)(&mut at, bytes, flags) {
                        SUCCESS => {
                            let start = ptr::with_exposed_provenance_mut::<u8>(at as usize);
                            start.write_bytes(0, bytes);
                            Ok(Address(at))
                        }
                        code => Err(code),
                    }
                }
            }
            Memory::Pageable => {
                let layout = layout(bytes)?;
                // SAFETY: the size is not zero.
                let start = unsafe { alloc_zeroed(layout) };
                if start.is_null() {
                    return Err(OUT_OF_MEMORY);
                }
                let at = start.expose_provenance() as u64;
                self.pageable.lock().insert(at, layout);
                Ok(Address(at))
            }
        }
    }

    /// Returns an out-of-memory error with the device's free and total memory.
    pub(super) fn none_left(&self, driver: &Driver, wanted: Reserve) -> Error {
        let (mut free, mut total) = (0usize, 0usize);
        let is_host = wanted.memory.is_host();
        if !is_host {
            // SAFETY: writes two numbers.
            unsafe { (driver.cuMemGetInfo_v2)(&mut free, &mut total) };
        }
        let used_bytes = total.saturating_sub(free) as u64;
        Error::OutOfMemory(OutOfMemory {
            device: (!is_host).then_some(wanted.device),
            asked_bytes: wanted.bytes,
            allocated_bytes: used_bytes,
            reserved_bytes: used_bytes,
            limit_bytes: total as u64,
        })
    }

    /// Frees memory.
    pub(super) fn unreserve(&self, driver: &Driver, memory: Memory, at: Address) {
        // SAFETY: the memory was allocated here, and the front end has seen all its uses complete.
        unsafe {
            match memory {
                Memory::Device | Memory::Managed => _ = (driver.cuMemFree_v2)(at.0),
                Memory::Pinned => _ = (driver.cuMemFreeHost)(at.0),
                Memory::Pageable => {
                    if let Some(layout) = self.pageable.lock().remove(&at.0) {
                        dealloc(ptr::with_exposed_provenance_mut(at.0 as usize), layout);
                    }
                }
            }
        }
    }
}

/// Returns a layout with the alignment of pinned memory.
fn layout(bytes: usize) -> Result<Layout, Answer> {
    Layout::from_size_align(bytes, 64).map_err(|_| OUT_OF_MEMORY)
}
