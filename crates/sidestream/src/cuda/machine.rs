//! NVIDIA's devices behind [`Backend`].
//!
//! A call becomes one call of the driver, on the calling thread, with the handle that its id stands
//! for. Nothing is queued, locked or allocated on the way, except where the driver itself takes
//! longer: making things, functions on the host, times.
//!
//! # Contexts
//! Each device has its primary context, which PyTorch and the CUDA runtime use too. Calls with a stream of
//! their own need only that the thread has some context; where it has none it gets one. What depends on
//! the current context (making things, the default streams, memory) is done with that of the device, and
//! then the thread has its own again. So the current device of other libraries never changes.
//!
//! # Failures
//! A kernel that traps or touches what is not its own ends its context: from then on every call
//! answers with the same code. The first such answer becomes [`Error::DeviceLost`], with what was
//! put into streams and is not known to be done.

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
use crate::backend::{Address, Backend, Caps, Code, Create, Destroy, Done, Payload, Reserve};
use crate::error::Result;
use crate::op::{DeviceId, EventId, Kind, Memory, Op, StreamId, StreamKind, ThreadId};
use ask::Asked;
use context::Current;

/// Some devices of this machine.
pub struct Machine {
    opened: &'static Opened,
    /// No other machine of the process has it.
    id: u64,
    devices: Vec<CuContext>,
    caps: Vec<Caps>,
    streams: Table<Stream>,
    events: Table<Event>,
    graphs: Table<Graph>,
    kernels: Kernels,
    memories: Memories,
    /// The kernel that makes many small copies, and its tables.
    gather: Arc<Code>,
    /// The same for one, in graphs.
    piece: Code,
    tables: Tables,
    /// Functions on the host that have not run.
    waiting: Arc<Waiting>,
    names: Mutex<HashMap<StreamId, String>>,
    /// The device of each thread that chose one.
    current: Mutex<HashMap<ThreadId, DeviceId>>,
    /// Captures that have ended and are no graph yet, for each device.
    captured: Mutex<Vec<VecDeque<CuGraph>>>,
    keeps_times: AtomicBool,
    timing: Mutex<Option<Timing>>,
    is_lost: AtomicBool,
}

/// An executable graph.
#[derive(Default)]
struct Graph {
    handle: AtomicU64,
    device: AtomicU32,
}

impl Machine {
    /// The devices with these ordinals, in this order. `file` is the driver's library and `compiler`
    /// is NVRTC's, if they are not to be looked for.
    ///
    /// # Safety
    /// As for [`Driver::load`] and [`Nvrtc::load`](super::nvrtc::Nvrtc::load).
    ///
    /// # Errors
    /// Why CUDA cannot be used, or which device there is not.
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
        };
        machine.reach_peers(&handles);
        Ok(machine)
    }

    /// Lets each device read and write the memory of every other one where that can be: copies between
    /// them are ten times as fast then (387 against 37 GB/s between two H200).
    fn reach_peers(&self, devices: &[i32]) {
        let driver = self.driver();
        for (from, &context) in self.devices.iter().enumerate() {
            let _current = Current::push(driver, context);
            for (to, &peer) in self.devices.iter().enumerate() {
                let mut can = 0;
                // SAFETY: writes one integer; the contexts are there. Where it is enabled already
                // the driver says so, and nothing changes.
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

    /// Makes an event that processes share, or opens another process'.
    fn share(&self, id: EventId, device: DeviceId, from: Option<[u8; 64]>) -> Result<()> {
        let (_current, driver) = (self.on(device), self.driver());
        let flags = EVENT_INTERPROCESS | EVENT_DISABLE_TIMING;
        let mut handle = 0;
        // SAFETY: writes one handle. Bytes that are no handle the driver refuses.
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

/// Why there is no machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// There is no CUDA here.
    Absent(Absent),
    /// There are fewer devices.
    NoSuchOrdinal {
        /// What was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// A device that does not start.
    Device {
        /// Which.
        ordinal: u32,
        /// What the driver says.
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

// SAFETY: memory and order are the driver's, which keeps what CUDA promises; a call becomes the call of the driver for it.
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
                let captured = match nodes.is_empty() {
                    true => self.captured.lock()[place].pop_front(),
                    false => None,
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
        // SAFETY: each is ours, and the front end names it no more. The driver keeps what work still
        // needs.
        unsafe {
            match what {
                Destroy::Stream(id) => {
                    self.names.lock().remove(&id);
                    if let Some(handle) = self.streams.at(id.0).close() {
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
        self.memories.unreserve(self.driver(), memory, at);
    }

    unsafe fn register(&self, at: Address, bytes: u64) -> Result<()> {
        let _current = self.on(DeviceId(0));
        // SAFETY: the caller promises that the memory is there and stays.
        let code = unsafe {
            let flags = super::driver::HOST_PORTABLE;
            (self.driver().cuMemHostRegister_v2)(at.0, bytes as usize, flags)
        };
        self.answer("register", DeviceId(0), code)
    }

    unsafe fn unregister(&self, at: Address) {
        let _current = self.on(DeviceId(0));
        // SAFETY: it was registered, and the front end has seen all its uses complete.
        unsafe { (self.driver().cuMemHostUnregister)(at.0) };
    }

    fn prepare(&self, device: DeviceId, code: &Arc<Code>) -> Result<()> {
        self.kernel(device, code).map(|_| ())
    }

    #[inline]
    unsafe fn submit(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        self.bind();
        match (self.keeps_times.load(Relaxed), op.kind) {
            // The two that take the driver least: nearly all that they cost is here.
            (false, Kind::Record { event, stream }) => self.record(event, stream),
            (false, Kind::Wait { stream, event }) => self.wait_in(stream, event),
            (false, _) => self.put(op, payload),
            (true, _) => self.put_timed(op, payload),
        }
    }

    fn is_captured(&self, stream: StreamId) -> bool {
        self.bind();
        let stream = self.streams.at(stream.0);
        let _current = self.for_default(stream);
        let mut status = 0;
        // SAFETY: the stream is open; writes one integer.
        let asked = unsafe { (self.driver().cuStreamIsCapturing)(stream.handle(), &mut status) };
        // Without an answer nobody knows that it has ended.
        asked != SUCCESS || status != 0
    }

    fn capture_mode(&self, mut mode: i32) -> i32 {
        // SAFETY: reads and writes one integer. If it fails, nothing has changed, and the number neither.
        unsafe { (self.driver().cuThreadExchangeStreamCaptureMode)(&mut mode) };
        mode
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
        // SAFETY: both are open; one number is written.
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
    /// The front end has waited for all work, unless the device is lost: then the driver answers no
    /// call any more, and nothing is given back.
    fn drop(&mut self) {
        // Functions that stood behind a failure never run.
        drop(self.waiting.clear());
        if self.is_lost.load(Relaxed) {
            return;
        }
        self.bind();
        let driver = self.driver();
        if let Some(timing) = self.timing.get_mut().take() {
            timing.close(driver);
        }
        for graph in self.captured.get_mut().iter_mut().flat_map(std::mem::take) {
            // SAFETY: it was captured and never made executable.
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
