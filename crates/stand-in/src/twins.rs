//! The kernels in Rust. The simulated machine cannot run PTX: a launch of an entry runs its twin here, which has the
//! same name, parameters and results.
//!
//! The sources of the kernels are in `kernels/`; those of `sidestream-images` are in its own folder, and their twins
//! in [`images`].

mod images;

use std::panic::resume_unwind;
use std::sync::LazyLock;

use sidestream::backend::{Address, Arg, Grid, HostArg};
use sidestream::engine::{self, KernelCost, Profile};
use sidestream::op::Mode;

use crate::memory::{Memory, Reach};

/// A kernel in Rust.
pub struct Twin {
    pub name: &'static str,
    /// Size of each parameter in bytes.
    pub params: &'static [u64],
    /// Converts these parameters, in words of eight bytes, to the machine's arguments.
    pub args: fn(&[u64], &View<'_>) -> Vec<Arg>,
    pub host: fn(Grid, &mut [HostArg]),
    /// Computes the cost; without it the kernel is bound by the bytes that it touches.
    pub cost: Option<fn(Grid, &[Arg]) -> KernelCost>,
}

/// The memory that a launch can access.
pub struct View<'a> {
    pub memory: &'a Memory,
    pub reach: Reach<'a>,
}

/// Returns the twin of an entry.
pub fn of(name: &str) -> Option<&'static Twin> {
    let all = TWINS.iter().chain(images::TWINS);
    all.into_iter().find(|twin| twin.name == name)
}

const TWINS: &[Twin] = &[
    Twin {
        name: "empty",
        params: &[],
        args: |_, _| Vec::new(),
        host: |_, _| {},
        cost: Some(|_, _| lasts(1)),
    },
    Twin {
        name: "spin",
        params: &[8],
        args: |values, _| vec![number(values[0], 8)],
        host: |_, _| {},
        cost: Some(|grid, args| KernelCost::Blocks {
            blocks: product(grid.blocks),
            threads_per_block: product(grid.threads).min(1024) as u32,
            block_ns: value(args.first()),
        }),
    },
    Twin {
        name: "overlap_step",
        params: &[8, 8, 8, 4],
        args: |values, view| {
            let bytes = values[2].saturating_mul(4);
            vec![
                view.bytes(values[0], bytes, Mode::Read),
                view.bytes(values[1], bytes, Mode::Write),
                number(values[2], 8),
                number(values[3], 4),
            ]
        },
        host: overlap_step,
        cost: Some(|grid, args| elementwise(grid, value(args.get(2)), value(args.get(3)))),
    },
    Twin {
        name: "vector_add",
        params: &[8, 8, 8, 8],
        args: |values, view| {
            let bytes = values[3].saturating_mul(4);
            vec![
                view.bytes(values[0], bytes, Mode::Read),
                view.bytes(values[1], bytes, Mode::Read),
                view.bytes(values[2], bytes, Mode::Write),
            ]
        },
        host: vector_add,
        cost: None,
    },
    Twin {
        name: "dense",
        params: &[8, 8, 8, 8, 8],
        args: |values, view| {
            let of_rows = values[3].saturating_mul(values[4]).saturating_mul(4);
            let of_w = values[4].saturating_mul(values[4]).saturating_mul(4);
            vec![
                view.bytes(values[0], of_rows, Mode::Read),
                view.bytes(values[1], of_w, Mode::Read),
                view.bytes(values[2], of_rows, Mode::Write),
                number(values[4], 8),
            ]
        },
        host: dense,
        cost: None,
    },
    Twin {
        name: "fill_pattern",
        params: &[8, 8, 4],
        args: |values, view| {
            let bytes = values[1].saturating_mul(4);
            vec![
                view.bytes(values[0], bytes, Mode::Write),
                number(values[2], 4),
            ]
        },
        host: fill_pattern,
        cost: None,
    },
    Twin {
        name: "check_pattern",
        params: &[8, 8, 4, 8],
        args: |values, view| {
            let bytes = values[1].saturating_mul(4);
            vec![
                view.bytes(values[0], bytes, Mode::Read),
                number(values[2], 4),
                view.bytes(values[3], 4, Mode::Write),
            ]
        },
        host: check_pattern,
        cost: None,
    },
    Twin {
        name: "gather",
        params: &[8, 4],
        args: gather_args,
        host: gather,
        cost: Some(|_, args| gather_cost(args)),
    },
    Twin {
        name: "copy_piece",
        params: &[8, 8, 8],
        args: |values, view| {
            vec![
                view.bytes(values[0], values[2], Mode::Read),
                view.bytes(values[1], values[2], Mode::Write),
            ]
        },
        host: copy_piece,
        cost: Some(|_, args| gather_cost(args)),
    },
    Twin {
        name: "mix",
        params: &MIX_PARAMS,
        args: mix_args,
        host: mix,
        cost: Some(|_, args| lasts(value(args.first()))),
    },
    Twin {
        name: "poke",
        params: &[8, 4],
        args: |values, view| vec![view.bytes(values[0], 4, Mode::Write), number(values[1], 4)],
        host: poke,
        cost: Some(|_, _| lasts(1)),
    },
    Twin {
        name: "trap",
        params: &[],
        args: |_, _| Vec::new(),
        host: |_, _| trap("it executed `trap`"),
        cost: Some(|_, _| lasts(1)),
    },
    // The entries of the conformance suite, `tests/conformance/entries.ptx`.
    Twin {
        name: "sizes",
        params: &[8, 1, 2, 4, 8, 8],
        args: |values, view| {
            let mut args = vec![view.bytes(values[0], 40, Mode::Write)];
            args.extend(values[1..].iter().map(|&value| number(value, 8)));
            args
        },
        host: sizes,
        cost: None,
    },
    Twin {
        name: "places",
        params: &[8, 8],
        args: |values, view| vec![view.bytes(values[0], values[1].saturating_mul(4), Mode::Write)],
        host: places,
        cost: None,
    },
    Twin {
        name: "turned",
        params: &[8, 8],
        args: |values, view| vec![view.bytes(values[0], values[1].saturating_mul(4), Mode::Write)],
        host: turned,
        cost: None,
    },
];

