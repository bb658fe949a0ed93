//! Reading operators never panics, and a plan that was made of them draws a picture: it never panics, and never needs a part that the
//! picture does not have.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestream_images::augment::{Batch, Layout, Plan, parse};
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
    // A blur may be larger than the picture; that is refused in words.
    let _ = plan.draw(&Batch::uniform(full, 1, Layout::Nhwc), &[key]);
});
