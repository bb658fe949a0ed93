//! Decides whether a program can run on a device, and computes what the run needs to know beforehand.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use sidestream::engine::Profile;
use sidestream::kernel::library::MIX_PIECES;
use sidestream::op::{
    Access, Accesses, BufferId, Class, DeviceId, FlagId, GraphId, Kind, Memory, Mode, Op, StreamId,
    StreamKind, ThreadId,
};
use sidestream::sim::Schedule;
use sidestream::trace::What;

use crate::check::check;
use crate::lower::{Command, Lowered};
use crate::program::{BufferRef, Level, Program};
use crate::run::run;
use crate::verbs::Verb;

/// A program that a device can run: see [`Plan::of`].
pub struct Plan<'a> {
    pub(super) program: &'a Program,
    pub(super) lowered: Lowered,
    /// Number of devices that the program needs.
    pub(super) devices: usize,
    /// By buffer: its block, and the offset in it.
    pub(super) places: Vec<(usize, u64)>,
    pub(super) blocks: Vec<Block>,
    /// By op: the needs of the op besides its fields.
    pub(super) needs: Vec<Needs>,
    /// By per-thread stream: its thread.
    pub(super) owners: BTreeMap<StreamId, ThreadId>,
}

/// Memory that is allocated once and freed once.
pub(super) struct Block {
    pub buffer: BufferId,
    pub memory: Memory,
    pub size_bytes: u64,
    /// Whether an op of the program allocates the block. Other blocks exist from the start.
    pub is_born: bool,
    /// The device whose work touches the block first, and whether any of that was more than a copy.
    used_on: Option<(DeviceId, bool)>,
    /// The state at the current op.
    life: Life,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Unborn,
    /// `by_stream` if the block was allocated by `malloc_async`.
    Lives {
        by_stream: bool,
    },
    Freed {
        by: usize,
    },
}

impl Block {
    /// Returns the device of the block.
    pub fn device(&self) -> DeviceId {
        self.used_on.map_or(DeviceId(0), |(device, _)| device)
    }
}

/// The needs of an op besides its fields.
#[derive(Clone, Default)]
pub(super) struct Needs {
    /// Duration of each launch of a kernel, in nanoseconds.
    pub kernel_ns: u64,
    /// Block that the op allocates.
    pub block: Option<usize>,
    /// Op whose host function raises the flag that this op waits for.
    pub raised_by: Option<usize>,
    /// Streams in which the op records an event, for an allocator that queries the event later.
    pub marks: Vec<StreamId>,
    /// The free whose events the op finds complete.
    pub sees: Option<usize>,
}

/// Why a device cannot run a program. Nothing was run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotOnDevice {
    /// The op that cannot be run, if the reason is an op.
    pub at: Option<usize>,
    text: String,
}

impl fmt::Display for NotOnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for NotOnDevice {}

/// Maximum number of kernel launches, so that a run ends in acceptable time.
const LAUNCHES: u64 = 1_000_000;
const THREADS: usize = 64;
const LASTS_NS: u64 = 60_000_000_000;
const MEMORY_BYTES: u64 = 1 << 30;

