//! A report for people: text for a terminal.

mod text;

pub use text::text;
