//! Captures.

use super::state::{GCapture, Gen};
use crate::oracle::prog::{Act, StreamKind};

impl Gen {
    /// Returns a stream on which a capture may begin.
    pub(super) fn capturable(&mut self, kind: impl Fn(StreamKind) -> bool) -> Option<usize> {
        let those: Vec<usize> = (0..self.streams.len())
            .filter(|&s| {
                let pool = self.streams[s]
                    .name
                    .as_ref()
                    .is_some_and(|n| n.starts_with('p'));
                self.usable(s)
                    && self.streams[s].kind != StreamKind::Legacy
                    && kind(self.streams[s].kind)
                    && !pool
            })
            .collect();
        (!those.is_empty()).then(|| self.rng.pick(&those))
    }

    pub(super) fn begin_capture(&mut self, t: usize) {
        if let Some(s) = self.capturable(|_| true) {
            self.begin_on(t, s);
        }
    }

    pub(super) fn begin_on(&mut self, t: usize, s: usize) {
        self.captures.push(GCapture {
            origin: s,
            thread: t,
            running: true,
            dirty: Vec::new(),
            events: Vec::new(),
        });
        self.streams[s].capture = Some(self.captures.len() - 1);
        let s = self.name(s);
        self.emit(t, Act::BeginCapture { s });
    }

    pub(super) fn captured_work(&mut self, s: usize) {
        let c = self.streams[s].capture.expect("the stream captures");
        if self.captures[c].origin != s && !self.captures[c].dirty.contains(&s) {
            self.captures[c].dirty.push(s);
        }
    }

    /// Joins captured stream `from` into `to`, which is pulled into the capture if it does not capture yet.
    pub(super) fn capture_join(&mut self, t: usize, from: usize, to: usize) {
        let c = self.streams[from].capture.expect("the stream captures");
        if self.rng.percent(50) {
            let act = Act::WaitStream {
                s: self.name(to),
                src: self.name(from),
            };
            self.emit(t, act);
        } else {
            let ev = format!("c{}", self.serial());
            self.captures[c].events.push(ev.clone());
            let (from, to) = (self.name(from), self.name(to));
            self.emit(
                t,
                Act::Record {
                    ev: ev.clone(),
                    s: from,
                },
            );
            self.emit(t, Act::Wait { s: to, ev });
        }
        self.streams[to].capture = Some(c);
        let was_dirty = self.captures[c].dirty.contains(&from);
        self.captures[c].dirty.retain(|&d| d != from);
        if was_dirty && to != self.captures[c].origin && !self.captures[c].dirty.contains(&to) {
            self.captures[c].dirty.push(to);
        }
    }

    pub(super) fn capture_step(&mut self, t: usize) {
        let Some(from) = self.pick_captured() else {
            return;
        };
        let c = self.streams[from].capture.expect("picked");
        match self.rng.below(10) {
            0..=2 => {
                if let Some(to) = self.capturable(|_| true) {
                    self.capture_join(t, from, to);
                    if self.rng.percent(70) {
                        self.kernel_on(t, to);
                    }
                }
            }
            3 | 4 => {
                let members: Vec<usize> = (0..self.streams.len())
                    .filter(|&s| self.streams[s].capture == Some(c) && s != from)
                    .collect();
                if !members.is_empty() {
                    let to = self.rng.pick(&members);
                    self.capture_join(t, from, to);
                }
            }
            5 if !self.captures[c].events.is_empty() => {
                // Waits for an old event of the same capture once more.
                let events = self.captures[c].events.clone();
                let act = Act::Wait {
                    s: self.name(from),
                    ev: self.rng.pick(&events),
                };
                self.emit(t, act);
            }
            6 if self.captures.iter().filter(|c| c.running).count() < 2 => self.begin_capture(t),
            _ => self.end_capture(c),
        }
    }

    pub(super) fn end_capture(&mut self, c: usize) {
        let (t, origin) = (self.captures[c].thread, self.captures[c].origin);
        while let Some(&from) = self.captures[c].dirty.first() {
            self.capture_join(t, from, origin);
        }
        self.captures[c].running = false;
        for s in &mut self.streams {
            if s.capture == Some(c) {
                s.capture = None;
            }
        }
        let s = self.name(origin);
        self.emit(t, Act::EndCapture { s });
    }
}
