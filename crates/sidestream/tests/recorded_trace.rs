//! A log with times as a trace: what ran when, and in which span it was called.

use serde_json::Value;
use sidestream::backend::Done;
use sidestream::log::{Error, Reader, Record, Writer};
use sidestream::op::*;
use sidestream::trace::{Place, Recorded, recorded};

const ROOM: u64 = 1 << 26;

/// A log of two threads and two streams, written call by call.
struct Log {
    writer: Writer<Vec<u8>>,
    next: u32,
}

const MAIN: ThreadId = ThreadId(0);
const OTHER: ThreadId = ThreadId(1);
const UPLOAD: StreamId = StreamId(0);
const COMPUTE: StreamId = StreamId(1);

impl Log {
    fn new() -> Log {
        let mut writer = Writer::new(Vec::new()).unwrap();
        for name in ["upload", "compute"] {
            let kind = StreamKind::NonBlocking;
            writer
                .take(&Record::stream(kind, DeviceId(0), name))
                .unwrap();
        }
        writer.take(&Record::event(false, None, "")).unwrap();
        writer
            .take(&Record::buffer(Memory::Device, 4096, None, "A"))
            .unwrap();
        writer.take(&Record::thread("main")).unwrap();
        writer.take(&Record::thread("")).unwrap();
        writer.take(&Record::site("train.py:1")).unwrap();
        Log { writer, next: 0 }
    }

    fn span(&mut self, thread: ThreadId, enters: Option<&str>) {
        self.writer.take(&Record::span(thread, enters)).unwrap();
    }

    fn call(&mut self, thread: ThreadId, kind: Kind, call_ns: (u64, u64), work_ns: (u64, u64)) {
        self.op(thread, kind);
        let op = OpId(self.next - 1);
        let some = |(start, end)| (start < end).then_some((start, end));
        let (call_ns, work_ns) = (some(call_ns), some(work_ns));
        let done = Done {
            op,
            call_ns,
            work_ns,
        };
        self.writer.take(&Record::Done(done)).unwrap();
    }

    fn op(&mut self, thread: ThreadId, kind: Kind) {
        let access = Access {
            buffer: BufferId(0),
            start: 0,
            end: 4096,
            mode: Mode::Write,
        };
        let op = Op {
            id: OpId(self.next),
            thread,
            site: SiteId(0),
            kind,
            accesses: [access].into_iter().collect(),
        };
        self.writer.take(&Record::op(&op)).unwrap();
        self.next += 1;
    }

    fn read(self) -> Recorded {
        let bytes = self.writer.finish().unwrap();
        recorded(Reader::new(&bytes[..]).unwrap(), ROOM).unwrap()
    }
}

fn kernel(stream: StreamId) -> Kind {
    Kind::kernel(stream)
}

fn copy(stream: StreamId) -> Kind {
    Kind::Copy {
        stream,
        from: Memory::Pinned,
        to: Memory::Device,
    }
}

/// Returns the spans as lines: name, place, start and end.
fn spans(recorded: &Recorded) -> Vec<String> {
    let spans = recorded.trace.spans.iter().map(|span| {
        let place = match span.place {
            Place::Thread(thread) => format!("thread {}", thread.0),
            Place::Stream(device, stream) => format!("GPU {} stream {}", device.0, stream.0),
        };
        let (start, end) = (span.start_ns, span.end_ns);
        format!("{} on {place}: {start}..{end}", span.name)
    });
    spans.collect()
}

#[test]
fn a_span_encloses_its_calls_their_work_and_its_inner_spans() {
    let mut log = Log::new();
    log.call(MAIN, kernel(COMPUTE), (1_000, 1_010), (1_100, 1_200));
    log.span(MAIN, Some("step"));
    log.call(MAIN, copy(UPLOAD), (1_020, 1_030), (1_150, 1_500));
    log.span(MAIN, Some("forward"));
    log.call(MAIN, kernel(COMPUTE), (1_040, 1_050), (1_600, 1_700));
    // The other thread is in no span, and neither are its calls.
    log.call(OTHER, kernel(COMPUTE), (1_045, 1_055), (1_800, 1_900));
    log.call(MAIN, kernel(COMPUTE), (1_060, 1_070), (2_000, 2_100));
    log.span(MAIN, None);
    log.span(MAIN, Some("nothing"));
    log.span(MAIN, None);
    log.span(MAIN, None);
    log.call(MAIN, kernel(UPLOAD), (1_080, 1_090), (3_000, 3_100));
    let recorded = log.read();
    assert_eq!(
        spans(&recorded),
        [
            "step on thread 0: 20..70",
            "step on GPU 0 stream 0: 150..500",
            "step on GPU 0 stream 1: 600..1100",
            "forward on thread 0: 40..70",
            "forward on GPU 0 stream 1: 600..1100",
        ]
    );
    assert_eq!((recorded.ops, recorded.timed), (6, 6));
}

