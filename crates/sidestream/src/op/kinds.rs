//! What there is to know of each kind of call: its names, its class and the ids that it names.
//!
//! Other modules ask here, or match on [`Class`], so that a new kind is decided upon in one table. Where
//! a module treats kinds apart it lists them all: Clippy refuses `_` there.

use super::{BufferId, DeviceId, EventId, FlagId, GraphId, Kind, Memory, StreamId};

/// What a call is to those that treat many kinds alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A kernel.
    Kernel,
    /// A copy, in the order of a stream.
    Copy {
        /// Memory of the source.
        from: Memory,
        /// Memory of the destination.
        to: Memory,
        /// It is `cudaMemcpy`, in the legacy stream of the thread's device.
        is_blocking: bool,
        /// The other device that takes part, where the call names one.
        peer: Option<DeviceId>,
    },
    /// A memset, in the order of a stream.
    Memset {
        /// It is `cudaMemset`, in the legacy stream of the thread's device.
        is_blocking: bool,
    },
    /// A function on the host, in the order of a stream.
    HostFunc,
    /// A launch of a graph.
    Graph,
    /// Takes memory in the order of a stream.
    MallocAsync,
    /// Gives memory back in the order of a stream.
    FreeAsync,
    /// Notes in an event what a stream has.
    Record,
    /// Makes a stream wait.
    Wait,
    /// Makes the host wait.
    Sync(Until),
    /// Asks whether something is over.
    Query(Until),
    /// Takes memory from the driver, outside of all streams.
    Malloc,
    /// Gives memory back to the driver, outside of all streams.
    Free,
    /// Something that the caching allocator does.
    Allocator,
    /// Makes or destroys an event or a stream.
    Make,
    /// The thread itself reads or writes memory.
    HostAccess,
    /// Any other call that puts nothing into a stream.
    Host,
}

/// What the host waits for or asks about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// What a stream has.
    Stream(StreamId),
    /// The last record of an event.
    Event(EventId),
    /// All that a device has; the thread's current one if absent.
    Device(Option<DeviceId>),
}

impl Class {
    /// Whether it is work in a stream, which reads or writes memory there.
    #[inline]
    pub fn is_work(self) -> bool {
        matches!(
            self,
            Class::Kernel
                | Class::Copy { .. }
                | Class::Memset { .. }
                | Class::HostFunc
                | Class::Graph
        )
    }
}

