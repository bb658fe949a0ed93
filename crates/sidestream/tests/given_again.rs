//! Memory that was freed to the driver and that another thread is given at the same address: nothing is used too
//! early, and the log says so.

use std::sync::Arc;

use sidestream::check::{Findings, OnRace};
use sidestream::device::Device;
use sidestream::sim::Schedule;

use crate::refusing::Refusing;

const LEN: usize = 4096;

/// Opens a device on which pending work stays pending until a thread waits.
fn open() -> (Arc<Refusing>, Device, Findings) {
    let (backend, device) = Refusing::open_giving_again(Schedule::Adversarial);
    let findings = device.checked(OnRace::Report);
    (backend, device, findings)
}

/// Runs a function on a thread that has made no calls before, and so knows of no other thread's work.
fn on_another_thread<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

#[track_caller]
fn no_race(findings: &Findings) {
    assert!(findings.report().races.is_empty(), "{}", findings.text());
    assert_eq!(findings.ended(), None);
}

#[test]
fn a_checker_sees_no_race_where_another_thread_gets_pinned_memory_from_the_driver_again() {
    let (backend, device, findings) = open();
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let mut data = a.alloc::<u32>(LEN).unwrap();
    let page = device.pinned(LEN).unwrap();
    drop(a.upload(page, data.view_mut()).unwrap());
    device.empty_cache().unwrap();
    let got = on_another_thread(|| {
        let zeros = b.alloc_zeroed::<u32>(LEN).unwrap();
        let page = device.pinned(LEN).unwrap();
        let page = b.download(zeros.view(), page).unwrap();
        page.synchronize().unwrap().to_vec()
    });
    assert_eq!(got, [0; LEN]);
    assert_eq!(backend.given_again(), 1);
    no_race(&findings);
}

#[test]
fn a_checker_sees_no_race_where_another_thread_gets_device_memory_from_the_driver_again() {
    let (backend, device, findings) = open();
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    drop(a.alloc_zeroed::<u32>(LEN).unwrap());
    device.empty_cache().unwrap();
    let got = on_another_thread(|| {
        let data = b.alloc_zeroed::<u32>(LEN).unwrap();
        let mut got = [1; LEN];
        b.memcpy_d2h(data.view(), &mut got).unwrap();
        got
    });
    assert_eq!(got, [0; LEN]);
    assert_eq!(backend.given_again(), 1);
    no_race(&findings);
}

#[test]
fn a_checker_sees_no_race_where_the_memory_goes_to_a_thread_that_did_not_call_the_driver() {
    let (backend, device, findings) = open();
    let streams = ["a", "b", "c"].map(|name| device.stream(name).unwrap());
    let [a, b, c] = &streams;
    let mut data = a.alloc::<u32>(2 * LEN).unwrap();
    let page = device.pinned(2 * LEN).unwrap();
    drop(a.upload(page, data.view_mut()).unwrap());
    device.empty_cache().unwrap();
    // Two threads get one half each of a piece that was freed. The first thread never uses its half on a stream of its
    // own.
    let first = on_another_thread(|| device.pinned::<u32>(LEN).unwrap());
    let got = on_another_thread(|| {
        let zeros = b.alloc_zeroed::<u32>(LEN).unwrap();
        let page = device.pinned(LEN).unwrap();
        let page = b.download(zeros.view(), page).unwrap();
        page.synchronize().unwrap().to_vec()
    });
    assert_eq!(got, [0; LEN]);
    // The first half goes back to the cache, from which a third thread gets it.
    on_another_thread(|| drop(first));
    on_another_thread(|| {
        let zeros = c.alloc_zeroed::<u32>(LEN).unwrap();
        let page = device.pinned(LEN).unwrap();
        drop(c.download(zeros.view(), page).unwrap());
    });
    device.synchronize().unwrap();
    assert_eq!(backend.given_again(), 1);
    no_race(&findings);
}
