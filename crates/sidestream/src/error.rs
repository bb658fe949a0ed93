//! The errors that a running program can meet.

use std::fmt;
use std::sync::Arc;

use crate::op::DeviceId;

/// The reason why a call of the runtime failed.
///
/// The message says what was requested, why it was refused and what to do instead. A wrong index or a wrong type is not
/// an `Error`: it is a mistake in the code, and panics at the caller's line.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No device has this name, or the device cannot be used.
    NoSuchDevice {
        /// The name that was asked for.
        asked: String,
        /// The names that exist, or the reason why there are none.
        why: String,
    },
    /// There is not enough memory, even after waiting for all memory that was freed.
    OutOfMemory(OutOfMemory),
    /// The driver refused the call; the call changed nothing.
    Refused {
        /// The call, such as `kernel` or `record`.
        call: &'static str,
        /// The driver's error code.
        code: i32,
        /// The driver's description of the error, and the remedy.
        why: String,
    },
    /// The call failed after the device had accepted all or part of it; its operands count as in use until that work
    /// is complete.
    Submitted {
        /// The call, such as `kernel`, or `synchronize` in synchronous mode, where every call waits for its work.
        call: &'static str,
        /// The driver's error code; 0 if the driver was not called.
        code: i32,
        /// The description of the error.
        why: String,
    },
    /// The arguments do not fit together; nothing was submitted.
    Invalid {
        /// The call.
        call: &'static str,
        /// The reason why the arguments do not fit, and the remedy.
        why: String,
    },
    /// The kernel has no form that this device can run.
    NoForm {
        /// The kernel's name.
        kernel: String,
        /// The form that the device would need.
        needed: &'static str,
    },
    /// A kernel in CUDA C++ was not compiled: its source is wrong, or no compiler was found.
    NotCompiled {
        /// The kernel's name.
        kernel: String,
        /// The compiler's messages, or the places where a compiler was looked for.
        why: String,
    },
    /// Work failed on the device, which runs nothing from then on. Every later call returns this error: open the
    /// device again, on real hardware in a new process.
    DeviceLost(Lost),
    /// A function on the host panicked.
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// An error from the program's own code, in a stage of a pipeline; the runtime itself never returns it.
    Other(Other),
}

/// An error that does not come from the runtime.
#[derive(Clone, Debug)]
pub struct Other(Arc<BoxError>);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The sizes involved in a failed allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// The device; `None` for pinned host memory.
    pub device: Option<DeviceId>,
    /// Bytes that were asked for.
    pub asked_bytes: u64,
    /// Bytes that buffers hold now.
    pub allocated_bytes: u64,
    /// Bytes taken from the device, whether buffers hold them or not.
    pub reserved_bytes: u64,
    /// Maximum number of bytes that may be taken from the device.
    pub limit_bytes: u64,
}

/// The device that was lost, and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    /// The device.
    pub device: DeviceId,
    /// The driver's error code.
    pub code: i32,
    /// The description of the error, with the operation that failed where that is known.
    pub why: String,
}

/// The result of most calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoSuchDevice { asked, why } => {
                write!(f, "device {asked:?} cannot be opened: {why}")
            }
            Error::OutOfMemory(memory) => write!(f, "{memory}"),
            Error::Refused { call, code, why } => write!(f, "{call} was refused ({code}): {why}"),
            Error::Submitted { call, code, why } => write!(
                f,
                "{call} failed ({code}) after the device had accepted all or part of it: {why}; its operands \
                 count as in use until that work is complete"
            ),
            Error::Invalid { call, why } => write!(f, "{call}: {why}"),
            Error::NoForm { kernel, needed } => write!(
                f,
                "kernel `{kernel}` cannot run here: it has no {needed}; add one where it is made"
            ),
            Error::NotCompiled { kernel, why } => {
                write!(f, "kernel `{kernel}` was not compiled: {why}")
            }
            Error::DeviceLost(lost) => write!(f, "{lost}"),
            Error::Panicked { message } => write!(f, "a function on the host panicked: {message}"),
            Error::Other(other) => fmt::Display::fmt(other.get(), f),
        }
    }
}

impl Other {
    /// Returns the original error.
    pub fn get(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &**self.0
    }

    /// Returns the original error by value, unless this one has clones.
    pub(crate) fn into_inner(self) -> Result<BoxError, Other> {
        Arc::try_unwrap(self.0).map_err(Other)
    }
}

/// Equality is identity: two errors with equal text are different errors.
impl PartialEq for Other {
    fn eq(&self, other: &Other) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Error {
    /// Wraps any error, so that code that returns this type can fail with it: `text.parse().map_err(Error::other)?`.
    /// Errors of `std::io`, of recordings, of pipelines and boxed errors are converted by `?` alone.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Other(Other(Arc::new(error.into())))
    }

    /// Converts an error of waiting into the error of a call that the device had already accepted.
    pub(crate) fn behind_submit(self) -> Error {
        match self {
            Error::Refused { call, code, why } => Error::Submitted { call, code, why },
            lost @ Error::DeviceLost(_) => lost,
            other => Error::Submitted {
                call: "synchronize",
                code: 0,
                why: other.to_string(),
            },
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // This error displays the inner error's text, so its source is the inner error's source.
            Error::Other(other) => other.get().source(),
            _ => None,
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::other(error)
    }
}

impl From<BoxError> for Error {
    fn from(error: BoxError) -> Error {
        // A boxed `Error` of this crate is unwrapped, not wrapped again.
        error.downcast().map_or_else(Error::other, |error| *error)
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.device {
            Some(device) => format!("device {}", device.0),
            None => "pinned host memory".to_owned(),
        };
        write!(
            f,
            "out of memory on {place}: {} bytes were asked for, {} of {} are held by buffers, {} are \
             reserved; drop buffers, ask for less, or raise `Options::{}`",
            self.asked_bytes,
            self.allocated_bytes,
            self.limit_bytes,
            self.reserved_bytes,
            match self.device {
                Some(_) => "memory_bytes",
                None => "pinned_bytes",
            },
        )
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "device {} is lost ({}): {}; it runs no more work",
            self.device.0, self.code, self.why
        )
    }
}

impl From<OutOfMemory> for Error {
    fn from(memory: OutOfMemory) -> Error {
        Error::OutOfMemory(memory)
    }
}

/// Returns the word closest to the given one, if it is close enough to be meant.
#[doc(hidden)]
pub fn closest<'w>(written: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // Longer than every word of the format, so not a typing error.
    if written.len() > 32 {
        return None;
    }
    words
        .map(|word| (distance(written, word), word))
        .filter(|&(distance, word)| distance <= 2.min(word.len() / 3))
        .min()
        .map(|(_, word)| word)
}

/// Returns the edit distance of two words (Levenshtein), computed one row of the table at a time.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
