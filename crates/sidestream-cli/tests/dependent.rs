//! Tests programs that depend on `sidestream` and on none of its dependencies, as this crate does.

use std::error::Error as _;

use sidestream::Error;
use sidestream::pipeline::Cause;
use sidestream::prelude::*;

/// The first program of docs/guide/rust.md.
mod first {
    include!("data/first_program.rs");

    #[test]
    fn it_runs_and_is_what_the_guide_shows() {
        main().expect("it works on the simulated GPU");
        let page = include_str!("../../../docs/guide/rust.md");
        assert!(page.contains(include_str!("data/first_program.rs")));
    }
}

#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[bytemuck(crate = "sidestream::bytemuck")]
#[repr(C)]
struct Particle {
    at: [f32; 3],
    mass: f32,
}

#[test]
fn a_struct_is_plain_by_a_derive() {
    let device = Device::open("sim:h200").expect("it is there");
    let stream = device.stream("particles").expect("a stream");
    let one = Particle {
        at: [1.0, 2.0, 3.0],
        mass: 1.5,
    };
    let double = Kernel::<Write<Particle>>::on_host("double", |_, particles| {
        for particle in particles {
            particle.mass *= 2.0;
        }
    });
    let mut particles = stream.alloc_from(&[one; 5]).expect("memory");
    let half = particles.slice_mut(..2);
    let grid = Grid::cover(2, 256);
    stream.launch(&double, grid, half).expect("a launch");
    let back = stream.to_vec(particles.view()).expect("they come back");
    let heavy = Particle { mass: 3.0, ..one };
    assert_eq!(back, [heavy, heavy, one, one, one]);
    assert_eq!(Particle::zeroed().mass, 0.0);
}

#[test]
fn a_stage_fails_with_an_error_of_any_kind() {
    let device = Device::open("sim:h200").expect("it is there");
    let running = Pipeline::new(&device, 1)
        .upload(per_row::<u32>(1))
        .apply("table", |at, _| {
            match at.index() {
                0 => {}
                1 => drop(std::fs::read("/there/is/no/such/file")?),
                _ => drop("a word".parse::<u32>().map_err(Error::other)?),
            }
            Ok(())
        })
        .download(per_row::<u32>(1), |x| x)
        .depth(1)
        .fill(|_, x| {
            x[0] = 1;
            Ok(Some(1))
        });
    let failed = running.run(|_| Ok(())).expect_err("there is no such file");
    assert_eq!((&*failed.stage, failed.index), ("table", 1));
    assert!(matches!(failed.cause, Cause::User(_)), "{failed}");
    let source = failed.source().expect("it says why");
    let source = source.downcast_ref::<std::io::Error>();
    let kind = source.expect("it is what the stage met").kind();
    assert_eq!(kind, std::io::ErrorKind::NotFound);
}

#[test]
fn an_error_of_the_runtime_stays_one_in_a_box() {
    let lost = Error::Panicked {
        message: "x".to_owned(),
    };
    let boxed: Box<dyn std::error::Error + Send + Sync> = lost.clone().into();
    assert_eq!(Error::from(boxed), lost);
    let other = Error::other("no luck");
    assert_eq!(
        (other.to_string(), &other),
        ("no luck".to_owned(), &other.clone())
    );
    assert_ne!(other, Error::other("no luck"));
}

#[test]
fn devices_fill_with_what_repeats() {
    let device = Device::open("sim:h200").expect("it is there");
    let stream = device.stream("fill").expect("a stream");
    let mut x = stream.alloc::<u64>(3).expect("memory");
    for value in [0, u64::MAX, 0x1234_5678_1234_5678] {
        stream.fill_with(x.view_mut(), value).expect("it repeats");
        assert_eq!(stream.to_vec(x.view()).expect("values"), [value; 3]);
    }
    let refused = stream.fill_with(x.view_mut(), 1).expect_err("it does not");
    assert!(refused.to_string().contains("8 bytes"), "{refused}");
    let mut y = stream.alloc::<[f32; 3]>(2).expect("memory");
    stream
        .fill_with(y.view_mut(), [0.5; 3])
        .expect("it repeats");
    assert_eq!(stream.to_vec(y.view()).expect("values"), [[0.5; 3]; 2]);
}

#[test]
fn statistics_can_be_read() {
    let device = Device::open("sim:h200").expect("it is there");
    let stream = device.stream("s").expect("a stream");
    let held = stream.alloc::<u8>(3 << 20).expect("memory");
    drop(stream.alloc::<u8>(3 << 20).expect("memory"));
    let shown = device.statistics().to_string();
    assert!(
        shown.starts_with("held by buffers   3072.0 KiB (at most 6144.0 KiB)\n"),
        "{shown}"
    );
    assert!(shown.contains("allocations       2, frees 1"), "{shown}");
    drop(held);
}
