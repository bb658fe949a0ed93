//! Observes the host's own loads and stores of given pages, by protecting the pages.
//!
//! While a device's copy reads pinned memory, a host store to it is a race, and while a copy writes it, a load is one
//! too. No call shows either: numpy and C++ just access the memory. So the whole pages of such a range are protected
//! ([`protect`]), the processor faults at the exact byte, and the SIGSEGV handler records the access, opens the page
//! and lets the program continue. The device is not affected: its copies use page tables of their own. The recorded
//! accesses are fetched by [`hits::take`]. The caller decides which memory is protected, for how long, and what an
//! access means; this crate knows nothing of streams, copies or Python.
//!
//! Memory that is not pinned cannot be protected: the driver reads it on the CPU. Where [`begin`] is asked to, the calls
//! that free or unmap memory are redirected too, and the end of what is watched is recorded ([`ends::watch`]).
//!
//! # What it guarantees
//! - **To the program**: it computes what it would compute without the guard. A load or store that faulted is
//!   executed once the page is open. A system call that uses protected memory, which the kernel would fail, is
//!   redirected to a stand-in that opens the pages first; `errno` is what the call set. After [`end`], every changed
//!   entry of the loader and the signal's handler are restored.
//! - **To others that use SIGSEGV**: a fault that is not the guard's goes to the handler that was installed before,
//!   with its mask and its flags, and so on down to the default, which ends the process as usual. A handler that is
//!   set meanwhile, by `sigaction` or `signal`, is called after the guard and before the older ones. If a handler
//!   raises the signal again, the next older one is called.
//! - **To threads**: any thread may fault, protect, release and make system calls at any time. Only [`begin`] and
//!   [`end`] must not be called concurrently. A thread that blocks all signals meanwhile leaves SIGSEGV open, since a
//!   fault would end the process; one that blocked it before must not access protected memory.
//! - **To forked children**: all pages are open there before any other code runs, nothing is watched, and every
//!   function here returns without taking a lock, which may be held by a thread that does not exist in the child.
//! - **To handlers of other signals**: what is said below of calls is true inside them, too.
//!
//! # What is never locked or allocated
//! The handler and the stand-ins may run at any time. They take no lock, allocate nothing and call no interpreter and
//! no driver, except where a library is loaded, protected memory is freed, or asynchronous input begins. They read
//! what is protected from a table of atomics, and write what they recorded to preallocated slots: [`hits::lost`]
//! counts the accesses for which none was free. All code that changes the table takes one lock, which the handler and
//! the stand-ins never take. Both call the [`lines::Source`], which must follow the same rules.
//!
//! # What it does not promise
//! Some paths into the kernel are not seen here: io_uring, and what Linux and POSIX call asynchronous input. When the
//! program uses one, nothing is protected from then on, and [`why_off`] returns the reason. Calls through an address
//! that was looked up before [`begin`], and a program's own system-call instructions, are not redirected; a library
//! that then reads the error of a failed call is recorded ([`hits::REFUSED`]). [`protect`] refuses read-only pages,
//! huge pages, and more ranges than the system has mappings for.
//!
//! # Why a table of atomics is enough
//! - A page is protected only while its slot is between `PREPARING` and `FREE` and the slot's bounds contain it.
//!   Bounds change only in a free slot, after its use counter. So a fault at a protected page finds its slot.
//! - A fault may be handled late, when its slot is free again. Then no slot is found, and the page is open: the
//!   instruction is retried. Only if it faults again at the same place, and nothing was released in between, is the
//!   fault not the guard's.
//! - A system call announces the bytes that it uses before it checks which are protected; a thread that protects
//!   bytes announces them before it checks which are in use. At least one of the two sees the other: the call opens
//!   the pages, or they are not protected.
//!
//! # The modules, from the bottom up
//! In `linux` `sys` (the C library), `mask`, `registers` and `probe` (may a page be stored to?), `table` (what is
//! protected); here `lines` (the program's current lines), `stack` (its native stack) and `hits` (recorded accesses); in
//! `linux` `ends` (of which memory the end is heard), `watch` (whether memory may be protected), `handler`, `entries` (of
//! the loader), `allocators` and `stand_ins`, and the functions that begin and end the observation. A module uses only
//! those before it. On other systems and processors `elsewhere` takes the place of `linux`: nothing is protected there,
//! and [`why_off`] says so.

pub mod hits;
pub mod lines;
pub mod stack;
#[cfg_attr(
    all(
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64")
    ),
    path = "linux/mod.rs"
)]
#[cfg_attr(
    not(all(
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64")
    )),
    path = "elsewhere.rs"
)]
mod system;

/// The folder of this crate's files, for the build script that compiles them into the library that is loaded into programs.
#[cfg(not(injected))]
pub const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

pub use system::{
    Piece, begin, end, ends, in_place_of, is_alone, is_ready, off, page, protect, read, release,
    why_off,
};

/// The whole pages in a range; start and end are equal if there are none.
pub fn whole_pages(start: usize, end: usize) -> (usize, usize) {
    let page = page();
    let first = start.div_ceil(page) * page;
    let last = end / page * page;
    (first, last.max(first))
}
