//! The files that `sidestream diagnose` writes in addition to its printed output.

use std::fs::File;
use std::path::{Path, PathBuf};

use sidestream_diagnose::{Ranks, Report, annotated, html, picture, ranks_html};

use crate::failure::Failure;
use crate::output::refuse_unwritable;

/// The files that were asked for.
#[derive(clap::Args)]
pub struct Written {
    /// Write the report of one trace to this file, as a page for a browser; for several traces, the report of the ranks of one
    /// run together
    ///
    /// The page needs no network and can be printed or sent.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the median step of one trace to this file as an SVG picture: measured, and with the best change
    ///
    /// For a document, an issue or a message. It is drawn on a light ground and needs no network.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the median step of one trace to this file for a viewer such as Perfetto, with the findings
    ///
    /// Chrome JSON with the steps before and after it, or all of a small trace; the findings, the idle time by its cause and
    /// the step as each change would make it are separate rows.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl Written {
    /// Refuses options that cannot have an effect, before anything is read.
    pub fn check(&self, traces: &[&Path]) -> Result<(), Failure> {
        let asked = [
            ("--html", &self.html),
            ("--svg", &self.svg),
            ("--trace", &self.trace),
        ];
        let asked = asked.into_iter();
        let asked: Vec<(&str, &Path)> = asked
            .filter_map(|(option, path)| Some((option, path.as_deref()?)))
            .collect();
        let of_one = [("--svg", &self.svg), ("--trace", &self.trace)];
        let of_one = of_one.into_iter().find(|(_, path)| path.is_some());
        if let Some((first, _)) = of_one.filter(|_| traces.len() != 1) {
            return Err(Failure::input(format!(
                "{first} takes one trace, and {} were named; call the command once for each",
                traces.len()
            )));
        }
        for (option, path) in &asked {
            if traces.iter().any(|trace| same(trace, path)) {
                return Err(Failure::input(format!(
                    "{option} {} would overwrite the trace; name another file",
                    path.display()
                )));
            }
            refuse_unwritable(option, Some(path))?;
        }
        for (at, (option, path)) in asked.iter().enumerate() {
            let twin = asked[..at]
                .iter()
                .find(|(_, other)| same(path, other) || path == other);
            if let Some((first, _)) = twin {
                return Err(Failure::input(format!(
                    "{first} and {option} both name {}; name two files",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Writes the page of several traces.
    pub fn write_ranks(&self, title: &str, ranks: Option<&Ranks>) -> Result<(), Failure> {
        let Some(path) = &self.html else {
            return Ok(());
        };
        let Some(ranks) = ranks else {
            return Err(Failure::input(
                "--html of several traces is a page of the ranks of one run, and no two of these state which rank of the same run they \
                 are; call the command once for each trace",
            ));
        };
        let written = std::fs::write(path, ranks_html(title, ranks));
        written.map_err(|error| Failure::file("write", path, &error))
    }

    /// Writes the files, replacing their contents.
    pub fn write(&self, trace: &Path, report: &Report) -> Result<(), Failure> {
        let name = trace
            .file_name()
            .unwrap_or(trace.as_os_str())
            .to_string_lossy();
        if let Some(path) = &self.svg {
            let drawn = picture(&name, report).ok_or_else(|| {
                Failure::input(format!(
                    "{} has no device work to draw; --svg draws the median step",
                    trace.display()
                ))
            })?;
            let written = std::fs::write(path, drawn);
            written.map_err(|error| Failure::file("write", path, &error))?;
        }
        if let Some(path) = &self.html {
            let page = html(&name, report);
            let written = std::fs::write(path, page);
            written.map_err(|error| Failure::file("write", path, &error))?;
        }
        if let Some(path) = &self.trace {
            let name = trace.display().to_string();
            let written = File::create(path).and_then(|file| annotated(&name, report, file));
            written.map_err(|error| Failure::file("write", path, &error))?;
        }
        Ok(())
    }
}

/// Returns whether two paths lead to one existing file.
fn same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}
