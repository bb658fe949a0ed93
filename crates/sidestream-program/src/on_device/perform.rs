//! Performs each op as the call that it describes.

use std::sync::Arc;

use sidestream::device::Device;
use sidestream::error::{Error, Result};
use sidestream::explicit::{self, Arg, Event, HostMemory, Region, Stream};
use sidestream::kernel::{Grid, Kernel, library};
use sidestream::op::{Class, DeviceId, EventId, Kind, Mode, Op, StreamId};

use super::plan::Plan;
use super::{Block, Machine, Tables, places, stream};

/// The rest of an op that may run while the next one is called.
pub(super) enum Wait {
    Stream(Stream),
    Event(Arc<Event>),
    Device(Device),
    /// Queries the stream until the answer is "done".
    AskStream(Stream),
    AskEvents(Vec<Arc<Event>>),
    /// The thread itself reads or writes memory.
    Host(Touch),
}

/// A range of bytes in host memory.
#[derive(Clone)]
pub(super) struct Touch {
    memory: Arc<HostMemory>,
    start: u64,
    end: u64,
    /// Determines the bytes that are written; the bytes that are read are mixed into the seed.
    seed: u64,
    writes: bool,
}

impl Machine<'_> {
    /// Makes the call, and returns the wait that follows it, if any.
    pub(super) fn perform(&self, at: usize, op: &Op, tables: &mut Tables) -> Result<Option<Wait>> {
        let plan = self.plan;
        let needs = &plan.needs[at];
        let thread = op.thread.0 as usize;
        match op.kind {
            Kind::Kernel { stream, launches } => {
                let stream = tables.stream(stream)?;
                for _ in 1..launches {
                    let args = [Arg::value(needs.kernel_ns)];
                    // SAFETY: this is the kernel's argument, and the kernel touches no memory.
                    unsafe { stream.launch(&self.spin, Grid::new(1, 1), &args)? };
                }
                launch_mix(tables, plan, op, stream, &self.mix)?;
            }
            Kind::Copy { stream, .. } => {
                let (from, to) = tables.sides(plan, op)?;
                // SAFETY: the program determines the order of its accesses, and a race only changes which bytes are
                // read: memory lives until an op frees it, which the plan has checked to come last, and host memory
                // is accessed atomically.
                unsafe { tables.stream(stream)?.memcpy(from, to)? };
            }
            Kind::CopyBlocking { .. } => {
                let (from, to) = tables.sides(plan, op)?;
                // SAFETY: as for `Copy`.
                unsafe { explicit::memcpy_blocking(from, to)? };
            }
            Kind::Memset { stream } => {
                for to in tables.regions(plan, op, Mode::Write)? {
                    // SAFETY: as for `Copy`.
                    unsafe { tables.stream(stream)?.memset(to, fills(at))? };
                }
            }
            Kind::MemsetBlocking { .. } => {
                for to in tables.regions(plan, op, Mode::Write)? {
                    // SAFETY: as for `Copy`.
                    unsafe { explicit::memset_blocking(to, fills(at))? };
                }
            }
            Kind::HostFunc { stream, raises } => {
                tables.host_func(plan, at, op, stream)?;
                if raises.is_some() {
                    tables.raised.insert(at, self.mark(tables, stream)?);
                }
            }
            Kind::GraphLaunch { stream, graph } => {
                let graph = tables.graphs.get(&graph).ok_or_else(missing)?;
                // SAFETY: as for `Copy`.
                unsafe { tables.stream(stream)?.launch_graph(graph)? };
            }
            Kind::Record { event, stream } => {
                let device = plan.lowered.device_of(stream);
                let known = tables.event(event, device, plan, self.devices)?;
                tables.stream(stream)?.record(&known)?;
                tables.recorded.insert(event, device);
            }
            Kind::Wait { stream, event } => {
                let event = self.event_now(tables, event)?;
                tables.stream(stream)?.wait(&event)?;
            }
            Kind::WaitStream { stream, source } => {
                let source = tables.stream(source)?.clone();
                tables.stream(stream)?.wait_stream(&source)?;
            }
            Kind::SyncStream { stream } => {
                return Ok(Some(Wait::Stream(tables.stream(stream)?.clone())));
            }
            Kind::SyncEvent { event } => {
                return Ok(Some(Wait::Event(self.event_now(tables, event)?)));
            }
            Kind::SyncDevice { device } => {
                let device = device.unwrap_or(tables.current[thread]);
                return Ok(Some(Wait::Device(self.device(device).clone())));
            }
            Kind::QueryStream { stream, done } => {
                let stream = tables.stream(stream)?;
                if done {
                    return Ok(Some(Wait::AskStream(stream.clone())));
                } else {
                    _ = stream.query()?
                }
            }
            Kind::QueryEvent { event, done } => {
                let event = self.event_now(tables, event)?;
                if done {
                    return Ok(Some(Wait::AskEvents(vec![event])));
                } else {
                    _ = event.query()?
                }
            }
            Kind::WaitFlag { .. } => {
                // Another thread has raised the flag before, since calls begin in order.
                let event = needs.raised_by.and_then(|by| tables.raised.get(&by));
                return Ok(event.map(|event| Wait::Event(Arc::clone(event))));
            }
            Kind::HostAccess => {
                let touch = |mode| {
                    tables
                        .touches(plan, at, op, mode)
                        .map(|touches| touches.into_iter())
                };
                let mut both = touch(Mode::Read)?.chain(touch(Mode::Write)?);
                return Ok(both.next().map(Wait::Host));
            }
            Kind::MallocAsync { stream } => {
                if let Some(block) = needs.block {
                    let bytes = plan.blocks[block].size_bytes.max(1);
                    let memory = tables.stream(stream)?.malloc_async(bytes)?;
                    tables.memory[block] = Some(Block::Device(memory));
                }
            }
            Kind::CudaMalloc => {
                if let Some(block) = needs.block {
                    let on = self.device(tables.current[thread]);
                    let memory = tables.block(&plan.blocks[block], on)?;
                    tables.memory[block] = Some(memory);
                }
            }
            Kind::FreeAsync { stream } => {
                if let Some(Block::Device(memory)) = tables.take(plan, op) {
                    tables.stream(stream)?.free_async(memory)?;
                }
            }
            Kind::CudaFree { .. } | Kind::FreePinned => match tables.take(plan, op) {
                Some(Block::Device(memory)) => memory.free(),
                // A pending host function that uses the memory keeps it until it has completed.
                Some(Block::Host(memory)) => drop(Arc::into_inner(memory).map(HostMemory::free)),
                None => {}
            },
            Kind::Elapsed { from, to } => {
                let (from, to) = (self.event_now(tables, from)?, self.event_now(tables, to)?);
                let elapsed = to.elapsed_ns_since(&from);
                tables
                    .elapsed
                    .push((at, elapsed.map_err(|error| error.to_string())));
            }
            Kind::CreateEvent { event } => {
                tables.forget(event);
                self.event_now(tables, event)?;
            }
            Kind::DestroyEvent { event } => tables.forget(event),
            Kind::CreateStream { stream: id } => {
                let declared = &plan.lowered.streams[id.0 as usize];
                let made = stream(self.device(declared.device), declared)?;
                tables.streams[id.0 as usize] = Some(made);
            }
            Kind::DestroyStream { stream } => tables.streams[stream.0 as usize] = None,
            Kind::SetDevice { device } => {
                explicit::set_device(self.device(device))?;
                tables.current[thread] = device;
            }
            // The caching allocator's own calls only name bytes and query events.
            Kind::Alloc { .. } => {
                let marks = needs
                    .sees
                    .and_then(|freed| tables.marks.get(&freed).cloned());
                return Ok(marks.map(Wait::AskEvents));
            }
            Kind::Free { .. } if !needs.marks.is_empty() => {
                let marks = needs.marks.iter().map(|&stream| self.mark(tables, stream));
                let marks = marks.collect::<Result<_>>()?;
                tables.marks.insert(at, marks);
            }
            Kind::Free { .. } | Kind::RecordStream { .. } => {}
            // The order of the threads' turns implements the flags.
            kind if kind.class() == Class::Told => {}
            // The plan contains no other ops.
            _ => return Err(missing()),
        }
        Ok(None)
    }

    /// Performs the part of a call during which other calls may begin, and returns what the host has read.
    pub(super) fn finish(&self, wait: Wait) -> Result<Option<u64>> {
        match wait {
            Wait::Stream(stream) => stream.synchronize()?,
            Wait::Event(event) => event.synchronize()?,
            Wait::Device(device) => explicit::synchronize(&device)?,
            Wait::AskStream(stream) => ask(|| stream.query())?,
            Wait::AskEvents(events) => {
                for event in events {
                    ask(|| event.query())?;
                }
            }
            Wait::Host(touch) if touch.writes => touch.write(touch.seed),
            Wait::Host(touch) => return Ok(Some(touch.read(touch.seed))),
        }
        Ok(None)
    }

    fn device(&self, device: DeviceId) -> &Device {
        &self.devices[device.0 as usize]
    }

    /// Records a new event in a stream.
    fn mark(&self, tables: &Tables, stream: StreamId) -> Result<Arc<Event>> {
        let event = Event::new(self.device(self.plan.lowered.device_of(stream)))?;
        tables.stream(stream)?.record(&event)?;
        Ok(Arc::new(event))
    }

    /// Returns an event on the device where it was last recorded, or on any device if it was not.
    fn event_now(&self, tables: &mut Tables, event: EventId) -> Result<Arc<Event>> {
        let (_, belongs) = self.plan.lowered.events[event.0 as usize];
        let recorded = tables.recorded.get(&event).copied();
        let device = recorded.or(belongs).unwrap_or(DeviceId(0));
        tables.event(event, device, self.plan, self.devices)
    }
}

