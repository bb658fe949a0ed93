//! The graphs of a process: captured, or built node by node, and launched.
//!
//! A launch is one operation that does what all nodes do. Where two nodes of a graph conflict and nothing orders them, they are told
//! once as operations of their own, on streams and a buffer of their own, so that the checker finds their race and no other.

use std::collections::{BTreeSet, HashMap, HashSet};

use sidestream::log::{Record, limits};
use sidestream::op::*;
use sidestream_inject::calls::{ApiCall, Does, Part, Word};

use super::copies::Area;
use super::translate::{ADDRESSES, Hears, Now, Process};

/// What is known of the graphs of a process.
#[derive(Default)]
pub struct Graphs {
    /// By handle; one that is being captured, and for whose handle the program has not asked, by a number of its own.
    graphs: HashMap<u64, Graph>,
    /// By handle: the number, the graph, and what a launch does.
    executables: HashMap<u64, (GraphId, Graph, Accesses)>,
    declared: u32,
    spare: Vec<GraphId>,
    captures: Vec<Capture>,
    begun: u64,
    /// By event that was last recorded in a capture: the capture's number, and the nodes that a wait depends on.
    events: HashMap<EventId, (u64, Nodes)>,
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

#[derive(Clone)]
struct Node {
    /// Zero if it is not known.
    handle: u64,
    site: SiteId,
    /// What it does, in some stream.
    kind: Option<Kind>,
    accesses: Accesses,
    /// The nodes that it depends on.
    after: Nodes,
    /// The graphs that may be executed in its place.
    bodies: Vec<u64>,
}

struct Capture {
    number: u64,
    origin: StreamId,
    /// Its graph's key.
    graph: u64,
    /// By stream that takes part: the nodes on which its next one depends.
    last: HashMap<StreamId, Nodes>,
}

/// The largest number of nodes of a graph whose order is checked: that takes the square of it in time.
const MAX_NODES: usize = 4096;
/// How deep bodies may be nested in bodies.
const DEPTH: u32 = 8;

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
    fn set(&mut self, handle: u64, made: Node) {
        if let Some(at) = self.at(handle) {
            let after = std::mem::take(&mut self.nodes[at].after);
            self.nodes[at] = Node {
                handle,
                after,
                ..made
            };
            return;
        }
        // It is one of the nodes without a known handle, and what that did is over.
        self.nodes.retain(|node| node.handle != 0);
        self.nodes.push(Node { handle, ..made });
        self.is_vague = true;
    }

    /// Returns the pairs of nodes that conflict and that nothing orders, with the buffer.
    fn races(&self) -> Vec<(&Node, &Node, BufferId)> {
        let count = self.nodes.len();
        if self.is_vague || count > MAX_NODES {
            return Vec::new();
        }
        // By node: the nodes before it, as bits. An edge to an earlier node takes another round.
        let mut before = vec![vec![0_u64; count.div_ceil(64)]; count];
        let mut is_new = true;
        while std::mem::take(&mut is_new) {
            for (at, node) in self.nodes.iter().enumerate() {
                for &from in &node.after {
                    before[from][from / 64] |= 1 << (from % 64);
                    if let Ok([to, from]) = before.get_disjoint_mut([at, from]) {
                        for (to, from) in to.iter_mut().zip(from) {
                            is_new |= *from & !*to != 0;
                            *to |= *from;
                        }
                    }
                }
            }
        }
        let is_before = |from: usize, to: usize| before[to][from / 64] >> (from % 64) & 1 == 1;
        let mut races = Vec::new();
        for (second, to) in self.nodes.iter().enumerate() {
            for first in (0..second).filter(|at| !is_before(*at, second) && !is_before(second, *at))
            {
                let from = &self.nodes[first];
                let conflict = |x: &Access| to.accesses.iter().any(|y| conflict(x, y));
                let access = from.accesses.iter().find(|access| conflict(access));
                races.extend(access.map(|access| (from, to, access.buffer)));
            }
        }
        races
    }
}

fn conflict(x: &Access, y: &Access) -> bool {
    let meets = x.buffer == y.buffer && x.start < y.end && y.start < x.end;
    meets && (x.mode != Mode::Read || y.mode != Mode::Read)
}

impl Node {
    fn new(site: SiteId, kind: Option<Kind>, accesses: Accesses) -> Node {
        let (handle, after, bodies) = Default::default();
        Node {
            handle,
            site,
            kind,
            accesses,
            after,
            bodies,
        }
    }
}

