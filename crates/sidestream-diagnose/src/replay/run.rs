//! A program on the engine.

use sidestream::engine::{Call, Engine, Engines, KernelCost, Profile, Task, TaskId, Work};

use super::program::{Job, Node, Program};
use crate::model::Direction;

/// The times from the last work of each step to that of the next.
pub fn periods_ns(program: &Program, profile: &Profile) -> Vec<u64> {
    let mut engine = Engine::new(vec![profile.clone()]);
    let host: Vec<_> = (0..program.lanes).map(|_| engine.add_thread()).collect();
    let streams: Vec<_> = (0..program.streams)
        .map(|_| engine.add_stream(0, 0))
        .collect();
    let loaders: Vec<_> = (0..program.loaders).map(|_| engine.add_thread()).collect();
    let mut tasks: Vec<Option<TaskId>> = vec![None; program.nodes.len()];
    let mut batches = 0;
    for item in &program.items {
        let lane = host[item.lane];
        let mut loaded = Vec::new();
        let mut own_ns = item.own_ns;
        if !loaders.is_empty() && item.loading_ns > 0 {
            // The batch is loaded by a worker, one after the other each.
            own_ns -= item.loading_ns;
            let load = Work::Call(Call::HostNs(item.loading_ns));
            let loader = loaders[batches % loaders.len()];
            loaded.push(engine.push(Task::new(loader, load)));
            batches += 1;
        }
        let call = Work::Call(Call::HostNs(own_ns.saturating_add(item.call_ns)));
        let call = engine.push(Task::new(lane, call).after(&loaded));
        for at in &item.submits {
            let node = &program.nodes[*at];
            let mut after = vec![call];
            after.extend(node.after.iter().filter_map(|before| tasks[*before]));
            let mut task = Task::new(streams[node.stream], work(node)).after(&after);
            if node.in_graph {
                task = task.in_graph();
            }
            tasks[*at] = Some(engine.push(task));
        }
        if !item.waits.is_empty() {
            let waits: Vec<TaskId> = item.waits.iter().filter_map(|at| tasks[*at]).collect();
            let back = Work::Call(Call::HostNs(item.return_ns));
            engine.push(Task::new(lane, back).after(&waits));
        }
    }
    // Nothing is held, so that everything ends.
    if engine.finish().is_err() {
        return Vec::new();
    }
    let mut ends = vec![0; program.steps];
    for (node, task) in program.nodes.iter().zip(&tasks) {
        if let Some(span) = task.and_then(|task| engine.scheduled(task)) {
            ends[node.step] = span.end_ns.max(ends[node.step]);
        }
    }
    ends.retain(|end| *end > 0);
    ends.windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]))
        .collect()
}

fn work(node: &Node) -> Work {
    let ns = node.duration_ns;
    let timed = |engine| Work::Timed { engine, ns };
    match node.job {
        Job::Kernel { share } => Work::Kernel(KernelCost::Duration { ns, share }),
        Job::HostCopy {
            direction: Direction::Upload,
            ..
        } => timed(Engines::Upload),
        Job::HostCopy { .. } => timed(Engines::Download),
        Job::Other => timed(Engines::Inner),
    }
}
