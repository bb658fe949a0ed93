//! How long a request would take that came now, by what batches took lately.

use std::collections::VecDeque;
use std::time::Duration;

/// Of how many batches the one counts that took longest. One answer in a hundred may be late, and where a host is behind, whatever is accepted has just
/// as much time left as is expected.
const LATELY: usize = 256;
/// The longest one is not the longest that there will be. Room costs little: a host that is behind catches up by so much sooner.
const ROOM: f64 = 1.25;
/// For how long what batches took is believed while there are none, and in which time it is worth half after that.
const BELIEVED: Duration = Duration::from_millis(100);
const HALF_LIFE: Duration = Duration::from_millis(100);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// What batches of a class took, from when they were due until the last caller had its answer.
#[derive(Default)]
pub(super) struct Pace {
    mean: Duration,
    /// The longest of the last ones.
    longest: Duration,
    lately: VecDeque<Duration>,
    noted: Duration,
}

impl Pace {
    /// A batch took so long. `is_idle` says that none is with the device.
    pub(super) fn note(&mut self, took: Duration, is_idle: bool, now: Duration) {
        self.forget(is_idle, now);
        self.mean = match self.mean {
            Duration::ZERO => took,
            // Of the last eight or so, since load changes.
            before => (before * 7 + took) / 8,
        };
        if self.lately.len() == LATELY {
            self.lately.pop_front();
        }
        self.lately.push_back(took);
        self.longest = self.lately.iter().copied().max().unwrap_or_default();
        self.noted = now;
    }

    /// How long a request would take that came now, with room: those that are accepted are to be answered in time.
    ///
    /// It waits for others, then its batch is in one of so many `rounds` through the slots. One batch of the last ones took longest, and so may its own. A mean
    /// with room for what is usual is not enough: what holds up a host comes seldom and lasts for milliseconds.
    pub(super) fn expected(
        &mut self,
        max_delay: Duration,
        rounds: usize,
        is_idle: bool,
        now: Duration,
    ) -> Duration {
        self.forget(is_idle, now);
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
        let room = self.longest.mul_f64(ROOM).saturating_sub(self.mean);
        max_delay + self.mean.saturating_mul(rounds).saturating_add(room)
    }

    /// What took long once is worth less and less while there is nothing to be noted, so that one is tried again: only a batch says what batches take now.
    fn forget(&mut self, is_idle: bool, now: Duration) {
        let idle = now.saturating_sub(self.noted + BELIEVED);
        if !is_idle || idle < LOOK || self.lately.is_empty() {
            return;
        }
        let share = 0.5_f64.powf(idle.as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.mean = self.mean.mul_f64(share);
        self.longest = self.longest.mul_f64(share);
        self.lately.clear();
        self.lately.push_back(self.longest);
        self.noted = now - BELIEVED;
    }
}
