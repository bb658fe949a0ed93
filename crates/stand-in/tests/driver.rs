//! Tests what the CUDA back end requires of a driver, on the stand-in.

mod rig;

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;

use rig::*;
use sidestream::cuda::driver::{Driver, STREAM_LEGACY, STREAM_PER_THREAD};

#[test]
fn bytes_go_up_through_a_kernel_and_down() {
    let rig = Rig::new();
    let add = rig.function(&VECTOR_ADD, c"vector_add");
    let stream = rig.stream();
    let n = 1000;
    let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let (a, _) = rig.pinned(&values);
    let bytes = n * 4;
    let (x, y, sum) = (rig.memory(bytes), rig.memory(bytes), rig.memory(bytes));
    ok(rig.copy(x, a, bytes, stream));
    // Pageable, and from device to device.
    ok(rig.copy(y, address(&values), bytes, stream));
    ok(rig.copy(sum, y, bytes, stream));
    ok(rig.launch(add, &[x, sum, y, n as u64], stream));
    let doubled: Vec<f32> = rig.read(y, n, stream);
    assert_eq!(doubled, values.iter().map(|v| v + v).collect::<Vec<_>>());

    let step = rig.function(&OVERLAP_STEP, c"overlap_step");
    ok(rig.launch(step, &[x, sum, n as u64, 2], stream));
    let stepped: Vec<f32> = rig.read(sum, n, stream);
    assert_eq!(stepped[0], 0f32.mul_add(1.0001, 1e-4).mul_add(1.0001, 1e-4));
    assert!(stepped[999] > 999.19 && stepped[999] < 999.21);
}

