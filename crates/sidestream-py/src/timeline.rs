//! The virtual timeline of a simulated program: what its threads do and what they enqueue, on three engines, for the low, the
//! likely and the high estimate of each duration.

mod rows;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sidestream::engine::{Call, Engine, Engines, LaneId, Profile, Task, TaskId, Work};
use sidestream::order::STAGING_BYTES;

use crate::failure::{DeviceError, of_system};
use rows::{Between, Rows};

/// A low, a likely and a high duration, ns.
type Triple = (f64, f64, f64);

/// The engine of the likely durations.
const LIKELY: usize = 1;
/// The category of CUDA's calls in a trace.
const CALL: &str = "cuda_runtime";
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
    /// The open annotation of a thread, and the task at whose end it began.
    step: Option<(String, TaskId)>,
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
    rows: Rows,
    /// The number of tasks when old ones were last forgotten.
    forgot_at: u64,
}

#[pymethods]
impl Timeline {
    #[new]
    fn new(device: &str, keeps: bool) -> PyResult<Timeline> {
        let refused = |why: sidestream_cli::failure::Failure| DeviceError::new_err(why.to_string());
        let profile = sidestream_cli::device::profile(device).map_err(refused)?;
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
            rows: Rows::default(),
            forgot_at: 0,
        })
    }

    /// Adds a host thread; it begins after what the threads have done so far.
    fn thread(&mut self, name: &str) -> u32 {
        let threads = self.lanes.iter().filter(|lane| lane.is_thread);
        let after: Vec<TaskId> = threads.map(|lane| lane.last).collect();
        let number = self.lanes.len() as u32 + 1;
        self.lane((true, name.to_owned(), number), &after, |engine| {
            engine.add_thread()
        })
    }

    /// Adds a stream; a lower priority is more urgent.
    fn stream(&mut self, number: u32, priority: i32) -> u32 {
        let name = format!("stream {number}");
        self.lane((false, name, number), &[], |engine| {
            engine.add_stream(0, priority)
        })
    }

    /// Adds host time.
    fn work(&mut self, thread: u32, name: &str, ns: Triple) -> PyResult<()> {
        let begun = self.check(thread, true)?;
        let task = self.host(thread, ns, &[]);
        if !name.is_empty() {
            self.on_host("cpu_op", name, thread, (begun, 0, task), 0);
        }
        self.forget(thread);
        Ok(())
    }

    /// Adds an operator: host time that ends with a launch, and the kernel.
    fn launch(
        &mut self,
        thread: u32,
        stream: u32,
        op: &str,
        host_ns: Triple,
        kernel: &str,
        kernel_ns: Triple,
    ) -> PyResult<u64> {
        let begun = self.check(thread, true)?;
        self.check(stream, false)?;
        let room = self.room(stream);
        let call = self.host(thread, host_ns, room.as_slice());
        // The engine adds the gap between kernels, which is part of the time.
        let gap_ns = self.profile.kernel_gap_ns;
        let works = each(kernel_ns).map(|ns| Work::Timed {
            engine: Engines::Compute,
            ns: whole((ns - gap_ns).max(LEAST_KERNEL_NS)),
        });
        let task = self.enqueue(stream, works, call);
        let own_ns = whole(host_ns.1 - self.profile.launch_ns);
        self.on_host("cpu_op", op, thread, (begun, 0, call), 0);
        self.on_host(
            CALL,
            "cudaLaunchKernel",
            thread,
            (begun, own_ns, call),
            task.0,
        );
        self.on_device("kernel", kernel, stream, task, 0);
        self.forget(thread);
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
        self.check(stream, false)?;
        let (work, name) = match kind {
            "upload" => (Work::Upload { bytes }, "Memcpy HtoD (Pinned -> Device)"),
            "download" => (Work::Download { bytes }, "Memcpy DtoH (Device -> Pinned)"),
            "upload_pageable" => (
                Work::UploadPageable { bytes },
                "Memcpy HtoD (Pageable -> Device)",
            ),
            "download_pageable" => (
                Work::DownloadPageable { bytes },
                "Memcpy DtoH (Device -> Pageable)",
            ),
            "device" => (Work::DeviceCopy { bytes }, "Memcpy DtoD (Device -> Device)"),
            "fill" => (Work::Memset { bytes }, "Memset (Device)"),
            _ => {
                return Err(PyValueError::new_err(format!(
                    "kind is {kind:?}; give \"upload\", \"download\", \"upload_pageable\", \"download_pageable\", \
                     \"device\" or \"fill\""
                )));
            }
        };
        // A small pageable upload returns once the host has copied the bytes; other pageable copies block.
        let (call, blocks) = match work {
            Work::Upload { .. } => (Call::UploadAsync { bytes }, false),
            Work::Memset { .. } => (Call::MemsetAsync, false),
            Work::UploadPageable { .. } if bytes < STAGING_BYTES && !waits => {
                (Call::Stage { bytes }, false)
            }
            Work::UploadPageable { .. } | Work::DownloadPageable { .. } => (Call::CopyAsync, true),
            _ => (Call::CopyAsync, false),
        };
        let room = self.room(stream);
        let host = self.host(thread, host_ns, room.as_slice());
        let mut end = self.call(thread, call, &[]);
        let copy = self.enqueue(stream, [work; 3], end);
        if blocks {
            end = self.call(thread, Call::HostNs(0), &[copy]);
        }
        let (category, function) = match work {
            Work::Memset { .. } => ("gpu_memset", "cudaMemsetAsync"),
            _ => ("gpu_memcpy", "cudaMemcpyAsync"),
        };
        self.on_host(CALL, function, thread, (host, 0, end), copy.0);
        if waits {
            let sync = self.call(thread, Call::Sync, &[copy]);
            self.on_host(
                CALL,
                "cudaStreamSynchronize",
                thread,
                (end, 0, sync),
                sync.0,
            );
            end = sync;
        }
        self.on_host("cpu_op", op, thread, (begun, 0, end), 0);
        self.on_device(category, name, stream, copy, bytes);
        self.forget(thread);
        Ok(copy.0)
    }

    /// Records an event in a stream; returns its marker.
    fn record(&mut self, thread: u32, stream: u32) -> PyResult<u64> {
        let begun = self.check(thread, true)?;
        self.check(stream, false)?;
        let call = self.call(thread, Call::Record, &[]);
        let marker = self.push(stream, [Work::Marker; 3], &[call]);
        for clock in self.clocks.iter_mut().filter(|_| !self.keeps) {
            clock.markers.push(marker);
        }
        self.on_host(CALL, "cudaEventRecord", thread, (begun, 0, call), marker.0);
        self.forget(thread);
        Ok(marker.0)
    }

    /// Makes a stream wait for a marker.
    fn wait(&mut self, thread: u32, stream: u32, marker: u64) -> PyResult<()> {
        let begun = self.check(thread, true)?;
        self.check(stream, false)?;
        let record = self.task(marker)?;
        let call = self.call(thread, Call::Wait, &[]);
        let wait = self.push(stream, [Work::Marker; 3], &[call, record]);
        self.on_host(
            CALL,
            "cudaStreamWaitEvent",
            thread,
            (begun, 0, call),
            wait.0,
        );
        self.on_device("cuda_sync", "Stream Wait Event", stream, wait, marker);
        self.forget(thread);
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
        let begun = self.check(thread, true)?;
        let (function, after) = match (marker, stream) {
            (Some(marker), _) => ("cudaEventSynchronize", vec![self.task(marker)?]),
            (None, Some(stream)) => ("cudaStreamSynchronize", vec![self.check(stream, false)?]),
            (None, None) => {
                let streams = self.lanes.iter().filter(|lane| !lane.is_thread);
                (
                    "cudaDeviceSynchronize",
                    streams.map(|lane| lane.last).collect(),
                )
            }
        };
        let sync = self.call(thread, Call::Sync, &after);
        self.on_host(CALL, function, thread, (begun, 0, sync), sync.0);
        self.forget(thread);
        Ok(())
    }

    /// Whether a marker is complete at the thread's time, by the likely engine. If so, the thread does not continue
    /// before the marker is complete by the other engines: the program now relies on it.
    fn query(&mut self, thread: u32, marker: u64) -> PyResult<bool> {
        let begun = self.check(thread, true)?;
        let marker = self.task(marker)?;
        let call = self.call(thread, Call::Query, &[]);
        self.on_host(CALL, "cudaEventQuery", thread, (begun, 0, call), call.0);
        self.clocks[LIKELY].end_ns(call);
        let is_complete = self.clocks[LIKELY].engine.is_finished(marker);
        if is_complete {
            self.push(thread, [Work::Marker; 3], &[marker]);
        }
        self.forget(thread);
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

    /// Ends the thread's open annotation, and begins another unless its name is empty.
    fn step(&mut self, thread: u32, name: &str) -> PyResult<()> {
        let now = self.check(thread, true)?;
        let next = (!name.is_empty()).then(|| (name.to_owned(), now));
        let ended = std::mem::replace(&mut self.lanes[thread as usize].step, next);
        if let Some((name, begun)) = ended {
            self.on_host("user_annotation", &name, thread, (begun, 0, now), 0);
        }
        Ok(())
    }

    /// Writes what began since a time, and is complete at the threads' times, as PyTorch's profiler would, by the likely
    /// engine.
    fn trace(&mut self, path: PathBuf, since_ns: u64) -> PyResult<()> {
        if !self.keeps {
            return Err(PyValueError::new_err(
                "this timeline has forgotten its tasks; make it with keeps=True",
            ));
        }
        let likely = &mut self.clocks[LIKELY];
        for thread in self.lanes.iter().filter(|lane| lane.is_thread) {
            likely.end_ns(thread.last);
        }
        let written = File::create(&path).and_then(|file| {
            self.rows
                .write(file, &self.profile, &self.lanes, &likely.engine, since_ns)
        });
        written.map_err(|error| of_system(&path, &error).unwrap_or_else(|| error.into()))
    }

    /// The number of tasks that the engines remember.
    #[getter]
    fn remembered(&self) -> usize {
        self.clocks
            .iter()
            .map(|clock| clock.engine.remembered())
            .sum()
    }
}

