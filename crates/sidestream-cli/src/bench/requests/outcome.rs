//! The results of one way: how many requests were answered, refused or dropped, and their latencies.

use serde_json::{Value, json};

use super::Way;

#[derive(Clone, Default, Debug)]
pub struct Outcome {
    pub sent: u64,
    pub answered: u64,
    /// Requests answered before their deadline; all answered requests if there is no deadline.
    pub in_time: u64,
    /// Refused because the queue was full.
    pub full: u64,
    /// Refused because the answer would have come too late.
    pub late: u64,
    /// Accepted, but not computed because their deadline had passed.
    pub expired: u64,
    pub failed: u64,
    /// Latencies of the answered requests, from when each was to arrive, ascending.
    pub latencies_ns: Vec<u64>,
    /// How long the load and its answers lasted: see `Load::lasted_ns`.
    pub time_ns: u64,
    pub batches: u64,
}

impl Outcome {
    /// Records an answered request.
    pub fn answer(&mut self, latency_ns: u64, deadline_ns: Option<u64>) {
        self.answered += 1;
        self.in_time += u64::from(deadline_ns.is_none_or(|deadline| latency_ns <= deadline));
        self.latencies_ns.push(latency_ns);
    }

    /// Adds the results of another part of the callers.
    pub fn add(&mut self, part: Outcome) {
        self.sent += part.sent;
        self.answered += part.answered;
        self.in_time += part.in_time;
        self.full += part.full;
        self.latencies_ns.extend(part.latencies_ns);
    }

    /// Ends the recording; sorts the latencies.
    pub fn end(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
        self.latencies_ns.sort_unstable();
    }

    /// Returns the latency that this share of the answers did not exceed; 0 without answers.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = (share * self.latencies_ns.len() as f64).ceil() as usize;
        let at = rank.max(1) - 1;
        self.latencies_ns.get(at).copied().unwrap_or(0)
    }

    pub fn mean_batch(&self) -> f64 {
        self.answered as f64 / self.batches.max(1) as f64
    }

    /// Returns the answers per second.
    pub fn per_s(&self) -> f64 {
        self.answered as f64 * 1e9 / self.time_ns.max(1) as f64
    }

    /// Returns the answers in time per second.
    fn goodput_per_s(&self) -> f64 {
        self.in_time as f64 * 1e9 / self.time_ns.max(1) as f64
    }

    pub fn in_words(&self, is_closed: bool) -> String {
        let p99 = us(self.quantile_ns(0.99));
        if is_closed {
            format!("{:.0} requests a second and a p99 of {p99}", self.per_s())
        } else {
            format!(
                "{} of {} requests in time and a p99 of {p99}",
                self.in_time, self.sent
            )
        }
    }

    pub fn as_json(&self, way: &str, slots: usize, largest: Option<usize>) -> Value {
        json!({"way": way, "streams": slots, "max_batch": largest, "sent": self.sent,
               "answered": self.answered, "in_time": self.in_time, "refused_full": self.full,
               "refused_late": self.late, "expired": self.expired, "failed": self.failed,
               "p50_ns": self.quantile_ns(0.5), "p95_ns": self.quantile_ns(0.95),
               "p99_ns": self.quantile_ns(0.99), "p999_ns": self.quantile_ns(0.999),
               "time_ns": self.time_ns, "per_s": self.per_s(),
               "goodput_per_s": self.goodput_per_s(),
               "batches": self.batches, "mean_batch": self.mean_batch()})
    }
}

/// Returns the results of all ways as a table.
pub fn table(outcomes: &[(Way, Outcome)], is_closed: bool) -> String {
    let mut out = format!(
        "  {:9} {:>10} {:>10} {:>10} {:>10} {:>11} {:>8} {:>7}\n",
        "way",
        "p50",
        "p95",
        "p99",
        "p99.9",
        if is_closed { "requests/s" } else { "goodput/s" },
        "refused",
        "a batch"
    );
    for (way, of) in outcomes {
        let per_s = if is_closed {
            of.per_s()
        } else {
            of.goodput_per_s()
        };
        out += &format!(
            "  {:9} {:>10} {:>10} {:>10} {:>10} {per_s:>11.0} {:>8} {:>7.1}\n",
            way.name(),
            us(of.quantile_ns(0.5)),
            us(of.quantile_ns(0.95)),
            us(of.quantile_ns(0.99)),
            us(of.quantile_ns(0.999)),
            of.full + of.late + of.expired,
            of.mean_batch(),
        );
        if of.failed > 0 {
            out += &format!("  {:9} {} failed\n", "", of.failed);
        }
    }
    out
}

fn us(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}
