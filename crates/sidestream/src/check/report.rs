//! The findings of a check, as data and as text.

use std::borrow::Cow;
use std::fmt;

use super::hazard::{Doubt, RaceKind, Severity};
use super::lint::Lint;
use super::spans::SpanId;
use crate::op::{BufferId, DeviceId, EventId, OpId, SiteId, StreamId, StreamKind, ThreadId};
use crate::order::{Chain, Misuse, Order};

/// All findings, in the order of the operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The races, sorted by second operation, then by first.
    pub races: Vec<Race>,
    /// The remarks, sorted by operation.
    pub lints: Vec<Lint>,
    /// The call at which the check ended, if CUDA refuses one.
    pub error: Option<Refused>,
}

/// The result of a check in one word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// No race: everything that must be ordered is ordered.
    Clean,
    /// At least one race, even if only of severity [`Severity::Warn`].
    Race,
    /// A call that CUDA refuses.
    Error,
}

impl Verdict {
    /// Returns the name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Clean => "clean",
            Verdict::Race => "race",
            Verdict::Error => "error",
        }
    }
}

/// A call that CUDA refuses. The calls after it were not checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The call.
    pub op: OpId,
    /// The reason.
    pub misuse: Misuse,
}

/// Two operations that touch the same bytes and that nothing orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Race {
    /// The kind of the race.
    pub kind: RaceKind,
    /// The reason why the race is not certain; `None` if it is.
    pub doubt: Option<Doubt>,
    /// The buffer that the second operation names; `None` for [`RaceKind::Timing`].
    pub buffer: Option<BufferId>,
    /// The buffer of the first operation, and its free, if the two operations name different buffers.
    pub handed_on: Option<HandedOn>,
    /// The operation called earlier.
    pub first: OpId,
    /// The operation called later.
    pub second: OpId,
    /// The call sites of the two.
    pub sites: (SiteId, SiteId),
    /// The innermost named spans in which the two were called.
    pub spans: (Option<SpanId>, Option<SpanId>),
    /// The streams or threads on which the two ran.
    pub chains: (Chain, Chain),
    /// The last operation of the first chain that the second chain is ordered after.
    pub ordered_up_to: Reach,
    /// The call that orders the two.
    pub fix: Fix,
    /// The number of pairs with equal kind, buffer and call sites; this is the first of them.
    pub count: u64,
}

/// How memory was reused under another buffer between two operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HandedOn {
    /// The buffer of the first operation; it shares bytes with the buffer of the second.
    pub from: BufferId,
    /// The free after the first operation, if it went through the caching allocator.
    pub freed: Option<OpId>,
    /// The stream of the first operation, if the caching allocator did not know that the stream uses the memory: after
    /// a `record_stream`, the allocator would not have reused the memory yet.
    pub not_noted: Option<StreamId>,
}

/// The part of one chain that is known to be ordered before a point on another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reach {
    /// No operation.
    Nothing,
    /// All operations up to this one.
    UpTo(OpId),
    /// Some operations, so long ago that the last of them is no longer stored.
    LongAgo,
}

/// A call that would order a pair, and the place where it belongs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fix {
    /// Make one stream wait for another.
    WaitStream {
        /// The stream that waits.
        stream: StreamId,
        /// The stream that is waited for.
        source: StreamId,
        /// The operation before which the call belongs.
        before: OpId,
        /// The calling thread.
        thread: ThreadId,
    },
    /// Make the host wait for a stream.
    SyncStream {
        /// The stream.
        stream: StreamId,
        /// The operation before which the call belongs.
        before: OpId,
        /// The calling thread.
        thread: ThreadId,
    },
    /// Make the host wait for an event.
    SyncEvent {
        /// The event.
        event: EventId,
        /// The operation before which the call belongs.
        before: OpId,
        /// The calling thread.
        thread: ThreadId,
    },
    /// Tell the caching allocator that a stream uses the buffer.
    RecordStream {
        /// The buffer whose bytes were reused too early.
        buffer: BufferId,
        /// The stream that uses the buffer.
        stream: StreamId,
        /// The free before which the call belongs.
        before: OpId,
        /// The calling thread.
        thread: ThreadId,
    },
    /// Make one thread wait for a flag of another.
    Flag {
        /// The operation after which the flag is set.
        after: OpId,
        /// The thread that sets the flag.
        by: ThreadId,
        /// The operation before which the other thread waits for the flag.
        before: OpId,
        /// The thread that waits.
        on: ThreadId,
    },
}

