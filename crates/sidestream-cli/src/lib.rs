//! The command `sidestream`, with one file per subcommand; this file lists them.
//!
//! It is a library because two programs share the command: the binary of this package, and `python -m sidestream`.

mod bench;
mod check;
#[doc(hidden)]
pub mod device;
mod devices;
mod diagnose;
#[doc(hidden)]
pub mod failure;
mod input;
#[doc(hidden)]
pub mod measure;
mod output;
#[doc(hidden)]
pub mod overlap;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod program;
mod reduce;
mod roofline;
mod run;
#[doc(hidden)]
pub mod suppress;
#[cfg_attr(unix, path = "system/unix.rs")]
#[cfg_attr(not(unix), path = "system/elsewhere.rs")]
mod system;
mod text;
mod width;

use std::ffi::OsString;
use std::io::Write;

use clap::{Parser, Subcommand};

/// Keep a GPU busy: see what overlap is worth, run stream programs, find races, diagnose traces
///
/// No GPU is needed: a simulated one runs the programs. `overlap --device cuda:0` measures a real one.
///
/// Start with `sidestream overlap`, which shows what streams can gain. A stream program is a YAML
/// file that lists CUDA calls: `sidestream check FILE` finds what is not ordered in it, and
/// `sidestream run FILE` shows what runs when.
#[derive(Parser)]
#[command(name = "sidestream", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Overlap(overlap::Args),
    Run(run::Args),
    Check(check::Args),
    #[cfg(target_os = "linux")]
    Record(program::record::Args),
    Diagnose(Box<diagnose::Args>),
    Roofline(roofline::Args),
    Devices(devices::Args),
    Bench(bench::Args),
}

/// Runs the command with these arguments, the first of which is its own name, and returns its exit code.
///
/// Help, wrong arguments and an output whose reader has gone away end the process.
pub fn command(args: impl IntoIterator<Item = OsString>) -> u8 {
    let result = Cli::try_parse_from(args)
        .map_err(without_wrong_tip)
        .map_err(asked)
        .and_then(|cli| run(cli.verb));
    let code = result.unwrap_or_else(|failure| {
        failure::tell(format_args!("sidestream: {failure}"));
        failure.code()
    });
    // The host program may not flush at its end. `print` has already noticed whether the reader is gone.
    let _ = std::io::stdout().flush();
    code
}

fn run(verb: Verb) -> Result<failure::Exit, failure::Failure> {
    match verb {
        Verb::Overlap(args) => overlap::main(&args),
        Verb::Run(args) => run::main(&args),
        Verb::Check(args) => check::main(args),
        #[cfg(target_os = "linux")]
        Verb::Record(args) => program::record::main(&args),
        Verb::Diagnose(args) => diagnose::main(*args),
        Verb::Roofline(args) => roofline::main(&args),
        Verb::Devices(args) => devices::main(&args),
        Verb::Bench(args) => bench::main(&args),
    }
}

/// Removes clap's tip for an unknown option to pass it as the name of a file.
fn without_wrong_tip(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    if let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested) {
        let is_good = |tip: &clap::builder::StyledStr| !tip.to_string().contains(" as a value");
        let good: Vec<_> = tips.into_iter().filter(is_good).collect();
        if !good.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(good));
        }
    }
    error
}

/// Prints help or the version like any other output: a failure to write is reported. Wrong arguments end the process.
fn asked(error: clap::Error) -> failure::Failure {
    if error.use_stderr() {
        error.exit();
    }
    let written = error.print().and_then(|()| std::io::stdout().flush());
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            failure::Failure::input(format!("cannot write the output: {error}"))
        }
        _ => std::process::exit(0),
    }
}

/// Returns what `sidestream overlap` reports with these arguments, which do not include the command's name: the object of
/// `--json`, and the text.
///
/// # Errors
/// What the command would write to standard error, except that an option is named without its dashes.
pub fn overlap(args: &[&str]) -> Result<(serde_json::Value, String), Refused> {
    let args: overlap::Args = parsed("overlap", args)?;
    refused_device(&args.device)?;
    overlap::shown(&args).map_err(refused)
}

/// Returns what `sidestream roofline` reports with these arguments, in both forms.
///
/// # Errors
/// As of [`overlap`].
pub fn roofline(args: &[&str]) -> Result<(serde_json::Value, String), Refused> {
    let args: roofline::Args = parsed("roofline", args)?;
    refused_device(&args.device)?;
    roofline::shown(&args).map_err(refused)
}

fn parsed<A: Parser>(name: &str, args: &[&str]) -> Result<A, Refused> {
    let named = std::iter::once(name).chain(args.iter().copied());
    A::try_parse_from(named).map_err(|error| Refused::Job(of_clap(&error)))
}

/// Reports an unreadable device description as a device that does not exist. The command itself reports it as a wrong file.
fn refused_device(name: &str) -> Result<(), Refused> {
    if name.starts_with("sim:") {
        device::profile(name).map_err(|failure| Refused::Device(failure.to_string()))?;
    }
    Ok(())
}

fn refused(failure: failure::Failure) -> Refused {
    if failure.is_of_device() {
        Refused::Device(failure.to_string())
    } else {
        Refused::Job(failure.to_string())
    }
}

/// Why there is no comparison.
pub enum Refused {
    /// There is no such device, or it cannot be opened.
    Device(String),
    /// The device cannot do what is asked.
    Job(String),
}

/// Returns what is wrong with the arguments, for a caller who did not write options.
fn of_clap(error: &clap::Error) -> String {
    use clap::error::{ContextKind, ContextValue};
    let of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let why = std::error::Error::source(error);
    match (
        of(ContextKind::InvalidArg),
        of(ContextKind::InvalidValue),
        why,
    ) {
        (Some(option), Some(value), Some(why)) => {
            let option = option.trim_start_matches('-');
            let name = option.split(' ').next().unwrap_or(option);
            format!("{name} is {value}: {why}")
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        }
    }
}
