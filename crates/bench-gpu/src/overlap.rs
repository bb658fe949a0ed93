//! The overlap job: the pipelines compared with every arrangement of raw calls.

use serde_json::{Value, json};
use sidestream_cli::failure::Failure;
use sidestream_cli::measure::jobs;
use sidestream_cli::measure::raw::job::RawJobs;
use sidestream_cli::measure::rounds::{Side, interleaved, median};
use sidestream_cli::overlap::job::{Job, Layout};
use sidestream_cli::overlap::size;

use super::Bench;
use super::table::{Bar, Row};

const BATCHES: u32 = 32;
const SIZES: [u64; 3] = [64 << 10, 4 << 20, 32 << 20];
const WORKS: [u32; 4] = [16, 256, 4096, 16384];
/// The size at which the host's calls are the limit, so that graphs are worthwhile.
const SMALL: u64 = SIZES[0];

const SLOTS: u32 = 4;
const GRAPH_SLOTS: u32 = 6;

/// All arrangements of one job, in milliseconds.
pub struct Compared {
    job: Job,
    raw: Vec<(Layout, f64)>,
    /// The library's pipeline and, for small batches, with a graph in each slot: with as many slots, and with more.
    own: Vec<f64>,
}

/// All rows about the overlap job, and the times of all arrangements.
pub fn rows(bench: &Bench) -> Result<(Vec<Row>, Vec<Compared>), Failure> {
    let raw = bench.gpu.as_ref().map(|gpu| {
        let most = SIZES.iter().copied().max().unwrap_or(0) as usize;
        RawJobs::new(gpu, most, BATCHES as usize, 4)
    });
    let raw = raw.transpose()?;
    let (mut pipelines, mut graphs, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for batch_bytes in SIZES {
        for work in WORKS {
            let job = Job {
                batch_bytes,
                count: BATCHES,
                work,
                downloads: true,
                own: None,
            };
            bench.progress(&format!("{}, work {work}", size::show(batch_bytes)));
            let (mut rows, compared) = compare(bench, raw.as_ref(), &job)?;
            graphs.extend(rows.drain(1..));
            pipelines.append(&mut rows);
            all.push(compared);
        }
    }
    pipelines.append(&mut graphs);
    Ok((pipelines, all))
}

/// Returns the rows of the job: the pipeline's, then those with graphs.
fn compare(
    bench: &Bench,
    raw: Option<&RawJobs<'_>>,
    job: &Job,
) -> Result<(Vec<Row>, Compared), Failure> {
    let is_small = job.batch_bytes == SMALL;
    let (rounds, bar) = if is_small {
        // The raw calls wait for no batch. An item of a pipeline costs the host 9,400 instructions beside three calls of
        // the driver, and its result is waited for; a graph in each slot is for batches as small as these.
        (bench.rounds.small_jobs, Bar::Ratio(1.6))
    } else {
        (bench.rounds.jobs, Bar::Ratio(1.03))
    };
    let mut sides: Vec<Side<'_>> = Vec::new();
    if let (Some(jobs), Some(gpu)) = (raw, &bench.gpu) {
        for layout in Layout::ALL {
            let raw_job = jobs.job(job);
            sides.push(Box::new(move || {
                gpu.enter()?;
                gpu.synchronize_all()?;
                let start_ns = bench.own.clock.now_ns();
                raw_job.run(layout)?;
                Ok((bench.own.clock.now_ns() - start_ns) as f64 / 1e6)
            }));
        }
    }
    let raw_sides = sides.len();
    sides.push(Box::new(|| jobs::on_streams(&bench.own, job, SLOTS)));
    let mut ours = vec![(format!("pipeline, {SLOTS} slots"), bar)];
    if is_small {
        for (slots, bar) in [(SLOTS, Bar::Ratio(1.10)), (GRAPH_SLOTS, Bar::Faster(1.2))] {
            sides.push(Box::new(move || jobs::on_graphs(&bench.own, job, slots)));
            let what = format!("pipeline, a graph per slot, {slots} slots");
            ours.push((what, bar));
        }
    }
    let times = interleaved(rounds, &mut sides)?;
    let (raw_times, own_times) = times.split_at(raw_sides);
    let medians = raw_times.iter().map(|times| median(times));
    let medians: Vec<(Layout, f64)> = Layout::ALL.into_iter().zip(medians).collect();
    let best = (0..medians.len()).min_by(|&a, &b| medians[a].1.total_cmp(&medians[b].1));
    let best_times = best.map(|best| raw_times[best].as_slice());
    let note = match best.map(|best| medians[best].0) {
        Some(layout) => format!("best raw: {} {}", layout.name(), layout.k()),
        None => String::new(),
    };
    let rows = ours.into_iter().zip(own_times).map(|((what, bar), times)| {
        let (size, work) = (size::show(job.batch_bytes), job.work);
        let what = format!("{what}, {BATCHES} x {size}, work {work}");
        Row::new(what, "ms", best_times, times, Some(bar)).note(note.clone())
    });
    let compared = Compared {
        job: *job,
        raw: medians,
        own: own_times.iter().map(|times| median(times)).collect(),
    };
    Ok((rows.collect(), compared))
}

impl Compared {
    pub fn as_json(&self) -> Value {
        let raw = self.raw.iter().map(|(layout, time_ms)| {
            json!({"layout": layout.name(), "k": layout.k(), "time_ms": time_ms})
        });
        json!({"batch_bytes": self.job.batch_bytes, "count": self.job.count, "work": self.job.work,
               "raw": raw.collect::<Vec<_>>(), "pipeline_ms": self.own[0], "graphs_ms": self.own.get(1..3)})
    }
}

/// All arrangements as a table.
pub fn as_text(all: &[Compared]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut out = "\nthe overlap job in every arrangement, ms\n".to_owned();
    out += &format!("{:>8} {:>6}", "batch", "work");
    let layouts = Layout::ALL.map(|layout| format!("{} {}", layout.name(), layout.k()));
    let graphs = [SLOTS, GRAPH_SLOTS].map(|slots| format!("graphs {slots}"));
    let own = ["pipeline".to_owned()].into_iter().chain(graphs);
    for title in layouts.into_iter().chain(own) {
        out += &format!(" {title:>9}");
    }
    out.push('\n');
    for compared in all {
        let size = size::show(compared.job.batch_bytes);
        out += &format!("{size:>8} {:>6}", compared.job.work);
        let raw = |at| compared.raw.get(at).map(|(_, time)| *time);
        let raw = (0..Layout::ALL.len()).map(raw);
        let own = (0..3).map(|at| compared.own.get(at).copied());
        for time in raw.chain(own) {
            let number = time.map_or("-".to_owned(), |time| format!("{time:.3}"));
            out += &format!(" {number:>9}");
        }
        out.push('\n');
    }
    out
}
