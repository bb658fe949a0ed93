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
        let words: Vec<String> = self
            .all
            .iter()
            .map(|&kind| format!("`{}`", self.of(kind)))
            .collect();
        match words.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        }
    }
}

/// A table for each type whose words only the format has, with a word for each kind.
macro_rules! words {
    ($($table:ident: $type:ident { $($kind:ident $word:literal),* })*) => {$(
        pub(crate) static $table: Words<$type> = Words {
            all: &[$($type::$kind),*],
            word_of: |kind| match kind {
                $($type::$kind => $word),*
            },
        };
    )*};
}

words! {
    LEVELS: Level { Checker "checker", Runtime "runtime" }
    STREAM_KINDS: StreamKind { NonBlocking "nb", Blocking "blk", Legacy "legacy", PerThread "ptds" }
    SOURCE_ORDERS: SourceOrder { Stream "stream", DuringCall "during_call", Any "any" }
    COMPARES: Compare { AtLeast "geq", Equal "eq", And "and", Nor "nor" }
    MEMORIES: Memory { Device "dev", Pinned "pinned", Pageable "pageable", Managed "managed" }
}

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
