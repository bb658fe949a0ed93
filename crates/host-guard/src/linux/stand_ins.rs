//! Stand-ins for system calls that use protected memory. The kernel does not fault on a protected page: it fails the
//! call with `EFAULT`, or shortens it, and the C library's own `fread` bypasses a replaced `read`. So a program would
//! read less than without a check.
//!
//! The functions here replace those calls ([`super::entries`] redirects to them). They open the pages before the
//! kernel accesses them, keep them open during the call, and record the call as an access by the host. Functions that
//! are looked up by name are redirected as well, by `dlsym`. Calls that use such memory only rarely are not prepared:
//! one that fails with `EFAULT` is repeated with the pages open.
//!
//! Some paths into the kernel are not seen here, or show only later which memory they use: io_uring, and what Linux
//! and POSIX call asynchronous input. When the program uses one, nothing is protected from then on ([`watch::off`]).
//! What remains are addresses that were looked up before the check by code other than ctypes, and a program's own
//! system-call instructions. These calls fail; a library that reads the error is recorded ([`hits::REFUSED`]).
//!
//! All of this may run in a signal handler, so it takes no lock and allocates nothing, except where a library is
//! loaded or unmapped.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::entries::{Real, StandIn};
use super::sys::{iovec, mmsghdr, msghdr};
use super::table::{self, InCall};
use super::{allocators, ends, entries, handler, registers, sys, watch};
use crate::hits;

/// Runs a call that uses these bytes, and records what it did: `call` returns how many bytes it used.
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
    let mut inside = InCall::default();
    let was = inside.enter(start, end, store);
    let used = call();
    drop(inside);
    if was && used > 0 {
        note(start, start + (used as usize).min(bytes), store, name);
    }
    used
}

fn note(start: usize, end: usize, store: bool, name: &'static str) {
    // SAFETY: `errno` is thread-local, and the caller is about to read it.
    unsafe {
        let error = sys::__errno_location();
        let before = *error;
        hits::note(start, end, store, Some(name), registers::here(), &[]);
        *error = before;
    }
}

/// The kernel's limit of pieces in one call.
const MOST_PIECES: usize = 1024;

/// Several pieces of memory that one call uses.
#[derive(Default)]
struct Pieces {
    inside: InCall,
    /// One bit per piece: whether it was protected. Pieces beyond the limit are not recorded.
    were: [u64; MOST_PIECES / 64],
    entered: usize,
    noted: usize,
}

impl Pieces {
    /// # Safety
    /// `pieces` points to `count` pieces.
    unsafe fn enter(&mut self, pieces: *const iovec, count: usize, store: bool) {
        // SAFETY: the caller guarantees it.
        for piece in unsafe { listed(pieces, count) } {
            let (start, at) = (piece.iov_base as usize, self.entered);
            let end = start.saturating_add(piece.iov_len);
            self.entered += 1;
            if piece.iov_len > 0 && self.inside.enter(start, end, store) && at < MOST_PIECES {
                self.were[at / 64] |= 1 << (at % 64);
            }
        }
    }

    /// Records the use of the pieces, in the order in which they were entered: the first `used` bytes of them.
    ///
    /// # Safety
    /// As for [`Pieces::enter`].
    unsafe fn note(
        &mut self,
        pieces: *const iovec,
        count: usize,
        used: usize,
        store: bool,
        name: &'static str,
    ) {
        let mut left = used;
        // SAFETY: the caller guarantees it.
        for piece in unsafe { listed(pieces, count) } {
            let (start, at) = (piece.iov_base as usize, self.noted);
            let some = left.min(piece.iov_len);
            self.noted += 1;
            left -= some;
            if some > 0 && at < MOST_PIECES && self.were[at / 64] & (1 << (at % 64)) != 0 {
                note(start, start + some, store, name);
            }
        }
    }
}

/// # Safety
/// `pieces` points to `count` pieces.
unsafe fn listed<'a>(pieces: *const iovec, count: usize) -> &'a [iovec] {
    if pieces.is_null() || count > MOST_PIECES {
        return &[];
    }
    // SAFETY: the caller guarantees it.
    unsafe { std::slice::from_raw_parts(pieces, count) }
}

