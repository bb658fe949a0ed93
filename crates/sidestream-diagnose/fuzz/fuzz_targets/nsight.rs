//! Any database is read or refused.
//!
//! `cargo +nightly fuzz run nsight` in the folder `fuzz`. Input that does not start like a database is applied as changes to a
//! valid export: three bytes for an offset and one for the new value. Reading a file of random bytes would end at its first
//! page.

#![cfg_attr(fuzzing, no_main)]

#[path = "../../tests/fixtures/nsys.rs"]
#[allow(dead_code, reason = "the tests use the rest of it")]
mod nsys;
#[path = "../../tests/fixtures/scenario.rs"]
#[allow(dead_code, reason = "the tests use the rest of it")]
mod scenario;

use std::path::PathBuf;
use std::sync::OnceLock;

use fuzz_target::fuzz_target;
use scenario::{Call, Memory, Scenario, Span, What, Work};
use sidestream_diagnose::{Collectives, Limits, copies, devices, read};

fuzz_target!(|bytes: &[u8]| {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    let database = match bytes.starts_with(b"SQLite") {
        true => bytes.to_vec(),
        false => changed(GOOD.get_or_init(good), bytes),
    };
    let path = place("fuzzed");
    std::fs::write(&path, &database).expect("a temporary file can be written");
    if let Ok(trace) = read(&path, &Limits::default(), &mut |_, _| {}) {
        let devices = devices(&trace, &Collectives::of(&trace));
        for device in devices {
            assert!(device.busy_ns() <= device.span_ns);
            assert!(device.hidden_copy_ns <= device.host_copy_ns);
        }
        let _ = copies(&trace);
        // Every row takes at least seven bytes of a file.
        assert!(trace.work.len() <= 4 * (database.len() / 7 + 1));
    }
});

fn changed(good: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut database = good.to_vec();
    for change in changes.chunks_exact(4) {
        let at = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize;
        let at = at % database.len();
        database[at] = change[3];
    }
    database
}

fn good() -> Vec<u8> {
    let path = place("good");
    let _ = std::fs::remove_file(&path);
    nsys::write(
        &Scenario::training(3),
        nsys::Schema::V3_25,
        nsys::Options::SHORT,
        &path,
    );
    std::fs::read(&path).expect("the file was written")
}

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{name}-{}.sqlite", std::process::id()))
}
