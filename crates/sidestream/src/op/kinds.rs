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

impl Kind {
    /// Its name for people, the function of CUDA's runtime that makes it (ours have names of their own),
    /// and its class.
    #[inline(always)]
    fn row(&self) -> (&'static str, &'static str, Class) {
        let copy = |from, to, is_blocking| Class::Copy {
            from,
            to,
            is_blocking,
        };
        let memset = |is_blocking| Class::Memset { is_blocking };
        let sync = |function, until| ("synchronize", function, Class::Sync(until));
        let query = |function, until| ("query", function, Class::Query(until));
        match *self {
            Kind::Kernel { .. } => ("kernel", "cudaLaunchKernel", Class::Kernel),
            Kind::Copy { from, to, .. } => ("copy", "cudaMemcpyAsync", copy(from, to, false)),
            Kind::Memset { .. } => ("memset", "cudaMemsetAsync", memset(false)),
            Kind::CopyBlocking { from, to } => ("copy", "cudaMemcpy", copy(from, to, true)),
            Kind::MemsetBlocking { .. } => ("memset", "cudaMemset", memset(true)),
            Kind::HostFunc { .. } => ("host function", "cudaLaunchHostFunc", Class::HostFunc),
            Kind::GraphLaunch { .. } => ("graph launch", "cudaGraphLaunch", Class::Graph),
            Kind::MallocAsync { .. } => ("malloc_async", "cudaMallocAsync", Class::MallocAsync),
            Kind::FreeAsync { .. } => ("free_async", "cudaFreeAsync", Class::FreeAsync),
            Kind::Record { .. } => ("record", "cudaEventRecord", Class::Record),
            Kind::Wait { .. } => ("wait", "cudaStreamWaitEvent", Class::Wait),
            Kind::WaitStream { .. } => ("wait_stream", "cudaStreamWaitEvent", Class::Wait),
            Kind::SyncStream { stream } => sync("cudaStreamSynchronize", Until::Stream(stream)),
            Kind::SyncEvent { event } => sync("cudaEventSynchronize", Until::Event(event)),
            Kind::SyncDevice { device } => sync("cudaDeviceSynchronize", Until::Device(device)),
            Kind::QueryStream { stream, .. } => query("cudaStreamQuery", Until::Stream(stream)),
            Kind::QueryEvent { event, .. } => query("cudaEventQuery", Until::Event(event)),
            Kind::SetFlag { .. } => ("call", "raise flag", Class::Host),
            Kind::WaitFlag { .. } => ("call", "wait for flag", Class::Host),
            Kind::HostAccess => ("call", "host access", Class::HostAccess),
            Kind::Alloc { .. } => ("call", "allocate", Class::Allocator),
            Kind::RecordStream { .. } => ("call", "record_stream", Class::Allocator),
            Kind::Free { .. } => ("call", "free", Class::Allocator),
            Kind::CudaMalloc => ("call", "cudaMalloc", Class::Malloc),
            Kind::CudaFree { .. } => ("call", "cudaFree", Class::Free),
            Kind::FreePinned => ("call", "cudaFreeHost", Class::Free),
            Kind::Elapsed { .. } => ("elapsed", "cudaEventElapsedTime", Class::Host),
            Kind::CreateEvent { .. } => ("call", "cudaEventCreate", Class::Make),
            Kind::DestroyEvent { .. } => ("call", "cudaEventDestroy", Class::Make),
            Kind::CreateStream { .. } => ("call", "cudaStreamCreate", Class::Make),
            Kind::DestroyStream { .. } => ("call", "cudaStreamDestroy", Class::Make),
            Kind::SetDevice { .. } => ("call", "cudaSetDevice", Class::Host),
            Kind::BeginCapture { .. } => ("begin_capture", "cudaStreamBeginCapture", Class::Host),
            Kind::EndCapture { .. } => ("end_capture", "cudaStreamEndCapture", Class::Host),
        }
    }

    /// What people call it.
    pub fn name(&self) -> &'static str {
        self.row().0
    }

    /// The function of CUDA's runtime that makes the call; ours have names of their own.
    pub fn function(&self) -> &'static str {
        self.row().1
    }

    /// Its class.
    #[inline]
    pub fn class(&self) -> Class {
        self.row().2
    }

    /// Hands each id that the call names to `take`, which may put another in its place, up to the first that
    /// it refuses: a buffer before a stream, a stream before its event or graph.
    #[inline(always)]
    pub fn each_named<E>(
        &mut self,
        mut take: impl FnMut(Named<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Kind::Kernel { stream, .. }
            | Kind::Copy { stream, .. }
            | Kind::Memset { stream }
            | Kind::MallocAsync { stream }
            | Kind::FreeAsync { stream }
            | Kind::SyncStream { stream }
            | Kind::QueryStream { stream, .. }
            | Kind::CreateStream { stream }
            | Kind::DestroyStream { stream }
            | Kind::BeginCapture { stream }
            | Kind::EndCapture { stream } => take(Named::Stream(stream)),
            Kind::HostFunc { stream, raises } => {
                raises
                    .iter_mut()
                    .try_for_each(|flag| take(Named::Flag(flag)))?;
                take(Named::Stream(stream))
            }
            Kind::GraphLaunch { stream, graph } => {
                take(Named::Stream(stream))?;
                take(Named::Graph(graph))
            }
            Kind::Record { event, stream } | Kind::Wait { stream, event } => {
                take(Named::Stream(stream))?;
                take(Named::Event(event))
            }
            Kind::WaitStream { stream, source } => {
                take(Named::Stream(stream))?;
                take(Named::Stream(source))
            }
            Kind::SyncEvent { event }
            | Kind::QueryEvent { event, .. }
            | Kind::CreateEvent { event }
            | Kind::DestroyEvent { event } => take(Named::Event(event)),
            Kind::Elapsed { from, to } => {
                take(Named::Event(from))?;
                take(Named::Event(to))
            }
            Kind::SyncDevice { device } => device
                .iter_mut()
                .try_for_each(|device| take(Named::Device(device))),
            Kind::SetDevice { device } => take(Named::Device(device)),
            Kind::SetFlag { flag } | Kind::WaitFlag { flag } => take(Named::Flag(flag)),
            Kind::Alloc {
                buffer,
                stream,
                saw_events_of,
            } => {
                take(Named::Buffer(buffer))?;
                saw_events_of
                    .iter_mut()
                    .try_for_each(|earlier| take(Named::Buffer(earlier)))?;
                stream
                    .iter_mut()
                    .try_for_each(|stream| take(Named::Stream(stream)))
            }
            Kind::RecordStream { buffer, stream } => {
                take(Named::Buffer(buffer))?;
                take(Named::Stream(stream))
            }
            Kind::Free { buffer } => take(Named::Buffer(buffer)),
            Kind::CopyBlocking { .. }
            | Kind::MemsetBlocking { .. }
            | Kind::HostAccess
            | Kind::CudaMalloc
            | Kind::CudaFree { .. }
            | Kind::FreePinned => Ok(()),
        }
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
