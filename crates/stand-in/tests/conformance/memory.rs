//! Memory: where it comes from, when it may be reused, and what copies and fills write.

use sidestream::buffer::{DeviceBuf, Pinned, Pod};
use sidestream::error::Error;
use sidestream::explicit::{self, DeviceMemory, HostMemory};
use sidestream::stream::{Rows, Stream};

use crate::drawn::Random;
use crate::kernels::{
    HOLD_NS, check, expect_pattern, fill, filled, pattern, patterned, spin, values,
};
use crate::target::{Scenario, Target, one};
use crate::untracked::{self, BYTES};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(memory_that_is_dropped_is_used_again_and_not_too_early),
        one(zeroed_memory_is_zero_after_any_owner),
        one(memory_that_does_not_fit_is_refused_with_sizes_and_nothing_breaks),
        one(more_than_the_device_has_is_refused_with_sizes),
        one(pinned_memory_that_does_not_fit_is_refused_with_sizes),
        one(an_emptied_cache_has_no_memory_and_fills_again),
        one(pinned_memory_goes_both_ways_at_every_size),
        one(pinned_memory_is_used_again_and_not_too_early),
        one(slices_are_free_when_their_copies_return),
        one(many_small_pieces_go_up_at_once),
        one(pieces_of_odd_lengths_begin_anywhere),
        one(an_upload_of_no_pieces_succeeds),
        one(pieces_are_copied_in_stream_order_and_come_back),
        one(rows_are_copied_with_their_pitches),
        one(more_rows_than_are_tracked_one_by_one_are_copied),
        one(fills_of_one_two_and_four_bytes_write_what_they_name),
        one(copies_within_a_device_move_ranges),
        one(buffers_without_values_are_valid),
        one(blocking_copies_are_as_complete_as_they_promise),
        one(asynchronous_copies_of_pageable_memory_are_complete_with_their_stream),
        one(a_long_loop_near_the_limit_loses_nothing_and_ends_in_an_error),
    ]
}

const LEN: usize = 4096;
const MIB: u64 = 1 << 20;

fn memory_that_is_dropped_is_used_again_and_not_too_early(target: Target) {
    let device = target.open();
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let mut errors = b.alloc_zeroed::<u32>(1).unwrap();
    spin(HOLD_NS).hold(&b);
    for seed in 0..50 {
        let mut x = a.alloc::<u32>(LEN).unwrap();
        fill(&a, x.view_mut(), seed);
        check(&b, x.view(), seed, &mut errors);
        drop(x);
    }
    assert_eq!(values(&b, errors.view()), [0]);
    // On one stream the same memory is reused.
    a.synchronize().unwrap();
    let before = device.statistics();
    for seed in 0..50 {
        let mut x = a.alloc::<u32>(LEN).unwrap();
        fill(&a, x.view_mut(), seed);
    }
    let after = device.statistics();
    assert_eq!(after.allocations - before.allocations, 50);
    assert_eq!(after.reserved_bytes, before.reserved_bytes);
    assert_eq!(after.waits_inserted, before.waits_inserted);
}

fn zeroed_memory_is_zero_after_any_owner(target: Target) {
    let device = target.open();
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    for seed in 0..20 {
        let mut dirty = a.alloc::<u32>(LEN).unwrap();
        fill(&a, dirty.view_mut(), seed);
        drop(dirty);
        let stream = if seed % 2 == 0 { &a } else { &b };
        let zeros = stream.alloc_zeroed::<u32>(LEN).unwrap();
        assert!(values(stream, zeros.view()).iter().all(|&value| value == 0));
    }
}

