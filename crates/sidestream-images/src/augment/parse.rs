//! Operators as text, in the words in which Python writes them: `RandomResizedCrop(224, scale=(0.2, 1)) RandomHorizontalFlip()`.

use sidestream::error::Result;

use super::operator::{Interpolation, Operator, Target, invalid};
use crate::Size;

/// The operators that a text lists, with torchvision's names, arguments and defaults, separated by spaces, commas or lines.
/// Parentheses without arguments may be left out. `ToDtype` takes `scale`, as if its type were `float32`.
///
/// # Errors
/// [`Error::Invalid`](sidestream::error::Error::Invalid) with the place, and with what is known there.
pub fn parse(text: &str) -> Result<Vec<Operator>> {
    let mut reader = Reader { text, at: 0 };
    let mut operators = Vec::new();
    while let Some(name) = reader.name()? {
        let mut arguments = Arguments {
            operator: name.to_owned(),
            positional: 0,
            given: reader.arguments()?,
        };
        let operator = operator(&mut arguments)?;
        arguments.finish()?;
        operators.push(operator);
    }
    match operators.is_empty() {
        true => Err(invalid(
            "there is no operator; give at least one, such as Resize((224, 224))".into(),
        )),
        false => Ok(operators),
    }
}

/// What stands for an argument.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Number(f64),
    Word(String),
    List(Vec<Value>),
}

/// An argument, with its name if it has one.
type Argument = (Option<String>, Value);

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

/// Values may stand in values, but nobody needs more than a pair of pairs.
const DEEPEST: u32 = 4;

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip(&mut self, also: &[char]) {
        let rest = self.rest();
        let next = rest.trim_start_matches(|c: char| c.is_whitespace() || also.contains(&c));
        self.at += rest.len() - next.len();
    }

    /// Takes this character, if it is the next.
    fn takes(&mut self, wanted: char) -> bool {
        self.skip(&[]);
        let is_next = self.rest().starts_with(wanted);
        self.at += if is_next { wanted.len_utf8() } else { 0 };
        is_next
    }

    fn word(&mut self) -> &'a str {
        self.skip(&[]);
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '.');
        let word = &rest[..end.unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn fault<T>(&self, what: &str) -> Result<T> {
        let rest: String = self.rest().chars().take(20).collect();
        let found = match rest.is_empty() {
            true => "the end of the text".to_owned(),
            false => format!("{rest:?}"),
        };
        Err(invalid(format!(
            "{what} was expected at character {}, and there is {found}",
            self.text[..self.at].chars().count() + 1
        )))
    }

    /// The name of the next operator; none at the end.
    fn name(&mut self) -> Result<Option<&'a str>> {
        self.skip(&[',']);
        if self.rest().is_empty() {
            return Ok(None);
        }
        match self.word() {
            "" => self.fault("the name of an operator"),
            // Python has them in a module.
            name => Ok(Some(name.rsplit('.').next().unwrap_or(name))),
        }
    }

    fn arguments(&mut self) -> Result<Vec<Argument>> {
        let mut all = Vec::new();
        if !self.takes('(') {
            return Ok(all);
        }
        while !self.takes(')') {
            let start = self.at;
            let name = self.word();
            if !name.is_empty() && self.takes('=') {
                all.push((Some(name.to_owned()), self.value(0)?));
            } else {
                self.at = start;
                all.push((None, self.value(0)?));
            }
            if !self.takes(',') && !self.rest().starts_with(')') {
                return self.fault("`,` or `)`");
            }
        }
        Ok(all)
    }

    fn value(&mut self, depth: u32) -> Result<Value> {
        let close = match () {
            () if self.takes('(') => ')',
            () if self.takes('[') => ']',
            () => return self.single(),
        };
        if depth == DEEPEST {
            return self.fault("a number");
        }
        let mut all = Vec::new();
        while !self.takes(close) {
            all.push(self.value(depth + 1)?);
            if !self.takes(',') && !self.rest().starts_with(close) {
                return self.fault(&format!("`,` or `{close}`"));
            }
        }
        Ok(Value::List(all))
    }

    fn single(&mut self) -> Result<Value> {
        let start = self.at;
        let is_signed = self.takes('-') || self.takes('+');
        let mut word = self.word();
        // The sign of an exponent ends a word.
        if word.ends_with(['e', 'E']) && word.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        {
            let from = self.at - word.len();
            if self.rest().starts_with(['-', '+']) {
                self.at += 1;
                self.word();
                word = &self.text[from..self.at];
            }
        }
        let text = self.text[start..self.at].trim();
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::Number(number)),
            _ if word.is_empty() || is_signed => {
                self.at = start;
                self.fault("a value")
            }
            _ => Ok(Value::Word(word.to_owned())),
        }
    }
}

