//! Reads files into a [`Trace`].

mod error;
mod folder;
mod json;
mod nsight;

pub use error::{Error, Problem};
pub use folder::traces;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use sidestream::log::MAGIC;

use crate::model::Trace;

/// Limits of a reader, so that a file from any source can be read safely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum memory for the rows of one trace, in bytes. A larger trace is read up to this limit, with a warning.
    pub rows_bytes: u64,
    /// The maximum size to which a compressed file may unpack, as a multiple of its own size. Traces reach fifty.
    pub unpacked_ratio: u64,
    /// Whether Python functions are kept. They are most of the file if the profiler was asked for stacks.
    pub python: bool,
    /// Whether a trace without device work is refused: it does not show why a device was idle, though its tables may still be
    /// of use.
    pub needs_work: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            rows_bytes: 4 << 30,
            unpacked_ratio: 200,
            python: false,
            needs_work: true,
        }
    }
}

/// A callback that is called repeatedly with the bytes of a file read so far, and its size.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Unpacked bytes above which the ratio is checked: a smaller file does no harm.
const SMALL_BYTES: u64 = 64 << 20;

/// Reads a trace of any known kind, which is determined by the first bytes of the file.
///
/// # Errors
/// The file cannot be read, or is not a trace. A trace that ends too early is read up to its end, and has a warning.
pub fn read(path: &Path, limits: &Limits, progress: Progress) -> Result<Trace, Error> {
    open(path, limits, progress).map_err(|problem| Error::new(path, problem))
}

/// Reads a JSON trace from memory, as it would be read from a file.
///
/// # Errors
/// Those of [`read()`].
pub fn read_json(text: &[u8], limits: &Limits) -> Result<Trace, Problem> {
    match form(text) {
        Form::Empty => Err(Problem::Empty),
        Form::Gzip => {
            let packed_bytes = text.len() as u64;
            let mut look = |unpacked| within_ratio(limits, packed_bytes, unpacked);
            json::read(MultiGzDecoder::new(text), limits, &mut look)
        }
        Form::Database | Form::Log | Form::Json => json::read(text, limits, &mut |_| Ok(())),
    }
}

fn open(path: &Path, limits: &Limits, progress: Progress) -> Result<Trace, Problem> {
    if !std::fs::metadata(path).map_err(Problem::Io)?.is_file() {
        return Err(Problem::NotAFile);
    }
    let mut file = File::open(path).map_err(Problem::Io)?;
    let size_bytes = file.metadata().map_err(Problem::Io)?.len();
    let mut start = Vec::new();
    let mut head = (&mut file).take(16);
    head.read_to_end(&mut start).map_err(Problem::Io)?;
    let form = form(&start);
    let taken = Rc::new(Cell::new(0));
    let input = Taken {
        input: io::Cursor::new(start).chain(file),
        bytes: Rc::clone(&taken),
    };
    match form {
        Form::Empty => Err(Problem::Empty),
        Form::Gzip => {
            let mut look = |unpacked| {
                progress(taken.get(), size_bytes);
                within_ratio(limits, taken.get(), unpacked)
            };
            let input = BufReader::with_capacity(256 << 10, input);
            let unpacked = Rc::new(Cell::new(0));
            let text = Taken {
                input: MultiGzDecoder::new(input),
                bytes: Rc::clone(&unpacked),
            };
            match json::read(text, limits, &mut look) {
                Err(Problem::NoEvents) if unpacked.get() == 0 => Err(Problem::Cut {
                    why: "nothing of the compressed file can be unpacked: it ends too early, or is damaged at its start"
                        .to_owned(),
                }),
                read => read,
            }
        }
        Form::Database => nsight::read(path, limits, progress),
        Form::Log => Err(Problem::OpLog(path.to_owned())),
        Form::Json => {
            let mut look = |read| {
                progress(read, size_bytes);
                Ok(())
            };
            json::read(input, limits, &mut look)
        }
    }
}

/// The format of a file.
enum Form {
    Empty,
    Gzip,
    Database,
    Log,
    Json,
}

fn form(start: &[u8]) -> Form {
    match start {
        [] => Form::Empty,
        [0x1f, 0x8b, ..] => Form::Gzip,
        _ if start.starts_with(b"SQLite format 3\0") => Form::Database,
        _ if start.starts_with(&MAGIC) => Form::Log,
        _ => Form::Json,
    }
}

/// Counts the bytes that are taken from a reader.
struct Taken<R> {
    input: R,
    bytes: Rc<Cell<u64>>,
}

impl<R: Read> Read for Taken<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes.set(self.bytes.get() + read as u64);
        Ok(read)
    }
}

fn within_ratio(limits: &Limits, packed: u64, unpacked: u64) -> Result<(), Problem> {
    let ratio = limits.unpacked_ratio;
    if unpacked > SMALL_BYTES && unpacked > packed.saturating_mul(ratio) {
        return Err(Problem::Bomb { ratio });
    }
    Ok(())
}
