//! A report for people: text for a terminal, a page for a browser, a trace for a
//! viewer of traces.

mod annotated;
mod base;
mod difference;
mod figures;
mod html;
mod lanes;
mod table;
mod text;
mod together;
mod worth;

pub use annotated::annotated;
pub use difference::comparison_text;
pub use html::{html, ranks_html};
pub use table::{Sort, TABLE_SCHEMA, Table, View, table_json, table_text, tables_json};
pub use text::{brief, plain, text};
pub use together::ranks_text;
