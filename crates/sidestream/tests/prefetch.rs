//! Batches that go through a ring on the simulated GPU, under any schedule: each has its contents for as long as it
//! is leased, and the checker finds nothing. A prefetcher as users write it by hand fails on the same programs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use crate::drawn::Random;
use sidestream::check::{OnRace, Report};
use sidestream::device::{Device, Options};
use sidestream::error::Error;
use sidestream::explicit::{Arg, DeviceMemory, Event, HostMemory, Region, Stream};
use sidestream::kernel::{Grid, Kernel, KernelCost, Read, Write};
use sidestream::prefetch::{Leaf, Lease, Ring, Spares, Ticket};
use sidestream::sim::Schedule;

/// A digest that depends on every byte and its place.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Returns the contents of leaf `leaf` of batch `batch`.
fn content(batch: usize, leaf: usize, len: usize) -> Vec<u8> {
    let mut numbers = Random((batch * 31 + leaf) as u64 + 1);
    (0..len).map(|_| numbers.below(256) as u8).collect()
}

/// A slow consumer: it takes far longer than the copy of a batch.
fn sum() -> Kernel<(Read<u8>, Write<u64>)> {
    Kernel::<(Read<u8>, Write<u64>)>::on_host("sum", |_, (x, y)| y[0] = digest(x)).with_cost(|_| {
        KernelCost::Duration {
            ns: 80_000,
            share: 0.4,
        }
    })
}

/// A program that takes batches.
#[derive(Clone, Copy, Debug)]
struct Case {
    schedule: Schedule,
    depth: usize,
    /// Number of batches that the program keeps besides the current one.
    keeps: usize,
    batches: usize,
    leaves: usize,
    /// Whether the first leaf is pinned, and refilled as soon as that is allowed.
    direct: bool,
    /// Whether the program uses every second batch on another stream too.
    side: bool,
    /// Whether the batches grow.
    grows: bool,
    /// The ring is replaced every this many batches; the new one reuses the memory of the old one. `None`: never.
    anew: Option<usize>,
}

impl Case {
    fn of(seed: u64) -> Case {
        let mut numbers = Random(seed);
        let mut below = |end: u64| numbers.below(end) as usize;
        let schedule = match below(4) {
            0 => Schedule::InOrder,
            1 => Schedule::Adversarial,
            _ => Schedule::Seeded(seed),
        };
        Case {
            schedule,
            depth: 1 + below(3),
            keeps: below(4),
            batches: 4 + below(8),
            leaves: 1 + below(3),
            direct: below(2) == 0,
            side: below(2) == 0,
            grows: below(3) == 0,
            anew: (below(2) == 0).then(|| 1 + below(3)),
        }
    }

    fn len(&self, batch: usize, leaf: usize) -> usize {
        let base = 300 + 700 * leaf;
        if self.grows { base * (batch + 1) } else { base }
    }

    fn batch(&self, batch: usize) -> Vec<Vec<u8>> {
        let leaves = 0..self.leaves;
        leaves
            .map(|leaf| content(batch, leaf, self.len(batch, leaf)))
            .collect()
    }

    fn expected(&self) -> Vec<u64> {
        let batches = 0..self.batches;
        let digests = batches.map(|batch| {
            let leaves = self.batch(batch);
            leaves.iter().map(|leaf| digest(leaf)).collect::<Vec<_>>()
        });
        digests.flatten().collect()
    }
}

/// Where the kernels of a case write their results.
struct Found {
    memory: Arc<DeviceMemory>,
    sum: Kernel<(Read<u8>, Write<u64>)>,
}

impl Found {
    fn new(device: &Device, case: &Case) -> Found {
        let count = case.batches * case.leaves;
        Found {
            memory: Arc::new(DeviceMemory::malloc(device, 8 * count as u64).unwrap()),
            sum: sum(),
        }
    }

