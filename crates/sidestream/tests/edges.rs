//! Calls that end early: code of the program that runs in the middle of a call panics. Submitted work is tracked
//! nevertheless, so that no other owner gets its memory too early.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use sidestream::buffer::{Pinned, Refused};
use sidestream::check::OnRace;
use sidestream::device::{Device, Options};
use sidestream::engine::Profile;
use sidestream::error::Error;
use sidestream::explicit;
use sidestream::kernel::{Grid, Kernel, Read, Write as Writes};
use sidestream::log::{Record, Sink, SinkId};
use sidestream::op::Kind;
use sidestream::sim::{Machine, Schedule};

use crate::random_programs::faults::Faults;

fn open() -> Device {
    let options = Options::new().schedule(Schedule::Adversarial);
    Device::open_with("sim:h200", &options).unwrap()
}

/// Panics without printing.
fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("the test said so"))
}

/// A sink that panics at a given kind of call, once it is armed.
struct Fragile {
    at: &'static str,
    is_told: fn(&Kind) -> bool,
    is_armed: Arc<AtomicBool>,
}

impl Fragile {
    /// Attaches such a sink, and arms it afterwards: a late sink is first told what exists already.
    fn attach(device: &Device, at: &'static str, is_told: fn(&Kind) -> bool) -> SinkId {
        let is_armed = Arc::<AtomicBool>::default();
        let armed = Arc::clone(&is_armed);
        let sink = Fragile {
            at,
            is_told,
            is_armed,
        };
        let id = device.listen(Box::new(sink));
        armed.store(true, Ordering::Relaxed);
        id
    }

    fn is(&self, at: &str) {
        if self.at == at && self.is_armed.load(Ordering::Relaxed) {
            panic_quietly();
        }
    }
}

impl Sink for Fragile {
    fn take(&mut self, record: &Record<'_>) {
        match record {
            Record::Stream { .. } => self.is("stream"),
            Record::Event { .. } => self.is("event"),
            Record::Buffer { .. } => self.is("buffer"),
            Record::Thread { .. } => self.is("thread"),
            Record::Site { .. } => self.is("site"),
            Record::Span { .. } => self.is("span"),
            Record::Op(op) if (self.is_told)(&op.kind) => self.is("op"),
            Record::Op(_) | Record::Pool { .. } | Record::Done(_) => {}
        }
    }
    fn alarm(&mut self) -> Option<String> {
        self.is("alarm");
        None
    }
}

/// Returns the panic message of a call.
fn panics(act: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(act)).err()?;
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
}

#[test]
fn a_sink_that_panics_at_a_download_does_not_make_its_memory_idle() {
    let device = open();
    let s = device.stream("s").unwrap();
    let mut x = s.alloc::<u32>(1024).unwrap();
    s.fill_with(x.view_mut(), 7).unwrap();
    Fragile::attach(&device, "op", |kind| matches!(kind, Kind::Copy { .. }));
    let page = device.pinned::<u32>(1024).unwrap();
    let said = panics(|| drop(s.download(x.view(), page).unwrap()));
    assert!(said.unwrap().contains("the test said so"));
    let mut next = device.pinned::<u32>(1024).unwrap();
    next.fill(1);
    s.synchronize().unwrap();
    assert!(next.iter().all(|&value| value == 1), "a device wrote it");
}

#[test]
fn a_sink_that_panics_at_a_write_does_not_hide_it_from_the_next_reader() {
    let device = open();
    let [s, t] = ["s", "t"].map(|name| device.stream(name).unwrap());
    let (mut x, mut y) = (s.alloc::<u32>(64).unwrap(), t.alloc::<u32>(64).unwrap());
    s.fill_with(x.view_mut(), 1).unwrap();
    s.synchronize().unwrap();
    Fragile::attach(&device, "op", |_| true);
    assert!(panics(|| s.fill_with(x.view_mut(), 2).unwrap()).is_some());
    t.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    let mut host = [0; 64];
    t.memcpy_d2h(y.view(), &mut host).unwrap();
    assert_eq!(host, [2; 64]);
}

