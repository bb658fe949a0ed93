//! Work and a profile give the coefficients of the fluid model; see [`super`] for the model.

use super::profile::Profile;
use super::work::{Call, Grid, KernelCost};

const WARP: f64 = 32.0;
/// Warp schedulers of a multiprocessor; four on every NVIDIA design since 2017.
const SCHEDULERS: f64 = 4.0;

/// A kernel as the compute engine sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    /// Share of the device's thread slots that it can fill.
    pub slots: f64,
    /// Arithmetic time with all slots of the device and no competition for issue, ns.
    pub compute_ns: f64,
    /// Memory time with all slots of the device and no competition for bandwidth, ns.
    pub memory_ns: f64,
    /// Demand on issue when it has all slots, 1 = all that there is.
    pub issue: f64,
    /// Demand on memory bandwidth when it has all slots, 1 = all that there is.
    pub bandwidth: f64,
    /// Demand on issue inside its own multiprocessors: few big blocks fill a few of them.
    pub crowding: f64,
    /// Time at its end in which it runs and leaves its slots to others, ns.
    pub tail_ns: f64,
    /// A known duration: no competition but for slots.
    pub fixed: bool,
}

/// Slow-down from a demand of `d` on something of which there is 1: none far below, `d` far above, soft between.
pub(super) fn slowdown(d: f64) -> f64 {
    let square = d * d;
    (1.0 + square * square).sqrt().sqrt()
}

/// Two times that overlap in part: the longer one rules.
fn overlap(a: f64, b: f64) -> f64 {
    (a * a + b * b).sqrt()
}

impl Shape {
    /// Fraction of the kernel done per ns with `slots` of the device, under these demands of all running kernels.
    pub fn rate(&self, slots: f64, issue: f64, bandwidth: f64) -> f64 {
        if self.fixed {
            return slots / self.compute_ns;
        }
        let compute = self.compute_ns * slowdown(issue.max(self.crowding));
        let memory = self.memory_ns * slowdown(bandwidth);
        slots / overlap(compute, memory)
    }

    /// Time with its own slots and no neighbour, without the tail, ns.
    pub fn body_ns(&self) -> f64 {
        1.0 / self.rate(
            self.slots,
            self.slots * self.issue,
            self.slots * self.bandwidth,
        )
    }

    /// Time per kernel when equal neighbours fill the device, ns.
    pub fn floor_ns(&self) -> f64 {
        1.0 / self.rate(1.0, self.issue, self.bandwidth)
    }
}

impl Profile {
    pub(super) fn step_ns(&self) -> f64 {
        self.chain_cycles / self.clock_ghz
    }

    fn issue_ns(&self) -> f64 {
        self.issue_cycles / self.clock_ghz
    }

    fn thread_slots(&self) -> f64 {
        self.sms * self.threads_per_sm
    }

    /// Warps of one scheduler, at its most, as a demand on issue.
    fn issue_of_warps(&self, warps: f64) -> f64 {
        warps * self.issue_ns() / self.step_ns()
    }

    pub(super) fn shape(&self, cost: &KernelCost) -> Shape {
        match cost {
            KernelCost::Duration { ns, share } => {
                let slots = if *share > 0.0 { share.min(1.0) } else { 1.0 };
                let compute_ns = (*ns as f64).max(1.0) * slots;
                Shape {
                    slots,
                    compute_ns,
                    memory_ns: 0.0,
                    issue: 0.0,
                    bandwidth: 0.0,
                    crowding: 0.0,
                    tail_ns: 0.0,
                    fixed: true,
                }
            }
            KernelCost::Grid(grid) => self.grid_shape(grid),
        }
    }