/// Checks for an error that names these sizes.
#[track_caller]
fn expect_out_of_memory<T>(result: Result<T, Error>, asked: u64, limit: u64, held: u64) {
    let Err(error) = result else {
        panic!("{asked} bytes were allocated");
    };
    let text = error.to_string();
    let Error::OutOfMemory(memory) = error else {
        panic!("{text}");
    };
    assert_eq!(memory.asked_bytes, asked, "{text}");
    assert_eq!(memory.limit_bytes, limit, "{text}");
    assert!(memory.allocated_bytes >= held, "{text}");
    assert!(memory.reserved_bytes <= limit, "{text}");
    for size in [
        memory.asked_bytes,
        memory.allocated_bytes,
        memory.reserved_bytes,
        limit,
    ] {
        assert!(text.contains(&size.to_string()), "{size} in {text}");
    }
}

fn memory_that_does_not_fit_is_refused_with_sizes_and_nothing_breaks(target: Target) {
    let limit = 16 * MIB;
    let device = target.open_with(&target.options().memory_bytes(limit));
    let stream = device.stream("s").unwrap();
    let held = filled(&stream, 10 * MIB as usize / 4, 7);
    for _ in 0..3 {
        let refused = stream.alloc::<u8>(7 * MIB as usize);
        expect_out_of_memory(refused, 7 * MIB, limit, 10 * MIB);
    }
    expect_pattern(&values(&stream, held.slice(..LEN)), 7);
    let small = filled(&stream, LEN, 8);
    expect_pattern(&values(&stream, small.view()), 8);
    drop((held, small));
    let mut all = stream.alloc_zeroed::<u32>(limit as usize / 4).unwrap();
    fill(&stream, all.slice_mut(limit as usize / 4 - LEN..), 9);
    expect_pattern(&values(&stream, all.slice(limit as usize / 4 - LEN..)), 9);
    assert_eq!(values(&stream, all.slice(..1)), [0]);
}

fn more_than_the_device_has_is_refused_with_sizes(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let has = device.caps().memory_bytes;
    let refused = stream.alloc::<u8>(has as usize + MIB as usize);
    expect_out_of_memory(refused, has + MIB, has, 0);
    let refused = DeviceMemory::malloc(&device, has + MIB);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    let absurd = stream.alloc::<u64>(usize::MAX / 4);
    assert!(matches!(absurd, Err(Error::Invalid { .. })), "{absurd:?}");
    let small = filled(&stream, LEN, 8);
    expect_pattern(&values(&stream, small.view()), 8);
}

fn pinned_memory_that_does_not_fit_is_refused_with_sizes(target: Target) {
    let limit = 4 * MIB;
    let device = target.open_with(&target.options().pinned_bytes(limit));
    let stream = device.stream("s").unwrap();
    let held = device.pinned::<u8>(3 * MIB as usize).unwrap();
    let refused = device.pinned::<u8>(2 * MIB as usize);
    expect_out_of_memory(refused, 2 * MIB, limit, 3 * MIB);
    drop(held);
    let mut host = device.pinned::<u32>(limit as usize / 4).unwrap();
    host.fill(5);
    let mut x = stream.alloc::<u32>(host.len()).unwrap();
    let host = stream
        .upload(host, x.view_mut())
        .unwrap()
        .synchronize()
        .unwrap();
    assert_eq!(host[0], 5);
}

fn an_emptied_cache_has_no_memory_and_fills_again(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut x = filled(&stream, LEN, 1);
    drop(
        (0..20)
            .map(|seed| filled(&stream, LEN, seed))
            .collect::<Vec<_>>(),
    );
    spin(HOLD_NS).hold(&stream);
    fill(&stream, x.view_mut(), 2);
    drop(x);
    device.empty_cache().unwrap();
    assert_eq!(device.statistics().reserved_bytes, 0);
    assert_eq!(device.pinned_statistics().reserved_bytes, 0);
    let x = filled(&stream, LEN, 3);
    expect_pattern(&values(&stream, x.view()), 3);
}

