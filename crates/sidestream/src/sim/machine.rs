//! The simulated GPU as a back end: programs run on it as on a device.
//!
//! Nothing runs in the call that asks for it. A call is put into the engine, in the order of the
//! calls, and things happen while somebody asks or waits: [`Backend::query`], [`Backend::peek`] and
//! [`Backend::wait`]. An operation reads when it starts in virtual time and writes when it ends.
//!
//! # Time
//! Every host thread has a virtual time: its calls so far. A question first lets happen what lies
//! before that time, and then answers. It takes time itself, so that a loop of questions ends; and
//! where an operation is as late as can be, which is after all that can happen, it is let go after
//! some answers of "no" in a row.
//!
//! # Repeating a run
//! What a program on one thread sees follows from its calls and the schedule alone. Functions on
//! the host run on a thread of their own, but the machine goes past the end of one only where
//! somebody waits for it or asks with [`Backend::query`]; these wait for the real function.

mod callback;
mod capture;
mod command;
mod graph;
mod happen;
mod space;
mod state;
mod tables;

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::backend::{Address, Backend, Caps, Create, Destroy, Done, Payload};
use crate::engine::Profile;
use crate::error::{Error, Result};
use crate::op::{DeviceId, EventId, GraphId, Kind, Memory, Op, OpId, SiteId, StreamId, ThreadId};
use crate::order::{Chain, Steps};
use crate::sim::Schedule;
use callback::Callback;
use command::Command;
use graph::Graph;
use space::Space;
use state::{State, Targets, Turn, refused};
use tables::{Event, Stream};

/// A simulated machine with some devices.
pub struct Machine {
    caps: Vec<Caps>,
    // Before the state, so that its functions are over when the memory goes.
    callback: Callback,
    state: Mutex<State>,
}

/// After so many answers of "no", with nothing happening in between, something has to happen.
const PATIENCE: u32 = 16;

/// The most and the least urgent priority, as on NVIDIA's devices since Ampere.
const PRIORITIES: (i32, i32) = (-5, 0);

/// The largest time that is not "never".
const ANY_TIME: u64 = u64::MAX - 2;

impl Machine {
    /// A machine with these devices, each with its name, such as `sim:h200`. `memory_bytes` limits
    /// what there is of device memory, for each device; without it each has what its profile says.
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
        }
    }

    /// How many tasks it remembers: those that are not over, and a bounded number of others.
    pub fn live_tasks(&self) -> usize {
        self.state.lock().engine.remembered()
    }

    /// The virtual time up to which everything has happened.
    pub fn now_ns(&self) -> u64 {
        self.state.lock().engine.now_ns()
    }

    /// Does something with the state, and drops what belongs to the program without the lock.
    fn with_state<R>(&self, f: impl FnOnce(&mut MutexGuard<'_, State>) -> R) -> R {
        let mut state = self.state.lock();
        let result = f(&mut state);
        let dropped = std::mem::take(&mut state.dropped);
        drop(state);
        drop(dropped);
        result
    }
}

impl Backend for Machine {
    fn devices(&self) -> &[Caps] {
        &self.caps
    }

    fn create(&self, what: Create<'_>) -> Result<()> {
        self.with_state(|state| state.create(what))
    }

    fn destroy(&self, what: Destroy) {
        self.with_state(|state| match what {
            Destroy::Stream(id) => state.tables.retire_stream(id),
            Destroy::Event(id) => state.tables.retire_event(id),
            Destroy::Graph(id) => {
                let effects = state.tables.retire_graph(id);
                state.dropped.extend(effects);
            }
        });
    }

    fn reserve(&self, memory: Memory, device: DeviceId, bytes: u64) -> Result<Address> {
        self.with_state(|state| {
            state.refuse_lost(device)?;
            Ok(state.space.reserve(memory, device, bytes)?)
        })
    }

    fn unreserve(&self, _memory: Memory, _device: DeviceId, at: Address) {
        self.with_state(|state| {
            let unused_from = state.engine.tasks() as u64;
            state.space.unreserve(at, unused_from);
            state.settle();
        });
    }

    fn submit(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        // The cost of a kernel is the program's own code: it runs without the lock.
        let command = Command::new(op, payload)?;
        self.with_state(|state| {
            let Some(held_up_by) = state.submit(command)? else {
                return Ok(());
            };
            let may_wait = !self.callback.is_current();
            let call = Targets::from_slice(&[held_up_by]);
            let reached = self.reach(state, call, None, may_wait);
            state.settle();
            let device = state.device_of(&op.kind, op.thread)?;
            state.refuse_lost(device)?;
            match reached {
                Reached::Function => Err(waits_for_itself("copy")),
                Reached::All | Reached::Time => Ok(()),
            }
        })
    }

    fn query(&self, op: &Op) -> Result<bool> {
        let may_wait = !self.callback.is_current();
        self.with_state(|state| self.ask(state, op, may_wait))
    }

    fn peek(&self, op: &Op) -> Result<bool> {
        self.with_state(|state| self.ask(state, op, false))
    }

