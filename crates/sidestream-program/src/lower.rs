//! From names to numbers: a program as the runtime's operations.

use std::collections::HashMap;

use sidestream::op::{
    self, Accesses, BufferId, DeviceId, EventId, FlagId, GraphId, Kind, Memory, Mode, OpId, SiteId,
    StreamId, StreamKind, ThreadId,
};
use sidestream::order::Order;

use crate::program::{Access, Act, BufferRef, EventRef, FlagRef, GraphRef, Program, StreamRef};

/// How many streams PyTorch's pool holds; the next request gets the first one again (R51).
pub const POOL_STREAMS: u32 = 32;

/// A program as the runtime sees it. Command `i` stands for op `i` of the program.
#[derive(Debug, Clone, Default)]
pub struct Lowered {
    /// The streams, by their id.
    pub streams: Vec<Stream>,
    /// The events, by their id: whether they keep times, and the device they belong to.
    pub events: Vec<(bool, Option<DeviceId>)>,
    /// The buffers, by their id.
    pub buffers: Vec<Buffer>,
    /// What is done, in order.
    pub commands: Vec<Command>,
}

/// A stream: its kind, its device, and a name for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// How it is ordered.
    pub kind: StreamKind,
    /// Where it runs.
    pub device: DeviceId,
    /// The (first) name that the program gives it.
    pub name: String,
}

/// One tenancy of memory. A name that is handed out twice is two buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// What the program calls it.
    pub name: BufferRef,
    /// The kind of memory.
    pub memory: Memory,
    /// Its size.
    pub size_bytes: u64,
    /// The earlier buffer on whose bytes it lies, and from which byte on; its own bytes if absent.
    pub over: Option<(BufferId, u64)>,
}

/// What one op of a program asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A call that CUDA or the caching allocator knows.
    Op(op::Op),
    /// The simulated device stops executing a stream.
    Hold(StreamId),
    /// It goes on.
    Release(StreamId),
    /// The allocator has room for so many equal blocks.
    SetCapacity {
        /// How many.
        blocks: u32,
    },
    /// Streams were taken from the pool.
    PoolGet {
        /// How many have been asked for so far, this time included.
        asked: u64,
    },
}

impl Lowered {
    /// The device with the highest index that the program uses.
    pub fn last_device(&self) -> DeviceId {
        let streams = self.streams.iter().map(|s| s.device);
        let ops = self.commands.iter().filter_map(|command| match command {
            Command::Op(op) => match op.kind {
                Kind::SetDevice { device } => Some(device),
                Kind::SyncDevice { device } => device,
                _ => None,
            },
            _ => None,
        });
        streams.chain(ops).max().unwrap_or(DeviceId(0))
    }

    /// Makes the streams and events known to a rule book that knows none yet, so that the ids of
    /// the commands mean the same there.
    pub fn declare(&self, order: &mut Order) {
        for (at, stream) in self.streams.iter().enumerate() {
            let id = order.add_stream(stream.kind, stream.device);
            assert_eq!(id.0 as usize, at, "the rule book knows streams already");
        }
        for &(timing, device) in &self.events {
            order.add_event(timing, device);
        }
    }
}

/// Turns a program into operations.
pub fn lower(program: &Program) -> Lowered {
    let mut lowering = Lowering::new(program);
    for (at, op) in program.ops.iter().enumerate() {
        let command = lowering.command(at, op);
        lowering.out.commands.push(command);
    }
    lowering.out
}

/// The stream pool of a device: what was handed out, and how often it was asked.
#[derive(Default)]
struct Pool {
    streams: HashMap<u64, StreamId>,
    asked: u64,
}

struct Lowering<'a> {
    program: &'a Program,
    out: Lowered,
    /// By name: what it stands for now.
    streams: Vec<StreamId>,
    buffers: Vec<Option<BufferId>>,
    /// By name: whether its memory came from the stream-ordered allocator; whether any allocation
    /// or free of that name was listed.
    stream_ordered: Vec<bool>,
    allocated: Vec<bool>,
    /// The pool of each device.
    pools: HashMap<DeviceId, Pool>,
}

