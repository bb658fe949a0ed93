//! What all handles of one machine share.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::elsewhere::is_kernel;
use super::memory::Memories;
use super::registered::Registered;
use super::threads::{Thread, as_thread};
use crate::backend::{Address, Backend, Create};
use crate::error::{Error, Lost, Result};
use crate::event::{Mark, OwnEvent, SpareEvents};
use crate::explicit::OfDevice;
use crate::log::{Live, Pen};
use crate::op::{Accesses, DeviceId, EventId, Kind, Memory, Op, OpId, SiteId, StreamId, ThreadId};
use crate::order::live::{Point, ThreadClock};
use crate::stream::Streams;

/// A machine with its devices: the back end, and all that the front end knows about it.
pub(crate) struct Runtime {
    pub backend: Arc<dyn Backend>,
    pub live: Live,
    pub devices: Vec<PerDevice>,
    pub pinned: Memories,
    /// Memory of the program that is pinned.
    pub registered: Registered,
    /// Whether waits are inserted. Off only by an `unsafe` option.
    pub is_tracking: bool,
    /// Whether every call waits for its work.
    pub is_synchronous: bool,
    /// Told what a wait that takes long waits for.
    pub notice: fn(&str),
    pub waits_inserted: AtomicU64,
    chains: AtomicU32,
    pub graphs: AtomicU32,
    is_lost: AtomicBool,
    lost: Mutex<Option<Lost>>,
    /// Threads that have ended: another may go on as one of them, since it comes after.
    ended: Mutex<Vec<Thread>>,
    threads: AtomicU32,
}

/// One device of the machine.
pub(crate) struct PerDevice {
    pub memories: Memories,
    pub streams: Streams,
    pub spare: Arc<SpareEvents>,
    pub spare_timed: Arc<SpareEvents>,
    /// Of the explicit style alone.
    pub spare_sleeping: Arc<SpareEvents>,
    pub explicit: OfDevice,
}

/// After so long a wait says what it waits for.
const PATIENCE: Duration = Duration::from_secs(10);

impl Runtime {
    pub fn new(backend: Arc<dyn Backend>, options: &super::Options) -> Arc<Runtime> {
        let devices = backend.devices().iter().enumerate();
        let devices = devices.map(|(at, caps)| PerDevice {
            memories: Memories::of_device(
                DeviceId(at as u32),
                options
                    .memory_bytes
                    .map_or(caps.memory_bytes, |most| most.min(caps.memory_bytes)),
                options.spare,
            ),
            streams: Streams::default(),
            spare: Arc::default(),
            spare_timed: Arc::default(),
            spare_sleeping: Arc::default(),
            explicit: OfDevice::default(),
        });
        Arc::new(Runtime {
            devices: devices.collect(),
            pinned: Memories::pinned(options.pinned_bytes),
            registered: Registered::default(),
            backend,
            live: Live::default(),
            is_tracking: options.is_tracking,
            is_synchronous: options.is_synchronous,
            notice: options.notice,
            waits_inserted: AtomicU64::new(0),
            chains: AtomicU32::new(0),
            graphs: AtomicU32::new(0),
            is_lost: AtomicBool::new(false),
            lost: Mutex::new(None),
            ended: Mutex::new(Vec::new()),
            threads: AtomicU32::new(0),
        })
    }

    pub fn memories(&self, memory: Memory, device: DeviceId) -> &Memories {
        match memory {
            Memory::Device | Memory::Managed => &self.device(device).memories,
            Memory::Pinned | Memory::Pageable => &self.pinned,
        }
    }

    pub fn device(&self, device: DeviceId) -> &PerDevice {
        &self.devices[device.0 as usize]
    }

    /// A number for the clock of another stream.
    pub fn new_chain(&self) -> u32 {
        self.chains.fetch_add(1, Ordering::Relaxed)
    }

    // -------------------------------------------------------------- errors

