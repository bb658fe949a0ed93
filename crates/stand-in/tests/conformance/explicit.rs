//! The explicit style: which streams wait for each other implicitly, memory in stream order, and streams with several
//! owners.

use sidestream::device::Device;
use sidestream::error::Error;
use sidestream::explicit::{self, Event, Stream};
use sidestream::op::StreamKind;

use crate::kernels::{
    HOLD_NS, expect_pattern, fill, fill_explicit, filled as safe_filled, is_seen_in_time, spin,
    values,
};
use crate::target::{Scenario, Target, one};
use crate::untracked::{BYTES, LEN, expect_device, expect_host, filled, pinned, stream};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(streams_of_every_kind_do_their_work),
        one(the_legacy_stream_waits_for_blocking_streams),
        one(blocking_streams_wait_for_the_legacy_stream),
        one(non_blocking_streams_take_no_part),
        one(blocking_streams_do_not_wait_for_each_other),
        one(a_bare_record_in_the_legacy_stream_puts_two_blocking_streams_in_a_row),
        one(a_wait_in_the_legacy_stream_delays_blocking_streams),
        one(to_synchronize_the_legacy_stream_covers_blocking_streams),
        one(per_thread_streams_are_blocking_ones_and_each_threads_own),
        one(wait_stream_is_a_snapshot),
        one(synchronize_covers_all_streams_of_a_device),
        one(a_stream_that_is_destroyed_while_it_works_completes_its_work),
        one(memory_in_stream_order_comes_and_goes),
        one(memory_in_stream_order_may_be_freed_by_another_stream_and_by_drop),
        one(memory_of_another_kind_is_not_freed_in_stream_order),
        one(an_adopted_stream_is_the_same_stream),
        one(a_stream_of_the_safe_api_is_the_same_stream),
        one(memory_that_is_lent_is_waited_for),
        one(memory_that_was_recorded_on_a_stream_is_not_given_away_too_early),
        one(memory_lent_to_be_read_is_not_written),
    ]
}

// In these scenarios the memory is not freed until the device was waited for, and the order is that of the tested
// rules.

fn write(stream: &Stream, to: &explicit::DeviceMemory, seed: u32) {
    // SAFETY: see above.
    unsafe { fill_explicit(stream, to.all(), seed) };
}

fn copy(stream: &Stream, from: &explicit::DeviceMemory, to: &explicit::DeviceMemory) {
    // SAFETY: see above.
    unsafe { stream.memcpy(from.all(), to.all()) }.unwrap();
}

fn streams_of_every_kind_do_their_work(target: Target) {
    let device = target.open();
    let (most_urgent, _) = device.caps().priorities;
    let streams = [
        Stream::legacy(&device).unwrap(),
        Stream::per_thread(&device).unwrap(),
        Stream::blocking(&device, "b").unwrap(),
        Stream::non_blocking(&device, "n", 0).unwrap(),
        Stream::non_blocking(&device, "urgent", most_urgent).unwrap(),
        Stream::of(&device.stream("safe").unwrap()),
    ];
    for (stream, seed) in streams.iter().zip(10..) {
        let (x, host) = (filled(&device, 1), pinned(&device, 2));
        write(stream, &x, seed);
        // SAFETY: see above.
        unsafe { stream.memcpy(x.all(), host.all()) }.unwrap();
        stream.synchronize().unwrap();
        assert!(stream.query().unwrap());
        expect_host(&host, seed);
    }
    let refused = Stream::non_blocking(&device, "s", most_urgent - 1);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
}

/// Makes `second` copy what `first` writes after a hold. The copied bytes show whether `second` waits implicitly.
fn waits(device: &Device, first: &Stream, second: &Stream) {
    for seed in 2..5 {
        let [x, y] = [1, 1].map(|seed| filled(device, seed));
        spin(HOLD_NS).hold_explicit(first);
        write(first, &x, seed);
        copy(second, &x, &y);
        expect_device(device, &y, seed);
    }
}

/// Returns whether work in `second` was seen to be complete while `first` is held.
fn overtakes(device: &Device, first: &Stream, second: &Stream) -> bool {
    let x = filled(device, 1);
    let seen = is_seen_in_time(|spin| {
        spin.hold_explicit(first);
        let held = Event::new(device).unwrap();
        first.record(&held).unwrap();
        write(second, &x, 2);
        while !second.query().unwrap() {}
        let is_held = !held.query().unwrap();
        held.synchronize().unwrap();
        is_held
    });
    expect_device(device, &x, 2);
    seen
}

