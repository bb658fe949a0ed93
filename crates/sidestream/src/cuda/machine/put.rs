//! Submitting work to streams: one driver call for each.

use std::sync::atomic::Ordering::Relaxed;

use super::Machine;
use crate::backend::{Arg, Code, Copy, Fill, Launch, Payload};
use crate::cuda::driver::{Code as Answer, CuStream, MEMORY_UNIFIED, Memcpy2d, SUCCESS};
use crate::cuda::gather;
use crate::cuda::host_func::{self, HostFunc, Waiting};
use crate::cuda::launch::{Loaded, Params, allow_shared, of_launch};
use crate::cuda::streams::{Stream, Work};
use crate::error::{Error, Result};
use crate::op::{Class, DeviceId, EventId, Kind, Op, StreamId};

impl Machine {
    #[inline]
    pub(super) fn record(&self, event: EventId, id: StreamId) -> Result<()> {
        let (event, stream) = (self.events.at(event.0), self.streams.at(id.0));
        let _current = self.for_default(stream);
        event.note(id, stream);
        // SAFETY: both are open, as the front end promises.
        let code = unsafe { (self.driver().cuEventRecord)(event.handle(), stream.handle()) };
        self.answer("record", stream.device(), code)
    }

    #[inline]
    pub(super) fn wait_in(&self, stream: StreamId, event: EventId) -> Result<()> {
        let (event, stream) = (self.events.at(event.0), self.streams.at(stream.0));
        let _current = self.for_default(stream);
        // SAFETY: as above.
        let code = unsafe { (self.driver().cuStreamWaitEvent)(stream.handle(), event.handle(), 0) };
        self.answer("wait", stream.device(), code)
    }

