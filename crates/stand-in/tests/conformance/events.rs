//! Events of the safe API, and of the explicit style, where they can be recorded again.

use std::time::Duration;

use sidestream::error::{Error, Result};
use sidestream::explicit::{self, Event};

use crate::kernels::{
    HOLD_NS, expect_pattern, fill, fill_explicit, filled, is_seen_in_time, short, spin,
};
use crate::target::{Scenario, Target, one};
use crate::untracked::{self, BYTES};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(an_event_is_complete_when_the_work_before_it_is),
        one(an_event_does_not_cover_later_work),
        one(an_event_outlives_its_stream),
        one(a_wait_for_an_event_with_a_limit_gives_up),
        one(timed_events_measure_the_device),
        one(times_of_two_streams_of_a_device_can_be_compared),
        one(a_placed_wait_keeps_the_record_of_its_call),
        one(a_record_overwrites_the_one_before),
        one(an_event_that_was_never_recorded_is_complete),
        one(a_pending_event_may_be_destroyed),
        one(an_event_that_puts_its_waiter_to_sleep_is_complete_when_its_work_is),
        one(elapsed_is_refused_with_the_codes_of_the_driver),
        one(elapsed_is_negative_backwards),
        one(an_event_that_is_awaited_by_a_task_wakes_it),
    ]
}

const LEN: usize = 4096;

fn code(result: Result<impl Sized>) -> i32 {
    match result {
        Err(Error::Refused { code, .. }) => code,
        Err(error) => panic!("{error}"),
        Ok(_) => 0,
    }
}

fn an_event_is_complete_when_the_work_before_it_is(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let seen = is_seen_in_time(|spin| {
        spin.hold(&stream);
        let event = stream.record_event().unwrap();
        let was_held = !event.query().unwrap();
        event.synchronize().unwrap();
        assert!(event.query().unwrap() && stream.query().unwrap());
        was_held
    });
    assert!(seen, "the event was never seen to be pending");
}

fn an_event_does_not_cover_later_work(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut x = stream.alloc::<u32>(LEN).unwrap();
    let seen = is_seen_in_time(|spin| {
        fill(&stream, x.view_mut(), 1);
        let event = stream.record_event().unwrap();
        spin.hold(&stream);
        event.synchronize().unwrap();
        let is_held = !stream.query().unwrap();
        stream.synchronize().unwrap();
        is_held
    });
    assert!(seen, "the event waited for the work after it");
}

fn an_event_outlives_its_stream(target: Target) {
    let device = target.open();
    let other = device.stream("other").unwrap();
    let mut x = filled(&other, LEN, 1);
    let event = {
        let stream = device.stream("s").unwrap();
        spin(HOLD_NS).hold(&stream);
        fill(&stream, x.view_mut(), 2);
        stream.record_event().unwrap()
    };
    drop(device);
    event.synchronize().unwrap();
    let mut back = other
        .download(x.view(), other.device().pinned(LEN).unwrap())
        .unwrap();
    other.synchronize().unwrap();
    expect_pattern(&back.synchronize_for(Duration::ZERO).unwrap().unwrap(), 2);
}

fn a_wait_for_an_event_with_a_limit_gives_up(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let seen = is_seen_in_time(|spin| {
        spin.hold(&stream);
        let event = stream.record_event().unwrap();
        let gave_up = !event.synchronize_for(short(target)).unwrap();
        event.synchronize().unwrap();
        assert!(event.synchronize_for(Duration::ZERO).unwrap());
        gave_up
    });
    assert!(seen, "the limit never passed within the hold");
}

/// Checks for a hold of 2 ms on the device's clock. The upper bound allows for other work of the machine.
#[track_caller]
fn is_a_hold(took: Duration) {
    let (least, most) = (Duration::from_micros(1_900), Duration::from_millis(100));
    assert!((least..most).contains(&took), "{took:?}");
}

fn timed_events_measure_the_device(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let hold = spin(HOLD_NS);
    // The first launch of a kernel may load it.
    hold.hold(&stream);
    let start = stream.record_timed().unwrap();
    hold.hold(&stream);
    let end = stream.record_timed().unwrap();
    is_a_hold(end.elapsed_since(&start).unwrap());
    assert_eq!(start.elapsed_since(&end).unwrap(), Duration::ZERO);
    assert!(end.event().query().unwrap());
}

