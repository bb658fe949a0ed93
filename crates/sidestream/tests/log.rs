//! The op log: what is written is read, and nothing that is read does harm.

#[path = "../../benches/src/lib.rs"]
#[allow(dead_code, reason = "the benchmarks use the rest")]
mod load;
mod programs;

use load::{Discipline, Load, Shape};
use programs::write;
use sidestream::backend::Done;
use sidestream::check::{Checker, Names, Replay, replay};
use sidestream::log::{Error, Reader, Record, Within, Writer, limits};
use sidestream::op::*;
use sidestream::trace::recorded;

use crate::drawn::Random;

const ROOM: u64 = 1 << 28;

fn read(bytes: &[u8]) -> (Vec<Record<'static>>, Option<Error>) {
    let reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut records = Vec::new();
    for record in reader {
        match record {
            Ok(record) => records.push(record),
            Err(error) => return (records, Some(error)),
        }
    }
    (records, None)
}

fn check(bytes: &[u8]) -> Result<Replay, Error> {
    replay(Reader::new(bytes)?, ROOM)
}

#[test]
fn what_is_written_is_read() {
    for seed in 0..2_000 {
        let mut random = Random(seed);
        let count = 10 + random.below(200) as usize;
        let records = random.records(count);
        let bytes = write(&records).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let (got, error) = read(&bytes);
        assert!(error.is_none(), "seed {seed}: {error:?}");
        assert_eq!(got, records, "seed {seed}");
        // One record after the other into one place gives the same.
        let mut reader = Reader::new(&bytes[..]).unwrap();
        let mut record = Record::default();
        for expected in &records {
            assert!(reader.read_into(&mut record).unwrap(), "seed {seed}");
            assert_eq!(&record, expected, "seed {seed}");
        }
        assert!(!reader.read_into(&mut record).unwrap(), "seed {seed}");
        // Nobody writes a program that makes sense by chance, but nothing may panic either.
        let replayed = check(&bytes);
        assert!(
            replayed.is_ok() || replayed.unwrap_err().to_string().contains("legacy"),
            "seed {seed}"
        );
    }
}

#[test]
fn a_replay_finds_what_the_checker_finds() {
    let (shape, ops, bytes) = load(Discipline::Racy, 0);
    let mut checker = Load::checker(shape);
    for op in &ops {
        checker.push(op).unwrap();
    }
    let replayed = check(&bytes).unwrap();
    assert!(replayed.cut.is_none());
    assert_eq!(replayed.ops, ops.len() as u64);
    assert_eq!(replayed.report, checker.report());
    assert!(!replayed.report.races.is_empty());
}

fn load(discipline: Discipline, partial_percent: u32) -> (Shape, Vec<Op>, Vec<u8>) {
    let shape = Shape {
        streams: 64,
        buffers: 5_000,
        calls: 60_000,
        partial_percent,
        discipline,
    };
    let mut ops = Load::new(shape).ops().to_vec();
    for (op, id) in ops.iter_mut().zip(0..) {
        op.id = OpId(id);
    }
    let mut log = Writer::new(Vec::new()).unwrap();
    for at in 0..shape.streams {
        let name = format!("stream{at}");
        log.take(&Record::stream(StreamKind::NonBlocking, DeviceId(0), &name))
            .unwrap();
        log.take(&Record::event(true, None, "")).unwrap();
    }
    for at in 0..shape.buffers {
        let name = format!("buffer{at}");
        log.take(&Record::buffer(Memory::Device, load::BYTES, None, &name))
            .unwrap();
    }
    for at in 0..load::SITES {
        log.take(&Record::site(format!("train.py:{at}"))).unwrap();
    }
    log.take(&Record::thread("t0")).unwrap();
    for op in &ops {
        log.take(&Record::op(op)).unwrap();
    }
    (shape, ops, log.finish().unwrap())
}

#[test]
fn an_operation_takes_at_most_forty_bytes() {
    for partial_percent in [0, 6, 100] {
        let (_, ops, bytes) = load(Discipline::Ordered, partial_percent);
        let each = bytes.len() as f64 / ops.len() as f64;
        println!(
            "{partial_percent} % partial: {each:.2} bytes an operation, declarations included"
        );
        assert!(each <= 40.0, "{each}");
    }
}

