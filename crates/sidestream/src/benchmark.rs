//! Measures the time of work on the device, and compares it to the limits of the device.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::stream::Stream;

/// The options of a benchmark.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// The number of warm-up runs, which are not measured.
    pub warm_up: u32,
    /// The number of measured runs; at least one.
    pub runs: u32,
    /// The number of calls in each run. Zero chooses as many as take about a millisecond, a thousand at most, so that the time
    /// between two events is long compared to their own cost.
    pub calls: u32,
    /// The number of multiplications and additions of one call; needed for the roofline.
    pub flops: f64,
    /// The bytes of device memory that one call must move; needed for the roofline.
    pub bytes: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            warm_up: 3,
            runs: 20,
            calls: 0,
            flops: 0.0,
            bytes: 0.0,
        }
    }
}

/// The device's time for one call.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The median of the runs.
    pub median: Duration,
    /// The mean of the runs.
    pub mean: Duration,
    /// The standard deviation of the runs.
    pub deviation: Duration,
    /// The time per call of each run, in the order in which they were made.
    pub runs: Vec<Duration>,
    /// The number of calls in each run.
    pub calls: u32,
    /// The comparison with the limits of the device, if work was declared.
    pub roofline: Option<Roofline>,
}

/// The minimum time that a device needs for declared work, after Williams, Waterman and Patterson, "Roofline" (CACM
/// 2009): all its arithmetic at full speed, or all its bytes at full bandwidth, whichever is longer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Roofline {
    /// The minimum time of one call.
    pub floor: Duration,
    /// The resource that determines the floor.
    pub bound: Bound,
    /// The floor divided by the median: 1 is the limit of the device.
    pub share: f64,
}

/// The resource that limits work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names explain themselves")]
pub enum Bound {
    Arithmetic,
    Memory,
}

/// Measures `work` with timed events on the device.
///
/// The time is measured on the device, from the moment the first call may start until all work in all streams that the
/// calls used is complete. The time that the host takes to submit is not included, unless the device had to wait for it.
///
/// ```
/// use sidestream::benchmark::{Options, benchmark};
/// use sidestream::device::Device;
///
/// let device = Device::open("sim:h200")?;
/// let stream = device.stream("work")?;
/// let (from, mut to) = (stream.alloc::<f32>(1 << 24)?, stream.alloc(1 << 24)?);
/// let options = Options {
///     runs: 5,
///     calls: 1,
///     bytes: 2.0 * f64::from(4 << 24),
///     ..Options::default()
/// };
/// let measured = benchmark(&stream, &options, |stream| {
///     stream.memcpy_d2d(from.view(), to.view_mut())
/// })?;
/// assert!(measured.roofline.is_some_and(|roofline| roofline.share > 0.5));
/// # Ok::<(), sidestream::error::Error>(())
/// ```
///
/// # Ordering
/// Blocks the host until all work is complete.
///
/// # Errors
/// [`Error::Invalid`] for zero runs or for declared work that is negative or not a number, an error of `work`, or an error
/// of the device.
#[track_caller]
pub fn benchmark(
    stream: &Stream,
    options: &Options,
    mut work: impl FnMut(&Stream) -> Result<()>,
) -> Result<Measured> {
    let is_amount = |amount: f64| amount.is_finite() && amount >= 0.0;
    if options.runs == 0 || !is_amount(options.flops) || !is_amount(options.bytes) {
        return Err(Error::Invalid {
            call: "benchmark",
            why: "it needs at least one run, and flops and bytes that are not negative".into(),
        });
    }
    let calls = match options.calls {
        0 => fitting_calls(run(stream, 1, &mut work)?),
        calls => calls,
    };
    for _ in 0..options.warm_up {
        run(stream, calls, &mut work)?;
    }
    let mut runs = Vec::new();
    for _ in 0..options.runs {
        runs.push(run(stream, calls, &mut work)? / calls);
    }
    let mut measured = Measured::of(runs, calls);
    measured.roofline = roofline(stream, options, measured.median);
    Ok(measured)
}

/// Measures one run. All streams are idle before it and after it.
#[track_caller]
fn run(
    stream: &Stream,
    calls: u32,
    work: &mut impl FnMut(&Stream) -> Result<()>,
) -> Result<Duration> {
    let at = Location::caller();
    let all = || {
        let devices = &stream.runtime.devices;
        devices
            .iter()
            .flat_map(|device| device.streams.all(&stream.runtime))
    };
    for other in all() {
        other.finish_at(at)?;
    }
    let start = stream.record_timed()?;
    for _ in 0..calls {
        work(stream)?;
    }
    for other in all() {
        stream.wait_stream(&other)?;
    }
    let end = stream.record_timed()?;
    end.elapsed_since(&start)
}

fn fitting_calls(one: Duration) -> u32 {
    let wanted = Duration::from_millis(1).as_nanos();
    let calls = wanted / one.as_nanos().max(1);
    calls.clamp(1, 1_000) as u32
}

impl Measured {
    fn of(runs: Vec<Duration>, calls: u32) -> Measured {
        let mut sorted = runs.clone();
        sorted.sort_unstable();
        let half = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[half],
            _ => (sorted[half - 1] + sorted[half]) / 2,
        };
        let count = runs.len() as f64;
        let mean = runs.iter().map(Duration::as_secs_f64).sum::<f64>() / count;
        let squares = runs.iter().map(|run| (run.as_secs_f64() - mean).powi(2));
        let deviation = (squares.sum::<f64>() / (count - 1.0).max(1.0)).sqrt();
        Measured {
            median,
            mean: Duration::from_secs_f64(mean),
            deviation: Duration::from_secs_f64(deviation),
            runs,
            calls,
            roofline: None,
        }
    }
}

fn roofline(stream: &Stream, options: &Options, median: Duration) -> Option<Roofline> {
    let device = stream.device();
    let caps = device.caps();
    let arithmetic = options.flops / caps.flops_per_s;
    let memory = options.bytes / caps.memory_bytes_per_s;
    let (bound, floor) = if arithmetic > memory {
        (Bound::Arithmetic, arithmetic)
    } else {
        (Bound::Memory, memory)
    };
    (floor > 0.0 && floor.is_finite()).then(|| Roofline {
        floor: Duration::from_secs_f64(floor),
        bound,
        share: floor / median.as_secs_f64(),
    })
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        write!(
            f,
            "{:.2} µs median, {:.2} mean, {:.2} standard deviation ({} runs of {} calls)",
            micros(self.median),
            micros(self.mean),
            micros(self.deviation),
            self.runs.len(),
            self.calls
        )?;
        let Some(roofline) = &self.roofline else {
            return Ok(());
        };
        let bound = match roofline.bound {
            Bound::Arithmetic => "arithmetic",
            Bound::Memory => "memory",
        };
        write!(
            f,
            "; at least {:.2} µs by {bound}, {:.0} % reached",
            micros(roofline.floor),
            100.0 * roofline.share
        )
    }
}
