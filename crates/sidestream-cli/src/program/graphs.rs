//! The graphs of a process: captured, or built node by node, and launched.
//!
//! A launch is one operation that does what all nodes do. Where two nodes of a graph conflict and nothing orders them, they are told
//! once as operations of their own, on streams and a buffer of their own, so that the checker finds their race and no other.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use sidestream::log::{Record, limits};
use sidestream::op::*;
use sidestream_inject::areas::{Area, Copied, words_at};
use sidestream_inject::calls::{ApiCall, Does, Part};

use super::bytes::Areas;
use super::touched::Why;
use super::translate::{ADDRESSES, Hears, LEGACY, Now, Process};

/// What is known of the graphs of a process.
#[derive(Default)]
pub struct Graphs {
    /// By key.
    graphs: HashMap<u64, Graph>,
    /// By handle: the key of a captured graph. Those of others are their handles.
    keys: HashMap<u64, u64>,
    begun: u64,
    /// By the graph's key.
    captures: BTreeMap<u64, Capture>,
    /// By event that was last recorded in a capture: the graph's key, and the nodes that a wait depends on.
    events: HashMap<EventId, (u64, Nodes)>,
    /// By handle: the number, the graph, and what a launch does.
    executables: HashMap<u64, (GraphId, Graph, Accesses)>,
    declared: u32,
    spare: Vec<GraphId>,
    /// While a node is made: what it does.
    making: Option<Node>,
    /// The handle of the node that a captured kernel becomes, if it is known.
    pub(super) captured: u64,
    /// The streams on which nodes are told, and the call sites of those that were.
    branches: Option<[StreamId; 2]>,
    told: HashSet<[SiteId; 2]>,
}

#[derive(Clone, Default)]
struct Graph {
    nodes: Vec<Node>,
    /// Whether some of its order is not known.
    is_vague: bool,
}

/// Nodes, by their places in a graph.
type Nodes = BTreeSet<usize>;

#[derive(Clone, Default)]
struct Node {
    /// Zero if it is not known.
    handle: u64,
    /// What it does, in any stream.
    does: Option<Op>,
    /// The nodes that it depends on.
    after: Nodes,
    /// The graphs that may be executed in its place.
    bodies: Vec<u64>,
    /// The handles of the nodes of its own copy of a graph.
    inner: Vec<u64>,
    /// The number of kernels that it launches, without those in bodies.
    kernels: u64,
    /// What its kernel touched when it was last launched, if that was heard to the byte.
    exact: Accesses,
}

struct Capture {
    origin: StreamId,
    /// By stream that takes part: the nodes on which its next one depends.
    last: HashMap<StreamId, Nodes>,
}

/// The largest number of nodes of a graph whose order is checked: that takes the square of it in time.
const MAX_NODES: usize = 4096;
/// How deep bodies may be nested in bodies.
const DEPTH: u32 = 4;

impl Graph {
    fn at(&self, handle: u64) -> Option<usize> {
        self.nodes.iter().rposition(|node| node.handle == handle)
    }

    /// Returns the nodes with these handles.
    fn named(&mut self, handles: &[u64]) -> Nodes {
        let named: Nodes = handles.iter().filter_map(|node| self.at(*node)).collect();
        self.is_vague |= named.len() < handles.len();
        named
    }

    /// Makes a node do something else.
    fn set(&mut self, made: Node) {
        if let Some(at) = self.at(made.handle) {
            let was = std::mem::take(&mut self.nodes[at]);
            self.nodes[at] = Node {
                after: was.after,
                exact: was.exact,
                inner: was.inner,
                ..made
            };
        } else {
            // It is one of the nodes without a known handle, and what that did is over.
            self.nodes.retain(|node| node.handle != 0);
            self.nodes.push(made);
        }
    }

