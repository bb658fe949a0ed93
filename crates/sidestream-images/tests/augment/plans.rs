//! Random plans: the launches, the CPU and a decoded region give equal results, and no picture depends on its
//! neighbours.

use sidestream::device::Device;
use sidestream_images::Placed;
use sidestream_images::augment::{
    Batch, Form, Interpolation, Kind, Layout, Operator, Plan, Target,
};

use super::{key, noise, numbers, picture, size};

fn operators(dice: &mut impl FnMut() -> u64) -> Vec<Operator> {
    let fill = [(dice() % 256) as f32, 0.0, 90.0];
    let interpolation = match dice() % 2 {
        0 => Interpolation::Nearest,
        _ => Interpolation::Bilinear,
    };
    let target = size(16 + (dice() % 40) as u32, 16 + (dice() % 40) as u32);
    let mut all = Vec::new();
    for _ in 0..1 + dice() % 5 {
        all.push(match dice() % 13 {
            0 => Operator::RandomCrop {
                size: target,
                padding: [(dice() % 9) as u32; 4],
                pad_if_needed: true,
                fill,
            },
            1 => Operator::CenterCrop { size: target },
            2 => Operator::RandomHorizontalFlip { p: 0.5 },
            3 => Operator::RandomVerticalFlip { p: 0.5 },
            4 => Operator::RandomRotation {
                degrees: [-80.0, 120.0],
                interpolation,
                expand: false,
                center: None,
                fill,
            },
            5 => Operator::RandomAffine {
                degrees: [-20.0, 20.0],
                translate: Some([0.2, 0.1]),
                scale: Some([0.5, 2.0]),
                shear: [-10.0, 10.0, -5.0, 5.0],
                interpolation,
                center: Some([3.0, 4.0]),
                fill,
            },
            6 => Operator::RandomPerspective {
                distortion_scale: 0.6,
                p: 0.8,
                interpolation,
                fill,
            },
            7 => Operator::ColorJitter {
                brightness: Some([0.6, 1.4]),
                contrast: Some([0.6, 1.4]),
                saturation: Some([0.5, 1.5]),
                hue: Some([-0.2, 0.2]),
            },
            8 => Operator::RandomGrayscale { p: 0.5 },
            9 => Operator::GaussianBlur {
                kernel_size: [7, 3 + 2 * (dice() % 4) as u32],
                sigma: [0.1, 2.0],
            },
            10 => Operator::RandAugment {
                num_ops: 2,
                magnitude: 9,
                num_magnitude_bins: 31,
                interpolation,
                fill: None,
            },
            11 => Operator::Resize {
                size: Target::Exact(target),
                antialias: !dice().is_multiple_of(4),
            },
            _ => Operator::RandomErasing {
                p: 0.7,
                scale: [0.02, 0.3],
                ratio: [0.3, 3.3],
                value: fill,
            },
        });
    }
    all.push(Operator::RandomResizedCrop {
        size: target,
        scale: [0.08, 1.0],
        ratio: [0.75, 4.0 / 3.0],
        antialias: true,
    });
    if dice().is_multiple_of(2) {
        all.push(Operator::ToDtype { scale: true });
        all.push(Operator::Normalize {
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
        });
    }
    match dice() % 4 {
        0 => all.push(Operator::MixUp { alpha: 0.4 }),
        1 => all.push(Operator::CutMix { alpha: 1.0 }),
        _ => {}
    }
    all
}

/// Returns a plan, and pictures of several sizes for it.
fn drawn(seed: u64) -> (Plan, Form, Vec<Placed>, Vec<u8>) {
    println!("seed {seed}");
    let mut dice = noise(seed);
    let plan = Plan::new(operators(&mut dice)).unwrap();
    let plan = if dice().is_multiple_of(4) {
        plan.unfused()
    } else {
        plan
    };
    let kinds = [Kind::F32, Kind::F16, Kind::Bf16, Kind::U8];
    let kind = if plan.is_numeric() {
        kinds[(dice() % 3) as usize]
    } else {
        kinds[(dice() % 4) as usize]
    };
    let layout = [Layout::Nchw, Layout::Nhwc][(dice() % 2) as usize];
    let (mut placed, mut slab) = (Vec::new(), Vec::new());
    for at in 0..3 {
        let full = size(20 + (dice() % 70) as u32, 20 + (dice() % 70) as u32);
        placed.push(Placed {
            offset: slab.len() as u64,
            held: sidestream_images::Region {
                left: 0,
                top: 0,
                size: full,
            },
            full,
        });
        slab.extend(picture(full, seed + at));
    }
    (plan, Form { layout, kind }, placed, slab)
}

const SEEDS: u64 = 40;

#[test]
fn a_launch_has_the_result_of_the_processor() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("augment").unwrap();
    for seed in 0..SEEDS {
        let (plan, form, placed, slab) = drawn(seed);
        let keys = [seed, seed + 1, seed + 2].map(key);
        let drawn = plan.draw(&Batch::placed(&placed), &keys).unwrap();
        let input = stream.alloc_from(&slab).unwrap();
        let mut output = stream.alloc::<u8>(drawn.bytes(form)).unwrap();
        drawn
            .launch(&stream, input.view(), form, output.view_mut())
            .unwrap();
        let launched = stream.to_vec(output.view()).unwrap();
        assert!(
            launched == drawn.host(&slab, form).unwrap(),
            "seed {seed}: {:?}",
            plan.operators()
        );
    }
}

