//! Host memory that a device and the program may touch at the same time: if the program is wrong it
//! gets wrong bytes, and not undefined behaviour.
//!
//! What two threads touch at the same time they have to touch atomically, and in pieces of one size: of a word that one
//! writes and another reads byte by byte Rust promises nothing. Ranges begin and end anywhere, so the pieces are single
//! bytes. One by one they would take eight times as long as words do. On x86-64 one instruction copies them all: for
//! its neighbours it is a loop of relaxed loads and stores of single bytes, and for the processor the fastest way to copy.

use std::ptr;

/// Reads memory of the process that the program may touch at the same time, if it is wrong.
///
/// # Safety
/// The bytes are allocated, and stay so during the call.
pub(crate) unsafe fn load(at: u64, into: &mut [u8]) {
    // SAFETY: the caller promises it.
    unsafe { bytes::load(ptr::with_exposed_provenance_mut(at as usize), into) }
}

/// Writes memory of the process that the program may touch at the same time, if it is wrong.
///
/// # Safety
/// The bytes are allocated, and stay so during the call.
pub(crate) unsafe fn store(at: u64, bytes: &[u8]) {
    // SAFETY: the caller promises it.
    unsafe { bytes::store(ptr::with_exposed_provenance_mut(at as usize), bytes) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod bytes {
    use std::arch::asm;

    pub(super) unsafe fn load(from: *mut u8, into: &mut [u8]) {
        // SAFETY: the caller promises the bytes on one side; the other is a slice of as many.
        unsafe { copy(from, into.as_mut_ptr(), into.len()) }
    }

    pub(super) unsafe fn store(to: *mut u8, bytes: &[u8]) {
        // SAFETY: as above.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) }
    }

    unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: it reads and writes so many bytes and nothing else, upwards: an `asm!` block begins with the
        // direction flag clear.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod bytes {
    use std::sync::atomic::{AtomicU8, Ordering};

    pub unsafe fn load(from: *mut u8, into: &mut [u8]) {
        for (at, byte) in into.iter_mut().enumerate() {
            // SAFETY: the caller promises that it is there. The access is atomic.
            *byte = unsafe { AtomicU8::from_ptr(from.add(at)).load(Ordering::Relaxed) };
        }
    }

    pub unsafe fn store(to: *mut u8, bytes: &[u8]) {
        for (at, &byte) in bytes.iter().enumerate() {
            // SAFETY: as above.
            unsafe { AtomicU8::from_ptr(to.add(at)).store(byte, Ordering::Relaxed) };
        }
    }
}
