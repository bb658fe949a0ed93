//! The bytes of a picture in, rows of red, green and blue out, or an error.

use jpeg_encoder::{ColorType, SamplingFactor};
use sidestream_images::decode::{Damage, Decoder, Options};
use sidestream_images::header::{Coding, Format, Header, Orientation};
use sidestream_images::{Broken, Region, Size};

use crate::pictures::{Draw, Jpeg, paint, png};

fn whole(size: Size) -> Region {
    Region {
        left: 0,
        top: 0,
        size,
    }
}

/// Decodes a whole picture.
fn decode_with(bytes: &[u8], options: Options) -> Result<(Size, Vec<u8>), Broken> {
    let mut decoder = Decoder::new(options);
    let header = decoder.look(bytes)?;
    let size = decoder.size(&header);
    let mut pixels = vec![0; size.width as usize * size.height as usize * 3];
    decoder.decode(bytes, &header, whole(size), &mut pixels)?;
    Ok((size, pixels))
}

fn decode(bytes: &[u8]) -> Result<(Size, Vec<u8>), Broken> {
    decode_with(bytes, Options::default())
}

/// Returns the mean difference of two pictures, in levels.
fn difference(left: &[u8], right: &[u8]) -> f64 {
    assert_eq!(left.len(), right.len());
    let sum: u64 = left
        .iter()
        .zip(right)
        .map(|(a, b)| u64::from(a.abs_diff(*b)))
        .sum();
    sum as f64 / left.len() as f64
}

/// The ways in which most JPEG files are encoded.
fn encodings() -> Vec<(&'static str, Jpeg)> {
    let base = Jpeg::default;
    vec![
        ("4:2:0", base()),
        (
            "4:4:4",
            Jpeg {
                sampling: SamplingFactor::F_1_1,
                ..base()
            },
        ),
        (
            "4:2:2",
            Jpeg {
                sampling: SamplingFactor::F_2_1,
                ..base()
            },
        ),
        (
            "4:4:0",
            Jpeg {
                sampling: SamplingFactor::F_1_2,
                ..base()
            },
        ),
        (
            "progressive",
            Jpeg {
                progressive: true,
                ..base()
            },
        ),
        (
            "restart markers",
            Jpeg {
                restart: 3,
                ..base()
            },
        ),
        (
            "grey",
            Jpeg {
                colours: ColorType::Luma,
                ..base()
            },
        ),
    ]
}

#[test]
fn each_encoding_gives_the_picture_that_was_encoded() {
    for (name, jpeg) in encodings() {
        let (size, pixels) = decode(&jpeg.encode(83, 61)).expect(name);
        assert_eq!(
            size,
            Size {
                width: 83,
                height: 61
            },
            "{name}"
        );
        let painted = match jpeg.colours {
            ColorType::Luma => paint(83, 61, 1)
                .iter()
                .flat_map(|level| [*level; 3])
                .collect(),
            _ => paint(83, 61, 3),
        };
        let difference = difference(&pixels, &painted);
        assert!(difference < 6.0, "{name}: {difference}");
    }
}

#[test]
fn inks_become_light() {
    for colours in [ColorType::Cmyk, ColorType::CmykAsYcck] {
        let jpeg = Jpeg {
            colours,
            sampling: SamplingFactor::F_1_1,
            ..Jpeg::default()
        };
        let (_, pixels) = decode(&jpeg.encode(40, 32)).unwrap();
        let painted = paint(40, 32, 4);
        // Files from Adobe, and so nearly all CMYK files, have inverted inks; the encoder inverts them.
        let light = painted.chunks_exact(4).flat_map(|ink| {
            [0, 1, 2].map(|channel| {
                ((255 - u32::from(ink[channel])) * (255 - u32::from(ink[3])) / 255) as u8
            })
        });
        let light: Vec<u8> = light.collect();
        let difference = difference(&pixels, &light);
        assert!(difference < 4.0, "{colours:?}: {difference}");
    }
}

