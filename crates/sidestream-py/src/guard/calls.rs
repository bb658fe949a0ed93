//! System calls that use protected memory. The kernel does not fault where a page is protected: it fails the call with `EFAULT`, or cuts it
//! short, and the C library's own `fread` passes by whatever stands in for `read`. So a program would read less than without a check.
//!
//! What a library calls in another one goes by a table of addresses that the loader filled in. While memory is watched, the entries
//! for the calls below lead here, in all libraries but the C library, the driver's and this one: Python's own, numpy's, PyTorch's, C++'s. Here the
//! pages are opened before the kernel looks, and stay open while it does, and what the call did is noted as the host's access. Libraries that are
//! loaded later are found before anything else is protected.
//!
//! Some ways to the kernel do not go by such an entry, or tell only later which memory they use: io_uring, and what Linux and POSIX call
//! asynchronous input. Where they are met, nothing is protected from there on ([`off`]). What remains unseen: a call whose address was
//! looked up by name (as ctypes does), and instructions of a program's own that enter the kernel.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::{FILE, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use parking_lot::Mutex;

use super::table::{self, InCall};
use super::{handler, hits};

/// Runs a call that uses these bytes, and notes what it did: it returns how many of them it used.
fn with(
    at: *const c_void,
    bytes: usize,
    store: bool,
    name: &'static str,
    call: impl FnOnce() -> isize,
) -> isize {
    let start = at as usize;
    let end = start.saturating_add(bytes);
    if bytes == 0 {
        return call();
    }
    let (inside, was) = InCall::enter(start, end, store);
    let used = call();
    drop(inside);
    if was && used > 0 {
        note(start, start + (used as usize).min(bytes), store, name);
    }
    used
}

fn note(start: usize, end: usize, store: bool, name: &'static str) {
    // SAFETY: a variable of the thread, which the caller of the call is about to look at.
    unsafe {
        let error = libc::__errno_location();
        let before = *error;
        hits::note(start, end, store, 0, name);
        *error = before;
    }
}

/// The same for several pieces of memory.
///
/// # Safety
/// There are so many pieces.
unsafe fn with_all(
    pieces: *const iovec,
    count: usize,
    store: bool,
    name: &'static str,
    call: impl FnOnce() -> isize,
) -> isize {
    if count == 0 || count > 1024 || pieces.is_null() {
        return call();
    }
    // SAFETY: the caller's promise.
    let pieces = unsafe { std::slice::from_raw_parts(pieces, count) };
    let enter = |piece: &iovec| {
        let start = piece.iov_base as usize;
        let end = start.saturating_add(piece.iov_len);
        (piece.iov_len > 0).then(|| (InCall::enter(start, end, store), start, end))
    };
    let inside: Vec<_> = pieces.iter().filter_map(enter).collect();
    let used = call();
    let mut left = used.max(0) as usize;
    for ((_, was), start, end) in &inside {
        let some = left.min(end - start);
        if *was && some > 0 {
            note(*start, start + some, store, name);
        }
        left -= some;
    }
    used
}

/// A call whose second argument is the memory and whose third is its size.
macro_rules! plain {
    ($($name:ident, $store:literal, ($($more:ident: $type:ty),*);)+) => {
        $(unsafe extern "C" fn $name(file: c_int, at: *mut c_void, bytes: size_t $(, $more: $type)*) -> ssize_t {
            // SAFETY: the arguments are those of the call that this stands for.
            with(at, bytes, $store, stringify!($name), || unsafe { libc::$name(file, at as _, bytes $(, $more)*) })
        })+
    };
}

plain! {
    read, true, ();
    pread, true, (from: off_t);
    recv, true, (flags: c_int);
    recvfrom, true, (flags: c_int, from: *mut sockaddr, length: *mut socklen_t);
    write, false, ();
    pwrite, false, (to: off_t);
    send, false, (flags: c_int);
    sendto, false, (flags: c_int, to: *const sockaddr, length: socklen_t);
}

/// A call whose second argument is a list of pieces and whose third is how many.
macro_rules! pieces {
    ($($name:ident, $store:literal, ($($more:ident: $type:ty),*);)+) => {
        $(unsafe extern "C" fn $name(file: c_int, pieces: *const iovec, count: c_int $(, $more: $type)*) -> ssize_t {
            // SAFETY: the arguments are those of the call that this stands for.
            unsafe {
                with_all(pieces, count.max(0) as usize, $store, stringify!($name), || libc::$name(file, pieces, count $(, $more)*))
            }
        })+
    };
}

