//! The next action of the generator: work, host accesses, events and waits.

use super::MOST_OPS;
use super::state::{Action, Gen, Life, Target};
use crate::oracle::prog::{Act, MemKind, Part, Source};

impl Gen {
    pub(super) fn run(&mut self) {
        if self.opt.runtime {
            self.pool();
        }
        let error_at = self.opt.error.then(|| self.rng.below(self.opt.ops));
        let mut tries = 0;
        while self.prog.ops.len() < self.opt.ops && tries < 200 {
            tries += 1;
            if let Some(at) = error_at
                && self.prog.ops.len() >= at
                && self.inject_error()
            {
                // The checker ignores what follows a failed call, but a few ops follow anyway.
                for _ in 0..self.rng.below(3) {
                    let buf = Part::whole(&self.buffers[0].name);
                    let act = Act::Memset { to: buf };
                    self.emit(0, act);
                }
                return;
            }
            self.step();
        }
        if self.rng.percent(90) {
            while let Some(c) = self.captures.iter().position(|c| c.running) {
                if self.prog.ops.len() > MOST_OPS - 10 {
                    break;
                }
                self.end_capture(c);
            }
        }
    }

    /// Performs one step: an action that the options allow, drawn by weight.
    pub(super) fn step(&mut self) {
        let captured = self.any_capture();
        let t = self.thread();
        let o = &self.opt;
        let on = |switch: bool, weight: u32| if switch { weight } else { 0 };
        let weights: [(u32, Action); 18] = [
            (20, Gen::kernel),
            (8, Gen::copy_async),
            (4, Gen::memset_async),
            (on(o.blocking_calls, 9), Gen::blocking_call),
            (on(o.host_funcs, 6), Gen::host_func),
            (on(o.graphs, 6), Gen::graph_launch),
            (on(o.host_memory, 12), Gen::host_access),
            (on(o.events, 8), Gen::event_noise),
            (2, Gen::sync_noise),
            (on(o.allocator && !captured, 24), Gen::allocator),
            (on(o.lifetimes && !captured, 12), Gen::lifetimes),
            (on(o.devices > 1, 2), Gen::change_device),
            (on(o.stream_lifetimes, 3), Gen::stream_lifetime),
            (on(o.timing, 5), Gen::elapsed),
            (on(o.threads > 1, 2), Gen::some_flag),
            (on(o.captures && !captured, 5), Gen::begin_capture),
            (on(captured, 30), Gen::capture_step),
            (on(o.runtime, 4), Gen::simulate),
        ];
        let mut drawn = self.rng.below(weights.iter().map(|w| w.0 as usize).sum());
        for (weight, action) in weights {
            if drawn < weight as usize {
                return action(self, t);
            }
            drawn -= weight as usize;
        }
    }

    pub(super) fn change_device(&mut self, t: usize) {
        let dev = self.device();
        self.set_device(t, dev);
    }

    pub(super) fn some_flag(&mut self, t: usize) {
        let other = self.thread();
        let flag = self.flag_name();
        self.flag(t, other, flag);
    }

    pub(super) fn simulate(&mut self, t: usize) {
        let act = match (self.pick_stream(), self.rng.below(3)) {
            (Some(s), 0) => Act::SimHold { st: self.name(s) },
            (Some(s), 1) => Act::SimRelease { st: self.name(s) },
            _ => Act::SetCapacity { blocks: 4 },
        };
        self.emit(t, act);
    }

    pub(super) fn set_device(&mut self, t: usize, dev: u32) {
        self.threads[t].device = dev;
        self.emit(t, Act::SetDevice { dev });
    }