#[test]
fn a_cut_log_is_read_up_to_the_cut() {
    let records = Random(7).records(60);
    let bytes = write(&records).unwrap();
    let mut seen = 0;
    for end in 0..bytes.len() {
        let (got, error) = read(&bytes[..end]);
        let error = error.expect("something is missing");
        assert!(error.is_cut(), "{end}: {error}");
        assert_eq!(error.offset, end as u64);
        assert_eq!(got, records[..got.len()], "{end}");
        assert!(got.len() >= seen, "{end}");
        seen = got.len();
        if let Ok(replayed) = check(&bytes[..end]) {
            let ops = got.iter().filter(|r| matches!(r, Record::Op(_))).count();
            assert!(replayed.cut.is_some() || replayed.report.error.is_some());
            assert!(replayed.ops <= ops as u64);
        }
    }
    assert_eq!(seen, records.len());
}

#[test]
fn a_partial_report_says_so() {
    let (_, _, bytes) = load(Discipline::Racy, 0);
    let replayed = check(&bytes[..bytes.len() / 2]).unwrap();
    assert!(replayed.ops > 10_000);
    assert!(!replayed.report.races.is_empty());
    let text = replayed.cut.unwrap().to_string();
    assert!(
        text.contains("the file ends in an operation; it is whole up to byte"),
        "{text}"
    );
}

#[test]
fn flipped_bits_do_no_harm() {
    let mut random = Random(0xf11b);
    let (mut errors, mut partial) = (0, 0);
    for round in 0..100_000_u64 {
        if round % 100 == 0 {
            random = Random(round);
        }
        let seed = round / 100;
        let mut bytes = write(&Random(seed).records(40)).unwrap();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        match check(&bytes) {
            Err(error) => {
                assert!(error.offset <= bytes.len() as u64);
                assert!(error.to_string().contains("byte"));
                errors += 1;
            }
            Ok(replayed) => partial += u32::from(replayed.cut.is_some()),
        }
        // The same bytes as a trace: an error, or something that can be written.
        let traced = Reader::new(&bytes[..]).and_then(|reader| recorded(reader, ROOM));
        if let Ok(run) = traced {
            run.trace.write_json(std::io::sink()).unwrap();
        }
    }
    println!("{errors} of 100000 refused, {partial} read in part");
    assert!(errors > 10_000);
}

// ------------------------------------------------------------------ one condition each

/// A log with one of each declaration: stream 0 and 1 (legacy), event 0, buffers 0 (100 bytes) and
/// 1 (10 bytes at 50 of it), thread 0, site 0.
fn small() -> Writer<Vec<u8>> {
    let mut log = Writer::new(Vec::new()).unwrap();
    log.take(&Record::stream(StreamKind::NonBlocking, DeviceId(0), ""))
        .unwrap();
    log.take(&Record::stream(StreamKind::Legacy, DeviceId(0), ""))
        .unwrap();
    log.take(&Record::event(true, None, "")).unwrap();
    log.take(&Record::buffer(Memory::Device, 100, None, ""))
        .unwrap();
    let within = Some(Within {
        buffer: BufferId(0),
        start: 50,
    });
    log.take(&Record::buffer(Memory::Device, 10, within, ""))
        .unwrap();
    log.take(&Record::thread("")).unwrap();
    log.take(&Record::site("")).unwrap();
    log
}

fn op(id: u32, kind: Kind) -> Op {
    Op {
        id: OpId(id),
        thread: ThreadId(0),
        site: SiteId(0),
        kind,
        accesses: Accesses::new(),
    }
}

