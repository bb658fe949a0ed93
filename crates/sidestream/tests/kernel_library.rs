//! The kernels of the library, on the simulated GPU.

use std::time::Duration;

use sidestream::device::Device;
use sidestream::error::Result;
use sidestream::kernel::{Grid, library};
use sidestream::ptx;

#[test]
fn a_step_of_work_is_one_multiplication_and_addition_rounded_once() -> Result<()> {
    let device = Device::open("sim:h200")?;
    let stream = device.stream("compute")?;
    // SAFETY: the launch passes the length of its views, or less.
    let step = unsafe { library::overlap_step() };
    let mut host = device.pinned::<f32>(100)?;
    host.fill(0.3);
    let (mut from, mut to) = (stream.alloc(100)?, stream.alloc_zeroed::<f32>(100)?);
    drop(stream.upload(host, from.view_mut())?);
    let grid = Grid::cover(100, 32);
    stream.launch(&step, grid, (from.view(), to.view_mut(), 99, 3))?;
    let back = stream.download(to.view(), device.pinned(100)?)?;
    let back = back.synchronize()?;
    // With exact arithmetic in between, then rounded.
    let once = |v: f32| (f64::from(v) * f64::from(1.0001f32) + f64::from(1e-4f32)) as f32;
    let expected = once(once(once(0.3)));
    assert_eq!(back[0].to_bits(), expected.to_bits());
    assert_eq!(back[98].to_bits(), expected.to_bits());
    assert_eq!(back[99], 0.0, "only as many as the launch was given");
    Ok(())
}

#[test]
fn each_step_of_work_takes_the_same_time() -> Result<()> {
    let device = Device::open("sim:h200")?;
    let stream = device.stream("compute")?;
    // SAFETY: each launch passes the length of its views.
    let step = unsafe { library::overlap_step() };
    let from = stream.alloc_zeroed::<f32>(256)?;
    let mut to = stream.alloc(256)?;
    let mut time = |work| -> Result<Duration> {
        let start = stream.record_timed()?;
        let grid = Grid::cover(256, 256);
        stream.launch(&step, grid, (from.view(), to.view_mut(), 256, work))?;
        let end = stream.record_timed()?;
        stream.synchronize()?;
        end.elapsed_since(&start)
    };
    let times = [time(20_000)?, time(40_000)?, time(60_000)?];
    let added = [times[1] - times[0], times[2] - times[1]];
    assert!(
        added[0].as_nanos() > 20_000,
        "more than a nanosecond a step: {times:?}"
    );
    assert!(added[0].abs_diff(added[1]) < added[0] / 20, "{times:?}");
    Ok(())
}

#[test]
fn a_pattern_is_found_again_and_a_change_in_it_is_counted() -> Result<()> {
    let device = Device::open("sim:h200")?;
    let stream = device.stream("compute")?;
    // SAFETY: each launch passes the length of its view, and the counter is one value.
    let (fill, check) = unsafe { (library::fill_pattern(), library::check_pattern()) };
    let mut memory = stream.alloc::<u32>(1000)?;
    let mut errors = stream.alloc_zeroed::<u32>(1)?;
    let grid = Grid::cover(1000, 256);
    stream.launch(&fill, grid, (memory.view_mut(), 1000, 7))?;
    stream.launch(&check, grid, (memory.view(), 1000, 7, errors.view_mut()))?;
    let wrong = stream.download(errors.view(), device.pinned(1)?)?;
    assert_eq!(wrong.synchronize()?[0], 0);

    stream.launch(&check, grid, (memory.view(), 1000, 8, errors.view_mut()))?;
    let wrong = stream.download(errors.view(), device.pinned(1)?)?;
    assert_eq!(wrong.synchronize()?[0], 1000, "another seed, other values");

    stream.memset(memory.slice_mut(10..13), 0)?;
    stream.launch(&check, grid, (memory.view(), 1000, 7, errors.view_mut()))?;
    let wrong = stream.download(errors.view(), device.pinned(1)?)?;
    assert_eq!(wrong.synchronize()?[0], 1003);
    Ok(())
}

