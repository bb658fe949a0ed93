//! Runs of many ranks with one thing planted, of which it is known who is slow, why, and how long each waits.
//!
//! The model is one of what ranks do, not of what a trace shows: hosts that launch, streams that run, groups that meet. It
//! shares no code with the reader. A run follows from its seed alone; kernels have the same jitter with the fault and without.

mod judge;
mod run;
mod write;

pub use judge::{RankTally, judged_ranks, many_ranks};
pub use run::RankRun;
pub use write::rank_trace;

use crate::draw::Draw;

/// What is planted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Planted {
    /// Nothing.
    Nothing,
    /// Kernels of the rank take so many times as long.
    Compute(f64),
    /// Its loader takes so much longer in each step, in nanoseconds.
    Loader(f64),
    /// It uploads so much longer from pageable memory.
    Copies(f64),
    /// Its host does so much work of its own.
    Host(f64),
}

impl Planted {
    /// The word that `sidestream diagnose` has for it.
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

/// How a trace says which exchange is which.
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
    /// What it follows from.
    pub seed: u64,
    /// How many ranks share a layer, follow each other in a pipeline, and hold the same weights.
    pub shape: (usize, usize, usize),
    /// How many steps, parts of a batch, and layers of a stage.
    pub steps: usize,
    /// Parts of a batch.
    pub micro: usize,
    /// Layers of a stage.
    pub layers: usize,
    /// A kernel of a layer, an exchange in a tensor group, between stages, and of gradients, in nanoseconds.
    pub kernel_ns: f64,
    /// An exchange in a tensor group.
    pub tensor_ns: f64,
    /// From a stage to the next.
    pub pair_ns: f64,
    /// Gradients of a layer.
    pub data_ns: f64,
    /// How much longer each stage's kernels take.
    pub stages: Vec<f64>,
    /// Whether a send may be over before its receive begins.
    pub is_eager: bool,
    /// Whether groups say what they are for.
    pub is_described: bool,
    /// How exchanges are numbered.
    pub numbers: Numbers,
    /// What is planted, and on which rank.
    pub planted: Planted,
    /// That rank.
    pub slow: usize,
}

impl RankJob {
    /// Draws one.
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

    /// The same without what is planted.
    pub fn even(&self) -> RankJob {
        RankJob {
            planted: Planted::Nothing,
            ..self.clone()
        }
    }

    /// How many ranks.
    pub fn world(&self) -> usize {
        let (tensor, pipe, data) = self.shape;
        tensor * pipe * data
    }

    /// A rank's place in the tensor group, the pipeline and the data group.
    fn place(&self, rank: usize) -> (usize, usize, usize) {
        let (tensor, pipe, _) = self.shape;
        (rank % tensor, rank / tensor % pipe, rank / (tensor * pipe))
    }

    fn rank(&self, (t, p, d): (usize, usize, usize)) -> usize {
        let (tensor, pipe, _) = self.shape;
        (d * pipe + p) * tensor + t
    }
}
