//! The binary of the command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(sidestream_cli::command(std::env::args_os()))
}
