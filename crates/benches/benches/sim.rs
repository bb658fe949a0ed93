//! The calls that the simulated GPU executes per second, with their times and who wrote what each finds: `cargo bench -p
//! sidestream-benches --bench sim`.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use sidestream::engine::Profile;
use sidestream::op::Op;
use sidestream::sim::{Schedule, Sim};
use sidestream_benches::{Discipline, Load, Shape};

fn sim(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sim");
    for streams in [1, 8, 64] {
        let shape = Shape {
            streams,
            buffers: 1_000,
            calls: 60_000,
            partial_percent: 0,
            discipline: Discipline::Racy,
        };
        let load = Load::new(shape);
        group.throughput(Throughput::Elements(load.calls() as u64));
        for schedule in [Schedule::InOrder, Schedule::Seeded(1)] {
            let name = format!("{schedule}, {streams} streams, 1 KiB buffers");
            group.bench_function(name, |bencher| {
                bencher.iter_batched(
                    || (machine(shape, schedule), load.ops().to_vec()),
                    |(sim, ops)| execute(sim, ops),
                    BatchSize::LargeInput,
                );
            });
        }
    }
}

fn machine(shape: Shape, schedule: Schedule) -> Sim {
    let mut sim = Sim::new(vec![Profile::h200()], schedule, true);
    Load::declare(shape, sim.order());
    for _ in 0..shape.buffers {
        sim.contents().add(sidestream_benches::BYTES, None);
    }
    sim
}

fn execute(mut sim: Sim, ops: Vec<Op>) -> Sim {
    for op in ops {
        sim.submit(op, None).expect("the load makes no mistakes");
    }
    sim.finish().expect("nothing is held");
    sim
}

criterion_group!(benches, sim);
criterion_main!(benches);
