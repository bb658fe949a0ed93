//! Several threads on one device.

use std::sync::Barrier;

use sidestream::buffer::DeviceBuf;
use sidestream::device::Device;

use crate::kernels::{
    CHECK, HOLD_NS, STEP, check, expect_pattern, fill, filled, patterned, spin, stepped, values,
};
use crate::target::{Scenario, Target, one};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(eight_threads_read_the_same_data_each_on_a_stream),
        one(eight_threads_on_one_stream_keep_their_order),
        one(eight_threads_allocate_and_free),
        one(memory_goes_from_thread_to_thread),
        one(a_kernel_is_launched_by_eight_threads),
        one(streams_come_and_go_on_many_threads),
    ]
}

const LEN: usize = 4096;
const THREADS: usize = 8;

/// Runs a function on several threads, which begin at the same time.
fn at_once<R: Send>(act: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let each = (0..THREADS).map(|at| {
            let (act, barrier) = (&act, &barrier);
            scope.spawn(move || {
                barrier.wait();
                act(at)
            })
        });
        let each: Vec<_> = each.collect();
        each.into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn eight_threads_read_the_same_data_each_on_a_stream(target: Target) {
    let device = target.open();
    let home = device.stream("home").unwrap();
    let mut shared = home.alloc::<u32>(LEN).unwrap();
    spin(HOLD_NS).hold(&home);
    fill(&home, shared.view_mut(), 7);
    let errors = at_once(|at| {
        let stream = device.stream(&format!("s{at}")).unwrap();
        let mut errors = stream.alloc_zeroed::<u32>(1).unwrap();
        for _ in 0..50 {
            check(&stream, shared.view(), 7, &mut errors);
        }
        let mut copy = stream.alloc::<u32>(LEN).unwrap();
        stream.memcpy_d2d(shared.view(), copy.view_mut()).unwrap();
        expect_pattern(&values(&stream, copy.view()), 7);
        values(&stream, errors.view())[0]
    });
    assert_eq!(errors, [0; THREADS]);
    // The next writer is ordered after all readers.
    fill(&home, shared.view_mut(), 8);
    expect_pattern(&values(&home, shared.view()), 8);
}

fn eight_threads_on_one_stream_keep_their_order(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    at_once(|at| {
        let mut x = stream.alloc::<u32>(LEN).unwrap();
        for seed in 0..20 {
            let seed = seed * 100 + at as u32;
            fill(&stream, x.view_mut(), seed);
            let host = device.pinned::<u32>(LEN).unwrap();
            let back = stream.download(x.view(), host).unwrap();
            fill(&stream, x.view_mut(), 9_999);
            expect_pattern(&back.synchronize().unwrap(), seed);
        }
    });
}

fn eight_threads_allocate_and_free(target: Target) {
    let device = target.open_with(&target.options().memory_bytes(4 << 20));
    at_once(|at| {
        let (a, b) = streams(&device, at);
        let mut errors = b.alloc_zeroed::<u32>(1).unwrap();
        for seed in 0..30 {
            let len = 100 * (1 + (seed as usize * 7 + at) % 60);
            let mut x = a.alloc::<u32>(len).unwrap();
            fill(&a, x.view_mut(), seed);
            check(&b, x.view(), seed, &mut errors);
        }
        assert_eq!(values(&b, errors.view()), [0]);
    });
    device.synchronize().unwrap();
    assert_eq!(device.statistics().allocated_bytes, 0);
}

fn streams(device: &Device, at: usize) -> (sidestream::stream::Stream, sidestream::stream::Stream) {
    let [a, b] = ["a", "b"].map(|name| device.stream(&format!("{name}{at}")).unwrap());
    (a, b)
}

fn memory_goes_from_thread_to_thread(target: Target) {
    let device = target.open();
    let (first, from) = std::sync::mpsc::channel::<(DeviceBuf<u32>, u32)>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = device.stream("writer").unwrap();
            for seed in 0..40 {
                let mut x = stream.alloc::<u32>(LEN).unwrap();
                if seed % 10 == 0 {
                    spin(HOLD_NS / 4).hold(&stream);
                }
                fill(&stream, x.view_mut(), seed);
                first.send((x, seed)).unwrap();
            }
            drop(first);
        });
        let stream = device.stream("reader").unwrap();
        let mut errors = stream.alloc_zeroed::<u32>(1).unwrap();
        for (x, seed) in from {
            check(&stream, x.view(), seed, &mut errors);
        }
        assert_eq!(values(&stream, errors.view()), [0]);
    });
}

fn a_kernel_is_launched_by_eight_threads(target: Target) {
    let device = target.open();
    let home = device.stream("home").unwrap();
    let shared = filled(&home, LEN, 3);
    let grid = sidestream::kernel::Grid::cover(LEN, 256);
    at_once(|at| {
        let stream = device.stream(&format!("s{at}")).unwrap();
        let mut from = stream.alloc::<f32>(LEN).unwrap();
        let mut to = stream.alloc::<f32>(LEN).unwrap();
        stream.fill_with(from.view_mut(), at as f32).unwrap();
        for work in 0..20 {
            let args = (from.view(), to.view_mut(), LEN as u64, work);
            stream.launch(&STEP, grid, args).unwrap();
        }
        let mut host = [0.0; LEN];
        stream.memcpy_d2h(to.view(), &mut host).unwrap();
        let expected = stepped(at as f32, 19).to_bits();
        assert!(host.iter().all(|value| value.to_bits() == expected));
        let mut errors = stream.alloc_zeroed::<u32>(1).unwrap();
        let args = (shared.view(), LEN as u64, 3, errors.view_mut());
        stream.launch(&CHECK, grid, args).unwrap();
        assert_eq!(values(&stream, errors.view()), [0]);
    });
}

fn streams_come_and_go_on_many_threads(target: Target) {
    let device = target.open();
    at_once(|at| {
        for round in 0..10 {
            let stream = device.stream("s").unwrap();
            let seed = (round * THREADS + at) as u32;
            let mut x = stream.alloc::<u32>(LEN).unwrap();
            stream
                .memcpy_h2d(&patterned(LEN, seed), x.view_mut())
                .unwrap();
            let event = stream.record_event().unwrap();
            drop(stream);
            let other = device.stream("o").unwrap();
            other.wait_event(&event).unwrap();
            expect_pattern(&values(&other, x.view()), seed);
        }
    });
}
