//! The explicit style on the simulated GPU: each race is named by the checker that listens, shows in
//! the bytes where it can, and is gone in the repaired twin.

use std::sync::{Arc, Mutex};

use sidestream::check::{OnRace, RaceKind, Report};
use sidestream::device::{Device, Options};
use sidestream::error::Error;
use sidestream::explicit::{self, Arg, DeviceMemory, Event, HostMemory, Stream};
use sidestream::kernel::{Grid, Kernel, KernelCost, Read, Value, Write};
use sidestream::log::{Record, Sink};
use sidestream::op::{Kind, StreamKind};
use sidestream::sim::Schedule;

use crate::refusing::{IS_CALLBACK, Refusing};

const BYTES: u64 = 4096;

fn schedules() -> impl Iterator<Item = Schedule> {
    let seeded = (0..24).map(Schedule::Seeded);
    seeded.chain([Schedule::InOrder, Schedule::Adversarial])
}

/// What the program read at last, and what the checker says.
fn run(schedule: Schedule, program: impl Fn(&Device) -> u8) -> (u8, Report) {
    let options = Options::new().schedule(schedule);
    let device = Device::open_with("sim:h200", &options).unwrap();
    let findings = device.checked(OnRace::Report);
    let value = program(&device);
    drop(device);
    assert_eq!(findings.ended(), None);
    (value, findings.report())
}

/// A program with a race and its repaired twin, which is the same program given `true`. The twin
/// gives `expected` under every schedule and is clean. The racy one has the race under every
/// schedule, and gives something else under some seeded schedule if it `shows`.
fn check(kind: RaceKind, expected: u8, shows: bool, program: impl Fn(&Device, bool) -> u8) {
    let mut wrong = Vec::new();
    for schedule in schedules() {
        let (value, report) = run(schedule, |device| program(device, true));
        assert_eq!(kinds(&report), Vec::<RaceKind>::new(), "{schedule}");
        assert_eq!(value, expected, "under {schedule}");

        let (value, report) = run(schedule, |device| program(device, false));
        assert_eq!(kinds(&report), [kind], "under {schedule}");
        if value != expected {
            wrong.push(schedule);
        }
    }
    let is_seeded = |schedule: &Schedule| matches!(schedule, Schedule::Seeded(_));
    assert_eq!(wrong.iter().any(is_seeded), shows, "wrong under {wrong:?}");
}

/// The kinds of the races, each once.
fn kinds(report: &Report) -> Vec<RaceKind> {
    let mut kinds: Vec<RaceKind> = report.races.iter().map(|race| race.kind).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Adds to every byte. It takes a while.
fn add() -> Kernel<(Read<u8>, Write<u8>, Value<u8>)> {
    Kernel::<(Read<u8>, Write<u8>, Value<u8>)>::on_host("add", |_, (x, y, n)| {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x.wrapping_add(n);
        }
    })
    .with_cost(|_| KernelCost::Duration {
        ns: 50_000,
        share: 0.5,
    })
}

fn pinned(device: &Device, value: u8) -> HostMemory {
    let memory = HostMemory::pinned(device, BYTES).unwrap();
    memory.write(0, &[value; BYTES as usize]);
    memory
}

fn last(memory: &HostMemory) -> u8 {
    let mut byte = [0];
    memory.read(BYTES - 1, &mut byte);
    byte[0]
}

fn stream(device: &Device, name: &str) -> Stream {
    Stream::non_blocking(device, name, 0).unwrap()
}

// In all of these tests the memory lives until the device was synchronised with, and what the racy
// half of a program breaks is the promise of order: that is its purpose.

#[test]
fn a_missing_wait_between_two_streams_is_named() {
    check(RaceKind::Raw, 7, true, |device, waits| {
        let (up, down) = (stream(device, "up"), stream(device, "down"));
        let (from, to) = (pinned(device, 7), pinned(device, 0));
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        let copied = Event::new(device).unwrap();
        // SAFETY: see above.
        unsafe {
            up.memcpy(from.all(), data.all()).unwrap();
            up.record(&copied).unwrap();
            if waits {
                down.wait(&copied).unwrap();
            }
            down.memcpy(data.all(), to.all()).unwrap();
        }
        down.synchronize().unwrap();
        let value = last(&to);
        explicit::synchronize(device).unwrap();
        value
    });
}

