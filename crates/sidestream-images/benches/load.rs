//! Pictures per second of the loader, compared with the decoder alone on as many threads:
//! `cargo bench -p sidestream-images --bench load -- [THREADS [FOLDER]]`, with `--features turbojpeg` for
//! libjpeg-turbo.
//!
//! Without a folder it generates 512 pictures of 500 × 375 pixels. The loader reads them from files, hence from the
//! page cache, as the decoder does. The rows are measured in turn, for several rounds; the medians are printed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;
use std::{env, fs, hint, thread};

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use sidestream_images::decode::{self, Decoder};
use sidestream_images::load::{Loader, Options};
use sidestream_images::source::{Dataset, samples};
use sidestream_images::{Key, Region, Size};

const ROUNDS: usize = 5;
const PICTURES: u32 = 512;
/// Number of batches before the loader is timed: until then the system has to map the memory of its slabs.
const WARM: usize = 4;

fn main() {
    // Cargo passes `--bench`.
    let mut words = env::args().skip(1).filter(|word| !word.starts_with("--"));
    let threads = words
        .next()
        .map_or(2, |word| word.parse().expect("a number of threads"));
    let made = env::temp_dir().join("sidestream-images-bench");
    let data = match words.next() {
        Some(folder) => Dataset::open(folder).expect("a data set"),
        None => {
            make(&made);
            Dataset::folder(&made).expect("it was just made")
        }
    };
    let data = Arc::new(data);
    let mut bytes = Vec::new();
    let total: usize = (0..data.len())
        .map(|sample| {
            data.read(sample, &mut bytes).expect("a file");
            bytes.len()
        })
        .sum();
    println!(
        "{} pictures, {} KiB each on average, by {}, {threads} threads",
        data.len(),
        total / data.len() as usize / 1024,
        decode::identity()
    );
    type Run<'a> = (&'a str, Box<dyn Fn() -> f64 + 'a>);
    let runs: [Run<'_>; 6] = [
        (
            "decoder, 1 thread, whole",
            Box::new(|| bare(&data, 1, whole)),
        ),
        (
            "decoder, all threads, whole",
            Box::new(|| bare(&data, threads, whole)),
        ),
        (
            "decoder, all threads, crop",
            Box::new(|| bare(&data, threads, crop)),
        ),
        (
            "loader, 1 worker, whole",
            Box::new(|| loaded(&data, 1, whole)),
        ),
        (
            "loader, all workers, whole",
            Box::new(|| loaded(&data, threads, whole)),
        ),
        (
            "loader, all workers, crop",
            Box::new(|| loaded(&data, threads, crop)),
        ),
    ];
    let mut rates = vec![Vec::new(); runs.len()];
    for _ in 0..ROUNDS {
        for ((_, run), rates) in runs.iter().zip(&mut rates) {
            rates.push(run());
        }
    }
    let medians: Vec<f64> = rates
        .iter_mut()
        .map(|rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        })
        .collect();
    for ((name, _), rate) in runs.iter().zip(&medians) {
        println!("{name:28} {rate:7.0} pictures/s");
    }
    for (name, loader, decoder) in [
        ("1 worker, whole", 3, 0),
        ("all workers, whole", 4, 1),
        ("all workers, crop", 5, 2),
    ] {
        let share = medians[loader] / medians[decoder] * 100.0;
        println!("loader by decoder, {name}: {share:.0} %");
    }
    let _ = fs::remove_dir_all(made);
}

fn whole(_: Key, size: Size) -> Region {
    Region::whole(size)
}

/// Returns a region as `RandomResizedCrop` draws it: 8 to 100 % of the area.
fn crop(key: Key, size: Size) -> Region {
    let mut state = key.sample.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ key.epoch;
    let mut share = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let area = 0.08 + 0.92 * share();
    let side = |all: u32| ((all as f32 * area.sqrt()) as u32).clamp(1, all);
    let (width, height) = (side(size.width), side(size.height));
    let left = ((size.width - width) as f32 * share()) as u32;
    let top = ((size.height - height) as f32 * share()) as u32;
    Region {
        left,
        top,
        size: Size { width, height },
    }
}

/// Reads and decodes each picture into memory of its thread. Returns pictures per second, like `loaded`.
fn bare(data: &Dataset, threads: usize, choose: fn(Key, Size) -> Region) -> f64 {
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut decoder = Decoder::new(decode::Options::default());
                let (mut bytes, mut pixels) = (Vec::new(), Vec::new());
                loop {
                    let sample = next.fetch_add(1, Relaxed) as u64;
                    if sample >= data.len() {
                        return;
                    }
                    data.read(sample, &mut bytes).expect("a file");
                    let header = decoder.look(&bytes).expect("a picture");
                    let key = Key::new(0, 0, sample);
                    let region = choose(key, header.size);
                    let Size { width, height } = region.size;
                    pixels.resize(width as usize * height as usize * 3, 0);
                    decoder
                        .decode(&bytes, &header, region, &mut pixels)
                        .expect("a picture");
                    hint::black_box(&pixels);
                }
            });
        }
    });
    data.len() as f64 / start.elapsed().as_secs_f64()
}

/// Loads two epochs in batches of 64. The workers never pause: about as many batches are prepared when timing begins as
/// when it ends.
fn loaded(data: &Arc<Dataset>, workers: usize, choose: fn(Key, Size) -> Region) -> f64 {
    let options = Options {
        workers,
        seed: 1,
        ..Options::default()
    };
    let mut loader = Loader::new(Arc::clone(data), options, choose, |bytes| {
        Ok(vec![0; bytes])
    })
    .expect("options");
    let mut next = || loop {
        if let Some(mut batch) = loader.next().expect("pictures") {
            hint::black_box(batch.bytes());
            return batch.len();
        }
    };
    for _ in 0..WARM {
        next();
    }
    let start = Instant::now();
    let many = 2 * data.len().div_ceil(64) as usize - WARM;
    let pictures: usize = (0..many).map(|_| next()).sum();
    pictures as f64 / start.elapsed().as_secs_f64()
}

/// Writes mosaics of four sample pictures.
fn make(folder: &std::path::Path) {
    let (width, height) = (500, 375);
    let small: Vec<(Size, Vec<u8>)> = samples(1)
        .into_iter()
        .map(|sample| {
            let mut decoder = Decoder::new(decode::Options::default());
            let header = decoder.look(&sample.bytes).expect("a picture");
            let mut pixels = vec![0; (header.size.width * header.size.height * 3) as usize];
            let all = whole(Key::new(0, 0, 0), header.size);
            decoder
                .decode(&sample.bytes, &header, all, &mut pixels)
                .expect("a picture");
            (header.size, pixels)
        })
        .collect();
    for number in 0..PICTURES {
        let mut pixels = Vec::new();
        for y in 0..height {
            for x in 0..width {
                let quarter = number * 7 + x / 250 + 2 * (y / 188);
                let (size, from) = &small[quarter as usize % small.len()];
                let at =
                    ((y % 188 * size.height / 188) * size.width + x % 250 * size.width / 250) * 3;
                pixels.extend_from_slice(&from[at as usize..at as usize + 3]);
            }
        }
        let class = folder.join(format!("{}", number % 4));
        fs::create_dir_all(&class).expect("a folder");
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes, 90);
        encoder.set_sampling_factor(SamplingFactor::F_2_2);
        encoder
            .encode(&pixels, width as u16, height as u16, ColorType::Rgb)
            .expect("memory");
        fs::write(class.join(format!("{number}.jpg")), bytes).expect("a file");
    }
}
