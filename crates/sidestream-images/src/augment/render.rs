//! The passes on the CPU: the computation of the CUDA kernel in the same order, with two exceptions. The kernel
//! fuses multiplications and additions in interpolation and blurs; and here a warp without rotation is filtered down
//! and across in turn. The simulated GPU runs this code too.

use super::pass::footprint;
use super::record::{BYTES, Canvas, FOOTPRINT, HARD, NEAREST, Record, SKIPPED, STEPS, TWICE, long};
use super::statistics::{self, Statistics, WORDS};
use super::step::clamp;
use super::upright::Upright;

/// The input of a pass.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub bytes: &'a [u8],
    pub numbers: &'a [f32],
}

pub(crate) type Pixel = [f32; 3];

impl Input<'_> {
    /// Returns a pixel of the window. The pixel is in memory: the front end has refused everything else.
    pub(crate) fn pixel(&self, of: &Record, x: i32, y: i32) -> Pixel {
        let x = x.clamp(of.readable[0], of.readable[2]);
        let y = y.clamp(of.readable[1], of.readable[3]);
        let [across, down, apart] = of.stride.map(i64::from);
        let first = long(of.source) as i64 + i64::from(x) * across + i64::from(y) * down;
        [0, 1, 2].map(|colour| {
            let at = (first + colour * apart) as usize;
            match of.kind {
                BYTES => self.bytes[at].into(),
                _ => self.numbers[at],
            }
        })
    }
}

/// Returns the homogeneous coordinates of a pixel's centre.
fn place(map: &[f32; 9], x: u32, y: u32) -> [f32; 3] {
    let (x, y) = (x as f32 + 0.5, y as f32 + 0.5);
    [0, 3, 6].map(|row| map[row] * x + map[row + 1] * y + map[row + 2])
}

/// Returns the coordinates of a pixel's centre after division; none behind the viewer.
fn placed(map: &[f32; 9], x: u32, y: u32) -> Option<[f32; 2]> {
    let [px, py, w] = place(map, x, y);
    if map[6] == 0.0 && map[7] == 0.0 {
        return Some([px, py]);
    }
    (w > 0.0).then(|| [px / w, py / w])
}

/// Returns a pixel of the warp's result.
fn warped(input: &Input<'_>, of: &Record, x: u32, y: u32) -> Pixel {
    let pixel = match placed(&of.map, x, y) {
        None => [0.0; 3],
        Some(at) if of.filter == NEAREST => {
            let [x, y] = at.map(|at| (at - 0.5).round_ties_even() as i32);
            input.pixel(of, x, y)
        }
        Some(at) => match footprint_at(of, at, x, y) {
            Some(shape) => filtered(input, of, at, shape),
            None => bilinear(input, of, at),
        },
    };
    laid(of, pixel, x, y)
}

/// Returns a pixel after laying it on each canvas in turn.
fn laid(of: &Record, mut pixel: Pixel, x: u32, y: u32) -> Pixel {
    for canvas in &of.canvas[..of.canvases as usize] {
        pixel = on_canvas(canvas, pixel, x, y);
    }
    if of.levels != 0 {
        pixel = pixel.map(f32::round_ties_even);
    }
    pixel
}

fn bilinear(input: &Input<'_>, of: &Record, [x, y]: [f32; 2]) -> Pixel {
    // Far outside, every place gives the pixel at the edge; the clamp keeps the conversion to integers valid.
    let (x, y) = ((x - 0.5).clamp(-1e6, 1e6), (y - 0.5).clamp(-1e6, 1e6));
    let (left, top) = (x.floor(), y.floor());
    let (fx, fy) = (x - left, y - top);
    let (left, top) = (left as i32, top as i32);
    let [a, b] = [0, 1].map(|dx| input.pixel(of, left + dx, top));
    let [c, d] = [0, 1].map(|dx| input.pixel(of, left + dx, top + 1));
    std::array::from_fn(|at| {
        let upper = a[at] + fx * (b[at] - a[at]);
        let lower = c[at] + fx * (d[at] - c[at]);
        upper + fy * (lower - upper)
    })
}

