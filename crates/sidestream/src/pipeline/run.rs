//! The ring: items are submitted to the slots in turn, and delivered in the same order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::body::{Body, Home, Item, Submitted};
use super::failed::{BoxError, Failed, guarded};
use super::plan::Plan;
use super::report::{Report, Times};
use super::source::{Cancel, Next, Source};
use crate::error::{Error, Result};

/// A running pipeline: an iterator over completed items, in the order of the source.
///
/// All work is submitted by the thread that requests the next item, during that call.
///
/// # Ordering
/// At most one item per slot is between the source and the consumer, besides those that the source fills. Dropping
/// the pipeline does not block: submitted work still runs, and its memory is not reused before it is complete.
pub struct Running<I, O, H> {
    body: Box<dyn Body<Input = I, Output = O, Held = H> + Send>,
    source: Source<I>,
    settings: Settings,
    home: Arc<Home<O>>,
    flights: VecDeque<Flight<H>>,
    /// The number of slots wanted now.
    depth: usize,
    slots: usize,
    /// The number of the item that used the first slot after the last change of the depth.
    first: u64,
    /// The number of inputs beyond one for each slot.
    more_inputs: usize,
    submitted: u64,
    state: State,
    times: Times,
}

/// The settings of a pipeline.
#[derive(Default)]
pub(super) struct Settings {
    pub depth: Option<usize>,
    pub is_timed: bool,
    pub is_lockstep: bool,
    /// The number of items filled ahead.
    pub ahead: usize,
    pub progress: Option<Progress>,
}

pub(super) type Progress = Box<dyn FnMut(u64) + Send>;

/// An item in a slot.
struct Flight<H> {
    index: u64,
    rows: usize,
    slot: usize,
    submitted: Submitted<H>,
}

/// The occasion on which slots are filled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// The consumer waits for an item.
    Waited,
    /// The consumer polls for an item.
    Asked,
    /// An item is about to be delivered to the consumer.
    Ahead,
}

enum State {
    /// Items are taken from the source.
    Open,
    /// There are no more items, or one failed; the failure is delivered last.
    Ending(Option<Failed>),
    /// Everything was delivered.
    Ended,
}

/// The number of items measured before the depth is chosen; the first of them is a warm-up.
const MEASURED: u64 = 3;

impl<I: Send + 'static, O: Send + 'static, H> Running<I, O, H> {
    pub(super) fn new(
        body: Box<dyn Body<Input = I, Output = O, Held = H> + Send>,
        source: Source<I>,
        settings: Settings,
    ) -> Running<I, O, H> {
        let names = body.stages();
        Running {
            depth: settings.depth.unwrap_or(1),
            body,
            source,
            settings,
            home: Home::new(),
            flights: VecDeque::new(),
            slots: 0,
            first: 0,
            more_inputs: 0,
            submitted: 0,
            state: State::Open,
            times: Times::new(names),
        }
    }

    /// Passes every item to `consume`, and returns the report.
    ///
    /// # Ordering
    /// Blocks the host until all items are complete.
    ///
    /// # Errors
    /// The first failure; a failure or a panic of `consume` is one of the stage `consumer`.
    pub fn run(
        mut self,
        mut consume: impl FnMut(&mut Item<O>) -> Result<(), BoxError>,
    ) -> Result<Report, Failed> {
        for item in &mut self {
            let mut item = item?;
            guarded("consumer", item.index(), || consume(&mut item))?;
        }
        Ok(self.report())
    }

    /// Returns the next item without blocking the thread: `while let Some(item) = running.next_async().await`.
    ///
    /// # Errors
    /// Like the iterator.
    pub async fn next_async(&mut self) -> Option<Result<Item<O>, Failed>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Like [`Running::next_async`], but as a function to poll.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Item<O>, Failed>>> {
        self.fill(When::Asked, Some(context.waker()));
        if let Some(oldest) = self.flights.front() {
            return match oldest.submitted.event.poll(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(over) => Poll::Ready(self.deliver(over, Some(context.waker()))),
            };
        }
        match self.state {
            State::Open => Poll::Pending,
            _ => Poll::Ready(self.last_word()),
        }
    }

    /// Returns a handle that ends the pipeline from another place.
    pub fn cancel(&self) -> Cancel {
        self.source.cancel()
    }

    /// Returns the chosen depth, with the times from which it was chosen. `None` while they are being measured, or if
    /// the depth was set.
    pub fn plan(&self) -> Option<Plan> {
        self.times.plan()
    }

    /// Returns the report so far.
    pub fn report(&self) -> Report {
        self.times.report(self.depth, self.body.device().name())
    }

    // ---------------------------------------------------------------- items in and out

    /// Submits items to all free slots. Waits for the source only if there is nothing else to wait for.
    fn fill(&mut self, when: When, waker: Option<&Waker>) {
        while matches!(self.state, State::Open) && self.flights.len() < self.depth {
            match self.fill_one(when, waker) {
                Ok(true) => {}
                Ok(false) => return,
                Err(failed) => self.state = State::Ending(Some(failed)),
            }
        }
    }

