//! Runs of many ranks with one planted fault, for which the slow rank, the cause and each rank's waits are known.
//!
//! The model describes what ranks do, not what a trace shows: hosts that launch, streams that run, groups that meet. It shares
//! no code with the reader. A run follows from its seed alone; kernels have the same jitter with the fault and without.

mod judge;
mod run;
mod write;

pub use judge::{RankTally, judged_ranks, many_ranks};
pub(crate) use run::Exchanged;
pub use run::RankRun;
pub use write::rank_trace;

use crate::draw::Draw;

/// The planted fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Planted {
    /// Nothing.
    Nothing,
    /// Kernels of the rank take this many times as long.
    Compute(f64),
    /// Its loader takes this much longer in each step, in nanoseconds.
    Loader(f64),
    /// Its uploads from pageable memory take this much longer, in nanoseconds.
    Copies(f64),
    /// Its host does this much additional work, in nanoseconds.
    Host(f64),
}

impl Planted {
    /// Returns the word that `sidestream diagnose` uses for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Planted::Nothing => "nothing",
            Planted::Compute(_) => "compute",
            Planted::Loader(_) => "loader",
            Planted::Copies(_) => "copies",
            Planted::Host(_) => "host",
        }
    }
}

/// Where a trace states the sequence numbers of exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// On kernels, as since 2026.
    OnKernels,
    /// On the operators that launch them, as before.
    OnOperators,
    /// Nowhere: only their groups are stated.
    Nowhere,
}

/// A run of many ranks.
#[derive(Clone, Debug)]
pub struct RankJob {
    /// The seed that determines the run.
    pub seed: u64,
    /// Number of ranks that share a layer, that follow each other in a pipeline, and that hold the same weights.
    pub shape: (usize, usize, usize),
    /// Number of steps.
    pub steps: usize,
    /// Number of parts of a batch.
    pub micro: usize,
    /// Number of layers of a stage.
    pub layers: usize,
    /// Time of a kernel of a layer, in nanoseconds.
    pub kernel_ns: f64,
    /// Time of an exchange in a tensor-parallel group, in nanoseconds.
    pub tensor_ns: f64,
    /// Time of an exchange from a stage to the next, in nanoseconds.
    pub pair_ns: f64,
    /// Time of an exchange of the gradients of a layer, in nanoseconds.
    pub data_ns: f64,
    /// Factors by which each stage's kernels take longer.
    pub stages: Vec<f64>,
    /// Whether a send may be complete before its receive begins.
    pub is_eager: bool,
    /// Whether groups have descriptions.
    pub is_described: bool,
    /// Where exchanges are numbered.
    pub numbers: Numbers,
    /// The planted fault.
    pub planted: Planted,
    /// The rank that has it.
    pub slow: usize,
}

impl RankJob {
    /// Draws a run from a seed.
    pub fn drawn(seed: u64) -> RankJob {
        let mut draw = Draw::new(seed ^ 0x7261_6e6b);
        let tensor = draw.of(&[1, 2, 4, 8]);
        let pipe = draw.of(&[1, 1, 2, 4, 8]);
        let most = (1024 / (tensor * pipe)) as f64;
        let mut data = draw.sized(1.0, most + 0.9) as usize;
        if tensor * pipe * data < 2 {
            data = 2;
        }
        let micro = if pipe > 1 {
            pipe + draw.below(3)
        } else {
            1 + draw.below(3)
        };
        let layers = 1 + draw.below(2);
        let kernel_ns = draw.sized(2e5, 1.5e6);
        let stages = (0..pipe).map(|_| draw.between(1.0, 1.1)).collect();
        let mut job = RankJob {
            seed,
            shape: (tensor, pipe, data),
            steps: 4 + draw.below(3),
            micro,
            layers,
            kernel_ns,
            tensor_ns: draw.sized(3e4, 2e5),
            pair_ns: draw.sized(2e4, 2e5),
            data_ns: draw.sized(1e5, 1.5e6),
            stages,
            is_eager: draw.happens(0.3),
            is_described: draw.happens(0.7),
            numbers: draw.of(&[
                Numbers::OnKernels,
                Numbers::OnKernels,
                Numbers::OnOperators,
                Numbers::Nowhere,
            ]),
            planted: Planted::Nothing,
            slow: draw.below(tensor * pipe * data),
        };
        let step_ns = 3.0 * kernel_ns * (layers * micro) as f64;
        let more_ns = (step_ns * draw.between(0.15, 0.6)).max(1.5e6);
        job.planted = match draw.below(10) {
            0 => Planted::Nothing,
            1..=3 => Planted::Compute(draw.between(1.2, 1.8)),
            4 | 5 => Planted::Loader(more_ns),
            6 | 7 => Planted::Copies(more_ns),
            _ => Planted::Host(more_ns),
        };
        job
    }

    /// Returns the job without the planted fault.
    pub fn even(&self) -> RankJob {
        RankJob {
            planted: Planted::Nothing,
            ..self.clone()
        }
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> usize {
        let (tensor, pipe, data) = self.shape;
        tensor * pipe * data
    }

    /// Returns a rank's position in the tensor-parallel group, the pipeline and the data-parallel group.
    fn place(&self, rank: usize) -> (usize, usize, usize) {
        let (tensor, pipe, _) = self.shape;
        (rank % tensor, rank / tensor % pipe, rank / (tensor * pipe))
    }

    fn rank(&self, (t, p, d): (usize, usize, usize)) -> usize {
        let (tensor, pipe, _) = self.shape;
        (d * pipe + p) * tensor + t
    }
}
