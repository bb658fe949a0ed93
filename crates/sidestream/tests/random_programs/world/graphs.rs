//! Graphs: nodes beside a list of what they do, which every launch repeats on the plain vectors.

use std::ops::Range;

use sidestream::error::{Error, Result};
use sidestream::graph::{BufKey, Graph, GraphBuilder, NodeId, PinnedKey};
use sidestream::op::DeviceId;

use super::super::act::Place;
use super::super::flying::drop_elsewhere;
use super::super::graph_act::{GraphAct, Node, Part, Work};
use super::super::reference;
use super::values::{fits, keep, pattern, scatter};
use super::{GRID, Slot, World};

/// A graph that is being built, or one that is launched.
pub enum Stage {
    Draft(GraphBuilder, Holds),
    Built(Graph, Holds),
}

/// What a graph holds, and what it has to hold; and what its nodes do to that.
pub struct Holds {
    device: DeviceId,
    buffers: Vec<Buffer>,
    pinned: Vec<(PinnedKey<u32>, Vec<u32>)>,
    nodes: Vec<NodeId>,
    steps: Vec<Step>,
}

struct Buffer {
    key: BufKey<u32>,
    device: DeviceId,
    first: usize,
    model: Vec<u32>,
}

/// What a node does, on the plain vectors.
type Step = Box<dyn Fn(&mut Holds) + Send + Sync>;

/// Values of a buffer, or of pinned memory, counted from the first that is used.
#[derive(Clone)]
struct Values {
    at: usize,
    range: Range<usize>,
}

impl World {
    pub(super) fn graph(&self, at: usize, act: GraphAct) {
        let mut place = self.graphs[at].lock();
        match (act, &mut *place) {
            (GraphAct::Open(device), stage) => {
                // What is not to be dropped stays.
                if stage.is_none() || self.plan.drops {
                    let device = self.device(device);
                    let draft = Stage::Draft(device.graph(), Holds::new(device.id()));
                    let old = stage.replace(draft);
                    drop(place);
                    drop(old);
                }
            }
            (GraphAct::Own(slot), Some(Stage::Draft(nodes, holds))) => {
                if let Some(slot) = self.take(slot) {
                    self.own(nodes, holds, slot);
                }
            }
            (GraphAct::OwnPinned(len), Some(Stage::Draft(nodes, holds))) => {
                if let Some(mut pinned) = self.pinned(len) {
                    pinned.copy_from_slice(&pattern(6, len));
                    let key = nodes.own_pinned(pinned).expect("there is one machine");
                    holds.pinned.push((key, pattern(6, len)));
                }
            }
            (GraphAct::Node(node), Some(Stage::Draft(nodes, holds))) => {
                self.node(nodes, holds, node);
            }
            (GraphAct::After(node, earlier), Some(Stage::Draft(nodes, holds))) => {
                let ids = &holds.nodes;
                let (Some(&node_id), Some(&earlier_id)) = (ids.get(node), ids.get(earlier)) else {
                    return;
                };
                let added = nodes.after(node_id, earlier_id);
                if added.is_ok() != (earlier < node) {
                    self.wrong(format!("{node} after {earlier}: {added:?}"));
                }
            }
            (GraphAct::Build, stage @ Some(Stage::Draft(..))) => {
                if let Some(Stage::Draft(nodes, holds)) = stage.take() {
                    // Its memory is dropped if it fails.
                    let graph = self.tried(nodes.build());
                    *stage = graph.map(|graph| Stage::Built(graph, holds));
                }
            }
            (GraphAct::Take(most), stage @ Some(Stage::Built(..))) => {
                let stage = stage.take();
                drop(place);
                if let Some(Stage::Built(graph, holds)) = stage {
                    self.take_back(graph, holds, most);
                }
            }
            (GraphAct::Drop, stage) => {
                let stage = stage.take();
                drop(place);
                drop(stage);
            }
            (GraphAct::Forget, stage) => {
                if let Some(stage) = stage.take() {
                    self.forgotten.lock().push(Box::new(stage));
                }
            }
            (GraphAct::DropElsewhere, stage) => drop_elsewhere(stage.take()),
            // There is no graph, or none in that stage.
            (
                GraphAct::Own(_)
                | GraphAct::OwnPinned(_)
                | GraphAct::Node(_)
                | GraphAct::After(..)
                | GraphAct::Build,
                _,
            )
            | (_, None | Some(Stage::Draft(..))) => {}
            (act, Some(Stage::Built(graph, holds))) => self.use_graph(graph, holds, act),
        }
    }

