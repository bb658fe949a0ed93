//! Runs a program on devices, through the explicit style of the library: each op becomes the call that it describes.
//!
//! Calls begin in the order of the file, each on its own host thread. A call that only blocks lets the other threads
//! continue meanwhile. Kernels are [`mix`](sidestream::kernel::library::mix): the bytes that they write depend on
//! those that they read, and they take as long as on the simulated H200.

mod perform;
mod plan;
mod trace;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Barrier};
use std::thread;

use parking_lot::{Condvar, Mutex};
use sidestream::device::Device;
use sidestream::error::{Error, Result};
use sidestream::explicit::{self, Arg, DeviceMemory, Event, Graph, HostMemory, Stream};
use sidestream::kernel::{Grid, Kernel, Value, library};
use sidestream::log::Reader;
use sidestream::op::{DeviceId, EventId, GraphId, Kind, Memory, Op, StreamId, StreamKind};
use sidestream::trace::{Trace, recorded};

use crate::lower;

pub use plan::{NotOnDevice, Plan};

/// The results of a run on devices.
#[derive(Clone, Debug)]
pub struct OnDevice {
    /// The trace of the run.
    pub trace: Trace,
    /// Digests of the bytes that each op read on the host, and of the final contents of each buffer.
    pub results: Vec<(Seen, u64)>,
    /// Results of `elapsed` by op: nanoseconds, or why there is no result.
    pub elapsed: Vec<(usize, Result<f64, String>)>,
}

/// Where bytes were read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Seen {
    /// By an op on the host.
    Op(usize),
    /// In a buffer, at the end of the run.
    Buffer(String),
}

/// A run that a failed call ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The first op whose call failed; none if the failure was not a call of the program.
    pub at: Option<usize>,
    /// Message of the library.
    pub why: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "op {at} failed: {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

impl std::error::Error for Ended {}

impl Ended {
    /// A failure of the run as a whole.
    fn of(why: impl fmt::Display) -> Ended {
        let why = why.to_string();
        Ended { at: None, why }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seen::Op(at) => write!(f, "what op {at} reads"),
            Seen::Buffer(name) => write!(f, "`{name}` at the end"),
        }
    }
}

/// Returns the results that differ between two runs of one program.
pub fn differing<'r>(one: &'r OnDevice, other: &OnDevice) -> Vec<&'r Seen> {
    let theirs: HashMap<&Seen, u64> = other
        .results
        .iter()
        .map(|(seen, hash)| (seen, *hash))
        .collect();
    let ours = one.results.iter();
    let differing = ours.filter(|(seen, hash)| theirs.get(seen) != Some(hash));
    differing.map(|(seen, _)| seen).collect()
}

/// Maximum size of a trace, in bytes.
const TRACE_BYTES: u64 = 4 << 30;
/// Name of the stream for work that is not part of the program.
const OWN_STREAM: &str = "(preparation)";

/// Runs a program. Device `n` of the program is the `n`th of `devices`, which belong to one machine.
///
/// # Ordering
/// Blocks the host until all work is complete.
///
/// # Errors
/// The error of the device. Results up to then are lost.
///
/// # Panics
/// If there are fewer devices than the plan needs.
#[track_caller]
pub fn run_on(plan: &Plan<'_>, devices: &[Device]) -> Result<OnDevice, Ended> {
    assert!(
        devices.len() >= plan.devices(),
        "the program needs more devices"
    );
    let machine = Machine {
        plan,
        devices,
        turn: Mutex::new(Turn::new(plan, devices).map_err(Ended::of)?),
        turns: Condvar::new(),
    };
    let recording = machine.run_threads()?;
    let mut turn = machine.turn.into_inner();
    if let Some(failed) = turn.failed {
        return Err(failed);
    }
    let results = turn.results().map_err(Ended::of)?;
    let log = |error| Ended::of(format!("the recording cannot be read: {error}"));
    let reader = Reader::new(&recording[..]).map_err(log)?;
    let trace = recorded(reader, TRACE_BYTES).map_err(log)?.trace;
    let called = trace::called(&recording).map_err(log)?;
    Ok(OnDevice {
        trace: trace::of_program(trace, &called, plan, devices),
        results,
        elapsed: turn.elapsed,
    })
}

