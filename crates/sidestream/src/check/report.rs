//! What a check found, as data and as text.

use std::borrow::Cow;
use std::fmt;

use super::hazard::{RaceKind, Severity};
use super::lint::Lint;
use super::spans::SpanId;
use crate::op::{BufferId, DeviceId, EventId, OpId, SiteId, StreamId, StreamKind, ThreadId};
use crate::order::{Chain, Misuse, Order};

/// Everything found, in the order of the operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// By second operation, then by first.
    pub races: Vec<Race>,
    /// By operation.
    pub lints: Vec<Lint>,
    /// The call at which checking stopped.
    pub error: Option<Refused>,
}

/// The answer in one word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// Everything that has to be ordered is.
    Clean,
    /// Something is not, if only by a warning.
    Race,
    /// A call fails.
    Error,
}

impl Verdict {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Clean => "clean",
            Verdict::Race => "race",
            Verdict::Error => "error",
        }
    }
}

/// A call that CUDA refuses. What comes after it was not checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The call.
    pub op: OpId,
    /// Why.
    pub misuse: Misuse,
}

/// Two operations that touch the same bytes and that nothing orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Race {
    /// What they do to each other.
    pub kind: RaceKind,
    /// How sure CUDA makes it.
    pub severity: Severity,
    /// The memory, as the second operation names it; none for [`RaceKind::Timing`].
    pub buffer: Option<BufferId>,
    /// If the memory was handed on between the two: from which buffer, and how.
    pub handed_on: Option<HandedOn>,
    /// The operation called earlier.
    pub first: OpId,
    /// The operation called later.
    pub second: OpId,
    /// Where the earlier one was called.
    pub first_site: SiteId,
    /// Where the later one was called.
    pub second_site: SiteId,
    /// The innermost named spans that the two were called in.
    pub spans: (Option<SpanId>, Option<SpanId>),
    /// Where the two ran.
    pub chains: (Chain, Chain),
    /// How much of the first chain the second one stands behind.
    pub ordered_up_to: Reach,
    /// What orders the two.
    pub fix: Fix,
    /// How many pairs alike in kind, buffer and both call sites there were; this is the first.
    pub count: u64,
}

/// Memory that got another tenant between two operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HandedOn {
    /// The buffer of the first operation, on whose bytes the second one's lies, or the other way
    /// round.
    pub from: BufferId,
    /// The free after the first operation, if the caching allocator was told of it.
    pub freed: Option<OpId>,
    /// The stream of the first operation, if the caching allocator did not know that it uses the
    /// memory: noted by `record_stream`, it would have kept the memory back.
    pub not_noted: Option<StreamId>,
}

/// How much of one chain is known to come before a point on another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reach {
    /// None of it.
    Nothing,
    /// All up to this operation.
    UpTo(OpId),
    /// Something, too long ago to be named.
    LongAgo,
}

/// A call that would order a pair, and where it has to stand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fix {
    /// One stream has to wait for another.
    WaitStream {
        /// The stream that waits.
        stream: StreamId,
        /// The stream that it waits for.
        source: StreamId,
        /// The operation in front of which the call belongs.
        before: OpId,
        /// The calling thread.
        thread: ThreadId,
    },
    /// The host has to wait for a stream.
    SyncStream {
        /// The stream.
        stream: StreamId,
        /// The operation in front of which the call belongs.
        before: OpId,
        /// The calling thread.
        thread: ThreadId,
    },
    /// The host has to wait for an event.
    SyncEvent {
        /// The event.
        event: EventId,
        /// The operation in front of which the call belongs.
        before: OpId,
        /// The calling thread.
        thread: ThreadId,
    },
    /// The caching allocator has to hear of a stream that uses the buffer.
    RecordStream {
        /// The buffer whose bytes were handed on too early.
        buffer: BufferId,
        /// The stream that uses it.
        stream: StreamId,
        /// The free in front of which the call belongs.
        before: OpId,
        /// The calling thread.
        thread: ThreadId,
    },
    /// One thread has to tell another.
    Flag {
        /// The operation behind which a flag has to be raised.
        after: OpId,
        /// The thread that raises it.
        by: ThreadId,
        /// The operation in front of which it has to be waited for.
        before: OpId,
        /// The thread that waits.
        on: ThreadId,
    },
}

