//! How many blocks of a kernel fit on a multiprocessor.

/// How many blocks fit at the most, on any device to date, and what leaves no room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub blocks: u32,
    pub limit: Limit,
}

/// What leaves no room for more blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A multiprocessor holds 2,048 threads.
    Threads,
    /// It holds 32 blocks.
    Blocks,
    /// It has 65,536 registers.
    Registers,
    /// It has 227 KiB of shared memory for blocks.
    Shared,
}

impl Room {
    /// Of blocks with so many threads, registers a thread, and bytes of shared memory. One block always fits: it ran.
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