#[test]
fn a_region_has_the_bytes_of_the_whole_picture() {
    let mut draw = Draw::new(11);
    for (name, jpeg) in encodings() {
        let bytes = jpeg.encode(150, 97);
        let (size, pixels) = decode(&bytes).unwrap();
        let mut decoder = Decoder::new(Options::default());
        let header = decoder.look(&bytes).unwrap();
        for _ in 0..40 {
            let (left, top) = (draw.below(150) as u32, draw.below(97) as u32);
            let width = 1 + draw.below(u64::from(150 - left)) as u32;
            let height = 1 + draw.below(u64::from(97 - top)) as u32;
            let region = Region {
                left,
                top,
                size: Size { width, height },
            };
            let mut part = vec![0; (width * height * 3) as usize];
            decoder.decode(&bytes, &header, region, &mut part).unwrap();
            assert!(part == crop(&pixels, size, region), "{name}: {region:?}");
        }
    }
}

fn crop(pixels: &[u8], size: Size, region: Region) -> Vec<u8> {
    let rows = region.top..region.top + region.size.height;
    let rows = rows.flat_map(|row| {
        let at = ((row * size.width + region.left) * 3) as usize;
        &pixels[at..at + region.size.width as usize * 3]
    });
    rows.copied().collect()
}

#[test]
fn png_is_exact_in_every_form() {
    use png::BitDepth::{Eight, Four, Sixteen};
    use png::ColorType::{Grayscale, GrayscaleAlpha, Indexed, Rgb, Rgba};
    let check = |colours, depth, data: &[u8], expected: &[u8]| {
        let bytes = png(2, 2, colours, depth, data);
        assert_eq!(decode(&bytes).unwrap().1, expected, "{colours:?} {depth:?}");
        // Only the lower right pixel.
        let mut decoder = Decoder::new(Options::default());
        let header = decoder.look(&bytes).unwrap();
        let corner = Region {
            left: 1,
            top: 1,
            size: Size {
                width: 1,
                height: 1,
            },
        };
        let mut one = [0; 3];
        decoder.decode(&bytes, &header, corner, &mut one).unwrap();
        assert_eq!(one, expected[9..]);
    };
    check(
        Rgb,
        Eight,
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    );
    check(
        Grayscale,
        Eight,
        &[1, 20, 30, 255],
        &[1, 1, 1, 20, 20, 20, 30, 30, 30, 255, 255, 255],
    );
    check(
        GrayscaleAlpha,
        Eight,
        &[1, 0, 2, 9, 3, 255, 4, 7],
        &[1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4],
    );
    check(
        Rgba,
        Eight,
        &[1, 2, 3, 0, 4, 5, 6, 1, 7, 8, 9, 2, 10, 11, 12, 3],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    );
    check(
        Grayscale,
        Sixteen,
        &[9, 255, 8, 0, 7, 1, 6, 200],
        &[9, 9, 9, 8, 8, 8, 7, 7, 7, 6, 6, 6],
    );
    check(
        Indexed,
        Four,
        &[0x01, 0x23],
        &[250, 10, 20, 0, 200, 30, 7, 8, 9, 40, 50, 60],
    );
}

