//! The log of a running program, with calls made by hand: what recorders and live checkers make of it.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Arc, Mutex};

use sidestream::backend::Done;
use sidestream::check::{self, Findings, LIVE_MEMORY_BYTES, OnRace, Replay, Verdict, replay};
use sidestream::log::{Error, Live, Reader, Record, Recorder, SinkId, limits};
use sidestream::op::*;

use crate::drawn::Random;

const ROOM: u64 = 1 << 28;

/// A program of one thread that makes calls.
struct Program {
    live: Arc<Live>,
    thread: ThreadId,
}

impl Program {
    fn new() -> Program {
        let live = Arc::new(Live::default());
        let thread = live.new_thread("main");
        Program { live, thread }
    }

    /// Returns another thread of the same program.
    fn beside(&self, name: &str) -> Program {
        let live = self.live.clone();
        let thread = live.new_thread(name);
        Program { live, thread }
    }

    fn stream(&self, name: &str) -> StreamId {
        (self.live).new_stream(StreamKind::NonBlocking, DeviceId(0), name)
    }

    fn buffer(&self, name: &str) -> BufferId {
        let mut pen = self.live.write().expect("somebody listens");
        pen.new_buffer(Memory::Device, 100, None, name)
    }

    #[track_caller]
    fn call(&self, kind: Kind, accesses: &[(BufferId, Mode)]) {
        self.call_at(Location::caller(), kind, accesses);
    }

    fn call_at(&self, at: &'static Location, kind: Kind, accesses: &[(BufferId, Mode)]) {
        let Some(mut pen) = self.live.write() else {
            return;
        };
        let (id, site) = (pen.next_op(), pen.site(at));
        let whole = |&(buffer, mode)| Access {
            buffer,
            start: 0,
            end: 100,
            mode,
        };
        pen.op(&Op {
            id,
            thread: self.thread,
            site,
            kind,
            accesses: accesses.iter().map(whole).collect(),
        });
    }

    #[track_caller]
    fn kernel(&self, stream: StreamId, buffer: BufferId, mode: Mode) {
        self.call(Kind::kernel(stream), &[(buffer, mode)]);
    }

    fn check(&self, on_race: OnRace) -> Findings {
        let (findings, sink) = check::live(on_race, LIVE_MEMORY_BYTES);
        self.live.attach(sink);
        findings
    }

    fn record(&self) -> (Recorder<Vec<u8>>, SinkId) {
        let (recorder, sink) = Recorder::new(Vec::new()).unwrap();
        (recorder, self.live.attach(sink))
    }

    /// Submits two unordered kernels on two streams that touch one buffer.
    fn race(&self) {
        let (copies, kernels) = (self.stream("copies"), self.stream("kernels"));
        let buffer = self.buffer("A");
        self.kernel(copies, buffer, Mode::Write);
        self.kernel(kernels, buffer, Mode::Read);
    }
}

fn records(bytes: &[u8]) -> Vec<Record<'static>> {
    let all: Result<_, Error> = Reader::new(bytes).unwrap().collect();
    all.unwrap()
}

fn checked(bytes: &[u8]) -> Replay {
    replay(Reader::new(bytes).unwrap(), ROOM).unwrap()
}

fn ops<'a>(records: &'a [Record<'_>]) -> Vec<&'a Op> {
    let ops = records.iter().filter_map(|record| match record {
        Record::Op(op) => Some(&**op),
        _ => None,
    });
    ops.collect()
}

/// Returns the message of a panic.
fn said(panics: impl FnOnce()) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(panics)).err()?;
    Some(*payload.downcast::<String>().expect("a text"))
}

// ------------------------------------------------------------------ recording

