//! `overlap --background`: what a stream priority gains for a kernel that runs while other work fills the device.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sidestream::engine::Profile;
use sidestream::event::Event;
use sidestream::kernel::{Grid, library};
use sidestream::stream::Stream;

use super::shown::time;
use crate::device::Named;
use crate::failure::Failure;
use crate::measure::own::Own;
use crate::measure::raw::Gpu;
use crate::measure::rounds::{Clock, median};
use crate::width::Lines;

/// Microseconds of a background block.
const BLOCKS_US: [u64; 3] = [20, 200, 1000];
/// Microseconds of the kernel whose latency is measured.
const KERNELS_US: [u64; 2] = [10, 100];
/// Streams with background work.
const STREAMS: [usize; 2] = [1, 4];
/// Number of kernels on each of these streams, and number of waves of blocks in each kernel.
const KERNELS: usize = 4;
const WAVES: u32 = 4;
/// Threads of a background block: a divisor of the threads of every multiprocessor, so that no threads are left idle.
const THREADS: u32 = 512;
/// How often each case is tried; the kernel is launched at this many evenly spread moments of a block.
const TRIES: u32 = 21;
/// The limit that is tried: background kernels in flight, on all streams together.
const IN_FLIGHT: usize = 1;
/// The time until the first background kernel has begun.
const LEAD: Duration = Duration::from_micros(50);

/// A latency in nanoseconds: the median and the worst of the tries.
#[derive(Clone, Copy)]
struct Latency {
    median_ns: f64,
    worst_ns: f64,
}

/// The latencies of one kernel with one kind of background work.
struct Row {
    block_us: u64,
    kernel_us: u64,
    streams: usize,
    alone: Latency,
    /// Latency on a stream with the priority of the background work.
    equal: Latency,
    /// Latency on a stream of that priority, with at most [`IN_FLIGHT`] background kernels in flight.
    limited: Latency,
    /// Latency on a stream with the most urgent priority.
    urgent: Latency,
    /// Latency on a stream with the most urgent priority, as a graph of this one kernel.
    graph: Latency,
}

/// How the kernel is launched.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Call,
    Graph,
}

/// Returns what `overlap --background` reports, as JSON and as text.
pub fn compared(
    named: Named,
    device: &str,
    driver: Option<&Path>,
    lines: Lines,
) -> Result<(Value, String), Failure> {
    let (title, measured, simulated) = match named {
        Named::Simulated(profile) => {
            let threads = profile.threads_per_sm as u32;
            let title = format!("a simulated {}", profile.name);
            (title, None, rows(&Own::simulated(*profile), threads)?)
        }
        Named::Cuda(number) => {
            let gpu = Gpu::open(driver, number)?;
            let own = Own::cuda(&gpu, number, driver)?;
            let measured = rows(&own, gpu.threads_per_sm)?;
            let profile = Profile::h200();
            let threads = profile.threads_per_sm as u32;
            let simulated = rows(&Own::simulated(profile), threads)?;
            (gpu.name.clone(), Some(measured), simulated)
        }
    };
    let shown = measured.as_deref().unwrap_or(&simulated);
    let verdict = verdict(shown);
    let mut text = format!(
        "a kernel while other work fills {title}: from its launch until the host knows that it is complete,\nmedian of {TRIES} (worst)\n\n"
    );
    text += &table(shown);
    if measured.is_some() {
        text += "\nthe same on a simulated NVIDIA H200\n\n";
        text += &table(&simulated);
        let worst = shown.iter().zip(&simulated).map(|(a, b)| apart(a, b));
        let worst = worst.fold(0.0, f64::max);
        text += &format!(
            "\nThe medians of urgent kernels differ by {:.0} % at most.\n",
            100.0 * worst
        );
    }
    text += &format!("\n{verdict}\n");
    let as_json = |rows: &[Row]| rows.iter().map(Row::as_json).collect::<Vec<_>>();
    let json = json!({"schema": "sidestream.overlap.background/1", "device": device,
                      "device_name": title.trim_start_matches("a simulated "),
                      "simulated": measured.is_none(), "tries": TRIES,
                      "rows": as_json(shown),
                      "simulated_rows": measured.is_some().then(|| as_json(&simulated)),
                      "verdict": verdict});
    Ok((json, lines.wrapped(&text)))
}

fn rows(own: &Own, threads_per_sm: u32) -> Result<Vec<Row>, Failure> {
    let (most_urgent, least_urgent) = own.device.caps().priorities;
    let mut rows = Vec::new();
    for block_us in BLOCKS_US {
        for kernel_us in KERNELS_US {
            for streams in STREAMS {
                let job = Background {
                    own,
                    block: Duration::from_micros(block_us),
                    kernel: Duration::from_micros(kernel_us),
                    full: own.sms * (threads_per_sm / THREADS).max(1),
                    streams: (0..streams)
                        .map(|n| {
                            let name = format!("background {n}");
                            own.device.stream_with_priority(&name, least_urgent)
                        })
                        .collect::<Result<_, _>>()?,
                };
                rows.push(Row {
                    block_us,
                    kernel_us,
                    streams,
                    alone: job.latency(least_urgent, By::Call, 0)?,
                    equal: job.latency(least_urgent, By::Call, KERNELS * streams)?,
                    // The host launches the next background kernels later, so that they queue after the kernel.
                    limited: job.latency(least_urgent, By::Call, IN_FLIGHT)?,
                    urgent: job.latency(most_urgent, By::Call, KERNELS * streams)?,
                    graph: job.latency(most_urgent, By::Graph, KERNELS * streams)?,
                });
            }
        }
    }
    Ok(rows)
}

