//! `sidestream diagnose --table`: one table of a trace instead of its report.

use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use sidestream_diagnose::{Sort, Table, View};

use crate::failure::Failure;

/// Which table is asked for, and how it is sorted and cut.
#[derive(clap::Args)]
pub struct Tables {
    /// Print one table of each trace instead of the report: operators, ranges and calls by name; the ranges that
    /// the program named, one inside the other; kernels; or memory when most was taken
    ///
    /// operators has what `key_averages` of PyTorch's profiler has, calls and steps included. ranges has the time of
    /// the host, of devices, and the idle time of devices. A trace without any work of a GPU will do for operators, ranges and
    /// memory.
    #[arg(long, value_name = "TABLE", value_parser = tables(), conflicts_with_all = ["what_if", "against", "html", "svg", "trace", "link_gbps"])]
    table: Option<Table>,
    /// The column that the table is sorted by; by default time of devices, or of the host where there is none
    #[arg(long, value_name = "COLUMN", requires = "table", value_parser = sorts())]
    sort: Option<Sort>,
    /// How many rows are printed at most
    #[arg(long, value_name = "ROWS", requires = "table", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Operators with inputs of other shapes as rows of their own, where the profiler recorded shapes
    #[arg(long, requires = "table")]
    by_shape: bool,
}

impl Tables {
    /// The table that is asked for; none for the report.
    pub fn view(&self) -> Result<Option<View>, Failure> {
        let Some(table) = self.table else {
            return Ok(None);
        };
        let view = View {
            table,
            sort: self.sort,
            limit: self.limit as usize,
            by_shape: self.by_shape,
        };
        view.check().map_err(Failure::input)?;
        Ok(Some(view))
    }
}

fn tables() -> impl TypedValueParser<Value = Table> {
    PossibleValuesParser::new(Table::ALL.map(Table::as_str))
        .try_map(|word: String| word.parse::<Table>())
}

fn sorts() -> impl TypedValueParser<Value = Sort> {
    PossibleValuesParser::new(Sort::ALL.map(Sort::as_str))
        .try_map(|word: String| word.parse::<Sort>())
}
