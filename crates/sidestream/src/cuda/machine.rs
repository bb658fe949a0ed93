//! The [`Backend`] for NVIDIA GPUs.
//!
//! A call becomes one driver call, on the calling thread, with the handle of its id. Nothing is queued, locked or
//! allocated on the way, except for calls in which the driver itself takes longer: creating objects, functions on the
//! host, times.
//!
//! # Contexts
//! Each device uses its primary context, as PyTorch and the CUDA runtime do. Calls with a non-default stream only
//! need the thread to have some context; a thread without one gets one. Calls that depend on the current context
//! (creating objects, the default streams, memory) make the device's context current and restore the thread's own
//! afterwards. So the current device of other libraries never changes.
//!
//! # Failures
//! A kernel that traps or accesses memory out of bounds destroys its context: from then on every call returns the
//! same code. The first such code becomes [`Error::DeviceLost`], with the work in streams that is not known to be
//! complete.

mod ask;
mod context;
mod failed;
mod put;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::devices::{Absent, Opened, opened};
use super::driver::{
    CuContext, CuGraph, Driver, EVENT_BLOCKING_SYNC, EVENT_DISABLE_TIMING, EVENT_INTERPROCESS,
    IpcEventHandle, OUT_OF_MEMORY, STREAM_LEGACY, STREAM_NON_BLOCKING, STREAM_PER_THREAD, SUCCESS,
};
use super::gather::{self, Tables};
use super::graph::Building;
use super::host_func::Waiting;
use super::launch::Kernels;
use super::memory::Memories;
use super::nvtx;
use super::streams::{Event, Stream};
use super::table::Table;
use super::timing::Timing;
use super::wait;
use crate::backend::{
    Address, Backend, BesideCaptures, Caps, Code, Create, Destroy, Done, Payload, Reserve,
};
use crate::error::Result;
use crate::op::{DeviceId, EventId, Kind, Memory, Op, StreamId, StreamKind, ThreadId};
use ask::Asked;
use context::Current;

/// A machine with some of the system's GPUs.
pub struct Machine {
    opened: &'static Opened,
    /// The machine's number, unique in the process.
    id: u64,
    devices: Vec<CuContext>,
    caps: Vec<Caps>,
    streams: Table<Stream>,
    events: Table<Event>,
    graphs: Table<Graph>,
    kernels: Kernels,
    memories: Memories,
    /// The kernel that makes many small copies.
    gather: Arc<Code>,
    /// The kernel that makes one small copy, in graphs.
    piece: Code,
    tables: Tables,
    /// Functions on the host that have not run yet.
    waiting: Arc<Waiting>,
    names: Mutex<HashMap<StreamId, String>>,
    /// The current device of each thread that set one.
    current: Mutex<HashMap<ThreadId, DeviceId>>,
    /// Per device: captures that have ended but are not graphs yet.
    captured: Mutex<Vec<VecDeque<CuGraph>>>,
    keeps_times: AtomicBool,
    timing: Mutex<Option<Timing>>,
    is_lost: AtomicBool,
    /// Whether work may be running that no open stream tells of: a stream was destroyed before it was complete, or a
    /// thread used its default stream.
    has_left_work: AtomicBool,
}

/// An executable graph.
#[derive(Default)]
struct Graph {
    handle: AtomicU64,
    device: AtomicU32,
}

impl Machine {
    /// Opens the devices with these ordinals, in this order. `file` is the driver's library and `compiler` that of
    /// NVRTC; for `None` they are searched for.
    ///
    /// # Safety
    /// As for [`Driver::load`] and [`Nvrtc::load`](super::nvrtc::Nvrtc::load).
    ///
    /// # Errors
    /// The reason why CUDA cannot be used, or the device that does not exist.
    pub unsafe fn open(
        ordinals: &[u32],
        file: Option<&Path>,
        compiler: Option<&Path>,
    ) -> Result<Machine, Unusable> {
        // SAFETY: the caller's promise.
        let opened = unsafe { opened(file) }.map_err(Unusable::Absent)?;
        let driver = &opened.driver;
        let (mut devices, mut caps, mut handles) = (Vec::new(), Vec::new(), Vec::new());
        for &ordinal in ordinals {
            if ordinal >= opened.count {
                let count = opened.count;
                return Err(Unusable::NoSuchOrdinal { ordinal, count });
            }
            let of_device = |code| Unusable::Device {
                ordinal,
                why: driver.words(code),
            };
            let (device, context) = opened.context(ordinal).map_err(of_device)?;
            let _current = Current::push(driver, context);
            let (mut least, mut most) = (0, 0);
            // SAFETY: writes two integers.
            match unsafe { (driver.cuCtxGetStreamPriorityRange)(&mut least, &mut most) } {
                SUCCESS => {}
                code => return Err(of_device(code)),
            }
            devices.push(context);
            caps.push(opened.caps(ordinal, device, (most, least)));
            handles.push(device);
        }
        let machine = Machine {
            opened,
            id: next_id(),
            captured: Mutex::new(vec![VecDeque::new(); devices.len()]),
            memories: Memories::default(),
            gather: Arc::new(gather::code("gather")),
            piece: gather::code("copy_piece"),
            tables: Tables::default(),
            devices,
            caps,
            streams: Table::default(),
            events: Table::default(),
            graphs: Table::default(),
            // SAFETY: the caller's promise.
            kernels: unsafe { Kernels::new(opened, &handles, compiler) },
            waiting: Arc::default(),
            names: Mutex::default(),
            current: Mutex::default(),
            keeps_times: AtomicBool::new(false),
            timing: Mutex::default(),
            is_lost: AtomicBool::new(false),
            has_left_work: AtomicBool::new(false),
        };
        machine.reach_peers(&handles);
        Ok(machine)
    }

