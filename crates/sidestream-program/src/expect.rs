//! What a right answer to a program is, for programs that test a checker.

/// The key `expect` of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expect {
    /// The verdict and what has to come with it.
    pub verdict: Expected,
    /// Exactly the lints that have to be printed, each at least once.
    pub lints: Vec<LintCode>,
}

/// The verdict that a program expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// No hazard may be printed.
    Clean,
    /// The hazards listed have to be printed; others may be.
    Race {
        /// Pairs that have to be printed.
        must: Vec<MustPair>,
        /// The severity that all of them have to have.
        severity: Severity,
        /// How many entries have to be printed in all, if that is fixed.
        distinct: Option<u64>,
    },
    /// An op has to fail.
    Error {
        /// The op; nothing for a `BadProgram` that is not an op's fault.
        at: Option<usize>,
        /// How it has to fail.
        code: ErrorCode,
    },
}

/// One entry of `must`: a hazard that has to be printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MustPair {
    /// What kind of hazard.
    pub kind: HazardKind,
    /// The buffer's name; nothing for a `TIMING` hazard.
    pub buffer: Option<String>,
    /// The op listed earlier.
    pub first: usize,
    /// The op listed later.
    pub second: usize,
}

/// Whether CUDA makes a hazard wrong or leaves its outcome open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// CUDA leaves the behaviour open.
    Warn,
    /// The program is wrong.
    Error,
}

/// The kinds of hazard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HazardKind {
    /// The device reads what the device may not have written yet.
    Raw,
    /// The device overwrites what the device may still be reading.
    War,
    /// The device overwrites what the device may still be writing.
    Waw,
    /// The host reads what the device may be writing.
    HostRaw,
    /// The host writes what the device may be reading.
    HostWar,
    /// The host writes what the device may be writing.
    HostWaw,
    /// Memory is used after, or while, it is given back.
    Uaf,
    /// Memory is used before its stream-ordered allocation.
    Uba,
    /// A time is asked of an event that is not known complete.
    Timing,
}

/// The lints: what may be right and is worth saying all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LintCode {
    /// An asynchronous copy has a pageable side.
    UnpinnedAsyncCopy,
    /// Work in a legacy stream serialises two blocking streams.
    DefaultStreamSerialization,
    /// A wait on an event that has no record yet does nothing.
    WaitOnUnrecordedEvent,
    /// The host waits in a loop.
    SyncInLoop,
    /// A kernel is launched on a stream of another than the current device.
    ForeignDeviceLaunch,
    /// More streams are asked of the pool than it holds.
    StreamPoolAlias,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorCode {
    /// An event of another device, never recorded, or without timing.
    InvalidResourceHandle,
    /// A call that capture does not allow.
    StreamCaptureUnsupported,
    /// A use of the legacy stream while a blocking stream captures.
    StreamCaptureImplicit,
    /// A wait in a capture on an event from outside it.
    StreamCaptureIsolation,
    /// A wait in a capture on an event of another capture.
    StreamCaptureMerge,
    /// A capture ends with an unjoined fork.
    StreamCaptureUnjoined,
    /// A capture ends on a stream where none began.
    StreamCaptureUnmatched,
    /// A capture ends on another thread than it began on.
    StreamCaptureWrongThread,
    /// A sync or query of an event last recorded in a running capture.
    CapturedEvent,
    /// The program breaks the format.
    BadProgram,
}
