//! Sample pictures that are computed from a seed, for examples, tests and measurements, without files in the
//! repository.
//!
//! They cost as much to decode as photographs: they have smooth skies, edges, texture at every scale and sensor
//! noise.

use std::fs;
use std::path::Path;

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use rayon::prelude::*;

use crate::{Error, Result, Size};

/// One of the sample pictures.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Class and number, as a path: `hills/03.jpg`.
    pub name: String,
    /// Class, from 0 to 3.
    pub label: u32,
    /// Size of the picture.
    pub size: Size,
    /// The bytes of the picture's JPEG file.
    pub bytes: Vec<u8>,
}

const CLASSES: [&str; 4] = ["city", "flowers", "hills", "sea"];
const EACH: u32 = 10;

/// Returns forty pictures of four classes, between 160 × 120 and 400 × 300 pixels, as JPEG (4:2:0, quality 85). Equal
/// seeds give equal bytes.
pub fn samples(seed: u64) -> Vec<Sample> {
    let numbers = (0..CLASSES.len() as u32 * EACH).into_par_iter();
    let made = numbers.map(|nth| {
        let (class, number) = (nth / EACH, nth % EACH);
        let mut draw =
            Draw(seed ^ (u64::from(class * EACH + number + 1)).wrapping_mul(0xD134_2543_DE82_EF95));
        let width = 160 + draw.below(241);
        let height = width * [3, 2, 3][number as usize % 3] / [4, 3, 2][number as usize % 3];
        // Every third picture has portrait format.
        let size = match number % 3 {
            2 => Size::new(width * 2 / 3, width),
            _ => Size { width, height },
        };
        let pixels = paint(class, size, &mut draw);
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes, 85);
        encoder.set_sampling_factor(SamplingFactor::F_2_2);
        let encoded = encoder.encode(
            &pixels,
            size.width as u16,
            size.height as u16,
            ColorType::Rgb,
        );
        encoded.expect("memory takes a picture whose pixels are all there");
        Sample {
            name: format!("{}/{number:02}.jpg", CLASSES[class as usize]),
            label: class,
            size,
            bytes,
        }
    });
    made.collect()
}

/// Writes the samples into a folder that [`Dataset::folder`](super::Dataset::folder) opens.
///
/// # Errors
/// [`Error::Source`] if a file or folder cannot be written.
pub fn write_samples(folder: impl AsRef<Path>, seed: u64) -> Result<()> {
    for sample in samples(seed) {
        let path = folder.as_ref().join(&sample.name);
        let written = fs::create_dir_all(path.parent().unwrap_or(folder.as_ref()))
            .and_then(|()| fs::write(&path, &sample.bytes));
        written.map_err(|error| Error::source(path.display(), error))?;
    }
    Ok(())
}

/// A small random number generator: xorshift with a multiplication (Vigna 2014).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 |= u64::from(self.0 == 0);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: u32) -> u32 {
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }

    /// Returns a number from 0 to 1.
    fn share(&mut self) -> f32 {
        self.below(1 << 16) as f32 / 65_536.0
    }
}

type Colour = [f32; 3];

