//! The graphs of a process: captured, or built node by node, and launched.
//!
//! A launch is one operation that does what all nodes do. The order inside a graph is checked once, when the graph becomes
//! executable: its nodes are then told as work in streams of their own and on buffers of their own, so that they meet nothing else.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use sidestream::log::{Record, limits};
use sidestream::op::{
    Access, Accesses, BufferId, Class, DeviceId, EventId, GraphId, Kind, Memory, Mode, Named,
    SiteId, StreamId, StreamKind,
};
use sidestream_inject::calls::{ApiCall, Does, Part, Word};

use super::memory::Allocation;
use super::translate::{ADDRESSES, CopySide, Hears, Now, Process};

/// What is known of the graphs of a process.
#[derive(Default)]
pub struct Graphs {
    /// By handle; one that is being captured, and for which the program has not asked, by its capture's key.
    graphs: HashMap<u64, Graph>,
    executables: HashMap<u64, Executable>,
    declared: u32,
    spare: Vec<GraphId>,
    captures: Vec<Capture>,
    begun: u64,
    /// By event that was last recorded in a capture: the capture's number, and the nodes that a wait depends on.
    events: HashMap<EventId, (u64, Vec<u32>)>,
    /// The first address of each buffer.
    starts: HashMap<BufferId, u64>,
    /// The streams and events by which nodes are told, and the buffers that stand for the program's.
    branches: HashMap<DeviceId, Vec<StreamId>>,
    joins: Vec<EventId>,
    twins: HashMap<BufferId, BufferId>,
    /// The graphs whose nodes were told, as hashes.
    told: HashSet<u64>,
}

#[derive(Clone, Default)]
struct Graph {
    nodes: Vec<Node>,
    /// The nodes of which the handles are known.
    handles: HashMap<u64, u32>,
    /// Whether some of its order is not known.
    is_vague: bool,
}

#[derive(Clone)]
struct Node {
    site: SiteId,
    /// What it does, in some stream.
    kind: Option<Kind>,
    accesses: Accesses,
    /// The nodes that it depends on.
    after: Vec<u32>,
    /// The graphs that may be executed in its place.
    bodies: Vec<u64>,
    is_off: bool,
}

struct Executable {
    id: GraphId,
    graph: Graph,
    accesses: Accesses,
    /// The memory that each launch allocates.
    allocates: Vec<Allocation>,
}

struct Capture {
    number: u64,
    origin: StreamId,
    /// The key of its graph.
    graph: u64,
    /// By stream that takes part: the nodes on which its next one depends.
    last: HashMap<StreamId, Vec<u32>>,
}

/// The largest number of streams by which the nodes of a graph are told. More add an order that the graph does not have.
const BRANCHES: usize = 32;
/// The largest number of nodes of a graph whose order is checked.
const MAX_NODES: usize = 20_000;
/// How deep bodies may be nested in bodies.
const DEPTH: u32 = 8;

impl Graph {
    fn add(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Returns the nodes with these handles.
    fn named(&mut self, handles: &[u64]) -> Vec<u32> {
        let known = handles
            .iter()
            .filter_map(|node| self.handles.get(node).copied());
        let known: Vec<u32> = known.collect();
        self.is_vague |= known.len() < handles.len();
        known
    }

    /// Returns the nodes in an order that has each after those that it depends on.
    fn sorted(&self) -> Vec<usize> {
        let (mut order, mut is_placed) = (Vec::new(), vec![false; self.nodes.len()]);
        loop {
            let before = order.len();
            for (at, node) in self.nodes.iter().enumerate() {
                let is_ready = || node.after.iter().all(|at| is_placed[*at as usize]);
                if !is_placed[at] && is_ready() {
                    is_placed[at] = true;
                    order.push(at);
                }
            }
            if order.len() == before {
                return order;
            }
        }
    }
}

impl Capture {
    fn depends(&mut self, stream: StreamId, on: &[u32]) {
        let last = self.last.entry(stream).or_default();
        last.extend_from_slice(on);
        last.sort_unstable();
        last.dedup();
    }
}

impl Graphs {
    fn capture(&mut self, stream: StreamId) -> Option<&mut Capture> {
        let mut captures = self.captures.iter_mut();
        captures.find(|capture| capture.last.contains_key(&stream))
    }

