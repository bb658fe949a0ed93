//! The virtual timeline of a simulated program: what its threads do and what they enqueue, on three engines, for the low, the
//! likely and the high estimate of each duration.

mod trace;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sidestream::engine::{Call, Engine, Engines, LaneId, Profile, Task, TaskId, Work};
use sidestream::order::STAGING_BYTES;

use crate::failure::{DeviceError, of_system};
use trace::Row;

/// A low, a likely and a high duration, ns.
type Triple = [f64; 3];

/// The engine of the likely durations.
const LIKELY: usize = 1;
/// The maximum number of launches and copies that may be pending in a stream: the host then waits for room, as on a GPU.
const QUEUE: usize = 1_000;
/// Least time of a kernel, ns: what remains if the gap before it is more than its whole time.
const LEAST_KERNEL_NS: f64 = 200.0;
/// Number of tasks after which old ones are forgotten.
const FORGET_EVERY: u64 = 1_024;
/// The number of markers whose ends stay known after their tasks were forgotten.
const MOST_ENDS: usize = 1 << 16;

/// A host thread or a stream.
struct Lane {
    is_thread: bool,
    name: String,
    /// The lane's number in a trace.
    number: u32,
    last: TaskId,
    /// The pending launches and copies of a stream.
    queue: VecDeque<TaskId>,
    /// The open ranges of a thread, with the task at whose end each began.
    ranges: Vec<(String, TaskId)>,
}

/// An engine, and the ends of markers that it has forgotten.
struct Clock {
    engine: Engine,
    /// Markers that the engine has not forgotten yet.
    markers: Vec<TaskId>,
    ends: BTreeMap<TaskId, u64>,
}

impl Clock {
    /// Runs until a task is complete, and returns its end. For tasks that were forgotten, this is an upper bound,
    /// except for markers.
    fn end_ns(&mut self, task: TaskId) -> u64 {
        // No lane is held, so each task completes.
        let now_ns = self.engine.run_until(task).unwrap_or(u64::MAX);
        match self.engine.scheduled(task) {
            Some(span) => span.end_ns,
            None => self.ends.range(task..).next().map_or(now_ns, |end| *end.1),
        }
    }

    /// Forgets old tasks, except for the ends of markers.
    fn forget(&mut self) {
        let (engine, ends) = (&self.engine, &mut self.ends);
        self.markers
            .retain(|&marker| match engine.scheduled(marker) {
                Some(span) => {
                    ends.insert(marker, span.end_ns);
                    false
                }
                None => true,
            });
        while self.ends.len() > MOST_ENDS {
            self.ends.pop_first();
        }
        self.engine.retire();
    }
}

/// The times at which host threads and streams of a simulated GPU do what a program asks of them.
#[pyclass(module = "sidestream._sidestream")]
pub struct Timeline {
    profile: Profile,
    keeps: bool,
    clocks: [Clock; 3],
    lanes: Vec<Lane>,
    /// The rows of a trace, if it will be wanted.
    rows: Vec<Row>,
    /// The number of tasks when old ones were last forgotten.
    forgot_at: u64,
}

#[pymethods]
impl Timeline {
    #[new]
    #[pyo3(signature = (device, keeps, pageable_gb_s = (0.0, 0.0)))]
    fn new(device: &str, keeps: bool, pageable_gb_s: (f64, f64)) -> PyResult<Timeline> {
        let refused = |why: sidestream_cli::failure::Failure| DeviceError::new_err(why.to_string());
        let profile = sidestream_cli::device::profile(device).map_err(refused)?;
        let profile = profile.with_pageable_gb_s(pageable_gb_s.0, pageable_gb_s.1);
        let clocks = [(); 3].map(|()| Clock {
            engine: Engine::new(vec![profile.clone()]),
            markers: Vec::new(),
            ends: BTreeMap::new(),
        });
        Ok(Timeline {
            profile,
            keeps,
            clocks,
            lanes: Vec::new(),
            rows: Vec::new(),
            forgot_at: 0,
        })
    }

    /// Adds a host thread; it begins after what the threads have done so far.
    fn thread(&mut self, name: String) -> u32 {
        let threads = self.lanes.iter().filter(|lane| lane.is_thread);
        let after: Vec<TaskId> = threads.map(|lane| lane.last).collect();
        self.lane(None, self.lanes.len() as u32 + 1, name, &after)
    }

    /// Adds a stream; a lower priority is more urgent.
    fn stream(&mut self, number: u32, priority: i32) -> u32 {
        self.lane(Some(priority), number, format!("stream {number}"), &[])
    }

    /// Adds host time.
    fn work(&mut self, thread: u32, name: &str, ns: Triple) -> PyResult<()> {
        self.check(thread, true)?;
        self.host(thread, name, ns.map(spent), &[]);
        Ok(())
    }

