//! Compares operators that are composed and sampled once with the exact map: in double precision, with 16 x 16
//! samples per pixel of the result.

use sidestream_images::augment::{Interpolation, Operator, Target};

use super::{NUMBERS, made, numbers, picture, plan, size};

const SIDE: u32 = 32;
const FULL: u32 = 260;
const DEGREES: f64 = 30.0;

/// The middle is cut out, shrunk to a side of [`SIDE`], and rotated if `turned`.
fn composed(scale: f64, turned: bool) -> Vec<f32> {
    let part = (f64::from(SIDE) * scale).round() as u32;
    let mut operators = vec![
        Operator::CenterCrop {
            size: size(part, part),
        },
        Operator::Resize {
            size: Target::Exact(size(SIDE, SIDE)),
            antialias: true,
        },
        Operator::ToDtype { scale: false },
    ];
    if turned {
        operators.push(Operator::RandomRotation {
            degrees: [DEGREES; 2],
            interpolation: Interpolation::Bilinear,
            expand: false,
            center: None,
            fill: [0.0; 3],
        });
    }
    numbers(&made(&plan(&operators), size(FULL, FULL), 1, NUMBERS))
}

/// Computes the result by definition: a triangle filter with a width of two pixels of the result, over the
/// interpolated picture. Pixels outside the cropped part are black, and a partly covered pixel counts by its share.
fn exact(scale: f64, turned: bool) -> Vec<f64> {
    let bytes = picture(size(FULL, FULL), 0);
    let part = (f64::from(SIDE) * scale).round();
    let first = ((f64::from(FULL) - part) / 2.0).round_ties_even();
    let (sin, cos) = if turned {
        DEGREES.to_radians().sin_cos()
    } else {
        (0.0, 1.0)
    };
    let ratio = part / f64::from(SIDE);
    let value = |x: f64, y: f64| {
        let inside = |at: f64| (at - 0.5).clamp(0.0, part - 1.0);
        let (x, y) = (inside(x), inside(y));
        let (left, top) = (x.floor(), y.floor());
        let pixel = |dx: f64, dy: f64, c: usize| {
            let along = |at: f64| (at.min(part - 1.0) + first) as usize;
            f64::from(bytes[(along(top + dy) * FULL as usize + along(left + dx)) * 3 + c])
        };
        let (fx, fy) = (x - left, y - top);
        [0, 1, 2].map(|c| {
            let upper = pixel(0.0, 0.0, c) * (1.0 - fx) + pixel(1.0, 0.0, c) * fx;
            let lower = pixel(0.0, 1.0, c) * (1.0 - fx) + pixel(1.0, 1.0, c) * fx;
            upper * (1.0 - fy) + lower * fy
        })
    };
    let middle = f64::from(SIDE) / 2.0;
    let place = |x: f64, y: f64| {
        let (x, y) = (x - middle, y - middle);
        [cos * x - sin * y + middle, sin * x + cos * y + middle]
    };
    let mut all = Vec::new();
    for row in 0..SIDE {
        for column in 0..SIDE {
            let (mut sum, mut total, mut covered) = ([0.0; 3], 0.0, 0.0);
            for j in 0..32 {
                for i in 0..32 {
                    let (u, v) = (
                        (f64::from(i) + 0.5) / 16.0 - 1.0,
                        (f64::from(j) + 0.5) / 16.0 - 1.0,
                    );
                    let [x, y] = place(f64::from(column) + 0.5 + u, f64::from(row) + 0.5 + v);
                    let is_inside = [x, y].iter().all(|at| (0.0..f64::from(SIDE)).contains(at));
                    if u.abs() < 0.5 && v.abs() < 0.5 {
                        covered += f64::from(u8::from(is_inside)) / 256.0;
                    }
                    if ratio > 1.0 {
                        let weight = (1.0 - u.abs()) * (1.0 - v.abs());
                        let at = value(x * ratio, y * ratio);
                        (0..3).for_each(|c| sum[c] += weight * at[c]);
                        total += weight;
                    }
                }
            }
            if ratio <= 1.0 {
                let [x, y] = place(f64::from(column) + 0.5, f64::from(row) + 0.5);
                (sum, total) = (value(x * ratio, y * ratio), 1.0);
            }
            all.extend(sum.map(|sum| sum / total * covered));
        }
    }
    all
}

fn psnr(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let squares = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2));
    let mean = squares.sum::<f64>() / a.len() as f64;
    10.0 * (255.0 * 255.0 / mean).log10()
}

#[test]
fn a_composed_map_is_near_the_exact_one() {
    for scale in [1.0, 1.5, 2.0, 3.0, 5.0, 8.0] {
        for turned in [false, true] {
            let found = psnr(&composed(scale, turned), &exact(scale, turned));
            println!("scale {scale}, turned {turned}: {found:.1} dB");
            assert!(
                found >= 40.0,
                "scale {scale}, turned {turned}: {found:.1} dB"
            );
        }
    }
}