    /// Returns the pairs of nodes that conflict and that nothing orders, with the buffer.
    fn races(&self) -> Vec<([&Node; 2], BufferId)> {
        let is_checked = !self.is_vague && self.nodes.len() <= MAX_NODES;
        let nodes = self.nodes.iter().enumerate().filter(|_| is_checked);
        // By node: the nodes before it, as bits. Each was added later than those.
        let (mut before, mut races) = (Vec::<Vec<u64>>::new(), Vec::new());
        let touched: Vec<_> = nodes
            .clone()
            .map(|(_, node)| Areas::of(node.accesses()))
            .collect();
        for (at, node) in nodes {
            let mut bits = vec![0; at / 64 + 1];
            for &from in node.after.range(..at) {
                bits[from / 64] |= 1 << (from % 64);
                for (bits, from) in bits.iter_mut().zip(&before[from]) {
                    *bits |= from;
                }
            }
            for first in (0..at).filter(|at| bits[at / 64] >> (at % 64) & 1 == 0) {
                let found = touched[first].conflict(&touched[at]);
                races.extend(found.map(|bytes| ([&self.nodes[first], node], bytes.buffer)));
            }
            before.push(bits);
        }
        races
    }
}

impl Node {
    fn accesses(&self) -> impl Iterator<Item = &Access> {
        let does = self.does.iter().flat_map(|op| &op.accesses);
        does.chain(&self.exact)
    }
}

impl Graphs {
    /// Whether a call in a stream makes a node.
    pub fn is_captured(&self, kind: Kind) -> bool {
        let has = |stream| {
            self.captures
                .values()
                .any(|capture| capture.last.contains_key(&stream))
        };
        self.making.is_some() || kind.stream().is_some_and(has)
    }

    /// Takes a call in a stream: in a capture, it makes a node or adds an order. Returns whether it did. An external record
    /// or wait is one of the graph's launches.
    pub fn take(&mut self, op: &Op, is_external: bool) -> bool {
        let Some(stream) = op.kind.stream() else {
            return false;
        };
        if let Some(made) = &mut self.making {
            made.does = Some(op.clone());
            return true;
        }
        if let Kind::Wait { event, .. } = op.kind
            && let Some((key, nodes)) = self.events.get(&event).filter(|_| !is_external)
            && let Some(of_event) = self.captures.get_mut(key)
        {
            of_event.last.entry(stream).or_default().extend(nodes);
        }
        let mut captures = self.captures.iter_mut();
        let capture = captures.find(|(_, capture)| capture.last.contains_key(&stream));
        match (op.kind, capture) {
            (Kind::Record { event, .. }, capture) if !is_external => {
                let recorded = capture.map(|(key, capture)| (*key, capture.last[&stream].clone()));
                let is_captured = recorded.is_some();
                self.events.insert(event, recorded.unwrap_or_default());
                is_captured
            }
            (Kind::Wait { .. }, Some(_)) if !is_external => true,
            (Kind::DestroyStream { .. }, Some((_, capture))) => {
                capture.last.remove(&stream);
                false
            }
            (Kind::SyncStream { .. } | Kind::QueryStream { .. }, _) | (_, None) => false,
            (_, Some((key, capture))) => {
                let nodes = &mut self.graphs.entry(*key).or_default().nodes;
                let after = capture.last.insert(stream, Nodes::from([nodes.len()]));
                let (does, after) = (Some(op.clone()), after.unwrap_or_default());
                let is_kernel = matches!(op.kind, Kind::Kernel { .. });
                nodes.push(Node {
                    handle: std::mem::take(&mut self.captured),
                    does,
                    after,
                    kernels: u64::from(is_kernel),
                    ..Node::default()
                });
                true
            }
        }
    }

    fn at(&mut self, handle: u64) -> &mut Graph {
        let key = self.keys.get(&handle).copied().unwrap_or(handle);
        self.graphs.entry(key).or_default()
    }

    /// Returns what a graph does as a whole. A body may not be executed at all.
    fn all(&mut self, graph: &Graph, depth: u32) -> Accesses {
        let mut all = Vec::new();
        for node in &graph.nodes {
            all.extend(node.does.iter().flat_map(|op| &op.accesses));
            for body in node.bodies.iter().filter(|_| depth < DEPTH) {
                let body = self.at(*body).clone();
                all.extend(self.all(&body, depth + 1));
            }
        }
        for access in all.iter_mut().filter(|_| depth > 0) {
            if access.mode == Mode::Write {
                access.mode = Mode::MayWrite;
            }
        }
        // Of the same bytes, the strongest access: one that may write is also a read. An atomic one is neither.
        let strength = |mode| {
            [Mode::Write, Mode::MayWrite, Mode::Read, Mode::Atomic]
                .into_iter()
                .position(|x| x == mode)
        };
        all.sort_unstable_by_key(|x| (x.buffer, x.start, x.end, strength(x.mode)));
        all.dedup_by(|x, kept| {
            let covers = x.mode != Mode::Atomic || matches!(kept.mode, Mode::Write | Mode::Atomic);
            covers && (x.buffer, x.start, x.end) == (kept.buffer, kept.start, kept.end)
        });
        all.truncate(limits::ACCESSES as usize);
        all.into()
    }

