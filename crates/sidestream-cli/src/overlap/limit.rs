//! The least time of the job on its device, and what limits it.

use sidestream::engine::{Call, Limit, Profile, overlap_limit};

use super::job::Job;

/// The limit of a job, with the times of its stages.
pub struct OverlapLimit {
    pub upload_ns: u64,
    pub kernel_ns: u64,
    pub download_ns: u64,
    pub both_ways_ns: u64,
    pub total_ns: u64,
    count: u32,
    parts: Limit,
}

impl OverlapLimit {
    /// Returns the limit from the profile alone.
    pub fn of(profile: &Profile, job: &Job) -> OverlapLimit {
        let (up, down) = (job.upload_bytes(), job.download_bytes());
        let kernel = job.kernel(profile);
        let n = f64::from(job.count);
        let upload_ns = if up > 0 { profile.upload_ns(up) } else { 0.0 };
        let download_ns = if down > 0 {
            profile.download_ns(down)
        } else {
            0.0
        };
        let one_way_ns = upload_ns + download_ns;
        let parts = if up > 0 && down > 0 {
            overlap_limit(profile, job.count.into(), up, &kernel, down)
        } else {
            // One direction only: its copies follow each other, and one kernel comes before the first or after the last.
            let copy = if up > 0 {
                profile.call_ns(Call::UploadAsync { bytes: up })
            } else {
                profile.call_ns(Call::CopyAsync)
            };
            Limit {
                copies_ns: n * one_way_ns + profile.kernel_floor_ns(&kernel),
                kernels_ns: one_way_ns + n * profile.kernel_floor_ns(&kernel),
                calls_ns: n * (copy + profile.call_ns(Call::Launch)),
            }
        };
        let both_ways_ns = match (up, down) {
            (0, _) | (_, 0) => one_way_ns,
            // The first upload and the last download are alone; the copies between them form pairs.
            _ if n > 1.0 => (parts.copies_ns - one_way_ns) / (n - 1.0),
            _ => profile.both_ways_ns(up.max(down)),
        };
        let kernel_ns = profile.kernel_alone_ns(&kernel);
        let stages = [upload_ns, kernel_ns, download_ns, both_ways_ns];
        OverlapLimit::new(job.count, stages, parts)
    }

    /// Returns the limit from the measured times of [`PARTS`](super::measured::PARTS), in nanoseconds per batch.
    pub fn measured(job: &Job, parts_ns: &[f64; 6]) -> OverlapLimit {
        let n = f64::from(job.count);
        let &[
            upload_ns,
            kernel_ns,
            download_ns,
            both_ways_ns,
            kernel_in_a_row_ns,
            calls_ns,
        ] = parts_ns;
        let (download_ns, both_ways_ns) = if job.downloads {
            (download_ns, both_ways_ns)
        } else {
            (0.0, upload_ns)
        };
        let rest_ns = upload_ns + download_ns;
        let parts = Limit {
            copies_ns: rest_ns + (n - 1.0) * both_ways_ns,
            kernels_ns: rest_ns + n * kernel_in_a_row_ns,
            calls_ns: n * calls_ns,
        };
        let stages = [upload_ns, kernel_ns, download_ns, both_ways_ns];
        OverlapLimit::new(job.count, stages, parts)
    }

    fn new(count: u32, stages_ns: [f64; 4], parts: Limit) -> OverlapLimit {
        let [upload_ns, kernel_ns, download_ns, both_ways_ns] =
            stages_ns.map(|ns| ns.round() as u64);
        OverlapLimit {
            upload_ns,
            kernel_ns,
            download_ns,
            both_ways_ns,
            total_ns: parts.ns().round() as u64,
            count,
            parts,
        }
    }

    /// Returns the greatest speedup over running stage after stage, which the job approaches with more batches.
    pub fn in_the_long_run(&self) -> f64 {
        let one = self.upload_ns + self.kernel_ns + self.download_ns;
        let least = self.both_ways_ns.max(self.kernel_ns).max(1);
        one as f64 / least as f64
    }

    /// Returns the copies' share of the time of one batch, stage after stage.
    pub fn copies_share(&self) -> f64 {
        let copies = (self.upload_ns + self.download_ns) as f64;
        copies / (copies + self.kernel_ns as f64)
    }

    /// Returns whether the host's calls set the limit.
    pub fn is_set_by_calls(&self) -> bool {
        let Limit {
            copies_ns,
            kernels_ns,
            calls_ns,
        } = self.parts;
        self.count > 1 && calls_ns > copies_ns.max(kernels_ns)
    }

    /// Returns what sets the limit.
    pub fn set_by(&self) -> &'static str {
        if self.count == 1 {
            "the three stages of the one batch"
        } else if self.is_set_by_calls() {
            "the host's calls"
        } else if self.parts.copies_ns >= self.parts.kernels_ns {
            "the copies"
        } else {
            "the kernels"
        }
    }

    /// Returns whether one kernel leaves so much of the device unused that several concurrent kernels are much faster.
    pub fn leaves_device_empty(&self) -> bool {
        let rest_ns = (self.upload_ns + self.download_ns) as f64;
        let alone_ns = self.kernel_ns as f64;
        let full_ns = (self.parts.kernels_ns - rest_ns) / f64::from(self.count);
        alone_ns > 2.0 * full_ns
    }
}
