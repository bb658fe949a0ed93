//! The live log of a running program: passes records to the attached sinks, and hands out ids.
//!
//! [`Live`] hands out the ids of streams, events, threads and buffers, so that they are dense and in the order of their
//! declarations, as a log requires. It passes each record to every attached [`Sink`]. A sink that is attached late
//! first receives all declarations and all open spans, but no earlier operations.
//!
//! While no sink is attached, an operation costs one relaxed load here.
//!
//! # Locks
//! A thread that writes takes the lock of the log, as a [`Pen`], before the locks of the program's streams and memory. A call
//! that began before a sink was attached has no pen and already holds the other locks: it may not take the log's. All that
//! such a call needs is the id of a new event or thread. Those are handed out under a separate lock, under which no
//! other lock is taken, and the next call that is written declares them first.
//!
//! No thread keeps a pen while it waits for code of the program, such as a host function. A wait of the safe API is
//! written when it has ended ([`Live::nameless`]), and a copy that may block its caller is written before it is made.
//!
//! # Alarms of sinks
//! A sink is called while locks are held: those of the program's streams and that of the log. For a finding that must reach
//! the program at once, such as a race, a sink returns a [`Sink::alarm`]. The log keeps it for the thread whose
//! call caused it, and [`Live::raise`], which that thread calls once it holds no lock, panics with it.
//!
//! A sink is, or calls, code of the program, which may panic. It is called between the submission of a call and the
//! note of the memory that the call uses: an unwinding panic would lose that note, and ids and other sinks would miss a
//! record. So the panic is caught. The sink is not called again, since it may be in any state, and the panic becomes an
//! alarm.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::{Record, Sink, Within, limits};
use crate::backend::Done;
use crate::op::{
    BufferId, DeviceId, EventId, Memory, Op, OpId, SiteId, StreamId, StreamKind, ThreadId,
};

/// The log of one running program.
#[derive(Default)]
pub struct Live {
    on: AtomicBool,
    wants_times: AtomicBool,
    alarmed: AtomicBool,
    nameless: AtomicU32,
    has_fresh: AtomicBool,
    /// The lock that may be taken while any other is held.
    fresh: Mutex<Fresh>,
    told: Mutex<Told>,
}

/// Events and threads that have an id but were not declared to the sinks yet.
#[derive(Default)]
struct Fresh {
    events: u32,
    threads: u32,
    /// The declarations of these events and threads, in the order of ids.
    untold: Vec<Record<'static>>,
}

/// The number of provisional operation numbers, which are the highest: the maximum number of calls that wait at the
/// same time.
const NAMELESS: u32 = 1 << 20;
/// The largest number of a call in a log.
pub(super) const LAST_OP: u32 = u32::MAX - NAMELESS;

/// Identifies an attached sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SinkId(u64);

impl SinkId {
    /// The id of no sink.
    pub(crate) const NONE: SinkId = SinkId(u64::MAX);
}

/// The state of the log, with the declarations that a sink attached late receives first.
#[derive(Default)]
struct Told {
    declared: Vec<Record<'static>>,
    streams: u32,
    buffers: u32,
    threads: Vec<Spans>,
    /// By location, and whether the call is the drop of what was allocated there.
    known_sites: HashMap<(&'static Location<'static>, bool), SiteId>,
    next_op: u64,
    sinks: Vec<Listener>,
    next_sink: u64,
    /// The pending alarms, each for a thread, or for the first thread that calls [`Live::raise`].
    alarms: Vec<(Option<ThreadId>, String)>,
    /// The numbers in the log of calls that waited, by their provisional numbers.
    called: HashMap<OpId, OpId>,
}

/// A sink that was attached.
struct Listener {
    id: SinkId,
    sink: Box<dyn Sink>,
    wants_times: bool,
    /// Whether it has panicked.
    has_panicked: bool,
}

/// The spans that a thread is in.
#[derive(Default)]
struct Spans {
    /// The names of the spans, the innermost last.
    names: Vec<String>,
    /// The number of further spans, deeper than a log allows.
    deeper: u64,
}

impl Live {
    /// Whether a sink is attached.
    #[inline]
    pub fn is_on(&self) -> bool {
        cfg!(feature = "observe") && self.on.load(Ordering::Relaxed)
    }

    /// Whether a sink uses the times of operations ([`Live::done`]).
    #[inline]
    pub fn wants_times(&self) -> bool {
        self.wants_times.load(Ordering::Relaxed)
    }

