//! Tests `sidestream run --device cuda:0` with the stand-in driver.

use std::path::Path;

use crate::command::{Ran, sidestream};
use crate::input::file;
use serde_json::Value;

fn ran(program: &str, options: &[&str]) -> Ran {
    let driver = sidestream_stand_in::library().expect("Cargo has built it beside this test");
    let driver = driver.to_str().expect("a path in UTF-8");
    let first = ["run", program, "--device", "cuda:0", "--driver", driver];
    sidestream(&[&first, options].concat())
}

/// Checks the message for a program that cannot run, with `FILE` for its name.
#[track_caller]
fn refused(text: &str, expected: &str) {
    let name = file(text);
    let ran = ran(&name, &[]);
    let said = ran.err.replace(&name, "FILE");
    assert_eq!(
        (ran.code, ran.out, said),
        (2, String::new(), expected.to_owned())
    );
}

fn as_json(program: &str) -> (i32, Value) {
    let ran = ran(program, &["--json"]);
    assert_eq!(ran.err, "", "{program}");
    (ran.code, serde_json::from_str(&ran.out).expect("JSON"))
}

#[test]
fn the_examples_without_a_race_compute_what_the_simulated_gpu_computes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/streams");
    let (mut equal, mut outside) = (0, Vec::new());
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            // Most allocator examples make the same calls, so one of them is enough.
            let is_other = name.contains(".allocator.") && !name.starts_with("loss_readback");
            (name.ends_with(".fixed.yaml") && !is_other) || name.ends_with(".error.yaml")
        })
        .collect();
    files.sort();
    // Programs of this kind mostly wait, so they run concurrently.
    let ran: Vec<(i32, Value)> = std::thread::scope(|scope| {
        let each = files.chunks(files.len().div_ceil(8));
        let running = each.map(|some| {
            scope.spawn(|| {
                some.iter()
                    .map(|path| as_json(path.to_str().unwrap()))
                    .collect::<Vec<_>>()
            })
        });
        let running: Vec<_> = running.collect();
        running
            .into_iter()
            .flat_map(|ran| ran.join().unwrap())
            .collect()
    });
    for (code, line) in ran {
        if code == 2 {
            assert_eq!(line["error"]["code"], "NotOnDevice", "{line}");
            outside.push(line["name"].as_str().unwrap().to_owned());
            continue;
        }
        assert_eq!(
            (code, &line["as_expected"]),
            (0, &Value::Bool(true)),
            "{line}"
        );
        assert!(line["results"]["count"].as_u64() > Some(0), "{line}");
        equal += 1;
    }
    assert_eq!(outside, ["multi_gpu_event_error", "timing_no_timing_error"]);
    assert!(equal > 20, "{equal}");
}

