//! What only tables are made of: shapes of inputs, launches of kernels, memory as it is taken and given back.

use super::{Name, ThreadIndex};

/// The shapes of the inputs of an operator, where the profiler was asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// When the operator began.
    pub start_ns: i64,
    /// Its name.
    pub name: Name,
    /// The shapes, as in `[[16,64],[64]]`.
    pub shape: Name,
    /// Whose it is.
    pub thread: ThreadIndex,
}

/// How the longest kernel of a name was launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launched {
    /// How long it took.
    pub duration_ns: u64,
    /// How many blocks, in three dimensions.
    pub grid: [u32; 3],
    /// How many threads a block, in three dimensions.
    pub block: [u32; 3],
    /// How many registers each thread takes.
    pub registers: u16,
    /// How much shared memory each block takes.
    pub shared_bytes: u32,
    /// How much of the warps that fit on a multiprocessor were there, in percent, as the profiler estimates it.
    pub occupancy: Option<u8>,
}

/// Memory that was taken or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// When.
    pub time_ns: i64,
    /// Where.
    pub address: u64,
    /// How much; less than nothing where it was given back.
    pub bytes: i64,
    /// What the allocator has handed out then, where the trace says so.
    pub total_bytes: Option<u64>,
    /// The device; none for memory of the host.
    pub device: Option<u16>,
    /// Who did it.
    pub thread: ThreadIndex,
}

const _: () = assert!(size_of::<Shape>() <= 24);
const _: () = assert!(size_of::<Allocated>() <= 48);
