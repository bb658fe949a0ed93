//! A job: a loop of steps on a device, its faults, and how it is recorded.

use sidestream::engine::Profile;

use crate::draw::Draw;
use crate::fault::{Fault, SyncBy};
use crate::run::{Ran, run};

/// A loop of steps, drawn from a seed.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its seed.
    pub seed: u64,
    /// The faults that were planted.
    pub faults: Vec<Fault>,
    pub(crate) profile: Profile,
    pub(crate) steps: usize,
    pub(crate) host: Host,
    /// The kernels of a step.
    pub(crate) kernels: Vec<Kernel>,
    /// Kernels that run in another stream, concurrently with the others.
    pub(crate) beside: Vec<Kernel>,
    /// Whether the kernels of a step are graphs already.
    pub(crate) has_graphs: bool,
    /// One of this many steps has additional kernels; 0 for none.
    pub(crate) long_every: usize,
    /// Bytes of a batch that is prefetched without a fault.
    pub(crate) prefetched_bytes: u64,
    /// Bytes of a small batch, in the stream of the kernels.
    pub(crate) small_bytes: u64,
    /// Time of a loader that causes no stall; 0 for none.
    pub(crate) quick_loader_ns: f64,
    /// A harmless `.item()` is in one of this many steps; 0 for none.
    pub(crate) logs_every: usize,
    /// Additional time of the first step on the host.
    pub(crate) set_up_ns: f64,
    pub(crate) recorder: Recorder,
    /// Time that a batch from a worker costs the thread that takes it over, and the time for each of its bytes.
    pub(crate) take_over_ns: f64,
    pub(crate) take_over_gb_s: f64,
}

/// Times of the host's thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    /// Time of an operator, besides its call.
    pub operator_ns: f64,
    /// Time between two operators.
    pub gap_ns: f64,
    /// Time before the first kernel of a step and after the last, in parts.
    pub own_ns: f64,
    pub own_pieces: usize,
    /// The spread of all these.
    pub spread: f64,
    /// The spread of the kernels' times.
    pub kernel_spread: f64,
}

/// A kernel of each step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub ns: f64,
    pub share: f64,
    pub is_small: bool,
}

impl Kernel {
    pub fn large(ns: f64, share: f64) -> Kernel {
        let is_small = false;
        Kernel {
            ns,
            share,
            is_small,
        }
    }

    pub fn small(ns: f64) -> Kernel {
        let (share, is_small) = (0.1, true);
        Kernel {
            ns,
            share,
            is_small,
        }
    }
}

/// How steps are marked in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marks {
    /// By the profiler's schedule.
    Profiler,
    /// By a range of the program.
    Range,
    /// Not at all.
    Nothing,
}

/// How a run is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorder {
    pub marks: Marks,
    /// Time that the profiler adds to the host's.
    pub operator_ns: f64,
    pub submission_ns: f64,
    pub call_ns: f64,
    /// Whether times are cut to whole microseconds.
    pub is_whole_us: bool,
    /// The part of the rows that is lost.
    pub lost: f64,
    /// Whether waits of streams have rows, together with the records for which they wait.
    pub has_waits: bool,
}

/// What is removed from a run is one bit for each of its faults, and this bit for launches one by one, also where they were
/// not planted.
pub(crate) const GRAPHS: u32 = 1 << 31;

/// Names that people give to host work.
const NAMES: [&str; 8] = [
    "augment",
    "preprocess",
    "collate",
    "load_batch",
    "tokenize",
    "postprocess",
    "metrics",
    "render",
];

impl Job {
    /// Draws the job of a seed. A tenth of all jobs have no fault, and nothing else to gain; half have two or three.
    pub fn drawn(seed: u64) -> Job {
        let mut draw = Draw::new(seed);
        let kind = draw.unit();
        let faults = match kind {
            _ if kind < 0.1 => 0,
            _ if kind < 0.5 => 1,
            _ if kind < 0.8 => 2,
            _ => 3,
        };
        loop {
            let job = Job::drawn_with(seed, &mut draw, faults);
            if faults > 0 || job.is_sound() {
                return job;
            }
        }
    }

    /// Runs the job without the profiler, and without some of its faults.
    pub(crate) fn run(&self, without: u32) -> Ran {
        run(self, without, None)
    }

    /// Runs the unmodified job with the profiler.
    pub fn recorded(&self) -> Ran {
        run(self, 0, Some(self.recorder))
    }

    /// Returns whether a graph gains less than 3 %: the job is bound by its device.
    fn is_sound(&self) -> bool {
        let [as_it_is, with_graphs] = [0, GRAPHS].map(|without| self.run(without).step_ns);
        let busy_ns: f64 = self.kernels.iter().map(|k| k.ns).sum();
        as_it_is - with_graphs < 0.03 * as_it_is && as_it_is < 1.6 * busy_ns
    }