    /// Lets each device access the memory of every other one where possible: copies between them are then ten times
    /// as fast (387 against 37 GB/s between two H200).
    fn reach_peers(&self, devices: &[i32]) {
        let driver = self.driver();
        for (from, &context) in self.devices.iter().enumerate() {
            let _current = Current::push(driver, context);
            for (to, &peer) in self.devices.iter().enumerate() {
                let mut can = 0;
                // SAFETY: writes one integer; the contexts exist. If access is already enabled the driver returns an
                // error code, and nothing changes.
                unsafe {
                    let asked =
                        (driver.cuDeviceCanAccessPeer)(&mut can, devices[from], devices[to]);
                    if from != to && asked == SUCCESS && can != 0 {
                        (driver.cuCtxEnablePeerAccess)(peer, 0);
                    }
                }
            }
        }
    }

    /// Creates an event that processes share, or opens one of another process.
    fn share(&self, id: EventId, device: DeviceId, from: Option<[u8; 64]>) -> Result<()> {
        let (_current, driver) = (self.on(device), self.driver());
        let flags = EVENT_INTERPROCESS | EVENT_DISABLE_TIMING;
        let mut handle = 0;
        // SAFETY: writes one handle. The driver refuses bytes that are not a handle.
        let code = unsafe {
            match from {
                None => (driver.cuEventCreate)(&mut handle, flags),
                Some(from) => (driver.cuIpcOpenEventHandle)(&mut handle, IpcEventHandle(from)),
            }
        };
        self.answer("interprocess", device, code)?;
        self.events.at(id.0).open(handle, device, false);
        Ok(())
    }

    fn driver(&self) -> &'static Driver {
        &self.opened.driver
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// The reason why a machine cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// CUDA is not available.
    Absent(Absent),
    /// A device does not exist.
    NoSuchOrdinal {
        /// The ordinal that was asked for.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },
    /// A device cannot be used.
    Device {
        /// The device's ordinal.
        ordinal: u32,
        /// The driver's description of the error.
        why: String,
    },
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unusable::Absent(absent) => write!(f, "{absent}"),
            Unusable::NoSuchOrdinal { count: 1, .. } => write!(f, "there is only cuda:0"),
            Unusable::NoSuchOrdinal { count, .. } => {
                write!(f, "there are cuda:0 to cuda:{}", count - 1)
            }
            Unusable::Device { why, .. } => write!(f, "the driver cannot use it: {why}"),
        }
    }
}

impl std::error::Error for Unusable {}

// ------------------------------------------------------------------ the waist

// SAFETY: memory and order are the driver's, which keeps CUDA's guarantees; each call becomes the matching driver
// call.
unsafe impl Backend for Machine {
    fn devices(&self) -> &[Caps] {
        &self.caps
    }

