//! Whether a check found what a program expects.

use std::collections::BTreeSet;

use sidestream::check::{Race, Verdict};

use crate::check::Checked;
use crate::expect::{Expect, Expected};

/// In what a check differs from what a program expects, one line each; empty if in nothing.
pub fn unmet(expect: &Expect, checked: &Checked) -> Vec<String> {
    let (report, names) = (&checked.report, &checked.names);
    let mut unmet = Vec::new();
    let wanted = match &expect.verdict {
        Expected::Clean => Verdict::Clean,
        Expected::Race { .. } => Verdict::Race,
        Expected::Error { .. } => Verdict::Error,
    };
    let found = report.verdict();
    if found != wanted {
        unmet.push(format!(
            "the check says {}, expected is {}",
            found.name(),
            wanted.name()
        ));
    }
    if let Expected::Race {
        must,
        severity,
        distinct,
    } = &expect.verdict
    {
        for pair in must {
            let is_pair = |race: &&Race| {
                let buffer = race.buffer.map(|buffer| names.buffer(buffer));
                let ops = (race.first.0 as usize, race.second.0 as usize);
                race.kind == pair.kind && ops == (pair.first, pair.second) && buffer == pair.buffer
            };
            let found = report.races.iter().find(is_pair);
            if found.is_none_or(|race| race.severity != *severity) {
                let (kind, severity) = (pair.kind.code(), severity.name());
                unmet.push(format!(
                    "no {kind} of severity {severity} between ops {} and {} was found",
                    pair.first, pair.second
                ));
            }
        }
        let entries = report.races.len() as u64;
        if let Some(distinct) = distinct.filter(|&distinct| distinct != entries) {
            unmet.push(format!(
                "{entries} races were found, expected are {distinct}"
            ));
        }
    }
    let found: BTreeSet<&str> = report.lints.iter().map(|lint| lint.code.code()).collect();
    let wanted: BTreeSet<&str> = expect.lints.iter().map(|lint| lint.code()).collect();
    for code in wanted.difference(&found) {
        unmet.push(format!("{code} was expected and is not remarked on"));
    }
    for code in found.difference(&wanted) {
        unmet.push(format!("{code} is remarked on and was not expected"));
    }
    unmet
}