impl Report {
    /// The answer in one word. A report of warnings only is still a race.
    pub fn verdict(&self) -> Verdict {
        if self.error.is_some() {
            Verdict::Error
        } else if self.races.is_empty() {
            Verdict::Clean
        } else {
            Verdict::Race
        }
    }

    /// What was found in all, in a line: `1 race, 2 remarks`.
    pub fn summary(&self) -> String {
        let errors = self
            .races
            .iter()
            .filter(|r| r.severity == Severity::Error)
            .count();
        let warnings = self.races.len() - errors;
        let mut parts = Vec::new();
        let mut count = |n: usize, one: &str, many: &str| match n {
            0 => {}
            1 => parts.push(format!("1 {one}")),
            n => parts.push(format!("{n} {many}")),
        };
        count(errors, "race", "races");
        count(
            warnings,
            "race that CUDA leaves open",
            "races that CUDA leaves open",
        );
        count(
            usize::from(self.error.is_some()),
            "call fails",
            "calls fail",
        );
        count(self.lints.len(), "remark", "remarks");
        if parts.is_empty() {
            "no race".to_owned()
        } else if errors + warnings == 0 && self.error.is_none() {
            format!("no race, {}", parts.join(", "))
        } else {
            parts.join(", ")
        }
    }
}

impl Race {
    /// How far the two are ordered, in one line.
    pub(crate) fn reach_text(&self, names: &Names) -> String {
        let names = Shown(names);
        let (first, second) = (names.chain(self.chains.0), names.chain(self.chains.1));
        match self.ordered_up_to {
            Reach::Nothing => format!("nothing makes {second} wait for {first}"),
            Reach::UpTo(op) => format!("{second} waits for {first} only up to {op}"),
            Reach::LongAgo => format!("{second} waited for {first} only long ago"),
        }
    }
}

/// A call of a fix, in the words of the program format.
pub(super) struct Missing {
    pub verb: &'static str,
    pub fields: Vec<(&'static str, String)>,
    /// Whether it belongs before or after the operation.
    pub side: &'static str,
    pub op: OpId,
}

impl Fix {
    /// One line in the words of the program format.
    pub fn text(&self, names: &Names) -> String {
        let call = |call: Missing| {
            let fields = call.fields.iter();
            let fields: String = fields
                .map(|(key, value)| format!(" {key}={value}"))
                .collect();
            format!("{}{fields} {} {}", call.verb, call.side, call.op.0)
        };
        let calls = self.calls(Shown(names)).into_iter().map(call);
        calls.collect::<Vec<_>>().join(", ")
    }

    /// The calls that are missing, in the order in which they would be made.
    pub(super) fn calls(&self, names: Shown<'_>) -> Vec<Missing> {
        let call = |verb, mut fields: Vec<_>, thread, side, op| {
            // The format leaves the thread out where it is `t0`.
            let thread = names.thread(thread);
            fields.extend((thread != "t0").then_some(("t", thread)));
            Missing {
                verb,
                fields,
                side,
                op,
            }
        };
        match *self {
            Fix::WaitStream {
                stream,
                source,
                before,
                thread,
            } => {
                let fields = vec![("s", names.stream(stream)), ("src", names.stream(source))];
                vec![call("wait_stream", fields, thread, "before", before)]
            }
            Fix::SyncStream {
                stream,
                before,
                thread,
            } => {
                let fields = vec![("st", names.stream(stream))];
                vec![call("sync_stream", fields, thread, "before", before)]
            }
            Fix::SyncEvent {
                event,
                before,
                thread,
            } => {
                let fields = vec![("ev", names.event(event))];
                vec![call("sync_event", fields, thread, "before", before)]
            }
            Fix::RecordStream {
                buffer,
                stream,
                before,
                thread,
            } => {
                let fields = vec![("buf", names.buffer(buffer)), ("st", names.stream(stream))];
                vec![call("record_stream", fields, thread, "before", before)]
            }
            Fix::Flag {
                after,
                by,
                before,
                on,
            } => {
                // A name that no other fix and hardly a program has: a flag once raised stays up.
                let flag = vec![("flag", format!("done{}", after.0))];
                vec![
                    call("set_flag", flag.clone(), by, "after", after),
                    call("wait_flag", flag, on, "before", before),
                ]
            }
        }
    }
}

/// What the ids are called in a report, by id. An id without a name is shown by its number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Names {
    pub streams: Vec<String>,
    pub threads: Vec<String>,
    pub buffers: Vec<String>,
    pub events: Vec<String>,
    pub spans: Vec<String>,
}

