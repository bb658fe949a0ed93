//! `sidestream-augment`: decodes, uploads, augments and downloads a folder of pictures, all concurrently.

mod failure;
mod job;
mod sheet;
mod statistics;
mod stop;
mod write;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::json;
use sidestream::device::DeviceName;
use sidestream_images::augment::{self, Form, Kind, Layout, Operator, Plan};
use sidestream_images::load::OnBroken;
use sidestream_images::source::{self, Dataset};

use failure::{Failure, print, shown};
use job::{Asked, Outcome};
use statistics::Statistics;
use stop::Stop;
use write::{Writer, Written};

/// Decode, upload and augment pictures concurrently, and write the results or their statistics
///
/// PATH is a folder (with a sub-folder for each class), a text file with a path or `path,label` in each line, or an
/// archive (`.tar`) in WebDataset's layout. Without PATH, forty generated pictures are used.
///
/// Worker threads decode only what the operators need of a picture, into pinned memory, while the GPU augments
/// earlier batches. Random parameters depend on the seed, the epoch and the picture alone. On a simulated GPU the
/// results are equal, and its times are simulated.
///
/// Under torchrun each process takes its share (RANK and WORLD_SIZE), and adds its rank to the names of its files.
///
/// While a file is written its name ends in `.part`; one that a killed run left behind is overwritten. After Ctrl-C
/// or SIGTERM the file contains the batches that were complete by then, and gets its name. A second signal ends the
/// program at once, and removes the file.
///
/// Exit code: 0 if all went well, 2 if the input, an argument or the device is at fault, 130 after Ctrl-C, 143 after SIGTERM.
#[derive(Parser)]
#[command(name = "sidestream-augment", version)]
struct Args {
    /// Folder, list or archive
    path: Option<PathBuf>,
    /// Operators with torchvision's names and arguments, such as "RandomResizedCrop(224) RandomHorizontalFlip()"
    #[arg(long, value_name = "OPERATORS", default_value = USUAL)]
    ops: String,
    /// Use one launch for each operator, as in torchvision's sequence, for comparison
    #[arg(long)]
    no_fuse: bool,
    /// Write the pictures: FILE.npy, with their labels in FILE.labels.npy, or FILE.safetensors
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print mean, deviation and range of each colour before `Normalize`, which takes the first two as arguments
    #[arg(long)]
    stats: bool,
    /// Write a contact sheet of sixteen pictures, unchanged and augmented (of several ranks, the first writes it)
    #[arg(long, value_name = "FILE.png")]
    sheet: Option<PathBuf>,
    /// Pictures in a batch
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    batch: u32,
    /// Number of passes over the pictures
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// Seed of the order and of the random parameters
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Process the pictures in the order of their names
    #[arg(long)]
    in_order: bool,
    /// Type of the results; without ToDtype it is u8
    #[arg(long, value_parser = one_of(KINDS))]
    dtype: Option<Kind>,
    /// Order of the values of a result
    #[arg(long, value_parser = one_of(LAYOUTS), default_value = "nchw")]
    layout: Layout,
    /// What happens to broken files: `fail` ends the run, `skip` leaves them out, `replace` takes another picture
    #[arg(long, value_parser = one_of(BROKEN), default_value = "skip")]
    broken: OnBroken,
    /// Number of threads that decode, up to 1024; by default one per processor
    #[arg(long, default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u16).range(0..=1024))]
    workers: u16,
    /// Batches on the device at once; by default chosen from the times of the first three, which run alone
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    depth: Option<u16>,
    /// Maximum pinned memory of a batch, in MiB; by default computed from the headers of the largest pictures
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    slab_mib: Option<u64>,
    /// Index of this process's share of the pictures, from 0; torchrun's RANK if that is set
    #[arg(long, requires = "world")]
    rank: Option<u32>,
    /// Number of shares; torchrun's WORLD_SIZE if that is set
    #[arg(long, requires = "rank", value_parser = clap::value_parser!(u32).range(1..))]
    world: Option<u32>,
    #[arg(long, default_value = "auto", help = format!("The GPU: auto, cuda:0 and so on; {} or sim:FILE.toml", DeviceName::built_in()))]
    device: String,
    /// Library of the CUDA driver, if not the system's
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// The usual augmentation of training.
const USUAL: &str = "RandomResizedCrop(224) RandomHorizontalFlip() ToDtype(scale=True) \
                     Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))";

/// Parses one of these values by its name.
fn one_of<T: Clone + Send + Sync + 'static>(
    all: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(all.iter().map(|(name, _)| *name));
    names.map(|given| {
        let found = all.iter().find(|(name, _)| *name == given);
        found.expect("it is one of the names").1.clone()
    })
}

