//! Kernels that come with the library, for trying out, measuring and testing a device.
//!
//! Each runs on a GPU and, in Rust, on the simulated one, with bit-identical results. Some kernels take the number of
//! values as an argument of the launch. The type system cannot check that the views have that many values, so making
//! such a kernel is `unsafe`.
//!
//! ```
//! use sidestream::device::Device;
//! use sidestream::kernel::{Grid, library};
//!
//! let device = Device::open("sim:h200")?;
//! let stream = device.stream("compute")?;
//! // SAFETY: each launch is passed the length of its views.
//! let add = unsafe { library::vector_add() };
//! let (a, b) = (stream.alloc_zeroed::<f32>(1000)?, stream.alloc_zeroed::<f32>(1000)?);
//! let mut sum = stream.alloc(1000)?;
//! stream.launch(&add, Grid::cover(1000, 256), (a.view(), b.view(), sum.view_mut(), 1000))?;
//! # stream.synchronize()?;
//! # Ok::<(), sidestream::error::Error>(())
//! ```

use smallvec::SmallVec;

use super::part::NodeArg;
use super::{Grid, Kernel, KernelArgs, KernelCost, Passed, Read, Value, Work, Write};
use crate::backend::{Arg, HostArg};
use crate::ptx;

/// Signature of [`vector_add`]: `(a, b, sum, n)`.
pub type VectorAdd = (Read<f32>, Read<f32>, Write<f32>, Value<u64>);
/// Signature of [`overlap_step`]: `(input, output, n, work)`.
pub type OverlapStep = (Read<f32>, Write<f32>, Value<u64>, Value<u32>);
/// Signature of [`dense`]: `(x, w, y, rows, width)`.
pub type Dense = (Read<f32>, Read<f32>, Write<f32>, Value<u64>, Value<u64>);
/// Signature of [`fill_pattern`]: `(to, n, seed)`.
pub type FillPattern = (Write<u32>, Value<u64>, Value<u32>);
/// Signature of [`copy_piece`]: `(from, to, bytes)`.
pub type CopyPiece = (Read<u8>, Write<u8>, Value<u64>);
/// Signature of [`check_pattern`]: `(from, n, seed, errors)`.
pub type CheckPattern = (Read<u32>, Value<u64>, Value<u32>, Write<u32>);

/// Does nothing: measures the cost of a launch without work.
pub fn empty() -> Kernel<()> {
    // SAFETY: the entry has no parameters and touches no memory.
    let kernel = unsafe { Kernel::<()>::from_ptx(&ptx::EMPTY, "empty") };
    kernel.and_on_host(|_, ()| ()).with_cost(|_| brief(0))
}

/// Keeps the device busy: each block runs for this many nanoseconds from its own start. One block of one thread is
/// enough.
pub fn spin() -> Kernel<(Value<u64>,)> {
    // SAFETY: the entry takes one number of eight bytes and touches no memory.
    let kernel = unsafe { Kernel::<(Value<u64>,)>::from_ptx(&ptx::SPIN, "spin") };
    kernel
        .and_on_host(|_, _| ())
        .with_cost_of(|grid, args| KernelCost::Blocks {
            blocks: all(grid.blocks),
            threads_per_block: u32::try_from(all(grid.threads)).unwrap_or(u32::MAX),
            block_ns: number(args, 0),
        })
}

/// Stops the device with an error. All later work fails, on a GPU until the process ends.
pub fn trap() -> Kernel<()> {
    // SAFETY: the entry has no parameters and touches no memory.
    let kernel = unsafe { Kernel::<()>::from_ptx(&ptx::FAULT, "trap") };
    kernel
        .and_on_host(|_, ()| panic!("the kernel `trap` always fails"))
        .with_cost(|_| brief(0))
}

