//! A batch as one graph: upload, model and download in one launch.

use std::collections::BTreeMap;

use super::slot::{Batch, Body, Computed, Results};
use crate::buffer::Pod;
use crate::error;
use crate::graph::{BufKey, Graph, GraphBuilder, PinnedKey};
use crate::pipeline::{Failed, guarded};
use crate::stream::Stream;

/// The shape of the batches for which a graph is made.
pub struct Shape<'a> {
    stream: &'a Stream,
    size: usize,
}

impl Shape<'_> {
    /// Returns the stream in which the graph will be launched. Memory that the graph is to own may be allocated and filled in
    /// this stream: the first launch is ordered after that.
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// Returns the number of rows of a batch.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// The graphs of one slot, by batch size; each is made with the first batch of its size.
pub(super) struct Graphs<I: Pod, O: Pod, F> {
    pub describe: F,
    pub by_size: BTreeMap<usize, Sized<I, O>>,
}

pub(super) struct Sized<I: Pod, O: Pod> {
    graph: Graph,
    sent: PinnedKey<I>,
    back: PinnedKey<O>,
}

impl<I, O, F> Body<I, O> for Graphs<I, O, F>
where
    I: Pod + Send + Sync,
    O: Pod + Send + Sync,
    F: FnMut(&Shape<'_>, &mut GraphBuilder, BufKey<I>, BufKey<O>) -> Result<(), error::Error>,
{
    fn compute(&mut self, batch: &Batch<'_, I, O>) -> Result<Computed<O>, Failed> {
        let failed = batch.failed("device");
        if !self.by_size.contains_key(&batch.size) {
            let made = guarded("graph", batch.index, || self.made(batch))?;
            self.by_size.insert(batch.size, made);
        }
        let Some(Sized { graph, sent, back }) = self.by_size.get_mut(&batch.size) else {
            unreachable!("the graph of this size was made before")
        };
        batch.fill(graph.synchronize_pinned(*sent).map_err(&failed)?);
        let mut points = Vec::new();
        batch.point(&mut points).map_err(&failed)?;
        graph.launch(batch.stream).map_err(batch.failed("graph"))?;
        batch.point(&mut points).map_err(&failed)?;
        let all = graph.synchronize_pinned(*back).map_err(&failed)?;
        let results = all[..batch.requests.len() * batch.result].into();
        Ok(Computed {
            results: Results::Copied(results),
            points,
        })
    }
}

impl<I, O, F> Graphs<I, O, F>
where
    I: Pod + Send + Sync,
    O: Pod + Send + Sync,
    F: FnMut(&Shape<'_>, &mut GraphBuilder, BufKey<I>, BufKey<O>) -> Result<(), error::Error>,
{
    fn made(&mut self, batch: &Batch<'_, I, O>) -> Result<Sized<I, O>, error::Error> {
        let (stream, device) = (batch.stream, batch.stream.device());
        let (row, result) = (batch.size * batch.row, batch.size * batch.result);
        let mut nodes = device.graph();
        let (x, y) = (
            nodes.own(stream.alloc::<I>(row)?)?,
            nodes.own(stream.alloc::<O>(result)?)?,
        );
        let sent = nodes.own_pinned(device.pinned::<I>(row)?)?;
        let back = nodes.own_pinned(device.pinned::<O>(result)?)?;
        nodes.upload(sent, x.view_mut())?;
        let shape = Shape {
            stream,
            size: batch.size,
        };
        (self.describe)(&shape, &mut nodes, x, y)?;
        nodes.download(y.view(), back)?;
        let graph = nodes.build()?;
        Ok(Sized { graph, sent, back })
    }
}
