//! Recorded accesses, until they are fetched. The slots are preallocated, since the handler must not allocate.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::lines::{self, Frames};
use crate::stack::{Registers, Stack};
use crate::system;

/// The number of accesses that are kept until they are fetched. Further ones are only counted.
const ROOM: usize = 128;

const FREE: u8 = 0;
const WRITING: u8 = 1;
const READY: u8 = 2;

/// The call of a hit that says only that some call failed with `EFAULT`, since the kernel could not access protected
/// memory.
pub const REFUSED: &str = "EFAULT";

/// The name of the call that an access is a part of; `None` for a load or a store.
type Call = Option<&'static str>;

/// A host access to memory that was protected.
#[derive(Clone, Copy)]
pub struct Hit {
    /// The address of the first byte.
    pub start: usize,
    /// The address after the last known byte.
    pub end: usize,
    /// Whether the access is a store.
    pub store: bool,
    /// The system's thread ID.
    pub thread: i32,
    /// The address of the accessing code; zero for a system call.
    pub code: usize,
    /// The system call; `None` for a load or a store.
    pub call: Call,
    /// The program's own lines at the access.
    pub frames: Frames,
    /// The native stack of the thread at the access.
    pub stack: Stack,
    /// The first bytes from `start` on that a load read, or that were there before a store; none for a call.
    pub before: [u8; Hit::BEFORE],
    /// The number of these bytes: fewer than there is room for at the end of a page.
    pub before_len: u8,
}

impl Hit {
    /// The number of bytes that are kept of the memory.
    pub const BEFORE: usize = 16;

    /// The name of the accessing function, or of its library.
    pub fn function(&self) -> Option<String> {
        system::function_at(self.code)
    }
}

struct Room {
    state: AtomicU8,
    hit: UnsafeCell<Hit>,
}

// SAFETY: the thread that changed the state from FREE or READY to WRITING has exclusive access to the hit until it sets the state again.
unsafe impl Sync for Room {}

/// All zeros, so that it takes no space in the library's file: it would be more than a megabyte.
static HITS: [Room; ROOM] = [const {
    Room {
        state: AtomicU8::new(FREE),
        hit: UnsafeCell::new(Hit {
            start: 0,
            end: 0,
            store: false,
            thread: 0,
            code: 0,
            call: None,
            frames: Frames::NONE,
            stack: Stack::NONE,
            before: [0; Hit::BEFORE],
            before_len: 0,
        }),
    }
}; ROOM];
/// The number of recorded accesses.
static NOTED: AtomicU64 = AtomicU64::new(0);
/// The number of accesses that found no free slot.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The number of recorded accesses so far; a change shows that there are new ones.
#[inline]
pub fn noted() -> u64 {
    NOTED.load(Ordering::Acquire)
}

/// The number of accesses that were not kept.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

impl Room {
    fn take(&self, from: u8) -> bool {
        let taken =
            self.state
                .compare_exchange(from, WRITING, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }
}

/// The system's ID of the calling thread.
pub fn this_thread() -> i32 {
    system::this_thread()
}

/// Records an access. If the same line of this thread has just reached the end of the previous page, the recorded
/// access is extended. The handler and the stand-ins call this: it takes no lock and allocates nothing.
pub fn note(start: usize, end: usize, store: bool, call: Call, at: Registers, before: &[u8]) {
    if !extends(start, end, store, call, at.sp) {
        keep(start, end, store, call, at, before);
    }
}

/// Whether an access goes on where a recorded one ended, which is then extended.
fn extends(start: usize, end: usize, store: bool, call: Call, sp: usize) -> bool {
    let thread = this_thread();
    let at = lines::place();
    for room in &HITS {
        if !room.take(READY) {
            continue;
        }
        // SAFETY: this thread has taken the slot.
        let known = unsafe { &mut *room.hit.get() };
        // Where no line is known, the same function's frame stands for it.
        let goes_on = known.thread == thread
            && known.store == store
            && known.frames.place == at
            && (at != (0, 0) || known.stack.sp == sp)
            && known.call == call
            && start / system::page() == known.end.div_ceil(system::page());
        if goes_on {
            known.end = end;
        }
        room.state.store(READY, Ordering::Release);
        if goes_on {
            return true;
        }
    }
    false
}

/// Like [`note`], but never extends another access.
pub fn keep(start: usize, end: usize, store: bool, call: Call, at: Registers, before: &[u8]) {
    let Some(room) = HITS.iter().find(|room| room.take(FREE)) else {
        LOST.fetch_add(1, Ordering::Relaxed);
        return;
    };
    // SAFETY: this thread has taken the slot. The lines and the stack are written in place, since they are large and a handler's stack may be small.
    unsafe {
        let hit = &mut *room.hit.get();
        (hit.start, hit.end, hit.store) = (start, end, store);
        (hit.thread, hit.call) = (this_thread(), call);
        hit.code = if call.is_none() { at.pc } else { 0 };
        (hit.before, hit.before_len) = ([0; Hit::BEFORE], before.len() as u8);
        hit.before[..before.len()].copy_from_slice(before);
        lines::read(&mut hit.frames);
        hit.stack.read(at, lines::has_stacks());
    }
    room.state.store(READY, Ordering::Release);
    NOTED.fetch_add(1, Ordering::Release);
}

/// Fetches all recorded accesses.
pub fn take(mut each: impl FnMut(&Hit)) {
    for room in HITS.iter().filter(|room| room.take(READY)) {
        // SAFETY: this thread has taken the slot. `each` may fault itself; the handler then does not use this slot, since it is not ready.
        each(unsafe { &*room.hit.get() });
        room.state.store(FREE, Ordering::Release);
    }
}
