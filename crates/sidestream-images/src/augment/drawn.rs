//! A batch whose parameters have been drawn.

use rayon::prelude::*;
use sidestream::error::Result;

use super::batch::{Batch, Picture};
use super::draw::{Mixing, Units};
use super::form::{Form, Kind};
use super::operator::invalid;
use super::pass::Pass;
use super::record::{BYTES, NUMBERS, Record, STEPS, wide};
use super::render::{self, Input};
use super::statistics::WORDS;
use super::{Plan, checked};
use crate::{Key, Region, Size};

/// The parameters of a batch as plain numbers, which one small copy moves to a GPU.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// One record per pass and picture.
    pub(super) records: Vec<Record>,
    pub(super) pictures: usize,
    pub(super) size: Size,
    /// Bytes of the input.
    pub(super) bytes: u64,
    /// Number of values that even and odd passes hand to the next pass.
    pub(super) between: [usize; 2],
    mixed: Vec<Mixed>,
    is_numeric: bool,
}

/// Which pictures of the batch make up a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixed {
    /// Index of the other picture in the batch; the picture's own index if none is mixed in.
    pub partner: usize,
    /// Share of the picture itself in the result, which is the weight of its label.
    pub share: f64,
}

/// Maximum of a grid's third dimension.
const MOST_PICTURES: usize = 65_535;

impl Drawn {
    pub(super) fn new(plan: &Plan, batch: &Batch, keys: &[Key]) -> Result<Drawn> {
        let pictures = batch.len();
        if keys.len() != pictures {
            let keys = keys.len();
            return Err(invalid(format!(
                "there are {pictures} pictures and {keys} keys; give one key for each picture"
            )));
        }
        if pictures == 0 {
            return Err(invalid(
                "the batch has no pictures; give at least one".into(),
            ));
        }
        if pictures > MOST_PICTURES {
            return Err(invalid(format!(
                "the batch has {pictures} pictures; give at most {MOST_PICTURES}, the limit of a launch"
            )));
        }
        let draw = |at: usize| {
            let picture = &batch.pictures[at];
            checked(picture.full, || format!("picture {at} of the batch"))?;
            let (mut passes, acts) = plan.passes(keys[at], picture.full);
            fits(at, &passes)?;
            place(at, picture, &mut passes[0])?;
            Ok((passes, acts.mixing))
        };
        // The parameters are drawn on this thread, in 2 µs per picture. Where a loader keeps all cores busy, waiting
        // for other threads would take milliseconds.
        let drawn: Result<Vec<_>> = (0..pictures).map(draw).collect();
        let (all, mixings): (Vec<_>, Vec<_>) = drawn?.into_iter().unzip();
        let units = plan.units();
        let count = all.iter().map(Vec::len).max().unwrap_or(1);
        let size = all[0]
            .last()
            .map(|pass| pass.size)
            .unwrap_or(Size::new(1, 1));
        if let Some((at, other)) = all.iter().enumerate().find_map(|(at, passes)| {
            let last = passes.last()?.size;
            (last != size).then_some((at, last))
        }) {
            return Err(invalid(format!(
                "picture {at} becomes {} x {}, and picture 0 {} x {}; end with an operator that gives all of them one size, \
                 such as Resize((224, 224)) or RandomCrop(224)",
                other.height, other.width, size.height, size.width
            )));
        }
        let mut records = vec![Record::default(); count * pictures];
        let mut ends = vec![0u64; count];
        for (at, passes) in all.iter().enumerate() {
            // A picture with fewer passes than others skips the first ones.
            let first = count - passes.len();
            for (step, pass) in (first..).zip(passes) {
                let record = &mut records[step * pictures + at];
                *record = pass.record;
                if step > first {
                    let before = &all[at][step - first - 1];
                    let start = ends[step - 1] - 3 * before.size.area();
                    record.source = wide(start);
                    record.stride = [3, 3 * before.size.width as i32, 1];
                    record.kind = NUMBERS;
                    record.readable = readable(pass.window, pass.window, before.size.width, record);
                }
                let values = 3 * pass.size.area();
                record.target = wide(if step + 1 == count {
                    at as u64 * values
                } else {
                    ends[step]
                });
                ends[step] += values;
                if step + 1 == count {
                    finish(&units, record);
                    mix(record, mixings[at], at, pictures);
                }
            }
        }
        let most = |parity: usize| {
            let between = ends[..count - 1].iter().skip(parity).step_by(2);
            between.copied().max().unwrap_or_default() as usize
        };
        let last = &records[(count - 1) * pictures..];
        Ok(Drawn {
            mixed: last
                .iter()
                .enumerate()
                .map(|(at, record)| mixed(at, record))
                .collect(),
            pictures,
            size,
            bytes: batch.bytes(),
            between: [most(0), most(1)],
            is_numeric: plan.is_numeric(),
            records,
        })
    }

