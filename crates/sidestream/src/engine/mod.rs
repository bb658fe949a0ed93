//! Computes when work runs on a GPU: from tasks, their edges, the engines and a device profile.
//!
//! The engine is a pure discrete-event simulation: no clock, no randomness, no input or output. It knows nothing of
//! CUDA's ordering rules. A task starts after the previous task of its lane and after every task that it names; all
//! other order comes from the queues of the engines. The simulated GPU drives it live, event by event; trace analysis
//! pushes a whole program and lets it finish.
//!
//! # How to push a CUDA program
//! Every API call is one host task ([`Work::Call`]) on the lane of the calling thread, and its device part is a task on
//! the lane of the stream, with `after` set to that host task. Records and waits are [`Work::Marker`]s on the stream; the
//! `after` of a wait also names the record. A host synchronize is a [`Call::Sync`] with `after` set to the device tasks.
//!
//! ```
//! use sidestream::engine::{Call, Engine, Profile, Task, Work};
//! let mut engine = Engine::new(vec![Profile::h200()]);
//! let (host, stream) = (engine.add_thread(), engine.add_stream(0, 0));
//! let call = engine.push(Task::new(host, Work::Call(Call::UploadAsync { bytes: 4 << 20 })));
//! let copy = engine.push(Task::new(stream, Work::Upload { bytes: 4 << 20 }).after(&[call]));
//! let sync = engine.push(Task::new(host, Work::Call(Call::Sync)).after(&[copy]));
//! let end_ns = engine.run_until(sync).unwrap();
//! assert!((80_000..90_000).contains(&end_ns));
//! ```
//!
//! # The model, and the observations behind each part
//! - **Copies.** One engine for each direction, served first come first served; a copy holds its engine for a set-up and
//!   for its bytes. While the other direction is busy both go slower, the set-up more than the data. An engine that
//!   passes from one stream to another whose copy had to wait in its queue takes a little longer: a stream per slot is up
//!   to 2 % slower than a stream per stage where copies are the bottleneck. Small uploads travel in the command stream;
//!   their bytes cost host time instead.
//! - **Kernels** share the thread slots of the device: the more urgent stream first, then the older kernel, and the next
//!   one is given what is left. No block is preempted: a more urgent kernel that arrives while the device is full waits until
//!   blocks end. Blocks of a kernel end in waves, all at once. Equal sharing would be wrong by a quarter. A resident warp
//!   takes a fixed time for a dependent step or a memory access (a small grid is bound by its chain) until the
//!   schedulers have no issue slot left, or the memory no bandwidth; the transition is smooth: the slow-down is
//!   `(1 + d⁴)^¼` with `d` the demand. Issue slots and bandwidth too go to the older kernel first: the younger gets
//!   what both are served together, less what the older one is served alone.
//! - **A kernel's tail.** Blocks run in whole waves, and warps that compete for issue slots end at different times. At its
//!   end a kernel runs for a while without using its slots, which another kernel fills. So two streams beat one on the
//!   same kernels.
//! - **Hops.** Inside a stream every change of engine costs some microseconds, a kernel after a kernel less; a pending
//!   wait on another stream adds to that.
//! - **The host.** Every call costs time on its thread, and device work starts a little after its call.
//!
//! Not modelled: the front end that starts kernels takes no time, so that thousands of empty kernels, queued ahead on
//! several streams, start faster than on a device; clocks do not change with power; host calls have a fixed cost,
//! while measured ones vary by half between runs.
//!
//! Times are whole nanoseconds; everything else is deterministic `f64` arithmetic with `+ - × ÷ √` only, whose results
//! IEEE 754 defines to the last bit. Equal times are ordered by task number.

mod copies;
mod cost;
mod kernels;
mod limit;
mod path;
mod profile;
mod retire;
mod run;
mod work;

pub use limit::{Limit, overlap_limit};
pub use path::{Cause, Link};
pub use profile::{Dtype, Profile, ProfileError};
pub use work::{Call, Engines, Grid, KernelCost, Work};

use copies::{Bus, Flow, Request};
use cost::Shape;
use kernels::{Ended, Kernels};
use retire::Slots;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::fmt;

/// Identifies a task of one [`Engine`]: tasks are numbered from 0 in the order in which they are pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// Identifies a lane of one [`Engine`]: a host thread or a stream, numbered from 0 in the order they are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

/// A task for [`Engine::push`].
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    lane: LaneId,
    work: Work,
    after: &'a [TaskId],
    any_of: &'a [TaskId],
    delay: Delay,
    in_graph: bool,
}

impl<'a> Task<'a> {
    /// Returns a task that runs on a lane after everything pushed to the lane before.
    pub fn new(lane: LaneId, work: Work) -> Self {
        Self {
            lane,
            work,
            after: &[],
            any_of: &[],
            delay: Delay::None,
            in_graph: false,
        }
    }