    fn grid_shape(&self, grid: &Grid) -> Shape {
        let threads_per_block = f64::from(grid.threads_per_block.max(1));
        let blocks = grid.blocks.max(1) as f64;
        // Threads that never fit as a whole block are lost to this kernel.
        let blocks_per_sm = (self.threads_per_sm / threads_per_block)
            .floor()
            .clamp(1.0, self.blocks_per_sm);
        let occupancy = (blocks_per_sm * threads_per_block / self.threads_per_sm).min(1.0);
        let slots = (blocks / (self.sms * blocks_per_sm)).min(1.0) * occupancy;
        let access_bytes = f64::from(grid.access_bytes.max(1));
        let bytes = grid.bytes as f64;
        let threads = blocks * threads_per_block;

        // Arithmetic: every thread takes a step after the other; accesses cost issue as well.
        let extra = bytes / (2.0 * access_bytes) * self.access_steps;
        let steps = grid.steps as f64 + extra;
        let chain = (grid.chain_steps as f64).max(grid.steps as f64 / threads) + extra / threads;
        let compute_ns = steps * self.step_ns() / self.thread_slots();
        let full_issue = self.issue_of_warps(self.threads_per_sm / WARP / SCHEDULERS);

        // Memory: one load and one store in flight per thread (Little's law), up to the bandwidth.
        let cached = bytes <= self.l2_mib * 1024.0 * 1024.0;
        let latency_ns = if cached {
            self.l2_latency_ns
        } else {
            self.memory_latency_ns
        };
        // The cache serves about twice the bandwidth of the memory behind it.
        let gb_s = if cached {
            2.0 * self.memory_gb_s
        } else {
            self.memory_gb_s
        };
        let in_flight_gb_s = self.thread_slots() * 2.0 * access_bytes / latency_ns;
        let memory_ns = bytes / in_flight_gb_s;

        // A memory-bound kernel leaves issue to others, and the other way round.
        let both = (compute_ns + memory_ns).max(f64::MIN_POSITIVE);
        let issue = full_issue * compute_ns / both;
        let bandwidth = in_flight_gb_s / gb_s * memory_ns / both;

        let warps_per_block = (threads_per_block / WARP).ceil();
        let per_sm = blocks / self.sms;
        let local = per_sm.clamp(1.0, blocks_per_sm) * warps_per_block / SCHEDULERS;
        let crowding = if per_sm < 1.0 {
            self.issue_of_warps(local.max(1.0)) * compute_ns / both
        } else {
            0.0
        };

        let mut shape = Shape {
            slots,
            compute_ns,
            memory_ns,
            issue,
            bandwidth,
            crowding,
            tail_ns: 0.0,
            fixed: false,
        };
        if compute_ns <= 0.0 && memory_ns <= 0.0 {
            // An empty kernel: its time is the gap before it. Something positive keeps the rate finite.
            shape.compute_ns = 1e-3 * slots;
            return shape;
        }
        shape.tail_ns = self.tail_ns(&shape, chain, blocks_per_sm, warps_per_block, per_sm.ceil());
        shape
    }

    /// What a kernel takes at its end beyond its share of the device: blocks come in whole waves per multiprocessor,
    /// and the warps of a scheduler that compete for issue do not end together.
    fn tail_ns(
        &self,
        shape: &Shape,
        chain: f64,
        blocks_per_sm: f64,
        warps_per_block: f64,
        most_blocks: f64,
    ) -> f64 {
        let wave = |resident: f64| {
            let demand = self.issue_of_warps((resident * warps_per_block / SCHEDULERS).max(1.0));
            chain * self.step_ns() * slowdown(demand)
        };
        let full = (most_blocks / blocks_per_sm).floor();
        let rest = most_blocks - full * blocks_per_sm;
        let waves = full * wave(blocks_per_sm) + if rest > 0.0 { wave(rest) } else { 0.0 };
        let alone = shape.compute_ns / shape.slots
            * slowdown((shape.slots * shape.issue).max(shape.crowding));
        let uneven = (waves - alone).max(0.0);
        let demand =
            self.issue_of_warps(most_blocks.min(blocks_per_sm) * warps_per_block / SCHEDULERS);
        let ragged = self.ragged * chain * self.issue_ns() * (1.0 - 1.0 / demand).max(0.0);
        overlap(uneven, ragged)
    }

    /// Time of one upload of pinned memory on its engine when the other direction is idle, ns.
    pub fn upload_ns(&self, bytes: u64) -> f64 {
        self.upload_setup_ns + bytes as f64 / self.link_gb_s
    }

    /// Time of one download to pinned memory on its engine when the other direction is idle, ns.
    pub fn download_ns(&self, bytes: u64) -> f64 {
        self.download_setup_ns + bytes as f64 / self.link_gb_s
    }

    /// Least time per pair when uploads and downloads of this size run one after the other in both directions at once, ns.
    pub fn both_ways_ns(&self, bytes: u64) -> f64 {
        self.pair_ns(bytes, bytes)
    }

    /// The same for two sizes: the shorter copy, stretched, and what the longer one has more.
    pub(super) fn pair_ns(&self, upload_bytes: u64, download_bytes: u64) -> f64 {
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

    /// Time of a kernel that runs alone, without the gap before it, ns.
    pub fn kernel_alone_ns(&self, cost: &KernelCost) -> f64 {
        let shape = self.shape(cost);
        shape.body_ns() + shape.tail_ns
    }

    /// Least time per kernel when kernels of this cost keep the device full and fill each other's tails, ns.
    pub fn kernel_floor_ns(&self, cost: &KernelCost) -> f64 {
        self.shape(cost).floor_ns()
    }

    /// Host cost of a call, ns.
    pub fn call_ns(&self, call: Call) -> f64 {
        match call {
            Call::Launch => self.launch_ns,
            Call::CopyAsync | Call::MemsetAsync => self.copy_ns,
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
