//! Judges a checker's output. The format leaves a checker some freedom; all of it is defined here.

use std::collections::BTreeSet;

use super::model::{Answer, Race, Severity};

/// An entry of `races`, as printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintedRace {
    pub kind: String,
    pub buffer: Option<String>,
    pub first: usize,
    pub second: usize,
    /// `warn` or `error`.
    pub severity: String,
}

/// The output of a checker for one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    pub verdict: String,
    pub races: Vec<PrintedRace>,
    pub lints: Vec<(String, usize)>,
    pub error: Option<(usize, String)>,
}

impl Printed {
    /// Returns the output of a checker that reports every unordered pair.
    pub fn of(answer: &Answer) -> Printed {
        Printed {
            verdict: answer.outcome.word().to_string(),
            races: answer
                .printed()
                .into_iter()
                .map(|r| PrintedRace {
                    kind: r.kind.word().to_string(),
                    buffer: r.buffer.clone(),
                    first: r.first,
                    second: r.second,
                    severity: severity(r).to_string(),
                })
                .collect(),
            lints: answer
                .lints
                .iter()
                .map(|&(code, op)| (code.to_string(), op))
                .collect(),
            error: answer.error.map(|(at, code)| (at, code.to_string())),
        }
    }
}

fn severity(race: &Race) -> &'static str {
    match race.severity {
        Severity::Warn => "warn",
        Severity::Error | Severity::Either => "error",
    }
}

/// Returns every mistake in the output, one line each; empty if the output is right.
///
/// - Verdict, error and lints must be the oracle's.
/// - Every printed race must be an unordered pair, of a kind that fits it and with its severity, in op order. No two
///   may have the same kind, buffer, sites and severity.
/// - For every pair with an adjacent conflict, a race with the same buffer and the same two sites must be printed, for
///   this pair or an earlier one. Its kind must fit the pair and be at least as strong as that of the adjacent
///   conflict.
pub fn faults(answer: &Answer, printed: &Printed) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |what: &str, right: String, found: String| {
        if right != found {
            faults.push(format!("{what}: {found} printed, {right} is right"));
        }
    };
    expect(
        "verdict",
        answer.outcome.word().to_string(),
        printed.verdict.clone(),
    );
    let right = Printed::of(answer);
    expect(
        "error",
        format!("{:?}", right.error),
        format!("{:?}", printed.error),
    );
    expect(
        "lints",
        format!("{:?}", sorted(&right.lints)),
        format!("{:?}", sorted(&printed.lints)),
    );

    let entry = |p: &PrintedRace| {
        let mut races = answer.races.iter();
        races.find(|r| (r.first, r.second, &r.buffer) == (p.first, p.second, &p.buffer))
    };
    let mut before = None;
    let mut classes = BTreeSet::new();
    for p in &printed.races {
        if before.is_some_and(|b| b > (p.second, p.first)) {
            faults.push(format!("not in op order: {p:?}"));
        }
        before = Some((p.second, p.first));
        let Some(pair) = entry(p) else {
            faults.push(format!("not an unordered conflict: {p:?}"));
            continue;
        };
        if !pair.fits.iter().any(|k| k.word() == p.kind) {
            faults.push(format!("the kind does not fit, {:?} do: {p:?}", pair.fits));
        }
        if p.severity != severity(pair) && pair.severity != Severity::Either {
            faults.push(format!("the severity should be {}: {p:?}", severity(pair)));
        }
        let sites = (&answer.sites[p.first], &answer.sites[p.second]);
        if !classes.insert((&p.kind, &p.buffer, sites, &p.severity)) {
            faults.push(format!("alike to an earlier entry: {p:?}"));
        }
    }

    for pair in &answer.races {
        let Some(adjacent) = pair.adjacent else {
            continue;
        };
        let sites = (&answer.sites[pair.first], &answer.sites[pair.second]);
        let found = printed.races.iter().any(|p| {
            pair.fits.range(..=adjacent).any(|k| k.word() == p.kind)
                && p.buffer == pair.buffer
                // A guess does not stand for a race that is certain.
                && (pair.severity != Severity::Error || !entry(p).is_some_and(|r| r.is_guess))
                && (p.second, p.first) <= (pair.second, pair.first)
                && p.first < answer.sites.len()
                && p.second < answer.sites.len()
                && (&answer.sites[p.first], &answer.sites[p.second]) == sites
        });
        if !found {
            faults.push(format!("missing: {pair:?}"));
        }
    }
    faults
}

fn sorted(lints: &[(String, usize)]) -> Vec<(usize, String)> {
    let mut lints: Vec<(usize, String)> =
        lints.iter().map(|(code, op)| (*op, code.clone())).collect();
    lints.sort();
    lints
}