    /// Also orders the task after these tasks.
    pub fn after(self, after: &'a [TaskId]) -> Self {
        Self { after, ..self }
    }

    /// Also orders the task after the first of these tasks to end; an empty list has no effect.
    pub(crate) fn after_any(self, any_of: &'a [TaskId]) -> Self {
        Self { any_of, ..self }
    }

    /// Delays the task once it is ready.
    pub fn delay(self, delay: Delay) -> Self {
        Self { delay, ..self }
    }

    /// Marks the task as a graph node: kernels of a graph follow each other with a shorter gap.
    pub fn in_graph(self) -> Self {
        Self {
            in_graph: true,
            ..self
        }
    }
}

/// The delay of a task that is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delay {
    /// No delay.
    #[default]
    None,
    /// A delay of this many ns.
    ExtraNs(u64),
    /// A delay until nothing else in the whole engine can progress. Of several such tasks, the highest rank runs first,
    /// then the older task.
    UntilIdle(u64),
}

/// The start or end of a task in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The virtual time, ns.
    pub time_ns: u64,
    /// The task.
    pub task: TaskId,
    /// Whether the task started or finished.
    pub what: What,
}

/// The kind of an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The task started: it reads its inputs now.
    Started,
    /// The task finished: its outputs are complete now.
    Finished,
}

/// The resource that a task occupied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// The host thread of its lane.
    Host,
    /// An engine of a device.
    Engine {
        /// The device.
        device: u32,
        /// The engine.
        engine: Engines,
    },
    /// No resource: the task was a marker.
    None,
}

/// The time span in which a task ran, and its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The start, ns.
    pub start_ns: u64,
    /// The end, ns.
    pub end_ns: u64,
    /// The resource occupied from start to end. Kernels share the multiprocessors; every other resource serves one task.
    pub resource: Resource,
}

/// The error for a task that cannot complete while a lane is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The task that was waited for.
    pub task: TaskId,
    /// The held lanes whose next task is ready to start.
    pub held: Vec<LaneId>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes: Vec<String> = self.held.iter().map(|l| l.0.to_string()).collect();
        write!(
            f,
            "task {} can never complete: work is ready on held lane {}; release it",
            self.task.0,
            lanes.join(", ")
        )
    }
}

impl std::error::Error for Stuck {}

/// No task.
const NONE: u64 = u64::MAX;
/// No edge or no stream; ends a linked list.
const NOTHING: u32 = u32::MAX;
/// The flag of an entry for a task that waits only for the first of several.
const ANY: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Done,
}

/// The place where the last real work before a point ran, which determines the hop to the next engine. Markers pass it
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Host,
    Device(Engines),
}

/// The work of a task, prepared for the hot path. Copies and kernels are indices into tables, since programs repeat few
/// costs.
#[derive(Clone, Copy, Debug)]
enum Job {
    Host { ns: u64 },
    Marker,
    Copy { flow: u32 },
    Kernel { shape: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    job: Job,
    delay: Delay,
    lane: u32,
    /// The next task of its lane.
    next: u64,
    /// The head of the list of tasks that name this task in `after`.
    first_edge: u32,
    /// The number of unfinished tasks that this task waits for.
    pending: u32,
    cause: Cause,
    ready_ns: u64,
    start_ns: u64,
    end_ns: u64,
    side: Side,
    state: State,
    in_graph: bool,
    /// Whether the task is counted among the pending waits of its device.
    counted: bool,
}

struct Lane {
    /// The device of a stream; `None` for a host thread.
    device: Option<u32>,
    priority: i32,
    last: u64,
    held: bool,
    /// The task that is ready to start once the lane is released.
    parked: u64,
}

struct Device {
    profile: Profile,
    bus: Bus,
    kernels: Kernels,
    /// The number of streams whose head is a wait for an event that is not complete yet.
    pending_waits: u32,
    /// The last cost of each kind of work, with its job.
    recent: [Option<(Work, Job)>; 10],
}

/// The simulation; see the [module](self).
pub struct Engine {
    devices: Vec<Device>,
    lanes: Vec<Lane>,
    slots: Slots,
    /// Entries of linked lists: the task that waits, and the next entry.
    edges: Vec<(u64, u32)>,
    /// The head of the list of free entries.
    free_edges: u32,
    /// Tasks that wait for the first of several tasks, none of which has finished.
    open: HashSet<u64>,
    flows: Vec<Flow>,
    shapes: Vec<Shape>,
    now_ns: u64,
    /// Known future times, at which a waiting task becomes ready or a running one ends.
    future: BinaryHeap<Reverse<(u64, u64)>>,
    /// The tasks ready now, in order.
    due: VecDeque<u64>,
    /// The tasks ready but delayed until idle: by rank, then the older first.
    idle: BinaryHeap<(u64, Reverse<u64>)>,
    /// The events that have happened but have not been returned yet.
    events: VecDeque<Event>,
    last_finished: u64,
    longest_hop_ns: u64,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("now_ns", &self.now_ns)
            .field("lanes", &self.lanes.len())
            .field("tasks", &self.slots.end())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Returns an engine for these devices, numbered from 0, at time 0. The first profile determines the cost of host calls.
    ///
    /// # Panics
    /// If there is no device.
    #[track_caller]
    pub fn new(devices: Vec<Profile>) -> Self {
        assert!(
            !devices.is_empty(),
            "an engine needs at least one device profile"
        );
        let longest_hop_ns = retire::longest_hop_ns(&devices);
        Self {
            devices: devices
                .into_iter()
                .map(|profile| Device {
                    bus: Bus::new(&profile),
                    kernels: Kernels::new(&profile),
                    pending_waits: 0,
                    recent: [None; 10],
                    profile,
                })
                .collect(),
            lanes: Vec::new(),
            slots: Slots::default(),
            edges: Vec::new(),
            free_edges: NOTHING,
            open: HashSet::new(),
            flows: Vec::new(),
            shapes: Vec::new(),
            now_ns: 0,
            future: BinaryHeap::new(),
            due: VecDeque::new(),
            idle: BinaryHeap::new(),
            events: VecDeque::new(),
            last_finished: NONE,
            longest_hop_ns,
        }
    }

