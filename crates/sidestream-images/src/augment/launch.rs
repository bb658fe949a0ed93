//! Launches the passes on a GPU.

use std::sync::{Arc, LazyLock};

use rayon::prelude::*;
use sidestream::backend::Code;
use sidestream::buffer::{View, ViewMut};
use sidestream::error::Result;
use sidestream::explicit::{self, Arg, Region};
use sidestream::kernel::{Grid, Kernel, Read, Value, Write};
use sidestream::ptx::unpacked;
use sidestream::stream::Stream;

use super::drawn::{Drawn, is_measured};
use super::form::Form;
use super::operator::invalid;
use super::record::{BILINEAR, BYTES, NEAREST, RECORD_WORDS, Record, SKIPPED, long};
use super::render::{self, Input};
use super::statistics::WORDS;
use crate::Size;

/// The parameters of `augment_render`: input bytes, numbers of the previous pass, records, statistics and the result,
/// each but the records with its length in bytes; then the number of pictures, the form of the result, and the rows
/// of a tile or, for the plain kernels, how many pixels of the input they have room for.
type Render = (
    Read<u8>,
    Read<u8>,
    Read<Record>,
    Read<u32>,
    Write<u8>,
    Value<u64>,
    Value<u64>,
    Value<u64>,
    Value<u64>,
    Value<u32>,
    Value<u32>,
    Value<u32>,
);

/// The parameters of `augment_measure`, which has no result.
type Measure = (
    Read<u8>,
    Read<u8>,
    Read<Record>,
    Write<u32>,
    Value<u64>,
    Value<u64>,
    Value<u32>,
    Value<u32>,
);

static PTX: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("ptx/augment.ptx.gz")));

static RENDER: LazyLock<Kernel<Render>> = LazyLock::new(|| render("augment_render"));
static PLAIN: LazyLock<Kernel<Render>> = LazyLock::new(|| render("augment_plain"));
static BLURRED: LazyLock<Kernel<Render>> = LazyLock::new(|| render("augment_blurred"));
static MEASURE: LazyLock<Kernel<Measure>> = LazyLock::new(|| {
    // SAFETY: as for `render`.
    let kernel = unsafe { Kernel::<Measure>::from_ptx(&PTX, "augment_measure") };
    kernel.and_on_host(|_, (bytes, numbers, records, words, _, _, _, _)| {
        let input = read(bytes, numbers);
        let each = words.par_chunks_mut(WORDS).zip(records);
        each.for_each(|(words, record)| render::measure(&input, record, words));
    })
});

fn render(name: &str) -> Kernel<Render> {
    // SAFETY: the entries have these parameters. They read the input where a record says, which is within the bytes
    // that `Drawn::check` asks for, and clamp every place to it. They write the results where the records say, and
    // not beyond the length that they are given.
    let kernel = unsafe { Kernel::<Render>::from_ptx(&PTX, name) };
    kernel.and_on_host(
        |_, (bytes, numbers, records, words, output, _, _, _, _, _, form, _)| {
            let (form, input) = (Form::of_code(form), read(bytes, numbers));
            let all: Vec<usize> = (0..records.len())
                .filter(|&at| records[at].kind != SKIPPED)
                .collect();
            let made: Vec<_> = all
                .par_iter()
                .map(|&at| render::render(&input, records, at, words))
                .collect();
            for (&at, picture) in all.iter().zip(&made) {
                let Record {
                    width,
                    height,
                    target,
                    ..
                } = records[at];
                let first = long(target) as usize * form.kind.bytes();
                if let Some(to) = output.get_mut(first..) {
                    form.store(picture, Size { width, height }, to);
                }
            }
        },
    )
}

/// Device memory is aligned for the numbers.
fn read<'a>(bytes: &'a [u8], numbers: &'a [u8]) -> Input<'a> {
    let whole = &numbers[..numbers.len() / 4 * 4];
    let numbers = sidestream::bytemuck::try_cast_slice(whole).unwrap_or_default();
    Input { bytes, numbers }
}

