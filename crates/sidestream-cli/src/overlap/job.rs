//! The overlap job: batches that are copied in, computed on and copied out, in one of several
//! arrangements of streams.

use sidestream::engine::{Grid, KernelCost, Profile};
use sidestream::op::{
    Access, Accesses, BufferId, DeviceId, EventId, Kind, Memory, Mode, Op, OpId, SiteId, StreamId,
    StreamKind, ThreadId,
};
use sidestream::sim::{Names, Schedule, Sim};
use sidestream::trace::Trace;

/// What is to be done: `count` batches of `batch_bytes`, each element stepped `work` times.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub batch_bytes: u64,
    pub count: u32,
    pub work: u32,
}

/// How the work is laid out over streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Batch `i` wholly on stream `i mod k`, which has buffers of its own.
    Streams(u32),
    /// A stream for each stage, and a ring of so many slots between them.
    Ring(u32),
}

impl Layout {
    /// All that are compared.
    pub const ALL: [Layout; 7] = [
        Layout::Streams(1),
        Layout::Streams(2),
        Layout::Streams(3),
        Layout::Streams(4),
        Layout::Ring(2),
        Layout::Ring(3),
        Layout::Ring(4),
    ];

    /// Its name, as in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Streams(_) => "streams",
            Layout::Ring(_) => "ring",
        }
    }

    /// How many streams, or slots.
    pub fn k(self) -> u32 {
        match self {
            Layout::Streams(k) | Layout::Ring(k) => k,
        }
    }
}

impl Job {
    /// The kernel of one batch: 256 threads a block, at most sixteen blocks for each
    /// multiprocessor, each thread walking over the elements with the grid's stride.
    pub fn kernel(&self, profile: &Profile) -> KernelCost {
        let max_blocks = 16 * profile.sms as u64;
        let elements = self.batch_bytes / 4;
        KernelCost::Grid(Grid::elementwise(
            elements,
            4,
            self.work.into(),
            256,
            max_blocks,
        ))
    }

    /// How long the job takes in one arrangement, in nanoseconds.
    pub fn time_ns(&self, layout: Layout, profile: &Profile) -> u64 {
        let mut sim = self.run(layout, profile);
        sim.thread_time(HOST).expect("nothing is held")
    }

    /// What runs when in one arrangement.
    pub fn trace(&self, layout: Layout, profile: &Profile) -> Trace {
        self.run(layout, profile).trace(&Stages)
    }

    fn run(&self, layout: Layout, profile: &Profile) -> Sim {
        let mut program = Program::new(*self, layout, profile.clone());
        match layout {
            Layout::Streams(k) => program.streams(k),
            Layout::Ring(depth) => program.ring(depth),
        }
        program.finish()
    }
}

/// The one host thread.
const HOST: ThreadId = ThreadId(0);

/// The job under construction.
struct Program {
    job: Job,
    kernel: KernelCost,
    sim: Sim,
    streams: Vec<StreamId>,
    ops: u32,
    /// The batch that is being submitted; it is also the call site of its operations.
    batch: u32,
}

impl Program {
    fn new(job: Job, layout: Layout, profile: Profile) -> Program {
        let kernel = job.kernel(&profile);
        let mut sim = Sim::new(vec![profile], Schedule::InOrder, false);
        sim.times_only();
        let count = match layout {
            Layout::Streams(k) => k,
            Layout::Ring(_) => 3,
        };
        let add = |_| sim.order().add_stream(StreamKind::NonBlocking, DeviceId(0));
        let streams = (0..count).map(add).collect();
        Program {
            job,
            kernel,
            sim,
            streams,
            ops: 0,
            batch: 0,
        }
    }

    fn streams(&mut self, k: u32) {
        for batch in 0..self.job.count {
            self.batch = batch;
            let slot = batch % k;
            let stream = self.streams[slot as usize];
            self.upload(slot, stream);
            self.compute(slot, stream);
            self.download(slot, stream);
        }
    }

