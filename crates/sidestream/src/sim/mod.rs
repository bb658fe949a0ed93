//! A simulated GPU in virtual time.
//!
//! [`Sim`] takes operations in call order. The rule book determines what each operation is ordered after, and the
//! engine determines when it runs. An operation reads bytes when it starts and writes bytes when it ends. An operation
//! that lacks a wait therefore finds whatever the memory contains at that time, as on a device; the simulator notes who
//! had written it.
//!
//! A [`Schedule`] picks one of the orders that the rules allow. [`Schedule::InOrder`] also keeps orders that were only
//! observed on devices; the others keep only those that CUDA guarantees, so that a program that depends on
//! more gives wrong results.
//!
//! [`Machine`] is the simulated GPU for running programs: a [`Backend`](crate::backend::Backend) whose memory has
//! addresses and bytes, whose kernels are functions, and that keeps no history beyond its unfinished work.

mod connections;
mod core;
mod machine;
mod memory;
mod record;
mod schedule;
mod work;

use std::fmt;

use crate::engine::{Delay, Engine, KernelCost, Profile, TaskId, What};
use crate::op::{Access, DeviceId, Mode, Op, OpId, StreamId};
use crate::order::{Chain, Misuse, Order, Performs, Runs, Step};

use connections::Connections;
use core::Core;
pub use machine::Machine;
pub use memory::{Contents, Found};
pub use record::Names;
pub use schedule::{BadSchedule, Schedule};
#[doc(hidden)]
pub use schedule::{mixed, split_mix};

/// A simulated machine: its devices, its memory and the operations submitted so far.
pub struct Sim {
    devices: Vec<Profile>,
    core: Core<Part>,
    contents: Contents,
    /// Whether the simulator notes who wrote what an access finds; if not, only times are simulated.
    has_witness: bool,
    ops: Vec<Submitted>,
}

/// An operation and what it found.
struct Submitted {
    op: Op,
    /// The current device of the calling thread.
    device: DeviceId,
    witness: Vec<Witness>,
}

/// The state of bytes at one access of an operation: the bytes that a read saw, or that a write replaced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Witness {
    /// Whether the access wrote.
    pub wrote: bool,
    /// The bytes, and the operation that had written them.
    pub found: Found,
}

/// The meaning of a task of the engine.
#[derive(Clone, Copy)]
struct Part {
    /// The index of the operation.
    op: u32,
    performs: Performs,
    is_call: bool,
    /// Whether the task is only a marker for the next task's turn in a connection.
    is_turn: bool,
    /// The stream on which the task runs; `None` for the part on the host.
    stream: Option<StreamId>,
}

/// The error for operations that cannot run, because a stream is held or waits for a held one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// The first such operation in call order.
    pub first: OpId,
    /// The number of such operations.
    pub count: usize,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} can never run{}: its stream is held, or waits for one that is; release the stream",
            self.first,
            match self.count {
                1 => String::new(),
                n => format!(", nor can {} more", n - 1),
            }
        )
    }
}

impl std::error::Error for Stuck {}

impl Sim {
    /// Returns a machine with these devices. Without `has_witness` it simulates only times: it does not answer
    /// [`Sim::witness`], and needs no buffers.
    pub fn new(devices: Vec<Profile>, schedule: Schedule, has_witness: bool) -> Sim {
        Sim {
            core: Core::new(devices.clone(), schedule),
            devices,
            contents: Contents::default(),
            has_witness,
            ops: Vec::new(),
        }
    }

    /// Returns the rule book, in which streams and events are declared.
    pub fn order(&mut self) -> &mut Order {
        &mut self.core.order
    }

    /// Returns the memory, to add buffers and to see who wrote them.
    pub fn contents(&mut self) -> &mut Contents {
        &mut self.contents
    }

    /// Returns the engine, which has the times of all tasks.
    pub fn engine(&self) -> &Engine {
        &self.core.engine
    }

    /// Gives each device `count` connections, which its streams share in the order in which they are declared
    /// ([`Sim::prioritize`]) or first used: work that waits in a connection delays later work of other streams there.
    /// This is a model, since NVIDIA does not document which streams share a connection, and programs may not rely on
    /// the order: only [`Schedule::InOrder`] applies it. Without this call each stream has its own connection.
    pub fn connect(&mut self, count: u32) {
        let turn = |part: &Part| Part {
            performs: Performs::Nothing,
            is_turn: true,
            stream: None,
            ..*part
        };
        let is_used = self.core.schedule == Schedule::InOrder;
        self.core.connections = is_used.then(|| Connections::new(count, turn));
    }

    /// Returns the last task of a chain so far.
    pub fn last_task(&self, chain: Chain) -> Option<TaskId> {
        self.core.frontier.last(chain)
    }

    /// Submits the next call. Its work runs when the engine runs.
    ///
    /// `cost` is the cost of a kernel; without one its time depends on the bytes that it accesses.
    ///
    /// # Errors
    /// If CUDA refuses the call; nothing is submitted then.
    pub fn submit(&mut self, op: Op, cost: Option<KernelCost>) -> Result<Runs, Misuse> {
        let (runs, steps) = self.core.ordered(&op);
        if runs.is_ok() {
            self.enqueue(op, cost, &steps);
        }
        self.core.reuse(steps);
        runs
    }

    /// Sets the priority of a declared stream, before its first work: lower is more urgent, and a priority outside the
    /// device's range becomes the nearest one in it. The default is 0.
    pub fn prioritize(&mut self, stream: StreamId, priority: i32) {
        let (most_urgent, least_urgent) = Machine::PRIORITIES;
        let priority = priority.clamp(most_urgent, least_urgent);
        self.core.stream_lane(stream, priority);
    }