/// Like [`with`], for several pieces of memory.
///
/// # Safety
/// `pieces` points to `count` pieces.
unsafe fn with_all(
    pieces: *const iovec,
    count: usize,
    store: bool,
    name: &'static str,
    call: impl FnOnce() -> isize,
) -> isize {
    let mut all = Pieces::default();
    // SAFETY: the caller guarantees it.
    unsafe {
        all.enter(pieces, count, store);
        let used = call();
        all.note(pieces, count, used.max(0) as usize, store, name);
        used
    }
}

/// Defines stand-ins for calls whose second argument is the memory and whose third is its size.
macro_rules! plain {
    ($($name:ident for $real:ident, $store:literal, ($($more:ident: $type:ty),*);)+) => {
        /// The C library's functions.
        mod plain {
            use std::ffi::{c_int, c_void};
            unsafe extern "C" {
                $(pub fn $real(file: c_int, at: *mut c_void, bytes: usize $(, $more: $type)*) -> isize;)+
            }
        }
        $(unsafe extern "C" fn $name(file: c_int, at: *mut c_void, bytes: usize $(, $more: $type)*) -> isize {
            // SAFETY: the arguments are those of the replaced call.
            with(at, bytes, $store, stringify!($name), || unsafe { plain::$real(file, at, bytes $(, $more)*) })
        })+
    };
}

plain! {
    read for read, true, ();
    pread for pread, true, (from: i64);
    recv for recv, true, (flags: c_int);
    recvfrom for recvfrom, true, (flags: c_int, from: *mut c_void, length: *mut u32);
    write for write, false, ();
    pwrite for pwrite, false, (to: i64);
    send for send, false, (flags: c_int);
    sendto for sendto, false, (flags: c_int, to: *const c_void, length: u32);
    // The checked variants that the compiler calls if a program is built with buffer-size checks.
    read_chk for __read_chk, true, (room: usize);
    pread_chk for __pread_chk, true, (from: i64, room: usize);
    recv_chk for __recv_chk, true, (room: usize, flags: c_int);
    recvfrom_chk for __recvfrom_chk, true, (room: usize, flags: c_int, from: *mut c_void, length: *mut u32);
}

/// `preadv2` and `pwritev2` by system-call number: the C library has them only since 2017.
unsafe fn by_number<const NUMBER: c_long>(
    file: c_int,
    pieces: *const iovec,
    count: c_int,
    at: i64,
    flags: c_int,
) -> isize {
    // The file offset is two words; the second counts only on 32-bit systems.
    // SAFETY: the arguments are those of the replaced call.
    unsafe { sys::syscall(NUMBER, file, pieces, count as usize, at, 0_usize, flags) as isize }
}

/// Defines stand-ins for calls whose second argument is a list of pieces and whose third is their number.
macro_rules! pieces {
    ($($name:ident for $real:path, $store:literal, ($($more:ident: $type:ty),*);)+) => {
        $(unsafe extern "C" fn $name(file: c_int, pieces: *const iovec, count: c_int $(, $more: $type)*) -> isize {
            // SAFETY: the arguments are those of the replaced call.
            unsafe {
                with_all(pieces, count.max(0) as usize, $store, stringify!($name), || $real(file, pieces, count $(, $more)*))
            }
        })+
    };
}

pieces! {
    readv for sys::readv, true, ();
    preadv for sys::preadv, true, (from: i64);
    preadv2 for by_number::<{ sys::SYS_preadv2 }>, true, (from: i64, flags: c_int);
    writev for sys::writev, false, ();
    pwritev for sys::pwritev, false, (to: i64);
    pwritev2 for by_number::<{ sys::SYS_pwritev2 }>, false, (to: i64, flags: c_int);
}

unsafe extern "C" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the arguments are those of the replaced call.
    unsafe {
        let (pieces, count) = ((*message).msg_iov, (*message).msg_iovlen);
        with_all(pieces, count, true, "recvmsg", || {
            sys::recvmsg(socket, message, flags)
        })
    }
}

unsafe extern "C" fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the arguments are those of the replaced call.
    unsafe {
        let (pieces, count) = ((*message).msg_iov, (*message).msg_iovlen);
        with_all(pieces, count, false, "sendmsg", || {
            sys::sendmsg(socket, message, flags)
        })
    }
}

/// Runs a call for several messages: it returns how many, and each message says how many bytes.
///
/// # Safety
/// `messages` points to `count` messages.
unsafe fn with_messages(
    messages: *mut mmsghdr,
    count: c_uint,
    store: bool,
    name: &'static str,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let mut all = Pieces::default();
    // SAFETY: the caller guarantees it.
    unsafe {
        let each = |at| &*messages.add(at);
        for message in (0..count as usize).map(each) {
            all.enter(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen, store);
        }
        let done = call();
        for message in (0..done.max(0) as usize).map(each) {
            let (pieces, count) = (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen);
            all.note(pieces, count, message.msg_len as usize, store, name);
        }
        done
    }
}

