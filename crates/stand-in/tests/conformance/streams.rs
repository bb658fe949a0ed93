//! Streams of the safe API: which work waits for which, and which does not.

use std::time::Duration;

use sidestream::error::Error;
use sidestream::kernel::Grid;
use sidestream::stream::Stream;

use crate::drawn::Random;
use crate::kernels::{
    ADD, HOLD_NS, expect_pattern, fill, filled, is_seen_in_time, pattern, short, spin, values,
};
use crate::target::{Scenario, Target, one};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(every_priority_of_the_range_makes_a_stream_and_no_other_does),
        one(one_stream_keeps_the_order_of_its_calls),
        one(a_reader_waits_for_the_writer_on_another_stream),
        one(a_writer_waits_for_the_reader_on_another_stream),
        one(a_writer_waits_for_the_writer_on_another_stream),
        one(three_readers_on_three_streams_delay_the_next_writer),
        one(streams_that_share_nothing_do_not_wait_for_each_other),
        one(two_readers_do_not_wait_for_each_other),
        one(halves_of_a_buffer_are_two_things),
        one(wait_stream_delays_later_work),
        one(wait_stream_does_not_wait_for_later_work),
        one(wait_event_delays_later_work),
        one(an_unmarked_stream_is_waited_for_by_the_next_user_of_its_memory),
        one(a_wait_with_a_limit_gives_up_and_the_work_continues),
        one(synchronize_waits_for_all_submitted_work),
        one(device_synchronize_waits_for_all_streams),
        one(a_stream_that_is_dropped_while_it_works_completes_its_work),
        one(a_machine_that_is_dropped_while_it_works_ends),
        one(a_busy_stream_that_was_dropped_is_not_given_to_the_next),
        one(many_streams_at_once_keep_their_results),
    ]
}

const LEN: usize = 4096;

fn pair(target: Target) -> [Stream; 2] {
    let device = target.open();
    ["a", "b"].map(|name| device.stream(name).unwrap())
}

fn every_priority_of_the_range_makes_a_stream_and_no_other_does(target: Target) {
    let device = target.open();
    let (most_urgent, least_urgent) = device.caps().priorities;
    assert!(most_urgent <= 0 && 0 <= least_urgent);
    for priority in most_urgent..=least_urgent {
        let stream = device.stream_with_priority("s", priority).unwrap();
        assert_eq!(stream.priority(), priority);
        let mut buffer = stream.alloc::<u32>(LEN).unwrap();
        fill(&stream, buffer.view_mut(), priority as u32);
        expect_pattern(&values(&stream, buffer.view()), priority as u32);
    }
    for outside in [most_urgent - 1, least_urgent + 1] {
        let error = device.stream_with_priority("s", outside).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&outside.to_string()), "{text}");
        assert!(text.contains(&most_urgent.to_string()), "{text}");
    }
}

/// Fills and copies of random ranges, which give another result in any other order.
fn one_stream_keeps_the_order_of_its_calls(target: Target) {
    const LEN: usize = 97;
    let device = target.open();
    let stream = device.stream("s").unwrap();
    for seed in 0..4 {
        let mut random = Random(seed);
        let mut buffers = [(); 2].map(|()| stream.alloc_zeroed::<u32>(LEN).unwrap());
        let mut expected = [[0; LEN]; 2];
        for step in 0..200 {
            let len = 1 + random.below(LEN);
            let [from, to] = [(); 2].map(|()| random.below(LEN - len + 1));
            let into = random.below(2);
            let (left, right) = buffers.split_at_mut(1);
            let (source, target) = match into {
                0 => (&right[0], &mut left[0]),
                _ => (&left[0], &mut right[0]),
            };
            let part = target.slice_mut(to..to + len);
            match random.below(3) {
                0 => {
                    stream.fill_with(part, step).unwrap();
                    expected[into][to..to + len].fill(step);
                }
                1 => {
                    fill(&stream, part, step);
                    let values = expected[into][to..to + len].iter_mut().enumerate();
                    values.for_each(|(at, value)| *value = pattern(at, step));
                }
                _ => {
                    let part_of = source.slice(from..from + len);
                    stream.memcpy_d2d(part_of, part).unwrap();
                    let copied: Vec<u32> = expected[1 - into][from..from + len].to_vec();
                    expected[into][to..to + len].copy_from_slice(&copied);
                }
            }
        }
        for (buffer, expected) in buffers.iter().zip(&expected) {
            assert_eq!(values(&stream, buffer.view()), expected, "seed {seed}");
        }
    }
}

