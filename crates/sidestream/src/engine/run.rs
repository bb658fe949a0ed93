//! The event loop: takes the next event in time order and updates the tasks that depend on it.

use super::*;

impl Engine {
    /// Returns the next event in time order, or `None` if nothing can progress: then every task has finished or waits for a
    /// held lane. Delayed tasks ([`Delay::UntilIdle`]) are released, one at a time, when there is no other event.
    pub fn step(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if !self.progress() && !self.release_idle() {
                return None;
            }
        }
    }

    /// Returns the time of the next event that does not require the release of a delayed task.
    pub fn next_event_ns(&mut self) -> Option<u64> {
        self.settle();
        if let Some(event) = self.events.front() {
            return Some(event.time_ns);
        }
        let (time_ns, _, _) = self.next();
        (time_ns != u64::MAX).then_some(time_ns)
    }

    /// Like [`Engine::step`], but only for events up to this time and without releasing delayed tasks.
    pub fn step_to(&mut self, time_ns: u64) -> Option<Event> {
        // A task that becomes ready is not an event, so an iteration may yield none.
        while self.next_event_ns()? <= time_ns {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            self.progress();
        }
        None
    }

    /// Processes everything up to this time, and sets the time. Delayed tasks are not released.
    pub fn advance_to(&mut self, time_ns: u64) {
        while self.step_to(time_ns).is_some() {}
        self.now_ns = self.now_ns.max(time_ns);
    }

    /// Runs until a task has finished, and returns its end, ns.
    ///
    /// # Errors
    /// If nothing can progress: the task needs a held lane, directly or not.
    ///
    /// # Panics
    /// If there is no such task.
    #[track_caller]
    pub fn run_until(&mut self, task: TaskId) -> Result<u64, Stuck> {
        assert!(task.0 < self.slots.end(), "there is no task {}", task.0);
        while !self.is_finished(task) {
            self.events.clear();
            if !self.progress() && !self.release_idle() {
                return Err(self.stuck(task));
            }
        }
        Ok(self.slots.get(task.0).map_or(self.now_ns, |s| s.end_ns))
    }

    /// Runs until every task has finished, and returns the time of the last end.
    ///
    /// # Errors
    /// Like [`Engine::run_until`], for the first task that cannot complete.
    pub fn finish(&mut self) -> Result<u64, Stuck> {
        loop {
            self.events.clear();
            if !self.progress() && !self.release_idle() {
                break;
            }
        }
        self.events.clear();
        let mut tasks = self.slots.numbered();
        match tasks.find(|(_, s)| s.state != State::Done) {
            Some((first, _)) => Err(self.stuck(TaskId(first))),
            // Only an engine without tasks has no last end.
            None => Ok(self.slots.get(self.last_finished).map_or(0, |s| s.end_ns)),
        }
    }

    /// Releases the delayed task of the highest rank, as if the engine were idle; returns whether there was one.
    pub fn release_idle(&mut self) -> bool {
        let Some((_, Reverse(task))) = self.idle.pop() else {
            return false;
        };
        let slot = &mut self.slots[task];
        // The delay is used up.
        slot.delay = Delay::None;
        if self.now_ns > slot.ready_ns && self.last_finished != NONE {
            slot.cause = Cause::Idle(TaskId(self.last_finished));
        }
        self.due.push_back(task);
        true
    }

    fn stuck(&self, task: TaskId) -> Stuck {
        let held = (0u32..)
            .zip(&self.lanes)
            .filter(|(_, l)| l.held && l.parked != NONE)
            .map(|(n, _)| LaneId(n))
            .collect();
        Stuck { task, held }
    }

    /// Processes the next event; returns `false` if there is none.
    fn progress(&mut self) -> bool {
        if let Some(task) = self.due.pop_front() {
            self.arrive(task);
            self.settle();
            return true;
        }
        let (time_ns, task, source) = self.next();
        if time_ns == u64::MAX {
            return false;
        }
        self.now_ns = time_ns;
        match source {
            Source::Future => {
                self.future.pop();
                if self.slots[task].state == State::Running {
                    self.end(task)
                } else {
                    self.arrive(task)
                }
            }
            Source::Bus(device) => {
                let next = self.devices[device].bus.finish(time_ns, task);
                self.end(task);
                if let Some(next) = next {
                    self.slots[next.task].cause = Cause::Resource(TaskId(task));
                    let flow = &self.flows[self.slots[next.task].flow()];
                    self.devices[device].bus.start(time_ns, next, flow);
                    self.start(next.task);
                }
            }
            Source::Kernels(device) => {
                let (slots, events) = (&mut self.slots, &mut self.events);
                let kernels = &mut self.devices[device].kernels;
                let ended = kernels.finish(time_ns, task, |begun| {
                    slots[begun].cause = Cause::Resource(TaskId(task));
                    begin(slots, events, time_ns, begun);
                });
                if let Ended::Body { tail_ns } = ended {
                    match whole(tail_ns) {
                        0 => self.end(task),
                        tail_ns => self.future.push(Reverse((later(time_ns, tail_ns), task))),
                    }
                }
            }
        }
        self.settle();
        true
    }

    fn settle(&mut self) {
        while let Some(task) = self.due.pop_front() {
            self.arrive(task);
        }
    }

    fn next(&self) -> (u64, u64, Source) {
        let mut next = match self.future.peek() {
            Some(Reverse((time_ns, task))) => (*time_ns, *task, Source::Future),
            None => (u64::MAX, NONE, Source::Future),
        };
        for (n, device) in self.devices.iter().enumerate() {
            for (candidate, source) in [
                (device.bus.next_end(), Source::Bus(n)),
                (device.kernels.next_end(), Source::Kernels(n)),
            ] {
                if candidate < (next.0, next.1) {
                    next = (candidate.0, candidate.1, source);
                }
            }
        }
        next
    }

    /// Called when all tasks that the task waits for have finished.
    pub(super) fn activate(&mut self, task: u64) {
        let slot = &mut self.slots[task];
        if slot.counted
            && let Some(device) = self.lanes[slot.lane as usize].device
        {
            slot.counted = false;
            self.devices[device as usize].pending_waits -= 1;
        }
        if let Delay::ExtraNs(ns) = slot.delay {
            slot.ready_ns = later(slot.ready_ns, ns);
        }
        if slot.ready_ns > self.now_ns {
            self.future.push(Reverse((slot.ready_ns, task)))
        } else {
            self.due.push_back(task)
        }
    }

    /// Called when the task is ready: requests its resource.
    fn arrive(&mut self, task: u64) {
        let slot = &self.slots[task];
        let lane = &mut self.lanes[slot.lane as usize];
        if lane.held {
            lane.parked = task;
            return;
        }
        if let Delay::UntilIdle(rank) = slot.delay {
            self.idle.push((rank, Reverse(task)));
            return;
        }
        let (job, priority, device) = (slot.job, lane.priority, lane.device.unwrap_or(0) as usize);
        match job {
            Job::Marker => {
                self.start(task);
                self.end(task);
            }
            Job::Host { ns } => {
                self.start(task);
                self.future.push(Reverse((later(self.now_ns, ns), task)));
            }
            Job::Copy { flow } => {
                let released_by = slot.cause.task().and_then(|t| self.slots.get(t.0));
                let released_by = released_by.map(|slot| slot.side);
                let request = Request {
                    task,
                    stream: slot.lane,
                    waited: matches!(released_by, Some(Side::Device(_))),
                };
                let flow = &self.flows[flow as usize];
                if self.devices[device].bus.arrive(self.now_ns, request, flow) {
                    self.start(task);
                }
            }
            Job::Kernel { shape } => {
                let (slots, events, now_ns) = (&mut self.slots, &mut self.events, self.now_ns);
                let shape = &self.shapes[shape as usize];
                self.devices[device]
                    .kernels
                    .arrive(now_ns, task, priority, shape, |begun| {
                        begin(slots, events, now_ns, begun)
                    });
            }
        }
    }

    fn start(&mut self, task: u64) {
        begin(&mut self.slots, &mut self.events, self.now_ns, task);
    }

    fn end(&mut self, task: u64) {
        let slot = &mut self.slots[task];
        slot.end_ns = self.now_ns;
        slot.state = State::Done;
        let (next, mut edge) = (slot.next, slot.first_edge);
        self.last_finished = task;
        self.events.push_back(Event {
            time_ns: self.now_ns,
            task: TaskId(task),
            what: What::Finished,
        });
        if next != NONE {
            self.note(next, task, false);
            if self.satisfied(next) {
                self.activate(next);
            } else {
                self.count_pending_wait(next);
            }
        }
        while edge != NOTHING {
            let (waiting, next_edge) = self.edges[edge as usize];
            self.edges[edge as usize].1 = std::mem::replace(&mut self.free_edges, edge);
            edge = next_edge;
            // The task waited only for the first of several; the others have no effect.
            if waiting & ANY != 0 && !self.open.remove(&(waiting & !ANY)) {
                continue;
            }
            let waiting = waiting & !ANY;
            self.note(waiting, task, true);
            if self.satisfied(waiting) {
                self.activate(waiting);
            }
        }
    }

    fn satisfied(&mut self, task: u64) -> bool {
        let slot = &mut self.slots[task];
        slot.pending -= 1;
        slot.pending == 0
    }

    /// Counts a head of a stream that waits for a task outside the stream.
    pub(super) fn count_pending_wait(&mut self, task: u64) {
        let slot = &mut self.slots[task];
        if let (Job::Marker, Some(device)) = (slot.job, self.lanes[slot.lane as usize].device) {
            slot.counted = true;
            self.devices[device as usize].pending_waits += 1;
        }
    }

    /// Notes that `before` has finished: `task` is ready a hop later at the earliest.
    pub(super) fn note(&mut self, task: u64, before: u64, edge: bool) {
        let (done, waiting) = (&self.slots[before], &self.slots[task]);
        let ready_ns = later(done.end_ns, self.hop_ns(done, waiting, edge));
        let (side, marker) = (done.side, matches!(waiting.job, Job::Marker));
        let slot = &mut self.slots[task];
        if ready_ns >= slot.ready_ns {
            slot.ready_ns = ready_ns;
            slot.cause = if edge {
                Cause::Edge(TaskId(before))
            } else {
                Cause::Lane(TaskId(before))
            };
            if marker {
                slot.side = side;
            }
        }
    }

    fn hop_ns(&self, done: &Slot, waiting: &Slot, edge: bool) -> u64 {
        let (from, to) = (
            &self.lanes[done.lane as usize],
            &self.lanes[waiting.lane as usize],
        );
        let Some(device) = to.device else {
            // A hop from a device back to a host thread.
            return if matches!(done.side, Side::Device(_)) && !matches!(waiting.job, Job::Marker) {
                whole(
                    self.devices[from.device.unwrap_or(0) as usize]
                        .profile
                        .host_return_ns,
                )
            } else {
                0
            };
        };
        let target = &self.devices[device as usize];
        let profile = &target.profile;
        let mut hop = 0.0;
        if edge && let Some(source) = from.device {
            if source != device {
                hop += profile.device_hop_ns;
            } else if done.lane != waiting.lane {
                hop += profile.event_hop_ns;
            }
        }
        if let Job::Marker = waiting.job {
            return whole(hop);
        }
        hop += match (done.side, waiting.side) {
            (Side::Device(Engines::Compute), Side::Device(Engines::Compute)) => {
                let gap = if done.in_graph && waiting.in_graph {
                    profile.graph_gap_ns
                } else {
                    profile.kernel_gap_ns
                };
                // A pending wait slows the front end that starts kernels.
                if target.pending_waits > 0 {
                    gap + profile.pending_wait_ns
                } else {
                    gap
                }
            }
            (a, b) if a == b => 0.0,
            (Side::Device(Engines::Callback), _) | (_, Side::Device(Engines::Callback)) => {
                profile.callback_hop_ns
            }
            (Side::Host, Side::Device(Engines::Compute)) => profile.submit_kernel_ns,
            (Side::Host, _) => profile.submit_ns,
            _ => profile.engine_hop_ns,
        };
        whole(hop)
    }
}

#[derive(Clone, Copy)]
enum Source {
    Future,
    Bus(usize),
    Kernels(usize),
}

fn begin(slots: &mut Slots, events: &mut VecDeque<Event>, now_ns: u64, task: u64) {
    let slot = &mut slots[task];
    slot.state = State::Running;
    slot.start_ns = now_ns;
    events.push_back(Event {
        time_ns: now_ns,
        task: TaskId(task),
        what: What::Started,
    });
}
