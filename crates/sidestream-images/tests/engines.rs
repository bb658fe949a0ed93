//! The pictures that are left to a GPU's engines: which files they are, where they are in memory, and what happens to
//! a batch that the engines refuse.
//!
//! The tests decode on the CPU in place of the engines, and write the pixels to the same places.

use std::sync::Arc;

use jpeg_encoder::{ColorType, SamplingFactor};
use sidestream_images::decode::Decoder;
use sidestream_images::decode::nvjpeg::Engines;
use sidestream_images::header::Header;
use sidestream_images::load::{ALIGN_BYTES, Batch, Loader, OnBroken, Options};
use sidestream_images::source::Dataset;
use sidestream_images::{Error, Key, Placed, Region, Size, decode};

use crate::pictures::{Jpeg, paint, png};

type Files = Vec<(String, Vec<u8>, Option<u32>)>;

/// Most of them are baseline JPEGs; some are progressive, grey or PNG.
fn files(many: u32) -> Files {
    let file = |number: u32| {
        let (width, height) = (64 + number * 7 % 40, 65 + number * 5 % 30);
        let jpeg = Jpeg {
            progressive: number % 7 == 3,
            restart: if number % 4 == 1 { 2 } else { 0 },
            ..Jpeg::default()
        };
        let bytes = match number % 7 {
            5 => {
                let pixels = paint(width, height, 3);
                let (colours, depth) = (png::ColorType::Rgb, png::BitDepth::Eight);
                png(width, height, colours, depth, &pixels)
            }
            6 => Jpeg {
                colours: ColorType::Luma,
                ..jpeg
            }
            .encode(width, height),
            _ => jpeg.encode(width, height),
        };
        (format!("{number}.jpg"), bytes, Some(number))
    };
    (0..many).map(file).collect()
}

fn is_baseline(number: u64) -> bool {
    ![3, 5, 6].contains(&(number % 7))
}

fn all(_: Key, size: Size) -> Region {
    Region {
        left: 0,
        top: 0,
        size,
    }
}

fn loader(files: Files, options: &Options) -> Loader {
    let data = Arc::new(Dataset::memory(files).unwrap());
    Loader::new(data, options.clone(), all, |bytes| Ok(vec![0; bytes])).unwrap()
}

fn some() -> Options {
    Options {
        batch: 5,
        workers: 2,
        seed: 9,
        engine_share: 1.0,
        ..Options::default()
    }
}

/// Returns the pictures as they are on the device after the engines have decoded theirs.
fn on_device(batch: &mut Batch) -> Vec<(Key, Vec<u8>)> {
    let mut device = vec![0xAA; batch.pixels_bytes() as usize];
    let (decoded, encoded) = (batch.decoded(), batch.encoded().to_vec());
    let placed = batch.placed().to_vec();
    let slab = batch.bytes();
    let uploaded = &slab[decoded.start as usize..decoded.end as usize];
    device[..uploaded.len()].copy_from_slice(uploaded);
    let range = |placed: &Placed| {
        let bytes = 3 * placed.held.size.width as usize * placed.held.size.height as usize;
        placed.offset as usize..placed.offset as usize + bytes
    };
    let mut decoder = Decoder::new(decode::Options::default());
    for one in encoded {
        let file = &slab[one.file.start as usize..one.file.end as usize];
        let (header, placed) = (decoder.look(file).unwrap(), &placed[one.picture]);
        assert!(placed.offset as usize >= uploaded.len() && placed.offset % ALIGN_BYTES == 0);
        assert_eq!((placed.held.size, placed.full), (header.size, header.size));
        let into = &mut device[range(placed)];
        decoder.decode(file, &header, placed.held, into).unwrap();
    }
    let pixels = placed.iter().map(|one| device[range(one)].to_vec());
    batch.keys().iter().copied().zip(pixels).collect()
}

fn epoch(loader: &mut Loader) -> Vec<Vec<(Key, Vec<u8>)>> {
    std::iter::from_fn(|| {
        loader
            .next()
            .unwrap()
            .map(|mut batch| on_device(&mut batch))
    })
    .collect()
}

/// Returns the samples that engines get in an epoch.
fn encoded(options: &Options) -> Vec<u64> {
    let mut loader = loader(files(70), options);
    let mut found = Vec::new();
    while let Some(batch) = loader.next().unwrap() {
        let each = batch.encoded().iter();
        found.extend(each.map(|one| batch.keys()[one.picture].sample));
    }
    found.sort_unstable();
    found
}

