//! Runs the overlap job with the driver's own calls, in every arrangement.

use sidestream::kernel::Grid;
use sidestream::ptx;

use super::{Event, Function, Gpu, Memory, Stream};
use crate::failure::Failure;
use crate::overlap::job::{Call, Job, Layout, Stage};

/// Slots of the largest arrangement, unless more streams are asked for.
const FEWEST_SLOTS: usize = 4;

/// The maximum amount of pinned memory for the batches, unless four of them take more. Batches beyond it share their memory
/// with others; nothing reads it, and copies in one direction never overlap.
const PINNED_BYTES: usize = 4 << 30;

/// Streams, events and memory of the largest job so far, shared by all arrangements.
pub struct RawJobs<'a> {
    gpu: &'a Gpu,
    kernel: Function,
    streams: Vec<Stream>,
    /// By stage, then by slot.
    events: [Vec<Event>; 3],
    inputs: Vec<Memory>,
    outputs: Vec<Memory>,
    /// By batch: the source of the upload, and the target of the download.
    sources: Vec<Memory>,
    results: Vec<Memory>,
}

/// A job with its memory.
pub struct RawJob<'a> {
    jobs: &'a RawJobs<'a>,
    job: Job,
    bytes: usize,
    grid: Grid,
}

/// One part of the job for all batches, measured alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alone {
    Uploads,
    Kernels,
    Downloads,
    /// Uploads on one stream and downloads on another.
    BothWays,
    /// Kernels in turn on four streams, so that the start of one fills the tail of another.
    KernelsSideBySide,
    /// All three on one stream: measures the host's calls.
    Calls,
}

impl<'a> RawJobs<'a> {
    /// Allocates memory for jobs of up to `count` batches of `batch_bytes`, on at most the given number of streams.
    pub fn new(
        gpu: &'a Gpu,
        batch_bytes: usize,
        count: usize,
        streams: usize,
    ) -> Result<RawJobs<'a>, Failure> {
        let slots = streams.max(FEWEST_SLOTS);
        let events =
            || -> Result<Vec<Event>, Failure> { (0..slots).map(|_| gpu.event()).collect() };
        let device = || -> Result<Vec<Memory>, Failure> {
            (0..slots).map(|_| gpu.memory(batch_bytes)).collect()
        };
        let most = PINNED_BYTES / 2 / batch_bytes.max(1);
        let pinned = count.min(most.max(slots));
        let host = || -> Result<Vec<Memory>, Failure> {
            (0..pinned).map(|_| gpu.pinned(batch_bytes)).collect()
        };
        Ok(RawJobs {
            gpu,
            kernel: gpu.function(&ptx::OVERLAP_STEP, "overlap_step")?,
            streams: (0..slots).map(|_| gpu.stream()).collect::<Result<_, _>>()?,
            events: [events()?, events()?, events()?],
            inputs: device()?,
            outputs: device()?,
            sources: host()?,
            results: host()?,
        })
    }

    /// Returns a job whose batches fit into the memory.
    pub fn job(&'a self, job: &Job) -> RawJob<'a> {
        let room = self.inputs.iter().map(|input| input.bytes).min();
        RawJob {
            jobs: self,
            job: *job,
            bytes: (job.batch_bytes as usize).min(room.unwrap_or(0)),
            grid: grid(job.batch_bytes, self.gpu.sms),
        }
    }
}

/// Returns a grid with 256 threads a block and at most sixteen blocks for each multiprocessor.
pub fn grid(batch_bytes: u64, sms: u32) -> Grid {
    let wanted = (batch_bytes / 4).div_ceil(256).max(1);
    Grid::new(wanted.min(16 * u64::from(sms)) as u32, 256)
}

impl RawJob<'_> {
    /// Submits the whole job in one arrangement, and blocks until it is complete.
    pub fn run(&self, layout: Layout) -> Result<(), Failure> {
        let RawJobs { gpu, events, .. } = self.jobs;
        for batch in 0..self.job.count {
            let slot = (batch % layout.k()) as usize;
            for (stream, call) in layout.calls(batch) {
                let stream = self.jobs.streams[stream as usize];
                match call {
                    Call::Do(stage) => self.submit(stage, batch, slot, stream)?,
                    Call::Record(of) => gpu.record(events[of as usize][slot], stream)?,
                    Call::Wait(of) => gpu.wait(stream, events[of as usize][slot])?,
                }
            }
        }
        gpu.synchronize_all()
    }

    /// Submits one part of all batches, without blocking.
    pub fn submit_alone(&self, part: Alone) -> Result<(), Failure> {
        use Stage::{Compute, Download, Upload};
        for batch in 0..self.job.count {
            let side = batch as usize % FEWEST_SLOTS;
            // Each stage with its slot, which has its own stream.
            let calls: &[(Stage, usize)] = match part {
                Alone::Uploads => &[(Upload, 0)],
                Alone::Downloads => &[(Download, 0)],
                Alone::BothWays => &[(Upload, 0), (Download, 1)],
                Alone::Kernels => &[(Compute, 0)],
                Alone::KernelsSideBySide => &[(Compute, side)],
                Alone::Calls => &[(Upload, 0), (Compute, 0), (Download, 0)],
            };
            for &(stage, slot) in calls {
                self.submit(stage, batch, slot, self.jobs.streams[slot])?;
            }
        }
        Ok(())
    }

    fn submit(&self, stage: Stage, batch: u32, slot: usize, on: Stream) -> Result<(), Failure> {
        let RawJobs { gpu, kernel, .. } = self.jobs;
        let (input, output) = (self.jobs.inputs[slot], self.jobs.outputs[slot]);
        let of_batch = |all: &[Memory]| all[batch as usize % all.len()];
        match stage {
            Stage::Upload => {
                let source = of_batch(&self.jobs.sources).part(0, self.bytes);
                gpu.copy(source, input, on)
            }
            Stage::Compute => {
                let (elements, work) = (self.bytes as u64 / 4, self.job.work.into());
                let args = [input.address(), output.address(), elements, work];
                // SAFETY: it is the kernel of the overlap job, and both buffers have at least `bytes`.
                unsafe { gpu.launch(*kernel, self.grid, args, on) }
            }
            Stage::Download if self.job.downloads => {
                let output = output.part(0, self.bytes);
                gpu.copy(output, of_batch(&self.jobs.results), on)
            }
            Stage::Download => Ok(()),
        }
    }
}