    /// Submits work to a stream. The parts are what is read and written.
    pub(super) fn work(&mut self, t: usize, s: usize, r: &[Part], w: &[Part], act: Act) -> bool {
        if self.streams[s].capture.is_some() {
            self.captured_work(s);
            self.emit(t, act);
            return true;
        }
        let mut all: Vec<(Part, bool)> = r.iter().map(|p| (p.clone(), false)).collect();
        all.extend(w.iter().map(|p| (p.clone(), true)));
        if !self.prepare(t, Target::Stream(s), &all) {
            return false;
        }
        let tick = self.act_in(t, s);
        for (part, write) in &all {
            self.touch(self.streams[s].place, tick, part, *write);
        }
        self.emit(t, act);
        true
    }

    /// Returns a stream for work: one that captures or one that does not.
    pub(super) fn work_stream(&mut self) -> Option<usize> {
        if self.any_capture() && self.rng.percent(50) {
            return self.pick_captured();
        }
        self.pick_stream()
    }

    pub(super) fn kernel(&mut self, t: usize) {
        let Some(s) = self.work_stream() else { return };
        self.kernel_on(t, s);
    }

    pub(super) fn kernel_on(&mut self, t: usize, s: usize) {
        let kinds = [
            MemKind::Dev,
            MemKind::Dev,
            MemKind::Managed,
            MemKind::Pinned,
        ];
        let kinds: &[MemKind] = if self.rng.percent(70) {
            &kinds[..1]
        } else {
            &kinds
        };
        let mut r = self.parts(kinds, 2);
        let mut w = if self.rng.percent(70) {
            self.parts(kinds, 2)
        } else {
            Vec::new()
        };
        if r.is_empty()
            && w.is_empty()
            && let Some(b) = self.pick_buffer(kinds)
        {
            w.push(self.part(b));
        }
        if self.rng.percent(2)
            && let Some(dead) =
                (0..self.buffers.len()).find(|&b| self.buffers[b].life == Life::Dead)
        {
            r.push(Part::whole(&self.buffers[dead].name));
        }
        let device = self.streams[s].device;
        if self.threads[t].device != device && self.rng.percent(85) {
            self.set_device(t, device);
        }
        let repeat = self.rng.percent(8).then(|| 1 + self.rng.below(4) as u64);
        let (writes, may_write, atomic) = self.known_and_guessed(&w);
        let act = Act::Kernel {
            s: self.name(s),
            r: r.clone(),
            w: writes,
            may_write,
            atomic,
            repeat,
            programmatic: false,
        };
        self.work(t, s, &r, &w, act);
    }

    /// Returns which of the written parts are known to be written, which only may be, and which are atomic.
    fn known_and_guessed(&mut self, w: &[Part]) -> (Vec<Part>, Vec<Part>, Vec<Part>) {
        let (mut writes, mut may_write, mut atomic) = (Vec::new(), Vec::new(), Vec::new());
        for part in w {
            let list = match self.rng.below(100) {
                ..70 => &mut writes,
                70..85 => &mut atomic,
                _ => &mut may_write,
            };
            list.push(part.clone());
        }
        (writes, may_write, atomic)
    }

