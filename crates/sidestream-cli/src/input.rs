//! Files of the user, read whole.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sidestream_program::Limits;

use crate::failure::{Failure, shown};
use crate::system::is_named_pipe;

/// Opens a file; `-` is standard input. A named pipe is refused: without a writer, opening it would block forever. (What a
/// shell passes for `<(command)` has no name, and opens at once.)
pub fn open(path: &Path) -> Result<Box<dyn Read>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdin()));
    }
    if is_named_pipe(path) {
        let path = shown(path);
        return Err(Failure::input(format!(
            "{path} is a named pipe, which blocks a reader forever without a writer; save a file, or \
             pass `-` and let the shell read it, as in `sidestream check - < {path}`"
        )));
    }
    if path.is_dir() {
        return Err(Failure::input(format!(
            "{} is a folder; name a file in it",
            shown(path)
        )));
    }
    let file = File::open(path).map_err(|e| Failure::file("read", path, &e))?;
    Ok(Box::new(file))
}

/// The largest op log that is read into memory, to be written as a trace or reduced: 1 GiB.
const LOG_BYTES: u64 = 1 << 30;

/// Returns the bytes of an op log.
pub fn read_log(path: &Path, file: impl Read) -> Result<Vec<u8>, Failure> {
    let instead = "becomes a trace or is reduced; record a shorter part";
    read_most(path, file, LOG_BYTES, instead)
}

/// Returns the bytes of a file, up to the size limit of a program: some files, such as `/dev/zero`, have no end.
pub fn read(path: &Path, file: impl Read) -> Result<Vec<u8>, Failure> {
    let most = Limits::default().input_bytes as u64;
    read_most(path, file, most, "is read; split it")
}

fn read_most(path: &Path, file: impl Read, most: u64, instead: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::file("read", path, &error))?;
    if bytes.len() as u64 > most {
        return Err(Failure::input(format!(
            "{} is longer than {} MiB, which is the most that {instead}",
            shown(path),
            most >> 20
        )));
    }
    Ok(bytes)
}
