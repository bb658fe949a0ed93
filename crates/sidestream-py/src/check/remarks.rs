//! Observations that are worth a remark but are not races: clocks read while work is pending, errors that surface
//! late, streams that are created again and again, memory that is freed but cannot be reused, waits that nothing
//! needs.
//!
//! It receives the same calls as the checker, and asks the checker which work is complete.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Value, json};
use sidestream::op::StreamId;

use super::Names;
use super::idle::Idle;
use super::report::{shown_site, stream_name};
use super::spine::{COLLECTIVES, Core, RawStream, Site};

/// The number of clock-reading pairs that are kept.
const MOST_TIMED: usize = 256;
/// The number of a stream's calls that are kept while not known to be complete.
const MOST_CALLS: usize = 4096;
/// The number of such calls that are shown.
const SHOWN_CALLS: usize = 8;
/// The minimum number of freed bytes for a query of the memory that cannot be reused.
const MUCH_BYTES: u64 = 32 << 20;

/// What was noticed in a run.
#[derive(Default)]
pub struct Noticed {
    /// The last reading of the host's clock, by thread.
    clocks: HashMap<u32, Clock>,
    /// Pairs of clock readings with work between them that the host did not wait for.
    timed: Vec<(Site, Site)>,
    /// The kernels pending at a reading, that reading, and the next one, before which the host waited for everything.
    queued: Vec<[Site; 3]>,
    /// The maximum number of bytes that were pinned at once, if it is large.
    pub pinned: Option<(u64, Site)>,
    /// The pending calls of each stream.
    calls: Vec<Calls>,
    late: Option<Late>,
    makers: HashMap<Site, usize>,
    made: Vec<Made>,
    /// Where each stream was created, by handle, if the program created any.
    made_at: HashMap<u64, Site>,
    pub held: Held,
    /// Where the host blocks.
    pub idle: Idle,
    /// Whether some accesses cannot be reported, so that the reason for a wait may be unknown.
    pub has_unseen: bool,
    /// Whether the program has ended.
    pub is_over: bool,
}

/// A reading of the host's clock.
struct Clock {
    site: Site,
    /// Whether the thread has since launched work that the host did not wait for.
    launched: bool,
    /// Whether the thread has launched kernels since.
    worked: bool,
    /// The last of the kernels that the host did not know to be complete.
    open: Option<Site>,
}

/// The calls of a stream that the host does not know to be complete, by step.
#[derive(Default)]
struct Calls {
    last: VecDeque<(u32, u32, Site)>,
    /// The number of older calls that are not kept, and the last of them.
    older: u64,
    older_up_to: u32,
    /// The number of steps that were known to be complete when the host last began to wait.
    over_before: u32,
    /// The step of the stream's last kernel.
    last_kernel: u32,
    /// Where the program first put work on the stream.
    first: Option<Site>,
}

/// A device error that a later call raised.
struct Late {
    at: Site,
    text: String,
    /// The device.
    device: u32,
    /// The number of calls that may have caused the error.
    count: u64,
    /// The last calls that may have caused the error: place, stream and number.
    last: Vec<(Site, StreamId, u64)>,
}

/// The streams that were created at one place.
struct Made {
    site: Site,
    count: u64,
    /// The number of these streams that were dropped after they had done work.
    let_go: u64,
}

/// Memory with recorded streams that the program has freed.
#[derive(Default)]
pub struct Held {
    noted: HashMap<u64, (Site, StreamId)>,
    freed: HashMap<u64, (u64, Site, StreamId)>,
    bytes: u64,
    looked_at: u64,
    /// The places and streams at the time when the most memory could not be reused.
    most: Vec<(Site, StreamId, u64)>,
}

impl Held {
    /// The program calls `record_stream`.
    fn note(&mut self, start: u64, site: Site, stream: StreamId) {
        self.noted.entry(start).or_insert((site, stream));
    }

    /// Memory is freed.
    fn freed(&mut self, start: u64, end: u64) {
        if let Some((site, stream)) = self.noted.remove(&start) {
            let bytes = end.saturating_sub(start);
            self.freed.insert(start, (bytes, site, stream));
            self.bytes += bytes;
        }
    }

