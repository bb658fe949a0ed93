//! What can be wrong with a log, with the byte where it is.

use std::{fmt, io};

use super::VERSION;
use crate::op::{BufferId, DeviceId, ThreadId};

/// A log could not be read or written.
#[derive(Debug)]
pub struct Error {
    /// The byte of the file at which the offending record starts; for a file that ends too early,
    /// its length. While writing: how much was written so far.
    pub offset: u64,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong with a log.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The file itself could not be read or written.
    Io(io::Error),
    /// The file ends too early.
    Cut {
        /// What it ends in.
        inside: &'static str,
        /// Everything before this byte is whole.
        whole: u64,
    },
    /// The file does not start as logs do.
    NotALog,
    /// The file is of another version.
    Version(u16),
    /// A byte is not what the format has there.
    Malformed {
        /// What the format has there.
        expected: &'static str,
    },
    /// An id was named that no earlier record declares.
    Undeclared {
        /// What the id is of.
        what: &'static str,
        /// The id.
        id: u64,
        /// How many are declared.
        declared: u64,
    },
    /// More of something than a reader takes.
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// How much there may be.
        limit: u64,
    },
    /// Bytes were named that a buffer does not have.
    Outside {
        /// The buffer.
        buffer: BufferId,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// What the buffer has.
        bytes: u64,
    },
    /// A second legacy stream was declared for one device.
    SecondLegacy(DeviceId),
    /// A legacy stream was first used and then declared, so that its id is taken by another.
    LateLegacy,
    /// A call has a number that is not greater than the one before.
    Number {
        /// The number.
        id: u32,
        /// The least that it might have been.
        least: u64,
    },
    /// A kernel that is launched no times.
    NoLaunch,
    /// A thread leaves a span and is in none.
    NoSpan(ThreadId),
    /// The times of an operation come before its call.
    EarlyTimes {
        /// The operation.
        id: u32,
        /// All operations so far are numbered below this.
        next: u64,
    },
    /// An operation that ends before it starts.
    Backwards {
        /// The operation.
        id: u32,
        /// When it starts.
        start: u64,
        /// When it ends.
        end: u64,
    },
    /// The end record counts something else than the file holds.
    Count {
        /// What is counted.
        what: &'static str,
        /// What the end record says.
        said: u64,
        /// What the file holds.
        holds: u64,
    },
    /// Something follows the end record.
    Trailing,
    /// Checking would take more memory than was allowed.
    Memory {
        /// What was allowed.
        limit_bytes: u64,
    },
}

impl Error {
    /// Whether the file is a log that ends too early. What was read before is as it was written.
    pub fn is_cut(&self) -> bool {
        matches!(self.problem, Problem::Cut { .. })
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        match error.problem {
            Problem::Io(inner) => inner,
            _ => io::Error::new(io::ErrorKind::InvalidData, error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op log, byte {}: {}", self.offset, self.problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Io(error) => write!(f, "{error}"),
            Problem::Cut { inside, whole } => write!(
                f,
                "the file ends in {inside}; it is whole up to byte {whole} and was read up to there; copy it again, or let the program that writes it finish"
            ),
            Problem::NotALog => write!(
                f,
                "expected the letters SIDESTRM, with which op logs start; give an op log, or a trace that holds one"
            ),
            Problem::Version(found) => write!(
                f,
                "the log has version {found}, expected {VERSION}; read it with the version of Sidestream that wrote it"
            ),
            Problem::Malformed { expected } => write!(
                f,
                "expected {expected}; the file is damaged, copy or record it again"
            ),
            Problem::Undeclared { what, id, declared } => write!(
                f,
                "{what} {id} is named and {declared} are declared; declare every {what} before the first record that names it"
            ),
            Problem::TooMuch { what, limit } => {
                write!(f, "expected at most {limit} {what}; record a shorter part")
            }
            Problem::Outside {
                buffer,
                start,
                end,
                bytes,
            } => write!(
                f,
                "bytes {start}..{end} of buffer {} are named, which has {bytes}; expected a range inside it",
                buffer.0
            ),
            Problem::SecondLegacy(device) => write!(
                f,
                "device {} has a legacy stream already; declare one legacy stream a device",
                device.0
            ),
            Problem::LateLegacy => write!(
                f,
                "a blocking call came before the legacy stream of its device was declared; declare it before that call"
            ),
            Problem::Number { id, least } => write!(
                f,
                "the operation has the number {id}, expected at least {least}; number operations upwards in call order"
            ),
            Problem::NoLaunch => {
                write!(
                    f,
                    "a kernel is launched no times; expected at least one launch"
                )
            }
            Problem::NoSpan(thread) => write!(
                f,
                "thread {} leaves a span and is in none; leave each span once, on the thread that entered it",
                thread.0
            ),
            Problem::EarlyTimes { id, next } => write!(
                f,
                "the times of operation {id} come before its call, expected one below {next}; write times behind the operation"
            ),
            Problem::Backwards { id, start, end } => write!(
                f,
                "operation {id} starts at {start} ns and ends at {end} ns; expected an end that is not before the start"
            ),
            Problem::Count { what, said, holds } => write!(
                f,
                "the end record counts {said} {what} and the file holds {holds}; it is damaged, copy or record it again"
            ),
            Problem::Trailing => write!(
                f,
                "expected the end of the file after the end record; cut it off here"
            ),
            Problem::Memory { limit_bytes } => write!(
                f,
                "checking the log would take more than {limit_bytes} bytes of memory; allow more, or record a shorter part"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            Problem::Io(error) => Some(error),
            _ => None,
        }
    }
}