    /// Sets what launches of an executable graph do.
    fn set(&mut self, handle: u64, graph: Graph) {
        let accesses = self.all(&graph, 0);
        let known = self.executables.get(&handle).map(|known| known.0);
        let id = known.or_else(|| self.spare.pop()).unwrap_or_else(|| {
            self.declared += 1;
            GraphId(self.declared % limits::GRAPHS)
        });
        self.executables.insert(handle, (id, graph, accesses));
    }
}

impl<T: Hears> Process<T> {
    /// Takes a call that begins or ends a capture, or that makes, changes or launches a graph.
    pub(super) fn graph(&mut self, call: &ApiCall, now: &Now<'_>) {
        let word = |at| now.word(at);
        match call.what {
            Does::BeginCapture(stream, graph, nodes) => {
                let origin = self.stream(now, word(stream));
                let of = &mut self.graphs;
                of.begun += 1;
                let key = match word(graph) {
                    0 => 1 << 63 | of.begun,
                    graph => graph,
                };
                let last = HashMap::from([(origin, of.at(key).named(now.array(nodes)))]);
                of.captures.insert(key, Capture { origin, last });
            }
            Does::EndCapture(stream, graph) | Does::CaptureInfo(stream, graph) => {
                let stream = self.stream(now, word(stream));
                let Graphs { keys, captures, .. } = &mut self.graphs;
                for (key, _) in captures
                    .iter()
                    .filter(|(_, c)| c.last.contains_key(&stream))
                {
                    keys.insert(word(graph), *key);
                }
                let is_end = matches!(call.what, Does::EndCapture(..));
                captures.retain(|_, capture| !is_end || capture.origin != stream);
            }
            // Nodes that the next one did not depend on stay among those that it does.
            Does::CaptureDependencies(stream, nodes) => {
                let stream = self.stream(now, word(stream));
                let Graphs {
                    graphs, captures, ..
                } = &mut self.graphs;
                for (key, Capture { last, .. }) in captures {
                    if let Some(last) = last.get_mut(&stream) {
                        last.extend(graphs.entry(*key).or_default().named(now.array(nodes)));
                    }
                }
            }
            _ => self.change(call, now),
        }
    }

