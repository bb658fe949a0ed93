//! Host functions: when they run, what they own, and the effect of their panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use sidestream::buffer::Pending;
use sidestream::error::Error;

use crate::kernels::{HOLD_NS, expect_pattern, fill, fill_explicit, filled, spin, values};
use crate::target::{Scenario, Target, one, panic_quietly};
use crate::untracked;

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(they_run_in_stream_order_and_give_back_what_they_own),
        one(they_run_after_the_work_before_them),
        one(later_work_waits_for_them),
        one(a_panic_reaches_the_waiting_caller_alone),
        one(many_can_be_queued),
        one(a_result_without_a_waiter_is_dropped_after_the_function_has_run),
        one(they_see_earlier_copies_and_delay_later_ones),
        one(a_panic_in_the_explicit_style_leaves_the_stream_usable),
    ]
}

const LEN: usize = 4096;

fn they_run_in_stream_order_and_give_back_what_they_own(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let pending: Vec<Pending<Vec<usize>>> = (0..20)
        .map(|at| {
            let seen = Arc::clone(&seen);
            let note = move |list: &mut Vec<usize>| list.push(seen.fetch_add(1, Ordering::SeqCst));
            stream.host_func(vec![at], note).unwrap()
        })
        .collect();
    for (at, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.synchronize().unwrap(), [at, at]);
    }
}

fn they_run_after_the_work_before_them(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let x = filled(&stream, LEN, 1);
    let start = stream.record_timed().unwrap();
    spin(HOLD_NS).hold(&stream);
    let back = stream
        .download(x.view(), device.pinned(LEN).unwrap())
        .unwrap();
    let copied = back.event().clone();
    let ran = stream.host_func(0, |number| *number = 7).unwrap();
    let end = stream.record_timed().unwrap();
    assert_eq!(ran.synchronize().unwrap(), 7);
    assert!(copied.query().unwrap());
    let took = end.elapsed_since(&start).unwrap();
    assert!(took.as_nanos() as u64 >= HOLD_NS * 95 / 100, "{took:?}");
}

fn later_work_waits_for_them(target: Target) {
    let device = target.open();
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let mut x = filled(&a, LEN, 1);
    let reached = Arc::new(AtomicU32::new(0));
    for round in 1..20 {
        let sets = Arc::clone(&reached);
        // The function takes a while in real time: work that does not wait for it overtakes it.
        let ran = a.host_func((), move |()| {
            let sum = (0..100_000u64).fold(0, |sum, n| std::hint::black_box(sum ^ n));
            std::hint::black_box(sum);
            sets.store(round, Ordering::SeqCst);
        });
        fill(&a, x.view_mut(), round);
        let found = values(&b, x.view());
        assert_eq!(reached.load(Ordering::SeqCst), round);
        expect_pattern(&found, round);
        ran.unwrap().synchronize().unwrap();
    }
}

fn a_panic_reaches_the_waiting_caller_alone(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let pending = stream.host_func(1, |_| panic_quietly("not today")).unwrap();
    let after = stream.host_func(2, |number| *number += 1).unwrap();
    let message = "not today".to_owned();
    let error = pending.synchronize().unwrap_err();
    assert_eq!(error, Error::Panicked { message });
    assert_eq!(after.synchronize().unwrap(), 3);
    let x = filled(&stream, LEN, 1);
    expect_pattern(&values(&stream, x.view()), 1);
}

fn many_can_be_queued(target: Target) {
    let device = target.open();
    let streams = ["a", "b", "c"].map(|name| device.stream(name).unwrap());
    let counts = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
    for (stream, count) in streams.iter().zip(&counts) {
        spin(HOLD_NS).hold(stream);
        for at in 0..500 {
            let count = Arc::clone(count);
            let act = move |at: &mut usize| {
                // A function counts only if it runs in its place.
                let _ = count.compare_exchange(*at, *at + 1, Ordering::SeqCst, Ordering::SeqCst);
            };
            drop(stream.host_func(at, act).unwrap());
        }
    }
    device.synchronize().unwrap();
    assert!(
        counts
            .iter()
            .all(|count| count.load(Ordering::SeqCst) == 500)
    );
}

fn a_result_without_a_waiter_is_dropped_after_the_function_has_run(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let (told, dropped) = std::sync::mpsc::channel();
    struct Tells(std::sync::mpsc::Sender<u32>, u32);
    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
        }
    }
    spin(HOLD_NS).hold(&stream);
    drop(
        stream
            .host_func(Tells(told, 1), |owned| owned.1 = 2)
            .unwrap(),
    );
    assert!(dropped.try_recv().is_err());
    stream.synchronize().unwrap();
    assert_eq!(dropped.recv(), Ok(2));
}

fn they_see_earlier_copies_and_delay_later_ones(target: Target) {
    let device = target.open();
    let stream = untracked::stream(&device, "s");
    let (memory, host) = (untracked::filled(&device, 1), untracked::pinned(&device, 2));
    let host = Arc::new(host);
    // SAFETY: everything is in one stream, and the memory is not freed until the device was waited for; the function
    // touches only the host memory that is named.
    unsafe {
        spin(HOLD_NS).hold_explicit(&stream);
        fill_explicit(&stream, memory.all(), 3);
        stream.memcpy(memory.all(), host.all()).unwrap();
        let mine = Arc::clone(&host);
        let negates = move || {
            let mut all = vec![0u32; untracked::LEN];
            mine.read(0, &mut all);
            all.iter_mut().for_each(|value| *value = !*value);
            mine.write(0, &all);
        };
        stream
            .host_func(&[host.all()], &[host.all()], negates)
            .unwrap();
        stream.memcpy(host.all(), memory.all()).unwrap();
        stream.memset(memory.bytes(..4), 0).unwrap();
    }
    explicit_sync(&device);
    let mut all = vec![0u32; untracked::LEN];
    host.read(0, &mut all);
    all.iter_mut().for_each(|value| *value = !*value);
    expect_pattern(&all, 3);
    let back = untracked::pinned(&device, 9);
    // SAFETY: as above.
    unsafe { stream.memcpy(memory.all(), back.all()).unwrap() };
    explicit_sync(&device);
    let mut copied = vec![0u32; untracked::LEN];
    back.read(0, &mut copied);
    assert_eq!(copied[0], 0);
    assert!(copied[1..].iter().zip(&all[1..]).all(|(a, b)| *a == !*b));
}

fn explicit_sync(device: &sidestream::device::Device) {
    sidestream::explicit::synchronize(device).unwrap();
}

fn a_panic_in_the_explicit_style_leaves_the_stream_usable(target: Target) {
    let device = target.open();
    let stream = untracked::stream(&device, "s");
    let memory = untracked::filled(&device, 1);
    // SAFETY: the function touches no memory.
    unsafe {
        stream
            .host_func(&[], &[], || panic_quietly("not today"))
            .unwrap();
        fill_explicit(&stream, memory.all(), 2);
    }
    stream.synchronize().unwrap();
    untracked::expect_device(&device, &memory, 2);
}
