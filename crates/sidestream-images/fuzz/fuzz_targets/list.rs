//! Opening a list never panics, takes no more memory than the file has bytes, and gives each sample a name.

#![cfg_attr(fuzzing, no_main)]

use std::{env, fs, process};

use fuzz_target::fuzz_target;
use sidestream_images::source::Dataset;

fuzz_target!(|bytes: &[u8]| {
    let path = env::temp_dir().join(format!("sidestream-fuzz-list-{}", process::id()));
    fs::write(&path, bytes).expect("a file");
    if let Ok(data) = Dataset::list(&path) {
        for sample in 0..data.len() {
            assert!(!data.name(sample).is_empty());
        }
    }
});
