//! Streams that other libraries use too, whose work is unknown to the library; and the effect of a capture of such a
//! stream, or of one on which memory was recorded, on calls of the safe API.
//!
//! The other library is a machine of its own on the same driver: it gets handles and addresses, and the machine of
//! the scenario does not observe what it does with them.

use sidestream::device::Device;
use sidestream::error::{Error, Result};
use sidestream::explicit::{self, Arg, Event, Stream};
use sidestream::kernel::Grid;
use sidestream::op::StreamKind;

use crate::kernels::{FILL, HOLD_NS, expect_pattern, fill, spin, values};
use crate::target::{Scenario, Target, one};
use crate::untracked::stream;

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(memory_recorded_on_a_shared_stream_waits_for_work_of_others),
        one(memory_recorded_on_an_adopted_stream_waits_for_work_of_its_owner),
        one(memory_recorded_on_a_per_thread_stream_waits_for_that_threads_work),
        one(a_per_thread_stream_is_recorded_by_its_own_thread),
        one(to_synchronize_a_shared_stream_waits_for_work_of_others),
        one(to_query_a_shared_stream_is_to_query_work_of_others),
        one(to_wait_for_a_shared_stream_is_to_wait_for_work_of_others),
        one(a_stream_that_was_shared_is_not_reused_as_idle),
        one(memory_recorded_before_a_capture_is_handed_on_during_it),
        one(memory_recorded_in_a_capture_is_handed_on_after_it),
        one(a_safe_call_on_a_stream_that_others_capture_is_refused),
        one(safe_calls_beside_a_capture_leave_it_alone),
        one(memory_is_not_given_back_to_the_driver_beside_a_capture),
    ]
}

/// Number of values that fill all the memory of these devices: the next allocation of as many gets the same bytes.
const LEN: usize = 1 << 20;

/// Returns a device with room for one buffer of [`LEN`] values.
fn narrow(target: Target) -> Device {
    target.open_with(&target.options().memory_bytes(4 * LEN as u64))
}

/// Another library.
struct Foreign(Device);

impl Foreign {
    /// Returns none on a target without handles that another library could use.
    fn open(target: Target) -> Option<Foreign> {
        (target != Target::Sim).then(|| Foreign(target.open()))
    }

    fn adopt(&self, handle: u64, kind: StreamKind) -> Stream {
        // SAFETY: the scenarios keep the stream for longer than its handle here.
        unsafe { Stream::from_raw(&self.0, handle, kind, "foreign") }.unwrap()
    }

    /// Fills memory after a hold.
    fn fills(&self, stream: &Stream, at: u64, seed: u32) {
        spin(HOLD_NS).hold_explicit(stream);
        let args = [Arg::value(at), Arg::value(LEN as u64), Arg::value(seed)];
        // SAFETY: these are the kernel's arguments, and the scenarios keep the memory until the kernel has completed,
        // except where they test the opposite.
        unsafe { stream.launch(&FILL, Grid::cover(LEN, 256), &args) }.unwrap();
    }
}

fn handle(stream: &Stream) -> u64 {
    stream.as_raw().expect("a driver has handles")
}

/// The other library fills a buffer of the safe API on the stream `theirs`, which this library knows as `noted`. The
/// buffer is recorded on the stream and dropped; its next owner must get its own values.
fn is_handed_on(device: &Device, foreign: &Foreign, noted: &Stream, theirs: &Stream) {
    let [home, next] = ["home", "next"].map(|name| device.stream(name).unwrap());
    for seed in 2..5 {
        let mut x = home.alloc::<u32>(LEN).unwrap();
        fill(&home, x.view_mut(), 1);
        home.synchronize().unwrap();
        // SAFETY: the buffer is recorded on the stream before it is dropped.
        let at = unsafe { noted.lend_mut(x.view_mut()) }.unwrap().address();
        noted.synchronize().unwrap();
        foreign.fills(theirs, at, 99);
        explicit::record_stream(&x, noted).unwrap();
        drop(x);
        let mut y = next.alloc::<u32>(LEN).unwrap();
        fill(&next, y.view_mut(), seed);
        explicit::synchronize(device).unwrap();
        explicit::synchronize(&foreign.0).unwrap();
        expect_pattern(&values(&next, y.view()), seed);
    }
}