    /// Whether a stream takes part in a capture.
    pub fn is_captured(&mut self, stream: StreamId) -> bool {
        self.capture(stream).is_some()
    }

    /// Takes note of a buffer's first address.
    pub fn begins(&mut self, buffer: BufferId, at: u64) {
        self.starts.insert(buffer, at);
    }

    /// Takes a call in a stream: in a capture, it becomes a node. Returns whether it did. What is said of an event is
    /// external if the event is recorded, or waited for, by each launch.
    pub fn take(
        &mut self,
        kind: Kind,
        site: SiteId,
        accesses: &[Access],
        is_external: bool,
    ) -> bool {
        let Some(stream) = kind.stream().filter(|_| !self.captures.is_empty()) else {
            return false;
        };
        match kind {
            Kind::DestroyStream { .. } => {
                for capture in &mut self.captures {
                    capture.last.remove(&stream);
                }
                return false;
            }
            Kind::Record { event, .. } if !is_external => {
                self.events.remove(&event);
                let Some(capture) = self.capture(stream) else {
                    return false;
                };
                let recorded = (capture.number, capture.last[&stream].clone());
                self.events.insert(event, recorded);
                return true;
            }
            Kind::Wait { event, .. } if !is_external => {
                if let Some((number, nodes)) = self.events.get(&event)
                    && let Some(capture) = self.captures.iter_mut().find(|c| c.number == *number)
                {
                    capture.depends(stream, nodes);
                }
                return self.is_captured(stream);
            }
            _ => {}
        }
        let is_node = match kind.class() {
            Class::MallocAsync | Class::FreeAsync | Class::Record | Class::Wait => true,
            class => class.is_work(),
        };
        let Some(capture) = self
            .captures
            .iter_mut()
            .find(|capture| is_node && capture.last.contains_key(&stream))
        else {
            return false;
        };
        let last = capture.last.entry(stream).or_default();
        let node = Node {
            site,
            kind: Some(kind),
            accesses: accesses.iter().copied().collect(),
            after: std::mem::take(last),
            bodies: Vec::new(),
            is_off: false,
        };
        last.push(self.graphs.entry(capture.graph).or_default().add(node));
        true
    }

    /// Gives the graph of a capture its handle.
    fn name(&mut self, stream: StreamId, handle: u64) {
        if let Some(capture) = self.capture(stream).filter(|_| handle != 0) {
            let key = std::mem::replace(&mut capture.graph, handle);
            if let Some(graph) = self.graphs.remove(&key) {
                self.graphs.insert(handle, graph);
            }
        }
    }