#[test]
fn a_piece_is_copied_up_to_its_length() -> Result<()> {
    let device = Device::open("sim:h200")?;
    let stream = device.stream("compute")?;
    // SAFETY: the launch passes less than the length of its views.
    let copy = unsafe { library::copy_piece() };
    let from = stream.alloc_from(&[1u8, 2, 3, 4])?;
    let mut to = stream.alloc_zeroed::<u8>(4)?;
    stream.launch(&copy, Grid::new(1, 32), (from.view(), to.view_mut(), 3))?;
    assert_eq!(stream.to_vec(to.view())?, [1, 2, 3, 0]);
    Ok(())
}

#[test]
fn sums_are_of_each_pair() -> Result<()> {
    let device = Device::open("sim:h200")?;
    let stream = device.stream("compute")?;
    // SAFETY: the launch passes the length of its views.
    let add = unsafe { library::vector_add() };
    let values = |first: f32| -> Result<_> {
        let mut host = device.pinned::<f32>(3)?;
        for (at, value) in host.iter_mut().enumerate() {
            *value = first + at as f32;
        }
        let mut there = stream.alloc(3)?;
        drop(stream.upload(host, there.view_mut())?);
        Ok(there)
    };
    let (a, b) = (values(1.0)?, values(10.0)?);
    let mut sum = stream.alloc(3)?;
    let grid = Grid::cover(3, 32);
    stream.launch(&add, grid, (a.view(), b.view(), sum.view_mut(), 3))?;
    let back = stream.download(sum.view(), device.pinned(3)?)?;
    assert_eq!(back.synchronize()?[..], [11.0, 13.0, 15.0]);
    Ok(())
}

#[test]
fn a_spin_lasts_as_long_as_requested() -> Result<()> {
    let device = Device::open("sim:h200")?;
    let stream = device.stream("compute")?;
    let spin = library::spin();
    let start = stream.record_timed()?;
    stream.launch(&spin, Grid::new(1, 1), (2_000_000,))?;
    let end = stream.record_timed()?;
    stream.synchronize()?;
    let took = end.elapsed_since(&start)?;
    assert!((2_000..2_020).contains(&took.as_micros()), "{took:?}");
    Ok(())
}

#[test]
fn a_trap_is_returned_to_the_waiting_caller() -> Result<()> {
    let device = Device::open("sim:h200")?;
    let stream = device.stream("compute")?;
    stream.launch(&library::empty(), Grid::new(1, 1), ())?;
    stream.synchronize()?;
    stream.launch(&library::trap(), Grid::new(1, 1), ())?;
    let error = stream.synchronize().expect_err("it stops the device");
    assert!(error.to_string().contains("trap"), "{error}");
    Ok(())
}

#[test]
fn every_ptx_has_the_documented_entries() {
    let texts = [
        (&ptx::EMPTY, vec!["empty"]),
        (&ptx::VECTOR_ADD, vec!["vector_add"]),
        (&ptx::OVERLAP_STEP, vec!["overlap_step"]),
        (&ptx::GATHER, vec!["copy_piece", "gather"]),
        (&ptx::PATTERN, vec!["check_pattern", "fill_pattern"]),
        (&ptx::SPIN, vec!["spin"]),
        (&ptx::FAULT, vec!["poke", "trap"]),
    ];
    for (text, expected) in texts {
        let entries = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(".visible .entry ")?;
            rest.split('(').next()
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort();
        assert_eq!(entries, expected);
        assert!(
            text.contains("\n.version 8.0\n"),
            "a driver of CUDA 12.0 reads it"
        );
    }
}

#[test]
fn a_layer_is_a_product_with_negative_values_set_to_zero() -> Result<()> {
    let device = Device::open("sim:h200")?;
    let stream = device.stream("compute")?;
    // SAFETY: the launch passes the sizes of its views, and its blocks have 256 threads.
    let dense = unsafe { library::dense() };
    let x = stream.alloc_from(&[1.0f32, 2.0, 3.0, -1.0, 0.0, 1.0, 9.0, 9.0, 9.0])?;
    let w = stream.alloc_from(&[1.0f32, 0.0, -2.0, 0.0, 1.0, 0.5, 2.0, -1.0, 0.0])?;
    let mut y = stream.alloc_zeroed::<f32>(9)?;
    let args = (x.view(), w.view(), y.view_mut(), 2, 3);
    stream.launch(&dense, library::dense_grid(2, 3), args)?;
    let expected = [7.0, 0.0, 0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 0.0];
    assert_eq!(
        stream.to_vec(y.view())?,
        expected,
        "two rows, and not the third"
    );
    Ok(())
}