    fn own(&self, nodes: &mut GraphBuilder, holds: &mut Holds, slot: Slot) {
        let Slot {
            buffer,
            device,
            first,
            model,
        } = slot;
        let key = nodes.own(buffer).expect("there is one machine");
        holds.buffers.push(Buffer {
            key,
            device,
            first,
            model,
        });
    }

    fn use_graph(&self, graph: &mut Graph, holds: &mut Holds, act: GraphAct) {
        match act {
            GraphAct::Launch(stream) => {
                let stream = self.stream_of(stream, holds.device);
                let is_near = stream.device().id() == holds.device;
                match graph.launch(&stream) {
                    Err(Error::Invalid { .. }) if !is_near => {}
                    launched => {
                        if let Some(event) = self.issued(launched) {
                            holds.step();
                            keep(&self.events, Some(event));
                        }
                    }
                }
            }
            GraphAct::Out(which, stream) => {
                if let Some(buffer) = nth(&holds.buffers, which) {
                    let mut host = vec![0; buffer.model.len()];
                    let view = graph.view(buffer.key).slice(buffer.bounds());
                    let copied = self.stream(stream).stream.memcpy_d2h(view, &mut host);
                    if self.tried(copied).is_some() {
                        self.compare("a copy out of a graph", &host, &buffer.model);
                    }
                }
            }
            GraphAct::Fill(which, stream, value) => {
                if let Some(buffer) = nth_mut(&mut holds.buffers, which) {
                    let view = graph.view_mut(buffer.key).slice(buffer.bounds());
                    let filled = self.stream(stream).stream.fill_with(view, value);
                    if self.issued(filled).is_some() {
                        buffer.model.fill(value);
                    }
                }
            }
            GraphAct::Lend(which, at) => {
                if let Some(buffer) = nth(&holds.buffers, which) {
                    self.lend(graph, buffer, at);
                }
            }
            GraphAct::Pinned(which) => {
                if let Some((key, model)) = nth(&holds.pinned, which) {
                    match graph.pinned(*key) {
                        // A launch may be using it.
                        Err(Error::Invalid { .. }) => {}
                        found => {
                            if let Some(found) = self.tried(found) {
                                self.compare("pinned memory of a graph", found, model);
                            }
                        }
                    }
                }
            }
            GraphAct::PinnedMut(which, value) => {
                if let Some((key, model)) = nth_mut(&mut holds.pinned, which) {
                    match graph.pinned_mut(*key) {
                        Err(Error::Invalid { .. }) => {}
                        found => self.rewrite(found, model, value),
                    }
                }
            }
            GraphAct::SyncPinned(which, value) => {
                if let Some((key, model)) = nth_mut(&mut holds.pinned, which) {
                    self.rewrite(graph.synchronize_pinned(*key), model, value);
                    // Nothing uses it until the next launch, if nothing failed.
                    if self.plan.faults == 0
                        && let Err(error @ Error::Invalid { .. }) = graph.pinned_mut(*key)
                    {
                        self.wrong(format!("just waited for: {error}"));
                    }
                }
            }
            other => self.wrong(format!("{other:?} is not carried out")),
        }
    }

    fn rewrite(&self, found: Result<&mut [u32]>, model: &mut Vec<u32>, value: u32) {
        if let Some(found) = self.tried(found) {
            self.compare("pinned memory of a graph", found, model);
            *model = pattern(value, model.len());
            found.copy_from_slice(model);
        }
    }

