//! The objects of a program: every buffer with a plain vector that undergoes the same calls.

mod callbacks;
mod child;
mod edges;
mod graphs;
mod holds;
mod host;
mod judge;
mod memory;
mod nodes;
mod places;
mod values;

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sidestream::buffer::{DeviceBuf, Pinned, View, ViewMut};
use sidestream::device::{Device, Recording};
use sidestream::error::{Error, Lost};
use sidestream::event::{Event, TimedEvent};
use sidestream::kernel::Grid;
use sidestream::log::SinkId;
use sidestream::op::DeviceId;
use sidestream::stream::Stream;

use super::act::{Act, Place};
use super::faults::Faults;
use super::flying::{Flying, drop_elsewhere};
use super::graph_act::GRAPHS;
use super::plan::Plan;
use super::reference::{self, Kernels};
pub use callbacks::bad_waker;
use callbacks::{Bomb, is_ours};
use edges::Other;
use graphs::Stage;
use values::{clone_at, keep, pattern, take_at};

/// A buffer, and its expected contents from `first` on. The lock guards both, so that their calls have the same
/// order.
pub struct Slot {
    buffer: DeviceBuf<u32>,
    device: DeviceId,
    first: usize,
    model: Vec<u32>,
}

/// A stream, and for each thread the number of its last host function that ran there.
#[derive(Clone)]
struct Line {
    stream: Stream,
    ran: Arc<[AtomicU64; 4]>,
}

pub struct World {
    pub plan: Plan,
    /// Devices that the program has not dropped.
    devices: Mutex<Vec<Option<Device>>>,
    /// The simulated machine advances only while it is queried, so at the end all devices are queried: a function
    /// that never runs would keep what it owns.
    all: Vec<Device>,
    lines: Mutex<Vec<Line>>,
    slots: Vec<RwLock<Option<Slot>>>,
    /// Locked before a slot, if both are.
    graphs: [Mutex<Option<Stage>>; GRAPHS],
    events: Mutex<Vec<Event>>,
    timed: Mutex<Vec<TimedEvent>>,
    pub flying: Mutex<Vec<Flying>>,
    pub idle: Mutex<Vec<Pinned<u32>>>,
    /// Values that are neither used nor dropped before the end; to the runtime they look like forgotten ones.
    pub forgotten: Mutex<Vec<Box<dyn Any + Send>>>,
    kernels: Kernels,
    pub lost: Mutex<Option<Lost>>,
    wrong: Arc<Mutex<Vec<String>>>,
    functions: AtomicU64,
    accepted: AtomicU64,
    returned: Arc<AtomicU64>,
    faults: Arc<Faults>,
    /// Streams that are used outside the safe API.
    others: Mutex<Vec<Arc<Other>>>,
    /// Number of captured streams.
    capturing: AtomicUsize,
    ends: Mutex<()>,
    sinks: Mutex<Vec<SinkId>>,
    recordings: Mutex<Vec<Recording<Bomb>>>,
    /// Whether a call had an effect but returned no result: the contents of the buffers are unknown.
    is_torn: AtomicBool,
    /// Whether `is_torn` was ever true.
    was_torn: AtomicBool,
}

const GRID: Grid = Grid {
    blocks: [1, 1, 1],
    threads: [32, 1, 1],
    shared_bytes: 0,
};

impl Slot {
    fn range(&self, place: Place) -> Range<usize> {
        let len = self.model.len();
        place.from * len / 1000..place.to * len / 1000
    }

    fn view(&self, range: &Range<usize>) -> View<'_, u32> {
        self.buffer
            .slice(self.first + range.start..self.first + range.end)
    }

    fn view_mut(&mut self, range: &Range<usize>) -> ViewMut<'_, u32> {
        let first = self.first;
        self.buffer
            .slice_mut(first + range.start..first + range.end)
    }
}