    fn look(&self, stream: &Stream, leaf: Region<'_>, at: usize) {
        let at = 8 * at as u64;
        let args = [Arg::Reads(leaf), Arg::Writes(self.memory.bytes(at..at + 8))];
        // SAFETY: the signature is the kernel's. The tests check that the leaf is kept.
        unsafe { stream.launch(&self.sum, Grid::new(1, 32), &args).unwrap() };
    }

    /// Returns all results once the streams are complete.
    fn all(&self, device: &Device, streams: &[&Stream]) -> Vec<u64> {
        let host = HostMemory::pinned(device, self.memory.size_bytes()).unwrap();
        let last = streams[0];
        streams[1..]
            .iter()
            .for_each(|other| last.wait_stream(other).unwrap());
        // SAFETY: the copy is ordered after everything that was launched, and the host waits.
        unsafe { last.memcpy(self.memory.all(), host.all()).unwrap() };
        last.synchronize().unwrap();
        let mut found = vec![0u64; (host.size_bytes() / 8) as usize];
        host.read(0, &mut found);
        found
    }
}

fn open(schedule: Schedule) -> Device {
    Device::open_with("sim:h200", &Options::new().schedule(schedule)).unwrap()
}

fn put(ring: &Ring, leaves: &[Leaf]) -> Ticket {
    // SAFETY: the tests keep the memory of leaves until the call has completed, and that of direct leaves until
    // `wait_source` has.
    unsafe { ring.put(leaves) }
        .unwrap()
        .expect("the ring is open")
}

/// Runs a case with the ring; returns what was found, and the checker's report.
fn run(case: &Case) -> (Vec<u64>, Report) {
    let device = open(case.schedule);
    let findings = device.checked(OnRace::Report);
    let found = {
        let spares = Spares::new(&device);
        let mut ring = spares.ring(case.depth).unwrap();
        let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
        let side = Stream::non_blocking(&device, "side", 0).unwrap();
        let found = Found::new(&device, case);
        let largest = case.len(case.batches, 0) as u64;
        let pinned = HostMemory::pinned(&device, largest).unwrap();
        let mut held: VecDeque<Lease> = VecDeque::new();
        for batch in 0..case.batches {
            if case.anew.is_some_and(|each| batch % each == each - 1) {
                ring = anew(&spares, case, ring);
            }
            let leaves = case.batch(batch);
            let mut parts: Vec<Leaf> = leaves.iter().map(|leaf| Leaf::of(leaf)).collect();
            if case.direct {
                pinned.write(0, &leaves[0]);
                parts[0].address = pinned.all().address();
                parts[0].direct = true;
            }
            ring.ask(true);
            let ticket = put(&ring, &parts);
            drop(leaves);
            ticket.wait_source().unwrap();
            let lease = ticket.hand_over(&consumer).unwrap();
            let on_side = case.side && batch % 2 == 0;
            if on_side {
                side.wait_stream(&consumer).unwrap();
                lease.note(&side);
            }
            let stream = if on_side { &side } else { &consumer };
            for leaf in 0..case.leaves {
                found.look(stream, lease.leaf(leaf), batch * case.leaves + leaf);
            }
            held.push_back(lease);
            while held.len() > case.keeps {
                held.pop_front();
            }
        }
        // There is a slot for each leased batch and one for the next batch, unless the ring had as many anyway.
        if case.anew.is_none() {
            let slots = ring.statistics().slots;
            assert_eq!(slots, case.depth.max(case.keeps + 1), "{case:?}");
        }
        let all = found.all(&device, &[&consumer, &side]);
        drop(held);
        ring.close();
        all
    };
    (found, findings.report())
}

/// Makes a new ring in place of one that is dropped with an unclaimed batch, possibly before the claimed batches have
/// ended.
fn anew(spares: &Spares, case: &Case, ring: Ring) -> Ring {
    let unclaimed = vec![0xee; case.len(case.batches, 0)];
    ring.ask(true);
    drop(put(&ring, &[Leaf::of(&unclaimed)]));
    // The new ring exists before the other has left its stream, and so has another stream.
    let next = spares.ring(case.depth).unwrap();
    drop(ring);
    next
}

