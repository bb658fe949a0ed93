//! Slots with one stream each, on which an item passes through all stages.

use super::body::{Body, Home, Submitted};
use super::failed::{Failed, guarded};
use super::layout::Layout;
use super::source::Filled;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::stream::Stream;

/// The context of a stage: its item and stream.
pub struct At<'a> {
    index: u64,
    rows: usize,
    stream: &'a Stream,
    branches: &'a mut Vec<Stream>,
    /// By branch: whether this stage has used the branch.
    forked: Vec<bool>,
}

impl At<'_> {
    /// Returns the number of the item, from zero.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Returns the number of rows of the item.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the stream of the item.
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// Returns another stream of the same slot, for work that is concurrent with the rest of this stage.
    ///
    /// # Ordering
    /// Work in the branch is ordered after the work that was in the item's stream when the stage first called this for
    /// the branch. The next stage is ordered after the branch.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn branch(&mut self, number: usize) -> Result<Stream> {
        while self.branches.len() <= number {
            let name = format!("{}+{}", self.stream.name(), self.branches.len() + 1);
            self.branches
                .push(self.stream.device().unmarked_stream(&name)?);
        }
        self.forked.resize(self.branches.len(), false);
        let branch = &self.branches[number];
        if !std::mem::replace(&mut self.forked[number], true) {
            branch.wait_stream(self.stream)?;
        }
        Ok(branch.clone())
    }

    fn join(self) -> Result<()> {
        let forked = self.branches.iter().zip(&self.forked).filter(|(_, f)| **f);
        for (branch, _) in forked {
            self.stream.wait_stream(branch)?;
        }
        Ok(())
    }
}

type Act<S> = Box<dyn FnMut(&mut At<'_>, &mut S) -> Result<()> + Send>;
type Make<S> = Box<dyn Fn(&Stream) -> Result<S> + Send>;
/// Selects the buffers of a slot that the consumer receives.
pub(super) type Find<S, P> = Box<dyn Fn(&S) -> &P + Send>;
/// Selects a part of a slot.
type Within<S, P> = Box<dyn Fn(&mut S) -> &mut P + Send>;

/// A stage: a function that is called for every item.
pub(super) struct Stage<S> {
    pub name: String,
    pub act: Act<S>,
    pub is_in_order: bool,
    /// The event that the last item recorded at the end of this stage, if items pass it in order.
    pub last: Option<Event>,
}

/// The description of the slots and the stages.
pub(super) struct Chain<I: Layout, S> {
    pub device: Device,
    pub rows: usize,
    pub input: I,
    pub make: Make<S>,
    pub input_of: Within<S, I::Device>,
    pub stages: Vec<Stage<S>>,
}

impl<I: Layout, S: Send + 'static> Chain<I, S> {
    /// Adds buffers to each slot.
    pub(super) fn with<N: Layout>(self, layout: N) -> Chain<I, (S, N::Device)> {
        let (rows, make, input_of) = (self.rows, self.make, self.input_of);
        let widened = |mut act: Act<S>| -> Act<(S, N::Device)> {
            Box::new(move |at, slot| act(at, &mut slot.0))
        };
        let stages = self.stages.into_iter().map(|stage| Stage {
            name: stage.name,
            act: widened(stage.act),
            is_in_order: stage.is_in_order,
            last: None,
        });
        Chain {
            device: self.device,
            rows,
            input: self.input,
            make: Box::new(move |stream| Ok((make(stream)?, layout.device(stream, rows)?))),
            input_of: Box::new(move |slot| input_of(&mut slot.0)),
            stages: stages.collect(),
        }
    }
}

/// A [`Chain`] with its slots.
pub(super) struct OnStreams<I: Layout, O: Layout, S> {
    pub chain: Chain<I, S>,
    pub output: O,
    pub output_of: Find<S, O::Device>,
    pub slots: Vec<Slot<S>>,
}

pub(super) struct Slot<S> {
    stream: Stream,
    branches: Vec<Stream>,
    buffers: S,
}

impl<I: Layout, O: Layout, S> Body for OnStreams<I, O, S> {
    type Input = I::Host;
    type Output = O::Host;
    type Held = (I::Sent, O::Sent);

