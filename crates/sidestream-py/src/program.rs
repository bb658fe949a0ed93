//! `sidestream.check_program`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use serde_json::Value;
use sidestream::engine::Profile;
use sidestream::log::MAGIC;
use sidestream_program::{Limits, check, checked_json, explore, parse_bytes};

use crate::failure::{ProgramError, of_system};

/// Checks the programs of a text, or of the file at `path`. Returns a list of JSON objects, and the reports as text.
/// Other Python threads run meanwhile.
#[pyfunction]
pub fn check_program(
    py: Python<'_>,
    path: Option<PathBuf>,
    text: Option<String>,
) -> PyResult<(String, Vec<String>)> {
    py.detach(|| match (path, text) {
        (Some(path), _) => {
            let bytes = bytes(&path)?;
            checked(&bytes).map_err(|why| refused(&format!("{}: {why}", path.display())))
        }
        (None, text) => checked(text.unwrap_or_default().as_bytes()).map_err(|why| refused(&why)),
    })
}

/// Runs the first program of a text under up to `count` legal schedules of a simulated device. Returns the number of
/// schedules, and of those whose result is not that of the usual one. Other Python threads run meanwhile.
#[pyfunction]
pub fn explored(py: Python<'_>, text: &str, count: usize) -> PyResult<(usize, usize)> {
    let explored = py.detach(|| {
        let document = parse_bytes(text.as_bytes(), &Limits::default());
        let document = document.map_err(|error| error.to_string())?;
        let program = document.programs.first().ok_or("there is no program")?;
        let program = program.as_ref().map_err(ToString::to_string)?;
        explore(program, &Profile::h200(), count).map_err(|error| error.to_string())
    });
    let explored = explored.map_err(|why: String| refused(&why))?;
    Ok((explored.schedules, explored.differing))
}

fn checked(bytes: &[u8]) -> Result<(String, Vec<String>), String> {
    if bytes.starts_with(&MAGIC) {
        return Err("this is the log of a run, not a program; use `sidestream check`".to_owned());
    }
    let document = parse_bytes(bytes, &Limits::default()).map_err(|error| error.to_string())?;
    let (mut values, mut pages) = (Vec::new(), Vec::new());
    for program in &document.programs {
        let program = program.as_ref().map_err(|bad| match &bad.name {
            Some(name) => format!("{name}: {bad}"),
            None => bad.to_string(),
        })?;
        let checked = check(program);
        values.push(checked_json(&checked));
        // In Python, `print` adds the final newline.
        pages.push(checked.page(Some(program)).trim_end().to_owned());
    }
    if values.is_empty() {
        return Err("`cases` lists no program; add one with `name:` and `ops:`".to_owned());
    }
    Ok((Value::Array(values).to_string(), pages))
}

/// Reads a file up to one byte more than the limit for a program: the parser refuses longer ones.
fn bytes(path: &Path) -> PyResult<Vec<u8>> {
    let raised = |error: std::io::Error| {
        of_system(path, &error).unwrap_or_else(|| refused(&format!("{}: {error}", path.display())))
    };
    let most = Limits::default().input_bytes as u64;
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(raised)?;
    file.take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(raised)?;
    Ok(bytes)
}

fn refused(why: &str) -> PyErr {
    ProgramError::new_err(why.to_owned())
}
