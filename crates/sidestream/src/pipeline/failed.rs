//! The error of an item that failed.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Error;

/// The error type of sources and consumers. Stages return errors of the runtime, and any others through
/// [`Error::other`].
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The failure of an item: its stage, its number and the cause.
///
/// The items before it are delivered first; no item after it is started.
#[derive(Debug)]
pub struct Failed {
    /// The stage: its name, or `source`, `slot`, `upload`, `download`, `graph`, `consumer`; `device` if the device
    /// was lost, and then the cause names the work that failed.
    pub stage: String,
    /// The number of the item.
    pub index: u64,
    /// The cause.
    pub cause: Cause,
}

/// The cause of a failure.
#[derive(Debug)]
pub enum Cause {
    /// A call of the runtime, or work on the device, failed.
    Runtime(Error),
    /// The source, the consumer or the code of a stage returned this error.
    User(BoxError),
    /// The code of the stage panicked, with this message.
    Panicked(String),
}

impl Failed {
    pub(crate) fn new(stage: &str, index: u64, cause: impl Into<Cause>) -> Failed {
        let cause = cause.into();
        let is_lost = matches!(cause, Cause::Runtime(Error::DeviceLost(_)));
        let stage = if is_lost { "device" } else { stage };
        Failed {
            stage: stage.to_owned(),
            index,
            cause,
        }
    }
}

/// Runs user code and converts a panic to a failure of the stage.
pub(crate) fn guarded<R, E: Into<Cause>>(
    stage: &str,
    index: u64,
    run: impl FnOnce() -> Result<R, E>,
) -> Result<R, Failed> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Failed::new(stage, index, error)),
        Err(panic) => {
            let message = message(&*panic);
            // A payload whose destructor panics must not end the pipeline.
            std::mem::forget(panic);
            Err(Failed::new(stage, index, Cause::Panicked(message)))
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a value that is not text".to_owned())
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        Error::other(failed)
    }
}

impl From<Error> for Cause {
    fn from(error: Error) -> Cause {
        match error {
            Error::Other(other) => match other.into_inner() {
                Ok(error) => Cause::User(error),
                Err(shared) => Cause::Runtime(Error::Other(shared)),
            },
            error => Cause::Runtime(error),
        }
    }
}

impl From<BoxError> for Cause {
    fn from(error: BoxError) -> Cause {
        match error.downcast::<Error>() {
            Ok(error) => Cause::from(*error),
            Err(error) => Cause::User(error),
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "item {} failed in `{}`: {}",
            self.index, self.stage, self.cause
        )
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Runtime(error) => error.fmt(f),
            Cause::User(error) => error.fmt(f),
            Cause::Panicked(message) => write!(f, "it panicked: {message}"),
        }
    }
}

impl StdError for Failed {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.cause {
            Cause::Runtime(Error::Other(error)) => Some(error.get()),
            Cause::Runtime(error) => Some(error),
            Cause::User(error) => Some(&**error),
            Cause::Panicked(_) => None,
        }
    }
}
