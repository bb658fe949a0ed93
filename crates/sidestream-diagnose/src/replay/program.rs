//! A trace as a program: what the host does, in its sequence, and the work that follows from it.

use std::collections::HashMap;

use crate::idle::is_loading;
use crate::measure::{Links, Steps, WorkOfCalls, held};
use crate::model::{
    ApiKind, Call, Direction, Memory, Name, StreamIndex, Thread, ThreadIndex, Trace, What, Work,
};

/// Steps beyond these say nothing new.
const MOST_STEPS: usize = 40;
/// Nor does more work than this.
const MOST_WORK: usize = 400_000;
/// A device passes from a stream to another in less than this.
const HOP_NS: i64 = 20_000;
/// A host takes so long to notice that something is over.
const NOTICED_NS: i64 = 30_000;

/// A program, taken from a trace.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// What the host does, in the order of its starts.
    pub items: Vec<Item>,
    /// The work that it submits, in the order of submission.
    pub nodes: Vec<Node>,
    /// How many lanes of the host there are.
    pub lanes: usize,
    /// How many streams; changes may add some.
    pub streams: usize,
    /// What the streams are for that changes added, the last ones.
    pub added: Vec<&'static str>,
    /// How many steps.
    pub steps: usize,
    /// How many workers load data; with none, the host's own thread does.
    pub loaders: usize,
}

/// A call, with the time before it.
#[derive(Clone, Debug)]
pub struct Item {
    /// Whose.
    pub lane: usize,
    /// The host's own time before the call.
    pub own_ns: u64,
    /// How much of that it waited for its data loader.
    pub loading_ns: u64,
    /// The time in the call, without waiting.
    pub call_ns: u64,
    /// The work that it submits: indices of nodes.
    pub submits: Vec<usize>,
    /// The work that it waits for.
    pub waits: Vec<usize>,
    /// From the end of that to the end of the call.
    pub return_ns: u64,
    /// What it does.
    pub kind: ApiKind,
    /// The function.
    pub name: Name,
    /// Which step it belongs to.
    pub step: usize,
}

/// Work of the device.
#[derive(Clone, Debug)]
pub struct Node {
    /// Which stream it stands in.
    pub stream: usize,
    /// How long it takes alone.
    pub duration_ns: u64,
    /// What it is.
    pub job: Job,
    /// Work of other streams that it stands behind.
    pub after: Vec<usize>,
    /// Whether it is a node of a graph.
    pub in_graph: bool,
    /// The work of the trace that it is.
    pub work: usize,
    /// Which step it belongs to.
    pub step: usize,
}

/// What work is, as far as the engine has to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Job {
    /// A kernel that fills this share of the device.
    Kernel { share: f64 },
    /// A copy between host and device.
    HostCopy {
        direction: Direction,
        memory: Memory,
        bytes: u64,
    },
    /// Anything else: a copy inside the device, a memset.
    Other,
}

impl Program {
    /// Takes the steps of a trace as a program.
    pub fn of(trace: &Trace, links: &Links, steps: &Steps) -> Program {
        let works = WorkOfCalls::of(trace, links);
        let mut by_call: HashMap<usize, Vec<usize>> = HashMap::new();
        for at in 0..trace.work.len() {
            if let Some(call) = links.call_of(at) {
                by_call.entry(call).or_default().push(at);
            }
        }
        let lanes = Lanes::of(trace);
        let mut making = Making {
            trace,
            program: Program {
                lanes: lanes.count,
                streams: trace.streams.len(),
                ..Program::default()
            },
            node_of: HashMap::new(),
            last_in_stream: HashMap::new(),
            before_own_ns: i64::MIN,
            ends: HashMap::new(),
            recorded: Vec::new(),
            pending: HashMap::new(),
        };
        let mut ends: Vec<i64> = Vec::new();
        ends.resize(lanes.count, steps.steps.first().map_or(0, |s| s.start_ns));
        let loading = Loading::of(trace);
        for (at, call) in trace.calls.iter().enumerate() {
            let Some(step) = steps.at(call.start_ns).filter(|step| *step < MOST_STEPS) else {
                continue;
            };
            if making.program.nodes.len() > MOST_WORK {
                break;
            }
            let lane = lanes.of[call.thread.0 as usize];
            let submitted = by_call.remove(&at).unwrap_or_default();
            let end = ends[lane];
            if call.end_ns() <= end && submitted.is_empty() {
                // A call inside another: its time is in that already.
                continue;
            }
            let own_ns = call.start_ns.saturating_sub(end).max(0) as u64;
            let nested = call.start_ns < end;
            let mut item = Item {
                lane,
                own_ns,
                loading_ns: loading.within_ns(end, call.start_ns).min(own_ns),
                call_ns: call.end_ns().saturating_sub(call.start_ns.max(end)).max(0) as u64,
                submits: Vec::new(),
                waits: Vec::new(),
                return_ns: 0,
                kind: call.api.kind,
                name: call.name,
                step,
            };
            for work in submitted {
                let node = making.node(work, step, call);
                item.submits.push(node);
            }
            let holds = held(trace, at, works.first(at)).is_some();
            if holds && !nested {
                making.hold(&mut item, call.start_ns, call.end_ns());
            }
            match call.api.kind {
                ApiKind::RecordEvent => making.record(),
                ApiKind::WaitEvent => making.wait(call.thread),
                _ => {}
            }
            ends[lane] = end.max(call.end_ns());
            making.program.items.push(item);
        }
        let last = making.program.items.iter().map(|item| item.step + 1);
        making.program.steps = last.max().unwrap_or(0);
        making.program
    }
}