    /// Upload `i + d` waits for kernel `i`; kernel `i` for upload `i` and download `i - d`;
    /// download `i` for kernel `i`.
    fn ring(&mut self, depth: u32) {
        let [up, mid, down] = [self.streams[0], self.streams[1], self.streams[2]];
        let mut events = || -> Vec<EventId> {
            (0..depth)
                .map(|_| self.sim.order().add_event(false, None))
                .collect()
        };
        let (uploaded, computed, downloaded) = (events(), events(), events());
        for batch in 0..self.job.count {
            self.batch = batch;
            let slot = batch % depth;
            let at = slot as usize;
            if batch >= depth {
                self.push(
                    Kind::Wait {
                        stream: up,
                        event: computed[at],
                    },
                    [],
                );
            }
            self.upload(slot, up);
            self.push(
                Kind::Record {
                    event: uploaded[at],
                    stream: up,
                },
                [],
            );
            self.push(
                Kind::Wait {
                    stream: mid,
                    event: uploaded[at],
                },
                [],
            );
            if batch >= depth {
                self.push(
                    Kind::Wait {
                        stream: mid,
                        event: downloaded[at],
                    },
                    [],
                );
            }
            self.compute(slot, mid);
            self.push(
                Kind::Record {
                    event: computed[at],
                    stream: mid,
                },
                [],
            );
            self.push(
                Kind::Wait {
                    stream: down,
                    event: computed[at],
                },
                [],
            );
            self.download(slot, down);
            self.push(
                Kind::Record {
                    event: downloaded[at],
                    stream: down,
                },
                [],
            );
        }
    }

    fn upload(&mut self, slot: u32, stream: StreamId) {
        let kind = Kind::Copy {
            stream,
            from: Memory::Pinned,
            to: Memory::Device,
        };
        let (source, input) = (host_buffer(self.batch), slot_buffer(slot, 0));
        self.push(kind, [(source, Mode::Read), (input, Mode::Write)]);
    }

    fn compute(&mut self, slot: u32, stream: StreamId) {
        let (input, output) = (slot_buffer(slot, 0), slot_buffer(slot, 1));
        let kind = Kind::Kernel {
            stream,
            launches: 1,
        };
        self.push(kind, [(input, Mode::Read), (output, Mode::Write)]);
    }

    fn download(&mut self, slot: u32, stream: StreamId) {
        let kind = Kind::Copy {
            stream,
            from: Memory::Device,
            to: Memory::Pinned,
        };
        let (output, target) = (slot_buffer(slot, 1), host_buffer(self.batch));
        self.push(kind, [(output, Mode::Read), (target, Mode::Write)]);
    }

    fn push<const N: usize>(&mut self, kind: Kind, uses: [(BufferId, Mode); N]) {
        let end = self.job.batch_bytes;
        let access = |(buffer, mode)| Access {
            buffer,
            start: 0,
            end,
            mode,
        };
        let op = Op {
            id: OpId(self.ops),
            thread: HOST,
            site: SiteId(self.batch),
            kind,
            accesses: uses.into_iter().map(access).collect::<Accesses>(),
        };
        self.ops += 1;
        let cost = matches!(kind, Kind::Kernel { .. }).then_some(self.kernel);
        self.sim
            .submit(op, cost)
            .expect("the job uses streams and events as CUDA allows");
    }

    fn finish(mut self) -> Sim {
        self.push(Kind::SyncDevice { device: None }, []);
        self.sim.finish().expect("nothing is held");
        self.sim
    }
}

/// Buffers are numbers here: the engine needs none of their bytes.
fn host_buffer(batch: u32) -> BufferId {
    BufferId(1 << 16 | batch)
}

fn slot_buffer(slot: u32, side: u32) -> BufferId {
    BufferId(slot * 2 + side)
}

/// What the timeline calls things: the stage and the batch.
struct Stages;

impl Names for Stages {
    fn work(&self, op: &Op) -> String {
        let stage = match op.kind {
            Kind::Copy {
                to: Memory::Device, ..
            } => "up",
            Kind::Copy { .. } => "down",
            _ => "kernel",
        };
        stage.to_owned()
    }

    fn label(&self, op: &Op) -> String {
        format!("{} {}", self.work(op), op.site.0)
    }

    fn stream(&self, stream: StreamId) -> String {
        format!("s{}", stream.0 + 1)
    }

    fn thread(&self, _: ThreadId) -> String {
        "host".to_owned()
    }
}
