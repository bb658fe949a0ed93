//! The simulated machine as a back end: the bytes that a program gets.

use crate::rig::*;
use sidestream::backend::{Address, Arg, Backend, Copy, Fill, Payload, Reserve};
use sidestream::error::Error;
use sidestream::op::{DeviceId, Kind, Memory, StreamKind};
use sidestream::sim::Schedule;

#[test]
fn copies_kernels_and_fills_give_the_same_bytes_under_every_schedule() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let stream = rig.stream(0);
        let (a, b) = (rig.device_memory(64), rig.device_memory(64));
        let input = rig.pinned(&[3; 64]);
        rig.upload(stream, input, a, 64).unwrap();
        rig.fill(stream, b, 0x0403_0201, 16).unwrap();
        rig.launch(stream, &add(1000), &[reads(a, 64), writes(b, 32)])
            .unwrap();
        let sum = rig.fetch(stream, b, 64);
        assert_eq!(sum[..8], [4, 5, 6, 7, 4, 5, 6, 7]);
        assert_eq!(sum[32..36], [1, 2, 3, 4], "beyond its argument");
        assert_eq!(
            rig.fetch(stream, a, 64),
            [3; 64],
            "an argument that is only read is not written back"
        );
    }
}

#[test]
fn a_wait_between_two_streams_holds_under_every_schedule() {
    for schedule in schedules() {
        assert_eq!(two_streams(schedule, true), [7; 1000], "under {schedule}");
    }
}

#[test]
fn a_missing_wait_shows_in_the_bytes_under_some_schedule() {
    let wrong = schedules().filter(|&schedule| two_streams(schedule, false) != [7; 1000]);
    let wrong: Vec<String> = wrong.map(|s| s.to_string()).collect();
    assert!(wrong.len() > 5, "wrong only under {wrong:?}");
    assert!(wrong.contains(&"adversarial".to_owned()));
}

/// Uploads in one stream and downloads in another one, with or without the wait between them.
fn two_streams(schedule: Schedule, waits: bool) -> Vec<u8> {
    let rig = Rig::new(schedule);
    let (first, second) = (rig.stream(0), rig.stream(1));
    let event = rig.event(0);
    let (input, output) = (rig.pinned(&[7; 1000]), rig.pinned(&[0; 1000]));
    let at = rig.device_memory(1000);
    rig.upload(first, input, at, 1000).unwrap();
    rig.record(event, first).unwrap();
    if waits {
        rig.wait_event(second, event).unwrap();
    }
    rig.download(second, at, output, 1000).unwrap();
    rig.synchronize(second).unwrap();
    let bytes = rig.look(output, 1000);
    rig.synchronize(first).unwrap();
    bytes
}

#[test]
fn an_asynchronous_copy_does_nothing_during_its_call() {
    let rig = Rig::new(Schedule::InOrder);
    let stream = rig.stream(0);
    let (input, output) = (rig.pinned(&[1; 8]), rig.pinned(&[0; 8]));
    let at = rig.device_memory(8);
    rig.upload(stream, input, at, 8).unwrap();
    rig.download(stream, at, output, 8).unwrap();
    // A program that overwrites the source too early changes the result.
    // SAFETY: nothing runs on this machine except inside its calls, and this is not one.
    unsafe { pointer(input).write_bytes(2, 8) };
    assert_eq!(rig.look(output, 8), [0; 8]);
    rig.synchronize(stream).unwrap();
    assert_eq!(rig.look(output, 8), [2; 8]);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let rig = Rig::new(Schedule::Seeded(seed));
        let (first, second) = (rig.stream(0), rig.stream(1));
        let event = rig.event(0);
        let at = rig.device_memory(4);
        let mut answers = Vec::new();
        for n in 0..30 {
            rig.fill(first, at, n, 1).unwrap();
            rig.record(event, first).unwrap();
            answers.push(rig.peek(event).unwrap());
            rig.fill(second, at, 1000 + n, 1).unwrap();
            answers.push(rig.query(event).unwrap());
        }
        let bytes = rig.fetch(first, at, 4);
        (answers, bytes, rig.machine.now_ns())
    };
    let runs: Vec<_> = (0..20).map(run).collect();
    assert_eq!(runs, (0..20).map(run).collect::<Vec<_>>());
    assert!(runs.iter().any(|r| *r != runs[0]), "seeds differ");
}

