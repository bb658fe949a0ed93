//! Operators parsed from text.

use sidestream_images::Size;
use sidestream_images::augment::{Interpolation, Operator, Target, parse};

#[track_caller]
fn check(text: &str, wanted: &[Operator]) {
    assert_eq!(parse(text).unwrap(), wanted, "{text}");
}

#[track_caller]
fn refused(text: &str, says: &str) {
    let error = parse(text).unwrap_err().to_string();
    assert!(error.contains(says), "{text}: {error}");
}

#[test]
fn operators_are_written_as_in_python() {
    let size = Size {
        width: 224,
        height: 224,
    };
    let crop = |scale| Operator::RandomResizedCrop {
        size,
        scale,
        ratio: [3.0 / 4.0, 4.0 / 3.0],
        antialias: true,
    };
    check("RandomResizedCrop(224)", &[crop([0.08, 1.0])]);
    check(
        "T.RandomResizedCrop((224, 224), scale=(2e-1, 1.)), RandomHorizontalFlip",
        &[crop([0.2, 1.0]), Operator::RandomHorizontalFlip { p: 0.5 }],
    );
    check(
        "Resize([100, 200])\nResize(64, max_size=128)",
        &[
            Operator::Resize {
                size: Target::Exact(Size {
                    width: 200,
                    height: 100,
                }),
                antialias: true,
            },
            Operator::Resize {
                size: Target::Shorter {
                    side: 64,
                    most: Some(128),
                },
                antialias: true,
            },
        ],
    );
    check(
        "RandomRotation(45, InterpolationMode.BILINEAR, center=None, fill=[1, 2, 3])",
        &[Operator::RandomRotation {
            degrees: [-45.0, 45.0],
            interpolation: Interpolation::Bilinear,
            expand: false,
            center: None,
            fill: [1.0, 2.0, 3.0],
        }],
    );
    check(
        "ColorJitter(0.4, hue=0.1) GaussianBlur(7) ToDtype(scale=True) Normalize(0.5, (0.1, 0.2, 0.3))",
        &[
            Operator::ColorJitter {
                brightness: Some([0.6, 1.4]),
                contrast: None,
                saturation: None,
                hue: Some([-0.1, 0.1]),
            },
            Operator::GaussianBlur {
                kernel_size: [7, 7],
                sigma: [0.1, 2.0],
            },
            Operator::ToDtype { scale: true },
            Operator::Normalize {
                mean: [0.5; 3],
                std: [0.1, 0.2, 0.3],
            },
        ],
    );
}

#[test]
fn an_invalid_operator_is_reported_with_its_place() {
    refused("", "there is no operator");
    refused(
        "Crop(3)",
        "there is no operator \"Crop\"; there are RandomResizedCrop",
    );
    refused(
        "Resize(64",
        "`,` or `)` was expected at character 10, and there is the end of the text",
    );
    refused("Resize(64, size=3)", "Resize has no argument size");
    refused(
        "Resize(64, 3)",
        "interpolation of Resize is no NEAREST or BILINEAR",
    );
    refused("RandomCrop", "RandomCrop needs size");
    refused(
        "RandomCrop(1.5)",
        "size of RandomCrop is no whole number of pixels",
    );
    refused(
        "RandomHorizontalFlip(p=)",
        "a value was expected at character 24",
    );
    refused(
        "RandomHorizontalFlip(0.5, 0.5)",
        "RandomHorizontalFlip has at most 1 argument",
    );
    for text in ["RandomRotation(-5)", "ColorJitter(contrast=-1)"] {
        refused(text, "is no number of at least 0, or pair of numbers");
    }
    refused("Resize((((((((1))))))))", "a number was expected");
    refused(
        "Resize(1) %",
        "the name of an operator was expected at character 11, and there is \"%\"",
    );
}
