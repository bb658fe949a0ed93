//! Emits ops, chooses what they name, and orders them after what they conflict with.

use super::state::{Clock, GAccess, Gen, Life, Owner, Raised, Target};
use crate::oracle::prog::{Act, EventKind, MemKind, Op, Part, StreamKind};

impl Gen {
    // --- emitting ---------------------------------------------------------------------------------------------------

    /// Appends an op. The caller has already updated the clocks, or does so afterwards.
    pub(super) fn emit(&mut self, t: usize, act: Act) {
        let is_sync = matches!(
            act,
            Act::SyncStream { .. } | Act::SyncEvent { .. } | Act::SyncDevice { .. }
        );
        let site = (self.opt.sites && self.rng.percent(if is_sync { 75 } else { 40 })).then(|| {
            let names = if is_sync {
                ["wait", "wait", "finish"]
            } else {
                ["render", "draw", "upload"]
            };
            self.rng.pick(&names).to_string()
        });
        let thread = self.threads[t].name.clone();
        self.prog.ops.push(Op { thread, site, act });
        let place = self.threads[t].place;
        self.threads[t].clock.tick(place);
    }

    pub(super) fn name(&self, s: usize) -> String {
        self.streams[s]
            .name
            .clone()
            .expect("an unnamed stream is not used by name")
    }

    /// Adds an action of thread `t` in stream `s` to what the stream knows. Returns the tick of the action.
    pub(super) fn act_in(&mut self, t: usize, s: usize) -> u32 {
        let mut clock = self.streams[s].clock.clone();
        clock.join(&self.threads[t].clock);
        clock.join(&self.implied(s));
        let place = self.streams[s].place;
        clock.tick(place);
        let tick = clock.get(place);
        self.streams[s].clock = clock;
        tick
    }

    /// Returns what an action in the stream learns from the legacy rule.
    pub(super) fn implied(&self, s: usize) -> Clock {
        let mut clock = Clock::default();
        let stream = &self.streams[s];
        if stream.kind == StreamKind::Legacy {
            for other in &self.streams {
                if other.device == stream.device && other.kind.is_blocking() {
                    clock.join(&other.clock);
                }
            }
        } else if stream.kind.is_blocking() {
            clock.join(&self.streams[stream.device as usize].clock);
        }
        clock
    }

    /// Returns what a host thread learns from a sync of the stream.
    pub(super) fn sync_clock(&self, s: usize) -> Clock {
        let mut clock = self.streams[s].clock.clone();
        if self.streams[s].kind == StreamKind::Legacy {
            clock.join(&self.implied(s));
        }
        clock
    }

    /// Records an access at a place.
    pub(super) fn touch(&mut self, place: usize, tick: u32, part: &Part, write: bool) {
        let b = self.buffer_named(&part.buf);
        let (lo, hi) = part.range.unwrap_or((0, self.buffers[b].size));
        let (region, base) = (self.buffers[b].region, self.buffers[b].base);
        if let Owner::Stream(s) = self.owners[place] {
            self.buffers[b].users.push(s);
        }
        self.regions[region].push(GAccess {
            place,
            tick,
            write,
            lo: base + lo,
            hi: base + hi,
        });
    }

    pub(super) fn buffer_named(&self, name: &str) -> usize {
        self.buffers
            .iter()
            .position(|b| b.name == name)
            .expect("a known buffer")
    }

    // --- choosing ---------------------------------------------------------------------------------------------------

    pub(super) fn thread(&mut self) -> usize {
        self.rng.below(self.opt.threads)
    }

    pub(super) fn any_capture(&self) -> bool {
        self.captures.iter().any(|c| c.running)
    }

    /// Returns whether the legacy stream of the device may be used now.
    pub(super) fn legacy_ok(&self, device: u32) -> bool {
        !self
            .streams
            .iter()
            .any(|s| s.device == device && s.kind.is_blocking() && s.capture.is_some())
    }

    /// Returns whether ops may name the stream as one that does not capture.
    pub(super) fn usable(&self, s: usize) -> bool {
        let stream = &self.streams[s];
        stream.alive
            && stream.name.is_some()
            && stream.capture.is_none()
            && (stream.kind != StreamKind::Legacy || self.legacy_ok(stream.device))
    }

    pub(super) fn pick_stream(&mut self) -> Option<usize> {
        let usable: Vec<usize> = (0..self.streams.len())
            .filter(|&s| self.usable(s))
            .collect();
        (!usable.is_empty()).then(|| self.rng.pick(&usable))
    }

    pub(super) fn pick_captured(&mut self) -> Option<usize> {
        let captured: Vec<usize> = (0..self.streams.len())
            .filter(|&s| self.streams[s].capture.is_some())
            .collect();
        (!captured.is_empty()).then(|| self.rng.pick(&captured))
    }

    pub(super) fn pick_buffer(&mut self, kinds: &[MemKind]) -> Option<usize> {
        let live: Vec<usize> = (0..self.buffers.len())
            .filter(|&b| self.buffers[b].life != Life::Dead && kinds.contains(&self.buffers[b].mem))
            .collect();
        (!live.is_empty()).then(|| self.rng.pick(&live))
    }

