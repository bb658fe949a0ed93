//! Runs a loader's batches through a pipeline.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sidestream::buffer::Pinned;
use sidestream::device::{Device, DeviceName, Options};
use sidestream::pipeline::{BoxError, Cause, Failed, Pipeline, Report, per_item, per_row};
use sidestream_images::augment::{Batch, Drawn, Form, Layout, Mixed, Plan};
use sidestream_images::decode::Decoder;
use sidestream_images::load::{self, BrokenPicture, Loader};
use sidestream_images::source::Dataset;
use sidestream_images::{Key, Region, Size};

use super::stop::Stop;
use crate::failure::Failure;

/// The options of a run.
pub struct Asked<'a> {
    pub plan: Plan,
    pub form: Form,
    pub device: &'a str,
    pub driver: Option<&'a Path>,
    pub epochs: u64,
    pub depth: Option<usize>,
    pub slab_bytes: Option<u64>,
    pub load: load::Options,
}

/// The result of a run.
pub struct Outcome {
    pub report: Report,
    pub is_simulated: bool,
    pub pictures: u64,
    /// Number of pictures if none is broken and the run is not interrupted.
    pub of: u64,
    pub batch: u32,
    /// Shape of one result.
    pub shape: [usize; 3],
    pub seconds: f64,
    /// Time that the source waited for batches to be decoded.
    pub starved_seconds: f64,
    /// Time that the host was busy with results: statistics, and writing.
    pub results_seconds: f64,
    /// Stage times of a batch that was alone on the device, if one was.
    pub alone: Vec<(String, Duration)>,
    pub broken: Vec<BrokenPicture>,
}

/// A batch of results.
pub struct Done<'a> {
    pub bytes: &'a [u8],
    pub pictures: usize,
    pub shape: [usize; 3],
    /// Labels of the results; -1 for none.
    pub labels: &'a [i64],
}

/// The parts of a batch besides its pixels.
struct Beside {
    drawn: Drawn,
    labels: Vec<i64>,
}

/// What the source records about a run.
#[derive(Default)]
struct Told {
    /// Batches whose work is not yet submitted, and batches on the device, the oldest first.
    waiting: VecDeque<Arc<Beside>>,
    running: VecDeque<Arc<Beside>>,
    starved: Duration,
    broken: Vec<BrokenPicture>,
}

/// Uploads are rounded up to pages, so that a batch uploads little more than it needs.
const PAGE: usize = 4096;
/// Number of pictures whose headers determine the size of a slab.
const HEADERS: u64 = 2048;

