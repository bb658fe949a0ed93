//! Compares the overlap job on the H200 profile with measurements, through the public interface only.

use crate::engine_job::Arrangement::{BothWays, Downloads, Kernels, Ring, Streams, Uploads};
use crate::engine_job::{Arrangement, Job, time_ms};
use sidestream::engine::{Profile, overlap_limit};
use std::fmt::Write;

const REFERENCE: &str = include_str!("data/overlap_h200_reference.csv");
const WIDER: &str = include_str!("data/overlap_h200.csv");

/// A line of a file: cells by column name.
struct Row<'a> {
    head: Vec<&'a str>,
    cells: Vec<&'a str>,
}

impl Row<'_> {
    fn number(&self, column: &str) -> Option<f64> {
        let at = self.head.iter().position(|h| *h == column)?;
        Some(self.cells[at].parse().expect("a number"))
    }

    fn job(&self) -> Job {
        let whole = |column| self.number(column).map(|v| v as u64);
        Job {
            bytes: whole("kb").expect("kb") * 1024,
            iters: whole("iters").expect("iters"),
            items: whole("B").unwrap_or(32) as usize,
        }
    }
}

fn rows(text: &str) -> Vec<Row<'_>> {
    let mut lines = text.lines().filter(|l| !l.starts_with('#'));
    let head: Vec<&str> = lines.next().expect("a head").split(',').collect();
    lines
        .map(|l| Row {
            head: head.clone(),
            cells: l.split(',').collect(),
        })
        .collect()
}

const STAGES: [(&str, Arrangement); 6] = [
    ("h2d", Uploads),
    ("kernel", Kernels(1)),
    ("d2h", Downloads),
    ("both", BothWays),
    ("kernels_2s", Kernels(2)),
    ("kernels_4s", Kernels(4)),
];
const PIPELINES: [(&str, Arrangement); 7] = [
    ("s1", Streams(1)),
    ("s2", Streams(2)),
    ("s3", Streams(3)),
    ("s4", Streams(4)),
    ("r2", Ring(2)),
    ("r3", Ring(3)),
    ("r4", Ring(4)),
];

/// Returns model over measured for one cell; stages are given per item.
fn compare(
    profile: &Profile,
    row: &Row<'_>,
    column: &str,
    arrangement: Arrangement,
    measured: f64,
) -> (f64, f64) {
    let job = row.job();
    let mut model = time_ms(profile, &job, arrangement);
    if STAGES.iter().any(|(stage, _)| *stage == column) {
        model /= job.items as f64;
    }
    (model, model / measured)
}

#[test]
fn the_reference_table() {
    let profile = Profile::h200();
    let (mut table, mut misses) = (String::new(), 0);
    for row in rows(REFERENCE) {
        let job = row.job();
        let small = job.bytes < 1 << 20;
        for (column, arrangement) in PIPELINES.iter().chain(&STAGES) {
            let Some(measured) = row.number(column) else {
                continue;
            };
            let bar = match (*column, small) {
                ("s1", true) => 0.20,
                ("h2d" | "d2h" | "both" | "kernel", _) => 0.15,
                (_, true) => 0.15,
                (_, false) => 0.05,
            };
            let (model, ratio) = compare(&profile, &row, column, *arrangement, measured);
            let miss = (ratio - 1.0).abs() > bar;
            misses += usize::from(miss);
            writeln!(
                table,
                "{:>6} KB {:>6} {column:>7} measured {measured:9.4} model {model:9.4} ratio {ratio:.3}{}",
                job.bytes / 1024,
                job.iters,
                if miss { "  MISSED" } else { "" }
            )
            .expect("to a string");
        }
    }
    assert_eq!(misses, 0, "\n{table}");
}

/// The host was slow while these were measured: a launch, which is the `kernel` column at one step, took 3.9 to 5.4
/// µs then, against 3.3 µs for the reference table. [`a_slow_host_explains_what_the_model_misses`] checks that.
const SLOW_HOST: &str = "slow host";
/// Two medians of the same measurement differ by 1.4 to 1.8: small uploads on one stream have two modes.
const TWO_MODES: &str = "two modes";
/// No known reason: the model is too optimistic by 15 to 17 % where a stage of one stream just misses its turn.
const UNEXPLAINED: &str = "unexplained";

