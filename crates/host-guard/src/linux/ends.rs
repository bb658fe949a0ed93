//! Ranges of memory of which the end is to be heard: that it is freed or unmapped. The table has no lock, since a
//! stand-in for an allocator's function may run while any lock is held.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::mask::{Mask, SLOTS};
use super::{registers, sys};
use crate::hits;

static TAKEN: Mask = Mask::new();
static SLOT: [Slot; SLOTS] = [const {
    Slot {
        number: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; SLOTS];
/// The number of ranges that were ever watched.
static NUMBERS: AtomicUsize = AtomicUsize::new(0);
/// The number of ranges that are watched now.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Whether the ends of memory are heard at all.
static HEARS: AtomicBool = AtomicBool::new(false);

struct Slot {
    /// The number of the range, which no other one ever has; zero if none is watched here. The bounds change only
    /// while it is zero, so they are those of a number that is still here after they were read.
    number: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
}

/// A range of which the end is to be heard, until it is passed to [`leave`].
#[derive(Debug)]
pub struct Watched {
    slot: usize,
}

/// Records the end of this memory, once: a [`hits::Hit`] that stores to as much of it as ends, with the name of the
/// call that ends it. `None` if too much is watched already, or if ends are not heard ([`crate::begin`]).
pub fn watch(start: usize, end: usize) -> Option<Watched> {
    if !hears() || start >= end {
        return None;
    }
    let slot = TAKEN.take(SLOTS)?;
    let room = &SLOT[slot];
    room.start.store(start, Ordering::Release);
    room.end.store(end, Ordering::Release);
    // It is counted before it has a number, as `ended` needs.
    COUNT.fetch_add(1, Ordering::SeqCst);
    let number = NUMBERS.fetch_add(1, Ordering::SeqCst) + 1;
    room.number.store(number, Ordering::SeqCst);
    Some(Watched { slot })
}

/// Stops watching, and returns whether the memory is still there.
pub fn leave(watched: Watched) -> bool {
    let is_there = SLOT[watched.slot].number.swap(0, Ordering::SeqCst) != 0;
    if is_there {
        COUNT.fetch_sub(1, Ordering::SeqCst);
    }
    TAKEN.give(watched.slot);
    is_there
}

/// Whether the ends of memory are heard.
pub(super) fn hears() -> bool {
    HEARS.load(Ordering::Relaxed)
}

pub(super) fn hear(whether: bool) {
    HEARS.store(whether, Ordering::Relaxed);
}

/// Watches nothing any more, in a forked child: what ends there ends for the child alone.
pub(super) fn leave_all() {
    hear(false);
    COUNT.store(0, Ordering::SeqCst);
    for slot in &SLOT {
        slot.number.store(0, Ordering::SeqCst);
    }
}

/// Whether any range is watched.
#[inline]
pub(super) fn has_any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// The number of ranges that were watched up to now, for [`ended`].
pub(super) fn so_far() -> usize {
    NUMBERS.load(Ordering::SeqCst)
}

/// Records that this memory ends by a call, where it is watched by one of the first ranges: those watched later may
/// have their memory from the allocator after it ended here.
#[inline]
pub(super) fn ended(start: usize, end: usize, call: &'static str, first: usize) {
    // No more than the counted ones have such a number: the search ends with the last of them.
    let first = first.min(so_far());
    let mut left = COUNT.load(Ordering::SeqCst);
    if start >= end || left == 0 {
        return;
    }
    TAKEN.used().any(|at| {
        let slot = &SLOT[at];
        let number = slot.number.load(Ordering::Acquire);
        if number == 0 || number > first {
            return false;
        }
        let from = slot.start.load(Ordering::Acquire);
        let to = slot.end.load(Ordering::Acquire);
        let gone = || {
            let gone = slot
                .number
                .compare_exchange(number, 0, Ordering::SeqCst, Ordering::Relaxed);
            gone.is_ok()
        };
        if start < to && from < end && gone() {
            COUNT.fetch_sub(1, Ordering::SeqCst);
            note(from.max(start), to.min(end), call);
        }
        left -= 1;
        left == 0
    });
}

#[cold]
fn note(start: usize, end: usize, call: &'static str) {
    // SAFETY: `errno` is thread-local, and the program may read it after the call.
    unsafe {
        let error = sys::__errno_location();
        let before = *error;
        hits::keep(start, end, true, Some(call), registers::here(), &[]);
        *error = before;
    }
}