const KINDS: &[(&str, Kind)] = &[
    ("f32", Kind::F32),
    ("f16", Kind::F16),
    ("bf16", Kind::Bf16),
    ("u8", Kind::U8),
];
const LAYOUTS: &[(&str, Layout)] = &[("nchw", Layout::Nchw), ("nhwc", Layout::Nhwc)];
const BROKEN: &[(&str, OnBroken)] = &[
    ("fail", OnBroken::Fail),
    ("skip", OnBroken::Skip),
    ("replace", OnBroken::Replace),
];

fn main() -> ExitCode {
    let code = run(&Args::parse()).unwrap_or_else(|failure| {
        // If standard error is closed (`2>&1 | head`), the exit code still reports the failure.
        let _ = writeln!(std::io::stderr().lock(), "sidestream-augment: {failure}");
        2
    });
    ExitCode::from(code)
}

/// Runs the command, and returns its exit code.
fn run(args: &Args) -> Result<u8, Failure> {
    let plan = plan(args)?;
    let form = form(args, &plan)?;
    let data = Arc::new(data(args)?);
    let (rank, world) = share(args)?;
    let stop = Stop::on_signals()?;
    let mut writer = match &args.out {
        Some(file) => Some(Writer::create(
            &write::named(file, rank, world),
            form,
            &stop,
        )?),
        None => None,
    };
    let mut labels = BTreeMap::new();
    let mut statistics = args.stats.then(|| Statistics::before(normalized(&plan)));
    // All ranks would draw the same sheet, so only one does.
    let sheet = args.sheet.as_ref().filter(|_| rank == 0);
    if let Some(file) = sheet {
        sheet::write(file, &data, &plan, args.seed)?;
    }
    let asked = Asked {
        plan: plan.clone(),
        form,
        device: &args.device,
        driver: args.driver.as_deref(),
        epochs: args.epochs,
        depth: args.depth.map(usize::from),
        slab_bytes: args.slab_mib.map(|mib| mib << 20),
        load: sidestream_images::load::Options {
            batch: args.batch,
            seed: args.seed,
            shuffle: !args.in_order,
            rank,
            world,
            workers: usize::from(args.workers),
            broken: args.broken,
            ..Default::default()
        },
    };
    let outcome = job::run(&asked, &data, &stop, |batch| {
        for label in batch.labels.iter().filter(|label| **label >= 0) {
            *labels.entry(*label).or_insert(0_u64) += 1;
        }
        if let Some(statistics) = &mut statistics {
            statistics.add(batch, form);
        }
        match &mut writer {
            Some(writer) => writer.add(batch),
            None => Ok(()),
        }
    })?;
    // Without pictures there is nothing to write.
    let written = match writer.filter(|_| outcome.pictures > 0) {
        Some(writer) => Some(writer.finish()?),
        None => None,
    };
    let interrupted = stop.code();
    if args.json {
        let mut json = outcome.json(&data, statistics.as_ref());
        json["interrupted"] = interrupted.is_some().into();
        json["labels"] = counts(&labels, data.classes());
        let text = |file: &std::path::Path| file.to_string_lossy().into_owned();
        json["written"] = written.as_ref().map(|written| text(&written.file)).into();
        let of_labels = written.as_ref().and_then(|written| written.labels.as_ref());
        json["labels_written"] = of_labels.map(|file| text(file)).into();
        json["sheet"] = sheet.map(|file| text(file)).into();
        print(format_args!("{json}\n"))?;
    } else {
        let mut text = outcome.text();
        if interrupted.is_some() {
            text += "Interrupted: the batches that were on the device are complete, the rest is missing.\n";
        }
        if let Some(statistics) = &statistics {
            text += &statistics.text(plan.is_numeric());
        }
        if let Some(Written { file, labels }) = &written {
            text += &format!("Written: {}", shown(file));
            text += &match labels {
                Some(labels) => format!(", and its labels: {}.\n", shown(labels)),
                None => ", with its labels.\n".to_owned(),
            };
        }
        if let Some(file) = sheet {
            text += &format!("Contact sheet: {}.\n", shown(file));
        }
        print(text)?;
    }
    Ok(interrupted.unwrap_or(0))
}

