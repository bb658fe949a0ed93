//! An independent judge of stream programs for the tests, and a generator of random programs.

pub mod compare;
pub mod generate;
pub mod model;
pub mod prog;
pub mod vary;
