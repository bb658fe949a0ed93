//! Reports where a pipeline spends its time, and how close it is to its lower bound.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::plan::Plan;
use crate::error::Result;
use crate::event::TimedEvent;

/// The times of the stages of timed items.
#[derive(Default)]
pub(super) struct Times {
    stages: Vec<String>,
    start: Option<TimedEvent>,
    /// The times of the newest items, for the timeline.
    kept: VecDeque<TimedItem>,
    /// By stage: the sum over all timed items.
    sums: Vec<Duration>,
    timed: u32,
    end: Duration,
    delivered: u64,
    plan: Option<Plan>,
}

/// The times of an item: its start, and the end of each stage.
#[derive(Clone, Debug)]
struct TimedItem {
    index: u64,
    points: Vec<Duration>,
}

/// The number of newest items that are drawn.
const KEPT: usize = 64;

/// The statistics of a pipeline so far.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name of the device.
    pub device: String,
    /// The number of slots.
    pub depth: usize,
    /// The number of items delivered.
    pub delivered: u64,
    /// The times of the stages, if items were timed.
    pub timed: Option<Timed>,
    items: Vec<TimedItem>,
}

/// The times of the stages on the device.
#[derive(Clone, Debug)]
pub struct Timed {
    /// The number of items timed.
    pub items: u32,
    /// The name of each stage, and its mean time per item while other items ran too.
    pub stages: Vec<(String, Duration)>,
    /// The time from the start of the first item to the end of the last.
    pub elapsed: Duration,
    /// The total time of all stages of all items, divided by `elapsed`: 1 if nothing overlapped.
    pub overlap: f64,
    /// The lower bound on the time: all items one after the other through the longest of upload, kernels and
    /// download, with the times of an item that ran alone if they were measured.
    pub limit: Duration,
    /// The stage that determines the limit.
    pub binds: String,
    /// Whether even that stage was idle for more than half of the time, so that the host, the source or the
    /// consumer is the bottleneck.
    pub is_host_bound: bool,
}

impl Times {
    pub(super) fn new(stages: Vec<String>) -> Times {
        Times {
            sums: vec![Duration::ZERO; stages.len()],
            stages,
            ..Times::default()
        }
    }

    pub(super) fn plan(&self) -> Option<Plan> {
        self.plan.clone()
    }

    /// Adds the times of a completed item.
    pub(super) fn note(&mut self, index: u64, events: &[TimedEvent]) -> Result<()> {
        self.delivered += 1;
        let Some(first) = events.first() else {
            return Ok(());
        };
        let start = self.start.get_or_insert_with(|| first.clone());
        let points = events.iter().map(|event| event.elapsed_since(start));
        let points: Vec<Duration> = points.collect::<Result<_>>()?;
        for (sum, took) in self.sums.iter_mut().zip(of_stages(&points)) {
            *sum += took;
        }
        self.timed += 1;
        self.end = points.last().copied().unwrap_or_default().max(self.end);
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(TimedItem { index, points });
        Ok(())
    }

    /// Returns a plan from the newest item, which ran alone.
    pub(super) fn choose(&mut self) -> &Plan {
        let points = self.kept.back().map(|item| &item.points[..]).unwrap_or(&[]);
        let stages = self.stages.iter().cloned().zip(of_stages(points));
        let item = match points {
            [first, .., last] => last.saturating_sub(*first),
            _ => Duration::ZERO,
        };
        self.plan.insert(Plan::from_times(stages.collect(), item))
    }

    pub(super) fn report(&self, depth: usize, device: &str) -> Report {
        Report {
            device: device.to_owned(),
            depth,
            delivered: self.delivered,
            timed: (self.timed > 0).then(|| self.times()),
            items: self.kept.iter().cloned().collect(),
        }
    }

    fn times(&self) -> Timed {
        let means = self.sums.iter().map(|sum| *sum / self.timed);
        let stages: Vec<(String, Duration)> = self.stages.iter().cloned().zip(means).collect();
        let alone = match &self.plan {
            Some(plan) => plan.stages.clone(),
            None => stages.clone(),
        };
        let (limit, binds) = limit(&alone, self.timed);
        let busy: Duration = self.sums.iter().sum();
        Timed {
            items: self.timed,
            stages,
            elapsed: self.end,
            overlap: busy.as_secs_f64() / self.end.as_secs_f64().max(1e-12),
            limit,
            binds,
            is_host_bound: limit < self.end / 2,
        }
    }
}

