//! Checks that the comparison with the oracle notices a checker that is wrong in one way.
//!
//! The checker has no switches for this. Its input is falsified instead: a checker that is given no waits behaves
//! like one that forgets waits. And its output is falsified: a report without its last race is that of a checker that
//! overlooks the race. The table that this prints is in broken_checker.txt.

use crate::oracle::compare::{Printed, PrintedRace, faults};
use crate::oracle::generate::{Options, random_prog};
use crate::oracle::model::{Answer, judge};
use crate::oracle::vary::varied;
use sidestream::check::{Checker, Report};
use sidestream::log::{Record, Within};
use sidestream::op::{
    BufferId, DeviceId, FlagId, GraphId, Kind, Memory, Mode, Op, OpId, SiteId, StreamId,
    StreamKind, ThreadId,
};
use sidestream_program::{Command, Lowered, POOL_STREAMS, Program, lower};

/// Number of random programs that each mutation is tried on.
const PROGRAMS: u64 = 3_000;

/// Description and effect.
type Mutation<T> = (&'static str, fn(&mut T));

/// Mutations of the checker's input.
const MISTOLD: &[Mutation<Lowered>] = &[
    ("waits for events are dropped", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::Wait { .. }));
    }),
    ("wait_stream is dropped", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::WaitStream { .. }));
    }),
    ("wait_stream waits the other way round", |p| {
        each_kind(p, |kind| {
            if let Kind::WaitStream { stream, source } = kind {
                std::mem::swap(stream, source);
            }
        });
    }),
    ("records are dropped", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::Record { .. }));
    }),
    ("sync_stream is dropped", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::SyncStream { .. }));
    }),
    ("sync_event is dropped", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::SyncEvent { .. }));
    }),
    ("sync_device is dropped", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::SyncDevice { .. }));
    }),
    ("sync_device is always of device 0", |p| {
        each_kind(p, |kind| {
            if let Kind::SyncDevice { device } = kind {
                *device = Some(DeviceId(0));
            }
        });
    }),
    ("sync_stream waits for the whole device", |p| {
        let devices: Vec<_> = p.streams.iter().map(|s| s.device).collect();
        each_kind(p, |kind| {
            if let Kind::SyncStream { stream } = *kind {
                let device = devices.get(stream.0 as usize).copied();
                *kind = Kind::SyncDevice { device };
            }
        });
    }),
    ("every query answers done", |p| set_queries(p, true)),
    ("no query answers done", |p| set_queries(p, false)),
    ("set_flag is dropped", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::SetFlag { .. }));
    }),
    ("wait_flag is dropped", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::WaitFlag { .. }));
    }),
    ("all flags are one", |p| {
        each_kind(p, |kind| match kind {
            Kind::SetFlag { flag } | Kind::WaitFlag { flag } => *flag = FlagId(0),
            Kind::HostFunc { raises, .. } => *raises = raises.map(|_| FlagId(0)),
            _ => {}
        });
    }),
    ("host functions raise no flag", |p| {
        each_kind(p, |kind| {
            if let Kind::HostFunc { raises, .. } = kind {
                *raises = None;
            }
        });
    }),
    ("host functions are kernels", |p| {
        each_kind(p, |kind| {
            if let Kind::HostFunc { stream, .. } = *kind {
                *kind = Kind::kernel(stream);
            }
        });
    }),
    ("all graphs are one", |p| {
        each_kind(p, |kind| {
            if let Kind::GraphLaunch { graph, .. } = kind {
                *graph = GraphId(0);
            }
        });
    }),
    ("every launch is of a graph of its own", |p| {
        each(p, |op| {
            if let Kind::GraphLaunch { graph, .. } = &mut op.kind {
                *graph = GraphId(op.id.0);
            }
        });
    }),
    ("all threads are one", |p| {
        each(p, |op| op.thread = ThreadId(0))
    }),
    ("non-blocking streams are blocking", |p| {
        each_stream(p, StreamKind::NonBlocking, StreamKind::Blocking);
    }),
    ("blocking streams are non-blocking", |p| {
        each_stream(p, StreamKind::Blocking, StreamKind::NonBlocking);
    }),
    ("per-thread streams are non-blocking", |p| {
        each_stream(p, StreamKind::PerThread, StreamKind::NonBlocking);
    }),
    ("the legacy stream is a blocking stream", |p| {
        each_stream(p, StreamKind::Legacy, StreamKind::Blocking);
    }),
    ("set_device is dropped", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::SetDevice { .. }));
    }),
    ("all streams are on device 0", |p| {
        // A device has only one legacy stream: two of them would become one stream on device 0.
        let legacy = |s: &&mut sidestream_program::Stream| s.kind == StreamKind::Legacy;
        if p.streams.iter_mut().filter(legacy).count() < 2 {
            for stream in &mut p.streams {
                stream.device = DeviceId(0);
            }
        }
    }),
    ("ranges begin one byte too early", |p| {
        each_access(p, |a| {
            a.start = a.start.saturating_sub(u64::from(a.start < a.end))
        });
    }),
    ("ranges begin one byte too late", |p| {
        each_access(p, |a| a.start = (a.start + 1).min(a.end));
    }),
    ("ranges end one byte too early", |p| {
        each_access(p, |a| a.end = (a.end.max(1) - 1).max(a.start));
    }),
    ("ranges begin at the start of the buffer", |p| {
        each_access(p, |a| a.start = if a.start < a.end { 0 } else { a.start });
    }),
    ("empty ranges touch a byte", |p| {
        each_access(p, |a| {
            if a.start == a.end && a.start > 0 {
                a.start -= 1;
            }
        });
    }),
    ("reads are writes", |p| {
        each_access(p, |a| a.mode = Mode::Write);
    }),
    ("writes are reads", |p| {
        each_access(p, |a| a.mode = Mode::Read);
    }),
    ("atomic accesses are writes", |p| {
        each_access(p, |a| {
            if a.mode == Mode::Atomic {
                a.mode = Mode::Write;
            }
        });
    }),
    ("atomic accesses only may write", |p| {
        each_access(p, |a| {
            if a.mode == Mode::Atomic {
                a.mode = Mode::MayWrite;
            }
        });
    }),
    ("only the first access of an op counts", |p| {
        each(p, |op| op.accesses.truncate(1));
    }),
    ("only the last access of an op counts", |p| {
        each(p, |op| {
            let skipped = op.accesses.len().saturating_sub(1);
            op.accesses = op.accesses.iter().skip(skipped).copied().collect();
        });
    }),
    ("the reads of ops that write do not count", |p| {
        each(p, |op| {
            if op.accesses.iter().any(|a| a.mode == Mode::Write) {
                op.accesses.retain(|a| a.mode == Mode::Write);
            }
        });
    }),
    ("host accesses are not seen", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::HostAccess));
    }),
    ("the ends of lives are not seen", |p| {
        drop_ops(p, |kind| {
            matches!(
                kind,
                Kind::FreeAsync { .. } | Kind::CudaFree { .. } | Kind::FreePinned
            )
        });
    }),
    ("malloc_async is a kernel that writes", |p| {
        each_kind(p, |kind| {
            if let Kind::MallocAsync { stream } = *kind {
                *kind = Kind::Memset { stream };
            }
        });
    }),
    ("free_async is a kernel that writes", |p| {
        each_kind(p, |kind| {
            if let Kind::FreeAsync { stream } = *kind {
                *kind = Kind::Memset { stream };
            }
        });
    }),
    ("cuda_free and free_pinned are host accesses", |p| {
        each_kind(p, |kind| {
            if matches!(kind, Kind::CudaFree { .. } | Kind::FreePinned) {
                *kind = Kind::HostAccess;
            }
        });
    }),
    ("cuda_free never waits", |p| set_cuda_frees(p, true)),
    ("cuda_free may always wait", |p| set_cuda_frees(p, false)),
    ("a free of the allocator ends the life at the call", |p| {
        let sizes: Vec<u64> = p.buffers.iter().map(|b| b.size_bytes).collect();
        each(p, |op| {
            if let Kind::Free { buffer } = op.kind {
                op.kind = Kind::FreePinned;
                op.accesses.push(sidestream::op::Access {
                    buffer,
                    start: 0,
                    end: sizes[buffer.0 as usize],
                    mode: Mode::Write,
                });
            }
        });
    }),
    ("record_stream is dropped", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::RecordStream { .. }));
    }),
    ("the allocator saw no events", |p| {
        each_kind(p, |kind| {
            if let Kind::Alloc { saw_events_of, .. } = kind {
                *saw_events_of = None;
            }
        });
    }),
    ("the allocator always saw the events", |p| {
        let below: Vec<_> = p.buffers.iter().map(|b| b.over).collect();
        each_kind(p, |kind| {
            if let Kind::Alloc {
                buffer,
                saw_events_of,
                ..
            } = kind
            {
                *saw_events_of = below[buffer.0 as usize].map(|(earlier, _)| earlier);
            }
        });
    }),
    ("later tenants have bytes of their own", |p| {
        p.buffers.iter_mut().for_each(|b| b.over = None);
    }),
    ("later tenants lie at the start of the earlier one", |p| {
        for buffer in &mut p.buffers {
            buffer.over = buffer.over.map(|(below, _)| (below, 0));
        }
    }),
    ("a tenant of a tenant has bytes of its own", |p| {
        for at in 0..p.buffers.len() {
            let below = p.buffers[at].over;
            if below.is_some_and(|(below, _)| p.buffers[below.0 as usize].over.is_some()) {
                p.buffers[at].over = None;
            }
        }
    }),
    ("later tenants are the earlier buffer", |p| {
        let below: Vec<_> = p.buffers.iter().map(|b| b.over).collect();
        each_access(p, |a| {
            while let Some((buffer, start)) = below[a.buffer.0 as usize] {
                (a.buffer, a.start, a.end) = (buffer, a.start + start, a.end + start);
            }
        });
    }),
    ("pinned memory is pageable", |p| {
        each_memory(p, Memory::Pinned, Memory::Pageable);
    }),
    ("pageable memory is pinned", |p| {
        each_memory(p, Memory::Pageable, Memory::Pinned);
    }),
    ("managed memory is device memory", |p| {
        each_memory(p, Memory::Managed, Memory::Device);
    }),
    ("managed memory is pinned", |p| {
        each_memory(p, Memory::Managed, Memory::Pinned);
    }),
    ("device memory is pinned", |p| {
        each_memory(p, Memory::Device, Memory::Pinned);
    }),
    ("copies go the other way", |p| {
        each(p, |op| {
            if let Kind::Copy { from, to, .. } | Kind::CopyBlocking { from, to } = &mut op.kind {
                std::mem::swap(from, to);
            }
        });
    }),
    ("blocking copies are asynchronous", |p| {
        let legacy = p.streams.iter().position(|s| s.kind == StreamKind::Legacy);
        each_kind(p, |kind| {
            if let (Kind::CopyBlocking { from, to }, Some(at)) = (*kind, legacy) {
                let stream = StreamId(at as u32);
                *kind = Kind::Copy { stream, from, to };
            }
        });
    }),
    ("asynchronous copies block", |p| {
        each_kind(p, |kind| {
            if let Kind::Copy { from, to, .. } = *kind {
                *kind = Kind::CopyBlocking { from, to };
            }
        });
    }),
    ("blocking memsets always block", |p| {
        each_kind(p, |kind| {
            if let Kind::MemsetBlocking { to } = kind {
                *to = Memory::Pinned;
            }
        });
    }),
    ("creating or destroying an event keeps its record", |p| {
        drop_ops(p, |kind| {
            matches!(kind, Kind::CreateEvent { .. } | Kind::DestroyEvent { .. })
        });
    }),
    ("elapsed is never asked", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::Elapsed { .. }));
    }),
    ("elapsed looks at one event", |p| {
        each_kind(p, |kind| {
            if let Kind::Elapsed { from, to } = kind {
                *to = *from;
            }
        });
    }),
    ("all events keep times", |p| {
        p.events.iter_mut().for_each(|e| e.0 = true);
    }),
    ("events belong to no device", |p| {
        p.events.iter_mut().for_each(|e| e.1 = None);
    }),
    ("begin_capture is dropped", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::BeginCapture { .. }));
    }),
    ("captures never end", |p| {
        drop_ops(p, |kind| matches!(kind, Kind::EndCapture { .. }));
    }),
    ("sites are dropped", |p| {
        each(p, |op| op.site = SiteId(op.id.0))
    }),
    ("all sites are one", |p| each(p, |op| op.site = SiteId(0))),
    ("pools are not seen", |p| {
        for command in &mut p.commands {
            if matches!(command, Command::PoolGet { .. }) {
                *command = Command::SetCapacity { blocks: 1 };
            }
        }
    }),
    ("pools hold one stream more", |p| {
        for command in &mut p.commands {
            if let Command::PoolGet { asked } = command {
                *asked = asked.saturating_sub(1);
            }
        }
    }),
    ("every second op is not seen", |p| {
        each(p, |op| {
            if op.id.0 % 2 == 1 {
                nothing(op);
            }
        });
    }),
];

