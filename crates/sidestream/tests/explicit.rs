//! The explicit style on the simulated GPU: the listening checker reports each race, the bytes show it where they
//! can, and the repaired twin is clean.

mod captures;
mod streams;

use std::sync::{Arc, Mutex};

use sidestream::check::{OnRace, RaceKind, Report};
use sidestream::device::{Device, Options};
use sidestream::error::Error;
use sidestream::explicit::{self, Arg, DeviceMemory, Event, HostMemory, Stream};
use sidestream::kernel::{Grid, Kernel, KernelCost, Read, Value, Write};
use sidestream::log::{Record, Sink};
use sidestream::op::Kind;
use sidestream::sim::Schedule;

use crate::refusing::Refusing;

const BYTES: u64 = 4096;

fn schedules() -> impl Iterator<Item = Schedule> {
    let seeded = (0..24).map(Schedule::Seeded);
    seeded.chain([Schedule::InOrder, Schedule::Adversarial])
}

/// Returns what the program read last, and the checker's report.
fn run(schedule: Schedule, program: impl Fn(&Device) -> u8) -> (u8, Report) {
    let options = Options::new().schedule(schedule);
    let device = Device::open_with("sim:h200", &options).unwrap();
    let findings = device.checked(OnRace::Report);
    let value = program(&device);
    drop(device);
    assert_eq!(findings.ended(), None);
    (value, findings.report())
}

/// Checks a program with a race and its repaired twin, which is the same program called with `true`. The twin gives
/// `expected` under every schedule and is clean. The racy program has the race under every schedule, and gives
/// another result under some seeded schedule if `shows`.
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

/// Returns the kinds of the races, each once.
fn kinds(report: &Report) -> Vec<RaceKind> {
    let mut kinds: Vec<RaceKind> = report.races.iter().map(|race| race.kind).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Adds to every byte, slowly.
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

// In all of these tests, including those in the files below, the memory lives until the device was synchronised. The
// racy half of a program breaks the promise of order: that is its purpose.

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
        "fix: make down wait for up".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected} in {text}");
    }
    assert_eq!(findings.report().races.len(), 2);
}

#[test]
fn a_drop_of_memory_in_use_is_named_as_a_drop_and_not_as_the_line_that_allocated() {
    let options = Options::new().schedule(Schedule::Seeded(1));
    let device = Device::open_with("sim:h200", &options).unwrap();
    let findings = device.checked(OnRace::Report);
    let up = stream(&device, "up");
    let from = pinned(&device, 3);
    let line = line!() + 1;
    let data = DeviceMemory::malloc(&device, BYTES).unwrap();
    // SAFETY: see above.
    unsafe { up.memcpy(from.all(), data.all()).unwrap() };
    drop(data);
    explicit::synchronize(&device).unwrap();
    let text = findings.text();
    let dropped =
        format!("the drop of the memory allocated at crates/sidestream/tests/explicit.rs:{line}\n");
    let (on_thread, fix) = (format!(", at {dropped}"), dropped.replace('\n', ")\n"));
    for expected in [on_thread, format!(" (at {fix}")] {
        assert!(text.contains(&expected), "{expected} in {text}");
    }
}

