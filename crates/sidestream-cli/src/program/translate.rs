//! Makes operations of the calls of a process.
//!
//! What is not known is taken in the program's favour, so that an error is one: a stream of which the creation was not heard is a
//! blocking one; what a thread has waited for counts as known to every thread that calls later, since locks and queues between
//! threads are not seen; a kernel touches the memory to which its parameters point, but only at that address.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use sidestream::log::Record;
use sidestream::op::{
    Access, BufferId, DeviceId, EventId, FlagId, Kind, Memory, Op, OpId, SiteId, StreamId,
    StreamKind, ThreadId,
};
use sidestream_inject::calls::{ApiCall, CALLS, Does, Made, Word};
use sidestream_inject::wire::{CALL_WORDS, Head, Tag};

use super::graphs::Graphs;
use super::host::HostSeen;
use super::kernel::KnownKernel;
use super::memory::Allocations;
use super::ring::text;
use super::symbols::Symbols;
use super::touched::Exact;

/// Receives what a process did.
pub trait Hears {
    /// Takes the next declaration or call.
    fn take(&mut self, record: &Record<'_>);

    /// Takes a record of the ring that is not of a call.
    fn activity(&mut self, _: Head, _: &[u64]) {}

    /// From here on, kernels are heard to the byte.
    fn hears_exactly(&mut self) {}

    /// The next operation may not make its accesses. Returns whether that can be told.
    fn doubts(&mut self, _: OpId) -> bool {
        false
    }

    /// Whether all that was asked for has arrived, though the program may go on.
    fn is_done(&self) -> bool {
        false
    }
}

/// A process, as its calls told of it.
#[derive(Default)]
pub struct Process<T> {
    /// Receives what it does.
    pub told: T,
    pub(super) ops: u32,
    threads: HashMap<u32, ThreadId>,
    /// By thread: the device that was told last.
    devices: Vec<DeviceId>,
    /// The thread of the last call.
    last: Option<ThreadId>,
    /// The thread that has waited for the device since calls of another were told.
    waited: Option<ThreadId>,
    /// Threads that are waiting for it.
    waiting: HashSet<ThreadId>,
    contexts: HashMap<u64, DeviceId>,
    /// By stream: the context, green or not, in which it was created.
    in_contexts: HashMap<u64, u64>,
    /// By context: the green context that it is.
    green: HashMap<u64, u64>,
    /// The stream that stands for contexts of which events are recorded.
    of_contexts: Option<StreamId>,
    streams: HashMap<Handle, StreamId>,
    declared_streams: u32,
    /// Streams that were destroyed, for new ones of the same kind: the number of streams is bounded.
    spare_streams: HashMap<(DeviceId, StreamKind), Vec<StreamId>>,
    kinds: Vec<(DeviceId, StreamKind)>,
    events: HashMap<u64, EventId>,
    spare_events: Vec<EventId>,
    /// Events that other processes record.
    foreign_events: HashSet<u64>,
    /// The number of host functions that were submitted, and by thread how many of them it may have heard of.
    pub(super) host_functions: u32,
    known_functions: Vec<u32>,
    /// Likewise, of kernels and writes of values that the host may read.
    pub(super) tellers: u32,
    known_tellers: HashMap<ThreadId, u32>,
    /// By address: the words of memory by which streams wait for each other.
    pub(super) words: HashMap<u64, FlagId>,
    declared_events: u32,
    sites: HashMap<(u16, u64, u32), SiteId>,
    /// By load address: the files of code.
    modules: HashMap<u64, String>,
    /// By number: the places of calls in Python, with the paths of their files.
    places: HashMap<u32, String>,
    /// Likewise, those outside Python: the frames, each as the load address of its module and its address in that.
    stacks: HashMap<u32, Vec<[u64; 2]>>,
    symbols: Symbols,
    /// By call site: what to add to the names of what was made there.
    pub(super) made_at: Vec<String>,
    /// By call site: the place of which `stacks` has the frames.
    place_of: Vec<u32>,
    /// The buffer that stands for all addresses, in which all others lie.
    pub(super) everything: Option<BufferId>,
    /// The buffer that stands for the host's memory of which no call says anything.
    pub(super) of_the_host: Option<BufferId>,
    /// By what the host did, and the number of the place.
    pub(super) host_sites: HashMap<(u8, u32), SiteId>,
    /// What was watched of the host's accesses.
    pub host_seen: HostSeen,
    /// What is known of the bytes that kernels touch.
    pub exact: Exact,
    pub(super) buffers: u32,
    pub(super) memory: Allocations,
    pub(super) graphs: Graphs,
    pub(super) kernels: HashMap<u64, KnownKernel>,
    /// Why the process was not heard.
    pub problem: Option<String>,
    /// The number of calls.
    pub calls: u64,
}

/// A stream, by what names it in a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Handle {
    Legacy(DeviceId),
    PerThread(DeviceId, ThreadId),
    Created(u64),
}

