//! Memory of the program that is pinned in place, and write-combined pinned memory.

use sidestream::buffer::Refused;
use sidestream::error::Error;
use sidestream::explicit::HostMemory;

use crate::kernels::{HOLD_NS, expect_pattern, fill_explicit, filled, patterned, spin, values};
use crate::target::{Scenario, Target, one, two};
use crate::untracked::{self, BYTES, expect_device, expect_host, stream};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(a_registered_vector_goes_both_ways_and_comes_back),
        one(a_registered_vector_that_is_dropped_in_flight_is_copied_to_the_end),
        one(a_vector_that_is_already_pinned_is_refused_and_comes_back),
        one(memory_of_the_allocator_is_not_accepted_as_a_vector),
        one(registered_memory_without_tracking_goes_both_ways_and_comes_back),
        one(write_combined_memory_is_uploaded),
        two(a_registered_vector_serves_both_devices),
    ]
}

const LEN: usize = 4096;

fn a_registered_vector_goes_both_ways_and_comes_back(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    for (len, seed) in [1, 7, LEN, 1 << 18].into_iter().zip(3..) {
        let mut x = stream.alloc::<u32>(len).unwrap();
        let (sent, back) = (patterned(len, seed), vec![0u32; len]);
        let places = [sent.as_ptr(), back.as_ptr()];
        let [sent, back] = [sent, back].map(|values| device.register(values).unwrap());
        spin(HOLD_NS).hold(&stream);
        let sent = stream.upload(sent, x.view_mut()).unwrap();
        let back = stream.download(x.view(), back).unwrap();
        // No copy is waited for implicitly: a vector that comes back is not in use.
        let [back, sent] = [back, sent].map(|copy| copy.synchronize().unwrap());
        let vectors = [sent, back].map(|pinned| pinned.into_vec().unwrap());
        assert_eq!(vectors.each_ref().map(|vector| vector.as_ptr()), places);
        for vector in &vectors {
            assert_eq!(vector.len(), len);
            expect_pattern(vector, seed);
        }
        // The vector that came back belongs to the program, and can be registered again.
        let [again, _] = vectors;
        let again = device.register(again).unwrap();
        stream.memset(x.view_mut(), 0).unwrap();
        let again = stream.upload(again, x.view_mut()).unwrap();
        expect_pattern(&values(&stream, x.view()), seed);
        drop(again.synchronize().unwrap().into_vec().unwrap());
    }
}

fn a_registered_vector_that_is_dropped_in_flight_is_copied_to_the_end(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut x = stream.alloc::<u32>(LEN).unwrap();
    for seed in 0..10 {
        let sent = device.register(patterned(LEN, seed)).unwrap();
        spin(HOLD_NS).hold(&stream);
        drop(stream.upload(sent, x.view_mut()).unwrap());
        if seed == 5 {
            device.empty_cache().unwrap();
        }
        expect_pattern(&values(&stream, x.view()), seed);
    }
}

/// Returns another owner of a part of a vector's memory.
///
/// # Safety
/// The vector is forgotten, not dropped, and neither owner touches the values while both exist.
unsafe fn part_of(start: *mut u8, len: usize) -> Vec<u8> {
    // SAFETY: the caller promises to free nothing and not to access the values.
    unsafe { Vec::from_raw_parts(start, len, len) }
}

#[track_caller]
fn expect_pinned_already<T>(result: Result<T, Refused<Vec<u8>>>, len: usize) {
    match result {
        Ok(registered) => {
            std::mem::forget(registered);
            panic!("memory was registered twice");
        }
        Err(Refused { error, value }) => {
            let back = value.map(|vector| std::mem::ManuallyDrop::new(vector).len());
            let is_right = matches!(error, Error::Refused { code: 712, .. });
            assert!(is_right, "{error}");
            assert_eq!(back, Some(len));
        }
    }
}

fn a_vector_that_is_already_pinned_is_refused_and_comes_back(target: Target) {
    let device = target.open();
    let s = stream(&device, "s");
    let mut bytes = vec![7u8; 8 * LEN];
    let (start, len) = (bytes.as_mut_ptr(), bytes.len());
    // The whole vector, and its middle.
    let parts = [(start, len), (start.wrapping_add(LEN), 2 * LEN)];
    let registered = device.register(bytes).unwrap();
    for (start, len) in parts {
        // SAFETY: both vectors are forgotten below, refused or not.
        let [a, b] = [(); 2].map(|()| unsafe { part_of(start, len) });
        expect_pinned_already(device.register(a), len);
        expect_pinned_already(HostMemory::register(&device, b), len);
    }
    // The first owner is unchanged.
    let bytes = registered.into_vec().unwrap();
    let registered = HostMemory::register(&device, bytes).unwrap();
    // SAFETY: as above.
    expect_pinned_already(device.register(unsafe { part_of(start, len) }), len);
    let x = untracked::filled(&device, 1);
    // SAFETY: the stream is waited for before the memory is touched again.
    unsafe { s.memcpy(x.all(), registered.bytes(..BYTES)) }.unwrap();
    s.synchronize().unwrap();
    let bytes = registered.into_vec().unwrap();
    let (copied, rest) = bytes.split_at(BYTES as usize);
    assert!(copied == bytes_of(1) && rest.iter().all(|&byte| byte == 7));
}