impl<'a> Plan<'a> {
    /// Checks all of a program before any of it runs.
    ///
    /// # Errors
    /// The first op that a device cannot run, and why.
    pub fn of(program: &'a Program) -> Result<Plan<'a>, NotOnDevice> {
        let whole = |why: String| NotOnDevice {
            at: None,
            text: format!("{why}; run it on sim:h200"),
        };
        if program.level == Level::Runtime {
            return Err(whole(
                "it is of level `runtime`, which needs the simulated device and its allocator"
                    .into(),
            ));
        }
        if let Some(refused) = check(program).report.error {
            let why = format!("CUDA refuses it with {}", refused.misuse.code.name());
            return Err(outside(program, refused.op.0 as usize, &why));
        }
        if program.threads.len() > THREADS {
            return Err(whole(format!("it has more than {THREADS} host threads")));
        }
        // Kernels must not take too long in total, and the buffers must fit into both devices.
        let profile = Profile::h200();
        let usual = run(program, &profile, Schedule::InOrder, false);
        let usual = usual.map_err(|why| NotOnDevice {
            at: None,
            text: why.to_string(),
        })?;
        let trace = usual.trace(program);
        if trace.end_ns() > LASTS_NS {
            return Err(whole(
                "it would keep a device for more than a minute".into(),
            ));
        }
        let lowered = usual.lowered;
        let bytes = lowered.own_bytes(|_| true);
        if bytes > MEMORY_BYTES {
            return Err(whole(format!(
                "its buffers take {bytes} bytes in total, and the simulated GPU with which a device is compared keeps at \
                 most {MEMORY_BYTES} in this machine's memory"
            )));
        }
        let mut needs = vec![Needs::default(); program.ops.len()];
        for work in trace.work.iter().filter(|work| work.what == What::Kernel) {
            let at = work.op.0 as usize;
            needs[at].kernel_ns = (work.end_ns - work.start_ns) / launches(&lowered.commands[at]);
        }
        let launches: u64 = lowered.commands.iter().map(launches).sum();
        if launches > LAUNCHES {
            return Err(whole(format!("it launches more than {LAUNCHES} kernels")));
        }
        let (blocks, places) = blocks(&lowered);
        let mut planning = Planning {
            current: vec![DeviceId(0); program.threads.len()],
            destroyed: HashSet::new(),
            raised: HashMap::new(),
            graphs: HashMap::new(),
            held: HashMap::new(),
            plan: Plan {
                program,
                devices: lowered.last_device().0 as usize + 1,
                lowered,
                places,
                blocks,
                needs,
                owners: BTreeMap::new(),
            },
        };
        planning.look()?;
        Ok(planning.plan)
    }

    /// Returns the number of devices that the program needs.
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// Returns the name of a buffer in the program.
    pub(super) fn name(&self, buffer: BufferId) -> &str {
        let name = self.lowered.buffers[buffer.0 as usize].name;
        &self.program.buffers[name.0 as usize].name
    }
}

/// Returns an error that names the op and the remedy.
fn outside(program: &Program, at: usize, why: &str) -> NotOnDevice {
    let op = &program.ops[at];
    let text = format!(
        "line {}, op {at} (`{}`): {why}; run it on sim:h200",
        op.line,
        op.verb.name()
    );
    NotOnDevice { at: Some(at), text }
}

fn launches(command: &Command) -> u64 {
    match command.op().map(|op| op.kind) {
        Some(Kind::Kernel { launches, .. }) => u64::from(launches.max(1)),
        _ => 1,
    }
}

/// Returns the blocks, and the places of the buffers in them.
fn blocks(lowered: &Lowered) -> (Vec<Block>, Vec<(usize, u64)>) {
    let (mut blocks, mut places) = (Vec::<Block>::new(), Vec::<(usize, u64)>::new());
    for (at, buffer) in lowered.buffers.iter().enumerate() {
        // The buffer below was placed before this one.
        let place = match buffer.over {
            Some((below, start)) => {
                let (block, below) = places[below.0 as usize];
                (block, below + start)
            }
            None => {
                blocks.push(Block {
                    buffer: BufferId(at as u32),
                    memory: buffer.memory,
                    size_bytes: buffer.size_bytes,
                    is_born: false,
                    used_on: None,
                    life: Life::Lives { by_stream: false },
                });
                (blocks.len() - 1, 0)
            }
        };
        places.push(place);
    }
    (blocks, places)
}

/// What is known of a program up to the current op.
struct Planning<'a> {
    plan: Plan<'a>,
    /// By thread: its current device.
    current: Vec<DeviceId>,
    destroyed: HashSet<StreamId>,
    /// By flag: the op that raised it last.
    raised: HashMap<FlagId, usize>,
    /// By graph: what its first launch touches, and on which device.
    graphs: HashMap<GraphId, (Accesses, DeviceId)>,
    /// By buffer of the caching allocator: the op that freed it, and the streams recorded for it.
    held: HashMap<BufferId, (Option<usize>, Vec<StreamId>)>,
}