    fn lend(&self, graph: &Graph, buffer: &Buffer, at: Place) {
        let mut guard = self.slots[at.slot].write();
        let Some(slot) = guard.as_mut() else { return };
        let stream = self.stream_near(at.stream, slot);
        let range = slot.range(at);
        let view = graph.view(buffer.key).slice(buffer.bounds());
        let called = stream.launch(&self.kernels.two, GRID, (view, slot.view_mut(&range)));
        let device = stream.device().id();
        let is_near = buffer.device == device && slot.device == device;
        match called {
            Err(Error::Invalid { .. }) if !is_near => {}
            called => {
                if self.issued(called).is_some() {
                    reference::two(&buffer.model, &mut slot.model[range]);
                }
            }
        }
    }

    /// Gives a graph up and takes so much of its memory back; drops the rest.
    pub(super) fn take_back(&self, graph: Graph, holds: Holds, most: usize) {
        let mut left = graph.into_buffers();
        let Holds {
            buffers, pinned, ..
        } = holds;
        // Pinned memory comes back to who waits for it.
        let waits = self.plan.waits || most == usize::MAX;
        let most_pinned = if waits { most } else { 0 };
        for (key, model) in pinned.into_iter().take(most_pinned) {
            if let Some(found) = self.tried(left.synchronize_pinned(key)) {
                self.compare("pinned memory of a graph", &found, &model);
                self.idle.lock().push(found);
            }
        }
        for buffer in buffers.into_iter().take(most) {
            self.put_anywhere(Slot {
                buffer: left.take(buffer.key),
                device: buffer.device,
                first: buffer.first,
                model: buffer.model,
            });
        }
        if !self.plan.drops {
            self.forgotten.lock().push(Box::new(left));
        }
    }

    /// In the end everything that graphs hold is looked at.
    pub(super) fn finish_graphs(&self) {
        for place in &self.graphs {
            let stage = place.lock().take();
            if let Some(Stage::Built(mut graph, mut holds)) = stage {
                for which in 0..holds.buffers.len() {
                    self.use_graph(&mut graph, &mut holds, GraphAct::Out(which, which));
                }
                self.take_back(graph, holds, usize::MAX);
            }
        }
    }
}

// ------------------------------------------------------------------ nodes

impl World {
    fn node(&self, nodes: &mut GraphBuilder, holds: &mut Holds, node: Node) {
        let (Some(x), Some(z), Some(y)) =
            (holds.part(node.x), holds.part(node.z), holds.part(node.y))
        else {
            return;
        };
        let pinned = holds.pinned_part(node.pinned);
        let Some(added) = self.added(nodes, holds, node, [&x, &z, &y], pinned) else {
            return;
        };
        let is_refused = added.is_refused;
        match added.node {
            Ok((id, step)) if !is_refused => {
                holds.nodes.push(id);
                holds.steps.push(step);
            }
            Err(Error::Invalid { .. }) if is_refused => {}
            Ok(_) => self.wrong(format!("{node:?} was taken")),
            Err(error) => self.wrong(format!("{node:?}: {error}")),
        }
    }

