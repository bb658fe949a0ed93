//! Building a graph: its nodes, and the dependencies between them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::{
    BufKey, Executable, Graph, Holdings, NodeArg, NodeId, Owned, Part, PartMut, Piece, PinnedKey,
    PinnedPart, Touched, new_list,
};
use crate::backend::{Address, Arg, Create, Grid, Node, NodeWork};
use crate::buffer::{DeviceBuf, Pinned, Pod, Refused};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::part::At;
use crate::kernel::{Kernel, KernelArgs};
use crate::op::{Accesses, DeviceId, GraphId, Kind, Mode, Op, OpId, SiteId, StreamId, ThreadId};
use crate::stream::{CopyPlan, FillPlan, Rows, not_empty};
use crate::tracker::{Block, Conflicts, Runtime, UseMark, Uses};

/// Collects the memory and the nodes of a graph.
///
/// A node is ordered after the earlier nodes whose accesses conflict with its own: it reads or writes bytes that they
/// write, or writes bytes that they read. [`GraphBuilder::after`] adds dependencies that accesses do not show. All
/// other nodes may run concurrently.
pub struct GraphBuilder {
    /// The number of this description; its nodes contain the number.
    description: u64,
    device: DeviceId,
    holdings: Holdings,
    nodes: Vec<Node>,
    /// Per buffer: its uses by the nodes so far.
    uses: Vec<Uses<NodeNumber>>,
    /// Per buffer: the ranges that the nodes read, and those that they write.
    reads: Vec<Vec<Range<u64>>>,
    writes: Vec<Vec<Range<u64>>>,
}

/// A node's index among the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NodeNumber(u32);

/// Maximum number of ranges of a buffer that are tracked one by one at each launch. If there are more, the whole range
/// from the first byte to the last is tracked.
const RANGES_TRACKED: usize = 16;

impl Device {
    /// Begins a graph without nodes, whose kernels run on this device. See [`graph`](crate::graph).
    pub fn graph(&self) -> GraphBuilder {
        GraphBuilder::over(self.id(), Holdings::new(&self.runtime))
    }
}

impl GraphBuilder {
    /// Takes a device buffer for the nodes to use. The graph owns it from here on.
    ///
    /// # Ordering
    /// The first launch waits for the buffer's pending uses.
    ///
    /// # Errors
    /// The error returns the buffer if it belongs to another machine.
    pub fn own<T: Pod + Send + Sync>(
        &mut self,
        buffer: DeviceBuf<T>,
    ) -> Result<BufKey<T>, Refused<DeviceBuf<T>>> {
        let len = buffer.len();
        let at = self.hold("own", buffer)?;
        Ok(BufKey::new(at, len))
    }

    /// Takes pinned host memory for copies to use. The graph owns it from here on.
    ///
    /// # Errors
    /// The error returns the memory if it belongs to another machine.
    pub fn own_pinned<T: Pod + Send + Sync>(
        &mut self,
        memory: Pinned<T>,
    ) -> Result<PinnedKey<T>, Refused<Pinned<T>>> {
        let len = memory.len();
        let at = self.hold("own_pinned", memory)?;
        Ok(PinnedKey::new(at, len))
    }

