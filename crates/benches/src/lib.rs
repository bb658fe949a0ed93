//! A long random program for measuring the checker; it is the same on every machine.
//!
//! The program has groups of six calls: three kernels (two reads, one write), a copy, a record and a wait, on streams
//! and buffers drawn at random. In a [`Discipline::Ordered`] load every access is ordered after those that it
//! conflicts with, as in a correct program: buffers are drawn again until the stream is ordered after their last
//! uses. A [`Discipline::Racy`] load uses the buffers as drawn.

use std::collections::HashMap;

use sidestream::check::Checker;
use sidestream::op::*;
use sidestream::order::Order;
use sidestream::sim::split_mix;

/// The size of each buffer.
pub const BYTES: u64 = 1024;
/// The number of sites in the program from which calls are made.
pub const SITES: u32 = 256;
/// After this many draws without a buffer that the stream may use, the host waits for all streams.
const PATIENCE: u32 = 1_000;

/// Whether conflicting accesses are ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discipline {
    /// Every access is ordered after those that it conflicts with.
    Ordered,
    /// Accesses as they are drawn.
    Racy,
}

/// The shape of the program to generate.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The number of streams.
    pub streams: u32,
    /// The number of buffers.
    pub buffers: u32,
    /// The number of calls in one pass.
    pub calls: u32,
    /// The percentage of accesses that touch only a part of their buffer.
    pub partial_percent: u32,
    /// Whether conflicting accesses are ordered.
    pub discipline: Discipline,
}

/// A program that can be run repeatedly: it ends with a device synchronization.
pub struct Load {
    ops: Vec<Op>,
    next: u32,
}

impl Load {
    /// Generates the program of a shape; the same one each time.
    pub fn new(shape: Shape) -> Load {
        let ops = Writer::new(shape).write();
        Load { ops, next: 0 }
    }

    /// The number of calls in one pass.
    pub fn calls(&self) -> usize {
        self.ops.len()
    }

    /// The calls of one pass, without IDs.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Declares the streams and events of the load.
    pub fn declare(shape: Shape, order: &mut Order) {
        for _ in 0..shape.streams {
            order.add_stream(StreamKind::NonBlocking, DeviceId(0));
            order.add_event(true, None);
        }
    }

    /// A checker in which the streams, events and buffers of the load are declared.
    pub fn checker(shape: Shape) -> Checker {
        let mut checker = Checker::new();
        Load::declare(shape, checker.order_mut());
        for _ in 0..shape.buffers {
            checker.add_buffer(Memory::Device, BYTES, None);
        }
        checker
    }

    /// Passes every call of the program to the checker once.
    pub fn pass(&mut self, checker: &mut Checker) {
        for op in &mut self.ops {
            op.id = OpId(self.next);
            self.next = self.next.wrapping_add(1);
            checker.push(op).expect("the load makes no mistakes");
        }
    }
}

/// Writes a load, and keeps the part of the order that it needs: full vector clocks, which are slow and simple.
struct Writer {
    shape: Shape,
    random: Random,
    ops: Vec<Op>,
    /// For each stream, the last call of every stream that it is ordered after.
    clocks: Vec<Vec<u32>>,
    /// For each event, the clock at its record.
    records: Vec<Vec<u32>>,
    /// For each buffer, its last uses, as stream and tick; every use counts as a use of the whole buffer.
    writes: Vec<(u32, u32)>,
    reads: Vec<HashMap<u32, u32>>,
}

impl Writer {
    fn new(shape: Shape) -> Writer {
        let streams = shape.streams as usize;
        Writer {
            shape,
            random: Random(0x5eed),
            ops: Vec::with_capacity(shape.calls as usize),
            clocks: vec![vec![0; streams]; streams],
            records: vec![vec![0; streams]; streams],
            writes: vec![(0, 0); shape.buffers as usize],
            reads: vec![HashMap::new(); shape.buffers as usize],
        }
    }

