//! Code of the program that the runtime calls: wakers, kernels in Rust and their cost functions, destructors.
//! Whatever that code does, everything else continues.

use std::any::Any;
use std::pin::Pin;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sidestream::buffer::{Pending, Pinned};
use sidestream::device::{Device, Options};
use sidestream::error::Error;
use sidestream::explicit::{self, DeviceMemory, HostMemory};
use sidestream::kernel::{Grid, Kernel, KernelCost, Write};
use sidestream::prefetch::{Leaf, Ring};
use sidestream::sim::Schedule;
use sidestream::stream::Stream;

const ONE: Grid = Grid {
    blocks: [1, 1, 1],
    threads: [32, 1, 1],
    shared_bytes: 0,
};

/// Returns the result of a program. A program that hangs fails after a minute.
fn ends<R: Send + 'static>(program: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, result) = sync_channel(1);
    let thread = std::thread::spawn(move || sender.send(program()));
    match result.recv_timeout(Duration::from_secs(60)) {
        Ok(result) => result,
        Err(_) if thread.is_finished() => panic!("the program panicked"),
        Err(_) => panic!("the program hangs"),
    }
}

fn open(schedule: Schedule) -> Device {
    Device::open_with("sim:h200", &Options::new().schedule(schedule)).unwrap()
}

// ------------------------------------------------------------------ wakers

#[derive(Default)]
struct Woken {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Woken {
    /// Waits until it was woken. A task that is never woken fails after a minute.
    fn wait(&self) {
        let woken = self.is_woken.lock().unwrap();
        let minute = Duration::from_secs(60);
        let waited = self.changed.wait_timeout_while(woken, minute, |is| !*is);
        assert!(!waited.unwrap().1.timed_out(), "a task was never woken");
    }
}

struct Panics(Arc<Woken>);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        Arc::clone(&self.0).wake();
        // Not `panic!`, whose hook would print it.
        std::panic::resume_unwind(Box::new("a waker"));
    }
}

/// Returns work that is not complete, since no thread has waited yet, and that is to wake the waker.
fn polled(stream: &Stream, waker: Waker) -> Pending<Pinned<u32>> {
    let zeros = stream.alloc_zeroed(16).unwrap();
    let to = stream.device().pinned(16).unwrap();
    let mut pending = stream.download(zeros.view(), to).unwrap();
    let polled = Pin::new(&mut pending).poll(&mut Context::from_waker(&waker));
    assert!(matches!(polled, Poll::Pending));
    pending
}

#[test]
fn a_waker_that_panics_leaves_the_others_to_be_woken() {
    let device = open(Schedule::Adversarial);
    let stream = device.stream("s").unwrap();
    for _ in 0..3 {
        let [panicked, woken] = [(); 2].map(|()| Arc::new(Woken::default()));
        let panics = Arc::new(Panics(Arc::clone(&panicked)));
        let first = polled(&stream, Waker::from(panics));
        panicked.wait();
        let second = polled(&stream, Waker::from(Arc::clone(&woken)));
        woken.wait();
        first.synchronize().unwrap();
        second.synchronize().unwrap();
    }
}

// ------------------------------------------------------------------ kernels

/// Returns one of everything whose drop may call a device that may be busy.
fn everything(device: &Device) -> Vec<Box<dyn Any + Send>> {
    let stream = device.stream("given").unwrap();
    let mut buffer = stream.alloc::<u32>(16).unwrap();
    stream.fill_with(buffer.view_mut(), 1).unwrap();
    let pending = stream
        .download(buffer.view(), device.pinned(16).unwrap())
        .unwrap();
    let mut nodes = device.graph();
    let owned = nodes.own(stream.alloc::<u32>(16).unwrap()).unwrap();
    nodes.memset(owned.view_mut(), 1).unwrap();
    let explicit = explicit::Stream::non_blocking(device, "explicit", 0).unwrap();
    let event = explicit::Event::new(device).unwrap();
    explicit.begin_capture().unwrap();
    let captured = explicit.end_capture().unwrap();
    let ring = Ring::new(device, 2).unwrap();
    // SAFETY: the bytes exist during the calls.
    let [ticket, other] = [(); 2].map(|()| unsafe { ring.put(&[Leaf::of(&[1; 64])]) });
    let lease = ticket.unwrap().unwrap().hand_over(&explicit).unwrap();
    vec![
        Box::new(device.register(vec![1u32; 4]).unwrap()),
        Box::new(stream.record_event().unwrap()),
        Box::new(stream.host_func((), |_| ()).unwrap()),
        Box::new((pending, buffer, stream)),
        Box::new(nodes.build().unwrap()),
        Box::new((lease, other.unwrap(), ring)),
        Box::new((captured, event, explicit)),
        Box::new(DeviceMemory::malloc(device, 64).unwrap()),
        Box::new(HostMemory::pinned(device, 64).unwrap()),
        Box::new(device.clone()),
    ]
}

