//! Requests of many callers, run as batches: a [`Batcher`].
//!
//! A small model with one row per request leaves the device nearly idle, on any number of streams: the host's calls are
//! the bottleneck. As one batch, requests that arrive together cost those calls only once.
//!
//! ```
//! use std::time::Duration;
//!
//! use sidestream::batcher::Batcher;
//! use sidestream::prelude::*;
//!
//! let device = Device::open("sim:h200")?;
//! let square = Kernel::<(Read<f32>, Write<f32>)>::on_host("square", |_, (x, y)| {
//!     for (y, x) in y.iter_mut().zip(x) {
//!         *y = x * x;
//!     }
//! });
//! let batcher = Batcher::<f32, f32>::new(&device, 2, 2)
//!     .sizes(&[1, 4, 16])
//!     .max_delay(Duration::from_micros(200))
//!     .serve(move |_slot| {
//!         let square = square.clone();
//!         Ok(move |at: &At<'_>, x: View<'_, f32>, y: ViewMut<'_, f32>| {
//!             at.stream().launch(&square, Grid::cover(x.len(), 256), (x, y))?;
//!             Ok(())
//!         })
//!     })?;
//! # use sidestream::batcher::At;
//! let answers: Vec<_> = (0..10u8)
//!     .map(|n| batcher.submit(&[f32::from(n), 1.0]))
//!     .collect::<Result<_, _>>()?;
//! for (n, answer) in answers.into_iter().enumerate() {
//!     assert_eq!(answer.wait()?[..], [(n * n) as f32, 1.0]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What waits for what
//! A batcher has classes of requests, each with its own queue and slots. A slot is a thread with a stream of the class's
//! priority: it takes a batch, uploads it, runs the model and downloads the results, all in that stream. So up to `slots`
//! batches of a class are on the device at once, and the work of one batch is in stream order.
//!
//! A batch starts when a slot is free and there are enough requests for the largest size, or its oldest request has waited
//! for [`max_delay`](Settings::max_delay). It is padded with zeros to the next size.
//!
//! # How a request ends
//! Every request ends exactly once: with its values, or with an [`Error`]. If a batch fails, each of its requests is run again
//! alone, so that one bad request does not fail the others; a lost device ends all of them. A request whose caller
//! dropped its [`Answer`] is left out.

mod answer;
mod calls;
mod graphs;
mod histogram;
mod pace;
mod queue;
mod requests;
mod rule;
mod slot;
mod statistics;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::buffer::{Pod, View, ViewMut};
use crate::device::Device;
use crate::error;
use crate::graph::{BufKey, GraphBuilder};
use crate::pipeline::Failed;
use crate::stream::Stream;

pub use answer::{Answer, Row};
pub use calls::At;
pub use graphs::Shape;
pub use histogram::Histogram;
#[doc(hidden)]
pub use requests::{Batch, Home, Refusal, Requests, Took};
#[doc(hidden)]
pub use rule::Rule;
pub use statistics::Statistics;

use answer::{Cell, Recall};
use calls::Calls;
use graphs::Graphs;
use queue::{Queue, Request};
use slot::Body;

/// Runs the requests of many callers as batches. See [the module](self).
///
/// Threads share it by reference or in an `Arc`.
pub struct Batcher<I: Pod, O: Pod> {
    queue: Arc<Queue<I, O>>,
    recall: Arc<Recall<O>>,
    threads: Vec<JoinHandle<()>>,
    row: usize,
}

/// The settings of a batcher, to which the model is added last.
#[derive(Clone, Debug)]
pub struct Settings<I, O> {
    device: Device,
    row: usize,
    result: usize,
    sizes: Vec<usize>,
    max_delay: Duration,
    slots: usize,
    max_queue: usize,
    classes: Vec<(String, i32)>,
    is_timed: bool,
    holds: PhantomData<fn(I) -> O>,
}

/// The reason why a request was refused, or ended without an answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Refused: the queue is full.
    Full {
        /// The largest number of waiting requests.
        limit: usize,
    },
    /// Refused: judging by recent batches and `max_delay`, its answer would come after the deadline.
    Late {
        /// The time that the answer would have taken.
        expected: Duration,
    },
    /// Refused: there is no class of this name.
    NoSuchClass(String),
    /// Refused, or not computed: the batcher is closed.
    Closed,
    /// The deadline passed while the request waited.
    Expired,
    /// The request was cancelled.
    Cancelled,
    /// The model or the device failed.
    Failed(Arc<Failed>),
    /// The answer was already returned by an earlier poll.
    Fetched,
}

/// The options of one request.
#[derive(Clone, Debug, Default)]
pub struct Wish<'a> {
    /// The class of the request; the first one if `None`.
    pub class: Option<&'a str>,
    /// The time after which the answer is of no use. Checked before the request is queued, and before its batch starts.
    pub deadline: Option<Instant>,
}

