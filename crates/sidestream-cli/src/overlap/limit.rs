//! The least time of the job on its device, and what sets it.

use sidestream::engine::{Limit, Profile, overlap_limit};

use super::job::Job;

/// The limit of a job, with the times of its stages.
pub struct OverlapLimit {
    pub upload_ns: u64,
    pub kernel_ns: u64,
    pub download_ns: u64,
    pub both_ways_ns: u64,
    pub total_ns: u64,
    parts: Limit,
}

impl OverlapLimit {
    /// The limit from the profile alone.
    pub fn of(profile: &Profile, job: &Job) -> OverlapLimit {
        let (bytes, kernel) = (job.batch_bytes, job.kernel(profile));
        let parts = overlap_limit(profile, job.count.into(), bytes, &kernel, bytes);
        let whole = |ns: f64| ns.round() as u64;
        OverlapLimit {
            upload_ns: whole(profile.upload_ns(bytes)),
            kernel_ns: whole(profile.kernel_alone_ns(&kernel)),
            download_ns: whole(profile.download_ns(bytes)),
            both_ways_ns: whole(profile.both_ways_ns(bytes)),
            total_ns: whole(parts.ns()),
            parts,
        }
    }

    /// What sets the limit, as the start of a sentence.
    pub fn binds(&self) -> &'static str {
        let Limit {
            copies_ns,
            kernels_ns,
            calls_ns,
        } = self.parts;
        if copies_ns >= kernels_ns.max(calls_ns) {
            "The copies bind"
        } else if kernels_ns >= calls_ns {
            "The kernels bind"
        } else {
            "The host's calls bind"
        }
    }

    /// What sets the limit, beside its figure.
    pub fn why(&self) -> &'static str {
        match self.binds() {
            "The copies bind" => "set by the copies",
            "The kernels bind" => "set by the kernels",
            _ => "set by the host's calls",
        }
    }
}
