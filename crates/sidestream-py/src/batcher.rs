//! When the batches of a Python batcher leave, and what it counts: `sidestream::pool`'s rule and words.

use std::collections::BTreeMap;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sidestream::pool::{Histogram, Leave, Rule, Statistics};

/// Counts of a batcher, of which Python makes the requests. As a value it is a copy.
#[pyclass(module = "sidestream._sidestream")]
#[derive(Clone, Default)]
pub struct BatcherStatistics(Statistics);

/// When a batch leaves, which size it has, and how long a request would take.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct BatchRule(Rule);

#[pymethods]
impl BatchRule {
    #[new]
    fn new(sizes: Vec<usize>, max_delay_s: f64) -> PyResult<BatchRule> {
        let rule = Rule::new(&sizes, seconds(max_delay_s));
        rule.map(BatchRule).map_err(PyValueError::new_err)
    }

    #[getter]
    fn sizes(&self) -> Vec<usize> {
        self.0.sizes().to_vec()
    }

    /// In how many seconds a batch leaves: 0 is now, none if nobody waits.
    fn due(&self, waiting: usize, oldest_s: f64, are_more_to_come: bool) -> Option<f64> {
        match self.0.leave(waiting, seconds(oldest_s), are_more_to_come) {
            Leave::Now(_) => Some(0.0),
            Leave::In(left) => Some(left.as_secs_f64()),
            Leave::Empty => None,
        }
    }

    fn size_of(&self, requests: usize) -> usize {
        self.0.size_of(requests)
    }

    /// In how many seconds a request would be answered that came now.
    fn expected(&self, waiting: usize, in_flight: usize, slots: usize, batch_s: f64) -> f64 {
        let expected = self.0.expected(waiting, in_flight, slots, seconds(batch_s));
        expected.as_secs_f64()
    }
}

/// Times, by size.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct Times(Histogram);

fn seconds(seconds: f64) -> Duration {
    // A clock that went back is no time at all.
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[pymethods]
impl BatcherStatistics {
    #[new]
    fn new() -> BatcherStatistics {
        BatcherStatistics::default()
    }

    /// Counts requests that ended, or were not taken.
    fn count(&mut self, what: &str, number: u64) -> PyResult<()> {
        let counts = &mut self.0;
        let counted = match what {
            "refused_full" => &mut counts.refused_full,
            "refused_late" => &mut counts.refused_late,
            "expired" => &mut counts.expired,
            "cancelled" => &mut counts.cancelled,
            "failed" => &mut counts.failed,
            "dropped" => &mut counts.dropped,
            _ => return Err(PyValueError::new_err(format!("{what} is not counted"))),
        };
        *counted += number;
        Ok(())
    }

    /// Notes that the requests of a batch, which arrived at these times, left now.
    fn left(&mut self, arrived_s: Vec<f64>, now_s: f64) {
        for arrived in arrived_s {
            self.0.queue.add(seconds(now_s - arrived));
        }
    }

    /// Notes a batch that was computed, and that its requests, which arrived at these times, are answered now.
    fn batch(&mut self, size: usize, device_ms: [f64; 3], arrived_s: Vec<f64>, now_s: f64) {
        let counts = &mut self.0;
        *counts.batches.entry(size).or_default() += 1;
        counts.padding_rows += size.saturating_sub(arrived_s.len()) as u64;
        let parts = [
            &mut counts.upload,
            &mut counts.compute,
            &mut counts.download,
        ];
        for (part, ms) in parts.into_iter().zip(device_ms) {
            part.add(seconds(ms / 1e3));
        }
        counts.answered += arrived_s.len() as u64;
        for arrived in arrived_s {
            counts.total.add(seconds(now_s - arrived));
        }
    }

    /// A copy, with what waits and what is with the device now.
    fn now(&self, waiting: u64, in_flight: u64) -> BatcherStatistics {
        let mut copy = self.clone();
        (copy.0.waiting, copy.0.in_flight) = (waiting, in_flight);
        copy
    }

    #[getter]
    fn answered(&self) -> u64 {
        self.0.answered
    }

    #[getter]
    fn refused_full(&self) -> u64 {
        self.0.refused_full
    }

    #[getter]
    fn refused_late(&self) -> u64 {
        self.0.refused_late
    }

    #[getter]
    fn expired(&self) -> u64 {
        self.0.expired
    }

    #[getter]
    fn cancelled(&self) -> u64 {
        self.0.cancelled
    }

    #[getter]
    fn failed(&self) -> u64 {
        self.0.failed
    }

    #[getter]
    fn dropped(&self) -> u64 {
        self.0.dropped
    }

    #[getter]
    fn waiting(&self) -> u64 {
        self.0.waiting
    }

    #[getter]
    fn in_flight(&self) -> u64 {
        self.0.in_flight
    }

    #[getter]
    fn padding_rows(&self) -> u64 {
        self.0.padding_rows
    }

    #[getter]
    fn batches(&self) -> BTreeMap<usize, u64> {
        self.0.batches.clone()
    }

    #[getter]
    fn mean_batch(&self) -> f64 {
        self.0.mean_batch()
    }

    #[getter]
    fn queue(&self) -> Times {
        Times(self.0.queue.clone())
    }

    #[getter]
    fn upload(&self) -> Times {
        Times(self.0.upload.clone())
    }

    #[getter]
    fn compute(&self) -> Times {
        Times(self.0.compute.clone())
    }

    #[getter]
    fn download(&self) -> Times {
        Times(self.0.download.clone())
    }

    #[getter]
    fn total(&self) -> Times {
        Times(self.0.total.clone())
    }

    #[pyo3(signature = (model="model"))]
    fn prometheus(&self, model: &str) -> String {
        self.0.prometheus(model)
    }

    fn __repr__(&self) -> String {
        let Statistics {
            answered, waiting, ..
        } = self.0;
        format!(
            "<BatcherStatistics: {answered} answered in batches of {:.1}, {waiting} wait>",
            self.0.mean_batch()
        )
    }
}

#[pymethods]
impl Times {
    #[getter]
    fn count(&self) -> u64 {
        self.0.count()
    }

    #[getter]
    fn sum_s(&self) -> f64 {
        self.0.sum().as_secs_f64()
    }

    #[getter]
    fn longest_s(&self) -> f64 {
        self.0.longest().as_secs_f64()
    }

    fn quantile_s(&self, share: f64) -> PyResult<f64> {
        match (0.0..=1.0).contains(&share) {
            true => Ok(self.0.quantile(share).as_secs_f64()),
            false => Err(PyValueError::new_err(format!(
                "share is {share}; give one from 0 to 1, such as 0.99"
            ))),
        }
    }

    fn __repr__(&self) -> String {
        format!(
            "<Times: {} of them, median {:?}, 99 % up to {:?}>",
            self.0.count(),
            self.0.quantile(0.5),
            self.0.quantile(0.99)
        )
    }
}
