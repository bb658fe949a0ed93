//! Steps that change colours, filters over neighbours, and their implementation on the CPU.
//!
//! Values are from 0 to 255. `kernels/augment.cu` has the CUDA implementation, with the same function names.

use sidestream::bytemuck::{Pod, Zeroable};

use super::MAX_RADIUS;
use super::statistics::Statistics;

/// A step that changes each pixel by itself, or with statistics of the whole picture.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "sidestream::bytemuck")]
pub struct Step {
    pub kind: u32,
    pub value: f32,
}

pub(crate) const BRIGHTNESS: u32 = 0;
pub(crate) const CONTRAST: u32 = 1;
pub(crate) const SATURATION: u32 = 2;
pub(crate) const HUE: u32 = 3;
pub(crate) const GRAYSCALE: u32 = 4;
pub(crate) const POSTERIZE: u32 = 5;
pub(crate) const SOLARIZE: u32 = 6;
pub(crate) const AUTOCONTRAST: u32 = 7;
pub(crate) const EQUALIZE: u32 = 8;

/// A separable filter over the neighbours of each pixel: `own * pixel + around * filtered`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Neighbours {
    /// Radius to the left and right, and up and down.
    pub radius: [u32; 2],
    /// Weights of the pixel itself, the next one and so on, on both sides.
    pub weights: [[f32; WEIGHTS]; 2],
    pub own: f32,
    pub around: f32,
    /// Whether pixels at the edge are unchanged. Otherwise the picture is mirrored there.
    pub keeps_edge: bool,
}

/// Number of weights, one for each distance.
pub(crate) const WEIGHTS: usize = MAX_RADIUS as usize + 1;

impl Step {
    pub(crate) fn brightness(factor: f32) -> Step {
        Step::new(BRIGHTNESS, factor)
    }

    pub(crate) fn contrast(factor: f32) -> Step {
        Step::new(CONTRAST, factor)
    }

    pub(crate) fn saturation(factor: f32) -> Step {
        Step::new(SATURATION, factor)
    }

    pub(crate) fn hue(turn: f32) -> Step {
        Step::new(HUE, turn)
    }

    pub(crate) fn grayscale() -> Step {
        Step::new(GRAYSCALE, 0.0)
    }

    /// Keeps the upper `bits` of eight bits.
    pub(crate) fn posterize(bits: u32) -> Step {
        let step = (1u32 << (8 - bits.min(8))) as f32;
        Step::new(POSTERIZE, step)
    }

    pub(crate) fn solarize(threshold: f32) -> Step {
        Step::new(SOLARIZE, threshold)
    }

    pub(crate) fn autocontrast() -> Step {
        Step::new(AUTOCONTRAST, 0.0)
    }

    pub(crate) fn equalize() -> Step {
        Step::new(EQUALIZE, 0.0)
    }

    fn new(kind: u32, value: f32) -> Step {
        Step { kind, value }
    }

    /// Returns whether the step needs statistics of the whole picture before it.
    pub(crate) fn needs_statistics(&self) -> bool {
        [CONTRAST, AUTOCONTRAST, EQUALIZE].contains(&self.kind)
    }

    /// Returns the pixel after this step. With `levels` it is rounded to bytes as in torchvision.
    pub(crate) fn apply(
        &self,
        pixel: [f32; 3],
        levels: bool,
        statistics: Option<&Statistics>,
    ) -> [f32; 3] {
        let f = self.value;
        let blend = |other: f32| pixel.map(|v| clamp(v * f + other * (1.0 - f)));
        let result = match self.kind {
            BRIGHTNESS => pixel.map(|v| clamp(v * f)),
            CONTRAST => match statistics {
                Some(of) => blend(of.mean),
                None => pixel,
            },
            SATURATION => blend(gray(pixel, levels)),
            HUE => return hue(pixel, f, levels),
            GRAYSCALE => [gray(pixel, levels); 3],
            POSTERIZE => pixel.map(|v| (v.round_ties_even() / f).floor() * f),
            SOLARIZE => pixel.map(|v| if v >= f { 255.0 - v } else { v }),
            AUTOCONTRAST => match statistics {
                Some(of) => std::array::from_fn(|at| clamp((pixel[at] - of.low[at]) / of.span[at])),
                None => pixel,
            },
            EQUALIZE => match statistics {
                Some(of) => std::array::from_fn(|at| {
                    let level = pixel[at].round_ties_even() as usize;
                    f32::from(of.equalized[at][level.min(255)])
                }),
                None => pixel,
            },
            _ => pixel,
        };
        if levels {
            result.map(f32::trunc)
        } else {
            result
        }
    }
}

