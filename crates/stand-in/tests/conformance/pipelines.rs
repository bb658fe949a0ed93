//! Pipelines: every item comes out, in order, at any depth.

use std::error::Error as StdError;
use std::time::Duration;

use sidestream::buffer::{DeviceBuf, Pinned};
use sidestream::device::Device;
use sidestream::error::Error;
use sidestream::kernel::Grid;
use sidestream::pipeline::{At, Cause, Pipeline, Ready, per_item, per_row};

use crate::kernels::{CHECK, FILL, STEP, fill, patterned, spin, stepped};
use crate::target::{Scenario, Target, one, panic_quietly};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(two_hundred_items_come_out_right_at_every_depth),
        one(a_source_on_threads_is_as_right),
        one(a_graph_for_each_slot_is_as_right),
        one(several_buffers_and_stages_keep_their_items),
        one(a_stage_in_item_order_sees_the_one_before),
        one(branches_join_at_the_end_of_their_stage),
        one(a_stage_that_fails_is_named_with_its_item),
        one(a_source_that_panics_is_named_with_its_item),
        one(a_pipeline_that_is_dropped_in_the_middle_ends),
        one(a_report_has_a_time_for_every_stage),
    ]
}

const ROWS: usize = 1000;
const ITEMS: u64 = 200;

type Host = Pinned<f32>;
type Filled = Result<Option<usize>, Box<dyn StdError + Send + Sync>>;

fn grid() -> Grid {
    Grid::cover(ROWS, 128)
}

/// Fills item `index`. The last one is smaller.
fn source(count: u64) -> impl FnMut(u64, &mut Host) -> Filled + Send + Clone + 'static {
    move |index, x| {
        let values = x.iter_mut().enumerate();
        values.for_each(|(at, value)| *value = input(index, at));
        let rows = if index + 1 == count { ROWS / 3 } else { ROWS };
        Ok((index < count).then_some(rows))
    }
}

fn input(index: u64, at: usize) -> f32 {
    index as f32 + at as f32 / 16.0
}

/// Returns a pipeline of upload, two stages, download.
fn stepping(device: &Device) -> Ready<Host, Host, impl Send + use<>> {
    Pipeline::new(device, ROWS)
        .upload(per_row::<f32>(1))
        .stage("three", per_row::<f32>(1), |at, x, y| {
            let n = at.rows() as u64;
            let args = (x.view(), y.view_mut(), n, 3);
            at.stream().launch(&STEP, grid(), args)
        })
        .stage("four", per_row::<f32>(1), |at, (_, y), z| {
            let n = at.rows() as u64;
            let args = (y.view(), z.view_mut(), n, 4);
            at.stream().launch(&STEP, grid(), args)
        })
        .download(per_row::<f32>(1), |(_, z)| z)
}

#[track_caller]
fn expect_stepped(items: impl Iterator<Item = (u64, usize, Vec<f32>)>, count: u64) {
    let mut next = 0;
    for (index, rows, found) in items {
        assert_eq!(index, next);
        assert_eq!(rows, if index + 1 == count { ROWS / 3 } else { ROWS });
        for (at, value) in found[..rows].iter().enumerate() {
            let expected = stepped(input(index, at), 7);
            assert_eq!(
                value.to_bits(),
                expected.to_bits(),
                "item {index}, row {at}"
            );
        }
        next += 1;
    }
    assert_eq!(next, count);
}

fn two_hundred_items_come_out_right_at_every_depth(target: Target) {
    let device = target.open();
    for depth in [None, Some(1), Some(2), Some(3), Some(5)] {
        let ready = stepping(&device);
        let ready = match depth {
            Some(depth) => ready.depth(depth),
            None => ready,
        };
        let items = ready.fill(source(ITEMS)).map(|item| {
            let item = item.unwrap();
            (item.index(), item.rows(), item.to_vec())
        });
        expect_stepped(items, ITEMS);
    }
}

fn a_source_on_threads_is_as_right(target: Target) {
    let device = target.open();
    for threads in [1, 3] {
        let fill = |index, x: &mut Host| source(ITEMS)(index, x);
        let running = stepping(&device)
            .depth(3)
            .fill_on_threads(threads, fill)
            .unwrap();
        let items = running.map(|item| {
            let item = item.unwrap();
            (item.index(), item.rows(), item.to_vec())
        });
        expect_stepped(items, ITEMS);
    }
}

