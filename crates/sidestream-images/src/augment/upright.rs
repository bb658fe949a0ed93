//! Warps without rotation or shear, where columns of the result depend on columns of the picture and rows on rows.
//! Their filter is separable and applied down and then across: for a footprint of n by n pixels, this takes 2 n weights
//! instead of n².

use std::ops::Range;

use super::record::{BYTES, FOOTPRINT, NEAREST, Record, long};
use super::render::{Input, Pixel};

/// The weights along one axis of the pixels of the result.
struct Axis {
    /// For each pixel of the result, the first source pixel that counts, and the range of its weights.
    taps: Vec<(i32, Range<usize>)>,
    weights: Vec<f32>,
}

impl Axis {
    /// Returns the weights along columns (0) or rows (1), or none if a footprint contains no pixel.
    fn of(of: &Record, axis: usize) -> Option<Axis> {
        let (scale, origin) = (of.map[4 * axis], of.map[3 * axis + 2]);
        let (steepness, reach) = (of.footprint[3 * axis], of.footprint[4 + axis]);
        let (low, high) = (of.readable[axis], of.readable[axis + 2]);
        let length = [of.width, of.height][axis];
        let mut all = Axis {
            taps: Vec::with_capacity(length as usize),
            weights: Vec::new(),
        };
        // Far outside, every place gives the pixel at the edge; the clamp keeps the conversion to integers valid.
        let limit = |at: f32| at.clamp(-1e6, 1e6);
        for number in 0..length {
            let at = scale * (number as f32 + 0.5) + origin;
            let begin = all.weights.len();
            if of.filter == FOOTPRINT {
                let first = (limit(at - reach).floor() as i32).max(low);
                let last = (limit(at + reach).ceil() as i32).min(high);
                let weight = |pixel: i32| 1.0 - (steepness * (pixel as f32 + 0.5 - at)).abs();
                let first = (first..=last).find(|&pixel| weight(pixel) > 0.0)?;
                let counted = (first..=last).map(weight);
                all.weights
                    .extend(counted.take_while(|&weight| weight > 0.0));
                let total: f32 = all.weights[begin..].iter().sum();
                all.weights[begin..]
                    .iter_mut()
                    .for_each(|weight| *weight /= total);
                all.taps.push((first, begin..all.weights.len()));
            } else {
                let at = limit(at - 0.5);
                let (before, share) = (at.floor() as i32, at - at.floor());
                let ends = [before, before + 1].map(|pixel| pixel.clamp(low, high));
                if ends[0] == ends[1] {
                    all.weights.push(1.0)
                } else {
                    all.weights.extend([1.0 - share, share])
                }
                all.taps.push((ends[0], begin..all.weights.len()));
            }
        }
        Some(all)
    }

    /// Returns the first and last pixel that count for any pixel of the result.
    fn span(&self) -> Option<(i32, i32)> {
        let last = |(first, of): &(i32, Range<usize>)| first + of.len() as i32 - 1;
        let low = self.taps.iter().map(|(first, _)| *first).min()?;
        Some((low, self.taps.iter().map(last).max()?))
    }

    fn at(&self, number: u32) -> (i32, &[f32]) {
        let (first, weights) = &self.taps[number as usize];
        (*first, &self.weights[weights.clone()])
    }
}

/// A warp without rotation of one picture, by rows of its result.
pub(crate) struct Upright<'a> {
    input: &'a Input<'a>,
    of: &'a Record,
    across: Axis,
    down: Axis,
    left: i32,
    /// A row of sums after filtering down: pixel by pixel, or colour by colour if the picture is stored that way.
    row: Vec<f32>,
    by_colours: bool,
}

impl<'a> Upright<'a> {
    /// Returns none for any other warp, if no filter is needed, and if values become levels: a value between two
    /// levels could be rounded differently if the sum is computed in another order.
    pub(crate) fn of(input: &'a Input<'a>, of: &'a Record) -> Option<Self> {
        let turns = [1, 3, 6, 7].iter().any(|&at| of.map[at] != 0.0);
        if turns || of.map[8] != 1.0 || of.filter == NEAREST || of.levels != 0 {
            return None;
        }
        let (across, down) = (Axis::of(of, 0)?, Axis::of(of, 1)?);
        let (left, right) = across.span()?;
        let columns = usize::try_from(right - left + 1).ok()?;
        Some(Upright {
            input,
            of,
            across,
            down,
            left,
            row: vec![0.0; 3 * columns],
            by_colours: of.stride[0] == 1,
        })
    }

    /// Returns row `y` of the result.
    pub(crate) fn row(&mut self, y: u32) -> impl Iterator<Item = Pixel> + '_ {
        self.row.fill(0.0);
        let (first, weights) = self.down.at(y);
        for (row, &weight) in (first..).zip(weights) {
            add(self.input, self.of, self.left, row, weight, &mut self.row);
        }
        let columns = self.row.len() / 3;
        let (pixels, colours) = if self.by_colours {
            (1, columns)
        } else {
            (3, 1)
        };
        (0..self.of.width).map(move |x| {
            let (first, weights) = self.across.at(x);
            let mut at = (first - self.left) as usize * pixels;
            let mut sum = [0.0; 3];
            for &weight in weights {
                for (colour, sum) in sum.iter_mut().enumerate() {
                    *sum += weight * self.row[at + colour * colours];
                }
                at += pixels;
            }
            sum
        })
    }
}

/// Adds the weighted row of the picture, starting at its column `left`, to `sums`, which has the same layout.
fn add(input: &Input<'_>, of: &Record, left: i32, row: i32, weight: f32, sums: &mut [f32]) {
    let [across, down, apart] = of.stride.map(i64::from);
    let start = long(of.source) as i64 + i64::from(left) * across + i64::from(row) * down;
    let columns = sums.len() / 3;
    // Values that are adjacent in memory are added in that order.
    let pieces = match (across, apart) {
        (3, 1) => 1,
        (1, _) => 3,
        _ => {
            for (column, sums) in (left..).zip(sums.chunks_exact_mut(3)) {
                let pixel = input.pixel(of, column, row);
                sums.iter_mut()
                    .zip(pixel)
                    .for_each(|(sum, value)| *sum += weight * value);
            }
            return;
        }
    };
    for (colour, sums) in (0..).zip(sums.chunks_exact_mut(3 * columns / pieces)) {
        let first = (start + colour * apart) as usize;
        let within = first..first + sums.len();
        match of.kind {
            BYTES => {
                for (sum, &value) in sums.iter_mut().zip(&input.bytes[within]) {
                    *sum += weight * f32::from(value);
                }
            }
            _ => {
                for (sum, &value) in sums.iter_mut().zip(&input.numbers[within]) {
                    *sum += weight * value;
                }
            }
        }
    }
}
