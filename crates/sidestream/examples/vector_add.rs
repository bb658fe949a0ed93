//! Adds two vectors piece by piece, each piece on the next of three streams, so that uploads, kernels and downloads overlap.
//! The code contains no wait: each piece has its own buffers, and where the allocator reuses memory, the new use is
//! ordered after the old one.
//!
//!     cargo run --release -p sidestream --example vector_add [DEVICE]

use sidestream::kernel::library;
use sidestream::prelude::*;

const PIECES: usize = 16;
const LEN: usize = 1 << 20;

fn main() -> sidestream::Result<()> {
    let device = Device::open(&std::env::args().nth(1).unwrap_or("auto".into()))?;
    // SAFETY: each launch is passed the number of values in its buffers.
    let add = unsafe { library::vector_add() };

    let mut times = Vec::new();
    for width in [1, 3] {
        let streams: Vec<Stream> = (0..width)
            .map(|i| device.stream(&format!("add{i}")))
            .collect::<sidestream::Result<_>>()?;
        let main = device.stream("main")?;
        let start = main.record_timed()?;
        let mut sums = Vec::new();
        for piece in 0..PIECES {
            let stream = &streams[piece % width];
            let mut host = [device.pinned::<f32>(LEN)?, device.pinned(LEN)?];
            host[0].fill(piece as f32);
            host[1].fill(0.5);
            let (mut x, mut y) = (stream.alloc(LEN)?, stream.alloc(LEN)?);
            let mut sum = stream.alloc(LEN)?;
            let [host_x, host_y] = host;
            drop(stream.upload(host_x, x.view_mut())?);
            drop(stream.upload(host_y, y.view_mut())?);
            let args = (x.view(), y.view(), sum.view_mut(), LEN as u64);
            stream.launch(&add, Grid::cover(LEN, 256), args)?;
            sums.push(stream.download(sum.view(), device.pinned(LEN)?)?);
        }
        for stream in &streams {
            main.wait_stream(stream)?;
        }
        times.push(main.record_timed()?.elapsed_since(&start)?);
        for (piece, sum) in sums.into_iter().enumerate() {
            let sum = sum.synchronize()?;
            assert!(sum.iter().all(|&value| value == piece as f32 + 0.5));
        }
    }
    println!(
        "{}: {PIECES} pieces of {} MiB",
        device.name(),
        (LEN * 4) >> 20
    );
    println!("on one stream    {:8.3} ms", times[0].as_secs_f64() * 1e3);
    println!("on three streams {:8.3} ms", times[1].as_secs_f64() * 1e3);
    println!("{} waits inserted", device.waits_inserted());
    Ok(())
}
