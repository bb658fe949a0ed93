//! One program for all tests of this crate.
