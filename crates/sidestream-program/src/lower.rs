//! From names to numbers: a program as the runtime's operations.

use std::collections::HashMap;
use std::convert::Infallible;

use sidestream::op::{
    self, Accesses, BufferId, DeviceId, Kind, Memory, Mode, Named, OpId, SiteId, StreamId,
    StreamKind,
};
use sidestream::order::Order;

use crate::program::{Access, BufferRef, Fields, Program, StreamDecl, StreamRef};
use crate::verbs::Verb;

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
    /// How urgent its kernels are; lower is more urgent.
    pub priority: i32,
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
        let ops = self.commands.iter().filter_map(|command| {
            let Command::Op(op) = command else {
                return None;
            };
            let (mut kind, mut last) = (op.kind, None);
            let Ok(()) = kind.each_named(|named| {
                if let Named::Device(device) = named {
                    last = last.max(Some(*device));
                }
                Ok::<(), Infallible>(())
            });
            last
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
///
/// # Panics
/// If an op lacks a field that its verb needs. Those that were read have them all.
pub fn lower(program: &Program) -> Lowered {
    let mut lowering = Lowering::new(program);
    for (at, op) in program.ops.iter().enumerate() {
        let command = lowering.command(at, op);
        let command = command.unwrap_or_else(|| panic!("op {at} lacks a field of {:?}", op.verb));
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

/// What the name of a buffer stands for now.
#[derive(Clone, Copy, Default)]
struct Tenancy {
    buffer: Option<BufferId>,
    /// Whether it came from the stream-ordered allocator.
    stream_ordered: bool,
    /// Whether any allocation of that name was listed.
    allocated: bool,
}

struct Lowering<'a> {
    program: &'a Program,
    out: Lowered,
    /// By name: what it stands for now.
    streams: Vec<StreamId>,
    buffers: Vec<Tenancy>,
    /// The pool of each device.
    pools: HashMap<DeviceId, Pool>,
}

impl<'a> Lowering<'a> {
    fn new(program: &'a Program) -> Lowering<'a> {
        let mut lowering = Lowering {
            program,
            out: Lowered::default(),
            streams: Vec::new(),
            buffers: vec![Tenancy::default(); program.buffers.len()],
            pools: HashMap::new(),
        };
        // A device has one legacy stream, however many names it is given.
        let mut legacy: HashMap<DeviceId, StreamId> = HashMap::new();
        for decl in &program.streams {
            let id = match decl.kind {
                StreamKind::Legacy => match legacy.get(&decl.device) {
                    Some(&known) => known,
                    None => {
                        let id = lowering.new_stream(decl);
                        legacy.insert(decl.device, id);
                        id
                    }
                },
                _ => lowering.new_stream(decl),
            };
            lowering.streams.push(id);
        }
        let events = program.events.iter();
        lowering.out.events = events.map(|event| (event.timing, event.device)).collect();
        lowering
    }

    /// What an op asks for; nothing if it lacks a field that its verb needs.
    fn command(&mut self, at: usize, op: &crate::program::Op) -> Option<Command> {
        let fields = &op.fields;
        let stream = fields.stream.map(|name| self.stream(name));
        Some(match op.verb {
            Verb::SimHold => Command::Hold(stream?),
            Verb::SimRelease => Command::Release(stream?),
            Verb::SetCapacity => Command::SetCapacity {
                blocks: fields.number?,
            },
            Verb::PoolGet => self.pool_get(fields.number?, fields.stream?, fields.source?),
            _ => {
                let mut accesses = Accesses::new();
                let kind = self.kind(op, &mut accesses)?;
                let own = SiteId((self.program.sites.len() + at) as u32);
                Command::Op(op::Op {
                    id: OpId(at as u32),
                    thread: op.thread,
                    site: op.site.unwrap_or(own),
                    kind,
                    accesses,
                })
            }
        })
    }

    fn kind(&mut self, op: &crate::program::Op, accesses: &mut Accesses) -> Option<Kind> {
        let fields = &op.fields;
        for &read in &fields.reads {
            self.touch(read, Mode::Read, accesses);
        }
        for &write in &fields.writes {
            self.touch(write, Mode::Write, accesses);
        }
        let memory = |at: usize, accesses: &Accesses| {
            let buffer = accesses.get(at)?.buffer;
            Some(self.out.buffers[buffer.0 as usize].memory)
        };
        let stream = fields.stream.map(|name| self.stream(name));
        Some(match op.verb {
            Verb::Kernel => Kind::Kernel {
                stream: stream?,
                launches: fields.number.unwrap_or(1),
            },
            Verb::CopyAsync => Kind::Copy {
                stream: stream?,
                from: memory(0, accesses)?,
                to: memory(1, accesses)?,
            },
            Verb::CopyPeer => Kind::CopyPeer {
                stream: stream?,
                peer: fields.device?,
            },
            Verb::MemsetAsync => Kind::Memset { stream: stream? },
            Verb::Copy => Kind::CopyBlocking {
                from: memory(0, accesses)?,
                to: memory(1, accesses)?,
            },
            Verb::Memset => Kind::MemsetBlocking {
                to: memory(0, accesses)?,
            },
            Verb::HostFunc => Kind::HostFunc {
                stream: stream?,
                raises: fields.flag,
            },
            Verb::GraphLaunch => Kind::GraphLaunch {
                stream: stream?,
                graph: fields.graph?,
            },
            Verb::Record => Kind::Record {
                event: fields.event?,
                stream: stream?,
            },
            Verb::Wait => Kind::Wait {
                event: fields.event?,
                stream: stream?,
            },
            Verb::WaitStream => Kind::WaitStream {
                stream: stream?,
                source: self.stream(fields.source?),
            },
            Verb::SyncStream => Kind::SyncStream { stream: stream? },
            Verb::SyncEvent => Kind::SyncEvent {
                event: fields.event?,
            },
            Verb::SyncDevice => Kind::SyncDevice {
                device: fields.device,
            },
            Verb::QueryStream => Kind::QueryStream {
                stream: stream?,
                done: fields.yes,
            },
            Verb::QueryEvent => Kind::QueryEvent {
                event: fields.event?,
                done: fields.yes,
            },
            Verb::SetFlag => Kind::SetFlag { flag: fields.flag? },
            Verb::WaitFlag => Kind::WaitFlag { flag: fields.flag? },
            Verb::HostRead | Verb::HostWrite => Kind::HostAccess,
            Verb::Alloc => self.alloc(fields, stream)?,
            Verb::Free => Kind::Free {
                buffer: self.buffer(fields.buffer?),
            },
            Verb::RecordStream => Kind::RecordStream {
                buffer: self.buffer(fields.buffer?),
                stream: stream?,
            },
            Verb::MallocAsync => {
                self.new_tenancy(fields.buffer?, None);
                self.buffers[fields.buffer?.0 as usize].stream_ordered = true;
                self.touch(whole(fields.buffer?), Mode::Write, accesses);
                Kind::MallocAsync { stream: stream? }
            }
            Verb::FreeAsync => {
                self.touch(whole(fields.buffer?), Mode::Write, accesses);
                Kind::FreeAsync { stream: stream? }
            }
            Verb::CudaMalloc => {
                self.new_tenancy(fields.buffer?, None);
                self.buffers[fields.buffer?.0 as usize].stream_ordered = false;
                Kind::CudaMalloc
            }
            Verb::CudaFree => {
                self.touch(whole(fields.buffer?), Mode::Write, accesses);
                Kind::CudaFree {
                    stream_ordered: self.buffers[fields.buffer?.0 as usize].stream_ordered,
                }
            }
            Verb::FreePinned => {
                self.touch(whole(fields.buffer?), Mode::Write, accesses);
                Kind::FreePinned
            }
            Verb::Elapsed => Kind::Elapsed {
                from: fields.event?,
                to: fields.later?,
            },
            Verb::CreateEvent => Kind::CreateEvent {
                event: fields.event?,
            },
            Verb::DestroyEvent => Kind::DestroyEvent {
                event: fields.event?,
            },
            Verb::CreateStream => Kind::CreateStream {
                stream: self.create_stream(fields.stream?),
            },
            Verb::DestroyStream => Kind::DestroyStream { stream: stream? },
            Verb::SetDevice => Kind::SetDevice {
                device: fields.device?,
            },
            Verb::BeginCapture => Kind::BeginCapture { stream: stream? },
            Verb::EndCapture => Kind::EndCapture { stream: stream? },
            // No calls, but commands of the simulator.
            Verb::SimHold | Verb::SimRelease | Verb::SetCapacity | Verb::PoolGet => return None,
        })
    }

    fn alloc(&mut self, fields: &Fields, stream: Option<StreamId>) -> Option<Kind> {
        let name = fields.buffer?;
        let earlier = fields.over.map(|over| self.resolve(over));
        let size = self.program.buffers[name.0 as usize].size_bytes;
        let is_all_of_itself =
            |over: Access| over.buffer == name && self.program.range(over) == (0, size);
        // A name that gets its own bytes again is the same buffer to a checker.
        let buffer = match earlier {
            Some((same, ..)) if fields.over.is_some_and(is_all_of_itself) => same,
            _ => self.new_tenancy(name, earlier),
        };
        self.buffers[name.0 as usize].stream_ordered = false;
        Some(Kind::Alloc {
            buffer,
            stream,
            saw_events_of: earlier.filter(|_| fields.yes).map(|(id, ..)| id),
        })
    }

    /// A stream that is created is another one than whatever had its name before (R13).
    fn create_stream(&mut self, name: StreamRef) -> StreamId {
        let decl = &self.program.streams[name.0 as usize];
        if decl.kind != StreamKind::Legacy {
            self.streams[name.0 as usize] = self.new_stream(decl);
        }
        self.stream(name)
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
            // It is the pool's kind and device, whatever the name was declared for.
            let decl = StreamDecl {
                kind: StreamKind::NonBlocking,
                device,
                ..self.program.streams[name.0 as usize].clone()
            };
            let new = || self.new_stream(&decl);
            let id = *pool.streams.entry(slot).or_insert_with(new);
            self.streams[name.0 as usize] = id;
        }
        pool.asked += u64::from(count);
        let asked = pool.asked;
        self.pools.insert(device, pool);
        Command::PoolGet { asked }
    }

    fn new_stream(&mut self, decl: &StreamDecl) -> StreamId {
        self.out.streams.push(Stream {
            kind: decl.kind,
            device: decl.device,
            priority: decl.priority,
            name: decl.name.clone(),
        });
        StreamId(self.out.streams.len() as u32 - 1)
    }

    /// The buffer that a name stands for now.
    fn buffer(&mut self, name: BufferRef) -> BufferId {
        match self.buffers[name.0 as usize].buffer {
            Some(id) => id,
            None => self.add_buffer(name, None),
        }
    }

    /// A name is handed out. The first time, what was listed before meant the same memory; after
    /// that it is another tenancy.
    fn new_tenancy(&mut self, name: BufferRef, over: Option<(BufferId, u64, u64)>) -> BufferId {
        let tenancy = &mut self.buffers[name.0 as usize];
        let again = std::mem::replace(&mut tenancy.allocated, true);
        match tenancy.buffer {
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
        self.buffers[name.0 as usize].buffer = Some(id);
        id
    }

    fn touch(&mut self, access: Access, mode: Mode, accesses: &mut Accesses) {
        let (buffer, start, end) = self.resolve(access);
        accesses.push(op::Access {
            buffer,
            start,
            end,
            mode,
        });
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