/// Bytes of a record, and words of a picture's statistics.
pub const SIZES: (u64, u64) = (4 * RECORD_WORDS as u64, WORDS as u64);

/// Returns the kernels, for the stand-in for the driver.
pub fn codes() -> [&'static Arc<Code>; 4] {
    let [render, plain, blurred] = [&RENDER, &PLAIN, &BLURRED].map(|kernel| kernel.code());
    [render, plain, blurred, MEASURE.code()]
}

/// The device memory that a batch needs besides its input and its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Bytes of the records, which [`Drawn::records`] returns.
    pub records_bytes: usize,
    /// Bytes that even and odd passes hand to the next pass.
    pub between_bytes: [usize; 2],
    /// Bytes of the statistics for each pass that needs them.
    pub statistics_bytes: usize,
    /// Number of passes that need statistics.
    pub measured: usize,
}

/// Memory for a batch in the explicit style: the pieces that [`Drawn::needs`] lists, the input and the results.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    /// Input pictures.
    pub input: Region<'a>,
    /// Contents of [`Drawn::records`].
    pub records: Region<'a>,
    /// Values that even and odd passes hand to the next pass.
    pub between: [Region<'a>; 2],
    /// Zeros, with a part for each pass that needs statistics.
    pub statistics: Region<'a>,
    /// Results.
    pub output: Region<'a>,
}

impl Drawn {
    /// Enqueues the launches for this batch into a stream: one small copy and usually one launch.
    ///
    /// The result is that of [`host`](Drawn::host), up to rounding in interpolation and blurs.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream, the last writes of the input and all uses of the results' memory.
    /// Does not block the host.
    ///
    /// # Errors
    /// As [`host_into`](Drawn::host_into), and errors of the driver.
    #[track_caller]
    pub fn launch(
        &self,
        stream: &Stream,
        input: View<'_, u8>,
        form: Form,
        mut output: ViewMut<'_, u8>,
    ) -> Result<()> {
        self.check(input.len() as u64, form, output.len())?;
        let needs = self.needs();
        let records = stream.alloc_from(&self.records)?;
        let mut even = stream.alloc::<u8>(needs.between_bytes[0].max(1))?;
        let mut odd = stream.alloc::<u8>(needs.between_bytes[1].max(1))?;
        let words = needs.statistics_bytes / 4;
        let mut statistics = stream.alloc_zeroed::<u32>((words * needs.measured).max(1))?;
        let mut measured = 0;
        for pass in 0..self.passes() {
            let shape = self.shape(pass, form);
            let records = || records.slice(pass * self.pictures..(pass + 1) * self.pictures);
            let (from, to) = match pass % 2 {
                0 => (odd.view(), even.view_mut()),
                _ => (even.view(), odd.view_mut()),
            };
            let (bytes, numbers) = (input.len() as u64, from.len() as u64);
            let pictures = self.pictures as u32;
            let of_pass = measured * words..(measured + usize::from(shape.is_measured)) * words;
            if shape.is_measured {
                let words = statistics.slice_mut(of_pass.clone());
                let args = (
                    input,
                    from,
                    records(),
                    words,
                    bytes,
                    numbers,
                    pictures,
                    shape.last,
                );
                stream.launch(&MEASURE, shape.grid, args)?;
                measured += 1;
            }
            let to = if pass + 1 == self.passes() {
                output.reborrow()
            } else {
                to
            };
            let room = to.len() as u64;
            let args = (
                input,
                from,
                records(),
                statistics.slice(of_pass.clone()),
                to,
                bytes,
                numbers,
                4 * of_pass.len() as u64,
                room,
                pictures,
                shape.form.code(),
                shape.last,
            );
            stream.launch(shape.kernel, shape.grid, args)?;
        }
        Ok(())
    }

