//! Finds the places where the host blocks again and again, and whether each wait was needed.
//!
//! A read that blocks implicitly (`.item()`, `.cpu()`, `print`) waits for a value that could often be read a step
//! later. An explicit wait has a reason, which the calls after it show: a time is taken, a result is read, memory
//! that a copy used is reused, an object is handed to another thread. Only a wait without an observed reason gets a
//! remark, and never one after which the device still has kernels to run, since the device was not idle.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};

use indexmap::IndexMap;
use serde_json::{Value, json};
use sidestream::check::Findings;
use sidestream::op::{BufferId, OpId, StreamId};

use super::names::Names;
use super::spine::Site;

/// The number of times that the host must block at a place before it gets a remark.
const OFTEN: u32 = 3;
/// The number of a place's waits whose reason may still be observed.
const MOST_OPEN: usize = 64;
/// The number of pieces of host memory whose last copy, and the wait for it, are remembered.
const MOST_COPIES: usize = 4096;

/// How the host blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// In a read that needs the value.
    Read,
    /// In the download of a tensor.
    Download,
    /// Inside a call that blocks for its own purposes, or that is reported as another call.
    Inside,
    /// In `synchronize` of a stream or the device.
    Stream,
    /// In `synchronize` of an event.
    Event,
}

impl How {
    /// How the host blocks in a synchronous copy.
    pub fn of_copy(down: bool) -> How {
        if down { How::Download } else { How::Inside }
    }

    /// How the host blocks in a wait that PyTorch reports now.
    pub fn told(self) -> How {
        if INSIDE.get() == 0 { self } else { How::Inside }
    }
}

/// A wait: its place, and its number there.
#[derive(Clone, Copy, Debug)]
struct Wait {
    place: usize,
    number: u32,
    /// The number of launches before the wait.
    launches: u64,
    /// Whether the device still had work afterwards, or the wait belongs to a loop that only waits.
    is_quiet: bool,
}

struct Place {
    site: Site,
    how: How,
    /// How often the host waited here.
    count: u32,
    /// How often the host waited here without an observed reason.
    idle: u32,
    /// The latest waits without an observed reason.
    open: VecDeque<u32>,
    /// The number of launches before the last wait.
    launches: Option<u64>,
    /// The first and the last wait that were counted since the last time measurement that included such waits.
    span: Option<(OpId, OpId)>,
    /// Whether a downloaded result was read after a wait.
    reads: bool,
}

/// The last copy of a piece of host memory.
struct Copy {
    stream: StreamId,
    step: u32,
    /// Whether the host waited for the copy, and the wait if it was an explicit one.
    waited: Option<Option<Wait>>,
}

/// All places where the host blocked.
#[derive(Default)]
pub struct Idle {
    /// By stack and operator.
    places: IndexMap<(u32, u32), Place>,
    /// The number of launches, without those of reads that block.
    launches: u64,
    /// The last explicit wait of each thread.
    last: HashMap<u32, Wait>,
    copies: HashMap<BufferId, Copy>,
}

