//! What each device did with its time. All of it is a matter of unions: two kernels that run at once
//! keep a device busy once.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::spans::Spans;
use crate::model::{Direction, Name, StreamIndex, Trace, What, Work};
use crate::sort::order_by;
use crate::words::words;

/// What one process did with one device.
#[derive(Clone, Debug)]
pub struct DeviceTime {
    /// The process, where the trace says whose a stream is.
    pub process: Option<i64>,
    /// The device.
    pub device: i64,
    /// Its name, or nothing.
    pub name: String,
    /// How many kernels, copies and memsets.
    pub gpu_ops: usize,
    /// From the start of the first to the end of the last.
    pub span_ns: u64,
    /// When it did anything.
    pub busy: Spans,
    /// When it ran kernels, those of communication among them.
    pub kernels: Spans,
    /// Time in copies between host and device.
    pub host_copy_ns: u64,
    /// How much of that kernels ran through.
    pub hidden_copy_ns: u64,
    /// How many stretches of at least 10 µs in which it did nothing.
    pub gaps_10us: usize,
    /// How many of at least 1 ms.
    pub gaps_1ms: usize,
    /// Its streams, by the time in which they were busy.
    pub streams: Vec<StreamLoad>,
    /// The time in which work of two kinds ran at once, by [`Class`]; on the diagonal, the time of
    /// that kind.
    pub overlap_ns: [[u64; Class::ALL.len()]; Class::ALL.len()],
}

impl DeviceTime {
    /// When it did anything, as a sum.
    pub fn busy_ns(&self) -> u64 {
        self.busy.total_ns()
    }

    /// What is left of the span.
    pub fn idle_ns(&self) -> u64 {
        self.span_ns - self.busy_ns()
    }

    /// When it ran kernels, as a sum.
    pub fn kernel_ns(&self) -> u64 {
        self.kernels.total_ns()
    }
}

/// How busy a stream was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLoad {
    /// Which.
    pub stream: StreamIndex,
    /// How many kernels, copies and memsets.
    pub gpu_ops: usize,
    /// When it did anything.
    pub busy_ns: u64,
}

words! {
    /// Kinds of work, as far as their overlap is of interest.
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

/// What each device did, by process and device.
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

/// Work of one device, in the order of its starts. What need not be looked up later is only summed:
/// spans of every class and stream would take more than the rows themselves.
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

/// The union of spans that come in the order of their starts, as far as sums need it.
#[derive(Clone, Copy, Default)]
struct Union {
    total_ns: u64,
    /// Where the last of it ends, if there is any.
    end_ns: Option<i64>,
}

impl Union {
    /// Adds a span, and says which part of it is new.
    fn push(&mut self, start_ns: i64, end_ns: i64) -> (i64, i64) {
        let from = self.end_ns.map_or(start_ns, |end| end.max(start_ns));
        self.end_ns = Some(from.max(end_ns));
        self.total_ns += end_ns.max(from).abs_diff(from);
        (from, end_ns)
    }

    /// How much of a later span it covers. All of it began before, so that it has no gap there.
    fn shared_ns(&self, (start_ns, end_ns): (i64, i64)) -> u64 {
        let end = self.end_ns.map_or(start_ns, |end| end.min(end_ns));
        end.max(start_ns).abs_diff(start_ns)
    }
}

/// What kind of work it is; none for what matters to no overlap.
pub fn class(work: &Work, collectives: &Collectives) -> Option<Class> {
    match work.what {
        What::Kernel(_) if collectives.contains(work.name) => Some(Class::Collective),
        What::Kernel(_) => Some(Class::Compute),
        What::Copy {
            direction: Direction::Upload,
            ..
        } => Some(Class::Upload),
        What::Copy {
            direction: Direction::Download,
            ..
        } => Some(Class::Download),
        What::Copy { .. } | What::Memset { .. } => None,
    }
}

/// Which names are those of kernels that exchange data with other devices.
#[derive(Debug)]
pub struct Collectives {
    is_one: Vec<bool>,
}

impl Collectives {
    /// Looks at each name once.
    pub fn of(trace: &Trace) -> Collectives {
        let names = (0..trace.names.len() as u32).map(|at| trace.names.text(Name(at)));
        Collectives {
            is_one: names.map(is_collective).collect(),
        }
    }

    /// Whether this name is one.
    pub fn contains(&self, name: Name) -> bool {
        self.is_one.get(name.0 as usize).copied().unwrap_or(false)
    }
}

/// NCCL, RCCL, and the kernels that frameworks have for small messages.
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
