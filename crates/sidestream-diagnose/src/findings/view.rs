//! The figures of one device, per step.

use std::cmp::Reverse;

use super::{Code, Evidence, Finding, Ground, Grounds, Saving, time};
use crate::idle::{Because, Cause, Idle, Stretch};
use crate::measure::{Class, DeviceTime, Spans, class, copy_engines};
use crate::model::{Memory, Name, Names, What, Work};
use crate::sort::{Key, order_by};

/// The name of a host span in which nothing with a name happened.
const UNNAMED: &str = "time in which the trace shows nothing";

/// A finding below this part of a step is not worth a line.
const WORTH: f64 = 0.02;

/// The figures of one device, per step.
pub struct View<'a> {
    pub grounds: &'a Grounds<'a>,
    pub device: &'a DeviceTime,
    pub idle: &'a Idle,
    /// The spans of all steps.
    pub all: Spans,
    /// The number of those steps.
    count: u64,
    /// Mean time of a step; that of the whole trace, if there are no steps.
    pub step_ns: u64,
    /// Time of the device's own work: kernels, and the copies of each direction at the speed of the link.
    pub floor_ns: u64,
    /// Spans in which kernels computed, in which kernels communicated, and in which copies ran.
    pub compute: Spans,
    pub collectives: Spans,
    pub uploads: Spans,
    pub downloads: Spans,
}

