//! The operators, with the names, the arguments and the meaning that `torchvision.transforms.v2` gives them.

use sidestream::error::{Error, Result};

use super::MAX_RADIUS;
use crate::Size;

/// How a value between pixels is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// Between the four pixels around.
    Bilinear,
}

/// How large a resized picture is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Exactly so.
    Exact(Size),
    /// The shorter side has this length, and the picture keeps its proportions. The longer side is at most `most`, if
    /// that is given.
    Shorter {
        /// In pixels.
        side: u32,
        /// In pixels.
        most: Option<u32>,
    },
}

/// A step of an augmentation. Fields are the arguments of torchvision; pairs are lowest and highest value.
///
/// Sizes are in pixels, angles in degrees, and colours (`fill`, `value`) in the units that pixels have at that place: 0 to 255, or 0 to 1
/// behind a [`ToDtype`](Operator::ToDtype) that scales.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "torchvision's arguments; docs/augmentation.md has the table"
)]
pub enum Operator {
    RandomResizedCrop {
        size: Size,
        scale: [f64; 2],
        ratio: [f64; 2],
        antialias: bool,
    },
    /// `padding` is left, top, right and bottom.
    RandomCrop {
        size: Size,
        padding: [u32; 4],
        pad_if_needed: bool,
        fill: [f32; 3],
    },
    CenterCrop {
        size: Size,
    },
    Resize {
        size: Target,
        antialias: bool,
    },
    RandomHorizontalFlip {
        p: f64,
    },
    RandomVerticalFlip {
        p: f64,
    },
    RandomRotation {
        degrees: [f64; 2],
        interpolation: Interpolation,
        expand: bool,
        center: Option<[f64; 2]>,
        fill: [f32; 3],
    },
    /// `shear` is lowest and highest along x, then along y.
    RandomAffine {
        degrees: [f64; 2],
        translate: Option<[f64; 2]>,
        scale: Option<[f64; 2]>,
        shear: [f64; 4],
        interpolation: Interpolation,
        center: Option<[f64; 2]>,
        fill: [f32; 3],
    },
    RandomPerspective {
        distortion_scale: f64,
        p: f64,
        interpolation: Interpolation,
        fill: [f32; 3],
    },
    ColorJitter {
        brightness: Option<[f64; 2]>,
        contrast: Option<[f64; 2]>,
        saturation: Option<[f64; 2]>,
        hue: Option<[f64; 2]>,
    },
    /// With three channels, as for `num_output_channels=3`.
    Grayscale,
    RandomGrayscale {
        p: f64,
    },
    /// `kernel_size` is its width and its height.
    GaussianBlur {
        kernel_size: [u32; 2],
        sigma: [f64; 2],
    },
    RandomErasing {
        p: f64,
        scale: [f64; 2],
        ratio: [f64; 2],
        value: [f32; 3],
    },
    RandAugment {
        num_ops: u32,
        magnitude: u32,
        num_magnitude_bins: u32,
        interpolation: Interpolation,
        fill: Option<[f32; 3]>,
    },
    /// Mixes each picture with the one before it in the batch.
    MixUp {
        alpha: f64,
    },
    /// Puts a part of the picture before it in the batch into each.
    CutMix {
        alpha: f64,
    },
    /// From here on values are floating-point numbers; with `scale` from 0 to 1, else from 0 to 255.
    ToDtype {
        scale: bool,
    },
    Normalize {
        mean: [f32; 3],
        std: [f32; 3],
    },
}

/// The largest side of a picture or a result: coordinates stay exact in single precision.
pub const MAX_SIDE: u32 = 1 << 15;