impl<'a> Lowering<'a> {
    fn new(program: &'a Program) -> Lowering<'a> {
        let mut lowering = Lowering {
            program,
            out: Lowered::default(),
            streams: Vec::new(),
            buffers: vec![None; program.buffers.len()],
            stream_ordered: vec![false; program.buffers.len()],
            allocated: vec![false; program.buffers.len()],
            pools: HashMap::new(),
        };
        // A device has one legacy stream, however many names it is given.
        let mut legacy: HashMap<DeviceId, StreamId> = HashMap::new();
        for decl in &program.streams {
            let id = match decl.kind {
                StreamKind::Legacy => match legacy.get(&decl.device) {
                    Some(&known) => known,
                    None => {
                        let id = lowering.new_stream(decl.kind, decl.device, &decl.name);
                        legacy.insert(decl.device, id);
                        id
                    }
                },
                _ => lowering.new_stream(decl.kind, decl.device, &decl.name),
            };
            lowering.streams.push(id);
        }
        let events = program.events.iter();
        lowering.out.events = events.map(|event| (event.timing, event.device)).collect();
        lowering
    }

    fn command(&mut self, at: usize, op: &crate::program::Op) -> Command {
        let mut accesses = Accesses::new();
        let kind = match &op.act {
            Act::SimHold { stream } => return Command::Hold(self.stream(*stream)),
            Act::SimRelease { stream } => return Command::Release(self.stream(*stream)),
            Act::SetCapacity { blocks } => return Command::SetCapacity { blocks: *blocks },
            Act::PoolGet { count, first, last } => return self.pool_get(*count, *first, *last),
            act => self.kind(act, &mut accesses),
        };
        let site = op
            .site
            .map_or(self.program.sites.len() + at, |s| s.0 as usize);
        Command::Op(op::Op {
            id: OpId(at as u32),
            thread: ThreadId(op.thread.0),
            site: SiteId(site as u32),
            kind,
            accesses,
        })
    }

    fn kind(&mut self, act: &Act, accesses: &mut Accesses) -> Kind {
        match *act {
            Act::Kernel {
                stream,
                ref reads,
                ref writes,
                repeat,
            } => {
                self.uses(reads, writes, accesses);
                Kind::Kernel {
                    stream: self.stream(stream),
                    launches: repeat,
                }
            }
            Act::CopyAsync { stream, from, to } => {
                let (from, to) = self.copy(from, to, accesses);
                Kind::Copy {
                    stream: self.stream(stream),
                    from,
                    to,
                }
            }
            Act::MemsetAsync { stream, to } => {
                self.touch(to, Mode::Write, accesses);
                Kind::Memset {
                    stream: self.stream(stream),
                }
            }
            Act::Copy { from, to } => {
                let (from, to) = self.copy(from, to, accesses);
                Kind::CopyBlocking { from, to }
            }
            Act::Memset { to } => {
                let memory = self.touch(to, Mode::Write, accesses);
                Kind::MemsetBlocking { to: memory }
            }
            Act::HostFunc {
                stream,
                ref reads,
                ref writes,
                sets,
            } => {
                self.uses(reads, writes, accesses);
                Kind::HostFunc {
                    stream: self.stream(stream),
                    raises: sets.map(flag),
                }
            }
            Act::GraphLaunch {
                stream,
                graph,
                ref reads,
                ref writes,
            } => {
                self.uses(reads, writes, accesses);
                let GraphRef(graph) = graph;
                Kind::GraphLaunch {
                    stream: self.stream(stream),
                    graph: GraphId(graph),
                }
            }
            Act::Record { event, stream } => Kind::Record {
                event: event_id(event),
                stream: self.stream(stream),
            },
            Act::Wait { event, stream } => Kind::Wait {
                event: event_id(event),
                stream: self.stream(stream),
            },
            Act::WaitStream { stream, source } => Kind::WaitStream {
                stream: self.stream(stream),
                source: self.stream(source),
            },
            Act::SyncStream { stream } => Kind::SyncStream {
                stream: self.stream(stream),
            },
            Act::SyncEvent { event } => Kind::SyncEvent {
                event: event_id(event),
            },
            Act::SyncDevice { device } => Kind::SyncDevice { device },
            Act::QueryStream { stream, ready } => Kind::QueryStream {
                stream: self.stream(stream),
                done: ready,
            },
            Act::QueryEvent { event, ready } => Kind::QueryEvent {
                event: event_id(event),
                done: ready,
            },
            Act::SetFlag { flag: f } => Kind::SetFlag { flag: flag(f) },
            Act::WaitFlag { flag: f } => Kind::WaitFlag { flag: flag(f) },
            Act::HostRead { access } => {
                self.touch(access, Mode::Read, accesses);
                Kind::HostAccess
            }
            Act::HostWrite { access } => {
                self.touch(access, Mode::Write, accesses);
                Kind::HostAccess
            }
            Act::Alloc {
                buffer,
                stream,
                over,
                after_events,
                ..
            } => {
                let earlier = over.map(|over| self.resolve(over));
                let size = self.program.buffers[buffer.0 as usize].size_bytes;
                let whole_self = over.is_some_and(|over| {
                    over.buffer == buffer && self.program.range(over) == (0, size)
                });
                // A name that gets its own bytes again is the same buffer to a checker.
                let fresh = match earlier {
                    Some((same, ..)) if whole_self => same,
                    _ => self.new_tenancy(buffer, earlier),
                };
                self.stream_ordered[buffer.0 as usize] = false;
                Kind::Alloc {
                    buffer: fresh,
                    stream: stream.map(|s| self.stream(s)),
                    saw_events_of: earlier.filter(|_| after_events).map(|(id, ..)| id),
                }
            }
            Act::Free { buffer } => Kind::Free {
                buffer: self.buffer(buffer),
            },
            Act::RecordStream { buffer, stream } => Kind::RecordStream {
                buffer: self.buffer(buffer),
                stream: self.stream(stream),
            },
            Act::MallocAsync { buffer, stream } => {
                self.new_tenancy(buffer, None);
                self.stream_ordered[buffer.0 as usize] = true;
                self.touch(whole(buffer), Mode::Write, accesses);
                Kind::MallocAsync {
                    stream: self.stream(stream),
                }
            }
            Act::FreeAsync { buffer, stream } => {
                self.touch(whole(buffer), Mode::Write, accesses);
                Kind::FreeAsync {
                    stream: self.stream(stream),
                }
            }
            Act::CudaMalloc { buffer } => {
                self.new_tenancy(buffer, None);
                self.stream_ordered[buffer.0 as usize] = false;
                Kind::CudaMalloc
            }
            Act::CudaFree { buffer } => {
                self.touch(whole(buffer), Mode::Write, accesses);
                Kind::CudaFree {
                    stream_ordered: self.stream_ordered[buffer.0 as usize],
                }
            }
            Act::FreePinned { buffer } => {
                self.touch(whole(buffer), Mode::Write, accesses);
                Kind::FreePinned
            }
            Act::Elapsed { start, end } => Kind::Elapsed {
                from: event_id(start),
                to: event_id(end),
            },
            Act::CreateEvent { event } => Kind::CreateEvent {
                event: event_id(event),
            },
            Act::DestroyEvent { event } => Kind::DestroyEvent {
                event: event_id(event),
            },
            Act::CreateStream { stream } => {
                // A stream that is created is another one than whatever had its name before (R13).
                let decl = &self.program.streams[stream.0 as usize];
                if decl.kind != StreamKind::Legacy {
                    let fresh = self.new_stream(decl.kind, decl.device, &decl.name);
                    self.streams[stream.0 as usize] = fresh;
                }
                Kind::CreateStream {
                    stream: self.stream(stream),
                }
            }
            Act::DestroyStream { stream } => Kind::DestroyStream {
                stream: self.stream(stream),
            },
            Act::SetDevice { device } => Kind::SetDevice { device },
            Act::BeginCapture { stream } => Kind::BeginCapture {
                stream: self.stream(stream),
            },
            Act::EndCapture { stream } => Kind::EndCapture {
                stream: self.stream(stream),
            },
            Act::SimHold { .. }
            | Act::SimRelease { .. }
            | Act::SetCapacity { .. }
            | Act::PoolGet { .. } => unreachable!("commands of the simulator, handled above"),
        }
    }

    /// R51: round robin over the pool of a device; two names may be one stream.
    fn pool_get(&mut self, count: u32, first: StreamRef, last: StreamRef) -> Command {
        let device = self.program.streams[first.0 as usize].device;
        let mut pool = self.pools.remove(&device).unwrap_or_default();
        let size = u64::from(POOL_STREAMS);
        let slots = [
            (first, pool.asked % size),
            (last, (pool.asked + u64::from(count) - 1) % size),
        ];
        for (name, slot) in slots {
            let label = &self.program.streams[name.0 as usize].name;
            let new = || self.new_stream(StreamKind::NonBlocking, device, label);
            let id = *pool.streams.entry(slot).or_insert_with(new);
            self.streams[name.0 as usize] = id;
        }
        pool.asked += u64::from(count);
        let asked = pool.asked;
        self.pools.insert(device, pool);
        Command::PoolGet { asked }
    }

    fn new_stream(&mut self, kind: StreamKind, device: DeviceId, name: &str) -> StreamId {
        self.out.streams.push(Stream {
            kind,
            device,
            name: name.to_owned(),
        });
        StreamId(self.out.streams.len() as u32 - 1)
    }

    /// The buffer that a name stands for now.
    fn buffer(&mut self, name: BufferRef) -> BufferId {
        match self.buffers[name.0 as usize] {
            Some(id) => id,
            None => self.add_buffer(name, None),
        }
    }

    /// A name is handed out. The first time, what was listed before meant the same memory; after
    /// that it is another tenancy.
    fn new_tenancy(&mut self, name: BufferRef, over: Option<(BufferId, u64, u64)>) -> BufferId {
        let again = std::mem::replace(&mut self.allocated[name.0 as usize], true);
        match self.buffers[name.0 as usize] {
            Some(id) if !again && over.is_none() => id,
            _ => self.add_buffer(name, over),
        }
    }

    fn add_buffer(&mut self, name: BufferRef, over: Option<(BufferId, u64, u64)>) -> BufferId {
        let decl = &self.program.buffers[name.0 as usize];
        let id = BufferId(self.out.buffers.len() as u32);
        self.out.buffers.push(Buffer {
            name,
            memory: decl.memory,
            // What is handed out over some bytes has no others.
            size_bytes: over.map_or(decl.size_bytes, |(_, start, end)| {
                decl.size_bytes.min(end - start)
            }),
            over: over.map(|(below, start, _)| (below, start)),
        });
        self.buffers[name.0 as usize] = Some(id);
        id
    }

    fn uses(&mut self, reads: &[Access], writes: &[Access], accesses: &mut Accesses) {
        for &access in reads {
            self.touch(access, Mode::Read, accesses);
        }
        for &access in writes {
            self.touch(access, Mode::Write, accesses);
        }
    }

    fn copy(&mut self, from: Access, to: Access, accesses: &mut Accesses) -> (Memory, Memory) {
        let from = self.touch(from, Mode::Read, accesses);
        let to = self.touch(to, Mode::Write, accesses);
        (from, to)
    }

    fn touch(&mut self, access: Access, mode: Mode, accesses: &mut Accesses) -> Memory {
        let (buffer, start, end) = self.resolve(access);
        accesses.push(op::Access {
            buffer,
            start,
            end,
            mode,
        });
        self.out.buffers[buffer.0 as usize].memory
    }

    /// The bytes that an access means now.
    fn resolve(&mut self, access: Access) -> (BufferId, u64, u64) {
        let (start, end) = self.program.range(access);
        let buffer = self.buffer(access.buffer);
        let size = self.out.buffers[buffer.0 as usize].size_bytes;
        (buffer, start.min(size), end.min(size))
    }

    fn stream(&self, name: StreamRef) -> StreamId {
        self.streams[name.0 as usize]
    }
}

fn whole(buffer: BufferRef) -> Access {
    Access {
        buffer,
        range: None,
    }
}

fn event_id(event: EventRef) -> EventId {
    EventId(event.0)
}

fn flag(flag: FlagRef) -> FlagId {
    FlagId(flag.0)
}