    fn drawn_with(seed: u64, draw: &mut Draw, count: usize) -> Job {
        let profile = profile(draw);
        let kinds = kinds(draw, count);
        let device_ns = match () {
            () if kinds.contains(&8) => draw.sized(3e5, 2.5e6),
            () if kinds.contains(&7) => draw.sized(4e5, 6e6),
            () => draw.sized(5e5, 2e7),
        };
        let is_sync = kinds.contains(&7);
        let mut host = Host {
            operator_ns: draw.between(3e3, 1.2e4),
            gap_ns: draw.between(1e3, 1e4),
            own_ns: 0.0,
            own_pieces: 1 + draw.below(4),
            spread: draw.between(0.03, 0.2),
            kernel_spread: draw.between(0.003, 0.04),
        };
        let most = if is_sync { 0.5 } else { 0.2 };
        host.own_ns = (draw.between(0.01, most) * device_ns).min(host.own_pieces as f64 * 3.5e5);
        let launch_ns = host.operator_ns + host.gap_ns + profile.launch_ns;
        let recorder = recorder(draw);
        // The host is ahead of the device, also with the profiler.
        let slow_ns = launch_ns + 2.0 * recorder.operator_ns + recorder.submission_ns;
        let most = (draw.between(0.15, 0.6) * device_ns / slow_ns) as usize;
        let many = most.clamp(2, 40);
        let mut kernels = kernels(draw, many, device_ns);
        let beside = draw.maybe(0.2, |draw| {
            kernels.iter_mut().for_each(|k| k.share = 0.6);
            let ns = draw.between(0.2, 0.8) * device_ns / 4.0;
            vec![Kernel::large(ns, 0.3); 4]
        });
        let faults = kinds.iter();
        let faults = faults.map(|kind| fault(draw, *kind, device_ns, launch_ns, &profile));
        let mut faults: Vec<Fault> = faults.collect();
        let take_over_gb_s = draw.sized(1.0, 2.0);
        slow_down(&mut faults, take_over_gb_s);
        for fault in &faults {
            if let Fault::Launches { count, kernel_ns } = fault {
                let at = draw.below(kernels.len() + 1);
                kernels.splice(at..at, vec![Kernel::small(*kernel_ns as f64); *count]);
            }
        }
        let has_upload = kinds.iter().any(|kind| (3..=5).contains(kind));
        let has_loader = kinds.iter().any(|kind| *kind < 2);
        let longest = faults.iter().map(|fault| match fault {
            Fault::Loader { every, .. } | Fault::HostWork { every, .. } => *every,
            _ => 1,
        });
        let longest = longest.max().unwrap_or(1);
        Job {
            seed,
            steps: (8 + draw.below(13)).max(4 * longest + 2),
            host,
            kernels,
            beside,
            has_graphs: !kinds.contains(&8) && draw.happens(0.15),
            long_every: draw.maybe(0.25, |draw| 2 + draw.below(4)),
            prefetched_bytes: draw
                .maybe(if has_upload || has_loader { 0.0 } else { 0.3 }, |draw| {
                    (draw.between(0.1, 0.7) * device_ns * profile.link_gb_s) as u64
                }),
            small_bytes: draw.maybe(if has_upload { 0.0 } else { 0.5 }, |draw| {
                draw.sized(4e3, 0.01 * device_ns * profile.link_gb_s) as u64
            }),
            quick_loader_ns: draw.maybe(if has_loader { 0.0 } else { 0.5 }, |draw| {
                draw.between(0.005, 0.05) * device_ns
            }),
            logs_every: draw.maybe(0.2, |draw| 5 + draw.below(6)),
            set_up_ns: draw.maybe(0.3, |draw| draw.sized(1e6, 4e8)),
            recorder,
            take_over_ns: draw.sized(4e4, 2e5),
            take_over_gb_s,
            faults,
            profile,
        }
    }
}

/// Draws the kinds of faults, before their sizes: the length of a step depends on the kinds.
fn kinds(draw: &mut Draw, count: usize) -> Vec<usize> {
    let mut kinds: Vec<usize> = Vec::new();
    while kinds.len() < count {
        let kind = draw.below(9);
        // A step has one upload, and one loader.
        let slot = |kind| match kind {
            0 | 1 => 0,
            3..=5 => 3,
            kind => kind,
        };
        if kinds.iter().all(|other| slot(*other) != slot(kind)) {
            kinds.push(kind);
        }
    }
    kinds
}

/// Draws `many` kernels, which together take a device `device_ns`.
fn kernels(draw: &mut Draw, many: usize, device_ns: f64) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = (0..many)
        .map(|_| Kernel::large(draw.sized(0.3, 3.0), 1.0))
        .collect();
    let all: f64 = kernels.iter().map(|k| k.ns).sum();
    kernels.iter_mut().for_each(|k| k.ns *= device_ns / all);
    kernels
}

