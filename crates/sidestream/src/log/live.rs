//! The log of a program that runs: who gets told, and under which ids.
//!
//! [`Live`] hands out the ids of streams, events, threads and buffers, so that they are dense and
//! in the order of their declarations, as a log wants them. It tells every [`Sink`] that is
//! attached. A sink that comes late is told all declarations first; operations from before it are
//! unknown to it.
//!
//! While nobody listens, an operation costs one relaxed load here.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::Within;
use crate::op::{
    BufferId, DeviceId, EventId, Memory, Op, OpId, SiteId, StreamId, StreamKind, ThreadId,
};

/// Somebody who is told every call of a running program, in the sequence in which the driver got
/// them.
///
/// Ids count up from zero and are declared before they are named. A sink may not call the runtime:
/// locks are held while it is told.
pub trait Sink: Send {
    /// The next stream.
    fn stream(&mut self, kind: StreamKind, device: DeviceId, name: &str);
    /// The next event.
    fn event(&mut self, timing: bool, device: DeviceId);
    /// The next buffer.
    fn buffer(&mut self, memory: Memory, bytes: u64, within: Option<Within>, name: &str);
    /// The next thread.
    fn thread(&mut self, name: &str);
    /// The next call site.
    fn site(&mut self, text: &str);
    /// A thread enters a named span, or leaves its innermost one.
    fn span(&mut self, thread: ThreadId, enters: Option<&str>);
    /// The next call.
    fn op(&mut self, op: &Op);
}

/// The log of one running program.
#[derive(Default)]
pub struct Live {
    on: AtomicBool,
    told: Mutex<Told>,
}

/// What was told so far, to be told again to a sink that comes late.
#[derive(Default)]
struct Told {
    streams: Vec<(StreamKind, DeviceId, String)>,
    events: Vec<(bool, DeviceId)>,
    buffers: Vec<(Memory, u64, Option<Within>, String)>,
    threads: Vec<String>,
    sites: Vec<String>,
    known_sites: HashMap<&'static Location<'static>, SiteId>,
    next_op: u32,
    sinks: Vec<Box<dyn Sink>>,
}

impl Live {
    /// Whether anybody listens.
    #[inline]
    pub fn is_on(&self) -> bool {
        cfg!(feature = "observe") && self.on.load(Ordering::Relaxed)
    }

    /// From here on this sink is told, too.
    pub fn attach(&self, mut sink: Box<dyn Sink>) {
        let mut told = self.told.lock();
        told.repeat_to(&mut *sink);
        told.sinks.push(sink);
        self.on.store(true, Ordering::Relaxed);
    }

    /// Nobody is told any more; what the sinks hold is dropped.
    pub fn detach(&self) {
        let sinks = {
            let mut told = self.told.lock();
            self.on.store(false, Ordering::Relaxed);
            std::mem::take(&mut told.sinks)
        };
        drop(sinks);
    }

    /// The id of a new stream.
    pub fn new_stream(&self, kind: StreamKind, device: DeviceId, name: &str) -> StreamId {
        let mut told = self.told.lock();
        told.sinks
            .iter_mut()
            .for_each(|s| s.stream(kind, device, name));
        told.streams.push((kind, device, name.to_owned()));
        StreamId(told.streams.len() as u32 - 1)
    }

    /// The id of a new event.
    pub fn new_event(&self, timing: bool, device: DeviceId) -> EventId {
        let mut told = self.told.lock();
        told.sinks.iter_mut().for_each(|s| s.event(timing, device));
        told.events.push((timing, device));
        EventId(told.events.len() as u32 - 1)
    }

    /// The id of a new thread.
    pub fn new_thread(&self, name: &str) -> ThreadId {
        let mut told = self.told.lock();
        told.sinks.iter_mut().for_each(|s| s.thread(name));
        told.threads.push(name.to_owned());
        ThreadId(told.threads.len() as u32 - 1)
    }

    /// The pen, if anybody listens. Nobody else writes while it is held.
    #[inline]
    pub fn write(&self) -> Option<Pen<'_>> {
        if !self.is_on() {
            return None;
        }
        Some(Pen {
            told: self.told.lock(),
        })
    }
}

/// The right to write the next records.
pub struct Pen<'a> {
    told: MutexGuard<'a, Told>,
}

impl Pen<'_> {
    /// The number of the next operation.
    pub fn next_op(&self) -> OpId {
        OpId(self.told.next_op)
    }

    /// The id of a new buffer.
    pub fn new_buffer(
        &mut self,
        memory: Memory,
        bytes: u64,
        within: Option<Within>,
        name: &str,
    ) -> BufferId {
        let told = &mut *self.told;
        (told.sinks.iter_mut()).for_each(|s| s.buffer(memory, bytes, within, name));
        told.buffers.push((memory, bytes, within, name.to_owned()));
        BufferId(told.buffers.len() as u32 - 1)
    }

    /// The id of a call site.
    pub fn site(&mut self, at: &'static Location<'static>) -> SiteId {
        let told = &mut *self.told;
        if let Some(&known) = told.known_sites.get(at) {
            return known;
        }
        let text = format!("{}:{}", at.file(), at.line());
        told.sinks.iter_mut().for_each(|s| s.site(&text));
        told.sites.push(text);
        let id = SiteId(told.sites.len() as u32 - 1);
        told.known_sites.insert(at, id);
        id
    }

    /// A thread enters a span, or leaves its innermost one.
    pub fn span(&mut self, thread: ThreadId, enters: Option<&str>) {
        (self.told.sinks.iter_mut()).for_each(|s| s.span(thread, enters));
    }

    /// The next operation; its number is [`Pen::next_op`].
    pub fn op(&mut self, op: &Op) {
        self.told.next_op += 1;
        self.told.sinks.iter_mut().for_each(|s| s.op(op));
    }
}

impl Told {
    fn repeat_to(&self, sink: &mut dyn Sink) {
        for (kind, device, name) in &self.streams {
            sink.stream(*kind, *device, name);
        }
        for &(timing, device) in &self.events {
            sink.event(timing, device);
        }
        for (memory, bytes, within, name) in &self.buffers {
            sink.buffer(*memory, *bytes, *within, name);
        }
        self.threads.iter().for_each(|name| sink.thread(name));
        self.sites.iter().for_each(|text| sink.site(text));
    }
}