    unsafe fn create(&self, what: Create<'_>) -> Result<()> {
        let driver = self.driver();
        match what {
            Create::Stream {
                id,
                device,
                kind,
                priority,
                name,
                adopt,
            } => {
                let _current = self.on(device);
                let mut handle = 0;
                let (handle, is_ours) = match (adopt, kind) {
                    (Some(handle), _) => (handle, false),
                    (None, StreamKind::Legacy) => (STREAM_LEGACY, false),
                    (None, StreamKind::PerThread) => (STREAM_PER_THREAD, false),
                    (None, StreamKind::NonBlocking | StreamKind::Blocking) => {
                        let flags = match kind {
                            StreamKind::NonBlocking => STREAM_NON_BLOCKING,
                            _ => 0,
                        };
                        // SAFETY: writes one handle.
                        let code = unsafe {
                            (driver.cuStreamCreateWithPriority)(&mut handle, flags, priority)
                        };
                        self.answer("stream", device, code)?;
                        (handle, true)
                    }
                };
                if handle == STREAM_PER_THREAD {
                    self.has_left_work.store(true, Relaxed);
                }
                self.streams.at(id.0).open(handle, device, is_ours);
                self.names.lock().insert(id, name.to_owned());
            }
            Create::Event {
                id,
                device,
                timing,
                sleeps,
            } => {
                let _current = self.on(device);
                let flags = if timing { 0 } else { EVENT_DISABLE_TIMING }
                    | if sleeps { EVENT_BLOCKING_SYNC } else { 0 };
                let mut handle = 0;
                // SAFETY: writes one handle.
                let code = unsafe { (driver.cuEventCreate)(&mut handle, flags) };
                self.answer("event", device, code)?;
                self.events.at(id.0).open(handle, device, sleeps);
            }
            Create::Interprocess { id, device, from } => self.share(id, device, from)?,
            Create::Graph { id, device, nodes } => {
                let _current = self.on(device);
                let place = device.0 as usize;
                let captured = if nodes.is_empty() {
                    self.captured.lock()[place].pop_front()
                } else {
                    None
                };
                let building = match captured {
                    Some(graph) => Building::captured(driver, graph),
                    None => Building::new(driver)?,
                };
                let load = |code: &Code| self.kernel(device, code);
                building.add(nodes, self.devices[place], &self.piece, load)?;
                let graph = self.graphs.at(id.0);
                match graph.handle.load(Relaxed) {
                    0 => graph.handle.store(building.finish()?, Relaxed),
                    made => building.update(made)?,
                }
                graph.device.store(device.0, Relaxed);
            }
        }
        Ok(())
    }

    unsafe fn destroy(&self, what: Destroy) {
        self.bind();
        let driver = self.driver();
        // SAFETY: each object was created here, and the front end does not name it again. The driver keeps everything
        // that submitted work still needs.
        unsafe {
            match what {
                Destroy::Stream(id) => {
                    self.names.lock().remove(&id);
                    let stream = self.streams.at(id.0);
                    if stream.is_open() && self.ask_beside(stream) != Some(true) {
                        self.has_left_work.store(true, Relaxed);
                    }
                    if let Some(handle) = stream.close() {
                        (driver.cuStreamDestroy_v2)(handle);
                    }
                }
                Destroy::Event(id) => {
                    if let Some(handle) = self.events.at(id.0).close() {
                        (driver.cuEventDestroy_v2)(handle);
                    }
                }
                Destroy::Graph(id) => {
                    let handle = self.graphs.at(id.0).handle.swap(0, Relaxed);
                    if handle != 0 {
                        (driver.cuGraphExecDestroy)(handle);
                    }
                }
            }
        }
    }

    fn reserve(&self, wanted: Reserve) -> Result<Address> {
        let _current = self.on(wanted.device);
        let reserved = self.memories.reserve(self.driver(), wanted);
        reserved.map_err(|code| match code {
            OUT_OF_MEMORY => self.memories.none_left(self.driver(), wanted),
            code => self.failed("reserve", wanted.device, code),
        })
    }

    unsafe fn unreserve(&self, memory: Memory, device: DeviceId, at: Address) {
        let _current = self.on(device);
        let _beside = BesideCaptures::on(self);
        self.memories.unreserve(self.driver(), memory, at);
    }

    unsafe fn register(&self, at: Address, bytes: u64) -> Result<()> {
        let _current = self.on(DeviceId(0));
        // SAFETY: the caller promises that the memory exists and stays allocated.
        let code = unsafe {
            let flags = super::driver::HOST_PORTABLE;
            (self.driver().cuMemHostRegister_v2)(at.0, bytes as usize, flags)
        };
        self.answer("register", DeviceId(0), code)
    }

    unsafe fn unregister(&self, at: Address) {
        let _current = self.on(DeviceId(0));
        let _beside = BesideCaptures::on(self);
        // SAFETY: the memory was registered, and the front end has seen all its uses complete.
        unsafe { (self.driver().cuMemHostUnregister)(at.0) };
    }

    fn prepare(&self, device: DeviceId, code: &Arc<Code>) -> Result<()> {
        self.kernel(device, code).map(|_| ())
    }

