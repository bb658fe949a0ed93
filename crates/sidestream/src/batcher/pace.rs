//! Predicts how long a request that arrives now will take, from the times of recent batches.

use std::collections::VecDeque;
use std::time::Duration;

/// The number of recent batches whose slowest one determines the prediction. The number is large, since at most one
/// answer in a hundred may be late, and a host that is behind accepts requests with just the predicted time left.
const LATELY: usize = 256;
/// The safety factor on the slowest recent batch, since a later one may be slower. The factor costs little, since with
/// it a host that is behind catches up sooner.
const ROOM: f64 = 1.25;
/// The time without batches after which old measurements start to decay, and the half-life of the decay.
const BELIEVED: Duration = Duration::from_millis(100);
const HALF_LIFE: Duration = Duration::from_millis(100);
/// The interval at which the decay is updated.
const LOOK: Duration = Duration::from_millis(2);

/// The times of batches of a class, from when they were due until the last caller had its answer.
#[derive(Default)]
pub(super) struct Pace {
    mean: Duration,
    /// The longest of the recent times.
    longest: Duration,
    lately: VecDeque<Duration>,
    noted: Duration,
}

impl Pace {
    /// Adds the time of a batch. `is_idle` says that no batch is on the device.
    pub(super) fn note(&mut self, took: Duration, is_idle: bool, now: Duration) {
        self.forget(is_idle, now);
        self.mean = match self.mean {
            Duration::ZERO => took,
            // A moving average over about eight batches, since the load changes.
            before => (before * 7 + took) / 8,
        };
        if self.lately.len() == LATELY {
            self.lately.pop_front();
        }
        self.lately.push_back(took);
        self.longest = self.lately.iter().copied().max().unwrap_or_default();
        self.noted = now;
    }

    /// Returns how long a request that arrives now would take, with a safety margin, so that accepted requests are answered in time.
    ///
    /// The request waits for others, and its batch then runs in one of `rounds` rounds through the slots. That batch
    /// may be as slow as the slowest recent one. A mean with a margin for the usual variation is not enough: host
    /// delays are rare and last for milliseconds.
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

    /// Lets old measurements decay while no batch is measured, so that a request is accepted again: only a new batch shows how long
    /// batches take now.
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
