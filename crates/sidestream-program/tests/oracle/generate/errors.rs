//! Calls that fail.

use super::state::Gen;
use crate::oracle::prog::{Act, EventKind, MemKind, Part, StreamKind};

impl Gen {
    /// Returns a stream in an active capture, which is begun now if there is none.
    pub(super) fn some_capture(
        &mut self,
        t: usize,
        kind: impl Fn(StreamKind) -> bool,
    ) -> Option<usize> {
        let captured: Vec<usize> = (0..self.streams.len())
            .filter(|&s| self.streams[s].capture.is_some() && kind(self.streams[s].kind))
            .collect();
        if !captured.is_empty() {
            return Some(self.rng.pick(&captured));
        }
        let s = self.capturable(kind)?;
        self.begin_on(t, s);
        if self.rng.percent(50) {
            self.kernel_on(t, s);
        }
        Some(s)
    }

    /// Emits a call that fails. Returns false if that was not possible.
    pub(super) fn inject_error(&mut self) -> bool {
        let t = self.thread();
        let act = match self.rng.below(18) {
            16 | 17 => self.error_implicit(t),
            0 => self.error_begin_legacy(),
            1 | 2 => self.error_sync_capturing(t),
            3..=5 => self.error_implicit(t),
            6 => self.error_isolation(t),
            7 => self.error_merge(t),
            8 | 9 => self.error_unjoined(t),
            10 | 14 => self.error_unmatched(t),
            11 => self.error_wrong_thread(t),
            12 => self.error_captured_event(t),
            13 => self.error_record_device(t),
            _ => self.error_elapsed(t),
        };
        match act {
            Some((t, act)) => {
                self.emit(t, act);
                true
            }
            None => false,
        }
    }

    pub(super) fn named_legacy(&mut self) -> Option<usize> {
        let those: Vec<usize> = (0..self.opt.devices as usize)
            .filter(|&s| self.streams[s].name.is_some())
            .collect();
        (!those.is_empty()).then(|| self.rng.pick(&those))
    }

    pub(super) fn error_begin_legacy(&mut self) -> Option<(usize, Act)> {
        let s = self.named_legacy()?;
        Some((self.thread(), Act::BeginCapture { s: self.name(s) }))
    }

    pub(super) fn error_sync_capturing(&mut self, t: usize) -> Option<(usize, Act)> {
        let s = self.some_capture(t, |_| true)?;
        let st = self.name(s);
        let caller = self.thread();
        let device = self.streams[s].device;
        Some((
            caller,
            match self.rng.below(4) {
                0 => Act::SyncStream { st },
                1 => Act::QueryStream { st, ready: true },
                2 => Act::QueryStream { st, ready: false },
                _ => Act::SyncDevice { dev: Some(device) },
            },
        ))
    }

    pub(super) fn error_implicit(&mut self, t: usize) -> Option<(usize, Act)> {
        let s = self.some_capture(t, StreamKind::is_blocking)?;
        let device = self.streams[s].device;
        let legacy = device as usize;
        let caller = self.thread();
        let buf = Part::whole(&self.buffers[0].name.clone());
        let named = self.streams[legacy].name.clone();
        let Some(d) = named.filter(|_| self.rng.percent(80)) else {
            if self.threads[caller].device != device {
                self.set_device(caller, device);
            }
            if self.rng.percent(50) {
                return Some((caller, Act::Memset { to: buf }));
            }
            let other = self.new_buffer(MemKind::Pinned, None);
            let from = Part::whole(&self.buffers[other].name);
            return Some((caller, Act::Copy { from, to: buf }));
        };
        let n = self.serial();
        let ev = format!("e_{n}");
        Some((
            caller,
            match self.rng.below(9) {
                0 => Act::Kernel {
                    s: d,
                    r: vec![buf],
                    w: Vec::new(),
                    may_write: Vec::new(),
                    atomic: Vec::new(),
                    repeat: None,
                    programmatic: false,
                },
                1 => Act::MemsetAsync { s: d, to: buf },
                2 => Act::Record { ev, s: d },
                3 => Act::Wait { s: d, ev },
                4 => Act::SyncStream { st: d },
                5 => Act::QueryStream {
                    st: d,
                    ready: false,
                },
                6 => Act::HostFunc {
                    s: d,
                    r: Vec::new(),
                    w: Vec::new(),
                    sets: None,
                },
                7 => Act::WaitStream {
                    s: d.clone(),
                    src: d,
                },
                _ => Act::GraphLaunch {
                    s: d,
                    g: "g0".to_string(),
                    r: Vec::new(),
                    w: Vec::new(),
                    may_write: Vec::new(),
                    atomic: Vec::new(),
                },
            },
        ))
    }