#[test]
fn the_report_names_both_call_sites_and_the_call_that_is_missing() {
    let options = Options::new().schedule(Schedule::Seeded(1));
    let device = Device::open_with("sim:h200", &options).unwrap();
    let findings = device.checked(OnRace::Report);
    let (up, down) = (stream(&device, "up"), stream(&device, "down"));
    let data = DeviceMemory::malloc(&device, BYTES).unwrap();
    let line = line!();
    // SAFETY: see above.
    unsafe {
        up.memset(data.bytes(0..100), 1).unwrap();
        down.memset(data.bytes(99..), 2).unwrap();
        down.memset(data.bytes(..99), 2).unwrap();
    }
    explicit::synchronize(&device).unwrap();
    let text = findings.text();
    for expected in [
        "WAW on crates/sidestream/tests/explicit.rs".to_owned(),
        format!("on up, at crates/sidestream/tests/explicit.rs:{}", line + 3),
        format!(
            "on down, at crates/sidestream/tests/explicit.rs:{}",
            line + 4
        ),
        "fix: - {do: wait_stream, s: down, src: up".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected} in {text}");
    }
    assert_eq!(findings.report().races.len(), 2);
}

#[test]
fn a_download_that_the_host_reads_too_early_is_named() {
    check(RaceKind::HostRaw, 9, true, |device, waits| {
        let down = stream(device, "down");
        let (from, to) = (pinned(device, 9), pinned(device, 0));
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        // SAFETY: see above.
        unsafe {
            down.memcpy(from.all(), data.all()).unwrap();
            down.memcpy(data.all(), to.all()).unwrap();
        }
        if waits {
            down.synchronize().unwrap();
        }
        let value = last(&to);
        explicit::synchronize(device).unwrap();
        value
    });
}

#[test]
fn a_source_that_the_host_overwrites_too_early_is_named() {
    check(RaceKind::HostWar, 1, true, |device, waits| {
        let up = stream(device, "up");
        let (from, to) = (pinned(device, 1), pinned(device, 0));
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        let copied = Event::new(device).unwrap();
        // SAFETY: see above.
        unsafe { up.memcpy(from.all(), data.all()).unwrap() };
        up.record(&copied).unwrap();
        while waits && !copied.query().unwrap() {}
        from.write(0, &[2u8; BYTES as usize]);
        // SAFETY: see above.
        unsafe { up.memcpy(data.all(), to.all()).unwrap() };
        explicit::synchronize(device).unwrap();
        last(&to)
    });
}

#[test]
fn memory_that_is_freed_while_another_stream_uses_it_is_named() {
    check(RaceKind::Uaf, 3, true, |device, waits| {
        let (owner, other) = (stream(device, "owner"), stream(device, "other"));
        let (from, to) = (pinned(device, 3), pinned(device, 0));
        let data = owner.malloc_async(BYTES).unwrap();
        // SAFETY: see above.
        unsafe {
            owner.memcpy(from.all(), data.all()).unwrap();
            other.wait_stream(&owner).unwrap();
            other.memcpy(data.all(), to.all()).unwrap();
            if waits {
                owner.wait_stream(&other).unwrap();
            }
            let before = data.all().address();
            owner.free_async(data).unwrap();
            // It is handed out again in the order of its stream.
            let next = owner.malloc_async(BYTES).unwrap();
            assert_eq!(next.all().address(), before);
            owner.memset(next.all(), 99).unwrap();
            explicit::synchronize(device).unwrap();
        }
        last(&to)
    });
}

#[test]
fn memory_that_was_freed_in_stream_order_is_given_back_when_there_is_no_other() {
    let options = Options::new().memory_bytes(10_000);
    let device = Device::open_with("sim:h200", &options).unwrap();
    let owner = stream(&device, "owner");
    let first = owner.malloc_async(6_000).unwrap();
    let full = DeviceMemory::malloc(&device, 7_000);
    assert!(matches!(full, Err(Error::OutOfMemory(_))), "{full:?}");
    owner.free_async(first).unwrap();
    let second = DeviceMemory::malloc(&device, 7_000).unwrap();
    drop(second);
    owner.malloc_async(8_000).unwrap();
}

#[test]
fn memory_of_a_stream_that_another_one_uses_before_it_is_there_is_named() {
    check(RaceKind::Uba, 5, false, |device, waits| {
        let (owner, other) = (stream(device, "owner"), stream(device, "other"));
        let to = pinned(device, 0);
        let data = owner.malloc_async(BYTES).unwrap();
        if waits {
            other.wait_stream(&owner).unwrap();
        }
        // SAFETY: see above.
        unsafe {
            other.memset(data.all(), 5).unwrap();
            other.memcpy(data.all(), to.all()).unwrap();
        }
        explicit::synchronize(device).unwrap();
        last(&to)
    });
}

