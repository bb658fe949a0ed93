//! The log of a program that runs: who gets told, and under which ids.
//!
//! [`Live`] hands out the ids of streams, events, threads and buffers, so that they are dense and
//! in the order of their declarations, as a log wants them. It tells every [`Sink`] that is
//! attached. A sink that comes late is told all declarations and all open spans first; operations
//! from before it are unknown to it.
//!
//! While nobody listens, an operation costs one relaxed load here.
//!
//! # Locks
//! Whoever writes holds the lock of the log, as a [`Pen`], before those of the program's streams and memory. A call that
//! began before anybody listened has no pen and holds the others already: it may not ask for the log's. All that
//! such a call needs is the id of a new event or thread. Those are given out under a lock of their own, behind which
//! nobody takes another, and the next call that is written declares them first.
//!
//! Nobody has a pen while he waits for what the program's own code has to do first, as a function on the host. A wait
//! of the safe API is written when it is over ([`Live::nameless`]), a copy that may hold up its caller before it is made.
//!
//! # What a sink has to say
//! A sink is told while locks are held: those of the program's streams and that of the log. What the
//! program has to hear at once, such as a race, a sink hands out as its [`Sink::alarm`]. The log keeps it for
//! the thread whose call caused it, and [`Live::raise`], which that thread calls when it holds no lock any
//! more, panics with it.
//!
//! A sink is code of the program's, or writes to something that is, and such code panics. It is told of a call
//! between its submission and the note of what it uses: a panic that went on from there would lose the note, and the
//! ids and other sinks would miss a record. So it goes no further. The sink is told nothing more, since it may be in
//! any state, and the panic becomes an alarm.

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
    /// May be locked behind any other.
    fresh: Mutex<Fresh>,
    told: Mutex<Told>,
}

/// Events and threads that have an id, and that nobody was told of.
#[derive(Default)]
struct Fresh {
    events: u32,
    threads: u32,
    /// The first comes first.
    untold: Vec<Record<'static>>,
}

/// So many calls can wait at once under numbers of their own, the highest there are.
const NAMELESS: u32 = 1 << 20;
/// The last number that a call in a log can have.
pub(super) const LAST_OP: u32 = u32::MAX - NAMELESS;

/// Stands for a sink that was attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SinkId(u64);

impl SinkId {
    /// Of a sink that nobody took.
    pub(crate) const NONE: SinkId = SinkId(u64::MAX);
}

/// What was told so far, to be told again to a sink that comes late.
#[derive(Default)]
struct Told {
    declared: Vec<Record<'static>>,
    streams: u32,
    buffers: u32,
    threads: Vec<Spans>,
    known_sites: HashMap<&'static Location<'static>, SiteId>,
    next_op: u64,
    sinks: Vec<Listener>,
    next_sink: u64,
    /// What threads have to hear; what is nobody's in particular the first that can.
    alarms: Vec<(Option<ThreadId>, String)>,
    /// The place in the log of calls that waited, by the number that they had meanwhile.
    called: HashMap<OpId, OpId>,
}

/// A sink that was attached.
struct Listener {
    id: SinkId,
    sink: Box<dyn Sink>,
    wants_times: bool,
    /// It has panicked.
    is_over: bool,
}

/// The spans that a thread is in.
#[derive(Default)]
struct Spans {
    /// Their names, the innermost last.
    names: Vec<String>,
    /// How many more it is in, deeper than a log goes.
    deeper: u64,
}

impl Live {
    /// Whether anybody listens.
    #[inline]
    pub fn is_on(&self) -> bool {
        cfg!(feature = "observe") && self.on.load(Ordering::Relaxed)
    }

    /// Whether anybody wants to know when operations ran ([`Live::done`]).
    #[inline]
    pub fn wants_times(&self) -> bool {
        self.wants_times.load(Ordering::Relaxed)
    }

