//! Runs the ring of the prefetcher and the recorder of a log, unchanged, under thread schedules that Shuttle draws: random
//! ones, and ones with few context switches in unfavourable places. A deadlock, a lost wake-up or a wrong byte fails a run,
//! and Shuttle prints how to repeat it.
//!
//! Not covered: code on the library's own threads (those that wake tasks and drop values, and host functions), which Shuttle
//! does not control. So no ring is closed or dropped.

use std::sync::Arc;

use shuttle::sync::mpsc::{Receiver, channel};
use shuttle::thread;
use sidestream::device::{Device, Options};
use sidestream::engine::Profile;
use sidestream::explicit::Stream;
use sidestream::log::{Live, Reader, Record, Recorder, Sink};
use sidestream::op::{Accesses, DeviceId, Kind, Op, StreamKind};
use sidestream::prefetch::{Leaf, Lease, Ring, Ticket};
use sidestream::sim::{Machine, Schedule};

/// The number of runs of each kind, which take about a second.
const RUNS: usize = 1000;

fn every_order(program: impl Fn() + Send + Sync + 'static) {
    let program = Arc::new(program);
    let again = Arc::clone(&program);
    // The library's thread-local values belong to this thread, which never ends, so they outlive Shuttle's threads.
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let run = std::panic::AssertUnwindSafe(|| {
            shuttle::check_random(move || program(), RUNS);
            shuttle::check_pct(move || again(), RUNS, 3);
        });
        done.send(std::panic::catch_unwind(run)).unwrap();
        loop {
            std::thread::park();
        }
    });
    if let Err(panic) = ended.recv().unwrap() {
        std::panic::resume_unwind(panic);
    }
}

// ------------------------------------------------------------------ the ring

/// A ring of one slot, its consumer, and the batches that a feeder on another thread puts.
struct Fed {
    ring: Arc<Ring>,
    consumer: Stream,
    tickets: Receiver<Ticket>,
    feeder: thread::JoinHandle<()>,
    // Declared last, since the other fields belong to it.
    device: Device,
}

impl Fed {
    fn with_batches(profile: &Profile, batches: u8) -> Fed {
        let profile = ("sim:h200".to_owned(), profile.clone());
        let machine = Machine::new(vec![profile], Schedule::InOrder, None);
        let device = Device::on(Arc::new(machine), &Options::new()).remove(0);
        let ring = Arc::new(Ring::with_threads(&device, 1, 1).unwrap());
        let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
        let (put, tickets) = channel();
        let feeder = thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                for n in 0..batches {
                    // SAFETY: the bytes are valid during the call.
                    let ticket = unsafe { ring.put(&[Leaf::of(&[n; 64])]) }.unwrap();
                    let Some(ticket) = ticket else { return };
                    put.send(ticket).unwrap();
                }
            }
        });
        Fed {
            ring,
            consumer,
            tickets,
            feeder,
            device,
        }
    }

    /// Takes the next batch and asserts its content.
    fn take(&self, n: u8) -> Lease {
        let lease = self
            .tickets
            .recv()
            .unwrap()
            .hand_over(&self.consumer)
            .unwrap();
        let mut back = [0xff; 64];
        lease.read(0, &mut back).unwrap();
        assert_eq!(back, [n; 64]);
        lease
    }

    /// Joins the feeder. Everything else is leaked, because dropping it needs threads that Shuttle does not control.
    fn end(self) {
        self.feeder.join().unwrap();
        std::mem::forget((self.ring, self.consumer, self.tickets, self.device));
    }
}

#[test]
fn a_feeder_goes_on_when_leases_end_on_any_thread() {
    let profile = Profile::h200();
    every_order(move || {
        let fed = Fed::with_batches(&profile, 4);
        let ends: Vec<_> = (0..4)
            .map(|n| {
                let lease = fed.take(n);
                thread::spawn(move || drop(lease))
            })
            .collect();
        ends.into_iter().for_each(|end| end.join().unwrap());
        assert_eq!(fed.ring.statistics().slots, 1);
        fed.end();
    });
}

#[test]
fn a_consumer_that_keeps_what_it_has_and_asks_gets_the_next() {
    let profile = Profile::h200();
    every_order(move || {
        let fed = Fed::with_batches(&profile, 3);
        let held = [0, 1, 2].map(|n| {
            fed.ring.ask(true);
            fed.take(n)
        });
        std::mem::forget(held);
        fed.end();
    });
}

#[test]
fn a_pause_ends_a_wait_for_a_slot() {
    let profile = Profile::h200();
    every_order(move || {
        let fed = Fed::with_batches(&profile, 4);
        let held = fed.take(0);
        fed.ring.pause(true);
        std::mem::forget(held);
        fed.end();
    });
}

// ------------------------------------------------------------------ the recorder

#[test]
fn a_recording_that_ends_while_threads_write_can_be_read() {
    every_order(|| {
        let live = Arc::new(Live::default());
        let (recorder, sink) = Recorder::new(Vec::new()).unwrap();
        let sink = live.attach(sink);
        let stream = live.new_stream(StreamKind::NonBlocking, DeviceId(0), "s");
        let writers = [(); 2].map(|()| {
            let live = Arc::clone(&live);
            thread::spawn(move || {
                let thread = live.new_thread("writer");
                for _ in 0..3 {
                    let Some(mut pen) = live.write() else { return };
                    let (id, site) = (pen.next_op(), pen.site(std::panic::Location::caller()));
                    pen.op(&Op {
                        id,
                        thread,
                        site,
                        kind: Kind::SyncStream { stream },
                        accesses: Accesses::new(),
                    });
                }
            })
        });
        recorder.flush();
        drop(live.detach_one(sink));
        let bytes = recorder.finish().unwrap();
        let mut records = Reader::new(&bytes[..]).unwrap();
        assert!(records.all(|record| record.is_ok()));
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

// ------------------------------------------------------------------ attaching a sink

/// A sink that ignores all records.
struct Ear;

impl Sink for Ear {
    fn take(&mut self, _: &Record<'_>) {}
}

/// A thread that is inside a call when a sink is attached has the locks of a stream and of memory,
/// and needs a new event or thread id from the log; a thread that makes a call afterwards has the
/// lock of the log and needs the locks of the stream and of memory.
#[test]
fn a_sink_is_attached_while_threads_call() {
    let profile = Profile::h200();
    every_order(move || {
        let profile = ("sim:h200".to_owned(), profile.clone());
        let machine = Machine::new(vec![profile], Schedule::InOrder, None);
        let device = Device::on(Arc::new(machine), &Options::new()).remove(0);
        let stream = device.stream("s").unwrap();
        let callers = [(); 2].map(|()| {
            let stream = stream.clone();
            thread::spawn(move || {
                let mut x = stream.alloc::<u8>(64).unwrap();
                stream.memset(x.view_mut(), 1).unwrap();
                let mut y = stream.alloc::<u8>(64).unwrap();
                stream.memset(y.view_mut(), 1).unwrap();
                (x, y)
            })
        });
        device.listen(Box::new(Ear));
        let held = callers.map(|caller| caller.join().unwrap());
        // Dropping a machine needs threads that Shuttle does not control.
        std::mem::forget((held, stream, device));
    });
}