/// The arguments of an operator, taken one by one in torchvision's order.
struct Arguments {
    operator: String,
    /// How many have been asked for.
    positional: usize,
    given: Vec<Argument>,
}

impl Arguments {
    fn take(&mut self, name: &str) -> Option<Value> {
        // Those without a name come first, in the order in which they are asked for.
        let found = match self.given.first() {
            Some((None, _)) => Some(0),
            _ => self
                .given
                .iter()
                .position(|(given, _)| given.as_deref() == Some(name)),
        };
        self.positional += 1;
        let value = self.given.remove(found?).1;
        let is_none = matches!(&value, Value::Word(word) if word == "None");
        (!is_none).then_some(value)
    }

    fn fault<T>(&self, name: &str, what: &str) -> Result<T> {
        let operator = &self.operator;
        Err(invalid(format!("{name} of {operator} is no {what}")))
    }

    fn needed<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        let operator = &self.operator;
        value.ok_or_else(|| invalid(format!("{operator} needs {name}")))
    }

    /// Whatever nobody asked for.
    fn finish(&self) -> Result<()> {
        let operator = &self.operator;
        match self.given.first() {
            None => Ok(()),
            Some((Some(name), _)) => Err(invalid(format!("{operator} has no argument {name}"))),
            Some((None, _)) => {
                let (most, end) = (self.positional, if self.positional == 1 { "" } else { "s" });
                Err(invalid(format!(
                    "{operator} has at most {most} argument{end}"
                )))
            }
        }
    }

    fn numbers(&mut self, name: &str) -> Result<Option<Vec<f64>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(Some(vec![number])),
            Some(Value::List(values)) => {
                let numbers = values.iter().map(|value| match value {
                    Value::Number(number) => Some(*number),
                    Value::Word(_) | Value::List(_) => None,
                });
                match numbers.collect::<Option<Vec<f64>>>() {
                    Some(numbers) => Ok(Some(numbers)),
                    None => self.fault(name, "list of numbers"),
                }
            }
            Some(Value::Word(_)) => self.fault(name, "number"),
        }
    }

    fn number(&mut self, name: &str, default: f64) -> Result<f64> {
        match self.numbers(name)?.as_deref() {
            None => Ok(default),
            Some([number]) => Ok(*number),
            Some(_) => self.fault(name, "number"),
        }
    }

    fn whole(&mut self, name: &str, default: u32) -> Result<u32> {
        let number = self.number(name, f64::from(default))?;
        match number >= 0.0 && number <= f64::from(u32::MAX) && number.fract() == 0.0 {
            true => Ok(number as u32),
            false => self.fault(name, "whole number"),
        }
    }

    fn pair(&mut self, name: &str) -> Result<Option<[f64; 2]>> {
        match self.numbers(name)?.as_deref() {
            None => Ok(None),
            Some([low, high]) => Ok(Some([*low, *high])),
            Some(_) => self.fault(name, "pair of numbers"),
        }
    }

    /// A number stands for the range from its negative to itself.
    fn around_zero(&mut self, name: &str) -> Result<Option<[f64; 2]>> {
        match self.numbers(name)?.as_deref() {
            None => Ok(None),
            Some([one]) if *one >= 0.0 => Ok(Some([-one, *one])),
            Some([low, high]) => Ok(Some([*low, *high])),
            Some(_) => self.fault(name, "number from 0 on, or pair of numbers"),
        }
    }

    /// A number stands for the range of so much around one, but not below zero.
    fn around_one(&mut self, name: &str) -> Result<Option<[f64; 2]>> {
        match self.numbers(name)?.as_deref() {
            None | Some([0.0]) => Ok(None),
            Some([one]) if *one >= 0.0 => Ok(Some([(1.0 - one).max(0.0), 1.0 + one])),
            Some([low, high]) => Ok(Some([*low, *high])),
            Some(_) => self.fault(name, "number from 0 on, or pair of numbers"),
        }
    }

    fn colour(&mut self, name: &str) -> Result<Option<[f32; 3]>> {
        match self.numbers(name)?.as_deref() {
            None => Ok(None),
            Some([one]) => Ok(Some([*one as f32; 3])),
            Some([red, green, blue]) => Ok(Some([*red as f32, *green as f32, *blue as f32])),
            Some(_) => self.fault(name, "number or colour of three numbers"),
        }
    }

    fn flag(&mut self, name: &str, default: bool) -> Result<bool> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Word(word)) if word == "True" || word == "true" => Ok(true),
            Some(Value::Word(word)) if word == "False" || word == "false" => Ok(false),
            Some(_) => self.fault(name, "True or False"),
        }
    }

    fn interpolation(&mut self, default: Interpolation) -> Result<Interpolation> {
        let name = "interpolation";
        match self.take(name) {
            None => Ok(default),
            Some(Value::Word(word)) => {
                match word
                    .rsplit('.')
                    .next()
                    .map(str::to_ascii_lowercase)
                    .as_deref()
                {
                    Some("nearest") => Ok(Interpolation::Nearest),
                    Some("bilinear") => Ok(Interpolation::Bilinear),
                    _ => self.fault(name, "NEAREST or BILINEAR"),
                }
            }
            Some(_) => self.fault(name, "NEAREST or BILINEAR"),
        }
    }

    fn sides(&mut self, name: &str) -> Result<Option<Vec<u32>>> {
        let Some(numbers) = self.numbers(name)? else {
            return Ok(None);
        };
        let is_whole = |side: &f64| *side >= 0.0 && *side <= 1e9 && side.fract() == 0.0;
        match numbers.iter().all(is_whole) {
            true => Ok(Some(numbers.iter().map(|side| *side as u32).collect())),
            false => self.fault(name, "whole number of pixels"),
        }
    }

    /// A number stands for a square; two are height and width.
    fn size(&mut self, name: &str) -> Result<Size> {
        let sides = self.sides(name)?;
        match self.needed(name, sides)?[..] {
            [side] => Ok(square(side)),
            [height, width] => Ok(Size { width, height }),
            _ => self.fault(name, "number from 0 on, or pair of numbers"),
        }
    }
}

