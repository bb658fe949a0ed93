//! Host memory that a device and the program may access at the same time: a wrong program gets wrong bytes, and not
//! undefined behaviour.
//!
//! Two threads that access memory at the same time have to do so atomically and in units of one size: Rust gives no
//! guarantee for a word that one thread writes and another reads byte by byte. Ranges begin and end anywhere, so the
//! units are single bytes. A loop over bytes would take eight times as long as one over words. On x86-64 the single
//! instruction `rep movsb` copies the whole range: to other threads it acts as a loop of relaxed loads and stores of
//! single bytes, and it is the processor's fastest way to copy.

use std::ptr;

/// Reads memory that a wrong program may be writing at the same time.
///
/// # Safety
/// The bytes are allocated, and stay allocated during the call.
pub(crate) unsafe fn load(at: u64, into: &mut [u8]) {
    // SAFETY: the caller promises this.
    unsafe { bytes::load(ptr::with_exposed_provenance_mut(at as usize), into) }
}

/// Writes memory that a wrong program may be accessing at the same time.
///
/// # Safety
/// The bytes are allocated, and stay allocated during the call.
pub(crate) unsafe fn store(at: u64, bytes: &[u8]) {
    // SAFETY: the caller promises this.
    unsafe { bytes::store(ptr::with_exposed_provenance_mut(at as usize), bytes) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod bytes {
    use std::arch::asm;

    pub(super) unsafe fn load(from: *mut u8, into: &mut [u8]) {
        // SAFETY: the caller vouches for the bytes on one side; the other side is a slice of equal length.
        unsafe { copy(from, into.as_mut_ptr(), into.len()) }
    }

    pub(super) unsafe fn store(to: *mut u8, bytes: &[u8]) {
        // SAFETY: as above.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) }
    }

    unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: `rep movsb` reads and writes exactly `len` bytes, upwards: an `asm!` block begins with the direction
        // flag clear.
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

    pub(super) unsafe fn load(from: *mut u8, into: &mut [u8]) {
        for (at, byte) in into.iter_mut().enumerate() {
            // SAFETY: the caller promises that the byte is allocated. The access is atomic.
            *byte = unsafe { AtomicU8::from_ptr(from.add(at)).load(Ordering::Relaxed) };
        }
    }

    pub(super) unsafe fn store(to: *mut u8, bytes: &[u8]) {
        for (at, &byte) in bytes.iter().enumerate() {
            // SAFETY: as above.
            unsafe { AtomicU8::from_ptr(to.add(at)).store(byte, Ordering::Relaxed) };
        }
    }
}
