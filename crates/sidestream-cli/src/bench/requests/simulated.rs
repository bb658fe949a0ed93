//! The load on a simulated device, in virtual time.
//!
//! A batcher's slots are threads that wait for a real clock, so they cannot be driven in virtual time. This loop stands
//! in their place: `pool::Rule` decides when a batch leaves and `pool::Pace` what is refused, as in the batcher, and the
//! engine says what the calls and the work of a batch take. A slot has a host thread and a stream of its own.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sidestream::engine::{Call, Engine, LaneId, Profile, Task, TaskId, What, Work};
use sidestream::pool::{Leave, Pace, Rule};

use super::Setup;
use super::load::{Load, Until};
use super::model::Model;
use super::outcome::Outcome;

struct Slot {
    host: LaneId,
    stream: LaneId,
}

/// A batch that runs: its slot, when it left, and when its requests were to arrive.
struct Running {
    slot: usize,
    left_ns: u64,
    arrived_ns: Vec<u64>,
}

pub fn run(profile: &Profile, model: &Model, setup: &Setup, load: &Load) -> Outcome {
    let Ok(rule) = Rule::new(&setup.sizes, setup.max_delay) else {
        unreachable!("a way has sizes, none of which is zero")
    };
    let mut engine = Engine::new(vec![profile.clone()]);
    let slots: Vec<Slot> = (0..setup.slots)
        .map(|_| Slot {
            host: engine.add_thread(),
            stream: engine.add_stream(0, 0),
        })
        .collect();
    let mut callers = Callers::of(load);
    let mut free: VecDeque<usize> = (0..slots.len()).collect();
    let mut running: BTreeMap<TaskId, Running> = BTreeMap::new();
    let mut waiting: VecDeque<u64> = VecDeque::new();
    let mut pace = Pace::default();
    let mut outcome = Outcome::default();
    let deadline_ns = setup.deadline.map(|deadline| deadline.as_nanos() as u64);
    let (mut now_ns, mut last_ns) = (0u64, 0u64);
    loop {
        // What leaves now.
        let mut timer_ns = None;
        while let Some(&slot) = free.front() {
            let oldest = waiting.front().map_or(0, |arrived| now_ns - arrived);
            match rule.leave(waiting.len(), Duration::from_nanos(oldest), true) {
                Leave::Now(many) => {
                    let is_late =
                        |arrived: &u64| deadline_ns.is_some_and(|most| arrived + most <= now_ns);
                    let (expired, batch): (Vec<u64>, Vec<u64>) =
                        waiting.drain(..many).partition(is_late);
                    outcome.expired += expired.len() as u64;
                    if batch.is_empty() {
                        continue;
                    }
                    free.pop_front();
                    outcome.batches += 1;
                    let size = rule.size_of(batch.len());
                    let over = submit(&mut engine, &slots[slot], model, size, batch.len(), setup);
                    let left_ns = now_ns;
                    let arrived_ns = batch;
                    running.insert(
                        over,
                        Running {
                            slot,
                            left_ns,
                            arrived_ns,
                        },
                    );
                }
                Leave::In(time) => {
                    timer_ns = Some(now_ns + time.as_nanos() as u64);
                    break;
                }
                Leave::Empty => break,
            }
        }
        // What happens next.
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
                pace.note(Duration::from_nanos(now_ns - batch.left_ns));
                free.push_back(batch.slot);
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
            let behind = (waiting.len(), running.len(), slots.len());
            let expected = pace.expected(&rule, behind.0, behind.1, behind.2);
            let is_late = setup.deadline.is_some_and(|deadline| expected > deadline);
            if waiting.len() >= setup.max_queue {
                outcome.full += 1;
                callers.answered(1, now_ns + REFUSED_NS);
            } else if is_late {
                outcome.late += 1;
            } else {
                waiting.push_back(arrived);
            }
        }
    }
    outcome.end(load.lasted_ns(last_ns));
    outcome
}

/// A caller who is refused asks again so much later.
const REFUSED_NS: u64 = 10_000;

/// Gives a batch to the engine; the task that ends when the host knows that it is over.
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
        // A graph downloads all rows: it is the same for every batch of its size.
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

/// Who asks, and when next.
enum Callers<'a> {
    Open(std::slice::Iter<'a, u64>),
    Closed {
        /// When each caller that waits for no answer asks.
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

    /// The next request that was to arrive until now.
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

    /// So many callers have their answer.
    fn answered(&mut self, many: usize, at_ns: u64) {
        if let Callers::Closed { ask_ns, .. } = self {
            ask_ns.extend(std::iter::repeat_n(at_ns, many));
        }
    }
}
