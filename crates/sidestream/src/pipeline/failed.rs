//! How an item fails.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Error;

/// What sources and consumers may fail with. Stages give errors of the runtime, and by
/// [`Error::other`] any others.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// An item that failed: where, which, and why.
///
/// What comes before it is delivered first; nothing after it was started.
#[derive(Debug)]
pub struct Failed {
    /// The stage: its name, or `source`, `slot`, `upload`, `download`, `graph`, `consumer`; `device`
    /// if the device was lost, which says in the cause what it was doing.
    pub stage: String,
    /// The item.
    pub index: u64,
    /// Why.
    pub cause: Cause,
}

/// Why an item failed.
#[derive(Debug)]
pub enum Cause {
    /// A call of the runtime, or the work on the device.
    Runtime(Error),
    /// The source, the consumer or the code of a stage said so.
    User(BoxError),
    /// Code of the stage panicked, with this message.
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

/// Runs code of the user's; a panic of it is a failure of the stage.
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
    text.unwrap_or_else(|| "the panic value is not a string".to_owned())
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