/// Returns the time of each stage, from the times of its start and end.
fn of_stages(points: &[Duration]) -> impl Iterator<Item = Duration> {
    let pairs = points.windows(2);
    pairs.map(|pair| pair[1].saturating_sub(pair[0]))
}

/// Returns the lower bound and its stage. Uploads, kernels and downloads use three engines, each of which processes one
/// item after the other; all stages between the first and the last count as kernels.
fn limit(stages: &[(String, Duration)], items: u32) -> (Duration, String) {
    let engines: Vec<(String, Duration)> = match stages {
        [up, kernels @ .., down] if !kernels.is_empty() => {
            let sum = kernels.iter().map(|(_, time)| *time).sum();
            let longest = kernels.iter().max_by_key(|(_, time)| *time);
            let name = longest.map(|(name, _)| name.clone()).unwrap_or_default();
            vec![up.clone(), (name, sum), down.clone()]
        }
        other => other.to_vec(),
    };
    let once: Duration = engines.iter().map(|(_, time)| *time).sum();
    let longest = engines.into_iter().max_by_key(|(_, time)| *time);
    let (name, time) = longest.unwrap_or_default();
    (once + time * items.saturating_sub(1), name)
}

impl Report {
    /// Returns the newest items as text: one line for each slot, with a letter for each stage.
    pub fn timeline(&self, columns: usize) -> String {
        let columns = columns.max(20);
        let shown = self.items.len().min(4 * self.depth);
        let items = &self.items[self.items.len() - shown..];
        let points = || items.iter().flat_map(|item| &item.points);
        let (Some(&from), Some(&to)) = (points().min(), points().max()) else {
            return String::new();
        };
        let span = (to - from).as_nanos().max(1);
        let column = |at: Duration| ((at - from).as_nanos() * columns as u128 / span) as usize;
        let mut lanes = vec![vec!['.'; columns]; self.depth];
        for item in items {
            let lane = &mut lanes[(item.index % self.depth as u64) as usize];
            let letters = ('a'..='z').cycle();
            for (pair, letter) in item.points.windows(2).zip(letters) {
                let (start, end) = (column(pair[0]), column(pair[1]));
                let end = end.clamp(start, columns).max((start + 1).min(columns));
                lane[start.min(end)..end].fill(letter);
            }
        }
        let stages = self.timed.iter().flat_map(|timed| &timed.stages);
        let key = stages
            .zip('a'..='z')
            .map(|((name, _), c)| format!("{c} {name}"));
        let key: Vec<String> = key.collect();
        let mut text = format!("  {} µs: {}\n", span / 1000, key.join(", "));
        for (slot, lane) in lanes.iter().enumerate() {
            text += &format!("  slot {slot} |{}|\n", lane.iter().collect::<String>());
        }
        text
    }
}

impl Timed {
    /// Returns the limit divided by the elapsed time.
    pub fn share(&self) -> f64 {
        self.limit.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-12)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (delivered, depth) = (self.delivered, self.depth);
        write!(f, "{delivered} items in {depth} slots on {}", self.device)?;
        let Some(timed) = &self.timed else {
            return Ok(());
        };
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        writeln!(f, ", {} of them timed", timed.items)?;
        for (name, time) in &timed.stages {
            writeln!(f, "  {name:20} {:10.1} µs an item", us(*time))?;
        }
        writeln!(
            f,
            "  {:20} {:10.1} µs, overlap {:.2}",
            "all",
            us(timed.elapsed),
            timed.overlap
        )?;
        write!(
            f,
            "  {:20} {:10.1} µs, set by {}: {:.1} % reached{}",
            "limit",
            us(timed.limit),
            timed.binds,
            100.0 * timed.share(),
            if timed.is_host_bound {
                "; the host is the bottleneck"
            } else {
                ""
            }
        )
    }
}
