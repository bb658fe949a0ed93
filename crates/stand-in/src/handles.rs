//! Handles: numbers that identify objects.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::codes::{Answer, INVALID_HANDLE};

/// No handle is used twice, even for objects of different kinds, so a wrong or destroyed handle is always detected.
static NEXT: AtomicU64 = AtomicU64::new(0x1000);

/// Returns a handle that was never returned before.
pub fn fresh() -> u64 {
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}

/// Objects of one kind by handle.
#[derive(Debug)]
pub struct Handles<T>(HashMap<u64, T>);

impl<T> Handles<T> {
    pub fn add(&mut self, thing: T) -> u64 {
        let handle = fresh();
        self.0.insert(handle, thing);
        handle
    }

    pub fn get(&self, handle: u64) -> Answer<&T> {
        self.0.get(&handle).ok_or(INVALID_HANDLE)
    }

    pub fn get_mut(&mut self, handle: u64) -> Answer<&mut T> {
        self.0.get_mut(&handle).ok_or(INVALID_HANDLE)
    }

    pub fn remove(&mut self, handle: u64) -> Answer<T> {
        self.0.remove(&handle).ok_or(INVALID_HANDLE)
    }

    pub fn retain(&mut self, keep: impl FnMut(&u64, &mut T) -> bool) {
        self.0.retain(keep);
    }

    pub fn find(&self, mut is_it: impl FnMut(&T) -> bool) -> Option<u64> {
        let found = self.0.iter().find(|(_, thing)| is_it(thing));
        found.map(|(&handle, _)| handle)
    }
}

impl<T> Default for Handles<T> {
    fn default() -> Handles<T> {
        Handles(HashMap::new())
    }
}
