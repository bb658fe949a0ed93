//! Conditions that the writer and the reader refuse, one test each.

use sidestream::backend::Done;
use sidestream::log::{Record, Within, limits};
use sidestream::op::*;

use super::{op, read, small};

/// Checks that the writer refuses the operation with this text, and that the reader does too, when it reads the bytes
/// of a writer with more declarations.
fn refused(op: &Op, because: &str) {
    let mut log = small();
    let error = log.take(&Record::op(op)).unwrap_err().to_string();
    assert!(error.contains(because), "{error}");
    let whole = small().finish().unwrap();
    assert_eq!(
        log.finish().unwrap(),
        whole,
        "a refused record is not written"
    );
}

#[test]
fn an_operation_names_only_declared_ids() {
    let (s, e, b) = (StreamId(2), EventId(1), BufferId(2));
    let (stream, event, buffer) = (StreamId(0), EventId(0), BufferId(0));
    let (from, to) = (Memory::Device, Memory::Device);
    let streams = [
        Kind::kernel(s),
        Kind::Copy {
            stream: s,
            from,
            to,
        },
        Kind::Memset { stream: s },
        Kind::HostFunc {
            stream: s,
            raises: None,
        },
        Kind::GraphLaunch {
            stream: s,
            graph: GraphId(0),
        },
        Kind::MallocAsync { stream: s },
        Kind::FreeAsync { stream: s },
        Kind::Record { event, stream: s },
        Kind::Wait { stream: s, event },
        Kind::WaitStream {
            stream: s,
            source: stream,
        },
        Kind::WaitStream { stream, source: s },
        Kind::SyncStream { stream: s },
        Kind::QueryStream {
            stream: s,
            done: true,
        },
        Kind::Alloc {
            buffer,
            stream: Some(s),
            saw_events_of: None,
        },
        Kind::RecordStream { buffer, stream: s },
        Kind::CreateStream { stream: s },
        Kind::DestroyStream { stream: s },
        Kind::BeginCapture { stream: s },
        Kind::EndCapture { stream: s },
    ];
    for kind in streams {
        refused(&op(0, kind), "stream 2 is named and 2 are declared");
    }
    let events = [
        Kind::Record { event: e, stream },
        Kind::Wait { stream, event: e },
        Kind::SyncEvent { event: e },
        Kind::QueryEvent {
            event: e,
            done: false,
        },
        Kind::Elapsed { from: e, to: event },
        Kind::Elapsed { from: event, to: e },
        Kind::CreateEvent { event: e },
        Kind::DestroyEvent { event: e },
    ];
    for kind in events {
        refused(&op(0, kind), "event 1 is named and 1 are declared");
    }
    let buffers = [
        Kind::Alloc {
            buffer: b,
            stream: None,
            saw_events_of: None,
        },
        Kind::Alloc {
            buffer,
            stream: None,
            saw_events_of: Some(b),
        },
        Kind::RecordStream { buffer: b, stream },
        Kind::Free { buffer: b },
    ];
    for kind in buffers {
        refused(&op(0, kind), "buffer 2 is named and 2 are declared");
    }
    let far = [
        (
            Kind::SetDevice {
                device: DeviceId(256),
            },
            "256 devices",
        ),
        (
            Kind::SyncDevice {
                device: Some(DeviceId(u32::MAX)),
            },
            "256 devices",
        ),
        (
            Kind::SetFlag {
                flag: FlagId(1 << 16),
            },
            "65536 flags",
        ),
        (
            Kind::WaitFlag {
                flag: FlagId(1 << 16),
            },
            "65536 flags",
        ),
        (
            Kind::HostFunc {
                stream,
                raises: Some(FlagId(1 << 16)),
            },
            "65536 flags",
        ),
        (
            Kind::GraphLaunch {
                stream,
                graph: GraphId(1 << 16),
            },
            "65536 graphs",
        ),
        (
            Kind::Kernel {
                stream,
                launches: 0,
            },
            "at least one launch",
        ),
    ];
    for (kind, because) in far {
        refused(&op(0, kind), because);
    }
    let mut stranger = op(0, Kind::HostAccess);
    stranger.thread = ThreadId(1);
    refused(&stranger, "thread 1 is named and 1 are declared");
    let mut elsewhere = op(0, Kind::HostAccess);
    elsewhere.site = SiteId(1);
    refused(&elsewhere, "call site 1 is named and 1 are declared");
}

