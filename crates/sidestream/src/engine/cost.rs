//! Computes the coefficients of the fluid model from work and a profile; see [`super`] for the model.

use super::profile::Profile;
use super::work::{Call, Grid, KernelCost};

const WARP: f64 = 32.0;
/// Warp schedulers of a multiprocessor; four on every NVIDIA design since 2017.
const SCHEDULERS: f64 = 4.0;

/// The demands of a kernel on the multiprocessors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    /// Fraction of the device's thread slots that the kernel can fill.
    pub slots: f64,
    /// Time on all slots of the device when only latency counts: the dependent arithmetic and memory accesses
    /// of its threads, one after the other, ns.
    pub latency_ns: f64,
    /// Demand on issue slots when the kernel has all thread slots and only latency counts; 1 is the capacity of the
    /// device.
    pub issue: f64,
    /// Demand on memory bandwidth under the same conditions.
    pub bandwidth: f64,
    /// Demand on the issue slots of the multiprocessors that the kernel occupies: few big blocks fill only a few
    /// multiprocessors.
    pub crowding: f64,
    /// Time at the end of the kernel in which it still runs while other kernels use its slots, ns.
    pub tail_ns: f64,
    /// Whether the kernel's duration is known: the kernel then competes with others only for slots.
    pub fixed: bool,
    /// Part of the body that one wave of blocks performs, and for which the wave occupies its slots. 0 if the blocks
    /// are unknown; they are then assumed to be short.
    pub wave: f64,
}

fn fourth(d: f64) -> f64 {
    (d * d) * (d * d)
}

fn fourth_root(x: f64) -> f64 {
    x.sqrt().sqrt()
}

/// Returns the part of a demand that a resource of capacity 1 serves: all of a small demand, 1 for a large one, with a
/// smooth transition.
fn served(demand: f64) -> f64 {
    demand / fourth_root(1.0 + fourth(demand))
}

/// Returns the fourth power of the slow-down of a demand that is served only what older demands leave.
fn pressure(older: f64, own: f64) -> f64 {
    if own <= 0.0 {
        return 1.0;
    }
    if older <= 0.0 {
        return 1.0 + fourth(own);
    }
    // The older demands may leave exactly zero; a tiny rate instead of zero makes no difference, and the time stays
    // finite.
    let left = (served(older + own) - served(older)).max(1e-6 * own);
    fourth(own / left)
}

impl Shape {
    /// Returns the fraction of the kernel done per ns on `slots` of the device, when the older running kernels demand this
    /// much of the issue slots and of the bandwidth. This kernel does not slow the older ones; it is served what they leave.
    pub(super) fn rate(&self, slots: f64, older_issue: f64, older_bandwidth: f64) -> f64 {
        if self.fixed {
            return slots / self.latency_ns;
        }
        let issue = pressure(older_issue, slots * self.issue).max(1.0 + fourth(self.crowding));
        let bandwidth = pressure(older_bandwidth, slots * self.bandwidth);
        slots / (self.latency_ns * fourth_root(issue + bandwidth - 1.0))
    }

    /// Returns the time of the kernel on its own slots, without other kernels and without the tail, ns.
    pub(super) fn body_ns(&self) -> f64 {
        1.0 / self.rate(self.slots, 0.0, 0.0)
    }

    /// Returns the time per kernel when equal kernels fill the device, ns. Crowding within a few multiprocessors cannot be
    /// worse than a full device.
    pub(super) fn floor_ns(&self) -> f64 {
        1.0 / self.rate(1.0, 0.0, 0.0)
    }
}

/// The blocks that fit on the device at once.
struct Resident {
    per_sm: f64,
    blocks: f64,
    /// Fraction of the thread slots that these blocks fill.
    occupancy: f64,
}

impl Resident {
    /// Returns the fraction of the device's thread slots that this many blocks can fill.
    fn slots_of(&self, blocks: u64) -> f64 {
        (blocks.max(1) as f64 / self.blocks).min(1.0) * self.occupancy
    }
}

impl Profile {
    pub(super) fn step_ns(&self) -> f64 {
        self.chain_cycles / self.clock_ghz
    }

    fn issue_ns(&self) -> f64 {
        self.issue_cycles / self.clock_ghz
    }

