//! Failures of the command: one line that names the place and the remedy, and exit code 2.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::path::Path;

use sidestream::check::one_line;

/// Why the command failed.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// Returns a failure of the input, an argument or the device.
    pub fn input(message: impl Display) -> Failure {
        Failure(message.to_string())
    }
}

impl From<sidestream::error::Error> for Failure {
    fn from(error: sidestream::error::Error) -> Failure {
        Failure::input(error)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Formats a path for printing in one line, even if it contains line breaks.
pub fn shown(path: &Path) -> String {
    one_line(&path.to_string_lossy()).into_owned()
}

/// Writes to standard output. If the reader has gone away (`sidestream-augment … | head`), the command ends quietly.
pub fn print(text: impl Display) -> Result<(), Failure> {
    match write!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::input(format!("cannot write the output: {error}"))),
        Ok(()) => Ok(()),
    }
}
