//! Random programs in which other code works on the same streams and captures them, a call of the back end fails
//! once, code of the program panics, and the process forks.
//!
//! `SEED=17 cargo test -p sidestream --test tests edges_random` runs the programs of one seed.

use crate::random_programs::act::{Act, draw};
use crate::random_programs::edge_act::{EdgeAct, Settles, Work};
use crate::random_programs::hold::{hold, is_wrong};
use crate::random_programs::plan::{Edges, Plan};
use crate::random_programs::run::run;

/// Number of programs in `cargo xtask nightly`, and for every change.
const PROGRAMS: (u64, u64) = (100_000, 2_000);

#[test]
fn whatever_happens_at_the_edges_results_are_right_and_no_memory_in_use_is_handed_out() {
    hold(PROGRAMS, Plan::at_the_edges);
}

/// The programs can fail: if the promise for lent memory is not kept, results are wrong and the checker says why.
#[test]
fn without_its_promise_work_of_others_gives_wrong_results_and_races() {
    const PROGRAMS: u64 = 200;
    println!("seeds 0..{PROGRAMS}, no promise is kept");
    let (mut wrong, mut racy) = (0, 0);
    for seed in 0..PROGRAMS {
        let plan = Plan {
            edges: Some(Edges {
                others: true,
                captures: false,
                one: None,
                panics: false,
                forks: false,
            }),
            ..Plan::plain(seed)
        };
        let mut programs = draw(&plan);
        let kept = run(&plan, &programs);
        assert_eq!(is_wrong(&kept), None, "seed {seed}");
        for act in programs.iter_mut().flatten() {
            if let Act::Edge(EdgeAct::Work(Work { settles, .. })) = act {
                *settles = Settles::Never;
            }
        }
        let outcome = run(&plan, &programs);
        wrong += u64::from(!outcome.wrong.is_empty());
        racy += u64::from(!outcome.races.is_empty());
    }
    println!("{wrong} with wrong results, {racy} with races");
    assert!(wrong >= PROGRAMS / 10, "{wrong}");
    assert!(racy >= PROGRAMS / 10, "{racy}");
}
