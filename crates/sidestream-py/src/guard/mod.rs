//! The host's own loads and stores of memory that an asynchronous copy uses, heard by the protection of its pages.
//!
//! While a copy reads pinned memory, a store of the host to it is a race, and while a copy writes it, a load is one too. No call tells of
//! either: numpy and C++ just do them. So the whole pages of such a range are protected ([`table`]), the processor faults at the very byte,
//! and [`handler`] notes the access, opens the page and lets the program go on. The device does not notice: its copies go
//! by page tables of its own. What was noted is fetched by [`hits::take`] and judged by the checker.
//!
//! Two things run at any time, and so take no lock, allocate nothing and call neither Python nor CUDA: the handler, and the
//! functions that stand in for system calls ([`stand_ins`], where [`calls`] leads them), which the kernel would fail where a page is protected. They read
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

pub mod calls;
pub mod frames;
pub mod handler;
pub mod hits;
pub mod stand_ins;
pub mod table;
