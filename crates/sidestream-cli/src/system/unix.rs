//! What the command asks of Linux and macOS.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::Path;
use std::{io, thread};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Exit;

/// Calls `ends` for each signal that asks the process to end (Ctrl-C, and SIGTERM, which schedulers send), on a separate thread, with
/// the exit code that names the signal. SIGHUP is not handled, so that `nohup` works.
pub fn on_signal(mut ends: impl FnMut(Exit) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let named = thread::Builder::new().name("signals".into());
    named.spawn(move || {
        for signal in signals.forever() {
            ends(128 + signal as Exit);
        }
    })?;
    Ok(())
}

/// Returns whether this is a named pipe, at which a reader blocks until there is a writer.
pub fn is_named_pipe(path: &Path) -> bool {
    // A pipe without a name has one below /proc or /dev, which leads nowhere.
    let has_name = || path.canonicalize().is_ok_and(|target| target.exists());
    std::fs::metadata(path).is_ok_and(|at| at.file_type().is_fifo()) && has_name()
}

/// Creates a folder that no other user can read.
pub fn create_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(folder)
}

/// Returns the columns of the terminal to which the output goes.
pub fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col))
}
