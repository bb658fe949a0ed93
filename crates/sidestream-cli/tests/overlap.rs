//! Tests the times of `sidestream overlap` against measurements, and its verdicts.

use std::collections::HashMap;
use std::fmt::Write;

use crate::command::sidestream;
use crate::json::keys;
use serde_json::Value;

/// Measured on an H200; the head of the file describes how.
const MEASURED: &str = include_str!("data/overlap_h200.tsv");

/// Runs `overlap --json` with these arguments, separated by spaces, and returns its output.
#[track_caller]
fn overlap(arguments: &str) -> Value {
    let mut args = vec!["overlap", "--json"];
    args.extend(arguments.split(' '));
    let ran = sidestream(&args);
    assert_eq!(ran.code, 0, "{arguments}: {}", ran.err);
    assert_eq!(ran.out.lines().count(), 1, "one object on one line");
    serde_json::from_str(&ran.out).expect("JSON")
}

/// Returns the times by arrangement, such as `ring 2`, in nanoseconds.
fn times(json: &Value) -> HashMap<String, f64> {
    let rows = json["rows"].as_array().expect("a list of rows");
    let named = rows.iter().map(|row| {
        let layout = row["layout"].as_str().expect("a text");
        let name = format!("{layout} {}", row["k"]);
        (name, row["time_ns"].as_f64().expect("a number"))
    });
    named.collect()
}

#[test]
fn every_arrangement_takes_as_long_as_on_the_h200() {
    let mut lines = MEASURED.lines().filter(|line| !line.starts_with('#'));
    let columns: Vec<&str> = lines.next().expect("a head").split('\t').collect();
    let (mut table, mut compared, mut misses) = (String::new(), 0, 0);
    for line in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        let (batch, work) = (cells[0], cells[1]);
        let modelled = times(&overlap(&format!("--batch {batch} --work {work}")));
        for (&column, measured) in columns.iter().zip(&cells).skip(2) {
            let measured: f64 = measured.parse().expect("a number");
            let model = modelled[column] / 1e6;
            let ratio = model / measured;
            // One stream at 64 KiB varies on the device too: 0.57 and 0.74 with equal parts.
            let allowed = match (batch, column) {
                ("64KiB", "streams 1") => 0.20,
                ("64KiB", _) => 0.15,
                _ => 0.05,
            };
            let missed = (ratio - 1.0).abs() > allowed;
            compared += 1;
            misses += usize::from(missed);
            let mark = if missed { "  MISSED" } else { "" };
            writeln!(
                table,
                "{batch:>6} {work:>6} {column:10} measured {measured:8.3} model {model:8.3} ratio {ratio:.3}{mark}"
            )
            .expect("to a string");
        }
    }
    assert_eq!((compared, misses), (72, 0), "milliseconds:\n{table}");
}

#[test]
fn no_arrangement_beats_the_limit_and_the_best_comes_near_it() {
    let (mut beaten, mut loose) = (String::new(), String::new());
    for device in [
        "sim:h200",
        "sim:h100",
        "sim:a100",
        "sim:a100-sxm",
        "sim:a10g",
        "sim:rtx4090",
    ] {
        for batch in ["4", "4KiB", "64KiB", "1MiB", "4MiB", "16MiB", "256MiB"] {
            for (count, work) in [
                (1, 1),
                (1, 4096),
                (2, 16),
                (2, 16384),
                (7, 256),
                (7, 4096),
                (7, 100_000),
                (100, 16),
                (100, 4096),
                (100, 16384),
            ] {
                let asked =
                    format!("--device {device} --batch {batch} --count {count} --work {work}");
                let json = overlap(&asked);
                let limit = json["limit_ns"].as_f64().expect("a number");
                let times = times(&json);
                let best = times.values().fold(f64::INFINITY, |a, &b| a.min(b));
                for (name, time) in &times {
                    if *time < 0.99 * limit {
                        writeln!(beaten, "{asked}: {name} {time} limit {limit}")
                            .expect("to a string");
                    }
                }
                // With one or two batches a run has more than the busiest engine: gaps between the stages, and kernels with no
                // neighbour to fill their end.
                let near = if count < 7 { 1.20 } else { 1.05 };
                let large = json["batch_bytes"].as_u64() >= Some(4 << 20);
                if large && best > near * limit {
                    writeln!(loose, "{asked}: best {best} limit {limit}").expect("to a string");
                }
            }
        }
    }
    assert_eq!(beaten, "", "faster than the limit");
    assert_eq!(loose, "", "the limit cannot be reached");
}