/// Runs a case with a prefetcher as it is written by hand: a stream, an event, two alternating buffers.
fn run_naive(case: &Case) -> (Vec<u64>, Report) {
    let device = open(case.schedule);
    let findings = device.checked(OnRace::Report);
    let upload = Stream::non_blocking(&device, "upload", 0).unwrap();
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let found = Found::new(&device, case);
    let bytes = case.len(case.batches, 0) as u64;
    let slots = [0, 1].map(|_| DeviceMemory::malloc(&device, bytes).unwrap());
    let sources: Vec<HostMemory> = (0..case.batches)
        .map(|batch| {
            let source = HostMemory::pinned(&device, case.len(batch, 0) as u64).unwrap();
            source.write(0, &case.batch(batch)[0]);
            source
        })
        .collect();
    for (batch, source) in sources.iter().enumerate() {
        let slot = slots[batch % 2].bytes(..source.size_bytes());
        let uploaded = Event::new(&device).unwrap();
        // SAFETY: nothing orders the copy after the use of the slot two batches ago. That is the mistake to be shown;
        // on the simulated GPU it gives wrong numbers and nothing worse.
        unsafe { upload.memcpy(source.all(), slot).unwrap() };
        upload.record(&uploaded).unwrap();
        consumer.wait(&uploaded).unwrap();
        found.look(&consumer, slot, batch);
    }
    let all = found.all(&device, &[&consumer, &upload]);
    (all, findings.report())
}

#[test]
fn every_batch_is_found_as_it_was_put_whatever_the_consumer_does() {
    for seed in 0..400 {
        println!("seed {seed}");
        let case = Case::of(seed);
        let (found, report) = run(&case);
        assert!(report.races.is_empty(), "seed {seed}, {case:?}: {report:?}");
        assert_eq!(found, case.expected(), "seed {seed}, {case:?}");
    }
}

#[test]
fn a_prefetcher_written_by_hand_corrupts_batches_on_the_same_schedules() {
    let mut wrong = 0;
    for seed in 0..40 {
        println!("seed {seed}");
        let case = Case {
            leaves: 1,
            ..Case::of(seed)
        };
        let (found, report) = run_naive(&case);
        assert!(!report.races.is_empty(), "seed {seed}, {case:?}");
        wrong += usize::from(found != case.expected());
    }
    assert!(wrong > 10, "only {wrong} runs of 40 showed it");
}

#[test]
fn a_feeder_on_a_thread_of_its_own_waits_for_slots_and_keeps_the_sequence() {
    const EPOCHS: usize = 3;
    let case = Case {
        batches: 20,
        leaves: 2,
        ..Case::of(1)
    };
    for schedule in [
        Schedule::Adversarial,
        Schedule::Seeded(3),
        Schedule::InOrder,
    ] {
        let device = open(schedule);
        let findings = device.checked(OnRace::Report);
        let ring = Arc::new(Ring::new(&device, 2).unwrap());
        let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
        for _ in 0..EPOCHS {
            let found = Found::new(&device, &case);
            let (tickets, received) = channel();
            let feeder = thread::spawn({
                let ring = Arc::clone(&ring);
                move || {
                    for batch in 0..case.batches {
                        let leaves = case.batch(batch);
                        let parts: Vec<Leaf> = leaves.iter().map(|leaf| Leaf::of(leaf)).collect();
                        tickets.send(put(&ring, &parts)).unwrap();
                    }
                }
            });
            for (batch, ticket) in received.into_iter().enumerate() {
                let lease = ticket.hand_over(&consumer).unwrap();
                for leaf in 0..2 {
                    found.look(&consumer, lease.leaf(leaf), 2 * batch + leaf);
                }
            }
            feeder.join().unwrap();
            assert_eq!(found.all(&device, &[&consumer]), case.expected());
        }
        let statistics = ring.statistics();
        assert_eq!((statistics.slots, statistics.grown), (2, 0));
        assert_eq!(statistics.batches, (EPOCHS * case.batches) as u64);
        let report = findings.report();
        assert!(report.races.is_empty(), "{report:?}");
    }
}