pieces! {
    readv, true, ();
    preadv, true, (from: off_t);
    writev, false, ();
    pwritev, false, (to: off_t);
}

/// `preadv2` and `pwritev2` by their numbers: the C library has them only since 2017.
fn pieces_with_flags(
    number: c_long,
    (file, pieces, count): (c_int, *const iovec, c_int),
    at: off_t,
    flags: c_int,
) -> ssize_t {
    // The place is two words, of which the second counts where a word has half the bits.
    // SAFETY: the arguments are those of the call that this stands for.
    unsafe { libc::syscall(number, file, pieces, count as usize, at, 0_usize, flags) as ssize_t }
}

unsafe extern "C" fn preadv2(
    file: c_int,
    pieces: *const iovec,
    count: c_int,
    from: off_t,
    flags: c_int,
) -> ssize_t {
    let call = || pieces_with_flags(libc::SYS_preadv2, (file, pieces, count), from, flags);
    // SAFETY: the arguments are those of the call that this stands for.
    unsafe { with_all(pieces, count.max(0) as usize, true, "preadv2", call) }
}

unsafe extern "C" fn pwritev2(
    file: c_int,
    pieces: *const iovec,
    count: c_int,
    to: off_t,
    flags: c_int,
) -> ssize_t {
    let call = || pieces_with_flags(libc::SYS_pwritev2, (file, pieces, count), to, flags);
    // SAFETY: the arguments are those of the call that this stands for.
    unsafe { with_all(pieces, count.max(0) as usize, false, "pwritev2", call) }
}

unsafe extern "C" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the arguments are those of the call that this stands for.
    unsafe {
        let (pieces, count) = ((*message).msg_iov, (*message).msg_iovlen);
        with_all(pieces, count, true, "recvmsg", || {
            libc::recvmsg(socket, message, flags)
        })
    }
}

unsafe extern "C" fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the arguments are those of the call that this stands for.
    unsafe {
        let (pieces, count) = ((*message).msg_iov, (*message).msg_iovlen);
        with_all(pieces, count, false, "sendmsg", || {
            libc::sendmsg(socket, message, flags)
        })
    }
}

unsafe extern "C" fn fread(
    at: *mut c_void,
    size: size_t,
    count: size_t,
    file: *mut FILE,
) -> size_t {
    let bytes = size.saturating_mul(count);
    let mut got = 0;
    with(at, bytes, true, "fread", || {
        // SAFETY: the arguments are those of the call that this stands for.
        got = unsafe { libc::fread(at, size, count, file) };
        (got * size) as isize
    });
    got
}

unsafe extern "C" fn fwrite(
    at: *const c_void,
    size: size_t,
    count: size_t,
    file: *mut FILE,
) -> size_t {
    let bytes = size.saturating_mul(count);
    let mut put = 0;
    with(at, bytes, false, "fwrite", || {
        // SAFETY: the arguments are those of the call that this stands for.
        put = unsafe { libc::fwrite(at, size, count, file) };
        (put * size) as isize
    });
    put
}

/// Whoever takes the signal stands behind us again at once.
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the arguments are those of the call that this stands for.
    let done = unsafe { libc::sigaction(signal, new, old) };
    if done == 0 && signal == libc::SIGSEGV && !new.is_null() && IS_WATCHED.load(Ordering::Acquire)
    {
        handler::taken();
    }
    done
}

/// The same by its older name.
unsafe extern "C" fn signal(signal: c_int, new: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: the arguments are those of the call that this stands for.
    let old = unsafe { libc::signal(signal, new) };
    if old != libc::SIG_ERR && signal == libc::SIGSEGV && IS_WATCHED.load(Ordering::Acquire) {
        handler::taken();
    }
    old
}

/// `syscall` with six arguments, of which the kernel takes those that it wants.
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if [libc::SYS_io_uring_setup, libc::SYS_io_setup].contains(&number) {
        off(LEFT);
    }
    // SAFETY: the arguments are those of the call that this stands for.
    unsafe { libc::syscall(number, a, b, c, d, e, f) }
}

/// Functions that only say that nothing can be protected any more: where they really are.
const LEAVERS: [&CStr; 11] = [
    c"io_uring_queue_init",
    c"io_uring_queue_init_params",
    c"io_uring_queue_init_mem",
    c"io_setup",
    c"aio_read",
    c"aio_read64",
    c"lio_listio",
    c"lio_listio64",
    c"cuFileBufRegister",
    c"cuFileRead",
    c"cuFileReadAsync",
];
static REAL: [AtomicUsize; LEAVERS.len()] = [const { AtomicUsize::new(0) }; LEAVERS.len()];