fn times_of_two_streams_of_a_device_can_be_compared(target: Target) {
    let device = target.open();
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let hold = spin(HOLD_NS);
    hold.hold(&a);
    let start = a.record_timed().unwrap();
    b.wait_event(start.event()).unwrap();
    hold.hold(&b);
    is_a_hold(b.record_timed().unwrap().elapsed_since(&start).unwrap());
}

fn a_placed_wait_keeps_the_record_of_its_call(target: Target) {
    let device = target.open();
    let [writer, reader, idle] = ["w", "r", "i"].map(|name| untracked::stream(&device, name));
    let (x, y) = (untracked::filled(&device, 1), untracked::filled(&device, 2));
    let event = Event::new(&device).unwrap();
    // SAFETY: the reader waits for the writer by the event; the memory is not freed until the device was waited for.
    unsafe {
        spin(HOLD_NS).hold_explicit(&writer);
        fill_explicit(&writer, x.all(), 3);
        writer.record(&event).unwrap();
        reader.wait(&event).unwrap();
        // The stream `idle` has no work: a wait for this record waits for nothing.
        idle.record(&event).unwrap();
        reader.memcpy(x.all(), y.all()).unwrap();
    }
    event.synchronize().unwrap();
    untracked::expect_device(&device, &y, 3);
}

fn a_record_overwrites_the_one_before(target: Target) {
    let device = target.open();
    let [held, reader, idle] = ["h", "r", "i"].map(|name| untracked::stream(&device, name));
    let x = untracked::filled(&device, 1);
    let event = Event::new(&device).unwrap();
    let seen = is_seen_in_time(|spin| {
        spin.hold_explicit(&held);
        held.record(&event).unwrap();
        idle.record(&event).unwrap();
        reader.wait(&event).unwrap();
        // SAFETY: the memory has no other use, and the device is waited for before it is freed.
        unsafe { fill_explicit(&reader, x.all(), 2) };
        while !reader.query().unwrap() {}
        let is_held = !held.query().unwrap();
        held.synchronize().unwrap();
        is_held
    });
    assert!(seen, "the wait was for the record that was overwritten");
    untracked::expect_device(&device, &x, 2);
}

fn an_event_that_was_never_recorded_is_complete(target: Target) {
    let device = target.open();
    let stream = untracked::stream(&device, "s");
    let memory = untracked::filled(&device, 1);
    for event in [Event::new(&device).unwrap(), Event::timed(&device).unwrap()] {
        assert!(event.query().unwrap());
        event.synchronize().unwrap();
        stream.wait(&event).unwrap();
        // SAFETY: the memory has no other use, and the stream is waited for.
        unsafe { stream.memset(memory.bytes(..BYTES), 0).unwrap() };
        stream.synchronize().unwrap();
    }
    // A pooled event that was used before behaves like a new one, too.
    let used = Event::new(&device).unwrap();
    spin(HOLD_NS).hold_explicit(&stream);
    stream.record(&used).unwrap();
    drop(used);
    assert!(Event::new(&device).unwrap().query().unwrap());
    stream.synchronize().unwrap();
}

fn a_pending_event_may_be_destroyed(target: Target) {
    let device = target.open();
    let [writer, reader, idle] = ["w", "r", "i"].map(|name| untracked::stream(&device, name));
    for timed in [false, true] {
        let (x, y) = (untracked::filled(&device, 1), untracked::filled(&device, 2));
        let event = if timed {
            Event::timed(&device).unwrap()
        } else {
            Event::new(&device).unwrap()
        };
        // SAFETY: the reader waits for the writer by the event; the memory is not freed until the device was waited
        // for.
        unsafe {
            spin(HOLD_NS).hold_explicit(&writer);
            fill_explicit(&writer, x.all(), 3);
            writer.record(&event).unwrap();
            reader.wait(&event).unwrap();
            drop(event);
            // New events may reuse the driver's event.
            let new: Vec<Event> = (0..64).map(|_| Event::new(&device).unwrap()).collect();
            new.iter().for_each(|event| idle.record(event).unwrap());
            reader.memcpy(x.all(), y.all()).unwrap();
        }
        untracked::expect_device(&device, &y, 3);
    }
}