// ------------------------------------------------------------------ the kernels

fn overlap_step(_: Grid, args: &mut [HostArg]) {
    let [HostArg::Memory(from), HostArg::Memory(to), _, work] = args else {
        return;
    };
    let work = scalar(work);
    let from = from.bytes().as_chunks::<4>().0;
    for (to, from) in to.bytes_mut().as_chunks_mut::<4>().0.iter_mut().zip(from) {
        let mut v = f32::from_le_bytes(*from);
        for _ in 0..work {
            v = v.mul_add(1.0001, 1e-4);
        }
        *to = v.to_le_bytes();
    }
}

fn dense(_: Grid, args: &mut [HostArg]) {
    let [
        HostArg::Memory(x),
        HostArg::Memory(w),
        HostArg::Memory(y),
        width,
    ] = args
    else {
        return;
    };
    let width = usize::try_from(scalar(width)).unwrap_or(usize::MAX).max(1);
    let (x, w) = (x.bytes().as_chunks::<4>().0, w.bytes().as_chunks::<4>().0);
    let y = y.bytes_mut().as_chunks_mut::<4>().0;
    for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
        for (column, y) in y.iter_mut().enumerate() {
            let products = x.iter().zip(w[column..].iter().step_by(width));
            let sum = products.fold(0.0f32, |sum, (x, w)| {
                f32::from_le_bytes(*x).mul_add(f32::from_le_bytes(*w), sum)
            });
            *y = sum.max(0.0).to_le_bytes();
        }
    }
}

fn vector_add(_: Grid, args: &mut [HostArg]) {
    let [HostArg::Memory(a), HostArg::Memory(b), HostArg::Memory(sum)] = args else {
        return;
    };
    let (a, b) = (a.bytes().as_chunks::<4>().0, b.bytes().as_chunks::<4>().0);
    let sum = sum.bytes_mut().as_chunks_mut::<4>().0;
    for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
        *sum = (f32::from_le_bytes(*a) + f32::from_le_bytes(*b)).to_le_bytes();
    }
}

fn fill_pattern(_: Grid, args: &mut [HostArg]) {
    let [HostArg::Memory(to), seed] = args else {
        return;
    };
    let seed = scalar(seed) as u32;
    let to = to.bytes_mut().as_chunks_mut::<4>().0;
    for (at, to) in (0..).zip(to) {
        *to = pattern(at, seed).to_le_bytes();
    }
}

fn check_pattern(_: Grid, args: &mut [HostArg]) {
    let [HostArg::Memory(from), seed, HostArg::Memory(errors)] = args else {
        return;
    };
    let seed = scalar(seed) as u32;
    let from = (0..).zip(from.bytes().as_chunks::<4>().0);
    let wrong = from.filter(|&(at, word)| u32::from_le_bytes(*word) != pattern(at, seed));
    let wrong = wrong.count() as u32;
    for errors in errors.bytes_mut().as_chunks_mut::<4>().0 {
        *errors = u32::from_le_bytes(*errors)
            .wrapping_add(wrong)
            .to_le_bytes();
    }
}