/// `(a, b, sum, n)`: `sum = a + b`, for the first `n` values.
///
/// # Safety
/// Each launch passes an `n` that is at most the length of each of its views.
pub unsafe fn vector_add() -> Kernel<VectorAdd> {
    // SAFETY: the entry has these parameters, and touches the first `n` values of each view, which exist by the
    // caller's promise.
    let kernel = unsafe { Kernel::from_ptx(&ptx::VECTOR_ADD, "vector_add") };
    each_value(kernel, |args| (number(args, 3), 4, 1)).and_on_host(
        |_, (a, b, sum, n): (&[f32], &[f32], &mut [f32], u64)| {
            for ((sum, a), b) in sum.iter_mut().zip(a).zip(b).take(at_most(n)) {
                *sum = a + b;
            }
        },
    )
}

/// `(input, output, n, work)`: applies `work` steps `v = v * 1.0001 + 0.0001`, rounded once per step, to each of the
/// first `n` values. Used to measure pipelines.
///
/// # Safety
/// Each launch passes an `n` that is at most the length of each of its views.
pub unsafe fn overlap_step() -> Kernel<OverlapStep> {
    // SAFETY: as for `vector_add`.
    let kernel = unsafe { Kernel::from_ptx(&ptx::OVERLAP_STEP, "overlap_step") };
    each_value(kernel, |args| (number(args, 2), 4, number(args, 3))).and_on_host(
        |_, (input, output, n, work): (&[f32], &mut [f32], u64, u32)| {
            for (to, from) in output.iter_mut().zip(input).take(at_most(n)) {
                *to = (0..work).fold(*from, |v, _| v.mul_add(1.0001, 1e-4));
            }
        },
    )
}

/// `(x, w, y, rows, width)`: a layer of a perceptron, `y = max(0, x · w)`, for `rows` rows of `width` values; `w` is
/// `width` by `width`. Used to measure batches of requests, with the grid of [`dense_grid`]. A result depends neither
/// on the grid nor on other rows.
///
/// # Safety
/// Each launch has blocks of 256 threads, and views of `rows · width`, `width · width` and `rows · width` values.
pub unsafe fn dense() -> Kernel<Dense> {
    // SAFETY: the entry has these parameters, and touches only values that exist by the caller's promise.
    let kernel = unsafe { Kernel::from_ptx(&ptx::DENSE, "dense") };
    kernel
        .with_cost_of(|grid, args| dense_cost(all(grid.blocks), number(args, 3), number(args, 4)))
        .and_on_host(
            |_, (x, w, y, rows, width): (&[f32], &[f32], &mut [f32], u64, u64)| {
                let width = at_most(width).max(1);
                let rows = x
                    .chunks_exact(width)
                    .zip(y.chunks_exact_mut(width))
                    .take(at_most(rows));
                for (x, y) in rows {
                    y.fill(0.0);
                    for (x, w) in x.iter().zip(w.chunks_exact(width)) {
                        for (y, w) in y.iter_mut().zip(w) {
                            *y = x.mul_add(*w, *y);
                        }
                    }
                    y.iter_mut().for_each(|y| *y = y.max(0.0));
                }
            },
        )
}

/// Returns the grid with which [`dense`] is fastest: a block for each sixteen rows by sixteen columns.
pub fn dense_grid(rows: u64, width: u64) -> Grid {
    let tiles = dense_tiles(rows, width).max(1);
    Grid::new(u32::try_from(tiles).unwrap_or(u32::MAX), DENSE_THREADS)
}

/// Returns the cost of [`dense`] on the simulated GPU with this many blocks.
pub fn dense_cost(blocks: u64, rows: u64, width: u64) -> KernelCost {
    let tiles = dense_tiles(rows, width);
    let per_block = u64::from(DENSE_THREADS);
    let chain_steps = tiles.div_ceil(blocks.max(1)).saturating_mul(width);
    // For each step along the width of a tile, a block loads sixteen values of the rows and sixteen weights, from the
    // cache.
    let loads = tiles.saturating_mul(width).saturating_mul(2 * 16 * 4);
    KernelCost::Grid(Work {
        blocks: blocks.max(1),
        threads_per_block: DENSE_THREADS,
        steps: tiles.saturating_mul(per_block).saturating_mul(width),
        chain_steps,
        bytes: loads.saturating_add(rows.saturating_mul(width).saturating_mul(4)),
        access_bytes: 4,
    })
}

