//! Calls that write buffers, and their effect on plain vectors.

use std::ops::Range;

use sidestream::benchmark::{Options, benchmark};
use sidestream::buffer::{View, ViewMut};
use sidestream::error::{Error, Result};
use sidestream::kernel::{Kernel, Write};
use sidestream::stream::Stream;

use super::super::act::{Act, Place, Start, Table};
use super::super::flying::Flying;
use super::super::reference;
use super::values::{needs, pattern, scatter};
use super::{GRID, Line, Slot, World};

impl World {
    pub(super) fn alloc(&self, act: Act) {
        let Act::Alloc {
            slot,
            stream,
            used,
            first,
            spare,
            start,
        } = act
        else {
            return;
        };
        let Line { stream, .. } = self.stream(stream);
        let len = first + used + spare;
        let (mut slot, filled) = match start {
            Start::Zeros => {
                let Some(buffer) = self.tried(stream.alloc_zeroed::<u32>(len)) else {
                    return;
                };
                let model = vec![0; used];
                let zeroed = Slot {
                    buffer,
                    device: stream.device().id(),
                    first,
                    model,
                };
                return self.put(slot, zeroed);
            }
            _ => match self.tried(stream.alloc::<u32>(len)) {
                Some(buffer) => {
                    let model = pattern(used as u32, used);
                    let made = Slot {
                        buffer,
                        device: stream.device().id(),
                        first,
                        model,
                    };
                    (made, slot)
                }
                None => return,
            },
        };
        let at = filled;
        let range = 0..used;
        // Written on another stream than the one that it was allocated on, if there is one.
        let Line { stream, .. } = self.stream(at + 1);
        let written = match start {
            Start::Zeros | Start::Fill => {
                slot.model.fill(77);
                self.issued(stream.fill_with(slot.view_mut(&range), 77))
            }
            Start::In => {
                let from = slot.model.clone();
                self.issued(stream.memcpy_h2d(&from, slot.view_mut(&range)))
            }
            Start::Upload => self.pinned(used).and_then(|mut pinned| {
                pinned.copy_from_slice(&slot.model);
                let expected = slot.model.clone();
                let sent = stream.upload(pinned, slot.view_mut(&range));
                let pending = self.accepted(sent)?;
                self.fly(Flying::Pinned(pending, expected));
                Some(())
            }),
        };
        // A value that was never written cannot be compared.
        if written.is_some() {
            self.put(at, slot);
        }
    }

