//! Whether memory may be protected, and if not, why.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use super::{ends, sys, table};

static IS_WATCHED: AtomicBool = AtomicBool::new(false);
/// Whether the program may have several threads.
static HAS_THREADS: AtomicBool = AtomicBool::new(false);
static OFF: Mutex<Option<String>> = Mutex::new(None);
/// Whether this is a forked child of a checked process: its locks may be held by threads that do not exist here.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

fn reason() -> MutexGuard<'static, Option<String>> {
    OFF.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::SeqCst)
}

/// Whether memory may be protected at all.
#[inline]
pub fn is_watched() -> bool {
    IS_WATCHED.load(Ordering::Acquire)
}

/// Whether no thread but one can be the program's: none was there when the observation began, and it created none since.
pub fn is_alone() -> bool {
    !HAS_THREADS.load(Ordering::Relaxed)
}

/// The program has several threads from here on.
pub fn has_threads() {
    HAS_THREADS.store(true, Ordering::Relaxed);
}

pub fn begin() {
    // The driver names its threads.
    let is_drivers = |entry: &std::fs::DirEntry| {
        std::fs::read(entry.path().join("comm")).is_ok_and(|name| name.starts_with(b"cuda"))
    };
    let threads = std::fs::read_dir("/proc/self/task").map_or(2, |all| {
        all.flatten().filter(|thread| !is_drivers(thread)).count()
    });
    if threads > 1 {
        has_threads();
    }
    *reason() = None;
    IS_WATCHED.store(true, Ordering::SeqCst);
    watch_forks();
}

pub fn end() {
    IS_WATCHED.store(false, Ordering::SeqCst);
    table::release_all();
}

/// Ends protection for this reason, and opens all protected pages.
pub fn off(why: &str) {
    if is_child() {
        return;
    }
    reason().get_or_insert_with(|| why.to_owned());
    end();
}

/// Why nothing is protected any more.
pub fn why_off() -> Option<String> {
    if is_child() {
        return Some("the process is a child of one that was checked".to_owned());
    }
    reason().clone()
}

/// Sets the handler for forked children. They share pinned memory with their parent, and have a copy of the table.
/// They open all pages before any other code runs; nothing is watched there, and no lock is taken any more.
fn watch_forks() {
    unsafe extern "C" fn in_child() {
        // Only system calls are made, as is required in a fork handler.
        table::open_all();
        ends::leave_all();
        IS_CHILD.store(true, Ordering::SeqCst);
        IS_WATCHED.store(false, Ordering::SeqCst);
    }
    static WATCHES: Once = Once::new();
    // SAFETY: the handler has the required signature, and lives as long as the process: Python extension modules are never unloaded.
    WATCHES.call_once(|| unsafe {
        sys::pthread_atfork(None, None, Some(in_child));
    });
}
