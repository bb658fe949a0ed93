//! Findings about the host: it waits, it is slow, or it has nothing to submit.

use super::view::View;
use super::{Code, Finding, time};
use crate::idle::{Cause, is_loading};
use crate::measure::Links;
use crate::model::{ApiKind, Source, Trace};

/// How many times longer than without it a step took under PyTorch's profiler, where the host is the
/// slower one: 1.1 to 1.4 in the traces of an H200 (examples/traces/truth.json), 1.3 in most.
const SLOWDOWN: f64 = 1.3;
/// No trace had more than this.
const MOST_SLOWDOWN: f64 = 1.5;

/// With so many workers a data loader is taken to load.
const WORKERS: u64 = 4;

impl View<'_> {
    pub fn sync(&self) -> Option<Finding> {
        let idle = self.idle_ns(Cause::SyncInStep);
        let text = format!(
            "after synchronisations the device does nothing for {} of a step of {}, since the host could not run ahead: \
             {}; the rest of the time inside them is the device's own work, and no loss",
            time(idle),
            time(self.step_ns),
            self.reasons(Cause::SyncInStep)
        );
        // Right after a wait the host's caches are cold and the profiler is slow: without it the gap
        // is shorter.
        self.finding(
            Code::SyncInStep,
            idle,
            (0, idle / 4 * 3, idle),
            self.floor_with_host_ns(),
            text,
            self.stretches(Cause::SyncInStep),
        )
    }

    /// All launches were waited for: whatever else the host does cannot be judged.
    pub fn launch_blocking(&self) -> Option<Finding> {
        let idle = self
            .step_ns
            .saturating_sub(self.spans_ns(&self.device.busy));
        let text = format!(
            "every launch was waited for, as with CUDA_LAUNCH_BLOCKING=1, so that the device does nothing for {} of a \
             step of {}: run without it before anything else is measured",
            time(idle),
            time(self.step_ns)
        );
        let causes = [Cause::LaunchBound, Cause::SyncInStep, Cause::BlockingCopy];
        let evidence = causes.map(|cause| self.stretches(cause)).concat();
        self.finding(
            Code::SyncInStep,
            // It is said whatever it costs.
            idle.max(self.step_ns / 50 + 1),
            (0, idle / 4 * 3, idle),
            self.floor_ns,
            text,
            evidence.into_iter().take(5).collect(),
        )
    }

    pub fn launch_bound(&self) -> Option<Finding> {
        let idle = self.idle_ns(Cause::LaunchBound);
        let per_mille = self.grounds.launches.launch_bound_per_mille;
        let mut launches = 0;
        for (at, work) in self.grounds.trace.work.iter().enumerate() {
            let has_call = self.grounds.links.call_of(at).is_some();
            launches += u64::from(has_call && self.is_mine(work) && self.in_steps(work));
        }
        let text = format!(
            "the device waits for the host's launches for {} of a step of {}: {} % of the {} operations a step start \
             with nothing queued behind them; a CUDA graph or `torch.compile` submits many at once",
            time(idle),
            time(self.step_ns),
            per_mille / 10,
            self.each(launches)
        );
        // PyTorch's profiler slows down the host, so that not all of it is there without: a step that is
        // bound by the host is quicker, down to the device's time.
        let without_profiler = |factor: f64| {
            let rest = self.step_ns.saturating_sub(idle) as f64;
            let step = (self.step_ns as f64 / factor).max(rest).max(1.0);
            ((step - rest) / step * self.step_ns as f64) as u64
        };
        let (least, usual) = match self.grounds.trace.source {
            Source::Kineto => (MOST_SLOWDOWN, SLOWDOWN),
            _ => (SLOWDOWN, 1.0),
        };
        let (low, likely) = (without_profiler(least), without_profiler(usual));
        self.finding(
            Code::LaunchBound,
            idle,
            (low.min(idle), likely.min(idle), idle),
            self.floor_ns,
            text,
            self.stretches(Cause::LaunchBound),
        )
    }

    pub fn starved(&self) -> Option<Finding> {
        let idle = self.idle_ns(Cause::HostStarved);
        let reasons = self.idle.reasons.iter();
        let loading: u64 = reasons
            .filter(|((cause, because), _)| {
                let name = self.grounds.trace.names.text(because.name);
                *cause == Cause::HostStarved && is_loading(name)
            })
            .map(|(_, (_, ns))| *ns)
            .fold(0, u64::saturating_add);
        let loading = self.a_step(loading).min(idle);
        let own = idle - loading;
        // Workers load beside the step: it takes what it took otherwise, or what they need.
        let otherwise = self.step_ns.saturating_sub(loading);
        let with_workers = otherwise.max(loading / WORKERS);
        let saved = self.step_ns.saturating_sub(with_workers).min(loading) / 20 * 19;
        let (low, saved) = match self.grounds.has_workers {
            // How long these load is not in the trace, so more of them may save anything.
            true => (0, loading / 2),
            false => (saved / 4, saved),
        };
        let text = match loading * 2 > idle {
            true => format!(
                "the device waits for data for {} of a step of {}: {}; {}",
                time(idle),
                time(self.step_ns),
                self.reasons(Cause::HostStarved),
                match self.grounds.has_workers {
                    true =>
                        "the workers of the data loader do not keep up: more of them, or less work for each batch",
                    false =>
                        "more workers of the data loader, or a queue ahead of the step, load while the device works",
                }
            ),
            false => format!(
                "the device waits for {} of a step of {} while the host does work of its own that the trace does not \
                 show",
                time(idle),
                time(self.step_ns)
            ),
        };
        self.finding(
            Code::HostStarved,
            idle,
            (low, saved.saturating_add(own / 2), idle),
            self.floor_ns,
            text,
            self.stretches(Cause::HostStarved),
        )
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