fn a_graph_for_each_slot_is_as_right(target: Target) {
    let device = target.open();
    for depth in [1, 2, 6] {
        let host = device.clone();
        let describe = move |stream: &sidestream::stream::Stream,
                             nodes: &mut sidestream::graph::GraphBuilder| {
            let [x, y, z] = [(); 3].map(|()| stream.alloc::<f32>(ROWS));
            let (x, y, z) = (nodes.own(x?)?, nodes.own(y?)?, nodes.own(z?)?);
            let sent = nodes.own_pinned(host.pinned(ROWS)?)?;
            let back = nodes.own_pinned(host.pinned(ROWS)?)?;
            nodes.upload(sent, x.view_mut())?;
            let n = ROWS as u64;
            nodes.launch(&STEP, grid(), (x.view(), y.view_mut(), n, 3))?;
            nodes.launch(&STEP, grid(), (y.view(), z.view_mut(), n, 4))?;
            nodes.download(z.view(), back)?;
            Ok((sent, back))
        };
        let running = Pipeline::new(&device, ROWS)
            .graphs(per_row::<f32>(1), per_row::<f32>(1), describe)
            .depth(depth)
            .fill(source(ITEMS));
        let items = running.map(|item| {
            let item = item.unwrap();
            (item.index(), item.rows(), item.to_vec())
        });
        expect_stepped(items, ITEMS);
    }
}

fn several_buffers_and_stages_keep_their_items(target: Target) {
    let device = target.open();
    let running = Pipeline::new(&device, ROWS)
        .upload((per_row::<u32>(1), per_item::<u32>(1)))
        .stage("look", per_item::<u32>(1), |at, (x, seed), errors| {
            at.stream().memset(errors.view_mut(), 0)?;
            // The host knows the seed too: it is the item's number.
            let _ = seed;
            let (n, index) = (at.rows() as u64, at.index() as u32);
            let args = (x.view(), n, index, errors.view_mut());
            at.stream().launch(&CHECK, grid(), args)
        })
        .apply("write", |at, ((x, _), _)| {
            let (n, index) = (at.rows() as u64, at.index() as u32);
            let args = (x.view_mut(), n, index + 1000);
            at.stream().launch(&FILL, grid(), args)
        })
        .download(
            ((per_row::<u32>(1), per_item::<u32>(1)), per_item::<u32>(1)),
            |slot| slot,
        )
        .depth(4)
        .fill(|index, (x, seed)| {
            x.copy_from_slice(&patterned(ROWS, index as u32));
            seed[0] = index as u32 * 3;
            Ok((index < ITEMS).then_some(ROWS))
        });
    let mut count = 0;
    for item in running {
        let item = item.unwrap();
        let ((x, seed), errors) = &*item;
        let index = item.index() as u32;
        assert_eq!((errors[0], seed[0]), (0, 3 * index));
        crate::kernels::expect_pattern(x, index + 1000);
        count += 1;
    }
    assert_eq!(count, ITEMS);
}

fn a_stage_in_item_order_sees_the_one_before(target: Target) {
    let device = target.open();
    let stream = device.stream("state").unwrap();
    let mut state = stream.alloc_zeroed::<f32>(ROWS).unwrap();
    let mut next = stream.alloc::<f32>(ROWS).unwrap();
    let n = ROWS as u64;
    let running = Pipeline::new(&device, ROWS)
        .upload(per_row::<f32>(1))
        .in_order("sum", move |at, x| {
            let args = (state.view(), x.view(), next.view_mut(), n);
            at.stream().launch(&crate::kernels::ADD, grid(), args)?;
            at.stream().memcpy_d2d(next.view(), state.view_mut())?;
            at.stream().memcpy_d2d(next.view(), x.view_mut())
        })
        .download(per_row::<f32>(1), |x| x)
        .depth(4)
        .fill(|index, x| {
            x.fill(1.0);
            Ok((index < ITEMS).then_some(ROWS))
        });
    for item in running {
        let item = item.unwrap();
        let expected = item.index() as f32 + 1.0;
        assert!(
            item.iter().all(|&value| value == expected),
            "item {}",
            item.index()
        );
    }
}