/// Runs the pictures through the device, and passes each batch to `consume` in order.
pub fn run(
    asked: &Asked<'_>,
    data: &Arc<Dataset>,
    stop: &Stop,
    mut consume: impl FnMut(&Done<'_>) -> Result<(), Failure>,
) -> Result<Outcome, Failure> {
    let device = opened(asked)?;
    let slab = match asked.slab_bytes {
        Some(bytes) => bytes,
        None => slab_bytes(data, asked)?,
    };
    let rows = (slab as usize).div_ceil(PAGE).max(1);
    let size = result_size(data, asked)?;
    let shape = shape(size, asked.form.layout);
    let batch = asked.load.batch as usize;
    let room = batch * shape.iter().product::<usize>() * asked.form.kind.bytes();

    let mut loader = loader(asked, data, &device, rows)?;
    let told = Arc::new(Mutex::new(Told::default()));
    let of_stage = Arc::clone(&told);
    let of_source = Arc::clone(&told);
    let (plan, form, epochs) = (asked.plan.clone(), asked.form, asked.epochs);
    let mut pipeline = Pipeline::new(&device, rows)
        .upload(per_row::<u8>(PAGE))
        .stage("augment", per_item::<u8>(room), move |at, slab, output| {
            let beside = {
                let mut told = lock(&of_stage);
                let beside = told.waiting.pop_front();
                beside.inspect(|beside| told.running.push_back(Arc::clone(beside)))
            };
            let Some(beside) = beside else { return Ok(()) };
            let drawn = &beside.drawn;
            let (used, made) = (at.rows() * PAGE, drawn.bytes(form));
            drawn.launch(
                at.stream(),
                slab.slice(..used),
                form,
                output.slice_mut(..made),
            )
        })
        .download(per_item::<u8>(room), |(_, output)| output)
        .timed();
    if let Some(depth) = asked.depth {
        pipeline = pipeline.depth(depth);
    }
    let mut running = pipeline
        .fill_on_thread(move |_, slab| fill(&mut loader, &plan, epochs, &of_source, slab))
        .map_err(Failure::input)?;

    stop.cancels(running.cancel());

    let total = data.len() / u64::from(asked.load.world.max(1)) * asked.epochs;
    let start = Instant::now();
    let (mut done, mut results) = (0, Duration::ZERO);
    let bar = std::io::stderr().is_terminal();
    for item in running.by_ref() {
        let item = item.map_err(|failed| Failure::input(words_of(&failed)))?;
        let beside = lock(&told).running.pop_front();
        let Some(beside) = beside else { break };
        let labels = mixed_labels(&beside);
        let pictures = beside.drawn.pictures();
        let arrived = Instant::now();
        consume(&Done {
            bytes: &item[..beside.drawn.bytes(form)],
            pictures,
            shape,
            labels: &labels,
        })?;
        results += arrived.elapsed();
        done += pictures as u64;
        if bar {
            let told = lock(&told);
            progress(done, total, start.elapsed(), told.starved);
        }
    }
    if bar {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let seconds = start.elapsed().as_secs_f64();
    let report = running.report();
    let alone = running.plan().map(|plan| plan.stages);
    let mut told = lock(&told);
    Ok(Outcome {
        is_simulated: device.name().starts_with("sim:"),
        pictures: done,
        of: total,
        batch: asked.load.batch,
        shape,
        seconds,
        starved_seconds: told.starved.as_secs_f64().min(seconds),
        results_seconds: results.as_secs_f64(),
        alone: alone.unwrap_or_default(),
        report,
        broken: std::mem::take(&mut told.broken),
    })
}

/// Returns the loader, whose slabs are pinned and have `rows` rows.
fn loader(
    asked: &Asked<'_>,
    data: &Arc<Dataset>,
    device: &Device,
    rows: usize,
) -> Result<Loader<Pinned<u8>>, Failure> {
    let mut load = asked.load.clone();
    load.max_slab_bytes = (rows * PAGE) as u64;
    load.depth = load.depth.max(asked.depth.unwrap_or_default());
    let plan = asked.plan.clone();
    // A picture whose region cannot be computed is refused with its batch by `draw`, with a message.
    let choose = move |key: Key, size: Size| {
        plan.region(key, size)
            .unwrap_or_else(|_| Region::whole(size))
    };
    let device = device.clone();
    let make = move |bytes: usize| {
        let pinned = device.pinned::<u8>(bytes.next_multiple_of(PAGE));
        pinned.map_err(|error| error.to_string())
    };
    Loader::new(Arc::clone(data), load, choose, make).map_err(Failure::input)
}

/// Moves the next batch, of any epoch, into the slab, and returns how many of its rows are used; none at the end.
fn fill(
    loader: &mut Loader<Pinned<u8>>,
    plan: &Plan,
    epochs: u64,
    told: &Mutex<Told>,
    slab: &mut Pinned<u8>,
) -> Result<Option<usize>, BoxError> {
    let waits = Instant::now();
    let next = loop {
        match loader.next()? {
            None if loader.epoch() < epochs => {}
            next => break next,
        }
    };
    let mut told = lock(told);
    told.starved += waits.elapsed();
    let Some(mut next) = next else {
        return Ok(None);
    };
    told.broken.extend_from_slice(next.broken());
    let drawn = plan.draw(&Batch::placed(next.placed()), next.keys())?;
    let labels = next.labels().iter();
    let labels = labels.map(|label| label.map_or(-1, i64::from)).collect();
    told.waiting.push_back(Arc::new(Beside { drawn, labels }));
    let used = (next.used_bytes() as usize).div_ceil(PAGE).max(1);
    if let Some(filled) = next.take_slab() {
        loader.give_back(std::mem::replace(slab, filled));
    }
    Ok(Some(used))
}

/// Opens the device. If a driver is named and finds no GPU, that is an error: the device is not simulated instead.
fn opened(asked: &Asked<'_>) -> Result<Device, Failure> {
    let options = Options::new().notice(|text| {
        let text = text.strip_prefix("sidestream: ").unwrap_or(text);
        // If standard error is closed, the notice may be lost.
        let _ = writeln!(std::io::stderr().lock(), "sidestream-augment: {text}");
    });
    let Some(file) = asked.driver else {
        return Ok(Device::open_with(asked.device, &options)?);
    };
    let name = match (asked.device, DeviceName::of(asked.device)) {
        ("auto", _) => "cuda:0",
        (name, Some(DeviceName::Simulated(_) | DeviceName::File(_))) => {
            return Err(Failure::input(format!(
                "{name} needs no driver; leave --driver out, or give --device cuda:0"
            )));
        }
        (name, _) => name,
    };
    // SAFETY: the user who names a library as the driver guarantees that it is one.
    let options = unsafe { options.driver(file) };
    Ok(Device::open_with(name, &options)?)
}

/// Returns the labels: a mixed picture has the label of its larger part.
fn mixed_labels(beside: &Beside) -> Vec<i64> {
    let each = beside.drawn.mixed().iter().zip(&beside.labels);
    each.map(|(Mixed { partner, share }, own)| {
        if *share < 0.5 {
            beside.labels[*partner]
        } else {
            *own
        }
    })
    .collect()
}

fn progress(done: u64, total: u64, took: Duration, starved: Duration) {
    let rate = done as f64 / took.as_secs_f64().max(1e-9);
    let binds = if starved > took / 2 {
        "decoding binds"
    } else {
        "the device binds"
    };
    let filled = (20 * done / total.max(1)).min(20) as usize;
    // The progress line may be lost.
    let _ = write!(
        std::io::stderr(),
        "\r[{}{}] {done}/{total} pictures, {rate:.0}/s, {binds}\x1b[K",
        "#".repeat(filled),
        ".".repeat(20 - filled)
    );
}

fn shape(size: Size, layout: Layout) -> [usize; 3] {
    let (width, height) = (size.width as usize, size.height as usize);
    match layout {
        Layout::Nchw => [3, height, width],
        Layout::Nhwc => [height, width, 3],
    }
}

/// Returns the sizes in the headers of pictures all over the data set, for those that can be read.
fn headers<'a>(data: &'a Dataset, asked: &Asked<'_>) -> impl Iterator<Item = (u64, Size)> + 'a {
    let many = data.len();
    let step = many.div_ceil(HEADERS).max(1);
    let decoder = Decoder::new(asked.load.decode);
    let mut bytes = Vec::new();
    (0..many).step_by(step as usize).filter_map(move |sample| {
        data.read(sample, &mut bytes).ok()?;
        let header = decoder.look(&bytes).ok()?;
        Some((sample, decoder.size(&header)))
    })
}

/// Describes what is wrong with the first picture.
fn first_fault(data: &Dataset, asked: &Asked<'_>) -> String {
    let mut bytes = Vec::new();
    let read = data.read(0, &mut bytes);
    let looked = read.and_then(|()| Decoder::new(asked.load.decode).look(&bytes));
    match looked {
        Ok(_) => format!("the first, {}, can", data.name(0)),
        Err(why) => format!("of {}: {why}", data.name(0)),
    }
}

/// Returns the bytes for as many pictures as a batch has, each as large as the largest of those whose headers were
/// read.
fn slab_bytes(data: &Dataset, asked: &Asked<'_>) -> Result<u64, Failure> {
    let key = |sample| Key::new(asked.load.seed, 0, sample);
    let most = |(sample, size): (u64, Size)| {
        // Another epoch may draw a larger region: the whole picture counts, unless the region never depends on a
        // draw.
        let region = asked.plan.region(key(sample), size);
        let held = match asked.epochs {
            1 => region.map_or(size, |region| region.size),
            _ => size,
        };
        3 * held.area() + load::ALIGN_BYTES
    };
    let mut sizes: Vec<u64> = headers(data, asked).map(most).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let batch = asked.load.batch as usize;
    let largest = sizes.first().copied().unwrap_or(0);
    let sum: u64 = sizes.iter().take(batch).sum();
    // Fewer headers were read than a batch has pictures: the rest may be as large as the largest.
    let seen = sizes.len() as u64;
    let rest = if seen == data.len() {
        0
    } else {
        (batch as u64).saturating_sub(seen) * largest
    };
    // The replacement of a broken picture may be larger, and so may pictures whose headers were not read.
    Ok((sum + sum / 4 + rest).max(PAGE as u64))
}

/// Returns the size of every result, from the first picture that can be read.
fn result_size(data: &Dataset, asked: &Asked<'_>) -> Result<Size, Failure> {
    let Some((sample, size)) = headers(data, asked).next() else {
        return Err(Failure::input(format!(
            "none of the pictures that were looked at can be read; {}",
            first_fault(data, asked)
        )));
    };
    let key = Key::new(asked.load.seed, 0, sample);
    let drawn = asked
        .plan
        .draw(&Batch::uniform(size, 1, Layout::Nhwc), &[key])?;
    Ok(drawn.size())
}

/// Returns the message of a failure. A picture's message names the picture, so the number of its batch adds nothing.
fn words_of(failed: &Failed) -> String {
    let text = match (&*failed.stage, &failed.cause) {
        ("source", Cause::User(why)) => why.to_string(),
        _ => failed.to_string(),
    };
    if text.contains("bytes") && text.contains("max_slab_bytes") {
        format!("{text} (here it is --slab-mib)")
    } else {
        text
    }
}

fn lock(told: &Mutex<Told>) -> std::sync::MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}
