//! What a call costs the checker, rule book and clocks included: `cargo bench --bench check`.

mod load;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use load::{Discipline, Load, Shape};

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
    // The long programs do not fit in the cache, and no branch in them can be foreseen.
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
criterion_main!(benches);
