//! Where a call may end early: code of the program's that is run in the middle of one panics. Whatever was
//! submitted is noted all the same, so that nobody gets its memory too early.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sidestream::check::OnRace;
use sidestream::device::{Device, Options};
use sidestream::log::{Sink, SinkId, Within};
use sidestream::op::{DeviceId, Kind, Memory, Op, StreamKind, ThreadId};
use sidestream::sim::Schedule;

fn open() -> Device {
    let options = Options::new().schedule(Schedule::Adversarial);
    Device::open_with("sim:h200", &options).unwrap()
}

/// A panic that nobody has to read about.
fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("the test said so"))
}

/// A sink that panics where it is told to, and from when.
struct Fragile {
    at: &'static str,
    is_told: fn(&Kind) -> bool,
    is_armed: Arc<AtomicBool>,
}

impl Fragile {
    /// Attaches it, and arms it then: a sink that comes late is told what there is already.
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
    fn stream(&mut self, _: StreamKind, _: DeviceId, _: &str) {
        self.is("stream");
    }
    fn event(&mut self, _: bool, _: DeviceId) {
        self.is("event");
    }
    fn buffer(&mut self, _: Memory, _: u64, _: Option<Within>, _: &str) {
        self.is("buffer");
    }
    fn thread(&mut self, _: &str) {
        self.is("thread");
    }
    fn site(&mut self, _: &str) {
        self.is("site");
    }
    fn span(&mut self, _: ThreadId, _: Option<&str>) {
        self.is("span");
    }
    fn op(&mut self, op: &Op) {
        if (self.is_told)(&op.kind) {
            self.is("op");
        }
    }
    fn alarm(&mut self) -> Option<String> {
        self.is("alarm");
        None
    }
}

/// What a call says that panics.
fn panics(act: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(act)).err()?;
    Some(panic.downcast_ref::<String>().expect("a text").clone())
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

/// A file that panics when it is written to the second time, and whenever it is after that.
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
fn a_recording_of_a_file_that_panics_may_be_dropped() {
    let device = open();
    let s = device.stream("s").unwrap();
    drop(device.record(Bomb(1)).unwrap());
    let x = s.alloc_zeroed::<u32>(64).unwrap();
    drop((x, s));
    drop(device);
}