fn a_reader_waits_for_the_writer_on_another_stream(target: Target) {
    let [a, b] = pair(target);
    let (mut x, mut y) = (filled(&a, LEN, 1), filled(&b, LEN, 2));
    let before = a.device().waits_inserted();
    spin(HOLD_NS).hold(&a);
    fill(&a, x.view_mut(), 3);
    b.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    expect_pattern(&values(&b, y.view()), 3);
    assert!(a.device().waits_inserted() > before);
}

fn a_writer_waits_for_the_reader_on_another_stream(target: Target) {
    let [a, b] = pair(target);
    let (mut x, mut y) = (filled(&a, LEN, 1), filled(&b, LEN, 2));
    spin(HOLD_NS).hold(&a);
    a.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    fill(&b, x.view_mut(), 3);
    b.synchronize().unwrap();
    expect_pattern(&values(&a, y.view()), 1);
    expect_pattern(&values(&a, x.view()), 3);
}

fn a_writer_waits_for_the_writer_on_another_stream(target: Target) {
    let [a, b] = pair(target);
    let mut x = filled(&a, LEN, 1);
    spin(HOLD_NS).hold(&a);
    fill(&a, x.view_mut(), 2);
    fill(&b, x.view_mut(), 3);
    b.synchronize().unwrap();
    a.synchronize().unwrap();
    expect_pattern(&values(&a, x.view()), 3);
}

fn three_readers_on_three_streams_delay_the_next_writer(target: Target) {
    let device = target.open();
    let streams = ["a", "b", "c"].map(|name| device.stream(name).unwrap());
    let writer = device.stream("writer").unwrap();
    let mut x = filled(&writer, LEN, 1);
    let mut copies = streams.each_ref().map(|stream| filled(stream, LEN, 2));
    for (stream, copy) in streams.iter().zip(&mut copies) {
        spin(HOLD_NS).hold(stream);
        stream.memcpy_d2d(x.view(), copy.view_mut()).unwrap();
    }
    fill(&writer, x.view_mut(), 3);
    writer.synchronize().unwrap();
    for (stream, copy) in streams.iter().zip(&copies) {
        expect_pattern(&values(stream, copy.view()), 1);
    }
}

