//! Calls that CUDA refuses, with its error codes.

use std::fmt;

use super::Rule;

/// The error for a call that fails: CUDA's code, the rule, and the reason in one sentence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misuse {
    /// CUDA's error code.
    pub code: Code,
    /// The rule.
    pub rule: Rule,
    /// The reason, and the remedy.
    pub why: &'static str,
}

/// The codes of `cudaError_t` that a wrong order of calls can cause.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the names are CUDA's own")]
pub enum Code {
    InvalidValue,
    InvalidResourceHandle,
    IllegalState,
    StreamCaptureUnsupported,
    StreamCaptureMerge,
    StreamCaptureUnmatched,
    StreamCaptureUnjoined,
    StreamCaptureIsolation,
    StreamCaptureImplicit,
    CapturedEvent,
    StreamCaptureWrongThread,
}

impl Code {
    /// Returns the name without its `cudaError` prefix.
    pub fn name(self) -> &'static str {
        match self {
            Code::InvalidValue => "InvalidValue",
            Code::InvalidResourceHandle => "InvalidResourceHandle",
            Code::IllegalState => "IllegalState",
            Code::StreamCaptureUnsupported => "StreamCaptureUnsupported",
            Code::StreamCaptureMerge => "StreamCaptureMerge",
            Code::StreamCaptureUnmatched => "StreamCaptureUnmatched",
            Code::StreamCaptureUnjoined => "StreamCaptureUnjoined",
            Code::StreamCaptureIsolation => "StreamCaptureIsolation",
            Code::StreamCaptureImplicit => "StreamCaptureImplicit",
            Code::CapturedEvent => "CapturedEvent",
            Code::StreamCaptureWrongThread => "StreamCaptureWrongThread",
        }
    }

    /// Returns the number in `driver_types.h`.
    pub fn number(self) -> u32 {
        match self {
            Code::InvalidValue => 1,
            Code::InvalidResourceHandle => 400,
            Code::IllegalState => 401,
            Code::StreamCaptureUnsupported => 900,
            Code::StreamCaptureMerge => 902,
            Code::StreamCaptureUnmatched => 903,
            Code::StreamCaptureUnjoined => 904,
            Code::StreamCaptureIsolation => 905,
            Code::StreamCaptureImplicit => 906,
            Code::CapturedEvent => 907,
            Code::StreamCaptureWrongThread => 908,
        }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Misuse { code, rule, why } = self;
        write!(f, "{} ({}, {rule}): {why}", code.name(), code.number())
    }
}

impl std::error::Error for Misuse {}