unsafe extern "C" fn recvmmsg(
    socket: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut c_void,
) -> c_int {
    // SAFETY: the arguments are those of the replaced call.
    unsafe {
        with_messages(messages, count, true, "recvmmsg", || {
            sys::recvmmsg(socket, messages, count, flags, timeout)
        })
    }
}

unsafe extern "C" fn sendmmsg(
    socket: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are those of the replaced call.
    unsafe {
        with_messages(messages, count, false, "sendmmsg", || {
            sys::sendmmsg(socket, messages, count, flags)
        })
    }
}

unsafe extern "C" fn getrandom(at: *mut c_void, bytes: usize, flags: c_uint) -> isize {
    // By system-call number: the C library has it only since 2017.
    // SAFETY: the arguments are those of the replaced call.
    with(at, bytes, true, "getrandom", || unsafe {
        sys::syscall(sys::SYS_getrandom, at, bytes, flags) as isize
    })
}

/// Defines stand-ins for copies between two processes, which may both be this one.
macro_rules! between {
    ($($name:ident, $store:literal;)+) => {
        /// The C library's functions.
        mod between {
            use std::ffi::{c_int, c_ulong};
            use super::iovec;
            unsafe extern "C" {
                $(pub fn $name(
                    pid: c_int, own: *const iovec, owns: c_ulong, other: *const iovec, others: c_ulong, flags: c_ulong,
                ) -> isize;)+
            }
        }
        $(unsafe extern "C" fn $name(
            pid: c_int, own: *const iovec, owns: c_ulong, other: *const iovec, others: c_ulong, flags: c_ulong,
        ) -> isize {
            // SAFETY: the arguments are those of the replaced call.
            unsafe {
                let (mut ours, mut theirs) = (Pieces::default(), Pieces::default());
                let is_own = pid == sys::getpid();
                ours.enter(own, owns as usize, $store);
                if is_own {
                    theirs.enter(other, others as usize, !$store);
                }
                let done = between::$name(pid, own, owns, other, others, flags);
                let used = done.max(0) as usize;
                ours.note(own, owns as usize, used, $store, stringify!($name));
                if is_own {
                    theirs.note(other, others as usize, used, !$store, stringify!($name));
                }
                done
            }
        })+
    };
}

between! {
    process_vm_readv, true;
    process_vm_writev, false;
}

/// Defines stand-ins for the C library's buffered file calls. Some have the size of the memory as their second
/// argument.
macro_rules! of_files {
    ($($name:ident for $real:ident, $store:literal, ($($room:ident)?);)+) => {
        /// The C library's functions.
        mod of_files {
            use std::ffi::c_void;
            unsafe extern "C" {
                $(pub fn $real(at: *mut c_void $(, $room: usize)?, size: usize, count: usize, file: *mut c_void) -> usize;)+
            }
        }
        $(unsafe extern "C" fn $name(at: *mut c_void $(, $room: usize)?, size: usize, count: usize, file: *mut c_void) -> usize {
            let mut done = 0;
            with(at, size.saturating_mul(count), $store, stringify!($name), || {
                // SAFETY: the arguments are those of the replaced call.
                done = unsafe { of_files::$real(at $(, $room)?, size, count, file) };
                (done * size) as isize
            });
            done
        })+
    };
}

of_files! {
    fread for fread, true, ();
    fwrite for fwrite, false, ();
    fread_without_lock for fread_unlocked, true, ();
    fread_chk for __fread_chk, true, (room);
    fread_chk_without_lock for __fread_unlocked_chk, true, (room);
    fwrite_without_lock for fwrite_unlocked, false, ();
}

/// A handler that takes the signal is put after ours at once.
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const sys::sigaction,
    old: *mut sys::sigaction,
) -> c_int {
    // SAFETY: the arguments are those of the replaced call.
    let done = unsafe { sys::sigaction(signal, new, old) };
    if done == 0 && signal == sys::SIGSEGV && !new.is_null() && watch::is_watched() {
        handler::taken();
    }
    done
}

