//! The rows of a trace around its median step, which are written out again together with the findings.

use crate::idle::{Cause, Scene, Stretch};
use crate::measure::{DeviceTime, Steps};
use crate::model::{Call, Device, Range, RangeKind, Thread, Trace, Work};
use crate::timeline::window;

/// The maximum number of rows that viewers handle with ease. A trace with fewer rows is taken whole.
const MOST_ROWS: usize = 50_000;

/// A part of a trace: all rows that began in one span of time.
#[derive(Clone, Debug, Default)]
pub struct Excerpt {
    /// Start of the span.
    pub start_ns: i64,
    /// End of the span; rows that began in it may end later.
    pub end_ns: i64,
    /// Whether the excerpt is the whole trace.
    pub is_whole: bool,
    /// The step that is drawn; `None` where there are no steps.
    pub step_ns: Option<(i64, i64)>,
    /// The devices, as the trace describes them.
    pub devices: Vec<Device>,
    /// The threads.
    pub threads: Vec<Thread>,
    /// Work of devices.
    pub work: Vec<Work>,
    /// Calls of the host.
    pub calls: Vec<Call>,
    /// Ranges that the program named.
    pub ranges: Vec<Range>,
    /// Idle time of devices, with its cause.
    pub idle: Vec<Gap>,
}

/// A span in which a device was idle for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Index of the device in the report.
    pub device: usize,
    /// The cause.
    pub cause: Cause,
    /// When the span is, and the call or range that caused it.
    pub stretch: Stretch,
}

impl Excerpt {
    /// Returns the median step with its neighbours, or all of a small trace.
    pub fn of(trace: &Trace, scene: &Scene, steps: &Steps, devices: &[DeviceTime]) -> Excerpt {
        let rows = trace.work.len() + trace.calls.len() + trace.ranges.len();
        let drawn = window(trace, steps);
        let step_ns = drawn.and_then(|(step, window)| step.map(|_| window));
        let whole = whole(trace);
        let (start_ns, end_ns) = match drawn {
            _ if rows <= MOST_ROWS => whole,
            Some((Some(step), window)) => neighbours(steps, step, window),
            _ => whole,
        };
        let end_ns = shortened(trace, (start_ns, end_ns));
        let inside = |at_ns: i64| start_ns <= at_ns && at_ns < end_ns;
        let mut idle = Vec::new();
        for (at, device) in devices.iter().enumerate() {
            let stretches = scene.stretches(device, (start_ns, end_ns));
            let gaps = stretches.into_iter().map(|(cause, stretch)| Gap {
                device: at,
                cause,
                stretch,
            });
            idle.extend(gaps.take(MOST_ROWS - idle.len().min(MOST_ROWS)));
        }
        let work = trace.work.iter().filter(|work| inside(work.start_ns));
        let calls = trace.calls.iter().filter(|call| inside(call.start_ns));
        let named = |range: &&Range| range.kind != RangeKind::Python && inside(range.start_ns);
        Excerpt {
            start_ns,
            end_ns,
            is_whole: (start_ns, end_ns) == whole,
            step_ns,
            devices: trace.devices.clone(),
            threads: trace.threads.clone(),
            work: work.copied().collect(),
            calls: calls.copied().collect(),
            ranges: trace.ranges.iter().filter(named).copied().collect(),
            idle,
        }
    }
}

/// Returns the span from the start of the first row to just after the end of the last.
fn whole(trace: &Trace) -> (i64, i64) {
    let work = trace.work.iter().map(|row| (row.start_ns, row.end_ns()));
    let calls = trace.calls.iter().map(|row| (row.start_ns, row.end_ns()));
    let ranges = trace.ranges.iter().map(|row| (row.start_ns, row.end_ns()));
    let spans = work.chain(calls).chain(ranges);
    let around = spans.reduce(|all, span| (all.0.min(span.0), all.1.max(span.1)));
    let (start_ns, end_ns) = around.unwrap_or_default();
    // A row of no duration that begins at the end is included too.
    (start_ns, end_ns.saturating_add(1))
}

/// Returns the span of a step with the step before and the step after it.
fn neighbours(steps: &Steps, step: usize, window: (i64, i64)) -> (i64, i64) {
    let end = |step: usize| Some(steps.steps.get(step)?.last_gpu_ns);
    let before = match step.checked_sub(2) {
        Some(before) => end(before),
        None => steps.steps.first().map(|step| step.start_ns),
    };
    let start_ns = before.unwrap_or(window.0).min(window.0);
    let end_ns = end(step + 1).unwrap_or(window.1).max(window.1);
    (start_ns, end_ns)
}

/// Returns an earlier end if too many rows begin in the span.
fn shortened(trace: &Trace, (start_ns, end_ns): (i64, i64)) -> i64 {
    // Rows are in the order of their starts.
    let before = |at_ns: i64| {
        trace.work.partition_point(|row| row.start_ns < at_ns)
            + trace.calls.partition_point(|row| row.start_ns < at_ns)
            + trace.ranges.partition_point(|row| row.start_ns < at_ns)
    };
    let first = before(start_ns);
    let fits = |end_ns: i64| before(end_ns) - first <= MOST_ROWS;
    if fits(end_ns) {
        return end_ns;
    }
    let (mut fitting_ns, mut too_late_ns) = (start_ns, end_ns);
    while fitting_ns.abs_diff(too_late_ns) > 1 {
        let middle_ns = fitting_ns.midpoint(too_late_ns);
        if fits(middle_ns) {
            fitting_ns = middle_ns
        } else {
            too_late_ns = middle_ns
        }
    }
    fitting_ns
}
