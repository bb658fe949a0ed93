//! `sidestream bench requests`: many callers and one device, served in four ways.

mod load;
mod measured;
mod model;
mod outcome;
mod simulated;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

use crate::device::{self, Named};
use crate::failure::{Exit, Failure, SUCCESS};
use crate::output;
use crate::width::Width;
use load::Load;
use model::Model;
use outcome::Outcome;

/// Compare ways to answer the requests of many callers
///
/// Requests of one row each arrive at random moments (a Poisson process) at the given rate, whether earlier ones are answered
/// or not. They are computed one by one on one stream; one by one on a pool of streams; in batches; and in batches on several
/// streams. Latency counts from when a request was to arrive, so that a program that falls behind cannot hide it. Goodput
/// counts the requests answered before their deadline; those that cannot meet it are refused. It is divided by the time from
/// the beginning to the last answer, or to the end of --seconds (the last arrival without them) where that is later.
///
/// Best is the way with the most answers in time; of those within a thousandth of it, the one with the lowest p99; of equal
/// ones the first. With --closed it is the way with the most requests a second.
///
/// The model is a perceptron, --layers layers of --row values, or any model whose time you give with --kernel-us. On a GPU
/// `batcher::Batcher` runs it in real time. On a simulated GPU time is simulated: the same rule decides when a batch is
/// submitted, calls and work take the times in the device's profile, and the host time of the batcher itself is left out. There
/// a seed always gives the same figures.
///
/// Exit code: 0 if the ways were compared, 2 if an argument, the device or a file is at fault.
#[derive(Parser)]
pub struct Args {
    /// Requests a second, on average
    #[arg(long, value_name = "PER_S", default_value_t = 20_000.0, value_parser = rate)]
    rate: f64,
    /// The seed of the random arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Take the arrival times from this file instead of --rate: one time in seconds per line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "seed", "seconds", "requests", "closed"])]
    arrivals: Option<PathBuf>,
    /// For how long requests arrive
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// How many requests arrive, instead of --seconds
    #[arg(long, value_name = "COUNT", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..=load::MOST))]
    requests: Option<u64>,
    /// This many callers instead of a rate, each of which sends its next request when the last is answered; the result that
    /// counts is then requests a second
    #[arg(long, value_name = "CALLERS", conflicts_with_all = ["rate", "deadline_ms"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    closed: Option<u32>,
    /// The deadline of an answer, after which it is of no use
    #[arg(long, value_name = "MS", default_value_t = 10.0, value_parser = milliseconds)]
    deadline_ms: f64,
    /// The ways to compare, such as one,both
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Way::One, Way::Pool, Way::Batching, Way::Both])]
    ways: Vec<Way>,
    /// How many streams `pool` and `both` have
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// Maximum number of requests in a batch; batch sizes are the powers of two up to it
    #[arg(long, value_name = "ROWS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_batch: u32,
    /// How long a request waits for others while a stream is free
    #[arg(long, value_name = "US", default_value_t = 200.0, value_parser = microseconds)]
    max_delay_us: f64,
    /// How many requests may wait; more are refused
    #[arg(long, value_name = "COUNT", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_queue: u32,
    /// Launch each batch as one graph instead of one call for each kernel
    #[arg(long)]
    graphs: bool,
    /// Layers of the perceptron
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    layers: u32,
    /// Values in a request; each layer has the square of this many weights
    #[arg(long, value_name = "VALUES", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=8192))]
    row: u32,
    /// The time of the model instead, in microseconds, by batch size: 1:40,64:90. A size in between takes the time of the next
    /// larger one, and a size above the largest takes proportionally longer
    #[arg(long, value_name = "SIZE:US,…", value_delimiter = ',', value_parser = model::size_and_us, conflicts_with_all = ["layers", "row"])]
    kernel_us: Vec<(u32, f64)>,
    #[arg(long, default_value = "sim:h200", help = device::help("The GPU: cuda:0, cuda:1 and so on; {sim} or sim:FILE.toml; \
          auto: cuda:0 if there is one, otherwise sim:h200"))]
    device: String,
    /// The library of the CUDA driver, if not the system's own
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    lines: Width,
}

/// How requests are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Way {
    /// Each alone, on one stream
    One,
    /// Each alone, on several streams
    Pool,
    /// As batches, on one stream
    Batching,
    /// As batches, on several streams
    Both,
}

