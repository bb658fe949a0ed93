//! The cost of a call in the rules and their clocks: `cargo bench -p sidestream-benches --bench order`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sidestream::order::{Clocks, Force, Order, Steps};
use sidestream_benches::{Discipline, Load, Shape};

fn order(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("order with clocks");
    for streams in [2, 8, 64] {
        let shape = Shape {
            streams,
            buffers: 5_000,
            calls: 60_000,
            partial_percent: 0,
            discipline: Discipline::Racy,
        };
        let load = Load::new(shape);
        let mut order = Order::new();
        Load::declare(shape, &mut order);
        let mut clocks = Clocks::new(Force::Promised);
        let mut steps = Steps::new();
        group.throughput(Throughput::Elements(load.calls() as u64));
        group.bench_function(format!("{streams} streams"), |bencher| {
            bencher.iter(|| {
                for op in load.ops() {
                    order
                        .push(op, &mut steps)
                        .expect("the load makes no mistakes");
                    for step in &steps {
                        clocks.apply(step, &order);
                    }
                }
            });
        });
    }
}

criterion_group!(benches, order);
criterion_main!(benches);
