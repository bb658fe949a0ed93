//! Kernels that fail and lose their device: which calls return the error, what it says, and that everything ends.

use sidestream::device::Device;
use sidestream::error::{Error, Lost};
use sidestream::explicit::{self, DeviceMemory, Event, HostMemory};
use sidestream::kernel::{Grid, library};
use sidestream::pipeline::{Cause, Pipeline, per_row};
use sidestream::stream::Stream;

use crate::child;
use crate::kernels::{HOLD_NS, fill, poke, spin};
use crate::target::{Scenario, Target, one};
use crate::untracked;

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(a_trap_reaches_the_caller_that_waits),
        one(an_illegal_address_reaches_the_caller_that_waits),
        one(every_later_call_gives_the_same_error),
        one(memory_in_flight_stays_where_it_is),
        one(a_graph_that_traps_is_named),
        one(a_function_after_a_trap_is_dropped),
        one(a_pipeline_on_a_lost_device_fails_as_the_device),
        one(a_waiting_task_is_woken),
        one(handles_of_other_threads_are_dropped_without_errors),
    ]
}

fn a_trap_reaches_the_caller_that_waits(target: Target) {
    child::run("trap", target);
}

fn an_illegal_address_reaches_the_caller_that_waits(target: Target) {
    child::run("poke", target);
}

fn every_later_call_gives_the_same_error(target: Target) {
    child::run("later calls", target);
}

fn memory_in_flight_stays_where_it_is(target: Target) {
    child::run("in flight", target);
}

fn a_graph_that_traps_is_named(target: Target) {
    child::run("graph", target);
}

fn a_function_after_a_trap_is_dropped(target: Target) {
    child::run("function", target);
}

fn a_pipeline_on_a_lost_device_fails_as_the_device(target: Target) {
    child::run("pipeline", target);
}

fn a_waiting_task_is_woken(target: Target) {
    child::run("task", target);
}

fn handles_of_other_threads_are_dropped_without_errors(target: Target) {
    child::run("threads", target);
}

/// Runs one of the scenarios above in this process, which ends when all handles are dropped.
pub fn run(name: &str, target: Target) {
    let device = target.open();
    match name {
        "trap" => trapped(target, &device),
        "poke" => poked(target, &device),
        "later calls" => later_calls(&device),
        "in flight" => in_flight(&device),
        "graph" => graph(&device),
        "function" => function(&device),
        "pipeline" => pipeline(&device),
        "task" => task(&device),
        "threads" => threads(&device),
        other => panic!("there is no scenario {other:?}"),
    }
}

const LEN: usize = 4096;
/// CUDA's `cudaErrorLaunchFailure`, the code of a trap.
const TRAP: i32 = 719;
/// CUDA's `cudaErrorIllegalAddress`.
const ILLEGAL: i32 = 700;

#[track_caller]
fn lost<T>(result: Result<T, impl Into<Error>>) -> Lost {
    match result.map_err(Into::into) {
        Err(Error::DeviceLost(lost)) => lost,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("nothing has failed"),
    }
}

fn trap(stream: &Stream) {
    stream
        .launch(&library::trap(), Grid::new(1, 1), ())
        .unwrap();
}

fn trapped(target: Target, device: &Device) {
    let stream = device.stream("the stream").unwrap();
    let mut x = stream.alloc::<u32>(LEN).unwrap();
    fill(&stream, x.view_mut(), 1);
    stream.synchronize().unwrap();
    spin(HOLD_NS).hold(&stream);
    trap(&stream);
    fill(&stream, x.view_mut(), 2);
    let error = lost(stream.synchronize());
    assert_eq!((error.code, error.device), (TRAP, device.id()), "{error}");
    // The simulated GPU knows which call failed; a driver only knows which calls are not known to be complete.
    let named = match target {
        Target::Sim => ["trap", "kernel"],
        Target::StandIn | Target::Cuda => ["kernel `trap`", "the stream"],
    };
    assert!(named.iter().all(|name| error.why.contains(name)), "{error}");
}

fn poked(target: Target, device: &Device) {
    let stream = device.stream("the stream").unwrap();
    let args = (8, 1);
    stream.launch(&poke(), Grid::new(1, 1), args).unwrap();
    let error = lost(stream.synchronize());
    // A kernel in Rust has no addresses: access to memory that it does not have is a panic, like a trap.
    let code = if target == Target::Sim { TRAP } else { ILLEGAL };
    assert_eq!(error.code, code, "{error}");
    assert!(error.why.contains("poke"), "{error}");
}