    /// The node as the builder took it, and whether it should have refused it.
    fn added(
        &self,
        nodes: &mut GraphBuilder,
        holds: &Holds,
        node: Node,
        [x, z, y]: [&Values; 3],
        pinned: Option<Values>,
    ) -> Option<Added> {
        let kernels = &self.kernels;
        let read = |part: &Values| holds.view(part).view().slice(holds.bounds(part));
        let write = |part: &Values| holds.view(part).view_mut().slice(holds.bounds(part));
        let is_far = |parts: &[&Values]| {
            let mut devices = parts.iter().map(|part| holds.buffers[part.at].device);
            devices.any(|device| device != holds.device)
        };
        let value = node.value;
        let (at_x, at_z, at_y) = (x.clone(), z.clone(), y.clone());
        let (id, is_refused, step): (_, _, Step) = match node.work {
            Work::One => (
                nodes.launch(&kernels.one, GRID, (write(y),)),
                is_far(&[y]),
                Box::new(move |holds| reference::one(holds.at(&at_y))),
            ),
            Work::Trap => (
                nodes.launch(&kernels.trap, GRID, (write(y),)),
                is_far(&[y]),
                Box::new(|_| ()),
            ),
            Work::Two => (
                nodes.launch(&kernels.two, GRID, (read(x), write(y))),
                is_far(&[x, y]) || x.overlaps(y),
                Box::new(move |holds| {
                    let x = holds.at(&at_x).to_vec();
                    reference::two(&x, holds.at(&at_y));
                }),
            ),
            Work::Three => (
                nodes.launch(&kernels.three, GRID, (read(x), read(z), write(y))),
                is_far(&[x, z, y]) || x.overlaps(y) || z.overlaps(y),
                Box::new(move |holds| {
                    let (x, z) = (holds.at(&at_x).to_vec(), holds.at(&at_z).to_vec());
                    reference::three(&x, &z, holds.at(&at_y));
                }),
            ),
            Work::Four => (
                nodes.launch(&kernels.four, GRID, (read(x), write(y), write(z), value)),
                is_far(&[x, z, y]) || x.overlaps(y) || x.overlaps(z) || z.overlaps(y),
                Box::new(move |holds| {
                    let x = holds.at(&at_x).to_vec();
                    let mut z = holds.at(&at_z).to_vec();
                    reference::four(&x, holds.at(&at_y), &mut z, value);
                    holds.at(&at_z).copy_from_slice(&z);
                }),
            ),
            Work::Copy => {
                let n = x.range.len().min(y.range.len());
                let (x, y) = (x.first(n), y.first(n));
                let copied = nodes.memcpy_d2d(read(&x), write(&y));
                let is_refused = x.overlaps(&y);
                let step = move |holds: &mut Holds| {
                    let from = holds.at(&x).to_vec();
                    holds.at(&y).copy_from_slice(&from);
                };
                (copied, is_refused, Box::new(step))
            }
            Work::CopyRows(table) => {
                let (from, to) = table.rows();
                let copied = nodes.memcpy_d2d_rows(read(x), from, write(y), to);
                let is_refused =
                    !fits(from, x.range.len()) || !fits(to, y.range.len()) || x.overlaps(y);
                let step = move |holds: &mut Holds| {
                    let values = holds.at(&at_x).to_vec();
                    scatter(&values, from, holds.at(&at_y), to);
                };
                (copied, is_refused, Box::new(step))
            }
            Work::Fill => (
                nodes.fill_with(write(y), value),
                false,
                Box::new(move |holds| holds.at(&at_y).fill(value)),
            ),
            Work::Memset => (
                nodes.memset(write(y), value as u8),
                false,
                Box::new(move |holds| {
                    let value = u32::from_ne_bytes([value as u8; 4]);
                    holds.at(&at_y).fill(value);
                }),
            ),
            _ => return self.with_pinned(nodes, holds, node.work, [x, y], pinned?),
        };
        let node = id.map(|id| (id, step));
        Some(Added { node, is_refused })
    }

