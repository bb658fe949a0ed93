//! Compares a report with what is known about its job.

use sidestream_diagnose::{Change, Code, Report};

use crate::fault::{Fault, SyncBy};
use crate::job::{GRAPHS, Job};
use crate::run::Ran;

/// A smaller part of a step does not count as a gain.
pub const GAIN: f64 = 0.05;
/// A cause counts as right if it gains at least this part of the best cause's gain.
const TIE: f64 = 0.9;

/// What is known about a job: its gains, in nanoseconds per step.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// The step of the unmodified job, without the profiler.
    pub step_ns: f64,
    /// The gain of removing one fault, with its cause.
    pub gains: Vec<(&'static str, f64)>,
    /// The gain of removing all faults.
    pub all_ns: f64,
    /// The gain with its kernels as graphs, also where no launches were planted.
    pub graphs_ns: f64,
}

/// The parts of a report that are judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// The first cause; `None` where nothing is to be gained, or none was found.
    pub code: Option<&'static str>,
    /// Whether the report says that nothing is to be gained.
    pub is_nothing: bool,
    /// The gain of the first cause: the least, the likely, the most.
    pub saving_ns: (f64, f64, f64),
    /// The text of the first cause, with that of its evidence.
    pub words: String,
    /// The time of a step of the trace.
    pub step_ns: f64,
    /// The largest gain that is reported for a change which any program can make, as a part of the step.
    pub most: f64,
}

/// A job, a report, and whether they agree.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The seed of the job.
    pub seed: u64,
    /// Number of planted faults.
    pub planted: usize,
    /// The fault whose removal gains most; `None` where nothing is to be gained.
    pub right: Option<&'static str>,
    /// The report.
    pub said: Said,
    /// Whether the first cause of the report is right; only for jobs with something to gain.
    pub is_right: Option<bool>,
    /// Whether the range of a right first cause contains the true gain, and its width as a part of the step.
    pub range: Option<(bool, f64)>,
    /// Whether the text has the name of the range, if host work is the right cause.
    pub is_named: Option<bool>,
    /// Whether the report says that nothing is to be gained where 5 % could be gained.
    pub is_falsely_nothing: bool,
    /// Whether the report promises 5 % where nothing was planted.
    pub is_falsely_promised: bool,
}

impl Truth {
    /// Simulates the job without each of its faults, without all, and with graphs.
    pub fn of(job: &Job) -> Truth {
        let step_ns = job.run(0).step_ns;
        let gain = |without| step_ns - job.run(without).step_ns;
        let faults = job.faults.iter().enumerate();
        let gains = faults.map(|(at, fault)| (fault.cause(), gain(1 << at)));
        Truth {
            step_ns,
            gains: gains.collect(),
            all_ns: gain(!GRAPHS),
            graphs_ns: gain(GRAPHS),
        }
    }
}

/// Returns whether a change assumes that kernels do not depend on each other, which no trace shows.
fn is_supposed(change: &Change) -> bool {
    let change = change.to_string();
    change.starts_with("second-stream") || change.starts_with("pipeline")
}

impl Said {
    /// Extracts the judged parts of a report; no other function reads reports. `ran` is the recorded run: where the report
    /// found other steps than those of the job, or none, its times are scaled as parts of the whole time.
    pub fn of(report: &Report, job: &Job, ran: &Ran) -> Said {
        let step_ns = ran.step_ns;
        let periods_ns = report.steps.periods_ns();
        let sum_ns: u64 = periods_ns.iter().sum();
        let unit_ns = match periods_ns.len() {
            0 => report
                .devices
                .iter()
                .map(|d| d.0.span_ns)
                .max()
                .unwrap_or(0) as f64,
            many if many.abs_diff(job.steps) <= 1 => step_ns,
            many => sum_ns as f64 / many as f64,
        };
        let of_step = |ns: u64| ns as f64 / unit_ns.max(1.0) * step_ns;
        let mut codes = report.findings.iter().map(|f| f.code);
        let is_nothing = codes.any(|code| code == Code::NothingToGain);
        let first = report.findings.iter().find(|f| !f.code.is_aside());
        let first = first.filter(|_| !is_nothing);
        let saving = first.map_or((0.0, 0.0, 0.0), |f| {
            let s = f.saving_ns;
            (of_step(s.low), of_step(s.likely), of_step(s.high))
        });
        let mut most = saving.1 / step_ns.max(1.0);
        if let Ok(replay) = &report.replay {
            let predictions = replay.predictions.iter();
            let predictions = predictions.filter(|p| !p.changes.iter().any(is_supposed));
            let least = predictions.map(|p| p.likely_ns).min();
            let least = least.unwrap_or(replay.unprofiled_ns) as f64;
            most = most.max(1.0 - least / replay.unprofiled_ns.max(1) as f64);
        }
        Said {
            code: first.map(|f| f.code.as_str()),
            is_nothing,
            saving_ns: saving,
            words: first.map_or(String::new(), |f| {
                let evidence = f.evidence.iter();
                let evidence = evidence.flat_map(|e| [&e.what].into_iter().chain(&e.operators));
                let words: Vec<&str> = evidence.map(String::as_str).collect();
                format!("{} {}", f.text, words.join(" "))
            }),
            step_ns,
            most,
        }
    }
}

