//! Tests `sidestream bench requests`: loads for which one way is best, and input that is refused.

use crate::command::{Ran, sidestream};
use crate::input::file;
use serde_json::Value;

fn bench(arguments: &str) -> Ran {
    let args = ["bench", "requests"]
        .into_iter()
        .chain(arguments.split(' '));
    sidestream(&args.collect::<Vec<_>>())
}

#[track_caller]
fn json(arguments: &str) -> Value {
    let ran = bench(&format!("--json {arguments}"));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{arguments}");
    serde_json::from_str(&ran.out).expect("JSON")
}

/// Returns a figure of a way.
#[track_caller]
fn of(json: &Value, way: &str, what: &str) -> f64 {
    let ways = json["ways"].as_array().expect("a list of ways");
    let way = ways.iter().find(|row| row["way"] == way).expect("the way");
    way[what].as_f64().expect("a number")
}

#[test]
fn each_request_of_each_way_ends_once_and_a_seed_gives_the_same_again() {
    let arguments = "--rate 30000 --seconds 0.05 --seed 7 --max-queue 40 --deadline-ms 2";
    let first = json(arguments);
    assert_eq!(first["schema"], "sidestream.bench.requests/1");
    let ways = first["ways"].as_array().expect("a list");
    assert_eq!(ways.len(), 4);
    for row in ways {
        let ends = [
            "answered",
            "refused_full",
            "refused_late",
            "expired",
            "failed",
        ];
        let ended: u64 = ends.iter().filter_map(|end| row[end].as_u64()).sum();
        assert_eq!(Some(ended), row["sent"].as_u64(), "{row}");
        let quantiles = ["p50_ns", "p95_ns", "p99_ns", "p999_ns"].map(|q| row[q].as_u64());
        assert!(quantiles.is_sorted(), "{row}");
    }
    assert!(of(&first, "one", "refused_full") + of(&first, "one", "refused_late") > 0.0);
    assert_eq!(first, json(arguments));
    let other = json(&arguments.replace("--seed 7", "--seed 8"));
    assert_ne!(first["ways"], other["ways"]);
}

#[test]
fn a_lone_request_takes_what_its_calls_and_its_work_take() {
    // At one request a second, no earlier request is in the way, and without batching each one is sent at once.
    let arrivals = file("# seconds\n0.5\n\n1.5\n2.5\n");
    let json = json(&format!(
        "--arrivals {arrivals} --kernel-us 1:100 --max-delay-us 300"
    ));
    let (one, both) = (of(&json, "one", "p50_ns"), of(&json, "both", "p50_ns"));
    // 100 µs of kernel, and some time for calls, copies and the return.
    assert!((110_000.0..130_000.0).contains(&one), "{one}");
    assert_eq!(of(&json, "one", "p999_ns"), one);
    // A batch has room for more requests, and waits for them until the maximum delay has passed.
    assert_eq!(both, one + 300_000.0);
    let verdict = json["verdict"].as_str().expect("a sentence");
    assert!(
        verdict.starts_with("Best is one stream with 3 of 3 requests in time"),
        "{verdict}"
    );
}

#[test]
fn what_falls_behind_cannot_hide_it() {
    // A thousand at once, each of 100 µs, one after the other: the last one waits for all others.
    let arrivals = file("0\n".repeat(1000));
    let json = json(&format!(
        "--arrivals {arrivals} --ways one --kernel-us 1:100 --deadline-ms 1000"
    ));
    let (half, last) = (of(&json, "one", "p50_ns"), of(&json, "one", "p999_ns"));
    assert!(last > 100e6, "{last}");
    assert!((0.49..0.51).contains(&(half / last)), "{half} of {last}");
}

#[test]
fn a_slow_batch_is_expected_again_for_a_while() {
    // The first batch takes 20 ms and the second one too long for its deadline of 10 ms. This estimate holds for a tenth of a
    // second, and then halves after each further tenth.
    let arrivals = file("0\n0.05\n0.1\n0.15\n0.2\n0.4\n");
    let json = json(&format!(
        "--arrivals {arrivals} --kernel-us 1:20000 --ways one --deadline-ms 10"
    ));
    let ends = ["answered", "refused_late", "expired"].map(|what| of(&json, "one", what));
    assert_eq!(ends, [2.0, 4.0, 0.0]);
}

