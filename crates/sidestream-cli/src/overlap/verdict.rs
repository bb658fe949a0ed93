//! The verdict: which arrangement is best, and whether overlapping is worth it.

use super::Row;
use super::job::Layout;
use super::limit::OverlapLimit;

/// The copies' share of the time of a batch below which hiding them gains nothing.
const NOTHING_TO_HIDE: f64 = 0.02;

/// The best arrangement, and what that means for the user.
pub struct Verdict {
    pub best: usize,
    pub worst: usize,
    pub text: String,
}

impl Verdict {
    pub fn of(count: u32, rows: &[Row], limit: &OverlapLimit) -> Verdict {
        let by_time = |&i: &usize| rows[i].time_ns;
        let best = (0..rows.len()).min_by_key(by_time).unwrap_or(0);
        let worst = (0..rows.len()).max_by_key(by_time).unwrap_or(0);
        let (one, fastest) = (rows[0].time_ns as f64, rows[best].time_ns as f64);
        let saved = 100.0 * (1.0 - fastest / one);
        let set_by = limit.set_by();
        let arrangement = describe(rows[best].layout);
        // Hiding copies can reduce the time at best to that of the kernels one after the other; a time below that comes from
        // kernels side by side.
        let kernels = f64::from(count) * limit.kernel_ns as f64;
        let mut text = if count == 1 {
            "Do not bother: one batch has nothing to overlap with.".to_owned()
        } else if saved < 15.0 && limit.copies_share() < NOTHING_TO_HIDE && fastest < kernels {
            format!(
                "Do not bother: the copies are {} of the time; what streams gain here is kernels \
                 side by side, {}.",
                percent(100.0 * limit.copies_share()),
                percent(saved)
            )
        } else if saved < 5.0 {
            format!(
                "Do not bother: overlap saves {saved:.1} % of the time, as {set_by} take nearly \
                 all of it."
            )
        } else if saved < 15.0 {
            format!(
                "A little: {arrangement}, the job takes {saved:.0} % less time than on one stream. \
                 Most of the time cannot be hidden, as {set_by} take it."
            )
        } else {
            format!(
                "Worth it: {arrangement}, the job is {:.2} times as fast as on one stream.",
                one / fastest
            )
        };
        if count > 1 && saved >= 15.0 && kernels - fastest > one - kernels {
            text += &format!(
                " Most of that is small kernels side by side, not hidden copies: the copies are {} \
                 of the time.",
                percent(100.0 * limit.copies_share())
            );
        }
        let share = limit.total_ns as f64 / fastest;
        if count > 1 && limit.is_set_by_calls() {
            text += " The host's calls set the limit: fewer, larger batches or a graph would gain \
                     more.";
        } else if count > 1 && share < 0.75 && limit.leaves_device_empty() {
            text += " That is still far from the limit, as one kernel fills only a part of the \
                     GPU: larger batches, or more streams, would do better.";
        }
        Verdict { best, worst, text }
    }
}

/// Returns a share of the time for people to read.
fn percent(percent: f64) -> String {
    if percent < 0.05 {
        "under 0.1 %".to_owned()
    } else {
        format!("{percent:.1} %")
    }
}

/// Returns an arrangement as the continuation of a sentence.
pub fn describe(layout: Layout) -> String {
    match layout {
        Layout::Streams(1) => "on one stream".to_owned(),
        Layout::Streams(k) => format!("on {k} streams, a batch on each in turn"),
        Layout::Ring(d) => format!("with a stream for each stage and {d} slots"),
    }
}
