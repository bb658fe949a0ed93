//! Runs the load on a simulated device, in virtual time.
//!
//! A batcher's slots are threads that wait for a real clock, so they cannot be driven in virtual time. This loop takes their
//! place: `batcher::Requests` decides when a batch leaves and what is refused, as it does for the threads, and the engine says
//! how long the calls and the work of a batch take. Each slot has its own host thread and stream.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sidestream::batcher::{Refusal, Requests, Rule, Took};
use sidestream::engine::{Call, Engine, LaneId, Profile, Task, TaskId, What, Work};

use super::Setup;
use super::load::{Load, Until};
use super::model::Model;
use super::outcome::Outcome;

struct Slot {
    host: LaneId,
    stream: LaneId,
}

/// A running batch: its slot, when it is due, and when its requests were to arrive.
struct Running {
    slot: usize,
    due: Duration,
    arrived_ns: Vec<u64>,
}

pub fn run(profile: &Profile, model: &Model, setup: &Setup, load: &Load) -> Outcome {
    let Ok(rule) = Rule::new(&setup.sizes, setup.max_delay) else {
        unreachable!("a way has sizes, none of which is zero")
    };
    let mut requests = Requests::new(rule, setup.max_queue, 1, setup.slots);
    let mut engine = Engine::new(vec![profile.clone()]);
    let slots: Vec<Slot> = (0..setup.slots)
        .map(|_| Slot {
            host: engine.add_thread(),
            stream: engine.add_stream(0, 0),
        })
        .collect();
    let mut callers = Callers::of(load);
    let mut running: BTreeMap<TaskId, Running> = BTreeMap::new();
    let mut outcome = Outcome::default();
    let deadline_ns = setup.deadline.map(|deadline| deadline.as_nanos() as u64);
    let (mut now_ns, mut last_ns) = (0u64, 0u64);
    let ns = Duration::from_nanos;
    loop {
        // Submits the batches that are due now.
        while let Some(batch) = requests.take(0, ns(now_ns)) {
            outcome.expired += batch.expired.len() as u64;
            if batch.keys.is_empty() {
                continue;
            }
            outcome.batches += 1;
            let many = batch.keys.len();
            let slot = &slots[batch.slot];
            let over = submit(&mut engine, slot, model, batch.size, many, setup);
            let left = Running {
                slot: batch.slot,
                due: batch.due,
                arrived_ns: batch.keys,
            };
            running.insert(over, left);
        }
        // Finds the next moment at which something happens.
        let timer_ns = requests.due(0).map(|due| due.as_nanos() as u64);
        let next_ns = match (callers.next_ns(), timer_ns) {
            (Some(arrival), Some(timer)) => Some(arrival.min(timer)),
            (arrival, timer) => arrival.or(timer),
        };
        let event = engine.step_to(next_ns.unwrap_or(u64::MAX - 1));
        if let Some(event) = event {
            if event.what == What::Finished
                && let Some(batch) = running.remove(&event.task)
            {
                now_ns = event.time_ns;
                last_ns = now_ns;
                requests.answered(0, batch.slot, None, Took::Unknown, ns(now_ns));
                requests.over(0, batch.slot, ns(now_ns));
                requests.told(0, batch.due, ns(now_ns));
                for arrived in &batch.arrived_ns {
                    outcome.answer(now_ns - arrived, deadline_ns);
                }
                callers.answered(batch.arrived_ns.len(), now_ns);
                engine.retire();
            }
            continue;
        }
        let Some(next_ns) = next_ns else {
            break;
        };
        engine.advance_to(next_ns);
        now_ns = next_ns;
        while let Some(arrived) = callers.take(now_ns) {
            outcome.sent += 1;
            let at = ns(arrived);
            let deadline = setup.deadline.map(|deadline| at + deadline);
            match requests.submit(0, arrived, at, deadline, None) {
                Ok(_) => {}
                Err(Refusal::Late(_)) => outcome.late += 1,
                Err(Refusal::Full | Refusal::Closed) => {
                    outcome.full += 1;
                    callers.answered(1, now_ns + REFUSED_NS);
                }
            }
        }
    }
    outcome.end(load.lasted_ns(last_ns));
    outcome
}