    pub(super) fn shape(&self, cost: &KernelCost) -> Shape {
        match cost {
            KernelCost::Duration { ns, share } => {
                let slots = if *share > 0.0 { share.min(1.0) } else { 1.0 };
                Shape {
                    slots,
                    latency_ns: (*ns as f64).max(1.0) * slots,
                    issue: 0.0,
                    bandwidth: 0.0,
                    crowding: 0.0,
                    tail_ns: 0.0,
                    fixed: true,
                    wave: 0.0,
                }
            }
            KernelCost::Blocks {
                blocks,
                threads_per_block,
                block_ns,
            } => {
                let resident = self.resident(*threads_per_block);
                let waves = ((*blocks).max(1) as f64 / resident.blocks).max(1.0);
                let slots = resident.slots_of(*blocks);
                let block_ns = (*block_ns as f64).max(1.0);
                Shape {
                    slots,
                    latency_ns: block_ns * waves * slots,
                    issue: 0.0,
                    bandwidth: 0.0,
                    crowding: 0.0,
                    tail_ns: block_ns * (waves.ceil() - waves),
                    fixed: true,
                    wave: 1.0 / waves,
                }
            }
            KernelCost::Grid(grid) => self.grid_shape(grid),
        }
    }

    /// Returns how many blocks of this many threads fit on the device at once.
    fn resident(&self, threads_per_block: u32) -> Resident {
        let threads_per_block = f64::from(threads_per_block.max(1));
        // Thread slots too few for another whole block stay unused.
        let per_sm = (self.threads_per_sm / threads_per_block)
            .floor()
            .clamp(1.0, self.blocks_per_sm);
        Resident {
            per_sm,
            blocks: self.sms * per_sm,
            occupancy: (per_sm * threads_per_block / self.threads_per_sm).min(1.0),
        }
    }

    fn grid_shape(&self, grid: &Grid) -> Shape {
        let threads_per_block = f64::from(grid.threads_per_block.max(1));
        let warps_per_block = (threads_per_block / WARP).ceil();
        let blocks = grid.blocks.max(1) as f64;
        let threads = blocks * threads_per_block;
        let resident = self.resident(grid.threads_per_block);
        let blocks_per_sm = resident.per_sm;
        let slots = resident.slots_of(grid.blocks);

        // An average thread does arithmetic, and memory accesses with one load and one store in flight (Little's law).
        let bytes = grid.bytes as f64;
        let trip_bytes = 2.0 * f64::from(grid.access_bytes.max(1));
        let trips = bytes / trip_bytes / threads;
        let steps = grid.steps as f64 / threads + trips * self.access_steps;
        let cached = bytes <= self.l2_mib * 1024.0 * 1024.0;
        let trip_ns = if cached {
            self.l2_latency_ns
        } else {
            self.memory_latency_ns
        };
        let thread_ns = steps * self.step_ns() + trips * trip_ns;
        if thread_ns <= 0.0 {
            // An empty kernel: its time is the gap before it. A positive latency keeps the rate finite.
            return Shape {
                slots,
                latency_ns: 1e-3 * slots,
                issue: 0.0,
                bandwidth: 0.0,
                crowding: 0.0,
                tail_ns: 0.0,
                fixed: true,
                wave: 0.0,
            };
        }

        // The demand of one warp on its scheduler, and of a full device on its memory.
        let warp_issue = steps * self.issue_ns() / thread_ns;
        let thread_slots = self.sms * self.threads_per_sm;
        // The cache has about twice the bandwidth of the memory.
        let gb_s = if cached {
            2.0 * self.memory_gb_s
        } else {
            self.memory_gb_s
        };
        let scheduler_warps = self.threads_per_sm / WARP / SCHEDULERS;
        let demand =
            |resident: f64| warp_issue * (resident * warps_per_block / SCHEDULERS).max(1.0);
        let per_sm = blocks / self.sms;

        let mut shape = Shape {
            slots,
            latency_ns: thread_ns * threads / thread_slots,
            issue: warp_issue * scheduler_warps,
            bandwidth: thread_slots * trips * trip_bytes / thread_ns / gb_s,
            crowding: if per_sm < 1.0 { demand(1.0) } else { 0.0 },
            tail_ns: 0.0,
            fixed: false,
            wave: (resident.blocks / blocks).min(1.0),
        };

        // The tail. Blocks run in whole waves per multiprocessor, at the pace of the longest thread ...
        let longest = (grid.chain_steps as f64 * threads / (grid.steps as f64).max(1.0)).max(1.0);
        let bandwidth = shape.slots * shape.bandwidth;
        let wave = |resident: f64| {
            thread_ns * longest * fourth_root(1.0 + fourth(demand(resident)) + fourth(bandwidth))
        };
        let most = per_sm.ceil();
        let rest = most % blocks_per_sm;
        let waves = (most / blocks_per_sm).floor() * wave(blocks_per_sm)
            + if rest > 0.0 { wave(rest) } else { 0.0 };
        let uneven = (waves - shape.body_ns()).max(0.0);
        // ... and the warps of a scheduler that compete for issue slots do not end together.
        let competing = (1.0 - 1.0 / demand(most.min(blocks_per_sm))).max(0.0);
        let ragged = self.ragged * steps * longest * self.issue_ns() * competing;
        shape.tail_ns = (uneven * uneven + ragged * ragged).sqrt();
        shape
    }

