//! The tests of the diagnosis, as one program, so that each crate is linked only once.

mod advice;
mod annotated;
mod base;
mod browser;
mod decode;
mod exact;
mod findings;
mod fixtures;
mod formats;
mod gate;
mod hostile;
mod hostile_database;
mod json;
mod nsight;
mod own;
mod page;
mod promises;
mod ranks;
mod replay;
mod tables;
mod together;
mod verdicts;
mod words;

/// Counts allocations for the tests of memory limits; the other tests do not notice it.
#[global_allocator]
static ALLOCATOR: fixtures::hostile::Counting = fixtures::hostile::Counting;