fn square(side: u32) -> Size {
    Size {
        width: side,
        height: side,
    }
}

/// torchvision's order of arguments, and its defaults.
fn operator(take: &mut Arguments) -> Result<Operator> {
    use Interpolation::{Bilinear, Nearest};
    let ratio = [3.0 / 4.0, 4.0 / 3.0];
    Ok(match take.operator.as_str() {
        "RandomResizedCrop" => {
            let size = take.size("size")?;
            let scale = take.pair("scale")?.unwrap_or([0.08, 1.0]);
            let ratio = take.pair("ratio")?.unwrap_or(ratio);
            bilinear(take)?;
            let antialias = take.flag("antialias", true)?;
            Operator::RandomResizedCrop {
                size,
                scale,
                ratio,
                antialias,
            }
        }
        "RandomCrop" => Operator::RandomCrop {
            size: take.size("size")?,
            padding: match take.sides("padding")?.as_deref() {
                None => [0; 4],
                Some([all]) => [*all; 4],
                Some([x, y]) => [*x, *y, *x, *y],
                Some([left, top, right, bottom]) => [*left, *top, *right, *bottom],
                Some(_) => return take.fault("padding", "one, two or four numbers"),
            },
            pad_if_needed: take.flag("pad_if_needed", false)?,
            fill: take.colour("fill")?.unwrap_or_default(),
        },
        "CenterCrop" => Operator::CenterCrop {
            size: take.size("size")?,
        },
        "Resize" => {
            let sides = take.sides("size")?;
            let sides = take.needed("size", sides)?;
            bilinear(take)?;
            let most = take.sides("max_size")?;
            let size = match (&sides[..], most.as_deref()) {
                ([side], None) => Target::Shorter {
                    side: *side,
                    most: None,
                },
                ([side], Some([most])) => Target::Shorter {
                    side: *side,
                    most: Some(*most),
                },
                ([height, width], None) => Target::Exact(Size {
                    width: *width,
                    height: *height,
                }),
                (_, Some(_)) => {
                    return take.fault("max_size", "number beside a size of one number");
                }
                _ => return take.fault("size", "number or pair of numbers"),
            };
            let antialias = take.flag("antialias", true)?;
            Operator::Resize { size, antialias }
        }
        "RandomHorizontalFlip" => Operator::RandomHorizontalFlip {
            p: take.number("p", 0.5)?,
        },
        "RandomVerticalFlip" => Operator::RandomVerticalFlip {
            p: take.number("p", 0.5)?,
        },
        "RandomRotation" => {
            let degrees = take.around_zero("degrees")?;
            Operator::RandomRotation {
                degrees: take.needed("degrees", degrees)?,
                interpolation: take.interpolation(Nearest)?,
                expand: take.flag("expand", false)?,
                center: take.pair("center")?,
                fill: take.colour("fill")?.unwrap_or_default(),
            }
        }
        "RandomAffine" => {
            let degrees = take.around_zero("degrees")?;
            Operator::RandomAffine {
                degrees: take.needed("degrees", degrees)?,
                translate: take.pair("translate")?,
                scale: take.pair("scale")?,
                shear: match take.numbers("shear")?.as_deref() {
                    None => [0.0; 4],
                    Some([one]) => [-one, *one, 0.0, 0.0],
                    Some([low, high]) => [*low, *high, 0.0, 0.0],
                    Some([a, b, c, d]) => [*a, *b, *c, *d],
                    Some(_) => return take.fault("shear", "one, two or four numbers"),
                },
                interpolation: take.interpolation(Nearest)?,
                fill: take.colour("fill")?.unwrap_or_default(),
                center: take.pair("center")?,
            }
        }
        "RandomPerspective" => Operator::RandomPerspective {
            distortion_scale: take.number("distortion_scale", 0.5)?,
            p: take.number("p", 0.5)?,
            interpolation: take.interpolation(Bilinear)?,
            fill: take.colour("fill")?.unwrap_or_default(),
        },
        "ColorJitter" => Operator::ColorJitter {
            brightness: take.around_one("brightness")?,
            contrast: take.around_one("contrast")?,
            saturation: take.around_one("saturation")?,
            hue: take.around_zero("hue")?.filter(|hue| *hue != [0.0; 2]),
        },
        "Grayscale" => match take.whole("num_output_channels", 3)? {
            3 => Operator::Grayscale,
            _ => return take.fault("num_output_channels", "3: pictures keep three channels"),
        },
        "RandomGrayscale" => Operator::RandomGrayscale {
            p: take.number("p", 0.1)?,
        },
        "GaussianBlur" => {
            let kernel_size = take.sides("kernel_size")?;
            Operator::GaussianBlur {
                kernel_size: match take.needed("kernel_size", kernel_size)?[..] {
                    [side] => [side, side],
                    [x, y] => [x, y],
                    _ => return take.fault("kernel_size", "number or pair of numbers"),
                },
                sigma: match take.numbers("sigma")?.as_deref() {
                    None => [0.1, 2.0],
                    Some([one]) => [*one, *one],
                    Some([low, high]) => [*low, *high],
                    Some(_) => return take.fault("sigma", "number or pair of numbers"),
                },
            }
        }
        "RandomErasing" => Operator::RandomErasing {
            p: take.number("p", 0.5)?,
            scale: take.pair("scale")?.unwrap_or([0.02, 0.33]),
            ratio: take.pair("ratio")?.unwrap_or([0.3, 3.3]),
            value: take.colour("value")?.unwrap_or_default(),
        },
        "RandAugment" => Operator::RandAugment {
            num_ops: take.whole("num_ops", 2)?,
            magnitude: take.whole("magnitude", 9)?,
            num_magnitude_bins: take.whole("num_magnitude_bins", 31)?,
            interpolation: take.interpolation(Nearest)?,
            fill: take.colour("fill")?,
        },
        "MixUp" | "CutMix" => {
            let alpha = take.number("alpha", 1.0)?;
            // For labels, which are not made here.
            take.numbers("num_classes")?;
            match take.operator.as_str() {
                "MixUp" => Operator::MixUp { alpha },
                _ => Operator::CutMix { alpha },
            }
        }
        "ToDtype" => Operator::ToDtype {
            scale: take.flag("scale", false)?,
        },
        "Normalize" => {
            let (mean, std) = (take.colour("mean")?, take.colour("std")?);
            Operator::Normalize {
                mean: take.needed("mean", mean)?,
                std: take.needed("std", std)?,
            }
        }
        other => {
            let known = NAMES.join(", ");
            return Err(invalid(format!(
                "there is no operator {other:?}; there are {known}"
            )));
        }
    })
}

/// The operators that sample with a filter know no other.
fn bilinear(take: &mut Arguments) -> Result<()> {
    match take.interpolation(Interpolation::Bilinear)? {
        Interpolation::Bilinear => Ok(()),
        Interpolation::Nearest => {
            take.fault("interpolation", "BILINEAR, which is the only one here")
        }
    }
}

const NAMES: [&str; 19] = [
    "RandomResizedCrop",
    "RandomCrop",
    "CenterCrop",
    "Resize",
    "RandomHorizontalFlip",
    "RandomVerticalFlip",
    "RandomRotation",
    "RandomAffine",
    "RandomPerspective",
    "ColorJitter",
    "Grayscale",
    "RandomGrayscale",
    "GaussianBlur",
    "RandomErasing",
    "RandAugment",
    "MixUp",
    "CutMix",
    "ToDtype",
    "Normalize",
];