#[test]
fn a_launch_beyond_the_limits_of_cuda_is_refused_by_both_interfaces() {
    let device = Device::open("sim:h200").unwrap();
    let explicit = stream(&device, "explicit");
    let safe = device.stream("safe").unwrap();
    let nothing = Kernel::<()>::on_host("nothing", |_, ()| {});
    let most = Grid::new(i32::MAX as u32, 1024).shared(227 << 10);
    let grid = |blocks, threads| Grid {
        blocks,
        threads,
        ..most
    };
    for (grid, limit) in [
        (most, None),
        (grid([1, 65535, 65535], [1, 16, 64]), None),
        (Grid::new(1, 2048), Some("at most 1024")),
        (grid([1; 3], [64, 32, 1]), Some("at most 1024")),
        (grid([1; 3], [1, 1, 65]), Some("64 of them in z")),
        (
            grid([1 << 31, 1, 1], [1; 3]),
            Some("2147483647 x 65535 x 65535"),
        ),
        (
            grid([1, u32::MAX, 1], [1; 3]),
            Some("2147483647 x 65535 x 65535"),
        ),
        (
            grid([1, 1, 65536], [1; 3]),
            Some("2147483647 x 65535 x 65535"),
        ),
        (Grid::new(1, 1).shared(1 << 30), Some("at most 232448")),
    ] {
        // SAFETY: the kernel has no arguments.
        let launched = unsafe { explicit.launch(&nothing, grid, &[]) };
        for launched in [launched, safe.launch(&nothing, grid, ())] {
            match (launched, limit) {
                (Ok(()), None) => {}
                (Err(Error::Refused { code: 1, why, .. }), Some(limit)) => {
                    assert!(
                        why.contains("kernel `nothing`") && why.contains(limit),
                        "{why}"
                    );
                }
                (launched, _) => panic!("{grid:?}: {launched:?}"),
            }
        }
    }
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
            // The memory is handed out again in stream order.
            let next = owner.malloc_async(BYTES).unwrap();
            assert_eq!(next.all().address(), before);
            owner.memset(next.all(), 99).unwrap();
            explicit::synchronize(device).unwrap();
        }
        last(&to)
    });
}

#[test]
fn memory_that_was_freed_in_stream_order_is_reused_when_there_is_no_other() {
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
fn a_use_on_another_stream_before_the_allocation_is_reported() {
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
fn a_blocking_upload_from_pageable_memory_is_not_complete_when_it_returns() {
    check(RaceKind::Raw, 8, true, |device, waits| {
        let down = stream(device, "down");
        let from = HostMemory::pageable(device, BYTES).unwrap();
        from.write(0, &[8u8; BYTES as usize]);
        let to = pinned(device, 0);
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        // SAFETY: see above.
        unsafe { explicit::memcpy_blocking(from.all(), data.all()).unwrap() };
        // The source may be overwritten, which is promised.
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
fn another_thread_may_use_what_one_thread_hands_over() {
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

/// Thread 2 submits a copy between the result of a query and the return to the querying thread: the copy is not
/// complete just because the stream was idle before.
#[test]
fn a_query_covers_only_earlier_work() {
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
            // SAFETY: not given; that is what this tests.
            unsafe { theirs.memcpy(from.all(), to.all()).unwrap() };
        });
        other.join().unwrap();
    });
    stream.query().unwrap();
    memory.write(0, &[9_u8; BYTES as usize]);
    explicit::synchronize(&device).unwrap();
    assert_eq!(kinds(&findings.report()), [RaceKind::HostWar]);
    // Without a copy in between, the same result is as good as a wait.
    // SAFETY: the stream is queried before the host writes.
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
        // SAFETY: the buffer is recorded, except for the race that this tests.
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
        // Another owner gets the memory of the buffer.
        let mut next = home.alloc::<u8>(BYTES as usize).unwrap();
        home.fill_with(next.view_mut(), 1).unwrap();
        let mut host = vec![0; BYTES as usize];
        explicit::synchronize(device).unwrap();
        home.memcpy_d2h(next.view(), &mut host).unwrap();
        host[BYTES as usize - 1]
    });
}

#[test]
fn lent_memory_waits_for_its_uses_by_the_safe_api() {
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
fn a_host_function_is_in_stream_order_and_reads_the_named_memory() {
    // The host reads what a device may have overwritten.
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
                // After the download, but not after the function.
                other.wait(&downloaded).unwrap();
            }
            other.memset(middle.all(), 50).unwrap();
        }
        explicit::synchronize(device).unwrap();
        last(&end)
    });
}

#[test]
fn times_may_be_queried_once_both_events_are_known_to_be_complete() {
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
        // SAFETY: one stream, and the memory lives until it is synchronised.
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
#[should_panic(expected = "fix: make the host wait for down")]
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
    // An event that is given back does not become an event of another kind.
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
fn a_call_refused_inside_a_host_function_is_not_in_the_log() {
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
    // SAFETY: the function touches no memory.
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
