//! Tests `sidestream check -- PROGRAM` with the stand-in in place of the driver and of CUPTI.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::command::{FOLDER, Ran, sidestream_with};

/// Compiles a program of `tests/programs` for the stand-in, once, and returns the file.
pub fn compiled(name: &str) -> PathBuf {
    linked(name, &driver(), &[])
}

/// Compiles a program of `tests/programs` with a library and options, once, and returns the file.
pub fn linked(name: &str, library: &Path, options: &[&str]) -> PathBuf {
    static DONE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut done = DONE.lock().expect("no test panicked here");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name);
    // Other processes that test may run the program while this one writes it.
    let program = format!("{name}{}.{}", options.concat(), std::process::id());
    let program = Path::new(FOLDER).join(program);
    if done.insert(program.clone()) {
        let mut compiler = Command::new("cc");
        compiler
            .args(["-g", "-O1", "-pthread", "-Wall", "-Werror"])
            .args(options)
            .arg("-o")
            .args([&program, &source, library]);
        let status = compiler.status().expect("Rust's linker is a C compiler");
        assert!(status.success(), "{}", source.display());
    }
    program
}

/// The stand-in under the name of the driver, whose frames are not the program's.
pub fn driver() -> PathBuf {
    let library = sidestream_stand_in::library().expect("Cargo has built it beside this test");
    let link = Path::new(FOLDER).join("libcuda.so.1");
    match std::os::unix::fs::symlink(&library, &link) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{error}"),
        _ => link,
    }
}

/// Runs a verb on a program of `tests/programs`.
#[track_caller]
pub fn listened(verb: &[&str], program: &Path, arguments: &[&str]) -> Ran {
    listened_by(driver(), verb, program, arguments)
}

/// Runs a verb on a program of `tests/programs`, with a library in place of CUPTI.
#[track_caller]
pub fn listened_by(cupti: PathBuf, verb: &[&str], program: &Path, arguments: &[&str]) -> Ran {
    let program = program.to_str().expect("a path in UTF-8");
    let cupti = [("SIDESTREAM_CUPTI", cupti)];
    sidestream_with(&[verb, &["--", program], arguments].concat(), &cupti)
}

#[test]
fn a_missing_wait_is_found_and_a_repaired_program_is_clean() {
    let program = compiled("waits.c");
    let racy = listened(&["check"], &program, &[]);
    assert_eq!((racy.code, racy.err.as_str()), (1, ""), "{}", racy.out);
    assert!(racy.out.contains("done\n"), "{}", racy.out);
    for part in [
        "2 races",
        "cuMemcpyHtoDAsync_v2",
        "scale",
        "nothing makes stream 1 [waits.c:",
        "waits.c:29 in main()",
        "cudaStreamWaitEvent in stream 1",
    ] {
        assert!(racy.out.contains(part), "{part}: {}", racy.out);
    }
    let repaired = listened(&["check"], &program, &["repaired"]);
    assert_eq!(
        (repaired.code, repaired.err.as_str()),
        (0, ""),
        "{}",
        repaired.out
    );
    assert!(repaired.out.contains("no race"), "{}", repaired.out);
}

#[test]
fn a_recorded_program_is_checked_later_with_the_same_result() {
    let program = compiled("waits.c");
    let log = format!("{FOLDER}/recorded_program.log");
    for (how, races) in [("", 2), ("repaired", 0)] {
        let recorded = listened(&["record", "-o", &log], &program, &[how]);
        assert_eq!(
            (recorded.code, recorded.err.as_str()),
            (0, ""),
            "{}",
            recorded.out
        );
        let checked = sidestream_with::<&str, &str>(&["check", &log], &[]);
        assert_eq!(checked.code, i32::from(races > 0), "{}", checked.out);
        assert_eq!(
            checked.out.contains("2 races"),
            races == 2,
            "{}",
            checked.out
        );
    }
    let stacks = listened(&["check", "--stacks"], &program, &[]);
    assert!(
        stacks.out.contains("\n    waits.c:") || stacks.out.contains("waits.c:29 in main()\n"),
        "{}",
        stacks.out
    );
    let data = listened(&["check", "--json"], &program, &[]);
    let last = data.out.lines().last().expect("a line");
    let data: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(data["races"].as_array().map(Vec::len), Some(2), "{data}");
}

