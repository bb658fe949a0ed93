//! The overlap job by the driver's own calls, in every arrangement.

use sidestream::ptx;

use super::{Blocks, Event, Function, Gpu, Memory, StepArgs, Stream};
use crate::failure::Failure;
use crate::overlap::job::{Job, Layout};

/// So many slots has the largest arrangement, unless more streams are asked for.
const FEWEST_SLOTS: usize = 4;

/// The pinned memory that the batches take at most, unless four of them take more. Batches beyond
/// it share their memory with others; nothing reads it, and copies one way never overlap.
const PINNED_BYTES: usize = 4 << 30;

/// Streams, events and memory of the largest job so far. All arrangements use the same ones.
pub struct RawJobs<'a> {
    gpu: &'a Gpu,
    kernel: Function,
    streams: Vec<Stream>,
    uploaded: Vec<Event>,
    computed: Vec<Event>,
    downloaded: Vec<Event>,
    inputs: Vec<Memory>,
    outputs: Vec<Memory>,
    /// By batch: what is uploaded, and where the result goes.
    sources: Vec<Memory>,
    results: Vec<Memory>,
}

/// A job with its memory.
pub struct RawJob<'a> {
    jobs: &'a RawJobs<'a>,
    count: usize,
    bytes: usize,
    work: u32,
    downloads: bool,
    grid: Blocks,
}

/// One stage of all batches, alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alone {
    Uploads,
    Kernels,
    Downloads,
    /// Uploads on one stream and downloads on another.
    BothWays,
    /// Kernels in turn on four streams, so that the head of one fills the tail of another.
    KernelsSideBySide,
    /// All three, on one stream: what the host's calls take.
    Calls,
}

impl<'a> RawJobs<'a> {
    /// Takes memory for jobs of up to `batch_bytes` a batch and `count` batches, on up to so many streams.
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
            uploaded: events()?,
            computed: events()?,
            downloaded: events()?,
            inputs: device()?,
            outputs: device()?,
            sources: host()?,
            results: host()?,
        })
    }

    /// A job, whose batches are no larger than the memory.
    pub fn job(&'a self, job: &Job) -> RawJob<'a> {
        let room = self.inputs.iter().map(|input| input.bytes).min();
        RawJob {
            jobs: self,
            count: job.count as usize,
            bytes: (job.batch_bytes as usize).min(room.unwrap_or(0)),
            work: job.work,
            downloads: job.downloads,
            grid: grid(job.batch_bytes, self.gpu.sms),
        }
    }
}

/// 256 threads a block, at most sixteen blocks for each multiprocessor.
pub fn grid(batch_bytes: u64, sms: u32) -> Blocks {
    let wanted = (batch_bytes / 4).div_ceil(256).max(1);
    Blocks {
        blocks: wanted.min(16 * u64::from(sms)) as u32,
        threads: 256,
    }
}

impl RawJob<'_> {
    /// Submits the whole job in one arrangement, and waits until it is over.
    pub fn run(&self, layout: Layout) -> Result<(), Failure> {
        match layout {
            Layout::Streams(k) => self.streams(k as usize)?,
            Layout::Ring(depth) => self.ring(depth as usize)?,
        }
        self.jobs.gpu.synchronize_all()
    }

    /// Submits one stage of all batches, and waits for nothing.
    pub fn submit_alone(&self, stage: Alone) -> Result<(), Failure> {
        let (first, second) = (self.jobs.streams[0], self.jobs.streams[1]);
        for batch in 0..self.count {
            match stage {
                Alone::Uploads => self.upload(batch, 0, first)?,
                Alone::Downloads => self.download(batch, 0, first)?,
                Alone::BothWays => {
                    self.upload(batch, 0, first)?;
                    self.download(batch, 1, second)?;
                }
                Alone::Kernels => self.compute(0, first)?,
                Alone::KernelsSideBySide => {
                    let slot = batch % FEWEST_SLOTS;
                    self.compute(slot, self.jobs.streams[slot])?;
                }
                Alone::Calls => {
                    self.upload(batch, 0, first)?;
                    self.compute(0, first)?;
                    self.download(batch, 0, first)?;
                }
            }
        }
        Ok(())
    }

    /// Batch `i` wholly on stream `i mod k`.
    fn streams(&self, k: usize) -> Result<(), Failure> {
        for batch in 0..self.count {
            let slot = batch % k;
            let stream = self.jobs.streams[slot];
            self.upload(batch, slot, stream)?;
            self.compute(slot, stream)?;
            self.download(batch, slot, stream)?;
        }
        Ok(())
    }

    /// A stream for each stage. Upload `i + d` waits for kernel `i`; kernel `i` for upload `i` and
    /// download `i - d`; download `i` for kernel `i`.
    fn ring(&self, depth: usize) -> Result<(), Failure> {
        let RawJobs {
            gpu,
            uploaded,
            computed,
            downloaded,
            ..
        } = self.jobs;
        let streams = &self.jobs.streams;
        let (up, mid, down) = (streams[0], streams[1], streams[2]);
        for batch in 0..self.count {
            let slot = batch % depth;
            let is_reused = batch >= depth;
            if is_reused {
                gpu.wait(up, computed[slot])?;
            }
            self.upload(batch, slot, up)?;
            gpu.record(uploaded[slot], up)?;
            gpu.wait(mid, uploaded[slot])?;
            if is_reused {
                gpu.wait(mid, downloaded[slot])?;
            }
            self.compute(slot, mid)?;
            gpu.record(computed[slot], mid)?;
            gpu.wait(down, computed[slot])?;
            self.download(batch, slot, down)?;
            gpu.record(downloaded[slot], down)?;
        }
        Ok(())
    }

    fn upload(&self, batch: usize, slot: usize, stream: Stream) -> Result<(), Failure> {
        let sources = &self.jobs.sources;
        let source = sources[batch % sources.len()].part(0, self.bytes);
        self.jobs.gpu.copy(source, self.jobs.inputs[slot], stream)
    }

    fn compute(&self, slot: usize, stream: Stream) -> Result<(), Failure> {
        let args = StepArgs {
            input: self.jobs.inputs[slot],
            output: self.jobs.outputs[slot],
            elements: self.bytes as u64 / 4,
            work: self.work,
        };
        // SAFETY: it is the kernel of the overlap job, and both have at least `bytes`.
        unsafe {
            self.jobs
                .gpu
                .launch_step(self.jobs.kernel, self.grid, args, stream)
        }
    }

    fn download(&self, batch: usize, slot: usize, stream: Stream) -> Result<(), Failure> {
        if !self.downloads {
            return Ok(());
        }
        let results = &self.jobs.results;
        let output = self.jobs.outputs[slot].part(0, self.bytes);
        self.jobs
            .gpu
            .copy(output, results[batch % results.len()], stream)
    }
}