/// A program under construction.
struct Making<'t> {
    trace: &'t Trace,
    program: Program,
    /// The node of each work, and back.
    node_of: HashMap<usize, usize>,
    last_in_stream: HashMap<StreamIndex, (usize, usize)>,
    /// When the work before the last one of its stream was over.
    before_own_ns: i64,
    /// The ends of the work of each stream, with their nodes.
    ends: HashMap<StreamIndex, Vec<(i64, usize)>>,
    /// The streams that were recorded and not waited for yet, with the node that the record stands behind.
    recorded: Vec<(usize, usize, StreamIndex)>,
    /// What the next work that a thread submits has to stand behind.
    pending: HashMap<ThreadIndex, Vec<(usize, usize, StreamIndex)>>,
}

impl Making<'_> {
    fn node(&mut self, work: usize, step: usize, call: &Call) -> usize {
        let (kind, thread) = (call.api.kind, call.thread);
        let row = &self.trace.work[work];
        let waited = self.pending.remove(&thread).unwrap_or_default();
        let mut after = Vec::new();
        for (before_node, before_work, stream) in waited {
            // A wait that the times contradict was for something else.
            let before = &self.trace.work[before_work];
            if stream != row.stream && before.end_ns() <= row.start_ns {
                after.push(before_node);
            }
        }
        if let Some(before) = self.unseen(row, call, &after) {
            after.push(before);
        }
        let node = self.program.nodes.len();
        self.ends
            .entry(row.stream)
            .or_default()
            .push((row.end_ns(), node));
        self.program.nodes.push(Node {
            stream: row.stream.0 as usize,
            duration_ns: row.duration_ns,
            job: job(self.trace, row),
            after,
            in_graph: kind == ApiKind::GraphLaunch,
            work,
            step,
        });
        self.node_of.insert(work, node);
        // Graphs submit several at once, in the order of their starts.
        let before = self.last_in_stream.insert(row.stream, (node, work));
        let over_ns = before.map(|(_, work)| self.trace.work[work].end_ns());
        self.before_own_ns = over_ns.unwrap_or(i64::MIN);
        node
    }

    /// Work that had been asked for, in a stream that was free, and still did not start stood behind
    /// something that the trace does not show. It is taken to be the work of another stream that
    /// was over just then.
    fn unseen(&self, row: &Work, call: &Call, after: &[usize]) -> Option<usize> {
        let before = self.last_in_stream.get(&row.stream);
        let free_ns = before.map_or(i64::MIN, |(_, work)| self.trace.work[*work].end_ns());
        let could_ns = free_ns.max(call.end_ns());
        if !after.is_empty() || row.start_ns < could_ns.saturating_add(HOP_NS) {
            return None;
        }
        let others = self
            .ends
            .iter()
            .filter(|(stream, _)| **stream != row.stream);
        let last_over = others.filter_map(|(_, ends)| {
            let over = ends.partition_point(|(end, _)| *end <= row.start_ns);
            ends.get(over.checked_sub(1)?)
        });
        let (end, node) = last_over.max()?;
        (end.saturating_add(HOP_NS) >= row.start_ns && *end > could_ns).then_some(*node)
    }

    /// A record stands behind the last work that was submitted at all: in its stream, as far as is
    /// known.
    fn record(&mut self) {
        let last = self
            .last_in_stream
            .iter()
            .max_by_key(|(_, (node, _))| *node);
        if let Some((stream, (node, work))) = last {
            self.recorded.push((*node, *work, *stream));
            // Records that nobody waits for are those of allocators and timers.
            if self.recorded.len() > 64 {
                self.recorded.remove(0);
            }
        }
    }

    fn wait(&mut self, thread: ThreadIndex) {
        if let Some(record) = self.recorded.pop() {
            self.pending.entry(thread).or_default().push(record);
        }
    }

    /// What a call waits for: of the last work of each stream, that which was over when it came back.
    fn hold(&mut self, item: &mut Item, start_ns: i64, end_ns: i64) {
        let mut last_end = i64::MIN;
        let mut waits = Vec::new();
        let own: Option<usize> = item.submits.last().copied();
        let candidates = self.last_in_stream.values();
        for (node, work) in candidates {
            let over_ns = self.trace.work[*work].end_ns();
            let is_own = own == Some(*node);
            if item.kind != ApiKind::SyncDevice && own.is_some() && !is_own {
                continue;
            }
            if (is_own || over_ns <= end_ns)
                && (over_ns > last_end || item.kind == ApiKind::SyncDevice)
            {
                if item.kind != ApiKind::SyncDevice {
                    waits.clear();
                }
                waits.push(*node);
                last_end = last_end.max(over_ns);
            }
        }
        if waits.is_empty() {
            return;
        }
        item.waits = waits;
        if last_end.saturating_add(NOTICED_NS) < start_ns {
            // It found nothing to wait for.
            return;
        }
        if own.is_some() {
            // The host prepares a copy of its own before it waits; while the stream is busy with
            // other work, it already waits.
            let began = self
                .last_in_stream
                .values()
                .find(|(node, _)| own == Some(*node));
            let began_ns = began.map_or(start_ns, |(_, work)| self.trace.work[*work].start_ns);
            let free_ns = self.before_own_ns.max(start_ns);
            item.call_ns = began_ns.saturating_sub(free_ns).max(0) as u64;
        } else {
            item.call_ns = 0;
        }
        item.return_ns = end_ns.saturating_sub(last_end.max(start_ns)).max(0) as u64;
    }
}

