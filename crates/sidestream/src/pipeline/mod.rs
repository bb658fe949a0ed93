//! Pipelines: items pass from a source through stages on the device to a consumer, several at the same time.
//!
//! A pipeline has a ring of slots. A slot is the memory for one item and a stream for its work, from the upload to the
//! download; item `i` uses slot `i mod depth`. Different items use different streams, so that one is copied while another
//! is computed. Within an item no wait for an event is needed. Besides the calls of its stages, an item costs the
//! host one event record and one query.
//!
//! ```
//! use sidestream::device::Device;
//! use sidestream::kernel::{Grid, Kernel, Read, Write};
//! use sidestream::pipeline::{Pipeline, per_row};
//!
//! let device = Device::open("sim:h200")?;
//! let square = Kernel::<(Read<u32>, Write<u32>)>::on_host("square", |_, (x, y)| {
//!     for (y, x) in y.iter_mut().zip(x) {
//!         *y = x * x;
//!     }
//! });
//!
//! let running = Pipeline::new(&device, 1024)
//!     .upload(per_row::<u32>(1))
//!     .stage("square", per_row::<u32>(1), move |at, x, y| {
//!         at.stream().launch(&square, Grid::cover(1024, 256), (x.view(), y.view_mut()))
//!     })
//!     .download(per_row::<u32>(1), |(_, y)| y)
//!     .depth(4)
//!     .fill(|index, x| {
//!         x.fill(index as u32);
//!         Ok((index < 100).then_some(1024))
//!     });
//! for item in running {
//!     let item = item?;
//!     assert_eq!(item[7], (item.index() * item.index()) as u32);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # No access can be too early
//! A stage can access only the buffers of the stages before it, because each adds its own to the slot's type. The
//! host can access an input only while the source fills it, and an output only as an [`Item`], which exists once
//! the download is complete. This does not compile:
//!
//! ```compile_fail
//! # use sidestream::{device::Device, pipeline::{Pipeline, per_row}};
//! # let device = Device::open("sim:h200").unwrap();
//! Pipeline::new(&device, 1024)
//!     .upload(per_row::<u32>(1))
//!     .apply("too early", |at, (x, y)| Ok(())) // there is no `y` yet
//!     .stage("square", per_row::<u32>(1), |at, x, y| Ok(()));
//! ```
//!
//! # Failures
//! An error or a panic of the source, of a stage or of the consumer ends the pipeline with a [`Failed`] that has the
//! stage's name and the item's number. The items before it are delivered first. No item after it is started;
//! items that the source has already filled are dropped.

mod body;
mod failed;
mod graphs;
mod layout;
mod plan;
mod report;
mod run;
mod source;
mod stages;

use std::sync::Arc;

use crate::device::Device;
use crate::error::Result;
use crate::graph::GraphBuilder;
use crate::stream::Stream;

pub use body::Item;
pub(crate) use failed::guarded;
pub use failed::{BoxError, Cause, Failed};
pub use layout::{Layout, Values, per_item, per_row};
pub use plan::Plan;
pub use report::{Report, Timed};
pub use run::Running;
pub use source::Cancel;
pub use stages::At;

use body::Body;
use graphs::OfGraphs;
use run::Settings;
use source::{Fill, Source};
use stages::{Chain, OnStreams, Stage};

/// The beginning of a pipeline. See [the module](self).
#[derive(Clone, Debug)]
pub struct Pipeline {
    device: Device,
    rows: usize,
}

/// A pipeline whose stages are being added. `S` is the type of the buffers in a slot so far.
pub struct Stages<I: Layout, S> {
    chain: Chain<I, S>,
}

/// A complete pipeline except for its source.
pub struct Ready<I, O, H> {
    body: Box<dyn Body<Input = I, Output = O, Held = H> + Send>,
    settings: Settings,
}

impl Pipeline {
    /// Returns a pipeline on this device, whose items have up to `rows` rows. The layouts define a row: a sample with
    /// its label, or just a number.
    pub fn new(device: &Device, rows: usize) -> Pipeline {
        let device = device.clone();
        Pipeline { device, rows }
    }

    /// Sets the buffers that the source fills and that are uploaded first in each slot.
    pub fn upload<I: Layout>(self, input: I) -> Stages<I, I::Device> {
        let Pipeline { device, rows } = self;
        let layout = input.clone();
        Stages {
            chain: Chain {
                device,
                rows,
                input,
                make: Box::new(move |stream| layout.device(stream, rows)),
                input_of: Box::new(|slot| slot),
                stages: Vec::new(),
            },
        }
    }

