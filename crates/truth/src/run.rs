//! Runs a job on the engine: makes the host calls step by step, and returns when each operation ran.

use std::collections::{HashMap, VecDeque};

use sidestream::engine::{Call, Engine, KernelCost, LaneId, Task, TaskId, Work};

use crate::draw::Draw;
use crate::fault::{Fault, SyncBy};
use crate::job::{Job, Kernel, Marks, Recorder, Without};
use crate::write::{PAGEABLE_DOWNLOAD, PAGEABLE_UPLOAD, PINNED_DOWNLOAD, PINNED_UPLOAD, Row, What};

/// The result of running a job.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// Mean time of a step, measured from the end of the last work of the first step.
    pub step_ns: f64,
    /// The rows that a profiler records.
    pub(crate) rows: Vec<Row>,
}

/// The streams, by their numbers in a trace; the first is PyTorch's default stream.
const STREAMS: [u32; 4] = [7, 20, 24, 28];
const COMPUTE: usize = 0;
const UPLOADS: usize = 1;
const BESIDE: usize = 2;
const DOWNLOADS: usize = 3;

/// Events, by their purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Uploaded,
    Computed,
    Fork,
    Join,
    /// The result of a step, by whether the step's number is odd.
    Result(bool),
    Ready,
}

/// Parts of a step with independent random numbers.
#[derive(Clone, Copy)]
enum Part {
    SetUp = 1,
    Load,
    TakeOver,
    Before,
    Behind,
    HostWork,
    Upload,
    Kernels,
    Beside,
    Extra,
    Sync,
    Log,
    Download,
    Durations,
}

/// The maximum number of launches that may be queued.
const QUEUE: usize = 1_000;
/// Number of batches that each worker loads ahead.
const AHEAD: usize = 2;

/// Returns the number of workers: four for slow work in one of `every` steps, or five where one or two of four, which take
/// turns, would get all of that work.
fn workers(every: usize) -> usize {
    match every {
        2 | 4 => 5,
        _ => 4,
    }
}

/// A kernel of a step, in a stream.
#[derive(Clone, Copy)]
struct Placed {
    kernel: Kernel,
    stream: usize,
    /// Its index in the step, across all streams.
    at: usize,
}

struct Running<'j> {
    job: &'j Job,
    without: Without,
    recorder: Option<Recorder>,
    engine: Engine,
    host: LaneId,
    streams: [LaneId; 4],
    /// The last task of the host and of each stream.
    last_host: Option<TaskId>,
    last_on: [Option<TaskId>; 4],
    events: HashMap<Event, (TaskId, u32)>,
    queue: VecDeque<TaskId>,
    /// Workers, by the fault that they remove: their lanes, and the tasks that took over batches.
    workers: HashMap<usize, (Vec<LaneId>, Vec<TaskId>)>,
    correlation: u32,
    step: usize,
    key: u32,
    /// Rows, each with the tasks at whose ends it begins and ends.
    spans: Vec<(What, u32, Option<TaskId>, Option<TaskId>)>,
    /// Rows of the device, with their tasks.
    work: Vec<(What, u32, TaskId)>,
    /// The last work of each step.
    ends: Vec<Vec<TaskId>>,
}

/// Runs a job.
pub(crate) fn run(job: &Job, without: Without, recorder: Option<Recorder>) -> Ran {
    let mut engine = Engine::new(vec![job.profile.clone()]);
    let host = engine.add_thread();
    let streams = [(); 4].map(|()| engine.add_stream(0, 0));
    let mut running = Running {
        job,
        without,
        recorder,
        engine,
        host,
        streams,
        last_host: None,
        last_on: [None; 4],
        events: HashMap::new(),
        queue: VecDeque::new(),
        workers: HashMap::new(),
        correlation: 100,
        step: 0,
        key: 0,
        spans: Vec::new(),
        work: Vec::new(),
        ends: Vec::new(),
    };
    for step in 0..job.steps {
        running.step(step);
    }
    running.finish()
}

