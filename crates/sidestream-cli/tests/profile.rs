//! Tests `sidestream diagnose -- PROGRAM` with a library in place of CUPTI that hands out known records.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::command::{FOLDER, Ran, sidestream, sidestream_with};
use crate::program::driver;

/// Runs `diagnose` with these options on the program of `activity.c`.
#[track_caller]
fn diagnosed(options: &[&str], set: &[(&str, &str)]) -> Ran {
    static COMPILED: std::sync::Once = std::sync::Once::new();
    let folder = Path::new(FOLDER);
    let (library, program) = (
        folder.join("libcupti.so.13"),
        folder.join("activity.program"),
    );
    COMPILED.call_once(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/activity.c");
        let compile = |options: &[&str], file: &Path, with: &[&Path]| {
            let mut compiler = Command::new("cc");
            compiler
                .args(["-g", "-Wall", "-Werror"])
                .args(options)
                .arg("-o")
                .arg(file)
                .arg(&source)
                .args(with);
            assert!(
                compiler
                    .status()
                    .expect("Rust's linker is a C compiler")
                    .success()
            );
        };
        let soname = "-Wl,-soname,libcupti.so.13";
        compile(&["-DCUPTI", "-shared", "-fPIC", soname], &library, &[]);
        let rpath = format!("-Wl,-rpath,{FOLDER}");
        compile(
            &[&rpath],
            &program,
            &[&library, &driver(), Path::new("-ldl")],
        );
    });
    let program = program.to_str().expect("a path in UTF-8");
    sidestream_with(&[&["diagnose"], options, &["--", program]].concat(), set)
}

/// Returns the report of `--json`.
#[track_caller]
fn report(ran: &Ran) -> Value {
    assert_eq!(ran.code, 0, "{}", ran.err);
    serde_json::from_str(&ran.out).expect("one line of JSON")
}

#[test]
fn a_program_is_recorded_and_its_causes_are_named() {
    let ran = diagnosed(&["--json", "-o", "activity.json.gz"], &[]);
    assert!(
        ran.err.starts_with("the program has ended\n"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("3 records did not fit"), "{}", ran.err);
    let mut report = report(&ran);
    let findings: Vec<&str> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["code"].as_str().unwrap())
        .collect();
    for cause in ["PAGEABLE_COPY", "SYNC_IN_STEP"] {
        assert!(findings.contains(&cause), "{findings:?}");
    }
    assert_eq!(
        (
            &report["steps"]["by"],
            &report["steps"]["count"],
            &report["steps"]["median_ns"]
        ),
        (&"annotation".into(), &20.into(), &600_000.into())
    );
    // The launches that the runtime makes of the driver, and calls that only ask, are left out.
    assert_eq!(report["source"]["events"], 20 * (1 + 3 + 4 + 1));
    let kept = sidestream(&["diagnose", "--json", "activity.json.gz"]);
    let again: Value = serde_json::from_str(&kept.out).expect("JSON");
    report["file"] = "activity.json.gz".into();
    assert_eq!(report, again);
    let kernels = sidestream(&["diagnose", "--table", "kernels", "activity.json.gz"]);
    assert!(
        kernels.out.contains("scale(float*, float const*)"),
        "{}",
        kernels.out
    );
}

#[test]
fn a_recording_begins_and_ends_with_ranges_of_a_name() {
    let report = report(&diagnosed(
        &["--json", "--from-range", "step", "--steps", "5"],
        &[],
    ));
    assert_eq!(report["steps"]["count"], 5);
    assert_eq!(report["devices"][0]["gpu_ops"], 15);
    let never = diagnosed(&["--from-range", "ste"], &[]);
    assert_eq!(never.code, 2);
    assert!(
        never
            .err
            .contains("made no CUDA call while it was recorded"),
        "{}",
        never.err
    );
}

#[test]
fn a_program_that_cannot_be_recorded_runs_and_says_why() {
    let taken = diagnosed(&[], &[("TAKEN", "1")]);
    assert_eq!(
        (taken.code, taken.out.as_str()),
        (2, "the program has ended\n")
    );
    assert!(taken.err.contains("CUPTI for another"), "{}", taken.err);
    let none = sidestream(&["diagnose", "--", "true"]);
    assert_eq!(none.code, 2);
    assert!(
        none.err.contains("true did not initialize CUDA"),
        "{}",
        none.err
    );
    let fails = sidestream(&["diagnose", "--duration", "1", "--", "false"]);
    assert_eq!(fails.code, 1);
    for (options, why) in [
        (&["--duration", "0", "--", "true"][..], "write seconds from"),
        (&["--steps", "2", "--", "true"], "--from-range"),
        (&["-o", "trace.json", "trace.json"], "cannot be used with"),
        (
            &["-o", "missing/trace.json", "--", "true"],
            "cannot be written",
        ),
    ] {
        let refused = sidestream(&[&["diagnose"], options].concat());
        assert_eq!(refused.code, 2, "{options:?}");
        assert!(refused.err.contains(why), "{options:?}: {}", refused.err);
    }
}
