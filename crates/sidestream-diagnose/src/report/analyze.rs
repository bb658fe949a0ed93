//! Analyzes a trace: first the measurements, then the conclusions from them.

use std::cmp::Reverse;

use super::doubts::{doubts, unexplained, unlike, unpredictable};
use super::link::{Link, link};
use super::{Options, Report};
use crate::digest::Digest;
use crate::excerpt::Excerpt;
use crate::findings::{Grounds, findings, is_launch_blocking, judge};
use crate::idle::{Idle, Scene, has_workers};
use crate::measure::{
    Collectives, DeviceTime, Links, PerStep, Ranges, Steps, WorkOfCalls, blocking, copies, devices,
    host_rows, kernels, launches, memory, operators, sampled, stream_kinds,
};
use crate::model::Trace;
use crate::replay::{self, Change};
use crate::timeline::Timeline;

impl Report {
    /// Analyzes a trace.
    pub fn of(trace: Trace, options: &Options) -> Report {
        let links = Links::of(&trace);
        let works = WorkOfCalls::of(&trace, &links);
        let steps = Steps::of(&trace, &links);
        let collectives = Collectives::of(&trace);
        let times = devices(&trace, &collectives);
        let launches = launches(&trace, &links);
        let copies = copies(&trace);
        let link = link(&copies, &trace, options.link_gb_per_s);
        let is_launch_blocking = is_launch_blocking(&trace, &links);
        let has_workers = has_workers(&trace);
        let scene = Scene::of(&trace, &links, &works, &steps);
        let idles: Vec<Idle> = times.iter().map(|device| scene.idle(device)).collect();
        let ranges = Ranges::of(&trace, &links, &times);
        let (unknown, asked) = asked(options, has_workers);
        let mut replay = replay::replay(
            &replay::Source {
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
            },
            &asked,
        );
        let replayed = replay.as_ref().ok();
        let near = replayed.filter(|replay| replay.is_ok());
        let mut warnings = trace.warnings.clone();
        warnings.extend(doubts(&trace, &links, is_launch_blocking, &launches));
        warnings.extend(unpredictable(&unknown, has_workers));
        warnings.extend(replayed.and_then(|replay| unlike(&trace.base, replay)));
        warnings.extend(unexplained(&trace, &times, &idles, launches.orphans));

        let speaker = speaker(&times, &idles);
        let mut grounds = Grounds {
            trace: &trace,
            links: &links,
            kinds: &stream_kinds(&trace, &works),
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
        let judged = near.filter(|_| !is_launch_blocking).zip(speaker);
        let judged = judged.map_or(Vec::new(), |(replay, of)| judge(&grounds, of, replay));
        let changes: Vec<Change> = judged.iter().flat_map(|one| one.changes.clone()).collect();
        grounds.changes = &changes;
        let findings = match speaker.filter(|_| sampled(&trace).is_none()) {
            Some(speaker) => findings(&grounds, speaker, &judged, near),
            None => Vec::new(),
        };
        // The usual predictions come first; the requested ones are at the end.
        if let (Ok(replay), Some(_)) = (&mut replay, &options.what_if) {
            let usual = replay.predictions.len() - replay.asked;
            replay.predictions.drain(..usual);
        }
        Report {
            start_ns: start_ns(&trace),
            per_step: PerStep::of(&trace, &steps, &times, &collectives),
            timeline: Timeline::of(&trace, &works, &steps),
            zooms: Timeline::each(&trace, &works, &steps),
            excerpt: Excerpt::of(&trace, &scene, &steps, &times),
            blocking: blocking(&trace, &works, &times),
            kernels: kernels(&trace),
            operators: operators(&trace),
            rows: host_rows(&trace, &links),
            memory: memory(&trace),
            digest: Digest::of(&trace, &links, &steps, &Vec::from_iter(&idles)),
            devices: times.into_iter().zip(idles).collect(),
            sms: sms(&trace),
            steps,
            copies,
            launches,
            ranges,
            judged,
            findings,
            link,
            replay,
            what_if_asked: options.what_if.is_some(),
            warnings,
            source: trace.source,
            events: trace.events,
            rank: trace.rank,
            world: trace.world,
            base: trace.base,
            streams: trace.streams,
            threads: trace.threads,
            names: trace.names,
            launched: trace.launched,
        }
    }
}

/// Returns the requested sets of changes in two lists: those that cannot be predicted for this trace, since it has workers or
/// has none, and the others.
fn asked(options: &Options, has_workers: bool) -> (Vec<Vec<Change>>, Vec<Vec<Change>>) {
    let sets = options.what_if.iter().flatten().cloned();
    let is_unknown = |change: &Change| match change {
        Change::Workers(_) => has_workers,
        Change::MoreWorkers(_) => !has_workers,
        _ => false,
    };
    sets.partition(|set| set.iter().any(is_unknown))
}

/// Returns the device that represents the trace: of those with much work, the one that is idle most.
fn speaker<'t>(times: &'t [DeviceTime], idles: &'t [Idle]) -> Option<(&'t DeviceTime, &'t Idle)> {
    let most = times.iter().map(|device| device.gpu_ops).max()?;
    let in_steps = |idle: &Idle| idle.in_steps.values().copied().fold(0, u64::saturating_add);
    let speakers = times.iter().zip(idles);
    speakers
        .filter(|(device, _)| 10 * device.gpu_ops >= most)
        .min_by_key(|(_, idle)| Reverse(in_steps(idle)))
}

/// Returns the number of multiprocessors of each device.
fn sms(trace: &Trace) -> Option<u32> {
    let first = trace.devices.first()?.sms;
    first.filter(|_| trace.devices.iter().all(|device| device.sms == first))
}

/// Returns when the first row of a trace begins.
fn start_ns(trace: &Trace) -> i64 {
    let firsts = [
        trace.work.first().map(|work| work.start_ns),
        trace.calls.first().map(|call| call.start_ns),
        trace.ranges.first().map(|range| range.start_ns),
    ];
    firsts.into_iter().flatten().min().unwrap_or(0)
}