const DENSE_THREADS: u32 = 256;

fn dense_tiles(rows: u64, width: u64) -> u64 {
    rows.div_ceil(16).saturating_mul(width.div_ceil(16))
}

/// `(to, n, seed)`: writes [`pattern`] to the first `n` values.
///
/// # Safety
/// Each launch passes an `n` that is at most the length of its view.
pub unsafe fn fill_pattern() -> Kernel<FillPattern> {
    // SAFETY: as for `vector_add`.
    let kernel = unsafe { Kernel::from_ptx(&ptx::PATTERN, "fill_pattern") };
    each_value(kernel, |args| (number(args, 1), 2, 8)).and_on_host(
        |_, (to, n, seed): (&mut [u32], u64, u32)| {
            for (at, to) in (0..n).zip(to) {
                *to = pattern(at, seed);
            }
        },
    )
}

/// `(from, n, seed, errors)`: adds to `errors[0]` the number of the first `n` values that differ from [`pattern`].
///
/// # Safety
/// Each launch passes an `n` that is at most the length of its first view, and its last view has at least one value.
pub unsafe fn check_pattern() -> Kernel<CheckPattern> {
    // SAFETY: as for `vector_add`; the counter exists by the caller's promise too.
    let kernel = unsafe { Kernel::from_ptx(&ptx::PATTERN, "check_pattern") };
    each_value(kernel, |args| (number(args, 1), 2, 8)).and_on_host(
        |_, (from, n, seed, errors): (&[u32], u64, u32, &mut [u32])| {
            let values = (0..n).zip(from);
            let wrong = values.filter(|&(at, &found)| found != pattern(at, seed));
            errors[0] = errors[0].wrapping_add(wrong.count() as u32);
        },
    )
}

/// `(from, to, bytes)`: copies the first `bytes` bytes. In the explicit style either side may be page-locked host
/// memory, which the kernel accesses over the link: a few bytes arrive sooner than by a copy engine, and do not queue
/// behind a long copy.
///
/// # Safety
/// Each launch passes a number of bytes that is at most the length of each of its views.
pub unsafe fn copy_piece() -> Kernel<CopyPiece> {
    // SAFETY: as for `vector_add`.
    let kernel = unsafe { Kernel::from_ptx(&ptx::GATHER, "copy_piece") };
    each_value(kernel, |args| (number(args, 2).div_ceil(4), 4, 1)).and_on_host(
        |_, (from, to, bytes): (&[u8], &mut [u8], u64)| {
            for (to, from) in to.iter_mut().zip(from).take(at_most(bytes)) {
                *to = *from;
            }
        },
    )
}

/// A stand-in for any kernel of which only the accesses and the duration are known. The bytes that it writes depend
/// on its seed and on all bytes that it read, so a kernel that ran too early or too late shows in the result. It
/// reads when it starts and writes when it ends. [`mix_args`](crate::explicit::mix_args) makes its arguments; it is
/// launched with one block of up to 1,024 threads, and only in the explicit style.
pub fn mix() -> Kernel<Mix> {
    // SAFETY: the safe API cannot launch it, because no code outside this module can construct a `Mix`.
    let kernel = unsafe { Kernel::<Mix>::from_ptx(&ptx::MIX, "mix") };
    kernel
        .and_on_host(|_, args: &mut [HostArg]| mixes(args))
        .with_cost_of(|_, args| brief(number(args, 0)))
}

/// The maximum number of memory regions that [`mix`] can touch.
pub const MIX_PIECES: usize = 12;

/// Signature of [`mix`]: see [`mix_args`](crate::explicit::mix_args).
pub struct Mix(());

impl KernelArgs for Mix {
    type Access<'a> = Mix;
    type Node = Mix;
    type Host<'a> = &'a mut [HostArg];