    /// Adds the launch of a graph: host time and the driver's call, whose number is returned.
    fn graph(&mut self, thread: u32, host_ns: Triple) -> PyResult<u64> {
        self.check(thread, true)?;
        self.host(thread, "", host_ns.map(spent), &[]);
        let call = self.host(thread, "cudaGraphLaunch", [Call::GraphLaunch; 3], &[]);
        Ok(call.0)
    }

    /// Adds an operator: host time that ends with a launch, and the kernel. The kernel of a `graph` that was launched
    /// takes no host time.
    #[expect(clippy::too_many_arguments, reason = "Python has no such limit")]
    #[pyo3(signature = (thread, stream, op, host_ns, kernel, kernel_ns, graph = None))]
    fn launch(
        &mut self,
        thread: u32,
        stream: u32,
        op: &str,
        host_ns: Triple,
        kernel: &str,
        kernel_ns: Triple,
        graph: Option<u64>,
    ) -> PyResult<u64> {
        let begun = self.check(thread, true)?;
        self.check(stream, false)?;
        // The engine adds the gap between kernels, which is part of the time, or the shorter one of graphs.
        let (launch_ns, gap_ns) = (self.profile.launch_ns, self.profile.kernel_gap_ns);
        let works = kernel_ns.map(|ns| Work::Timed {
            engine: Engines::Compute,
            ns: whole((ns - gap_ns).max(LEAST_KERNEL_NS)),
        });
        if let Some(graph) = graph {
            let call = self.task(graph)?;
            let task = self.push_as(stream, works, &[call], true);
            self.row("kernel", kernel, stream, (task, task), graph, 0);
            return Ok(task.0);
        }
        let room = self.room(stream)?;
        self.host(thread, "", host_ns.map(|ns| spent(ns - launch_ns)), &[]);
        let call = host_ns.map(|ns| spent(ns.min(launch_ns)));
        let call = self.host(thread, "cudaLaunchKernel", call, &room);
        let task = self.enqueue(stream, works, call);
        self.row("cpu_op", op, thread, (begun, call), 0, 0);
        self.row("kernel", kernel, stream, (task, task), call.0, 0);
        Ok(task.0)
    }

    /// Adds an operator that copies or fills memory.
    #[expect(clippy::too_many_arguments, reason = "Python has no such limit")]
    fn copy(
        &mut self,
        thread: u32,
        stream: u32,
        op: &str,
        host_ns: Triple,
        kind: &str,
        bytes: u64,
        waits: bool,
    ) -> PyResult<u64> {
        let begun = self.check(thread, true)?;
        let (work, sides) = match kind {
            "upload" => (Work::Upload { bytes }, "HtoD (Pinned -> Device)"),
            "download" => (Work::Download { bytes }, "DtoH (Device -> Pinned)"),
            "upload_pageable" => (Work::UploadPageable { bytes }, "HtoD (Pageable -> Device)"),
            "download_pageable" => (
                Work::DownloadPageable { bytes },
                "DtoH (Device -> Pageable)",
            ),
            "device" => (Work::DeviceCopy { bytes }, "DtoD (Device -> Device)"),
            "fill" => (Work::Memset { bytes }, ""),
            _ => {
                return Err(PyValueError::new_err(format!(
                    "there is no copy {kind:?}; there are upload, download, upload_pageable, download_pageable, \
                     device and fill"
                )));
            }
        };
        // A small pageable upload returns once the host has copied the bytes; other pageable copies block.
        let is_staged = kind == "upload_pageable" && bytes < STAGING_BYTES && !waits;
        let call = match work {
            Work::Upload { .. } => Call::UploadAsync { bytes },
            Work::Memset { .. } => Call::MemsetAsync,
            _ if is_staged => Call::Stage { bytes },
            _ => Call::CopyAsync,
        };
        let room = self.room(stream)?;
        let host = self.host(thread, "", host_ns.map(spent), &[]);
        let call = self.host(thread, "", [call; 3], &room);
        let copy = self.enqueue(stream, [work; 3], call);
        let mut end = call;
        if kind.ends_with("pageable") && !is_staged {
            end = self.host(thread, "", [Call::HostNs(0); 3], &[copy]);
        }
        let (function, category, name) = match work {
            Work::Memset { .. } => (
                "cudaMemsetAsync",
                "gpu_memset",
                "Memset (Device)".to_owned(),
            ),
            _ => ("cudaMemcpyAsync", "gpu_memcpy", format!("Memcpy {sides}")),
        };
        self.row("cuda_runtime", function, thread, (host, end), call.0, 0);
        if waits {
            end = self.host(thread, "cudaStreamSynchronize", [Call::Sync; 3], &[copy]);
        }
        self.row("cpu_op", op, thread, (begun, end), 0, 0);
        self.row(category, &name, stream, (copy, copy), call.0, bytes);
        Ok(copy.0)
    }

