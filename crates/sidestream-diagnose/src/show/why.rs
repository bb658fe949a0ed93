//! Explains how the launch configuration of a kernel may limit it, and what to measure where the configuration does not show
//! it.

use sidestream::check::counted;

use crate::findings::size;
use crate::model::{Launched, Limit, Room};

/// The maximum number of threads of a multiprocessor on data-center devices.
const THREADS: u32 = 2048;
/// An occupancy up to this is low.
const FEW_PERCENT: u32 = 50;
/// Blocks that fill less than this of their waves are uneven.
const EVEN_PERCENT: u64 = 80;
/// Warps with fewer active lanes than this are reported.
const LANES_PERCENT: u32 = 90;

/// The counters for what a launch does not show, over a whole kernel: accesses that are unaligned or scattered, bank conflicts,
/// and cache behaviour.
pub const COUNTERS: &str = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct,\
    l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum,lts__t_sector_hit_rate.pct";
/// The counter for the achieved occupancy.
const ACTIVE: &str = "sm__warps_active.avg.pct_of_peak_sustained_active";
/// The counters of which the one near 100 is the limit.
const THROUGHPUT: &str = "dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed";

/// Returns the reasons why a launch may limit its kernel on a device with this many multiprocessors, and the counters of Nsight
/// Compute to measure next. `None` where the trace does not state the launch configuration.
pub fn why(launched: &Launched, sms: Option<u32>) -> Option<(Vec<String>, &'static str)> {
    let product = |sizes: [u32; 3]| {
        let sizes = sizes.iter().map(|n| u64::from(*n));
        sizes.fold(1, u64::saturating_mul)
    };
    let blocks = product(launched.grid);
    let threads = u32::try_from(product(launched.block)).ok()?;
    if blocks == 0 || !(1..=1024).contains(&threads) {
        return None;
    }
    let mut why = Vec::new();
    why.extend(sms.and_then(|sms| uneven(blocks, sms.into())));
    why.extend(few_warps(launched, threads));
    let lanes = threads.next_multiple_of(32);
    if 100 * threads < LANES_PERCENT * lanes {
        why.push(format!(
            "blocks of {threads} threads leave {} lanes of their last warp empty",
            lanes - threads
        ));
    }
    let next = if why.is_empty() { THROUGHPUT } else { ACTIVE };
    Some((why, next))
}

/// Reports too few blocks for a device, or a last wave of them that does not fill it.
fn uneven(blocks: u64, sms: u64) -> Option<String> {
    if sms == 0 {
        return None;
    }
    if blocks < sms {
        return Some(format!(
            "the grid has {blocks} of the {sms} blocks that give each multiprocessor one: {} have nothing to do",
            sms - blocks
        ));
    }
    let rounds = blocks.div_ceil(sms);
    let filled_percent = blocks.saturating_mul(100) / rounds.saturating_mul(sms);
    (filled_percent < EVEN_PERCENT).then(|| {
        format!(
            "{blocks} blocks give {rounds} to some of the {sms} multiprocessors and {} to others: {filled_percent} % of \
             the device, if a multiprocessor takes longer for more blocks",
            blocks / sms
        )
    })
}

/// Reports too few concurrent warps, since no more blocks fit.
fn few_warps(launched: &Launched, threads: u32) -> Option<String> {
    let room = Room::of(threads, launched.registers.into(), launched.shared_bytes);
    let percent = 100 * room.blocks * threads.next_multiple_of(32) / THREADS;
    let by = match room.limit {
        Limit::Threads => return None,
        Limit::Blocks => format!("blocks of {threads} threads are small"),
        Limit::Registers => format!("{} registers a thread", launched.registers),
        Limit::Shared => format!(
            "{} of shared memory a block",
            size(launched.shared_bytes.into())
        ),
    };
    (percent <= FEW_PERCENT).then(|| {
        format!(
            "{by}: room for at most {} on a multiprocessor, {percent} % of {THREADS} threads",
            counted(room.blocks.into(), "block")
        )
    })
}