    /// Attaches a sink, which receives all records from now on.
    pub fn attach(&self, mut sink: Box<dyn Sink>) -> SinkId {
        let mut told = self.told.lock();
        told.catch_up(self);
        told.repeat_to(&mut *sink);
        let id = SinkId(told.next_sink);
        told.next_sink += 1;
        told.sinks.push(Listener {
            id,
            wants_times: sink.wants_times(),
            sink,
            has_panicked: false,
        });
        self.note_sinks(&told);
        id
    }

    /// Detaches a sink and returns it; `None` if it was detached before.
    pub fn detach_one(&self, id: SinkId) -> Option<Box<dyn Sink>> {
        let mut told = self.told.lock();
        let at = told.sinks.iter().position(|listener| listener.id == id)?;
        let listener = told.sinks.remove(at);
        self.note_sinks(&told);
        Some(listener.sink)
    }

    /// Detaches all sinks without dropping them: in a forked child the content of the sinks belongs to the parent, or
    /// is shared with it like a file.
    pub fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.told.get_mut().sinks));
    }

    /// Detaches and drops all sinks.
    pub fn detach(&self) {
        let sinks = {
            let mut told = self.told.lock();
            let sinks = std::mem::take(&mut told.sinks);
            self.note_sinks(&told);
            sinks
        };
        drop(sinks);
    }

    /// Declares a new stream and returns its id.
    pub fn new_stream(&self, kind: StreamKind, device: DeviceId, name: &str) -> StreamId {
        let mut told = self.told.lock();
        told.declare(self, Record::stream(kind, device, name.to_owned()));
        told.streams += 1;
        StreamId(told.streams - 1)
    }

    /// Declares a new event and returns its id.
    pub fn new_event(&self, timing: bool, device: DeviceId) -> EventId {
        let mut fresh = self.fresh.lock();
        let id = EventId(fresh.events);
        fresh.events += 1;
        self.declare(&mut fresh, Record::event(timing, Some(device), ""));
        id
    }

    /// Declares a new thread and returns its id.
    pub fn new_thread(&self, name: &str) -> ThreadId {
        let mut fresh = self.fresh.lock();
        let id = ThreadId(fresh.threads);
        fresh.threads += 1;
        self.declare(&mut fresh, Record::thread(name.to_owned()));
        id
    }

    fn declare(&self, fresh: &mut Fresh, untold: Record<'static>) {
        fresh.untold.push(untold);
        // A thread that names the id got it from this call, so it also sees this store.
        self.has_fresh.store(true, Ordering::Relaxed);
    }

    /// Records that a thread enters a span, or leaves its innermost one; also while no sink is attached, so that a sink
    /// attached late knows the open spans.
    pub fn span(&self, thread: ThreadId, enters: Option<&str>) {
        let mut told = self.told.lock();
        told.catch_up(self);
        told.span(self, thread, enters);
    }

    /// Returns a provisional number for a call that waits: the call gets its place in the log only when it has ended,
    /// but the back end needs a number earlier. Zero while no sink uses times.
    #[inline]
    pub fn nameless(&self) -> OpId {
        if self.wants_times() {
            OpId(u32::MAX - self.nameless.fetch_add(1, Ordering::Relaxed) % NAMELESS)
        } else {
            OpId(0)
        }
    }

    /// Passes the times of operations to the sinks that use them. A wait that never got its place in the log,
    /// because it timed out, is skipped.
    pub fn done(&self, times: &[Done]) {
        let mut told = self.told.lock();
        for done in times {
            let mut done = *done;
            if done.op.0 > LAST_OP {
                let Some(op) = told.called.remove(&done.op) else {
                    continue;
                };
                done.op = op;
            }
            told.tell(self, &Record::Done(done));
        }
    }

    /// Returns the pen, if a sink is attached. No other thread writes while the pen exists.
    #[inline]
    pub fn write(&self) -> Option<Pen<'_>> {
        if !self.is_on() {
            return None;
        }
        Some(Pen {
            live: self,
            told: self.told.lock(),
        })
    }

    /// Panics if a sink has an alarm about a call of this thread. Must be called at the end of every public call, when
    /// the thread holds no lock and no [`Pen`]. An alarm that a call did not raise is raised by the next call of
    /// the thread. A thread that is already panicking keeps the alarm: a second panic would abort the process.
    ///
    /// Without an alarm the call costs one relaxed load.
    ///
    /// # Panics
    /// With the text of the [`Sink::alarm`].
    #[inline]
    #[track_caller]
    pub fn raise(&self, thread: ThreadId) {
        // An alarm for this thread was set by the thread itself, so a relaxed load sees it.
        if self.alarmed.load(Ordering::Relaxed) {
            self.raise_now(thread);
        }
    }

    #[cold]
    #[track_caller]
    fn raise_now(&self, thread: ThreadId) {
        if std::thread::panicking() {
            return;
        }
        let text = {
            let mut told = self.told.lock();
            let mut alarms = told.alarms.iter();
            let at = alarms.position(|(of, _)| of.is_none_or(|of| of == thread));
            let text = at.map(|at| told.alarms.remove(at).1);
            self.note_sinks(&told);
            text
        };
        if let Some(text) = text {
            panic!("{text}");
        }
    }

    /// Updates the flags from the state of the sinks.
    fn note_sinks(&self, told: &Told) {
        let mut sinks = told.sinks.iter().filter(|listener| !listener.has_panicked);
        let timed = sinks.clone().any(|listener| listener.wants_times);
        let listens = sinks.next().is_some() && !told.is_full();
        let alarmed = !told.alarms.is_empty();
        // A pending alarm keeps the flag set, so that calls still reach `raise`.
        self.on.store(listens || alarmed, Ordering::Relaxed);
        self.alarmed.store(alarmed, Ordering::Relaxed);
        self.wants_times.store(timed, Ordering::Relaxed);
    }
}