    /// Takes a call that makes, changes or launches a graph.
    fn change(&mut self, call: &ApiCall, now: &Now<'_>) {
        let word = |at| now.word(at);
        match call.what {
            Does::GraphClone(clone, original) => {
                let mut graph = self.graphs.at(word(original)).clone();
                graph.nodes.iter_mut().for_each(|node| node.handle = 0);
                *self.graphs.at(word(clone)) = graph;
            }
            Does::GraphDestroy(graph) => {
                let Graphs { keys, graphs, .. } = &mut self.graphs;
                let key = keys.remove(&word(graph)).unwrap_or(word(graph));
                let graph = graphs.remove(&key).unwrap_or_default();
                for body in graph.nodes.iter().flat_map(|node| &node.bodies) {
                    graphs.remove(body);
                }
            }
            Does::GraphInstantiate(executable, graph) => {
                let mut graph = self.graphs.at(word(graph)).clone();
                self.inside(now, &graph);
                // After an update, the handles of nodes remain those of the graph from which it was instantiated.
                let old = self.graphs.executables.get(&word(executable));
                let old = old.into_iter().flat_map(|(_, old, _)| &old.nodes);
                for (new, old) in graph.nodes.iter_mut().zip(old) {
                    new.handle = old.handle;
                    new.exact.clone_from(&old.exact);
                }
                self.graphs.set(word(executable), graph);
            }
            Does::GraphExecDestroy(executable) => {
                let known = self.graphs.executables.remove(&word(executable));
                self.graphs.spare.extend(known.map(|(id, ..)| id));
            }
            Does::GraphLaunch(executable, stream) => {
                let (executable, stream) = (word(executable), self.stream(now, word(stream)));
                if !self.graphs.executables.contains_key(&executable) {
                    self.graphs.set(executable, Graph::default());
                }
                let (graph, nodes, accesses) = &self.graphs.executables[&executable];
                let (graph, mut accesses) = (*graph, accesses.clone());
                let ops = nodes.nodes.iter().flat_map(|node| &node.does);
                let kinds = ops.map(|op| in_stream(op.kind, stream));
                let of = |class| {
                    kinds
                        .clone()
                        .filter(|kind| kind.class() == class)
                        .collect::<Vec<_>>()
                };
                let (waits, records) = (of(Class::Wait), of(Class::Record));
                for wait in waits {
                    self.op(now, wait, &[]);
                }
                let launch = Kind::GraphLaunch { stream, graph };
                if self.exact.is_on && !self.graphs.is_captured(launch) {
                    self.exact_nodes(now, executable, &mut accesses);
                }
                self.op(now, launch, &accesses);
                for record in records {
                    self.op(now, record, &[]);
                }
            }
            Does::Edges(graph) => self.graphs.at(word(graph)).is_vague = true,
            Does::NodeAdd(node, graph, after, _) => {
                let mut made = self.node(call, word(node), now);
                let graph = self.graphs.at(word(graph));
                made.after = graph.named(now.array(after));
                graph.nodes.push(made);
            }
            Does::NodeSet(node, _, Some(executable)) => {
                let (node, executable) = (self.node(call, word(node), now), word(executable));
                let known = self.graphs.executables.get(&executable);
                let mut graph = known.map_or(Graph::default(), |(_, graph, _)| graph.clone());
                graph.set(node);
                self.graphs.set(executable, graph);
            }
            Does::NodeSet(node, _, None) => {
                let node = self.node(call, word(node), now);
                let mut graphs = self.graphs.graphs.values_mut();
                if let Some(graph) = graphs.find(|graph| graph.at(node.handle).is_some()) {
                    graph.set(node);
                }
            }
            _ => {}
        }
    }

    /// Returns the node that a call describes, in the place of which it is not known yet.
    fn node(&mut self, call: &ApiCall, handle: u64, now: &Now<'_>) -> Node {
        let word = |at| now.word(at);
        let rest = now.words.get(call.end(now.words)..).unwrap_or_default();
        let (stream, mut node) = (self.stream(now, LEGACY), Node::default());
        let mut kernels = 0;
        node.handle = handle;
        self.graphs.making = Some(node);
        let part = call.part(now.words).unwrap_or(Part::Nothing);
        match part {
            Part::Kernel(..) => {
                let kernel = call.kernel(now.words).map_or(0, |[kernel, ..]| kernel);
                let accesses = self.kernel_accesses(kernel, rest);
                self.op(now, Kind::kernel(stream), &accesses);
                kernels = 1;
            }
            Part::Copy(first) => {
                let (to, from) = Area::both_3d(now.words, first);
                let order = None;
                let copied = Copied { to, from, order };
                self.copy(now, &copied, (false, false), Some(LEGACY));
            }
            Part::Memset(first) => {
                let [at, pitch, each, width, height] = words_at(now.words, first);
                let area = Area::of_rows(at, width.saturating_mul(each >> 32), pitch, height);
                self.memset(now, area, Some(LEGACY));
            }
            Part::Child(graph) => {
                let child = self.graphs.at(word(graph)).clone();
                let all = self.graphs.all(&child, 0);
                kernels = child.nodes.iter().map(|node| node.kernels).sum();
                self.op(now, Kind::kernel(stream), &all);
                let node = self.graphs.making.as_mut();
                node.map(|node| node.inner = rest.to_vec())
                    .unwrap_or_default()
            }
            Part::Conditional(_) => {
                self.op(now, Kind::kernel(stream), &[]);
                let node = self.graphs.making.as_mut();
                node.map(|node| node.bodies = rest.to_vec())
                    .unwrap_or_default()
            }
            Part::Alloc(first) => {
                let (at, bytes) = (word(first + 14), word(first + 13));
                let kind = Kind::MallocAsync { stream };
                self.made(now, at, bytes, Memory::Device, kind);
            }
            Part::Free(at) => {
                let range = self.memory.remove(word(at));
                let all = range.map(|range| range.all(Mode::Write));
                self.op(now, Kind::FreeAsync { stream }, all.as_slice());
            }
            Part::Record(event) | Part::Wait(event) => {
                let event = self.event(word(event));
                let kind = match part {
                    Part::Wait(_) => Kind::Wait { event, stream },
                    _ => Kind::Record { event, stream },
                };
                self.op(now, kind, &[]);
            }
            Part::Any(_) | Part::Nothing => {}
        }
        let made = self.graphs.making.take().unwrap_or_default();
        Node { kernels, ..made }
    }