    /// Like [`launch`](Drawn::launch), but in the explicit style, where the caller owns the memory.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream. Does not block the host.
    ///
    /// # Safety
    /// The memory is not freed until the launches have completed, and the caller has ordered them against all
    /// conflicting accesses, as [`explicit::Stream::launch`] asks. In stream order, the records are written and the
    /// statistics are zero before the launches.
    ///
    /// # Errors
    /// As [`launch`](Drawn::launch); also if a buffer is smaller than [`needs`](Drawn::needs) says.
    #[track_caller]
    pub unsafe fn launch_explicit(
        &self,
        stream: &explicit::Stream,
        form: Form,
        buffers: &Buffers<'_>,
    ) -> Result<()> {
        let Buffers {
            input,
            records,
            between,
            statistics,
            output,
        } = *buffers;
        self.check(input.size_bytes(), form, output.size_bytes() as usize)?;
        let needs = self.needs();
        let statistics_bytes = needs.statistics_bytes * needs.measured;
        for (what, region, needed) in [
            ("the records", records, needs.records_bytes),
            ("even passes", between[0], needs.between_bytes[0]),
            ("odd passes", between[1], needs.between_bytes[1]),
            ("the statistics", statistics, statistics_bytes),
        ] {
            let there = region.size_bytes();
            if there < needed as u64 {
                return Err(invalid(format!(
                    "the memory for {what} has {there} bytes and needs {needed}; allocate what `needs` returns"
                )));
            }
        }
        let mut measured = 0;
        for pass in 0..self.passes() {
            let shape = self.shape(pass, form);
            let each = (needs.records_bytes / self.passes()) as u64;
            let records = records.part(pass as u64 * each..(pass as u64 + 1) * each);
            let (from, to) = (between[(pass + 1) % 2], between[pass % 2]);
            let to = if pass + 1 == self.passes() {
                output
            } else {
                to
            };
            let words = needs.statistics_bytes as u64;
            let first = measured * words;
            let part = first..first + if shape.is_measured { words } else { 0 };
            let words = statistics.part(part);
            let sizes = [input, from, words, to].map(|region| Arg::value(region.size_bytes()));
            let pictures = Arg::value(self.pictures as u32);
            let last = Arg::value(shape.last);
            let read = [input, from, records].map(Arg::Reads);
            // SAFETY: these are the parameters in their order, each of its type; what is read is not written. The
            // caller has promised the rest.
            unsafe {
                if shape.is_measured {
                    measured += 1;
                    let args = [
                        read[0],
                        read[1],
                        read[2],
                        Arg::Writes(words),
                        sizes[0],
                        sizes[1],
                        pictures,
                        last,
                    ];
                    stream.launch(&MEASURE, shape.grid, &args)?;
                }
                let code = Arg::value(shape.form.code());
                let args = [
                    read[0],
                    read[1],
                    read[2],
                    Arg::Reads(words),
                    Arg::Writes(to),
                    sizes[0],
                    sizes[1],
                    sizes[2],
                    sizes[3],
                    pictures,
                    code,
                    last,
                ];
                stream.launch(shape.kernel, shape.grid, &args)?;
            }
        }
        Ok(())
    }

    /// Returns the kernels' parameters for each picture, for [`Buffers::records`].
    pub fn records(&self) -> &[u8] {
        sidestream::bytemuck::cast_slice(&self.records)
    }

    /// Returns the memory that the launches need.
    pub fn needs(&self) -> Needs {
        let measured = (0..self.passes()).filter(|&pass| is_measured(self.pass(pass)));
        Needs {
            records_bytes: 4 * RECORD_WORDS * self.records.len(),
            between_bytes: self.between.map(|values| 4 * values),
            statistics_bytes: 4 * WORDS * self.pictures,
            measured: measured.count(),
        }
    }