const ENGINES: &str = "\
name: engines
ops:
- {do: host_write, buf: H}
- {do: copy_async, s: s1, from: H, to: A}
- {do: kernel, s: s1, r: [A], w: [B], site: scale, repeat: 3}
- {do: memset_async, s: s2, to: C}
- {do: host_func, s: s1, r: [H], w: [H2]}
- {do: copy_async, s: s1, from: B, to: H1}
- {do: wait_stream, s: s2, src: s1}
- {do: graph_launch, s: s2, g: g1, r: [B], w: [\"C[1:37]\"]}
- {do: sync_device}
- {do: host_read, buf: H1}
";

#[test]
fn a_run_shows_lanes_and_where_its_times_and_results_come_from() {
    let ran = ran(&file(ENGINES), &["--width", "100"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    for expected in [
        "engines on ",
        "\n  s1         |",
        "\n  s2         |",
        "\n  (compute)  |",
        "\n  (download) |",
        "which cost the device about 2 µs each",
        "  7 results, all as on sim:h200 in order\n",
    ] {
        assert!(
            ran.out.contains(expected),
            "{expected:?} is not in\n{}",
            ran.out
        );
    }
}

#[test]
fn work_in_json_and_in_a_trace_is_that_of_the_programs_ops() {
    let program = file(ENGINES);
    let trace = format!("{program}.trace.json");
    let ran = ran(&program, &["--json", "--trace", &trace]);
    let line: Value = serde_json::from_str(&ran.out).expect("JSON");
    let work = line["work"].as_array().unwrap().iter();
    let mut work: Vec<String> = work
        .filter(|work| !work["engine"].is_null())
        .map(|work| format!("{} {} {}", work["op"], work["stream"], work["engine"]))
        .collect();
    work.sort();
    let expected = [
        "1 \"s1\" \"upload\"",
        "2 \"s1\" \"compute\"",
        "3 \"s2\" \"compute\"",
        "4 \"s1\" \"host\"",
        "5 \"s1\" \"download\"",
        "7 \"s2\" \"compute\"",
    ];
    assert_eq!(work, expected);
    let trace = std::fs::read_to_string(Path::new(crate::command::FOLDER).join(&trace)).unwrap();
    let trace: Value = serde_json::from_str(&trace).expect("JSON");
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert_eq!((named("scale"), named("cudaDeviceSynchronize")), (1, 1));
}

#[test]
fn host_threads_take_their_turns_and_meet_at_flags() {
    let text = "\
name: threads
streams: {p: ptds, q: ptds}
ops:
- {do: host_write, buf: H}
- {do: copy_async, s: p, from: H, to: A}
- {do: host_func, s: p, r: [H], w: [H1], sets: sent}
- {do: wait_flag, flag: sent, t: other}
- {do: host_write, buf: H, t: other}
- {do: copy_async, s: q, from: H, to: B, t: other}
- {do: record, ev: e, s: q, t: other}
- {do: sync_event, ev: e, t: other}
- {do: set_flag, flag: back, t: other}
- {do: wait_flag, flag: back}
- {do: kernel, s: p, r: [A, B], w: [C]}
- {do: query_stream, st: p, ready: true}
- {do: host_read, buf: H1}
";
    let (code, line) = as_json(&file(text));
    assert_eq!(
        (code, &line["results"]["differ"]),
        (0, &serde_json::json!([])),
        "{line}"
    );
}

#[test]
fn an_unsupported_program_is_refused_with_its_line_before_anything_runs() {
    refused(
        "name: captured\nops:\n- {do: kernel, s: s1, w: [A]}\n- {do: begin_capture, s: s1}\n- {do: end_capture, s: s1}\n",
        "sidestream: FILE: program captured: line 4, op 1 (`begin_capture`): no op names the graph of \
         a capture, so nothing would run; run it on sim:h200\n",
    );
    refused(
        "name: managed\nops:\n- {do: kernel, s: s1, w: [M]}\n",
        "sidestream: FILE: program managed: line 3, op 0 (`kernel`): `M` is managed memory; run it on \
         sim:h200\n",
    );
    refused(
        "name: late\nops:\n- {do: malloc_async, s: s1, buf: A}\n- {do: free_async, s: s1, buf: A}\n\
         - {do: kernel, s: s1, w: [A]}\n",
        "sidestream: FILE: program late: line 5, op 2 (`kernel`): `A` was freed by op 1; run it on \
         sim:h200\n",
    );
    refused(
        "name: pages\nops:\n- {do: memset_async, s: s1, to: P}\n",
        "sidestream: FILE: program pages: line 3, op 0 (`memset_async`): a device cannot access `P`, \
         which is pageable; run it on sim:h200\n",
    );
    refused(
        "name: stranger\nstreams: {p: ptds}\nops:\n- {do: kernel, s: p, w: [A]}\n\
         - {do: kernel, s: p, w: [A], t: other}\n",
        "sidestream: FILE: program stranger: line 5, op 1 (`kernel`): `p` is the default stream of \
         another thread, and only that one can use it; run it on sim:h200\n",
    );
    refused(
        "name: held\nlevel: runtime\nops:\n- {do: sim_hold, st: s1}\n",
        "sidestream: FILE: program held: it is of level `runtime`, which needs the simulated device \
         and its allocator; run it on sim:h200\n",
    );
}

#[test]
fn a_schedule_is_for_a_simulated_gpu() {
    let program = file(ENGINES);
    for options in [["--schedule", "adversarial"], ["--explore", "5"]] {
        let ran = ran(&program, &options);
        let expected = format!(
            "sidestream: {} is for a simulated GPU, which can run a chosen order; give \
             --device sim:h200 with it\n",
            options[0]
        );
        assert_eq!((ran.code, ran.err), (2, expected));
    }
}

#[test]
fn a_loop_is_for_a_simulated_gpu() {
    let ran = ran(&file(ENGINES), &["--repeat", "5"]);
    let expected = "sidestream: --repeat is for a simulated GPU; give --device sim:h200 with it\n";
    assert_eq!((ran.code, &*ran.err), (2, expected));
}

#[test]
fn a_missing_device_is_named() {
    let text = "name: far\nstreams: {a: nb@0, b: nb@7}\nops:\n- {do: kernel, s: b, w: [A]}\n";
    let ran = ran(&file(text), &[]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("cuda:7"), "{}", ran.err);
}
