//! The table of protected pages. One lock serializes changes; the handler and the stand-ins for system calls read it
//! without the lock.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use super::apart;
use super::mask::{Mask, SLOTS};
use super::{probe, sys};

/// The number of system calls that may use memory at once. While there are more, nothing is protected.
const CALLS: usize = 128;
/// The size of the smallest huge page.
const HUGE: usize = 2 << 20;

const FREE: u8 = 0;
/// The slot's pages are being protected.
const PREPARING: u8 = 1;
const LIVE: u8 = 2;

/// A range of whole pages.
struct Slot {
    state: AtomicU8,
    /// Whether loads fault as well.
    loads: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    /// The number of uses of the slot.
    turn: AtomicU32,
}

static SLOT: [Slot; SLOTS] = [const {
    Slot {
        state: AtomicU8::new(FREE),
        loads: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        turn: AtomicU32::new(0),
    }
}; SLOTS];
static TAKEN: Mask = Mask::new();
/// The number of slots in use.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The number of releases: a fault may belong to a page that was opened before the fault was handled.
static RELEASES: AtomicUsize = AtomicUsize::new(0);
/// The lock of all changes to the table.
static OWNER: Mutex<()> = Mutex::new(());
/// Memory that system calls are using: start, end and call number. The end is zero until all three are stored.
static IN_CALL: [[AtomicUsize; 3]; CALLS] = [const { [const { AtomicUsize::new(0) }; 3] }; CALLS];
static CALLING: Mask = Mask::new();
/// The number of calls so far.
static NUMBERS: AtomicUsize = AtomicUsize::new(0);
/// The number of system calls that found no free entry there.
static MORE_CALLS: AtomicUsize = AtomicUsize::new(0);

/// A protected range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    slot: usize,
    /// The number of this use of the slot, which may have been released meanwhile.
    turn: u32,
}

fn owner() -> MutexGuard<'static, ()> {
    OWNER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of a page; cached by the first call, so that the handler only reads it.
pub fn page() -> usize {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    match PAGE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: the call only returns a number, which every system has.
            let page = unsafe { sys::sysconf(sys::_SC_PAGESIZE) } as usize;
            PAGE.store(page, Ordering::Relaxed);
            page
        }
        page => page,
    }
}

/// The maximum number of ranges that are protected at once. Each may add two mappings, and each opened page two more;
/// a process has 65,530 unless the system is configured otherwise.
fn bound() -> usize {
    static BOUND: AtomicUsize = AtomicUsize::new(0);
    static ASK: Once = Once::new();
    ASK.call_once(|| {
        let most = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let most: usize = most
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(65_530);
        BOUND.store((most / 16).clamp(1, SLOTS), Ordering::Relaxed);
    });
    BOUND.load(Ordering::Relaxed)
}

fn protection(loads: bool) -> c_int {
    if loads {
        sys::PROT_NONE
    } else {
        sys::PROT_READ
    }
}

/// # Safety
/// The pages are the program's memory, readable and writable while not protected.
unsafe fn set(start: usize, end: usize, protection: c_int) -> bool {
    // SAFETY: the caller guarantees it; the contents do not change.
    unsafe { sys::mprotect(start as *mut c_void, end - start, protection) == 0 }
}

/// Makes stores to these whole pages fault, and loads too if `loads`. `None` if that is not possible: there are too
/// many ranges, a system call uses the pages, the program may only read them, or they are not of the ordinary size.
///
/// # Safety
/// The range is whole pages of one allocation of the program, which no device accesses through the host's page
/// tables. It stays mapped until it is released.
pub unsafe fn protect(start: usize, end: usize, loads: bool) -> Option<Piece> {
    if start >= end {
        return None;
    }
    let most = bound();
    let _owner = owner();
    // The program can write memory that the device writes, and memory that is already protected.
    let is_protected = |slot: &Slot| {
        let (from, to) = bounds(slot);
        from <= start && start < to
    };
    let is_known = has_any() && live().any(|at| is_protected(&SLOT[at]));
    // SAFETY: the caller guarantees that the page belongs to the program.
    if !loads && !is_known && unsafe { !probe::can_store(start) } {
        return None;
    }
    let at = TAKEN.take(most)?;
    apart::keep(start, end);
    let slot = &SLOT[at];
    // The counter changes before the bounds, so that a thread that reads the bounds meanwhile notices the change.
    let turn = slot.turn.fetch_add(1, Ordering::SeqCst) + 1;
    slot.start.store(start, Ordering::SeqCst);
    slot.end.store(end, Ordering::SeqCst);
    slot.loads.store(loads, Ordering::SeqCst);
    slot.state.store(PREPARING, Ordering::SeqCst);
    COUNT.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    // SAFETY: the caller guarantees it.
    let done = !is_in_call(start, end) && unsafe { close(start, end, loads) };
    if !done {
        give(at);
        return None;
    }
    slot.state.store(LIVE, Ordering::SeqCst);
    Some(Piece { slot: at, turn })
}

