//! Arguments of operators: their kinds, how they are read, and which numbers are valid.
//!
//! The value of an argument is represented as a list of numbers, which is empty if the argument is omitted: a size is
//! its height and its width, a flag is 0 or 1.

use sidestream::error::Result;

use super::MAX_RADIUS;
use super::operator::{Interpolation, MAX_SIDE, Target, invalid};
use super::parse::{Given, Value, default};
use crate::Size;

/// An argument of an operator.
#[derive(Debug)]
pub struct Argument {
    /// Name in torchvision.
    pub name: &'static str,
    pub(super) kind: Kind,
    /// Smallest and largest number, for kinds without bounds of their own.
    pub(super) within: [f64; 2],
    /// Default, as Python writes it but without quotes; none if the argument is required.
    pub default: Option<&'static str>,
}

/// The kind of an argument's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The side of a square, or height and width.
    Size,
    /// The shorter side, or height and width.
    Target,
    /// The maximum length of the longer side, with a size that gives the shorter one.
    Longest,
    /// One length for all sides, two for left and right and for top and bottom, or four.
    Padding,
    /// The size of a kernel: one number for both directions, or one for each.
    Places,
    /// A probability, from 0 to 1.
    Probability,
    /// A share, from 0 to 1.
    Share,
    /// A number above 0.
    Positive,
    /// A whole number within bounds.
    Count,
    /// Two numbers, the lower first.
    Pair,
    /// Two shares of the size.
    Shares,
    /// Two numbers, x and y.
    Place,
    /// One number, or two, the lower first.
    Between,
    /// One number, the distance to both sides of zero, or two numbers, the lower first.
    Around,
    /// As `Around`; zero has no effect.
    Hue,
    /// One number, the distance to both sides of one, or two numbers, the lower first; zero has no effect.
    Factors,
    /// As `Around`, for x; or two pairs, for x and for y.
    Shear,
    /// One number for all channels, or three.
    Colour,
    /// As `Colour`; torchvision also accepts words.
    Value,
    /// As `Colour`, above 0.
    Deviation,
    /// True or false.
    Flag,
    /// As `Flag`; torchvision also accepts `None` for false.
    Antialias,
    /// `NEAREST` or `BILINEAR`.
    Interpolation,
    /// Only `BILINEAR`.
    Bilinear,
    /// Only 3.
    Three,
    /// The number of label classes; labels are not mixed here.
    Classes,
    /// The type of the results, which cannot be given in text.
    Dtype,
    /// Only `constant` padding, which cannot be given in text.
    Constant,
    /// Any value, accepted in Python only.
    Ignored,
}

/// Arguments by their names.
pub(crate) type Numbers = Vec<(&'static str, Vec<f64>)>;

/// Returns the numbers of an argument.
pub(crate) fn named<'a>(numbers: &'a Numbers, name: &str) -> &'a [f64] {
    let found = numbers.iter().find(|(known, _)| *known == name);
    found.map_or(&[], |(_, numbers)| numbers)
}

impl Kind {
    /// Returns how many numbers are valid, and how a message describes a valid value.
    fn wants(self) -> (&'static [usize], &'static str) {
        match self {
            Kind::Size | Kind::Around | Kind::Hue | Kind::Factors => {
                (&[2], "number of at least 0, or pair of numbers")
            }
            Kind::Target => (&[1, 2], "number or pair of numbers"),
            Kind::Places | Kind::Between => (&[2], "number or pair of numbers"),
            Kind::Longest => (&[], "number that goes with a size of one number"),
            Kind::Padding | Kind::Shear => (&[4], "one, two or four numbers"),
            Kind::Pair | Kind::Shares | Kind::Place => (&[2], "pair of numbers"),
            Kind::Colour | Kind::Value | Kind::Deviation => {
                (&[3], "number or colour of three numbers")
            }
            _ => (&[1], "number"),
        }
    }

    /// Returns whether only Python's classes accept the argument.
    pub(crate) fn is_of_python_alone(self) -> bool {
        matches!(self, Kind::Dtype | Kind::Constant | Kind::Ignored)
    }
}

impl Argument {
    /// Returns the name of the kind.
    pub fn kind(&self) -> String {
        format!("{:?}", self.kind)
    }

