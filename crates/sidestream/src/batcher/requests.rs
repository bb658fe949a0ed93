//! The state of a batcher's requests: the waiting ones, those on the device, the time at which the next batch is due,
//! and the rules by which requests are refused.
//!
//! This module uses no threads, clocks or devices: a time is the duration since the batcher began, and the caller passes it. So
//! one state machine serves the threads of Rust's [`Batcher`](super::Batcher), Python's event loops and threads, and a
//! simulated load in virtual time.
//!
//! A request that a method returns is claimed: no other thread has it, and it is counted. Its caller gets the answer after
//! that.

use std::collections::VecDeque;
use std::time::Duration;

use super::pace::Pace;
use super::rule::Rule;
use super::statistics::Statistics;

/// The launcher of a request's batch: the event loop of this number, or the batcher's threads for `None`.
pub type Home = Option<usize>;

/// All requests of one batcher, each with a key `K` that its caller chooses. Classes and slots are numbers.
pub struct Requests<K> {
    rule: Rule,
    limit: usize,
    classes: Vec<Class<K>>,
    statistics: Statistics,
    is_closed: bool,
}

struct Class<K> {
    waiting: VecDeque<Waiting<K>>,
    /// The free slots; the one freed last is taken first.
    free: Vec<usize>,
    /// By slot: its batch, if it runs one.
    running: Vec<Option<Running>>,
    slots: usize,
    /// The time at which a slot last became free.
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

/// The reason why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The batcher accepts no more requests.
    Closed,
    /// The queue is full.
    Full,
    /// The answer would take this long, which is past the deadline.
    Late(Duration),
}

/// A batch: the oldest requests of a class, and the slot that computes them.
#[derive(Debug)]
pub struct Batch<K> {
    /// The keys of the requests; empty if all had expired, and then `slot` has no meaning.
    pub keys: Vec<K>,
    /// The keys of the requests that ended because their deadline has passed.
    pub expired: Vec<K>,
    /// The slot.
    pub slot: usize,
    /// The number of rows, including the padding.
    pub size: usize,
    /// The time at which the batch was due.
    pub due: Duration,
}

/// The time that a batch took on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Took {
    /// The times of the upload, the model and the download.
    Parts([Duration; 3]),
    /// The total time.
    Whole(Duration),
    /// The time was not measured.
    Unknown,
}

impl<K> Requests<K> {
    /// Returns the state without requests. At most `limit` requests of a class wait, and each class has `slots` slots.
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

    /// Returns the rule: the sizes of batches, and how long the oldest request waits for others.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Queues a request that arrives now; returns the number of waiting requests of its class.
    ///
    /// # Errors
    /// The reason why it is refused, which is counted.
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

    /// Checks that a request that arrives now would be answered by this deadline. Late answers are worth nothing and delay those
    /// after them.
    ///
    /// # Errors
    /// The reason why it would be refused, which is counted.
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

    /// Cancels a waiting request and returns its key; `None` if its batch has started, or the request has ended.
    pub fn cancel(&mut self, of: usize, is_it: impl Fn(&K) -> bool) -> Option<K> {
        let waiting = &mut self.classes[of].waiting;
        // Few requests are cancelled, and mostly old ones, which are near the front.
        let at = waiting.iter().position(|one| is_it(&one.key))?;
        let taken = waiting.remove(at)?;
        self.statistics.cancelled += 1;
        Some(taken.key)
    }

    /// Returns the time at which the next batch of a class is due, which may be in the past; `None` if no request waits or no
    /// slot is free.
    pub fn due(&self, of: usize) -> Option<Duration> {
        let class = &self.classes[of];
        if class.free.is_empty() {
            return None;
        }
        let alone = class.waiting.front()?.arrived + self.rule.max_delay();
        let full = class.waiting.get(self.rule.largest() - 1);
        let ready = full.map_or(alone, |last| last.arrived.min(alone));
        // A closed batcher gets no further requests, so none is waited for.
        let ready = if self.is_closed {
            Duration::ZERO
        } else {
            ready
        };
        Some(ready.max(class.freed))
    }

    /// Like [`Requests::due`], but for the batcher's threads. If the oldest request of a batch belongs to an event
    /// loop, which may be busy or gone, the threads leave the batch to that loop: for the time `grace` if other
    /// callers' requests wait after that request, and for ten times as long if not.
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

    /// Returns the oldest waiting request of a class.
    pub fn oldest(&self, of: usize) -> Option<&K> {
        self.classes[of].waiting.front().map(|oldest| &oldest.key)
    }

    /// Takes the oldest requests of a class for a batch, with a slot; `None` if no batch is due.
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

    /// Notes that the requests of a slot's batch have been computed: all of them together, or only the one with the
    /// number `alone`.
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

    /// Notes that this many requests on the device have failed.
    pub fn failed(&mut self, many: usize) {
        self.statistics.failed += many as u64;
        self.statistics.in_flight -= many as u64;
    }

    /// Frees a slot.
    pub fn over(&mut self, of: usize, slot: usize, now: Duration) {
        let class = &mut self.classes[of];
        class.running[slot] = None;
        class.free.push(slot);
        class.freed = now;
    }

    /// Notes that all callers of a batch have their answers; `due` is the time at which the batch was due, so that its
    /// duration is measured.
    pub fn told(&mut self, of: usize, due: Duration, now: Duration) {
        let class = &mut self.classes[of];
        let is_idle = class.in_flight() == 0;
        class.pace.note(now.saturating_sub(due), is_idle, now);
    }

    /// Reserves this slot if it is free, until [`over`](Requests::over) is called for it.
    pub fn claim(&mut self, of: usize, slot: usize) -> bool {
        let free = &mut self.classes[of].free;
        let found = free.iter().position(|one| *one == slot);
        found.map(|at| free.remove(at)).is_some()
    }

    /// Returns the number of batches of a class on the device.
    pub fn in_flight(&self, of: usize) -> usize {
        self.classes[of].in_flight()
    }

    /// Closes the batcher to new requests. Waiting requests are computed if `are_computed` is set; otherwise they are
    /// returned and counted as dropped.
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

    /// Whether the batcher accepts no more requests.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns the statistics so far.
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