#[test]
fn pinned_memory_is_counted_and_kept_within_its_limit() {
    let device = open(Schedule::Adversarial);
    let findings = device.checked(OnRace::Report);
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    // Room for both pieces of memory, for one alone, and for no batch.
    for (most_bytes, expected) in [(8192, 2000), (1500, 1000), (999, 0)] {
        let ring = Ring::new(&device, 2).unwrap().limit_pinned(most_bytes);
        for batch in 0..6_u8 {
            let bytes = vec![batch; 1000];
            // SAFETY: the bytes exist during the call.
            let put = unsafe { ring.put(&[Leaf::of(&bytes)]) };
            if expected == 0 {
                let said = put.map(|_| ()).unwrap_err().to_string();
                assert!(said.contains("give more, smaller batches"), "{said}");
                continue;
            }
            let lease = put.unwrap().unwrap().hand_over(&consumer).unwrap();
            let mut read = vec![0; 1000];
            lease.read(0, &mut read).unwrap();
            assert_eq!(read, bytes);
        }
        assert_eq!(ring.statistics().pinned_bytes, expected);
        ring.close();
        assert_eq!(ring.statistics().pinned_bytes, 0);
    }
    // Memory for small batches does not prevent a large one.
    let ring = Ring::new(&device, 2).unwrap().limit_pinned(1500);
    for size in [400, 700, 1500, 300] {
        put(&ring, &[Leaf::of(&vec![1; size])]);
        assert!(ring.statistics().pinned_bytes <= 1500);
    }
    assert!(findings.report().races.is_empty(), "{}", findings.text());
}

#[test]
fn a_lease_may_end_on_any_thread_while_others_of_it_are_held() {
    let device = open(Schedule::Adversarial);
    let findings = device.checked(OnRace::Report);
    let ring = Ring::new(&device, 1).unwrap();
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let case = Case {
        batches: 6,
        leaves: 1,
        grows: false,
        ..Case::of(0)
    };
    let found = Found::new(&device, &case);
    for batch in 0..6 {
        let leaves = case.batch(batch);
        let ticket = put(&ring, &[Leaf::of(&leaves[0])]);
        let lease = Arc::new(ticket.hand_over(&consumer).unwrap());
        let other = Arc::clone(&lease);
        found.look(&consumer, lease.leaf(0), batch);
        drop(lease);
        assert_eq!(ring.statistics().slots, 1);
        thread::spawn(move || drop(other)).join().unwrap();
    }
    assert_eq!(found.all(&device, &[&consumer]), case.expected());
    assert!(findings.report().races.is_empty(), "{}", findings.text());
}

#[test]
fn equal_batches_take_a_slot_each_and_no_byte_more() {
    let room = |slots: u64| {
        let options = Options::new().memory_bytes(slots * (512 + 1024));
        let device = Device::open_with("sim:h200", &options).unwrap();
        let ring = Ring::new(&device, 3).unwrap();
        let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
        let (one, two) = (content(0, 0, 500), content(0, 1, 1024));
        for _ in 0..50 {
            // SAFETY: the vectors exist during the call.
            let ticket = unsafe { ring.put(&[Leaf::of(&one), Leaf::of(&two)]) }?;
            let lease = ticket.expect("the ring is open").hand_over(&consumer)?;
            assert_eq!(lease.leaf(1).address() % 512, 0);
        }
        Ok(ring.statistics().slots)
    };
    assert_eq!(room(3), Ok(3));
    assert!(matches!(room(2), Err(Error::OutOfMemory(_))));
}

