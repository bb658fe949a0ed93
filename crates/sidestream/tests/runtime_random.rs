//! Random programs through the safe API: whatever they do, results are those of one call after the
//! other, the checker is silent, nothing leaks and nothing hangs.
//!
//! `SEED=17 cargo test -p sidestream --test runtime_random` runs the programs of one seed.

mod random_programs;

use std::sync::atomic::{AtomicU64, Ordering};

use random_programs::act::{Act, draw};
use random_programs::plan::Plan;
use random_programs::run::{Outcome, run, run_plan};

/// Programs on one host thread, and programs on several.
const ON_ONE_THREAD: u64 = 15_000;
const ON_SEVERAL: u64 = 6_000;

#[test]
fn programs_on_one_thread_give_the_results_of_one_call_after_the_other() {
    hold(ON_ONE_THREAD, false);
}

#[test]
fn programs_on_several_threads_give_the_results_of_one_call_after_the_other() {
    hold(ON_SEVERAL, true);
}

fn hold(programs: u64, threads: bool) {
    let seeds = seeds(programs);
    println!("seeds {seeds:?}, several threads: {threads}");
    let next = AtomicU64::new(seeds.start);
    // One more than the cores of a small machine would only take turns.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let plan = Plan::draw(seed, threads);
                    let outcome = run_plan(&plan);
                    if let Some(why) = is_wrong(&outcome) {
                        next.store(seeds.end, Ordering::Relaxed);
                        panic!("{}", told(&plan, why));
                    }
                }
            });
        }
    });
}

fn is_wrong(outcome: &Outcome) -> Option<String> {
    outcome.wrong.first().or(outcome.races.first()).cloned()
}

/// The failure, and the shortest program found that shows it.
fn told(plan: &Plan, why: String) -> String {
    let mut programs = draw(plan);
    let mut why = why;
    // What several threads do is not repeated by leaving something out.
    if plan.threads == 1 {
        let mut at = 0;
        while at < programs[0].len() {
            let mut fewer = programs.clone();
            fewer[0].remove(at);
            match is_wrong(&run(plan, &fewer)) {
                Some(still) => (why, programs) = (still, fewer),
                None => at += 1,
            }
        }
    }
    let acts = programs.iter().enumerate().flat_map(|(thread, program)| {
        let line = move |act: &Act| format!("  thread {thread}: {act:?}\n");
        program.iter().map(line)
    });
    let acts: String = acts.collect();
    format!("SEED={}: {why}\n{plan:?}\n{acts}", plan.seed)
}

fn seeds(programs: u64) -> std::ops::Range<u64> {
    match std::env::var("SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..programs,
    }
}