impl World {
    pub fn new(plan: &Plan, devices: Vec<Device>, faults: &Arc<Faults>) -> World {
        World {
            plan: plan.clone(),
            devices: Mutex::new(devices.iter().cloned().map(Some).collect()),
            all: devices,
            lines: Mutex::default(),
            slots: (0..plan.slots).map(|_| RwLock::new(None)).collect(),
            graphs: Default::default(),
            events: Mutex::default(),
            timed: Mutex::default(),
            flying: Mutex::default(),
            idle: Mutex::default(),
            forgotten: Mutex::default(),
            kernels: Kernels::new(),
            lost: Mutex::default(),
            wrong: Arc::default(),
            functions: AtomicU64::new(1),
            accepted: AtomicU64::new(0),
            returned: Arc::default(),
            faults: Arc::clone(faults),
            others: Mutex::default(),
            capturing: AtomicUsize::new(0),
            ends: Mutex::default(),
            sinks: Mutex::default(),
            recordings: Mutex::default(),
            is_torn: AtomicBool::new(false),
            was_torn: AtomicBool::new(false),
        }
    }

    /// Opens the streams that a program starts with, and repeats refused calls.
    pub fn open_streams(&self) {
        for n in 0..self.plan.streams {
            let line = loop {
                if let Some(line) = self.new_line(n, n) {
                    break line;
                }
            };
            self.lines.lock().push(line);
        }
    }

    /// Makes one call, in which code of the test may panic.
    pub fn try_act(&self, thread: usize, act: Act) {
        let acted = catch_unwind(AssertUnwindSafe(|| self.act(thread, act)));
        match acted {
            Err(panic) if is_ours(&*panic) => self.tear(),
            Err(panic) => resume_unwind(panic),
            Ok(()) => {}
        }
        if self.is_torn.swap(false, Ordering::Relaxed) {
            self.keep_promises();
            (0..self.slots.len()).for_each(|at| drop(self.take(at)));
            self.graphs
                .iter()
                .for_each(|graph| drop(graph.lock().take()));
        }
    }

    /// Marks that a call had an effect but returned no result.
    fn tear(&self) {
        self.is_torn.store(true, Ordering::Relaxed);
        self.was_torn.store(true, Ordering::Relaxed);
    }

    pub fn act(&self, thread: usize, act: Act) {
        match act {
            Act::Alloc { .. } => self.alloc(act),
            Act::Drop(slot) => drop(self.take(slot)),
            Act::Forget(slot) => {
                if let Some(slot) = self.take(slot) {
                    self.forgotten.lock().push(Box::new(slot));
                }
            }
            Act::DropElsewhere(slot) => drop_elsewhere(self.take(slot)),
            Act::Fill(at, value) => self.write(at, |stream, view| {
                let filled = stream.fill_with(view, value);
                filled.map(|()| move |model: &mut [u32]| model.fill(value))
            }),
            Act::Memset(at, byte) => self.write(at, |stream, view| {
                let set = stream.memset(view, byte);
                let value = u32::from_ne_bytes([byte; 4]);
                set.map(|()| move |model: &mut [u32]| model.fill(value))
            }),
            Act::In(at, value) => self.write(at, |stream, view| {
                let from = pattern(value, view.len());
                let copied = stream.memcpy_h2d(&from, view);
                copied.map(|()| move |model: &mut [u32]| model.copy_from_slice(&from))
            }),
            Act::One(at) => self.launch(at, &self.kernels.one, reference::one),
            Act::Trap(at) => self.launch(at, &self.kernels.trap, |_| ()),
            Act::Span(at) => {
                let device = self.stream(at.stream).stream.device();
                let _outer = device.span("outer");
                self.act(thread, Act::One(at));
                let _inner = device.span("inner");
                self.act(thread, Act::Fill(at, 3));
            }
            Act::Benchmark(at) => self.benchmark(at),
            Act::Out(at) => self.out(at),
            Act::Upload(at, value) => self.upload(at, value),
            Act::Download(at) => self.download(at),
            Act::UploadRows(at, table) => self.upload_rows(at, table),
            Act::DownloadRows(at, table) => self.download_rows(at, table),
            Act::CopyRows(at, from, table) => self.copy_rows(from, at, table),
            Act::Copy(from, at) => self.copy(from, at),
            Act::Within(at) => self.within(at),
            Act::Two(x, at) => self.kernel(x, x, at, |stream, x, _, y| {
                stream.launch(&self.kernels.two, GRID, (x, y))?;
                Ok(|x: &[u32], _: &[u32], y: &mut [u32]| reference::two(x, y))
            }),
            Act::Three(x, z, at) => self.kernel(x, z, at, |stream, x, z, y| {
                stream.launch(&self.kernels.three, GRID, (x, z, y))?;
                Ok(reference::three)
            }),
            Act::Four(x, z, at, n) => self.four(x, z, at, n),
            Act::Halves(at, other, value) => self.halves(at, other, value),
            Act::HostFunc(stream, hosted) => self.host_func(thread, stream, hosted),
            Act::Land(which, how) => {
                let flying = take_at(&self.flying, which);
                if let Some(flying) = flying {
                    self.land(flying, how);
                }
            }
            Act::Graph(at, act) => self.graph(at, act),
            Act::Edge(act) => self.edge(thread, act),
            _ => self.order(act),
        }
    }