#[test]
fn a_file_has_the_verdict_of_the_checker_that_listened_beside_it() {
    let mut verdicts = [0, 0];
    for seed in 0..300 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let program = Program::new();
        let (recorder, _) = program.record();
        let findings = program.check(OnRace::Report);
        let streams = [(); 3].map(|()| program.stream(""));
        let buffers = ["A", "B", "C"].map(|name| program.buffer(name));
        let mut depth = 0;
        for _ in 0..5 + random.below(60) {
            let [stream, source] = [(); 2].map(|()| streams[random.below(3)]);
            let mode = [Mode::Read, Mode::Write][random.below(2)];
            match random.below(8) {
                0 | 1 => program.kernel(stream, buffers[random.below(3)], mode),
                2 => program.call(Kind::SyncStream { stream }, &[]),
                3 => {
                    (program.live).span(program.thread, Some(["in", "out"][random.below(2)]));
                    depth += 1;
                }
                4 if depth > 0 => {
                    program.live.span(program.thread, None);
                    depth -= 1;
                }
                _ => program.call(Kind::WaitStream { stream, source }, &[]),
            }
        }
        let replayed = checked(&recorder.finish().unwrap());
        let report = findings.report();
        assert_eq!(replayed.report, report);
        assert_eq!(replayed.names, findings.names());
        assert_eq!(replayed.sites, findings.sites());
        assert_eq!(replayed.ops, findings.ops());
        verdicts[usize::from(report.verdict() == Verdict::Race)] += 1;
    }
    assert!(verdicts.iter().all(|&count| count > 30), "{verdicts:?}");
}

#[test]
fn a_late_sink_is_told_what_exists_and_nothing_of_earlier_calls() {
    let program = Program::new();
    let (early, _) = program.record();
    let (copies, kernels) = (program.stream("copies"), program.stream("kernels"));
    (program.live).new_event(true, DeviceId(0));
    let buffers = [program.buffer("A"), program.buffer("B")];
    program.live.span(program.thread, Some("epoch"));
    program.live.span(program.thread, Some("step"));
    program.kernel(copies, buffers[0], Mode::Write);
    let findings = program.check(OnRace::Report);
    let (late, _) = program.record();
    program.kernel(kernels, buffers[0], Mode::Read);
    program.kernel(copies, buffers[1], Mode::Write);
    program.live.span(program.thread, None);
    program.kernel(kernels, buffers[1], Mode::Read);

    let (early, late) = (early.finish().unwrap(), late.finish().unwrap());
    let numbers = |bytes: &[u8]| -> Vec<u32> {
        let records = records(bytes);
        ops(&records).iter().map(|op| op.id.0).collect()
    };
    assert_eq!(numbers(&early), [0, 1, 2, 3]);
    assert_eq!(numbers(&late), [1, 2, 3]);
    // Only the early sink saw the first kernel.
    assert_eq!(checked(&early).report.races.len(), 2);
    let replayed = checked(&late);
    assert_eq!(replayed.report, findings.report());
    let [race] = &replayed.report.races[..] else {
        panic!("{:?}", replayed.report.races);
    };
    let names = &replayed.names;
    assert_eq!(names.buffer(race.buffer.unwrap()), "B");
    let spans = [race.spans.0, race.spans.1].map(|span| names.span(span.unwrap()));
    assert_eq!(spans, ["step", "epoch"]);
}

#[test]
fn a_detached_sink_is_called_no_more_and_the_others_are() {
    let program = Program::new();
    let (first, id) = program.record();
    let (second, _) = program.record();
    let stream = program.stream("");
    program.call(Kind::SyncStream { stream }, &[]);
    assert!(program.live.detach_one(id).is_some());
    assert!(program.live.detach_one(id).is_none());
    assert!(program.live.is_on());
    program.call(Kind::SyncStream { stream }, &[]);
    program.live.detach();
    assert!(!program.live.is_on());
    program.call(Kind::SyncStream { stream }, &[]);
    for (recorder, calls) in [(first, 1), (second, 2)] {
        assert_eq!(ops(&records(&recorder.finish().unwrap())).len(), calls);
    }
}

#[test]
fn a_recording_may_be_finished_while_its_sink_is_still_attached() {
    let program = Program::new();
    let (recorder, _) = program.record();
    let stream = program.stream("");
    program.call(Kind::SyncStream { stream }, &[]);
    let bytes = recorder.finish().unwrap();
    program.call(Kind::SyncStream { stream }, &[]);
    program.live.detach();
    assert_eq!(ops(&records(&bytes)).len(), 1);
}

