//! Determines how an operation is shown in a trace.

#![deny(clippy::wildcard_enum_match_arm)]

use std::collections::HashMap;

use super::{Waits, What};
use crate::op::{Access, Class, DeviceId, EventId, Kind, Mode, Op, OpId, Until};

/// By event: the operation of its last record.
#[derive(Default)]
pub(crate) struct Records(HashMap<EventId, OpId>);

impl Records {
    /// Takes the next operation. Returns the operation that recorded the event for which it waits.
    pub(crate) fn take(&mut self, op: &Op) -> Option<OpId> {
        if let Kind::Record { event, .. } = op.kind {
            self.0.insert(event, op.id);
        }
        if let Kind::Wait { event, .. } | Kind::SyncEvent { event } = op.kind {
            return self.0.get(&event).copied();
        }
        matches!(op.kind, Kind::WaitStream { .. }).then_some(op.id)
    }
}

impl What {
    /// Returns how the work of an operation is shown; `None` for an event record, which is not shown. For a wait,
    /// `recorded_by` is the operation that recorded the event.
    pub fn of(op: &Op, recorded_by: Option<OpId>) -> Option<What> {
        let bytes = || {
            let written = op.accesses.iter().filter(|a| a.mode == Mode::Write);
            written.map(Access::len_bytes).fold(0, u64::saturating_add)
        };
        match op.kind.class() {
            Class::Wait => Some(What::Wait { recorded_by }),
            Class::Kernel | Class::Graph => Some(What::Kernel),
            Class::Copy { peer: Some(_), .. } => Some(What::CopyPeer { bytes: bytes() }),
            Class::Copy { from, to, .. } => Some(What::Copy {
                from,
                to,
                bytes: bytes(),
            }),
            Class::Memset { .. } => Some(What::Memset { bytes: bytes() }),
            Class::HostFunc => Some(What::HostFunc),
            Class::MallocAsync
            | Class::FreeAsync
            | Class::Record
            | Class::Sync(_)
            | Class::Query(_)
            | Class::Malloc
            | Class::Free
            | Class::Allocator
            | Class::Make
            | Class::HostAccess
            | Class::Told
            | Class::Host => None,
        }
    }
}

impl Waits {
    /// Returns the target of a call that waits; `None` if the call does not wait. `present` is the current device of
    /// its thread, for a call that names none, and `recorded_by` the operation that recorded its event.
    pub fn of(op: &Op, present: DeviceId, recorded_by: Option<OpId>) -> Option<Waits> {
        let Class::Sync(until) = op.kind.class() else {
            return None;
        };
        Some(match until {
            Until::Stream(stream) => Waits::Stream(stream),
            Until::Event(_) => Waits::Event { recorded_by },
            Until::Device(device) => Waits::Device(device.unwrap_or(present)),
        })
    }
}
