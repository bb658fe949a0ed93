//! Lifetimes of memory, streams and events.

use super::state::{Block, Clock, GEvent, Gen, Life, Target};
use crate::oracle::prog::{Act, EventKind, MemKind, Part, StreamKind};

impl Gen {
    pub(super) fn allocator(&mut self, t: usize) {
        let cached: Vec<usize> = (0..self.buffers.len())
            .filter(|&b| matches!(self.buffers[b].life, Life::Cached(_)))
            .collect();
        let choice = self.rng.below(10);
        if cached.is_empty() || choice < 2 || (choice < 4 && !self.blocks.is_empty()) {
            self.alloc(t);
            return;
        }
        let b = self.rng.pick(&cached);
        match choice {
            // The block is used, with a higher probability than other buffers.
            4 | 5 => {
                let Some(s) = self.pick_stream() else { return };
                let part = self.part(b);
                let (r, w) = if self.rng.percent(50) {
                    (vec![part], vec![])
                } else {
                    (vec![], vec![part])
                };
                let act = Act::Kernel {
                    s: self.name(s),
                    r: r.clone(),
                    w: w.clone(),
                    may_write: Vec::new(),
                    atomic: Vec::new(),
                    repeat: None,
                    programmatic: false,
                };
                self.work(t, s, &r, &w, act);
            }
            6 => {
                if let Some(s) = self.pick_stream() {
                    self.record_stream(t, b, s);
                }
            }
            _ => self.free(t, b),
        }
    }

    pub(super) fn record_stream(&mut self, t: usize, b: usize, s: usize) {
        if self.buffers[b].life != Life::Cached(Some(s)) && !self.buffers[b].noted.contains(&s) {
            self.buffers[b].noted.push(s);
        }
        let act = Act::RecordStream {
            buf: self.buffers[b].name.clone(),
            st: self.name(s),
        };
        self.emit(t, act);
    }

    pub(super) fn alloc(&mut self, t: usize) {
        if !self.blocks.is_empty() && self.rng.percent(75) {
            let at = self.rng.below(self.blocks.len());
            let block = self.blocks.remove(at);
            let under = block.buffer;
            let Life::Cached(home) = self.home_of_dead(under) else {
                return;
            };
            if home.is_some_and(|s| !self.usable(s)) {
                return;
            }
            let (mut lo, mut hi) = (block.lo, block.hi);
            if self.opt.ranges && hi - lo >= 8 && self.rng.percent(50) {
                // Half of the block; the other half may be handed out as well.
                let middle = lo + (hi - lo) / 2;
                let (mine, rest) = if self.rng.percent(50) {
                    ((lo, middle), (middle, hi))
                } else {
                    ((middle, hi), (lo, middle))
                };
                self.blocks.push(Block {
                    buffer: under,
                    lo: rest.0,
                    hi: rest.1,
                });
                (lo, hi) = mine;
            }
            let whole = lo == 0 && hi == self.buffers[under].size;
            let mem = self.buffers[under].mem;
            let b = self.new_buffer(mem, Some((under, lo, hi)));
            self.buffers[b].life = Life::Cached(home);
            let after_events = if self.buffers[under].had_events {
                self.rng.percent(85)
            } else {
                self.rng.percent(10)
            };
            let act = Act::Alloc {
                buf: self.buffers[b].name.clone(),
                s: home.map(|s| self.name(s)),
                over: Some(Part {
                    buf: self.buffers[under].name.clone(),
                    range: (!whole).then_some((lo, hi)),
                }),
                after_events,
            };
            self.emit(t, act);
            if after_events {
                let known = self.buffers[under].events_at_free.clone();
                self.threads[t].clock.join(&known);
            }
            return;
        }
        let pinned = self.opt.host_memory && self.rng.percent(25);
        let home = if pinned { None } else { self.pick_stream() };
        if !pinned && home.is_none() {
            return;
        }
        let b = self.new_buffer(
            if pinned {
                MemKind::Pinned
            } else {
                MemKind::Dev
            },
            None,
        );
        self.buffers[b].life = Life::Cached(home);
        let act = Act::Alloc {
            buf: self.buffers[b].name.clone(),
            s: home.map(|s| self.name(s)),
            over: None,
            after_events: false,
        };
        self.emit(t, act);
    }