impl Names {
    /// Names for the streams that programs rarely name: the legacy streams.
    pub(crate) fn of_legacy_streams(order: &Order) -> Names {
        let name = |(id, kind, device)| match (kind, device) {
            (StreamKind::Legacy, DeviceId(0)) => "legacy".to_owned(),
            (StreamKind::Legacy, DeviceId(n)) => format!("legacy@{n}"),
            _ => numbered("stream", id),
        };
        let streams = order.streams().map(|(id, kind, at)| name((id.0, kind, at)));
        Names {
            streams: streams.collect(),
            ..Names::default()
        }
    }

    /// The name of a stream.
    pub fn stream(&self, id: StreamId) -> String {
        look_up(&self.streams, "stream", id.0)
    }

    /// The name of a host thread.
    pub fn thread(&self, id: ThreadId) -> String {
        look_up(&self.threads, "t", id.0)
    }

    /// The name of a buffer.
    pub fn buffer(&self, id: BufferId) -> String {
        look_up(&self.buffers, "buffer", id.0)
    }

    /// The name of an event.
    pub fn event(&self, id: EventId) -> String {
        look_up(&self.events, "event", id.0)
    }

    /// The name of a span.
    pub fn span(&self, id: SpanId) -> String {
        look_up(&self.spans, "span", id.0)
    }

    /// The name of a stream or thread.
    pub fn chain(&self, chain: Chain) -> String {
        match chain {
            Chain::Thread(thread) => self.thread(thread),
            Chain::Stream(stream) => self.stream(stream),
        }
    }
}

/// The same names as they are printed: nobody who gives names can write lines of a report.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a>(pub &'a Names);

impl Shown<'_> {
    pub(super) fn stream(self, id: StreamId) -> String {
        one_line(&self.0.stream(id)).into_owned()
    }

    pub(super) fn thread(self, id: ThreadId) -> String {
        one_line(&self.0.thread(id)).into_owned()
    }

    pub(super) fn buffer(self, id: BufferId) -> String {
        one_line(&self.0.buffer(id)).into_owned()
    }

    pub(super) fn event(self, id: EventId) -> String {
        one_line(&self.0.event(id)).into_owned()
    }

    pub(super) fn span(self, id: SpanId) -> String {
        one_line(&self.0.span(id)).into_owned()
    }

    pub(super) fn chain(self, chain: Chain) -> String {
        one_line(&self.0.chain(chain)).into_owned()
    }
}

/// Text that somebody else wrote, such as a name in a log, as it may be printed: what would end the
/// line, move the cursor or turn the direction of writing is escaped as in Rust.
pub fn one_line(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        !c.is_control() && !turns
    };
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut line = String::new();
    for c in text.chars() {
        match is_plain(c) {
            true => line.push(c),
            false => line.extend(c.escape_debug()),
        }
    }
    Cow::Owned(line)
}

/// How many there are of something: `1 race`, `2 races`.
#[doc(hidden)]
pub fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

fn look_up(names: &[String], what: &str, id: u32) -> String {
    let known = names.get(id as usize).cloned();
    known.unwrap_or_else(|| numbered(what, id))
}

pub(super) fn numbered(what: &str, id: u32) -> String {
    format!("{what}{id}")
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} fails: {}", self.op, self.misuse)
    }
}

impl std::error::Error for Refused {}
