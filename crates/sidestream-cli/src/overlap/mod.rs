//! `sidestream overlap`: what overlapping copies with computing is worth for a job.

mod background;
mod file;
pub mod job;
mod limit;
mod measured;
mod own;
mod pipeline;
pub mod size;
mod sweep;

use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::json;
use sidestream::engine::Profile;

use crate::device::{self, Named};
use crate::failure::{Exit, Failure, SUCCESS, print};
use crate::width::{Lines, Width};
use file::Streamed;
use job::{Job, Layout};
use limit::OverlapLimit;

/// Show what overlapping copies with computing is worth
///
/// A job of COUNT batches is uploaded, computed on and downloaded: batch after batch on one stream;
/// on several streams, each with batches and slots of its own; with a stream for each of the three
/// stages and a ring of slots between them; and by the library's pipeline, which also waits for a
/// slot before it fills it again. A slot is the device memory for the input and the output of one
/// batch.
///
/// The table says how long each arrangement takes, and which share of the limit it reaches: the
/// time in which the copies, the kernels or the host's calls alone could be done. Below it, for a
/// simulated GPU, the worst and the best arrangement are drawn, a lane for each stream and for each
/// engine. The last line says whether overlapping is worth it.
///
/// With --kernel-ms, --upload-ms and --download-ms it is your own job: what a batch takes of each stage, as `sidestream
/// diagnose` or a profiler says. With --sweep the job is compared at several sizes of a batch, a line each.
///
/// On a real GPU the arrangements are made of the driver's own calls, and each time is the median of
/// several rounds in which all of them run.
///
/// Exit code: 0 if the job was compared, 2 if an argument, the device or a file is at fault, 130 if --input was
/// interrupted.
#[derive(Parser)]
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
    /// Up to so many streams, from 4 to 16
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(4..=16))]
    streams: u32,
    /// The GPU: cuda:0, cuda:1 and so on; sim:h200, sim:a100, sim:a10g, sim:rtx4090 or sim:FILE.toml;
    /// auto for cuda:0 if there is one. On a real GPU every time is measured, in several rounds
    #[arg(long, default_value = "sim:h200")]
    pub device: String,
    /// The library of the CUDA driver, if not the one that the system has
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Stream the bytes of this file through the device in batches, verify them, and compare
    #[arg(long, value_name = "FILE", conflicts_with = "count")]
    input: Option<PathBuf>,
    /// What a priority is worth instead: how long a kernel takes beside work that fills the device, on a stream of the same
    /// priority and on an urgent one, by the length of the kernel, of the blocks beside it, and the number of streams that
    /// these are on. On a real GPU it is measured, and the simulated H200 stands beside it
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

/// One arrangement and how it did.
struct Row {
    layout: Layout,
    time_ns: u64,
}

