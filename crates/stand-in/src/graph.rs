//! Graphs: built from nodes or captured, instantiated, and launched.

use sidestream::backend::{Copy, Create, Destroy, Fill, Grid, Node, NodeWork, Payload};
use sidestream::cuda::driver::{CuFunction, CuGraph, CuGraphExec, CuNode, CuStream, UpdateResult};
use sidestream::op::{
    DeviceId, GraphId, Kind, Memory as Place, Op, OpId, SiteId, StreamId, ThreadId,
};

use crate::codes::{
    Answer, GRAPH_EXEC_UPDATE_FAILURE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED,
};
use crate::modules;
use crate::state::{Here, State};
use crate::streams;

pub enum Graph {
    /// Built part by part, each of which depends on earlier ones; with the nodes of the machine.
    Built(Vec<Part>, Vec<Node>),
    /// A capture, which is a graph of the machine from the start. A captured graph can be instantiated once.
    Captured(Option<GraphId>),
}

/// A node. It may be several nodes of the machine, as a copy in three dimensions is.
pub struct Part {
    /// Its nodes of the machine; without work, those of the parts that it follows.
    nodes: Vec<u32>,
    shape: Shape,
}

/// The properties that an update of an executable graph may not change.
#[derive(Clone, PartialEq, Eq)]
pub struct Shape {
    what: What,
    after: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Copy,
    Fill,
    Kernel,
}

/// The place of a node.
#[derive(Clone, Copy)]
pub struct NodeAt {
    graph: CuGraph,
    place: usize,
}

/// An executable graph.
pub struct Exec {
    id: GraphId,
    device: DeviceId,
    /// None for a captured graph, whose nodes are not known.
    shapes: Option<Vec<Shape>>,
}

// ------------------------------------------------------------------ nodes

pub fn create(state: &State) -> CuGraph {
    state
        .tables()
        .graphs
        .add(Graph::Built(Vec::new(), Vec::new()))
}

pub fn destroy(state: &State, handle: CuGraph) -> Answer<()> {
    let mut tables = state.tables();
    let graph = tables.graphs.remove(handle)?;
    tables.nodes.retain(|_, node| node.graph != handle);
    if let Graph::Captured(Some(id)) = graph {
        state.destroy(Destroy::Graph(id));
    }
    Ok(())
}

pub fn add_kernel(
    state: &State,
    here: Here,
    (graph, after): (CuGraph, &[CuNode]),
    (function, grid, values): (CuFunction, Grid, &[u64]),
) -> Answer<CuNode> {
    let ready = modules::ready(&state.tables(), here.device()?, function, grid, values);
    let (code, args) = ready?;
    let kind = Kind::kernel(StreamId(0));
    let work = NodeWork::Launch { code, grid, args };
    add(state, graph, after, What::Kernel, vec![(kind, work)])
}

/// Adds a node that copies; each copy comes with the places of its two sides.
pub fn add_copies(
    state: &State,
    (graph, after): (CuGraph, &[CuNode]),
    copies: Vec<(Copy, (Place, Place))>,
) -> Answer<CuNode> {
    let work = |(copy, (from, to))| {
        let stream = StreamId(0);
        (Kind::Copy { stream, from, to }, NodeWork::Copy(copy))
    };
    let works = copies.into_iter().map(work).collect();
    add(state, graph, after, What::Copy, works)
}

pub fn add_fills(
    state: &State,
    (graph, after): (CuGraph, &[CuNode]),
    fills: Vec<Fill>,
) -> Answer<CuNode> {
    let stream = StreamId(0);
    let work = |fill| (Kind::Memset { stream }, NodeWork::Fill(fill));
    let works = fills.into_iter().map(work).collect();
    add(state, graph, after, What::Fill, works)
}

fn add(
    state: &State,
    graph: CuGraph,
    after: &[CuNode],
    what: What,
    works: Vec<(Kind, NodeWork)>,
) -> Answer<CuNode> {
    let mut tables = state.tables();
    let tables = &mut *tables;
    let mut places = Vec::with_capacity(after.len());
    for &handle in after {
        let node = tables.nodes.get(handle)?;
        if node.graph != graph {
            return Err(INVALID_VALUE);
        }
        places.push(node.place);
    }
    places.sort_unstable();
    places.dedup();
    let Graph::Built(parts, nodes) = tables.graphs.get_mut(graph)? else {
        eprintln!(
            "stand-in for the CUDA driver: nodes cannot be added to a graph that was captured"
        );
        return Err(NOT_SUPPORTED);
    };
    // The nodes of a part depend on all of the parts it follows.
    let before = places.iter().flat_map(|&at| &parts[at].nodes);
    let before: Vec<u32> = before.copied().collect();
    let first = nodes.len() as u32;
    for (kind, work) in works {
        nodes.push(Node {
            op: Op {
                id: OpId(nodes.len() as u32),
                thread: ThreadId(0),
                site: SiteId(0),
                kind,
                accesses: Default::default(),
            },
            work,
            after: before.iter().copied().collect(),
        });
    }
    let own: Vec<u32> = (first..nodes.len() as u32).collect();
    let place = parts.len();
    let shape = Shape {
        what,
        after: places,
    };
    let nodes = if own.is_empty() { before } else { own };
    parts.push(Part { nodes, shape });
    Ok(tables.nodes.add(NodeAt { graph, place }))
}

