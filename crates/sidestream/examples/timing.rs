//! Times work on the device with events, and compares it to the roofline: the shortest time in
//! which the device could do the same arithmetic and move the same bytes.
//!
//!     cargo run --release -p sidestream --example timing [DEVICE]

use sidestream::benchmark::{Options, benchmark};
use sidestream::prelude::*;

const LEN: usize = 1 << 24;

type Scale = (Read<f32>, Write<f32>, Value<f32>);

/// The kernel for a real GPU; for the simulated one it is in Rust below.
const SCALE: &str = r#"
extern "C" __global__ void scale(const float* x, float* y, float by) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] * by;
}
"#;

fn main() -> sidestream::Result<()> {
    let device = Device::open(&std::env::args().nth(1).unwrap_or("auto".into()))?;
    let stream = device.stream("timing")?;
    // SAFETY: the kernel is launched with exactly one thread for each value.
    let scale = unsafe { Kernel::<Scale>::from_cuda(SCALE, "scale") };
    let scale = scale.and_on_host(|_, (x, y, by): (&[f32], &mut [f32], f32)| {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x * by;
        }
    });
    let x = stream.alloc_zeroed(LEN)?;
    let mut y = stream.alloc(LEN)?;
    println!("{}: {} MiB in, as much out", device.name(), (LEN * 4) >> 20);

    let options = Options {
        runs: 5,
        calls: 2,
        warm_up: 1,
        flops: LEN as f64,
        bytes: 2.0 * (LEN * 4) as f64,
    };
    let kernel = benchmark(&stream, &options, |stream| {
        let args = (x.view(), y.view_mut(), 2.0);
        stream.launch(&scale, Grid::cover(LEN, 256), args)
    })?;
    println!("kernel  {kernel}");
    let copy = benchmark(&stream, &options, |stream| {
        stream.memcpy_d2d(x.view(), y.view_mut())
    })?;
    println!("copy    {copy}");
    let fill = Options {
        bytes: (LEN * 4) as f64,
        flops: 0.0,
        ..options
    };
    let fill = benchmark(&stream, &fill, |stream| stream.memset(y.view_mut(), 0))?;
    println!("memset  {fill}");
    Ok(())
}