    /// Reads the given value or the default, and appends its numbers to those of the arguments before it.
    pub(super) fn read(&self, given: &mut Given, before: &mut Numbers) -> Result<()> {
        let value = match (given.take(self.name), self.default) {
            (Some(value), _) => Some(value),
            (None, Some(text)) => default(text)?,
            (None, None) => {
                let operator = &given.operator;
                return Err(invalid(format!("{operator} needs {}", self.name)));
            }
        };
        let fault = |what: &str| Err(given.fault(self.name, what));
        let numbers = match (self.kind, &value) {
            // An omitted padding or shear is zero.
            (Kind::Padding | Kind::Shear, None) => vec![0.0; 4],
            (_, None) => Vec::new(),
            (Kind::Flag | Kind::Antialias, Some(value)) => match value {
                Value::Word(word) if word == "True" || word == "true" => vec![1.0],
                Value::Word(word) if word == "False" || word == "false" => vec![0.0],
                _ => return fault("True or False"),
            },
            (Kind::Interpolation | Kind::Bilinear, Some(value)) => {
                let is_bilinear = match value.last_word().as_deref() {
                    Some("bilinear") => true,
                    Some("nearest") => false,
                    _ => return fault("NEAREST or BILINEAR"),
                };
                if self.kind == Kind::Bilinear && !is_bilinear {
                    return fault("BILINEAR, which is the only one here");
                }
                vec![f64::from(is_bilinear)]
            }
            (_, Some(value)) => {
                let numbers = match value {
                    Value::Number(number) => vec![*number],
                    Value::Word(_) => return fault("number"),
                    Value::List(values) => match values.iter().map(Value::number).collect() {
                        Some(numbers) => numbers,
                        None => return fault("list of numbers"),
                    },
                };
                match self.meant(&numbers, before) {
                    Ok(meant) => meant,
                    Err(what) => return fault(what),
                }
            }
        };
        before.push((self.name, numbers));
        Ok(())
    }

    /// Returns the numbers after conversion.
    ///
    /// # Errors
    /// A description of a valid value.
    fn meant(
        &self,
        numbers: &[f64],
        before: &mut Numbers,
    ) -> std::result::Result<Vec<f64>, &'static str> {
        let is_whole =
            |number: &f64| (0.0..=f64::from(u32::MAX)).contains(number) && number.fract() == 0.0;
        let are_whole = numbers.iter().all(is_whole);
        match self.kind {
            Kind::Size | Kind::Target | Kind::Longest | Kind::Padding | Kind::Places
                if !are_whole =>
            {
                return Err("whole number of pixels");
            }
            Kind::Count | Kind::Three if numbers.len() == 1 && !are_whole => {
                return Err("whole number");
            }
            _ => {}
        }
        Ok(match (self.kind, numbers) {
            (Kind::Size | Kind::Places | Kind::Between, [one]) => vec![*one; 2],
            (Kind::Longest, [most]) => match before.iter_mut().find(|(name, _)| *name == "size") {
                // The longest side is appended as the third number after the shorter side.
                Some((_, size)) if size.len() == 1 => {
                    *size = vec![size[0], size[0], *most];
                    Vec::new()
                }
                _ => return Err(self.kind.wants().1),
            },
            (Kind::Padding, [all]) => vec![*all; 4],
            (Kind::Padding, [x, y]) => vec![*x, *y, *x, *y],
            (Kind::Hue, [0.0] | [0.0, 0.0]) | (Kind::Factors, [0.0]) => Vec::new(),
            (Kind::Around | Kind::Hue, [one]) if *one >= 0.0 => vec![-one, *one],
            (Kind::Factors, [one]) if *one >= 0.0 => vec![(1.0 - one).max(0.0), 1.0 + one],
            (Kind::Shear, [one]) => vec![-one, *one, 0.0, 0.0],
            (Kind::Shear, [low, high]) => vec![*low, *high, 0.0, 0.0],
            (Kind::Colour | Kind::Value | Kind::Deviation, [one]) => vec![*one; 3],
            (Kind::Three, [3.0]) | (Kind::Classes, _) => Vec::new(),
            (Kind::Three, [_]) => return Err("3: pictures keep three channels"),
            (kind, numbers) => match kind.wants() {
                (counts, _) if counts.contains(&numbers.len()) => numbers.to_vec(),
                (_, what) => return Err(what),
            },
        })
    }

    /// Returns what is wrong with these numbers, if anything.
    pub(super) fn fault(&self, numbers: &[f64]) -> Option<String> {
        let name = self.name;
        let wrong_side = |side: &f64| !(1.0..=f64::from(MAX_SIDE)).contains(side);
        let sides = |height: f64, width: f64| {
            let is_wrong = [height, width].iter().any(wrong_side);
            is_wrong.then(|| format!("{name} is {height} x {width}; give 1 to {MAX_SIDE} pixels"))
        };
        let is_share = |share: &f64| (0.0..=1.0).contains(share);
        match (self.kind, numbers) {
            (Kind::Size | Kind::Target, [height, width]) => sides(*height, *width),
            (Kind::Target, [side]) => sides(*side, *side),
            (Kind::Target, [side, _, most]) => sides(*side, *side).or_else(|| {
                (most < side).then(|| {
                    format!("max_size is {most}, and size {side}; give a max_size that is larger")
                })
            }),
            (Kind::Padding, all) => {
                let most = all.iter().copied().fold(0.0, f64::max);
                (most > f64::from(MAX_SIDE))
                    .then(|| format!("{name} is {most}; give at most {MAX_SIDE}"))
            }
            (Kind::Places, all) => {
                let most = 2 * MAX_RADIUS + 1;
                let wrong = |size: &&f64| **size % 2.0 == 0.0 || **size > f64::from(most);
                all.iter()
                    .find(wrong)
                    .map(|size| format!("{name} is {size}; give an odd number of at most {most}"))
            }
            (Kind::Probability, [p]) => {
                (!is_share(p)).then(|| format!("{name} is {p}; give a probability, from 0 to 1"))
            }
            (Kind::Share, [share]) => {
                (!is_share(share)).then(|| format!("{name} is {share}; give 0 to 1"))
            }
            (Kind::Positive, [number]) => {
                let is_right = *number > 0.0 && number.is_finite();
                (!is_right).then(|| format!("{name} is {number}; give a number above 0"))
            }
            (Kind::Count, [count]) => {
                let [low, high] = self.within;
                let give = match high {
                    f64::MAX => format!("at least {low}"),
                    _ => format!("{} to {high}", low.max(0.0)),
                };
                (!(low..=high).contains(count)).then(|| format!("{name} is {count}; give {give}"))
            }
            (Kind::Shares, all) => {
                let wrong = all.iter().find(|share| !is_share(share));
                wrong.map(|share| {
                    format!("{name} has {share}; give shares of the size, from 0 to 1")
                })
            }
            (Kind::Place, [x, y]) => (!x.is_finite() || !y.is_finite())
                .then(|| format!("{name} is {x}, {y}; give finite numbers")),
            (Kind::Deviation, all) => {
                let wrong = all.iter().find(|std| std.is_nan() || **std <= 0.0);
                wrong.map(|std| format!("{name} has {}; give numbers above 0", *std as f32))
            }
            (
                Kind::Pair | Kind::Between | Kind::Around | Kind::Hue | Kind::Factors | Kind::Shear,
                all,
            ) => all
                .chunks_exact(2)
                .find_map(|pair| self.disorder(pair[0], pair[1])),
            _ => None,
        }
    }

    /// Returns why these are not a lowest and highest number, if they are not.
    fn disorder(&self, a: f64, b: f64) -> Option<String> {
        let (name, [low, high]) = (self.name, self.within);
        // Written so that NaN is refused.
        let is_right = a >= low && a <= b && b <= high;
        let give = || match (low, high) {
            (f64::MIN, f64::MAX) => "finite numbers, the lower first".to_owned(),
            (f64::MIN_POSITIVE, f64::MAX) => "numbers above 0, the lower first".to_owned(),
            (_, f64::MAX) => format!("two numbers of at least {low:.3}, the lower first"),
            _ => format!("two numbers from {low} to {high}, the lower first"),
        };
        (!is_right).then(|| format!("{name} is from {a} to {b}; give {}", give()))
    }
}