    /// Returns the size of each result.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Returns the number of pictures.
    pub fn pictures(&self) -> usize {
        self.pictures
    }

    /// Returns the number of launches that write pictures, one after another. A launch that computes statistics
    /// precedes some of them.
    pub fn passes(&self) -> usize {
        self.records.len() / self.pictures
    }

    /// Returns which pictures make up each result, for its label.
    pub fn mixed(&self) -> &[Mixed] {
        &self.mixed
    }

    /// Returns the number of bytes of the results.
    pub fn bytes(&self, form: Form) -> usize {
        self.pictures * 3 * self.size.area() as usize * form.kind.bytes()
    }

    /// Computes the results on the CPU.
    ///
    /// # Errors
    /// If the input is shorter than the batch, or if floating-point results, after `ToDtype`, are to become bytes.
    pub fn host(&self, input: &[u8], form: Form) -> Result<Vec<u8>> {
        let mut output = vec![0; self.bytes(form)];
        self.host_into(input, form, &mut output)?;
        Ok(output)
    }

    /// Computes the results into existing memory.
    ///
    /// # Errors
    /// As [`host`](Drawn::host); also if the memory does not have [`bytes`](Drawn::bytes) bytes.
    pub fn host_into(&self, input: &[u8], form: Form, output: &mut [u8]) -> Result<()> {
        self.check(input.len() as u64, form, output.len())?;
        let mut between: [Vec<f32>; 2] = [Vec::new(), Vec::new()];
        for pass in 0..self.passes() {
            let records = self.pass(pass);
            let [even, odd] = &mut between;
            let (from, to) = if pass % 2 == 0 {
                (odd, even)
            } else {
                (even, odd)
            };
            let read = Input {
                bytes: input,
                numbers: from,
            };
            let mut words = Vec::new();
            if is_measured(records) {
                words = vec![0; WORDS * self.pictures];
                let each = words.par_chunks_mut(WORDS).zip(records);
                each.for_each(|(words, record)| render::measure(&read, record, words));
            }
            let picture = |at| render::render(&read, records, at, &words);
            if pass + 1 == self.passes() {
                let each = output.len() / self.pictures;
                let parts = output.par_chunks_mut(each).enumerate();
                parts.for_each(|(at, to)| form.store(&picture(at), self.size, to));
            } else {
                let there = records.par_iter().enumerate();
                let made: Vec<Vec<[f32; 3]>> = there
                    .map(|(at, record)| match record.kind {
                        super::record::SKIPPED => Vec::new(),
                        _ => picture(at),
                    })
                    .collect();
                *to = made.into_iter().flatten().flatten().collect();
            }
        }
        Ok(())
    }

    pub(super) fn check(&self, input: u64, form: Form, output: usize) -> Result<()> {
        if self.is_numeric && form.kind == Kind::U8 {
            return Err(invalid(
                "values are floating-point numbers after ToDtype, and bytes are requested; request F32, F16 or Bf16".into(),
            ));
        }
        if input < self.bytes {
            let needed = self.bytes;
            return Err(invalid(format!(
                "the input has {input} bytes, and the pictures need {needed}; give the whole batch"
            )));
        }
        let needed = self.bytes(form);
        if output != needed {
            return Err(invalid(format!(
                "the results need {needed} bytes, and the output has {output}; allocate as many as `bytes` returns"
            )));
        }
        Ok(())
    }

    pub(super) fn pass(&self, pass: usize) -> &[Record] {
        &self.records[pass * self.pictures..][..self.pictures]
    }
}