#[test]
fn pinned_memory_that_is_freed_while_a_copy_reads_it_is_named() {
    check(RaceKind::Uaf, 4, false, |device, waits| {
        let up = stream(device, "up");
        let (from, to) = (pinned(device, 4), pinned(device, 0));
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        // SAFETY: see above.
        unsafe { up.memcpy(from.all(), data.all()).unwrap() };
        if waits {
            up.synchronize().unwrap();
        }
        from.free();
        // SAFETY: see above.
        unsafe { up.memcpy(data.all(), to.all()).unwrap() };
        explicit::synchronize(device).unwrap();
        last(&to)
    });
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_for_no_others() {
    check(RaceKind::Raw, 6, true, |device, is_blocking| {
        let up = match is_blocking {
            true => Stream::blocking(device, "up").unwrap(),
            false => stream(device, "up"),
        };
        let legacy = Stream::legacy(device).unwrap();
        let (from, to) = (pinned(device, 6), pinned(device, 0));
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        // SAFETY: see above.
        unsafe {
            up.memcpy(from.all(), data.all()).unwrap();
            legacy.memcpy(data.all(), to.all()).unwrap();
        }
        legacy.synchronize().unwrap();
        let value = last(&to);
        explicit::synchronize(device).unwrap();
        value
    });
}

#[test]
fn a_blocking_upload_from_pageable_memory_is_not_over_when_it_returns() {
    check(RaceKind::Raw, 8, true, |device, waits| {
        let down = stream(device, "down");
        let from = HostMemory::pageable(device, BYTES).unwrap();
        from.write(0, &[8u8; BYTES as usize]);
        let to = pinned(device, 0);
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        // SAFETY: see above.
        unsafe { explicit::memcpy_blocking(from.all(), data.all()).unwrap() };
        // That the source may change again is promised.
        from.write(0, &[77u8; BYTES as usize]);
        if waits {
            Stream::legacy(device).unwrap().synchronize().unwrap();
        }
        // SAFETY: see above.
        unsafe { down.memcpy(data.all(), to.all()).unwrap() };
        down.synchronize().unwrap();
        let value = last(&to);
        explicit::synchronize(device).unwrap();
        value
    });
}

#[test]
fn a_wait_that_was_placed_before_a_record_does_not_see_it() {
    check(RaceKind::Raw, 7, true, |device, records_first| {
        let (up, down) = (stream(device, "up"), stream(device, "down"));
        let (from, to) = (pinned(device, 7), pinned(device, 0));
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        let event = Event::new(device).unwrap();
        up.record(&event).unwrap();
        if !records_first {
            down.wait(&event).unwrap();
        }
        // SAFETY: see above.
        unsafe { up.memcpy(from.all(), data.all()).unwrap() };
        up.record(&event).unwrap();
        if records_first {
            down.wait(&event).unwrap();
        }
        // SAFETY: see above.
        unsafe { down.memcpy(data.all(), to.all()).unwrap() };
        down.synchronize().unwrap();
        let value = last(&to);
        explicit::synchronize(device).unwrap();
        value
    });
}

#[test]
fn the_default_streams_of_two_threads_do_not_wait_for_each_other() {
    check(RaceKind::Raw, 2, true, |device, waits| {
        let (from, to) = (pinned(device, 2), pinned(device, 0));
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        let event = Event::new(device).unwrap();
        let handed = explicit::hand_over(device).unwrap();
        std::thread::scope(|scope| {
            let upload = scope.spawn(|| {
                handed.take().unwrap();
                let mine = Stream::per_thread(device).unwrap();
                // SAFETY: see above.
                unsafe { mine.memcpy(from.all(), data.all()).unwrap() };
                mine.record(&event).unwrap();
                mine
            });
            let theirs = upload.join().unwrap();
            assert!(matches!(theirs.synchronize(), Err(Error::Invalid { .. })));
        });
        let mine = Stream::per_thread(device).unwrap();
        if waits {
            mine.wait(&event).unwrap();
        }
        // SAFETY: see above.
        unsafe { mine.memcpy(data.all(), to.all()).unwrap() };
        mine.synchronize().unwrap();
        let value = last(&to);
        explicit::synchronize(device).unwrap();
        value
    });
}

#[test]
fn what_one_thread_hands_over_another_may_use() {
    check(RaceKind::HostWaw, 5, false, |device, hands_over| {
        let memory = pinned(device, 1);
        let handed = explicit::hand_over(device).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                if hands_over {
                    handed.take().unwrap();
                }
                memory.write(0, &[5u8; BYTES as usize]);
                explicit::hand_over(device).unwrap()
            });
            other.join().unwrap().take().unwrap();
        });
        last(&memory)
    });
}

