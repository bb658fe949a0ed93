//! The ops of the format: the name of each, the fields that it takes, and the call that it becomes. Reader and writer use
//! only this table; `lower` makes the calls of it, and `reduce` finds the op of a call in it.

use std::mem::discriminant;

use sidestream::op::{EventId, Kind, Mode, Op};

use crate::program::{Access, BufferRef, Fields, StreamRef};

/// A field of an op.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) key: &'static str,
    pub(crate) slot: Slot,
}

/// The type of a field, and its place in the fields of an op.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Slot {
    Stream(Place<Option<StreamRef>>),
    /// A stream of the pool, which the op declares.
    PoolStream(Place<Option<StreamRef>>),
    Event(Place<Option<EventId>>),
    /// A flag, which the op declares.
    Raised,
    /// A flag that an earlier op raises.
    Awaited,
    Graph,
    Buffer(Place<Option<BufferRef>>),
    Access(Place<Vec<Access>>, Side),
    /// One access, or a list of them.
    Accesses(Place<Vec<Access>>, Side),
    SourceOrder,
    Compare,
    Over,
    Device,
    Number {
        least: u64,
    },
    Yes,
}

type Place<T> = fn(&mut Fields) -> &mut T;

/// Whether the device or the host makes an access.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Side {
    Device,
    Host,
}

const fn field(key: &'static str, slot: Slot) -> Field {
    Field { key, slot }
}

const READS: Place<Vec<Access>> = |of| &mut of.reads;
const WRITES: Place<Vec<Access>> = |of| &mut of.writes;
const S: Field = field("s", Slot::Stream(|of| &mut of.stream));
const ST: Field = field("st", Slot::Stream(|of| &mut of.stream));
const SRC: Field = field("src", Slot::Stream(|of| &mut of.source));
const EV: Field = field("ev", Slot::Event(|of| &mut of.event));
const R: Field = field("r", Slot::Accesses(READS, Side::Device));
const W: Field = field("w", Slot::Accesses(WRITES, Side::Device));
const MAY_WRITE: Field = field(
    "may_write",
    Slot::Accesses(|of| &mut of.may_write, Side::Device),
);
const ATOMIC: Field = field("atomic", Slot::Accesses(|of| &mut of.atomic, Side::Device));
const HOST_R: Field = field("r", Slot::Accesses(READS, Side::Host));
const HOST_W: Field = field("w", Slot::Accesses(WRITES, Side::Host));
const FROM: Field = field("from", Slot::Access(READS, Side::Device));
const TO: Field = field("to", Slot::Access(WRITES, Side::Device));
const BUF: Field = field("buf", Slot::Buffer(|of| &mut of.buffer));
const DEV: Field = field("dev", Slot::Device);
const AT: Field = field("at", Slot::Raised);
const VALUE: Field = field("value", Slot::Number { least: 0 });
const READY: Field = field("ready", Slot::Yes);

struct Row {
    name: &'static str,
    /// Required fields.
    needs: &'static [Field],
    /// Optional fields.
    may: &'static [Field],
}

macro_rules! verbs {
    ($(
        $doc:literal
        $verb:ident $name:literal [$($need:expr),*] [$($may:expr),*] $(=> $kind:ident { $($field:ident),* })?
    )*) => {
        /// The call of an op: a `do` of the format. Every op also takes `t` and `site`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Verb {
            $(#[doc = $doc] $verb,)*
        }

        impl Verb {
            /// All verbs, in the order in which the format lists them.
            pub const ALL: &[Verb] = &[$(Verb::$verb),*];

            /// Returns the call that an op with this verb becomes, with its fields unset; none for a command of the
            /// simulator.
            pub(crate) fn call(self) -> Option<Kind> {
                match self {
                    $(Verb::$verb => None$(.or(Some(Kind::$kind { $($field: Default::default()),* })))?,)*
                }
            }
        }

        /// Rows by verb.
        static ROWS: &[Row] = &[$(Row { name: $name, needs: &[$($need),*], may: &[$($may),*] }),*];
    };
}

