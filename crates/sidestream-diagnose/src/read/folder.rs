//! Finds the traces in a folder.

use std::path::{Path, PathBuf};

use super::{Error, Problem};

/// The file name endings of traces.
const ENDS: [&str; 3] = [".json", ".json.gz", ".sqlite"];

/// Returns the files of a folder that are traces by their names, in the order of their names. Subfolders are not searched.
///
/// # Errors
/// The folder cannot be read, or has no such file.
pub fn traces(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let fail = |error| Error::new(folder, Problem::Io(error));
    let entries: Result<Vec<_>, _> = std::fs::read_dir(folder).map_err(fail)?.collect();
    let entries = entries.map_err(fail)?;
    let paths = entries.iter().map(std::fs::DirEntry::path);
    let mut traces: Vec<PathBuf> = paths.filter(|path| is_trace(path)).collect();
    if traces.is_empty() {
        return Err(Error::new(folder, Problem::NoTraces));
    }
    traces.sort();
    Ok(traces)
}

fn is_trace(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy());
    name.is_some_and(|name| ENDS.iter().any(|end| name.ends_with(end)))
}
