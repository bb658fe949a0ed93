//! The oracle: what a perfect checker says about a stream program, by brute force.
//!
//! It is written from the rules (R1 to R60) and the format page alone, shares no code with the checker, and prefers the
//! obvious to the fast. Every op becomes a few nodes of a graph (the call, what the caller touches itself, what the
//! device executes, the return), every rule becomes edges between nodes, and "ordered" means "there is a path". All pairs
//! of accesses are then looked at, one by one.
//!
//! Where the text leaves something open, the reading chosen here stands in a comment that begins with "Reading".

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::prog::{Act, EventKind, MemKind, Part, Prog, StreamKind};

// ---------------------------------------------------------------------------------------------------------------------
// The graph
// ---------------------------------------------------------------------------------------------------------------------

/// Why an edge is there: the number of a rule, or one of the two below.
pub type Rule = u8;
/// The ops of one host thread come one after the other.
pub const THREAD: Rule = 0;
/// `set_flag` to `wait_flag` (release and acquire).
pub const FLAG: Rule = 100;

/// A moment in the life of an op. Not every op has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// The calling thread enters the call.
    Call,
    /// The calling thread itself touches memory or ends its life.
    Host,
    /// The device executes the op, or a stream passes it (record, wait). `wait_stream` has two: 0 the record, 1 the wait.
    /// `free` has one per event it records. Start and end are one point.
    Device(u8),
    /// The call has returned.
    Return,
}

/// The nodes (one per op and point), the edges with their rules, and the transitive closure.
pub struct Graph {
    pub nodes: Vec<(usize, Point)>,
    pub edges: Vec<(usize, usize, Rule)>,
    /// `before[n]` has bit `m` set if there is a path from `m` to `n`.
    before: Vec<Vec<u64>>,
    /// Edges with this rule are left out: shows what depends on the rule.
    drop: Option<Rule>,
}

impl Graph {
    fn add_node(&mut self, op: usize, point: Point) -> usize {
        self.nodes.push((op, point));
        self.nodes.len() - 1
    }

    fn add_edge(&mut self, from: usize, to: usize, rule: Rule) {
        // Whatever has to come first was called first, so edges only point forward.
        assert!(from < to, "an edge has to point forward");
        if self.drop != Some(rule) {
            self.edges.push((from, to, rule));
        }
    }

    fn close(&mut self) {
        let words = self.nodes.len().div_ceil(64);
        let mut before = vec![vec![0u64; words]; self.nodes.len()];
        for node in 0..self.nodes.len() {
            for &(from, to, _) in &self.edges {
                if to == node {
                    let earlier = before[from].clone();
                    for (mine, theirs) in before[node].iter_mut().zip(earlier) {
                        *mine |= theirs;
                    }
                    before[node][from / 64] |= 1 << (from % 64);
                }
            }
        }
        self.before = before;
    }

    /// Is there a path from node `a` to node `b`?
    pub fn reaches(&self, a: usize, b: usize) -> bool {
        self.before[b][a / 64] >> (a % 64) & 1 == 1
    }

    /// The node of an op at a point.
    pub fn node(&self, op: usize, point: Point) -> Option<usize> {
        self.nodes.iter().position(|&n| n == (op, point))
    }

    /// Must the first moment be over before the second begins, in every execution that the rules allow?
    /// False if one of the two points does not exist.
    pub fn ordered(&self, first: (usize, Point), second: (usize, Point)) -> bool {
        match (self.node(first.0, first.1), self.node(second.0, second.1)) {
            (Some(a), Some(b)) => self.reaches(a, b),
            _ => false,
        }
    }

    /// Every pair of points that is ordered, the earlier one first.
    pub fn relation(&self) -> Vec<((usize, Point), (usize, Point))> {
        let mut pairs = Vec::new();
        for a in 0..self.nodes.len() {
            for b in 0..self.nodes.len() {
                if self.reaches(a, b) {
                    pairs.push((self.nodes[a], self.nodes[b]));
                }
            }
        }
        pairs
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// What is said about a program
// ---------------------------------------------------------------------------------------------------------------------

/// The kinds of hazards. The order is the one in which they win if several fit one pair of ops and one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Uaf,
    Uba,
    Raw,
    War,
    Waw,
    HostRaw,
    HostWar,
    HostWaw,
    Timing,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Uaf => "UAF",
            Kind::Uba => "UBA",
            Kind::Raw => "RAW",
            Kind::War => "WAR",
            Kind::Waw => "WAW",
            Kind::HostRaw => "HOST_RAW",
            Kind::HostWar => "HOST_WAR",
            Kind::HostWaw => "HOST_WAW",
            Kind::Timing => "TIMING",
        }
    }
}

/// One unordered pair of ops on one buffer (the buffer as the second op names it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The kind that wins among all byte conflicts of the pair.
    pub kind: Kind,
    /// Every kind that some byte conflict of the pair has. A checker that does not look at all of them may print any of
    /// these that is at least as strong as `adjacent`.
    pub fits: BTreeSet<Kind>,
    /// The kind that wins among the adjacent byte conflicts; none if no byte conflict is adjacent. A pair with an adjacent
    /// conflict has to be printed, another may be.
    pub adjacent: Option<Kind>,
    pub buffer: Option<String>,
    pub first: usize,
    pub second: usize,
    /// True for `warn`, false for `error`.
    pub warn: bool,
    /// Where the two ran: the name of a stream or of a thread.
    pub places: (String, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Clean,
    Race,
    Error,
}

impl Outcome {
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Clean => "clean",
            Outcome::Race => "race",
            Outcome::Error => "error",
        }
    }
}

