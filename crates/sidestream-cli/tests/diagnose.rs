//! Tests `sidestream diagnose` on traces of an H200 in the repository, and on files that are not traces.

#[path = "../../sidestream-diagnose/tests/fixtures/looped.rs"]
mod looped;

use std::path::{Path, PathBuf};

use crate::command::sidestream;
use serde_json::Value;
use sidestream_diagnose::Change;

fn trace(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let path = folder.join(format!("{name}.json.gz"));
    path.to_str().expect("a path in letters").to_owned()
}

fn json(name: &str) -> Value {
    let ran = sidestream(&["diagnose", "--json", &trace(name)]);
    assert_eq!((ran.code, &*ran.err), (0, ""), "{name}");
    serde_json::from_str(&ran.out).expect("one line of JSON")
}

fn codes(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().filter_map(|f| f["code"].as_str()).collect()
}

/// Checks the findings of a trace, the most valuable first.
#[track_caller]
fn check(name: &str, expected: &[&str]) {
    assert_eq!(codes(&json(name)), expected, "{name}");
}

#[test]
fn each_trace_suffers_from_what_was_changed_afterwards() {
    check(
        "infer_pageable.before",
        &["PAGEABLE_COPY", "COPY_ON_COMPUTE_STREAM", "BLOCKING_COPY"],
    );
    check("infer_pageable.pinned_only", &["COPY_ON_COMPUTE_STREAM"]);
    check("launch_bound.before", &["LAUNCH_BOUND"]);
    check("copy_bound.before", &["COPY_ON_COMPUTE_STREAM"]);
    check("branches_long.before", &["SERIAL_BRANCHES"]);
    let download = json("blocking_download.before");
    assert_eq!(codes(&download)[..2], ["BLOCKING_COPY", "PAGEABLE_COPY"]);
}

#[test]
fn after_the_change_there_is_nothing_to_gain() {
    for name in [
        "infer_pageable",
        "launch_bound",
        "blocking_download",
        "branches_long",
    ] {
        check(&format!("{name}.after"), &["NOTHING_TO_GAIN"]);
    }
    check("copy_bound.after", &["COPY_BOUND", "NOTHING_TO_GAIN"]);
}

#[test]
fn idle_time_is_given_to_causes_once() {
    for name in [
        "blocking_download.before",
        "infer_pageable.before",
        "launch_bound.before",
        "launch_bound.after",
    ] {
        let report = json(name);
        for device in report["devices"].as_array().expect("a list") {
            let causes = device["idle_by_cause"].as_object().expect("an object");
            let sum: u64 = causes.values().filter_map(Value::as_u64).sum();
            assert_eq!(Some(sum), device["idle_ns"].as_u64(), "{name}");
            assert!(causes.get("UNATTRIBUTED").is_none(), "{name}");
        }
    }
}

#[test]
fn no_saving_leads_below_the_floor() {
    for name in [
        "blocking_download.before",
        "copy_bound.before",
        "launch_bound.before",
    ] {
        let report = json(name);
        let step_ns = report["steps"]["median_ns"].as_u64().expect("steps");
        let kernel_ns = report["devices"][0]["kernel_ns"]
            .as_u64()
            .expect("a number");
        for finding in report["findings"].as_array().expect("a list") {
            let saving = &finding["saving_ns"];
            let of = |key: &str| saving[key].as_u64().expect("a number");
            assert!(of("low") <= of("likely") && of("likely") <= of("high"));
            assert!(of("high") <= step_ns - kernel_ns / 12, "{name} {finding}");
        }
    }
}

#[test]
fn a_change_that_is_asked_for_is_predicted() {
    let path = trace("copy_bound.before");
    let ran = sidestream(&["diagnose", "--json", "--what-if", "prefetch=2", &path]);
    let report: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(report["replay"]["ok"], true);
    let predictions = report["what_if"].as_array().expect("a list");
    assert_eq!(predictions.len(), 1);
    assert_eq!(predictions[0]["changes"][0], "prefetch=2");
    let ratio = predictions[0]["ratio"].as_f64().expect("a number");
    // The program with this change took 2.79 ms instead of 4.64 ms.
    assert!((0.57..0.63).contains(&ratio), "{ratio}");
    let ran = sidestream(&["diagnose", "--what-if", "faster", &path]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains("there is no change `faster`"),
        "{}",
        ran.err
    );
}

