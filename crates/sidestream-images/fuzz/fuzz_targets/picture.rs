//! Decoding never panics, and a decoder that was given any input then decodes a good picture as before. A region of a
//! picture that can be decoded as a whole has the same bytes as in the whole.

#![cfg_attr(fuzzing, no_main)]

use std::sync::OnceLock;

use fuzz_target::fuzz_target;
use sidestream_images::decode::{Damage, Decoder, Options};
use sidestream_images::source::samples;
use sidestream_images::{Broken, Region, Size};

fuzz_target!(|input: (u8, u16, u16, &[u8])| {
    static GOOD: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    let (choice, left, top, bytes) = input;
    let mut decoder = Decoder::new(Options {
        max_pixels: 1 << 20,
        damage: if choice & 1 == 0 {
            Damage::Refuse
        } else {
            Damage::Accept
        },
        orient: choice & 2 == 2,
        ..Options::default()
    });
    let (good, expected) = GOOD.get_or_init(|| {
        let good = samples(1).swap_remove(0).bytes;
        let pixels = all(&mut Decoder::new(Options::default()), &good);
        (good, pixels.expect("a good picture"))
    });
    let whole = all(&mut decoder, bytes);
    assert!(!matches!(whole, Err(Broken::Panicked(_))), "{whole:?}");
    if let Ok(pixels) = &whole
        && choice & 1 == 0
    {
        let header = decoder.look(bytes).expect("it was decoded");
        let size = decoder.size(&header);
        let (left, top) = (u32::from(left) % size.width, u32::from(top) % size.height);
        let part = Size {
            width: size.width - left,
            height: size.height - top,
        };
        let mut into = vec![0; (part.width * part.height * 3) as usize];
        decoder
            .decode(
                bytes,
                &header,
                Region {
                    left,
                    top,
                    size: part,
                },
                &mut into,
            )
            .expect("the whole was decoded");
        for (row, got) in into.chunks_exact(part.width as usize * 3).enumerate() {
            let at = ((top as usize + row) * size.width as usize + left as usize) * 3;
            assert_eq!(got, &pixels[at..at + got.len()]);
        }
    }
    assert_eq!(&all(&mut decoder, good).expect("a good picture"), expected);
});

fn all(decoder: &mut Decoder, bytes: &[u8]) -> Result<Vec<u8>, Broken> {
    let header = decoder.look(bytes)?;
    let size = decoder.size(&header);
    let mut pixels = vec![0; (size.width * size.height * 3) as usize];
    decoder.decode(
        bytes,
        &header,
        Region {
            left: 0,
            top: 0,
            size,
        },
        &mut pixels,
    )?;
    Ok(pixels)
}