/// Returns the codes of findings that name a fault.
fn names(fault: &Fault) -> &'static [&'static str] {
    match fault {
        Fault::Loader { .. } => &["HOST_STARVED"],
        Fault::HostWork { .. } => &["HOST_WORK", "HOST_STARVED"],
        Fault::PageableUpload { .. } => &["PAGEABLE_COPY"],
        Fault::UploadOnComputeStream { .. } => &["COPY_ON_COMPUTE_STREAM"],
        Fault::MisplacedWaits { .. } => &["STREAM_WAIT"],
        Fault::Download { is_pinned, .. } => match is_pinned {
            true => &["BLOCKING_COPY", "SYNC_IN_STEP"],
            false => &["BLOCKING_COPY", "PAGEABLE_COPY"],
        },
        // The report may name the synchronisation after the copy of four bytes, or the copy itself.
        Fault::Sync {
            how: SyncBy::Item | SyncBy::PinnedItem,
            ..
        } => &["SYNC_IN_STEP", "BLOCKING_COPY"],
        Fault::Sync { .. } => &["SYNC_IN_STEP"],
        Fault::Launches { .. } => &["LAUNCH_BOUND"],
    }
}

impl Judged {
    /// Compares the report with the truth.
    pub fn of(job: &Job, truth: &Truth, said: Said) -> Judged {
        let is_worth = |ns: f64| ns >= GAIN * truth.step_ns;
        let best = truth.gains.iter().map(|(_, ns)| *ns).fold(0.0, f64::max);
        let has_gain = is_worth(best) || is_worth(truth.all_ns);
        // Where only all faults together gain, each of them is right.
        let least = if is_worth(best) { TIE * best } else { f64::MIN };
        let right = truth.gains.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let right = right.map(|(cause, _)| *cause).filter(|_| has_gain);
        let named = |names: &[&str]| said.code.is_some_and(|code| names.contains(&code));
        let planted: Vec<usize> = (0..job.faults.len())
            .filter(|at| named(names(&job.faults[*at])))
            .collect();
        let best_of = planted.iter().map(|at| truth.gains[*at].1);
        let mut true_ns: Vec<f64> = best_of.filter(|ns| *ns >= least).collect();
        if !true_ns.is_empty() && planted.len() > 1 {
            // A cause may refer to one of the faults that it names, or to all of them.
            let faults = planted.iter().fold(0, |bits, at| bits | 1 << at);
            true_ns.push(truth.step_ns - job.run(faults).step_ns);
        }
        if named(&["LAUNCH_BOUND"]) && truth.graphs_ns >= least {
            true_ns.push(truth.graphs_ns);
        }
        let is_right = !true_ns.is_empty();
        let (low, _, high) = said.saving_ns;
        let holds = |ns: &f64| low - 1e3 <= *ns && *ns <= high + 1e3;
        Judged {
            seed: job.seed,
            planted: job.faults.len(),
            right,
            is_right: right.map(|_| is_right),
            range: (is_right && has_gain).then(|| {
                let width = (high - low) / said.step_ns.max(1.0);
                (true_ns.iter().any(holds), width)
            }),
            is_named: job.faults.iter().zip(&truth.gains).find_map(
                |(fault, (_, ns))| match fault {
                    Fault::HostWork { name, .. } if *ns >= least && is_right => {
                        named(names(fault)).then(|| said.words.contains(name))
                    }
                    _ => None,
                },
            ),
            is_falsely_nothing: has_gain && said.is_nothing,
            is_falsely_promised: job.faults.is_empty() && said.most >= GAIN,
            said,
        }
    }
}
