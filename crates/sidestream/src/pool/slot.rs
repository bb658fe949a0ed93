//! A slot: a thread with a stream, which runs one batch after the other.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use super::Error;
use super::answer::Row;
use super::queue::{Queue, Request};
use crate::buffer::{Pinned, Pod};
use crate::error;
use crate::event::TimedEvent;
use crate::pipeline::{Cause, Failed};
use crate::stream::Stream;

pub(super) struct Slot<I, O: Pod> {
    pub queue: Arc<Queue<I, O>>,
    pub class: usize,
    pub stream: Stream,
    pub row: usize,
    pub result: usize,
    pub is_timed: bool,
    pub batches: u64,
}

/// How a batch is computed: by calls, or as a graph.
pub(super) trait Body<I: Pod, O: Pod> {
    fn compute(&mut self, batch: &Batch<'_, I, O>) -> Result<Computed<O>, Failed>;
}

/// What is to be computed, and where.
pub(super) struct Batch<'a, I, O: Pod> {
    pub stream: &'a Stream,
    pub requests: &'a [Request<I, O>],
    /// Rows, with those that fill it up.
    pub size: usize,
    /// Rows of the largest batch.
    pub largest: usize,
    /// Values of a row, and of its result.
    pub row: usize,
    pub result: usize,
    /// Of its slot.
    pub index: u64,
    pub is_timed: bool,
}

/// A batch that is over.
pub(super) struct Computed<O: Pod> {
    pub results: Results<O>,
    /// Around its upload, the model and its download; or around the whole. None if it is not timed.
    pub points: Vec<TimedEvent>,
}

/// The results of a batch, row after row.
pub(super) enum Results<O: Pod> {
    /// As they came from the device.
    Pinned(Pinned<O>),
    /// Out of memory that the next batch uses again.
    Copied(Box<[O]>),
}

impl<O: Pod> Deref for Results<O> {
    type Target = [O];

    fn deref(&self) -> &[O] {
        match self {
            Results::Pinned(values) => values,
            Results::Copied(values) => values,
        }
    }
}

impl<I: Pod, O: Pod> Batch<'_, I, O> {
    /// Writes the rows of the requests, and zeros behind them.
    pub fn fill(&self, rows: &mut [I]) {
        for (at, request) in rows.chunks_exact_mut(self.row).zip(self.requests) {
            at.copy_from_slice(&request.values);
        }
        rows[self.requests.len() * self.row..self.size * self.row].fill(I::zeroed());
    }

    pub fn point(&self, points: &mut Vec<TimedEvent>) -> Result<(), error::Error> {
        if self.is_timed {
            points.push(self.stream.record_timed()?);
        }
        Ok(())
    }

    pub fn failed(&self, stage: &'static str) -> impl Fn(error::Error) -> Failed + use<I, O> {
        let index = self.index;
        move |error| Failed::new(stage, index, error)
    }
}

impl<I: Pod + Send + Sync, O: Pod + Send + Sync> Slot<I, O> {
    pub fn run(mut self, mut body: impl Body<I, O>) {
        while let Some(batch) = self.queue.take(self.class) {
            let left = Instant::now();
            self.answer(batch, &mut body);
            self.queue.over(self.class, left);
        }
    }

    /// Runs a batch and answers its requests. If it fails, each of them alone.
    fn answer(&mut self, batch: Vec<Request<I, O>>, body: &mut impl Body<I, O>) {
        if batch.is_empty() {
            return;
        }
        match self.compute(&batch, body) {
            Ok(results) => self.give(batch, results),
            Err(failed) => {
                let is_lost = matches!(failed.cause, Cause::Runtime(error::Error::DeviceLost(_)));
                if is_lost {
                    // Nothing runs there any more.
                    self.queue.close(false);
                }
                if is_lost || batch.len() == 1 {
                    self.fail(batch, failed);
                } else {
                    for request in batch {
                        self.answer(vec![request], body);
                    }
                }
            }
        }
    }

    fn compute(
        &mut self,
        requests: &[Request<I, O>],
        body: &mut impl Body<I, O>,
    ) -> Result<Results<O>, Failed> {
        let batch = Batch {
            stream: &self.stream,
            requests,
            size: self.queue.rule.size_of(requests.len()),
            largest: self.queue.rule.largest(),
            row: self.row,
            result: self.result,
            index: self.batches,
            is_timed: self.is_timed,
        };
        self.batches += 1;
        let computed = body.compute(&batch)?;
        self.note(requests.len(), batch.size, &computed.points)
            .map_err(batch.failed("device"))?;
        Ok(computed.results)
    }

    fn note(
        &self,
        requests: usize,
        size: usize,
        points: &[TimedEvent],
    ) -> Result<(), error::Error> {
        let mut times = [None; 3];
        for (time, ends) in times.iter_mut().zip(points.windows(2)) {
            *time = Some(ends[1].elapsed_since(&ends[0])?);
        }
        self.queue.note(|statistics| {
            *statistics.batches.entry(size).or_default() += 1;
            statistics.padding_rows += (size - requests) as u64;
            match times {
                [Some(upload), Some(compute), Some(download)] => {
                    statistics.upload.add(upload);
                    statistics.compute.add(compute);
                    statistics.download.add(download);
                }
                [Some(whole), ..] => statistics.compute.add(whole),
                _ => {}
            }
        });
        Ok(())
    }

    fn give(&self, batch: Vec<Request<I, O>>, results: Results<O>) {
        let results = Arc::new(results);
        let all = batch.len() as u64;
        let mut totals = Vec::with_capacity(batch.len());
        for (number, request) in batch.into_iter().enumerate() {
            let at = number * self.result..(number + 1) * self.result;
            let row = Row::new(Arc::clone(&results), at);
            if request.cell.answer(Ok(row)) {
                totals.push(request.arrived.elapsed());
            }
        }
        self.queue.note(|statistics| {
            statistics.in_flight -= all;
            statistics.answered += totals.len() as u64;
            statistics.cancelled += all - totals.len() as u64;
            for total in totals {
                statistics.total.add(total);
            }
        });
    }

    fn fail(&self, batch: Vec<Request<I, O>>, failed: Failed) {
        let failed = Arc::new(failed);
        let all = batch.len() as u64;
        let mut told = 0;
        for request in batch {
            let answer = Err(Error::Failed(Arc::clone(&failed)));
            told += u64::from(request.cell.answer(answer));
        }
        self.queue.note(|statistics| {
            statistics.in_flight -= all;
            statistics.failed += told;
            statistics.cancelled += all - told;
        });
    }
}
