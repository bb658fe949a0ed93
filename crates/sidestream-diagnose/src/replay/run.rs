//! Runs a program on the engine.

use sidestream::engine::{Call, Engine, Engines, KernelCost, LaneId, Profile, Task, TaskId, Work};

use super::program::{Item, Job, Node, Pool, Program};
use crate::measure::{Collectives, quantile};
use crate::model::{Name, StreamIndex, Trace};
use crate::sort::order_by;
use crate::timeline::{Drawing, FINEST, Place, Shade, Timeline, peer_copies, shade, stream_name};

/// Number of batches that each worker loads ahead, PyTorch's default.
const AHEAD: usize = 2;

/// The result of running a program.
pub struct Run {
    /// When the last work of each step that has any was complete, with the step.
    ends: Vec<(u64, usize)>,
    /// Times from the last work of each step to that of the next.
    pub periods_ns: Vec<u64>,
    /// When each node ran.
    nodes: Vec<Option<(u64, u64)>>,
    /// The activity of the host lanes.
    host: Vec<HostSpan>,
}

struct HostSpan {
    lane: usize,
    span: (u64, u64),
    shade: Shade,
    name: Option<Name>,
}

/// The host's part of a task: own work first, then a call.
struct HostTask {
    lane: usize,
    task: TaskId,
    own: (u64, Shade, Option<Name>),
    shade: Shade,
    name: Option<Name>,
}

impl HostTask {
    /// Returns a call, or a part of one, without own work before it.
    fn of(lane: usize, task: TaskId, shade: Shade, name: Option<Name>) -> HostTask {
        let own = (0, Shade::Host, None);
        HostTask {
            lane,
            task,
            own,
            shade,
            name,
        }
    }
}

/// The workers that do host work ahead of time.
struct Workers {
    pools: [Crew; 2],
}

/// Workers of one kind.
#[derive(Default)]
struct Crew {
    lanes: Vec<LaneId>,
    /// The number of the first worker.
    first: usize,
    are_in_turn: bool,
    /// Their mean time for a step.
    share_ns: u64,
    /// The time at which each worker is free, as far as it is known before the run.
    free_ns: Vec<u64>,
    /// The most recent batch, and the task that took over each batch.
    batch: Option<u32>,
    taken: Vec<Option<TaskId>>,
}

impl Workers {
    fn of(program: &Program, engine: &mut Engine) -> Workers {
        let mut first = 0;
        let pools = [Pool::Loading, Pool::Other].map(|pool| {
            let count = program.workers[pool as usize];
            first += count;
            Crew {
                lanes: (0..count).map(|_| engine.add_thread()).collect(),
                first: first - count,
                are_in_turn: pool == Pool::Loading,
                share_ns: program.loading_floor_ns(),
                free_ns: vec![0; count],
                ..Crew::default()
            }
        });
        Workers { pools }
    }

    fn count(&self) -> usize {
        self.pools.iter().map(|pool| pool.lanes.len()).sum()
    }
}

impl Crew {
    /// Submits the part of an item that was moved to a worker; returns the number of the worker, and its task.
    fn load(&mut self, item: &Item, engine: &mut Engine) -> (usize, TaskId) {
        if self.batch.replace(item.batch) != Some(item.batch) {
            self.taken.push(None);
        }
        let (batch, count) = (self.taken.len() - 1, self.lanes.len());
        let at = if self.are_in_turn {
            batch % count
        } else {
            (0..count).min_by_key(|at| self.free_ns[*at]).unwrap_or(0)
        };
        // The program was already running: a part of each worker's first batch is already done, and more of it the earlier it
        // is needed.
        let load_ns = if batch < count {
            item.worker_ns
                .min(self.share_ns.saturating_mul(batch as u64))
        } else {
            item.worker_ns
        };
        self.free_ns[at] = self.free_ns[at].saturating_add(load_ns);
        let freed = batch.checked_sub(AHEAD * count);
        let freed = freed.and_then(|at| self.taken[at]);
        let load = Work::Call(Call::HostNs(load_ns));
        let task = engine.push(Task::new(self.lanes[at], load).after(freed.as_slice()));
        (self.first + at, task)
    }
}

impl Run {
    /// Returns the number of periods that end with this step or an earlier one.
    pub fn periods_up_to(&self, step: usize) -> usize {
        let ends = self.ends.iter().skip(1);
        ends.take_while(|(_, of)| *of <= step).count()
    }

