//! Lowers a program from names to ids: to the operations of the runtime.

use std::collections::HashMap;
use std::convert::Infallible;

use sidestream::op::{
    self, Accesses, BufferId, DeviceId, Field, Kind, Memory, Mode, Named, OpId, SiteId, StreamId,
    StreamKind,
};
use sidestream::order::Order;

use crate::program::{Access, BufferRef, Fields, Program, StreamDecl, StreamRef};
use crate::verbs::Verb;

/// Number of streams in PyTorch's pool; the next request returns the first one again (R51).
pub const POOL_STREAMS: u32 = 32;

/// A program as the runtime's operations. Command `i` is op `i` of the program.
#[derive(Debug, Clone, Default)]
pub struct Lowered {
    /// Streams by id.
    pub streams: Vec<Stream>,
    /// Events by id: whether the event has timing, and the device that it belongs to.
    pub events: Vec<(bool, Option<DeviceId>)>,
    /// Buffers by id.
    pub buffers: Vec<Buffer>,
    /// Commands in order.
    pub commands: Vec<Command>,
}

/// A stream: its kind, its device, and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// How the stream is ordered with respect to other streams.
    pub kind: StreamKind,
    /// Device of the stream.
    pub device: DeviceId,
    /// Priority of its kernels; lower is more urgent.
    pub priority: i32,
    /// The (first) name in the program.
    pub name: String,
}

/// One tenancy of memory. A name that is allocated twice refers to two buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// Name in the program.
    pub name: BufferRef,
    /// Kind of memory.
    pub memory: Memory,
    /// Size in bytes.
    pub size_bytes: u64,
    /// The earlier buffer whose bytes it uses, and the offset in it; none if it has bytes of its own.
    pub over: Option<(BufferId, u64)>,
}

/// What one op of a program does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A call that CUDA or the caching allocator handles.
    Op(op::Op),
    /// The simulated device stops executing a stream.
    Hold(StreamId),
    /// The simulated device resumes the stream.
    Release(StreamId),
    /// Limits the allocator to this many equal blocks.
    SetCapacity {
        /// Number of blocks.
        blocks: u32,
    },
    /// Takes streams from the pool.
    PoolGet {
        /// Number of streams requested so far, including this op.
        asked: u64,
    },
}

impl Lowered {
    /// Returns the device with the highest index that the program uses.
    pub fn last_device(&self) -> DeviceId {
        let streams = self.streams.iter().map(|s| s.device);
        let mut last = streams.max().unwrap_or_default();
        for mut kind in self.ops().map(|op| op.kind) {
            let Ok(()) = kind.each_named(|named| {
                if let Named::Device(device) = named {
                    last = last.max(*device);
                }
                Ok::<(), Infallible>(())
            });
        }
        last
    }

    /// Returns the calls that CUDA or the caching allocator handles.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &op::Op> {
        self.commands.iter().filter_map(Command::op)
    }

    /// Returns the number of bytes in memory of some kinds.
    pub(crate) fn own_bytes(&self, of: impl Fn(Memory) -> bool) -> u64 {
        let own = self
            .buffers
            .iter()
            .filter(|b| b.over.is_none() && of(b.memory));
        own.map(|b| b.size_bytes).fold(0, u64::saturating_add)
    }

    /// Returns the device of a stream.
    pub(crate) fn device_of(&self, stream: StreamId) -> DeviceId {
        self.streams[stream.0 as usize].device
    }

    /// Declares the streams and events in an empty rule book, so that they get the ids that the commands use.
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

impl Command {
    /// Returns the call, unless it is one that only the simulator knows.
    pub(crate) fn op(&self) -> Option<&op::Op> {
        match self {
            Command::Op(op) => Some(op),
            _ => None,
        }
    }
}

/// Lowers a program to operations.
///
/// # Panics
/// If an op lacks a field that its verb needs, which ops from the reader never do.
pub fn lower(program: &Program) -> Lowered {
    let mut lowering = Lowering::new(program);
    for (at, op) in program.ops.iter().enumerate() {
        let command = lowering.command(at, op);
        let command = command.unwrap_or_else(|| panic!("op {at} lacks a field of {:?}", op.verb));
        lowering.out.commands.push(command);
    }
    lowering.out
}

/// The stream pool of a device: the streams handed out, and the number of requests.
#[derive(Default)]
struct Pool {
    streams: HashMap<u64, StreamId>,
    asked: u64,
}

/// The buffer that a name currently refers to.
#[derive(Clone, Copy, Default)]
struct Tenancy {
    buffer: Option<BufferId>,
    /// Whether the buffer came from the stream-ordered allocator.
    stream_ordered: bool,
    /// Whether an earlier op allocates this name.
    allocated: bool,
}

