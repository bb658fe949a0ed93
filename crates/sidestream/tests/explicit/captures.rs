//! Captures of the explicit style: the effect of a graph, calls that cannot be captured, and where a graph is
//! destroyed.

use sidestream::check::RaceKind;
use sidestream::device::Device;
use sidestream::error::Error;
use sidestream::explicit::{self, Arg, DeviceMemory, Stream};
use sidestream::kernel::Grid;
use sidestream::sim::Schedule;

use super::{BYTES, add, check, kinds, last, pinned, run, stream};
use crate::refusing::{IS_CALLBACK, Refusing};

#[test]
fn a_captured_graph_runs_when_it_is_launched_and_its_memory_is_checked() {
    let add = add();
    check(RaceKind::Raw, 12, true, |device, waits| {
        let (work, side) = (stream(device, "work"), stream(device, "side"));
        let down = stream(device, "down");
        let (from, to) = (pinned(device, 10), pinned(device, 0));
        let [a, b] = [(); 2].map(|()| DeviceMemory::malloc(device, BYTES).unwrap());
        let launch = |stream: &Stream, x: &DeviceMemory, y: &DeviceMemory| {
            let args = [Arg::Reads(x.all()), Arg::Writes(y.all()), Arg::value(1u8)];
            // SAFETY: as in `explicit`.
            unsafe { stream.launch(&add, Grid::new(1, 32), &args).unwrap() };
        };
        work.begin_capture().unwrap();
        // SAFETY: as in `explicit`.
        unsafe { work.memcpy(from.all(), a.all()).unwrap() };
        side.wait_stream(&work).unwrap();
        launch(&side, &a, &b);
        work.wait_stream(&side).unwrap();
        launch(&work, &b, &a);
        assert!(work.synchronize().is_err(), "it does not run");
        let graph = work.end_capture().unwrap();
        work.synchronize().unwrap();
        // SAFETY: as in `explicit`.
        unsafe {
            work.launch_graph(&graph).unwrap();
            if waits {
                down.wait_stream(&work).unwrap();
            }
            down.memcpy(a.all(), to.all()).unwrap();
        }
        down.synchronize().unwrap();
        let value = last(&to);
        explicit::synchronize(device).unwrap();
        value
    });
}

#[test]
fn streams_and_memory_of_the_safe_api_cannot_be_captured() {
    let device = Device::open("sim:h200").unwrap();
    let safe = device.stream("safe").unwrap();
    let mut buffer = safe.alloc_zeroed::<u8>(64).unwrap();
    let captured = stream(&device, "captured");
    let invalid = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
    };
    invalid(Stream::of(&safe).begin_capture());
    captured.begin_capture().unwrap();
    invalid(Stream::of(&safe).wait_stream(&captured));
    // SAFETY: the call is refused.
    unsafe {
        invalid(captured.lend_mut(buffer.view_mut()).map(drop));
    }
    captured.end_capture().unwrap();
    safe.fill_with(buffer.view_mut(), 1).unwrap();
    let mut host = [0; 64];
    safe.memcpy_d2h(buffer.view(), &mut host).unwrap();
    assert_eq!(host, [1; 64]);
}

#[test]
fn a_graph_runs_a_new_capture_from_its_next_launch_on() {
    let add = add();
    let (value, report) = run(Schedule::Adversarial, |device| {
        let work = stream(device, "work");
        let to = pinned(device, 0);
        let [a, b] = [(); 2].map(|()| DeviceMemory::malloc(device, BYTES).unwrap());
        let adds = |stream: &Stream, memory: &DeviceMemory, n: u8, times: usize| {
            stream.begin_capture().unwrap();
            for _ in 0..times {
                let args = [
                    Arg::Reads(memory.all()),
                    Arg::Writes(memory.all()),
                    Arg::value(n),
                ];
                // SAFETY: as in `explicit`.
                unsafe { stream.launch(&add, Grid::new(1, 32), &args).unwrap() };
            }
        };
        // SAFETY: as in `explicit`.
        unsafe {
            work.memset(a.all(), 0).unwrap();
            work.memset(b.all(), 0).unwrap();
            adds(&work, &a, 1, 1);
            let mut graph = work.end_capture().unwrap();
            work.launch_graph(&graph).unwrap();
            adds(&work, &b, 10, 1);
            work.end_capture_into(&mut graph).unwrap();
            work.launch_graph(&graph).unwrap();
            work.launch_graph(&graph).unwrap();
            // Of another shape: the graph stays as it is.
            adds(&work, &b, 100, 2);
            let refused = work.end_capture_into(&mut graph);
            assert!(
                matches!(refused, Err(Error::Refused { code: 910, .. })),
                "{refused:?}"
            );
            work.launch_graph(&graph).unwrap();
            let args = [Arg::Reads(a.all()), Arg::Writes(b.all()), Arg::value(0u8)];
            work.memcpy(b.all(), to.all()).unwrap();
            work.synchronize().unwrap();
            let thrice = last(&to);
            work.launch(&add, Grid::new(1, 32), &args).unwrap();
            work.memcpy(b.all(), to.all()).unwrap();
            work.synchronize().unwrap();
            thrice + last(&to)
        }
    });
    assert_eq!(kinds(&report), []);
    assert_eq!(value, 31);
}

#[test]
fn a_captured_graph_dropped_inside_a_host_function_is_destroyed_elsewhere() {
    let (backend, device) = Refusing::open(Schedule::InOrder);
    let stream = stream(&device, "s");
    stream.begin_capture().unwrap();
    let graph = stream.end_capture().unwrap();
    let act = move || {
        IS_CALLBACK.set(true);
        drop(graph);
        IS_CALLBACK.set(false);
    };
    // SAFETY: the function touches no memory.
    unsafe { stream.host_func(&[], &[], act).unwrap() };
    stream.synchronize().unwrap();
    assert!(
        !backend.misplaced(),
        "a function on the host called the driver"
    );
}
