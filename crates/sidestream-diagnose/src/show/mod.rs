//! A report for people: text for a terminal, a page for a browser, a trace for a
//! viewer of traces.

mod annotated;
mod base;
mod difference;
mod html;
mod lanes;
mod text;
mod together;
mod worth;

pub use annotated::annotated;
pub use difference::comparison_text;
pub use html::{html, ranks_html};
pub use text::{brief, text};
pub use together::ranks_text;