    fn pass<'a>(_: Mix, _: &mut Passed<'a>) {}

    fn pass_node(_: Mix, _: &mut SmallVec<[NodeArg; 6]>) {}

    fn host(args: &mut [HostArg]) -> Option<&mut [HostArg]> {
        Some(args)
    }
}

fn mixes(args: &mut [HostArg]) {
    let count = |at: usize| match args.get(at) {
        Some(HostArg::Scalar { bytes, .. }) => u64::from_le_bytes(*bytes),
        _ => 0,
    };
    let (seed, reads, writes) = (count(1), count(2) as usize, count(3) as usize);
    // Each region is followed by its length.
    let mut memory = args.iter_mut().skip(4).step_by(2);
    let mut seen = scramble(seed);
    for piece in memory.by_ref().take(reads) {
        if let HostArg::Memory(piece) = piece {
            seen = mixed(seen, piece.bytes());
        }
    }
    for piece in memory.take(writes) {
        if let HostArg::Memory(piece) = piece {
            mixture(seen, piece.bytes_mut());
        }
    }
}

/// Returns the state of [`mix`] after it has also read these bytes.
pub fn mixed(seen: u64, bytes: &[u8]) -> u64 {
    let word = |(at, bytes): (u64, &[u8])| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let place = at.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        scramble(u64::from_le_bytes(word).wrapping_add(place))
    };
    let words = (0..).zip(bytes.chunks(8)).map(word);
    let sum = words.fold(0, u64::wrapping_add);
    scramble(seen ^ sum).wrapping_add(bytes.len() as u64)
}

/// Writes the bytes that [`mix`] writes in this state.
pub fn mixture(seen: u64, to: &mut [u8]) {
    for (at, to) in (0..).zip(to.chunks_mut(8)) {
        let word = scramble(seen.wrapping_add(at));
        to.copy_from_slice(&word.to_le_bytes()[..to.len()]);
    }
}

/// Scrambles a word: every bit of the word affects every bit of the result.
pub fn scramble(x: u64) -> u64 {
    let x = (x ^ (x >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    let x = (x ^ (x >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    x ^ (x >> 33)
}

/// Returns the value at a position: every bit of the position and of the seed affects every bit of the value.
pub fn pattern(at: u64, seed: u32) -> u32 {
    let mut x = (at as u32).wrapping_mul(0x9E37_79B1);
    x = x.wrapping_add((at >> 32) as u32).wrapping_add(seed);
    x = (x ^ (x >> 16)).wrapping_mul(0x85EB_CA6B);
    x = (x ^ (x >> 13)).wrapping_mul(0xC2B2_AE35);
    x ^ (x >> 16)
}

// ------------------------------------------------------------------ costs of launches

/// Returns a cost of this duration that occupies almost nothing of the device.
fn brief(ns: u64) -> KernelCost {
    KernelCost::Duration { ns, share: 0.001 }
}

/// Gives a kernel that processes values of four bytes its cost. `size` reads from the arguments the number of values,
/// the bytes that each moves one way on average, and its number of steps.
fn each_value<A: KernelArgs>(
    kernel: Kernel<A>,
    size: impl Fn(&[Arg]) -> (u64, u32, u64) + Send + Sync + 'static,
) -> Kernel<A> {
    kernel.with_cost_of(move |grid, args| {
        let (count, bytes, steps) = size(args);
        let (blocks, threads) = (grid.blocks[0], grid.threads[0]);
        KernelCost::Grid(Work::elementwise(
            count,
            bytes,
            steps,
            threads,
            blocks.into(),
        ))
    })
}

/// Returns the product of three dimensions.
fn all(of: [u32; 3]) -> u64 {
    let each = of.into_iter().map(u64::from);
    each.fold(1, u64::saturating_mul)
}

/// Returns the argument at an index, which is a number by the kernel's type.
fn number(args: &[Arg], at: usize) -> u64 {
    match args.get(at) {
        Some(Arg::Scalar { bytes, .. }) => u64::from_le_bytes(*bytes),
        _ => 0,
    }
}

fn at_most(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
