//! Streams and events.

use sidestream::backend::{Backend, Create, Destroy, Payload};
use sidestream::cuda::driver::{
    CuEvent, CuStream, EVENT_BLOCKING_SYNC, EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, HostFn,
    IpcEventHandle, STREAM_NON_BLOCKING,
};
use sidestream::op::{EventId, Kind, StreamId, StreamKind, ThreadId};

use crate::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED};
use crate::interprocess::SharedEvent;
use crate::state::{Here, State, as_host_function};
use crate::tables::{Event, Stream};

/// The most and the least urgent priority.
pub const PRIORITIES: (i32, i32) = (-5, 0);

// ------------------------------------------------------------------ what any call in a stream does

/// Returns the stream of a handle, for a call that submits work to it.
pub fn stream(state: &State, here: Here, handle: CuStream) -> Answer<Stream> {
    let mut tables = state.tables();
    let stream = tables.stream(state, handle, here)?;
    tables.captures.refuse_invalid(stream.id)?;
    Ok(stream)
}

/// Submits a call to a stream, or to its capture.
pub fn submit(state: &State, thread: ThreadId, kind: Kind, payload: Payload<'_>) -> Answer<()> {
    let outcome = state.submit(thread, kind, payload);
    state.tables().captures.judge(outcome)
}

// ------------------------------------------------------------------ streams

pub fn create(state: &State, here: Here, flags: u32, priority: i32) -> Answer<CuStream> {
    let kind = match flags {
        0 => StreamKind::Blocking,
        STREAM_NON_BLOCKING => StreamKind::NonBlocking,
        _ => return Err(INVALID_VALUE),
    };
    let priority = priority.clamp(PRIORITIES.0, PRIORITIES.1);
    let mut tables = state.tables();
    let stream = tables.new_stream(state, here.device()?, kind, priority)?;
    Ok(tables.streams.add(stream))
}

pub fn destroy(state: &State, handle: CuStream) -> Answer<()> {
    let stream = state.tables().streams.remove(handle)?;
    state.destroy(Destroy::Stream(stream.id));
    Ok(())
}

pub fn query(state: &State, here: Here, handle: CuStream) -> Answer<()> {
    let stream = asked(state, here, handle)?;
    let kind = Kind::QueryStream {
        stream,
        done: false,
    };
    let answer = state.query(here.thread, kind);
    ready(state.tables().captures.judge(answer)?)
}

pub fn synchronize(state: &State, here: Here, handle: CuStream) -> Answer<()> {
    let stream = asked(state, here, handle)?;
    let waited = state.wait(here.thread, Kind::SyncStream { stream });
    state.tables().captures.judge(waited)
}

/// Blocks until all streams of the current context are idle.
pub fn synchronize_device(state: &State, here: Here) -> Answer<()> {
    let device = Some(here.device()?);
    let waited = state.wait(here.thread, Kind::SyncDevice { device });
    state.tables().captures.judge(waited)
}

pub fn wait_event(
    state: &State,
    here: Here,
    handle: CuStream,
    event: CuEvent,
    flags: u32,
) -> Answer<()> {
    match flags {
        0 => {}
        1 => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_VALUE),
    }
    let at = stream(state, here, handle)?;
    let Event { id: event, shared } = state.tables().events.get(event)?.clone();
    let stream = at.id;
    if let Some(shared) = shared.filter(SharedEvent::is_opened) {
        return shared.awaited(state, here.thread, stream);
    }
    submit(
        state,
        here.thread,
        Kind::Wait { stream, event },
        Payload::None,
    )?;
    state.tables().captures.waited(at, event);
    Ok(())
}

/// Runs a function in stream order.
///
/// # Safety
/// The function may be called once with this argument, from any thread.
pub unsafe fn host_function(
    state: &State,
    here: Here,
    handle: CuStream,
    function: HostFn,
    argument: u64,
) -> Answer<()> {
    let stream = stream(state, here, handle)?.id;
    let run = move || {
        let argument = std::ptr::with_exposed_provenance_mut(argument as usize);
        // SAFETY: the caller of `host_function` promises it.
        unsafe { function(argument) }
    };
    run_on_host(state, here.thread, stream, run)
}

/// Runs a closure in stream order, during which its thread may call almost nothing.
pub fn run_on_host(
    state: &State,
    thread: ThreadId,
    stream: StreamId,
    run: impl FnOnce() + Send + 'static,
) -> Answer<()> {
    let kind = Kind::HostFunc {
        stream,
        raises: None,
    };
    let run = Box::new(move || as_host_function(run));
    submit(state, thread, kind, Payload::HostFunc(run))
}