    pub(super) fn part(&mut self, b: usize) -> Part {
        let name = self.buffers[b].name.clone();
        let size = self.buffers[b].size;
        if !self.opt.ranges || self.rng.percent(50) {
            return Part::whole(&name);
        }
        let quarter = size / 4;
        let lo = self.rng.below(4) as u64;
        let hi = if self.rng.percent(6) {
            lo
        } else {
            lo + 1 + self.rng.below(4 - usize::try_from(lo).expect("small")) as u64
        };
        let nudge = u64::from(quarter > 1 && lo < hi && self.rng.percent(20));
        Part {
            buf: name,
            range: Some((lo * quarter + nudge, hi * quarter)),
        }
    }

    pub(super) fn parts(&mut self, kinds: &[MemKind], most: usize) -> Vec<Part> {
        let count = self.rng.below(most + 1);
        (0..count)
            .filter_map(|_| {
                let b = self.pick_buffer(kinds)?;
                Some(self.part(b))
            })
            .collect()
    }

    /// Returns an event that may be recorded in the stream and was not recorded in a capture.
    pub(super) fn pick_event(&mut self, device: u32) -> usize {
        let fitting: Vec<usize> = (0..self.events.len())
            .filter(|&e| match self.events[e].kind {
                EventKind::Device(d) => d == device,
                _ => true,
            })
            .collect();
        if fitting.is_empty() {
            let n = self.serial();
            return self.new_event(format!("e_{n}"), EventKind::Plain);
        }
        self.rng.pick(&fitting)
    }

    // --- ordering ---------------------------------------------------------------------------------------------------

    /// Orders accesses after those that conflict with them, as far as care is taken. Returns false if they should be
    /// ordered and cannot be now.
    pub(super) fn prepare(&mut self, t: usize, target: Target, parts: &[(Part, bool)]) -> bool {
        for (part, write) in parts {
            let b = self.buffer_named(&part.buf);
            let (lo, hi) = part.range.unwrap_or((0, self.buffers[b].size));
            let (region, base) = (self.buffers[b].region, self.buffers[b].base);
            let mut next = 0;
            while next < self.regions[region].len() {
                let a = &self.regions[region][next];
                next += 1;
                let conflict = (a.write || *write) && a.lo < base + hi && base + lo < a.hi;
                let (place, tick) = (a.place, a.tick);
                if !conflict || self.knows(t, target).get(place) >= tick {
                    continue;
                }
                if self.rng.percent(self.opt.care) && !self.order(t, target, place) {
                    return false;
                }
            }
        }
        true
    }

    pub(super) fn knows(&self, t: usize, target: Target) -> Clock {
        let mut clock = self.threads[t].clock.clone();
        match target {
            Target::Thread(t) => clock.join(&self.threads[t].clock),
            Target::Stream(s) => {
                clock.join(&self.streams[s].clock);
                clock.join(&self.implied(s));
            }
            Target::Upload(device) => clock.join(&self.sync_clock(device as usize)),
        }
        clock
    }

    /// Emits something that orders `target` after everything that happened at `place`.
    pub(super) fn order(&mut self, t: usize, target: Target, place: usize) -> bool {
        match self.owners[place] {
            Owner::Thread(other) => {
                if other != t {
                    let flag = self.lowered_flag();
                    self.flag(other, t, flag);
                }
                true
            }
            Owner::Stream(q) => {
                let quiet = !self.any_capture();
                let mut ways: Vec<u32> = Vec::new();
                if self.usable(q) {
                    if let Target::Stream(s) = target
                        && self.usable(s)
                    {
                        ways.extend([0, 0, 0, 1, 1, 1]);
                        let both = self.streams[s].kind.is_blocking()
                            && self.streams[q].kind.is_blocking();
                        let device = self.streams[s].device;
                        if both && device == self.streams[q].device && self.usable(device as usize)
                        {
                            ways.extend([2, 2, 2]);
                        }
                    }
                    if quiet {
                        ways.extend([3, 4, 5, 5, 6]);
                    }
                    if self.opt.host_funcs {
                        ways.push(7);
                    }
                    if quiet
                        && self.streams[q].kind.is_blocking()
                        && self.usable(self.streams[q].device as usize)
                    {
                        ways.push(8);
                    }
                }
                if quiet {
                    ways.push(6);
                }
                if ways.is_empty() {
                    return false;
                }
                let way = self.rng.pick(&ways);
                self.order_by(way, t, target, q);
                true
            }
        }
    }

