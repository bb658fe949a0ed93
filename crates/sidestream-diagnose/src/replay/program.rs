//! A trace as a program: what the host does, in its sequence, and the work that follows from it.

use std::ops::Range;

use crate::model::{ApiKind, Direction, Memory, Name, Room, ThreadIndex};

/// A program, taken from a trace.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// What the host does, in the order of its starts.
    pub items: Vec<Item>,
    /// The work that it submits, in the order of submission.
    pub nodes: Vec<Node>,
    /// The work that calls wait for: indices of nodes, call by call.
    pub waited: Vec<usize>,
    /// How many lanes of the host there are.
    pub lanes: usize,
    /// How many streams; changes may add some.
    pub streams: usize,
    /// What the streams are for that changes added, the last ones.
    pub added: Vec<&'static str>,
    /// The step of the trace that its first one is, and how many steps.
    pub first_step: usize,
    pub steps: usize,
    /// How many workers there are that load, each in its turn, and how many that do other work of the host, whichever is
    /// free; with none, the host's own threads do everything.
    pub workers: [usize; 2],
    /// How long workers that there are already take for a batch, all together; nothing where the program does not wait
    /// for them.
    pub pace_ns: u64,
    /// Work that was under way or queued when the first step began: the first nodes. Its calls are
    /// not part of the program.
    pub backlog: usize,
    /// Whether most of its work is submitted at once already, by graphs or compiled code.
    pub is_at_once: bool,
    /// The devices, each with an engine of its own.
    pub devices: usize,
    /// The device of each stream, from 0.
    pub device_of: Vec<u32>,
    /// The number that the trace has for each of its streams.
    pub numbers: Vec<i64>,
}

/// Neighbours in a list. There are as many of these as calls: hence the small numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stretch {
    first: u32,
    count: u32,
}

impl Stretch {
    /// These places of a list.
    pub fn new(all: Range<usize>) -> Stretch {
        Stretch {
            first: all.start as u32,
            count: all.len() as u32,
        }
    }

    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Their places in the list.
    pub fn all(self) -> Range<usize> {
        let first = self.first as usize;
        first..first + self.count as usize
    }
}

/// A call, with the time before it.
#[derive(Clone, Debug)]
pub struct Item {
    /// Whose.
    pub lane: u32,
    /// Which step it belongs to.
    pub step: u32,
    /// The host's own time before the call.
    pub own_ns: u64,
    /// How much of that it waited for its data loader.
    pub loading_ns: u64,
    /// How much of it is the host's own work, without any call for half a millisecond or more.
    pub host_work_ns: u64,
    /// How much of that another thread or process could do.
    pub movable_ns: u64,
    /// The range around most of that.
    pub host_work: Option<Name>,
    /// How much of the own time workers do, and how long it takes them.
    pub moved_ns: u64,
    pub worker_ns: u64,
    /// Which batch that is for, or which step, and which of the workers do it.
    pub batch: u32,
    pub pool: Pool,
    /// How much of the own time is what a few launches in the place of many leave of these.
    pub fused_ns: u64,
    /// What it takes to get that from a worker.
    pub take_over_ns: u64,
    /// How much of the own time, and of the time in the call, no step of a run without the profiler has: what is done
    /// once, and what the profiler does for itself.
    pub apart_ns: (u64, u64),
    /// When the call began.
    pub start_ns: i64,
    /// Whose it is.
    pub thread: ThreadIndex,
    /// The time in the call, without waiting.
    pub call_ns: u64,
    /// How much of that passes when its work may run already: a launch of a large graph returns long after its first kernel began.
    pub running_ns: u64,
    /// How many operators the profiler noted since the call before.
    pub operators: u32,
    /// The work that it submits, of the nodes.
    pub submits: Stretch,
    /// The work that it waits for, of [`Program::waited`].
    pub waits: Stretch,
    /// From the end of that to the end of the call.
    pub return_ns: u64,
    /// How long it held up the host in the trace.
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

/// Work of the device.
#[derive(Clone, Debug)]
pub struct Node {
    /// Which stream it stands in.
    pub stream: usize,
    /// How long it takes alone.
    pub duration_ns: u64,
    /// What it is.
    pub job: Job,
    /// Work of other streams that it stands behind.
    pub after: Vec<usize>,
    /// What it stands behind besides, since one of the two streams is the legacy default stream.
    pub legacy: Vec<usize>,
    /// Whether what it stands behind was inferred from times.
    pub is_inferred: bool,
    /// Whether it is a node of a graph.
    pub in_graph: bool,
    /// Whether it exchanges data with other devices.
    pub is_collective: bool,
    /// Whether a change gave it another place: then what runs beside it is not what did in the trace.
    pub moved: bool,
    /// The work of the trace that it is.
    pub work: usize,
    /// Which step it belongs to.
    pub step: usize,
}

/// What work is, as far as the engine has to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Job {
    /// A kernel that fills this share of the device.
    Kernel { share: f64 },
    /// A copy between host and device.
    HostCopy {
        direction: Direction,
        memory: Memory,
        bytes: u64,
    },
    /// Anything else: a copy inside the device, a memset.
    Other,
}

impl Program {
    /// What workers take at the least of a step in the mean: they work beside each other, and none does two things at once.
    /// Where they take turns, the slowest decides.
    pub fn loading_floor_ns(&self) -> u64 {
        let floors = [Pool::Loading, Pool::Other].map(|pool| {
            let count = self.workers[pool as usize];
            // What each worker does, and of how many batches.
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

/// Which share of the device a kernel takes from others that run beside it; all of it where the
/// trace does not say.
///
/// A multiprocessor has four schedulers. A warp on each keeps it busy but for a part: two matrix
/// products of 128 blocks of four warps took 1.74 times as long together as one alone (NVIDIA H200,
/// 2026-11-22), so that each takes 0.87 of what it occupies; more warps leave less.
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
        // No block of another finds room.
        return 1.0;
    }
    let kept_busy = warps_a_scheduler.min(1.0) * (1.0 - 0.13 / warps_a_scheduler.max(1.0));
    occupied * kept_busy
}