impl<'a> View<'a> {
    pub fn of(grounds: &'a Grounds, device: &'a DeviceTime, idle: &'a Idle) -> View<'a> {
        let (all, count) = grounds.steps.all(device);
        let mean = grounds.steps.mean_ns().filter(|ns| *ns > 0);
        let mut view = View {
            grounds,
            device,
            idle,
            all,
            count,
            step_ns: mean.unwrap_or(device.span_ns).max(1),
            floor_ns: 0,
            compute: Spans::default(),
            collectives: Spans::default(),
            uploads: Spans::default(),
            downloads: Spans::default(),
        };
        // The least time of the copies of each direction.
        let (mut up_ns, mut down_ns) = (0, 0);
        let mine = grounds.trace.work.iter();
        // Migrations take long because pages move one by one: they do not count towards the least time.
        let mine = mine.filter(|work| view.is_mine(work) && !work.is_migration());
        let (mut compute, mut collectives) = (Spans::default(), Spans::default());
        let (mut uploads, mut downloads) = (Spans::default(), Spans::default());
        for work in mine {
            let (spans, sum_ns) = match class(work, grounds.collectives) {
                Some(Class::Collective) => (&mut collectives, None),
                Some(Class::Compute) => (&mut compute, None),
                Some(Class::Upload) => (&mut uploads, Some(&mut up_ns)),
                Some(Class::Download) => (&mut downloads, Some(&mut down_ns)),
                None => continue,
            };
            spans.push(work.start_ns, work.end_ns());
            if let Some(sum_ns) = sum_ns.filter(|_| view.in_steps(work)) {
                *sum_ns = u64::saturating_add(*sum_ns, view.pinned_ns(work));
            }
        }
        let kernels_ns = view.spans_ns(&device.kernels);
        let copies_ns = match copy_engines(grounds.trace, device.device) {
            Some(1) => up_ns.saturating_add(down_ns),
            _ => up_ns.max(down_ns),
        };
        let copies_ns = view.a_step(copies_ns);
        view.floor_ns = kernels_ns.max(copies_ns);
        (view.compute, view.collectives) = (compute, collectives);
        (view.uploads, view.downloads) = (uploads, downloads);
        view
    }

    /// Returns whether the device did this work.
    pub fn is_mine(&self, work: &Work) -> bool {
        let stream = &self.grounds.trace.streams[work.stream.0 as usize];
        (stream.process, stream.device) == (self.device.process, self.device.device)
    }

    /// Returns whether this work ended in a step.
    pub fn in_steps(&self, work: &Work) -> bool {
        let end = work.end_ns();
        self.all.within_ns(end.saturating_sub(1), end) > 0
    }

    /// Returns the mean per step of a time summed over all steps.
    pub fn a_step(&self, sum: u64) -> u64 {
        let all = self.all.total_ns().max(1);
        let part = u128::from(sum) * u128::from(self.step_ns) / u128::from(all);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// Converts a count over all steps to a count per step.
    pub fn each(&self, number: u64) -> u64 {
        (number + self.count / 2) / self.count
    }

    /// Returns the time per step of these spans.
    pub fn spans_ns(&self, spans: &Spans) -> u64 {
        self.a_step(spans.shared_ns(&self.all))
    }

    /// Returns the idle time of a cause, per step.
    pub fn idle_ns(&self, cause: Cause) -> u64 {
        self.a_step(self.idle.in_steps.get(&cause).copied().unwrap_or(0))
    }

    /// Returns the time that a copy would take with pinned memory; unchanged where the memory is pinned already.
    pub fn pinned_ns(&self, work: &Work) -> u64 {
        match (work.what, work.host_memory()) {
            (What::Copy { bytes, .. }, Some(Memory::Pageable)) => {
                let at_link = (bytes as f64 / self.grounds.link_gb_per_s) as u64;
                at_link.min(work.duration_ns)
            }
            _ => work.duration_ns,
        }
    }

    /// Returns whether this part of a step is worth a line.
    pub fn is_worth(&self, ns: u64) -> bool {
        ns as f64 >= WORTH * self.step_ns as f64
    }

    /// Returns the evidence for a cause, with the maximum gain of removing it: a step cannot become shorter than `floor_ns`.
    pub fn ground(
        &self,
        code: Code,
        taken_ns: u64,
        most_ns: u64,
        floor_ns: u64,
        text: String,
        evidence: Vec<Evidence>,
    ) -> Ground {
        let share = taken_ns as f64 / self.step_ns as f64;
        Ground {
            code,
            text,
            share: share.min(1.0),
            is_worth: self.is_worth(taken_ns),
            most_ns: most_ns.min(self.step_ns.saturating_sub(floor_ns)),
            floor_ns: floor_ns.min(self.step_ns),
            evidence,
            is_of_its_change: true,
        }
    }

    /// Returns what the figures of the text refer to: a step or the trace.
    pub fn whole(&self) -> &'static str {
        match self.grounds.steps.mean_ns() {
            Some(_) => "a step",
            None => "the trace",
        }
    }

    /// Returns the longest spans of idle time of a cause.
    pub fn stretches(&self, cause: Cause) -> Vec<Evidence> {
        let longest = self.idle.longest.get(&cause);
        let longest = longest.into_iter().flatten();
        longest.map(|stretch| self.stretch(stretch, true)).collect()
    }

    /// Returns a span as evidence: a gap of the device, or host time.
    pub fn stretch(&self, stretch: &Stretch, is_gap: bool) -> Evidence {
        Evidence {
            what: match stretch.because {
                Some(because) if because.name != Names::OTHER => self.text(because.name),
                _ => UNNAMED.to_owned(),
            },
            start_ns: stretch.start_ns,
            duration_ns: stretch.duration_ns,
            is_gap,
            call: None,
            operators: self.operators(stretch.because),
        }
    }

    /// Returns the calls and ranges with most of the idle time of a cause, in words.
    pub fn reasons(&self, cause: Cause) -> String {
        let of_cause = self.idle.reasons.iter().filter(|(key, _)| key.0 == cause);
        let mut sums: Vec<(Because, usize, u64)> = of_cause
            .map(|((_, because), (count, ns))| (*because, *count, *ns))
            .collect();
        sums.sort_by_key(|sum| (u64::MAX - sum.2, sum.0));
        let reason = |(because, count, ns): &(Because, usize, u64)| {
            let operators = self.operators(Some(*because)).join(" > ");
            let place = match &*operators {
                "" => String::new(),
                operators => format!(" in {operators}"),
            };
            let (name, ns) = (self.text(because.name), time(self.a_step(*ns)));
            let each = match self.grounds.steps.mean_ns() {
                Some(_) => " a step",
                None => "",
            };
            let times = match count {
                1 => "once".to_owned(),
                count => format!("{count} times"),
            };
            format!("{name}{place} ({ns}{each}, {times} in all)")
        };
        let reasons: Vec<String> = sums.iter().take(2).map(reason).collect();
        reasons.join(" and ")
    }

    pub fn operators(&self, because: Option<Because>) -> Vec<String> {
        let inside = because.map(|because| because.inside).unwrap_or_default();
        inside.into_iter().flatten().map(|n| self.text(n)).collect()
    }

    pub fn text(&self, name: Name) -> String {
        self.grounds.trace.names.text(name).to_owned()
    }

    /// Returns a call as the cause of what it submitted.
    fn because(&self, call: usize) -> Because {
        Because {
            name: self.grounds.trace.calls[call].name,
            inside: self.grounds.scene.inside(call),
        }
    }

    /// Returns work as evidence.
    pub fn evidence(&self, at: usize) -> Evidence {
        let (trace, grounds) = (self.grounds.trace, self.grounds);
        let work = &trace.work[at];
        let because = grounds.links.call_of(at).map(|call| self.because(call));
        Evidence {
            what: self.text(work.name),
            start_ns: work.start_ns,
            duration_ns: work.duration_ns,
            is_gap: false,
            call: because.map(|because| self.text(because.name)),
            operators: self.operators(because),
        }
    }

    /// Returns the longest operations among `work`, as evidence.
    pub fn longest(&self, work: impl Iterator<Item = usize>) -> Vec<Evidence> {
        let all = &self.grounds.trace.work;
        let longest = first_five(work, |at| {
            (Reverse(all[*at].duration_ns), all[*at].start_ns)
        });
        longest.into_iter().map(|at| self.evidence(at)).collect()
    }

    /// Returns the longest calls that pass a test, as evidence.
    pub fn longest_calls(&self, test: impl Fn(usize) -> bool) -> Vec<Evidence> {
        let trace = self.grounds.trace;
        let calls = (0..trace.calls.len()).filter(|at| test(*at));
        let longest = first_five(calls, |at| (Reverse(trace.calls[*at].duration_ns), *at));
        let evidence = |at: usize| {
            let call = &trace.calls[at];
            Evidence {
                what: self.text(call.name),
                start_ns: call.start_ns,
                duration_ns: call.duration_ns,
                is_gap: false,
                call: None,
                operators: self.operators(Some(self.because(at))),
            }
        };
        longest.into_iter().map(evidence).collect()
    }

    /// Returns a finding for idle time that no step of a run without the profiler has.
    pub fn excluded(&self, cause: Cause, code: Code) -> Option<Finding> {
        let sum = self.idle.by_cause.get(&cause).copied().unwrap_or(0);
        let share = sum as f64 / self.device.span_ns.max(1) as f64;
        let evidence = self.stretches(cause);
        let first = evidence.first().map(|first| match &*first.what {
            UNNAMED => "; for the longest part of it the trace shows nothing, once, and only a trace with several steps says \
                        whether it recurs"
                .to_owned(),
            what => format!(", most of all in {what}; it does not recur in a longer run"),
        });
        (share >= WORTH / 2.0).then(|| Finding {
            code,
            text: match code {
                Code::Startup => format!(
                    "the device is idle for {} before the first step or after the last one, which does not count as part of \
                     a step",
                    time(sum)
                ),
                Code::Initialisation => format!(
                    "the device is idle for {} while the program does one-time work: it allocates memory, loads or compiles \
                     code, captures a graph{}",
                    time(sum),
                    first.unwrap_or_default()
                ),
                _ => format!(
                    "{} of idle time are caused by the profiler and the driver: a run without the profiler does not have \
                     them",
                    time(sum)
                ),
            },
            share,
            changes: Vec::new(),
            saving_ns: Saving::default(),
            floor_ns: self.step_ns,
            evidence,
        })
    }
}

/// Returns the five with the least keys, in order.
fn first_five<K: Key>(of: impl Iterator<Item = usize>, key: impl Fn(&usize) -> K) -> Vec<usize> {
    let mut first: Vec<usize> = Vec::new();
    let keep = |list: &mut Vec<usize>| {
        order_by(list, &key);
        list.truncate(5);
    };
    for at in of {
        first.push(at);
        if first.len() >= 64 {
            keep(&mut first);
        }
    }
    keep(&mut first);
    first
}
