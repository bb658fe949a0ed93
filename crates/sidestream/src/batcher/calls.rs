//! A batch as calls on the stream of its slot: an upload, the calls of the model, and a download.

use super::slot::{Batch, Body, Computed, Results};
use crate::buffer::{DeviceBuf, Pinned, Pod, View, ViewMut};
use crate::error;
use crate::pipeline::{Failed, guarded};
use crate::stream::{Rows, Stream};

/// The batch for which a model is called.
pub struct At<'a> {
    stream: &'a Stream,
    requests: usize,
    size: usize,
}

impl At<'_> {
    /// Returns the stream of the batch. Work enqueued in it runs after the rows are uploaded, and the results are downloaded
    /// after that work.
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// Returns the number of requests in the batch; the rows after them are zeros.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Returns the number of rows of the batch.
    pub fn size(&self) -> usize {
        self.size
    }
}

pub(super) struct Calls<I: Pod, O: Pod, F> {
    pub model: F,
    /// The memory of the slot, allocated with the first batch.
    pub memory: Option<Memory<I, O>>,
}

/// The memory of a slot, for its largest batch.
pub(super) struct Memory<I: Pod, O: Pod> {
    /// The rows on the host, while no batch uses them.
    rows: Option<Pinned<I>>,
    x: DeviceBuf<I>,
    y: DeviceBuf<O>,
}

impl<I: Pod, O: Pod> Memory<I, O> {
    fn of(batch: &Batch<'_, I, O>) -> Result<Memory<I, O>, error::Error> {
        Ok(Memory {
            rows: None,
            x: batch.stream.alloc(batch.largest * batch.row)?,
            y: batch.stream.alloc(batch.largest * batch.result)?,
        })
    }
}

impl<I, O, F> Body<I, O> for Calls<I, O, F>
where
    I: Pod + Send + Sync,
    O: Pod + Send + Sync,
    F: FnMut(&At<'_>, View<'_, I>, ViewMut<'_, O>) -> Result<(), error::Error>,
{
    fn compute(&mut self, batch: &Batch<'_, I, O>) -> Result<Computed<O>, Failed> {
        let &Batch {
            stream,
            size,
            largest,
            row,
            result,
            index,
            ..
        } = batch;
        let slot = match &mut self.memory {
            Some(slot) => slot,
            None => {
                let made = Memory::of(batch).map_err(batch.failed("slot"))?;
                self.memory.insert(made)
            }
        };
        let mut rows = match slot.rows.take() {
            Some(rows) => rows,
            // The memory was lost with a batch that failed.
            None => {
                let pinned = stream.device().pinned(largest * row);
                pinned.map_err(batch.failed("slot"))?
            }
        };
        batch.fill(&mut rows);

        let mut points = Vec::new();
        batch.point(&mut points).map_err(batch.failed("upload"))?;
        let part = one(size * row);
        let x = slot.x.slice_mut(..size * row);
        let sent = match stream.upload_rows(rows, part, x, part) {
            Ok(sent) => sent,
            Err(refused) => {
                let (error, rows) = (refused.error, refused.value);
                slot.rows = rows;
                return Err(Failed::new("upload", index, error));
            }
        };
        batch.point(&mut points).map_err(batch.failed("upload"))?;
        let at = At {
            stream,
            requests: batch.requests.len(),
            size,
        };
        let (x, y) = (&slot.x, &mut slot.y);
        let ran = guarded("model", index, || {
            (self.model)(&at, x.slice(..size * row), y.slice_mut(..size * result))
        });
        // An error of the model is returned only below: its enqueued work still completes, and the rows come back.
        let computed = ran.and_then(|()| {
            let failed = batch.failed("download");
            batch.point(&mut points).map_err(&failed)?;
            let len = batch.requests.len() * result;
            let home = stream.device().pinned(len).map_err(&failed)?;
            let back = stream.download(slot.y.slice(..len), home);
            let back = back.map_err(|refused| failed(refused.error))?;
            batch.point(&mut points).map_err(&failed)?;
            back.synchronize().map_err(batch.failed("device"))
        });
        slot.rows = Some(sent.synchronize().map_err(batch.failed("device"))?);
        Ok(Computed {
            results: Results::Pinned(computed?),
            points,
        })
    }
}

fn one(len: usize) -> Rows {
    Rows {
        len,
        count: 1,
        pitch: len,
    }
}