    /// The home stream of a freed block is kept as the first of its users.
    pub(super) fn home_of_dead(&self, b: usize) -> Life {
        match self.buffers[b].mem {
            MemKind::Pinned => Life::Cached(None),
            _ => Life::Cached(self.buffers[b].users.first().copied()),
        }
    }

    pub(super) fn free(&mut self, t: usize, b: usize) {
        let Life::Cached(home) = self.buffers[b].life else {
            return;
        };
        let mut users = self.buffers[b].users.clone();
        users.sort_unstable();
        users.dedup();
        for s in users {
            if Some(s) == home || !self.usable(s) || !self.rng.percent(self.opt.care) {
                continue;
            }
            match home {
                Some(home) if self.usable(home) && self.rng.percent(30) => {
                    self.wait_stream(t, home, s)
                }
                _ => self.record_stream(t, b, s),
            }
        }
        let noted = std::mem::take(&mut self.buffers[b].noted);
        if noted.iter().any(|&s| !self.usable(s)) {
            self.buffers[b].noted = noted;
            return;
        }
        let mut known = Clock::default();
        for &s in &noted {
            self.act_in(t, s);
            known.join(&self.streams[s].clock);
        }
        let buffer = &mut self.buffers[b];
        buffer.events_at_free = known;
        buffer.had_events = !noted.is_empty();
        buffer.life = Life::Dead;
        buffer.users = home.into_iter().collect();
        let (buf, hi) = (buffer.name.clone(), buffer.size);
        self.blocks.push(Block {
            buffer: b,
            lo: 0,
            hi,
        });
        self.emit(t, Act::Free { buf });
    }

    pub(super) fn lifetimes(&mut self, t: usize) {
        match self.rng.below(10) {
            0..=2 => {
                let Some(s) = self.pick_stream() else { return };
                let b = self.new_buffer(MemKind::Dev, None);
                self.buffers[b].life = Life::MallocAsync;
                let buf = self.buffers[b].name.clone();
                let tick = self.act_in(t, s);
                self.touch(self.streams[s].place, tick, &Part::whole(&buf), true);
                let s = self.name(s);
                self.emit(t, Act::MallocAsync { buf, s });
            }
            3 => {
                let managed = self.rng.percent(30);
                let b = self.new_buffer(
                    if managed {
                        MemKind::Managed
                    } else {
                        MemKind::Dev
                    },
                    None,
                );
                let buf = self.buffers[b].name.clone();
                self.emit(t, Act::CudaMalloc { buf });
            }
            4..=6 => {
                let Some(b) = self.one_with_life(Life::MallocAsync, &[MemKind::Dev]) else {
                    return;
                };
                let Some(s) = self.pick_stream() else { return };
                let buf = self.buffers[b].name.clone();
                let act = Act::FreeAsync {
                    buf: buf.clone(),
                    s: self.name(s),
                };
                if self.work(t, s, &[], &[Part::whole(&buf)], act) {
                    self.buffers[b].life = Life::Dead;
                }
            }
            7 | 8 => {
                let life = self.rng.pick(&[Life::Plain, Life::MallocAsync]);
                let Some(b) = self.one_with_life(life, &[MemKind::Dev, MemKind::Managed]) else {
                    return;
                };
                self.end_on_host(t, b, false);
            }
            _ => {
                if let Some(b) = self.one_with_life(Life::Plain, &[MemKind::Pinned]) {
                    self.end_on_host(t, b, true);
                }
            }
        }
    }

    pub(super) fn one_with_life(&mut self, life: Life, kinds: &[MemKind]) -> Option<usize> {
        let those: Vec<usize> = (0..self.buffers.len())
            .filter(|&b| self.buffers[b].life == life && kinds.contains(&self.buffers[b].mem))
            .collect();
        (!those.is_empty()).then(|| self.rng.pick(&those))
    }

