//! Building a graph: nodes, and how they stand to each other.

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

/// Takes the memory and the nodes of a graph that is to be.
///
/// A node stands behind the earlier nodes whose accesses conflict with its own: it reads or writes
/// bytes that they write, or writes bytes that they read. [`GraphBuilder::after`] adds what accesses
/// cannot say. All other nodes run side by side.
pub struct GraphBuilder {
    /// Of this description alone: a node says whose it is.
    description: u64,
    device: DeviceId,
    holdings: Holdings,
    nodes: Vec<Node>,
    /// By buffer: what the nodes so far did to it.
    uses: Vec<Uses<NodeNumber>>,
    /// By buffer: what the nodes read, and what they write.
    reads: Vec<Vec<Range<u64>>>,
    writes: Vec<Vec<Range<u64>>>,
}

/// A node, by its place among the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NodeNumber(u32);

/// Up to so many ranges of a buffer are tracked one by one at each launch; of more, all that lies
/// between the first byte and the last.
const RANGES_TRACKED: usize = 16;

impl Device {
    /// A graph without nodes, whose kernels run on this device. See [`graph`](crate::graph).
    pub fn graph(&self) -> GraphBuilder {
        GraphBuilder::over(self.id(), Holdings::new(&self.runtime))
    }
}

impl GraphBuilder {
    /// Takes a device buffer, for its nodes to use. The graph owns it from here on.
    ///
    /// # Ordering
    /// What uses it now is waited for by the first launch.
    ///
    /// # Errors
    /// The buffer comes back if it belongs to another machine.
    pub fn own<T: Pod + Send + Sync>(
        &mut self,
        buffer: DeviceBuf<T>,
    ) -> Result<BufKey<T>, Refused<DeviceBuf<T>>> {
        let len = buffer.len();
        let at = self.hold("own", buffer)?;
        Ok(BufKey::new(at, len))
    }

    /// Takes pinned host memory, for its copies to use. The graph owns it from here on.
    ///
    /// # Errors
    /// The memory comes back if it belongs to another machine.
    pub fn own_pinned<T: Pod + Send + Sync>(
        &mut self,
        memory: Pinned<T>,
    ) -> Result<PinnedKey<T>, Refused<Pinned<T>>> {
        let len = memory.len();
        let at = self.hold("own_pinned", memory)?;
        Ok(PinnedKey::new(at, len))
    }

    /// Adds the launch of a kernel. Its arguments are parts of the graph's buffers, and numbers; the
    /// numbers are the same in every launch of the graph.
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
    /// // The halves have nothing to do with each other: the two run side by side.
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
    /// [`Error::Invalid`] if a buffer lies on another device, the grid is empty, or a part that is
    /// written overlaps another argument.
    ///
    /// # Panics
    /// If a key is another graph's.
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
            let why = "a buffer lies on another device than the graph; copy it first";
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
    /// If a key is another graph's.
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
    /// [`Error::Invalid`] if a side has no room for its rows, or they do not match.
    ///
    /// # Panics
    /// If a key is another graph's.
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
    /// If a key is another graph's.
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
    /// As [`GraphBuilder::upload_rows`].
    ///
    /// # Panics
    /// If a key is another graph's.
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

    /// Adds a copy on a device, or from one to another.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lengths differ or the two overlap.
    ///
    /// # Panics
    /// If a key is another graph's.
    #[track_caller]
    pub fn memcpy_d2d<T: Pod>(&mut self, from: Part<T>, to: PartMut<T>) -> Result<NodeId> {
        let plan = CopyPlan::all::<T>("memcpy_d2d", from.len(), to.len());
        self.copy(plan, from.piece(), to.piece())
    }

    /// Adds a copy of rows on a device to other rows there.
    ///
    /// # Errors
    /// As [`GraphBuilder::upload_rows`]; or if the two overlap.
    ///
    /// # Panics
    /// If a key is another graph's.
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

