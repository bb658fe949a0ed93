//! The expected result of a program that tests a checker.

use sidestream::check::{LintCode, RaceKind, Severity};
use sidestream::order::Code;

/// The value of the key `expect` of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expect {
    /// Expected verdict, with its details.
    pub verdict: Expected,
    /// The exact set of lints that are expected, each at least once.
    pub lints: Vec<LintCode>,
}

/// The verdict that a program expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// No hazard is expected.
    Clean,
    /// The listed hazards are expected; others are allowed.
    Race {
        /// Pairs that are expected.
        must: Vec<MustPair>,
        /// Severity of all these pairs.
        severity: Severity,
        /// Exact number of entries, if the program states it.
        distinct: Option<u64>,
    },
    /// An op is expected to fail.
    Error {
        /// The op; none for a `BadProgram` that is not the error of an op.
        at: Option<usize>,
        /// How the op fails.
        code: Failure,
    },
}

/// One entry of `must`: a hazard that is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MustPair {
    /// Kind of the hazard.
    pub kind: RaceKind,
    /// Name of the buffer; none for a `TIMING` hazard.
    pub buffer: Option<String>,
    /// The op that is listed earlier.
    pub first: usize,
    /// The op that is listed later.
    pub second: usize,
}

/// How a program fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// CUDA refuses a call. The format has no word for `InvalidValue` and `IllegalState`: the reader refuses text
    /// that expects one of them.
    Call(Code),
    /// The program breaks the format.
    BadProgram,
}

impl Failure {
    /// Returns the name that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Failure::Call(code) => code.name(),
            Failure::BadProgram => "BadProgram",
        }
    }
}
