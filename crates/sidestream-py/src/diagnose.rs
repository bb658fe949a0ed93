//! `sidestream.diagnose`.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::Value;
use sidestream_diagnose::{
    Change, Error, Excerpt, LINK_GB_PER_S, Limits, Options, Problem, Rank, Ranks, Report, View,
    brief, html, is_speed, plain, ranks_html, ranks_text, read, table_json, table_text, text,
};

use crate::failure::{TraceError, of_system};

/// The width of the text in columns, fixed since the output may be shown anywhere.
const COLUMNS: usize = 100;

/// What `diagnose` returns: the report as JSON, as text, as an HTML page and as a summary; the digest that [`ranks`]
/// takes; and the tables.
type Diagnosed = (String, String, String, String, String, Tables);

/// The report of a trace. Its tables are sorted and cut on request.
#[pyclass(frozen, module = "sidestream._sidestream")]
pub struct Tables {
    file: String,
    report: Report,
}

#[pymethods]
impl Tables {
    /// One table, as JSON and as text.
    fn table(
        &self,
        table: &str,
        sort: Option<&str>,
        limit: usize,
        by_shape: bool,
    ) -> PyResult<(String, String)> {
        let refused = |why: String| PyValueError::new_err(why);
        let view = View {
            table: table
                .parse()
                .map_err(|there_is| refused(format!("no table is called {table:?}; {there_is}")))?,
            sort: sort
                .map(|sort| {
                    let unknown = |there_is| format!("no column is called {sort:?}; {there_is}");
                    sort.parse().map_err(unknown)
                })
                .transpose()
                .map_err(refused)?,
            limit,
            by_shape,
        };
        view.check().map_err(refused)?;
        let text = table_text(&self.file, &self.report, &view, Some(COLUMNS));
        let mut json = table_json(&self.report, &view);
        json["file"] = self.file.as_str().into();
        Ok((json.to_string(), text.trim_end().to_owned()))
    }
}

/// Reads a trace and reports why the device idled. Other Python threads run meanwhile.
#[pyfunction]
pub fn diagnose(
    py: Python<'_>,
    path: PathBuf,
    link_gbps: Option<f64>,
    what_if: Option<Vec<String>>,
) -> PyResult<Diagnosed> {
    let options = options(link_gbps, what_if)?;
    py.detach(|| {
        let trace = read(&path, &Limits::default(), &mut |_, _| {}).map_err(raised)?;
        let mut report = Report::of(trace, &options);
        let file = path.display().to_string();
        // In Python, `print` adds the final newline.
        let text = text(&file, &report, COLUMNS).trim_end().to_owned();
        let page = html(&file, &report);
        let short = brief(&file, &report).trim_end().to_owned();
        let rank = Rank::of(&file, &report).whole_json().to_string();
        let mut json = report.json();
        json["file"] = file.as_str().into();
        // The zooms and the excerpt are the largest parts of the report, and no table needs them.
        report.zooms = Vec::new();
        report.excerpt = Excerpt::default();
        let tables = Tables { file, report };
        Ok((json.to_string(), text, page, short, rank, tables))
    })
}

/// Checks the options of [`diagnose`] before there is a trace, with the same errors.
#[pyfunction]
pub fn check_options(link_gbps: Option<f64>, what_if: Option<Vec<String>>) -> PyResult<()> {
    options(link_gbps, what_if).map(drop)
}

/// The part of a trace's analysis that [`ranks`] takes, without the report.
#[pyfunction]
pub fn digest(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    py.detach(|| {
        let trace = read(&path, &Limits::default(), &mut |_, _| {}).map_err(raised)?;
        let report = Report::of(trace, &Options::default());
        let file = path.display().to_string();
        Ok(Rank::of(&file, &report).whole_json().to_string())
    })
}

/// The trace files in a folder.
#[pyfunction]
pub fn traces(folder: PathBuf) -> PyResult<Vec<PathBuf>> {
    sidestream_diagnose::traces(&folder).map_err(raised)
}

/// What the ranks of one run show together, as JSON, as text and as a page; `None` if no two digests belong to one
/// run.
#[pyfunction]
pub fn ranks(
    py: Python<'_>,
    each: Vec<String>,
    title: &str,
) -> PyResult<Option<(String, String, String)>> {
    py.detach(|| together(each, title))
}

fn together(each: Vec<String>, title: &str) -> PyResult<Option<(String, String, String)>> {
    // Ranks are parsed one at a time: as JSON values they take ten times the memory.
    let rank = |text: String| Rank::of_json(&serde_json::from_str::<Value>(&text).ok()?);
    let each: Option<Vec<Rank>> = each.into_iter().map(rank).collect();
    let each = each.ok_or_else(|| {
        PyValueError::new_err("this is not a rank; give one that this version of `diagnose` made")
    })?;
    Ok(Ranks::of(each).map(|ranks| {
        (
            ranks.json().to_string(),
            ranks_text(&ranks).trim_end().to_owned(),
            ranks_html(title, &ranks),
        )
    }))
}

fn options(link_gbps: Option<f64>, what_if: Option<Vec<String>>) -> PyResult<Options> {
    if let Some(speed) = link_gbps.filter(|speed| !is_speed(*speed)) {
        return Err(PyValueError::new_err(format!(
            "link_gbps is {speed}, which is not the speed of a link; give GB/s as a number from {} to {}, as in 25",
            LINK_GB_PER_S.start(),
            LINK_GB_PER_S.end()
        )));
    }
    let sets = what_if.map(|sets| sets.iter().map(|set| changes(set)).collect());
    Ok(Options {
        link_gb_per_s: link_gbps,
        what_if: sets.transpose()?,
    })
}

/// Untrusted text, such as a file name, made safe to print.
#[pyfunction]
pub fn printable(text: &str) -> String {
    plain(text)
}

/// The changes that one what-if scenario combines.
fn changes(set: &str) -> PyResult<Vec<Change>> {
    Change::set(set).map_err(|problem| PyValueError::new_err(format!("what_if: {problem}")))
}

fn raised(error: Error) -> PyErr {
    let of_system = match &error.problem {
        Problem::Io(problem) => of_system(&error.path, problem),
        _ => None,
    };
    of_system.unwrap_or_else(|| TraceError::new_err(error.to_string()))
}
