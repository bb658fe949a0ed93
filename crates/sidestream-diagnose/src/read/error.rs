//! Why a file cannot be read as a trace.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::model::{Asked, Overflow};

/// A trace could not be read.
#[derive(Debug)]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The file could not be read.
    Io(io::Error),
    /// The path names a folder, a pipe or a device. Opening a pipe without a writer would block forever.
    NotAFile,
    /// The file is empty.
    Empty,
    /// The file does not start like any known trace.
    NotATrace,
    /// The file is an op log, at this path.
    OpLog(PathBuf),
    /// The file is JSON without a list of events.
    NoEvents,
    /// The file starts like a trace, but is not one.
    Malformed {
        /// Offset of the byte; in the unpacked text if the file is compressed.
        offset: u64,
        /// The text found there, and the text expected.
        why: String,
    },
    /// The file ends, or reading had to be given up, before any device work.
    Cut {
        /// The place of the end, and the reason.
        why: String,
    },
    /// The file unpacks to a far larger size than traces do.
    Bomb {
        /// The limit of the unpacked size, as a multiple of the size of the file.
        ratio: u64,
    },
    /// The file names more streams or threads than any program has.
    Overflow(Overflow),
    /// The file is a database, but not an Nsight Systems export that can be read.
    Database {
        /// What is missing or wrong, and what to do.
        why: String,
    },
    /// The file is a trace without device work.
    NoWork(Asked),
    /// The path names a folder without traces.
    NoTraces,
}

impl Error {
    /// Returns an error about a file.
    pub fn new(path: &Path, problem: Problem) -> Error {
        Error {
            path: path.to_owned(),
            problem,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Io(error) => write!(f, "the file cannot be read: {error}"),
            Problem::NotAFile => write!(
                f,
                "this is a folder, a pipe or a device, not a file; save the trace as a file and name \
                 that"
            ),
            Problem::Empty => write!(f, "the file is empty; was the trace written to its end?"),
            Problem::NotATrace => write!(
                f,
                "the file is not a trace; give the JSON of PyTorch's profiler (.json or .json.gz), an \
                 Nsight Systems export (`nsys export --type sqlite`), or a trace that sidestream wrote"
            ),
            Problem::OpLog(path) => write!(
                f,
                "the file is an op log, not a trace; `sidestream check {} --trace OUT.json` writes one of it",
                path.display()
            ),
            Problem::NoEvents => write!(
                f,
                "the file is JSON without a member `traceEvents`, so it is not a trace; give what \
                 `export_chrome_trace` of PyTorch's profiler wrote"
            ),
            Problem::Malformed { offset, why } => write!(f, "at byte {offset}: {why}"),
            Problem::Cut { why } => write!(
                f,
                "{why}, and there is no device work before that; export the trace again"
            ),
            Problem::Bomb { ratio } => write!(
                f,
                "the file unpacks to more than {ratio} times its size, far more than any trace; unpack \
                 it yourself if you trust it"
            ),
            Problem::Overflow(Overflow { what, limit }) => write!(
                f,
                "the file names more than {limit} {what}, which no program has; is it a trace of a \
                 GPU?"
            ),
            Problem::Database { why } => write!(f, "{why}"),
            Problem::NoWork(asked) => no_work(f, asked),
            Problem::NoTraces => write!(
                f,
                "the folder has no traces (.json, .json.gz, .sqlite) in it; name the traces"
            ),
        }
    }
}

/// Writes which side of a trace is missing.
fn no_work(f: &mut fmt::Formatter<'_>, asked: &Asked) -> fmt::Result {
    let counted = |count: usize, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {many}"),
    };
    let launches = counted(asked.launches, "kernel launch", "kernel launches");
    let copies = counted(asked.copies, "call that copies", "calls that copy");
    let has = match (asked.launches, asked.copies, asked.calls) {
        (0, 0, 0) => {
            return write!(
                f,
                "the trace has no kernels, copies or memsets of a GPU, and no calls of CUDA; was the profiler asked for \
                 CUDA activity? traces of other devices, such as TPUs, are not read"
            );
        }
        (0, 0, calls) => {
            let calls = counted(
                calls,
                "call of CUDA, which neither launches nor copies",
                "calls of CUDA, none of which launches or copies",
            );
            return write!(
                f,
                "the trace has {calls}, and no kernels, copies or memsets of a GPU; record a part of the program that uses it"
            );
        }
        (_, 0, _) => launches,
        (0, _, _) => copies,
        _ => format!("{launches} and {copies}"),
    };
    write!(
        f,
        "the trace has {has} and no records of kernels, copies or memsets: the host's side is recorded, and the device's is \
         missing. Record it again with no other profiler of the GPU running, and wait for the device \
         (`torch.cuda.synchronize()`) before the profiler stops"
    )
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            Problem::Io(error) => Some(error),
            _ => None,
        }
    }
}