impl Operator {
    /// Its name in torchvision.
    pub fn name(&self) -> &'static str {
        match self {
            Operator::RandomResizedCrop { .. } => "RandomResizedCrop",
            Operator::RandomCrop { .. } => "RandomCrop",
            Operator::CenterCrop { .. } => "CenterCrop",
            Operator::Resize { .. } => "Resize",
            Operator::RandomHorizontalFlip { .. } => "RandomHorizontalFlip",
            Operator::RandomVerticalFlip { .. } => "RandomVerticalFlip",
            Operator::RandomRotation { .. } => "RandomRotation",
            Operator::RandomAffine { .. } => "RandomAffine",
            Operator::RandomPerspective { .. } => "RandomPerspective",
            Operator::ColorJitter { .. } => "ColorJitter",
            Operator::Grayscale => "Grayscale",
            Operator::RandomGrayscale { .. } => "RandomGrayscale",
            Operator::GaussianBlur { .. } => "GaussianBlur",
            Operator::RandomErasing { .. } => "RandomErasing",
            Operator::RandAugment { .. } => "RandAugment",
            Operator::MixUp { .. } => "MixUp",
            Operator::CutMix { .. } => "CutMix",
            Operator::ToDtype { .. } => "ToDtype",
            Operator::Normalize { .. } => "Normalize",
        }
    }

    /// Whether it acts on the finished picture alone, so that nothing else may follow it but its like.
    fn is_last(&self) -> bool {
        matches!(self, Operator::MixUp { .. } | Operator::CutMix { .. })
    }

    /// Refuses arguments that mean nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`], which names the operator, the argument and what to give instead.
    pub fn check(&self) -> Result<()> {
        match self.fault() {
            Some(fault) => Err(invalid(format!("{}: {fault}", self.name()))),
            None => Ok(()),
        }
    }

    /// What is wrong with its arguments, if something is.
    fn fault(&self) -> Option<String> {
        match self {
            Operator::RandomResizedCrop {
                size, scale, ratio, ..
            } => side("size", *size)
                .or_else(|| range("scale", *scale, 0.0, f64::MAX))
                .or_else(|| range("ratio", *ratio, f64::MIN_POSITIVE, f64::MAX)),
            Operator::RandomCrop { size, padding, .. } => side("size", *size).or_else(|| {
                let most = padding.iter().max().copied().unwrap_or_default();
                (most > MAX_SIDE).then(|| format!("padding is {most}; give at most {MAX_SIDE}"))
            }),
            Operator::CenterCrop { size } => side("size", *size),
            Operator::Resize { size, .. } => match *size {
                Target::Exact(size) => side("size", size),
                Target::Shorter { side: length, most } => {
                    let square = |length| Size {
                        width: length,
                        height: length,
                    };
                    let too_small = most.filter(|&most| most < length);
                    side("size", square(length)).or_else(|| {
                        too_small.map(|most| {
                            format!("max_size is {most}, and size {length}; give a max_size that is larger")
                        })
                    })
                }
            },
            Operator::RandomHorizontalFlip { p }
            | Operator::RandomVerticalFlip { p }
            | Operator::RandomGrayscale { p } => probability(*p),
            Operator::RandomRotation {
                degrees, center, ..
            } => range("degrees", *degrees, f64::MIN, f64::MAX).or_else(|| place(*center)),
            Operator::RandomAffine {
                degrees,
                translate,
                scale,
                shear,
                center,
                ..
            } => range("degrees", *degrees, f64::MIN, f64::MAX)
                .or_else(|| {
                    let all = translate.iter().flatten();
                    let wrong = all.copied().find(|share| !(0.0..=1.0).contains(share));
                    wrong.map(|share| {
                        format!("translate has {share}; give shares of the size, from 0 to 1")
                    })
                })
                .or_else(|| {
                    scale.and_then(|scale| range("scale", scale, f64::MIN_POSITIVE, f64::MAX))
                })
                .or_else(|| range("shear", [shear[0], shear[1]], -89.0, 89.0))
                .or_else(|| range("shear", [shear[2], shear[3]], -89.0, 89.0))
                .or_else(|| place(*center)),
            Operator::RandomPerspective {
                distortion_scale,
                p,
                ..
            } => probability(*p).or_else(|| {
                (!(0.0..=1.0).contains(distortion_scale))
                    .then(|| format!("distortion_scale is {distortion_scale}; give 0 to 1"))
            }),
            Operator::ColorJitter {
                brightness,
                contrast,
                saturation,
                hue,
            } => [
                ("brightness", brightness, 0.0, f64::MAX),
                ("contrast", contrast, 0.0, f64::MAX),
                ("saturation", saturation, 0.0, f64::MAX),
                ("hue", hue, -0.5, 0.5),
            ]
            .into_iter()
            .find_map(|(name, given, low, high)| range(name, (*given)?, low, high)),
            Operator::GaussianBlur { kernel_size, sigma } => {
                let most = 2 * MAX_RADIUS + 1;
                let wrong = |&&size: &&u32| size % 2 == 0 || size > most;
                kernel_size
                    .iter()
                    .find(wrong)
                    .map(|size| {
                        format!("kernel_size is {size}; give an odd number of at most {most}")
                    })
                    .or_else(|| range("sigma", *sigma, 1e-3, f64::MAX))
            }
            Operator::RandomErasing {
                p, scale, ratio, ..
            } => probability(*p)
                .or_else(|| range("scale", *scale, 0.0, 1.0))
                .or_else(|| range("ratio", *ratio, f64::MIN_POSITIVE, f64::MAX)),
            Operator::RandAugment {
                num_ops,
                magnitude,
                num_magnitude_bins,
                ..
            } => {
                if *num_magnitude_bins < 2 || magnitude >= num_magnitude_bins {
                    Some(format!(
                        "magnitude is {magnitude} of {num_magnitude_bins} bins; give at least 2 bins, and one of them"
                    ))
                } else {
                    (*num_ops > 16).then(|| format!("num_ops is {num_ops}; give at most 16"))
                }
            }
            Operator::MixUp { alpha } | Operator::CutMix { alpha } => {
                let is_right = *alpha > 0.0 && alpha.is_finite();
                (!is_right).then(|| format!("alpha is {alpha}; give a number above 0"))
            }
            Operator::Normalize { std, .. } => {
                let wrong = std.iter().find(|std| std.is_nan() || **std <= 0.0);
                wrong.map(|std| format!("std has {std}; give numbers above 0"))
            }
            Operator::Grayscale | Operator::ToDtype { .. } => None,
        }
    }
}

