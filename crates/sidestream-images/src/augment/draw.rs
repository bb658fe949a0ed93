//! Draws the parameters of the operators for one picture, and turns them into a list of acts.
//!
//! The distributions are torchvision's. The random numbers depend only on the picture's key and the operator's place,
//! so each operator draws the same numbers regardless of the operators before it.

use super::geometry::{self, Matrix};
use super::operator::{Interpolation, MAX_SIDE, Operator, Target};
use super::step::{Neighbours, Step};
use crate::random::Draws;
use crate::{Key, Size};

/// One change of a picture, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Act {
    /// Pixels outside of the picture get the colour `fill`.
    Crop {
        left: i64,
        top: i64,
        size: Size,
        fill: [f32; 3],
    },
    Resize {
        size: Size,
        antialias: bool,
    },
    Flip {
        horizontal: bool,
    },
    Warp {
        /// Maps places of the result to places of the picture.
        map: Matrix,
        size: Size,
        interpolation: Interpolation,
        fill: Option<[f32; 3]>,
    },
    Colour(Step),
    Neighbours(Neighbours),
    Erase {
        left: u32,
        top: u32,
        size: Size,
        value: [f32; 3],
    },
}

/// How another picture of the batch is mixed into this one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mixing {
    /// Everywhere; the number is the weight of this picture.
    Everywhere(f64),
    /// Within a rectangle: left, top, right, bottom.
    Within([u32; 4]),
}

/// All changes of one picture.
#[derive(Clone, Debug)]
pub(crate) struct Acts {
    pub acts: Vec<Act>,
    pub mixing: Option<Mixing>,
    /// Size of the result.
    pub size: Size,
}

/// The conversion of the final values: `value * scale + bias`, for values from 0 to 255.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Units {
    pub scale: [f32; 3],
    pub bias: [f32; 3],
}

impl Units {
    /// Unchanged: levels of bytes.
    pub(crate) const BYTES: Units = Units {
        scale: [1.0; 3],
        bias: [0.0; 3],
    };

    /// Returns the units after these operators.
    pub(crate) fn behind(operators: &[Operator]) -> Units {
        let mut units = Units::BYTES;
        for operator in operators {
            match operator {
                Operator::ToDtype { scale: true } => units.scale = [1.0 / 255.0; 3],
                Operator::Normalize { mean, std } => {
                    for at in 0..3 {
                        units.scale[at] /= std[at];
                        units.bias[at] = (units.bias[at] - mean[at]) / std[at];
                    }
                }
                _ => {}
            }
        }
        units
    }

    /// Converts a colour from bytes to these units.
    pub(crate) fn of_bytes(&self, value: [f32; 3]) -> [f32; 3] {
        std::array::from_fn(|at| value[at] * self.scale[at] + self.bias[at])
    }

    fn bytes_of(&self, value: [f32; 3]) -> [f32; 3] {
        std::array::from_fn(|at| (value[at] - self.bias[at]) / self.scale[at])
    }
}

/// Draws the parameters for a picture of this size.
pub(crate) fn draw(operators: &[Operator], key: Key, full: Size) -> Acts {
    let mut acts = Acts {
        acts: Vec::new(),
        mixing: None,
        size: full,
    };
    for (at, operator) in operators.iter().enumerate() {
        let units = Units::behind(&operators[..at]);
        one(operator, units, &mut Draws::new(key, at as u32), &mut acts);
    }
    acts
}

