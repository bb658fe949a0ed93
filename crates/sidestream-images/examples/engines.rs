//! Decodes baseline JPEGs repeatedly on a GPU's engines, and prints the pictures per second and the deviation of the
//! pixels from those of the CPU's decoder.
//!
//! ```text
//! cargo run --release -p sidestream-images --example engines -- [FOLDER [LIBNVJPEG]]
//! ```
//!
//! Without a folder it generates sample pictures.

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use sidestream::device::Device;
use sidestream::explicit;
use sidestream_images::decode::nvjpeg::{self, Encoded, Engines};
use sidestream_images::decode::{Decoder, Options};
use sidestream_images::header::Header;
use sidestream_images::source::{self, Dataset};
use sidestream_images::{Region, Size};

/// Pictures in a batch, and number of timed batches.
const BATCH: usize = 128;
const ROUNDS: usize = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let data = match args.next() {
        Some(folder) => Dataset::open(folder)?,
        None => {
            let samples = source::samples(1).into_iter();
            Dataset::memory(samples.map(|one| (one.name, one.bytes, None)).collect())?
        }
    };
    let library = args.next();
    let mut decoder = Decoder::new(Options::default());
    let mut files: Vec<(Vec<u8>, Size)> = Vec::new();
    for sample in 0..data.len() {
        let mut bytes = Vec::new();
        data.read(sample, &mut bytes)?;
        let header = decoder.look(&bytes)?;
        match Header::for_engines(&bytes) {
            Some(file) => files.push((file.to_vec(), header.size)),
            None => println!("{} is not for the engines", data.name(sample)),
        }
    }
    if files.is_empty() {
        return Err("there is no baseline JPEG".into());
    }

    let Ok(device) = Device::open("cuda:0") else {
        println!("there is no GPU here, and simulated ones have no engines");
        return Ok(());
    };
    let stream = device.stream("engines")?;
    let raw = explicit::Stream::of(&stream);
    let handle = raw.as_raw().ok_or("the stream has no handle")?;
    let files_of_library: Vec<PathBuf> = match library {
        Some(file) => vec![file.into()],
        None => nvjpeg::FILES.map(PathBuf::from).into(),
    };
    // SAFETY: these are names of nvJPEG, or the user guarantees it. The device stays open until after the engines are
    // dropped.
    let mut engines = unsafe { Engines::open(&files_of_library) }?;
    println!("{} engines, {}", engines.count(), engines.file().display());

    let bytes_of = |size: Size| 3 * size.width as usize * size.height as usize;
    let each: Vec<&(Vec<u8>, Size)> = files.iter().cycle().take(BATCH).collect();
    let total: usize = each.iter().map(|(_, size)| bytes_of(*size)).sum();
    let mut pixels = stream.alloc::<u8>(total)?;
    // SAFETY: only this thread uses the buffer, in this stream alone.
    let first = unsafe { raw.lend_mut(pixels.view_mut())? }.address();
    let mut at = first;
    let mut batch = Vec::new();
    for (bytes, size) in &each {
        batch.push(Encoded {
            bytes,
            size: *size,
            to: at,
        });
        at += bytes_of(*size) as u64;
    }
    // The buffer is allocated in stream order, for which the engines do not wait.
    stream.synchronize()?;
    let mut took = Vec::new();
    for round in 0..ROUNDS + 4 {
        let start = Instant::now();
        // SAFETY: the device's context has been current since it was opened, the files do not change, their headers
        // were read, and the pictures follow each other in a buffer that has no other use.
        unsafe { engines.decode(&batch, handle)? };
        stream.synchronize()?;
        if round >= 4 {
            took.push(start.elapsed().as_secs_f64());
        }
    }
    took.sort_by(f64::total_cmp);
    println!(
        "{:.0} pictures/s in batches of {BATCH} (median of {ROUNDS})",
        BATCH as f64 / took[took.len() / 2]
    );

    let back = stream.download(pixels.view(), device.pinned(total)?)?;
    let back = back.synchronize()?;
    let (mut at, mut sum, mut most, mut count) = (0, 0u64, 0u8, 0u64);
    for (bytes, size) in files.iter().take(BATCH) {
        let whole = Region::whole(*size);
        let mut own = vec![0; bytes_of(*size)];
        let header = decoder.look(bytes)?;
        decoder.decode(bytes, &header, whole, &mut own)?;
        for (a, b) in own.iter().zip(&back[at..]) {
            let apart = a.abs_diff(*b);
            sum += u64::from(apart);
            most = most.max(apart);
            count += 1;
        }
        at += own.len();
    }
    println!(
        "from {}: {:.3} levels in the mean, {most} at most",
        sidestream_images::decode::identity(),
        sum as f64 / count.max(1) as f64
    );
    Ok(())
}
