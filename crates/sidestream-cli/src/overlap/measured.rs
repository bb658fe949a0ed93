//! Measures the job on a real device: every arrangement by the driver's own calls, and the pipeline, in turn.

use std::path::Path;
use std::time::Instant;

use super::job::{Job, Layout};
use super::limit::OverlapLimit;
use super::pipeline::SLOTS;
use super::{Compared, Row, Verdict, refuse_impossible};
use crate::failure::Failure;
use crate::measure::jobs;
use crate::measure::own::Own;
use crate::measure::raw::Gpu;
use crate::measure::raw::job::{Alone, RawJob, RawJobs};
use crate::measure::rounds::{Side, interleaved, median};

const ROUNDS: usize = 9;
/// Rounds for a job that takes longer than [`LONG_NS`].
const FEW_ROUNDS: usize = 3;
const LONG_NS: f64 = 1e9;

/// The number of batches over which the stages alone are measured.
const ALONE: std::ops::RangeInclusive<u32> = 8..=32;

/// The parts of the job from which the limit is computed: a stage alone, both copies at once, a kernel that overlaps at its
/// start and end with the kernels before and after it, and the host's three calls.
pub const PARTS: [Alone; 6] = [
    Alone::Uploads,
    Alone::Kernels,
    Alone::Downloads,
    Alone::BothWays,
    Alone::KernelsSideBySide,
    Alone::Calls,
];

/// Measures the job on this device.
pub fn compare(
    job: &Job,
    layouts: &[Layout],
    number: u32,
    driver: Option<&Path>,
) -> Result<Compared, Failure> {
    let gpu = Gpu::open(driver, number)?;
    let most = layouts.iter().map(|layout| layout.k()).max().unwrap_or(1);
    refuse_impossible(job, most, &gpu.name, gpu.memory_bytes)?;
    let own = Own::cuda(&gpu, number, driver)?;
    let raw = RawJobs::new(
        &gpu,
        job.batch_bytes as usize,
        job.count as usize,
        most as usize,
    )?;
    let few = Job {
        count: job.count.clamp(*ALONE.start(), *ALONE.end()),
        ..*job
    };
    let (raw_job, few_batches) = (raw.job(job), raw.job(&few));
    let once_ns = timed(&gpu, || raw_job.run(Layout::Streams(1)))?;
    let rounds = if once_ns > LONG_NS {
        FEW_ROUNDS
    } else {
        ROUNDS
    };

    let mut sides: Vec<Side<'_>> = Vec::new();
    for &layout in layouts {
        let (gpu, raw_job) = (&gpu, &raw_job);
        sides.push(Box::new(move || timed(gpu, || raw_job.run(layout))));
    }
    for part in PARTS {
        let (gpu, few_batches) = (&gpu, &few_batches);
        let batches = f64::from(few.count);
        sides.push(Box::new(move || {
            Ok(part_ns(gpu, few_batches, part)? / batches)
        }));
    }
    // The library's pipeline always downloads.
    if job.downloads {
        sides.push(Box::new(|| Ok(jobs::on_streams(&own, job, SLOTS)? * 1e6)));
    }
    let times = interleaved(rounds, &mut sides)?;
    let medians: Vec<f64> = times.iter().map(|times| median(times)).collect();

    let (arrangements, rest) = medians.split_at(layouts.len());
    let rows: Vec<Row> = layouts
        .iter()
        .zip(arrangements)
        .map(|(&layout, &ns)| Row {
            layout,
            time_ns: ns.round() as u64,
        })
        .collect();
    let (parts_ns, own_ns) = rest
        .split_first_chunk()
        .ok_or_else(|| Failure::input("a part of the job was not measured"))?;
    let limit = OverlapLimit::measured(job, parts_ns);
    let verdict = Verdict::of(job.count, &rows, &limit);
    Ok(Compared {
        job: *job,
        device_name: gpu.name.clone(),
        profile: None,
        rounds: Some(rounds),
        rows,
        own_ns: own_ns.first().map(|ns| ns.round() as u64),
        pageable_ns: None,
        limit,
        verdict,
    })
}

/// Returns the nanoseconds for one part of all batches: until it is complete or, for the calls, until they have returned.
fn part_ns(gpu: &Gpu, job: &RawJob<'_>, part: Alone) -> Result<f64, Failure> {
    match part {
        Alone::Calls => {
            let ns = timed(gpu, || job.submit_alone(part))?;
            gpu.synchronize_all()?;
            Ok(ns)
        }
        _ => timed(gpu, || {
            job.submit_alone(part)?;
            gpu.synchronize_all()
        }),
    }
}

/// Returns the nanoseconds that a function takes on the host, starting with an idle device.
fn timed(gpu: &Gpu, run: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    gpu.enter()?;
    gpu.synchronize_all()?;
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_nanos() as f64)
}