/// Returns whether the work submitted to `b` is complete while `a` is held.
fn overtakes(a: &Stream, b: &Stream, mut act: impl FnMut(Spin<'_>)) -> bool {
    is_seen_in_time(|spin| {
        act(&|| spin.hold(a));
        while !b.query().unwrap() {}
        let is_held = !a.query().unwrap();
        a.synchronize().unwrap();
        is_held
    })
}

type Spin<'a> = &'a dyn Fn();

fn streams_that_share_nothing_do_not_wait_for_each_other(target: Target) {
    let [a, b] = pair(target);
    let (mut x, mut y) = (filled(&a, LEN, 1), filled(&b, LEN, 1));
    let before = a.device().waits_inserted();
    let seen = overtakes(&a, &b, |hold| {
        hold();
        fill(&a, x.view_mut(), 2);
        fill(&b, y.view_mut(), 3);
    });
    assert!(seen, "`b` was not seen to be complete before `a`");
    assert_eq!(a.device().waits_inserted(), before);
    expect_pattern(&values(&b, y.view()), 3);
}

fn two_readers_do_not_wait_for_each_other(target: Target) {
    let [a, b] = pair(target);
    let x = filled(&a, LEN, 1);
    let (mut of_a, mut of_b) = (filled(&a, LEN, 2), filled(&b, LEN, 2));
    let seen = overtakes(&a, &b, |hold| {
        hold();
        a.memcpy_d2d(x.view(), of_a.view_mut()).unwrap();
        b.memcpy_d2d(x.view(), of_b.view_mut()).unwrap();
    });
    assert!(seen, "one reader waited for the other");
    expect_pattern(&values(&b, of_b.view()), 1);
}

fn halves_of_a_buffer_are_two_things(target: Target) {
    let [a, b] = pair(target);
    let mut x = filled(&a, 2 * LEN, 1);
    let seen = overtakes(&a, &b, |hold| {
        let (left, right) = x.view_mut().split_at(LEN);
        hold();
        fill(&a, left, 2);
        fill(&b, right, 3);
    });
    assert!(seen, "the halves waited for each other");
    expect_pattern(&values(&b, x.slice(..LEN)), 2);
    expect_pattern(&values(&b, x.slice(LEN..)), 3);
}

/// Returns how long after the start of `a`'s hold the waiting stream `b` continued, on the device's clock.
fn went_on_after(a: &Stream, b: &Stream, wait: impl Fn()) -> Duration {
    spin(1_000).hold(a);
    let start = a.record_timed().unwrap();
    spin(HOLD_NS).hold(a);
    wait();
    let end = b.record_timed().unwrap();
    end.elapsed_since(&start).unwrap()
}

fn wait_stream_delays_later_work(target: Target) {
    let [a, b] = pair(target);
    let took = went_on_after(&a, &b, || b.wait_stream(&a).unwrap());
    assert!(took >= Duration::from_nanos(HOLD_NS * 95 / 100), "{took:?}");
}

fn wait_event_delays_later_work(target: Target) {
    let [a, b] = pair(target);
    let took = went_on_after(&a, &b, || {
        let event = a.record_event().unwrap();
        b.wait_event(&event).unwrap();
    });
    assert!(took >= Duration::from_nanos(HOLD_NS * 95 / 100), "{took:?}");
}

fn wait_stream_does_not_wait_for_later_work(target: Target) {
    let [a, b] = pair(target);
    let mut x = filled(&b, LEN, 1);
    let seen = overtakes(&a, &b, |hold| {
        b.wait_stream(&a).unwrap();
        hold();
        fill(&b, x.view_mut(), 2);
    });
    assert!(seen, "`b` waited for later work of `a`");
}

fn an_unmarked_stream_is_waited_for_by_the_next_user_of_its_memory(target: Target) {
    let device = target.open();
    let (a, b) = (
        device.unmarked_stream("a").unwrap(),
        device.stream("b").unwrap(),
    );
    let (mut x, mut y) = (filled(&a, LEN, 1), filled(&b, LEN, 1));
    for seed in 2..6 {
        spin(HOLD_NS).hold(&a);
        fill(&a, x.view_mut(), seed);
        b.memcpy_d2d(x.view(), y.view_mut()).unwrap();
        fill(&a, x.view_mut(), 100);
        expect_pattern(&values(&b, y.view()), seed);
    }
    a.synchronize().unwrap();
    assert!(a.query().unwrap());
}

fn a_wait_with_a_limit_gives_up_and_the_work_continues(target: Target) {
    let [a, _] = pair(target);
    let mut x = filled(&a, LEN, 1);
    let seen = is_seen_in_time(|spin| {
        spin.hold(&a);
        fill(&a, x.view_mut(), 2);
        let gave_up = !a.synchronize_for(short(target)).unwrap();
        a.synchronize().unwrap();
        gave_up
    });
    assert!(seen, "the limit never passed within the hold");
    assert!(a.synchronize_for(Duration::ZERO).unwrap() && a.query().unwrap());
    expect_pattern(&values(&a, x.view()), 2);
}

fn synchronize_waits_for_all_submitted_work(target: Target) {
    let [a, _] = pair(target);
    for _ in 0..3 {
        spin(HOLD_NS).hold(&a);
        let host = a.device().pinned::<u32>(LEN).unwrap();
        let x = filled(&a, LEN, 1);
        let mut back = a.download(x.view(), host).unwrap();
        a.synchronize().unwrap();
        assert!(a.query().unwrap());
        let back = back.synchronize_for(Duration::ZERO).unwrap();
        expect_pattern(&back.expect("the stream was waited for"), 1);
    }
}

fn device_synchronize_waits_for_all_streams(target: Target) {
    let [a, b] = pair(target);
    let events = [&a, &b].map(|stream| {
        spin(HOLD_NS).hold(stream);
        stream.record_event().unwrap()
    });
    a.device().synchronize().unwrap();
    assert!(events.iter().all(|event| event.query().unwrap()));
    assert!(a.query().unwrap() && b.query().unwrap());
}

fn a_stream_that_is_dropped_while_it_works_completes_its_work(target: Target) {
    let device = target.open();
    let other = device.stream("other").unwrap();
    let mut x = filled(&other, LEN, 1);
    let back = {
        let stream = device.stream("s").unwrap();
        spin(HOLD_NS).hold(&stream);
        fill(&stream, x.view_mut(), 2);
        let host = device.pinned(LEN).unwrap();
        stream.download(x.view(), host).unwrap()
    };
    fill(&other, x.view_mut(), 3);
    expect_pattern(&back.synchronize().unwrap(), 2);
    expect_pattern(&values(&other, x.view()), 3);
}

fn a_machine_that_is_dropped_while_it_works_ends(target: Target) {
    for _ in 0..2 {
        let device = target.open();
        let stream = device.stream("s").unwrap();
        let mut x = stream.alloc::<u32>(LEN).unwrap();
        spin(HOLD_NS).hold(&stream);
        fill(&stream, x.view_mut(), 1);
        let back = stream.download(x.view(), device.pinned(LEN).unwrap());
        drop((device, stream, x));
        drop(back.unwrap());
    }
}

fn a_busy_stream_that_was_dropped_is_not_given_to_the_next(target: Target) {
    let device = target.open();
    let seen = is_seen_in_time(|spin| {
        let busy = device.stream("s").unwrap();
        spin.hold(&busy);
        let held = busy.record_event().unwrap();
        drop(busy);
        let next = device.stream("s").unwrap();
        let mut x = next.alloc::<u32>(LEN).unwrap();
        fill(&next, x.view_mut(), 1);
        while !next.query().unwrap() {}
        let is_held = !held.query().unwrap();
        held.synchronize().unwrap();
        is_held
    });
    assert!(
        seen,
        "the new stream was ordered after the work of the old one"
    );
}

fn many_streams_at_once_keep_their_results(target: Target) {
    let device = target.open();
    let streams: Vec<Stream> = (0..40)
        .map(|at| device.stream(&format!("s{at}")).unwrap())
        .collect();
    let first = &streams[0];
    let mut a = first.alloc::<f32>(LEN).unwrap();
    first.fill_with(a.view_mut(), 1.0).unwrap();
    // Each adds to what the previous one has written: forty streams, one chain.
    let mut sum = first.alloc_zeroed::<f32>(LEN).unwrap();
    for stream in &streams {
        let mut next = stream.alloc::<f32>(LEN).unwrap();
        let args = (a.view(), sum.view(), next.view_mut(), LEN as u64);
        stream.launch(&ADD, Grid::cover(LEN, 128), args).unwrap();
        sum = next;
    }
    let mut host = [0.0; LEN];
    first.memcpy_d2h(sum.view(), &mut host).unwrap();
    assert!(host.iter().all(|&value| value == 40.0), "{:?}", &host[..4]);
}
