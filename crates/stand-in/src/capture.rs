//! The rules of captures that the driver has and the simulated machine does not: calls that a capture forbids to
//! other threads, and captures that an error has invalidated.

use std::cell::Cell;
use std::collections::HashSet;

use sidestream::backend::{Create, Destroy, Payload};
use sidestream::cuda::driver::{Code, CuGraph, CuStream};
use sidestream::op::{EventId, GraphId, Kind, StreamId, StreamKind, ThreadId};

use crate::codes::{
    Answer, CAPTURED_EVENT, ILLEGAL_STATE, INVALID_VALUE, STREAM_CAPTURE_IMPLICIT,
    STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_MERGE,
    STREAM_CAPTURE_UNJOINED, STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED,
    STREAM_CAPTURE_WRONG_THREAD,
};
use crate::graph::Graph;
use crate::state::{Here, State};
use crate::tables::Stream;

/// The active captures.
#[derive(Default)]
pub struct Captures(Vec<Capture>);

struct Capture {
    origin: Stream,
    thread: ThreadId,
    mode: Mode,
    members: Vec<Stream>,
    events: HashSet<EventId>,
    /// Whether an error has invalidated the capture: only `cuStreamEndCapture` is still allowed.
    is_invalid: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

thread_local! {
    static OF_THREAD: Cell<Mode> = const { Cell::new(Mode::Global) };
}

impl Mode {
    /// Returns the mode with the driver's number.
    fn of(number: i32) -> Answer<Mode> {
        match number {
            0 => Ok(Mode::Global),
            1 => Ok(Mode::ThreadLocal),
            2 => Ok(Mode::Relaxed),
            _ => Err(INVALID_VALUE),
        }
    }
}

/// Sets which captures forbid calls to this thread from here on; returns the previous mode.
pub fn exchange(mode: i32) -> Answer<i32> {
    Ok(OF_THREAD.replace(Mode::of(mode)?) as i32)
}

// ------------------------------------------------------------------ begin and end

pub fn begin(state: &State, here: Here, stream: CuStream, mode: i32) -> Answer<()> {
    let mode = Mode::of(mode)?;
    let origin = state.tables().stream(state, stream, here)?;
    let kind = Kind::BeginCapture { stream: origin.id };
    state.submit(here.thread, kind, Payload::None)?;
    state.tables().captures.0.push(Capture {
        origin,
        thread: here.thread,
        mode,
        members: vec![origin],
        events: HashSet::new(),
        is_invalid: false,
    });
    Ok(())
}

/// Returns whether a stream takes part in a capture, or in an invalidated one: the driver's `CUstreamCaptureStatus`.
pub fn status(state: &State, here: Here, stream: CuStream) -> Answer<i32> {
    let mut tables = state.tables();
    let stream = tables.stream(state, stream, here)?;
    let capture = tables.captures.0.iter().find(|c| c.has(stream.id));
    Ok(capture.map_or(0, |capture| 1 + i32::from(capture.is_invalid)))
}

/// Ends a capture, even an invalidated one. The capture has ended afterwards, except with the codes 401 and 903.
pub fn end(state: &State, here: Here, stream: CuStream) -> Answer<CuGraph> {
    // The tables stay locked so that no other thread ends a capture in between: the machine makes the oldest one into
    // a graph.
    let mut tables = state.tables();
    let stream = tables.stream(state, stream, here)?;
    let captures = &mut tables.captures.0;
    let Some(at) = captures.iter().position(|c| c.has(stream.id)) else {
        return Err(ILLEGAL_STATE);
    };
    if captures[at].origin.id != stream.id {
        captures[at].is_invalid = true;
        return Err(STREAM_CAPTURE_UNMATCHED);
    }
    let capture = captures.swap_remove(at);
    let is_foreign = capture.mode != Mode::Relaxed && capture.thread != here.thread;
    let end = Kind::EndCapture { stream: stream.id };
    let mut ended = state.submit(capture.thread, end, Payload::None);
    if ended == Err(STREAM_CAPTURE_UNJOINED) {
        for fork in &capture.members {
            let event = EventId(tables.event_ids.next());
            join(state, &capture, fork.id, event)?;
        }
        state.submit(capture.thread, end, Payload::None)?;
        ended = Err(STREAM_CAPTURE_UNJOINED);
    }
    let id = GraphId(tables.graph_ids.next());
    let device = stream.device;
    let nodes = &[];
    state.create(Create::Graph { id, device, nodes })?;
    let outcome = match ended {
        _ if capture.is_invalid => Err(STREAM_CAPTURE_INVALIDATED),
        _ if is_foreign => Err(STREAM_CAPTURE_WRONG_THREAD),
        ended => ended,
    };
    match outcome {
        Ok(()) => Ok(tables.graphs.add(Graph::Captured(Some(id)))),
        Err(code) => {
            state.destroy(Destroy::Graph(id));
            Err(code)
        }
    }
}

/// Joins a forked stream by an event of the stand-in's own, so that the capture can end.
fn join(state: &State, capture: &Capture, fork: StreamId, event: EventId) -> Answer<()> {
    if fork == capture.origin.id {
        return Ok(());
    }
    state.create(Create::Event {
        id: event,
        device: capture.origin.device,
        timing: false,
        sleeps: false,
    })?;
    let record = Kind::Record {
        event,
        stream: fork,
    };
    let wait = Kind::Wait {
        stream: capture.origin.id,
        event,
    };
    state.submit(capture.thread, record, Payload::None)?;
    let waited = state.submit(capture.thread, wait, Payload::None);
    state.destroy(Destroy::Event(event));
    waited
}

// ------------------------------------------------------------------ what captures forbid

impl Captures {
    /// Refuses calls that may wait for a device or change its memory: while such a capture is active, the driver
    /// treats them as an error of the program.
    pub fn refuse_unsafe(&mut self, thread: ThreadId) -> Answer<()> {
        let of_thread = OF_THREAD.get();
        let forbids = |c: &Capture| match (of_thread, c.mode) {
            (Mode::Relaxed, _) | (_, Mode::Relaxed) => false,
            (Mode::Global, Mode::Global) => true,
            (_, Mode::Global | Mode::ThreadLocal) => c.thread == thread,
        };
        let mut is_refused = false;
        for capture in self.0.iter_mut().filter(|c| forbids(c)) {
            capture.is_invalid = true;
            is_refused = true;
        }
        if is_refused {
            Err(STREAM_CAPTURE_UNSUPPORTED)
        } else {
            Ok(())
        }
    }

