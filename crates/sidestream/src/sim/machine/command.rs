//! A call of the runtime in the form that the machine executes: its place in the order, its cost, its effect.

use std::sync::Arc;

use super::callback::HostFunc;
use super::space::Host;
use crate::backend::{Arg, Code, Copy, Fill, Grid, HostArg, HostForm, Node, NodeWork, Payload};
use crate::engine::{KernelCost, TaskId};
use crate::error::{Error, Result};
use crate::op::{Access, Accesses, BufferId, Class, Kind, Memory, Mode, Op};

/// A call with everything that the machine needs to execute it.
pub(super) struct Command {
    /// The operation as submitted, except that its accesses are made from the payload: they only state byte counts.
    pub op: Op,
    /// The cost of a kernel, if its author stated it.
    pub cost: Option<KernelCost>,
    /// Its effect on memory.
    pub effect: Effect,
}

/// The effect of a task.
#[derive(Default)]
pub(super) enum Effect {
    #[default]
    Nothing,
    Copy(Moved),
    /// Many copies made by one kernel.
    Gather(Vec<Moved>),
    /// The host's part of a copy from pageable memory: it reads the bytes that a later task writes.
    Stage {
        copy: Copy,
        host: Host,
        into: TaskId,
    },
    Fill(Fill),
    Kernel(Box<Launched>),
    HostFunc(HostFunc),
    /// A host function that was handed to the callback thread, by its number among these functions.
    Running(u64),
    /// A record: the event is complete when the task has finished.
    Record(u32),
}

/// A copy and the bytes that it has read.
pub(super) struct Moved {
    pub copy: Copy,
    pub from: Host,
    pub to: Host,
    /// Whether another task, of kind [`Effect::Stage`], reads the bytes for this one.
    pub is_staged: bool,
    pub bytes: Vec<u8>,
}

impl Moved {
    fn new(copy: Copy, from: Host, to: Host) -> Moved {
        Moved {
            copy,
            from,
            to,
            is_staged: false,
            bytes: Vec::new(),
        }
    }
}

/// A kernel and the bytes that it has read.
pub(super) struct Launched {
    pub code: Arc<Code>,
    pub grid: Grid,
    pub args: Vec<Arg>,
    pub copies: Vec<HostArg>,
}

impl Effect {
    /// Whether the effect only reads and writes memory.
    pub(super) fn is_data(&self) -> bool {
        matches!(
            self,
            Effect::Copy(_)
                | Effect::Gather(_)
                | Effect::Stage { .. }
                | Effect::Fill(_)
                | Effect::Kernel(_)
        )
    }
}

impl Command {
    /// # Errors
    /// If a kernel has no form in Rust, a grid beyond CUDA's limits, or a cost with which it would never run.
    pub(super) fn new(op: &Op, payload: Payload<'_>) -> Result<Command> {
        let mut command = Command::without_effect(op);
        match payload {
            Payload::None | Payload::Graph => {
                if let Kind::Record { event, .. } = op.kind {
                    command.effect = Effect::Record(event.0);
                }
            }
            Payload::Copy(copy) => command.copies(copy),
            Payload::Gather(pieces) => command.gathers(pieces),
            Payload::Fill(fill) => command.fills(fill),
            Payload::Launch(launch) => {
                command.launches(launch.code, launch.grid, launch.args.to_vec())?;
            }
            Payload::HostFunc(function) => command.effect = Effect::HostFunc(function),
        }
        Ok(command)
    }

    /// # Errors
    /// Like [`Command::new`].
    pub(super) fn of_node(node: &Node) -> Result<Command> {
        let mut command = Command::without_effect(&node.op);
        match &node.work {
            NodeWork::Copy(copy) => command.copies(*copy),
            NodeWork::Fill(fill) => command.fills(*fill),
            NodeWork::Launch { code, grid, args } => command.launches(code, *grid, args.clone())?,
        }
        Ok(command)
    }

    fn without_effect(op: &Op) -> Command {
        Command {
            op: op.clone(),
            cost: None,
            effect: Effect::Nothing,
        }
    }

    fn copies(&mut self, copy: Copy) {
        self.moves(copy.row_bytes * copy.rows);
        let (from, to) = if let Class::Copy { from, to, .. } = self.op.kind.class() {
            (from, to)
        } else {
            (Memory::Device, Memory::Device)
        };
        self.effect = Effect::Copy(Moved::new(copy, Host::of(from), Host::of(to)));
    }

