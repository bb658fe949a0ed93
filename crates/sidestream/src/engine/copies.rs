//! The copy engines of one device, and its thread for host functions: each serves one task at a time, in order of arrival.

use super::profile::Profile;
use super::work::{Engines, Work};
use super::{NONE, NOTHING, later, whole};
use std::collections::VecDeque;

/// The demand of one task on its engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub place: usize,
    pub setup_ns: f64,
    pub data_ns: f64,
    /// Time that does not depend on the other direction, ns.
    pub fixed_ns: f64,
}

/// The indices of the engines: the first two share the bus to the host and slow each other down; the others are
/// independent.
const UP: usize = 0;
const DOWN: usize = 1;
const INNER: usize = 2;
const CALLBACK: usize = 3;
const INLINE: usize = 4;
const PLACES: usize = 5;

impl Flow {
    pub(super) fn new(profile: &Profile, work: &Work, engine: Engines) -> Self {
        let place = match engine {
            Engines::Download if profile.copy_engines >= 2.0 => DOWN,
            Engines::Upload | Engines::Download => UP,
            Engines::Inner | Engines::Compute => INNER,
            Engines::Callback => CALLBACK,
            Engines::Inline => INLINE,
        };
        let copy = |setup_ns: f64, bytes: u64, gb_s: f64| Self {
            place,
            setup_ns,
            data_ns: bytes as f64 / gb_s,
            fixed_ns: 0.0,
        };
        match *work {
            Work::Upload { bytes } if engine == Engines::Inline => {
                copy(profile.inline_setup_ns, bytes, profile.link_gb_s)
            }
            Work::Upload { bytes } => copy(profile.upload_setup_ns, bytes, profile.link_gb_s),
            Work::Download { bytes } => copy(profile.download_setup_ns, bytes, profile.link_gb_s),
            Work::UploadPageable { bytes } => {
                copy(profile.upload_setup_ns, bytes, profile.pageable_upload_gb_s)
            }
            Work::DownloadPageable { bytes } => copy(
                profile.download_setup_ns,
                bytes,
                profile.pageable_download_gb_s,
            ),
            // Every byte is read and written.
            Work::DeviceCopy { bytes } => copy(
                profile.device_copy_setup_ns,
                bytes,
                profile.memory_gb_s / 2.0,
            ),
            Work::Memset { bytes } => {
                copy(profile.device_copy_setup_ns, bytes, profile.memory_gb_s)
            }
            Work::PeerCopy { bytes, .. } => {
                copy(profile.device_copy_setup_ns, bytes, profile.peer_gb_s)
            }
            Work::HostFunc { ns } | Work::Timed { ns, .. } => Self {
                place,
                setup_ns: 0.0,
                data_ns: 0.0,
                fixed_ns: ns as f64,
            },
            Work::Call(_) | Work::Marker | Work::Kernel(_) => Self {
                place,
                setup_ns: 0.0,
                data_ns: 0.0,
                fixed_ns: 0.0,
            },
        }
    }
}

/// A task that requests an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub task: u64,
    pub stream: u32,
    /// Whether other device work, rather than its own call, made the task ready.
    pub waited: bool,
}

#[derive(Clone, Debug)]
struct Place {
    task: u64,
    left: Flow,
    end_ns: u64,
    /// The stream of the last task served.
    stream: u32,
    queue: VecDeque<Request>,
}

/// All engines of one device but the multiprocessors.
#[derive(Clone, Debug)]
pub(super) struct Bus {
    places: [Place; PLACES],
    both_ways: f64,
    both_ways_setup: f64,
    switch_ns: f64,
    updated_ns: u64,
}

impl Bus {
    pub(super) fn new(profile: &Profile) -> Self {
        let place = || Place {
            task: NONE,
            left: Flow {
                place: 0,
                setup_ns: 0.0,
                data_ns: 0.0,
                fixed_ns: 0.0,
            },
            end_ns: u64::MAX,
            stream: NOTHING,
            queue: VecDeque::new(),
        };
        Self {
            places: [place(), place(), place(), place(), place()],
            both_ways: profile.both_ways,
            both_ways_setup: profile.both_ways_setup,
            switch_ns: profile.switch_ns,
            updated_ns: 0,
        }
    }

    /// Returns the next end of a task, as time and task.
    pub(super) fn next_end(&self) -> (u64, u64) {
        let mut next = (u64::MAX, NONE);
        for place in &self.places {
            next = next.min((place.end_ns, place.task));
        }
        next
    }

    /// Starts a task on its engine if that is free, and queues it otherwise; returns whether it started.
    pub(super) fn arrive(&mut self, now_ns: u64, request: Request, flow: &Flow) -> bool {
        if self.places[flow.place].task != NONE {
            self.places[flow.place].queue.push_back(request);
            return false;
        }
        let request = Request {
            waited: false,
            ..request
        };
        self.start(now_ns, request, flow);
        true
    }

    /// Removes the finished task from its engine; returns the next one in the queue.
    pub(super) fn finish(&mut self, now_ns: u64, task: u64) -> Option<Request> {
        let index = self.places.iter().position(|p| p.task == task)?;
        self.advance(now_ns);
        self.places[index].task = NONE;
        self.places[index].end_ns = u64::MAX;
        let next = self.places[index].queue.pop_front();
        // If a successor starts now, the other direction stays slowed down.
        if next.is_none() && index < 2 {
            self.predict(1 - index);
        }
        next
    }

    /// Starts a task on its free engine.
    pub(super) fn start(&mut self, now_ns: u64, request: Request, flow: &Flow) {
        self.advance(now_ns);
        let place = &mut self.places[flow.place];
        place.task = request.task;
        place.left = *flow;
        if request.waited && place.stream != NOTHING && place.stream != request.stream {
            place.left.setup_ns += self.switch_ns;
        }
        place.stream = request.stream;
        self.predict(flow.place);
        if flow.place < 2 {
            self.predict(1 - flow.place);
        }
    }

    /// Returns the fractions of full speed for the set-up and the data of an engine.
    fn speeds(&self, index: usize) -> (f64, f64) {
        if index < 2 && self.places[1 - index].task != NONE {
            (self.both_ways_setup, self.both_ways)
        } else {
            (1.0, 1.0)
        }
    }

    fn predict(&mut self, index: usize) {
        let (setup, data) = self.speeds(index);
        let place = &mut self.places[index];
        if place.task != NONE {
            let left = place.left;
            let left_ns = left.setup_ns / setup + left.data_ns / data + left.fixed_ns;
            place.end_ns = later(self.updated_ns, whole(left_ns));
        }
    }

    fn advance(&mut self, now_ns: u64) {
        if now_ns == self.updated_ns {
            return;
        }
        let passed = (now_ns - self.updated_ns) as f64;
        for index in 0..PLACES {
            if self.places[index].task == NONE {
                continue;
            }
            let (setup, data) = self.speeds(index);
            let left = &mut self.places[index].left;
            let mut time = passed;
            for (part, speed) in [
                (&mut left.setup_ns, setup),
                (&mut left.data_ns, data),
                (&mut left.fixed_ns, 1.0),
            ] {
                let takes = *part / speed;
                if takes > time {
                    *part -= time * speed;
                    break;
                }
                *part = 0.0;
                time -= takes;
            }
        }
        self.updated_ns = now_ns;
    }
}
