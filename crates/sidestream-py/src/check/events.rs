//! Events, and the waits of the host and of streams.

use std::collections::HashMap;

use sidestream::log::Record;
use sidestream::op::{DeviceId, EventId, Kind, OpId, StreamId};

use super::idle::How;
use super::spine::{Core, Site};
use super::streams::RawStream;

/// The events, by handle.
#[derive(Default)]
pub struct Events {
    known: HashMap<u64, Event>,
    /// The number of events so far: the event of another device may get the same handle later.
    count: u32,
}

#[derive(Clone, Copy)]
struct Event {
    id: EventId,
    device: u32,
    /// The stream and the operation that recorded the event last.
    recorded: Option<(StreamId, OpId)>,
}

/// What the host has waited for, or has found complete.
#[derive(Clone, Copy)]
pub enum Done {
    Event(u64),
    Stream(RawStream),
    Device(u32),
}

impl Core {
    fn event(&mut self, handle: u64, device: u32) -> EventId {
        let events = &mut self.events;
        if let Some(known) = events.known.get(&handle).filter(|at| at.device == device) {
            return known.id;
        }
        let (id, recorded) = (EventId(events.count), None);
        events.count += 1;
        let event = Event {
            id,
            device,
            recorded,
        };
        events.known.insert(handle, event);
        let device = Some(DeviceId(device));
        self.feed.sink.take(&Record::event(true, device, ""));
        id
    }

    /// Reports a new event; its handle may have been an earlier event's.
    pub fn event_created(&mut self, handle: u64, device: u32) {
        let event = self.event(handle, device);
        self.tell(Kind::CreateEvent { event }, Site::default());
    }

    /// Reports that an event was destroyed.
    pub fn event_deleted(&mut self, handle: u64) {
        if let Some(known) = self.events.known.get_mut(&handle) {
            known.recorded = None;
            let event = known.id;
            self.tell(Kind::DestroyEvent { event }, Site::default());
        }
    }

    /// `event.record(stream)`.
    pub fn event_record(&mut self, site: Site, handle: u64, stream: RawStream) {
        if self.is_capturing() {
            return;
        }
        let event = self.event(handle, stream.device);
        let stream = self.stream(stream);
        self.tell(Kind::Record { event, stream }, site);
        let recorded = Some((stream, self.last()));
        if let Some(known) = self.events.known.get_mut(&handle) {
            known.recorded = recorded;
        }
    }

    /// `stream.wait_event(event)`. An event that was recorded before the check orders nothing that the check has
    /// seen.
    pub fn event_wait(&mut self, site: Site, handle: u64, stream: RawStream) {
        if let Some(&Event { id: event, .. }) = self.events.known.get(&handle)
            && !self.is_capturing()
        {
            let stream = self.stream(stream);
            self.tell(Kind::Wait { stream, event }, site);
        }
    }

    /// The operation that recorded an event last.
    fn record_of(&self, handle: u64) -> Option<OpId> {
        Some(self.events.known.get(&handle)?.recorded?.1)
    }

    /// The time between two events is taken.
    pub fn time_of_events(&mut self, thread: u32, events: [u64; 2]) {
        let [from, to] = events.map(|event| self.record_of(event));
        self.noticed.idle.time_taken(thread);
        if let (Some(from), Some(to)) = (from, to) {
            self.noticed.idle.measured(from, to);
        }
    }

    /// The host blocked until something was complete, or a query found it complete: then there is no `how`.
    pub fn done(&mut self, site: Site, what: Done, how: Option<How>) {
        self.noticed.waited(&self.findings);
        if self.is_capturing() {
            return;
        }
        let mut recorded = None;
        let kind = match what {
            Done::Event(handle) => {
                let Some(&known) = self.events.known.get(&handle) else {
                    return;
                };
                let event = known.id;
                recorded = known.recorded.map(|(stream, _)| stream);
                match how {
                    Some(_) => Kind::SyncEvent { event },
                    None => Kind::QueryEvent { event, done: true },
                }
            }
            Done::Stream(stream) => {
                let stream = self.stream(stream);
                match how {
                    Some(_) => Kind::SyncStream { stream },
                    None => Kind::QueryStream { stream, done: true },
                }
            }
            Done::Device(device) => Kind::SyncDevice {
                device: Some(DeviceId(device)),
            },
        };
        self.tell(kind, site);
        let op = self.last();
        if let Some(how) = how {
            self.noticed
                .blocked(site, op, how, recorded, &self.findings);
        }
        self.host.watch.settle(&self.findings);
    }
}
