//! Statistics of the results: mean, deviation and range of each colour.

use rayon::prelude::*;
use serde_json::{Value, json};
use sidestream_images::augment::{Form, Layout};

use super::job::Done;

/// Sums over the values of each colour so far, in the units of the results. Output refers to the values before
/// `Normalize`.
pub struct Statistics {
    /// What `Normalize` subtracted, and what it divided by.
    normalized: ([f64; 3], [f64; 3]),
    count: u64,
    sum: [f64; 3],
    squares: [f64; 3],
    least: [f64; 3],
    most: [f64; 3],
}

impl Default for Statistics {
    fn default() -> Statistics {
        Statistics {
            normalized: ([0.0; 3], [1.0; 3]),
            count: 0,
            sum: [0.0; 3],
            squares: [0.0; 3],
            least: [f64::INFINITY; 3],
            most: [f64::NEG_INFINITY; 3],
        }
    }
}

fn of_picture(bytes: &[u8], form: Form) -> Statistics {
    let mut all = Statistics::default();
    let values = bytes.len() / form.kind.bytes();
    all.count = values as u64 / 3;
    for colour in 0..3 {
        let (first, step) = match form.layout {
            Layout::Nchw => (colour * (values / 3), 1),
            Layout::Nhwc => (colour, 3),
        };
        let places = bytes[first * form.kind.bytes()..].chunks_exact(form.kind.bytes());
        for bytes in places.step_by(step).take(values / 3) {
            let value = f64::from(form.kind.value(bytes));
            all.sum[colour] += value;
            all.squares[colour] += value * value;
            all.least[colour] = all.least[colour].min(value);
            all.most[colour] = all.most[colour].max(value);
        }
    }
    all
}

impl Statistics {
    /// Returns the empty statistics for a plan that normalizes by this mean and deviation.
    pub fn before((mean, std): ([f32; 3], [f32; 3])) -> Statistics {
        Statistics {
            normalized: (mean.map(f64::from), std.map(f64::from)),
            ..Statistics::default()
        }
    }

    /// Converts values of the results back to before `Normalize`.
    fn back(&self, values: [f64; 3]) -> [f64; 3] {
        let (mean, std) = self.normalized;
        std::array::from_fn(|colour| values[colour] * std[colour] + mean[colour])
    }

    fn said(&self) -> [(&'static str, [f64; 3]); 4] {
        let (mean, deviation) = (self.mean(), self.deviation());
        let scaled = std::array::from_fn(|colour| deviation[colour] * self.normalized.1[colour]);
        [
            ("mean", self.back(mean)),
            ("std", scaled),
            ("min", self.back(self.least)),
            ("max", self.back(self.most)),
        ]
    }

    /// Adds a batch.
    pub fn add(&mut self, batch: &Done<'_>, form: Form) {
        let picture = batch.shape.iter().product::<usize>();
        let pictures = batch.bytes.par_chunks_exact(picture * form.kind.bytes());
        // Collected in the order of the pictures, so that sums are equal on any number of cores.
        let each: Vec<Statistics> = pictures.map(|bytes| of_picture(bytes, form)).collect();
        for one in each {
            self.count += one.count;
            for colour in 0..3 {
                self.sum[colour] += one.sum[colour];
                self.squares[colour] += one.squares[colour];
                self.least[colour] = self.least[colour].min(one.least[colour]);
                self.most[colour] = self.most[colour].max(one.most[colour]);
            }
        }
    }

    fn mean(&self) -> [f64; 3] {
        self.sum.map(|sum| sum / self.count.max(1) as f64)
    }

    fn deviation(&self) -> [f64; 3] {
        let mean = self.mean();
        std::array::from_fn(|colour| {
            let square = self.squares[colour] / self.count.max(1) as f64;
            (square - mean[colour] * mean[colour]).max(0.0).sqrt()
        })
    }

    /// Returns the statistics for `--json`; null if there are no pictures.
    pub fn json(&self) -> Value {
        if self.count == 0 {
            return Value::Null;
        }
        let each = self.said().into_iter();
        each.map(|(name, values)| (name.to_owned(), json!(values)))
            .collect()
    }

    /// Returns the statistics as a table.
    pub fn text(&self, is_numeric: bool) -> String {
        if self.count == 0 {
            return String::new();
        }
        let digits = if is_numeric { 4 } else { 1 };
        let mut text = "\n            red       green        blue\n".to_owned();
        for (name, values) in self.said() {
            let [red, green, blue] = values.map(|value| format!("{value:>11.digits$}"));
            text += &format!("{name:<5}{red}{green}{blue}\n");
        }
        text
    }
}