/// Mutations of the checker's output.
const MISREPORTED: &[Mutation<Printed>] = &[
    ("the first race is missing", |said| {
        said.races.drain(..said.races.len().min(1));
    }),
    ("the last race is missing", |said| {
        said.races.pop();
    }),
    ("no UAF is reported", |said| without(said, "UAF")),
    ("no UBA is reported", |said| without(said, "UBA")),
    ("no RAW is reported", |said| without(said, "RAW")),
    ("no WAR is reported", |said| without(said, "WAR")),
    ("no WAW is reported", |said| without(said, "WAW")),
    ("no HOST_RAW is reported", |said| without(said, "HOST_RAW")),
    ("no HOST_WAR is reported", |said| without(said, "HOST_WAR")),
    ("no HOST_WAW is reported", |said| without(said, "HOST_WAW")),
    ("no TIMING is reported", |said| without(said, "TIMING")),
    ("only one race for a second op", |said| {
        said.races.dedup_by_key(|race| race.second);
    }),
    ("only one race for a buffer", |said| {
        let mut seen = std::collections::HashSet::new();
        said.races.retain(|race| seen.insert(race.buffer.clone()));
    }),
    ("RAW is called WAR", |said| renamed(said, "RAW", "WAR")),
    ("WAR is called RAW", |said| renamed(said, "WAR", "RAW")),
    ("WAW is called WAR", |said| renamed(said, "WAW", "WAR")),
    ("HOST_RAW is called RAW", |said| {
        renamed(said, "HOST_RAW", "RAW")
    }),
    ("HOST_RAW is called HOST_WAR", |said| {
        renamed(said, "HOST_RAW", "HOST_WAR")
    }),
    ("HOST_WAW is called WAW", |said| {
        renamed(said, "HOST_WAW", "WAW")
    }),
    ("UAF is called WAW", |said| renamed(said, "UAF", "WAW")),
    ("UBA is called RAW", |said| renamed(said, "UBA", "RAW")),
    ("UBA is called UAF", |said| renamed(said, "UBA", "UAF")),
    ("every race is an error", |said| {
        each_race(said, |race| race.severity = "error".to_owned());
    }),
    ("every race is a warning", |said| {
        each_race(said, |race| race.severity = "warn".to_owned());
    }),
    ("first and second change places", |said| {
        each_race(said, |race| {
            std::mem::swap(&mut race.first, &mut race.second)
        });
    }),
    ("the second op is off by one", |said| {
        each_race(said, |race| race.second -= 1);
    }),
    ("the first op is off by one", |said| {
        each_race(said, |race| race.first += 1);
    }),
    ("buffers are not named", |said| {
        each_race(said, |race| race.buffer = None);
    }),
    ("a race is said twice", |said| {
        let first = said.races.first().cloned();
        said.races.splice(0..0, first);
    }),
    ("the last race comes first", |said| said.races.reverse()),
    ("the first ops of two races are exchanged", |said| {
        if let [a, b, ..] = &mut said.races[..] {
            std::mem::swap(&mut a.first, &mut b.first);
        }
    }),
    ("the verdict is always clean", |said| {
        said.verdict = "clean".to_owned()
    }),
    ("warnings alone are called clean", |said| {
        if said.error.is_none() && said.races.iter().all(|race| race.severity == "warn") {
            said.verdict = "clean".to_owned();
        }
    }),
    ("refused calls are not reported", |said| said.error = None),
    ("refused calls are one op off", |said| {
        said.error = said.error.take().map(|(at, code)| (at + 1, code));
    }),
    ("nothing before a refused call is reported", |said| {
        if said.error.is_some() {
            said.races.clear();
        }
    }),
    ("no UNPINNED_ASYNC_COPY", |said| {
        unsaid(said, "UNPINNED_ASYNC_COPY")
    }),
    ("no DEFAULT_STREAM_SERIALIZATION", |said| {
        unsaid(said, "DEFAULT_STREAM_SERIALIZATION");
    }),
    ("no WAIT_ON_UNRECORDED_EVENT", |said| {
        unsaid(said, "WAIT_ON_UNRECORDED_EVENT")
    }),
    ("no SYNC_IN_LOOP", |said| unsaid(said, "SYNC_IN_LOOP")),
    ("no FOREIGN_DEVICE_LAUNCH", |said| {
        unsaid(said, "FOREIGN_DEVICE_LAUNCH")
    }),
    ("no STREAM_POOL_ALIAS", |said| {
        unsaid(said, "STREAM_POOL_ALIAS")
    }),
    ("remarks are one op off", |said| {
        said.lints.iter_mut().for_each(|lint| lint.1 += 1);
    }),
    ("remarks are said twice", |said| {
        let again = said.lints.clone();
        said.lints.extend(again);
    }),
];

