//! The safe API on the simulated GPU: results, waits, and ownership of values.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sidestream::buffer::Pending;
use sidestream::device::{Device, Options};
use sidestream::error::Error;
use sidestream::kernel::{Grid, Kernel, KernelCost, Read, Value, Write};
use sidestream::sim::Schedule;
use sidestream::stream::Rows;

const SCHEDULES: [Schedule; 5] = [
    Schedule::InOrder,
    Schedule::Seeded(1),
    Schedule::Seeded(2),
    Schedule::Seeded(3),
    Schedule::Adversarial,
];

/// Runs a program under several schedules, each on a machine of its own.
fn on_each(program: impl Fn(Device)) {
    for schedule in SCHEDULES {
        let options = Options::new().schedule(schedule);
        program(Device::open_with("sim:h200", &options).unwrap());
    }
}

fn add() -> Kernel<(Read<u32>, Write<u32>, Value<u32>)> {
    Kernel::<(Read<u32>, Write<u32>, Value<u32>)>::on_host("add", |_, (x, y, n)| {
        for (y, x) in y.iter_mut().zip(x) {
            *y = y.wrapping_add(x.wrapping_mul(n));
        }
    })
}

#[test]
fn work_on_three_streams_gives_the_result_of_one() {
    on_each(|device| {
        let [up, compute, down] =
            ["up", "compute", "down"].map(|name| device.stream(name).unwrap());
        let add = add();
        for round in 0..8u32 {
            let mut host = device.pinned::<u32>(256).unwrap();
            host.iter_mut()
                .enumerate()
                .for_each(|(i, value)| *value = i as u32 + round);
            let mut x = up.alloc(256).unwrap();
            let mut y = compute.alloc_zeroed(256).unwrap();
            let sent = up.upload(host, x.view_mut()).unwrap();
            let args = (x.view(), y.view_mut(), 3);
            compute.launch(&add, Grid::cover(256, 128), args).unwrap();
            let back = down
                .download(y.view(), device.pinned(256).unwrap())
                .unwrap();
            let back = back.synchronize().unwrap();
            assert!(
                back.iter()
                    .enumerate()
                    .all(|(i, &value)| value == 3 * (i as u32 + round))
            );
            assert_eq!(sent.synchronize().unwrap()[7], 7 + round);
        }
    });
}

#[test]
fn every_reader_delays_the_next_writer() {
    on_each(|device| {
        let streams: Vec<_> = (0..4)
            .map(|i| device.stream(&format!("s{i}")).unwrap())
            .collect();
        let add = add();
        let mut x = streams[0].alloc::<u32>(1024).unwrap();
        streams[0].fill_with(x.view_mut(), 5).unwrap();
        let mut sums: Vec<_> = streams
            .iter()
            .map(|s| s.alloc_zeroed::<u32>(1024).unwrap())
            .collect();
        for (stream, sum) in streams.iter().zip(&mut sums) {
            stream
                .launch(&add, Grid::cover(1024, 256), (x.view(), sum.view_mut(), 1))
                .unwrap();
        }
        streams[0].fill_with(x.view_mut(), 9).unwrap();
        for (stream, sum) in streams.iter().zip(&sums) {
            let mut host = [0; 1024];
            stream.memcpy_d2h(sum.view(), &mut host).unwrap();
            assert_eq!(host, [5; 1024]);
        }
    });
}

#[test]
fn halves_of_a_buffer_need_no_wait() {
    let device = Device::open("sim:h200").unwrap();
    let [a, b] = ["a", "b"].map(|name| device.stream(name).unwrap());
    let mut x = a.alloc::<u32>(1024).unwrap();
    let before = device.waits_inserted();
    {
        let (left, right) = x.view_mut().split_at(512);
        a.memset(left, 1).unwrap();
        b.memset(right, 2).unwrap();
    }
    assert_eq!(device.waits_inserted(), before);
    // The whole needs a wait: for the other stream's half.
    a.memset(x.view_mut(), 3).unwrap();
    assert_eq!(device.waits_inserted(), before + 1);
}