/// Nanoseconds after which a refused caller tries again.
const REFUSED_NS: u64 = 10_000;

/// Submits a batch to the engine; returns the task that ends when the host knows that the batch is complete.
fn submit(
    engine: &mut Engine,
    slot: &Slot,
    model: &Model,
    size: usize,
    requests: usize,
    setup: &Setup,
) -> TaskId {
    let bytes = |rows: usize| (rows * model.width() * 4) as u64;
    let (up, down) = (bytes(size), bytes(requests));
    let call = |engine: &mut Engine, call| engine.push(Task::new(slot.host, Work::Call(call)));
    let kernels = model.kernels(size).into_iter().map(Work::Kernel);
    let last = if setup.is_graphs {
        let launched = call(engine, Call::GraphLaunch);
        // A graph downloads all rows, since one graph serves all batches of its size, full or not.
        let nodes = std::iter::once(Work::Upload { bytes: up })
            .chain(kernels)
            .chain([Work::Download { bytes: up }]);
        let mut last = launched;
        for node in nodes {
            let task = Task::new(slot.stream, node).in_graph();
            last = engine.push(task.after(&[launched]));
        }
        last
    } else {
        let put = |engine: &mut Engine, by, work| {
            let called = call(engine, by);
            engine.push(Task::new(slot.stream, work).after(&[called]))
        };
        put(
            engine,
            Call::UploadAsync { bytes: up },
            Work::Upload { bytes: up },
        );
        for kernel in kernels {
            put(engine, Call::Launch, kernel);
        }
        put(engine, Call::CopyAsync, Work::Download { bytes: down })
    };
    engine.push(Task::new(slot.host, Work::Call(Call::Sync)).after(&[last]))
}

/// The callers, and when each sends its next request.
enum Callers<'a> {
    Open(std::slice::Iter<'a, u64>),
    Closed {
        /// When each caller that is not waiting for an answer sends its next request.
        ask_ns: VecDeque<u64>,
        left: u64,
        end_ns: u64,
    },
}

impl<'a> Callers<'a> {
    fn of(load: &'a Load) -> Callers<'a> {
        match load {
            Load::Open { arrivals, .. } => Callers::Open(arrivals.iter()),
            Load::Closed { callers, until } => {
                let (left, end_ns) = match *until {
                    Until::Requests(requests) => (requests, u64::MAX),
                    Until::Ns(end_ns) => (super::load::MOST, end_ns),
                };
                Callers::Closed {
                    ask_ns: (0..*callers).map(|_| 0).collect(),
                    left,
                    end_ns,
                }
            }
        }
    }

    fn next_ns(&self) -> Option<u64> {
        match self {
            Callers::Open(arrivals) => arrivals.as_slice().first().copied(),
            Callers::Closed {
                ask_ns,
                left,
                end_ns,
            } => {
                let next = ask_ns.front().copied().filter(|_| *left > 0);
                next.filter(|next| next < end_ns)
            }
        }
    }

    /// Returns the next request that has arrived by now.
    fn take(&mut self, now_ns: u64) -> Option<u64> {
        let next = self.next_ns().filter(|next| *next <= now_ns)?;
        match self {
            Callers::Open(arrivals) => drop(arrivals.next()),
            Callers::Closed { ask_ns, left, .. } => {
                ask_ns.pop_front();
                *left -= 1;
            }
        }
        Some(next)
    }

    /// Records that `many` callers have received their answers.
    fn answered(&mut self, many: usize, at_ns: u64) {
        if let Callers::Closed { ask_ns, .. } = self {
            ask_ns.extend(std::iter::repeat_n(at_ns, many));
        }
    }
}
