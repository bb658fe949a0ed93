//! Tests the files that `--trace` writes: Chrome traces in the conventions of PyTorch's profiler (Kineto).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use crate::command::{FOLDER, sidestream};
use crate::input::file;
use serde_json::{Value, json};

/// Rows of device work.
const WORK: [&str; 3] = ["kernel", "gpu_memcpy", "gpu_memset"];
/// The function for each kind of row in which a host thread waits.
const WAITS: [(&str, &str); 3] = [
    ("cudaStreamSynchronize", "Stream Sync"),
    ("cudaEventSynchronize", "Event Sync"),
    ("cudaDeviceSynchronize", "Context Sync"),
];

/// A trace that was written and read again.
struct Trace {
    whole: Value,
    events: Vec<Event>,
}

/// One event. Times are exact, since they are read from the text.
#[derive(Clone)]
struct Event {
    json: Value,
    start_ns: i64,
    duration_ns: i64,
}

impl Event {
    fn text(&self, key: &str) -> &str {
        self.json[key].as_str().unwrap_or_default()
    }

    fn is_work(&self) -> bool {
        WORK.contains(&self.text("cat"))
    }

    /// Returns process and thread.
    fn lane(&self) -> (i64, i64) {
        let number = |key: &str| self.json[key].as_i64().expect("a whole number");
        (number("pid"), number("tid"))
    }

    fn end_ns(&self) -> i64 {
        self.start_ns + self.duration_ns
    }

    fn correlation(&self) -> Option<u64> {
        self.json["args"]["correlation"].as_u64()
    }
}

/// Reads microseconds with at most three decimals from the text of an event.
#[track_caller]
fn exact_ns(line: &str, key: &str) -> i64 {
    let Some((_, rest)) = line.split_once(&format!("\"{key}\":")) else {
        return 0;
    };
    let text = &rest[..rest.find([',', '}']).expect("more of the object")];
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = !whole.is_empty() && digits(whole) && digits(decimals) && decimals.len() <= 3;
    assert!(plain, "{key} is {text}");
    format!("{whole}{decimals:0<3}").parse().expect("digits")
}

/// Runs a command that writes a trace, and reads it.
#[track_caller]
fn traced(args: &[&str]) -> Trace {
    // Each trace has a unique file name.
    let name = file("");
    let mut args = args.to_vec();
    args.extend(["--trace", &name]);
    let ran = sidestream(&args);
    assert!(ran.code < 2, "{args:?}: {}{}", ran.out, ran.err);
    let text = std::fs::read_to_string(Path::new(FOLDER).join(name)).expect("it was written");
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    let lines = text.lines().filter(|line| line.contains("\"ph\":"));
    let events: Vec<Event> = lines
        .map(|line| Event {
            json: serde_json::from_str(line.trim_end_matches(',')).expect("an event on each line"),
            start_ns: exact_ns(line, "ts"),
            duration_ns: exact_ns(line, "dur"),
        })
        .collect();
    let all = whole["traceEvents"].as_array().expect("a list");
    assert_eq!(all.len(), events.len());
    Trace { whole, events }
}

/// Returns the trace of a program.
#[track_caller]
fn program(text: &str) -> Trace {
    traced(&["run", &file(text)])
}

// ------------------------------------------------------------------ conventions of every trace