/// Like `sigaction`, by the older call.
unsafe extern "C" fn signal(signal: c_int, new: usize) -> usize {
    // SAFETY: the arguments are those of the replaced call.
    let old = unsafe { sys::signal(signal, new) };
    if old != sys::SIG_ERR && signal == sys::SIGSEGV && watch::is_watched() {
        handler::taken();
    }
    old
}

/// Defines stand-ins for the calls that set a thread's signal mask: a fault ends the process if its signal is blocked.
macro_rules! masks {
    ($($name:ident)+) => {
        $(unsafe extern "C" fn $name(how: c_int, new: *const sys::sigset_t, old: *mut sys::sigset_t) -> c_int {
            // SAFETY: the arguments are those of the replaced call.
            unsafe {
                if new.is_null() || how == sys::SIG_UNBLOCK || !watch::is_watched() {
                    return sys::$name(how, new, old);
                }
                let mut set = *new;
                sys::sigdelset(&mut set, sys::SIGSEGV);
                sys::$name(how, &set, old)
            }
        })+
    };
}

masks! { pthread_sigmask sigprocmask }

/// Unmapped memory is no longer protected: what is mapped there next does not belong to the check.
unsafe extern "C" fn munmap(at: *mut c_void, bytes: usize) -> c_int {
    let (start, end) = (at as usize, (at as usize).saturating_add(bytes));
    table::forget(start, end);
    if start.is_multiple_of(table::page()) {
        ends::ended(start, end, "munmap", usize::MAX);
    }
    // SAFETY: the arguments are those of the replaced call.
    unsafe { sys::munmap(at, bytes) }
}

/// A thread of the program: the driver's own are created by calls that are not redirected.
unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    start: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    watch::has_threads();
    // SAFETY: the arguments are those of the replaced call.
    unsafe { sys::pthread_create(thread, attributes, start, argument) }
}

/// Like `munmap`, for what moves elsewhere or becomes smaller. Its last argument counts only with some flags.
unsafe extern "C" fn mremap(
    at: *mut c_void,
    bytes: usize,
    new: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let (start, end) = (at as usize, (at as usize).saturating_add(bytes));
    table::forget(start, end);
    let first = ends::so_far();
    // SAFETY: the arguments are those of the replaced call.
    let moved = unsafe { sys::mremap(at, bytes, new, flags, to) };
    if moved == at {
        ends::ended(start.saturating_add(new), end, "mremap", first);
    } else if moved.addr() != usize::MAX {
        ends::ended(start, end, "mremap", first);
    }
    moved
}

/// `syscall` with six arguments, of which the kernel reads as many as the call has.
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let (file, place) = (a as c_int, d as i64);
    // SAFETY: the arguments are those of the replaced call.
    unsafe {
        match number {
            sys::SYS_io_uring_setup | sys::SYS_io_setup => watch::off(LEFT),
            sys::SYS_read => return read(file, b as _, c) as c_long,
            sys::SYS_pread64 => return pread(file, b as _, c, place) as c_long,
            sys::SYS_readv => return readv(file, b as _, c as c_int) as c_long,
            sys::SYS_preadv => return preadv(file, b as _, c as c_int, place) as c_long,
            sys::SYS_recvfrom => {
                return recvfrom(file, b as _, c, d as c_int, e as _, f as _) as c_long;
            }
            sys::SYS_recvmsg => return recvmsg(file, b as _, c as c_int) as c_long,
            sys::SYS_recvmmsg => {
                return c_long::from(recvmmsg(file, b as _, c as c_uint, d as c_int, e as _));
            }
            sys::SYS_write => return write(file, b as _, c) as c_long,
            sys::SYS_pwrite64 => return pwrite(file, b as _, c, place) as c_long,
            sys::SYS_writev => return writev(file, b as _, c as c_int) as c_long,
            sys::SYS_pwritev => return pwritev(file, b as _, c as c_int, place) as c_long,
            sys::SYS_sendto => {
                return sendto(file, b as _, c, d as c_int, e as _, f as u32) as c_long;
            }
            sys::SYS_sendmsg => return sendmsg(file, b as _, c as c_int) as c_long,
            sys::SYS_getrandom => return getrandom(a as _, b, c as c_uint) as c_long,
            sys::SYS_process_vm_readv => {
                return process_vm_readv(file, b as _, c as _, d as _, e as _, f as _) as c_long;
            }
            _ => {}
        }
        again("syscall", [a, b, c, d, e, f], || {
            sys::syscall(number, a, b, c, d, e, f)
        })
    }
}

