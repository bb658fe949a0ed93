//! Host memory that a device and the program may touch at the same time: if the program is wrong it
//! gets wrong bytes, and not undefined behaviour.

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Reads memory of the process that the program may touch at the same time, if it is wrong.
///
/// # Safety
/// The bytes are allocated, and stay so during the call.
pub(crate) unsafe fn load(at: u64, into: &mut [u8]) {
    let (head, words) = split(at, into.len());
    let (head, rest) = into.split_at_mut(head);
    let (words, tail) = rest.split_at_mut(words);
    let mut from = ptr::with_exposed_provenance_mut::<u8>(at as usize);
    for byte in head {
        // SAFETY: the caller promises that the bytes are there. The access is atomic.
        unsafe {
            *byte = AtomicU8::from_ptr(from).load(Ordering::Relaxed);
            from = from.add(1);
        }
    }
    for word in words.as_chunks_mut::<8>().0 {
        // SAFETY: as above, and `split` has made `from` aligned for a word.
        unsafe {
            let loaded = AtomicU64::from_ptr(from.cast()).load(Ordering::Relaxed);
            *word = loaded.to_ne_bytes();
            from = from.add(8);
        }
    }
    for byte in tail {
        // SAFETY: as above.
        unsafe {
            *byte = AtomicU8::from_ptr(from).load(Ordering::Relaxed);
            from = from.add(1);
        }
    }
}

/// Writes memory of the process that the program may touch at the same time, if it is wrong.
///
/// # Safety
/// The bytes are allocated, and stay so during the call.
pub(crate) unsafe fn store(at: u64, bytes: &[u8]) {
    let (head, words) = split(at, bytes.len());
    let (head, rest) = bytes.split_at(head);
    let (words, tail) = rest.split_at(words);
    let mut to = ptr::with_exposed_provenance_mut::<u8>(at as usize);
    for &byte in head {
        // SAFETY: the caller promises that the bytes are there. The access is atomic.
        unsafe {
            AtomicU8::from_ptr(to).store(byte, Ordering::Relaxed);
            to = to.add(1);
        }
    }
    for word in words.as_chunks::<8>().0 {
        // SAFETY: as above, and `split` has made `to` aligned for a word.
        unsafe {
            AtomicU64::from_ptr(to.cast()).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            to = to.add(8);
        }
    }
    for &byte in tail {
        // SAFETY: as above.
        unsafe {
            AtomicU8::from_ptr(to).store(byte, Ordering::Relaxed);
            to = to.add(1);
        }
    }
}

/// How many bytes come before the first whole word, and how many make up whole words.
fn split(at: u64, len: usize) -> (usize, usize) {
    let head = (at.next_multiple_of(8) - at) as usize;
    let head = head.min(len);
    (head, (len - head) / 8 * 8)
}
