//! The command `sidestream`. One file a subcommand; this one is the table of contents.

mod bench;
mod check;
mod device;
mod devices;
mod diagnose;
mod failure;
mod input;
mod overlap;
mod raw;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Keep a GPU busy: see what overlap is worth, run stream programs, find races, diagnose traces
///
/// No GPU is needed, but for `bench gpu`: a simulated one runs the programs.
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
    Diagnose(diagnose::Args),
    Devices(devices::Args),
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Overlap(args) => overlap::main(&args),
        Verb::Run(args) => run::main(&args),
        Verb::Check(args) => check::main(&args),
        Verb::Diagnose(args) => diagnose::main(&args),
        Verb::Devices(args) => devices::main(&args),
        Verb::Bench(args) => bench::main(&args),
    };
    result.unwrap_or_else(|failure| {
        failure::tell(format_args!("sidestream: {failure}"));
        failure.code()
    })
}