/// Returns the pattern that fills memory of the explicit style.
fn bytes_of(seed: u32) -> Vec<u8> {
    let values = patterned(untracked::LEN, seed);
    values.into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn memory_of_the_allocator_is_not_accepted_as_a_vector(target: Target) {
    let device = target.open();
    let mut page = device.pinned::<u32>(LEN).unwrap();
    page.copy_from_slice(&patterned(LEN, 3));
    let refused = page.into_vec().unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
    expect_pattern(&refused.value.unwrap(), 3);
    let refused = untracked::pinned(&device, 4).into_vec().unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
    expect_host(&refused.value.unwrap(), 4);
}

fn registered_memory_without_tracking_goes_both_ways_and_comes_back(target: Target) {
    let device = target.open();
    let s = stream(&device, "s");
    let (x, bytes) = (untracked::filled(&device, 1), bytes_of(2));
    let place = bytes.as_ptr();
    let host = HostMemory::register(&device, bytes).unwrap();
    assert_eq!(host.size_bytes(), BYTES);
    for seed in [2, 4, 6] {
        host.write(0, &patterned(untracked::LEN, seed));
        // SAFETY: the stream is waited for before the memory is touched again.
        unsafe {
            spin(HOLD_NS).hold_explicit(&s);
            s.memcpy(host.all(), x.all()).unwrap();
            s.synchronize().unwrap();
            expect_device(&device, &x, seed);
            spin(HOLD_NS).hold_explicit(&s);
            fill_explicit(&s, x.all(), seed + 1);
            s.memcpy(x.all(), host.all()).unwrap();
            s.synchronize().unwrap();
        }
        expect_host(&host, seed + 1);
    }
    let bytes = host.into_vec().unwrap();
    assert_eq!(bytes.as_ptr(), place);
    assert!(bytes == bytes_of(7));
    // Dropping the registration unpins and frees the memory.
    drop(HostMemory::register(&device, bytes).unwrap());
    drop(HostMemory::register(&device, bytes_of(8)).unwrap());
}

fn write_combined_memory_is_uploaded(target: Target) {
    let device = target.open();
    let s = stream(&device, "s");
    let x = untracked::filled(&device, 1);
    let sent = HostMemory::write_combined(&device, BYTES).unwrap();
    let zero = untracked::pinned(&device, 1);
    let upload = || {
        // SAFETY: the stream is waited for before the memory is touched again.
        unsafe {
            s.memcpy(sent.all(), x.all()).unwrap();
            s.memcpy(x.all(), zero.all()).unwrap();
        }
        s.synchronize().unwrap();
    };
    upload();
    let mut found = vec![1u32; untracked::LEN];
    zero.read(0, &mut found);
    assert!(found.iter().all(|&value| value == 0), "new memory is zero");
    for seed in 2..6 {
        // The pattern is written in two parts: both arrive, although the host buffers its writes.
        let pattern = patterned(untracked::LEN, seed);
        sent.write(0, &pattern[..1001]);
        sent.write(4 * 1001, &pattern[1001..]);
        upload();
        expect_device(&device, &x, seed);
    }
    sent.free();
}

fn a_registered_vector_serves_both_devices(target: Target) {
    let devices = target.open_two();
    let [a, b] = devices.each_ref().map(|device| device.stream("s").unwrap());
    for (owner, seed) in devices.iter().zip(3..) {
        let (mut x, mut y) = (filled(&a, LEN, 1), filled(&b, LEN, 2));
        let host = owner.register(patterned(LEN, seed)).unwrap();
        let host = a.upload(host, x.view_mut()).unwrap().synchronize().unwrap();
        let host = b.upload(host, y.view_mut()).unwrap().synchronize().unwrap();
        expect_pattern(&values(&a, x.view()), seed);
        expect_pattern(&values(&b, y.view()), seed);
        let mut vector = host.into_vec().unwrap();
        vector.fill(0);
        let host = owner.register(vector).unwrap();
        let host = b.download(y.view(), host).unwrap().synchronize().unwrap();
        expect_pattern(&host.into_vec().unwrap(), seed);
    }
}