    /// Adds the launch of a kernel. Its arguments are parts of the graph's buffers, and numbers; every launch of the
    /// graph uses the same numbers.
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
    /// // The halves do not overlap: the two kernels may run concurrently.
    /// nodes.launch(&fill, Grid::new(1, 32), (x.slice_mut(..4), 1))?;
    /// nodes.launch(&fill, Grid::new(1, 32), (x.slice_mut(4..), 2))?;
    /// let mut graph = nodes.build()?;
    /// graph.launch(&stream)?;
    /// let mut host = [0; 8];
    /// stream.memcpy_d2h(graph.view(x), &mut host)?;
    /// assert_eq!(host, [1, 1, 1, 1, 2, 2, 2, 2]);
    /// # Ok::<(), sidestream::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if a buffer is on another device, the grid is empty, or a part that is written overlaps
    /// another argument.
    ///
    /// # Panics
    /// If a key belongs to another graph.
    #[track_caller]
    pub fn launch<A: KernelArgs>(
        &mut self,
        kernel: &Kernel<A>,
        grid: Grid,
        args: A::Node,
    ) -> Result<NodeId> {
        let mut passed = SmallVec::new();
        A::pass_node(args, &mut passed);
        let what = format!("kernel `{}`", kernel.name());
        let pieces = passed.iter().filter_map(NodeArg::piece);
        let pieces: SmallVec<[Piece; 4]> = pieces.collect();
        let refuse = |why: &str| Error::Invalid {
            call: "launch",
            why: why.into(),
        };
        if pieces.iter().any(|p| self.block(p).device != self.device) {
            let why = "a buffer is on another device than the graph; copy it first";
            return Err(self.at_node(&what, refuse(why)));
        }
        (not_empty(grid, kernel.name()))
            .and_then(|()| apart("launch", &pieces))
            .map_err(|error| self.at_node(&what, error))?;
        let args = passed.iter().map(|arg| match arg {
            NodeArg::Memory(piece) => Arg::Memory {
                at: self.address(piece),
                bytes: piece.end - piece.start,
                mode: piece.mode,
            },
            NodeArg::Value(value) => *value,
        });
        let work = NodeWork::Launch {
            code: Arc::clone(kernel.code()),
            grid,
            args: args.collect(),
        };
        let kind = Kind::kernel(NO_STREAM);
        Ok(self.add(kind, work, &pieces))
    }

    /// Adds a copy from pinned memory to a device.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lengths differ.
    ///
    /// # Panics
    /// If a key belongs to another graph.
    #[track_caller]
    pub fn upload<T: Pod>(
        &mut self,
        from: impl Into<PinnedPart<T>>,
        to: PartMut<T>,
    ) -> Result<NodeId> {
        let from = from.into();
        let plan = CopyPlan::all::<T>("upload", from.len(), to.len());
        self.copy(plan, from.piece(Mode::Read), to.piece())
    }

    /// Adds a copy of rows in pinned memory to rows on a device.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a side is too small for its rows, or the rows of the two sides do not match.
    ///
    /// # Panics
    /// If a key belongs to another graph.
    #[track_caller]
    pub fn upload_rows<T: Pod>(
        &mut self,
        from: impl Into<PinnedPart<T>>,
        from_rows: Rows,
        to: PartMut<T>,
        to_rows: Rows,
    ) -> Result<NodeId> {
        let from = from.into();
        let sides = ((from_rows, from.len()), (to_rows, to.len()));
        let plan = CopyPlan::rows::<T>("upload_rows", sides.0, sides.1);
        self.copy(plan, from.piece(Mode::Read), to.piece())
    }

    /// Adds a copy from a device to pinned memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lengths differ.
    ///
    /// # Panics
    /// If a key belongs to another graph.
    #[track_caller]
    pub fn download<T: Pod>(
        &mut self,
        from: Part<T>,
        to: impl Into<PinnedPart<T>>,
    ) -> Result<NodeId> {
        let to = to.into();
        let plan = CopyPlan::all::<T>("download", from.len(), to.len());
        self.copy(plan, from.piece(), to.piece(Mode::Write))
    }

    /// Adds a copy of rows on a device to rows in pinned memory.
    ///
    /// # Errors
    /// As for [`GraphBuilder::upload_rows`].
    ///
    /// # Panics
    /// If a key belongs to another graph.
    #[track_caller]
    pub fn download_rows<T: Pod>(
        &mut self,
        from: Part<T>,
        from_rows: Rows,
        to: impl Into<PinnedPart<T>>,
        to_rows: Rows,
    ) -> Result<NodeId> {
        let to = to.into();
        let sides = ((from_rows, from.len()), (to_rows, to.len()));
        let plan = CopyPlan::rows::<T>("download_rows", sides.0, sides.1);
        self.copy(plan, from.piece(), to.piece(Mode::Write))
    }

    /// Adds a copy on one device, or from one device to another.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lengths differ or the two overlap.
    ///
    /// # Panics
    /// If a key belongs to another graph.
    #[track_caller]
    pub fn memcpy_d2d<T: Pod>(&mut self, from: Part<T>, to: PartMut<T>) -> Result<NodeId> {
        let plan = CopyPlan::all::<T>("memcpy_d2d", from.len(), to.len());
        self.copy(plan, from.piece(), to.piece())
    }

