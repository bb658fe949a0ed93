//! The activity in one step, for drawing: measured, or as a replay predicts it.
//!
//! A step is the span from the last GPU operation of the previous step to its own, so that work which runs ahead or behind is
//! drawn where it runs. The chosen step is the one whose time is nearest to the median.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::idle::is_loading;
use crate::measure::{Class, Collectives, Steps, WorkOfCalls, class, held, quantile};
use crate::model::{Direction, Name, RangeKind, StreamIndex, ThreadIndex, Trace, Work};
use crate::sort::order_by;
use crate::words::words;

/// One step, or a whole trace without steps, as lanes of spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Index of the step, from 0; `None` for a whole trace.
    pub step: Option<usize>,
    /// Length of the timeline, in nanoseconds.
    pub length_ns: u64,
    /// Host threads first, then streams.
    pub lanes: Vec<Lane>,
    /// Number of lanes with less activity that were left out.
    pub left_out: usize,
}

/// One host thread, or one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its name: `host thread 395`, `GPU 0 stream 7`.
    pub name: String,
    /// Whether it is a host thread.
    pub is_host: bool,
    /// Its activity. Of two overlapping spans, the later one is drawn above.
    pub spans: Vec<Drawn>,
}

impl Lane {
    /// Returns the spans of the lane, with spans shorter than `finest_ns` merged with their neighbours.
    pub fn coarser(&self, finest_ns: u64) -> Vec<Drawn> {
        let mut coarse: Vec<Drawn> = Vec::new();
        let mut layer = Vec::new();
        let mut last_start_ns = 0;
        for span in &self.spans {
            // Where a span starts before the previous one, the next layer begins, which is drawn above.
            if span.start_ns < last_start_ns {
                coarse.append(&mut layer);
            }
            last_start_ns = span.start_ns;
            push(&mut layer, *span, finest_ns);
        }
        coarse.append(&mut layer);
        coarse
    }
}

/// A span of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Its start, from the start of the timeline.
    pub start_ns: u64,
    /// Its duration.
    pub duration_ns: u64,
    /// Its kind.
    pub shade: Shade,
    /// The name of the longest row that it represents, if it has one.
    pub name: Option<Name>,
    /// Number of rows that it represents: rows too small to be seen alone are merged.
    pub count: u32,
}

impl Drawn {
    /// Returns its end, from the start of the timeline.
    pub fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }
}

words! {
    /// Kinds of spans.
    pub enum Shade {
        /// The host works.
        Host = "host",
        /// The host waits for a device.
        Waiting = "host waits for the GPU",
        /// Data is loaded, or the host waits until it is.
        Loading = "loading data",
        /// A kernel that computes.
        Kernel = "kernel",
        /// A kernel that exchanges data with other devices.
        Collective = "collective",
        /// A copy from the host.
        Upload = "upload",
        /// A copy to the host.
        Download = "download",
        /// Copies within a device, and memsets.
        Inner = "memory on the device",
        /// A copy between two devices.
        Peer = "copy between GPUs",
        /// The host is in a range that the program names, outside of calls and operators.
        Range = "host in a named range, without a call",
    }
}

/// The maximum number of lanes; more could not be told apart.
const MOST_LANES: usize = 16;
/// Spans shorter than this part of a timeline are merged with their neighbours.
pub const FINEST: u64 = 2_000;
/// The limit for steps that are viewed one at a time.
const FINEST_ZOOM: u64 = 400;
/// The maximum number of steps that can be viewed.
pub const MOST_ZOOMS: usize = 40;

impl Timeline {
    /// Returns the step of a trace that is nearest to the median, or all of it; `None` without any work.
    pub fn of(trace: &Trace, works: &WorkOfCalls, steps: &Steps) -> Option<Timeline> {
        let window = window(trace, steps)?;
        drawn(trace, works, &[window], FINEST).pop()
    }

