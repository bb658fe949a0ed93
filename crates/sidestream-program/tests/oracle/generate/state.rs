//! The state of the generator.

use std::collections::HashMap;

use super::{Options, Rng};
use crate::oracle::prog::{EventKind, MemKind, Prog, StreamKind};

/// For each place (stream or thread), how much of it is known to be complete.
#[derive(Clone, Default)]
pub(super) struct Clock(Vec<u32>);

impl Clock {
    pub(super) fn get(&self, place: usize) -> u32 {
        self.0.get(place).copied().unwrap_or(0)
    }

    pub(super) fn tick(&mut self, place: usize) {
        if self.0.len() <= place {
            self.0.resize(place + 1, 0);
        }
        self.0[place] += 1;
    }

    pub(super) fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    pub(super) fn meet(&mut self, other: &Clock) {
        self.0.truncate(other.0.len());
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).min(*theirs);
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Owner {
    Thread(usize),
    Stream(usize),
}

/// Where the next access runs.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Thread(usize),
    Stream(usize),
    /// The caller's part of a blocking pageable upload: after a sync of the legacy stream.
    Upload(u32),
}

pub(super) struct GThread {
    pub(super) name: String,
    pub(super) place: usize,
    pub(super) device: u32,
    pub(super) clock: Clock,
}

/// A stream; a name that is created again gets another one.
pub(super) struct GStream {
    pub(super) name: Option<String>,
    pub(super) kind: StreamKind,
    pub(super) device: u32,
    pub(super) place: usize,
    pub(super) clock: Clock,
    pub(super) alive: bool,
    pub(super) capture: Option<usize>,
}

pub(super) struct GCapture {
    pub(super) origin: usize,
    pub(super) thread: usize,
    pub(super) running: bool,
    /// Streams with captured work that the origin has not joined.
    pub(super) dirty: Vec<usize>,
    /// Events recorded in the capture.
    pub(super) events: Vec<String>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Life {
    /// Exists from the start, or comes from `cuda_malloc`.
    Plain,
    MallocAsync,
    /// From the caching allocator, with its home stream.
    Cached(Option<usize>),
    Dead,
}

pub(super) struct GBuffer {
    pub(super) name: String,
    pub(super) mem: MemKind,
    pub(super) size: u64,
    pub(super) life: Life,
    pub(super) region: usize,
    pub(super) base: u64,
    pub(super) noted: Vec<usize>,
    pub(super) events_at_free: Clock,
    pub(super) had_events: bool,
    pub(super) users: Vec<usize>,
}

pub(super) struct GAccess {
    pub(super) place: usize,
    pub(super) tick: u32,
    pub(super) write: bool,
    pub(super) lo: u64,
    pub(super) hi: u64,
}

pub(super) struct GEvent {
    pub(super) name: String,
    pub(super) kind: EventKind,
    pub(super) record: Option<(Clock, usize, u32, u32)>,
}

/// What all raises of a flag since it was last taken have in common.
pub(super) struct Raised {
    pub(super) clock: Clock,
    pub(super) is_taken: bool,
}

/// A freed block of the caching allocator that may be handed out again.
pub(super) struct Block {
    pub(super) buffer: usize,
    pub(super) lo: u64,
    pub(super) hi: u64,
}

/// An action of the generator, by a thread.
pub(super) type Action = fn(&mut Gen, usize);

pub(super) struct Gen {
    pub(super) rng: Rng,
    pub(super) opt: Options,
    pub(super) prog: Prog,
    pub(super) owners: Vec<Owner>,
    pub(super) threads: Vec<GThread>,
    pub(super) streams: Vec<GStream>,
    pub(super) captures: Vec<GCapture>,
    pub(super) buffers: Vec<GBuffer>,
    pub(super) regions: Vec<Vec<GAccess>>,
    pub(super) events: Vec<GEvent>,
    /// The name of each raise, and by name what a thread that waits for the flag may rely on.
    pub(super) flags: Vec<String>,
    pub(super) raised: HashMap<String, Raised>,
    pub(super) graphs: Vec<(String, Clock)>,
    pub(super) blocks: Vec<Block>,
    pub(super) serial: usize,
}

impl Gen {
    pub(super) fn new(seed: u64, opt: Options) -> Gen {
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
            raised: HashMap::new(),
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
        // A legacy stream for each device, at the index of the device, with or without a name.
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

    pub(super) fn device(&mut self) -> u32 {
        u32::try_from(self.rng.below(self.opt.devices as usize)).expect("few devices")
    }

    pub(super) fn place(&mut self, owner: Owner) -> usize {
        self.owners.push(owner);
        self.owners.len() - 1
    }

    pub(super) fn new_stream(
        &mut self,
        name: Option<String>,
        kind: StreamKind,
        device: u32,
    ) -> usize {
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

    /// Returns a buffer with a fresh name: on fresh bytes, or on a part of an earlier one.
    pub(super) fn new_buffer(&mut self, mem: MemKind, over: Option<(usize, u64, u64)>) -> usize {
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

    pub(super) fn new_event(&mut self, name: String, kind: EventKind) -> usize {
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

    pub(super) fn serial(&mut self) -> usize {
        self.serial += 1;
        self.serial
    }
}
