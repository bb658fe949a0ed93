//! Two branches read the same input concurrently, and a third kernel joins their results. The branches do not wait for each
//! other, since two reads do not conflict. The join waits for both.
//!
//!     cargo run --release -p sidestream --example two_branches [DEVICE]

use sidestream::kernel::KernelCost;
use sidestream::prelude::*;

const LEN: usize = 1 << 16;

type Branch = (Read<i64>, Write<i64>);
type Join = (Read<i64>, Read<i64>, Write<i64>);

/// The kernels for a real GPU, kept simple: a single thread does all the work. For the simulated GPU they are in Rust
/// below.
const BRANCHES: &str = r#"
extern "C" __global__ void sum(const long long* x, long long* out) {
    if (blockIdx.x || threadIdx.x) return;
    long long all = 0;
    for (int i = 0; i < 65536; i++) all += x[i];
    *out = all;
}
extern "C" __global__ void max_of(const long long* x, long long* out) {
    if (blockIdx.x || threadIdx.x) return;
    long long most = x[0];
    for (int i = 1; i < 65536; i++) most = x[i] > most ? x[i] : most;
    *out = most;
}
extern "C" __global__ void join(const long long* a, const long long* b, long long* out) {
    *out = *a + *b;
}
"#;

fn main() -> sidestream::Result<()> {
    let device = Device::open(&std::env::args().nth(1).unwrap_or("auto".into()))?;
    let (left, right) = (device.stream("left")?, device.stream("right")?);
    // On the simulated GPU each branch takes 200 µs and a third of the multiprocessors.
    let takes = |_| KernelCost::Duration {
        ns: 200_000,
        share: 0.33,
    };
    // SAFETY: the first two read exactly the values of their input, and write one; the third reads two and writes
    // one.
    let (sum, max, join) = unsafe {
        (
            Kernel::<Branch>::from_cuda(BRANCHES, "sum"),
            Kernel::<Branch>::from_cuda(BRANCHES, "max_of"),
            Kernel::<Join>::from_cuda(BRANCHES, "join"),
        )
    };
    let sum = sum.and_on_host(|_, (x, out): (&[i64], &mut [i64])| out[0] = x.iter().sum());
    let max = max.and_on_host(|_, (x, out): (&[i64], &mut [i64])| {
        out[0] = x.iter().copied().max().unwrap_or(0);
    });
    let (sum, max) = (sum.with_cost(takes), max.with_cost(takes));
    let join =
        join.and_on_host(|_, (a, b, out): (&[i64], &[i64], &mut [i64])| out[0] = a[0] + b[0]);

    let numbers: Vec<i64> = (0..LEN as i64).collect();
    let mut input = left.alloc(LEN)?;
    left.memcpy_h2d(&numbers, input.view_mut())?;
    let (mut a, mut b) = (left.alloc(1)?, right.alloc(1)?);
    let mut joined = left.alloc(1)?;

    // Compiled now, so that the timed first launches do not include it.
    device.prepare(&sum)?;
    device.prepare(&max)?;
    device.prepare(&join)?;
    let start = left.record_timed()?;
    let grid = Grid::cover(LEN, 256);
    left.launch(&sum, grid, (input.view(), a.view_mut()))?;
    right.launch(&max, grid, (input.view(), b.view_mut()))?;
    left.launch(
        &join,
        Grid::new(1, 1),
        (a.view(), b.view(), joined.view_mut()),
    )?;
    let took = left.record_timed()?.elapsed_since(&start)?;

    let mut result = [0];
    left.memcpy_d2h(joined.view(), &mut result)?;
    let expected = numbers.iter().sum::<i64>() + (LEN as i64 - 1);
    assert_eq!(result[0], expected);
    let us = took.as_secs_f64() * 1e6;
    println!(
        "{}: both branches and the join took {us:.0} µs",
        device.name()
    );
    if device.name().starts_with("sim") {
        println!("one after the other the branches alone take 400 µs");
    }
    Ok(())
}
