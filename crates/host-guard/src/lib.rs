//! The host's own loads and stores of some pages, heard by the protection of those pages.
//!
//! While a device's copy reads pinned memory, a store of the host to it is a race, and while a copy writes it, a load is one too. No call
//! tells of either: numpy and C++ just do them. So the whole pages of such a range are protected ([`protect`]), the processor faults at the
//! very byte, and the handler of SIGSEGV notes the access, opens the page and lets the program go on. The device does not notice: its
//! copies go by page tables of its own. What was noted is fetched by [`hits::take`]. Which memory, for how long, and what an access means
//! is decided by the one who asks; this crate knows no stream, no copy and no Python.
//!
//! # What it guarantees
//! - **To the program**: it computes what it would without the guard. A load or store that faulted is done once the page is open. A system
//!   call that uses protected memory, which the kernel would fail, is led through a stand-in that opens the pages first; `errno` is what the
//!   call made it. After [`end`] every changed entry of the loader and the signal are as they were.
//! - **To those who use SIGSEGV too**: a fault that is not the guard's goes to the handler that was there before, with its mask and its
//!   flags, and so on down to the default, which ends the process as ever. A handler that is set meanwhile, by `sigaction` or `signal`,
//!   comes behind the guard and before the older ones. A handler that raises the signal anew means the one before it.
//! - **To threads**: any may fault, protect, release and make system calls at any time. Only [`begin`] and [`end`] are for one at a time.
//! - **To children of a fork**: all pages are open there before anything else runs, nothing is watched, and every function here returns
//!   without asking for a lock, which a thread that the child does not have may hold.
//! - **To handlers of other signals**: what is said below of calls holds inside them too.
//!
//! # What is never locked or allocated
//! The handler and the stand-ins run at any time. They take no lock, allocate nothing and call no interpreter and no driver, but where a
//! library is loaded, memory that is protected is unmapped, or asynchronous input begins. They read what is protected from a table of
//! atomics, and write what they saw into room that is there from the start: [`hits::lost`] counts what found none. All that changes the
//! table holds one lock, which those two never ask for. A [`lines::Source`] is asked by both, and has to keep to the same.
//!
//! # What it does not promise
//! Some ways to the kernel do not come by here: io_uring, and what Linux and POSIX call asynchronous input. Where they are met, nothing is
//! protected from there on, and [`why_off`] says so. An address that was looked up before [`begin`] and instructions of a program's own
//! that enter the kernel are not led; a library that asks why such a call failed is noted ([`hits::REFUSED`]). [`protect`] refuses pages that
//! the program may only read, huge pages, and more ranges than the system has mappings for.
//!
//! # Why a table of atomics is enough
//! - A page is protected only between `PREPARING` and `FREE` of a slot whose bounds hold it, and bounds change only in a free
//!   slot, and a count of its uses before them. So a fault at a protected page finds its slot.
//! - A fault may be handled late, when its slot is free again. Then nothing is found, and the page is open: the instruction is
//!   tried once more. Only if it faults again at the same place, and nothing was opened in between, it is another's.
//! - A system call says which bytes it uses before it looks which are protected; a thread that protects says so before it looks which are in use.
//!   One of the two sees the other: the call opens the pages, or they are not protected.
//!
//! # From the bottom up
//! `table` (what is protected), `lines` (where the program is), `hits` (what was noted), `watch` (whether memory may be protected), `handler`,
//! `entries` (of the loader), `stand_ins`, and the functions below, which begin and end it all. A file names only those before it.

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
