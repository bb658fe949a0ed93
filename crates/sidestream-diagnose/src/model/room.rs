//! How many blocks of a kernel fit on a multiprocessor.

/// The maximum number of blocks that fit on a multiprocessor of any device to date, and the resource that limits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub blocks: u32,
    pub limit: Limit,
}

/// The resource that limits the number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The 2,048 threads of a multiprocessor.
    Threads,
    /// The 32 blocks of a multiprocessor.
    Blocks,
    /// The 65,536 registers of a multiprocessor.
    Registers,
    /// The 227 KiB of shared memory for blocks.
    Shared,
}

impl Room {
    /// Returns the room for blocks with this many threads, registers per thread and bytes of shared memory. One block always
    /// fits: it ran.
    pub fn of(threads: u32, registers: u32, shared_bytes: u32) -> Room {
        let rooms = [
            (2048 / threads.max(1), Limit::Threads),
            (32, Limit::Blocks),
            (
                65_536 / registers.saturating_mul(threads).max(1),
                Limit::Registers,
            ),
            ((227 << 10) / shared_bytes.max(1), Limit::Shared),
        ];
        let (blocks, limit) = rooms
            .into_iter()
            .min_by_key(|(blocks, _)| *blocks)
            .unwrap_or((1, Limit::Threads));
        Room {
            blocks: blocks.clamp(1, 32),
            limit,
        }
    }
}
