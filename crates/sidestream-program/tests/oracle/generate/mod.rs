//! Random stream programs: valid in the format, with a good share that is well ordered.
//!
//! The generator keeps approximate vector clocks of what each stream and host thread knows. Before it emits an access
//! it searches for earlier conflicting accesses that are not known yet and, with the probability `care`, emits
//! something that orders them: one of the many ways that the format has. The clocks only steer the random choices;
//! nothing depends on their being right.

mod actions;
mod captures;
mod errors;
mod lives;
mod order;
mod state;

use sidestream::sim::split_mix;

use super::prog::{Act, Prog};
use state::Gen;

/// A small random number generator.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// Returns a number from 0 to `n - 1`.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "there has to be a choice");
        usize::try_from(self.next() % n as u64).expect("smaller than n")
    }

    /// Returns true with a probability of `p` percent.
    pub fn percent(&mut self, p: u32) -> bool {
        self.next() % 100 < u64::from(p)
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// Parameters of a random program.
#[derive(Clone, Debug)]
pub struct Options {
    pub threads: usize,
    pub devices: u32,
    /// Number of streams besides the legacy streams.
    pub streams: usize,
    /// Approximate number of ops; there may be a few more, 60 at most.
    pub ops: usize,
    /// The list is cut before an op that would exceed this number of things on streams (work, records, waits).
    pub max_device_ops: usize,
    /// Probability, in percent, that an access is ordered after earlier ones that conflict with it.
    pub care: u32,
    /// Whether to inject a call that fails.
    pub error: bool,
    pub legacy: bool,
    pub blocking_streams: bool,
    pub blocking_calls: bool,
    pub captures: bool,
    pub allocator: bool,
    pub lifetimes: bool,
    pub events: bool,
    pub timing: bool,
    pub ranges: bool,
    pub sites: bool,
    pub graphs: bool,
    pub host_funcs: bool,
    pub host_memory: bool,
    pub stream_lifetimes: bool,
    pub runtime: bool,
}

impl Options {
    /// Returns the options that belong to a seed.
    pub fn from_seed(seed: u64) -> Options {
        let mut rng = Rng::new(seed ^ 0x0123_4567_89ab_cdef);
        let rng = &mut rng;
        let many = rng.percent(50);
        Options {
            threads: rng.pick(&[1, 1, 1, 1, 1, 2, 2, 2, 3]),
            devices: rng.pick(&[1, 1, 1, 2, 2, 3]),
            streams: rng.pick(&[1, 2, 2, 2, 3, 3, 4]),
            ops: if many {
                8 + rng.below(33)
            } else {
                3 + rng.below(12)
            },
            max_device_ops: usize::MAX,
            care: rng.pick(&[100, 100, 97, 90, 75, 60, 45, 30, 15, 0]),
            error: rng.percent(12),
            legacy: rng.percent(50),
            blocking_streams: rng.percent(60),
            blocking_calls: rng.percent(45),
            captures: rng.percent(25),
            allocator: rng.percent(40),
            lifetimes: rng.percent(40),
            events: rng.percent(80),
            timing: rng.percent(30),
            ranges: rng.percent(40),
            sites: rng.percent(30),
            graphs: rng.percent(40),
            host_funcs: rng.percent(45),
            host_memory: rng.percent(75),
            stream_lifetimes: rng.percent(30),
            runtime: rng.percent(5),
        }
    }

    /// Returns options for programs whose schedules can all be tried: at most 7 things on streams.
    pub fn small(seed: u64) -> Options {
        let mut rng = Rng::new(seed ^ 0x0fed_cba9_8765_4321);
        let rng = &mut rng;
        Options {
            threads: rng.pick(&[1, 1, 1, 2]),
            devices: rng.pick(&[1, 1, 1, 2]),
            streams: 1 + rng.below(3),
            ops: 3 + rng.below(7),
            max_device_ops: 7,
            care: rng.pick(&[100, 100, 90, 60, 20]),
            error: false,
            captures: false,
            runtime: false,
            stream_lifetimes: false,
            timing: false,
            ..Options::from_seed(seed)
        }
    }
}

/// Returns the random program of a seed.
pub fn random_prog(seed: u64, options: &Options) -> Prog {
    let mut generator = Gen::new(seed, options.clone());
    generator.run();
    let mut prog = generator.prog;
    let mut room = options.max_device_ops;
    let fits = prog.ops.iter().take(MOST_OPS).take_while(|op| {
        let need = device_ops(&op.act);
        let fits = need <= room;
        room = room.saturating_sub(need);
        fits
    });
    // Any prefix of a valid program is a valid program.
    let length = fits.count();
    prog.ops.truncate(length);
    prog
}

/// Returns how many things an op puts on streams.
fn device_ops(act: &Act) -> usize {
    match act {
        Act::Kernel { .. }
        | Act::CopyAsync { .. }
        | Act::CopyBatch { .. }
        | Act::CopyPeer { .. }
        | Act::MemsetAsync { .. }
        | Act::Copy { .. }
        | Act::Memset { .. }
        | Act::HostFunc { .. }
        | Act::GraphLaunch { .. }
        | Act::Record { .. }
        | Act::Wait { .. }
        | Act::MallocAsync { .. }
        | Act::FreeAsync { .. } => 1,
        Act::WaitStream { .. } | Act::Free { .. } => 2,
        _ => 0,
    }
}

const MOST_OPS: usize = 60;
