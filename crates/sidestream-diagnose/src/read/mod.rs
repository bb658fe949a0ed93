//! From files to a [`Trace`].

mod error;

pub use error::{Error, Problem};

use std::path::Path;

use crate::model::Trace;

/// What a reader may take, so that a file from anywhere can be read safely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What the kept rows of one trace may take in memory. A trace that needs more is read up to
    /// there, with a warning.
    pub rows_bytes: u64,
    /// How many times its size a compressed file may unpack to. Traces reach fifty.
    pub unpacked_ratio: u64,
    /// Whether functions of Python are kept. They are most of the file where the profiler was asked
    /// for stacks.
    pub python: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            rows_bytes: 4 << 30,
            unpacked_ratio: 200,
            python: false,
        }
    }
}

/// Told now and then how much of a file was read: bytes of it so far, and its size.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Reads a trace of any known kind: what it is, its first bytes say.
///
/// # Errors
/// The file cannot be read, or is no trace. A trace that ends too early is read up to there, and has
/// a warning.
pub fn read(path: &Path, limits: &Limits, progress: Progress) -> Result<Trace, Error> {
    let _ = (limits, progress);
    Err(Error::new(path, Problem::NotATrace))
}