#[test]
fn engines_get_baseline_files_that_are_whole_by_their_marks() {
    let takes = |bytes: &[u8]| Header::for_engines(bytes).map(<[u8]>::len);
    for sampling in [
        SamplingFactor::F_1_1,
        SamplingFactor::F_2_1,
        SamplingFactor::F_1_2,
        SamplingFactor::F_2_2,
    ] {
        for restart in [0, 1, 3, 1000] {
            let jpeg = Jpeg {
                sampling,
                restart,
                ..Jpeg::default()
            };
            let mut bytes = jpeg.encode(150, 90);
            let whole = bytes.len();
            assert_eq!(takes(&bytes), Some(whole), "{sampling:?}, {restart}");
            // Cameras append previews.
            bytes.extend(b"more\xFF\xD8\xFF");
            assert_eq!(takes(&bytes), Some(whole));
            for cut in [0, 2, 20, whole / 2, whole - 1] {
                assert_eq!(takes(&bytes[..cut]), None, "{cut} of {whole}");
            }
            // The end marker, too early.
            bytes.truncate(whole * 2 / 5);
            bytes.extend([0xFF, 0xD9]);
            let is_noticed = restart == 1 || restart == 3;
            assert!(takes(&bytes).is_none() || !is_noticed, "{restart}");
        }
    }
    let restarted = Jpeg {
        restart: 3,
        ..Jpeg::default()
    };
    let mut swapped = restarted.encode(150, 90);
    let second = swapped.windows(2).position(|two| two == [0xFF, 0xD1]);
    swapped[second.unwrap() + 1] = 0xD2;
    assert_eq!(takes(&swapped), None);
    let other = [
        (ColorType::Luma, false, SamplingFactor::F_1_1),
        (ColorType::Cmyk, false, SamplingFactor::F_1_1),
        (ColorType::Rgb, true, SamplingFactor::F_2_2),
        (ColorType::Rgb, false, SamplingFactor::F_4_1),
    ];
    for (colours, progressive, sampling) in other {
        let jpeg = Jpeg {
            colours,
            progressive,
            sampling,
            ..Jpeg::default()
        };
        assert_eq!(takes(&jpeg.encode(64, 64)), None, "{colours:?}");
    }
    for (width, height, is_taken) in [(64, 64, true), (63, 64, false), (64, 63, false)] {
        let bytes = Jpeg::default().encode(width, height);
        assert_eq!(takes(&bytes).is_some(), is_taken, "{width} × {height}");
    }
    assert_eq!(takes(&files(6)[5].1), None);
    assert_eq!(takes(&[]), None);
}

#[test]
fn with_engines_the_pictures_are_the_same_whatever_the_workers() {
    let without = Options {
        engine_share: 0.0,
        ..some()
    };
    let expected = epoch(&mut loader(files(23), &without));
    for (workers, depth, engine_share) in [(1, 1, 1.0), (2, 3, 1.0), (5, 2, 0.4), (3, 3, 1.0)] {
        let options = Options {
            workers,
            depth,
            engine_share,
            ..some()
        };
        let mut loader = loader(files(23), &options);
        assert!(epoch(&mut loader) == expected, "{workers}, {depth}");
        assert_eq!((loader.loaded(), loader.broken()), (23, 0));
    }
}

#[test]
fn a_share_is_chosen_by_the_number_of_the_sample_alone() {
    let all: Vec<u64> = (0..70).filter(|number| is_baseline(*number)).collect();
    assert_eq!(encoded(&some()), all);
    let half = Options {
        engine_share: 0.5,
        ..some()
    };
    let some_of_them = encoded(&half);
    assert!((10..30).contains(&some_of_them.len()), "{some_of_them:?}");
    for (seed, batch, workers) in [(1, 5, 2), (9, 64, 3), (2, 1, 1)] {
        let other = Options {
            seed,
            batch,
            workers,
            ..half.clone()
        };
        assert_eq!(encoded(&other), some_of_them);
    }
    // A larger share contains all samples of a smaller one.
    let more = encoded(&Options {
        engine_share: 0.8,
        ..some()
    });
    assert!(some_of_them.iter().all(|sample| more.contains(sample)) && more.len() < all.len());
}

#[test]
fn pictures_to_be_turned_are_decoded_on_the_processor() {
    let turned = |number: u32| {
        let jpeg = Jpeg {
            orientation: (number % 2 == 1).then_some(6),
            ..Jpeg::default()
        };
        (number.to_string(), jpeg.encode(80, 64), None)
    };
    let mut options = some();
    for (orient, many) in [(false, 4), (true, 2)] {
        options.decode.orient = orient;
        let mut loader = loader((0..4).map(turned).collect(), &options);
        let batch = loader.next().unwrap().unwrap();
        assert_eq!(batch.encoded().len(), many);
    }
}

/// Returns files of which two are broken: one is truncated, and only a decoder detects the error in the other.
fn with_broken() -> Files {
    let mut files = files(23);
    let bytes = &mut files[7].1;
    bytes.truncate(bytes.len() * 2 / 3);
    let bytes = &mut files[8].1;
    let table = bytes.windows(2).position(|two| two == [0xFF, 0xC4]);
    // More codes of one bit than can exist.
    bytes[table.unwrap() + 5] = 9;
    assert!(Header::for_engines(bytes).is_some());
    files
}

