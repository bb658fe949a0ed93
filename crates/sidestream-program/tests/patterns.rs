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
    let (mut pattern, mut compared) = (String::new(), Vec::new());
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [named, .., time] = cells[..] else {
            continue;
        };
        // The head of a table names the pattern, and its rows the programs of that pattern.
        let names: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
        if time == "time" {
            names[0].clone_into(&mut pattern);
            continue;
        }
        if pattern.is_empty() {
            continue;
        }
        let programs: Vec<String> = names
            .iter()
            .map(|n| format!("{pattern}.{n}.yaml"))
            .collect();
        let times = programs.iter().map(|name| format!("{} µs", time_us(name)));
        let wanted = times.collect::<Vec<_>>().join(" → ");
        assert_eq!(time, wanted, "in the row of {}", programs[0]);
        compared.extend(programs);
    }
    let examples = std::fs::read_dir(Path::new(ROOT).join("examples/streams")).expect("a folder");
    for example in examples {
        let name = example.expect("an entry").file_name();
        let name = name.to_str().expect("a name in UTF-8");
        // Each wrong program has a row.
        let is_wrong = ["racy", "serial", "error"]
            .iter()
            .any(|kind| name.ends_with(&format!(".{kind}.yaml")));
        let has_row = compared.iter().any(|program| program == name);
        assert!(has_row || !is_wrong, "no row has {name}");
    }
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
