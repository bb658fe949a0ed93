//! Random stream programs: valid by the page, with a good share that is well ordered.
//!
//! The generator keeps rough vector clocks of what each stream and host thread knows. Before it emits an access it looks
//! for earlier conflicting accesses that are not known yet and, with the probability `care`, emits something that orders
//! them: one of the many ways that the format has. The clocks only steer the dice. Nothing depends on their being right.

use sidestream_program::Program;

use super::prog::{Act, EventKind, MemKind, Op, Part, Prog, StreamKind};

/// A small generator of random numbers (splitmix64).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `n - 1`.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "there has to be a choice");
        usize::try_from(self.next() % n as u64).expect("smaller than n")
    }

    /// True in that many of 100 cases.
    pub fn percent(&mut self, p: u32) -> bool {
        self.next() % 100 < u64::from(p)
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// What a random program is made of.
#[derive(Clone, Debug)]
pub struct Options {
    pub threads: usize,
    pub devices: u32,
    /// Streams that are no legacy streams.
    pub streams: usize,
    /// Number of ops aimed at; there may be a few more, 60 at most.
    pub ops: usize,
    /// The list is cut before an op that would exceed this many things on streams (work, records, waits).
    pub max_device_ops: usize,
    /// In how many of 100 cases an access is ordered behind earlier ones that conflict with it.
    pub care: u32,
    /// Inject a call that fails.
    pub error: bool,
    pub legacy: bool,
    pub blocking_streams: bool,
    pub blocking_calls: bool,
    pub captures: bool,
    pub allocator: bool,
    pub lifetimes: bool,
    pub events: bool,
    pub timing: bool,
    pub ranges: bool,
    pub sites: bool,
    pub graphs: bool,
    pub host_funcs: bool,
    pub host_memory: bool,
    pub stream_lifetimes: bool,
    pub runtime: bool,
}

impl Options {
    /// The options that belong to a seed.
    pub fn from_seed(seed: u64) -> Options {
        let mut rng = Rng::new(seed ^ 0x0123_4567_89ab_cdef);
        let rng = &mut rng;
        let many = rng.percent(50);
        Options {
            threads: rng.pick(&[1, 1, 1, 1, 1, 2, 2, 2, 3]),
            devices: rng.pick(&[1, 1, 1, 2, 2, 3]),
            streams: rng.pick(&[1, 2, 2, 2, 3, 3, 4]),
            ops: if many {
                8 + rng.below(33)
            } else {
                3 + rng.below(12)
            },
            max_device_ops: usize::MAX,
            care: rng.pick(&[100, 100, 97, 90, 75, 60, 45, 30, 15, 0]),
            error: rng.percent(12),
            legacy: rng.percent(50),
            blocking_streams: rng.percent(60),
            blocking_calls: rng.percent(45),
            captures: rng.percent(25),
            allocator: rng.percent(40),
            lifetimes: rng.percent(40),
            events: rng.percent(80),
            timing: rng.percent(30),
            ranges: rng.percent(40),
            sites: rng.percent(30),
            graphs: rng.percent(40),
            host_funcs: rng.percent(45),
            host_memory: rng.percent(75),
            stream_lifetimes: rng.percent(30),
            runtime: rng.percent(5),
        }
    }

    /// Options for programs whose schedules can all be tried: at most 7 things on streams.
    pub fn small(seed: u64) -> Options {
        let mut rng = Rng::new(seed ^ 0x0fed_cba9_8765_4321);
        let rng = &mut rng;
        Options {
            threads: rng.pick(&[1, 1, 1, 2]),
            devices: rng.pick(&[1, 1, 1, 2]),
            streams: 1 + rng.below(3),
            ops: 3 + rng.below(7),
            max_device_ops: 7,
            care: rng.pick(&[100, 100, 90, 60, 20]),
            error: false,
            captures: false,
            runtime: false,
            stream_lifetimes: false,
            timing: false,
            ..Options::from_seed(seed)
        }
    }
}

/// The random program of a seed.
pub fn random_prog(seed: u64, options: &Options) -> Prog {
    let mut generator = Gen::new(seed, options.clone());
    generator.run();
    let mut prog = generator.prog;
    let mut room = options.max_device_ops;
    let fits = prog.ops.iter().take(MOST_OPS).take_while(|op| {
        let need = device_ops(&op.act);
        let fits = need <= room;
        room = room.saturating_sub(need);
        fits
    });
    // The beginning of a valid program is a valid program.
    let length = fits.count();
    prog.ops.truncate(length);
    prog
}

/// The random program of a seed, as the reader under test understands it.
pub fn random_program(seed: u64, options: &Options) -> Program {
    random_prog(seed, options).to_program()
}

/// A small random program, with at most 7 things on streams, so that all its schedules can be tried.
pub fn small_program(seed: u64) -> Program {
    random_program(seed, &Options::small(seed))
}

/// How many things an op puts on streams.
fn device_ops(act: &Act) -> usize {
    match act {
        Act::Kernel { .. }
        | Act::CopyAsync { .. }
        | Act::MemsetAsync { .. }
        | Act::Copy { .. }
        | Act::Memset { .. }
        | Act::HostFunc { .. }
        | Act::GraphLaunch { .. }
        | Act::Record { .. }
        | Act::Wait { .. }
        | Act::MallocAsync { .. }
        | Act::FreeAsync { .. } => 1,
        Act::WaitStream { .. } | Act::Free { .. } => 2,
        _ => 0,
    }
}

const MOST_OPS: usize = 60;

// ---------------------------------------------------------------------------------------------------------------------
// What the generator knows while it writes
// ---------------------------------------------------------------------------------------------------------------------

/// For each place (stream or thread), how much of it is known to be over.
#[derive(Clone, Default)]
struct Clock(Vec<u32>);

impl Clock {
    fn get(&self, place: usize) -> u32 {
        self.0.get(place).copied().unwrap_or(0)
    }

    fn tick(&mut self, place: usize) {
        if self.0.len() <= place {
            self.0.resize(place + 1, 0);
        }
        self.0[place] += 1;
    }

    fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Owner {
    Thread(usize),
    Stream(usize),
}

/// Where an access that is about to be made runs.
#[derive(Clone, Copy)]
enum Target {
    Thread(usize),
    Stream(usize),
    /// The caller's part of a blocking pageable upload: after a sync of the legacy stream.
    Upload(u32),
}

struct GThread {
    name: String,
    place: usize,
    device: u32,
    clock: Clock,
}

/// One stream; a name that is created anew gets another one.
struct GStream {
    name: Option<String>,
    kind: StreamKind,
    device: u32,
    place: usize,
    clock: Clock,
    alive: bool,
    capture: Option<usize>,
}

struct GCapture {
    origin: usize,
    thread: usize,
    running: bool,
    /// Streams with captured work that the origin has not joined.
    dirty: Vec<usize>,
    /// Events recorded in it.
    events: Vec<String>,
}

#[derive(Clone, Copy, PartialEq)]
enum Life {
    /// There from the start, or from `cuda_malloc`.
    Plain,
    MallocAsync,
    /// From the caching allocator, with its home stream.
    Cached(Option<usize>),
    Dead,
}

struct GBuffer {
    name: String,
    mem: MemKind,
    size: u64,
    life: Life,
    region: usize,
    base: u64,
    noted: Vec<usize>,
    events_at_free: Clock,
    had_events: bool,
    users: Vec<usize>,
}

struct GAccess {
    place: usize,
    tick: u32,
    write: bool,
    lo: u64,
    hi: u64,
}

struct GEvent {
    name: String,
    kind: EventKind,
    record: Option<(Clock, usize, u32, u32)>,
}

/// A freed block of the caching allocator that may be handed out again.
struct Block {
    buffer: usize,
    lo: u64,
    hi: u64,
}

/// One of the things that the generator may do next, by a thread.
type Action = fn(&mut Gen, usize);

struct Gen {
    rng: Rng,
    opt: Options,
    prog: Prog,
    owners: Vec<Owner>,
    threads: Vec<GThread>,
    streams: Vec<GStream>,
    captures: Vec<GCapture>,
    buffers: Vec<GBuffer>,
    regions: Vec<Vec<GAccess>>,
    events: Vec<GEvent>,
    flags: Vec<(String, Clock)>,
    graphs: Vec<(String, Clock)>,
    blocks: Vec<Block>,
    serial: usize,
}

impl Gen {
    fn new(seed: u64, opt: Options) -> Gen {
        let mut g = Gen {
            rng: Rng::new(seed),
            prog: Prog::new(&format!("r{seed}")),
            owners: Vec::new(),
            threads: Vec::new(),
            streams: Vec::new(),
            captures: Vec::new(),
            buffers: Vec::new(),
            regions: Vec::new(),
            events: Vec::new(),
            flags: Vec::new(),
            graphs: Vec::new(),
            blocks: Vec::new(),
            serial: 0,
            opt,
        };
        g.prog.runtime = g.opt.runtime;
        for i in 0..g.opt.threads {
            let place = g.place(Owner::Thread(i));
            g.threads.push(GThread {
                name: if i == 0 {
                    "t0".to_string()
                } else {
                    format!("worker{i}")
                },
                place,
                device: 0,
                clock: Clock::default(),
            });
        }
        // A legacy stream for each device, at the index of the device; it has a name or it has not.
        for device in 0..g.opt.devices {
            let named = g.opt.legacy && g.rng.percent(85);
            let name = named.then(|| format!("d{device}"));
            if let Some(name) = &name {
                g.prog
                    .streams
                    .push((name.clone(), StreamKind::Legacy, device));
            }
            g.new_stream(name, StreamKind::Legacy, device);
        }
        for i in 0..g.opt.streams {
            let blocking = g.opt.blocking_streams && g.rng.percent(65);
            let device = if g.rng.percent(60) { 0 } else { g.device() };
            let (name, kind) = match (blocking, g.rng.percent(30)) {
                (true, true) => (format!("y{i}"), StreamKind::PerThread),
                (true, false) => (format!("b{i}"), StreamKind::Blocking),
                (false, declared) if declared || device != 0 => {
                    (format!("n{i}"), StreamKind::NonBlocking)
                }
                (false, _) => (format!("s{i}"), StreamKind::NonBlocking),
            };
            if !name.starts_with('s') {
                g.prog.streams.push((name.clone(), kind, device));
            }
            g.new_stream(Some(name), kind, device);
        }
        for _ in 0..1 + g.rng.below(2) {
            g.new_buffer(MemKind::Dev, None);
        }
        if g.opt.host_memory {
            for kind in [MemKind::Pinned, MemKind::Pageable, MemKind::Managed] {
                if g.rng.percent(50) {
                    g.new_buffer(kind, None);
                }
            }
        }
        for i in 0..2 + g.rng.below(3) {
            let kind = match g.rng.below(10) {
                0 => EventKind::NoTiming,
                1 | 2 => EventKind::Device(g.device()),
                _ => EventKind::Plain,
            };
            g.new_event(format!("e{i}"), kind);
        }
        g
    }

    fn device(&mut self) -> u32 {
        u32::try_from(self.rng.below(self.opt.devices as usize)).expect("few devices")
    }

    fn place(&mut self, owner: Owner) -> usize {
        self.owners.push(owner);
        self.owners.len() - 1
    }

    fn new_stream(&mut self, name: Option<String>, kind: StreamKind, device: u32) -> usize {
        let place = self.place(Owner::Stream(self.streams.len()));
        self.streams.push(GStream {
            name,
            kind,
            device,
            place,
            clock: Clock::default(),
            alive: true,
            capture: None,
        });
        self.streams.len() - 1
    }

    /// A buffer with a fresh name: on fresh bytes, or on a part of an earlier one.
    fn new_buffer(&mut self, mem: MemKind, over: Option<(usize, u64, u64)>) -> usize {
        self.serial += 1;
        let n = self.serial;
        let declared = over.is_some() || self.rng.percent(25);
        let name = match mem {
            _ if declared => format!("buf{n}"),
            MemKind::Dev => format!("{}{n}", self.rng.pick(&['A', 'B', 'C', 'Q', 'Z'])),
            MemKind::Pinned => format!("H{n}"),
            MemKind::Pageable => format!("P{n}"),
            MemKind::Managed => format!("M{n}"),
        };
        let size = match over {
            Some((_, lo, hi)) => hi - lo,
            None if declared => self.rng.pick(&[16, 64, 1024, 4096]),
            None => 1024,
        };
        if declared {
            self.prog.buffers.push((name.clone(), mem, size));
        }
        let (region, base) = match over {
            Some((under, lo, _)) => (self.buffers[under].region, self.buffers[under].base + lo),
            None => {
                self.regions.push(Vec::new());
                (self.regions.len() - 1, 0)
            }
        };
        self.buffers.push(GBuffer {
            name,
            mem,
            size,
            life: Life::Plain,
            region,
            base,
            noted: Vec::new(),
            events_at_free: Clock::default(),
            had_events: false,
            users: Vec::new(),
        });
        self.buffers.len() - 1
    }

    fn new_event(&mut self, name: String, kind: EventKind) -> usize {
        if kind != EventKind::Plain {
            self.prog.events.push((name.clone(), kind));
        }
        self.events.push(GEvent {
            name,
            kind,
            record: None,
        });
        self.events.len() - 1
    }

    fn serial(&mut self) -> usize {
        self.serial += 1;
        self.serial
    }

    // --- emitting ---------------------------------------------------------------------------------------------------

    /// Appends an op. The caller has already told the clocks, or does so afterwards.
    fn emit(&mut self, t: usize, act: Act) {
        let is_sync = matches!(
            act,
            Act::SyncStream { .. } | Act::SyncEvent { .. } | Act::SyncDevice { .. }
        );
        let site = (self.opt.sites && self.rng.percent(if is_sync { 75 } else { 40 })).then(|| {
            let names = if is_sync {
                ["wait", "wait", "finish"]
            } else {
                ["render", "draw", "upload"]
            };
            self.rng.pick(&names).to_string()
        });
        let thread = self.threads[t].name.clone();
        self.prog.ops.push(Op { thread, site, act });
        let place = self.threads[t].place;
        self.threads[t].clock.tick(place);
    }

    fn name(&self, s: usize) -> String {
        self.streams[s]
            .name
            .clone()
            .expect("an unnamed stream is not used by name")
    }

    /// An action of thread `t` in stream `s`: what the stream knows afterwards. Gives back the tick of the action.
    fn act_in(&mut self, t: usize, s: usize) -> u32 {
        let mut clock = self.streams[s].clock.clone();
        clock.join(&self.threads[t].clock);
        clock.join(&self.implied(s));
        let place = self.streams[s].place;
        clock.tick(place);
        let tick = clock.get(place);
        self.streams[s].clock = clock;
        tick
    }

    /// What an action in the stream gets to know from the legacy rule.
    fn implied(&self, s: usize) -> Clock {
        let mut clock = Clock::default();
        let stream = &self.streams[s];
        if stream.kind == StreamKind::Legacy {
            for other in &self.streams {
                if other.device == stream.device && other.kind.is_blocking() {
                    clock.join(&other.clock);
                }
            }
        } else if stream.kind.is_blocking() {
            clock.join(&self.streams[stream.device as usize].clock);
        }
        clock
    }

    /// What a host thread gets to know from a sync of the stream.
    fn sync_clock(&self, s: usize) -> Clock {
        let mut clock = self.streams[s].clock.clone();
        if self.streams[s].kind == StreamKind::Legacy {
            clock.join(&self.implied(s));
        }
        clock
    }

    /// Notes an access at a place.
    fn touch(&mut self, place: usize, tick: u32, part: &Part, write: bool) {
        let b = self.buffer_named(&part.buf);
        let (lo, hi) = part.range.unwrap_or((0, self.buffers[b].size));
        let (region, base) = (self.buffers[b].region, self.buffers[b].base);
        if let Owner::Stream(s) = self.owners[place] {
            self.buffers[b].users.push(s);
        }
        self.regions[region].push(GAccess {
            place,
            tick,
            write,
            lo: base + lo,
            hi: base + hi,
        });
    }

    fn buffer_named(&self, name: &str) -> usize {
        self.buffers
            .iter()
            .position(|b| b.name == name)
            .expect("a known buffer")
    }

    // --- choosing ---------------------------------------------------------------------------------------------------

    fn thread(&mut self) -> usize {
        self.rng.below(self.opt.threads)
    }

    fn any_capture(&self) -> bool {
        self.captures.iter().any(|c| c.running)
    }

    /// May the legacy stream of the device be used now?
    fn legacy_ok(&self, device: u32) -> bool {
        !self
            .streams
            .iter()
            .any(|s| s.device == device && s.kind.is_blocking() && s.capture.is_some())
    }

    /// May ops name the stream as one that does not capture?
    fn usable(&self, s: usize) -> bool {
        let stream = &self.streams[s];
        stream.alive
            && stream.name.is_some()
            && stream.capture.is_none()
            && (stream.kind != StreamKind::Legacy || self.legacy_ok(stream.device))
    }

    fn pick_stream(&mut self) -> Option<usize> {
        let usable: Vec<usize> = (0..self.streams.len())
            .filter(|&s| self.usable(s))
            .collect();
        (!usable.is_empty()).then(|| self.rng.pick(&usable))
    }

    fn pick_captured(&mut self) -> Option<usize> {
        let captured: Vec<usize> = (0..self.streams.len())
            .filter(|&s| self.streams[s].capture.is_some())
            .collect();
        (!captured.is_empty()).then(|| self.rng.pick(&captured))
    }

    fn pick_buffer(&mut self, kinds: &[MemKind]) -> Option<usize> {
        let live: Vec<usize> = (0..self.buffers.len())
            .filter(|&b| self.buffers[b].life != Life::Dead && kinds.contains(&self.buffers[b].mem))
            .collect();
        (!live.is_empty()).then(|| self.rng.pick(&live))
    }

    fn part(&mut self, b: usize) -> Part {
        let name = self.buffers[b].name.clone();
        let size = self.buffers[b].size;
        if !self.opt.ranges || self.rng.percent(50) {
            return Part::whole(&name);
        }
        let quarter = size / 4;
        let lo = self.rng.below(4) as u64;
        let hi = if self.rng.percent(6) {
            lo
        } else {
            lo + 1 + self.rng.below(4 - usize::try_from(lo).expect("small")) as u64
        };
        let nudge = u64::from(quarter > 1 && lo < hi && self.rng.percent(20));
        Part {
            buf: name,
            range: Some((lo * quarter + nudge, hi * quarter)),
        }
    }

    fn parts(&mut self, kinds: &[MemKind], most: usize) -> Vec<Part> {
        let count = self.rng.below(most + 1);
        (0..count)
            .filter_map(|_| {
                let b = self.pick_buffer(kinds)?;
                Some(self.part(b))
            })
            .collect()
    }

    /// An event that may be recorded in the stream and was not recorded in a capture.
    fn pick_event(&mut self, device: u32) -> usize {
        let fitting: Vec<usize> = (0..self.events.len())
            .filter(|&e| match self.events[e].kind {
                EventKind::Device(d) => d == device,
                _ => true,
            })
            .collect();
        if fitting.is_empty() {
            let n = self.serial();
            return self.new_event(format!("e_{n}"), EventKind::Plain);
        }
        self.rng.pick(&fitting)
    }

    // --- ordering ---------------------------------------------------------------------------------------------------

    /// Orders what is to be accessed behind what conflicts with it, as far as care is taken. False if it should be
    /// ordered and cannot be now.
    fn prepare(&mut self, t: usize, target: Target, parts: &[(Part, bool)]) -> bool {
        for (part, write) in parts {
            let b = self.buffer_named(&part.buf);
            let (lo, hi) = part.range.unwrap_or((0, self.buffers[b].size));
            let (region, base) = (self.buffers[b].region, self.buffers[b].base);
            let mut next = 0;
            while next < self.regions[region].len() {
                let a = &self.regions[region][next];
                next += 1;
                let conflict = (a.write || *write) && a.lo < base + hi && base + lo < a.hi;
                let (place, tick) = (a.place, a.tick);
                if !conflict || self.knows(t, target).get(place) >= tick {
                    continue;
                }
                if self.rng.percent(self.opt.care) && !self.order(t, target, place) {
                    return false;
                }
            }
        }
        true
    }

    fn knows(&self, t: usize, target: Target) -> Clock {
        let mut clock = self.threads[t].clock.clone();
        match target {
            Target::Thread(t) => clock.join(&self.threads[t].clock),
            Target::Stream(s) => {
                clock.join(&self.streams[s].clock);
                clock.join(&self.implied(s));
            }
            Target::Upload(device) => clock.join(&self.sync_clock(device as usize)),
        }
        clock
    }

    /// Emits something after which `target` comes behind all that happened at `place`.
    fn order(&mut self, t: usize, target: Target, place: usize) -> bool {
        match self.owners[place] {
            Owner::Thread(other) => {
                if other != t {
                    self.flag(other, t);
                }
                true
            }
            Owner::Stream(q) => {
                let quiet = !self.any_capture();
                let mut ways: Vec<u32> = Vec::new();
                if self.usable(q) {
                    if let Target::Stream(s) = target
                        && self.usable(s)
                    {
                        ways.extend([0, 0, 0, 1, 1, 1]);
                        let both = self.streams[s].kind.is_blocking()
                            && self.streams[q].kind.is_blocking();
                        let device = self.streams[s].device;
                        if both && device == self.streams[q].device && self.usable(device as usize)
                        {
                            ways.extend([2, 2, 2]);
                        }
                    }
                    if quiet {
                        ways.extend([3, 4, 5, 5, 6]);
                    }
                    if self.opt.host_funcs {
                        ways.push(7);
                    }
                    if quiet
                        && self.streams[q].kind.is_blocking()
                        && self.usable(self.streams[q].device as usize)
                    {
                        ways.push(8);
                    }
                }
                if quiet {
                    ways.push(6);
                }
                if ways.is_empty() {
                    return false;
                }
                let way = self.rng.pick(&ways);
                self.order_by(way, t, target, q);
                true
            }
        }
    }

    fn order_by(&mut self, way: u32, t: usize, target: Target, q: usize) {
        match (way, target) {
            (0, Target::Stream(s)) => self.wait_stream(t, s, q),
            (1, Target::Stream(s)) => {
                let e = self.pick_event(self.streams[q].device);
                self.record(t, e, q);
                self.wait(t, s, e);
            }
            (2, Target::Stream(s)) => {
                let legacy = self.streams[s].device as usize;
                let e = self.pick_event(self.streams[q].device);
                self.record(t, e, legacy);
            }
            (3, _) => self.sync_stream(t, q),
            (4, _) => {
                let st = self.name(q);
                self.emit(t, Act::QueryStream { st, ready: true });
                let known = self.sync_clock(q);
                self.threads[t].clock.join(&known);
            }
            (5, _) => {
                let e = self.pick_event(self.streams[q].device);
                self.record(t, e, q);
                let by_query = self.rng.percent(40);
                self.sync_event(t, e, by_query);
            }
            (7, _) => {
                let flag = self.flag_name();
                self.act_in(t, q);
                self.flags
                    .push((flag.clone(), self.streams[q].clock.clone()));
                let s = self.name(q);
                self.emit(
                    t,
                    Act::HostFunc {
                        s,
                        r: Vec::new(),
                        w: Vec::new(),
                        sets: Some(flag.clone()),
                    },
                );
                self.wait_flag(t, &flag);
            }
            (8, _) => self.sync_stream(t, self.streams[q].device as usize),
            _ => self.sync_device(t, self.streams[q].device),
        }
    }

    fn flag_name(&mut self) -> String {
        if !self.flags.is_empty() && self.rng.percent(15) {
            let at = self.rng.below(self.flags.len());
            return self.flags[at].0.clone();
        }
        format!("f{}", self.serial())
    }

    fn flag(&mut self, from: usize, to: usize) {
        let flag = self.flag_name();
        self.flags
            .push((flag.clone(), self.threads[from].clock.clone()));
        self.emit(from, Act::SetFlag { flag: flag.clone() });
        self.wait_flag(to, &flag);
    }

    fn wait_flag(&mut self, t: usize, flag: &str) {
        let raised = self.flags.iter().rev().find(|f| f.0 == flag);
        let known = raised.expect("raised further up").1.clone();
        self.emit(
            t,
            Act::WaitFlag {
                flag: flag.to_string(),
            },
        );
        self.threads[t].clock.join(&known);
    }

    fn wait_stream(&mut self, t: usize, s: usize, src: usize) {
        self.act_in(t, src);
        let known = self.streams[src].clock.clone();
        self.act_in(t, s);
        self.streams[s].clock.join(&known);
        let act = Act::WaitStream {
            s: self.name(s),
            src: self.name(src),
        };
        self.emit(t, act);
    }

    fn record(&mut self, t: usize, e: usize, s: usize) {
        let tick = self.act_in(t, s);
        let stream = &self.streams[s];
        self.events[e].record = Some((stream.clock.clone(), stream.place, tick, stream.device));
        let act = Act::Record {
            ev: self.events[e].name.clone(),
            s: self.name(s),
        };
        self.emit(t, act);
    }

    fn wait(&mut self, t: usize, s: usize, e: usize) {
        if let Some((known, ..)) = self.events[e].record.clone() {
            self.act_in(t, s);
            self.streams[s].clock.join(&known);
        }
        let act = Act::Wait {
            s: self.name(s),
            ev: self.events[e].name.clone(),
        };
        self.emit(t, act);
    }

    fn sync_stream(&mut self, t: usize, s: usize) {
        let st = self.name(s);
        self.emit(t, Act::SyncStream { st });
        let known = self.sync_clock(s);
        self.threads[t].clock.join(&known);
    }

    fn sync_event(&mut self, t: usize, e: usize, by_query: bool) {
        let ev = self.events[e].name.clone();
        let act = if by_query {
            Act::QueryEvent { ev, ready: true }
        } else {
            Act::SyncEvent { ev }
        };
        self.emit(t, act);
        if let Some((known, ..)) = self.events[e].record.clone() {
            self.threads[t].clock.join(&known);
        }
    }

    fn sync_device(&mut self, t: usize, device: u32) {
        let named = self.threads[t].device != device || self.rng.percent(40);
        self.emit(
            t,
            Act::SyncDevice {
                dev: named.then_some(device),
            },
        );
        for s in 0..self.streams.len() {
            if self.streams[s].device == device {
                let known = self.streams[s].clock.clone();
                self.threads[t].clock.join(&known);
            }
        }
    }

    // --- actions ----------------------------------------------------------------------------------------------------

    fn run(&mut self) {
        if self.opt.runtime {
            self.pool();
        }
        let error_at = self.opt.error.then(|| self.rng.below(self.opt.ops));
        let mut tries = 0;
        while self.prog.ops.len() < self.opt.ops && tries < 200 {
            tries += 1;
            if let Some(at) = error_at
                && self.prog.ops.len() >= at
                && self.inject_error()
            {
                // What follows is not looked at any more; there is some of it all the same.
                for _ in 0..self.rng.below(3) {
                    let buf = Part::whole(&self.buffers[0].name);
                    let act = Act::Memset { to: buf };
                    self.emit(0, act);
                }
                return;
            }
            self.step();
        }
        if self.rng.percent(90) {
            while let Some(c) = self.captures.iter().position(|c| c.running) {
                if self.prog.ops.len() > MOST_OPS - 10 {
                    break;
                }
                self.end_capture(c);
            }
        }
    }

    /// One step: an action that the options allow, drawn by weight.
    fn step(&mut self) {
        let captured = self.any_capture();
        let t = self.thread();
        let o = &self.opt;
        let on = |switch: bool, weight: u32| if switch { weight } else { 0 };
        let weights: [(u32, Action); 18] = [
            (20, Gen::kernel),
            (8, Gen::copy_async),
            (4, Gen::memset_async),
            (on(o.blocking_calls, 9), Gen::blocking_call),
            (on(o.host_funcs, 6), Gen::host_func),
            (on(o.graphs, 6), Gen::graph_launch),
            (on(o.host_memory, 12), Gen::host_access),
            (on(o.events, 8), Gen::event_noise),
            (2, Gen::sync_noise),
            (on(o.allocator && !captured, 24), Gen::allocator),
            (on(o.lifetimes && !captured, 12), Gen::lifetimes),
            (on(o.devices > 1, 2), Gen::change_device),
            (on(o.stream_lifetimes, 3), Gen::stream_lifetime),
            (on(o.timing, 5), Gen::elapsed),
            (on(o.threads > 1, 2), Gen::some_flag),
            (on(o.captures && !captured, 5), Gen::begin_capture),
            (on(captured, 30), Gen::capture_step),
            (on(o.runtime, 4), Gen::simulate),
        ];
        let mut drawn = self.rng.below(weights.iter().map(|w| w.0 as usize).sum());
        for (weight, action) in weights {
            if drawn < weight as usize {
                return action(self, t);
            }
            drawn -= weight as usize;
        }
    }

    fn change_device(&mut self, t: usize) {
        let dev = self.device();
        self.set_device(t, dev);
    }

    fn some_flag(&mut self, t: usize) {
        let other = self.thread();
        self.flag(t, other);
    }

    fn simulate(&mut self, t: usize) {
        let act = match (self.pick_stream(), self.rng.below(3)) {
            (Some(s), 0) => Act::SimHold { st: self.name(s) },
            (Some(s), 1) => Act::SimRelease { st: self.name(s) },
            _ => Act::SetCapacity { blocks: 4 },
        };
        self.emit(t, act);
    }

    fn set_device(&mut self, t: usize, dev: u32) {
        self.threads[t].device = dev;
        self.emit(t, Act::SetDevice { dev });
    }

    /// Puts work into a stream. The parts say what is read and written.
    fn work(&mut self, t: usize, s: usize, r: &[Part], w: &[Part], act: Act) -> bool {
        if self.streams[s].capture.is_some() {
            self.captured_work(s);
            self.emit(t, act);
            return true;
        }
        let mut all: Vec<(Part, bool)> = r.iter().map(|p| (p.clone(), false)).collect();
        all.extend(w.iter().map(|p| (p.clone(), true)));
        if !self.prepare(t, Target::Stream(s), &all) {
            return false;
        }
        let tick = self.act_in(t, s);
        for (part, write) in &all {
            self.touch(self.streams[s].place, tick, part, *write);
        }
        self.emit(t, act);
        true
    }

    /// A stream for work: one that captures or one that does not.
    fn work_stream(&mut self) -> Option<usize> {
        if self.any_capture() && self.rng.percent(50) {
            return self.pick_captured();
        }
        self.pick_stream()
    }

    fn kernel(&mut self, t: usize) {
        let Some(s) = self.work_stream() else { return };
        self.kernel_on(t, s);
    }

    fn kernel_on(&mut self, t: usize, s: usize) {
        let kinds = [
            MemKind::Dev,
            MemKind::Dev,
            MemKind::Managed,
            MemKind::Pinned,
        ];
        let kinds: &[MemKind] = if self.rng.percent(70) {
            &kinds[..1]
        } else {
            &kinds
        };
        let mut r = self.parts(kinds, 2);
        let mut w = if self.rng.percent(70) {
            self.parts(kinds, 2)
        } else {
            Vec::new()
        };
        if r.is_empty()
            && w.is_empty()
            && let Some(b) = self.pick_buffer(kinds)
        {
            w.push(self.part(b));
        }
        if self.rng.percent(2)
            && let Some(dead) =
                (0..self.buffers.len()).find(|&b| self.buffers[b].life == Life::Dead)
        {
            r.push(Part::whole(&self.buffers[dead].name));
        }
        let device = self.streams[s].device;
        if self.threads[t].device != device && self.rng.percent(85) {
            self.set_device(t, device);
        }
        let repeat = self.rng.percent(8).then(|| 1 + self.rng.below(4) as u64);
        let act = Act::Kernel {
            s: self.name(s),
            r: r.clone(),
            w: w.clone(),
            repeat,
        };
        self.work(t, s, &r, &w, act);
    }

    fn any_memory(&mut self) -> &'static [MemKind] {
        match self.rng.below(4) {
            0 => &[MemKind::Dev],
            1 => &[MemKind::Pinned],
            2 => &[MemKind::Dev, MemKind::Managed, MemKind::Pinned],
            _ => &[
                MemKind::Dev,
                MemKind::Managed,
                MemKind::Pinned,
                MemKind::Pageable,
            ],
        }
    }

    fn two_parts(&mut self) -> Option<(Part, Part)> {
        let (first, second) = (self.any_memory(), self.any_memory());
        let from = self.pick_buffer(first)?;
        let to = self.pick_buffer(second)?;
        if self.buffers[from].region == self.buffers[to].region {
            return None;
        }
        Some((self.part(from), self.part(to)))
    }

    fn host_side(&self, part: &Part) -> bool {
        let b = self.buffer_named(&part.buf);
        matches!(self.buffers[b].mem, MemKind::Pinned | MemKind::Pageable)
    }

    fn copy_async(&mut self, t: usize) {
        let Some(s) = self.work_stream() else { return };
        let Some((from, to)) = self.two_parts() else {
            return;
        };
        let captured = self.streams[s].capture.is_some();
        let blocks = self.host_side(&from) && self.host_side(&to) && !captured;
        let act = Act::CopyAsync {
            s: self.name(s),
            from: from.clone(),
            to: to.clone(),
        };
        if self.work(t, s, &[from], &[to], act) && blocks {
            let known = self.streams[s].clock.clone();
            self.threads[t].clock.join(&known);
        }
    }

    fn memset_async(&mut self, t: usize) {
        let Some(s) = self.work_stream() else { return };
        let kinds = self.any_memory();
        let Some(b) = self.pick_buffer(kinds) else {
            return;
        };
        let to = self.part(b);
        let act = Act::MemsetAsync {
            s: self.name(s),
            to: to.clone(),
        };
        self.work(t, s, &[], &[to], act);
    }

    fn blocking_call(&mut self, t: usize) {
        let device = self.threads[t].device;
        if !self.legacy_ok(device) {
            return;
        }
        let legacy = device as usize;
        if self.rng.percent(25) {
            let kinds = self.any_memory();
            let Some(b) = self.pick_buffer(kinds) else {
                return;
            };
            let to = self.part(b);
            let waits = matches!(self.buffers[b].mem, MemKind::Pinned | MemKind::Managed);
            let act = Act::Memset { to: to.clone() };
            if self.work(t, legacy, &[], &[to], act) && waits {
                let known = self.streams[legacy].clock.clone();
                self.threads[t].clock.join(&known);
            }
            return;
        }
        let Some((from, to)) = self.two_parts() else {
            return;
        };
        let act = Act::Copy {
            from: from.clone(),
            to: to.clone(),
        };
        let source = self.buffers[self.buffer_named(&from.buf)].mem;
        let upload = self.host_side(&from) && !self.host_side(&to);
        if upload && source == MemKind::Pageable {
            if !self.prepare(t, Target::Upload(device), &[(from.clone(), false)])
                || !self.prepare(t, Target::Stream(legacy), &[(to.clone(), true)])
            {
                return;
            }
            let known = self.sync_clock(legacy);
            self.threads[t].clock.join(&known);
            self.emit(t, act);
            let place = self.threads[t].place;
            self.touch(place, self.threads[t].clock.get(place), &from, false);
            let tick = self.act_in(t, legacy);
            self.touch(self.streams[legacy].place, tick, &to, true);
            return;
        }
        let waits = self.host_side(&from) || self.host_side(&to);
        if self.work(t, legacy, &[from], &[to], act) && waits {
            let known = self.streams[legacy].clock.clone();
            self.threads[t].clock.join(&known);
        }
    }

    fn host_func(&mut self, t: usize) {
        let Some(s) = self.work_stream() else { return };
        let kinds = [MemKind::Pinned, MemKind::Pageable, MemKind::Managed];
        let r = self.parts(&kinds, 1);
        let w = self.parts(&kinds, 1);
        let captured = self.streams[s].capture.is_some();
        let sets = (!captured && self.rng.percent(50)).then(|| self.flag_name());
        let act = Act::HostFunc {
            s: self.name(s),
            r: r.clone(),
            w: w.clone(),
            sets: sets.clone(),
        };
        if !self.work(t, s, &r, &w, act) {
            return;
        }
        if let Some(flag) = sets {
            self.flags
                .push((flag.clone(), self.streams[s].clock.clone()));
            if self.rng.percent(60) {
                let waiter = self.thread();
                self.wait_flag(waiter, &flag);
            }
        }
    }

    fn graph_launch(&mut self, t: usize) {
        let Some(s) = self.work_stream() else { return };
        let g = self.rng.pick(&["g0", "g1"]).to_string();
        let r = self.parts(&[MemKind::Dev, MemKind::Pinned], 1);
        let w = self.parts(&[MemKind::Dev], 2);
        let act = Act::GraphLaunch {
            s: self.name(s),
            g: g.clone(),
            r: r.clone(),
            w: w.clone(),
        };
        let captured = self.streams[s].capture.is_some();
        if !captured
            && let Some((_, earlier)) = self.graphs.iter().rev().find(|(name, _)| *name == g)
        {
            // Known to the stream before its own action, so that `prepare` does not order what R49 orders.
            let earlier = earlier.clone();
            self.streams[s].clock.join(&earlier);
        }
        if self.work(t, s, &r, &w, act) && !captured {
            self.graphs.push((g, self.streams[s].clock.clone()));
        }
    }

    fn host_access(&mut self, t: usize) {
        let kinds = [MemKind::Pinned, MemKind::Pageable, MemKind::Managed];
        let Some(b) = self.pick_buffer(&kinds) else {
            return;
        };
        let buf = self.part(b);
        let write = self.rng.percent(50);
        if !self.prepare(t, Target::Thread(t), &[(buf.clone(), write)]) {
            return;
        }
        let act = if write {
            Act::HostWrite { buf: buf.clone() }
        } else {
            Act::HostRead { buf: buf.clone() }
        };
        self.emit(t, act);
        let place = self.threads[t].place;
        self.touch(place, self.threads[t].clock.get(place), &buf, write);
    }

    fn event_noise(&mut self, t: usize) {
        let Some(s) = self.pick_stream() else { return };
        match self.rng.below(10) {
            0..=3 => {
                let e = self.pick_event(self.streams[s].device);
                self.record(t, e, s);
            }
            4..=6 => {
                let e = self.rng.below(self.events.len());
                if self.events[e].record.is_some() || self.rng.percent(25) {
                    self.wait(t, s, e);
                }
            }
            7 if !self.any_capture() => {
                let e = self.rng.below(self.events.len());
                let by_query = self.rng.percent(50);
                self.sync_event(t, e, by_query);
            }
            8 => {
                let e = self.rng.below(self.events.len());
                self.events[e].record = None;
                let ev = self.events[e].name.clone();
                let act = if self.rng.percent(50) {
                    Act::CreateEvent { ev }
                } else {
                    Act::DestroyEvent { ev }
                };
                self.emit(t, act);
            }
            9 if !self.any_capture() => {
                let act = if self.rng.percent(50) {
                    let e = self.rng.below(self.events.len());
                    Act::QueryEvent {
                        ev: self.events[e].name.clone(),
                        ready: false,
                    }
                } else {
                    Act::QueryStream {
                        st: self.name(s),
                        ready: false,
                    }
                };
                self.emit(t, act);
            }
            _ => {
                if let Some(src) = self.pick_stream() {
                    self.wait_stream(t, s, src);
                }
            }
        }
    }

    fn sync_noise(&mut self, t: usize) {
        if self.any_capture() {
            return;
        }
        if let Some(s) = self.pick_stream()
            && self.rng.percent(70)
        {
            self.sync_stream(t, s);
        } else {
            let device = self.device();
            self.sync_device(t, device);
        }
    }

    fn allocator(&mut self, t: usize) {
        let cached: Vec<usize> = (0..self.buffers.len())
            .filter(|&b| matches!(self.buffers[b].life, Life::Cached(_)))
            .collect();
        let choice = self.rng.below(10);
        if cached.is_empty() || choice < 2 || (choice < 4 && !self.blocks.is_empty()) {
            self.alloc(t);
            return;
        }
        let b = self.rng.pick(&cached);
        match choice {
            // Someone uses the block, more likely than other buffers are used.
            4 | 5 => {
                let Some(s) = self.pick_stream() else { return };
                let part = self.part(b);
                let (r, w) = if self.rng.percent(50) {
                    (vec![part], vec![])
                } else {
                    (vec![], vec![part])
                };
                let act = Act::Kernel {
                    s: self.name(s),
                    r: r.clone(),
                    w: w.clone(),
                    repeat: None,
                };
                self.work(t, s, &r, &w, act);
            }
            6 => {
                if let Some(s) = self.pick_stream() {
                    self.record_stream(t, b, s);
                }
            }
            _ => self.free(t, b),
        }
    }

    fn record_stream(&mut self, t: usize, b: usize, s: usize) {
        if self.buffers[b].life != Life::Cached(Some(s)) && !self.buffers[b].noted.contains(&s) {
            self.buffers[b].noted.push(s);
        }
        let act = Act::RecordStream {
            buf: self.buffers[b].name.clone(),
            st: self.name(s),
        };
        self.emit(t, act);
    }

    fn alloc(&mut self, t: usize) {
        if !self.blocks.is_empty() && self.rng.percent(75) {
            let at = self.rng.below(self.blocks.len());
            let block = self.blocks.remove(at);
            let under = block.buffer;
            let Life::Cached(home) = self.home_of_dead(under) else {
                return;
            };
            if home.is_some_and(|s| !self.usable(s)) {
                return;
            }
            let (mut lo, mut hi) = (block.lo, block.hi);
            if self.opt.ranges && hi - lo >= 8 && self.rng.percent(50) {
                // Half of the block; the other half may be handed out as well.
                let middle = lo + (hi - lo) / 2;
                let (mine, rest) = if self.rng.percent(50) {
                    ((lo, middle), (middle, hi))
                } else {
                    ((middle, hi), (lo, middle))
                };
                self.blocks.push(Block {
                    buffer: under,
                    lo: rest.0,
                    hi: rest.1,
                });
                (lo, hi) = mine;
            }
            let whole = lo == 0 && hi == self.buffers[under].size;
            let mem = self.buffers[under].mem;
            let b = self.new_buffer(mem, Some((under, lo, hi)));
            self.buffers[b].life = Life::Cached(home);
            let after_events = if self.buffers[under].had_events {
                self.rng.percent(85)
            } else {
                self.rng.percent(10)
            };
            let act = Act::Alloc {
                buf: self.buffers[b].name.clone(),
                s: home.map(|s| self.name(s)),
                over: Some(Part {
                    buf: self.buffers[under].name.clone(),
                    range: (!whole).then_some((lo, hi)),
                }),
                after_events,
            };
            self.emit(t, act);
            if after_events {
                let known = self.buffers[under].events_at_free.clone();
                self.threads[t].clock.join(&known);
            }
            return;
        }
        let pinned = self.opt.host_memory && self.rng.percent(25);
        let home = if pinned { None } else { self.pick_stream() };
        if !pinned && home.is_none() {
            return;
        }
        let b = self.new_buffer(
            if pinned {
                MemKind::Pinned
            } else {
                MemKind::Dev
            },
            None,
        );
        self.buffers[b].life = Life::Cached(home);
        let act = Act::Alloc {
            buf: self.buffers[b].name.clone(),
            s: home.map(|s| self.name(s)),
            over: None,
            after_events: false,
        };
        self.emit(t, act);
    }

    /// The home stream of a freed block is kept as the first of its users.
    fn home_of_dead(&self, b: usize) -> Life {
        match self.buffers[b].mem {
            MemKind::Pinned => Life::Cached(None),
            _ => Life::Cached(self.buffers[b].users.first().copied()),
        }
    }

    fn free(&mut self, t: usize, b: usize) {
        let Life::Cached(home) = self.buffers[b].life else {
            return;
        };
        let mut users = self.buffers[b].users.clone();
        users.sort_unstable();
        users.dedup();
        for s in users {
            if Some(s) == home || !self.usable(s) || !self.rng.percent(self.opt.care) {
                continue;
            }
            match home {
                Some(home) if self.usable(home) && self.rng.percent(30) => {
                    self.wait_stream(t, home, s)
                }
                _ => self.record_stream(t, b, s),
            }
        }
        let noted = std::mem::take(&mut self.buffers[b].noted);
        if noted.iter().any(|&s| !self.usable(s)) {
            self.buffers[b].noted = noted;
            return;
        }
        let mut known = Clock::default();
        for &s in &noted {
            self.act_in(t, s);
            known.join(&self.streams[s].clock);
        }
        let buffer = &mut self.buffers[b];
        buffer.events_at_free = known;
        buffer.had_events = !noted.is_empty();
        buffer.life = Life::Dead;
        buffer.users = home.into_iter().collect();
        let (buf, hi) = (buffer.name.clone(), buffer.size);
        self.blocks.push(Block {
            buffer: b,
            lo: 0,
            hi,
        });
        self.emit(t, Act::Free { buf });
    }

    fn lifetimes(&mut self, t: usize) {
        match self.rng.below(10) {
            0..=2 => {
                let Some(s) = self.pick_stream() else { return };
                let b = self.new_buffer(MemKind::Dev, None);
                self.buffers[b].life = Life::MallocAsync;
                let buf = self.buffers[b].name.clone();
                let tick = self.act_in(t, s);
                self.touch(self.streams[s].place, tick, &Part::whole(&buf), true);
                let s = self.name(s);
                self.emit(t, Act::MallocAsync { buf, s });
            }
            3 => {
                let managed = self.rng.percent(30);
                let b = self.new_buffer(
                    if managed {
                        MemKind::Managed
                    } else {
                        MemKind::Dev
                    },
                    None,
                );
                let buf = self.buffers[b].name.clone();
                self.emit(t, Act::CudaMalloc { buf });
            }
            4..=6 => {
                let Some(b) = self.one_with_life(Life::MallocAsync, &[MemKind::Dev]) else {
                    return;
                };
                let Some(s) = self.pick_stream() else { return };
                let buf = self.buffers[b].name.clone();
                let act = Act::FreeAsync {
                    buf: buf.clone(),
                    s: self.name(s),
                };
                if self.work(t, s, &[], &[Part::whole(&buf)], act) {
                    self.buffers[b].life = Life::Dead;
                }
            }
            7 | 8 => {
                let life = self.rng.pick(&[Life::Plain, Life::MallocAsync]);
                let Some(b) = self.one_with_life(life, &[MemKind::Dev, MemKind::Managed]) else {
                    return;
                };
                self.end_on_host(t, b, false);
            }
            _ => {
                if let Some(b) = self.one_with_life(Life::Plain, &[MemKind::Pinned]) {
                    self.end_on_host(t, b, true);
                }
            }
        }
    }

    fn one_with_life(&mut self, life: Life, kinds: &[MemKind]) -> Option<usize> {
        let those: Vec<usize> = (0..self.buffers.len())
            .filter(|&b| self.buffers[b].life == life && kinds.contains(&self.buffers[b].mem))
            .collect();
        (!those.is_empty()).then(|| self.rng.pick(&those))
    }

    fn end_on_host(&mut self, t: usize, b: usize, pinned: bool) {
        let buf = self.buffers[b].name.clone();
        let part = Part::whole(&buf);
        if !self.prepare(t, Target::Thread(t), &[(part.clone(), true)]) {
            return;
        }
        let act = if pinned {
            Act::FreePinned { buf }
        } else {
            Act::CudaFree { buf }
        };
        self.emit(t, act);
        let place = self.threads[t].place;
        self.touch(place, self.threads[t].clock.get(place), &part, true);
        self.buffers[b].life = Life::Dead;
    }

    fn stream_lifetime(&mut self, t: usize) {
        let gone: Vec<usize> = (0..self.streams.len())
            .filter(|&s| !self.streams[s].alive && self.streams[s].name.is_some())
            .collect();
        if !gone.is_empty() && self.rng.percent(60) {
            let old = self.rng.pick(&gone);
            let name = self.streams[old].name.take();
            let (kind, device) = (self.streams[old].kind, self.streams[old].device);
            let st = name.clone().expect("filtered");
            self.new_stream(name, kind, device);
            self.emit(t, Act::CreateStream { st });
            return;
        }
        let Some(s) = self.pick_stream() else { return };
        let default = matches!(
            self.streams[s].kind,
            StreamKind::Legacy | StreamKind::PerThread
        );
        let in_use = self.buffers.iter().any(|b| {
            b.noted.contains(&s)
                || b.life == Life::Cached(Some(s))
                || (b.life == Life::Dead && b.users.first() == Some(&s))
        });
        let from_pool = self.name(s).starts_with('p');
        if default || in_use || from_pool {
            return;
        }
        let st = self.name(s);
        self.streams[s].alive = false;
        self.emit(t, Act::DestroyStream { st: st.clone() });
        if self.rng.percent(50) {
            let (kind, device) = (self.streams[s].kind, self.streams[s].device);
            let name = self.streams[s].name.take();
            self.new_stream(name, kind, device);
            self.emit(t, Act::CreateStream { st });
        }
    }

    /// Two recorded events with timing on one device, known complete if care is taken.
    fn elapsed(&mut self, t: usize) {
        if self.any_capture() {
            return;
        }
        let Some(s) = self.pick_stream() else { return };
        let device = self.streams[s].device;
        let usable = |e: &GEvent| match e.kind {
            EventKind::NoTiming => false,
            EventKind::Device(d) => d == device,
            EventKind::Plain => true,
        };
        let fitting: Vec<usize> = (0..self.events.len())
            .filter(|&e| usable(&self.events[e]))
            .collect();
        if fitting.is_empty() {
            return;
        }
        let (a, b) = (self.rng.pick(&fitting), self.rng.pick(&fitting));
        for e in [a, b] {
            let recorded = self.events[e]
                .record
                .as_ref()
                .is_some_and(|r| r.3 == device);
            if !recorded {
                self.record(t, e, s);
            }
        }
        for e in [a, b] {
            let (_, place, tick, _) = self.events[e].record.clone().expect("just recorded");
            if self.threads[t].clock.get(place) < tick && self.rng.percent(self.opt.care.min(85)) {
                let by_query = self.rng.percent(40);
                self.sync_event(t, e, by_query);
            }
        }
        let act = Act::Elapsed {
            a: self.events[a].name.clone(),
            b: self.events[b].name.clone(),
        };
        self.emit(t, act);
    }

    fn pool(&mut self) {
        for i in 0..1 + self.rng.below(2) {
            let count = self.rng.pick(&[2, 5, 31, 32, 33, 34]);
            let (first, last) = (format!("p{i}a"), format!("p{i}b"));
            self.new_stream(Some(first.clone()), StreamKind::NonBlocking, 0);
            self.new_stream(Some(last.clone()), StreamKind::NonBlocking, 0);
            self.emit(0, Act::PoolGet { count, first, last });
        }
    }

    // --- captures ---------------------------------------------------------------------------------------------------

    /// A stream on which a capture may begin.
    fn capturable(&mut self, kind: impl Fn(StreamKind) -> bool) -> Option<usize> {
        let those: Vec<usize> = (0..self.streams.len())
            .filter(|&s| {
                let pool = self.streams[s]
                    .name
                    .as_ref()
                    .is_some_and(|n| n.starts_with('p'));
                self.usable(s)
                    && self.streams[s].kind != StreamKind::Legacy
                    && kind(self.streams[s].kind)
                    && !pool
            })
            .collect();
        (!those.is_empty()).then(|| self.rng.pick(&those))
    }

    fn begin_capture(&mut self, t: usize) {
        if let Some(s) = self.capturable(|_| true) {
            self.begin_on(t, s);
        }
    }

    fn begin_on(&mut self, t: usize, s: usize) {
        self.captures.push(GCapture {
            origin: s,
            thread: t,
            running: true,
            dirty: Vec::new(),
            events: Vec::new(),
        });
        self.streams[s].capture = Some(self.captures.len() - 1);
        let s = self.name(s);
        self.emit(t, Act::BeginCapture { s });
    }

    fn captured_work(&mut self, s: usize) {
        let c = self.streams[s].capture.expect("the stream captures");
        if self.captures[c].origin != s && !self.captures[c].dirty.contains(&s) {
            self.captures[c].dirty.push(s);
        }
    }

    /// Joins captured stream `from` into `to`, which is pulled in if it does not capture yet.
    fn capture_join(&mut self, t: usize, from: usize, to: usize) {
        let c = self.streams[from].capture.expect("the stream captures");
        if self.rng.percent(50) {
            let act = Act::WaitStream {
                s: self.name(to),
                src: self.name(from),
            };
            self.emit(t, act);
        } else {
            let ev = format!("c{}", self.serial());
            self.captures[c].events.push(ev.clone());
            let (from, to) = (self.name(from), self.name(to));
            self.emit(
                t,
                Act::Record {
                    ev: ev.clone(),
                    s: from,
                },
            );
            self.emit(t, Act::Wait { s: to, ev });
        }
        self.streams[to].capture = Some(c);
        let was_dirty = self.captures[c].dirty.contains(&from);
        self.captures[c].dirty.retain(|&d| d != from);
        if was_dirty && to != self.captures[c].origin && !self.captures[c].dirty.contains(&to) {
            self.captures[c].dirty.push(to);
        }
    }

    fn capture_step(&mut self, t: usize) {
        let Some(from) = self.pick_captured() else {
            return;
        };
        let c = self.streams[from].capture.expect("picked");
        match self.rng.below(10) {
            0..=2 => {
                if let Some(to) = self.capturable(|_| true) {
                    self.capture_join(t, from, to);
                    if self.rng.percent(70) {
                        self.kernel_on(t, to);
                    }
                }
            }
            3 | 4 => {
                let members: Vec<usize> = (0..self.streams.len())
                    .filter(|&s| self.streams[s].capture == Some(c) && s != from)
                    .collect();
                if !members.is_empty() {
                    let to = self.rng.pick(&members);
                    self.capture_join(t, from, to);
                }
            }
            5 if !self.captures[c].events.is_empty() => {
                // An old event of the same capture once more.
                let events = self.captures[c].events.clone();
                let act = Act::Wait {
                    s: self.name(from),
                    ev: self.rng.pick(&events),
                };
                self.emit(t, act);
            }
            6 if self.captures.iter().filter(|c| c.running).count() < 2 => self.begin_capture(t),
            _ => self.end_capture(c),
        }
    }

    fn end_capture(&mut self, c: usize) {
        let (t, origin) = (self.captures[c].thread, self.captures[c].origin);
        while let Some(&from) = self.captures[c].dirty.first() {
            self.capture_join(t, from, origin);
        }
        self.captures[c].running = false;
        for s in &mut self.streams {
            if s.capture == Some(c) {
                s.capture = None;
            }
        }
        let s = self.name(origin);
        self.emit(t, Act::EndCapture { s });
    }

    // --- errors -----------------------------------------------------------------------------------------------------

    /// A capture that runs, begun now if there is none. Gives back a stream in it.
    fn some_capture(&mut self, t: usize, kind: impl Fn(StreamKind) -> bool) -> Option<usize> {
        let captured: Vec<usize> = (0..self.streams.len())
            .filter(|&s| self.streams[s].capture.is_some() && kind(self.streams[s].kind))
            .collect();
        if !captured.is_empty() {
            return Some(self.rng.pick(&captured));
        }
        let s = self.capturable(kind)?;
        self.begin_on(t, s);
        if self.rng.percent(50) {
            self.kernel_on(t, s);
        }
        Some(s)
    }

    /// Emits a call that fails. False if that did not work out.
    fn inject_error(&mut self) -> bool {
        let t = self.thread();
        let act = match self.rng.below(18) {
            16 | 17 => self.error_implicit(t),
            0 => self.error_begin_legacy(),
            1 | 2 => self.error_sync_capturing(t),
            3..=5 => self.error_implicit(t),
            6 => self.error_isolation(t),
            7 => self.error_merge(t),
            8 | 9 => self.error_unjoined(t),
            10 => self.error_unmatched(t),
            11 => self.error_wrong_thread(t),
            12 => self.error_captured_event(t),
            13 => self.error_record_device(t),
            _ => self.error_elapsed(t),
        };
        match act {
            Some((t, act)) => {
                self.emit(t, act);
                true
            }
            None => false,
        }
    }

    fn named_legacy(&mut self) -> Option<usize> {
        let those: Vec<usize> = (0..self.opt.devices as usize)
            .filter(|&s| self.streams[s].name.is_some())
            .collect();
        (!those.is_empty()).then(|| self.rng.pick(&those))
    }

    fn error_begin_legacy(&mut self) -> Option<(usize, Act)> {
        let s = self.named_legacy()?;
        Some((self.thread(), Act::BeginCapture { s: self.name(s) }))
    }

    fn error_sync_capturing(&mut self, t: usize) -> Option<(usize, Act)> {
        let s = self.some_capture(t, |_| true)?;
        let st = self.name(s);
        let caller = self.thread();
        let device = self.streams[s].device;
        Some((
            caller,
            match self.rng.below(4) {
                0 => Act::SyncStream { st },
                1 => Act::QueryStream { st, ready: true },
                2 => Act::QueryStream { st, ready: false },
                _ => Act::SyncDevice { dev: Some(device) },
            },
        ))
    }

    fn error_implicit(&mut self, t: usize) -> Option<(usize, Act)> {
        let s = self.some_capture(t, StreamKind::is_blocking)?;
        let device = self.streams[s].device;
        let legacy = device as usize;
        let caller = self.thread();
        let buf = Part::whole(&self.buffers[0].name.clone());
        let named = self.streams[legacy].name.clone();
        let Some(d) = named.filter(|_| self.rng.percent(80)) else {
            if self.threads[caller].device != device {
                self.set_device(caller, device);
            }
            if self.rng.percent(50) {
                return Some((caller, Act::Memset { to: buf }));
            }
            let other = self.new_buffer(MemKind::Pinned, None);
            let from = Part::whole(&self.buffers[other].name);
            return Some((caller, Act::Copy { from, to: buf }));
        };
        let n = self.serial();
        let ev = format!("e_{n}");
        Some((
            caller,
            match self.rng.below(9) {
                0 => Act::Kernel {
                    s: d,
                    r: vec![buf],
                    w: Vec::new(),
                    repeat: None,
                },
                1 => Act::MemsetAsync { s: d, to: buf },
                2 => Act::Record { ev, s: d },
                3 => Act::Wait { s: d, ev },
                4 => Act::SyncStream { st: d },
                5 => Act::QueryStream {
                    st: d,
                    ready: false,
                },
                6 => Act::HostFunc {
                    s: d,
                    r: Vec::new(),
                    w: Vec::new(),
                    sets: None,
                },
                7 => Act::WaitStream {
                    s: d.clone(),
                    src: d,
                },
                _ => Act::GraphLaunch {
                    s: d,
                    g: "g0".to_string(),
                    r: Vec::new(),
                    w: Vec::new(),
                },
            },
        ))
    }

    fn error_isolation(&mut self, t: usize) -> Option<(usize, Act)> {
        let outside = self.capturable(|_| true)?;
        let e = self.pick_event(self.streams[outside].device);
        if self.events[e].record.is_none() {
            self.record(t, e, outside);
        }
        let s = self.some_capture(t, |_| true)?;
        if self.usable(outside) && self.rng.percent(40) {
            return Some((
                t,
                Act::WaitStream {
                    s: self.name(s),
                    src: self.name(outside),
                },
            ));
        }
        Some((
            t,
            Act::Wait {
                s: self.name(s),
                ev: self.events[e].name.clone(),
            },
        ))
    }

    fn error_merge(&mut self, t: usize) -> Option<(usize, Act)> {
        let first = self.some_capture(t, |_| true)?;
        let second = self.capturable(|_| true)?;
        self.begin_on(t, second);
        self.kernel_on(t, second);
        if self.rng.percent(50) {
            return Some((
                t,
                Act::WaitStream {
                    s: self.name(first),
                    src: self.name(second),
                },
            ));
        }
        let ev = format!("c{}", self.serial());
        let act = Act::Record {
            ev: ev.clone(),
            s: self.name(second),
        };
        self.emit(t, act);
        Some((
            t,
            Act::Wait {
                s: self.name(first),
                ev,
            },
        ))
    }

    fn error_unjoined(&mut self, t: usize) -> Option<(usize, Act)> {
        let s = self.some_capture(t, |_| true)?;
        let c = self.streams[s].capture.expect("it captures");
        let origin = self.captures[c].origin;
        let fork = self.capturable(|_| true)?;
        self.capture_join(t, origin, fork);
        self.kernel_on(t, fork);
        Some((
            self.captures[c].thread,
            Act::EndCapture {
                s: self.name(origin),
            },
        ))
    }

    fn error_unmatched(&mut self, t: usize) -> Option<(usize, Act)> {
        if self.rng.percent(50)
            && let Some(s) = self.some_capture(t, |_| true)
        {
            let fork = self.capturable(|_| true)?;
            self.capture_join(t, s, fork);
            return Some((t, Act::EndCapture { s: self.name(fork) }));
        }
        let s = self.pick_stream()?;
        Some((t, Act::EndCapture { s: self.name(s) }))
    }

    fn error_wrong_thread(&mut self, t: usize) -> Option<(usize, Act)> {
        if self.opt.threads < 2 {
            return None;
        }
        let s = self.some_capture(t, |_| true)?;
        let c = self.streams[s].capture.expect("it captures");
        while let Some(&from) = self.captures[c].dirty.first() {
            self.capture_join(t, from, self.captures[c].origin);
        }
        let other = (self.captures[c].thread + 1) % self.opt.threads;
        let s = self.name(self.captures[c].origin);
        Some((other, Act::EndCapture { s }))
    }

    fn error_captured_event(&mut self, t: usize) -> Option<(usize, Act)> {
        let s = self.some_capture(t, |_| true)?;
        let ev = format!("c{}", self.serial());
        let act = Act::Record {
            ev: ev.clone(),
            s: self.name(s),
        };
        self.emit(t, act);
        let caller = self.thread();
        Some((
            caller,
            match self.rng.below(3) {
                0 => Act::SyncEvent { ev },
                1 => Act::QueryEvent { ev, ready: true },
                _ => Act::QueryEvent { ev, ready: false },
            },
        ))
    }

    fn error_record_device(&mut self, t: usize) -> Option<(usize, Act)> {
        if self.opt.devices < 2 {
            return None;
        }
        let s = self.capturable(|_| true)?;
        let wrong = (self.streams[s].device + 1) % self.opt.devices;
        let ev = format!("e_{}", self.serial());
        self.new_event(ev.clone(), EventKind::Device(wrong));
        Some((
            t,
            Act::Record {
                ev,
                s: self.name(s),
            },
        ))
    }

    fn error_elapsed(&mut self, t: usize) -> Option<(usize, Act)> {
        if self.any_capture() {
            return None;
        }
        let s = self.pick_stream()?;
        let e = self.pick_event(self.streams[s].device);
        self.record(t, e, s);
        let good = self.events[e].name.clone();
        let bad = format!("e_{}", self.serial());
        match self.rng.below(3) {
            // Never recorded.
            0 => {}
            1 => {
                let e = self.new_event(bad.clone(), EventKind::NoTiming);
                self.record(t, e, s);
            }
            _ => {
                let device = self.streams[s].device;
                let other = (0..self.streams.len())
                    .find(|&s| self.usable(s) && self.streams[s].device != device)?;
                let e = self.new_event(bad.clone(), EventKind::Plain);
                self.record(t, e, other);
            }
        }
        let (a, b) = if self.rng.percent(50) {
            (good, bad)
        } else {
            (bad, good)
        };
        Some((t, Act::Elapsed { a, b }))
    }
}
