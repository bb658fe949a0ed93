//! Tests the joined exchanges of ranks: which rank waits for which, by group, for traces with and without numbers. Text in,
//! figures out.

use serde_json::{Value, json};
use sidestream_diagnose::{
    Limits, Options, Rank, Ranks, Report, Search, Slow, ranks_html, ranks_text, read_json,
};

use crate::browser::Browser;

/// An exchange: its start in the step, its duration, and its fields in the trace.
#[derive(Clone)]
struct Exchange {
    start_us: i64,
    length_us: i64,
    said: Value,
    /// When it is launched; by default directly before it starts.
    launch_us: Option<i64>,
}

/// A rank whose steps of ten milliseconds are kernels and exchanges.
#[derive(Clone)]
struct One {
    number: u32,
    world: u32,
    clock_us: i64,
    kernels: Vec<(i64, i64)>,
    exchanges: Vec<Exchange>,
    /// When its host begins to launch everything, if it is ahead of its device.
    ahead_us: Option<i64>,
}

const STEPS: i64 = 6;

fn one(number: u32, world: u32, kernels: &[(i64, i64)], exchanges: &[Exchange]) -> One {
    One {
        number,
        world,
        clock_us: 0,
        kernels: kernels.to_vec(),
        exchanges: exchanges.to_vec(),
        ahead_us: None,
    }
}

fn exchange(start_us: i64, length_us: i64, said: Value) -> Exchange {
    Exchange {
        start_us,
        length_us,
        said,
        launch_us: None,
    }
}

/// Returns PyTorch's fields of a collective in a group of these ranks.
fn said(operation: &str, group: &str, ranks: &[u32]) -> Value {
    json!({"Collective name": operation, "Process Group Name": group, "Process Group Description": format!("of {group}"),
           "Process Group Ranks": format!("{ranks:?}"), "Group size": ranks.len(), "In msg nelems": 1000, "dtype": "Float"})
}

impl One {
    /// Returns its trace, with numbered exchanges if `is_numbered`.
    fn json(&self, is_numbered: bool) -> String {
        let mut rows = vec![];
        let mut calls = 0;
        for step in 0..STEPS {
            let from = self.clock_us + 1_000_000 + 10_000 * step;
            rows.push(json!({"ph": "X", "cat": "user_annotation", "name": format!("ProfilerStep#{step}"), "pid": 1,
                             "tid": 1, "ts": from, "dur": 9_000}));
            let mut work: Vec<(i64, i64, Option<i64>, Option<Value>)> = vec![];
            work.extend(
                self.kernels
                    .iter()
                    .map(|(start, length)| (*start, *length, None, None)),
            );
            work.extend(self.exchanges.iter().enumerate().map(|(at, e)| {
                let mut said = e.said.clone();
                if is_numbered {
                    said["Seq"] = (step * self.exchanges.len() as i64 + at as i64 + 1).into();
                }
                (e.start_us, e.length_us, e.launch_us, Some(said))
            }));
            work.sort_by_key(|(start, _, launch, _)| launch.unwrap_or(start - 8));
            for (at, (start, length, launch, said)) in work.into_iter().enumerate() {
                calls += 1;
                let launch = self.ahead_us.map(|from| from + 20 * at as i64).or(launch);
                let name = if said.is_some() {
                    "ncclDevKernel_AllReduce_Sum_f32"
                } else {
                    "gemm"
                };
                let stream = if said.is_some() { 20 } else { 7 };
                let mut args = said.unwrap_or_else(|| json!({}));
                args["device"] = 0.into();
                args["stream"] = stream.into();
                args["correlation"] = calls.into();
                rows.push(json!({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
                                 "ts": from + launch.unwrap_or(start - 8), "dur": 3, "args": {"correlation": calls}}));
                rows.push(json!({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": from + start,
                                 "dur": length, "args": args}));
            }
        }
        json!({"distributedInfo": {"rank": self.number, "world_size": self.world}, "traceEvents": rows}).to_string()
    }
}

fn rank_of(json: &str) -> Rank {
    let trace = read_json(json.as_bytes(), &Limits::default()).expect("a trace");
    Rank::of("a.json", &Report::of(trace, &Options::default()))
}

fn together(all: &[One], is_numbered: bool) -> Ranks {
    let each = all.iter().map(|one| rank_of(&one.json(is_numbered)));
    Ranks::of(each.collect()).expect("ranks of one run")
}

