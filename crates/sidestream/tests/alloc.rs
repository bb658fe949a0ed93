//! The contract of the cache: the order of its choices, what it requests when memory is short, and its statistics.

pub mod machine;

use machine::{Held, Last, Machine};
use sidestream::alloc::{Cache, Growth, Need, Rules, Spare, State};
use sidestream::backend::Address;
use sidestream::error::OutOfMemory;
use sidestream::op::{DeviceId, StreamId};

const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);
const MB: u64 = 1 << 20;

/// A cache and its machine. No work on the machine completes unless it is waited for.
struct Desk {
    cache: Cache<Last>,
    machine: Machine,
}

impl Desk {
    fn new(rules: Rules) -> Desk {
        Desk {
            cache: Cache::new(rules),
            machine: Machine::new(rules, 2, 0),
        }
    }

    fn device(limit_bytes: u64) -> Desk {
        Desk::new(Rules::device(DeviceId(0), limit_bytes))
    }

    #[track_caller]
    fn take(&mut self, bytes: u64, home: StreamId) -> Held {
        let held = self.machine.alloc(&mut self.cache, bytes, Some(home));
        held.expect("there is room")
    }

    /// Frees a piece after its home stream has used it.
    fn free(&mut self, held: Held) {
        let home = held.home.expect("a stream");
        self.machine.free(&mut self.cache, held, &[home]);
    }
}

fn at(held: &Held) -> Address {
    held.piece.address
}

#[test]
fn pieces_of_the_own_stream_come_first_and_nothing_is_queried() {
    let mut desk = Desk::device(u64::MAX);
    let (own, other) = (desk.take(2 * MB, A), desk.take(2 * MB, B));
    let (own_at, other_at) = (at(&own), at(&other));
    desk.free(other);
    desk.machine.finish_all();
    desk.free(own);
    let next = desk.take(2 * MB, A);
    assert_eq!((at(&next), next.waits), (own_at, false));
    assert_eq!(desk.machine.asks, 0);
    // Without a free piece of its own, the stream gets one whose uses on another stream are complete.
    let next = desk.take(2 * MB, A);
    assert_eq!((at(&next), next.waits), (other_at, false));
    assert_eq!(desk.machine.asks, 1);
}

#[test]
fn memory_with_complete_uses_comes_before_new_memory() {
    let mut desk = Desk::device(u64::MAX);
    let first = desk.take(4 * MB, A);
    desk.free(first);
    desk.machine.finish_all();
    desk.take(4 * MB, B);
    let s = desk.cache.statistics();
    assert_eq!((s.reserved_bytes, s.waits_inserted), (4 * MB, 0));
}

#[test]
fn new_memory_comes_before_a_wait_and_a_wait_before_an_error() {
    let mut desk = Desk::device(8 * MB);
    let first = desk.take(4 * MB, A);
    let first_at = at(&first);
    desk.free(first);
    let second = desk.take(4 * MB, B);
    assert_ne!(at(&second), first_at, "stream A may still use the first");
    let third = desk.take(4 * MB, B);
    assert_eq!((at(&third), third.waits), (first_at, true));
    assert_eq!(desk.cache.statistics().waits_inserted, 1);
    let full = desk.machine.alloc(&mut desk.cache, 512, Some(B)).err();
    let sizes = OutOfMemory {
        device: Some(DeviceId(0)),
        asked_bytes: 512,
        allocated_bytes: 8 * MB,
        reserved_bytes: 8 * MB,
        limit_bytes: 8 * MB,
    };
    assert_eq!(full, Some(sizes));
}

#[test]
fn a_tenant_that_never_used_its_piece_hands_on_the_earlier_uses() {
    let mut desk = Desk::device(2 * MB);
    let first = desk.take(2 * MB, A);
    desk.free(first);
    let unused = desk.take(2 * MB, B);
    let carried = unused.carried.clone();
    assert_eq!(carried, Last(vec![(A, 1)]));
    desk.machine.free(&mut desk.cache, unused, &[]);
    assert_eq!(desk.take(2 * MB, A).carried, carried);
}

#[test]
fn freed_neighbours_are_one_piece_for_a_larger_request() {
    let mut desk = Desk::device(8 * MB);
    let four: Vec<Held> = (0..4).map(|_| desk.take(2 * MB, A)).collect();
    let start = at(&four[0]);
    four.into_iter().for_each(|held| desk.free(held));
    assert_eq!(at(&desk.take(8 * MB, A)), start);
}

#[test]
fn a_free_tail_is_filled_up_by_no_more_than_what_is_missing() {
    let mut desk = Desk::device(u64::MAX);
    let tail = desk.take(4 * MB, A);
    let start = at(&tail);
    desk.free(tail);
    assert_eq!(at(&desk.take(7 * MB, A)), start);
    assert_eq!(desk.cache.statistics().reserved_bytes, 8 * MB);
}

