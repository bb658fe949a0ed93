//! Accesses that were noted, until they are fetched. There is room for some from the start: the handler may not allocate.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::lines::{self, Frames};
use crate::table;

/// How many are kept until they are fetched. Further ones are only counted.
const ROOM: usize = 128;

const FREE: u8 = 0;
const WRITING: u8 = 1;
const READY: u8 = 2;

/// What stands for the call where one failed, and nothing is known of it but that: with `EFAULT`, since the kernel may not use some memory.
pub const REFUSED: &str = "EFAULT";

/// An access of the host to memory that was protected.
#[derive(Clone, Copy)]
pub struct Hit {
    /// The first byte.
    pub start: usize,
    /// One past the last byte that is known of.
    pub end: usize,
    /// Whether it is a store.
    pub store: bool,
    /// The system's number of the thread.
    pub thread: i32,
    /// Where the code is that did it; zero for a system call.
    pub code: usize,
    /// The system call; none for a load or a store.
    pub call: Option<&'static str>,
    /// Where the program was by its own account.
    pub frames: Frames,
}

impl Hit {
    /// The function that did it, or the library that it is in.
    pub fn function(&self) -> Option<String> {
        // SAFETY: all zeros are a value of it.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: any address may be asked for.
        if unsafe { libc::dladdr(self.code as *const c_void, &mut found) } == 0 {
            return None;
        }
        let text = |name: *const c_char| {
            if name.is_null() {
                return None;
            }
            // SAFETY: a name that the loader gave ends with a zero and lives as long as the library.
            let name = unsafe { CStr::from_ptr(name) };
            Some(name.to_string_lossy().into_owned())
        };
        let file = text(found.dli_fname)?;
        let library = file.rsplit('/').next().unwrap_or(&file).to_owned();
        Some(match text(found.dli_sname) {
            Some(function) => format!("{function} in {library}"),
            None => library,
        })
    }
}

struct Room {
    state: AtomicU8,
    hit: UnsafeCell<Hit>,
}

// SAFETY: the thread that took the state from FREE or READY to WRITING is alone with the hit until it sets the state again.
unsafe impl Sync for Room {}

/// All zeros, so that the library's file has none of it: it would be half a megabyte.
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
        }),
    }
}; ROOM];
/// How many there were.
static NOTED: AtomicU64 = AtomicU64::new(0);
/// How many found no room.
static LOST: AtomicU64 = AtomicU64::new(0);

/// How many there were so far: to ask whether there are new ones.
#[inline]
pub fn noted() -> u64 {
    NOTED.load(Ordering::Acquire)
}

/// How many were not kept.
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

/// The thread's number.
pub fn this_thread() -> i32 {
    // SAFETY: it asks the system for a number.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Notes an access. Where the same line of this thread has just reached the end of a page, this is the same one going on.
/// Called by the handler and around system calls: it takes no lock and allocates nothing.
pub fn note(start: usize, end: usize, store: bool, code: usize, call: Option<&'static str>) {
    let thread = this_thread();
    let at = lines::place();
    for room in &HITS {
        if !room.take(READY) {
            continue;
        }
        // SAFETY: taken.
        let known = unsafe { &mut *room.hit.get() };
        let goes_on = known.thread == thread
            && known.store == store
            && known.frames.place == at
            && known.call == call
            && start / table::page() == known.end.div_ceil(table::page());
        if goes_on {
            known.end = end;
        }
        room.state.store(READY, Ordering::Release);
        if goes_on {
            return;
        }
    }
    let Some(room) = HITS.iter().find(|room| room.take(FREE)) else {
        LOST.fetch_add(1, Ordering::Relaxed);
        return;
    };
    // SAFETY: taken. The frames are written in place, since they are large and a handler's stack may be small.
    unsafe {
        let hit = &mut *room.hit.get();
        (hit.start, hit.end, hit.store) = (start, end, store);
        (hit.thread, hit.code, hit.call) = (thread, code, call);
        lines::read(&mut hit.frames);
    }
    room.state.store(READY, Ordering::Release);
    NOTED.fetch_add(1, Ordering::Release);
}

/// Fetches all that were noted.
pub fn take(mut each: impl FnMut(&Hit)) {
    for room in HITS.iter().filter(|room| room.take(READY)) {
        // SAFETY: taken. What Python's side does with it may fault, and then finds no room here that is ready.
        each(unsafe { &*room.hit.get() });
        room.state.store(FREE, Ordering::Release);
    }
}
