//! Copies from one device to another.

use std::path::Path;
use std::time::Instant;

use sidestream::device::{Device, Options};
use sidestream_cli::failure::Failure;
use sidestream_cli::measure::raw::Gpu;
use sidestream_cli::measure::rounds::{Side, interleaved, median};

use super::table::{Bar, Row};

const BYTES: usize = 64 << 20;
const COPIES: usize = 16;

/// The rows about copies between devices; none where there are fewer than two.
pub fn rows(driver: Option<&Path>, rounds: usize) -> Result<Vec<Row>, Failure> {
    let Ok(other) = Gpu::open(driver, 1) else {
        return Ok(Vec::new());
    };
    let to = other.memory(BYTES)?;
    let one = Gpu::open(driver, 0)?;
    let (from, stream) = (one.memory(BYTES)?, one.stream()?);
    let raw = || {
        one.enter()?;
        one.synchronize_all()?;
        let start = Instant::now();
        for _ in 0..COPIES {
            one.copy(from, to, stream)?;
        }
        one.synchronize(stream)?;
        Ok(milliseconds(start))
    };
    // The runtime asks for peer access when it opens both devices. Until then the driver stages copies in the host's memory.
    let staged = interleaved(rounds, &mut [Box::new(raw) as Side<'_>])?.remove(0);
    let options = Options::new().notice(|_| ());
    let options = match driver {
        // SAFETY: the user of the command names the driver.
        Some(file) => unsafe { options.driver(file) },
        None => options,
    };
    let devices = Device::open_all(&["cuda:0", "cuda:1"], &options)?;
    let (a, b) = (devices[0].stream("from")?, devices[1].stream("to")?);
    let (x, mut y) = (a.alloc_zeroed::<u8>(BYTES)?, b.alloc_zeroed::<u8>(BYTES)?);
    b.synchronize()?;
    let own = || {
        a.synchronize()?;
        let start = Instant::now();
        for _ in 0..COPIES {
            a.memcpy_d2d(x.view(), y.view_mut())?;
        }
        a.synchronize()?;
        Ok(milliseconds(start))
    };
    let mut sides: [Side<'_>; 2] = [Box::new(own), Box::new(raw)];
    let times = interleaved(rounds, &mut sides)?;
    let row = |how: &str, raw: &[f64], bar: Option<Bar>| {
        let rate = |times: &[f64]| (BYTES * COPIES) as f64 / median(times) / 1e6;
        let what = format!("{COPIES} copies of 64 MiB to another device, raw: {how}");
        let note = format!("{:.0} GB/s, raw {:.0}", rate(&times[0]), rate(raw));
        Row::new(what, "ms", Some(raw), &times[0], bar).note(note)
    };
    Ok(vec![
        row("with peer access", &times[1], Some(Bar::Ratio(1.05))),
        row("staged in the host's memory", &staged, None),
    ])
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
