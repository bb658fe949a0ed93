//! Rings of batches: what a consumer that lags behind finds, and the effect of a capture on them.

use std::sync::mpsc;
use std::{panic, thread};

use sidestream::device::Device;
use sidestream::error::Error;
use sidestream::explicit::{DeviceMemory, Stream};
use sidestream::op::StreamKind;
use sidestream::prefetch::{Leaf, Lease, Ring, Ticket};

use crate::kernels::{HOLD_NS, expect_pattern, patterned, spin};
use crate::target::{Scenario, Target, one};
use crate::untracked::{BYTES, LEN, expect_device, pinned, stream};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(a_consumer_that_lags_behind_finds_every_batch),
        one(pinned_memory_is_read_in_place_and_may_be_written_again_afterwards),
        one(a_released_batch_is_kept_for_the_streams_that_were_recorded),
        one(a_ring_works_beside_a_capture_of_another_thread),
        one(memory_freed_on_another_thread_leaves_captures_alone),
        one(a_batch_released_in_a_capture_of_its_owner_keeps_its_memory),
        one(a_copy_is_ordered_after_the_uses_of_its_batch),
        one(copies_and_reads_leave_captures_alone),
        one(a_ring_works_on_default_streams),
    ]
}

fn put(ring: &Ring, leaves: &[Leaf]) -> Ticket {
    // SAFETY: the memory of leaves lives until the call has completed; that of direct leaves until `wait_source` has.
    unsafe { ring.put(leaves) }
        .unwrap()
        .expect("the ring is open")
}

/// Puts a batch of one part into the ring.
fn put_pattern(ring: &Ring, seed: u32) -> Ticket {
    let values = patterned(LEN, seed).into_iter();
    let bytes: Vec<u8> = values.flat_map(u32::to_ne_bytes).collect();
    put(ring, &[Leaf::of(&bytes)])
}

#[track_caller]
fn expect(lease: &Lease, seed: u32) {
    let mut bytes = vec![0; 4 * LEN];
    lease.read(0, &mut bytes).unwrap();
    let words = bytes.as_chunks::<4>().0.iter();
    let found: Vec<u32> = words.map(|word| u32::from_ne_bytes(*word)).collect();
    expect_pattern(&found, seed);
}

/// Copies a batch on a stream, after a hold.
fn copied_late(device: &Device, stream: &Stream, lease: &Lease) -> DeviceMemory {
    let to = DeviceMemory::malloc(device, BYTES).unwrap();
    spin(HOLD_NS).hold_explicit(stream);
    // SAFETY: the stream waits for the upload, and is recorded in the lease. The target is not freed until the stream
    // was waited for.
    unsafe { stream.memcpy(lease.leaf(0), to.all()) }.unwrap();
    to
}

fn a_consumer_that_lags_behind_finds_every_batch(target: Target) {
    let device = target.open();
    let consumer = stream(&device, "consumer");
    let ring = Ring::new(&device, 2).unwrap();
    let found: Vec<DeviceMemory> = (0..8)
        .map(|seed| {
            let lease = put_pattern(&ring, seed).hand_over(&consumer).unwrap();
            copied_late(&device, &consumer, &lease)
        })
        .collect();
    assert_eq!(ring.statistics().slots, 2);
    for (seed, memory) in found.iter().enumerate() {
        expect_device(&device, memory, seed as u32);
    }
    ring.close();
}

fn pinned_memory_is_read_in_place_and_may_be_written_again_afterwards(target: Target) {
    let device = target.open();
    let consumer = stream(&device, "consumer");
    let ring = Ring::new(&device, 3).unwrap();
    let memory = pinned(&device, 0);
    let leases: Vec<Lease> = (0..3)
        .map(|seed| {
            memory.write(0, &patterned(LEN, seed));
            let small = [seed as u8; 100];
            let direct = Leaf {
                address: memory.all().address(),
                bytes: BYTES,
                direct: true,
            };
            let ticket = put(&ring, &[direct, Leaf::of(&small)]);
            assert!(ticket.is_direct());
            ticket.wait_source().unwrap();
            assert!(ticket.is_source_free().unwrap());
            ticket.hand_over(&consumer).unwrap()
        })
        .collect();
    for (seed, lease) in leases.iter().enumerate() {
        expect(lease, seed as u32);
        let mut small = [0; 100];
        lease.read(1, &mut small).unwrap();
        assert_eq!(small, [seed as u8; 100]);
    }
    assert_eq!(ring.statistics().direct_bytes, 3 * BYTES);
    drop(leases);
    ring.close();
}

fn a_released_batch_is_kept_for_the_streams_that_were_recorded(target: Target) {
    let device = target.open();
    let (consumer, side) = (stream(&device, "consumer"), stream(&device, "side"));
    let ring = Ring::new(&device, 1).unwrap();
    let lease = put_pattern(&ring, 1).hand_over(&consumer).unwrap();
    side.wait_stream(&consumer).unwrap();
    lease.note(&side);
    let found = copied_late(&device, &side, &lease);
    thread::spawn(move || drop(lease)).join().unwrap();
    let next = put_pattern(&ring, 2).hand_over(&consumer).unwrap();
    assert_eq!(ring.statistics().slots, 1);
    expect_device(&device, &found, 1);
    expect(&next, 2);
    drop(next);
    ring.close();
}