/// Thread 2 submits a copy between the answer of a query and the thread that asked: the copy is not over
/// because the stream was idle before.
#[test]
fn an_answer_is_about_what_was_asked_about() {
    let (backend, device) = Refusing::open(Schedule::Adversarial);
    let findings = device.checked(OnRace::Report);
    let memory = Arc::new(pinned(&device, 7));
    let data = Arc::new(DeviceMemory::malloc(&device, BYTES).unwrap());
    let stream = Stream::non_blocking(&device, "s", 0).unwrap();
    let handed = explicit::hand_over(&device).unwrap();
    let (from, to, theirs) = (memory.clone(), data.clone(), stream.clone());
    backend.behind_answer(move || {
        let other = std::thread::spawn(move || {
            handed.take().unwrap();
            // SAFETY: none; that is what is tried.
            unsafe { theirs.memcpy(from.all(), to.all()).unwrap() };
        });
        other.join().unwrap();
    });
    stream.query().unwrap();
    memory.write(0, &[9_u8; BYTES as usize]);
    explicit::synchronize(&device).unwrap();
    assert_eq!(kinds(&findings.report()), [RaceKind::HostWar]);
    // Nobody in between: the same answer is worth a wait.
    // SAFETY: the stream is asked before the host writes.
    unsafe { stream.memcpy(memory.all(), data.all()).unwrap() };
    while !stream.query().unwrap() {}
    memory.write(0, &[9_u8; BYTES as usize]);
    assert_eq!(findings.report().races.len(), 1);
}

#[test]
fn memory_of_the_safe_api_that_foreign_code_uses_has_to_be_recorded() {
    let add = add();
    check(RaceKind::Uaf, 1, true, |device, records| {
        let home = device.stream("home").unwrap();
        let foreign = stream(device, "foreign");
        let source = DeviceMemory::malloc(device, BYTES).unwrap();
        let mut buffer = home.alloc_zeroed::<u8>(BYTES as usize).unwrap();
        // SAFETY: the buffer is recorded, but for the race that this is about.
        unsafe {
            let region = foreign.lend_mut(buffer.view_mut()).unwrap();
            let args = [
                Arg::Reads(source.all()),
                Arg::Writes(region),
                Arg::value(9u8),
            ];
            foreign.launch(&add, Grid::new(1, 32), &args).unwrap();
        }
        if records {
            explicit::record_stream(&buffer, &foreign).unwrap();
        }
        drop(buffer);
        drop(foreign);
        // The memory of the buffer, for another owner.
        let mut next = home.alloc::<u8>(BYTES as usize).unwrap();
        home.fill_with(next.view_mut(), 1).unwrap();
        let mut host = vec![0; BYTES as usize];
        explicit::synchronize(device).unwrap();
        home.memcpy_d2h(next.view(), &mut host).unwrap();
        host[BYTES as usize - 1]
    });
}

#[test]
fn lent_memory_waits_for_what_the_safe_api_does_with_it() {
    let add = add();
    for schedule in schedules() {
        let (value, report) = run(schedule, |device| {
            let home = device.stream("home").unwrap();
            let foreign = stream(device, "foreign");
            let out = DeviceMemory::malloc(device, BYTES).unwrap();
            let to = pinned(device, 0);
            let mut buffer = home.alloc::<u8>(BYTES as usize).unwrap();
            home.fill_with(buffer.view_mut(), 5).unwrap();
            // SAFETY: `home` waits for `foreign` before the buffer is written and dropped.
            unsafe {
                let region = foreign.lend(buffer.view()).unwrap();
                let refused = foreign.memset(region, 0);
                assert!(matches!(refused, Err(Error::Invalid { .. })));
                let args = [Arg::Reads(region), Arg::Writes(out.all()), Arg::value(1u8)];
                foreign.launch(&add, Grid::new(1, 32), &args).unwrap();
                foreign.memcpy(out.all(), to.all()).unwrap();
            }
            Stream::of(&home).wait_stream(&foreign).unwrap();
            home.fill_with(buffer.view_mut(), 100).unwrap();
            explicit::synchronize(device).unwrap();
            last(&to)
        });
        assert_eq!(kinds(&report), [], "{schedule}");
        assert_eq!(value, 6, "under {schedule}");
    }
}

