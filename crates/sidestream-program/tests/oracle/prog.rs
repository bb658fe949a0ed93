//! The oracle's own representation of a stream program.
//!
//! It has the contents of the crate's syntax tree, with names instead of indices. The oracle reads it, the generator
//! writes it, and [`Prog::to_yaml`] turns it into the text that the reader under test parses.

mod text;
mod tree;

/// The kind of stream that a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    NonBlocking,
    Blocking,
    Legacy,
    PerThread,
}

impl StreamKind {
    /// Returns whether the stream takes part in the order of the legacy stream (R14, R15, R18).
    pub fn is_blocking(self) -> bool {
        matches!(self, StreamKind::Blocking | StreamKind::PerThread)
    }
}

/// The kind of memory of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemKind {
    Dev,
    Pinned,
    Pageable,
    Managed,
}

/// The kind of event that a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// With timing; may be recorded on any device.
    Plain,
    /// Without timing.
    NoTiming,
    /// Created on this device.
    Device(u32),
}

/// When a copy of a batch reads its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Stream,
    DuringCall,
    Any,
}

/// A buffer or a part of it: bytes `lo` to `hi - 1`, or the whole buffer without a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub buf: String,
    pub range: Option<(u64, u64)>,
}

impl Part {
    pub fn whole(buf: &str) -> Part {
        Part {
            buf: buf.to_string(),
            range: None,
        }
    }
}

/// The call of an op. The fields are those of the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Kernel {
        s: String,
        r: Vec<Part>,
        w: Vec<Part>,
        may_write: Vec<Part>,
        atomic: Vec<Part>,
        repeat: Option<u64>,
        programmatic: bool,
    },
    CopyAsync {
        s: String,
        from: Part,
        to: Part,
    },
    CopyBatch {
        s: String,
        from: Part,
        to: Part,
        source: Source,
    },
    CopyPeer {
        s: String,
        from: Part,
        to: Part,
        peer: u64,
    },
    MemsetAsync {
        s: String,
        to: Part,
    },
    Copy {
        from: Part,
        to: Part,
    },
    Memset {
        to: Part,
    },
    HostFunc {
        s: String,
        r: Vec<Part>,
        w: Vec<Part>,
        sets: Option<String>,
    },
    GraphLaunch {
        s: String,
        g: String,
        r: Vec<Part>,
        w: Vec<Part>,
        may_write: Vec<Part>,
        atomic: Vec<Part>,
    },
    Record {
        ev: String,
        s: String,
    },
    Wait {
        s: String,
        ev: String,
    },
    WriteValue {
        s: String,
        at: String,
        value: u64,
        unfenced: bool,
    },
    WaitValue {
        s: String,
        at: String,
        value: u64,
        when: Option<String>,
    },
    WaitOutside {
        s: Option<String>,
    },
    WaitStream {
        s: String,
        src: String,
    },
    SyncStream {
        st: String,
    },
    SyncEvent {
        ev: String,
    },
    SyncDevice {
        dev: Option<u32>,
    },
    QueryStream {
        st: String,
        ready: bool,
    },
    QueryEvent {
        ev: String,
        ready: bool,
    },
    SetFlag {
        flag: String,
    },
    WaitFlag {
        flag: String,
    },
    HostRead {
        buf: Part,
    },
    HostWrite {
        buf: Part,
    },
    Alloc {
        buf: String,
        s: Option<String>,
        over: Option<Part>,
        after_events: bool,
    },
    Free {
        buf: String,
    },
    RecordStream {
        buf: String,
        st: String,
    },
    MallocAsync {
        buf: String,
        s: String,
    },
    FreeAsync {
        buf: String,
        s: String,
    },
    CudaMalloc {
        buf: String,
    },
    CudaFree {
        buf: String,
    },
    FreePinned {
        buf: String,
    },
    Unregister {
        buf: String,
    },
    Elapsed {
        a: String,
        b: String,
    },
    CreateEvent {
        ev: String,
    },
    DestroyEvent {
        ev: String,
    },
    CreateStream {
        st: String,
    },
    DestroyStream {
        st: String,
    },
    SetDevice {
        dev: u32,
    },
    BeginCapture {
        s: String,
    },
    EndCapture {
        s: String,
    },
    SimHold {
        st: String,
    },
    SimRelease {
        st: String,
    },
    SetCapacity {
        blocks: u64,
    },
    PoolGet {
        count: u64,
        first: String,
        last: String,
    },
}

/// One line of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    pub thread: String,
    pub site: Option<String>,
    pub act: Act,
}

/// A whole program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prog {
    pub name: String,
    /// True for `level: runtime`.
    pub runtime: bool,
    /// Declared streams: name, kind, device.
    pub streams: Vec<(String, StreamKind, u32)>,
    /// Declared buffers: name, kind, bytes.
    pub buffers: Vec<(String, MemKind, u64)>,
    /// Declared events.
    pub events: Vec<(String, EventKind)>,
    pub ops: Vec<Op>,
}

impl Prog {
    pub fn new(name: &str) -> Prog {
        Prog {
            name: name.to_string(),
            runtime: false,
            streams: Vec::new(),
            buffers: Vec::new(),
            events: Vec::new(),
            ops: Vec::new(),
        }
    }

    /// Returns kind and device of a stream; undeclared ones are non-blocking streams of device 0.
    pub fn stream(&self, name: &str) -> (StreamKind, u32) {
        self.streams
            .iter()
            .find(|(n, _, _)| n == name)
            .map_or((StreamKind::NonBlocking, 0), |&(_, kind, dev)| (kind, dev))
    }

    /// Returns kind and size of a buffer; undeclared ones have 1024 bytes, and their first letter determines the
    /// kind.
    pub fn buffer(&self, name: &str) -> (MemKind, u64) {
        if let Some(&(_, kind, bytes)) = self.buffers.iter().find(|(n, _, _)| n == name) {
            return (kind, bytes);
        }
        let kind = match name.as_bytes()[0] {
            b'H' => MemKind::Pinned,
            b'P' => MemKind::Pageable,
            b'M' => MemKind::Managed,
            _ => MemKind::Dev,
        };
        (kind, 1024)
    }

    pub fn event(&self, name: &str) -> EventKind {
        self.events
            .iter()
            .find(|(n, _)| n == name)
            .map_or(EventKind::Plain, |&(_, kind)| kind)
    }
}
