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
    /// Whether the results are copied back.
    pub downloads: bool,
    /// Somebody's own stages, in the place of these.
    pub own: Option<Own>,
}

/// Stages of which the times are known. A copy of no bytes is not there.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    pub upload_bytes: u64,
    pub kernel_ns: u64,
    pub download_bytes: u64,
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

    /// All that are compared, and with more streams than four too.
    pub fn up_to(most_streams: u32) -> Vec<Layout> {
        let more = [8, 16].into_iter().filter(|&k| k < most_streams);
        let last = (most_streams > 4).then_some(most_streams);
        let at = Layout::ALL
            .iter()
            .position(|layout| matches!(layout, Layout::Ring(_)));
        let mut layouts = Layout::ALL.to_vec();
        let more = more.chain(last).map(Layout::Streams);
        layouts.splice(at.unwrap_or(0)..at.unwrap_or(0), more);
        layouts
    }
}

impl Job {
    /// The kernel of one batch: 256 threads a block, at most sixteen blocks for each
    /// multiprocessor, each thread walking over the elements with the grid's stride.
    pub fn kernel(&self, profile: &Profile) -> KernelCost {
        if let Some(own) = self.own {
            return KernelCost::Duration {
                ns: own.kernel_ns,
                share: 1.0,
            };
        }
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

    /// What is copied to the device for a batch; 0 if nothing is.
    pub fn upload_bytes(&self) -> u64 {
        self.own.map_or(self.batch_bytes, |own| own.upload_bytes)
    }

    /// What is copied back of a batch; 0 if nothing is.
    pub fn download_bytes(&self) -> u64 {
        match self.own {
            Some(own) => own.download_bytes,
            None if self.downloads => self.batch_bytes,
            None => 0,
        }
    }

    /// How long the job takes in one arrangement, in nanoseconds.
    pub fn time_ns(&self, layout: Layout, profile: &Profile) -> u64 {
        let mut sim = self.run(layout, profile, Memory::Pinned);
        sim.thread_time(HOST).expect("nothing is held")
    }

    /// How long it takes on one stream from and to pageable memory, in nanoseconds.
    pub fn pageable_ns(&self, profile: &Profile) -> u64 {
        let mut sim = self.run(Layout::Streams(1), profile, Memory::Pageable);
        sim.thread_time(HOST).expect("nothing is held")
    }

    /// What runs when in one arrangement.
    pub fn trace(&self, layout: Layout, profile: &Profile) -> Trace {
        self.run(layout, profile, Memory::Pinned).trace(&Stages)
    }

    fn run(&self, layout: Layout, profile: &Profile, host: Memory) -> Sim {
        let mut program = Program::new(*self, layout, profile.clone(), host);
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
    /// Where the host's batches are.
    host: Memory,
    ops: u32,
    /// The batch that is being submitted; it is also the call site of its operations.
    batch: u32,
}

impl Program {
    fn new(job: Job, layout: Layout, profile: Profile, host: Memory) -> Program {
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
            host,
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
            from: self.host,
            to: Memory::Device,
        };
        let (source, input) = (host_buffer(self.batch), slot_buffer(slot, 0));
        let bytes = self.job.upload_bytes();
        if bytes > 0 {
            self.push_of(kind, bytes, [(source, Mode::Read), (input, Mode::Write)]);
        }
    }

    fn compute(&mut self, slot: u32, stream: StreamId) {
        let (input, output) = (slot_buffer(slot, 0), slot_buffer(slot, 1));
        let kind = Kind::kernel(stream);
        self.push(kind, [(input, Mode::Read), (output, Mode::Write)]);
    }

    fn download(&mut self, slot: u32, stream: StreamId) {
        let kind = Kind::Copy {
            stream,
            from: Memory::Device,
            to: self.host,
        };
        let (output, target) = (slot_buffer(slot, 1), host_buffer(self.batch));
        let bytes = self.job.download_bytes();
        if bytes > 0 {
            self.push_of(kind, bytes, [(output, Mode::Read), (target, Mode::Write)]);
        }
    }

    fn push<const N: usize>(&mut self, kind: Kind, uses: [(BufferId, Mode); N]) {
        self.push_of(kind, self.job.batch_bytes, uses);
    }

    fn push_of<const N: usize>(&mut self, kind: Kind, end: u64, uses: [(BufferId, Mode); N]) {
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