#[test]
fn a_decoded_region_gives_the_result_of_the_whole_picture() {
    for seed in 0..SEEDS {
        let (plan, form, placed, slab) = drawn(seed);
        let keys = [seed, seed + 1, seed + 2].map(key);
        let whole = plan
            .draw(&Batch::placed(&placed), &keys)
            .unwrap()
            .host(&slab, form)
            .unwrap();
        let (mut parts, mut small) = (Vec::new(), Vec::new());
        for (placed, key) in placed.iter().zip(keys) {
            let held = plan.region(key, placed.full).unwrap();
            parts.push(Placed {
                offset: small.len() as u64,
                held,
                full: placed.full,
            });
            for y in held.top..held.top + held.size.height {
                let row = placed.offset + 3 * u64::from(y * placed.full.width + held.left);
                small.extend(&slab[row as usize..][..3 * held.size.width as usize]);
            }
        }
        let part = plan
            .draw(&Batch::placed(&parts), &keys)
            .unwrap()
            .host(&small, form)
            .unwrap();
        assert!(part == whole, "seed {seed}: {:?}", plan.operators());
    }
}

#[test]
fn a_picture_is_the_same_in_any_batch() {
    for seed in 0..SEEDS {
        let (plan, form, placed, slab) = drawn(seed);
        let is_mixed = |operator: &Operator| {
            matches!(operator, Operator::MixUp { .. } | Operator::CutMix { .. })
        };
        if plan.operators().iter().any(is_mixed) {
            continue;
        }
        let keys = [seed, seed + 1, seed + 2].map(key);
        let drawn = plan.draw(&Batch::placed(&placed), &keys).unwrap();
        let all = drawn.host(&slab, form).unwrap();
        for at in 0..3 {
            let alone = plan
                .draw(&Batch::placed(&placed[at..=at]), &keys[at..=at])
                .unwrap();
            let alone = alone.host(&slab, form).unwrap();
            assert!(
                all[at * alone.len()..][..alone.len()] == alone,
                "seed {seed}, picture {at}"
            );
        }
    }
}

/// An upright warp is filtered down and across in turn, a rotated one pixel by pixel. A picture that was rotated
/// before and is put upright by the plan has the result of the picture that was always upright, in each layout.
#[test]
fn an_upright_warp_has_the_result_of_a_turned_one() {
    const SIDE: u32 = 62;
    let full = size(SIDE, SIDE);
    let bytes = picture(full, 3);
    let places = || (0..SIDE).flat_map(|y| (0..SIDE).map(move |x| (x, y)));
    let value = |(x, y): (u32, u32), c: u32| bytes[((y * SIDE + x) * 3 + c) as usize];
    let by_colours = (0..3).flat_map(|c| places().map(move |at| value(at, c)));
    // The picture rotated clockwise by 90 degrees: its rows are the columns of the original, read from the bottom.
    let lying = places().flat_map(|(x, y)| [0, 1, 2].map(|c| value((y, SIDE - 1 - x), c)));
    let (by_colours, lying): (Vec<u8>, Vec<u8>) = (by_colours.collect(), lying.collect());
    let turned_back = Operator::RandomRotation {
        degrees: [90.0; 2],
        interpolation: Interpolation::Bilinear,
        expand: false,
        center: None,
        fill: [0.0; 3],
    };
    let made = |operators: &[Operator], input: &[u8], layout| {
        let plan = Plan::new(operators.to_vec()).unwrap();
        let drawn = plan.draw(&Batch::uniform(full, 1, layout), &[key(1)]);
        numbers(&drawn.unwrap().host(input, super::NUMBERS).unwrap())
    };
    for (width, height) in [(20, 30), (7, 5), (90, 20), (130, 100), (31, 62)] {
        for antialias in [true, false] {
            let upright = [
                Operator::Resize {
                    size: Target::Exact(size(width, height)),
                    antialias,
                },
                Operator::RandomHorizontalFlip { p: 1.0 },
                Operator::ToDtype { scale: false },
            ];
            let turned = [&[turned_back.clone()][..], &upright[..]].concat();
            let expected = made(&turned, &lying, Layout::Nhwc);
            // At the edge of the rotated picture its fill shows where the result is larger.
            let is_inner = |at: usize| {
                let (x, y) = (at as u32 / 3 % width, at as u32 / 3 / width);
                (2..width - 2).contains(&x) && (2..height - 2).contains(&y)
            };
            for (input, layout) in [(&bytes, Layout::Nhwc), (&by_colours, Layout::Nchw)] {
                let found = made(&upright, input, layout);
                let pairs = found.iter().zip(&expected).enumerate();
                let inner = pairs.filter(|(at, _)| is_inner(*at));
                let most = inner.map(|(_, (a, b))| (a - b).abs()).fold(0.0, f32::max);
                // A hundred-thousandth of the range; a wrong pixel differs by tens of levels.
                assert!(
                    most < 0.002,
                    "{width} x {height}, {layout:?}, {antialias}: {most}"
                );
            }
        }
    }
}