/// Returns the ranks of two tensor-parallel groups that never meet: in the second, rank 3 computes 3 ms longer than rank 2.
fn two_groups() -> Vec<One> {
    let (a, b) = (
        said("allreduce", "1", &[0, 1]),
        said("allreduce", "2", &[2, 3]),
    );
    vec![
        one(
            0,
            4,
            &[(100, 5_000), (8_200, 1_000)],
            &[exchange(5_100, 3_000, a.clone())],
        ),
        one(
            1,
            4,
            &[(100, 5_000), (8_200, 1_000)],
            &[exchange(5_100, 3_000, a)],
        ),
        one(
            2,
            4,
            &[(100, 4_000), (8_200, 1_000)],
            &[exchange(4_100, 4_000, b.clone())],
        ),
        one(
            3,
            4,
            &[(100, 7_000), (8_200, 1_000)],
            &[exchange(7_100, 1_000, b)],
        ),
    ]
}

#[test]
fn ranks_wait_for_those_of_their_own_group_only() {
    for is_numbered in [true, false] {
        let ranks = together(&two_groups(), is_numbered);
        // In total, ranks 0 and 1 are 2 ms longer in collectives than rank 3, for which they do not wait.
        assert_eq!(
            ranks.waits_ns,
            [0, 0, 3_000_000, 0],
            "numbered: {is_numbered}"
        );
        assert_eq!(ranks.late_ns, [0, 0, 0, 3_000_000]);
        assert_eq!(ranks.worst[0].0.last, 3);
        assert!(
            ranks
                .groups
                .iter()
                .all(|group| group.is_numbered == is_numbered && group.is_known)
        );
        assert_eq!(ranks.clock_error_ns, Some(0));
    }
}

#[test]
fn clocks_that_differ_change_nothing() {
    let even = together(&two_groups(), true);
    let mut apart = two_groups();
    for (at, one) in apart.iter_mut().enumerate() {
        one.clock_us = 7_777_777 * at as i64;
    }
    let apart = together(&apart, true);
    assert_eq!(
        (&apart.waits_ns, apart.clock_error_ns),
        (&even.waits_ns, Some(0))
    );
    assert_eq!(
        apart.slow().map(|slow| slow.at),
        even.slow().map(|slow| slow.at)
    );
    // No exchanges between the two groups were joined.
    let says = "the clocks of the ranks could be aligned within 2 sets of ranks only, between which nothing was joined";
    assert!(
        apart.warnings.iter().any(|w| w == says),
        "{:?}",
        apart.warnings
    );
}

/// Returns the ranks of a data-parallel group of three, of which rank 1 computes `more_us` longer.
fn late(more_us: i64) -> Vec<One> {
    let group = said("allreduce", "0", &[0, 1, 2]);
    let each = (0..3).map(|rank| {
        let compute = 3_000 + if rank == 1 { more_us } else { 0 };
        let exchanges = [exchange(100 + compute, 9_000 - compute, group.clone())];
        one(rank, 3, &[(100, compute)], &exchanges)
    });
    each.collect()
}

#[test]
fn the_slow_rank_is_named_with_its_cause_and_what_it_costs() {
    let ranks = together(&late(4_000), true);
    let slow = ranks.slow().expect("rank 1 is slow");
    assert_eq!(
        (slow.at, slow.cause.as_str(), slow.is_alike, slow.compared),
        (1, "compute", true, 2)
    );
    assert_eq!(
        (slow.excess_ns, slow.cause_ns, slow.step_ns),
        (4_000_000, 4_000_000, (10_000_000, 6_000_000))
    );
    let page = ranks_text(&ranks);
    let says = "slow:    rank 1: its own work in a step takes 4.00 ms longer than the median of 2 ranks that exchange the same; \
                most of that is kernels that compute: 4.00 ms more\n\
                what if: were it as fast as their median, a step would take 6.00 ms instead of 10.00 ms, 40.0 % less, by a \
                replay of all ranks\n\
                waiting: rank 0, 2, up to 4.00 ms a step in exchanges of data\n";
    assert!(page.contains(says), "{page}");
    assert!(page.lines().count() <= 24, "{page}");
    // The parts are compared individually: one may differ by more than all together.
    let mut uneven = ranks;
    let Search::Found(slow) = &mut uneven.search else {
        panic!("{page}");
    };
    slow.cause_ns = 5_000_000;
    let page = ranks_text(&uneven);
    let says = "4.00 ms longer than the median of 2 ranks that exchange the same; it has 5.00 ms more of one part, kernels that compute, and less of others\n";
    assert!(page.contains(says), "{page}");
    let Search::Found(slow) = &mut uneven.search else {
        panic!("{page}");
    };
    slow.cause_ns = 1_900_000;
    let says = "; the largest part of that is kernels that compute: 1.90 ms more\n";
    let page = ranks_text(&uneven);
    assert!(page.contains(says), "{page}");
    let even = together(&late(0), true);
    assert_eq!((&even.search, &*even.waiting), (&Search::Nobody, &[][..]));
}

