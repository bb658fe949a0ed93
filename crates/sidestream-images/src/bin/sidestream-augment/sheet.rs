//! The contact sheet: sixteen pictures, each unchanged and, to its right, augmented.

use std::path::Path;

use sidestream_images::augment::{Batch, Form, Kind, Layout, Operator, Plan, Target};
use sidestream_images::decode::{self, Decoder};
use sidestream_images::source::Dataset;
use sidestream_images::{Key, Region, Size};

use super::{levels, write};
use crate::failure::{Failure, shown};

/// Longer side of a picture on the sheet in pixels, and the gap between two pictures.
const SIDE: usize = 160;
const GAP: usize = 6;
const PAIRS: [usize; 2] = [4, 4];
const PAPER: u8 = 245;

/// Writes the sheet.
pub fn write(file: &Path, data: &Dataset, plan: &Plan, seed: u64) -> Result<(), Failure> {
    if file
        .extension()
        .is_none_or(|end| !end.eq_ignore_ascii_case("png"))
    {
        let why = "the sheet is a PNG; end its name in .png";
        return Err(Failure::input(format!("--sheet {}: {why}", shown(file))));
    }
    let many = PAIRS[0] * PAIRS[1];
    let mut pictures = Vec::new();
    let step = (data.len() / many as u64).max(1);
    for sample in (0..data.len()).step_by(step as usize) {
        if pictures.len() == many {
            break;
        }
        // Broken pictures are skipped here; the run reports them.
        if let Some(picture) = decoded(data, sample) {
            pictures.push((sample, picture));
        }
    }
    if pictures.is_empty() {
        return Err(Failure::input("--sheet: none of the pictures can be read"));
    }
    let [columns, rows] = PAIRS;
    let cell = SIDE + GAP;
    let size = Size::new(
        (2 * columns * cell + (columns + 1) * GAP) as u32,
        (rows * cell + GAP) as u32,
    );
    let mut sheet = vec![PAPER; 3 * size.area() as usize];
    let shows = levels(plan);
    for (place, (sample, (full, pixels))) in pictures.iter().enumerate() {
        let key = Key::new(seed, 0, *sample);
        let whole = Batch::uniform(*full, 1, Layout::Nhwc);
        let numbers = Form {
            layout: Layout::Nhwc,
            kind: Kind::F32,
        };
        // Mixing takes another picture of the batch, and this batch has only one.
        let drawn = plan.draw(&whole, &[key])?;
        let values = drawn.host(pixels, numbers)?;
        let each = values.chunks_exact(4).enumerate().map(|(at, bytes)| {
            let level = shows(Kind::F32.value(bytes), at % 3);
            (level + 0.5).clamp(0.0, 255.0) as u8
        });
        let made: Vec<u8> = each.collect();
        let left = GAP + (place % columns) * (2 * cell + GAP);
        let top = GAP + (place / columns) * cell;
        put(&mut sheet, size, [left, top], *full, pixels)?;
        put(&mut sheet, size, [left + cell, top], drawn.size(), &made)?;
    }
    let png = sidestream_images::encode_png(size, &sheet).map_err(Failure::input)?;
    write::whole(file, &png)
}

fn decoded(data: &Dataset, sample: u64) -> Option<(Size, Vec<u8>)> {
    let mut bytes = Vec::new();
    data.read(sample, &mut bytes).ok()?;
    let mut decoder = Decoder::new(decode::Options::default());
    let header = decoder.look(&bytes).ok()?;
    let size = decoder.size(&header);
    let mut pixels = vec![0; 3 * size.area() as usize];
    let whole = Region::whole(size);
    decoder.decode(&bytes, &header, whole, &mut pixels).ok()?;
    Some((size, pixels))
}

/// Draws a picture into its cell, as large as fits.
fn put(
    sheet: &mut [u8],
    of: Size,
    [left, top]: [usize; 2],
    size: Size,
    pixels: &[u8],
) -> Result<(), Failure> {
    let longer = size.width.max(size.height).max(1);
    let scaled = |side: u32| {
        (u64::from(side) * SIDE as u64)
            .div_ceil(u64::from(longer))
            .max(1) as u32
    };
    let fitting = Size::new(scaled(size.width), scaled(size.height));
    let resize = Plan::new(vec![Operator::Resize {
        size: Target::Exact(fitting),
        antialias: true,
    }])?;
    let key = Key::new(0, 0, 0);
    let bytes = Form {
        layout: Layout::Nhwc,
        kind: Kind::U8,
    };
    let small = resize.draw(&Batch::uniform(size, 1, Layout::Nhwc), &[key])?;
    let small = small.host(pixels, bytes)?;
    let (row, long) = (3 * of.width as usize, 3 * fitting.width as usize);
    let [x, y] = [fitting.width, fitting.height].map(|side| (SIDE - side as usize) / 2);
    for (line, from) in small.chunks_exact(long).enumerate() {
        let first = (top + y + line) * row + 3 * (left + x);
        sheet[first..first + long].copy_from_slice(from);
    }
    Ok(())
}