/// Checks a trace against all conventions.
#[track_caller]
fn check(trace: &Trace, what: &str) {
    let mut wrong = Vec::new();
    shape(trace, &mut wrong);
    lanes(trace, &mut wrong);
    correlation(trace, &mut wrong);
    flows(trace, &mut wrong);
    waits(trace, &mut wrong);
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

fn shape(trace: &Trace, wrong: &mut Vec<String>) {
    if trace.whole["schemaVersion"] != 1 {
        wrong.push("schemaVersion is not 1".to_owned());
    }
    let devices = trace.whole["deviceProperties"].as_array().expect("a list");
    for device in devices {
        let keys = ["id", "numSms", "totalGlobalMem"];
        if !keys.iter().all(|key| device[key].is_u64()) || !device["name"].is_string() {
            wrong.push(format!("device {device}"));
        }
    }
    let cats = ["cuda_runtime", "cpu_op", "cuda_sync"];
    for event in &trace.events {
        let (ph, cat) = (event.text("ph"), event.text("cat"));
        let known = match ph {
            "M" => true,
            "X" => WORK.contains(&cat) || cats.contains(&cat),
            "s" | "f" => ["ac2g", "async"].contains(&cat),
            _ => false,
        };
        if !known || event.text("name").is_empty() {
            wrong.push(format!("unknown: {}", event.json));
        }
        if ph == "X" && !(event.json["dur"].is_number() && event.json["args"].is_object()) {
            wrong.push(format!("no duration or arguments: {}", event.json));
        }
        let is_cuda = event.text("name").starts_with("cuda");
        if cat == "cuda_runtime" && !is_cuda || cat == "cpu_op" && is_cuda {
            wrong.push(format!("category: {}", event.json));
        }
    }
}

/// Checks that each lane has a name, contains one stream or thread, and nothing in it overlaps.
fn lanes(trace: &Trace, wrong: &mut Vec<String>) {
    let named = |what: &str| -> BTreeSet<(i64, i64)> {
        let names = trace.events.iter().filter(|e| e.text("name") == what);
        names.map(Event::lane).collect()
    };
    let (processes, threads) = (named("process_name"), named("thread_name"));
    let mut lanes: BTreeMap<(i64, i64), Vec<&Event>> = BTreeMap::new();
    for event in trace.events.iter().filter(|e| e.text("ph") == "X") {
        let (pid, tid) = event.lane();
        if !processes.iter().any(|&(process, _)| process == pid) {
            wrong.push(format!("no name for the process of {}", event.json));
        }
        // Rows that belong to no stream are in lane -1, as in Kineto.
        if tid < 0 {
            continue;
        }
        if !threads.contains(&(pid, tid)) {
            wrong.push(format!("no name for the lane of {}", event.json));
        }
        let args = &event.json["args"];
        if event.is_work() && (args["device"] != pid || args["stream"] != tid) {
            wrong.push(format!("in the wrong lane: {}", event.json));
        }
        lanes.entry((pid, tid)).or_default().push(event);
    }
    for rows in lanes.values_mut() {
        // Several threads may wait for one stream at once.
        rows.retain(|row| row.text("name") != "Stream Sync");
        rows.sort_by_key(|row| (row.start_ns, row.end_ns()));
        for pair in rows.windows(2) {
            if pair[1].start_ns < pair[0].end_ns() {
                wrong.push(format!("overlap: {} and {}", pair[0].json, pair[1].json));
            }
        }
    }
}

/// Checks that each row of work has the correlation number of one call, which comes before it.
fn correlation(trace: &Trace, wrong: &mut Vec<String>) {
    let mut calls: HashMap<u64, Vec<&Event>> = HashMap::new();
    for call in trace
        .events
        .iter()
        .filter(|e| e.text("cat") == "cuda_runtime")
    {
        let Some(id) = call.correlation().filter(|&id| id > 0) else {
            wrong.push(format!("no correlation: {}", call.json));
            continue;
        };
        calls.entry(id).or_default().push(call);
    }
    let mut seen = BTreeSet::new();
    for work in trace.events.iter().filter(|e| e.is_work()) {
        let id = work.correlation().unwrap_or(0);
        match calls.get(&id).map(Vec::as_slice) {
            Some([call]) if call.start_ns <= work.start_ns => {
                if call.json["args"]["op"] != work.json["args"]["op"] {
                    wrong.push(format!("another op: {} and {}", call.json, work.json));
                }
            }
            _ => wrong.push(format!("not one call before {}", work.json)),
        }
        if !seen.insert(id) {
            wrong.push(format!("a correlation twice: {}", work.json));
        }
        let (cat, name) = (work.text("cat"), work.text("name"));
        let args = &work.json["args"];
        let as_kineto = match cat {
            "gpu_memcpy" => is_memcpy(name) && args["bytes"].is_u64(),
            "gpu_memset" => name == "Memset (Device)" && args["bytes"].is_u64(),
            _ => true,
        };
        if !as_kineto {
            wrong.push(format!("not as Kineto writes it: {}", work.json));
        }
    }
}

/// Returns whether a name is like `Memcpy HtoD (Pinned -> Device)`, with matching sides. A copy between two devices is peer to
/// peer.
fn is_memcpy(name: &str) -> bool {
    if name == "Memcpy PtoP (Device -> Device)" {
        return true;
    }
    let side = |memory: &str| match memory {
        "Device" | "Managed" => Some('D'),
        "Pinned" | "Pageable" => Some('H'),
        _ => None,
    };
    let parts = name
        .strip_prefix("Memcpy ")
        .and_then(|rest| rest.split_once(" ("));
    let Some((sides, memories)) = parts else {
        return false;
    };
    let Some((from, to)) = memories
        .strip_suffix(')')
        .and_then(|m| m.split_once(" -> "))
    else {
        return false;
    };
    // Managed memory counts as either side.
    let fits = |letter: char, memory: &str| memory == "Managed" || side(memory) == Some(letter);
    let letters: Vec<char> = sides.chars().collect();
    matches!(letters[..], [a, 't', 'o', b] if fits(a, from) && fits(b, to))
}

/// Checks that each flow is one start in a call and one end in the row that the call began.
fn flows(trace: &Trace, wrong: &mut Vec<String>) {
    let ends = |ph: &str| -> BTreeMap<u64, Vec<&Event>> {
        let mut ends: BTreeMap<u64, Vec<&Event>> = BTreeMap::new();
        for event in trace.events.iter().filter(|e| e.text("ph") == ph) {
            ends.entry(event.json["id"].as_u64().expect("a number"))
                .or_default()
                .push(event);
        }
        ends
    };
    let (starts, ends) = (ends("s"), ends("f"));
    if starts.keys().ne(ends.keys()) {
        wrong.push("starts without ends, or ends without starts".to_owned());
    }
    for (id, start) in &starts {
        let [start] = start[..] else {
            wrong.push(format!("flow {id} starts twice"));
            continue;
        };
        let Some([end]) = ends.get(id).map(Vec::as_slice) else {
            wrong.push(format!("flow {id} has not one end"));
            continue;
        };
        let at = |flow: &Event| {
            let rows = trace.events.iter();
            let here = |e: &&Event| {
                e.text("ph") == "X" && e.lane() == flow.lane() && e.start_ns == flow.start_ns
            };
            rows.filter(here).cloned().collect::<Vec<Event>>()
        };
        let from_call = at(start)
            .iter()
            .any(|e| e.text("cat") == "cuda_runtime" && e.correlation() == Some(*id));
        let to_work = match end.text("cat") {
            "ac2g" => at(end)
                .iter()
                .any(|e| e.is_work() && e.correlation() == Some(*id)),
            _ => at(end).iter().any(|e| e.text("cat") == "cpu_op"),
        };
        let same = ["cat", "name"]
            .iter()
            .all(|key| start.json[key] == end.json[key]);
        if !from_call || !to_work || !same || end.text("bp") != "e" || start.start_ns > end.start_ns
        {
            wrong.push(format!("flow {} to {}", start.json, end.json));
        }
    }
    let works = trace.events.iter().filter(|e| e.is_work());
    for work in works.filter(|e| !starts.contains_key(&e.correlation().unwrap_or(0))) {
        wrong.push(format!("no flow to {}", work.json));
    }
}

/// Checks that each call that waits has a row that states for what.
fn waits(trace: &Trace, wrong: &mut Vec<String>) {
    let syncs: Vec<&Event> = trace
        .events
        .iter()
        .filter(|e| e.text("cat") == "cuda_sync")
        .collect();
    for sync in &syncs {
        let args = &sync.json["args"];
        let keys = [
            "cuda_sync_kind",
            "stream",
            "correlation",
            "device",
            "wait_on_cuda_event_record_corr_id",
        ];
        let kinds = WAITS.iter().map(|(_, kind)| *kind);
        let known = kinds
            .chain(["Stream Wait Event"])
            .any(|kind| kind == sync.text("name"));
        if !known
            || keys.iter().any(|key| args[key].is_null())
            || args["cuda_sync_kind"] != sync.text("name")
        {
            wrong.push(format!("not a wait as Kineto writes it: {}", sync.json));
        }
    }
    for call in trace
        .events
        .iter()
        .filter(|e| e.text("cat") == "cuda_runtime")
    {
        let Some((_, kind)) = WAITS
            .iter()
            .find(|(function, _)| *function == call.text("name"))
        else {
            continue;
        };
        let theirs = |e: &&&Event| e.correlation() == call.correlation() && e.text("name") == *kind;
        let rows: Vec<_> = syncs.iter().filter(theirs).collect();
        let same = |e: &Event| (e.start_ns, e.duration_ns) == (call.start_ns, call.duration_ns);
        if rows.len() != 1 || !same(rows[0]) {
            wrong.push(format!("not one row of the wait of {}", call.json));
        }
    }
}

/// Checks the traces of a folder's programs against the conventions: every nth program.
#[track_caller]
fn check_folder(folder: &str, schedule: &str, every: usize, at_least: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let mut paths: Vec<_> = entries.map(|e| e.expect("readable").path()).collect();
    paths.sort();
    assert!(paths.len() >= at_least, "{} programs", paths.len());
    for path in paths.iter().step_by(every) {
        let path = path.to_str().expect("UTF-8");
        let trace = traced(&["run", path, "--schedule", schedule]);
        check(&trace, &format!("{path} {schedule}"));
    }
}

#[test]
fn the_traces_of_the_examples_keep_the_conventions() {
    check_folder("../../examples/streams", "in-order", 1, 80);
}

#[test]
fn they_do_so_if_everything_is_late() {
    check_folder("../../examples/streams", "adversarial", 5, 80);
}

#[test]
fn the_traces_of_the_litmus_programs_keep_them_in_any_order() {
    for schedule in ["in-order", "adversarial", "seeded:1", "seeded:2"] {
        check_folder("../sidestream-program/tests/data/litmus", schedule, 1, 14);
    }
}

#[test]
fn the_trace_of_the_best_arrangement_keeps_the_conventions() {
    for (work, streams) in [("4096", 3), ("16", 3), ("200000", 2)] {
        let trace = traced(&["overlap", "--count", "12", "--work", work]);
        check(&trace, work);
        let works: Vec<&Event> = trace.events.iter().filter(|e| e.is_work()).collect();
        assert_eq!(
            works.len(),
            36,
            "an upload, a kernel and a download a batch"
        );
        let lanes: BTreeSet<_> = works.iter().map(|e| e.lane()).collect();
        assert_eq!(lanes.len(), streams, "a lane for each stream");
    }
}

// ------------------------------------------------------------------ individual rows

/// Returns the rows of one category, without their times: name, process, thread, and some arguments.
fn rows(trace: &Trace, cat: &str, args: &[&str]) -> Vec<Value> {
    let found = trace
        .events
        .iter()
        .filter(|e| e.text("cat") == cat && e.text("ph") == "X");
    let row = |e: &Event| {
        let (pid, tid) = e.lane();
        let mut row = vec![json!(e.text("name")), json!(pid), json!(tid)];
        row.extend(args.iter().map(|key| e.json["args"][key].clone()));
        Value::Array(row)
    };
    found.map(row).collect()
}

#[test]
fn copies_and_memsets_are_named_as_kineto_names_them() {
    let trace = program(
        "\
name: copies
buffers: {big: {kind: pinned, bytes: 4096}, there: {kind: dev, bytes: 4096}}
ops:
- {do: copy_async, s: s1, from: big, to: there}
- {do: copy_async, s: s1, from: P, to: A}
- {do: copy_async, s: s1, from: A, to: H}
- {do: copy_async, s: s1, from: A, to: B}
- {do: memset_async, s: s1, to: B}
- {do: sync_stream, st: s1}
",
    );
    check(&trace, "copies");
    assert_eq!(
        rows(&trace, "gpu_memcpy", &["bytes", "correlation", "op"]),
        [
            json!(["Memcpy HtoD (Pinned -> Device)", 0, 13, 4096, 1, 0]),
            json!(["Memcpy HtoD (Pageable -> Device)", 0, 13, 1024, 2, 1]),
            json!(["Memcpy DtoH (Device -> Pinned)", 0, 13, 1024, 3, 2]),
            json!(["Memcpy DtoD (Device -> Device)", 0, 13, 1024, 4, 3]),
        ]
    );
    assert_eq!(
        rows(&trace, "gpu_memset", &["bytes"]),
        [json!(["Memset (Device)", 0, 13, 1024])]
    );
    let first = trace.events.iter().find(|e| e.is_work()).expect("a copy");
    let rate = first.json["args"]["memory bandwidth (GB/s)"]
        .as_f64()
        .expect("a number");
    assert!((rate - 4096.0 / first.duration_ns as f64).abs() < 1e-9);
}

#[test]
fn every_kind_of_wait_has_a_row() {
    let trace = program(
        "\
name: waits
streams: {a: nb, b: nb, far: nb@1}
ops:
- {do: kernel, s: a, w: [A]}
- {do: record, ev: e, s: a}
- {do: wait, s: b, ev: e}
- {do: wait_stream, s: b, src: a}
- {do: kernel, s: b, r: [A]}
- {do: sync_event, ev: e}
- {do: sync_stream, st: b}
- {do: sync_device, dev: 1}
- {do: wait, s: a, ev: never_recorded}
",
    );
    check(&trace, "waits");
    let on = "wait_on_cuda_event_record_corr_id";
    // A wait for an event that was never recorded has no effect, and no row.
    let mut found = rows(&trace, "cuda_sync", &["stream", "correlation", on]);
    found.sort_by_key(|row| row[4].as_u64());
    assert_eq!(
        found,
        [
            json!(["Stream Wait Event", 0, 14, 14, 3, 2]),
            json!(["Stream Wait Event", 0, 14, 14, 4, 4]),
            json!(["Event Sync", 0, -1, -1, 6, 2]),
            // The host's wait has a separate lane next to that of its stream, as in Kineto since 2026, since it overlaps the
            // work of the stream.
            json!(["Stream Sync", 0, 1_000_014, 14, 7, -1]),
            json!(["Context Sync", 1, -1, -1, 8, -1]),
        ]
    );
}

#[test]
fn the_host_has_its_own_lanes() {
    let trace = program(
        "\
name: host
ops:
- {do: kernel, s: s1, w: [A]}
- {do: host_func, s: s1, sets: done, site: tell}
- {do: wait_flag, flag: done, t: reader}
- {do: host_read, buf: H, t: reader}
",
    );
    check(&trace, "host");
    assert_eq!(
        rows(&trace, "cuda_runtime", &["op"]),
        [
            json!(["cudaLaunchKernel", 1000, 0, 0]),
            json!(["cudaLaunchHostFunc", 1000, 0, 1])
        ]
    );
    // The host's own work is not a CUDA call, and a host function is not device work.
    assert_eq!(
        rows(&trace, "cpu_op", &["op"]),
        [
            json!(["wait for flag", 1000, 1, 2]),
            json!(["host access", 1000, 1, 3]),
            json!(["tell", 1000, 2_000_013, 1]),
        ]
    );
    let names = trace
        .events
        .iter()
        .filter(|e| e.text("name") == "thread_name");
    let names: Vec<Value> = names
        .map(|e| json!([e.lane().0, e.lane().1, e.json["args"]["name"]]))
        .collect();
    assert_eq!(
        names,
        [
            json!([1000, 0, "t0"]),
            json!([1000, 1, "reader"]),
            json!([0, 13, "stream 13 s1"]),
            json!([1000, 2_000_013, "host functions of stream 13 s1"]),
        ]
    );
}

#[test]
fn devices_are_processes_and_legacy_streams_have_number_7() {
    let trace = program(
        "\
name: devices
streams: {a: nb, d: legacy, e: legacy@1}
ops:
- {do: kernel, s: a, w: [A]}
- {do: kernel, s: d, w: [B]}
- {do: kernel, s: e, w: [C]}
",
    );
    check(&trace, "devices");
    assert_eq!(
        rows(&trace, "kernel", &["device", "stream"]),
        [
            json!(["kernel", 0, 13, 0, 13]),
            json!(["kernel", 0, 7, 0, 7]),
            json!(["kernel", 1, 7, 1, 7]),
        ]
    );
    let devices = trace.whole["deviceProperties"].as_array().expect("a list");
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[1]["numSms"], 132);
    // Viewers show the host first, although its number is higher.
    let order = trace
        .events
        .iter()
        .filter(|e| e.text("name") == "process_sort_index");
    let mut order: Vec<_> = order
        .map(|e| (e.json["args"]["sort_index"].as_i64(), e.lane().0))
        .collect();
    order.sort();
    assert_eq!(
        order.into_iter().map(|(_, pid)| pid).collect::<Vec<_>>(),
        [1000, 0, 1]
    );
}

#[test]
fn times_are_exact_however_long_the_run() {
    let trace = program(
        "name: long\nops:\n- {do: kernel, s: s1, w: [A], repeat: 1000000000}\n- {do: kernel, s: s1, w: [A]}\n",
    );
    check(&trace, "long");
    let last = trace
        .events
        .iter()
        .filter(|e| e.is_work())
        .map(Event::end_ns)
        .max();
    assert!(
        last > Some(1_000_000_000_000),
        "more than a thousand seconds: {last:?}"
    );
}
