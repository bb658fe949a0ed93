//! Reading a header never panics, and its size and orientation are consistent.

#![cfg_attr(fuzzing, no_main)]

use fuzz_target::fuzz_target;
use sidestream_images::header::Header;

fuzz_target!(|bytes: &[u8]| {
    let file = Header::for_engines(bytes);
    assert!(file.is_none_or(|file| file.ends_with(&[0xFF, 0xD9])));
    let Ok(header) = Header::read(bytes) else {
        return;
    };
    let (stored, turned) = (header.size, header.turned());
    assert!(stored.width > 0 && stored.height > 0);
    let pixels = |size: sidestream_images::Size| u64::from(size.width) * u64::from(size.height);
    assert_eq!(pixels(stored), pixels(turned));
});
