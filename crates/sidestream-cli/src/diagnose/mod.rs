//! `sidestream diagnose`: why a GPU idled, from a trace.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use sidestream_diagnose::{Change, Limits, Options, Report, is_speed, read, text};

use crate::failure::{Failure, print};

/// Say why a GPU idled, from a trace of any program
///
/// Reads the JSON of PyTorch's profiler (.json or .json.gz), exports of Nsight Systems (`nsys export
/// --type sqlite`), and the traces that sidestream writes.
/// A folder stands for all traces in it, such as one for each rank. Nothing is run, and no GPU is
/// needed.
///
/// Exit code: 0 every trace was read, 2 one was not.
#[derive(Parser)]
pub struct Args {
    /// Traces, or folders of traces
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Print one line of JSON for each trace instead of text
    #[arg(long)]
    json: bool,
    /// How fast copies from and to pinned memory go, in GB/s; by default what the trace shows, or a
    /// table of devices
    #[arg(long, value_name = "GB/S", value_parser = link)]
    link_gbps: Option<f64>,
    /// Changes to predict together, separated by commas: pinned, prefetch=N, no-sync, graphs,
    /// workers=N, second-stream; by default each of them alone, and some together
    #[arg(long, value_name = "CHANGES", value_delimiter = ',')]
    what_if: Option<Vec<Change>>,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<ExitCode, Failure> {
    let options = Options {
        link_gb_per_s: args.link_gbps,
        what_if: args.what_if.clone().map(|changes| vec![changes]),
    };
    let mut code = ExitCode::SUCCESS;
    for path in files(&args.traces)? {
        // One file that cannot be read does not keep the others from being looked at.
        match report(&path, &options) {
            Ok(report) if args.json => {
                let mut json = report.json();
                json["file"] = path.display().to_string().into();
                print(format_args!("{json}\n"))?;
            }
            Ok(report) => print(text(&path.display().to_string(), &report))?,
            Err(failure) => {
                eprintln!("sidestream: {failure}");
                code = failure.code();
            }
        }
    }
    Ok(code)
}

fn report(path: &Path, options: &Options) -> Result<Report, Failure> {
    let mut bar = Bar::new();
    let trace = read(path, &Limits::default(), &mut |done, of| bar.show(done, of));
    bar.clear();
    let trace = trace.map_err(Failure::input)?;
    Ok(Report::of(trace, options))
}

/// The files that were named, and those of the folders that were.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let fail = |error| Failure::file("read the folder", path, &error);
        let entries: Result<Vec<_>, _> = std::fs::read_dir(path).map_err(fail)?.collect();
        let mut inside: Vec<PathBuf> = entries
            .map_err(fail)?
            .iter()
            .map(|entry| entry.path())
            .filter(|path| is_trace(path))
            .collect();
        if inside.is_empty() {
            return Err(Failure::input(format!(
                "{}: the folder has no traces (.json, .json.gz, .sqlite) in it; name the traces",
                path.display()
            )));
        }
        inside.sort();
        files.extend(inside);
    }
    Ok(files)
}

fn is_trace(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy());
    let ends = [".json", ".json.gz", ".sqlite"];
    name.is_some_and(|name| ends.iter().any(|end| name.ends_with(end)))
}

fn link(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if is_speed(speed) => Ok(speed),
        _ => Err("this is no speed; write GB/s as a number above 0, as in 25".to_owned()),
    }
}

/// How much of a long file was read, for people who watch.
struct Bar {
    watched: bool,
    shown: u64,
}

/// A shorter file is read before anyone looks.
const LONG_BYTES: u64 = 100_000_000;

impl Bar {
    fn new() -> Bar {
        Bar {
            watched: std::io::stderr().is_terminal(),
            shown: 0,
        }
    }

    fn show(&mut self, done: u64, of: u64) {
        let percent = 100 * done.min(of) / of.max(1);
        if self.watched && of >= LONG_BYTES && percent > self.shown {
            self.shown = percent;
            let filled = "#".repeat(percent as usize / 4);
            // What cannot be shown is no reason to stop.
            let _ = write!(std::io::stderr(), "\rreading [{filled:25}] {percent:3} %");
        }
    }

    fn clear(&self) {
        if self.shown > 0 {
            let _ = write!(std::io::stderr(), "\r{:42}\r", "");
        }
    }
}