    /// Refuses queries of and waits for a stream outside the captures.
    pub fn refuse_question(&mut self, stream: Stream, thread: ThreadId) -> Answer<()> {
        // The machine reports the error for these streams.
        if self.0.iter().any(|c| c.has(stream.id)) || self.close(stream) {
            return Ok(());
        }
        self.refuse_unsafe(thread)
    }

    /// Returns whether this is the legacy stream while a blocking stream is being captured.
    fn close(&self, stream: Stream) -> bool {
        let mut members = self.0.iter().flat_map(|c| &c.members);
        stream.kind == StreamKind::Legacy
            && members.any(|m| m.kind.is_blocking() && m.device == stream.device)
    }

    /// Refuses queries of and waits for an event recorded outside the captures.
    pub fn refuse_event_question(&mut self, event: EventId, thread: ThreadId) -> Answer<()> {
        if self.0.iter().any(|c| c.events.contains(&event)) {
            Ok(())
        } else {
            self.refuse_unsafe(thread)
        }
    }

    /// Refuses every call in a stream whose capture is invalidated.
    pub fn refuse_invalid(&self, stream: StreamId) -> Answer<()> {
        if self.0.iter().any(|c| c.is_invalid && c.has(stream)) {
            Err(STREAM_CAPTURE_INVALIDATED)
        } else {
            Ok(())
        }
    }

    /// Handles the result of a call: an error about captures invalidates all active captures. The driver invalidates
    /// those that the call affects, which is usually the same.
    pub fn judge<T>(&mut self, outcome: Answer<T>) -> Answer<T> {
        if let Err(code) = outcome
            && DEADLY.contains(&code)
        {
            for capture in &mut self.0 {
                capture.is_invalid = true;
            }
        }
        outcome
    }

    pub fn recorded(&mut self, event: EventId, stream: StreamId) {
        for capture in &mut self.0 {
            if capture.has(stream) {
                _ = capture.events.insert(event)
            } else {
                _ = capture.events.remove(&event)
            }
        }
    }

    pub fn waited(&mut self, stream: Stream, event: EventId) {
        let captures = self.0.iter_mut();
        for capture in captures.filter(|c| c.events.contains(&event)) {
            if !capture.has(stream.id) {
                capture.members.push(stream);
            }
        }
    }
}

/// The codes that invalidate a capture.
const DEADLY: [Code; 5] = [
    STREAM_CAPTURE_UNSUPPORTED,
    STREAM_CAPTURE_MERGE,
    STREAM_CAPTURE_ISOLATION,
    STREAM_CAPTURE_IMPLICIT,
    CAPTURED_EVENT,
];

impl Capture {
    fn has(&self, stream: StreamId) -> bool {
        self.members.iter().any(|member| member.id == stream)
    }
}
