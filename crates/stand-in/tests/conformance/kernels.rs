//! The kernels of the scenarios, and the contents of memory after them.

use std::sync::LazyLock;
use std::time::Duration;

use sidestream::buffer::{DeviceBuf, View, ViewMut};
use sidestream::explicit::{self, Arg, Region};
use sidestream::graph::{GraphBuilder, NodeId};
use sidestream::kernel::library::{self, CheckPattern, FillPattern, OverlapStep, VectorAdd};
use sidestream::kernel::{Grid, Kernel, Value};
use sidestream::ptx;
use sidestream::stream::Stream;

use crate::target::Target;

/// How long a stream is held where a missing wait is to be detected: the rest of a scenario takes microseconds.
pub const HOLD_NS: u64 = 2_000_000;

// SAFETY: each launch in this suite passes the length of its views, or less.
pub static FILL: LazyLock<Kernel<FillPattern>> =
    LazyLock::new(|| unsafe { library::fill_pattern() });
// SAFETY: as for `FILL`; the counter has one value.
pub static CHECK: LazyLock<Kernel<CheckPattern>> =
    LazyLock::new(|| unsafe { library::check_pattern() });
// SAFETY: as for `FILL`.
pub static ADD: LazyLock<Kernel<VectorAdd>> = LazyLock::new(|| unsafe { library::vector_add() });
// SAFETY: as for `FILL`.
pub static STEP: LazyLock<Kernel<OverlapStep>> =
    LazyLock::new(|| unsafe { library::overlap_step() });
static SPIN: LazyLock<Kernel<(Value<u64>,)>> = LazyLock::new(library::spin);

/// Returns a value that differs for every place and seed.
pub fn pattern(at: usize, seed: u32) -> u32 {
    library::pattern(at as u64, seed)
}

/// Returns the values of a buffer that was filled with a pattern.
pub fn patterned(len: usize, seed: u32) -> Vec<u32> {
    (0..len).map(|at| pattern(at, seed)).collect()
}

/// Returns the result of [`STEP`] for a value.
pub fn stepped(value: f32, work: u32) -> f32 {
    (0..work).fold(value, |v, _| v.mul_add(1.0001, 1e-4))
}

/// Returns a kernel that writes a number to an invalid address.
pub fn poke() -> Kernel<(Value<u64>, Value<u32>)> {
    // SAFETY: the kernel is not safe, and is launched only where the device is to be lost.
    let kernel = unsafe { Kernel::from_ptx(&ptx::FAULT, "poke") };
    kernel
        .and_on_host(|_, (address, _): (u64, u32)| panic!("no memory has the address {address:#x}"))
}

/// A kernel that keeps a stream busy for a given time.
#[derive(Clone, Copy)]
pub struct Spin {
    ns: u64,
}

/// Returns a kernel that keeps streams busy for this time.
pub fn spin(ns: u64) -> Spin {
    Spin { ns }
}

impl Spin {
    /// Holds a stream.
    pub fn hold(self, stream: &Stream) {
        stream.launch(&SPIN, Grid::new(1, 1), (self.ns,)).unwrap();
    }

    /// Holds a stream of the explicit style, where the launch may be captured.
    pub fn hold_explicit(self, stream: &explicit::Stream) {
        let args = [Arg::value(self.ns)];
        // SAFETY: the kernel takes a number and touches no memory.
        unsafe { stream.launch(&SPIN, Grid::new(1, 1), &args) }.unwrap();
    }

    /// Adds the kernel to a graph as a node.
    pub fn node(self, nodes: &mut GraphBuilder) -> NodeId {
        nodes.launch(&SPIN, Grid::new(1, 1), (self.ns,)).unwrap()
    }
}

/// Calls `round` with a stream held for longer and longer, until it observes the effect in time: a slow host may miss
/// what happens within a short hold. Returns false if it never does.
pub fn is_seen_in_time(round: impl FnMut(Spin) -> bool) -> bool {
    let holds_ns = [20_000_000, 100_000_000, 500_000_000];
    holds_ns.into_iter().map(spin).any(round)
}

/// Returns a limit that passes within a hold. The stand-in takes no real time for its work, but its limits are real:
/// only a limit that has already passed can be distinguished from one that never does.
pub fn short(target: Target) -> Duration {
    match target {
        Target::StandIn => Duration::ZERO,
        Target::Sim | Target::Cuda => Duration::from_millis(1),
    }
}

/// Writes a pattern, in stream order.
pub fn fill(stream: &Stream, to: ViewMut<'_, u32>, seed: u32) {
    let (grid, n) = (Grid::cover(to.len(), 256), to.len() as u64);
    stream.launch(&FILL, grid, (to, n, seed)).unwrap();
}

/// Writes a pattern in the explicit style.
///
/// # Safety
/// As [`explicit::Stream::launch`].
pub unsafe fn fill_explicit(stream: &explicit::Stream, to: Region<'_>, seed: u32) {
    let n = to.size_bytes() / 4;
    let args = [Arg::Writes(to), Arg::value(n), Arg::value(seed)];
    // SAFETY: these are the kernel's arguments; the caller promises the rest.
    unsafe { stream.launch(&FILL, Grid::cover(n as usize, 256), &args) }.unwrap();
}

/// Returns a buffer with a pattern whose work is complete.
pub fn filled(stream: &Stream, len: usize, seed: u32) -> DeviceBuf<u32> {
    let mut buffer = stream.alloc::<u32>(len).unwrap();
    fill(stream, buffer.view_mut(), seed);
    stream.synchronize().unwrap();
    buffer
}

/// Adds to `errors` how many of the values are not the pattern's.
pub fn check(stream: &Stream, from: View<'_, u32>, seed: u32, errors: &mut DeviceBuf<u32>) {
    let (grid, n) = (Grid::cover(from.len(), 256), from.len() as u64);
    let args = (from, n, seed, errors.view_mut());
    stream.launch(&CHECK, grid, args).unwrap();
}

/// Returns the contents of a buffer once all of its writes are complete.
pub fn values(stream: &Stream, from: View<'_, u32>) -> Vec<u32> {
    let mut host = vec![0; from.len()];
    stream.memcpy_d2h(from, &mut host).unwrap();
    host
}

/// Compares values with a pattern, and reports where they differ.
#[track_caller]
pub fn expect_pattern(found: &[u32], seed: u32) {
    let wrong = found.iter().enumerate();
    let wrong = wrong.filter(|&(at, &value)| value != pattern(at, seed));
    let wrong: Vec<(usize, u32)> = wrong.map(|(at, &value)| (at, value)).collect();
    let (first, count, len) = (wrong.first(), wrong.len(), found.len());
    assert!(
        count == 0,
        "{count} of {len} values are wrong, first {first:x?}"
    );
}