/// Cells of the wider set where the model is off by more than 15 %: KB, steps, items, column, reason.
const MISSED: &[(u64, u64, usize, &str, &str)] = &[
    (16, 1, 32, "s1", TWO_MODES),
    (16, 1, 32, "s3", SLOW_HOST),
    (16, 1, 32, "s4", SLOW_HOST),
    (16, 16, 32, "s1", TWO_MODES),
    (16, 256, 32, "s1", TWO_MODES),
    (16, 256, 32, "r2", TWO_MODES),
    (64, 1, 8, "s1", TWO_MODES),
    (64, 1, 8, "s3", SLOW_HOST),
    (64, 1, 8, "r2", SLOW_HOST),
    (64, 1, 8, "r4", SLOW_HOST),
    (64, 16, 8, "s1", TWO_MODES),
    (64, 16, 8, "s3", SLOW_HOST),
    (64, 16, 8, "s4", SLOW_HOST),
    (64, 16, 8, "r3", SLOW_HOST),
    (64, 16, 8, "r4", SLOW_HOST),
    (64, 256, 8, "s3", SLOW_HOST),
    (64, 256, 8, "s4", SLOW_HOST),
    (64, 256, 8, "r2", SLOW_HOST),
    (64, 256, 8, "r3", SLOW_HOST),
    (64, 256, 8, "r4", SLOW_HOST),
    (64, 1024, 8, "s3", SLOW_HOST),
    (64, 1024, 8, "s4", SLOW_HOST),
    (64, 1024, 8, "r3", SLOW_HOST),
    (64, 1024, 8, "r4", SLOW_HOST),
    (64, 4096, 8, "s4", SLOW_HOST),
    (128, 1, 32, "s4", SLOW_HOST),
    (128, 1, 32, "r2", SLOW_HOST),
    (128, 1, 32, "r3", SLOW_HOST),
    (128, 16, 32, "s4", SLOW_HOST),
    (128, 16, 32, "r2", SLOW_HOST),
    (128, 16, 32, "r3", SLOW_HOST),
    (128, 16, 32, "r4", SLOW_HOST),
    (128, 256, 32, "s4", SLOW_HOST),
    (128, 256, 32, "r2", SLOW_HOST),
    (128, 256, 32, "r3", SLOW_HOST),
    (128, 256, 32, "r4", SLOW_HOST),
    (128, 1024, 32, "s4", SLOW_HOST),
    (128, 1024, 32, "r2", SLOW_HOST),
    (128, 1024, 32, "r3", SLOW_HOST),
    (128, 1024, 32, "r4", SLOW_HOST),
    (256, 256, 32, "r2", UNEXPLAINED),
    (256, 1024, 32, "r2", UNEXPLAINED),
    (512, 4096, 32, "s3", UNEXPLAINED),
];

#[test]
fn the_wider_set() {
    let profile = Profile::h200();
    let all = rows(WIDER);
    let (first, second) = all.split_at(all.len() / 2);
    let (mut table, mut wrong, mut cells) = (String::new(), 0, 0);
    for (row, again) in first.iter().zip(second) {
        let job = row.job();
        for (column, arrangement) in PIPELINES {
            let (Some(one), Some(two)) = (row.number(column), again.number(column)) else {
                continue;
            };
            // The second run was disturbed from outside for a while: the faster of two medians.
            let measured = one.min(two);
            let (model, ratio) = compare(&profile, row, column, arrangement, measured);
            let missed = (ratio - 1.0).abs() > 0.15;
            let kb = job.bytes / 1024;
            let listed = MISSED
                .iter()
                .any(|(k, i, n, c, _)| (*k, *i, *n, *c) == (kb, job.iters, job.items, column));
            cells += 1;
            if missed != listed {
                wrong += 1;
                writeln!(table, "({kb}, {}, {}, {column:?}, \"\"), // measured {measured:.4} model {model:.4} ratio {ratio:.3}, listed: {listed}", job.iters, job.items).expect("to a string");
            }
        }
    }
    assert_eq!(cells, 7 * 107);
    assert_eq!(
        wrong, 0,
        "missed and not listed, or listed and not missed:\n{table}"
    );
}