#[test]
fn one_stream_never_waits_and_a_known_order_is_not_waited_for_again() {
    let device = Device::open("sim:h200").unwrap();
    let [a, b] = ["a", "b"].map(|name| device.stream(name).unwrap());
    let (mut x, mut y) = (a.alloc::<u32>(64).unwrap(), a.alloc::<u32>(64).unwrap());
    for _ in 0..5 {
        a.memset(x.view_mut(), 1).unwrap();
        a.memset(y.view_mut(), 1).unwrap();
    }
    assert_eq!(device.waits_inserted(), 0);
    // The wait for `y` covers `x`, which was written before.
    b.memset(y.view_mut(), 2).unwrap();
    b.memset(x.view_mut(), 2).unwrap();
    assert_eq!(device.waits_inserted(), 1);
    b.synchronize().unwrap();
    a.memset(x.view_mut(), 3).unwrap();
    assert_eq!(device.waits_inserted(), 1, "the host has waited already");
}

#[test]
fn memory_of_a_dropped_buffer_is_not_given_away_too_early() {
    on_each(|device| {
        let [a, b] = ["a", "b"].map(|name| device.stream(name).unwrap());
        let add = add();
        let mut sum = b.alloc_zeroed::<u32>(4096).unwrap();
        for _ in 0..6 {
            let mut x = a.alloc::<u32>(4096).unwrap();
            a.fill_with(x.view_mut(), 7).unwrap();
            b.launch(&add, Grid::cover(4096, 256), (x.view(), sum.view_mut(), 1))
                .unwrap();
            drop(x);
        }
        let mut host = [0; 4096];
        b.memcpy_d2h(sum.view(), &mut host).unwrap();
        assert_eq!(host, [42; 4096]);
    });
}

#[test]
fn rows_are_copied_with_their_pitches() {
    on_each(|device| {
        let stream = device.stream("s").unwrap();
        let mut host = device.pinned::<u16>(6).unwrap();
        host.copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        let mut wide = stream.alloc_zeroed::<u16>(12).unwrap();
        let narrow = Rows {
            len: 3,
            count: 2,
            pitch: 3,
        };
        let padded = Rows {
            len: 3,
            count: 2,
            pitch: 8,
        };
        let sent = stream
            .upload_rows(host, narrow, wide.view_mut(), padded)
            .unwrap();
        let mut all = [9; 12];
        stream.memcpy_d2h(wide.view(), &mut all).unwrap();
        assert_eq!(all, [1, 2, 3, 0, 0, 0, 0, 0, 4, 5, 6, 0]);
        let too_wide = Rows {
            len: 3,
            count: 2,
            pitch: 10,
        };
        let host = sent.synchronize().unwrap();
        let refused = stream
            .upload_rows(host, narrow, wide.view_mut(), too_wide)
            .unwrap_err();
        assert!(refused.to_string().contains("too few"), "{refused}");
        assert_eq!(refused.value.map(|value| value.len()), Some(6));
    });
}

#[test]
fn the_pitch_of_one_row_is_ignored() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    for count in [0, 1] {
        let rows = Rows {
            len: 4,
            count,
            pitch: usize::MAX,
        };
        let mut source = device.pinned::<u32>(4).unwrap();
        source.fill(7);
        let mut x = stream.alloc_zeroed::<u32>(4).unwrap();
        let sent = stream
            .upload_rows(source, rows, x.view_mut(), rows)
            .unwrap();
        drop(sent);
        let mut y = stream.alloc_zeroed::<u32>(4).unwrap();
        stream
            .memcpy_d2d_rows(x.view(), rows, y.view_mut(), rows)
            .unwrap();
        let mut host = [0; 4];
        stream.memcpy_d2h(y.view(), &mut host).unwrap();
        assert_eq!(host, [7 * count as u32; 4]);
    }
}

