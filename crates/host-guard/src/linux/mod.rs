//! The guard on Linux: its tables, its handler, and the functions that begin and end the observation.

mod allocators;
mod apart;
pub mod ends;
mod entries;
mod handler;
mod mask;
mod probe;
mod registers;
mod stand_ins;
mod sys;
mod table;
mod watch;

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

pub use stand_ins::in_place_of;
pub use table::{Piece, page, protect, release};
pub use watch::{is_alone, off, why_off};

/// How often [`is_ready`] was called.
static ASKED: AtomicUsize = AtomicUsize::new(0);
/// How many calls pass between two searches for io_uring instances: a program may create one with its own system-call
/// instructions.
const OFTEN: usize = 256;

/// Begins the observation: from here on memory may be protected. With `ends`, the calls that free memory are redirected
/// too, so that the end of memory can be heard ([`ends::watch`]).
pub fn begin(ends: bool) {
    if watch::is_child() {
        return;
    }
    stand_ins::begin();
    ASKED.store(0, Ordering::Relaxed);
    watch::begin();
    if is_checked_from_outside() {
        return off("`sidestream check -- PROGRAM` watches the host's memory in this process");
    }
    if ends {
        allocators::begin();
    }
    ends::hear(ends);
    // Calls are redirected now, not at the first protection: a call may use memory for a long time.
    entries::look(stand_ins::of);
    if !handler::install() {
        off("the handler of SIGSEGV cannot be installed");
    }
}

/// Whether the library that `sidestream check -- PROGRAM` loads into a program watches this process: the signal has one
/// owner, and this crate, which is in that library too, is then not the one.
fn is_checked_from_outside() -> bool {
    let rings = std::env::var_os("SIDESTREAM_RINGS").filter(|_| cfg!(not(injected)));
    rings.is_some_and(|folder| std::path::Path::new(&folder).is_dir())
}

/// Ends the observation: nothing is protected any more, and everything is restored.
pub fn end() {
    if watch::is_child() {
        return;
    }
    watch::end();
    ends::hear(false);
    entries::restore();
    handler::uninstall();
}

/// Whether memory may be protected now: the signal handler is ours, and the calls of all libraries are redirected.
pub fn is_ready() -> bool {
    if !watch::is_watched() {
        return false;
    }
    if ASKED.fetch_add(1, Ordering::Relaxed).is_multiple_of(OFTEN) && has_ring() {
        off("the program uses io_uring, whose reads would fail");
        return false;
    }
    entries::look_again(stand_ins::of);
    handler::install()
}

/// Whether the process has an io_uring instance.
fn has_ring() -> bool {
    let Ok(files) = std::fs::read_dir("/proc/self/fd") else {
        return false;
    };
    let mut links = files
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok());
    links.any(|link| link.to_string_lossy().contains("[io_uring]"))
}

/// Copies memory that may be gone, or protected against loads. Returns whether it was all readable.
pub fn read(at: usize, into: &mut [u8]) -> bool {
    read_some(at, into) == into.len()
}

/// Copies memory up to where it is no longer readable, but to the end of some page if there is room. Returns the number of bytes.
pub fn read_some(at: usize, into: &mut [u8]) -> usize {
    let end = at.saturating_add(into.len());
    let own = sys::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // The system copies whole pieces: the first pages are pieces of their own.
    let mut from = at;
    let pieces: [sys::iovec; 4] = std::array::from_fn(|piece| {
        let to = if piece == 3 {
            end
        } else {
            end.min((from / page() + 1) * page())
        };
        let start = std::mem::replace(&mut from, to);
        sys::iovec {
            iov_base: start as *mut c_void,
            iov_len: to - start,
        }
    });
    let (own, all) = (&raw const own, pieces.as_ptr());
    // SAFETY: the system writes only to `into`; what it cannot read ends the call.
    let read = unsafe {
        let (number, itself) = (sys::SYS_process_vm_readv, sys::getpid());
        sys::syscall(number, itself, own, 1_usize, all, 4_usize, 0_usize)
    };
    read.max(0) as usize
}

/// What the loader says of an address: the start and the name of its library, and the name of its function.
fn at_address(code: usize) -> Option<(usize, String, Option<String>)> {
    // SAFETY: all zeros are a valid value.
    let mut found: sys::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `dladdr` accepts any address.
    if unsafe { sys::dladdr(code as *const c_void, &mut found) } == 0 {
        return None;
    }
    let text = |name: *const c_char| {
        if name.is_null() {
            return None;
        }
        // SAFETY: a name from the loader ends with a zero byte and lives as long as the library.
        let name = unsafe { CStr::from_ptr(name) };
        Some(name.to_string_lossy().into_owned())
    };
    let file = text(found.dli_fname)?;
    let library = file.rsplit('/').next().unwrap_or(&file).to_owned();
    Some((found.dli_fbase as usize, library, text(found.dli_sname)))
}

/// The library with this address: where it starts, and its name.
fn library_at(address: usize) -> Option<(usize, String)> {
    at_address(address).map(|(start, library, _)| (start, library))
}

/// The name of the function with the code at this address, or of its library.
pub fn function_at(code: usize) -> Option<String> {
    let (_, library, function) = at_address(code)?;
    Some(match function {
        Some(function) => format!("{function} in {library}"),
        None => library,
    })
}

/// The system's ID of the calling thread.
pub fn this_thread() -> i32 {
    // SAFETY: the call only returns a number.
    unsafe { sys::syscall(sys::SYS_gettid) as i32 }
}
