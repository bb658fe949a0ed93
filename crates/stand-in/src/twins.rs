//! The kernels in Rust. The simulated machine cannot run PTX: a launch of an entry runs the form in Rust of the kernel
//! with that name in the library, in `sidestream-images` or here. The machine also has to know which memory the launch
//! touches, which the driver is not told: the parameters of each kernel say it.

use std::panic::resume_unwind;
use std::sync::{Arc, LazyLock};

use sidestream::backend::{Address, Arg, Code, HostArg};
use sidestream::engine::{KernelCost, Profile};
use sidestream::kernel::{Kernel, Value, Write, library};
use sidestream::op::Mode;
use sidestream_images::augment;

use crate::memory::{Memory, Reach};

/// A kernel in Rust.
pub struct Twin {
    pub code: Arc<Code>,
    /// Size of each parameter in bytes.
    pub params: Vec<u64>,
    /// Converts these parameters, in words of eight bytes, to the machine's arguments.
    pub args: Args,
}

type Args = Box<dyn Fn(&[u64], &View<'_>) -> Vec<Arg> + Send + Sync>;

/// The memory that a launch can access.
pub struct View<'a> {
    pub memory: &'a Memory,
    pub reach: Reach<'a>,
}

/// Returns the twin of an entry.
pub fn of(name: &str) -> Option<&'static Twin> {
    TWINS.iter().find(|twin| twin.code.name == name)
}

static TWINS: LazyLock<Vec<Twin>> = LazyLock::new(|| {
    // SAFETY: the parameters derive the sizes of the memory from the numbers of the same launch.
    let mut twins = unsafe {
        vec![
            Twin::of(&library::empty(), ""),
            Twin::of(&library::trap(), ""),
            Twin::of(&library::spin(), "8"),
            Twin::of(&library::overlap_step(), "r4*$2 w4*$2 8 4"),
            Twin::of(&library::vector_add(), "r4*$3 r4*$3 w4*$3 8"),
            Twin::of(&library::dense(), "r4*$3*$4 r4*$4*$4 w4*$3*$4 8 8"),
            Twin::of(&library::fill_pattern(), "w4*$1 8 4"),
            Twin::of(&library::check_pattern(), "r4*$1 8 4 w4"),
            Twin::of(&library::copy_piece(), "r$2 w$2 8"),
            Twin::of(&poke(), "w4 4"),
            // The entries of the conformance suite, `tests/conformance/entries.ptx`.
            Twin::of(&sizes(), "w40 1 2 4 8 8"),
            Twin::of(&places(), "w4*$1 8"),
            Twin::of(&turned(), "w4*$1 8"),
            Twin {
                code: Arc::clone(library::mix().code()),
                params: MIX_PARAMS.to_vec(),
                args: Box::new(mix_args),
            },
            gather(),
        ]
    };
    let (record, words) = augment::SIZES;
    let render = format!("r$5 r$6 r{record}*$9 r$7 w$8 8 8 8 8 4 4 4");
    let measure = format!("r$4 r$5 r{record}*$6 w4*{words}*$6 8 8 4 4");
    let images = augment::codes().into_iter();
    twins.extend(images.map(|code| match code.name.as_str() {
        "augment_measure" => Twin::with(code, &measure),
        _ => Twin::with(code, &render),
    }));
    twins
});

impl Twin {
    fn of<A>(kernel: &Kernel<A>, params: &str) -> Twin {
        Twin::with(kernel.code(), params)
    }

    /// `params` has a word for each parameter: the size of a number in bytes; or `r` or `w`, for memory that is read or
    /// written, and the factors of its size, of which `$3` is the value of the fourth parameter.
    fn with(code: &Arc<Code>, params: &str) -> Twin {
        let params: Vec<Param> = params.split_whitespace().map(Param::of).collect();
        let bytes = params.iter().map(|param| match param {
            Param::Number(bytes) => u64::from(*bytes),
            Param::Memory(..) => 8,
        });
        Twin {
            code: Arc::clone(code),
            params: bytes.collect(),
            args: Box::new(move |values, view| {
                let args = params.iter().zip(values);
                let args = args.map(|(param, &value)| match param {
                    Param::Number(len) => number(value, *len),
                    Param::Memory(mode, bytes, places) => {
                        let factors = places.iter().map(|&at| values[at]);
                        view.bytes(value, factors.fold(*bytes, u64::saturating_mul), *mode)
                    }
                });
                args.collect()
            }),
        }
    }
}