    /// Adds a copy of rows on a device to other rows on the device.
    ///
    /// # Errors
    /// As for [`GraphBuilder::upload_rows`]; also if the two overlap.
    ///
    /// # Panics
    /// If a key belongs to another graph.
    #[track_caller]
    pub fn memcpy_d2d_rows<T: Pod>(
        &mut self,
        from: Part<T>,
        from_rows: Rows,
        to: PartMut<T>,
        to_rows: Rows,
    ) -> Result<NodeId> {
        let sides = ((from_rows, from.len()), (to_rows, to.len()));
        let plan = CopyPlan::rows::<T>("memcpy_d2d_rows", sides.0, sides.1);
        self.copy(plan, from.piece(), to.piece())
    }

    /// Adds a node that sets every byte to `byte`.
    ///
    /// # Errors
    /// None at present.
    ///
    /// # Panics
    /// If the key belongs to another graph.
    #[track_caller]
    pub fn memset<T: Pod>(&mut self, to: PartMut<T>, byte: u8) -> Result<NodeId> {
        Ok(self.fill(FillPlan::bytes::<T>(byte), to.len(), to.piece()))
    }

    /// Adds a node that sets every value; a value has one, two or four bytes, or repeats the same four bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for values of another size.
    ///
    /// # Panics
    /// If the key belongs to another graph.
    #[track_caller]
    pub fn fill_with<T: Pod>(&mut self, to: PartMut<T>, value: T) -> Result<NodeId> {
        let plan = FillPlan::value(&value).map_err(|error| self.at_node("fill", error))?;
        Ok(self.fill(plan, to.len(), to.piece()))
    }

    /// Orders `node` after `earlier`, even if they touch no common memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `earlier` was not added before `node`.
    ///
    /// # Panics
    /// If a node belongs to another graph, or to an earlier description of this one.
    #[track_caller]
    pub fn after(&mut self, node: NodeId, earlier: NodeId) -> Result<()> {
        let place = |node: NodeId| node.0.within(self.description, OTHER_NODE);
        let (at, before) = (place(node), place(earlier));
        if before >= at {
            return Err(Error::Invalid {
                call: "after",
                why: format!(
                    "node {at} cannot be ordered after node {before}, which was not added before it; \
                     add the nodes in the order in which they are to run"
                ),
            });
        }
        let after = &mut self.nodes[at].after;
        if !after.contains(&(before as u32)) {
            after.push(before as u32);
        }
        Ok(())
    }

    /// Makes the graph executable.
    ///
    /// # Ordering
    /// Runs nothing and waits for nothing.
    ///
    /// # Errors
    /// [`Error::NoForm`] if a kernel has no form for the device, or any error that the driver returns. The memory is
    /// dropped then.
    pub fn build(self) -> Result<Graph> {
        let runtime = Arc::clone(&self.holdings.runtime);
        let id = GraphId(runtime.graphs.fetch_add(1, Ordering::Relaxed));
        self.make(id)?;
        let device = self.device;
        let (holdings, touches) = self.into_parts();
        Ok(Graph {
            executable: Executable { runtime, id },
            device,
            launched: None,
            is_edited: false,
            holdings,
            touches,
        })
    }

    /// Begins a description of a graph that owns this memory, without nodes.
    pub(super) fn over(device: DeviceId, holdings: Holdings) -> GraphBuilder {
        let owned = 0..holdings.values.len();
        GraphBuilder {
            description: new_list(),
            device,
            uses: owned.clone().map(|_| Uses::default()).collect(),
            reads: vec![Vec::new(); owned.len()],
            writes: vec![Vec::new(); owned.len()],
            holdings,
            nodes: Vec::new(),
        }
    }

    /// # Errors
    /// If the description is for another device.
    pub(super) fn belongs_to(&self, runtime: &Arc<Runtime>, device: DeviceId) -> Result<()> {
        if Arc::ptr_eq(runtime, &self.holdings.runtime) && self.device == device {
            return Ok(());
        }
        Err(Error::Invalid {
            call: "graph update",
            why: "the description is for another device; build a new graph from it".into(),
        })
    }