#[test]
fn a_function_on_the_host_is_in_stream_order_and_reads_what_it_has_named() {
    // The host reads what a device may have written over.
    check(RaceKind::HostRaw, 11, true, |device, waits| {
        let (down, other) = (stream(device, "down"), stream(device, "other"));
        let from = pinned(device, 11);
        let (middle, end) = (Arc::new(pinned(device, 0)), Arc::new(pinned(device, 0)));
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        // SAFETY: see above.
        unsafe {
            down.memcpy(from.all(), data.all()).unwrap();
            down.memcpy(data.all(), middle.all()).unwrap();
            let downloaded = Event::new(device).unwrap();
            down.record(&downloaded).unwrap();
            let (read, written) = (Arc::clone(&middle), Arc::clone(&end));
            let act = move || {
                let mut bytes = [0u8; BYTES as usize];
                read.read(0, &mut bytes);
                written.write(0, &bytes);
            };
            down.host_func(&[middle.all()], &[end.all()], act).unwrap();
            if waits {
                other.wait_stream(&down).unwrap();
            } else {
                // Behind the download, and not behind the function.
                other.wait(&downloaded).unwrap();
            }
            other.memset(middle.all(), 50).unwrap();
        }
        explicit::synchronize(device).unwrap();
        last(&end)
    });
}

#[test]
fn times_may_be_asked_once_both_events_are_known_to_be_over() {
    let add = add();
    let (ns, report) = run(Schedule::InOrder, |device| {
        let work = stream(device, "work");
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        let [start, end] = [(); 2].map(|()| Event::timed(device).unwrap());
        work.record(&start).unwrap();
        let args = [
            Arg::Reads(data.all()),
            Arg::Writes(data.all()),
            Arg::value(1u8),
        ];
        // SAFETY: one stream, and the memory stays until it is synchronised with.
        unsafe { work.launch(&add, Grid::new(1, 32), &args).unwrap() };
        work.record(&end).unwrap();
        let early = end.elapsed_ns_since(&start);
        assert!(
            matches!(early, Err(Error::Refused { code: 600, .. })),
            "{early:?}"
        );
        end.synchronize().unwrap();
        let us = end.elapsed_ns_since(&start).unwrap() / 1e3;
        assert!((50.0..70.0).contains(&us), "{us}");
        us as u8
    });
    assert!(ns >= 50);
    assert_eq!(kinds(&report), []);
}

#[test]
fn a_captured_graph_runs_when_it_is_launched_and_its_memory_is_checked() {
    let add = add();
    check(RaceKind::Raw, 12, true, |device, waits| {
        let (work, side) = (stream(device, "work"), stream(device, "side"));
        let down = stream(device, "down");
        let (from, to) = (pinned(device, 10), pinned(device, 0));
        let [a, b] = [(); 2].map(|()| DeviceMemory::malloc(device, BYTES).unwrap());
        let launch = |stream: &Stream, x: &DeviceMemory, y: &DeviceMemory| {
            let args = [Arg::Reads(x.all()), Arg::Writes(y.all()), Arg::value(1u8)];
            // SAFETY: see above.
            unsafe { stream.launch(&add, Grid::new(1, 32), &args).unwrap() };
        };
        work.begin_capture().unwrap();
        // SAFETY: see above.
        unsafe { work.memcpy(from.all(), a.all()).unwrap() };
        side.wait_stream(&work).unwrap();
        launch(&side, &a, &b);
        work.wait_stream(&side).unwrap();
        launch(&work, &b, &a);
        assert!(work.synchronize().is_err(), "it does not run");
        let graph = work.end_capture().unwrap();
        work.synchronize().unwrap();
        // SAFETY: see above.
        unsafe {
            work.launch_graph(&graph).unwrap();
            if waits {
                down.wait_stream(&work).unwrap();
            }
            down.memcpy(a.all(), to.all()).unwrap();
        }
        down.synchronize().unwrap();
        let value = last(&to);
        explicit::synchronize(device).unwrap();
        value
    });
}