    #[inline(never)]
    pub(super) fn put(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        let driver = self.driver();
        match (op.kind, payload) {
            (Kind::Kernel { stream, .. }, Payload::Launch(launch)) => {
                self.launch(self.streams.at(stream.0), &launch)
            }
            (Kind::Kernel { stream, .. }, Payload::Gather(pieces)) => {
                self.gather(self.streams.at(stream.0), pieces)
            }
            // The addresses show on which devices the memory is, so one driver call serves both kinds.
            (Kind::Copy { stream, .. } | Kind::CopyPeer { stream, .. }, Payload::Copy(copy)) => {
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
            (Kind::Record { event, stream }, _) => self.record(event, stream),
            (Kind::Wait { stream, event }, _) => self.wait_in(stream, event),
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
                // SAFETY: the front end promises that the memory exists; a blocking copy has one row.
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
            (kind, _) => match kind.class() {
                // Not submitted to a driver's stream: the front end manages memory and the order between host threads.
                Class::MallocAsync
                | Class::FreeAsync
                | Class::Malloc
                | Class::Free
                | Class::Allocator
                | Class::Make
                | Class::HostAccess
                | Class::Told => Ok(()),
                Class::Kernel
                | Class::Copy { .. }
                | Class::Memset { .. }
                | Class::HostFunc
                | Class::Graph
                | Class::Record
                | Class::Wait
                | Class::Sync(_)
                | Class::Query(_)
                | Class::Host => Err(Error::Invalid {
                    call: "submit",
                    why: format!("{kind:?} cannot be submitted to a stream with this payload"),
                }),
            },
        }
    }

    #[inline]
    pub(super) fn launch(&self, stream: &Stream, launch: &Launch<'_>) -> Result<()> {
        let loaded = self.kernel(stream.device(), launch.code)?;
        let Launch { grid, args, .. } = launch;
        let _current = self.for_default(stream);
        let driver = self.driver();
        let answer = |code| {
            let answer = self.answer("kernel", stream.device(), code);
            answer.map_err(|error| of_launch(error, launch.code, grid))
        };
        answer(allow_shared(driver, loaded.function, grid))?;
        let mut params = Params::NONE;
        let pointers = params.of(args);
        let ([x, y, z], [a, b, c]) = (grid.blocks, grid.threads);
        // SAFETY: the function is loaded on the stream's device, and the author of the kernel promised that it has
        // these parameters and stays within its memory; the pointers are valid until the call returns.
        answer(unsafe {
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
        })?;
        stream.note(Work::Kernel(loaded.name));
        Ok(())
    }

    /// Returns the kernel loaded on a device, after loading it if necessary.
    #[inline]
    pub(super) fn kernel(&self, device: DeviceId, code: &Code) -> Result<Loaded> {
        match code.loaded.get(self.id, device.0 as usize) {
            Some((function, name)) => Ok(Loaded { function, name }),
            None => self.load(device, code),
        }
    }

    #[cold]
    pub(super) fn load(&self, device: DeviceId, code: &Code) -> Result<Loaded> {
        let _current = self.on(device);
        let loaded = self.kernels.load(self.driver(), device, code)?;
        let Loaded { function, name } = loaded;
        let place = device.0 as usize;
        code.loaded.note(self.id, place, function, name);
        Ok(loaded)
    }

    pub(super) fn gather(&self, stream: &Stream, pieces: &[Copy]) -> Result<()> {
        let (device, driver) = (stream.device(), self.driver());
        let _current = self.on(device);
        let table = self.tables.fill(driver, device, pieces);
        let table = table.map_err(|code| self.failed("gather", device, code))?;
        let args = [table.address, pieces.len() as u64].map(Arg::word);
        let launch = Launch {
            code: &self.gather,
            grid: gather::grid(pieces),
            args: &args,
        };
        if let Err(error) = self.launch(stream, &launch) {
            self.tables.unused(table);
            return Err(error);
        }
        let given = self.tables.give(driver, table, stream.handle());
        let given = given.map_err(|code| self.failed("gather", device, code));
        self.behind_work(given).map(|_| ())
    }

    #[inline]
    pub(super) fn copy(&self, copy: &Copy, stream: CuStream) -> Answer {
        let driver = self.driver();
        if copy.rows == 1 {
            // SAFETY: the front end promises that the memory exists until the copy is complete. The driver derives the
            // devices from the addresses.
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
    pub(super) fn fill(&self, fill: &Fill, stream: CuStream) -> Answer {
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

    pub(super) fn host_func(&self, stream: &Stream, function: HostFunc) -> Result<()> {
        if self.is_capturing(stream) {
            return Err(Error::Refused {
                call: "host function",
                code: 900,
                why: "a graph would run it repeatedly; submit it to a stream that is not being \
                      captured"
                    .into(),
            });
        }
        let _current = self.for_default(stream);
        let driver = self.driver();
        let ticket = self.waiting.keep(function);
        // SAFETY: the driver passes the ticket to `run` once, since the stream is not being captured.
        let code = unsafe { (driver.cuLaunchHostFunc)(stream.handle(), host_func::run, ticket) };
        if code != SUCCESS {
            // SAFETY: the driver did not take the ticket.
            drop(unsafe { Waiting::take_back(ticket) });
        }
        self.answer("host function", stream.device(), code)?;
        stream.note(Work::HostFunc);
        Ok(())
    }

    pub(super) fn is_capturing(&self, stream: &Stream) -> bool {
        self.capture_status(stream) == Some(true)
    }

    /// Whether a stream is being captured, or the driver gives no answer.
    pub(super) fn may_be_captured(&self, stream: &Stream) -> bool {
        self.capture_status(stream) != Some(false)
    }

    fn capture_status(&self, stream: &Stream) -> Option<bool> {
        let _current = self.for_default(stream);
        let mut status = 0;
        // SAFETY: the stream is open; one integer is written.
        let code = unsafe { (self.driver().cuStreamIsCapturing)(stream.handle(), &mut status) };
        (code == SUCCESS).then_some(status != 0)
    }
}
