//! `sidestream-bench gpu` without a GPU: the dry run has every row, and other uses are refused.

use std::process::Command;

use serde_json::Value;

/// The outcome of a run.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// Runs the benchmark with these arguments, separated by spaces.
#[track_caller]
fn bench(arguments: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidestream-bench"));
    let output = command.arg("gpu").args(arguments.split(' ')).output();
    let output = output.expect("it was built");
    let text = |bytes| String::from_utf8(bytes).expect("it writes UTF-8");
    let (out, err) = (text(output.stdout), text(output.stderr));
    let code = output.status.code().filter(|&code| code != 101);
    let code = code.unwrap_or_else(|| panic!("ended with {}:\n{out}{err}", output.status));
    Ran { code, out, err }
}

#[track_caller]
fn dry_run() -> Value {
    let ran = bench("--device sim:h200 --quick --json");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(ran.out.lines().count(), 1, "one object on one line");
    serde_json::from_str(&ran.out).expect("JSON")
}

#[test]
fn the_dry_run_has_every_row_and_judges_none() {
    let json = dry_run();
    assert_eq!(json["schema"], "sidestream.bench.gpu/1");
    assert_eq!(json["device"], "NVIDIA H200");
    assert_eq!(json["driver"], Value::Null);
    let rows = json["rows"].as_array().expect("a list");
    let mut seen = Vec::new();
    for row in rows {
        let expected = [
            "what", "unit", "raw", "ours", "ratio", "low", "high", "bar", "met", "note",
        ];
        let keys: Vec<_> = row.as_object().expect("an object").keys().collect();
        assert_eq!(keys, expected);
        for absent in ["raw", "ratio", "met"] {
            assert_eq!(row[absent], Value::Null, "{row}");
        }
        seen.push(row["what"].as_str().expect("a text").to_owned());
    }
    let mut expected: Vec<String> = [
        "launch of an empty kernel, tracked",
        "launch of an empty kernel, tracked, unmarked stream",
        "launch of an empty kernel, explicit",
        "event record, after a launch",
        "event record, explicit",
        "event wait, on a new event",
        "event wait, explicit",
        "make stream B wait for A, after a launch",
        "make stream B wait for A, explicit",
        "launch on A and make B wait for it, tracked",
        "allocate and free 1 MiB, one stream",
        "launch and synchronize",
    ]
    .map(str::to_owned)
    .into();
    for size in ["64 KiB", "4 MiB", "32 MiB"] {
        for work in [16, 256, 4096, 16384] {
            expected.push(format!("pipeline, 4 slots, 32 x {size}, work {work}"));
        }
    }
    for work in [16, 256, 4096, 16384] {
        for slots in [4, 6] {
            expected.push(format!(
                "pipeline, a graph per slot, {slots} slots, 32 x 64 KiB, work {work}"
            ));
        }
    }
    for raw in ["one copy", "500 copies"] {
        expected.push(format!("500 pieces of 16 KiB as one batch, raw: {raw}"));
    }
    assert_eq!(seen, expected);
}

#[test]
fn the_bars_are_those_that_were_agreed() {
    let json = dry_run();
    let bar = |begins: &str| {
        let rows = json["rows"].as_array().expect("a list").iter();
        let bars = rows
            .filter(|row| {
                row["what"]
                    .as_str()
                    .is_some_and(|what| what.starts_with(begins))
            })
            .map(|row| row["bar"].as_str().unwrap_or("none").to_owned());
        let mut bars: Vec<String> = bars.collect();
        bars.dedup();
        bars
    };
    assert_eq!(bar("launch of an empty"), ["at most 1.15 x raw"]);
    assert_eq!(
        bar("event "),
        ["at most 1.75 x raw", "at most 1.50 x raw"],
        "restated, with the reason, in calls.rs"
    );
    assert_eq!(bar("make stream B"), ["at most 1.30 x raw"]);
    assert_eq!(bar("allocate"), ["at most 0.15 us"]);
    assert_eq!(
        bar("pipeline, 4 slots, 32 x 64 KiB"),
        ["at most 1.60 x raw"]
    );
    assert_eq!(bar("pipeline, 4 slots, 32 x 4 MiB"), ["at most 1.03 x raw"]);
    assert_eq!(
        bar("pipeline, 4 slots, 32 x 32 MiB"),
        ["at most 1.03 x raw"]
    );
    assert_eq!(
        bar("pipeline, a graph per slot"),
        ["at most 1.10 x raw", "at least 1.2 x as fast as raw"].repeat(4)
    );
    assert_eq!(bar("500 pieces"), ["at most 1.20 x raw", "none"]);
}