    /// Memory is allocated.
    fn allocated(&mut self, start: u64) {
        self.noted.remove(&start);
        if let Some((bytes, ..)) = self.freed.remove(&start) {
            self.bytes -= bytes;
        }
    }

    /// Whether it is time to query which memory cannot be reused yet. The query is slow, so it becomes rarer over
    /// time.
    pub fn is_due(&self) -> bool {
        self.bytes >= MUCH_BYTES.max(self.looked_at.saturating_mul(2))
    }

    /// The result of the query: addresses and sizes.
    pub fn looked(&mut self, pending: &[(u64, u64)]) {
        self.looked_at = self.bytes;
        let mut found: Vec<(Site, StreamId, u64)> = Vec::new();
        let mut kept = HashMap::new();
        for &(start, bytes) in pending {
            let Some((_, site, stream)) = self.freed.remove(&start) else {
                continue;
            };
            match found
                .iter_mut()
                .find(|known| (known.0, known.1) == (site, stream))
            {
                Some(known) => known.2 += bytes,
                None => found.push((site, stream, bytes)),
            }
            kept.insert(start, (bytes, site, stream));
        }
        let sum = |all: &[(Site, StreamId, u64)]| all.iter().map(|one| one.2).sum::<u64>();
        self.bytes = sum(&found);
        self.freed = kept;
        if sum(&found) > sum(&self.most) {
            self.most = found;
        }
    }
}

/// Adds an item that is not in the list yet, while there is room.
fn keep<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if all.len() < MOST_TIMED && !all.contains(&one) {
        all.push(one);
    }
}

impl Core {
    /// Work was enqueued in a stream: kernels, or a copy between the host and a device.
    pub(super) fn launched_at(&mut self, site: Site, stream: StreamId, kernels: bool) {
        self.noticed.idle.launched();
        if let Some(clock) = self.noticed.clocks.get_mut(&site.thread) {
            clock.launched = true;
            clock.worked |= kernels;
        }
        let step = self.findings.steps(stream);
        let call = self.last().0;
        let calls = self.calls_of(stream);
        if calls.last.len() == MOST_CALLS
            && let Some((step, ..)) = calls.last.pop_front()
        {
            calls.older += 1;
            calls.older_up_to = step;
        }
        calls.last.push_back((step, call, site));
        if !site.waits_by_itself {
            calls.first.get_or_insert(site);
        }
        if kernels {
            calls.last_kernel = step;
        }
    }

    /// Whether some stream has kernels that the host does not know to be complete.
    pub(super) fn has_open_kernels(&self) -> bool {
        let over = |at| self.findings.steps_known_to_host(StreamId(at as u32));
        let mut all = self.noticed.calls.iter().enumerate();
        all.any(|(at, calls)| calls.last_kernel > 0 && calls.last_kernel > over(at))
    }

    /// Whether a stream has work that the host does not know to be complete.
    pub(super) fn has_open_calls(&self, stream: StreamId) -> bool {
        let over = self.findings.steps_known_to_host(stream);
        let calls = self.noticed.calls.get(stream.0 as usize);
        let last = calls.and_then(|calls| calls.last.back());
        last.is_some_and(|(step, ..)| *step > over)
    }

    fn calls_of(&mut self, stream: StreamId) -> &mut Calls {
        let at = stream.0 as usize;
        if self.noticed.calls.len() <= at {
            self.noticed.calls.resize_with(at + 1, Calls::default);
        }
        &mut self.noticed.calls[at]
    }

    /// The host waited. For clocks it does not matter for which work.
    pub(super) fn waited(&mut self) {
        for clock in self.noticed.clocks.values_mut() {
            clock.launched = false;
        }
        for (at, calls) in self.noticed.calls.iter_mut().enumerate() {
            let over = self.findings.steps_known_to_host(StreamId(at as u32));
            calls.over_before = over;
            while calls.last.front().is_some_and(|(step, ..)| *step <= over) {
                calls.last.pop_front();
            }
            if calls.older_up_to <= over {
                calls.older = 0;
            }
        }
    }