#[test]
fn streams_and_memory_of_the_safe_api_cannot_be_captured() {
    let device = Device::open("sim:h200").unwrap();
    let safe = device.stream("safe").unwrap();
    let mut buffer = safe.alloc_zeroed::<u8>(64).unwrap();
    let captured = stream(&device, "captured");
    let invalid = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
    };
    invalid(Stream::of(&safe).begin_capture());
    captured.begin_capture().unwrap();
    invalid(Stream::of(&safe).wait_stream(&captured));
    // SAFETY: it is refused.
    unsafe {
        invalid(captured.lend_mut(buffer.view_mut()).map(drop));
    }
    captured.end_capture().unwrap();
    safe.fill_with(buffer.view_mut(), 1).unwrap();
    let mut host = [0; 64];
    safe.memcpy_d2h(buffer.view(), &mut host).unwrap();
    assert_eq!(host, [1; 64]);
}

#[test]
fn an_adopted_stream_is_a_stream_of_its_kind() {
    check(RaceKind::Raw, 6, true, |device, is_blocking| {
        let kind = match is_blocking {
            true => StreamKind::Blocking,
            false => StreamKind::NonBlocking,
        };
        // SAFETY: the simulated GPU has no driver, and takes the handle for a name.
        let up = unsafe { Stream::from_raw(device, 0x1234, kind, "adopted").unwrap() };
        let (from, to) = (pinned(device, 6), pinned(device, 0));
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        // SAFETY: see above.
        unsafe {
            up.memcpy(from.all(), data.all()).unwrap();
            explicit::memcpy_blocking(data.all(), to.all()).unwrap();
        }
        let value = last(&to);
        explicit::synchronize(device).unwrap();
        value
    });
}

#[test]
fn blocking_calls_run_on_the_current_device_of_their_thread() {
    let devices = Device::open_all(&["sim:h200", "sim:h200"], &Options::new()).unwrap();
    let findings = devices[0].checked(OnRace::Report);
    let other = &devices[1];
    let up = Stream::blocking(other, "up").unwrap();
    let (from, to) = (pinned(other, 3), pinned(other, 0));
    let data = DeviceMemory::malloc(other, BYTES).unwrap();
    // The legacy stream of another device does not wait for `up`.
    for (device, races) in [(&devices[1], 0), (&devices[0], 1)] {
        std::thread::scope(|scope| {
            let ran = scope.spawn(|| {
                explicit::set_device(device).unwrap();
                // SAFETY: see above.
                unsafe {
                    up.memcpy(from.all(), data.all()).unwrap();
                    explicit::memcpy_blocking(data.all(), to.all()).unwrap();
                }
                explicit::synchronize(other).unwrap();
            });
            ran.join().unwrap();
        });
        let report = findings.report();
        let raw = report
            .races
            .iter()
            .filter(|race| race.kind == RaceKind::Raw);
        assert_eq!(raw.count(), races, "{}", findings.text());
    }
    // The log has declared the right legacy streams before they were used: else it could not go on.
    stream(other, "later").synchronize().unwrap();
    assert_eq!(findings.ended(), None);
}

#[test]
#[should_panic(expected = "fix: - {do: sync_stream, st: down")]
fn a_checker_that_panics_does_so_in_the_call_that_races() {
    let device = Device::open("sim:h200").unwrap();
    let _findings = device.checked(OnRace::Panic);
    let down = stream(&device, "down");
    let (data, to) = (
        DeviceMemory::malloc(&device, BYTES).unwrap(),
        pinned(&device, 0),
    );
    // SAFETY: see above.
    unsafe { down.memcpy(data.all(), to.all()).unwrap() };
    last(&to);
}

#[test]
fn an_event_that_outlives_its_device_is_given_back() {
    let (backend, device) = Refusing::open(Schedule::InOrder);
    let event = Event::new(&device).unwrap();
    drop(device);
    assert_eq!(backend.events(), 1);
    drop(event);
    assert_eq!(backend.events(), 0);
}

#[test]
fn what_was_recorded_in_default_streams_is_given_back_with_the_device() {
    let (backend, device) = Refusing::open(Schedule::InOrder);
    let work = stream(&device, "work");
    for default in [Stream::legacy(&device), Stream::per_thread(&device)] {
        work.wait_stream(&default.unwrap()).unwrap();
    }
    assert!(backend.events() > 0);
    drop((work, device));
    assert_eq!(backend.events(), 0);
}

