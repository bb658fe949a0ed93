//! How a command fails: one line that names the place and the remedy, and an exit code.

use std::fmt;
use std::io;
use std::path::Path;

use sidestream::check::one_line;

/// The exit code of a command: a number, because Python runs commands too, and the value of an `ExitCode` cannot be read.
pub type Exit = u8;

/// The command succeeded.
pub const SUCCESS: Exit = 0;

/// Why a command could not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: Exit,
    is_of_device: bool,
}

impl Failure {
    /// Returns a failure of the input: exit code 2, as for a wrong argument.
    pub fn input(message: impl fmt::Display) -> Failure {
        Failure {
            message: message.to_string(),
            code: 2,
            is_of_device: false,
        }
    }

    /// Returns a failure of the device, which does not exist or cannot be opened: exit code 2.
    pub fn device(message: impl fmt::Display) -> Failure {
        Failure {
            is_of_device: true,
            ..Failure::input(message)
        }
    }

    /// Returns a failure to read or write a file.
    pub fn file(doing: &str, path: &Path, error: &io::Error) -> Failure {
        Failure::input(format!("cannot {doing} {}: {error}", shown(path)))
    }

    /// Returns whether the device is at fault, and not the work it was given.
    pub fn is_of_device(&self) -> bool {
        self.is_of_device
    }

    /// The exit code.
    pub fn code(&self) -> Exit {
        self.code
    }
}

impl From<sidestream::error::Error> for Failure {
    fn from(error: sidestream::error::Error) -> Failure {
        Failure::input(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Returns a path for printing. Control characters are escaped, so the result is one line.
pub fn shown(path: &Path) -> String {
    one_line(&path.to_string_lossy()).into_owned()
}

/// Writes to standard output. A reader that has gone away (`sidestream … | head`) ends the command quietly instead of with a
/// panic.
pub fn print(text: impl fmt::Display) -> Result<(), Failure> {
    use std::io::Write;
    match write!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::input(format!("cannot write the output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes a message for people to standard error. If that is closed (`2>&1 | head`), nothing is lost: the exit code carries the
/// result too.
pub fn tell(text: impl fmt::Display) {
    use std::io::Write;
    let _ = writeln!(io::stderr().lock(), "{text}");
}