#[test]
fn functions_on_the_host_run_in_stream_order_and_give_back_what_they_own() {
    on_each(|device| {
        let stream = device.stream("s").unwrap();
        let seen = Arc::new(AtomicUsize::new(0));
        let pending: Vec<Pending<Vec<usize>>> = (0..5)
            .map(|i| {
                let seen = Arc::clone(&seen);
                let note =
                    move |list: &mut Vec<usize>| list.push(seen.fetch_add(1, Ordering::SeqCst));
                stream.host_func(vec![i], note).unwrap()
            })
            .collect();
        for (i, pending) in pending.into_iter().enumerate() {
            assert_eq!(pending.synchronize().unwrap(), [i, i]);
        }
    });
}

#[test]
fn a_panic_in_a_host_function_reaches_the_waiting_caller_alone() {
    on_each(|device| {
        let stream = device.stream("s").unwrap();
        let pending = stream.host_func(1, |_| panic!("not today")).unwrap();
        let after = stream.host_func(2, |n| *n += 1).unwrap();
        let error = pending.synchronize().unwrap_err();
        assert_eq!(
            error,
            Error::Panicked {
                message: "not today".into()
            }
        );
        assert_eq!(after.synchronize().unwrap(), 3);
    });
}

#[test]
fn a_wait_that_is_too_short_leaves_the_value_where_it_is() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let slow = Kernel::<(Write<u8>,)>::on_host("slow", |_, (x,)| x.fill(1)).with_cost(|_| {
        KernelCost::Duration {
            ns: 1_000_000,
            share: 1.0,
        }
    });
    let mut x = stream.alloc::<u8>(16).unwrap();
    stream
        .launch(&slow, Grid::new(1, 1), (x.view_mut(),))
        .unwrap();
    let mut back = stream
        .download(x.view(), device.pinned(16).unwrap())
        .unwrap();
    assert!(
        back.synchronize_for(Duration::from_micros(100))
            .unwrap()
            .is_none()
    );
    assert!(!back.query().unwrap());
    let value = back
        .synchronize_for(Duration::from_millis(20))
        .unwrap()
        .unwrap();
    assert_eq!(value[..], [1; 16]);
    assert!(back.synchronize_for(Duration::ZERO).is_err());
}

#[test]
fn timed_events_measure_the_device() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let slow =
        Kernel::<(Write<u8>,)>::on_host("slow", |_, _| ()).with_cost(|_| KernelCost::Duration {
            ns: 500_000,
            share: 1.0,
        });
    let mut x = stream.alloc::<u8>(16).unwrap();
    let start = stream.record_timed().unwrap();
    stream
        .launch(&slow, Grid::new(1, 1), (x.view_mut(),))
        .unwrap();
    let end = stream.record_timed().unwrap();
    let took = end.elapsed_since(&start).unwrap().as_nanos();
    assert!((500_000..520_000).contains(&took), "{took}");
}

#[test]
fn two_devices_of_one_machine_wait_for_each_other() {
    for schedule in SCHEDULES {
        let options = Options::new().schedule(schedule);
        let devices = Device::open_all(&["sim:h200", "sim:h200"], &options).unwrap();
        let [a, b] = [0, 1].map(|at: usize| devices[at].stream("s").unwrap());
        let (mut x, mut y) = (a.alloc::<u64>(512).unwrap(), b.alloc::<u64>(512).unwrap());
        a.memcpy_h2d(&[7; 512], x.view_mut()).unwrap();
        b.memcpy_d2d(x.view(), y.view_mut()).unwrap();
        a.memset(x.view_mut(), 0).unwrap();
        let mut host = [0; 512];
        b.memcpy_d2h(y.view(), &mut host).unwrap();
        assert_eq!(host, [7; 512]);
    }
}

#[test]
fn memory_that_runs_out_says_how_much_there_was() {
    let options = Options::new().memory_bytes(16 << 20);
    let device = Device::open_with("sim:h200", &options).unwrap();
    let stream = device.stream("s").unwrap();
    let held = stream.alloc::<u8>(10 << 20).unwrap();
    let error = stream.alloc::<u8>(7 << 20).unwrap_err();
    let Error::OutOfMemory(memory) = error else {
        panic!("{error}")
    };
    assert_eq!(
        (memory.asked_bytes, memory.limit_bytes),
        (7 << 20, 16 << 20)
    );
    assert_eq!(memory.allocated_bytes, held.size_bytes());
    drop(held);
    assert!(stream.alloc::<u8>(16 << 20).is_ok());
}

