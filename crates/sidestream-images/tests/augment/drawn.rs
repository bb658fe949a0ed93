//! Single operators with fixed arguments, compared with the results of torchvision's functions for the same picture,
//! which `tests/data/torchvision.py` wrote to a file.

use std::collections::BTreeMap;

use sidestream_images::augment::{Batch, Interpolation, Layout, Operator, Plan, Target};
use sidestream_images::{Key, Size};

use super::{BYTES, key, plan, size};

const FILL: [f32; 3] = [10.0, 20.0, 30.0];

/// By name: the size, and the bytes by rows.
fn known() -> BTreeMap<&'static str, (Size, Vec<u8>)> {
    let text = include_str!("../data/torchvision.txt");
    let line = |line: &'static str| {
        let [name, width, height, hex] = *line.split(' ').collect::<Vec<_>>() else {
            panic!("a line has four words");
        };
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes = (0..hex.len()).step_by(2).map(byte).collect();
        (
            name,
            (size(width.parse().unwrap(), height.parse().unwrap()), bytes),
        )
    };
    text.lines().map(line).collect()
}

fn made(plan: &Plan, key: Key) -> (Size, Vec<u8>) {
    let (size, bytes) = known().remove("input").unwrap();
    let batch = Batch::uniform(size, 1, Layout::Nhwc);
    let drawn = plan.draw(&batch, &[key]).unwrap();
    (drawn.size(), drawn.host(&bytes, BYTES).unwrap())
}

/// Returns how many values differ by more than a level.
fn differences(found: &[u8], expected: &[u8]) -> usize {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs.filter(|(a, b)| a.abs_diff(**b) > 1).count()
}

/// Checks that all values are within a level of torchvision's, except at most `others` of them, where the last digit
/// decides which pixel is the nearest.
fn check(name: &str, operators: &[Operator], others: usize) {
    let (expected_size, expected) = known().remove(name).unwrap();
    for plan in [plan(operators), plan(operators).unfused()] {
        let (found_size, found) = made(&plan, key(0));
        assert_eq!(found_size, expected_size, "{name}");
        let wrong = differences(&found, &expected);
        assert!(wrong <= others, "{name}: {wrong} of {} values", found.len());
    }
}

fn resize(width: u32, height: u32) -> Operator {
    Operator::Resize {
        size: Target::Exact(size(width, height)),
        antialias: true,
    }
}

fn rotation(degrees: f64, interpolation: Interpolation) -> Operator {
    Operator::RandomRotation {
        degrees: [degrees; 2],
        interpolation,
        expand: false,
        center: None,
        fill: FILL,
    }
}

#[test]
fn sizes_are_torchvisions() {
    check("resize_down", &[resize(12, 9)], 0);
    check("resize_far_down", &[resize(3, 4)], 0);
    check("resize_one_way", &[resize(10, 40)], 0);
    check("resize_up", &[resize(50, 37)], 0);
    let plain = Operator::Resize {
        size: Target::Exact(size(12, 9)),
        antialias: false,
    };
    check("resize_plain", &[plain], 0);
    let middle = Operator::CenterCrop { size: size(12, 12) };
    check("crop_and_resize", &[middle, resize(5, 5)], 0);
    check(
        "center_crop",
        &[Operator::CenterCrop { size: size(11, 30) }],
        0,
    );
}

#[test]
fn maps_are_torchvisions() {
    let (nearest, bilinear) = (Interpolation::Nearest, Interpolation::Bilinear);
    check(
        "horizontal_flip",
        &[Operator::RandomHorizontalFlip { p: 1.0 }],
        0,
    );
    check(
        "vertical_flip",
        &[Operator::RandomVerticalFlip { p: 1.0 }],
        0,
    );
    check("rotate_nearest", &[rotation(30.0, nearest)], 6);
    check("rotate_bilinear", &[rotation(30.0, bilinear)], 0);
    let rotation = |degrees: f64, expand, center| Operator::RandomRotation {
        degrees: [degrees; 2],
        interpolation: bilinear,
        expand,
        center,
        fill: FILL,
    };
    check("rotate_whole", &[rotation(-50.0, true, None)], 0);
    check(
        "rotate_about_a_corner",
        &[rotation(12.0, false, Some([2.0, 3.0]))],
        0,
    );
    let affine =
        |degrees: f64, scale: f64, [x, y]: [f64; 2], interpolation| Operator::RandomAffine {
            degrees: [degrees; 2],
            translate: None,
            scale: Some([scale; 2]),
            shear: [x, x, y, y],
            interpolation,
            center: None,
            fill: FILL,
        };
    check("affine", &[affine(20.0, 1.3, [10.0, 5.0], bilinear)], 0);
    check(
        "affine_nearest",
        &[affine(-20.0, 0.7, [-10.0, 0.0], nearest)],
        6,
    );
}