/// A run in progress.
struct Machine<'p> {
    plan: &'p Plan<'p>,
    devices: &'p [Device],
    turn: Mutex<Turn<'p>>,
    turns: Condvar,
}

/// Which thread may make the next call, and what the names refer to when it is made.
struct Turn<'p> {
    plan: &'p Plan<'p>,
    devices: &'p [Device],
    /// The op that is called next.
    next: usize,
    failed: Option<Ended>,
    mix: Kernel<library::Mix>,
    spin: Kernel<(Value<u64>,)>,
    streams: Vec<Option<Stream>>,
    /// Memory by block.
    memory: Vec<Option<Block>>,
    /// Events by device: a program's event may be recorded on any device, an event of the library only on its own.
    events: HashMap<(EventId, DeviceId), Arc<Event>>,
    /// By event: the device where it was last recorded.
    recorded: HashMap<EventId, DeviceId>,
    /// By op: the event recorded after its host function.
    raised: HashMap<usize, Arc<Event>>,
    /// By op: the events that the allocator recorded at a free.
    marks: HashMap<usize, Vec<Arc<Event>>>,
    graphs: HashMap<GraphId, Graph>,
    /// Current device by thread.
    current: Vec<DeviceId>,
    results: Vec<(Seen, u64)>,
    elapsed: Vec<(usize, Result<f64, String>)>,
}

enum Block {
    Device(DeviceMemory),
    Host(Arc<HostMemory>),
}

// ------------------------------------------------------------------ threads

impl Machine<'_> {
    /// Runs all threads to their ends, and returns the recording.
    fn run_threads(&self) -> Result<Vec<u8>, Ended> {
        let threads = self.plan.program.threads.len();
        let (ready, begins) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
        thread::scope(|scope| {
            let spawned: Vec<_> = (0..threads as u32)
                .map(|thread| {
                    let (ready, begins) = (&ready, &begins);
                    scope.spawn(move || {
                        self.begin(thread);
                        ready.wait();
                        begins.wait();
                        self.run_thread(thread);
                    })
                })
                .collect();
            ready.wait();
            // From here on every call is recorded, with the device's times.
            let recording = self.devices[0].record(Vec::new());
            if recording.is_err() {
                self.turn.lock().next = usize::MAX;
            }
            begins.wait();
            for thread in spawned {
                if thread.join().is_err() {
                    return Err(Ended::of("a host thread of the run panicked"));
                }
            }
            let recording = recording.map_err(Ended::of)?;
            for device in &self.devices[..self.plan.devices()] {
                if let Err(error) = explicit::synchronize(device) {
                    self.turn.lock().fails(None, error);
                }
            }
            recording.finish().map_err(Ended::of)
        })
    }

    /// Creates what only the thread itself can create: its default streams.
    fn begin(&self, thread: u32) {
        let owned = self.plan.owners.iter();
        for (&stream, _) in owned.filter(|(_, owner)| owner.0 == thread) {
            let mut turn = self.turn.lock();
            if let Err(error) = turn.open(stream) {
                turn.fails(None, error);
            }
        }
    }

    fn run_thread(&self, thread: u32) {
        let _ends = EndsRun(self);
        let ops = self.plan.program.ops.iter().enumerate();
        for (at, op) in ops.filter(|(_, op)| op.thread.0 == thread) {
            let mut turn = self.turn.lock();
            self.turns
                .wait_while(&mut turn, |turn| turn.next < at && turn.failed.is_none());
            if turn.failed.is_some() || turn.next > at {
                return;
            }
            let device = turn.current[thread as usize];
            let name = format!("{at} {}", op.verb.name());
            let span = self.devices[device.0 as usize].span(&name);
            // The plan contains none of the simulator's commands.
            let call = self.plan.lowered.commands[at].op();
            let called = call.map_or(Ok(None), |call| turn.perform(call));
            turn.next += 1;
            let rest = called.unwrap_or_else(|error| {
                turn.fails(Some(at), error);
                None
            });
            drop(turn);
            self.turns.notify_all();
            if let Some(rest) = rest {
                let done = rest();
                let mut turn = self.turn.lock();
                match done {
                    Ok(seen) => turn.results.extend(seen.map(|hash| (Seen::Op(at), hash))),
                    Err(error) => turn.fails(Some(at), error),
                }
            }
            drop(span);
        }
        // A thread that has ended gives its number in the log to the next one that begins.
        let ops = self.plan.program.ops.len();
        self.turns.wait_while(&mut self.turn.lock(), |turn| {
            turn.next < ops && turn.failed.is_none()
        });
    }
}

