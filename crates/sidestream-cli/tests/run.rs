//! Tests `sidestream run`: what it shows of a run, and its exit codes.

use crate::command::{Ran, sidestream};
use crate::input::{file, ran_on};
use serde_json::{Value, json};

/// Runs a file with this text, which is called `FILE` in the output.
fn ran(text: &str, options: &str) -> Ran {
    let options: Vec<&str> = options.split_whitespace().collect();
    ran_on("run", text, &options)
}

/// Checks the exit code and the output for a program, errors last.
#[track_caller]
fn check(text: &str, options: &str, code: i32, expected: &str) {
    let ran = ran(text, options);
    assert_eq!((ran.out + &ran.err, ran.code), (expected.to_owned(), code));
}

/// Checks the output without the timeline.
#[track_caller]
fn check_words(text: &str, code: i32, expected: &str) {
    let ran = ran(text, "");
    let all = ran.out + &ran.err;
    let words: Vec<&str> = all.lines().filter(|line| !line.ends_with('|')).collect();
    // The head of the run and the scale of the timeline contain times, which other tests check.
    let times = |line: &&&str| line.contains("on a simulated") || line.trim_end().ends_with(" µs");
    let words: Vec<&str> = words.iter().filter(|line| !times(line)).copied().collect();
    assert_eq!((words.join("\n"), ran.code), (expected.to_owned(), code));
}

/// Returns the object that `--json` prints for one program.
#[track_caller]
fn as_json(text: &str, options: &str) -> Value {
    let ran = ran(text, &format!("--json {options}"));
    assert_eq!((ran.err.as_str(), ran.out.lines().count()), ("", 1));
    serde_json::from_str(&ran.out).expect("JSON")
}

const ENGINES: &str = "\
name: engines
ops:
- {do: copy_async, s: s1, from: H, to: A}
- {do: kernel, s: s1, r: [A], w: [B], site: scale}
- {do: memset_async, s: s2, to: C}
- {do: host_func, s: s1}
- {do: copy_async, s: s1, from: B, to: H1}
- {do: copy_async, s: s1, from: B, to: A}
- {do: sync_stream, st: s1}
";

#[test]
fn a_host_thread_that_works_for_long_has_a_lane() {
    let text = "\
name: filled
buffers: {h: {kind: pinned, bytes: 1048576}, x: {kind: dev, bytes: 1048576}}
ops:
- {do: host_write, buf: h}
- {do: copy_async, s: s1, from: h, to: x}
";
    check(
        text,
        "--width 54",
        0,
        "\
filled on a simulated NVIDIA H200, in-order: 111.6 µs
             0.0 µs                            112 µs
  t0 (host) |[0============================].........|
  s1        |................................[U=====]|
  (upload)  |................................[U=====]|
",
    );
}

#[test]
fn the_timeline_has_a_lane_for_each_stream_and_engine() {
    check(
        ENGINES,
        "",
        0,
        "\
engines on a simulated NVIDIA H200, in-order: 34.9 µs
              2.6 µs                                                                                         35 µs
  s1         |[U====]...........KK..........................H..........................[D==]...........[C==]......|
  s2         |..............[M==].................................................................................|
  (upload)   |[U====].............................................................................................|
  (compute)  |..............[M==]K.....................................................................[C==]......|
  (download) |.........................................................................[D==]......................|
  (host)     |..............................................H.....................................................|
",
    );
}

#[test]
fn copies_between_devices_have_their_own_engine() {
    let text = "\
name: peer
streams: {far: nb@1}
buffers: {A: {kind: dev, bytes: 67108864}, B: {kind: dev, bytes: 67108864}}
ops:
- {do: kernel, s: s1, w: [A]}
- {do: copy_peer, s: s1, from: A, to: B, peer: 1, site: over}
- {do: kernel, s: s2, w: [C]}
";
    let ran = ran(text, "--width 70");
    let lane = |name: &str| {
        let of_name = |line: &&str| line.trim_start().starts_with(name);
        let found = ran.out.lines().find(of_name);
        found
            .unwrap_or_else(|| panic!("no lane {name} in {}", ran.out))
            .to_owned()
    };
    assert!(lane("(peer copy)").contains("1 over"), "{}", ran.out);
    assert!(!lane("(compute)").contains("1 over"), "{}", ran.out);
    let work = as_json(text, "")["work"].clone();
    assert_eq!(work[1]["engine"], "peer copy");
    // In a trace such a copy has the name that PyTorch's profiler uses, and `diagnose` has a lane for it.
    let program = file(text);
    let trace = format!("{program}.trace.json");
    assert_eq!(sidestream(&["run", &program, "--trace", &trace]).code, 0);
    let said = sidestream(&["diagnose", &trace]);
    assert!(said.out.contains("GPU 0 (peer copy) |"), "{}", said.out);
}

