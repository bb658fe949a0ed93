//! The macro with which fuzz targets are written: libFuzzer's if `cargo fuzz` builds them. Any other build compiles them to programs that
//! do nothing, so that a change to a library which breaks its fuzz targets is noticed.

#[cfg(fuzzing)]
pub use libfuzzer_sys::fuzz_target;

/// Defines a fuzz target that is compiled and not run.
#[cfg(not(fuzzing))]
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: $type:ty| $body:expr) => {
        fn main() {
            let _: fn($type) = |$input| $body;
        }
    };
}
