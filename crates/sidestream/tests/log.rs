//! The op log: what is written is read back, and no input does harm.

#[path = "../../benches/src/lib.rs"]
#[allow(dead_code, reason = "the benchmarks use the rest")]
mod load;
mod programs;
mod refused;

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
        // Reading record after record into one place gives the same result.
        let mut reader = Reader::new(&bytes[..]).unwrap();
        let mut record = Record::default();
        for expected in &records {
            assert!(reader.read_into(&mut record).unwrap(), "seed {seed}");
            assert_eq!(&record, expected, "seed {seed}");
        }
        assert!(!reader.read_into(&mut record).unwrap(), "seed {seed}");
        // A random log hardly makes a meaningful program, but nothing may panic either.
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
        // As a trace these bytes are an error, or a trace that can be written.
        let traced = Reader::new(&bytes[..]).and_then(|reader| recorded(reader, ROOM));
        if let Ok(run) = traced {
            run.trace.write_json(std::io::sink()).unwrap();
        }
    }
    println!("{errors} of 100000 refused, {partial} read in part");
    assert!(errors > 10_000);
}

/// Returns a log with one of each declaration: streams 0 and 1 (legacy), event 0, buffers 0 (100 bytes) and 1 (10
/// bytes at 50 of it), thread 0, site 0.
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
        let mut op = op(id, Kind::kernel(stream));
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
fn a_check_allocates_no_more_memory_than_its_limit() {
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

/// The example in `docs/reference/op-log.md`, byte by byte.
#[test]
fn the_documented_example_is_what_is_written() {
    let page = include_str!("../../../docs/reference/op-log.md");
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
    let mut op = op(0, Kind::kernel(stream));
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