/// Runs nine streams: the first has a kernel that waits for an upload, the last a kernel that waits for nothing. Returns the
/// end of the last kernel, and that of the upload.
fn ninth_and_upload_end_ns(options: &str) -> (u64, u64) {
    let mut text = String::from(
        "\
name: nine
buffers: {H: {kind: pinned, bytes: 8388608}, X: {kind: dev, bytes: 8388608}}
ops:
- {do: copy_async, s: s0, from: H, to: X}
- {do: kernel, s: s0, r: [X]}
",
    );
    for stream in 1..9 {
        text += &format!("- {{do: kernel, s: s{stream}, w: [A{stream}]}}\n");
    }
    let work = as_json(&text, options)["work"].clone();
    let end_ns = |op: u64| {
        let mut all = work.as_array().unwrap().iter();
        all.find(|w| w["op"] == op).unwrap()["end_ns"]
            .as_u64()
            .unwrap()
    };
    (end_ns(9), end_ns(0))
}

#[test]
fn streams_that_share_a_connection_wait_for_its_head() {
    let (shared_ns, upload_ns) = ninth_and_upload_end_ns("");
    assert!(shared_ns > upload_ns, "{shared_ns} {upload_ns}");
    let (own_ns, _) = ninth_and_upload_end_ns("--connections 9");
    assert!(own_ns < upload_ns / 2, "{own_ns} {upload_ns}");
    // CUDA does not guarantee this order: a schedule that follows only the guarantees lets the ninth kernel run first.
    let (seeded_ns, upload_ns) = ninth_and_upload_end_ns("--schedule seeded:3");
    assert!(seeded_ns < upload_ns, "{seeded_ns} {upload_ns}");
}

#[test]
fn connections_are_for_the_usual_order_on_a_simulated_gpu() {
    let program = file("name: x\nops: []\n");
    let said = |options: &[&str]| {
        sidestream(&[&["run", &program, "--connections", "4"], options].concat())
    };
    let refused = said(&["--schedule", "adversarial"]);
    assert_eq!(refused.code, 2);
    assert!(
        refused
            .err
            .contains("--connections is for --schedule in-order"),
        "{}",
        refused.err
    );
    assert_eq!(said(&[]).code, 0);
    let none = sidestream(&["run", &program, "--connections", "0"]);
    assert!(
        none.code == 2 && none.err.contains("1..=32"),
        "{}",
        none.err
    );
}

#[test]
fn names_stand_in_bars_that_have_room() {
    let text = "\
name: one
ops:
- {do: kernel, s: s1, w: [A], site: scale}
";
    check(
        text,
        "--width 54 --device sim:a10g",
        0,
        "\
one on a simulated NVIDIA A10G, in-order: 5.9 µs
             5.4 µs                            5.9 µs
  s1        |[0 scale===============================]|
  (compute) |[0 scale===============================]|
",
    );
}

#[test]
fn names_that_leave_no_room_for_the_picture_are_cut_in_the_middle() {
    let text = "\
name: long
streams: {the_stream_of_the_encoder: nb, the_stream_of_the_decoder: nb}
ops:
- {do: kernel, s: the_stream_of_the_encoder, w: [A]}
- {do: kernel, s: the_stream_of_the_decoder, w: [B]}
";
    let ran = ran(text, "--width 40");
    let lanes: Vec<&str> = ran.out.lines().filter(|line| line.ends_with('|')).collect();
    let names = lanes.iter().map(|line| line.split('|').next().unwrap());
    let names: Vec<&str> = names.map(str::trim).collect();
    assert_eq!(names, ["the_st…ncoder", "the_st…ecoder", "(compute)"]);
    assert!(
        lanes.iter().all(|line| line.chars().count() == 40),
        "{}",
        ran.out
    );
}

