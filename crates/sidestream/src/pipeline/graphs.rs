//! Slots with one graph each: an item is submitted by one graph launch.

use super::body::{Body, Home, Submitted};
use super::failed::{Failed, guarded};
use super::layout::Layout;
use super::source::Filled;
use super::stages::named_own;
use crate::device::Device;
use crate::error::Result;
use crate::graph::{Graph, GraphBuilder};
use crate::stream::Stream;

/// Adds the nodes of a slot's graph. Returns two sets of keys into the graph's pinned memory: those of the input and those
/// of the output.
pub(super) type Describe<I, O> =
    Box<dyn FnMut(&Stream, &mut GraphBuilder) -> Result<(I, O)> + Send>;

/// A pipeline of graphs with its slots.
pub(super) struct OfGraphs<I: Layout, O: Layout> {
    pub device: Device,
    pub rows: usize,
    pub input: I,
    pub describe: Describe<I::Keys, O::Keys>,
    pub slots: Vec<Slot<I, O>>,
}

pub(super) struct Slot<I: Layout, O: Layout> {
    stream: Stream,
    graph: Graph,
    input: I::Keys,
    output: O::Keys,
    /// The output memory, until its first use.
    unused: Option<O::Host>,
}

impl<I: Layout, O: Layout> Body for OfGraphs<I, O> {
    type Input = I::Host;
    type Output = O::Host;
    type Held = ();

    fn device(&self) -> &Device {
        &self.device
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn stages(&self) -> Vec<String> {
        vec!["graph".to_owned()]
    }

    fn add_slot(&mut self) -> Result<I::Host> {
        let name = format!("slot {}", self.slots.len());
        let stream = self.device.unmarked_stream(&name)?;
        let mut nodes = self.device.graph();
        let (input, output) = (self.describe)(&stream, &mut nodes)?;
        let mut graph = nodes.build()?;
        let (first, unused) = (I::lend(&mut graph, input)?, O::lend(&mut graph, output)?);
        self.slots.push(Slot {
            stream,
            graph,
            input,
            output,
            unused: Some(unused),
        });
        Ok(first)
    }

    fn more_input(&mut self) -> Result<Option<I::Host>> {
        // Each graph uses only the memory that its nodes name.
        Ok(None)
    }

    fn output(&mut self, slot: usize, home: &Home<O::Host>) -> Result<Option<O::Host>> {
        Ok(self.slots[slot].unused.take().or_else(|| home.of(slot)))
    }

    fn submit(
        &mut self,
        slot: usize,
        item: Filled<I::Host>,
        output: O::Host,
        is_timed: bool,
    ) -> Result<Submitted<()>, Failed> {
        let Filled {
            index,
            rows,
            mut host,
        } = item;
        if rows < self.rows {
            self.input.pad(rows, &mut host);
        }
        let slot = &mut self.slots[slot];
        let mut times = Vec::new();
        let event = named_own(&self.device, "graph", || {
            guarded("graph", index, || -> Result<_> {
                I::give_back(&mut slot.graph, slot.input, host)?;
                O::give_back(&mut slot.graph, slot.output, output)?;
                if is_timed {
                    times.push(slot.stream.record_timed()?);
                }
                let event = slot.graph.launch(&slot.stream)?;
                if is_timed {
                    times.push(slot.stream.record_timed()?);
                }
                Ok(event)
            })
        })?;
        Ok(Submitted {
            event,
            held: (),
            times,
        })
    }

    fn finish(&mut self, slot: usize, (): ()) -> Result<(I::Host, O::Host)> {
        let slot = &mut self.slots[slot];
        let input = I::lend(&mut slot.graph, slot.input)?;
        Ok((input, O::lend(&mut slot.graph, slot.output)?))
    }
}
