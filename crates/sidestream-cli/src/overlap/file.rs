//! `sidestream overlap --input FILE`: streams the bytes of a file through the device and back.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use sidestream::engine::Profile;
use sidestream::kernel::{Grid, Kernel, Read, Value, Write};
use sidestream::pipeline::{BoxError, Pipeline, per_item, per_row};

use super::job::Job;
use super::pipeline::SLOTS;
use crate::failure::{Failure, shown};
use crate::measure::own::{device, machine};
use crate::system;

/// The result of streaming a file.
pub struct Streamed {
    pub bytes: u64,
    pub batches: u64,
    /// Simulated time on the device, without reading and verifying the file.
    pub time_ns: u64,
    pub checksum: u64,
    /// The peak of device memory in use, in bytes.
    pub device_bytes: u64,
    /// The peak of pinned host memory, in bytes.
    pub pinned_bytes: u64,
    /// Whether a signal ended the run before the end of the file.
    pub is_cut_short: bool,
}

/// Streams the file through upload, checksum and transform, and download. Every batch is verified: the checksum of the bytes
/// read must equal the device's, and that of the result transformed back.
pub fn stream(path: &Path, job: &Job, profile: &Profile) -> Result<Streamed, Failure> {
    let mut file = File::open(path).map_err(|error| Failure::file("open", path, &error))?;
    let size = file.metadata().ok().map(|data| data.len());
    let machine = machine(profile.clone());
    let device = device(&machine);
    let bytes = job.batch_bytes as usize;
    let cost = job.kernel(profile);
    let kernel = Kernel::<(Read<u8>, Write<u8>, Write<u64>, Value<u64>)>::on_host(
        "checksum and transform",
        |_, (x, y, sum, len)| {
            let len = len as usize;
            sum[0] = checksum(&x[..len]);
            for (y, x) in y[..len].iter_mut().zip(x) {
                *y = transform(*x);
            }
        },
    );
    let kernel = kernel.with_cost(move |_| cost);
    let (tell, told) = channel();
    let running = Pipeline::new(&device, bytes)
        .upload(per_row::<u8>(1))
        .stage(
            "checksum and transform",
            (per_row::<u8>(1), per_item::<u64>(1)),
            move |at, x, (y, sum)| {
                let (grid, len) = (Grid::new(1, 256), at.rows() as u64);
                let args = (x.view(), y.view_mut(), sum.view_mut(), len);
                at.stream().launch(&kernel, grid, args)
            },
        )
        .download((per_row::<u8>(1), per_item::<u64>(1)), |(_, y)| y)
        .depth(SLOTS as usize)
        // Results are waited for before more of the file is read, so that the simulated time does not depend on how fast the
        // file is read.
        .lockstep()
        .progress(progress(size, job.batch_bytes))
        .fill_on_thread(move |_, x| {
            let len = read_all(&mut file, x)?;
            if len > 0 {
                tell.send(checksum(&x[..len]))?;
            }
            Ok((len > 0).then_some(len))
        });
    let running = running.map_err(Failure::input)?;
    let is_ended = Arc::new(AtomicBool::new(false));
    let (cancel, ended) = (running.cancel(), Arc::clone(&is_ended));
    let caught = system::on_signal(move |_| {
        ended.store(true, Ordering::Relaxed);
        cancel.cancel();
    });
    caught.map_err(|error| Failure::input(format!("cannot catch Ctrl-C: {error}")))?;

    let (mut done, mut all) = (0, 0_u64);
    let mut back = vec![0; bytes];
    let ran = running.run(|item| {
        let (y, sum) = &**item;
        let back = &mut back[..item.rows()];
        for (x, y) in back.iter_mut().zip(y.iter()) {
            *x = transform_back(*y);
        }
        let (read, returned) = (told.recv()?, checksum(back));
        if [sum[0], returned] != [read; 2] {
            return Err(BoxError::from(format!(
                "the checksum of what was read is {read:016x}, the device's {:016x}, that of what \
                 came back {returned:016x}",
                sum[0]
            )));
        }
        done += item.rows() as u64;
        all = all.wrapping_mul(31).wrapping_add(read);
        Ok(())
    });
    let report = ran.map_err(|failed| Failure::input(format!("{}: {failed}", shown(path))))?;
    Ok(Streamed {
        bytes: done,
        batches: report.delivered,
        time_ns: machine.now_ns(),
        checksum: all,
        device_bytes: device.statistics().reserved_bytes,
        pinned_bytes: device.pinned_statistics().reserved_bytes,
        is_cut_short: is_ended.load(Ordering::Relaxed),
    })
}

/// Returns a function that shows the progress on a terminal.
fn progress(size: Option<u64>, batch_bytes: u64) -> impl FnMut(u64) {
    let is_shown = std::io::stderr().is_terminal();
    let mut shown = u64::MAX;
    move |delivered| {
        let bytes = delivered * batch_bytes;
        let percent = size.filter(|&size| size > 0);
        let percent = percent.map(|size| bytes.min(size) * 100 / size);
        let step = percent.unwrap_or(bytes >> 28);
        if is_shown && step != shown {
            shown = step;
            match percent {
                Some(percent) => {
                    let bar = "#".repeat(percent as usize / 2);
                    let end = if percent == 100 { "\n" } else { "" };
                    eprint!("\r[{bar:50}] {percent:3} %{end}");
                }
                None => eprint!("\r{} MiB", bytes >> 20),
            }
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn read_all(file: &mut File, into: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while len < into.len() {
        match file.read(&mut into[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

fn transform(byte: u8) -> u8 {
    byte.wrapping_mul(5).wrapping_add(17)
}

/// 205 is the inverse of 5 modulo 256.
fn transform_back(byte: u8) -> u8 {
    byte.wrapping_sub(17).wrapping_mul(205)
}

/// Fletcher's checksum over words, so that it sees their order.
fn checksum(bytes: &[u8]) -> u64 {
    let (mut sum, mut sums) = (bytes.len() as u64, 0_u64);
    for word in bytes.chunks(8) {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        sum = sum.wrapping_add(u64::from_le_bytes(padded));
        sums = sums.wrapping_add(sum);
    }
    sum.rotate_left(32) ^ sums
}
