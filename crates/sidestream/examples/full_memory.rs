//! Fills the memory of a device almost completely, frees and fills again for many rounds, and checks all bytes. Then it
//! allocates more than can fit, and after that as much as still fits.
//!
//!     cargo run --release -p sidestream --example full_memory [DEVICE [ROUNDS]]

use sidestream::buffer::DeviceBuf;
use sidestream::device::Device;
use sidestream::error::{Error, Result};
use sidestream::kernel::{Grid, library};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let device = Device::open(&args.next().unwrap_or("auto".into()))?;
    let rounds: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(20);
    let streams = [
        device.stream("a")?,
        device.stream("b")?,
        device.stream("c")?,
    ];
    // The simulated GPU stores its memory in host memory, so little is used there.
    let is_real = device.name().starts_with("cuda");
    let budget = if is_real {
        device.caps().memory_bytes / 100 * 96
    } else {
        256 << 20
    };
    // SAFETY: each launch is passed the number of values in its buffer.
    let (fill, check) = unsafe { (library::fill_pattern(), library::check_pattern()) };
    let mut errors = streams[0].alloc_zeroed::<u32>(1)?;

    let (mut held, mut held_bytes) = (Vec::<(DeviceBuf<u32>, u32)>::new(), 0);
    let (mut written, mut refused) = (0u64, 0);
    let mut dice = Dice(7);
    for round in 0..rounds {
        // Fill the memory in pieces of very different sizes, on alternating streams.
        loop {
            let bytes = dice.size(budget);
            if held_bytes + bytes > budget {
                break;
            }
            let stream = &streams[dice.below(3) as usize];
            let len = bytes as usize / 4;
            match stream.alloc::<u32>(len) {
                Ok(mut buffer) => {
                    let seed = 1 + dice.below(1 << 30) as u32;
                    let grid = Grid::new(2048, 256);
                    stream.launch(&fill, grid, (buffer.view_mut(), len as u64, seed))?;
                    held.push((buffer, seed));
                    (held_bytes, written) = (held_bytes + bytes, written + bytes);
                }
                // The free pieces may be too small for a large buffer.
                Err(Error::OutOfMemory(_)) => {
                    refused += 1;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        // Check all buffers, and drop half of them without waiting for anything.
        for (buffer, seed) in &held {
            let stream = &streams[dice.below(3) as usize];
            let args = (buffer.view(), buffer.len() as u64, *seed, errors.view_mut());
            stream.launch(&check, Grid::new(2048, 256), args)?;
        }
        if round == 0 {
            println!(
                "{}: {} buffers, {held_bytes} bytes",
                device.name(),
                held.len()
            );
        }
        held.retain(|(buffer, _)| {
            let stays = dice.below(2) == 0;
            held_bytes -= if stays { 0 } else { buffer.size_bytes() };
            stays
        });
    }
    let mut wrong = [0];
    streams[0].memcpy_d2h(errors.view(), &mut wrong)?;
    println!(
        "{rounds} rounds, {written} bytes written, {} of them wrong, {refused} times too scattered",
        wrong[0]
    );
    assert_eq!(wrong, [0]);

    let whole = device.caps().memory_bytes as usize;
    let error = streams[0].alloc::<u8>(whole).err();
    println!(
        "{}",
        error.ok_or(Error::Invalid {
            call: "alloc",
            why: "it fitted".into()
        })?
    );
    drop(held);
    let most = budget as usize / 2;
    println!(
        "and {most} bytes still fit: {}",
        streams[0].alloc::<u8>(most).is_ok()
    );
    Ok(())
}

/// A small random number generator with a fixed seed, so that all runs are equal.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }

    /// Returns a size from 4 KiB to a sixteenth of the budget, with a uniform distribution over orders of magnitude.
    fn size(&mut self, budget: u64) -> u64 {
        let most = (budget / 16 / 4096).max(1).ilog2() + 1;
        let order = 4096u64 << self.below(most.into());
        (order + self.below(order)) / 4 * 4
    }
}
