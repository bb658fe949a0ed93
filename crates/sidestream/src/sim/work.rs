//! The cost of an operation: of its call on the host, and of its work on the device.

#![deny(clippy::wildcard_enum_match_arm)]

use crate::engine::{Call, Grid, KernelCost, Profile, Work};
use crate::op::{Access, Class, DeviceId, Kind, Memory, Mode, Op};
use crate::order::{Chain, Step};

/// Returns the work of the call on the calling thread, during which the host copies `staged_bytes` to staging memory.
pub(super) fn call(op: &Op, staged_bytes: u64) -> Work {
    let call = match op.kind.class() {
        Class::Kernel => Call::Launch,
        Class::Copy {
            is_blocking: false, ..
        } if staged_bytes > 0 => Call::Stage {
            bytes: staged_bytes,
        },
        Class::Copy { from, to, .. } if from == Memory::Pinned && !to.is_host() => {
            let bytes = moved(op, Mode::Read);
            Call::UploadAsync { bytes }
        }
        Class::Copy { .. } => Call::CopyAsync,
        Class::Memset { .. } => Call::MemsetAsync,
        Class::HostFunc => Call::HostFunc,
        Class::Graph => Call::GraphLaunch,
        Class::MallocAsync => Call::MallocAsync,
        Class::FreeAsync => Call::FreeAsync,
        Class::Record => Call::Record,
        Class::Wait => Call::Wait,
        Class::Sync(_) => Call::Sync,
        Class::Query(_) => Call::Query,
        Class::Malloc => Call::Malloc,
        Class::Free => Call::Free,
        Class::Make => Call::Create,
        Class::HostAccess | Class::Allocator | Class::Told | Class::Host => Call::HostNs(HOST_NS),
    };
    Work::Call(call)
}

/// Returns the number of equal launches that an operation represents, if it is more than one.
pub(super) fn launches(op: &Op) -> Option<u32> {
    let Kind::Kernel { launches, .. } = op.kind else {
        return None;
    };
    Some(launches).filter(|&n| n > 1)
}

/// Returns the host time of all launches of an operation but the first, if there are several.
pub(super) fn further_launches(op: &Op, profile: &Profile) -> Option<Work> {
    let more = launches(op)? - 1;
    let ns = f64::from(more) * profile.call_ns(Call::Launch);
    Some(Work::Call(Call::HostNs(ns as u64)))
}

/// Returns the work of the kernels of some equal launches, one after the other.
pub(super) fn kernel(op: &Op, cost: Option<KernelCost>, launches: u32) -> Work {
    let times = |n: u64| n.saturating_mul(u64::from(launches));
    Work::Kernel(match cost.unwrap_or_else(|| bound_by_bytes(op)) {
        KernelCost::Duration { ns, share } => KernelCost::Duration {
            ns: times(ns),
            share,
        },
        KernelCost::Blocks {
            blocks,
            threads_per_block,
            block_ns,
        } => KernelCost::Blocks {
            blocks,
            threads_per_block,
            block_ns: times(block_ns),
        },
        KernelCost::Grid(grid) => KernelCost::Grid(Grid {
            steps: times(grid.steps),
            chain_steps: times(grid.chain_steps),
            bytes: times(grid.bytes),
            ..grid
        }),
    })
}

/// Returns the work of many copies by one kernel that reads host memory: it runs at the speed of the link, and begins a
/// little later than a copy (8 MB in 164 µs against 156, H200). In the model it does not slow down concurrent copies.
pub(super) fn gather(bytes: u64, profile: &Profile) -> Work {
    let ns = bytes as f64 / profile.link_bytes_per_s() * 1e9;
    Work::Kernel(KernelCost::Duration {
        ns: GATHER_NS + ns as u64,
        share: GATHER_SHARE,
    })
}

/// Time until the first bytes have crossed the link.
const GATHER_NS: u64 = 8_000;
/// Fraction of the device that this kernel fills: a small one, since the kernel waits for the link.
const GATHER_SHARE: f64 = 0.25;

/// Host cost of a call that does not reach the driver, such as setting a flag.
const HOST_NS: u64 = 50;

/// Approximate rate at which a host thread reads or writes memory, bytes per nanosecond.
const HOST_BYTES_PER_NS: u64 = 12;

/// Returns the work of an operation in its stream: of several launches, all but the last.
pub(super) fn on_device(op: &Op, cost: Option<KernelCost>) -> Work {
    let bytes = |mode| moved(op, mode);
    match op.kind.class() {
        Class::Kernel | Class::Graph => kernel(op, cost, launches(op).map_or(1, |n| n - 1)),
        Class::Copy { from, to, peer, .. } => {
            let bytes = bytes(Mode::Read).max(bytes(Mode::Write));
            if let Some(DeviceId(peer)) = peer {
                return Work::PeerCopy { peer, bytes };
            }
            match (from, to) {
                (Memory::Pageable, to) if !to.is_host() => Work::UploadPageable { bytes },
                (Memory::Pinned, to) if !to.is_host() => Work::Upload { bytes },
                (from, Memory::Pageable) if !from.is_host() => Work::DownloadPageable { bytes },
                (from, Memory::Pinned) if !from.is_host() => Work::Download { bytes },
                (from, _) if from.is_host() => Work::HostFunc {
                    ns: bytes / HOST_BYTES_PER_NS,
                },
                _ => Work::DeviceCopy { bytes },
            }
        }
        Class::Memset { .. } => Work::Memset {
            bytes: bytes(Mode::Write),
        },
        Class::HostFunc => {
            let bytes = bytes(Mode::Read) + bytes(Mode::Write);
            Work::HostFunc {
                ns: HOST_NS + bytes / HOST_BYTES_PER_NS,
            }
        }
        Class::MallocAsync
        | Class::FreeAsync
        | Class::Record
        | Class::Wait
        | Class::Sync(_)
        | Class::Query(_)
        | Class::Malloc
        | Class::Free
        | Class::Allocator
        | Class::Make
        | Class::HostAccess
        | Class::Told
        | Class::Host => Work::Marker,
    }
}

/// Returns the work of a step without device work: a marker in a stream, or time of a thread.
pub(super) fn point(step: &Step, op: &Op) -> Work {
    match (step.chain, op.kind) {
        (Chain::Thread(_), Kind::HostAccess) => {
            let bytes = moved(op, Mode::Read) + moved(op, Mode::Write);
            Work::Call(Call::HostNs(bytes / HOST_BYTES_PER_NS))
        }
        (Chain::Thread(_), _) => Work::Call(Call::HostNs(0)),
        (Chain::Stream(_), _) => Work::Marker,
    }
}

/// Returns the cost of a kernel of which only the accesses are known: one thread for each four bytes.
fn bound_by_bytes(op: &Op) -> KernelCost {
    let widest = op.accesses.iter().map(Access::len_bytes).max().unwrap_or(0);
    let elements = (widest / 4).max(1);
    KernelCost::Grid(Grid::elementwise(elements, 4, 1, 256, u64::MAX))
}

fn moved(op: &Op, mode: Mode) -> u64 {
    let accesses = op.accesses.iter().filter(|a| a.mode == mode);
    accesses.map(Access::len_bytes).sum()
}
