//! Augmentation as a user sees it: plans in, pictures out.

mod composed;
mod drawn;
mod parse;
mod plans;
mod refused;

use sidestream_images::augment::{Batch, Form, Kind, Layout, Operator, Plan};
use sidestream_images::{Key, Size};

pub const NUMBERS: Form = Form {
    layout: Layout::Nhwc,
    kind: Kind::F32,
};
pub const BYTES: Form = Form {
    layout: Layout::Nhwc,
    kind: Kind::U8,
};

pub fn size(width: u32, height: u32) -> Size {
    Size { width, height }
}

pub fn key(sample: u64) -> Key {
    Key {
        seed: 5,
        epoch: 1,
        sample,
    }
}

pub fn plan(operators: &[Operator]) -> Plan {
    Plan::new(operators.to_vec()).unwrap()
}

/// Returns a generator of numbers without a pattern.
pub fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
}

/// Returns a picture with smooth and sharp parts, by rows.
pub fn picture(size: Size, seed: u64) -> Vec<u8> {
    let mut noise = noise(seed + 1);
    let phase = [0; 6].map(|_| noise() as f64 / (1u64 << 53) as f64 * 6.0);
    let mut bytes = Vec::new();
    for y in 0..size.height {
        for x in 0..size.width {
            for c in 0..3 {
                let (x, y) = (f64::from(x), f64::from(y));
                let wave =
                    (x * 0.11 + phase[c]).sin() * 50.0 + (y * 0.07 + phase[c + 3]).cos() * 50.0;
                let edge = if ((x + y) as u32 / 9).is_multiple_of(2) {
                    20.0
                } else {
                    0.0
                };
                bytes.push((118.0 + wave + edge + (noise() % 8) as f64) as u8);
            }
        }
    }
    bytes
}

/// Returns pictures of one size, one after another.
pub fn pictures(size: Size, count: usize) -> (Vec<u8>, Batch) {
    let all = (0..count as u64).flat_map(|seed| picture(size, seed));
    (all.collect(), Batch::uniform(size, count, Layout::Nhwc))
}

/// Returns the result of a plan for such pictures.
pub fn made(plan: &Plan, size: Size, count: usize, form: Form) -> Vec<u8> {
    let (input, batch) = pictures(size, count);
    let keys: Vec<_> = (0..count as u64).map(key).collect();
    plan.draw(&batch, &keys)
        .unwrap()
        .host(&input, form)
        .unwrap()
}

pub fn numbers(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0;
    words.iter().map(|&word| f32::from_le_bytes(word)).collect()
}
