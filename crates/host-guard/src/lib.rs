//! The host's own loads and stores of memory that an asynchronous copy uses, heard by the protection of its pages.
//!
//! While a copy reads pinned memory, a store of the host to it is a race, and while a copy writes it, a load is one too. No call tells of
//! either: numpy and C++ just do them. So the whole pages of such a range are protected ([`table`]), the processor faults at the very byte,
//! and [`handler`] notes the access, opens the page and lets the program go on. The device does not notice: its copies go
//! by page tables of its own. What was noted is fetched by [`hits::take`] and judged by the checker.
//!
//! Two things run at any time, and so take no lock, allocate nothing and call neither Python nor CUDA: the handler, and the
//! functions that stand in for system calls ([`stand_ins`], where [`entries`] leads them), which the kernel would fail where a page is protected. They read
//! what is protected from a table of atomics, and write what they saw into room that is there from the start. All that changes the
//! table holds one lock, which those two never ask for.
//!
//! # Why a table of atomics is enough
//! - A page is protected only between `PREPARING` and `FREE` of a slot whose bounds hold it, and bounds change only in a free
//!   slot, and a count of its uses before them. So a fault at a protected page finds its slot.
//! - A fault may be handled late, when its slot is free again. Then nothing is found, and the page is open: the instruction is
//!   tried once more. Only if it faults again at the same place, and nothing was opened in between, it is somebody else's.
//! - A system call says which bytes it uses before it looks which are protected; whoever protects says so before it looks which are in use.
//!   One of the two sees the other: the call opens the pages, or they are not protected.

mod entries;
mod handler;
pub mod hits;
pub mod lines;
mod stand_ins;
mod table;
mod watch;

use std::sync::atomic::{AtomicUsize, Ordering};

pub use stand_ins::in_place_of;
pub use table::{Piece, page, protect, release, whole_pages};
pub use watch::{off, why_off};

/// How often it was asked whether anything may be protected.
static ASKED: AtomicUsize = AtomicUsize::new(0);
/// Every so often rings are looked for: one may have been made by instructions of a program's own.
const OFTEN: usize = 256;

/// From here on memory may be protected.
pub fn begin() {
    if watch::is_child() {
        return;
    }
    stand_ins::begin();
    ASKED.store(0, Ordering::Relaxed);
    watch::begin();
    // Now, and not only when something is protected: a call may use memory for long.
    entries::look(stand_ins::of);
    if !handler::IS_KNOWN {
        off("what a fault says is not known of this processor");
    } else if !handler::install() {
        off("SIGSEGV cannot be had");
    }
}

/// Memory is protected no more, and everything is as it was.
pub fn end() {
    if watch::is_child() {
        return;
    }
    watch::end();
    entries::restore();
    handler::uninstall();
}

/// Whether memory may be protected now: the signal is ours, and all calls of all libraries are looked after.
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