    pub(super) fn error_isolation(&mut self, t: usize) -> Option<(usize, Act)> {
        let outside = self.capturable(|_| true)?;
        let e = self.pick_event(self.streams[outside].device);
        if self.events[e].record.is_none() {
            self.record(t, e, outside);
        }
        let s = self.some_capture(t, |_| true)?;
        if self.usable(outside) && self.rng.percent(40) {
            return Some((
                t,
                Act::WaitStream {
                    s: self.name(s),
                    src: self.name(outside),
                },
            ));
        }
        Some((
            t,
            Act::Wait {
                s: self.name(s),
                ev: self.events[e].name.clone(),
            },
        ))
    }

    pub(super) fn error_merge(&mut self, t: usize) -> Option<(usize, Act)> {
        let first = self.some_capture(t, |_| true)?;
        let second = self.capturable(|_| true)?;
        self.begin_on(t, second);
        self.kernel_on(t, second);
        if self.rng.percent(50) {
            return Some((
                t,
                Act::WaitStream {
                    s: self.name(first),
                    src: self.name(second),
                },
            ));
        }
        let ev = format!("c{}", self.serial());
        let act = Act::Record {
            ev: ev.clone(),
            s: self.name(second),
        };
        self.emit(t, act);
        Some((
            t,
            Act::Wait {
                s: self.name(first),
                ev,
            },
        ))
    }

    pub(super) fn error_unjoined(&mut self, t: usize) -> Option<(usize, Act)> {
        let s = self.some_capture(t, |_| true)?;
        let c = self.streams[s].capture.expect("it captures");
        let origin = self.captures[c].origin;
        let fork = self.capturable(|_| true)?;
        self.capture_join(t, origin, fork);
        self.kernel_on(t, fork);
        Some((
            self.captures[c].thread,
            Act::EndCapture {
                s: self.name(origin),
            },
        ))
    }

    pub(super) fn error_unmatched(&mut self, t: usize) -> Option<(usize, Act)> {
        if self.rng.percent(60)
            && let Some(s) = self.some_capture(t, |_| true)
        {
            let fork = self.capturable(|_| true)?;
            self.capture_join(t, s, fork);
            return Some((t, Act::EndCapture { s: self.name(fork) }));
        }
        let s = self.pick_stream()?;
        Some((t, Act::EndCapture { s: self.name(s) }))
    }

    pub(super) fn error_wrong_thread(&mut self, t: usize) -> Option<(usize, Act)> {
        if self.opt.threads < 2 {
            return None;
        }
        let s = self.some_capture(t, |_| true)?;
        let c = self.streams[s].capture.expect("it captures");
        while let Some(&from) = self.captures[c].dirty.first() {
            self.capture_join(t, from, self.captures[c].origin);
        }
        let other = (self.captures[c].thread + 1) % self.opt.threads;
        let s = self.name(self.captures[c].origin);
        Some((other, Act::EndCapture { s }))
    }

    pub(super) fn error_captured_event(&mut self, t: usize) -> Option<(usize, Act)> {
        let s = self.some_capture(t, |_| true)?;
        let ev = format!("c{}", self.serial());
        let act = Act::Record {
            ev: ev.clone(),
            s: self.name(s),
        };
        self.emit(t, act);
        let caller = self.thread();
        Some((
            caller,
            match self.rng.below(3) {
                0 => Act::SyncEvent { ev },
                1 => Act::QueryEvent { ev, ready: true },
                _ => Act::QueryEvent { ev, ready: false },
            },
        ))
    }

    pub(super) fn error_record_device(&mut self, t: usize) -> Option<(usize, Act)> {
        if self.opt.devices < 2 {
            return None;
        }
        let s = self.capturable(|_| true)?;
        let wrong = (self.streams[s].device + 1) % self.opt.devices;
        let ev = format!("e_{}", self.serial());
        self.new_event(ev.clone(), EventKind::Device(wrong));
        Some((
            t,
            Act::Record {
                ev,
                s: self.name(s),
            },
        ))
    }

    pub(super) fn error_elapsed(&mut self, t: usize) -> Option<(usize, Act)> {
        if self.any_capture() {
            return None;
        }
        let s = self.pick_stream()?;
        let e = self.pick_event(self.streams[s].device);
        self.record(t, e, s);
        let good = self.events[e].name.clone();
        let bad = format!("e_{}", self.serial());
        match self.rng.below(3) {
            // Never recorded.
            0 => {}
            1 => {
                let e = self.new_event(bad.clone(), EventKind::NoTiming);
                self.record(t, e, s);
            }
            _ => {
                let device = self.streams[s].device;
                let other = (0..self.streams.len())
                    .find(|&s| self.usable(s) && self.streams[s].device != device)?;
                let e = self.new_event(bad.clone(), EventKind::Plain);
                self.record(t, e, other);
            }
        }
        let (a, b) = if self.rng.percent(50) {
            (good, bad)
        } else {
            (bad, good)
        };
        Some((t, Act::Elapsed { a, b }))
    }
}
