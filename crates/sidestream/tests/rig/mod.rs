//! A program that calls a simulated machine through its trait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sidestream::backend::{
    Address, Arg, Backend, Code, Copy, Create, Destroy, Fill, Grid, HostArg, Launch, Node,
    NodeWork, Payload, Reserve,
};
use sidestream::engine::{KernelCost, Profile};
use sidestream::error::Result;
use sidestream::op::{
    Accesses, DeviceId, EventId, GraphId, Kind, Memory, Mode, Op, OpId, SiteId, StreamId,
    StreamKind, ThreadId,
};
use sidestream::sim::{Machine, Schedule};

pub const ONE_BLOCK: Grid = Grid {
    blocks: [1, 1, 1],
    threads: [32, 1, 1],
    shared_bytes: 0,
};

pub struct Rig {
    pub machine: Machine,
    next: AtomicU32,
}

impl Rig {
    pub fn new(schedule: Schedule) -> Rig {
        Rig::with_devices(schedule, 1)
    }

    /// Streams are created by id on first use: see [`Rig::stream`].
    pub fn with_devices(schedule: Schedule, devices: usize) -> Rig {
        let devices = (0..devices).map(|n| (format!("sim:h200:{n}"), Profile::h200()));
        Rig {
            machine: Machine::new(devices.collect(), schedule, None),
            next: AtomicU32::new(0),
        }
    }

    pub fn op(&self, kind: Kind) -> Op {
        self.op_of(0, kind)
    }

    pub fn op_of(&self, thread: u32, kind: Kind) -> Op {
        Op {
            id: OpId(self.next.fetch_add(1, Ordering::Relaxed)),
            thread: ThreadId(thread),
            site: SiteId(0),
            kind,
            accesses: Accesses::new(),
        }
    }

    pub fn stream(&self, id: u32) -> StreamId {
        self.stream_on(id, 0, StreamKind::NonBlocking)
    }

    pub fn stream_on(&self, id: u32, device: u32, kind: StreamKind) -> StreamId {
        let what = Create::Stream {
            id: StreamId(id),
            device: DeviceId(device),
            kind,
            priority: 0,
            name: "",
            adopt: None,
        };
        self.create(what);
        StreamId(id)
    }

    pub fn event(&self, id: u32) -> EventId {
        self.event_on(id, 0, false)
    }

    pub fn event_on(&self, id: u32, device: u32, timing: bool) -> EventId {
        let (id, device) = (EventId(id), DeviceId(device));
        let what = Create::Event {
            id,
            device,
            timing,
            sleeps: false,
        };
        self.create(what);
        id
    }

    pub fn graph(&self, id: u32, nodes: &[Node]) -> GraphId {
        let (id, device) = (GraphId(id), DeviceId(0));
        let what = Create::Graph { id, device, nodes };
        self.create(what);
        id
    }

    pub fn device_memory(&self, bytes: u64) -> Address {
        let device = DeviceId(0);
        self.machine
            .reserve(Reserve::new(Memory::Device, device, bytes))
            .unwrap()
    }

    pub fn pinned(&self, bytes: &[u8]) -> Address {
        let len = bytes.len() as u64;
        let at = self
            .machine
            .reserve(Reserve::new(Memory::Pinned, DeviceId(0), len));
        let at = at.unwrap();
        // SAFETY: the memory was just reserved with this size, and has no other use yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer(at), bytes.len()) };
        at
    }

    /// Returns the contents of pinned memory, which must not be in use.
    pub fn look(&self, at: Address, bytes: usize) -> Vec<u8> {
        // SAFETY: the tests read memory that they reserved and have waited for.
        unsafe { std::slice::from_raw_parts(pointer(at), bytes) }.to_vec()
    }

    /// Downloads in a stream and waits.
    pub fn fetch(&self, stream: StreamId, at: Address, bytes: usize) -> Vec<u8> {
        let to = self.pinned(&vec![0; bytes]);
        self.download(stream, at, to, bytes as u64).unwrap();
        self.synchronize(stream).unwrap();
        self.look(to, bytes)
    }

    pub fn create(&self, what: Create<'_>) {
        // SAFETY: the tests create only what does not exist, and adopt nothing.
        unsafe { self.machine.create(what).unwrap() };
    }

    pub fn destroy(&self, what: Destroy) {
        // SAFETY: the tests have created it; later uses of it test that the machine detects them.
        unsafe { self.machine.destroy(what) };
    }

    pub fn unreserve(&self, memory: Memory, at: Address) {
        // SAFETY: the tests have reserved the memory and do not read it any more. The machine keeps it until
        // submitted work is complete, and detects later uses.
        unsafe { self.machine.unreserve(memory, DeviceId(0), at) };
    }

    pub fn submit(&self, kind: Kind, payload: Payload<'_>) -> Result<()> {
        self.submit_op(&self.op(kind), payload)
    }

    pub fn submit_op(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        // SAFETY: the memory is the machine's own, which detects accesses outside of it; the tests read pinned memory
        // after waiting.
        unsafe { self.machine.submit(op, payload) }
    }