    pub(super) fn any_memory(&mut self) -> &'static [MemKind] {
        match self.rng.below(4) {
            0 => &[MemKind::Dev],
            1 => &[MemKind::Pinned],
            2 => &[MemKind::Dev, MemKind::Managed, MemKind::Pinned],
            _ => &[
                MemKind::Dev,
                MemKind::Managed,
                MemKind::Pinned,
                MemKind::Pageable,
            ],
        }
    }

    pub(super) fn two_parts(&mut self) -> Option<(Part, Part)> {
        let (first, second) = (self.any_memory(), self.any_memory());
        let from = self.pick_buffer(first)?;
        let to = self.pick_buffer(second)?;
        if self.buffers[from].region == self.buffers[to].region {
            return None;
        }
        Some((self.part(from), self.part(to)))
    }

    pub(super) fn host_side(&self, part: &Part) -> bool {
        let b = self.buffer_named(&part.buf);
        matches!(self.buffers[b].mem, MemKind::Pinned | MemKind::Pageable)
    }

    pub(super) fn copy_async(&mut self, t: usize) {
        let Some(s) = self.work_stream() else { return };
        let Some((from, to)) = self.two_parts() else {
            return;
        };
        let captured = self.streams[s].capture.is_some();
        let blocks = self.host_side(&from) && self.host_side(&to) && !captured;
        // The choice is not drawn, so that a seed still gives the programs that it gave before there were peers.
        let peers = self.opt.devices > 1 && self.prog.ops.len() % 2 == 1;
        let batched = self.prog.ops.len() % 5 == 2;
        let act = if batched {
            Act::CopyBatch {
                s: self.name(s),
                from: from.clone(),
                to: to.clone(),
                source: Source::Stream,
            }
        } else if peers && !self.host_side(&from) && !self.host_side(&to) {
            Act::CopyPeer {
                s: self.name(s),
                from: from.clone(),
                to: to.clone(),
                peer: u64::from(self.streams[s].device == 0),
            }
        } else {
            Act::CopyAsync {
                s: self.name(s),
                from: from.clone(),
                to: to.clone(),
            }
        };
        if self.work(t, s, &[from], &[to], act) && blocks && !batched {
            let known = self.streams[s].clock.clone();
            self.threads[t].clock.join(&known);
        }
    }

    pub(super) fn memset_async(&mut self, t: usize) {
        let Some(s) = self.work_stream() else { return };
        let kinds = self.any_memory();
        let Some(b) = self.pick_buffer(kinds) else {
            return;
        };
        let to = self.part(b);
        let act = Act::MemsetAsync {
            s: self.name(s),
            to: to.clone(),
        };
        self.work(t, s, &[], &[to], act);
    }

    pub(super) fn blocking_call(&mut self, t: usize) {
        let device = self.threads[t].device;
        if !self.legacy_ok(device) {
            return;
        }
        let legacy = device as usize;
        if self.rng.percent(25) {
            let kinds = self.any_memory();
            let Some(b) = self.pick_buffer(kinds) else {
                return;
            };
            let to = self.part(b);
            let waits = matches!(self.buffers[b].mem, MemKind::Pinned | MemKind::Managed);
            let act = Act::Memset { to: to.clone() };
            if self.work(t, legacy, &[], &[to], act) && waits {
                let known = self.streams[legacy].clock.clone();
                self.threads[t].clock.join(&known);
            }
            return;
        }
        let Some((from, to)) = self.two_parts() else {
            return;
        };
        let act = Act::Copy {
            from: from.clone(),
            to: to.clone(),
        };
        let source = self.buffers[self.buffer_named(&from.buf)].mem;
        let upload = self.host_side(&from) && !self.host_side(&to);
        if upload && source == MemKind::Pageable {
            if !self.prepare(t, Target::Upload(device), &[(from.clone(), false)])
                || !self.prepare(t, Target::Stream(legacy), &[(to.clone(), true)])
            {
                return;
            }
            let known = self.sync_clock(legacy);
            self.threads[t].clock.join(&known);
            self.emit(t, act);
            let place = self.threads[t].place;
            self.touch(place, self.threads[t].clock.get(place), &from, false);
            let tick = self.act_in(t, legacy);
            self.touch(self.streams[legacy].place, tick, &to, true);
            return;
        }
        let waits = self.host_side(&from) || self.host_side(&to);
        if self.work(t, legacy, &[from], &[to], act) && waits {
            let known = self.streams[legacy].clock.clone();
            self.threads[t].clock.join(&known);
        }
    }

    pub(super) fn host_func(&mut self, t: usize) {
        let Some(s) = self.work_stream() else { return };
        let kinds = [MemKind::Pinned, MemKind::Pageable, MemKind::Managed];
        let r = self.parts(&kinds, 1);
        let w = self.parts(&kinds, 1);
        let captured = self.streams[s].capture.is_some();
        let sets = (!captured && self.rng.percent(50)).then(|| self.flag_name());
        let act = Act::HostFunc {
            s: self.name(s),
            r: r.clone(),
            w: w.clone(),
            sets: sets.clone(),
        };
        if !self.work(t, s, &r, &w, act) {
            return;
        }
        if let Some(flag) = sets {
            self.raise(&flag, self.streams[s].clock.clone());
            if self.rng.percent(60) {
                let waiter = self.thread();
                self.wait_flag(waiter, &flag);
            }
        }
    }

    pub(super) fn graph_launch(&mut self, t: usize) {
        let Some(s) = self.work_stream() else { return };
        let g = self.rng.pick(&["g0", "g1"]).to_string();
        let r = self.parts(&[MemKind::Dev, MemKind::Pinned], 1);
        let w = self.parts(&[MemKind::Dev], 2);
        let (writes, may_write, atomic) = self.known_and_guessed(&w);
        let act = Act::GraphLaunch {
            s: self.name(s),
            g: g.clone(),
            r: r.clone(),
            w: writes,
            may_write,
            atomic,
        };
        let captured = self.streams[s].capture.is_some();
        if !captured
            && let Some((_, earlier)) = self.graphs.iter().rev().find(|(name, _)| *name == g)
        {
            // The stream knows the earlier launch before its own action, so that `prepare` does not order what R49
            // orders.
            let earlier = earlier.clone();
            self.streams[s].clock.join(&earlier);
        }
        if self.work(t, s, &r, &w, act) && !captured {
            self.graphs.push((g, self.streams[s].clock.clone()));
        }
    }

    pub(super) fn host_access(&mut self, t: usize) {
        let kinds = [MemKind::Pinned, MemKind::Pageable, MemKind::Managed];
        let Some(b) = self.pick_buffer(&kinds) else {
            return;
        };
        let buf = self.part(b);
        let write = self.rng.percent(50);
        if !self.prepare(t, Target::Thread(t), &[(buf.clone(), write)]) {
            return;
        }
        let act = if write {
            Act::HostWrite { buf: buf.clone() }
        } else {
            Act::HostRead { buf: buf.clone() }
        };
        self.emit(t, act);
        let place = self.threads[t].place;
        self.touch(place, self.threads[t].clock.get(place), &buf, write);
    }

    pub(super) fn event_noise(&mut self, t: usize) {
        let Some(s) = self.pick_stream() else { return };
        match self.rng.below(10) {
            0..=3 => {
                let e = self.pick_event(self.streams[s].device);
                self.record(t, e, s);
            }
            4..=6 => {
                let e = self.rng.below(self.events.len());
                if self.events[e].record.is_some() || self.rng.percent(25) {
                    self.wait(t, s, e);
                }
            }
            7 if !self.any_capture() => {
                let e = self.rng.below(self.events.len());
                let by_query = self.rng.percent(50);
                self.sync_event(t, e, by_query);
            }
            8 => {
                let e = self.rng.below(self.events.len());
                self.events[e].record = None;
                let ev = self.events[e].name.clone();
                let act = if self.rng.percent(50) {
                    Act::CreateEvent { ev }
                } else {
                    Act::DestroyEvent { ev }
                };
                self.emit(t, act);
            }
            9 if !self.any_capture() => {
                let act = if self.rng.percent(50) {
                    let e = self.rng.below(self.events.len());
                    Act::QueryEvent {
                        ev: self.events[e].name.clone(),
                        ready: false,
                    }
                } else {
                    Act::QueryStream {
                        st: self.name(s),
                        ready: false,
                    }
                };
                self.emit(t, act);
            }
            _ => {
                if let Some(src) = self.pick_stream() {
                    self.wait_stream(t, s, src);
                }
            }
        }
    }

    pub(super) fn sync_noise(&mut self, t: usize) {
        if self.any_capture() {
            return;
        }
        if let Some(s) = self.pick_stream()
            && self.rng.percent(70)
        {
            self.sync_stream(t, s);
        } else {
            let device = self.device();
            self.sync_device(t, device);
        }
    }
}