/// Makes a call that uses protected memory only rarely. If the kernel fails it with `EFAULT`, it is repeated with the
/// pages open.
fn again<T>(name: &'static str, given: [usize; 6], call: impl Fn() -> T) -> T {
    // SAFETY: `errno` is thread-local; if the call does not set it, its value is restored.
    unsafe {
        let error = sys::__errno_location();
        let before = *error;
        *error = 0;
        let mut done = call();
        if *error == sys::EFAULT {
            let mut inside = InCall::default();
            let mut was = false;
            for at in given {
                if let Some(end) = table::end_at(at)
                    && inside.enter(at, end, true)
                {
                    was = true;
                    note(at, at + 1, true, name);
                }
            }
            if was {
                *error = 0;
                done = call();
            }
        }
        if *error == 0 {
            *error = before;
        }
        done
    }
}

/// A library reads why a call failed. An `EFAULT` may come from a page that the check protects.
unsafe extern "C" fn errno_location() -> *mut c_int {
    // SAFETY: `errno` is thread-local.
    unsafe {
        let error = sys::__errno_location();
        if *error == sys::EFAULT
            && watch::is_watched()
            && table::has_any()
            && !REFUSED.swap(true, Ordering::Relaxed)
        {
            note(0, 0, false, hits::REFUSED);
        }
        error
    }
}

/// Whether such a failure was recorded in this check.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Begins a check.
pub fn begin() {
    REFUSED.store(false, Ordering::Relaxed);
}

/// Replaces `dlsym`. The real one may search depending on its caller's address, so it must see the original caller.
#[unsafe(naked)]
unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {found}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp {real}@PLT",
        "2: ret",
        found = sym found,
        real = sym sys::dlsym,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x29, x30, [sp, -32]!",
        "mov x29, sp",
        "stp x0, x1, [sp, 16]",
        "bl {found}",
        "mov x9, x0",
        "ldp x0, x1, [sp, 16]",
        "ldp x29, x30, [sp], 32",
        "cbnz x9, 2f",
        "b {real}",
        "2: mov x0, x9",
        "ret",
        found = sym found,
        real = sym sys::dlsym,
    );
}

/// The stand-in for a function that is looked up by name; null if there is none.
unsafe extern "C" fn found(library: *mut c_void, name: *const c_char) -> *mut c_void {
    let nothing = std::ptr::null_mut();
    if library == sys::RTLD_NEXT || name.is_null() {
        return nothing;
    }
    if watch::is_watched() {
        entries::look_again(of);
    }
    // SAFETY: the arguments are those of the replaced call.
    unsafe {
        if of(CStr::from_ptr(name).to_bytes()).is_none() {
            return nothing;
        }
        let real = sys::dlsym(library, name);
        in_place_of(real as usize).map_or(nothing, |to| to as *mut c_void)
    }
}

/// The address of the stand-in for the C library function at this address; `None` if there is none. Another library
/// may have a function of its own with the same name.
pub fn in_place_of(real: usize) -> Option<usize> {
    static KNOWN: OnceLock<HashMap<usize, StandIn>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let real = |stand_in: &StandIn| (entries::found(stand_in.name), *stand_in);
        let mut known: HashMap<_, _> = all().iter().map(real).collect();
        known.remove(&0);
        known
    });
    let to = known.get(&real).filter(|to| to.is_used())?;
    to.stands_for(real);
    Some(to.address)
}

type Words = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;

/// Defines stand-ins, by index, for functions that take at most six words. The first [`LEAVERS`] only turn the
/// protection off.
macro_rules! by_words {
    ($($number:literal $name:literal)+) => {
        const NAMES: &[&CStr] = &[$($name),+];
        const BY_WORDS: &[Words] = &[$(by_words::<$number>),+];
    };
}

