//! All that is said about a trace, as values and as JSON.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use crate::excerpt::Excerpt;
use crate::findings::{
    Evidence, Finding, Grounds, Judged, Saving, findings, is_launch_blocking, judge, time,
};
use crate::idle::{Cause, Idle, Scene, has_workers};
use crate::measure::{
    Blocking, Class, Collectives, Copies, DeviceMemory, DeviceTime, Launches, Line, Links,
    Operator, PerStep, Ranges, Steps, WorkOfCalls, blocking, copies, devices, host_rows, kernels,
    launches, lost_of_graphs, memory, operators, sampled, stream_kinds,
};
use crate::model::{
    Base, Direction, Launched, Memory, Name, Names, Source, Stream, Thread, Trace, Unprofiled,
    Warning,
};
use crate::ranks::Digest;
use crate::replay::{self, Change, Prediction, Replay};
use crate::show::tables_json;
use crate::timeline::Timeline;

/// The version of the JSON. Fields may be added within a version; none changes its meaning.
pub const SCHEMA: &str = "sidestream.diagnose/2";

/// How fast copies from and to pinned memory are taken to go where the trace has none: what PCIe 4.0
/// with sixteen lanes reaches.
const ASSUMED_LINK_GB_PER_S: f64 = 25.0;
/// Copies below this size say more about their start than about the link.
const LARGE_BYTES: u64 = 1 << 20;
/// How many kernels and operators are listed.
pub const LISTED: usize = 20;
/// The speeds, in GB/s, that a link may be stated to have: from a tenth of the slowest one in use to far
/// beyond the fastest.
pub const LINK_GB_PER_S: RangeInclusive<f64> = 0.1..=10_000.0;

/// Whether a link can be so fast. What callers state comes from people.
pub fn is_speed(gb_per_s: f64) -> bool {
    LINK_GB_PER_S.contains(&gb_per_s)
}

/// What the caller knows besides the trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// How fast copies from and to pinned memory go, in GB/s.
    pub link_gb_per_s: Option<f64>,
    /// The sets of changes to predict; none for the usual ones.
    pub what_if: Option<Vec<Vec<Change>>>,
}

/// All that is said about a trace.
#[derive(Debug)]
pub struct Report {
    /// Who wrote it.
    pub source: Source,
    /// How many events it has.
    pub events: u64,
    /// Its place among those that ran together.
    pub rank: Option<u32>,
    /// How many ran together.
    pub world: Option<u32>,
    /// When its first row begins, on its own clock.
    pub start_ns: i64,
    /// What each device did, and why it did nothing.
    pub devices: Vec<(DeviceTime, Idle)>,
    /// The streams, to be named.
    pub streams: Vec<Stream>,
    /// The threads, to be named.
    pub threads: Vec<Thread>,
    /// The names, to be shown.
    pub names: Names,
    /// The steps.
    pub steps: Steps,
    /// What a step takes without the profiler, where the trace states that it was timed.
    pub base: Base,
    /// What the devices did in one of them, in the median.
    pub per_step: PerStep,
    /// What ran in the step nearest to the median; none without any work.
    pub timeline: Option<Timeline>,
    /// What ran in some steps, to be looked at: in all of them, if they are few.
    pub zooms: Vec<Timeline>,
    /// The rows of the trace around that step.
    pub excerpt: Excerpt,
    /// The copies.
    pub copies: Vec<Copies>,
    /// How launches reach the devices.
    pub launches: Launches,
    /// What held up the host.
    pub blocking: Vec<Blocking>,
    /// All kernels by name, the longest first; outputs list [`LISTED`].
    pub kernels: Vec<Line>,
    /// All operators by name, the longest first; outputs list [`LISTED`].
    pub operators: Vec<Line>,
    /// Operators, ranges and calls by name and shapes, as `key_averages` of PyTorch has them, in no sequence that means anything.
    pub rows: Vec<Operator>,
    /// The time of host and devices by the ranges that the program named.
    pub ranges: Ranges,
    /// How the longest kernel of each name was launched, where the trace says it.
    pub launched: HashMap<Name, Launched>,
    /// The memory of devices over time, where the trace shows it.
    pub memory: Vec<DeviceMemory>,
    /// The changes that a replay judged and that gain anything, the most valuable first, one for each code: what
    /// findings, predictions and the verdict that nothing is to be gained are drawn from. Empty without a replay.
    pub judged: Vec<Judged>,
    /// What costs time, the most valuable first.
    pub findings: Vec<Finding>,
    /// The speed that pinned copies are taken to have, and where that is from.
    pub link: (f64, Link),
    /// How well a replay explains the trace and what changes are worth, or why there is none.
    pub replay: Result<Replay, &'static str>,
    /// Whether the caller asked for these changes, so that each is of interest.
    pub what_if_asked: bool,
    /// What it exchanged with other ranks.
    pub digest: Digest,
    /// What a reader has to know.
    pub warnings: Vec<Warning>,
}