#[test]
fn rows_with_a_pitch_are_copied_in_every_direction() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let stream = rig.stream(0);
        let source: Vec<u8> = (0..40).collect();
        let (input, output) = (rig.pinned(&source), rig.pinned(&[0xff; 40]));
        let (a, b) = (rig.device_memory(40), rig.device_memory(40));
        let rows = |from, to, from_pitch, to_pitch| {
            Payload::Copy(Copy {
                from,
                to,
                row_bytes: 3,
                rows: 4,
                from_pitch,
                to_pitch,
            })
        };
        let kind = |from, to| copy_kind(stream, from, to);
        rig.submit(
            kind(Memory::Pinned, Memory::Device),
            rows(input.offset(1), a, 10, 5),
        )
        .unwrap();
        rig.submit(kind(Memory::Device, Memory::Device), rows(a, b, 5, 7))
            .unwrap();
        rig.submit(
            kind(Memory::Device, Memory::Pinned),
            rows(b, output.offset(2), 7, 9),
        )
        .unwrap();
        rig.synchronize(stream).unwrap();
        let got = rig.look(output, 40);
        let mut want = vec![0xff; 40];
        for row in 0..4 {
            for byte in 0..3 {
                want[2 + 9 * row + byte] = (1 + 10 * row + byte) as u8;
            }
        }
        assert_eq!(got, want);
    }
}

#[test]
fn pageable_memory_is_copied_like_any_other() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let stream = rig.stream(0);
        let (source, mut target) = (vec![5u8; 3000], vec![0u8; 3000]);
        let at = rig.device_memory(3000);
        let from = Address(source.as_ptr().expose_provenance() as u64);
        let to = Address(target.as_mut_ptr().expose_provenance() as u64);
        rig.submit(
            copy_kind(stream, Memory::Pageable, Memory::Device),
            Payload::Copy(plain(from, at, 3000)),
        )
        .unwrap();
        rig.submit(
            copy_kind(stream, Memory::Device, Memory::Pageable),
            Payload::Copy(plain(at, to, 3000)),
        )
        .unwrap();
        rig.synchronize(stream).unwrap();
        assert_eq!(target, source);
    }
}

#[test]
fn blocking_copies_in_the_default_stream_are_complete_when_they_return() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let legacy = rig.stream_on(3, 0, StreamKind::Legacy);
        let input = rig.pinned(&[9; 16]);
        let output = rig.pinned(&[0; 16]);
        let at = rig.device_memory(16);
        let blocking = |from, to| Kind::CopyBlocking { from, to };
        rig.fill(legacy, at, 0, 4).unwrap();
        rig.submit(
            blocking(Memory::Pinned, Memory::Device),
            Payload::Copy(plain(input, at, 16)),
        )
        .unwrap();
        rig.submit(
            blocking(Memory::Device, Memory::Pinned),
            Payload::Copy(plain(at, output, 16)),
        )
        .unwrap();
        assert_eq!(rig.look(output, 16), [9; 16]);

        let mut pageable = vec![6u8; 16];
        let from = Address(pageable.as_mut_ptr().expose_provenance() as u64);
        rig.submit(
            blocking(Memory::Pageable, Memory::Device),
            Payload::Copy(plain(from, at, 16)),
        )
        .unwrap();
        // The source was read during the call.
        pageable.fill(0);
        drop(pageable);
        assert_eq!(rig.fetch(legacy, at, 16), [6; 16]);
    }
}

#[test]
fn bytes_pass_from_one_device_to_another() {
    for schedule in schedules() {
        let rig = Rig::with_devices(schedule, 2);
        let near = rig.stream(0);
        let far = rig.stream_on(1, 1, StreamKind::NonBlocking);
        let event = rig.event(0);
        let here = rig.device_memory(100);
        let there = rig
            .machine
            .reserve(Reserve::new(Memory::Device, DeviceId(1), 100))
            .unwrap();
        rig.fill(near, here, 0x2a2a_2a2a, 25).unwrap();
        rig.submit(
            copy_kind(near, Memory::Device, Memory::Device),
            Payload::Copy(plain(here, there, 100)),
        )
        .unwrap();
        rig.record(event, near).unwrap();
        rig.wait_event(far, event).unwrap();
        assert_eq!(rig.fetch(far, there, 100), [0x2a; 100]);
    }
}