    /// Returns what a graph does as a whole.
    fn all(&self, graph: &Graph, depth: u32) -> Accesses {
        let mut all = Vec::new();
        for node in graph.nodes.iter().filter(|node| !node.is_off) {
            all.extend_from_slice(&node.accesses);
            let bodies = node.bodies.iter().filter(|_| depth < DEPTH);
            for body in bodies.filter_map(|body| self.graphs.get(body)) {
                // It may not be executed at all.
                all.extend(self.all(body, depth + 1).into_iter().map(|access| Access {
                    mode: match access.mode {
                        Mode::Read => Mode::Read,
                        Mode::Write | Mode::MayWrite => Mode::MayWrite,
                    },
                    ..access
                }));
            }
        }
        all.sort_unstable_by_key(|access| (access.buffer, access.mode as u8, access.start));
        all.dedup_by(|next, last| {
            let is_same = (next.buffer, next.mode) == (last.buffer, last.mode);
            let joins = is_same && next.start <= last.end;
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        all.truncate(limits::ACCESSES as usize);
        Accesses::from_vec(all)
    }

    fn new_id(&mut self) -> GraphId {
        self.spare.pop().unwrap_or_else(|| {
            self.declared += 1;
            GraphId((self.declared - 1) % limits::GRAPHS)
        })
    }
}

impl Process {
    /// Takes a call that begins or ends a capture, or that makes, changes or launches a graph.
    pub(super) fn graph(&mut self, call: &ApiCall, now: &Now<'_>, out: &mut dyn Hears) {
        let word = |at| now.word(at);
        match call.what {
            Does::BeginCapture(stream, into) => {
                let origin = self.stream(now, word(stream), out);
                let graphs = &mut self.graphs;
                graphs.begun += 1;
                let key = into.map_or(1 << 63 | graphs.begun, |(graph, _)| word(graph));
                let graph = graphs.graphs.entry(key).or_default();
                let last = into.map_or(Vec::new(), |(_, nodes)| graph.named(now.array(nodes)));
                graphs.captures.push(Capture {
                    number: graphs.begun,
                    origin,
                    graph: key,
                    last: HashMap::from([(origin, last)]),
                });
            }
            Does::EndCapture(stream, graph) => {
                let stream = self.stream(now, word(stream), out);
                self.graphs.name(stream, word(graph));
                self.graphs
                    .captures
                    .retain(|capture| capture.origin != stream);
            }
            Does::CaptureInfo(stream, graph) => {
                let stream = self.stream(now, word(stream), out);
                self.graphs.name(stream, word(graph));
            }
            Does::CaptureDependencies(stream, nodes, flags) => {
                let stream = self.stream(now, word(stream), out);
                let Graphs {
                    captures, graphs, ..
                } = &mut self.graphs;
                let mut captures = captures.iter_mut();
                if let Some(capture) = captures.find(|c| c.last.contains_key(&stream)) {
                    let nodes = graphs
                        .entry(capture.graph)
                        .or_default()
                        .named(now.array(nodes));
                    // `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
                    if word(flags) & 1 == 1 {
                        capture.last.insert(stream, Vec::new());
                    }
                    capture.depends(stream, &nodes);
                }
            }
            Does::GraphCreate(graph) => {
                self.graphs.graphs.insert(word(graph), Graph::default());
            }
            Does::GraphClone(clone, original) => {
                let graph = self.graphs.graphs.get(&word(original)).cloned();
                let handles = HashMap::new();
                let graph = Graph {
                    handles,
                    ..graph.unwrap_or_default()
                };
                self.graphs.graphs.insert(word(clone), graph);
            }
            Does::GraphDestroy(graph) => {
                let graph = self.graphs.graphs.remove(&word(graph)).unwrap_or_default();
                for body in graph.nodes.iter().flat_map(|node| &node.bodies) {
                    self.graphs.graphs.remove(body);
                }
            }
            Does::GraphInstantiate(executable, graph) | Does::GraphUpdate(executable, graph) => {
                let mut graph = self
                    .graphs
                    .graphs
                    .get(&word(graph))
                    .cloned()
                    .unwrap_or_default();
                self.inside(now, &graph, 0, out);
                // The nodes of an update take the places of those from which it was instantiated.
                if let Some(old) = self.graphs.executables.get_mut(&word(executable))
                    && matches!(call.what, Does::GraphUpdate(..))
                {
                    graph.handles = std::mem::take(&mut old.graph.handles);
                }
                self.executable(word(executable), graph);
            }
            Does::GraphExecDestroy(executable) => {
                if let Some(executable) = self.graphs.executables.remove(&word(executable)) {
                    self.graphs.spare.push(executable.id);
                }
            }
            Does::GraphLaunch(executable, stream) => {
                let (executable, stream) = (word(executable), self.stream(now, word(stream), out));
                if !self.graphs.executables.contains_key(&executable) {
                    self.executable(executable, Graph::default());
                }
                let Some(known) = self.graphs.executables.remove(&executable) else {
                    return;
                };
                for allocation in &known.allocates {
                    self.memory.put(allocation.clone());
                }
                let kinds = || {
                    known
                        .graph
                        .nodes
                        .iter()
                        .filter(|node| !node.is_off)
                        .filter_map(|node| node.kind)
                };
                for wait in kinds().filter(|kind| kind.class() == Class::Wait) {
                    self.op(now, in_stream(wait, stream), &[], out);
                }
                let graph = known.id;
                self.op(
                    now,
                    Kind::GraphLaunch { stream, graph },
                    &known.accesses,
                    out,
                );
                for record in kinds().filter(|kind| kind.class() == Class::Record) {
                    self.op(now, in_stream(record, stream), &[], out);
                }
                self.graphs.executables.insert(executable, known);
            }
            Does::NodeEnable(node, executable, is_on) => {
                let executable = word(executable);
                let known = self.graphs.executables.get(&executable);
                let Some(mut graph) = known.map(|known| known.graph.clone()) else {
                    return;
                };
                if let Some(at) = graph.handles.get(&word(node)) {
                    graph.nodes[*at as usize].is_off = word(is_on) as u32 == 0;
                }
                self.executable(executable, graph);
            }
            Does::Edges(graph, from, is_added) => {
                let graph = self.graphs.graphs.entry(word(graph)).or_default();
                let from = now.array(from);
                let to = now
                    .words
                    .get(call.end(now.words).saturating_sub(from.len())..);
                for (from, to) in from.iter().zip(to.unwrap_or_default()) {
                    let (from, to) = (graph.named(&[*from]), graph.named(&[*to]));
                    if let (Some(from), Some(to)) = (from.first(), to.first()) {
                        let after = &mut graph.nodes[*to as usize].after;
                        after.retain(|at| at != from);
                        after.extend(is_added.then_some(*from));
                    }
                }
            }
            Does::NodeAdd(node, graph, after, part) => {
                let mut made = self.node(call, part.said(now.words), now, out);
                let graph = self.graphs.graphs.entry(word(graph)).or_default();
                made.after = graph.named(now.array(after));
                let at = graph.add(made);
                graph.handles.insert(word(node), at);
            }
            Does::NodeSet(node, part, executable) => {
                let made = self.node(call, part.said(now.words), now, out);
                self.set(word(node), executable.map(word), made);
            }
            _ => {}
        }
    }

    /// Returns what a node does, in the place of which it is not known yet.
    fn node(&mut self, call: &ApiCall, part: Part, now: &Now<'_>, out: &mut dyn Hears) -> Node {
        let word = |at: Word| now.word(at);
        let (stream, mut accesses, mut bodies) = (StreamId(0), Accesses::new(), Vec::new());
        let rest = now.words.get(call.end(now.words)..).unwrap_or_default();
        let kind = match part {
            Part::Kernel(..) => {
                let kernel = call.kernel(now.words).map_or(0, |[kernel, ..]| kernel);
                accesses = self.kernel_accesses(kernel, rest);
                Some(Kind::kernel(stream))
            }
            Part::Copy(first) => {
                let (to, from) = CopySide::both_3d(now, first);
                let from = self.touched(from, Mode::Read, &mut accesses);
                let to = self.touched(to, Mode::Write, &mut accesses);
                let [from, to] = [from, to].map(|memory| memory.unwrap_or(Memory::Pageable));
                Some(Kind::Copy { stream, from, to })
            }
            Part::Memset(first) => {
                let (width, each) = (word(first + 3), word(first + 2) >> 32);
                let rows = word(first + 1).saturating_mul(word(first + 4).saturating_sub(1));
                let bytes = rows.saturating_add(width.saturating_mul(each));
                self.touched((word(first), bytes), Mode::Write, &mut accesses);
                Some(Kind::Memset { stream })
            }
            Part::Host => Some(Kind::HostFunc {
                stream,
                raises: None,
            }),
            Part::Child(graph) => {
                let child = self
                    .graphs
                    .graphs
                    .get(&word(graph))
                    .cloned()
                    .unwrap_or_default();
                self.inside(now, &child, 1, out);
                accesses = self.graphs.all(&child, 0);
                Some(Kind::kernel(stream))
            }
            Part::Alloc(first) => {
                let (at, bytes) = (word(first + 14), word(first + 13));
                accesses.extend(self.allocated(at, bytes, Memory::Device, true, out));
                Some(Kind::MallocAsync { stream })
            }
            Part::Free(at) => {
                let range = self.memory.at(word(at));
                accesses.extend(range.map(|range| range.all(Mode::Write)));
                Some(Kind::FreeAsync { stream })
            }
            Part::Record(event) | Part::Wait(event) => {
                let event = self.event(word(event), out);
                Some(match part {
                    Part::Record(_) => Kind::Record { event, stream },
                    _ => Kind::Wait { event, stream },
                })
            }
            Part::Conditional(_) => {
                bodies = rest.to_vec();
                Some(Kind::kernel(stream))
            }
            Part::Any(_) | Part::Nothing => None,
        };
        Node {
            site: now.site,
            kind,
            accesses,
            after: Vec::new(),
            bodies,
            is_off: false,
        }
    }

    /// Makes a node do something else: in one executable graph, or in all that are made from here on.
    fn set(&mut self, node: u64, executable: Option<u64>, made: Node) {
        let graphs = &mut self.graphs;
        let mut changed = match executable {
            Some(executable) => graphs
                .executables
                .get(&executable)
                .map(|known| known.graph.clone()),
            None => None,
        };
        let graph = match &mut changed {
            Some(graph) => Some(graph),
            None => graphs
                .graphs
                .values_mut()
                .find(|graph| graph.handles.contains_key(&node)),
        };
        let Some(graph) = graph else {
            return;
        };
        if let Some(&at) = graph.handles.get(&node) {
            let old = &mut graph.nodes[at as usize];
            let after = std::mem::take(&mut old.after);
            *old = Node { after, ..made };
        } else {
            // It is one of the nodes without a known handle, and what that did is over.
            let known: HashSet<u32> = graph.handles.values().copied().collect();
            for (at, node) in graph.nodes.iter_mut().enumerate() {
                node.is_off |= !known.contains(&(at as u32));
            }
            let at = graph.add(made);
            graph.handles.insert(node, at);
        }
        if let (Some(executable), Some(graph)) = (executable, changed) {
            self.executable(executable, graph);
        }
    }

    /// Sets what launches of an executable graph do.
    fn executable(&mut self, handle: u64, graph: Graph) {
        let accesses = self.graphs.all(&graph, 0);
        let mut allocates = Vec::new();
        for node in &graph.nodes {
            if let (Some(Kind::MallocAsync { .. }), Some(access)) =
                (node.kind, node.accesses.first())
                && let Some(start) = self.graphs.starts.get(&access.buffer)
            {
                let range = self.memory.at(*start);
                allocates.extend(range.filter(|range| range.buffer == access.buffer).cloned());
            }
        }
        let known = self.graphs.executables.get(&handle).map(|known| known.id);
        let id = known.unwrap_or_else(|| self.graphs.new_id());
        let known = Executable {
            id,
            graph,
            accesses,
            allocates,
        };
        self.graphs.executables.insert(handle, known);
    }

    /// Tells the nodes of a graph, and those of its bodies, if they are not one after the other.
    fn inside(&mut self, now: &Now<'_>, graph: &Graph, depth: u32, out: &mut dyn Hears) {
        let nodes = &graph.nodes;
        for body in nodes
            .iter()
            .flat_map(|node| &node.bodies)
            .filter(|_| depth < DEPTH)
        {
            if let Some(body) = self.graphs.graphs.get(body).cloned() {
                self.inside(now, &body, depth + 1, out);
            }
        }
        if graph.is_vague || nodes.len() > MAX_NODES {
            return;
        }
        // Each branch is a sequence of nodes that depend on each other.
        let order = graph.sorted();
        let (mut branch, mut place, mut is_joined) = (
            vec![0; nodes.len()],
            vec![0; nodes.len()],
            vec![false; nodes.len()],
        );
        let mut last: Vec<usize> = Vec::new();
        let mut hash = DefaultHasher::new();
        for (number, &at) in order.iter().enumerate() {
            let after = &nodes[at].after;
            let known = last.iter().position(|last| after.contains(&(*last as u32)));
            branch[at] = known.unwrap_or(last.len());
            if branch[at] >= BRANCHES {
                branch[at] = at % BRANCHES;
            } else if branch[at] == last.len() {
                last.push(at);
            }
            last[branch[at]] = at;
            place[at] = number;
            for &from in after {
                is_joined[from as usize] |= branch[from as usize] != branch[at];
            }
            (at, nodes[at].site, &nodes[at].accesses[..], after).hash(&mut hash);
        }
        if last.len() < 2 || !self.graphs.told.insert(hash.finish()) {
            return;
        }
        self.current(now, out);
        let streams = self.branches(now.device, last.len(), out);
        // What was told before is over.
        let (first, others) = (streams[0], &streams[1..]);
        for &other in others {
            let (stream, source) = (first, other);
            self.op(now, Kind::WaitStream { stream, source }, &[], out);
        }
        for &stream in others {
            let source = first;
            self.op(now, Kind::WaitStream { stream, source }, &[], out);
        }
        let mut joins: HashMap<usize, EventId> = HashMap::new();
        for &at in &order {
            let (node, stream) = (&nodes[at], streams[branch[at]]);
            let mut from: Vec<usize> = node.after.iter().map(|at| *at as usize).collect();
            // Of each branch, the last is enough.
            from.sort_unstable_by_key(|from| (branch[*from], std::cmp::Reverse(place[*from])));
            from.dedup_by_key(|from| branch[*from]);
            for event in from
                .iter()
                .filter(|from| branch[**from] != branch[at])
                .filter_map(|from| joins.get(from))
            {
                let event = *event;
                self.op(now, Kind::Wait { stream, event }, &[], out);
            }
            let accesses: Accesses = self.graphs.all(
                &Graph {
                    nodes: vec![node.clone()],
                    ..Graph::default()
                },
                depth,
            );
            let accesses: Accesses = accesses
                .into_iter()
                .map(|access| self.twin(access, out))
                .collect();
            let kind = match node.kind {
                Some(Kind::Copy { .. }) => {
                    let (from, to) = (Memory::Device, Memory::Device);
                    Some(Kind::Copy { stream, from, to })
                }
                Some(Kind::GraphLaunch { .. }) => Some(Kind::kernel(stream)),
                Some(Kind::Record { .. } | Kind::Wait { .. }) | None => None,
                Some(kind) => Some(in_stream(kind, stream)),
            };
            if let Some(kind) = kind {
                self.op(&now.at(node.site), kind, &accesses, out);
            }
            if is_joined[at] {
                if joins.len() == self.graphs.joins.len() {
                    let event = self.new_event(false, out);
                    self.graphs.joins.push(event);
                }
                let event = self.graphs.joins[joins.len()];
                joins.insert(at, event);
                self.op(now, Kind::Record { stream, event }, &[], out);
            }
        }
    }

    /// Returns streams for the branches of a graph.
    fn branches(&mut self, device: DeviceId, count: usize, out: &mut dyn Hears) -> Vec<StreamId> {
        let known = self.graphs.branches.get(&device).map_or(0, Vec::len);
        for number in known..count {
            let name = format!("branch {number} of a graph");
            let stream = self.declare_stream(StreamKind::NonBlocking, device, name, out);
            self.graphs.branches.entry(device).or_default().push(stream);
        }
        self.graphs.branches[&device][..count].to_vec()
    }

    /// Returns the access to the buffer that stands for another inside graphs.
    fn twin(&mut self, access: Access, out: &mut dyn Hears) -> Access {
        let start = self.graphs.starts.get(&access.buffer).copied();
        let buffer = *self.graphs.twins.entry(access.buffer).or_insert_with(|| {
            let name = format!("{:#x}", start.unwrap_or_default());
            out.take(&Record::buffer(Memory::Device, ADDRESSES, None, name));
            self.buffers += 1;
            BufferId(self.buffers - 1)
        });
        Access { buffer, ..access }
    }
}

/// Returns the same in another stream.
fn in_stream(mut kind: Kind, to: StreamId) -> Kind {
    let _ = kind.each_named(|named| {
        if let Named::Stream(stream) = named {
            *stream = to;
        }
        Ok::<(), ()>(())
    });
    kind
}
