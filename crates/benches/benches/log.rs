//! The cost of writing a call to a log, of reading it, and of checking it; and the cost of recording or checking in a
//! running program: `cargo bench -p sidestream-benches --bench log`.

use std::panic::Location;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use sidestream::check::{self, OnRace};
use sidestream::log::{Error, Live, Reader, Record, Recorder, Sink, Writer};
use sidestream::op::{DeviceId, Memory, Op, OpId, StreamKind};
use sidestream_benches::{Discipline, Load, Shape};

fn log(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("log");
    for (name, partial_percent) in [("whole buffers", 0), ("6 % partial", 6)] {
        let shape = Shape {
            streams: 64,
            buffers: 5_000,
            calls: 60_000,
            partial_percent,
            discipline: Discipline::Ordered,
        };
        let mut load = Load::new(shape);
        let mut ops = load.ops().to_vec();
        for (op, id) in ops.iter_mut().zip(0..) {
            op.id = OpId(id);
        }
        let bytes = write(shape, &ops, Vec::new()).expect("memory takes everything");
        let each = bytes.len() as f64 / ops.len() as f64;
        println!("{name}: {each:.1} bytes an operation, declarations included");
        group.throughput(Throughput::Elements(load.calls() as u64));
        group.bench_function(format!("{name}: write"), |bencher| {
            bencher
                .iter(|| write(shape, &ops, std::io::sink()).expect("the sink takes everything"));
        });
        group.bench_function(format!("{name}: read"), |bencher| {
            bencher.iter(|| read(&bytes).expect("it was just written"));
        });
        group.bench_function(format!("{name}: read and check"), |bencher| {
            bencher.iter(|| {
                let reader = Reader::new(&bytes[..]).expect("it was just written");
                let replayed = check::replay(reader, check::MEMORY_BYTES);
                replayed.expect("it was just written").ops
            });
        });
        let mut live = |what: &str, sinks: fn() -> Vec<Box<dyn Sink>>| {
            group.bench_function(format!("{name}: live, {what}"), |bencher| {
                bencher.iter_batched_ref(
                    || hub(shape, sinks()),
                    |hub| tell(hub, &ops),
                    BatchSize::LargeInput,
                );
            });
        };
        live("no listener", Vec::new);
        live("record", || vec![record()]);
        live("check", || vec![check()]);
        live("record and check", || vec![record(), check()]);
        // The check without a log.
        group.bench_function(format!("{name}: check"), |bencher| {
            bencher.iter(|| load.pass(&mut Load::checker(shape)));
        });
    }
}

fn write<W: std::io::Write>(shape: Shape, ops: &[Op], out: W) -> Result<W, Error> {
    let mut log = Writer::new(out)?;
    for _ in 0..shape.streams {
        log.take(&Record::stream(StreamKind::NonBlocking, DeviceId(0), ""))?;
        log.take(&Record::event(true, None, ""))?;
    }
    for _ in 0..shape.buffers {
        log.take(&Record::buffer(
            Memory::Device,
            sidestream_benches::BYTES,
            None,
            "",
        ))?;
    }
    for _ in 0..sidestream_benches::SITES {
        log.take(&Record::site("train.py:12"))?;
    }
    log.take(&Record::thread("main"))?;
    for op in ops {
        log.take(&Record::op(op))?;
    }
    log.finish()
}

fn record() -> Box<dyn Sink> {
    Recorder::new(std::io::sink())
        .expect("the sink takes everything")
        .1
}

fn check() -> Box<dyn Sink> {
    check::live(OnRace::Panic, check::LIVE_MEMORY_BYTES).1
}

/// The log of a program that has made all its streams, events and buffers.
fn hub(shape: Shape, sinks: Vec<Box<dyn Sink>>) -> Live {
    let live = Live::default();
    // A pen exists only if there is a listener.
    let first = live.attach(record());
    for _ in 0..shape.streams {
        live.new_stream(StreamKind::NonBlocking, DeviceId(0), "");
        live.new_event(true, DeviceId(0));
    }
    let mut pen = live.write().expect("there is a listener");
    for _ in 0..shape.buffers {
        pen.new_buffer(Memory::Device, sidestream_benches::BYTES, None, "");
    }
    drop(pen);
    live.new_thread("main");
    for sink in sinks {
        live.attach(sink);
    }
    live.detach_one(first);
    live
}

/// Makes all calls as a front end does: each with its number, its site, and a check for findings.
fn tell(live: &Live, ops: &[Op]) {
    for op in ops {
        if let Some(mut pen) = live.write() {
            let (id, site) = (pen.next_op(), pen.site(Location::caller()));
            let op = Op {
                id,
                site,
                ..op.clone()
            };
            pen.op(&op);
        }
        live.raise(op.thread);
    }
}

fn read(bytes: &[u8]) -> Result<u64, Error> {
    let mut reader = Reader::new(bytes)?;
    let mut record = Record::default();
    let mut accesses = 0;
    while reader.read_into(&mut record)? {
        if let Record::Op(op) = &record {
            accesses += op.accesses.len() as u64;
        }
    }
    Ok(accesses)
}

criterion_group!(benches, log);
criterion_main!(benches);
