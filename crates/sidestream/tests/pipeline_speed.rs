//! The overlap job as a pipeline on the simulated H200, compared with the best arrangement of raw streams.

use std::sync::Arc;

use crate::engine_job::{Arrangement, Job, program};
use sidestream::device::{Device, Options};
use sidestream::engine::Profile;
use sidestream::kernel::{Grid, Kernel, KernelCost, Read, Work, Write};
use sidestream::pipeline::{Pipeline, per_row};
use sidestream::sim::{Machine, Schedule};

const COUNT: u64 = 32;

fn cost(len: usize, work: u32) -> KernelCost {
    let profile = Profile::h200();
    KernelCost::Grid(Work::elementwise(
        len as u64,
        4,
        work.into(),
        256,
        16 * profile.sms as u64,
    ))
}

fn open() -> (Arc<Machine>, Device) {
    let machine = Machine::new(
        vec![("sim:h200".into(), Profile::h200())],
        Schedule::InOrder,
        None,
    );
    let machine = Arc::new(machine);
    // Gigabytes would be moved, and no test reads them.
    machine.times_only();
    let device = Device::on(machine.clone(), &Options::new()).remove(0);
    (machine, device)
}

fn scale(len: usize, work: u32) -> Kernel<(Read<f32>, Write<f32>)> {
    Kernel::<(Read<f32>, Write<f32>)>::on_host("scale", |_, _| ())
        .with_cost(move |_| cost(len, work))
}

fn with_streams(len: usize, work: u32, depth: usize) -> u64 {
    let (machine, device) = open();
    let kernel = scale(len, work);
    let running = Pipeline::new(&device, len)
        .upload(per_row::<f32>(1))
        .stage("scale", per_row::<f32>(1), move |at, x, y| {
            at.stream()
                .launch(&kernel, Grid::new(1, 256), (x.view(), y.view_mut()))
        })
        .download(per_row::<f32>(1), |(_, y)| y)
        .depth(depth)
        .fill(move |index, _| Ok((index < COUNT).then_some(len)));
    let start = machine.now_ns();
    assert_eq!(running.map(Result::unwrap).count() as u64, COUNT);
    machine.now_ns() - start
}

fn with_graphs(len: usize, work: u32, depth: usize) -> u64 {
    let (machine, device) = open();
    let kernel = scale(len, work);
    let host = device.clone();
    let mut running = Pipeline::new(&device, len)
        .graphs(
            per_row::<f32>(1),
            per_row::<f32>(1),
            move |stream, nodes| {
                let (x, y) = (
                    nodes.own(stream.alloc(len)?)?,
                    nodes.own(stream.alloc(len)?)?,
                );
                let (sent, back) = (
                    nodes.own_pinned(host.pinned(len)?)?,
                    nodes.own_pinned(host.pinned(len)?)?,
                );
                nodes.upload(sent, x.view_mut())?;
                nodes.launch(&kernel, Grid::new(1, 256), (x.view(), y.view_mut()))?;
                nodes.download(y.view(), back)?;
                Ok((sent, back))
            },
        )
        .depth(depth)
        .fill(move |index, _| Ok((index < COUNT).then_some(len)));
    let start = machine.now_ns();
    assert_eq!(running.by_ref().map(Result::unwrap).count() as u64, COUNT);
    machine.now_ns() - start
}

/// Returns the best time of all arrangements of raw streams, none of which waits for the host.
fn best_raw_ns(len: usize, work: u32) -> u64 {
    let job = Job {
        bytes: 4 * len as u64,
        iters: work.into(),
        items: COUNT as usize,
    };
    let streams = (1..=4).map(Arrangement::Streams);
    let rings = (2..=4).map(Arrangement::Ring);
    let times = streams.chain(rings);
    let times = times.map(|arrangement| program(&Profile::h200(), &job, arrangement).1);
    times.min().expect("there are arrangements")
}

const WORKS: [u32; 4] = [16, 256, 4096, 16384];

#[track_caller]
fn within(what: &str, time_ns: u64, bar: f64, raw_ns: u64) {
    let ratio = time_ns as f64 / raw_ns as f64;
    println!("{what}: {time_ns} ns, best raw {raw_ns} ns, ratio {ratio:.4}");
    assert!(
        ratio <= bar,
        "{what}: {ratio:.4} of the best raw time, allowed {bar}"
    );
}

#[test]
fn four_slots_are_as_fast_as_the_best_raw_streams() {
    for (len, bar) in [(16 << 10, 1.05), (1 << 20, 1.02), (8 << 20, 1.02)] {
        for work in WORKS {
            let what = format!("{} KiB, work {work}", len >> 8);
            within(
                &what,
                with_streams(len, work, 4),
                bar,
                best_raw_ns(len, work),
            );
        }
    }
}

#[test]
fn six_graphs_are_faster_than_the_best_raw_streams_where_calls_are_the_limit() {
    for work in WORKS {
        let len = 16 << 10;
        let what = format!("graphs, 64 KiB, work {work}");
        within(
            &what,
            with_graphs(len, work, 6),
            1.0 / 1.2,
            best_raw_ns(len, work),
        );
    }
}
