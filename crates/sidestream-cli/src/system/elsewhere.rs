//! What the command does on other systems, such as Windows, in place of what it asks of Linux and macOS.

use std::io;
use std::path::Path;

use crate::failure::Exit;

/// Calls nothing: Ctrl-C ends the process at once.
pub fn on_signal(_: impl FnMut(Exit) + Send + 'static) -> io::Result<()> {
    Ok(())
}

/// Returns that this is no named pipe: there are none among the files.
pub fn is_named_pipe(_: &Path) -> bool {
    false
}

/// Creates a folder. The folder of temporary files is each user's own.
pub fn create_private(folder: &Path) -> io::Result<()> {
    std::fs::create_dir(folder)
}

/// Returns that the width is not known: lines are not broken.
pub fn terminal_columns() -> Option<usize> {
    None
}
