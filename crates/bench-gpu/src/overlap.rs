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
    pipeline: f64,
    /// With a graph in each slot: for the pipeline's number of slots, and for more.
    graphs: Option<[f64; 2]>,
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
            let compared = compare(bench, raw.as_ref(), &job)?;
            pipelines.push(compared.0);
            graphs.extend(compared.1.into_iter().flatten());
            all.push(compared.2);
        }
    }
    pipelines.append(&mut graphs);
    Ok((pipelines, all))
}

fn compare(
    bench: &Bench,
    raw: Option<&RawJobs<'_>>,
    job: &Job,
) -> Result<(Row, Option<[Row; 2]>, Compared), Failure> {
    let is_small = job.batch_bytes == SMALL;
    let rounds = match is_small {
        true => bench.rounds.small_jobs,
        false => bench.rounds.jobs,
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
    if is_small {
        for slots in [SLOTS, GRAPH_SLOTS] {
            sides.push(Box::new(move || jobs::on_graphs(&bench.own, job, slots)));
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
    let named = |what: &str| {
        let size = size::show(job.batch_bytes);
        format!("{what}, {BATCHES} x {size}, work {}", job.work)
    };
    let bar = match is_small {
        true => Bar::Ratio(1.10),
        false => Bar::Ratio(1.03),
    };
    let pipeline = Row::new(
        named(&format!("pipeline, {SLOTS} slots")),
        "ms",
        best_times,
        &own_times[0],
        Some(bar),
    );
    let graphs = own_times.get(1..3).map(|times| {
        let row = |slots: u32, times: &[f64], bar| {
            let what = named(&format!("pipeline, a graph per slot, {slots} slots"));
            Row::new(what, "ms", best_times, times, Some(bar)).note(note.clone())
        };
        let few = row(SLOTS, &times[0], bar);
        [few, row(GRAPH_SLOTS, &times[1], Bar::Faster(1.2))]
    });
    let compared = Compared {
        job: *job,
        raw: medians,
        pipeline: median(&own_times[0]),
        graphs: own_times
            .get(1..3)
            .map(|times| [0, 1].map(|at| median(&times[at]))),
    };
    Ok((pipeline.note(note), graphs, compared))
}

impl Compared {
    pub fn as_json(&self) -> Value {
        let raw = self.raw.iter().map(|(layout, time_ms)| {
            json!({"layout": layout.name(), "k": layout.k(), "time_ms": time_ms})
        });
        json!({"batch_bytes": self.job.batch_bytes, "count": self.job.count, "work": self.job.work,
               "raw": raw.collect::<Vec<_>>(), "pipeline_ms": self.pipeline, "graphs_ms": self.graphs})
    }
}

/// All arrangements as a table.
pub fn as_text(all: &[Compared]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut out = "\nthe overlap job in every arrangement, ms\n".to_owned();
    out += &format!("{:>8} {:>6}", "batch", "work");
    for layout in Layout::ALL {
        out += &format!(" {:>9}", format!("{} {}", layout.name(), layout.k()));
    }
    out += &format!(
        " {:>9} {:>9} {:>9}\n",
        "pipeline",
        format!("graphs {SLOTS}"),
        format!("graphs {GRAPH_SLOTS}")
    );
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.3}"));
    for compared in all {
        let size = size::show(compared.job.batch_bytes);
        out += &format!("{size:>8} {:>6}", compared.job.work);
        for at in 0..Layout::ALL.len() {
            let time = compared.raw.get(at).map(|(_, time)| *time);
            out += &format!(" {:>9}", number(time));
        }
        let [few, more] = [0, 1].map(|at| number(compared.graphs.map(|times| times[at])));
        out += &format!(
            " {:>9} {few:>9} {more:>9}\n",
            number(Some(compared.pipeline))
        );
    }
    out
}
