//! A child of a fork: it has its parent's handles, but neither its threads nor its devices.

#![cfg(all(unix, not(miri)))]

use std::ffi::c_int;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use sidestream::alloc::Statistics;
use sidestream::check::OnRace;
use sidestream::device::{Device, Options};
use sidestream::engine::Profile;
use sidestream::error::{Error, Result};
use sidestream::explicit;
use sidestream::sim::{Machine, Schedule};

use crate::random_programs::faults::Faults;

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn alarm(seconds: u32) -> u32;
    fn _exit(status: c_int) -> !;
}

/// Runs a check in a child, and returns its result: 0 if all is as expected, otherwise a number that identifies the
/// failure.
fn child(act: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the functions are the C library's, with their signatures. The child calls nothing whose lock another
    // thread may hold, except what is tested here and the allocator, which the C library keeps usable; and it exits
    // without running anything of its parent's. A child that hangs is ended by its alarm.
    unsafe {
        let process = fork();
        if process == 0 {
            alarm(20);
            _exit(act());
        }
        let mut status = -1;
        assert_eq!(waitpid(process, &raw mut status, 0), process);
        status
    }
}

fn is_refused<T>(answer: Result<T>) -> bool {
    matches!(answer, Err(Error::Refused { call, .. }) if call == "a call in a forked process")
}

/// Ends the other thread, even when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_child_is_refused_and_its_drops_do_nothing() {
    const LEN: usize = 1 << 12;
    let device = Device::open("sim:h200").unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // This thread has the locks of the device most of the time.
        scope.spawn(|| {
            let busy = device.stream("busy").unwrap();
            while !is_done.load(Relaxed) {
                let mut buffer = busy.alloc_zeroed::<u32>(LEN).unwrap();
                busy.fill_with(buffer.view_mut(), 1).unwrap();
                busy.synchronize().unwrap();
            }
        });
        let _end = Over(&is_done);
        for _ in 0..40 {
            let (stream, other) = (device.stream("a").unwrap(), device.stream("b").unwrap());
            let mut buffer = stream.alloc_zeroed::<u32>(LEN).unwrap();
            let event = stream.record_event().unwrap();
            let pinned = device.pinned::<u32>(LEN).unwrap();
            let sent = stream.upload(pinned, buffer.view_mut()).unwrap();
            let mut nodes = device.graph();
            let _key = nodes.own(other.alloc_zeroed::<u32>(LEN).unwrap()).unwrap();
            let mut graph = nodes.build().unwrap();
            let raw = explicit::Stream::non_blocking(&device, "raw", 0).unwrap();
            let mark = explicit::Event::new(&device).unwrap();
            let status = child(|| {
                let answers = [
                    is_refused(stream.synchronize()),
                    is_refused(stream.query()),
                    is_refused(stream.alloc::<u32>(LEN)),
                    is_refused(stream.fill_with(buffer.view_mut(), 2u32)),
                    is_refused(other.wait_stream(&stream)),
                    is_refused(other.wait_event(&event)),
                    is_refused(graph.launch(&other)),
                    is_refused(device.stream("new")),
                    is_refused(raw.synchronize()),
                    is_refused(raw.query()),
                    is_refused(raw.record(&mark)),
                    is_refused(raw.wait(&mark)),
                    is_refused(mark.query()),
                    is_refused(mark.synchronize()),
                    device.statistics() == Statistics::default(),
                    device.pinned_statistics() == Statistics::default(),
                ];
                drop(device.span("span"));
                drop((sent, buffer, graph, event, raw, mark, stream, other));
                match answers.iter().position(|is_refused| !is_refused) {
                    None => 0,
                    Some(at) => at as c_int + 1,
                }
            });
            assert_eq!(status, 0, "a signal in the low byte, the answer above");
        }
    });
}

/// A file, and how often this process has touched it.
struct Watched(Arc<AtomicU32>);

impl Write for Watched {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.fetch_add(1, Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.fetch_add(1, Relaxed);
        Ok(())
    }
}

#[test]
fn a_child_that_drops_the_last_handles_writes_no_file_and_calls_no_driver() {
    for ends in [false, true] {
        let profile = ("sim:h200".to_owned(), Profile::h200());
        let machine = Machine::new(vec![profile], Schedule::InOrder, None);
        let backend = Arc::new(Faults::new(machine, 0, 0));
        let device = Device::on(Arc::clone(&backend) as _, &Options::new()).remove(0);
        let touched = Arc::new(AtomicU32::new(0));
        let recording = device.record(Watched(Arc::clone(&touched))).unwrap();
        let findings = device.checked(OnRace::Report);
        let stream = device.stream("a").unwrap();
        let zeros = stream.alloc_zeroed::<u32>(16).unwrap();
        let before = (backend.calls(), touched.load(Relaxed));
        let mut handles = Some((recording, findings, stream, zeros, device));
        let status = child(|| {
            let (recording, findings, stream, zeros, device) = handles.take().unwrap();
            drop((findings, stream, zeros, device));
            let is_right = match ends {
                true => recording.finish().is_err(),
                false => true,
            };
            let after = (backend.calls(), touched.load(Relaxed));
            c_int::from(!is_right) + 2 * c_int::from(after != before)
        });
        assert_eq!(status, 0, "a signal in the low byte, the answer above");
        assert!(handles.is_some());
    }
}