/// Frees a slot whose pages are open.
fn give(at: usize) {
    SLOT[at].state.store(FREE, Ordering::SeqCst);
    COUNT.fetch_sub(1, Ordering::SeqCst);
    TAKEN.give(at);
}

/// # Safety
/// As for [`protect`].
unsafe fn close(start: usize, end: usize, loads: bool) -> bool {
    // A huge page cannot be opened page by page. Protecting its first small page fails, which shows what it is.
    let may_be_huge = start.is_multiple_of(HUGE) && end.is_multiple_of(HUGE);
    let how = protection(loads);
    let cut = start + page();
    // SAFETY: the caller guarantees it.
    unsafe { (!may_be_huge || set(start, cut, how)) && set(start, end, how) }
}

/// Opens the pages, and frees the slot.
pub fn release(piece: Piece) {
    // In a forked child the pages are open, and the lock may be held by a thread that does not exist there.
    if used(piece).is_none() {
        return;
    }
    let _owner = owner();
    let Some(slot) = used(piece) else {
        return;
    };
    let (start, end) = bounds(slot);
    // SAFETY: the caller that protected the pages guarantees that they are mapped, readable and writable.
    unsafe { set(start, end, sys::PROT_READ | sys::PROT_WRITE) };
    give(piece.slot);
    RELEASES.fetch_add(1, Ordering::Relaxed);
    if !has_any() {
        return;
    }
    // Pages that another slot covers stay protected: first those against stores only, then those against loads.
    let meets = |other: &&Slot| {
        let (from, to) = bounds(other);
        from < end && start < to
    };
    for loads in [false, true] {
        for other in live().map(|at| &SLOT[at]).filter(meets) {
            if other.loads.load(Ordering::Relaxed) != loads {
                continue;
            }
            let (from, to) = bounds(other);
            let (from, to) = (from.max(start), to.min(end));
            other.state.store(PREPARING, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !is_in_call(from, to) {
                // SAFETY: as above, by the caller that protected the other range.
                unsafe { set(from, to, protection(loads)) };
            }
            other.state.store(LIVE, Ordering::SeqCst);
        }
    }
}

/// The slot of a piece that was not released yet.
fn used(piece: Piece) -> Option<&'static Slot> {
    let slot = &SLOT[piece.slot];
    let is_its_own = slot.turn.load(Ordering::Relaxed) == piece.turn;
    (is_its_own && slot.state.load(Ordering::SeqCst) != FREE).then_some(slot)
}

/// Opens all pages, and frees all slots.
pub fn release_all() {
    let _owner = owner();
    open_all();
    apart::end();
    RELEASES.fetch_add(1, Ordering::Relaxed);
}

/// The memory is about to be unmapped: overlapping ranges are opened, and their slots freed.
pub fn forget(start: usize, end: usize) {
    let meets = |from: usize, to: usize| from < end && start < to;
    if !has_any() || !seen().any(|(_, from, to)| meets(from, to)) {
        return;
    }
    let _owner = owner();
    for at in live() {
        let (from, to) = bounds(&SLOT[at]);
        if meets(from, to) {
            // SAFETY: as in `release`.
            unsafe { set(from, to, sys::PROT_READ | sys::PROT_WRITE) };
            give(at);
        }
    }
    RELEASES.fetch_add(1, Ordering::Relaxed);
}

/// Whether any page is protected.
#[inline]
pub fn has_any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// The end of the protected range that contains an address, if there is one.
pub fn end_at(address: usize) -> Option<usize> {
    let mut all = seen();
    all.find_map(|(_, from, to)| (from <= address && address < to).then_some(to))
}

/// Opens all pages without taking the lock: in a forked child it may be held by a thread that does not exist there.
pub fn open_all() {
    for at in live() {
        let (start, end) = bounds(&SLOT[at]);
        // SAFETY: as in `release`.
        unsafe { set(start, end, sys::PROT_READ | sys::PROT_WRITE) };
        give(at);
    }
}

