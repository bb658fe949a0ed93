//! What safe code may do to the runtime without doing harm: forget, panic, drop anything in any order and on any
//! thread. Small enough for Miri (docs/developers/reliability.md says how to run it).

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sidestream::buffer::{DeviceBuf, Pending, Pinned};
use sidestream::device::{Device, Options};
use sidestream::engine::Profile;
use sidestream::error::Error;
use sidestream::kernel::{Grid, Kernel, Write};
use sidestream::log::{Record, Sink};
use sidestream::sim::{Machine, Schedule};
use sidestream::stream::Stream;

fn open() -> Device {
    open_all(1).remove(0)
}

/// Opens devices on which everything is as late as possible: pending work stays pending until a thread waits.
fn open_all(devices: usize) -> Vec<Device> {
    // Parsed once: under Miri that is half of a test's time.
    static PROFILE: OnceLock<Profile> = OnceLock::new();
    let profile = PROFILE.get_or_init(Profile::h200);
    let named = |at| (format!("sim:h200:{at}"), profile.clone());
    let devices = (0..devices).map(named).collect();
    let machine = Machine::new(devices, Schedule::Adversarial, None);
    Device::on(Arc::new(machine), &Options::new())
}

fn filled(stream: &Stream, value: u32) -> DeviceBuf<u32> {
    let mut buffer = stream.alloc(16).unwrap();
    stream.fill_with(buffer.view_mut(), value).unwrap();
    buffer
}

fn in_flight(stream: &Stream, value: u32) -> Pending<Pinned<u32>> {
    let buffer = filled(stream, value);
    let to = stream.device().pinned(16).unwrap();
    stream.download(buffer.view(), to).unwrap()
}

fn trap() -> Kernel<(Write<u32>,)> {
    // Not `panic!`, whose hook would print it.
    Kernel::<(Write<u32>,)>::on_host("trap", |_, _| {
        std::panic::resume_unwind(Box::new("trapped"))
    })
}

// ------------------------------------------------------------------ forgetting

#[test]
fn a_pending_that_is_forgotten_keeps_its_memory_to_itself() {
    let device = open();
    let stream = device.stream("s").unwrap();
    std::mem::forget(in_flight(&stream, 7));
    // If the forgotten memory were handed out as `page`, the pending copy would overwrite it.
    let mut page = device.pinned::<u32>(16).unwrap();
    page.fill(1);
    device.synchronize().unwrap();
    assert_eq!(page[..], [1; 16]);
}

#[test]
fn forgetting_anything_leaves_the_rest_usable() {
    let device = open();
    let stream = device.stream("s").unwrap();
    std::mem::forget(filled(&stream, 1));
    std::mem::forget(stream.record_event().unwrap());
    std::mem::forget(device.pinned::<u32>(4).unwrap());
    std::mem::forget(device.span("never left"));
    std::mem::forget(stream.host_func(1, |n| *n += 1).unwrap());
    std::mem::forget(stream.clone());
    std::mem::forget(device.clone());
    assert_eq!(in_flight(&stream, 3).synchronize().unwrap()[..], [3; 16]);
}

#[test]
fn registered_memory_that_is_forgotten_in_flight_stays_where_it_is() {
    let device = open();
    let stream = device.stream("s").unwrap();
    let buffer = filled(&stream, 7);
    let page = device.register(vec![1u32; 16]).unwrap();
    std::mem::forget(stream.download(buffer.view(), page).unwrap());
    // If the forgotten memory were freed, `other` could get the same memory, and the pending copy would overwrite it.
    let other = vec![2u32; 16];
    device.empty_cache().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(other, [2; 16]);
}

// ------------------------------------------------------------------ dropping

#[test]
fn registered_memory_that_is_dropped_in_flight_is_freed_when_the_copy_is_complete() {
    let device = open();
    let stream = device.stream("s").unwrap();
    for round in 0..4 {
        let buffer = filled(&stream, round);
        let page = device.register(vec![9u32; 16]).unwrap();
        drop(stream.download(buffer.view(), page).unwrap());
        let page = device.register(vec![8u32; 16]).unwrap();
        let page = stream.download(buffer.view(), page).unwrap();
        let values = page.synchronize().unwrap().into_vec().unwrap();
        assert_eq!(values, [round; 16]);
    }
    let last = device.register(vec![9u32; 16]).unwrap();
    drop(device);
    drop((last, stream));
}

