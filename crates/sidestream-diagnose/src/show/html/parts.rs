//! Parts from which pages are built.

use std::fmt::{self, Write};

use super::escape::esc;
use crate::findings::time;
use crate::replay::{Prediction, Replay};

pub const STYLE: &str = include_str!("page.css");
/// The maximum number of characters in a title, and in a warning.
pub const TITLE_LETTERS: usize = 300;
pub const WARNING_LETTERS: usize = 600;
pub const MOST_WARNINGS: usize = 30;
/// The maximum number of rows in a table.
pub const MOST_ROWS: usize = 40;
/// The maximum number of characters of a name in a table.
pub const NAME_LETTERS: usize = 240;

/// Writes one figure of the header. All three strings must come from this crate, since they are not escaped.
pub fn fact(out: &mut String, label: &str, big: &str, note: &str) -> fmt::Result {
    write!(
        out,
        "<div><dt>{label}</dt><dd class=\"big\">{big}</dd><dd class=\"note\">{note}</dd></div>"
    )
}

/// Returns the changes of a prediction, as text of a page: stages have names from the trace.
pub fn changes(prediction: &Prediction) -> String {
    let words = prediction
        .changes
        .iter()
        .map(|c| esc(&c.to_string(), 200).to_string());
    words.collect::<Vec<_>>().join(" + ")
}

/// Returns a predicted step relative to the unmodified one, both without the profiler.
pub fn factor(replay: &Replay, prediction: &Prediction) -> f64 {
    prediction.likely_ns as f64 / replay.unprofiled_ns.max(1) as f64
}

/// Returns a small box in the colour of a class.
pub fn swatch(kind: char, at: usize) -> String {
    format!(
        "<svg class=\"swatch\" aria-hidden=\"true\"><rect class=\"{kind}{at}\" width=\"100%\" \
         height=\"100%\"/></svg>"
    )
}

/// Returns the end of a sentence that names the base of a [`factor`], if the base is not the measured step.
pub fn than_without_profiler(replay: &Replay) -> String {
    if replay.is_slowed_by_profiler() {
        format!(
            " as the {} without the profiler",
            time(replay.unprofiled_ns)
        )
    } else {
        String::new()
    }
}
