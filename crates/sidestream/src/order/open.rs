//! What CUDA's documents leave open of a call. The rules are about what is said; where nothing is, a checker warns.

use crate::op::{Class, Kind, Memory};

/// What nobody says of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Open {
    /// Whether it holds up its caller until it is done with memory of this kind.
    HoldsUp(Memory),
    /// Whether it waits for the work that is pending when it is called.
    Waits,
}

impl Open {
    /// What is open of a call of this kind: of an asynchronous copy with pageable memory (R22), of a blocking one between
    /// device memories where managed memory is one (R20, R26), and of `cudaFree` (R31).
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
        (from == memory || to == memory).then_some(Open::HoldsUp(memory))
    }
}