    fn device(&self) -> &Device {
        &self.chain.device
    }

    fn rows(&self) -> usize {
        self.chain.rows
    }

    fn stages(&self) -> Vec<String> {
        let own = self.chain.stages.iter().map(|stage| stage.name.clone());
        std::iter::once("upload".to_owned())
            .chain(own)
            .chain(["download".to_owned()])
            .collect()
    }

    fn add_slot(&mut self) -> Result<I::Host> {
        let number = self.slots.len();
        let stream = self
            .chain
            .device
            .unmarked_stream(&format!("slot {number}"))?;
        let buffers = (self.chain.make)(&stream)?;
        self.slots.push(Slot {
            stream,
            branches: Vec::new(),
            buffers,
        });
        self.chain.input.host(&self.chain.device, self.chain.rows)
    }

    fn more_input(&mut self) -> Result<Option<I::Host>> {
        let host = self.chain.input.host(&self.chain.device, self.chain.rows)?;
        Ok(Some(host))
    }

    fn output(&mut self, _: usize, home: &Home<O::Host>) -> Result<Option<O::Host>> {
        let new = || self.output.host(&self.chain.device, self.chain.rows);
        home.any().map_or_else(new, Ok).map(Some)
    }

    fn submit(
        &mut self,
        slot: usize,
        item: Filled<I::Host>,
        output: O::Host,
        is_timed: bool,
    ) -> Result<Submitted<Self::Held>, Failed> {
        let Filled { index, rows, host } = item;
        let Chain {
            device,
            input,
            input_of,
            stages,
            ..
        } = &mut self.chain;
        let Slot {
            stream,
            branches,
            buffers,
        } = &mut self.slots[slot];
        let mut times = Vec::new();
        let mut time = |stage: &str| -> Result<(), Failed> {
            if is_timed {
                let event = stream.record_timed();
                times.push(event.map_err(|error| Failed::new(stage, index, error))?);
            }
            Ok(())
        };
        time("upload")?;
        let sent = named_own(device, "upload", || {
            guarded("upload", index, || {
                input.upload(stream, rows, host, input_of(buffers))
            })
        })?;
        time("upload")?;
        for stage in stages {
            named(device, &stage.name, || {
                guarded(&stage.name, index, || -> Result<()> {
                    if let Some(last) = &stage.last {
                        stream.wait_event(last)?;
                    }
                    let mut at = At {
                        index,
                        rows,
                        stream,
                        branches,
                        forked: Vec::new(),
                    };
                    (stage.act)(&mut at, buffers)?;
                    at.join()?;
                    if stage.is_in_order {
                        stage.last = Some(stream.record_event()?);
                    }
                    Ok(())
                })
            })?;
            time(&stage.name)?;
        }
        let back = named_own(device, "download", || {
            guarded("download", index, || {
                self.output
                    .download(stream, rows, (self.output_of)(buffers), output)
            })
        })?;
        time("download")?;
        let event = stream.record_event();
        let event = event.map_err(|error| Failed::new("download", index, error))?;
        Ok(Submitted {
            event,
            held: (sent, back),
            times,
        })
    }

    fn finish(&mut self, _: usize, (sent, back): Self::Held) -> Result<(I::Host, O::Host), Error> {
        Ok((I::arrived(sent)?, O::arrived(back)?))
    }
}

/// Runs code of the program in a span named after the stage, for traces and reports.
fn named<R>(device: &Device, stage: &str, submit: impl FnOnce() -> R) -> R {
    #[cfg(feature = "observe")]
    let _span = device.span(stage);
    #[cfg(not(feature = "observe"))]
    let _ = (device, stage);
    submit()
}

/// Like [`named`], but for calls of this module, and without the cost of a span while no sink is attached.
pub(super) fn named_own<R>(device: &Device, stage: &str, submit: impl FnOnce() -> R) -> R {
    #[cfg(feature = "observe")]
    let _span = device.own_span(stage);
    #[cfg(not(feature = "observe"))]
    let _ = (device, stage);
    submit()
}