/// Where the speed of pinned copies is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The caller stated it.
    Stated,
    /// Pinned copies of the trace had it.
    Measured,
    /// It is an assumption.
    Assumed,
}

impl Link {
    /// The word of the output.
    pub fn as_str(self) -> &'static str {
        match self {
            Link::Stated => "stated",
            Link::Measured => "measured",
            Link::Assumed => "assumed",
        }
    }
}

impl Report {
    /// Looks at a trace.
    pub fn of(trace: Trace, options: &Options) -> Report {
        let links = Links::of(&trace);
        let works = WorkOfCalls::of(&trace, &links);
        let steps = Steps::of(&trace, &links);
        let collectives = Collectives::of(&trace);
        let times = devices(&trace, &collectives);
        let per_step = PerStep::of(&trace, &steps, &times, &collectives);
        let launches = launches(&trace, &links);
        let copies = copies(&trace);
        let link = link(&copies, &trace, options);
        let mut warnings = trace.warnings.clone();
        let is_launch_blocking = is_launch_blocking(&trace, &links);
        warnings.extend(doubts(&trace, is_launch_blocking, &launches));
        if let Some(text) = lost_of_graphs(&trace, &links) {
            warnings.push(Warning {
                code: "GRAPHS",
                text,
            });
        }
        let sampled = sampled(&trace);
        if let Some(each) = sampled {
            let text = format!(
                "CUDA counted {each} calls for each one that is in the trace, which is only a sample: idle time is none, and \
                 nothing can be said about its causes; record it again without leaving events out"
            );
            warnings.push(Warning {
                code: "SAMPLED",
                text,
            });
        }
        let scene = Scene::of(&trace, &links, &works, &steps);
        let idles: Vec<Idle> = times.iter().map(|device| scene.idle(device)).collect();
        let kinds = stream_kinds(&trace, &works);
        let ranges = Ranges::of(&trace, &links, &times);
        let has_workers = has_workers(&trace);
        let grounds = Grounds {
            trace: &trace,
            links: &links,
            kinds: &kinds,
            steps: &steps,
            ranges: &ranges,
            scene: &scene,
            collectives: &collectives,
            launches,
            link_gb_per_s: link.0,
            is_launch_blocking,
            has_workers,
            changes: &[],
        };
        let uses_workers = |set: &[Change]| {
            let mut changes = set.iter();
            changes.any(|change| matches!(change, Change::Workers(_)))
        };
        let asked = options.what_if.iter().flatten().cloned();
        let (unknown, asked): (Vec<_>, Vec<_>) =
            asked.partition(|set: &Vec<Change>| has_workers && uses_workers(set));
        if !unknown.is_empty() {
            let unknown: Vec<String> = unknown.iter().map(|set| Change::names(set)).collect();
            let text = format!(
                "{} cannot be predicted: batches come from workers already, and how long these load is not in the trace",
                unknown.join("; ")
            );
            warnings.push(Warning {
                code: "WORKERS",
                text,
            });
        }
        let source = replay::Source {
            trace: &trace,
            links: &links,
            works: &works,
            steps: &steps,
            scene: &scene,
            devices: &times,
            idles: &idles,
            link_gb_per_s: link.0,
            is_link_assumed: link.1 == Link::Assumed,
            has_workers,
        };
        let mut replay = replay::replay(&source, &asked);
        warnings.extend(
            replay
                .as_ref()
                .ok()
                .and_then(|replay| unlike(&trace.base, replay)),
        );
        // Of several devices, the one that idles most of those that do much speaks for the trace.
        let most = times.iter().map(|device| device.gpu_ops).max().unwrap_or(0);
        let speakers = times
            .iter()
            .zip(&idles)
            .filter(|(device, _)| 10 * device.gpu_ops >= most);
        let in_steps = |idle: &Idle| idle.in_steps.values().copied().fold(0, u64::saturating_add);
        let speaker = speakers.min_by_key(|(_, idle)| std::cmp::Reverse(in_steps(idle)));
        let near = replay.as_ref().ok().filter(|replay| replay.is_ok());
        let judged = near.filter(|_| !is_launch_blocking).zip(speaker);
        let judged = judged.map_or_else(Vec::new, |(replay, of)| judge(&grounds, of, replay));
        let changes: Vec<Change> = judged.iter().flat_map(|one| one.changes.clone()).collect();
        let grounds = Grounds {
            changes: &changes,
            ..grounds
        };
        let findings = match speaker.filter(|_| sampled.is_none()) {
            Some(speaker) => findings(&grounds, speaker, &judged, near),
            None => Vec::new(),
        };
        warnings.extend(unexplained(&trace, &times, &idles, launches.orphans));
        // The usual ones are known now; what was asked for stands at the end.
        if let (Ok(replay), Some(_)) = (&mut replay, &options.what_if) {
            let usual = replay.predictions.len() - replay.asked;
            replay.predictions.drain(..usual);
        }
        let digest = Digest::of(
            &trace,
            &steps,
            &collectives,
            &idles.iter().collect::<Vec<_>>(),
        );
        let timeline = Timeline::of(&trace, &works, &steps);
        let zooms = Timeline::each(&trace, &works, &steps);
        let excerpt = Excerpt::of(&trace, &scene, &steps, &times);
        let blocking = blocking(&trace, &works, &times);
        let (kernels, operators) = (kernels(&trace), operators(&trace));
        let rows = host_rows(&trace, &links);
        let memory = memory(&trace);
        Report {
            start_ns: start_ns(&trace),
            source: trace.source,
            events: trace.events,
            rank: trace.rank,
            world: trace.world,
            base: trace.base,
            devices: times.into_iter().zip(idles).collect(),
            streams: trace.streams,
            threads: trace.threads,
            names: trace.names,
            steps,
            per_step,
            timeline,
            zooms,
            excerpt,
            copies,
            launches,
            blocking,
            kernels,
            operators,
            rows,
            ranges,
            launched: trace.launched,
            memory,
            judged,
            findings,
            link,
            replay,
            what_if_asked: options.what_if.is_some(),
            digest,
            warnings,
        }
    }

