//! Tests `sidestream overlap` for a user's own job: by its times, at several sizes, on more streams.

use crate::command::sidestream;
use serde_json::Value;

#[track_caller]
fn json(arguments: &str) -> Value {
    let mut args = vec!["overlap", "--json"];
    args.extend(arguments.split(' '));
    let ran = sidestream(&args);
    assert_eq!(ran.code, 0, "{arguments}: {}", ran.err);
    serde_json::from_str(&ran.out).expect("JSON")
}

fn gain(json: &Value) -> f64 {
    let times = json["rows"].as_array().expect("a list").iter();
    let times: Vec<f64> = times
        .map(|row| row["time_ns"].as_f64().expect("a number"))
        .collect();
    times[0] / times.iter().copied().fold(f64::INFINITY, f64::min)
}

#[test]
fn eight_milliseconds_of_computing_and_three_of_copying_gain_a_third() {
    let told = json("--kernel-ms 8 --upload-ms 3 --count 1000");
    assert!((gain(&told) - 1.375).abs() < 0.003, "{}", gain(&told));
    let long_run = told["long_run"].as_f64().expect("a number");
    assert!((long_run - 1.375).abs() < 0.001, "{long_run}");
    for (stage, ns) in [("upload_ns", 3e6), ("kernel_ns", 8e6), ("download_ns", 0.0)] {
        let told = told["stages"][stage].as_f64().expect("a number");
        assert!((told - ns).abs() <= 100.0, "{stage}: {told}");
    }
    assert_eq!(
        (&told["batch_bytes"], &told["work"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn it_says_so_in_words() {
    let ran = sidestream(&["overlap", "--kernel-ms", "8", "--upload-ms", "3"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(
        lines[0],
        "32 batches of your own, on a simulated NVIDIA H200"
    );
    assert_eq!(
        lines[1],
        "one batch: upload 3.000 ms, kernel 8.000 ms, no download"
    );
    assert!(
        ran.out
            .contains("nearer it comes to 1.375 times as fast as stage after stage")
    );
    assert!(
        lines
            .last()
            .is_some_and(|line| line.starts_with("Worth it:")),
        "{}",
        ran.out
    );
    assert!(!ran.out.contains("pipeline,"));
}

#[test]
fn no_arrangement_of_own_stages_beats_the_limit() {
    for device in ["sim:h200", "sim:rtx4090"] {
        for times in [
            "--kernel-ms 1 --upload-ms 1",
            "--kernel-ms 1 --download-ms 1",
            "--kernel-ms 0.5 --upload-ms 3 --download-ms 1",
            "--kernel-ms 3 --upload-ms 3 --download-ms 3",
            "--kernel-ms 0.01 --upload-ms 0.02",
        ] {
            let told = json(&format!("--device {device} {times} --count 50"));
            let limit = told["limit_ns"].as_f64().expect("a number");
            for row in told["rows"].as_array().expect("a list") {
                let time = row["time_ns"].as_f64().expect("a number");
                assert!(
                    time >= 0.99 * limit,
                    "{device} {times}: {row} against {limit}"
                );
            }
            assert!(
                gain(&told) > 1.2 || device == "sim:rtx4090",
                "{device} {times}"
            );
        }
    }
}

#[test]
fn pageable_memory_takes_longer_than_pinned_and_says_how_fast_it_is() {
    let told = json("--batch 16MiB --work 16");
    let one = told["rows"][0]["time_ns"].as_f64().expect("a number");
    assert!(told["pageable_ns"].as_f64().expect("a number") > 2.0 * one);
    let told = json("--batch 16MiB --work 16 --no-download");
    assert_eq!(told["stages"]["download_ns"], 0);
    let rows = told["rows"].as_array().expect("a list");
    assert!(rows.iter().all(|row| row["layout"] != "pipeline"));
}

#[test]
fn up_to_sixteen_streams_are_compared() {
    let of = |streams: &str| -> Vec<u64> {
        let told = json(&format!(
            "--batch 4KiB --work 10000000 --count 64 --streams {streams}"
        ));
        let rows = told["rows"].as_array().expect("a list").iter();
        let streams = rows.filter(|row| row["layout"] == "streams");
        streams
            .map(|row| row["k"].as_u64().expect("a number"))
            .collect()
    };
    assert_eq!(of("4"), [1, 2, 3, 4]);
    assert_eq!(of("6"), [1, 2, 3, 4, 6]);
    assert_eq!(of("16"), [1, 2, 3, 4, 8, 16]);
    // Kernels of four blocks: each additional stream adds one concurrent kernel.
    let told = json("--batch 4KiB --work 10000000 --count 64 --streams 16");
    assert!(gain(&told) > 15.0, "{}", gain(&told));
}

#[test]
fn a_sweep_has_a_line_and_a_verdict_for_each_size() {
    let ran = sidestream(&["overlap", "--sweep", "64KiB,4MiB,32MiB", "--work", "256"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    for size in ["64 KiB", "4 MiB", "32 MiB"] {
        assert!(ran.out.contains(size), "{}", ran.out);
    }
    assert_eq!(ran.out.matches("Worth it: ").count(), 3, "{}", ran.out);
    let told = json("--sweep 64KiB,4MiB,32MiB --work 256");
    assert_eq!(told["schema"], "sidestream.overlap.sweep/1");
    for (size, alone) in told["sizes"]
        .as_array()
        .expect("a list")
        .iter()
        .zip(["64KiB", "4MiB", "32MiB"])
    {
        assert_eq!(
            size["rows"],
            json(&format!("--batch {alone} --work 256"))["rows"],
            "{alone}"
        );
    }
}

#[test]
fn hidden_copies_are_not_called_kernels_side_by_side() {
    let ran = sidestream(&["overlap", "--kernel-ms", "80", "--upload-ms", "0.5"]);
    let last = ran.out.lines().last();
    let expected =
        "Do not bother: overlap saves 0.6 % of the time, as the kernels take nearly all of it.";
    assert!(
        last.is_some_and(|line| line.starts_with(expected)),
        "{}",
        ran.out
    );
}

#[test]
fn meaningless_combinations_are_refused() {
    for (arguments, why) in [
        (
            "--kernel-ms 8",
            "a kernel alone has nothing to overlap with; give --upload-ms, --download-ms or both",
        ),
        ("--upload-ms 8", "--kernel-ms"),
        ("--upload-ms 8 --batch 4MiB", "cannot be used with"),
        ("--download-ms 8 --work 10", "cannot be used with"),
        ("--upload-ms 8 --sweep 64KiB,1MiB", "cannot be used with"),
        (
            "--kernel-ms 8 --upload-ms 3 --batch 4MiB",
            "cannot be used with",
        ),
        (
            "--kernel-ms 0 --upload-ms 3",
            "give milliseconds, from 0.0001",
        ),
        (
            "--kernel-ms nan --upload-ms 3",
            "is not the time of a stage",
        ),
        (
            "--kernel-ms 8 --upload-ms 0.001",
            "--upload-ms is less than the 0.0025 ms",
        ),
        ("--sweep 4MiB --batch 4MiB", "cannot be used with"),
        ("--sweep 4MiB,much", "\"much\" is not a size"),
        ("--streams 17", "17 is not in 4..=16"),
        ("--sweep 1TiB", "do not fit"),
    ] {
        let mut args = vec!["overlap"];
        args.extend(arguments.split(' '));
        let ran = sidestream(&args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{arguments}");
        assert!(ran.err.contains(why), "{arguments}: {}", ran.err);
    }
}
