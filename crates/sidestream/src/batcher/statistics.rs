//! Statistics of requests: how they ended, and how long each part took.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::histogram::Histogram;

/// The statistics of a [`Batcher`](super::Batcher) since it began.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests that were answered with values.
    pub answered: u64,
    /// Requests refused because the queue was full.
    pub refused_full: u64,
    /// Requests refused because their deadline had passed, or could not have been met.
    pub refused_late: u64,
    /// Accepted requests whose deadline passed before their batch started.
    pub expired: u64,
    /// Requests that were cancelled, or whose caller dropped the answer.
    pub cancelled: u64,
    /// Requests whose batch failed.
    pub failed: u64,
    /// Requests that were still waiting when the batcher was dropped.
    pub dropped: u64,
    /// Requests waiting now.
    pub waiting: u64,
    /// Requests on the device now.
    pub in_flight: u64,
    /// Batches by size, including padding.
    pub batches: BTreeMap<usize, u64>,
    /// Padding rows: computed only to fill a batch up to its size.
    pub padding_rows: u64,
    /// By request: time from its arrival until its batch started.
    pub queue: Histogram,
    /// By batch: time of its upload on the device.
    pub upload: Histogram,
    /// By batch: time of the model on the device.
    pub compute: Histogram,
    /// By batch: time of its download on the device.
    pub download: Histogram,
    /// By answered request: time from its arrival until its answer.
    pub total: Histogram,
}

impl Statistics {
    /// Returns the number of accepted requests that have ended.
    pub fn ended(&self) -> u64 {
        self.answered + self.expired + self.cancelled + self.failed + self.dropped
    }

    /// Returns the mean number of requests in a batch; zero if there was no batch.
    pub fn mean_batch(&self) -> f64 {
        let batches: u64 = self.batches.values().sum();
        let rows: u64 = self
            .batches
            .iter()
            .map(|(n, count)| *n as u64 * count)
            .sum();
        match batches {
            0 => 0.0,
            _ => (rows - self.padding_rows) as f64 / batches as f64,
        }
    }

    /// Returns the statistics as text for Prometheus, with the names of NVIDIA Triton's metrics
    /// (<https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/metrics.html>): times are
    /// sums over requests in microseconds, and `nv_inference_request_summary_us` has quantiles of the total time.
    pub fn prometheus(&self, model: &str) -> String {
        let model = model
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let mut text = String::new();
        let batches: u64 = self.batches.values().sum();
        let rows: u64 = self
            .batches
            .iter()
            .map(|(n, count)| *n as u64 * count)
            .sum();
        let mut one = |name: &str, kind: &str, what: &str, lines: &[(String, u64)]| {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "# HELP {name} {what}\n# TYPE {name} {kind}");
            for (labels, value) in lines {
                let _ = writeln!(text, "{name}{{model=\"{model}\"{labels}}} {value}");
            }
        };
        let plain = |value: u64| [(String::new(), value)];
        one(
            "nv_inference_request_success",
            "counter",
            "Requests that were answered",
            &plain(self.answered),
        );
        let reason = |name: &str, value| (format!(",reason=\"{name}\""), value);
        one(
            "nv_inference_request_failure",
            "counter",
            "Requests that were not answered, by reason",
            &[
                reason("REJECTED", self.refused_full + self.refused_late),
                reason("CANCELED", self.cancelled),
                reason("BACKEND", self.failed),
                reason("OTHER", self.expired + self.dropped),
            ],
        );
        one(
            "nv_inference_count",
            "counter",
            "Rows that were computed for requests",
            &plain(rows - self.padding_rows),
        );
        one(
            "nv_inference_exec_count",
            "counter",
            "Batches that were computed",
            &plain(batches),
        );
        one(
            "nv_inference_pending_request_count",
            "gauge",
            "Requests that wait",
            &plain(self.waiting),
        );
        for (name, what, times) in [
            ("request", "From arrival to answer", &self.total),
            ("queue", "From arrival until the batch started", &self.queue),
            ("compute_input", "Uploads, by batch", &self.upload),
            ("compute_infer", "The model, by batch", &self.compute),
            ("compute_output", "Downloads, by batch", &self.download),
        ] {
            let sum_us = times.sum().as_micros();
            one(
                &format!("nv_inference_{name}_duration_us"),
                "counter",
                what,
                &plain(u64::try_from(sum_us).unwrap_or(u64::MAX)),
            );
        }
        let mut summary = Vec::new();
        for share in ["0.5", "0.9", "0.95", "0.99", "0.999"] {
            let time: Duration = self.total.quantile(share.parse().unwrap_or(1.0));
            let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            summary.push((format!(",quantile=\"{share}\""), us));
        }
        one(
            "nv_inference_request_summary_us",
            "summary",
            "From arrival to answer",
            &summary,
        );
        text
    }
}
