//! Graphs, each with a list of what its nodes do: every launch repeats it on the plain vectors.

use sidestream::error::{Error, Result};
use sidestream::graph::{Graph, GraphBuilder};

use super::super::act::Place;
use super::super::flying::drop_elsewhere;
use super::super::graph_act::GraphAct;
use super::super::reference;
use super::holds::{Buffer, Holds};
use super::values::{keep, pattern};
use super::{GRID, Slot, World};

/// A graph that is being built, or one that can be launched.
pub enum Stage {
    Draft(GraphBuilder, Holds),
    Built(Graph, Holds),
}

impl World {
    pub(super) fn graph(&self, at: usize, act: GraphAct) {
        let mut place = self.graphs[at].lock();
        match (act, &mut *place) {
            (GraphAct::Open(device), stage) => {
                // A graph that may not be dropped is kept.
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
                    // The memory of the graph is dropped if building fails.
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
                        // A launch may be using the memory.
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
                    // If nothing failed, nothing uses the memory until the next launch.
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

    /// Drops a graph and takes this much of its memory back.
    pub(super) fn take_back(&self, graph: Graph, holds: Holds, most: usize) {
        let mut left = graph.into_buffers();
        let Holds {
            buffers, pinned, ..
        } = holds;
        // Pinned memory comes back only to a caller that waits for it.
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

    /// In the end, compares everything that graphs own.
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

fn nth<T>(from: &[T], which: usize) -> Option<&T> {
    from.get(which.checked_rem(from.len())?)
}

fn nth_mut<T>(from: &mut [T], which: usize) -> Option<&mut T> {
    let at = which.checked_rem(from.len())?;
    from.get_mut(at)
}
