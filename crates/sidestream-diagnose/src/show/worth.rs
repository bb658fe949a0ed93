//! Describes the gain of a finding, in words that text and page share.

use crate::findings::{Finding, Saving, time};
use crate::report::Report;

/// A share that rounds to nothing is not shown.
const SHOWN: f64 = 0.0005;

/// Returns whether a share of a step does not round to nothing.
pub fn has_share(finding: &Finding) -> bool {
    finding.share >= SHOWN
}

/// Returns the range of a saving.
pub fn range(saving: Saving) -> String {
    match saving.low {
        0 => format!("between nothing and {}", time(saving.high)),
        low => format!("between {} and {}", time(low), time(saving.high)),
    }
}

/// Returns whether a change was tried, and its gain depends only on what no trace shows.
pub fn is_open(finding: &Finding) -> bool {
    finding.saving_ns.likely == 0 && finding.saving_ns.high > 0 && !finding.changes.is_empty()
}

/// Returns whether the changes that remove the cause of this finding were tried and gain next to nothing, so that its advice
/// does not help by itself.
pub fn is_worth_nothing(report: &Report, finding: &Finding) -> bool {
    let is_replayed = report.replay.as_ref().is_ok_and(|replay| replay.is_ok());
    let is_blocking = report
        .warnings
        .iter()
        .any(|warning| warning.code == "LAUNCH_BLOCKING");
    finding.saving_ns.high == 0 && finding.code.is_tried() && is_replayed && !is_blocking
}
