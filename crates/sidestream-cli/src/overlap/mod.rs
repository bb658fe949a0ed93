//! `sidestream overlap`: what a job gains by overlapping copies with computing.

mod background;
mod file;
pub mod job;
mod limit;
mod measured;
mod own;
mod pipeline;
mod shown;
pub mod size;
mod sweep;
mod verdict;

use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::Value;
use sidestream::engine::Profile;
use sidestream::op::Memory;

use crate::device::{self, Named};
use crate::failure::{Exit, Failure, SUCCESS, print};
use crate::output;
use crate::width::{Lines, Width};
use job::{Job, Layout};
use limit::OverlapLimit;
use verdict::Verdict;

/// Show what overlapping copies with computing gains
///
/// A job of COUNT batches is uploaded, computed on and downloaded: batch after batch on one stream; on several streams, each
/// with its own batches and slots; with a stream for each of the three stages and a ring of slots between them; and by the
/// library's pipeline, which also waits for a slot before it fills it again. A slot is the device memory for the input and the
/// output of one batch.
///
/// The table gives the time of each arrangement and its share of the limit: the time that the copies, the kernels or the host's
/// calls would take alone. Below it, for a simulated GPU, the worst and the best arrangement are drawn, with a lane for each
/// stream and for each engine. The last line says whether overlapping is worth it.
///
/// With --kernel-ms, --upload-ms and --download-ms it is your own job: give the time that a batch takes in each stage, as
/// `sidestream diagnose` or a profiler reports it. With --sweep the job is compared at several batch sizes, one per line.
///
/// On a real GPU the arrangements consist of the driver's own calls, and each time is the median of several rounds in which all
/// of them run.
///
/// Exit code: 0 if the job was compared, 2 if an argument, the device or a file is at fault, 130 if --input was
/// interrupted.
#[derive(Parser, Clone)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Size of a batch: 64KiB, 4MiB, 1GiB or bytes
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = size::parse)]
    batch: u64,
    /// Compare at each of these sizes of a batch, such as 64KiB,1MiB,16MiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size::parse,
          conflicts_with_all = ["batch", "input", "trace", "kernel_ms"])]
    sweep: Vec<u64>,
    /// How many batches
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// How heavy the kernel is: multiplications and additions for each four bytes. To describe a job of your own, choose
    /// it so that `kernel` in the output shows your kernel's time
    #[arg(long, value_name = "STEPS", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    work: u32,
    #[command(flatten)]
    own: own::Times,
    /// Leave the results on the device
    #[arg(long, conflicts_with_all = ["input", "kernel_ms"])]
    no_download: bool,
    /// Maximum number of streams to compare, from 4 to 16
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(4..=16))]
    streams: u32,
    #[arg(long, default_value = "sim:h200", help = device::help("The GPU: cuda:0, cuda:1 and so on; {sim} or sim:FILE.toml; \
          auto: cuda:0 if there is one, otherwise sim:h200. On a real GPU every time is measured, in several rounds"))]
    pub device: String,
    /// The library of the CUDA driver, if not the system's own
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Stream the bytes of this file through the device in batches, verify them, and compare
    #[arg(long, value_name = "FILE", conflicts_with = "count")]
    input: Option<PathBuf>,
    /// Show instead what a priority gains for a kernel while background work fills the device: on a stream of the same priority
    /// and on an urgent one, by the length of the kernel, the length of the background blocks, and the number of background
    /// streams; and what a limit on the background work gains. On a real GPU this is measured and compared with the simulated
    /// H200
    #[arg(long, conflicts_with_all = ["batch", "count", "work", "sweep", "no_download", "streams", "input", "trace", "kernel_ms"])]
    background: bool,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Write the run of the best arrangement as a Chrome trace, which ui.perfetto.dev shows
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    width: Width,
}

/// One arrangement and its time.
struct Row {
    layout: Layout,
    time_ns: u64,
}

