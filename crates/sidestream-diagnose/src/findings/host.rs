//! Findings about the host: it waits, it is slow, or it has nothing to submit.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::view::View;
use super::{Code, Ground, time};
use crate::idle::{Because, Cause, Stretch, is_loading};
use crate::measure::{Links, Spans, add};
use crate::model::{ApiKind, Direction, Trace, What};
use crate::sections::{Section, prepares_data};
use crate::sort::order_by;

impl View<'_> {
    pub fn sync(&self) -> Ground {
        let idle = self.idle_ns(Cause::SyncInStep);
        let reasons = self.reasons(Cause::SyncInStep);
        let reasons = if reasons.is_empty() {
            "the host's own work after them is delayed".to_owned()
        } else {
            reasons
        };
        let text = match idle {
            // The cost of the waits is attributed to other causes: those of the host's next actions.
            0 => "the host waits in synchronisations and cannot run ahead, so its work after them is delayed"
                .to_owned(),
            idle => format!(
                "after synchronisations the device does nothing for {} of {} of {}, since the host could not run ahead: \
                 {reasons}; the rest of the time inside them is the device's own work, and no loss",
                time(idle),
                self.whole(),
                time(self.step_ns),
            ),
        };
        let mut evidence = self.stretches(Cause::SyncInStep);
        if evidence.is_empty() {
            evidence = self.longest_calls(|at| self.grounds.trace.calls[at].api.kind.is_sync());
        }
        self.ground(Code::SyncInStep, idle, idle, self.floor_ns, text, evidence)
    }

    /// Judges a host that waited for every launch: nothing else about the host can be judged then.
    pub fn launch_blocking(&self) -> Ground {
        let idle = self
            .step_ns
            .saturating_sub(self.spans_ns(&self.device.busy));
        let text = format!(
            "every launch was waited for, as with CUDA_LAUNCH_BLOCKING=1, so the device does nothing for {} of \
             {} of {}: run without it before anything else is measured",
            time(idle),
            self.whole(),
            time(self.step_ns)
        );
        let causes = [Cause::LaunchBound, Cause::SyncInStep, Cause::BlockingCopy];
        let evidence = causes.map(|cause| self.stretches(cause)).concat();
        let evidence = evidence.into_iter().take(5).collect();
        let mut ground = self.ground(Code::SyncInStep, idle, idle, self.floor_ns, text, evidence);
        // This finding is reported even if it costs little.
        ground.is_worth = true;
        ground
    }

    pub fn starved(&self) -> Ground {
        let idle = self.idle_ns(Cause::HostStarved);
        let text = format!(
            "the device waits for data for {} of {} of {}: {}; {}",
            time(idle),
            self.whole(),
            time(self.step_ns),
            self.reasons(Cause::HostStarved),
            if self.grounds.has_workers {
                "the workers of the data loader do not keep up: more of them, or less work for each batch"
            } else {
                "more workers of the data loader, or a queue ahead of the step, load while the device works"
            }
        );
        let evidence = self.stretches(Cause::HostStarved);
        // The bound includes waits for data while the device was busy: without them the host would be further ahead.
        let ranges = self.grounds.trace.ranges.iter();
        let waits = ranges.filter(|range| is_loading(&self.text(range.name)));
        let mut waited = Spans::default();
        for range in waits {
            waited.push(range.start_ns, range.end_ns());
        }
        let most = idle.max(self.spans_ns(&waited));
        self.ground(Code::HostStarved, idle, most, self.floor_ns, text, evidence)
    }

    pub fn host_work(&self) -> Ground {
        let idle = self.idle_ns(Cause::HostWork);
        let (whole, step) = (self.whole(), time(self.step_ns));
        if self.is_worth(idle) {
            let parts = self.parts_of(Cause::HostWork);
            let unnamed_ns = parts.iter().find(|part| part.0.because.is_none());
            let unnamed_ns = unnamed_ns.map_or(0, |part| self.a_step(part.1));
            let reasons = match self.reasons(Cause::HostWork) {
                reasons if reasons.is_empty() => "work without a name in the trace".to_owned(),
                reasons if 2 * unnamed_ns > idle => {
                    format!(
                        "{} of it has no name in the trace; the named part is mostly {reasons}",
                        time(unnamed_ns)
                    )
                }
                reasons => reasons,
            };
            let text = format!(
                "the device waits for {} of {whole} of {step} while the host works by itself, without any call for half a \
                 millisecond or more: {reasons}; {}",
                time(idle),
                self.host_work_advice(&parts)
            );
            let evidence = self.stretches(Cause::HostWork);
            return self.ground(Code::HostWork, idle, idle, self.floor_ns, text, evidence);
        }
        // The device is not idle because of the host's own work, but the work delays what comes later.
        let mut own = self.grounds.scene.main_own(&self.all);
        order_by(&mut own, |(ns, stretch)| (Reverse(*ns), stretch.start_ns));
        let all = own.iter().map(|(ns, _)| *ns).fold(0, u64::saturating_add);
        let longest: Vec<(Stretch, u64)> =
            own.iter().take(5).map(|(ns, one)| (*one, *ns)).collect();
        let text = format!(
            "the host works by itself for {} of {whole} of {step}, without any call for half a millisecond or more, \
             which delays what comes later; {}",
            time(self.a_step(all)),
            self.host_work_advice(&longest)
        );
        let evidence = longest
            .iter()
            .map(|one| self.stretch(&one.0, false))
            .collect();
        self.ground(Code::HostWork, idle, idle, self.floor_ns, text, evidence)
    }

    /// Returns the main parts of a cause: the two names with the most time, and the unnamed part; each with its longest known
    /// span and its total time.
    fn parts_of(&self, cause: Cause) -> Vec<(Stretch, u64)> {
        let longest = |because: Option<Because>| {
            let longest = self.idle.longest.get(&cause).into_iter().flatten();
            let longest = longest.filter(|stretch| stretch.because == because);
            longest.max_by_key(|stretch| stretch.duration_ns).copied()
        };
        let of_cause = self.idle.reasons.iter().filter(|(key, _)| key.0 == cause);
        let mut sums: Vec<(Option<Because>, u64)> =
            of_cause.map(|(key, sum)| (Some(key.1), sum.1)).collect();
        let named_ns = sums.iter().map(|sum| sum.1).fold(0, u64::saturating_add);
        let all_ns = self.idle.in_steps.get(&cause).copied().unwrap_or(0);
        sums.sort_by_key(|sum| (u64::MAX - sum.1, sum.0));
        sums.truncate(2);
        sums.push((None, all_ns.saturating_sub(named_ns)));
        let part = |(because, ns): (Option<Because>, u64)| {
            let unknown = Stretch {
                start_ns: i64::MAX,
                duration_ns: 0,
                because,
            };
            (longest(because).unwrap_or(unknown), ns)
        };
        sums.into_iter().filter(|sum| sum.1 > 0).map(part).collect()
    }

    /// Returns advice about spans of the host's own work: data loader workers can take over work on data, but no other part of
    /// a step.
    fn host_work_advice(&self, parts: &[(Stretch, u64)]) -> String {
        const ADVICE: [(Kind, &str); 5] = [
            (
                Kind::Data,
                "workers could do it ahead of the step, or beside it, as far as there are CPU cores for them",
            ),
            (
                Kind::Results,
                "results can be read a step later, or in another thread, while the device does the next step",
            ),
            (
                Kind::Optimizer,
                "workers cannot run the optimizer ahead of the step: a fused form of it, or one with `foreach=True`, where there is one, \
                 leaves the host fewer calls",
            ),
            (
                Kind::Step,
                "workers cannot run the model's own passes ahead of the step: fewer and larger operators leave the host less",
            ),
            (
                Kind::Unknown,
                "if it makes data, workers could do it ahead of the step; if it uses results, it can do so a step later",
            ),
        ];
        let mut sums: BTreeMap<Kind, u64> = BTreeMap::new();
        for (stretch, ns) in parts {
            let kind = self.kind_of(stretch);
            // If a span is shorter than all that are kept as evidence, only its name is known.
            if kind == Kind::Unknown && stretch.start_ns == i64::MAX && !sums.is_empty() {
                continue;
            }
            add(sums.entry(kind).or_default(), *ns);
        }
        let all = sums.values().copied().fold(0, u64::saturating_add);
        let least = all / 4;
        sums.retain(|_, ns| *ns >= least);
        let said = ADVICE.iter().filter(|(kind, _)| sums.contains_key(kind));
        let said: Vec<&str> = said.map(|(_, advice)| *advice).collect();
        if said.is_empty() {
            ADVICE[4].1.to_owned()
        } else {
            said.join("; ")
        }
    }

    fn kind_of(&self, stretch: &Stretch) -> Kind {
        let trace = self.grounds.trace;
        let names = stretch.because.into_iter().flat_map(|because| {
            let inside = because.inside.into_iter().flatten();
            inside.chain([because.name])
        });
        let texts: Vec<&str> = names.map(|name| trace.names.text(name)).collect();
        match texts.iter().find_map(|text| Section::of(text)) {
            Some(Section::Optimizer) => return Kind::Optimizer,
            Some(Section::Reading) => return Kind::Results,
            Some(_) => return Kind::Step,
            None => {}
        }
        if texts.iter().any(|text| prepares_data(text)) {
            return Kind::Data;
        }
        if texts.is_empty() {
            return Kind::Unknown;
        }
        // The next upload shows that the work prepared its data.
        let end = stretch
            .start_ns
            .saturating_add_unsigned(stretch.duration_ns);
        let next = trace.work.partition_point(|work| work.start_ns < end);
        let next = trace.work[next..].iter().filter(|work| self.is_mine(work));
        let mut copies = next.take_while(|work| !matches!(work.what, What::Kernel(_)));
        let is_upload = copies.any(|work| {
            let is_large =
                matches!(work.what, What::Copy { bytes, .. } if bytes >= LEAST_BATCH_BYTES);
            let is_upload = work.what.direction() == Some(Direction::Upload);
            is_large && is_upload && work.is_host_copy()
        });
        if is_upload { Kind::Data } else { Kind::Unknown }
    }
}

/// A smaller upload is not a batch: tables and scalars are computed from earlier results.
const LEAST_BATCH_BYTES: u64 = 256 << 10;

/// The purpose of the host's own work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Data,
    Results,
    Optimizer,
    Step,
    Unknown,
}

/// Returns whether the host waited for every launch, as it does under `CUDA_LAUNCH_BLOCKING=1`.
pub fn is_launch_blocking(trace: &Trace, links: &Links) -> bool {
    let (mut launches, mut waited) = (0, 0);
    for (at, work) in trace.work.iter().enumerate() {
        let Some(call) = links.call_of(at).map(|call| &trace.calls[call]) else {
            continue;
        };
        if call.api.kind == ApiKind::Launch {
            launches += 1;
            waited += usize::from(call.end_ns() >= work.end_ns());
        }
    }
    launches >= 10 && waited * 10 >= launches * 9
}