#[test]
fn wherever_a_sink_panics_the_call_does_all_that_it_does_and_other_sinks_are_told() {
    for at in [
        "stream", "event", "buffer", "thread", "site", "span", "op", "alarm",
    ] {
        let device = open();
        let s = device.stream("s").unwrap();
        let mut x = s.alloc::<u32>(64).unwrap();
        let fragile = Fragile::attach(&device, at, |_| true);
        let findings = device.checked(OnRace::Panic);
        let mut said = Vec::new();
        said.extend(panics(|| drop(device.stream("t").unwrap())));
        said.extend(panics(|| s.fill_with(x.view_mut(), 3).unwrap()));
        said.extend(panics(|| drop(device.span("span"))));
        std::thread::scope(|scope| {
            let (s, x) = (&s, &x);
            let other = scope.spawn(move || {
                let copy = || {
                    drop(
                        s.download(x.view(), s.device().pinned(64).unwrap())
                            .unwrap(),
                    )
                };
                panics(copy)
            });
            said.extend(other.join().unwrap());
        });
        said.extend(panics(|| s.synchronize().unwrap()));
        let mut host = [0; 64];
        s.memcpy_d2h(x.view(), &mut host).unwrap();
        assert_eq!(host, [3; 64], "{at}");
        assert_eq!(said.len(), 1, "{at}: {said:?}");
        assert!(said[0].contains("the test said so"), "{said:?}");
        assert!(findings.report().races.is_empty(), "{at}");
        assert!(device.stop_listening(fragile).is_some(), "it is given back");
    }
}

/// A file that panics at the second write, and at every later one.
struct Bomb(u32);