// ------------------------------------------------------------------ executable graphs

pub fn instantiate(state: &State, here: Here, handle: CuGraph) -> Answer<CuGraphExec> {
    let exec = executable(state, here, handle)?;
    Ok(state.tables().execs.add(exec))
}

fn executable(state: &State, here: Here, handle: CuGraph) -> Answer<Exec> {
    let mut tables = state.tables();
    let tables = &mut *tables;
    let device = here.device()?;
    let (id, shapes) = match tables.graphs.get_mut(handle)? {
        Graph::Captured(captured) => {
            let Some(id) = captured.take() else {
                eprintln!(
                    "stand-in for the CUDA driver: a captured graph can be instantiated only once"
                );
                return Err(NOT_SUPPORTED);
            };
            (id, None)
        }
        Graph::Built(parts, nodes) => {
            let shapes = parts.iter().map(|part| part.shape.clone()).collect();
            let id = GraphId(tables.graph_ids.next());
            state.create(Create::Graph { id, device, nodes })?;
            (id, Some(shapes))
        }
    };
    Ok(Exec { id, device, shapes })
}

/// `CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED`.
const TOPOLOGY_CHANGED: i32 = 2;
/// `CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED`.
const TYPE_CHANGED: i32 = 3;
/// `CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED`.
const UPDATE_NOT_SUPPORTED: i32 = 6;

/// Makes later launches run the other graph, if it has the same nodes in the same places. Launches before and after
/// the update are ordered by their streams alone.
pub fn update(
    state: &State,
    here: Here,
    handle: CuGraphExec,
    graph: CuGraph,
) -> (Answer<()>, UpdateResult) {
    let result = |result| UpdateResult {
        result,
        ..UpdateResult::default()
    };
    match changed(state, handle, graph) {
        Err(code) => return (Err(code), result(1)),
        Ok(Some(why)) => return (Err(GRAPH_EXEC_UPDATE_FAILURE), result(why)),
        Ok(None) => {}
    }
    let updated = executable(state, here, graph).and_then(|exec| {
        let mut tables = state.tables();
        let old = std::mem::replace(tables.execs.get_mut(handle)?, exec);
        state.destroy(Destroy::Graph(old.id));
        Ok(())
    });
    (updated, result(i32::from(updated.is_err())))
}

/// Returns the reason why a graph cannot replace an instantiated one in an update, or `None` if it can.
fn changed(state: &State, handle: CuGraphExec, graph: CuGraph) -> Answer<Option<i32>> {
    let tables = state.tables();
    let old = &tables.execs.get(handle)?.shapes;
    let new = tables.graphs.get(graph)?;
    let (Some(old), Graph::Built(new, _)) = (old, new) else {
        return Ok(Some(UPDATE_NOT_SUPPORTED));
    };
    let mut pairs = old.iter().zip(new);
    if old.len() != new.len() || pairs.any(|(old, new)| old.after != new.shape.after) {
        return Ok(Some(TOPOLOGY_CHANGED));
    }
    let mut pairs = old.iter().zip(new);
    Ok(pairs
        .any(|(old, new)| old.what != new.shape.what)
        .then_some(TYPE_CHANGED))
}

pub fn destroy_exec(state: &State, handle: CuGraphExec) -> Answer<()> {
    let exec = state.tables().execs.remove(handle)?;
    state.destroy(Destroy::Graph(exec.id));
    Ok(())
}

pub fn launch(state: &State, here: Here, handle: CuGraphExec, at: CuStream) -> Answer<()> {
    let (graph, device) = {
        let tables = state.tables();
        let exec = tables.execs.get(handle)?;
        (exec.id, exec.device)
    };
    let stream = streams::stream(state, here, at)?;
    if stream.device != device {
        return Err(INVALID_HANDLE);
    }
    let stream = stream.id;
    streams::submit(
        state,
        here.thread,
        Kind::GraphLaunch { stream, graph },
        Payload::Graph,
    )
}