thread_local! {
    /// The number of nested operators, or prints of tensors, in this thread: PyTorch reports the waits inside them,
    /// too.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// The sum of all threads' numbers.
static ALL_INSIDE: AtomicU32 = AtomicU32::new(0);

/// Whether another thread is inside a call that is reported as a whole.
pub fn is_another_inside() -> bool {
    ALL_INSIDE.load(Ordering::Relaxed) > INSIDE.get()
}

/// Marks that this thread enters, or leaves, a call that is reported as a whole.
pub fn inside(enters: bool) {
    let depth = INSIDE.get();
    if enters {
        ALL_INSIDE.fetch_add(1, Ordering::Relaxed);
    } else if depth > 0 {
        ALL_INSIDE.fetch_sub(1, Ordering::Relaxed);
    }
    INSIDE.set(if enters {
        depth.saturating_add(1)
    } else {
        depth.saturating_sub(1)
    });
}

impl Idle {
    /// Counts a launch.
    pub fn launched(&mut self) {
        self.launches += 1;
    }

    fn place(&mut self, site: Site, how: How) -> usize {
        let entry = self.places.entry((site.stack, site.name));
        let at = entry.index();
        entry.or_insert_with(|| Place {
            site,
            how,
            count: 0,
            idle: 0,
            open: VecDeque::new(),
            launches: None,
            span: None,
            reads: false,
        });
        at
    }

    /// Records a read that blocks.
    fn read(&mut self, site: Site, op: OpId, how: How) {
        // The read's own launch does not count as new work by the host.
        self.launches = self.launches.saturating_sub(1);
        let at = self.place(site, how);
        let behind = self.last.get(&site.thread).copied();
        let behind = behind.filter(|wait| wait.launches == self.launches);
        let mut counts = true;
        if let Some(wait) = behind {
            self.serves(wait);
            counts = !wait.is_quiet && self.places[at].launches != Some(self.launches);
        }
        let place = &mut self.places[at];
        place.launches = Some(self.launches);
        if counts {
            place.count = place.count.saturating_add(1);
            place.idle = place.idle.saturating_add(1);
            place.span = Some((place.span.map_or(op, |span| span.0), op));
        }
    }

    /// Records an explicit wait. `is_working` says whether the device still has kernels to run.
    fn waited(&mut self, site: Site, op: OpId, how: How, is_working: bool) -> Wait {
        let launches = self.launches;
        let at = self.place(site, how);
        let place = &mut self.places[at];
        let is_again = place.launches == Some(launches);
        let is_quiet = is_working || is_again;
        place.launches = Some(launches);
        if !is_again {
            place.count = place.count.saturating_add(1);
        }
        let number = op.0;
        if !is_quiet {
            place.idle = place.idle.saturating_add(1);
            place.open.push_back(number);
            if place.open.len() > MOST_OPEN {
                place.open.pop_front();
            }
        }
        let wait = Wait {
            place: at,
            number,
            launches,
            is_quiet,
        };
        self.last.insert(site.thread, wait);
        wait
    }

    /// Marks that the wait had a reason.
    fn serves(&mut self, wait: Wait) {
        let place = &mut self.places[wait.place];
        if let Some(at) = place.open.iter().position(|open| *open == wait.number) {
            place.open.remove(at);
            place.idle -= 1;
        }
    }

    /// The thread takes a time, from a clock or between two events.
    pub fn time_taken(&mut self, thread: u32) {
        // The host may have waited for several streams first.
        let launches = self.launches;
        for place in self.places.values_mut() {
            if place.launches == Some(launches) && !place.open.is_empty() {
                place.idle -= 1;
                place.open.pop_back();
            }
        }
        if let Some(wait) = self.last.get(&thread).copied() {
            self.serves(wait);
        }
    }

    /// The program took the time between the events that the calls `from` and `to` recorded: downloads between them are
    /// part of what was measured.
    pub fn measured(&mut self, from: OpId, to: OpId) {
        for place in (self.places.values_mut()).filter(|p| p.how == How::Download) {
            if place
                .span
                .is_some_and(|span| from <= span.0 && span.1 <= to)
            {
                (place.idle, place.span) = (0, None);
            }
        }
    }

    /// The thread hands an object to another one.
    pub fn handed_over(&mut self, thread: u32) {
        let wait = self.last.get(&thread).copied();
        if let Some(wait) = wait.filter(|wait| wait.launches == self.launches) {
            self.serves(wait);
        }
    }

    /// Host memory is used again, by the host or by another copy.
    pub fn host_used(&mut self, buffer: BufferId, writes: bool) {
        let copy = self.copies.get(&buffer);
        let Some(Some(Some(wait))) = copy.map(|copy| copy.waited) else {
            return;
        };
        let place = &mut self.places[wait.place];
        if writes || place.how == How::Event {
            self.serves(wait);
        } else {
            place.reads = true;
        }
    }

    /// The host blocked, in a call of the program or in a read. `is_working` says whether the device still has work
    /// to run.
    pub fn blocked(
        &mut self,
        site: Site,
        op: OpId,
        how: How,
        is_working: bool,
        findings: &Findings,
    ) {
        let by = match how {
            _ if site.stack == 0 || site.waits_by_itself => None,
            How::Inside => None,
            How::Read | How::Download => {
                self.read(site, op, how);
                None
            }
            How::Stream | How::Event => Some(self.waited(site, op, how, is_working)),
        };
        for copy in self.copies.values_mut() {
            if copy.waited.is_none() && copy.step <= findings.steps_known_to_host(copy.stream) {
                copy.waited = Some(by);
            }
        }
    }

    /// A piece of host memory is used by an asynchronous copy, a step of its stream.
    pub fn copied(&mut self, buffer: BufferId, (stream, step): (StreamId, u32), down: bool) {
        // The host has filled or read this memory since the last copy.
        self.host_used(buffer, !down);
        if self.copies.len() == MOST_COPIES {
            self.copies.retain(|_, copy| copy.waited.is_none());
            if self.copies.len() == MOST_COPIES {
                self.copies.clear();
            }
        }
        let waited = None;
        let copy = Copy {
            stream,
            step,
            waited,
        };
        self.copies.insert(buffer, copy);
    }

    /// The places where the host often blocked without an observed reason.
    pub fn shown(&self, names: &Names) -> Value {
        let places = self.places.values();
        let places = places.filter(|p| p.idle >= OFTEN && p.idle > p.count / 2);
        let shown = places.map(|place| {
            let how = match place.how {
                How::Read => "read",
                How::Download | How::Inside => "download",
                How::Stream | How::Event if place.reads => "landed",
                How::Stream | How::Event => "explicit",
            };
            json!({"at": names.shown(place.site), "how": how})
        });
        shown.collect()
    }
}