    /// Makes the graph with this id from the nodes, or updates it to them.
    pub(super) fn make(&self, id: GraphId) -> Result<()> {
        let runtime = &self.holdings.runtime;
        runtime.check()?;
        let (device, nodes) = (self.device, &self.nodes[..]);
        // SAFETY: the id is new, or that of a graph that is being updated. The memory is owned together with the
        // nodes, and later by the graph.
        let made = unsafe { runtime.backend.create(Create::Graph { id, device, nodes }) };
        runtime.seen(made)
    }

    /// Returns the memory, and the ranges that a launch touches.
    pub(super) fn into_parts(self) -> (Holdings, Vec<Touched>) {
        let mut touches = Vec::new();
        for (index, (reads, writes)) in (0..).zip(self.reads.into_iter().zip(self.writes)) {
            for (Range { start, end }, mode) in together(reads, writes) {
                touches.push(Touched {
                    index,
                    start,
                    end,
                    mode,
                });
            }
        }
        (self.holdings, touches)
    }
}

// ------------------------------------------------------------------ shared by the calls above

const OTHER_NODE: &str =
    "the node belongs to another graph, or to an earlier description of this one";

/// A placeholder: the nodes of a graph are in no stream.
const NO_STREAM: StreamId = StreamId(0);

impl GraphBuilder {
    fn hold<V: Owned>(&mut self, call: &'static str, value: V) -> Result<At, Refused<V>> {
        if !Arc::ptr_eq(&value.memory().runtime, &self.holdings.runtime) {
            let why = "the memory belongs to another machine than the graph; open both devices \
                       together with `Device::open_all`";
            let why = why.into();
            return Err(Refused::new(Error::Invalid { call, why }, value));
        }
        let at = At {
            list: self.holdings.graph,
            index: self.holdings.values.len() as u32,
        };
        self.holdings.values.push(Some(Box::new(value)));
        self.uses.push(Uses::default());
        self.reads.push(Vec::new());
        self.writes.push(Vec::new());
        Ok(at)
    }

    #[track_caller]
    fn copy(&mut self, plan: Result<CopyPlan>, from: Piece, to: Piece) -> Result<NodeId> {
        let plan = plan
            .and_then(|plan| apart("memcpy_d2d", &[from, to]).map(|()| plan))
            .map_err(|error| self.at_node("copy", error))?;
        let kind = Kind::Copy {
            stream: NO_STREAM,
            from: self.block(&from).memory,
            to: self.block(&to).memory,
        };
        let work = plan.work(self.address(&from), self.address(&to));
        let mut pieces: SmallVec<[Piece; 4]> = SmallVec::new();
        plan.each_touched((from, from.start), (to, to.start), |side, bytes| {
            pieces.push(Piece {
                start: bytes.start,
                end: bytes.end,
                ..side
            });
        });
        Ok(self.add(kind, NodeWork::Copy(work), &pieces))
    }

    #[track_caller]
    fn fill(&mut self, plan: FillPlan, len: usize, to: Piece) -> NodeId {
        let work = plan.work(self.address(&to), len as u64);
        let kind = Kind::Memset { stream: NO_STREAM };
        self.add(kind, NodeWork::Fill(work), &[to])
    }

    /// Adds a node that is ordered after all nodes that it conflicts with.
    fn add(&mut self, kind: Kind, work: NodeWork, pieces: &[Piece]) -> NodeId {
        let number = self.nodes.len() as u32;
        let mut behind = Conflicts::new();
        for piece in pieces {
            let uses = &self.uses[piece.at.index as usize];
            uses.conflicts(piece.bytes(), piece.mode, |node| behind.push(*node));
        }
        for piece in pieces {
            let index = piece.at.index as usize;
            self.uses[index].note(piece.bytes(), piece.mode, NodeNumber(number));
            let touched = match piece.mode {
                Mode::Read => &mut self.reads[index],
                Mode::Write | Mode::MayWrite | Mode::Atomic => &mut self.writes[index],
            };
            touched.push(piece.bytes());
        }
        let after = last_of(behind.iter().map(|node| node.0).collect(), &self.nodes);
        self.nodes.push(Node {
            op: Op {
                id: OpId(0),
                thread: ThreadId(0),
                site: SiteId(0),
                kind,
                accesses: Accesses::new(),
            },
            work,
            after,
        });
        NodeId(At {
            list: self.description,
            index: number,
        })
    }