/// The job in every arrangement on one device.
struct Compared {
    job: Job,
    device_name: String,
    /// The profile of a simulated device.
    profile: Option<Profile>,
    /// How often each time was measured, if it was measured.
    rounds: Option<usize>,
    rows: Vec<Row>,
    /// The pipeline's time; `None` if its slots do not fit into memory.
    own_ns: Option<u64>,
    /// The time on one stream from pageable memory; `None` where it was not determined.
    pageable_ns: Option<u64>,
    limit: OverlapLimit,
    verdict: Verdict,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<Exit, Failure> {
    output::refuse_unwritable("--trace", args.trace.as_deref())?;
    match said(args, args.width.lines())? {
        Said::All(json, text) => output::say(args.json, || json, || text)?,
        Said::CutShort(words) => {
            print(format_args!("{words}\n"))?;
            return Ok(130);
        }
    }
    Ok(SUCCESS)
}

/// Returns what the command would print, as JSON and as text.
pub fn shown(args: &Args) -> Result<(Value, String), Failure> {
    match said(args, Lines::ANY)? {
        Said::All(json, text) => Ok((json, text)),
        Said::CutShort(words) => Err(Failure::input(words)),
    }
}

/// The output of the command.
enum Said {
    /// The result as JSON and, unless only JSON was asked for, as text.
    All(Value, String),
    /// A signal ended the run while a file was streamed; how far it was.
    CutShort(String),
}

fn said(args: &Args, lines: Lines) -> Result<Said, Failure> {
    let all = |(json, text)| Said::All(json, text);
    if !args.sweep.is_empty() {
        return sweep::compared(args, lines).map(all);
    }
    let named = args.named()?;
    if args.background {
        let driver = args.driver.as_deref();
        return background::compared(named, &args.device, driver, lines).map(all);
    }
    let (compared, streamed) = match named {
        Named::Cuda(number) => (measured(args, number)?, None),
        Named::Simulated(profile) => {
            let mut job = args.job_on(&profile)?;
            let streamed = match &args.input {
                Some(path) => Some(file::stream(path, &job, &profile)?),
                None => None,
            };
            if let Some((streamed, path)) = streamed.as_ref().zip(args.input.as_ref()) {
                if streamed.is_cut_short {
                    return Ok(Said::CutShort(streamed.in_words(path)));
                }
                job.count = compared_batches(path, streamed.batches)?;
            }
            (simulated(args, job, *profile)?, streamed)
        }
    };
    let json = compared.as_json(args, streamed.as_ref());
    let text = if args.json {
        String::new()
    } else {
        compared.as_text(args, streamed.as_ref(), lines)
    };
    Ok(Said::All(json, text))
}

/// Returns how many batches of a file are compared.
fn compared_batches(path: &Path, streamed: u64) -> Result<u32, Failure> {
    if streamed == 0 {
        return Err(Failure::input(format!(
            "{}: the file is empty, so there is nothing to stream; give one with at least one byte",
            crate::failure::shown(path)
        )));
    }
    let count = u32::try_from(streamed).unwrap_or(u32::MAX);
    Ok(count.min(MOST_BATCHES))
}

/// Compares the job on a real device.
fn measured(args: &Args, number: u32) -> Result<Compared, Failure> {
    let simulated_only = [
        ("--input", args.input.is_some()),
        ("--trace", args.trace.is_some()),
        ("--kernel-ms", args.own.kernel_ms.is_some()),
    ];
    if let Some((option, _)) = simulated_only.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::input(format!(
            "{option} needs a simulated device, such as --device sim:h200"
        )));
    }
    measured::compare(&args.job(), &args.layouts(), number, args.driver.as_deref())
}

/// Compares the job on a simulated device.
fn simulated(args: &Args, job: Job, profile: Profile) -> Result<Compared, Failure> {
    let limit = OverlapLimit::of(&profile, &job);
    let row = |&layout: &Layout| Row {
        layout,
        time_ns: job.time_ns(layout, &profile, Memory::Pinned),
    };
    let rows: Vec<Row> = args.layouts().iter().map(row).collect();
    let verdict = Verdict::of(job.count, &rows, &limit);
    // The library's pipeline always downloads.
    let own_ns = if job.own.is_none() && job.downloads {
        pipeline::time_ns(&job, &profile)?
    } else {
        None
    };
    let pageable_ns = Some(job.time_ns(Layout::Streams(1), &profile, Memory::Pageable));
    if let Some(path) = &args.trace {
        let trace = job.trace(rows[verdict.best].layout, &profile);
        output::write_trace(&trace, path)?;
    }
    Ok(Compared {
        job,
        device_name: profile.name.clone(),
        profile: Some(profile),
        rounds: None,
        rows,
        own_ns,
        pageable_ns,
        limit,
        verdict,
    })
}

impl Args {
    fn named(&self) -> Result<Named, Failure> {
        device::named(&self.device, self.driver.as_deref())
    }

    /// Returns the job on a simulated device.
    fn job_on(&self, profile: &Profile) -> Result<Job, Failure> {
        let own = self.own.stages(profile)?;
        let job = Job { own, ..self.job() };
        refuse_impossible(&job, self.streams, &profile.name, profile.memory_bytes())?;
        Ok(job)
    }

    fn job(&self) -> Job {
        Job {
            batch_bytes: self.batch,
            count: self.count,
            work: self.work,
            downloads: !self.no_download,
            own: None,
        }
    }

    fn layouts(&self) -> Vec<Layout> {
        Layout::up_to(self.streams)
    }
}

fn refuse_impossible(job: &Job, slots: u32, name: &str, memory_bytes: u64) -> Result<(), Failure> {
    if job.batch_bytes < 4 {
        return Err(Failure::input(
            "a batch holds at least one float; give 4 bytes or more",
        ));
    }
    // Four slots or more, each with an input and an output. With given times the bytes only represent a time.
    let slots = slots.max(4);
    let largest = memory_bytes / u64::from(2 * slots);
    if job.own.is_none() && job.batch_bytes > largest {
        let slots = match slots {
            4 => "four".to_owned(),
            slots => slots.to_string(),
        };
        return Err(Failure::input(format!(
            "{slots} slots of {} for input and {0} for output do not fit into the {} GiB of {}; \
             give {}MiB or less",
            size::show(job.batch_bytes),
            memory_bytes >> 30,
            name,
            largest >> 20,
        )));
    }
    Ok(())
}

/// The maximum number of batches of a file that are compared: each further batch takes as long as the previous ones.
const MOST_BATCHES: u32 = 100_000;