impl<I: Pod + Send + Sync, O: Pod + Send + Sync> Batcher<I, O> {
    /// Returns the settings of a batcher on this device, for requests of `row` values each, whose answers have `result` values.
    /// All other settings but the model are optional.
    #[expect(
        clippy::new_ret_no_self,
        reason = "a batcher is built from its settings, like a pipeline"
    )]
    pub fn new(device: &Device, row: usize, result: usize) -> Settings<I, O> {
        Settings {
            device: device.clone(),
            row,
            result,
            sizes: (0..=6).map(|power| 1 << power).collect(),
            max_delay: Duration::from_micros(500),
            slots: 3,
            max_queue: 4096,
            classes: vec![("default".to_owned(), 0)],
            is_timed: true,
            holds: PhantomData,
        }
    }

    /// Queues a request of the first class, without a deadline.
    ///
    /// # Ordering
    /// Does not block. The values are copied.
    ///
    /// # Errors
    /// [`Error::Full`] or [`Error::Closed`]; nothing is queued then.
    ///
    /// # Panics
    /// If the number of values is not that of a request.
    #[track_caller]
    pub fn submit(&self, values: &[I]) -> Result<Answer<O>, Error> {
        self.submit_with(values, &Wish::default())
    }

    /// Like [`Batcher::submit`], but with a class and a deadline.
    ///
    /// # Errors
    /// Like [`Batcher::submit`]; also [`Error::Late`] if the deadline has passed or cannot be met, and [`Error::NoSuchClass`].
    ///
    /// # Panics
    /// If the number of values is not that of a request.
    #[track_caller]
    pub fn submit_with(&self, values: &[I], wish: &Wish<'_>) -> Result<Answer<O>, Error> {
        assert_eq!(
            values.len(),
            self.row,
            "a request of this batcher has {} values, but this one has {}",
            self.row,
            values.len()
        );
        let cell = Cell::new();
        let request = Request {
            values: values.into(),
            cell: Arc::clone(&cell),
        };
        let of = self.queue.put(wish.class, request, wish.deadline)?;
        Ok(Answer::new(cell, Arc::clone(&self.recall), of))
    }

    /// Returns the statistics so far.
    pub fn statistics(&self) -> Statistics {
        self.queue.statistics()
    }

    /// Closes the batcher to new requests, and waits until the accepted ones are answered.
    ///
    /// # Ordering
    /// Blocks the host until then. Other threads may still wait for their answers.
    pub fn close(mut self) -> Statistics {
        self.queue.close(true);
        self.join();
        self.queue.statistics()
    }

    /// Closes the batcher to new requests; the accepted ones are answered. [`Batcher::close`] waits for that.
    pub fn refuse(&self) {
        self.queue.close(true);
    }
}

impl<I: Pod, O: Pod> Batcher<I, O> {
    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A slot catches panics of the model; any other panic was already printed.
            drop(thread.join());
        }
    }
}

impl<I: Pod, O: Pod> Drop for Batcher<I, O> {
    /// Ends waiting requests with [`Error::Closed`], and waits for the batches on the device.
    fn drop(&mut self) {
        self.queue.close(false);
        self.join();
    }
}

impl<I: Pod + Send + Sync, O: Pod + Send + Sync> Settings<I, O> {
    /// Sets the sizes of batches; the default is the powers of two from 1 to 64. A batch is padded to the next size.
    pub fn sizes(mut self, sizes: &[usize]) -> Self {
        self.sizes = sizes.to_vec();
        self
    }

    /// Sets how long the oldest request waits for others while a slot is free; the default is 500 µs. With zero no request
    /// waits, and a batch consists of the requests that arrived while the slots were busy.
    pub fn max_delay(mut self, max_delay: Duration) -> Self {
        self.max_delay = max_delay;
        self
    }

    /// Sets the number of batches of a class on the device at once; the default is 3.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// Sets how many requests of a class may wait; the default is 4,096. Further ones are refused.
    pub fn max_queue(mut self, max_queue: usize) -> Self {
        self.max_queue = max_queue;
        self
    }

    /// Sets the classes of requests, each with a name and the priority of its streams (lower is more urgent, within
    /// [`Caps::priorities`](crate::backend::Caps::priorities)). The default is one class, `default`, of priority 0. Each class has
    /// its own slots.
    ///
    /// Priority decides which kernel's blocks are scheduled next when multiprocessors have room; it does not preempt running
    /// blocks.
    pub fn classes(mut self, classes: &[(&str, i32)]) -> Self {
        let own = classes.iter().map(|(name, at)| ((*name).to_owned(), *at));
        self.classes = own.collect();
        self
    }

    /// Sets whether batches are timed on the device, which is the default: it costs four timed event records per batch.
    pub fn timed(mut self, is_timed: bool) -> Self {
        self.is_timed = is_timed;
        self
    }