/// Returns two ranks that sum the gradients of eight layers while they compute the next ones, and when they are done. Each loads
/// for some time first. Layers after the first, beside sums, may take longer.
fn gradients(load_us: [i64; 2], first_us: [i64; 2], next_us: [i64; 2]) -> (Vec<One>, i64) {
    const SUM_US: i64 = 120;
    let said = said("allreduce", "0", &[0, 1]);
    let mut all = [0, 1].map(|rank| one(rank, 2, &[], &[]));
    let (mut end, mut done) = (0, load_us);
    for layer in 0..8 {
        let length_us = if layer == 0 { first_us } else { next_us };
        for rank in 0..2 {
            all[rank].kernels.push((done[rank], length_us[rank]));
            done[rank] += length_us[rank];
        }
        let starts = done.map(|done| done.max(end));
        end = starts[0].max(starts[1]) + SUM_US;
        for (rank, start) in starts.into_iter().enumerate() {
            let mut exchange = exchange(start, end - start, said.clone());
            exchange.launch_us = Some(done[rank] - 9);
            all[rank].exchanges.push(exchange);
        }
    }
    all.iter_mut().for_each(|one| one.kernels.push((end, 300)));
    (all.into(), end + 300)
}

/// Returns the slow rank, and by how much its step is predicted too long.
fn slow_of(all: &[One], costs_us: i64) -> (Slow, i64) {
    let slow = together(all, true).slow().expect("rank 1 is slow").clone();
    let off_us = slow.step_ns.1 as i64 / 1_000 - (10_000 - costs_us);
    (slow, off_us)
}

/// The fast rank's exchanges start late because earlier ones wait for the slow rank. Its work between their starts is not
/// what the slow rank would do there, were it as fast.
#[test]
fn exchanges_that_wait_in_their_stream_do_not_make_the_faster_run_longer() {
    for (load_us, layer_us, cause) in [
        ([100, 4_100], [300; 2], "host"),
        ([100; 2], [400, 700], "compute"),
    ] {
        let (all, end) = gradients(load_us, layer_us, layer_us);
        let even = gradients([100; 2], [layer_us[0]; 2], [layer_us[0]; 2]).1;
        let (slow, off_us) = slow_of(&all, end - even);
        assert_eq!((slow.at, slow.cause.as_str()), (1, cause));
        assert!(off_us.abs() < 40, "{off_us} us off: {slow:?}");
    }
}

/// Kernels take twice as long beside an exchange, which holds multiprocessors also while it waits.
#[test]
fn kernels_are_no_longer_slow_beside_exchanges_that_wait_no_longer() {
    let (mut all, end) = gradients([100, 5_100], [300; 2], [600, 360]);
    all.iter_mut()
        .for_each(|one| one.ahead_us = Some(one.kernels[0].0 - 8));
    let even = gradients([100; 2], [300; 2], [360; 2]).1;
    let (slow, off_us) = slow_of(&all, end - even);
    assert!(off_us.abs() < 80, "{off_us} us off: {slow:?}");
    let says = "kernels beside exchanges that waited took 1.62 ms a step longer than without one, which goes too";
    let page = ranks_text(&together(&all, true));
    assert!(page.contains(says), "{page}");
    // Kernels of one name that differ without an exchange as well are not compared.
    let mut unlike = all;
    unlike
        .iter_mut()
        .for_each(|one| one.kernels.push((9_000, 600)));
    assert_eq!(slow_of(&unlike, 0).0.slowed_ns, 0);
}

