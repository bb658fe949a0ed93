//! Iterations of inference engines that decode with CUDA graphs.
//!
//! Where most of the work comes from graph launches, the launch is what recurs. An iteration may have several launches, a graph
//! for each part of a model: it ends with the download of the result, so that launches with no download between them belong
//! together. Without any download each launch is an iteration. An iteration begins with the first call that submits device work
//! after the download of the previous one: tables that are uploaded belong to the launch that reads them.

use super::links::Links;
use crate::model::{ApiKind, Call, Direction, ThreadIndex, Trace};

/// The graph launches of a trace, if most of its work comes from those of one thread.
pub struct GraphLaunches {
    thread: ThreadIndex,
    /// Start of each launch, in order.
    pub starts: Vec<i64>,
}

/// What a call submitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    Work,
    Download,
}

impl GraphLaunches {
    /// Finds the launches.
    pub fn of(trace: &Trace, links: &Links) -> Option<GraphLaunches> {
        let is_launch = |call: &Call| call.api.kind == ApiKind::GraphLaunch;
        let mut works = vec![0usize; trace.threads.len()];
        for at in 0..trace.work.len() {
            let call = links.call_of(at).map(|call| &trace.calls[call]);
            if let Some(call) = call.filter(|call| is_launch(call)) {
                works[call.thread.0 as usize] += 1;
            }
        }
        let (thread, most) = works
            .into_iter()
            .enumerate()
            .max_by_key(|(_, works)| *works)?;
        let thread = ThreadIndex(thread as u16);
        let launches = trace
            .calls
            .iter()
            .filter(|call| call.thread == thread && is_launch(call));
        let starts: Vec<i64> = launches.map(|call| call.start_ns).collect();
        let is_most = 2 * most > trace.work.len() && starts.len() > 2;
        is_most.then_some(GraphLaunches { thread, starts })
    }

    /// Returns whether half of them or more lie inside the given ranges, which are in order.
    pub fn lie_in(&self, ranges: &[(i64, i64)]) -> bool {
        let inside = |start: &&i64| {
            let after = ranges.partition_point(|range| range.0 <= **start);
            after > 0 && **start < ranges[after - 1].1
        };
        2 * self.starts.iter().filter(inside).count() >= self.starts.len()
    }

    /// Returns the start and end of each iteration on the host.
    pub fn iterations(&self, trace: &Trace, links: &Links) -> Vec<(i64, i64)> {
        let mut asked = vec![Asked::Nothing; trace.calls.len()];
        let mut has_downloads = false;
        for (at, work) in trace.work.iter().enumerate() {
            let Some(call) = links.call_of(at) else {
                continue;
            };
            let is_download = work.what.direction() == Some(Direction::Download);
            let is_mine = trace.calls[call].thread == self.thread;
            let is_graph = trace.calls[call].api.kind == ApiKind::GraphLaunch;
            asked[call] = if is_download && !is_graph {
                Asked::Download
            } else {
                Asked::Work
            };
            has_downloads |= is_download && is_mine && !is_graph;
        }
        let (mut starts, mut begun, mut last) = (Vec::new(), None, i64::MIN);
        let mut has_ended = true;
        for (at, call) in trace.calls.iter().enumerate() {
            if call.thread != self.thread {
                continue;
            }
            last = last.max(call.end_ns());
            match asked[at] {
                Asked::Nothing => continue,
                Asked::Download => {
                    (has_ended, begun) = (true, None);
                    continue;
                }
                Asked::Work if has_ended => begun = begun.or(Some(call.start_ns)),
                Asked::Work => {}
            }
            if call.api.kind == ApiKind::GraphLaunch && (has_ended || !has_downloads) {
                starts.push(begun.take().unwrap_or(call.start_ns));
                has_ended = false;
            }
        }
        let ends = starts.iter().skip(1).copied().chain([last]);
        starts.iter().copied().zip(ends).collect()
    }
}
