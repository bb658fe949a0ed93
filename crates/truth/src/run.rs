//! Runs a job on the engine: makes the host calls step by step, and returns when each operation ran.

use std::collections::{HashMap, VecDeque};

use sidestream::engine::{Call, Engine, KernelCost, LaneId, Task, TaskId, Work};

use crate::draw::Draw;
use crate::fault::{Fault, SyncBy};
use crate::job::{GRAPHS, Job, Kernel, Marks, Recorder};
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

/// A kernel with its index in the step.
type Placed = (usize, Kernel);

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

struct Running<'j> {
    job: &'j Job,
    without: u32,
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
pub(crate) fn run(job: &Job, without: u32, recorder: Option<Recorder>) -> Ran {
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
        self.host_task(self.job.profile.sync_ns, &self.all());
        self.end(begun, What::Call("cudaDeviceSynchronize"));
        self.engine.finish().expect("no lane is held");
        let span = |task| {
            let span = self.engine.scheduled(task).expect("it has completed");
            (span.start_ns as f64, span.end_ns as f64)
        };
        let end = |task: Option<TaskId>| task.map_or(0.0, |task| span(task).1);
        let last = |of: &Vec<TaskId>| of.iter().map(|task| span(*task).1).reduce(f64::max);
        let ends: Vec<f64> = self.ends.iter().filter_map(last).collect();
        let spans = self.spans.into_iter();
        let spans = spans
            .map(|(what, number, after, until)| Row::new(end(after), end(until), what, number));
        let work = self.work.into_iter().map(|(what, number, task)| {
            let (start_ns, end_ns) = span(task);
            Row::new(start_ns, end_ns, what, number)
        });
        Ran {
            step_ns: (ends[ends.len() - 1] - ends[0]) / (ends.len() - 1) as f64,
            rows: spans.chain(work).collect(),
        }
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

    /// Returns the last task of each stream.
    fn all(&self) -> Vec<TaskId> {
        self.last_on.iter().flatten().copied().collect()
    }

    /// Runs a kernel in a stream: `at` is its index in the step, and `call` launches it.
    fn kernel_on(&mut self, stream: usize, (at, kernel): Placed, call: (TaskId, u32), graph: u32) {
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
    fn launch(&mut self, part: Part, stream: usize, kernel: Placed) {
        self.part(part, kernel.0);
        self.own(self.job.host.gap_ns);
        let (name, inner) = if kernel.1.is_small {
            ("aten::mul", None)
        } else {
            ("aten::linear", Some("aten::addmm"))
        };
        let launch = |s: &mut Self| {
            let is_full = s.queue.len() >= QUEUE;
            let room = is_full.then(|| s.queue.pop_front()).flatten();
            let call = s.call("cudaLaunchKernel", s.job.profile.launch_ns, room.as_slice());
            s.kernel_on(stream, kernel, call, 0);
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
        let (call, correlation) = self.call("cudaMemcpyAsync", self.job.profile.copy_ns, &[]);
        let (work, name) = match (is_upload, is_pinned) {
            (true, true) => (Work::Upload { bytes }, PINNED_UPLOAD),
            (true, false) => (Work::UploadPageable { bytes }, PAGEABLE_UPLOAD),
            (false, true) => (Work::Download { bytes }, PINNED_DOWNLOAD),
            (false, false) => (Work::DownloadPageable { bytes }, PAGEABLE_DOWNLOAD),
        };
        let task = self.on(stream, work, &[call], false);
        if !is_pinned {
            // The call returns after the copy.
            let until = self.host_task(500.0, &[task]);
            self.spans.last_mut().expect("that of the call").3 = Some(until);
        }
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
        let (record, of) = self.events[&event];
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
        let call = self.call("cudaLaunchKernel", 0.7 * ns, &[]);
        self.kernel_on(COMPUTE, (0xfff, Kernel::small(5e3)), call, 0);
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
        let (lanes, taken) = self.workers.entry(fault).or_default();
        lanes.resize_with(count, || self.engine.add_thread());
        let batch = taken.len();
        let freed = batch.checked_sub(count * AHEAD).map(|at| taken[at]);
        let load = Task::new(lanes[batch % count], Work::Call(Call::HostNs(ns as u64)));
        let loaded = self.engine.push(load.after(freed.as_slice()));
        self.part(Part::TakeOver, fault);
        let ns = self.spread(self.job.take_over_ns) + bytes as f64 / self.job.take_over_gb_s;
        let task = self.host_task(ns, &[loaded]);
        self.workers.entry(fault).or_default().1.push(task);
    }

    /// Returns the first planted fault of a kind, with its number and whether it is removed.
    fn planted<T>(&self, of: impl Fn(Fault) -> Option<T>) -> Option<(usize, T, bool)> {
        let mut faults = self.job.faults.iter().enumerate();
        let (at, fault) = faults.find_map(|(at, fault)| Some((at, of(*fault)?)))?;
        Some((at, fault, self.without & (1 << at) != 0))
    }

    fn load(&mut self) {
        const SINGLE: &str = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
        const MULTI: &str = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__";
        self.part(Part::Load, 0);
        let begun = self.begin();
        let loader = self.planted(|fault| match fault {
            Fault::Loader {
                ns,
                every,
                has_workers,
            } => Some((ns, every, has_workers)),
            _ => None,
        });
        let Some((at, (ns, every, has_workers), is_removed)) = loader else {
            if self.job.quick_loader_ns > 0.0 {
                self.own(self.job.quick_loader_ns);
                self.end(begun, What::Range(SINGLE));
            }
            return;
        };
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
        let work = self.planted(|fault| match fault {
            Fault::HostWork {
                ns,
                every,
                name,
                operators,
                is_last,
            } => Some((ns, every, name, operators, is_last)),
            _ => None,
        });
        let Some((at, (ns, every, name, operators, is_last), is_removed)) = work else {
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
        let upload = self.planted(|fault| (fault.uploaded_bytes() > 0).then_some(fault));
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
        if !job.beside.is_empty() {
            self.part(Part::Beside, 0xff);
            self.record(COMPUTE, Event::Fork);
            self.wait(BESIDE, Event::Fork);
            for kernel in job.beside.iter().copied().enumerate() {
                self.launch(Part::Beside, BESIDE, kernel);
            }
            self.record(BESIDE, Event::Join);
        }
        let launches = self.planted(|fault| matches!(fault, Fault::Launches { .. }).then_some(()));
        let is_removed = launches.is_some_and(|(_, (), is_removed)| is_removed);
        let as_graph = job.has_graphs || self.without & GRAPHS != 0 || is_removed;
        let sync = self.planted(|fault| match fault {
            Fault::Sync { how, times } => Some((how, times)),
            _ => None,
        });
        let (how, times) = match sync {
            Some((_, (how, times), false)) => (Some(how), times),
            _ => (None, 1),
        };
        let kernels: Vec<Placed> = job.kernels.iter().copied().enumerate().collect();
        for (at, part) in kernels.chunks(kernels.len().div_ceil(times)).enumerate() {
            if as_graph {
                self.part(Part::Kernels, part[0].0);
                self.own(job.host.gap_ns);
                let call = self.call("cudaGraphLaunch", job.profile.graph_launch_ns, &[]);
                for kernel in part {
                    self.kernel_on(COMPUTE, *kernel, call, 3);
                }
            } else {
                for kernel in part {
                    self.launch(Part::Kernels, COMPUTE, *kernel);
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
            for at in 0xf00..0xf03 {
                self.launch(Part::Extra, COMPUTE, (at, Kernel::large(ns, 1.0)));
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
            SyncBy::Device => self.synchronize("cudaDeviceSynchronize", &self.all()),
            SyncBy::Free => self.operator("aten::empty", |s| {
                s.call("cudaFree", s.job.profile.free_ns, &s.all());
                s.call("cudaMalloc", s.job.profile.malloc_ns, &[]);
            }),
        }
    }

    fn download(&mut self) {
        let download = self.planted(|fault| match fault {
            Fault::Download {
                bytes,
                is_pinned,
                is_aside,
            } => Some((bytes, is_pinned, is_aside)),
            _ => None,
        });
        let Some((_, (bytes, is_pinned, is_aside), is_removed)) = download else {
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