    /// A lost device is a state: every call gives the same error.
    #[inline]
    pub fn check(&self) -> Result<()> {
        match self.is_lost.load(Ordering::Relaxed) || is_kernel() {
            false => Ok(()),
            true => self.refuse(),
        }
    }

    #[cold]
    fn refuse(&self) -> Result<()> {
        if is_kernel() {
            return Err(Error::Refused {
                call: "a call from a kernel",
                code: 800,
                why: "a kernel may not call the runtime; let the host do it".into(),
            });
        }
        match &*self.lost.lock() {
            None => Ok(()),
            Some(lost) => Err(Error::DeviceLost(lost.clone())),
        }
    }

    /// Says in the error of a lost device by which call that came about, where it is known.
    #[cold]
    pub fn lost_by(&self, error: Error, at: Place) -> Error {
        if let (Error::DeviceLost(_), Some(lost)) = (&error, &mut *self.lost.lock())
            && !lost.why.contains(", called at ")
        {
            lost.why = format!("{}, called at {at}", lost.why);
            return Error::DeviceLost(lost.clone());
        }
        error
    }

    /// Notes it if the back end says that a device is lost.
    #[inline]
    pub fn seen<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.note(error)),
        }
    }

    #[cold]
    fn note(&self, error: Error) -> Error {
        let Error::DeviceLost(lost) = error else {
            return error;
        };
        let known = self.lost.lock().get_or_insert(lost).clone();
        self.is_lost.store(true, Ordering::Relaxed);
        Error::DeviceLost(known)
    }

    /// The end of a public call: no lock is held. Whatever a sink has to say about the call is said.
    #[inline]
    #[track_caller]
    pub fn raise(self: &Arc<Self>) {
        if self.live.is_on() {
            let thread = as_thread(self, |thread| thread.id);
            self.live.raise(thread);
        }
    }

    // -------------------------------------------------------------- threads

    pub fn new_thread(&self) -> Thread {
        if let Some(ended) = self.ended.lock().pop() {
            return ended;
        }
        let thread = std::thread::current();
        let id = self.live.new_thread(thread.name().unwrap_or(""));
        let number = self.threads.fetch_add(1, Ordering::Relaxed);
        Thread {
            id,
            current: DeviceId(0),
            clock: ThreadClock::new(number),
        }
    }

    pub fn end_thread(&self, thread: Thread) {
        // A new thread begins on device 0.
        if thread.current == DeviceId(0) {
            self.ended.lock().push(thread);
        }
    }

    // -------------------------------------------------------------- events

    /// An event that nobody uses. Whoever holds the pen lends it: to take it twice would hang.
    pub fn event(
        &self,
        device: DeviceId,
        timing: bool,
        pen: &mut Option<Pen<'_>>,
    ) -> Result<OwnEvent> {
        let per_device = self.device(device);
        let spare = match timing {
            false => &per_device.spare,
            true => &per_device.spare_timed,
        };
        let known = spare.0.lock().pop();
        let id = match known {
            Some(id) => id,
            None => {
                let id = match pen {
                    Some(pen) => pen.new_event(timing, device),
                    None => self.live.new_event(timing, device),
                };
                let create = Create::Event {
                    id,
                    device,
                    timing,
                    sleeps: false,
                };
                self.seen(self.backend.create(create))?;
                id
            }
        };
        let spare = Arc::clone(spare);
        Ok(OwnEvent { id, device, spare })
    }

    // -------------------------------------------------------------- calls of the host

    /// Whether a mark is over; the calling thread learns it.
    pub fn query(self: &Arc<Self>, mark: &Mark, at: Place) -> Result<bool> {
        let done = as_thread(self, |thread| self.ask(thread, mark, at));
        self.raise();
        done
    }

    /// Asks without waiting for anybody, for callers that hold locks.
    pub fn peek(
        self: &Arc<Self>,
        thread: &mut Thread,
        mark: &Mark,
        pen: &mut Option<Pen<'_>>,
        at: Place,
    ) -> Result<bool> {
        if thread.clock.knows(mark.epoch()) {
            return Ok(true);
        }
        let op = plain(thread.id, mark.asked(false), pen, at);
        let done = self.seen(self.backend.peek(&op))?;
        if done {
            thread.clock.saw(mark.point());
            write(
                pen,
                &Op {
                    kind: mark.asked(true),
                    ..op
                },
            );
        }
        Ok(done)
    }

    fn ask(&self, thread: &mut Thread, mark: &Mark, at: Place) -> Result<bool> {
        if thread.clock.knows(mark.epoch()) {
            return Ok(true);
        }
        self.check()?;
        let mut op = plain(thread.id, mark.asked(false), &mut None, at);
        op.id = self.live.nameless();
        let done = self.seen(self.backend.query(&op))?;
        Ok(done && self.learned(thread, mark.point(), mark.asked(true), op.id, at)?)
    }

    /// Waits as long as it takes.
    pub fn synchronize(self: &Arc<Self>, mark: &Mark, at: Place) -> Result<()> {
        while !self.synchronize_for(mark, PATIENCE, at)? {
            (self.notice)(&format!(
                "sidestream: {at} has waited {} s for work on stream {:?}",
                PATIENCE.as_secs(),
                self.stream_name(mark.stream()),
            ));
        }
        Ok(())
    }

    /// What people call a stream.
    fn stream_name(&self, id: StreamId) -> String {
        let names = self
            .devices
            .iter()
            .find_map(|device| device.streams.name(id));
        names.unwrap_or_else(|| format!("{}", id.0))
    }

    /// Waits for so long at most; false if the time has passed first.
    pub fn synchronize_for(
        self: &Arc<Self>,
        mark: &Mark,
        at_most: Duration,
        at: Place,
    ) -> Result<bool> {
        let done = as_thread(self, |thread| {
            if thread.clock.knows(mark.epoch()) {
                return Ok(true);
            }
            self.check()?;
            let mut op = plain(thread.id, mark.awaited(), &mut None, at);
            op.id = self.live.nameless();
            loop {
                let done = self.seen(self.backend.wait(&op, at_most))?;
                if !done || self.learned(thread, mark.point(), op.kind, op.id, at)? {
                    break Ok(done);
                }
            }
        });
        #[cfg(feature = "observe")]
        self.tell_times();
        self.raise();
        done
    }

    pub fn elapsed_ns(self: &Arc<Self>, from: EventId, to: EventId, at: Place) -> Result<f64> {
        let ns = self.seen(self.backend.elapsed_ns(from, to))?;
        as_thread(self, |thread| {
            let mut pen = self.live.write();
            let op = plain(thread.id, Kind::Elapsed { from, to }, &mut pen, at);
            write(&mut pen, &op);
        });
        Ok(ns)
    }

    /// Waits as long as it takes for what a call of the explicit style asks for. The log was told
    /// before: what it waits for is decided at the call.
    pub fn finish(&self, op: &Op, at: Place) -> Result<()> {
        if self.seen(self.backend.wait(op, PATIENCE))? {
            return Ok(());
        }
        (self.notice)(&format!(
            "sidestream: {at} has waited {} s in {:?}",
            PATIENCE.as_secs(),
            op.kind,
        ));
        self.seen(self.backend.wait(op, Duration::MAX)).map(|_| ())
    }

    /// Tells the log of a call that is the host's alone.
    pub fn tell(
        self: &Arc<Self>,
        kind: Kind,
        accesses: impl FnOnce(&mut Pen<'_>) -> Accesses,
        at: Place,
    ) {
        if !self.live.is_on() {
            return;
        }
        as_thread(self, |thread| {
            let mut pen = self.live.write();
            let mut op = plain(thread.id, kind, &mut pen, at);
            if let Some(pen) = &mut pen {
                op.accesses = accesses(pen);
                op.id = pen.next_op();
            }
            write(&mut pen, &op);
        });
    }

    /// The thread knows that a point is over, and the log is told by which call. False if it cannot be
    /// told: another thread has put something into the stream since the answer, and the log would have
    /// it that this is over, too. So the stream is asked once more while nobody can put in anything.
    pub fn learned(
        &self,
        thread: &mut Thread,
        point: &Point,
        by: Kind,
        called: OpId,
        at: Place,
    ) -> Result<bool> {
        let mut pen = self.live.write();
        let op = plain(thread.id, by, &mut pen, at);
        if let (Some(_), Kind::QueryStream { stream, .. } | Kind::SyncStream { stream }) =
            (&pen, by)
        {
            let kind = Kind::QueryStream {
                stream,
                done: false,
            };
            if !self.seen(self.backend.peek(&Op { kind, ..op.clone() }))? {
                return Ok(false);
            }
        }
        thread.clock.saw(point);
        if let Some(pen) = &mut pen {
            pen.is_called(called, op.id);
        }
        write(&mut pen, &op);
        Ok(true)
    }
}