    fn wait(&self, op: &Op, for_at_most: Duration) -> Result<bool> {
        self.with_state(|state| {
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

// ------------------------------------------------------------------ asking and waiting

/// How far the engine came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reached {
    /// All that was asked for is over.
    All,
    /// Nothing more happens in the given time.
    Time,
    /// A function on the host runs, and the caller may not wait for it.
    Function,
}

impl Machine {
    fn ask(&self, state: &mut MutexGuard<'_, State>, op: &Op, may_wait: bool) -> Result<bool> {
        let mut targets = state.targets(op)?;
        let is_over = |state: &State, targets: &mut Targets| {
            targets.retain(|task| !state.is_done(*task));
            targets.is_empty()
        };
        let all = targets.clone();
        if state.held.is_some() && !may_wait {
            // Nothing can happen that would change the answer.
            if !is_over(state, &mut targets) {
                return Ok(false);
            }
        }
        let call = state.push_ask(op)?;
        self.reach_time_of(state, call, may_wait);
        let mut done = is_over(state, &mut targets);
        if !done {
            state.noes += 1;
            if state.noes >= PATIENCE {
                self.force(state, may_wait);
                done = is_over(state, &mut targets);
            }
        }
        state.refuse_lost(state.device_of(&op.kind, op.thread)?)?;
        if done {
            state.noes = 0;
            state.push_answer(op, &all)?;
        }
        if may_wait {
            state.note_question(op, call, call);
        }
        state.settle();
        Ok(done)
    }

    fn wait_for(
        &self,
        state: &mut MutexGuard<'_, State>,
        op: &Op,
        for_at_most: Duration,
    ) -> Result<bool> {
        let may_wait = !self.callback.is_current();
        let device = state.device_of(&op.kind, op.thread)?;
        let targets = state.targets(op)?;
        let call = state.push_ask(op)?;
        let until_ns = match u64::try_from(for_at_most.as_nanos()) {
            Ok(most_ns) => {
                self.reach_time_of(state, call, may_wait);
                let start_ns = state.engine.scheduled(call).map(|span| span.end_ns);
                let start_ns = start_ns.unwrap_or(state.engine.now_ns());
                Some(start_ns.saturating_add(most_ns)).filter(|&ns| ns < ANY_TIME)
            }
            Err(_) => None,
        };
        let mut reached = self.reach(state, targets.clone(), until_ns, may_wait);
        if reached == Reached::Time && until_ns.is_some() {
            state.noes += 1;
            if state.noes >= PATIENCE {
                self.force(state, may_wait);
                reached = self.reach(state, targets.clone(), until_ns, may_wait);
            }
        }
        state.refuse_lost(device)?;
        match (reached, until_ns) {
            (Reached::All, _) => {
                state.noes = 0;
                let answer = state.push_answer(op, &targets)?;
                self.reach_time_of(state, answer, may_wait);
                state.note_question(op, call, answer);
                Ok(true)
            }
            (Reached::Time, Some(until_ns)) => {
                let pause_ns = until_ns.saturating_sub(state.engine.now_ns());
                let pause = state.push_pause(op, pause_ns)?;
                self.reach_time_of(state, pause, may_wait);
                state.note_question(op, call, pause);
                Ok(false)
            }
            (Reached::Time, None) => Err(Error::Invalid {
                call: "synchronize",
                why: "what it waits for can never be over".into(),
            }),
            (Reached::Function, _) => Err(waits_for_itself("synchronize")),
        }
    }

    /// Lets happen what lies before the end of a call. What is delayed until nothing else can
    /// happen is let go only if the call stands behind it.
    fn reach_time_of(
        &self,
        state: &mut MutexGuard<'_, State>,
        call: crate::engine::TaskId,
        may_wait: bool,
    ) {
        let call = Targets::from_slice(&[call]);
        if self.reach(state, call.clone(), Some(ANY_TIME), may_wait) == Reached::Time {
            self.reach(state, call, None, may_wait);
        }
    }

    /// Something happens on a device, whatever the time.
    fn force(&self, state: &mut MutexGuard<'_, State>, may_wait: bool) {
        while state.noes > 0 {
            match state.turn(None, &self.callback) {
                Turn::Happened => {}
                Turn::Runs(number) if may_wait => self.wait_for_function(state, number),
                Turn::Runs(_) | Turn::Nothing => return,
            }
        }
    }

    /// Lets things happen until all these tasks are over, but nothing later than the given time;
    /// without a time also what is delayed until nothing else can happen.
    fn reach(
        &self,
        state: &mut MutexGuard<'_, State>,
        mut targets: Targets,
        until_ns: Option<u64>,
        may_wait: bool,
    ) -> Reached {
        loop {
            while targets.last().is_some_and(|&task| state.is_done(task)) {
                targets.pop();
            }
            if targets.is_empty() {
                return Reached::All;
            }
            match state.turn(until_ns, &self.callback) {
                Turn::Happened => {}
                Turn::Runs(number) if may_wait => self.wait_for_function(state, number),
                Turn::Runs(_) => return Reached::Function,
                Turn::Nothing => return Reached::Time,
            }
        }
    }

    /// Waits for a function on the host, without the lock.
    fn wait_for_function(&self, state: &mut MutexGuard<'_, State>, number: u64) {
        MutexGuard::unlocked(state, || self.callback.wait(number));
        state.acknowledged = state.acknowledged.max(number);
    }
}

// ------------------------------------------------------------------ making things

impl State {
    fn create(&mut self, what: Create<'_>) -> Result<()> {
        match what {
            Create::Stream {
                id,
                device,
                kind,
                priority,
                ..
            } => {
                self.refuse_lost(device)?;
                let stream = self.new_stream(device, kind, priority);
                self.tables.set_stream(id, stream);
            }
            Create::Event { id, device, timing } => {
                self.refuse_lost(device)?;
                let event = self.new_event(device, timing)?;
                self.tables.set_event(id, event);
            }
            Create::Graph { id, device, nodes } => {
                self.refuse_lost(device)?;
                let given = nodes.iter().map(|node| {
                    let command = Command::of_node(node)?;
                    Ok((command, node.after.to_vec()))
                });
                let mut nodes = given.collect::<Result<Vec<_>>>()?;
                if nodes.is_empty() {
                    nodes = self.captures.take_ended(device).unwrap_or_default();
                }
                let nodes = self.graph_nodes(device, nodes);
                let graph = self.new_graph(device);
                self.tables.set_graph(id, Graph { nodes, ..graph });
            }
        }
        Ok(())
    }

    fn new_stream(
        &mut self,
        device: DeviceId,
        kind: crate::op::StreamKind,
        priority: i32,
    ) -> Stream {
        let mut stream = Stream {
            ordered: StreamId(0),
            device,
            kind,
            priority,
        };
        let (frontier, parts, first) = (&self.frontier, &self.parts, self.first_part);
        let is_idle = |spare: &Stream| {
            let last = frontier.last(Chain::Stream(spare.ordered));
            last.is_none_or(|task| task.0 < first || parts[(task.0 - first) as usize].is_done)
        };
        let fits = |spare: &Stream| {
            Stream {
                ordered: StreamId(0),
                ..*spare
            } == stream
                && is_idle(spare)
        };
        if let Some(spare) = self.tables.spare_stream(fits) {
            return spare;
        }
        stream.ordered = self.order.add_stream(kind, device);
        self.tables
            .stream_lane(stream.ordered, device, priority, &mut self.engine);
        stream
    }

    fn new_event(&mut self, device: DeviceId, timing: bool) -> Result<Event> {
        let fresh = |ordered| Event {
            ordered,
            device,
            timing,
            record: None,
            at_ns: None,
        };
        let Some(spare) = self.tables.spare_event(device, timing) else {
            return Ok(fresh(self.order.add_event(timing, Some(device))));
        };
        let kind = Kind::CreateEvent {
            event: spare.ordered,
        };
        self.tell(kind)?;
        Ok(fresh(spare.ordered))
    }

    fn new_graph(&mut self, device: DeviceId) -> Graph {
        let (parts, first) = (&self.parts, self.first_part);
        let is_done = |task: crate::engine::TaskId| {
            task.0 < first || parts[(task.0 - first) as usize].is_done
        };
        let spare = self
            .tables
            .spare_graph(|spare| spare.device == device && spare.last.is_none_or(is_done));
        spare.unwrap_or_else(|| Graph {
            ordered: GraphId(self.tables.graphs_so_far() as u32),
            device,
            nodes: Vec::new(),
            lanes: Vec::new(),
            last: None,
        })
    }

    /// R11: what the driver refuses, and the time between two points that are over.
    fn elapsed_ns(&mut self, from: EventId, to: EventId) -> Result<f64> {
        let (start, end) = (*self.tables.event(from)?, *self.tables.event(to)?);
        self.refuse_lost(start.device)?;
        self.refuse_lost(end.device)?;
        self.tell(Kind::Elapsed {
            from: start.ordered,
            to: end.ordered,
        })?;
        match (start.at_ns, end.at_ns) {
            (Some(start_ns), Some(end_ns)) => Ok(end_ns as f64 - start_ns as f64),
            _ => Err(Error::Refused {
                call: "elapsed",
                code: 600,
                why: "an event is not complete; synchronise with both before".into(),
            }),
        }
    }

    /// Tells the rule book of a call that has no steps.
    fn tell(&mut self, kind: Kind) -> Result<()> {
        let op = Op {
            id: OpId(0),
            thread: ThreadId(0),
            site: SiteId(0),
            kind,
            accesses: Default::default(),
        };
        let told = self.order.push(&op, &mut Steps::new());
        told.map(|_| ()).map_err(|misuse| refused(&kind, misuse))
    }
}

/// CUDA's `cudaErrorNotPermitted`.
fn waits_for_itself(call: &'static str) -> Error {
    Error::Refused {
        call,
        code: 800,
        why: "a function on the host may not wait for the device, which waits for it; wait on \
              another thread"
            .into(),
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
        priorities: PRIORITIES,
    }
}
