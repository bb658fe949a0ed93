//! Tests `sidestream check --suppress`: known findings are left out, and no others.

use std::path::Path;

use serde_json::{Value, json};

use crate::command::{FOLDER, Ran, sidestream};
use crate::input::file;

/// Two races: on A, and on B.
const TWO: &str = "\
name: two
ops:
- {do: kernel, s: s1, w: [A]}
- {do: kernel, s: s2, r: [A]}
- {do: kernel, s: s3, w: [B]}
- {do: kernel, s: s4, r: [B]}
";

/// Checks `TWO`, called `FILE`, with these suppressions, which may name `FILE` too.
fn checked(known: &str, options: &[&str]) -> Ran {
    checked_of(TWO, known, options)
}

fn checked_of(program: &str, known: &str, options: &[&str]) -> Ran {
    let program = file(program);
    let known = file(known.replace("FILE", &program));
    let mut ran = sidestream(&[&["check", "--suppress", &known], options, &[&program]].concat());
    for text in [&mut ran.out, &mut ran.err] {
        *text = text.replace(&program, "FILE").replace(&known, "KNOWN");
    }
    ran
}

#[test]
fn a_line_of_either_op_leaves_its_race_out_and_no_other() {
    for line in [3, 4] {
        let ran = checked(
            &format!("# seen in May\n\nFILE:{line} a lock orders them\n"),
            &[],
        );
        assert_eq!((ran.code, ran.err.as_str()), (1, ""), "{}", ran.out);
        assert!(
            ran.out.starts_with("FILE: two: 1 race\n\n  RAW on B"),
            "{}",
            ran.out
        );
        let said = format!("\n  suppressed: 1 finding: FILE:{line} (a lock orders them)\n");
        assert!(ran.out.ends_with(&said), "{}", ran.out);
    }
    let both = checked("FILE:3 one\nFILE:6 other\n", &[]);
    assert_eq!((both.code, both.err.as_str()), (0, ""), "{}", both.out);
    let begin = "FILE: two: no race besides 2 suppressed findings\n";
    assert!(both.out.starts_with(begin), "{}", both.out);
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_line() {
    let twice = checked("\u{feff}FILE:3 one\nFILE:4 again\nFILE:5 other\n", &[]);
    assert_eq!((twice.code, twice.err.as_str()), (0, ""), "{}", twice.out);
    // Two suppressions of one finding are one finding.
    assert!(twice.out.contains("besides 2 suppressed"), "{}", twice.out);
}

#[test]
fn data_counts_what_each_suppression_left_out() {
    let ran = checked("FILE:3 one\nother.yaml:6 gone\n", &["--json"]);
    let data: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(data["races"].as_array().map(Vec::len), Some(1), "{data}");
    assert_eq!(
        data["suppressed"],
        json!([{"place": "FILE:3", "reason": "one", "findings": 1},
               {"place": "other.yaml:6", "reason": "gone", "findings": 0}])
    );
    let unused = "these suppressions matched nothing; correct or remove them: names and path components match whole";
    let entry = "KNOWN:2: other.yaml:6 (gone)";
    assert_eq!(ran.err, format!("sidestream: {unused}: {entry}\n"));
}

#[test]
fn the_end_of_a_path_is_a_whole_name() {
    let folder = Path::new(FOLDER).file_name().expect("a name");
    let folder = folder.display();
    for (known, code) in [
        (format!("./{folder}/FILE:3 one\n{folder}/FILE:5 other"), 0),
        ("ILE:3 one\nFILE:50 other".to_owned(), 1),
        ("elsewhere/FILE:3 one\nelsewhere/FILE:5 other".to_owned(), 1),
    ] {
        let ran = checked(&known, &[]);
        assert_eq!(ran.code, code, "{known}: {}", ran.out);
        assert_eq!(ran.err.is_empty(), code == 0, "{}", ran.err);
    }
}

#[test]
fn ops_of_one_site_are_one_finding_which_has_no_line() {
    let program = "\
name: one_site
ops:
- {do: kernel, s: s1, w: [A], site: fill}
- {do: kernel, s: s2, r: [A], site: use}
- {do: kernel, s: s1, w: [A], site: fill}
";
    let line = checked_of(program, "FILE:3 known", &[]);
    assert_eq!(line.code, 1, "{}", line.out);
    for (known, code) in [
        ("kernel:fill known", 0),
        ("kernel:fill() it is known: in fill:3 of it", 0),
        ("kernel:ill known", 1),
        ("kernel:app::fill known", 1),
    ] {
        assert_eq!(checked_of(program, known, &[]).code, code, "{known}");
    }
}

#[test]
fn what_was_not_checked_leaves_open_which_are_unused() {
    let ran = checked("other.yaml:6 gone", &["missing.yaml"]);
    assert_eq!(ran.code, 2);
    assert!(!ran.err.contains("matched nothing"), "{}", ran.err);
    let refused = "name: x\nops:\n- {do: record, ev: e, s: s1}\n- {do: elapsed, a: e, b: f}\n";
    let ran = checked_of(refused, "FILE:3 gone", &[]);
    assert_eq!((ran.code, ran.err.as_str()), (3, ""), "{}", ran.out);
}

#[test]
fn a_line_that_is_no_suppression_is_named_with_what_to_write() {
    for (line, why) in [
        ("FILE:9", "say after FILE:9 why it is not a race"),
        ("a.py:0 see b.py:3 too", "a.py:0: lines are counted from 1"),
        ("kernel:f()", "say after kernel:f() why it is not a race"),
        (
            "FILE nine",
            "'FILE nine' is not a suppression; write FILE:LINE REASON, function:NAME REASON or kernel:NAME REASON",
        ),
        (
            "function: nine",
            "'function: nine' is not a suppression; write FILE:LINE REASON, function:NAME REASON or kernel:NAME REASON",
        ),
    ] {
        let ran = checked(&format!("FILE:3 one\n{line}\n"), &[]);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""));
        assert_eq!(ran.err, format!("sidestream: KNOWN:2: {why}\n"));
    }
    let ran = sidestream(&["check", "--suppress", "nowhere", "x.yaml"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("cannot read nowhere"), "{}", ran.err);
    let text = sidestream(&["check", "--suppress", &file("a:1 x"), &file(TWO), "text.md"]);
    assert_eq!((text.code, text.out.as_str()), (2, ""));
    let says = "text.md is a Markdown file, and Markdown files cannot have suppressions";
    assert!(text.err.contains(says), "{}", text.err);
}