#[test]
fn threads_that_write_at_once_make_one_log() {
    const THREADS: usize = 8;
    const CALLS: usize = 2_000;
    let program = Program::new();
    let (recorder, _) = program.record();
    let findings = program.check(OnRace::Panic);
    std::thread::scope(|scope| {
        for at in 0..THREADS {
            let program = program.beside(&format!("worker{at}"));
            scope.spawn(move || {
                // The threads arrive in any order; each has a stream of its own.
                let stream = program.stream("");
                let buffer = program.buffer("");
                for call in 0..CALLS {
                    if call % 10 == 0 {
                        program.live.span(program.thread, Some("ten"));
                    }
                    program.kernel(stream, buffer, Mode::Write);
                    program.live.raise(program.thread);
                    if call % 10 == 9 {
                        program.live.span(program.thread, None);
                    }
                }
            });
        }
    });
    let bytes = recorder.finish().unwrap();
    let records = records(&bytes);
    let ops = ops(&records);
    assert_eq!(ops.len(), THREADS * CALLS);
    assert!((0..).zip(&ops).all(|(at, op)| op.id == OpId(at)));
    for thread in (1..=THREADS as u32).map(ThreadId) {
        let own = ops.iter().filter(|op| op.thread == thread);
        assert_eq!(own.count(), CALLS);
    }
    let spans = |enter: bool| {
        let spans = records.iter();
        let spans =
            spans.filter(|r| matches!(r, Record::Span { enters, .. } if enters.is_some() == enter));
        spans.count()
    };
    assert_eq!([spans(true), spans(false)], [THREADS * CALLS / 10; 2]);
    assert_eq!(checked(&bytes).report, findings.report());
    assert_eq!(findings.report().verdict(), Verdict::Clean);
}

#[test]
fn a_call_site_is_the_path_that_the_compiler_was_given_and_the_line() {
    let program = Program::new();
    let (recorder, _) = program.record();
    let stream = program.stream("");
    for _ in 0..3 {
        program.call(Kind::SyncStream { stream }, &[]);
    }
    let line = line!() - 2;
    let replayed = checked(&recorder.finish().unwrap());
    assert_eq!(replayed.sites, [format!("{}:{line}", file!())]);
}

#[test]
fn only_a_recording_with_times_is_told_times_and_only_of_what_it_has() {
    let program = Program::new();
    let stream = program.stream("");
    let plain = program.record().0;
    program.call(Kind::SyncStream { stream }, &[]);
    assert!(!program.live.wants_times());
    let (timed, sink) = Recorder::with_times(Vec::new()).unwrap();
    let id = program.live.attach(sink);
    assert!(program.live.wants_times());
    let times = |op, start| Done {
        op: OpId(op),
        call_ns: Some((start, start + 5)),
        work_ns: None,
    };
    program.live.done(&[times(0, 10)]);
    program.call(Kind::SyncStream { stream }, &[]);
    program.live.done(&[times(0, 10), times(1, 20)]);
    program.live.detach_one(id);
    assert!(!program.live.wants_times());
    let dones = |bytes: Vec<u8>| -> Vec<Record<'static>> {
        let records = records(&bytes).into_iter();
        records.filter(|r| matches!(r, Record::Done(_))).collect()
    };
    assert_eq!(dones(plain.finish().unwrap()), []);
    assert_eq!(dones(timed.finish().unwrap()), [Record::Done(times(1, 20))]);
}

#[test]
fn spans_without_a_beginning_or_too_deep_leave_a_good_log() {
    let program = Program::new();
    let stream = program.stream("");
    let (recorder, _) = program.record();
    program.live.span(program.thread, None);
    for _ in 0..limits::SPAN_DEPTH + 50 {
        program.live.span(program.thread, Some("deeper"));
    }
    program.call(Kind::SyncStream { stream }, &[]);
    for _ in 0..limits::SPAN_DEPTH + 60 {
        program.live.span(program.thread, None);
    }
    let records = records(&recorder.finish().unwrap());
    let spans = records.iter().filter(|r| matches!(r, Record::Span { .. }));
    assert_eq!(spans.count(), 2 * limits::SPAN_DEPTH as usize);
}

// ------------------------------------------------------------------ files that break

/// A file that others can read, and that accepts only this many bytes.
#[derive(Clone, Debug)]
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    room: usize,
}

impl Disk {
    fn new(room: usize) -> Disk {
        let bytes = Arc::default();
        Disk { bytes, room }
    }

    fn read(&self) -> (Vec<Record<'static>>, Option<Error>) {
        let bytes = self.bytes.lock().unwrap();
        let (mut records, mut error) = (Vec::new(), None);
        for record in Reader::new(&bytes[..]).unwrap() {
            match record {
                Ok(record) => records.push(record),
                Err(e) => error = Some(e),
            }
        }
        (records, error)
    }
}

