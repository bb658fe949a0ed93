//! Opening an archive never panics, takes no more memory than the file has bytes, and each of its samples can be
//! read.

#![cfg_attr(fuzzing, no_main)]

use std::{env, fs, process};

use fuzz_target::fuzz_target;
use sidestream_images::source::Dataset;

fuzz_target!(|bytes: &[u8]| {
    let path = env::temp_dir().join(format!("sidestream-fuzz-shard-{}", process::id()));
    fs::write(&path, bytes).expect("a file");
    if let Ok(data) = Dataset::shards(&[&path]) {
        let mut into = Vec::new();
        for sample in 0..data.len() {
            assert!(!data.name(sample).is_empty());
            data.read(sample, &mut into)
                .expect("its place lies within the archive");
        }
    }
});
