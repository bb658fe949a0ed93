//! Statistics of a whole picture, for contrast, automatic contrast and equalisation.
//!
//! They are integer sums, which do not depend on the order in which threads add.

use super::step::gray;

/// Number of words for one picture: the sum of the greys in 65,536ths, which takes two, and a histogram of each
/// colour.
pub(crate) const WORDS: usize = 2 + 3 * 256 + 2;

/// Adds a pixel to the words.
pub(crate) fn add(words: &mut [u32], pixel: [f32; 3], levels: bool) {
    let sum = u64::from(words[0]) | u64::from(words[1]) << 32;
    let sum = sum + u64::from(fixed(gray(pixel, levels)));
    (words[0], words[1]) = (sum as u32, (sum >> 32) as u32);
    for (at, value) in pixel.into_iter().enumerate() {
        let level = value.round_ties_even().clamp(0.0, 255.0) as usize;
        words[2 + 256 * at + level] += 1;
    }
}

fn fixed(value: f32) -> u32 {
    (value * 65_536.0).round_ties_even() as u32
}

/// The statistics that the words contain.
pub(crate) struct Statistics {
    pub mean: f32,
    pub low: [f32; 3],
    /// Highest minus lowest value, divided by 255. If all values are equal, `low` is 0 and this is 1.
    pub span: [f32; 3],
    pub equalized: [[u8; 256]; 3],
}

impl Statistics {
    pub(crate) fn of(words: &[u32], pixels: u32) -> Statistics {
        let sum = u64::from(words[0]) | u64::from(words[1]) << 32;
        let mut all = Statistics {
            mean: (sum as f64 / 65_536.0 / f64::from(pixels.max(1))) as f32,
            low: [0.0; 3],
            span: [1.0; 3],
            equalized: [[0; 256]; 3],
        };
        for at in 0..3 {
            let histogram = &words[2 + 256 * at..][..256];
            let is_there = |&&count: &&u32| count > 0;
            let low = histogram
                .iter()
                .take_while(|count| !is_there(count))
                .count();
            let high = 255
                - histogram
                    .iter()
                    .rev()
                    .take_while(|count| !is_there(count))
                    .count()
                    .min(255);
            if low < high {
                all.low[at] = low as f32;
                all.span[at] = (high - low) as f32 * (1.0 / 255.0);
            }
            // Pillow's rule, as in torchvision: the last level that occurs does not count.
            let step = (pixels - histogram[high]) / 255;
            let mut below = 0u32;
            for (level, out) in all.equalized[at].iter_mut().enumerate() {
                *out = match step {
                    0 => level as u8,
                    _ => ((below + step / 2) / step).min(255) as u8,
                };
                below += histogram[level];
            }
        }
        all
    }
}
