//! Executable graphs: every node is a separate task, so that the uploads, kernels and downloads of a graph run
//! on their engines and concurrently with the work of other streams.

use std::collections::BTreeMap;

use super::capture::Captured;
use super::command::{Command, Effect};
use super::state::{Part, State};
use crate::engine::{Delay, LaneId, Task, TaskId, Work};
use crate::error::{Error, Result};
use crate::op::{DeviceId, GraphId, Kind, OpId};
use crate::order::{Performs, Step};
use crate::sim::work;

/// An executable graph.
pub(super) struct Graph {
    /// Its id in the rule book.
    pub ordered: GraphId,
    pub device: DeviceId,
    pub nodes: Vec<GraphNode>,
    /// The lanes of this graph alone, by the priority of the launching stream: launches of one graph never overlap (R49).
    pub lanes: BTreeMap<i32, Vec<LaneId>>,
    /// The last task of its last launch.
    pub last: Option<TaskId>,
}

/// A node, prepared to be pushed at every launch.
pub(super) struct GraphNode {
    pub effect: Effect,
    work: Work,
    call: &'static str,
    after: Vec<u32>,
    /// The index of its lane in the graph.
    lane: usize,
    /// Whether no node depends on it.
    is_last: bool,
}

impl State {
    /// Returns the nodes of a graph with their lanes: a node uses a lane whose last node it depends on, so
    /// that lanes add no order.
    pub(super) fn graph_nodes(&self, device: DeviceId, nodes: Captured) -> Vec<GraphNode> {
        let mut ready: Vec<GraphNode> = Vec::with_capacity(nodes.len());
        let mut ends: Vec<u32> = Vec::new();
        for (number, (command, after)) in (0u32..).zip(nodes) {
            let Command { op, cost, effect } = command;
            for &before in &after {
                ready[before as usize].is_last = false;
            }
            let work = self
                .between_devices(&effect, device)
                .unwrap_or_else(|| work::on_device(&op, cost));
            let lane = ends.iter().position(|end| after.contains(end));
            let lane = lane.unwrap_or_else(|| {
                ends.push(number);
                ends.len() - 1
            });
            ends[lane] = number;
            ready.push(GraphNode {
                effect,
                work,
                call: op.kind.name(),
                after,
                lane,
                is_last: true,
            });
        }
        ready
    }

    /// Replaces the work of a graph; its next launch runs the new work.
    ///
    /// # Errors
    /// If the new graph has another shape, as on a device; the graph then stays unchanged.
    pub(super) fn update_graph(
        &mut self,
        id: GraphId,
        mut graph: Graph,
        nodes: Vec<GraphNode>,
    ) -> Result<()> {
        let difference = self.difference(&graph.nodes, &nodes);
        // The replaced effects hold values of the program: they are dropped without the lock.
        let unused = match difference {
            None => std::mem::replace(&mut graph.nodes, nodes),
            Some(_) => nodes,
        };
        self.dropped
            .extend(unused.into_iter().map(|node| node.effect));
        self.tables.graphs.set(id.0, graph);
        match difference {
            None => Ok(()),
            Some(difference) => Err(Error::Refused {
                call: "graph update",
                code: 910,
                why: format!(
                    "{difference}; describe the same nodes with the same dependencies, or build another \
                     graph"
                ),
            }),
        }
    }

    fn difference(&self, old: &[GraphNode], new: &[GraphNode]) -> Option<String> {
        if old.len() != new.len() {
            let (old, new) = (old.len(), new.len());
            return Some(format!(
                "the graph has {old} nodes, its new description has {new}"
            ));
        }
        let ends = |node: &GraphNode| {
            let copy = node.effect.copy();
            copy.map(|copy| [copy.from, copy.to].map(|at| self.space.device_of(at)))
        };
        let mut pairs = old.iter().zip(new).enumerate();
        pairs.find_map(|(number, (old, new))| {
            if old.call != new.call {
                let (old, new) = (old.call, new.call);
                Some(format!("node {number} was a {old} and is a {new}"))
            } else if old.after != new.after {
                Some(format!("node {number} depends on other nodes than before"))
            } else if ends(old) != ends(new) {
                Some(format!(
                    "node {number} copies between other memories than before"
                ))
            } else {
                None
            }
        })
    }

    /// Adds a launch: a marker in the stream, the nodes after it, and a marker after all of them.
    pub(super) fn push_graph(
        &mut self,
        kind: &Kind,
        step: &Step,
        part: Part,
        delay: Delay,
    ) -> TaskId {
        let serial = part.serial;
        let exit = Part {
            effect: Effect::Nothing,
            ..part
        };
        let entry = self.core.push_step(step, Work::Marker, delay, part);
        let Kind::GraphLaunch { graph: id, .. } = *kind else {
            return entry;
        };
        // The graph is put back below; nothing looks it up in between.
        let Some(mut graph) = self.tables.graphs.take(id.0) else {
            return entry;
        };
        // Nodes have the priority of the stream, unless a graph is instantiated with
        // CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY (cuGraphInstantiateWithFlags), which the runtime does not do.
        let lane = self.core.lane(step.chain);
        let priority = self.core.engine.priority(lane);
        let lanes = graph.lanes.entry(priority).or_default();
        let most = graph.nodes.iter().map(|node| node.lane + 1).max();
        while lanes.len() < most.unwrap_or(0) {
            lanes.push(self.core.engine.add_stream(graph.device.0, priority));
        }
        let mut tasks: Vec<TaskId> = Vec::with_capacity(graph.nodes.len());
        let (mut after, mut ends) = (Vec::new(), vec![entry]);
        for node in &graph.nodes {
            after.clear();
            after.push(entry);
            after.extend(node.after.iter().map(|&before| tasks[before as usize]));
            let does = Step {
                performs: Performs::All,
                ..step.clone()
            };
            let delay = self.core.delay(OpId(serial as u32), serial, &does, true);
            let task = Task::new(lanes[node.lane], node.work);
            let task = task.after(&after).delay(delay).in_graph();
            let node_part = Part {
                call: node.call,
                effect: node.effect.again(),
                ..exit
            };
            let task = self.core.push(task, node_part);
            tasks.push(task);
            if node.is_last {
                ends.push(task);
            }
        }
        let task = Task::new(lane, Work::Marker).after(&ends);
        let exit = self.core.push(task, exit);
        graph.last = Some(exit);
        self.tables.graphs.set(id.0, graph);
        exit
    }
}
