//! The overlap job as a pipeline on the simulated H200, against the best arrangement of raw streams.

mod engine_job;

use std::sync::Arc;

use sidestream::device::{Device, Options};
use sidestream::engine::Profile;
use sidestream::kernel::{Grid, Kernel, KernelCost, Read, Work, Write};
use sidestream::pipeline::{Pipeline, per_row};
use sidestream::sim::{Machine, Schedule};

const COUNT: u64 = 32;

fn cost(len: usize, work: u32) -> KernelCost {
    let profile = Profile::h200();
    KernelCost::Grid(Work::elementwise(len as u64, 4, work.into(), 256, 16 * profile.sms as u64))
}

fn open() -> (Arc<Machine>, Device) {
    let machine = Machine::new(vec![("sim:h200".into(), Profile::h200())], Schedule::InOrder, None);
    let machine = Arc::new(machine);
    let device = Device::on(machine.clone(), &Options::new()).remove(0);
    (machine, device)
}

fn scale(len: usize, work: u32) -> Kernel<(Read<f32>, Write<f32>)> {
    Kernel::<(Read<f32>, Write<f32>)>::on_host("scale", |_, _| ()).with_cost(move |_| cost(len, work))
}

fn with_streams(len: usize, work: u32, depth: usize) -> u64 {
    let (machine, device) = open();
    let kernel = scale(len, work);
    let running = Pipeline::new(&device, len)
        .upload(per_row::<f32>(1))
        .stage("scale", per_row::<f32>(1), move |at, x, y| {
            at.stream().launch(&kernel, Grid::new(1, 256), (x.view(), y.view_mut()))
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
        .graphs(per_row::<f32>(1), per_row::<f32>(1), move |stream, nodes| {
            let (x, y) = (nodes.own(stream.alloc(len)?)?, nodes.own(stream.alloc(len)?)?);
            let (sent, back) = (nodes.own_pinned(host.pinned(len)?)?, nodes.own_pinned(host.pinned(len)?)?);
            nodes.upload(sent, x.view_mut())?;
            nodes.launch(&kernel, Grid::new(1, 256), (x.view(), y.view_mut()))?;
            nodes.download(y.view(), back)?;
            Ok((sent, back))
        })
        .depth(depth)
        .fill(move |index, _| Ok((index < COUNT).then_some(len)));
    let start = machine.now_ns();
    assert_eq!(running.by_ref().map(Result::unwrap).count() as u64, COUNT);
    machine.now_ns() - start
}

#[test]
fn show() {
    for (len, name) in [(16 << 10, "64K"), (1 << 20, "4M"), (8 << 20, "32M")] {
        for work in [16, 256, 4096, 16384] {
            let t: Vec<u64> = [3, 4, 6].into_iter().map(|d| with_streams(len, work, d)).collect();
            let g: Vec<u64> = [4, 5, 6].into_iter().map(|d| with_graphs(len, work, d)).collect();
            println!("{name} {work}: streams {t:?} graphs {g:?}");
        }
    }
}
