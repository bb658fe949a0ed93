//! What pages are put together from.

use std::fmt::{self, Write};

use super::escape::esc;
use crate::findings::time;
use crate::replay::{Prediction, Replay};

pub const STYLE: &str = include_str!("page.css");
/// Letters of a title, and of a warning.
pub const TITLE_LETTERS: usize = 300;
pub const WARNING_LETTERS: usize = 600;
pub const MOST_WARNINGS: usize = 30;
/// No table is longer.
pub const MOST_ROWS: usize = 40;
/// Letters of a name in a table.
pub const NAME_LETTERS: usize = 240;

/// One figure of the head. All three are text of ours.
pub fn fact(out: &mut String, label: &str, big: &str, note: &str) -> fmt::Result {
    write!(
        out,
        "<div><dt>{label}</dt><dd class=\"big\">{big}</dd><dd class=\"note\">{note}</dd></div>"
    )
}

/// The changes of a prediction, as text of a page: stages have names of the trace.
pub fn changes(prediction: &Prediction) -> String {
    let words = prediction
        .changes
        .iter()
        .map(|c| esc(&c.to_string(), 200).to_string());
    words.collect::<Vec<_>>().join(" + ")
}

/// A predicted step as a part of the unmodified one, both without the profiler.
pub fn factor(replay: &Replay, prediction: &Prediction) -> f64 {
    prediction.likely_ns as f64 / replay.unprofiled_ns.max(1) as f64
}

/// A little box in the colour of a class.
pub fn swatch(kind: char, at: usize) -> String {
    format!(
        "<svg class=\"swatch\" aria-hidden=\"true\"><rect class=\"{kind}{at}\" width=\"100%\" \
         height=\"100%\"/></svg>"
    )
}

/// What such a part is of, where it is not the step that was measured.
pub fn than_without_profiler(replay: &Replay) -> String {
    match replay.is_slowed_by_profiler() {
        true => format!(
            " as the {} without the profiler",
            time(replay.unprofiled_ns)
        ),
        false => String::new(),
    }
}
