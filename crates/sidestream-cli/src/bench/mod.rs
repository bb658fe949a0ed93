//! `sidestream bench`: what the library does under load.

mod requests;

use clap::{Parser, Subcommand};

use crate::failure::{Exit, Failure};

/// Measure the library under the requests of many callers
///
/// Exit code: 0 if the measurement was made, 2 if an argument or the device is at fault.
#[derive(Parser)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Requests(Box<requests::Args>),
}

/// Runs the command.
pub fn main(args: &Args) -> Result<Exit, Failure> {
    let What::Requests(args) = &args.what;
    requests::main(args)
}
