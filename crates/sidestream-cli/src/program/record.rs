//! `sidestream record -- PROGRAM`: the calls of any CUDA program, as an op log.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Parser;
use sidestream::check::counted;
use sidestream::log::{Error, Record, Writer};

use super::session::{Options, Session};
use super::translate::Hears;
use crate::failure::{Exit, Failure, print, shown};

/// Record the CUDA calls of any program
///
/// The program runs as it is, on its GPU, and each of its CUDA calls goes into an op log (docs/reference/op-log.md), which
/// `sidestream check` checks without a GPU. A second process that calls CUDA gets a log of its own, which ends with its number.
///
/// Exit code: the program's own, and 2 where that is 0 and the program was not heard.
#[derive(Parser)]
pub struct Args {
    /// The file to write
    #[arg(short, long, value_name = "LOG")]
    output: PathBuf,
    #[command(flatten)]
    options: Options,
    /// The program, with its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The log of a process.
#[derive(Default)]
struct Log {
    file: PathBuf,
    /// `None` once it cannot be written.
    writer: Option<Writer<File>>,
    error: Option<Error>,
}

impl Hears for Log {
    fn take(&mut self, record: &Record<'_>) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        if let Err(error) = writer.take(record) {
            (self.writer, self.error) = (None, Some(error));
        }
    }
}

impl Log {
    fn new(file: &Path) -> Result<Log, Failure> {
        let to = File::create(file).map_err(|error| failed(file, &error))?;
        let writer = Some(Writer::new(to).map_err(|error| failed(file, &error))?);
        let file = file.to_owned();
        Ok(Log {
            file,
            writer,
            error: None,
        })
    }
}

fn failed(file: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::input(format!("cannot write {}: {error}", shown(file)))
}

/// Runs the command.
pub fn main(args: &Args) -> Result<Exit, Failure> {
    // A file that cannot be written is reported before the program runs.
    let mut first = Some(Log::new(&args.output)?);
    let output = args.output.clone();
    let log = move |pid: u32, _: usize| match first.take() {
        Some(log) => Ok(log),
        None => {
            let mut name = output.clone().into_os_string();
            name.push(format!(".{pid}"));
            Log::new(Path::new(&name))
        }
    };
    let mut finished = Session::start(&args.program, &args.options, log)?.listen()?;
    let is_heard = finished.tell();
    for (_, process) in &mut finished.processes {
        let log = &mut process.told;
        let ended = log.writer.take().map(Writer::finish);
        if let Some(error) = log.error.take().or_else(|| ended?.err()) {
            return Err(failed(&log.file, &error));
        }
        print(format_args!(
            "{}: {}\n{}{}",
            shown(&log.file),
            counted(process.calls, "CUDA call"),
            process.host_seen.text(),
            process.exact.unseen.text()
        ))?;
    }
    Ok(finished.code(2 * Exit::from(!is_heard)))
}
