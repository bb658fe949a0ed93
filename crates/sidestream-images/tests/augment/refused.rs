//! Invalid arguments are refused, with the place and a valid value.

use sidestream_images::augment::{
    Batch, Form, Interpolation, Kind, Layout, Operator, Plan, Target,
};
use sidestream_images::{Placed, Region};

use super::{BYTES, key, picture, plan, size};

fn refused(operators: &[Operator]) -> String {
    Plan::new(operators.to_vec()).unwrap_err().to_string()
}

#[test]
fn arguments_are_refused_by_the_operators_place() {
    let blur = |kernel_size| Operator::GaussianBlur {
        kernel_size,
        sigma: [0.1, 2.0],
    };
    let flip = |p| Operator::RandomHorizontalFlip { p };
    let normalize = Operator::Normalize {
        mean: [0.0; 3],
        std: [1.0; 3],
    };
    let numbers = Operator::ToDtype { scale: true };
    for (operators, expected) in [
        (
            vec![flip(0.5), flip(1.5)],
            "operator 1, RandomHorizontalFlip: p is 1.5; give a probability",
        ),
        (vec![flip(f64::NAN)], "p is NaN; give a probability"),
        (
            vec![blur([7, 8])],
            "kernel_size is 8; give an odd number of at most 31",
        ),
        (vec![blur([33, 3])], "kernel_size is 33; give an odd number"),
        (vec![normalize.clone()], "put ToDtype before it"),
        (
            vec![numbers.clone(), numbers.clone()],
            "numbers already; remove it",
        ),
        (
            vec![numbers.clone(), normalize.clone(), blur([3, 3])],
            "operator 2, GaussianBlur: it works on colours; put it before Normalize",
        ),
        (
            vec![Operator::MixUp { alpha: 1.0 }, flip(0.5)],
            "put this operator before them",
        ),
        (
            vec![Operator::MixUp { alpha: 0.0 }],
            "alpha is 0; give a number above 0",
        ),
        (
            vec![Operator::Resize {
                size: Target::Shorter {
                    side: 20,
                    most: Some(10),
                },
                antialias: true,
            }],
            "give a max_size that is larger",
        ),
        (
            vec![Operator::RandAugment {
                num_ops: 17,
                magnitude: 9,
                num_magnitude_bins: 31,
                interpolation: Interpolation::Nearest,
                fill: None,
            }],
            "num_ops is 17; give 0 to 16",
        ),
        (
            vec![Operator::CenterCrop { size: size(0, 4) }],
            "size is 4 x 0; give 1 to 32768 pixels",
        ),
        (
            vec![Operator::ColorJitter {
                brightness: None,
                contrast: None,
                saturation: None,
                hue: Some([-0.6, 0.1]),
            }],
            "hue is from -0.6 to 0.1; give two numbers from -0.5 to 0.5",
        ),
        (
            vec![Operator::RandomRotation {
                degrees: [0.0, f64::INFINITY],
                interpolation: Interpolation::Nearest,
                expand: false,
                center: None,
                fill: [0.0; 3],
            }],
            "degrees is from 0 to inf; give finite numbers, the lower first",
        ),
        (
            vec![Operator::RandomRotation {
                degrees: [0.0, 1.0],
                interpolation: Interpolation::Nearest,
                expand: false,
                center: Some([f64::NAN, 0.0]),
                fill: [0.0; 3],
            }],
            "center is NaN, 0; give finite numbers",
        ),
    ] {
        let why = refused(&operators);
        assert!(why.contains(expected), "{why}");
    }
    let why = flip(1.5).check().unwrap_err().to_string();
    assert!(
        why.ends_with("RandomHorizontalFlip: p is 1.5; give a probability, from 0 to 1"),
        "{why}"
    );
    assert_eq!(normalize.check(), Ok(()), "it is valid alone");
}

#[test]
fn batches_are_refused_by_the_picture() {
    let full = size(20, 10);
    let uniform = |count| Batch::uniform(full, count, Layout::Nhwc);
    let nothing = plan(&[]);
    let why = |plan: &Plan, batch: &Batch, count: u64| {
        let keys: Vec<_> = (0..count).map(key).collect();
        plan.draw(batch, &keys).unwrap_err().to_string()
    };
    assert!(why(&nothing, &uniform(2), 3).contains("2 pictures and 3 keys; give one key for each"));
    assert!(why(&nothing, &uniform(0), 0).contains("the batch has no pictures"));
    let blur = plan(&[Operator::GaussianBlur {
        kernel_size: [3, 31],
        sigma: [1.0, 1.0],
    }]);
    assert!(
        why(&blur, &uniform(1), 1)
            .contains("picture 0 is 10 x 20 where it is blurred, which is too small")
    );
    let placed = |size, held| Placed {
        offset: 0,
        held,
        full: size,
    };
    let whole = |size| Region {
        left: 0,
        top: 0,
        size,
    };
    let sizes = Batch::placed(&[
        placed(full, whole(full)),
        placed(size(9, 9), whole(size(9, 9))),
    ]);
    assert!(why(&nothing, &sizes, 2).contains("picture 1 becomes 9 x 9, and picture 0 10 x 20"));
    let part = Region {
        left: 3,
        top: 0,
        size: size(17, 10),
    };
    assert!(
        why(&nothing, &Batch::placed(&[placed(full, part)]), 1)
            .contains("decode the region that `Plan::region` returns")
    );
}

#[test]
fn input_and_form_are_refused_where_they_do_not_fit() {
    let full = size(8, 8);
    let batch = Batch::uniform(full, 2, Layout::Nhwc);
    let keys = [key(0), key(1)];
    let bytes = plan(&[]).draw(&batch, &keys).unwrap();
    let why = bytes
        .host(&picture(full, 0), BYTES)
        .unwrap_err()
        .to_string();
    assert!(
        why.contains("the input has 192 bytes, and the pictures need 384"),
        "{why}"
    );
    let why = bytes
        .host_into(&[0; 384], BYTES, &mut [0; 7])
        .unwrap_err()
        .to_string();
    assert!(
        why.contains("the results need 384 bytes, and the output has 7"),
        "{why}"
    );
    let numbers = plan(&[Operator::ToDtype { scale: true }])
        .draw(&batch, &keys)
        .unwrap();
    let form = Form {
        layout: Layout::Nchw,
        kind: Kind::U8,
    };
    let why = numbers.host(&[0; 384], form).unwrap_err().to_string();
    assert!(
        why.contains("bytes are requested; request F32, F16 or Bf16"),
        "{why}"
    );
}
