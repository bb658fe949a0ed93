//! The gate on the time of a step: how often it fails for equal runs and for slower ones, and the cause that it names.

use sidestream::sim::split_mix;
use sidestream_diagnose::{
    Comparison, Gate, Limits, Options, Report, Slowdown, Verdict, gate_text, read_json,
};

use crate::fixtures::program::{DEFAULT, Program};

const SEED: u64 = 20_261_126;
/// A step without noise, in microseconds.
const STEP_US: f64 = 10_000.0;

struct Draw(u64);

impl Draw {
    fn unit(&mut self) -> f64 {
        ((split_mix(&mut self.0) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Returns a number of the normal distribution.
    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Returns numbers of a stationary process in which each resembles the one before.
    fn drifting(&mut self, steps: usize, likeness: f64) -> Vec<f64> {
        let mut last = self.normal();
        let each = (0..steps).map(|_| {
            last = likeness * last + (1.0 - likeness * likeness).sqrt() * self.normal();
            last
        });
        each.collect()
    }

    fn around_one(&mut self, steps: usize, spread: f64) -> Vec<f64> {
        (0..steps).map(|_| 1.0 + spread * self.normal()).collect()
    }

    /// Returns steps of which one of `every` takes longer, from a random one on.
    fn every(&mut self, steps: usize, every: usize, longer: f64) -> Vec<f64> {
        let first = (self.unit() * every as f64) as usize;
        let extra = |at| if at % every == first { longer } else { 0.0 };
        let each = self.around_one(steps, 0.01).into_iter().enumerate();
        each.map(|(at, step)| step + extra(at)).collect()
    }
}

/// A way in which steps vary: its name, the number of steps, and their times relative to the usual one.
type Kind = (&'static str, usize, fn(&mut Draw, usize) -> Vec<f64>);

/// The kinds, each with about the fewest steps by which a slowdown of 3 % is found.
const KINDS: [Kind; 13] = [
    ("normal, 1 %", 20, |draw, n| draw.around_one(n, 0.01)),
    ("normal, 2 %", 40, |draw, n| draw.around_one(n, 0.02)),
    ("normal, 3 %", 60, |draw, n| draw.around_one(n, 0.03)),
    ("lognormal, 3 %", 60, |draw, n| {
        (0..n).map(|_| (0.03 * draw.normal()).exp()).collect()
    }),
    ("long tail", 30, |draw, n| {
        (0..n)
            .map(|_| 1.0 + 0.01 * draw.normal() + 0.02 * (draw.unit().powf(-0.4) - 1.0))
            .collect()
    }),
    ("drifting, likeness 0.5, 1 %", 40, |draw, n| {
        let each = draw.drifting(n, 0.5).into_iter();
        each.map(|x| 1.0 + 0.01 * x).collect()
    }),
    ("drifting, likeness 0.8, 0.3 %", 50, |draw, n| {
        let each = draw.drifting(n, 0.8).into_iter();
        each.map(|x| 1.0 + 0.003 * x).collect()
    }),
    ("getting slower by 3 %", 50, |draw, n| {
        let each = draw.around_one(n, 0.01).into_iter().enumerate();
        each.map(|(at, x)| x + 0.03 * at as f64 / n as f64)
            .collect()
    }),
    ("a checkpoint in every 10th, +50 %", 30, |draw, n| {
        draw.every(n, 10, 0.5)
    }),
    ("two kinds in turn, +30 %", 40, |draw, n| {
        draw.every(n, 2, 0.3)
    }),
    ("two kinds at random, +15 %", 70, |draw, n| {
        let each = draw.around_one(n, 0.01).into_iter();
        each.map(|x| x + if draw.unit() < 0.5 { 0.15 } else { 0.0 })
            .collect()
    }),
    ("garbage collection, 3 times, 4 %", 30, |draw, n| {
        let each = draw.around_one(n, 0.01).into_iter();
        each.map(|x| x * if draw.unit() < 0.04 { 3.0 } else { 1.0 })
            .collect()
    }),
    ("warm-up of three steps", 24, |draw, n| {
        let each = draw.around_one(n, 0.01).into_iter().enumerate();
        each.map(|(at, x)| x * [2.0, 1.5, 1.2].get(at).unwrap_or(&1.0))
            .collect()
    }),
];

/// Alarms in pairs of runs: at 0 % for equal ones and for ones slower by 3 %, at 5 % for ones slower by 3 % and by 8 %.
#[derive(Default, Debug)]
struct Alarms([usize; 4]);

impl Alarms {
    /// Counts the alarms of a pair, from the function that judges a slowdown at a gate.
    fn add(&mut self, mut fails: impl FnMut(f64, f64) -> bool) {
        let cases = [(1.0, 0.0), (1.03, 0.0), (1.03, 5.0), (1.08, 5.0)];
        for (count, (factor, percent)) in self.0.iter_mut().zip(cases) {
            *count += usize::from(fails(factor, percent));
        }
    }

    #[track_caller]
    fn check(&self, what: &str, pairs: usize) {
        let [equal, found, below, above] = self.0;
        println!(
            "{what:34} of {pairs}: equal {equal}; 3 % slower {found}, at 5 % {below}; 8 % slower at 5 % {above}"
        );
        assert!(equal.max(below) * 100 <= pairs, "{what}: false alarms");
        assert!(found.min(above) * 100 >= pairs * 95, "{what}: not found");
    }
}

#[test]
fn equal_runs_pass_and_slower_ones_fail_however_steps_vary() {
    println!("seed {SEED}");
    let pairs = match std::env::var_os("SIDESTREAM_NIGHTLY") {
        Some(_) => 10_000,
        None => 200,
    };
    let mut draw = Draw(SEED);
    for (what, steps, times) in KINDS {
        let mut alarms = Alarms::default();
        for _ in 0..pairs {
            let mut run = |factor: f64| -> Vec<u64> {
                let each = times(&mut draw, steps - 1).into_iter();
                each.map(|x| (factor * x * STEP_US * 1e3) as u64).collect()
            };
            let baseline = run(1.0);
            alarms.add(|factor, percent| {
                let slowdown = Slowdown::of(&run(factor), &baseline).expect("enough steps");
                slowdown.low > 1.0 + percent / 100.0
            });
        }
        alarms.check(what, pairs);
    }
}

/// Lengths of what a step does, relative to the step: the host's own work, an upload, and a kernel.
#[derive(Clone, Copy)]
struct Parts {
    host: f64,
    copy: f64,
    kernel: f64,
    /// Whether the kernel waits for the copy.
    is_exposed: bool,
}

const PARTS: Parts = Parts {
    host: 0.2,
    copy: 0.1,
    kernel: 0.7,
    is_exposed: true,
};

/// Returns the report on the trace of a run.
fn report(steps: &[f64], parts: Parts) -> Report {
    let mut from = 0.0;
    let lengths = steps.iter().map(|x| {
        let copy = if parts.is_exposed { parts.copy } else { 0.0 };
        let begun = from;
        from += STEP_US * x * (parts.host + copy + parts.kernel);
        (begun as i64, from as i64)
    });
    let lengths: Vec<(i64, i64)> = lengths.collect();
    let program = Program::within(&lengths, |program, (start, end), step| {
        let us = |part: f64| (STEP_US * steps[step] * part) as i64;
        let upload = start + us(parts.host);
        program.range("user_annotation", "augment", (start, us(parts.host) - 20));
        let (call, span) = ((upload - 15, 5), (upload, us(parts.copy)));
        program.copy("Pinned -> Device", 1 << 20, 9, call, span);
        let kernel = us(parts.kernel);
        program.kernel(DEFAULT, upload - 8, (end - kernel, kernel));
    });
    let trace = read_json(&program.json()[..], &Limits::default()).expect("a trace");
    Report::of(trace, &Options::default())
}

fn gate(now: &Report, baseline: &Report, percent: f64) -> Gate {
    Gate::of(
        Comparison::of(now, baseline).as_ref().map_err(|why| *why),
        percent,
    )
}

#[test]
fn equal_traces_pass_and_slower_ones_fail() {
    println!("seed {SEED}");
    let mut draw = Draw(SEED);
    let mut alarms = Alarms::default();
    for pair in 0..200 {
        let (_, steps, times) = KINDS[pair % KINDS.len()];
        let baseline = report(&times(&mut draw, steps), PARTS);
        alarms.add(|factor, percent| {
            let steps: Vec<f64> = times(&mut draw, steps).iter().map(|x| factor * x).collect();
            gate(&report(&steps, PARTS), &baseline, percent).verdict == Verdict::Failed
        });
    }
    alarms.check("traces of all kinds", 200);
}

/// Checks the cause that is named where a part of a step grew.
#[track_caller]
fn names(grown: Parts, says: &str) {
    let mut draw = Draw(SEED);
    let mut run = |parts| report(&draw.around_one(20, 0.005), parts);
    let (now, baseline) = (run(grown), run(PARTS));
    let text = gate_text(&gate(&now, &baseline, 5.0));
    assert!(
        text.starts_with("gate    failed at 5 %: the step changed by +"),
        "{text}"
    );
    assert!(text.contains(says), "{text}");
}

#[test]
fn what_grew_is_named() {
    names(
        Parts {
            host: 0.35,
            ..PARTS
        },
        "HOST_WORK (the host did its own work, or nothing that the trace shows), most in augment (+",
    );
    names(
        Parts {
            kernel: 0.9,
            ..PARTS
        },
        "time of kernels grew by 2.",
    );
    names(
        Parts {
            kernel: 0.9,
            ..PARTS
        },
        ", most in gemm (+2.",
    );
    names(
        Parts {
            copy: 0.25,
            ..PARTS
        },
        "copies that no kernel hides grew by 1.",
    );
    let mut draw = Draw(SEED);
    let mut run = |parts| report(&draw.around_one(20, 0.005), parts);
    let hidden = run(Parts {
        is_exposed: false,
        copy: 0.2,
        ..PARTS
    });
    let exposed = run(Parts { copy: 0.2, ..PARTS });
    let cause = gate(&exposed, &hidden, 5.0)
        .cause
        .expect("a step of 1.1 times the length");
    let says = "they take as long as before, but less of it is hidden";
    assert!(
        cause.starts_with("copies") && cause.ends_with(says),
        "{cause}"
    );
}

#[test]
fn traces_that_do_not_tell_say_what_to_record() {
    let baseline = report(&[1.0; 20], PARTS);
    let few = gate(&report(&[1.5; 5], PARTS), &report(&[1.0; 5], PARTS), 5.0);
    assert_eq!(few.verdict, Verdict::Unknown);
    let says = "5 steps now and 5 in the baseline are too few to bound the slowdown; record at least 7 of each";
    assert!(few.why.starts_with(says), "{}", few.why);
    // Times a thousand years apart are no reason to fail.
    let far = Slowdown::of(&[u64::MAX; 9], &[1; 9]).expect("enough steps");
    assert!(far.low > 1e18 && far.high.is_finite(), "{far:?}");
    let none = Slowdown::of(&[5; 9], &[0; 9]).expect_err("no ratio");
    assert!(none.contains("took no time"), "{none}");
    // A clear slowdown is bounded although steps drift, by ten of them.
    let drifting: Vec<u64> = (0..10).map(|at| 1000 + at).collect();
    let twice: Vec<u64> = drifting.iter().map(|ns| 2 * ns).collect();
    let slowdown = Slowdown::of(&twice, &drifting).expect("enough steps");
    assert!(slowdown.low > 1.5, "{slowdown:?}");
    assert_eq!(gate(&baseline, &baseline, 0.0).verdict, Verdict::Passed);
}