#[test]
fn a_picture_is_turned_if_asked_to() {
    // A bright L in the upper left corner shows each orientation.
    for number in 1..=8 {
        let jpeg = Jpeg {
            orientation: Some(number),
            sampling: SamplingFactor::F_1_1,
            ..Jpeg::default()
        };
        let bytes = jpeg.encode(48, 32);
        let (stored_size, stored) = decode(&bytes).unwrap();
        assert_eq!(
            stored_size,
            Size {
                width: 48,
                height: 32
            }
        );
        let oriented = Options {
            orient: true,
            ..Options::default()
        };
        let (size, turned) = decode_with(&bytes, oriented).unwrap();
        assert_eq!(size.width, if number < 5 { 48 } else { 32 });
        // The meaning of EXIF's values: which side of the shown picture is row 0 and column 0 of the stored one.
        let shown = |x: u32, y: u32| -> (u32, u32) {
            match number {
                1 => (x, y),
                2 => (47 - x, y),
                3 => (47 - x, 31 - y),
                4 => (x, 31 - y),
                5 => (y, x),
                6 => (31 - y, x),
                7 => (31 - y, 47 - x),
                _ => (y, 47 - x),
            }
        };
        for (x, y) in [(0, 0), (47, 0), (5, 30), (20, 11)] {
            let (to_x, to_y) = shown(x, y);
            let from = ((y * 48 + x) * 3) as usize;
            let to = ((to_y * size.width + to_x) * 3) as usize;
            assert_eq!(
                turned[to..to + 3],
                stored[from..from + 3],
                "{number} at {x}, {y}"
            );
        }
        let mut decoder = Decoder::new(oriented);
        let header = decoder.look(&bytes).unwrap();
        let region = Region {
            left: 3,
            top: 7,
            size: Size {
                width: 20,
                height: 9,
            },
        };
        let mut part = vec![0; 540];
        decoder.decode(&bytes, &header, region, &mut part).unwrap();
        assert!(part == crop(&turned, size, region), "{number}");
    }
}

#[test]
fn headers_say_what_is_in_the_file() {
    let jpeg = Jpeg {
        progressive: true,
        restart: 5,
        orientation: Some(6),
        ..Jpeg::default()
    };
    let header = Header::read(&jpeg.encode(70, 50)).unwrap();
    let Format::Jpeg {
        coding,
        sampling,
        restart_interval,
        ..
    } = header.format
    else {
        panic!("{header:?}");
    };
    assert_eq!(
        (coding, sampling, restart_interval),
        (Coding::Progressive, (2, 2), 5)
    );
    assert_eq!(
        (header.orientation, header.precision_bits, header.channels),
        (Orientation::Right, 8, 3)
    );
    assert_eq!(
        header.turned(),
        Size {
            width: 50,
            height: 70
        }
    );
    let header = Header::read(
        &Jpeg {
            colours: ColorType::Cmyk,
            ..Jpeg::default()
        }
        .encode(8, 8),
    )
    .unwrap();
    assert!(
        matches!(
            header.format,
            Format::Jpeg {
                adobe_transform: Some(0),
                ..
            }
        ),
        "{header:?}"
    );
    let header = Header::read(&png(
        2,
        2,
        png::ColorType::Indexed,
        png::BitDepth::Eight,
        &[0; 4],
    ))
    .unwrap();
    assert!(
        matches!(header.format, Format::Png { palette: true, .. }),
        "{header:?}"
    );
}

/// Returns a valid JPEG with another size in its header.
fn with_size(width: u16, height: u16, progressive: bool) -> Vec<u8> {
    resized(
        width,
        height,
        Jpeg {
            progressive,
            ..Jpeg::default()
        },
    )
}