    /// Adds a host thread.
    pub fn add_thread(&mut self) -> LaneId {
        self.add_lane(None, 0)
    }

    /// Adds a stream of a device; a lower priority is more urgent.
    ///
    /// # Panics
    /// If there is no such device.
    #[track_caller]
    pub fn add_stream(&mut self, device: u32, priority: i32) -> LaneId {
        assert!(
            (device as usize) < self.devices.len(),
            "there is no device {device}"
        );
        self.add_lane(Some(device), priority)
    }

    /// Returns the priority of the kernels of a lane; a lower value is more urgent.
    ///
    /// # Panics
    /// If the lane does not exist.
    pub fn priority(&self, lane: LaneId) -> i32 {
        self.lanes[lane.0 as usize].priority
    }

    fn add_lane(&mut self, device: Option<u32>, priority: i32) -> LaneId {
        self.lanes.push(Lane {
            device,
            priority,
            last: NONE,
            held: false,
            parked: NONE,
        });
        LaneId(self.lanes.len() as u32 - 1)
    }

    /// Adds a task after all earlier tasks of its lane. It never starts before [`Engine::now_ns`].
    ///
    /// # Panics
    /// If the lane or a task in `after` does not exist, or if the work does not fit the lane (a call on a stream,
    /// device work on a thread).
    #[track_caller]
    pub fn push(&mut self, task: Task<'_>) -> TaskId {
        let id = self.slots.end();
        let lane = task.lane.0 as usize;
        let (job, side) = self.job(lane, &task.work);
        self.slots.push(Slot {
            job,
            delay: task.delay,
            lane: task.lane.0,
            next: NONE,
            first_edge: NOTHING,
            pending: 0,
            cause: Cause::Pushed,
            ready_ns: 0,
            start_ns: 0,
            end_ns: 0,
            side,
            state: State::Waiting,
            in_graph: task.in_graph,
            counted: false,
        });
        let previous = std::mem::replace(&mut self.lanes[lane].last, id);
        let mut first_of_lane = true;
        // A retired task ended so long ago that it cannot delay this one.
        if previous != NONE && !self.slots.is_retired(previous) {
            if self.slots[previous].state == State::Done {
                self.note(id, previous, false);
            } else {
                self.slots[previous].next = id;
                self.slots[id].pending += 1;
                first_of_lane = false;
            }
        }
        for before in task.after {
            assert!(
                before.0 < id,
                "task {} is after task {}, which does not exist yet",
                id,
                before.0
            );
            if self.slots.is_retired(before.0) {
                continue;
            }
            if self.slots[before.0].state == State::Done {
                self.note(id, before.0, true);
            } else {
                self.add_edge(before.0, id);
                self.slots[id].pending += 1;
            }
        }
        self.push_any(id, task.any_of);
        if self.slots[id].pending == 0 {
            self.activate(id);
        } else if first_of_lane {
            self.count_pending_wait(id);
        }
        TaskId(id)
    }

    fn push_any(&mut self, id: u64, any_of: &[TaskId]) {
        if any_of.is_empty() || any_of.iter().any(|before| self.slots.is_retired(before.0)) {
            return;
        }
        let over = |slots: &Slots, task: u64| slots[task].state == State::Done;
        let ends = any_of.iter().map(|before| before.0);
        let ends = ends.filter(|&before| over(&self.slots, before));
        if let Some(first) = ends.min_by_key(|&before| self.slots[before].end_ns) {
            self.note(id, first, true);
            return;
        }
        for before in any_of {
            self.add_edge(before.0, id | ANY);
        }
        self.open.insert(id);
        self.slots[id].pending += 1;
    }

