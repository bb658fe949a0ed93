//! The simulated GPU as a [`Backend`]: programs run on it as on a device.
//!
//! No work runs in the call that enqueues it. Calls are added to the engine in call order, and work runs inside
//! queries and waits: [`Backend::query`], [`Backend::peek`] and [`Backend::wait`]. An operation reads when it
//! starts in virtual time and writes when it ends.
//!
//! # Time
//! Every host thread has a virtual time: the end of its calls so far. A query first runs everything before that time,
//! and then answers. It takes time itself, so that a polling loop ends; an operation that the schedule
//! delays until the engine is idle is released after some negative answers in a row.
//!
//! # Repeating a run
//! The results of a program with one thread depend only on its calls and the schedule. Host functions run on a
//! separate thread, but the machine proceeds past the end of one only in a wait or in [`Backend::query`],
//! which block until the real function has returned.
//!
//! # Code of the program
//! Host functions run without the lock of the machine and may call it, but not wait. Kernels in Rust run
//! under the lock: one that calls the machine deadlocks.
//!
//! # Failures
//! After an access outside all allocated memory or a panic in a kernel, the device is lost, and with it the whole machine:
//! work on another device that waits for it would continue with data that was never written. From then on nothing
//! runs, every call returns the reason, and host functions ordered after the failure are dropped without
//! being run.

mod ask;
mod callback;
mod capture;
mod command;
mod enqueue;
mod graph;
mod happen;
mod make;
mod space;
mod state;
mod tables;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::backend::{Address, Backend, Caps, Code, Create, Destroy, Done, Payload, Reserve};
use crate::engine::Profile;
use crate::error::{Error, Result};
use crate::op::{DeviceId, EventId, Memory, Op, StreamId};
use crate::sim::Schedule;
use ask::{Reached, waits_for_itself};
use callback::Callback;
use command::{Command, Effect};
use space::{HostAccess, Space};
use state::{State, Targets};

/// A simulated machine with some devices.
pub struct Machine {
    caps: Vec<Caps>,
    // Declared, and so dropped, before the state: the host functions have returned when the memory is freed.
    callback: Callback,
    state: Mutex<State>,
    /// Kernels of which the machine was the last owner. They capture values of the program, whose destructors
    /// may call the runtime, which holds locks during most calls of this back end: so the next query or
    /// wait drops them.
    retired: Mutex<Vec<Code>>,
}

impl Machine {
    /// The most and the least urgent stream priority of its devices, as on NVIDIA devices since Ampere.
    pub const PRIORITIES: (i32, i32) = (-5, 0);

    /// Returns a machine with these devices, each with its name, such as `sim:h200`. `memory_bytes` is the memory size
    /// of each device; without it, each device has the size in its profile.
    ///
    /// # Panics
    /// If there is no device.
    #[track_caller]
    pub fn new(
        devices: Vec<(String, Profile)>,
        schedule: Schedule,
        memory_bytes: Option<u64>,
    ) -> Machine {
        let (names, profiles): (Vec<String>, Vec<Profile>) = devices.into_iter().unzip();
        let caps: Vec<Caps> = names
            .into_iter()
            .zip(&profiles)
            .map(|(name, profile)| caps(name, profile, memory_bytes))
            .collect();
        let space = Space::new(caps.iter().map(|caps| caps.memory_bytes));
        Machine {
            caps,
            callback: Callback::default(),
            state: Mutex::new(State::new(profiles, schedule, space)),
            retired: Mutex::default(),
        }
    }

    /// From now on simulates only times: no byte is read or written, and kernels are not run.
    pub fn times_only(&self) {
        self.state.lock().computes = false;
    }

    /// From now on reads and writes host memory by these functions, which return whether they could. A device's accesses
    /// ignore the protection of the host's pages, and its own process's do not.
    ///
    /// # Safety
    /// For memory that exists, they do as they say.
    pub unsafe fn access_host_by(
        &self,
        load: unsafe fn(u64, &mut [u8]) -> bool,
        store: unsafe fn(u64, &[u8]) -> bool,
    ) {
        self.state.lock().space.access = HostAccess { load, store };
    }

    /// Returns the number of tasks remembered: the unfinished ones and a bounded number of others.
    pub fn live_tasks(&self) -> usize {
        self.state.lock().core.engine.remembered()
    }

    /// Returns the virtual time up to which everything has run.
    pub fn now_ns(&self) -> u64 {
        self.state.lock().core.engine.now_ns()
    }

