//! How the command fails: one line that names the place and the remedy, and exit code 2.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::path::Path;

use sidestream::check::one_line;

/// Why the command could not do what it was asked.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// The input, an argument or the device is at fault.
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

/// A path as it is printed: in one line, whatever is in it.
pub fn shown(path: &Path) -> String {
    one_line(&path.to_string_lossy()).into_owned()
}

/// Writes to standard output. A reader that went away (`sidestream-augment … | head`) ends the command quietly.
pub fn print(text: impl Display) -> Result<(), Failure> {
    match write!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::input(format!("cannot write the output: {error}"))),
        Ok(()) => Ok(()),
    }
}