/// Wakes the threads that wait for the turn of one that has ended, and ends the run if it panicked.
struct EndsRun<'m, 'p>(&'m Machine<'p>);

impl Drop for EndsRun<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.turn.lock().next = usize::MAX;
        }
        self.0.turns.notify_all();
    }
}

// ------------------------------------------------------------------ before and after

impl<'p> Turn<'p> {
    /// Creates everything that exists from the start: streams, events, zeroed memory, graphs.
    fn new(plan: &'p Plan<'p>, devices: &'p [Device]) -> Result<Turn<'p>> {
        let mut turn = Turn {
            plan,
            devices,
            next: 0,
            failed: None,
            mix: library::mix(),
            spin: library::spin(),
            streams: vec![None; plan.lowered.streams.len()],
            memory: Vec::new(),
            events: HashMap::new(),
            recorded: HashMap::new(),
            raised: HashMap::new(),
            marks: HashMap::new(),
            graphs: HashMap::new(),
            current: vec![DeviceId(0); plan.program.threads.len()],
            results: Vec::new(),
            elapsed: Vec::new(),
        };
        let own = devices[..plan.devices()].iter();
        let own = own.map(|device| Stream::non_blocking(device, OWN_STREAM, 0));
        let own = own.collect::<Result<Vec<_>>>()?;
        for block in &plan.blocks {
            let made = if block.is_born {
                None
            } else {
                Some(turn.block(block, block.device())?)
            };
            if let Some(Block::Device(memory)) = &made {
                // SAFETY: the memory is new and has no other use, and the stream is waited for below.
                unsafe { own[block.device().0 as usize].memset(memory.all(), 0)? };
            }
            turn.memory.push(made);
        }
        let created = plan.lowered.ops().filter_map(|op| match op.kind {
            Kind::CreateStream { stream } => Some(stream),
            _ => None,
        });
        let created: HashSet<StreamId> = created.collect();
        for (id, declared) in (0..).map(StreamId).zip(&plan.lowered.streams) {
            // The thread itself creates its default stream.
            if declared.kind != StreamKind::PerThread && !created.contains(&id) {
                turn.open(id)?;
            }
        }
        for op in plan.lowered.ops() {
            turn.prepare(op, &own)?;
        }
        // The first launch of a kernel loads its code, which must not count as time of the program.
        for stream in &own {
            let args = explicit::mix_args(0, 0, &[], &[]).unwrap_or_default();
            // SAFETY: these are the kernels' arguments, and these launches touch no memory.
            unsafe {
                stream.launch(&turn.mix, Grid::new(1, 32), &args)?;
                stream.launch(&turn.spin, Grid::new(1, 1), &[Arg::value(0u64)])?;
            }
            stream.synchronize()?;
        }
        Ok(turn)
    }

    /// Ends the run with the first failure.
    fn fails(&mut self, at: Option<usize>, error: Error) {
        let why = error.to_string();
        self.failed.get_or_insert(Ended { at, why });
    }

    fn device(&self, device: DeviceId) -> &'p Device {
        &self.devices[device.0 as usize]
    }

