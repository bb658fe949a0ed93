//! The ring: items go into slots in turn, and come out in the same sequence.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use super::body::{Body, Home, Item, Submitted};
use super::failed::{BoxError, Failed, guarded};
use super::plan::Plan;
use super::report::{Report, Times};
use super::source::{Cancel, Next, Source};
use crate::error::{Error, Result};

/// A pipeline that runs. It is an iterator over finished items, in the order of the source.
///
/// Everything is submitted from whichever thread asks for the next item, while it asks.
///
/// # Ordering
/// At most as many items as there are slots are between the source and the consumer, beside those
/// that the source fills. Dropping it does not wait: what was submitted still runs, on memory that
/// goes to nobody else before.
pub struct Running<I, O, H> {
    body: Box<dyn Body<Input = I, Output = O, Held = H> + Send>,
    source: Source<I>,
    settings: Settings,
    home: Home<O>,
    flights: VecDeque<Flight<H>>,
    /// How many slots there are to be by now.
    depth: usize,
    slots: usize,
    /// The item that went into the first slot when there were as many as now.
    first: u64,
    /// Inputs beyond one a slot.
    more_inputs: usize,
    submitted: u64,
    state: State,
    times: Times,
}

/// How a pipeline is run.
pub(super) struct Settings {
    pub depth: Option<usize>,
    pub is_timed: bool,
    pub is_lockstep: bool,
    /// How many items are filled ahead.
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

/// When slots are filled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// The consumer waits for an item.
    Waited,
    /// It asks for one and does not wait.
    Asked,
    /// It is about to be given one.
    Ahead,
}

enum State {
    /// Items are taken from the source.
    Open,
    /// There are no more, or something failed: that comes last.
    Ending(Option<Failed>),
    /// The consumer has it all.
    Ended,
}

/// Items that are measured before the depth is chosen; the first of them warms up.
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
            home: Home::default(),
            flights: VecDeque::new(),
            slots: 0,
            first: 0,
            more_inputs: 0,
            submitted: 0,
            state: State::Open,
            times: Times::new(names),
        }
    }

    /// Gives every item to `consume`, and says how it went.
    ///
    /// # Ordering
    /// Holds up the host until all is over.
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

    /// The next item, without holding up the thread: `while let Some(item) = running.next_async().await`.
    ///
    /// # Errors
    /// As the iterator.
    pub async fn next_async(&mut self) -> Option<Result<Item<O>, Failed>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The same as a function that is polled.
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

    /// Ends it from elsewhere.
    pub fn cancel(&self) -> Cancel {
        self.source.cancel()
    }

    /// The depth that it runs at, with the times that it was chosen from. None as long as they are
    /// being measured, or if the depth was given.
    pub fn plan(&self) -> Option<Plan> {
        self.times.plan()
    }

    /// How it has gone so far.
    pub fn report(&self) -> Report {
        self.times.report(self.depth, self.body.device().name())
    }

    // ---------------------------------------------------------------- items in and out

    /// Puts items into all slots that are free. Waits for the source only if nothing else is left to
    /// wait for.
    fn fill(&mut self, when: When, waker: Option<&Waker>) {
        while matches!(self.state, State::Open) && self.flights.len() < self.depth {
            if let Err(error) = self.make_slots() {
                let failed = Failed::new("slot", self.submitted, error);
                self.state = State::Ending(Some(failed));
                return;
            }
            let slot = ((self.submitted - self.first) % self.slots as u64) as usize;
            let output = match self.body.output(slot, &self.home) {
                Ok(Some(output)) => output,
                // It comes back when the consumer drops the item that has it: the older ones first.
                Ok(None) if when == When::Ahead || !self.flights.is_empty() => return,
                Ok(None) => {
                    let failed = Failed::new("slot", self.submitted, still_held());
                    self.state = State::Ending(Some(failed));
                    return;
                }
                Err(error) => {
                    let failed = Failed::new("slot", self.submitted, error);
                    self.state = State::Ending(Some(failed));
                    return;
                }
            };
            let waits = match when {
                When::Waited => self.flights.is_empty() || self.settings.is_lockstep,
                When::Ahead => self.settings.is_lockstep && waker.is_none(),
                When::Asked => false,
            };
            let item = match self.source.next(waits, waker) {
                Next::Filled(item) => item,
                Next::NotYet => {
                    self.home.put(slot, output);
                    return;
                }
                Next::End => {
                    self.state = State::Ending(None);
                    return;
                }
                Next::Failed(failed) => {
                    self.state = State::Ending(Some(failed));
                    return;
                }
            };
            let (index, rows) = (item.index, item.rows);
            let is_timed = self.is_timed(index);
            let most = self.body.rows();
            let submitted = check_rows(index, rows, most)
                .and_then(|()| self.body.submit(slot, item, output, is_timed));
            match submitted {
                Ok(submitted) => {
                    self.submitted += 1;
                    self.flights.push_back(Flight {
                        index,
                        rows,
                        slot,
                        submitted,
                    });
                }
                Err(failed) => self.state = State::Ending(Some(failed)),
            }
        }
    }

    /// What became of the oldest item on the device, which is over. Its slot gets the next one
    /// before the consumer gets this one.
    fn deliver(
        &mut self,
        over: Result<()>,
        waker: Option<&Waker>,
    ) -> Option<Result<Item<O>, Failed>> {
        let flight = self.flights.pop_front()?;
        let Flight {
            index,
            rows,
            slot,
            submitted,
        } = flight;
        let finished = over.and_then(|()| {
            self.times.note(index, &submitted.times)?;
            self.body.finish(slot, submitted.held)
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
        let item = Item::new(index, rows, slot, output, self.home.clone());
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

    /// Slots are made when they are first needed. There are as many as items on the device, and the
    /// depth changes only while there are none, so that item and slot keep step.
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
    /// Holds up the host until the item is there. Items before a failed one come before the failure,
    /// which is the last; if the device is lost, each item that was on it fails.
    fn next(&mut self) -> Option<Result<Item<O>, Failed>> {
        self.fill(When::Waited, None);
        match self.flights.front() {
            Some(oldest) => {
                // To ask costs less than to wait, and mostly the answer is yes.
                let event = &oldest.submitted.event;
                let over = event.query().and_then(|is_over| match is_over {
                    true => Ok(()),
                    false => event.synchronize(),
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
            "the item that the slot did last is still held, and a graph writes to no other memory; \
              drop items before the pipeline has gone once around its slots, or copy them"
                .into(),
    }
}

fn check_rows(index: u64, rows: usize, most: usize) -> Result<(), Failed> {
    if (1..=most).contains(&rows) {
        return Ok(());
    }
    let why = format!("it said that the item has {rows} rows; an item has 1 to {most}");
    Err(Failed::new("source", index, BoxError::from(why)))
}
