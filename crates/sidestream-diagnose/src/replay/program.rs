//! A trace as a program: the host actions, in their order, and the work that results from them.

use std::ops::Range;

use crate::model::{ApiKind, Memory, Name, Room, ThreadIndex};

/// A program, derived from a trace.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The host actions, in the order of their starts.
    pub items: Vec<Item>,
    /// The work that it submits, in the order of submission.
    pub nodes: Vec<Node>,
    /// The work that calls wait for: indices of nodes, call by call.
    pub waited: Vec<usize>,
    /// Number of host lanes.
    pub lanes: usize,
    /// Number of streams; changes may add some.
    pub streams: usize,
    /// The purposes of the streams that changes added, which are the last ones.
    pub added: Vec<&'static str>,
    /// The step of the trace that is the program's first one, and the number of steps.
    pub first_step: usize,
    pub steps: usize,
    /// Number of workers that load data, each in turn, and number of workers that do other host work, whichever is free;
    /// without any, the host's own threads do everything.
    pub workers: [usize; 2],
    /// Time of all existing workers together for a batch; 0 where the program does not wait for them.
    pub pace_ns: u64,
    /// Number of operations in flight or queued when the first step began, which are the first nodes. Their calls are not part
    /// of the program.
    pub backlog: usize,
    /// Whether most of its work is already submitted in batches, by graphs or compiled code.
    pub is_at_once: bool,
    /// Number of devices, each of which has its own engine.
    pub devices: usize,
    /// The device of each stream, from 0.
    pub device_of: Vec<u32>,
    /// The trace's number for each of its streams.
    pub numbers: Vec<i64>,
}

/// Consecutive elements of a list. A program has as many stretches as calls, hence the small integers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stretch {
    first: u32,
    count: u32,
}

impl Stretch {
    /// Returns the stretch for these indices of a list.
    pub fn new(all: Range<usize>) -> Stretch {
        Stretch {
            first: all.start as u32,
            count: all.len() as u32,
        }
    }

    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Returns the indices in the list.
    pub fn all(self) -> Range<usize> {
        let first = self.first as usize;
        first..first + self.count as usize
    }
}

/// A call, with the time before it.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its lane.
    pub lane: u32,
    /// The step to which it belongs.
    pub step: u32,
    /// The host's own time before the call.
    pub own_ns: u64,
    /// The part of that in which it waited for its data loader.
    pub loading_ns: u64,
    /// The part of that which is the host's own work, without any call for half a millisecond or more.
    pub host_work_ns: u64,
    /// The part of the host's own work that another thread or process could do.
    pub movable_ns: u64,
    /// The range around most of the host's own work.
    pub host_work: Option<Name>,
    /// The part of the host's own time that workers take over.
    pub moved_ns: u64,
    /// The time that workers take for it.
    pub worker_ns: u64,
    /// The batch or the step that this work is for, and the kind of workers that do it.
    pub batch: u32,
    pub pool: Pool,
    /// The part of the host's own time that remains with a few launches instead of many.
    pub fused_ns: u64,
    /// Time to take over the result from a worker.
    pub take_over_ns: u64,
    /// The parts of the host's own time, and of the time in the call, that a step without the profiler would not have: one-time
    /// work, and the profiler's own work.
    pub apart_ns: (u64, u64),
    /// Start of the call.
    pub start_ns: i64,
    /// Its thread.
    pub thread: ThreadIndex,
    /// Time in the call, without waiting.
    pub call_ns: u64,
    /// The part of that in which its work may already run: a launch of a large graph returns long after its first kernel began.
    pub running_ns: u64,
    /// Number of operators that the profiler recorded since the previous call.
    pub operators: u32,
    /// The work that it submits, in the nodes.
    pub submits: Stretch,
    /// The work that it waits for, in [`Program::waited`].
    pub waits: Stretch,
    /// Time from the end of that work to the end of the call.
    pub return_ns: u64,
    /// How long it blocked the host in the trace.
    pub held_ns: u64,
    /// What it does.
    pub kind: ApiKind,
    /// The function.
    pub name: Name,
}

/// Kinds of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    Loading,
    Other,
}