    /// The time of a step in the mean of all; of the longest device's whole time where there are no steps.
    pub fn step_ns(&self) -> u64 {
        let spans = self.devices.iter().map(|(device, _)| device.span_ns);
        self.steps.mean_ns().or(spans.max()).unwrap_or(0)
    }

    /// What shares and savings are parts of: a step without the profiler where there is a replay, else as it was measured.
    pub fn judged_step_ns(&self) -> u64 {
        match &self.replay {
            Ok(replay) if replay.is_ok() => replay.unprofiled_ns,
            _ => self.step_ns(),
        }
    }

    /// How much of its time a device idles outside of the steps, from 0 to 1; nothing without steps.
    pub fn idle_outside(&self, (device, idle): &(DeviceTime, Idle)) -> f64 {
        let sum = |causes: &BTreeMap<Cause, u64>| -> u64 { causes.values().sum() };
        let outside_ns = sum(&idle.by_cause).saturating_sub(sum(&idle.in_steps));
        outside_ns as f64 / device.span_ns.max(1) as f64
    }

    /// Where something lies: how long after the start of the trace, and in which step, from 0, if the
    /// devices were in one.
    pub fn place(&self, time_ns: i64) -> (u64, Option<usize>) {
        let offset_ns = time_ns.max(self.start_ns).abs_diff(self.start_ns);
        (offset_ns, self.steps.on_device(time_ns))
    }

