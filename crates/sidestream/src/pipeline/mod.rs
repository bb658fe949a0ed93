//! Pipelines: items flow from a source through stages on the device to a consumer, several at once.
//!
//! A pipeline has a ring of slots. A slot is the memory for one item and a stream, on which the item
//! goes from its upload to its download; item `i` goes into slot `i mod depth`. Different items are
//! on different streams, so that one is copied while another is computed. Within an item nothing
//! waits for an event. Besides the calls of its stages, an item costs the host one record and one query.
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
//! # What cannot be read too early
//! A stage sees the buffers of the stages before it, because each adds its own to the slot's type.
//! The host sees an input only while the source fills it, and an output only as an [`Item`], which
//! exists when the download is over. This does not compile:
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
//! An error or a panic of the source, of a stage or of the consumer ends the pipeline as a [`Failed`]
//! with the stage's name and the item's number. The items before it are delivered first. Nothing
//! after it is started; what the source had filled by then is dropped.

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

/// A pipeline whose stages are being listed. `S` is what a slot holds so far.
pub struct Stages<I: Layout, S> {
    chain: Chain<I, S>,
}

/// A pipeline that lacks only its source.
pub struct Ready<I, O, H> {
    body: Box<dyn Body<Input = I, Output = O, Held = H> + Send>,
    settings: Settings,
}

impl Pipeline {
    /// A pipeline on this device, whose items have up to `rows` rows. What a row is, the layouts
    /// say: a sample with its label, or just a number.
    pub fn new(device: &Device, rows: usize) -> Pipeline {
        let device = device.clone();
        Pipeline { device, rows }
    }

    /// What the source fills and each slot begins with.
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

    /// A graph for each slot, so that an item is one launch. `describe` is called once a slot: it
    /// allocates on the slot's stream, gives the memory to the graph, adds the nodes, and names the
    /// pinned memory that the source fills and the one that the consumer gets.
    ///
    /// An item with fewer rows is computed whole, with zeros in the rows that it lacks. The consumer
    /// must drop an item before its slot comes round again.
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
    /// A stage that writes buffers of its own: it gets what the slot holds so far, and these buffers.
    /// Later stages see both as a pair.
    ///
    /// # Ordering
    /// Runs after the earlier stages of the same item. Stages of different items run side by
    /// side.
    pub fn stage<N: Layout>(
        self,
        name: &str,
        adds: N,
        mut act: impl FnMut(&mut At<'_>, &mut S, &mut N::Device) -> Result<()> + Send + 'static,
    ) -> Stages<I, (S, N::Device)> {
        let chain = self.chain.with(adds);
        Stages { chain }.apply(name, move |at, (slot, new)| act(at, slot, new))
    }

    /// A stage that works in what the slot holds.
    ///
    /// # Ordering
    /// As [`Stages::stage`].
    pub fn apply(
        self,
        name: &str,
        act: impl FnMut(&mut At<'_>, &mut S) -> Result<()> + Send + 'static,
    ) -> Stages<I, S> {
        self.push(name, false, act)
    }

    /// A stage that items pass in order, each when the one before has left it: for a stage that updates
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
    /// Runs after the earlier stages of the same item and after this stage of the item before,
    /// by an event: nothing else of that item is waited for.
    pub fn in_order(
        self,
        name: &str,
        act: impl FnMut(&mut At<'_>, &mut S) -> Result<()> + Send + 'static,
    ) -> Stages<I, S> {
        self.push(name, true, act)
    }

    /// What the consumer gets of each slot; the layout is that of the buffers that `of` names. Name
    /// the input for a pipeline that works in place; `()` for one whose results stay on the device.
    #[expect(
        clippy::type_complexity,
        reason = "three types that the layouts decide"
    )]
    pub fn download<O: Layout>(
        self,
        output: O,
        of: impl Fn(&S) -> &O::Device + Send + 'static,
    ) -> Ready<I::Host, O::Host, (I::Sent, O::Sent)> {
        Ready::new(OnStreams::new(self.chain, output, Box::new(of)))
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
        });
        self
    }
}

impl<I: Send + 'static, O: Send + 'static, H> Ready<I, O, H> {
    fn new(body: impl Body<Input = I, Output = O, Held = H> + Send + 'static) -> Ready<I, O, H> {
        Ready {
            body: Box::new(body),
            settings: Settings {
                depth: None,
                is_timed: false,
                is_lockstep: false,
                ahead: 0,
                progress: None,
            },
        }
    }

    /// How many slots; at least one. If it is not set, the first three items go through one slot
    /// alone, are timed, and decide ([`Running::plan`]).
    pub fn depth(mut self, slots: usize) -> Self {
        self.settings.depth = Some(slots.max(1));
        self
    }

    /// The depth that an earlier run has chosen.
    pub fn plan(self, plan: &Plan) -> Self {
        self.depth(plan.depth)
    }

    /// Times every stage of every item, for the [`Report`]. Each timed point costs the device some
    /// microseconds.
    pub fn timed(mut self) -> Self {
        self.settings.is_timed = true;
        self
    }

    /// Waits for a source on threads before it waits for a result. What is submitted then does not
    /// depend on how fast the source is, so a run can be repeated. A source that itself waits for a
    /// result hangs.
    pub fn lockstep(mut self) -> Self {
        self.settings.is_lockstep = true;
        self
    }

    /// Calls this with the number of delivered items, after each.
    pub fn progress(mut self, told: impl FnMut(u64) + Send + 'static) -> Self {
        self.settings.progress = Some(Box::new(told));
        self
    }

    /// Starts it, with a source on the consumer's own thread: while the source fills an item, nothing is
    /// submitted or delivered. A run can be repeated exactly.
    ///
    /// `fill` gets the number of the item and its memory, which holds what an earlier item left, and
    /// says how many rows there are; `None` after the last item. It may replace the memory that it got
    /// with its own, which then comes to a later call.
    pub fn fill(
        self,
        fill: impl FnMut(u64, &mut I) -> Result<Option<usize>, BoxError> + Send + 'static,
    ) -> Running<I, O, H> {
        Running::new(self.body, Source::here(Box::new(fill)), self.settings)
    }

    /// The same with a source on a thread of its own: it reads the next items while the device works
    /// and the consumer consumes.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn fill_on_thread(
        self,
        fill: impl FnMut(u64, &mut I) -> Result<Option<usize>, BoxError> + Send + 'static,
    ) -> Result<Running<I, O, H>, Failed> {
        self.fill_by(vec![Box::new(fill)])
    }

    /// The same on several threads, each with an item of its own: for sources that find an item by
    /// its number. Items are delivered in their order all the same; the first number without an item
    /// is the end.
    ///
    /// # Errors
    /// If the system has no more threads.
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