/// As in `kernels/pattern.cu`.
fn pattern(at: u64, seed: u32) -> u32 {
    let x = (at as u32).wrapping_mul(0x9E37_79B1);
    let x = x.wrapping_add((at >> 32) as u32).wrapping_add(seed);
    let x = (x ^ (x >> 16)).wrapping_mul(0x85EB_CA6B);
    let x = (x ^ (x >> 13)).wrapping_mul(0xC2B2_AE35);
    x ^ (x >> 16)
}

/// Time, seed, numbers of pieces to read and to write; then twelve pieces.
const MIX_PARAMS: [u64; 28] = {
    let mut params = [8; 28];
    (params[2], params[3]) = (4, 4);
    params
};

fn mix_args(values: &[u64], view: &View<'_>) -> Vec<Arg> {
    let (reads, writes) = (values[2] as usize, values[3] as usize);
    let mut args: Vec<Arg> = values[..4].iter().map(|&value| number(value, 8)).collect();
    let pieces = values[4..].as_chunks::<2>().0.iter().enumerate();
    for (at, &[piece, bytes]) in pieces.take(reads.saturating_add(writes)) {
        let mode = if at < reads { Mode::Read } else { Mode::Write };
        args.push(view.bytes(piece, bytes, mode));
    }
    args
}

fn mix(_: Grid, args: &mut [HostArg]) {
    let [_, seed, reads, _, pieces @ ..] = args else {
        return;
    };
    let reads = (scalar(reads) as usize).min(pieces.len());
    let (read, written) = pieces.split_at_mut(reads);
    let mut seen = scramble(scalar(seed));
    for piece in read {
        let HostArg::Memory(piece) = piece else {
            return;
        };
        let words = (0u64..).zip(piece.bytes().chunks(8)).map(|(at, bytes)| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let place = at.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            scramble(u64::from_le_bytes(word).wrapping_add(place))
        });
        let sum = words.fold(0, u64::wrapping_add);
        seen = scramble(seen ^ sum).wrapping_add(piece.bytes().len() as u64);
    }
    for piece in written {
        let HostArg::Memory(piece) = piece else {
            return;
        };
        for (at, to) in (0..).zip(piece.bytes_mut().chunks_mut(8)) {
            let word = scramble(seen.wrapping_add(at)).to_le_bytes();
            to.copy_from_slice(&word[..to.len()]);
        }
    }
}