    /// Returns some steps of a trace, in order: all except the first, whose start on the devices is unknown; of many, the
    /// slowest and the fastest, and others at equal distances between them. They are drawn less finely.
    pub fn each(trace: &Trace, works: &WorkOfCalls, steps: &Steps) -> Vec<Timeline> {
        let periods = steps.periods_ns();
        let mut order: Vec<usize> = (0..periods.len()).collect();
        if order.len() > MOST_ZOOMS {
            order_by(&mut order, |at| (Reverse(periods[*at]), *at));
            let (part, last) = (MOST_ZOOMS / 4, order.len() - 1);
            let every = periods.len().div_ceil(2 * part);
            let mut chosen: Vec<usize> = order[..part].to_vec();
            chosen.extend((0..part).map(|at| order[last - at]));
            chosen.extend((0..periods.len()).step_by(every));
            order = chosen;
        }
        order.sort_unstable();
        order.dedup();
        let mut over_ns = i64::MIN;
        let mut windows = Vec::new();
        for at in order {
            let (start, end) = (steps.steps[at].last_gpu_ns, steps.steps[at + 1].last_gpu_ns);
            // Steps whose work ends out of order have no span of their own.
            if over_ns <= start && start < end {
                windows.push((Some(at + 1), (start, end)));
                over_ns = end;
            }
        }
        drawn(trace, works, &windows, FINEST_ZOOM)
    }
}

/// Returns spans of a trace, disjoint and in order, as timelines.
fn drawn(
    trace: &Trace,
    works: &WorkOfCalls,
    windows: &[(Option<usize>, (i64, i64))],
    finest: u64,
) -> Vec<Timeline> {
    let new = |window: &(Option<usize>, (i64, i64))| Drawing::new(window.1, finest);
    let mut drawing = Drawings {
        ends: windows.iter().map(|window| window.1.1).collect(),
        each: windows.iter().map(new).collect(),
    };
    let collectives = Collectives::of(trace);
    for work in &trace.work {
        let span = (work.start_ns, work.end_ns());
        let shade = shade(work, &collectives);
        for drawing in drawing.of(span) {
            drawing.add_work((trace, work), work.stream.0 as usize, span, shade);
        }
    }
    let loads = trace.names.that(is_loading);
    for range in &trace.ranges {
        let shade = match range.kind {
            _ if loads[range.name.0 as usize] => Shade::Loading,
            RangeKind::Operator => Shade::Host,
            RangeKind::Annotation => Shade::Range,
            _ => continue,
        };
        let place = Place::Host(range.thread.0 as usize);
        let span = (range.start_ns, range.end_ns());
        for drawing in drawing.of(span) {
            drawing.add_below(place, span, shade, range.name);
        }
    }
    for (at, call) in trace.calls.iter().enumerate() {
        let shade = match held(trace, at, works.first(at)) {
            Some(_) => Shade::Waiting,
            None => Shade::Host,
        };
        let place = Place::Host(call.thread.0 as usize);
        let span = (call.start_ns, call.end_ns());
        for drawing in drawing.of(span) {
            drawing.add(place, span, shade, Some(call.name));
        }
    }
    let each = drawing.each.into_iter().zip(windows);
    each.map(|(drawing, (step, _))| {
        drawing.finish(*step, |place| match place {
            Place::Host(thread) => thread_name(trace, ThreadIndex(thread as u16)),
            Place::Stream(stream) => stream_name(trace, StreamIndex(stream as u16)),
            Place::PeerCopies(device) => peer_copies(device),
        })
    })
    .collect()
}

/// Timelines of spans that are disjoint and in order.
struct Drawings {
    ends: Vec<i64>,
    each: Vec<Drawing>,
}

impl Drawings {
    /// Returns the timelines that a span overlaps.
    fn of(&mut self, (start, end): (i64, i64)) -> impl Iterator<Item = &mut Drawing> {
        let first = self.ends.partition_point(|over| *over <= start);
        let rest = self.each[first..].iter_mut();
        rest.take_while(move |drawing| drawing.start_ns < end)
    }
}

