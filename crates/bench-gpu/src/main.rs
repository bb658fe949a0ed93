//! `sidestream-bench gpu`: the cost of the library, compared with the driver's own calls.

mod calls;
mod kernels;
mod overlap;
mod peers;
mod pieces;
mod table;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use serde_json::json;
use sidestream_cli::device::{self, Named};
use sidestream_cli::failure::{Failure, print, tell};
use sidestream_cli::measure::own::Own;
use sidestream_cli::measure::raw::Gpu;

use table::Row;

/// Measure the library while it is developed
#[derive(Parser)]
#[command(name = "sidestream-bench", version)]
enum Args {
    Gpu(GpuArgs),
}

/// Measure the library on a GPU, each figure compared with the driver's own calls
///
/// Every figure of the library is measured in turn with the driver's own calls for the same work, by
/// this program, in the same minute: in each round both sides run, in alternating order. The ratio is
/// taken round by round. The table shows medians, the tenth and the ninetieth percentile of the
/// ratio, and whether the bar is met.
///
/// Calls are timed on the host, in batches so short that none waits for the device. Jobs are timed
/// from before their first call until their last result has arrived.
///
/// Exit code: 0 even if a bar is not met, 2 if an argument is wrong or the device fails.
#[derive(Parser)]
struct GpuArgs {
    /// The GPU: cuda, cuda:0, cuda:1; a simulated one, such as sim:h200, is a dry run without the
    /// driver's side
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// The driver's library, if not the system's
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Only this part; may be given several times
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Three rounds of everything: too few for figures to rely on
    #[arg(long)]
    quick: bool,
}

/// A part of the table.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Single calls
    Calls,
    /// The overlap job in every arrangement
    Jobs,
    /// Many small uploads
    Pieces,
    /// Copies between two devices, where there are two
    Peers,
}

/// How often each part is measured.
struct Rounds {
    calls: usize,
    small_jobs: usize,
    jobs: usize,
}

/// The measured programs, and the numbers of their rounds.
struct Bench {
    /// The driver's side; absent for a simulated device.
    gpu: Option<Gpu>,
    own: Own,
    rounds: Rounds,
}

fn main() -> ExitCode {
    let Args::Gpu(args) = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tell(format_args!("sidestream-bench: {failure}"));
            ExitCode::from(failure.code())
        }
    }
}

fn run(args: &GpuArgs) -> Result<(), Failure> {
    let bench = Bench::open(args)?;
    let is_wanted = |part| args.part.is_empty() || args.part.contains(&part);
    let (mut rows, mut compared) = (Vec::new(), Vec::new());
    if is_wanted(Part::Calls) {
        bench.progress("calls");
        rows.extend(calls::rows(&bench)?);
    }
    if is_wanted(Part::Jobs) {
        let (jobs, all) = overlap::rows(&bench)?;
        rows.extend(jobs);
        compared = all;
    }
    if is_wanted(Part::Pieces) {
        bench.progress("pieces");
        rows.extend(pieces::rows(&bench)?);
    }
    if is_wanted(Part::Peers) && bench.gpu.is_some() {
        bench.progress("peers");
        rows.extend(peers::rows(args.driver.as_deref(), bench.rounds.jobs)?);
    }
    if args.json {
        let rows: Vec<_> = rows.iter().map(Row::as_json).collect();
        let overlap: Vec<_> = compared.iter().map(overlap::Compared::as_json).collect();
        let rounds = &bench.rounds;
        let all = json!({
            "schema": "sidestream.bench.gpu/1",
            "device": bench.device_name(),
            "driver": bench.gpu.as_ref().map(|gpu| format!("CUDA {}", gpu.cuda)),
            "rounds": {"calls": rounds.calls, "small_jobs": rounds.small_jobs, "jobs": rounds.jobs},
            "rows": rows,
            "overlap": overlap,
        });
        print(format_args!("{all}\n"))
    } else {
        print(bench.in_words(&rows, &compared))
    }
}

impl Bench {
    fn open(args: &GpuArgs) -> Result<Bench, Failure> {
        let (gpu, own) = match device::named(&args.device, args.driver.as_deref())? {
            Named::Cuda(number) => {
                let gpu = Gpu::open(args.driver.as_deref(), number)?;
                let own = Own::cuda(&gpu, number, args.driver.as_deref())?;
                (Some(gpu), own)
            }
            Named::Simulated(profile) => (None, Own::simulated(*profile)),
        };
        let [calls, small_jobs, jobs] = if args.quick { [3; 3] } else { [51, 31, 9] };
        let rounds = Rounds {
            calls,
            small_jobs,
            jobs,
        };
        Ok(Bench { gpu, own, rounds })
    }

    fn device_name(&self) -> &str {
        match &self.gpu {
            Some(gpu) => &gpu.name,
            None => self.own.device.name(),
        }
    }

    /// Prints what is being measured, if the output is a terminal.
    fn progress(&self, what: &str) {
        if std::io::stderr().is_terminal() {
            tell(format_args!("measuring: {what}"));
        }
    }

    fn in_words(&self, rows: &[Row], compared: &[overlap::Compared]) -> String {
        let Rounds {
            calls,
            small_jobs,
            jobs,
        } = self.rounds;
        let head = match &self.gpu {
            Some(gpu) => format!(
                "{}, driver for CUDA {} ({})",
                gpu.name,
                gpu.cuda,
                gpu.file()
            ),
            None => format!(
                "{}: a dry run. Calls cost what the simulator costs, jobs take simulated time; no bar \
                 applies",
                self.own.device.name()
            ),
        };
        let met = |is_met: bool| {
            rows.iter()
                .filter(|row| row.is_met() == Some(is_met))
                .count()
        };
        let (held, missed) = (met(true), met(false));
        let verdict = match self.gpu {
            Some(_) => format!("bars: {held} met, {missed} missed"),
            None => "bars: none judged".to_owned(),
        };
        format!(
            "{head}\nmedians of {calls} rounds for calls, {small_jobs} for small jobs, {jobs} for \
             others; raw and ours in turn in each\n\n{}\n{verdict}\n{}",
            table::as_text(rows),
            overlap::as_text(compared)
        )
    }
}
