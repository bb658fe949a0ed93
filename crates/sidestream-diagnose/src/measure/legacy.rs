//! Which streams synchronize with the legacy default stream.

use std::collections::BTreeMap;

use sidestream::op::StreamKind;

use super::devices::Collectives;
use super::host::WorkOfCalls;
use super::spans::Spans;
use crate::model::{ApiKind, RangeKind, Stream, StreamFlag, StreamIndex, Trace};

/// The number that profilers give the legacy default stream: PyTorch and Nsight Systems use 7.
const LEGACY: i64 = 7;
/// How often a stream must be seen waiting.
const SEEN: usize = 3;
/// Beyond this number, streams without flags are assumed to be independent.
const MOST_STREAMS: usize = 64;

/// Returns the kind of each stream: as the trace states it, otherwise as inferred.
///
/// Without flags, a stream counts as blocking if it never ran concurrently with the legacy stream, and if work of one of the
/// two repeatedly began only after earlier work of the other was complete, though no wait for an event was placed between them.
/// Streams that PyTorch or NCCL created are not blocking: those with collectives, and those whose work was launched by PyTorch
/// operators. Their waits are merely missing from the trace.
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
            // The earlier work was incomplete when this work was submitted, and no wait between them is known.
            if !across || last.waits != waits || last.end_ns <= call.end_ns() {
                continue;
            }
            let side = if is_legacy(stream) { *other } else { stream };
            let seen = seen.entry(side).or_default();
            if work.start_ns >= last.end_ns {
                seen.waited += 1
            } else {
                seen.beside += 1
            }
        }
        let end_ns = work.end_ns();
        last.insert(stream, Last { end_ns, waits });
    }
    seen.retain(|stream, seen| {
        let unknown = trace.streams[stream.0 as usize].flag == StreamFlag::Unknown;
        unknown && seen.beside == 0 && seen.waited >= SEEN
    });
    if !seen.is_empty() {
        let of_framework = of_framework(trace, works);
        seen.retain(|stream, _| !of_framework[stream.0 as usize]);
    }
    for (stream, seen) in seen {
        if seen.waited >= SEEN {
            kinds[stream.0 as usize] = StreamKind::Blocking;
        }
    }
    kinds
}

/// Returns which streams belong to a framework: some of their work is a collective, or most of it was launched by operators.
fn of_framework(trace: &Trace, works: &WorkOfCalls) -> Vec<bool> {
    let collectives = Collectives::of(trace);
    let mut operators: Vec<Spans> = vec![Spans::default(); trace.threads.len()];
    for range in trace
        .ranges
        .iter()
        .filter(|r| r.kind == RangeKind::Operator)
    {
        operators[range.thread.0 as usize].push(range.start_ns, range.end_ns());
    }
    let mut counts = vec![(0, 0); trace.streams.len()];
    let mut collective = vec![false; trace.streams.len()];
    for (at, call) in trace.calls.iter().enumerate() {
        let Some(work) = works.first(at).map(|work| &trace.work[work]) else {
            continue;
        };
        let (start_ns, stream) = (call.start_ns, work.stream.0 as usize);
        let in_one =
            operators[call.thread.0 as usize].within_ns(start_ns, start_ns.saturating_add(1));
        counts[stream].0 += usize::from(in_one > 0);
        counts[stream].1 += 1;
        collective[stream] |= collectives.contains(work.name);
    }
    let of_operators = counts.into_iter().map(|(inside, all)| 2 * inside > all);
    of_operators.zip(collective).map(|(a, b)| a || b).collect()
}

/// The last work that was submitted to a stream.
struct Last {
    end_ns: i64,
    /// Number of waits of streams for events before it.
    waits: usize,
}

/// How the work of a stream and of the legacy stream interleaved.
#[derive(Default)]
struct Seen {
    waited: usize,
    beside: usize,
}

/// Returns the kind that the trace states for a stream; independent if it states none.
fn stated(stream: &Stream) -> StreamKind {
    match stream.flag {
        StreamFlag::Null => StreamKind::Legacy,
        StreamFlag::Blocking => StreamKind::Blocking,
        StreamFlag::NonBlocking => StreamKind::NonBlocking,
        StreamFlag::Unknown if stream.number == LEGACY => StreamKind::Legacy,
        StreamFlag::Unknown => StreamKind::NonBlocking,
    }
}
