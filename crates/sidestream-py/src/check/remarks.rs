//! Observations that are worth a remark but are not races: clocks read while work is pending, errors that surface
//! late, streams that are created again and again, memory that is freed but cannot be reused, waits that nothing
//! needs.
//!
//! It hears of every operation that the checker receives, and asks the checker which work is complete.

use std::collections::{HashMap, HashSet, VecDeque};

use indexmap::IndexMap;
use serde_json::{Value, json};
use sidestream::check::Findings;
use sidestream::op::{Kind, Op, OpId, StreamId};

use super::held::Held;
use super::idle::{How, Idle};
use super::names::Names;
use super::spine::{Core, Site};
use super::streams::{COLLECTIVES, RawStream};

/// The number of clock-reading pairs that are kept.
const MOST_TIMED: usize = 256;
/// The number of a stream's calls that are kept while not known to be complete.
const MOST_CALLS: usize = 4096;
/// The number of such calls that are shown.
const SHOWN_CALLS: usize = 8;

/// What was noticed in a run.
#[derive(Default)]
pub struct Noticed {
    clocks: Clocks,
    /// The maximum number of bytes that were pinned at once, if it is large.
    pub pinned: Option<(u64, Site)>,
    /// The pending calls of each stream.
    calls: Vec<Calls>,
    late: Option<Late>,
    /// The streams that were created, by place.
    made: IndexMap<Site, Made>,
    /// Where each stream was created, by handle, if the program created any.
    made_at: HashMap<u64, Site>,
    pub held: Held,
    /// Where the host blocks.
    pub idle: Idle,
    /// Whether some accesses cannot be reported, so that the reason for a wait may be unknown.
    pub has_unseen: bool,
    /// Whether the program has ended.
    pub is_over: bool,
    /// The number of the checker's own remarks, and the place of each, by the operation that caused it.
    pub remarked: (usize, HashMap<OpId, Site>),
}

/// Readings of the host's clock.
#[derive(Default)]
struct Clocks {
    /// The last one, by thread.
    last: HashMap<u32, Clock>,
    /// Pairs with work between them that the host did not wait for.
    timed: Vec<(Site, Site)>,
    /// The kernels pending at a reading, that reading, and the next one, before which the host waited for everything.
    queued: Vec<[Site; 3]>,
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
    /// The number of the last calls that may have caused the error, by place and stream.
    last: IndexMap<(Site, StreamId), u64>,
}

/// The streams that were created at one place.
#[derive(Default)]
struct Made {
    count: u64,
    /// The number of these streams that were dropped after they had done work.
    let_go: u64,
}

impl Clocks {
    /// The host waited. It does not matter for which work.
    fn waited(&mut self) {
        for clock in self.last.values_mut() {
            clock.launched = false;
        }
    }

    /// `open` is the last call with kernels that the host does not know to be complete.
    fn read(&mut self, site: Site, open: Option<Site>) {
        let clock = Clock {
            site,
            launched: false,
            worked: false,
            open,
        };
        let Some(last) = self.last.insert(site.thread, clock) else {
            return;
        };
        if last.launched {
            keep(&mut self.timed, (last.site, site));
        } else if let (Some(before), true, None) = (last.open, last.worked, open) {
            keep(&mut self.queued, [before, last.site, site]);
        }
    }
}

/// Adds an item that is not in the list yet, while there is room.
fn keep<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if all.len() < MOST_TIMED && !all.contains(&one) {
        all.push(one);
    }
}

impl Noticed {
    /// Hears of an operation. `remarks` is the number of the checker's own remarks after it.
    pub fn hear(&mut self, op: &Op, site: Site, remarks: usize, findings: &Findings) {
        if remarks > self.remarked.0 {
            self.remarked.0 = remarks;
            self.remarked.1.insert(op.id, site);
        }
        let is_copy = matches!(op.kind, Kind::Copy { .. });
        if let Kind::Kernel { stream, .. }
        | Kind::GraphLaunch { stream, .. }
        | Kind::Copy { stream, .. } = op.kind
        {
            self.launched(op.id, site, stream, !is_copy, findings);
        }
    }

    /// Work was enqueued in a stream: kernels, or a copy between the host and a device.
    fn launched(
        &mut self,
        OpId(call): OpId,
        site: Site,
        stream: StreamId,
        kernels: bool,
        findings: &Findings,
    ) {
        self.idle.launched();
        if let Some(clock) = self.clocks.last.get_mut(&site.thread) {
            clock.launched = true;
            clock.worked |= kernels;
        }
        let step = findings.steps(stream);
        let at = stream.0 as usize;
        if self.calls.len() <= at {
            self.calls.resize_with(at + 1, Calls::default);
        }
        let calls = &mut self.calls[at];
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

    /// The calls of each stream, with the number of its steps that the host knows to be complete.
    fn calls<'a>(
        &'a self,
        findings: &'a Findings,
    ) -> impl Iterator<Item = (StreamId, &'a Calls, u32)> {
        self.calls.iter().enumerate().map(|(at, calls)| {
            let stream = StreamId(at as u32);
            (stream, calls, findings.steps_known_to_host(stream))
        })
    }

    /// The host waits, or finds work complete.
    pub fn waited(&mut self, findings: &Findings) {
        self.clocks.waited();
        for (at, calls) in self.calls.iter_mut().enumerate() {
            let over = findings.steps_known_to_host(StreamId(at as u32));
            calls.over_before = over;
            while calls.last.front().is_some_and(|(step, ..)| *step <= over) {
                calls.last.pop_front();
            }
            if calls.older_up_to <= over {
                calls.older = 0;
            }
        }
    }