    /// Makes a graph for each slot, so that an item is one launch. `describe` is called once for each slot: it
    /// allocates on the slot's stream, gives the memory to the graph, adds the nodes, and returns the pinned
    /// memory that the source fills and the one that the consumer receives.
    ///
    /// An item with fewer rows is computed with zeros in the missing rows. The consumer must drop an item before its
    /// slot is used again.
    ///
    /// ```
    /// use sidestream::device::Device;
    /// use sidestream::kernel::{Grid, Kernel, Write};
    /// use sidestream::pipeline::{Pipeline, per_row};
    ///
    /// let device = Device::open("sim:h200")?;
    /// let double = Kernel::<(Write<u32>,)>::on_host("double", |_, (x,)| x.iter_mut().for_each(|x| *x *= 2));
    /// let host = device.clone();
    /// let running = Pipeline::new(&device, 64)
    ///     .graphs(per_row::<u32>(1), per_row::<u32>(1), move |stream, nodes| {
    ///         let x = nodes.own(stream.alloc::<u32>(64)?)?;
    ///         let (sent, back) = (nodes.own_pinned(host.pinned(64)?)?, nodes.own_pinned(host.pinned(64)?)?);
    ///         nodes.upload(sent, x.view_mut())?;
    ///         nodes.launch(&double, Grid::cover(64, 64), (x.view_mut(),))?;
    ///         nodes.download(x.view(), back)?;
    ///         Ok((sent, back))
    ///     })
    ///     .depth(6)
    ///     .fill(|index, x| {
    ///         x.fill(index as u32);
    ///         Ok((index < 20).then_some(64))
    ///     });
    /// for item in running {
    ///     let item = item?;
    ///     assert_eq!(item[0], 2 * item.index() as u32);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn graphs<I: Layout, O: Layout>(
        self,
        input: I,
        _output: O,
        describe: impl FnMut(&Stream, &mut GraphBuilder) -> Result<(I::Keys, O::Keys)> + Send + 'static,
    ) -> Ready<I::Host, O::Host, ()> {
        Ready::new(OfGraphs::<I, O> {
            device: self.device,
            rows: self.rows,
            input,
            describe: Box::new(describe),
            slots: Vec::new(),
        })
    }
}