fn the_legacy_stream_waits_for_blocking_streams(target: Target) {
    let device = target.open();
    let (blocking, legacy) = (
        Stream::blocking(&device, "b").unwrap(),
        Stream::legacy(&device),
    );
    waits(&device, &blocking, &legacy.unwrap());
}

fn blocking_streams_wait_for_the_legacy_stream(target: Target) {
    let device = target.open();
    let (blocking, legacy) = (
        Stream::blocking(&device, "b").unwrap(),
        Stream::legacy(&device),
    );
    waits(&device, &legacy.unwrap(), &blocking);
}

fn non_blocking_streams_take_no_part(target: Target) {
    let device = target.open();
    let (other, legacy) = (stream(&device, "n"), Stream::legacy(&device).unwrap());
    assert!(
        overtakes(&device, &legacy, &other),
        "it waited for the legacy stream"
    );
    assert!(
        overtakes(&device, &other, &legacy),
        "the legacy stream waited for it"
    );
}

fn blocking_streams_do_not_wait_for_each_other(target: Target) {
    let device = target.open();
    let [a, b] = ["a", "b"].map(|name| Stream::blocking(&device, name).unwrap());
    assert!(overtakes(&device, &a, &b), "one waited for the other");
}

fn a_bare_record_in_the_legacy_stream_puts_two_blocking_streams_in_a_row(target: Target) {
    let device = target.open();
    let [a, b] = ["a", "b"].map(|name| Stream::blocking(&device, name).unwrap());
    let legacy = Stream::legacy(&device).unwrap();
    for seed in 2..5 {
        let [x, y] = [1, 1].map(|seed| filled(&device, seed));
        spin(HOLD_NS).hold_explicit(&a);
        write(&a, &x, seed);
        legacy.record(&Event::new(&device).unwrap()).unwrap();
        copy(&b, &x, &y);
        expect_device(&device, &y, seed);
    }
}

fn a_wait_in_the_legacy_stream_delays_blocking_streams(target: Target) {
    let device = target.open();
    let [writer, other] = ["w", "o"].map(|name| stream(&device, name));
    let blocking = Stream::blocking(&device, "b").unwrap();
    let legacy = Stream::legacy(&device).unwrap();
    let event = Event::new(&device).unwrap();
    for seed in 2..5 {
        let [x, y] = [1, 1].map(|seed| filled(&device, seed));
        spin(HOLD_NS).hold_explicit(&writer);
        write(&writer, &x, seed);
        writer.record(&event).unwrap();
        legacy.wait(&event).unwrap();
        copy(&blocking, &x, &y);
        expect_device(&device, &y, seed);
    }
    let x = filled(&device, 1);
    let seen = is_seen_in_time(|spin| {
        spin.hold_explicit(&writer);
        writer.record(&event).unwrap();
        legacy.wait(&event).unwrap();
        write(&other, &x, 9);
        while !other.query().unwrap() {}
        let is_held = !event.query().unwrap();
        event.synchronize().unwrap();
        is_held
    });
    assert!(seen, "a non-blocking stream was delayed");
}

fn to_synchronize_the_legacy_stream_covers_blocking_streams(target: Target) {
    let device = target.open();
    let [a, b] = ["a", "b"].map(|name| Stream::blocking(&device, name).unwrap());
    let legacy = Stream::legacy(&device).unwrap();
    let events = [(); 2].map(|()| Event::new(&device).unwrap());
    for _ in 0..3 {
        for (stream, event) in [&a, &b].into_iter().zip(&events) {
            spin(HOLD_NS).hold_explicit(stream);
            stream.record(event).unwrap();
        }
        legacy.synchronize().unwrap();
        assert!(events.iter().all(|event| event.query().unwrap()));
        assert!(legacy.query().unwrap());
    }
    let seen = is_seen_in_time(|spin| {
        spin.hold_explicit(&a);
        let was_held = !legacy.query().unwrap();
        legacy.synchronize().unwrap();
        assert!(a.query().unwrap());
        was_held
    });
    assert!(
        seen,
        "the legacy stream was idle while a blocking stream was not"
    );
}

fn per_thread_streams_are_blocking_ones_and_each_threads_own(target: Target) {
    let device = target.open();
    let mine = Stream::per_thread(&device).unwrap();
    let legacy = Stream::legacy(&device).unwrap();
    waits(&device, &mine, &legacy);
    waits(&device, &legacy, &mine);
    let x = filled(&device, 1);
    let seen = is_seen_in_time(|spin| {
        spin.hold_explicit(&mine);
        let held = Event::new(&device).unwrap();
        mine.record(&held).unwrap();
        let is_held = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let refused = mine.synchronize();
                assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
                let theirs = Stream::per_thread(&device).unwrap();
                write(&theirs, &x, 2);
                while !theirs.query().unwrap() {}
                !held.query().unwrap()
            });
            other.join().unwrap()
        });
        mine.synchronize().unwrap();
        is_held
    });
    assert!(seen, "one thread's stream waited for another's");
    expect_device(&device, &x, 2);
}