unsafe extern "C" fn leave<const N: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> usize {
    type Any = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;
    off(LEFT);
    // SAFETY: the address was in the entry that leads here, so it is the function that the caller means; it takes at most six
    // words, and leaves alone what it does not take.
    unsafe {
        let real = std::mem::transmute::<usize, Any>(REAL[N].load(Ordering::Acquire));
        real(a, b, c, d, e, f)
    }
}

/// Why nothing is protected where one of them is called.
const LEFT: &str =
    "the program uses asynchronous input of the system's or cuFile's, which would fail";

/// What stands in for a function of this name: its address, and where to keep the real one.
fn stand_in(name: &CStr) -> Option<(usize, Option<usize>)> {
    let at = match name.to_bytes() {
        b"read" => read as *const () as usize,
        b"pread" | b"pread64" => pread as *const () as usize,
        b"readv" => readv as *const () as usize,
        b"preadv" | b"preadv64" => preadv as *const () as usize,
        b"preadv2" | b"preadv64v2" => preadv2 as *const () as usize,
        b"recv" => recv as *const () as usize,
        b"recvfrom" => recvfrom as *const () as usize,
        b"recvmsg" => recvmsg as *const () as usize,
        b"fread" => fread as *const () as usize,
        b"write" => write as *const () as usize,
        b"pwrite" | b"pwrite64" => pwrite as *const () as usize,
        b"writev" => writev as *const () as usize,
        b"pwritev" | b"pwritev64" => pwritev as *const () as usize,
        b"pwritev2" | b"pwritev64v2" => pwritev2 as *const () as usize,
        b"send" => send as *const () as usize,
        b"sendto" => sendto as *const () as usize,
        b"sendmsg" => sendmsg as *const () as usize,
        b"fwrite" => fwrite as *const () as usize,
        b"sigaction" => sigaction as *const () as usize,
        b"signal" => signal as *const () as usize,
        b"syscall" => syscall as *const () as usize,
        _ => {
            let at = LEAVERS.iter().position(|known| *known == name)?;
            let leaver = [
                leave::<0> as *const () as usize,
                leave::<1> as *const () as usize,
                leave::<2> as *const () as usize,
                leave::<3> as *const () as usize,
                leave::<4> as *const () as usize,
                leave::<5> as *const () as usize,
                leave::<6> as *const () as usize,
                leave::<7> as *const () as usize,
                leave::<8> as *const () as usize,
                leave::<9> as *const () as usize,
                leave::<10> as *const () as usize,
            ][at];
            return Some((leaver, Some(at)));
        }
    };
    Some((at, None))
}

// ------------------------------------------------------------------ whether memory is watched

static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static OFF: Mutex<Option<String>> = Mutex::new(None);
/// How many libraries had been loaded when their entries were looked at last.
static LOADED: AtomicU64 = AtomicU64::new(u64::MAX);
/// Entries that lead here, and what they were.
static CHANGED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
/// How often it was asked whether anything may be protected.
static ASKED: AtomicUsize = AtomicUsize::new(0);
/// Every so often rings are looked for: one may have been made by instructions of a program's own.
const OFTEN: usize = 256;

/// Whether this is a child of a process that was checked: its locks may be held by threads that it does not have.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// In a child of a fork nothing is watched, and nothing is locked any more.
pub fn in_child() {
    IS_CHILD.store(true, Ordering::SeqCst);
    IS_WATCHED.store(false, Ordering::SeqCst);
}

/// Nothing is protected from here on, and what is, is opened.
pub fn off(why: &str) {
    if IS_CHILD.load(Ordering::SeqCst) {
        return;
    }
    OFF.lock().get_or_insert_with(|| why.to_owned());
    IS_WATCHED.store(false, Ordering::SeqCst);
    table::release_all();
}

/// Why nothing is protected any more.
pub fn why_off() -> Option<String> {
    if IS_CHILD.load(Ordering::SeqCst) {
        return Some("the process is a child of one that was checked".to_owned());
    }
    OFF.lock().clone()
}

