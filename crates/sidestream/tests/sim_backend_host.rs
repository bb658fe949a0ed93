//! The simulated machine as a back end: host functions, failures, several threads.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::rig::*;
use sidestream::backend::{Address, Backend, Code, Payload, Reserve};
use sidestream::error::Error;
use sidestream::op::{DeviceId, Kind, Memory, StreamKind};
use sidestream::sim::Schedule;

#[test]
fn functions_on_the_host_run_in_stream_order_on_another_thread() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let (first, second) = (rig.stream(0), rig.stream(1));
        let event = rig.event(0);
        let said = Arc::new(Mutex::new(Vec::new()));
        let says = |what: u32| {
            let said = Arc::clone(&said);
            move || said.lock().unwrap().push((what, thread::current().id()))
        };
        rig.host_func(first, says(1)).unwrap();
        rig.host_func(first, says(2)).unwrap();
        rig.record(event, first).unwrap();
        rig.wait_event(second, event).unwrap();
        rig.host_func(second, says(3)).unwrap();
        assert!(said.lock().unwrap().is_empty(), "nothing runs in a submit");
        rig.synchronize(second).unwrap();
        let said = said.lock().unwrap();
        let order: Vec<u32> = said.iter().map(|(what, _)| *what).collect();
        assert_eq!(order, [1, 2, 3]);
        assert!(said.iter().all(|(_, id)| *id == said[0].1), "one thread");
        assert_ne!(said[0].1, thread::current().id());
    }
}

#[test]
fn work_after_a_function_sees_what_it_wrote() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let stream = rig.stream(0);
        let staging = rig.pinned(&[0; 64]);
        let at = rig.device_memory(64);
        let (go, gone) = channel::<()>();
        rig.host_func(stream, move || {
            gone.recv().unwrap();
            // SAFETY: the stream holds the upload until this has returned.
            unsafe { pointer(staging).write_bytes(4, 64) };
        })
        .unwrap();
        rig.upload(stream, staging, at, 64).unwrap();
        go.send(()).unwrap();
        assert_eq!(rig.fetch(stream, at, 64), [4; 64]);
    }
}

#[test]
fn a_peek_does_not_wait_for_a_function_that_runs() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let stream = rig.stream(0);
        let event = rig.event(0);
        let (go, gone) = channel::<()>();
        let (starts, started) = channel::<()>();
        rig.host_func(stream, move || {
            starts.send(()).unwrap();
            gone.recv().unwrap();
        })
        .unwrap();
        rig.record(event, stream).unwrap();
        for _ in 0..1000 {
            assert!(!rig.peek(event).unwrap());
        }
        started.recv().unwrap();
        go.send(()).unwrap();
        // Still "no", however fast the function is: the answer depends on no clock.
        assert!(!rig.peek(event).unwrap());
        assert!((0..100).any(|_| rig.query(event).unwrap()));
        assert!(rig.peek(event).unwrap());
    }
}

#[test]
fn a_panic_in_a_function_stops_none_of_the_others() {
    let rig = Rig::new(Schedule::InOrder);
    let stream = rig.stream(0);
    let (said, heard) = channel();
    rig.host_func(stream, || {
        panic!("a function that does not catch its panic")
    })
    .unwrap();
    rig.host_func(stream, move || said.send(5).unwrap())
        .unwrap();
    assert!(rig.synchronize(stream).unwrap());
    assert_eq!(heard.recv(), Ok(5));
}

