//! The requests of a batcher: what waits and what is with the device, when a batch leaves, and what is refused.
//!
//! Neither threads nor clocks nor devices: a time is how long ago the batcher began, and whoever calls says it. So one machine is fed by the threads of
//! Rust's [`Batcher`](super::Batcher), by Python's event loops and threads, and by a simulated load in virtual time.
//!
//! A request that this gives back has been claimed: it is in nobody else's hands any more, and it is counted. Its caller is told after that.

use std::collections::VecDeque;
use std::time::Duration;

use super::pace::Pace;
use super::rule::Rule;
use super::statistics::Statistics;

/// Who launches the batch of a request: an event loop that has this number, or threads of the batcher.
pub type Home = Option<usize>;

/// All requests of one batcher, each known by a `K` of who feeds it. Classes and slots are numbers.
pub struct Requests<K> {
    rule: Rule,
    limit: usize,
    classes: Vec<Class<K>>,
    statistics: Statistics,
    is_closed: bool,
}

struct Class<K> {
    waiting: VecDeque<Waiting<K>>,
    /// The one that was free last is taken first.
    free: Vec<usize>,
    /// By slot: what its batch has.
    running: Vec<Option<Running>>,
    slots: usize,
    /// When a slot became free last.
    freed: Duration,
    pace: Pace,
}

struct Waiting<K> {
    key: K,
    arrived: Duration,
    deadline: Option<Duration>,
    home: Home,
}

struct Running {
    size: usize,
    arrived: Vec<Duration>,
}

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No more are.
    Closed,
    /// As many wait as may.
    Full,
    /// It would be answered after so long, which is too late.
    Late(Duration),
}

/// The oldest requests of a class, and the slot that computes them.
#[derive(Debug)]
pub struct Batch<K> {
    /// None if all had expired; then there is no slot either.
    pub keys: Vec<K>,
    /// Those whose deadline has passed, which have ended so.
    pub expired: Vec<K>,
    /// The slot.
    pub slot: usize,
    /// Rows, with those that fill it up.
    pub size: usize,
    /// When it could have left.
    pub due: Duration,
}

/// What a batch took on the device: its upload, the model, its download; or the whole; or nothing that was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Took {
    /// Each for itself.
    Parts([Duration; 3]),
    /// All of it together.
    Whole(Duration),
    /// It was not measured.
    Unknown,
}

impl<K> Requests<K> {
    /// None yet. At most `limit` of a class wait, and each class has so many slots.
    pub fn new(rule: Rule, limit: usize, classes: usize, slots: usize) -> Requests<K> {
        let class = |_| Class {
            waiting: VecDeque::new(),
            free: (0..slots).rev().collect(),
            running: (0..slots).map(|_| None).collect(),
            slots,
            freed: Duration::ZERO,
            pace: Pace::default(),
        };
        Requests {
            rule,
            limit,
            classes: (0..classes).map(class).collect(),
            statistics: Statistics::default(),
            is_closed: false,
        }
    }

    /// The sizes of batches, and for how long the oldest request waits for others.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Takes a request that arrives now; how many of its class wait with it.
    ///
    /// # Errors
    /// Why it is not taken, which is counted.
    pub fn submit(
        &mut self,
        of: usize,
        key: K,
        now: Duration,
        deadline: Option<Duration>,
        home: Home,
    ) -> Result<usize, Refusal> {
        if self.is_closed {
            return Err(Refusal::Closed);
        }
        if self.classes[of].waiting.len() >= self.limit {
            self.statistics.refused_full += 1;
            return Err(Refusal::Full);
        }
        if let Some(deadline) = deadline {
            self.admit(of, now, deadline)?;
        }
        let waiting = &mut self.classes[of].waiting;
        waiting.push_back(Waiting {
            key,
            arrived: now,
            deadline,
            home,
        });
        Ok(waiting.len())
    }

    /// Whether a request that came now would be answered by this deadline. Late answers are worth nothing and hold up those behind them.
    ///
    /// # Errors
    /// Why it would not be taken, which is counted.
    pub fn admit(&mut self, of: usize, now: Duration, deadline: Duration) -> Result<(), Refusal> {
        if self.is_closed {
            return Err(Refusal::Closed);
        }
        let class = &mut self.classes[of];
        let expected = class.expected(&self.rule, now);
        if deadline <= now || now + expected > deadline {
            self.statistics.refused_late += 1;
            return Err(Refusal::Late(expected));
        }
        Ok(())
    }

    /// Takes a request back that waits; none if its batch has left, or it has ended.
    pub fn cancel(&mut self, of: usize, is_it: impl Fn(&K) -> bool) -> Option<K> {
        let waiting = &mut self.classes[of].waiting;
        // Few are taken back, and those have mostly waited for long: they stand in front.
        let at = waiting.iter().position(|one| is_it(&one.key))?;
        let taken = waiting.remove(at)?;
        self.statistics.cancelled += 1;
        Some(taken.key)
    }

    /// When the next batch of a class leaves, which may have passed; none if nothing waits or no slot is free.
    pub fn due(&self, of: usize) -> Option<Duration> {
        let class = &self.classes[of];
        if class.free.is_empty() {
            return None;
        }
        let alone = class.waiting.front()?.arrived + self.rule.max_delay();
        let full = class.waiting.get(self.rule.largest() - 1);
        let ready = full.map_or(alone, |last| last.arrived.min(alone));
        // Nobody waits for requests that will not come.
        let ready = if self.is_closed {
            Duration::ZERO
        } else {
            ready
        };
        Some(ready.max(class.freed))
    }

