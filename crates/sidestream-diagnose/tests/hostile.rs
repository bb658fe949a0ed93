//! Tests files that are cut, damaged or malicious: they give an error or a part of a trace, quickly and in little memory.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use crate::fixtures::compare::{WorkRow, work_in};
use crate::fixtures::hostile::{cut, damaged, peak_bytes};
use crate::fixtures::pytorch::{self, Form};
use crate::fixtures::{Folder, Scenario, nsys};
use flate2::Compression;
use flate2::write::GzEncoder;
use sidestream_diagnose::{
    Call, Collectives, Error, Limits, Links, Problem, Trace, devices, read, read_json,
};

/// The maximum memory of any reader besides the rows that it keeps: the JSON window grows to 16 MiB, and while it grows the
/// smaller one exists as well.
const FIXED_BYTES: u64 = 26 << 20;
/// The maximum number of bytes that are kept for each byte of the file.
const GROWTH: u64 = 8;
/// Seeds of damage for each format.
const SEEDS: u64 = 60;

/// Reads from memory within the bound.
fn json(bytes: &[u8]) -> Result<Trace, Problem> {
    let (result, peak) = peak_bytes(|| read_json(bytes, &Limits::default()));
    let most = FIXED_BYTES + GROWTH * bytes.len() as u64;
    assert!(peak <= most, "{peak} bytes for {} of JSON", bytes.len());
    result
}

/// Reads a file within the bound.
fn file(path: &Path) -> Result<Trace, Error> {
    let (result, peak) = peak_bytes(|| read(path, &Limits::default(), &mut |_, _| {}));
    let size_bytes = std::fs::metadata(path).map_or(0, |meta| meta.len());
    let most = FIXED_BYTES + GROWTH * size_bytes;
    assert!(peak <= most, "{peak} bytes for {size_bytes} of a file");
    result
}

/// Returns a file of Nsight Systems, as bytes.
fn export(folder: &Folder, scenario: &Scenario, schema: nsys::Schema) -> Vec<u8> {
    let path = folder.file("whole.sqlite");
    let _ = std::fs::remove_file(&path);
    nsys::write(scenario, schema, nsys::Options::SHORT, &path);
    std::fs::read(&path).expect("the file was written")
}

fn says<T>(result: Result<T, impl std::fmt::Display>, what: &str) {
    match result {
        Ok(_) => panic!("it was read"),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(what), "{text}");
        }
    }
}

fn set(rows: Vec<WorkRow>) -> BTreeSet<WorkRow> {
    rows.into_iter().collect()
}

#[test]
fn json_that_is_cut_gives_its_first_part_and_a_warning() {
    for form in Form::ALL {
        let whole = pytorch::write(&Scenario::training(4), form, pytorch::Options::NONE);
        let all = set(work_in(&json(&whole).expect("the file is whole")));
        let mut read = 0;
        for part in 0..50 {
            let Ok(trace) = json(cut(&whole, part)) else {
                continue;
            };
            read += 1;
            let rows = set(work_in(&trace));
            assert!(rows.is_subset(&all), "{form:?}, {part} of 50");
            assert!(!trace.warnings.is_empty(), "{form:?}, {part} of 50");
        }
        // Device work begins in the middle of the files that are written here.
        assert!(read >= 10, "{form:?}: {read} of 50 were read");
    }
}

#[test]
fn a_compressed_file_that_is_cut_gives_its_first_part_and_a_warning() {
    let folder = Folder::new("hostile-gzip");
    let whole = pytorch::write(&Scenario::training(40), Form::Y2024, pytorch::Options::NONE);
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&whole).expect("memory takes everything");
    let packed = packed.finish().expect("memory takes everything");
    let all = set(work_in(&json(&packed).expect("the file is whole")));
    let mut read = 0;
    for part in 0..50 {
        let path = folder.write("cut.json.gz", cut(&packed, part));
        if let Ok(trace) = file(&path) {
            read += 1;
            assert!(set(work_in(&trace)).is_subset(&all), "{part} of 50");
            assert!(!trace.warnings.is_empty(), "{part} of 50");
        }
    }
    assert!(read >= 10, "{read} of 50 were read");
    for seed in 0..SEEDS {
        let path = folder.write("damaged.json.gz", &damaged(&packed, seed));
        println!("seed {seed}");
        let _ = file(&path);
    }
}

#[test]
fn damaged_json_is_read_or_refused() {
    for form in Form::ALL {
        let scenario = Scenario::training(3).with_odd_names();
        let whole = pytorch::write(&scenario, form, pytorch::Options::NONE);
        for seed in 0..SEEDS {
            println!("{form:?}, seed {seed}");
            let _ = json(&damaged(&whole, seed));
        }
    }
}

#[test]
fn a_database_that_is_cut_is_refused_or_gives_a_part_and_a_warning() {
    let folder = Folder::new("hostile-cut");
    for schema in nsys::Schema::ALL {
        let whole = export(&folder, &Scenario::training(8), schema);
        for part in 0..50 {
            let path = folder.write("cut.sqlite", cut(&whole, part));
            if let Ok(trace) = file(&path) {
                assert!(!trace.warnings.is_empty(), "{schema:?}, {part} of 50");
            }
        }
    }
}

