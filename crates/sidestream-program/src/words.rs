//! The words of the format for kinds and codes, both ways.

use crate::{ErrorCode, HazardKind, Level, LintCode, Memory, Severity, StreamKind};

/// Finds the word among all that a kind has.
fn find<T: Copy>(all: &[T], word_of: fn(T) -> &'static str, word: &str) -> Option<T> {
    all.iter().copied().find(|&kind| word_of(kind) == word)
}

/// "`nb`, `blk`, `legacy` or `ptds`": what could have been written.
pub(crate) fn listed<T: Copy>(all: &[T], word_of: fn(T) -> &'static str) -> String {
    let mut text = String::new();
    for (at, &kind) in all.iter().enumerate() {
        if at > 0 {
            text.push_str(if at + 1 == all.len() { " or " } else { ", " });
        }
        text.push('`');
        text.push_str(word_of(kind));
        text.push('`');
    }
    text
}

impl Level {
    /// All of them, in the order in which the format lists them.
    pub const ALL: [Self; 2] = [Self::Checker, Self::Runtime];

    /// The word of the format.
    pub fn word(self) -> &'static str {
        match self {
            Self::Checker => "checker",
            Self::Runtime => "runtime",
        }
    }

    /// What the word stands for, if it is one of the format.
    pub fn from_word(word: &str) -> Option<Self> {
        find(&Self::ALL, Self::word, word)
    }
}

impl StreamKind {
    /// All of them, in the order in which the format lists them.
    pub const ALL: [Self; 4] = [
        Self::NonBlocking,
        Self::Blocking,
        Self::Legacy,
        Self::PerThread,
    ];

    /// The word of the format.
    pub fn word(self) -> &'static str {
        match self {
            Self::NonBlocking => "nb",
            Self::Blocking => "blk",
            Self::Legacy => "legacy",
            Self::PerThread => "ptds",
        }
    }

    /// What the word stands for, if it is one of the format.
    pub fn from_word(word: &str) -> Option<Self> {
        find(&Self::ALL, Self::word, word)
    }
}

impl Memory {
    /// All of them, in the order in which the format lists them.
    pub const ALL: [Self; 4] = [Self::Dev, Self::Pinned, Self::Pageable, Self::Managed];

    /// The word of the format.
    pub fn word(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Pinned => "pinned",
            Self::Pageable => "pageable",
            Self::Managed => "managed",
        }
    }

    /// What the word stands for, if it is one of the format.
    pub fn from_word(word: &str) -> Option<Self> {
        find(&Self::ALL, Self::word, word)
    }
}

impl Severity {
    /// All of them, in the order in which the format lists them.
    pub const ALL: [Self; 2] = [Self::Warn, Self::Error];

    /// The word of the format.
    pub fn word(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }

    /// What the word stands for, if it is one of the format.
    pub fn from_word(word: &str) -> Option<Self> {
        find(&Self::ALL, Self::word, word)
    }
}

impl HazardKind {
    /// All of them, in the order in which the format lists them.
    pub const ALL: [Self; 9] = [
        Self::Raw,
        Self::War,
        Self::Waw,
        Self::HostRaw,
        Self::HostWar,
        Self::HostWaw,
        Self::Uaf,
        Self::Uba,
        Self::Timing,
    ];

    /// The word of the format.
    pub fn word(self) -> &'static str {
        match self {
            Self::Raw => "RAW",
            Self::War => "WAR",
            Self::Waw => "WAW",
            Self::HostRaw => "HOST_RAW",
            Self::HostWar => "HOST_WAR",
            Self::HostWaw => "HOST_WAW",
            Self::Uaf => "UAF",
            Self::Uba => "UBA",
            Self::Timing => "TIMING",
        }
    }

    /// What the word stands for, if it is one of the format.
    pub fn from_word(word: &str) -> Option<Self> {
        find(&Self::ALL, Self::word, word)
    }
}

impl LintCode {
    /// All of them, in the order in which the format lists them.
    pub const ALL: [Self; 6] = [
        Self::UnpinnedAsyncCopy,
        Self::DefaultStreamSerialization,
        Self::WaitOnUnrecordedEvent,
        Self::SyncInLoop,
        Self::ForeignDeviceLaunch,
        Self::StreamPoolAlias,
    ];

    /// The word of the format.
    pub fn word(self) -> &'static str {
        match self {
            Self::UnpinnedAsyncCopy => "UNPINNED_ASYNC_COPY",
            Self::DefaultStreamSerialization => "DEFAULT_STREAM_SERIALIZATION",
            Self::WaitOnUnrecordedEvent => "WAIT_ON_UNRECORDED_EVENT",
            Self::SyncInLoop => "SYNC_IN_LOOP",
            Self::ForeignDeviceLaunch => "FOREIGN_DEVICE_LAUNCH",
            Self::StreamPoolAlias => "STREAM_POOL_ALIAS",
        }
    }

    /// What the word stands for, if it is one of the format.
    pub fn from_word(word: &str) -> Option<Self> {
        find(&Self::ALL, Self::word, word)
    }
}

impl ErrorCode {
    /// All of them, in the order in which the format lists them.
    pub const ALL: [Self; 10] = [
        Self::InvalidResourceHandle,
        Self::StreamCaptureUnsupported,
        Self::StreamCaptureImplicit,
        Self::StreamCaptureIsolation,
        Self::StreamCaptureMerge,
        Self::StreamCaptureUnjoined,
        Self::StreamCaptureUnmatched,
        Self::StreamCaptureWrongThread,
        Self::CapturedEvent,
        Self::BadProgram,
    ];

    /// The word of the format.
    pub fn word(self) -> &'static str {
        match self {
            Self::InvalidResourceHandle => "InvalidResourceHandle",
            Self::StreamCaptureUnsupported => "StreamCaptureUnsupported",
            Self::StreamCaptureImplicit => "StreamCaptureImplicit",
            Self::StreamCaptureIsolation => "StreamCaptureIsolation",
            Self::StreamCaptureMerge => "StreamCaptureMerge",
            Self::StreamCaptureUnjoined => "StreamCaptureUnjoined",
            Self::StreamCaptureUnmatched => "StreamCaptureUnmatched",
            Self::StreamCaptureWrongThread => "StreamCaptureWrongThread",
            Self::CapturedEvent => "CapturedEvent",
            Self::BadProgram => "BadProgram",
        }
    }

    /// What the word stands for, if it is one of the format.
    pub fn from_word(word: &str) -> Option<Self> {
        find(&Self::ALL, Self::word, word)
    }
}
