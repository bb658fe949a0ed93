//! Graphs: work that is described once and launched many times, each time at the cost of one call.
//!
//! A graph is built from nodes: kernels, copies and fills. It owns the memory that the nodes touch, and each node
//! declares what it reads and what it writes. The dependencies follow from that: a node is ordered after the earlier
//! nodes whose accesses conflict with its own, byte by byte, and may run concurrently with all others.
//!
//! ```
//! use sidestream::device::Device;
//! use sidestream::kernel::{Grid, Kernel, Read, Write};
//!
//! let device = Device::open("sim:h200")?;
//! let stream = device.stream("work")?;
//! let double = Kernel::<(Read<f32>, Write<f32>)>::on_host("double", |_, (x, y)| {
//!     for (y, x) in y.iter_mut().zip(x) {
//!         *y = 2.0 * x;
//!     }
//! });
//!
//! let mut nodes = device.graph();
//! let (x, y) = (nodes.own(stream.alloc::<f32>(4)?)?, nodes.own(stream.alloc::<f32>(4)?)?);
//! let sent = nodes.own_pinned(device.pinned::<f32>(4)?)?;
//! let back = nodes.own_pinned(device.pinned::<f32>(4)?)?;
//! nodes.upload(sent, x.view_mut())?;
//! nodes.launch(&double, Grid::cover(4, 256), (x.view(), y.view_mut()))?;
//! nodes.download(y.view(), back)?;
//! let mut graph = nodes.build()?;
//!
//! for round in [1.0, 10.0] {
//!     let values = [1.0, 2.0, 3.0, 4.0].map(|value| value * round);
//!     graph.synchronize_pinned(sent)?.copy_from_slice(&values);
//!     graph.launch(&stream)?;
//!     assert_eq!(graph.synchronize_pinned(back)?[3], 8.0 * round);
//! }
//! # Ok::<(), sidestream::error::Error>(())
//! ```

mod build;

use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

pub use build::GraphBuilder;

use crate::backend::{Address, Destroy, Payload};
use crate::buffer::{DeviceBuf, Pinned, Pod, Refused, View, ViewMut};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::kernel::part::At;
use crate::op::{DeviceId, GraphId, Kind, Mode};
use crate::stream::Stream;
use crate::tracker::{Block, Call, Conflicts, Mark, Place, Runtime, Touch, outside_callbacks};

pub use crate::kernel::part::{BufKey, NodeId, Part, PartMut, PinnedKey, PinnedPart};
pub(crate) use crate::kernel::part::{NodeArg, Piece};

/// An executable graph, with the memory that its nodes touch.
///
/// Made by [`Device::graph`](crate::device::Device::graph) and [`GraphBuilder::build`]. Between launches its memory
/// is used like any other: other streams use views of its buffers ([`Graph::view`], [`Graph::view_mut`]), the host
/// uses its pinned memory ([`Graph::pinned`], [`Graph::pinned_mut`], [`Graph::synchronize_pinned`]).
/// [`Graph::into_buffers`] gives all of the memory back.
///
/// # Ordering
/// Dropping a graph does not wait: launches that were submitted still run, and the memory goes to the allocator with
/// them as its last use.
pub struct Graph {
    // Dropped before the memory, so that no launch is possible when the memory is dropped.
    executable: Executable,
    device: DeviceId,
    /// The point at which the last launch ends. Dropped before the runtime, as in `Holdings`.
    launched: Option<Mark>,
    /// Whether a builder has the graph's memory: see [`Graph::edit`].
    is_edited: bool,
    holdings: Holdings,
    /// The accesses of a launch, of all nodes together: per buffer disjoint and sorted.
    touches: Vec<Touched>,
}

/// The memory of a graph that was given up. See [`Graph::into_buffers`].
pub struct GraphBuffers {
    holdings: Holdings,
}