#[test]
fn a_broken_checker_is_noticed() {
    println!("seeds 0..{PROGRAMS}, options drawn from each seed");
    let cases: Vec<Case> = (0..PROGRAMS).filter_map(Case::of).collect();
    // `checker_oracle` tests that the unbroken checker is right.
    assert_eq!(cases.len() as u64, PROGRAMS);
    let page = include_str!("broken_checker.txt");
    let (mut unnoticed, mut unlisted) = (Vec::new(), Vec::new());
    println!("| broken | first seed | of {} programs |", cases.len());
    println!("|---|---|---|");
    let mut needed = 0;
    let mut show = |what: &'static str, noticed: Vec<u64>| match noticed.first() {
        Some(seed) => {
            needed = needed.max(seed + 1);
            let row = format!("| {what} | {seed} | {} |", noticed.len());
            println!("{row}");
            if !page.contains(&row) {
                unlisted.push(row);
            }
        }
        None => unnoticed.push(what),
    };
    for &(what, falsify) in MISTOLD {
        let notices = |case: &&Case| {
            let mut told = case.lowered.clone();
            falsify(&mut told);
            !case.accepts(&case.said(&told))
        };
        show(what, cases.iter().filter(notices).map(|c| c.seed).collect());
    }
    for &(what, falsify) in MISREPORTED {
        let notices = |case: &&Case| {
            let mut said = case.right.clone();
            falsify(&mut said);
            !case.accepts(&said)
        };
        show(what, cases.iter().filter(notices).map(|c| c.seed).collect());
    }
    println!("{needed} programs notice all of them; {PROGRAMS} are tried");
    assert!(unnoticed.is_empty(), "nothing notices {unnoticed:#?}");
    assert!(
        unlisted.is_empty(),
        "tests/broken_checker.txt lacks {unlisted:#?}"
    );
}