#[test]
fn the_json_has_every_key_that_readers_count_on() {
    let json = overlap("--batch 64KiB --count 3 --work 7 --device sim:a10g");
    let expected = [
        "schema",
        "device",
        "device_name",
        "simulated",
        "batch_bytes",
        "count",
        "work",
        "stages",
        "long_run",
        "pageable_ns",
        "rows",
        "limit_ns",
        "verdict",
    ];
    assert_eq!(keys(&json), expected);
    assert_eq!(json["schema"], "sidestream.overlap/1");
    assert_eq!(json["device"], "sim:a10g");
    assert_eq!(json["simulated"], true);
    assert_eq!(json["batch_bytes"], 65536);
    assert_eq!((&json["count"], &json["work"]), (&3.into(), &7.into()));
    let limit = json["limit_ns"].as_u64().expect("a whole number");
    let rows = json["rows"].as_array().expect("a list");
    let mut names = Vec::new();
    for row in rows {
        assert_eq!(keys(row), ["layout", "k", "time_ns", "share", "gb_per_s"]);
        names.push(format!(
            "{} {}",
            row["layout"].as_str().expect("a text"),
            row["k"]
        ));
        let time = row["time_ns"].as_u64().expect("a whole number");
        let share = row["share"].as_f64().expect("a number");
        assert!((share - limit as f64 / time as f64).abs() < 1e-9, "{row}");
    }
    let expected = [
        "streams 1",
        "streams 2",
        "streams 3",
        "streams 4",
        "ring 2",
        "ring 3",
        "ring 4",
        "pipeline 4",
    ];
    assert_eq!(names, expected);
    let verdict = json["verdict"].as_str().expect("a text");
    assert!(
        verdict.ends_with('.') && !verdict.contains('\n'),
        "{verdict}"
    );
}

#[test]
fn the_same_arguments_give_the_same_output() {
    let again = || sidestream(&["overlap", "--count", "9"]).out;
    assert_eq!(again(), again());
}

/// Checks that the verdict begins with one text, contains another, and agrees with the measured rows.
#[track_caller]
fn verdict(arguments: &str, begins: &str, contains: &str) {
    let json = overlap(arguments);
    let text = json["verdict"].as_str().expect("a text");
    assert!(
        text.starts_with(begins) && text.contains(contains),
        "{arguments}: {text}"
    );
    // The verdict must also agree with the rows.
    let times = times(&json);
    let best = times.values().fold(f64::INFINITY, |a, &b| a.min(b));
    let saved = 1.0 - best / times["streams 1"];
    let stage = |name: &str| json["stages"][name].as_f64().expect("a number");
    let copies = stage("upload_ns") + stage("download_ns");
    let few_copies = copies / (copies + stage("kernel_ns")) < 0.02;
    let expected = match saved {
        ..0.15 if few_copies => "Do not bother:",
        ..0.05 => "Do not bother:",
        0.05..0.15 => "A little:",
        _ => "Worth it:",
    };
    assert!(
        text.starts_with(expected),
        "{arguments}: saves {saved}: {text}"
    );
}

