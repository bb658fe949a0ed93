//! Changes of a program that people make.

use std::fmt;
use std::mem::discriminant;
use std::ops::RangeInclusive;
use std::str::FromStr;

use sidestream::engine::Profile;

use super::calibrate::Profiler;
use super::program::{Item, Job, Program, Stretch};
use crate::idle::OWN_NS;
use crate::model::{ApiKind, Direction, Memory};

/// One change. A set of them is made in this order, whoever states it: what comes later builds on what
/// comes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// Host memory of copies is pinned: they go at the speed of the link, and uploads do not hold up the host.
    Pinned,
    /// Copies have streams of their own, so many steps ahead of the kernels.
    Prefetch(usize),
    /// The host does not wait for the device inside a step.
    NoSync,
    /// Kernels of a step are submitted as one graph, as far as no wait lies between them.
    Graphs,
    /// So many workers load data.
    Workers(usize),
    /// Half of the kernels of a step run in a second stream, as if they did not depend on the others.
    SecondStream,
    /// Streams do not wait for the legacy default stream, nor that for them.
    NonBlockingStreams,
}

/// Why a text is no change, or no set of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownChange(String);

impl fmt::Display for UnknownChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnknownChange {}

/// How many slots, or workers, there may be: more has nobody.
const NUMBERS: RangeInclusive<usize> = 1..=1024;

impl FromStr for Change {
    type Err = UnknownChange;

    fn from_str(text: &str) -> Result<Change, UnknownChange> {
        let parts = text.split_once('=');
        let name = parts.map_or(text, |(name, _)| name).trim();
        let number = parts.map(|(_, number)| number.trim());
        let change = match name {
            "pinned" => Change::Pinned,
            "prefetch" => Change::Prefetch(numbered(text, name, number)?.unwrap_or(2)),
            "no-sync" => Change::NoSync,
            "graphs" => Change::Graphs,
            "workers" => Change::Workers(numbered(text, name, number)?.unwrap_or(4)),
            "second-stream" => Change::SecondStream,
            "non-blocking-streams" => Change::NonBlockingStreams,
            _ => {
                return Err(UnknownChange(format!(
                    "there is no change `{name}`; there are pinned, prefetch=N, no-sync, graphs, \
                     workers=N, second-stream and non-blocking-streams"
                )));
            }
        };
        let takes_number = matches!(change, Change::Prefetch(_) | Change::Workers(_));
        match number {
            Some(_) if !takes_number => Err(UnknownChange(format!(
                "`{}`: {name} takes no number; write `{name}`",
                text.trim()
            ))),
            _ => Ok(change),
        }
    }
}

/// The number behind the name of a change, if one is stated.
fn numbered(text: &str, name: &str, number: Option<&str>) -> Result<Option<usize>, UnknownChange> {
    let Some(number) = number else {
        return Ok(None);
    };
    match number.parse() {
        Ok(number) if NUMBERS.contains(&number) => Ok(Some(number)),
        _ => Err(UnknownChange(format!(
            "`{}`: the N of {name}=N is a whole number from {} to {}",
            text.trim(),
            NUMBERS.start(),
            NUMBERS.end()
        ))),
    }
}

impl Change {
    /// The names of a set of changes, as [`Change::set`] reads them.
    pub fn names(set: &[Change]) -> String {
        let names: Vec<String> = set.iter().map(Change::to_string).collect();
        names.join(",")
    }

    /// A set of changes, separated by commas, in the order in which they are made. One that is stated
    /// twice counts once.
    ///
    /// # Errors
    /// One of them is no change, or two of them contradict each other.
    pub fn set(text: &str) -> Result<Vec<Change>, UnknownChange> {
        let parts = text.split(',').map(str::trim);
        let mut set = Vec::new();
        for part in parts {
            if part.is_empty() {
                return Err(UnknownChange(format!(
                    "`{text}` has a place without a change in it; write changes with one comma between \
                     them, such as pinned,prefetch=2"
                )));
            }
            set.push(part.parse()?);
        }
        set.sort_unstable();
        set.dedup();
        for pair in set.windows(2) {
            if discriminant(&pair[0]) == discriminant(&pair[1]) {
                return Err(UnknownChange(format!(
                    "`{}` and `{}` contradict each other; state one of them",
                    pair[0], pair[1]
                )));
            }
        }
        Ok(set)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Pinned => write!(f, "pinned"),
            Change::Prefetch(slots) => write!(f, "prefetch={slots}"),
            Change::NoSync => write!(f, "no-sync"),
            Change::Graphs => write!(f, "graphs"),
            Change::Workers(workers) => write!(f, "workers={workers}"),
            Change::SecondStream => write!(f, "second-stream"),
            Change::NonBlockingStreams => write!(f, "non-blocking-streams"),
        }
    }
}

