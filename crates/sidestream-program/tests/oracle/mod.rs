//! An independent judge of stream programs for the tests, and a generator of random programs.

pub mod compare;
pub mod generate;
pub mod model;
pub mod prog;
pub mod vary;

/// Returns the number of random programs that a test tries: slightly more than are needed to notice every mistake on
/// its list, and many more in `cargo xtask nightly`, whose figures docs/developers/reliability.md states.
pub fn programs(every_day: u64, nightly: u64) -> u64 {
    match std::env::var_os("SIDESTREAM_NIGHTLY") {
        Some(_) => nightly,
        None => every_day,
    }
}