/// From here on memory may be protected.
pub fn begin() {
    if IS_CHILD.load(Ordering::SeqCst) {
        return;
    }
    *OFF.lock() = None;
    ASKED.store(0, Ordering::Relaxed);
    LOADED.store(u64::MAX, Ordering::Relaxed);
    IS_WATCHED.store(true, Ordering::SeqCst);
    table::watch_forks();
    // Now, and not only when something is protected: a call may use memory for long.
    look();
    if !handler::IS_KNOWN {
        off("what a fault says is not known of this processor");
    } else if !handler::install() {
        off("SIGSEGV cannot be had");
    }
}

/// Memory is protected no more, and everything is as it was.
pub fn end() {
    if IS_CHILD.load(Ordering::SeqCst) {
        return;
    }
    IS_WATCHED.store(false, Ordering::SeqCst);
    table::release_all();
    let changed = std::mem::take(&mut *CHANGED.lock());
    change(|entries| {
        for (entry, before) in &changed {
            entries.set(*entry, *before);
        }
    });
    handler::uninstall();
}

/// Whether memory may be protected now: the signal is ours, and all calls of all libraries are looked after.
pub fn is_ready() -> bool {
    if !IS_WATCHED.load(Ordering::Acquire) {
        return false;
    }
    if ASKED.fetch_add(1, Ordering::Relaxed).is_multiple_of(OFTEN) && has_ring() {
        off("the program uses io_uring, whose reads would fail");
        return false;
    }
    if loaded() != LOADED.load(Ordering::Relaxed) {
        look();
    }
    handler::install()
}

/// Whether the process has a ring of io_uring.
fn has_ring() -> bool {
    let Ok(files) = std::fs::read_dir("/proc/self/fd") else {
        return false;
    };
    let mut links = files
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok());
    links.any(|link| link.to_string_lossy().contains("[io_uring]"))
}

/// How many libraries were ever loaded and unloaded.
fn loaded() -> u64 {
    unsafe extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        _: size_t,
        into: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader gives what it says, and `into` is the number below.
        unsafe { *into.cast::<u64>() = (*info).dlpi_adds.wrapping_add((*info).dlpi_subs << 32) };
        1
    }
    let mut count = 0_u64;
    // SAFETY: the function has the signature that is asked for.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut count).cast()) };
    count
}

// ------------------------------------------------------------------ the entries

/// Where memory can be written, as it was just now.
struct Entries {
    maps: Vec<(usize, usize, bool)>,
}

/// Runs something that changes entries, while nothing is loaded or unloaded.
fn change(mut what: impl FnMut(&Entries)) {
    unsafe extern "C" fn once(_: *mut libc::dl_phdr_info, _: size_t, run: *mut c_void) -> c_int {
        // SAFETY: it is the closure below.
        unsafe { (*run.cast::<&mut dyn FnMut()>())() };
        1
    }
    let entries = Entries::now();
    let mut run = || what(&entries);
    let mut run: &mut dyn FnMut() = &mut run;
    // SAFETY: the function has the signature that is asked for, and the closure outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(once), (&raw mut run).cast()) };
}

impl Entries {
    fn now() -> Entries {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let map = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            let writable = rest.as_bytes().get(1) == Some(&b'w');
            Some((number(from)?, number(to)?, writable))
        };
        let maps = text.lines().filter_map(map).collect();
        Entries { maps }
    }

    /// Sets an entry, if it is where entries were.
    fn set(&self, entry: usize, to: usize) -> bool {
        let at = self.maps.partition_point(|map| map.1 <= entry);
        let Some(&(from, _, writable)) = self.maps.get(at) else {
            return false;
        };
        if entry < from {
            return false;
        }
        let page = table::page();
        let start = (entry / page * page) as *mut c_void;
        // SAFETY: the entry is mapped, since it was a moment ago and nothing is unloaded meanwhile. The loader closes entries to
        // stores once it has filled them in, which is undone for this one and then done again; a word is stored at once.
        unsafe {
            if !writable && libc::mprotect(start, page, libc::PROT_READ | libc::PROT_WRITE) != 0 {
                return false;
            }
            (*(entry as *const AtomicUsize)).store(to, Ordering::SeqCst);
            if !writable {
                libc::mprotect(start, page, libc::PROT_READ);
            }
        }
        true
    }
}

/// Looks at the entries of all libraries.
fn look() {
    let count = loaded();
    let entries = Entries::now();
    let mut changed = CHANGED.lock();
    let mut look = Look {
        entries: &entries,
        changed: &mut changed,
    };
    // SAFETY: the function has the signature that is asked for, and what it is given outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(library), (&raw mut look).cast()) };
    LOADED.store(count, Ordering::Relaxed);
}