    /// Holds a stream: the device starts none of its work until [`Sim::release`].
    pub fn hold(&mut self, stream: StreamId) {
        let lane = self.core.lane(Chain::Stream(stream));
        self.core.engine.hold(lane);
    }

    /// Releases a held stream.
    pub fn release(&mut self, stream: StreamId) {
        let lane = self.core.lane(Chain::Stream(stream));
        self.core.engine.release(lane);
    }

    /// Runs everything that was submitted.
    ///
    /// # Errors
    /// If some of it cannot run.
    pub fn finish(&mut self) -> Result<(), Stuck> {
        while self.advance() {}
        let tasks = self.core.parts();
        let unfinished = tasks.filter(|&(task, _)| !self.core.engine.is_finished(task));
        let mut stuck: Vec<u32> = unfinished.map(|(_, part)| part.op).collect();
        stuck.dedup();
        match stuck.first() {
            None => Ok(()),
            Some(&first) => Err(Stuck {
                first: self.ops[first as usize].op.id,
                count: stuck.len(),
            }),
        }
    }

    /// Runs until a thread has returned from all its calls so far, and returns the time of the last return.
    /// `None` if it waits for something that cannot run.
    pub fn thread_time(&mut self, thread: crate::op::ThreadId) -> Option<u64> {
        let Some(last) = self.core.frontier.last(Chain::Thread(thread)) else {
            return Some(0);
        };
        while !self.core.engine.is_finished(last) {
            if !self.advance() {
                return None;
            }
        }
        self.core.engine.scheduled(last).map(|span| span.end_ns)
    }

    /// Returns the place of an access: the memory, the first byte, and one past the last (as in [`Found`]).
    pub fn place(&self, access: &Access) -> (u32, u64, u64) {
        self.contents.place(access)
    }

    /// Returns the state of the bytes that the accesses of an operation found.
    pub fn witness(&self, op: OpId) -> &[Witness] {
        let at = self.ops.binary_search_by_key(&op, |s| s.op.id);
        at.map_or(&[], |at| &self.ops[at].witness)
    }
}

// ------------------------------------------------------------------ adding tasks to the engine

impl Sim {
    /// Adds one task for the call, and one for every step.
    fn enqueue(&mut self, op: Op, cost: Option<KernelCost>, steps: &[Step]) {
        let call = Part {
            op: self.ops.len() as u32,
            performs: Performs::Nothing,
            is_call: true,
            is_turn: false,
            stream: None,
        };
        let work = Core::<Part>::call_work(&op, steps);
        self.core.push_call(&op, work, call);
        let device = self.core.order.current_device(op.thread);
        let works = |step: &Step| matches!(step.chain, Chain::Stream(_));
        let has_work = steps.iter().any(works);
        for step in steps {
            let work = match (works(step), step.performs) {
                (false, _) | (true, Performs::Nothing) => work::point(step, &op),
                (true, _) => work::on_device(&op, cost),
            };
            let rank = u64::from(op.id.0);
            let delay = self.core.delay(op.id, rank, step, has_work);
            let part = Part {
                performs: step.performs,
                is_call: false,
                stream: match step.chain {
                    Chain::Stream(stream) => Some(stream),
                    Chain::Thread(_) => None,
                },
                ..call
            };
            let task = match work::further_launches(&op, &self.devices[0]) {
                Some(launching) if works(step) => {
                    // The first launch reads and the last one writes. The device starts the first while the host makes the
                    // others; the last one runs when it has been launched and the others have finished.
                    let first = Part {
                        performs: Performs::Reads,
                        ..part
                    };
                    let task = self.core.push_step(step, work, delay, first);
                    self.core.frontier.set_last(step.chain, task);
                    self.core.push_call(&op, launching, call);
                    let last = Part {
                        performs: Performs::Writes,
                        ..part
                    };
                    let work = work::kernel(&op, cost, 1);
                    self.core.push_step(step, work, Delay::None, last)
                }
                _ => self.core.push_step(step, work, delay, part),
            };
            self.core.frontier.advance(step, task);
        }
        self.ops.push(Submitted {
            op,
            device,
            witness: Vec::new(),
        });
    }
}

// ------------------------------------------------------------------ effects of operations

impl Sim {
    /// Processes one event of the engine; returns false if there is none.
    fn advance(&mut self) -> bool {
        let Some(event) = self.core.engine.step() else {
            return false;
        };
        if self.has_witness {
            let part = *self.core.part(event.task);
            match (event.what, part.performs) {
                (What::Started, Performs::All | Performs::Reads) => self.access(part, false),
                (What::Finished, Performs::All | Performs::Writes) => self.access(part, true),
                _ => {}
            }
        }
        true
    }

    /// Reads the inputs of an operation, at its start, or writes its outputs, at its end.
    fn access(&mut self, part: Part, wrote: bool) {
        let Submitted { op, witness, .. } = &mut self.ops[part.op as usize];
        // Bytes that the operation may write, or accesses atomically, are read and written.
        let other = if wrote { Mode::Read } else { Mode::Write };
        let accesses = || op.accesses.iter().filter(|access| access.mode != other);
        // What was there is noted before anything is written, since accesses may overlap.
        for access in accesses() {
            self.contents
                .found(access, |found| witness.push(Witness { wrote, found }));
        }
        for access in accesses().filter(|_| wrote) {
            self.contents.wrote(access, op.id);
        }
    }
}