/// Returns the footprint of a pixel, if it is larger than the four pixels of bilinear interpolation.
fn footprint_at(of: &Record, [px, py]: [f32; 2], x: u32, y: u32) -> Option<[f32; 6]> {
    if of.filter != FOOTPRINT {
        return None;
    }
    let m = &of.map;
    if m[6] == 0.0 && m[7] == 0.0 {
        return Some(of.footprint);
    }
    let [_, _, w] = place(m, x, y).map(f64::from);
    let m = m.map(f64::from);
    let (px, py) = (f64::from(px), f64::from(py));
    let a = [(m[0] - m[6] * px) / w, (m[3] - m[6] * py) / w];
    let b = [(m[1] - m[7] * px) / w, (m[4] - m[7] * py) / w];
    let length = |[x, y]: [f64; 2]| (x * x + y * y).sqrt();
    let is_large = length(a) > 1.0 || length(b) > 1.0;
    is_large.then(|| footprint(a, b).map(|value| value as f32))
}

/// Returns the weighted sum over a footprint. At the edge of the window the readable pixels get all the weight.
fn filtered(input: &Input<'_>, of: &Record, [x, y]: [f32; 2], shape: [f32; 6]) -> Pixel {
    let [xx, xy, yx, yy, reach_x, reach_y] = shape;
    let limit = |at: f32| at.clamp(-1e6, 1e6);
    let first = |at: f32, reach: f32, low: i32| (limit(at - reach).floor() as i32).max(low);
    let last = |at: f32, reach: f32, high: i32| (limit(at + reach).ceil() as i32).min(high);
    let (left, right) = (
        first(x, reach_x, of.readable[0]),
        last(x, reach_x, of.readable[2]),
    );
    let (top, bottom) = (
        first(y, reach_y, of.readable[1]),
        last(y, reach_y, of.readable[3]),
    );
    let (mut sum, mut total) = ([0.0f32; 3], 0.0f32);
    for row in top..=bottom {
        let dy = row as f32 + 0.5 - y;
        for column in left..=right {
            let dx = column as f32 + 0.5 - x;
            let across = 1.0 - (xx * dx + xy * dy).abs();
            let down = 1.0 - (yx * dx + yy * dy).abs();
            if across > 0.0 && down > 0.0 {
                let weight = across * down;
                let pixel = input.pixel(of, column, row);
                for at in 0..3 {
                    sum[at] += weight * pixel[at];
                }
                total += weight;
            }
        }
    }
    if total > 0.0 {
        sum.map(|sum| sum / total)
    } else {
        bilinear(input, of, [x, y])
    }
}

/// Blends a pixel with the canvas's fill outside of the canvas.
fn on_canvas(canvas: &Canvas, pixel: Pixel, x: u32, y: u32) -> Pixel {
    let inside = match placed(&canvas.map, x, y) {
        None => 0.0,
        Some([x, y]) if canvas.edge == HARD => {
            // The nearest pixel is one of the canvas.
            let [x, y] = [x, y].map(|at| (at - 0.5).round_ties_even());
            let is_in = x >= 0.0 && y >= 0.0 && x < canvas.width && y < canvas.height;
            f32::from(is_in)
        }
        Some([x, y]) => {
            let share = |at: f32, length: f32| {
                (at + 0.5).clamp(0.0, 1.0) * (length - at + 0.5).clamp(0.0, 1.0)
            };
            share(x, canvas.width) * share(y, canvas.height)
        }
    };
    if inside == 1.0 {
        return pixel;
    }
    let first = if canvas.edge == TWICE { inside } else { 1.0 };
    std::array::from_fn(|at| {
        let fill = canvas.fill[at];
        inside * (first * pixel[at] - fill) + fill
    })
}

/// Mirrors a place outside of the picture into it.
fn mirrored(at: i32, length: u32) -> u32 {
    let last = length as i32 - 1;
    let at = at.abs();
    (last - (last - at).abs()).clamp(0, last) as u32
}

/// Applies the steps `first..last` to a pixel.
fn coloured(
    of: &Record,
    mut pixel: Pixel,
    first: u32,
    last: u32,
    figures: Option<&Statistics>,
) -> Pixel {
    for step in &of.step[first as usize..last as usize] {
        pixel = step.apply(pixel, of.levels != 0, figures);
    }
    pixel
}

