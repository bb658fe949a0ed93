//! The computations of kernels and host functions: used by the kernels and by the plain vectors.
//!
//! Each result depends on every value that is read, on the previous value and on the place, so that different orders
//! of the calls give different results.

use sidestream::kernel::{Kernel, Read, Value, Write};

pub fn digest(values: &[u32]) -> u32 {
    values.iter().fold(0x811c_9dc5, |digest: u32, &value| {
        (digest ^ value).wrapping_mul(0x0100_0193).rotate_left(5)
    })
}

fn stir(values: &mut [u32], with: u32) {
    for (at, value) in values.iter_mut().enumerate() {
        *value = (*value ^ with)
            .wrapping_mul(0x9e37_79b1)
            .wrapping_add(at as u32);
    }
}

pub fn one(y: &mut [u32]) {
    let with = digest(y);
    stir(y, with);
}

pub fn two(x: &[u32], y: &mut [u32]) {
    let with = digest(x).wrapping_add(digest(y));
    stir(y, with);
}

pub fn three(x: &[u32], z: &[u32], y: &mut [u32]) {
    let with = digest(x).wrapping_sub(digest(z)).wrapping_add(digest(y));
    stir(y, with);
}

pub fn four(x: &[u32], y: &mut [u32], z: &mut [u32], n: u32) {
    let with = digest(x) ^ digest(y).wrapping_mul(3) ^ digest(z).wrapping_mul(5) ^ n;
    stir(y, with);
    stir(z, !with);
}

type Four = (Read<u32>, Write<u32>, Write<u32>, Value<u32>);

/// The functions as kernels.
#[derive(Clone)]
pub struct Kernels {
    pub one: Kernel<(Write<u32>,)>,
    pub two: Kernel<(Read<u32>, Write<u32>)>,
    pub three: Kernel<(Read<u32>, Read<u32>, Write<u32>)>,
    pub four: Kernel<Four>,
    /// A kernel that traps: the device is lost.
    pub trap: Kernel<(Write<u32>,)>,
}

impl Kernels {
    pub fn new() -> Kernels {
        Kernels {
            one: Kernel::<(Write<u32>,)>::on_host("one", |_, (y,)| one(y)),
            two: Kernel::<(Read<u32>, Write<u32>)>::on_host("two", |_, (x, y)| two(x, y)),
            three: Kernel::<(Read<u32>, Read<u32>, Write<u32>)>::on_host(
                "three",
                |_, (x, z, y)| three(x, z, y),
            ),
            four: Kernel::<Four>::on_host("four", |_, (x, y, z, n)| four(x, y, z, n)),
            // Not `panic!`, whose hook would print it.
            trap: Kernel::<(Write<u32>,)>::on_host("trap", |_, _| {
                std::panic::resume_unwind(Box::new("a trap of the test"))
            }),
        }
    }
}
