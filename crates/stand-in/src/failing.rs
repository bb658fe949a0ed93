//! Calls that fail because a test requests it, as a driver's calls may at any time.

use std::sync::{Mutex, PoisonError};

use sidestream::cuda::driver::Code;

use crate::codes::Answer;

/// The call that is to fail next, if there is one.
static NEXT: Mutex<Option<Failure>> = Mutex::new(None);

struct Failure {
    function: String,
    /// Number of calls of the function that succeed before.
    after: u32,
    code: Code,
}

/// Lets a call of this function return the code without any effect, after `after` further calls.
pub fn fail(function: &str, after: u32, code: Code) {
    let function = function.to_owned();
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    *next = Some(Failure {
        function,
        after,
        code,
    });
}

/// Refuses the call of a function if a test requested it.
pub fn refuse_asked(function: &str) -> Answer<()> {
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
