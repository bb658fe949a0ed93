//! Performs each op as the call that it describes.

use std::sync::Arc;

use sidestream::error::{Error, Result};
use sidestream::explicit::{self, Arg, Event, HostMemory, Region, Stream};
use sidestream::kernel::{Grid, library};
use sidestream::op::{Class, EventId, Kind, Mode, Op, StreamId};

use super::{Block, Turn};

/// The part of a call during which other calls may begin. Returns what the host has read.
pub(super) type Rest = Box<dyn FnOnce() -> Result<Option<u64>>>;

/// A range of bytes in host memory.
struct Touch {
    memory: Arc<HostMemory>,
    start: u64,
    end: u64,
}

impl Turn<'_> {
    /// Makes the call, and returns the rest of it, if any.
    pub(super) fn perform(&mut self, op: &Op) -> Result<Option<Rest>> {
        let (plan, at, thread) = (self.plan, op.id.0 as usize, op.thread.0 as usize);
        let needs = &plan.needs[at];
        match op.kind {
            Kind::Kernel { stream, launches } => {
                let stream = self.stream(stream)?;
                for _ in 1..launches {
                    let args = [Arg::value(needs.kernel_ns)];
                    // SAFETY: this is the kernel's argument, and the kernel touches no memory.
                    unsafe { stream.launch(&self.spin, Grid::new(1, 1), &args)? };
                }
                self.launch_mix(op, stream)?;
            }
            Kind::Copy { .. } | Kind::CopyBlocking { .. } => {
                let from = self.regions(op, Mode::Read)?.into_iter().next();
                let to = self.regions(op, Mode::Write)?.into_iter().next();
                let (from, to) = from.zip(to).ok_or_else(missing)?;
                // SAFETY: the program determines the order of its accesses, and a race only changes which bytes are
                // read: memory lives until an op frees it, which the plan has checked to come last, and host memory
                // is accessed atomically.
                unsafe {
                    match op.kind.stream() {
                        Some(stream) => self.stream(stream)?.memcpy(from, to)?,
                        None => explicit::memcpy_blocking(from, to)?,
                    }
                }
            }
            Kind::Memset { .. } | Kind::MemsetBlocking { .. } => {
                for to in self.regions(op, Mode::Write)? {
                    let byte = at as u8 | 1;
                    // SAFETY: as for `Copy`.
                    unsafe {
                        match op.kind.stream() {
                            Some(stream) => self.stream(stream)?.memset(to, byte)?,
                            None => explicit::memset_blocking(to, byte)?,
                        }
                    }
                }
            }
            Kind::HostFunc { stream, raises } => {
                self.host_func(op, stream)?;
                if raises.is_some() {
                    self.raised.insert(at, self.mark(stream)?);
                }
            }
            Kind::GraphLaunch { stream, graph } => {
                let graph = self.graphs.get(&graph).ok_or_else(missing)?;
                // SAFETY: as for `Copy`.
                unsafe { self.stream(stream)?.launch_graph(graph)? };
            }
            Kind::Record { event, stream } => {
                let device = plan.lowered.device_of(stream);
                let known = self.event(event, device)?;
                self.stream(stream)?.record(&known)?;
                self.recorded.insert(event, device);
            }
            Kind::Wait { stream, event } => {
                let event = self.event_now(event)?;
                self.stream(stream)?.wait(&event)?;
            }
            Kind::WaitStream { stream, source } => {
                self.stream(stream)?.wait_stream(self.stream(source)?)?;
            }
            Kind::SyncStream { stream } => {
                let stream = self.stream(stream)?.clone();
                return then(move || stream.synchronize());
            }
            Kind::SyncEvent { event } => {
                let event = self.event_now(event)?;
                return then(move || event.synchronize());
            }
            Kind::SyncDevice { device } => {
                let device = self.device(device.unwrap_or(self.current[thread])).clone();
                return then(move || explicit::synchronize(&device));
            }
            Kind::QueryStream { stream, done } => {
                let stream = self.stream(stream)?.clone();
                if done {
                    return then(move || ask(|| stream.query()));
                }
                stream.query()?;
            }
            Kind::QueryEvent { event, done } => {
                let event = self.event_now(event)?;
                if done {
                    return then(move || ask(|| event.query()));
                }
                event.query()?;
            }
            Kind::WaitFlag { .. } => {
                // Another thread has raised the flag before, since calls begin in order.
                if let Some(event) = needs.raised_by.and_then(|by| self.raised.get(&by)) {
                    let event = Arc::clone(event);
                    return then(move || event.synchronize());
                }
            }
            Kind::HostAccess => {
                let (reads, writes) = (
                    self.touches(op, Mode::Read)?,
                    self.touches(op, Mode::Write)?,
                );
                let seed = library::scramble(at as u64);
                return Ok(Some(Box::new(move || {
                    writes.iter().for_each(|touch| touch.write(seed));
                    Ok(reads.first().map(|touch| touch.read(seed)))
                })));
            }
            Kind::MallocAsync { stream } => {
                if let Some(block) = needs.block {
                    let bytes = plan.blocks[block].size_bytes.max(1);
                    let memory = self.stream(stream)?.malloc_async(bytes)?;
                    self.memory[block] = Some(Block::Device(memory));
                }
            }
            Kind::CudaMalloc => {
                if let Some(block) = needs.block {
                    let memory = self.block(&plan.blocks[block], self.current[thread])?;
                    self.memory[block] = Some(memory);
                }
            }
            Kind::FreeAsync { stream } => {
                if let Some(Block::Device(memory)) = self.take(op) {
                    self.stream(stream)?.free_async(memory)?;
                }
            }
            Kind::CudaFree { .. } | Kind::FreePinned => match self.take(op) {
                Some(Block::Device(memory)) => memory.free(),
                // A pending host function that uses the memory keeps it until it has completed.
                Some(Block::Host(memory)) => drop(Arc::into_inner(memory).map(HostMemory::free)),
                None => {}
            },
            Kind::Elapsed { from, to } => {
                let (from, to) = (self.event_now(from)?, self.event_now(to)?);
                let elapsed = to.elapsed_ns_since(&from);
                self.elapsed
                    .push((at, elapsed.map_err(|error| error.to_string())));
            }
            Kind::CreateEvent { event } => {
                self.forget(event);
                self.event_now(event)?;
            }
            Kind::DestroyEvent { event } => self.forget(event),
            Kind::CreateStream { stream } => self.open(stream)?,
            Kind::DestroyStream { stream } => self.streams[stream.0 as usize] = None,
            Kind::SetDevice { device } => {
                explicit::set_device(self.device(device))?;
                self.current[thread] = device;
            }
            // The caching allocator's own calls only name bytes and query events.
            Kind::Alloc { .. } => {
                if let Some(marks) = needs.sees.and_then(|freed| self.marks.get(&freed)) {
                    let marks = marks.clone();
                    return then(move || marks.iter().try_for_each(|mark| ask(|| mark.query())));
                }
            }
            Kind::Free { .. } => {
                let marks = needs.marks.iter().map(|&stream| self.mark(stream));
                self.marks.insert(at, marks.collect::<Result<_>>()?);
            }
            Kind::RecordStream { .. } => {}
            // The order of the threads' turns implements the flags.
            kind if kind.class() == Class::Told => {}
            // The plan contains no other ops.
            _ => return Err(missing()),
        }
        Ok(None)
    }

    /// Launches a kernel that represents one of the program.
    pub(super) fn launch_mix(&self, op: &Op, stream: &Stream) -> Result<()> {
        let (reads, writes) = (
            self.regions(op, Mode::Read)?,
            self.regions(op, Mode::Write)?,
        );
        let ns = self.plan.needs[op.id.0 as usize].kernel_ns;
        let args = explicit::mix_args(ns, op.id.0.into(), &reads, &writes).ok_or_else(missing)?;
        // SAFETY: these are the kernel's arguments. As for `Copy`, the program determines the order.
        unsafe { stream.launch(&self.mix, Grid::new(1, 512), &args) }
    }

    fn host_func(&self, op: &Op, stream: StreamId) -> Result<()> {
        let (reads, writes) = (
            self.regions(op, Mode::Read)?,
            self.regions(op, Mode::Write)?,
        );
        let (from, to) = (
            self.touches(op, Mode::Read)?,
            self.touches(op, Mode::Write)?,
        );
        let seed = library::scramble(op.id.0.into());
        let act = move || {
            let seen = from.iter().fold(seed, |seen, touch| touch.read(seen));
            to.iter().for_each(|touch| touch.write(seen));
        };
        // SAFETY: the function only reads and writes the memory named here, which it owns.
        unsafe { self.stream(stream)?.host_func(&reads, &writes, act) }
    }

    fn stream(&self, stream: StreamId) -> Result<&Stream> {
        self.streams[stream.0 as usize].as_ref().ok_or_else(missing)
    }

    /// Records a new event in a stream.
    fn mark(&self, stream: StreamId) -> Result<Arc<Event>> {
        let event = Event::new(self.device(self.plan.lowered.device_of(stream)))?;
        self.stream(stream)?.record(&event)?;
        Ok(Arc::new(event))
    }

    /// Returns an event on the device where it was last recorded, or on any device if it was not.
    fn event_now(&mut self, event: EventId) -> Result<Arc<Event>> {
        let (_, belongs) = self.plan.lowered.events[event.0 as usize];
        let recorded = self.recorded.get(&event).copied();
        self.event(event, recorded.or(belongs).unwrap_or_default())
    }

    fn forget(&mut self, event: EventId) {
        self.events.retain(|&(known, _), _| known != event);
        self.recorded.remove(&event);
    }

    /// Returns the accesses of an op with one mode as places in blocks, in the order of the op. Bytes that the op may
    /// write are read and written.
    fn places(&self, op: &Op, mode: Mode) -> Vec<(usize, u64, u64)> {
        let of_mode = op.accesses.iter().filter(|access| match access.mode {
            Mode::MayWrite | Mode::Atomic => true,
            known => known == mode,
        });
        let places = of_mode.map(|access| {
            let (block, from) = self.plan.places[access.buffer.0 as usize];
            (block, from + access.start, from + access.end)
        });
        places.collect()
    }

    fn regions(&self, op: &Op, mode: Mode) -> Result<Vec<Region<'_>>> {
        let region = |(block, start, end): (usize, u64, u64)| match &self.memory[block] {
            Some(Block::Device(memory)) => Ok(memory.bytes(start..end)),
            Some(Block::Host(memory)) => Ok(memory.bytes(start..end)),
            None => Err(missing()),
        };
        self.places(op, mode).into_iter().map(region).collect()
    }

    /// Returns the accesses of an op on the host.
    fn touches(&self, op: &Op, mode: Mode) -> Result<Vec<Touch>> {
        let touch = |(block, start, end): (usize, u64, u64)| match &self.memory[block] {
            Some(Block::Host(memory)) => Ok(Touch {
                memory: Arc::clone(memory),
                start,
                end,
            }),
            _ => Err(missing()),
        };
        self.places(op, mode).into_iter().map(touch).collect()
    }

    /// Takes the memory that an op frees.
    fn take(&mut self, op: &Op) -> Option<Block> {
        let &(block, ..) = self.places(op, Mode::Write).first()?;
        self.memory[block].take()
    }
}

impl Touch {
    /// Mixes these bytes into what was read before.
    fn read(&self, seen: u64) -> u64 {
        let mut bytes = vec![0u8; (self.end - self.start) as usize];
        self.memory.read(self.start, &mut bytes);
        library::mixed(seen, &bytes)
    }

    fn write(&self, seen: u64) {
        let mut bytes = vec![0u8; (self.end - self.start) as usize];
        library::mixture(seen, &mut bytes);
        self.memory.write(self.start, &bytes);
    }
}

/// Returns a rest that reads nothing.
fn then(rest: impl FnOnce() -> Result<()> + 'static) -> Result<Option<Rest>> {
    Ok(Some(Box::new(move || rest().map(|()| None))))
}

/// Queries repeatedly, as a program does that polls.
fn ask(mut query: impl FnMut() -> Result<bool>) -> Result<()> {
    while !query()? {
        std::thread::yield_now();
    }
    Ok(())
}

/// Returns an internal error: the plan has checked everything that an op names.
fn missing() -> Error {
    Error::Invalid {
        call: "run_on",
        why: "something that the op names is missing; report the program".into(),
    }
}
