//! The errors of reading and writing logs, with their file offset.

use std::{fmt, io};

use super::VERSION;
use crate::op::{BufferId, DeviceId, ThreadId};

/// The error when a log could not be read or written.
#[derive(Debug)]
pub struct Error {
    /// The file offset of the invalid record; for a file that ends too early, its length. While writing: the number of bytes
    /// written so far.
    pub offset: u64,
    /// The problem.
    pub problem: Problem,
}

/// The kind of an [`Error`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The file itself could not be read or written.
    Io(io::Error),
    /// The file ends too early.
    Cut {
        /// The kind of record in which the file ends.
        inside: &'static str,
        /// The file offset up to which all records are complete.
        whole: u64,
    },
    /// The file does not start with the letters of a log.
    NotALog,
    /// The log has another version of the format.
    Version(u16),
    /// A byte is not valid in the format.
    Malformed {
        /// The content that the format requires there.
        expected: &'static str,
    },
    /// A record names an id that no earlier record declares.
    Undeclared {
        /// The kind of object that the id names.
        what: &'static str,
        /// The id.
        id: u64,
        /// The number of such objects declared.
        declared: u64,
    },
    /// A count exceeds its limit.
    TooMuch {
        /// The objects that are counted.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// A record names bytes outside a buffer.
    Outside {
        /// The buffer.
        buffer: BufferId,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// The size of the buffer.
        bytes: u64,
    },
    /// A second legacy stream was declared for one device.
    SecondLegacy(DeviceId),
    /// A legacy stream was used before its declaration, so that its id already belongs to another stream.
    LateLegacy,
    /// The number of an operation is not greater than that of the previous one.
    Number {
        /// The number.
        id: u32,
        /// The smallest valid number.
        least: u64,
    },
    /// A kernel launch with a count of zero.
    NoLaunch,
    /// A thread leaves a span although it is in none.
    NoSpan(ThreadId),
    /// The times of an operation precede its call.
    EarlyTimes {
        /// The operation.
        id: u32,
        /// One more than the largest number of an operation so far.
        next: u64,
    },
    /// An operation ends before it starts.
    Backwards {
        /// The operation.
        id: u32,
        /// Its start, ns.
        start: u64,
        /// Its end, ns.
        end: u64,
    },
    /// A count in the end record differs from the content of the file.
    Count {
        /// The objects that are counted.
        what: &'static str,
        /// The count in the end record.
        said: u64,
        /// The count of records in the file.
        holds: u64,
    },
    /// The file continues after the end record.
    Trailing,
    /// The check would use more memory than allowed.
    Memory {
        /// The limit.
        limit_bytes: u64,
    },
}

impl Error {
    /// Whether the file is a log that ends too early. The records read before are as they were written.
    pub fn is_cut(&self) -> bool {
        matches!(self.problem, Problem::Cut { .. })
    }
}

impl From<Error> for crate::error::Error {
    fn from(error: Error) -> crate::error::Error {
        crate::error::Error::other(error)
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
                "expected the letters SIDESTRM, with which op logs start; give an op log, or a trace that contains one"
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
                "a record names bytes {start}..{end} of buffer {}, which has {bytes} bytes; expected a range inside it",
                buffer.0
            ),
            Problem::SecondLegacy(device) => write!(
                f,
                "device {} has a legacy stream already; declare one legacy stream for each device",
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
                    "a kernel is launched zero times; expected at least one launch"
                )
            }
            Problem::NoSpan(thread) => write!(
                f,
                "thread {} leaves a span and is in none; leave each span once, on the thread that entered it",
                thread.0
            ),
            Problem::EarlyTimes { id, next } => write!(
                f,
                "the times of operation {id} come before its call; expected an operation below {next}, so write the times after the operation"
            ),
            Problem::Backwards { id, start, end } => write!(
                f,
                "operation {id} starts at {start} ns and ends at {end} ns; expected an end at or after the start"
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