/// All that can be said about a program.
pub struct Answer {
    pub outcome: Outcome,
    /// Every unordered conflict, in op order (by `second`, then `first`), equal sites not yet counted as one.
    pub races: Vec<Race>,
    /// Lint code and op, in op order.
    pub lints: Vec<(&'static str, usize)>,
    /// The first call that fails, with its code.
    pub error: Option<(usize, &'static str)>,
    pub graph: Graph,
    /// Ops for which the page does not say what happens; the generator makes none.
    pub outside: Vec<(usize, &'static str)>,
    /// The call site of each op.
    pub sites: Vec<String>,
}

impl Answer {
    /// What a checker that reports every unordered pair prints: of the entries alike in kind, buffer and both sites, the
    /// earliest.
    pub fn printed(&self) -> Vec<&Race> {
        let mut seen = BTreeSet::new();
        self.races
            .iter()
            .filter(|r| {
                seen.insert((
                    r.kind,
                    r.buffer.clone(),
                    self.sites[r.first].clone(),
                    self.sites[r.second].clone(),
                ))
            })
            .collect()
    }
}

/// Readings that can be turned, to find out where a difference comes from. `Default` is the oracle's choice.
#[derive(Clone, Copy, Debug)]
pub struct Readings {
    /// R8, R14: does a wait on a never-recorded event count as an action of its stream? ("the wait does nothing": no)
    pub empty_wait_acts: bool,
    /// R13, R14: does work of a destroyed blocking stream still hold back the legacy stream? (it still runs: yes)
    pub destroyed_streams_hold_legacy: bool,
    /// Do captured ops get the lints about a copy, a launch or a wait? (the table speaks of the op: yes)
    pub captured_ops_lint: bool,
}

impl Default for Readings {
    fn default() -> Readings {
        Readings {
            empty_wait_acts: false,
            destroyed_streams_hold_legacy: true,
            captured_ops_lint: true,
        }
    }
}

/// The answer for a program.
pub fn judge(prog: &Prog) -> Answer {
    judge_with(prog, Readings::default(), None)
}

/// The answer for a parsed program.
pub fn judge_program(program: &sidestream_program::Program) -> Answer {
    judge(&Prog::from_program(program))
}

/// The answer with other readings, or with all edges of one rule left out.
pub fn judge_with(prog: &Prog, readings: Readings, drop: Option<Rule>) -> Answer {
    let mut run = Run::new(prog, readings, drop);
    run.walk();
    run.finish()
}

// ---------------------------------------------------------------------------------------------------------------------
// Walking through the program
// ---------------------------------------------------------------------------------------------------------------------

/// One stream. A name that is destroyed and created again stands for another stream afterwards.
struct Stream {
    kind: StreamKind,
    device: u32,
    destroyed: bool,
    /// The last thing submitted to it that runs.
    last: Option<usize>,
    /// The capture it takes part in, and the captured work that its next captured op depends on.
    capture: Option<usize>,
    captured: BTreeSet<usize>,
    /// Legacy stream: was the last action a record or a wait? Only chooses between R14 and R17 as the name of an edge.
    last_is_event: bool,
}

/// What an event holds.
#[derive(Clone)]
enum Event {
    /// Never recorded (R8).
    Empty,
    /// The op of the record, its node, the device it was recorded on.
    Recorded { op: usize, node: usize, device: u32 },
    /// Recorded in a capture: the captured work it stands for.
    Captured {
        capture: usize,
        work: BTreeSet<usize>,
    },
}

struct Capture {
    origin: usize,
    thread: String,
    running: bool,
    /// For each captured piece of work, what it directly depends on.
    work: Vec<BTreeSet<usize>>,
}

/// What an access does to its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Read,
    Write,
    /// `malloc_async`
    Birth,
    /// `free_async`, `cuda_free`, `free_pinned`
    End,
}

/// The bytes behind a buffer name: part of a region of memory that overlaps no other region.
#[derive(Clone, Copy)]
struct Bytes {
    region: usize,
    lo: u64,
    hi: u64,
}

/// For "the same stream or thread".
#[derive(Clone, PartialEq, Eq)]
enum Place {
    Stream(usize),
    Thread(String),
}

/// Who makes an access.
struct Side<'a> {
    /// The stream it is made in, or none for the calling thread.
    stream: Option<usize>,
    /// The name of the stream or thread, for people.
    shown: &'a str,
    /// Is it a host access?
    host: bool,
}

struct Access {
    op: usize,
    node: usize,
    bytes: Bytes,
    mode: Mode,
    /// By the host: a host thread or a host function.
    host: bool,
    buffer: String,
    mem: MemKind,
    place: Place,
    shown_place: String,
}

/// An `elapsed`: its op, the node of the call, the records of `a` and of `b` (op and node).
type Timing = (usize, usize, [(usize, usize); 2]);

/// A piece of work, for the lint about the default stream.
struct Work {
    op: usize,
    stream: usize,
    node: usize,
    call: usize,
}

struct Buffer {
    bytes: Bytes,
    mem: MemKind,
    /// Has an op allocated it?
    allocated: bool,
    from_malloc_async: bool,
    /// Caching allocator: home stream (R52), the streams noted for the free (R53).
    home: Option<usize>,
    noted: Vec<usize>,
    /// The records made by its last `free`.
    free_records: Vec<usize>,
}

/// The nodes of the op at hand.
struct Here {
    op: usize,
    thread: String,
    call: usize,
    /// Set if the caller touches memory.
    host: Option<usize>,
    /// How many device points it has so far.
    device_points: u8,
    /// What has to be over before the call returns.
    returns_after: Vec<(usize, Rule)>,
}

struct Run<'a> {
    prog: &'a Prog,
    readings: Readings,
    graph: Graph,
    streams: Vec<Stream>,
    stream_of_name: HashMap<String, usize>,
    legacy_of_device: HashMap<u32, usize>,
    /// For each device the streams of its pool, by slot, and how many were asked for.
    pools: HashMap<u32, (Vec<usize>, u64)>,
    events: HashMap<String, Event>,
    captures: Vec<Capture>,
    buffers: HashMap<String, Buffer>,
    regions: usize,
    /// Flag to the node that raised it last.
    flags: HashMap<String, (usize, Rule)>,
    last_of_thread: HashMap<String, usize>,
    device_of_thread: HashMap<String, u32>,
    graph_runs: HashMap<String, usize>,
    syncs_at_site: HashMap<String, u32>,
    accesses: Vec<Access>,
    work: Vec<Work>,
    /// The `elapsed` calls.
    timings: Vec<Timing>,
    lints: Vec<(&'static str, usize)>,
    error: Option<(usize, &'static str)>,
    outside: Vec<(usize, &'static str)>,
}

const POOL: u64 = 32;

impl<'a> Run<'a> {
    fn new(prog: &'a Prog, readings: Readings, drop: Option<Rule>) -> Run<'a> {
        Run {
            prog,
            readings,
            graph: Graph {
                nodes: Vec::new(),
                edges: Vec::new(),
                before: Vec::new(),
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

    // --- names ------------------------------------------------------------------------------------------------------

    fn new_stream(&mut self, kind: StreamKind, device: u32) -> usize {
        self.streams.push(Stream {
            kind,
            device,
            destroyed: false,
            last: None,
            capture: None,
            captured: BTreeSet::new(),
            last_is_event: false,
        });
        self.streams.len() - 1
    }

    /// The legacy stream of a device; it is there whether or not it has a name (R42).
    fn legacy(&mut self, device: u32) -> usize {
        if let Some(&id) = self.legacy_of_device.get(&device) {
            return id;
        }
        let id = self.new_stream(StreamKind::Legacy, device);
        self.legacy_of_device.insert(device, id);
        id
    }

    fn stream(&mut self, name: &str) -> usize {
        if let Some(&id) = self.stream_of_name.get(name) {
            return id;
        }
        let (kind, device) = self.prog.stream(name);
        let id = if kind == StreamKind::Legacy {
            self.legacy(device)
        } else {
            self.new_stream(kind, device)
        };
        self.stream_of_name.insert(name.to_string(), id);
        id
    }

    fn device(&self, thread: &str) -> u32 {
        self.device_of_thread.get(thread).copied().unwrap_or(0)
    }

    fn event(&self, name: &str) -> Event {
        self.events.get(name).cloned().unwrap_or(Event::Empty)
    }

    fn fresh_region(&mut self) -> usize {
        self.regions += 1;
        self.regions
    }

    fn buffer(&mut self, name: &str) -> &mut Buffer {
        if !self.buffers.contains_key(name) {
            let (mem, size) = self.prog.buffer(name);
            let region = self.fresh_region();
            self.buffers.insert(
                name.to_string(),
                Buffer {
                    bytes: Bytes {
                        region,
                        lo: 0,
                        hi: size,
                    },
                    mem,
                    allocated: false,
                    from_malloc_async: false,
                    home: None,
                    noted: Vec::new(),
                    free_records: Vec::new(),
                },
            );
        }
        self.buffers.get_mut(name).expect("just put there")
    }

    /// A buffer that an op allocates a second time gets fresh bytes.
    /// Reading (R32): the allocator that hands the same bytes out again sees to the order itself.
    fn allocate(&mut self, name: &str) {
        if self.buffer(name).allocated {
            self.buffers.remove(name);
        }
        self.buffer(name).allocated = true;
    }

    fn bytes(&mut self, part: &Part) -> Bytes {
        let whole = self.buffer(&part.buf).bytes;
        match part.range {
            None => whole,
            Some((lo, hi)) => Bytes {
                region: whole.region,
                lo: whole.lo + lo,
                hi: whole.lo + hi,
            },
        }
    }

    /// For copies, managed memory counts as device memory (R26).
    fn on_host(&self, part: &Part) -> bool {
        matches!(
            self.prog.buffer(&part.buf).0,
            MemKind::Pinned | MemKind::Pageable
        )
    }

    // --- captures ---------------------------------------------------------------------------------------------------

    fn capturing(&self, stream: usize) -> Option<usize> {
        self.streams[stream].capture
    }

    /// Reading (R45): "while a blocking stream captures" means a blocking stream of the same device as the legacy stream,
    /// since the legacy stream has to do with those only (R14, R42). A stream pulled into a capture captures too.
    fn blocking_stream_captures(&self, device: u32) -> bool {
        self.streams
            .iter()
            .any(|s| s.device == device && s.kind.is_blocking() && s.capture.is_some())
    }

    /// The failure of any use of `stream` if it is a legacy stream while a blocking stream captures (R45).
    fn implicit(&self, stream: usize) -> Result<(), &'static str> {
        let s = &self.streams[stream];
        if s.kind == StreamKind::Legacy && self.blocking_stream_captures(s.device) {
            return Err("StreamCaptureImplicit");
        }
        Ok(())
    }

    /// The failure of a sync or query of `stream` (R45, R46).
    fn sync_stream_fails(&self, stream: usize) -> Result<(), &'static str> {
        self.implicit(stream)?;
        if self.capturing(stream).is_some() {
            return Err("StreamCaptureUnsupported");
        }
        Ok(())
    }

    /// Captures one piece of work in a capturing stream. It has no nodes that run and no accesses.
    fn capture_work(&mut self, stream: usize) {
        let capture = self.streams[stream].capture.expect("the stream captures");
        let depends = std::mem::take(&mut self.streams[stream].captured);
        let work = &mut self.captures[capture].work;
        work.push(depends);
        self.streams[stream].captured.insert(work.len() - 1);
    }

    /// R48: is all captured work behind the end of the origin stream?
    /// Reading: a fork counts as joined if every piece of work of it is; a fork without work needs no join.
    fn unjoined(&self, capture: usize) -> bool {
        let capture = &self.captures[capture];
        let mut joined = self.streams[capture.origin].captured.clone();
        loop {
            let more: BTreeSet<usize> = joined
                .iter()
                .flat_map(|&w| capture.work[w].clone())
                .collect();
            if more.is_subset(&joined) {
                break;
            }
            joined.extend(more);
        }
        joined.len() < capture.work.len()
    }

    // --- nodes ------------------------------------------------------------------------------------------------------

    /// The point at which the caller touches memory.
    fn host_point(&mut self, here: &mut Here) -> usize {
        let node = self.graph.add_node(here.op, Point::Host);
        self.graph.add_edge(here.call, node, THREAD);
        here.host = Some(node);
        node
    }

    /// Submits one action to a stream that does not capture: a node behind everything that came before it there.
    /// `is_event`: the action is a record or a wait.
    fn submit(&mut self, here: &mut Here, stream: usize, is_event: bool) -> usize {
        let node = self
            .graph
            .add_node(here.op, Point::Device(here.device_points));
        here.device_points += 1;
        // R3: nothing starts before its call. R19: the DMA of a pageable upload starts after the caller read the source.
        match here.host {
            Some(host) => self.graph.add_edge(host, node, 19),
            None => self.graph.add_edge(here.call, node, 3),
        }
        // R1, R4: behind the earlier actions of the stream, whoever submitted them.
        if let Some(last) = self.streams[stream].last {
            self.graph.add_edge(last, node, 1);
        }
        let device = self.streams[stream].device;
        if self.streams[stream].kind == StreamKind::Legacy {
            // R14, R17: an action of the legacy stream waits for all blocking streams of its device.
            let rule = if is_event { 17 } else { 14 };
            for (last, kind) in
                self.blocking_tails(device, self.readings.destroyed_streams_hold_legacy)
            {
                let rule = if kind == StreamKind::PerThread {
                    18
                } else {
                    rule
                };
                self.graph.add_edge(last, node, rule);
            }
            self.streams[stream].last_is_event = is_event;
        } else if self.streams[stream].kind.is_blocking() {
            // R14, R17: the blocking streams wait for the legacy stream.
            let legacy = self.legacy(device);
            if let Some(last) = self.streams[legacy].last {
                let rule = match (
                    self.streams[stream].kind,
                    self.streams[legacy].last_is_event,
                ) {
                    (StreamKind::PerThread, _) => 18,
                    (_, true) => 17,
                    (_, false) => 14,
                };
                self.graph.add_edge(last, node, rule);
            }
        }
        self.streams[stream].last = Some(node);
        node
    }

    /// The last actions of the blocking streams of a device.
    /// Reading (R13): a destroyed stream's work still runs, so it is still among them.
    fn blocking_tails(&self, device: u32, with_destroyed: bool) -> Vec<(usize, StreamKind)> {
        self.streams
            .iter()
            .filter(|s| {
                s.device == device && s.kind.is_blocking() && (with_destroyed || !s.destroyed)
            })
            .filter_map(|s| s.last.map(|last| (last, s.kind)))
            .collect()
    }

    /// What a sync of a stream waits for. R9: its own actions so far (and what these wait for). R16: the legacy stream
    /// stands for all blocking streams of its device too. A blocking stream does not stand for the legacy stream: if all
    /// its own actions are over, its sync returns although the legacy stream is busy.
    fn sync_targets(&self, stream: usize, own_rule: Rule) -> Vec<(usize, Rule)> {
        let s = &self.streams[stream];
        let mut targets: Vec<(usize, Rule)> = s.last.iter().map(|&last| (last, own_rule)).collect();
        if s.kind == StreamKind::Legacy {
            let tails = self.blocking_tails(s.device, self.readings.destroyed_streams_hold_legacy);
            targets.extend(tails.into_iter().map(|(last, _)| (last, 16)));
        }
        targets
    }

    fn access(&mut self, here: &Here, node: usize, part: &Part, mode: Mode, side: &Side) {
        let bytes = self.bytes(part);
        let mem = self.buffer(&part.buf).mem;
        let place = side
            .stream
            .map_or(Place::Thread(here.thread.clone()), Place::Stream);
        self.accesses.push(Access {
            op: here.op,
            node,
            bytes,
            mode,
            host: side.host,
            buffer: part.buf.clone(),
            mem,
            place,
            shown_place: side.shown.to_string(),
        });
    }

    /// Work submitted to a stream: reads, writes, a place in the stream, nothing else. Gives back the node, or none if the
    /// stream captures.
    fn submit_work(
        &mut self,
        here: &mut Here,
        stream: usize,
        shown: &str,
        r: &[Part],
        w: &[Part],
        host: bool,
    ) -> Result<Option<usize>, &'static str> {
        self.implicit(stream)?;
        if self.capturing(stream).is_some() {
            self.capture_work(stream);
            return Ok(None);
        }
        let node = self.submit(here, stream, false);
        let side = Side {
            stream: Some(stream),
            shown,
            host,
        };
        for part in r {
            self.access(here, node, part, Mode::Read, &side);
        }
        for part in w {
            self.access(here, node, part, Mode::Write, &side);
        }
        self.work.push(Work {
            op: here.op,
            stream,
            node,
            call: here.call,
        });
        Ok(Some(node))
    }

    /// The name of the legacy stream of a device, for people.
    fn legacy_name(&self, device: u32) -> String {
        self.prog
            .streams
            .iter()
            .find(|(_, kind, dev)| *kind == StreamKind::Legacy && *dev == device)
            .map_or("legacy".to_string(), |(name, _, _)| name.clone())
    }

    // --- events -----------------------------------------------------------------------------------------------------

    /// What `wait` and the second half of `wait_stream` do. `rule` names the edge from the record.
    fn wait(
        &mut self,
        here: &mut Here,
        stream: usize,
        event: Event,
        rule: Rule,
    ) -> Result<(), &'static str> {
        self.implicit(stream)?;
        let inside = self.capturing(stream);
        match event {
            // R8: nothing to wait for. Reading: "the wait does nothing", so it is not an action of the stream either: it
            // serialises nothing in the legacy stream and passes on nothing from the calling thread.
            Event::Empty => {
                if self.readings.empty_wait_acts && inside.is_none() {
                    self.submit(here, stream, true);
                }
                Ok(())
            }
            Event::Recorded { node: record, .. } => {
                if inside.is_some() {
                    // R47, even if the record is long over.
                    return Err("StreamCaptureIsolation");
                }
                // R6, R7: the record as it stands now, for what comes later in this stream. R40: on any device.
                let node = self.submit(here, stream, true);
                self.graph.add_edge(record, node, rule);
                Ok(())
            }
            Event::Captured { capture, work } => {
                if !self.captures[capture].running {
                    self.outside
                        .push((here.op, "wait on an event of a capture that has ended"));
                    return Ok(());
                }
                match inside {
                    Some(own) if own != capture => Err("StreamCaptureMerge"),
                    Some(_) => {
                        self.streams[stream].captured.extend(work);
                        Ok(())
                    }
                    None if self.streams[stream].kind == StreamKind::Legacy => {
                        self.outside
                            .push((here.op, "the legacy stream pulled into a capture"));
                        Ok(())
                    }
                    None => {
                        // R48: the waiting stream is pulled into the capture.
                        self.streams[stream].capture = Some(capture);
                        self.streams[stream].captured = work;
                        Ok(())
                    }
                }
            }
        }
    }

    /// What `record` and the first half of `wait_stream` do.
    fn record(&mut self, here: &mut Here, stream: usize) -> Result<Event, &'static str> {
        self.implicit(stream)?;
        if let Some(capture) = self.capturing(stream) {
            return Ok(Event::Captured {
                capture,
                work: self.streams[stream].captured.clone(),
            });
        }
        // R5: the content of the stream now; in the legacy stream that is all blocking work too (R17, by `submit`).
        let node = self.submit(here, stream, true);
        Ok(Event::Recorded {
            op: here.op,
            node,
            device: self.streams[stream].device,
        })
    }

    /// What a sync or a successful query of an event waits for (R8, R9, R46).
    fn event_target(&mut self, op: usize, name: &str) -> Result<Option<usize>, &'static str> {
        match self.event(name) {
            Event::Empty => Ok(None),
            Event::Recorded { node, .. } => Ok(Some(node)),
            Event::Captured { capture, .. } if self.captures[capture].running => {
                Err("CapturedEvent")
            }
            Event::Captured { .. } => {
                self.outside
                    .push((op, "sync or query of an event of a capture that has ended"));
                Ok(None)
            }
        }
    }

    // --- ops --------------------------------------------------------------------------------------------------------

    fn walk(&mut self) {
        let prog = self.prog;
        for (op, line) in prog.ops.iter().enumerate() {
            let call = self.graph.add_node(op, Point::Call);
            if let Some(&last) = self.last_of_thread.get(&line.thread) {
                self.graph.add_edge(last, call, THREAD);
            }
            let mut here = Here {
                op,
                thread: line.thread.clone(),
                call,
                host: None,
                device_points: 0,
                returns_after: Vec::new(),
            };
            let lints_before = self.lints.len();
            if let Err(code) = self.act(&mut here, &line.act) {
                // The call fails and checking stops there. Reading: lints "found before it" are those of earlier ops.
                self.lints.truncate(lints_before);
                self.error = Some((op, code));
                // A failed wait_stream may have made its record; that touches no memory.
                return;
            }
            let ret = self.graph.add_node(op, Point::Return);
            self.graph.add_edge(call, ret, THREAD);
            if let Some(host) = here.host {
                self.graph.add_edge(host, ret, THREAD);
            }
            for (node, rule) in here.returns_after {
                self.graph.add_edge(node, ret, rule);
            }
            self.last_of_thread.insert(line.thread.clone(), ret);
        }
    }

    #[allow(clippy::too_many_lines)]
    fn act(&mut self, here: &mut Here, act: &Act) -> Result<(), &'static str> {
        match act {
            Act::Kernel { s, r, w, .. } => {
                let stream = self.stream(s);
                let captured = self.capturing(stream).is_some();
                if self.streams[stream].device != self.device(&here.thread)
                    && (!captured || self.readings.captured_ops_lint)
                {
                    self.lints.push(("FOREIGN_DEVICE_LAUNCH", here.op));
                }
                self.submit_work(here, stream, s, r, w, false)?;
            }
            Act::MemsetAsync { s, to } => {
                let stream = self.stream(s);
                self.submit_work(here, stream, s, &[], std::slice::from_ref(to), false)?;
            }
            Act::CopyAsync { s, from, to } => {
                let stream = self.stream(s);
                let captured = self.capturing(stream).is_some();
                let pageable = [from, to]
                    .iter()
                    .any(|part| self.prog.buffer(&part.buf).0 == MemKind::Pageable);
                if pageable && (!captured || self.readings.captured_ops_lint) {
                    self.lints.push(("UNPINNED_ASYNC_COPY", here.op));
                }
                let node = self.submit_work(
                    here,
                    stream,
                    s,
                    std::slice::from_ref(from),
                    std::slice::from_ref(to),
                    false,
                )?;
                // R23: host to host also blocks the caller. R22, R25: no other asynchronous copy may be counted on to.
                if let Some(node) = node
                    && self.on_host(from)
                    && self.on_host(to)
                {
                    here.returns_after.push((node, 23));
                }
            }
            Act::HostFunc { s, r, w, sets } => {
                let stream = self.stream(s);
                let node = self.submit_work(here, stream, s, r, w, true)?;
                if let Some(flag) = sets {
                    match node {
                        // R28: it runs after the earlier work of the stream; then the flag is up.
                        Some(node) => {
                            self.flags.insert(flag.clone(), (node, 28));
                        }
                        None => self
                            .outside
                            .push((here.op, "a captured host function that sets a flag")),
                    }
                }
            }
            Act::GraphLaunch { s, g, r, w } => {
                let stream = self.stream(s);
                if let Some(node) = self.submit_work(here, stream, s, r, w, false)? {
                    // R49: behind its own earlier launch.
                    if let Some(&earlier) = self.graph_runs.get(g) {
                        self.graph.add_edge(earlier, node, 49);
                    }
                    self.graph_runs.insert(g.clone(), node);
                }
            }
            Act::Copy { from, to } => self.blocking_copy(here, from, to)?,
            Act::Memset { to } => {
                let device = self.device(&here.thread);
                let legacy = self.legacy(device);
                let shown = self.legacy_name(device);
                let node =
                    self.submit_work(here, legacy, &shown, &[], std::slice::from_ref(to), false)?;
                // R24
                if matches!(
                    self.prog.buffer(&to.buf).0,
                    MemKind::Pinned | MemKind::Managed
                ) {
                    here.returns_after
                        .push((node.expect("the legacy stream never captures"), 24));
                }
            }
            Act::Record { ev, s } => {
                let stream = self.stream(s);
                // R38. Reading: the handle is looked at before the state of the stream.
                if let EventKind::Device(device) = self.prog.event(ev)
                    && device != self.streams[stream].device
                {
                    return Err("InvalidResourceHandle");
                }
                let event = self.record(here, stream)?;
                self.events.insert(ev.clone(), event);
            }
            Act::Wait { s, ev } => {
                let stream = self.stream(s);
                let event = self.event(ev);
                if matches!(event, Event::Empty)
                    && (self.capturing(stream).is_none() || self.readings.captured_ops_lint)
                {
                    self.lints.push(("WAIT_ON_UNRECORDED_EVENT", here.op));
                }
                self.wait(here, stream, event, 6)?;
            }
            Act::WaitStream { s, src } => {
                // R50: a record of its own in `src`, then a wait for it in `s`.
                let stream = self.stream(s);
                let source = self.stream(src);
                let event = self.record(here, source)?;
                self.wait(here, stream, event, 50)?;
            }
            Act::SyncStream { st } => {
                let stream = self.stream(st);
                self.sync_stream_fails(stream)?;
                here.returns_after = self.sync_targets(stream, 9);
                self.sync_in_loop(here.op);
            }
            Act::SyncEvent { ev } => {
                if let Some(node) = self.event_target(here.op, ev)? {
                    here.returns_after.push((node, 9));
                }
                self.sync_in_loop(here.op);
            }
            Act::SyncDevice { dev } => {
                let device = dev.unwrap_or(self.device(&here.thread));
                if self
                    .streams
                    .iter()
                    .any(|s| s.device == device && s.capture.is_some())
                {
                    return Err("StreamCaptureUnsupported");
                }
                // R9, R41: everything submitted to this one device so far, destroyed streams included (R13).
                for s in &self.streams {
                    if s.device == device
                        && let Some(last) = s.last
                    {
                        here.returns_after.push((last, 9));
                    }
                }
                self.sync_in_loop(here.op);
            }
            Act::QueryStream { st, ready } => {
                let stream = self.stream(st);
                self.sync_stream_fails(stream)?;
                if *ready {
                    here.returns_after = self.sync_targets(stream, 10);
                }
            }
            Act::QueryEvent { ev, ready } => {
                let target = self.event_target(here.op, ev)?;
                if *ready && let Some(node) = target {
                    here.returns_after.push((node, 10));
                }
            }
            Act::SetFlag { flag } => {
                self.flags.insert(flag.clone(), (here.call, FLAG));
            }
            Act::WaitFlag { flag } => match self.flags.get(flag) {
                // Reading: of several ops further up that raised the flag, the most recent one is waited for.
                Some(&raised) => here.returns_after.push(raised),
                None => self
                    .outside
                    .push((here.op, "wait for a flag that nothing raised")),
            },
            Act::HostRead { buf } => self.host_access(here, buf, Mode::Read),
            Act::HostWrite { buf } => self.host_access(here, buf, Mode::Write),
            Act::Alloc {
                buf,
                s,
                over,
                after_events,
            } => self.alloc(here, buf, s.as_deref(), over.as_ref(), *after_events),
            Act::Free { buf } => {
                // R53, R54: one event per noted stream, holding what is queued there now. An event record is an action
                // of its stream like any other. No access: use of the block by others is found by the next tenant.
                let noted = std::mem::take(&mut self.buffer(buf).noted);
                let mut records = Vec::new();
                for stream in noted {
                    match self.record(here, stream)? {
                        Event::Recorded { node, .. } => records.push(node),
                        _ => self
                            .outside
                            .push((here.op, "free while a noted stream captures")),
                    }
                }
                self.buffer(buf).free_records = records;
            }
            Act::RecordStream { buf, st } => {
                let stream = self.stream(st);
                let buffer = self.buffer(buf);
                // R53
                if buffer.home != Some(stream) && !buffer.noted.contains(&stream) {
                    buffer.noted.push(stream);
                }
            }
            Act::MallocAsync { buf, s } => {
                let stream = self.stream(s);
                self.lifetime_on_stream(here, stream, s, buf, Mode::Birth)?;
            }
            Act::FreeAsync { buf, s } => {
                let stream = self.stream(s);
                self.lifetime_on_stream(here, stream, s, buf, Mode::End)?;
            }
            Act::CudaMalloc { buf } => {
                self.allocate(buf);
                self.buffer(buf).from_malloc_async = false;
            }
            // R27, R31, R35: the life ends at the call, on the host.
            Act::CudaFree { buf } | Act::FreePinned { buf } => {
                self.host_access(here, &Part::whole(buf), Mode::End);
            }
            Act::Elapsed { a, b } => self.elapsed(here, a, b)?,
            // R12: the handle now is a never-recorded event; waits keep the record they were given.
            Act::CreateEvent { ev } | Act::DestroyEvent { ev } => {
                self.events.insert(ev.clone(), Event::Empty);
            }
            Act::CreateStream { st } => {
                let (kind, device) = self.prog.stream(st);
                if kind == StreamKind::Legacy {
                    self.outside.push((here.op, "a default stream created"));
                } else {
                    let id = self.new_stream(kind, device);
                    self.stream_of_name.insert(st.clone(), id);
                }
            }
            Act::DestroyStream { st } => {
                let stream = self.stream(st);
                self.streams[stream].destroyed = true;
                if self.capturing(stream).is_some() {
                    self.outside.push((here.op, "a capturing stream destroyed"));
                }
            }
            Act::SetDevice { dev } => {
                self.device_of_thread.insert(here.thread.clone(), *dev);
            }
            Act::BeginCapture { s } => {
                let stream = self.stream(s);
                if self.streams[stream].kind == StreamKind::Legacy {
                    return Err("StreamCaptureUnsupported");
                }
                if self.capturing(stream).is_some() {
                    self.outside
                        .push((here.op, "begin_capture on a capturing stream"));
                    return Ok(());
                }
                self.captures.push(Capture {
                    origin: stream,
                    thread: here.thread.clone(),
                    running: true,
                    work: Vec::new(),
                });
                self.streams[stream].capture = Some(self.captures.len() - 1);
                self.streams[stream].captured.clear();
            }
            Act::EndCapture { s } => {
                let stream = self.stream(s);
                // R48. Reading: of several failures, the first of: no capture began here, another thread, unjoined work.
                let capture = match self.capturing(stream) {
                    Some(capture) if self.captures[capture].origin == stream => capture,
                    _ => return Err("StreamCaptureUnmatched"),
                };
                if self.captures[capture].thread != here.thread {
                    return Err("StreamCaptureWrongThread");
                }
                if self.unjoined(capture) {
                    return Err("StreamCaptureUnjoined");
                }
                self.captures[capture].running = false;
                for s in &mut self.streams {
                    if s.capture == Some(capture) {
                        s.capture = None;
                        s.captured.clear();
                    }
                }
            }
            Act::PoolGet { count, first, last } => self.pool_get(here, *count, first, last),
            // These steer the simulated device and the allocator; they order nothing.
            Act::SimHold { .. } | Act::SimRelease { .. } | Act::SetCapacity { .. } => {}
        }
        Ok(())
    }

