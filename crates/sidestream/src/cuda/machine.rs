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

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::devices::{Absent, Opened, opened};
use super::driver::{
    Code as Answer, CuContext, CuGraph, CuStream, Driver, EVENT_BLOCKING_SYNC,
    EVENT_DISABLE_TIMING, MEMORY_UNIFIED, Memcpy2d, OUT_OF_MEMORY, STREAM_LEGACY,
    STREAM_NON_BLOCKING, STREAM_PER_THREAD, SUCCESS,
};
use super::failure::{NOT_READY, loses_the_device};
use super::gather::{self, Tables};
use super::graph::Building;
use super::host_func::{self, HostFunc, Waiting};
use super::launch::{Kernels, Loaded, Params, allow_shared};
use super::memory::Memories;
use super::nvtx;
use super::streams::{Event, Stream, Work};
use super::table::Table;
use super::timing::Timing;
use super::wait;
use crate::backend::{
    Address, Arg, Backend, Caps, Code, Copy, Create, Destroy, Done, Fill, Launch, Payload, Reserve,
};
use crate::error::{Error, Lost, Result};
use crate::op::{DeviceId, EventId, Kind, Memory, Op, OpId, StreamId, StreamKind, ThreadId};

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
    /// # Errors
    /// Why CUDA cannot be used, or which device there is not.
    pub fn open(
        ordinals: &[u32],
        file: Option<&Path>,
        compiler: Option<&Path>,
    ) -> Result<Machine, Unusable> {
        let opened = opened(file).map_err(Unusable::Absent)?;
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
            kernels: Kernels::new(opened, &handles, compiler),
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

// ------------------------------------------------------------------ contexts

thread_local! {
    /// The machine for which this thread is known to have a context.
    static BOUND: Cell<u64> = const { Cell::new(0) };
}

/// The context of a device is the current one as long as this lives.
pub(super) struct Current<'a>(Option<&'a Driver>);

impl<'a> Current<'a> {
    pub fn push(driver: &'a Driver, context: CuContext) -> Current<'a> {
        // SAFETY: a primary context of this process, which is never released.
        let pushed = unsafe { (driver.cuCtxPushCurrent_v2)(context) };
        Current((pushed == SUCCESS).then_some(driver))
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let Some(driver) = self.0 else { return };
        let mut popped = 0;
        // SAFETY: takes back what was pushed; writes one handle.
        unsafe { (driver.cuCtxPopCurrent_v2)(&mut popped) };
    }
}

impl Machine {
    /// Sees to it that the thread has some context.
    #[inline]
    fn bind(&self) {
        if BOUND.get() != self.id {
            self.bind_for_the_first_time();
        }
    }

    #[cold]
    fn bind_for_the_first_time(&self) {
        let driver = self.driver();
        let mut current = 0;
        // SAFETY: writes one handle; the context is a primary one, which is never released.
        unsafe {
            if (driver.cuCtxGetCurrent)(&mut current) != SUCCESS || current == 0 {
                (driver.cuCtxSetCurrent)(self.devices[0]);
            }
        }
        BOUND.set(self.id);
    }

    fn on(&self, device: DeviceId) -> Current<'static> {
        Current::push(self.driver(), self.devices[device.0 as usize])
    }

    /// The default streams mean those of the current context.
    #[inline]
    fn for_default(&self, stream: &Stream) -> Option<Current<'static>> {
        (stream.handle() <= STREAM_PER_THREAD).then(|| self.on(stream.device()))
    }

    fn current_device(&self, thread: ThreadId) -> DeviceId {
        let current = self.current.lock();
        current.get(&thread).copied().unwrap_or(DeviceId(0))
    }
}

// ------------------------------------------------------------------ failures

impl Machine {
    /// What a call has answered.
    #[inline]
    fn answer(&self, call: &'static str, device: DeviceId, code: Answer) -> Result<()> {
        match code {
            SUCCESS => Ok(()),
            code => Err(self.failed(call, device, code)),
        }
    }

