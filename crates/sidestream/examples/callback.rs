//! A host function in stream order: it runs when the work before it is complete, and notifies
//! another thread, which need not query the device. The function calls nothing of the runtime, and
//! leaves any longer work to that other thread.
//!
//!     cargo run --release -p sidestream --example callback [DEVICE]

use std::sync::mpsc;
use std::thread;

use sidestream::prelude::*;

const STEPS: u32 = 8;
const LEN: usize = 1 << 16;

/// The kernel for a real GPU; for the simulated one it is in Rust below.
const ADD_ONE: &str = r#"
extern "C" __global__ void add_one(unsigned* x) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] += 1;
}
"#;

fn main() -> sidestream::Result<()> {
    let device = Device::open(&std::env::args().nth(1).unwrap_or("auto".into()))?;
    let stream = device.stream("work")?;
    // SAFETY: the kernel is launched with exactly one thread for each value.
    let add_one = unsafe { Kernel::<Write<u32>>::from_cuda(ADD_ONE, "add_one") };
    let add_one = add_one.and_on_host(|_, x: &mut [u32]| x.iter_mut().for_each(|x| *x += 1));

    let (over, steps) = mpsc::channel();
    let listener = thread::spawn(move || steps.into_iter().collect::<Vec<u32>>());
    let mut values = stream.alloc_from(&vec![0u32; LEN])?;
    for step in 0..STEPS {
        stream.launch(&add_one, Grid::cover(LEN, 256), values.view_mut())?;
        // The function owns its sender. The result is dropped, so nothing waits for the function here.
        drop(stream.host_func(over.clone(), move |over| {
            let _ = over.send(step);
        })?);
    }
    let values = stream.to_vec(values.view())?;
    drop(over);
    assert!(values.iter().all(|&value| value == STEPS));
    let heard = listener.join().expect("it only listens");
    assert!(heard.iter().copied().eq(0..STEPS), "{heard:?}");
    println!(
        "{}: {STEPS} steps, each reported when it was complete",
        device.name()
    );
    Ok(())
}