struct Background<'a> {
    own: &'a Own,
    block: Duration,
    kernel: Duration,
    /// Blocks that fill the device.
    full: u32,
    streams: Vec<Stream>,
}

impl Background<'_> {
    /// Measures how long the kernel takes on a stream of this priority, with `beside` background kernels in flight.
    fn latency(&self, priority: i32, by: By, beside: usize) -> Result<Latency, Failure> {
        let device = &self.own.device;
        let stream = device.stream_with_priority("kernel", priority)?;
        let (spin, small) = (library::spin(), Grid::new(self.own.sms, 128));
        let ns = |time: Duration| time.as_nanos() as u64;
        let mut nodes = device.graph();
        nodes.launch(&spin, small, (ns(self.kernel),))?;
        let mut graph = nodes.build()?;
        let mut tries = Vec::new();
        // The first launch does not count: it loads the kernel.
        for moment in 0..=TRIES {
            device.synchronize()?;
            if beside > 0 {
                let grid = Grid::new(self.full * WAVES, THREADS);
                for background in self.streams.iter().cycle().take(beside) {
                    background.launch(&spin, grid, (ns(self.block),))?;
                }
                let within = self.block * (2 * moment + 1) / (2 * TRIES);
                let last = self.streams[0].record_event()?;
                pause(&self.own.clock, &last, LEAD + within)?;
            }
            let start_ns = self.own.clock.now_ns();
            match by {
                By::Call => stream.launch(&spin, small, (ns(self.kernel),))?,
                By::Graph => drop(graph.launch(&stream)?),
            }
            stream.synchronize()?;
            if moment > 0 {
                tries.push((self.own.clock.now_ns() - start_ns) as f64);
            }
        }
        device.synchronize()?;
        Ok(Latency {
            median_ns: median(&tries),
            worst_ns: tries.iter().copied().fold(0.0, f64::max),
        })
    }
}

/// Lets this much time pass; the work before the event `unfinished` is not complete by then.
fn pause(clock: &Clock, unfinished: &Event, time: Duration) -> Result<(), Failure> {
    match clock {
        Clock::Host(_) => {
            let start = Instant::now();
            while start.elapsed() < time {
                std::hint::spin_loop();
            }
        }
        Clock::Simulated(_) => {
            unfinished.synchronize_for(time)?;
        }
    }
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let mut out = format!(
        "  {:>7} {:>7} {:>7}  {:>9}  {:>19}  {:>19}  {:>19}  {:>19}\n",
        "blocks",
        "kernel",
        "streams",
        "alone",
        "same priority",
        "same, 1 in flight",
        "urgent",
        "urgent, as a graph"
    );
    let both = |latency: Latency| {
        let (median, worst) = (latency.median_ns as u64, latency.worst_ns as u64);
        format!("{} ({})", time(median), time(worst))
    };
    for row in rows {
        out += &format!(
            "  {:>7} {:>7} {:>7}  {:>9}  {:>19}  {:>19}  {:>19}  {:>19}\n",
            format!("{} µs", row.block_us),
            format!("{} µs", row.kernel_us),
            row.streams,
            time(row.alone.median_ns as u64),
            both(row.equal),
            both(row.limited),
            both(row.urgent),
            both(row.graph),
        );
    }
    out
}

/// Returns the difference of the median latencies of the urgent kernel, relative to the simulated one.
fn apart(measured: &Row, simulated: &Row) -> f64 {
    (measured.urgent.median_ns / simulated.urgent.median_ns - 1.0).abs()
}

fn verdict(rows: &[Row]) -> String {
    let gain = |row: &Row| row.equal.median_ns / row.urgent.median_ns;
    let gains = rows.iter().map(gain);
    let (least, most) = (
        gains.clone().fold(f64::INFINITY, f64::min),
        gains.fold(0.0, f64::max),
    );
    let limited = rows
        .iter()
        .map(|row| row.equal.median_ns / row.limited.median_ns);
    let limited = limited.fold(0.0, f64::max);
    let longest = BLOCKS_US[BLOCKS_US.len() - 1];
    let waited = |block_us: u64| {
        let of = rows.iter().filter(move |row| row.block_us == block_us);
        of.map(|row| row.urgent.median_ns - row.alone.median_ns)
            .fold(0.0, f64::max)
    };
    if most < 1.1 {
        return "Do not bother: a priority makes no difference here.".to_owned();
    }
    format!(
        "A priority makes the kernel {least:.1} to {most:.1} times as fast here. It does not interrupt running blocks: with blocks of {} µs \
         the kernel still waits {}, with blocks of {longest} µs {}. Without a priority it is up to {limited:.1} times as fast \
         if {IN_FLIGHT} kernel of the background is in flight at most.",
        BLOCKS_US[0],
        time(waited(BLOCKS_US[0]) as u64),
        time(waited(longest) as u64),
    )
}

impl Row {
    fn as_json(&self) -> Value {
        let latency = |of: Latency| json!({"median_ns": of.median_ns, "worst_ns": of.worst_ns});
        json!({"block_us": self.block_us, "kernel_us": self.kernel_us, "streams": self.streams,
               "alone": latency(self.alone), "equal": latency(self.equal),
               "in_flight": IN_FLIGHT, "limited": latency(self.limited),
               "urgent": latency(self.urgent), "urgent_graph": latency(self.graph)})
    }
}