    /// Makes many copies by one kernel, which runs at the speed of the link and takes some microseconds longer
    /// than one copy.
    fn gathers(&mut self, pieces: &[Copy]) {
        self.moves(pieces.iter().map(|piece| piece.row_bytes).sum());
        let moved = |&copy: &Copy| Moved::new(copy, Host::Pinned, Host::Pinned);
        self.effect = Effect::Gather(pieces.iter().map(moved).collect());
    }

    fn moves(&mut self, bytes: u64) {
        let accesses = [Mode::Read, Mode::Write].map(|mode| of(bytes, mode));
        self.op.accesses = Accesses::from_slice(&accesses);
    }

    fn fills(&mut self, fill: Fill) {
        let bytes = fill.count * u64::from(fill.width);
        self.op.accesses = Accesses::from_slice(&[of(bytes, Mode::Write)]);
        self.effect = Effect::Fill(fill);
    }

    fn launches(&mut self, code: &Arc<Code>, grid: Grid, args: Vec<Arg>) -> Result<()> {
        host_form(code)?;
        within_limits(grid, &code.name)?;
        self.cost = code.cost.as_ref().map(|cost| cost(grid, &args));
        if let Some(cost) = self.cost.filter(|cost| !cost.ends()) {
            return Err(Error::Invalid {
                call: "launch",
                why: format!(
                    "kernel `{}` has the cost {cost:?}, with which it would never run; its share of the \
                     device is from {:e} to 1",
                    code.name,
                    KernelCost::LEAST_SHARE
                ),
            });
        }
        let memory = args.iter().filter_map(|arg| match *arg {
            Arg::Memory { bytes, mode, .. } => Some(of(bytes, mode)),
            Arg::Scalar { .. } => None,
        });
        self.op.accesses = memory.collect();
        self.effect = Effect::Kernel(Box::new(Launched {
            code: Arc::clone(code),
            grid,
            args,
            copies: Vec::new(),
        }));
        Ok(())
    }
}

impl Effect {
    /// Returns a copy of the effect for another launch of a graph. Only the effects of graph nodes can be repeated.
    pub(super) fn again(&self) -> Effect {
        match self {
            Effect::Copy(moved) => Effect::Copy(Moved {
                bytes: Vec::new(),
                ..*moved
            }),
            Effect::Fill(fill) => Effect::Fill(*fill),
            Effect::Kernel(launched) => Effect::Kernel(Box::new(Launched {
                code: Arc::clone(&launched.code),
                args: launched.args.clone(),
                copies: Vec::new(),
                ..**launched
            })),
            _ => Effect::Nothing,
        }
    }

    /// Returns the first copy of the effect, whose addresses show the devices.
    pub(super) fn copy(&self) -> Option<&Copy> {
        match self {
            Effect::Copy(moved) => Some(&moved.copy),
            _ => None,
        }
    }
}

/// Returns the Rust form of a kernel, which the simulated GPU runs.
///
/// # Errors
/// If the kernel has none.
pub(super) fn host_form(code: &Code) -> Result<&HostForm> {
    code.host.as_ref().ok_or_else(|| Error::NoForm {
        kernel: code.name.clone(),
        needed: "form in Rust, which the simulated GPU runs",
    })
}

/// The most shared memory that a block of a data-centre GPU can have: 227 KiB (CUDA programming guide, compute capability 9.0).
const MOST_SHARED_BYTES: u32 = 227 << 10;

/// Refuses a launch that is beyond the limits of CUDA, with the code of the driver.
fn within_limits(grid: Grid, kernel: &str) -> Result<()> {
    let [x, y, z] = grid.threads;
    let is_within = |sizes: [u32; 3], most: [u32; 3]| (0..3).all(|at| sizes[at] <= most[at]);
    let why = if !is_within(grid.threads, [1024, 1024, 64])
        || u64::from(x) * u64::from(y) * u64::from(z) > 1024
    {
        format!("a block of {x} x {y} x {z} threads; it has at most 1024, and 64 of them in z")
    } else if !is_within(grid.blocks, [i32::MAX as u32, 65535, 65535]) {
        let [x, y, z] = grid.blocks;
        format!("a grid of {x} x {y} x {z} blocks; it has at most 2147483647 x 65535 x 65535")
    } else if grid.shared_bytes > MOST_SHARED_BYTES {
        let asked = grid.shared_bytes;
        format!("{asked} bytes of shared memory per block; there are at most {MOST_SHARED_BYTES}")
    } else {
        return Ok(());
    };
    Err(Error::Refused {
        call: "kernel",
        code: 1,
        why: format!("kernel `{kernel}` was launched with {why}"),
    })
}

fn of(bytes: u64, mode: Mode) -> Access {
    Access {
        buffer: BufferId(0),
        start: 0,
        end: bytes,
        mode,
    }
}