#[test]
fn a_blocking_event_sleeps_and_is_waited_for_at_once_without_end() {
    let (backend, device) = Refusing::open(Schedule::InOrder);
    let work = stream(&device, "work");
    let [sleeps, asks] = [Event::blocking(&device), Event::new(&device)].map(Result::unwrap);
    assert_eq!(backend.sleeping(), 1);
    work.record(&asks).unwrap();
    asks.synchronize().unwrap();
    assert_eq!(backend.endless_waits(), 0);
    work.record(&sleeps).unwrap();
    sleeps.synchronize().unwrap();
    assert_eq!(backend.endless_waits(), 1);
    // Given back, it does not become an event of another kind.
    drop(sleeps);
    drop(Event::new(&device).unwrap());
    assert_eq!(backend.sleeping(), 1);
    drop(Event::blocking(&device).unwrap());
    assert_eq!(backend.sleeping(), 2);
}

#[test]
fn write_combined_memory_is_asked_for_and_is_pinned() {
    let (backend, device) = Refusing::open(Schedule::InOrder);
    let work = stream(&device, "work");
    let from = HostMemory::write_combined(&device, BYTES).unwrap();
    assert_eq!(backend.combined_bytes(), BYTES as usize);
    from.write(0, &[3u8; BYTES as usize]);
    let data = DeviceMemory::malloc(&device, BYTES).unwrap();
    let to = pinned(&device, 0);
    // SAFETY: see above.
    unsafe {
        work.memcpy(from.all(), data.all()).unwrap();
        work.memcpy(data.all(), to.all()).unwrap();
    }
    work.synchronize().unwrap();
    assert_eq!(last(&to), 3);
    assert_eq!(backend.combined_bytes(), BYTES as usize);
}

#[test]
fn a_capture_becomes_what_a_graph_does_from_its_next_launch_on() {
    let add = add();
    let (value, report) = run(Schedule::Adversarial, |device| {
        let work = stream(device, "work");
        let to = pinned(device, 0);
        let [a, b] = [(); 2].map(|()| DeviceMemory::malloc(device, BYTES).unwrap());
        let adds = |stream: &Stream, memory: &DeviceMemory, n: u8, times: usize| {
            stream.begin_capture().unwrap();
            for _ in 0..times {
                let args = [
                    Arg::Reads(memory.all()),
                    Arg::Writes(memory.all()),
                    Arg::value(n),
                ];
                // SAFETY: see above.
                unsafe { stream.launch(&add, Grid::new(1, 32), &args).unwrap() };
            }
        };
        // SAFETY: see above.
        unsafe {
            work.memset(a.all(), 0).unwrap();
            work.memset(b.all(), 0).unwrap();
            adds(&work, &a, 1, 1);
            let mut graph = work.end_capture().unwrap();
            work.launch_graph(&graph).unwrap();
            adds(&work, &b, 10, 1);
            work.end_capture_into(&mut graph).unwrap();
            work.launch_graph(&graph).unwrap();
            work.launch_graph(&graph).unwrap();
            // Of another shape: the graph stays as it is.
            adds(&work, &b, 100, 2);
            let refused = work.end_capture_into(&mut graph);
            assert!(
                matches!(refused, Err(Error::Refused { code: 910, .. })),
                "{refused:?}"
            );
            work.launch_graph(&graph).unwrap();
            let args = [Arg::Reads(a.all()), Arg::Writes(b.all()), Arg::value(0u8)];
            work.memcpy(b.all(), to.all()).unwrap();
            work.synchronize().unwrap();
            let thrice = last(&to);
            work.launch(&add, Grid::new(1, 32), &args).unwrap();
            work.memcpy(b.all(), to.all()).unwrap();
            work.synchronize().unwrap();
            thrice + last(&to)
        }
    });
    assert_eq!(kinds(&report), []);
    assert_eq!(value, 31);
}

#[test]
fn a_captured_graph_that_goes_inside_a_function_on_the_host_is_given_back_elsewhere() {
    let (backend, device) = Refusing::open(Schedule::InOrder);
    let stream = stream(&device, "s");
    stream.begin_capture().unwrap();
    let graph = stream.end_capture().unwrap();
    let act = move || {
        IS_CALLBACK.set(true);
        drop(graph);
        IS_CALLBACK.set(false);
    };
    // SAFETY: it touches no memory.
    unsafe { stream.host_func(&[], &[], act).unwrap() };
    stream.synchronize().unwrap();
    assert!(
        !backend.misplaced(),
        "a function on the host called the driver"
    );
}