#[test]
fn memory_goes_back_when_the_ring_is_closed_and_the_leases_have_ended() {
    let device = Device::open_with("sim:h200", &Options::new().memory_bytes(2048)).unwrap();
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let bytes = content(0, 0, 1024);
    for _ in 0..20 {
        let ring = Ring::new(&device, 2).unwrap();
        let one = put(&ring, &[Leaf::of(&bytes)])
            .hand_over(&consumer)
            .unwrap();
        let mut back = vec![0; 1024];
        one.read(0, &mut back).unwrap();
        drop(one);
        drop(put(&ring, &[Leaf::of(&bytes)]));
        ring.close();
        assert_eq!(back, bytes);
        // SAFETY: the vector exists during the call.
        assert!(unsafe { ring.put(&[Leaf::of(&bytes)]) }.unwrap().is_none());
    }
}

#[test]
fn memory_that_a_ring_leaves_is_taken_by_one_later_ring() {
    let device = open(Schedule::Adversarial);
    let findings = device.checked(OnRace::Report);
    let spares = Spares::new(&device);
    let stream = |name| Stream::non_blocking(&device, name, 0).unwrap();
    let (consumer, other) = (stream("consumer"), stream("other"));
    let lease_of = |ring: &Ring, value: u8| {
        let lease = put(ring, &[Leaf::of(&[value; 3000])]).hand_over(&consumer);
        lease.unwrap()
    };
    let first = spares.ring(2).unwrap();
    let (one, two) = (lease_of(&first, 1), lease_of(&first, 2));
    let (at_one, at_two) = (one.address().0, two.address().0);
    overwrite(&one, &consumer, 9);
    drop(one);
    first.close();
    // The leased batch is not included.
    assert_eq!(spares.bytes(), (3072, 6000));
    let (second, third) = (spares.ring(2).unwrap(), spares.ring(2).unwrap());
    let (three, four) = (lease_of(&second, 3), lease_of(&third, 4));
    assert_eq!(three.address().0, at_one);
    assert!(![at_one, at_two].contains(&four.address().0));
    assert_eq!(spares.bytes(), (0, 0));
    // The memory of the leased batch is added when the lease ends, whichever stream used it last.
    other.wait_stream(&consumer).unwrap();
    two.note(&other);
    overwrite(&two, &other, 9);
    drop((two, first));
    let five = lease_of(&third, 5);
    assert_eq!(five.address().0, at_two);
    for (lease, value) in [(three, 3), (four, 4), (five, 5)] {
        let mut back = vec![0; 3000];
        lease.read(0, &mut back).unwrap();
        assert_eq!(back, vec![value; 3000]);
    }
    assert!(findings.report().races.is_empty(), "{}", findings.text());
}

#[test]
fn rings_leave_no_more_than_is_kept_and_what_is_kept_goes_where_memory_is_short() {
    let large = Spares::MOST_BYTES / 4 + 512;
    let device = Device::open_with("sim:h200", &Options::new().memory_bytes(6 * large)).unwrap();
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let spares = Spares::new(&device);
    let fill = |depth: usize, bytes: &[u8]| {
        let ring = spares.ring(depth).unwrap();
        let lease = || put(&ring, &[Leaf::of(bytes)]).hand_over(&consumer).unwrap();
        let held: Vec<Lease> = (0..depth).map(|_| lease()).collect();
        drop(held);
        ring.close();
    };
    fill(Spares::MOST_SLOTS + 2, &[1; 512]);
    assert_eq!(spares.bytes(), (512 * Spares::MOST_SLOTS as u64, 1024));
    spares.clear();
    assert_eq!(spares.bytes(), (0, 0));

    let bytes = vec![2; large as usize];
    fill(4, &bytes);
    assert_eq!(spares.bytes(), (3 * large, 2 * large));
    // Six would fit, three are kept, and none is as large as what is wanted now.
    let ring = spares.ring(1).unwrap();
    let bytes = vec![3; 4 * large as usize];
    let lease = put(&ring, &[Leaf::of(&bytes)])
        .hand_over(&consumer)
        .unwrap();
    assert_eq!(lease.address().1, 4 * large);
    assert_eq!(spares.bytes().0, 0);
}

