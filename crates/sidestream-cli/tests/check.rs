//! Tests `sidestream check`: what it prints about programs, and its exit codes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::command::{Ran, sidestream};
use crate::input::{file, ran_on};
use serde_json::{Value, json};
use sidestream_program::{Expect, Expected, Limits, parse};

/// Checks a file with this text, which is called `FILE` in the output.
fn checked(text: &str, options: &[&str]) -> Ran {
    ran_on("check", text, options)
}

/// Checks the exit code and the output for a program.
#[track_caller]
fn check(text: &str, code: i32, expected: &str) {
    let ran = checked(text, &[]);
    assert_eq!(ran.err, "");
    assert_eq!((ran.out.as_str(), ran.code), (expected, code));
}

const CLEAN: &str = "\
name: clean
ops:
- {do: kernel, s: s1, w: [A]}
- {do: wait_stream, s: s2, src: s1}
- {do: kernel, s: s2, r: [A]}
";
const RACE: &str = "\
name: race
ops:
- {do: kernel, s: s1, w: [A], site: produce}
- {do: kernel, s: s2, r: [A]}
";
const LEFT_OPEN: &str = "\
name: left_open
ops:
- {do: kernel, s: s1, w: [A]}
- {do: copy_async, s: s1, from: A, to: P}
- {do: host_read, buf: P}
";
const REFUSED: &str = "\
name: refused
ops:
- {do: record, ev: e, s: s1}
- {do: elapsed, a: e, b: f}
";
const BAD: &str = "\
name: bad
ops:
- {do: kernel, s: fast, w: [A]}
";

#[test]
fn a_program_in_order_is_clean() {
    check(CLEAN, 0, "FILE: clean: no race\n");
}

#[test]
fn a_race_names_both_ops_and_a_call_that_orders_them() {
    check(
        RACE,
        1,
        "\
FILE: race: 1 race

  RAW on A: the second may read before the first has written.
    op 0 (line 3) on s1: kernel, s: s1, w: [A], site: produce
    op 1 (line 4) on s2: kernel, s: s2, r: [A]
    nothing makes s2 wait for s1
  fix: - {do: wait_stream, s: s2, src: s1}   before op 1 (line 4)

  Fix it and check again: it may hide other races.
",
    );
}

#[test]
fn a_wait_that_is_too_old_is_reported() {
    let text = "\
name: too_old
ops:
- {do: kernel, s: s1, w: [A]}
- {do: record, ev: e, s: s1}
- {do: kernel, s: s1, w: [B]}
- {do: wait, s: s2, ev: e}
- {do: kernel, s: s2, r: [A, B]}
";
    check(
        text,
        1,
        "\
FILE: too_old: 1 race

  RAW on B: the second may read before the first has written.
    op 2 (line 5) on s1: kernel, s: s1, w: [B]
    op 4 (line 7) on s2: kernel, s: s2, r: [A, B]
    s2 waits for s1 only up to op 1
  fix: - {do: wait_stream, s: s2, src: s1}   before op 4 (line 7)

  Fix it and check again: it may hide other races.
",
    );
}

#[test]
fn races_that_cuda_leaves_open_are_not_errors() {
    check(
        LEFT_OPEN,
        4,
        "\
FILE: left_open: 1 race that CUDA leaves open, 1 remark

  HOST_RAW on P: the host reads and the device writes, in no defined order. CUDA leaves open whether the call waits.
    op 1 (line 4) on s1: copy_async, s: s1, from: A, to: P
    op 2 (line 5) on t0: host_read, buf: P
    nothing makes t0 wait for s1
  fix: - {do: sync_stream, st: s1}   before op 2 (line 5)

  UNPINNED_ASYNC_COPY: a copy of pageable memory may block the host and does not overlap; use pinned memory
    op 1 (line 4): copy_async, s: s1, from: A, to: P

  Fix it and check again: it may hide other races.
",
    );
}

#[test]
fn a_call_that_cuda_refuses_ends_the_check() {
    check(
        REFUSED,
        3,
        "\
FILE: refused: 1 call fails

  this call fails, and the check ends there
    op 1 (line 4): elapsed, a: e, b: f
  InvalidResourceHandle (400, R11): an event has never been recorded; record both first
",
    );
}