impl Graph {
    /// Submits all nodes to the stream, as one call. The returned event is complete when all nodes are.
    ///
    /// The cost of a launch does not depend on the number of nodes, only on the number of buffers that they touch.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream, the graph's own last launch on any stream, the last writes of what
    /// its nodes read and all uses of what they write. Does not block the host.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream belongs to another device, or any error that the driver returns.
    #[track_caller]
    pub fn launch(&mut self, stream: &Stream) -> Result<Event> {
        let at = Location::caller();
        let runtime = &self.holdings.runtime;
        stream.same_machine("graph launch", runtime)?;
        if stream.core.device != self.device {
            return Err(Error::Invalid {
                call: "graph launch",
                why: format!(
                    "the graph was built for device {} and the stream belongs to device {}; launch it \
                     on a stream of its own device, or build another",
                    self.device.0, stream.core.device.0
                ),
            });
        }
        if self.is_edited {
            return Err(Error::Invalid {
                call: "graph launch",
                why: "the graph is being edited; pass the new description to `update` first".into(),
            });
        }
        self.not_lent("graph launch")?;
        let mark = self.issue(stream, at)?;
        let runtime = Arc::clone(runtime);
        self.holdings.last = Some(mark.clone());
        self.launched = Some(mark.clone());
        Ok(Event { runtime, mark })
    }

