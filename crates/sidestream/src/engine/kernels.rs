//! The multiprocessors of one device: running kernels share the thread slots, the more urgent first, then the older.

use super::cost::Shape;
use super::profile::Profile;
use super::work::KernelCost;
use super::{NONE, later};

#[derive(Clone, Copy, Debug)]
struct Running {
    task: u64,
    priority: i32,
    shape: Shape,
    /// Part of the body that is still to do, from 1 to 0.
    left: f64,
    slots: f64,
    /// Part of the body done per ns.
    rate: f64,
    started: bool,
}

/// Kernels whose bodies run or wait for slots; a kernel in its tail is gone from here.
#[derive(Clone, Debug)]
pub(super) struct Kernels {
    running: Vec<Running>,
    most: usize,
    updated_ns: u64,
    next: (u64, u64),
}

impl Kernels {
    pub fn new(profile: &Profile) -> Self {
        Self {
            running: Vec::new(),
            most: profile.max_kernels as usize,
            updated_ns: 0,
            next: (u64::MAX, NONE),
        }
    }

    /// The next end of a body, as time and task.
    pub fn next_end(&self) -> (u64, u64) {
        self.next
    }

    /// Adds a kernel; calls `started` for every kernel that got its first slots by it.
    pub fn arrive(
        &mut self,
        now_ns: u64,
        task: u64,
        priority: i32,
        shape: &Shape,
        started: impl FnMut(u64),
    ) {
        self.advance(now_ns);
        let at = self
            .running
            .iter()
            .position(|r| r.priority > priority)
            .unwrap_or(self.running.len());
        self.running.insert(
            at,
            Running {
                task,
                priority,
                shape: *shape,
                left: 1.0,
                slots: 0.0,
                rate: 0.0,
                started: false,
            },
        );
        self.share(started);
    }

    /// Ends a body; calls `started` for every kernel that got its first slots by it. Returns the tail in ns.
    pub fn finish(&mut self, now_ns: u64, task: u64, started: impl FnMut(u64)) -> f64 {
        self.advance(now_ns);
        let mut tail_ns = 0.0;
        if let Some(at) = self.running.iter().position(|r| r.task == task) {
            tail_ns = self.running.remove(at).shape.tail_ns;
        }
        self.share(started);
        tail_ns
    }

    fn advance(&mut self, now_ns: u64) {
        let passed = (now_ns - self.updated_ns) as f64;
        self.updated_ns = now_ns;
        for r in &mut self.running {
            r.left = (r.left - r.rate * passed).max(0.0);
        }
    }

    fn share(&mut self, mut started: impl FnMut(u64)) {
        let (mut free, mut issue, mut bandwidth) = (1.0, 0.0, 0.0);
        self.next = (u64::MAX, NONE);
        for (n, r) in self.running.iter_mut().enumerate() {
            r.slots = r.shape.slots.min(free);
            if r.slots < KernelCost::LEAST_SHARE || n >= self.most {
                r.slots = 0.0;
                r.rate = 0.0;
                continue;
            }
            free -= r.slots;
            r.rate = r.shape.rate(r.slots, issue, bandwidth);
            // Rounded up: at its end nothing is left.
            let end_ns = later(self.updated_ns, (r.left / r.rate).ceil() as u64);
            self.next = self.next.min((end_ns, r.task));
            issue += r.slots * r.shape.issue;
            bandwidth += r.slots * r.shape.bandwidth;
            if !r.started {
                r.started = true;
                started(r.task);
            }
        }
    }
}
