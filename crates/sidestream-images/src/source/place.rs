//! Reads from a place in a file that several threads read, without moving a position that they share.

use std::fs::File;
use std::io;

/// Fills the buffer with the bytes of the file from this offset on.
#[cfg(unix)]
pub fn read_exact_at(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, at)
}

/// Fills the buffer with the bytes of the file from this offset on. Each read names its offset, as on Unix; the position, which
/// it moves here, is not used by any other.
#[cfg(windows)]
pub fn read_exact_at(file: &File, mut into: &mut [u8], mut at: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !into.is_empty() {
        match file.seek_read(into, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => (into, at) = (&mut into[read..], at + read as u64),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
