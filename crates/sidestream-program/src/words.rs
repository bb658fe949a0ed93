//! The format's words for kinds and codes, in both directions.
//!
//! The kinds are those of the runtime. The format uses the names of its reports; for kinds that no report names, the
//! words are defined here.

use sidestream::check::{LintCode, RaceKind, Severity};
use sidestream::op::{Compare, Memory, SourceOrder, StreamKind};
use sidestream::order::Code;

use crate::expect::Failure;
use crate::program::Level;

/// The words for the kinds of one type.
pub(crate) struct Words<T: 'static> {
    /// All kinds that have a word, in the order in which the format lists them.
    all: &'static [T],
    word_of: fn(T) -> &'static str,
}

impl<T: Copy> Words<T> {
    /// Returns the kind for a word of the format.
    pub(crate) fn find(&self, word: &str) -> Option<T> {
        let mut all = self.all.iter().copied();
        all.find(|&kind| (self.word_of)(kind) == word)
    }

    /// Returns the word for a kind.
    pub(crate) fn of(&self, kind: T) -> &'static str {
        (self.word_of)(kind)
    }

    /// Returns "`nb`, `blk`, `legacy` or `ptds`": the valid words, for a message.
    pub(crate) fn listed(&self) -> String {
        let mut text = String::new();
        for (at, &kind) in self.all.iter().enumerate() {
            if at > 0 {
                text.push_str(if at + 1 == self.all.len() {
                    " or "
                } else {
                    ", "
                });
            }
            text.push('`');
            text.push_str(self.of(kind));
            text.push('`');
        }
        text
    }
}

pub(crate) static LEVELS: Words<Level> = Words {
    all: &[Level::Checker, Level::Runtime],
    word_of: |level| match level {
        Level::Checker => "checker",
        Level::Runtime => "runtime",
    },
};

pub(crate) static STREAM_KINDS: Words<StreamKind> = Words {
    all: &[
        StreamKind::NonBlocking,
        StreamKind::Blocking,
        StreamKind::Legacy,
        StreamKind::PerThread,
    ],
    word_of: |kind| match kind {
        StreamKind::NonBlocking => "nb",
        StreamKind::Blocking => "blk",
        StreamKind::Legacy => "legacy",
        StreamKind::PerThread => "ptds",
    },
};

pub(crate) static SOURCE_ORDERS: Words<SourceOrder> = Words {
    all: &[
        SourceOrder::Stream,
        SourceOrder::DuringCall,
        SourceOrder::Any,
    ],
    word_of: |order| match order {
        SourceOrder::Stream => "stream",
        SourceOrder::DuringCall => "during_call",
        SourceOrder::Any => "any",
    },
};

pub(crate) static COMPARES: Words<Compare> = Words {
    all: &[Compare::AtLeast, Compare::Equal, Compare::And, Compare::Nor],
    word_of: |compare| match compare {
        Compare::AtLeast => "geq",
        Compare::Equal => "eq",
        Compare::And => "and",
        Compare::Nor => "nor",
    },
};

pub(crate) static MEMORIES: Words<Memory> = Words {
    all: &[
        Memory::Device,
        Memory::Pinned,
        Memory::Pageable,
        Memory::Managed,
    ],
    word_of: |memory| match memory {
        Memory::Device => "dev",
        Memory::Pinned => "pinned",
        Memory::Pageable => "pageable",
        Memory::Managed => "managed",
    },
};

pub(crate) static SEVERITIES: Words<Severity> = Words {
    all: &[Severity::Warn, Severity::Error],
    word_of: Severity::name,
};

pub(crate) static RACE_KINDS: Words<RaceKind> = Words {
    all: &[
        RaceKind::Raw,
        RaceKind::War,
        RaceKind::Waw,
        RaceKind::HostRaw,
        RaceKind::HostWar,
        RaceKind::HostWaw,
        RaceKind::Uaf,
        RaceKind::Uba,
        RaceKind::Timing,
    ],
    word_of: RaceKind::code,
};

pub(crate) static LINT_CODES: Words<LintCode> = Words {
    all: &[
        LintCode::UnpinnedAsyncCopy,
        LintCode::DefaultStreamSerialization,
        LintCode::WaitOnUnrecordedEvent,
        LintCode::SyncInLoop,
        LintCode::ForeignDeviceLaunch,
        LintCode::StreamPoolAlias,
    ],
    word_of: LintCode::code,
};

pub(crate) static FAILURES: Words<Failure> = Words {
    all: &[
        Failure::Call(Code::InvalidResourceHandle),
        Failure::Call(Code::StreamCaptureUnsupported),
        Failure::Call(Code::StreamCaptureImplicit),
        Failure::Call(Code::StreamCaptureIsolation),
        Failure::Call(Code::StreamCaptureMerge),
        Failure::Call(Code::StreamCaptureUnjoined),
        Failure::Call(Code::StreamCaptureUnmatched),
        Failure::Call(Code::StreamCaptureWrongThread),
        Failure::Call(Code::CapturedEvent),
        Failure::BadProgram,
    ],
    word_of: Failure::name,
};