/// The job in every arrangement on one device.
struct Compared {
    job: Job,
    device_name: String,
    /// Of a simulated device.
    profile: Option<Profile>,
    /// How often each time was measured, if it was.
    rounds: Option<usize>,
    rows: Vec<Row>,
    /// The pipeline's time; none if its slots find no room.
    own_ns: Option<u64>,
    /// The time on one stream from pageable memory; none where it was not looked at.
    pageable_ns: Option<u64>,
    limit: OverlapLimit,
    verdict: Verdict,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<Exit, Failure> {
    if let Some(said) = args.other_than_one_job(args.width.lines()) {
        let (json, text) = said?;
        match args.json {
            true => print(format_args!("{json}\n"))?,
            false => print(text)?,
        }
        return Ok(SUCCESS);
    }
    let (compared, streamed) = match compare(args)? {
        Outcome::Compared(compared, streamed) => (compared, streamed),
        Outcome::CutShort(words) => {
            print(format_args!("{words}\n"))?;
            return Ok(130);
        }
    };
    match args.json {
        true => print(format_args!(
            "{}\n",
            compared.as_json(args, streamed.as_ref())
        ))?,
        false => {
            if let (Some(streamed), Some(path)) = (&streamed, &args.input) {
                let words = format!("{}\n\n", streamed.in_words(path));
                print(args.width.lines().wrapped(&words))?;
            }
            print(compared.as_text(args.width.lines()))?;
        }
    }
    Ok(SUCCESS)
}

/// What the command would print, both ways.
pub fn shown(args: &Args) -> Result<(serde_json::Value, String), Failure> {
    if let Some(said) = args.other_than_one_job(Lines::ANY) {
        return said;
    }
    match compare(args)? {
        Outcome::Compared(compared, streamed) => {
            let json = compared.as_json(args, streamed.as_ref());
            Ok((json, compared.as_text(Lines::ANY)))
        }
        Outcome::CutShort(words) => Err(Failure::input(words)),
    }
}

/// What came of it.
enum Outcome {
    Compared(Box<Compared>, Option<Streamed>),
    /// Somebody stopped it while a file went through; how far it was.
    CutShort(String),
}

fn compare(args: &Args) -> Result<Outcome, Failure> {
    match device::named(&args.device, args.driver.as_deref())? {
        Named::Simulated(profile) => simulated(args, *profile),
        Named::Cuda(number) => measured(args, number),
    }
}

/// The job on a real device.
fn measured(args: &Args, number: u32) -> Result<Outcome, Failure> {
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
    let compared = measured::compare(&args.job(), &args.layouts(), number, args.driver.as_deref())?;
    Ok(Outcome::Compared(Box::new(compared), None))
}

/// The job on a simulated device.
fn simulated(args: &Args, profile: Profile) -> Result<Outcome, Failure> {
    let mut job = args.job();
    job.own = args.own.stages(&profile)?;
    refuse_impossible(&job, args.streams, &profile.name, profile.memory_bytes())?;
    let streamed = match &args.input {
        None => None,
        Some(path) => {
            let streamed = file::stream(path, &job, &profile)?;
            if streamed.is_cut_short {
                return Ok(Outcome::CutShort(streamed.in_words(path)));
            }
            if streamed.batches == 0 {
                return Err(Failure::input(format!(
                    "{}: the file is empty, so there is nothing to stream; give one with at least a byte",
                    crate::failure::shown(path)
                )));
            }
            job.count = u32::try_from(streamed.batches)
                .unwrap_or(u32::MAX)
                .min(MOST_BATCHES);
            Some(streamed)
        }
    };
    let limit = OverlapLimit::of(&profile, &job);
    let row = |&layout: &Layout| Row {
        layout,
        time_ns: job.time_ns(layout, &profile),
    };
    let rows: Vec<Row> = args.layouts().iter().map(row).collect();
    let verdict = Verdict::of(job.count, &rows, &limit);
    // The library's pipeline always downloads.
    let own_ns = match job.own.is_none() && job.downloads {
        true => pipeline::time_ns(&job, &profile)?,
        false => None,
    };
    let pageable_ns = Some(job.pageable_ns(&profile));
    if let Some(path) = &args.trace {
        let trace = job.trace(rows[verdict.best].layout, &profile);
        let file = std::fs::File::create(path).map_err(|e| Failure::file("create", path, &e))?;
        let written = trace.write_json(file);
        written.map_err(|e| Failure::file("write", path, &e))?;
    }
    let compared = Compared {
        job,
        device_name: profile.name.clone(),
        profile: Some(profile),
        rounds: None,
        rows,
        own_ns,
        pageable_ns,
        limit,
        verdict,
    };
    Ok(Outcome::Compared(Box::new(compared), streamed))
}

impl Args {
    /// What `--background` and `--sweep` say.
    fn other_than_one_job(
        &self,
        lines: Lines,
    ) -> Option<Result<(serde_json::Value, String), Failure>> {
        if self.background {
            let named = device::named(&self.device, self.driver.as_deref());
            let driver = self.driver.as_deref();
            return Some(
                named.and_then(|named| background::compared(named, &self.device, driver, lines)),
            );
        }
        (!self.sweep.is_empty()).then(|| sweep::compared(self, lines))
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
    // Four slots or more, each with an input and an output.
    let slots = u64::from(slots.max(4));
    let largest = memory_bytes / (2 * slots);
    if job.own.is_some() {
        // The bytes stand for a time.
        return Ok(());
    }
    if job.batch_bytes > largest {
        let slots = if slots == 4 {
            "four".to_owned()
        } else {
            slots.to_string()
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

/// Of a file with more batches only so many are compared: the rest takes as long again and again.
const MOST_BATCHES: u32 = 100_000;

/// The share of the copies in the time of a batch below which hiding them is worth nothing.
const NOTHING_TO_HIDE: f64 = 0.02;

/// Which arrangement won, and what that means.
struct Verdict {
    best: usize,
    worst: usize,
    text: String,
}

impl Verdict {
    fn of(count: u32, rows: &[Row], limit: &OverlapLimit) -> Verdict {
        let by_time = |&i: &usize| rows[i].time_ns;
        let best = (0..rows.len()).min_by_key(by_time).unwrap_or(0);
        let worst = (0..rows.len()).max_by_key(by_time).unwrap_or(0);
        let (one, fastest) = (rows[0].time_ns as f64, rows[best].time_ns as f64);
        let saved = 100.0 * (1.0 - fastest / one);
        let set_by = limit.set_by();
        let arrangement = describe(rows[best].layout);
        // Hiding copies ends at the kernels one after the other; what is faster is kernels that ran
        // side by side.
        let kernels = f64::from(count) * limit.kernel_ns as f64;
        let mut text = if count == 1 {
            "Do not bother: one batch has nothing to overlap with.".to_owned()
        } else if saved < 15.0 && limit.copies_share() < NOTHING_TO_HIDE && fastest < kernels {
            format!(
                "Do not bother: the copies are {} of the time; what streams gain here is kernels \
                 side by side, {}.",
                percent(100.0 * limit.copies_share()),
                percent(saved)
            )
        } else if saved < 5.0 {
            format!(
                "Do not bother: overlap saves {saved:.1} % of the time, as {set_by} take nearly \
                 all of it."
            )
        } else if saved < 15.0 {
            format!(
                "A little: {arrangement}, the job takes {saved:.0} % less time than on one stream. \
                 Most of the time cannot be hidden, as {set_by} take it."
            )
        } else {
            format!(
                "Worth it: {arrangement}, the job is {:.2} times as fast as on one stream.",
                one / fastest
            )
        };
        if count > 1 && saved >= 15.0 && kernels - fastest > one - kernels {
            text += &format!(
                " Most of that is small kernels side by side, not hidden copies: the copies are {} \
                 of the time.",
                percent(100.0 * limit.copies_share())
            );
        }
        let share = limit.total_ns as f64 / fastest;
        if count > 1 && limit.is_set_by_calls() {
            text += " The host's calls set the limit: fewer, larger batches or a graph would gain \
                     more.";
        } else if count > 1 && share < 0.75 && limit.leaves_device_empty() {
            text += " That is still far from the limit, as one kernel fills only a part of the \
                     GPU: larger batches, or more streams, would do better.";
        }
        Verdict { best, worst, text }
    }
}

/// A share of the time as people read it.
fn percent(percent: f64) -> String {
    if percent < 0.05 {
        "under 0.1 %".to_owned()
    } else {
        format!("{percent:.1} %")
    }
}

/// An arrangement, as the start of a sentence goes on.
fn describe(layout: Layout) -> String {
    match layout {
        Layout::Streams(1) => "on one stream".to_owned(),
        Layout::Streams(k) => format!("on {k} streams, a batch on each in turn"),
        Layout::Ring(d) => format!("with a stream for each stage and {d} slots"),
    }
}

impl Compared {
    fn as_json(&self, args: &Args, streamed: Option<&Streamed>) -> serde_json::Value {
        let limit = &self.limit;
        let row = |layout: &str, k: u32, time_ns: u64| {
            json!({"layout": layout, "k": k, "time_ns": time_ns,
                   "share": limit.total_ns as f64 / time_ns as f64})
        };
        let raw = self.rows.iter();
        let raw = raw.map(|r| row(r.layout.name(), r.layout.k(), r.time_ns));
        let own = self
            .own_ns
            .map(|time_ns| row("pipeline", pipeline::SLOTS, time_ns));
        let mut object = json!({
            "schema": "sidestream.overlap/1",
            "device": args.device,
            "device_name": self.device_name,
            "simulated": self.profile.is_some(),
            "batch_bytes": if self.job.own.is_some() { None } else { Some(self.job.batch_bytes) },
            "count": self.job.count,
            "work": if self.job.own.is_some() { None } else { Some(self.job.work) },
            "stages": {"upload_ns": limit.upload_ns, "kernel_ns": limit.kernel_ns,
                       "download_ns": limit.download_ns, "both_ways_ns": limit.both_ways_ns},
            "long_run": limit.in_the_long_run(),
            "pageable_ns": self.pageable_ns,
            "rows": raw.chain(own).collect::<Vec<_>>(),
            "limit_ns": limit.total_ns,
            "verdict": self.verdict.text,
        });
        if let Some(rounds) = self.rounds {
            object["rounds"] = json!(rounds);
        }
        if let Some(streamed) = streamed {
            object["input"] = json!({"bytes": streamed.bytes, "batches": streamed.batches,
                "time_ns": streamed.time_ns, "checksum": format!("{:016x}", streamed.checksum),
                "device_bytes": streamed.device_bytes, "pinned_bytes": streamed.pinned_bytes});
        }
        object
    }

    fn as_text(&self, lines: Lines) -> String {
        let Compared {
            job,
            device_name,
            profile,
            rounds,
            rows,
            own_ns,
            pageable_ns,
            limit,
            verdict,
        } = self;
        let mut out = String::new();
        let mut line = |text: String| {
            out.push_str(text.trim_end());
            out.push('\n');
        };
        let batches = if job.count == 1 { "batch" } else { "batches" };
        let what = match job.own {
            Some(_) => format!("{} {batches} of your own", job.count),
            None => {
                let size = size::show(job.batch_bytes);
                format!("{} {batches} of {size}, work {}", job.count, job.work)
            }
        };
        line(format!(
            "{what}, on {}{}",
            if profile.is_some() {
                "a simulated "
            } else {
                ""
            },
            device_name
        ));
        let copy = |name: &str, ns: u64, bytes: u64| match bytes {
            0 => format!("no {name}"),
            _ => format!("{name} {}", time(ns)),
        };
        let both_ways = match job.upload_bytes() > 0 && job.download_bytes() > 0 {
            true => format!("; both ways at once {}", time(limit.both_ways_ns)),
            false => String::new(),
        };
        line(format!(
            "one batch: {}, kernel {}, {}{both_ways}",
            copy("upload", limit.upload_ns, job.upload_bytes()),
            time(limit.kernel_ns),
            copy("download", limit.download_ns, job.download_bytes()),
        ));
        if let Some(rounds) = rounds {
            line(format!(
                "medians of {rounds} rounds, in each of which all take turns; pinned memory is not refilled"
            ));
        }
        line(String::new());
        let table = Table::of(lines);
        line(table.head());
        for (at, row) in rows.iter().enumerate() {
            let name = match row.layout {
                Layout::Streams(1) => "1 stream".to_owned(),
                Layout::Streams(k) => format!("{k} streams, a batch each"),
                Layout::Ring(d) => format!("stream per stage, {d} slots"),
            };
            let mark = if at == verdict.best { "  <- best" } else { "" };
            let share = 100.0 * limit.total_ns as f64 / row.time_ns as f64;
            line(table.share(&name, row.time_ns, share) + mark);
        }
        if let Some(time_ns) = *own_ns {
            let name = format!("pipeline, {} slots", pipeline::SLOTS);
            let share = 100.0 * limit.total_ns as f64 / time_ns as f64;
            line(table.share(&name, time_ns, share));
        }
        let gap = if table.is_narrow() { " " } else { "   " };
        let set_by = format!("{gap}set by {}", limit.set_by());
        line(table.row("limit", &time(limit.total_ns), &set_by));
        if let (Some(time_ns), Some(profile)) = (*pageable_ns, profile) {
            let (bytes, pinned_ns, pageable, what) = match job.upload_bytes() {
                0 => (
                    job.download_bytes(),
                    limit.download_ns,
                    profile.pageable_download_gb_s,
                    "downloads",
                ),
                bytes => (
                    bytes,
                    limit.upload_ns,
                    profile.pageable_upload_gb_s,
                    "uploads",
                ),
            };
            let pinned = bytes as f64 / pinned_ns.max(1) as f64;
            let of = format!("{gap}{what} at {pageable:.1} GB/s; pinned {pinned:.1} GB/s");
            line(table.row("1 stream, pageable memory", &time(time_ns), &of));
        }
        if job.own.is_some() {
            line(format!(
                "\nThe more batches there are, the nearer it comes to {:.3} times as fast as stage after stage.",
                limit.in_the_long_run()
            ));
        }
        if let Some(profile) = profile {
            line(self.pictures(profile, lines));
        }
        line(format!("\n{}", verdict.text));
        lines.wrapped(&out)
    }

    /// The worst and the best arrangement, drawn.
    fn pictures(&self, profile: &Profile, lines: Lines) -> String {
        let Compared {
            job, rows, verdict, ..
        } = self;
        // Both on one scale: as long as the worst takes for four batches.
        let worst_ns = rows[verdict.worst].time_ns;
        let until_ns = worst_ns.min(worst_ns * 4 / u64::from(job.count));
        let pictures = [("worst", verdict.worst), ("best", verdict.best)];
        let picture = |(what, at): (&str, usize)| {
            let layout = rows[at].layout;
            let trace = job.trace(layout, profile);
            let timeline = lines.timeline(&trace).between(0, until_ns).to_string();
            format!(
                "\nThe {what}, {}:\n{}\n",
                describe(layout),
                timeline.trim_end()
            )
        };
        pictures.map(picture).concat()
    }
}

/// The columns of the table, which are closer together where lines are short.
struct Table {
    margin: usize,
    name: usize,
    time: usize,
    share: usize,
}

/// A line of the usual table, with the mark of the best.
const USUAL_TABLE: usize = 64;

impl Table {
    fn of(lines: Lines) -> Table {
        match lines.columns {
            Some(columns) if columns < USUAL_TABLE => Table {
                margin: 0,
                name: 25,
                time: 9,
                share: 4,
            },
            _ => Table {
                margin: 2,
                name: 28,
                time: 12,
                share: 9,
            },
        }
    }

    fn head(&self) -> String {
        match self.is_narrow() {
            true => self.row("arrangement", "time", "    %"),
            false => self.row("arrangement", "time   ", " share of limit"),
        }
    }

    fn row(&self, name: &str, time: &str, rest: &str) -> String {
        let &Table {
            margin,
            name: n,
            time: t,
            ..
        } = self;
        format!("{:margin$}{name:n$} {time:>t$}{rest}", "")
    }

    fn share(&self, name: &str, time_ns: u64, share: f64) -> String {
        let width = self.share;
        let unit = if self.is_narrow() { "" } else { " %" };
        self.row(name, &time(time_ns), &format!(" {share:>width$.1}{unit}"))
    }

    fn is_narrow(&self) -> bool {
        self.margin == 0
    }
}

impl Streamed {
    fn in_words(&self, path: &Path) -> String {
        format!(
            "{}{} bytes of {} went through the device in {} batches and came back right, checksum \
             {:016x}\n{} of simulated time, reading and verifying aside; {} MiB of device memory and {} MiB \
             pinned",
            if self.is_cut_short {
                "ended early: "
            } else {
                ""
            },
            self.bytes,
            crate::failure::shown(path),
            self.batches,
            self.checksum,
            time(self.time_ns),
            self.device_bytes.div_ceil(1 << 20),
            self.pinned_bytes.div_ceil(1 << 20),
        )
    }
}

/// A time as people read it.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.2} µs", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}