    /// The idle time of a step by cause, in the mean of the steps and of the devices; of the whole trace
    /// if it has no steps.
    pub fn idle_per_step(&self) -> BTreeMap<Cause, u64> {
        let mut causes: BTreeMap<Cause, u64> = BTreeMap::new();
        for (_, idle) in &self.devices {
            for (cause, ns) in &idle.by_cause {
                let sum = causes.entry(*cause).or_default();
                *sum = sum.saturating_add(*ns);
            }
        }
        let steps = self.per_step.steps;
        // What lies outside of the steps is no part of one.
        causes.retain(|cause, _| steps == 0 || *cause != Cause::Startup);
        let parts = (steps.max(1) * self.devices.len().max(1)) as u64;
        causes.values_mut().for_each(|ns| *ns /= parts);
        causes
    }

    /// The report as JSON; docs/diagnose.md lists the fields.
    pub fn json(&self) -> Value {
        let name = |line: &Line| {
            json!({"name": self.names.text(line.name), "calls": line.calls,
                   "total_ns": line.total_ns, "self_ns": line.self_ns})
        };
        let blocking = |b: &Blocking| {
            json!({"call": self.names.text(b.name), "count": b.count, "ns": b.duration_ns,
                   "idle_ns": b.idle_ns})
        };
        json!({
            "schema": SCHEMA,
            "source": {"kind": kind(self.source), "events": self.events, "rank": self.rank,
                       "world": self.world},
            "devices": self.devices.iter().map(|d| self.device(d)).collect::<Vec<_>>(),
            "steps": self.steps_json(),
            "unprofiled": unprofiled_json(&self.base),
            "per_step": per_step_json(&self.per_step),
            "copies": self.copies.iter().map(copies_json).collect::<Vec<_>>(),
            "link": {"gb_per_s": self.link.0, "by": self.link.1.as_str()},
            "launches": {
                "linked": self.launches.linked,
                "orphans": self.launches.orphans,
                "latency_ns": self.launches.latency_ns,
                "queue_depth": self.launches.queue_depth,
                "launch_bound_share": self.launches.launch_bound_per_mille as f64 / 1e3,
            },
            "blocking": self.blocking.iter().map(blocking).collect::<Vec<_>>(),
            "kernels": self.kernels.iter().take(LISTED).map(name).collect::<Vec<_>>(),
            "operators": self.operators.iter().take(LISTED).map(name).collect::<Vec<_>>(),
            "tables": tables_json(self),
            "findings": self.findings.iter().map(|f| self.finding(f)).collect::<Vec<_>>(),
            "replay": replay_json(&self.replay),
            "what_if": self.what_if(),
            "warnings": self.warnings.iter().map(warning_json).collect::<Vec<_>>(),
        })
    }

    fn device(&self, (device, idle): &(DeviceTime, Idle)) -> Value {
        let by_cause: Map<String, Value> = idle
            .by_cause
            .iter()
            .map(|(cause, ns)| (cause.as_str().to_owned(), (*ns).into()))
            .collect();
        let streams = device.streams.iter().map(|load| {
            let stream = self.streams.get(load.stream.0 as usize);
            json!({"stream": stream.map(|s| s.number), "context": stream.map(|s| s.context),
                   "gpu_ops": load.gpu_ops, "busy_ns": load.busy_ns})
        });
        let overlap: Map<String, Value> = Class::ALL
            .iter()
            .map(|a| {
                let row = Class::ALL.iter().map(|b| {
                    let ns = device.overlap_ns[*a as usize][*b as usize];
                    (b.as_str().to_owned(), ns.into())
                });
                (a.as_str().to_owned(), Value::Object(row.collect()))
            })
            .collect();
        json!({
            "process": device.process,
            "device": device.device,
            "name": device.name,
            "gpu_ops": device.gpu_ops,
            "span_ns": device.span_ns,
            "busy_ns": device.busy_ns(),
            "idle_ns": device.idle_ns(),
            "kernel_ns": device.kernel_ns(),
            "host_copy_ns": device.host_copy_ns,
            "hidden_copy_ns": device.hidden_copy_ns,
            "gaps_10us": device.gaps_10us,
            "gaps_1ms": device.gaps_1ms,
            "idle_by_cause": by_cause,
            "streams": streams.collect::<Vec<_>>(),
            "overlap_ns": overlap,
        })
    }