/// A random program with the oracle's answer and the output of the unbroken checker.
struct Case {
    seed: u64,
    program: Program,
    answer: Answer,
    lowered: Lowered,
    right: Printed,
}

impl Case {
    /// Every second program is varied. Returns none if the unbroken checker and the oracle differ.
    fn of(seed: u64) -> Option<Case> {
        let mut prog = random_prog(seed, &Options::from_seed(seed));
        if seed % 2 == 1 {
            prog = varied(&prog, seed);
        }
        let program = prog.to_program();
        let lowered = lower(&program);
        let right = Printed {
            verdict: String::new(),
            races: Vec::new(),
            lints: Vec::new(),
            error: None,
        };
        let mut case = Case {
            seed,
            program,
            answer: judge(&prog),
            lowered,
            right,
        };
        case.right = case.said(&case.lowered);
        case.accepts(&case.right).then_some(case)
    }

    fn accepts(&self, said: &Printed) -> bool {
        faults(&self.answer, said).is_empty()
    }

    /// Returns the output of the checker for this input.
    fn said(&self, told: &Lowered) -> Printed {
        let report = report(told);
        let name = |buffer: BufferId| {
            let name = told.buffers[buffer.0 as usize].name;
            self.program.buffers[name.0 as usize].name.clone()
        };
        let race = |race: &sidestream::check::Race| PrintedRace {
            kind: race.kind.code().to_owned(),
            buffer: race.buffer.map(name),
            first: race.first.0 as usize,
            second: race.second.0 as usize,
            severity: race.severity().name().to_owned(),
        };
        let lints = report.lints.iter();
        Printed {
            verdict: report.verdict().name().to_owned(),
            races: report.races.iter().map(race).collect(),
            lints: lints
                .map(|lint| (lint.code.code().to_owned(), lint.op.0 as usize))
                .collect(),
            error: report
                .error
                .map(|refused| (refused.op.0 as usize, refused.misuse.code.name().to_owned())),
        }
    }
}

