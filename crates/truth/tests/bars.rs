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
        if self.is_high {
            self.percent >= self.bar
        } else {
            self.percent <= self.bar
        }
    }
}

#[test]
fn reports_are_right() {
    let tally = many(JOBS, 1).unwrap();
    println!("{tally}");
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
        high("right cause first", tally.first().rate(), 90.0),
        high("right cause first, one fault", tally.right[0].rate(), 95.0),
        high("range holds the truth", tally.holding.rate(), 90.0),
        low("median width of a range", tally.width(), 20.0),
        low(
            "NOTHING_TO_GAIN where 5 % could be gained",
            tally.false_nothing.rate(),
            0.0,
        ),
        low(
            "promised where nothing was planted",
            tally.false_promises.rate(),
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
