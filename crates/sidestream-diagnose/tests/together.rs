//! Tests the analysis of several traces: before and after a change, and the ranks of one run. Text in, figures out.

use crate::fixtures::looped::{Loop, Piece, piece, steps};
use sidestream_diagnose::{
    Comparison, Limits, Options, Rank, Ranks, Report, Search, comparison_text, ranks_text,
    read_json, text,
};

const DOWN: &str = "Memcpy DtoH (Device -> Pinned)";
const REDUCE: &str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";

fn report(of: &Loop) -> Report {
    report_of(&of.json())
}

fn report_of(json: &str) -> Report {
    let trace = read_json(json.as_bytes(), &Limits::default()).expect("a trace");
    Report::of(trace, &Options::default())
}

#[test]
fn a_step_is_measured_from_the_last_work_of_one_to_that_of_the_next() {
    // The first half of the copy overlaps the second kernel.
    let pieces = [
        piece("a", 7, 100, 200),
        piece("b", 7, 400, 100),
        piece(DOWN, 8, 450, 100),
    ];
    let step = report(&steps(6, &pieces)).per_step;
    assert_eq!((step.steps, step.time_ns), (6, 1_000_000));
    assert_eq!((step.busy_ns, step.idle_ns), (350_000, 650_000));
    assert_eq!((step.kernel_ns, step.copy_ns), (300_000, 100_000));
    assert_eq!(step.exposed_copy_ns, 50_000);
    assert_eq!(step.communication_ns, 0);
}

#[test]
fn a_comparison_is_by_the_step() {
    let slow = steps(9, &[piece("a", 7, 100, 500), piece("b", 7, 700, 100)]);
    let quick = Loop {
        period_us: 500,
        ..steps(5, &[piece("a", 7, 100, 200), piece("c", 7, 350, 50)])
    };
    let (quick, slow) = (report(&quick), report(&slow));
    let compared = Comparison::of(&quick, &slow).expect("both have steps");
    assert_eq!(compared.ratio(), Some(0.5));
    let slowdown = compared.slowdown.clone().expect("enough steps");
    assert!(
        (slowdown.low..=slowdown.high).contains(&0.5) && slowdown.high < 0.51,
        "{slowdown:?}"
    );
    let kernels: Vec<String> = compared
        .kernels
        .iter()
        .map(|k| {
            let (calls, ns) = (k.calls, k.ns);
            format!(
                "{} {}->{} {}->{}",
                k.name, calls.baseline, calls.now, ns.baseline, ns.now
            )
        })
        .collect();
    assert_eq!(
        kernels,
        [
            "a 1->1 500000->200000",
            "b 1->0 100000->0",
            "c 0->1 0->50000"
        ]
    );
    let json = compared.json();
    assert_eq!(json["schema"], "sidestream.diagnose.compare/1");
    assert_eq!(
        (&json["per"], &json["change_ns"]),
        (&"step".into(), &(-500_000).into())
    );
    let page = comparison_text("now.json", "before.json", &compared);
    let first: Vec<&str> = page.lines().take(2).collect();
    assert_eq!(
        first,
        [
            "now.json compared with the baseline before.json",
            "step    500.0 µs instead of 1.00 ms, 50.0 % less, in the median",
        ]
    );
    assert!(
        page.contains("gone, 1 a step") && page.contains("new, 1 a step"),
        "{page}"
    );
}

#[test]
fn a_trace_has_not_changed_from_itself() {
    let trace = report(&steps(7, &[piece("a", 7, 100, 500)]));
    let compared = Comparison::of(&trace, &trace).expect("both have steps");
    let slowdown = compared.slowdown.clone().expect("enough steps");
    assert_eq!((compared.ratio(), slowdown.ratio), (Some(1.0), 1.0));
    assert!(
        compared
            .kernels
            .iter()
            .all(|kernel| kernel.ns.change() == 0)
    );
    assert_eq!((&*compared.gone, &*compared.new), (&[][..], &[][..]));
    let page = comparison_text("a", "b", &compared);
    assert!(page.contains("this may be chance"), "{page}");
}