fn pinned_memory_goes_both_ways_at_every_size(target: Target) {
    let device = target.open();
    let (up, down) = (device.stream("up").unwrap(), device.stream("down").unwrap());
    for len in [1, 2, 3, 63, 64, 65, 4095, 4096, 4097, 100_003, 1 << 20] {
        let mut host = device.pinned::<u32>(len).unwrap();
        host.copy_from_slice(&patterned(len, len as u32));
        let mut x = up.alloc::<u32>(len).unwrap();
        let sent = up.upload(host, x.view_mut()).unwrap();
        let back = down
            .download(x.view(), device.pinned(len).unwrap())
            .unwrap();
        expect_pattern(&back.synchronize().unwrap(), len as u32);
        expect_pattern(&sent.synchronize().unwrap(), len as u32);
    }
    // Bytes at arbitrary offsets.
    let mut host = device.pinned::<u8>(1001).unwrap();
    host.iter_mut()
        .enumerate()
        .for_each(|(at, byte)| *byte = at as u8);
    let mut x = up.alloc_zeroed::<u8>(1009).unwrap();
    let sent = up.upload(host, x.slice_mut(3..1004)).unwrap();
    let back = down
        .download(x.slice(1..1007), device.pinned(1006).unwrap())
        .unwrap();
    let back = back.synchronize().unwrap();
    assert_eq!(back[..2], [0, 0]);
    assert!(back[2..1003].iter().eq(sent.synchronize().unwrap().iter()));
    assert_eq!(back[1003..], [0, 0, 0]);
}

fn pinned_memory_is_used_again_and_not_too_early(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut all: Vec<DeviceBuf<u32>> = Vec::new();
    spin(HOLD_NS).hold(&stream);
    for seed in 0..50 {
        let mut host = device.pinned::<u32>(LEN).unwrap();
        host.copy_from_slice(&patterned(LEN, seed));
        let mut x = stream.alloc::<u32>(LEN).unwrap();
        // The memory goes to its pool while the copy waits for the hold.
        drop(stream.upload(host, x.view_mut()).unwrap());
        all.push(x);
    }
    for (seed, x) in all.iter().enumerate() {
        expect_pattern(&values(&stream, x.view()), seed as u32);
    }
}

fn slices_are_free_when_their_copies_return(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    for len in [1, 7, LEN, 1 << 18] {
        let mut host = patterned(len, 1);
        let mut x = stream.alloc::<u32>(len).unwrap();
        spin(HOLD_NS).hold(&stream);
        stream.memcpy_h2d(&host, x.view_mut()).unwrap();
        host.fill(0);
        stream.memcpy_d2h(x.view(), &mut host).unwrap();
        expect_pattern(&host, 1);
    }
    let mut x = stream.alloc::<u32>(LEN).unwrap();
    let short = stream.memcpy_h2d(&[1; 3], x.view_mut());
    assert!(matches!(short, Err(Error::Invalid { .. })), "{short:?}");
}

fn many_small_pieces_go_up_at_once(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    for seed in 0..3 {
        let mut random = Random(seed);
        // Every alignment on both sides, empty pieces and pieces of many words.
        let pieces = (0..200).map(|_| {
            let most = 1 << random.below(13);
            let mut piece = device.pinned::<u8>(random.below(most)).unwrap();
            piece
                .iter_mut()
                .for_each(|byte| *byte = random.next() as u8);
            piece
        });
        let pieces: Vec<_> = pieces.collect();
        let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let start = 1 + seed as usize;
        let end = start + expected.len();
        let mut all = stream.alloc_zeroed::<u8>(end + 7).unwrap();
        let sent = stream
            .upload_pieces(pieces, all.slice_mut(start..end))
            .unwrap();
        let mut found = vec![9; end + 7];
        stream.memcpy_d2h(all.view(), &mut found).unwrap();
        assert!(
            found[..start]
                .iter()
                .chain(&found[end..])
                .all(|&byte| byte == 0)
        );
        assert!(found[start..end] == expected, "seed {seed}");
        let back = sent.synchronize().unwrap();
        assert!(back.iter().flat_map(|piece| piece.iter()).eq(&expected));
    }
}