#[test]
fn devices_are_told_apart() {
    let text = "\
name: two_devices
streams: {a: nb, b: nb@1}
ops:
- {do: kernel, s: a, w: [A]}
- {do: kernel, s: b, w: [B]}
";
    let ran = ran(text, "");
    let lines: Vec<&str> = ran
        .out
        .lines()
        .map(|line| line.split('|').next().expect("a part").trim())
        .collect();
    assert_eq!(
        lines[2..],
        ["GPU 0", "a", "(compute)", "GPU 1", "b", "(compute)"]
    );
}

#[test]
fn a_program_without_work_says_so() {
    check(
        "name: idle\nops: []\n",
        "",
        0,
        "idle on a simulated NVIDIA H200, in-order: 0.0 µs\n  no device has anything to do\n",
    );
}

#[test]
fn the_json_lists_all_work_with_engines_and_times() {
    let text = "\
name: overlap
ops:
- {do: copy_async, s: s1, from: H, to: A}
- {do: record, ev: e, s: s1}
- {do: wait, s: s2, ev: e}
- {do: kernel, s: s2, r: [A]}
- {do: sync_device}
";
    let json = as_json(text, "--device sim:a100");
    let expected_keys = [
        "schema",
        "name",
        "device",
        "schedule",
        "repeat",
        "time_ns",
        "work",
        "error",
        "as_expected",
        "unmet",
    ];
    let keys: Vec<&String> = json.as_object().expect("an object").keys().collect();
    assert_eq!(keys, expected_keys);
    assert_eq!(json["schema"], "sidestream.run/1");
    assert_eq!(json["name"], "overlap");
    assert_eq!(json["device"], "sim:a100");
    assert_eq!(json["schedule"], "in-order");
    assert_eq!(json["repeat"], 1);
    assert_eq!(
        (&json["error"], &json["as_expected"]),
        (&Value::Null, &true.into())
    );
    assert_eq!(json["unmet"], json!([]));
    let work = json["work"].as_array().expect("a list");
    let row = |row: &Value| json!([row["op"], row["device"], row["stream"], row["engine"]]);
    let rows: Vec<Value> = work.iter().map(row).collect();
    assert_eq!(
        rows,
        [
            json!([0, 0, "s1", "upload"]),
            json!([2, 0, "s2", null]),
            json!([3, 0, "s2", "compute"]),
        ]
    );
    let time = |row: usize, key: &str| work[row][key].as_u64().expect("a whole number");
    assert!(time(0, "start_ns") < time(0, "end_ns"));
    assert!(
        time(0, "end_ns") <= time(2, "start_ns"),
        "the kernel waits for the copy"
    );
    assert!(
        Some(time(2, "end_ns")) < json["time_ns"].as_u64(),
        "and the host for the kernel"
    );
}

// ------------------------------------------------------------------ expectations

#[test]
fn an_expected_error_is_shown_and_not_a_fault() {
    let text = "\
name: refused
ops:
- {do: begin_capture, s: s1}
- {do: query_stream, st: s1}
- {do: kernel, s: s2, w: [A]}
expect: {v: error, at: 1, code: StreamCaptureUnsupported}
";
    check_words(
        text,
        0,
        "  no device has anything to do\n  op 1 fails, the run ends before it: StreamCaptureUnsupported (900, R46): the stream is being captured, so its work does not run; make the call after the capture\n  all expectations hold",
    );
    let json = as_json(text, "");
    assert_eq!(json["as_expected"], true);
    assert_eq!(json["work"], json!([]), "nothing runs after it");
    let error = &json["error"];
    assert_eq!(
        json!([error["at"], error["code"], error["number"], error["rule"]]),
        json!([1, "StreamCaptureUnsupported", 900, "R46"])
    );
}