#[test]
fn a_program_that_breaks_the_format_says_where_and_what_to_write() {
    check(
        BAD,
        2,
        "FILE: bad: line 3, op 0 (`kernel`), field `s`: stream `fast` is not declared; declare it under `streams:` or use `s0` to `s99`\n",
    );
}

#[test]
fn remarks_alone_are_not_a_race() {
    let text = "\
name: waits_for_nothing
ops:
- {do: wait, s: s1, ev: e}
";
    check(
        text,
        0,
        "\
FILE: waits_for_nothing: no race, 1 remark

  WAIT_ON_UNRECORDED_EVENT: the event has not been recorded yet, so this waits for nothing; record it first
    op 0 (line 3): wait, s: s1, ev: e
",
    );
}

/// Returns the programs above as one file, in the order of their letters.
fn cases(letters: &str) -> String {
    let indented = letters.chars().map(|letter| {
        let text = match letter {
            'c' => CLEAN,
            'r' => RACE,
            'o' => LEFT_OPEN,
            'f' => REFUSED,
            _ => BAD,
        };
        format!("- {}\n", text.trim_end().replace('\n', "\n  "))
    });
    format!("cases:\n{}", indented.collect::<String>())
}

#[test]
fn of_several_outcomes_the_exit_code_is_the_first_of_2_1_3_4() {
    for (letters, code) in [
        ("c", 0),
        ("co", 4),
        ("oc", 4),
        ("cof", 3),
        ("foc", 3),
        ("cofr", 1),
        ("rofc", 1),
        ("cofrb", 2),
        ("brofc", 2),
        ("cb", 2),
        ("fb", 2),
    ] {
        let ran = checked(&cases(letters), &[]);
        assert_eq!(ran.code, code, "{letters} in one file: {}", ran.out);
        let names: Vec<String> = letters
            .chars()
            .map(|c| file(cases(&c.to_string())))
            .collect();
        let mut args = vec!["check"];
        args.extend(names.iter().map(String::as_str));
        assert_eq!(sidestream(&args).code, code, "{letters} in several files");
    }
}

#[test]
fn a_program_in_python_or_rust_is_sent_to_the_right_check() {
    let ran = sidestream(&["check", "train.py"]);
    assert_eq!(ran.code, 2);
    assert_eq!(
        ran.err,
        "sidestream: train.py is a Python program, and this command checks stream programs; \
         `python -m sidestream.check train.py` checks a PyTorch program\n"
    );
    let ran = sidestream(&["check", "src/main.rs"]);
    assert_eq!(ran.code, 2);
    assert_eq!(
        ran.err,
        "sidestream: src/main.rs is a Rust program, and this command checks stream programs; in it, \
         `device.checked` checks a program while it runs, and `device.record` writes an op log, which this command checks \
         too (docs/guide/rust.md)\n"
    );
}

#[test]
fn one_file_that_cannot_be_read_does_not_keep_the_others_from_being_checked() {
    let (clean, race) = (file(CLEAN), file(RACE));
    let ran = sidestream(&["check", &clean, "nowhere.yaml", &race]);
    assert_eq!(ran.code, 2);
    assert_eq!(
        ran.err,
        "sidestream: cannot read nowhere.yaml: No such file or directory (os error 2)\n"
    );
    let heads: Vec<&str> = ran
        .out
        .lines()
        .filter(|line| line.contains(".yaml"))
        .collect();
    assert_eq!(
        heads,
        [
            format!("{clean}: clean: no race"),
            format!("{race}: race: 1 race")
        ]
    );
}