    /// The same for a question.
    #[inline]
    fn is_over(&self, call: &'static str, device: DeviceId, code: Answer) -> Result<bool> {
        match code {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            code => Err(self.failed(call, device, code)),
        }
    }

    #[cold]
    fn failed(&self, call: &'static str, device: DeviceId, code: Answer) -> Error {
        let words = self.driver().words(code);
        if !loses_the_device(code) {
            let why = words;
            return Error::Refused { call, code, why };
        }
        self.is_lost.store(true, Relaxed);
        let why = match self.unfinished() {
            unfinished if unfinished.is_empty() => words,
            unfinished => format!("{words}; not known to be done: {unfinished}"),
        };
        Error::DeviceLost(Lost { device, code, why })
    }

    /// What was put into streams and is not known to be over, in words.
    fn unfinished(&self) -> String {
        /// More is not read by anybody.
        const STREAMS: usize = 8;
        let mut names: Vec<(StreamId, String)> = self.names.lock().clone().into_iter().collect();
        names.sort_by_key(|(id, _)| *id);
        let mut parts = Vec::new();
        for (id, name) in names {
            let (works, earlier) = self.streams.at(id.0).unfinished();
            if works.is_empty() {
                continue;
            }
            if parts.len() == STREAMS {
                parts.push("more on other streams".to_owned());
                break;
            }
            parts.push(format!(
                "{} on stream {name:?}",
                self.in_words(&works, earlier)
            ));
        }
        parts.join("; ")
    }

