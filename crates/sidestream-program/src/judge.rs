//! Compares a check with what its program expects.

use std::collections::BTreeSet;

use sidestream::check::{Race, Verdict};

use crate::check::Checked;
use crate::expect::{Expect, Expected};

/// Returns the differences between a check and what its program expects, one line each; empty if there are none.
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
            "the check says {}, but {} is expected",
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
            if found.is_none_or(|race| race.severity() != *severity) {
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
                "{entries} races were found, but {distinct} are expected"
            ));
        }
    }
    let found: BTreeSet<&str> = report.lints.iter().map(|lint| lint.code.code()).collect();
    let wanted: BTreeSet<&str> = expect.lints.iter().map(|lint| lint.code()).collect();
    for code in wanted.difference(&found) {
        unmet.push(format!("{code} was expected but not reported"));
    }
    for code in found.difference(&wanted) {
        unmet.push(format!("{code} was reported but not expected"));
    }
    unmet
}
