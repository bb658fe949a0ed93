//! Ground truth for `sidestream diagnose`: jobs with planted faults whose costs are known.
//!
//! 1. [`Job::drawn`] draws a training or inference loop from a seed: its device, its kernels, its host,
//!    and up to three [`Fault`]s.
//! 2. `Job::run` runs it on the engine of the simulated GPU, with any of its faults removed. The cost of a fault is the
//!    difference of two runs, and never a label: a pageable copy that is hidden by a slower loader costs nothing.
//! 3. [`trace`] writes a run as PyTorch's profiler would. That run differs from the one of the model: the profiler slows down
//!    its host, times are cut, rows get lost.
//! 4. [`Judged::of`] compares the report with what is known, and [`Tally`] counts the results.
//!
//! Runs of many ranks have a separate model: `RankJob::drawn` draws one, and `many_ranks` judges the report on it.
//!
//! What is drawn follows from the seed alone, on any machine. Kernels and calls have the same jitter with a fault and without
//! it, so that a difference of two runs is due to the fault.

mod draw;
mod fault;
mod job;
mod judge;
mod many;
mod ranks;
mod run;
mod tally;
mod write;

pub use fault::Fault;
pub use job::Job;
pub use judge::{Judged, Said, Truth};
pub use many::{judged, many};
pub use ranks::{RankJob, RankRun, RankTally, judged_ranks, many_ranks, rank_trace};
pub use run::Ran;
pub use tally::{Share, Tally};
pub use write::trace;
