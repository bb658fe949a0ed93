//! The tests of the diagnosis, as one program: each crate that it uses is linked once.

mod advice;
mod annotated;
mod base;
mod browser;
mod decode;
mod exact;
mod findings;
mod fixtures;
mod formats;
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

/// Tests of bounds of memory ask it; the others do not notice.
#[global_allocator]
static ALLOCATOR: fixtures::hostile::Counting = fixtures::hostile::Counting;