impl Report {
    /// Returns the result in one word. A report with warnings only is still [`Verdict::Race`].
    pub fn verdict(&self) -> Verdict {
        if self.error.is_some() {
            Verdict::Error
        } else if self.races.is_empty() {
            Verdict::Clean
        } else {
            Verdict::Race
        }
    }

    /// Returns the counts of all findings in one line: `1 race, 2 remarks`.
    pub fn summary(&self) -> String {
        let with = |doubt| self.races.iter().filter(|r| r.doubt == doubt).count();
        let mut parts = Vec::new();
        let mut count = |n: usize, one: &str, many: &str| match n {
            0 => {}
            1 => parts.push(format!("1 {one}")),
            n => parts.push(format!("{n} {many}")),
        };
        count(with(None), "race", "races");
        count(
            with(Some(Doubt::Waits)),
            "race that CUDA leaves open",
            "races that CUDA leaves open",
        );
        count(
            with(Some(Doubt::MayOnlyRead)),
            "race if its kernel writes",
            "races if their kernels write",
        );
        count(
            with(Some(Doubt::MayStartEarly)),
            "race unless its kernel waits",
            "races unless their kernels wait",
        );
        count(
            with(Some(Doubt::Elsewhere)),
            "race unless its kernel stores elsewhere",
            "races unless their kernels store elsewhere",
        );
        count(
            with(Some(Doubt::Outside)),
            "race unless an unseen wait orders it",
            "races unless unseen waits order them",
        );
        count(
            usize::from(self.error.is_some()),
            "call fails",
            "calls fail",
        );
        count(self.lints.len(), "remark", "remarks");
        if parts.is_empty() {
            "no race".to_owned()
        } else if self.races.is_empty() && self.error.is_none() {
            format!("no race, {}", parts.join(", "))
        } else {
            parts.join(", ")
        }
    }
}

impl Race {
    /// Returns whether the race is certain.
    pub fn severity(&self) -> Severity {
        match self.doubt {
            Some(_) => Severity::Warn,
            None => Severity::Error,
        }
    }

    /// Returns one line on how far the two chains are ordered.
    pub(crate) fn reach_text(&self, names: &Names) -> String {
        let [first, second] = [self.chains.0, self.chains.1].map(|on| shown(&names.chain(on)));
        if self.chains.0 == self.chains.1 {
            return format!("the second may come before earlier work of {second} is complete");
        }
        match self.ordered_up_to {
            Reach::Nothing => format!("nothing makes {second} wait for {first}"),
            Reach::UpTo(op) => format!("{second} waits for {first} only up to {op}"),
            Reach::LongAgo => format!("{second} waited for {first} only long ago"),
        }
    }
}

/// A call of a fix, in the stream program format.
pub(super) struct Missing {
    pub verb: &'static str,
    pub fields: Vec<(&'static str, String)>,
    /// `before` or `after`: on which side of the operation the call belongs.
    pub side: &'static str,
    pub op: OpId,
}

impl Missing {
    /// Returns the call in CUDA's words.
    pub(super) fn in_cuda(&self) -> String {
        let of = |key| {
            let field = self.fields.iter().find(|(name, _)| *name == key);
            field.map_or("", |(_, value)| value.as_str())
        };
        match self.verb {
            "wait_stream" => {
                let (stream, source) = (of("s"), of("src"));
                format!(
                    "make {stream} wait for {source}: cudaEventRecord in {source}, cudaStreamWaitEvent in {stream}"
                )
            }
            "sync_stream" => format!("make the host wait for {}: cudaStreamSynchronize", of("st")),
            "sync_event" => format!("make the host wait for {}: cudaEventSynchronize", of("ev")),
            "record_stream" => format!("record_stream of {} on {}", of("buf"), of("st")),
            "set_flag" => format!(
                "let {} tell the other thread, by a lock or a queue,",
                of("t")
            ),
            _ => format!("let {} wait for that", of("t")),
        }
    }
}

impl Fix {
    /// Returns the fix in one line, in the stream program format.
    pub fn text(&self, names: &Names) -> String {
        let call = |call: Missing| {
            let fields = call.fields.iter();
            let fields: String = fields
                .map(|(key, value)| format!(" {key}={value}"))
                .collect();
            format!("{}{fields} {} {}", call.verb, call.side, call.op.0)
        };
        let calls = self.calls(names).into_iter().map(call);
        calls.collect::<Vec<_>>().join(", ")
    }

