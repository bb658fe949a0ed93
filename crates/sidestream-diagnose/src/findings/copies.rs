//! Findings about copies between host and device.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::view::View;
use super::{Code, Evidence, Ground, size, time};
use crate::idle::Cause;
use crate::measure::{Spans, add};
use crate::model::{Direction, Memory, StreamIndex, What, Work};
use crate::sort::order_by;

/// Fewer migrations are negligible.
const LEAST_MIGRATIONS: u64 = 10;
/// A kernel that runs for longer than this between two migrations is computing, not waiting for pages.
const LONGEST_FAULT_NS: u64 = 50_000_000;

/// Sums over copies, per step.
struct CopySum {
    duration_ns: u64,
    /// Time in which copies ran and no kernel did.
    exposed_ns: u64,
    /// Time that the copies would take from and to pinned memory, and the part of it that would be exposed.
    pinned_ns: u64,
    pinned_exposed_ns: u64,
    bytes: u64,
    evidence: Vec<Evidence>,
}

impl View<'_> {
    /// Returns the sum, per step, over the device's host copies that pass a test, with the longest of them.
    fn host_copies(&self, test: impl Fn(&Work) -> bool) -> CopySum {
        let work = &self.grounds.trace.work;
        let is_one = |work: &Work| {
            work.is_host_copy() && test(work) && self.is_mine(work) && self.in_steps(work)
        };
        let places = (0..work.len()).filter(|at| is_one(&work[*at]));
        let (mut duration, mut exposed, mut pinned) = (0u64, 0u64, 0u64);
        let (mut pinned_exposed, mut all_bytes) = (0u64, 0u64);
        for at in places.clone() {
            let copy = &work[at];
            let covered = self.device.kernels.within_ns(copy.start_ns, copy.end_ns());
            let bare_ns = copy.duration_ns.saturating_sub(covered);
            let pinned_ns = self.pinned_ns(copy);
            duration = duration.saturating_add(copy.duration_ns);
            exposed = exposed.saturating_add(bare_ns);
            pinned = pinned.saturating_add(pinned_ns);
            pinned_exposed = pinned_exposed.saturating_add(bare_ns.min(pinned_ns));
            if let What::Copy { bytes, .. } = copy.what {
                all_bytes = all_bytes.saturating_add(bytes);
            }
        }
        CopySum {
            duration_ns: self.a_step(duration),
            exposed_ns: self.a_step(exposed),
            pinned_ns: self.a_step(pinned),
            pinned_exposed_ns: self.a_step(pinned_exposed),
            bytes: self.each(all_bytes),
            evidence: self.longest(places),
        }
    }

    /// Judges migrations of unified memory on page faults: a kernel that touches a page stalls until the page has been moved.
    pub fn unified(&self) -> Option<Ground> {
        let work = &self.grounds.trace.work;
        let (mut count, mut bytes, mut held) = (0, 0u64, Spans::default());
        // The running kernel that ends last, with the migrations during it and the end of the last of them.
        let mut kernel: Option<(usize, i64)> = None;
        let mut under: BTreeMap<usize, u64> = BTreeMap::new();
        for at in (0..work.len()).filter(|at| self.is_mine(&work[*at])) {
            let one = &work[at];
            if let What::Kernel(_) = one.what {
                let ends = kernel.map_or(i64::MIN, |(kernel, _)| work[kernel].end_ns());
                if ends < one.end_ns() {
                    kernel = Some((at, i64::MAX));
                }
            }
            let (What::Copy { bytes: moved, .. }, true) =
                (one.what, one.is_migration() && self.in_steps(one))
            else {
                continue;
            };
            count += 1;
            bytes = bytes.saturating_add(moved);
            let mut from = one.start_ns;
            if let Some((kernel, before)) = kernel.as_mut().filter(|k| work[k.0].end_ns() > from) {
                *under.entry(*kernel).or_default() += 1;
                if before.abs_diff(from) <= LONGEST_FAULT_NS {
                    from = from.min(*before);
                }
                *before = one.end_ns();
            }
            held.push(from, one.end_ns());
        }
        if count < LEAST_MIGRATIONS {
            return None;
        }
        let mut kernels: Vec<(usize, u64)> = under.into_iter().collect();
        order_by(&mut kernels, |(at, count)| (Reverse(*count), *at));
        let inside: u64 = kernels.iter().map(|(_, count)| *count).sum();
        let where_most = match kernels.first() {
            Some((at, most)) => {
                let kernel = self.text(work[*at].name);
                let kernel: String = kernel.chars().take(90).collect();
                format!(
                    "{} of them under kernels, and {most} under one launch of {kernel}",
                    self.each(inside)
                )
            }
            None => "none of them under a kernel".to_owned(),
        };
        let held_ns = self.spans_ns(&held);
        let link_ns = (bytes as f64 / self.grounds.link_gb_per_s) as u64;
        let text = format!(
            "pages of unified memory move when they are touched: {} migrations in {}, of {}, {where_most}; a kernel may stall \
             at each of its own migrations though it counts as busy; all migrations, and the time between those of one kernel, take {} of {}; \
             `cudaMemPrefetchAsync` ahead of the kernel, and ahead of the host's reads, or memory of the device with explicit \
             copies, move as much in {}",
            self.each(count),
            self.whole(),
            size(self.each(bytes)),
            time(held_ns),
            time(self.step_ns),
            time(self.a_step(link_ns)),
        );
        let evidence = if kernels.is_empty() {
            self.longest((0..work.len()).filter(|at| work[*at].is_migration()))
        } else {
            let kernels = kernels.iter().take(5);
            kernels.map(|(at, _)| self.evidence(*at)).collect()
        };
        let floor_ns = self.a_step(link_ns);
        Some(self.ground(
            Code::UnifiedMemory,
            held_ns,
            held_ns,
            floor_ns,
            text,
            evidence,
        ))
    }

    pub fn pageable(&self) -> Option<Ground> {
        let copies = self.host_copies(|work| work.host_memory() == Some(Memory::Pageable));
        if copies.evidence.is_empty() {
            return None;
        }
        let quicker = copies.duration_ns.saturating_sub(copies.pinned_ns);
        let idle = self.idle_ns(Cause::PageableCopy);
        let whole = self.whole();
        let instead = match copies.pinned_ns {
            // Too few bytes for the link speed to matter.
            0..1_000 => "the host does not wait".to_owned(),
            pinned_ns => format!(
                "they take {} instead of {}",
                time(pinned_ns),
                time(copies.duration_ns)
            ),
        };
        let text = format!(
            "copies of {} in {whole} use pageable memory: the host copies the bytes too, and waits; from and to pinned \
             memory (`pin_memory`, with `non_blocking=True`) {instead}",
            size(copies.bytes),
        );
        Some(self.ground(
            Code::PageableCopy,
            copies.exposed_ns.saturating_add(idle),
            copies.exposed_ns.min(quicker).saturating_add(idle),
            self.floor_ns,
            text,
            copies.evidence,
        ))
    }

    pub fn blocking(&self) -> Ground {
        let idle = self.idle_ns(Cause::BlockingCopy);
        let reasons = match self.reasons(Cause::BlockingCopy) {
            reasons if reasons.is_empty() => "the copies are downloads".to_owned(),
            reasons => reasons,
        };
        let advice = "into pinned memory with `non_blocking=True` the host continues, and waits for an event where it reads the \
                      result, a step later";
        let text = match idle {
            // The cost of the blocking is attributed to other causes: those of the host's next actions.
            0 => format!("copies block the host, which cannot run ahead; {advice}"),
            idle => format!(
                "after copies that block the host the device does nothing for {} of {} of {}, since the host could \
                 not run ahead: {reasons}; {advice}",
                time(idle),
                self.whole(),
                time(self.step_ns),
            ),
        };
        let mut evidence = self.stretches(Cause::BlockingCopy);
        if evidence.is_empty() {
            let is_download = |work: &Work| work.what.direction() == Some(Direction::Download);
            evidence = self.host_copies(is_download).evidence;
        }
        self.ground(
            Code::BlockingCopy,
            idle,
            idle,
            self.floor_ns,
            text,
            evidence,
        )
    }

    pub fn compute_stream(&self) -> Option<Ground> {
        // The stream that has most of the kernels.
        let mut kernels: BTreeMap<StreamIndex, u64> = BTreeMap::new();
        for work in &self.grounds.trace.work {
            if let What::Kernel(_) = work.what {
                add(kernels.entry(work.stream).or_default(), work.duration_ns);
            }
        }
        let compute = self.device.streams.iter().map(|load| load.stream);
        let compute = compute.max_by_key(|s| kernels.get(s).copied().unwrap_or(0))?;
        let copies = self.host_copies(|work| work.stream == compute);
        let bare = match copies.exposed_ns {
            0 => String::new(),
            ns => format!(": {} of them is not covered", time(ns)),
        };
        let text = format!(
            "copies of {} in {} are in the stream of the kernels, so neither runs while the other does{bare}; in a \
             stream of their own, a step ahead, they run beside the kernels",
            size(copies.bytes),
            self.whole(),
        );
        if copies.evidence.is_empty() {
            return None;
        }
        // A separate stream helps only copies that do not block the host: those from or to pinned memory. It hides them only as
        // far as there are kernels that run meanwhile.
        let busy_ns = self.spans_ns(&self.device.busy);
        let idle_ns = self.step_ns.saturating_sub(busy_ns);
        let behind_ns = self.spans_ns(&self.device.kernels).saturating_add(idle_ns);
        Some(self.ground(
            Code::CopyOnComputeStream,
            copies.exposed_ns,
            copies.pinned_exposed_ns.min(behind_ns),
            self.floor_ns,
            text,
            copies.evidence,
        ))
    }

    pub fn copy_bound(&self) -> Option<Ground> {
        let uploads = self.spans_ns(&self.uploads);
        let longest = uploads.max(self.spans_ns(&self.downloads));
        if longest / 9 < self.step_ns / 10 {
            return None;
        }
        let copies = self.host_copies(|_| true);
        let text = format!(
            "copies take {} of {} of {}: the bus is the floor, and only fewer bytes help",
            time(longest),
            self.whole(),
            time(self.step_ns)
        );
        Some(self.ground(Code::CopyBound, longest, 0, longest, text, copies.evidence))
    }
}