impl Timeline {
    fn lane(
        &mut self,
        (is_thread, name, number): (bool, String, u32),
        after: &[TaskId],
        add: impl Fn(&mut Engine) -> LaneId,
    ) -> u32 {
        let [.., id] = self.clocks.each_mut().map(|clock| add(&mut clock.engine));
        self.lanes.push(Lane {
            is_thread,
            name,
            number,
            last: TaskId(0),
            queue: VecDeque::new(),
            step: None,
        });
        // Each lane then has a last task.
        self.push(id.0, [Work::Marker; 3], after);
        id.0
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
        let ends = self.clocks.each_mut().map(|clock| clock.end_ns(task));
        ends.into()
    }

    fn push(&mut self, lane: u32, works: [Work; 3], after: &[TaskId]) -> TaskId {
        let mut last = TaskId(0);
        for (clock, work) in self.clocks.iter_mut().zip(works) {
            last = clock
                .engine
                .push(Task::new(LaneId(lane), work).after(after));
        }
        self.lanes[lane as usize].last = last;
        last
    }

    /// Adds a launch or a copy to a stream.
    fn enqueue(&mut self, stream: u32, works: [Work; 3], call: TaskId) -> TaskId {
        let task = self.push(stream, works, &[call]);
        self.lanes[stream as usize].queue.push_back(task);
        task
    }

