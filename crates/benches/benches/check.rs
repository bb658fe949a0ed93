//! The checker's cost of a call, including rules and clocks: `cargo bench -p sidestream-benches --bench check`.
//!
//! `cargo bench -p sidestream-benches --bench check -- long` checks 10^8 operations in one run, and prints how much
//! memory that took: memory use must not grow with the length of the program.

use std::time::Instant;

use criterion::{Criterion, Throughput, criterion_group};
use sidestream_benches::{Discipline, Load, Shape};

fn check(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("check");
    let shape = Shape {
        streams: 64,
        buffers: 5_000,
        calls: 6_000,
        partial_percent: 0,
        discipline: Discipline::Ordered,
    };
    let partial = Shape {
        partial_percent: 6,
        ..shape
    };
    // The long programs do not fit in the cache, and their branches cannot be predicted.
    let long = |shape| Shape {
        calls: 60_000,
        ..shape
    };
    let loads = [
        ("whole buffers", shape),
        ("6 % partial", partial),
        ("whole buffers, long", long(shape)),
        ("6 % partial, long", long(partial)),
        (
            "racy",
            Shape {
                discipline: Discipline::Racy,
                ..shape
            },
        ),
    ];
    for (name, shape) in loads {
        let mut load = Load::new(shape);
        let mut checker = Load::checker(shape);
        group.throughput(Throughput::Elements(load.calls() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| load.pass(&mut checker));
        });
        let races = checker.report().races.len();
        let ordered = shape.discipline == Discipline::Ordered;
        assert_eq!(ordered, races == 0, "{name}: {races} races");
    }
}

criterion_group!(benches, check);

fn main() {
    if std::env::args().any(|arg| arg == "long") {
        for partial_percent in [0, 6] {
            long(partial_percent, 100_000_000);
        }
        return;
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}

/// One checker receives the same program over and over, as in a training run.
fn long(partial_percent: u32, operations: usize) {
    let shape = Shape {
        streams: 64,
        buffers: 5_000,
        calls: 60_000,
        partial_percent,
        discipline: Discipline::Ordered,
    };
    let mut load = Load::new(shape);
    let mut checker = Load::checker(shape);
    let passes = operations.div_ceil(load.calls());
    let start = Instant::now();
    let mut early = String::new();
    for pass in 0..passes {
        load.pass(&mut checker);
        if pass == passes / 100 {
            early = peak_memory();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let operations = passes * load.calls();
    println!(
        "{operations} operations, {partial_percent} % partial: {seconds:.1} s ({:.0} ns each), \
         peak memory {early} after a hundredth and {} at the end",
        seconds * 1e9 / operations as f64,
        peak_memory()
    );
    assert_eq!(checker.report().races.len(), 0);
}

/// The peak memory of this process, as Linux reports it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or("unknown".into(), |peak| peak.trim().into())
}
