//! What `sidestream diagnose` writes to files besides what it prints.

use std::fs::File;
use std::path::{Path, PathBuf};

use sidestream_diagnose::{Ranks, Report, annotated, html, ranks_html};

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
        let asked = [("--html", &self.html), ("--trace", &self.trace)];
        let asked = asked.into_iter();
        let asked: Vec<(&str, &Path)> = asked
            .filter_map(|(option, path)| Some((option, path.as_deref()?)))
            .collect();
        if traces.len() != 1 && self.trace.is_some() {
            let first = "--trace";
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
        match asked[..] {
            [(_, page), (_, trace)] if same(page, trace) || page == trace => {
                Err(Failure::input(format!(
                    "--html and --trace both name {}; name two files",
                    page.display()
                )))
            }
            _ => Ok(()),
        }
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
        if let Some(path) = &self.html {
            let name = trace.file_name().unwrap_or(trace.as_os_str());
            let page = html(&name.to_string_lossy(), report);
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