    #[track_caller]
    fn block(&self, piece: &Piece) -> &Block {
        self.holdings.value(piece.at).memory()
    }

    #[track_caller]
    fn address(&self, piece: &Piece) -> Address {
        self.block(piece).address.offset(piece.start)
    }

    /// Returns the error with the number and the kind of the node that was about to be added.
    fn at_node(&self, what: &str, error: Error) -> Error {
        let number = self.nodes.len();
        match error {
            Error::Invalid { call, why } => Error::Invalid {
                call,
                why: format!("node {number}, {what}: {why}"),
            },
            other => other,
        }
    }
}

impl UseMark for NodeNumber {
    fn replaces(&self, earlier: &NodeNumber) -> bool {
        self == earlier
    }
}

impl NodeArg {
    fn piece(&self) -> Option<Piece> {
        match self {
            NodeArg::Memory(piece) => Some(*piece),
            NodeArg::Value(_) => None,
        }
    }
}

/// Checks for nodes what the borrow checker ensures for views on a stream: a node touches the bytes that it writes
/// through one argument only.
fn apart(call: &'static str, pieces: &[Piece]) -> Result<()> {
    for (at, piece) in pieces.iter().enumerate() {
        if let Some(other) = pieces[..at].iter().find(|other| other.conflicts(piece)) {
            return Err(Error::Invalid {
                call,
                why: format!(
                    "it writes one of two overlapping parts of a buffer, bytes {}..{} and {}..{}; \
                     give it parts that do not overlap, or two buffers",
                    other.start, other.end, piece.start, piece.end
                ),
            });
        }
    }
    Ok(())
}

/// Reduces the dependencies of a new node to those that follow from none of the others.
fn last_of(mut behind: SmallVec<[u32; 4]>, nodes: &[Node]) -> SmallVec<[u32; 4]> {
    behind.sort_unstable();
    behind.dedup();
    let Some(&first) = behind.first().filter(|_| behind.len() > 1) else {
        return behind;
    };
    let mut is_before = vec![false; nodes.len() - first as usize];
    let mut open: Vec<u32> = behind.to_vec();
    while let Some(node) = open.pop() {
        for &earlier in nodes[node as usize].after.iter().filter(|&&n| n >= first) {
            let seen = &mut is_before[(earlier - first) as usize];
            if !std::mem::replace(seen, true) {
                open.push(earlier);
            }
        }
    }
    behind.retain(|node| !is_before[(*node - first) as usize]);
    behind
}

/// Returns the accesses of a launch to a buffer: disjoint sorted ranges, with mode `Write` where any node writes.
fn together(reads: Vec<Range<u64>>, writes: Vec<Range<u64>>) -> Vec<(Range<u64>, Mode)> {
    let writes = union(writes);
    let reads = without(union(reads), &writes);
    let reads = reads.into_iter().map(|bytes| (bytes, Mode::Read));
    let has_writes = !writes.is_empty();
    let writes = writes.into_iter().map(|bytes| (bytes, Mode::Write));
    let mut all: Vec<(Range<u64>, Mode)> = reads.chain(writes).collect();
    all.sort_unstable_by_key(|(bytes, _)| bytes.start);
    if all.len() > RANGES_TRACKED
        && let (Some((first, _)), Some((last, _))) = (all.first(), all.last())
    {
        let mode = if has_writes { Mode::Write } else { Mode::Read };
        return vec![(first.start..last.end, mode)];
    }
    all
}

fn union(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut union: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match union.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => union.push(range),
        }
    }
    union
}

/// Returns the parts of `ranges` that `others` do not cover. Both are sorted and disjoint.
fn without(ranges: Vec<Range<u64>>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    for mut range in ranges {
        let first = others.partition_point(|other| other.end <= range.start);
        for other in others[first..].iter().take_while(|o| o.start < range.end) {
            if range.start < other.start {
                rest.push(range.start..other.start);
            }
            range.start = other.end.min(range.end);
        }
        if !range.is_empty() {
            rest.push(range);
        }
    }
    rest
}

impl std::fmt::Debug for GraphBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GraphBuilder({} nodes)", self.nodes.len())
    }
}