struct Lowering<'a> {
    program: &'a Program,
    out: Lowered,
    /// The stream that each name currently refers to.
    streams: Vec<StreamId>,
    buffers: Vec<Tenancy>,
    /// Stream pools by device.
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
        // A device has one legacy stream, however many names that stream has.
        let mut legacy: HashMap<DeviceId, StreamId> = HashMap::new();
        for decl in &program.streams {
            let mut new = || lowering.new_stream(decl);
            let id = match decl.kind {
                StreamKind::Legacy => *legacy.entry(decl.device).or_insert_with(new),
                _ => new(),
            };
            lowering.streams.push(id);
        }
        let events = program.events.iter();
        lowering.out.events = events.map(|event| (event.timing, event.device)).collect();
        lowering
    }

    /// Returns what an op does; none if it lacks a field that its verb needs.
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
        let lists = [
            (&fields.reads, Mode::Read),
            (&fields.writes, Mode::Write),
            (&fields.may_write, Mode::MayWrite),
            (&fields.atomic, Mode::Atomic),
        ];
        for (list, mode) in lists {
            for &access in list {
                self.touch(access, mode, accesses);
            }
        }
        let stream = fields.stream.map(|name| self.stream(name));
        if op.verb == Verb::Alloc {
            return self.alloc(fields, stream);
        }
        self.act(op.verb, fields, accesses)?;
        let mut kind = match op.verb.call()? {
            Kind::Kernel { stream, .. } if fields.yes => Kind::DependentKernel {
                stream,
                may_wait: true,
            },
            kind => kind,
        };
        let mut streams = [fields.stream, fields.source].into_iter().flatten();
        let mut events = [fields.event, fields.later].into_iter().flatten();
        let mut set = |field: Field<'_>| {
            match field {
                Field::Stream(id) => *id = self.stream(streams.next()?),
                Field::SomeStream(id) => *id = streams.next().map(|name| self.stream(name)),
                Field::Event(id) => *id = events.next()?,
                Field::Graph(id) => *id = fields.graph?,
                Field::Flag(id) => *id = fields.flag?,
                Field::SomeFlag(id) => *id = fields.flag,
                Field::Device(id) => *id = fields.device?,
                Field::SomeDevice(id) => *id = fields.device,
                Field::Buffer(id) => *id = self.buffer(fields.buffer?),
                Field::Memory(to) => *to = self.memory(accesses.first()?),
                Field::Memories(from, to) => {
                    *from = self.memory(accesses.first()?);
                    *to = self.memory(accesses.get(1)?);
                }
                Field::SourceOrder(order) => *order = fields.source_order.unwrap_or_default(),
                Field::Compare(compare) => *compare = fields.compare.unwrap_or_default(),
                Field::Count(launches) if op.verb == Verb::Kernel => {
                    *launches = fields.number.unwrap_or(1);
                }
                Field::Count(value) => *value = fields.number?,
                Field::Yes(yes) => {
                    *yes = match op.verb {
                        Verb::WriteValue => !fields.yes,
                        Verb::CudaFree => self.buffers[fields.buffer?.0 as usize].stream_ordered,
                        _ => fields.yes,
                    }
                }
                // Only an allocation has one.
                Field::SomeBuffer(_) => return None,
            }
            Some(())
        };
        kind.each_field(|field| set(field).ok_or(())).ok()?;
        Some(kind)
    }

    /// Does what an op does to the buffer or the stream that its name refers to.
    fn act(&mut self, verb: Verb, fields: &Fields, accesses: &mut Accesses) -> Option<()> {
        match verb {
            Verb::MallocAsync | Verb::CudaMalloc => {
                self.new_tenancy(fields.buffer?, None);
                let is_async = verb == Verb::MallocAsync;
                self.buffers[fields.buffer?.0 as usize].stream_ordered = is_async;
                if is_async {
                    self.touch(Access::whole(fields.buffer?), Mode::Write, accesses);
                }
            }
            Verb::FreeAsync | Verb::CudaFree | Verb::FreePinned | Verb::Unregister => {
                self.touch(Access::whole(fields.buffer?), Mode::Write, accesses);
            }
            Verb::CreateStream => self.create_stream(fields.stream?),
            _ => {}
        }
        Some(())
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

    /// A created stream is not the stream that had its name before (R13).
    fn create_stream(&mut self, name: StreamRef) {
        let decl = &self.program.streams[name.0 as usize];
        if decl.kind != StreamKind::Legacy {
            self.streams[name.0 as usize] = self.new_stream(decl);
        }
    }

    /// R51: round robin over the pool of a device; two names may refer to one stream.
    fn pool_get(&mut self, count: u32, first: StreamRef, last: StreamRef) -> Command {
        let device = self.program.streams[first.0 as usize].device;
        let mut pool = self.pools.remove(&device).unwrap_or_default();
        let size = u64::from(POOL_STREAMS);
        let slots = [
            (first, pool.asked % size),
            (last, (pool.asked + u64::from(count) - 1) % size),
        ];
        for (name, slot) in slots {
            // Pool streams have the pool's kind and device, regardless of the declaration of the name.
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

    /// Returns the buffer that a name currently refers to.
    fn buffer(&mut self, name: BufferRef) -> BufferId {
        match self.buffers[name.0 as usize].buffer {
            Some(id) => id,
            None => self.add_buffer(name, None),
        }
    }

    /// Starts a tenancy of a name. At the first one, earlier ops meant the same memory; later ones are different
    /// tenancies.
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
            // A buffer over existing bytes has exactly the size of that range.
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

    /// Returns the bytes that an access currently refers to.
    fn resolve(&mut self, access: Access) -> (BufferId, u64, u64) {
        let (start, end) = self.program.range(access);
        let buffer = self.buffer(access.buffer);
        let size = self.out.buffers[buffer.0 as usize].size_bytes;
        (buffer, start.min(size), end.min(size))
    }

    fn memory(&self, access: &op::Access) -> Memory {
        self.out.buffers[access.buffer.0 as usize].memory
    }

    fn stream(&self, name: StreamRef) -> StreamId {
        self.streams[name.0 as usize]
    }
}
