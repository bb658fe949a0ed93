//! Which streams wait for the legacy default stream, and that for them.

use std::collections::BTreeMap;

use sidestream::op::StreamKind;

use super::host::WorkOfCalls;
use crate::model::{ApiKind, Stream, StreamFlag, StreamIndex, Trace};

/// The number that profilers give the legacy default stream: PyTorch's and Nsight Systems say 7.
const LEGACY: i64 = 7;
/// So many times a stream has to be seen waiting.
const SEEN: usize = 3;
/// Beyond these, streams without flags are taken to be independent.
const MOST_STREAMS: usize = 64;

/// The kind of each stream: as the trace says it, else by what was seen.
///
/// Without flags, a stream counts as a blocking one if it never ran beside the legacy stream, and
/// if work of one of the two again and again began only once earlier work of the other was over,
/// though no wait for an event stood between them.
pub fn stream_kinds(trace: &Trace, works: &WorkOfCalls) -> Vec<StreamKind> {
    let mut kinds: Vec<StreamKind> = trace.streams.iter().map(stated).collect();
    if trace.streams.len() > MOST_STREAMS {
        return kinds;
    }
    let same_device = |a: StreamIndex, b: StreamIndex| {
        let (a, b) = (&trace.streams[a.0 as usize], &trace.streams[b.0 as usize]);
        (a.process, a.device) == (b.process, b.device)
    };
    let is_legacy = |stream: StreamIndex| kinds[stream.0 as usize] == StreamKind::Legacy;
    let mut last: BTreeMap<StreamIndex, Last> = BTreeMap::new();
    let mut seen: BTreeMap<StreamIndex, Seen> = BTreeMap::new();
    let mut waits = 0;
    for (at, call) in trace.calls.iter().enumerate() {
        waits += usize::from(call.api.kind == ApiKind::WaitEvent);
        let Some(work) = works.first(at).map(|work| &trace.work[work]) else {
            continue;
        };
        let stream = work.stream;
        for (other, last) in &last {
            let across = is_legacy(*other) != is_legacy(stream) && same_device(*other, stream);
            // It was still to be done when this one was submitted, and no wait is known of.
            if !across || last.waits != waits || last.end_ns <= call.end_ns() {
                continue;
            }
            let side = if is_legacy(stream) { *other } else { stream };
            let seen = seen.entry(side).or_default();
            match work.start_ns >= last.end_ns {
                true => seen.waited += 1,
                false => seen.beside += 1,
            }
        }
        let end_ns = work.end_ns();
        last.insert(stream, Last { end_ns, waits });
    }
    for (stream, seen) in seen {
        let unknown = trace.streams[stream.0 as usize].flag == StreamFlag::Unknown;
        if unknown && seen.beside == 0 && seen.waited >= SEEN {
            kinds[stream.0 as usize] = StreamKind::Blocking;
        }
    }
    kinds
}

/// The last work that was submitted to a stream.
struct Last {
    end_ns: i64,
    /// How many waits of streams for events came before it.
    waits: usize,
}

/// How work of a stream and of the legacy one stood to each other.
#[derive(Default)]
struct Seen {
    waited: usize,
    beside: usize,
}

/// The kind that the trace says a stream is of; those of which it says nothing are independent.
fn stated(stream: &Stream) -> StreamKind {
    match stream.flag {
        StreamFlag::Null => StreamKind::Legacy,
        StreamFlag::Blocking => StreamKind::Blocking,
        StreamFlag::NonBlocking => StreamKind::NonBlocking,
        StreamFlag::Unknown if stream.number == LEGACY => StreamKind::Legacy,
        StreamFlag::Unknown => StreamKind::NonBlocking,
    }
}
