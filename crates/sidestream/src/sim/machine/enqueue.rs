//! Turns calls into tasks of the engine.

use super::command::{Command, Effect};
use super::state::{Part, State, Times};
use crate::backend::Done;
use crate::engine::{KernelCost, TaskId, Work};
use crate::op::{DeviceId, Kind, Op, OpId};
use crate::order::{Chain, Performs, Step};
use crate::sim::core::Core;
use crate::sim::work;

impl State {
    /// Adds one task for the call, and one for every step; a graph has one for every node.
    pub(super) fn enqueue(
        &mut self,
        command: &mut Command,
        caller_kind: &Kind,
        device: DeviceId,
        steps: &[Step],
    ) -> Option<TaskId> {
        let Command { op, cost, effect } = command;
        let cost = *cost;
        let (serial, first_task) = (self.calls, self.core.engine.tasks());
        self.calls += 1;
        self.push_timed(op, serial, device, Core::<Part>::call_work(op, steps));
        let works = |step: &Step| matches!(step.chain, Chain::Stream(_));
        let has_work = steps.iter().any(works);
        let mut blocks_caller = None;
        for step in steps {
            let number = OpId(serial as u32);
            let delay = self.core.delay(number, serial, step, has_work);
            let mut part = Part::new(op, serial, device, works(step));
            let task = match (works(step), op.kind) {
                (true, Kind::GraphLaunch { .. }) => self.push_graph(caller_kind, step, part, delay),
                (true, _) => {
                    part.effect = self.effect_on_device(effect, step);
                    let work = self.work_on_device(op, cost, step, &part.effect, device);
                    self.core.push_step(step, work, delay, part)
                }
                (false, _) => {
                    part.effect = self.effect_on_host(effect, step);
                    let task = self
                        .core
                        .push_step(step, work::point(step, op), delay, part);
                    let weakest = self.core.schedule.weakest();
                    let waits = step.edges.iter().any(|edge| edge.force <= weakest);
                    if waits || step.performs != Performs::Nothing {
                        blocks_caller = Some(task);
                    }
                    task
                }
            };
            self.core.frontier.advance(step, task);
        }
        if let Kind::Record { event, .. } = *caller_kind {
            let recorded = TaskId(self.core.engine.tasks() as u64 - 1);
            self.tables.recorded(event, recorded);
        }
        if self.keeps_times {
            let done = Done {
                op: op.id,
                call_ns: None,
                work_ns: None,
            };
            let left = (self.core.engine.tasks() - first_task) as u64;
            self.times.insert(serial, Times { left, done });
        }
        // Threads that pass flags wait for each other outside the machine.
        blocks_caller.filter(|_| {
            matches!(
                op.kind,
                Kind::Copy { .. }
                    | Kind::CopyBatch { .. }
                    | Kind::CopyBlocking { .. }
                    | Kind::MemsetBlocking { .. }
            )
        })
    }

    /// Returns the effect of a step in a stream: the effect of the call, for the first such step.
    fn effect_on_device(&mut self, effect: &mut Effect, step: &Step) -> Effect {
        match (&mut *effect, step.performs) {
            (Effect::Record(_), _) | (_, Performs::All | Performs::Reads) => std::mem::take(effect),
            (Effect::Copy(moved), Performs::Writes) => {
                moved.is_staged = true;
                std::mem::take(effect)
            }
            _ => Effect::Nothing,
        }
    }

    /// Returns the effect of a step on the host. A step that stages a copy (R19) reads the bytes, and the next task
    /// writes them.
    fn effect_on_host(&mut self, effect: &mut Effect, step: &Step) -> Effect {
        match (effect, step.performs) {
            (Effect::Copy(moved), Performs::Reads) => Effect::Stage {
                copy: moved.copy,
                host: moved.from,
                into: TaskId(self.core.engine.tasks() as u64 + 1),
            },
            _ => Effect::Nothing,
        }
    }

    fn work_on_device(
        &self,
        op: &Op,
        cost: Option<KernelCost>,
        step: &Step,
        effect: &Effect,
        device: DeviceId,
    ) -> Work {
        if step.performs == Performs::Nothing {
            return Work::Marker;
        }
        if let (Effect::Gather(_), Some(read)) = (effect, op.accesses.first()) {
            return work::gather(read.len_bytes(), &self.profile);
        }
        self.between_devices(effect, device)
            .unwrap_or_else(|| work::on_device(op, cost))
    }

    /// Returns the work of a copy between two devices.
    pub(super) fn between_devices(&self, effect: &Effect, device: DeviceId) -> Option<Work> {
        let copy = effect.copy()?;
        let (from, to) = (
            self.space.device_of(copy.from)?,
            self.space.device_of(copy.to)?,
        );
        let peer = if from == device { to } else { from };
        (from != to).then_some(Work::PeerCopy {
            peer: peer.0,
            bytes: copy.row_bytes * copy.rows,
        })
    }

    /// Adds a call that only takes time of its thread.
    pub(super) fn push_call(&mut self, op: &Op, device: DeviceId, work: Work) -> TaskId {
        let serial = self.calls;
        self.calls += 1;
        self.push_timed(op, serial, device, work)
    }

    pub(super) fn push_timed(
        &mut self,
        op: &Op,
        serial: u64,
        device: DeviceId,
        work: Work,
    ) -> TaskId {
        let part = Part::new(op, serial, device, false);
        self.core.push_call(op, work, part)
    }
}
