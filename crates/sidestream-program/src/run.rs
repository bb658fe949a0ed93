//! Runs a program on the simulated GPU.

use std::fmt;

use sidestream::alloc::{Cache, Need, On, Piece, Rules, State, Uses};
use sidestream::backend::Address;
use sidestream::engine::{Profile, TaskId};
use sidestream::op::{self, BufferId, Kind, OpId, StreamId, ThreadId};
use sidestream::order::{Chain, Misuse};
use sidestream::sim::{Names, Schedule, Sim, Stuck};
use sidestream::trace::Trace;

use crate::lower::{Command, Lowered, lower};
use crate::program::{BufferRef, Level, Program};

/// A program that was run.
pub struct Run {
    /// The simulated machine, with all results and times.
    pub sim: Sim,
    /// The program as operations.
    pub lowered: Lowered,
    /// The call that failed, if one did; the run ends before it.
    pub failed: Option<(usize, Misuse)>,
    /// Expectations about the allocator that were not met.
    pub unmet: Vec<Unmet>,
}

/// A block that was not the expected one, or was the forbidden one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unmet {
    /// The op that allocates.
    pub op: usize,
    /// The expectation, in one line.
    pub why: String,
}

/// Why a program cannot be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CannotRun {
    /// The program's buffers are larger than the memory of their device.
    DeviceMemory {
        /// Bytes that the buffers need.
        wanted_bytes: u64,
        /// Bytes that the device has.
        memory_bytes: u64,
    },
    /// An allocation finds no block.
    OutOfBlocks {
        /// The op that allocates.
        op: usize,
        /// Number of blocks.
        blocks: usize,
    },
    /// Some of the program's work can never run.
    Stuck(Stuck),
}

impl fmt::Display for CannotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CannotRun::DeviceMemory {
                wanted_bytes,
                memory_bytes,
            } => write!(
                f,
                "its device buffers take {wanted_bytes} bytes, the device has {memory_bytes}; \
                 use smaller buffers"
            ),
            CannotRun::OutOfBlocks { op, blocks } => write!(
                f,
                "op {op}: out of memory, all {blocks} blocks are handed out; free one before, or \
                 raise `blocks` of set_capacity"
            ),
            CannotRun::Stuck(stuck) => write!(f, "{stuck}"),
        }
    }
}

impl std::error::Error for CannotRun {}

/// Runs a program on devices with this profile. `witness` records who wrote the bytes that every op found.
///
/// A call that CUDA refuses ends the run before it, and is not an error of this function.
///
/// # Errors
/// If the program does not fit, or waits forever.
pub fn run(
    program: &Program,
    profile: &Profile,
    schedule: Schedule,
    witness: bool,
) -> Result<Run, CannotRun> {
    run_connected(program, profile, schedule, witness, CONNECTIONS)
}

/// Connections of a device, unless `CUDA_DEVICE_MAX_CONNECTIONS` sets another number.
pub const CONNECTIONS: u32 = 8;

/// Like [`run`], but on devices with this many connections, which streams share ([`Sim::connect`]).
///
/// # Errors
/// As [`run`].
pub fn run_connected(
    program: &Program,
    profile: &Profile,
    schedule: Schedule,
    witness: bool,
    connections: u32,
) -> Result<Run, CannotRun> {
    let lowered = lower(program);
    fits(&lowered, profile)?;
    let last_device = lowered.last_device().0 as usize;
    let mut sim = Sim::new(vec![profile.clone(); last_device + 1], schedule, witness);
    lowered.declare(sim.order());
    sim.connect(connections);
    for (at, stream) in (0..).zip(&lowered.streams) {
        sim.prioritize(StreamId(at), stream.priority);
    }
    for buffer in &lowered.buffers {
        sim.contents().add(buffer.size_bytes, buffer.over);
    }
    let held = lowered.buffers.iter().map(|_| None).collect();
    let mut running = Running {
        program,
        run: Run {
            sim,
            lowered,
            failed: None,
            unmet: Vec::new(),
        },
        blocks: [Cache::new(BLOCKS), Cache::new(BLOCKS)],
        held,
    };
    for at in 0..program.ops.len() {
        if !running.command(at)? {
            break;
        }
    }
    let mut run = running.run;
    run.sim.finish().map_err(CannotRun::Stuck)?;
    Ok(run)
}

fn fits(lowered: &Lowered, profile: &Profile) -> Result<(), CannotRun> {
    let wanted_bytes = lowered.own_bytes(|memory| !memory.is_host());
    let memory_bytes = profile.memory_bytes();
    if wanted_bytes > memory_bytes {
        return Err(CannotRun::DeviceMemory {
            wanted_bytes,
            memory_bytes,
        });
    }
    Ok(())
}