fn memory_recorded_on_a_shared_stream_waits_for_work_of_others(target: Target) {
    let Some(foreign) = Foreign::open(target) else {
        return;
    };
    let device = narrow(target);
    let safe = device.stream("shared").unwrap();
    for ours in [Stream::of(&safe), stream(&device, "explicit")] {
        let theirs = foreign.adopt(handle(&ours), StreamKind::NonBlocking);
        is_handed_on(&device, &foreign, &ours, &theirs);
    }
    let legacy = Stream::legacy(&device).unwrap();
    let theirs = Stream::legacy(&foreign.0).unwrap();
    is_handed_on(&device, &foreign, &legacy, &theirs);
}

fn memory_recorded_on_an_adopted_stream_waits_for_work_of_its_owner(target: Target) {
    let Some(foreign) = Foreign::open(target) else {
        return;
    };
    let theirs = stream(&foreign.0, "theirs");
    // The device is opened after the stream, and so closed before it: an adopted stream must outlive the device.
    let device = narrow(target);
    // SAFETY: the stream outlives the device.
    let ours = unsafe {
        Stream::from_raw(&device, handle(&theirs), StreamKind::NonBlocking, "adopted").unwrap()
    };
    is_handed_on(&device, &foreign, &ours, &theirs);
}

fn memory_recorded_on_a_per_thread_stream_waits_for_that_threads_work(target: Target) {
    let Some(foreign) = Foreign::open(target) else {
        return;
    };
    let device = narrow(target);
    let next = device.stream("next").unwrap();
    let mut x = next.alloc::<u32>(LEN).unwrap();
    fill(&next, x.view_mut(), 1);
    next.synchronize().unwrap();
    std::thread::scope(|scope| {
        let (done, is_done) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let (device, foreign) = (&device, &foreign);
        scope.spawn(move || {
            let ours = Stream::per_thread(device).unwrap();
            let theirs = foreign.adopt(handle(&ours), StreamKind::PerThread);
            // SAFETY: the buffer is recorded after the work.
            let at = unsafe { ours.lend_mut(x.view_mut()) }.unwrap().address();
            foreign.fills(&theirs, at, 99);
            explicit::record_stream(&x, &ours).unwrap();
            done.send(x).unwrap();
            // The driver's stream ends with its thread.
            ends.recv().unwrap();
        });
        drop(is_done.recv().unwrap());
        let mut y = next.alloc::<u32>(LEN).unwrap();
        fill(&next, y.view_mut(), 2);
        explicit::synchronize(device).unwrap();
        explicit::synchronize(&foreign.0).unwrap();
        end.send(()).unwrap();
        expect_pattern(&values(&next, y.view()), 2);
    });
}

fn a_per_thread_stream_is_recorded_by_its_own_thread(target: Target) {
    let device = target.open();
    let s = device.stream("s").unwrap();
    let x = s.alloc::<u32>(16).unwrap();
    let mine = Stream::per_thread(&device).unwrap();
    explicit::record_stream(&x, &mine).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| explicit::record_stream(&x, &mine));
        let refused = other.join().unwrap();
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    });
    // Only the stream's own thread may wait for it, and not a thread that took the place of the ended one.
    let theirs = std::thread::scope(|scope| {
        let other = scope.spawn(|| Stream::per_thread(&device).unwrap());
        other.join().unwrap()
    });
    std::thread::scope(|scope| {
        let other = scope.spawn(|| theirs.synchronize());
        let refused = other.join().unwrap();
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    });
}