#[test]
fn memory_of_a_pending_that_is_dropped_is_reused_when_the_copy_is_complete() {
    let device = open();
    let stream = device.stream("s").unwrap();
    drop(in_flight(&stream, 7));
    let mut page = device.pinned::<u32>(16).unwrap();
    page.fill(1);
    device.synchronize().unwrap();
    assert_eq!(page[..], [1; 16]);
}

#[test]
fn the_device_may_be_dropped_first() {
    let device = open();
    let stream = device.stream("s").unwrap();
    drop(device);
    let pending = in_flight(&stream, 5);
    drop(stream);
    let page = pending.synchronize().unwrap();
    assert_eq!(page[..], [5; 16]);
}

#[test]
fn anything_may_be_dropped_on_another_thread() {
    let device = open();
    let stream = device.stream("s").unwrap();
    let buffer = filled(&stream, 1);
    let (event, pending) = (stream.record_event().unwrap(), in_flight(&stream, 2));
    let thread = std::thread::spawn(move || drop((device, event, pending, buffer, stream)));
    thread.join().unwrap();
}

#[test]
fn the_last_handle_may_be_dropped_inside_a_host_function() {
    let device = open();
    let stream = device.stream("s").unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    let owned = (
        filled(&stream, 1),
        in_flight(&stream, 2),
        stream.clone(),
        device.clone(),
    );
    let does = Arc::clone(&ran);
    let pending = stream.host_func((), move |()| {
        drop(owned);
        does.store(true, Ordering::Release);
    });
    drop((device, stream));
    pending.unwrap().synchronize().unwrap();
    assert!(ran.load(Ordering::Acquire));
}

#[test]
fn a_thread_that_ends_drops_its_locals_after_the_table_of_its_clocks() {
    thread_local! {
        static LAST: std::cell::RefCell<Option<(DeviceBuf<u32>, Stream)>> =
            const { std::cell::RefCell::new(None) };
    }
    let device = open();
    let thread = std::thread::spawn(move || {
        // Created before the runtime's own table; the system decides whether it is dropped after or before it.
        LAST.with(|last| assert!(last.borrow().is_none()));
        let stream = device.stream("s").unwrap();
        let buffer = filled(&stream, 1);
        LAST.with(|last| last.replace(Some((buffer, stream))));
    });
    thread.join().unwrap();
}

#[test]
fn values_of_a_refused_function_are_dropped_without_a_lock() {
    let device = open();
    device.listen(Box::new(Deaf));
    let stream = device.stream("s").unwrap();
    let mut buffer = filled(&stream, 1);
    stream
        .launch(&trap(), Grid::new(1, 1), (buffer.view_mut(),))
        .unwrap();
    // The function is queued after the trap and never runs: the machine drops it during another query. The dropped
    // buffer records its end in the log, and needs the log's lock for that.
    let never = stream.host_func(filled(&stream, 2), |_| ()).unwrap();
    drop(never);
    assert!(matches!(stream.synchronize(), Err(Error::DeviceLost(_))));
    assert!(matches!(stream.alloc::<u32>(16), Err(Error::DeviceLost(_))));
}

#[test]
fn values_captured_by_a_kernel_are_dropped_without_a_lock() {
    let device = open();
    device.listen(Box::new(Deaf));
    let stream = device.stream("s").unwrap();
    let captured = filled(&stream, 1);
    let kernel = Kernel::<(Write<u32>,)>::on_host("k", move |_, (y,)| {
        let _ = &captured;
        y.fill(4);
    });
    let mut buffer = filled(&stream, 2);
    stream
        .launch(&kernel, Grid::new(1, 1), (buffer.view_mut(),))
        .unwrap();
    // The machine has the last reference now, and drops it when the kernel has run: inside one of these queries.
    drop(kernel);
    drop(buffer);
    for _ in 0..40 {
        drop(stream.alloc::<u32>(16).unwrap());
    }
    stream.synchronize().unwrap();
}

/// A sink that does nothing, but for which the runtime records everything.
struct Deaf;

