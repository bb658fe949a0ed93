//! Tasks per second of the engine: simple programs, one device task per operation, on eight streams.

use sidestream::engine::{Call, Engine, Grid, KernelCost, Profile, Task, Work};
use std::time::Instant;

const STREAMS: usize = 8;
const OPERATIONS: usize = 600_000;

fn main() {
    let kernel = KernelCost::Grid(Grid::elementwise(1 << 20, 4, 256, 256, 2112));
    let duration = KernelCost::Duration {
        ns: 20_000,
        share: 1.0,
    };
    let copies = [
        Work::Upload { bytes: 1 << 20 },
        Work::Download { bytes: 1 << 20 },
    ];
    run("copies, no host calls", false, |i| copies[i % 2]);
    run("kernels, no host calls", false, |_| Work::Kernel(kernel));
    run("kernels and copies, no host calls", false, |i| {
        [copies[0], Work::Kernel(duration), copies[1]][i / STREAMS % 3]
    });
    run("kernels and copies, a call each", true, |i| {
        [copies[0], Work::Kernel(kernel), copies[1]][i / STREAMS % 3]
    });
}

fn run(name: &str, calls: bool, work: impl Fn(usize) -> Work) {
    // The best of five runs is taken: the machine may be busy with other work.
    let mut best: f64 = 0.0;
    let mut end_ns = 0;
    for _ in 0..5 {
        let start = Instant::now();
        let mut engine = Engine::new(vec![Profile::h200()]);
        let host = engine.add_thread();
        let streams: Vec<_> = (0..STREAMS).map(|_| engine.add_stream(0, 0)).collect();
        for i in 0..OPERATIONS {
            let stream = streams[i % STREAMS];
            if calls {
                let call = engine.push(Task::new(host, Work::Call(Call::Launch)));
                engine.push(Task::new(stream, work(i)).after(&[call]));
            } else {
                engine.push(Task::new(stream, work(i)));
            }
        }
        end_ns = engine.finish().unwrap_or_else(|e| panic!("{e}"));
        best = best.max(engine.tasks() as f64 / start.elapsed().as_secs_f64());
    }
    println!(
        "{name}: {:.2} million tasks a second ({:.1} ms simulated)",
        best / 1e6,
        end_ns as f64 / 1e6
    );
}