#[test]
fn a_batch_outlives_its_ring() {
    let device = open(Schedule::Adversarial);
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let bytes = content(7, 0, 3000);
    let ring = Ring::new(&device, 2).unwrap();
    let ticket = put(&ring, &[Leaf::of(&bytes), Leaf::of(&[])]);
    ring.close();
    drop(ring);
    let lease = ticket.hand_over(&consumer).unwrap();
    let mut back = vec![0; 3000];
    lease.read(0, &mut back).unwrap();
    assert_eq!(back, bytes);
    lease.read(1, &mut []).unwrap();
    assert!(matches!(lease.read(0, &mut []), Err(Error::Invalid { .. })));
}

/// Returns a ring whose only slot is leased, and a thread that waits for it and returns whether its wait was ended.
fn full(device: &Device, consumer: &Stream) -> (Arc<Ring>, Lease, thread::JoinHandle<bool>) {
    let ring = Arc::new(Ring::new(device, 1).unwrap());
    let held = put(&ring, &[Leaf::of(&[1; 64])])
        .hand_over(consumer)
        .unwrap();
    let waits = thread::spawn({
        let ring = Arc::clone(&ring);
        move || {
            // SAFETY: the array exists during the call.
            unsafe { ring.put(&[Leaf::of(&[2; 64])]) }
                .unwrap()
                .is_none()
        }
    });
    (ring, held, waits)
}

#[test]
fn closing_ends_a_wait_for_a_slot() {
    let device = open(Schedule::InOrder);
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let (ring, held, waits) = full(&device, &consumer);
    ring.close();
    assert!(waits.join().unwrap());
    drop(held);
}

#[test]
fn a_pause_ends_a_wait_for_a_slot_and_the_ring_continues_afterwards() {
    let device = open(Schedule::InOrder);
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let (ring, held, waits) = full(&device, &consumer);
    ring.pause(true);
    assert!(waits.join().unwrap());
    ring.pause(false);
    drop(held);
    let ticket = put(&ring, &[Leaf::of(&[3; 64])]);
    let mut back = [0; 64];
    ticket
        .hand_over(&consumer)
        .unwrap()
        .read(0, &mut back)
        .unwrap();
    assert_eq!(back, [3; 64]);
    assert!(ticket.is_source_free().unwrap());
}

#[test]
fn a_consumer_that_has_every_slot_and_asks_gets_another() {
    let device = open(Schedule::InOrder);
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let ring = Arc::new(Ring::new(&device, 2).unwrap());
    let (tickets, received) = channel();
    let feeder = thread::spawn({
        let ring = Arc::clone(&ring);
        move || (0..6u8).for_each(|n| tickets.send(put(&ring, &[Leaf::of(&[n; 64])])).unwrap())
    });
    let mut held = Vec::new();
    for _ in 0..6 {
        ring.ask(true);
        held.push(received.recv().unwrap().hand_over(&consumer).unwrap());
    }
    feeder.join().unwrap();
    for (n, lease) in held.iter().enumerate() {
        let mut back = [0; 64];
        lease.read(0, &mut back).unwrap();
        assert_eq!(back, [n as u8; 64]);
    }
    let statistics = ring.statistics();
    assert_eq!((statistics.slots, statistics.grown), (6, 4));
}

#[test]
fn a_copy_frees_the_slot_and_keeps_its_contents() {
    let device = open(Schedule::Adversarial);
    let findings = device.checked(OnRace::Report);
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let ring = Ring::new(&device, 1).unwrap();
    let batches: Vec<Vec<u8>> = (0..5).map(|n| content(n, 0, 700)).collect();
    let copies: Vec<Lease> = batches
        .iter()
        .map(|bytes| {
            let lease = put(&ring, &[Leaf::of(bytes)]).hand_over(&consumer).unwrap();
            lease.copied(&consumer).unwrap()
        })
        .collect();
    for (copy, bytes) in copies.iter().zip(&batches) {
        let mut back = vec![0; 700];
        copy.read(0, &mut back).unwrap();
        assert_eq!(&back, bytes);
    }
    drop(copies);
    assert_eq!(ring.statistics().slots, 1);
    assert!(findings.report().races.is_empty(), "{}", findings.text());
}