    /// Starts the batcher. `model` is called once for each slot and returns a function, which is called once for each batch in that
    /// slot, with the rows on the device and memory for the results: it enqueues in [`At::stream`] the work that computes the
    /// results from the rows.
    ///
    /// # Errors
    /// If the settings are invalid, or an error of the device or of `model`.
    pub fn serve<F, M>(self, model: M) -> Result<Batcher<I, O>, error::Error>
    where
        M: Fn(&Stream) -> Result<F, error::Error>,
        F: FnMut(&At<'_>, View<'_, I>, ViewMut<'_, O>) -> Result<(), error::Error>,
        F: Send + 'static,
    {
        self.start(|stream| {
            Ok(Calls {
                model: model(stream)?,
                memory: None,
            })
        })
    }

    /// Like [`Settings::serve`], but with a graph for each size and slot: a batch is one launch, however many kernels the model
    /// has.
    ///
    /// `describe` is called for the first batch of a size in each slot, on the slot's thread, with the rows and the
    /// memory for the results; it adds the nodes that compute the results. A graph owns the memory that it uses: each
    /// graph gets its own copy of everything else that the model reads, such as its weights, by [`GraphBuilder::own`].
    /// The upload and the download are added as nodes before and after.
    ///
    /// The kernels of a graph have the priority of the slot's stream, like separate launches.
    ///
    /// ```
    /// use sidestream::batcher::Batcher;
    /// use sidestream::prelude::*;
    ///
    /// let device = Device::open("sim:h200")?;
    /// let scale = Kernel::<(Read<f32>, Read<f32>, Write<f32>)>::on_host("scale", |_, (x, by, y)| {
    ///     for (y, x) in y.iter_mut().zip(x) {
    ///         *y = by[0] * x;
    ///     }
    /// });
    /// let batcher = Batcher::<f32, f32>::new(&device, 2, 2).serve_graphs(move |shape, nodes, x, y| {
    ///     let by = nodes.own(shape.stream().alloc_from(&[3.0])?)?;
    ///     nodes.launch(&scale, Grid::cover(2 * shape.size(), 256), (x.view(), by.view(), y.view_mut()))?;
    ///     Ok(())
    /// })?;
    /// assert_eq!(batcher.submit(&[1.0, 2.0])?.wait()?[..], [3.0, 6.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the settings are invalid, or an error of the device. After an error of `describe`, the requests of that batch end with
    /// it.
    pub fn serve_graphs<F>(self, describe: F) -> Result<Batcher<I, O>, error::Error>
    where
        F: FnMut(&Shape<'_>, &mut GraphBuilder, BufKey<I>, BufKey<O>) -> Result<(), error::Error>,
        F: Clone + Send + 'static,
    {
        self.start(|_| {
            Ok(Graphs {
                describe: describe.clone(),
                by_size: BTreeMap::new(),
            })
        })
    }

    fn start<B>(
        self,
        body: impl Fn(&Stream) -> Result<B, error::Error>,
    ) -> Result<Batcher<I, O>, error::Error>
    where
        B: Body<I, O> + Send + 'static,
    {
        let invalid = |why: String| error::Error::Invalid {
            call: "batcher",
            why,
        };
        let rule = Rule::new(&self.sizes, self.max_delay).map_err(invalid)?;
        for (value, name) in [
            (self.row, "values a request"),
            (self.result, "values a result"),
            (self.slots, "slots"),
            (self.max_queue, "requests in the queue"),
            (self.classes.len(), "classes"),
        ] {
            if value == 0 {
                return Err(invalid(format!("0 {name}; give at least one")));
            }
        }
        let names = self.classes.iter().map(|(name, _)| name.clone()).collect();
        let queue = Arc::new(Queue::new(names, rule, self.max_queue, self.slots));
        let asked = Arc::clone(&queue);
        let mut batcher = Batcher {
            queue: Arc::clone(&queue),
            recall: Arc::new(move |of, cell| asked.cancel(of, cell)),
            threads: Vec::new(),
            row: self.row,
        };
        for (class, (name, priority)) in self.classes.iter().enumerate() {
            for slot in 0..self.slots {
                let stream = self.device.stream_with_priority(name, *priority)?;
                let body = body(&stream)?;
                let thread = std::thread::Builder::new().name(format!("{name} {slot}"));
                let slot = slot::Slot {
                    queue: Arc::clone(&queue),
                    class,
                    stream,
                    row: self.row,
                    result: self.result,
                    is_timed: self.is_timed,
                    batches: 0,
                };
                let running = thread.spawn(move || slot.run(body));
                let running = running
                    .map_err(|error| invalid(format!("a thread could not be started: {error}")))?;
                batcher.threads.push(running);
            }
        }
        Ok(batcher)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Full { limit } => write!(
                f,
                "{limit} requests are waiting, which is the limit; try again later, or raise `max_queue`"
            ),
            Error::Late { expected } => write!(
                f,
                "judging by recent batches and `max_delay`, the answer would take {expected:?}, which is past the deadline"
            ),
            Error::NoSuchClass(name) => write!(
                f,
                "there is no class `{name}`; name one of those given to `classes`"
            ),
            Error::Closed => write!(f, "the batcher is closed"),
            Error::Expired => write!(f, "the deadline passed while the request waited"),
            Error::Cancelled => write!(f, "the request was cancelled"),
            Error::Failed(failed) => failed.fmt(f),
            Error::Fetched => write!(f, "the answer was already returned by an earlier poll"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Failed(failed) => Some(&**failed),
            _ => None,
        }
    }
}

impl<I: Pod, O: Pod> fmt::Debug for Batcher<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("row", &self.row).finish()
    }
}
