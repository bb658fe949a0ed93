//! Calls that fail because a test asks for it, as a driver's may at any time.

use std::sync::{Mutex, PoisonError};

use sidestream::cuda::driver::Code;

use crate::codes::Answer;
use crate::state::{Here, State, anywhere};

/// What is to fail next, if anything is.
static NEXT: Mutex<Option<Failure>> = Mutex::new(None);

struct Failure {
    function: String,
    /// So many calls of it succeed before.
    after: u32,
    code: Code,
}

/// The call of this function that comes behind so many others answers with the code, and does nothing.
pub fn fail(function: &str, after: u32, code: Code) {
    let function = function.to_owned();
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    *next = Some(Failure {
        function,
        after,
        code,
    });
}

/// A function that puts something into a stream.
pub fn submits(function: &str, f: impl FnOnce(&'static State, Here) -> Answer<()>) -> Code {
    anywhere(|state, here| {
        refuse_asked(function)?;
        f(state, here)
    })
}

fn refuse_asked(function: &str) -> Answer<()> {
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *next {
        Some(failure) if failure.function == function => match failure.after.checked_sub(1) {
            Some(left) => {
                failure.after = left;
                Ok(())
            }
            None => {
                let code = failure.code;
                *next = None;
                Err(code)
            }
        },
        _ => Ok(()),
    }
}