    /// Records an event in a stream; returns its marker.
    fn record(&mut self, thread: u32, stream: u32) -> PyResult<u64> {
        self.check(thread, true)?;
        self.check(stream, false)?;
        let call = self.host(thread, "cudaEventRecord", [Call::Record; 3], &[]);
        let marker = self.push(stream, [Work::Marker; 3], &[call]);
        for clock in &mut self.clocks {
            clock.markers.push(marker);
        }
        Ok(marker.0)
    }

    /// Makes a stream wait for a marker.
    fn wait(&mut self, thread: u32, stream: u32, marker: u64) -> PyResult<()> {
        self.check(thread, true)?;
        self.check(stream, false)?;
        let record = self.task(marker)?;
        let call = self.host(thread, "cudaStreamWaitEvent", [Call::Wait; 3], &[]);
        let wait = self.push(stream, [Work::Marker; 3], &[call, record]);
        // The call that made the marker is the task before it.
        let made = marker.saturating_sub(1);
        self.row(
            "cuda_sync",
            "Stream Wait Event",
            stream,
            (wait, wait),
            call.0,
            made,
        );
        Ok(())
    }

    /// Blocks the thread until a marker, a stream, or with neither the device is complete.
    #[pyo3(signature = (thread, marker, stream))]
    fn synchronize(
        &mut self,
        thread: u32,
        marker: Option<u64>,
        stream: Option<u32>,
    ) -> PyResult<()> {
        self.check(thread, true)?;
        let streams = self.lanes.iter().filter(|lane| !lane.is_thread);
        let (function, after) = match (marker, stream) {
            (Some(marker), _) => ("cudaEventSynchronize", vec![self.task(marker)?]),
            (None, Some(stream)) => ("cudaStreamSynchronize", vec![self.check(stream, false)?]),
            (None, None) => (
                "cudaDeviceSynchronize",
                streams.map(|lane| lane.last).collect(),
            ),
        };
        self.host(thread, function, [Call::Sync; 3], &after);
        Ok(())
    }

    /// Whether a marker is complete at the thread's time, by the likely engine. If so, the thread does not continue
    /// before the marker is complete by the other engines: the program now relies on it.
    fn query(&mut self, thread: u32, marker: u64) -> PyResult<bool> {
        self.check(thread, true)?;
        let marker = self.task(marker)?;
        let call = self.host(thread, "cudaEventQuery", [Call::Query; 3], &[]);
        self.clocks[LIKELY].end_ns(call);
        let is_complete = self.clocks[LIKELY].engine.is_finished(marker);
        if is_complete {
            self.push(thread, [Work::Marker; 3], &[marker]);
        }
        Ok(is_complete)
    }

    /// The thread's time, ns.
    fn now(&mut self, thread: u32) -> PyResult<(u64, u64, u64)> {
        let last = self.check(thread, true)?;
        Ok(self.ends(last))
    }

    /// The time at which a marker is complete, ns. No work that is added afterwards begins before it.
    fn end(&mut self, marker: u64) -> PyResult<(u64, u64, u64)> {
        let marker = self.task(marker)?;
        Ok(self.ends(marker))
    }

    /// Begins an annotated range of the thread, or with an empty name ends the innermost.
    fn range(&mut self, thread: u32, name: &str) -> PyResult<()> {
        let now = self.check(thread, true)?;
        let ranges = &mut self.lanes[thread as usize].ranges;
        if !name.is_empty() {
            ranges.push((name.to_owned(), now));
        } else if let Some((name, begun)) = ranges.pop() {
            self.row("user_annotation", &name, thread, (begun, now), 0, 0);
        }
        Ok(())
    }

    /// Keeps tasks from now on for a trace, or forgets them. Returns whether they were kept.
    fn keep(&mut self, keeps: bool) -> bool {
        if !keeps {
            self.rows.clear();
        }
        std::mem::replace(&mut self.keeps, keeps)
    }

    /// Writes what began since a time as PyTorch's profiler would, by the likely engine. The trace says about the simulated device what is given.
    #[pyo3(signature = (path, since_ns, about=""))]
    fn trace(&mut self, path: PathBuf, since_ns: u64, about: &str) -> PyResult<()> {
        if !self.keeps {
            return Err(PyValueError::new_err(
                "this timeline has forgotten its tasks; make it with keeps=True",
            ));
        }
        let likely = &mut self.clocks[LIKELY];
        for lane in &self.lanes {
            likely.end_ns(lane.last);
        }
        let about = (&self.profile, about, self.lanes.as_slice());
        let written = File::create(&path)
            .and_then(|file| trace::write(file, about, &self.rows, &likely.engine, since_ns));
        written.map_err(|error| of_system(&path, &error).unwrap_or_else(|| error.into()))
    }

