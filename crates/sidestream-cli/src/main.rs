//! The command `sidestream`. One file a subcommand; this one is the table of contents.

mod check;
mod device;
mod devices;
mod failure;
mod overlap;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Keeps a GPU busy: shows what overlap is worth, runs stream programs, and finds races.
///
/// Where there is no GPU, a simulated one takes its place.
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
    Devices(devices::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Overlap(args) => overlap::main(&args),
        Verb::Run(args) => run::main(&args),
        Verb::Check(args) => check::main(&args),
        Verb::Devices(args) => devices::main(&args),
    };
    result.unwrap_or_else(|failure| {
        eprintln!("sidestream: {failure}");
        failure.code()
    })
}