    pub(super) fn is_inline(&self, bytes: u64) -> bool {
        bytes as f64 <= self.inline_bytes
    }

    /// Returns the time of one upload of pinned memory on its engine when the other direction is idle, ns.
    pub fn upload_ns(&self, bytes: u64) -> f64 {
        let setup = if self.is_inline(bytes) {
            self.inline_setup_ns
        } else {
            self.upload_setup_ns
        };
        setup + bytes as f64 / self.link_gb_s
    }

    /// Returns the time of one download to pinned memory on its engine when the other direction is idle, ns.
    pub fn download_ns(&self, bytes: u64) -> f64 {
        self.download_setup_ns + bytes as f64 / self.link_gb_s
    }

    /// Returns the minimum time per pair of an upload and a download of this size when both directions are kept busy,
    /// ns.
    pub fn both_ways_ns(&self, bytes: u64) -> f64 {
        self.pair_ns(bytes, bytes)
    }

    /// Like [`Profile::both_ways_ns`], but for two sizes: the time of the shorter copy, stretched, plus the excess of the longer.
    pub(super) fn pair_ns(&self, upload_bytes: u64, download_bytes: u64) -> f64 {
        if self.is_inline(upload_bytes) {
            // These bypass the copy engines, so the two directions do not slow each other down.
            return self
                .upload_ns(upload_bytes)
                .max(self.download_ns(download_bytes));
        }
        if self.copy_engines < 2.0 {
            return self.upload_ns(upload_bytes) + self.download_ns(download_bytes);
        }
        let pair = |up: f64, down: f64, share: f64| up.min(down) / share + (up - down).abs();
        let data = |bytes: u64| bytes as f64 / self.link_gb_s;
        pair(
            self.upload_setup_ns,
            self.download_setup_ns,
            self.both_ways_setup,
        ) + pair(data(upload_bytes), data(download_bytes), self.both_ways)
    }

    /// Returns the time of a kernel that runs alone, without the gap before it, ns.
    pub fn kernel_alone_ns(&self, cost: &KernelCost) -> f64 {
        let shape = self.shape(cost);
        shape.body_ns() + shape.tail_ns
    }

    /// Returns the minimum time per kernel when kernels of this cost keep the device full and overlap each other's
    /// tails, ns.
    pub fn kernel_floor_ns(&self, cost: &KernelCost) -> f64 {
        self.shape(cost).floor_ns()
    }

    /// Returns the host cost of a call, ns.
    pub fn call_ns(&self, call: Call) -> f64 {
        match call {
            Call::Launch => self.launch_ns,
            Call::UploadAsync { bytes } if bytes as f64 <= self.inline_bytes => {
                self.copy_ns + bytes as f64 / self.stage_gb_s
            }
            Call::UploadAsync { .. } | Call::CopyAsync | Call::MemsetAsync => self.copy_ns,
            Call::Stage { bytes } => self.copy_ns + bytes as f64 / self.stage_gb_s,
            Call::Record => self.record_ns,
            Call::Wait => self.wait_ns,
            Call::Query => self.query_ns,
            Call::Sync => self.sync_ns,
            Call::HostFunc => self.host_func_ns,
            Call::MallocAsync => self.malloc_async_ns,
            Call::FreeAsync => self.free_async_ns,
            Call::Malloc => self.malloc_ns,
            Call::Free => self.free_ns,
            Call::GraphLaunch => self.graph_launch_ns,
            Call::Create => self.create_ns,
            Call::HostNs(ns) => ns as f64,
        }
    }
}