/// The right to write the next records.
pub struct Pen<'a> {
    live: &'a Live,
    told: MutexGuard<'a, Told>,
}

impl Pen<'_> {
    /// Returns the number of the next operation.
    pub fn next_op(&self) -> OpId {
        OpId(u32::try_from(self.told.next_op).unwrap_or(u32::MAX))
    }

    /// Declares a new buffer and returns its id.
    pub fn new_buffer(
        &mut self,
        memory: Memory,
        bytes: u64,
        within: Option<Within>,
        name: &str,
    ) -> BufferId {
        let told = &mut *self.told;
        let record = Record::buffer(memory, bytes, within, name.to_owned());
        told.declare(self.live, record);
        told.buffers += 1;
        BufferId(told.buffers - 1)
    }

    /// Returns the id of a call site, which is declared if it is new. Its text is the path that the compiler was given, and
    /// the line.
    pub fn site(&mut self, at: &'static Location<'static>) -> SiteId {
        self.site_or_drop(at, false)
    }

    /// Like [`Pen::site`]; for a drop, whose place Rust does not tell, the text names the place where the memory was
    /// allocated.
    pub(crate) fn site_or_drop(&mut self, at: &'static Location<'static>, is_drop: bool) -> SiteId {
        let told = &mut *self.told;
        if let Some(&known) = told.known_sites.get(&(at, is_drop)) {
            return known;
        }
        let of = if is_drop {
            "the drop of the memory allocated at "
        } else {
            ""
        };
        let text = format!("{of}{}:{}", at.file(), at.line());
        told.declare(self.live, Record::site(text));
        let id = SiteId(told.known_sites.len() as u32);
        told.known_sites.insert((at, is_drop), id);
        id
    }

    /// Gives a call with a provisional number ([`Live::nameless`]) its number in the log.
    pub fn is_called(&mut self, nameless: OpId, op: OpId) {
        if nameless != OpId(0) {
            self.told.called.insert(nameless, op);
        }
    }

    /// Like [`Live::span`], for a thread that already has the pen.
    pub fn span(&mut self, thread: ThreadId, enters: Option<&str>) {
        self.told.catch_up(self.live);
        self.told.span(self.live, thread, enters);
    }

    /// Writes the next operation; its number is [`Pen::next_op`]. When the numbers are used up, only [`Sink::full`] is
    /// called.
    pub fn op(&mut self, op: &Op) {
        let told = &mut *self.told;
        told.catch_up(self.live);
        let (full, record) = (told.is_full(), Record::op(op));
        told.next_op += u64::from(!full);
        told.tell_as(self.live, Some(op.thread), |sink| {
            if full {
                sink.full();
            } else {
                sink.take(&record);
            }
            sink.alarm()
        });
        if full {
            self.live.note_sinks(told);
        }
    }
}

impl Told {
    /// Declares the events and threads that have an id but were not declared yet.
    #[inline]
    fn catch_up(&mut self, live: &Live) {
        if live.has_fresh.load(Ordering::Relaxed) {
            self.declare_fresh(live);
        }
    }

    #[cold]
    fn declare_fresh(&mut self, live: &Live) {
        let untold = {
            let mut fresh = live.fresh.lock();
            live.has_fresh.store(false, Ordering::Relaxed);
            std::mem::take(&mut fresh.untold)
        };
        for record in untold {
            if let Record::Thread { .. } = record {
                self.threads.push(Spans::default());
            }
            self.declare(live, record);
        }
    }