/// Conversion between a field of an operator and its numbers.
pub(crate) trait Field {
    /// Returns the field with these numbers.
    fn of(numbers: &[f64]) -> Self;
    /// Returns the numbers of the field.
    fn numbers(&self) -> Vec<f64>;
}

/// A field that consists of one number.
pub(crate) trait Scalar: Copy {
    fn of(number: f64) -> Self;
    fn number(self) -> f64;
}

macro_rules! scalars {
    ($($type:ty: $of:expr),+) => {
        $(impl Scalar for $type {
            fn of(number: f64) -> $type {
                $of(number)
            }

            fn number(self) -> f64 {
                f64::from(self)
            }
        })+
    };
}

scalars!(f64: |n| n, f32: |n| n as f32, u32: |n| n as u32, bool: |n| n != 0.0);

impl<S: Scalar> Field for S {
    fn of(numbers: &[f64]) -> S {
        S::of(numbers[0])
    }

    fn numbers(&self) -> Vec<f64> {
        vec![self.number()]
    }
}

impl<S: Scalar, const N: usize> Field for [S; N] {
    fn of(numbers: &[f64]) -> [S; N] {
        std::array::from_fn(|at| S::of(numbers[at]))
    }

    fn numbers(&self) -> Vec<f64> {
        self.iter().map(|one| one.number()).collect()
    }
}

impl<F: Field> Field for Option<F> {
    fn of(numbers: &[f64]) -> Option<F> {
        (!numbers.is_empty()).then(|| F::of(numbers))
    }

    fn numbers(&self) -> Vec<f64> {
        self.as_ref().map(F::numbers).unwrap_or_default()
    }
}

impl Field for Size {
    fn of(numbers: &[f64]) -> Size {
        let [height, width] = Field::of(numbers);
        Size { width, height }
    }

    fn numbers(&self) -> Vec<f64> {
        [self.height, self.width].numbers()
    }
}

impl Field for Target {
    fn of(numbers: &[f64]) -> Target {
        match numbers {
            [_, _] => Target::Exact(Size::of(numbers)),
            _ => Target::Shorter {
                side: Field::of(numbers),
                most: numbers.get(2).map(|most| Scalar::of(*most)),
            },
        }
    }

    fn numbers(&self) -> Vec<f64> {
        match *self {
            Target::Exact(size) => size.numbers(),
            Target::Shorter { side, most: None } => side.numbers(),
            Target::Shorter {
                side,
                most: Some(most),
            } => [side, side, most].numbers(),
        }
    }
}

impl Field for Interpolation {
    fn of(numbers: &[f64]) -> Interpolation {
        if Field::of(numbers) {
            Interpolation::Bilinear
        } else {
            Interpolation::Nearest
        }
    }

    fn numbers(&self) -> Vec<f64> {
        (*self == Interpolation::Bilinear).numbers()
    }
}