#[test]
fn findings_that_may_not_be_causes_are_marked_as_asides() {
    let check = |name: &str, expected: &[(&str, bool)]| {
        let report = json(name);
        let findings = report["findings"].as_array().expect("a list").iter();
        let aside = findings.map(|finding| finding["is_aside"].as_bool().expect("yes or no"));
        let aside: Vec<_> = codes(&report).into_iter().zip(aside).collect();
        assert_eq!(aside, expected, "{name}");
    };
    check("branches_long.before", &[("SERIAL_BRANCHES", true)]);
    check(
        "branches_tiny.before",
        &[("LAUNCH_BOUND", false), ("PROFILER_OVERHEAD", true)],
    );
}

#[test]
fn every_list_of_changes_has_them_all_in_their_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect(path);
    // Puts a text into one line, since help and pages are wrapped.
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let forms = Change::ALL.map(|(form, _)| form);
    let args = forms.map(|form| form.replace('N', "3").replace("STREAM:STREAM", "20:7"));
    let parsed = args.each_ref().map(|arg| arg.parse::<Change>());
    for (arg, change) in args.iter().zip(&parsed) {
        let change = change.as_ref().expect("a change");
        assert_eq!(&change.to_string(), arg);
    }
    assert!(parsed.is_sorted_by_key(|change| change.as_ref().ok()));
    let docs = read("docs/guide/diagnose.md");
    let table = docs.split("| change | what it does |").nth(1);
    let rows = table.expect("the table").lines().skip(2);
    let rows = rows.map_while(|row| row.strip_prefix("| `")?.split(['`', '=']).next());
    let names = forms.map(|form| form.split('=').next().expect("a name"));
    assert_eq!(rows.collect::<Vec<_>>(), names);
    let python = flat(&read("crates/sidestream-py/python/sidestream/_together.py"));
    let written = format!("what_if: Changes to predict: ``{}``.", forms.join("``, ``"));
    assert!(python.contains(&written), "{written}");
    let help = flat(&sidestream(&["diagnose", "--help"]).out);
    let list = format!("separated by commas: {}.", Change::forms());
    for said in Change::ALL.map(|(form, does)| format!("{form}: {does}.")) {
        assert!(help.contains(&said), "{said}: {help}");
    }
    assert!(help.contains(&list), "{help}");
}