    fn finding(&self, finding: &Finding) -> Value {
        let evidence = |evidence: &Evidence| {
            let (offset_ns, step) = self.place(evidence.start_ns);
            json!({"what": evidence.what, "start_ns": evidence.start_ns, "offset_ns": offset_ns,
                   "step": step, "duration_ns": evidence.duration_ns, "is_gap": evidence.is_gap,
                   "call": evidence.call,
                   "operators": evidence.operators})
        };
        let Saving { low, likely, high } = finding.saving_ns;
        let changes: Vec<String> = finding.changes.iter().map(Change::to_string).collect();
        json!({"code": finding.code.as_str(), "text": finding.text, "share": finding.share,
               "changes": changes,
               "saving_ns": {"low": low, "likely": likely, "high": high},
               "floor_ns": finding.floor_ns,
               "evidence": finding.evidence.iter().map(evidence).collect::<Vec<_>>()})
    }

    fn what_if(&self) -> Vec<Value> {
        let Ok(replay) = &self.replay else {
            return Vec::new();
        };
        let prediction = |prediction: &Prediction| {
            let changes: Vec<String> = prediction.changes.iter().map(Change::to_string).collect();
            let ratio = prediction.likely_ns as f64 / replay.unprofiled_ns.max(1) as f64;
            json!({"changes": changes,
                   "step_ns": {"low": prediction.low_ns, "likely": prediction.likely_ns,
                               "high": prediction.high_ns},
                   "ratio": ratio})
        };
        replay.predictions.iter().map(prediction).collect()
    }

    fn steps_json(&self) -> Value {
        let spread = self.steps.spread_ns();
        json!({
            "count": self.steps.steps.len(),
            "median_ns": self.steps.median_ns(),
            "mean_ns": self.steps.mean_ns(),
            "by": self.steps.by.as_str(),
            "p10_ns": spread.map(|s| s.0),
            "p90_ns": spread.map(|s| s.1),
        })
    }
}

/// The name of a source in the output.
pub fn kind(source: Source) -> &'static str {
    match source {
        Source::Kineto => "pytorch",
        Source::Nsight => "nsys",
        Source::Sidestream => "sidestream",
    }
}

/// What devices did in a step, as JSON.
pub fn per_step_json(step: &PerStep) -> Value {
    json!({"count": step.steps, "time_ns": step.time_ns, "p10_ns": step.spread_ns.0,
           "p90_ns": step.spread_ns.1, "busy_ns": step.busy_ns, "idle_ns": step.idle_ns,
           "kernel_ns": step.kernel_ns, "copy_ns": step.copy_ns,
           "exposed_copy_ns": step.exposed_copy_ns, "communication_ns": step.communication_ns,
           "exposed_communication_ns": step.exposed_communication_ns})
}

/// What devices did in a step, from the JSON of [`per_step_json`]; none if a figure is missing.
pub fn per_step_of_json(step: &Value) -> Option<PerStep> {
    let ns = |name: &str| step[name].as_u64();
    Some(PerStep {
        steps: usize::try_from(ns("count")?).ok()?,
        time_ns: ns("time_ns")?,
        spread_ns: (ns("p10_ns")?, ns("p90_ns")?),
        busy_ns: ns("busy_ns")?,
        idle_ns: ns("idle_ns")?,
        kernel_ns: ns("kernel_ns")?,
        copy_ns: ns("copy_ns")?,
        exposed_copy_ns: ns("exposed_copy_ns")?,
        communication_ns: ns("communication_ns")?,
        exposed_communication_ns: ns("exposed_communication_ns")?,
    })
}