/// Where the user's code made the call.
pub(crate) type Place = &'static Location<'static>;

/// An operation without accesses.
#[inline]
pub(crate) fn plain(thread: ThreadId, kind: Kind, pen: &mut Option<Pen<'_>>, at: Place) -> Op {
    let (id, site) = match pen {
        Some(pen) => (pen.next_op(), pen.site(at)),
        None => (OpId(0), SiteId(0)),
    };
    Op {
        id,
        thread,
        site,
        kind,
        accesses: Accesses::new(),
    }
}

/// Tells the log, if anybody listens.
#[inline]
pub(crate) fn write(pen: &mut Option<Pen<'_>>, op: &Op) {
    if let Some(pen) = pen {
        pen.op(op);
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Drop for Runtime {
    /// Nobody holds a handle any more. What was submitted still runs; then all goes back.
    fn drop(&mut self) {
        if self.check().is_err() {
            return;
        }
        let devices = std::mem::take(&mut self.devices);
        let rest = Rest {
            backend: Arc::clone(&self.backend),
            freed: devices.iter().flat_map(|d| d.explicit.freed()).collect(),
            devices,
            pinned: std::mem::replace(&mut self.pinned, Memories::pinned(0)),
            registered: std::mem::take(&mut self.registered),
        };
        // A function on the host cannot wait for the stream that waits for it.
        match super::elsewhere::is_host_func() {
            true => super::elsewhere::drop_elsewhere(Box::new(rest)),
            false => drop(rest),
        }
    }
}

/// What is left of a machine without handles.
struct Rest {
    backend: Arc<dyn Backend>,
    /// Device memory that was freed in the order of a stream.
    freed: Vec<(DeviceId, Address)>,
    devices: Vec<PerDevice>,
    pinned: Memories,
    registered: Registered,
}

impl Drop for Rest {
    fn drop(&mut self) {
        let devices = 0..self.backend.devices().len() as u32;
        let is_over = devices.map(DeviceId).all(|device| {
            let kind = Kind::SyncDevice {
                device: Some(device),
            };
            let op = plain(ThreadId(0), kind, &mut None, Location::caller());
            self.backend.wait(&op, Duration::MAX) == Ok(true)
        });
        let backend = &*self.backend;
        // Memory that a device may still use is never given back.
        if is_over {
            for &(device, at) in &self.freed {
                backend.unreserve(Memory::Device, device, at);
            }
        }
        let of_devices = self.devices.iter_mut().map(|device| &mut device.memories);
        for memories in of_devices.chain([&mut self.pinned]) {
            memories.close(backend, is_over);
        }
        self.registered.close(backend, is_over);
        for device in &self.devices {
            device.streams.close(backend);
        }
        // Memory and streams held the last marks: now every event is a spare one.
        for device in &self.devices {
            device.spare.close(backend);
            device.spare_timed.close(backend);
            device.spare_sleeping.close(backend);
        }
    }
}