    /// Calls a function with the state, and drops values of the program after the lock is released.
    fn with_state<R>(&self, f: impl FnOnce(&mut MutexGuard<'_, State>) -> R) -> R {
        let mut state = self.state.lock();
        let result = f(&mut state);
        let dropped = std::mem::take(&mut state.dropped);
        drop(state);
        for effect in dropped {
            if let Effect::Kernel(launched) = effect
                && let Some(code) = Arc::into_inner(launched.code)
            {
                self.retired.lock().push(code);
            }
        }
        result
    }

    /// Like [`Machine::with_state`], but for a caller that holds no lock of the runtime: also drops retired kernels.
    fn with_state_unlocked<R>(&self, f: impl FnOnce(&mut MutexGuard<'_, State>) -> R) -> R {
        let result = self.with_state(f);
        let retired = std::mem::take(&mut *self.retired.lock());
        drop(retired);
        result
    }
}

// SAFETY: `Space` owns the memory that it allocates and frees it when no task is left that could use it. Bytes are
// read and written in the tasks of their operation, which the engine runs in the order that `order` requires.
unsafe impl Backend for Machine {
    fn devices(&self) -> &[Caps] {
        &self.caps
    }

    unsafe fn create(&self, what: Create<'_>) -> Result<()> {
        self.with_state(|state| state.create(what))
    }

    unsafe fn destroy(&self, what: Destroy) {
        self.with_state(|state| match what {
            Destroy::Stream(id) => state.tables.retire_stream(id),
            Destroy::Event(id) => state.tables.retire_event(id),
            Destroy::Graph(id) => {
                let effects = state.tables.retire_graph(id);
                state.dropped.extend(effects);
            }
        });
    }

    fn reserve(&self, wanted: Reserve) -> Result<Address> {
        let Reserve {
            memory,
            device,
            bytes,
            at,
            ..
        } = wanted;
        self.with_state(|state| {
            state.refuse_lost(device)?;
            if at.is_some_and(|at| !state.space.would_be_at(memory, device, at)) {
                return Err(Error::Refused {
                    call: "reserve",
                    code: 1,
                    why: "the memory cannot be placed at this address; reserve it without one"
                        .into(),
                });
            }
            Ok(state.space.reserve(memory, device, bytes)?)
        })
    }

    unsafe fn unreserve(&self, _memory: Memory, _device: DeviceId, at: Address) {
        self.with_state(|state| {
            let unused_from = state.core.engine.tasks() as u64;
            state.space.unreserve(at, unused_from);
            state.settle();
        });
    }

    unsafe fn register(&self, at: Address, bytes: u64) -> Result<()> {
        if self.with_state(|state| state.space.register(at, bytes)) {
            Ok(())
        } else {
            Err(Error::Refused {
                call: "register",
                code: 712,
                why: "some of the memory is pinned already; register it once".into(),
            })
        }
    }

    unsafe fn unregister(&self, at: Address) {
        self.with_state(|state| state.space.unregister(at));
    }

    fn prepare(&self, device: DeviceId, code: &Arc<Code>) -> Result<()> {
        self.with_state(|state| state.refuse_lost(device))?;
        command::host_form(code).map(|_| ())
    }

    unsafe fn submit(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        // The cost of a kernel is the program's own code: it runs without the lock.
        let command = Command::new(op, payload)?;
        self.with_state(|state| {
            let Some(blocking) = state.submit(command)? else {
                return Ok(());
            };
            let patience = (!self.callback.is_current()).then_some(Duration::MAX);
            let call = Targets::from_slice(&[blocking]);
            let reached = self.reach(state, call, None, patience);
            state.settle();
            let device = state.device_of(&op.kind, op.thread)?;
            state.refuse_lost(device)?;
            match reached {
                Reached::Function => Err(waits_for_itself("copy")),
                Reached::All | Reached::Time => Ok(()),
            }
        })
    }

    fn is_captured(&self, stream: StreamId) -> bool {
        self.with_state(|state| state.is_captured(stream))
    }

    fn query(&self, op: &Op) -> Result<bool> {
        let patience = (!self.callback.is_current()).then_some(Duration::MAX);
        self.with_state_unlocked(|state| self.ask(state, op, patience))
    }

    fn peek(&self, op: &Op) -> Result<bool> {
        self.with_state(|state| self.ask(state, op, None))
    }

    fn wait(&self, op: &Op, for_at_most: Duration) -> Result<bool> {
        self.with_state_unlocked(|state| {
            let done = self.wait_for(state, op, for_at_most);
            state.settle();
            done
        })
    }

    fn elapsed_ns(&self, from: EventId, to: EventId) -> Result<f64> {
        self.with_state(|state| state.elapsed_ns(from, to))
    }

    fn keep_times(&self, keep: bool) {
        self.with_state(|state| {
            state.keeps_times = keep;
            if !keep {
                state.times.clear();
            }
        });
    }

    fn take_times(&self, into: &mut Vec<Done>) {
        self.with_state(|state| into.append(&mut state.done));
    }

    fn raw_stream(&self, _stream: StreamId) -> Option<u64> {
        None
    }
}

fn caps(name: String, profile: &Profile, memory_bytes: Option<u64>) -> Caps {
    let whole = profile.memory_bytes();
    Caps {
        name,
        memory_bytes: memory_bytes.map_or(whole, |most| most.min(whole)),
        memory_bytes_per_s: profile.memory_bytes_per_s(),
        flops_per_s: profile.flops_per_s(),
        link_bytes_per_s: profile.link_bytes_per_s(),
        priorities: Machine::PRIORITIES,
        extends_memory: true,
        shares_events: false,
    }
}
