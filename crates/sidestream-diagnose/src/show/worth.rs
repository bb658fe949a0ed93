//! What a finding is worth, in words that text and page share.

use crate::findings::{Finding, Saving, time};
use crate::report::Report;

/// What is rounded to nothing is not said as a share.
const SHOWN: f64 = 0.0005;

/// Whether a share of a step is more than rounds to nothing.
pub fn has_share(finding: &Finding) -> bool {
    finding.share >= SHOWN
}

/// The range of a saving.
pub fn range(saving: Saving) -> String {
    match saving.low {
        0 => format!("between nothing and {}", time(saving.high)),
        low => format!("between {} and {}", time(low), time(saving.high)),
    }
}

/// Whether a change was tried, and only what no trace says decides what it gains.
pub fn is_open(finding: &Finding) -> bool {
    finding.saving_ns.likely == 0 && finding.saving_ns.high > 0 && !finding.changes.is_empty()
}

/// Whether the changes that remove this were tried and gain next to nothing, so that its advice is of no use by itself.
pub fn is_worth_nothing(report: &Report, finding: &Finding) -> bool {
    let is_replayed = report.replay.as_ref().is_ok_and(|replay| replay.is_ok());
    let is_blocking = report
        .warnings
        .iter()
        .any(|warning| warning.code == "LAUNCH_BLOCKING");
    finding.saving_ns.high == 0 && finding.code.is_tried() && is_replayed && !is_blocking
}