    /// Runs a program.
    pub fn of(program: &Program, profiles: &[Profile]) -> Run {
        let mut engine = Engine::new(profiles.to_vec());
        let host: Vec<_> = (0..program.lanes).map(|_| engine.add_thread()).collect();
        let devices = program.device_of.iter();
        let streams: Vec<_> = devices.map(|at| engine.add_stream(*at, 0)).collect();
        let mut workers = Workers::of(program, &mut engine);
        let as_work = |node: &Node| work(node, &profiles[program.device_of[node.stream] as usize]);
        let mut tasks: Vec<Option<TaskId>> = vec![None; program.nodes.len()];
        for (node, task) in program.nodes.iter().zip(&mut tasks).take(program.backlog) {
            *task = Some(engine.push(Task::new(streams[node.stream], as_work(node))));
        }
        let mut on_host = Vec::new();
        for item in &program.items {
            let at = item.lane as usize;
            let lane = host[at];
            let mut loaded = Vec::new();
            let mut own_ns = item.own_ns;
            let pool = (item.moved_ns > 0).then(|| &mut workers.pools[item.pool as usize]);
            let mut pool = pool.filter(|pool| !pool.lanes.is_empty());
            if let Some(pool) = &mut pool {
                own_ns = own_ns
                    .saturating_sub(item.moved_ns)
                    .saturating_add(item.take_over_ns);
                let (at, task) = pool.load(item, &mut engine);
                on_host.push(HostTask {
                    lane: program.lanes + at,
                    task,
                    own: (0, Shade::Host, None),
                    shade: match item.pool {
                        Pool::Loading => Shade::Loading,
                        Pool::Other => Shade::Host,
                    },
                    name: item.host_work,
                });
                loaded.push(task);
            }
            let running_ns = item.running_ns.min(item.call_ns);
            let until_submitted_ns = own_ns.saturating_add(item.call_ns - running_ns);
            let call = Work::Call(Call::HostNs(until_submitted_ns));
            let call = engine.push(Task::new(lane, call).after(&loaded));
            if let Some(taken) = pool.and_then(|pool| pool.taken.last_mut()) {
                *taken = Some(call);
            }
            on_host.push(HostTask {
                lane: at,
                task: call,
                own: if item.moved_ns == 0 && 2 * item.loading_ns > own_ns {
                    (own_ns, Shade::Loading, None)
                } else {
                    (own_ns, Shade::Host, item.host_work)
                },
                shade: Shade::Host,
                name: Some(item.name),
            });
            if running_ns > 0 {
                let rest = Work::Call(Call::HostNs(running_ns));
                let task = engine.push(Task::new(lane, rest));
                on_host.push(HostTask::of(at, task, Shade::Host, Some(item.name)));
            }
            for submitted in item.submits.all() {
                let node = &program.nodes[submitted];
                let running = |nodes: &[usize]| -> Vec<TaskId> {
                    nodes.iter().filter_map(|node| tasks[*node]).collect()
                };
                let mut after = running(&node.after);
                after.push(call);
                let profile = &profiles[program.device_of[node.stream] as usize];
                if after.len() > 1 && profile.pending_wait_ns > 0.0 {
                    // While a stream waits for an event, its device starts kernels later.
                    let wait = Task::new(streams[node.stream], Work::Marker).after(&after);
                    after = vec![engine.push(wait)];
                }
                after.extend(running(&node.legacy));
                let mut task = Task::new(streams[node.stream], as_work(node)).after(&after);
                if node.in_graph {
                    task = task.in_graph();
                }
                tasks[submitted] = Some(engine.push(task));
            }
            if !item.waits.is_empty() {
                let waited = &program.waited[item.waits.all()];
                let waits: Vec<TaskId> = waited.iter().filter_map(|at| tasks[*at]).collect();
                let back = Work::Call(Call::HostNs(item.return_ns));
                let task = engine.push(Task::new(lane, back).after(&waits));
                on_host.push(HostTask::of(at, task, Shade::Waiting, Some(item.name)));
            }
        }
        let lanes = program.lanes + workers.count();
        Run::over(program, engine, &tasks, (on_host, lanes))
    }

    /// Collects the results of these tasks, and of the host lanes.
    fn over(
        program: &Program,
        mut engine: Engine,
        tasks: &[Option<TaskId>],
        (on_host, lanes): (Vec<HostTask>, usize),
    ) -> Run {
        // No task is withheld, so all of them complete.
        let finished = engine.finish().is_ok();
        let ran = |task: TaskId| {
            let span = engine.scheduled(task).filter(|_| finished)?;
            Some((span.start_ns, span.end_ns))
        };
        let nodes: Vec<_> = tasks.iter().map(|task| ran((*task)?)).collect();
        let ends = ends(program, &nodes);
        let pairs = ends.windows(2);
        let periods_ns = pairs
            .map(|pair| pair[1].0.saturating_sub(pair[0].0))
            .collect();
        let host = host_spans(on_host, lanes, ran);
        Run {
            ends,
            periods_ns,
            nodes,
            host,
        }
    }