    /// Makes a call that writes a part of a slot, and updates the model if the call was accepted.
    pub(super) fn write<M: FnOnce(&mut [u32])>(
        &self,
        at: Place,
        call: impl FnOnce(&Stream, ViewMut<'_, u32>) -> Result<M>,
    ) {
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let stream = self.stream_near(at.stream, slot);
        let range = slot.range(at);
        if let Some(model) = self.issued(call(&stream, slot.view_mut(&range))) {
            model(&mut slot.model[range]);
        }
    }

    pub(super) fn launch(&self, at: Place, kernel: &Kernel<(Write<u32>,)>, model: fn(&mut [u32])) {
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let stream = self.stream_near(at.stream, slot);
        let range = slot.range(at);
        let called = stream.launch(kernel, GRID, (slot.view_mut(&range),));
        if self.launched(called, &stream, &[slot]).is_some() {
            model(&mut slot.model[range]);
        }
    }

    /// Makes a call that reads two slots, which may be the same, and writes a third.
    pub(super) fn kernel<M: FnOnce(&[u32], &[u32], &mut [u32])>(
        &self,
        x: usize,
        z: usize,
        at: Place,
        call: impl FnOnce(&Stream, View<'_, u32>, View<'_, u32>, ViewMut<'_, u32>) -> Result<M>,
    ) {
        if x == at.slot || z == at.slot {
            return;
        }
        let mut held = self.lock(&[x, z], &[at.slot]);
        let mut y = held.take(at.slot);
        let (Some(x), Some(z), Some(y)) = (held.read(x), held.read(z), y.write()) else {
            return;
        };
        let stream = self.stream_near(at.stream, y);
        let (all_x, some_z, range) = (0..x.model.len(), 0..z.model.len() / 2, y.range(at));
        let called = call(&stream, x.view(&all_x), z.view(&some_z), y.view_mut(&range));
        if let Some(model) = self.launched(called, &stream, &[x, z, y]) {
            model(&x.model, &z.model[some_z], &mut y.model[range]);
        }
    }

    pub(super) fn four(&self, x: usize, z: usize, at: Place, n: u32) {
        if x == at.slot || z == at.slot || x == z {
            return;
        }
        let mut held = self.lock(&[x], &[at.slot, z]);
        let (mut y, mut z) = (held.take(at.slot), held.take(z));
        let (Some(x), Some(y), Some(z)) = (held.read(x), y.write(), z.write()) else {
            return;
        };
        let stream = self.stream_near(at.stream, y);
        let (all_x, range) = (0..x.model.len(), y.range(at));
        let end_z = z.model.len() / 2..z.model.len();
        let args = (x.view(&all_x), y.view_mut(&range), z.view_mut(&end_z), n);
        let called = stream.launch(&self.kernels.four, GRID, args);
        if (self.launched(called, &stream, &[x, y, z])).is_some() {
            reference::four(&x.model, &mut y.model[range], &mut z.model[end_z], n);
        }
    }

    pub(super) fn copy(&self, from: usize, at: Place) {
        self.pair(from, at, |stream, from, to, range| {
            let n = from.model.len().min(range.len());
            let range = range.start..range.start + n;
            self.issued(stream.memcpy_d2d(from.view(&(0..n)), to.view_mut(&range)))?;
            to.model[range].copy_from_slice(&from.model[..n]);
            Some(())
        });
    }

    pub(super) fn copy_rows(&self, from: usize, at: Place, table: Table) {
        let (from_rows, to_rows) = table.rows();
        self.pair(from, at, |stream, from, to, range| {
            let (all, fits) = (
                0..from.model.len(),
                needs(from_rows) <= from.model.len() && needs(to_rows) <= range.len(),
            );
            let (view, view_mut) = (from.view(&all), to.view_mut(&range));
            let copied = stream.memcpy_d2d_rows(view, from_rows, view_mut, to_rows);
            self.rows_issued(copied, fits)?;
            scatter(&from.model, from_rows, &mut to.model[range], to_rows);
            Some(())
        });
    }

    pub(super) fn pair(
        &self,
        from: usize,
        at: Place,
        act: impl FnOnce(&Stream, &Slot, &mut Slot, Range<usize>) -> Option<()>,
    ) {
        if from == at.slot {
            return;
        }
        let Line { stream, .. } = self.stream(at.stream);
        let mut held = self.lock(&[from], &[at.slot]);
        let mut to = held.take(at.slot);
        if let (Some(from), Some(to)) = (held.read(from), to.write()) {
            let range = to.range(at);
            act(&stream, from, to, range);
        }
    }

    pub(super) fn within(&self, at: Place) {
        let Line { stream, .. } = self.stream(at.stream);
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let len = slot.model.len();
        let n = len / 2;
        let (left, right) = slot.view_mut(&(0..len)).split_at(len - n);
        let copied = stream.memcpy_d2d(left.as_view().slice(..n), right);
        if self.issued(copied).is_some() {
            slot.model.copy_within(..n, len - n);
        }
    }

    /// Writes both halves of a buffer at the same time, on two streams, and on two threads if there are several.
    pub(super) fn halves(&self, at: Place, other: usize, value: u32) {
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let (here, there) = (self.stream_near(at.stream, slot), self.stream(other).stream);
        let len = slot.model.len();
        let slot_device = slot.device;
        let (left, right) = slot.view_mut(&(0..len)).split_at(at.from * len / 1000);
        let is_near = here.device().id() == slot_device;
        let launch = || match here.launch(&self.kernels.one, GRID, (left,)) {
            Err(Error::Invalid { .. }) if !is_near => None,
            launched => self.issued(launched),
        };
        let fill = || self.issued(there.fill_with(right, value));
        let (launched, filled) = match self.plan.threads {
            1 => (launch(), fill()),
            _ => std::thread::scope(|scope| {
                let filled = scope.spawn(fill);
                (launch(), filled.join().expect("a call does not panic"))
            }),
        };
        let (left, right) = slot.model.split_at_mut(at.from * len / 1000);
        if launched.is_some() {
            reference::one(left);
        }
        if filled.is_some() {
            right.fill(value);
        }
    }

    pub(super) fn benchmark(&self, at: Place) {
        let Line { stream, .. } = self.stream(at.stream);
        self.act(0, Act::Memset(at, 7));
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let range = slot.range(at);
        // Equal bytes, so that it does not matter how many of the calls are refused.
        let bytes = u32::from_ne_bytes([7; 4]);
        if slot.model[range.clone()]
            .iter()
            .any(|&value| value != bytes)
        {
            return;
        }
        let options = Options {
            warm_up: 1,
            runs: 2,
            calls: 2,
            ..Options::default()
        };
        let mut view = slot.view_mut(&range);
        let measured = benchmark(&stream, &options, |stream| {
            stream.memset(view.reborrow(), 7)
        });
        self.tried(measured);
    }
}