/// A parameter.
enum Param {
    /// A number of this many bytes.
    Number(u8),
    /// The address of memory: its size is the product of a number and of other parameters.
    Memory(Mode, u64, Vec<usize>),
}

impl Param {
    fn of(word: &str) -> Param {
        let (mode, factors) = match word.split_at(1) {
            ("r", factors) => (Mode::Read, factors),
            ("w", factors) => (Mode::Write, factors),
            _ => return Param::Number(word.parse().expect("a number of bytes")),
        };
        let (mut bytes, mut places) = (1, Vec::new());
        for factor in factors.split('*') {
            match factor.strip_prefix('$') {
                Some(place) => places.push(place.parse().expect("the place of a parameter")),
                None => bytes *= factor.parse::<u64>().expect("a factor"),
            }
        }
        Param::Memory(mode, bytes, places)
    }
}

// ------------------------------------------------------------------ kernels that no crate launches by itself

/// Returns a kernel of this name that does nothing.
pub fn empty(name: &str) -> Arc<Code> {
    Arc::clone(Kernel::<()>::on_host(name, |_, ()| ()).code())
}

/// Writes a number.
fn poke() -> Kernel<(Write<u32>, Value<u32>)> {
    Kernel::<(Write<u32>, Value<u32>)>::on_host("poke", |_, (to, value)| to[0] = value)
}

/// Numbers of every size.
type Sizes = (
    Write<u64>,
    Value<u8>,
    Value<i16>,
    Value<u32>,
    Value<u64>,
    Value<u64>,
);

/// Writes each number, widened to eight bytes; the second is signed.
fn sizes() -> Kernel<Sizes> {
    Kernel::<Sizes>::on_host("sizes", |_, (to, a, b, c, d, e)| {
        to.copy_from_slice(&[a.into(), b as u64, c.into(), d, e]);
    })
}

/// Memory with a value for each thread, and the number of threads.
type Threads = (Write<u32>, Value<u64>);

/// Writes which thread of which block writes a place: x, y and z of both, four bits each.
fn places() -> Kernel<Threads> {
    Kernel::<Threads>::on_host("places", |grid, (to, _)| {
        let threads = grid.threads.iter().product::<u32>().max(1);
        let apart = |n: u32, [x, y, _]: [u32; 3]| [n % x, n / x % y, n / x / y];
        for (at, to) in (0..).zip(to) {
            let block = apart(at / threads, grid.blocks);
            let parts = block.into_iter().chain(apart(at % threads, grid.threads));
            *to = parts
                .zip((0..).step_by(4))
                .map(|(part, shift)| part << shift)
                .sum();
        }
    })
}

/// Reverses the values of each block.
fn turned() -> Kernel<Threads> {
    Kernel::<Threads>::on_host("turned", |grid, (values, _)| {
        let blocks = values.chunks_mut(grid.threads[0].max(1) as usize);
        blocks.for_each(<[u32]>::reverse);
    })
}

// ------------------------------------------------------------------ mix

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
        args.extend([view.bytes(piece, bytes, mode), number(bytes, 8)]);
    }
    args
}

// ------------------------------------------------------------------ gather

/// The words of a row of the table: from, to, bytes.
const ROW: u64 = 3;

/// The back end's own kernel, which copies the pieces of a table.
fn gather() -> Twin {
    let code = Code {
        host: Some(Box::new(|_, args| gathers(args))),
        cost: Some(Box::new(|_, args| gather_cost(args))),
        ..Code::new("gather")
    };
    Twin {
        code: Arc::new(code),
        params: vec![8, 4],
        args: Box::new(gather_args),
    }
}

/// Returns the table, and for each row its words and its two sides. A kernel in Rust gets its memory before it runs,
/// so the table is read at the launch; [`gathers`] detects whether it has changed by then.
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

fn gathers(args: &mut [HostArg]) {
    let Some((HostArg::Memory(table), rest)) = args.split_first_mut() else {
        return;
    };
    let (mut words, mut sides) = (Vec::new(), Vec::new());
    for arg in rest {
        match arg {
            HostArg::Scalar { bytes, .. } => words.extend(*bytes),
            HostArg::Memory(side) => sides.push(side),
        }
    }
    if words != table.bytes() {
        // The kernel fails, without the text that a panic prints.
        resume_unwind(Box::new(
            "the table of `gather` was changed after the launch, or is not in pinned memory, aligned for 64-bit words",
        ));
    }
    for [from, to] in sides.as_chunks_mut::<2>().0 {
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

// ------------------------------------------------------------------ arguments

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