#[test]
fn the_json_of_a_program_is_as_the_format_says() {
    let ran = checked(&cases("brofc"), &["--json"]);
    assert_eq!((ran.code, ran.err.as_str()), (2, ""));
    let objects: Vec<Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON on every line"))
        .collect();
    let expected = [
        json!({"name": "bad", "verdict": "error", "races": [], "lints": [],
               "error": {"at": 0, "code": "BadProgram"},
               "why": "line 4, op 0 (`kernel`), field `s`: stream `fast` is not declared; declare it under `streams:` or use `s0` to `s99`"}),
        json!({"name": "race", "verdict": "race",
               "races": [{"kind": "RAW", "buffer": "A", "first": 0, "second": 1,
                          "severity": "error", "streams": ["s1", "s2"],
                          "fix": "wait_stream s=s2 src=s1 before 1",
                          "count": 1, "sites": ["produce", null]}],
               "lints": [], "error": null}),
        json!({"name": "left_open", "verdict": "race",
               "races": [{"kind": "HOST_RAW", "buffer": "P", "first": 1, "second": 2,
                          "severity": "warn", "streams": ["s1", "t0"],
                          "fix": "sync_stream st=s1 before 2",
                          "count": 1, "sites": [null, null],
                          "doubt": "CUDA leaves open whether the call waits"}],
               "lints": [{"code": "UNPINNED_ASYNC_COPY", "op": 1}], "error": null}),
        json!({"name": "refused", "verdict": "error", "races": [], "lints": [],
               "error": {"at": 1, "code": "InvalidResourceHandle"},
               "why": "InvalidResourceHandle (400, R11): an event has never been recorded; record both first"}),
        json!({"name": "clean", "verdict": "clean", "races": [], "lints": [], "error": null}),
    ];
    let with_schema = expected.map(|mut object: Value| {
        object["schema"] = "sidestream.check/1".into();
        object
    });
    assert_eq!(objects, with_schema);
}

#[test]
fn pairs_of_the_same_call_sites_are_one_entry_and_sorted() {
    let text = "\
name: loop
ops:
- {do: kernel, s: s1, w: [A], site: produce}
- {do: kernel, s: s2, r: [A, B], site: consume}
- {do: kernel, s: s1, w: [A], site: produce}
- {do: kernel, s: s2, r: [A, B], site: consume}
- {do: kernel, s: s3, w: [B]}
";
    let ran = checked(text, &["--json"]);
    let json: Value = serde_json::from_str(&ran.out).expect("JSON");
    let races = json["races"].as_array().expect("a list");
    let pairs: Vec<_> = races
        .iter()
        .map(|race| (race["second"].as_u64(), race["first"].as_u64()))
        .collect();
    assert!(pairs.is_sorted(), "{pairs:?}");
    let raw: Vec<_> = races.iter().filter(|race| race["kind"] == "RAW").collect();
    assert_eq!(raw.len(), 1);
    assert_eq!(raw[0]["sites"], json!(["produce", "consume"]));
    assert!(raw[0]["count"].as_u64() >= Some(2), "{}", raw[0]);
    let text = checked(text, &[]).out;
    assert!(text.contains("of the same two call sites\n"), "{text}");
}

// ------------------------------------------------------------------ programs with an `expect`

/// Returns why a result of the checker differs from what a program expects.
fn faults(expect: &Expect, json: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let races = json["races"].as_array().expect("a list");
    let lints = json["lints"].as_array().expect("a list");
    let mut hold = |holds: bool, what: &str| {
        if !holds {
            faults.push(format!("{what}: {json}"));
        }
    };
    for key in [
        "kind", "buffer", "first", "second", "severity", "streams", "fix",
    ] {
        hold(races.iter().all(|race| race.get(key).is_some()), key);
    }
    let (verdict, error) = match &expect.verdict {
        Expected::Clean => ("clean", Value::Null),
        Expected::Race {
            must,
            severity,
            distinct,
        } => {
            let severity = severity.name();
            for pair in must {
                let matches = |race: &&Value| {
                    race["kind"] == pair.kind.code()
                        && race["buffer"].as_str() == pair.buffer.as_deref()
                        && race["first"].as_u64() == Some(pair.first as u64)
                        && race["second"].as_u64() == Some(pair.second as u64)
                };
                hold(
                    races
                        .iter()
                        .any(|race| matches(&race) && race["severity"] == severity),
                    &format!("{pair:?}"),
                );
            }
            let all = races.iter().all(|race| race["severity"] == severity);
            hold(all, "every severity");
            hold(distinct.is_none_or(|n| races.len() as u64 == n), "distinct");
            ("race", Value::Null)
        }
        Expected::Error { at, code } => ("error", json!({"at": at, "code": code.name()})),
    };
    hold(verdict == "race" || races.is_empty(), "no race");
    hold(json["verdict"] == verdict, "verdict");
    hold(
        json["error"]["at"] == error["at"] && json["error"]["code"] == error["code"],
        "error",
    );
    let found: BTreeSet<&str> = lints
        .iter()
        .filter_map(|lint| lint["code"].as_str())
        .collect();
    let wanted: BTreeSet<&str> = expect.lints.iter().map(|lint| lint.code()).collect();
    hold(found == wanted, "lints");
    faults
}

