//! Calls that copy to and from the host, and host functions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::act::{Hosted, Place, Table};
use super::super::flying::Flying;
use super::super::reference;
use super::judge::made_up;
use super::values::{needs, pattern, scatter, take_at};
use super::{Line, World};

impl World {
    pub(super) fn out(&self, at: Place) {
        let Line { stream, .. } = self.stream(at.stream);
        let guard = self.slots[at.slot].read();
        let Some(slot) = guard.as_ref() else { return };
        let range = slot.range(at);
        let mut host = vec![0; range.len()];
        if (self.tried(stream.memcpy_d2h(slot.view(&range), &mut host))).is_some() {
            self.compare("a copy to the host", &host, &slot.model[range]);
        }
    }

    pub(super) fn upload(&self, at: Place, value: u32) {
        self.write(at, |stream, view| {
            let mut pinned = self.pinned(view.len()).ok_or_else(made_up)?;
            pinned.copy_from_slice(&pattern(value, view.len()));
            let sent = pinned.to_vec();
            let pending = self.accepted(stream.upload(pinned, view));
            self.fly(Flying::Pinned(pending.ok_or_else(made_up)?, sent.clone()));
            Ok(move |model: &mut [u32]| model.copy_from_slice(&sent))
        });
    }

    pub(super) fn download(&self, at: Place) {
        let Line { stream, .. } = self.stream(at.stream);
        let guard = self.slots[at.slot].read();
        let Some(slot) = guard.as_ref() else { return };
        let range = slot.range(at);
        let Some(pinned) = self.pinned(range.len()) else {
            return;
        };
        if let Some(pending) = self.accepted(stream.download(slot.view(&range), pinned)) {
            self.fly(Flying::Pinned(pending, slot.model[range].to_vec()));
        }
    }

    pub(super) fn upload_rows(&self, at: Place, table: Table) {
        let (from_rows, to_rows) = table.rows();
        let Line { stream, .. } = self.stream(at.stream);
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let range = slot.range(at);
        let Some(mut pinned) = self.pinned(needs(from_rows)) else {
            return;
        };
        pinned.copy_from_slice(&pattern(5, needs(from_rows)));
        let sent = pinned.to_vec();
        let fits = needs(to_rows) <= range.len();
        let copied = stream.upload_rows(pinned, from_rows, slot.view_mut(&range), to_rows);
        if let Some(pending) = self.rows_accepted(copied, fits) {
            scatter(&sent, from_rows, &mut slot.model[range], to_rows);
            self.fly(Flying::Pinned(pending, sent));
        }
    }

    pub(super) fn download_rows(&self, at: Place, table: Table) {
        // Padded on the device, tight on the host.
        let (to_rows, from_rows) = table.rows();
        let Line { stream, .. } = self.stream(at.stream);
        let guard = self.slots[at.slot].read();
        let Some(slot) = guard.as_ref() else { return };
        let range = slot.range(at);
        let Some(mut pinned) = self.pinned(needs(to_rows)) else {
            return;
        };
        pinned.fill(9);
        let mut expected = pinned.to_vec();
        let fits = needs(from_rows) <= range.len();
        let copied = stream.download_rows(slot.view(&range), from_rows, pinned, to_rows);
        if let Some(pending) = self.rows_accepted(copied, fits) {
            scatter(&slot.model[range], from_rows, &mut expected, to_rows);
            self.fly(Flying::Pinned(pending, expected));
        }
    }

    pub(super) fn host_func(&self, thread: usize, stream: usize, hosted: Hosted) {
        let Line { stream, ran } = self.stream(stream);
        let number = self.functions.fetch_add(1, Ordering::Relaxed);
        let (returned, wrong) = (Arc::clone(&self.returned), Arc::clone(&self.wrong));
        // Every function counts itself, and checks whether those before it have run.
        let enter = move || {
            returned.fetch_add(1, Ordering::Relaxed);
            if ran[thread].swap(number, Ordering::Relaxed) >= number {
                wrong.lock().push("a function ran too late".to_owned());
            }
        };
        let flying = match hosted {
            Hosted::Values(value) => {
                let given = pattern(value, 5);
                let mut expected = given.clone();
                reference::two(&[value], &mut expected);
                let pending = stream.host_func(given, move |values| {
                    enter();
                    reference::two(&[value], values);
                });
                pending.map(|pending| Flying::Values(pending, expected))
            }
            Hosted::Panics => {
                let pending = stream.host_func(Vec::new(), move |_| {
                    enter();
                    std::panic::resume_unwind(Box::new("not today"));
                });
                pending.map(Flying::Panics)
            }
            Hosted::Buffer(slot) => {
                let Some(slot) = self.take(slot) else { return };
                stream.host_func(slot, move |_| enter()).map(Flying::Buffer)
            }
            Hosted::Pinned(value) => {
                let Some(mut pinned) = self.pinned(6) else {
                    return;
                };
                pinned.copy_from_slice(&pattern(value, 6));
                let mut expected = pinned.to_vec();
                reference::one(&mut expected);
                let pending = stream.host_func(pinned, move |pinned| {
                    enter();
                    reference::one(pinned);
                });
                pending.map(|pending| Flying::Written(pending, expected))
            }
            Hosted::Drops(slot) => {
                let graph = self.graphs[0].lock().take();
                let captured = (
                    self.take(slot),
                    stream.clone(),
                    take_at(&self.events, 0),
                    graph,
                );
                let pending = stream.host_func(Vec::new(), move |_| {
                    enter();
                    drop(captured);
                });
                pending.map(|pending| Flying::Values(pending, Vec::new()))
            }
        };
        if let Some(flying) = self.issued(flying) {
            self.accepted.fetch_add(1, Ordering::Relaxed);
            self.fly(flying);
        }
    }
}