#[test]
fn an_unexpected_error_is_a_fault() {
    let text = "\
name: refused
ops:
- {do: elapsed, a: e, b: f}
expect: {v: clean}
";
    check_words(
        text,
        1,
        "  no device has anything to do
  op 0 fails, the run ends before it: InvalidResourceHandle (400, R11): an event has never been recorded; record both first
  not as expected: expected: no call fails; seen: op 0 fails with InvalidResourceHandle",
    );
    assert_eq!(as_json(text, "")["as_expected"], false);
}

#[test]
fn a_missing_expected_error_is_a_fault() {
    let text = "\
name: fine
ops:
- {do: kernel, s: s1, w: [A]}
expect: {v: error, at: 0, code: CapturedEvent}
";
    check_words(
        text,
        1,
        "  not as expected: expected: op 0 fails with CapturedEvent; seen: no call fails",
    );
    let json = as_json(text, "");
    assert_eq!(
        json["unmet"],
        json!(["expected: op 0 fails with CapturedEvent; seen: no call fails"])
    );
}

/// The allocator reuses a block once the stream that was recorded for it has completed its work.
const ALLOCATOR: &str = "\
name: allocator
level: runtime
ops:
- {do: alloc, buf: A, s: s1}
- {do: sim_hold, st: s2}
- {do: kernel, s: s2, r: [A]}
- {do: record_stream, buf: A, st: s2}
- {do: free, buf: A}
- {do: alloc, buf: B, s: s1, MUST: A}
- {do: sim_release, st: s2}
";

#[test]
fn the_allocator_is_checked_against_the_expectations() {
    check_words(
        &ALLOCATOR.replace("MUST", "must_not_alias"),
        0,
        "  all expectations hold",
    );
    check_words(
        &ALLOCATOR.replace("MUST", "must_alias"),
        1,
        "  not as expected: op 5: the block must be that of A, but is another",
    );
    // Without `record_stream` the block is free at once.
    let forgotten = ALLOCATOR.replace("- {do: record_stream, buf: A, st: s2}\n", "");
    check_words(
        &forgotten.replace("MUST", "must_alias"),
        0,
        "  all expectations hold",
    );
    check_words(
        &forgotten.replace("MUST", "must_not_alias"),
        1,
        "  not as expected: op 4: the block must not be that of A, but is",
    );
}

// ------------------------------------------------------------------ what cannot be run

#[test]
fn a_stream_that_is_held_forever_is_one_clear_line() {
    let text = "\
name: held
level: runtime
ops:
- {do: sim_hold, st: s1}
- {do: kernel, s: s1, w: [A]}
- {do: sync_stream, st: s1}
";
    let why = "program held: op 1 can never run, nor can 1 more: its stream is held, or waits for one that is; release the stream";
    check(text, "", 2, &format!("sidestream: FILE: {why}\n"));
    assert_eq!(
        as_json(text, ""),
        json!({"schema": "sidestream.run/1", "name": "held",
               "error": {"at": null, "code": "CannotRun", "why": why}})
    );
}

#[test]
fn an_allocation_without_a_block_is_one_clear_line() {
    let text = "\
name: full
level: runtime
ops:
- {do: set_capacity, blocks: 1}
- {do: alloc, buf: A, s: s1}
- {do: alloc, buf: B, s: s1}
";
    check(
        text,
        "",
        2,
        "sidestream: FILE: program full: op 2: out of memory, all 1 blocks are handed out; free one before, or raise `blocks` of set_capacity\n",
    );
}

/// A program that breaks the format, one that can never end, one that fails, and a valid one.
const CASES: &str = "\
cases:
- {name: bad, ops: [{do: kernel, s: fast, w: [A]}]}
- {name: held, level: runtime, ops: [{do: sim_hold, st: s1}, {do: kernel, s: s1, w: [A]}]}
- {name: fails, ops: [{do: elapsed, a: e, b: f}]}
- {name: fine, ops: [{do: kernel, s: s1, w: [A]}]}
";