#[test]
fn an_access_is_inside_its_buffer() {
    for (buffer, start, end, because) in [
        (0, 0, 101, "bytes 0..101 of buffer 0, which has 100 bytes"),
        (0, 60, 50, "bytes 60..50 of buffer 0"),
        (1, 0, 11, "bytes 0..11 of buffer 1, which has 10 bytes"),
        (2, 0, 1, "buffer 2 is named"),
    ] {
        let mut op = op(0, Kind::HostAccess);
        let (buffer, mode) = (BufferId(buffer), Mode::Read);
        op.accesses.push(Access {
            buffer,
            start,
            end,
            mode,
        });
        refused(&op, because);
    }
    let mut many = op(0, Kind::HostAccess);
    let access = Access {
        buffer: BufferId(0),
        start: 0,
        end: 1,
        mode: Mode::Read,
    };
    many.accesses.resize(limits::ACCESSES as usize + 1, access);
    refused(&many, "at most 16384 accesses");
}

#[test]
fn a_declaration_fits_the_ones_before() {
    let mut log = small();
    let within = |buffer, start| {
        Some(Within {
            buffer: BufferId(buffer),
            start,
        })
    };
    let refusals = [
        (
            log.take(&Record::stream(StreamKind::Legacy, DeviceId(0), ""))
                .err(),
            "legacy stream already",
        ),
        (
            log.take(&Record::stream(StreamKind::Blocking, DeviceId(256), ""))
                .err(),
            "256 devices",
        ),
        (
            log.take(&Record::event(true, Some(DeviceId(256)), ""))
                .err(),
            "256 devices",
        ),
        (
            log.take(&Record::buffer(Memory::Device, 51, within(0, 50), ""))
                .err(),
            "bytes 50..101 of buffer 0",
        ),
        (
            log.take(&Record::buffer(Memory::Device, 1, within(0, u64::MAX), ""))
                .err(),
            "of buffer 0",
        ),
        (
            log.take(&Record::buffer(Memory::Device, 1, within(2, 0), ""))
                .err(),
            "buffer 2 is named",
        ),
        (
            log.take(&Record::buffer(Memory::Device, u64::MAX, None, ""))
                .err(),
            "bytes in a buffer",
        ),
    ];
    for (error, because) in refusals {
        let error = error.expect(because).to_string();
        assert!(error.contains(because), "{error}");
    }
    assert_eq!(log.finish().unwrap(), small().finish().unwrap());
}

#[test]
fn spans_and_times_fit_what_came_before() {
    let mut log = small();
    let thread = ThreadId(0);
    for _ in 0..limits::SPAN_DEPTH {
        log.take(&Record::span(thread, Some("deep"))).unwrap();
    }
    log.take(&Record::op(&op(3, Kind::HostAccess))).unwrap();
    let whole = log.size_bytes();
    let done = |id, call_ns, work_ns| Done {
        op: OpId(id),
        call_ns,
        work_ns,
    };
    let refusals = [
        (
            log.take(&Record::span(thread, Some("one more"))),
            "at most 256 spans",
        ),
        (
            log.take(&Record::span(ThreadId(1), None)),
            "thread 1 is named",
        ),
        (
            log.take(&Record::Done(done(4, None, None))),
            "the times of operation 4 come before its call",
        ),
        (
            log.take(&Record::Done(done(3, None, Some((2, 1))))),
            "operation 3 starts at 2 ns and ends at 1 ns",
        ),
        (
            log.take(&Record::Done(done(3, Some((0, u64::MAX)), None))),
            "at most 4611686018427387904 nanoseconds",
        ),
    ];
    for (result, because) in refusals {
        let error = result.expect_err(because).to_string();
        assert!(error.contains(because), "{error}");
    }
    assert_eq!(log.size_bytes(), whole, "a refused record is not written");
    for _ in 0..limits::SPAN_DEPTH {
        log.take(&Record::span(thread, None)).unwrap();
    }
    let error = log
        .take(&Record::span(thread, None))
        .unwrap_err()
        .to_string();
    assert!(error.contains("leaves a span and is in none"), "{error}");
    let (_, error) = read(&log.finish().unwrap());
    assert!(error.is_none(), "{error:?}");
}

#[test]
fn operations_are_numbered_upwards() {
    let mut log = small();
    log.take(&Record::op(&op(5, Kind::HostAccess))).unwrap();
    let error = log
        .take(&Record::op(&op(5, Kind::HostAccess)))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("has the number 5, expected at least 6"),
        "{error}"
    );
    log.take(&Record::op(&op(u32::MAX, Kind::HostAccess)))
        .unwrap();
    let (records, error) = read(&log.finish().unwrap());
    assert!(error.is_none());
    assert_eq!(
        records.last(),
        Some(&Record::op(&op(u32::MAX, Kind::HostAccess)))
    );
}

/// Returns the error for a log by hand: the header and then these bytes.
fn by_hand(records: &[u8]) -> String {
    let bytes = [b"SIDESTRM\x03\0\0\0\0\0\0\0", records].concat();
    let (_, error) = read(&bytes);
    error.expect("it is refused").to_string()
}