    /// The program reads the host's clock.
    pub fn clock_read(&mut self, site: Site) {
        let open = self.last_open_kernels();
        let clock = Clock {
            site,
            launched: false,
            worked: false,
            open,
        };
        let noticed = &mut self.noticed;
        let Some(last) = noticed.clocks.insert(site.thread, clock) else {
            return;
        };
        if last.launched {
            keep(&mut noticed.timed, (last.site, site));
        } else if let (Some(before), true, None) = (last.open, last.worked, open) {
            keep(&mut noticed.queued, [before, last.site, site]);
        }
    }

    /// The last call that launched kernels which the host does not know to be complete.
    fn last_open_kernels(&self) -> Option<Site> {
        let open = self
            .noticed
            .calls
            .iter()
            .enumerate()
            .filter_map(|(at, calls)| {
                let over = self.findings.steps_known_to_host(StreamId(at as u32));
                let mut last = calls.last.iter().rev();
                let last = last.find(|(step, ..)| *step == calls.last_kernel && *step > over);
                last.map(|&(_, call, site)| (call, site))
            });
        open.max_by_key(|(call, _)| *call).map(|(_, site)| site)
    }

    /// A call raised a device error that belongs to an earlier call. `waited` says whether the call is a wait that
    /// was already reported: what it would have proved does not hold.
    pub fn failed(&mut self, site: Site, device: u32, text: String, waited: bool) {
        if self.noticed.late.is_some() {
            return;
        }
        let (mut count, mut all) = (0, Vec::new());
        for (at, calls) in self.noticed.calls.iter().enumerate() {
            let stream = StreamId(at as u32);
            let is_here = |(raw, _): &(RawStream, String)| raw.device == device;
            if !self.stream_names.get(at).is_some_and(is_here) {
                continue;
            }
            let over = if waited {
                calls.over_before
            } else {
                self.findings.steps_known_to_host(stream)
            };
            if calls.older_up_to > over {
                count += calls.older;
            }
            let open = calls.last.iter().filter(|(step, ..)| *step > over);
            all.extend(open.map(|&(_, call, site)| (call, site, stream)));
        }
        all.sort_unstable_by_key(|(call, ..)| std::cmp::Reverse(*call));
        let mut last: Vec<(Site, StreamId, u64)> = Vec::new();
        for &(_, site, stream) in &all {
            let has_room = last.len() < SHOWN_CALLS;
            match last
                .iter_mut()
                .find(|known| (known.0, known.1) == (site, stream))
            {
                Some(known) => known.2 += 1,
                None if has_room => last.push((site, stream, 1)),
                None => {}
            }
        }
        self.noticed.late = Some(Late {
            at: site,
            text,
            device,
            count: count + all.len() as u64,
            last,
        });
    }

    /// The program creates a stream. Returns the index of the place, and the number of steps that the stream has
    /// taken.
    pub fn stream_made(&mut self, site: Site, stream: RawStream) -> (usize, u32) {
        let steps = self.steps_so_far(stream);
        let noticed = &mut self.noticed;
        let known = noticed.made_at.entry(stream.raw).or_insert(site);
        if known.waits_by_itself {
            *known = site;
        }
        let at = *noticed.makers.entry(site).or_insert(noticed.made.len());
        if at == noticed.made.len() {
            let (count, let_go) = (0, 0);
            noticed.made.push(Made {
                site,
                count,
                let_go,
            });
        }
        noticed.made[at].count += 1;
        (at, steps)
    }

    /// The last reference to the stream was dropped.
    pub fn stream_let_go(&mut self, at: usize, stream: RawStream, steps: u32) {
        let has_worked = self.steps_so_far(stream) > steps;
        if let Some(made) = self.noticed.made.get_mut(at) {
            made.let_go += u64::from(has_worked);
        }
    }

    /// The number of steps of a stream, which may not have been observed before.
    fn steps_so_far(&self, stream: RawStream) -> u32 {
        let known = self.streams.get(&RawStream::of(0, stream.raw));
        known.map_or(0, |&stream| self.findings.steps(stream))
    }

    /// The program says that a stream uses some memory.
    pub(super) fn noted_by_program(&mut self, site: Site, ptr: u64, stream: RawStream) {
        if self.is_capturing() || site.waits_by_itself {
            return;
        }
        let id = self.stream(stream);
        if let Some((start, _)) = self.space.bounds(ptr)
            && self.space.is_away(ptr, id)
        {
            self.noticed.held.note(start, site, id);
        }
    }

