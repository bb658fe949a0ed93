//! A report for people: text for a terminal.

mod difference;
mod lanes;
mod text;
mod together;

pub use difference::comparison_text;
pub use text::{brief, text};
pub use together::ranks_text;
