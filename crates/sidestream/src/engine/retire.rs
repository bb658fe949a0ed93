//! The tasks of an engine, and how it forgets those that finished long ago.
//!
//! An engine that analyses a program keeps all its tasks. One that runs for hours cannot: its caller makes it
//! forget old tasks with [`Engine::retire`]. Tasks are forgotten in the order of their numbers, so a number
//! alone tells whether its task is still there.

use std::ops::{Index, IndexMut};

use super::*;

/// The tasks whose number is at least that of the first remembered one.
#[derive(Default)]
pub(super) struct Slots {
    /// The number of the first task kept.
    base: u64,
    /// The number of tasks at the front that may be removed: they are removed together, to amortize the move.
    leaving: usize,
    slots: Vec<Slot>,
}

impl Slots {
    #[inline]
    pub(super) fn push(&mut self, slot: Slot) {
        self.slots.push(slot);
    }

    /// Returns the number of the last task plus one.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    /// Whether the task was forgotten.
    #[inline]
    pub(super) fn is_retired(&self, task: u64) -> bool {
        task < self.base
    }

    pub(super) fn get(&self, task: u64) -> Option<&Slot> {
        self.slots.get(task.checked_sub(self.base)? as usize)
    }

    pub(super) fn numbered(&self) -> impl Iterator<Item = (u64, &Slot)> {
        (self.base..).zip(&self.slots)
    }
}

impl Index<u64> for Slots {
    type Output = Slot;

    #[inline]
    fn index(&self, task: u64) -> &Slot {
        &self.slots[task.wrapping_sub(self.base) as usize]
    }
}

impl IndexMut<u64> for Slots {
    #[inline]
    fn index_mut(&mut self, task: u64) -> &mut Slot {
        &mut self.slots[task.wrapping_sub(self.base) as usize]
    }
}

impl Slot {
    /// Returns the index of a copy's figures. Only copies request a copy engine.
    pub(super) fn flow(&self) -> usize {
        match self.job {
            Job::Copy { flow } => flow as usize,
            _ => unreachable!("only copies request a copy engine"),
        }
    }
}

/// The minimum number of tasks that are removed at once.
const LEAST: usize = 1024;

impl Engine {
    /// Forgets the tasks that finished so long ago that no later task can depend on their times: only the fact that
    /// they have finished remains. Takes constant amortized time per task.
    pub fn retire(&mut self) {
        // A task that ended later than this may still delay the next task of its lane by a hop.
        let (now_ns, hops_ns) = (self.now_ns, self.longest_hop_ns);
        let slots = &mut self.slots;
        while let Some(slot) = slots.slots.get(slots.leaving)
            && slot.state == State::Done
            && later(slot.end_ns, hops_ns) < now_ns
        {
            slots.leaving += 1;
        }
        if slots.leaving < LEAST || slots.leaving * 2 < slots.slots.len() {
            return;
        }
        slots.slots.drain(..slots.leaving);
        slots.base += slots.leaving as u64;
        slots.leaving = 0;
        if self.flows.len() + self.shapes.len() > 2 * (self.slots.slots.len() + LEAST) {
            self.forget_costs();
        }
    }

    /// Returns the number of tasks remembered.
    pub fn remembered(&self) -> usize {
        self.slots.slots.len()
    }

    /// Releases the delayed tasks that were pushed before this one, as if the engine were idle. A task
    /// delayed forever would keep all later ones from being forgotten.
    pub(crate) fn release_before(&mut self, task: TaskId) {
        let is_old = |&(_, Reverse(delayed)): &(u64, Reverse<u64>)| delayed < task.0;
        let mut old: Vec<u64> = self
            .idle
            .iter()
            .filter(|d| is_old(d))
            .map(|d| d.1.0)
            .collect();
        if old.is_empty() {
            return;
        }
        self.idle.retain(|delayed| !is_old(delayed));
        old.sort_unstable();
        for task in old {
            self.slots[task].delay = Delay::None;
            self.due.push_back(task);
        }
    }

    /// Keeps only the costs of remembered tasks.
    fn forget_costs(&mut self) {
        let (flows, shapes) = (
            std::mem::take(&mut self.flows),
            std::mem::take(&mut self.shapes),
        );
        for slot in &mut self.slots.slots {
            match &mut slot.job {
                Job::Copy { flow } => {
                    self.flows.push(flows[*flow as usize]);
                    *flow = self.flows.len() as u32 - 1;
                }
                Job::Kernel { shape } => {
                    self.shapes.push(shapes[*shape as usize]);
                    *shape = self.shapes.len() as u32 - 1;
                }
                Job::Host { .. } | Job::Marker => {}
            }
        }
        for device in &mut self.devices {
            device.recent = [None; 10];
        }
    }
}

/// Returns an upper bound on the hop between two tasks on any of these devices, ns.
pub(super) fn longest_hop_ns(devices: &[Profile]) -> u64 {
    let hops = devices.iter().map(|p| {
        p.submit_kernel_ns
            + p.submit_ns
            + p.engine_hop_ns
            + p.kernel_gap_ns
            + p.graph_gap_ns
            + p.event_hop_ns
            + p.device_hop_ns
            + p.pending_wait_ns
            + p.host_return_ns
            + p.callback_hop_ns
    });
    hops.map(whole).max().unwrap_or(0)
}