/// An id that a call names.
#[derive(PartialEq, Eq, Debug)]
pub enum Named<'a> {
    /// A stream.
    Stream(&'a mut StreamId),
    /// An event.
    Event(&'a mut EventId),
    /// A buffer.
    Buffer(&'a mut BufferId),
    /// A flag.
    Flag(&'a mut FlagId),
    /// A graph.
    Graph(&'a mut GraphId),
    /// A device.
    Device(&'a mut DeviceId),
}

/// What a call says besides what was called.
pub(crate) enum Field<'a> {
    Id(Named<'a>),
    SomeStream(&'a mut Option<StreamId>),
    SomeBuffer(&'a mut Option<BufferId>),
    SomeFlag(&'a mut Option<FlagId>),
    SomeDevice(&'a mut Option<DeviceId>),
    MemoryOf(&'a mut Memory),
    /// Of the source and of the destination.
    Memories(&'a mut Memory, &'a mut Memory),
    Count(&'a mut u32),
    Yes(&'a mut bool),
}

impl Kind {
    /// The kind of this code, each field of which is the first or the least that there is.
    pub fn of_code(code: u8) -> Option<Kind> {
        let (stream, event, buffer) = (StreamId(0), EventId(0), BufferId(0));
        let (flag, graph, device) = (FlagId(0), GraphId(0), DeviceId(0));
        let (source, launches, done) = (stream, 1, false);
        let (from, to) = (Memory::Device, Memory::Device);
        Some(match code {
            0 => Kind::Kernel { stream, launches },
            1 => Kind::Copy { stream, from, to },
            2 => Kind::Memset { stream },
            3 => Kind::CopyBlocking { from, to },
            4 => Kind::MemsetBlocking { to },
            5 => Kind::HostFunc {
                stream,
                raises: None,
            },
            6 => Kind::GraphLaunch { stream, graph },
            7 => Kind::MallocAsync { stream },
            8 => Kind::FreeAsync { stream },
            9 => Kind::Record { event, stream },
            10 => Kind::Wait { stream, event },
            11 => Kind::WaitStream { stream, source },
            12 => Kind::SyncStream { stream },
            13 => Kind::SyncEvent { event },
            14 => Kind::SyncDevice { device: None },
            15 => Kind::QueryStream { stream, done },
            16 => Kind::QueryEvent { event, done },
            17 => Kind::SetFlag { flag },
            18 => Kind::WaitFlag { flag },
            19 => Kind::HostAccess,
            20 => Kind::Alloc {
                buffer,
                stream: None,
                saw_events_of: None,
            },
            21 => Kind::RecordStream { buffer, stream },
            22 => Kind::Free { buffer },
            23 => Kind::CudaMalloc,
            24 => Kind::CudaFree {
                stream_ordered: false,
            },
            25 => Kind::FreePinned,
            26 => Kind::Elapsed {
                from: event,
                to: event,
            },
            27 => Kind::CreateEvent { event },
            28 => Kind::DestroyEvent { event },
            29 => Kind::CreateStream { stream },
            30 => Kind::DestroyStream { stream },
            31 => Kind::SetDevice { device },
            32 => Kind::BeginCapture { stream },
            33 => Kind::EndCapture { stream },
            34 => Kind::CopyPeer {
                stream,
                peer: device,
            },
            _ => return None,
        })
    }

    /// Its code in a log, its name for people, the function of CUDA's runtime that makes it (ours have names of
    /// their own), and its class.
    #[inline(always)]
    fn row(&self) -> (u8, &'static str, &'static str, Class) {
        let copy = |from, to, is_blocking| Class::Copy {
            from,
            to,
            is_blocking,
            peer: None,
        };
        let across = |peer| Class::Copy {
            from: Memory::Device,
            to: Memory::Device,
            is_blocking: false,
            peer: Some(peer),
        };
        let memset = |is_blocking| Class::Memset { is_blocking };
        let sync = |code, function, until| (code, "synchronize", function, Class::Sync(until));
        let query = |code, function, until| (code, "query", function, Class::Query(until));
        match *self {
            Kind::Kernel { .. } => (0, "kernel", "cudaLaunchKernel", Class::Kernel),
            Kind::Copy { from, to, .. } => (1, "copy", "cudaMemcpyAsync", copy(from, to, false)),
            Kind::CopyPeer { peer, .. } => (34, "copy", "cudaMemcpyPeerAsync", across(peer)),
            Kind::Memset { .. } => (2, "memset", "cudaMemsetAsync", memset(false)),
            Kind::CopyBlocking { from, to } => (3, "copy", "cudaMemcpy", copy(from, to, true)),
            Kind::MemsetBlocking { .. } => (4, "memset", "cudaMemset", memset(true)),
            Kind::HostFunc { .. } => (5, "host function", "cudaLaunchHostFunc", Class::HostFunc),
            Kind::GraphLaunch { .. } => (6, "graph launch", "cudaGraphLaunch", Class::Graph),
            Kind::MallocAsync { .. } => (7, "malloc_async", "cudaMallocAsync", Class::MallocAsync),
            Kind::FreeAsync { .. } => (8, "free_async", "cudaFreeAsync", Class::FreeAsync),
            Kind::Record { .. } => (9, "record", "cudaEventRecord", Class::Record),
            Kind::Wait { .. } => (10, "wait", "cudaStreamWaitEvent", Class::Wait),
            Kind::WaitStream { .. } => (11, "wait_stream", "cudaStreamWaitEvent", Class::Wait),
            Kind::SyncStream { stream } => sync(12, "cudaStreamSynchronize", Until::Stream(stream)),
            Kind::SyncEvent { event } => sync(13, "cudaEventSynchronize", Until::Event(event)),
            Kind::SyncDevice { device } => sync(14, "cudaDeviceSynchronize", Until::Device(device)),
            Kind::QueryStream { stream, .. } => query(15, "cudaStreamQuery", Until::Stream(stream)),
            Kind::QueryEvent { event, .. } => query(16, "cudaEventQuery", Until::Event(event)),
            Kind::SetFlag { .. } => (17, "call", "raise flag", Class::Host),
            Kind::WaitFlag { .. } => (18, "call", "wait for flag", Class::Host),
            Kind::HostAccess => (19, "call", "host access", Class::HostAccess),
            Kind::Alloc { .. } => (20, "call", "allocate", Class::Allocator),
            Kind::RecordStream { .. } => (21, "call", "record_stream", Class::Allocator),
            Kind::Free { .. } => (22, "call", "free", Class::Allocator),
            Kind::CudaMalloc => (23, "call", "cudaMalloc", Class::Malloc),
            Kind::CudaFree { .. } => (24, "call", "cudaFree", Class::Free),
            Kind::FreePinned => (25, "call", "cudaFreeHost", Class::Free),
            Kind::Elapsed { .. } => (26, "elapsed", "cudaEventElapsedTime", Class::Host),
            Kind::CreateEvent { .. } => (27, "call", "cudaEventCreate", Class::Make),
            Kind::DestroyEvent { .. } => (28, "call", "cudaEventDestroy", Class::Make),
            Kind::CreateStream { .. } => (29, "call", "cudaStreamCreate", Class::Make),
            Kind::DestroyStream { .. } => (30, "call", "cudaStreamDestroy", Class::Make),
            Kind::SetDevice { .. } => (31, "call", "cudaSetDevice", Class::Host),
            Kind::BeginCapture { .. } => {
                (32, "begin_capture", "cudaStreamBeginCapture", Class::Host)
            }
            Kind::EndCapture { .. } => (33, "end_capture", "cudaStreamEndCapture", Class::Host),
        }
    }

    /// Its code in a log.
    #[inline]
    pub fn code(&self) -> u8 {
        self.row().0
    }

    /// One launch of a kernel. Several in a row as one call are a stream program's alone.
    #[inline]
    pub fn kernel(stream: StreamId) -> Kind {
        let launches = 1;
        Kind::Kernel { stream, launches }
    }

    /// A copy in a stream of the device `on`, each side given by its memory and the device that has it.
    pub fn copy(
        stream: StreamId,
        on: DeviceId,
        (from, source): (Memory, DeviceId),
        (to, target): (Memory, DeviceId),
    ) -> Kind {
        match (from, to) {
            (Memory::Device, Memory::Device) if source != target => {
                let peer = if source == on { target } else { source };
                Kind::CopyPeer { stream, peer }
            }
            _ => Kind::Copy { stream, from, to },
        }
    }

    /// What people call it.
    pub fn name(&self) -> &'static str {
        self.row().1
    }

    /// The function of CUDA's runtime that makes the call; ours have names of their own.
    pub fn function(&self) -> &'static str {
        self.row().2
    }

    /// Its class.
    #[inline]
    pub fn class(&self) -> Class {
        self.row().3
    }

    /// Hands each of its fields to `take`, which may put another in its place, up to the first that it refuses: a buffer
    /// before a stream, a stream before its event or graph. A log has them in this order.
    #[inline(always)]
    pub(crate) fn each_field<E>(
        &mut self,
        mut take: impl FnMut(Field<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        use Field::{
            Count, Id, Memories, MemoryOf, SomeBuffer, SomeDevice, SomeFlag, SomeStream, Yes,
        };
        match self {
            Kind::Kernel { stream, launches } => {
                take(Id(Named::Stream(stream)))?;
                take(Count(launches))
            }
            Kind::Copy { stream, from, to } => {
                take(Id(Named::Stream(stream)))?;
                take(Memories(from, to))
            }
            Kind::CopyPeer { stream, peer } => {
                take(Id(Named::Stream(stream)))?;
                take(Id(Named::Device(peer)))
            }
            Kind::Memset { stream }
            | Kind::MallocAsync { stream }
            | Kind::FreeAsync { stream }
            | Kind::SyncStream { stream }
            | Kind::CreateStream { stream }
            | Kind::DestroyStream { stream }
            | Kind::BeginCapture { stream }
            | Kind::EndCapture { stream } => take(Id(Named::Stream(stream))),
            Kind::CopyBlocking { from, to } => take(Memories(from, to)),
            Kind::MemsetBlocking { to } => take(MemoryOf(to)),
            Kind::HostFunc { stream, raises } => {
                take(Id(Named::Stream(stream)))?;
                take(SomeFlag(raises))
            }
            Kind::GraphLaunch { stream, graph } => {
                take(Id(Named::Stream(stream)))?;
                take(Id(Named::Graph(graph)))
            }
            Kind::Record { event, stream } | Kind::Wait { stream, event } => {
                take(Id(Named::Stream(stream)))?;
                take(Id(Named::Event(event)))
            }
            Kind::WaitStream { stream, source } => {
                take(Id(Named::Stream(stream)))?;
                take(Id(Named::Stream(source)))
            }
            Kind::SyncEvent { event }
            | Kind::CreateEvent { event }
            | Kind::DestroyEvent { event } => take(Id(Named::Event(event))),
            Kind::SyncDevice { device } => take(SomeDevice(device)),
            Kind::QueryStream { stream, done } => {
                take(Id(Named::Stream(stream)))?;
                take(Yes(done))
            }
            Kind::QueryEvent { event, done } => {
                take(Id(Named::Event(event)))?;
                take(Yes(done))
            }
            Kind::SetFlag { flag } | Kind::WaitFlag { flag } => take(Id(Named::Flag(flag))),
            Kind::Alloc {
                buffer,
                stream,
                saw_events_of,
            } => {
                take(Id(Named::Buffer(buffer)))?;
                take(SomeStream(stream))?;
                take(SomeBuffer(saw_events_of))
            }
            Kind::RecordStream { buffer, stream } => {
                take(Id(Named::Buffer(buffer)))?;
                take(Id(Named::Stream(stream)))
            }
            Kind::Free { buffer } => take(Id(Named::Buffer(buffer))),
            Kind::CudaFree { stream_ordered } => take(Yes(stream_ordered)),
            Kind::Elapsed { from, to } => {
                take(Id(Named::Event(from)))?;
                take(Id(Named::Event(to)))
            }
            Kind::SetDevice { device } => take(Id(Named::Device(device))),
            Kind::HostAccess | Kind::CudaMalloc | Kind::FreePinned => Ok(()),
        }
    }

    /// Hands each id that the call names to `take`, in the order of its fields.
    #[inline(always)]
    pub fn each_named<E>(
        &mut self,
        mut take: impl FnMut(Named<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.each_field(|field| match field {
            Field::Id(named) => take(named),
            Field::SomeStream(id) => id.as_mut().map_or(Ok(()), |id| take(Named::Stream(id))),
            Field::SomeBuffer(id) => id.as_mut().map_or(Ok(()), |id| take(Named::Buffer(id))),
            Field::SomeFlag(id) => id.as_mut().map_or(Ok(()), |id| take(Named::Flag(id))),
            Field::SomeDevice(id) => id.as_mut().map_or(Ok(()), |id| take(Named::Device(id))),
            Field::Count(_) | Field::Yes(_) | Field::MemoryOf(_) | Field::Memories(..) => Ok(()),
        })
    }

    /// The stream that the call names, where it names one: of two, the one that waits.
    #[inline]
    pub fn stream(mut self) -> Option<StreamId> {
        let first = self.each_named(|named| match named {
            Named::Stream(stream) => Err(*stream),
            Named::Event(_)
            | Named::Buffer(_)
            | Named::Flag(_)
            | Named::Graph(_)
            | Named::Device(_) => Ok(()),
        });
        first.err()
    }
}