#[test]
fn segments_that_do_not_join_hold_no_piece_together() {
    let mut desk = Desk::new(Rules::pinned(u64::MAX));
    let mut cache: Cache<Last> = Cache::new(Rules::pinned(u64::MAX));
    cache.add_segment(Address(2 * MB), 2 * MB);
    cache.add_segment(Address(4 * MB), 2 * MB);
    let need = cache.alloc(3 * MB, None, |_| State::Over).map(|_| ());
    let growth = Growth {
        at: None,
        bytes: 4 * MB,
    };
    assert_eq!(need, Err(Need::Segment(growth)));
    // A small piece is aligned to 64 bytes, and the next one follows directly.
    let mut take = |bytes| desk.machine.alloc(&mut desk.cache, bytes, None);
    let (one, two) = (take(65).expect("room"), take(1).expect("room"));
    assert_eq!(at(&two).0 - at(&one).0, 128);
}

#[test]
fn the_host_waits_for_pinned_memory_where_no_stream_can() {
    let mut desk = Desk::new(Rules::pinned(2 * MB));
    let first = desk.machine.alloc(&mut desk.cache, 2 * MB, None);
    let first = first.expect("there is room");
    desk.machine.free(&mut desk.cache, first, &[A]);
    let second = desk.machine.alloc(&mut desk.cache, 2 * MB, None);
    assert!(second.is_ok_and(|held| !held.waits));
    assert_eq!(desk.machine.host_waits, 1);
}

#[test]
fn when_memory_is_short_idle_segments_are_released_for_one_that_fits() {
    let mut desk = Desk::device(8 * MB);
    let three: Vec<Held> = [2 * MB, 2 * MB, 4 * MB].map(|b| desk.take(b, A)).into();
    let mut three = three.into_iter();
    let mut next = || three.next().expect("three");
    let (first, kept, last) = (next(), next(), next());
    desk.free(first);
    desk.free(last);
    // Six are free, two here and four there.
    let large = desk.take(6 * MB, A);
    assert_eq!(desk.cache.statistics().reserved_bytes, 8 * MB);
    assert!(desk.cache.statistics().released_bytes >= 2 * MB);
    assert_ne!(at(&large), at(&kept));
}

#[test]
fn a_driver_without_memory_is_not_asked_for_as_much_again() {
    let mut cache: Cache<Last> = Cache::new(Rules::device(DeviceId(0), u64::MAX));
    let ask = |bytes, cache: &mut Cache<Last>| {
        let need = cache.alloc(bytes, Some(A), |_| State::Pending);
        need.map(|_| ()).expect_err("there is nothing")
    };
    let growth = |bytes| Need::Segment(Growth { at: None, bytes });
    assert_eq!(ask(8 * MB, &mut cache), growth(8 * MB));
    cache.segment_refused(8 * MB);
    assert!(matches!(ask(8 * MB, &mut cache), Need::OutOfMemory(_)));
    // An error was returned; a later request may succeed.
    assert_eq!(ask(8 * MB, &mut cache), growth(8 * MB));
    cache.segment_refused(8 * MB);
    assert_eq!(ask(4 * MB, &mut cache), growth(4 * MB));
}

#[test]
fn a_sparing_cache_waits_rather_than_grows() {
    let rules = Rules {
        spare: Some(Spare {
            percent: 10,
            waits: true,
        }),
        ..Rules::device(DeviceId(0), u64::MAX)
    };
    let mut desk = Desk::new(rules);
    let first = desk.take(8 * MB, A);
    desk.free(first);
    assert!(desk.take(8 * MB, B).waits);
    assert_eq!(desk.cache.statistics().reserved_bytes, 8 * MB);
    // If no wait helps, the cache grows after all.
    desk.take(8 * MB, B);
    assert_eq!(desk.cache.statistics().reserved_bytes, 16 * MB);
}

#[test]
fn a_freed_piece_stays_active_until_its_uses_are_seen_complete() {
    let mut desk = Desk::device(u64::MAX);
    let held = desk.take(3 * MB, A);
    let active = |desk: &Desk| desk.cache.statistics().active_bytes;
    assert_eq!(active(&desk), 3 * MB);
    desk.free(held);
    assert_eq!(active(&desk), 3 * MB);
    desk.cache.look(|uses| desk.machine.is_complete(uses));
    assert_eq!(active(&desk), 3 * MB, "it is not complete");
    desk.machine.finish_all();
    desk.cache.look(|uses| desk.machine.is_complete(uses));
    let s = desk.cache.statistics();
    assert_eq!((s.active_bytes, s.active_peak_bytes), (0, 3 * MB));
    assert_eq!((s.allocated_bytes, s.allocated_peak_bytes), (0, 3 * MB));
}

#[test]
#[should_panic(expected = "a piece is freed in the cache that allocated it")]
fn a_piece_of_another_cache_is_not_taken_back() {
    let (mut one, mut other) = (Desk::device(u64::MAX), Desk::device(u64::MAX));
    let piece = one.take(MB, A).piece;
    other.cache.free(piece, Last::default());
}

#[test]
fn sizes_that_no_machine_has_are_an_error() {
    let mut desk = Desk::device(u64::MAX);
    desk.machine.memory_bytes = 1 << 40;
    for bytes in [u64::MAX, u64::MAX - 511, 1 << 63] {
        let full = desk.machine.alloc(&mut desk.cache, bytes, Some(A)).err();
        assert_eq!(full.map(|sizes| sizes.asked_bytes), Some(bytes));
    }
}
