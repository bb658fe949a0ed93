//! Parsing operators never panics. A plan of the parsed operators draws and computes a picture without a panic, and
//! never needs a region that the picture does not have.

#![cfg_attr(fuzzing, no_main)]

use fuzz_target::fuzz_target;
use sidestream_images::augment::{Batch, Form, Kind, Layout, Plan, parse};
use sidestream_images::{Key, Size};

fuzz_target!(|input: (u8, u8, u64, &str)| {
    let (width, height, seed, text) = input;
    let Ok(plan) = parse(text).and_then(Plan::new) else {
        return;
    };
    let full = Size {
        width: u32::from(width) + 1,
        height: u32::from(height) + 1,
    };
    let key = Key {
        seed,
        epoch: 0,
        sample: 0,
    };
    let region = plan.region(key, full).expect("a small picture");
    assert!(region.size.width > 0 && region.left + region.size.width <= full.width);
    assert!(region.size.height > 0 && region.top + region.size.height <= full.height);
    // A blur may be larger than the picture, which is refused with an error.
    let Ok(drawn) = plan.draw(&Batch::uniform(full, 1, Layout::Nhwc), &[key]) else {
        return;
    };
    let (size, between) = (drawn.size(), drawn.needs().between_bytes);
    if u64::from(size.width) * u64::from(size.height) > 1 << 12 || between > [1 << 18; 2] {
        return;
    }
    let form = Form {
        layout: Layout::Nchw,
        kind: if plan.is_numeric() {
            Kind::F32
        } else {
            Kind::U8
        },
    };
    let pixels = vec![200; 3 * (full.width * full.height) as usize];
    let values = drawn.host(&pixels, form).expect("all of the picture");
    assert_eq!(values.len(), drawn.bytes(form));
});