/// Returns the picture after its first `steps` steps, by rows; `smoothed` says whether the filter over neighbours is
/// one of the earlier steps.
fn picture(
    input: &Input<'_>,
    of: &Record,
    steps: u32,
    smoothed: bool,
    figures: Option<&Statistics>,
) -> Vec<Pixel> {
    let (width, height) = (of.width, of.height);
    let before = steps.min(of.steps_before);
    let mut picture: Vec<Pixel> = Vec::with_capacity((width * height) as usize);
    let mut upright = Upright::of(input, of);
    for y in 0..height {
        match &mut upright {
            Some(upright) => {
                let row = (0..width).zip(upright.row(y));
                picture.extend(row.map(|(x, pixel)| laid(of, pixel, x, y)));
            }
            None => picture.extend((0..width).map(|x| warped(input, of, x, y))),
        }
    }
    for pixel in &mut picture {
        *pixel = coloured(of, *pixel, 0, before, figures);
    }
    if !smoothed {
        return picture;
    }
    let sums = weighed(&weighed(&picture, of, 0), of, 1);
    let each = picture.into_iter().zip(sums).zip(places(of));
    each.map(|((own, sum), (x, y))| {
        let is_edge = x == 0 || y == 0 || x + 1 == width || y + 1 == height;
        let mut pixel = if of.keeps_edge != 0 && is_edge {
            own
        } else {
            std::array::from_fn(|c| clamp(of.own * own[c] + of.around * sum[c]))
        };
        if of.levels != 0 {
            pixel = pixel.map(f32::round_ties_even);
        }
        coloured(of, pixel, of.steps_before, steps, figures)
    })
    .collect()
}

/// Replaces each pixel by the weighted sum of its neighbours in its row (axis 0) or its column (1).
fn weighed(picture: &[Pixel], of: &Record, axis: usize) -> Vec<Pixel> {
    let radius = of.radius[axis] as i32;
    let sum = |(x, y): (u32, u32)| {
        let mut sum = [0.0; 3];
        for k in -radius..=radius {
            let (x, y) = match axis {
                0 => (mirrored(x as i32 + k, of.width), y),
                _ => (x, mirrored(y as i32 + k, of.height)),
            };
            let from = picture[(y * of.width + x) as usize];
            let weight = of.weights[axis][k.unsigned_abs() as usize];
            for c in 0..3 {
                sum[c] += weight * from[c];
            }
        }
        sum
    };
    places(of).map(sum).collect()
}

/// Returns the places of the result, by rows.
fn places(of: &Record) -> impl Iterator<Item = (u32, u32)> + use<> {
    let (width, height) = (of.width, of.height);
    (0..height).flat_map(move |y| (0..width).map(move |x| (x, y)))
}

/// Adds the statistics that a pass needs of its whole picture to the picture's words.
pub(crate) fn measure(input: &Input<'_>, of: &Record, words: &mut [u32]) {
    if of.kind == SKIPPED || of.measured >= STEPS as u32 {
        return;
    }
    let smoothed = of.has_neighbours() && of.measured >= of.steps_before;
    for pixel in picture(input, of, of.measured, smoothed, None) {
        statistics::add(words, pixel, of.levels != 0);
    }
}

/// Returns a picture before mixing, in the units of the result.
fn finished(input: &Input<'_>, of: &Record, words: &[u32]) -> Vec<Pixel> {
    let figures = (of.measured < STEPS as u32).then(|| Statistics::of(words, of.width * of.height));
    let mut all = picture(input, of, of.steps, of.has_neighbours(), figures.as_ref());
    for (pixel, (x, y)) in all.iter_mut().zip(places(of)) {
        *pixel = std::array::from_fn(|at| pixel[at] * of.scale[at] + of.bias[at]);
        for erased in &of.erase[..of.erased as usize] {
            if is_within(erased.within, x, y) {
                *pixel = erased.value;
            }
        }
    }
    all
}

fn is_within([left, top, right, bottom]: [u32; 4], x: u32, y: u32) -> bool {
    (left..right).contains(&x) && (top..bottom).contains(&y)
}

/// Returns the picture `at` of a pass, by rows.
pub(crate) fn render(
    input: &Input<'_>,
    records: &[Record],
    at: usize,
    words: &[u32],
) -> Vec<Pixel> {
    let of = &records[at];
    let words_of = |at: usize| words.get(at * WORDS..(at + 1) * WORDS).unwrap_or_default();
    let mut own = finished(input, of, words_of(at));
    let partner = records.get(of.partner as usize).filter(|_| of.is_mixed());
    if let Some(partner) = partner {
        let other = finished(input, partner, words_of(of.partner as usize));
        for ((own, other), (x, y)) in own.iter_mut().zip(other).zip(places(of)) {
            let share = if is_within(of.within, x, y) {
                0.0
            } else {
                of.share
            };
            *own = std::array::from_fn(|c| share * own[c] + (1.0 - share) * other[c]);
        }
    }
    own
}
