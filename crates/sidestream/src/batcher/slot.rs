//! A slot: a thread with a stream, which runs one batch at a time.

use std::ops::Deref;
use std::sync::Arc;

use super::Error;
use super::answer::Row;
use super::queue::{Queue, Request};
use super::requests::Took;
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

/// A way to compute batches: by separate calls, or as a graph.
pub(super) trait Body<I: Pod, O: Pod> {
    fn compute(&mut self, batch: &Batch<'_, I, O>) -> Result<Computed<O>, Failed>;
}

/// A batch to compute.
pub(super) struct Batch<'a, I, O: Pod> {
    pub stream: &'a Stream,
    pub requests: &'a [Request<I, O>],
    /// The number of rows, including the padding.
    pub size: usize,
    /// The number of rows of the largest batch.
    pub largest: usize,
    /// The number of values of a row, and of its result.
    pub row: usize,
    pub result: usize,
    /// The number of the batch in its slot.
    pub index: u64,
    pub is_timed: bool,
}

/// A completed batch.
pub(super) struct Computed<O: Pod> {
    pub results: Results<O>,
    /// The timed events around the upload, the model and the download, or around the whole batch; empty if the batch is
    /// not timed.
    pub points: Vec<TimedEvent>,
}

/// The results of a batch, row after row.
pub(super) enum Results<O: Pod> {
    /// In the pinned memory into which they were downloaded.
    Pinned(Pinned<O>),
    /// Copied from memory that the next batch reuses.
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
    /// Writes the rows of the requests, and zeros after them.
    pub(super) fn fill(&self, rows: &mut [I]) {
        for (at, request) in rows.chunks_exact_mut(self.row).zip(self.requests) {
            at.copy_from_slice(&request.values);
        }
        rows[self.requests.len() * self.row..self.size * self.row].fill(I::zeroed());
    }

    pub(super) fn point(&self, points: &mut Vec<TimedEvent>) -> Result<(), error::Error> {
        if self.is_timed {
            points.push(self.stream.record_timed()?);
        }
        Ok(())
    }

    pub(super) fn failed(
        &self,
        stage: &'static str,
    ) -> impl Fn(error::Error) -> Failed + use<I, O> {
        let index = self.index;
        move |error| Failed::new(stage, index, error)
    }
}

impl<I: Pod + Send + Sync, O: Pod + Send + Sync> Slot<I, O> {
    pub(super) fn run(mut self, mut body: impl Body<I, O>) {
        while let Some(batch) = self.queue.take(self.class) {
            self.answer(batch.keys, batch.slot, &mut body);
            self.queue.over(self.class, batch.slot, batch.due);
        }
    }

    /// Runs a batch and answers its requests. If the batch fails, runs each request alone.
    fn answer(&mut self, batch: Vec<Request<I, O>>, slot: usize, body: &mut impl Body<I, O>) {
        let mut failed = match self.compute(&batch, body) {
            Ok(computed) => return self.give(batch, slot, None, computed),
            Err(failed) => Arc::new(failed),
        };
        let is_one = batch.len() == 1;
        for (number, request) in batch.into_iter().enumerate() {
            if !is_one && !is_lost(&failed) {
                match self.compute(std::slice::from_ref(&request), body) {
                    Ok(computed) => {
                        self.give(vec![request], slot, Some(number), computed);
                        continue;
                    }
                    Err(alone) => failed = Arc::new(alone),
                }
            }
            if is_lost(&failed) {
                // The device is lost and runs no more batches.
                self.queue.close(false);
            }
            // Counted before the caller gets the answer, here and in `give`, so that a caller finds its request in the
            // statistics.
            self.queue.failed();
            let answer = Err(Error::Failed(Arc::clone(&failed)));
            request.cell.answer(answer);
        }
    }

    fn compute(
        &mut self,
        requests: &[Request<I, O>],
        body: &mut impl Body<I, O>,
    ) -> Result<(Results<O>, Took), Failed> {
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
        let took = took(&computed.points).map_err(batch.failed("device"))?;
        Ok((computed.results, took))
    }

    fn give(
        &self,
        batch: Vec<Request<I, O>>,
        slot: usize,
        alone: Option<usize>,
        (results, took): (Results<O>, Took),
    ) {
        self.queue.answered(self.class, slot, alone, took);
        let results = Arc::new(results);
        for (number, request) in batch.into_iter().enumerate() {
            let at = number * self.result..(number + 1) * self.result;
            let row = Row::new(Arc::clone(&results), at);
            request.cell.answer(Ok(row));
        }
    }
}

fn is_lost(failed: &Failed) -> bool {
    matches!(failed.cause, Cause::Runtime(error::Error::DeviceLost(_)))
}

fn took(points: &[TimedEvent]) -> Result<Took, error::Error> {
    let mut times = Vec::with_capacity(3);
    for ends in points.windows(2) {
        times.push(ends[1].elapsed_since(&ends[0])?);
    }
    Ok(match times[..] {
        [upload, compute, download] => Took::Parts([upload, compute, download]),
        [whole] => Took::Whole(whole),
        _ => Took::Unknown,
    })
}
