//! The state of the walk through a program.

use std::collections::{BTreeSet, HashMap};

use super::{Graph, Readings, Rule};
use crate::oracle::prog::{MemKind, Prog, StreamKind};

/// One stream. A name that is destroyed and created again refers to another stream afterwards.
pub(super) struct Stream {
    pub(super) kind: StreamKind,
    pub(super) device: u32,
    pub(super) destroyed: bool,
    /// The node of the last submitted action that runs; captured work does not run.
    pub(super) last: Option<usize>,
    /// The capture that the stream takes part in, and the captured work that its next captured op depends on.
    pub(super) capture: Option<usize>,
    pub(super) captured: BTreeSet<usize>,
    /// The last kernels of the stream, if nothing else was submitted since: one that starts after all work before it, and those
    /// after it that may start early.
    pub(super) kernels: Vec<usize>,
    /// Whether the last action of a legacy stream was a record or a wait. This only chooses between R14 and R17 as
    /// the name of an edge.
    pub(super) last_is_event: bool,
}

/// The contents of an event.
#[derive(Clone)]
pub(super) enum Event {
    /// Never recorded (R8).
    Empty,
    /// The op of the record, its node, the device it was recorded on.
    Recorded { op: usize, node: usize, device: u32 },
    /// Recorded in a capture: the captured work that it covers.
    Captured {
        capture: usize,
        work: BTreeSet<usize>,
    },
}

pub(super) struct Capture {
    pub(super) origin: usize,
    pub(super) thread: String,
    pub(super) running: bool,
    /// For each captured piece of work, the pieces that it directly depends on.
    pub(super) work: Vec<BTreeSet<usize>>,
}

/// How an access uses its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Read,
    Write,
    /// Reads or writes; the text does not tell which.
    MayWrite,
    Atomic,
    /// `malloc_async`
    Birth,
    /// `free_async`, `cuda_free`, `free_pinned`
    End,
}

/// The bytes of a buffer name: a part of a region of memory that overlaps no other region.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub(super) region: usize,
    pub(super) lo: u64,
    pub(super) hi: u64,
}

/// Identifies "the same stream or thread".
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Place {
    Stream(usize),
    Thread(String),
}

/// Who makes an access.
pub(super) struct Side<'a> {
    /// The stream that makes the access, or none for the calling thread.
    pub(super) stream: Option<usize>,
    /// The name of the stream or thread, for messages.
    pub(super) shown: &'a str,
    /// Whether the access is a host access.
    pub(super) host: bool,
}

pub(super) struct Access {
    pub(super) op: usize,
    pub(super) node: usize,
    pub(super) bytes: Bytes,
    pub(super) mode: Mode,
    /// Whether a host thread or a host function makes the access.
    pub(super) host: bool,
    pub(super) buffer: String,
    pub(super) mem: MemKind,
    pub(super) place: Place,
    pub(super) shown_place: String,
}

/// An `elapsed`: its op, the node of the call, the records of `a` and of `b` (op and node).
pub(super) type Timing = (usize, usize, [(usize, usize); 2]);

/// A piece of work, for the lint about the default stream.
pub(super) struct Work {
    pub(super) op: usize,
    pub(super) stream: usize,
    pub(super) node: usize,
    pub(super) call: usize,
}

#[derive(Default)]
pub(super) struct Flag {
    pub(super) raised: Vec<(usize, Rule)>,
    /// Whether a thread has waited for the flag since.
    pub(super) is_taken: bool,
}

impl Flag {
    pub(super) fn raise(&mut self, node: usize, rule: Rule) {
        if std::mem::take(&mut self.is_taken) {
            self.raised.clear();
        }
        self.raised.push((node, rule));
    }
}

pub(super) struct Buffer {
    pub(super) bytes: Bytes,
    pub(super) mem: MemKind,
    /// Whether an op has allocated the buffer.
    pub(super) allocated: bool,
    pub(super) from_malloc_async: bool,
    /// Caching allocator: home stream (R52), and the streams recorded for the free (R53).
    pub(super) home: Option<usize>,
    pub(super) noted: Vec<usize>,
    /// The records made by its last `free`.
    pub(super) free_records: Vec<usize>,
}