struct Running<'a> {
    program: &'a Program,
    run: Run,
    /// The blocks of pinned memory, and those of streams.
    blocks: [Cache<LastTasks>; 2],
    /// Blocks of the allocator by buffer.
    held: Vec<Option<Held>>,
}

struct Held {
    block: Address,
    home: Option<StreamId>,
    /// None after the block was freed.
    piece: Option<Piece>,
}

/// A program has blocks of one size: each is a segment with a single piece.
const BLOCKS: Rules = Rules {
    device: None,
    align_bytes: BLOCK_BYTES,
    granule_bytes: BLOCK_BYTES,
    joins: false,
    limit_bytes: u64::MAX,
    spare: None,
};
const BLOCK_BYTES: u64 = 1;

/// The last task of each stream that used a block.
#[derive(Clone, Default)]
struct LastTasks(Vec<(StreamId, TaskId)>);

impl Uses for LastTasks {
    fn merge(&mut self, other: LastTasks) {
        self.0.extend(other.0);
    }

    fn on(&self) -> On {
        match self.0[..] {
            [] => On::NoStream,
            [(stream, _)] => On::Only(stream),
            _ => On::Several,
        }
    }
}

impl Running<'_> {
    /// Performs one op; returns false if it failed and the run ends.
    fn command(&mut self, at: usize) -> Result<bool, CannotRun> {
        let command = self.run.lowered.commands[at].clone();
        let runtime = self.program.level == Level::Runtime;
        match command {
            Command::Hold(stream) if runtime => {
                self.reach(at)?;
                self.run.sim.hold(stream);
            }
            Command::Release(stream) if runtime => {
                self.reach(at)?;
                self.run.sim.release(stream);
            }
            Command::Hold(_) | Command::Release(_) => {}
            Command::SetCapacity { blocks } => {
                let limit_bytes = u64::from(blocks) * BLOCK_BYTES;
                let blocks = self.blocks.iter_mut();
                blocks.for_each(|blocks| blocks.set_limit(limit_bytes));
            }
            Command::PoolGet { .. } => {}
            Command::Op(op) => {
                if runtime && let Kind::Alloc { buffer, stream, .. } = op.kind {
                    self.allocate(at, &op, buffer, stream)?;
                }
                // The known uses are read before the free: the allocator does not know the buffer afterwards.
                let freed = match op.kind {
                    Kind::Free { buffer } if runtime => Some((buffer, self.known_uses(buffer))),
                    _ => None,
                };
                if let Err(misuse) = self.run.sim.submit(op, None) {
                    self.run.failed = Some((at, misuse));
                    return Ok(false);
                }
                if let Some((buffer, streams)) = freed {
                    self.free(buffer, &streams);
                }
            }
        }
        Ok(true)
    }

    /// Advances virtual time to the point where an op is called: all earlier calls of its thread have completed.
    fn reach(&mut self, at: usize) -> Result<(), CannotRun> {
        let thread = self.program.ops[at].thread;
        match self.run.sim.thread_time(thread) {
            Some(_) => Ok(()),
            None => Err(CannotRun::Stuck(Stuck {
                first: OpId(at as u32),
                count: 1,
            })),
        }
    }

    fn allocate(
        &mut self,
        at: usize,
        op: &op::Op,
        buffer: BufferId,
        home: Option<StreamId>,
    ) -> Result<(), CannotRun> {
        // The choice depends on what the host knows about the device when it allocates.
        self.reach(at)?;
        let sim = &self.run.sim;
        let blocks = &mut self.blocks[usize::from(home.is_some())];
        let granted = loop {
            let is_complete = |task: TaskId| sim.engine().is_finished(task);
            match blocks.alloc(BLOCK_BYTES, home, |uses| state(uses, home, is_complete)) {
                Ok(granted) => break granted,
                Err(Need::Segment(growth)) => {
                    let next = blocks.statistics().reserved_bytes;
                    blocks.add_segment(Address(next), growth.bytes);
                }
                Err(Need::Release(_) | Need::Wait(_) | Need::OutOfMemory(_)) => {
                    return Err(CannotRun::OutOfBlocks {
                        op: at,
                        blocks: (blocks.statistics().reserved_bytes / BLOCK_BYTES) as usize,
                    });
                }
            }
        };
        if granted.waits {
            let pending = granted.carried.0.into_iter().filter(|&(stream, task)| {
                Some(stream) != home && !self.run.sim.engine().is_finished(task)
            });
            let streams: Vec<StreamId> = pending.map(|(stream, _)| stream).collect();
            for source in streams {
                self.wait_for(op, home, source);
            }
        }
        let block = granted.piece.address;
        self.expect_block(at, block, home);
        self.held[buffer.0 as usize] = Some(Held {
            block,
            home,
            piece: Some(granted.piece),
        });
        Ok(())
    }

    /// Makes the stream of the new owner wait for a stream that may still use the block.
    fn wait_for(&mut self, op: &op::Op, home: Option<StreamId>, source: StreamId) {
        let Some(stream) = home else { return };
        let wait = op::Op {
            kind: Kind::WaitStream { stream, source },
            accesses: op::Accesses::new(),
            ..op.clone()
        };
        // A stream that is being captured cannot wait; then the block is not safe, and the results will show it.
        let _ = self.run.sim.submit(wait, None);
    }

    fn expect_block(&mut self, at: usize, block: Address, home: Option<StreamId>) {
        let fields = &self.program.ops[at].fields;
        let (must_alias, must_not_alias) = (fields.must_alias, fields.must_not_alias);
        let mut expect = |other: Option<BufferRef>, wanted: bool| {
            let Some(other) = other else { return };
            let same = self
                .held_by_name(other)
                .is_some_and(|held| held.block == block && held.home.is_some() == home.is_some());
            if same != wanted {
                let name = &self.program.buffers[other.0 as usize].name;
                let why = if wanted {
                    format!("the block must be that of {name}, but is another")
                } else {
                    format!("the block must not be that of {name}, but is")
                };
                self.run.unmet.push(Unmet { op: at, why });
            }
        };
        expect(must_alias, true);
        expect(must_not_alias, false);
    }

    /// Returns the block that the last allocation of a name got.
    fn held_by_name(&self, name: BufferRef) -> Option<&Held> {
        let mut last_first = self.run.lowered.buffers.iter().zip(&self.held).rev();
        last_first.find_map(|(buffer, held)| held.as_ref().filter(|_| buffer.name == name))
    }

    fn known_uses(&mut self, buffer: BufferId) -> Vec<StreamId> {
        let (home, noted) = self.run.sim.order().known_uses(buffer);
        home.into_iter().chain(noted.iter().copied()).collect()
    }

    fn free(&mut self, buffer: BufferId, streams: &[StreamId]) {
        let Some(held) = &mut self.held[buffer.0 as usize] else {
            return;
        };
        let (home, Some(piece)) = (held.home, held.piece.take()) else {
            return;
        };
        let last = |&s: &StreamId| Some((s, self.run.sim.last_task(Chain::Stream(s))?));
        let uses = LastTasks(streams.iter().filter_map(last).collect());
        self.blocks[usize::from(home.is_some())].free(piece, uses);
    }
}