    fn write(mut self) -> Vec<Op> {
        while self.ops.len() + 1 < self.shape.calls as usize {
            for _ in 0..3 {
                let stream = self.stream();
                self.work(Kind::kernel(stream), stream, 2);
            }
            let stream = self.stream();
            let (from, to) = (Memory::Device, Memory::Device);
            self.work(Kind::Copy { stream, from, to }, stream, 1);

            let (source, stream) = (self.stream(), self.stream());
            let event = EventId(source.0);
            self.tick(source);
            self.records[source.0 as usize] = self.clocks[source.0 as usize].clone();
            let record = Kind::Record {
                event,
                stream: source,
            };
            self.call(record, Accesses::new());
            self.tick(stream);
            let (waiter, record) = (
                &mut self.clocks[stream.0 as usize],
                &self.records[source.0 as usize],
            );
            for (mine, theirs) in waiter.iter_mut().zip(record) {
                *mine = (*mine).max(*theirs);
            }
            self.call(Kind::Wait { stream, event }, Accesses::new());
        }
        self.synchronize();
        self.ops
    }

    /// The host waits for all streams, and all that is submitted later is ordered after this.
    fn synchronize(&mut self) {
        let ticks = (0..self.clocks.len()).map(|stream| self.clocks[stream][stream]);
        let all: Vec<u32> = ticks.collect();
        self.clocks.fill(all);
        self.call(Kind::SyncDevice { device: None }, Accesses::new());
    }

    /// Adds a call that reads some buffers and writes another.
    fn work(&mut self, kind: Kind, stream: StreamId, reads: usize) {
        self.tick(stream);
        let mut accesses = Accesses::new();
        let mut draws = 0;
        while accesses.len() <= reads {
            draws += 1;
            if draws == PATIENCE {
                // The call comes after the wait, so it gets a later tick of its stream.
                self.synchronize();
                self.tick(stream);
            }
            let mode = if accesses.len() < reads {
                Mode::Read
            } else {
                Mode::Write
            };
            let buffer = self.random.below(self.shape.buffers);
            let taken = accesses.iter().any(|a| a.buffer.0 == buffer);
            if taken || !self.may(stream, buffer, mode) {
                continue;
            }
            accesses.push(self.access(buffer, mode));
        }
        let tick = self.clocks[stream.0 as usize][stream.0 as usize];
        for access in &accesses {
            let buffer = access.buffer.0 as usize;
            match access.mode {
                Mode::Read => {
                    self.reads[buffer].insert(stream.0, tick);
                }
                Mode::Write | Mode::MayWrite | Mode::Atomic => {
                    self.reads[buffer].clear();
                    self.writes[buffer] = (stream.0, tick);
                }
            }
        }
        self.call(kind, accesses);
    }

    fn may(&self, stream: StreamId, buffer: u32, mode: Mode) -> bool {
        if self.shape.discipline == Discipline::Racy {
            return true;
        }
        let knows =
            |&(other, tick): &(u32, u32)| self.clocks[stream.0 as usize][other as usize] >= tick;
        let buffer = buffer as usize;
        let reads = self.reads[buffer].iter();
        // A partial write leaves older writes in the rest of the buffer, so it requires that all are known; the tick
        // of the last write covers them, since it was ordered after them.
        knows(&self.writes[buffer])
            && (mode == Mode::Read || reads.map(|(&s, &t)| (s, t)).all(|read| knows(&read)))
    }

    fn access(&mut self, buffer: u32, mode: Mode) -> Access {
        let (mut start, mut end) = (0, BYTES);
        if self.random.below(100) < self.shape.partial_percent {
            let tile = BYTES / 8;
            start = tile * u64::from(self.random.below(8));
            end = start + tile * u64::from(1 + self.random.below(2));
            end = end.min(BYTES);
        }
        Access {
            buffer: BufferId(buffer),
            start,
            end,
            mode,
        }
    }

    fn call(&mut self, kind: Kind, accesses: Accesses) {
        self.ops.push(Op {
            id: OpId(0),
            thread: ThreadId(0),
            site: SiteId(self.random.below(SITES)),
            kind,
            accesses,
        });
    }

    fn stream(&mut self) -> StreamId {
        StreamId(self.random.below(self.shape.streams))
    }

    fn tick(&mut self, stream: StreamId) {
        self.clocks[stream.0 as usize][stream.0 as usize] += 1;
    }
}

/// A generator that depends only on the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        let z = split_mix(&mut self.0);
        ((u128::from(z) * u128::from(bound)) >> 64) as u32
    }
}