verbs! {
    "A kernel launch, or `repeat` equal ones."
    Kernel "kernel" [S] [R, W, MAY_WRITE, ATOMIC, field("repeat", Slot::Number { least: 1 }), field("programmatic", Slot::Yes)] => Kernel { stream, launches }
    "An asynchronous copy."
    CopyAsync "copy_async" [S, FROM, TO] [] => Copy { stream, from, to }
    "One copy of a batch, which reads its source in the order of the stream unless it chooses another."
    CopyBatch "copy_batch" [S, FROM, TO] [field("source", Slot::SourceOrder)] => CopyBatch { stream, from, to, source }
    "An asynchronous copy between memory of two devices: that of the stream and a peer."
    CopyPeer "copy_peer" [S, FROM, TO, field("peer", Slot::Device)] [] => CopyPeer { stream, peer }
    "An asynchronous memset."
    MemsetAsync "memset_async" [S, TO] [] => Memset { stream }
    "A blocking copy in the legacy stream of the caller's device."
    Copy "copy" [FROM, TO] [] => CopyBlocking { from, to }
    "A memset in the legacy stream of the caller's device."
    Memset "memset" [TO] [] => MemsetBlocking { to }
    "A function on the host, in stream order; it raises a flag at its end."
    HostFunc "host_func" [S] [HOST_R, HOST_W, field("sets", Slot::Raised)] => HostFunc { stream, raises }
    "A replay of a graph, with all that it reads and writes."
    GraphLaunch "graph_launch" [S, field("g", Slot::Graph)] [R, W, MAY_WRITE, ATOMIC] => GraphLaunch { stream, graph }
    "Records an event in a stream."
    Record "record" [EV, S] [] => Record { stream, event }
    "A stream waits for the last record of an event."
    Wait "wait" [S, EV] [] => Wait { stream, event }
    "A stream writes a word of memory; `unfenced`, what it wrote before may become visible later."
    WriteValue "write_value" [S, AT, VALUE] [field("unfenced", Slot::Yes)] => WriteValue { stream, word, value, fenced }
    "A stream waits until a word of memory has a value."
    WaitValue "wait_value" [S, AT, VALUE] [field("when", Slot::Compare)] => WaitValue { stream, word, value, compare }
    "A stream, or else the thread, waits for what no call shows."
    WaitOutside "wait_outside" [] [S] => WaitOutside { stream }
    "A stream waits for the work that another stream has now."
    WaitStream "wait_stream" [S, SRC] [] => WaitStream { stream, source }
    "Blocks the caller until a stream is idle."
    SyncStream "sync_stream" [ST] [] => SyncStream { stream }
    "Blocks the caller until an event is complete."
    SyncEvent "sync_event" [EV] [] => SyncEvent { event }
    "Blocks the caller until every stream of a device is idle."
    SyncDevice "sync_device" [] [DEV] => SyncDevice { device }
    "Queries whether a stream is idle."
    QueryStream "query_stream" [ST] [READY] => QueryStream { stream, done }
    "Queries whether an event is complete."
    QueryEvent "query_event" [EV] [READY] => QueryEvent { event, done }
    "The caller raises a flag."
    SetFlag "set_flag" [field("flag", Slot::Raised)] [] => SetFlag { flag }
    "Blocks the caller until a flag is raised."
    WaitFlag "wait_flag" [field("flag", Slot::Awaited)] [] => WaitFlag { flag }
    "The caller reads host or managed memory."
    HostRead "host_read" [field("buf", Slot::Access(READS, Side::Host))] [] => HostAccess {}
    "The caller writes host or managed memory."
    HostWrite "host_write" [field("buf", Slot::Access(WRITES, Side::Host))] [] => HostAccess {}
    "The caching allocator hands out a buffer; without a stream, the cache of pinned memory does."
    Alloc "alloc" [BUF] [
        S,
        field("over", Slot::Over),
        field("after_events", Slot::Yes),
        field("must_alias", Slot::Buffer(|of| &mut of.must_alias)),
        field("must_not_alias", Slot::Buffer(|of| &mut of.must_not_alias))
    ] => Alloc { buffer, stream, saw_events_of }
    "Drops the last reference to a buffer of the caching allocator."
    Free "free" [BUF] [] => Free { buffer }
    "Notes a stream that uses a buffer, for its free."
    RecordStream "record_stream" [BUF, ST] [] => RecordStream { buffer, stream }
    "A stream-ordered allocation."
    MallocAsync "malloc_async" [BUF, S] [] => MallocAsync { stream }
    "A stream-ordered free."
    FreeAsync "free_async" [BUF, S] [] => FreeAsync { stream }
    "A device allocation without any ordering."
    CudaMalloc "cuda_malloc" [BUF] [] => CudaMalloc {}
    "Frees device memory; the program may not rely on a wait."
    CudaFree "cuda_free" [BUF] [] => CudaFree { stream_ordered }
    "Frees pinned memory; the program may not rely on a wait."
    FreePinned "free_pinned" [BUF] [] => FreePinned {}
    "Makes pinned memory pageable again; the program may not rely on a wait."
    Unregister "unregister" [BUF] [] => HostUnregister {}
    "The time from event `a` to event `b`."
    Elapsed "elapsed" [field("a", Slot::Event(|of| &mut of.event)), field("b", Slot::Event(|of| &mut of.later))] [] => Elapsed { from, to }
    "From here on the event counts as never recorded."
    CreateEvent "create_event" [EV] [] => CreateEvent { event }
    "From here on the event counts as never recorded."
    DestroyEvent "destroy_event" [EV] [] => DestroyEvent { event }
    "Makes a stream; orders nothing."
    CreateStream "create_stream" [ST] [] => CreateStream { stream }
    "Destroys a stream; orders nothing and does not wait."
    DestroyStream "destroy_stream" [ST] [] => DestroyStream { stream }
    "Sets the current device of the calling thread."
    SetDevice "set_device" [DEV] [] => SetDevice { device }
    "Begins a capture."
    BeginCapture "begin_capture" [S] [] => BeginCapture { stream }
    "Ends a capture."
    EndCapture "end_capture" [S] [] => EndCapture { stream }
    "The simulated device stops executing a stream (runtime level)."
    SimHold "sim_hold" [ST] []
    "The simulated device resumes executing a stream (runtime level)."
    SimRelease "sim_release" [ST] []
    "Limits memory to that many equal blocks (runtime level)."
    SetCapacity "set_capacity" [field("blocks", Slot::Number { least: 0 })] []
    "Asks the stream pool several times (runtime level)."
    PoolGet "pool_get" [
        field("count", Slot::Number { least: 1 }),
        field("first", Slot::PoolStream(|of| &mut of.stream)),
        field("last", Slot::PoolStream(|of| &mut of.source))
    ] []
}

