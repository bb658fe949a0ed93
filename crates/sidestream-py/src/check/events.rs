//! Events, and the waits of the host and of streams.

use sidestream::log::Record;
use sidestream::op::{DeviceId, EventId, Kind, OpId};

use super::idle::{How, told};
use super::spine::{Core, RawStream, Site};

impl Core {
    fn event(&mut self, raw: u64, device: u32) -> EventId {
        if let Some(&(known, at)) = self.events.get(&raw)
            && at == device
        {
            return known;
        }
        let id = EventId(self.event_count);
        self.event_count += 1;
        let of = Some(DeviceId(device));
        self.sink.take(&Record::event(true, of, ""));
        self.events.insert(raw, (id, device));
        id
    }

    /// Reports a new event; its handle may have been an earlier event's.
    pub fn event_created(&mut self, raw: u64, device: u32) {
        let event = self.event(raw, device);
        self.tell(Kind::CreateEvent { event }, Site::default());
    }

    /// Reports that an event was destroyed.
    pub fn event_deleted(&mut self, raw: u64) {
        if let Some(&(event, _)) = self.events.get(&raw) {
            self.tell(Kind::DestroyEvent { event }, Site::default());
            self.recorded.remove(&event);
        }
    }

    /// `event.record(stream)`.
    pub fn event_record(&mut self, site: Site, raw: u64, stream: RawStream) {
        if self.is_capturing() {
            return;
        }
        let event = self.event(raw, stream.device);
        let stream = self.stream(stream);
        self.tell(Kind::Record { event, stream }, site);
        self.recorded.insert(event, (stream, self.last()));
    }

    /// `stream.wait_event(event)`. An event that was recorded before the check orders nothing that the check has
    /// seen.
    pub fn event_wait(&mut self, site: Site, raw: u64, stream: RawStream) {
        let Some(&(event, _)) = self.events.get(&raw) else {
            return;
        };
        if self.is_capturing() {
            return;
        }
        let stream = self.stream(stream);
        self.tell(Kind::Wait { stream, event }, site);
    }

    /// `event.synchronize()`, or a query that found the event complete.
    pub fn event_done(&mut self, site: Site, raw: u64, waited: bool) {
        self.waited();
        let Some(&(event, _)) = self.events.get(&raw) else {
            return;
        };
        if !self.is_capturing() {
            let kind = if waited {
                Kind::SyncEvent { event }
            } else {
                Kind::QueryEvent { event, done: true }
            };
            self.tell(kind, site);
            if waited {
                let stream = self.recorded.get(&event).map(|(stream, _)| *stream);
                self.host_blocked(site, told(How::Event), stream);
            }
            self.settle_copies();
        }
    }

    /// The operation that recorded an event last.
    pub fn record_of(&self, raw: u64) -> Option<OpId> {
        let (event, _) = self.events.get(&raw)?;
        self.recorded.get(event).map(|(_, op)| *op)
    }

    /// The host waited for a stream, or a query found the stream complete.
    pub fn stream_done(&mut self, site: Site, stream: RawStream, waited: Option<How>) {
        self.waited();
        if self.is_capturing() {
            return;
        }
        let stream = self.stream(stream);
        let kind = match waited {
            Some(_) => Kind::SyncStream { stream },
            None => Kind::QueryStream { stream, done: true },
        };
        self.tell(kind, site);
        if let Some(how) = waited {
            self.host_blocked(site, how, None);
        }
        self.settle_copies();
    }

    /// `torch.cuda.synchronize()`.
    pub fn device_done(&mut self, site: Site, device: u32) {
        self.waited();
        if !self.is_capturing() {
            let device = Some(DeviceId(device));
            self.tell(Kind::SyncDevice { device }, site);
            self.host_blocked(site, told(How::Stream), None);
            self.settle_copies();
        }
    }
}