/// A copy call takes about so long, the profiler included.
const COPY_CALL_NS: u64 = 10_000;
/// A synchronisation that finds nothing to wait for takes about so long.
const IDLE_SYNC_NS: u64 = 2_000;
/// So does the launch of a graph.
const GRAPH_LAUNCH_NS: u64 = 20_000;

impl Change {
    /// Makes the change.
    pub fn apply(self, program: &mut Program, profile: &Profile) {
        match self {
            Change::Pinned => pinned(program, profile),
            Change::Prefetch(slots) => prefetch(program, slots),
            Change::NoSync => no_sync(program),
            Change::Graphs => graphs(program),
            Change::Workers(count) => workers(program, count),
            Change::SecondStream => second_stream(program),
            Change::NonBlockingStreams => non_blocking_streams(program),
        }
    }
}

/// Takes what the profiler added out of the host's time: so much for each operator and call. What
/// the host does by itself takes a part of its time at the least.
pub fn without_profiler(program: &mut Program, profiler: Profiler) {
    let less = |ns: u64, by_ns: u64| ns - by_ns.min(ns / 4 * 3);
    for item in &mut program.items {
        let by_ns = profiler
            .operator_ns
            .saturating_mul(u64::from(item.operators));
        let call_ns = match item.submits.is_empty() {
            true => profiler.call_ns,
            false => profiler.submission_ns,
        };
        let work_ns = item.own_ns - item.loading_ns;
        let left_ns = less(work_ns, by_ns);
        item.own_ns = item.loading_ns + left_ns;
        // Operators inside a call, or what its own time does not hold.
        let rest_ns = by_ns - (work_ns - left_ns).min(by_ns);
        item.call_ns = less(item.call_ns, call_ns.saturating_add(rest_ns));
    }
}

fn pinned(program: &mut Program, profile: &Profile) {
    let mut uploaded = false;
    for item in &mut program.items {
        let mut is_upload = false;
        for at in item.submits.all() {
            let node = &mut program.nodes[at];
            if let Job::HostCopy {
                direction,
                memory: memory @ Memory::Pageable,
                bytes,
            } = &mut node.job
            {
                *memory = Memory::Pinned;
                let at_link = (*bytes as f64 / profile.link_gb_s) as u64;
                node.duration_ns = at_link.min(node.duration_ns);
                is_upload = *direction == Direction::Upload;
                item.call_ns = item.call_ns.min(COPY_CALL_NS);
                item.return_ns = item.return_ns.min(COPY_CALL_NS);
            }
        }
        if is_upload {
            item.waits = Stretch::default();
            item.return_ns = 0;
        } else if uploaded && item.kind == ApiKind::SyncStream {
            // A framework waits after an upload from pageable memory only.
            item.waits = Stretch::default();
            item.call_ns = 0;
            item.return_ns = 0;
        }
        uploaded = is_upload;
    }
}

/// A batch from a worker comes through shared memory: the thread that takes it over maps and copies
/// it. Two pairs of runs with and without workers show so much for a batch and for a byte (PyTorch's
/// DataLoader on 16 cores, 2026-11-22).
const TAKE_OVER_NS: u64 = 100_000;
const TAKE_OVER_GB_PER_S: f64 = 1.4;

fn workers(program: &mut Program, count: usize) {
    program.loaders = count;
    let mut uploaded = vec![0u64; program.steps];
    let mut batches = vec![0u64; program.steps];
    for item in &program.items {
        batches[item.step as usize] += u64::from(item.loading_ns > 0);
    }
    for node in &program.nodes[program.backlog..] {
        if let Job::HostCopy {
            direction: Direction::Upload,
            bytes,
            ..
        } = node.job
        {
            uploaded[node.step] = uploaded[node.step].saturating_add(bytes);
        }
    }
    for item in program.items.iter_mut().filter(|i| i.loading_ns > 0) {
        let step = item.step as usize;
        let bytes = uploaded[step] / batches[step].max(1);
        let take_over_ns = (bytes as f64 / TAKE_OVER_GB_PER_S) as u64;
        item.take_over_ns = TAKE_OVER_NS.saturating_add(take_over_ns);
    }
}

fn no_sync(program: &mut Program) {
    for item in &mut program.items {
        let is_copy = item.submits.all().any(|at| {
            let job = program.nodes[at].job;
            // What is not pinned waits by itself.
            matches!(job, Job::HostCopy { memory, .. } if memory != Memory::Pinned)
        });
        if !item.waits.is_empty() && !is_copy {
            item.waits = Stretch::default();
            item.call_ns = item.call_ns.min(IDLE_SYNC_NS);
            item.return_ns = 0;
        }
    }
}