#[test]
fn the_verdict_is_what_a_person_would_say_of_the_table() {
    // Copies as long as the kernel, or longer: nearly twice as fast.
    verdict(
        "--work 16",
        "Worth it: with a stream for each stage and 2 slots, the job is 1.88 times",
        "",
    );
    verdict(
        "--work 4096",
        "Worth it: on 3 streams, a batch on each in turn, the job is 2.06 times",
        "as fast as on one stream.",
    );
    verdict("--batch 32MiB --work 256", "Worth it:", "1.9");
    verdict(
        "--batch 64KiB --work 16",
        "Worth it: on 4 streams",
        "2.68 times as fast as on one stream. The host's calls set the limit: fewer, larger batches or a graph would gain more.",
    );
    // Two kernels of half a microsecond leave the device unused, but the calls take longer.
    verdict(
        "--batch 64KiB --count 2 --work 1",
        "Worth it: on 2 streams",
        "1.47 times as fast as on one stream. The host's calls set the limit: fewer, larger batches or a graph would gain more.",
    );
    verdict(
        "--batch 1GiB --count 2 --work 16",
        "Worth it: on 2 streams",
        "1.30 times",
    );
    // Kernels that fill the device: only their ends can be hidden.
    verdict(
        "--work 100000",
        "A little: on 2 streams",
        "takes 9 % less time than on one stream. Most of the time cannot be hidden, as the kernels take it.",
    );
    // Hardly any copies: streams gain by overlapping the kernels' ends, not by hiding copies.
    verdict(
        "--work 200000",
        "Do not bother: the copies are 1.9 % of the time; what streams gain here is kernels side by side, ",
        "",
    );
    verdict(
        "--work 1000000",
        "Do not bother: the copies are 0.4 % of the time; what streams gain here is kernels side by side, 5.",
        "",
    );
    verdict(
        "--batch 1GiB --count 2 --work 10000000",
        "Do not bother: the copies are under 0.1 % of the time; what streams gain here is kernels side by side, 2.0 %.",
        "",
    );
    verdict(
        "--batch 256MiB --count 8 --work 1000000",
        "Do not bother: the copies are 0.4 % of the time; what streams gain here is kernels side by side, 3.8 %.",
        "",
    );
    // Both directions share one engine there: copies cannot hide each other.
    verdict(
        "--device sim:rtx4090 --work 16",
        "Do not bother:",
        "as the copies take nearly all of it.",
    );
    verdict("--device sim:rtx4090 --work 4096", "Worth it:", "");
    // One batch goes through its three stages, regardless of the number of streams.
    verdict(
        "--count 1",
        "Do not bother: one batch has nothing to overlap with.",
        "",
    );
    verdict(
        "--count 1 --batch 4 --work 1",
        "Do not bother: one batch has nothing to overlap with.",
        "",
    );
    // Kernels of a few blocks run side by side, and four streams are too few to fill the device.
    verdict(
        "--batch 64KiB --work 16384",
        "Worth it: on 4 streams",
        "3.59 times as fast as on one stream. Most of that is small kernels side by side, not hidden copies: the copies are 14.5 % of the time. That is still far from the limit, as one kernel fills only a part of the GPU",
    );
    verdict(
        "--batch 64KiB --work 1000000",
        "Worth it: on 4 streams",
        "3.26 times as fast as on one stream. Most of that is small kernels side by side, not hidden copies: the copies are 0.3 % of the time.",
    );
    verdict(
        "--batch 4KiB --work 10000000",
        "Worth it: on 4 streams, a batch on each in turn, the job is 4.00 times",
        "larger batches, or more streams",
    );
}

#[test]
fn sizes_are_read_as_people_write_them() {
    for text in [
        "4MiB", "4mib", "4 MiB", "4MB", "4m", "4M", " 4 mb ", "4096KiB", "4194304", "4194304b",
    ] {
        let ran = sidestream(&["overlap", "--json", "--count", "1", "--batch", text]);
        let json: Value =
            serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{text}: {}", ran.err));
        assert_eq!(json["batch_bytes"], 4 << 20, "{text}");
    }
    assert_eq!(overlap("--batch 1g --count 1")["batch_bytes"], 1 << 30);
}

#[test]
fn one_batch_is_one_batch() {
    let ran = sidestream(&["overlap", "--count", "1"]);
    let first = ran.out.lines().next().expect("a head");
    assert_eq!(
        first,
        "1 batch of 4 MiB, work 4096, on a simulated NVIDIA H200"
    );
}