#[cfg(target_os = "linux")]
mod program {
    use super::*;
    use crate::program::{compiled, listened};

    /// Checks `waits.c`, which has two races: of the upload in line 29, with the launch and with the download.
    fn listened_with(known: &str, options: &[&str]) -> Ran {
        let known = file(known);
        let all = [&["check", "--suppress", &known], options].concat();
        listened(&all, &compiled("waits.c"), &[])
    }

    const NONE: &str = "no race besides 2 suppressed findings";

    #[test]
    fn a_program_is_left_out_by_lines_kernels_and_functions() {
        for (known, left) in [
            ("waits.c:33 it is", "1 race"),
            ("kernel:scale it is", "1 race"),
            ("tests/programs/waits.c:29 it is", NONE),
            ("function:main it is", NONE),
            ("function:main() it is", NONE),
            ("waits.c:28 it is", "2 races"),
            ("aits.c:29 it is", "2 races"),
            ("elsewhere/waits.c:29 it is", "2 races"),
            ("kernel:scal it is", "2 races"),
            ("kernel:main it is", "2 races"),
            ("function:ain it is", "2 races"),
            ("kernel:(anonymous namespace)::scale it is", "2 races"),
        ] {
            let ran = listened_with(known, &[]);
            assert_eq!(ran.code, i32::from(left != NONE), "{known}: {}", ran.out);
            assert!(
                ran.out.contains(&format!("calls, {left}\n")),
                "{known}: {}",
                ran.out
            );
            let is_used = left != "2 races";
            assert_eq!(ran.out.contains("(it is)"), is_used, "{known}: {}", ran.out);
            assert_eq!(
                ran.err.contains("(it is)"),
                !is_used,
                "{known}: {}",
                ran.err
            );
        }
    }

    #[test]
    fn the_stacks_and_data_of_a_program_have_what_is_left() {
        let stacks = listened_with("function:main it is", &["--stacks"]);
        assert!(!stacks.out.contains("in main()"), "{}", stacks.out);
        let data = listened_with("kernel:scale it is", &["--json"]);
        let data: Value =
            serde_json::from_str(data.out.lines().last().expect("a line")).expect("JSON");
        assert_eq!(data["races"].as_array().map(Vec::len), Some(1), "{data}");
        assert_eq!(data["suppressed"][0]["findings"], 1, "{data}");
    }

    #[test]
    fn the_log_of_a_program_has_the_innermost_line_and_the_kernel() {
        let log = format!("{FOLDER}/suppressed_program.log");
        listened(&["record", "-o", &log], &compiled("waits.c"), &[]);
        for (known, code) in [
            ("kernel:scale it is\nwaits.c:36 it is", 0),
            ("function:main it is", 0),
            ("kernel:scale it is\nwaits.c:37 it is", 1),
        ] {
            let known = file(known);
            let ran = sidestream(&["check", "--suppress", &known, &log]);
            assert_eq!(ran.code, code, "{}", ran.out);
        }
    }
}