    fn in_words(&self, works: &[Work], earlier: u64) -> String {
        let mut texts: Vec<(String, u64)> = Vec::new();
        for work in works {
            let text = match *work {
                Work::Kernel(name) => format!("kernel `{}`", self.kernels.name(name)),
                Work::Copy => "copy".to_owned(),
                Work::Memset => "memset".to_owned(),
                Work::HostFunc => "host function".to_owned(),
                Work::Graph => "graph".to_owned(),
            };
            match texts.last_mut() {
                Some((last, times)) if *last == text => *times += 1,
                _ => texts.push((text, 1)),
            }
        }
        let each = texts.into_iter().map(|(text, times)| match times {
            1 => text,
            times => format!("{times} × {text}"),
        });
        let earlier = (earlier > 0).then(|| format!("{earlier} earlier ones"));
        earlier
            .into_iter()
            .chain(each)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

// ------------------------------------------------------------------ what is put into streams

impl Machine {
    #[inline]
    fn put(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        let driver = self.driver();
        match (op.kind, payload) {
            (Kind::Kernel { stream, launches }, Payload::Launch(launch)) => {
                self.launch(self.streams.at(stream.0), launches, &launch)
            }
            (Kind::Kernel { stream, .. }, Payload::Gather(pieces)) => {
                self.gather(self.streams.at(stream.0), pieces)
            }
            (Kind::Copy { stream, .. }, Payload::Copy(copy)) => {
                let stream = self.streams.at(stream.0);
                let _current = self.for_default(stream);
                let code = self.copy(&copy, stream.handle());
                self.answer("copy", stream.device(), code)?;
                stream.note(Work::Copy);
                Ok(())
            }
            (Kind::Memset { stream }, Payload::Fill(fill)) => {
                let stream = self.streams.at(stream.0);
                let _current = self.for_default(stream);
                let code = self.fill(&fill, stream.handle());
                self.answer("memset", stream.device(), code)?;
                stream.note(Work::Memset);
                Ok(())
            }
            (Kind::Record { event, stream }, _) => {
                let (event, id) = (self.events.at(event.0), stream);
                let stream = self.streams.at(id.0);
                let _current = self.for_default(stream);
                event.note(id, stream);
                // SAFETY: both are open, as the front end promises.
                let code = unsafe { (driver.cuEventRecord)(event.handle(), stream.handle()) };
                self.answer("record", stream.device(), code)
            }
            (Kind::Wait { stream, event }, _) => {
                let (event, stream) = (self.events.at(event.0), self.streams.at(stream.0));
                let _current = self.for_default(stream);
                // SAFETY: as above.
                let code =
                    unsafe { (driver.cuStreamWaitEvent)(stream.handle(), event.handle(), 0) };
                self.answer("wait", stream.device(), code)
            }
            (Kind::GraphLaunch { stream, graph }, _) => {
                let (graph, stream) = (self.graphs.at(graph.0), self.streams.at(stream.0));
                let _current = self.for_default(stream);
                // SAFETY: as above.
                let code =
                    unsafe { (driver.cuGraphLaunch)(graph.handle.load(Relaxed), stream.handle()) };
                self.answer("graph launch", stream.device(), code)?;
                stream.note(Work::Graph);
                Ok(())
            }
            (Kind::HostFunc { stream, .. }, Payload::HostFunc(function)) => {
                self.host_func(self.streams.at(stream.0), function)
            }
            (Kind::CopyBlocking { .. }, Payload::Copy(copy)) => {
                let device = self.current_device(op.thread);
                let _current = self.on(device);
                let bytes = (copy.row_bytes * copy.rows) as usize;
                // SAFETY: the front end promises that the memory is there; a blocking copy has one row.
                let code = unsafe { (driver.cuMemcpy)(copy.to.0, copy.from.0, bytes) };
                self.answer("copy", device, code)
            }
            (Kind::MemsetBlocking { .. }, Payload::Fill(fill)) => {
                let device = self.current_device(op.thread);
                let _current = self.on(device);
                let (value, count) = (fill.value as u8, fill.count as usize);
                // SAFETY: as above; a blocking memset writes single bytes.
                let code = unsafe { (driver.cuMemsetD8_v2)(fill.at.0, value, count) };
                self.answer("memset", device, code)
            }
            (Kind::SetDevice { device }, _) => {
                self.current.lock().insert(op.thread, device);
                Ok(())
            }
            (Kind::BeginCapture { stream }, _) => {
                let stream = self.streams.at(stream.0);
                let _current = self.for_default(stream);
                /// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
                const GLOBAL: i32 = 0;
                // SAFETY: the stream is open.
                let code = unsafe { (driver.cuStreamBeginCapture_v2)(stream.handle(), GLOBAL) };
                self.answer("begin_capture", stream.device(), code)
            }
            (Kind::EndCapture { stream }, _) => {
                let stream = self.streams.at(stream.0);
                let mut graph = 0;
                // SAFETY: the stream is open; one handle is written.
                let code = unsafe { (driver.cuStreamEndCapture)(stream.handle(), &mut graph) };
                self.answer("end_capture", stream.device(), code)?;
                self.captured.lock()[stream.device().0 as usize].push_back(graph);
                Ok(())
            }
            // Memory is the front end's, and what threads tell each other too.
            _ => Ok(()),
        }
    }

    #[inline]
    fn launch(&self, stream: &Stream, launches: u32, launch: &Launch<'_>) -> Result<()> {
        let loaded = self.kernel(stream.device(), launch.code)?;
        let Launch { grid, args, .. } = launch;
        let _current = self.for_default(stream);
        let driver = self.driver();
        let allowed = allow_shared(driver, loaded.function, grid);
        self.answer("kernel", stream.device(), allowed)?;
        let mut params = Params::of(args);
        let pointers = params.pointers();
        let ([x, y, z], [a, b, c]) = (grid.blocks, grid.threads);
        for _ in 0..launches {
            // SAFETY: the function is loaded on the stream's device, and whoever made the kernel
            // promised that these are its parameters and that it keeps to its memory; the pointers
            // live until the call returns.
            let code = unsafe {
                (driver.cuLaunchKernel)(
                    loaded.function,
                    x,
                    y,
                    z,
                    a,
                    b,
                    c,
                    grid.shared_bytes,
                    stream.handle(),
                    pointers,
                    std::ptr::null_mut(),
                )
            };
            self.answer("kernel", stream.device(), code)?;
            stream.note(Work::Kernel(loaded.name));
        }
        Ok(())
    }

    /// The kernel on a device, loaded if it is not.
    #[inline]
    fn kernel(&self, device: DeviceId, code: &Code) -> Result<Loaded> {
        match code.loaded.get(self.id, device.0 as usize) {
            Some((function, name)) => Ok(Loaded { function, name }),
            None => self.load(device, code),
        }
    }

    #[cold]
    fn load(&self, device: DeviceId, code: &Code) -> Result<Loaded> {
        let _current = self.on(device);
        let loaded = self.kernels.load(self.driver(), device, code)?;
        let Loaded { function, name } = loaded;
        let place = device.0 as usize;
        code.loaded.note(self.id, place, function, name);
        Ok(loaded)
    }

    fn gather(&self, stream: &Stream, pieces: &[Copy]) -> Result<()> {
        let (device, driver) = (stream.device(), self.driver());
        let _current = self.on(device);
        let table = self.tables.fill(driver, device, pieces);
        let table = table.map_err(|code| self.failed("gather", device, code))?;
        let scalar = |value: u64| Arg::Scalar {
            bytes: value.to_le_bytes(),
            len: 8,
        };
        let args = [scalar(table.address), scalar(pieces.len() as u64)];
        let launch = Launch {
            code: &self.gather,
            grid: gather::grid(pieces),
            args: &args,
        };
        self.launch(stream, 1, &launch)?;
        let given = self.tables.give(driver, table, stream.handle());
        given.map_err(|code| self.failed("gather", device, code))
    }

    #[inline]
    fn copy(&self, copy: &Copy, stream: CuStream) -> Answer {
        let driver = self.driver();
        if copy.rows == 1 {
            // SAFETY: the front end promises that the memory is there until the copy is over. The
            // driver knows by the addresses where they lie.
            return unsafe {
                let bytes = copy.row_bytes as usize;
                (driver.cuMemcpyAsync)(copy.to.0, copy.from.0, bytes, stream)
            };
        }
        let rows = Memcpy2d {
            src_type: MEMORY_UNIFIED,
            src_device: copy.from.0,
            src_pitch: copy.from_pitch as usize,
            dst_type: MEMORY_UNIFIED,
            dst_device: copy.to.0,
            dst_pitch: copy.to_pitch as usize,
            width_bytes: copy.row_bytes as usize,
            height: copy.rows as usize,
            ..Memcpy2d::default()
        };
        // SAFETY: as above; the driver copies the description.
        unsafe { (driver.cuMemcpy2DAsync_v2)(&rows, stream) }
    }

    #[inline]
    fn fill(&self, fill: &Fill, stream: CuStream) -> Answer {
        let driver = self.driver();
        let (at, count) = (fill.at.0, fill.count as usize);
        // SAFETY: as in `copy`.
        unsafe {
            match fill.width {
                1 => (driver.cuMemsetD8Async)(at, fill.value as u8, count, stream),
                2 => (driver.cuMemsetD16Async)(at, fill.value as u16, count, stream),
                _ => (driver.cuMemsetD32Async)(at, fill.value, count, stream),
            }
        }
    }

    fn host_func(&self, stream: &Stream, function: HostFunc) -> Result<()> {
        if self.is_capturing(stream) {
            return Err(Error::Refused {
                call: "host function",
                code: 900,
                why:
                    "a graph would run it again and again; put it into a stream that is not being \
                      captured"
                        .into(),
            });
        }
        let _current = self.for_default(stream);
        let driver = self.driver();
        let ticket = self.waiting.keep(function);
        // SAFETY: the driver gives the ticket to `run` once, since the stream is not being captured.
        let code = unsafe { (driver.cuLaunchHostFunc)(stream.handle(), host_func::run, ticket) };
        if code != SUCCESS {
            // SAFETY: the driver did not take it.
            drop(unsafe { Waiting::take_back(ticket) });
        }
        self.answer("host function", stream.device(), code)?;
        stream.note(Work::HostFunc);
        Ok(())
    }

    fn is_capturing(&self, stream: &Stream) -> bool {
        let _current = self.for_default(stream);
        let mut status = 0;
        // SAFETY: the stream is open; one integer is written.
        let code = unsafe { (self.driver().cuStreamIsCapturing)(stream.handle(), &mut status) };
        code == SUCCESS && status != 0
    }
}

// ------------------------------------------------------------------ questions

/// What is asked about.
enum Asked<'a> {
    Event(&'a Event),
    Stream(&'a Stream),
    Device(DeviceId),
}

impl Machine {
    fn asked(&self, op: &Op) -> Result<Asked<'_>> {
        Ok(match op.kind {
            Kind::QueryEvent { event, .. } | Kind::SyncEvent { event } => {
                Asked::Event(self.events.at(event.0))
            }
            Kind::QueryStream { stream, .. } | Kind::SyncStream { stream } => {
                Asked::Stream(self.streams.at(stream.0))
            }
            Kind::SyncDevice { device } => {
                Asked::Device(device.unwrap_or_else(|| self.current_device(op.thread)))
            }
            _ => {
                return Err(Error::Invalid {
                    call: "wait",
                    why: format!("{:?} is nothing that could be over", op.kind),
                });
            }
        })
    }

    /// Whether it is over.
    #[inline]
    fn ask(&self, asked: &Asked<'_>) -> Result<bool> {
        let driver = self.driver();
        match asked {
            Asked::Event(event) => {
                let (stream, given) = event.recorded();
                // SAFETY: the event is open, as the front end promises.
                let code = unsafe { (driver.cuEventQuery)(event.handle()) };
                let over = self.is_over("query", event.device(), code)?;
                if over {
                    self.streams.at(stream.0).is_done_up_to(given);
                }
                Ok(over)
            }
            Asked::Stream(stream) => {
                let given = stream.given();
                let _current = self.for_default(stream);
                // SAFETY: as above.
                let code = unsafe { (driver.cuStreamQuery)(stream.handle()) };
                let over = self.is_over("query", stream.device(), code)?;
                if over {
                    stream.is_done_up_to(given);
                }
                Ok(over)
            }
            Asked::Device(device) => {
                let open = self.streams.all().filter(|stream| stream.is_open());
                for stream in open.filter(|stream| stream.device() == *device) {
                    if !self.ask(&Asked::Stream(stream))? {
                        return Ok(false);
                    }
                }
                // What other libraries have put into it.
                let _current = self.on(*device);
                // SAFETY: takes nothing.
                let code = unsafe { (driver.cuCtxSynchronize)() };
                self.answer("synchronize", *device, code).map(|()| true)
            }
        }
    }

    /// Waits in the driver, with the thread asleep.
    fn sleep(&self, event: &Event) -> Result<bool> {
        let (stream, given) = event.recorded();
        // SAFETY: the event is open.
        let code = unsafe { (self.driver().cuEventSynchronize)(event.handle()) };
        self.answer("synchronize", event.device(), code)?;
        self.streams.at(stream.0).is_done_up_to(given);
        Ok(true)
    }

    fn question(&self, op: &Op) -> Result<bool> {
        self.bind();
        let asked = self.asked(op)?;
        self.ask(&asked)
    }
}

// ------------------------------------------------------------------ times

impl Machine {
    /// Puts an operation into its stream between two timed events.
    #[cold]
    fn put_timed(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        let work = op.kind.stream().map(|stream| self.streams.at(stream.0));
        let is_work = matches!(op.kind, Kind::Kernel { .. }) || Work::of(&op.kind).is_some();
        let stream = work.filter(|stream| is_work && !self.is_capturing(stream));
        let mut timing = self.timing.lock();
        let Some(timing) = &mut *timing else {
            return self.put(op, payload);
        };
        let Some(stream) = stream else {
            let began_ns = timing.now_ns();
            self.put(op, payload)?;
            timing.note_call(op.id, (began_ns, timing.now_ns()));
            return Ok(());
        };
        let device = stream.device();
        self.start_clock(timing, device)?;
        let start = timing.event(device, || self.timed_event(device))?;
        let end = timing.event(device, || self.timed_event(device))?;
        self.record_raw(start, stream)?;
        let began_ns = timing.now_ns();
        if let Err(error) = self.put(op, payload) {
            timing.unused(device, start);
            timing.unused(device, end);
            return Err(error);
        }
        let call_ns = (began_ns, timing.now_ns());
        self.record_raw(end, stream)?;
        timing.note(op.id, device, call_ns, (start, end));
        Ok(())
    }

    /// From an event that is recorded in a stream without work, and so is over at once.
    fn start_clock(&self, timing: &mut Timing, device: DeviceId) -> Result<()> {
        if timing.has_clock(device) {
            return Ok(());
        }
        let driver = self.driver();
        let event = self.timed_event(device)?;
        let _current = self.on(device);
        let mut empty = 0;
        // SAFETY: makes a stream and gives it back when the record is over.
        unsafe {
            let made = (driver.cuStreamCreateWithPriority)(&mut empty, STREAM_NON_BLOCKING, 0);
            self.answer("stream", device, made)?;
            let recorded = (driver.cuEventRecord)(event, empty);
            let over = wait::until(Duration::MAX, || {
                self.is_over("query", device, (driver.cuEventQuery)(event))
            });
            (driver.cuStreamDestroy_v2)(empty);
            self.answer("record", device, recorded)?;
            over?;
        }
        timing.start_clock(device, event);
        Ok(())
    }

    fn timed_event(&self, device: DeviceId) -> Result<u64> {
        let _current = self.on(device);
        let mut event = 0;
        // SAFETY: writes one handle.
        let code = unsafe { (self.driver().cuEventCreate)(&mut event, 0) };
        self.answer("event", device, code).map(|()| event)
    }

    fn record_raw(&self, event: u64, stream: &Stream) -> Result<()> {
        let _current = self.for_default(stream);
        // SAFETY: both are open.
        let code = unsafe { (self.driver().cuEventRecord)(event, stream.handle()) };
        self.answer("record", stream.device(), code)
    }

    /// Notes how long a call of the host's lasted.
    fn timed_call<R>(&self, op: OpId, call: impl FnOnce() -> R) -> R {
        if !self.keeps_times.load(Relaxed) {
            return call();
        }
        let now_ns = || self.timing.lock().as_ref().map(Timing::now_ns);
        let began_ns = now_ns();
        let result = call();
        let mut timing = self.timing.lock();
        if let (Some(timing), Some(began_ns)) = (&mut *timing, began_ns) {
            timing.note_call(op, (began_ns, timing.now_ns()));
        }
        result
    }
}

// ------------------------------------------------------------------ the waist

impl Backend for Machine {
    fn devices(&self) -> &[Caps] {
        &self.caps
    }

    fn create(&self, what: Create<'_>) -> Result<()> {
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

    fn destroy(&self, what: Destroy) {
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

    fn unreserve(&self, memory: Memory, device: DeviceId, at: Address) {
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

    fn unregister(&self, at: Address) {
        let _current = self.on(DeviceId(0));
        // SAFETY: it was registered, and the front end has seen all its uses complete.
        unsafe { (self.driver().cuMemHostUnregister)(at.0) };
    }

    fn prepare(&self, device: DeviceId, code: &Arc<Code>) -> Result<()> {
        self.kernel(device, code).map(|_| ())
    }

    #[inline]
    fn submit(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        self.bind();
        match self.keeps_times.load(Relaxed) {
            false => self.put(op, payload),
            true => self.put_timed(op, payload),
        }
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
