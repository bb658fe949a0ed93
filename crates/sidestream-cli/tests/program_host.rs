//! Tests `sidestream check -- PROGRAM` with programs whose host touches memory that a copy in flight uses.

use crate::program::{compiled, listened};

/// Returns the place of the line of the program that ends with this comment.
#[track_caller]
fn place(mark: &str) -> String {
    let ends = |line: &str| line.ends_with(&format!("// {mark}"));
    let line = include_str!("programs/host.c").lines().position(ends);
    format!("host.c:{} in", line.expect(mark) + 1)
}

#[track_caller]
fn clean(arguments: &[&str]) {
    let ran = listened(&["check"], &compiled("host.c"), arguments);
    let right = (ran.code, ran.err.as_str()) == (0, "");
    let is_clean = ran.out.starts_with("0 wrong\n") && ran.out.contains("no race\n");
    assert!(right && is_clean, "{arguments:?}: {ran:?}");
}

/// Where nothing is said of the second place, no instruction of the program is heard: its bytes are compared.
#[test]
fn what_the_host_does_to_memory_in_flight_races_unless_it_waits() {
    let program = compiled("host.c");
    for (what, kind, first, second) in [
        ("refill", "HOST_WAR", "upload", "refill"),
        ("early", "HOST_RAW", "download", "early"),
        ("read", "HOST_WAR", "upload", "read"),
        ("registered", "UAF", "upload", "registered"),
        ("part", "HOST_WAR", "upload", ""),
        ("free", "UAF", "batch", "free"),
        ("realloc", "UAF", "batch", "realloc"),
        ("heap", "HOST_WAR", "batch", ""),
        ("loop", "HOST_WAR", "batch", "batch"),
        ("unmap", "UAF", "batch", "unmap"),
        ("stack", "HOST_WAR", "batch", ""),
        ("handler", "HOST_WAR", "upload", "handler"),
    ] {
        let racy = listened(&["check"], &program, &[what]);
        assert_eq!((racy.code, racy.err.as_str()), (1, ""), "{what}: {racy:?}");
        assert!(!racy.out.starts_with("0 wrong"), "{what}: {}", racy.out);
        let mut parts = vec![
            "calls, 1 race\n".to_owned(),
            format!("{kind} on"),
            place(first),
        ];
        if !second.is_empty() {
            parts.push(place(second));
        }
        for part in parts {
            assert!(racy.out.contains(&part), "{what}: {part}: {}", racy.out);
        }
        clean(&[what, "repaired"]);
    }
}

#[test]
fn what_the_host_may_do_meanwhile_is_silent() {
    for what in ["neighbours", "columns", "call", "fork", "function"] {
        clean(&[what]);
        clean(&[what, "repaired"]);
    }
}

#[test]
fn held_back_copies_bring_the_bytes_that_were_written_too_early() {
    let program = compiled("host.c");
    for (what, mark, proof) in [
        ("refill", "refill", "02 arrived"),
        ("read", "read", "02 arrived"),
        ("early", "early", "read 00"),
    ] {
        let racy = listened(&["check", "--provoke"], &program, &[what]);
        let proved = racy.out.lines().find(|line| line.contains("proved: "));
        let proved = proved.unwrap_or_else(|| panic!("{what}: {racy:?}"));
        assert!(proved.contains(&place(mark)), "{what}: {proved}");
        assert!(proved.contains(proof), "{what}: {proved}");
        let repaired = listened(&["check", "--provoke"], &program, &[what, "repaired"]);
        assert_eq!(repaired.code, 0, "{what}: {repaired:?}");
        assert!(!repaired.out.contains("proved"), "{what}: {}", repaired.out);
    }
}