    /// Returns the calls to insert, in the order in which they would be made.
    pub(super) fn calls(&self, names: &Names) -> Vec<Missing> {
        let (thread, before) = self.at();
        let (verb, fields) = match *self {
            Fix::WaitStream { stream, source, .. } => {
                let fields = vec![("s", names.stream(stream)), ("src", names.stream(source))];
                ("wait_stream", fields)
            }
            Fix::SyncStream { stream, .. } => ("sync_stream", vec![("st", names.stream(stream))]),
            Fix::SyncEvent { event, .. } => ("sync_event", vec![("ev", names.event(event))]),
            Fix::RecordStream { buffer, stream, .. } => {
                let fields = vec![("buf", names.buffer(buffer)), ("st", names.stream(stream))];
                ("record_stream", fields)
            }
            // A flag name that no other fix uses, and hardly any program: a flag that was set stays set.
            Fix::Flag { after, .. } => ("wait_flag", vec![("flag", format!("done{}", after.0))]),
        };
        let call = |verb, fields: &[(&'static str, String)], thread, side, op| {
            // The format omits the thread where it is `t0`.
            let thread = Some(("t", names.thread(thread))).filter(|(_, name)| name != "t0");
            let fields = fields.iter().cloned().chain(thread);
            let fields = fields.map(|(key, name)| (key, shown(&name))).collect();
            Missing {
                verb,
                fields,
                side,
                op,
            }
        };
        let mut calls = Vec::new();
        if let Fix::Flag { after, by, .. } = *self {
            calls.push(call("set_flag", &fields, by, "after", after));
        }
        calls.push(call(verb, &fields, thread, "before", before));
        calls
    }

    /// Returns the thread that makes the last call, and the operation before which the call belongs.
    pub(super) fn at(&self) -> (ThreadId, OpId) {
        match *self {
            Fix::WaitStream { before, thread, .. }
            | Fix::SyncStream { before, thread, .. }
            | Fix::SyncEvent { before, thread, .. }
            | Fix::RecordStream { before, thread, .. }
            | Fix::Flag {
                before, on: thread, ..
            } => (thread, before),
        }
    }
}

/// The names used in a report, by id. An id without a name is shown by its number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[expect(missing_docs, reason = "each field is named after its ids")]
pub struct Names {
    pub streams: Vec<String>,
    pub threads: Vec<String>,
    pub buffers: Vec<String>,
    pub events: Vec<String>,
    pub spans: Vec<String>,
}

impl Names {
    /// Returns names for the legacy streams, which programs rarely name.
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

    /// Returns the name of a stream.
    pub fn stream(&self, id: StreamId) -> String {
        look_up(&self.streams, "stream", id.0)
    }

    /// Returns the name of a host thread.
    pub fn thread(&self, id: ThreadId) -> String {
        look_up(&self.threads, "t", id.0)
    }

    /// Returns the name of a buffer.
    pub fn buffer(&self, id: BufferId) -> String {
        look_up(&self.buffers, "buffer", id.0)
    }

    /// Returns the name of an event.
    pub fn event(&self, id: EventId) -> String {
        look_up(&self.events, "event", id.0)
    }

    /// Returns the name of a span.
    pub fn span(&self, id: SpanId) -> String {
        look_up(&self.spans, "span", id.0)
    }

    /// Returns the name of a stream or thread.
    pub fn chain(&self, chain: Chain) -> String {
        match chain {
            Chain::Thread(thread) => self.thread(thread),
            Chain::Stream(stream) => self.stream(stream),
        }
    }
}

/// Escapes text from outside, such as a name in a log, for printing: characters that would end the line, move the
/// cursor or change the direction of writing are escaped as in Rust.
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
        if is_plain(c) {
            line.push(c)
        } else {
            line.extend(c.escape_debug())
        }
    }
    Cow::Owned(line)
}

/// Returns a name of a report for printing: so it cannot forge lines of the report.
pub(super) fn shown(name: &str) -> String {
    one_line(name).into_owned()
}

/// Returns a count with its noun: `1 race`, `2 races`.
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