    /// Returns a view of a buffer, for other streams to read.
    ///
    /// # Ordering
    /// Work that uses the view is ordered after the launches that write the buffer; the next launch that writes it is
    /// ordered after that work.
    ///
    /// # Panics
    /// If the key belongs to another graph.
    #[track_caller]
    pub fn view<T: Pod>(&self, key: BufKey<T>) -> View<'_, T> {
        self.holdings.buffer(key).view()
    }

    /// Returns a view of a buffer, for other streams to write.
    ///
    /// # Ordering
    /// Work that uses the view is ordered after all launches; the next launch is ordered after that work.
    ///
    /// # Panics
    /// If the key belongs to another graph.
    #[track_caller]
    pub fn view_mut<T: Pod>(&mut self, key: BufKey<T>) -> ViewMut<'_, T> {
        self.holdings.buffer_mut(key).view_mut()
    }

    /// Returns the content of pinned memory, which no launch may still be writing.
    ///
    /// # Ordering
    /// Does not block the host.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a launch that writes it may not be complete; or the error of work that failed on the
    /// device.
    ///
    /// # Panics
    /// If the key belongs to another graph.
    #[track_caller]
    pub fn pinned<T: Pod>(&self, key: PinnedKey<T>) -> Result<&[T]> {
        let at = Location::caller();
        self.holdings.query("pinned", key.at, Mode::Read, at)?;
        Ok(self.holdings.pinned(key))
    }

    /// Returns pinned memory for the host to write, which no launch may still be using.
    ///
    /// # Ordering
    /// Does not block the host. The next launch sees what the host wrote.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a launch that uses it may not be complete; or the error of work that failed on the
    /// device.
    ///
    /// # Panics
    /// If the key belongs to another graph.
    #[track_caller]
    pub fn pinned_mut<T: Pod>(&mut self, key: PinnedKey<T>) -> Result<&mut [T]> {
        let at = Location::caller();
        self.holdings.query("pinned_mut", key.at, Mode::Write, at)?;
        Ok(self.holdings.pinned_mut(key))
    }

    /// Like [`Graph::pinned_mut`], but waits until no launch uses the memory.
    ///
    /// # Ordering
    /// Blocks the host until the launches that use the memory are complete.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    ///
    /// # Panics
    /// If the key belongs to another graph.
    #[track_caller]
    pub fn synchronize_pinned<T: Pod>(&mut self, key: PinnedKey<T>) -> Result<&mut [T]> {
        self.holdings.synchronize(key.at, Location::caller())?;
        Ok(self.holdings.pinned_mut(key))
    }

    /// Takes pinned memory out of the graph, so that another thread can work on it. The graph cannot be launched
    /// until the memory is returned.
    ///
    /// # Ordering
    /// Blocks the host until the launches that use the memory are complete.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    ///
    /// # Panics
    /// If the key belongs to another graph, or the memory was already taken.
    #[track_caller]
    pub fn lend_pinned<T: Pod>(&mut self, key: PinnedKey<T>) -> Result<Pinned<T>> {
        self.holdings.synchronize(key.at, Location::caller())?;
        self.holdings
            .lent
            .push((key.at.index, self.holdings.block(key.at.index).address));
        Ok(self.holdings.take(key.at))
    }

    /// Returns memory that [`Graph::lend_pinned`] took.
    ///
    /// # Errors
    /// The error returns the memory if it is not the memory that was lent for this key.
    #[track_caller]
    pub fn return_pinned<T: Pod + Send + Sync>(
        &mut self,
        key: PinnedKey<T>,
        memory: Pinned<T>,
    ) -> Result<(), Refused<Pinned<T>>> {
        let index = key.at.of(self.holdings.graph);
        let same = (index as u32, memory.block().address);
        let lent = self.holdings.lent.iter().position(|lent| *lent == same);
        let is_ours = Arc::ptr_eq(&memory.block().runtime, &self.holdings.runtime);
        let (Some(lent), true) = (lent, is_ours && memory.len() == key.len()) else {
            let why = "it is not the memory that the graph lent for this key";
            let (call, why) = ("return_pinned", why.into());
            return Err(Refused::new(Error::Invalid { call, why }, memory));
        };
        self.holdings.lent.swap_remove(lent);
        self.holdings.values[index] = Some(Box::new(memory));
        Ok(())
    }

    /// Begins a new description of the graph over the memory that it owns: its keys stay valid, and
    /// [`GraphBuilder::own`] adds to them. [`Graph::update`] takes the description.
    ///
    /// Until then the builder has the memory, and the graph cannot be launched. A builder that is dropped drops the
    /// memory too; one that is [built](GraphBuilder::build) becomes another graph.
    ///
    /// # Ordering
    /// Does not wait: launches that were submitted still run.
    ///
    /// # Errors
    /// [`Error::Invalid`] if pinned memory of the graph is lent, or the graph is already being edited.
    pub fn edit(&mut self) -> Result<GraphBuilder> {
        self.not_lent("edit")?;
        if self.is_edited {
            return Err(Error::Invalid {
                call: "edit",
                why: "the graph is already being edited; continue with that builder".into(),
            });
        }
        let without = Holdings::new(&self.holdings.runtime);
        let holdings = std::mem::replace(&mut self.holdings, without);
        self.is_edited = true;
        self.touches.clear();
        Ok(GraphBuilder::over(self.device, holdings))
    }

    /// Changes the graph to another description of the same shape: equally many nodes of the same kinds with the same
    /// dependencies, but with other arguments, grids, sizes and memory. The driver's graph is updated and not
    /// instantiated again, which would take longer.
    ///
    /// The description comes from [`Graph::edit`], over the same memory, or from
    /// [`Device::graph`](crate::device::Device::graph), with its own memory; from here on its keys are those of the
    /// graph. Memory that the graph owned until now and the description does not contain is returned.
    ///
    /// ```
    /// # use sidestream::device::Device;
    /// use sidestream::kernel::{Grid, Kernel, Value, Write};
    ///
    /// # let device = Device::open("sim:h200")?;
    /// # let stream = device.stream("work")?;
    /// let fill = Kernel::<(Write<u32>, Value<u32>)>::on_host("fill", |_, (x, n)| x.fill(n));
    /// let mut nodes = device.graph();
    /// let x = nodes.own(stream.alloc(8)?)?;
    /// nodes.launch(&fill, Grid::new(1, 32), (x.view_mut(), 1))?;
    /// let mut graph = nodes.build()?;
    /// graph.launch(&stream)?;
    ///
    /// let mut nodes = graph.edit()?;
    /// nodes.launch(&fill, Grid::new(1, 32), (x.view_mut(), 2))?;
    /// graph.update(nodes)?;
    /// graph.launch(&stream)?;
    /// let mut host = [0; 8];
    /// stream.memcpy_d2h(graph.view(x), &mut host)?;
    /// assert_eq!(host, [2; 8]);
    /// # Ok::<(), sidestream::error::Error>(())
    /// ```
    ///
    /// # Ordering
    /// Does not wait: launches that were submitted still do what the graph described then, and the next launch is
    /// ordered after them.
    ///
    /// # Errors
    /// The error returns the description with its memory: [`Error::Refused`] with the driver's code 910 if its shape
    /// differs, or if the driver cannot update the graph to it (then [build](GraphBuilder::build) a new graph from it);
    /// [`Error::Invalid`] if it is for another device; [`Error::NoForm`] as for a build. The graph stays as it was, but
    /// cannot be launched while the description has its memory.
    #[expect(clippy::result_large_err, reason = "the error returns the description")]
    pub fn update(&mut self, nodes: GraphBuilder) -> Result<GraphBuffers, Refused<GraphBuilder>> {
        let updated = nodes.belongs_to(&self.holdings.runtime, self.device);
        let updated = updated.and_then(|()| nodes.make(self.executable.id));
        if let Err(error) = updated {
            return Err(Refused::new(error, nodes));
        }
        let (holdings, touches) = nodes.into_parts();
        self.touches = touches;
        self.is_edited = false;
        let holdings = std::mem::replace(&mut self.holdings, holdings);
        Ok(GraphBuffers { holdings })
    }

    fn not_lent(&self, call: &'static str) -> Result<()> {
        if self.holdings.lent.is_empty() {
            Ok(())
        } else {
            Err(Error::Invalid {
                call,
                why: "pinned memory of the graph is lent; return it with `return_pinned`".into(),
            })
        }
    }

    /// Gives up the graph and keeps its memory.
    ///
    /// # Ordering
    /// Does not wait: launches that were submitted still run.
    pub fn into_buffers(self) -> GraphBuffers {
        GraphBuffers {
            holdings: self.holdings,
        }
    }

    fn issue(&self, stream: &Stream, at: Place) -> Result<Mark> {
        let touches = self.touches.iter().map(|touched| Touch {
            block: self.holdings.block(touched.index),
            start: touched.start,
            end: touched.end,
            mode: touched.mode,
        });
        let touches: SmallVec<[Touch<'_>; 8]> = touches.collect();
        let mark = stream.issue(Call {
            kind: Kind::GraphLaunch {
                stream: stream.core.id,
                graph: self.executable.id,
            },
            payload: Payload::Graph,
            touches: &touches,
            sources: &mut [],
            behind: self.launched.as_ref().map(Mark::point),
            is_awaited: true,
            at,
        })?;
        let Some(mark) = mark else {
            unreachable!("a call that is awaited has a mark")
        };
        Ok(mark)
    }
}