    fn shape(&self, pass: usize, form: Form) -> Shape {
        let records = self.pass(pass);
        let there = || records.iter().filter(|record| record.kind != SKIPPED);
        let most = |of: fn(&Record) -> u32| there().map(of).max().unwrap_or_default();
        let radius = [
            most(|record| record.radius[0]),
            most(|record| record.radius[1]),
        ];
        let [width, height] = [most(|record| record.width), most(|record| record.height)];
        let grid = |[columns, rows]: [u32; 2], shared_bytes: u32| {
            let tiles = |length: u32, of: u32| length.div_ceil(of).max(1);
            let blocks = [
                tiles(width, columns),
                tiles(height, rows),
                self.pictures as u32,
            ];
            Grid {
                blocks,
                threads: [THREADS, 1, 1],
                shared_bytes,
            }
        };
        let is_last = pass + 1 == self.passes();
        let form = if is_last { form } else { Form::BETWEEN };
        if there().all(is_plain) {
            let (kernel, beside) = match radius {
                [0, 0] => (&PLAIN, 0),
                _ => (&BLURRED, PLAIN_RADIUS),
            };
            let [wide, tall] = PLAIN_TILE.map(|length| length + 2 * beside);
            let pixels = there().map(|record| behind(record, [wide, tall])).max();
            let last = pixels.unwrap_or_default();
            let shared = 12 * (wide + 1) * tall + 4 * last;
            if shared <= MOST_SHARED {
                return Shape {
                    grid: grid(PLAIN_TILE, shared),
                    last,
                    is_measured: false,
                    kernel,
                    form,
                };
            }
        }
        // A block keeps two things in shared memory: a tile with its neighbours, and the tile smoothed along rows.
        let rows = match radius[0].max(radius[1]) {
            0..=4 => 32,
            5..=11 => 16,
            _ => 8,
        };
        let tall = rows + 2 * radius[1];
        let shared = 12 * (COLUMNS + 2 * radius[0]) * tall + 12 * COLUMNS * tall;
        Shape {
            grid: grid([COLUMNS, rows], shared),
            last: rows,
            is_measured: is_measured(records),
            kernel: &RENDER,
            form,
        }
    }
}

/// The columns of a tile, and the threads of a block, as in `kernels/augment.cu`.
const COLUMNS: u32 = 32;
const THREADS: u32 = 256;
/// The columns and rows of a tile of the plain kernels.
const PLAIN_TILE: [u32; 2] = [64, 32];
const PLAIN_RADIUS: u32 = 3;
/// Maximum shared memory of the plain kernels in bytes, so that three blocks fit into a multiprocessor.
const MOST_SHARED: u32 = 72 << 10;

/// The configuration of a pass's launch.
struct Shape {
    grid: Grid,
    /// Last argument of the kernel.
    last: u32,
    is_measured: bool,
    kernel: &'static LazyLock<Kernel<Render>>,
    form: Form,
}

/// Returns an upper bound on the pixels of the input that a tile of this many columns and rows depends on.
fn behind(record: &Record, [wide, tall]: [u32; 2]) -> u32 {
    let along = |axis: usize| {
        let [across, down] = [record.map[3 * axis], record.map[3 * axis + 1]].map(f32::abs);
        // One pixel on each side for interpolation, and one for rounding.
        let reach = (across * (wide - 1) as f32 + down * (tall - 1) as f32).ceil() + 4.0;
        let there = record.readable[2 + axis] - record.readable[axis] + 1;
        (reach as u32).min(there.unsigned_abs())
    };
    along(0).saturating_mul(along(1)).min(MOST_SHARED)
}

/// Returns whether the plain kernels support all of the pass: an affine map of bytes, at most one canvas, a small
/// blur, units, erasing.
fn is_plain(record: &Record) -> bool {
    let is_affine = |map: &[f32; 9]| map[6] == 0.0 && map[7] == 0.0;
    let canvases = &record.canvas[..record.canvases as usize];
    record.kind == BYTES
        && [NEAREST, BILINEAR].contains(&record.filter)
        && is_affine(&record.map)
        && canvases.len() <= 1
        && canvases.iter().all(|canvas| is_affine(&canvas.map))
        && record.steps == 0
        && record.levels == 0
        && record.keeps_edge == 0
        && !record.is_mixed()
        // A blur, or no filter: the unblurred pixel is not part of the result.
        && (!record.has_neighbours() || record.own == 0.0 && record.around == 1.0)
        && record.radius.iter().all(|&radius| radius <= PLAIN_RADIUS)
}
