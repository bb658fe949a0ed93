//! Keeps the pages of ranges that are protected often in a mapping of their own. Otherwise the kernel splits a mapping
//! whenever some of its pages are protected, and merges it again when they are opened, which takes longer than the
//! protection itself.
//!
//! Mappings stay apart if advice on their use differs. That on the order of accesses matters only to files and to swapped pages.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::sys;
use super::table::page;

/// The number of ranges that are kept apart. Each may add two mappings.
const MOST: usize = 256;
const NORMAL: i32 = 0;
/// Two kinds of advice in turn, so that ranges side by side do not merge.
const APART: [i32; 2] = [1, 2];

/// Ranges that were protected: start, and end plus one for one that is not kept apart yet.
static RANGES: [[AtomicUsize; 2]; MOST] = [const { [const { AtomicUsize::new(0) }; 2] }; MOST];

/// Takes note of whole pages that are about to be protected, and keeps them apart from the second time on. The caller has
/// the table's lock.
pub fn keep(start: usize, end: usize) {
    let mix = (start / page()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let [of, until] = &RANGES[mix >> (usize::BITS - MOST.ilog2())];
    let (known, last) = (of.load(Ordering::Relaxed), until.load(Ordering::Relaxed));
    if known == start && last == end {
        return;
    }
    if known == start && last == end + 1 {
        let turn = start / (end - start) % APART.len();
        advise(start, end, APART[turn]);
        until.store(end, Ordering::Relaxed);
        return;
    }
    merge(known, last);
    of.store(start, Ordering::Relaxed);
    until.store(end + 1, Ordering::Relaxed);
}

/// Ends what [`keep`] began, for all ranges.
pub fn end() {
    for [of, until] in &RANGES {
        merge(
            of.swap(0, Ordering::Relaxed),
            until.swap(0, Ordering::Relaxed),
        );
    }
}

fn merge(start: usize, end: usize) {
    if end != 0 && end.is_multiple_of(page()) {
        advise(start, end, NORMAL);
    }
}

fn advise(start: usize, end: usize, advice: i32) {
    // SAFETY: the advice changes no contents, also if other memory is mapped there by now.
    unsafe { sys::madvise(start as *mut c_void, end - start, advice) };
}