/// The writer refuses the operation with this text; so does the reader, which is shown the same
/// bytes by a writer that knows more.
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
fn an_operation_names_only_what_is_declared() {
    let (s, e, b) = (StreamId(2), EventId(1), BufferId(2));
    let (stream, event, buffer) = (StreamId(0), EventId(0), BufferId(0));
    let (from, to) = (Memory::Device, Memory::Device);
    let streams = [
        Kind::Kernel {
            stream: s,
            launches: 1,
        },
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
fn an_access_lies_inside_its_buffer() {
    for (buffer, start, end, because) in [
        (
            0,
            0,
            101,
            "bytes 0..101 of buffer 0 are named, which has 100",
        ),
        (0, 60, 50, "bytes 60..50 of buffer 0"),
        (1, 0, 11, "bytes 0..11 of buffer 1 are named, which has 10"),
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

/// The bytes of a log, by hand: the header and then these.
fn by_hand(records: &[u8]) -> String {
    let bytes = [b"SIDESTRM\x02\0\0\0\0\0\0\0", records].concat();
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
        (after(&[0x93, 0, 1, 4]), "distance from the newest buffer"),
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
    assert!(first(b"SIDESTRM\x01\0\0\0\0\0\0\0").contains("version 1, expected 2"));
    assert!(first(b"SIDESTRM\x02\0\0\0\0\0\0\x01").contains("six bytes of zero"));
}

#[test]
fn a_long_name_is_cut_where_a_letter_ends() {
    let mut log = Writer::new(Vec::new()).unwrap();
    log.take(&Record::thread("ü".repeat(limits::TEXT_BYTES)))
        .unwrap();
    let (records, _) = read(&log.finish().unwrap());
    let Record::Thread { name, .. } = &records[0] else {
        panic!("{records:?}");
    };
    assert_eq!(name, &"ü".repeat(limits::TEXT_BYTES / 2));
}

// ------------------------------------------------------------------ the replay

#[test]
fn a_legacy_stream_is_declared_before_it_is_used() {
    let to = Memory::Device;
    let blocking = op(0, Kind::MemsetBlocking { to });
    let mut log = Writer::new(Vec::new()).unwrap();
    log.take(&Record::thread("")).unwrap();
    log.take(&Record::site("")).unwrap();
    log.take(&Record::op(&blocking)).unwrap();
    let undeclared = check(&log.finish().unwrap()).unwrap();
    assert_eq!(undeclared.names.stream(StreamId(0)), "legacy");

    let mut log = Writer::new(Vec::new()).unwrap();
    log.take(&Record::thread("")).unwrap();
    log.take(&Record::site("")).unwrap();
    log.take(&Record::op(&blocking)).unwrap();
    log.take(&Record::stream(StreamKind::NonBlocking, DeviceId(0), ""))
        .unwrap();
    let error = check(&log.finish().unwrap()).unwrap_err().to_string();
    assert!(error.contains("declare it before that call"), "{error}");
}

#[test]
fn a_report_uses_the_names_of_the_log() {
    let mut log = Writer::new(Vec::new()).unwrap();
    log.take(&Record::stream(
        StreamKind::NonBlocking,
        DeviceId(0),
        "upload",
    ))
    .unwrap();
    let (upload, compute) = (StreamId(0), StreamId(1));
    log.take(&Record::stream(StreamKind::NonBlocking, DeviceId(0), ""))
        .unwrap();
    log.take(&Record::thread("t0")).unwrap();
    log.take(&Record::site("train.py:3")).unwrap();
    log.take(&Record::buffer(Memory::Device, 8, None, ""))
        .unwrap();
    let (unnamed, weights) = (BufferId(0), BufferId(1));
    log.take(&Record::buffer(Memory::Device, 8, None, "weights"))
        .unwrap();
    for (id, stream, mode) in [(0, upload, Mode::Write), (1, compute, Mode::Read)] {
        let mut op = op(
            id,
            Kind::Kernel {
                stream,
                launches: 1,
            },
        );
        let (start, end) = (0, 8);
        for buffer in [unnamed, weights] {
            op.accesses.push(Access {
                buffer,
                start,
                end,
                mode,
            });
        }
        log.take(&Record::op(&op)).unwrap();
    }
    let (op, asked, size) = (OpId(2), 33, 32);
    log.take(&Record::Pool { op, asked, size }).unwrap();
    let replayed = check(&log.finish().unwrap()).unwrap();
    let names: &Names = &replayed.names;
    let races = replayed.report.races.iter();
    let fixes: Vec<String> = races.map(|race| race.fix.text(names)).collect();
    let fix = "wait_stream s=stream1 src=upload before 1";
    assert_eq!(fixes, [fix, fix]);
    assert_eq!(names.buffer(unnamed), "buffer0");
    assert_eq!(names.buffer(weights), "weights");
    assert_eq!(replayed.sites, ["train.py:3"]);
    assert_eq!(replayed.report.lints.len(), 1);
}

#[test]
fn a_refused_call_ends_the_replay() {
    let mut log = small();
    log.take(&Record::op(&op(
        0,
        Kind::EndCapture {
            stream: StreamId(0),
        },
    )))
    .unwrap();
    log.take(&Record::op(&op(1, Kind::HostAccess))).unwrap();
    let replayed = check(&log.finish().unwrap()).unwrap();
    let mut checker = Checker::new();
    checker
        .order_mut()
        .add_stream(StreamKind::NonBlocking, DeviceId(0));
    let expected = checker.push(&op(
        0,
        Kind::EndCapture {
            stream: StreamId(0),
        },
    ));
    assert_eq!(replayed.report.error, expected.err());
    assert_eq!(replayed.ops, 1);
}

#[test]
fn a_check_asks_for_no_more_memory_than_it_may() {
    let mut log = Writer::new(Vec::new()).unwrap();
    for _ in 0..limits::STREAMS {
        log.take(&Record::stream(StreamKind::NonBlocking, DeviceId(0), ""))
            .unwrap();
    }
    // Each event that is recorded keeps a clock of all streams.
    for _ in 0..10_000 {
        log.take(&Record::event(false, None, "")).unwrap();
    }
    let bytes = log.finish().unwrap();
    assert!(bytes.len() < 60_000);
    let error = check(&bytes).unwrap_err().to_string();
    assert!(
        error.contains("more than 268435456 bytes of memory"),
        "{error}"
    );
}

#[test]
fn a_check_finds_no_more_than_it_may_keep() {
    let (_, ops, bytes) = load(Discipline::Racy, 0);
    let reader = Reader::new(&bytes[..]).unwrap();
    let error = replay(reader, 8_000_000).unwrap_err();
    assert!(error.to_string().contains("memory"), "{error}");
    assert!(error.offset as usize > bytes.len() - 10 * ops.len());
}

#[test]
fn declarations_between_operations_are_kept_in_their_place() {
    let records = Random(3).records(300);
    let first = records.iter().position(|r| matches!(r, Record::Op(_)));
    let mixed = &records[first.unwrap()..];
    assert!(mixed.iter().any(|r| !matches!(r, Record::Op(_))));
    let mut log = Writer::new(Vec::new()).unwrap();
    for record in &records {
        log.take(record).unwrap();
    }
    assert_eq!(read(&log.finish().unwrap()).0, records);
}

/// The example in `docs/op-log.md`, byte by byte.
#[test]
fn the_documented_example_is_what_is_written() {
    let page = include_str!("../../../docs/op-log.md");
    let (_, example) = page.split_once("## An example").unwrap();
    let rows = example.lines().filter_map(|line| line.strip_prefix("| `"));
    let hex = rows.map(|row| row.split_once('`').unwrap().0);
    let bytes: Vec<u8> = hex
        .flat_map(|row| row.split(' '))
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();

    let mut log = Writer::new(Vec::new()).unwrap();
    let (stream, buffer) = (StreamId(0), BufferId(0));
    log.take(&Record::stream(
        StreamKind::NonBlocking,
        DeviceId(0),
        "upload",
    ))
    .unwrap();
    log.take(&Record::thread("")).unwrap();
    log.take(&Record::site("a:12")).unwrap();
    log.take(&Record::buffer(Memory::Device, 1024, None, "A"))
        .unwrap();
    let launches = 1;
    let mut op = op(0, Kind::Kernel { stream, launches });
    op.accesses.push(Access {
        buffer,
        start: 0,
        end: 1024,
        mode: Mode::Write,
    });
    log.take(&Record::span(ThreadId(0), Some("fwd"))).unwrap();
    log.take(&Record::op(&op)).unwrap();
    log.take(&Record::span(ThreadId(0), None)).unwrap();
    log.take(&Record::Done(Done {
        op: op.id,
        call_ns: Some((2_000, 2_300)),
        work_ns: Some((5_000, 7_000)),
    }))
    .unwrap();
    assert_eq!(log.finish().unwrap(), bytes);
}