struct Look<'a> {
    entries: &'a Entries,
    changed: &'a mut Vec<(usize, usize)>,
}

/// Libraries whose calls stay as they are: the C library and the loader, and the driver's.
fn is_left_alone(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let starts = [
        "libc.so",
        "libc-",
        "ld-",
        "libpthread",
        "libcuda.so",
        "libnvidia",
        "linux-vdso",
    ];
    starts.iter().any(|start| name.starts_with(start))
}

#[cfg(target_arch = "aarch64")]
const FILLED_IN: [u32; 2] = [1025, 1026];
#[cfg(not(target_arch = "aarch64"))]
const FILLED_IN: [u32; 2] = [6, 7];

/// What the loader keeps of a library for itself, as far as it is asked for: the tags of the list.
const SIZE_OF_CALLS: i64 = 2;
const STRINGS: i64 = 5;
const SYMBOLS: i64 = 6;
const RELOCATIONS: i64 = 7;
const SIZE_OF_RELOCATIONS: i64 = 8;
const CALLS: i64 = 23;

#[repr(C)]
struct Tagged {
    tag: i64,
    value: usize,
}

unsafe extern "C" fn library(info: *mut libc::dl_phdr_info, _: size_t, look: *mut c_void) -> c_int {
    // SAFETY: the loader gives what it says: a library that is loaded, with its headers. What they lead to is laid out by the format
    // of such files, in which it was read already by the loader. `look` is what `look` gave.
    unsafe {
        let info = &*info;
        let look = &mut *look.cast::<Look<'_>>();
        let base = info.dlpi_addr as usize;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize);
        let own = library as *const () as usize;
        let has = |address: usize| {
            let mut parts = headers
                .iter()
                .filter(|header| header.p_type == libc::PT_LOAD);
            parts.any(|part| {
                let start = base + part.p_vaddr as usize;
                (start..start + part.p_memsz as usize).contains(&address)
            })
        };
        let path = CStr::from_ptr(info.dlpi_name).to_string_lossy();
        if is_left_alone(&path) || has(own) {
            return 0;
        }
        let mut lists = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_DYNAMIC);
        let Some(list) = lists.next() else {
            return 0;
        };
        let mut list = (base + list.p_vaddr as usize) as *const Tagged;
        let mut tags = [0_usize; 24];
        while (*list).tag != 0 {
            if let Some(tag) = tags.get_mut((*list).tag.clamp(0, 1 << 20) as usize) {
                *tag = (*list).value;
            }
            list = list.add(1);
        }
        // Some loaders leave the addresses as they are in the file.
        let place = |tag: i64| match tags[tag as usize] {
            0 => None,
            value if value < base => Some(base + value),
            value => Some(value),
        };
        let (Some(strings), Some(symbols)) = (place(STRINGS), place(SYMBOLS)) else {
            return 0;
        };
        for (at, size) in [(RELOCATIONS, SIZE_OF_RELOCATIONS), (CALLS, SIZE_OF_CALLS)] {
            let Some(start) = place(at) else { continue };
            let count = tags[size as usize] / size_of::<libc::Elf64_Rela>();
            let all = std::slice::from_raw_parts(start as *const libc::Elf64_Rela, count);
            for one in all
                .iter()
                .filter(|one| FILLED_IN.contains(&(one.r_info as u32)))
            {
                let symbol = &*(symbols as *const libc::Elf64_Sym).add((one.r_info >> 32) as usize);
                let name = CStr::from_ptr((strings + symbol.st_name as usize) as *const c_char);
                // What is defined in the library itself is none of the C library's.
                if symbol.st_shndx != 0 {
                    continue;
                }
                if let Some((to, real)) = stand_in(name) {
                    look.lead(base + one.r_offset as usize, to, real);
                }
            }
        }
    }
    0
}

impl Look<'_> {
    /// Makes an entry lead to where it should.
    fn lead(&mut self, entry: usize, to: usize, real: Option<usize>) {
        // SAFETY: an entry of a library that is loaded: a word that is read by every call.
        let before = unsafe { (*(entry as *const AtomicUsize)).load(Ordering::SeqCst) };
        if before == to || before == 0 {
            return;
        }
        if let Some(real) = real {
            REAL[real].store(before, Ordering::Release);
        }
        if self.entries.set(entry, to) {
            self.changed.push((entry, before));
        }
    }
}
