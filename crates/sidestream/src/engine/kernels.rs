//! The multiprocessors of one device: running kernels share the thread slots, the more urgent first, then the older.
//!
//! A block that runs is never stopped. So a kernel holds its slots until its blocks end, all of one wave together, and
//! only then a more urgent one that came meanwhile is given them: priority buys the rest of a block.

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
    /// Part of their time that its blocks have run, from 0 to 1; then the next ones begin.
    block: f64,
    /// Its blocks end now, and it has begun no others.
    is_between: bool,
    started: bool,
}

impl Running {
    /// Part of a block done per ns; 0 if its blocks are too short to hold anything up.
    fn pace(&self) -> f64 {
        match self.shape.wave > 0.0 && self.slots > 0.0 {
            true => self.rate * self.shape.slots / self.slots / self.shape.wave,
            false => 0.0,
        }
    }

    /// The slots on which blocks run that have begun and are not over.
    fn held(&self) -> f64 {
        match self.shape.wave > 0.0 && !self.is_between {
            true => self.slots,
            false => 0.0,
        }
    }
}

/// What ends next on the multiprocessors.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Ended {
    /// A body; the kernel runs for so many ns more without using its slots.
    Body { tail_ns: f64 },
    /// Some blocks of a kernel that goes on.
    Blocks,
}

/// Kernels whose bodies run or wait for slots; a kernel in its tail is gone from here.
#[derive(Clone, Debug)]
pub(super) struct Kernels {
    running: Vec<Running>,
    most: usize,
    updated_ns: u64,
    next: (u64, u64),
    /// Whether that is the end of a body.
    next_is_body: bool,
}

impl Kernels {
    pub(super) fn new(profile: &Profile) -> Self {
        Self {
            running: Vec::new(),
            most: profile.max_kernels as usize,
            updated_ns: 0,
            next: (u64::MAX, NONE),
            next_is_body: true,
        }
    }

    /// The next end of a body, or of blocks for which a more urgent kernel waits, as time and task.
    pub(super) fn next_end(&self) -> (u64, u64) {
        self.next
    }

    /// Adds a kernel; calls `started` for every kernel that got its first slots by it.
    pub(super) fn arrive(
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
                block: 0.0,
                is_between: false,
                started: false,
            },
        );
        self.share(started);
    }

    /// Ends what [`Kernels::next_end`] said; calls `started` for every kernel that got its first slots by it.
    pub(super) fn finish(&mut self, now_ns: u64, task: u64, started: impl FnMut(u64)) -> Ended {
        self.advance(now_ns);
        let mut ended = Ended::Blocks;
        if let Some(at) = self.running.iter().position(|r| r.task == task) {
            if self.next_is_body {
                let tail_ns = self.running.remove(at).shape.tail_ns;
                ended = Ended::Body { tail_ns };
            } else {
                self.running[at].block = 0.0;
                self.running[at].is_between = true;
            }
        }
        self.share(started);
        ended
    }

    fn advance(&mut self, now_ns: u64) {
        let passed = (now_ns - self.updated_ns) as f64;
        self.updated_ns = now_ns;
        for r in &mut self.running {
            let blocks = r.block + r.pace() * passed;
            r.block = blocks - blocks.floor();
            r.left = (r.left - r.rate * passed).max(0.0);
        }
    }

    fn share(&mut self, mut started: impl FnMut(u64)) {
        let (mut free, mut issue, mut bandwidth) = (1.0, 0.0, 0.0);
        // What the kernels behind the one that is looked at hold: with one priority alone nobody before them wants it.
        let mut held: f64 = self.running.iter().map(Running::held).sum();
        let mut waits = false;
        self.next = (u64::MAX, NONE);
        self.next_is_body = true;
        for (n, r) in self.running.iter_mut().enumerate() {
            let own = r.held();
            held -= own;
            r.is_between = false;
            let offered = match held > KernelCost::LEAST_SHARE {
                true => (free - held).max(own),
                false => free,
            };
            r.slots = r.shape.slots.min(offered);
            let (is_short, waited) = (r.slots < r.shape.slots, waits);
            waits |= is_short && held > KernelCost::LEAST_SHARE;
            if r.slots < KernelCost::LEAST_SHARE || n >= self.most {
                r.slots = 0.0;
                r.rate = 0.0;
                r.block = 0.0;
                continue;
            }
            free -= r.slots;
            r.rate = r.shape.rate(r.slots, issue, bandwidth);
            // Rounded up: at its end nothing is left.
            let end_ns = later(self.updated_ns, (r.left / r.rate).ceil() as u64);
            if (end_ns, r.task) < self.next {
                self.next = (end_ns, r.task);
                self.next_is_body = true;
            }
            let pace = r.pace();
            if waited && pace > 0.0 {
                let blocks_ns = ((1.0 - r.block) / pace).ceil() as u64;
                let blocks_ns = later(self.updated_ns, blocks_ns.max(1));
                if (blocks_ns, r.task) < self.next {
                    self.next = (blocks_ns, r.task);
                    self.next_is_body = false;
                }
            }
            issue += r.slots * r.shape.issue;
            bandwidth += r.slots * r.shape.bandwidth;
            if !r.started {
                r.started = true;
                started(r.task);
            }
        }
    }
}