#[test]
fn the_reader_refuses_what_the_writer_refuses() {
    let stream = [1, 0, 0, 0];
    let legacy = [1, 3, 0, 0];
    let (thread, site) = ([4, 0], [5, 0]);
    let buffer = [3, 0, 100, 0];
    let start = [stream, legacy, buffer].concat();
    let start = [&start[..], &thread, &site].concat();
    let after = |bytes: &[u8]| by_hand(&[&start[..], bytes].concat());
    for (error, because) in [
        (after(&legacy), "legacy stream already"),
        (after(&[1, 4]), "byte 32: expected a kind of stream"),
        (after(&[1, 0, 0x80, 2, 0]), "256 devices"),
        (
            after(&[3, 4, 1, 1, 0, 0]),
            "distance from the newest buffer",
        ),
        (after(&[3, 4, 51, 0, 50, 0]), "bytes 50..101 of buffer 0"),
        (
            after(&[0x82, 0, 2, 0]),
            "stream 2 is named and 2 are declared",
        ),
        (after(&[0x80, 0, 0, 0, 0]), "at least one launch"),
        (after(&[0x93, 1, 0]), "call site 1 is named"),
        (after(&[0xd3, 0, 1, 0, 0]), "thread 1 is named"),
        (after(&[0x93, 0, 1, 8]), "distance from the newest buffer"),
        (after(&[0xa3, 0, 0, 0, 3, 0]), "an order, 0 to 2"),
        (after(&[0xa5, 0, 0, 0, 0, 4, 0]), "a comparison, 0 to 3"),
        (after(&[0x93, 0, 1, 1, 90, 11]), "bytes 90..101 of buffer 0"),
        (after(&[0x93, 0, 0x80, 0x80, 2]), "16384 accesses"),
        (after(&[0xa2]), "the file ends in an operation"),
        (after(&[0xbf, 0]), "the code of a kind of operation"),
        (after(&[9]), "a record, which starts with 0 to 8"),
        (after(&[7, 2]), "1 to enter a span, 0 to leave one"),
        (after(&[7, 1]), "the file ends in a span"),
        (after(&[7, 1, 0]), "the file ends in a span"),
        (after(&[7, 1, 0, 3, b'a']), "the file ends in a span"),
        (after(&[7, 1, 0, 1, 0xff]), "text in UTF-8"),
        (after(&[7, 1, 0, 0x81, 0x20]), "4096 bytes in a name"),
        (after(&[7, 1, 1, 0]), "thread 1 is named and 1 are declared"),
        (after(&[7, 0, 1]), "thread 1 is named and 1 are declared"),
        (after(&[7, 0, 0]), "thread 0 leaves a span and is in none"),
        (
            after(&[7, 1, 0, 0, 7, 0, 0, 7, 0, 0]),
            "thread 0 leaves a span and is in none",
        ),
        (
            after(&[7, 1, 0, 0].repeat(257)),
            "at most 256 spans of a thread at once",
        ),
        (
            after(&[8, 0, 0]),
            "the distance from the newest operation back",
        ),
        (
            after(&[0x93, 0, 0, 8, 0, 1]),
            "the distance from the newest operation back",
        ),
        (after(&[0x93, 0, 0, 8, 4, 0]), "which times are known"),
        (
            after(&[0x93, 0, 0, 8, 3, 0, 1, 1, 1]),
            "the file ends in the times of an operation",
        ),
        (
            after(&[
                0x93, 0, 0, 8, 2, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ]),
            "at most 4611686018427387904 nanoseconds",
        ),
        (after(&[4, 1, 0xff]), "text in UTF-8"),
        (after(&[4, 0x81, 0x20]), "4096 bytes in a name"),
        (after(&[0x93, 0x80, 0]), "shortest form"),
        (
            after(&[
                3, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2,
            ]),
            "64 bits",
        ),
        (
            after(&[0, 2, 0, 1, 1, 1, 0, 1, 0, 0]),
            "the end record counts 1 operations and the file holds 0",
        ),
        (
            after(&[0, 2, 0, 1, 1, 1, 0, 0, 1, 0]),
            "the end record counts 1 spans entered or left and the file holds 0",
        ),
        (
            after(&[0, 2, 0, 1, 1, 1, 0, 0, 0, 1]),
            "the end record counts 1 times of operations and the file holds 0",
        ),
        (
            after(&[0, 2, 0, 1, 1, 1, 0, 0, 0, 0, 0]),
            "byte 42: expected the end of the file",
        ),
    ] {
        assert!(error.contains(because), "{error}, expected {because}");
    }
    let first = |bytes: &[u8]| read(bytes).1.unwrap().to_string();
    assert!(first(b"{\"traceEvents\"").contains("SIDESTRM"));
    assert!(first(b"SIDESTRM\x01\0\0\0\0\0\0\0").contains("version 1, expected 3"));
    assert!(first(b"SIDESTRM\x03\0\0\0\0\0\0\x01").contains("six bytes of zero"));
}