/// Returns the kind of a span of work.
pub fn shade(work: &Work, collectives: &Collectives) -> Shade {
    match class(work, collectives) {
        Some(Class::Collective) => Shade::Collective,
        Some(Class::Compute) => Shade::Kernel,
        Some(Class::Upload) => Shade::Upload,
        Some(Class::Download) => Shade::Download,
        None if work.what.direction() == Some(Direction::Peer) => Shade::Peer,
        None => Shade::Inner,
    }
}

/// Returns the name of a stream.
pub fn stream_name(trace: &Trace, stream: StreamIndex) -> String {
    let several = |key: fn(&crate::model::Stream) -> Option<i64>| {
        let mut keys = trace.streams.iter().map(key);
        let first = keys.next();
        keys.any(|key| Some(key) != first)
    };
    let stream = &trace.streams[stream.0 as usize];
    let mut name = format!("GPU {} stream {}", stream.device, stream.number);
    if let (Some(process), true) = (stream.process, several(|s| s.process)) {
        name = format!("process {process} {name}");
    }
    name
}

/// Returns the name for the copies of a device to and from others.
pub fn peer_copies(device: i64) -> String {
    format!("GPU {device} (peer copy)")
}

/// Returns the name of a thread.
pub fn thread_name(trace: &Trace, thread: ThreadIndex) -> String {
    let thread = &trace.threads[thread.0 as usize];
    format!("host thread {}", thread.thread)
}

/// Returns the step nearest to the median with its span, or all of the trace.
pub fn window(trace: &Trace, steps: &Steps) -> Option<(Option<usize>, (i64, i64))> {
    let periods = steps.periods_ns();
    if let Some(at) = nearest_to_median(&periods) {
        let (before, step) = (&steps.steps[at], &steps.steps[at + 1]);
        if before.last_gpu_ns < step.last_gpu_ns {
            return Some((Some(at + 1), (before.last_gpu_ns, step.last_gpu_ns)));
        }
    }
    let start = trace.work.first()?.start_ns;
    let end = trace.work.iter().map(Work::end_ns).max()?;
    Some((None, (start, end)))
}

/// Returns the index of the value nearest to the median: the first of several.
fn nearest_to_median(values: &[u64]) -> Option<usize> {
    let median = quantile(values, 1, 2)?;
    (0..values.len()).min_by_key(|at| values[*at].abs_diff(median))
}

/// Where a span is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// On a host thread.
    Host(usize),
    /// On a stream.
    Stream(usize),
    /// On the lane of a device's copies to and from other devices. Such spans are also drawn on a stream.
    PeerCopies(i64),
}

/// A timeline under construction. Spans come in the order of their starts.
pub struct Drawing {
    start_ns: i64,
    length_ns: u64,
    finest_ns: u64,
    lanes: BTreeMap<Place, Layers>,
}

/// The spans of a lane: those above cover those below.
#[derive(Default)]
struct Layers {
    ranges: Vec<Drawn>,
    below: Vec<Drawn>,
    above: Vec<Drawn>,
}

impl Drawing {
    /// Begins a timeline of this span. Spans shorter than this part of it are merged with their neighbours.
    pub fn new((start_ns, end_ns): (i64, i64), finest: u64) -> Drawing {
        let length_ns = end_ns.saturating_sub(start_ns).max(0) as u64;
        Drawing {
            start_ns,
            length_ns,
            finest_ns: length_ns / finest.max(1),
            lanes: BTreeMap::new(),
        }
    }

    /// Draws work of a device on a stream, and copies between devices also on a separate lane.
    pub fn add_work(
        &mut self,
        (trace, work): (&Trace, &Work),
        stream: usize,
        span: (i64, i64),
        shade: Shade,
    ) {
        self.add(Place::Stream(stream), span, shade, Some(work.name));
        if shade == Shade::Peer {
            let device = trace.streams[work.stream.0 as usize].device;
            self.add(Place::PeerCopies(device), span, shade, Some(work.name));
        }
    }