    pub(super) fn end_on_host(&mut self, t: usize, b: usize, pinned: bool) {
        let buf = self.buffers[b].name.clone();
        let part = Part::whole(&buf);
        if !self.prepare(t, Target::Thread(t), &[(part.clone(), true)]) {
            return;
        }
        let act = if pinned {
            Act::FreePinned { buf }
        } else {
            Act::CudaFree { buf }
        };
        self.emit(t, act);
        let place = self.threads[t].place;
        self.touch(place, self.threads[t].clock.get(place), &part, true);
        self.buffers[b].life = Life::Dead;
    }

    pub(super) fn stream_lifetime(&mut self, t: usize) {
        let gone: Vec<usize> = (0..self.streams.len())
            .filter(|&s| !self.streams[s].alive && self.streams[s].name.is_some())
            .collect();
        if !gone.is_empty() && self.rng.percent(60) {
            let old = self.rng.pick(&gone);
            let name = self.streams[old].name.take();
            let (kind, device) = (self.streams[old].kind, self.streams[old].device);
            let st = name.clone().expect("filtered");
            self.new_stream(name, kind, device);
            self.emit(t, Act::CreateStream { st });
            return;
        }
        let Some(s) = self.pick_stream() else { return };
        let default = matches!(
            self.streams[s].kind,
            StreamKind::Legacy | StreamKind::PerThread
        );
        let in_use = self.buffers.iter().any(|b| {
            b.noted.contains(&s)
                || b.life == Life::Cached(Some(s))
                || (b.life == Life::Dead && b.users.first() == Some(&s))
        });
        let from_pool = self.name(s).starts_with('p');
        if default || in_use || from_pool {
            return;
        }
        let st = self.name(s);
        self.streams[s].alive = false;
        self.emit(t, Act::DestroyStream { st: st.clone() });
        if self.rng.percent(50) {
            let (kind, device) = (self.streams[s].kind, self.streams[s].device);
            let name = self.streams[s].name.take();
            self.new_stream(name, kind, device);
            self.emit(t, Act::CreateStream { st });
        }
    }

    /// Takes the time between two recorded events with timing on one device, known to be complete if care is taken.
    pub(super) fn elapsed(&mut self, t: usize) {
        if self.any_capture() {
            return;
        }
        let Some(s) = self.pick_stream() else { return };
        let device = self.streams[s].device;
        let usable = |e: &GEvent| match e.kind {
            EventKind::NoTiming => false,
            EventKind::Device(d) => d == device,
            EventKind::Plain => true,
        };
        let fitting: Vec<usize> = (0..self.events.len())
            .filter(|&e| usable(&self.events[e]))
            .collect();
        if fitting.is_empty() {
            return;
        }
        let (a, b) = (self.rng.pick(&fitting), self.rng.pick(&fitting));
        for e in [a, b] {
            let recorded = self.events[e]
                .record
                .as_ref()
                .is_some_and(|r| r.3 == device);
            if !recorded {
                self.record(t, e, s);
            }
        }
        for e in [a, b] {
            let (_, place, tick, _) = self.events[e].record.clone().expect("just recorded");
            if self.threads[t].clock.get(place) < tick && self.rng.percent(self.opt.care.min(85)) {
                let by_query = self.rng.percent(40);
                self.sync_event(t, e, by_query);
            }
        }
        let act = Act::Elapsed {
            a: self.events[a].name.clone(),
            b: self.events[b].name.clone(),
        };
        self.emit(t, act);
    }

    pub(super) fn pool(&mut self) {
        for i in 0..1 + self.rng.below(2) {
            let count = self.rng.pick(&[2, 5, 31, 32, 33, 34]);
            let (first, last) = (format!("p{i}a"), format!("p{i}b"));
            self.new_stream(Some(first.clone()), StreamKind::NonBlocking, 0);
            self.new_stream(Some(last.clone()), StreamKind::NonBlocking, 0);
            self.emit(0, Act::PoolGet { count, first, last });
        }
    }
}
