//! Which copies a stream, an event or a wait comes after, as far as calls say it without the rules: see [`crate::host`].

use std::collections::HashMap;

use crate::system;

/// The legacy stream among the streams; no stream that a program creates has this handle.
pub const LEGACY: u64 = 1;

/// The copies after which the host is not known to be ordered, by number, and what comes after them.
#[derive(Default)]
pub struct InFlight {
    in_flight: Vec<u32>,
    last: u32,
    streams: HashMap<u64, Tail>,
    /// By event, if there are any: the copies that it is recorded after.
    events: HashMap<u64, Vec<u32>>,
}

#[derive(Default)]
struct Tail {
    is_blocking: bool,
    /// The copies before its end.
    after: Vec<u32>,
}

/// Returns what names a stream here, by its handle in a call.
pub fn stream(handle: u64, per_thread: bool) -> u64 {
    match handle {
        0 if !per_thread => LEGACY,
        LEGACY => LEGACY,
        // The thread's own.
        0 | 2 => 1 << 63 | u64::from(system::thread()),
        other => other,
    }
}

impl InFlight {
    /// A stream comes to be.
    pub fn created(&mut self, stream: u64, is_blocking: bool) {
        let after = Vec::new();
        self.streams.insert(stream, Tail { is_blocking, after });
    }

    /// A stream is destroyed.
    pub fn destroyed(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }

    /// A copy is submitted to a stream. Returns its number.
    pub fn submitted(&mut self, stream: u64) -> u32 {
        self.last = self.last.wrapping_add(1);
        let number = self.last;
        self.in_flight.push(number);
        self.acts(stream).push(number);
        number
    }

    /// The host is ordered after a copy, or it is of no interest any more.
    pub fn done(&mut self, number: u32) {
        self.in_flight.retain(|other| *other != number);
        if self.in_flight.is_empty() {
            self.events.clear();
            let streams = self.streams.values_mut();
            streams.for_each(|known| known.after.clear());
        }
    }

    /// An event is recorded after some copies.
    pub fn recorded(&mut self, event: u64, after: Vec<u32>) {
        if after.is_empty() {
            self.events.remove(&event);
        } else {
            self.events.insert(event, after);
        }
    }

    /// A stream waits for an event.
    pub fn waits(&mut self, stream: u64, event: u64) {
        let more = self.of_event(event);
        let after = self.acts(stream);
        after.extend(more);
        after.sort_unstable();
        after.dedup();
    }

    /// The copies before the end of a stream, for the host; the legacy stream comes after all blocking ones.
    pub fn of_stream(&mut self, stream: u64) -> Vec<u32> {
        if stream == LEGACY {
            return self.acts(LEGACY).clone();
        }
        let known = self.streams.get(&stream);
        known.map_or_else(Vec::new, |known| known.after.clone())
    }

    /// The copies that an event is recorded after.
    pub fn of_event(&self, event: u64) -> Vec<u32> {
        self.events.get(&event).cloned().unwrap_or_default()
    }

    /// All copies.
    pub fn all(&self) -> Vec<u32> {
        self.in_flight.clone()
    }

    /// A stream does something: the legacy stream after what all blocking streams did, and these after what it did (R14). Returns
    /// the copies after which it does that.
    pub fn acts(&mut self, stream: u64) -> &mut Vec<u32> {
        // A stream of which the creation was not heard is a blocking one.
        let is_blocking = match self.streams.get(&stream) {
            Some(known) => known.is_blocking,
            None => stream != LEGACY,
        };
        let mut more: Vec<u32> = Vec::new();
        if !self.in_flight.is_empty() {
            let before = |(of, known): &(&u64, &Tail)| match stream {
                LEGACY => known.is_blocking,
                _ => is_blocking && **of == LEGACY,
            };
            let before = self.streams.iter().filter(before);
            more.extend(before.flat_map(|(_, known)| &known.after));
        }
        let fresh = || Tail {
            is_blocking,
            after: Vec::new(),
        };
        let after = &mut self.streams.entry(stream).or_insert_with(fresh).after;
        after.extend(more);
        let in_flight = &self.in_flight;
        after.retain(|number| in_flight.contains(number));
        after.sort_unstable();
        after.dedup();
        after
    }
}
