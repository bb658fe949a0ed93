//! `sidestream overlap`: what overlapping copies with computing is worth for a job.

mod job;
mod limit;
mod size;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use sidestream::engine::Profile;
use sidestream::sim::memory_bytes;
use sidestream::trace::{Timeline, Trace};

use crate::device;
use crate::failure::{Failure, print};
use job::{Job, Layout};
use limit::OverlapLimit;

/// Show what overlapping copies with computing is worth
///
/// A job of COUNT batches is uploaded, computed on and downloaded: on one stream, on several, and
/// with a stream for each stage and a ring of slots between them. The table says how long each
/// takes, and how near that is to the limit that the engines set.
#[derive(Parser)]
pub struct Args {
    /// Size of a batch: 64KiB, 4MiB, 1GiB or bytes
    #[arg(long, default_value = "4MiB", value_parser = size::parse)]
    batch: u64,
    /// How many batches
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Steps of arithmetic for each four bytes
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    work: u32,
    /// The GPU: sim:h200, sim:a100, sim:a10g, sim:rtx4090 or sim:FILE.toml
    #[arg(long, default_value = "sim:h200")]
    device: String,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Write the best arrangement as a Chrome trace, for Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// One arrangement and how it did.
struct Row {
    layout: Layout,
    time_ns: u64,
    trace: Trace,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<ExitCode, Failure> {
    let profile = device::open(&args.device)?;
    let job = Job {
        batch_bytes: args.batch,
        count: args.count,
        work: args.work,
    };
    refuse_impossible(&job, &profile)?;
    let limit = OverlapLimit::of(&profile, &job);
    let row = |&layout: &Layout| {
        let (time_ns, trace) = job.run(layout, &profile);
        Row {
            layout,
            time_ns,
            trace,
        }
    };
    let rows: Vec<Row> = Layout::ALL.iter().map(row).collect();
    let verdict = Verdict::of(&rows, &limit);
    if let Some(path) = &args.trace {
        let file = std::fs::File::create(path).map_err(|e| Failure::file("create", path, &e))?;
        let written = rows[verdict.best].trace.write_json(file);
        written.map_err(|e| Failure::file("write", path, &e))?;
    }
    if args.json {
        print(format_args!(
            "{}\n",
            as_json(args, &profile, &rows, &limit, &verdict)
        ))?;
    } else {
        print(as_text(&job, &profile, &rows, &limit, &verdict))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn refuse_impossible(job: &Job, profile: &Profile) -> Result<(), Failure> {
    if job.batch_bytes < 4 {
        return Err(Failure::input(
            "a batch holds at least one float; give --batch 4 or more",
        ));
    }
    // Four slots, each with an input and an output.
    let needed = job.batch_bytes.saturating_mul(8);
    let memory = memory_bytes(profile);
    if needed > memory {
        return Err(Failure::input(format!(
            "four slots of {} take {needed} bytes, {} has {memory}; give a smaller --batch",
            size::show(job.batch_bytes),
            profile.name,
        )));
    }
    Ok(())
}

/// Which arrangement won, and what that means.
struct Verdict {
    best: usize,
    worst: usize,
    text: String,
}

impl Verdict {
    fn of(rows: &[Row], limit: &OverlapLimit) -> Verdict {
        let by_time = |&i: &usize| rows[i].time_ns;
        let best = (0..rows.len()).min_by_key(by_time).unwrap_or(0);
        let worst = (0..rows.len()).max_by_key(by_time).unwrap_or(0);
        let (one, fastest) = (rows[0].time_ns as f64, rows[best].time_ns as f64);
        let saved = 100.0 * (1.0 - fastest / one);
        let binds = limit.binds();
        let arrangement = describe(rows[best].layout);
        let text = if saved < 5.0 {
            format!(
                "Do not bother: one stream is as good. {binds}, and hiding the rest saves {saved:.1} %."
            )
        } else if saved < 15.0 {
            format!(
                "A little: {arrangement} saves {saved:.0} %. {binds}; most of the time cannot be hidden."
            )
        } else {
            format!(
                "Worth it: {arrangement} is {:.2} times as fast as one stream. {binds}.",
                one / fastest
            )
        };
        Verdict { best, worst, text }
    }
}

fn describe(layout: Layout) -> String {
    match layout {
        Layout::Streams(1) => "one stream".to_owned(),
        Layout::Streams(k) => format!("{k} streams, a batch on each in turn,"),
        Layout::Ring(d) => format!("a stream for each stage with {d} slots"),
    }
}

fn as_json(
    args: &Args,
    profile: &Profile,
    rows: &[Row],
    limit: &OverlapLimit,
    verdict: &Verdict,
) -> serde_json::Value {
    let row = |row: &Row| {
        json!({"layout": row.layout.name(), "k": row.layout.k(), "time_ns": row.time_ns,
               "share": limit.total_ns as f64 / row.time_ns as f64})
    };
    json!({
        "schema": "sidestream.overlap/1",
        "device": args.device,
        "device_name": profile.name,
        "simulated": true,
        "batch_bytes": args.batch,
        "count": args.count,
        "work": args.work,
        "stages": {"upload_ns": limit.upload_ns, "kernel_ns": limit.kernel_ns,
                   "download_ns": limit.download_ns, "both_ways_ns": limit.both_ways_ns},
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "limit_ns": limit.total_ns,
        "verdict": verdict.text,
    })
}

fn as_text(
    job: &Job,
    profile: &Profile,
    rows: &[Row],
    limit: &OverlapLimit,
    verdict: &Verdict,
) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(format!(
        "{} batches of {}, work {}, on a simulated {}",
        job.count,
        size::show(job.batch_bytes),
        job.work,
        profile.name
    ));
    line(format!(
        "one batch: upload {}, kernel {}, download {}; both ways at once {}",
        time(limit.upload_ns),
        time(limit.kernel_ns),
        time(limit.download_ns),
        time(limit.both_ways_ns)
    ));
    line(String::new());
    line("  arrangement                       time      of the limit".to_owned());
    for (at, row) in rows.iter().enumerate() {
        let name = match row.layout {
            Layout::Streams(1) => "1 stream".to_owned(),
            Layout::Streams(k) => format!("{k} streams, a batch each"),
            Layout::Ring(d) => format!("stream per stage, {d} slots"),
        };
        let mark = if at == verdict.best { "  <- best" } else { "" };
        let share = 100.0 * limit.total_ns as f64 / row.time_ns as f64;
        line(format!(
            "  {name:28} {:>12} {share:>9.1} %{mark}",
            time(row.time_ns)
        ));
    }
    line(format!(
        "  {:28} {:>12}   {}",
        "limit",
        time(limit.total_ns),
        limit.why()
    ));
    // Both on one scale: as long as the worst takes for four batches.
    let worst_ns = rows[verdict.worst].time_ns;
    let until_ns = worst_ns.min(worst_ns * 4 / u64::from(job.count));
    let pictures = [("worst", verdict.worst), ("best", verdict.best)];
    for (what, at) in pictures {
        let row = &rows[at];
        let layout = describe(row.layout);
        let timeline = Timeline::new(&row.trace, 100).between(0, until_ns);
        line(format!("\nThe {what}, {}:", layout.trim_end_matches(',')));
        line(timeline.to_string());
    }
    line(format!("\n{}", verdict.text));
    out
}

/// A time as people read it.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.2} us", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}
