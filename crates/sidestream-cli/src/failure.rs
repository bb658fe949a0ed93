//! How a command fails: one line that names the place and the remedy, and an exit code.

use std::fmt;
use std::io;
use std::path::Path;

use sidestream::check::one_line;

/// What the shell sees of a command: a number, because Python runs commands too, and nobody can read an
/// `ExitCode`.
pub type Exit = u8;

/// All went well.
pub const SUCCESS: Exit = 0;

/// Why a command could not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: Exit,
    is_of_device: bool,
}

impl Failure {
    /// The input is at fault: exit code 2, as for a wrong argument.
    pub fn input(message: impl fmt::Display) -> Failure {
        Failure {
            message: message.to_string(),
            code: 2,
            is_of_device: false,
        }
    }

    /// There is no such device, or it cannot be opened: exit code 2.
    pub fn device(message: impl fmt::Display) -> Failure {
        Failure {
            is_of_device: true,
            ..Failure::input(message)
        }
    }

    /// A file could not be read or written.
    pub fn file(doing: &str, path: &Path, error: &io::Error) -> Failure {
        Failure::input(format!("cannot {doing} {}: {error}", shown(path)))
    }

    /// Whether the device is at fault, and not what it was to do.
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

/// A path as it is printed: in one line, whatever is in it.
pub fn shown(path: &Path) -> String {
    one_line(&path.to_string_lossy()).into_owned()
}

/// Writes to standard output. A reader that went away (`sidestream … | head`) ends the command
/// quietly instead of with a panic.
pub fn print(text: impl fmt::Display) -> Result<(), Failure> {
    use std::io::Write;
    match write!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::input(format!("cannot write the output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Says something to people, beside the output. Where nobody hears it (`2>&1 | head`), nothing is
/// lost: the exit code says it too.
pub fn tell(text: impl fmt::Display) {
    use std::io::Write;
    let _ = writeln!(io::stderr().lock(), "{text}");
}
