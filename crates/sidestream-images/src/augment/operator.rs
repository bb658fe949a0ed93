//! The table of operators, with the names, arguments and semantics of `torchvision.transforms.v2`.
//!
//! The table defines everything about an operator but its effect, which is in `draw`. The text form, the classes of
//! the Python package and the bounds of arguments are derived from it.

use sidestream::error::{Error, Result};

use super::argument::{Argument, Field, Kind, Numbers, named};
use super::parse::{Given, Value};
use crate::Size;

/// How a value between pixels is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// Interpolation between the four surrounding pixels.
    Bilinear,
}

/// The size of a resized picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Exactly this size.
    Exact(Size),
    /// The shorter side has this length, and the picture keeps its proportions. The longer side is at most `most`, if
    /// that is given.
    Shorter {
        /// Length of the shorter side, in pixels.
        side: u32,
        /// Maximum length of the longer side, in pixels.
        most: Option<u32>,
    },
}

/// A row of the table: an operator by the name that texts and Python programs use.
#[derive(Debug)]
pub struct Row {
    /// Name in torchvision.
    pub name: &'static str,
    /// Effect of the operator, in one sentence.
    pub about: &'static str,
    /// Arguments in torchvision's order.
    pub arguments: &'static [Argument],
    make: fn(&Numbers) -> Operator,
}

/// `ARGUMENT: KIND in BOUNDS => TYPE = DEFAULT;`. An argument without a type is checked and has no effect.
macro_rules! operators {
    ($(
        #[doc = $about:literal]
        $name:ident {
            $($argument:ident: $kind:ident $(in $bounds:tt)? $(=> $type:ty)? $(= $default:literal)?;)*
        }
    )*) => {
        /// A step of an augmentation. Fields are the arguments of torchvision; pairs are lowest and highest value.
        ///
        /// Sizes are in pixels, angles in degrees, and colours (`fill`, `value`) in the units that pixels have at that place: 0 to 255, or
        /// 0 to 1 after a [`ToDtype`](Operator::ToDtype) that scales. `padding` is left, top, right and bottom; `shear` lowest and highest
        /// along x, then along y; `kernel_size` width and height.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "torchvision's arguments; docs/guide/images.md has the table")]
        pub enum Operator {
            $(#[doc = $about] $name { $($($argument: $type,)?)* },)*
        }

        /// Returns every operator.
        #[allow(unused_variables, reason = "one has no fields")]
        pub static TABLE: &[Row] = &[$(Row {
            name: stringify!($name),
            about: $about,
            arguments: &[$(Argument {
                name: stringify!($argument),
                kind: Kind::$kind,
                within: or!([f64::MIN, f64::MAX] $(, $bounds)?),
                default: or!(None $(, Some($default))?),
            },)*],
            make: |given| Operator::$name {
                $($($argument: <$type>::of(named(given, stringify!($argument))),)?)*
            },
        },)*];

        impl Operator {
            /// Returns the name in torchvision.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Operator::$name { .. } => stringify!($name),)*
                }
            }

            /// Returns the numbers of the arguments that have some, with their names.
            fn numbers(&self) -> Numbers {
                match self {
                    $(Operator::$name { $($($argument: of!($argument, $type),)?)* } => vec![
                        $($((stringify!($argument), <$type as Field>::numbers($argument)),)?)*
                    ],)*
                }
            }
        }
    };
}

/// Expands to the second argument if there is one, otherwise to the first.
macro_rules! or {
    ($other:expr) => {
        $other
    };
    ($other:expr, $given:expr) => {
        $given
    };
}

/// Expands to the name of a field that has a type.
macro_rules! of {
    ($argument:ident, $type:ty) => {
        $argument
    };
}

/// The upper bound of finite numbers, and the lower bound of numbers above 0.
const MOST: f64 = f64::MAX;
const ABOVE_0: f64 = f64::MIN_POSITIVE;