#[test]
fn the_table_shows_times_shares_and_both_timelines() {
    let ran = sidestream(&["overlap"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let expected = "\
32 batches of 4 MiB, work 4096, on a simulated NVIDIA H200
one batch: upload 78.4 µs, kernel 162.3 µs, download 77.2 µs; both ways at once 86.7 µs

  arrangement                       time    share of limit
  1 stream                        10.524 ms      48.4 %
  2 streams, a batch each          5.424 ms      93.9 %
  3 streams, a batch each          5.113 ms      99.6 %  <- best
  4 streams, a batch each          5.113 ms      99.6 %
  stream per stage, 2 slots        5.404 ms      94.2 %
  stream per stage, 3 slots        5.404 ms      94.2 %
  stream per stage, 4 slots        5.404 ms      94.2 %
  pipeline, 4 slots                5.113 ms      99.6 %
  limit                            5.093 ms   set by the kernels
  1 stream, pageable memory       21.942 ms   uploads at 15.8 GB/s; pinned 53.5 GB/s

Bytes up and down in the time of the job: 52.5 GB/s in the best arrangement, 25.5 GB/s on one stream.

The worst, on one stream:
              0.0 µs                                                                                       1315 µs
  s1         |[up 0][kernel 0==].[D==].[up 1][kernel 1==].[D==].[up 2][kernel 2==].[D==].[up 3][kernel 3==].[D==].|
  (upload)   |[up 0]...................[up 1]...................[up 2]...................[up 3]...................|
  (compute)  |......[kernel 0==].............[kernel 1==].............[kernel 2==].............[kernel 3==].......|
  (download) |...................[D==]....................[D==]....................[D==]....................[D==].|

The best, on 3 streams, a batch on each in turn:
              0.0 µs                                                                                       1315 µs
  s1         |[up 0][kernel 0==].[D==].[up 3]..........[kernel 3==].[D===][up 6]..........[kernel 6===][D===][U==]|
  s2         |......[up 1]......[kernel 1==][D===].[up 4]..........[kernel 4==][D===].[up 7]..........[kernel 7==]|
  s3         |............[up 2]...........[kernel 2===][D===][up 5]...........[kernel 5==][D===][up 8]...........|
  (upload)   |[up 0][up 1][up 2].......[up 3]......[up 4].....[up 5]......[up 6]......[up 7].....[up 8]......[U==]|
  (compute)  |......[kernel 0==][kernel 1==[kernel 2===[kernel 3==][kernel 4==][kernel 5==[kernel 6===[kernel 7==]|
  (download) |...................[D==]......[D===]......[D===]......[D===].....[D===]......[D===]......[D===].....|

Worth it: on 3 streams, a batch on each in turn, the job is 2.06 times as fast as on one stream.
";
    assert_eq!(ran.out, expected);
}

#[test]
fn the_bytes_of_a_job_by_its_time_are_its_throughput() {
    for (options, ways) in [("--count 32", 2.0), ("--no-download", 1.0)] {
        let json = overlap(options);
        for row in json["rows"].as_array().expect("rows") {
            let time_ns = row["time_ns"].as_f64().expect("a time");
            let expected = ways * 32.0 * f64::from(4 << 20) / time_ns;
            let stated = row["gb_per_s"].as_f64().expect("a throughput");
            assert!((stated / expected - 1.0).abs() < 1e-9, "{row}");
        }
    }
    let text = sidestream(&["overlap", "--no-download"]).out;
    assert!(
        text.contains("\nBytes up in the time of the job: "),
        "{text}"
    );
    // Given times without bytes have no throughput.
    let own = overlap("--kernel-ms 6 --upload-ms 4");
    assert_eq!(own["rows"][0]["gb_per_s"], Value::Null);
}

#[test]
fn no_line_is_longer_than_it_may_be() {
    for width in ["40", "64", "80", "200"] {
        let ran = sidestream(&["overlap", "--width", width]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{width}");
        let columns: usize = width.parse().expect("a number");
        for line in ran.out.lines() {
            assert!(line.chars().count() <= columns, "{width}: {line}");
        }
        let pictures: Vec<&str> = ran.out.lines().filter(|line| line.ends_with('|')).collect();
        assert_eq!(pictures.len(), 10, "{width}");
        // The pictures use the whole width.
        assert!(pictures.iter().all(|line| line.chars().count() == columns));
    }
}

#[test]
fn the_pipeline_keeps_up_with_the_best_raw_streams() {
    for (batch, bar) in [("64KiB", 1.05), ("4MiB", 1.02), ("32MiB", 1.02)] {
        for work in [16, 256, 4096, 16384] {
            let mut times = times(&overlap(&format!("--batch {batch} --work {work}")));
            let own = times.remove("pipeline 4").expect("it has its row");
            let best = times.values().fold(f64::INFINITY, |a, &b| a.min(b));
            assert!(
                own <= bar * best,
                "{batch}, work {work}: {own} against {best}"
            );
        }
    }
}

#[test]
fn a_file_goes_through_the_device_and_comes_back_in_memory_that_does_not_grow() {
    let memory = |name: &str, batches: usize| {
        let path = std::env::temp_dir().join(format!("sidestream-{name}-{}", std::process::id()));
        let bytes: Vec<u8> = (0..batches * 65536 - 100)
            .map(|at| (at / 7) as u8)
            .collect();
        std::fs::write(&path, &bytes).expect("a file");
        let named = path.to_str().expect("a text");
        let json = overlap(&format!("--batch 64KiB --work 16 --input {named}"));
        std::fs::remove_file(&path).expect("it is there");
        let input = &json["input"];
        assert_eq!(input["bytes"], bytes.len());
        assert_eq!(
            (&input["batches"], &json["count"]),
            (&batches.into(), &batches.into())
        );
        (input["device_bytes"].clone(), input["pinned_bytes"].clone())
    };
    assert_eq!(memory("short", 10), memory("long", 300));
}

#[test]
fn an_empty_file_and_a_path_that_is_not_a_file_are_reported() {
    for (path, why) in [
        ("/dev/null", "the file is empty"),
        ("/nowhere/at/all", "No such file"),
        ("/", "directory"),
    ] {
        for json in [&[] as &[&str], &["--json"]] {
            let refused = sidestream(&[&["overlap", "--input", path], json].concat());
            assert_eq!((refused.code, refused.out.as_str()), (2, ""));
            let says = refused.err.contains(path) && refused.err.contains(why);
            assert!(says, "{}", refused.err);
        }
    }
}

/// With a priority, the kernel waits only for the rest of a running block (half a block at the median, a whole one at worst),
/// and never for the whole queue.
#[test]
fn an_urgent_kernel_waits_for_the_rest_of_a_block() {
    let json = overlap("--background");
    assert_eq!(json["schema"], "sidestream.overlap.background/1");
    assert_eq!(json["simulated_rows"], Value::Null);
    let rows = json["rows"].as_array().expect("a list of rows");
    assert_eq!(rows.len(), 12);
    for row in rows {
        let ns = |who: &str, what: &str| row[who][what].as_f64().expect("a time");
        let block_ns = 1e3 * row["block_us"].as_f64().expect("a length");
        let alone = ns("alone", "median_ns");
        assert_eq!(alone, ns("alone", "worst_ns"), "nothing else runs");
        let waits = ns("urgent", "median_ns") - alone;
        assert!((0.35..=0.6).contains(&(waits / block_ns)), "{row}");
        let longest = ns("urgent", "worst_ns") - alone;
        assert!((0.9..=1.01).contains(&(longest / block_ns)), "{row}");
        if row["streams"] == 4 {
            // More than one background kernel is queued before the measured kernel, and each of them fills the device four
            // times.
            let behind = ns("equal", "median_ns") - alone;
            assert!(behind > 10.0 * block_ns, "{row}");
        }
        // With one background kernel in flight, the measured kernel waits for the rest of that kernel: four blocks at most.
        assert_eq!(row["in_flight"], 1);
        assert!(ns("limited", "worst_ns") - alone < 4.1 * block_ns, "{row}");
        if row["streams"] == 4 {
            let behind = ns("limited", "median_ns") - alone;
            assert!(behind < (ns("equal", "median_ns") - alone) / 4.0, "{row}");
        }
        // A graph has the priority of the stream on which it is launched.
        let by_graph = ns("urgent_graph", "median_ns") - ns("urgent", "median_ns");
        assert!(by_graph.abs() < 0.1 * block_ns + 5e3, "{row}");
    }
    let verdict = json["verdict"].as_str().expect("a sentence");
    assert!(verdict.contains("30.1 times as fast"), "{verdict}");
}

/// The clock is real and the device is not, so the figures mean nothing; the test checks that both are shown.
#[test]
fn measured_and_simulated_priorities_are_shown_side_by_side() {
    let driver = sidestream_stand_in::library().expect("Cargo has built it beside this test");
    let driver = driver.to_str().expect("a path in UTF-8");
    let json = overlap(&format!("--background --device cuda:0 --driver {driver}"));
    assert_eq!(json["simulated"], false);
    for rows in ["rows", "simulated_rows"] {
        assert_eq!(json[rows].as_array().map(Vec::len), Some(12), "{rows}");
    }
}
