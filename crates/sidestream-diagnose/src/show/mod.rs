//! A report for people: text for a terminal, a page for a browser, a trace for a
//! viewer of traces.

mod annotated;
mod html;
mod text;

pub use annotated::annotated;
pub use html::html;
pub use text::text;