/// The end of all addresses: the largest buffer of a log.
pub(super) const ADDRESSES: u64 = sidestream::log::limits::BUFFER_BYTES;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`, which are no streams that the program created.
pub(super) const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

/// A call that is being translated.
#[derive(Clone, Copy)]
pub(super) struct Now<'a> {
    pub(super) words: &'a [u64],
    pub(super) per_thread: bool,
    thread: ThreadId,
    pub(super) device: DeviceId,
    context: u64,
    pub(super) site: SiteId,
    /// Whether the call is one that may wait, and has not returned.
    is_waiting: bool,
}

impl Now<'_> {
    pub(super) fn word(&self, at: Word) -> u64 {
        self.words.get(usize::from(at)).copied().unwrap_or(0)
    }

    /// Returns the array that begins with its length.
    pub(super) fn array(&self, at: Word) -> &[u64] {
        let (from, len) = (usize::from(at) + 1, self.word(at) as usize);
        self.words
            .get(from..from.saturating_add(len))
            .unwrap_or_default()
    }
}

impl<T: Hears> Process<T> {
    /// Takes a record of the ring, without its first word.
    pub fn take(&mut self, head: Head, record: &[u64]) {
        if self.exact.awaited.take(head, record) {
            self.go_on(false);
        } else {
            self.translate(head, record);
        }
    }

    /// There will be no more records.
    pub fn end(&mut self) {
        self.go_on(true);
    }

    /// Takes the records that need not wait any more.
    fn go_on(&mut self, is_end: bool) {
        while let Some((head, record)) = self.exact.awaited.next(is_end) {
            self.translate(head, &record);
        }
    }

    /// Kernels are heard to the byte: no more guesses.
    pub fn hear_exactly(&mut self) {
        if !std::mem::replace(&mut self.exact.is_on, true) {
            self.told.hears_exactly();
        }
    }

    fn translate(&mut self, head: Head, record: &[u64]) {
        match head.tag {
            Tag::Call => self.call(head, record),
            Tag::Kernel => {
                if let Some((&kernel, name)) = record.split_first() {
                    self.kernels
                        .insert(kernel, KnownKernel::new(&text(name, head.index)));
                }
            }
            Tag::Module => {
                if let Some((&bias, path)) = record.split_first() {
                    self.modules.insert(bias, text(path, head.index));
                }
            }
            Tag::Line => {
                if let Some(([site, line], place)) = record.split_first_chunk() {
                    let place = text(place, head.index);
                    let (file, function) = place.split_once('\n').unwrap_or((&place, ""));
                    self.places
                        .insert(*site as u32, format!("{file}:{line} in {function}"));
                }
            }
            Tag::Site => {
                if let Some((&site, frames)) = record.split_first() {
                    let (frames, _) = frames.as_chunks();
                    self.stacks.insert(site as u32, frames.to_vec());
                }
            }
            Tag::Problem => self.problem = Some(remedy(&text(record, head.index))),
            Tag::Skip => {}
            Tag::Host => self.host(head, record),
            Tag::HostEnd => self.host_ended(head, record),
            Tag::Proof => self.proved(record),
            Tag::Map => self.exact.maps.add(record),
            Tag::Maps => self.exact.maps_of_launch(record),
            Tag::Launches => {
                self.hear_exactly();
                self.exact.launches(record);
            }
            Tag::Returned => {
                let thread = record
                    .first()
                    .and_then(|thread| self.threads.get(&(*thread as u32)));
                self.returned(thread.copied());
            }
            _ => self.told.activity(head, record),
        }
    }

    fn call(&mut self, head: Head, record: &[u64]) {
        let Some((before, words)) = record.split_at_checked(CALL_WORDS - 1) else {
            return;
        };
        let Some(call) = CALLS.get(usize::from(head.index)) else {
            return;
        };
        let (thread, result) = (before[0] as u32, (before[0] >> 32) as u32);
        self.exact.call(thread);
        // A capture ends even if that fails.
        if result != 0 && !matches!(call.what, Does::EndCapture(..)) {
            return;
        }
        // The places of variables are told by calls that the program did not make.
        let is_told = matches!(call.what, Does::Alloc(_, _, Made::Global)) && before[2] == 0;
        self.calls += u64::from(!(is_told && self.exact.is_on));
        let device = self.contexts.get(&before[1]).copied().unwrap_or_default();
        let thread = self.thread(thread);
        self.hand_over(thread);
        self.told_by_functions(thread);
        let site = self.site(head.index, call, words, before[2] as u32);
        let now = Now {
            words,
            per_thread: head.per_thread,
            thread,
            device,
            context: before[1],
            site,
            is_waiting: call.waits(),
        };
        self.does(call, &now);
    }

    fn does(&mut self, call: &ApiCall, now: &Now<'_>) {
        let word = |at| now.word(at);
        match call.what {
            Does::Context(context, device, shift) => {
                let device = DeviceId((word(device) >> shift) as u32 & 0xff);
                self.contexts.insert(word(context), device);
            }
            // Their handles may be those of other kernels from here on.
            Does::Unload => self.sites.retain(|(_, kernel, _), _| *kernel == 0),
            Does::StreamCreate(stream, flags) => {
                self.stream_created(now, word(stream), word(flags), now.context);
            }
            Does::StreamCreateIn(stream, flags, context) => {
                self.stream_created(now, word(stream), word(flags), word(context));
            }
            Does::ContextOf(context, green) => {
                self.green.insert(word(context), word(green));
            }
            Does::ContextRecord(context, event) => {
                // A stream that waits for all of the context's (R68).
                let event = self.event(word(event));
                let stream = match self.of_contexts {
                    Some(known) => known,
                    None => self.new_stream(StreamKind::NonBlocking, now),
                };
                self.of_contexts = Some(stream);
                for source in self.streams_of(word(context)) {
                    self.op(now, Kind::WaitStream { stream, source }, &[]);
                }
                self.op(now, Kind::Record { event, stream }, &[]);
            }
            Does::ContextWait(context, event) => {
                let event = self.event(word(event));
                for stream in self.streams_of(word(context)) {
                    self.op(now, Kind::Wait { stream, event }, &[]);
                }
            }
            Does::StreamDestroy(stream) => {
                self.in_contexts.remove(&word(stream));
                if let Some(id) = self.streams.remove(&Handle::Created(word(stream))) {
                    self.op(now, Kind::DestroyStream { stream: id }, &[]);
                    let kind = self.kinds[id.0 as usize];
                    self.spare_streams.entry(kind).or_default().push(id);
                }
            }
            Does::StreamSynchronize(stream) => {
                let stream = self.stream(now, word(stream));
                self.waits(now, Kind::SyncStream { stream });
            }
            Does::StreamQuery(stream) => {
                let stream = self.stream(now, word(stream));
                self.waits(now, Kind::QueryStream { stream, done: true });
            }
            Does::ContextSynchronize => {
                let device = Some(now.device);
                self.waits(now, Kind::SyncDevice { device });
            }
            _ => self.events(call, now),
        }
    }

    fn events(&mut self, call: &ApiCall, now: &Now<'_>) {
        let word = |at| now.word(at);
        match call.what {
            Does::EventCreate(event, flags) => {
                // `CU_EVENT_DISABLE_TIMING`.
                let id = self.new_event(word(flags) & 2 == 0);
                self.events.insert(word(event), id);
                self.op(now, Kind::CreateEvent { event: id }, &[]);
            }
            Does::EventDestroy(event) => {
                self.foreign_events.remove(&word(event));
                if let Some(id) = self.events.remove(&word(event)) {
                    self.op(now, Kind::DestroyEvent { event: id }, &[]);
                    self.spare_events.push(id);
                }
            }
            Does::EventOpen(event) => {
                self.foreign_events.insert(word(event));
            }
            Does::WaitOutside(stream) => {
                let stream = Some(self.stream(now, word(stream)));
                self.op(now, Kind::WaitOutside { stream }, &[]);
            }
            Does::EventWait(stream, event) if self.foreign_events.contains(&word(event)) => {
                let stream = Some(self.stream(now, word(stream)));
                self.op(now, Kind::WaitOutside { stream }, &[]);
            }
            Does::EventSynchronize(event) if self.foreign_events.contains(&word(event)) => {
                self.waits(now, Kind::WaitOutside { stream: None });
            }
            Does::EventRecord(event, stream) => {
                let event = self.event(word(event));
                let stream = self.stream(now, word(stream));
                self.op(now, Kind::Record { event, stream }, &[]);
            }
            Does::EventWait(stream, event) => {
                let event = self.event(word(event));
                let stream = self.stream(now, word(stream));
                self.op(now, Kind::Wait { stream, event }, &[]);
            }
            Does::EventSynchronize(event) => {
                let event = self.event(word(event));
                self.waits(now, Kind::SyncEvent { event });
            }
            Does::EventQuery(event) => {
                let event = self.event(word(event));
                self.waits(now, Kind::QueryEvent { event, done: true });
            }
            // A time that was returned: both events were complete.
            Does::EventElapsed(from, to) => {
                for event in [from, to] {
                    let event = self.event(word(event));
                    self.waits(now, Kind::QueryEvent { event, done: true });
                }
            }
            _ => self.memory_or_work(call, now),
        }
    }

    // -------------------------------------------------------------- what calls name

    pub(super) fn op(&mut self, now: &Now<'_>, kind: Kind, accesses: &[Access]) {
        let op = Op {
            id: OpId(self.ops),
            thread: now.thread,
            site: now.site,
            kind,
            accesses: accesses.iter().copied().collect(),
        };
        // `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`.
        if self.graphs.take(&op, now.word(2) & 1 == 1) {
            return;
        }
        self.ops += 1;
        self.told.take(&Record::op(&op));
    }

    /// A call by which its thread waits for the device, or learns that it has completed something.
    pub(super) fn waits(&mut self, now: &Now<'_>, kind: Kind) {
        self.op(now, kind, &[]);
        self.has_waited(now);
    }

    fn stream_created(&mut self, now: &Now<'_>, handle: u64, flags: u64, context: u64) {
        let kind = match flags & 1 {
            0 => StreamKind::Blocking,
            _ => StreamKind::NonBlocking,
        };
        let id = self.new_stream(kind, now);
        self.streams.insert(Handle::Created(handle), id);
        self.in_contexts.insert(handle, context);
        self.op(now, Kind::CreateStream { stream: id }, &[]);
    }

    /// Returns the streams that were created in a context, or in the green context that it is.
    fn streams_of(&self, context: u64) -> Vec<StreamId> {
        let is_it = |of: u64| of == context || self.green.get(&context) == Some(&of);
        let all = self.in_contexts.iter().filter(|(_, of)| is_it(**of));
        let ids = all.filter_map(|(stream, _)| self.streams.get(&Handle::Created(*stream)));
        let mut ids: Vec<_> = ids.copied().collect();
        ids.sort_unstable();
        ids
    }

    /// The thread waits for the device: other threads may hear of that once its call has returned.
    pub(super) fn has_waited(&mut self, now: &Now<'_>) {
        if now.is_waiting {
            self.waiting.insert(now.thread);
        } else {
            self.waited = Some(now.thread);
        }
    }

    /// The call of a thread has returned that was heard before it waited.
    fn returned(&mut self, thread: Option<ThreadId>) {
        if let Some(thread) = thread.filter(|thread| self.waiting.remove(thread)) {
            self.waited = Some(thread);
            self.last = Some(thread);
        }
    }

    /// Memory of a device that no call made known, such as a variable of the program.
    pub(super) fn found(&mut self, now: &Now<'_>, at: u64, bytes: u64) {
        if self.memory.at(at).is_none() {
            self.made(now, at, bytes, Memory::Device, Kind::CudaMalloc);
        }
    }

    /// Declares what calls without a stream use: the thread's device, and its legacy stream.
    pub(super) fn blocks(&mut self, now: &Now<'_>) {
        self.stream(now, LEGACY);
        self.current(now);
    }

    /// Tells the device in whose context the thread is.
    pub(super) fn current(&mut self, now: &Now<'_>) {
        let told = &mut self.devices[now.thread.0 as usize];
        if std::mem::replace(told, now.device) != now.device {
            self.op(now, Kind::SetDevice { device: now.device }, &[]);
        }
    }

    /// If another thread has waited since, what it knows counts as known to this one.
    pub(super) fn hand_over(&mut self, thread: ThreadId) {
        let last = self.last.replace(thread);
        let Some(waited) = self
            .waited
            .filter(|waited| *waited != thread && last != Some(thread))
        else {
            return;
        };
        let flag = FlagId(0);
        for (thread, kind) in [
            (waited, Kind::SetFlag { flag }),
            (thread, Kind::WaitFlag { flag }),
        ] {
            let now = self.aside(thread);
            self.op(&now, kind, &[]);
        }
    }

    /// What a thread learns without a call.
    fn aside(&self, thread: ThreadId) -> Now<'static> {
        self.at(thread, self.sites[&(u16::MAX, 0, 0)])
    }

    /// What a thread does without a call.
    pub(super) fn at(&self, thread: ThreadId, site: SiteId) -> Now<'static> {
        Now {
            words: &[],
            per_thread: false,
            thread,
            device: DeviceId(0),
            context: 0,
            site,
            is_waiting: false,
        }
    }

    /// A function in a stream may have told the thread that it ran, by means that are not seen.
    pub(super) fn told_by_functions(&mut self, thread: ThreadId) {
        let known = &mut self.known_functions[thread.0 as usize];
        if std::mem::replace(known, self.host_functions) != self.host_functions {
            let now = self.aside(thread);
            self.waits(&now, Kind::WaitOutside { stream: None });
        }
    }

    /// So may a kernel that writes memory of the host. That is a rare way to order calls, but not accesses of the host.
    pub(super) fn told_by_kernels(&mut self, thread: ThreadId) {
        if self.known_tellers.insert(thread, self.tellers).unwrap_or(0) != self.tellers {
            let now = self.aside(thread);
            self.waits(&now, Kind::WaitOutside { stream: None });
        }
    }

    pub(super) fn thread(&mut self, number: u32) -> ThreadId {
        if let Some(&known) = self.threads.get(&number) {
            return known;
        }
        if self.threads.is_empty() {
            self.told.take(&Record::site("handed over between threads"));
            self.made_at.push(String::new());
            self.place_of.push(0);
            self.sites.insert((u16::MAX, 0, 0), SiteId(0));
        }
        let id = ThreadId(self.threads.len() as u32);
        let name = match id.0 {
            0 => "main".to_owned(),
            _ => format!("thread {number}"),
        };
        self.told.take(&Record::thread(name));
        self.threads.insert(number, id);
        self.devices.push(DeviceId(0));
        self.known_functions.push(0);
        id
    }

    /// Returns the functions that led to a call, the innermost first; of Python only that one.
    pub fn stack(&mut self, site: SiteId) -> Vec<String> {
        let place = self.place_of.get(site.0 as usize).copied().unwrap_or(0);
        if let Some(line) = self.places.get(&place) {
            return vec![line.clone()];
        }
        let stack = self.frames(place).unwrap_or_default();
        self.symbols.stack(&stack)
    }

    fn frames(&self, place: u32) -> Option<Vec<(PathBuf, u64)>> {
        let known =
            |[module, address]: &[u64; 2]| Some((self.modules.get(module)?.into(), *address));
        Some(self.stacks.get(&place)?.iter().filter_map(known).collect())
    }

    /// Returns a place in the program's sources.
    pub(super) fn place(&mut self, place: u32, kernel: Option<&str>) -> Option<String> {
        if let Some(line) = self.places.get(&place) {
            return line.rsplit('/').next().map(str::to_owned);
        }
        let stack = self.frames(place)?;
        Some(self.symbols.site(&stack, kernel))
    }

    fn site(&mut self, row: u16, call: &ApiCall, words: &[u64], place: u32) -> SiteId {
        let kernel = call.kernel(words).map_or(0, |[kernel, ..]| kernel);
        if let Some(&known) = self.sites.get(&(row, kernel, place)) {
            return known;
        }
        let named = self.kernels.get(&kernel).map(|kernel| kernel.name.clone());
        let named = named.filter(|name| !name.is_empty());
        let what = named.as_deref().unwrap_or(call.name);
        let at = self.place(place, named.as_deref());
        let fresh = self.new_site(what, at.as_deref(), place);
        self.sites.insert((row, kernel, place), fresh);
        fresh
    }

    pub(super) fn new_site(&mut self, what: &str, at: Option<&str>, place: u32) -> SiteId {
        self.told.take(&Record::site(match at {
            Some(at) => format!("{what} at {at}"),
            None => what.to_owned(),
        }));
        // Only the file's own name and the line: names are inside sentences.
        let line = at.and_then(|place| place.split(" in ").next());
        let line = line
            .and_then(|line| line.rsplit('/').next())
            .filter(|line| line.contains(':'));
        self.made_at
            .push(line.map_or_else(String::new, |line| format!(" [{line}]")));
        self.place_of.push(place);
        SiteId(self.made_at.len() as u32 - 1)
    }

    pub(super) fn stream(&mut self, now: &Now<'_>, handle: u64) -> StreamId {
        let handle = match handle {
            0 if !now.per_thread => Handle::Legacy(now.device),
            LEGACY => Handle::Legacy(now.device),
            0 | PER_THREAD => Handle::PerThread(now.device, now.thread),
            other => Handle::Created(other),
        };
        if let Some(&known) = self.streams.get(&handle) {
            return known;
        }
        let kind = match handle {
            Handle::Legacy(_) => StreamKind::Legacy,
            Handle::PerThread(..) => StreamKind::PerThread,
            Handle::Created(_) => StreamKind::Blocking,
        };
        let id = self.new_stream(kind, now);
        self.streams.insert(handle, id);
        id
    }

    fn new_stream(&mut self, kind: StreamKind, now: &Now<'_>) -> StreamId {
        let device = now.device;
        // A stream of its own has a name of its own, until there are many.
        let spare = self.spare_streams.get_mut(&(device, kind));
        if let Some(spare) = spare
            .filter(|_| self.declared_streams > 1000)
            .and_then(Vec::pop)
        {
            return spare;
        }
        let name = match kind {
            StreamKind::Legacy => "the default stream".to_owned(),
            StreamKind::PerThread => "the thread's default stream".to_owned(),
            StreamKind::Blocking | StreamKind::NonBlocking => {
                let made_at = self.made_at.get(now.site.0 as usize);
                format!(
                    "stream {}{}",
                    self.declared_streams,
                    made_at.map_or("", String::as_str)
                )
            }
        };
        self.declare_stream(kind, device, name)
    }

    pub(super) fn declare_stream(
        &mut self,
        kind: StreamKind,
        device: DeviceId,
        name: String,
    ) -> StreamId {
        let id = StreamId(self.declared_streams);
        self.told.take(&Record::stream(kind, device, name));
        self.declared_streams += 1;
        self.kinds.push((device, kind));
        id
    }

    pub(super) fn event(&mut self, handle: u64) -> EventId {
        if let Some(&known) = self.events.get(&handle) {
            return known;
        }
        let id = self.new_event(false);
        self.events.insert(handle, id);
        id
    }

    pub(super) fn new_event(&mut self, timing: bool) -> EventId {
        self.spare_events.pop().unwrap_or_else(|| {
            let id = EventId(self.declared_events);
            self.told
                .take(&Record::event(timing, None, format!("event {}", id.0)));
            self.declared_events += 1;
            id
        })
    }
}

/// What to do where a process could not listen.
fn remedy(problem: &str) -> String {
    match problem.split_once(' ').unwrap_or((problem, "")) {
        ("no", _) => "NVIDIA's library CUPTI is neither in the program, nor beside its Python, nor in the CUDA toolkit: \
                      `pip install nvidia-cuda-cupti` installs it, and SIDESTREAM_CUPTI may name the file libcupti.so"
            .to_owned(),
        ("taken", by) => {
            let by = if by.is_empty() { "another profiler or debugger" } else { by };
            format!("{by} listens to its CUDA calls already; run it without that")
        }
        ("exact", why) => format!("the probe of --exact: {why}"),
        _ => format!("{problem}; a CUPTI that fits the driver may help: SIDESTREAM_CUPTI names the file libcupti.so"),
    }
}
