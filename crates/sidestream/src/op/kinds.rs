//! The properties of each kind of call: its names, its class and the ids that it names.
//!
//! Other modules use these, or match on [`Class`], so that a new kind is added in one table. Where a module
//! distinguishes kinds it lists all of them: Clippy refuses `_` there.

use super::{
    BufferId, Compare, DeviceId, EventId, FlagId, GraphId, Kind, Memory, SourceOrder, StreamId,
};

/// The class of a call, for code that treats several kinds equally.
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
        /// Whether the call is `cudaMemcpy`, in the legacy stream of the thread's device.
        is_blocking: bool,
        /// The other device, if the call names one.
        peer: Option<DeviceId>,
    },
    /// A memset, in the order of a stream.
    Memset {
        /// Whether the call is `cudaMemset`, in the legacy stream of the thread's device.
        is_blocking: bool,
    },
    /// A host function, in the order of a stream.
    HostFunc,
    /// A launch of a graph.
    Graph,
    /// Allocates memory in the order of a stream.
    MallocAsync,
    /// Frees memory in the order of a stream.
    FreeAsync,
    /// Records an event in a stream.
    Record,
    /// Makes a stream wait.
    Wait,
    /// Makes the host wait.
    Sync(Until),
    /// Queries whether work is complete.
    Query(Until),
    /// Allocates memory from the driver, outside all streams.
    Malloc,
    /// Frees driver memory, outside all streams.
    Free,
    /// A call of the caching allocator.
    Allocator,
    /// Creates or destroys an event or a stream.
    Make,
    /// The thread itself reads or writes memory.
    HostAccess,
    /// A flag between threads, or a query of state: a back end has nothing to do.
    Told,
    /// Any other call that enqueues nothing in a stream.
    Host,
}

/// The work that the host waits for or queries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// All work in a stream so far.
    Stream(StreamId),
    /// The last record of an event.
    Event(EventId),
    /// All work on a device so far; on the thread's current one if `None`.
    Device(Option<DeviceId>),
}

