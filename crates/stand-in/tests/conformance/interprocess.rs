//! Events that two processes share: this one, and the same program called again, which creates an event and records
//! it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use sidestream::check::OnRace;
use sidestream::error::{Error, Result};
use sidestream::explicit::{self, Event, Stream};

use crate::child;
use crate::target::{Scenario, Target, one};
use crate::untracked::{self, BYTES};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(a_stream_waits_for_the_work_of_another_process),
        one(the_host_waits_for_the_work_of_another_process),
        one(an_order_by_another_process_is_neither_a_race_nor_an_order_for_other_work),
        one(events_that_another_process_cannot_use_are_refused),
    ]
}

/// The other process; dropping this value ends the process.
struct Other {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    handle: [u8; 64],
}

/// The name that selects this scenario in the child.
pub const NAME: &str = "an event for another process";

/// Runs the child: it records an event after a host function that waits until it is told to continue.
pub fn record_when_told(target: Target) {
    let device = target.open();
    let stream = untracked::stream(&device, "producer");
    let event = Event::interprocess(&device).unwrap();
    let (go, may_go) = mpsc::channel::<()>();
    let done = work_of(std::process::id());
    let work = move || {
        let _ = may_go.recv();
        fs::write(done, "done").unwrap();
    };
    // SAFETY: the function touches no memory of the runtime.
    unsafe { stream.host_func(&[], &[], work) }.unwrap();
    stream.record(&event).unwrap();
    let bytes = event.ipc_handle().unwrap();
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{text}");
    for _ in std::io::stdin().lines() {
        go.send(()).unwrap();
        event.synchronize().unwrap();
        println!("complete");
    }
    // If the parent never told the function to continue, nothing waits for it.
    drop(go);
}

/// Returns the path of the file that the child's work creates.
fn work_of(child: u32) -> PathBuf {
    std::env::temp_dir().join(format!("sidestream-work-of-{child}"))
}

impl Other {
    fn start(target: Target) -> Other {
        let mut child = child::start(NAME, target);
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().unwrap());
        let mut other = Other {
            child,
            to,
            from,
            handle: [0; 64],
        };
        let text = other.line();
        assert_eq!(text.len(), 128, "{text}");
        for (at, byte) in other.handle.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
        }
        other
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Lets the child's work continue.
    fn go(&mut self) {
        writeln!(self.to.as_ref().unwrap(), "go").unwrap();
    }

    fn is_done(&self) -> bool {
        work_of(self.child.id()).exists()
    }

    /// Submits a function to this stream that checks whether the child's work is done. The result is set when it has
    /// run.
    fn sees(&self, stream: &Stream) -> Arc<AtomicBool> {
        let seen = Arc::new(AtomicBool::new(false));
        let (sees, work) = (Arc::clone(&seen), work_of(self.child.id()));
        // SAFETY: the function touches no memory of the runtime.
        let look = || unsafe {
            stream.host_func(&[], &[], move || {
                sees.store(work.exists(), Ordering::Relaxed);
            })
        };
        look().unwrap();
        seen
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.to.take());
        let _ = self.child.wait();
        let _ = fs::remove_file(work_of(self.child.id()));
    }
}

fn a_stream_waits_for_the_work_of_another_process(target: Target) {
    if target == Target::Sim {
        return;
    }
    let device = target.open();
    let mut other = Other::start(target);
    let event = Event::from_ipc_handle(&device, other.handle).unwrap();
    assert!(!event.query().unwrap());

    let alone = untracked::stream(&device, "alone");
    let saw = other.sees(&alone);
    alone.synchronize().unwrap();
    assert!(!saw.load(Ordering::Relaxed), "nothing has waited");

    let waits = untracked::stream(&device, "waits");
    waits.wait(&event).unwrap();
    let saw = other.sees(&waits);
    assert!(!waits.query().unwrap(), "the stream did not wait");
    other.go();
    waits.synchronize().unwrap();
    assert!(saw.load(Ordering::Relaxed), "the stream did not wait");
    assert!(event.query().unwrap());
    assert_eq!(other.line(), "complete");
}

fn the_host_waits_for_the_work_of_another_process(target: Target) {
    if target == Target::Sim {
        return;
    }
    let device = target.open();
    let mut other = Other::start(target);
    let event = Event::from_ipc_handle(&device, other.handle).unwrap();
    assert!(!event.query().unwrap() && !other.is_done());
    other.go();
    event.synchronize().unwrap();
    assert!(other.is_done());
}

fn an_order_by_another_process_is_neither_a_race_nor_an_order_for_other_work(target: Target) {
    if target == Target::Sim {
        return;
    }
    let mut other = Other::start(target);
    other.go();
    assert_eq!(other.line(), "complete");
    for (was_recorded, later, races) in [(true, false, 0), (true, true, 1), (false, false, 1)] {
        let device = target.open();
        let findings = device.checked(OnRace::Report);
        let theirs = Event::from_ipc_handle(&device, other.handle).unwrap();
        let ours = Event::interprocess(&device).unwrap();
        let [first, second] = ["first", "second"].map(|name| untracked::stream(&device, name));
        let memory = explicit::DeviceMemory::malloc(&device, BYTES).unwrap();
        // SAFETY: the device is waited for before the memory is freed; its contents do not matter.
        unsafe { first.memset(memory.all(), 1) }.unwrap();
        if was_recorded {
            first.record(&ours).unwrap();
        }
        if later {
            // SAFETY: as above.
            unsafe { first.memset(memory.all(), 2) }.unwrap();
        }
        // The other process may have waited for `ours` before it recorded `theirs`.
        second.wait(&theirs).unwrap();
        // SAFETY: as above.
        unsafe { second.memset(memory.all(), 3) }.unwrap();
        explicit::synchronize(&device).unwrap();
        drop((memory, theirs, ours, first, second, device));
        let report = findings.report();
        let found = (report.races.len(), report.lints.len());
        assert_eq!(found, (races, 0), "{}", findings.text());
    }
}

fn events_that_another_process_cannot_use_are_refused(target: Target) {
    let device = target.open();
    if target == Target::Sim {
        refused(Event::interprocess(&device), "is simulated");
        refused(Event::from_ipc_handle(&device, [0; 64]), "is simulated");
        return;
    }
    for event in [Event::new(&device), Event::timed(&device)] {
        refused(event.unwrap().ipc_handle(), "make it by");
    }
    let event = Event::interprocess(&device).unwrap();
    let timed = Event::timed(&device).unwrap();
    untracked::stream(&device, "s").record(&event).unwrap();
    event.synchronize().unwrap();
    refused(event.elapsed_ns_since(&timed), "");
    let handle = event.ipc_handle().unwrap();
    refused(
        Event::from_ipc_handle(&device, handle),
        "in another process than",
    );

    let other = Other::start(target);
    let opened = Event::from_ipc_handle(&device, other.handle).unwrap();
    refused(opened.ipc_handle(), "make it by");
    refused(
        untracked::stream(&device, "s").record(&opened),
        "another process, which records it",
    );
}

#[track_caller]
fn refused<T>(result: Result<T>, why: &str) {
    match result {
        Err(error @ (Error::Invalid { .. } | Error::Refused { .. })) => {
            assert!(error.to_string().contains(why), "{error}");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was accepted"),
    }
}
