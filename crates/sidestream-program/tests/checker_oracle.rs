//! The checker against the oracle, which looks at all pairs, on random programs and on the samples.

mod oracle;

use oracle::compare::{Printed, PrintedRace, faults};
use oracle::generate::{Options, random_prog};
use oracle::model::judge;
use oracle::prog::Prog;
use serde_json::Value;
use sidestream_program::{Program, check, checked_json};

const PROGRAMS: u64 = 20_000;

#[test]
fn the_checker_agrees_with_the_oracle() {
    println!("seeds 0..{PROGRAMS}, options drawn from each seed");
    for seed in 0..PROGRAMS {
        let options = Options::from_seed(seed);
        let prog = random_prog(seed, &options);
        let faults = judged(&prog, &prog.to_program());
        assert!(
            faults.is_empty(),
            "seed {seed}, {options:?}\n{}\n{}",
            faults.join("\n"),
            prog.to_yaml()
        );
    }
}

#[test]
fn the_checker_agrees_with_the_oracle_on_the_samples() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/litmus");
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).expect("the samples are there") {
        let text = std::fs::read_to_string(entry.expect("readable").path()).expect("readable");
        let document = sidestream_program::parse(&text, &Default::default()).expect("well formed");
        for program in document.programs {
            let program = program.expect("well formed");
            let faults = judged(&Prog::from_program(&program), &program);
            assert!(faults.is_empty(), "{}: {}", program.name, faults.join("\n"));
            compared += 1;
        }
    }
    assert!(compared >= 14);
}

/// What is wrong in what the checker prints about a program.
fn judged(prog: &Prog, program: &Program) -> Vec<String> {
    let answer = judge(prog);
    if !answer.outside.is_empty() {
        return Vec::new();
    }
    faults(&answer, &printed(&checked_json(&check(program))))
}

fn printed(answer: &Value) -> Printed {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let number = |value: &Value| value.as_u64().expect("a number") as usize;
    let list = |key: &str| answer[key].as_array().expect("a list").clone();
    let error = &answer["error"];
    Printed {
        verdict: text(&answer["verdict"]),
        races: list("races")
            .iter()
            .map(|race| PrintedRace {
                kind: text(&race["kind"]),
                buffer: race["buffer"].as_str().map(str::to_owned),
                first: number(&race["first"]),
                second: number(&race["second"]),
                severity: text(&race["severity"]),
            })
            .collect(),
        lints: list("lints")
            .iter()
            .map(|lint| (text(&lint["code"]), number(&lint["op"])))
            .collect(),
        error: (!error.is_null()).then(|| (number(&error["at"]), text(&error["code"]))),
    }
}