impl Class {
    /// Whether a call of this class is work in a stream that reads or writes memory.
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

/// A field of a call, for the crates of this repository.
#[doc(hidden)]
pub enum Field<'a> {
    Stream(&'a mut StreamId),
    Event(&'a mut EventId),
    Buffer(&'a mut BufferId),
    Flag(&'a mut FlagId),
    Graph(&'a mut GraphId),
    Device(&'a mut DeviceId),
    SomeStream(&'a mut Option<StreamId>),
    SomeBuffer(&'a mut Option<BufferId>),
    SomeFlag(&'a mut Option<FlagId>),
    SomeDevice(&'a mut Option<DeviceId>),
    Memory(&'a mut Memory),
    /// The kinds of memory of the source and of the destination.
    Memories(&'a mut Memory, &'a mut Memory),
    SourceOrder(&'a mut SourceOrder),
    Compare(&'a mut Compare),
    Count(&'a mut u32),
    Yes(&'a mut bool),
}

/// One row for each kind: its code in a log; its fields in the order of a log, each with its encoding; its display name;
/// the CUDA runtime function (calls without one have their own names); its class.
macro_rules! kinds {
    ($(
        $code:literal $kind:ident { $($field:ident $(+ $second:ident)? : $what:ident),* }
        $name:literal $function:literal $class:expr;
    )*) => {
        impl Kind {
            /// Returns the kind of this code, with its fields unset.
            pub(crate) fn of_code(code: u8) -> Option<Kind> {
                Some(match code {
                    $($code => Kind::$kind {
                        $($field: Default::default(), $($second: Default::default(),)?)*
                    },)*
                    _ => return None,
                })
            }

            /// Returns the code of the kind in a log.
            #[inline]
            pub fn code(&self) -> u8 {
                match self {
                    $(Kind::$kind { .. } => $code,)*
                }
            }

            /// Returns the display name of the kind.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Kind::$kind { .. } => $name,)*
                }
            }

            /// Returns the CUDA runtime function that makes the call; calls without one have their own names.
            pub fn function(&self) -> &'static str {
                match self {
                    $(Kind::$kind { .. } => $function,)*
                }
            }

            /// Returns the class of the kind.
            #[inline]
            #[expect(unused_variables, reason = "few classes use the fields")]
            pub fn class(&self) -> Class {
                match *self {
                    $(Kind::$kind { $($field, $($second,)?)* } => $class,)*
                }
            }

            /// Passes each field of the call to `take`, which may replace the field, until `take` returns an error.
            #[doc(hidden)]
            #[inline(always)]
            pub fn each_field<E>(
                &mut self,
                mut take: impl FnMut(Field<'_>) -> Result<(), E>,
            ) -> Result<(), E> {
                match self {
                    $(Kind::$kind { $($field, $($second,)?)* } => {
                        $(take(Field::$what($field $(, $second)?))?;)*
                    })*
                }
                Ok(())
            }
        }
    };
}

kinds! {
    0 Kernel { stream: Stream, launches: Count } "kernel" "cudaLaunchKernel" Class::Kernel;
    1 Copy { stream: Stream, from + to: Memories } "copy" "cudaMemcpyAsync" copy(from, to, false);
    2 Memset { stream: Stream } "memset" "cudaMemsetAsync" Class::Memset { is_blocking: false };
    3 CopyBlocking { from + to: Memories } "copy" "cudaMemcpy" copy(from, to, true);
    4 MemsetBlocking { to: Memory } "memset" "cudaMemset" Class::Memset { is_blocking: true };
    5 HostFunc { stream: Stream, raises: SomeFlag } "host function" "cudaLaunchHostFunc" Class::HostFunc;
    6 GraphLaunch { stream: Stream, graph: Graph } "graph launch" "cudaGraphLaunch" Class::Graph;
    7 MallocAsync { stream: Stream } "malloc_async" "cudaMallocAsync" Class::MallocAsync;
    8 FreeAsync { stream: Stream } "free_async" "cudaFreeAsync" Class::FreeAsync;
    9 Record { stream: Stream, event: Event } "record" "cudaEventRecord" Class::Record;
    10 Wait { stream: Stream, event: Event } "wait" "cudaStreamWaitEvent" Class::Wait;
    11 WaitStream { stream: Stream, source: Stream } "wait_stream" "cudaStreamWaitEvent" Class::Wait;
    12 SyncStream { stream: Stream } "synchronize" "cudaStreamSynchronize" Class::Sync(Until::Stream(stream));
    13 SyncEvent { event: Event } "synchronize" "cudaEventSynchronize" Class::Sync(Until::Event(event));
    14 SyncDevice { device: SomeDevice } "synchronize" "cudaDeviceSynchronize" Class::Sync(Until::Device(device));
    15 QueryStream { stream: Stream, done: Yes } "query" "cudaStreamQuery" Class::Query(Until::Stream(stream));
    16 QueryEvent { event: Event, done: Yes } "query" "cudaEventQuery" Class::Query(Until::Event(event));
    17 SetFlag { flag: Flag } "call" "raise flag" Class::Told;
    18 WaitFlag { flag: Flag } "call" "wait for flag" Class::Told;
    19 HostAccess {} "call" "host access" Class::HostAccess;
    20 Alloc { buffer: Buffer, stream: SomeStream, saw_events_of: SomeBuffer } "call" "allocate" Class::Allocator;
    21 RecordStream { buffer: Buffer, stream: Stream } "call" "record_stream" Class::Allocator;
    22 Free { buffer: Buffer } "call" "free" Class::Allocator;
    23 CudaMalloc {} "call" "cudaMalloc" Class::Malloc;
    24 CudaFree { stream_ordered: Yes } "call" "cudaFree" Class::Free;
    25 FreePinned {} "call" "cudaFreeHost" Class::Free;
    26 Elapsed { from: Event, to: Event } "elapsed" "cudaEventElapsedTime" Class::Told;
    27 CreateEvent { event: Event } "call" "cudaEventCreate" Class::Make;
    28 DestroyEvent { event: Event } "call" "cudaEventDestroy" Class::Make;
    29 CreateStream { stream: Stream } "call" "cudaStreamCreate" Class::Make;
    30 DestroyStream { stream: Stream } "call" "cudaStreamDestroy" Class::Make;
    31 SetDevice { device: Device } "call" "cudaSetDevice" Class::Host;
    32 BeginCapture { stream: Stream } "begin_capture" "cudaStreamBeginCapture" Class::Host;
    33 EndCapture { stream: Stream } "end_capture" "cudaStreamEndCapture" Class::Host;
    34 CopyPeer { stream: Stream, peer: Device } "copy" "cudaMemcpyPeerAsync" across(peer);
    35 CopyBatch { stream: Stream, from + to: Memories, source: SourceOrder } "copy" "cudaMemcpyBatchAsync" copy(from, to, false);
    36 WriteValue { stream: Stream, word: Flag, value: Count, fenced: Yes } "write value" "cuStreamWriteValue32" Class::Record;
    37 WaitValue { stream: Stream, word: Flag, value: Count, compare: Compare } "wait value" "cuStreamWaitValue32" Class::Wait;
    38 WaitOutside { stream: SomeStream } "wait" "wait for another process" Class::Wait;
    39 DependentKernel { stream: Stream, may_wait: Yes } "kernel" "cudaLaunchKernelExC" Class::Kernel;
    40 HostUnregister {} "call" "cudaHostUnregister" Class::Free;
}

/// Returns the class of a copy on one device, or between it and the host.
#[inline(always)]
fn copy(from: Memory, to: Memory, is_blocking: bool) -> Class {
    Class::Copy {
        from,
        to,
        is_blocking,
        peer: None,
    }
}

/// Returns the class of a copy from one device to another.
#[inline(always)]
fn across(peer: DeviceId) -> Class {
    Class::Copy {
        from: Memory::Device,
        to: Memory::Device,
        is_blocking: false,
        peer: Some(peer),
    }
}

impl Kind {
    /// Returns a single launch of a kernel. Only stream programs make several launches in one call.
    #[inline]
    pub fn kernel(stream: StreamId) -> Kind {
        let launches = 1;
        Kind::Kernel { stream, launches }
    }

    /// Returns a copy in a stream of the device `on`, each side given by its kind of memory and its device.
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

    /// Passes each id that the call names to `take`, in the order of its fields.
    #[inline(always)]
    pub fn each_named<E>(
        &mut self,
        mut take: impl FnMut(Named<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.each_field(|field| match field {
            Field::Stream(id) => take(Named::Stream(id)),
            Field::Event(id) => take(Named::Event(id)),
            Field::Buffer(id) => take(Named::Buffer(id)),
            Field::Flag(id) => take(Named::Flag(id)),
            Field::Graph(id) => take(Named::Graph(id)),
            Field::Device(id) => take(Named::Device(id)),
            Field::SomeStream(id) => id.as_mut().map_or(Ok(()), |id| take(Named::Stream(id))),
            Field::SomeBuffer(id) => id.as_mut().map_or(Ok(()), |id| take(Named::Buffer(id))),
            Field::SomeFlag(id) => id.as_mut().map_or(Ok(()), |id| take(Named::Flag(id))),
            Field::SomeDevice(id) => id.as_mut().map_or(Ok(()), |id| take(Named::Device(id))),
            Field::Memory(_)
            | Field::Memories(..)
            | Field::SourceOrder(_)
            | Field::Compare(_)
            | Field::Count(_)
            | Field::Yes(_) => Ok(()),
        })
    }

    /// Returns the stream that the call names, if any: of two, the one that waits.
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