/// Checks every program of a folder; returns how many there were.
#[track_caller]
fn judge(folder: &str) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(&folder).expect("the folder is there");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("readable").path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "yaml"));
    files.sort();
    let mut args = vec![PathBuf::from("check"), PathBuf::from("--json")];
    args.extend(files.iter().cloned());
    let ran = sidestream(&args);
    assert_eq!(ran.err, "");
    let mut lines = ran.out.lines();
    let mut wrong = Vec::new();
    for path in &files {
        let text = std::fs::read_to_string(path).expect("readable");
        let document = parse(&text, &Limits::default()).expect("a document");
        for program in &document.programs {
            let (name, expect) = match program {
                Ok(program) => (Some(program.name.as_str()), program.expect.as_ref()),
                Err(bad) => (bad.name.as_deref(), bad.expect.as_ref()),
            };
            let line = lines.next().expect("a line for each program");
            let json: Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(json["name"].as_str(), name);
            let expect = expect.unwrap_or_else(|| panic!("{name:?} expects nothing"));
            wrong.extend(faults(expect, &json));
        }
    }
    assert_eq!(lines.next(), None);
    assert!(
        wrong.is_empty(),
        "{} faults:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    files.len()
}

#[test]
fn every_example_is_judged_as_it_says() {
    assert!(judge("../../examples/streams") >= 80);
}

#[test]
fn every_litmus_program_is_judged_as_it_says() {
    assert!(judge("../sidestream-program/tests/data/litmus") >= 14);
}

/// Vector clocks with an entry for every stream and thread would take seven gigabytes here.
#[test]
#[cfg(target_os = "linux")]
fn tens_of_thousands_of_threads_and_streams() {
    const MANY: usize = 60_000;
    let threads = (0..MANY).map(|n| {
        format!(
            "- {{do: wait_flag, flag: f{n}, t: t{n}}}\n- {{do: set_flag, flag: f{}, t: t{n}}}\n",
            n + 1
        )
    });
    let threads = format!(
        "name: threads\nops:\n- {{do: host_write, buf: H, t: t0}}\n- {{do: set_flag, flag: f0, t: t0}}\n{}\
         - {{do: host_read, buf: H, t: t{}}}\n",
        threads.collect::<String>(),
        MANY - 1
    );
    let declared = (0..MANY).map(|n| format!("b{n}: blk, "));
    let work = (0..MANY).map(|n| {
        let legacy = "- {do: memset_async, s: d, to: Z}\n";
        format!("- {{do: kernel, s: b{n}, w: [A]}}\n{legacy}")
    });
    let streams = format!(
        "name: streams\nstreams: {{{}d: legacy}}\nops:\n{}",
        declared.collect::<String>(),
        work.collect::<String>()
    );
    for text in [threads, streams] {
        let script = format!(
            "ulimit -v 1000000; exec {} check {}",
            env!("CARGO_BIN_EXE_sidestream"),
            file(text)
        );
        let output = std::process::Command::new("bash")
            .args(["-c", &script])
            .current_dir(crate::command::FOLDER)
            .output()
            .expect("bash");
        let said = String::from_utf8_lossy(&output.stdout);
        let first = said.lines().next().unwrap_or_default();
        assert!(first.contains("no race"), "{first}{output:?}");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}