fn one(operator: &Operator, units: Units, draws: &mut Draws, acts: &mut Acts) {
    let size = acts.size;
    match *operator {
        Operator::RandomResizedCrop {
            size: target,
            scale,
            ratio,
            antialias,
        } => {
            let (left, top, part) = resized_crop(draws, size, scale, ratio);
            acts.crop(left.into(), top.into(), part, [0.0; 3]);
            acts.resize(target, antialias);
        }
        Operator::RandomCrop {
            size: target,
            padding,
            pad_if_needed,
            fill,
        } => {
            let (left, top) = random_crop(draws, size, target, padding, pad_if_needed);
            acts.crop(left, top, target, units.bytes_of(fill));
        }
        Operator::CenterCrop { size: target } => {
            let left = centered(size.width, target.width);
            let top = centered(size.height, target.height);
            acts.crop(left, top, target, [0.0; 3]);
        }
        Operator::Resize {
            size: target,
            antialias,
        } => {
            acts.resize(resized(size, target), antialias);
        }
        Operator::RandomHorizontalFlip { p } => acts.flip(draws.happens(p), true),
        Operator::RandomVerticalFlip { p } => acts.flip(draws.happens(p), false),
        Operator::RandomRotation {
            degrees,
            interpolation,
            expand,
            center,
            fill,
        } => {
            let angle = draws.between(degrees);
            let center = center.map_or([0.0; 2], |center| from_middle(center, size));
            let inverse = geometry::inverse_affine(center, -angle, [0.0; 2], 1.0, [0.0; 2]);
            let result = if expand {
                geometry::expanded(inverse, size)
            } else {
                size
            };
            acts.warp(inverse, result, interpolation, Some(units.bytes_of(fill)));
        }
        Operator::RandomAffine {
            degrees,
            translate,
            scale,
            shear,
            interpolation,
            center,
            fill,
        } => {
            let angle = draws.between(degrees);
            let [x, y] = translate.unwrap_or([0.0; 2]);
            let most = [x * f64::from(size.width), y * f64::from(size.height)];
            let moved = most.map(|most| draws.between([-most, most]).round_ties_even());
            let scale = scale.map_or(1.0, |scale| draws.between(scale));
            let [a, b, c, d] = shear;
            let sheared = [[a, b], [c, d]].map(|shear| draws.between(shear));
            let center = center.map_or([0.0; 2], |center| from_middle(center, size));
            let inverse = geometry::inverse_affine(center, angle, moved, scale, sheared);
            acts.warp(inverse, size, interpolation, Some(units.bytes_of(fill)));
        }
        Operator::RandomPerspective {
            distortion_scale,
            p,
            interpolation,
            fill,
        } => {
            let happens = draws.happens(p);
            let map = distorted(draws, size, distortion_scale).filter(|_| happens);
            let fill = Some(units.bytes_of(fill));
            acts.acts.extend(map.map(|map| Act::Warp {
                map,
                size,
                interpolation,
                fill,
            }));
        }
        _ => in_place(operator, units, draws, acts),
    }
}

/// Draws the operators that do not move pixels, and `RandAugment`, some of whose steps do.
fn in_place(operator: &Operator, units: Units, draws: &mut Draws, acts: &mut Acts) {
    let size = acts.size;
    match *operator {
        Operator::ColorJitter {
            brightness,
            contrast,
            saturation,
            hue,
        } => {
            let order = draws.order::<4>();
            let steps: [fn(f32) -> Step; 4] = [
                Step::brightness,
                Step::contrast,
                Step::saturation,
                Step::hue,
            ];
            // Each of the four draws its number, whether it is given or not and regardless of the order in which they
            // are applied.
            let drawn = [brightness, contrast, saturation, hue]
                .map(|range| range.map(|range| draws.between(range) as f32));
            for at in order {
                acts.colour(drawn[at].map(steps[at]));
            }
        }
        Operator::Grayscale {} => acts.colour(Some(Step::grayscale())),
        Operator::RandomGrayscale { p } => acts.colour(draws.happens(p).then(Step::grayscale)),
        Operator::GaussianBlur { kernel_size, sigma } => {
            let blur = Neighbours::gaussian(kernel_size, draws.between(sigma));
            acts.acts.push(Act::Neighbours(blur));
        }
        Operator::RandomErasing {
            p,
            scale,
            ratio,
            value,
        } => {
            let happens = draws.happens(p);
            let part = erased(draws, size, scale, ratio).filter(|_| happens);
            let value = units.bytes_of(value);
            let erase = |(left, top, size)| Act::Erase {
                left,
                top,
                size,
                value,
            };
            acts.acts.extend(part.map(erase));
        }
        Operator::RandAugment {
            num_ops,
            magnitude,
            num_magnitude_bins,
            interpolation,
            fill,
        } => {
            let fill = fill.map(|fill| units.bytes_of(fill));
            let share = f64::from(magnitude) / f64::from(num_magnitude_bins - 1);
            for _ in 0..num_ops {
                let (which, negative) = (draws.below(14), draws.happens(0.5));
                rand_augment((which, share, negative), interpolation, fill, acts);
            }
        }
        Operator::MixUp { alpha } => acts.mixing = Some(Mixing::Everywhere(draws.beta(alpha))),
        Operator::CutMix { alpha } => acts.mixing = Some(cut_mix(draws, size, alpha)),
        // `Units` handles these.
        Operator::ToDtype { .. } | Operator::Normalize { .. } => {}
        // `one` handles these.
        Operator::RandomResizedCrop { .. }
        | Operator::RandomCrop { .. }
        | Operator::CenterCrop { .. }
        | Operator::Resize { .. }
        | Operator::RandomHorizontalFlip { .. }
        | Operator::RandomVerticalFlip { .. }
        | Operator::RandomRotation { .. }
        | Operator::RandomAffine { .. }
        | Operator::RandomPerspective { .. } => {}
    }
}