    /// From here on this sink is told, too.
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
            is_over: false,
        });
        self.note_sinks(&told);
        id
    }

    /// This sink is told nothing more, and is given back; none if it was detached before.
    pub fn detach_one(&self, id: SinkId) -> Option<Box<dyn Sink>> {
        let mut told = self.told.lock();
        let at = told.sinks.iter().position(|listener| listener.id == id)?;
        let listener = told.sinks.remove(at);
        self.note_sinks(&told);
        Some(listener.sink)
    }

    /// Nothing of what the sinks hold is dropped: in a child of a fork it is its parent's, or like a file shared with it.
    pub fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.told.get_mut().sinks));
    }

    /// Nobody is told any more; what the sinks hold is dropped.
    pub fn detach(&self) {
        let sinks = {
            let mut told = self.told.lock();
            let sinks = std::mem::take(&mut told.sinks);
            self.note_sinks(&told);
            sinks
        };
        drop(sinks);
    }

    /// The id of a new stream.
    pub fn new_stream(&self, kind: StreamKind, device: DeviceId, name: &str) -> StreamId {
        let mut told = self.told.lock();
        told.declare(self, Record::stream(kind, device, name.to_owned()));
        told.streams += 1;
        StreamId(told.streams - 1)
    }

    /// The id of a new event.
    pub fn new_event(&self, timing: bool, device: DeviceId) -> EventId {
        let mut fresh = self.fresh.lock();
        let id = EventId(fresh.events);
        fresh.events += 1;
        self.declare(&mut fresh, Record::event(timing, Some(device), ""));
        id
    }

    /// The id of a new thread.
    pub fn new_thread(&self, name: &str) -> ThreadId {
        let mut fresh = self.fresh.lock();
        let id = ThreadId(fresh.threads);
        fresh.threads += 1;
        self.declare(&mut fresh, Record::thread(name.to_owned()));
        id
    }

    fn declare(&self, fresh: &mut Fresh, untold: Record<'static>) {
        fresh.untold.push(untold);
        // Whoever names the id has it from here, and sees this.
        self.has_fresh.store(true, Ordering::Relaxed);
    }

    /// A thread enters a span, or leaves its innermost one. It is noted even while nobody listens,
    /// so that a sink that comes late knows where it is.
    pub fn span(&self, thread: ThreadId, enters: Option<&str>) {
        let mut told = self.told.lock();
        told.catch_up(self);
        told.span(self, thread, enters);
    }

    /// A number for a call that waits: it gets its place in the log only when it is over, and the
    /// back end has to call it something before. Zero while nobody wants to know when it ran.
    #[inline]
    pub fn nameless(&self) -> OpId {
        match self.wants_times() {
            false => OpId(0),
            true => OpId(u32::MAX - self.nameless.fetch_add(1, Ordering::Relaxed) % NAMELESS),
        }
    }

    /// Tells those who want to know when operations ran. What waited and never got its place in the
    /// log, because it gave up, is passed over.
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

    /// The pen, if anybody listens. Nobody else writes while it is held.
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

    /// Panics if a sink has something to say about a call of this thread: to be called at the end of
    /// every public call, when the thread holds no lock and no [`Pen`]. What a call did not raise the
    /// next call of the thread does. A thread that panics already keeps it: a second panic would end
    /// the process.
    ///
    /// Without an alarm it costs one relaxed load.
    ///
    /// # Panics
    /// With the text of the [`Sink::alarm`].
    #[inline]
    #[track_caller]
    pub fn raise(&self, thread: ThreadId) {
        // The thread itself has set it, if it concerns the thread.
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

    /// Its flags say what the sinks want.
    fn note_sinks(&self, told: &Told) {
        let mut sinks = told.sinks.iter().filter(|listener| !listener.is_over);
        let timed = sinks.clone().any(|listener| listener.wants_times);
        let listens = sinks.next().is_some() && !told.is_full();
        let alarmed = !told.alarms.is_empty();
        // Who has to hear something has to be asked to listen.
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
    /// The number of the next operation.
    pub fn next_op(&self) -> OpId {
        OpId(u32::try_from(self.told.next_op).unwrap_or(u32::MAX))
    }

    /// The id of a new buffer.
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

    /// The id of a call site. Its text is the path as the compiler was given it, and the line.
    pub fn site(&mut self, at: &'static Location<'static>) -> SiteId {
        let told = &mut *self.told;
        if let Some(&known) = told.known_sites.get(at) {
            return known;
        }
        let text = format!("{}:{}", at.file(), at.line());
        told.declare(self.live, Record::site(text));
        let id = SiteId(told.known_sites.len() as u32);
        told.known_sites.insert(at, id);
        id
    }

    /// A call that was [`Live::nameless`] gets this place in the log.
    pub fn is_called(&mut self, nameless: OpId, op: OpId) {
        if nameless != OpId(0) {
            self.told.called.insert(nameless, op);
        }
    }

    /// As [`Live::span`], for whoever holds the pen.
    pub fn span(&mut self, thread: ThreadId, enters: Option<&str>) {
        self.told.catch_up(self.live);
        self.told.span(self.live, thread, enters);
    }

    /// The next operation; its number is [`Pen::next_op`]. When the numbers are used up the sinks are told that
    /// there can be no more, and nothing else.
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
    /// Declares what has an id and was not told.
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

    /// Tells each sink something, and keeps what it has to say for this thread.
    #[inline]
    fn tell_as(
        &mut self,
        live: &Live,
        thread: Option<ThreadId>,
        each: impl Fn(&mut dyn Sink) -> Option<String>,
    ) {
        let mut alarms = Vec::new();
        for listener in &mut self.sinks {
            if listener.is_over {
                continue;
            }
            let sink = &mut *listener.sink;
            let alarm = match catch_unwind(AssertUnwindSafe(|| each(sink))) {
                Ok(None) => continue,
                Ok(Some(text)) => text,
                Err(panic) => {
                    listener.is_over = true;
                    format!(
                        "a sink panicked, and is told nothing more: {}",
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
            // A program may go as deep as it likes; a log does not.
            Some(_) if thread.names.len() >= limits::SPAN_DEPTH as usize => {
                thread.deeper += 1;
                return;
            }
            Some(name) => thread.names.push(name.to_owned()),
            None if thread.deeper > 0 => {
                thread.deeper -= 1;
                return;
            }
            // It was entered through a pen that was not there: nobody knows of it.
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

/// What a panic says. What it carries is never dropped, since that may panic as well.
pub(super) fn message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    std::mem::forget(panic);
    text.unwrap_or_else(|| "the panic value is not a string".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::log::{Reader, Recorder};
    use crate::op::{Accesses, Kind};

    /// A public test would have to make four thousand million calls first.
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