impl GraphBuffers {
    /// Takes a buffer. Launches that use it may be in flight: the next use is ordered after them.
    ///
    /// # Panics
    /// If the key belongs to another graph, or the buffer was already taken.
    #[track_caller]
    pub fn take<T: Pod>(&mut self, key: BufKey<T>) -> DeviceBuf<T> {
        self.holdings.take(key.at)
    }

    /// Takes pinned memory, once no launch uses it.
    ///
    /// # Ordering
    /// Blocks the host until the launches that use the memory are complete.
    ///
    /// # Errors
    /// The error of work that failed on the device; the memory stays here.
    ///
    /// # Panics
    /// If the key belongs to another graph, or the memory was already taken.
    #[track_caller]
    pub fn synchronize_pinned<T: Pod>(&mut self, key: PinnedKey<T>) -> Result<Pinned<T>> {
        self.holdings.synchronize(key.at, Location::caller())?;
        Ok(self.holdings.take(key.at))
    }
}

/// A range of bytes of a buffer that a launch reads or writes.
struct Touched {
    index: u32,
    start: u64,
    end: u64,
    mode: Mode,
}

/// The back end's executable graph.
struct Executable {
    runtime: Arc<Runtime>,
    id: GraphId,
}

impl Drop for Executable {
    fn drop(&mut self) {
        let (runtime, id) = (Arc::clone(&self.runtime), self.id);
        // SAFETY: the graph was made by its builder, and this is its only handle, which is being dropped.
        outside_callbacks(move || unsafe { runtime.backend.destroy(Destroy::Graph(id)) });
    }
}

/// Returns a number for a new list: see [`At`].
fn new_list() -> u64 {
    static LISTS: AtomicU64 = AtomicU64::new(0);
    LISTS.fetch_add(1, Ordering::Relaxed)
}

/// The memory that a graph owns, indexed by the number in its key.
struct Holdings {
    /// A number that no other graph of any machine has: a key contains the number of its graph.
    graph: u64,
    values: Vec<Option<Box<dyn Owned>>>,
    /// The point at which the last launch ends.
    last: Option<Mark>,
    /// Pinned memory that is lent: the number in its key, and its address.
    lent: Vec<(u32, Address)>,
    // Dropped after the mark, whose event is destroyed with the machine.
    runtime: Arc<Runtime>,
}

/// A [`DeviceBuf`] or a [`Pinned`] with its type erased; the key has the type.
trait Owned: Any + Send + Sync {
    fn memory(&self) -> &Block;
}

