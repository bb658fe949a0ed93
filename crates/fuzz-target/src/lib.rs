//! What fuzz targets are written with: libFuzzer, where `cargo fuzz` builds them. Any other build compiles them into programs that do
//! nothing, so that a change to a library changes its fuzz targets too.

#[cfg(fuzzing)]
pub use libfuzzer_sys::fuzz_target;

/// A fuzz target that is compiled and not run.
#[cfg(not(fuzzing))]
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: $type:ty| $body:expr) => {
        fn main() {
            let _: fn($type) = |$input| $body;
        }
    };
}