#[test]
fn a_function_that_waits_for_the_device_is_refused() {
    let rig = Arc::new(Rig::new(Schedule::InOrder));
    let stream = rig.stream(0);
    let (said, heard) = channel();
    let inner = Arc::clone(&rig);
    let op = rig.op_of(1, Kind::SyncStream { stream });
    rig.host_func(stream, move || {
        let answer = inner.machine.wait(&op, Duration::MAX);
        said.send(answer).unwrap();
    })
    .unwrap();
    assert!(rig.synchronize(stream).unwrap());
    match heard.recv().unwrap() {
        Err(Error::Refused { code: 800, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dropped_machine_completes_started_work_and_drops_the_rest() {
    let (said, heard) = channel();
    let rig = Rig::new(Schedule::InOrder);
    let stream = rig.stream(0);
    let event = rig.event(0);
    let (first, second) = (said.clone(), said);
    rig.host_func(stream, move || first.send(1).unwrap())
        .unwrap();
    rig.record(event, stream).unwrap();
    while rig.machine.now_ns() < 100_000 {
        let _ = rig.query(event).unwrap();
    }
    rig.host_func(stream, move || second.send(2).unwrap())
        .unwrap();
    drop(rig);
    assert_eq!(heard.iter().collect::<Vec<i32>>(), [1]);
}

#[test]
fn a_machine_may_be_dropped_by_the_last_function() {
    let rig = Arc::new(Rig::new(Schedule::InOrder));
    let stream = rig.stream(0);
    let (go, gone) = channel::<()>();
    let (said, heard) = channel();
    let inner = Arc::clone(&rig);
    rig.host_func(stream, move || {
        gone.recv().unwrap();
        drop(inner);
        said.send(()).unwrap();
    })
    .unwrap();
    let event = rig.event(0);
    rig.record(event, stream).unwrap();
    // The function starts; the queries do not wait for it.
    for _ in 0..100 {
        assert!(!rig.peek(event).unwrap());
    }
    drop(rig);
    go.send(()).unwrap();
    heard.recv().unwrap();
}

// ------------------------------------------------------------------ failures

#[test]
fn an_access_outside_all_memory_loses_the_device_for_good() {
    for schedule in schedules() {
        let rig = Rig::with_devices(schedule, 2);
        let stream = rig.stream(0);
        let other = rig.stream_on(1, 1, StreamKind::NonBlocking);
        let event = rig.event(0);
        let at = rig.device_memory(64);
        let output = rig.pinned(&[0; 64]);
        rig.fill(stream, at.offset(60), 1, 2).unwrap();
        rig.download(stream, at, output, 64).unwrap();
        rig.record(event, stream).unwrap();
        let first = rig.synchronize(stream).unwrap_err();
        let Error::DeviceLost(lost) = &first else {
            panic!("{first:?}");
        };
        assert_eq!((lost.device, lost.code), (DeviceId(0), 700));
        assert!(lost.why.starts_with("op 0 (memset): "), "{}", lost.why);

        let again = |result: Result<bool, Error>| assert_eq!(result, Err(first.clone()));
        again(rig.synchronize(stream));
        again(rig.query(event));
        again(rig.peek(event));
        again(rig.fill(stream, at, 1, 1).map(|()| true));
        again(rig.record(event, stream).map(|()| true));
        let memory = rig
            .machine
            .reserve(Reserve::new(Memory::Device, DeviceId(0), 8));
        again(memory.map(|_| true));
        assert_eq!(rig.look(output, 64), [0; 64], "nothing more was done");

        // Another device might be ordered after work that was never done.
        again(rig.synchronize(other));
        again(rig.host_func(other, || ()).map(|_| true));
    }
}

#[test]
fn a_use_after_the_end_of_memory_is_found() {
    for pinned in [false, true] {
        let rig = Rig::new(Schedule::InOrder);
        let stream = rig.stream(0);
        let (device, host) = (rig.device_memory(64), rig.pinned(&[0; 64]));
        let (memory, at) = match pinned {
            true => (Memory::Pinned, host),
            false => (Memory::Device, device),
        };
        rig.unreserve(memory, at);
        rig.upload(stream, host, device, 64).unwrap();
        match rig.synchronize(stream) {
            Err(Error::DeviceLost(lost)) => assert_eq!(lost.code, 700),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_kernel_that_panics_traps() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let stream = rig.stream(0);
        let trap = code("trap", 10, |_, _| panic!("index 7 is out of range"));
        let (said, heard) = channel::<()>();
        rig.launch(stream, &trap, &[]).unwrap();
        rig.host_func(stream, move || said.send(()).unwrap())
            .unwrap();
        match rig.synchronize(stream) {
            Err(Error::DeviceLost(lost)) => {
                assert_eq!(lost.code, 719);
                let says = "op 0 (kernel): `trap` trapped: index 7 is out of range";
                assert_eq!(lost.why, says);
            }
            other => panic!("{other:?}"),
        }
        assert!(heard.recv().is_err(), "the function after it never runs");
    }
}

#[test]
fn a_kernel_without_a_form_in_rust_is_refused() {
    let rig = Rig::new(Schedule::InOrder);
    let stream = rig.stream(0);
    let code = Arc::new(Code {
        image: Some(sidestream::backend::Image::Ptx(String::new())),
        ..Code::new("foreign")
    });
    match rig.launch(stream, &code, &[]) {
        Err(Error::NoForm { kernel, .. }) => assert_eq!(kernel, "foreign"),
        other => panic!("{other:?}"),
    }
    assert!(rig.synchronize(stream).unwrap());
}

#[test]
fn refused_calls_have_the_code_of_cuda() {
    let rig = Rig::with_devices(Schedule::InOrder, 2);
    let stream = rig.stream_on(0, 1, StreamKind::NonBlocking);
    let event = rig.event(0);
    match rig.record(event, stream) {
        Err(Error::Refused { call, code, why }) => {
            assert_eq!((call, code), ("record", 400));
            assert!(why.contains("another device"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    // A refused call changed nothing.
    assert!(rig.query(event).unwrap());
}

// ------------------------------------------------------------------ threads

#[test]
fn threads_with_streams_of_their_own_do_not_disturb_each_other() {
    for schedule in [
        Schedule::InOrder,
        Schedule::Adversarial,
        Schedule::Seeded(5),
    ] {
        let rig = Rig::new(schedule);
        let memory: Vec<(Address, Address)> = (0..4)
            .map(|n| {
                rig.stream(n);
                (rig.device_memory(4096), rig.pinned(&[0; 4096]))
            })
            .collect();
        let ops: Vec<_> = (0..4u32)
            .map(|n| {
                let stream = sidestream::op::StreamId(n);
                let fill = rig.op_of(n, Kind::Memset { stream });
                let down = rig.op_of(n, copy_kind(stream, Memory::Device, Memory::Pinned));
                let sync = rig.op_of(n, Kind::SyncStream { stream });
                (fill, down, sync)
            })
            .collect();
        let rig = &rig;
        thread::scope(|scope| {
            for (n, ((at, to), (fill, down, sync))) in memory.iter().zip(&ops).enumerate() {
                scope.spawn(move || {
                    for round in 0..200u32 {
                        let value = round * 4 + n as u32;
                        let fills = sidestream::backend::Fill {
                            at: *at,
                            value,
                            width: 4,
                            count: 1024,
                        };
                        rig.submit_op(fill, Payload::Fill(fills)).unwrap();
                        let copy = Payload::Copy(plain(*at, *to, 4096));
                        rig.submit_op(down, copy).unwrap();
                        assert!(rig.machine.wait(sync, Duration::MAX).unwrap());
                        // SAFETY: the copy into it is complete, and no other one was submitted.
                        let got = unsafe { std::slice::from_raw_parts(pointer(*to), 4096) };
                        assert!(got.chunks(4).all(|word| word == value.to_le_bytes()));
                    }
                });
            }
        });
    }
}