#[test]
fn a_database_that_is_damaged_is_read_or_refused() {
    let folder = Folder::new("hostile-damaged");
    for schema in nsys::Schema::ALL {
        let whole = export(&folder, &Scenario::training(8).with_odd_names(), schema);
        for seed in 0..SEEDS {
            println!("{schema:?}, seed {seed}");
            let path = folder.write("damaged.sqlite", &damaged(&whole, seed));
            let _ = file(&path);
        }
    }
}

#[test]
fn files_that_are_not_traces_are_refused_with_one_sentence() {
    let folder = Folder::new("hostile-no-trace");
    for (name, bytes, what) in [
        ("empty", &b""[..], "the file is empty"),
        ("text", b"hello\n", "not a trace"),
        ("picture", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not a trace"),
        ("zeros", &[0; 4096], "not a trace"),
        ("start", b"SQLite format 3\0", "cannot be read"),
        ("gzip", b"\x1f\x8b", ""),
        ("object", b"{}", ""),
        ("array", b"[]", ""),
        ("number", b"12", "not a trace"),
    ] {
        let path = folder.write(name, bytes);
        says(file(&path), what);
    }
    says(file(&folder.file("missing")), "cannot be read");
    says(file(folder.path()), "not a file");
}

#[test]
fn extreme_numbers_do_no_harm() {
    for number in [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1e400",
        "1e-400",
        "99999999999999999999999999999999",
        "-99999999999999999999999999999999",
        "9223372036854775807",
        "9223372036854775.807",
        "0.00000000000000000000000000000001",
        "\"12\"",
        "\"\"",
        "null",
        "true",
        "[1]",
        "{}",
    ] {
        for field in [
            "ts",
            "dur",
            "pid",
            "tid",
            "stream",
            "device",
            "correlation",
            "bytes",
        ] {
            let row = |changed: Option<&str>| {
                let value = |name: &str, usual: &str| match changed {
                    Some(number) if name == field => format!("\"{name}\": {number}"),
                    _ => format!("\"{name}\": {usual}"),
                };
                format!(
                    "{{\"ph\": \"X\", \"cat\": \"gpu_memcpy\", \"name\": \"Memcpy HtoD (Pinned -> Device)\", {}, {}, {}, {}, \
                     \"args\": {{{}, {}, {}, {}}}}}",
                    value("ts", "100.5"),
                    value("dur", "7.25"),
                    value("pid", "0"),
                    value("tid", "7"),
                    value("stream", "7"),
                    value("device", "0"),
                    value("correlation", "3"),
                    value("bytes", "4096"),
                )
            };
            let text = format!(
                "{{\"traceEvents\": [{}, {}]}}",
                row(None),
                row(Some(number))
            );
            let trace = match json(text.as_bytes()) {
                Ok(trace) => trace,
                Err(problem) => panic!("{field} {number}: {problem}"),
            };
            // The other row of the file is still read.
            let usual = (100_500, 7_250);
            let mut rows = trace
                .work
                .iter()
                .map(|work| (work.start_ns, work.duration_ns));
            assert!(rows.any(|row| row == usual), "{field} {number}");
        }
    }
}

#[test]
fn deep_nesting_does_not_exhaust_the_stack() {
    let row = "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\", \"pid\": 0, \"tid\": 7, \"ts\": 1, \"dur\": 2, \"args\": {\"stream\": 7}}";
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let value = match open {
            "[" => format!("{}{}", open.repeat(200_000), close.repeat(200_000)),
            _ => format!("{}1{}", open.repeat(200_000), close.repeat(200_000)),
        };
        for text in [
            format!("{{\"deep\": {value}, \"traceEvents\": [{row}]}}"),
            format!("{{\"traceEvents\": [{row}, {{\"ph\": \"X\", \"args\": {value}}}]}}"),
            format!("{{\"traceEvents\": [{row}, {value}]}}"),
            format!("{{\"deviceProperties\": {value}, \"traceEvents\": [{row}]}}"),
            format!("{{\"distributedInfo\": {value}, \"traceEvents\": [{row}]}}"),
            value.clone(),
            open.repeat(400_000),
        ] {
            let _ = json(text.as_bytes());
        }
    }
}

/// A file that a profiler leaves when it is stopped just as it begins to write, and a file that only looks compressed.
#[test]
fn a_compressed_file_without_anything_in_it_says_so() {
    let folder = Folder::new("hostile-short-gzip");
    let header = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03";
    let why = "nothing of the compressed file can be unpacked: it ends too early, or is damaged at its start";
    for (name, bytes) in [
        ("ten.gz", &header[..]),
        ("four.gz", &header[..4]),
        ("two.gz", &header[..2]),
        ("none.gz", b"\x1f\x8bhello12345"),
    ] {
        says(file(&folder.write(name, bytes)), why);
    }
    let mut nothing = GzEncoder::new(Vec::new(), Compression::fast());
    nothing.write_all(b"").expect("memory takes it");
    let nothing = nothing.finish().expect("memory takes it");
    says(
        file(&folder.write("nothing.gz", &nothing)),
        "the file is empty",
    );
}

