//! Whether memory may be protected, and why not.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::table;

static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static OFF: Mutex<Option<String>> = Mutex::new(None);
/// Whether this is a child of a process that was checked: its locks may be held by threads that it does not have.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::SeqCst)
}

/// Whether memory may be protected at all.
#[inline]
pub fn is_watched() -> bool {
    IS_WATCHED.load(Ordering::Acquire)
}

pub fn begin() {
    *OFF.lock() = None;
    IS_WATCHED.store(true, Ordering::SeqCst);
    watch_forks();
}

pub fn end() {
    IS_WATCHED.store(false, Ordering::SeqCst);
    table::release_all();
}

/// Nothing is protected from here on, and what is, is opened.
pub fn off(why: &str) {
    if is_child() {
        return;
    }
    OFF.lock().get_or_insert_with(|| why.to_owned());
    end();
}

/// Why nothing is protected any more.
pub fn why_off() -> Option<String> {
    if is_child() {
        return Some("the process is a child of one that was checked".to_owned());
    }
    OFF.lock().clone()
}

/// Children of a fork share pinned memory with their parent, and have a copy of the table. They open all of it before they do anything
/// else; nothing is watched there, and nothing is locked any more.
fn watch_forks() {
    unsafe extern "C" fn in_child() {
        // Calls to the system alone, as has to be between a fork and what comes next.
        table::open_all();
        IS_CHILD.store(true, Ordering::SeqCst);
        IS_WATCHED.store(false, Ordering::SeqCst);
    }
    static WATCHES: Once = Once::new();
    // SAFETY: the handler has the signature that is asked for, and is there as long as the process: no module of Python's is unloaded.
    WATCHES.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}
