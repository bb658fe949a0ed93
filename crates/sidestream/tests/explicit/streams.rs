//! Streams of each kind: default streams, adopted ones, and many short-lived ones.

use sidestream::check::{OnRace, RaceKind};
use sidestream::device::{Device, Options};
use sidestream::error::Error;
use sidestream::explicit::{self, DeviceMemory, Event, HostMemory, Stream};
use sidestream::op::StreamKind;
use sidestream::sim::Schedule;

use super::{BYTES, check, kinds, last, pinned, run, schedules, stream};
use crate::refusing::Refusing;

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
        // SAFETY: as in `explicit`.
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
                // SAFETY: as in `explicit`.
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
        // SAFETY: as in `explicit`.
        unsafe { mine.memcpy(data.all(), to.all()).unwrap() };
        mine.synchronize().unwrap();
        let value = last(&to);
        explicit::synchronize(device).unwrap();
        value
    });
}

#[test]
fn an_adopted_stream_is_a_stream_of_its_kind() {
    check(RaceKind::Raw, 6, true, |device, is_blocking| {
        let kind = match is_blocking {
            true => StreamKind::Blocking,
            false => StreamKind::NonBlocking,
        };
        // SAFETY: the simulated GPU has no driver, and uses the handle as a name.
        let up = unsafe { Stream::from_raw(device, 0x1234, kind, "adopted").unwrap() };
        let (from, to) = (pinned(device, 6), pinned(device, 0));
        let data = DeviceMemory::malloc(device, BYTES).unwrap();
        // SAFETY: as in `explicit`.
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
                // SAFETY: as in `explicit`.
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
    // The log must have declared the legacy streams before their use: otherwise it could not continue.
    stream(other, "later").synchronize().unwrap();
    assert_eq!(findings.ended(), None);
}

#[test]
fn events_recorded_in_default_streams_are_given_back_with_the_device() {
    let (backend, device) = Refusing::open(Schedule::InOrder);
    let work = stream(&device, "work");
    for default in [Stream::legacy(&device), Stream::per_thread(&device)] {
        work.wait_stream(&default.unwrap()).unwrap();
    }
    assert!(backend.events() > 0);
    drop((work, device));
    assert_eq!(backend.events(), 0);
}

/// Returns the chain of a stream that the safe API creates now.
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
fn a_stream_that_continues_the_chain_of_another_is_ordered_after_it() {
    for schedule in schedules() {
        let (value, report) = run(schedule, |device| {
            let home = device.stream("home").unwrap();
            // More streams, which use other chains.
            let many: Vec<Stream> = (0..20).map(|n| stream(device, &format!("{n}"))).collect();
            drop(many);
            let out: Vec<HostMemory> = (0..30).map(|_| pinned(device, 0)).collect();
            for (round, out) in (1u8..).zip(&out) {
                let mut x = home.alloc::<u8>(BYTES as usize).unwrap();
                home.fill_with(x.view_mut(), round).unwrap();
                let s = stream(device, "s");
                // SAFETY: the buffer is recorded on the stream before it is dropped; the device is waited for.
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

/// More streams than are searched one by one, each recorded several times.
#[test]
fn memory_that_many_streams_use_is_reused_after_all_of_them() {
    for schedule in schedules() {
        let (value, report) = run(schedule, |device| {
            let home = device.stream("home").unwrap();
            let out: Vec<HostMemory> = (0..50).map(|_| pinned(device, 0)).collect();
            let mut x = home.alloc::<u8>(BYTES as usize).unwrap();
            home.fill_with(x.view_mut(), 7).unwrap();
            let streams: Vec<Stream> = (0..50).map(|n| stream(device, &format!("{n}"))).collect();
            for (s, out) in streams.iter().zip(&out) {
                // SAFETY: the buffer is recorded on the stream before it is dropped; the device is waited for.
                unsafe {
                    let region = s.lend(x.view()).unwrap();
                    s.memcpy(region, out.all()).unwrap();
                }
            }
            for s in streams.iter().chain(&streams) {
                explicit::record_stream(&x, s).unwrap();
            }
            drop((x, streams));
            let mut next = home.alloc::<u8>(BYTES as usize).unwrap();
            home.fill_with(next.view_mut(), 1).unwrap();
            explicit::synchronize(device).unwrap();
            assert!(out.iter().all(|out| last(out) == 7), "{schedule}");
            0
        });
        assert_eq!(value, 0);
        assert_eq!(kinds(&report), [], "{schedule}");
    }
}
