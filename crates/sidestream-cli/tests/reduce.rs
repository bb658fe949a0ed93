//! Tests `sidestream check --reduce`: a run is cut to the shortest program that still races.

use std::path::Path;

use crate::command::{FOLDER, sidestream};
use crate::input::file;
use sidestream_program::{Limits, parse, record};

const RACE: &str = "\
name: x
ops:
- {do: kernel, s: s1, w: [A]}
- {do: wait_stream, s: s2, src: s1}
- {do: kernel, s: s1, r: [B], w: [A]}
- {do: kernel, s: s2, r: [A]}
";

fn log_of(text: &str) -> Vec<u8> {
    let document = parse(text, &Limits::default()).expect("a document");
    let program = document.programs[0].as_ref().expect("follows the format");
    record(program).expect("a log")
}

#[test]
fn a_log_is_reduced_to_a_program_that_races_and_is_clean_with_its_fix() {
    let (log, left) = (file(log_of(RACE)), "left_of_a_log.yaml");
    let ran = sidestream(&["check", &log, "--reduce", left]);
    assert_eq!((ran.code, ran.err.as_str()), (1, ""));
    let said = format!(
        "{log}: 2 of the 4 operations are left in {left}, with one of the races; `sidestream run {left} --explore 100` \
         shows what it does to the results\n"
    );
    assert!(ran.out.ends_with(&said), "{}", ran.out);
    let text = std::fs::read_to_string(Path::new(FOLDER).join(left)).expect("it was written");
    assert!(
        text.contains("- {do: kernel, s: s1, w: [A]}  # call 2, 1024 bytes: line 5\n"),
        "{text}"
    );

    let checked = sidestream(&["check", left]);
    assert_eq!(checked.code, 1, "{checked:?}");
    let explored = sidestream(&["run", left, "--explore", "20"]);
    assert!(explored.out.contains("with op 0 late"), "{explored:?}");
    let fix = "- {do: wait_stream, s: s2, src: s1}\n";
    assert!(checked.out.contains(fix.trim()), "{checked:?}");
    let second = text.find("- {do: kernel, s: s2").expect("the second op");
    let (before, behind) = text.split_at(second);
    let (behind, _) = behind.split_once("expect:").expect("what is expected");
    let fixed = sidestream(&["check", &file(format!("{before}{fix}{behind}"))]);
    assert_eq!(
        (fixed.code, fixed.out.ends_with("no race\n")),
        (0, true),
        "{fixed:?}"
    );
}

#[test]
fn a_program_is_reduced_as_its_log_is() {
    let ran = sidestream(&[
        "check",
        &file(RACE),
        "--reduce",
        "left_of_a_program.yaml",
        "--json",
    ]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.out.starts_with("{\"schema\"") && ran.out.lines().count() == 1,
        "{ran:?}"
    );
    assert!(
        ran.err
            .contains("2 of the 4 operations are left in left_of_a_program.yaml"),
        "{ran:?}"
    );
    assert_eq!(sidestream(&["check", "left_of_a_program.yaml"]).code, 1);
}

#[test]
fn without_a_race_nothing_is_written() {
    let name = file("name: x\nops:\n- {do: kernel, s: s1, w: [A]}\n");
    let ran = sidestream(&["check", &name, "--reduce", "left_of_nothing.yaml"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.out.ends_with(
            "there is no race to reduce the run to; left_of_nothing.yaml is not written\n"
        )
    );
    assert!(!Path::new(FOLDER).join("left_of_nothing.yaml").exists());
}

#[test]
fn input_that_cannot_be_reduced_is_refused() {
    let (one, two) = (file(RACE), file(RACE));
    let refused = |args: &[&str], why: &str| {
        let ran = sidestream(args);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.err.contains(why), "{ran:?}");
    };
    refused(
        &["check", &one, &two, "--reduce", "x.yaml"],
        "there are several files; give one",
    );
    refused(
        &["check", &one, "--reduce", &one],
        "--reduce would overwrite the file that is checked",
    );
    refused(
        &["check", &one, "--reduce", "no/such/folder.yaml"],
        "--reduce no/such/folder.yaml cannot be written: No such file",
    );
    refused(
        &["check", &one, "--reduce", "x.yaml", "--trace", "x.yaml"],
        "--trace and --reduce name the same file",
    );
    let cases = file("cases:\n- {name: a, ops: []}\n- {name: b, ops: []}\n");
    refused(
        &["check", &cases, "--reduce", "x.yaml"],
        "--reduce takes one program, and `cases` lists several",
    );
}