impl Graphs {
    /// Returns the capture in which a stream takes part.
    fn capture(&mut self, stream: StreamId) -> Option<&mut Capture> {
        self.captures
            .iter_mut()
            .find(|capture| capture.last.contains_key(&stream))
    }

    /// Whether a call in a stream makes a node.
    pub fn is_captured(&mut self, kind: Kind) -> bool {
        kind.stream()
            .is_some_and(|stream| self.capture(stream).is_some())
    }

    /// Takes a call in a stream: in a capture, it makes a node or adds an order. Returns whether it did. An external record
    /// or wait is one of the graph's launches.
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
        let capture = self
            .captures
            .iter_mut()
            .position(|c| c.last.contains_key(&stream));
        match (kind, kind.class(), capture) {
            (Kind::Record { event, .. }, ..) if !is_external => {
                self.events.remove(&event);
                if let Some(at) = capture {
                    let Capture { number, last, .. } = &self.captures[at];
                    self.events.insert(event, (*number, last[&stream].clone()));
                }
                capture.is_some()
            }
            (Kind::Wait { event, .. }, ..) if !is_external => {
                let (number, nodes) = self.events.get(&event).cloned().unwrap_or_default();
                let of_event = self.captures.iter_mut().find(|c| c.number == number);
                let joins = of_event.map(|c| c.last.entry(stream).or_default().extend(nodes));
                joins.is_some() || capture.is_some()
            }
            (Kind::DestroyStream { .. }, _, Some(at)) => {
                self.captures[at].last.remove(&stream);
                false
            }
            (_, Class::MallocAsync | Class::FreeAsync | Class::Record | Class::Wait, Some(at)) => {
                self.add(at, stream, Node::new(site, Some(kind), accesses.into()))
            }
            (_, class, Some(at)) if class.is_work() => {
                self.add(at, stream, Node::new(site, Some(kind), accesses.into()))
            }
            _ => false,
        }
    }

    fn add(&mut self, capture: usize, stream: StreamId, node: Node) -> bool {
        let Capture { graph, last, .. } = &mut self.captures[capture];
        let nodes = &mut self.graphs.entry(*graph).or_default().nodes;
        let after = last
            .insert(stream, Nodes::from([nodes.len()]))
            .unwrap_or_default();
        nodes.push(Node { after, ..node });
        true
    }

    /// Returns a graph as it is now.
    fn of(&self, handle: u64) -> Graph {
        self.graphs.get(&handle).cloned().unwrap_or_default()
    }

    /// Gives the graph of a capture its handle.
    fn name(&mut self, stream: StreamId, handle: u64) {
        if let Some(capture) = self.capture(stream).filter(|_| handle != 0) {
            let key = std::mem::replace(&mut capture.graph, handle);
            let graph = self.graphs.remove(&key).unwrap_or_default();
            self.graphs.insert(handle, graph);
        }
    }

    /// Returns what a graph does as a whole. A body may not be executed at all.
    fn all(&self, graph: &Graph, depth: u32) -> Accesses {
        let mut all = Vec::new();
        for node in &graph.nodes {
            all.extend(node.accesses.iter().map(|access| match access.mode {
                Mode::Write if depth > 0 => Access {
                    mode: Mode::MayWrite,
                    ..*access
                },
                _ => *access,
            }));
            let bodies = node.bodies.iter().filter(|_| depth < DEPTH);
            all.extend(
                bodies
                    .filter_map(|body| self.graphs.get(body))
                    .flat_map(|body| self.all(body, depth + 1)),
            );
        }
        all.sort_unstable_by_key(|access| {
            (access.buffer, access.start, access.end, access.mode as u8)
        });
        all.dedup();
        all.truncate(limits::ACCESSES as usize);
        all.into()
    }

    /// Sets what launches of an executable graph do.
    fn set(&mut self, handle: u64, graph: Graph) {
        let accesses = self.all(&graph, 0);
        let known = self
            .executables
            .get(&handle)
            .map(|known| known.0)
            .or_else(|| self.spare.pop());
        let id = known.unwrap_or_else(|| {
            self.declared += 1;
            GraphId(self.declared % limits::GRAPHS)
        });
        self.executables.insert(handle, (id, graph, accesses));
    }
}

