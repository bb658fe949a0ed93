//! The overlap job: batches that are copied in, computed on and copied out, in one of several
//! arrangements of streams.

use sidestream::engine::{Grid, KernelCost, Profile};
use sidestream::op::{
    Access, Accesses, BufferId, DeviceId, EventId, Kind, Memory, Mode, Op, OpId, SiteId, StreamId,
    StreamKind, ThreadId,
};
use sidestream::sim::{Names, Schedule, Sim};
use sidestream::trace::Trace;

/// The work of the job: `count` batches of `batch_bytes`, each element stepped `work` times.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub batch_bytes: u64,
    pub count: u32,
    pub work: u32,
    /// Whether the results are copied back.
    pub downloads: bool,
    /// Stages with given times, which replace those that follow from the other fields.
    pub own: Option<Own>,
}

/// Stages whose times are given. A copy of 0 bytes is left out.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    pub upload_bytes: u64,
    pub kernel_ns: u64,
    pub download_bytes: u64,
}

/// How the work is laid out over streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Batch `i` wholly on stream `i mod k`, each of which has its own buffers.
    Streams(u32),
    /// A stream for each stage, and a ring of this many slots between them.
    Ring(u32),
}

/// A stage of the job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub enum Stage {
    Upload,
    Compute,
    Download,
}

/// A call of one batch.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// The stage itself.
    Do(Stage),
    /// Records that this stage of the slot is complete.
    Record(Stage),
    /// Makes the stream wait for that record.
    Wait(Stage),
}

/// The calls of a batch in a ring, each with the stage whose stream takes it. A stage waits for the previous stage of its
/// batch, and for the next stage of the batch that had the slot before.
const RING: [(Stage, Call); 10] = {
    use Call::{Do, Record, Wait};
    use Stage::{Compute, Download, Upload};
    [
        (Upload, Wait(Compute)),
        (Upload, Do(Upload)),
        (Upload, Record(Upload)),
        (Compute, Wait(Upload)),
        (Compute, Wait(Download)),
        (Compute, Do(Compute)),
        (Compute, Record(Compute)),
        (Download, Wait(Compute)),
        (Download, Do(Download)),
        (Download, Record(Download)),
    ]
};

impl Layout {
    /// All layouts that are compared.
    pub const ALL: [Layout; 7] = [
        Layout::Streams(1),
        Layout::Streams(2),
        Layout::Streams(3),
        Layout::Streams(4),
        Layout::Ring(2),
        Layout::Ring(3),
        Layout::Ring(4),
    ];

    /// Returns the name of the layout in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Streams(_) => "streams",
            Layout::Ring(_) => "ring",
        }
    }

    /// Returns the number of streams, or of slots.
    pub fn k(self) -> u32 {
        match self {
            Layout::Streams(k) | Layout::Ring(k) => k,
        }
    }

    /// Returns all layouts that are compared, with up to `most_streams` streams.
    pub fn up_to(most_streams: u32) -> Vec<Layout> {
        let (streams, rings) = Layout::ALL.split_at(4);
        let more = [8, 16].into_iter().filter(|&k| k < most_streams);
        let last = (most_streams > 4).then_some(most_streams);
        let more: Vec<Layout> = more.chain(last).map(Layout::Streams).collect();
        [streams, &more, rings].concat()
    }

    /// Returns how many streams the layout takes.
    pub fn streams(self) -> u32 {
        match self {
            Layout::Streams(k) => k,
            Layout::Ring(_) => 3,
        }
    }

    /// Returns the calls of a batch in order, each with the stream that takes it.
    pub fn calls(self, batch: u32) -> impl Iterator<Item = (u32, Call)> {
        let (slot, is_ring) = (batch % self.k(), matches!(self, Layout::Ring(_)));
        let is_first = batch < self.k();
        let is_made = move |&&(stage, call): &&(Stage, Call)| match call {
            Call::Do(_) => true,
            Call::Wait(of) if of > stage => is_ring && !is_first,
            Call::Record(_) | Call::Wait(_) => is_ring,
        };
        let stream = move |stage: Stage| if is_ring { stage as u32 } else { slot };
        let made = RING.iter().filter(is_made);
        made.map(move |&(stage, call)| (stream(stage), call))
    }
}

impl Job {
    /// Returns the kernel of one batch: 256 threads a block, at most sixteen blocks for each multiprocessor; each thread walks
    /// over the elements in a grid-stride loop.
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

    /// Returns the bytes that are copied to the device for a batch; 0 without an upload.
    pub fn upload_bytes(&self) -> u64 {
        self.own.map_or(self.batch_bytes, |own| own.upload_bytes)
    }