#[test]
fn a_short_load_shows_no_more_than_its_rate() {
    // At a rate of three a second, the last request arrives well before the load ends after one second.
    for seed in 1..20 {
        let load = format!("--rate 3 --seconds 1 --seed {seed}");
        let json = json(&format!("{load} --ways one --kernel-us 1:100"));
        assert!(of(&json, "one", "time_ns") >= 1e9, "{seed}");
        let goodput = of(&json, "one", "goodput_per_s");
        assert!(goodput <= of(&json, "one", "in_time"), "{seed}");
    }
}

#[test]
fn batches_win_where_the_calls_are_the_limit_and_streams_where_the_device_has_room() {
    let flood = json("--rate 100000 --seconds 0.05 --kernel-us 1:40,64:60");
    let verdict = flood["verdict"].as_str().expect("a sentence");
    assert!(verdict.starts_with("Best is batches"), "{verdict}");
    assert!(of(&flood, "both", "in_time") > 4.0 * of(&flood, "one", "in_time"));
    // A batch of two takes twice as long as one alone: nothing is saved, and streams run side by side.
    let alone = "--rate 8000 --seconds 0.05 --max-batch 2 --kernel-us 1:300,2:600 --streams 8";
    let alone = json(&format!("{alone} --ways one,pool,batching"));
    let verdict = alone["verdict"].as_str().expect("a sentence");
    assert!(
        verdict.starts_with("Best is a pool of streams"),
        "{verdict}"
    );
}

#[test]
fn callers_who_wait_for_their_answers_get_as_many_as_the_device_can() {
    let json = json("--closed 64 --requests 2000 --ways one,both --kernel-us 1:50,64:50");
    assert_eq!(json["load"]["kind"], "closed");
    for way in ["one", "both"] {
        assert_eq!(of(&json, way, "answered"), 2000.0);
    }
    let (one, both) = (of(&json, "one", "per_s"), of(&json, "both", "per_s"));
    assert!(one < 20_000.0 && both > 10.0 * one, "{one}, {both}");
}

#[test]
fn a_graph_saves_calls() {
    let arguments = "--closed 8 --requests 500 --ways one --layers 50 --row 16";
    let calls = of(&json(arguments), "one", "per_s");
    let graphs = of(&json(&format!("{arguments} --graphs")), "one", "per_s");
    assert!(graphs > 1.5 * calls, "{graphs} and {calls}");
}

/// Runs the batcher itself, with calls and with graphs; each run compares answers with those of the host. The clock is real.
#[test]
fn on_a_gpu_the_batcher_answers_as_the_host_does() {
    let driver = sidestream_stand_in::library().expect("Cargo has built it beside this test");
    let driver = driver.to_str().expect("a path in UTF-8");
    let device = format!("--device cuda:0 --driver {driver} --max-batch 4 --streams 2");
    for load in [
        "--requests 100 --rate 20000 --deadline-ms 60000 --layers 3 --row 20",
        "--requests 100 --closed 10 --layers 2 --row 16 --graphs",
        "--requests 50 --closed 5 --kernel-us 4:10",
        "--requests 50 --closed 5 --kernel-us 1:5,4:10 --graphs",
    ] {
        let json = json(&format!("{device} {load}"));
        assert_eq!(json["simulated"], false);
        for way in ["one", "pool", "batching", "both"] {
            assert_eq!(of(&json, way, "answered"), of(&json, way, "sent"), "{load}");
            assert!(of(&json, way, "p50_ns") > 0.0, "{load}");
        }
    }
}

#[test]
fn wrong_arguments_are_named() {
    let bad = file("0.5\nsoon\n");
    let empty = file("# nothing\n");
    for (arguments, says) in [
        (
            format!("--arrivals {bad}"),
            format!("{bad}:2: \"soon\" is not an arrival time"),
        ),
        (
            format!("--arrivals {empty}"),
            format!("{empty}: the file has 0 arrivals"),
        ),
        ("--rate 0".into(), "\"0\" is out of range".into()),
        (
            "--rate 1e8 --seconds 10".into(),
            "exceed the limit of 10000000".into(),
        ),
        (
            "--kernel-us 5".into(),
            "\"5\" is not a size with its time".into(),
        ),
        ("--kernel-us 4:1,4:2".into(), "the size 4 twice".into()),
        ("--closed 0".into(), "'0'".into()),
        ("--ways two".into(), "'two'".into()),
    ] {
        let ran = bench(&arguments);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{arguments}");
        assert!(ran.err.contains(&says), "{arguments}: {}", ran.err);
    }
}