/// Uploads pieces after `first` values, with as many values after them, and compares everything with the expected
/// values.
fn expect_pieces<T: Pod + PartialEq>(
    stream: &Stream,
    pieces: Vec<Pinned<T>>,
    first: usize,
    beside: T,
) -> Vec<Pinned<T>> {
    let sent: Vec<T> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
    let expected = [vec![beside; first], sent.clone(), vec![beside; first]].concat();
    let mut all = stream.alloc::<T>(expected.len()).unwrap();
    stream
        .memcpy_h2d(&vec![beside; expected.len()], all.view_mut())
        .unwrap();
    let to = all.slice_mut(first..first + sent.len());
    let copy = stream.upload_pieces(pieces, to).unwrap();
    let mut found = vec![T::zeroed(); expected.len()];
    stream.memcpy_d2h(all.view(), &mut found).unwrap();
    assert!(found == expected, "{} values behind {first}", sent.len());
    let pieces = copy.synchronize().unwrap();
    let back: Vec<T> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
    assert!(back == sent);
    pieces
}

fn pieces_of_odd_lengths_begin_anywhere(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let lens = [
        1, 3, 5, 7, 9, 1, 1, 2, 15, 17, 0, 31, 33, 63, 127, 129, 1023, 1,
    ];
    for first in 0..9 {
        let bytes = lens.map(|len| {
            let mut piece = device.pinned::<u8>(len).unwrap();
            let values = piece.iter_mut().enumerate();
            values.for_each(|(at, value)| *value = pattern(at, len as u32) as u8 | 1);
            piece
        });
        expect_pieces(&stream, bytes.into(), first, 0);
        let halves = lens.map(|len| {
            let mut piece = device.pinned::<u16>(len).unwrap();
            let values = piece.iter_mut().enumerate();
            values.for_each(|(at, value)| *value = pattern(at, len as u32) as u16 | 1);
            piece
        });
        expect_pieces(&stream, halves.into(), first, 0);
    }
}

fn an_upload_of_no_pieces_succeeds(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    assert!(expect_pieces::<u8>(&stream, Vec::new(), 3, 9).is_empty());
    assert!(expect_pieces::<u32>(&stream, Vec::new(), 0, 9).is_empty());
    let empty = [(); 4].map(|()| device.pinned::<u8>(0).unwrap());
    assert_eq!(expect_pieces(&stream, empty.into(), 3, 9).len(), 4);
    let mut x = stream.alloc::<u8>(3).unwrap();
    let refused = stream.upload_pieces(Vec::new(), x.view_mut()).unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
    stream.synchronize().unwrap();
}

fn pieces_are_copied_in_stream_order_and_come_back(target: Target) {
    let device = target.open();
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let (mut x, mut y) = (filled(&a, 100 * 40, 1), filled(&b, 100 * 40, 2));
    let mut pieces: Vec<_> = (0..100)
        .map(|_| device.pinned::<u32>(40).unwrap())
        .collect();
    for seed in 3..6 {
        let parts = pieces.iter_mut().zip((0..).step_by(40));
        for (piece, first) in parts {
            let values = piece.iter_mut().zip(first..);
            values.for_each(|(value, at)| *value = pattern(at, seed));
        }
        spin(HOLD_NS).hold(&a);
        let sent = a.upload_pieces(pieces, x.view_mut()).unwrap();
        b.memcpy_d2d(x.view(), y.view_mut()).unwrap();
        fill(&a, x.view_mut(), 100);
        expect_pattern(&values(&b, y.view()), seed);
        pieces = sent.synchronize().unwrap();
    }
    let refused = a.upload_pieces(pieces, x.slice_mut(1..)).unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
    assert_eq!(refused.value.map(|pieces| pieces.len()), Some(100));
}

fn rows(len: usize, count: usize, pitch: usize) -> Rows {
    Rows { len, count, pitch }
}

