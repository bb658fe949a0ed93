//! Tests what the guard guarantees, through its public functions. Pages and signal handlers belong to the process, so
//! one test runs at a time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use host_guard::hits::{self, Hit};
use host_guard::lines::{self, Frames};
use host_guard::{ends, page, protect, release};

/// Counts the allocations of a thread.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: the caller guarantees it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees it.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Watches memory until it is dropped, for one test at a time.
struct Watched(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

fn watched() -> Watched {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the name ends with a zero byte. C++'s library does nothing when it is loaded.
    let loaded = unsafe {
        libc::dlopen(
            c"libstdc++.so.6".as_ptr(),
            libc::RTLD_NOW | libc::RTLD_GLOBAL,
        )
    };
    assert!(!loaded.is_null());
    lines::come_from(lines::Source {
        place,
        read,
        stack: true,
    });
    recorded();
    host_guard::begin(true);
    assert_eq!(host_guard::why_off(), None);
    assert!(host_guard::is_ready());
    Watched(one)
}

impl Drop for Watched {
    fn drop(&mut self) {
        host_guard::end();
    }
}

/// Zeroed pages from the system.
struct Pages {
    start: usize,
    bytes: usize,
}

impl Pages {
    fn new(count: usize) -> Pages {
        let bytes = count * page();
        let how = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory at an address that the system chooses.
        let at = unsafe { libc::mmap(null_mut(), bytes, how, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let start = at as usize;
        Pages { start, bytes }
    }

    fn at(&self, byte: usize) -> *mut u8 {
        assert!(byte < self.bytes);
        (self.start + byte) as *mut u8
    }

    #[inline(never)]
    fn store(&self, byte: usize, value: u8) {
        // SAFETY: the byte is inside the pages, and no two threads of a test use the same byte.
        unsafe { self.at(byte).write_volatile(value) };
    }

    #[inline(never)]
    fn load(&self, byte: usize) -> u8 {
        // SAFETY: as above.
        unsafe { self.at(byte).read_volatile() }
    }

    /// Protects some of the pages.
    fn protect(&self, from: usize, to: usize, loads: bool) -> Option<host_guard::Piece> {
        let page = page();
        // SAFETY: these are whole pages of one mapping, which no device accesses.
        unsafe { protect(self.start + from * page, self.start + to * page, loads) }
    }

    /// The recorded accesses: first and last offset in these pages, whether each is a store, and its call.
    fn recorded(&self) -> Vec<(usize, usize, bool, &'static str)> {
        let mut all = recorded();
        all.retain(|hit| self.start <= hit.start && hit.start < self.start + self.bytes);
        let seen = |hit: Hit| {
            let (start, end) = (hit.start - self.start, hit.end - self.start);
            (start, end, hit.store, hit.call.unwrap_or(""))
        };
        let mut all: Vec<_> = all.into_iter().map(seen).collect();
        all.sort_unstable();
        all
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: no pointer to the memory is left.
        unsafe { libc::munmap(self.start as *mut c_void, self.bytes) };
    }
}

fn recorded() -> Vec<Hit> {
    let mut all = Vec::new();
    hits::take(|hit| all.push(*hit));
    all
}

/// The stand-in for a function of the C library.
fn stand_in(name: &CStr) -> usize {
    // SAFETY: the name ends with a zero byte.
    let real = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    host_guard::in_place_of(real as usize).unwrap_or_else(|| panic!("{name:?} has no stand-in"))
}

type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;

/// The two ends of a pipe that has these bytes in it.
fn pipe(bytes: &[u8]) -> [c_int; 2] {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors, and the bytes are valid.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let put = libc::write(ends[1], bytes.as_ptr().cast(), bytes.len());
        assert_eq!(put, bytes.len() as isize);
    }
    ends
}

#[test]
fn a_store_is_executed_and_recorded_to_the_byte() {
    let _watched = watched();
    let pages = Pages::new(3);
    let piece = pages.protect(0, 3, false).unwrap();
    assert_eq!(pages.load(page() + 7), 0);
    assert_eq!(pages.recorded(), []);
    pages.store(page() + 7, 5);
    assert_eq!(pages.load(page() + 7), 5);
    let found = recorded();
    let [hit] = &found[..] else {
        panic!("{} were recorded", found.len());
    };
    let byte = pages.at(page() + 7) as usize;
    assert_eq!((hit.start, hit.end, hit.store), (byte, byte + 1, true));
    assert_eq!((hit.call, hit.thread), (None, hits::this_thread()));
    assert!(hit.function().is_some());
    // This page is open, the others are not.
    pages.store(page() + 8, 6);
    pages.store(0, 7);
    assert_eq!(pages.recorded(), [(0, 1, true, "")]);
    release(piece);
}

#[test]
fn loads_are_recorded_if_they_are_requested() {
    let _watched = watched();
    let pages = Pages::new(2);
    let stores = pages.protect(0, 1, false).unwrap();
    let both = pages.protect(1, 2, true).unwrap();
    assert_eq!((pages.load(3), pages.load(page() + 3)), (0, 0));
    assert_eq!(pages.recorded(), [(page() + 3, page() + 4, false, "")]);
    release(stores);
    release(both);
}

#[test]
fn accesses_to_released_pages_are_recorded_only_if_another_piece_has_them() {
    let _watched = watched();
    let pages = Pages::new(3);
    let one = pages.protect(0, 2, false).unwrap();
    let other = pages.protect(1, 3, true).unwrap();
    release(one);
    pages.store(0, 1);
    pages.store(page(), 2);
    assert_eq!(pages.recorded(), [(page(), page() + 1, true, "")]);
    // A piece may be released more than once.
    release(one);
    assert_eq!(pages.load(2 * page()), 0);
    assert_eq!(pages.recorded(), [(2 * page(), 2 * page() + 1, false, "")]);
    release(other);
    let again = pages.protect(0, 3, true).unwrap();
    release(other);
    assert_eq!(pages.load(0), 1);
    assert_eq!(pages.recorded(), [(0, 1, false, "")]);
    release(again);
    pages.store(page(), 3);
    assert_eq!(pages.recorded(), []);
}

#[test]
fn a_system_call_is_made_with_the_pages_open_and_recorded() {
    let _watched = watched();
    let pages = Pages::new(1);
    let piece = pages.protect(0, 1, false).unwrap();
    let ends = pipe(b"hallo");
    // SAFETY: the stand-in has the signature of `read`; the memory is valid.
    unsafe {
        // A call that is not redirected is refused by the kernel.
        let refused = libc::read(ends[0], pages.at(10).cast(), 5);
        assert_eq!((refused, *libc::__errno_location()), (-1, libc::EFAULT));
        let read = std::mem::transmute::<usize, Read>(stand_in(c"read"));
        assert_eq!(read(ends[0], pages.at(10).cast(), 100), 5);
    }
    assert_eq!((pages.load(10), pages.load(14)), (b'h', b'o'));
    assert_eq!(pages.recorded(), [(10, 15, true, "read")]);
    release(piece);
}

#[test]
fn of_several_pieces_of_a_call_the_protected_ones_are_recorded() {
    let _watched = watched();
    let pages = Pages::new(3);
    let first = pages.protect(0, 1, false).unwrap();
    let last = pages.protect(2, 3, false).unwrap();
    let ends = pipe(b"abcdefgh");
    let piece = |byte: usize, count| libc::iovec {
        iov_base: pages.at(byte).cast(),
        iov_len: count,
    };
    let pieces = [piece(0, 2), piece(page(), 2), piece(2 * page(), 10)];
    type Readv = unsafe extern "C" fn(c_int, *const libc::iovec, c_int) -> isize;
    // SAFETY: the stand-in has the signature of `readv`; the memory is valid.
    unsafe {
        let readv = std::mem::transmute::<usize, Readv>(stand_in(c"readv"));
        assert_eq!(readv(ends[0], pieces.as_ptr(), 3), 8);
    }
    assert_eq!(pages.load(2 * page() + 3), b'h');
    let last_bytes = (2 * page(), 2 * page() + 4, true, "readv");
    assert_eq!(pages.recorded(), [(0, 2, true, "readv"), last_bytes]);
    release(first);
    release(last);
}

#[test]
fn unmapped_memory_is_forgotten() {
    let _watched = watched();
    let pages = Pages::new(2);
    let piece = pages.protect(0, 2, true).unwrap();
    type Unmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
    // SAFETY: the stand-in has the signature of `munmap`. What is mapped there next belongs to this test, too.
    unsafe {
        let unmap = std::mem::transmute::<usize, Unmap>(stand_in(c"munmap"));
        assert_eq!(unmap(pages.at(0).cast(), pages.bytes), 0);
        let how = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let new = libc::mmap(pages.at(0).cast(), pages.bytes, how, kind, -1, 0);
        assert_eq!(new, pages.at(0).cast());
    }
    pages.store(5, 1);
    assert_eq!(pages.recorded(), []);
    release(piece);
}

#[test]
fn read_only_memory_is_not_protected() {
    let _watched = watched();
    let pages = Pages::new(1);
    // SAFETY: the page is mapped.
    let set = unsafe { libc::mprotect(pages.at(0).cast(), page(), libc::PROT_READ) };
    assert_eq!(set, 0);
    assert_eq!(pages.protect(0, 1, false), None);
    assert_eq!(pages.protect(0, 0, true), None);
}

/// The page that another handler opens, and the number of times that it did.
static OTHERS_PAGE: AtomicUsize = AtomicUsize::new(0);
static OTHERS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn others_handler(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the system passes the arguments that the flags require; the page belongs to the test.
    unsafe {
        let place = (*info).si_addr() as usize / page() * page();
        assert_eq!(place, OTHERS_PAGE.load(Ordering::SeqCst));
        let how = libc::PROT_READ | libc::PROT_WRITE;
        libc::mprotect(place as *mut c_void, page(), how);
    }
    OTHERS.fetch_add(1, Ordering::SeqCst);
}

/// Installs the other handler through this function, and returns the previous action.
fn set_other(sigaction: usize) -> libc::sigaction {
    type Set = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    // SAFETY: the handler has the signature that the flag says, and the function is `sigaction` or its stand-in.
    unsafe {
        let set = std::mem::transmute::<usize, Set>(sigaction);
        let [mut new, mut old]: [libc::sigaction; 2] = std::mem::zeroed();
        new.sa_sigaction = others_handler as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO;
        assert_eq!(set(libc::SIGSEGV, &new, &mut old), 0);
        old
    }
}

/// Causes a fault that is not the guard's, and one that is.
fn both_faults() {
    let (theirs, ours) = (Pages::new(1), Pages::new(1));
    OTHERS_PAGE.store(theirs.start, Ordering::SeqCst);
    let before = OTHERS.load(Ordering::SeqCst);
    // SAFETY: the page is mapped.
    let set = unsafe { libc::mprotect(theirs.at(0).cast(), page(), libc::PROT_NONE) };
    assert_eq!(set, 0);
    let piece = ours.protect(0, 1, false).unwrap();
    theirs.store(3, 1);
    ours.store(4, 1);
    assert_eq!(OTHERS.load(Ordering::SeqCst), before + 1);
    assert_eq!((theirs.recorded(), ours.recorded().len()), (vec![], 0));
    assert_eq!((theirs.load(3), ours.load(4)), (1, 1));
    release(piece);
}

#[test]
fn faults_of_others_go_to_the_previous_handler_which_is_restored() {
    let one = watched();
    host_guard::end();
    let real = libc::sigaction as *const () as usize;
    let before = set_other(real);
    host_guard::begin(true);
    both_faults();
    host_guard::end();
    let found = set_other(real);
    assert_eq!(found.sa_sigaction, others_handler as *const () as usize);
    // SAFETY: this is the previous action.
    unsafe { libc::sigaction(libc::SIGSEGV, &before, null_mut()) };
    host_guard::begin(true);
    drop(one);
}

#[test]
fn a_handler_that_is_set_meanwhile_is_called_after_the_guard() {
    let _watched = watched();
    let before = set_other(stand_in(c"sigaction"));
    both_faults();
    type Set = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    // SAFETY: the stand-in has the signature of `sigaction`; this is the previous action.
    unsafe {
        let set = std::mem::transmute::<usize, Set>(stand_in(c"sigaction"));
        assert_eq!(set(libc::SIGSEGV, &before, null_mut()), 0);
    }
    assert!(host_guard::is_ready());
}

#[test]
fn a_thread_that_blocks_all_signals_may_fault() {
    let _watched = watched();
    let pages = Pages::new(1);
    let piece = pages.protect(0, 1, false).unwrap();
    type Set = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;
    std::thread::scope(|threads| {
        let blocks = || {
            // SAFETY: the stand-in has the signature of `pthread_sigmask`; the set is filled.
            unsafe {
                let set = std::mem::transmute::<usize, Set>(stand_in(c"pthread_sigmask"));
                let [mut every, mut now]: [libc::sigset_t; 2] = std::mem::zeroed();
                libc::sigfillset(&mut every);
                assert_eq!(set(libc::SIG_BLOCK, &every, null_mut()), 0);
                assert_eq!(set(libc::SIG_BLOCK, std::ptr::null(), &mut now), 0);
                assert_eq!(libc::sigismember(&now, libc::SIGTERM), 1);
            }
            pages.store(1, 1);
        };
        threads.spawn(blocks);
    });
    assert_eq!(pages.recorded(), [(1, 2, true, "")]);
    release(piece);
}

#[test]
fn a_forked_child_has_all_pages_open_and_watches_nothing() {
    let _watched = watched();
    let pages = Pages::new(2);
    let piece = pages.protect(0, 2, true).unwrap();
    let (block, free) = (block(100), stand_in(c"free"));
    let watched = ends::watch(block, block + 100).unwrap();
    // SAFETY: the child calls only what is allowed after a fork, and ends with `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let noted = hits::noted();
        pages.store(1, pages.load(page()) + 1);
        release(piece);
        // SAFETY: the block is freed once in this process.
        unsafe { call(free, block, 0) };
        host_guard::begin(true);
        let is_right = hits::noted() == noted && pages.load(1) == 1 && !host_guard::is_ready();
        host_guard::end();
        // SAFETY: as above.
        unsafe { libc::_exit(if is_right { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: `status` has room for the result.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    // Nothing changed for the parent.
    assert_eq!(pages.load(1), 0);
    assert_eq!(pages.recorded(), [(1, 2, false, "")]);
    assert!(ends::leave(watched));
    // SAFETY: the block is freed once in this process.
    unsafe { call(free, block, 0) };
    release(piece);
}

#[test]
fn nothing_is_protected_once_the_guard_is_off() {
    let _watched = watched();
    let pages = Pages::new(1);
    let piece = pages.protect(0, 1, true).unwrap();
    host_guard::off("the first reason");
    host_guard::off("a later one");
    assert_eq!(host_guard::why_off().as_deref(), Some("the first reason"));
    assert!(!host_guard::is_ready());
    pages.store(0, pages.load(0) + 1);
    assert_eq!(pages.recorded(), []);
    release(piece);
}

#[test]
fn accesses_beyond_the_room_are_counted() {
    let _watched = watched();
    let pages = Pages::new(400);
    let piece = pages.protect(0, 400, false).unwrap();
    let (noted, lost) = (hits::noted(), hits::lost());
    // Every other page: an access to the next page would extend the previous access.
    for at in (0..400).step_by(2) {
        pages.store(at * page(), 1);
    }
    let kept = hits::noted() - noted;
    assert_eq!(kept + hits::lost() - lost, 200);
    assert_eq!(pages.recorded().len() as u64, kept);
    release(piece);
}

/// Whether the test's source reports lines.
static SAYS: AtomicBool = AtomicBool::new(false);

fn place() -> (usize, usize) {
    if SAYS.load(Ordering::SeqCst) {
        (1, 2)
    } else {
        (0, 0)
    }
}

fn read(into: &mut Frames) {
    while SAYS.load(Ordering::SeqCst)
        && let Some(line) = into.next(place())
    {
        line.number = 7;
        line.file.keep_end(b"train.py");
        line.name.keep_end(&[b'n'; 300]);
    }
}

#[test]
fn an_access_has_the_lines_of_the_program_and_continues_from_page_to_page() {
    let _watched = watched();
    let pages = Pages::new(4);
    let piece = pages.protect(0, 4, false).unwrap();
    SAYS.store(true, Ordering::SeqCst);
    for byte in 0..3 * page() {
        pages.store(byte, 1);
    }
    SAYS.store(false, Ordering::SeqCst);
    let found = recorded();
    let [hit] = &found[..] else {
        panic!("{} were recorded", found.len());
    };
    // The range ends after the first byte of the last page reached.
    let (start, end) = (hit.start - pages.start, hit.end - pages.start);
    assert_eq!((start, end), (0, 2 * page() + 1));
    let lines: Vec<_> = hit.frames.lines().collect();
    assert_eq!(lines.len(), Frames::MOST);
    let (file, name, number) = &lines[0];
    assert_eq!((&**file, *number), ("train.py", 7));
    // Longer names lose their beginning.
    assert!(name.len() < 300 && name.chars().all(|letter| letter == 'n'));
    release(piece);
}

#[test]
fn a_fault_and_a_call_allocate_nothing() {
    let _watched = watched();
    let pages = Pages::new(2);
    let piece = pages.protect(0, 2, true).unwrap();
    let ends = pipe(b"hallo");
    // SAFETY: the stand-in has the signature of `read`.
    let read = unsafe { std::mem::transmute::<usize, Read>(stand_in(c"read")) };
    let before = ALLOCATED.get();
    pages.store(1, pages.load(0) + 1);
    // SAFETY: the memory is valid.
    let got = unsafe { read(ends[0], pages.at(page()).cast(), 5) };
    assert_eq!((got, ALLOCATED.get()), (5, before));
    let first = pages.recorded();
    assert_eq!(first.len(), 2, "{first:?}");
    release(piece);
}

#[test]
fn threads_fault_while_others_protect_and_release() {
    let _watched = watched();
    const EACH: usize = 300;
    let pages = Pages::new(8);
    std::thread::scope(|threads| {
        for own in 0..4 {
            let pages = &pages;
            threads.spawn(move || {
                for turn in 0..EACH {
                    let piece = pages.protect(own * 2, own * 2 + 2, turn % 2 == 0);
                    pages.store(own * 2 * page() + turn, turn as u8);
                    assert_eq!(pages.load(own * 2 * page() + turn), turn as u8);
                    piece.into_iter().for_each(release);
                    hits::take(|_| ());
                }
            });
        }
    });
    for own in 0..4 {
        for turn in 0..EACH {
            assert_eq!(pages.load(own * 2 * page() + turn), turn as u8);
        }
    }
}

/// A block of the heap.
fn block(bytes: usize) -> usize {
    // SAFETY: new memory.
    let block = unsafe { libc::malloc(bytes) } as usize;
    assert_ne!(block, 0);
    block
}

/// Calls a function of the C library that has one or two arguments.
///
/// # Safety
/// The arguments are as the function requires.
unsafe fn call(function: usize, at: usize, bytes: usize) -> usize {
    type Call = unsafe extern "C" fn(usize, usize) -> usize;
    // SAFETY: the caller guarantees it; an argument more is ignored.
    unsafe { std::mem::transmute::<usize, Call>(function)(at, bytes) }
}

/// The address of the real function.
fn real(name: &CStr) -> usize {
    // SAFETY: the name ends with a zero byte.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
}

/// The recorded ends of memory: the bounds, and the call.
fn ended() -> Vec<(usize, usize, &'static str)> {
    let all = recorded().into_iter();
    all.map(|hit| {
        assert!(hit.store);
        (hit.start, hit.end, hit.call.unwrap_or(""))
    })
    .collect()
}

#[test]
fn watched_memory_that_is_freed_is_recorded_once() {
    let _watched = watched();
    let [free, delete] = [c"free", c"_ZdlPv"].map(stand_in);
    // C++'s real function frees through an entry of its library, which is redirected.
    for (function, name) in [
        (free, "free"),
        (delete, "operator delete"),
        (real(c"_ZdlPv"), "free"),
    ] {
        let (one, other) = (block(1000), block(1000));
        // SAFETY: the block is alive.
        let usable = unsafe { libc::malloc_usable_size(one as *mut c_void) };
        let inside = ends::watch(one + 8, one + 24).unwrap();
        // Up to the next block.
        let across = ends::watch(one + 900, one + usable + 8).unwrap();
        // SAFETY: each block is freed once.
        unsafe {
            call(function, other, 0);
            assert_eq!(ended(), []);
            call(function, one, 0);
            let [first, second] = [(one + 8, one + 24, name), (one + 900, one + usable, name)];
            assert_eq!(ended(), [first, second]);
            // The memory is given to another owner.
            call(function, block(1000), 0);
        }
        assert_eq!(ended(), []);
        assert_eq!([inside, across].map(ends::leave), [false, false]);
    }
}

#[test]
fn memory_that_is_no_longer_watched_may_end() {
    let _watched = watched();
    let block = block(1000);
    let watched = ends::watch(block, block + 1000).unwrap();
    assert!(ends::leave(watched));
    // SAFETY: the block is freed once.
    unsafe { call(stand_in(c"free"), block, 0) };
    assert_eq!(ended(), []);
}

#[test]
fn of_memory_that_is_reallocated_what_moves_or_is_cut_off_ends() {
    let _watched = watched();
    let realloc = stand_in(c"realloc");
    let block = block(100_000);
    let watched = [(0, 10), (90_000, 90_010)]
        .map(|(from, to)| ends::watch(block + from, block + to).unwrap());
    // SAFETY: the block is freed at the end.
    unsafe {
        assert_eq!(call(realloc, block, 50_000), block);
        assert_eq!(ended(), [(block + 90_000, block + 90_010, "realloc")]);
        let moved = call(realloc, block, 64 << 20);
        assert_ne!(moved, block);
        assert_eq!(ended(), [(block, block + 10, "realloc")]);
        call(stand_in(c"free"), moved, 0);
    }
    assert_eq!(watched.map(ends::leave), [false, false]);
}

#[test]
fn memory_that_is_unmapped_or_moved_ends() {
    let _watched = watched();
    let pages = Pages::new(8);
    let bytes = page();
    let watch = |first: usize, last| {
        let place = |page| pages.start + page * bytes;
        ends::watch(place(first), place(last)).unwrap()
    };
    let (first, last) = (watch(0, 3), watch(4, 8));
    type Move = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
    // SAFETY: the stand-ins have these signatures, and no one uses the pages.
    unsafe {
        assert_eq!(
            call(stand_in(c"munmap"), pages.start + 2 * bytes, 2 * bytes),
            0
        );
        assert_eq!(pages.recorded(), [(2 * bytes, 3 * bytes, true, "munmap")]);
        let moves = std::mem::transmute::<usize, Move>(stand_in(c"mremap"));
        let (how, whole) = (libc::MREMAP_MAYMOVE, pages.at(4 * bytes).cast());
        // The pages before those that move stay.
        let moved = moves(whole, 2 * bytes, 100 * bytes, how, null_mut());
        assert_ne!(moved, whole);
        assert_eq!(pages.recorded(), [(4 * bytes, 6 * bytes, true, "mremap")]);
        libc::munmap(moved, 100 * bytes);
    }
    assert_eq!([first, last].map(ends::leave), [false, false]);
}

#[test]
fn guarded_memory_that_is_freed_is_open() {
    let _watched = watched();
    // SAFETY: whole pages of a block that no device uses, and that is freed once.
    unsafe {
        let block = libc::memalign(page(), 2 * page()) as usize;
        // So that the freed block stays mapped.
        let next = libc::malloc(2 * page());
        let piece = protect(block, block + 2 * page(), true).unwrap();
        call(stand_in(c"free"), block, 0);
        // As the allocator does with what it has back.
        (block as *const u8).read_volatile();
        assert_eq!(ended(), []);
        libc::free(next);
        release(piece);
        let block = libc::memalign(page(), 64 << 20) as usize;
        let piece = protect(block, block + page(), true).unwrap();
        let moved = call(stand_in(c"realloc"), block, 256 << 20);
        *(moved as *mut u8) = 1;
        assert_eq!(ended(), []);
        release(piece);
        call(stand_in(c"free"), moved, 0);
    }
}

#[test]
fn an_access_has_the_stack_and_the_bytes_that_were_there() {
    let _watched = watched();
    let pages = Pages::new(2);
    for (at, byte) in (page() - 3..page() + 20).enumerate() {
        pages.store(byte, at as u8 + 1);
    }
    let piece = pages.protect(0, 2, true).unwrap();
    // It is on the stack of this function, which the faulting one is called by.
    let mark = std::hint::black_box([0x1234_5678_9abc_def0_usize; 2]);
    pages.store(page() - 3, 9);
    pages.load(page() + 1);
    let found = recorded();
    let before: Vec<_> = found
        .iter()
        .map(|hit| &hit.before[..usize::from(hit.before_len)])
        .collect();
    assert_eq!(
        before,
        [
            &[1, 2, 3][..],
            &std::array::from_fn::<u8, 16, _>(|at| at as u8 + 5)
        ]
    );
    for hit in &found {
        let stack = &hit.stack;
        assert_eq!(stack.pc, hit.code);
        assert_eq!(
            stack.word(std::hint::black_box(&mark).as_ptr() as usize),
            Some(mark[0])
        );
        assert_eq!(stack.word(stack.sp - 8), None);
        assert_eq!(stack.word(usize::MAX), None);
    }
    release(piece);
    let block = block(10);
    let watched = ends::watch(block, block + 1).unwrap();
    // SAFETY: the block is freed once.
    unsafe { call(stand_in(c"free"), block, 0) };
    let [hit] = &recorded()[..] else {
        panic!("one end")
    };
    assert_eq!(
        hit.stack
            .word(std::hint::black_box(&mark).as_ptr() as usize),
        Some(mark[0])
    );
    assert_eq!((hit.before_len, ends::leave(watched)), (0, false));
}

#[test]
fn memory_that_may_be_gone_is_read() {
    let pages = Pages::new(3);
    pages.store(page() - 1, 7);
    let mut bytes = vec![0; page() + 2];
    assert!(host_guard::read(pages.start + page() - 1, &mut bytes));
    assert_eq!((bytes[0], bytes[1]), (7, 0));
    // SAFETY: no one uses the page.
    unsafe { libc::munmap(pages.at(page()).cast(), page()) };
    assert!(!host_guard::read(pages.start + page() - 1, &mut bytes[..2]));
    assert!(host_guard::read(pages.start + page() - 1, &mut bytes[..1]));
    assert!(host_guard::read(0, &mut []));
}