#[test]
fn a_slot_that_is_released_in_a_capture_is_not_reused() {
    let device = open(Schedule::InOrder);
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let ring = Ring::new(&device, 1).unwrap();
    let lease = put(&ring, &[Leaf::of(&[1; 64])])
        .hand_over(&consumer)
        .unwrap();
    let first = lease.address().0;
    consumer.begin_capture().unwrap();
    drop(lease);
    let ticket = put(&ring, &[Leaf::of(&[2; 64])]);
    let refused = ticket.hand_over(&consumer).unwrap_err();
    assert!(
        refused.to_string().contains("before the capture begins"),
        "{refused}"
    );
    consumer.end_capture().unwrap();
    let lease = ticket.hand_over(&consumer).unwrap();
    assert_ne!(lease.address().0, first);
    let statistics = ring.statistics();
    assert_eq!((statistics.slots, statistics.retired), (1, 1));
    assert!(
        statistics.warnings[0].contains("being captured"),
        "{statistics:?}"
    );
}

#[test]
fn a_batch_is_handed_over_once() {
    let device = open(Schedule::InOrder);
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let ring = Ring::new(&device, 1).unwrap();
    let ticket = put(&ring, &[Leaf::of(&[1; 64])]);
    let _lease = ticket.hand_over(&consumer).unwrap();
    assert!(matches!(
        ticket.hand_over(&consumer),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(Ring::new(&device, 0), Err(Error::Invalid { .. })));
}

#[test]
fn a_large_batch_is_packed_by_several_threads() {
    let device = open(Schedule::InOrder);
    let consumer = Stream::non_blocking(&device, "consumer", 0).unwrap();
    let ring = Ring::with_threads(&device, 2, 3).unwrap();
    for n in 0..3 {
        let (large, small) = (content(n, 0, 5_000_001), content(n, 1, 77));
        let ticket = put(&ring, &[Leaf::of(&large), Leaf::of(&small)]);
        let lease = ticket.hand_over(&consumer).unwrap();
        let (mut one, mut two) = (vec![0; large.len()], vec![0; 77]);
        lease.read(0, &mut one).unwrap();
        lease.read(1, &mut two).unwrap();
        assert!(one == large && two == small);
    }
}

// ------------------------------------------------------------------ copies and reads during captures

/// Overwrites the first bytes of a batch, after a delay.
fn overwrite(lease: &Lease, stream: &Stream, value: u8) {
    // SAFETY: the stream is recorded in the lease, and the test orders the other uses of the batch.
    unsafe { stream.memset(lease.leaf(0), value).unwrap() };
}

#[test]
fn a_copy_on_another_stream_is_ordered_after_the_upload_and_the_uses_of_the_batch() {
    let seeded = (0..40).map(Schedule::Seeded);
    for schedule in seeded.chain([Schedule::Adversarial]) {
        let device = open(schedule);
        let findings = device.checked(OnRace::Report);
        let stream = |name| Stream::non_blocking(&device, name, 0).unwrap();
        let (consumer, side, other) = (stream("consumer"), stream("side"), stream("other"));
        let ring = Ring::new(&device, 1).unwrap();
        let bytes = content(3, 0, 700);
        let lease = put(&ring, &[Leaf::of(&[1; 64]), Leaf::of(&bytes)])
            .hand_over(&consumer)
            .unwrap();
        side.wait_stream(&consumer).unwrap();
        lease.note(&side);
        overwrite(&lease, &side, 9);
        let copy = lease.copied(&other).unwrap();
        drop(lease);
        let (mut first, mut second) = ([0; 64], vec![0; 700]);
        copy.read(0, &mut first).unwrap();
        copy.read(1, &mut second).unwrap();
        assert_eq!(first, [9; 64], "{schedule}");
        assert_eq!(second, bytes, "{schedule}");
        assert!(findings.report().races.is_empty(), "{}", findings.text());
    }
}

#[test]
fn a_copy_is_refused_in_a_capture_which_continues() {
    let device = open(Schedule::InOrder);
    let stream = |name| Stream::non_blocking(&device, name, 0).unwrap();
    let (consumer, other) = (stream("consumer"), stream("other"));
    let ring = Ring::new(&device, 1).unwrap();
    let lease = put(&ring, &[Leaf::of(&[5; 64])])
        .hand_over(&consumer)
        .unwrap();
    let refused = |stream: &Stream| {
        let refused = lease.copied(stream).unwrap_err().to_string();
        assert!(refused.contains("the capture has ended"), "{refused}");
    };
    // The stream of the copy, and one that uses the batch.
    for captured in [&other, &consumer] {
        captured.begin_capture().unwrap();
        refused(&other);
        captured.end_capture().unwrap();
        let mut back = [0; 64];
        lease.copied(&other).unwrap().read(0, &mut back).unwrap();
        assert_eq!(back, [5; 64]);
    }
    drop(lease);
    let statistics = ring.statistics();
    assert_eq!((statistics.slots, statistics.retired), (1, 0));
}

/// The driver would refuse calls in the legacy stream, and invalidate the capture.
#[test]
fn a_batch_of_the_legacy_stream_is_neither_taken_nor_read_nor_ended_beside_a_capture() {
    let device = open(Schedule::InOrder);
    let captured = Stream::blocking(&device, "captured").unwrap();
    let legacy = Stream::legacy(&device).unwrap();
    let ring = Ring::new(&device, 2).unwrap();
    let lease = put(&ring, &[Leaf::of(&[5; 64])])
        .hand_over(&legacy)
        .unwrap();
    let late = put(&ring, &[Leaf::of(&[6; 64])]);
    let mut back = [0; 64];
    captured.begin_capture().unwrap();
    assert!(legacy.is_captured());
    let refused = lease.read(0, &mut back).unwrap_err().to_string();
    assert!(
        refused.contains("legacy stream during a capture"),
        "{refused}"
    );
    let refused = late.hand_over(&legacy).unwrap_err().to_string();
    assert!(
        refused.contains("legacy stream during a capture"),
        "{refused}"
    );
    drop(lease);
    captured.end_capture().unwrap();
    late.hand_over(&legacy).unwrap().read(0, &mut back).unwrap();
    assert_eq!(back, [6; 64]);
    let warning = &ring.statistics().warnings[0];
    assert!(
        warning.contains("legacy stream during a capture"),
        "{warning}"
    );
}

#[test]
fn a_batch_whose_stream_is_being_captured_is_not_read_and_others_are() {
    let device = open(Schedule::InOrder);
    let stream = |name| Stream::non_blocking(&device, name, 0).unwrap();
    let (a, b) = (stream("a"), stream("b"));
    let ring = Ring::new(&device, 2).unwrap();
    let of_a = put(&ring, &[Leaf::of(&[1; 64])]).hand_over(&a).unwrap();
    let of_b = put(&ring, &[Leaf::of(&[2; 64])]).hand_over(&b).unwrap();
    let mut back = [0; 64];
    a.begin_capture().unwrap();
    let refused = of_a.read(0, &mut back).unwrap_err().to_string();
    assert!(refused.contains("the capture has ended"), "{refused}");
    of_b.read(0, &mut back).unwrap();
    assert_eq!(back, [2; 64]);
    a.end_capture().unwrap();
    of_a.read(0, &mut back).unwrap();
    assert_eq!(back, [1; 64]);
    drop((of_a, of_b));
    let statistics = ring.statistics();
    assert_eq!((statistics.slots, statistics.retired), (2, 0));
}