fn replay_json(replay: &Result<Replay, &'static str>) -> Value {
    match replay {
        Ok(replay) => json!({
            "measured_ns": replay.measured_ns,
            "replayed_ns": replay.replayed_ns,
            "median_error": replay.error(),
            "steps": replay.steps,
            "explained_share": replay.explained_share,
            "unprofiled_ns": replay.unprofiled_ns,
            "base": base_word(&replay.base),
            "unprofiled_between_ns": [replay.unprofiled_between_ns.0, replay.unprofiled_between_ns.1],
            "ok": replay.is_ok(),
        }),
        Err(why) => json!({"ok": false, "why": why}),
    }
}

fn base_word(base: &Base) -> &'static str {
    match base {
        Base::Estimated => "estimated",
        Base::Measured(_) => "measured",
    }
}

fn unprofiled_json(base: &Base) -> Option<Value> {
    let Base::Measured(unprofiled) = base else {
        return None;
    };
    let Unprofiled {
        median_ns,
        mean_ns,
        quartiles_ns,
        edge_ns,
        drift,
        agreed,
        window_steps,
        dropped,
        taken,
        after_profiler,
    } = unprofiled;
    Some(
        json!({"median_ns": median_ns, "mean_ns": mean_ns, "quartiles_ns": [quartiles_ns.0, quartiles_ns.1],
                "edge_ns": edge_ns, "drift": drift, "agreed": agreed, "window_steps": window_steps,
                "dropped": dropped, "taken": taken, "after_profiler": after_profiler}),
    )
}

fn copies_json(copies: &Copies) -> Value {
    json!({"direction": copies.direction.as_str(), "memory": copies.memory.as_str(),
           "count": copies.count, "bytes": copies.bytes, "ns": copies.duration_ns,
           "gb_per_s": copies.gb_per_s()})
}

fn warning_json(warning: &Warning) -> Value {
    json!({"code": warning.code, "text": warning.text})
}

/// When the first row of a trace begins.
fn start_ns(trace: &Trace) -> i64 {
    let firsts = [
        trace.work.first().map(|work| work.start_ns),
        trace.calls.first().map(|call| call.start_ns),
        trace.ranges.first().map(|range| range.start_ns),
    ];
    firsts.into_iter().flatten().min().unwrap_or(0)
}

/// How fast pinned copies go: what the caller says, else the best of the trace, else an assumption.
fn link(copies: &[Copies], trace: &Trace, options: &Options) -> (f64, Link) {
    if let Some(stated) = options.link_gb_per_s {
        return (stated, Link::Stated);
    }
    let pinned = copies.iter().filter(|copies| {
        let to_or_from_host = matches!(copies.direction, Direction::Upload | Direction::Download);
        let large = copies.bytes / copies.count.max(1) as u64 >= LARGE_BYTES;
        to_or_from_host && large && copies.memory == Memory::Pinned
    });
    let best = pinned.filter_map(Copies::gb_per_s).max_by(f64::total_cmp);
    if let Some(best) = best {
        return (best, Link::Measured);
    }
    let name = trace.devices.first().map_or("", |device| &device.name);
    (assumed(name), Link::Assumed)
}

/// What the link of a device reaches, by its generation of PCIe; a chip that is joined with its host's by NVLink has more.
fn assumed(name: &str) -> f64 {
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let is_one_of = |models: &[&str]| words.iter().any(|word| models.contains(word));
    if is_one_of(&["GH200", "GB200", "GB300"]) {
        // NVLink-C2C; copies of one direction were published to reach some 370 to 410 GB/s.
        return 370.0;
    }
    if is_one_of(&["H100", "H200", "H20", "H800", "B200", "B100", "B300"]) {
        // 55.4 GB/s was measured on an H200.
        return 55.0;
    }
    let of_two_thousands = |word: &&str| {
        // GeForce RTX 2060 to 2080, and TITAN and Quadro RTX 3000 to 8000 of the same generation.
        word.len() == 4 && word.starts_with("20") && word.ends_with('0')
    };
    let is_turing = words.contains(&"RTX") && words.iter().any(of_two_thousands)
        || words.contains(&"2080Ti")
        || words.contains(&"Quadro");
    if is_turing || is_one_of(&["V100", "V100S", "T4", "P100", "P40", "P4", "TITAN"]) {
        return 12.5;
    }
    let starts = |start: &str| words.iter().any(|word| word.starts_with(start));
    if starts("GTX") || words.contains(&"GTX") {
        return 12.5;
    }
    ASSUMED_LINK_GB_PER_S
}

