//! The checker against the oracle, which tests all pairs, on random programs and on the samples.

use crate::oracle;
use crate::oracle::compare::{Printed, PrintedRace, faults};
use crate::oracle::generate::{Options, random_prog};
use crate::oracle::model::{Answer, judge};
use crate::oracle::prog::Prog;
use crate::oracle::vary::varied;
use serde_json::Value;
use sidestream_program::{Program, check, checked_json};

/// Number of programs of each kind. `checker_broken` says how many of them notice a wrong checker.
fn programs() -> u64 {
    oracle::programs(4_000, 20_000)
}

#[test]
fn the_checker_agrees_with_the_oracle() {
    compare_all(|prog, _| prog);
}

/// The generator writes tidier programs than people do; see `oracle::vary`.
#[test]
fn the_checker_agrees_with_the_oracle_on_varied_programs() {
    compare_all(|prog, seed| varied(&prog, seed));
}

fn compare_all(change: fn(Prog, u64) -> Prog) {
    let programs = programs();
    println!("seeds 0..{programs}, options drawn from each seed");
    let mut wrong = Vec::new();
    let (mut outside, mut pairs, mut adjacent, mut lints, mut errors) = (0, 0, 0, 0, 0);
    for seed in 0..programs {
        let options = Options::from_seed(seed);
        let prog = change(random_prog(seed, &options), seed);
        let answer = judge(&prog);
        if !answer.outside.is_empty() {
            // The format does not define what happens, so there is nothing to compare with.
            outside += 1;
            continue;
        }
        let faults = judged(&answer, &prog.to_program());
        if !faults.is_empty() {
            wrong.push(seed);
            let yaml = prog.to_yaml();
            println!("seed {seed}, {options:?}\n{}\n{yaml}", faults.join("\n"));
        }
        pairs += answer.races.len();
        adjacent += answer.races.iter().filter(|r| r.adjacent.is_some()).count();
        lints += answer.lints.len();
        errors += usize::from(answer.error.is_some());
    }
    println!(
        "{pairs} unordered pairs, {adjacent} of them adjacent, {lints} remarks, {errors} refused \
         calls; {outside} programs not compared"
    );
    assert!(wrong.is_empty(), "the two differ at seeds {wrong:?}");
    assert!(outside * 100 < programs);
    assert!(pairs * 10 > 18 * programs as usize && adjacent * 10 > 9 * programs as usize);
    assert!(lints * 3 > programs as usize && errors * 12 > programs as usize);
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
            let answer = judge(&Prog::from_program(&program));
            assert!(answer.outside.is_empty(), "{}", program.name);
            let faults = judged(&answer, &program);
            assert!(faults.is_empty(), "{}: {}", program.name, faults.join("\n"));
            compared += 1;
        }
    }
    assert!(compared >= 14);
}

/// Returns what is wrong in the checker's output for a program.
/// Returns the mistakes of the checker.
pub fn judged(answer: &Answer, program: &Program) -> Vec<String> {
    faults(answer, &printed(&checked_json(&check(program))))
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
