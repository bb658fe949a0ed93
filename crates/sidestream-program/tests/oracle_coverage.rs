//! The random programs must cover everything that the format has.

use std::collections::{BTreeMap, HashSet};

use crate::oracle::generate::{Options, random_prog};
use crate::oracle::model::{Outcome, Point, Readings, Severity, judge, judge_with};
use crate::oracle::prog::{Act, Prog};

const SEEDS: u64 = 20_000;

/// Minimum number of occurrences of each feature in all programs together.
const AT_LEAST: [(u64, &[&str]); 5] = [
    (
        3000,
        &[
            "op kernel",
            "op copy_async",
            "op memset_async",
            "op copy",
            "op memset",
            "op host_func",
            "op graph_launch",
            "op record",
            "op wait",
            "op wait_stream",
            "op sync_stream",
            "op sync_event",
            "op sync_device",
            "op query_stream",
            "op query_event",
            "op set_flag",
            "op wait_flag",
            "op host_read",
            "op host_write",
            "op alloc",
            "op free",
            "op record_stream",
            "op malloc_async",
            "op elapsed",
            "op set_device",
            "op begin_capture",
            "op end_capture",
            "verdict clean",
            "verdict race",
            "hazard RAW error",
            "hazard WAR error",
            "hazard WAW error",
        ],
    ),
    (
        400,
        &[
            "op copy_batch",
            "op copy_peer",
            "op cuda_malloc",
            "op cuda_free",
            "op free_pinned",
            "op free_async",
            "op create_event",
            "op destroy_event",
            "op create_stream",
            "op destroy_stream",
            "op pool_get",
            "verdict error",
            "hazard HOST_RAW error",
            "hazard HOST_WAR error",
            "hazard HOST_WAW error",
            "hazard RAW warn",
            "hazard WAR warn",
            "hazard UAF error",
            "hazard UAF warn",
            "hazard UBA error",
            "hazard TIMING error",
            "lint UNPINNED_ASYNC_COPY",
            "lint DEFAULT_STREAM_SERIALIZATION",
            "lint WAIT_ON_UNRECORDED_EVENT",
            "lint FOREIGN_DEVICE_LAUNCH",
            "lint STREAM_POOL_ALIAS",
        ],
    ),
    (
        100,
        &[
            "op sim_hold",
            "op sim_release",
            "op set_capacity",
            "lint SYNC_IN_LOOP",
            "error InvalidResourceHandle elapsed",
            "error StreamCaptureUnsupported query_stream",
            "error StreamCaptureUnjoined end_capture",
            "error StreamCaptureUnmatched end_capture",
            "error IllegalState end_capture",
            "error StreamCaptureIsolation wait",
            "error CapturedEvent query_event",
        ],
    ),
    (
        25,
        &[
            "hazard HOST_RAW warn",
            "hazard HOST_WAR warn",
            "hazard HOST_WAW warn",
            "error InvalidResourceHandle record",
            "error StreamCaptureUnsupported begin_capture",
            "error StreamCaptureUnsupported sync_device",
            "error StreamCaptureUnsupported sync_stream",
            "error StreamCaptureImplicit memset",
            "error StreamCaptureImplicit copy",
            "error StreamCaptureIsolation wait_stream",
            "error StreamCaptureMerge wait",
            "error StreamCaptureMerge wait_stream",
            "error StreamCaptureWrongThread end_capture",
            "error CapturedEvent sync_event",
        ],
    ),
    (
        2,
        &[
            "error StreamCaptureImplicit kernel",
            "error StreamCaptureImplicit memset_async",
            "error StreamCaptureImplicit host_func",
            "error StreamCaptureImplicit graph_launch",
            "error StreamCaptureImplicit record",
            "error StreamCaptureImplicit wait",
            "error StreamCaptureImplicit wait_stream",
            "error StreamCaptureImplicit sync_stream",
            "error StreamCaptureImplicit query_stream",
        ],
    ),
];