/// Returns the labels of the results, and how many results have each.
fn counts(labels: &BTreeMap<i64, u64>, classes: &[String]) -> serde_json::Value {
    let name = |label: i64| classes.get(usize::try_from(label).ok()?);
    let each = labels.iter().map(
        |(label, pictures)| json!({"label": label, "name": name(*label), "pictures": pictures}),
    );
    each.collect()
}

fn plan(args: &Args) -> Result<Plan, Failure> {
    let plan = augment::parse(&args.ops).and_then(Plan::new);
    let plan = plan.map_err(|error| Failure::input(format!("--ops: {error}")))?;
    Ok(if args.no_fuse { plan.unfused() } else { plan })
}

fn form(args: &Args, plan: &Plan) -> Result<Form, Failure> {
    let usual = if plan.is_numeric() {
        Kind::F32
    } else {
        Kind::U8
    };
    let kind = match (args.dtype, plan.is_numeric()) {
        (Some(Kind::U8), true) => {
            let why = "--dtype u8: after ToDtype values are floating-point numbers; leave ToDtype out, or ask for f32, f16 or bf16";
            return Err(Failure::input(why));
        }
        (asked, _) => asked.unwrap_or(usual),
    };
    Ok(Form {
        layout: args.layout,
        kind,
    })
}

fn data(args: &Args) -> Result<Dataset, Failure> {
    let data = match &args.path {
        Some(path) => Dataset::open(path),
        None => {
            let samples = source::samples(args.seed).into_iter();
            Dataset::memory(
                samples
                    .map(|one| (one.name, one.bytes, Some(one.label)))
                    .collect(),
            )
        }
    };
    data.map_err(Failure::input)
}

/// Returns the share of this process, from the arguments or otherwise from torchrun's variables.
fn share(args: &Args) -> Result<(u32, u32), Failure> {
    if let (Some(rank), Some(world)) = (args.rank, args.world) {
        return Ok((rank, world));
    }
    let told = |name: &str| {
        match std::env::var(name) {
        Err(_) => Ok(None),
        Ok(text) => text.parse::<u32>().map(Some).map_err(|_| {
            Failure::input(format!(
                "{name} is {text:?}, which is not a whole number; unset it, or give --rank and --world"
            ))
        }),
    }
    };
    match (told("RANK")?, told("WORLD_SIZE")?) {
        (Some(rank), Some(world)) => Ok((rank, world)),
        _ => Ok((0, 1)),
    }
}

impl Outcome {
    fn json(&self, data: &Dataset, statistics: Option<&Statistics>) -> serde_json::Value {
        let broken = self.broken.iter().map(
            |one| json!({"name": one.name, "why": one.why.to_string(), "replaced_by": one.replaced_by}),
        );
        let timed = self.report.timed.as_ref();
        let stages = timed.map(|timed| {
            let each = if self.alone.is_empty() {
                timed.stages.iter()
            } else {
                self.alone.iter()
            };
            let each = each.map(|(name, time)| json!({"name": name, "ns": time.as_nanos() as u64}));
            each.collect::<Vec<_>>()
        });
        json!({
            "schema": "sidestream.augment/1",
            "device": self.report.device,
            "is_simulated": self.is_simulated,
            "decoder": sidestream_images::decode::identity(),
            "classes": data.classes(),
            "pictures": self.pictures,
            "of_pictures": self.of,
            "batches": self.report.delivered,
            "shape": self.shape,
            "seconds": self.seconds,
            "waited_for_decoding_seconds": self.starved_seconds,
            "binds": self.binds(),
            "stages": stages,
            "device_elapsed_ns": timed.map(|timed| timed.elapsed.as_nanos() as u64),
            "results_seconds": self.results_seconds,
            "device_limit_ns": timed.filter(|_| self.serial().is_some()).map(|timed| timed.limit.as_nanos() as u64),
            "device_serial_ns": self.serial().map(|time| time.as_nanos() as u64),
            "broken": broken.collect::<Vec<_>>(),
            "statistics": statistics.map(Statistics::json),
        })
    }

