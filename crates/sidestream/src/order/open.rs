//! The behaviour of a call that CUDA's documentation leaves open. The rules state the documented behaviour; about the
//! rest, a checker warns.

use crate::op::{Class, Kind, Memory};

/// A property of a call that is not documented.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Open {
    /// Whether the call blocks its caller until it has finished with memory of this kind.
    Blocks(Memory),
    /// Whether the call waits for the work that is pending when it is made.
    Waits,
}

impl Open {
    /// Returns the undocumented property of a call of this kind: an asynchronous copy with pageable memory (R22), a
    /// blocking copy between device memories of which one is managed (R20, R26), `cudaFree` (R31) or
    /// `cudaHostUnregister` (R67).
    #[inline]
    pub fn of(kind: &Kind) -> Option<Open> {
        // When a batch reads its source, its caller has chosen.
        if let Kind::CopyBatch { .. } = kind {
            return None;
        }
        if let Kind::HostUnregister
        | Kind::CudaFree {
            stream_ordered: false,
        } = kind
        {
            return Some(Open::Waits);
        }
        let Class::Copy {
            from,
            to,
            is_blocking,
            ..
        } = kind.class()
        else {
            return None;
        };
        let memory = match is_blocking {
            false => Memory::Pageable,
            true if from.is_host() || to.is_host() => return None,
            true => Memory::Managed,
        };
        (from == memory || to == memory).then_some(Open::Blocks(memory))
    }
}
