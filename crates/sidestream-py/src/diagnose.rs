//! `sidestream.diagnose`.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sidestream_diagnose::{Change, Error, Limits, Options, Problem, Report, is_speed, read, text};

use crate::failure::{TraceError, of_system};

/// Reads a trace and returns the report as JSON and for people. Other threads of Python run meanwhile.
#[pyfunction]
pub fn diagnose(
    py: Python<'_>,
    path: PathBuf,
    link_gbps: Option<f64>,
    what_if: Option<Vec<String>>,
) -> PyResult<(String, String)> {
    let options = options(link_gbps, what_if)?;
    py.detach(|| {
        let trace = read(&path, &Limits::default(), &mut |_, _| {}).map_err(raised)?;
        let report = Report::of(trace, &options);
        let file = path.display().to_string();
        // Whoever prints a text in Python adds the end of the last line.
        let page = text(&file, &report).trim_end().to_owned();
        let mut json = report.json();
        json["file"] = file.into();
        Ok((json.to_string(), page))
    })
}

fn options(link_gbps: Option<f64>, what_if: Option<Vec<String>>) -> PyResult<Options> {
    if let Some(speed) = link_gbps.filter(|speed| !is_speed(*speed)) {
        return Err(PyValueError::new_err(format!(
            "link_gbps is {speed}, which is no speed; give GB/s as a number above 0, as in 25"
        )));
    }
    let sets = what_if.map(|sets| sets.iter().map(|set| changes(set)).collect());
    Ok(Options {
        link_gb_per_s: link_gbps,
        what_if: sets.transpose()?,
    })
}

/// The changes that are made together.
fn changes(set: &str) -> PyResult<Vec<Change>> {
    let changes = set.split(',').map(|change| change.trim().parse());
    let changes: Result<Vec<Change>, _> = changes.collect();
    changes.map_err(|unknown| PyValueError::new_err(format!("what_if: {unknown}")))
}

fn raised(error: Error) -> PyErr {
    let of_system = match &error.problem {
        Problem::Io(problem) => of_system(&error.path, problem),
        _ => None,
    };
    of_system.unwrap_or_else(|| TraceError::new_err(error.to_string()))
}
