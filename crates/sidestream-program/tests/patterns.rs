//! The page of patterns agrees with the programs: each has the verdict that it expects, and the times in the table
//! are those of the simulated H200.

use std::path::Path;

use sidestream::engine::Profile;
use sidestream::sim::Schedule;
use sidestream_program::{Program, parse, run};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn the_times_in_the_table_are_those_of_the_simulator() {
    let page = read(&Path::new(ROOT).join("docs/guide/patterns.md"));
    let mut compared = 0;
    for row in page.lines().filter(|line| line.starts_with('|')) {
        let programs: Vec<&str> = row
            .split("(../examples/streams/")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
            .collect();
        if programs.is_empty() {
            continue;
        }
        let cell = row
            .trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap_or_default();
        let times = programs.iter().map(|name| format!("{} µs", time_us(name)));
        let wanted = times.collect::<Vec<_>>().join(" → ");
        assert_eq!(cell.trim(), wanted, "in the row of {}", programs[0]);
        compared += 1;
    }
    assert!(compared > 40, "the table was found");
}

fn time_us(name: &str) -> u64 {
    let text = read(&Path::new(ROOT).join("examples/streams").join(name));
    let document = parse(&text, &Default::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let program: &Program = document.programs[0]
        .as_ref()
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let ran = run(program, &Profile::h200(), Schedule::InOrder, false)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    (ran.trace(program).end_ns() as f64 / 1e3).round() as u64
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