    /// The host blocked in a call of the program or in a read, for an event if it was recorded in a stream.
    pub fn blocked(
        &mut self,
        site: Site,
        op: OpId,
        how: How,
        event_of: Option<StreamId>,
        findings: &Findings,
    ) {
        let is_open = |stream: StreamId| {
            let last = self.calls.get(stream.0 as usize)?.last.back();
            last.map(|(step, ..)| *step > findings.steps_known_to_host(stream))
        };
        let has_kernels = || {
            let mut all = self.calls(findings);
            all.any(|(_, calls, over)| calls.last_kernel > over)
        };
        let is_working = event_of.and_then(is_open) == Some(true)
            || (matches!(how, How::Event | How::Stream) && has_kernels());
        self.idle.blocked(site, op, how, is_working, findings);
    }

    /// The program reads the host's clock.
    pub fn clock_read(&mut self, site: Site, findings: &Findings) {
        self.idle.time_taken(site.thread);
        let open = self.calls(findings).filter_map(|(_, calls, over)| {
            let mut last = calls.last.iter().rev();
            let last = last.find(|(step, ..)| *step == calls.last_kernel && *step > over);
            last.map(|&(_, call, site)| (call, site))
        });
        let open = open.max_by_key(|(call, _)| *call).map(|(_, site)| site);
        self.clocks.read(site, open);
    }
}

impl Core {
    /// A call raised a device error that belongs to an earlier call. `waited` says whether the call is a wait that
    /// was already reported: what it would have proved does not hold.
    pub fn failed(&mut self, site: Site, device: u32, text: String, waited: bool) {
        if self.noticed.late.is_some() {
            return;
        }
        let (mut count, mut all) = (0, Vec::new());
        for (stream, calls, over) in self.noticed.calls(&self.findings) {
            let known = self.streams.get(stream);
            if known.is_none_or(|known| known.raw.device != device) {
                continue;
            }
            let over = if waited { calls.over_before } else { over };
            if calls.older_up_to > over {
                count += calls.older;
            }
            let open = calls.last.iter().filter(|(step, ..)| *step > over);
            all.extend(open.map(|&(_, call, site)| (call, site, stream)));
        }
        all.sort_unstable_by_key(|(call, ..)| std::cmp::Reverse(*call));
        let mut last: IndexMap<(Site, StreamId), u64> = IndexMap::new();
        for &(_, site, stream) in &all {
            if last.len() < SHOWN_CALLS || last.contains_key(&(site, stream)) {
                *last.entry((site, stream)).or_default() += 1;
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
        let known = self.noticed.made_at.entry(stream.raw).or_insert(site);
        if known.waits_by_itself {
            *known = site;
        }
        let entry = self.noticed.made.entry(site);
        let at = entry.index();
        entry.or_default().count += 1;
        (at, self.steps_so_far(stream))
    }

    /// The last reference to the stream was dropped.
    pub fn stream_let_go(&mut self, at: usize, stream: RawStream, steps: u32) {
        let has_worked = self.steps_so_far(stream) > steps;
        if let Some((_, made)) = self.noticed.made.get_index_mut(at) {
            made.let_go += u64::from(has_worked);
        }
    }

    /// The number of steps of a stream, which may not have been observed before.
    fn steps_so_far(&self, stream: RawStream) -> u32 {
        let known = self.streams.known(stream.raw);
        known.map_or(0, |stream| self.findings.steps(stream))
    }

    /// All observations, for the report.
    pub(super) fn shown_noticed(&self, names: &Names) -> Value {
        let noticed = &self.noticed;
        let site = |site: Site| names.shown(site);
        let name = |stream| self.streams.name(stream);
        let timed = noticed.clocks.timed.iter();
        let late = noticed.late.as_ref().map(|late| {
            let last = late.last.iter();
            let last = last.map(|(&(at, stream), count)| json!([site(at), name(stream), count]));
            json!({
                "at": site(late.at),
                "text": late.text,
                "device": late.device,
                "count": late.count,
                "last": last.collect::<Vec<_>>(),
            })
        });
        let made = noticed.made.iter().filter(|(at, _)| !at.waits_by_itself);
        let held = noticed.held.most.iter();
        json!({
            "idle": noticed.idle.shown(names),
            "used": self.streams_of_the_program().map(|(device, at)| json!([device, site(at)])).collect::<Vec<_>>(),
            "timed": timed.map(|&(first, second)| json!([site(first), site(second)])).collect::<Vec<_>>(),
            "queued": noticed.clocks.queued.iter().map(|all| all.map(site)).collect::<Vec<_>>(),
            "pinned": noticed.pinned.map(|(bytes, at)| json!([bytes, site(at)])),
            "late": late,
            "made": made.map(|(at, made)| json!([site(*at), made.count, made.let_go])).collect::<Vec<_>>(),
            "held": held.map(|(&(at, stream), bytes)| json!([site(at), name(stream), bytes])).collect::<Vec<_>>(),
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
        let calls = self.noticed.calls.iter().zip(&self.streams.all);
        calls.filter_map(|(calls, stream)| {
            let raw = stream.raw;
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
        let by_itself = self.sites.iter().filter(|site| site.waits_by_itself);
        let by_itself: HashSet<u32> = by_itself.map(|site| site.stack).collect();
        let found = self.findings.waits_not_needed(self.noticed.is_over);
        let all = found.into_iter();
        let all = all.map(|waited| (waited, self.site_of(waited.site)));
        all.filter(|(_, site)| site.stack != 0 && !by_itself.contains(&site.stack))
            .collect()
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
