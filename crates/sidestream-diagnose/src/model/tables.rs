//! Rows that only tables use: shapes of inputs, kernel launches, allocations and frees.

use super::{Name, ThreadIndex};

/// The shapes of the inputs of an operator, where the profiler was asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Start of the operator.
    pub start_ns: i64,
    /// Its name.
    pub name: Name,
    /// The shapes, as in `[[16,64],[64]]`.
    pub shape: Name,
    /// The thread that it is on.
    pub thread: ThreadIndex,
}

/// How the longest kernel of a name was launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launched {
    /// Duration of that kernel.
    pub duration_ns: u64,
    /// Number of blocks, in three dimensions.
    pub grid: [u32; 3],
    /// Threads per block, in three dimensions.
    pub block: [u32; 3],
    /// Registers per thread.
    pub registers: u16,
    /// Shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// Achieved occupancy in percent, as the profiler estimates it.
    pub occupancy: Option<u8>,
}

/// An allocation or a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Time of the event.
    pub time_ns: i64,
    /// Address of the memory.
    pub address: u64,
    /// Bytes allocated; negative for a free.
    pub bytes: i64,
    /// Bytes that the allocator had handed out after it, where the trace states that.
    pub total_bytes: Option<u64>,
    /// The device; `None` for host memory.
    pub device: Option<u16>,
    /// The thread that did it.
    pub thread: ThreadIndex,
}

const _: () = assert!(size_of::<Shape>() <= 24);
const _: () = assert!(size_of::<Allocated>() <= 48);