    fn text(&self) -> String {
        let rate = self.pictures as f64 / self.seconds.max(1e-9);
        let mut text = format!(
            "{} on {}, decoded by {}\n\n  {} each, {} at most a batch, {:.2} s: {:.0} pictures/s\n",
            match self.of - self.pictures.min(self.of) {
                0 => counted(self.pictures, "picture"),
                _ => format!("{} of {}", self.pictures, counted(self.of, "picture")),
            },
            self.report.device,
            sidestream_images::decode::identity(),
            self.shape
                .iter()
                .map(usize::to_string)
                .collect::<Vec<_>>()
                .join(" x "),
            self.batch,
            self.seconds,
            rate
        );
        let share = 100.0 * self.starved_seconds / self.seconds.max(1e-9);
        let results = 100.0 * self.results_seconds / self.seconds.max(1e-9);
        text += &format!(
            "  waiting for decoded pictures {share:.0} % of the time, the host busy with results {results:.0} %\n"
        );
        if let Some(timed) = &self.report.timed {
            let simulated = if self.is_simulated { ", simulated" } else { "" };
            // If batches share the device, the time between their stages includes other batches' work.
            let (which, stages) = if self.alone.is_empty() {
                ("a batch", &timed.stages)
            } else {
                ("a batch alone", &self.alone)
            };
            text += &format!("\nOn the device{simulated}, {which}:\n");
            for (name, time) in stages {
                text += &format!("  {name:<9} {:>9.1} µs\n", time.as_secs_f64() * 1e6);
            }
            let (elapsed, limit) = (timed.elapsed.as_secs_f64(), timed.limit.as_secs_f64());
            text += &format!("  all batches {:.2} ms", 1e3 * elapsed);
            if let Some(serial) = self.serial() {
                text += &format!(
                    "; one stage after the other they would take {:.2} ms, and at best {:.2} ms ({:.0} % reached)",
                    1e3 * serial.as_secs_f64(),
                    1e3 * limit,
                    100.0 * limit / elapsed.max(1e-12)
                );
            }
            text += &format!("\n\n{}", self.report.timeline(96));
        }
        text += &format!("\n{}\n", self.verdict());
        if !self.broken.is_empty() {
            text += &format!("{} broken:\n", counted(self.broken.len() as u64, "picture"));
            for one in self.broken.iter().take(10) {
                text += &format!("  {}: {}\n", one.name, one.why);
            }
            if self.broken.len() > 10 {
                text += &format!("  and {} more\n", self.broken.len() - 10);
            }
        }
        text
    }

    /// Returns the time that all batches would take on the device one stage after another, if a batch was timed
    /// alone. Otherwise stages look longer than they are, and so does the limit.
    fn serial(&self) -> Option<Duration> {
        let timed = self.report.timed.as_ref()?;
        let alone: Duration = self.alone.iter().map(|(_, time)| *time).sum();
        (!self.alone.is_empty() && timed.limit <= timed.elapsed).then(|| alone * timed.items)
    }

    /// Returns what limits the speed of the run.
    fn binds(&self) -> &'static str {
        let most = 0.5 * self.seconds;
        let timed = self.report.timed.as_ref();
        match () {
            () if self.starved_seconds > most => "decode",
            () if self.is_simulated => "simulation",
            () if self.results_seconds > most => "results",
            () if timed.is_some_and(|timed| timed.is_host_bound) => "host",
            () => "device",
        }
    }

    fn verdict(&self) -> String {
        match self.binds() {
            "decode" => "Decoding is the limit: more CPU cores or smaller files help, a faster GPU does not.".into(),
            "results" => "The host's work with the results is the limit: writing them, or computing statistics. Neither decoding nor the device is.".into(),
            "host" => "The device is idle more than half of the time: decoding, results and the host's own calls delay it together.".into(),
            "simulation" => "The simulated GPU computes on the CPU, which is the limit here; on a real GPU only the times on the device count.".into(),
            _ => {
                let stage = self.report.timed.as_ref().map_or("the device", |timed| &timed.binds);
                format!("The device is the limit, by its stage `{stage}`: decoding keeps up.")
            }
        }
    }
}

fn counted(many: u64, what: &str) -> String {
    format!("{many} {what}{}", if many == 1 { "" } else { "s" })
}

/// Returns what `Normalize` subtracts, and what it divides by.
fn normalized(plan: &Plan) -> ([f32; 3], [f32; 3]) {
    let found = plan.operators().iter().find_map(|operator| match operator {
        Operator::Normalize { mean, std } => Some((*mean, *std)),
        _ => None,
    });
    found.unwrap_or(([0.0; 3], [1.0; 3]))
}

/// Returns the map from values after `ToDtype` and `Normalize` back to levels from 0 to 255.
fn levels(plan: &Plan) -> impl Fn(f32, usize) -> f32 + use<> {
    let (mean, std) = normalized(plan);
    let is_scaled = |operator: &Operator| matches!(operator, Operator::ToDtype { scale: true });
    let scale = if plan.operators().iter().any(is_scaled) {
        255.0
    } else {
        1.0
    };
    move |value, colour| (value * std[colour] + mean[colour]) * scale
}