    /// Draws the part of a span inside the timeline.
    pub fn add(&mut self, place: Place, span: (i64, i64), shade: Shade, name: Option<Name>) {
        let finest_ns = self.finest_ns;
        if let Some(drawn) = self.clipped(span, shade, name) {
            push(
                &mut self.lanes.entry(place).or_default().above,
                drawn,
                finest_ns,
            );
        }
    }

    /// Draws a span below all spans that [`Drawing::add`] draws; ranges of the program are drawn lowest. These spans nest. Of
    /// those that are not ranges, only the outer ones are drawn; of ranges, also the inner ones, since the innermost is the
    /// most informative.
    fn add_below(&mut self, place: Place, span: (i64, i64), shade: Shade, name: Name) {
        let finest_ns = self.finest_ns;
        if let Some(drawn) = self.clipped(span, shade, Some(name)) {
            let layers = self.lanes.entry(place).or_default();
            if shade == Shade::Range {
                push(&mut layers.ranges, drawn, finest_ns);
                return;
            }
            let below = &mut layers.below;
            let inside = below
                .last()
                .is_some_and(|last| drawn.end_ns() <= last.end_ns());
            if !inside {
                push(below, drawn, finest_ns);
            }
        }
    }

    fn clipped(&self, (start, end): (i64, i64), shade: Shade, name: Option<Name>) -> Option<Drawn> {
        let end_ns = self.start_ns.saturating_add_unsigned(self.length_ns);
        let (start, end) = (start.max(self.start_ns), end.min(end_ns));
        (start < end).then(|| Drawn {
            start_ns: start.abs_diff(self.start_ns),
            duration_ns: end.abs_diff(start),
            shade,
            name,
            count: 1,
        })
    }

    /// Returns the timeline, with the names of its lanes.
    pub fn finish(self, step: Option<usize>, name: impl Fn(Place) -> String) -> Timeline {
        let drawn_ns = |layers: &Layers| -> u64 {
            let spans = layers.above.iter().chain(&layers.below);
            spans.map(|s| s.duration_ns).fold(0, u64::saturating_add)
        };
        let mut lanes: Vec<(Place, Layers)> = self.lanes.into_iter().collect();
        lanes.sort_by_key(|(place, layers)| (Reverse(drawn_ns(layers)), *place));
        let left_out = lanes.len().saturating_sub(MOST_LANES);
        lanes.truncate(MOST_LANES);
        lanes.sort_by_key(|(place, _)| *place);
        let lanes = lanes.into_iter().map(|(place, mut layers)| {
            layers.ranges.append(&mut layers.below);
            layers.ranges.append(&mut layers.above);
            Lane {
                name: name(place),
                is_host: matches!(place, Place::Host(_)),
                spans: layers.ranges,
            }
        });
        Timeline {
            step,
            length_ns: self.length_ns,
            lanes: lanes.collect(),
            left_out,
        }
    }
}

/// Adds a span, or merges it with the one before it if both could not be told apart.
fn push(spans: &mut Vec<Drawn>, drawn: Drawn, finest_ns: u64) {
    if let Some(last) = spans.last_mut()
        && drawn.duration_ns < finest_ns
        && (last.shade == drawn.shade || last.duration_ns < finest_ns)
        && drawn.start_ns <= last.end_ns().saturating_add(finest_ns)
    {
        if last.duration_ns < drawn.duration_ns {
            (last.shade, last.name) = (drawn.shade, drawn.name);
        }
        last.duration_ns = drawn.end_ns().max(last.end_ns()) - last.start_ns;
        last.count = last.count.saturating_add(drawn.count);
        return;
    }
    spans.push(drawn);
}
