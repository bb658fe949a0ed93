//! The objects behind the handles of the process.

use std::collections::{HashMap, HashSet};

use sidestream::backend::Create;
use sidestream::cuda::driver::{
    CuAddress, CuContext, CuEvent, CuFunction, CuStream, STREAM_LEGACY, STREAM_PER_THREAD,
};
use sidestream::op::{DeviceId, EventId, StreamId, StreamKind, ThreadId};

use crate::capture::Captures;
use crate::codes::{Answer, INVALID_CONTEXT};
use crate::graph::{Exec, Graph, NodeAt};
use crate::handles::{Handles, fresh};
use crate::interprocess::SharedEvent;
use crate::memory::Memory;
use crate::modules::{Function, Module};
use crate::state::{Here, State};

#[derive(Default)]
pub struct Tables {
    pub streams: Handles<Stream>,
    pub events: Handles<Event>,
    pub modules: Handles<Module>,
    pub functions: Handles<Function>,
    /// The function of each kernel of a library.
    pub kernels: Handles<CuFunction>,
    pub graphs: Handles<Graph>,
    pub nodes: Handles<NodeAt>,
    pub execs: Handles<Exec>,
    pub memory: Memory,
    /// The last value that a stream wrote to each address for others to wait for, and the event after it.
    pub values: HashMap<CuAddress, (u32, CuEvent)>,
    pub captures: Captures,
    /// Pairs of devices of which the first can access the second's memory.
    pub peers: HashSet<(DeviceId, DeviceId)>,
    /// Primary context of each device.
    contexts: HashMap<DeviceId, CuContext>,
    /// Default streams, which are created when they are first named.
    legacy: HashMap<DeviceId, Stream>,
    per_thread: HashMap<(ThreadId, DeviceId), Stream>,
    streams_so_far: u32,
    pub event_ids: Ids,
    pub graph_ids: Ids,
}

#[derive(Clone, Copy, Debug)]
pub struct Stream {
    pub id: StreamId,
    pub device: DeviceId,
    pub kind: StreamKind,
}

#[derive(Clone, Debug)]
pub struct Event {
    pub id: EventId,
    /// The state that is shared with other processes, if the event is an interprocess event.
    pub shared: Option<SharedEvent>,
}

impl Tables {
    /// Returns the primary context of a device, which is never destroyed.
    pub fn context(&mut self, device: DeviceId) -> CuContext {
        *self.contexts.entry(device).or_insert_with(fresh)
    }

    /// Returns the device of a context.
    pub fn device_of(&self, context: CuContext) -> Answer<DeviceId> {
        let mut known = self.contexts.iter();
        let known = known.find(|&(_, &handle)| handle == context);
        known.map(|(&device, _)| device).ok_or(INVALID_CONTEXT)
    }

    /// Returns the stream of a handle, for this thread and its current context.
    pub fn stream(&mut self, state: &State, handle: CuStream, here: Here) -> Answer<Stream> {
        match handle {
            0 | STREAM_LEGACY => {
                let device = here.device()?;
                if let Some(&known) = self.legacy.get(&device) {
                    return Ok(known);
                }
                let stream = self.new_stream(state, device, StreamKind::Legacy, 0)?;
                self.legacy.insert(device, stream);
                Ok(stream)
            }
            STREAM_PER_THREAD => {
                let place = (here.thread, here.device()?);
                if let Some(&known) = self.per_thread.get(&place) {
                    return Ok(known);
                }
                let stream = self.new_stream(state, place.1, StreamKind::PerThread, 0)?;
                self.per_thread.insert(place, stream);
                Ok(stream)
            }
            _ => self.streams.get(handle).copied(),
        }
    }

    pub fn new_stream(
        &mut self,
        state: &State,
        device: DeviceId,
        kind: StreamKind,
        priority: i32,
    ) -> Answer<Stream> {
        let id = StreamId(self.streams_so_far);
        state.create(Create::Stream {
            id,
            device,
            kind,
            priority,
            name: "",
            adopt: None,
        })?;
        self.streams_so_far += 1;
        Ok(Stream { id, device, kind })
    }
}

/// Numbers of ids in the machine; none is used twice.
#[derive(Default)]
pub struct Ids(u32);

impl Ids {
    pub fn next(&mut self) -> u32 {
        self.0 += 1;
        self.0 - 1
    }
}
