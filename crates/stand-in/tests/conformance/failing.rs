//! Calls of the driver that fail: memory that a device may still use is never given back as idle. These run on the
//! stand-in, which can let a call fail on request; elsewhere they do nothing.

use sidestream::buffer::{DeviceBuf, Refused};
use sidestream::device::Device;
use sidestream::error::Error;
use sidestream::stream::Stream;

use crate::kernels::{HOLD_NS, expect_pattern, filled, patterned, spin, values};
use crate::target::{Scenario, Target, one};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(a_download_that_fails_leaves_no_copy_behind_in_idle_memory),
        one(an_upload_that_fails_leaves_no_copy_behind_of_idle_memory),
        one(pieces_that_fail_leave_no_kernel_behind_that_reads_idle_memory),
        one(a_synchronous_call_that_is_refused_gives_its_memory_back),
    ]
}

const LEN: usize = 4096;
/// `CUDA_ERROR_OUT_OF_MEMORY`: a driver may return it for any call.
const CODE: i32 = 2;
/// Upper bound on how often one call of the API calls one function of the driver.
const CALLS: u32 = 8;

/// Runs `act` repeatedly and lets each of its driver calls fail in turn, on a device with and without timing. The
/// stream is held, so that submitted work is pending when `act` returns. The buffer has the pattern 7.
fn each_failure(target: Target, act: impl Fn(&Device, &Stream, &DeviceBuf<u32>)) {
    if target != Target::StandIn {
        return;
    }
    let fail = |function, after| sidestream_stand_in::fail(function, after, CODE).unwrap();
    for keeps_times in [false, true] {
        let device = target.open();
        let stream = device.stream("s").unwrap();
        let buffer = filled(&stream, LEN, 7);
        let recording = keeps_times.then(|| device.record(Vec::new()).unwrap());
        for function in ["cuMemcpyAsync", "cuLaunchKernel", "cuEventRecord"] {
            for after in 0..CALLS {
                spin(HOLD_NS).hold(&stream);
                fail(function, after);
                act(&device, &stream, &buffer);
                fail("none", 0);
                stream.synchronize().unwrap();
            }
        }
        drop(recording);
    }
}

/// Returns the value, which has no pending use. If there is no value, the memory went to a place whose next owner waits
/// for the device.
#[track_caller]
fn idle<T>(refused: Refused<T>) -> Option<T> {
    match refused.error {
        Error::Refused { code: CODE, .. } => refused.value,
        Error::Submitted { code: CODE, .. } => {
            assert!(refused.value.is_none(), "the device uses it");
            None
        }
        error => panic!("{error}"),
    }
}

fn a_download_that_fails_leaves_no_copy_behind_in_idle_memory(target: Target) {
    each_failure(target, |device, s, x| {
        let page = device.pinned::<u32>(LEN).unwrap();
        let page = match s.download(x.view(), page) {
            Ok(pending) => return expect_pattern(&pending.synchronize().unwrap(), 7),
            Err(refused) => idle(refused),
        };
        let mut page = page.unwrap_or_else(|| device.pinned(LEN).unwrap());
        page.fill(1);
        while s.synchronize().is_err() {}
        assert!(page.iter().all(|&value| value == 1), "a device wrote it");
    });
}

fn an_upload_that_fails_leaves_no_copy_behind_of_idle_memory(target: Target) {
    each_failure(target, |device, s, _| {
        let mut x = s.alloc::<u32>(LEN).unwrap();
        let mut page = device.pinned::<u32>(LEN).unwrap();
        page.copy_from_slice(&patterned(LEN, 3));
        match s.upload(page, x.view_mut()) {
            Ok(pending) => drop(pending),
            Err(refused) => {
                // The next owner of the memory writes something else.
                let mut page = idle(refused).unwrap_or_else(|| device.pinned(LEN).unwrap());
                page.fill(99);
            }
        }
        sidestream_stand_in::fail("none", 0, CODE).unwrap();
        let found = values(s, x.view());
        assert!(
            !found.contains(&99),
            "a device read what the host wrote afterwards"
        );
    });
}

fn pieces_that_fail_leave_no_kernel_behind_that_reads_idle_memory(target: Target) {
    each_failure(target, |device, s, _| {
        let mut x = s.alloc::<u32>(LEN).unwrap();
        let all = patterned(LEN, 3);
        let pieces = [&all[..LEN / 2], &all[LEN / 2..]].map(|part| {
            let mut piece = device.pinned::<u32>(part.len()).unwrap();
            piece.copy_from_slice(part);
            piece
        });
        match s.upload_pieces(pieces.into(), x.view_mut()) {
            Ok(pending) => drop(pending),
            Err(refused) => {
                let mut pieces = idle(refused).unwrap_or_default();
                pieces.iter_mut().for_each(|piece| piece.fill(99));
            }
        }
        sidestream_stand_in::fail("none", 0, CODE).unwrap();
        let found = values(s, x.view());
        assert!(
            !found.contains(&99),
            "a device read what the host wrote afterwards"
        );
    });
}

fn a_synchronous_call_that_is_refused_gives_its_memory_back(target: Target) {
    if target != Target::StandIn {
        return;
    }
    let device = target.open_with(&target.options().synchronous());
    let s = device.stream("s").unwrap();
    let mut x = filled(&s, LEN, 7);
    let page = device.pinned::<u32>(LEN).unwrap();
    sidestream_stand_in::fail("cuMemcpyAsync", 0, CODE).unwrap();
    let refused = s.upload(page, x.view_mut()).unwrap_err();
    assert!(matches!(refused.error, Error::Refused { .. }), "{refused}");
    assert!(refused.value.is_some(), "it was never submitted");
}
