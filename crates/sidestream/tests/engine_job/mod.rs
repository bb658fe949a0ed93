//! The overlap job and its stages, pushed call by call as a CUDA program would submit them.

use sidestream::engine::{Call, Engine, Grid, KernelCost, LaneId, Profile, Task, TaskId, Work};

/// One stage or arrangement of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    Uploads,
    Downloads,
    BothWays,
    /// Kernels only, on this many streams.
    Kernels(usize),
    /// Batch i on stream i mod k.
    Streams(usize),
    /// A stream per stage, and a ring of this many slots.
    Ring(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub bytes: u64,
    pub iters: u64,
    pub items: usize,
}

impl Job {
    pub fn kernel(&self) -> KernelCost {
        KernelCost::Grid(Grid::elementwise(self.bytes / 4, 4, self.iters, 256, 2112))
    }
}

/// One host thread and some streams; every call is a host task and a device task.
pub struct Program {
    pub engine: Engine,
    host: LaneId,
    streams: Vec<LaneId>,
    last: Vec<Option<TaskId>>,
}

impl Program {
    pub fn new(profile: &Profile, streams: usize) -> Self {
        let mut engine = Engine::new(vec![profile.clone()]);
        let host = engine.add_thread();
        let streams: Vec<LaneId> = (0..streams).map(|_| engine.add_stream(0, 0)).collect();
        let last = vec![None; streams.len()];
        Self {
            engine,
            host,
            streams,
            last,
        }
    }

    pub fn call(
        &mut self,
        stream: usize,
        call: Call,
        work: Work,
        also_after: Option<TaskId>,
    ) -> TaskId {
        let call = self.engine.push(Task::new(self.host, Work::Call(call)));
        let after = [call, also_after.unwrap_or(call)];
        let task = self.engine.push(
            Task::new(self.streams[stream], work)
                .after(&after[..1 + usize::from(also_after.is_some())]),
        );
        self.last[stream] = Some(task);
        task
    }

    pub fn upload(&mut self, stream: usize, bytes: u64) {
        self.call(
            stream,
            Call::UploadAsync { bytes },
            Work::Upload { bytes },
            None,
        );
    }

    pub fn download(&mut self, stream: usize, bytes: u64) {
        self.call(stream, Call::CopyAsync, Work::Download { bytes }, None);
    }

    pub fn kernel(&mut self, stream: usize, cost: KernelCost) {
        self.call(stream, Call::Launch, Work::Kernel(cost), None);
    }

    pub fn record(&mut self, stream: usize) -> TaskId {
        self.call(stream, Call::Record, Work::Marker, None)
    }

    pub fn wait(&mut self, stream: usize, record: TaskId) {
        self.call(stream, Call::Wait, Work::Marker, Some(record));
    }

    /// Synchronises with the device; returns the end of the call.
    pub fn synchronize(&mut self) -> u64 {
        let after: Vec<TaskId> = self.last.iter().copied().flatten().collect();
        let sync = self
            .engine
            .push(Task::new(self.host, Work::Call(Call::Sync)).after(&after));
        self.engine.run_until(sync).expect("nothing is held")
    }
}

/// Returns the time of the whole job in ms.
pub fn time_ms(profile: &Profile, job: &Job, arrangement: Arrangement) -> f64 {
    program(profile, job, arrangement).1 as f64 * 1e-6
}

/// Returns the executed program and its time in ns.
pub fn program(profile: &Profile, job: &Job, arrangement: Arrangement) -> (Program, u64) {
    let (bytes, kernel) = (job.bytes, job.kernel());
    let mut p = match arrangement {
        Arrangement::Uploads | Arrangement::Downloads => Program::new(profile, 1),
        Arrangement::BothWays => Program::new(profile, 2),
        Arrangement::Kernels(k) | Arrangement::Streams(k) => Program::new(profile, k),
        Arrangement::Ring(_) => Program::new(profile, 3),
    };
    let (mut up, mut computed, mut down) = (vec![None; 8], vec![None; 8], vec![None; 8]);
    for i in 0..job.items {
        match arrangement {
            Arrangement::Uploads => p.upload(0, bytes),
            Arrangement::Downloads => p.download(0, bytes),
            Arrangement::BothWays => {
                p.upload(0, bytes);
                p.download(1, bytes);
            }
            Arrangement::Kernels(k) => p.kernel(i % k, kernel),
            Arrangement::Streams(k) => {
                p.upload(i % k, bytes);
                p.kernel(i % k, kernel);
                p.download(i % k, bytes);
            }
            Arrangement::Ring(slots) => {
                let j = i % slots;
                if let Some(record) = computed[j] {
                    p.wait(0, record);
                }
                p.upload(0, bytes);
                let record = p.record(0);
                up[j] = Some(record);
                p.wait(1, record);
                if let Some(record) = down[j] {
                    p.wait(1, record);
                }
                p.kernel(1, kernel);
                let record = p.record(1);
                computed[j] = Some(record);
                p.wait(2, record);
                p.download(2, bytes);
                down[j] = Some(p.record(2));
            }
        }
    }
    let end_ns = p.synchronize();
    (p, end_ns)
}