by_words! {
    0 c"io_uring_queue_init" 1 c"io_uring_queue_init_params" 2 c"io_uring_queue_init_mem" 3 c"io_setup" 4 c"aio_read" 5 c"aio_read64"
    6 c"lio_listio" 7 c"lio_listio64" 8 c"cuFileBufRegister" 9 c"cuFileRead" 10 c"cuFileReadAsync"
    11 c"stat" 12 c"stat64" 13 c"lstat" 14 c"lstat64" 15 c"fstat" 16 c"fstat64" 17 c"fstatat" 18 c"fstatat64" 19 c"statx"
    20 c"__xstat" 21 c"__xstat64" 22 c"__lxstat" 23 c"__lxstat64" 24 c"__fxstat" 25 c"__fxstat64" 26 c"__fxstatat" 27 c"__fxstatat64"
    28 c"statfs" 29 c"statfs64" 30 c"fstatfs" 31 c"fstatfs64" 32 c"getcwd" 33 c"readlink" 34 c"readlinkat" 35 c"getdents64"
    36 c"getxattr" 37 c"lgetxattr" 38 c"fgetxattr" 39 c"getsockopt" 40 c"getsockname" 41 c"getpeername" 42 c"ioctl" 43 c"fcntl"
    44 c"fcntl64" 45 c"uname" 46 c"sysinfo" 47 c"getentropy"
}
const LEAVERS: usize = 11;

/// The reason that is given when one of the first functions is called.
const LEFT: &str =
    "the program uses asynchronous input of the system or of cuFile, which would fail";

/// The addresses of the real functions.
static REAL: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

unsafe extern "C" fn by_words<const N: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> usize {
    if N < LEAVERS {
        watch::off(LEFT);
    }
    // SAFETY: the address was in the entry that now points here, so it is the function that the caller means; it
    // takes at most six words, and ignores the others.
    let real = unsafe { std::mem::transmute::<usize, Words>(REAL[N].load(Ordering::Acquire)) };
    let name = NAMES[N].to_str().unwrap_or_default();
    // SAFETY: as above.
    again(name, [a, b, c, d, e, f], || unsafe {
        real(a, b, c, d, e, f)
    })
}

/// The stand-in for a function with this name.
pub fn of(name: &[u8]) -> Option<StandIn> {
    static KNOWN: OnceLock<HashMap<&[u8], StandIn>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let all = all().into_iter();
        all.map(|to| (to.name.to_bytes(), to)).collect()
    });
    known.get(name).copied().filter(StandIn::is_used)
}

fn all() -> Vec<StandIn> {
    macro_rules! listed {
        ($($($name:literal)|+ => $to:path,)+) => {
            vec![$($(($name, $to as *const () as usize)),+),+]
        };
    }
    let known: Vec<(&CStr, usize)> = listed! {
        c"read" => read,
        c"pread" | c"pread64" => pread,
        c"readv" => readv,
        c"preadv" | c"preadv64" => preadv,
        c"preadv2" | c"preadv64v2" => preadv2,
        c"recv" => recv,
        c"recvfrom" => recvfrom,
        c"recvmsg" => recvmsg,
        c"recvmmsg" => recvmmsg,
        c"fread" => fread,
        c"fread_unlocked" => fread_without_lock,
        c"__read_chk" => read_chk,
        c"__pread_chk" | c"__pread64_chk" => pread_chk,
        c"__recv_chk" => recv_chk,
        c"__recvfrom_chk" => recvfrom_chk,
        c"__fread_chk" => fread_chk,
        c"__fread_unlocked_chk" => fread_chk_without_lock,
        c"getrandom" => getrandom,
        c"process_vm_readv" => process_vm_readv,
        c"process_vm_writev" => process_vm_writev,
        c"write" => write,
        c"pwrite" | c"pwrite64" => pwrite,
        c"writev" => writev,
        c"pwritev" | c"pwritev64" => pwritev,
        c"pwritev2" | c"pwritev64v2" => pwritev2,
        c"send" => send,
        c"sendto" => sendto,
        c"sendmsg" => sendmsg,
        c"sendmmsg" => sendmmsg,
        c"fwrite" => fwrite,
        c"fwrite_unlocked" => fwrite_without_lock,
        c"sigaction" => sigaction,
        c"signal" => signal,
        c"pthread_sigmask" => pthread_sigmask,
        c"sigprocmask" => sigprocmask,
        c"munmap" => munmap,
        c"pthread_create" => pthread_create,
        c"mremap" => mremap,
        c"syscall" => syscall,
        c"__errno_location" => errno_location,
        c"dlsym" => dlsym,
    };
    let known = known.into_iter().map(|(name, address)| StandIn {
        name,
        address,
        real: Real::Itself,
    });
    let by_words = NAMES.iter().zip(BY_WORDS).zip(&REAL);
    let by_words = by_words.map(|((name, to), real)| StandIn {
        name,
        address: *to as *const () as usize,
        real: Real::Replaced(real),
    });
    known.chain(by_words).chain(allocators::all()).collect()
}