/// Draws a device that differs from the model's: a known profile with changed figures.
fn profile(draw: &mut Draw) -> Profile {
    let name = draw.of(&Profile::NAMES);
    let mut profile = Profile::named(name).unwrap_or_else(Profile::h200);
    let figures = [
        &mut profile.link_gb_s,
        &mut profile.pageable_upload_gb_s,
        &mut profile.pageable_download_gb_s,
        &mut profile.submit_kernel_ns,
        &mut profile.submit_ns,
        &mut profile.engine_hop_ns,
        &mut profile.kernel_gap_ns,
        &mut profile.event_hop_ns,
        &mut profile.host_return_ns,
        &mut profile.launch_ns,
        &mut profile.copy_ns,
        &mut profile.record_ns,
        &mut profile.wait_ns,
        &mut profile.sync_ns,
        &mut profile.graph_launch_ns,
    ];
    for figure in figures {
        *figure *= draw.sized(0.6, 1.6);
    }
    profile.pageable_upload_gb_s = profile.pageable_upload_gb_s.min(0.7 * profile.link_gb_s);
    profile.pageable_download_gb_s = profile.pageable_download_gb_s.min(0.7 * profile.link_gb_s);
    profile.graph_gap_ns = 0.6 * profile.kernel_gap_ns;
    profile
}

/// Lengthens the loading of large batches to a multiple of the cost of handing them over.
fn slow_down(faults: &mut [Fault], take_over_gb_s: f64) {
    let bytes: u64 = faults.iter().map(Fault::uploaded_bytes).sum();
    let least = (3.0 * bytes as f64 / take_over_gb_s) as u64;
    for fault in faults {
        if let Fault::Loader { ns, .. } = fault {
            *ns = (*ns).max(least);
        }
    }
}

fn recorder(draw: &mut Draw) -> Recorder {
    Recorder {
        marks: match draw.unit() {
            x if x < 0.8 => Marks::Profiler,
            x if x < 0.9 => Marks::Range,
            _ => Marks::Nothing,
        },
        operator_ns: 1_200.0 * draw.sized(0.4, 2.0),
        submission_ns: 2_000.0 * draw.sized(0.4, 2.0),
        call_ns: 300.0 * draw.sized(0.4, 2.0),
        is_whole_us: draw.happens(0.3),
        lost: draw.maybe(0.15, |draw| draw.sized(0.001, 0.02)),
        has_waits: draw.happens(0.5),
    }
}

fn fault(draw: &mut Draw, kind: usize, device_ns: f64, launch_ns: f64, profile: &Profile) -> Fault {
    let mut ns = |low, high| draw.sized(low, high) * device_ns;
    match kind {
        0 => Fault::Loader {
            ns: ns(0.4, 3.0) as u64,
            every: 1,
            has_workers: draw.happens(0.2),
        },
        1 => Fault::Loader {
            ns: ns(0.8, 8.0) as u64,
            every: 2 + draw.below(4),
            has_workers: draw.happens(0.2),
        },
        2 => Fault::HostWork {
            ns: ns(0.3, 3.0) as u64,
            every: if draw.happens(0.75) {
                1
            } else {
                2 + draw.below(3)
            },
            name: draw.of(&NAMES),
            operators: if draw.happens(0.5) {
                0
            } else {
                2 + draw.below(5)
            },
            is_last: draw.happens(0.4),
        },
        3 => Fault::PageableUpload {
            bytes: (ns(0.1, 1.5) * profile.pageable_upload_gb_s) as u64,
            is_aside: draw.happens(0.25),
        },
        4 => Fault::UploadOnComputeStream {
            bytes: (ns(0.08, 1.2) * profile.link_gb_s) as u64,
        },
        5 => Fault::MisplacedWaits {
            bytes: (ns(0.08, 1.2) * profile.link_gb_s) as u64,
        },
        6 => {
            let is_pinned = draw.happens(0.4);
            let ns = draw.sized(0.08, 1.0) * device_ns;
            let gb_s = if is_pinned {
                profile.link_gb_s
            } else {
                profile.pageable_download_gb_s
            };
            Fault::Download {
                bytes: (ns * gb_s) as u64,
                is_pinned,
                is_aside: draw.happens(0.25),
            }
        }
        7 => Fault::Sync {
            how: draw.of(&[
                SyncBy::Item,
                SyncBy::PinnedItem,
                SyncBy::Device,
                SyncBy::Stream,
                SyncBy::Free,
            ]),
            times: draw.of(&[1, 1, 2, 4, 8]),
        },
        _ => Fault::Launches {
            count: ((ns(0.4, 2.5) / launch_ns) as usize).clamp(8, 160),
            kernel_ns: draw.sized(1_200.0, 5_000.0) as u64,
        },
    }
}