    fn declare(&mut self, live: &Live, record: Record<'static>) {
        self.tell(live, &record);
        self.declared.push(record);
    }

    fn tell(&mut self, live: &Live, record: &Record<'_>) {
        self.tell_as(live, None, |sink| {
            sink.take(record);
            None
        });
    }

    /// Calls each sink, and keeps its alarm for this thread.
    #[inline]
    fn tell_as(
        &mut self,
        live: &Live,
        thread: Option<ThreadId>,
        each: impl Fn(&mut dyn Sink) -> Option<String>,
    ) {
        let mut alarms = Vec::new();
        for listener in &mut self.sinks {
            if listener.has_panicked {
                continue;
            }
            let sink = &mut *listener.sink;
            let alarm = match catch_unwind(AssertUnwindSafe(|| each(sink))) {
                Ok(None) => continue,
                Ok(Some(text)) => text,
                Err(panic) => {
                    listener.has_panicked = true;
                    format!(
                        "a sink panicked, and receives no further records: {}",
                        message(panic)
                    )
                }
            };
            alarms.push((thread, alarm));
        }
        if !alarms.is_empty() {
            self.alarms.append(&mut alarms);
            live.note_sinks(self);
        }
    }

    fn is_full(&self) -> bool {
        self.next_op > u64::from(LAST_OP)
    }

    fn span(&mut self, live: &Live, id: ThreadId, enters: Option<&str>) {
        let thread = &mut self.threads[id.0 as usize];
        match enters {
            // A program may nest spans without limit; a log may not.
            Some(_) if thread.names.len() >= limits::SPAN_DEPTH as usize => {
                thread.deeper += 1;
                return;
            }
            Some(name) => thread.names.push(name.to_owned()),
            None if thread.deeper > 0 => {
                thread.deeper -= 1;
                return;
            }
            // The span was entered while no pen existed, so no sink knows of it.
            None if thread.names.pop().is_none() => return,
            None => {}
        }
        self.tell(live, &Record::span(id, enters));
    }

    fn repeat_to(&self, sink: &mut dyn Sink) {
        self.declared.iter().for_each(|record| sink.take(record));
        for (id, thread) in (0..).map(ThreadId).zip(&self.threads) {
            for name in &thread.names {
                sink.take(&Record::span(id, Some(name)));
            }
        }
        if self.is_full() {
            sink.full();
        }
    }
}

/// Returns the message of a panic. The payload is never dropped, since its destructor may panic as well.
pub(super) fn message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    std::mem::forget(panic);
    text.unwrap_or_else(|| "a value that is not text".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::log::{Reader, Recorder};
    use crate::op::{Accesses, Kind};

    /// Tested here because a public test would need four thousand million calls first.
    #[test]
    fn after_the_last_number_a_recording_ends_with_an_error_and_does_not_begin_again() {
        let live = Arc::new(Live::default());
        let thread = live.new_thread("main");
        live.told.lock().next_op = u64::from(LAST_OP) - 1;
        let calls = |count: u32| {
            for _ in 0..count {
                let Some(mut pen) = live.write() else { return };
                let id = pen.next_op();
                let site = pen.site(Location::caller());
                let (kind, accesses) = (Kind::HostAccess, Accesses::new());
                pen.op(&Op {
                    id,
                    thread,
                    site,
                    kind,
                    accesses,
                });
            }
        };
        let file = Shared::default();
        let (recorder, sink) = Recorder::new(file.clone()).unwrap();
        live.attach(sink);
        calls(2);
        assert!(live.is_on());
        calls(3);
        assert!(!live.is_on());
        let error = recorder.finish().unwrap_err().to_string();
        assert!(error.contains("at most 4293918720 operations"), "{error}");
        let bytes = file.0.lock().clone();
        let records: Vec<_> = Reader::new(&bytes[..]).unwrap().collect();
        let cut = records.last().unwrap().as_ref().unwrap_err();
        assert!(cut.is_cut());
        let ops = records
            .iter()
            .filter(|r| matches!(r, Ok(Record::Op(op)) if op.id.0 >= LAST_OP - 1));
        assert_eq!(ops.count(), 2);

        let (late, sink) = Recorder::new(Vec::new()).unwrap();
        live.attach(sink);
        assert!(!live.is_on());
        assert!(late.finish().is_err());
    }

    #[derive(Clone, Default, Debug)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
