//! Tests runs of many ranks for which the slow rank, the cause and each rank's waits are known.

use truth::{RankJob, RankRun, judged_ranks, rank_trace};

/// The first seeds with runs small enough for a test; `cargo xtask truth --ranks 100 1` runs all.
fn seeds() -> Vec<u64> {
    let small = (1..).filter(|seed| RankJob::drawn(*seed).world() <= 48);
    small.take(12).collect()
}

#[test]
fn the_slow_rank_its_cause_and_the_waits_are_right() {
    for seed in seeds() {
        let one = judged_ranks(seed).unwrap();
        let again = format!(
            "`cargo xtask truth --ranks 1 {seed} --show` shows it\n{}",
            one.words
        );
        assert!(
            one.is_well(),
            "seed {seed}: said {:?}, {:?}: {again}",
            one.said,
            one.job
        );
        assert!(
            one.words.lines().count() <= 32,
            "more than a screen: {again}"
        );
    }
}

#[test]
fn a_seed_gives_one_run() {
    for seed in seeds().into_iter().take(3) {
        let of = |seed| {
            let job = RankJob::drawn(seed);
            rank_trace(&job, &RankRun::of(&job), 0)
        };
        assert_eq!(of(seed), of(seed), "seed {seed}");
        assert_ne!(of(seed), of(seed + 1), "seed {seed}");
    }
}

#[test]
fn a_planted_fault_makes_others_wait() {
    // If no fault made other ranks wait, reported waits of 0 would count as right.
    let mut costs = 0;
    for seed in seeds() {
        let job = RankJob::drawn(seed);
        let (run, even) = (RankRun::of(&job), RankRun::of(&job.even()));
        let waits = |run: &RankRun| run.waits_ns.iter().sum::<f64>();
        if run.step_ns > 1.03 * even.step_ns {
            costs += 1;
            assert!(waits(&run) > waits(&even), "seed {seed}");
        }
    }
    assert!(
        costs >= 5,
        "only {costs} of the runs are slower for what is planted"
    );
}