/// The settings of one of the ways.
#[derive(Clone, Debug)]
struct Setup {
    slots: usize,
    sizes: Vec<usize>,
    max_delay: Duration,
    max_queue: usize,
    deadline: Option<Duration>,
    is_graphs: bool,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<Exit, Failure> {
    let model = Model::of(args)?;
    let load = Load::of(args)?;
    let named = device::named(&args.device, args.driver.as_deref())?;
    let (title, is_simulated, outcomes) = match named {
        Named::Simulated(profile) => {
            let each = |&way: &Way| {
                (
                    way,
                    simulated::run(&profile, &model, &args.setup(way), &load),
                )
            };
            let outcomes: Vec<_> = args.ways.iter().map(each).collect();
            (profile.name.clone(), true, outcomes)
        }
        Named::Cuda(number) => {
            let bench = measured::Bench::open(number, args.driver.as_deref())?;
            let mut outcomes = Vec::new();
            for &way in &args.ways {
                outcomes.push((way, bench.run(&model, &args.setup(way), &load)?));
            }
            (bench.name.clone(), false, outcomes)
        }
    };
    let verdict = args.verdict(&load, &outcomes);
    let json = || args.as_json(&title, is_simulated, &load, &outcomes, &verdict);
    let text = || {
        let text = format!(
            "{} on {}{title}: {}{}\n\n{}\n{verdict}\n",
            load.in_words(),
            if is_simulated { "a simulated " } else { "" },
            model.in_words(),
            if args.graphs { ", as graphs" } else { "" },
            outcome::table(&outcomes, load.is_closed()),
        );
        args.lines.lines().wrapped(&text)
    };
    output::say(args.json, json, text)?;
    Ok(SUCCESS)
}

impl Args {
    fn setup(&self, way: Way) -> Setup {
        let is_batched = matches!(way, Way::Batching | Way::Both);
        let is_many = matches!(way, Way::Pool | Way::Both);
        let largest = if is_batched {
            self.max_batch as usize
        } else {
            1
        };
        let powers = std::iter::successors(Some(1), |size| Some(size * 2));
        let below = powers.take_while(|&size| size < largest);
        let delay_us = if is_batched { self.max_delay_us } else { 0.0 };
        let deadline = Duration::from_nanos((self.deadline_ms * 1e6) as u64);
        Setup {
            slots: if is_many { self.streams as usize } else { 1 },
            sizes: below.chain([largest]).collect(),
            max_delay: Duration::from_nanos((delay_us * 1e3) as u64),
            max_queue: self.max_queue as usize,
            deadline: self.closed.is_none().then_some(deadline),
            is_graphs: self.graphs,
        }
    }

    /// Returns one sentence: which way is best, and why.
    fn verdict(&self, load: &Load, outcomes: &[(Way, Outcome)]) -> String {
        let by_worth = |(_, a): &&(Way, Outcome), (_, b): &&(Way, Outcome)| {
            let worth = |of: &Outcome| {
                if load.is_closed() {
                    of.per_s()
                } else {
                    of.in_time as f64
                }
            };
            // A difference of a thousandth is noise: then the tail latency decides.
            let close = (worth(a) - worth(b)).abs() <= 1e-3 * worth(a).max(worth(b));
            if close && !load.is_closed() {
                b.quantile_ns(0.99).cmp(&a.quantile_ns(0.99))
            } else {
                worth(a).total_cmp(&worth(b))
            }
        };
        // `max_by` returns the last of equal elements, so the search runs backwards to prefer the simpler way.
        let Some((way, best)) = outcomes.iter().rev().max_by(by_worth) else {
            return "No way was asked for.".to_owned();
        };
        if best.answered == 0 {
            return "No way answers anything: nothing arrived, or every request was refused or failed."
                .to_owned();
        }
        if outcomes.len() == 1 {
            return format!("{}: {}.", way.title(), best.in_words(load.is_closed()));
        }
        let why = match way {
            Way::One => {
                "its requests do not wait for a batch and do not share the device".to_owned()
            }
            Way::Pool => format!(
                "up to {} requests run side by side, and none waits for a batch",
                self.streams
            ),
            Way::Batching | Way::Both => format!(
                "a batch held {:.1} requests on average and cost the host the calls of one request",
                best.mean_batch()
            ),
        };
        let others = outcomes.iter().rev().filter(|(other, _)| other != way);
        let Some((second, next)) = others.max_by(by_worth) else {
            return format!("{}: {}.", way.title(), best.in_words(load.is_closed()));
        };
        format!(
            "Best is {} with {}, as {why}; next is {} with {}.",
            way.words(),
            best.in_words(load.is_closed()),
            second.words(),
            next.in_words(load.is_closed())
        )
    }

    fn as_json(
        &self,
        title: &str,
        is_simulated: bool,
        load: &Load,
        outcomes: &[(Way, Outcome)],
        verdict: &str,
    ) -> Value {
        let ways = outcomes.iter().map(|(way, outcome)| {
            let setup = self.setup(*way);
            outcome.as_json(way.name(), setup.slots, setup.sizes.last().copied())
        });
        json!({"schema": "sidestream.bench.requests/1", "device": self.device, "device_name": title,
               "simulated": is_simulated, "load": load.as_json(),
               "deadline_ms": self.closed.is_none().then_some(self.deadline_ms),
               "graphs": self.graphs, "max_delay_us": self.max_delay_us,
               "max_queue": self.max_queue, "ways": ways.collect::<Vec<_>>(), "verdict": verdict})
    }
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::One => "one",
            Way::Pool => "pool",
            Way::Batching => "batching",
            Way::Both => "both",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Way::One => "One stream",
            Way::Pool => "A pool of streams",
            Way::Batching => "Batches",
            Way::Both => "Batches on a pool of streams",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Way::One => "one stream",
            Way::Pool => "a pool of streams",
            Way::Batching => "batches",
            Way::Both => "batches on a pool of streams",
        }
    }
}

// ------------------------------------------------------------------ numbers on the command line

fn rate(text: &str) -> Result<f64, String> {
    within(
        text,
        1e-3,
        1e8,
        "requests a second, from 0.001 to 100000000",
    )
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, 1e-6, 3600.0, "seconds, from 0.000001 to 3600")
}

fn milliseconds(text: &str) -> Result<f64, String> {
    within(text, 1e-3, 3.6e6, "milliseconds, from 0.001 to 3600000")
}

fn microseconds(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1e9, "microseconds, from 0 to 1000000000")
}

fn within(text: &str, least: f64, most: f64, what: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("{text:?} is out of range; give {what}")),
    }
}