#[test]
fn what_is_refused_inside_a_function_on_the_host_is_not_in_the_log() {
    #[derive(Default)]
    struct Ear(Arc<Mutex<Vec<Kind>>>);
    impl Sink for Ear {
        fn take(&mut self, record: &Record<'_>) {
            if let Record::Op(op) = record {
                self.0.lock().unwrap().push(op.kind);
            }
        }
    }

    let device = Device::open("sim:h200").unwrap();
    let (one, event) = (stream(&device, "one"), Event::new(&device).unwrap());
    one.record(&event).unwrap();
    let ear = Ear::default();
    let heard = Arc::clone(&ear.0);
    device.listen(Box::new(ear));
    let (refused, asked) = std::sync::mpsc::channel();
    let (inner, of) = (one.clone(), device.clone());
    let act = move || {
        let waits = [
            inner.synchronize(),
            event.synchronize(),
            explicit::synchronize(&of),
        ];
        refused.send(waits).unwrap();
    };
    // SAFETY: it touches no memory.
    unsafe { one.host_func(&[], &[], act).unwrap() };
    one.synchronize().unwrap();
    for refused in asked.recv().unwrap() {
        assert!(
            matches!(refused, Err(Error::Refused { code: 800, .. })),
            "{refused:?}"
        );
    }
    let heard = heard.lock().unwrap().clone();
    let stream = heard[0].stream().unwrap();
    let expected = [
        Kind::HostFunc {
            stream,
            raises: None,
        },
        Kind::SyncStream { stream },
    ];
    assert_eq!(heard, expected);
}

// ------------------------------------------------------------------ many streams

/// On which chain a stream of the safe API counts that is asked for now.
fn next_chain(device: &Device, name: &str) -> u32 {
    let event = device.stream(name).unwrap().record_event().unwrap();
    let text = format!("{event:?}");
    let (_, chain) = text.split_once("chain: ").expect("the step that it is");
    let chain = chain.split(',').next().unwrap();
    chain.parse().unwrap()
}

#[test]
fn streams_that_come_and_go_make_no_clock_longer() {
    let device = Device::open("sim:h200").unwrap();
    let memory = DeviceMemory::malloc(&device, BYTES).unwrap();
    let home = device.stream("home").unwrap();
    let after = |notes: bool, rounds: u32| {
        for round in 0..rounds {
            let s = stream(&device, &format!("{round}"));
            let x = home.alloc_zeroed::<u8>(64).unwrap();
            // SAFETY: the stream is waited for.
            unsafe { s.memset(memory.all(), 1) }.unwrap();
            if notes {
                explicit::record_stream(&x, &s).unwrap();
            }
            s.synchronize().unwrap();
        }
        next_chain(&device, &format!("behind {notes} {rounds}"))
    };
    for notes in [false, true] {
        let few = after(notes, 200);
        assert!(after(notes, 2000) <= few + 2, "{few} chains behind 200");
    }
}

#[test]
fn a_stream_that_goes_on_where_another_ended_stands_behind_it() {
    for schedule in schedules() {
        let (value, report) = run(schedule, |device| {
            let home = device.stream("home").unwrap();
            // So many that others count on their chains.
            let many: Vec<Stream> = (0..20).map(|n| stream(device, &format!("{n}"))).collect();
            drop(many);
            let out: Vec<HostMemory> = (0..30).map(|_| pinned(device, 0)).collect();
            for (round, out) in (1u8..).zip(&out) {
                let mut x = home.alloc::<u8>(BYTES as usize).unwrap();
                home.fill_with(x.view_mut(), round).unwrap();
                let s = stream(device, "s");
                // SAFETY: the buffer is noted on the stream before it is dropped; the device is waited for.
                unsafe {
                    let region = s.lend(x.view()).unwrap();
                    s.memcpy(region, out.all()).unwrap();
                }
                explicit::record_stream(&x, &s).unwrap();
                if round % 3 == 0 {
                    s.synchronize().unwrap();
                }
            }
            explicit::synchronize(device).unwrap();
            let found: Vec<u8> = out.iter().map(last).collect();
            assert_eq!(found, (1..=30).collect::<Vec<u8>>(), "{schedule}");
            0
        });
        assert_eq!(value, 0);
        assert_eq!(kinds(&report), [], "{schedule}");
    }
}