fn job(trace: &Trace, work: &Work) -> Job {
    match work.what {
        What::Kernel(kernel) => {
            let device = trace.streams[work.stream.0 as usize].device;
            let described = trace.devices.iter().find(|d| d.id == device);
            let sms = described.and_then(|d| d.sms).unwrap_or(0);
            Job::Kernel {
                share: share(&kernel, sms),
            }
        }
        What::Copy {
            direction: direction @ (Direction::Upload | Direction::Download),
            from,
            to,
            bytes,
        } => Job::HostCopy {
            direction,
            memory: match direction {
                Direction::Upload => from,
                _ => to,
            },
            bytes,
        },
        _ => Job::Other,
    }
}

/// Which share of the device a kernel fills. Threads, registers and shared memory bound how many
/// blocks a multiprocessor holds; where the trace does not say, a kernel is taken to fill all.
pub fn share(kernel: &crate::model::Kernel, sms: u32) -> f64 {
    if kernel.blocks == 0 || kernel.threads == 0 || sms == 0 {
        return 1.0;
    }
    let threads = u32::from(kernel.threads);
    let by_threads = 2048 / threads;
    let by_registers = 65_536 / (u32::from(kernel.registers) * threads).max(1);
    let by_shared = (227 << 10) / kernel.shared_bytes.max(1);
    let a_sm = by_threads.min(by_registers).min(by_shared).clamp(1, 32);
    (f64::from(kernel.blocks) / f64::from(sms * a_sm)).min(1.0)
}

/// Which threads are one lane.
struct Lanes {
    of: Vec<usize>,
    count: usize,
}

impl Lanes {
    /// Threads of a process that are hardly ever in a call at once hand over to each other.
    fn of(trace: &Trace) -> Lanes {
        let (mut end, mut both_ns, mut all_ns) = (i64::MIN, 0, 0);
        let mut last: Option<ThreadIndex> = None;
        for call in &trace.calls {
            if last.is_some_and(|thread| thread != call.thread) && call.start_ns < end {
                both_ns =
                    u64::saturating_add(both_ns, end.min(call.end_ns()).abs_diff(call.start_ns));
            }
            all_ns = u64::saturating_add(all_ns, call.duration_ns);
            if call.end_ns() > end {
                end = call.end_ns();
                last = Some(call.thread);
            }
        }
        let processes: std::collections::BTreeSet<i64> = trace
            .calls
            .iter()
            .map(|c| process(&trace.threads, c.thread))
            .collect();
        if processes.len() == 1 && both_ns <= all_ns / 50 {
            return Lanes {
                of: vec![0; trace.threads.len()],
                count: 1,
            };
        }
        Lanes {
            of: (0..trace.threads.len()).collect(),
            count: trace.threads.len(),
        }
    }
}

fn process(threads: &[Thread], thread: ThreadIndex) -> i64 {
    threads[thread.0 as usize].process
}

/// When the program waited for its data.
struct Loading {
    spans: Vec<(i64, i64)>,
}

impl Loading {
    fn of(trace: &Trace) -> Loading {
        let loads: Vec<bool> = (0..trace.names.len() as u32)
            .map(|at| is_loading(trace.names.text(Name(at))))
            .collect();
        let mut spans: Vec<(i64, i64)> = Vec::new();
        for range in trace.ranges.iter().filter(|r| loads[r.name.0 as usize]) {
            if spans.last().is_none_or(|last| last.1 <= range.start_ns) {
                spans.push((range.start_ns, range.end_ns()));
            }
        }
        Loading { spans }
    }

    fn within_ns(&self, start: i64, end: i64) -> u64 {
        let first = self.spans.partition_point(|span| span.1 <= start);
        let inside = self.spans[first..].iter().take_while(|span| span.0 < end);
        inside
            .map(|span| span.1.min(end).abs_diff(span.0.max(start)))
            .sum()
    }
}