fn prefetch(program: &mut Program, slots: usize) {
    let (uploads, downloads) = (program.streams, program.streams + 1);
    program.streams += 2;
    program.added.extend(["uploads", "downloads"]);
    program.device_of.extend([0, 0]);
    // The last node of each stream before and behind a copy, in the order of submission.
    let mut last: Vec<Option<usize>> = vec![None; program.streams];
    let mut behind: Vec<Vec<usize>> = vec![Vec::new(); program.streams];
    let mut last_of_step: Vec<Option<usize>> = vec![None; program.steps];
    let mut last_download: Vec<Option<usize>> = vec![None; program.steps];
    for at in 0..program.nodes.len() {
        let (stream, step) = (program.nodes[at].stream, program.nodes[at].step);
        let freed = |of: &[Option<usize>]| step.checked_sub(slots).and_then(|step| of[step]);
        match program.nodes[at].job {
            Job::HostCopy {
                direction: Direction::Upload,
                memory: Memory::Pinned,
                ..
            } => {
                let slot = freed(&last_of_step);
                program.nodes[at].stream = uploads;
                program.nodes[at].moved = true;
                program.nodes[at].after.extend(slot);
                behind[stream].push(at);
            }
            Job::HostCopy {
                memory: Memory::Pinned,
                ..
            } => {
                program.nodes[at].stream = downloads;
                program.nodes[at].moved = true;
                program.nodes[at].after.extend(last[stream]);
                last_download[step] = Some(at);
            }
            _ => {
                let copies = std::mem::take(&mut behind[stream]);
                let slot = freed(&last_download);
                program.nodes[at].after.extend(copies);
                program.nodes[at].after.extend(slot);
                last[stream] = Some(at);
                last_of_step[step] = Some(at);
            }
        }
    }
}

fn graphs(program: &mut Program) {
    let mut graph_of: Option<(usize, u32)> = None;
    for at in 0..program.items.len() {
        let item = &program.items[at];
        let (step, lane) = (item.step, item.lane);
        if !item.waits.is_empty() || !matches!(graph_of, Some((_, s)) if s == step) {
            graph_of = None;
        }
        let is_kernels = !item.submits.is_empty()
            && item
                .submits
                .all()
                .all(|n| !matches!(program.nodes[n].job, Job::HostCopy { .. }));
        if !is_kernels {
            // Calls between the launches of a graph are not made again.
            if graph_of.is_some() && item.submits.is_empty() && item.waits.is_empty() {
                program.items[at].replay_as_graph();
            }
            continue;
        }
        for node in program.items[at].submits.all() {
            program.nodes[node].in_graph = true;
        }
        match graph_of {
            Some((first, _)) if program.items[first].lane == lane => {
                program.items[at].replay_as_graph();
            }
            _ => {
                program.items[at].call_ns = program.items[at].call_ns.min(GRAPH_LAUNCH_NS);
                graph_of = Some((at, step));
            }
        }
    }
}

impl Item {
    /// Leaves of a call what a graph does not save: the program's own work, which is that between
    /// calls that are far apart, and its waiting for data.
    fn replay_as_graph(&mut self) {
        self.call_ns = 0;
        if self.own_ns < OWN_NS {
            self.own_ns = self.loading_ns;
        }
    }
}

fn non_blocking_streams(program: &mut Program) {
    for node in &mut program.nodes {
        node.legacy.clear();
    }
}

fn second_stream(program: &mut Program) {
    let second = program.streams;
    program.streams += 1;
    program.added.push("second stream");
    program.device_of.push(0);
    // The stream that has most of the kernels.
    let mut kernel_ns = vec![0u64; second];
    for node in &program.nodes {
        if let Job::Kernel { .. } = node.job {
            let sum = &mut kernel_ns[node.stream];
            *sum = sum.saturating_add(node.duration_ns);
        }
    }
    let Some(main) = (0..second).max_by_key(|stream| kernel_ns[*stream]) else {
        return;
    };
    let mut joins: Option<(usize, Option<usize>)> = None;
    for step in 0..program.steps {
        let of_step: Vec<usize> = (0..program.nodes.len())
            .filter(|at| program.nodes[*at].step == step && program.nodes[*at].stream == main)
            // A graph says itself what is independent.
            .filter(|at| !program.nodes[*at].in_graph)
            .filter(|at| matches!(program.nodes[*at].job, Job::Kernel { .. }))
            .collect();
        let durations = of_step.iter().map(|at| program.nodes[*at].duration_ns);
        let all_ns = durations.fold(0, u64::saturating_add);
        let mut so_far: u64 = 0;
        let (mut last_main, mut last_second) = (None, None);
        for at in of_step {
            let node = &mut program.nodes[at];
            let is_second = so_far.saturating_add(node.duration_ns / 2) > all_ns / 2;
            let is_first = match is_second {
                true => last_second.is_none(),
                false => last_main.is_none(),
            };
            // A step begins when both halves of the one before are over.
            if let (Some((main, second)), true) = (joins, is_first) {
                node.after.push(main);
                node.after.extend(second);
            }
            if is_second {
                node.stream = second;
                last_second = Some(at);
            } else {
                last_main = Some(at);
            }
            so_far = so_far.saturating_add(node.duration_ns);
        }
        if let Some(main) = last_main {
            joins = Some((main, last_second));
        }
    }
}
