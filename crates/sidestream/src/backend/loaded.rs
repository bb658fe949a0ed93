//! A back end's handle of a loaded kernel, stored with the kernel so that a launch finds it without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A kernel's number, and the handles of the first machine that used it. Other machines look up their own handles by
/// the number.
pub struct Loaded {
    id: u64,
    /// Number of the first machine that used the kernel; zero until then.
    owner: AtomicU64,
    name: AtomicU32,
    by_device: [AtomicU64; DEVICES],
}

/// Devices with a higher index are looked up by the kernel's number.
const DEVICES: usize = 8;

impl Loaded {
    /// Returns the kernel's number, which is unique in the process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the handle that this machine stored for a device.
    #[inline]
    pub(crate) fn get(&self, machine: u64, device: usize) -> Option<(u64, u32)> {
        if self.owner.load(Ordering::Relaxed) != machine {
            return None;
        }
        let handle = self.by_device.get(device)?.load(Ordering::Acquire);
        (handle != 0).then(|| (handle, self.name.load(Ordering::Relaxed)))
    }

    /// Stores a handle, unless another machine used the kernel first.
    pub(crate) fn note(&self, machine: u64, device: usize, handle: u64, name: u32) {
        let before = self
            .owner
            .compare_exchange(0, machine, Ordering::Relaxed, Ordering::Relaxed);
        let is_owner = before.unwrap_or_else(|owner| owner) == machine || before.is_ok();
        if let (true, Some(place)) = (is_owner, self.by_device.get(device)) {
            self.name.store(name, Ordering::Relaxed);
            place.store(handle, Ordering::Release);
        }
    }
}

impl Default for Loaded {
    fn default() -> Loaded {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Loaded {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            owner: AtomicU64::new(0),
            name: AtomicU32::new(0),
            by_device: [const { AtomicU64::new(0) }; DEVICES],
        }
    }
}