    fn host_access(&mut self, here: &mut Here, part: &Part, mode: Mode) {
        let node = self.host_point(here);
        let thread = here.thread.clone();
        let side = Side {
            stream: None,
            shown: &thread,
            host: true,
        };
        self.access(here, node, part, mode, &side);
    }

    /// R19, R20, R21, R23: cudaMemcpy in the legacy stream of the caller's device.
    fn blocking_copy(
        &mut self,
        here: &mut Here,
        from: &Part,
        to: &Part,
    ) -> Result<(), &'static str> {
        let device = self.device(&here.thread);
        let legacy = self.legacy(device);
        let shown = self.legacy_name(device);
        self.implicit(legacy)?;
        let from_kind = self.prog.buffer(&from.buf).0;
        let upload = self.on_host(from) && !self.on_host(to);
        if upload && from_kind == MemKind::Pageable {
            // R19: first a sync of the legacy stream (which covers the blocking streams, R16); then the caller reads the
            // source into staging memory, which is a host access of the calling thread; the transfer runs later in the
            // legacy stream and the call does not wait for it.
            let before = self.sync_targets(legacy, 19);
            let node = self.host_point(here);
            for (earlier, _) in before {
                self.graph.add_edge(earlier, node, 19);
            }
            let thread = here.thread.clone();
            let side = Side {
                stream: None,
                shown: &thread,
                host: true,
            };
            self.access(here, node, from, Mode::Read, &side);
            self.submit_work(here, legacy, &shown, &[], std::slice::from_ref(to), false)?;
            return Ok(());
        }
        let node = self
            .submit_work(
                here,
                legacy,
                &shown,
                std::slice::from_ref(from),
                std::slice::from_ref(to),
                false,
            )?
            .expect("the legacy stream never captures");
        // Reading: the accesses of every other blocking copy, host to host too, are the device's, in the legacy stream.
        match (self.on_host(from), self.on_host(to)) {
            (true, true) => here.returns_after.push((node, 23)),
            (true, false) => here.returns_after.push((node, 19)),
            (false, true) => here.returns_after.push((node, 21)),
            (false, false) => {} // R20
        }
        Ok(())
    }

    fn alloc(
        &mut self,
        here: &mut Here,
        buf: &str,
        s: Option<&str>,
        over: Option<&Part>,
        after_events: bool,
    ) {
        let home = s.map(|s| self.stream(s));
        let (mem, size) = self.prog.buffer(buf);
        let bytes = match over {
            None => Bytes {
                region: self.fresh_region(),
                lo: 0,
                hi: size,
            },
            Some(part) => {
                let under = self.bytes(part);
                if size > under.hi - under.lo {
                    self.outside
                        .push((here.op, "a block larger than what it lies on"));
                }
                // Reading: a smaller block lies at the start of the range.
                Bytes {
                    region: under.region,
                    lo: under.lo,
                    hi: (under.lo + size).min(under.hi),
                }
            }
        };
        if after_events && let Some(part) = over {
            // R53: the events of the free of `over` were polled and are complete. Only that free's, not those further down.
            let records = self.buffer(&part.buf).free_records.clone();
            here.returns_after
                .extend(records.into_iter().map(|r| (r, 53)));
        }
        self.buffers.insert(
            buf.to_string(),
            Buffer {
                bytes,
                mem,
                allocated: true,
                from_malloc_async: false,
                home,
                noted: Vec::new(),
                free_records: Vec::new(),
            },
        );
        // R52: no order comes from the hand-out itself, and neither `alloc` nor `free` is an access.
    }

    /// `malloc_async` and `free_async`: stream ops (R33, R34) that touch the whole buffer.
    fn lifetime_on_stream(
        &mut self,
        here: &mut Here,
        stream: usize,
        shown: &str,
        buf: &str,
        mode: Mode,
    ) -> Result<(), &'static str> {
        self.implicit(stream)?;
        if self.capturing(stream).is_some() {
            self.outside
                .push((here.op, "malloc_async or free_async in a capture"));
            self.capture_work(stream);
            return Ok(());
        }
        if mode == Mode::Birth {
            self.allocate(buf);
            self.buffer(buf).from_malloc_async = true;
        }
        let node = self.submit(here, stream, false);
        let side = Side {
            stream: Some(stream),
            shown,
            host: false,
        };
        self.access(here, node, &Part::whole(buf), mode, &side);
        Ok(())
    }

    fn elapsed(&mut self, here: &mut Here, a: &str, b: &str) -> Result<(), &'static str> {
        if self.prog.event(a) == EventKind::NoTiming || self.prog.event(b) == EventKind::NoTiming {
            return Err("InvalidResourceHandle");
        }
        match (self.event(a), self.event(b)) {
            (Event::Empty, _) | (_, Event::Empty) => Err("InvalidResourceHandle"),
            (
                Event::Recorded {
                    op: op_a,
                    node: node_a,
                    device: device_a,
                },
                Event::Recorded {
                    op: op_b,
                    node: node_b,
                    device: device_b,
                },
            ) => {
                // R43: an undeclared event belongs to the device that it was recorded on.
                if device_a != device_b {
                    return Err("InvalidResourceHandle");
                }
                self.timings
                    .push((here.op, here.call, [(op_a, node_a), (op_b, node_b)]));
                Ok(())
            }
            _ => {
                self.outside.push((here.op, "elapsed on a captured event"));
                Ok(())
            }
        }
    }

    /// R51: 32 streams a pool, handed out in turn. Reading: one pool for each device, the one of the caller's current
    /// device is asked, and the lint counts all streams that the program has asked it for so far.
    fn pool_get(&mut self, here: &Here, count: u64, first: &str, last: &str) {
        let device = self.device(&here.thread);
        if !self.pools.contains_key(&device) {
            let streams = (0..POOL)
                .map(|_| self.new_stream(StreamKind::NonBlocking, device))
                .collect();
            self.pools.insert(device, (streams, 0));
        }
        let (streams, asked) = self.pools.get_mut(&device).expect("just put there");
        let slot = |n: u64| streams[usize::try_from(n % POOL).expect("small")];
        let (first_stream, last_stream) = (slot(*asked), slot(*asked + count - 1));
        *asked += count;
        if *asked > POOL {
            self.lints.push(("STREAM_POOL_ALIAS", here.op));
        }
        self.stream_of_name.insert(first.to_string(), first_stream);
        self.stream_of_name.insert(last.to_string(), last_stream);
    }

    fn sync_in_loop(&mut self, op: usize) {
        if let Some(site) = &self.prog.ops[op].site {
            let count = self.syncs_at_site.entry(site.clone()).or_insert(0);
            *count += 1;
            if *count == 3 {
                self.lints.push(("SYNC_IN_LOOP", op));
            }
        }
    }

    // --- the end ----------------------------------------------------------------------------------------------------

    fn finish(mut self) -> Answer {
        self.graph.close();
        self.default_stream_lints();
        let races = self.races();
        let mut lints = self.lints;
        lints.sort_by_key(|&(code, op)| (op, code));
        lints.dedup();
        let sites = self
            .prog
            .ops
            .iter()
            .enumerate()
            // A name cannot begin with a digit, so these do not collide with explicit sites.
            .map(|(op, line)| line.site.clone().unwrap_or_else(|| op.to_string()))
            .collect();
        Answer {
            outcome: match (self.error, races.is_empty()) {
                (Some(_), _) => Outcome::Error,
                (None, false) => Outcome::Race,
                (None, true) => Outcome::Clean,
            },
            races,
            lints,
            error: self.error,
            graph: self.graph,
            outside: self.outside,
            sites,
        }
    }

    /// R60. Both sides of the condition are looked at in the order of the list; "not yet known complete by the calling
    /// thread" is asked at the moment of the call. Reading: captured work is no work, `malloc_async` and `free_async` are
    /// not either, and a stream created anew under an old name is another stream.
    fn default_stream_lints(&mut self) {
        for middle in &self.work {
            let device = self.streams[middle.stream].device;
            if self.streams[middle.stream].kind != StreamKind::Legacy {
                continue;
            }
            let blocking = |w: &&Work| {
                self.streams[w.stream].device == device && self.streams[w.stream].kind.is_blocking()
            };
            let held_back = self.work.iter().filter(blocking).any(|before| {
                before.op < middle.op
                    && !self.graph.reaches(before.node, middle.call)
                    && self
                        .work
                        .iter()
                        .filter(blocking)
                        .any(|after| after.op > middle.op && after.stream != before.stream)
            });
            if held_back {
                self.lints.push(("DEFAULT_STREAM_SERIALIZATION", middle.op));
            }
        }
    }

    fn races(&self) -> Vec<Race> {
        // Regions are cut where an access begins or ends; between two cuts all bytes have the same history, so one
        // "cell" stands for all of them.
        let mut cuts: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
        for a in &self.accesses {
            let cuts = cuts.entry(a.bytes.region).or_default();
            cuts.insert(a.bytes.lo);
            cuts.insert(a.bytes.hi);
        }
        let mut found: BTreeMap<(usize, usize, String), Race> = BTreeMap::new();
        for a in &self.accesses {
            for b in &self.accesses {
                if a.op >= b.op || a.bytes.region != b.bytes.region {
                    continue;
                }
                let lo = a.bytes.lo.max(b.bytes.lo);
                let hi = a.bytes.hi.min(b.bytes.hi);
                let cells: Vec<u64> = cuts[&a.bytes.region]
                    .range(lo..)
                    .copied()
                    .take_while(|&c| c < hi)
                    .collect();
                if cells.is_empty() || (a.mode == Mode::Read && b.mode == Mode::Read) {
                    continue;
                }
                if self.graph.reaches(a.node, b.node) || self.graph.reaches(b.node, a.node) {
                    continue;
                }
                let kind = kind_of(a, b);
                let adjacent = cells.iter().any(|&cell| self.adjacent(a, b, cell));
                let warn = self.is_open(a, b);
                let race = found
                    .entry((b.op, a.op, b.buffer.clone()))
                    .or_insert_with(|| Race {
                        kind,
                        fits: BTreeSet::new(),
                        adjacent: None,
                        buffer: Some(b.buffer.clone()),
                        first: a.op,
                        second: b.op,
                        warn,
                        places: (a.shown_place.clone(), b.shown_place.clone()),
                    });
                assert_eq!(
                    race.warn, warn,
                    "one pair of ops and one buffer has one severity"
                );
                race.fits.insert(kind);
                race.kind = race.kind.min(kind);
                if adjacent {
                    race.adjacent = Some(race.adjacent.map_or(kind, |k| k.min(kind)));
                }
            }
        }
        for &(op, call, records) in &self.timings {
            let known = records.map(|(_, node)| self.graph.reaches(node, call));
            // "first = the record of that event, of b if neither is"
            let unknown = match known {
                [true, true] => continue,
                [false, true] => records[0],
                [_, false] => records[1],
            };
            found.insert(
                (op, unknown.0, String::new()),
                Race {
                    kind: Kind::Timing,
                    fits: BTreeSet::from([Kind::Timing]),
                    adjacent: Some(Kind::Timing),
                    buffer: None,
                    first: unknown.0,
                    second: op,
                    warn: false,
                    places: (String::new(), self.prog.ops[op].thread.clone()),
                },
            );
        }
        found.into_values().collect()
    }

    /// Nothing in between, in the order of the list, for one cell of memory: no write (a birth or an end counts), and if
    /// the first one reads, no later read of the same stream or thread. A host function belongs to its stream.
    fn adjacent(&self, a: &Access, b: &Access, cell: u64) -> bool {
        !self.accesses.iter().any(|k| {
            let between = a.op < k.op && k.op < b.op;
            let here = k.bytes.region == a.bytes.region && k.bytes.lo <= cell && cell < k.bytes.hi;
            let hides = k.mode != Mode::Read || (a.mode == Mode::Read && k.place == a.place);
            between && here && hides
        })
    }

    /// Does CUDA leave the behaviour of this pair open (severity `warn`)?
    fn is_open(&self, a: &Access, b: &Access) -> bool {
        let act = |x: &Access| &self.prog.ops[x.op].act;
        // R22: a host access against a copy_async on pageable memory. Reading: also if the copy goes from host to host.
        // An end of life is not an access of this kind.
        let r22 = |host: &Access, copy: &Access| {
            host.host
                && matches!(host.mode, Mode::Read | Mode::Write)
                && matches!(act(copy), Act::CopyAsync { .. })
                && copy.mem == MemKind::Pageable
        };
        // R31: cuda_free of memory not from malloc_async with work pending. Reading: work that was submitted before the
        // free (so the free is `second`) and runs in a stream; against a host thread's access, or if the free is listed
        // first, the free is plainly too early.
        let r31 = matches!(act(b), Act::CudaFree { .. })
            && !self.buffers[&b.buffer].from_malloc_async
            && matches!(a.place, Place::Stream(_))
            && matches!(a.mode, Mode::Read | Mode::Write);
        // R20, R26: a host access to managed memory after (listed after) a blocking device-to-device copy.
        let r20 = b.host
            && matches!(b.mode, Mode::Read | Mode::Write)
            && b.mem == MemKind::Managed
            && matches!(act(a), Act::Copy { from, to } if !self.on_host(from) && !self.on_host(to));
        r22(a, b) || r22(b, a) || r31 || r20
    }
}

/// The kind of an unordered conflict.
fn kind_of(a: &Access, b: &Access) -> Kind {
    if a.mode == Mode::End || b.mode == Mode::End || a.buffer != b.buffer {
        return Kind::Uaf;
    }
    if a.mode == Mode::Birth || b.mode == Mode::Birth {
        return Kind::Uba;
    }
    let writes = |x: &Access| x.mode == Mode::Write;
    match (a.host, b.host) {
        (false, false) => match (writes(a), writes(b)) {
            (true, false) => Kind::Raw,
            (false, _) => Kind::War,
            (true, true) => Kind::Waw,
        },
        // One side is the host: what counts is what the host does, not which op is listed first.
        (true, false) | (false, true) => {
            let (host, device) = if a.host { (a, b) } else { (b, a) };
            match (writes(host), writes(device)) {
                (false, _) => Kind::HostRaw,
                (true, false) => Kind::HostWar,
                (true, true) => Kind::HostWaw,
            }
        }
        // Both are: in the order listed.
        (true, true) => match (writes(a), writes(b)) {
            (true, false) => Kind::HostRaw,
            (false, _) => Kind::HostWar,
            (true, true) => Kind::HostWaw,
        },
    }
}