#[test]
fn a_limit_under_two_mebibytes_gives_what_fits() {
    let options = Options::new().memory_bytes(10_000).pinned_bytes(10_000);
    let device = Device::open_with("sim:h200", &options).unwrap();
    let stream = device.stream("s").unwrap();
    for size in [8_000, 9_000, 4_000] {
        let held = stream.alloc::<u8>(size).unwrap();
        let pinned = device.pinned::<u8>(size).unwrap();
        for error in [
            stream.alloc::<u8>(7_000).map(drop).unwrap_err(),
            device.pinned::<u8>(7_000).map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
        }
        drop((held, pinned));
    }
}

#[test]
fn machines_do_not_mix() {
    let [a, b] = [(); 2].map(|()| Device::open("sim:h200").unwrap());
    let (here, there) = (a.stream("s").unwrap(), b.stream("s").unwrap());
    let mut x = there.alloc::<u8>(16).unwrap();
    let error = here.memset(x.view_mut(), 1).unwrap_err();
    assert!(
        error.to_string().contains("separate `Device::open` calls"),
        "{error}"
    );
    assert!(here.wait_stream(&there).is_err());
}

#[test]
fn a_missing_device_is_refused_with_the_available_ones() {
    let error = Device::open("sim:b200").unwrap_err();
    assert!(error.to_string().contains("sim:h200"), "{error}");
}

#[test]
fn statistics_count_allocated_reserved_and_active_memory() {
    let device = Device::open("sim:h200").unwrap();
    let [a, b] = ["a", "b"].map(|name| device.stream(name).unwrap());
    let slow = Kernel::<(Write<u8>,)>::on_host("slow", |_, (x,)| x.fill(1)).with_cost(|_| {
        KernelCost::Duration {
            ns: 1_000_000,
            share: 1.0,
        }
    });
    let mut x = a.alloc::<u8>(1 << 20).unwrap();
    let grid = Grid::new(1, 1);
    a.launch(&slow, grid, (x.view_mut(),)).unwrap();
    drop(x);
    let freed = device.statistics();
    assert_eq!(
        (freed.allocated_bytes, freed.allocated_peak_bytes),
        (0, 1 << 20)
    );
    assert_eq!(freed.active_bytes, 1 << 20, "the kernel still writes it");
    // Another stream gets other memory; only the stream that used the freed memory gets it again.
    let y = b.alloc::<u8>(1 << 20).unwrap();
    let z = a.alloc::<u8>(1 << 20).unwrap();
    let held = device.statistics();
    assert_eq!(held.allocated_bytes, 2 << 20);
    assert_eq!((held.reuses_own, held.waits_inserted), (1, 0));
    drop((y, z));
    a.synchronize().unwrap();
    assert_eq!(device.statistics().active_bytes, 0);
    device.empty_cache().unwrap();
    assert_eq!(device.statistics().reserved_bytes, 0);
}

#[test]
fn a_kernel_that_calls_the_runtime_is_refused_there() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let inner = stream.clone();
    let calls = Kernel::<(Write<u32>,)>::on_host("calls", move |_, (x,)| {
        let refused = inner.synchronize().unwrap_err();
        x[0] = u32::from(refused.to_string().contains("may not call the runtime"));
    });
    let mut x = stream.alloc(1).unwrap();
    stream
        .launch(&calls, Grid::new(1, 1), (x.view_mut(),))
        .unwrap();
    let mut host = [0];
    stream.memcpy_d2h(x.view(), &mut host).unwrap();
    assert_eq!(host, [1]);
}

#[test]
fn waiting_for_a_host_function_that_hangs_returns() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let mut pending = stream.host_func(wait, |wait| _ = wait.recv()).unwrap();
    let short = Duration::from_millis(1);
    assert!(pending.synchronize_for(short).unwrap().is_none());
    go.send(()).unwrap();
    assert!(pending.synchronize().is_ok());
}