#[test]
fn the_report_for_people_has_the_worst_first() {
    let ran = sidestream(&["diagnose", &trace("copy_bound.before")]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let lines: Vec<&str> = ran.out.lines().skip(1).collect();
    assert_eq!(
        lines[..5],
        [
            "device  0 (NVIDIA H200): 72 operations in 55.88 ms, idle 0.3 %",
            "        copies with the host 33.41 ms, 0.0 % of it under kernels",
            "steps   12 by profiler_step, 4.66 ms each in the mean (median 4.66 ms, from 4.65 ms to 4.67 ms)",
            "copies  HtoD pinned: 12, 1849.7 MB in 33.41 ms, 55.4 GB/s",
            "link    pinned copies at 55.4 GB/s (measured: the best that the trace has; --link-gbps states \
             another)",
        ]
    );
    let finding = "COPY_ON_COMPUTE_STREAM  59.8 % of a step: copies of 154.1 MB in a step";
    assert!(lines[6].starts_with(finding), "{}", lines[6]);
    assert_eq!(
        lines[7].trim(),
        "worth 1.87 ms of a step (40.2 %), between 1.79 ms and 1.96 ms, with prefetch=2"
    );
    // The evidence gives its time from the start of the trace.
    assert_eq!(
        lines[8].trim(),
        "such as Memcpy HtoD (Pinned -> Device), 2.79 ms at 12.00 ms, in step 2"
    );
}

#[test]
fn evidence_has_its_place_in_the_trace() {
    let report = json("copy_bound.before");
    let evidence = &report["findings"][0]["evidence"][0];
    assert_eq!(evidence["step"], 2);
    let (offset, start) = (&evidence["offset_ns"], &evidence["start_ns"]);
    assert!(offset.as_u64() < Some(60_000_000), "{evidence}");
    assert!(start.as_u64() > Some(1_000_000_000_000), "{evidence}");
}

#[test]
fn the_median_step_is_drawn_beside_the_best_that_it_could_be() {
    let ran = sidestream(&["diagnose", &trace("copy_bound.before")]);
    let from = ran.out.find("\nstep 4 took 4.66 ms:\n").expect("a picture");
    let picture: Vec<&str> = ran.out[from..].trim().lines().collect();
    let lanes: Vec<&str> = picture
        .iter()
        .filter_map(|line| line.split(" |").next())
        .collect();
    assert_eq!(
        lanes[..6],
        [
            "step 4 took 4.66 ms:",
            "  host thread 395",
            "  GPU 0 stream 7 ",
            "with prefetch=2 one would take 2.78 ms:",
            "  GPU 0 stream 7 ",
            "  uploads (new)  ",
        ]
    );
    let legend = "  W host waits for the GPU, K kernel, U upload, small: under half of its column";
    assert_eq!(picture[6], legend);
    // Both pictures have one scale, and fit into eighty columns.
    assert_eq!(picture[2].chars().count(), 80);
    assert!(picture[5].chars().count() < 60, "{}", picture[5]);
    // With nothing to gain, no second picture is drawn.
    let ran = sidestream(&["diagnose", &trace("copy_bound.after")]);
    assert!(ran.out.contains("took") && !ran.out.contains("one would take"));
}

/// A host range without calls is drawn as the host's own work. In the predicted picture, a worker that takes over this work is
/// drawn too.
#[test]
fn the_hosts_own_work_is_drawn() {
    let picture = |name| {
        let ran = sidestream(&["diagnose", &trace(name)]);
        let from = ran.out.find(" took ").expect("a picture");
        ran.out[from..].to_owned()
    };
    let lane = |picture: &str, name: &str| -> String {
        let row = picture
            .lines()
            .find_map(|line| line.trim().strip_prefix(name));
        row.expect("a lane")
            .chars()
            .filter(|c| c.is_alphabetic())
            .collect()
    };
    let own = picture("starved_hard.before");
    assert!(
        lane(&own, "host thread 395").starts_with(&"R".repeat(40)),
        "{own}"
    );
    assert!(lane(&own, "worker 4").chars().all(|c| c == 'H'), "{own}");
    assert!(
        own.contains("R host in a named range, without a call"),
        "{own}"
    );
    assert!(!own.contains("L loading"), "{own}");
    let loads = picture("loader_starved.before");
    assert!(
        lane(&loads, "worker 4").chars().all(|c| c == 'L'),
        "{loads}"
    );
    assert!(loads.contains("L loading data"), "{loads}");
}

#[test]
fn changes_that_gain_nothing_are_named_in_one_line() {
    let ran = sidestream(&["diagnose", &trace("infer_pageable.before")]);
    let rows = |out: &str| -> Vec<String> {
        let rows = out.lines().filter_map(|line| line.strip_prefix("what-if "));
        rows.filter_map(|row| Some(row.split_once(':')?.0.to_owned()))
            .collect()
    };
    assert_eq!(
        rows(&ran.out),
        ["pinned,prefetch=2,no-sync", "pinned", "async-output"]
    );
    let others = "        the others gain less than 1 %, alone or over a part of them: prefetch=2; no-sync; \
                  graphs; workers=4; host-work=4; second-stream; non-blocking-streams";
    assert!(ran.out.lines().any(|line| line == others), "{}", ran.out);
    let all = sidestream(&[
        "diagnose",
        "--what-if",
        "all",
        &trace("infer_pageable.before"),
    ]);
    assert_eq!(all.out, ran.out);
    // Requested changes are shown even if they gain nothing, in the order in which they are made.
    let args = ["diagnose", "--what-if", " graphs , pinned,graphs"];
    let ran = sidestream(&[&args[..], &[&trace("infer_pageable.before")]].concat());
    assert_eq!(
        (rows(&ran.out), ran.code),
        (vec!["pinned,graphs".to_owned()], 0)
    );
    assert!(!ran.out.contains("the others"), "{}", ran.out);
    // A change that finds nothing in the trace is reported, so that a mistyped range is noticed.
    for (set, says) in [
        ("fused=nope", "this"),
        ("pipeline=a,b", "this"),
        ("pinned,fused=nope", "one of these"),
    ] {
        let ran = sidestream(&[
            "diagnose",
            "--what-if",
            set,
            &trace("infer_pageable.before"),
        ]);
        let end = format!("; the trace has nothing that {says} would change");
        let row = ran.out.lines().find(|line| line.starts_with("what-if "));
        assert!(row.is_some_and(|row| row.ends_with(&end)), "{}", ran.out);
    }
}

/// Checks that arguments are refused with a message that contains this part.
#[track_caller]
fn refused(args: &[&str], says: &str) {
    let path = trace("copy_bound.before");
    let ran = sidestream(&[&["diagnose"], args, &[&*path]].concat());
    assert_eq!((ran.code, &*ran.out), (2, ""), "{args:?}");
    assert!(ran.err.contains(says), "{args:?}: {}", ran.err);
}

#[test]
fn unknown_changes_are_refused_with_the_known_ones() {
    let range = "is a whole number from 1 to 1024";
    for text in [
        "prefetch=0",
        "workers=0",
        "prefetch=1000000",
        "prefetch=",
        "workers=-1",
    ] {
        refused(&["--what-if", text], range);
    }
    refused(
        &["--what-if", "prefetch=2, prefetch=3"],
        "`prefetch=2` and `prefetch=3` contradict",
    );
    refused(&["--what-if", "pinned=2"], "pinned takes no number");
    refused(&["--what-if", "pinned,,graphs"], "an empty entry");
    refused(&["--what-if", ""], "an empty entry");
    refused(
        &["--what-if", "all", "--what-if", "pinned"],
        "give it alone",
    );
}

#[test]
fn speeds_that_no_link_has_are_refused_with_their_range() {
    for text in ["1e-300", "-1", "-0.5", "NaN", "0", "inf", "1e5", "fast", ""] {
        refused(&["--link-gbps", text], "a number from 0.1 to 10000");
    }
}

#[test]
fn a_comparison_says_what_changed() {
    let (after, before) = (trace("launch_bound.after"), trace("launch_bound.before"));
    let ran = sidestream(&["diagnose", &after, "--against", &before]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let says = [
        "step    359.4 µs instead of 2.10 ms, 82.9 % less, in the median",
        "gone: LAUNCH_BOUND",
        "new: NOTHING_TO_GAIN",
    ];
    for line in says {
        assert!(ran.out.lines().any(|l| l == line), "{line}\n{}", ran.out);
    }
    let ran = sidestream(&["diagnose", "--json", &after, "--against", &before]);
    let compared: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(compared["schema"], "sidestream.diagnose.compare/1");
    assert_eq!(
        (&compared["file"], &compared["against"]),
        (&after.into(), &before.clone().into())
    );
    let high = compared["slowdown"]["high"].as_f64().expect("a number");
    assert!((0.17..0.18).contains(&high), "{high}");
    let gone = &compared["operators"][0];
    assert_eq!(
        (&gone["now_calls"], &gone["baseline_calls"]),
        (&0.0.into(), &40.0.into())
    );
    // The total kernel time changed by 1 %, the time of a step by 83 %.
    let ratio = compared["ratio"].as_f64().expect("a number");
    assert!((0.16..0.18).contains(&ratio), "{ratio}");
}

#[test]
fn a_gate_decides_the_exit_code_and_names_what_grew() {
    let (after, before) = (trace("copy_bound.after"), trace("copy_bound.before"));
    let ran = sidestream(&["diagnose", &before, "--against", &after, "--gate", "5%"]);
    assert_eq!((ran.code, &*ran.err), (1, ""));
    let says = [
        "gate    failed at 5 %: the step changed by +67.5 % (from +",
        "cause   copies that no kernel hides grew by 1.87 ms of 1.88 ms a step: they take as long as before",
    ];
    for start in says {
        assert!(ran.out.lines().any(|l| l.starts_with(start)), "{}", ran.out);
    }
    let few = looped::steps(3, &[looped::piece("a", 7, 100, 500)]);
    let few = file("few.json", &few.json());
    let few = few.to_str().expect("letters");
    // The worst of several decides.
    for (traces, code, verdict) in [
        (vec![&*after], 0, "passed"),
        (vec![few], 3, "unknown"),
        (vec![&*before, few, &*after], 1, "failed"),
        (vec![&*before, "is/not/there.json"], 2, "failed"),
    ] {
        let args = ["diagnose", "--json", "--against", &after, "--gate", "5"];
        let ran = sidestream(&[&args[..], &traces].concat());
        assert_eq!(ran.code, code, "{}", ran.err);
        let first = ran.out.lines().next().expect("one line for each trace");
        let gate: Value = serde_json::from_str(first).expect("JSON");
        assert_eq!(gate["gate"]["verdict"], verdict, "{gate}");
    }
    refused(&["--gate", "5"], "--against");
    for text in ["-1", "five", "NaN", ""] {
        let args = ["--against", &after, "--gate", text];
        refused(&args, "write percent as a number from 0 to 1000");
    }
}

#[test]
fn traces_that_cannot_be_compared_are_refused() {
    let once = looped::Loop {
        is_marked: false,
        ..looped::steps(1, &[looped::piece("a", 7, 100, 500)])
    };
    let once = file("once.json", &once.json());
    let (once, before) = (
        once.to_str().expect("letters"),
        trace("launch_bound.before"),
    );
    let ran = sidestream(&["diagnose", "--json", once, "--against", &before]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err
            .contains("the trace has no steps and the baseline has"),
        "{}",
        ran.err
    );
    let line: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(line["schema"], "sidestream.diagnose.compare/1");
    let ran = sidestream(&["diagnose", once, "--against", &before, "--gate", "5"]);
    let says = "gate    cannot tell at 5 %: the trace has no steps and the baseline has";
    assert!(ran.code == 3 && ran.out.contains(says), "{}", ran.out);
    let ran = sidestream(&["diagnose", &before, "--against", "is/not/there.json"]);
    assert_eq!((ran.code, &*ran.out), (2, ""));
    refused(
        &["--against", env!("CARGO_TARGET_TMPDIR")],
        "--against takes one trace",
    );
}

#[test]
fn the_ranks_of_a_folder_are_analyzed_together() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("diagnose_ranks");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder of our own");
    for (rank, compute_us) in [(0, 300), (1, 700), (2, 320)] {
        let pieces = [
            looped::piece("compute", 7, 10, compute_us),
            looped::piece(
                "ncclDevKernel_AllReduce",
                8,
                10 + compute_us,
                900 - compute_us,
            ),
        ];
        let text = looped::steps(6, &pieces).of_rank(rank, 4).json();
        std::fs::write(folder.join(format!("rank{rank}.json")), text).expect("our own");
    }
    let path = folder.to_str().expect("letters");
    let ran = sidestream(&["diagnose", path]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let says = [
        "3 ranks of 4 together, clocks aligned to 0 ns",
        "first:  there is no trace of rank 3: the slow rank may be missing",
        "waiting: rank 0, 2, up to 400.0 µs a step in exchanges of data",
    ];
    for line in says {
        assert!(ran.out.lines().any(|l| l == line), "{line}\n{}", ran.out);
    }
    assert!(
        ran.out
            .contains("\nslow:    rank 1: its own work in a step takes "),
        "{}",
        ran.out
    );
    let page = folder.with_extension("html");
    let to_page = page.to_str().expect("letters");
    let with_page = sidestream(&["diagnose", path, "--html", to_page]);
    assert_eq!((with_page.code, with_page.out), (0, ran.out.clone()));
    let page = std::fs::read_to_string(&page).expect("it was written");
    assert!(page.contains("<section id=\"heat\">"), "{page}");
    // The reports of the single ranks are short.
    assert!(!ran.out.contains("what-if"), "{}", ran.out);
    let ran = sidestream(&["diagnose", "--json", path]);
    let lines: Vec<Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(
        (&lines[1]["source"]["rank"], &lines[1]["source"]["world"]),
        (&1.into(), &4.into())
    );
    assert_eq!(lines[3]["schema"], "sidestream.diagnose.ranks/2");
    assert_eq!(
        (&lines[3]["straggler"], &lines[3]["missing"][0][0]),
        (&1.into(), &3.into())
    );
}

#[test]
fn the_speed_of_the_link_can_be_stated() {
    let path = trace("infer_pageable.before");
    let ran = sidestream(&["diagnose", "--json", "--link-gbps", "10", &path]);
    let report: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(report["link"]["by"], "stated");
    let assumed = json("infer_pageable.before");
    assert_eq!(assumed["link"]["by"], "assumed");
    let measured = json("copy_bound.before");
    assert_eq!(measured["link"]["by"], "measured");
    let page = sidestream(&["diagnose", &path]).out;
    let link =
        "link    pinned copies at 55 GB/s (assumed for NVIDIA H200; --link-gbps states another)";
    assert!(page.lines().any(|line| line == link), "{page}");
    let page = sidestream(&["diagnose", "--link-gbps", "0.1", &path]).out;
    assert!(
        page.contains("pinned copies at 0.1 GB/s (as stated)"),
        "{page}"
    );
}

#[test]
fn sidestream_reads_the_traces_that_it_writes() {
    let path = file("own.json", "");
    let written = path.to_str().expect("a path in letters");
    let ran = sidestream(&["overlap", "--device", "sim:h200", "--trace", written]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = sidestream(&["diagnose", "--json", written]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let report: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(report["source"]["kind"], "sidestream");
    assert_eq!(report["launches"]["orphans"], 0);
}

#[test]
fn no_line_is_longer_than_it_may_be() {
    let trace = "../../examples/traces/copy_bound.before.json.gz";
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join(trace);
    let ran = sidestream(&[
        "diagnose",
        "--width",
        "80",
        trace.to_str().expect("letters"),
    ]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    // The name of the file is one word, however long.
    for line in ran
        .out
        .lines()
        .skip(1)
        .filter(|line| !line.contains(".json.gz"))
    {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_folder_means_its_traces() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let ran = sidestream(&["diagnose", "--json", folder.to_str().expect("letters")]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let traces = std::fs::read_dir(&folder).expect("the folder is there");
    let names = traces.map(|entry| entry.expect("an entry").file_name());
    let traces = names.filter(|name| name.to_string_lossy().ends_with(".gz"));
    assert_eq!(ran.out.lines().count(), traces.count());
}

#[test]
fn a_file_of_a_folder_that_is_not_a_trace_does_not_keep_the_others_from_being_read() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let trace = "copy_bound.before.json.gz";
    let folder = std::env::temp_dir().join(format!("sidestream-folder-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::copy(traces.join(trace), folder.join(trace)).expect("a trace");
    std::fs::write(folder.join("other.json"), "{}").expect("a file");
    let ran = sidestream(&["diagnose", "--json", folder.to_str().expect("letters")]);
    assert_eq!(ran.code, 2);
    let lines = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let (unread, reports): (Vec<Value>, Vec<Value>) =
        lines.partition(|line: &Value| line.get("error").is_some());
    assert_eq!((reports.len(), unread.len()), (1, 1));
    assert_eq!(unread[0]["schema"], reports[0]["schema"]);
    let file = unread[0]["file"].as_str().expect("a name");
    assert!(file.ends_with("other.json"), "{file}");
    let why = "other.json: the file is JSON without a member `traceEvents`";
    assert!(ran.err.contains(why), "{}", ran.err);
}

#[test]
fn files_that_are_not_traces_are_refused_by_name() {
    for (name, text, says) in [
        ("empty.json", "", "the file is empty"),
        ("text.json", "hello", "the file is not a trace"),
        (
            "cpu.json",
            "{\"traceEvents\": []}",
            "no kernels, copies or memsets",
        ),
    ] {
        let path = file(name, text);
        let ran = sidestream(&["diagnose", path.to_str().expect("letters")]);
        assert_eq!((ran.code, &*ran.out), (2, ""), "{name}");
        let place = format!("diagnose_{name}: ");
        assert!(
            ran.err.contains(&place) && ran.err.contains(says),
            "{}",
            ran.err
        );
    }
    let ran = sidestream(&["diagnose", "is/not/there.json"]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err
            .contains("is/not/there.json: the file cannot be read")
    );
}

/// Writes a file for a test.
fn file(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("diagnose_{name}"));
    std::fs::write(&path, text).expect("a file of our own");
    path
}

#[test]
fn one_table_is_printed_sorted_and_cut() {
    let path = trace("starved_hard.before");
    let ran = sidestream(&[
        "diagnose", "--table", "ranges", "--sort", "idle", "--limit", "2", &path,
    ]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(
        lines[0].ends_with("starved_hard.before.json.gz: ranges"),
        "{}",
        lines[0]
    );
    assert!(lines[2].ends_with(" 12  ProfilerStep*"), "{}", lines[2]);
    assert!(lines[3].ends_with(" 12    load_batch"), "{}", lines[3]);
    assert!(lines[4].ends_with("  outside of ranges"), "{}", lines[4]);
    assert_eq!(lines.len(), 6);
    let ran = sidestream(&[
        "diagnose",
        "--json",
        "--table",
        "operators",
        "--limit",
        "3",
        &path,
    ]);
    let table: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(table["schema"], "sidestream.diagnose.table/1");
    let rows = table["rows"].as_array().expect("rows");
    let of = |at: usize| rows[at]["device_self_ns"].as_u64().expect("a number");
    assert!(
        rows.len() == 3 && of(0) >= of(1) && of(1) >= of(2) && of(2) > 0,
        "{table}"
    );
}

#[test]
fn tables_need_no_gpu_and_reports_do() {
    let data = "../sidestream-diagnose/tests/data/tables.cpu.json.gz";
    let path = format!("{}/{data}", env!("CARGO_MANIFEST_DIR"));
    let ran = sidestream(&["diagnose", "--table", "memory", &path]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    assert!(ran.out.contains("\nhost: "), "{}", ran.out);
    assert!(
        ran.out.contains("in forward") || ran.out.contains("in backward"),
        "{}",
        ran.out
    );
    let ran = sidestream(&[
        "diagnose",
        "--table",
        "operators",
        "--by-shape",
        "--sort",
        "calls",
        &path,
    ]);
    assert!(ran.code == 0 && ran.out.contains("[["), "{}", ran.out);
    let ran = sidestream(&["diagnose", &path]);
    assert_eq!(ran.code, 2);
}

#[test]
fn a_table_refuses_meaningless_options() {
    let path = trace("copy_bound.before");
    for (args, why) in [
        (
            vec!["--table", "operators", "--sort", "idle"],
            "operators cannot be sorted by idle; sort by device-self",
        ),
        (
            vec!["--table", "memory", "--sort", "calls"],
            "memory is sorted by size only",
        ),
        (
            vec!["--table", "ranges", "--by-shape"],
            "ranges have no shapes of inputs",
        ),
        (vec!["--table", "all"], "operators, ranges, kernels, memory"),
        (vec!["--table", "ranges", "--limit", "0"], "--limit"),
        (vec!["--sort", "device"], "--table"),
        (
            vec!["--table", "ranges", "--what-if", "graphs"],
            "cannot be used with",
        ),
    ] {
        let ran = sidestream(&[&["diagnose"], &*args, &[&path]].concat());
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(ran.err.contains(why), "{args:?}: {}", ran.err);
    }
}

#[test]
fn a_copy_between_devices_has_its_own_letter() {
    let trace = r#"{"schemaVersion": 1, "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "compute", "pid": 0, "tid": 7, "ts": 0, "dur": 500, "args": {"stream": 7}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy PtoP (Device -> Device)", "pid": 0, "tid": 8, "ts": 500, "dur": 500,
         "args": {"stream": 8, "bytes": 1048576}}]}"#;
    let path = file("peer.json", trace);
    let ran = sidestream(&["diagnose", path.to_str().expect("a path in letters")]);
    let lanes: Vec<&str> = ran.out.lines().filter(|line| line.contains(" |")).collect();
    assert_eq!(lanes.len(), 3, "{}", ran.out);
    assert!(lanes[0].contains("|KKKK") && lanes[0].ends_with("..|"));
    assert!(lanes[1].contains("|....") && lanes[1].ends_with("PP|"));
    // Besides the lanes of streams, the copies between devices have their own lane.
    let (name, bars) = lanes[2].split_once('|').unwrap();
    assert_eq!(name.trim(), "GPU 0 (peer copy)");
    assert!(lanes[1].ends_with(bars), "{}", ran.out);
    assert!(ran.out.contains("K kernel, P copy between GPUs\n"));
}
