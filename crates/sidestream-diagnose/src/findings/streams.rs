//! Findings about work that runs one after the other and could run concurrently.

use std::collections::BTreeMap;

use sidestream::op::StreamKind;

use super::view::View;
use super::{Code, Ground, time};
use crate::measure::{Spans, add};
use crate::model::{ApiKind, StreamFlag, StreamIndex, What};
use crate::replay::share;

/// Work submitted this long before other work was complete could have started earlier.
const QUEUED_NS: i64 = 2_000;
/// Fewer waits are coincidence.
const LEAST_WAITS: usize = 3;

/// A kernel that takes more than this part of a device leaves no room for others.
const MOST_FILLED: f64 = 0.9;

/// How two streams take turns.
#[derive(Default)]
struct Turns {
    /// Number of operations that were queued while the other stream worked and started only after it, though no event required
    /// that: index 1 where the default stream waited.
    waited: [usize; 2],
    /// The last work of either stream, and whether it was the default stream's.
    last: Option<(usize, bool)>,
    /// Operations that waited.
    evidence: Vec<usize>,
}

impl View<'_> {
    /// Returns the least time of the kernels of a step, if as many run at once as the device can hold.
    fn capacity_ns(&self) -> u64 {
        let sms = self.sms().unwrap_or(0);
        let mut sum = 0.0;
        for work in &self.grounds.trace.work {
            if let What::Kernel(kernel) = &work.what
                && self.is_mine(work)
                && self.in_steps(work)
            {
                sum += work.duration_ns as f64 * share(kernel, sms);
            }
        }
        self.a_step(sum as u64)
    }

    fn sms(&self) -> Option<u32> {
        let devices = &self.grounds.trace.devices;
        devices.iter().find(|d| d.id == self.device.device)?.sms
    }

    /// Returns the time of the copies of the slower direction.
    fn copies_ns(&self) -> u64 {
        let uploads = self.spans_ns(&self.uploads);
        uploads.max(self.spans_ns(&self.downloads))
    }

    pub fn default_stream(&self) -> Option<Ground> {
        let trace = self.grounds.trace;
        let kind = |stream: StreamIndex| self.grounds.kinds.get(stream.0 as usize).copied();
        let mut used = self.device.streams.iter().map(|load| load.stream);
        let null = used.find(|stream| kind(*stream) == Some(StreamKind::Legacy))?;
        let mut spans: BTreeMap<StreamIndex, Spans> = BTreeMap::new();
        for work in trace.work.iter().filter(|work| self.is_mine(work)) {
            let spans = spans.entry(work.stream).or_default();
            spans.push(work.start_ns, work.end_ns());
        }
        let nulls = spans.get(&null)?;
        let of_null = &trace.streams[null.0 as usize];
        // Streams that wait for the default stream never run concurrently with it.
        let waits = |stream: &StreamIndex| {
            let other = &trace.streams[stream.0 as usize];
            let shared = spans[stream].shared_ns(nulls);
            let least = spans[stream].total_ns().min(nulls.total_ns());
            *stream != null
                && other.context == of_null.context
                && kind(*stream) == Some(StreamKind::Blocking)
                && shared <= least / 100
        };
        // Streams are sorted by their work. Beyond this many, they are not considered.
        let busiest = self.device.streams.iter().map(|load| load.stream);
        let others: Vec<StreamIndex> = busiest.take(64).filter(waits).collect();
        let turns = self.turns(null, &others);
        let serial = others.iter().filter(|stream| {
            let turns = turns.get(stream);
            turns.is_some_and(|turns| turns.waited.iter().sum::<usize>() >= LEAST_WAITS)
        });
        let serial: Vec<StreamIndex> = serial.copied().collect();
        let busy = |stream: &StreamIndex| self.spans_ns(&spans[stream]);
        let involved = || serial.iter().chain([&null]);
        let longest = involved().map(busy).max().filter(|_| !serial.is_empty())?;
        // All streams except the one with the most work could run concurrently with that one.
        let beside = involved().map(busy).fold(0, u64::saturating_add) - longest;
        let floor = longest.max(self.capacity_ns()).max(self.copies_ns());
        let number = |stream: &StreamIndex| trace.streams[stream.0 as usize].number.to_string();
        let mut names: Vec<String> = serial.iter().take(4).map(number).collect();
        if serial.len() > 4 {
            names.push(format!("{} more", serial.len() - 4));
        }
        let counted = turns.iter().filter(|(stream, _)| serial.contains(stream));
        let waited: usize = counted.clone().map(|t| t.1.waited[0] + t.1.waited[1]).sum();
        let known = match of_null.flag {
            StreamFlag::Null => "",
            _ => " (inferred: the trace has no flags of streams)",
        };
        let text = format!(
            "work on the legacy default stream (stream {}) and on stream{} {} never overlaps{known}: each waits for the \
             other, {waited} times in all, without an event between them; other streams for the work of the default \
             stream, or streams created with cudaStreamNonBlocking and events where there is a dependence, let up to \
             {} a step run at once",
            of_null.number,
            if serial.len() == 1 { "" } else { "s" },
            names.join(", "),
            time(beside)
        );
        let evidence = self.longest(counted.flat_map(|(_, turns)| turns.evidence.iter().copied()));
        Some(self.ground(
            Code::DefaultStreamSerialization,
            beside,
            beside,
            floor,
            text,
            evidence,
        ))
    }

    /// Returns how the default stream takes turns with each of these streams.
    fn turns(&self, null: StreamIndex, others: &[StreamIndex]) -> BTreeMap<StreamIndex, Turns> {
        let (trace, links) = (self.grounds.trace, self.grounds.links);
        // Counts the waits for events placed before each call.
        let mut placed = Vec::with_capacity(trace.calls.len());
        let mut so_far = 0u32;
        for call in &trace.calls {
            placed.push(so_far);
            so_far += u32::from(call.api.kind == ApiKind::WaitEvent);
        }
        let mut turns: BTreeMap<StreamIndex, Turns> = BTreeMap::new();
        turns.extend(others.iter().map(|stream| (*stream, Turns::default())));
        // The default stream's last work counts for its turns with every other stream.
        let mut last_null = None;
        for (at, work) in trace.work.iter().enumerate() {
            let queued = |before: usize| {
                let (first, then) = (links.call_of(before)?, links.call_of(at)?);
                let over_ns = trace.work[before].end_ns();
                let is_queued = trace.calls[then].end_ns() < over_ns.saturating_sub(QUEUED_NS);
                // A graph defines its own dependencies.
                let is_ours = first != then && placed[first.min(then)] == placed[first.max(then)];
                (is_queued && is_ours).then_some(work.start_ns >= over_ns)
            };
            let note = |turns: &mut Turns, before: Option<usize>, is_null: bool| {
                if before.and_then(queued) == Some(true) {
                    turns.waited[usize::from(is_null)] += 1;
                    if turns.evidence.len() < 64 {
                        turns.evidence.push(at);
                    }
                }
            };
            if work.stream == null {
                for turns in turns.values_mut() {
                    if let Some((before, false)) = turns.last.replace((at, true)) {
                        note(turns, Some(before), true);
                    }
                }
                last_null = Some(at);
            } else if let Some(turns) = turns.get_mut(&work.stream)
                && let Some((_, true)) = turns.last.replace((at, false))
            {
                note(turns, last_null, false);
            }
        }
        turns
    }

    pub fn branches(&self) -> Option<Ground> {
        let sms = self.sms()?;
        let trace = self.grounds.trace;
        let mut by_stream: BTreeMap<StreamIndex, u64> = BTreeMap::new();
        let (mut narrow, mut could, mut count) = (0u64, 0.0, 0u64);
        let mut evidence = Vec::new();
        for (at, work) in trace.work.iter().enumerate() {
            let What::Kernel(kernel) = &work.what else {
                continue;
            };
            if !self.is_mine(work) || !self.in_steps(work) {
                continue;
            }
            add(by_stream.entry(work.stream).or_default(), work.duration_ns);
            // A graph defines which of its nodes are independent.
            let call = self.grounds.links.call_of(at);
            let in_graph =
                call.is_some_and(|call| trace.calls[call].api.kind == ApiKind::GraphLaunch);
            let fills = share(kernel, sms);
            if !in_graph && fills <= MOST_FILLED && !self.grounds.collectives.contains(work.name) {
                narrow = narrow.saturating_add(work.duration_ns);
                could += work.duration_ns as f64 * (1.0 - fills.max(0.5));
                count += 1;
                evidence.push(at);
            }
        }
        let all = by_stream.values().copied().fold(0, u64::saturating_add);
        let main = by_stream.values().copied().max().unwrap_or(0);
        let narrow_ns = self.a_step(narrow);
        let several = main / 20 < (all - main);
        if several || narrow_ns < self.step_ns / 2 || self.each(count) < 2 {
            return None;
        }
        let floor = self.capacity_ns().max(self.copies_ns());
        let high = self
            .a_step(could as u64)
            .min(self.step_ns.saturating_sub(floor));
        if !self.is_worth(high) {
            return None;
        }
        let text = format!(
            "kernels that leave a part of the device free take {} of {} of {}, all in one stream: a second \
             stream is worth something if they are independent of each other, and nothing if each needs the one before \
             it, which no trace says",
            time(narrow_ns),
            self.whole(),
            time(self.step_ns)
        );
        // No trace shows whether the kernels depend on each other.
        Some(self.ground(
            Code::SerialBranches,
            narrow_ns,
            high,
            floor,
            text,
            self.longest(evidence.into_iter()),
        ))
    }

    pub fn communication(&self) -> Option<Ground> {
        let exposed_spans = self.collectives.without(&self.compute);
        let exposed = self.spans_ns(&exposed_spans);
        let all = self.spans_ns(&self.collectives);
        let compute = self.spans_ns(&self.compute);
        // Communication can be covered only by as much as is computed elsewhere.
        let free = self.spans_ns(&self.compute.without(&self.collectives));
        let high = exposed.min(free);
        let trace = self.grounds.trace;
        let bare = |at: &usize| {
            let work = &trace.work[*at];
            self.grounds.collectives.contains(work.name)
                && self.is_mine(work)
                && self.in_steps(work)
                && self.compute.within_ns(work.start_ns, work.end_ns()) * 2 < work.duration_ns
        };
        let part = match exposed {
            exposed if exposed == all => "all".to_owned(),
            exposed => time(exposed),
        };
        let text = format!(
            "communication takes {} of {} of {}, {part} of it while nothing is computed: started earlier, in a stream \
             of its own, it runs beside the kernels; a collective also waits for the slowest of those that take part",
            time(all),
            self.whole(),
            time(self.step_ns),
        );
        let floor = compute.max(all).max(self.copies_ns());
        let evidence = match exposed {
            0 => Vec::new(),
            _ => self.longest((0..trace.work.len()).filter(bare)),
        };
        (exposed > 0).then(|| {
            self.ground(
                Code::ExposedCommunication,
                exposed,
                high,
                floor,
                text,
                evidence,
            )
        })
    }
}