#[test]
fn steps_are_not_compared_with_a_whole_trace() {
    let stepped = report(&steps(6, &[piece("a", 7, 100, 500)]));
    let once = Loop {
        is_marked: false,
        ..steps(1, &[piece("a", 7, 100, 500)])
    };
    let once = report(&once);
    let why = Comparison::of(&once, &stepped).expect_err("one has no steps");
    assert!(
        why.starts_with("the trace has no steps and the baseline has"),
        "{why}"
    );
    let why = Comparison::of(&stepped, &once).expect_err("one has no steps");
    assert!(why.starts_with("the baseline has no steps"), "{why}");
    let compared = Comparison::of(&once, &once).expect("neither has steps");
    assert_eq!(compared.json()["per"], "trace");
    assert_eq!(compared.notes.len(), 1, "{:?}", compared.notes);
}

#[test]
fn different_devices_are_named() {
    let trace = steps(6, &[piece("a", 7, 100, 500)]);
    let other = Loop {
        device: "NVIDIA A100",
        ..trace.clone()
    };
    let compared = Comparison::of(&report(&trace), &report(&other)).expect("both have steps");
    assert_eq!(
        compared.notes,
        ["the devices differ: NVIDIA H200 now, NVIDIA A100 in the baseline"]
    );
}

/// Returns a rank that computes for `compute_us` and then is in a collective until all ranks are done.
fn rank(number: u32, world: u32, compute_us: u32) -> Loop {
    let pieces: [Piece; 2] = [
        piece("compute", 7, 10, compute_us),
        piece(REDUCE, 8, 10 + compute_us, 900 - compute_us),
    ];
    steps(6, &pieces).of_rank(number, world)
}

fn ranks(loops: &[Loop]) -> Option<Ranks> {
    let each = loops.iter().enumerate();
    let each = each.map(|(at, one)| Rank::of(&format!("{at}.json"), &report(one)));
    Ranks::of(each.collect())
}

#[test]
fn the_rank_that_others_wait_for_comes_last_to_collectives() {
    let world = [rank(2, 3, 800), rank(0, 3, 400), rank(1, 3, 420)];
    let ranks = ranks(&world).expect("three ranks of one run");
    let numbers: Vec<_> = ranks.ranks.iter().map(|rank| rank.rank).collect();
    assert_eq!(numbers, [Some(0), Some(1), Some(2)]);
    assert_eq!(ranks.slow().map(|slow| slow.at), Some(2));
    assert_eq!(ranks.waiting, [0, 1]);
    assert_eq!(ranks.waits_ns, [400_000, 380_000, 0]);
    assert_eq!(ranks.ranks[2].per_step.exposed_communication_ns, 100_000);
    assert_eq!(ranks.spread, 0.0);
    let json = ranks.json();
    assert_eq!(json["schema"], "sidestream.diagnose.ranks/2");
    assert_eq!(
        (&json["straggler"], &json["ranks"][2]["file"]),
        (&2.into(), &"0.json".into())
    );
    let page = ranks_text(&ranks);
    let says = "waiting: rank 0, 1, up to 400.0 µs a step in exchanges of data";
    assert!(page.contains(says), "{page}");
}

#[test]
fn a_rank_that_went_through_json_is_the_same() {
    // A step with idle time of several causes.
    let one = report(&Loop {
        period_us: 1_200,
        ..rank(1, 2, 400)
    });
    let one = Rank::of("1.json", &one);
    assert!(one.per_step.steps > 0 && !one.idle.is_empty(), "{one:?}");
    let json = one.whole_json();
    assert_eq!(Rank::of_json(&json), Some(one));
    let alone = Rank::of("a", &report(&steps(6, &[piece("a", 7, 100, 500)])));
    assert_eq!(Rank::of_json(&alone.whole_json()), Some(alone));
}

#[test]
fn json_without_a_part_is_not_a_rank() {
    let whole = Rank::of("0.json", &report(&rank(0, 2, 400))).whole_json();
    let names = whole.as_object().map(|parts| parts.keys().cloned());
    for name in names.into_iter().flatten() {
        let mut part = whole.clone();
        part[&name] = "seven".into();
        assert_eq!(Rank::of_json(&part).is_some(), name == "file", "{name}");
    }
    let mut short = whole.clone();
    short["step"]["busy_ns"] = (-1).into();
    assert_eq!(Rank::of_json(&short), None);
    let parts = whole["digest"]
        .as_object()
        .map(|parts| parts.keys().cloned());
    for name in parts.into_iter().flatten() {
        let mut part = whole.clone();
        part["digest"][&name] = "seven".into();
        assert_eq!(Rank::of_json(&part), None, "{name}");
    }
    let mut elsewhere = whole;
    elsewhere["digest"]["of"][0] = 7.into();
    assert_eq!(Rank::of_json(&elsewhere), None);
}