impl Running<'_> {
    fn step(&mut self, step: usize) {
        self.step = step;
        self.key = 0;
        self.ends.push(Vec::new());
        let begun = self.begin();
        if step == 0 {
            self.set_up();
        }
        self.load();
        self.own_pieces(0);
        self.host_work(false);
        self.upload();
        self.kernels();
        self.own_pieces(1);
        self.download();
        self.host_work(true);
        let every = self.job.logs_every;
        if every > 0 && step % every == every - 1 {
            self.part(Part::Log, 0);
            self.sync_by(SyncBy::PinnedItem);
        }
        match self.job.recorder.marks {
            Marks::Profiler => self.end(begun, What::Step(step)),
            Marks::Range => self.end(begun, What::Range("train_step")),
            Marks::Nothing => {}
        }
    }

    fn finish(mut self) -> Ran {
        let begun = self.begin();
        let all: Vec<TaskId> = self.last_on.iter().flatten().copied().collect();
        self.host_task(self.job.profile.sync_ns, &all);
        self.end(begun, What::Call("cudaDeviceSynchronize"));
        // No task is withheld, so all of them complete.
        let finished = self.engine.finish();
        debug_assert!(finished.is_ok(), "{finished:?}");
        let span = |task: TaskId| {
            let span = self.engine.scheduled(task);
            span.map_or((0, 0), |span| (span.start_ns, span.end_ns))
        };
        let ends = self
            .ends
            .iter()
            .map(|of| of.iter().map(|task| span(*task).1));
        let ends: Vec<u64> = ends.filter_map(Iterator::max).collect();
        let over = |at: usize| ends.get(at).copied().unwrap_or(0) as f64;
        let step_ns = (over(ends.len() - 1) - over(0)) / (ends.len() - 1) as f64;
        let end = |task: Option<TaskId>| task.map_or(0, |task| span(task).1);
        let spans = self.spans.into_iter().map(|(what, number, after, until)| {
            let times = (end(after), end(until));
            (what, number, times)
        });
        let work = self.work.into_iter();
        let work = work.map(|(what, number, task)| (what, number, span(task)));
        let row = |(what, number, (start_ns, end_ns))| Row {
            what,
            start_ns: start_ns as f64,
            end_ns: end_ns as f64,
            number,
            exchange: None,
        };
        let rows = spans.chain(work).map(row).collect();
        Ran { step_ns, rows }
    }

    /// Returns a host time, multiplied by the random factor of this action.
    fn spread(&mut self, ns: f64) -> f64 {
        self.key += 1;
        let mut draw = Draw::at(self.job.seed, self.step, self.key);
        let rare = if draw.happens(0.003) { 4.0 } else { 1.0 };
        ns * rare * draw.about_one(self.job.host.spread)
    }

    /// Begins a part of the step. Its random numbers do not depend on those of other parts.
    fn part(&mut self, part: Part, index: usize) {
        self.key = ((part as u32) << 20) | ((index as u32) << 6);
    }

    fn host_task(&mut self, ns: f64, after: &[TaskId]) -> TaskId {
        let work = Work::Call(Call::HostNs(ns.max(0.0) as u64));
        let task = self.engine.push(Task::new(self.host, work).after(after));
        self.last_host = Some(task);
        task
    }

    /// Adds the host's own time.
    fn own(&mut self, ns: f64) {
        let ns = self.spread(ns);
        self.host_task(ns, &[]);
    }

    /// Returns the task at whose end a row begins.
    fn begin(&self) -> Option<TaskId> {
        self.last_host
    }

    fn end(&mut self, begun: Option<TaskId>, what: What) {
        self.spans.push((what, 0, begun, self.last_host));
    }

    /// Runs an operator, with the time that the profiler adds to it.
    fn operator(&mut self, name: &'static str, inner: impl FnOnce(&mut Self)) {
        let begun = self.begin();
        let recorded = self.recorder.map_or(0.0, |r| r.operator_ns);
        let ns = self.spread(0.7 * self.job.host.operator_ns) + recorded;
        self.host_task(ns, &[]);
        inner(self);
        self.own(0.3 * self.job.host.operator_ns);
        self.end(begun, What::Operator(name));
    }

    /// Makes a call, after the tasks that it waits for.
    fn call(&mut self, name: &'static str, ns: f64, after: &[TaskId]) -> (TaskId, u32) {
        let begun = self.begin();
        let recorded = self.recorder.map_or(0.0, |r| match name {
            "cudaLaunchKernel" | "cudaMemcpyAsync" | "cudaGraphLaunch" => r.submission_ns,
            _ => r.call_ns,
        });
        let ns = self.spread(ns) + recorded;
        let task = self.host_task(ns, after);
        self.correlation += 1;
        let correlation = self.correlation;
        self.spans
            .push((What::Call(name), correlation, begun, Some(task)));
        (task, correlation)
    }

    fn on(&mut self, stream: usize, work: Work, after: &[TaskId], in_graph: bool) -> TaskId {
        let mut task = Task::new(self.streams[stream], work).after(after);
        if in_graph {
            task = task.in_graph();
        }
        let task = self.engine.push(task);
        self.last_on[stream] = Some(task);
        if work != Work::Marker
            && let Some(ends) = self.ends.last_mut()
        {
            ends.push(task);
        }
        task
    }

    fn room(&mut self) -> Option<TaskId> {
        if self.queue.len() >= QUEUE {
            self.queue.pop_front()
        } else {
            None
        }
    }

    fn kernel_on(&mut self, kernel: Placed, call: (TaskId, u32), graph: u32) {
        let Placed { kernel, stream, at } = kernel;
        let spread = self.job.host.kernel_spread;
        let key = ((Part::Durations as u32) << 20) | ((stream as u32) << 12) | at as u32;
        let factor = Draw::at(self.job.seed, self.step, key).about_one(spread);
        let cost = KernelCost::Duration {
            ns: (kernel.ns * factor) as u64,
            share: kernel.share,
        };
        let task = self.on(stream, Work::Kernel(cost), &[call.0], graph != 0);
        self.queue.push_back(task);
        let name = if kernel.is_small {
            "void at::native::vectorized_elementwise_kernel<4, float>"
        } else {
            "sm90_xmma_gemm_f32f32_tn_n_tilesize128x128x32"
        };
        // Enough warps to keep every scheduler of their multiprocessors busy.
        let blocks = if kernel.share >= 1.0 {
            16.0
        } else {
            kernel.share
        } * self.job.profile.sms;
        let grid = [blocks.ceil() as u32, 1024];
        let what = What::Kernel(name, STREAMS[stream], grid, graph);
        self.work.push((what, call.1, task));
    }

    /// Launches a kernel from its operator.
    fn launch(&mut self, part: Part, kernel: Placed) {
        self.part(part, kernel.at);
        self.own(self.job.host.gap_ns);
        let (name, inner) = if kernel.kernel.is_small {
            ("aten::mul", None)
        } else {
            ("aten::linear", Some("aten::addmm"))
        };
        let launch = |s: &mut Self| {
            let room = s.room();
            let call = s.call("cudaLaunchKernel", s.job.profile.launch_ns, room.as_slice());
            s.kernel_on(kernel, call, 0);
        };
        self.operator(name, |s| match inner {
            Some(inner) => {
                let begun = s.begin();
                let recorded = s.recorder.map_or(0.0, |r| r.operator_ns);
                s.host_task(200.0 + recorded, &[]);
                launch(s);
                s.end(begun, What::Operator(inner));
            }
            None => launch(s),
        });
    }

    fn copy(&mut self, stream: usize, is_upload: bool, is_pinned: bool, bytes: u64) {
        let ns = self.job.profile.copy_ns;
        let begun = self.begin();
        let recorded = self.recorder.map_or(0.0, |r| r.submission_ns);
        let ns = self.spread(ns) + recorded;
        let call = self.host_task(ns, &[]);
        let (work, name) = match (is_upload, is_pinned) {
            (true, true) => (Work::Upload { bytes }, PINNED_UPLOAD),
            (true, false) => (Work::UploadPageable { bytes }, PAGEABLE_UPLOAD),
            (false, true) => (Work::Download { bytes }, PINNED_DOWNLOAD),
            (false, false) => (Work::DownloadPageable { bytes }, PAGEABLE_DOWNLOAD),
        };
        let task = self.on(stream, work, &[call], false);
        let mut until = call;
        if !is_pinned {
            until = self.host_task(500.0, &[task]);
        }
        self.correlation += 1;
        let correlation = self.correlation;
        self.spans.push((
            What::Call("cudaMemcpyAsync"),
            correlation,
            begun,
            Some(until),
        ));
        let what = What::Copy(name, STREAMS[stream], bytes);
        self.work.push((what, correlation, task));
    }

    fn record(&mut self, stream: usize, event: Event) {
        let (call, correlation) = self.call("cudaEventRecord", self.job.profile.record_ns, &[]);
        let marker = self.on(stream, Work::Marker, &[call], false);
        self.events.insert(event, (marker, correlation));
    }

    fn wait(&mut self, stream: usize, event: Event) {
        let (call, correlation) = self.call("cudaStreamWaitEvent", self.job.profile.wait_ns, &[]);
        let Some(&(record, of)) = self.events.get(&event) else {
            return;
        };
        let marker = self.on(stream, Work::Marker, &[call, record], false);
        if self.job.recorder.has_waits {
            let what = What::Wait(STREAMS[stream], of);
            self.work.push((what, correlation, marker));
        }
    }

    fn synchronize(&mut self, name: &'static str, after: &[TaskId]) {
        self.call(name, self.job.profile.sync_ns, after);
    }

    fn synchronize_stream(&mut self, stream: usize) {
        let after = self.last_on[stream];
        self.synchronize("cudaStreamSynchronize", after.as_slice());
    }

    // The parts of a step.

    fn set_up(&mut self) {
        let ns = self.job.set_up_ns;
        if ns == 0.0 {
            return;
        }
        self.part(Part::SetUp, 0);
        for _ in 0..3 {
            self.call("cudaMalloc", ns / 10.0, &[]);
        }
        let (call, correlation) = self.call("cudaLaunchKernel", 0.7 * ns, &[]);
        let first = Kernel {
            ns: 5e3,
            share: 0.1,
            is_small: true,
        };
        let first = Placed {
            kernel: first,
            stream: COMPUTE,
            at: 0xfff,
        };
        self.kernel_on(first, (call, correlation), 0);
    }

    fn own_pieces(&mut self, part: usize) {
        let host = self.job.host;
        self.part([Part::Before, Part::Behind][part], 0);
        for piece in 0..host.own_pieces {
            if piece % 2 == part {
                self.own(host.own_ns / host.own_pieces as f64);
                // Python accesses a tensor now and then, which limits the length of a part.
                self.operator("aten::view", |_| {});
            }
        }
    }

    fn batch_bytes(&self) -> u64 {
        let planted: u64 = self.job.faults.iter().map(Fault::uploaded_bytes).sum();
        planted + self.job.prefetched_bytes + self.job.small_bytes
    }

    /// Takes over the result of a worker that worked ahead.
    fn take_over(&mut self, fault: usize, every: usize, ns: f64, bytes: u64) {
        let count = workers(every);
        if !self.workers.contains_key(&fault) {
            let lanes = (0..count).map(|_| self.engine.add_thread()).collect();
            self.workers.insert(fault, (lanes, Vec::new()));
        }
        let Some((lanes, taken)) = self.workers.get(&fault) else {
            return;
        };
        let batch = taken.len();
        let freed = batch
            .checked_sub(count * AHEAD)
            .and_then(|at| taken.get(at));
        let load = Task::new(lanes[batch % count], Work::Call(Call::HostNs(ns as u64)));
        let loaded = self
            .engine
            .push(load.after(freed.map(std::slice::from_ref).unwrap_or(&[])));
        self.part(Part::TakeOver, fault);
        let ns = self.spread(self.job.take_over_ns) + bytes as f64 / self.job.take_over_gb_s;
        let task = self.host_task(ns, &[loaded]);
        if let Some((_, taken)) = self.workers.get_mut(&fault) {
            taken.push(task);
        }
    }

    fn planted(&self, test: impl Fn(&Fault) -> bool) -> Option<(usize, Fault, bool)> {
        let at = self.job.faults.iter().position(test)?;
        let is_removed = self.without.faults & (1 << at) != 0;
        Some((at, self.job.faults[at], is_removed))
    }

    fn load(&mut self) {
        const SINGLE: &str = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
        const MULTI: &str = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__";
        let loader = self.planted(|f| matches!(f, Fault::Loader { .. }));
        self.part(Part::Load, 0);
        let Some((
            at,
            Fault::Loader {
                ns,
                every,
                has_workers,
            },
            is_removed,
        )) = loader
        else {
            if self.job.quick_loader_ns > 0.0 {
                let begun = self.begin();
                self.own(self.job.quick_loader_ns);
                self.end(begun, What::Range(SINGLE));
            }
            return;
        };
        let begun = self.begin();
        let quick = 0.02 * ns as f64;
        let is_slow = self.step % every == every - 1;
        let ns = if is_slow { ns as f64 } else { quick };
        let ns = self.spread(ns);
        let take_over_ns = self.spread(self.job.take_over_ns);
        match (is_removed, has_workers) {
            (true, true) => _ = self.host_task(take_over_ns, &[]),
            (true, false) => self.take_over(at, every, ns, self.batch_bytes()),
            (false, true) => _ = self.host_task(ns + take_over_ns, &[]),
            (false, false) => _ = self.host_task(ns, &[]),
        }
        self.end(begun, What::Range(if has_workers { MULTI } else { SINGLE }));
    }

    fn host_work(&mut self, is_end: bool) {
        let work = self.planted(|f| matches!(f, Fault::HostWork { .. }));
        let Some((at, fault, is_removed)) = work else {
            return;
        };
        let Fault::HostWork {
            ns,
            every,
            name,
            operators,
            is_last,
        } = fault
        else {
            return;
        };
        if is_last != is_end || self.step % every != every - 1 {
            return;
        }
        self.part(Part::HostWork, 0);
        let ns = self.spread(ns as f64);
        let begun = self.begin();
        match (is_removed, is_last) {
            // Work at the end of a step uses a result of the step, and no thread waits for that work.
            (true, true) => _ = self.host_task(self.job.take_over_ns, &[]),
            // Threads hand over their results without a copy. Only steps with such work ask for it.
            (true, false) => self.take_over(at, 1, ns, 0),
            (false, _) if operators == 0 => _ = self.host_task(ns, &[]),
            (false, _) => {
                for _ in 0..operators {
                    let begun = self.begin();
                    self.host_task(ns / operators as f64, &[]);
                    self.end(begun, What::Operator("aten::flip"));
                }
            }
        }
        self.end(begun, What::Range(name));
    }

    fn upload(&mut self) {
        let upload = self.planted(|f| {
            matches!(
                f,
                Fault::PageableUpload { .. }
                    | Fault::UploadOnComputeStream { .. }
                    | Fault::MisplacedWaits { .. }
            )
        });
        self.part(Part::Upload, 0);
        match upload {
            Some((_, Fault::PageableUpload { bytes, is_aside }, is_removed)) => {
                let stream = if is_aside { UPLOADS } else { COMPUTE };
                self.operator("aten::copy_", |s| {
                    s.copy(stream, true, is_removed, bytes);
                    if !is_removed {
                        s.synchronize_stream(stream);
                    }
                });
                if is_aside {
                    self.record(UPLOADS, Event::Uploaded);
                    self.wait(COMPUTE, Event::Uploaded);
                }
            }
            Some((_, Fault::UploadOnComputeStream { bytes }, false)) => {
                self.operator("aten::copy_", |s| s.copy(COMPUTE, true, true, bytes));
            }
            Some((_, Fault::MisplacedWaits { bytes }, false)) => {
                self.record(COMPUTE, Event::Computed);
                self.wait(UPLOADS, Event::Computed);
                self.operator("aten::copy_", |s| s.copy(UPLOADS, true, true, bytes));
                self.record(UPLOADS, Event::Uploaded);
                self.wait(COMPUTE, Event::Uploaded);
            }
            Some((
                _,
                Fault::UploadOnComputeStream { bytes } | Fault::MisplacedWaits { bytes },
                true,
            )) => self.prefetch(bytes),
            _ => {}
        }
        if self.job.prefetched_bytes > 0 {
            self.prefetch(self.job.prefetched_bytes);
        }
        if self.job.small_bytes > 0 {
            let bytes = self.job.small_bytes;
            self.operator("aten::copy_", |s| s.copy(COMPUTE, true, true, bytes));
        }
    }

    /// Waits for the batch of the previous step, and uploads the next one concurrently with the kernels.
    fn prefetch(&mut self, bytes: u64) {
        if self.step == 0 {
            self.operator("aten::copy_", |s| s.copy(UPLOADS, true, true, bytes));
            self.record(UPLOADS, Event::Uploaded);
        }
        self.wait(COMPUTE, Event::Uploaded);
        self.record(COMPUTE, Event::Computed);
        self.wait(UPLOADS, Event::Computed);
        self.operator("aten::copy_", |s| s.copy(UPLOADS, true, true, bytes));
        self.record(UPLOADS, Event::Uploaded);
    }

    fn kernels(&mut self) {
        let job = self.job;
        let placed = |stream| {
            move |(at, kernel): (usize, &Kernel)| Placed {
                kernel: *kernel,
                stream,
                at,
            }
        };
        if !job.beside.is_empty() {
            self.part(Part::Beside, 0xff);
            self.record(COMPUTE, Event::Fork);
            self.wait(BESIDE, Event::Fork);
            for kernel in job.beside.iter().enumerate().map(placed(BESIDE)) {
                self.launch(Part::Beside, kernel);
            }
            self.record(BESIDE, Event::Join);
        }
        let launches = self.planted(|f| matches!(f, Fault::Launches { .. }));
        let is_planted = launches.is_some_and(|(_, _, is_removed)| is_removed);
        let as_graph = job.has_graphs || self.without.launches || is_planted;
        let sync = self.planted(|f| matches!(f, Fault::Sync { .. }));
        let (how, times) = match sync {
            Some((_, Fault::Sync { how, times }, false)) => (Some(how), times),
            _ => (None, 1),
        };
        let kernels: Vec<Placed> = job
            .kernels
            .iter()
            .enumerate()
            .map(placed(COMPUTE))
            .collect();
        for (at, part) in kernels.chunks(kernels.len().div_ceil(times)).enumerate() {
            if as_graph {
                self.part(Part::Kernels, part[0].at);
                self.own(job.host.gap_ns);
                let call = self.call("cudaGraphLaunch", job.profile.graph_launch_ns, &[]);
                for kernel in part {
                    self.kernel_on(*kernel, call, 3);
                }
            } else {
                for kernel in part {
                    self.launch(Part::Kernels, *kernel);
                }
            }
            if let Some(how) = how {
                self.part(Part::Sync, at);
                self.sync_by(how);
            }
        }
        if !job.beside.is_empty() {
            self.part(Part::Beside, 0xfe);
            self.wait(COMPUTE, Event::Join);
        }
        if job.long_every > 0 && self.step % job.long_every == job.long_every - 1 {
            let ns = job.kernels.iter().map(|k| k.ns).fold(0.0, f64::max);
            let kernel = Kernel {
                ns,
                share: 1.0,
                is_small: false,
            };
            for kernel in [kernel; 3]
                .iter()
                .enumerate()
                .map(|(at, k)| (0xf00 + at, k))
            {
                self.launch(Part::Extra, placed(COMPUTE)(kernel));
            }
        }
    }

    fn sync_by(&mut self, how: SyncBy) {
        match how {
            SyncBy::Item | SyncBy::PinnedItem => self.operator("aten::item", |s| {
                let is_pinned = how == SyncBy::PinnedItem;
                s.operator("aten::_local_scalar_dense", |s| {
                    s.copy(COMPUTE, false, is_pinned, 4);
                    s.synchronize_stream(COMPUTE);
                });
            }),
            SyncBy::Stream => self.synchronize_stream(COMPUTE),
            SyncBy::Device => {
                let all: Vec<TaskId> = self.last_on.iter().flatten().copied().collect();
                self.synchronize("cudaDeviceSynchronize", &all);
            }
            SyncBy::Free => {
                let all: Vec<TaskId> = self.last_on.iter().flatten().copied().collect();
                self.operator("aten::empty", |s| {
                    s.call("cudaFree", s.job.profile.free_ns, &all);
                    s.call("cudaMalloc", s.job.profile.malloc_ns, &[]);
                });
            }
        }
    }

    fn download(&mut self) {
        let download = self.planted(|f| matches!(f, Fault::Download { .. }));
        let Some((_, fault, is_removed)) = download else {
            return;
        };
        let Fault::Download {
            bytes,
            is_pinned,
            is_aside,
        } = fault
        else {
            return;
        };
        self.part(Part::Download, 0);
        let stream = if is_aside { DOWNLOADS } else { COMPUTE };
        if is_aside {
            self.record(COMPUTE, Event::Ready);
            self.wait(DOWNLOADS, Event::Ready);
        }
        if !is_removed {
            self.operator("aten::copy_", |s| {
                s.copy(stream, false, is_pinned, bytes);
                s.synchronize_stream(stream);
            });
            return;
        }
        let is_odd = self.step % 2 == 1;
        self.operator("aten::copy_", |s| s.copy(stream, false, true, bytes));
        self.record(stream, Event::Result(is_odd));
        if let Some(&(before, _)) = self.events.get(&Event::Result(!is_odd)) {
            self.synchronize("cudaEventSynchronize", &[before]);
        }
    }
}
