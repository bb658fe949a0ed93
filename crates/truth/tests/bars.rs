//! The accuracy that `sidestream diagnose` must reach on jobs whose truth is known.
//!
//! Each figure has a bar; docs/developers/reliability.md has the figures for more jobs.

use truth::many;

/// Jobs of the test; `cargo xtask truth 100000 1` has more of them.
const JOBS: u64 = 300;

/// A figure in percent, whether it must be high or low, and its bar.
struct Bar {
    what: &'static str,
    percent: f64,
    is_high: bool,
    bar: f64,
}

impl Bar {
    fn is_met(&self) -> bool {
        match self.is_high {
            true => self.percent >= self.bar,
            false => self.percent <= self.bar,
        }
    }
}

#[test]
fn reports_are_right() {
    let tally = many(JOBS, 1).unwrap();
    println!("{tally}");
    let figures = tally.figures();
    let high = |what, share: f64, bar| Bar {
        what,
        percent: 100.0 * share,
        is_high: true,
        bar,
    };
    let low = |what, share, bar| Bar {
        is_high: false,
        ..high(what, share, bar)
    };
    let bars = [
        high("right cause first", figures.first, 90.0),
        high(
            "right cause first, one fault",
            figures.first_of_single,
            95.0,
        ),
        high("range holds the truth", figures.holding, 90.0),
        low("median width of a range", figures.width, 20.0),
        low(
            "NOTHING_TO_GAIN where 5 % could be gained",
            figures.false_nothing,
            0.0,
        ),
        low(
            "promised where nothing was planted",
            figures.false_promises,
            0.0,
        ),
    ];
    for bar in &bars {
        assert!(
            bar.is_met(),
            "{}: {:.2} % and not {} %; `cargo xtask truth {JOBS} 1` lists the seeds, and \
             `cargo xtask truth 1 SEED --show` shows one",
            bar.what,
            bar.percent,
            bar.bar
        );
    }
}
