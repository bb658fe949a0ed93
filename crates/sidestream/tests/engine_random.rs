//! Random programs: no edge, no order of a lane and no exclusive engine is ever violated, and everything completes.

use sidestream::engine::{
    Call, Delay, Engine, Engines, Grid, KernelCost, LaneId, Profile, Resource, Task, TaskId, Work,
};
use std::collections::BTreeMap;

use crate::drawn::Random;

struct Pushed {
    lane: LaneId,
    after: Vec<TaskId>,
    /// Minimum device time times share of a known kernel.
    compute: Option<(u32, f64)>,
}

fn work(random: &mut Random, devices: u64) -> Work {
    let bytes = 1 << random.below(24);
    match random.below(13) {
        0 => Work::Upload { bytes },
        1 => Work::Download { bytes },
        2 => Work::UploadPageable { bytes },
        3 => Work::DownloadPageable { bytes },
        4 => Work::DeviceCopy { bytes },
        5 => Work::PeerCopy {
            peer: random.below(devices) as u32,
            bytes,
        },
        6 => Work::Memset { bytes },
        7 => Work::HostFunc {
            ns: random.below(5000),
        },
        8 => Work::Marker,
        9 => Work::Timed {
            engine: [
                Engines::Upload,
                Engines::Download,
                Engines::Inner,
                Engines::Callback,
            ][random.below(4) as usize],
            ns: random.below(20_000),
        },
        10 => Work::Kernel(KernelCost::Grid(Grid::elementwise(
            1 + bytes,
            4,
            random.below(3000),
            32 << random.below(6),
            2112,
        ))),
        11 => Work::Kernel(KernelCost::Blocks {
            blocks: 1 + random.below(2000),
            threads_per_block: 32 << random.below(6),
            block_ns: 1 + random.below(9000),
        }),
        _ => Work::Kernel(KernelCost::Duration {
            ns: 1 + random.below(30_000),
            share: (1 + random.below(10)) as f64 / 10.0,
        }),
    }
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let devices = 1 + random.below(3);
    let profiles = (0..devices)
        .map(|_| Profile::named(Profile::NAMES[random.below(4) as usize]).expect("built in"));
    let mut engine = Engine::new(profiles.collect());
    let threads: Vec<LaneId> = (0..1 + random.below(3))
        .map(|_| engine.add_thread())
        .collect();
    let streams: Vec<(LaneId, u32)> = (0..1 + random.below(10))
        .map(|_| {
            let device = random.below(devices) as u32;
            (engine.add_stream(device, -random.below(3)), device)
        })
        .collect();
    let delays = random.below(2) == 0;
    let steps = random.below(2) == 0;
    let mut pushed: Vec<Pushed> = Vec::new();
    for n in 0..random.below(300) {
        let mut after: Vec<TaskId> = (0..random.below(4))
            .filter(|_| n > 0)
            .map(|_| TaskId(random.below(n.max(1))))
            .collect();
        if random.below(2) == 0 {
            after.clear();
        }
        let (lane, work, compute) = if random.below(3) == 0 {
            (
                threads[random.below(threads.len() as u64) as usize],
                Work::Call(Call::HostNs(random.below(4000))),
                None,
            )
        } else {
            let (lane, device) = streams[random.below(streams.len() as u64) as usize];
            let work = work(&mut random, devices);
            let compute = match work {
                Work::Kernel(KernelCost::Duration { ns, share }) => {
                    Some((device, ns as f64 * share))
                }
                _ => None,
            };
            (lane, work, compute)
        };
        let delay = match random.below(6) {
            0 if delays => Delay::UntilIdle(random.below(5)),
            1 if delays => Delay::ExtraNs(random.below(9000)),
            _ => Delay::None,
        };
        engine.push(Task::new(lane, work).after(&after).delay(delay));
        pushed.push(Pushed {
            lane,
            after,
            compute,
        });
        if steps && random.below(3) == 0 {
            engine.step();
        }
    }
    engine
        .finish()
        .unwrap_or_else(|e| panic!("seed {seed}: {e}"));

    let spans: Vec<_> = engine
        .schedule()
        .map(|(_, lane, span)| (lane, span))
        .collect();
    assert_eq!(
        spans.len(),
        pushed.len(),
        "seed {seed}: everything has finished"
    );
    let mut lane_end: BTreeMap<LaneId, u64> = BTreeMap::new();
    let mut holders: BTreeMap<Resource, Vec<(u64, u64)>> = BTreeMap::new();
    let mut compute: BTreeMap<u32, (u64, u64, f64)> = BTreeMap::new();
    for (n, (task, (lane, span))) in pushed.iter().zip(&spans).enumerate() {
        assert_eq!(task.lane, *lane);
        assert!(span.start_ns <= span.end_ns);
        assert!(
            span.start_ns >= lane_end.get(lane).copied().unwrap_or(0),
            "seed {seed}: task {n} overtakes its lane"
        );
        lane_end.insert(*lane, span.end_ns);
        for before in &task.after {
            assert!(
                span.start_ns >= spans[before.0 as usize].1.end_ns,
                "seed {seed}: task {n} does not wait for {before:?}"
            );
        }
        match span.resource {
            Resource::Engine {
                engine: Engines::Compute,
                ..
            }
            | Resource::Host
            | Resource::None => (),
            exclusive => holders
                .entry(exclusive)
                .or_default()
                .push((span.start_ns, span.end_ns)),
        }
        if let Some((device, ns)) = task.compute {
            let all = compute.entry(device).or_insert((u64::MAX, 0, 0.0));
            *all = (all.0.min(span.start_ns), all.1.max(span.end_ns), all.2 + ns);
        }
    }
    for (resource, mut held) in holders {
        held.sort_unstable();
        assert!(
            held.windows(2).all(|w| w[0].1 <= w[1].0),
            "seed {seed}: {resource:?} has two holders"
        );
    }
    for (device, (start, end, ns)) in compute {
        assert!(
            (end - start) as f64 >= ns - 1.0,
            "seed {seed}: device {device} computes {ns} ns within {} ns",
            end - start
        );
    }
    if let Some(last) = spans.iter().map(|(_, s)| s.end_ns).max() {
        let path = engine.critical_path(None);
        assert_eq!(path.last().map(|l| l.to_ns), Some(last), "seed {seed}");
        assert!(
            path.windows(2).all(|w| w[0].to_ns == w[1].from_ns),
            "seed {seed}: the path has a hole"
        );
        assert!(
            path.iter()
                .all(|l| l.from_ns <= l.start_ns && l.start_ns <= l.to_ns),
            "seed {seed}: {path:?}"
        );
        assert_eq!(path.first().map(|l| l.from_ns), Some(0), "seed {seed}");
    }
}

#[test]
fn random_programs_keep_every_promise() {
    for seed in 0..1500 {
        println!("seed {seed}");
        run(seed);
    }
}