    /// Returns the activity in a step that is near the median. Steps that end before the previous one have none.
    pub fn timeline(&self, program: &Program, trace: &Trace) -> Timeline {
        let Some(at) = usual(&self.periods_ns) else {
            return Timeline::default();
        };
        let time = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let spans = |span: &(u64, u64)| (time(span.0), time(span.1));
        let mut drawing = Drawing::new((time(self.ends[at].0), time(self.ends[at + 1].0)), FINEST);
        let collectives = Collectives::of(trace);
        let mut ran: Vec<(&(u64, u64), &Node)> = self
            .nodes
            .iter()
            .zip(&program.nodes)
            .filter_map(|(span, node)| Some((span.as_ref()?, node)))
            .collect();
        order_by(&mut ran, |(span, _)| **span);
        for (span, node) in ran {
            let work = &trace.work[node.work];
            let shade = shade(work, &collectives);
            drawing.add_work((trace, work), node.stream, spans(span), shade);
        }
        for part in &self.host {
            let place = Place::Host(part.lane);
            drawing.add(place, spans(&part.span), part.shade, part.name);
        }
        let of_trace = program.streams - program.added.len();
        drawing.finish(Some(self.ends[at + 1].1), |place| match place {
            Place::Host(lane) if lane < program.lanes => match program.lanes {
                1 => "host".to_owned(),
                _ => format!("host thread {}", trace.threads[lane].thread),
            },
            Place::Host(lane) => format!("worker {}", lane - program.lanes + 1),
            Place::Stream(stream) if stream < of_trace => {
                stream_name(trace, StreamIndex(stream as u16))
            }
            Place::Stream(stream) => format!("{} (new)", program.added[stream - of_trace]),
            Place::PeerCopies(device) => peer_copies(device),
        })
    }
}

/// Returns when the last work of each step that has any was complete, with the step.
fn ends(program: &Program, nodes: &[Option<(u64, u64)>]) -> Vec<(u64, usize)> {
    let mut ends: Vec<(u64, usize)> = (0..program.steps).map(|step| (0, step)).collect();
    for (node, span) in program.nodes.iter().zip(nodes) {
        if let Some((_, end_ns)) = span {
            ends[node.step].0 = ends[node.step].0.max(*end_ns);
        }
    }
    ends.retain(|(end_ns, _)| *end_ns > 0);
    ends
}

/// Returns the activity of the host lanes, as far as it ran.
fn host_spans(
    tasks: Vec<HostTask>,
    lanes: usize,
    ran: impl Fn(TaskId) -> Option<(u64, u64)>,
) -> Vec<HostSpan> {
    let mut host = Vec::new();
    // A lane does one thing at a time: a wait lasts from the end of the previous activity.
    let mut over_ns = vec![0; lanes];
    for part in tasks {
        let Some((start_ns, end_ns)) = ran(part.task) else {
            continue;
        };
        let over_ns = std::mem::replace(&mut over_ns[part.lane], end_ns);
        let start_ns = match part.shade {
            Shade::Waiting => over_ns,
            _ => start_ns,
        };
        let (own_ns, own_shade, own_name) = part.own;
        let called_ns = start_ns.saturating_add(own_ns).min(end_ns);
        let spans = [
            ((start_ns, called_ns), own_shade, own_name),
            ((called_ns, end_ns), part.shade, part.name),
        ];
        let spans = spans.into_iter().filter(|(span, ..)| span.0 < span.1);
        host.extend(spans.map(|(span, shade, name)| HostSpan {
            lane: part.lane,
            span,
            shade,
            name,
        }));
    }
    host
}

/// Returns the middle one of the steps within 2 % of the median: at the start nothing is ahead yet, and at the end nothing is
/// left to fetch.
fn usual(periods_ns: &[u64]) -> Option<usize> {
    let median_ns = quantile(periods_ns, 1, 2)?;
    let middle = periods_ns.len() / 2;
    let off = |at: &usize| periods_ns[*at].abs_diff(median_ns);
    let near = (0..periods_ns.len()).filter(|at| off(at) <= median_ns / 50);
    let nearest = (0..periods_ns.len()).min_by_key(off);
    near.min_by_key(|at| at.abs_diff(middle)).or(nearest)
}

fn work(node: &Node, profile: &Profile) -> Work {
    let ns = node.duration_ns;
    let timed = |engine| Work::Timed { engine, ns };
    // A copy that was moved may run concurrently with one in the other direction: the bus slows down both. This many bytes take
    // as long alone as the copy did.
    let bytes = |setup_ns: f64| ((ns as f64 - setup_ns).max(0.0) * profile.link_gb_s) as u64;
    let is_moved = node.moved && bytes(profile.upload_setup_ns) > 2 * profile.inline_bytes as u64;
    match node.job {
        Job::Kernel { share } => Work::Kernel(KernelCost::Duration { ns, share }),
        Job::Upload(_) if is_moved => Work::Upload {
            bytes: bytes(profile.upload_setup_ns),
        },
        // Small copies are sent with the commands, and wait for no other copy.
        Job::Upload(copy) if copy.bytes as f64 <= profile.inline_bytes => timed(Engines::Inline),
        Job::Upload(_) => timed(Engines::Upload),
        Job::Download(_) if is_moved => Work::Download {
            bytes: bytes(profile.download_setup_ns),
        },
        Job::Download(_) => timed(Engines::Download),
        Job::Other => timed(Engines::Inner),
    }
}