fn wait_stream_is_a_snapshot(target: Target) {
    let device = target.open();
    let [a, b, c] = ["a", "b", "c"].map(|name| stream(&device, name));
    let [x, y] = [1, 1].map(|seed| filled(&device, seed));
    spin(HOLD_NS).hold_explicit(&a);
    write(&a, &x, 2);
    b.wait_stream(&a).unwrap();
    copy(&b, &x, &y);
    expect_device(&device, &y, 2);
    let seen = is_seen_in_time(|spin| {
        b.wait_stream(&a).unwrap();
        spin.hold_explicit(&a);
        // A wait now is a new snapshot, for the waiting stream alone.
        c.wait_stream(&a).unwrap();
        write(&b, &y, 3);
        while !b.query().unwrap() {}
        let is_held = !c.query().unwrap() && !a.query().unwrap();
        c.synchronize().unwrap();
        is_held
    });
    assert!(seen, "it waited for what came later");
}

fn synchronize_covers_all_streams_of_a_device(target: Target) {
    let device = target.open();
    let safe = device.stream("safe").unwrap();
    let streams = [
        Stream::blocking(&device, "b").unwrap(),
        stream(&device, "n"),
        Stream::of(&safe),
    ];
    for stream in &streams {
        spin(HOLD_NS).hold_explicit(stream);
    }
    spin(HOLD_NS).hold(&safe);
    explicit::synchronize(&device).unwrap();
    assert!(streams.iter().all(|stream| stream.query().unwrap()));
    assert!(safe.query().unwrap());
}

fn a_stream_that_is_destroyed_while_it_works_completes_its_work(target: Target) {
    let device = target.open();
    let event = Event::new(&device).unwrap();
    for seed in 2..8 {
        let x = filled(&device, 1);
        let busy = match seed % 2 {
            0 => stream(&device, "s"),
            _ => Stream::blocking(&device, "s").unwrap(),
        };
        spin(HOLD_NS).hold_explicit(&busy);
        write(&busy, &x, seed);
        busy.record(&event).unwrap();
        drop(busy);
        event.synchronize().unwrap();
        expect_device(&device, &x, seed);
    }
}

fn memory_in_stream_order_comes_and_goes(target: Target) {
    let device = target.open();
    let s = stream(&device, "s");
    let host = pinned(&device, 1);
    spin(HOLD_NS).hold_explicit(&s);
    for seed in 0..20 {
        let x = s.malloc_async(BYTES).unwrap();
        write(&s, &x, seed);
        // SAFETY: see above.
        unsafe { s.memcpy(x.all(), host.all()) }.unwrap();
        s.free_async(x).unwrap();
        let next = s.malloc_async(BYTES).unwrap();
        write(&s, &next, 99);
        s.free_async(next).unwrap();
        s.synchronize().unwrap();
        expect_host(&host, seed);
    }
}

fn memory_in_stream_order_may_be_freed_by_another_stream_and_by_drop(target: Target) {
    let device = target.open();
    let [a, b] = ["a", "b"].map(|name| stream(&device, name));
    let y = filled(&device, 1);
    for seed in 2..6 {
        let x = a.malloc_async(BYTES).unwrap();
        spin(HOLD_NS).hold_explicit(&a);
        write(&a, &x, seed);
        b.wait_stream(&a).unwrap();
        copy(&b, &x, &y);
        match seed % 2 {
            0 => b.free_async(x).unwrap(),
            _ => {
                b.synchronize().unwrap();
                drop(x);
            }
        }
        let next = b.malloc_async(BYTES).unwrap();
        write(&b, &next, 99);
        expect_device(&device, &y, seed);
        b.free_async(next).unwrap();
    }
}

fn memory_of_another_kind_is_not_freed_in_stream_order(target: Target) {
    let device = target.open();
    let s = stream(&device, "s");
    let refused = s.free_async(filled(&device, 1));
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    let x = filled(&device, 1);
    expect_device(&device, &x, 1);
}