    pub fn upload(&self, stream: StreamId, from: Address, to: Address, bytes: u64) -> Result<()> {
        let kind = copy_kind(stream, Memory::Pinned, Memory::Device);
        self.submit(kind, Payload::Copy(plain(from, to, bytes)))
    }

    pub fn download(&self, stream: StreamId, from: Address, to: Address, bytes: u64) -> Result<()> {
        let kind = copy_kind(stream, Memory::Device, Memory::Pinned);
        self.submit(kind, Payload::Copy(plain(from, to, bytes)))
    }

    pub fn fill(&self, stream: StreamId, at: Address, value: u32, count: u64) -> Result<()> {
        let fill = Fill {
            at,
            value,
            width: 4,
            count,
        };
        self.submit(Kind::Memset { stream }, Payload::Fill(fill))
    }

    pub fn launch(&self, stream: StreamId, code: &Arc<Code>, args: &[Arg]) -> Result<()> {
        let launch = Launch {
            code,
            grid: ONE_BLOCK,
            args,
        };
        let kind = Kind::kernel(stream);
        self.submit(kind, Payload::Launch(launch))
    }

    pub fn host_func(&self, stream: StreamId, f: impl FnOnce() + Send + 'static) -> Result<()> {
        let kind = Kind::HostFunc {
            stream,
            raises: None,
        };
        self.submit(kind, Payload::HostFunc(Box::new(f)))
    }

    pub fn record(&self, event: EventId, stream: StreamId) -> Result<()> {
        self.submit(Kind::Record { event, stream }, Payload::None)
    }

    pub fn wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        self.submit(Kind::Wait { stream, event }, Payload::None)
    }

    pub fn launch_graph(&self, stream: StreamId, graph: GraphId) -> Result<()> {
        self.submit(Kind::GraphLaunch { stream, graph }, Payload::Graph)
    }

    pub fn synchronize(&self, stream: StreamId) -> Result<bool> {
        let op = self.op(Kind::SyncStream { stream });
        self.machine.wait(&op, Duration::MAX)
    }

    pub fn query(&self, event: EventId) -> Result<bool> {
        let op = self.op(Kind::QueryEvent { event, done: false });
        self.machine.query(&op)
    }

    pub fn peek(&self, event: EventId) -> Result<bool> {
        let op = self.op(Kind::QueryEvent { event, done: false });
        self.machine.peek(&op)
    }
}

pub fn pointer(at: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at.0 as usize)
}

pub fn copy_kind(stream: StreamId, from: Memory, to: Memory) -> Kind {
    Kind::Copy { stream, from, to }
}

pub fn plain(from: Address, to: Address, bytes: u64) -> Copy {
    Copy {
        from,
        to,
        row_bytes: bytes,
        rows: 1,
        from_pitch: bytes,
        to_pitch: bytes,
    }
}

pub fn reads(at: Address, bytes: u64) -> Arg {
    Arg::Memory {
        at,
        bytes,
        mode: Mode::Read,
    }
}

pub fn writes(at: Address, bytes: u64) -> Arg {
    Arg::Memory {
        at,
        bytes,
        mode: Mode::Write,
    }
}

/// A kernel that adds its first argument to its second, byte by byte. It also overwrites the first one, which it has
/// not declared to write.
pub fn add(cost_ns: u64) -> Arc<Code> {
    code("add", cost_ns, |_, args| {
        let [HostArg::Memory(from), HostArg::Memory(to)] = args else {
            panic!("it takes two buffers");
        };
        for (to, from) in to.bytes_mut().iter_mut().zip(from.bytes()) {
            *to = to.wrapping_add(*from);
        }
        from.bytes_mut().fill(0xee);
    })
}

pub fn code(
    name: &str,
    cost_ns: u64,
    host: impl Fn(Grid, &mut [HostArg]) + Send + Sync + 'static,
) -> Arc<Code> {
    Arc::new(Code {
        host: Some(Box::new(host)),
        cost: Some(Box::new(move |_, _| KernelCost::Duration {
            ns: cost_ns,
            share: 1.0,
        })),
        ..Code::new(name)
    })
}

/// Returns a node of a graph; the stream of its op is ignored.
pub fn node(work: NodeWork, after: &[u32]) -> Node {
    let stream = StreamId(u32::MAX);
    let kind = match &work {
        NodeWork::Copy(copy) if copy.from.0 < copy.to.0 => {
            copy_kind(stream, Memory::Pinned, Memory::Device)
        }
        NodeWork::Copy(_) => copy_kind(stream, Memory::Device, Memory::Pinned),
        NodeWork::Fill(_) => Kind::Memset { stream },
        NodeWork::Launch { .. } => Kind::kernel(stream),
    };
    Node {
        op: Op {
            id: OpId(0),
            thread: ThreadId(0),
            site: SiteId(0),
            kind,
            accesses: Accesses::new(),
        },
        work,
        after: after.iter().copied().collect(),
    }
}

/// Returns all kinds of schedule, with several seeds for the random one.
pub fn schedules() -> impl Iterator<Item = Schedule> {
    let drawn = (0..40).map(Schedule::Seeded);
    [Schedule::InOrder, Schedule::Adversarial]
        .into_iter()
        .chain(drawn)
        .inspect(|schedule| println!("schedule {schedule}"))
}
