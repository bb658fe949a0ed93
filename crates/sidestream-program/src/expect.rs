//! What a right answer to a program is, for programs that test a checker.

use sidestream::check::{LintCode, RaceKind, Severity};
use sidestream::order::Code;

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
        code: Failure,
    },
}

/// One entry of `must`: a hazard that has to be printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MustPair {
    /// What kind of hazard.
    pub kind: RaceKind,
    /// The buffer's name; nothing for a `TIMING` hazard.
    pub buffer: Option<String>,
    /// The op listed earlier.
    pub first: usize,
    /// The op listed later.
    pub second: usize,
}

/// How a program fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// CUDA refuses a call. The format has no word for `InvalidValue` and `IllegalState`: text that
    /// expects one of them is refused by the reader.
    Call(Code),
    /// The program breaks the format.
    BadProgram,
}

impl Failure {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Failure::Call(code) => code.name(),
            Failure::BadProgram => "BadProgram",
        }
    }
}