operators! {
    /// Cut out a part of any size and proportions, and resize it to ``size``.
    RandomResizedCrop {
        size: Size => Size;
        scale: Pair in [0.0, MOST] => [f64; 2] = "(0.08, 1.0)";
        ratio: Pair in [ABOVE_0, MOST] => [f64; 2] = "(0.75, 1.3333333333333333)";
        interpolation: Bilinear = "bilinear";
        antialias: Antialias => bool = "True";
    }
    /// Cut out a part of this size, after padding with one colour.
    RandomCrop {
        size: Size => Size;
        padding: Padding => [u32; 4] = "None";
        pad_if_needed: Flag => bool = "False";
        fill: Colour => [f32; 3] = "0";
        padding_mode: Constant = "constant";
    }
    /// Cut out the middle; a picture that is too small is padded with black.
    CenterCrop {
        size: Size => Size;
    }
    /// Resize to height and width, or to a length of the shorter side.
    Resize {
        size: Target => Target;
        interpolation: Bilinear = "bilinear";
        max_size: Longest = "None";
        antialias: Antialias => bool = "True";
    }
    /// Mirror left and right, with this probability.
    RandomHorizontalFlip {
        p: Probability => f64 = "0.5";
    }
    /// Mirror top and bottom, with this probability.
    RandomVerticalFlip {
        p: Probability => f64 = "0.5";
    }
    /// Turn counter-clockwise by a random angle in the range ``degrees``, where 30 means -30 to 30.
    RandomRotation {
        degrees: Around => [f64; 2];
        interpolation: Interpolation => Interpolation = "nearest";
        expand: Flag => bool = "False";
        center: Place => Option<[f64; 2]> = "None";
        fill: Colour => [f32; 3] = "0";
    }
    /// Turn clockwise, move, scale and shear about the middle.
    RandomAffine {
        degrees: Around => [f64; 2];
        translate: Shares => Option<[f64; 2]> = "None";
        scale: Pair in [ABOVE_0, MOST] => Option<[f64; 2]> = "None";
        shear: Shear in [-89.0, 89.0] => [f64; 4] = "None";
        interpolation: Interpolation => Interpolation = "nearest";
        fill: Colour => [f32; 3] = "0";
        center: Place => Option<[f64; 2]> = "None";
    }
    /// Move the corners inwards, with this probability.
    RandomPerspective {
        distortion_scale: Share => f64 = "0.5";
        p: Probability => f64 = "0.5";
        interpolation: Interpolation => Interpolation = "bilinear";
        fill: Colour => [f32; 3] = "0";
    }
    /// Change brightness, contrast, saturation and hue, in any order.
    ColorJitter {
        brightness: Factors in [0.0, MOST] => Option<[f64; 2]> = "None";
        contrast: Factors in [0.0, MOST] => Option<[f64; 2]> = "None";
        saturation: Factors in [0.0, MOST] => Option<[f64; 2]> = "None";
        hue: Hue in [-0.5, 0.5] => Option<[f64; 2]> = "None";
    }
    /// Take the colours away; the result has three equal channels.
    Grayscale {
        num_output_channels: Three = "3";
    }
    /// Take the colours away, with this probability.
    RandomGrayscale {
        p: Probability => f64 = "0.1";
    }
    /// Blur with a kernel of up to 31 pixels.
    GaussianBlur {
        kernel_size: Places => [u32; 2];
        sigma: Between in [1e-3, MOST] => [f64; 2] = "(0.1, 2.0)";
    }
    /// Fill a part with one colour, with this probability.
    RandomErasing {
        p: Probability => f64 = "0.5";
        scale: Pair in [0.0, 1.0] => [f64; 2] = "(0.02, 0.33)";
        ratio: Pair in [ABOVE_0, MOST] => [f64; 2] = "(0.3, 3.3)";
        value: Value => [f32; 3] = "0.0";
        inplace: Ignored = "False";
    }
    /// Apply ``num_ops`` of fourteen operators, each with this magnitude.
    RandAugment {
        num_ops: Count in [0.0, 16.0] => u32 = "2";
        magnitude: Count => u32 = "9";
        num_magnitude_bins: Count => u32 = "31";
        interpolation: Interpolation => Interpolation = "nearest";
        fill: Colour => Option<[f32; 3]> = "None";
    }
    /// Mix each picture with the one before it in the batch, each by its own random share.
    MixUp {
        alpha: Positive => f64 = "1.0";
        num_classes: Classes = "None";
    }
    /// Replace a random part of each picture by that of the picture before it in the batch.
    CutMix {
        alpha: Positive => f64 = "1.0";
        num_classes: Classes = "None";
    }
    /// Convert bytes to ``torch.float32``, ``float16`` or ``bfloat16``; ``scale`` divides them by 255.
    ToDtype {
        dtype: Dtype;
        scale: Flag => bool = "False";
    }
    /// Subtract ``mean`` and divide by ``std``, channel by channel.
    Normalize {
        mean: Colour => [f32; 3];
        std: Deviation => [f32; 3];
        inplace: Ignored = "False";
    }
}

