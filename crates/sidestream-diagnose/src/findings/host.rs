//! What the trace says about the host: it waits, it is slow, or it has nothing to submit.

use super::view::View;
use super::{Code, Ground, time};
use crate::idle::{Cause, is_loading};
use crate::measure::{Links, Spans};
use crate::model::{ApiKind, Trace};

impl View<'_> {
    pub fn sync(&self) -> Ground {
        let idle = self.idle_ns(Cause::SyncInStep);
        let reasons = self.reasons(Cause::SyncInStep);
        let reasons = match reasons.is_empty() {
            true => "the host's own work behind them comes later".to_owned(),
            false => reasons,
        };
        let text = match idle {
            // What it costs comes with other causes, of what the host does next.
            0 => "the host waits in synchronisations and cannot run ahead, so that what it does behind them comes later"
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

    /// All launches were waited for: whatever else the host does cannot be judged.
    pub fn launch_blocking(&self) -> Ground {
        let idle = self
            .step_ns
            .saturating_sub(self.spans_ns(&self.device.busy));
        let text = format!(
            "every launch was waited for, as with CUDA_LAUNCH_BLOCKING=1, so that the device does nothing for {} of \
             {} of {}: run without it before anything else is measured",
            time(idle),
            self.whole(),
            time(self.step_ns)
        );
        let causes = [Cause::LaunchBound, Cause::SyncInStep, Cause::BlockingCopy];
        let evidence = causes.map(|cause| self.stretches(cause)).concat();
        let evidence = evidence.into_iter().take(5).collect();
        let mut ground = self.ground(Code::SyncInStep, idle, idle, self.floor_ns, text, evidence);
        // It is said whatever it costs.
        ground.is_worth = true;
        ground
    }

    /// The range that has most of the idle time by itself, if that is half of it or more, and launches are what most of it is for.
    fn mostly_in(&self) -> String {
        let all = Cause::ALL.map(|cause| self.idle_ns(cause));
        let all = all.into_iter().fold(0, u64::saturating_add);
        if self.idle_ns(Cause::LaunchBound) < all / 2 {
            return String::new();
        }
        let (trace, ranges) = (self.grounds.trace, self.grounds.ranges);
        let named = ranges.nodes.iter().filter(|node| !node.is_step);
        let Some(most) = named.max_by_key(|node| node.own.idle_ns) else {
            return String::new();
        };
        let all = ranges.nodes.iter().map(|node| node.own.idle_ns);
        let all = all.fold(ranges.outside.idle_ns, u64::saturating_add);
        let share = most.own.idle_ns as f64 / all.max(1) as f64;
        match share {
            0.5.. => format!(
                "; {:.0} % of all idle time lies in {}",
                100.0 * share,
                trace.names.text(most.name)
            ),
            _ => String::new(),
        }
    }

    pub fn launch_bound(&self) -> Ground {
        let idle = self.idle_ns(Cause::LaunchBound);
        let per_mille = self.grounds.launches.launch_bound_per_mille;
        let mut launches = 0;
        for (at, work) in self.grounds.trace.work.iter().enumerate() {
            let has_call = self.grounds.links.call_of(at).is_some();
            launches += u64::from(has_call && self.is_mine(work) && self.in_steps(work));
        }
        let text = format!(
            "the device waits for the host's launches for {} of {} of {}: {} % of the {} operations in it start \
             with nothing queued behind them{}; a CUDA graph or `torch.compile` submits many at once",
            time(idle),
            self.whole(),
            time(self.step_ns),
            per_mille / 10,
            self.each(launches),
            self.mostly_in()
        );
        let mut evidence = self.stretches(Cause::LaunchBound);
        if evidence.is_empty() {
            let trace = self.grounds.trace;
            evidence = self.longest_calls(|at| trace.calls[at].api.kind == ApiKind::Launch);
        }
        self.ground(Code::LaunchBound, idle, idle, self.floor_ns, text, evidence)
    }

    pub fn starved(&self) -> Ground {
        let idle = self.idle_ns(Cause::HostStarved);
        let text = format!(
            "the device waits for data for {} of {} of {}: {}; {}",
            time(idle),
            self.whole(),
            time(self.step_ns),
            self.reasons(Cause::HostStarved),
            match self.grounds.has_workers {
                true =>
                    "the workers of the data loader do not keep up: more of them, or less work for each batch",
                false =>
                    "more workers of the data loader, or a queue ahead of the step, load while the device works",
            }
        );
        let evidence = self.stretches(Cause::HostStarved);
        // Without its waits the host is ahead, also of what the device has no time for now.
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
        let mut evidence = self.stretches(Cause::HostWork);
        let advice = "workers could do it ahead of the step, or beside it, as far as there are processors for them";
        let (whole, step) = (self.whole(), time(self.step_ns));
        let mut text = match self.reasons(Cause::HostWork) {
            reasons if reasons.is_empty() => "work that the trace does not name".to_owned(),
            reasons => reasons,
        };
        text = format!(
            "the device waits for {} of {whole} of {step} while the host works by itself, without any call for half a \
             millisecond or more: {text}; {advice}",
            time(idle)
        );
        if !self.is_worth(idle) {
            // The device does not wait for it at once.
            let mut own = self.grounds.scene.main_own(&self.all);
            own.sort_by_key(|(ns, stretch)| (u64::MAX - ns, stretch.start_ns));
            let all = own.iter().map(|(ns, _)| *ns).fold(0, u64::saturating_add);
            text = format!(
                "the host works by itself for {} of {whole} of {step}, without any call for half a millisecond or more, \
                 which holds up what comes later; {advice}",
                time(self.a_step(all))
            );
            let longest = own.iter().take(5);
            evidence = longest
                .map(|(_, stretch)| self.stretch(stretch, false))
                .collect();
        }
        self.ground(Code::HostWork, idle, idle, self.floor_ns, text, evidence)
    }
}

/// Whether the host waited for every launch, as it does under `CUDA_LAUNCH_BLOCKING=1`.
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