impl Planning<'_> {
    fn look(&mut self) -> Result<(), NotOnDevice> {
        for at in 0..self.plan.needs.len() {
            if let Some(block) = self.allocates(at) {
                self.plan.needs[at].block = Some(block);
                let block = &mut self.plan.blocks[block];
                (block.is_born, block.life) = (true, Life::Unborn);
            }
        }
        for at in 0..self.plan.needs.len() {
            let seen = match self.plan.lowered.commands[at].op().cloned() {
                Some(op) => self.op(at, &op),
                None => Err("only the simulated device and its allocator know it".to_owned()),
            };
            seen.map_err(|why| outside(self.plan.program, at, &why))?;
        }
        Ok(())
    }

    /// Returns the block that an op allocates.
    fn allocates(&self, at: usize) -> Option<usize> {
        let op = self.plan.lowered.commands[at].op()?;
        let buffer = match op.kind {
            Kind::MallocAsync { .. } => op.accesses.first()?.buffer,
            Kind::CudaMalloc => self.next_use(at, self.plan.program.ops[at].fields.buffer?)?,
            _ => return None,
        };
        Some(self.plan.places[buffer.0 as usize].0)
    }

    /// Returns the buffer of a name after an op that allocates it, since the allocation itself does not identify it.
    fn next_use(&self, at: usize, name: BufferRef) -> Option<BufferId> {
        let lowered = &self.plan.lowered;
        let later = lowered.commands[at + 1..].iter().filter_map(Command::op);
        let mut touched = later.flat_map(|op| op.accesses.iter().map(|access| access.buffer));
        touched.find(|buffer| lowered.buffers[buffer.0 as usize].name == name)
    }

    fn op(&mut self, at: usize, op: &Op) -> Result<(), String> {
        let device = match op.kind.stream() {
            Some(stream) => self.plan.lowered.device_of(stream),
            None => self.current[op.thread.0 as usize],
        };
        self.own_streams(op.thread, streams(&op.kind).into_iter().flatten())?;
        match op.kind {
            Kind::Kernel { .. } | Kind::GraphLaunch { .. } => {
                if op.accesses.len() > MIX_PIECES {
                    return Err(format!(
                        "it touches more than {MIX_PIECES} pieces of memory"
                    ));
                }
                self.touches(op, device, true)?;
                if let Kind::GraphLaunch { graph, .. } = op.kind {
                    self.replays(op, graph, device)?;
                }
            }
            Kind::Copy { .. } | Kind::CopyBlocking { .. } => {
                let sizes: Vec<u64> = op.accesses.iter().map(Access::len_bytes).collect();
                if sizes.first() != sizes.last() {
                    return Err("its two sides differ in size, which one copy cannot do".into());
                }
                self.is_something(op)?;
                self.touches(op, device, false)?;
            }
            Kind::Memset { .. } | Kind::MemsetBlocking { .. } => {
                self.is_something(op)?;
                self.touches(op, device, true)?;
            }
            Kind::HostFunc { raises, .. } => {
                self.touches(op, device, false)?;
                self.raised.extend(raises.map(|flag| (flag, at)));
            }
            Kind::HostAccess => self.touches(op, device, false)?,
            Kind::SetFlag { flag } => _ = self.raised.insert(flag, at),
            Kind::WaitFlag { flag } => {
                let by = self.raised.get(&flag).copied();
                let is_func = |&by: &usize| self.plan.program.ops[by].verb == Verb::HostFunc;
                self.plan.needs[at].raised_by = by.filter(is_func);
            }
            Kind::MallocAsync { .. } | Kind::CudaMalloc => self.begins(at, op, device)?,
            Kind::FreeAsync { .. } | Kind::CudaFree { .. } | Kind::FreePinned => {
                self.ends(at, op, device)?;
            }
            Kind::SetDevice { device } => self.current[op.thread.0 as usize] = device,
            Kind::WriteValue { .. } | Kind::WaitValue { .. } | Kind::WaitOutside { .. } => {
                return Err("a run cannot make this call".into());
            }
            Kind::CopyPeer { .. } => {
                return Err("it copies between two devices, which a run cannot do".into());
            }
            Kind::BeginCapture { .. } | Kind::EndCapture { .. } => {
                return Err("no op names the graph of a capture, so nothing would run".into());
            }
            Kind::Alloc {
                buffer,
                stream,
                saw_events_of,
            } => {
                let freed = saw_events_of.and_then(|earlier| self.held.get(&earlier));
                if let Some((Some(freed), streams)) = freed.cloned() {
                    let freeing = self.plan.program.ops[freed].thread;
                    self.own_streams(freeing, streams.iter().copied())?;
                    self.plan.needs[freed].marks = streams;
                    self.plan.needs[at].sees = Some(freed);
                }
                self.held
                    .insert(buffer, (None, stream.into_iter().collect()));
            }
            Kind::RecordStream { buffer, stream } => {
                let (_, streams) = self.held.entry(buffer).or_default();
                if !streams.contains(&stream) {
                    streams.push(stream);
                }
            }
            Kind::Free { buffer } => self.held.entry(buffer).or_default().0 = Some(at),
            Kind::CreateStream { stream } | Kind::DestroyStream { stream } => {
                let declared = &self.plan.lowered.streams[stream.0 as usize];
                if declared.kind.is_default() {
                    return Err("a default stream always exists".into());
                }
                if let Kind::DestroyStream { .. } = op.kind {
                    self.destroyed.insert(stream);
                }
            }
            kind => match kind.class() {
                Class::Record
                | Class::Wait
                | Class::Sync(_)
                | Class::Query(_)
                | Class::Make
                | Class::Told => {}
                _ => return Err("a run cannot make this call".into()),
            },
        }
        Ok(())
    }

    /// Checks per-thread streams: CUDA has one for each thread and device, and other threads cannot name it.
    fn own_streams(
        &mut self,
        thread: ThreadId,
        named: impl Iterator<Item = StreamId>,
    ) -> Result<(), String> {
        for stream in named {
            let declared = &self.plan.lowered.streams[stream.0 as usize];
            if self.destroyed.contains(&stream) {
                return Err(format!("`{}` was destroyed before", declared.name));
            }
            if declared.kind != StreamKind::PerThread {
                continue;
            }
            let has_another = self.plan.owners.iter().any(|(&known, &owner)| {
                let device = self.plan.lowered.device_of(known);
                known != stream && owner == thread && device == declared.device
            });
            if has_another {
                return Err(format!(
                    "`{}` is the second per-thread stream of its thread, which has one",
                    declared.name
                ));
            }
            if *self.plan.owners.entry(stream).or_insert(thread) != thread {
                return Err(format!(
                    "`{}` is the default stream of another thread, and only that one can use it",
                    declared.name
                ));
            }
        }
        Ok(())
    }

    fn is_something(&self, op: &Op) -> Result<(), String> {
        let is_something = op.accesses.iter().any(|access| access.len_bytes() > 0);
        let why = "it touches no byte, which the driver does not accept";
        is_something.then_some(()).ok_or_else(|| why.into())
    }

    /// Checks that the memory that an op touches exists, and that work on the device can reach it.
    fn touches(&mut self, op: &Op, device: DeviceId, is_work: bool) -> Result<(), String> {
        for access in &op.accesses {
            let name = self.plan.name(access.buffer).to_owned();
            if access.mode == Mode::Atomic {
                return Err(format!(
                    "`{name}` is accessed atomically, which no kernel here does"
                ));
            }
            let (block, _) = self.plan.places[access.buffer.0 as usize];
            let block = &mut self.plan.blocks[block];
            match block.life {
                Life::Unborn => return Err(format!("`{name}` is allocated only later")),
                Life::Freed { by } => return Err(format!("`{name}` was freed by op {by}")),
                Life::Lives { .. } => {}
            }
            match block.memory {
                Memory::Managed => return Err(format!("`{name}` is managed memory")),
                Memory::Pageable if is_work => {
                    return Err(format!(
                        "a device cannot access `{name}`, which is pageable"
                    ));
                }
                // Device memory is where kernels touch it, or otherwise where it is copied first.
                Memory::Device => match block.used_on {
                    Some((other, true)) if is_work && other != device => {
                        return Err(format!(
                            "`{name}` is on device {}, and work on device {} cannot access it",
                            other.0, device.0
                        ));
                    }
                    Some((_, false)) if is_work => block.used_on = Some((device, true)),
                    None => block.used_on = Some((device, is_work)),
                    Some(_) => {}
                },
                Memory::Pageable | Memory::Pinned => {}
            }
        }
        Ok(())
    }

    fn replays(&mut self, op: &Op, graph: GraphId, device: DeviceId) -> Result<(), String> {
        for access in &op.accesses {
            let (block, _) = self.plan.places[access.buffer.0 as usize];
            if self.plan.blocks[block].is_born {
                let name = self.plan.name(access.buffer);
                return Err(format!(
                    "a graph is made before the run, when `{name}` is not allocated"
                ));
            }
        }
        let this = (op.accesses.clone(), device);
        if *self.graphs.entry(graph).or_insert_with(|| this.clone()) != this {
            return Err("an earlier launch of the graph touches something else".into());
        }
        Ok(())
    }

    fn begins(&mut self, at: usize, op: &Op, device: DeviceId) -> Result<(), String> {
        let Some(block) = self.plan.needs[at].block else {
            return Ok(());
        };
        let by_stream = matches!(op.kind, Kind::MallocAsync { .. });
        let name = self.plan.name(self.plan.blocks[block].buffer).to_owned();
        let block = &mut self.plan.blocks[block];
        if block.memory == Memory::Managed || (by_stream && block.memory != Memory::Device) {
            return Err(format!("`{name}` is not device memory"));
        }
        if block.life != Life::Unborn {
            return Err(format!("`{name}` is allocated already"));
        }
        block.life = Life::Lives { by_stream };
        block.used_on = Some((device, true));
        Ok(())
    }

    fn ends(&mut self, at: usize, op: &Op, device: DeviceId) -> Result<(), String> {
        // Freeing counts as a write, which requires that the memory exists.
        self.touches(op, device, false)?;
        let Some(access) = op.accesses.first() else {
            return Ok(());
        };
        let name = self.plan.name(access.buffer).to_owned();
        let (block, _) = self.plan.places[access.buffer.0 as usize];
        let block = &mut self.plan.blocks[block];
        if block.buffer != access.buffer {
            return Err(format!(
                "`{name}` is within another buffer, which would be freed with it"
            ));
        }
        let wanted = match op.kind {
            Kind::FreePinned => Memory::Pinned,
            _ => Memory::Device,
        };
        if block.memory != wanted {
            return Err(format!("`{name}` is not memory that this call frees"));
        }
        if matches!(op.kind, Kind::FreeAsync { .. }) {
            if block.life != (Life::Lives { by_stream: true }) {
                return Err(format!("`{name}` does not come from `malloc_async`"));
            }
            if block.used_on.is_some_and(|(on, _)| on != device) {
                return Err(format!("`{name}` is on another device than the stream"));
            }
        }
        block.life = Life::Freed { by: at };
        Ok(())
    }
}

/// Returns the streams in which an op does something; the allocator only records them.
fn streams(kind: &Kind) -> [Option<StreamId>; 2] {
    match *kind {
        Kind::Alloc { .. } | Kind::RecordStream { .. } => [None, None],
        Kind::WaitStream { stream, source } => [Some(stream), Some(source)],
        _ => [kind.stream(), None],
    }
}
