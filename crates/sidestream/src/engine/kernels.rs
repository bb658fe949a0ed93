//! The multiprocessors of one device: running kernels share the thread slots, the more urgent first, then the older.
//!
//! A running block is never preempted. So a kernel keeps its slots until its blocks end, all of one wave together; only
//! then does a more urgent kernel that arrived meanwhile get them.

use super::cost::Shape;
use super::profile::Profile;
use super::work::KernelCost;
use super::{NONE, later};

#[derive(Clone, Copy, Debug)]
struct Running {
    task: u64,
    priority: i32,
    shape: Shape,
    /// Remaining part of the body, from 1 to 0.
    left: f64,
    slots: f64,
    /// Part of the body done per ns.
    rate: f64,
    /// Progress of its current wave of blocks, from 0 to 1; then the next wave begins.
    block: f64,
    /// Whether a wave of blocks has just ended and the next one has not begun.
    is_between: bool,
    started: bool,
}

impl Running {
    /// Part of a block done per ns; 0 if its blocks are too short to delay another kernel.
    fn pace(&self) -> f64 {
        if self.shape.wave > 0.0 && self.slots > 0.0 {
            self.rate * self.shape.slots / self.slots / self.shape.wave
        } else {
            0.0
        }
    }

    /// Returns the slots that running blocks occupy.
    fn held(&self) -> f64 {
        if self.shape.wave > 0.0 && !self.is_between {
            self.slots
        } else {
            0.0
        }
    }
}

/// The next thing to end on the multiprocessors.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Ended {
    /// The body of a kernel, which then runs for `tail_ns` without using its slots.
    Body { tail_ns: f64 },
    /// A wave of blocks of a kernel that has more.
    Blocks,
}

/// The kernels whose bodies run or wait for slots; a kernel in its tail is not among them.
#[derive(Clone, Debug)]
pub(super) struct Kernels {
    running: Vec<Running>,
    most: usize,
    updated_ns: u64,
    next: (u64, u64),
    /// Whether `next` is the end of a body, rather than of blocks.
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

    /// Returns the next end of a body, or of blocks for which a more urgent kernel waits, as time and task.
    pub(super) fn next_end(&self) -> (u64, u64) {
        self.next
    }

    /// Adds a kernel; calls `started` for every kernel that gets its first slots as a result.
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

    /// Processes the end that [`Kernels::next_end`] returned; calls `started` for every kernel that gets its first slots.
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
        // The slots held by the kernels after the current one: with a single priority no earlier kernel wants them.
        let mut held: f64 = self.running.iter().map(Running::held).sum();
        let mut waits = false;
        self.next = (u64::MAX, NONE);
        self.next_is_body = true;
        for (n, r) in self.running.iter_mut().enumerate() {
            let own = r.held();
            held -= own;
            r.is_between = false;
            let offered = if held > KernelCost::LEAST_SHARE {
                (free - held).max(own)
            } else {
                free
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
            // Rounded up, so that nothing of the body is left at its end.
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