/// A rank that waits hides how late its own host is.
#[test]
fn a_rank_that_waits_no_longer_is_no_faster_than_its_host() {
    let drawn = |load_us: [i64; 2]| {
        let mut all = [0, 1].map(|rank| one(rank as u32, 2, &[(load_us[rank], 50)], &[]));
        let mut end = 0;
        for nth in 1..=8 {
            let launches = load_us.map(|load| load + 400 * nth);
            let starts = launches.map(|launch| end.max(launch + 8));
            end = starts[0].max(starts[1]) + 120;
            for (rank, start) in starts.into_iter().enumerate() {
                let mut exchange = exchange(start, end - start, said("allgather", "0", &[0, 1]));
                exchange.launch_us = Some(launches[rank]);
                all[rank].exchanges.push(exchange);
            }
        }
        all
    };
    let (slow, off_us) = slow_of(&drawn([100, 4_100]), 4_000);
    assert_eq!((slow.at, slow.cause.as_str()), (1, "host"));
    assert!(off_us.abs() < 40, "{off_us} us off: {slow:?}");
}

#[test]
fn ranks_that_are_slow_in_turn_are_not_named() {
    let (a, mut b) = (late(2_000), late(0));
    // In every second step, rank 0 is the one that computes longer.
    let (kernel, sum) = (&mut b[0].kernels[0], 4_600);
    (kernel.1, b[0].exchanges[0].start_us) = (sum - 100, sum);
    b[0].exchanges[0].length_us = 9_100 - sum;
    let rows = |one: &One| -> Value { serde_json::from_str(&one.json(true)).expect("JSON") };
    let ranks = a.iter().zip(&b).take(2).map(|(a, b)| {
        let (mut rows, other) = (rows(a), rows(b));
        let each = rows["traceEvents"].as_array_mut().expect("rows");
        for (row, other) in each
            .iter_mut()
            .zip(other["traceEvents"].as_array().expect("rows"))
        {
            if row["ts"].as_i64().is_some_and(|ts| ts / 10_000 % 2 == 1) {
                *row = other.clone();
            }
        }
        rank_of(&rows.to_string())
    });
    let ranks = Ranks::of(ranks.collect()).expect("ranks of one run");
    assert_eq!(ranks.search, Search::Nobody);
}

#[test]
fn numbers_under_which_ranks_do_different_things_are_not_used() {
    let two = |first: &str, second: &str| {
        [
            exchange(3_000, 1_000, said(first, "0", &[0, 1])),
            exchange(5_000, 1_000, said(second, "0", &[0, 1])),
        ]
    };
    let kernels = [(100, 2_000), (9_000, 100)];
    let mut ranks = vec![
        one(0, 2, &kernels, &two("allreduce", "reduce_scatter")),
        one(1, 2, &kernels, &two("allreduce", "reduce_scatter")),
    ];
    assert!(together(&ranks, true).groups[0].is_numbered);
    // The numbers of the second rank are one ahead.
    ranks[1]
        .exchanges
        .insert(0, exchange(200, 50, said("barrier", "9", &[1])));
    let joined = together(&ranks, true);
    assert!(!joined.groups[0].is_numbered, "{:?}", joined.groups);
    assert_eq!(joined.groups[0].exchanges, 2 * STEPS as u64);
}

#[test]
fn a_trace_that_was_cut_is_joined_as_far_as_it_goes() {
    let all = late(4_000);
    let whole = all[2].json(false);
    let cut = &whole[..whole.len() * 5 / 6];
    let each = [all[0].json(false), all[1].json(false), cut.to_owned()];
    let ranks = Ranks::of(each.iter().map(|json| rank_of(json)).collect()).expect("ranks");
    assert_eq!(ranks.slow().map(|slow| slow.at), Some(1));
    let says = "1 of the traces are incomplete: exchanges after their ends are missing";
    assert!(
        ranks.warnings.iter().any(|w| w == says),
        "{:?}",
        ranks.warnings
    );
    // A trace that claims to be complete and has fewer exchanges is a different case.
    let mut fewer = all;
    fewer[2]
        .exchanges
        .push(exchange(9_200, 50, said("allreduce", "0", &[0, 1, 2])));
    let ranks = together(&fewer, false);
    assert!(
        matches!(ranks.search, Search::Unknown(_)),
        "{:?}",
        ranks.search
    );
    assert!(
        ranks_text(&ranks).contains("slow:    not known: no exchange of one rank could be joined")
    );
}

