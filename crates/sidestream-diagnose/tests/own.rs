//! Checks that traces which Sidestream writes are read back, to the nanosecond.

use sidestream::op::{DeviceId, Memory, OpId, StreamId, ThreadId};
use sidestream::trace;
use sidestream_diagnose::{Direction, Limits, RangeKind, Source, SyncKind, Trace, What, read_json};

/// Returns an upload, a kernel after it in another stream, and a wait for that, with a named range around them.
fn run(log: Option<Vec<u8>>) -> trace::Trace {
    let stream = |id, name: &str| trace::Stream {
        id: StreamId(id),
        device: DeviceId(0),
        name: name.to_owned(),
        is_legacy: false,
    };
    let call = |op, name, start_ns, end_ns| trace::Call {
        op: OpId(op),
        thread: ThreadId(3),
        name,
        start_ns,
        end_ns,
        is_host_work: false,
        waits: None,
    };
    let work = |op, stream, what, start_ns, end_ns| trace::Work {
        op: OpId(op),
        device: DeviceId(0),
        stream: StreamId(stream),
        what,
        name: format!("work {op}"),
        label: String::new(),
        start_ns,
        end_ns,
    };
    let upload = trace::What::Copy {
        from: Memory::Pinned,
        to: Memory::Device,
        bytes: 4096,
    };
    trace::Trace {
        devices: vec![trace::Device {
            id: DeviceId(0),
            name: "sim:h200".to_owned(),
            sms: 132,
            memory_bytes: 1 << 37,
        }],
        streams: vec![stream(0, "upload"), stream(1, "compute")],
        threads: vec![trace::Thread {
            id: ThreadId(3),
            name: "main".to_owned(),
        }],
        calls: vec![
            call(0, "cudaMemcpyAsync", 1_001, 2_502),
            call(1, "cudaLaunchKernel", 2_503, 4_999),
            trace::Call {
                waits: Some(trace::Waits::Stream(StreamId(1))),
                ..call(2, "cudaStreamSynchronize", 5_000, 123_456_789_012)
            },
        ],
        work: vec![
            work(0, 0, upload, 2_003, 9_007),
            work(1, 1, trace::What::Kernel, 9_008, 123_456_788_999),
        ],
        spans: vec![trace::Span {
            name: "step".to_owned(),
            number: 0,
            place: trace::Place::Thread(ThreadId(3)),
            start_ns: 1_000,
            end_ns: 5_001,
        }],
        log,
    }
}

fn read_back(trace: &trace::Trace) -> Trace {
    let mut json = Vec::new();
    trace
        .write_json(&mut json)
        .expect("memory takes everything");
    read_json(&json, &Limits::default()).expect("a trace")
}

#[test]
fn our_own_trace_is_read_back_to_the_nanosecond() {
    // The log of a run is not an event; a long one need not fit into memory either.
    for log in [None, Some(b"SIDESTRM".repeat(1 << 20))] {
        let trace = read_back(&run(log));
        assert_eq!(trace.source, Source::Sidestream);
        assert_eq!(trace.devices[0].name, "sim:h200");
        assert_eq!(trace.threads[0].name, "main");
        let work: Vec<_> = trace
            .work
            .iter()
            .map(|w| (w.start_ns, w.end_ns()))
            .collect();
        assert_eq!(work, [(2_003, 9_007), (9_008, 123_456_788_999)]);
        let What::Copy {
            direction, bytes, ..
        } = trace.work[0].what
        else {
            panic!("{:?}", trace.work[0]);
        };
        assert_eq!((direction, bytes), (Direction::Upload, 4096));
        assert!(matches!(trace.work[1].what, What::Kernel(_)));
        let calls: Vec<_> = (trace.calls.iter())
            .map(|c| (trace.names.text(c.name), c.start_ns, c.end_ns()))
            .collect();
        assert_eq!(
            calls,
            [
                ("cudaMemcpyAsync", 1_001, 2_502),
                ("cudaLaunchKernel", 2_503, 4_999),
                ("cudaStreamSynchronize", 5_000, 123_456_789_012),
            ]
        );
        // Work and call share their number.
        for (work, call) in trace.work.iter().zip(&trace.calls) {
            assert_eq!(work.correlation, call.correlation);
        }
        assert_eq!(trace.syncs[0].kind, SyncKind::Stream);
        assert_eq!(trace.syncs[0].stream, Some(trace.work[1].stream));
        assert_eq!(trace.ranges[0].kind, RangeKind::Annotation);
        assert_eq!(trace.warnings, []);
    }
}

#[test]
fn a_trace_with_only_a_log_is_known_as_sidestreams() {
    let json = br#"{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1}],
        "sidestream": {"op_log": "AAAA"}}"#;
    let trace = read_json(json, &Limits::default()).expect("a trace");
    assert_eq!(trace.source, Source::Sidestream);
}
