//! A report for people: text for a terminal, a page for a browser, a trace for a
//! viewer of traces.

mod annotated;
mod base;
mod columns;
mod difference;
mod figures;
mod html;
mod json;
mod lanes;
mod marks;
mod picture;
mod plain;
mod table;
mod text;
mod together;
mod why;
mod worth;

pub use annotated::annotated;
pub use columns::Sort;
pub use difference::{comparison_text, gate_text};
pub use html::{html, ranks_html};
pub use json::{SCHEMA, TABLE_SCHEMA, table_json};
pub use picture::picture;
pub use plain::plain;
pub use table::{Table, View, table_text};
pub use text::{brief, text};
pub use together::ranks_text;