    /// Allocates unused memory.
    fn block(&self, block: &plan::Block, device: DeviceId) -> Result<Block> {
        // Zero bytes cannot be allocated.
        let (device, size_bytes) = (self.device(device), block.size_bytes.max(1));
        Ok(match block.memory {
            Memory::Device | Memory::Managed => {
                Block::Device(DeviceMemory::malloc(device, size_bytes)?)
            }
            Memory::Pinned => Block::Host(Arc::new(HostMemory::pinned(device, size_bytes)?)),
            Memory::Pageable => Block::Host(Arc::new(HostMemory::pageable(device, size_bytes)?)),
        })
    }

    /// Opens a default stream, or creates any other.
    fn open(&mut self, id: StreamId) -> Result<()> {
        let lower::Stream {
            name,
            kind,
            device,
            priority,
        } = &self.plan.lowered.streams[id.0 as usize];
        let device = self.device(*device);
        // The nearest priority that the device supports, as CUDA chooses.
        let (most_urgent, least_urgent) = device.caps().priorities;
        let priority = (*priority).clamp(most_urgent, least_urgent);
        let opened = match kind {
            StreamKind::Legacy => Stream::legacy(device),
            StreamKind::Blocking => Stream::blocking_with_priority(device, name, priority),
            StreamKind::PerThread => Stream::per_thread(device),
            StreamKind::NonBlocking => Stream::non_blocking(device, name, priority),
        };
        self.streams[id.0 as usize] = Some(opened?);
        Ok(())
    }

    /// Creates the event of a record or the graph of a launch.
    fn prepare(&mut self, op: &Op, own: &[Stream]) -> Result<()> {
        match op.kind {
            Kind::Record { event, stream } => {
                self.event(event, self.plan.lowered.device_of(stream))?;
            }
            Kind::GraphLaunch { graph, stream } if !self.graphs.contains_key(&graph) => {
                let own = &own[self.plan.lowered.device_of(stream).0 as usize];
                own.begin_capture()?;
                let launched = self.launch_mix(op, own);
                let captured = own.end_capture();
                launched?;
                self.graphs.insert(graph, captured?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns an event on a device.
    fn event(&mut self, event: EventId, device: DeviceId) -> Result<Arc<Event>> {
        if let Some(known) = self.events.get(&(event, device)) {
            return Ok(Arc::clone(known));
        }
        let (timing, _) = self.plan.lowered.events[event.0 as usize];
        let create = if timing { Event::timed } else { Event::new };
        let made = Arc::new(create(self.device(device))?);
        self.events.insert((event, device), Arc::clone(&made));
        Ok(made)
    }

    /// Returns what was read during the run, and the final contents of all memory that is not freed.
    fn results(&mut self) -> Result<Vec<(Seen, u64)>> {
        let mut results = std::mem::take(&mut self.results);
        results.sort();
        for (block, memory) in self.plan.blocks.iter().zip(&self.memory) {
            let Some(memory) = memory else { continue };
            let mut bytes = vec![0u8; block.size_bytes as usize];
            match memory {
                Block::Host(memory) => memory.read(0, &mut bytes),
                Block::Device(memory) => {
                    let device = self.device(block.device());
                    let stream = Stream::non_blocking(device, OWN_STREAM, 0)?;
                    let host = HostMemory::pinned(device, memory.size_bytes())?;
                    // SAFETY: the program has completed, and the copy is waited for.
                    unsafe { stream.memcpy(memory.all(), host.all())? };
                    stream.synchronize()?;
                    host.read(0, &mut bytes);
                }
            }
            let name = self.plan.name(block.buffer).to_owned();
            results.push((Seen::Buffer(name), library::mixed(0, &bytes)));
        }
        Ok(results)
    }
}
