//! Writes the output of the commands to standard output, and to files that the user names.

use std::fmt::Display;
use std::fs::{File, OpenOptions, remove_file};
use std::path::{Path, PathBuf};

use sidestream::trace::Trace;

use crate::failure::{Failure, print, shown};

/// Prints the result: a line of JSON if that was asked for, otherwise the text.
pub fn say<J: Display>(
    is_json: bool,
    json: impl FnOnce() -> J,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    match is_json {
        true => print(format_args!("{}\n", json())),
        false => print(text()),
    }
}

/// Writes a run as a Chrome trace.
pub fn write_trace(trace: &Trace, to: &Path) -> Result<(), Failure> {
    let file = File::create(to).map_err(|error| Failure::file("create", to, &error))?;
    let written = trace.write_json(file);
    written.map_err(|error| Failure::file("write", to, &error))
}

/// Refuses an output file that is also an input; `what` describes the input files.
pub fn refuse_overwriting(
    read: &[PathBuf],
    what: &str,
    written: [(&str, &Option<PathBuf>); 2],
) -> Result<(), Failure> {
    for (option, to) in written {
        let is_written = |path: &PathBuf| to.as_ref().is_some_and(|to| is_same(path, to));
        if read.iter().any(is_written) {
            return Err(Failure::input(format!(
                "{option} would overwrite {what}; give another file"
            )));
        }
    }
    for (option, to) in written {
        refuse_unwritable(option, to.as_deref())?;
    }
    match written {
        [(one, Some(a)), (other, Some(b))] if is_same(a, b) => Err(Failure::input(format!(
            "{one} and {other} name the same file; give two"
        ))),
        _ => Ok(()),
    }
}

/// Refuses an output file that cannot be written, before any work is done.
pub fn refuse_unwritable(option: &str, to: Option<&Path>) -> Result<(), Failure> {
    let Some(to) = to else { return Ok(()) };
    let opened = if to.is_file() || to.is_dir() {
        OpenOptions::new().append(true).open(to).map(drop)
    } else if to.symlink_metadata().is_ok() {
        // Opening a pipe waits for its reader, and closing it again would end the reader.
        Ok(())
    } else {
        let new = OpenOptions::new().write(true).create_new(true).open(to);
        new.and_then(|_| remove_file(to))
    };
    opened.map_err(|error| {
        let to = shown(to);
        Failure::input(format!(
            "{option} {to} cannot be written: {error}; name a file in an existing folder to which you may write"
        ))
    })
}

/// Returns whether two paths name the same file.
fn is_same(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