    /// Submits the next item; returns whether there was one.
    fn fill_one(&mut self, when: When, waker: Option<&Waker>) -> Result<bool, Failed> {
        let next = self.submitted;
        let no_slot = |error| Failed::new("slot", next, error);
        self.make_slots().map_err(no_slot)?;
        let slot = ((next - self.first) % self.slots as u64) as usize;
        let Some(output) = self.body.output(slot, &self.home).map_err(no_slot)? else {
            // The memory comes back when the consumer drops the item that has it, so older items are delivered first.
            if when == When::Ahead || !self.flights.is_empty() {
                return Ok(false);
            }
            return Err(no_slot(still_held()));
        };
        let waits = match when {
            When::Waited => self.flights.is_empty() || self.settings.is_lockstep,
            When::Ahead => self.settings.is_lockstep && waker.is_none(),
            When::Asked => false,
        };
        let item = match self.source.next(waits, waker)? {
            Next::Filled(item) => item,
            Next::NotYet => {
                self.home.put(slot, output);
                return Ok(false);
            }
            Next::End => {
                self.state = State::Ending(None);
                return Ok(false);
            }
        };
        let (index, rows) = (item.index, item.rows);
        check_rows(index, rows, self.body.rows())?;
        let is_timed = self.is_timed(index);
        let submitted = self.body.submit(slot, item, output, is_timed)?;
        self.submitted += 1;
        self.flights.push_back(Flight {
            index,
            rows,
            slot,
            submitted,
        });
        Ok(true)
    }

    /// Delivers the oldest item on the device, which has completed. Its slot gets the next item before the consumer
    /// receives this one.
    fn deliver(
        &mut self,
        over: Result<()>,
        waker: Option<&Waker>,
    ) -> Option<Result<Item<O>, Failed>> {
        let flight = self.flights.pop_front()?;
        let (index, slot) = (flight.index, flight.slot);
        let finished = over.and_then(|()| {
            self.times.note(index, &flight.submitted.times)?;
            self.body.finish(slot, flight.submitted.held)
        });
        let (input, output) = match finished {
            Ok(both) => both,
            Err(error) => {
                if matches!(self.state, State::Open) {
                    self.state = State::Ending(None);
                }
                return Some(Err(Failed::new("download", index, error)));
            }
        };
        self.source.give(input);
        self.choose_depth(index);
        self.fill(When::Ahead, waker);
        let item = Item::new(index, flight.rows, slot, output, Arc::clone(&self.home));
        if let Some(progress) = &mut self.settings.progress {
            let told = guarded("progress", index, || {
                progress(index + 1);
                Ok::<(), BoxError>(())
            });
            if let Err(failed) = told {
                self.state = State::Ending(None);
                return Some(Err(failed));
            }
        }
        Some(Ok(item))
    }

    fn last_word(&mut self) -> Option<Result<Item<O>, Failed>> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Ending(Some(failed)) => Some(Err(failed)),
            _ => None,
        }
    }

    // ---------------------------------------------------------------- slots

    /// Makes slots when they are first needed, one for each item on the device. The depth changes only while no item is
    /// on the device, so that items and slots stay in step.
    fn make_slots(&mut self) -> Result<()> {
        if self.slots < self.depth {
            self.first = self.submitted;
        }
        while self.slots < self.depth {
            let input = self.body.add_slot()?;
            self.source.give(input);
            self.slots += 1;
        }
        while self.more_inputs < self.settings.ahead {
            self.more_inputs += 1;
            match self.body.more_input()? {
                Some(input) => self.source.give(input),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn is_timed(&self, index: u64) -> bool {
        self.settings.is_timed || (self.settings.depth.is_none() && index < MEASURED)
    }

    fn choose_depth(&mut self, index: u64) {
        if self.settings.depth.is_none() && index + 1 == MEASURED {
            self.depth = self.times.choose().depth;
        }
    }
}

impl<I: Send + 'static, O: Send + 'static, H> Iterator for Running<I, O, H> {
    type Item = Result<Item<O>, Failed>;

    /// # Ordering
    /// Blocks the host until the item is complete. Items before a failed one are delivered first, and the failure
    /// last; if the device is lost, each item that was on it fails.
    fn next(&mut self) -> Option<Result<Item<O>, Failed>> {
        self.fill(When::Waited, None);
        match self.flights.front() {
            Some(oldest) => {
                // A query costs less than a wait, and usually the event is complete.
                let event = &oldest.submitted.event;
                let over = event.query().and_then(|is_complete| {
                    if is_complete {
                        Ok(())
                    } else {
                        event.synchronize()
                    }
                });
                self.deliver(over, None)
            }
            None => self.last_word(),
        }
    }
}

fn still_held() -> Error {
    Error::Invalid {
        call: "pipeline",
        why:
            "the last item of this slot was not dropped yet, and a graph writes to no other memory; \
              drop each item before its slot is used again, or copy it"
                .into(),
    }
}

fn check_rows(index: u64, rows: usize, most: usize) -> Result<(), Failed> {
    if (1..=most).contains(&rows) {
        return Ok(());
    }
    let why = format!("the source returned {rows} rows; an item has 1 to {most}");
    Err(Failed::new("source", index, BoxError::from(why)))
}
