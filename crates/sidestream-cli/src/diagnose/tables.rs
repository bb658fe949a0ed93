//! `sidestream diagnose --table`: one table of a trace instead of its report.

use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use sidestream_diagnose::{Sort, Table, View};

use crate::failure::Failure;

/// The table that is asked for, and how it is sorted and cut.
#[derive(clap::Args)]
pub struct Tables {
    /// Print one table of each trace instead of the report: operators, ranges and calls by name; the ranges that the program
    /// named, nested; kernels; or memory at its peak
    ///
    /// operators has the columns of `key_averages` of PyTorch's profiler, and includes calls and steps. ranges has the time on
    /// the host and on devices, and the idle time of devices. operators, ranges and memory also work for a trace without GPU
    /// work.
    #[arg(long, value_name = "TABLE", value_parser = tables(), conflicts_with_all = ["what_if", "against", "html", "svg", "trace", "link_gbps"])]
    table: Option<Table>,
    /// The column by which the table is sorted; by default device time, or host time where there is none
    #[arg(long, value_name = "COLUMN", requires = "table", value_parser = sorts())]
    sort: Option<Sort>,
    /// How many rows are printed at most
    #[arg(long, value_name = "ROWS", requires = "table", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Show operators with inputs of different shapes as separate rows, where the profiler recorded shapes
    #[arg(long, requires = "table")]
    by_shape: bool,
}

impl Tables {
    /// Returns the table that is asked for; `None` for the report.
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