fn later_calls(device: &Device) {
    let (stream, other) = (device.stream("s").unwrap(), device.stream("o").unwrap());
    let native = untracked::stream(device, "e");
    let event = stream.record_event().unwrap();
    let own = Event::new(device).unwrap();
    let mut x = stream.alloc::<u32>(LEN).unwrap();
    let mut nodes = device.graph();
    let y = nodes.own(stream.alloc::<u32>(LEN).unwrap()).unwrap();
    nodes.memset(y.view_mut(), 1).unwrap();
    let mut graph = nodes.build().unwrap();
    trap(&stream);
    let first = lost(stream.synchronize());
    let host = vec![0u32; LEN];
    let answers = [
        lost(stream.synchronize()),
        lost(other.synchronize()),
        lost(stream.query()),
        lost(other.query()),
        lost(stream.record_event()),
        lost(stream.record_timed()),
        lost(other.wait_event(&event)),
        lost(other.wait_stream(&stream)),
        lost(stream.alloc::<u32>(LEN * 1000)),
        lost(stream.memset(x.view_mut(), 1)),
        lost(stream.memcpy_h2d(&host, x.view_mut())),
        lost(stream.host_func((), |()| ())),
        lost(device.stream("new")),
        lost(device.pinned::<u32>(1 << 20)),
        lost(device.synchronize()),
        lost(device.empty_cache()),
        lost(graph.launch(&other)),
        lost(device.graph().build()),
        lost(native.record(&own)),
        lost(native.synchronize()),
        lost(native.query()),
        lost(own.synchronize()),
        lost(Event::new(device)),
        lost(explicit::synchronize(device)),
        lost(DeviceMemory::malloc(device, 8)),
        lost(HostMemory::pinned(device, 8)),
        lost(native.malloc_async(8)),
    ];
    for (at, answer) in answers.iter().enumerate() {
        assert_eq!(*answer, first, "answer {at}");
    }
}

fn in_flight(device: &Device) {
    let (stream, other) = (device.stream("s").unwrap(), device.stream("o").unwrap());
    let mut x = stream.alloc::<u32>(LEN).unwrap();
    let host = device.pinned::<u32>(LEN).unwrap();
    spin(HOLD_NS).hold(&stream);
    let sent = stream.upload(host, x.view_mut()).unwrap();
    trap(&stream);
    let back = stream
        .download(x.view(), device.pinned(LEN).unwrap())
        .unwrap();
    let error = lost(back.synchronize());
    assert_eq!(error.code, TRAP, "{error}");
    // The upload completed before the trap, or its state is unknown: its memory is given back or lost, never both.
    drop(sent);
    drop(x);
    let refused = other.alloc::<u32>(1 << 22);
    assert_eq!(lost(refused), error);
}

fn graph(device: &Device) {
    let stream = device.stream("s").unwrap();
    let mut nodes = device.graph();
    let x = nodes.own(stream.alloc::<u32>(LEN).unwrap()).unwrap();
    nodes.memset(x.view_mut(), 1).unwrap();
    nodes.launch(&library::trap(), Grid::new(1, 1), ()).unwrap();
    let mut graph = nodes.build().unwrap();
    let launched = graph.launch(&stream).unwrap();
    let error = lost(launched.synchronize());
    assert_eq!(error.code, TRAP, "{error}");
    assert!(
        error.why.contains("graph") || error.why.contains("trap"),
        "{error}"
    );
}

fn function(device: &Device) {
    let stream = device.stream("s").unwrap();
    let (owned, dropped) = std::sync::mpsc::channel::<()>();
    trap(&stream);
    let ran = stream.host_func(owned, |owned| {
        let _ = owned.send(());
    });
    let error = match ran {
        // A fast device has failed already.
        Err(error) => lost::<()>(Err(error)),
        Ok(pending) => lost(pending.synchronize()),
    };
    assert_eq!(error.code, TRAP, "{error}");
    // The function never ran.
    assert!(dropped.try_recv().is_err());
}

fn pipeline(device: &Device) {
    let trap = library::trap();
    let mut running = Pipeline::new(device, LEN)
        .upload(per_row::<u32>(1))
        .apply("falls", move |at, x| {
            if at.index() == 5 {
                at.stream().launch(&trap, Grid::new(1, 1), ())?;
            }
            at.stream().memset(x.view_mut(), 1)
        })
        .download(per_row::<u32>(1), |x| x)
        .depth(3)
        .fill(|index, _| Ok((index < 20).then_some(LEN)));
    let failed = loop {
        match running.next() {
            Some(Ok(item)) => assert!(item.index() < 5),
            Some(Err(failed)) => break failed,
            None => panic!("it ended without an error"),
        }
    };
    assert_eq!(failed.stage, "device");
    let is_lost =
        matches!(&failed.cause, Cause::Runtime(Error::DeviceLost(lost)) if lost.code == TRAP);
    assert!(is_lost, "{failed}");
}

fn task(device: &Device) {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};

    struct Unparks(std::thread::Thread);
    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let stream = device.stream("s").unwrap();
    let x = stream.alloc_zeroed::<u32>(LEN).unwrap();
    spin(HOLD_NS).hold(&stream);
    trap(&stream);
    let back = stream
        .download(x.view(), device.pinned(LEN).unwrap())
        .unwrap();
    let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut back = pin!(back);
    let result = loop {
        match back.as_mut().poll(&mut context) {
            Poll::Ready(result) => break result,
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(lost(result).code, TRAP);
}

fn threads(device: &Device) {
    let stream = device.stream("s").unwrap();
    trap(&stream);
    let errors: Vec<Lost> = std::thread::scope(|scope| {
        let each = (0..4).map(|at| {
            let device = device.clone();
            let stream = stream.clone();
            scope.spawn(move || {
                let own = device.stream(&format!("s{at}"));
                let error = lost(stream.synchronize());
                drop((own, device));
                error
            })
        });
        let each: Vec<_> = each.collect();
        each.into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}