#[test]
fn rows_and_ranges_are_in_the_same_lanes_as_in_pytorchs_profiler() {
    let mut log = Log::new();
    let (event, stream) = (EventId(0), UPLOAD);
    log.span(MAIN, Some("forward"));
    log.call(MAIN, copy(UPLOAD), (10, 20), (100, 200));
    log.call(MAIN, Kind::Record { event, stream }, (20, 25), (0, 0));
    let wait = Kind::Wait {
        stream: COMPUTE,
        event,
    };
    log.call(MAIN, wait, (25, 30), (150, 200));
    log.call(MAIN, kernel(COMPUTE), (30, 40), (210, 300));
    log.call(MAIN, Kind::SyncEvent { event }, (40, 210), (0, 0));
    log.span(MAIN, None);
    let mut json = Vec::new();
    log.read().trace.write_json(&mut json).unwrap();
    let whole: Value = serde_json::from_slice(&json).unwrap();
    // An unknown value is omitted.
    assert_eq!(whole["deviceProperties"][0]["numSms"], Value::Null);
    let rows = whole["traceEvents"].as_array().unwrap();
    let row = |cat: &str| -> Vec<&Value> { rows.iter().filter(|r| r["cat"] == cat).collect() };

    let [host] = row("user_annotation")[..] else {
        panic!("{rows:?}");
    };
    let calls = row("cuda_runtime");
    assert_eq!(calls.len(), 5);
    for call in &calls {
        assert_eq!((&call["pid"], &call["tid"]), (&host["pid"], &host["tid"]));
    }
    assert_eq!(host["name"], "forward");
    assert_eq!(
        (host["ts"].as_f64(), host["dur"].as_f64()),
        (Some(0.0), Some(0.2))
    );

    let device = row("gpu_user_annotation");
    let (copies, kernels) = (row("gpu_memcpy"), row("kernel"));
    assert_eq!((device.len(), copies.len(), kernels.len()), (2, 1, 1));
    for (range, work) in device.iter().zip([copies[0], kernels[0]]) {
        for key in ["pid", "tid", "ts", "dur"] {
            assert_eq!(range[key], work[key], "{key}");
        }
        assert_eq!(range["name"], "forward");
        assert_eq!(range["args"]["External id"], host["args"]["External id"]);
    }
    assert_eq!(copies[0]["name"], "Memcpy HtoD (Pinned -> Device)");
    assert_eq!(copies[0]["args"]["bytes"], 4096);
    assert_eq!(kernels[0]["name"], "train.py:1");
    // Both waits name the call that recorded the event.
    let record = calls.iter().find(|call| call["name"] == "cudaEventRecord");
    let record = &record.unwrap()["args"]["correlation"];
    let waits = row("cuda_sync");
    assert_eq!(waits.len(), 2);
    for wait in waits {
        assert_eq!(&wait["args"]["wait_on_cuda_event_record_corr_id"], record);
    }
}

#[test]
fn operations_without_times_are_dropped_and_counted() {
    let mut log = Log::new();
    log.op(MAIN, kernel(COMPUTE));
    log.call(MAIN, kernel(COMPUTE), (0, 0), (50, 60));
    log.call(MAIN, Kind::HostAccess, (70, 80), (0, 0));
    // Times of a skipped number belong to no operation.
    log.next += 5;
    log.op(MAIN, kernel(COMPUTE));
    let stray = Done {
        op: OpId(4),
        call_ns: Some((1, 2)),
        work_ns: None,
    };
    log.writer.take(&Record::Done(stray)).unwrap();
    let recorded = log.read();
    assert_eq!((recorded.ops, recorded.timed), (4, 2));
    let (calls, work) = (&recorded.trace.calls, &recorded.trace.work);
    assert_eq!((calls.len(), work.len()), (1, 1));
    assert_eq!((work[0].start_ns, calls[0].start_ns), (0, 20));
}

#[test]
fn of_several_times_of_one_operation_the_last_count() {
    let mut log = Log::new();
    log.call(MAIN, kernel(COMPUTE), (1, 2), (3, 4));
    let again = Done {
        op: OpId(0),
        call_ns: Some((10, 20)),
        work_ns: Some((30, 50)),
    };
    log.writer.take(&Record::Done(again)).unwrap();
    let recorded = log.read();
    assert_eq!(recorded.timed, 1);
    let work = &recorded.trace.work[0];
    assert_eq!((work.start_ns, work.end_ns), (20, 40));
}

#[test]
fn a_truncated_log_gives_the_trace_of_its_complete_part() {
    let mut log = Log::new();
    log.span(MAIN, Some("forward"));
    log.call(MAIN, kernel(COMPUTE), (1, 2), (3, 4));
    log.call(MAIN, kernel(COMPUTE), (5, 6), (7, 8));
    let bytes = log.writer.finish().unwrap();
    let mut seen = 0;
    for end in 16..bytes.len() {
        let reader = Reader::new(&bytes[..end]).unwrap();
        let recorded = recorded(reader, ROOM).unwrap();
        assert!(recorded.cut.unwrap().is_cut());
        assert!(recorded.trace.work.len() >= seen);
        seen = recorded.trace.work.len();
    }
    assert_eq!(seen, 2);
}

#[test]
fn a_trace_allocates_no_more_memory_than_its_limit() {
    let check = |fill: &dyn Fn(&mut Log)| {
        let mut log = Log::new();
        fill(&mut log);
        let bytes = log.writer.finish().unwrap();
        let result: Result<Recorded, Error> = recorded(Reader::new(&bytes[..]).unwrap(), 1_000_000);
        let error = result.expect_err("it is refused").to_string();
        assert!(
            error.contains("more than 1000000 bytes of memory"),
            "{error}"
        );
    };
    check(&|log| (0..3_000).for_each(|_| log.op(MAIN, kernel(COMPUTE))));
    check(&|log| {
        for _ in 0..3_000 {
            log.span(MAIN, Some("short"));
            log.span(MAIN, None);
        }
    });
    // Few operations, each in very many spans at once.
    check(&|log| {
        for _ in 0..5 {
            (0..256).for_each(|_| log.span(MAIN, Some("deep")));
            for stream in [UPLOAD, COMPUTE] {
                log.call(MAIN, kernel(stream), (1, 2), (3, 4));
            }
            (0..256).for_each(|_| log.span(MAIN, None));
        }
    });
    let long = "n".repeat(4_000);
    check(&|log| (0..200).for_each(|_| log.span(MAIN, Some(&long[..]))));
}