fn resized(width: u16, height: u16, jpeg: Jpeg) -> Vec<u8> {
    let mut bytes = jpeg.encode(64, 64);
    let code = if jpeg.progressive { 0xC2 } else { 0xC0 };
    let frame = bytes
        .windows(2)
        .position(|two| two == [0xFF, code])
        .unwrap();
    bytes[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    bytes[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    bytes
}

#[test]
fn bombs_are_refused_by_their_header() {
    for progressive in [false, true] {
        let refused = decode(&with_size(65_000, 65_000, progressive)).unwrap_err();
        let size = Size {
            width: 65_000,
            height: 65_000,
        };
        assert_eq!(
            refused,
            Broken::TooLarge {
                size,
                max_pixels: 178_956_970
            }
        );
    }
    let small = Options {
        max_pixels: 1_000,
        ..Options::default()
    };
    let refused = decode_with(&Jpeg::default().encode(40, 26), small).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("at most 1000 pixels are allowed (`max_pixels`)"),
        "{refused}"
    );
    assert!(decode_with(&Jpeg::default().encode(40, 25), small).is_ok());
    // Within the limit, but without the data: an error, and no more memory than the limit allows.
    assert!(decode(&with_size(4_000, 4_000, false)).is_err());
}

/// Returns a grey progressive file whose header has this size, and which repeats the second scan, each time with a
/// few bytes.
fn with_scans(side: u16, scans: usize, bytes_each: usize) -> Vec<u8> {
    let grey = Jpeg {
        colours: ColorType::Luma,
        progressive: true,
        ..Jpeg::default()
    };
    let mut bytes = resized(side, side, grey);
    let begins = |two: &[u8]| two == [0xFF, 0xDA];
    let first = bytes.windows(2).position(begins).unwrap();
    let second = first + 2 + bytes[first + 2..].windows(2).position(begins).unwrap();
    let segment = bytes[second..second + 10].to_vec();
    bytes.truncate(second);
    for _ in 0..scans {
        bytes.extend(&segment);
        bytes.extend(vec![0; bytes_each]);
    }
    bytes.extend([0xFF, 0xD9]);
    bytes
}

#[test]
fn the_work_of_scans_is_bounded_by_the_bytes_of_the_file() {
    let accept = Options {
        damage: Damage::Accept,
        ..Options::default()
    };
    // The second file is just long enough for a code of each block.
    for (scans, bytes_each, options) in [(99, 2, accept), (99, 200, Options::default())] {
        let bytes = with_scans(2_000, scans, bytes_each);
        let refused = decode_with(&bytes, options).map(|_| ());
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.starts_with("it is damaged: its scans (100) visit ")
                && refused.contains(" are decoded for a file of this length"),
            "{refused}"
        );
    }
    // Too many scans are refused however long they are.
    let refused = decode_with(&with_scans(200, 200, 300), Options::default());
    assert_eq!(
        refused.unwrap_err().to_string(),
        "it is damaged: it has 201 scans, and at most 100 are decoded"
    );
    // A single scan of so few bytes is what a truncated file has.
    assert!(decode_with(&with_scans(200, 1, 2), accept).is_ok());
    // A marker hides scans: some decoders skip its segment, others do not.
    let mut hidden = with_scans(2_000, 99, 2);
    let first = hidden.windows(2).position(|two| two == [0xFF, 0xDA]);
    let at = first.unwrap() + 30;
    hidden.splice(at..at, [0xFF, 0x02, 0xFF, 0xFF]);
    let refused = decode_with(&hidden, accept).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("its scans (100)"), "{refused}");
}

#[test]
fn as_many_scans_as_encoders_write_are_decoded() {
    let flat = |channels: usize| vec![77; 600 * 400 * channels];
    for (colours, channels, scans) in [
        (ColorType::Luma, 1, 64),
        (ColorType::Luma, 1, 10),
        (ColorType::Rgb, 3, 33),
        (ColorType::Rgb, 3, 4),
    ] {
        for pixels in [flat(channels), paint(600, 400, channels as u32)] {
            let mut bytes = Vec::new();
            let mut encoder = jpeg_encoder::Encoder::new(&mut bytes, 30);
            encoder.set_progressive_scans(scans);
            encoder.encode(&pixels, 600, 400, colours).unwrap();
            let what = format!("{colours:?} in {scans} scans");
            let (_, whole) = decode(&bytes).expect(&what);
            assert_eq!(whole.len(), 600 * 400 * 3);
            for part in [1, 2, 3] {
                let accept = Options {
                    damage: Damage::Accept,
                    ..Options::default()
                };
                let cut = &bytes[..bytes.len() * part / 4];
                decode_with(cut, accept).expect(&what);
            }
        }
    }
}

