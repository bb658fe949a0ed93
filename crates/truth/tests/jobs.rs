//! Tests how jobs are drawn and judged: a comparison that cannot fail would prove nothing.

use std::collections::BTreeMap;

use truth::{Fault, Job, Judged, Truth, judged, trace};

/// Each of these seeds is named when it fails.
const SEEDS: std::ops::Range<u64> = 1..201;

#[test]
fn a_seed_gives_one_trace() {
    for seed in [3, 17, 99] {
        let of = |seed| {
            let job = Job::drawn(seed);
            trace(&job, &job.recorded())
        };
        assert_eq!(of(seed), of(seed), "seed {seed}");
        assert_ne!(of(seed), of(seed + 1), "seed {seed}");
    }
}

#[test]
fn every_fault_is_drawn_and_some_jobs_have_none() {
    let (mut of_cause, mut of_count) = (BTreeMap::new(), [0; 4]);
    for job in SEEDS.map(Job::drawn) {
        of_count[job.faults.len()] += 1;
        for fault in &job.faults {
            *of_cause.entry(fault.cause()).or_insert(0) += 1;
        }
    }
    assert_eq!(of_cause.len(), 9, "{of_cause:?}");
    assert!(of_cause.values().all(|many| *many >= 10), "{of_cause:?}");
    let part = |many: usize| 100 * many / of_count.iter().sum::<usize>();
    assert!((5..=15).contains(&part(of_count[0])), "{of_count:?}");
    assert!(
        (40..=60).contains(&part(of_count[2] + of_count[3])),
        "{of_count:?}"
    );
}

#[test]
fn a_fault_hidden_by_another_costs_nothing() {
    // In one of these loops the wait for the loader is so long that its copies do not matter.
    let hidden = SEEDS.map(Job::drawn).find_map(|job| {
        let truth = Truth::of(&job);
        let loader = job
            .faults
            .iter()
            .position(|f| matches!(f, Fault::Loader { every: 1, .. }))?;
        let upload = job
            .faults
            .iter()
            .position(|f| matches!(f, Fault::MisplacedWaits { .. }))?;
        (truth.gains[loader].1 > 0.5 * truth.step_ns)
            .then_some(truth.gains[upload].1 / truth.step_ns)
    });
    let gain = hidden.expect("a job with both");
    assert!(gain.abs() < 0.05, "{gain}");
}

#[test]
fn the_report_on_another_job_is_wrong() {
    let of = |seed: u64| (Job::drawn(seed), judged(seed).unwrap().0);
    let (mut own, mut others, mut all) = (0, 0, 0);
    for seed in SEEDS.step_by(2) {
        let ((job, judged), (_, other)) = (of(seed), of(seed + 1));
        if judged.right.is_none()
            || other.said.code.is_none()
            || other.said.code == judged.said.code
        {
            continue;
        }
        let swapped = Judged::of(&job, &Truth::of(&job), other.said);
        all += 1;
        own += usize::from(judged.is_right == Some(true));
        others += usize::from(swapped.is_right == Some(true));
    }
    assert!(all > 20 && 3 * others < own, "{own} and {others} of {all}");
}

#[test]
fn causes_that_were_once_wrong_are_right() {
    for (seed, why) in [
        (
            11,
            "a copy that is waited for comes before a stream of its own for it",
        ),
        (200, "so does one that is pageable"),
        (681, "a host that waits delays no copy that is a step ahead"),
        (
            1503,
            "copies of one direction take turns, and wait for no event",
        ),
        (88, "calls within one microsecond keep their order"),
        (
            3727,
            "a call that takes no time is not inside the one before it",
        ),
        (493, "workers have something ready when the trace begins"),
        (297, "a host need not be slower after a wait"),
    ] {
        let judged = judged(seed).unwrap().0;
        assert_eq!(judged.is_right, Some(true), "seed {seed}: {why}");
        assert!(
            judged.range.is_some_and(|(holds, _)| holds),
            "seed {seed}: {why}"
        );
    }
    // No gain is promised for graphs where no wait precedes a launch. The second job could gain 5 %.
    assert!(!judged(605).unwrap().0.is_falsely_promised);
    assert!(!judged(712).unwrap().0.is_falsely_nothing);
}
