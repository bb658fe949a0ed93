//! Tests `sidestream check -- PROGRAM` with programs that launch graphs.

use std::path::Path;

use crate::program::{compiled, linked, listened, listened_by};

/// Runs the program of graphs as it is and repaired, and compares the parts of the report about the first.
#[track_caller]
fn check(what: &str, parts: &[&str]) {
    let program = compiled("graphs.c");
    let racy = listened(&["check"], &program, &[what]);
    assert_eq!((racy.code, racy.err.as_str()), (1, ""), "{}", racy.out);
    for part in parts {
        assert!(racy.out.contains(part), "{part}: {}", racy.out);
    }
    clean(&[what, "repaired"]);
}

#[track_caller]
fn clean(arguments: &[&str]) {
    let ran = listened(&["check"], &compiled("graphs.c"), arguments);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    assert!(ran.out.contains("no race\n"), "{}", ran.out);
}

#[test]
fn graphs_that_write_the_same_memory_race_unless_their_launches_are_ordered() {
    check(
        "replays",
        &["cuGraphLaunch", "nothing makes stream 1 [graphs.c:"],
    );
    clean(&["itself"]);
}

#[test]
fn a_copy_into_the_input_of_a_graph_races_with_its_launch() {
    check(
        "input",
        &["WAR on", "cuGraphLaunch", "cuMemcpyHtoDAsync_v2"],
    );
}

#[test]
fn nodes_of_one_graph_race_unless_they_depend_on_each_other() {
    let branches = "nothing makes another branch of the graph wait for one branch of a graph";
    check(
        "forks",
        &["1 race", "WAW on", "at cuMemsetD8Async", branches],
    );
    check(
        "built",
        &["RAW on", "at cuGraphAddMemsetNode", "at scale", branches],
    );
}

#[test]
fn an_update_changes_what_launches_do() {
    check(
        "update",
        &["RAW on", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2"],
    );
}

#[test]
fn nodes_of_all_kinds_touch_what_they_say() {
    let options = ["-shared", "-fPIC", "-DLIBRARY"];
    let library = linked("told.c", Path::new("-lc"), &options);
    let program = linked("told.c", &library, &["-rdynamic"]);
    let run = |arguments: &[&str]| listened_by(library.clone(), &["check"], &program, arguments);
    for (what, expected) in [
        ("body", "1 race, 1 race if its kernel writes"),
        ("conditional", "1 race if its kernel writes"),
        ("child", "1 race"),
        ("clone", "1 race"),
        ("kernel", "1 race"),
        ("alloc", "2 races"),
        ("freed", "2 races"),
        ("event", "1 race"),
        ("info", "1 race"),
        ("edges", "1 race"),
    ] {
        let (racy, repaired) = (run(&[what]), run(&[what, "repaired"]));
        let (out, line) = (&racy.out, format!("calls, {expected}"));
        assert!(out.contains(&line), "{what}: {out}{}", racy.err);
        assert!(
            repaired.out.contains("calls, no race"),
            "{what}: {}",
            repaired.out
        );
    }
}