    /// Adds a row of a thread that begins this many ns after the end of a task, and ends with another.
    fn on_host(
        &mut self,
        category: &'static str,
        name: &str,
        thread: u32,
        (begun, ns, end): (TaskId, u64, TaskId),
        number: u64,
    ) {
        if self.keeps {
            self.rows.add(
                category,
                name,
                thread,
                Between::Ends(begun, ns, end),
                number,
                0,
            );
        }
    }

    /// Adds a row of a stream.
    fn on_device(
        &mut self,
        category: &'static str,
        name: &str,
        stream: u32,
        task: TaskId,
        figure: u64,
    ) {
        if self.keeps {
            self.rows
                .add(category, name, stream, Between::Task(task), task.0, figure);
        }
    }

    fn call(&mut self, thread: u32, call: Call, after: &[TaskId]) -> TaskId {
        self.push(thread, [Work::Call(call); 3], after)
    }

    fn host(&mut self, thread: u32, ns: Triple, after: &[TaskId]) -> TaskId {
        self.push(
            thread,
            each(ns).map(|ns| Work::Call(Call::HostNs(whole(ns)))),
            after,
        )
    }

    /// Returns what the host must wait for before it enqueues more work in a stream.
    fn room(&mut self, stream: u32) -> Option<TaskId> {
        let queue = &mut self.lanes[stream as usize].queue;
        if queue.len() < QUEUE {
            None
        } else {
            queue.pop_front()
        }
    }

    /// Forgets old tasks now and then, unless they are kept for a trace.
    fn forget(&mut self, thread: u32) {
        let tasks = self.clocks[0].engine.tasks() as u64;
        if self.keeps || tasks < self.forgot_at + FORGET_EVERY {
            return;
        }
        self.forgot_at = tasks;
        let last = self.lanes[thread as usize].last;
        for clock in &mut self.clocks {
            clock.end_ns(last);
            clock.forget();
        }
    }
}

fn each((low, likely, high): Triple) -> [f64; 3] {
    [low, likely, high]
}

/// Whole ns. What is not a number, or negative, is 0; a duration of more than eleven days is cut, as in the engine.
fn whole(ns: f64) -> u64 {
    ns.clamp(0.0, 1e15) as u64
}
