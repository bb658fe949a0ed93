//! How each device spent its time. All figures are unions of spans: two kernels that run concurrently keep a device busy once.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::spans::Spans;
use crate::model::{Direction, Name, StreamIndex, Trace, What, Work};
use crate::sort::order_by;
use crate::words::words;

/// How one process used one device.
#[derive(Clone, Debug)]
pub struct DeviceTime {
    /// The process, where the trace states to which process a stream belongs.
    pub process: Option<i64>,
    /// The device.
    pub device: i64,
    /// Its name, or an empty string.
    pub name: String,
    /// Number of kernels, copies and memsets.
    pub gpu_ops: usize,
    /// Time from the start of the first operation to the end of the last.
    pub span_ns: u64,
    /// Spans in which it was busy.
    pub busy: Spans,
    /// Spans in which it ran kernels, including those of communication.
    pub kernels: Spans,
    /// Time in copies between host and device.
    pub host_copy_ns: u64,
    /// The part of that time during which kernels ran.
    pub hidden_copy_ns: u64,
    /// Number of idle spans of at least 10 µs.
    pub gaps_10us: usize,
    /// Number of idle spans of at least 1 ms.
    pub gaps_1ms: usize,
    /// Its streams, by their busy time.
    pub streams: Vec<StreamLoad>,
    /// Time in which work of two kinds ran concurrently, by [`Class`]; on the diagonal, the time of that kind.
    pub overlap_ns: [[u64; Class::ALL.len()]; Class::ALL.len()],
}

impl DeviceTime {
    /// Returns the total busy time.
    pub fn busy_ns(&self) -> u64 {
        self.busy.total_ns()
    }

    /// Returns the total idle time: the span without the busy time.
    pub fn idle_ns(&self) -> u64 {
        self.span_ns - self.busy_ns()
    }

    /// Returns the total time in which it ran kernels.
    pub fn kernel_ns(&self) -> u64 {
        self.kernels.total_ns()
    }
}

/// How busy a stream was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLoad {
    /// The stream.
    pub stream: StreamIndex,
    /// Number of kernels, copies and memsets.
    pub gpu_ops: usize,
    /// Busy time, in nanoseconds.
    pub busy_ns: u64,
}

words! {
    /// Kinds of work whose overlap is measured.
    pub enum Class {
        /// Kernels that compute.
        Compute = "kernel",
        /// Copies from the host.
        Upload = "upload",
        /// Copies to the host.
        Download = "download",
        /// Kernels that exchange data with other devices.
        Collective = "collective",
    }
}

/// Returns how each device was used, by process and device.
pub fn devices(trace: &Trace, collectives: &Collectives) -> Vec<DeviceTime> {
    let mut gathered: BTreeMap<(Option<i64>, i64), Gathered> = BTreeMap::new();
    for work in &trace.work {
        let stream = &trace.streams[work.stream.0 as usize];
        let place = gathered.entry((stream.process, stream.device));
        place.or_default().add(work, collectives);
    }
    gathered
        .into_iter()
        .map(|((process, device), gathered)| {
            let described = trace.devices.iter().find(|d| d.id == device);
            let name = described.map_or(String::new(), |d| d.name.clone());
            gathered.time(process, device, name)
        })
        .collect()
}

/// The work of one device, in the order of its starts. Where later look-ups are not needed, only sums are kept: spans of every
/// class and stream would take more memory than the rows themselves.
#[derive(Default)]
struct Gathered {
    gpu_ops: usize,
    busy: Spans,
    kernels: Spans,
    kernels_so_far: Union,
    host_copies: Union,
    hidden_ns: u64,
    classes: [Union; Class::ALL.len()],
    overlap_ns: [[u64; Class::ALL.len()]; Class::ALL.len()],
    streams: BTreeMap<StreamIndex, (usize, Union)>,
}