fn report(told: &Lowered) -> Report {
    let mut checker = Checker::new();
    told.declare(checker.order_mut());
    for buffer in &told.buffers {
        let within = buffer.over.map(|(buffer, start)| Within { buffer, start });
        checker.add_buffer(buffer.memory, buffer.size_bytes, within);
    }
    for (at, command) in told.commands.iter().enumerate() {
        match command {
            Command::Op(op) if checker.push(op).is_err() => break,
            Command::PoolGet { asked } => {
                let (op, asked, size) = (OpId(at as u32), *asked as u32, POOL_STREAMS);
                let _ = checker.take(&Record::Pool { op, asked, size });
            }
            _ => {}
        }
    }
    checker.report()
}

// ------------------------------------------------------------------ small changes

fn each(told: &mut Lowered, mut change: impl FnMut(&mut Op)) {
    for command in &mut told.commands {
        if let Command::Op(op) = command {
            change(op);
        }
    }
}

fn each_kind(told: &mut Lowered, mut change: impl FnMut(&mut Kind)) {
    each(told, |op| change(&mut op.kind));
}

fn each_access(told: &mut Lowered, mut change: impl FnMut(&mut sidestream::op::Access)) {
    each(told, |op| op.accesses.iter_mut().for_each(&mut change));
}