impl<T: Pod + Send + Sync> Owned for DeviceBuf<T> {
    fn memory(&self) -> &Block {
        self.block()
    }
}

impl<T: Pod + Send + Sync> Owned for Pinned<T> {
    fn memory(&self) -> &Block {
        self.block()
    }
}

impl Holdings {
    fn new(runtime: &Arc<Runtime>) -> Holdings {
        Holdings {
            graph: new_list(),
            values: Vec::new(),
            last: None,
            lent: Vec::new(),
            runtime: Arc::clone(runtime),
        }
    }

    fn block(&self, index: u32) -> &Block {
        let value = self.values[index as usize].as_deref();
        value
            .expect("the graph still owns the memory that it touches")
            .memory()
    }

    #[track_caller]
    fn buffer<T: Pod>(&self, key: BufKey<T>) -> &DeviceBuf<T> {
        let value: &dyn Any = self.value(key.at);
        value.downcast_ref().expect(SAME_TYPE)
    }

    #[track_caller]
    fn buffer_mut<T: Pod>(&mut self, key: BufKey<T>) -> &mut DeviceBuf<T> {
        let value: &mut dyn Any = self.value_mut(key.at);
        value.downcast_mut().expect(SAME_TYPE)
    }

    #[track_caller]
    fn pinned<T: Pod>(&self, key: PinnedKey<T>) -> &Pinned<T> {
        let value: &dyn Any = self.value(key.at);
        value.downcast_ref().expect(SAME_TYPE)
    }

    #[track_caller]
    fn pinned_mut<T: Pod>(&mut self, key: PinnedKey<T>) -> &mut Pinned<T> {
        let value: &mut dyn Any = self.value_mut(key.at);
        value.downcast_mut().expect(SAME_TYPE)
    }

    #[track_caller]
    fn take<V: Any>(&mut self, at: At) -> V {
        let value = self.values[at.of(self.graph)].take().expect(TAKEN);
        let value: Box<dyn Any> = value;
        *value.downcast().expect(SAME_TYPE)
    }

    #[track_caller]
    fn value(&self, at: At) -> &dyn Owned {
        self.values[at.of(self.graph)].as_deref().expect(TAKEN)
    }

    #[track_caller]
    fn value_mut(&mut self, at: At) -> &mut dyn Owned {
        self.values[at.of(self.graph)].as_deref_mut().expect(TAKEN)
    }

    /// # Errors
    /// If the host's intended access conflicts with a use that may not be complete.
    #[track_caller]
    fn query(&self, call: &'static str, at: At, mode: Mode, place: Place) -> Result<()> {
        for mark in self.conflicts(at, mode) {
            if !self.runtime.query(&mark, place)? {
                return Err(Error::Invalid {
                    call,
                    why: "a launch of the graph still uses the pinned memory; wait with \
                          `synchronize_pinned`, or for the event of the launch"
                        .into(),
                });
            }
        }
        Ok(())
    }

    #[track_caller]
    fn synchronize(&self, at: At, place: Place) -> Result<()> {
        let mut uses = self.conflicts(at, Mode::Write).into_iter();
        uses.try_for_each(|mark| self.runtime.synchronize(&mark, place))
    }

    #[track_caller]
    fn conflicts(&self, at: At, mode: Mode) -> Conflicts {
        let block = self.value(at).memory();
        let mut conflicts = Conflicts::new();
        let state = block.state.lock();
        let all = 0..block.size_bytes;
        (state.uses).conflicts(all, mode, |mark| conflicts.push(mark.clone()));
        if !self.runtime.is_tracking {
            // The uses of untracked memory are unknown: the last launch may be one of them.
            conflicts.extend(self.last.clone());
        }
        conflicts
    }
}

const SAME_TYPE: &str = "a key has the type of the memory that it names";
const TAKEN: &str = "the memory was already taken";

impl Drop for Holdings {
    fn drop(&mut self) {
        // A lost device may still use the memory, so it is leaked and never reused.
        if self.runtime.is_lost() {
            std::mem::forget(std::mem::take(&mut self.values));
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, device) = (self.executable.id.0, self.device.0);
        write!(f, "Graph({id} on device {device})")
    }
}

impl fmt::Debug for GraphBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.holdings.values.iter().flatten().count();
        write!(f, "GraphBuffers({left} left)")
    }
}