fn rows_are_copied_with_their_pitches(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut host = device.pinned::<u16>(12).unwrap();
    host.iter_mut()
        .zip(1..)
        .for_each(|(value, number)| *value = number);
    let mut wide = stream.alloc_zeroed::<u16>(20).unwrap();
    let sent = stream
        .upload_rows(host, rows(3, 3, 4), wide.view_mut(), rows(3, 3, 7))
        .unwrap();
    let mut all = [9; 20];
    stream.memcpy_d2h(wide.view(), &mut all).unwrap();
    assert_eq!(all[..10], [1, 2, 3, 0, 0, 0, 0, 5, 6, 7]);
    assert_eq!(all[10..], [0, 0, 0, 0, 9, 10, 11, 0, 0, 0]);

    let mut narrow = stream.alloc_zeroed::<u16>(8).unwrap();
    stream
        .memcpy_d2d_rows(wide.view(), rows(2, 3, 7), narrow.view_mut(), rows(2, 3, 3))
        .unwrap();
    let mut all = [9; 8];
    stream.memcpy_d2h(narrow.view(), &mut all).unwrap();
    assert_eq!(all, [1, 2, 0, 5, 6, 0, 9, 10]);

    let mut host = sent.synchronize().unwrap();
    host.fill(77);
    let back = stream
        .download_rows(wide.view(), rows(3, 3, 7), host, rows(3, 3, 4))
        .unwrap();
    let host = back.synchronize().unwrap();
    assert_eq!(host[..], [1, 2, 3, 77, 5, 6, 7, 77, 9, 10, 11, 77]);

    let refused = stream
        .upload_rows(host, rows(3, 3, 4), wide.view_mut(), rows(3, 3, 9))
        .unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
    assert_eq!(refused.value.map(|host| host.len()), Some(12));
}

fn more_rows_than_are_tracked_one_by_one_are_copied(target: Target) {
    const COUNT: usize = 300;
    let device = target.open();
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let mut wide = a.alloc_zeroed::<u32>(COUNT * 50).unwrap();
    let mut host = device.pinned::<u32>(COUNT * 10).unwrap();
    host.copy_from_slice(&patterned(COUNT * 10, 1));
    spin(HOLD_NS).hold(&a);
    let from = rows(10, COUNT, 10);
    let sent = a.upload_rows(host, from, wide.view_mut(), rows(10, COUNT, 50));
    drop(sent.unwrap());
    let found = values(&b, wide.view());
    for (at, row) in found.chunks(50).enumerate() {
        let expected = (0..50).map(|column| {
            if column < 10 {
                pattern(10 * at + column, 1)
            } else {
                0
            }
        });
        assert!(row.iter().copied().eq(expected), "row {at}");
    }
}

fn fills_of_one_two_and_four_bytes_write_what_they_name(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut bytes = stream.alloc::<u8>(1003).unwrap();
    stream.memset(bytes.view_mut(), 0xAB).unwrap();
    stream.fill_with(bytes.slice_mut(1..1000), 0xCD).unwrap();
    let mut host = [0; 1003];
    stream.memcpy_d2h(bytes.view(), &mut host).unwrap();
    assert!(host[0] == 0xAB && host[1000..] == [0xAB; 3]);
    assert!(host[1..1000].iter().all(|&byte| byte == 0xCD));

    let mut halves = stream.alloc_zeroed::<u16>(1003).unwrap();
    stream.fill_with(halves.slice_mut(1..1000), 0x1234).unwrap();
    let mut host = [0; 1003];
    stream.memcpy_d2h(halves.view(), &mut host).unwrap();
    assert!(host[0] == 0 && host[1000..] == [0; 3]);
    assert!(host[1..1000].iter().all(|&half| half == 0x1234));

    let mut words = stream.alloc_zeroed::<f32>(1003).unwrap();
    stream.fill_with(words.slice_mut(1..1000), 1.5).unwrap();
    let mut host = [0.0; 1003];
    stream.memcpy_d2h(words.view(), &mut host).unwrap();
    assert!(host[0] == 0.0 && host[1000..] == [0.0; 3]);
    assert!(host[1..1000].iter().all(|&word| word == 1.5));

    let mut longs = stream.alloc_zeroed::<u64>(8).unwrap();
    let refused = stream.fill_with(longs.view_mut(), 1);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    stream.memset(longs.view_mut(), 1).unwrap();
    let mut host = [0; 8];
    stream.memcpy_d2h(longs.view(), &mut host).unwrap();
    assert_eq!(host, [0x0101_0101_0101_0101; 8]);
}