#[test]
fn programs_that_cannot_be_run_do_not_keep_the_others_from_it() {
    let text = ran(CASES, "");
    let heads: Vec<&str> = text
        .out
        .lines()
        .filter_map(|line| line.split_once(" on a simulated"))
        .map(|(name, _)| name)
        .collect();
    assert_eq!((heads, text.code), (vec!["fails", "fine"], 2));
    assert_eq!(
        text.err,
        "\
sidestream: FILE: line 2, op 0 (`kernel`), field `s`: stream `fast` is not declared; declare it under `streams:` or use `s0` to `s99`
sidestream: FILE: program held: op 1 can never run: its stream is held, or waits for one that is; release the stream
"
    );
    let lines = ran(CASES, "--json");
    let codes: Vec<Value> = lines
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .map(|json| json!([json["name"], json["error"]["code"]]))
        .collect();
    assert_eq!(
        codes,
        [
            json!(["bad", "BadProgram"]),
            json!(["held", "CannotRun"]),
            json!(["fails", "InvalidResourceHandle"]),
            json!(["fine", null]),
        ]
    );
    assert_eq!((lines.code, lines.err.as_str()), (2, ""));
}

#[test]
fn a_case_is_picked_by_its_name() {
    for (name, code) in [("bad", 2), ("held", 2), ("fails", 1), ("fine", 0)] {
        let ran = ran(CASES, &format!("--case {name}"));
        assert_eq!(ran.code, code, "{name}: {}{}", ran.out, ran.err);
    }
    check(
        CASES,
        "--case fin",
        2,
        "sidestream: FILE has no program called fin; it has bad, held, fails, fine\n",
    );
    check(
        CASES,
        "--trace never_written.json",
        2,
        "sidestream: FILE has 4 programs, and --trace and --log write one; name it with --case\n",
    );
}

// ------------------------------------------------------------------ schedules

/// Four unordered kernels, on four streams.
const FREE: &str = "\
name: free
ops:
- {do: kernel, s: s1, w: [A]}
- {do: kernel, s: s2, w: [B]}
- {do: kernel, s: s3, w: [C]}
- {do: kernel, s: s4, w: [D]}
";

/// Returns the ops in the order in which they start.
#[track_caller]
fn order(text: &str, schedule: &str) -> Vec<u64> {
    let json = as_json(text, &format!("--schedule {schedule}"));
    assert_eq!(json["schedule"], schedule);
    let work = json["work"].as_array().expect("a list");
    let number = |value: &Value| value.as_u64().expect("a number");
    let mut starts: Vec<(u64, u64)> = work
        .iter()
        .map(|w| (number(&w["start_ns"]), number(&w["op"])))
        .collect();
    starts.sort();
    starts.into_iter().map(|(_, op)| op).collect()
}

#[test]
fn a_schedule_picks_the_order() {
    assert_eq!(order(FREE, "in-order"), [0, 1, 2, 3]);
    assert_eq!(order(FREE, "adversarial"), [3, 2, 1, 0]);
    assert_eq!(order(FREE, "adversarial:1"), [0, 2, 3, 1]);
    let orders: std::collections::BTreeSet<Vec<u64>> = (0..40)
        .map(|seed| order(FREE, &format!("seeded:{seed}")))
        .collect();
    assert!(orders.len() > 5, "seeds give many orders: {orders:?}");
    assert_eq!(order(FREE, "seeded:7"), order(FREE, "seeded:7"));
}

#[test]
fn no_schedule_breaks_an_order_that_is_asked_for() {
    let mut text = FREE.to_owned();
    for (at, (stream, source)) in [("s2", "s1"), ("s3", "s2"), ("s4", "s3")]
        .iter()
        .enumerate()
    {
        let op = format!("- {{do: kernel, s: {stream},");
        text = text.replace(
            &op,
            &format!("- {{do: wait_stream, s: {stream}, src: {source}}}\n{op}"),
        );
        assert!(text.lines().count() == 7 + at, "the wait is in");
    }
    for schedule in [
        "in-order",
        "adversarial",
        "adversarial:0",
        "seeded:1",
        "seeded:2",
        "seeded:3",
    ] {
        let kernels: Vec<u64> = order(&text, schedule)
            .into_iter()
            .filter(|op| op % 2 == 0)
            .collect();
        assert_eq!(kernels, [0, 2, 4, 6], "{schedule}");
    }
}

