//! The measurements, as rows with their bars.

use serde_json::{Value, json};
use sidestream_cli::measure::rounds::{median, quantile};

/// One figure of the library, compared with the driver's.
#[derive(Clone, Debug)]
pub struct Row {
    pub what: String,
    pub unit: &'static str,
    /// The time of the driver's own calls; absent if there is no driver.
    pub raw: Option<f64>,
    /// Our time; absent if it cannot be measured.
    pub ours: Option<f64>,
    /// The median of our time divided by the driver's, round by round.
    pub ratio: Option<f64>,
    /// The tenth and the ninetieth percentile of the ratio; of our time if there is no ratio.
    pub spread: Option<(f64, f64)>,
    pub bar: Option<Bar>,
    /// A remark for the reader.
    pub note: String,
}

/// The requirement on a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bar {
    /// The ratio is at most this.
    Ratio(f64),
    /// Our time is at most this, in the row's unit.
    Ours(f64),
    /// The driver's time is at least this many times ours.
    Faster(f64),
}

impl Row {
    /// Makes a row from the times of the rounds. Both sides ran in each.
    pub fn new(
        what: impl Into<String>,
        unit: &'static str,
        raw: Option<&[f64]>,
        ours: &[f64],
        bar: Option<Bar>,
    ) -> Row {
        let ratios: Option<Vec<f64>> =
            raw.map(|raw| ours.iter().zip(raw).map(|(ours, raw)| ours / raw).collect());
        let spread_of = ratios.as_deref().unwrap_or(ours);
        Row {
            what: what.into(),
            unit,
            raw: raw.map(median),
            ours: Some(median(ours)),
            ratio: ratios.as_deref().map(median),
            spread: Some((quantile(spread_of, 0.1), quantile(spread_of, 0.9))),
            bar,
            note: String::new(),
        }
    }

    pub fn note(mut self, note: impl Into<String>) -> Row {
        self.note = note.into();
        self
    }

    /// Whether the bar is met; `None` without a bar, and if the driver's time is missing: a bar applies to a real
    /// device.
    pub fn is_met(&self) -> Option<bool> {
        let (bar, ratio) = (self.bar?, self.ratio?);
        Some(match bar {
            Bar::Ratio(most) => ratio <= most,
            Bar::Ours(most) => self.ours? <= most,
            Bar::Faster(least) => ratio <= 1.0 / least,
        })
    }

    pub fn as_json(&self) -> Value {
        let bar = self.bar.map(|bar| bar.in_words(self.unit));
        json!({"what": self.what, "unit": self.unit, "raw": self.raw, "ours": self.ours,
               "ratio": self.ratio, "low": self.spread.map(|s| s.0), "high": self.spread.map(|s| s.1),
               "bar": bar, "met": self.is_met(), "note": self.note})
    }
}

impl Bar {
    fn in_words(self, unit: &str) -> String {
        match self {
            Bar::Ratio(most) => format!("at most {most:.2} x raw"),
            Bar::Ours(most) => format!("at most {most} {unit}"),
            Bar::Faster(least) => format!("at least {least} x as fast as raw"),
        }
    }
}

/// The rows as a text table.
pub fn as_text(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.what.len()).max().unwrap_or(0);
    let mut out = format!(
        "{:width$}  {:>9} {:>9} {:2}  {:>6}  {:13}  {:4} {}\n",
        "", "raw", "ours", "", "ratio", "p10 to p90", "met", "bar"
    );
    for row in rows {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), four_digits);
        let spread = row.spread.map_or(String::new(), |(low, high)| {
            format!("{} to {}", four_digits(low), four_digits(high))
        });
        let met = match row.is_met() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        let bar = row.bar.map_or(String::new(), |bar| bar.in_words(row.unit));
        let note = match row.note.as_str() {
            "" => String::new(),
            note => format!("  ({note})"),
        };
        let line = format!(
            "{:width$}  {:>9} {:>9} {:2}  {:>6}  {spread:13}  {met:4} {bar}{note}",
            row.what,
            number(row.raw),
            number(row.ours),
            row.unit,
            row.ratio
                .map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
        );
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// Formats a value with as many digits as such a measurement justifies.
fn four_digits(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v if v >= 10.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_taken_round_by_round() {
        // The machine was twice as slow in the second round, for both sides.
        let row = Row::new(
            "x",
            "us",
            Some(&[1.0, 2.0, 1.0]),
            &[1.1, 2.2, 1.1],
            Some(Bar::Ratio(1.15)),
        );
        let ratio = row.ratio.expect("there is a raw time");
        assert!((ratio - 1.1).abs() < 1e-9);
        assert_eq!(row.is_met(), Some(true));
        assert_eq!((row.raw, row.ours), (Some(1.0), Some(1.1)));
    }

    #[test]
    fn each_kind_of_bar_is_met_or_missed() {
        let met = |raw: f64, ours: f64, bar| {
            let row = Row::new("x", "us", Some(&[raw]), &[ours], Some(bar));
            row.is_met().expect("there is a bar")
        };
        assert!(met(1.0, 1.2, Bar::Ratio(1.2)));
        assert!(!met(1.0, 1.21, Bar::Ratio(1.2)));
        assert!(met(1.0, 0.15, Bar::Ours(0.15)));
        assert!(!met(1.0, 0.16, Bar::Ours(0.15)));
        assert!(met(1.2, 1.0, Bar::Faster(1.2)));
        assert!(!met(1.19, 1.0, Bar::Faster(1.2)));
    }

    #[test]
    fn without_a_driver_no_bar_is_met_or_missed() {
        let row = Row::new("x", "us", None, &[0.1], Some(Bar::Ours(0.15)));
        assert_eq!((row.is_met(), row.ratio, row.raw), (None, None, None));
    }
}