/// Number of programs in which the edges of each rule must be decisive: without them the answer differs.
const RULES: [u8; 19] = [
    0, 1, 3, 6, 9, 10, 14, 16, 17, 18, 19, 21, 23, 24, 28, 49, 50, 53, 100,
];

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
                if race.severity == Severity::Warn {
                    "warn"
                } else {
                    "error"
                }
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
    // Shown by `cargo test --test tests oracle_coverage -- --nocapture`.
    println!("the longest has {longest} ops");
    for (what, n) in &seen {
        println!("{n:8} {what}");
    }
    assert!(longest <= 60, "{longest} ops");
    let short: Vec<String> = AT_LEAST
        .iter()
        .flat_map(|(n, what)| what.iter().map(move |what| (*n, *what)))
        .filter(|(n, what)| seen.get(*what).copied().unwrap_or(0) < *n)
        .map(|(n, what)| format!("{what}: {:?} of {n}", seen.get(what)))
        .collect();
    assert_eq!(short, [""; 0], "too rare");
    let clean = seen["verdict clean"] * 100 / SEEDS;
    assert!((30..=60).contains(&clean), "{clean} % clean");
}

#[test]
fn random_programs_can_be_read() {
    for seed in 0..3000 {
        let mut prog = random_prog(seed, &Options::from_seed(seed));
        let read = Prog::from_program(&prog.to_program());
        // A launch that is repeated once is equal to a launch.
        for op in &mut prog.ops {
            if let Act::Kernel { repeat, .. } = &mut op.act {
                *repeat = repeat.filter(|&n| n != 1);
            }
        }
        assert_eq!(read.ops, prog.ops, "seed {seed}\n{}", prog.to_yaml());
        assert_eq!(read.streams, prog.streams, "seed {seed}");
        assert_eq!(read.buffers, prog.buffers, "seed {seed}");
        assert_eq!(read.events, prog.events, "seed {seed}");
    }
}

#[test]
fn small_programs_are_small() {
    let mut outcomes = HashSet::new();
    for seed in 0..3000 {
        let prog = random_prog(seed, &Options::small(seed));
        let answer = judge(&prog);
        assert!(
            answer.outside.is_empty(),
            "seed {seed}: {:?}",
            answer.outside
        );
        let on_streams = answer
            .graph
            .nodes
            .iter()
            .filter(|n| matches!(n.1, Point::Device(_)));
        assert!(on_streams.count() <= 7, "seed {seed}\n{}", prog.to_yaml());
        outcomes.insert(answer.outcome);
    }
    assert!(outcomes.contains(&Outcome::Clean) && outcomes.contains(&Outcome::Race));
}

/// The programs would not test a rule that could be dropped without a difference in any of them.
#[test]
fn every_rule_is_decisive_somewhere() {
    for rule in RULES {
        let decisive = (0..2000u64).filter(|&seed| {
            let prog = random_prog(seed, &Options::from_seed(seed));
            let with = judge(&prog);
            let without = judge_with(&prog, Readings::default(), Some(rule));
            with.races != without.races || with.lints != without.lints
        });
        let decisive = decisive.count();
        println!("{decisive:6} of 2000 programs depend on rule {rule}");
        assert!(decisive >= 3, "rule {rule}: {decisive}");
    }
}

/// The generator orders accesses by its own vector clocks, the oracle queries a graph: two independent ways to the
/// same answer.
#[test]
fn careful_programs_are_clean() {
    for seed in 0..10_000 {
        let mut options = Options::from_seed(seed);
        options.care = 100;
        options.error = false;
        // Even careful programs do not ask for all times with care.
        options.timing = false;
        let prog = random_prog(seed, &options);
        let answer = judge(&prog);
        assert_eq!(
            answer.outcome,
            Outcome::Clean,
            "{:?}\n{}",
            answer.races,
            prog.to_yaml()
        );
    }
}
