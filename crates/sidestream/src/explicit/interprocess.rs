//! Interprocess events: the process that makes one records it, and others open it by a handle and wait for it.
//!
//! # How the log represents them
//! A log has the calls of one process, and does not show what another process waited for before it recorded its event.
//! So that no race is reported where the other process may have provided the order, the log has a thread and a stream,
//! both named "another process". The thread learns of the completion of a shared event's record as soon as the record
//! is made, and it records an opened event just before this process waits for it. Work after such a wait then counts as
//! ordered after all that this process has recorded in shared events so far: that may be true, but the log cannot prove
//! it. Races with all other work of this process are found as usual, except that a synchronization of a device also
//! covers the other process's stream. Work of another process is not in this log, and nothing is reported about it.

use std::panic::Location;
use std::sync::Arc;

use super::event::Event;
use crate::backend::{Create, Destroy};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::op::{Accesses, DeviceId, Kind, StreamId, StreamKind};
use crate::tracker::{OwnEvent, Place, plain, write};

/// The process that records an event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// This process; no other process can open the event.
    Ours,
    /// This process; other processes may open the event.
    Shared,
    /// Another process, from which the event was opened.
    Theirs,
}

impl Event {
    /// `cudaEventCreateWithFlags` with `cudaEventInterprocess`: an event without timing that another process can open
    /// with [`Event::ipc_handle`]. Only this process can record it.
    ///
    /// # Errors
    /// If the device is simulated, or any error that the driver returns.
    #[track_caller]
    pub fn interprocess(device: &Device) -> Result<Event> {
        Event::between(device, None, Location::caller())
    }

    /// `cudaIpcGetEventHandle`: returns the bytes to send to another process, where [`Event::from_ipc_handle`] takes
    /// them.
    ///
    /// The event must not be dropped while another process uses it.
    ///
    /// # Errors
    /// If the event was not made by [`Event::interprocess`], or any error that the driver returns.
    pub fn ipc_handle(&self) -> Result<[u8; 64]> {
        self.runtime.check()?;
        if self.whose != Whose::Shared {
            return Err(Error::Invalid {
                call: "ipc_handle",
                why: "only an event that was made for other processes has a handle; make it by `Event::interprocess` \
                      (in Python: `Event(interprocess=True)`)"
                    .into(),
            });
        }
        self.runtime
            .seen(self.runtime.backend.ipc_handle(self.id()))
    }

    /// `cudaIpcOpenEventHandle`: opens an event that another process made with [`Event::interprocess`], or with its
    /// equivalent in PyTorch or CUDA, and records. The device has to be the same GPU as in that process.
    ///
    /// # Ordering
    /// A wait, a query and [`Event::synchronize`] refer to the latest record that the other process has made at the
    /// time of the call: let it signal when it has made one. A checker of this process counts work after a wait as
    /// ordered after all that this process has recorded in events of [`Event::interprocess`] so far, since the other
    /// process may have waited for that; the checker cannot know whether it did.
    ///
    /// # Errors
    /// If the device is simulated, or any error that the driver returns, for instance because the handle is from this
    /// process or the event was destroyed.
    #[track_caller]
    pub fn from_ipc_handle(device: &Device, handle: [u8; 64]) -> Result<Event> {
        Event::between(device, Some(handle), Location::caller())
    }

    fn between(device: &Device, from: Option<[u8; 64]>, at: Place) -> Result<Event> {
        let runtime = &device.runtime;
        runtime.check()?;
        let caps = &runtime.backend.devices()[device.id().0 as usize];
        if !caps.shares_events {
            return Err(Error::Invalid {
                call: "interprocess",
                why: format!(
                    "{} is simulated within this process, and no other process could see its events; use a CUDA device",
                    caps.name
                ),
            });
        }
        let whose = match from {
            None => Whose::Shared,
            Some(_) => Whose::Theirs,
        };
        let device = device.id();
        let spare = &runtime.device(device).spare_shared;
        let known = spare.0.lock().pop();
        let id = match known {
            Some(id) => {
                // SAFETY: the event was created here, and a spare event has no other user.
                unsafe { runtime.backend.destroy(Destroy::Event(id)) };
                id
            }
            None => runtime.live.new_event(false, device),
        };
        // SAFETY: the id is new, or was just destroyed.
        let created = unsafe {
            runtime
                .backend
                .create(Create::Interprocess { id, device, from })
        };
        runtime.seen(created).map_err(|error| match (error, from) {
            (Error::Refused { code, why, .. }, Some(_)) => Error::Refused {
                call: "from_ipc_handle",
                code,
                why: format!(
                    "{why}; a handle can be opened only in another process than the one that made the event, and only while \
                     that process keeps the event"
                ),
            },
            (error, _) => error,
        })?;
        runtime.tell(Kind::CreateEvent { event: id }, |_| Accesses::new(), at);
        Ok(Event {
            runtime: Arc::clone(runtime),
            own: OwnEvent {
                id,
                device,
                spare: Arc::clone(spare),
            },
            last: Default::default(),
            sleeps: false,
            whose,
        })
    }

    /// Refuses to record an event that was opened from another process.
    #[inline]
    pub(super) fn is_recorded_here(&self) -> Result<()> {
        if self.whose != Whose::Theirs {
            return Ok(());
        }
        Err(Error::Invalid {
            call: "record",
            why: "the event was opened from another process, which records it; make one for the other direction, \
                  and send its handle there"
                .into(),
        })
    }

    /// Logs that another process may wait for the record just made.
    #[inline]
    pub(super) fn tell_recorded(&self, at: Place) {
        if self.whose == Whose::Shared {
            let event = self.id();
            self.tell_elsewhere(|_| Kind::QueryEvent { event, done: true }, at);
        }
    }

    /// Logs the record of another process, before this process waits for it or after it was found complete.
    #[inline]
    pub(super) fn tell_awaited(&self, at: Place) {
        if self.whose == Whose::Theirs {
            let event = self.id();
            self.tell_elsewhere(|stream| Kind::Record { stream, event }, at);
        }
    }

    #[cold]
    fn tell_elsewhere(&self, kind: impl FnOnce(StreamId) -> Kind, at: Place) {
        let runtime = &self.runtime;
        if !runtime.live.is_on() {
            return;
        }
        let name = "another process";
        let of_device = &runtime.device(self.own.device).explicit;
        let &stream = of_device.elsewhere.get_or_init(|| {
            let (kind, device) = (StreamKind::NonBlocking, self.own.device);
            runtime.live.new_stream(kind, device, name)
        });
        let of_machine = &runtime.device(DeviceId(0)).explicit;
        let new_thread = || runtime.live.new_thread(name);
        let &thread = of_machine.thread_elsewhere.get_or_init(new_thread);
        let mut pen = runtime.live.write();
        let op = plain(thread, kind(stream), &mut pen, at);
        write(&mut pen, &op);
    }
}