#[test]
fn what_is_not_a_picture_is_reported() {
    let check = |bytes: &[u8], expected: Broken| assert_eq!(decode(bytes), Err(expected));
    check(b"", Broken::Empty);
    check(b"\xFF\xD8", Broken::Unknown);
    check(b"GIF89a", Broken::Unknown);
    check(b"\xFF\xD8\xFF", Broken::Truncated);
    check(b"\x89PNG\r\n\x1a\n\0\0", Broken::Truncated);
    let twelve = {
        let mut bytes = Jpeg::default().encode(16, 16);
        let at = bytes
            .windows(2)
            .position(|two| two == [0xFF, 0xC0])
            .unwrap();
        bytes[at + 4] = 12;
        bytes
    };
    assert!(matches!(decode(&twelve), Err(Broken::Unsupported(_))));
}

#[test]
fn a_file_that_was_cut_is_refused_at_every_length() {
    for (name, jpeg) in encodings() {
        let bytes = jpeg.encode(57, 43);
        for length in (0..bytes.len() - 2).step_by(7) {
            assert!(
                decode(&bytes[..length]).is_err(),
                "{name}: {length} of {} bytes",
                bytes.len()
            );
        }
    }
    let bytes = png(
        30,
        30,
        png::ColorType::Rgb,
        png::BitDepth::Eight,
        &paint(30, 30, 3),
    );
    for length in 0..bytes.len() - 12 {
        assert!(
            decode(&bytes[..length]).is_err(),
            "PNG: {length} of {} bytes",
            bytes.len()
        );
    }
}

#[test]
fn a_cut_file_is_accepted_on_request() {
    let accept = Options {
        damage: Damage::Accept,
        ..Options::default()
    };
    let bytes = Jpeg::default().encode(200, 160);
    let (size, pixels) = decode_with(&bytes[..bytes.len() * 3 / 4], accept).unwrap();
    let upper = size.width as usize * 60 * 3;
    assert!(difference(&pixels[..upper], &decode(&bytes).unwrap().1[..upper]) < 0.01);
}

#[test]
fn after_any_damage_the_decoder_decodes_good_pictures_as_before() {
    let mut draw = Draw::new(5);
    let seeds: Vec<Vec<u8>> = encodings()
        .iter()
        .map(|(_, jpeg)| jpeg.encode(64, 48))
        .collect();
    let mut seeds = seeds;
    seeds.push(png(
        20,
        20,
        png::ColorType::Rgba,
        png::BitDepth::Eight,
        &paint(20, 20, 4),
    ));
    let good = seeds[0].clone();
    let expected = decode(&good).unwrap().1;
    let mut decoder = Decoder::new(Options {
        max_pixels: 1 << 16,
        ..Options::default()
    });
    let mut refused = 0;
    for round in 0..1_500 {
        let mut bytes = seeds[draw.below(seeds.len() as u64) as usize].clone();
        for _ in 0..1 + draw.below(4) {
            // Half of the changes are in the header, where they have most effect.
            let end = if draw.below(2) == 0 {
                bytes.len().min(700)
            } else {
                bytes.len()
            };
            let at = draw.below(end as u64) as usize;
            bytes[at] = draw.next() as u8;
        }
        bytes.truncate(
            bytes.len()
                - if draw.below(4) == 0 {
                    draw.below(bytes.len() as u64) as usize
                } else {
                    0
                },
        );
        let decoded = decoder.look(&bytes).and_then(|header| {
            let size = decoder.size(&header);
            let mut pixels = vec![0; size.width as usize * size.height as usize * 3];
            decoder.decode(&bytes, &header, whole(size), &mut pixels)
        });
        assert!(
            !matches!(decoded, Err(Broken::Panicked(_))),
            "{round}: {decoded:?}"
        );
        refused += u32::from(decoded.is_err());
        if round % 10 == 0 {
            let header = decoder.look(&good).unwrap();
            let mut pixels = vec![0; expected.len()];
            decoder
                .decode(&good, &header, whole(header.size), &mut pixels)
                .unwrap();
            assert!(pixels == expected, "after {round}");
        }
    }
    assert!(refused > 300, "{refused} of 1500 were refused");
}