#[test]
fn equal_ranks_do_not_wait() {
    let ranks = ranks(&[rank(0, 2, 400), rank(1, 2, 410)]).expect("two ranks");
    assert_eq!((&ranks.search, &*ranks.waiting), (&Search::Nobody, &[][..]));
    assert!(!ranks_text(&ranks).contains("waiting:"));
}

#[test]
fn the_slowest_rank_and_the_spread_are_those_of_the_steps() {
    let slow = Loop {
        period_us: 1_200,
        ..rank(1, 2, 400)
    };
    let ranks = ranks(&[rank(0, 2, 400), slow]).expect("two ranks");
    assert_eq!(ranks.slowest, 1);
    assert!(
        (ranks.spread - 200.0 / 1_100.0).abs() < 1e-9,
        "{}",
        ranks.spread
    );
}

#[test]
fn missing_and_repeated_ranks_are_named() {
    let world = [
        rank(1, 4_000_000_000, 400),
        rank(3, 4_000_000_000, 400),
        rank(3, 4_000_000_000, 400),
    ];
    let ranks = ranks(&world).expect("three ranks");
    assert_eq!(ranks.missing, [(0, 0), (2, 2), (4, 3_999_999_999)]);
    assert_eq!(ranks.doubled, [3]);
    assert_eq!(
        ranks.warnings[..2],
        [
            "there is no trace of rank 0, 2, 4 to 3999999999: the slow rank may be missing",
            "there are several traces of rank 3: name those of one run and one time only",
        ]
    );
}

#[test]
fn traces_of_no_run_are_left_out() {
    let alone = steps(6, &[piece("a", 7, 100, 500)]);
    assert!(ranks(&[alone.clone(), alone.clone()]).is_none());
    assert!(ranks(&[rank(0, 2, 400), alone.clone()]).is_none());
    let world = [rank(0, 2, 400), rank(1, 2, 400), alone, rank(0, 8, 400)];
    let ranks = ranks(&world).expect("two ranks");
    assert_eq!(ranks.world, Some(2));
    assert_eq!(
        ranks.warnings[..2],
        [
            "1 of 4 traces are left out: they state no rank",
            "1 of 4 traces are left out: they are of a run with another number of ranks",
        ]
    );
}

#[test]
fn warnings_that_change_the_meaning_come_first() {
    let json = steps(6, &[piece("a", 7, 100, 500)]).json();
    let cut = &json[..json.len() - 40];
    let page = text("cut.json", &report_of(cut), 80);
    let second = page.lines().nth(1).unwrap_or("");
    assert!(second.starts_with("first:  the file ends"), "{page}");
    // The first kernel has no call: that is only a note.
    let orphan = json.replacen("\"correlation\": 1}", "\"correlation\": 99}", 1);
    let page = text("orphan.json", &report_of(&orphan), 80);
    let last = page.trim_end().lines().last().unwrap_or("");
    assert!(last.starts_with("note: the calls of 1 of 6"), "{page}");
}

#[test]
fn a_picture_is_as_wide_as_it_may_be() {
    let report = report(&steps(
        6,
        &[piece("a", 7, 0, 500), piece(DOWN, 8, 500, 250)],
    ));
    for columns in [60, 80, 100] {
        let page = text("a.json", &report, columns);
        let lanes: Vec<&str> = page.lines().filter(|line| line.ends_with('|')).collect();
        assert!(!lanes.is_empty(), "{page}");
        assert!(
            lanes.iter().all(|lane| lane.chars().count() == columns),
            "{page}"
        );
    }
    let page = text("a.json", &report, 80);
    // From the end of a step to that of the next: a quarter idle, a half of the kernel, a quarter of the copy.
    let of = |name: &str| {
        let lane = page
            .lines()
            .find(|line| line.contains(name) && line.ends_with('|'));
        let cells = lane
            .and_then(|lane| lane.split('|').nth(1))
            .unwrap_or("")
            .to_owned();
        let count = |letter| cells.matches(letter).count() as f64 / cells.len().max(1) as f64;
        (count('K'), count('D'), count('.'))
    };
    let near = |a: (f64, f64, f64), b: (f64, f64, f64)| {
        let off = [a.0 - b.0, a.1 - b.1, a.2 - b.2];
        assert!(
            off.iter().all(|off| off.abs() < 0.03),
            "{a:?} {b:?}\n{page}"
        );
    };
    near(of("stream 7"), (0.5, 0.0, 0.5));
    near(of("stream 8"), (0.0, 0.25, 0.75));
}
