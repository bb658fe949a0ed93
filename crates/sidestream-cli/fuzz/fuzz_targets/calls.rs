//! Any words in a ring are taken as calls or left out.
//!
//! `cargo +nightly fuzz run calls` in the folder `fuzz`.

#![cfg_attr(fuzzing, no_main)]

use fuzz_target::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (words, _) = bytes.as_chunks();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    sidestream_cli::program::take_words(&words);
});
