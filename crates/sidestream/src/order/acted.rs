//! Finds the streams of a device that have acted recently.
//!
//! A chain that waits for all streams of a device again and again is already ordered after most of them. Where there are
//! many, those that have acted since are found without visiting the others: the streams of such a device are a list in
//! which a stream that acts moves to the front.

use super::Order;
use crate::op::{DeviceId, StreamId, StreamKind};

/// The maximum number of streams of one device that are visited one by one.
const FEW: usize = 64;

/// The end of the list.
const NONE: u32 = u32::MAX;

/// The list of a device: its head is the stream that acted last.
#[derive(Debug)]
pub(super) struct Acted {
    first: u32,
    is_kept: bool,
}

/// A stream in the list.
#[derive(Debug)]
pub(super) struct Link {
    before: u32,
    after: u32,
    /// The call at which the stream last acted.
    at: u64,
    is_kept: bool,
}

impl Default for Acted {
    fn default() -> Acted {
        Acted {
            first: NONE,
            is_kept: false,
        }
    }
}

impl Default for Link {
    fn default() -> Link {
        Link {
            before: NONE,
            after: NONE,
            at: 0,
            is_kept: false,
        }
    }
}

impl Link {
    #[inline]
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }
}

impl Order {
    /// Returns the number of calls before the current one: a chain that has visited all streams now passes it to
    /// [`Order::acted_since`] next time.
    pub(crate) fn calls_before(&self) -> u64 {
        self.calls.saturating_sub(1)
    }

    /// Whether a device has enough streams to make it worth storing when a chain last visited them.
    #[inline]
    pub(crate) fn has_many_streams(&self, device: DeviceId) -> bool {
        let device = self.devices.get(device.0 as usize);
        device.is_some_and(|device| device.acted.is_kept)
    }

    /// Returns the streams of a device that have acted since the call count was `calls`, in any order. With few streams
    /// it returns all of them.
    pub(crate) fn acted_since(
        &self,
        device: DeviceId,
        calls: u64,
    ) -> impl Iterator<Item = (StreamId, StreamKind)> {
        let of_device = self.devices.get(device.0 as usize);
        let (few, first) = match of_device {
            Some(known) if !known.acted.is_kept => (&known.streams[..], NONE),
            Some(known) => (&[][..], known.acted.first),
            None => (&[][..], NONE),
        };
        let next = move |at: u32| {
            let stream = self.streams.get(at as usize)?;
            (stream.link.at > calls).then_some(at)
        };
        let many = std::iter::successors(next(first), move |&at| {
            next(self.streams[at as usize].link.after)
        });
        let streams = few.iter().copied().chain(many.map(StreamId));
        streams.map(|stream| (stream, self.streams[stream.0 as usize].kind))
    }

    /// Counts another stream of a device.
    pub(super) fn keep_track(&mut self, device: DeviceId) {
        let of_device = &mut self.devices[device.0 as usize];
        if of_device.acted.is_kept {
            let newest = of_device.streams[of_device.streams.len() - 1];
            self.link(newest);
        } else if of_device.streams.len() > FEW {
            of_device.acted.is_kept = true;
            for at in 0..=FEW {
                let stream = self.devices[device.0 as usize].streams[at];
                self.link(stream);
            }
        }
    }

    /// Notes that a listed stream acts.
    #[cold]
    pub(super) fn acts(&mut self, stream: StreamId) {
        let Link { before, after, .. } = self.streams[stream.0 as usize].link;
        if before != NONE {
            self.streams[before as usize].link.after = after;
            if after != NONE {
                self.streams[after as usize].link.before = before;
            }
            self.put_first(stream);
        }
        self.streams[stream.0 as usize].link.at = self.calls;
    }

    /// Adds a stream to the list. Its earlier actions are unknown, so it counts as acting now.
    fn link(&mut self, stream: StreamId) {
        self.put_first(stream);
        let link = &mut self.streams[stream.0 as usize].link;
        (link.at, link.is_kept) = (self.calls, true);
    }

    fn put_first(&mut self, stream: StreamId) {
        let device = self.streams[stream.0 as usize].device;
        let acted = &mut self.devices[device.0 as usize].acted;
        let second = std::mem::replace(&mut acted.first, stream.0);
        if second != NONE {
            self.streams[second as usize].link.before = stream.0;
        }
        let link = &mut self.streams[stream.0 as usize].link;
        (link.before, link.after) = (NONE, second);
    }
}