impl Verb {
    /// Returns the name in the format, under `do`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    pub(crate) fn named(name: &str) -> Option<Verb> {
        let at = ROWS.iter().position(|row| row.name == name)?;
        Some(Verb::ALL[at])
    }

    /// Returns the verb of an op that becomes this call.
    pub(crate) fn of(call: &Op) -> Option<Verb> {
        let writes = call
            .accesses
            .first()
            .is_none_or(|access| access.mode != Mode::Read);
        let kind = match call.kind {
            Kind::DependentKernel { stream, .. } => Kind::kernel(stream),
            Kind::HostAccess if writes => return Some(Verb::HostWrite),
            kind => kind,
        };
        let becomes =
            |verb: &Verb| verb.call().map(|call| discriminant(&call)) == Some(discriminant(&kind));
        Verb::ALL.iter().copied().find(becomes)
    }

    pub(crate) fn needs(self) -> &'static [Field] {
        self.row().needs
    }

    /// Returns the fields of the verb, in the order in which they are read and written.
    pub(crate) fn fields(self) -> impl Iterator<Item = &'static Field> {
        self.row().needs.iter().chain(self.row().may)
    }

    /// Returns "`s`, `from`, `to`, `t`, `site`", for a message about another field.
    pub(crate) fn listed(self) -> String {
        let keys = self.fields().map(|field| field.key);
        let keys: Vec<String> = keys
            .chain(["t", "site"])
            .map(|key| format!("`{key}`"))
            .collect();
        keys.join(", ")
    }

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }
}