impl Write for Bomb {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += 1;
        match self.0 {
            1 => Ok(bytes.len()),
            _ => panic_quietly(),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_that_panics_ends_its_recording_and_nothing_else() {
    let device = open();
    let [s, t] = ["s", "t"].map(|name| device.stream(name).unwrap());
    let (mut x, mut y) = (s.alloc::<u32>(64).unwrap(), t.alloc::<u32>(64).unwrap());
    let recording = device.record(Bomb(0)).unwrap();
    let mut host = [0; 64];
    for value in 0..12_000 {
        s.fill_with(x.view_mut(), value).unwrap();
        t.memcpy_d2d(x.view(), y.view_mut()).unwrap();
        if value % 64 == 0 {
            t.memcpy_d2h(y.view(), &mut host).unwrap();
            assert_eq!(host, [value; 64]);
        }
    }
    let error = recording.finish().err().expect("it is not whole");
    assert!(error.to_string().contains("the test said so"), "{error}");
}

#[test]
fn a_file_that_panics_when_its_recording_ends_is_an_error_of_the_end() {
    let device = open();
    device.stream("s").unwrap().synchronize().unwrap();
    let recording = device.record(Bomb(1)).unwrap();
    let error = recording.finish().err().expect("it is not whole");
    assert!(error.to_string().contains("the test said so"), "{error}");
}

#[test]
fn a_recording_of_a_file_that_panics_may_be_dropped() {
    let device = open();
    let s = device.stream("s").unwrap();
    drop(device.record(Bomb(1)).unwrap());
    let x = s.alloc_zeroed::<u32>(64).unwrap();
    drop((x, s));
    drop(device);
}

#[test]
fn repeated_queries_of_a_shared_stream_see_it_complete() {
    let profile = ("sim:h200".to_owned(), Profile::h200());
    let machine = Machine::new(vec![profile], Schedule::Adversarial, None);
    let device = Device::on(Arc::new(Faults::new(machine, 0, 0)), &Options::new()).remove(0);
    let s = device.stream("s").unwrap();
    let mut x = s.alloc::<u32>(64).unwrap();
    assert!(explicit::Stream::of(&s).as_raw().is_some());
    s.fill_with(x.view_mut(), 1).unwrap();
    let asks = (0..1000).find(|_| s.query().unwrap());
    assert!(asks.is_some(), "it never completes");
}

// ------------------------------------------------------------------ at every place

const LEN: usize = 256;

/// Pinned memory that the program owns: no device may touch it any more. A distinct value shows whether one does.
fn held(mut page: Pinned<u32>, mine: &mut Vec<Pinned<u32>>) {
    page.fill(99);
    mine.push(page);
}

/// Returns what a call takes, or the memory that comes back with its error.
fn kept<T>(
    result: Result<T, Refused<Pinned<u32>>>,
    mine: &mut Vec<Pinned<u32>>,
) -> sidestream::error::Result<T> {
    result.map_err(|refused| {
        let error = refused.error;
        if let Some(page) = refused.value {
            assert!(
                !matches!(error, Error::Submitted { .. }),
                "the device uses it"
            );
            held(page, mine);
        }
        error
    })
}

/// Makes every kind of call, and allocates memory while other memory is in use. `between` is called between any two
/// calls.
fn program(
    device: &Device,
    mine: &mut Vec<Pinned<u32>>,
    between: &mut dyn FnMut(),
) -> sidestream::error::Result<()> {
    let (s, t) = (device.stream("s")?, device.stream("t")?);
    let add = Kernel::<(Read<u32>, Writes<u32>)>::on_host("add", |_, (x, y)| {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x + 1);
    });
    let mut page = || -> sidestream::error::Result<Pinned<u32>> {
        between();
        device.pinned::<u32>(LEN)
    };
    let mut x = s.alloc::<u32>(LEN)?;
    let mut y = t.alloc::<u32>(LEN)?;
    let mut from = page()?;
    from.fill(3);
    let up = kept(s.upload(from, x.view_mut()), mine)?;
    held(page()?, mine);
    t.launch(&add, Grid::new(1, 32), (x.view(), y.view_mut()))?;
    let down = kept(t.download(y.view(), page()?), mine)?;
    drop(up);
    held(page()?, mine);
    s.fill_with(x.view_mut(), 5)?;
    let (mut a, mut b) = (page()?, page()?);
    a.fill(8);
    b.fill(8);
    let mut both = s.alloc::<u32>(2 * LEN)?;
    match s.upload_pieces(vec![a, b], both.view_mut()) {
        Ok(pending) => drop(pending),
        Err(refused) => {
            let error = refused.error;
            refused
                .value
                .into_iter()
                .flatten()
                .for_each(|page| held(page, mine));
            return Err(error);
        }
    }
    held(page()?, mine);
    held(page()?, mine);
    drop(x);
    let mut z = t.alloc::<u32>(LEN)?;
    t.fill_with(z.view_mut(), 6)?;
    let noted = explicit::Stream::non_blocking(device, "noted", 0)?;
    explicit::record_stream(&z, &noted)?;
    drop(z);
    let ran = s.host_func(7u32, |value| *value += 1)?;
    let mut nodes = device.graph();
    let node = nodes.own(y)?;
    nodes.fill_with(node.view_mut(), 9)?;
    let mut graph = nodes.build()?;
    graph.launch(&s)?;
    let found = down.synchronize()?;
    assert_eq!(found[..], [4; LEN]);
    held(found, mine);
    let mut host = [0; LEN];
    t.memcpy_d2h(graph.view(node), &mut host)?;
    assert_eq!(host, [9; LEN]);
    t.memcpy_d2h(both.slice(LEN..), &mut host)?;
    assert_eq!(host, [8; LEN]);
    assert_eq!(ran.synchronize()?, 8);
    between();
    s.record_event()?.synchronize()?;
    t.wait_stream(&s)?;
    device.synchronize()
}

/// Checks that all work is complete, and that the program's memory is unchanged.
fn is_untouched(device: &Device, mine: &[Pinned<u32>]) {
    explicit::synchronize(device).unwrap();
    let is_mine = |page: &Pinned<u32>| page.iter().all(|&value| value == 99);
    assert!(
        mine.iter().all(is_mine),
        "a device touched memory of the program"
    );
}

#[test]
fn whichever_call_of_the_back_end_fails_no_memory_in_use_is_handed_out() {
    for behind in [false, true] {
        for after in 0.. {
            let profile = ("sim:h200".to_owned(), Profile::h200());
            let machine = Machine::new(vec![profile], Schedule::Adversarial, None);
            let faults = Arc::new(Faults::one(machine, after, behind));
            let device = Device::on(Arc::clone(&faults) as _, &Options::new()).remove(0);
            let mut mine = Vec::new();
            let ran = program(&device, &mut mine, &mut || ());
            // A wait for memory that runs out, or a query for it, may ignore an error.
            assert!(ran.is_ok() || faults.has_failed(), "{after}: {ran:?}");
            let is_last = !faults.has_failed();
            faults.stop();
            is_untouched(&device, &mine);
            if is_last {
                assert!(after > 50, "{after} calls were made");
                break;
            }
        }
    }
}

#[test]
fn wherever_a_sink_panics_in_a_program_no_memory_in_use_is_handed_out() {
    for after in 0.. {
        let device = open();
        let told = Arc::new(AtomicU32::new(0));
        device.listen(Box::new(Counting {
            told: Arc::clone(&told),
            after,
        }));
        let mut mine = Vec::new();
        let said = panics(|| program(&device, &mut mine, &mut || ()).unwrap());
        is_untouched(&device, &mine);
        match said {
            Some(said) => assert!(said.contains("the test said so"), "{said}"),
            None if told.load(Ordering::Relaxed) <= after => {
                assert!(after > 20, "it was told {after} calls");
                break;
            }
            None => {}
        }
    }
}

/// A sink that panics at one of the calls.
struct Counting {
    told: Arc<AtomicU32>,
    after: u32,
}

impl Sink for Counting {
    fn take(&mut self, record: &Record<'_>) {
        if matches!(record, Record::Op(_))
            && self.told.fetch_add(1, Ordering::Relaxed) == self.after
        {
            panic_quietly();
        }
    }
}

/// Memory is freed piece by piece, and each wait for its uses may call a sink.
#[test]
fn a_panic_of_a_sink_while_memory_is_freed_loses_none_of_it() {
    let profile = ("sim:h200".to_owned(), Profile::h200());
    let machine = Machine::new(vec![profile], Schedule::Adversarial, None);
    let backend = Arc::new(Faults::new(machine, 0, 0));
    let device = Device::on(Arc::clone(&backend) as _, &Options::new()).remove(0);
    let s = device.stream("s").unwrap();
    for len in [1 << 20, 1 << 22] {
        let mut x = s.alloc::<u32>(len).unwrap();
        s.fill_with(x.view_mut(), 1).unwrap();
    }
    Fragile::attach(&device, "op", |kind| matches!(kind, Kind::SyncEvent { .. }));
    assert!(panics(|| device.empty_cache().unwrap()).is_some());
    device.empty_cache().unwrap();
    drop((s, device));
    let memory = backend.account().memory;
    assert!(memory.is_empty(), "{memory:?} was not given back");
}

#[test]
fn wherever_a_capture_begins_the_safe_api_and_the_capture_do_not_disturb_each_other() {
    for begins in 0.. {
        let device = open();
        let captured = explicit::Stream::non_blocking(&device, "captured", 0).unwrap();
        let out = explicit::DeviceMemory::malloc(&device, 64).unwrap();
        let x = device.stream("x").unwrap().alloc_zeroed::<u8>(64).unwrap();
        explicit::record_stream(&x, &captured).unwrap();
        let mut x = Some(x);
        let mut place = 0;
        let mut mine = Vec::new();
        program(&device, &mut mine, &mut || {
            if place == begins {
                captured.begin_capture().unwrap();
                // SAFETY: the memory is not freed until the device was waited for.
                unsafe { captured.memset(out.all(), 1) }.unwrap();
                // The next owner waits for the earlier uses.
                x = None;
            }
            place += 1;
        })
        .unwrap();
        if begins >= place {
            assert!(begins > 5);
            break;
        }
        let graph = captured.end_capture().unwrap();
        // SAFETY: as above.
        unsafe { captured.launch_graph(&graph) }.unwrap();
        is_untouched(&device, &mine);
    }
}

#[test]
fn a_legacy_stream_that_was_refused_is_in_the_log_once() {
    let profile = ("sim:h200".to_owned(), Profile::h200());
    let machine = Machine::new(vec![profile], Schedule::InOrder, None);
    let backend = Arc::new(Faults::one(machine, 0, false));
    let device = Device::on(Arc::clone(&backend) as _, &Options::new()).remove(0);
    let findings = device.checked(OnRace::Report);
    assert!(explicit::Stream::legacy(&device).is_err());
    let legacy = explicit::Stream::legacy(&device).unwrap();
    let other = explicit::Stream::blocking(&device, "other").unwrap();
    legacy.wait_stream(&other).unwrap();
    legacy.synchronize().unwrap();
    assert_eq!(findings.ended(), None);
}

#[test]
fn memory_that_was_recorded_on_the_legacy_stream_may_be_freed_during_a_capture() {
    let device = open();
    let findings = device.checked(OnRace::Report);
    let legacy = explicit::Stream::legacy(&device).unwrap();
    let captured = explicit::Stream::blocking(&device, "captured").unwrap();
    let x = device.stream("x").unwrap().alloc::<u8>(64).unwrap();
    explicit::record_stream(&x, &legacy).unwrap();
    captured.begin_capture().unwrap();
    drop(x);
    captured.end_capture().unwrap();
    let report = findings.report();
    assert!(report.error.is_none(), "{}", findings.text());
}

/// A sink that ignores everything.
struct Deaf;

impl Sink for Deaf {
    fn take(&mut self, _: &Record<'_>) {}
}

/// Fails where a program hangs, and abandons its threads.
fn ends(program: impl FnOnce() + Send + 'static) {
    let (ended, has_ended) = mpsc::channel();
    let run = thread::spawn(move || {
        program();
        let _ = ended.send(());
    });
    match has_ended.recv_timeout(Duration::from_secs(60)) {
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => run.join().unwrap(),
    }
}

#[test]
fn a_function_on_the_host_may_drop_a_buffer_for_which_a_copy_from_pageable_memory_waits() {
    for (is_heard, is_noted) in [(true, false), (false, true), (true, true)] {
        ends(move || {
            let device = Device::open("sim:h200").unwrap();
            if is_heard {
                device.listen(Box::new(Deaf));
            }
            let x = device.stream("x").unwrap().alloc_zeroed::<u8>(64).unwrap();
            let stream = explicit::Stream::non_blocking(&device, "s", 0).unwrap();
            if is_noted {
                explicit::record_stream(&x, &stream).unwrap();
            }
            let host = explicit::HostMemory::pageable(&device, 64).unwrap();
            let to = explicit::DeviceMemory::malloc(&device, 64).unwrap();
            // SAFETY: the memory is not freed until the stream was waited for.
            unsafe {
                stream.host_func(&[], &[], move || drop(x)).unwrap();
                stream.memcpy(to.all(), host.all()).unwrap();
            }
            stream.synchronize().unwrap();
        });
    }
}

/// While a call blocks its caller, another thread makes calls, and a host function waits for that thread.
#[test]
fn a_blocking_call_delays_no_call_of_another_thread() {
    type Call = fn(&explicit::Stream, &Memories);
    struct Memories {
        pageable: explicit::HostMemory,
        pinned: explicit::HostMemory,
        device: explicit::DeviceMemory,
    }
    // SAFETY: in each, the memory is not freed until the stream was waited for.
    let calls: [Call; 5] = [
        |s, m| unsafe { s.memcpy(m.device.all(), m.pageable.all()).unwrap() },
        |s, m| unsafe { s.memcpy(m.pinned.all(), m.pageable.all()).unwrap() },
        |_, m| unsafe { explicit::memcpy_blocking(m.device.all(), m.pageable.all()).unwrap() },
        |_, m| unsafe { explicit::memcpy_blocking(m.pinned.all(), m.device.all()).unwrap() },
        |_, m| unsafe { explicit::memset_blocking(m.pinned.all(), 1).unwrap() },
    ];
    for call in calls {
        ends(move || {
            let device = Device::open("sim:h200").unwrap();
            device.listen(Box::new(Deaf));
            let stream = explicit::Stream::blocking(&device, "s").unwrap();
            let memories = Memories {
                pageable: explicit::HostMemory::pageable(&device, 64).unwrap(),
                pinned: explicit::HostMemory::pinned(&device, 64).unwrap(),
                device: explicit::DeviceMemory::malloc(&device, 64).unwrap(),
            };
            let noted = device.stream("x").unwrap().alloc_zeroed::<u8>(64).unwrap();
            explicit::record_stream(&noted, &stream).unwrap();
            let (begins, has_begun) = mpsc::channel();
            let (goes_on, may_go_on) = mpsc::channel::<()>();
            let act = move || {
                begins.send(()).unwrap();
                let _ = may_go_on.recv();
            };
            // SAFETY: the function calls nothing of the runtime.
            unsafe { stream.host_func(&[], &[], act).unwrap() };
            thread::scope(|scope| {
                let (device, stream) = (&device, &stream);
                scope.spawn(move || {
                    has_begun.recv().unwrap();
                    let event = explicit::Event::new(device).unwrap();
                    stream.record(&event).unwrap();
                    drop(noted);
                    let own = device.stream("own").unwrap();
                    drop(own.alloc_zeroed::<u8>(64).unwrap());
                    goes_on.send(()).unwrap();
                });
                call(stream, &memories);
                // For calls that did not have to wait.
                stream.synchronize().unwrap();
            });
        });
    }
}

/// For example, a call may wait under the lock of the log for room in a driver's queue.
#[test]
fn a_function_on_the_host_drops_a_buffer_while_the_log_is_busy() {
    /// Keeps the log busy from its call on, until a host function has completed.
    struct Busy(Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>);
    impl Sink for Busy {
        fn take(&mut self, record: &Record<'_>) {
            if let Record::Op(op) = record
                && let Kind::Memset { .. } = op.kind
                && let Some((busy, is_complete)) = self.0.take()
            {
                busy.send(()).unwrap();
                let _ = is_complete.recv();
            }
        }
    }
    ends(|| {
        let device = Device::open("sim:h200").unwrap();
        let stream = explicit::Stream::non_blocking(&device, "s", 0).unwrap();
        let ((busy, is_busy), (over, is_complete)) = (mpsc::channel(), mpsc::channel());
        let (begins, has_begun) = mpsc::channel();
        device.listen(Box::new(Busy(Some((busy, is_complete)))));
        let x = device.stream("x").unwrap().alloc::<u8>(64).unwrap();
        let act = move || {
            begins.send(()).unwrap();
            is_busy.recv().unwrap();
            drop(x);
            over.send(()).unwrap();
        };
        // SAFETY: the function calls nothing of the runtime.
        unsafe { stream.host_func(&[], &[], act).unwrap() };
        thread::scope(|scope| {
            let device = &device;
            scope.spawn(move || {
                has_begun.recv().unwrap();
                let own = device.stream("own").unwrap();
                drop(own.alloc_zeroed::<u8>(64).unwrap());
            });
            stream.synchronize().unwrap();
        });
    });
}