/// Returns an idle stream of the safe API in which the other library works, with the memory that it writes.
fn shared(
    target: Target,
    then: impl Fn(&sidestream::stream::Stream, &sidestream::stream::Stream) -> Result<bool>,
) {
    let Some(foreign) = Foreign::open(target) else {
        return;
    };
    let device = target.open();
    let [s, t] = ["s", "t"].map(|name| device.stream(name).unwrap());
    let ours = Stream::of(&s);
    let theirs = foreign.adopt(handle(&ours), StreamKind::NonBlocking);
    for seed in 2..5 {
        let mut x = s.alloc::<u32>(LEN).unwrap();
        fill(&s, x.view_mut(), 1);
        // SAFETY: later work is made to wait, which is what this tests.
        let at = unsafe { ours.lend_mut(x.view_mut()) }.unwrap().address();
        // All known work of the stream is complete, and its end has an event.
        let event = s.record_event().unwrap();
        s.synchronize().unwrap();
        foreign.fills(&theirs, at, seed);
        let is_complete = then(&s, &t).unwrap();
        if is_complete {
            assert!(theirs.query().unwrap(), "it is not complete");
        }
        expect_pattern(&values(&t, x.view()), seed);
        assert!(event.query().unwrap());
    }
}

fn to_synchronize_a_shared_stream_waits_for_work_of_others(target: Target) {
    shared(target, |s, _| s.synchronize().map(|()| true));
    shared(target, |s, _| s.device().synchronize().map(|()| true));
    shared(target, |s, _| {
        s.record_event()?.synchronize().map(|()| true)
    });
}

fn to_query_a_shared_stream_is_to_query_work_of_others(target: Target) {
    shared(target, |s, _| {
        while !s.query()? {}
        Ok(true)
    });
    shared(target, |s, _| {
        let event = s.record_event()?;
        while !event.query()? {}
        Ok(true)
    });
}

fn to_wait_for_a_shared_stream_is_to_wait_for_work_of_others(target: Target) {
    shared(target, |s, t| t.wait_stream(s).map(|()| false));
    shared(target, |s, t| {
        t.wait_event(&s.record_event()?).map(|()| false)
    });
}

fn a_stream_that_was_shared_is_not_reused_as_idle(target: Target) {
    let Some(foreign) = Foreign::open(target) else {
        return;
    };
    let device = target.open();
    let x = device.stream("other").unwrap().alloc::<u32>(LEN).unwrap();
    let s = device.stream("s").unwrap();
    let ours = Stream::of(&s);
    let theirs = foreign.adopt(handle(&ours), StreamKind::NonBlocking);
    // SAFETY: the device is waited for below.
    let at = unsafe { ours.lend(x.view()) }.unwrap().address();
    s.synchronize().unwrap();
    foreign.fills(&theirs, at, 2);
    drop((s, ours));
    let again = device.stream("s").unwrap();
    let is_complete = theirs.query().unwrap();
    let is_the_same = handle(&Stream::of(&again)) == handle(&theirs);
    assert!(is_complete || !is_the_same, "it has work to do");
    explicit::synchronize(&foreign.0).unwrap();
}

// ------------------------------------------------------------------ captures

fn memory_recorded_before_a_capture_is_handed_on_during_it(target: Target) {
    let device = narrow(target);
    let [home, next] = ["home", "next"].map(|name| device.stream(name).unwrap());
    let noted = stream(&device, "noted");
    let out = explicit::HostMemory::pinned(&device, 4 * LEN as u64).unwrap();
    for seed in 2..5 {
        let mut x = home.alloc::<u32>(LEN).unwrap();
        fill(&home, x.view_mut(), seed);
        // SAFETY: the buffer is recorded on the stream before it is dropped; the host memory is not freed until the
        // device was waited for.
        unsafe {
            let region = noted.lend(x.view()).unwrap();
            spin(HOLD_NS).hold_explicit(&noted);
            noted.memcpy(region, out.all()).unwrap();
        }
        explicit::record_stream(&x, &noted).unwrap();
        // The buffer is dropped before the capture begins, or during it.
        let mut kept = (seed % 2 == 0).then_some(x);
        noted.begin_capture().unwrap();
        drop(kept.take());
        let mut y = next.alloc::<u32>(LEN).unwrap();
        fill(&next, y.view_mut(), 99);
        expect_pattern(&values(&next, y.view()), 99);
        drop(y);
        noted.end_capture().unwrap();
        noted.synchronize().unwrap();
        let mut found = vec![0u32; LEN];
        out.read(0, &mut found);
        expect_pattern(&found, seed);
    }
}