fn elapsed_is_refused_with_the_codes_of_the_driver(target: Target) {
    let device = target.open();
    let stream = untracked::stream(&device, "s");
    let [start, end, never] = [(); 3].map(|()| Event::timed(&device).unwrap());
    let untimed = Event::new(&device).unwrap();
    for event in [&start, &end, &untimed] {
        stream.record(event).unwrap();
    }
    explicit::synchronize(&device).unwrap();
    assert!(end.elapsed_ns_since(&start).unwrap() >= 0.0);
    assert_eq!(code(end.elapsed_ns_since(&never)), 400);
    assert_eq!(code(never.elapsed_ns_since(&start)), 400);
    assert_eq!(code(never.elapsed_ns_since(&never)), 400);
    assert_eq!(code(end.elapsed_ns_since(&untimed)), 400);
    assert_eq!(code(untimed.elapsed_ns_since(&start)), 400);
    let seen = is_seen_in_time(|spin| {
        spin.hold_explicit(&stream);
        stream.record(&end).unwrap();
        let pending = code(end.elapsed_ns_since(&start));
        stream.synchronize().unwrap();
        assert!(end.elapsed_ns_since(&start).unwrap() > 0.0);
        assert!([0, 600].contains(&pending), "{pending}");
        pending == 600
    });
    assert!(seen, "an event that is pending gave a time");
}

fn elapsed_is_negative_backwards(target: Target) {
    let device = target.open();
    let stream = untracked::stream(&device, "s");
    let [first, second] = [(); 2].map(|()| Event::timed(&device).unwrap());
    spin(1_000).hold_explicit(&stream);
    stream.record(&first).unwrap();
    spin(HOLD_NS).hold_explicit(&stream);
    stream.record(&second).unwrap();
    stream.synchronize().unwrap();
    let forwards = second.elapsed_ns_since(&first).unwrap();
    let backwards = first.elapsed_ns_since(&second).unwrap();
    assert!(
        forwards > 1.9e6 && backwards < -1.9e6,
        "{forwards} and {backwards}"
    );
}

fn an_event_that_is_awaited_by_a_task_wakes_it(target: Target) {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread::Thread;

    struct Unparks(Thread);
    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut x = filled(&stream, LEN, 1);
    spin(HOLD_NS).hold(&stream);
    fill(&stream, x.view_mut(), 2);
    let event = stream.record_event().unwrap();
    let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut task = pin!(poll_fn(|context| event.poll(context)));
    loop {
        match task.as_mut().poll(&mut context) {
            Poll::Ready(done) => break done.unwrap(),
            Poll::Pending => std::thread::park(),
        }
    }
    assert!(event.query().unwrap());
    expect_pattern(&crate::kernels::values(&stream, x.view()), 2);
}

fn an_event_that_puts_its_waiter_to_sleep_is_complete_when_its_work_is(target: Target) {
    let device = target.open();
    let [s, other] = ["s", "o"].map(|name| untracked::stream(&device, name));
    let (x, y) = (untracked::filled(&device, 1), untracked::filled(&device, 1));
    let host = untracked::pinned(&device, 1);
    let event = Event::blocking(&device).unwrap();
    // A wait for the event has no effect until its first record.
    event.synchronize().unwrap();
    for seed in 2..8 {
        // SAFETY: the event orders the streams, and the host waits for it or for the device.
        unsafe {
            spin(HOLD_NS).hold_explicit(&s);
            fill_explicit(&s, x.all(), seed);
            s.memcpy(x.all(), host.all()).unwrap();
            s.record(&event).unwrap();
            other.wait(&event).unwrap();
            other.memcpy(x.all(), y.all()).unwrap();
        }
        event.synchronize().unwrap();
        untracked::expect_host(&host, seed);
        assert!(event.query().unwrap());
        untracked::expect_device(&device, &y, seed);
    }
    let seen = is_seen_in_time(|spin| {
        spin.hold_explicit(&s);
        s.record(&event).unwrap();
        let was_held = !event.query().unwrap();
        // Several threads may sleep.
        std::thread::scope(|scope| {
            let waits = [(); 3].map(|()| scope.spawn(|| event.synchronize()));
            let waits = waits.into_iter();
            waits.for_each(|wait| wait.join().unwrap().unwrap());
        });
        assert!(s.query().unwrap());
        was_held
    });
    assert!(seen, "the event was never seen to be pending");
}
