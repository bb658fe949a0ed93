//! Compiles the Rust code of the guide. Each code block of a page is in this file as printed, in a function that provides the
//! names that it uses.

use std::time::Duration;

use sidestream::batcher::{At, Batcher};
use sidestream::buffer::DeviceBuf;
use sidestream::pipeline::{BoxError, Item};
use sidestream::prelude::*;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[test]
fn each_rust_block_of_the_guide_is_in_this_file() {
    let here = flush(include_str!("guide.rs"));
    let elsewhere = flush(include_str!("data/first_program.rs"));
    for (page, text, blocks) in [
        ("rust.md", include_str!("../../../docs/guide/rust.md"), 4),
        (
            "pipelines.md",
            include_str!("../../../docs/guide/pipelines.md"),
            1,
        ),
        (
            "serving.md",
            include_str!("../../../docs/guide/serving.md"),
            1,
        ),
    ] {
        let shown = text.split("\n```rust\n").skip(1);
        let shown: Vec<&str> = shown
            .filter_map(|rest| rest.split("\n```").next())
            .collect();
        assert_eq!(shown.len(), blocks, "{page}");
        for block in shown {
            let block = flush(block);
            let is_here = here.contains(&block) || elsewhere.contains(&block);
            assert!(is_here, "{page}: put this block into guide.rs:\n{block}");
        }
    }
}

/// Returns a text without the indentation of its lines.
fn flush(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

#[rustfmt::skip]
mod particles {
    use sidestream::prelude::{Pod, Zeroable};

    #[derive(Clone, Copy, Pod, Zeroable)]
    #[bytemuck(crate = "sidestream::bytemuck")]
    #[repr(C)]
    struct Particle {
        at: [f32; 3],
        mass: f32,
    }

    #[test]
    fn a_struct_is_plain() {
        let nothing = Particle::zeroed();
        assert_eq!((nothing.at, nothing.mass), ([0.0; 3], 0.0));
    }
}

#[test]
#[rustfmt::skip]
fn a_graph_is_given_another_description() -> Outcome {
    let device = Device::open("sim:h200")?;
    let stream = device.stream("work")?;
    let scale = Kernel::<(Write<f32>, Value<f32>)>::on_host("scale", |_, (x, by)| {
        for x in x.iter_mut() {
            *x *= by;
        }
    });
    let grid = Grid::cover(4, 256);
    let mut nodes = device.graph();
    let x = nodes.own(stream.alloc_from(&[1.0f32, 2.0, 3.0, 4.0])?)?;
    let back = nodes.own_pinned(device.pinned::<f32>(4)?)?;
    nodes.launch(&scale, grid, (x.view_mut(), 2.0))?;
    let mut graph = nodes.build()?;
    graph.launch(&stream)?;

    let mut nodes = graph.edit()?; // the graph's memory is with `nodes` now
    nodes.launch(&scale, grid, (x.view_mut(), 0.5))?;
    graph.update(nodes)?; // from its next launch on

    graph.launch(&stream)?;
    let mut nodes = graph.edit()?;
    nodes.download(x.view(), back)?;
    let mut graph = nodes.build()?;
    graph.launch(&stream)?;
    assert_eq!(*graph.synchronize_pinned(back)?, [1.0, 2.0, 3.0, 4.0]);
    Ok(())
}

#[expect(dead_code, reason = "a simulated device has no handles; it compiles")]
#[rustfmt::skip]
fn streams_are_shared(device: Device, buffer: DeviceBuf<f32>, handle: u64, foreign_library: fn(u64)) -> Outcome {
    use sidestream::explicit;
    use sidestream::op::StreamKind;

    // Ours, for another library: a stream of the safe API as the driver's handle.
    let stream = device.stream("work")?;
    let ours = explicit::Stream::of(&stream);
    if let Some(handle) = ours.as_raw() {
        foreign_library(handle); // a `CUstream`; none on the simulated GPU
    }
    explicit::record_stream(&buffer, &ours)?; // keeps the memory until that work is complete

    // Theirs, for us: PyTorch's current stream.
    // SAFETY: the handle is a non-blocking stream of this device and outlives it.
    let theirs = unsafe { explicit::Stream::from_raw(&device, handle, StreamKind::NonBlocking, "theirs")? };
    let loaded = stream.record_event()?;
    theirs.wait_event(&loaded)?; // their later work waits for ours
    ours.wait_stream(&theirs)?; // and our later work for theirs
    Ok(())
}

fn square() -> Kernel<(Read<f32>, Write<f32>)> {
    Kernel::<(Read<f32>, Write<f32>)>::on_host("square", |_, (x, y)| {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x * x;
        }
    })
}

fn read_item(index: u64, x: &mut [f32]) -> Result<Option<usize>, BoxError> {
    x.fill(index as f32);
    Ok((index < 2).then_some(x.len()))
}

#[test]
#[rustfmt::skip]
fn a_pipeline_takes_items_through_its_stages() -> Outcome {
    let device = Device::open("sim:h200")?;
    let square = square();
    let mut seen = Vec::new();
    let mut use_it = |item: &Item<Pinned<f32>>| seen.push((item.index(), item[7]));

    use sidestream::pipeline::{Pipeline, per_row};

    let running = Pipeline::new(&device, 1 << 20) // an item has up to a million rows
        .upload(per_row::<f32>(1)) // a row is one number
        .stage("square", per_row::<f32>(1), move |at, x, y| {
            at.stream().launch(&square, Grid::cover(1 << 20, 256), (x.view(), y.view_mut()))
        })
        .download(per_row::<f32>(1), |(_, y)| y)
        .depth(4)
        .fill_on_thread(|index, x| read_item(index, x))?;
    for item in running {
        use_it(&item?);
    }

    assert_eq!(seen, [(0, 0.0), (1, 1.0)]);
    Ok(())
}

#[test]
#[rustfmt::skip]
fn requests_of_callers_run_as_batches() -> Outcome {
    let device = Device::open("sim:h200")?;
    let layer = square();
    let row = [3.0; 512];

    let batcher = Batcher::<f32, f32>::new(&device, 512, 512) // values a request, values an answer
        .sizes(&[1, 4, 16, 64])
        .max_delay(Duration::from_micros(200))
        .classes(&[("background", 0), ("urgent", -5)])
        .serve(move |_slot| {
            let layer = layer.clone();
            Ok(move |at: &At<'_>, x: View<'_, f32>, y: ViewMut<'_, f32>| {
                at.stream().launch(&layer, Grid::cover(at.size() * 512, 256), (x, y))
            })
        })?;
    let answer = batcher.submit(&row)?; // from any thread; refused if too many wait
    let values = answer.wait()?; // or `.await`

    assert_eq!(values[..], [9.0; 512]);
    Ok(())
}