/// Launches a kernel that represents one of the program.
pub(super) fn launch_mix(
    tables: &Tables,
    plan: &Plan<'_>,
    op: &Op,
    stream: &Stream,
    mix: &Kernel<library::Mix>,
) -> Result<()> {
    let at = op.id.0;
    let (reads, writes) = (
        tables.regions(plan, op, Mode::Read)?,
        tables.regions(plan, op, Mode::Write)?,
    );
    let ns = plan.needs[at as usize].kernel_ns;
    let args = explicit::mix_args(ns, at.into(), &reads, &writes).ok_or_else(missing)?;
    // SAFETY: these are the kernel's arguments. As for `Copy`, the program determines the order.
    unsafe { stream.launch(mix, Grid::new(1, 512), &args) }
}

impl Tables {
    fn stream(&self, stream: StreamId) -> Result<&Stream> {
        self.streams[stream.0 as usize].as_ref().ok_or_else(missing)
    }

    fn regions<'t>(&'t self, plan: &Plan<'_>, op: &Op, mode: Mode) -> Result<Vec<Region<'t>>> {
        let region = |(block, start, end): (usize, u64, u64)| match &self.memory[block] {
            Some(Block::Device(memory)) => Ok(memory.bytes(start..end)),
            Some(Block::Host(memory)) => Ok(memory.bytes(start..end)),
            None => Err(missing()),
        };
        places(plan, op, mode).map(region).collect()
    }