impl<I: Layout, S: Send + 'static> Stages<I, S> {
    /// Adds a stage that writes new buffers: it receives the slot's buffers so far, and the new ones. Later stages
    /// receive both as a pair.
    ///
    /// # Ordering
    /// The stage is ordered after the earlier stages of the same item. Stages of different items are unordered and may
    /// overlap.
    pub fn stage<N: Layout>(
        self,
        name: &str,
        adds: N,
        mut act: impl FnMut(&mut At<'_>, &mut S, &mut N::Device) -> Result<()> + Send + 'static,
    ) -> Stages<I, (S, N::Device)> {
        let chain = self.chain.with(adds);
        Stages { chain }.apply(name, move |at, (slot, new)| act(at, slot, new))
    }

    /// Adds a stage that works in the slot's existing buffers.
    ///
    /// # Ordering
    /// Like [`Stages::stage`].
    pub fn apply(
        self,
        name: &str,
        act: impl FnMut(&mut At<'_>, &mut S) -> Result<()> + Send + 'static,
    ) -> Stages<I, S> {
        self.push(name, false, act)
    }

    /// Adds a stage that items pass in order, each after the previous item has completed it: for a stage that updates
    /// state of its own, such as weights.
    ///
    /// ```
    /// use sidestream::device::Device;
    /// use sidestream::kernel::{Grid, Kernel, Read, Write};
    /// use sidestream::pipeline::{Pipeline, per_row};
    ///
    /// let device = Device::open("sim:h200")?;
    /// let stream = device.stream("weights")?;
    /// let mut sum = stream.alloc_zeroed::<u32>(1)?;
    /// let add = Kernel::<(Write<u32>, Write<u32>)>::on_host("add", |_, (x, sum)| {
    ///     sum[0] += x[0];
    ///     x[0] = sum[0];
    /// });
    /// let running = Pipeline::new(&device, 1)
    ///     .upload(per_row::<u32>(1))
    ///     .in_order("add", move |at, x| {
    ///         at.stream().launch(&add, Grid::new(1, 1), (x.view_mut(), sum.view_mut()))
    ///     })
    ///     .download(per_row::<u32>(1), |x| x)
    ///     .fill(|index, x| {
    ///         x[0] = 1;
    ///         Ok((index < 50).then_some(1))
    ///     });
    /// let sums: Vec<u32> = running.map(|item| item.map(|item| item[0])).collect::<Result<_, _>>()?;
    /// assert!(sums.iter().copied().eq(1..=50));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Ordering
    /// The stage is ordered after the earlier stages of the same item and, by an event, after this stage of the previous
    /// item; it waits for nothing else of that item.
    pub fn in_order(
        self,
        name: &str,
        act: impl FnMut(&mut At<'_>, &mut S) -> Result<()> + Send + 'static,
    ) -> Stages<I, S> {
        self.push(name, true, act)
    }

    /// Sets the buffers of each slot that the consumer receives: `of` returns them, and `layout` is their layout. Return the
    /// input for a pipeline that works in place; `()` for one whose results stay on the device.
    #[expect(
        clippy::type_complexity,
        reason = "its three type parameters are determined by the layouts"
    )]
    pub fn download<O: Layout>(
        self,
        output: O,
        of: impl Fn(&S) -> &O::Device + Send + 'static,
    ) -> Ready<I::Host, O::Host, (I::Sent, O::Sent)> {
        Ready::new(OnStreams {
            chain: self.chain,
            output,
            output_of: Box::new(of),
            slots: Vec::new(),
        })
    }

    fn push(
        mut self,
        name: &str,
        is_in_order: bool,
        act: impl FnMut(&mut At<'_>, &mut S) -> Result<()> + Send + 'static,
    ) -> Stages<I, S> {
        self.chain.stages.push(Stage {
            name: name.to_owned(),
            act: Box::new(act),
            is_in_order,
            last: None,
        });
        self
    }
}

impl<I: Send + 'static, O: Send + 'static, H> Ready<I, O, H> {
    fn new(body: impl Body<Input = I, Output = O, Held = H> + Send + 'static) -> Ready<I, O, H> {
        Ready {
            body: Box::new(body),
            settings: Settings::default(),
        }
    }

    /// Sets the number of slots, at least one. If it is not set, the first three items pass through a single slot and
    /// are timed, and their times determine it ([`Running::plan`]).
    pub fn depth(mut self, slots: usize) -> Self {
        self.settings.depth = Some(slots.max(1));
        self
    }

    /// Sets the depth that an earlier run has chosen.
    pub fn plan(self, plan: &Plan) -> Self {
        self.depth(plan.depth)
    }

    /// Times every stage of every item, for the [`Report`]. Each timed event costs the device some microseconds.
    pub fn timed(mut self) -> Self {
        self.settings.is_timed = true;
        self
    }

    /// Makes the pipeline wait for a source on threads before it waits for a result. The order of submission then does not
    /// depend on the speed of the source, so a run can be repeated exactly. A source that itself waits for a result
    /// deadlocks.
    pub fn lockstep(mut self) -> Self {
        self.settings.is_lockstep = true;
        self
    }

    /// Calls this function after each item is delivered, with the number of items delivered so far.
    pub fn progress(mut self, told: impl FnMut(u64) + Send + 'static) -> Self {
        self.settings.progress = Some(Box::new(told));
        self
    }

    /// Starts the pipeline with a source on the consumer's own thread: while the source fills an item, nothing is
    /// submitted or delivered. A run can be repeated exactly.
    ///
    /// `fill` receives the number of the item and its memory, which contains data of an earlier item, and returns the
    /// number of rows; `None` after the last item. It may replace the memory with its own, which a later call then
    /// receives.
    pub fn fill(
        self,
        fill: impl FnMut(u64, &mut I) -> Result<Option<usize>, BoxError> + Send + 'static,
    ) -> Running<I, O, H> {
        Running::new(self.body, Source::here(Box::new(fill)), self.settings)
    }

    /// Like [`Ready::fill`], but with the source on a separate thread: it fills the next items while the device and
    /// the consumer work.
    ///
    /// # Errors
    /// If the system cannot start another thread.
    pub fn fill_on_thread(
        self,
        fill: impl FnMut(u64, &mut I) -> Result<Option<usize>, BoxError> + Send + 'static,
    ) -> Result<Running<I, O, H>, Failed> {
        self.fill_by(vec![Box::new(fill)])
    }

    /// Like [`Ready::fill_on_thread`], but on several threads, each with a different item: for sources that can produce
    /// an item from its number. Items are still delivered in order; the smallest number without an item is the end.
    ///
    /// # Errors
    /// If the system cannot start another thread.
    pub fn fill_on_threads(
        self,
        threads: usize,
        fill: impl Fn(u64, &mut I) -> Result<Option<usize>, BoxError> + Send + Sync + 'static,
    ) -> Result<Running<I, O, H>, Failed> {
        let fill = Arc::new(fill);
        let each = (0..threads.max(1)).map(|_| -> Fill<I> {
            let fill = Arc::clone(&fill);
            Box::new(move |index, host| fill(index, host))
        });
        self.fill_by(each.collect())
    }

    fn fill_by(mut self, fills: Vec<Fill<I>>) -> Result<Running<I, O, H>, Failed> {
        self.settings.ahead = fills.len();
        let source = Source::on_threads(fills)?;
        Ok(Running::new(self.body, source, self.settings))
    }
}