    fn add_edge(&mut self, before: u64, waiting: u64) {
        let edge = (waiting, self.slots[before].first_edge);
        self.slots[before].first_edge = self.new_edge(edge);
    }

    fn new_edge(&mut self, edge: (u64, u32)) -> u32 {
        let free = self.free_edges;
        if free == NOTHING {
            self.edges.push(edge);
            return self.edges.len() as u32 - 1;
        }
        self.free_edges = self.edges[free as usize].1;
        self.edges[free as usize] = edge;
        free
    }

    /// Converts work to a job for the hot path, and checks that it fits its lane.
    #[track_caller]
    fn job(&mut self, lane: usize, work: &Work) -> (Job, Side) {
        assert!(lane < self.lanes.len(), "there is no lane {lane}");
        let Some(index) = self.lanes[lane].device else {
            return match work {
                Work::Call(call) => (
                    Job::Host {
                        ns: whole(self.devices[0].profile.call_ns(*call)),
                    },
                    Side::Host,
                ),
                Work::Marker => (Job::Marker, Side::Host),
                _ => {
                    panic!("lane {lane} is a host thread: it takes calls and markers, not {work:?}")
                }
            };
        };
        let device = &mut self.devices[index as usize];
        let (kind, engine) = match work {
            Work::Call(_) => {
                panic!("lane {lane} is a stream: {work:?} belongs on the lane of a host thread")
            }
            Work::Marker => return (Job::Marker, Side::Host),
            Work::Upload { bytes } if device.profile.is_inline(*bytes) => (0, Engines::Inline),
            Work::Upload { .. } => (0, Engines::Upload),
            Work::Download { .. } => (1, Engines::Download),
            Work::Kernel(_) => (2, Engines::Compute),
            Work::UploadPageable { .. } => (3, Engines::Upload),
            Work::DownloadPageable { .. } => (4, Engines::Download),
            Work::DeviceCopy { .. } => (5, Engines::Inner),
            Work::PeerCopy { .. } => (6, Engines::Inner),
            Work::Memset { .. } => (7, Engines::Inner),
            Work::HostFunc { .. } => (8, Engines::Callback),
            Work::Timed { engine, .. } => (9, *engine),
        };
        let side = Side::Device(engine);
        if let Some((recent, job)) = &device.recent[kind]
            && recent == work
        {
            return (*job, side);
        }
        let cost = match work {
            Work::Kernel(cost) => Some(*cost),
            Work::Timed {
                engine: Engines::Compute,
                ns,
            } => Some(KernelCost::Duration {
                ns: *ns,
                share: 1.0,
            }),
            _ => None,
        };
        let job = if let Some(cost) = cost {
            self.shapes.push(device.profile.shape(&cost));
            Job::Kernel {
                shape: self.shapes.len() as u32 - 1,
            }
        } else {
            self.flows.push(Flow::new(&device.profile, work, engine));
            Job::Copy {
                flow: self.flows.len() as u32 - 1,
            }
        };
        device.recent[kind] = Some((*work, job));
        (job, side)
    }

    /// Holds a lane: none of its tasks starts until [`Engine::release`]. A running task continues.
    pub fn hold(&mut self, lane: LaneId) {
        self.lanes[lane.0 as usize].held = true;
    }

    /// Releases a held lane: its next task may start now.
    pub fn release(&mut self, lane: LaneId) {
        let lane = &mut self.lanes[lane.0 as usize];
        lane.held = false;
        let parked = std::mem::replace(&mut lane.parked, NONE);
        if parked != NONE {
            if self.now_ns > self.slots[parked].ready_ns {
                self.slots[parked].cause = Cause::Released;
            }
            self.due.push_back(parked);
        }
    }

    /// Returns the current virtual time, ns: everything up to it has happened.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the number of tasks pushed so far.
    pub fn tasks(&self) -> usize {
        self.slots.end() as usize
    }

    /// Whether a task has finished.
    ///
    /// # Panics
    /// If there is no such task.
    #[track_caller]
    pub fn is_finished(&self, task: TaskId) -> bool {
        self.slots.is_retired(task.0) || self.slots[task.0].state == State::Done
    }
}

/// Rounds a duration to whole nanoseconds. Durations are capped at eleven days, so that absurd input cannot overflow
/// the time.
fn whole(ns: f64) -> u64 {
    ns.clamp(0.0, 1e15).round() as u64
}

/// Adds a duration to a time; the largest time means "never".
fn later(time_ns: u64, by_ns: u64) -> u64 {
    time_ns.saturating_add(by_ns).min(u64::MAX - 1)
}
