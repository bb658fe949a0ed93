//! What a call costs to write to a log, to read from it, and to check from it:
//! `cargo bench --bench log`.

mod load;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use load::{Discipline, Load, Shape};
use sidestream::check;
use sidestream::log::{Error, Reader, Record, Writer};
use sidestream::op::{DeviceId, Memory, Op, OpId, StreamKind};

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
        // The same without a log.
        group.bench_function(format!("{name}: check"), |bencher| {
            bencher.iter(|| load.pass(&mut Load::checker(shape)));
        });
    }
}

fn write<W: std::io::Write>(shape: Shape, ops: &[Op], out: W) -> Result<W, Error> {
    let mut log = Writer::new(out)?;
    for _ in 0..shape.streams {
        log.stream(StreamKind::NonBlocking, DeviceId(0), "")?;
        log.event(true, None, "")?;
    }
    for _ in 0..shape.buffers {
        log.buffer(Memory::Device, load::BYTES, None, "")?;
    }
    for _ in 0..load::SITES {
        log.site("train.py:12")?;
    }
    log.thread("main")?;
    for op in ops {
        log.op(op)?;
    }
    log.finish()
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