    pub(super) fn order_by(&mut self, way: u32, t: usize, target: Target, q: usize) {
        match (way, target) {
            (0, Target::Stream(s)) => self.wait_stream(t, s, q),
            (1, Target::Stream(s)) => {
                let e = self.pick_event(self.streams[q].device);
                self.record(t, e, q);
                self.wait(t, s, e);
            }
            (2, Target::Stream(s)) => {
                let legacy = self.streams[s].device as usize;
                let e = self.pick_event(self.streams[q].device);
                self.record(t, e, legacy);
            }
            (3, _) => self.sync_stream(t, q),
            (4, _) => {
                let st = self.name(q);
                self.emit(t, Act::QueryStream { st, ready: true });
                let known = self.sync_clock(q);
                self.threads[t].clock.join(&known);
            }
            (5, _) => {
                let e = self.pick_event(self.streams[q].device);
                self.record(t, e, q);
                let by_query = self.rng.percent(40);
                self.sync_event(t, e, by_query);
            }
            (7, _) => {
                let flag = self.lowered_flag();
                self.act_in(t, q);
                self.raise(&flag, self.streams[q].clock.clone());
                let s = self.name(q);
                self.emit(
                    t,
                    Act::HostFunc {
                        s,
                        r: Vec::new(),
                        w: Vec::new(),
                        sets: Some(flag.clone()),
                    },
                );
                self.wait_flag(t, &flag);
            }
            (8, _) => self.sync_stream(t, self.streams[q].device as usize),
            _ => self.sync_device(t, self.streams[q].device),
        }
    }

    pub(super) fn flag_name(&mut self) -> String {
        if !self.flags.is_empty() && self.rng.percent(15) {
            let at = self.rng.below(self.flags.len());
            return self.flags[at].clone();
        }
        format!("f{}", self.serial())
    }

    /// Returns a flag that is not raised, so that a wait for it waits for its next raise.
    pub(super) fn lowered_flag(&mut self) -> String {
        let flag = self.flag_name();
        let is_up = self
            .raised
            .get(&flag)
            .is_some_and(|raised| !raised.is_taken);
        match is_up {
            true => format!("f{}", self.serial()),
            false => flag,
        }
    }

    pub(super) fn flag(&mut self, from: usize, to: usize, flag: String) {
        self.raise(&flag, self.threads[from].clock.clone());
        self.emit(from, Act::SetFlag { flag: flag.clone() });
        self.wait_flag(to, &flag);
    }

    pub(super) fn raise(&mut self, flag: &str, clock: Clock) {
        self.flags.push(flag.to_string());
        match self.raised.get_mut(flag) {
            Some(raised) if !raised.is_taken => raised.clock.meet(&clock),
            _ => {
                let is_taken = false;
                self.raised
                    .insert(flag.to_string(), Raised { clock, is_taken });
            }
        }
    }

    pub(super) fn wait_flag(&mut self, t: usize, flag: &str) {
        let raised = self.raised.get_mut(flag).expect("raised further up");
        raised.is_taken = true;
        let known = raised.clock.clone();
        self.emit(
            t,
            Act::WaitFlag {
                flag: flag.to_string(),
            },
        );
        self.threads[t].clock.join(&known);
    }

    pub(super) fn wait_stream(&mut self, t: usize, s: usize, src: usize) {
        self.act_in(t, src);
        let known = self.streams[src].clock.clone();
        self.act_in(t, s);
        self.streams[s].clock.join(&known);
        let act = Act::WaitStream {
            s: self.name(s),
            src: self.name(src),
        };
        self.emit(t, act);
    }

    pub(super) fn record(&mut self, t: usize, e: usize, s: usize) {
        let tick = self.act_in(t, s);
        let stream = &self.streams[s];
        self.events[e].record = Some((stream.clock.clone(), stream.place, tick, stream.device));
        let act = Act::Record {
            ev: self.events[e].name.clone(),
            s: self.name(s),
        };
        self.emit(t, act);
    }

    pub(super) fn wait(&mut self, t: usize, s: usize, e: usize) {
        if let Some((known, ..)) = self.events[e].record.clone() {
            self.act_in(t, s);
            self.streams[s].clock.join(&known);
        }
        let act = Act::Wait {
            s: self.name(s),
            ev: self.events[e].name.clone(),
        };
        self.emit(t, act);
    }

    pub(super) fn sync_stream(&mut self, t: usize, s: usize) {
        let st = self.name(s);
        self.emit(t, Act::SyncStream { st });
        let known = self.sync_clock(s);
        self.threads[t].clock.join(&known);
    }

    pub(super) fn sync_event(&mut self, t: usize, e: usize, by_query: bool) {
        let ev = self.events[e].name.clone();
        let act = if by_query {
            Act::QueryEvent { ev, ready: true }
        } else {
            Act::SyncEvent { ev }
        };
        self.emit(t, act);
        if let Some((known, ..)) = self.events[e].record.clone() {
            self.threads[t].clock.join(&known);
        }
    }

    pub(super) fn sync_device(&mut self, t: usize, device: u32) {
        let named = self.threads[t].device != device || self.rng.percent(40);
        self.emit(
            t,
            Act::SyncDevice {
                dev: named.then_some(device),
            },
        );
        for s in 0..self.streams.len() {
            if self.streams[s].device == device {
                let known = self.streams[s].clock.clone();
                self.threads[t].clock.join(&known);
            }
        }
    }
}