/// If calls are as slow as the launches of the same minute, the cells that a slow host explains are within 20 %.
#[test]
fn a_slow_host_explains_what_the_model_misses() {
    let all = rows(WIDER);
    let (first, second) = all.split_at(all.len() / 2);
    let cell = |kb: u64, iters: u64, items: usize, column: &str| {
        let fits = |row: &&Row<'_>| {
            let job = row.job();
            (job.bytes / 1024, job.iters, job.items) == (kb, iters, items)
        };
        let find = |rows: &[Row<'_>]| rows.iter().find(fits).and_then(|r| r.number(column));
        let (one, two) = (find(first).expect("listed"), find(second).expect("listed"));
        one.min(two)
    };
    let (mut table, mut wrong, mut cells) = (String::new(), 0, 0);
    for (kb, iters, items, column, reason) in MISSED {
        if *reason != SLOW_HOST {
            continue;
        }
        let mut profile = Profile::h200();
        let job = Job {
            bytes: kb * 1024,
            iters: 1,
            items: *items,
        };
        let launches = time_ms(&profile, &job, Kernels(1)) / *items as f64;
        let slower = cell(*kb, 1, *items, "kernel").max(cell(*kb, 16, *items, "kernel")) / launches;
        assert!(
            slower > 1.1,
            "{kb} KB, {items} items: the host was not slow: {slower}"
        );
        for call in [
            &mut profile.launch_ns,
            &mut profile.copy_ns,
            &mut profile.record_ns,
            &mut profile.wait_ns,
        ] {
            *call *= slower;
        }
        let (_, arrangement) = PIPELINES
            .into_iter()
            .find(|(c, _)| c == column)
            .expect("a column");
        let measured = cell(*kb, *iters, *items, column);
        let model = time_ms(
            &profile,
            &Job {
                iters: *iters,
                ..job
            },
            arrangement,
        );
        cells += 1;
        if (model / measured - 1.0).abs() > 0.20 {
            wrong += 1;
            writeln!(table, "{kb} KB, {iters} steps, {items} items, {column}: measured {measured:.4} model {model:.4}, calls {slower:.2} times slower").expect("to a string");
        }
    }
    assert!(cells > 0);
    assert_eq!(wrong, 0, "\n{table}");
}

/// Single stages are within 40 % where calls and set-ups dominate, kernels of 30 µs and more within 12 %.
#[test]
fn stages_of_the_wider_set() {
    let profile = Profile::h200();
    let all = rows(WIDER);
    let (first, second) = all.split_at(all.len() / 2);
    let (mut table, mut wrong) = (String::new(), 0);
    for (row, again) in first.iter().zip(second) {
        let job = row.job();
        for (column, arrangement) in STAGES {
            let (Some(one), Some(two)) = (row.number(column), again.number(column)) else {
                continue;
            };
            let measured = one.min(two);
            let (model, ratio) = compare(&profile, row, column, arrangement, measured);
            let bar = if column.starts_with("kernel") && measured > 0.03 {
                0.12
            } else {
                0.40
            };
            if (ratio - 1.0).abs() > bar {
                wrong += 1;
                writeln!(table, "{} KB, {} steps, {} items, {column}: measured {measured:.5} model {model:.5} ratio {ratio:.3}", job.bytes / 1024, job.iters, job.items).expect("to a string");
            }
        }
    }
    assert_eq!(wrong, 0, "\n{table}");
}

/// No arrangement beats the limit, regardless of the size and the work. At 4 MiB or more the best one comes close to
/// it.
#[test]
fn the_limit_bounds_every_arrangement_and_is_tight() {
    for profile in Profile::NAMES.map(|n| Profile::named(n).expect("built in")) {
        for kb in [8u64, 16, 25, 64, 100, 256, 700, 1024, 4096, 10_000, 32768] {
            for iters in [1, 16, 256, 1000, 4096, 16384] {
                for items in [1, 2, 5, 32, 100] {
                    let job = Job {
                        bytes: kb * 1024,
                        iters,
                        items,
                    };
                    let limit =
                        overlap_limit(&profile, items as u64, job.bytes, &job.kernel(), job.bytes)
                            .ns()
                            * 1e-6;
                    let mut best = f64::INFINITY;
                    for (name, arrangement) in PIPELINES {
                        let time = time_ms(&profile, &job, arrangement);
                        assert!(
                            time >= 0.99 * limit,
                            "{}: {job:?} {name} takes {time} ms, limit {limit} ms",
                            profile.name
                        );
                        best = best.min(time);
                    }
                    if kb >= 4096 && items == 32 {
                        assert!(
                            best <= 1.05 * limit,
                            "{}: {job:?}: best {best} ms, limit {limit} ms",
                            profile.name
                        );
                    }
                }
            }
        }
    }
}

/// Shapes outside of the reference keep their order: more work never takes less time.
#[test]
fn time_grows_with_work() {
    let profile = Profile::h200();
    for (_, arrangement) in STAGES.iter().chain(&PIPELINES) {
        let mut before = 0.0;
        for iters in [0, 1, 10, 100, 1000, 10_000] {
            let time = time_ms(
                &profile,
                &Job {
                    bytes: 3 << 20,
                    iters,
                    items: 12,
                },
                *arrangement,
            );
            assert!(
                time >= 0.99 * before,
                "{arrangement:?} {iters}: {time} ms after {before} ms"
            );
            before = time;
        }
    }
}