#[test]
fn the_call_of_an_op_can_be_late() {
    let text = "\
name: calls
ops:
- {do: kernel, s: s1, w: [A]}
- {do: sync_stream, st: s1}
- {do: kernel, s: s2, w: [B]}
";
    assert_eq!(order(text, "adversarial:call:1"), [0, 2]);
    assert!(
        ran(text, "--schedule adversarial:call:1")
            .out
            .starts_with("calls on a simulated NVIDIA H200, adversarial:call:1: ")
    );
}

#[test]
fn an_op_that_is_not_there_cannot_be_late() {
    for schedule in [
        "adversarial:4",
        "adversarial:call:4",
        "adversarial:4000000000",
    ] {
        let ran = ran(FREE, &format!("--schedule {schedule}"));
        assert_eq!((ran.code, ran.out.as_str()), (2, ""));
        assert!(
            ran.err
                .starts_with("sidestream: FILE: program free: there is no op 4")
                && ran.err.ends_with("; give one of 0 to 3\n"),
            "{}",
            ran.err
        );
    }
}

/// Returns when op 2 of a program ends, in a stream with or without an urgent priority: two kernels that fill the device are
/// before it.
fn third_kernel_ends_ns(urgent: &str) -> u64 {
    let text = format!(
        "\
name: urgent
streams: {{third: {urgent}}}
buffers: {{X: {{kind: dev, bytes: 268435456}}, Y: {{kind: dev, bytes: 268435456}}}}
ops:
- {{do: kernel, s: s1, w: [X]}}
- {{do: kernel, s: s2, w: [Y]}}
- {{do: kernel, s: third, w: [A]}}
"
    );
    let work = as_json(&text, "")["work"].clone();
    let third = work.as_array().unwrap().iter().find(|w| w["op"] == 2);
    third.unwrap()["end_ns"].as_u64().unwrap()
}

#[test]
fn an_urgent_stream_goes_before_kernels_that_wait() {
    let usual_ns = third_kernel_ends_ns("nb");
    for urgent in ["{kind: nb, priority: -1}", "{kind: blk, priority: -5}"] {
        let urgent_ns = third_kernel_ends_ns(urgent);
        assert!(
            urgent_ns < usual_ns / 2,
            "{urgent}: {urgent_ns} of {usual_ns}"
        );
    }
    // As in CUDA, a priority that the device lacks becomes the nearest one that it has.
    let (least, beyond) = ("{kind: nb, priority: 0}", "{kind: nb, priority: 9}");
    assert_eq!(third_kernel_ends_ns(least), third_kernel_ends_ns(beyond));
}

#[test]
fn a_program_is_repeated_as_a_loop() {
    let once = as_json(ENGINES, "");
    let thrice = as_json(ENGINES, "--repeat 3");
    let rows = |json: &Value| json["work"].as_array().expect("a list").len();
    assert_eq!(
        (thrice["repeat"].as_u64(), rows(&thrice)),
        (Some(3), 3 * rows(&once))
    );
    let time = |json: &Value| json["time_ns"].as_u64().expect("a time");
    // A step may begin before the previous one ends.
    assert!(time(&once) < time(&thrice) && time(&thrice) <= 3 * time(&once));
    let text = ran(ENGINES, "--repeat 3").out;
    assert!(
        text.starts_with("engines on a simulated NVIDIA H200, in-order, 3 times: "),
        "{text}"
    );
}

#[test]
fn expectations_of_an_allocator_hold_once() {
    let text = "\
name: given_again
level: runtime
streams: {main: legacy}
buffers:
  a: {kind: dev, bytes: 4096}
  b: {kind: dev, bytes: 4096}
ops:
- {do: alloc, s: main, buf: a}
- {do: kernel, s: main, w: [a]}
- {do: free, buf: a}
- {do: alloc, s: main, buf: b, must_alias: a}
- {do: kernel, s: main, w: [b]}
- {do: free, buf: b}
expect: {v: clean}
";
    for options in ["", "--repeat 4"] {
        let ran = ran(text, options);
        assert_eq!((ran.code, &*ran.err), (0, ""), "{options}: {}", ran.out);
    }
}
