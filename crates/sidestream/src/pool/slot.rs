//! A slot: a thread with a stream, which runs one batch after the other.

use std::sync::Arc;
use std::time::Instant;

use super::Error;
use super::answer::Row;
use super::queue::{Queue, Request};
use crate::buffer::{DeviceBuf, Pinned, Pod, View, ViewMut};
use crate::error;
use crate::event::TimedEvent;
use crate::pipeline::{Cause, Failed, guarded};
use crate::stream::{Rows, Stream};

pub(super) struct Slot<I, O: Pod> {
    pub queue: Arc<Queue<I, O>>,
    pub class: usize,
    pub number: usize,
    pub stream: Stream,
    pub row: usize,
    pub result: usize,
    pub is_timed: bool,
    pub batches: u64,
}

/// Which batch a model is called for.
pub struct At<'a> {
    stream: &'a Stream,
    requests: usize,
    size: usize,
}

impl At<'_> {
    /// Where the batch goes. The rows are there when what is put here runs, and the results are downloaded behind it.
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// How many requests it has; the rows behind them are zeros.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// How many rows it has.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// The memory of a slot, for its largest batch.
struct Memory<I: Pod, O: Pod> {
    /// On the host, while no batch has it.
    rows: Option<Pinned<I>>,
    x: DeviceBuf<I>,
    y: DeviceBuf<O>,
}

impl<I: Pod + Send + Sync, O: Pod + Send + Sync> Slot<I, O> {
    pub fn run<F>(mut self, mut model: F)
    where
        F: FnMut(&At<'_>, View<'_, I>, ViewMut<'_, O>) -> Result<(), error::Error>,
    {
        let mut memory = None;
        while let Some(batch) = self.queue.take(self.class) {
            let left = Instant::now();
            self.answer(batch, &mut memory, &mut model);
            self.queue.over(self.class, left);
        }
    }

    /// Runs a batch and answers its requests. If it fails, each of them alone.
    fn answer<F>(
        &mut self,
        batch: Vec<Request<I, O>>,
        memory: &mut Option<Memory<I, O>>,
        model: &mut F,
    ) where
        F: FnMut(&At<'_>, View<'_, I>, ViewMut<'_, O>) -> Result<(), error::Error>,
    {
        if batch.is_empty() {
            return;
        }
        match self.compute(&batch, memory, model) {
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
                        self.answer(vec![request], memory, model);
                    }
                }
            }
        }
    }

    fn compute<F>(
        &mut self,
        batch: &[Request<I, O>],
        memory: &mut Option<Memory<I, O>>,
        model: &mut F,
    ) -> Result<Pinned<O>, Failed>
    where
        F: FnMut(&At<'_>, View<'_, I>, ViewMut<'_, O>) -> Result<(), error::Error>,
    {
        let index = self.batches;
        self.batches += 1;
        let requests = batch.len();
        let size = self.queue.rule.size_of(requests);
        let failed =
            |stage: &'static str| move |error: error::Error| Failed::new(stage, index, error);

        let slot = match memory {
            Some(slot) => slot,
            None => memory.insert(self.memory().map_err(failed("slot"))?),
        };
        let mut rows = match slot.rows.take() {
            Some(rows) => rows,
            // It went with a batch that failed.
            None => {
                let len = self.queue.rule.largest() * self.row;
                self.stream.device().pinned(len).map_err(failed("slot"))?
            }
        };
        for (at, request) in rows.chunks_exact_mut(self.row).zip(batch) {
            at.copy_from_slice(&request.values);
        }
        rows[requests * self.row..size * self.row].fill(I::zeroed());

        let mut points = Vec::new();
        self.point(&mut points).map_err(failed("upload"))?;
        let part = one(size * self.row);
        let x = slot.x.slice_mut(..size * self.row);
        let sent = self.stream.upload_rows(rows, part, x, part);
        let sent = match sent {
            Ok(sent) => sent,
            Err(refused) => {
                let (error, rows) = (refused.error, refused.value);
                slot.rows = rows;
                return Err(Failed::new("upload", index, error));
            }
        };
        self.point(&mut points).map_err(failed("upload"))?;
        let at = At {
            stream: &self.stream,
            requests,
            size,
        };
        let (x, y) = (&slot.x, &mut slot.y);
        let ran = guarded("model", index, || {
            model(
                &at,
                x.slice(..size * self.row),
                y.slice_mut(..size * self.result),
            )
        });
        // Also if it failed: what it was given goes its way, and the memory comes back.
        let computed = ran.and_then(|()| {
            self.point(&mut points).map_err(failed("download"))?;
            let len = requests * self.result;
            let home = self
                .stream
                .device()
                .pinned(len)
                .map_err(failed("download"))?;
            let back = self.stream.download(slot.y.slice(..len), home);
            let back = back.map_err(|refused| Failed::new("download", index, refused.error))?;
            self.point(&mut points).map_err(failed("download"))?;
            back.synchronize().map_err(failed("device"))
        });
        slot.rows = Some(sent.synchronize().map_err(failed("device"))?);
        let results = computed?;
        self.note(requests, size, &points)
            .map_err(failed("device"))?;
        Ok(results)
    }

    fn memory(&self) -> Result<Memory<I, O>, error::Error> {
        let largest = self.queue.rule.largest();
        Ok(Memory {
            rows: None,
            x: self.stream.alloc(largest * self.row)?,
            y: self.stream.alloc(largest * self.result)?,
        })
    }

    fn point(&self, points: &mut Vec<TimedEvent>) -> Result<(), error::Error> {
        if self.is_timed {
            points.push(self.stream.record_timed()?);
        }
        Ok(())
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
            let kept = [
                &mut statistics.upload,
                &mut statistics.compute,
                &mut statistics.download,
            ];
            for (kept, time) in kept.into_iter().zip(times) {
                if let Some(time) = time {
                    kept.add(time);
                }
            }
        });
        Ok(())
    }

    fn give(&self, batch: Vec<Request<I, O>>, results: Pinned<O>) {
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

fn one(len: usize) -> Rows {
    Rows {
        len,
        count: 1,
        pitch: len,
    }
}