impl Write for Disk {
    fn write(&mut self, some: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        let room = self.room - bytes.len();
        if room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let some = &some[..some.len().min(room)];
        bytes.extend_from_slice(some);
        Ok(some.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_the_error_of_finish_and_the_program_continues() {
    let program = Program::new();
    let disk = Disk::new(100_000);
    let (recorder, sink) = Recorder::new(disk.clone()).unwrap();
    program.live.attach(sink);
    let findings = program.check(OnRace::Report);
    let stream = program.stream("");
    for _ in 0..100_000 {
        program.call(Kind::SyncStream { stream }, &[]);
    }
    assert_eq!(findings.ops(), 100_000);
    let error = recorder.finish().unwrap_err();
    assert!(
        error.to_string().contains("full") || error.to_string().contains("space"),
        "{error}"
    );
    let (records, cut) = disk.read();
    assert!(cut.unwrap().is_cut());
    assert!(ops(&records).len() > 10_000);
}

#[test]
fn a_process_that_ends_suddenly_leaves_the_flushed_part() {
    let program = Program::new();
    let disk = Disk::new(usize::MAX);
    let (recorder, sink) = Recorder::new(disk.clone()).unwrap();
    program.live.attach(sink);
    let stream = program.stream("");
    program.call(Kind::SyncStream { stream }, &[]);
    recorder.flush();
    program.call(Kind::SyncStream { stream }, &[]);
    // The bytes that a crash would leave.
    let (records, cut) = disk.read();
    assert!(cut.unwrap().is_cut());
    assert_eq!(ops(&records).len(), 1);
    drop(recorder);
    // The sink still records.
    program.call(Kind::SyncStream { stream }, &[]);
    program.live.detach();
    let (records, cut) = disk.read();
    assert!(cut.is_none(), "both halves are gone, so the log is ended");
    assert_eq!(ops(&records).len(), 3);
}

#[test]
fn an_invalid_record_ends_the_recording_and_is_reported() {
    let program = Program::new();
    let disk = Disk::new(usize::MAX);
    let (recorder, sink) = Recorder::new(disk.clone()).unwrap();
    program.live.attach(sink);
    for _ in 0..=limits::STREAMS {
        program.stream("");
    }
    let error = recorder.finish().unwrap_err().to_string();
    assert!(error.contains("at most 4096 streams"), "{error}");
    let (records, cut) = disk.read();
    assert!(cut.unwrap().is_cut());
    assert_eq!(records.len(), 1 + limits::STREAMS as usize);
}

// ------------------------------------------------------------------ checking

#[test]
fn a_race_panics_in_its_thread_and_only_when_that_thread_checks() {
    let program = Program::new();
    let other = program.beside("other");
    let findings = program.check(OnRace::Panic);
    program.live.span(program.thread, Some("forward"));
    program.race();
    assert_eq!(said(|| other.live.raise(other.thread)), None);
    let text = said(|| program.live.raise(program.thread)).expect("a panic");
    for part in [
        "RAW on A: the second may read before the first has written.",
        "op 0 on copies, in span forward, at ",
        "op 1 on kernels, in span forward, at ",
        "nothing makes kernels wait for copies",
        "fix: make kernels wait for copies: cudaEventRecord in copies, cudaStreamWaitEvent in kernels   before op 1 (at ",
        file!(),
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    // No lock is held and nothing is lost, and the panic comes only once.
    assert_eq!(said(|| program.live.raise(program.thread)), None);
    program.race();
    assert_eq!(said(|| program.live.raise(program.thread)), None);
    assert_eq!(findings.report().races.len(), 2);
}

#[test]
fn a_thread_that_panics_already_keeps_the_race_for_later() {
    struct Guard<'a>(&'a Program);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.0.live.raise(self.0.thread);
        }
    }
    let program = Program::new();
    program.check(OnRace::Panic);
    program.race();
    let text = said(|| {
        let _guard = Guard(&program);
        std::panic::panic_any("something else".to_owned());
    });
    assert_eq!(text.as_deref(), Some("something else"));
    assert!(said(|| program.live.raise(program.thread)).is_some());
}

#[test]
fn what_cuda_leaves_open_does_not_panic_and_is_reported() {
    let program = Program::new();
    let findings = program.check(OnRace::Panic);
    let stream = program.stream("");
    let device = program.buffer("");
    let host = {
        let mut pen = program.live.write().unwrap();
        pen.new_buffer(Memory::Pageable, 100, None, "P")
    };
    let (from, to) = (Memory::Device, Memory::Pageable);
    let copy = Kind::Copy { stream, from, to };
    program.call(copy, &[(device, Mode::Read), (host, Mode::Write)]);
    program.call(Kind::HostAccess, &[(host, Mode::Read)]);
    assert_eq!(said(|| program.live.raise(program.thread)), None);
    assert!(
        findings
            .text()
            .starts_with("1 race that CUDA leaves open, 1 remark\n")
    );
}

#[test]
fn a_call_that_cuda_refuses_panics_too_since_nothing_after_it_is_checked() {
    let program = Program::new();
    let findings = program.check(OnRace::Panic);
    let stream = program.stream("");
    program.call(Kind::EndCapture { stream }, &[]);
    let text = said(|| program.live.raise(program.thread)).expect("a panic");
    assert!(
        text.contains("this call fails, and the check ends there"),
        "{text}"
    );
    assert_eq!(findings.report().verdict(), Verdict::Error);
}

#[test]
fn a_check_that_reaches_its_memory_limit_ends_and_says_so() {
    for on_race in [OnRace::Report, OnRace::Panic] {
        let program = Program::new();
        let (findings, sink) = check::live(on_race, 100_000);
        program.live.attach(sink);
        let stream = program.stream("");
        while findings.ended().is_none() {
            program.buffer("one more");
        }
        program.call(Kind::SyncStream { stream }, &[]);
        let text = findings.text();
        assert!(
            text.contains("the check ended after 0 operations"),
            "{text}"
        );
        assert!(text.contains("more than 100000 bytes of memory"), "{text}");
        let raised = said(|| program.live.raise(program.thread));
        assert_eq!(raised.is_some(), on_race == OnRace::Panic);
    }
}

/// The limit is an estimate of the memory in use, so the memory of a run that stays below it forever does not grow
/// with each call.
#[test]
fn a_program_that_continues_and_reuses_its_ids_needs_no_more_memory() {
    let program = Program::new();
    let (findings, sink) = check::live(OnRace::Panic, 400_000);
    program.live.attach(sink);
    let (home, side) = (program.stream("home"), program.stream("side"));
    let legacy = (program.live).new_stream(StreamKind::Legacy, DeviceId(0), "");
    let blocking = (program.live).new_stream(StreamKind::Blocking, DeviceId(0), "");
    let event = program.live.new_event(false, DeviceId(0));
    let buffer = program.buffer("block");
    let host = {
        let mut pen = program.live.write().unwrap();
        pen.new_buffer(Memory::Pageable, 100, None, "staging")
    };
    let stream = home;
    for step in 0..100_000 {
        program.live.span(program.thread, Some("step"));
        let saw_events_of = (step > 0).then_some(buffer);
        let alloc = Kind::Alloc {
            buffer,
            stream: Some(home),
            saw_events_of,
        };
        program.call(alloc, &[]);
        let (from, to) = (Memory::Pageable, Memory::Device);
        let copy = Kind::Copy { stream, from, to };
        program.call(copy, &[(host, Mode::Read), (buffer, Mode::Write)]);
        program.call(Kind::Record { event, stream }, &[]);
        let wait = Kind::Wait {
            stream: side,
            event,
        };
        program.call(wait, &[]);
        program.kernel(side, buffer, Mode::Read);
        for stream in [legacy, blocking] {
            program.call(Kind::kernel(stream), &[]);
        }
        let stream = side;
        program.call(Kind::RecordStream { buffer, stream }, &[]);
        program.call(Kind::Free { buffer }, &[]);
        program.call(Kind::SyncStream { stream }, &[]);
        program.live.span(program.thread, None);
    }
    program.live.raise(program.thread);
    assert_eq!(findings.ended(), None);
    let report = findings.report();
    assert_eq!(report.verdict(), Verdict::Clean, "{}", findings.text());
    // Two kinds: copies that may block, and waits in a loop.
    assert!((1..10).contains(&report.lints.len()), "{:?}", report.lints);
}

#[test]
fn a_program_that_makes_up_names_of_spans_is_told_the_span_around_them() {
    let program = Program::new();
    let findings = program.check(OnRace::Report);
    program.live.span(program.thread, Some("training"));
    for step in 0..70_000 {
        let name = format!("step {step}");
        program.live.span(program.thread, Some(&name));
        if step == 7 || step == 69_999 {
            program.race();
        }
        program.live.span(program.thread, None);
    }
    let text = findings.text();
    assert!(text.contains("in span step 7,"), "{text}");
    assert!(text.contains("in span training,"), "{text}");
}
