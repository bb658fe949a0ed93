//! A checker for a running program.

use std::sync::Arc;

use parking_lot::Mutex;

use super::run::Run;
use super::{Names, Page, Report, Severity, Waited};
use crate::log::{Problem, Record, Sink};
use crate::op::{OpId, StreamId, ThreadId};
use crate::order::Chain;

/// The default memory limit of a live checker: 1 GiB.
pub const LIVE_MEMORY_BYTES: u64 = 1 << 30;

/// What happens when a live checker finds a race.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnRace {
    /// The first race panics in the thread that called its second operation, with the report as the
    /// message. A race of severity [`Severity::Warn`] is only reported.
    Panic,
    /// The race is kept for [`Findings`].
    Report,
}

/// Checks a program while it runs: attach the sink to its [`Live`](crate::log::Live), and query the
/// [`Findings`] at any time, from any thread, even after the sink was detached.
///
/// Memory grows with the streams, buffers and other objects declared and with the places in the source that
/// race, not with the length of the run. Of equal remarks at one call site only the first is kept. Should the
/// checker need more than about `memory_bytes`, or should the program make more calls than the checker can count,
/// the check ends: [`Findings::ended`] returns why, and with [`OnRace::Panic`] the program panics, since a check
/// that stopped silently would be taken for a clean one. A call that CUDA refuses ends the check in the same way,
/// since what the program did instead is unknown.
///
/// ```
/// use sidestream::check::{self, OnRace};
/// use sidestream::log::Live;
/// use sidestream::op::*;
///
/// let live = Live::default();
/// let (findings, sink) = check::live(OnRace::Report, check::LIVE_MEMORY_BYTES);
/// live.attach(sink);
/// let [copies, kernels] = ["copies", "kernels"]
///     .map(|name| live.new_stream(StreamKind::NonBlocking, DeviceId(0), name));
/// let thread = live.new_thread("main");
/// let mut pen = live.write().expect("a sink is attached");
/// let buffer = pen.new_buffer(Memory::Device, 1024, None, "A");
/// for (stream, mode) in [(copies, Mode::Write), (kernels, Mode::Read)] {
///     let (id, site) = (pen.next_op(), pen.site(std::panic::Location::caller()));
///     let accesses = [Access { buffer, start: 0, end: 1024, mode }].into_iter().collect();
///     let kind = Kind::kernel(stream);
///     pen.op(&Op { id, thread, site, kind, accesses });
/// }
/// drop(pen);
/// let text = findings.text();
/// assert!(text.contains("RAW on A"));
/// assert!(text.contains("fix: make kernels wait for copies"));
/// ```
pub fn live(on_race: OnRace, memory_bytes: u64) -> (Findings, Box<dyn Sink>) {
    let mut run = Run::new(memory_bytes);
    run.checker.lints.once = Some(Default::default());
    let watch = Arc::new(Mutex::new(Watch { run, ended: None }));
    let half = Half {
        watch: watch.clone(),
        panics: on_race == OnRace::Panic,
        alarm: None,
    };
    (Findings { watch }, Box::new(half))
}

/// The findings of a live checker so far.
#[derive(Clone)]
pub struct Findings {
    watch: Arc<Mutex<Watch>>,
}

/// The state shared by [`Findings`] and the sink.
struct Watch {
    run: Run,
    ended: Option<Problem>,
}

/// The sink, which receives the records.
struct Half {
    watch: Arc<Mutex<Watch>>,
    /// Whether a race still panics: cleared by the first panic.
    panics: bool,
    alarm: Option<String>,
}

impl Findings {
    /// Returns the findings as data.
    pub fn report(&self) -> Report {
        self.watch.lock().run.report()
    }

    /// Returns the numbers of races and of remarks so far, without making a report. They never decrease.
    pub fn found(&self) -> (usize, usize) {
        let watch = self.watch.lock();
        let checker = &watch.run.checker;
        (checker.races.list.len(), checker.lints.list.len())
    }

    /// Returns the names of the streams, threads, buffers, events and spans in the report.
    pub fn names(&self) -> Names {
        self.watch.lock().run.names()
    }

    /// Returns the call sites by id, as `file:line`.
    pub fn sites(&self) -> Vec<String> {
        self.watch.lock().run.sites.clone()
    }

    /// Returns the report as text, as `sidestream check` prints it for a log.
    pub fn text(&self) -> String {
        self.text_of(&self.report())
    }

