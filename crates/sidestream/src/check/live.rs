//! A checker beside a program that runs.

use std::sync::Arc;

use parking_lot::Mutex;

use super::run::Run;
use super::{Names, Page, Report, Severity, Waited};
use crate::log::{Problem, Record, Sink};
use crate::op::{StreamId, ThreadId};
use crate::order::Chain;

/// What a live checker may hold in memory unless it is told otherwise: 1 GiB.
pub const LIVE_MEMORY_BYTES: u64 = 1 << 30;

/// What happens when a live checker finds a race.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnRace {
    /// The first race panics in the thread that called its second operation, with the report as the
    /// text. A race that CUDA leaves open is only reported.
    Panic,
    /// It is kept for [`Findings`].
    Report,
}

/// Checks a program while it runs: attach the sink to its [`Live`](crate::log::Live), and ask the
/// [`Findings`] at any time, from any thread, also after the sink was detached.
///
/// Memory grows with what is declared and with the places in the source that race, not with the
/// length of the run; it takes about `memory_bytes` at most. Of equal remarks at one call site the
/// first is kept. Should it need more memory than that, or should the program make more calls than
/// the checker can count, the check ends; [`Findings::ended`] says so, and with [`OnRace::Panic`] it
/// panics: a check that quietly stopped would be taken for a clean one. A call that CUDA refuses ends
/// it in the same way, since nobody knows what the program did instead.
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
/// let mut pen = live.write().expect("somebody listens");
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
/// assert!(text.contains("fix: - {do: wait_stream, s: kernels, src: copies, t: main}"));
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

/// What a live checker has found so far.
#[derive(Clone)]
pub struct Findings {
    watch: Arc<Mutex<Watch>>,
}

/// What the two halves share.
struct Watch {
    run: Run,
    ended: Option<Problem>,
}

/// The half that is told.
struct Half {
    watch: Arc<Mutex<Watch>>,
    /// Until it has.
    panics: bool,
    alarm: Option<String>,
}

impl Findings {
    /// What was found, as data.
    pub fn report(&self) -> Report {
        self.watch.lock().run.report()
    }

    /// How many races and how many remarks the report has so far. They only grow, and no report is made
    /// for it.
    pub fn found(&self) -> (usize, usize) {
        let watch = self.watch.lock();
        let checker = &watch.run.checker;
        (checker.races.len(), checker.lints.list.len())
    }

    /// What the ids of the report are called.
    pub fn names(&self) -> Names {
        self.watch.lock().run.names()
    }

    /// The call sites, by id, as `file:line`.
    pub fn sites(&self) -> Vec<String> {
        self.watch.lock().run.sites.clone()
    }

    /// What was found, for people: the same that `sidestream check` prints of a log.
    pub fn text(&self) -> String {
        let watch = self.watch.lock();
        let report = watch.run.report();
        let mut text = format!("{}\n", report.summary());
        text += &watch.page(&report, &watch.run.names()).text();
        if let Some(problem) = &watch.ended {
            text += &format!("\n  {}\n", ended(problem, watch.run.ops));
        }
        text
    }

    /// Why the check ended before the program did, if it did. The report is about what came before.
    pub fn ended(&self) -> Option<String> {
        let watch = self.watch.lock();
        let problem = watch.ended.as_ref();
        problem.map(|problem| ended(problem, watch.run.ops))
    }

    /// How many steps a stream has taken.
    pub fn steps(&self, stream: StreamId) -> u32 {
        let watch = self.watch.lock();
        let chain = Chain::Stream(stream);
        watch.run.checker.clocks.known(chain, chain)
    }

    /// How many of a stream's steps lie before all that the first thread does next, as far as CUDA promises.
    pub fn steps_known_to_host(&self, stream: StreamId) -> u32 {
        let watch = self.watch.lock();
        let host = Chain::Thread(ThreadId(0));
        watch.run.checker.clocks.known(host, Chain::Stream(stream))
    }

    /// From here on waits are followed, for [`Findings::waits_not_needed`].
    pub fn follow_waits(&self) {
        self.watch.lock().run.checker.follow_waits();
    }

    /// As [`Checker::waits_not_needed`](super::Checker::waits_not_needed); nothing where the check ended early.
    pub fn waits_not_needed(&self, is_over: bool) -> Vec<Waited> {
        let mut watch = self.watch.lock();
        match watch.ended {
            None => watch.run.checker.waits_not_needed(is_over),
            Some(_) => Vec::new(),
        }
    }

    /// How many operations were checked.
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

    /// Takes something, unless the check has ended.
    #[inline]
    fn take(&mut self, what: impl FnOnce(&mut Run) -> Result<(), Problem>) {
        if self.ended.is_none() {
            self.ended = what(&mut self.run).err();
        }
    }

    /// What makes a program panic, of what came after the first `known` races.
    #[cold]
    fn alarm(&self, known: usize) -> Option<String> {
        let (report, names) = (self.run.report(), self.run.names());
        let page = self.page(&report, &names);
        let found = &self.run.checker.races[known..];
        if let Some(race) = found.iter().find(|r| r.severity == Severity::Error) {
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
        let known = watch.run.checker.races.len();
        watch.take(|run| run.take(record));
        let checker = &watch.run.checker;
        let found = checker.races.len() > known || checker.error.is_some();
        // What has to be said is said of a call.
        if self.panics && (found || watch.ended.is_some()) && matches!(record, Record::Op(_)) {
            self.alarm = watch.alarm(known);
            // Once it is said, the rest is in the report.
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
            self.alarm = watch.alarm(watch.run.checker.races.len());
            self.panics = false;
        }
    }
}