/// Returns where a part of this size begins, relative to the picture without its padding: possibly outside of it.
fn random_crop(
    draws: &mut Draws,
    size: Size,
    target: Size,
    padding: [u32; 4],
    pad_if_needed: bool,
) -> (i64, i64) {
    let [left, top, right, bottom] = padding.map(i64::from);
    let mut along = |before: i64, length: u32, behind: i64, wanted: u32| {
        let (whole, wanted) = (before + i64::from(length) + behind, i64::from(wanted));
        // Both sides are padded by the whole missing length, as in torchvision.
        let more = if pad_if_needed {
            (wanted - whole).max(0)
        } else {
            0
        };
        let room = (whole + 2 * more - wanted).max(0) as u32;
        i64::from(draws.below(room + 1)) - before - more
    };
    let y = along(top, size.height, bottom, target.height);
    (along(left, size.width, right, target.width), y)
}

/// Returns where the middle part begins. torchvision pads first, with the smaller half in front, and otherwise rounds
/// to even.
fn centered(whole: u32, part: u32) -> i64 {
    let (whole, part) = (i64::from(whole), i64::from(part));
    if part > whole {
        -((part - whole) / 2)
    } else {
        ((whole - part) as f64 / 2.0).round_ties_even() as i64
    }
}

fn cut_mix(draws: &mut Draws, size: Size, alpha: f64) -> Mixing {
    let kept = draws.beta(alpha);
    let (x, y) = (draws.below(size.width), draws.below(size.height));
    let half = 0.5 * (1.0 - kept).sqrt();
    let along = |at: u32, whole: u32| {
        let reach = (half * f64::from(whole)) as u32;
        [at.saturating_sub(reach), (at + reach).min(whole)]
    };
    let ([left, right], [top, bottom]) = (along(x, size.width), along(y, size.height));
    Mixing::Within([left, top, right, bottom])
}

impl Acts {
    fn crop(&mut self, left: i64, top: i64, size: Size, fill: [f32; 3]) {
        self.acts.push(Act::Crop {
            left,
            top,
            size,
            fill,
        });
        self.size = size;
    }

    fn flip(&mut self, happens: bool, horizontal: bool) {
        self.acts
            .extend(happens.then_some(Act::Flip { horizontal }));
    }

    fn resize(&mut self, size: Size, antialias: bool) {
        if size != self.size {
            self.acts.push(Act::Resize { size, antialias });
            self.size = size;
        }
    }

    fn warp(
        &mut self,
        inverse: [f64; 6],
        size: Size,
        interpolation: Interpolation,
        fill: Option<[f32; 3]>,
    ) {
        self.acts.push(Act::Warp {
            map: geometry::about_middles(inverse, size, self.size),
            size,
            interpolation,
            fill,
        });
        self.size = size;
    }

    fn colour(&mut self, step: Option<Step>) {
        self.acts.extend(step.map(Act::Colour));
    }
}

fn from_middle(center: [f64; 2], size: Size) -> [f64; 2] {
    [
        center[0] - f64::from(size.width) / 2.0,
        center[1] - f64::from(size.height) / 2.0,
    ]
}

/// Like torchvision's `RandomResizedCrop.make_params`: ten tries, then the middle.
fn resized_crop(
    draws: &mut Draws,
    full: Size,
    scale: [f64; 2],
    ratio: [f64; 2],
) -> (u32, u32, Size) {
    let (w, h) = (f64::from(full.width), f64::from(full.height));
    let place = |draws: &mut Draws, size: Size| {
        let top = draws.below(full.height - size.height + 1);
        (draws.below(full.width - size.width + 1), top, size)
    };
    for _ in 0..10 {
        let area = w * h * draws.between(scale);
        let ratio = draws.between(ratio.map(f64::ln)).exp();
        let size = Size::new(
            (area * ratio).sqrt().round_ties_even() as u32,
            (area / ratio).sqrt().round_ties_even() as u32,
        );
        let fits = |length: u32, whole: u32| (1..=whole).contains(&length);
        if fits(size.width, full.width) && fits(size.height, full.height) {
            return place(draws, size);
        }
    }
    let length = |length: f64| (length.round_ties_even() as u32).max(1);
    let size = match w / h {
        own if own < ratio[0] => Size::new(full.width, length(w / ratio[0]).min(full.height)),
        own if own > ratio[1] => Size::new(length(h * ratio[1]).min(full.width), full.height),
        _ => full,
    };
    let left = (full.width - size.width) / 2;
    (left, (full.height - size.height) / 2, size)
}