    /// Adds a node that sets every byte.
    ///
    /// # Errors
    /// None today.
    ///
    /// # Panics
    /// If the key is another graph's.
    #[track_caller]
    pub fn memset<T: Pod>(&mut self, to: PartMut<T>, byte: u8) -> Result<NodeId> {
        Ok(self.fill(FillPlan::bytes::<T>(byte), to.len(), to.piece()))
    }

    /// Adds a node that sets every value; values of one, two or four bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for values of another size.
    ///
    /// # Panics
    /// If the key is another graph's.
    #[track_caller]
    pub fn fill_with<T: Pod>(&mut self, to: PartMut<T>, value: T) -> Result<NodeId> {
        let plan = FillPlan::value(&value).map_err(|error| self.at_node("fill", error))?;
        Ok(self.fill(plan, to.len(), to.piece()))
    }

    /// Makes `node` stand behind `earlier`, though they touch nothing in common.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `earlier` was not added before `node`.
    ///
    /// # Panics
    /// If a node is another graph's, or of an earlier description of this one.
    #[track_caller]
    pub fn after(&mut self, node: NodeId, earlier: NodeId) -> Result<()> {
        let place = |node: NodeId| node.0.within(self.description, OTHER_NODE);
        let (at, before) = (place(node), place(earlier));
        if before >= at {
            return Err(Error::Invalid {
                call: "after",
                why: format!(
                    "node {at} cannot stand behind node {before}, which was not added before it; \
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

    /// Makes it executable.
    ///
    /// # Ordering
    /// Nothing runs and nothing waits.
    ///
    /// # Errors
    /// [`Error::NoForm`] if a kernel has no form for the device, or what the driver answers. The
    /// memory is dropped then.
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

    /// A description over this memory, without nodes yet.
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
    /// If it is for another device.
    pub(super) fn belongs_to(&self, runtime: &Arc<Runtime>, device: DeviceId) -> Result<()> {
        if Arc::ptr_eq(runtime, &self.holdings.runtime) && self.device == device {
            return Ok(());
        }
        Err(Error::Invalid {
            call: "graph update",
            why: "the description is for another device than the graph; build a graph of it".into(),
        })
    }

    /// Makes the graph with this id do what the nodes say.
    pub(super) fn make(&self, id: GraphId) -> Result<()> {
        let runtime = &self.holdings.runtime;
        runtime.check()?;
        let (device, nodes) = (self.device, &self.nodes[..]);
        // SAFETY: the id is new, or that of a graph which is updated. The memory is held with the nodes, and by the
        // graph later.
        let made = unsafe { runtime.backend.create(Create::Graph { id, device, nodes }) };
        runtime.seen(made)
    }

    /// The memory, and what a launch touches of it.
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

// ------------------------------------------------------------------ what they have in common

const OTHER_NODE: &str =
    "the node belongs to another graph, or to an earlier description of this one";

/// The nodes of a graph are in no stream.
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

    /// Adds a node behind all that it conflicts with.
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
                Mode::Write => &mut self.writes[index],
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

    /// The same error, with the node that was about to be added.
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

/// What the borrow checker sees to where a stream is given views: what a node writes it touches in
/// no other way.
fn apart(call: &'static str, pieces: &[Piece]) -> Result<()> {
    for (at, piece) in pieces.iter().enumerate() {
        if let Some(other) = pieces[..at].iter().find(|other| other.conflicts(piece)) {
            return Err(Error::Invalid {
                call,
                why: format!(
                    "it writes one of two parts of a buffer, bytes {}..{} and {}..{}, which \
                     overlap; give it parts that do not, or two buffers",
                    other.start, other.end, piece.start, piece.end
                ),
            });
        }
    }
    Ok(())
}

/// Of the nodes that a new one has to stand behind, those that no other of them stands behind: the
/// rest follows.
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

/// What a launch does to a buffer: disjoint ranges in their order, written where any node writes.
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
        let mode = match has_writes {
            true => Mode::Write,
            false => Mode::Read,
        };
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

/// Both are sorted and disjoint.
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
