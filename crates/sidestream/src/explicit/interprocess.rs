//! Events that processes share: the one that makes it records it, and others open it by a handle and wait for it.
//!
//! # What a log says of them
//! A log has the calls of one process, and does not show what another process waited for before it recorded its event. So
//! that no race is reported where the other process may have made the order, the log has a thread and a stream, both called
//! "another process". The thread learns that a record of a shared event is complete as soon as it is made, and records
//! an opened event just before this process waits for it. Work behind such a wait then counts as ordered after all
//! that this process has recorded in shared events so far: that may be true and is not proven. With all other work of this
//! process, races are found as ever, except that a synchronisation of a device covers that stream, too. Work of another
//! process is in no log of this one, and nothing is said of it.

use std::panic::Location;
use std::sync::Arc;

use super::event::Event;
use crate::backend::{Create, Destroy};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::op::{Accesses, DeviceId, Kind, StreamId, StreamKind};
use crate::tracker::{OwnEvent, Place, plain, write};

/// Whose records an event has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// This process alone has it.
    Ours,
    /// Recorded here; others may open it.
    Shared,
    /// Recorded by another process.
    Theirs,
}

impl Event {
    /// `cudaEventCreateWithFlags` with `cudaEventInterprocess`: an event without timing that another process can open, by
    /// [`Event::ipc_handle`]. It is recorded here and in no other process.
    ///
    /// # Errors
    /// If the device is simulated, or what the driver answers.
    #[track_caller]
    pub fn interprocess(device: &Device) -> Result<Event> {
        Event::between(device, None, Location::caller())
    }

    /// `cudaIpcGetEventHandle`: what [`Event::from_ipc_handle`] takes in another process, as bytes to be sent there.
    ///
    /// The event has to stay until no other process uses it any more.
    ///
    /// # Errors
    /// If it was not made by [`Event::interprocess`], or what the driver answers.
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

    /// `cudaIpcOpenEventHandle`: an event that another process made by [`Event::interprocess`], or by its like in PyTorch or
    /// CUDA, and records. The device is the same GPU there.
    ///
    /// # Ordering
    /// A wait, a query and [`Event::synchronize`] are for the last record that the other process had made when they were
    /// called: let it say when it has made one. A checker of this process takes what comes behind a wait as ordered
    /// after what this process has recorded in events of [`Event::interprocess`] so far, since the other process may have
    /// waited for that; it cannot know whether it did.
    ///
    /// # Errors
    /// If the device is simulated, or what the driver answers: also where the handle is from this process, or the event is gone.
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
                    "{} is simulated within this process, and no other one could see its events; use a CUDA device",
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
                // SAFETY: it was made here, and nobody has a spare one.
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
                    "{why}; a handle is opened in another process than the one that made the event, and while that \
                     has it"
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

    /// Another process records what it opened nowhere.
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

    /// It was recorded, which another process may wait for.
    pub(super) fn tell_recorded(&self, at: Place) {
        if self.whose == Whose::Shared {
            let event = self.id();
            self.tell_elsewhere(|_| Kind::QueryEvent { event, done: true }, at);
        }
    }

    /// It is about to be waited for, or was found complete: so another process has recorded it.
    pub(super) fn tell_awaited(&self, at: Place) {
        if self.whose == Whose::Theirs {
            let event = self.id();
            self.tell_elsewhere(|stream| Kind::Record { stream, event }, at);
        }
    }

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
