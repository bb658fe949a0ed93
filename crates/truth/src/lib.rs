//! Ground truth for `sidestream diagnose`: jobs with planted faults, of which it is known what each
//! fault costs.
//!
//! 1. [`Job::drawn`] draws a training or inference loop from a seed: its device, its kernels, its host,
//!    and up to three [`Fault`]s.
//! 2. `Job::run` runs it on the engine of the simulated GPU, with any of its faults removed. What a
//!    fault costs is the difference of two runs, and never a label: a pageable copy that hides behind a
//!    slower loader costs nothing.
//! 3. [`trace`] writes a run as PyTorch's profiler would. That run is not the one of the model: the
//!    profiler slows down its host, times are cut, rows get lost.
//! 4. [`Judged::of`] holds the report against what is known, and [`Tally`] counts.
//!
//! Runs of many ranks are a model of their own: `RankJob::drawn` draws one, and `many_ranks` judges what is said of it.
//!
//! What is drawn follows from the seed alone, on any machine. Kernels and calls have the same jitter
//! with a fault and without it, so that a difference of two runs is the fault's.

mod draw;
mod fault;
mod job;
mod judge;
mod many;
mod ranks;
mod run;
mod tally;
mod write;

pub use fault::{Cause, Fault};
pub use job::Job;
pub use judge::{Judged, Said, Truth};
pub use many::{judged, many};
pub use ranks::{RankJob, RankRun, RankTally, judged_ranks, many_ranks, rank_trace};
pub use run::Ran;
pub use tally::{Figures, Tally};
pub use write::trace;