fn copies_within_a_device_move_ranges(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let from = filled(&stream, LEN, 1);
    let mut to = stream.alloc_zeroed::<u32>(LEN).unwrap();
    stream
        .memcpy_d2d(from.slice(5..105), to.slice_mut(17..117))
        .unwrap();
    let found = values(&stream, to.view());
    let expected = (0..LEN).map(|at| {
        if (17..117).contains(&at) {
            pattern(at - 12, 1)
        } else {
            0
        }
    });
    assert!(found.into_iter().eq(expected));
    // Both halves of one buffer are copied within it.
    let mut x = filled(&stream, 2 * LEN, 2);
    let (left, right) = x.view_mut().split_at(LEN);
    stream.memcpy_d2d(left.as_view(), right).unwrap();
    expect_pattern(&values(&stream, x.slice(LEN..)), 2);
}

fn buffers_without_values_are_valid(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut x = stream.alloc_zeroed::<u32>(0).unwrap();
    stream.memset(x.view_mut(), 1).unwrap();
    stream.memcpy_h2d(&[], x.view_mut()).unwrap();
    let back = stream
        .download(x.view(), device.pinned(0).unwrap())
        .unwrap();
    assert!(back.synchronize().unwrap().is_empty());
    let mut y = filled(&stream, LEN, 1);
    stream.memcpy_d2d(x.view(), y.slice_mut(7..7)).unwrap();
    expect_pattern(&values(&stream, y.view()), 1);
}

// In the scenarios below the memory is not freed until the device was waited for, and the order is that of the tested
// rules.

fn blocking_copies_are_as_complete_as_they_promise(target: Target) {
    let device = target.open();
    let blocking = explicit::Stream::blocking(&device, "b").unwrap();
    let legacy = explicit::Stream::legacy(&device).unwrap();
    for bytes in [BYTES, MIB] {
        let memory = DeviceMemory::malloc(&device, bytes).unwrap();
        let host = HostMemory::pinned(&device, bytes).unwrap();
        let pageable = untracked::pageable(&device, bytes, 1);
        // SAFETY: see above.
        unsafe {
            // R19: the source may be overwritten, and the legacy stream has the bytes.
            spin(HOLD_NS).hold_explicit(&blocking);
            explicit::memcpy_blocking(pageable.all(), memory.all()).unwrap();
            pageable.write(0, &patterned(bytes as usize / 4, 2));
            // R21: a download is complete, to memory of either kind.
            explicit::memcpy_blocking(memory.all(), host.all()).unwrap();
            untracked::expect_host(&host, 1);
            spin(HOLD_NS).hold_explicit(&blocking);
            explicit::memcpy_blocking(memory.all(), pageable.all()).unwrap();
            untracked::expect_host(&pageable, 1);
            // R19: an upload from pinned memory is complete, also for streams that do not wait.
            host.write(0, &patterned(bytes as usize / 4, 3));
            explicit::memcpy_blocking(host.all(), memory.all()).unwrap();
            let other = untracked::stream(&device, "o");
            other.memcpy(memory.all(), host.all()).unwrap();
            other.synchronize().unwrap();
            untracked::expect_host(&host, 3);
            // R24: pinned memory is filled when the call returns, and device memory in stream order.
            explicit::memset_blocking(host.all(), 7).unwrap();
            let mut first = [0u8; 4];
            host.read(bytes - 4, &mut first);
            assert_eq!(first, [7; 4]);
            explicit::memset_blocking(memory.all(), 9).unwrap();
            legacy.memcpy(memory.all(), host.all()).unwrap();
            legacy.synchronize().unwrap();
            host.read(bytes - 4, &mut first);
            assert_eq!(first, [9; 4]);
            // R23: a copy within the host is complete.
            explicit::memcpy_blocking(pageable.all(), host.all()).unwrap();
            untracked::expect_host(&host, 1);
        }
        explicit::synchronize(&device).unwrap();
    }
}

