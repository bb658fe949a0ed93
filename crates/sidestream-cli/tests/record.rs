//! Tests the record of a run, as an op log or inside a trace: checking it finds what checking the program finds. Also tests
//! `run --explore`, which shows a race as two results.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{FOLDER, sidestream};
use crate::input::file;
use serde_json::Value;

const RACE: &str = "\
name: race
ops:
- {do: kernel, s: s1, w: [A], site: produce}
- {do: kernel, s: s2, r: [A]}
";
const CLEAN: &str = "\
name: clean
ops:
- {do: kernel, s: s1, w: [A]}
- {do: wait_stream, s: s2, src: s1}
- {do: kernel, s: s2, r: [A]}
";

/// Returns the path of a file of [`file`].
fn at(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// Returns the findings of `check --json` in a file, without the file's name and without fields that only a program has.
fn findings(path: &str) -> Vec<Value> {
    let ran = sidestream(&["check", "--json", path]);
    let line: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    let mut races = line["races"].as_array().expect("a list").clone();
    for race in &mut races {
        let race = race.as_object_mut().expect("an object");
        // A log has a string for every call site, and no place to declare streams.
        race.remove("sites");
        race.remove("streams");
        let fix = race["fix"].as_str().expect("a text").to_owned();
        let call = fix.split(" (with").next().unwrap_or_default();
        let names = call.replace("legacy@", "legacy");
        race.insert("fix".to_owned(), names.into());
    }
    let mut found = races;
    found.extend(line["lints"].as_array().expect("a list").clone());
    found.push(line["error"].clone());
    found.push(line["verdict"].clone());
    found
}

#[test]
fn checking_a_log_or_a_trace_finds_what_checking_the_program_finds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/streams");
    let entries = std::fs::read_dir(folder).expect("the examples are there");
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("readable").path()).collect();
    paths.sort();
    let mut compared = 0;
    for path in paths {
        let program = path.to_str().expect("a plain name");
        let (log, trace) = (file(""), file(""));
        sidestream(&["run", program, "--log", &log, "--trace", &trace]);
        let wanted = findings(program);
        assert_eq!(findings(&log), wanted, "the log of {program}");
        assert_eq!(findings(&trace), wanted, "the trace of {program}");
        compared += 1;
    }
    assert!(compared > 100, "only {compared} programs were compared");
}

#[test]
fn a_log_that_was_cut_off_says_what_was_checked() {
    let (program, log) = (file(RACE), file(""));
    sidestream(&["run", &program, "--log", &log]);
    let bytes = std::fs::read(at(&log)).expect("the log is there");
    std::fs::write(at(&log), &bytes[..bytes.len() - 8]).expect("it can be cut");
    let ran = sidestream(&["check", &log]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains(" before it: "), "{}", ran.err);
    assert!(!ran.out.contains("no race"), "{}", ran.out);
}

#[test]
fn standard_input_is_checked() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sidestream"))
        .args(["check", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(RACE.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.starts_with("-: race: 1 race\n"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn files_that_are_not_programs_are_identified() {
    let (program, log) = (file(RACE), file(""));
    sidestream(&["run", &program, "--log", &log]);
    let says = format!(
        "{log}: the file is an op log, not a trace; `sidestream check {log} --trace OUT.json`"
    );
    let ran = sidestream(&["diagnose", &log]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""));
    assert!(ran.err.contains(&says), "{}", ran.err);
    let cases: [(&str, Vec<u8>, &str); 5] = [
        (
            "run",
            std::fs::read(at(&log)).expect("a log"),
            "but not run again; use `sidestream check ",
        ),
        ("check", vec![0x1f, 0x8b, 8, 0], "`sidestream diagnose "),
        ("check", vec![0x1f, 0x8b, 8, 0], "unpack it"),
        (
            "check",
            b"{\"traceEvents\": []}".to_vec(),
            "carries no op log",
        ),
        (
            "check",
            b"{\"traceEvents\": []}".to_vec(),
            "`sidestream diagnose`",
        ),
    ];
    for (verb, bytes, says) in cases {
        let name = file("");
        std::fs::write(at(&name), bytes).expect("it can be written");
        let ran = sidestream(&[verb, &name]);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""));
        assert!(ran.err.contains(says), "{}", ran.err);
    }
}

#[test]
fn a_run_says_that_a_program_races_and_so_does_its_help() {
    let ran = sidestream(&["run", &file(RACE)]);
    assert!(
        ran.out.contains("  it races: `sidestream check "),
        "{}",
        ran.out
    );
    let help = sidestream(&["run", "--help"]).out;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        help.contains("A run without `expect:` says that the program races"),
        "{help}"
    );
}

#[test]
fn a_text_without_a_program_has_its_line_of_json() {
    let name = file("- [not, a, program");
    let ran = sidestream(&["check", "--json", &name]);
    let line: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(ran.code, 2);
    assert_eq!(line["name"], Value::Null);
    assert_eq!(line["verdict"], "error");
    assert_eq!(line["error"]["code"], "BadProgram");
}

#[test]
fn nothing_is_overwritten_by_mistake() {
    let (program, out) = (file(RACE), file(""));
    for args in [
        ["--log", &program, "--trace", &out],
        ["--log", &out, "--trace", &program],
        ["--log", &out, "--trace", &out],
    ] {
        let ran = sidestream(&[&["run", program.as_str()][..], &args].concat());
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}");
        let text = std::fs::read_to_string(at(&program)).expect("the program is there");
        assert_eq!(text, RACE, "{args:?}");
    }
}

#[test]
fn exploring_shows_a_race_as_two_results() {
    let race = file(RACE);
    let ran = sidestream(&["run", "--explore", "10", "--json", &race]);
    let line: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(ran.code, 1);
    assert_eq!(line["schedules"], 10);
    assert_eq!(line["results"], 2);
    let difference = &line["difference"];
    assert_eq!(
        (&difference["op"], &difference["buffer"]),
        (&1.into(), &"A".into())
    );
    // One of the two results is what op 0 wrote, the other what was there before.
    let writers = difference["written_by"].as_array().expect("two");
    assert!(
        writers.contains(&0.into()) && writers.contains(&Value::Null),
        "{line}"
    );

    let text = sidestream(&["run", "--explore", "10", &race]).out;
    assert!(
        text.contains("what op 0 (kernel, s: s1, w: [A], site: produce) wrote"),
        "{text}"
    );
    assert!(text.contains("what was there before"), "{text}");
}

#[test]
fn exploring_a_program_in_order_finds_one_result() {
    let clean = file(CLEAN);
    let ran = sidestream(&["run", "--explore", "50", &clean]);
    let wanted = "clean: 50 legal schedules, all with the same result\n";
    assert_eq!((ran.code, ran.out.as_str()), (0, wanted));
}
