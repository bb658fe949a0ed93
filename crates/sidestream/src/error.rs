//! What can go wrong while a program runs, as values.

use std::fmt;
use std::sync::Arc;

use crate::op::DeviceId;

/// Why a call of the runtime failed.
///
/// Each says what was asked, why it was refused and what to do. A wrong index or a wrong type is
/// no `Error`: it is a mistake in the code, and panics at the caller's line.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no device of this name, or it cannot be used.
    NoSuchDevice {
        /// What was asked for.
        asked: String,
        /// What there is, or why there is nothing.
        why: String,
    },
    /// There is no room for the memory, even after waiting for all that was freed.
    OutOfMemory(OutOfMemory),
    /// A call that the driver refused; it changed nothing.
    Refused {
        /// The call, such as `kernel` or `record`.
        call: &'static str,
        /// The driver's code.
        code: i32,
        /// What it says about it, and what to do.
        why: String,
    },
    /// A call that failed after the device had taken it, or some of it: what it uses counts as in use until that is over.
    Submitted {
        /// The call, such as `kernel`, or `synchronize` where every call waits for its work.
        call: &'static str,
        /// The driver's code; 0 if the driver was not asked.
        code: i32,
        /// What it says about it.
        why: String,
    },
    /// The arguments do not fit together: nothing was submitted.
    Invalid {
        /// The call.
        call: &'static str,
        /// Why not, and what to do instead.
        why: String,
    },
    /// A kernel has no form that this device can run.
    NoForm {
        /// The kernel's name.
        kernel: String,
        /// Which form would be needed.
        needed: &'static str,
    },
    /// A kernel in CUDA C++ was not compiled: its source is wrong, or there is no compiler here.
    NotCompiled {
        /// The kernel's name.
        kernel: String,
        /// What the compiler says, or where it was looked for.
        why: String,
    },
    /// The work itself failed on the device, which runs nothing from then on. Every later call gives
    /// this error: open the device again, in a new process on real hardware.
    DeviceLost(Lost),
    /// A function on the host panicked; the text is the panic's.
    Panicked {
        /// What it said.
        message: String,
    },
    /// What code of the program failed with, in a stage of a pipeline; the runtime itself gives none.
    Other(Other),
}

/// An error that is not the runtime's.
#[derive(Clone, Debug)]
pub struct Other(Arc<BoxError>);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The sizes behind an allocation that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// Which device; none for pinned host memory.
    pub device: Option<DeviceId>,
    /// What was asked for.
    pub asked_bytes: u64,
    /// What buffers hold now.
    pub allocated_bytes: u64,
    /// What was taken from the device, held by buffers or not.
    pub reserved_bytes: u64,
    /// The most that may be taken.
    pub limit_bytes: u64,
}

/// How a device was lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    /// The device.
    pub device: DeviceId,
    /// The driver's code.
    pub code: i32,
    /// What it says, with the operation that failed where that is known.
    pub why: String,
}

/// What most calls give.
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
                "{call} failed ({code}) after the device had taken it, or some of it: {why}; what it uses \
                 counts as in use until that is over"
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
    /// The error as it was.
    pub fn get(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &**self.0
    }

    /// The error itself, unless it has clones.
    pub(crate) fn into_inner(self) -> Result<BoxError, Other> {
        Arc::try_unwrap(self.0).map_err(Other)
    }
}

/// The same error, not one that reads alike.
impl PartialEq for Other {
    fn eq(&self, other: &Other) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Error {
    /// Any error, so that code which gives errors of this type can fail with it:
    /// `text.parse().map_err(Error::other)?`. Errors of `std::io` and boxed ones need no such word.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Other(Other(Arc::new(error.into())))
    }

    /// The same as the error of a call that the device has taken before.
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
            // Its text is the text of this error, so what caused it comes next.
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
        // One of ours stays what it is.
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
            "device {} is lost ({}): {}; it runs nothing any more",
            self.device.0, self.code, self.why
        )
    }
}

impl From<OutOfMemory> for Error {
    fn from(memory: OutOfMemory) -> Error {
        Error::OutOfMemory(memory)
    }
}