    pub(super) fn notice_freed(&mut self, ptr: u64) {
        if let Some((start, end)) = self.space.bounds(ptr)
            && start == ptr
        {
            self.noticed.held.freed(start, end);
        }
    }

    pub(super) fn notice_allocated(&mut self, ptr: u64) {
        self.noticed.held.allocated(ptr);
    }

    /// All observations, for the report.
    pub(super) fn shown_noticed(&self, names: &Names) -> Value {
        let noticed = &self.noticed;
        let site = |site: Site| shown_site(site, names);
        let name = |stream| stream_name(stream, self);
        let timed = noticed.timed.iter();
        let late = noticed.late.as_ref().map(|late| {
            let last = late.last.iter();
            let last = last.map(|&(at, stream, count)| json!([site(at), name(stream), count]));
            json!({
                "at": site(late.at),
                "text": late.text,
                "device": late.device,
                "count": late.count,
                "last": last.collect::<Vec<_>>(),
            })
        });
        let made = noticed
            .made
            .iter()
            .filter(|made| !made.site.waits_by_itself);
        let held = noticed.held.most.iter();
        json!({
            "idle": self.shown_idle(names),
            "used": self.streams_of_the_program().map(|(device, at)| json!([device, site(at)])).collect::<Vec<_>>(),
            "timed": timed.map(|&(first, second)| json!([site(first), site(second)])).collect::<Vec<_>>(),
            "queued": noticed.queued.iter().map(|all| all.map(site)).collect::<Vec<_>>(),
            "pinned": noticed.pinned.map(|(bytes, at)| json!([bytes, site(at)])),
            "late": late,
            "made": made.map(|made| json!([site(made.site), made.count, made.let_go])).collect::<Vec<_>>(),
            "held": held.map(|&(at, stream, bytes)| json!([site(at), name(stream), bytes])).collect::<Vec<_>>(),
            "waits": self.waits_not_needed().iter().map(|(waited, at)| json!({
                "at": site(*at),
                "stream": name(waited.stream),
                "source": name(waited.source),
                "count": waited.count,
                "followed": waited.not_needed,
            })).collect::<Vec<_>>(),
        })
    }

    /// The streams that the program itself used: the device of each, and where it was created, or first used.
    fn streams_of_the_program(&self) -> impl Iterator<Item = (u32, Site)> {
        let calls = self.noticed.calls.iter().zip(&self.stream_names);
        calls.filter_map(|(calls, (raw, _))| {
            let made = self.noticed.made_at.get(&raw.raw).copied();
            let site = made.or(calls.first)?;
            let is_own = !site.waits_by_itself && raw.raw & COLLECTIVES == 0;
            let is_used = calls.first.is_some() || !calls.last.is_empty();
            (is_own && is_used).then_some((raw.device, site))
        })
    }

    /// The unneeded waits in the program's own lines.
    fn waits_not_needed(&self) -> Vec<(sidestream::check::Waited, Site)> {
        if self.noticed.has_unseen {
            return Vec::new();
        }
        // A wait that a library or backward makes at a line may be needed for another of its calls.
        let by_itself: HashSet<u32> = self
            .sites
            .iter()
            .filter(|site| site.waits_by_itself)
            .map(|site| site.stack)
            .collect();
        let found = self.findings.waits_not_needed(self.noticed.is_over);
        let all = found.into_iter().filter_map(|waited| {
            let site = self.sites.get(waited.site.0 as usize)?;
            (site.stack != 0 && !by_itself.contains(&site.stack)).then_some((waited, *site))
        });
        all.collect()
    }
}

/// Whether the text is CUDA's message for a kernel error, which a later call may raise.
pub fn is_late(text: &str) -> bool {
    const OF_KERNELS: [&str; 9] = [
        "device-side assert triggered",
        "an illegal memory access was encountered",
        "the launch timed out and was terminated",
        "hardware stack error",
        "an illegal instruction was encountered",
        "misaligned address",
        "operation not supported on global/shared address space",
        "invalid program counter",
        "unspecified launch failure",
    ];
    text.contains("CUDA error: ") && OF_KERNELS.iter().any(|part| text.contains(part))
}