impl Gathered {
    fn add(&mut self, work: &Work, collectives: &Collectives) {
        let (start, end) = (work.start_ns, work.end_ns());
        self.gpu_ops += 1;
        self.busy.push(start, end);
        if let What::Kernel(_) = work.what {
            self.kernels.push(start, end);
            let new = self.kernels_so_far.push(start, end);
            self.hidden_ns += self.host_copies.shared_ns(new);
        }
        if work.is_host_copy() {
            let new = self.host_copies.push(start, end);
            self.hidden_ns += self.kernels_so_far.shared_ns(new);
        }
        if let Some(class) = class(work, collectives) {
            let class = class as usize;
            let new = self.classes[class].push(start, end);
            for (other, union) in self.classes.iter().enumerate() {
                if other != class {
                    let shared_ns = union.shared_ns(new);
                    self.overlap_ns[class][other] += shared_ns;
                    self.overlap_ns[other][class] += shared_ns;
                }
            }
        }
        let stream = self.streams.entry(work.stream).or_default();
        stream.0 += 1;
        stream.1.push(start, end);
    }

    fn time(self, process: Option<i64>, device: i64, name: String) -> DeviceTime {
        let longer = |least_ns: u64| {
            let lengths = self.busy.gaps().map(|(start, end)| end.abs_diff(start));
            lengths.filter(|length| *length >= least_ns).count()
        };
        let mut streams: Vec<StreamLoad> = self
            .streams
            .iter()
            .map(|(stream, (gpu_ops, union))| StreamLoad {
                stream: *stream,
                gpu_ops: *gpu_ops,
                busy_ns: union.total_ns,
            })
            .collect();
        order_by(&mut streams, |load| (Reverse(load.busy_ns), load.stream));
        let mut overlap_ns = self.overlap_ns;
        for (class, union) in self.classes.iter().enumerate() {
            overlap_ns[class][class] = union.total_ns;
        }
        DeviceTime {
            process,
            device,
            name,
            gpu_ops: self.gpu_ops,
            span_ns: self.busy.extent_ns(),
            host_copy_ns: self.host_copies.total_ns,
            hidden_copy_ns: self.hidden_ns,
            gaps_10us: longer(10_000),
            gaps_1ms: longer(1_000_000),
            streams,
            overlap_ns,
            busy: self.busy,
            kernels: self.kernels,
        }
    }
}

/// The union of spans that are added in the order of their starts. It keeps only what sums need.
#[derive(Clone, Copy, Default)]
struct Union {
    total_ns: u64,
    /// End of the last span, if there is one.
    end_ns: Option<i64>,
}

impl Union {
    /// Adds a span; returns the part of it that is new.
    fn push(&mut self, start_ns: i64, end_ns: i64) -> (i64, i64) {
        let from = self.end_ns.map_or(start_ns, |end| end.max(start_ns));
        self.end_ns = Some(from.max(end_ns));
        self.total_ns += end_ns.max(from).abs_diff(from);
        (from, end_ns)
    }

    /// Returns how much of a later span the union covers. All spans of the union began before that span, so the union has no
    /// gap inside it.
    fn shared_ns(&self, (start_ns, end_ns): (i64, i64)) -> u64 {
        let end = self.end_ns.map_or(start_ns, |end| end.min(end_ns));
        end.max(start_ns).abs_diff(start_ns)
    }
}

/// Returns the kind of work; `None` for work whose overlap is not measured.
pub fn class(work: &Work, collectives: &Collectives) -> Option<Class> {
    match (work.what, work.what.direction()) {
        (What::Kernel(_), _) if collectives.contains(work.name) => Some(Class::Collective),
        (What::Kernel(_), _) => Some(Class::Compute),
        (_, Some(Direction::Upload)) => Some(Class::Upload),
        (_, Some(Direction::Download)) => Some(Class::Download),
        _ => None,
    }
}

/// The names of kernels that exchange data with other devices.
#[derive(Debug)]
pub struct Collectives {
    is_one: Vec<bool>,
}

impl Collectives {
    /// Examines each name once.
    pub fn of(trace: &Trace) -> Collectives {
        let is_one = trace.names.that(is_collective);
        Collectives { is_one }
    }

    /// Returns whether this is the name of such a kernel.
    pub fn contains(&self, name: Name) -> bool {
        self.is_one.get(name.0 as usize).copied().unwrap_or(false)
    }
}

/// Returns whether this is a kernel of NCCL or RCCL, or one that frameworks use for small messages.
pub fn is_collective(name: &str) -> bool {
    name.starts_with("nccl")
        || name.starts_with("rccl")
        || [
            "ncclDevKernel",
            "ncclKernel",
            "multimem_all_reduce",
            "two_shot_all_reduce",
            "one_shot_all_reduce",
            "cross_device_reduce",
        ]
        .iter()
        .any(|part| name.contains(part))
}