fn an_adopted_stream_is_the_same_stream(target: Target) {
    let device = target.open();
    let own = stream(&device, "own");
    let Some(handle) = own.as_raw() else {
        assert_eq!(target, Target::Sim, "a driver has handles");
        return;
    };
    // SAFETY: `own` is a stream of this device and kind, and outlives everything that is used here.
    let adopted = unsafe { Stream::from_raw(&device, handle, StreamKind::NonBlocking, "adopted") };
    let adopted = adopted.unwrap();
    assert_eq!(adopted.as_raw(), Some(handle));
    for seed in 2..5 {
        let [x, y] = [1, 1].map(|seed| filled(&device, seed));
        spin(HOLD_NS).hold_explicit(&own);
        write(&own, &x, seed);
        copy(&adopted, &x, &y);
        write(&own, &x, 99);
        adopted.synchronize().unwrap();
        assert!(own.query().unwrap());
        expect_device(&device, &y, seed);
    }
    // The stream still belongs to its owner.
    drop(adopted);
    let x = filled(&device, 1);
    write(&own, &x, 2);
    own.synchronize().unwrap();
    expect_device(&device, &x, 2);
}

fn a_stream_of_the_safe_api_is_the_same_stream(target: Target) {
    let device = target.open();
    let safe = device.stream("safe").unwrap();
    let same = Stream::of(&safe);
    let mut x = safe_filled(&safe, LEN, 1);
    let y = filled(&device, 2);
    spin(HOLD_NS).hold(&safe);
    fill(&safe, x.view_mut(), 3);
    // SAFETY: one stream is in order; the buffer is not freed until the device was waited for.
    unsafe {
        let region = same.lend(x.view()).unwrap();
        same.memcpy(region, y.all()).unwrap();
    }
    fill(&safe, x.view_mut(), 4);
    expect_device(&device, &y, 3);
    let refused = same.begin_capture();
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    // An event of one API is waited for in the other.
    let other = stream(&device, "other");
    spin(HOLD_NS).hold(&safe);
    let host = device.pinned::<u32>(LEN).unwrap();
    let back = safe.download(x.view(), host).unwrap();
    other.wait_event(back.event()).unwrap();
    let event = Event::new(&device).unwrap();
    other.record(&event).unwrap();
    event.synchronize().unwrap();
    assert!(back.query().unwrap());
    expect_pattern(&back.synchronize().unwrap(), 4);
}

fn memory_that_is_lent_is_waited_for(target: Target) {
    let device = target.open();
    let safe = device.stream("safe").unwrap();
    let foreign = stream(&device, "foreign");
    let mut x = safe_filled(&safe, LEN, 1);
    for seed in 2..5 {
        let y = filled(&device, 1);
        spin(HOLD_NS).hold(&safe);
        fill(&safe, x.view_mut(), seed);
        // SAFETY: the stream of the buffer is made to wait before it writes again.
        unsafe {
            let region = foreign.lend(x.view()).unwrap();
            spin(HOLD_NS).hold_explicit(&foreign);
            foreign.memcpy(region, y.all()).unwrap();
        }
        Stream::of(&safe).wait_stream(&foreign).unwrap();
        fill(&safe, x.view_mut(), 99);
        expect_device(&device, &y, seed);
        // SAFETY: as above, for every use.
        unsafe {
            let region = foreign.lend_mut(x.view_mut()).unwrap();
            spin(HOLD_NS).hold_explicit(&foreign);
            fill_explicit(&foreign, region, seed);
        }
        Stream::of(&safe).wait_stream(&foreign).unwrap();
        expect_pattern(&values(&safe, x.view()), seed);
    }
}

fn memory_that_was_recorded_on_a_stream_is_not_given_away_too_early(target: Target) {
    let device = target.open();
    let home = device.stream("home").unwrap();
    for seed in 2..6 {
        let foreign = stream(&device, "foreign");
        let x = safe_filled(&home, LEN, seed);
        let y = filled(&device, 1);
        // SAFETY: the buffer is recorded on the stream before it is dropped.
        unsafe {
            let region = foreign.lend(x.view()).unwrap();
            spin(HOLD_NS).hold_explicit(&foreign);
            foreign.memcpy(region, y.all()).unwrap();
        }
        explicit::record_stream(&x, &foreign).unwrap();
        drop(x);
        drop(foreign);
        // The next buffer may get the same memory.
        let mut next = home.alloc::<u32>(LEN).unwrap();
        fill(&home, next.view_mut(), 99);
        home.synchronize().unwrap();
        expect_device(&device, &y, seed);
    }
}

fn memory_lent_to_be_read_is_not_written(target: Target) {
    let device = target.open();
    let safe = device.stream("safe").unwrap();
    let foreign = stream(&device, "foreign");
    let x = safe_filled(&safe, LEN, 1);
    // SAFETY: no work is submitted.
    let refused = unsafe {
        let region = foreign.lend(x.view()).unwrap();
        foreign.memset(region, 0)
    };
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    expect_pattern(&values(&safe, x.view()), 1);
}