/// The nodes of the current op.
pub(super) struct Here {
    pub(super) op: usize,
    pub(super) thread: String,
    pub(super) call: usize,
    /// Present if the caller touches memory.
    pub(super) host: Option<usize>,
    /// Number of its device points so far.
    pub(super) device_points: u8,
    /// What must complete before the call returns.
    pub(super) returns_after: Vec<(usize, Rule)>,
    /// One of these nodes must complete too, if there are any.
    pub(super) returns_after_one_of: Vec<(usize, Rule)>,
}

pub(super) struct Run<'a> {
    pub(super) prog: &'a Prog,
    pub(super) readings: Readings,
    pub(super) graph: Graph,
    pub(super) streams: Vec<Stream>,
    pub(super) stream_of_name: HashMap<String, usize>,
    pub(super) legacy_of_device: HashMap<u32, usize>,
    /// For each device the streams of its pool by slot, and the number of requests.
    pub(super) pools: HashMap<u32, (Vec<usize>, u64)>,
    pub(super) events: HashMap<String, Event>,
    pub(super) captures: Vec<Capture>,
    pub(super) buffers: HashMap<String, Buffer>,
    pub(super) regions: usize,
    /// Maps a flag to the nodes that raised it since a thread last waited for it; if none did, to the nodes before
    /// that wait.
    pub(super) flags: HashMap<String, Flag>,
    /// Maps a kernel that may start early to the kernels before it that need not be complete then.
    pub(super) early: HashMap<usize, Vec<usize>>,
    /// Maps a word of memory to what streams wrote there: the value, the stream, the node, and whether it is fenced.
    pub(super) words: HashMap<String, Vec<(u64, usize, usize, bool)>>,
    /// The nodes that wait for what no op shows.
    pub(super) outside_waits: Vec<usize>,
    /// Of these, the waits for values: the word, the node, the value and the comparison; and those that ended later.
    pub(super) value_waits: Vec<(String, usize, u64, Option<String>)>,
    pub(super) ended_waits: Vec<usize>,
    pub(super) last_of_thread: HashMap<String, usize>,
    pub(super) device_of_thread: HashMap<String, u32>,
    pub(super) graph_runs: HashMap<String, usize>,
    /// The syncs before which work was submitted since the last one at the site, and the work at the last one.
    pub(super) syncs_at_site: HashMap<String, (u32, usize)>,
    pub(super) accesses: Vec<Access>,
    pub(super) work: Vec<Work>,
    /// The `elapsed` calls.
    pub(super) timings: Vec<Timing>,
    pub(super) lints: Vec<(&'static str, usize)>,
    pub(super) error: Option<(usize, &'static str)>,
    pub(super) outside: Vec<(usize, &'static str)>,
}

pub(super) const POOL: u64 = 32;

impl<'a> Run<'a> {
    pub(super) fn new(prog: &'a Prog, readings: Readings, drop: Option<Rule>) -> Run<'a> {
        Run {
            prog,
            readings,
            graph: Graph {
                nodes: Vec::new(),
                edges: Vec::new(),
                choices: Vec::new(),
                before: Vec::new(),
                has_late_edges: false,
                drop,
            },
            streams: Vec::new(),
            stream_of_name: HashMap::new(),
            legacy_of_device: HashMap::new(),
            pools: HashMap::new(),
            events: HashMap::new(),
            captures: Vec::new(),
            buffers: HashMap::new(),
            regions: 0,
            flags: HashMap::new(),
            early: HashMap::new(),
            words: HashMap::new(),
            outside_waits: Vec::new(),
            value_waits: Vec::new(),
            ended_waits: Vec::new(),
            last_of_thread: HashMap::new(),
            device_of_thread: HashMap::new(),
            graph_runs: HashMap::new(),
            syncs_at_site: HashMap::new(),
            accesses: Vec::new(),
            work: Vec::new(),
            timings: Vec::new(),
            lints: Vec::new(),
            error: None,
            outside: Vec::new(),
        }
    }
}
