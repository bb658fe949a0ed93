//! Queries and waits: the only calls in which virtual time advances.

use std::time::Duration;

use parking_lot::MutexGuard;

use super::Machine;
use super::state::{State, Targets, Turn};
use crate::engine::TaskId;
use crate::error::{Error, Result};
use crate::op::Op;

/// After this many negative answers with no event in between, an event is forced.
const PATIENCE: u32 = 16;

/// The largest time other than "never".
const ANY_TIME: u64 = u64::MAX - 2;

/// The reason why [`Machine::reach`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reached {
    /// All the tasks have finished.
    All,
    /// No further event occurs up to the given time.
    Time,
    /// A host function is running, and the caller may not wait for it.
    Function,
}

/// The real time for which a call waits for a host function to return, regardless of the call's virtual time limit:
/// only functions that take longer can make runs with one seed differ.
const FUNCTION: Duration = Duration::from_secs(1);

impl Machine {
    pub(super) fn ask(
        &self,
        state: &mut MutexGuard<'_, State>,
        op: &Op,
        patience: Option<Duration>,
    ) -> Result<bool> {
        let mut targets = state.targets(op)?;
        let is_done = |state: &State, targets: &mut Targets| {
            targets.retain(|task| !state.core.is_done(*task));
            targets.is_empty()
        };
        let all = targets.clone();
        if state.held.is_some() && patience.is_none() {
            // A host function may not wait, so no event can change the answer.
            if !is_done(state, &mut targets) {
                return Ok(false);
            }
        }
        let call = state.push_ask(op)?;
        self.reach_time_of(state, call, patience);
        let mut done = is_done(state, &mut targets);
        if !done {
            state.noes += 1;
            if state.noes >= PATIENCE {
                self.force(state, patience);
                done = is_done(state, &mut targets);
            }
        }
        state.refuse_lost(state.device_of(&op.kind, op.thread)?)?;
        if done {
            state.noes = 0;
            state.push_answer(op, &all)?;
        }
        if patience.is_some() {
            state.note_question(op, call, call);
        }
        state.settle();
        Ok(done)
    }

    pub(super) fn wait_for(
        &self,
        state: &mut MutexGuard<'_, State>,
        op: &Op,
        for_at_most: Duration,
    ) -> Result<bool> {
        let is_current = self.callback.is_current();
        let patience = (!is_current).then_some(for_at_most.max(FUNCTION));
        let device = state.device_of(&op.kind, op.thread)?;
        let targets = state.targets(op)?;
        let call = state.push_ask(op)?;
        let until_ns = match u64::try_from(for_at_most.as_nanos()) {
            Ok(most_ns) => {
                self.reach_time_of(state, call, patience);
                let start_ns = state.core.engine.scheduled(call).map(|span| span.end_ns);
                let start_ns = start_ns.unwrap_or(state.core.engine.now_ns());
                Some(start_ns.saturating_add(most_ns)).filter(|&ns| ns < ANY_TIME)
            }
            Err(_) => None,
        };
        let mut reached = self.reach(state, targets.clone(), until_ns, patience);
        if reached == Reached::Time && until_ns.is_some() {
            state.noes += 1;
            if state.noes >= PATIENCE {
                self.force(state, patience);
                reached = self.reach(state, targets.clone(), until_ns, patience);
            }
        }
        state.refuse_lost(device)?;
        match (reached, until_ns) {
            (Reached::All, _) => {
                state.noes = 0;
                let answer = state.push_answer(op, &targets)?;
                self.reach_time_of(state, answer, patience);
                state.note_question(op, call, answer);
                Ok(true)
            }
            (Reached::Time, Some(until_ns)) => {
                let pause_ns = until_ns.saturating_sub(state.core.engine.now_ns());
                let pause = state.push_pause(op, pause_ns)?;
                self.reach_time_of(state, pause, patience);
                state.note_question(op, call, pause);
                Ok(false)
            }
            (Reached::Time, None) => Err(Error::Invalid {
                call: "synchronize",
                why: "the work that it waits for can never complete".into(),
            }),
            (Reached::Function, _) if is_current => Err(waits_for_itself("synchronize")),
            (Reached::Function, _) => Ok(false),
        }
    }

    /// Processes the events before the end of a call. A task that is delayed until the engine is idle is released only if the
    /// call is ordered after it.
    fn reach_time_of(
        &self,
        state: &mut MutexGuard<'_, State>,
        call: TaskId,
        patience: Option<Duration>,
    ) {
        let call = Targets::from_slice(&[call]);
        if self.reach(state, call.clone(), Some(ANY_TIME), patience) == Reached::Time {
            self.reach(state, call, None, patience);
        }
    }

    /// Forces the next event on a device, regardless of its time.
    fn force(&self, state: &mut MutexGuard<'_, State>, patience: Option<Duration>) {
        while state.noes > 0 {
            match state.turn(None, &self.callback) {
                Turn::Happened => {}
                Turn::Runs(number) if self.wait_for_function(state, number, patience) => {}
                Turn::Runs(_) | Turn::Nothing => return,
            }
        }
    }

    /// Processes events until all these tasks have finished, but none later than the given time; without a
    /// time, also releases tasks that are delayed until the engine is idle.
    pub(super) fn reach(
        &self,
        state: &mut MutexGuard<'_, State>,
        mut targets: Targets,
        until_ns: Option<u64>,
        patience: Option<Duration>,
    ) -> Reached {
        loop {
            while targets.last().is_some_and(|&task| state.core.is_done(task)) {
                targets.pop();
            }
            if targets.is_empty() {
                return Reached::All;
            }
            match state.turn(until_ns, &self.callback) {
                Turn::Happened => {}
                Turn::Runs(number) if self.wait_for_function(state, number, patience) => {}
                Turn::Runs(_) => return Reached::Function,
                Turn::Nothing => return Reached::Time,
            }
        }
    }

    /// Waits for a host function, without the lock and for at most `patience`; returns whether the function has
    /// returned. A function takes real time, regardless of the virtual time.
    fn wait_for_function(
        &self,
        state: &mut MutexGuard<'_, State>,
        number: u64,
        patience: Option<Duration>,
    ) -> bool {
        let Some(patience) = patience else {
            return false;
        };
        let returned = MutexGuard::unlocked(state, || self.callback.wait(number, patience));
        if returned {
            state.acknowledged = state.acknowledged.max(number);
        }
        returned
    }
}

/// CUDA's `cudaErrorNotPermitted`.
pub(super) fn waits_for_itself(call: &'static str) -> Error {
    Error::Refused {
        call,
        code: 800,
        why: "a function on the host may not wait for the device, because the device waits for it; wait on \
              another thread"
            .into(),
    }
}