fn bounds(slot: &Slot) -> (usize, usize) {
    (
        slot.start.load(Ordering::SeqCst),
        slot.end.load(Ordering::SeqCst),
    )
}

/// The slots in use, for a caller that has the lock.
fn live() -> impl Iterator<Item = usize> {
    let is_live = |at: &usize| SLOT[*at].state.load(Ordering::SeqCst) != FREE;
    TAKEN.used().filter(is_live)
}

/// The slots in use with their bounds, without the lock: both bounds belong to the same use.
fn seen() -> impl Iterator<Item = (&'static Slot, usize, usize)> {
    TAKEN.used().filter_map(|at| {
        let slot = &SLOT[at];
        loop {
            let turn = slot.turn.load(Ordering::SeqCst);
            if slot.state.load(Ordering::SeqCst) == FREE {
                return None;
            }
            let (start, end) = bounds(slot);
            if slot.turn.load(Ordering::SeqCst) == turn {
                return Some((slot, start, end));
            }
        }
    })
}

/// The number of releases.
pub fn releases() -> usize {
    RELEASES.load(Ordering::Relaxed)
}

/// Opens the page of an address, if it is protected against this access. Returns whether it was. Called by the
/// handler.
pub fn open_page(address: usize, store: bool) -> bool {
    let page = page();
    let start = address / page * page;
    let mut found = false;
    for (slot, from, to) in seen() {
        if from <= start && start < to && (store || slot.loads.load(Ordering::Relaxed)) {
            found = true;
        }
    }
    // SAFETY: the page is in a slot, so the caller that protected it guarantees that it is writable memory.
    found && unsafe { set(start, start + page, sys::PROT_READ | sys::PROT_WRITE) }
}

/// Memory that a system call uses, in one or several pieces, until this is dropped.
#[derive(Default)]
pub struct InCall {
    /// The call's number, once it has an entry.
    number: usize,
    first: usize,
    rooms: usize,
    /// The number of pieces that found no free entry.
    more: usize,
}

impl InCall {
    /// From here on these bytes are not protected, and protected ones are opened. Returns whether any byte was
    /// protected against this use.
    pub fn enter(&mut self, start: usize, end: usize, store: bool) -> bool {
        if let Some(at) = CALLING.take(CALLS) {
            if self.rooms == 0 {
                self.number = NUMBERS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
                self.first = at;
            }
            self.rooms += 1;
            for (place, value) in [(2, self.number), (0, start), (1, end)] {
                IN_CALL[at][place].store(value, Ordering::SeqCst);
            }
        } else {
            self.more += 1;
            MORE_CALLS.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        let mut was = false;
        for (slot, from, to) in seen() {
            if from >= end || to <= start {
                continue;
            }
            while slot.state.load(Ordering::SeqCst) == PREPARING {
                std::hint::spin_loop();
            }
            if slot.state.load(Ordering::SeqCst) != LIVE {
                continue;
            }
            let page = page();
            let first = from.max(start / page * page);
            let last = to.min(end.div_ceil(page) * page);
            if first < last {
                was |= store || slot.loads.load(Ordering::Relaxed);
                // SAFETY: the pages are in a slot, so the caller that protected them guarantees that they are writable memory.
                unsafe { set(first, last, sys::PROT_READ | sys::PROT_WRITE) };
            }
        }
        was
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        let mut rooms = (self.first..CALLS).chain(0..self.first);
        while self.rooms > 0
            && let Some(at) = rooms.next()
        {
            if IN_CALL[at][2].load(Ordering::SeqCst) == self.number {
                for place in [2, 0, 1] {
                    IN_CALL[at][place].store(0, Ordering::SeqCst);
                }
                CALLING.give(at);
                self.rooms -= 1;
            }
        }
        MORE_CALLS.fetch_sub(self.more, Ordering::SeqCst);
    }
}

fn is_in_call(start: usize, end: usize) -> bool {
    let meets = |at: usize| {
        let to = IN_CALL[at][1].load(Ordering::SeqCst);
        // What is not known yet counts as all memory.
        to == 0 || (IN_CALL[at][0].load(Ordering::SeqCst) < end && start < to)
    };
    MORE_CALLS.load(Ordering::SeqCst) > 0 || CALLING.used().any(meets)
}