fn drop_ops(told: &mut Lowered, unwanted: impl Fn(&Kind) -> bool) {
    each(told, |op| {
        if unwanted(&op.kind) {
            nothing(op);
        }
    });
}

/// Replaces an op by one that orders nothing and touches nothing.
fn nothing(op: &mut Op) {
    op.kind = Kind::CudaMalloc;
    op.accesses.clear();
}

fn set_queries(told: &mut Lowered, answer: bool) {
    each_kind(told, |kind| {
        if let Kind::QueryStream { done, .. } | Kind::QueryEvent { done, .. } = kind {
            *done = answer;
        }
    });
}

fn set_cuda_frees(told: &mut Lowered, answer: bool) {
    each_kind(told, |kind| {
        if let Kind::CudaFree { stream_ordered } = kind {
            *stream_ordered = answer;
        }
    });
}

fn each_stream(told: &mut Lowered, old: StreamKind, new: StreamKind) {
    for stream in told.streams.iter_mut().filter(|s| s.kind == old) {
        stream.kind = new;
    }
}

/// Declares buffers of one kind as another, and adapts their copies and memsets.
fn each_memory(told: &mut Lowered, old: Memory, new: Memory) {
    let change = |memory: &mut Memory| {
        if *memory == old {
            *memory = new;
        }
    };
    told.buffers.iter_mut().for_each(|b| change(&mut b.memory));
    each_kind(told, |kind| match kind {
        Kind::Copy { from, to, .. } | Kind::CopyBlocking { from, to } => {
            change(from);
            change(to);
        }
        Kind::MemsetBlocking { to } => change(to),
        _ => {}
    });
}

fn each_race(said: &mut Printed, change: impl FnMut(&mut PrintedRace)) {
    said.races.iter_mut().for_each(change);
}

fn without(said: &mut Printed, kind: &str) {
    said.races.retain(|race| race.kind != kind);
}

fn renamed(said: &mut Printed, old: &str, new: &str) {
    each_race(said, |race| {
        if race.kind == old {
            race.kind = new.to_owned();
        }
    });
}

fn unsaid(said: &mut Printed, code: &str) {
    said.lints.retain(|lint| lint.0 != code);
}