#[test]
fn segments_that_touch_are_one_piece_of_memory() {
    let rig = Rig::new(Schedule::InOrder);
    let stream = rig.stream(0);
    let (a, b) = (rig.device_memory(1 << 20), rig.device_memory(1 << 20));
    assert_eq!(a.offset(1 << 20), b);
    rig.fill(stream, b.offset(0).offset(0), 0, 1).unwrap();
    let middle = Address(b.0 - 600_000);
    let pattern = Fill {
        at: middle,
        value: 0xabcd,
        width: 2,
        count: 600_000,
    };
    rig.submit(Kind::Memset { stream }, Payload::Fill(pattern))
        .unwrap();
    let bytes = rig.fetch(stream, middle, 1_200_000);
    assert!(bytes.chunks(2).all(|pair| pair == [0xcd, 0xab]));
    assert_eq!(rig.fetch(stream, Address(middle.0 - 4), 4), [0; 4]);
}

#[test]
fn numbers_reach_a_kernel() {
    let rig = Rig::new(Schedule::Seeded(3));
    let stream = rig.stream(0);
    let at = rig.device_memory(8);
    let store = code("store", 100, |grid, args| {
        use sidestream::backend::HostArg;
        let [HostArg::Memory(to), HostArg::Scalar { bytes, len }] = args else {
            panic!("it takes a buffer and a number");
        };
        to.bytes_mut()[..usize::from(*len)].copy_from_slice(&bytes[..usize::from(*len)]);
        to.bytes_mut()[7] = grid.threads[0] as u8;
    });
    let number = Arg::Scalar {
        bytes: 0x0102_0304u64.to_le_bytes(),
        len: 4,
    };
    rig.launch(stream, &store, &[writes(at, 8), number])
        .unwrap();
    assert_eq!(rig.fetch(stream, at, 8), [4, 3, 2, 1, 0, 0, 0, 32]);
}

#[test]
fn device_memory_ends_at_its_limit() {
    let rig = Rig::new(Schedule::InOrder);
    let whole = rig.machine.devices()[0].memory_bytes;
    let reserve = |bytes| {
        rig.machine
            .reserve(Reserve::new(Memory::Device, DeviceId(0), bytes))
    };
    let first = reserve(whole - 10).unwrap();
    match reserve(11) {
        Err(Error::OutOfMemory(memory)) => assert_eq!(memory.asked_bytes, 11),
        other => panic!("{other:?}"),
    }
    reserve(10).unwrap();
    rig.unreserve(Memory::Device, first);
    reserve(11).unwrap();
}

#[test]
fn freed_memory_is_kept_until_its_uses_are_complete() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let stream = rig.stream(0);
        let (input, output) = (rig.pinned(&[8; 512]), rig.pinned(&[0; 512]));
        let at = rig.device_memory(512);
        rig.upload(stream, input, at, 512).unwrap();
        rig.download(stream, at, output, 512).unwrap();
        rig.unreserve(Memory::Pinned, input);
        rig.unreserve(Memory::Device, at);
        rig.synchronize(stream).unwrap();
        assert_eq!(rig.look(output, 512), [8; 512]);
    }
}

#[test]
fn a_kernel_reads_when_it_starts_and_writes_when_it_ends() {
    let rig = Rig::new(Schedule::InOrder);
    let (long, short) = (rig.stream(0), rig.stream(1));
    let (a, b) = (rig.device_memory(4), rig.device_memory(4));
    let early = rig.pinned(&[9; 4]);
    rig.fill(long, a, 0x0101_0101, 1).unwrap();
    rig.synchronize(long).unwrap();
    rig.launch(long, &add(100_000_000), &[reads(a, 4), writes(b, 4)])
        .unwrap();
    // The fill and the download race with the kernel, and run in the middle of it.
    rig.fill(short, a, 0x0505_0505, 1).unwrap();
    rig.download(short, b, early, 4).unwrap();
    rig.synchronize(short).unwrap();
    assert!(rig.machine.now_ns() < 50_000_000, "the kernel still runs");
    assert_eq!(rig.look(early, 4), [0; 4], "nothing is written yet");
    assert_eq!(
        rig.fetch(long, b, 4),
        [1; 4],
        "it read the bytes at its start"
    );
}