/// Returns the state of a block's uses for a stream `home` that wants to reuse it.
fn state(uses: &LastTasks, home: Option<StreamId>, is_complete: impl Fn(TaskId) -> bool) -> State {
    if uses.0.iter().all(|&(_, task)| is_complete(task)) {
        return State::Over;
    }
    let is_ordered =
        |&(stream, task): &(StreamId, TaskId)| Some(stream) == home || is_complete(task);
    if uses.0.iter().all(is_ordered) {
        State::Ordered
    } else {
        State::Pending
    }
}

/// The names of a program, for its trace.
pub struct ProgramNames<'a> {
    /// The program.
    pub program: &'a Program,
    /// The program as operations.
    pub lowered: &'a Lowered,
}

impl Names for ProgramNames<'_> {
    fn work(&self, op: &op::Op) -> String {
        self.program.name_of(op.id).to_owned()
    }

    fn label(&self, op: &op::Op) -> String {
        format!("{} {}", op.id.0, self.work(op))
    }

    fn stream(&self, stream: StreamId) -> String {
        let known = self.lowered.streams.get(stream.0 as usize);
        known.map_or_else(|| "legacy".to_owned(), |s| s.name.clone())
    }

    fn thread(&self, thread: ThreadId) -> String {
        self.program.threads[thread.0 as usize].clone()
    }
}

impl Run {
    /// Returns the trace of the run.
    pub fn trace(&self, program: &Program) -> Trace {
        let lowered = &self.lowered;
        self.sim.trace(&ProgramNames { program, lowered })
    }

    /// Returns the accesses of an op.
    pub fn accesses(&self, op: OpId) -> impl Iterator<Item = &op::Access> {
        let command = self.lowered.commands.get(op.0 as usize);
        let op = command.and_then(Command::op);
        op.into_iter().flat_map(|op| &op.accesses)
    }
}