/// R22 promises no more: the driver decides whether the call waits, and when the source is read.
fn asynchronous_copies_of_pageable_memory_are_complete_with_their_stream(target: Target) {
    let device = target.open();
    let stream = untracked::stream(&device, "s");
    for held in [false, true] {
        for bytes in [4_096, 65_536, 65_540, MIB, 4 * MIB, 6 * MIB] {
            let memory = DeviceMemory::malloc(&device, bytes).unwrap();
            let [from, to] = [1, 2].map(|seed| untracked::pageable(&device, bytes, seed));
            let hold = || {
                if held {
                    spin(HOLD_NS).hold_explicit(&stream);
                }
            };
            hold();
            // SAFETY: see above.
            unsafe { stream.memcpy(from.all(), memory.all()) }.unwrap();
            stream.synchronize().unwrap();
            from.write(0, &patterned(bytes as usize / 4, 3));
            hold();
            // SAFETY: see above.
            unsafe { stream.memcpy(memory.all(), to.all()) }.unwrap();
            stream.synchronize().unwrap();
            untracked::expect_host(&to, 1);
        }
    }
}

fn a_long_loop_near_the_limit_loses_nothing_and_ends_in_an_error(target: Target) {
    let limit = 8 * MIB;
    let options = target.options().memory_bytes(limit);
    for seed in 0..2 {
        let device = target.open_with(&options);
        let streams = ["a", "b", "c"].map(|name| device.stream(name).unwrap());
        let mut errors = streams
            .each_ref()
            .map(|s| s.alloc_zeroed::<u32>(1).unwrap());
        let mut random = Random(seed);
        let mut held: Vec<(DeviceBuf<u32>, u32)> = Vec::new();
        let mut refused = 0;
        for step in 0..1_000 {
            let at = random.below(3);
            let most = 1 << (8 + random.below(11));
            let len = 1 + random.below(most);
            match streams[at].alloc::<u32>(len) {
                Ok(mut new) => {
                    fill(&streams[at], new.view_mut(), step);
                    held.push((new, step));
                }
                Err(Error::OutOfMemory(memory)) => {
                    let all = held.iter().map(|(buffer, _)| buffer.size_bytes());
                    assert!(memory.allocated_bytes >= all.sum(), "seed {seed}: {memory}");
                    refused += 1;
                    // Room for the next ones.
                    held.truncate(held.len() / 2);
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
            if !held.is_empty() && random.below(2) == 0 {
                let (old, was) = held.swap_remove(random.below(held.len()));
                let at = random.below(3);
                check(&streams[at], old.view(), was, &mut errors[at]);
            }
        }
        for (buffer, was) in &held {
            check(&streams[0], buffer.view(), *was, &mut errors[0]);
        }
        for (stream, errors) in streams.iter().zip(&errors) {
            assert_eq!(values(stream, errors.view()), [0], "seed {seed}");
        }
        assert!(refused > 0, "seed {seed} was never short of memory");
        // In the end there is no more room, and the error says so.
        let mut more = Vec::new();
        let full = loop {
            match streams[0].alloc::<u8>(MIB as usize) {
                Ok(buffer) => more.push(buffer),
                Err(error) => break error,
            }
        };
        let all = held.iter().map(|(buffer, _)| buffer.size_bytes());
        let all = all.sum::<u64>() + more.len() as u64 * MIB;
        expect_out_of_memory::<()>(Err(full), MIB, limit, all);
    }
}