fn side(name: &str, size: Size) -> Option<String> {
    let Size { width, height } = size;
    let fits = |length| (1..=MAX_SIDE).contains(&length);
    (!fits(width) || !fits(height))
        .then(|| format!("{name} is {height} x {width}; give 1 to {MAX_SIDE} pixels"))
}

fn range(name: &str, given: [f64; 2], low: f64, high: f64) -> Option<String> {
    let [a, b] = given;
    // Written so that what is no number is refused.
    let is_right = a >= low && a <= b && b <= high;
    (!is_right).then(|| match (low, high) {
        (f64::MIN, f64::MAX) => {
            format!("{name} is from {a} to {b}; give finite numbers, the lower one first")
        }
        (f64::MIN_POSITIVE, f64::MAX) => {
            format!("{name} is from {a} to {b}; give numbers above 0, the lower one first")
        }
        (_, f64::MAX) => {
            format!("{name} is from {a} to {b}; give at least {low:.3}, and the lower one first")
        }
        _ => format!("{name} is from {a} to {b}; give {low} to {high}, and the lower one first"),
    })
}

fn place(center: Option<[f64; 2]>) -> Option<String> {
    let [x, y] = center.filter(|center| !center.iter().all(|one| one.is_finite()))?;
    Some(format!("center is {x}, {y}; give finite numbers"))
}

fn probability(p: f64) -> Option<String> {
    (!(0.0..=1.0).contains(&p)).then(|| format!("p is {p}; give a probability, from 0 to 1"))
}

/// Refuses what means nothing, by the operator's name and place.
pub fn check(operators: &[Operator]) -> Result<()> {
    let refuse = |at: usize, why: String| {
        let name = operators[at].name();
        Err(invalid(format!("operator {at}, {name}: {why}")))
    };
    let (mut normalized, mut mixed) = (false, false);
    for (at, operator) in operators.iter().enumerate() {
        if let Some(fault) = operator.fault() {
            return refuse(at, fault);
        }
        if mixed {
            return refuse(at, "pictures are mixed when they are finished; put it before MixUp or CutMix, of which a plan has one".into());
        }
        let may_follow = operator.is_last() || matches!(operator, Operator::RandomErasing { .. });
        if normalized && !may_follow {
            return refuse(at, "it works on colours; put it before Normalize".into());
        }
        if matches!(operator, Operator::ToDtype { .. })
            && operators[..at]
                .iter()
                .any(|before| matches!(before, Operator::ToDtype { .. }))
        {
            return refuse(at, "the values are numbers already; take it out".into());
        }
        if matches!(operator, Operator::Normalize { .. })
            && !operators[..at]
                .iter()
                .any(|before| matches!(before, Operator::ToDtype { .. }))
        {
            return refuse(
                at,
                "it takes floating-point numbers; put ToDtype before it".into(),
            );
        }
        normalized |= matches!(operator, Operator::Normalize { .. });
        mixed |= operator.is_last();
    }
    Ok(())
}

pub fn invalid(why: String) -> Error {
    Error::Invalid {
        call: "augment",
        why,
    }
}