/// As in `kernels/mix.cu`.
fn scramble(x: u64) -> u64 {
    let x = (x ^ (x >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    let x = (x ^ (x >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    x ^ (x >> 33)
}

fn poke(_: Grid, args: &mut [HostArg]) {
    let [HostArg::Memory(at), value] = args else {
        return;
    };
    let value = scalar(value) as u32;
    at.bytes_mut().copy_from_slice(&value.to_le_bytes());
}

/// Each number widened to eight bytes; the second is signed.
fn sizes(_: Grid, args: &mut [HostArg]) {
    let Some((HostArg::Memory(to), numbers)) = args.split_first_mut() else {
        return;
    };
    for (at, (to, number)) in (to.bytes_mut().as_chunks_mut::<8>().0.iter_mut())
        .zip(numbers)
        .enumerate()
    {
        let value = match at {
            1 => scalar(number) as u16 as i16 as u64,
            _ => scalar(number),
        };
        *to = value.to_le_bytes();
    }
}

/// Writes which thread of which block writes a place: x, y and z of both, four bits each.
fn places(grid: Grid, args: &mut [HostArg]) {
    let [HostArg::Memory(to)] = args else {
        return;
    };
    let threads = grid.threads.iter().product::<u32>().max(1);
    let apart = |number: u32, of: [u32; 3]| {
        [
            number % of[0],
            number / of[0] % of[1],
            number / of[0] / of[1],
        ]
    };
    for (at, to) in (0..).zip(to.bytes_mut().as_chunks_mut::<4>().0) {
        let (block, thread) = (
            apart(at / threads, grid.blocks),
            apart(at % threads, grid.threads),
        );
        let parts = block.into_iter().chain(thread).zip((0..).step_by(4));
        let place: u32 = parts.map(|(part, shift)| part << shift).sum();
        *to = place.to_le_bytes();
    }
}

/// Reverses the values of each block.
fn turned(grid: Grid, args: &mut [HostArg]) {
    let [HostArg::Memory(values)] = args else {
        return;
    };
    let values = values.bytes_mut().as_chunks_mut::<4>().0;
    let blocks = values.chunks_mut(grid.threads[0].max(1) as usize);
    blocks.for_each(<[[u8; 4]]>::reverse);
}

/// Makes a kernel fail, without the text that a panic prints.
fn trap(why: &'static str) -> ! {
    resume_unwind(Box::new(why))
}

// ------------------------------------------------------------------ gather

/// The words of a row of the table: from, to, bytes.
const ROW: u64 = 3;

/// Returns the table, and for each row its words and its two sides. A kernel in Rust gets its memory before it runs,
/// so the table is read at the launch; [`gather`] detects whether it has changed by then.
fn gather_args(values: &[u64], view: &View<'_>) -> Vec<Arg> {
    let (table, pieces) = (values[0], values[1]);
    let mut args = vec![view.bytes(table, pieces * ROW * 8, Mode::Read)];
    let words = view.memory.words(table, pieces * ROW).unwrap_or_default();
    for &[from, to, bytes] in words.as_chunks::<{ ROW as usize }>().0 {
        args.extend([from, to, bytes].map(|word| number(word, 8)));
        args.push(view.bytes(from, bytes, Mode::Read));
        args.push(view.bytes(to, bytes, Mode::Write));
    }
    args
}

fn gather(_: Grid, args: &mut [HostArg]) {
    let Some((HostArg::Memory(table), rest)) = args.split_first_mut() else {
        return;
    };
    let rows = table.bytes().as_chunks::<{ ROW as usize * 8 }>().0;
    let pieces = rest.as_chunks_mut::<5>().0;
    if rows.len() != pieces.len() {
        trap("the table of `gather` is not in pinned memory, aligned for 64-bit words");
    }
    for (row, piece) in rows.iter().zip(pieces) {
        let [a, b, c, HostArg::Memory(from), HostArg::Memory(to)] = piece else {
            return;
        };
        let words = row.as_chunks::<8>().0.iter();
        if !words
            .map(|&word| u64::from_le_bytes(word))
            .eq([a, b, c].map(|arg| scalar(arg)))
        {
            trap("the table of `gather` was changed after the launch");
        }
        to.bytes_mut().copy_from_slice(from.bytes());
    }
}

fn copy_piece(_: Grid, args: &mut [HostArg]) {
    if let [HostArg::Memory(from), HostArg::Memory(to)] = args {
        to.bytes_mut().copy_from_slice(from.bytes());
    }
}

/// Returns the cost, which the link to the host determines.
fn gather_cost(args: &[Arg]) -> KernelCost {
    let read = args.iter().map(|arg| match *arg {
        Arg::Memory {
            bytes,
            mode: Mode::Read,
            ..
        } => bytes,
        _ => 0,
    });
    let bytes = read.fold(0, u64::saturating_add);
    // Parsing the profile takes longer than any launch.
    static LINK: LazyLock<f64> = LazyLock::new(|| Profile::h200().link_bytes_per_s());
    let ns = bytes as f64 / *LINK * 1e9;
    KernelCost::Duration {
        ns: 8_000 + ns as u64,
        share: 0.25,
    }
}

// ------------------------------------------------------------------ parameters and costs

impl View<'_> {
    /// Returns memory that a kernel touches. Inaccessible memory is left to the machine to detect: the first such
    /// byte then represents all of it.
    fn bytes(&self, at: u64, bytes: u64, mode: Mode) -> Arg {
        let (at, bytes) = match self.memory.missing(at, bytes, &self.reach) {
            None => (at, bytes),
            // The machine itself lets every kernel access the memory of every device.
            Some((_, true)) => (0, 1),
            Some((missing, false)) => (missing, 1),
        };
        Arg::Memory {
            at: Address(at),
            bytes,
            mode,
        }
    }
}

fn number(value: u64, len: u8) -> Arg {
    let bytes = value.to_le_bytes();
    Arg::Scalar { bytes, len }
}

fn scalar(arg: &HostArg) -> u64 {
    match *arg {
        HostArg::Scalar { bytes, .. } => u64::from_le_bytes(bytes),
        HostArg::Memory(_) => 0,
    }
}

fn value(arg: Option<&Arg>) -> u64 {
    match arg {
        Some(&Arg::Scalar { bytes, .. }) => u64::from_le_bytes(bytes),
        _ => 0,
    }
}

/// Returns the cost of one block that takes this long.
fn lasts(ns: u64) -> KernelCost {
    KernelCost::Duration {
        ns,
        share: 1.0 / 132.0,
    }
}

fn product(of: [u32; 3]) -> u64 {
    let each = of.into_iter().map(u64::from);
    each.fold(1, u64::saturating_mul)
}

fn elementwise(grid: Grid, elements: u64, steps: u64) -> KernelCost {
    let threads = product(grid.threads).min(1024) as u32;
    let blocks = product(grid.blocks);
    KernelCost::Grid(engine::Grid::elementwise(
        elements, 4, steps, threads, blocks,
    ))
}