fn a_ring_works_beside_a_capture_of_another_thread(target: Target) {
    let device = target.open();
    let captured = stream(&device, "captured");
    captured.begin_capture().unwrap();
    spin(1000).hold_explicit(&captured);
    // The ring's memory is freed when the capture has ended: to free memory, drivers wait for the device.
    let ring = thread::scope(|scope| {
        let feeder = scope.spawn(|| {
            let consumer = stream(&device, "consumer");
            let ring = Ring::new(&device, 2).unwrap();
            for seed in 0..6 {
                let lease = put_pattern(&ring, seed).hand_over(&consumer).unwrap();
                expect(&lease, seed);
            }
            ring
        });
        feeder.join().unwrap()
    });
    let graph = captured.end_capture().unwrap();
    // SAFETY: the graph touches no memory.
    unsafe { captured.launch_graph(&graph) }.unwrap();
    captured.synchronize().unwrap();
    ring.close();
}

fn memory_freed_on_another_thread_leaves_captures_alone(target: Target) {
    /// Tells that the thread that drops values has dropped all that it was given before.
    struct Told(mpsc::Sender<()>);
    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let device = &target.open();
    let captured = stream(device, "captured");
    captured.begin_capture().unwrap();
    spin(1000).hold_explicit(&captured);
    let ring = Ring::new(device, 1).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let consumer = stream(device, "consumer");
            let lease = put_pattern(&ring, 1).hand_over(&consumer).unwrap();
            drop(lease.copied(&consumer).unwrap());
            // A machine that ends, perhaps on that thread.
            let last = Ring::new(&target.open(), 1).unwrap();
            drop(put_pattern(&last, 2));
            drop(last);
            let (sender, told) = mpsc::channel();
            let payload = Box::new(Told(sender));
            // SAFETY: the function touches no memory.
            unsafe { consumer.host_func(&[], &[], move || panic::resume_unwind(payload)) }.unwrap();
            expect(&lease, 1);
            told.recv().unwrap();
        });
    });
    let graph = captured.end_capture().unwrap();
    // SAFETY: the graph touches no memory.
    unsafe { captured.launch_graph(&graph) }.unwrap();
    captured.synchronize().unwrap();
    ring.close();
}

/// Returns the stream as one from PyTorch: the ring knows only its handle.
fn adopted(device: &Device, own: &Stream) -> Stream {
    own.as_raw().map_or_else(
        || own.clone(),
        // SAFETY: `own` is a stream of this device and kind, and lives until the end of the scenario.
        |raw| unsafe { Stream::from_raw(device, raw, StreamKind::NonBlocking, "adopted").unwrap() },
    )
}

fn a_copy_is_ordered_after_the_uses_of_its_batch(target: Target) {
    let device = target.open();
    let (consumer, other) = (stream(&device, "consumer"), stream(&device, "other"));
    let ring = Ring::new(&device, 1).unwrap();
    let lease = put_pattern(&ring, 1).hand_over(&consumer).unwrap();
    spin(HOLD_NS).hold_explicit(&consumer);
    // SAFETY: the stream is that of the lease, and everything else that uses the batch waits for it.
    unsafe { consumer.memset(lease.leaf(0), 7) }.unwrap();
    let copy = lease.copied(&other).unwrap();
    drop(lease);
    let mut bytes = vec![0; 4 * LEN];
    copy.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 7));
    drop(copy);
    ring.close();
}

fn copies_and_reads_leave_captures_alone(target: Target) {
    let device = target.open();
    let (own, other) = (stream(&device, "own"), stream(&device, "other"));
    let consumer = adopted(&device, &own);
    let ring = Ring::new(&device, 2).unwrap();
    let lease = put_pattern(&ring, 1).hand_over(&consumer).unwrap();
    let beside = put_pattern(&ring, 2).hand_over(&other).unwrap();
    own.begin_capture().unwrap();
    let refused = [
        lease.copied(&consumer).err(),
        lease.copied(&other).err(),
        beside.copied(&consumer).err(),
        lease.read(0, &mut vec![0; 4 * LEN]).err(),
    ];
    for refused in refused {
        assert!(
            matches!(refused, Some(Error::Invalid { .. })),
            "{refused:?}"
        );
    }
    expect(&beside, 2);
    own.end_capture().unwrap();
    expect(&lease, 1);
    let copy = lease.copied(&other).unwrap();
    expect(&copy, 1);
    drop((lease, beside, copy));
    let statistics = ring.statistics();
    assert_eq!((statistics.slots, statistics.retired), (2, 0));
    ring.close();
}

fn a_batch_released_in_a_capture_of_its_owner_keeps_its_memory(target: Target) {
    let device = target.open();
    let own = stream(&device, "own");
    let consumer = adopted(&device, &own);
    let ring = Ring::new(&device, 1).unwrap();
    let lease = put_pattern(&ring, 1).hand_over(&consumer).unwrap();
    own.begin_capture().unwrap();
    drop(lease);
    let ticket = put_pattern(&ring, 2);
    let refused = ticket.hand_over(&consumer);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    own.end_capture().unwrap();
    expect(&ticket.hand_over(&consumer).unwrap(), 2);
    let statistics = ring.statistics();
    assert_eq!((statistics.slots, statistics.retired), (1, 1));
    ring.close();
}

fn a_ring_works_on_default_streams(target: Target) {
    let device = target.open();
    let ring = Ring::new(&device, 2).unwrap();
    for seed in 0..4 {
        let consumer = match seed % 2 {
            0 => Stream::legacy(&device).unwrap(),
            _ => Stream::per_thread(&device).unwrap(),
        };
        let lease = put_pattern(&ring, seed).hand_over(&consumer).unwrap();
        let found = copied_late(&device, &consumer, &lease);
        drop(lease);
        expect_device(&device, &found, seed);
    }
    ring.close();
}
