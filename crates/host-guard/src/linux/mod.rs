//! The guard on Linux: its tables, its handler, and the functions that begin and end the observation.

mod entries;
mod handler;
mod stand_ins;
mod sys;
mod table;
mod watch;

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

pub use stand_ins::in_place_of;
pub use table::{Piece, page, protect, release};
pub use watch::{off, why_off};

/// How often [`is_ready`] was called.
static ASKED: AtomicUsize = AtomicUsize::new(0);
/// How many calls pass between two searches for io_uring instances: a program may create one with its own system-call
/// instructions.
const OFTEN: usize = 256;

/// Begins the observation: from here on memory may be protected.
pub fn begin() {
    if watch::is_child() {
        return;
    }
    stand_ins::begin();
    ASKED.store(0, Ordering::Relaxed);
    watch::begin();
    // Calls are redirected now, not at the first protection: a call may use memory for a long time.
    entries::look(stand_ins::of);
    if !handler::install() {
        off("the handler of SIGSEGV cannot be installed");
    }
}

/// Ends the observation: nothing is protected any more, and everything is restored.
pub fn end() {
    if watch::is_child() {
        return;
    }
    watch::end();
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

/// The name of the function with the code at this address, or of its library.
pub fn function_at(code: usize) -> Option<String> {
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
    Some(match text(found.dli_sname) {
        Some(function) => format!("{function} in {library}"),
        None => library,
    })
}

/// The system's ID of the calling thread.
pub fn this_thread() -> i32 {
    // SAFETY: the call only returns a number.
    unsafe { sys::syscall(sys::SYS_gettid) as i32 }
}