#[test]
fn a_kernel_may_drop_whatever_it_was_given() {
    for listens in [false, true] {
        for number in 0..10 {
            println!("gift {number}, with a checker: {listens}");
            ends(move || {
                let device = open(Schedule::InOrder);
                let findings = listens.then(|| device.checked(sidestream::check::OnRace::Report));
                let gift = everything(&device).swap_remove(number);
                let gift = Mutex::new(Some(gift));
                let drops = Kernel::<(Write<u32>,)>::on_host("drops", move |_, (x,)| {
                    x[0] = 7;
                    drop(gift.lock().unwrap().take());
                });
                let stream = device.stream("s").unwrap();
                let mut x = stream.alloc(16).unwrap();
                stream.launch(&drops, ONE, (x.view_mut(),)).unwrap();
                // `y` is dropped while its memory is in use: the statistics query the device, which runs the kernel.
                let mut y = stream.alloc::<u32>(16).unwrap();
                stream.memcpy_d2d(x.view(), y.view_mut()).unwrap();
                drop(y);
                for _ in 0..64 {
                    _ = device.statistics();
                }
                let mut host = [0; 16];
                stream.memcpy_d2h(x.view(), &mut host).unwrap();
                assert_eq!(host[0], 7, "gift {number}");
                drop(findings);
            });
        }
    }
}

#[test]
fn a_kernel_that_calls_the_runtime_loses_its_device_and_no_thread_hangs() {
    type Asks = fn(&Device);
    let all: [Asks; 5] = [
        |device| _ = device.statistics(),
        |device| _ = device.pinned_statistics(),
        |device| _ = device.span("inside"),
        |device| _ = device.checked(sidestream::check::OnRace::Report),
        |device| _ = device.record(Vec::new()),
    ];
    for asks in all {
        let lost = ends(move || {
            let device = open(Schedule::InOrder);
            let (inner, stream) = (device.clone(), device.stream("s").unwrap());
            let kernel = Kernel::<(Write<u32>,)>::on_host("asks", move |_, _| asks(&inner));
            let mut x = stream.alloc::<u32>(16).unwrap();
            let mut y = stream.alloc::<u32>(16).unwrap();
            stream.launch(&kernel, ONE, (x.view_mut(),)).unwrap();
            stream.memcpy_d2d(x.view(), y.view_mut()).unwrap();
            drop(y);
            for _ in 0..64 {
                _ = device.statistics();
            }
            stream.synchronize().unwrap_err()
        });
        assert!(matches!(lost, Error::DeviceLost(_)), "{lost}");
        let lost = lost.to_string();
        assert!(lost.contains("may not call the runtime"), "{lost}");
    }
}

#[test]
fn a_cost_function_may_not_use_the_stream_of_the_launch() {
    let refused = ends(|| {
        let device = open(Schedule::InOrder);
        let stream = device.stream("s").unwrap();
        let (said, heard) = sync_channel(1);
        let inner = stream.clone();
        let kernel = Kernel::<(Write<u32>,)>::on_host("asks", |_, _| ()).with_cost(move |_| {
            said.send(inner.synchronize()).unwrap();
            KernelCost::Duration { ns: 1, share: 1.0 }
        });
        let mut x = stream.alloc::<u32>(16).unwrap();
        stream.launch(&kernel, ONE, (x.view_mut(),)).unwrap();
        stream.synchronize().unwrap();
        heard.recv().unwrap().unwrap_err()
    });
    let refused = refused.to_string();
    assert!(refused.contains("may not call the runtime"), "{refused}");
}

// ------------------------------------------------------------------ costs that cannot be

#[test]
fn a_kernel_that_could_never_run_is_refused_when_it_is_launched() {
    let device = open(Schedule::InOrder);
    let stream = device.stream("s").unwrap();
    let mut x = stream.alloc::<u32>(16).unwrap();
    for share in [1e-300, 1e-12, f64::NAN, f64::INFINITY, -1.0, 0.0] {
        let cost = KernelCost::Duration { ns: 1, share };
        let kernel = Kernel::<(Write<u32>,)>::on_host("sliver", |_, _| ()).with_cost(move |_| cost);
        let refused = stream.launch(&kernel, ONE, (x.view_mut(),)).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("kernel `sliver`"), "{refused}");
        assert!(refused.contains("1e-9"), "{refused}");
    }
    let least = KernelCost::Duration { ns: 1, share: 1e-9 };
    let kernel = Kernel::<(Write<u32>,)>::on_host("least", |_, _| ()).with_cost(move |_| least);
    stream.launch(&kernel, ONE, (x.view_mut(),)).unwrap();
    stream.synchronize().unwrap();
}

static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn virtual_time_causes_no_notice() {
    let notice = |text: &str| NOTICES.lock().unwrap().push(text.to_owned());
    let options = Options::new().notice(notice);
    let device = Device::open_with("sim:h200", &options).unwrap();
    let stream = device.stream("s").unwrap();
    let cost = KernelCost::Duration {
        ns: 1_000_000_000_000,
        share: 1.0,
    };
    let kernel = Kernel::<(Write<u32>,)>::on_host("long", |_, _| ()).with_cost(move |_| cost);
    let mut x = stream.alloc::<u32>(16).unwrap();
    stream.launch(&kernel, ONE, (x.view_mut(),)).unwrap();
    stream.synchronize().unwrap();
    stream.launch(&kernel, ONE, (x.view_mut(),)).unwrap();
    explicit::Stream::of(&stream).synchronize().unwrap();
    assert_eq!(*NOTICES.lock().unwrap(), Vec::<String>::new());
}