fn memory_recorded_in_a_capture_is_handed_on_after_it(target: Target) {
    let device = narrow(target);
    let next = device.stream("next").unwrap();
    let noted = stream(&device, "noted");
    let x = next.alloc::<u32>(LEN).unwrap();
    noted.begin_capture().unwrap();
    explicit::record_stream(&x, &noted).unwrap();
    drop(x);
    let refused = next
        .alloc::<u32>(LEN)
        .and_then(|mut y| next.memset(y.view_mut(), 1));
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    noted.end_capture().unwrap();
    let mut y = next.alloc::<u32>(LEN).unwrap();
    fill(&next, y.view_mut(), 2);
    expect_pattern(&values(&next, y.view()), 2);
}

fn a_safe_call_on_a_stream_that_others_capture_is_refused(target: Target) {
    let Some(foreign) = Foreign::open(target) else {
        return;
    };
    let device = target.open();
    let [s, t] = ["s", "t"].map(|name| device.stream(name).unwrap());
    let mut x = s.alloc::<u32>(LEN).unwrap();
    fill(&s, x.view_mut(), 1);
    let event = t.record_event().unwrap();
    let theirs = foreign.adopt(handle(&Stream::of(&s)), StreamKind::NonBlocking);
    let kept = s.alloc::<u32>(16).unwrap();
    explicit::record_stream(&kept, &Stream::of(&s)).unwrap();
    drop(kept);
    theirs.begin_capture().unwrap();
    spin(HOLD_NS).hold_explicit(&theirs);
    let refused: [Result<()>; 7] = [
        s.memset(x.view_mut(), 1),
        s.synchronize(),
        s.query().map(|_| ()),
        s.record_event().map(|_| ()),
        s.record_timed().map(|_| ()),
        t.wait_stream(&s),
        s.wait_event(&event),
    ];
    for refused in &refused {
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
    // SAFETY: no work is submitted.
    let refused = unsafe { Stream::of(&s).lend(x.view()) };
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    theirs.end_capture().unwrap();
    fill(&s, x.view_mut(), 2);
    expect_pattern(&values(&t, x.view()), 2);
}

fn safe_calls_beside_a_capture_leave_it_alone(target: Target) {
    let device = target.open();
    let [s, t] = ["s", "t"].map(|name| device.stream(name).unwrap());
    let captured = stream(&device, "captured");
    let x = explicit::DeviceMemory::malloc(&device, 4).unwrap();
    captured.begin_capture().unwrap();
    // SAFETY: the memory is not freed until the device was waited for.
    unsafe { captured.memset(x.all(), 7) }.unwrap();
    let mut y = s.alloc::<u32>(LEN).unwrap();
    fill(&s, y.view_mut(), 2);
    assert!(
        s.record_event()
            .unwrap()
            .synchronize_for(std::time::Duration::MAX)
            .unwrap()
    );
    s.synchronize().unwrap();
    device.synchronize().unwrap();
    s.query().unwrap();
    t.wait_stream(&s).unwrap();
    expect_pattern(&values(&t, y.view()), 2);
    let mut small: Vec<_> = (1..20).map(|n| s.alloc::<u32>(n * 1000).unwrap()).collect();
    small.retain(|buffer| buffer.len() % 2000 == 0);
    let _ = device.statistics();
    small.extend((1..20).map(|n| t.alloc::<u32>(n * 1000).unwrap()));
    let graph = captured.end_capture().unwrap();
    // SAFETY: as above.
    unsafe { captured.launch_graph(&graph) }.unwrap();
    let event = Event::new(&device).unwrap();
    captured.record(&event).unwrap();
    event.synchronize().unwrap();
}

fn memory_is_not_given_back_to_the_driver_beside_a_capture(target: Target) {
    let device = target.open();
    let s = device.stream("s").unwrap();
    drop(s.alloc::<u32>(LEN).unwrap());
    let captured = stream(&device, "captured");
    captured.begin_capture().unwrap();
    let refused = device.empty_cache();
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    captured.end_capture().unwrap();
    device.empty_cache().unwrap();
}
