//! One program for all tests of this crate.

mod bars;
mod jobs;
mod ranks;