    /// Returns the bytes that are copied back for a batch; 0 without a download.
    pub fn download_bytes(&self) -> u64 {
        match self.own {
            Some(own) => own.download_bytes,
            None if self.downloads => self.batch_bytes,
            None => 0,
        }
    }

    /// Returns the time of the job in one arrangement, in nanoseconds, with batches in this kind of host memory.
    pub fn time_ns(&self, layout: Layout, profile: &Profile, host: Memory) -> u64 {
        let mut sim = self.run(layout, profile, host);
        sim.thread_time(HOST).expect("nothing is held")
    }

    /// Returns the timeline of the job in one arrangement.
    pub fn trace(&self, layout: Layout, profile: &Profile) -> Trace {
        self.run(layout, profile, Memory::Pinned).trace(&Stages)
    }

    fn run(&self, layout: Layout, profile: &Profile, host: Memory) -> Sim {
        let mut program = Program::new(*self, layout, profile.clone(), host);
        for batch in 0..self.count {
            program.batch = batch;
            layout
                .calls(batch)
                .for_each(|(stream, call)| program.make(stream, call));
        }
        program.finish()
    }
}

/// The only host thread.
const HOST: ThreadId = ThreadId(0);

/// The job under construction.
struct Program {
    job: Job,
    kernel: KernelCost,
    sim: Sim,
    /// The number of slots.
    slots: u32,
    /// The kind of host memory that holds the batches.
    host: Memory,
    ops: u32,
    /// The batch that is being submitted; it is also the call site of its operations.
    batch: u32,
}

impl Program {
    fn new(job: Job, layout: Layout, profile: Profile, host: Memory) -> Program {
        let kernel = job.kernel(&profile);
        let mut sim = Sim::new(vec![profile], Schedule::InOrder, false);
        for _ in 0..layout.streams() {
            sim.order().add_stream(StreamKind::NonBlocking, DeviceId(0));
        }
        // One event for each stage and slot.
        for _ in 0..3 * layout.k() {
            sim.order().add_event(false, None);
        }
        Program {
            job,
            kernel,
            sim,
            slots: layout.k(),
            host,
            ops: 0,
            batch: 0,
        }
    }

    /// Makes one call of the batch. Streams, events and buffers are numbers here: the engine needs none of their contents.
    fn make(&mut self, stream: u32, call: Call) {
        let (stream, slot) = (StreamId(stream), self.batch % self.slots);
        let event = |stage| EventId(stage as u32 * self.slots + slot);
        let (host, device) = (self.host, Memory::Device);
        let batch = BufferId(1 << 16 | self.batch);
        let (input, output) = (BufferId(slot * 2), BufferId(slot * 2 + 1));
        let copy = |from, to| Kind::Copy { stream, from, to };
        let (kind, uses) = match call {
            Call::Do(Stage::Upload) => {
                let uses = (batch, input, self.job.upload_bytes());
                (copy(host, device), Some(uses))
            }
            Call::Do(Stage::Compute) => {
                let launches = 1;
                let uses = (input, output, self.job.batch_bytes);
                (Kind::Kernel { stream, launches }, Some(uses))
            }
            Call::Do(Stage::Download) => {
                let uses = (output, batch, self.job.download_bytes());
                (copy(device, host), Some(uses))
            }
            Call::Record(of) => {
                let event = event(of);
                (Kind::Record { event, stream }, None)
            }
            Call::Wait(of) => {
                let event = event(of);
                (Kind::Wait { stream, event }, None)
            }
        };
        // A copy of 0 bytes is left out.
        if !matches!(uses, Some((_, _, 0))) {
            self.push(kind, uses);
        }
    }

    /// Makes a call that reads this many bytes of the first buffer and writes them to the second, if it uses any.
    fn push(&mut self, kind: Kind, uses: Option<(BufferId, BufferId, u64)>) {
        let access = |buffer, end, mode| Access {
            buffer,
            start: 0,
            end,
            mode,
        };
        let accesses = uses.into_iter().flat_map(|(from, to, bytes)| {
            [
                access(from, bytes, Mode::Read),
                access(to, bytes, Mode::Write),
            ]
        });
        let op = Op {
            id: OpId(self.ops),
            thread: HOST,
            site: SiteId(self.batch),
            kind,
            accesses: accesses.collect::<Accesses>(),
        };
        self.ops += 1;
        let cost = matches!(kind, Kind::Kernel { .. }).then_some(self.kernel);
        self.sim
            .submit(op, cost)
            .expect("the job uses streams and events as CUDA allows");
    }

    fn finish(mut self) -> Sim {
        self.push(Kind::SyncDevice { device: None }, None);
        self.sim.finish().expect("nothing is held");
        self.sim
    }
}

/// Labels operations on the timeline by stage and batch.
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
