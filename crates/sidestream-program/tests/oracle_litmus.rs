//! The oracle gives the answer that each sample program expects.

use std::collections::BTreeSet;
use std::path::Path;

use sidestream::check::Severity;
use sidestream_program::{Expected, Limits, Program, parse};

use crate::oracle::compare::{Printed, faults};
use crate::oracle::model::{self, Outcome, judge};
use crate::oracle::prog::Prog;

#[test]
fn every_sample_is_judged_as_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/litmus");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the samples are there")
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    files.sort();
    assert!(files.len() >= 14, "only {} samples", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a readable sample");
        let document = parse(&text, &Limits::default()).expect("a document");
        for program in document.programs {
            check(&program.expect("a valid sample"));
        }
    }
}

fn check(program: &Program) {
    let name = &program.name;
    let prog = Prog::from_program(program);
    let answer = judge(&prog);
    assert_eq!(answer.outside, [], "{name}");
    let Some(expect) = &program.expect else {
        return;
    };
    let lints: BTreeSet<&str> = answer.lints.iter().map(|l| l.0).collect();
    let expected: BTreeSet<&str> = expect.lints.iter().map(|l| l.code()).collect();
    assert_eq!(lints, expected, "{name}");
    match &expect.verdict {
        Expected::Clean => assert_eq!(answer.outcome, Outcome::Clean, "{name}: {:?}", answer.races),
        Expected::Error { at, code } => {
            assert_eq!(
                answer.error.map(|e| (Some(e.0), e.1)),
                Some((*at, code.name())),
                "{name}"
            );
            assert_eq!(answer.races, [], "{name}");
        }
        Expected::Race {
            must,
            severity,
            distinct,
        } => {
            assert_eq!(answer.outcome, Outcome::Race, "{name}");
            let printed = answer.printed();
            for pair in must {
                let race = printed.iter().find(|r| {
                    r.kind.word() == pair.kind.code()
                        && r.buffer == pair.buffer
                        && (r.first, r.second) == (pair.first, pair.second)
                });
                let race = race.unwrap_or_else(|| panic!("{name}: {pair:?} is missing"));
                assert!(
                    race.adjacent.is_some(),
                    "{name}: {pair:?} every checker has to print it"
                );
                assert_eq!(
                    race.severity == model::Severity::Warn,
                    *severity == Severity::Warn,
                    "{name}: {pair:?}"
                );
            }
            if let Some(distinct) = distinct {
                assert_eq!(printed.len() as u64, *distinct, "{name}");
            }
        }
    }
    assert_eq!(faults(&answer, &Printed::of(&answer)), [""; 0], "{name}");
}