    #[inline]
    unsafe fn submit(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        self.bind();
        match (self.keeps_times.load(Relaxed), op.kind) {
            // Record and wait are the two cheapest driver calls: most of their cost is the path to the driver.
            (false, Kind::Record { event, stream }) => self.record(event, stream),
            (false, Kind::Wait { stream, event }) => self.wait_in(stream, event),
            (false, _) => self.put(op, payload),
            (true, _) => self.put_timed(op, payload),
        }
    }

    fn is_captured(&self, stream: StreamId) -> bool {
        self.bind();
        self.may_be_captured(self.streams.at(stream.0))
    }

    fn capture_mode(&self, mut mode: i32) -> i32 {
        // SAFETY: reads and writes one integer. If the call fails, neither the mode nor the integer changes.
        unsafe { (self.driver().cuThreadExchangeStreamCaptureMode)(&mut mode) };
        mode
    }

    fn drain(&self, device: DeviceId) -> Option<bool> {
        self.bind();
        if self.has_left_work.load(Relaxed) {
            return None;
        }
        let open = self.streams.all().filter(|stream| stream.is_open());
        let mut of_device = open.filter(|stream| stream.device() == device);
        Some(of_device.all(|stream| {
            let is_over = || self.ask_beside(stream).ok_or(());
            wait::until(Duration::MAX, is_over) == Ok(true)
        }))
    }

    #[inline]
    fn query(&self, op: &Op) -> Result<bool> {
        self.timed_call(op.id, || self.question(op))
    }

    #[inline]
    fn peek(&self, op: &Op) -> Result<bool> {
        self.question(op)
    }

    fn wait(&self, op: &Op, for_at_most: Duration) -> Result<bool> {
        self.bind();
        let asked = self.asked(op)?;
        self.timed_call(op.id, || match asked {
            Asked::Event(event) if event.sleeps() && for_at_most == Duration::MAX => {
                self.sleep(event)
            }
            _ => wait::until(for_at_most, || self.ask(&asked)),
        })
    }

    fn elapsed_ns(&self, from: EventId, to: EventId) -> Result<f64> {
        self.bind();
        let (from, to) = (self.events.at(from.0), self.events.at(to.0));
        let mut ms = 0f32;
        // SAFETY: both events are open; one number is written.
        let code =
            unsafe { (self.driver().cuEventElapsedTime)(&mut ms, from.handle(), to.handle()) };
        self.answer("elapsed", from.device(), code)?;
        Ok(f64::from(ms) * 1e6)
    }

    fn ipc_handle(&self, event: EventId) -> Result<[u8; 64]> {
        let event = self.events.at(event.0);
        let _current = self.on(event.device());
        let mut handle = IpcEventHandle([0; 64]);
        // SAFETY: the event is open; one handle is written.
        let code = unsafe { (self.driver().cuIpcGetEventHandle)(&mut handle, event.handle()) };
        self.answer("ipc_handle", event.device(), code)?;
        Ok(handle.0)
    }

    fn keep_times(&self, keep: bool) {
        let mut timing = self.timing.lock();
        if keep && timing.is_none() {
            *timing = Some(Timing::new(self.devices.len()));
        }
        self.keeps_times.store(keep, Relaxed);
    }

    fn take_times(&self, into: &mut Vec<Done>) {
        self.bind();
        if let Some(timing) = &mut *self.timing.lock() {
            timing.take(self.driver(), into);
        }
    }

    fn range(&self, name: Option<&str>) {
        nvtx::range(name);
    }

    fn raw_stream(&self, stream: StreamId) -> Option<u64> {
        let stream = self.streams.at(stream.0);
        stream.is_open().then(|| stream.handle())
    }
}

impl Drop for Machine {
    /// The front end has waited for all work, unless the device is lost: then the driver refuses all calls, and nothing
    /// is freed.
    fn drop(&mut self) {
        // Functions on the host that were enqueued after a failure never run.
        drop(self.waiting.clear());
        if self.is_lost.load(Relaxed) {
            return;
        }
        self.bind();
        let driver = self.driver();
        if let Some(timing) = self.timing.get_mut().take() {
            timing.close(driver);
        }
        let _beside = BesideCaptures::on(self);
        for graph in self.captured.lock().iter_mut().flat_map(std::mem::take) {
            // SAFETY: the graph was captured and never made executable.
            unsafe { (driver.cuGraphDestroy)(graph) };
        }
        self.tables.close(driver);
        let mut current = None;
        let (kernels, devices) = (&self.kernels, &self.devices);
        kernels.close(driver, |device| {
            current = None;
            current = Some(Current::push(driver, devices[device.0 as usize]));
        });
        drop(current);
    }
}