    /// Returns a part of the report as text.
    pub fn text_of(&self, report: &Report) -> String {
        let watch = self.watch.lock();
        let mut text = format!("{}\n", report.summary());
        text += &watch.page(report, &watch.run.names()).text();
        if let Some(problem) = &watch.ended {
            text += &format!("\n  {}\n", ended(problem, watch.run.ops));
        }
        text
    }

    /// If the check ended before the program did, returns the reason. The report covers the calls before that.
    pub fn ended(&self) -> Option<String> {
        let watch = self.watch.lock();
        let problem = watch.ended.as_ref();
        problem.map(|problem| ended(problem, watch.run.ops))
    }

    /// Takes note that the next operation, which has this number, may not make its accesses: all of its races are warnings.
    /// Returns `false` if there is no room for more of them.
    pub fn doubt(&self, op: OpId) -> bool {
        const MOST: usize = 1 << 20;
        let doubted = &mut self.watch.lock().run.checker.races.doubted;
        let has_room = doubted.len() < MOST;
        if has_room {
            doubted.push(op);
        }
        has_room
    }

    /// Returns the number of steps that a stream has taken.
    pub fn steps(&self, stream: StreamId) -> u32 {
        let watch = self.watch.lock();
        let chain = Chain::Stream(stream);
        watch.run.checker.clocks.known(chain, chain)
    }

    /// Returns the number of a stream's steps that CUDA guarantees to be ordered before everything that the first
    /// thread does next.
    pub fn steps_known_to_host(&self, stream: StreamId) -> u32 {
        let watch = self.watch.lock();
        let host = Chain::Thread(ThreadId(0));
        watch.run.checker.clocks.known(host, Chain::Stream(stream))
    }

    /// Starts to track waits, for [`Findings::waits_not_needed`].
    pub fn follow_waits(&self) {
        self.watch.lock().run.checker.follow_waits();
    }

    /// Like [`Checker::waits_not_needed`](super::Checker::waits_not_needed), but empty if the check ended early.
    pub fn waits_not_needed(&self, ended: bool) -> Vec<Waited> {
        let mut watch = self.watch.lock();
        match watch.ended {
            None => watch.run.checker.waits_not_needed(ended),
            Some(_) => Vec::new(),
        }
    }

    /// Returns the number of operations checked.
    pub fn ops(&self) -> u64 {
        self.watch.lock().run.ops
    }
}

fn ended(problem: &Problem, ops: u64) -> String {
    format!("the check ended after {ops} operations: {problem}")
}

impl Watch {
    fn page<'a>(&'a self, report: &'a Report, names: &'a Names) -> Page<'a> {
        Page {
            report,
            names,
            sites: &self.run.sites,
            listing: None,
        }
    }

    /// Processes a record, unless the check has ended.
    #[inline]
    fn take(&mut self, what: impl FnOnce(&mut Run) -> Result<(), Problem>) {
        if self.ended.is_none() {
            self.ended = what(&mut self.run).err();
        }
    }

    /// Returns the panic message for the races after the first `known`, or for the end of the check.
    #[cold]
    fn alarm(&self, known: usize) -> Option<String> {
        let (report, names) = (self.run.report(), self.run.names());
        let page = self.page(&report, &names);
        let found = &self.run.checker.races.list[known..];
        if let Some(race) = found.iter().find(|r| r.severity() == Severity::Error) {
            return Some(page.race(race));
        }
        if report.error.is_some() {
            return Some(page.refused());
        }
        let problem = self.ended.as_ref()?;
        Some(format!("\n  {}\n", ended(problem, self.run.ops)))
    }
}

impl Sink for Half {
    #[inline]
    fn take(&mut self, record: &Record<'_>) {
        let mut watch = self.watch.lock();
        let known = watch.run.checker.races.list.len();
        watch.take(|run| run.take(record));
        let checker = &watch.run.checker;
        let found = checker.races.list.len() > known || checker.error.is_some();
        // Only a record of a call can panic: its thread made the call.
        if self.panics && (found || watch.ended.is_some()) && matches!(record, Record::Op(_)) {
            self.alarm = watch.alarm(known);
            // After the first panic, further races are only reported.
            self.panics = self.alarm.is_none();
        }
    }

    #[inline]
    fn alarm(&mut self) -> Option<String> {
        self.alarm.take()
    }

    fn full(&mut self) {
        let (what, limit) = ("operations", 1 << 32);
        let problem = Problem::TooMuch { what, limit };
        let mut watch = self.watch.lock();
        watch.take(|_| Err(problem));
        if self.panics {
            self.alarm = watch.alarm(watch.run.checker.races.list.len());
            self.panics = false;
        }
    }
}