#[test]
fn without_groups_exchanges_are_joined_only_if_they_end_together() {
    let nameless = |mut all: Vec<One>| {
        for one in &mut all {
            one.exchanges.iter_mut().for_each(|e| e.said = json!({}));
        }
        all
    };
    let ranks = together(&nameless(late(4_000)), false);
    assert_eq!(ranks.waits_ns, [4_000_000, 0, 4_000_000]);
    assert!(
        ranks
            .warnings
            .iter()
            .any(|w| w.contains("all are taken for one group")),
        "{:?}",
        ranks.warnings
    );
    // Two groups, whose ends are unrelated.
    let mut two = nameless(two_groups());
    for (step, one) in two.iter_mut().enumerate().skip(2) {
        one.exchanges[0].length_us -= 900;
        one.exchanges
            .push(exchange(8_500, 300 * (step as i64), json!({})));
    }
    two[0].exchanges.push(exchange(8_200, 100, json!({})));
    two[1].exchanges.push(exchange(8_200, 100, json!({})));
    let ranks = together(&two, false);
    assert!(ranks.groups.is_empty(), "{:?}", ranks.groups);
    assert!(
        ranks
            .warnings
            .iter()
            .any(|w| w.contains("do not fit one group of all")),
        "{:?}",
        ranks.warnings
    );
}

#[test]
fn exchanges_enqueued_before_the_trace_begins_are_left_out() {
    let mut all = late(4_000);
    all[0].exchanges.insert(0, exchange(20, 30, json!({})));
    let ranks = together(&all, false);
    assert_eq!(ranks.slow().map(|slow| slow.at), Some(1));
    assert!(
        ranks.warnings[0]
            .starts_with("6 of 24 exchanges (25.0 %) do not state their process group"),
        "{:?}",
        ranks.warnings
    );
}

#[test]
fn a_group_with_ranks_that_have_no_trace_says_so() {
    let ranks = together(&late(4_000)[1..], true);
    let says = "1 process groups have ranks without a trace: the last rank to arrive may be one of those, and waits are at least as \
                long as stated";
    assert!(
        ranks.warnings.iter().any(|w| w == says),
        "{:?}",
        ranks.warnings
    );
}

#[test]
fn a_pipeline_is_joined_send_by_receive() {
    let pair = |operation: &str, key: &str, peer: u32| {
        let mut said = said(operation, "5", &[0, 1]);
        said[key] = peer.into();
        said
    };
    // The second stage waits for the first one, and the first for no other.
    let first = one(
        0,
        2,
        &[(100, 4_000), (6_000, 3_000)],
        &[exchange(4_100, 100, pair("send", "Dst Rank", 1))],
    );
    let second = one(
        1,
        2,
        &[(4_200, 4_800)],
        &[exchange(200, 4_000, pair("recv", "Src Rank", 0))],
    );
    let ranks = together(&[first, second], true);
    assert_eq!(
        (&ranks.waits_ns[..], &ranks.pairs_ns[..]),
        (&[0, 3_900_000][..], &[0, 3_900_000][..])
    );
    assert!(
        ranks_text(&ranks)
            .contains("bubbles: 1 ranks wait in sends and receives, 39.0 % of a step in the mean")
    );
}

#[test]
fn the_page_of_ranks_shows_the_waits_in_a_browser() {
    let mut all = late(4_000);
    for one in &mut all {
        one.exchanges[0].said["Process Group Description"] =
            "<script>window.taken = 1</script>".into();
    }
    let ranks = together(&all, true);
    let page = ranks_html("a folder", &ranks);
    assert!(!page.contains("<script>"), "{page}");
    let Some(mut browser) = Browser::start("ranks") else {
        return;
    };
    browser.open(&page, (1200, 900));
    let mut value = |expression: &str| browser.value(expression);
    assert_eq!(
        value("document.querySelectorAll('#heat rect.c3').length"),
        2 * STEPS
    );
    assert_eq!(
        value("document.querySelector('#heat rect.c3 title').textContent"),
        "rank 0: 4.00 ms"
    );
    assert_eq!(
        value("document.querySelectorAll('#worst tbody tr').length"),
        STEPS
    );
    assert_eq!(
        value("document.querySelectorAll('#ranks tbody tr').length"),
        3
    );
    let verdict = value("document.querySelector('#verdict').innerText");
    assert!(
        verdict.as_str().is_some_and(
            |text| text.contains("rank 1: its own work in a step takes 4.00 ms longer")
        )
    );
    assert_eq!(value("window.taken === undefined"), true);
    assert_eq!(browser.requests(), Vec::<String>::new());
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