#[test]
fn nothing_has_happened_when_a_call_returns() {
    let rig = Rig::new();
    let stream = rig.stream();
    let (from, memory) = rig.pinned(&[1u32; 8]);
    let at = rig.memory(32);
    ok(rig.copy(at, from, 32, stream));
    // SAFETY: the device reads it only while a thread queries or waits, and none does.
    unsafe { memory.write(2) };
    assert_eq!(rig.read::<u32>(at, 8, stream), [2, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn a_query_returns_600_until_the_work_is_complete() {
    let rig = Rig::new();
    let spin = rig.function(&SPIN, c"spin");
    let (stream, event) = (rig.stream(), rig.event());
    let Driver {
        cuEventRecord,
        cuEventQuery,
        cuStreamQuery,
        cuEventSynchronize,
        ..
    } = rig.driver;
    // SAFETY: none of these takes a pointer.
    unsafe {
        assert_eq!(cuEventQuery(event), 0, "it was never recorded");
        ok(rig.launch(spin, &[1_000_000_000], stream));
        ok(cuEventRecord(event, stream));
        assert_eq!(cuEventQuery(event), 600);
        assert_eq!(cuStreamQuery(stream), 600);
        ok(cuEventSynchronize(event));
        assert_eq!(cuEventQuery(event), 0);
        assert_eq!(cuStreamQuery(stream), 0);
    }
}

#[test]
fn elapsed_is_the_time_between_two_events() {
    let rig = Rig::new();
    let spin = rig.function(&SPIN, c"spin");
    let stream = rig.stream();
    let (start, end) = (rig.event(), rig.event());
    let mut untimed = 0;
    let mut ms = 0.0;
    let Driver {
        cuEventCreate,
        cuEventRecord,
        cuEventElapsedTime,
        ..
    } = rig.driver;
    // SAFETY: the pointers are to local variables.
    unsafe {
        ok(cuEventCreate(&mut untimed, 2));
        assert_eq!(cuEventElapsedTime(&mut ms, start, end), 400, "unrecorded");
        ok(cuEventRecord(start, stream));
        ok(rig.launch(spin, &[5_000_000], stream));
        ok(cuEventRecord(end, stream));
        ok(cuEventRecord(untimed, stream));
        assert_eq!(cuEventElapsedTime(&mut ms, start, end), 600, "not over");
        ok(rig.synchronize(stream));
        ok(cuEventElapsedTime(&mut ms, start, end));
        assert!((5.0..5.1).contains(&ms), "{ms} ms");
        ok(cuEventElapsedTime(&mut ms, end, start));
        assert!(ms < -4.9, "{ms} ms");
        assert_eq!(cuEventElapsedTime(&mut ms, start, untimed), 400);
    }
}

#[test]
fn a_wait_holds_a_stream_until_the_other_has_written() {
    let rig = Rig::new();
    let spin = rig.function(&SPIN, c"spin");
    let (first, second, event) = (rig.stream(), rig.stream(), rig.event());
    let (from, _) = rig.pinned(&[7u8; 64]);
    let (to, seen) = rig.pinned(&[0u8; 64]);
    let at = rig.memory(64);
    let Driver {
        cuEventRecord,
        cuStreamWaitEvent,
        ..
    } = rig.driver;
    ok(rig.launch(spin, &[1_000_000], first));
    ok(rig.copy(at, from, 64, first));
    // SAFETY: neither takes a pointer.
    unsafe {
        ok(cuEventRecord(event, first));
        ok(cuStreamWaitEvent(second, event, 0));
    }
    ok(rig.copy(to, at, 64, second));
    ok(rig.synchronize(second));
    // SAFETY: the copy is complete.
    assert_eq!(unsafe { seen.add(63).read() }, 7);
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    let rig = Rig::new();
    let spin = rig.function(&SPIN, c"spin");
    let (blocking, non_blocking) = (rig.stream_of(0), rig.stream_of(1));
    let (at, mut down) = (rig.memory(4), [0u32]);
    let Driver {
        cuMemcpy,
        cuMemsetD8_v2,
        cuMemsetD32Async,
        cuStreamQuery,
        ..
    } = rig.driver;
    let to = down.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the memory of the copies exists and is as long as they are.
    unsafe {
        ok(rig.launch(spin, &[1_000_000], blocking));
        ok(rig.launch(spin, &[1_000_000_000], non_blocking));
        ok(cuMemsetD32Async(at, 0x0102_0304, 1, blocking));
        ok(cuMemcpy(to, at, 4));
        assert_eq!(down, [0x0102_0304]);
        assert_eq!(cuStreamQuery(non_blocking), 600);
        // The per-thread stream is a blocking one.
        ok(rig.launch(spin, &[1_000_000], STREAM_PER_THREAD));
        ok(cuMemsetD32Async(at, 5, 1, STREAM_PER_THREAD));
        ok(cuMemcpy(to, at, 4));
        assert_eq!(down, [5]);
        ok(cuMemsetD8_v2(at, 6, 4));
        ok(rig.copy(to, at, 4, STREAM_LEGACY));
        assert_eq!(down, [0x0606_0606]);
        ok(rig.synchronize(non_blocking));
    }
}

#[test]
fn a_capture_becomes_a_graph_that_is_launched_again_and_again() {
    let rig = Rig::new();
    let add = rig.function(&VECTOR_ADD, c"vector_add");
    let (stream, fork, event) = (rig.stream(), rig.stream(), rig.event());
    let (one, value) = rig.pinned(&[1f32; 16]);
    let (x, sum) = (rig.memory(64), rig.memory(64));
    let (mut graph, mut exec) = (0, 0);
    let d = rig.driver;
    // SAFETY: the pointers are to local variables.
    unsafe {
        ok((d.cuMemsetD8Async)(sum, 0, 64, stream));
        ok(rig.synchronize(stream));
        ok((d.cuStreamBeginCapture_v2)(stream, 0));
        assert_eq!((d.cuStreamBeginCapture_v2)(stream, 0), 401, "twice");
        ok(rig.copy(x, one, 64, stream));
        ok((d.cuEventRecord)(event, stream));
        ok((d.cuStreamWaitEvent)(fork, event, 0));
        ok(rig.launch(add, &[x, sum, sum, 16], fork));
        ok((d.cuEventRecord)(event, fork));
        ok((d.cuStreamWaitEvent)(stream, event, 0));
        ok((d.cuStreamEndCapture)(stream, &mut graph));
        assert_eq!(
            rig.read::<f32>(sum, 16, stream),
            [0.0; 16],
            "it did not run"
        );
        ok((d.cuGraphInstantiateWithFlags)(&mut exec, graph, 0));
        ok((d.cuGraphDestroy)(graph));
        ok((d.cuGraphLaunch)(exec, stream));
        assert_eq!(rig.read::<f32>(sum, 16, stream), [1.0; 16]);
        value.write(4.0);
        ok((d.cuGraphLaunch)(exec, stream));
        ok((d.cuGraphLaunch)(exec, stream));
        assert_eq!(rig.read::<f32>(sum, 16, stream)[..2], [9.0, 3.0]);
        ok((d.cuGraphExecDestroy)(exec));
        assert_eq!((d.cuGraphLaunch)(exec, stream), 400);
    }
}

#[test]
fn captures_that_overlap_become_their_own_graphs() {
    let rig = Rig::new();
    let (first, second) = (rig.stream(), rig.stream());
    let (a, b) = (rig.memory(4), rig.memory(4));
    let (mut graphs, mut execs) = ([0, 0], [0, 0]);
    let d = rig.driver;
    // SAFETY: the pointers are to local variables.
    unsafe {
        ok((d.cuStreamBeginCapture_v2)(first, 2));
        ok((d.cuStreamBeginCapture_v2)(second, 2));
        ok((d.cuMemsetD32Async)(a, 1, 1, first));
        ok((d.cuMemsetD32Async)(b, 2, 1, second));
        ok((d.cuStreamEndCapture)(second, &mut graphs[1]));
        ok((d.cuStreamEndCapture)(first, &mut graphs[0]));
        ok((d.cuGraphInstantiateWithFlags)(&mut execs[0], graphs[0], 0));
        ok((d.cuGraphInstantiateWithFlags)(&mut execs[1], graphs[1], 0));
        ok((d.cuGraphLaunch)(execs[0], first));
        assert_eq!(rig.read::<u32>(a, 1, first), [1]);
        assert_eq!(rig.read::<u32>(b, 1, first), [0]);
        ok((d.cuGraphLaunch)(execs[1], first));
        assert_eq!(rig.read::<u32>(b, 1, first), [2]);
    }
}

#[test]
fn a_forbidden_call_invalidates_a_capture() {
    let rig = Rig::new();
    let (stream, other, event) = (rig.stream(), rig.stream(), rig.event());
    let (mut at, mut graph) = (0, 77);
    let d = rig.driver;
    // SAFETY: the pointers are to local variables.
    unsafe {
        let ends_with = |code, graph: &mut u64| {
            assert_eq!((d.cuStreamEndCapture)(stream, graph), code);
            assert_eq!(*graph, 0);
            assert_eq!((d.cuStreamEndCapture)(stream, graph), 401);
            ok(rig.synchronize(stream));
        };
        let begin = |mode| ok((d.cuStreamBeginCapture_v2)(stream, mode));

        assert_eq!((d.cuStreamBeginCapture_v2)(0, 0), 900);
        let status = |stream| {
            let mut status = 9;
            ok((d.cuStreamIsCapturing)(stream, &mut status));
            status
        };
        assert_eq!(status(stream), 0);
        begin(0);
        assert_eq!((status(stream), status(0), status(other)), (1, 0, 0));
        assert_eq!((d.cuMemAlloc_v2)(&mut at, 64), 900);
        assert_eq!(status(stream), 2);
        assert_eq!((d.cuEventRecord)(event, stream), 901);
        ends_with(901, &mut graph);

        begin(0);
        assert_eq!((d.cuStreamQuery)(other), 900);
        ends_with(901, &mut graph);

        begin(2);
        ok((d.cuMemAlloc_v2)(&mut at, 64));
        ok((d.cuStreamQuery)(other));
        assert_eq!((d.cuStreamQuery)(stream), 900);
        ends_with(901, &mut graph);

        begin(2);
        ok((d.cuEventRecord)(event, stream));
        assert_eq!((d.cuEventQuery)(event), 907);
        ends_with(901, &mut graph);
        assert_eq!(
            (d.cuEventQuery)(event),
            1,
            "recorded in a capture that has ended"
        );

        // A fork with work that is not joined.
        begin(0);
        ok((d.cuEventRecord)(event, stream));
        ok((d.cuStreamWaitEvent)(other, event, 0));
        ok((d.cuMemsetD8Async)(at, 0, 64, other));
        ends_with(904, &mut graph);
        ok((d.cuStreamQuery)(other));

        ok((d.cuEventRecord)(event, other));
        begin(0);
        assert_eq!((d.cuStreamWaitEvent)(stream, event, 0), 905);
        ends_with(901, &mut graph);
    }
}

#[test]
fn unknown_handles_are_refused() {
    let rig = Rig::new();
    let d = rig.driver;
    let (stream, event, at) = (rig.stream(), rig.event(), rig.memory(64));
    let (mut ms, mut out) = (0.0, 0);
    // SAFETY: the pointers are to local variables, or null.
    unsafe {
        for bad in [3, 0xdead_beef, event, u64::MAX] {
            assert_eq!((d.cuStreamSynchronize)(bad), 400, "{bad:#x}");
            assert_eq!((d.cuStreamDestroy_v2)(bad), 400);
            assert_eq!((d.cuEventRecord)(event, bad), 400);
            assert_eq!((d.cuMemsetD8Async)(at, 0, 64, bad), 400);
            assert_eq!((d.cuGraphLaunch)(bad, stream), 400);
            assert_eq!((d.cuGraphInstantiateWithFlags)(&mut out, bad, 0), 400);
            assert_eq!(
                (d.cuModuleGetFunction)(&mut out, bad, c"spin".as_ptr()),
                400
            );
            assert_eq!((d.cuModuleUnload)(bad), 400);
            assert_eq!(rig.launch(bad, &[], stream), 400);
            assert_eq!((d.cuCtxSetCurrent)(bad), 201);
        }
        for bad in [0, 3, stream, u64::MAX] {
            assert_eq!((d.cuEventQuery)(bad), 400, "{bad:#x}");
            assert_eq!((d.cuEventDestroy_v2)(bad), 400);
            assert_eq!((d.cuStreamWaitEvent)(stream, bad, 0), 400);
            assert_eq!((d.cuEventElapsedTime)(&mut ms, event, bad), 400);
        }
        ok((d.cuEventDestroy_v2)(event));
        assert_eq!((d.cuEventQuery)(event), 400, "destroyed");
        assert_eq!((d.cuStreamDestroy_v2)(0), 400, "the legacy stream stays");
        ok((d.cuStreamDestroy_v2)(stream));
        assert_eq!((d.cuStreamQuery)(stream), 400, "destroyed");

        // Addresses: before, inside and beyond memory, and freed twice.
        let far = at + (1 << 40);
        assert_eq!((d.cuMemFree_v2)(at + 8), 1);
        assert_eq!((d.cuMemFreeHost)(at), 1);
        assert_eq!((d.cuMemcpy)(far, at, 8), 1);
        assert_eq!((d.cuMemcpy)(at, at + 60, 8), 1, "half outside");
        assert_eq!((d.cuMemcpy)(at, 0, 8), 1);
        assert_eq!((d.cuMemcpy)(at, u64::MAX - 4, 8), 1);
        assert_eq!((d.cuMemsetD8_v2)(at, 0, 65), 1);
        assert_eq!((d.cuMemsetD32Async)(at + 2, 0, 1, 0), 1, "not aligned");
        ok((d.cuMemFree_v2)(at));
        assert_eq!((d.cuMemFree_v2)(at), 1);
        assert_eq!((d.cuMemHostUnregister)(0x10000), 713);

        // Null.
        assert_eq!((d.cuEventCreate)(std::ptr::null_mut(), 0), 1);
        assert_eq!((d.cuMemAlloc_v2)(std::ptr::null_mut(), 8), 1);
        assert_eq!((d.cuMemAlloc_v2)(&mut out, 0), 1);
        assert_eq!((d.cuMemcpy2DAsync_v2)(std::ptr::null(), 0), 1);
    }
}

#[test]
fn a_thread_without_a_context_gets_an_error() {
    let rig = Rig::new();
    let (stream, context) = (rig.stream(), rig.contexts[1]);
    let (event, memory) = (rig.event(), rig.memory(64));
    let d = rig.driver;
    let other = move || {
        let (mut current, mut out) = (1, 0);
        // SAFETY: the pointers are to local variables.
        unsafe {
            ok((d.cuCtxGetCurrent)(&mut current));
            assert_eq!(current, 0);
            assert_eq!((d.cuCtxPopCurrent_v2)(&mut current), 201);
            assert_eq!((d.cuEventCreate)(&mut out, 0), 201);
            assert_eq!((d.cuMemAlloc_v2)(&mut out, 64), 201);
            assert_eq!((d.cuMemHostAlloc)(&mut out, 64, 0), 201);
            assert_eq!((d.cuMemcpy)(memory, memory + 32, 32), 201);
            assert_eq!((d.cuCtxSynchronize)(), 201);
            for default in [0, 1, 2] {
                assert_eq!((d.cuStreamQuery)(default), 201);
                assert_eq!((d.cuEventRecord)(event, default), 201);
            }
            // A stream determines the device by itself (observed on an H200, driver 580).
            ok((d.cuMemsetD8Async)(memory, 0, 64, stream));
            ok((d.cuEventRecord)(event, stream));
            ok((d.cuEventSynchronize)(event));
            ok((d.cuStreamQuery)(stream));
            ok((d.cuMemFree_v2)(memory));

            ok((d.cuCtxPushCurrent_v2)(context));
            ok((d.cuEventCreate)(&mut out, 0));
            ok((d.cuStreamQuery)(0));
            ok((d.cuCtxPopCurrent_v2)(&mut current));
            assert_eq!(current, context);
            assert_eq!((d.cuEventCreate)(&mut out, 0), 201);
        }
    };
    std::thread::spawn(other).join().unwrap();
}

#[test]
fn an_event_is_recorded_only_on_streams_of_its_device() {
    let rig = Rig::new();
    let (stream, event) = (rig.stream(), rig.event());
    let d = rig.driver;
    // SAFETY: none of these takes a pointer.
    unsafe {
        ok((d.cuCtxSetCurrent)(rig.contexts[1]));
        let (foreign, foreign_event) = (rig.stream(), rig.event());
        assert_eq!((d.cuEventRecord)(event, foreign), 400);
        assert_eq!((d.cuEventRecord)(foreign_event, stream), 400);
        ok((d.cuEventRecord)(event, stream));
        ok((d.cuStreamWaitEvent)(foreign, event, 0));
        ok((d.cuEventSynchronize)(event));
        ok((d.cuCtxSetCurrent)(rig.contexts[0]));
    }
}

#[test]
fn devices_reach_each_other_once_they_are_allowed_to() {
    let rig = Rig::new();
    let d = rig.driver;
    let (stream, own) = (rig.stream(), rig.memory(64));
    let mut can = 0;
    // SAFETY: the pointers are to local variables.
    unsafe {
        ok((d.cuDeviceCanAccessPeer)(&mut can, 0, 1));
        assert_eq!(can, 1);
        ok((d.cuDeviceCanAccessPeer)(&mut can, 0, 0));
        assert_eq!(can, 0);
        ok((d.cuCtxEnablePeerAccess)(rig.contexts[1], 0));
        assert_eq!((d.cuCtxEnablePeerAccess)(rig.contexts[1], 0), 704);
        assert_eq!((d.cuCtxEnablePeerAccess)(rig.contexts[0], 0), 101);
        ok((d.cuCtxSetCurrent)(rig.contexts[1]));
        let theirs = rig.memory(64);
        ok((d.cuCtxSetCurrent)(rig.contexts[0]));
        // Kernels and copies.
        let fill = rig.function(&PATTERN, c"fill_pattern");
        ok(rig.launch(fill, &[theirs, 16, 3], stream));
        ok(rig.copy(own, theirs, 64, stream));
        ok(rig.launch(fill, &[theirs, 16, 4], stream));
        let found = rig.memory(4);
        ok((d.cuMemsetD8Async)(found, 0, 4, stream));
        let check = rig.function(&PATTERN, c"check_pattern");
        ok(rig.launch(check, &[own, 16, 3, found], stream));
        assert_eq!(rig.read::<u32>(found, 1, stream), [0]);
        ok(rig.launch(check, &[own, 16, 4, found], stream));
        assert_eq!(rig.read::<u32>(found, 1, stream), [16]);
    }
}

#[test]
fn one_gather_copies_all_the_pieces_of_its_table() {
    let rig = Rig::new();
    let gather = rig.function(&GATHER, c"gather");
    let stream = rig.stream();
    let (from, _) = rig.pinned(&std::array::from_fn::<u8, 200, _>(|i| i as u8));
    let to = rig.memory(300);
    ok(unsafe_fill(&rig, to, 300, stream));
    let (table, _) = rig.pinned(&[
        [from, to, 3],
        [from + 101, to + 50, 99],
        [from, to + 299, 1],
    ]);
    ok(rig.launch(gather, &[table, 3], stream));
    let got: Vec<u8> = rig.read(to, 300, stream);
    assert_eq!(got[..4], [0, 1, 2, 255]);
    assert_eq!(got[49..52], [255, 101, 102]);
    assert_eq!(got[148..150], [199, 255]);
    assert_eq!(got[299], 0);
}

fn unsafe_fill(rig: &Rig, at: u64, bytes: usize, stream: u64) -> i32 {
    // SAFETY: the call takes no host pointer.
    unsafe { (rig.driver.cuMemsetD8Async)(at, 255, bytes, stream) }
}

#[test]
fn a_function_on_the_host_runs_in_the_order_of_its_stream() {
    static SEEN: Mutex<Vec<i32>> = Mutex::new(Vec::new());
    unsafe extern "C" fn note(event: *mut c_void) {
        let d = load();
        let mut at = 0;
        let event = event.addr() as u64;
        // SAFETY: the pointer is to a local variable.
        let codes = unsafe {
            [
                (d.cuMemAlloc_v2)(&mut at, 8),
                (d.cuStreamQuery)(0),
                (d.cuEventQuery)(event),
            ]
        };
        SEEN.lock().unwrap().extend(codes);
    }
    let rig = Rig::new();
    let spin = rig.function(&SPIN, c"spin");
    let (stream, event) = (rig.stream(), rig.event());
    // SAFETY: the function uses its argument as a number.
    unsafe {
        ok((rig.driver.cuEventRecord)(event, stream));
        ok(rig.launch(spin, &[1_000_000], stream));
        let argument = std::ptr::without_provenance_mut(event as usize);
        ok((rig.driver.cuLaunchHostFunc)(stream, note, argument));
        assert_eq!(*SEEN.lock().unwrap(), [0; 0]);
        ok(rig.synchronize(stream));
        assert_eq!(*SEEN.lock().unwrap(), [800, 800, 0]);
    }
}

#[test]
fn memory_of_a_stream_and_registered_memory_come_and_go() {
    let rig = Rig::new();
    let d = rig.driver;
    let stream = rig.stream();
    let (mut at, mut free, mut free_then, mut all) = (0, 0, 0, 0);
    let values = vec![9u8; 10_000];
    let host = address(&values);
    // SAFETY: the pointers are to local variables; the values outlive their registration.
    unsafe {
        ok((d.cuMemGetInfo_v2)(&mut free, &mut all));
        assert!(all > 140_000_000_000 && free <= all);
        ok((d.cuMemAllocAsync)(&mut at, 10_000, stream));
        ok((d.cuMemGetInfo_v2)(&mut free_then, &mut all));
        assert_eq!(free - free_then, 10_000);
        ok((d.cuMemHostRegister_v2)(host, 10_000, 1));
        assert_eq!((d.cuMemHostRegister_v2)(host + 100, 10, 1), 712);
        ok(rig.copy(at, host, 10_000, stream));
        assert_eq!(rig.read::<u8>(at, 10_000, stream), values);
        ok((d.cuMemHostUnregister)(host));
        assert_eq!((d.cuMemHostUnregister)(host), 713);
        ok((d.cuMemFreeAsync)(at, stream));
        assert_eq!((d.cuMemFreeAsync)(at, stream), 1);
        let (pinned, _) = rig.pinned(&[0u8; 64]);
        assert_eq!(
            (d.cuMemHostRegister_v2)(pinned, 64, 1),
            1,
            "allocated as pinned"
        );
        ok((d.cuMemFreeHost)(pinned));
        assert_eq!((d.cuMemFreeHost)(pinned), 1);
        assert_eq!((d.cuMemAlloc_v2)(&mut at, usize::MAX / 2), 2);
    }
}

#[test]
fn modules_that_cannot_be_run_are_refused_with_a_reason() {
    let rig = Rig::new();
    let d = rig.driver;
    let (mut module, mut function) = (0, 0);
    let mut log = [0 as c_char; 64];
    let mut options = [5, 6];
    let mut values = [
        log.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(64),
    ];
    // SAFETY: the pointers are to local variables; the log has the length of its option.
    unsafe {
        let image = CString::new("int main() {}").unwrap();
        let image = image.as_ptr().cast();
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        assert_eq!(
            (d.cuModuleLoadDataEx)(&mut module, image, 2, options, values),
            218
        );
        let text = CStr::from_ptr(log.as_ptr()).to_str().unwrap();
        assert!(text.contains("no `.version`"), "{text}");
        assert_eq!((*values.add(1)).addr(), text.len());

        let elf = c"\x7fELF".as_ptr().cast();
        assert_eq!(
            (d.cuModuleLoadDataEx)(&mut module, elf, 0, options, values),
            209
        );

        let module = rig.module(".version 8.0 .entry other() .entry spin(.param .u32 ns)");
        for missing in [c"another", c"other", c"spin"] {
            let name = missing.as_ptr();
            assert_eq!(
                (d.cuModuleGetFunction)(&mut function, module, name),
                500,
                "{missing:?}"
            );
        }
        let module = rig.module(&SPIN);
        ok((d.cuModuleGetFunction)(
            &mut function,
            module,
            c"spin".as_ptr(),
        ));
        let (none, extra) = (std::ptr::null_mut(), std::ptr::null_mut());
        let launch = |blocks, threads, shared| {
            (d.cuLaunchKernel)(
                function, blocks, 1, 1, threads, 1, 1, shared, 0, none, extra,
            )
        };
        assert_eq!(launch(1, 1, 0), 1, "no parameters");
        assert_eq!(rig.launch(function, &[1], 0), 0);
        assert_eq!(launch(0, 1, 0), 1);
        assert_eq!(launch(1, 2048, 0), 1);
        assert_eq!(launch(1, 1, 64 << 10), 1);
        assert_eq!((d.cuFuncSetAttribute)(function, 8, 1 << 20), 1);
        ok((d.cuFuncSetAttribute)(function, 8, 64 << 10));
        ok((d.cuModuleUnload)(module));
        assert_eq!(rig.launch(function, &[1], 0), 400);
        ok((d.cuCtxSynchronize)());
    }
}

#[test]
fn the_devices_say_what_they_are() {
    let rig = Rig::new();
    let d = rig.driver;
    let mut name = [0 as c_char; 64];
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: the pointer is to a local variable.
        ok(unsafe { (d.cuDeviceGetAttribute)(&mut value, which, 1) });
        f64::from(value)
    };
    // SAFETY: the pointers are to local variables with the lengths that are passed.
    unsafe {
        ok((d.cuDeviceGetName)(name.as_mut_ptr(), 64, 1));
        let text = CStr::from_ptr(name.as_ptr()).to_str().unwrap();
        assert_eq!(text, "NVIDIA H200 (stand-in)");
        ok((d.cuDeviceGetName)(name.as_mut_ptr(), 7, 1));
        assert_eq!(CStr::from_ptr(name.as_ptr()), c"NVIDIA");
        assert_eq!((d.cuDeviceGetName)(name.as_mut_ptr(), 7, 2), 101);
        let (mut least, mut greatest) = (9, 9);
        ok((d.cuCtxGetStreamPriorityRange)(&mut least, &mut greatest));
        assert_eq!((least, greatest), (0, -5));
    }
    assert_eq!(
        (attribute(75), attribute(76), attribute(16)),
        (9.0, 0.0, 132.0)
    );
    let bytes_per_s = 2e3 * attribute(36) * attribute(37) / 8.0;
    assert!((bytes_per_s / 4.8e12 - 1.0).abs() < 0.01, "{bytes_per_s}");
    assert_eq!(
        d.words(700),
        "CUDA_ERROR_ILLEGAL_ADDRESS: a kernel accessed memory that does not exist"
    );
    assert_eq!(d.words(12345), "the driver has no name for code 12345");
}

#[test]
fn copies_ignore_the_protection_of_the_hosts_pages() {
    unsafe extern "C" {
        fn mprotect(at: *mut c_void, bytes: usize, protection: i32) -> i32;
    }
    let rig = Rig::new();
    let stream = rig.stream();
    let (up, _) = rig.pinned(&[7u8; 5000]);
    let (down, in_down) = rig.pinned(&[0u8; 5000]);
    let middle = rig.memory(5000);
    assert_eq!((up % 4096, down % 4096), (0, 0));
    let protect = |protection| {
        for at in [up, down].map(|at| std::ptr::with_exposed_provenance_mut(at as usize)) {
            // SAFETY: pinned memory has its pages for itself, and nothing uses these two meanwhile.
            assert_eq!(unsafe { mprotect(at, 8192, protection) }, 0);
        }
    };
    protect(0);
    ok(rig.copy(middle, up, 5000, stream));
    ok(rig.copy(down, middle, 5000, stream));
    ok(rig.synchronize(stream));
    protect(3);
    // SAFETY: the pages can be read again, and the copy into them is complete.
    assert_eq!(unsafe { in_down.cast::<[u8; 5000]>().read() }, [7; 5000]);
}

#[test]
fn a_batch_reads_its_sources_when_their_order_says() {
    type Batch = unsafe extern "C" fn(
        *const u64,
        *const u64,
        *const usize,
        usize,
        *const [u32; 6],
        *const usize,
        usize,
        u64,
    ) -> i32;
    let rig = Rig::new();
    let stream = rig.stream();
    let file = sidestream_stand_in::library().unwrap();
    // SAFETY: the library runs no initialiser when it is loaded, and the function has this type.
    let batch: Batch = unsafe {
        let library = libloading::Library::new(file).unwrap();
        let found = *library.get::<Batch>("cuMemcpyBatchAsync_v2").unwrap();
        std::mem::forget(library);
        found
    };
    let (pinned, in_pinned) = rig.pinned(&[1u8; 4]);
    for (order, expected) in [(1u32, 2u8), (2, 1), (3, 2)] {
        let mut heap = vec![1u8; 4];
        let (to, sizes, first_of) = ([rig.memory(4), rig.memory(4)], [4usize, 4], 0);
        let from = [address(&heap), pinned];
        let attributes = [order, 0, 0, 0, 0, 0];
        // SAFETY: the lists have two elements, and the memory four bytes.
        unsafe {
            in_pinned.write_bytes(1, 4);
            let lists = (to.as_ptr(), from.as_ptr(), sizes.as_ptr());
            ok(batch(
                lists.0,
                lists.1,
                lists.2,
                2,
                &attributes,
                &first_of,
                1,
                stream,
            ));
            in_pinned.write_bytes(2, 4);
        }
        heap.fill(2);
        assert_eq!(rig.read::<u8>(to[0], 4, stream), [expected; 4]);
        assert_eq!(rig.read::<u8>(to[1], 4, stream), [expected; 4]);
        drop(heap);
    }
}
