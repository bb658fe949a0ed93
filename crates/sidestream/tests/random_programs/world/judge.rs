//! Detects failures: wrong values, and unexplained errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sidestream::buffer::{Pinned, Refused};
use sidestream::error::{Error, Result};
use sidestream::stream::Stream;

use super::super::act::{Landing, Place};
use super::super::faults::MADE_UP;
use super::values::take_at;
use super::{Slot, World};

impl World {
    pub fn wrong(&self, what: String) {
        self.wrong.lock().push(what);
    }

    pub(super) fn is_right(&self) -> bool {
        self.wrong.lock().is_empty()
    }

    /// Returns whether a call had an effect but returned no result.
    pub fn was_torn(&self) -> bool {
        self.was_torn.load(Ordering::Relaxed)
    }

    pub fn all_wrong(&self) -> Vec<String> {
        self.wrong.lock().clone()
    }

    pub fn compare(&self, what: &str, found: &[u32], expected: &[u32]) {
        if found != expected {
            self.wrong(format!("{what}: {found:x?} and not {expected:x?}"));
        }
    }

    /// Returns the value of a call, unless it failed in a way that this plan has.
    pub fn tried<T>(&self, result: Result<T>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let plan = &self.plan;
        let is_expected = match &error {
            Error::Refused { code, .. } => *code == MADE_UP,
            Error::Submitted { code, .. } => {
                self.tear();
                *code == MADE_UP
            }
            // A captured stream refuses calls of the safe API, and no memory is freed during a capture.
            Error::Invalid { why, .. } => why.contains("capture") && self.captures(),
            Error::OutOfMemory(_) => plan.memory_bytes.min(plan.pinned_bytes) < 1 << 30,
            Error::DeviceLost(lost) => {
                let mut known = self.lost.lock();
                plan.traps && known.get_or_insert_with(|| lost.clone()) == lost
            }
            _ => false,
        };
        if !is_expected {
            self.wrong(format!("an error that nothing explains: {error}"));
        }
        None
    }

    /// Like [`World::tried`], for a call that submits work: a lost device accepts none.
    pub(super) fn issued<T>(&self, result: Result<T>) -> Option<T> {
        if self.plan.threads == 1 && result.is_ok() && self.lost.lock().is_some() {
            self.wrong("a lost device took a call".into());
        }
        self.tried(result)
    }

    /// Like [`World::issued`], for a launch, whose buffers must be on the device of the stream.
    pub(super) fn launched<T>(
        &self,
        result: Result<T>,
        stream: &Stream,
        slots: &[&Slot],
    ) -> Option<T> {
        let device = stream.device().id();
        match result {
            Err(Error::Invalid { .. }) if slots.iter().any(|slot| slot.device != device) => None,
            result => self.issued(result),
        }
    }

    /// Like [`World::issued`], for a call that takes pinned memory: an error gives it back, unless the device is
    /// lost.
    pub(super) fn accepted<T>(&self, result: Result<T, Refused<Pinned<u32>>>) -> Option<T> {
        match result {
            Ok(value) => self.issued(Ok(value)),
            Err(Refused { error, value }) => {
                let is_taken = matches!(error, Error::DeviceLost(_) | Error::Submitted { .. });
                if value.is_none() != is_taken {
                    self.wrong(format!(
                        "{error}, and the value is there: {}",
                        value.is_some()
                    ));
                }
                self.idle.lock().extend(value);
                self.tried(Err(error))
            }
        }
    }

    pub(super) fn rows_accepted<T>(
        &self,
        result: Result<T, Refused<Pinned<u32>>>,
        fits: bool,
    ) -> Option<T> {
        match result {
            Err(Refused {
                error: Error::Invalid { .. },
                value,
            }) if !fits => {
                self.idle.lock().extend(value);
                None
            }
            result => self.accepted(result),
        }
    }

    pub(super) fn rows_issued(&self, result: Result<()>, fits: bool) -> Option<()> {
        match result {
            Err(Error::Invalid { .. }) if !fits => None,
            result => self.issued(result),
        }
    }

    /// Waits for everything and compares it. Nothing fails any more.
    pub fn finish(&self) {
        self.stop_listening();
        self.idle.lock().clear();
        while let Some(flying) = take_at(&self.flying, 0) {
            self.land(flying, Landing::Sync);
        }
        self.finish_graphs();
        self.idle.lock().clear();
        for at in 0..self.slots.len() {
            self.out(Place {
                slot: at,
                stream: at,
                from: 0,
                to: 1000,
            });
        }
        for device in &self.all {
            self.tried(device.synchronize());
        }
    }

    /// Returns the number of accepted host functions, and of those that have run.
    pub fn functions(&self) -> (u64, Arc<AtomicU64>) {
        let accepted = self.accepted.load(Ordering::Relaxed);
        (accepted, Arc::clone(&self.returned))
    }

    pub fn waits_inserted(&self) -> u64 {
        self.device(0).waits_inserted()
    }
}

/// Returns an error for a failure that was handled already.
pub(super) fn made_up() -> Error {
    Error::Refused {
        call: "test",
        code: MADE_UP,
        why: String::new(),
    }
}