// ------------------------------------------------------------------ events

pub fn create_event(state: &State, here: Here, flags: u32) -> Answer<CuEvent> {
    if flags & !(EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING | EVENT_INTERPROCESS) != 0 {
        return Err(INVALID_VALUE);
    }
    let timing = flags & EVENT_DISABLE_TIMING == 0;
    let shared = match flags & EVENT_INTERPROCESS {
        0 => None,
        _ if timing => return Err(INVALID_VALUE),
        _ => Some(SharedEvent::new()?),
    };
    new_event(
        state,
        here,
        timing,
        flags & EVENT_BLOCKING_SYNC != 0,
        shared,
    )
}

fn new_event(
    state: &State,
    here: Here,
    timing: bool,
    sleeps: bool,
    shared: Option<SharedEvent>,
) -> Answer<CuEvent> {
    let mut tables = state.tables();
    let id = EventId(tables.event_ids.next());
    state.create(Create::Event {
        id,
        device: here.device()?,
        timing,
        sleeps,
    })?;
    Ok(tables.events.add(Event { id, shared }))
}

pub fn share(state: &State, handle: CuEvent) -> Answer<IpcEventHandle> {
    let shared = state.tables().events.get(handle)?.shared.clone();
    let shared = shared.filter(|shared| !shared.is_opened());
    Ok(shared.ok_or(INVALID_HANDLE)?.handle())
}

pub fn open_event(state: &State, here: Here, handle: IpcEventHandle) -> Answer<CuEvent> {
    let shared = SharedEvent::open(handle)?;
    new_event(state, here, false, false, Some(shared))
}

pub fn destroy_event(state: &State, handle: CuEvent) -> Answer<()> {
    let event = state.tables().events.remove(handle)?;
    state.destroy(Destroy::Event(event.id));
    Ok(())
}

pub fn record(state: &State, here: Here, handle: CuEvent, at: CuStream) -> Answer<()> {
    let stream = stream(state, here, at)?.id;
    let Event { id: event, shared } = state.tables().events.get(handle)?.clone();
    // Before the record: a thread that sees the record complete may never call the machine again.
    if let Some(shared) = shared {
        if shared.is_opened() {
            return Err(NOT_SUPPORTED);
        }
        shared.recorded(state, here.thread, stream)?;
    }
    submit(
        state,
        here.thread,
        Kind::Record { event, stream },
        Payload::None,
    )?;
    state.tables().captures.recorded(event, stream);
    Ok(())
}

pub fn query_event(state: &State, thread: ThreadId, handle: CuEvent) -> Answer<()> {
    let Event { id: event, shared } = asked_event(state, thread, handle)?;
    if let Some(shared) = shared.filter(SharedEvent::is_opened) {
        return ready(shared.is_complete()?);
    }
    let answer = state.query(thread, Kind::QueryEvent { event, done: false });
    ready(state.tables().captures.judge(answer)?)
}

pub fn synchronize_event(state: &State, thread: ThreadId, handle: CuEvent) -> Answer<()> {
    let Event { id: event, shared } = asked_event(state, thread, handle)?;
    if let Some(shared) = shared.filter(SharedEvent::is_opened) {
        return shared.synchronize();
    }
    let waited = state.wait(thread, Kind::SyncEvent { event });
    state.tables().captures.judge(waited)
}

/// Returns the elapsed time in milliseconds.
pub fn elapsed(state: &State, from: CuEvent, to: CuEvent) -> Answer<f32> {
    let (from, to) = {
        let tables = state.tables();
        (tables.events.get(from)?.id, tables.events.get(to)?.id)
    };
    let ns = state.code(state.machine.elapsed_ns(from, to))?;
    Ok((ns / 1e6) as f32)
}

// ------------------------------------------------------------------ questions

fn asked(state: &State, here: Here, handle: CuStream) -> Answer<StreamId> {
    let mut tables = state.tables();
    let stream = tables.stream(state, handle, here)?;
    tables.captures.refuse_invalid(stream.id)?;
    tables.captures.refuse_question(stream, here.thread)?;
    Ok(stream.id)
}

fn asked_event(state: &State, thread: ThreadId, handle: CuEvent) -> Answer<Event> {
    let mut tables = state.tables();
    let event = tables.events.get(handle)?.clone();
    tables.captures.refuse_event_question(event.id, thread)?;
    Ok(event)
}

fn ready(is_complete: bool) -> Answer<()> {
    if is_complete { Ok(()) } else { Err(NOT_READY) }
}