/// Returns whether a picture of a pass needs statistics.
pub(super) fn is_measured(records: &[Record]) -> bool {
    records.iter().any(|record| record.measured < STEPS as u32)
}

/// Refuses a picture that is too small for the mirrored edges of its filter over neighbours.
fn fits(at: usize, passes: &[Pass]) -> Result<()> {
    for pass in passes {
        checked(pass.size, || format!("the result of picture {at}"))?;
        let [x, y] = pass.record.radius;
        let Size { width, height } = pass.size;
        if pass.record.keeps_edge == 0 && (x >= width || y >= height) {
            return Err(invalid(format!(
                "picture {at} is {height} x {width} where it is blurred, which is too small for a kernel of {} x {}; \
                 blur it when it is larger, or with a smaller kernel",
                2 * y + 1,
                2 * x + 1
            )));
        }
    }
    Ok(())
}

/// Sets where the first pass reads its picture.
fn place(at: usize, picture: &Picture, pass: &mut Pass) -> Result<()> {
    let (needed, held) = (pass.region(), picture.held);
    let end = |first: u32, length: u32| u64::from(first) + u64::from(length);
    let covers = |first: u32, length: u32, from: u32, long: u32| {
        from <= first && end(first, length) <= end(from, long)
    };
    if !covers(needed.left, needed.size.width, held.left, held.size.width)
        || !covers(needed.top, needed.size.height, held.top, held.size.height)
    {
        return Err(invalid(format!(
            "picture {at} has {held:?}, and {needed:?} is needed; decode the region that `Plan::region` returns for the same key"
        )));
    }
    let window = pass.window;
    let stride = picture.stride.map(i64::from);
    // The distance from the first byte of the picture in memory to the window's first pixel, which may precede it.
    let x = i64::from(window.left) - i64::from(held.left);
    let y = i64::from(window.top) - i64::from(held.top);
    let first = picture.offset as i64 + x * stride[0] + y * stride[1];
    let record = &mut pass.record;
    record.source = wide(first as u64);
    record.stride = stride.map(|stride| stride as i32);
    record.kind = BYTES;
    record.readable = readable(window, held, 0, record);
    Ok(())
}

/// Returns the pixels of the window that are in memory, relative to its corner.
fn readable(window: Region, held: Region, row: u32, record: &mut Record) -> [i32; 4] {
    if row > 0 {
        // The window is a part of the previous pass's output.
        let first = super::record::long(record.source);
        let inside = u64::from(window.top) * u64::from(row) + u64::from(window.left);
        record.source = wide(first + 3 * inside);
    }
    let along = |from: u32, length: u32, there: u32, long: u32| {
        let first = i64::from(there) - i64::from(from);
        let last = first + i64::from(long) - 1;
        [first.max(0) as i32, last.min(i64::from(length) - 1) as i32]
    };
    let [left, right] = along(window.left, window.size.width, held.left, held.size.width);
    let [top, bottom] = along(window.top, window.size.height, held.top, held.size.height);
    [left, top, right, bottom]
}

/// Sets the units of the result.
fn finish(units: &Units, record: &mut Record) {
    (record.scale, record.bias) = (units.scale, units.bias);
    for erased in &mut record.erase {
        erased.value = units.of_bytes(erased.value);
    }
}

fn mix(record: &mut Record, mixing: Option<Mixing>, at: usize, pictures: usize) {
    // torchvision rolls the batch by one.
    record.partner = ((at + pictures - 1) % pictures) as u32;
    match mixing {
        Some(Mixing::Everywhere(share)) => record.share = share as f32,
        Some(Mixing::Within(part)) => record.within = part,
        None => record.partner = at as u32,
    }
}

fn mixed(at: usize, record: &Record) -> Mixed {
    let [left, top, right, bottom] = record.within.map(f64::from);
    let part = (right - left) * (bottom - top) / f64::from(record.width) / f64::from(record.height);
    if record.is_mixed() {
        Mixed {
            partner: record.partner as usize,
            share: f64::from(record.share) - part,
        }
    } else {
        Mixed {
            partner: at,
            share: 1.0,
        }
    }
}