impl Sink for Deaf {
    fn take(&mut self, _: &Record<'_>) {}
}

// ------------------------------------------------------------------ panics

#[test]
fn a_panic_in_a_host_function_is_an_error_for_the_waiting_caller() {
    let device = open();
    let stream = device.stream("s").unwrap();
    let fails = stream.host_func(1, |_| std::panic::resume_unwind(Box::new("no")));
    let after = stream.host_func(2, |n| *n += 1).unwrap();
    let message = "no".to_owned();
    let error = fails.unwrap().synchronize().unwrap_err();
    assert_eq!(error, Error::Panicked { message });
    assert_eq!(after.synchronize().unwrap(), 3);
}

#[test]
fn a_kernel_that_panics_loses_the_device_forever_and_is_named() {
    let device = open();
    let stream = device.stream("s").unwrap();
    let mut buffer = filled(&stream, 1);
    stream
        .launch(&trap(), Grid::new(1, 1), (buffer.view_mut(),))
        .unwrap();
    let pending = stream.download(buffer.view(), device.pinned(16).unwrap());
    // Whether the copy still writes is unknown, so the memory is not given back.
    let error = pending.unwrap().synchronize().unwrap_err();
    let Error::DeviceLost(lost) = &error else {
        panic!("{error}")
    };
    assert_eq!(lost.device, device.id());
    assert!(lost.why.contains("`trap` trapped"), "{lost}");
    assert_eq!(device.synchronize().unwrap_err(), error);
    assert_eq!(stream.alloc::<u32>(1).unwrap_err(), error);
    assert_eq!(device.pinned::<u32>(1).unwrap_err(), error);
    assert_eq!(stream.memset(buffer.view_mut(), 0).unwrap_err(), error);
}

#[test]
fn work_on_another_device_that_waits_for_a_lost_one_is_lost_too() {
    let devices = open_all(2);
    let [a, b] = [0, 1].map(|at: usize| devices[at].stream("s").unwrap());
    let mut buffer = filled(&a, 1);
    a.launch(&trap(), Grid::new(1, 1), (buffer.view_mut(),))
        .unwrap();
    b.wait_stream(&a).unwrap();
    // "Complete" would mean that the kernel has written its result.
    assert!(matches!(b.synchronize(), Err(Error::DeviceLost(_))));
}

// ------------------------------------------------------------------ futures

#[derive(Default)]
struct Woken {
    times: Mutex<usize>,
    changed: Condvar,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        *self.times.lock().unwrap() += 1;
        self.changed.notify_all();
    }
}

impl Woken {
    /// Waits until it was woken since the last time. A future that is never woken fails after a minute.
    fn wait(&self) {
        let times = self.times.lock().unwrap();
        let minute = Duration::from_secs(60);
        let waited = self.changed.wait_timeout_while(times, minute, |n| *n == 0);
        let (mut times, result) = waited.unwrap();
        assert!(!result.timed_out(), "a future was never woken");
        *times = 0;
    }
}

fn poll_once<T: Unpin>(pending: &mut Pending<T>, woken: &Arc<Woken>) -> Option<Result<T, Error>> {
    let waker = Waker::from(Arc::clone(woken));
    match Pin::new(pending).poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

#[test]
fn a_pending_wakes_the_executor_that_polled_it_last() {
    let device = open();
    let stream = device.stream("s").unwrap();
    let mut pending = in_flight(&stream, 9);
    let [first, second] = [(); 2].map(|()| Arc::new(Woken::default()));
    let done = poll_once(&mut pending, &first);
    let thread = std::thread::spawn(move || {
        let mut done = done;
        for _ in 0..1_000 {
            match done.or_else(|| poll_once(&mut pending, &second)) {
                Some(done) => return done.unwrap()[..].to_vec(),
                None => done = None,
            }
            second.wait();
        }
        panic!("woken a thousand times, and not ready");
    });
    assert_eq!(thread.join().unwrap(), [9; 16]);
}

#[test]
fn a_pending_that_was_polled_may_be_dropped() {
    let device = open();
    let stream = device.stream("s").unwrap();
    let mut pending = in_flight(&stream, 9);
    let woken = Arc::new(Woken::default());
    let _ = poll_once(&mut pending, &woken);
    drop(pending);
    assert_eq!(in_flight(&stream, 3).synchronize().unwrap()[..], [3; 16]);
}

// ------------------------------------------------------------------ what was found

#[test]
fn dropped_streams_are_reused() {
    let device = open();
    let other = device.stream("other").unwrap();
    let event = other.record_event().unwrap();
    let first = format!("{:?}", device.stream("s").unwrap());
    for _ in 0..4 {
        let stream = device.stream("s").unwrap();
        assert_eq!(format!("{stream:?}"), first, "it was not used at all");
        stream.wait_event(&event).unwrap();
        stream.synchronize().unwrap();
    }
}
