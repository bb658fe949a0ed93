//! The driver's codes that the stand-in returns, with their names.

use std::ffi::CStr;

use sidestream::cuda::driver::{Code, SUCCESS};
use sidestream::error::Error;

/// The result of a call, or the driver's code.
pub type Answer<T> = Result<T, Code>;

/// Returns the code for an error of the simulated machine.
pub fn of(error: &Error) -> Code {
    match error {
        Error::Refused { code, .. } => *code,
        Error::DeviceLost(lost) => lost.code,
        Error::OutOfMemory(_) => OUT_OF_MEMORY,
        Error::NoSuchDevice { .. } => INVALID_DEVICE,
        Error::NoForm { .. } => NOT_FOUND,
        Error::Invalid { .. } => INVALID_VALUE,
        _ => UNKNOWN,
    }
}

/// Returns the name and the description of a code as constant texts.
pub fn words(code: Code) -> Option<(&'static CStr, &'static CStr)> {
    let known = WORDS.iter().find(|known| known.0 == code)?;
    Some((known.1, known.2))
}

/// Defines a constant for each code. The driver's name, and `cuda.h`'s, is `CUDA_ERROR_` and that of the constant.
macro_rules! codes {
    ($($code:literal $name:ident $meaning:literal;)*) => {
        $(pub const $name: Code = $code;)*
        const WORDS: &[(Code, &CStr, &CStr)] = &[
            (SUCCESS, c"CUDA_SUCCESS", c"it worked"),
            $(($name, c_text!("CUDA_ERROR_", stringify!($name)), $meaning),)*
        ];
    };
}

/// Returns the constant text of several parts.
macro_rules! c_text {
    ($($part:expr),*) => {
        match std::ffi::CStr::from_bytes_with_nul(concat!($($part,)* "\0").as_bytes()) {
            Ok(text) => text,
            Err(_) => panic!(),
        }
    };
}
pub(crate) use c_text;

codes! {
    1 INVALID_VALUE c"an argument is wrong";
    2 OUT_OF_MEMORY c"there is not enough memory";
    3 NOT_INITIALIZED c"cuInit was not called";
    100 NO_DEVICE c"there is no device";
    101 INVALID_DEVICE c"there is no such device";
    201 INVALID_CONTEXT c"the thread has no current context";
    205 MAP_FAILED c"the event does not exist any more";
    209 NO_BINARY_FOR_GPU c"the image has no code for the device";
    218 INVALID_PTX c"the PTX cannot be compiled";
    400 INVALID_HANDLE c"the handle is unknown, or belongs elsewhere";
    401 ILLEGAL_STATE c"this cannot be done now";
    500 NOT_FOUND c"nothing has this name";
    600 NOT_READY c"the work is not complete yet";
    700 ILLEGAL_ADDRESS c"a kernel accessed memory that does not exist";
    704 PEER_ACCESS_ALREADY_ENABLED c"the device reaches its peer already";
    712 HOST_MEMORY_ALREADY_REGISTERED c"the memory is registered already";
    713 HOST_MEMORY_NOT_REGISTERED c"the memory is not registered";
    719 LAUNCH_FAILED c"a kernel trapped";
    800 NOT_PERMITTED c"a function on the host may not do this";
    801 NOT_SUPPORTED c"this is not supported";
    900 STREAM_CAPTURE_UNSUPPORTED c"a capture does not allow this";
    901 STREAM_CAPTURE_INVALIDATED c"an earlier mistake ended the capture";
    902 STREAM_CAPTURE_MERGE c"two captures would be merged";
    903 STREAM_CAPTURE_UNMATCHED c"the capture began in another stream";
    904 STREAM_CAPTURE_UNJOINED c"a forked stream was not joined";
    905 STREAM_CAPTURE_ISOLATION c"the capture would wait for work outside of it";
    906 STREAM_CAPTURE_IMPLICIT c"the legacy stream would wait for a capture";
    907 CAPTURED_EVENT c"the event was recorded in a capture";
    908 STREAM_CAPTURE_WRONG_THREAD c"another thread began the capture";
    910 GRAPH_EXEC_UPDATE_FAILURE c"the graph is too different";
    999 UNKNOWN c"the stand-in itself failed";
}