#[test]
fn colours_are_torchvisions() {
    let jitter = |which: usize, factor: f64| {
        let of = |at| (at == which).then_some([factor; 2]);
        Operator::ColorJitter {
            brightness: of(0),
            contrast: of(1),
            saturation: of(2),
            hue: of(3),
        }
    };
    for (name, which, factor) in [
        ("brightness", 0, 1.3),
        ("low_contrast", 1, 0.6),
        ("high_contrast", 1, 1.7),
        ("low_saturation", 2, 0.3),
        ("high_saturation", 2, 1.6),
        ("hue", 3, 0.2),
        ("hue_back", 3, -0.4),
    ] {
        check(name, &[jitter(which, factor)], 0);
    }
    check("grayscale", &[Operator::Grayscale {}], 0);
}

#[test]
fn blurs_are_torchvisions() {
    let blur = |kernel_size, sigma| Operator::GaussianBlur {
        kernel_size,
        sigma: [sigma; 2],
    };
    check("blur", &[blur([7, 7], 1.5)], 0);
    check("blur_of_two_sizes", &[blur([9, 3], 2.0)], 0);
}

/// The key decides which of the fourteen operators is applied: each result is one of torchvision's, and each of
/// torchvision's occurs.
#[test]
fn rand_augment_does_what_torchvision_can_do() {
    let plan = plan(&[Operator::RandAugment {
        num_ops: 1,
        magnitude: 9,
        num_magnitude_bins: 31,
        interpolation: Interpolation::Bilinear,
        fill: None,
    }]);
    let known = known();
    let mut missing: Vec<_> = known
        .keys()
        .filter(|name| name.starts_with("any"))
        .collect();
    for sample in 0..250 {
        let (_, found) = made(&plan, key(sample));
        let is_it = |name: &&&str| {
            let (_, expected) = &known[**name];
            expected.len() == found.len() && differences(&found, expected) == 0
        };
        let names: Vec<_> = known
            .keys()
            .filter(|name| name.starts_with("any"))
            .filter(is_it)
            .collect();
        assert!(
            !names.is_empty(),
            "sample {sample} is none of torchvision's"
        );
        missing.retain(|name| !names.contains(name));
    }
    assert!(missing.is_empty(), "never made: {missing:?}");
}

/// One part gets one colour, and nothing else changes; torchvision draws parts from the same distribution.
#[test]
fn a_part_is_erased() {
    let value = [200.0, 0.0, 7.0];
    let plan = plan(&[Operator::RandomErasing {
        p: 1.0,
        scale: [0.1, 0.3],
        ratio: [0.5, 2.0],
        value,
    }]);
    let (size, before) = known().remove("input").unwrap();
    for sample in 0..50 {
        let (_, after) = made(&plan, key(sample));
        let pixels = before.chunks(3).zip(after.chunks(3)).enumerate();
        let erased: Vec<_> = pixels
            .filter(|(_, (before, after))| before != after)
            .map(|(at, (_, after))| {
                assert_eq!(after, value.map(|v| v as u8));
                (at as u32 % size.width, at as u32 / size.width)
            })
            .collect();
        let range = |of: fn(&(u32, u32)) -> u32| {
            let all = erased.iter().map(of);
            all.clone().max().unwrap() - all.min().unwrap() + 1
        };
        let (width, height) = (range(|at| at.0), range(|at| at.1));
        assert_eq!(
            erased.len() as u32,
            width * height,
            "sample {sample}: it is not a rectangle"
        );
        let share = f64::from(width * height) / f64::from(size.width * size.height);
        assert!((0.06..0.36).contains(&share), "sample {sample}: {share}");
    }
}
