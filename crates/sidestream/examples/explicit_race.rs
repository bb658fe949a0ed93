//! The explicit API is plain CUDA: no waits are inserted. Here the kernel's stream does not wait for the upload's. The live
//! checker reports both calls and the missing wait; with that wait in place it reports nothing.
//!
//!     cargo run --release -p sidestream --example explicit_race [DEVICE]

use sidestream::check::{Findings, OnRace};
use sidestream::device::{Device, Options};
use sidestream::error::Result;
use sidestream::explicit::{self, Arg, DeviceMemory, HostMemory, Stream};
use sidestream::kernel::{Grid, Kernel, Read, Write};
use sidestream::sim::Schedule;

const LEN: usize = 1 << 20;
const BYTES: u64 = 4 * LEN as u64;

/// The kernel for a real GPU, kept simple: a single thread does all the work. For the simulated GPU it is in Rust
/// below.
const SUM: &str = r#"
extern "C" __global__ void sum(const unsigned* x, unsigned* out) {
    if (blockIdx.x || threadIdx.x) return;
    unsigned all = 0;
    for (int i = 0; i < (1 << 20); i++) all += x[i];
    *out = all;
}
"#;

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or("auto".into());
    let (sum, racy) = run(&name, false)?;
    println!("without a wait the sum is {sum} instead of {}", 3 * LEN);
    println!("{}", racy.text());
    assert_eq!(racy.report().races.len(), 1);

    let (sum, repaired) = run(&name, true)?;
    println!("with the wait the sum is {sum}: {}", repaired.text());
    assert!(repaired.report().races.is_empty());
    assert_eq!(sum as usize, 3 * LEN);
    Ok(())
}

/// Uploads in one stream and sums in another, with or without the wait between them.
fn run(name: &str, waits: bool) -> Result<(u32, Findings)> {
    // On the simulated GPU this schedule is one of the orders that CUDA allows: the kernel runs
    // before the upload.
    let options = Options::new().schedule(Schedule::Seeded(1));
    let device = Device::open_with(name, &options)?;
    let findings = device.checked(OnRace::Report);
    // SAFETY: the kernel reads exactly the values of its input, and writes one.
    let sum = unsafe { Kernel::<(Read<u32>, Write<u32>)>::from_cuda(SUM, "sum") };
    let sum = sum.and_on_host(|_, (x, out): (&[u32], &mut [u32])| out[0] = x.iter().sum());

    let upload = Stream::non_blocking(&device, "upload", 0)?;
    let compute = Stream::non_blocking(&device, "compute", 0)?;
    let host = HostMemory::pinned(&device, BYTES)?;
    let out = HostMemory::pinned(&device, 4)?;
    let data = DeviceMemory::malloc(&device, BYTES)?;
    let total = DeviceMemory::malloc(&device, 4)?;
    host.write(0, &vec![3u32; LEN]);

    // SAFETY: the memory stays valid until the device is synchronized. The contract also requires that `compute`
    // waits for `upload`, which this example violates on purpose unless `waits` is set.
    unsafe {
        upload.memcpy(host.all(), data.all())?;
        if waits {
            compute.wait_stream(&upload)?;
        }
        let args = [Arg::Reads(data.all()), Arg::Writes(total.all())];
        compute.launch(&sum, Grid::cover(LEN, 256), &args)?;
        compute.memcpy(total.all(), out.all())?;
    }
    compute.synchronize()?;
    let mut result = [0];
    out.read(0, &mut result);
    explicit::synchronize(&device)?;
    Ok((result[0], findings))
}