fn paint(class: u32, size: Size, draw: &mut Draw) -> Vec<u8> {
    let (width, height) = (size.width as usize, size.height as usize);
    let salt = draw.next() as u32;
    let sky: [Colour; 2] = [
        [70.0 + 60.0 * draw.share(), 120.0, 200.0],
        [235.0, 200.0 + 40.0 * draw.share(), 190.0],
    ];
    let ground: Colour = [
        40.0 + 90.0 * draw.share(),
        90.0 + 60.0 * draw.share(),
        30.0 + 40.0 * draw.share(),
    ];
    let (sun_x, sun_y) = (draw.share(), 0.3 * draw.share());
    let horizon = 0.35 + 0.25 * draw.share();
    let blobs: Vec<[f32; 6]> = (0..24)
        .map(|_| std::array::from_fn(|_| draw.share()))
        .collect();
    let mut pixels = Vec::with_capacity(width * height * 3);
    // The height of the four ridges in each column.
    let ridges: Vec<[f32; 4]> = (0..width)
        .map(|column| {
            let x = column as f32 / width as f32;
            std::array::from_fn(|nth| {
                let nth = nth as f32;
                horizon + 0.15 * nth - 0.22 * texture(x * 4.0, nth * 9.0, salt)
            })
        })
        .collect();
    for row in 0..height {
        for (column, ridges) in ridges.iter().enumerate() {
            let (x, y) = (column as f32 / width as f32, row as f32 / height as f32);
            let fine = |scale: f32| texture(x * scale, y * scale, salt);
            let near_sun = 1.0 / (1.0 + 300.0 * ((x - sun_x).powi(2) + (y - sun_y).powi(2)));
            let above = || {
                let clouds = (y / horizon).min(1.0) * 0.8 + 0.3 * fine(5.0);
                mix(mix(sky[0], sky[1], clouds), [255.0, 245.0, 210.0], near_sun)
            };
            let colour = match class {
                0 => {
                    let block = (x * 9.0) as u32;
                    let roof = horizon * (0.3 + 0.9 * hash(block, 7, salt));
                    let window = !((x * 54.0) as u32).is_multiple_of(3)
                        && ((y * 48.0) as u32).is_multiple_of(2);
                    let wall = mix(
                        [60.0, 60.0, 75.0],
                        [150.0, 120.0, 100.0],
                        hash(block, 9, salt),
                    );
                    let lit = hash((x * 54.0) as u32, (y * 48.0) as u32, salt) > 0.5;
                    match (y > roof, window && lit) {
                        (false, _) => above(),
                        (true, true) => [240.0, 220.0, 140.0],
                        (true, false) => mix(wall, [20.0; 3], 0.4 * fine(40.0)),
                    }
                }
                1 => {
                    let grass = mix(ground, [20.0, 60.0, 20.0], fine(20.0));
                    flowers(&blobs, grass, x, y, height as f32 / width as f32)
                }
                2 => match (0..4).rev().find(|nth| y > ridges[*nth]) {
                    None => above(),
                    Some(nth) => {
                        let far = mix(ground, sky[1], 0.6 - 0.2 * nth as f32);
                        mix(
                            far,
                            [15.0, 30.0, 10.0],
                            0.7 * fine(12.0 + 18.0 * nth as f32),
                        )
                    }
                },
                _ => {
                    if y > horizon {
                        let depth = y - horizon;
                        let wave =
                            texture(x * 30.0 / (0.3 + 4.0 * depth), 60.0 * depth.sqrt(), salt);
                        let water = mix([15.0, 50.0, 90.0], [60.0, 130.0, 160.0], wave);
                        mix(
                            water,
                            [250.0, 240.0, 220.0],
                            if wave > 0.8 { wave } else { 0.3 * near_sun },
                        )
                    } else {
                        above()
                    }
                }
            };
            // Sensor noise: about three levels, more in dark areas.
            let noise = (hash(column as u32, row as u32, salt ^ 0xABCD) - 0.5) * 8.0;
            pixels.extend(colour.map(|level| (level + noise).clamp(0.0, 255.0) as u8));
        }
    }
    pixels
}

/// Returns the colour of the topmost blossom at a place, or `grass` if there is none.
fn flowers(blobs: &[[f32; 6]], grass: Colour, x: f32, y: f32, aspect: f32) -> Colour {
    let mut colour = grass;
    for [bx, by, size, red, blue, petals] in blobs {
        let (dx, dy) = (x - bx, (y - by) * aspect);
        let away = (dx * dx + dy * dy).sqrt() / (0.03 + 0.06 * size);
        if away >= 1.0 {
            // No petal is that long, and computing an angle is expensive.
            continue;
        }
        let petal = 0.75 + 0.25 * (dy.atan2(dx) * (4.0 + 5.0 * petals).floor()).cos();
        if away < petal {
            let middle = [250.0, 200.0, 40.0];
            let outside = [255.0 * red, 60.0, 255.0 * blue];
            let inner = if away < 0.25 { middle } else { outside };
            colour = mix(inner, [0.0; 3], 0.3 * away);
        }
    }
    colour
}

fn mix(from: Colour, to: Colour, share: f32) -> Colour {
    std::array::from_fn(|channel| {
        from[channel] + (to[channel] - from[channel]) * share.clamp(0.0, 1.0)
    })
}

/// Returns value noise of four octaves, from 0 to 1.
fn texture(x: f32, y: f32, salt: u32) -> f32 {
    let octaves = (0..4u32).map(|octave| {
        let scale = (1 << octave) as f32;
        let (x, y) = (x * scale, y * scale);
        let (left, top) = (x.floor(), y.floor());
        let ease = |share: f32| share * share * (3.0 - 2.0 * share);
        let (across, down) = (ease(x - left), ease(y - top));
        let at = |dx: u32, dy: u32| {
            hash(
                (left as i32 as u32).wrapping_add(dx),
                (top as i32 as u32).wrapping_add(dy),
                salt ^ octave,
            )
        };
        let upper = at(0, 0) + (at(1, 0) - at(0, 0)) * across;
        let lower = at(0, 1) + (at(1, 1) - at(0, 1)) * across;
        (upper + (lower - upper) * down) / (2.0 * scale)
    });
    octaves.sum::<f32>() / 0.9375
}

/// Returns a number from 0 to 1 for each pair.
fn hash(x: u32, y: u32, salt: u32) -> f32 {
    let mut h =
        x.wrapping_mul(0x9E37_79B1) ^ y.wrapping_mul(0x85EB_CA77) ^ salt.wrapping_mul(0xC2B2_AE3D);
    h = (h ^ (h >> 15)).wrapping_mul(0x2C1B_3C6D);
    h = (h ^ (h >> 12)).wrapping_mul(0x297A_2D39);
    (h ^ (h >> 15)) as f32 / u32::MAX as f32
}