pub(crate) fn clamp(value: f32) -> f32 {
    value.clamp(0.0, 255.0)
}

/// Returns the luma of ITU-R BT.601, with torchvision's digits.
pub(crate) fn gray([r, g, b]: [f32; 3], levels: bool) -> f32 {
    let gray = 0.2989 * r + 0.587 * g + 0.114 * b;
    if levels { gray.floor() } else { gray }
}

/// Turns the hue by way of HSV, as Pillow and torchvision do.
fn hue(pixel: [f32; 3], turn: f32, levels: bool) -> [f32; 3] {
    let [r, g, b] = pixel.map(|v| v / 255.0);
    let (most, least) = (r.max(g).max(b), r.min(g).min(b));
    let range = most - least;
    if range <= 0.0 {
        return pixel;
    }
    let saturation = range / most;
    let [rc, gc, bc] = [r, g, b].map(|v| (most - v) / range);
    let sixth = if most == r {
        bc - gc
    } else if most == g {
        2.0 + rc - bc
    } else {
        4.0 + gc - rc
    };
    let h = sixth / 6.0 + turn + 2.0;
    let h6 = (h - h.floor()) * 6.0;
    let i = h6.floor();
    let f = h6 - i;
    let p = most * (1.0 - saturation);
    let q = most * (1.0 - saturation * f);
    let t = most * (1.0 - saturation * (1.0 - f));
    let turned = match i as i32 {
        1 => [q, most, p],
        2 => [p, most, t],
        3 => [p, q, most],
        4 => [t, p, most],
        5 => [most, p, q],
        _ => [most, t, p],
    };
    // torchvision converts to bytes in this way.
    if levels {
        turned.map(|v| (v.clamp(0.0, 1.0) * 255.999).floor())
    } else {
        turned.map(|v| clamp(v * 255.0))
    }
}

impl Neighbours {
    /// Returns torchvision's kernel: a sampled Gaussian with sum 1.
    pub(crate) fn gaussian(kernel_size: [u32; 2], sigma: f64) -> Neighbours {
        let side = |size: u32| {
            let radius = size / 2;
            // The distance between places is the square root of one half, so that the exponent needs no factor.
            let lim = (f64::from(size) - 1.0) / (2.0 * 2f64.sqrt());
            let apart = if radius == 0 {
                0.0
            } else {
                lim / f64::from(radius)
            };
            let weight = |at: u32| (-(f64::from(at) * apart / sigma).powi(2)).exp();
            let sum: f64 = 1.0 + 2.0 * (1..=radius).map(weight).sum::<f64>();
            let mut weights = [0.0; WEIGHTS];
            for at in 0..=radius.min(MAX_RADIUS) {
                weights[at as usize] = (weight(at) / sum) as f32;
            }
            (radius, weights)
        };
        let ((rx, across), (ry, down)) = (side(kernel_size[0]), side(kernel_size[1]));
        Neighbours {
            radius: [rx, ry],
            weights: [across, down],
            own: 0.0,
            around: 1.0,
            keeps_edge: false,
        }
    }

    /// Extrapolates from a smoothed picture, where the middle weighs 5 and its eight neighbours 1 each.
    pub(crate) fn sharpness(factor: f32) -> Neighbours {
        let mut third = [0.0; WEIGHTS];
        third[..2].fill(1.0 / 3.0);
        // Nine parts of the mean of all nine pixels, and four of the middle.
        Neighbours {
            radius: [1, 1],
            weights: [third; 2],
            own: factor + (1.0 - factor) * (4.0 / 13.0),
            around: (1.0 - factor) * (9.0 / 13.0),
            keeps_edge: true,
        }
    }
}