/// An operation of the device.
#[derive(Clone, Debug)]
pub struct Node {
    /// The stream in which it runs.
    pub stream: usize,
    /// Its duration when it runs alone.
    pub duration_ns: u64,
    /// The kind of operation.
    pub job: Job,
    /// Work of other streams after which it is ordered.
    pub after: Vec<usize>,
    /// Further work after which it is ordered, because one of the two streams is the legacy default stream.
    pub legacy: Vec<usize>,
    /// Whether the work after which it is ordered was inferred from times.
    pub is_inferred: bool,
    /// Whether it is a node of a graph.
    pub in_graph: bool,
    /// Whether it exchanges data with other devices.
    pub is_collective: bool,
    /// Whether a change moved it: then the concurrent work differs from that in the trace.
    pub moved: bool,
    /// Index of its work in the trace.
    pub work: usize,
    /// The step to which it belongs.
    pub step: usize,
}

/// The kind of an operation, as far as the engine needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Job {
    /// A kernel that fills this share of the device.
    Kernel { share: f64 },
    /// A copy from the host to a device.
    Upload(HostCopy),
    /// A copy from a device to the host.
    Download(HostCopy),
    /// Anything else: a copy inside the device, a memset.
    Other,
}

/// A copy between host and device: the host's memory, and its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostCopy {
    pub memory: Memory,
    pub bytes: u64,
}

impl Job {
    /// Returns the copy, if it is one between host and device.
    pub fn host_copy(self) -> Option<HostCopy> {
        match self {
            Job::Upload(copy) | Job::Download(copy) => Some(copy),
            Job::Kernel { .. } | Job::Other => None,
        }
    }
}

impl Program {
    /// Adds a stream for a change.
    pub fn add_stream(&mut self, purpose: &'static str, device: u32) {
        self.streams += 1;
        self.added.push(purpose);
        self.device_of.push(device);
    }

    /// Returns the least mean time per step that workers need: they work concurrently, and each does one thing at a time. Where
    /// they take turns, the slowest decides.
    pub fn loading_floor_ns(&self) -> u64 {
        let floors = [Pool::Loading, Pool::Other].map(|pool| {
            let count = self.workers[pool as usize];
            // The time of each worker, and the number of its batches.
            let mut done = vec![(0u64, 0u64); count];
            let (mut batches, mut last) = (0, None);
            let moved = self.items.iter().filter(|item| item.moved_ns > 0);
            for item in moved.filter(|item| item.pool == pool && count > 0) {
                let is_next = last.replace(item.batch) != Some(item.batch);
                batches += u64::from(is_next);
                let (sum_ns, many) = &mut done[(batches - 1) as usize % count];
                *sum_ns = sum_ns.saturating_add(item.worker_ns);
                *many += u64::from(is_next);
            }
            let per_batch_ns = match pool {
                Pool::Loading => done.iter().map(|(ns, many)| ns / (*many).max(1)).max(),
                Pool::Other => {
                    let all_ns = done.iter().map(|done| done.0).fold(0, u64::saturating_add);
                    Some(all_ns / batches.max(1))
                }
            };
            let all_ns = per_batch_ns.unwrap_or(0).saturating_mul(batches);
            all_ns / (count * self.steps).max(1) as u64
        });
        floors[0].max(floors[1])
    }
}

/// Returns the share of the device that a kernel takes from concurrent ones; all of it where the trace does not show it.
///
/// A multiprocessor has four schedulers. One warp on each keeps it busy except for a part: two matrix products of 128 blocks of
/// four warps took 1.74 times as long together as one alone (NVIDIA H200, 2026-11-22), so that each takes 0.87 of what it
/// occupies; with more warps less is left.
pub fn share(kernel: &crate::model::Kernel, sms: u32) -> f64 {
    if kernel.blocks == 0 || kernel.threads == 0 || sms == 0 {
        return 1.0;
    }
    let threads = u32::from(kernel.threads);
    let most = Room::of(threads, kernel.registers.into(), kernel.shared_bytes).blocks;
    let blocks_a_sm = f64::from(kernel.blocks) / f64::from(sms);
    let occupied = blocks_a_sm.min(1.0);
    let resident = blocks_a_sm.clamp(1.0, f64::from(most));
    let warps_a_scheduler = resident * f64::from(threads.div_ceil(32)) / 4.0;
    if blocks_a_sm >= f64::from(most) {
        // No block of another kernel fits.
        return 1.0;
    }
    let kept_busy = warps_a_scheduler.min(1.0) * (1.0 - 0.13 / warps_a_scheduler.max(1.0));
    occupied * kept_busy
}