/// Like torchvision's `RandomErasing.make_params`; returns none if ten tries do not fit.
fn erased(
    draws: &mut Draws,
    full: Size,
    scale: [f64; 2],
    ratio: [f64; 2],
) -> Option<(u32, u32, Size)> {
    let whole = f64::from(full.width) * f64::from(full.height);
    for _ in 0..10 {
        let area = whole * draws.between(scale);
        let ratio = draws.between(ratio.map(f64::ln)).exp();
        let size = Size::new(
            (area / ratio).sqrt().round_ties_even() as u32,
            (area * ratio).sqrt().round_ties_even() as u32,
        );
        if size.width < full.width && size.height < full.height {
            let top = draws.below(full.height - size.height + 1);
            let left = draws.below(full.width - size.width + 1);
            return Some((left, top, size));
        }
    }
    None
}

/// Like torchvision's `RandomPerspective.make_params`.
fn distorted(draws: &mut Draws, size: Size, distortion: f64) -> Option<Matrix> {
    let bound = |length: u32| (distortion * f64::from(length / 2)) as u32 + 1;
    let (bx, by) = (bound(size.width), bound(size.height));
    let (w, h) = (f64::from(size.width), f64::from(size.height));
    let mut near = |bound: u32| f64::from(draws.below(bound));
    let top_left = [near(bx), near(by)];
    let top_right = [w - f64::from(bx) + near(bx), near(by)];
    let bottom_right = [w - f64::from(bx) + near(bx), h - f64::from(by) + near(by)];
    let bottom_left = [near(bx), h - f64::from(by) + near(by)];
    let to = [
        [0.0, 0.0],
        [w - 1.0, 0.0],
        [w - 1.0, h - 1.0],
        [0.0, h - 1.0],
    ];
    geometry::perspective([top_left, top_right, bottom_right, bottom_left], to)
}

fn resized(size: Size, target: Target) -> Size {
    let (side, most) = match target {
        Target::Exact(size) => return size,
        Target::Shorter { side, most } => (u64::from(side), most),
    };
    let (short, long) = (size.width.min(size.height), size.width.max(size.height));
    let (mut new_short, mut new_long) = (side, side * u64::from(long) / u64::from(short.max(1)));
    if let Some(most) = most.map(u64::from).filter(|&most| new_long > most) {
        (new_short, new_long) = (most * new_short / new_long, most);
    }
    let at_most = |length: u64| length.clamp(1, u64::from(MAX_SIDE)) as u32;
    let (short, long) = (at_most(new_short), at_most(new_long));
    if size.width <= size.height {
        Size::new(short, long)
    } else {
        Size::new(long, short)
    }
}

/// Draws one of torchvision's fourteen operators, in its order.
fn rand_augment(
    (which, share, negative): (u32, f64, bool),
    interpolation: Interpolation,
    fill: Option<[f32; 3]>,
    acts: &mut Acts,
) {
    let size = acts.size;
    let signed = |most: f64| {
        if negative {
            -most * share
        } else {
            most * share
        }
    };
    let corner = from_middle([0.0; 2], size);
    let mut affine = |center, angle, moved, shear: [f64; 2]| {
        let inverse = geometry::inverse_affine(center, angle, moved, 1.0, shear);
        acts.warp(inverse, size, interpolation, fill);
    };
    let sheared = signed(0.3).atan().to_degrees();
    let moved = |length: u32| signed(150.0 / 331.0 * f64::from(length)).trunc();
    let factor = 1.0 + signed(0.9) as f32;
    match which {
        1 => affine(corner, 0.0, [0.0; 2], [sheared, 0.0]),
        2 => affine(corner, 0.0, [0.0; 2], [0.0, sheared]),
        3 => affine([0.0; 2], 0.0, [moved(size.width), 0.0], [0.0; 2]),
        4 => affine([0.0; 2], 0.0, [0.0, moved(size.height)], [0.0; 2]),
        // torchvision gives this angle the opposite sign.
        5 => affine([0.0; 2], -signed(30.0), [0.0; 2], [0.0; 2]),
        6 => acts.colour(Some(Step::brightness(factor))),
        7 => acts.colour(Some(Step::saturation(factor))),
        8 => acts.colour(Some(Step::contrast(factor))),
        9 => acts
            .acts
            .push(Act::Neighbours(Neighbours::sharpness(factor))),
        10 => {
            let bits = (8.0 - 4.0 * share).round_ties_even() as u32;
            acts.colour(Some(Step::posterize(bits)));
        }
        11 => acts.colour(Some(Step::solarize((1.0 - share) as f32 * 255.0))),
        12 => acts.colour(Some(Step::autocontrast())),
        13 => acts.colour(Some(Step::equalize())),
        _ => {}
    }
}