/// The largest side of a picture or a result, so that coordinates are exact in single precision.
pub const MAX_SIDE: u32 = 1 << 15;

impl Operator {
    /// Returns the operator with this name and these arguments, each with its name if it is given by name.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such operator, or an argument has the wrong kind.
    pub fn new(name: &str, given: Vec<(Option<String>, Value)>) -> Result<Operator> {
        let Some(row) = TABLE.iter().find(|row| row.name == name) else {
            let known: Vec<_> = TABLE.iter().map(|row| row.name).collect();
            return Err(invalid(format!(
                "there is no operator {name:?}; there are {}",
                known.join(", ")
            )));
        };
        let mut given = Given::new(name, given);
        let mut numbers = Numbers::new();
        for argument in row.arguments {
            if !argument.kind.is_of_python_alone() {
                argument.read(&mut given, &mut numbers)?;
            }
        }
        given.finish()?;
        Ok((row.make)(&numbers))
    }

    /// Returns whether the operator acts on the finished picture alone, so that only operators of this kind may
    /// follow.
    fn is_last(&self) -> bool {
        matches!(self, Operator::MixUp { .. } | Operator::CutMix { .. })
    }

    /// Refuses invalid arguments.
    ///
    /// # Errors
    /// [`Error::Invalid`], which names the operator, the argument and what to give instead.
    pub fn check(&self) -> Result<()> {
        match self.fault() {
            Some(fault) => Err(invalid(format!("{}: {fault}", self.name()))),
            None => Ok(()),
        }
    }

    /// Returns what is wrong with the arguments, if anything.
    fn fault(&self) -> Option<String> {
        let row = TABLE.iter().find(|row| row.name == self.name())?;
        let numbers = self.numbers();
        let mut each = row.arguments.iter();
        let wrong = each.find_map(|argument| argument.fault(named(&numbers, argument.name)));
        wrong.or_else(|| match *self {
            Operator::RandAugment {
                magnitude,
                num_magnitude_bins: bins,
                ..
            } if bins < 2 || magnitude >= bins => Some(format!(
                "magnitude is {magnitude} of {bins} bins; give at least 2 bins, and a magnitude below their number"
            )),
            _ => None,
        })
    }
}

/// Refuses an invalid sequence or argument, with the operator's name and place.
pub(super) fn check(operators: &[Operator]) -> Result<()> {
    let refuse = |at: usize, why: String| {
        let name = operators[at].name();
        Err(invalid(format!("operator {at}, {name}: {why}")))
    };
    let (mut normalized, mut mixed) = (false, false);
    for (at, operator) in operators.iter().enumerate() {
        if let Some(fault) = operator.fault() {
            return refuse(at, fault);
        }
        if mixed {
            return refuse(at, "MixUp and CutMix mix finished pictures; put this operator before them, and give only one of the two".into());
        }
        let may_follow = operator.is_last() || matches!(operator, Operator::RandomErasing { .. });
        if normalized && !may_follow {
            return refuse(at, "it works on colours; put it before Normalize".into());
        }
        if matches!(operator, Operator::ToDtype { .. })
            && operators[..at]
                .iter()
                .any(|before| matches!(before, Operator::ToDtype { .. }))
        {
            return refuse(at, "the values are numbers already; remove it".into());
        }
        if matches!(operator, Operator::Normalize { .. })
            && !operators[..at]
                .iter()
                .any(|before| matches!(before, Operator::ToDtype { .. }))
        {
            return refuse(
                at,
                "it takes floating-point numbers; put ToDtype before it".into(),
            );
        }
        normalized |= matches!(operator, Operator::Normalize { .. });
        mixed |= operator.is_last();
    }
    Ok(())
}

pub(super) fn invalid(why: String) -> Error {
    Error::Invalid {
        call: "augment",
        why,
    }
}