    /// Returns the source and the destination of a copy.
    fn sides<'t>(&'t self, plan: &Plan<'_>, op: &Op) -> Result<(Region<'t>, Region<'t>)> {
        let from = self.regions(plan, op, Mode::Read)?;
        let to = self.regions(plan, op, Mode::Write)?;
        let sides = from.first().copied().zip(to.first().copied());
        sides.ok_or_else(missing)
    }

    /// Returns the accesses of an op on the host.
    fn touches(&self, plan: &Plan<'_>, at: usize, op: &Op, mode: Mode) -> Result<Vec<Touch>> {
        let touch = |(block, start, end): (usize, u64, u64)| match &self.memory[block] {
            Some(Block::Host(memory)) => Ok(Touch {
                memory: Arc::clone(memory),
                start,
                end,
                seed: library::scramble(at as u64),
                writes: mode == Mode::Write,
            }),
            _ => Err(missing()),
        };
        places(plan, op, mode).map(touch).collect()
    }

    fn host_func(&self, plan: &Plan<'_>, at: usize, op: &Op, stream: StreamId) -> Result<()> {
        let (reads, writes) = (
            self.regions(plan, op, Mode::Read)?,
            self.regions(plan, op, Mode::Write)?,
        );
        let (from, to) = (
            self.touches(plan, at, op, Mode::Read)?,
            self.touches(plan, at, op, Mode::Write)?,
        );
        let act = move || {
            let seed = library::scramble(at as u64);
            let seen = from.iter().fold(seed, |seen, touch| touch.read(seen));
            to.iter().for_each(|touch| touch.write(seen));
        };
        // SAFETY: the function only reads and writes the memory named here, which it owns.
        unsafe { self.stream(stream)?.host_func(&reads, &writes, act) }
    }

    /// Takes the memory that an op frees.
    fn take(&mut self, plan: &Plan<'_>, op: &Op) -> Option<Block> {
        let (block, ..) = places(plan, op, Mode::Write).next()?;
        self.memory[block].take()
    }

    fn forget(&mut self, event: EventId) {
        self.events.retain(|&(known, _), _| known != event);
        self.recorded.remove(&event);
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

/// Queries repeatedly, as a program does that polls.
fn ask(mut query: impl FnMut() -> Result<bool>) -> Result<()> {
    while !query()? {
        std::thread::yield_now();
    }
    Ok(())
}

/// Returns the byte that a memset of an op writes.
fn fills(at: usize) -> u8 {
    at as u8 | 1
}

/// Returns an internal error: the plan has checked everything that an op names.
fn missing() -> Error {
    Error::Invalid {
        call: "run_on",
        why: "something that the op names is missing; report the program".into(),
    }
}
