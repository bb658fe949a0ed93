//! What an operation shows as in a trace.

#![deny(clippy::wildcard_enum_match_arm)]

use super::{Waits, What};
use crate::op::{Access, Class, DeviceId, Mode, Op, OpId, Until};

impl What {
    /// What the work of an operation shows as, if it shows: the record of an event does not. For a
    /// wait: which operation recorded the event.
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
    /// What a call waits for, if it waits: the present device of its thread where it names none, and
    /// which operation recorded its event.
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