fn branches_join_at_the_end_of_their_stage(target: Target) {
    let device = target.open();
    let running = Pipeline::new(&device, ROWS)
        .upload(per_row::<f32>(1))
        .stage(
            "both",
            (per_row::<f32>(1), per_row::<f32>(1)),
            |at: &mut At<'_>, x, (left, right): &mut (DeviceBuf<f32>, DeviceBuf<f32>)| {
                let n = ROWS as u64;
                let side = at.branch(0)?;
                spin(50_000).hold(&side);
                side.launch(&STEP, grid(), (x.view(), left.view_mut(), n, 1))?;
                let args = (x.view(), right.view_mut(), n, 2);
                at.stream().launch(&STEP, grid(), args)
            },
        )
        .stage("sum", per_row::<f32>(1), |at, (_, (left, right)), sum| {
            let args = (left.view(), right.view(), sum.view_mut(), ROWS as u64);
            at.stream().launch(&crate::kernels::ADD, grid(), args)
        })
        .download(per_row::<f32>(1), |(_, sum)| sum)
        .depth(3)
        .fill(|index, x| {
            x.fill(index as f32);
            Ok((index < 40).then_some(ROWS))
        });
    for item in running {
        let item = item.unwrap();
        let from = item.index() as f32;
        let expected = stepped(from, 1) + stepped(from, 2);
        assert!(
            item.iter().all(|&value| value == expected),
            "item {}",
            item.index()
        );
    }
}

fn a_stage_that_fails_is_named_with_its_item(target: Target) {
    let device = target.open();
    let mut running = Pipeline::new(&device, ROWS)
        .upload(per_row::<u32>(1))
        .apply("write", |at, x| {
            let n = if at.index() == 17 { 0 } else { 128 };
            let args = (x.view_mut(), ROWS as u64, at.index() as u32);
            at.stream().launch(&FILL, Grid::new(8, n), args)
        })
        .download(per_row::<u32>(1), |x| x)
        .depth(3)
        .fill(|index, _| Ok((index < ITEMS).then_some(ROWS)));
    for index in 0..17 {
        let item = running.next().unwrap().unwrap();
        crate::kernels::expect_pattern(&item, index);
    }
    let failed = running.next().unwrap().err().unwrap();
    assert_eq!((failed.stage.as_str(), failed.index), ("write", 17));
    let is_invalid = matches!(&failed.cause, Cause::Runtime(Error::Invalid { .. }));
    assert!(is_invalid, "{failed}");
    assert!(running.next().is_none());
    // The device is still usable.
    let stream = device.stream("s").unwrap();
    let mut x = stream.alloc::<u32>(ROWS).unwrap();
    fill(&stream, x.view_mut(), 5);
    crate::kernels::expect_pattern(&crate::kernels::values(&stream, x.view()), 5);
}

fn a_source_that_panics_is_named_with_its_item(target: Target) {
    let device = target.open();
    let mut fill = source(ITEMS);
    let running = stepping(&device).depth(2).fill(move |index, x| {
        if index == 9 {
            panic_quietly("not this one");
        }
        fill(index, x)
    });
    let mut results: Vec<_> = running.collect();
    let failed = results.pop().unwrap().err().unwrap();
    assert_eq!((failed.stage.as_str(), failed.index), ("source", 9));
    assert!(matches!(&failed.cause, Cause::Panicked(text) if text == "not this one"));
    assert!(results.len() == 9 && results.iter().all(Result::is_ok));
}

fn a_pipeline_that_is_dropped_in_the_middle_ends(target: Target) {
    let device = target.open();
    for taken in [0, 1, 5] {
        let running = stepping(&device)
            .depth(4)
            .fill_on_thread(source(ITEMS))
            .unwrap();
        assert_eq!(running.take(taken).filter(Result::is_ok).count(), taken);
    }
    device.synchronize().unwrap();
    device.empty_cache().unwrap();
    assert_eq!(device.statistics().allocated_bytes, 0);
}

fn a_report_has_a_time_for_every_stage(target: Target) {
    let device = target.open();
    let mut running = Pipeline::new(&device, ROWS)
        .upload(per_row::<u32>(1))
        .apply("hold", |at, x| {
            spin(200_000).hold(at.stream());
            at.stream().memset(x.view_mut(), 1)
        })
        .download(per_row::<u32>(1), |x| x)
        .depth(2)
        .timed()
        .fill(|index, _| Ok((index < 20).then_some(ROWS)));
    assert_eq!(running.by_ref().filter(Result::is_ok).count(), 20);
    let report = running.report();
    assert_eq!(report.delivered, 20);
    let stages = report.timed.unwrap().stages;
    let hold = stages.iter().find(|(name, _)| name == "hold").unwrap().1;
    assert!(hold >= Duration::from_micros(190), "{stages:?}");
}
