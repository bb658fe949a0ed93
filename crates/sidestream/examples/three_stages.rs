//! Three stages, each on its own stream: a batch is uploaded while the previous one is computed and the one before that is
//! downloaded. Each buffer has two halves, so that a stage can fill one while the next stage reads the other. The
//! runtime inserts the waits between the streams.
//!
//!     cargo run --release -p sidestream --example three_stages [DEVICE]

use sidestream::prelude::*;

const BATCHES: usize = 12;
const LEN: usize = 1 << 20;

/// The kernel for a real GPU; for the simulated one it is in Rust below.
const SQUARE: &str = r#"
extern "C" __global__ void square(const unsigned* x, unsigned* y) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] * x[i];
}
"#;

fn main() -> sidestream::Result<()> {
    let device = Device::open(&std::env::args().nth(1).unwrap_or("auto".into()))?;
    let [load, compute, store] = [
        device.stream("load")?,
        device.stream("compute")?,
        device.stream("store")?,
    ];
    // SAFETY: the kernel is launched with exactly one thread for each value.
    let square = unsafe { Kernel::<(Read<u32>, Write<u32>)>::from_cuda(SQUARE, "square") };
    let square = square.and_on_host(|_, (x, y): (&[u32], &mut [u32])| {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x.wrapping_mul(*x);
        }
    });

    // Compiled now, so that the timed first launch does not include it.
    device.prepare(&square)?;
    let mut inputs = load.alloc::<u32>(2 * LEN)?;
    let mut outputs = compute.alloc::<u32>(2 * LEN)?;
    let start = load.record_timed()?;
    let mut results = Vec::new();
    for batch in 0..BATCHES {
        let half = (batch % 2) * LEN..(batch % 2 + 1) * LEN;
        let mut host = device.pinned::<u32>(LEN)?;
        host.fill(batch as u32);
        drop(load.upload(host, inputs.slice_mut(half.clone()))?);
        let args = (inputs.slice(half.clone()), outputs.slice_mut(half.clone()));
        compute.launch(&square, Grid::cover(LEN, 256), args)?;
        results.push(store.download(outputs.slice(half), device.pinned(LEN)?)?);
    }
    let took = store.record_timed()?.elapsed_since(&start)?;
    for (batch, result) in results.into_iter().enumerate() {
        let result = result.synchronize()?;
        assert!(result.iter().all(|&value| value == (batch * batch) as u32));
    }
    println!(
        "{}: {BATCHES} batches of {} MiB in {:.3} ms, {} waits inserted",
        device.name(),
        (LEN * 4) >> 20,
        took.as_secs_f64() * 1e3,
        device.waits_inserted(),
    );
    Ok(())
}