#[test]
fn a_batch_that_engines_refuse_is_that_of_a_loader_without_any() {
    for broken in [OnBroken::Skip, OnBroken::Replace] {
        let with = Options { broken, ..some() };
        let without = Options {
            engine_share: 0.0,
            ..with.clone()
        };
        let mut expected = loader(with_broken(), &without);
        let mut refused = loader(with_broken(), &with);
        while let Some(mut one) = expected.next().unwrap() {
            let batch = refused.next().unwrap().unwrap();
            let mut other = refused.on_processor(&batch).unwrap().unwrap();
            assert!(other.encoded().is_empty());
            assert_eq!(one.broken(), other.broken());
            assert_eq!(one.placed(), other.placed());
            assert!(on_device(&mut one) == on_device(&mut other));
        }
        assert!(refused.next().unwrap().is_none());
        assert_eq!(
            (refused.loaded(), refused.broken()),
            (expected.loaded(), expected.broken())
        );
        assert_eq!(refused.broken(), 2);
    }
    let mut failing = loader(
        with_broken(),
        &Options {
            shuffle: false,
            batch: 1,
            ..some()
        },
    );
    for number in 0..9 {
        match (number, failing.next()) {
            (7, Err(Error::Picture { sample: 7, .. })) => {}
            (8, Ok(Some(batch))) => {
                assert_eq!(batch.encoded().len(), 1);
                let why = failing.on_processor(&batch).err().unwrap();
                assert!(matches!(why, Error::Picture { sample: 8, .. }), "{why}");
            }
            (number, batch) => assert!(number < 7 && batch.is_ok()),
        }
    }
}

#[test]
fn the_replacement_of_a_broken_picture_does_not_overlap_what_engines_write() {
    let options = Options {
        broken: OnBroken::Replace,
        shuffle: false,
        batch: 23,
        ..some()
    };
    let mut files = files(23);
    // The file is read before the slab is laid out, and found to be broken afterwards.
    let bytes = &mut files[5].1;
    let data = bytes.windows(4).position(|four| four == b"IDAT").unwrap();
    bytes[data + 6..].fill(0);
    let mut loader = loader(files, &options);
    let mut batch = loader.next().unwrap().unwrap();
    assert_eq!(batch.broken()[0].replaced_by, Some(6));
    let pictures = on_device(&mut batch);
    assert_eq!(pictures.len(), 23);
    assert!(pictures[5] == pictures[6]);
    let mut ends: Vec<_> = batch.placed().iter().collect();
    ends.sort_unstable_by_key(|placed| placed.offset);
    for two in ends.windows(2) {
        let size = two[0].held.size;
        assert!(two[0].offset + u64::from(size.width * size.height * 3) <= two[1].offset);
    }
}

#[test]
fn a_run_resumes_with_the_same_share_alone() {
    let mut first = loader(files(23), &some());
    let expected = epoch(&mut loader(files(23), &some()));
    first.next().unwrap();
    let state = first.state();
    let decoder = decode::identity();
    assert_eq!(
        state.decoder,
        format!("engines of nvJPEG for 1 of baseline JPEG, else {decoder}")
    );
    let mut other = loader(files(23), &some());
    other.load_state(&state).unwrap();
    assert!(epoch(&mut other) == expected[1..]);
    for engine_share in [0.0, 0.5] {
        let options = Options {
            engine_share,
            ..some()
        };
        let why = loader(files(23), &options).load_state(&state).unwrap_err();
        assert!(
            why.to_string()
                .contains("the same share of a GPU's engines"),
            "{why}"
        );
    }
    for engine_share in [-0.1, 1.5, f64::NAN] {
        let options = Options {
            engine_share,
            ..some()
        };
        let data = Arc::new(Dataset::memory(files(3)).unwrap());
        let made = Loader::new(data, options, all, |bytes| Ok(vec![0; bytes]));
        let why = made.err().unwrap().to_string();
        assert!(why.contains("give a share of the pictures"), "{why}");
    }
}

#[test]
fn without_the_library_its_wheels_are_named() {
    // SAFETY: the file does not exist.
    let opened = unsafe { Engines::open(&["/nowhere/libnvjpeg.so.13".into()]) };
    let why = opened.err().unwrap().to_string();
    assert!(why.starts_with("nvJPEG could not be loaded; tried /nowhere/libnvjpeg.so.13 ("));
    assert!(why.contains("nvidia-nvjpeg for CUDA 13, nvidia-nvjpeg-cu12 for CUDA 12"));
}

#[test]
fn the_output_of_engines_is_bounded_too() {
    for engine_share in [0.0, 0.5, 1.0] {
        let bytes_of = |max_slab_bytes| {
            let options = Options {
                engine_share,
                max_slab_bytes,
                batch: 20,
                ..some()
            };
            let batch = loader(files(20), &options).next()?;
            Ok(batch.unwrap().pixels_bytes())
        };
        let all = bytes_of(2 << 30).unwrap();
        assert!(bytes_of(all).is_ok());
        let refused: Result<u64, Error> = bytes_of(all * 3 / 4);
        assert!(matches!(refused, Err(Error::Slab { .. })), "{refused:?}");
    }
}