    /// Adds what the kernels of a graph's launch touched, and tells pairs of nodes that race by that.
    fn exact_nodes(&mut self, now: &Now<'_>, executable: u64, accesses: &mut Accesses) {
        let (all, mut of_nodes, heard) = self.nodes_touch();
        let known = self.graphs.executables.get_mut(&executable);
        let mut graph = known.map_or(Graph::default(), |known| std::mem::take(&mut known.1));
        let mut is_new = false;
        for node in graph.nodes.iter_mut().filter(|node| node.handle != 0) {
            let each = [node.handle].into_iter().chain(node.inner.iter().copied());
            let ranges = each.flat_map(|handle| of_nodes.remove(&handle)).flatten();
            let ranges = ranges.collect();
            let (exact, _) = self.placed(ranges);
            is_new |= exact != node.exact;
            node.exact = exact;
        }
        // That takes the square of their number.
        if is_new {
            self.inside(now, &graph);
        }
        let kernels: u64 = graph.nodes.iter().map(|node| node.kernels).sum();
        if let Some(known) = self.graphs.executables.get_mut(&executable) {
            known.1 = graph;
        }
        let (exact, outside) = self.placed(all);
        let unseen = &mut self.exact.unseen;
        unseen.count(kernels.saturating_sub(heard), Some(Why::NotWatched));
        unseen.outside = unseen.outside.saturating_add(outside);
        accesses.extend(exact);
        unseen.keep(accesses, 1);
        self.tells(accesses);
    }

    /// Tells pairs of nodes of a graph, and of its bodies, that race.
    fn inside(&mut self, now: &Now<'_>, graph: &Graph) {
        let bodies = graph.nodes.iter().flat_map(|node| &node.bodies);
        let bodies: Vec<Graph> = bodies.map(|body| self.graphs.at(*body).clone()).collect();
        for (pair, buffer) in bodies.iter().chain([graph]).flat_map(Graph::races) {
            let [Some(first), Some(second)] = pair.map(|node| node.does.as_ref()) else {
                continue;
            };
            let ops = [first, second];
            if !self.graphs.told.insert(ops.map(|op| op.site)) {
                continue;
            }
            let streams = self.graphs.branches.unwrap_or_else(|| {
                ["one branch of a graph", "another branch of the graph"].map(|name| {
                    self.declare_stream(StreamKind::NonBlocking, now.device, name.to_owned())
                })
            });
            self.graphs.branches = Some(streams);
            let name = self.memory.name(buffer);
            self.told
                .take(&Record::buffer(Memory::Device, ADDRESSES, None, name));
            let twin = BufferId(self.buffers);
            self.buffers += 1;
            for ((node, op), stream) in pair.into_iter().zip(ops).zip(streams) {
                let (mut now, accesses) = (*now, node.accesses());
                now.site = op.site;
                let of_buffer = accesses.filter(|access| access.buffer == buffer);
                let mut accesses: Accesses = of_buffer.copied().collect();
                self.exact.unseen.keep(&mut accesses, 1);
                accesses.iter_mut().for_each(|access| access.buffer = twin);
                self.op(&now, in_stream(op.kind, stream), &accesses);
            }
        }
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
