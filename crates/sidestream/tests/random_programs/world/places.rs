//! The existing streams and devices, and places for buffers with their locks.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use sidestream::buffer::Pinned;
use sidestream::device::Device;
use sidestream::op::DeviceId;
use sidestream::stream::Stream;

use super::super::flying::Flying;
use super::values::take_at;
use super::{Line, Slot, World};

impl World {
    pub(super) fn stream(&self, at: usize) -> Line {
        let lines = self.lines.lock();
        lines[at % lines.len()].clone()
    }

    /// Returns this stream, or the next that belongs to the device of the buffer.
    pub(super) fn stream_near(&self, at: usize, slot: &Slot) -> Stream {
        self.stream_of(at, slot.device)
    }

    pub(super) fn stream_of(&self, at: usize, device: DeviceId) -> Stream {
        let near = (at..at + self.plan.streams).map(|at| self.stream(at).stream);
        let mut near = near.filter(|stream| stream.device().id() == device);
        near.next().unwrap_or_else(|| self.stream(at).stream)
    }

    pub(super) fn device(&self, which: usize) -> Device {
        let devices = self.devices.lock();
        let device = devices[which % devices.len()].clone();
        drop(devices);
        device.unwrap_or_else(|| self.stream(which).stream.device())
    }

    pub(super) fn new_line(&self, at: usize, which: usize) -> Option<Line> {
        let is_first = self.lines.lock().is_empty();
        let device = match is_first {
            true => self.devices.lock()[0].clone()?,
            false => self.device(which),
        };
        // Few names, so that a dropped stream is reused.
        let name = ["a", "b", "c"][at % 3];
        let stream = self.tried(device.stream_with_priority(name, -(at as i32 % 2)))?;
        let ran = Arc::default();
        Some(Line { stream, ran })
    }

    pub(super) fn pinned(&self, len: usize) -> Option<Pinned<u32>> {
        let known = take_at(&self.idle, 0).filter(|known| known.len() == len);
        known.or_else(|| self.tried(self.device(0).pinned(len)))
    }

    pub(super) fn take(&self, slot: usize) -> Option<Slot> {
        self.slots[slot].write().take()
    }

    pub(super) fn put(&self, at: usize, slot: Slot) {
        let old = self.slots[at].write().replace(slot);
        drop(old);
    }

    /// Puts a buffer into an empty place; drops it if there is none.
    pub fn put_anywhere(&self, slot: Slot) {
        for place in &self.slots {
            let mut place = place.write();
            if place.is_none() {
                *place = Some(slot);
                return;
            }
        }
    }

    pub fn fly(&self, flying: Flying) {
        self.flying.lock().push(flying);
    }

    pub(super) fn lock(&self, reads: &[usize], writes: &[usize]) -> Held<'_> {
        let wanted: BTreeMap<usize, bool> = (reads.iter().map(|&at| (at, false)))
            .chain(writes.iter().map(|&at| (at, true)))
            .collect();
        let guards = wanted.into_iter().map(|(at, is_written)| {
            let guard = match is_written {
                true => Guard::Write(self.slots[at].write()),
                false => Guard::Read(self.slots[at].read()),
            };
            (at, guard)
        });
        Held(guards.collect())
    }
}

/// Locked slots by number.
pub(super) struct Held<'a>(BTreeMap<usize, Guard<'a>>);

pub(super) enum Guard<'a> {
    Read(RwLockReadGuard<'a, Option<Slot>>),
    Write(RwLockWriteGuard<'a, Option<Slot>>),
    Nothing,
}

impl<'a> Held<'a> {
    pub(super) fn read(&self, at: usize) -> Option<&Slot> {
        match self.0.get(&at)? {
            Guard::Read(guard) => guard.as_ref(),
            Guard::Write(guard) => guard.as_ref(),
            Guard::Nothing => None,
        }
    }

    pub(super) fn take(&mut self, at: usize) -> Guard<'a> {
        self.0.remove(&at).unwrap_or(Guard::Nothing)
    }
}

impl Guard<'_> {
    pub(super) fn write(&mut self) -> Option<&mut Slot> {
        match self {
            Guard::Write(guard) => guard.as_mut(),
            Guard::Read(_) | Guard::Nothing => None,
        }
    }
}