/// The logs are of the programs of these names in `benches/programs`, recorded on an H100.
#[test]
fn logs_of_a_gpu_are_judged_as_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/recorded");
    for name in [
        "batch_any",
        "graph_beside_copy",
        "pool_reuse",
        "threads_event",
        "upload_kernel",
    ] {
        for (how, code) in [("racy", 1), ("repaired", 0)] {
            let log = folder.join(format!("{name}.{how}.log"));
            let checked = sidestream_with::<_, &str>(&[Path::new("check"), &log], &[]);
            assert_eq!(
                (checked.code, checked.err.as_str()),
                (code, ""),
                "{name}: {}",
                checked.out
            );
        }
    }
}

#[test]
fn a_program_that_dies_or_fails_is_checked_up_to_there() {
    let program = compiled("waits.c");
    let died = listened(&["check"], &program, &["dies"]);
    assert_eq!(died.code, 128 + 6);
    assert!(died.err.contains("signal 6 ended"), "{}", died.err);
    assert!(died.out.contains("1 race"), "{}", died.out);
    let failed = listened(&["check"], &program, &["fails"]);
    assert_eq!(failed.code, 7);
    assert!(failed.out.contains("1 race"), "{}", failed.out);
}

#[test]
fn a_program_whose_ring_cannot_be_read_runs_to_its_end() {
    let broken = listened(&["check"], &compiled("overwrites.c"), &[]);
    assert_eq!(
        (broken.code, broken.out.as_str()),
        (2, "done\n"),
        "{}",
        broken.err
    );
    assert!(
        broken
            .err
            .contains("cannot be read: the program has written something else into it"),
        "{}",
        broken.err
    );
}

#[test]
fn whatever_a_program_writes_into_its_ring_does_not_end_the_command() {
    use sidestream_inject::calls::CALLS;
    use sidestream_inject::wire::{Head, Tag};

    for seed in 1..=60_u64 {
        println!("seed {seed}");
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut draw = |below: u64| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let mut words = Vec::new();
        for _ in 0..400 {
            // What launches of few numbers touch: of all, some at once, some later, some never.
            let tags = [Tag::Launches, Tag::Touched, Tag::Boxes, Tag::Map, Tag::Maps];
            let tag = tags[draw(5) as usize];
            let rest: Vec<u64> = (0..draw(24))
                .map(|_| match draw(5) {
                    0 => draw(8) << 60 | (0x7f00_0000_0000 + draw(16) * 4096),
                    1 => 0x7f00_0000_0000 + draw(17) * 4096,
                    2 => draw(32) << 59 | draw(12),
                    _ => draw(12),
                })
                .collect();
            let head = Head {
                words: rest.len() as u16 + 1,
                tag,
                index: 0,
                per_thread: false,
            };
            words.push(head.word());
            words.extend(rest);
            let index = draw(CALLS.len() as u64) as u16;
            let len = draw(40) as u16 + 5;
            let per_thread = draw(8) == 0;
            words.push(
                Head {
                    words: len,
                    tag: Tag::Call,
                    index,
                    per_thread,
                }
                .word(),
            );
            // A thread, a context, a site; then a few handles and addresses, so that calls concern each other.
            words.extend([draw(3) + 1, draw(2), draw(3)]);
            words.extend((4..len).map(|_| match draw(10) {
                0 => u64::MAX - draw(3),
                1 => draw(1 << 20),
                2 => 0x7f00_0000_0000 + draw(16) * 4096,
                _ => draw(6),
            }));
        }
        assert!(sidestream_cli::program::take_words(&words).0 > 300);
    }
}