    /// The same for threads of the batcher. They leave a batch whose oldest request is an event loop's to that loop, which may be busy or gone, for this grace
    /// if requests of others wait behind that one, and for ten times as long if not.
    pub fn due_to_threads(&self, of: usize, grace: Duration) -> Option<Duration> {
        let due = self.due(of)?;
        let waiting = &self.classes[of].waiting;
        let home = waiting.front()?.home;
        if home.is_none() || self.is_closed {
            return Some(due);
        }
        let is_shared = waiting.iter().any(|other| other.home != home);
        Some(due + if is_shared { grace } else { grace * 10 })
    }

    /// The oldest request of a class that waits.
    pub fn oldest(&self, of: usize) -> Option<&K> {
        self.classes[of].waiting.front().map(|oldest| &oldest.key)
    }

    /// Takes the oldest requests of a class for a batch, with a slot; none if it is not due.
    pub fn take(&mut self, of: usize, now: Duration) -> Option<Batch<K>> {
        if self.due(of)? > now {
            return None;
        }
        let class = &mut self.classes[of];
        let oldest = class.waiting.front()?.arrived + self.rule.max_delay();
        let most = class.waiting.len().min(self.rule.largest());
        let mut batch = Batch {
            keys: Vec::with_capacity(most),
            expired: Vec::new(),
            slot: 0,
            size: 0,
            due: now.min(oldest.max(class.freed)),
        };
        let mut arrived = Vec::with_capacity(most);
        while batch.keys.len() < self.rule.largest()
            && let Some(request) = class.waiting.pop_front()
        {
            if request.deadline.is_some_and(|deadline| deadline <= now) {
                batch.expired.push(request.key);
                continue;
            }
            let waited = now.saturating_sub(request.arrived);
            self.statistics.queue.add(waited);
            arrived.push(request.arrived);
            batch.keys.push(request.key);
        }
        self.statistics.expired += batch.expired.len() as u64;
        if batch.keys.is_empty() {
            return Some(batch);
        }
        self.statistics.in_flight += batch.keys.len() as u64;
        batch.size = self.rule.size_of(batch.keys.len());
        batch.slot = class.free.pop()?;
        class.running[batch.slot] = Some(Running {
            size: batch.size,
            arrived,
        });
        Some(batch)
    }

    /// The requests of a slot's batch have been computed, all of them in one, or the one of this number alone.
    pub fn answered(
        &mut self,
        of: usize,
        slot: usize,
        alone: Option<usize>,
        took: Took,
        now: Duration,
    ) {
        let Some(running) = &self.classes[of].running[slot] else {
            return;
        };
        let (arrived, size) = match alone {
            None => (&running.arrived[..], running.size),
            Some(at) => (&running.arrived[at..=at], self.rule.size_of(1)),
        };
        let counts = &mut self.statistics;
        let many = arrived.len() as u64;
        *counts.batches.entry(size).or_default() += 1;
        counts.padding_rows += size as u64 - many;
        counts.answered += many;
        counts.in_flight -= many;
        for arrived in arrived {
            counts.total.add(now.saturating_sub(*arrived));
        }
        match took {
            Took::Parts([upload, compute, download]) => {
                counts.upload.add(upload);
                counts.compute.add(compute);
                counts.download.add(download);
            }
            Took::Whole(whole) => counts.compute.add(whole),
            Took::Unknown => {}
        }
    }

    /// So many requests that were with the device have failed.
    pub fn failed(&mut self, many: usize) {
        self.statistics.failed += many as u64;
        self.statistics.in_flight -= many as u64;
    }

    /// A slot is free again.
    pub fn over(&mut self, of: usize, slot: usize, now: Duration) {
        let class = &mut self.classes[of];
        class.running[slot] = None;
        class.free.push(slot);
        class.freed = now;
    }

    /// All callers of a batch that was due then have been told: so long does one take.
    pub fn told(&mut self, of: usize, due: Duration, now: Duration) {
        let class = &mut self.classes[of];
        let is_idle = class.in_flight() == 0;
        class.pace.note(now.saturating_sub(due), is_idle, now);
    }

    /// Takes this slot out of service if it is free, until it is [`over`](Requests::over).
    pub fn claim(&mut self, of: usize, slot: usize) -> bool {
        let free = &mut self.classes[of].free;
        let found = free.iter().position(|one| *one == slot);
        found.map(|at| free.remove(at)).is_some()
    }

    /// How many batches of a class are with the device.
    pub fn in_flight(&self, of: usize) -> usize {
        self.classes[of].in_flight()
    }

    /// No more requests. Those that wait are computed, or they are given back and counted as dropped.
    pub fn close(&mut self, are_computed: bool) -> Vec<K> {
        self.is_closed = true;
        let mut ended = Vec::new();
        if !are_computed {
            for class in &mut self.classes {
                ended.extend(class.waiting.drain(..).map(|request| request.key));
            }
        }
        self.statistics.dropped += ended.len() as u64;
        ended
    }

    /// Whether no more are taken.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// What has become of the requests so far.
    pub fn statistics(&self) -> Statistics {
        let waiting = self.classes.iter().map(|class| class.waiting.len());
        Statistics {
            waiting: waiting.sum::<usize>() as u64,
            ..self.statistics.clone()
        }
    }
}

impl<K> Class<K> {
    fn in_flight(&self) -> usize {
        self.running.iter().flatten().count()
    }

    fn expected(&mut self, rule: &Rule, now: Duration) -> Duration {
        let in_flight = self.in_flight();
        let before = in_flight + self.waiting.len() / rule.largest();
        let rounds = before / self.slots + 1;
        self.pace
            .expected(rule.max_delay(), rounds, in_flight == 0, now)
    }
}
