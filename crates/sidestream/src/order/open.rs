//! What CUDA's documentation leaves open about a call. The rules state what is documented; for what is not, a checker warns.

use crate::op::{Class, Kind, Memory};

/// What is not documented about a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Open {
    /// Whether it blocks its caller until it has finished with memory of this kind.
    Blocks(Memory),
    /// Whether it waits for the work that is pending at the call.
    Waits,
}

impl Open {
    /// Returns what is open about a call of this kind: an asynchronous copy with pageable memory (R22), a blocking copy
    /// between device memories of which one is managed (R20, R26), or `cudaFree` (R31).
    #[inline]
    pub fn of(kind: &Kind) -> Option<Open> {
        if let Kind::CudaFree {
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