/// The simulated time of a job is that of `sidestream overlap`: in both, the slots exist before the clock starts,
/// except for the time to create them.
#[test]
fn the_jobs_take_the_time_that_overlap_shows() {
    let json = dry_run();
    for (size, batch) in [("64KiB", 64 << 10), ("4MiB", 4 << 20), ("32MiB", 32 << 20)] {
        let shown = sidestream_cli::overlap(&["--work", "256", "--batch", size]);
        let (shown, _) = shown.unwrap_or_else(|_| panic!("{size} is compared"));
        let rows = shown["rows"].as_array().expect("a list").iter();
        let pipeline = rows.filter(|row| row["layout"] == "pipeline");
        let shown_ns: f64 = pipeline
            .map(|row| row["time_ns"].as_f64().expect("a number"))
            .sum();
        let jobs = json["overlap"].as_array().expect("a list").iter();
        let job = jobs.filter(|job| job["batch_bytes"] == batch && job["work"] == 256);
        let own_ms: f64 = job
            .map(|job| job["pipeline_ms"].as_f64().expect("a number"))
            .sum();
        let ratio = own_ms * 1e6 / shown_ns;
        assert!(
            (0.95..=1.02).contains(&ratio),
            "{size}: {own_ms} ms against {shown_ns} ns"
        );
    }
}

#[test]
fn a_single_part_has_only_its_rows() {
    let rows = |part: &str| {
        let ran = bench(&format!("--device sim:h200 --quick --json {part}"));
        let json: Value = serde_json::from_str(&ran.out).expect("JSON");
        let count = |list: &str| json[list].as_array().expect("a list").len();
        (count("rows"), count("overlap"))
    };
    assert_eq!(rows("--part calls"), (12, 0));
    assert_eq!(rows("--part jobs"), (20, 12));
    assert_eq!(rows("--part pieces --part calls"), (14, 0));
}

#[test]
fn the_table_says_that_it_is_a_dry_run() {
    let ran = bench("--device sim:a10g --quick");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let mut lines = ran.out.lines();
    let head = lines.next().expect("a head");
    assert!(
        head.contains("A10G") && head.contains("a dry run"),
        "{head}"
    );
    assert!(lines.any(|line| line == "bars: none judged"), "{}", ran.out);
}

#[test]
fn without_a_gpu_the_error_says_what_was_searched_for() {
    let refused = bench("--driver /nowhere/libcuda.so");
    assert_eq!((refused.code, refused.out.as_str()), (2, ""));
    assert_eq!(refused.err.lines().count(), 1, "{}", refused.err);
    assert!(
        refused.err.contains("/nowhere/libcuda.so"),
        "{}",
        refused.err
    );
    assert!(
        refused.err.contains("there is no GPU to measure"),
        "{}",
        refused.err
    );
}

#[test]
fn an_unknown_device_name_is_refused_with_the_known_names() {
    for name in [
        "cuda:",
        "cuda:x",
        "cuda:-1",
        "cuda:+1",
        "cuda0",
        "cuda:99999999999",
    ] {
        let refused = bench(&format!("--device {name}"));
        assert_eq!(refused.code, 2, "{name}");
        assert!(refused.err.contains("cuda:0"), "{name}: {}", refused.err);
    }
    let refused = bench("--device h200");
    assert!(refused.err.contains("sim:h200"), "{}", refused.err);
}