#[test]
fn a_gzip_bomb_is_refused_in_little_memory() {
    let folder = Folder::new("hostile-bomb");
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed
        .write_all(b"{\"traceEvents\": [")
        .expect("memory takes everything");
    let blanks = vec![b' '; 1 << 20];
    for _ in 0..192 {
        packed.write_all(&blanks).expect("memory takes everything");
    }
    let bomb = packed.finish().expect("memory takes everything");
    assert!(bomb.len() < 2 << 20);
    says(file(&folder.write("bomb.json.gz", &bomb)), "200 times");
    // A compressed file inside another one.
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&bomb).expect("memory takes everything");
    let outer = packed.finish().expect("memory takes everything");
    says(file(&folder.write("twice.gz", &outer)), "not a trace");
}

#[test]
fn one_endless_name_does_not_fill_memory() {
    let long = "x".repeat(40 << 20);
    let row = |name: &str| {
        format!(
            "{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"{name}\", \"pid\": 0, \"tid\": 7, \"ts\": 1, \"dur\": 2, \
             \"args\": {{\"stream\": 7}}}}"
        )
    };
    let text = format!("{{\"traceEvents\": [{}, {}]}}", row("short"), row(&long));
    let (result, peak) = peak_bytes(|| read_json(text.as_bytes(), &Limits::default()));
    assert!(peak < 3 * text.len() as u64, "{peak}");
    if let Ok(trace) = result {
        let names: Vec<&str> = trace
            .work
            .iter()
            .map(|w| trace.names.text(w.name))
            .collect();
        assert!(names.contains(&"short"), "{names:?}");
        assert!(names.iter().all(|name| name.len() <= 8 << 10));
    }
}

#[test]
fn more_streams_than_any_program_has_are_refused() {
    let mut text = String::from("{\"traceEvents\": [");
    for stream in 0..70_000 {
        let comma = if stream == 0 { "" } else { "," };
        text += &format!(
            "{comma}{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"pid\":0,\"tid\":{stream},\"ts\":{stream},\"dur\":1,\
             \"args\":{{\"device\":0,\"context\":1,\"stream\":{stream},\"correlation\":1}}}}"
        );
    }
    text += "]}";
    says(json(text.as_bytes()), "65536 streams");

    let folder = Folder::new("hostile-streams");
    let mut scenario = Scenario::training(1);
    let one = scenario.work[0].clone();
    scenario.work = (0..70_000_u32)
        .map(|stream| crate::fixtures::Work {
            stream,
            ..one.clone()
        })
        .collect();
    let path = folder.file("streams.sqlite");
    nsys::write(&scenario, nsys::Schema::V3_25, nsys::Options::NONE, &path);
    says(file(&path), "65536 streams");
}

/// Opening a pipe without a writer would block forever.
#[cfg(unix)]
#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let folder = Folder::new("hostile-pipe");
    let path = folder.file("trace.json");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo failed");
    says(file(&path), "not a file");
    says(file(Path::new("/dev/zero")), "not a file");
}

/// Many calls that overlap with many operations: an algorithm that compares every pair does not end. The bound is on the number
/// of queries to the sums, so no clock is needed: a quadratic reader would take hours.
#[test]
fn calls_that_overlap_everything_do_not_hang_the_reader() {
    const EACH: usize = 300_000;
    let mut text = String::from("{\"traceEvents\": [");
    for at in 0..EACH {
        let comma = if at == 0 { "" } else { "," };
        // One correlation number for all, and a wait that lasts to the end.
        text += &format!(
            "{comma}{{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"cudaMemcpy\",\"pid\":1,\"tid\":1,\"ts\":{at},\
             \"dur\":9000000,\"args\":{{\"correlation\":7}}}},\
             {{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"pid\":0,\"tid\":7,\"ts\":{},\"dur\":1,\
             \"args\":{{\"stream\":7,\"correlation\":7}}}}",
            10 * at
        );
    }
    text += "]}";
    let trace = json(text.as_bytes()).expect("a trace");
    let links = Links::of(&trace);
    assert!((0..EACH).all(|work| links.call_of(work) == Some(0)));
    let devices = devices(&trace, &Collectives::of(&trace));
    let busy = |call: &Call| devices[0].busy.within_ns(call.start_ns, call.end_ns());
    let sum: u64 = trace.calls.iter().map(busy).sum();
    // For each call, all work that began after it, and the rest of one operation.
    let expected: u64 = (0..EACH as u64)
        .map(|at| (EACH as u64 - at.div_ceil(10)) * 1_000)
        .sum();
    assert_eq!(sum, expected);
}