/// Said where the steps that were timed before the profiler started are others than those that it recorded.
fn unlike(base: &Base, replay: &Replay) -> Option<Warning> {
    let Base::Measured(measured) = base else {
        return None;
    };
    let is_left_out = replay.is_ok() && replay.base == Base::Estimated;
    is_left_out.then(|| Warning {
        code: "BASE",
        text: format!(
            "the step of {} that was timed before the profiler started is left out of the predictions: the steps that were \
             recorded take {}, and {} by the estimate without the profiler, so that they are others",
            time(measured.median_ns),
            time(replay.measured_ns),
            time(replay.unprofiled_ns)
        ),
    })
}

/// Said where much of the idle time has no cause, with why.
fn unexplained(
    trace: &Trace,
    devices: &[DeviceTime],
    idles: &[Idle],
    orphans: usize,
) -> Option<Warning> {
    if sampled(trace).is_some() {
        return None;
    }
    let span: u128 = devices
        .iter()
        .map(|device| u128::from(device.span_ns))
        .sum();
    let without = idles
        .iter()
        .filter_map(|idle| idle.by_cause.get(&Cause::Unattributed));
    let without: u128 = without.map(|ns| u128::from(*ns)).sum();
    let percent = 100.0 * without as f64 / span.max(1) as f64;
    // Of what was submitted there is a call that stands for it.
    let late = idles.iter().flat_map(|idle| &idle.reasons);
    let late = late.filter(|((cause, _), _)| *cause == Cause::Unattributed);
    let most = late.clone().max_by_key(|(_, (_, ns))| *ns);
    let late: u128 = late.map(|(_, (_, ns))| u128::from(*ns)).sum();
    let why = match (most, orphans) {
        (Some(((_, because), _)), _) if 2 * late >= without => format!(
            "work that had been submitted, most of all by {}, started late, with no wait placed before it; the trace does not tell \
             why: code that is loaded, page faults, or work that the trace lacks",
            trace.names.text(because.name)
        ),
        (_, 0) => "nothing in the trace was asked for when it ends".to_owned(),
        _ => "the work behind it has no call in the trace".to_owned(),
    };
    (percent >= 10.0).then(|| Warning {
        code: "UNATTRIBUTED",
        text: format!(
            "for {percent:.1} % of the time the devices idle and nothing says why: {why}"
        ),
    })
}

/// What is doubtful about the trace itself.
fn doubts(trace: &Trace, is_launch_blocking: bool, launches: &Launches) -> Vec<Warning> {
    let mut doubts = Vec::new();
    let mut doubt = |code, text: String| doubts.push(Warning { code, text });
    if !trace.work.is_empty() && trace.work.len() < 10 {
        let (count, s) = (
            trace.work.len(),
            if trace.work.len() == 1 { "" } else { "s" },
        );
        doubt(
            "TOO_LITTLE",
            format!("the trace has {count} GPU operation{s}: too little to judge a program by"),
        );
    }
    if trace.calls.is_empty() {
        let text = "the trace has no calls of the host: why the device idled cannot be said";
        doubt("NO_HOST_ROWS", text.to_owned());
    } else if launches.orphans > 0 {
        let (orphans, all) = (launches.orphans, trace.work.len());
        doubt(
            "ORPHANS",
            format!("the calls of {orphans} of {all} GPU operations are not in the trace"),
        );
    }
    if is_launch_blocking {
        let text =
            "every launch was waited for, as with CUDA_LAUNCH_BLOCKING=1: run without it first";
        doubt("LAUNCH_BLOCKING", text.to_owned());
    }
    let unknown = copies(trace).iter().any(|copies| {
        let to_or_from_host = matches!(copies.direction, Direction::Upload | Direction::Download);
        to_or_from_host && copies.memory == Memory::Unknown
    });
    if unknown {
        let text = "the trace does not say whether the host's memory is pinned";
        doubt("UNKNOWN_MEMORY", text.to_owned());
    }
    doubts
}