    /// The number of tasks that each engine remembers.
    #[getter]
    fn remembered(&self) -> usize {
        self.clocks[LIKELY].engine.remembered()
    }
}

impl Timeline {
    /// Adds a stream of this priority, or a thread.
    fn lane(&mut self, stream: Option<i32>, number: u32, name: String, after: &[TaskId]) -> u32 {
        let id = self.lanes.len() as u32;
        for Clock { engine, .. } in &mut self.clocks {
            match stream {
                Some(priority) => engine.add_stream(0, priority),
                None => engine.add_thread(),
            };
        }
        self.lanes.push(Lane {
            is_thread: stream.is_none(),
            name,
            number,
            last: TaskId(0),
            queue: VecDeque::new(),
            ranges: Vec::new(),
        });
        // Each lane then has a last task.
        self.push(id, [Work::Marker; 3], after);
        id
    }

    /// Returns the last task of a thread, or of a stream, and refuses anything else.
    fn check(&self, lane: u32, is_thread: bool) -> PyResult<TaskId> {
        match self.lanes.get(lane as usize) {
            Some(lane) if lane.is_thread == is_thread => Ok(lane.last),
            _ => {
                let what = if is_thread { "thread" } else { "stream" };
                Err(PyValueError::new_err(format!(
                    "{lane} is not a {what} of this timeline; give a number that `{what}` returned"
                )))
            }
        }
    }

    /// The task of a marker.
    fn task(&self, marker: u64) -> PyResult<TaskId> {
        let count = self.clocks[0].engine.tasks() as u64;
        let known = (marker < count).then_some(TaskId(marker));
        known.ok_or_else(|| {
            PyValueError::new_err(format!(
                "{marker} is not a marker of this timeline; give a number that `record` returned"
            ))
        })
    }

    fn ends(&mut self, task: TaskId) -> (u64, u64, u64) {
        self.clocks
            .each_mut()
            .map(|clock| clock.end_ns(task))
            .into()
    }

    fn push(&mut self, lane: u32, works: [Work; 3], after: &[TaskId]) -> TaskId {
        self.push_as(lane, works, after, false)
    }

    fn push_as(&mut self, lane: u32, works: [Work; 3], after: &[TaskId], in_graph: bool) -> TaskId {
        let mut last = TaskId(0);
        for (Clock { engine, .. }, work) in self.clocks.iter_mut().zip(works) {
            let task = Task::new(LaneId(lane), work).after(after);
            last = engine.push(if in_graph { task.in_graph() } else { task });
        }
        self.lanes[lane as usize].last = last;
        last
    }

    /// Adds host time: a call of CUDA, or with another name an operator.
    fn host(&mut self, thread: u32, name: &str, calls: [Call; 3], after: &[TaskId]) -> TaskId {
        let begun = self.lanes[thread as usize].last;
        let task = self.push(thread, calls.map(Work::Call), after);
        if !name.is_empty() {
            let is_call = name.starts_with("cuda");
            let category = if is_call { "cuda_runtime" } else { "cpu_op" };
            self.row(category, name, thread, (begun, task), task.0, 0);
        }
        if !self.keeps && task.0 > self.forgot_at + FORGET_EVERY {
            self.forgot_at = task.0;
            for clock in &mut self.clocks {
                clock.end_ns(task);
                clock.forget();
            }
        }
        task
    }

    /// Returns what the host must wait for before it enqueues more work in a stream.
    fn room(&mut self, stream: u32) -> PyResult<Vec<TaskId>> {
        self.check(stream, false)?;
        let queue = &mut self.lanes[stream as usize].queue;
        let excess = (queue.len() + 1).saturating_sub(QUEUE);
        Ok(queue.drain(..excess).collect())
    }

    /// Adds a launch or a copy to a stream.
    fn enqueue(&mut self, stream: u32, works: [Work; 3], call: TaskId) -> TaskId {
        let task = self.push(stream, works, &[call]);
        self.lanes[stream as usize].queue.push_back(task);
        task
    }

    /// Adds a row to the trace.
    fn row(
        &mut self,
        category: &'static str,
        name: &str,
        lane: u32,
        tasks: (TaskId, TaskId),
        number: u64,
        figure: u64,
    ) {
        if self.keeps {
            let name = name.to_owned();
            self.rows.push(Row {
                category,
                name,
                lane,
                tasks,
                number,
                figure,
            });
        }
    }
}

/// Host time, ns.
fn spent(ns: f64) -> Call {
    Call::HostNs(whole(ns))
}

/// Whole ns. What is not a number, or negative, is 0; a duration of more than eleven days is cut, as in the engine.
fn whole(ns: f64) -> u64 {
    ns.clamp(0.0, 1e15) as u64
}