impl Process {
    /// Takes a call that begins or ends a capture, or that makes, changes or launches a graph.
    pub(super) fn graph(&mut self, call: &ApiCall, now: &Now<'_>, out: &mut dyn Hears) {
        let word = |at| now.word(at);
        match call.what {
            Does::BeginCapture(stream, into) => {
                let origin = self.stream(now, word(stream), out);
                self.graphs.begun += 1;
                let number = self.graphs.begun;
                let graph = into.map_or(1 << 63 | number, |(graph, _)| word(graph));
                let nodes = into.map_or(&[][..], |(_, nodes)| now.array(nodes));
                let nodes = self.graphs.graphs.entry(graph).or_default().named(nodes);
                let last = HashMap::from([(origin, nodes)]);
                self.graphs.captures.push(Capture {
                    number,
                    origin,
                    graph,
                    last,
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
                let (of, nodes) = (&mut self.graphs, now.array(nodes));
                let capture = of
                    .captures
                    .iter_mut()
                    .find(|c| c.last.contains_key(&stream));
                if let Some(Capture { graph, last, .. }) = capture {
                    let mut nodes = of.graphs.entry(*graph).or_default().named(nodes);
                    // `CU_STREAM_ADD_CAPTURE_DEPENDENCIES`.
                    if word(flags) & 1 == 0 {
                        nodes.extend(&last[&stream]);
                    }
                    last.insert(stream, nodes);
                }
            }
            Does::GraphCreate(graph) => {
                self.graphs.graphs.insert(word(graph), Graph::default());
            }
            Does::GraphClone(clone, original) => {
                let mut graph = self.graphs.of(word(original));
                graph.nodes.iter_mut().for_each(|node| node.handle = 0);
                self.graphs.graphs.insert(word(clone), graph);
            }
            Does::GraphDestroy(graph) => {
                self.graphs.graphs.remove(&word(graph));
            }
            Does::GraphInstantiate(executable, graph) => {
                let graph = self.graphs.of(word(graph));
                self.inside(now, &graph, out);
                self.graphs.set(word(executable), graph);
            }
            Does::GraphUpdate(executable, graph) => {
                let mut graph = self.graphs.of(word(graph));
                // The handles of nodes remain those of the graph from which it was instantiated.
                if let Some((_, old, _)) = self.graphs.executables.get(&word(executable)) {
                    for (new, old) in graph.nodes.iter_mut().zip(&old.nodes) {
                        new.handle = old.handle;
                    }
                }
                self.graphs.set(word(executable), graph);
            }
            Does::GraphExecDestroy(executable) => {
                let known = self.graphs.executables.remove(&word(executable));
                self.graphs.spare.extend(known.map(|(id, ..)| id));
            }
            Does::GraphLaunch(executable, stream) => {
                let (executable, stream) = (word(executable), self.stream(now, word(stream), out));
                if !self.graphs.executables.contains_key(&executable) {
                    self.graphs.set(executable, Graph::default());
                }
                let (graph, nodes, accesses) = &self.graphs.executables[&executable];
                let (launch, accesses) = (
                    Kind::GraphLaunch {
                        stream,
                        graph: *graph,
                    },
                    accesses.clone(),
                );
                let kinds: Vec<Kind> = nodes.nodes.iter().filter_map(|node| node.kind).collect();
                let of = |class| kinds.iter().filter(move |kind| kind.class() == class);
                for wait in of(Class::Wait) {
                    self.op(now, in_stream(*wait, stream), &[], out);
                }
                self.op(now, launch, &accesses, out);
                for record in of(Class::Record) {
                    self.op(now, in_stream(*record, stream), &[], out);
                }
            }
            Does::Edges(graph, from, is_added) => {
                let (graph, from) = (
                    self.graphs.graphs.entry(word(graph)).or_default(),
                    now.array(from),
                );
                let to = now
                    .words
                    .get(call.end(now.words).saturating_sub(from.len())..);
                for (from, to) in from.iter().zip(to.unwrap_or_default()) {
                    let (from, to) = (graph.named(&[*from]), graph.named(&[*to]));
                    for to in to {
                        let after = &mut graph.nodes[to].after;
                        after.retain(|at| !from.contains(at));
                        after.extend(from.iter().filter(|_| is_added));
                    }
                }
            }
            Does::NodeAdd(node, graph, after, part) => {
                let mut made = self.node(call, part.said(now.words), now, out);
                let graph = self.graphs.graphs.entry(word(graph)).or_default();
                (made.handle, made.after) = (word(node), graph.named(now.array(after)));
                graph.nodes.push(made);
            }
            Does::NodeSet(node, part, executable) => {
                let (made, node) = (self.node(call, part.said(now.words), now, out), word(node));
                let of = &mut self.graphs;
                let Some(executable) = executable.map(word) else {
                    let mut all = of.graphs.values_mut();
                    if let Some(graph) = all.find(|graph| graph.at(node).is_some()) {
                        graph.set(node, made);
                    }
                    return;
                };
                if let Some((_, graph, _)) = of.executables.get_mut(&executable) {
                    let mut graph = std::mem::take(graph);
                    graph.set(node, made);
                    of.set(executable, graph);
                }
            }
            _ => {}
        }
    }

    /// Returns a node that does this.
    fn node(&mut self, call: &ApiCall, part: Part, now: &Now<'_>, out: &mut dyn Hears) -> Node {
        let word = |at: Word| now.word(at);
        let rest = now.words.get(call.end(now.words)..).unwrap_or_default();
        let (stream, mut accesses, mut bodies) = (StreamId(0), Accesses::new(), Vec::new());
        let kind = match part {
            Part::Kernel(..) => {
                let kernel = call.kernel(now.words).map_or(0, |[kernel, ..]| kernel);
                accesses = self.kernel_accesses(kernel, rest);
                Kind::kernel(stream)
            }
            Part::Copy(first) => {
                let (to, from) = Area::both_3d(now, first);
                let from = self.touched(from, Mode::Read, &mut accesses);
                let to = self.touched(to, Mode::Write, &mut accesses);
                let [from, to] = [from, to].map(|memory| memory.unwrap_or(Memory::Pageable));
                Kind::Copy { stream, from, to }
            }
            Part::Memset(first) => {
                let [at, pitch, each, width, height] = [0, 1, 2, 3, 4].map(|at| word(first + at));
                let area = Area::of_rows(at, width.saturating_mul(each >> 32), pitch, height);
                self.touched(area, Mode::Write, &mut accesses);
                Kind::Memset { stream }
            }
            Part::Host => Kind::HostFunc {
                stream,
                raises: None,
            },
            Part::Child(graph) => {
                let child = self.graphs.of(word(graph));
                self.inside(now, &child, out);
                accesses = self.graphs.all(&child, 0);
                Kind::kernel(stream)
            }
            Part::Conditional(_) => {
                bodies = rest.to_vec();
                Kind::kernel(stream)
            }
            Part::Alloc(first) => {
                let (at, bytes) = (word(first + 14), word(first + 13));
                let kind = Kind::MallocAsync { stream };
                accesses.extend(self.allocated(at, bytes, Memory::Device, kind, out));
                self.memory
                    .at(at)
                    .into_iter()
                    .for_each(|range| range.is_of_graph = true);
                kind
            }
            Part::Free(at) => {
                accesses.extend(
                    self.memory
                        .remove(word(at))
                        .map(|range| range.all(Mode::Write)),
                );
                Kind::FreeAsync { stream }
            }
            Part::Record(event) => Kind::Record {
                event: self.event(word(event), out),
                stream,
            },
            Part::Wait(event) => Kind::Wait {
                event: self.event(word(event), out),
                stream,
            },
            Part::Any(_) | Part::Nothing => return Node::new(now.site, None, accesses),
        };
        Node {
            bodies,
            ..Node::new(now.site, Some(kind), accesses)
        }
    }

    /// Tells pairs of nodes of a graph, and of its bodies, that race.
    fn inside(&mut self, now: &Now<'_>, graph: &Graph, out: &mut dyn Hears) {
        let bodies = graph.nodes.iter().flat_map(|node| &node.bodies);
        let bodies: Vec<Graph> = bodies.map(|body| self.graphs.of(*body)).collect();
        for (first, second, buffer) in bodies.iter().chain([graph]).flat_map(Graph::races) {
            if !self.graphs.told.insert([first.site, second.site]) {
                continue;
            }
            let streams = self.graphs.branches.unwrap_or_else(|| {
                ["a branch of a graph", "another branch of it"].map(|name| {
                    self.declare_stream(StreamKind::NonBlocking, now.device, name.to_owned(), out)
                })
            });
            self.graphs.branches = Some(streams);
            let name = self.memory.name(buffer);
            out.take(&Record::buffer(Memory::Device, ADDRESSES, None, name));
            let twin = BufferId(self.buffers);
            self.buffers += 1;
            for (node, stream) in [first, second].into_iter().zip(streams) {
                let touches = node
                    .accesses
                    .iter()
                    .filter(|access| access.buffer == buffer);
                let accesses: Accesses = touches
                    .map(|access| Access {
                        buffer: twin,
                        ..*access
                    })
                    .collect();
                let kind = in_stream(node.kind.unwrap_or(Kind::kernel(stream)), stream);
                self.op(&now.at(node.site), kind, &accesses, out);
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