    /// Makes calls that touch no memory.
    fn order(&self, act: Act) {
        match act {
            Act::Record(stream) => {
                let event = self.tried(self.stream(stream).stream.record_event());
                keep(&self.events, event);
            }
            Act::RecordTimed(stream) => {
                let event = self.tried(self.stream(stream).stream.record_timed());
                keep(&self.timed, event);
            }
            Act::Elapsed => {
                if let (Some(end), Some(start)) = (take_at(&self.timed, 1), take_at(&self.timed, 0))
                {
                    match end.elapsed_since(&start) {
                        // Events of two devices, whose clocks cannot be compared.
                        Err(Error::Invalid { .. }) if self.plan.devices > 1 => {}
                        elapsed => drop(self.tried(elapsed)),
                    }
                }
            }
            Act::WaitEvent(stream, which) => {
                let event = clone_at(&self.events, which);
                if let Some(event) = event {
                    self.issued(self.stream(stream).stream.wait_event(&event));
                }
            }
            Act::WaitStream(stream, other) => {
                let (stream, other) = (self.stream(stream), self.stream(other));
                self.issued(stream.stream.wait_stream(&other.stream));
            }
            Act::QueryEvent(which) => {
                if let Some(event) = clone_at(&self.events, which) {
                    self.tried(event.query());
                }
            }
            Act::SyncEvent(which) => {
                if let Some(event) = clone_at(&self.events, which) {
                    self.tried(event.synchronize());
                }
            }
            Act::DropEvent(which) => drop(take_at(&self.events, which)),
            Act::QueryStream(stream) => drop(self.tried(self.stream(stream).stream.query())),
            Act::SyncStream(stream) => drop(self.tried(self.stream(stream).stream.synchronize())),
            Act::SyncStreamFor(stream, ns) => {
                let at_most = Duration::from_nanos(u64::from(ns));
                self.tried(self.stream(stream).stream.synchronize_for(at_most));
            }
            Act::SyncDevice(which) => drop(self.tried(self.device(which).synchronize())),
            Act::EmptyCache(which) => drop(self.tried(self.device(which).empty_cache())),
            Act::Statistics => {
                let known = self.device(0).statistics();
                if known.allocated_bytes > known.reserved_bytes
                    || known.reserved_bytes > self.plan.memory_bytes
                    || known.allocated_bytes > known.allocated_peak_bytes
                {
                    self.wrong(format!("{known:?}"));
                }
            }
            Act::NewStream(at, which) => {
                if let Some(line) = self.new_line(at, which) {
                    let mut lines = self.lines.lock();
                    let count = lines.len();
                    let old = std::mem::replace(&mut lines[at % count], line);
                    drop(lines);
                    drop(old);
                }
            }
            Act::DropDevice(which) => {
                let mut devices = self.devices.lock();
                let at = which % devices.len();
                let device = devices[at].take();
                drop(devices);
                drop(device);
            }
            other => self.wrong(format!("{other:?} is not carried out")),
        }
    }
}
