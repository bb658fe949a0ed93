//! A lower bound on the time of an overlapped pipeline, from the profile alone.

use super::profile::Profile;
use super::work::{Call, KernelCost};

/// The lower bounds on the time of the overlap job; the largest applies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// The bound from the copy engines and their bus, ns.
    pub copies_ns: f64,
    /// The bound from the multiprocessors, ns.
    pub kernels_ns: f64,
    /// The bound from the host calls, ns.
    pub calls_ns: f64,
}

impl Limit {
    /// Returns the limit: the largest of the bounds, ns.
    pub fn ns(&self) -> f64 {
        self.copies_ns.max(self.kernels_ns).max(self.calls_ns)
    }
}

/// Returns a lower bound on the time of `items` items, each an upload, a kernel and a download, on any arrangement of
/// streams, if one host thread makes the calls: a copy, a launch and a copy for every item.
///
/// Why it is a bound:
/// - **Copies.** During the first upload no download can run, and during the last download no upload is
///   left. In the time between, each direction has `items - 1` copies to make. If x is the time in which both directions
///   run, then work that takes 1 alone takes 1/s there (s at least one half), so every pair takes at least the shorter
///   copy stretched by 1/s plus the excess of the longer one: [`Profile::both_ways_ns`].
/// - **Kernels.** No kernel starts before the first upload has ended, the last download starts after the last kernel has
///   ended, and n kernels of this cost take at least n times the time per kernel on a device that is kept full
///   ([`Profile::kernel_floor_ns`]): throughput grows with the number of slots in use, so it is greatest with all.
/// - **Calls** are made one after the other.
pub fn overlap_limit(
    profile: &Profile,
    items: u64,
    upload_bytes: u64,
    kernel: &KernelCost,
    download_bytes: u64,
) -> Limit {
    if items == 0 {
        return Limit {
            copies_ns: 0.0,
            kernels_ns: 0.0,
            calls_ns: 0.0,
        };
    }
    let n = items as f64;
    let (up, down) = (
        profile.upload_ns(upload_bytes),
        profile.download_ns(download_bytes),
    );
    let both = profile.pair_ns(upload_bytes, download_bytes);
    Limit {
        copies_ns: up + (n - 1.0) * both + down,
        kernels_ns: up + n * profile.kernel_floor_ns(kernel) + down,
        calls_ns: n
            * (profile.call_ns(Call::UploadAsync {
                bytes: upload_bytes,
            }) + profile.call_ns(Call::Launch)
                + profile.call_ns(Call::CopyAsync)),
    }
}
