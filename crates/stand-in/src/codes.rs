//! The driver's codes that the stand-in returns, with their names.

use std::ffi::CStr;

use sidestream::cuda::driver::Code;
use sidestream::error::Error;

/// The result of a call, or the driver's code.
pub type Answer<T> = Result<T, Code>;

pub const INVALID_VALUE: Code = 1;
pub const OUT_OF_MEMORY: Code = 2;
pub const NOT_INITIALIZED: Code = 3;
pub const INVALID_DEVICE: Code = 101;
pub const INVALID_CONTEXT: Code = 201;
pub const MAP_FAILED: Code = 205;
pub const NO_BINARY_FOR_GPU: Code = 209;
pub const INVALID_PTX: Code = 218;
pub const INVALID_HANDLE: Code = 400;
pub const ILLEGAL_STATE: Code = 401;
pub const NOT_FOUND: Code = 500;
pub const NOT_READY: Code = 600;
pub const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
pub const HOST_MEMORY_NOT_REGISTERED: Code = 713;
pub const NOT_PERMITTED: Code = 800;
pub const NOT_SUPPORTED: Code = 801;
pub const CAPTURE_UNSUPPORTED: Code = 900;
pub const CAPTURE_INVALIDATED: Code = 901;
pub const CAPTURE_MERGE: Code = 902;
pub const CAPTURE_UNMATCHED: Code = 903;
pub const CAPTURE_UNJOINED: Code = 904;
pub const CAPTURE_ISOLATION: Code = 905;
pub const CAPTURE_IMPLICIT: Code = 906;
pub const CAPTURED_EVENT: Code = 907;
pub const CAPTURE_WRONG_THREAD: Code = 908;
pub const GRAPH_UPDATE_FAILURE: Code = 910;
pub const UNKNOWN: Code = 999;

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

/// The names are those of `cuda.h`.
const WORDS: &[(Code, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"it worked"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"an argument is wrong"),
    (
        2,
        c"CUDA_ERROR_OUT_OF_MEMORY",
        c"there is not enough memory",
    ),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"cuInit was not called"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"there is no device"),
    (
        101,
        c"CUDA_ERROR_INVALID_DEVICE",
        c"there is no such device",
    ),
    (
        201,
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"the thread has no current context",
    ),
    (
        205,
        c"CUDA_ERROR_MAP_FAILED",
        c"the event does not exist any more",
    ),
    (
        209,
        c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        c"the image has no code for the device",
    ),
    (
        218,
        c"CUDA_ERROR_INVALID_PTX",
        c"the PTX cannot be compiled",
    ),
    (
        400,
        c"CUDA_ERROR_INVALID_HANDLE",
        c"the handle is unknown, or belongs elsewhere",
    ),
    (401, c"CUDA_ERROR_ILLEGAL_STATE", c"this cannot be done now"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"nothing has this name"),
    (
        600,
        c"CUDA_ERROR_NOT_READY",
        c"the work is not complete yet",
    ),
    (
        700,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"a kernel accessed memory that does not exist",
    ),
    (
        704,
        c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        c"the device reaches its peer already",
    ),
    (
        712,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"the memory is registered already",
    ),
    (
        713,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"the memory is not registered",
    ),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"a kernel trapped"),
    (
        800,
        c"CUDA_ERROR_NOT_PERMITTED",
        c"a function on the host may not do this",
    ),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"this is not supported"),
    (
        900,
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"a capture does not allow this",
    ),
    (
        901,
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"an earlier mistake ended the capture",
    ),
    (
        902,
        c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
        c"two captures would be merged",
    ),
    (
        903,
        c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        c"the capture began in another stream",
    ),
    (
        904,
        c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        c"a forked stream was not joined",
    ),
    (
        905,
        c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        c"the capture would wait for work outside of it",
    ),
    (
        906,
        c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        c"the legacy stream would wait for a capture",
    ),
    (
        907,
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"the event was recorded in a capture",
    ),
    (
        908,
        c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        c"another thread began the capture",
    ),
    (
        910,
        c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        c"the graph is too different",
    ),
    (999, c"CUDA_ERROR_UNKNOWN", c"the stand-in itself failed"),
];