    /// Copies between pinned memory and a buffer.
    fn with_pinned(
        &self,
        nodes: &mut GraphBuilder,
        holds: &Holds,
        work: Work,
        [x, y]: [&Values; 2],
        pinned: Values,
    ) -> Option<Added> {
        let (key, _) = holds.pinned[pinned.at];
        let read = |part: &Values| holds.view(part).view().slice(holds.bounds(part));
        let write = |part: &Values| holds.view(part).view_mut().slice(holds.bounds(part));
        let (at_x, at_y) = (x.clone(), y.clone());
        let (id, is_refused, step): (_, _, Step) = match work {
            Work::Upload => {
                let n = pinned.range.len().min(y.range.len());
                let (pinned, y) = (pinned.first(n), y.first(n));
                let copied = nodes.upload(key.slice(pinned.range.clone()), write(&y));
                let step = move |holds: &mut Holds| {
                    let from = holds.pinned_at(&pinned).to_vec();
                    holds.at(&y).copy_from_slice(&from);
                };
                (copied, false, Box::new(step))
            }
            Work::UploadRows(table) => {
                let (from, to) = table.rows();
                let part = key.slice(pinned.range.clone());
                let copied = nodes.upload_rows(part, from, write(y), to);
                let is_refused = !fits(from, pinned.range.len()) || !fits(to, y.range.len());
                let step = move |holds: &mut Holds| {
                    let values = holds.pinned_at(&pinned).to_vec();
                    scatter(&values, from, holds.at(&at_y), to);
                };
                (copied, is_refused, Box::new(step))
            }
            Work::Download => {
                let n = pinned.range.len().min(x.range.len());
                let (pinned, x) = (pinned.first(n), x.first(n));
                let copied = nodes.download(read(&x), key.slice(pinned.range.clone()));
                let step = move |holds: &mut Holds| {
                    let from = holds.at(&x).to_vec();
                    holds.pinned_at(&pinned).copy_from_slice(&from);
                };
                (copied, false, Box::new(step))
            }
            Work::DownloadRows(table) => {
                let (to, from) = table.rows();
                let part = key.slice(pinned.range.clone());
                let copied = nodes.download_rows(read(x), from, part, to);
                let is_refused = !fits(to, pinned.range.len()) || !fits(from, x.range.len());
                let step = move |holds: &mut Holds| {
                    let values = holds.at(&at_x).to_vec();
                    scatter(&values, from, holds.pinned_at(&pinned), to);
                };
                (copied, is_refused, Box::new(step))
            }
            other => {
                self.wrong(format!("{other:?} is not carried out"));
                return None;
            }
        };
        let node = id.map(|id| (id, step));
        Some(Added { node, is_refused })
    }
}

struct Added {
    node: Result<(NodeId, Step)>,
    is_refused: bool,
}

// ------------------------------------------------------------------ what a graph holds

impl Holds {
    fn new(device: DeviceId) -> Holds {
        Holds {
            device,
            buffers: Vec::new(),
            pinned: Vec::new(),
            nodes: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// A launch: all nodes, one after the other.
    fn step(&mut self) {
        let steps = std::mem::take(&mut self.steps);
        steps.iter().for_each(|step| step(self));
        self.steps = steps;
    }

    fn part(&self, part: Part) -> Option<Values> {
        let at = part.which.checked_rem(self.buffers.len())?;
        Some(values_of(at, part, self.buffers[at].model.len()))
    }

    fn pinned_part(&self, part: Part) -> Option<Values> {
        let at = part.which.checked_rem(self.pinned.len())?;
        Some(values_of(at, part, self.pinned[at].1.len()))
    }

    fn view(&self, part: &Values) -> BufKey<u32> {
        self.buffers[part.at].key
    }

    /// Where the values are in their buffer.
    fn bounds(&self, part: &Values) -> Range<usize> {
        let first = self.buffers[part.at].first;
        first + part.range.start..first + part.range.end
    }

    fn at(&mut self, part: &Values) -> &mut [u32] {
        &mut self.buffers[part.at].model[part.range.clone()]
    }

    fn pinned_at(&mut self, part: &Values) -> &mut [u32] {
        &mut self.pinned[part.at].1[part.range.clone()]
    }
}

impl Buffer {
    fn bounds(&self) -> Range<usize> {
        self.first..self.first + self.model.len()
    }
}

impl Values {
    fn first(&self, n: usize) -> Values {
        let start = self.range.start;
        Values {
            at: self.at,
            range: start..start + n,
        }
    }

    fn overlaps(&self, other: &Values) -> bool {
        let (a, b) = (&self.range, &other.range);
        self.at == other.at && a.start.max(b.start) < a.end.min(b.end)
    }
}

fn values_of(at: usize, part: Part, len: usize) -> Values {
    let range = part.from * len / 1000..part.to * len / 1000;
    Values { at, range }
}

fn nth<T>(from: &[T], which: usize) -> Option<&T> {
    from.get(which.checked_rem(from.len())?)
}

fn nth_mut<T>(from: &mut [T], which: usize) -> Option<&mut T> {
    let at = which.checked_rem(from.len())?;
    from.get_mut(at)
}
