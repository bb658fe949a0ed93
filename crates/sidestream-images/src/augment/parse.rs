//! Parses operators from text, written as in Python: `RandomResizedCrop(224, scale=(0.2, 1)) RandomHorizontalFlip()`.

use sidestream::error::{Error, Result};

use super::operator::{Operator, invalid};

/// Parses a list of operators with torchvision's names, arguments and defaults, separated by spaces, commas or lines.
/// Parentheses without arguments may be omitted. `ToDtype` takes only `scale`; its type is `float32`.
///
/// # Errors
/// [`Error::Invalid`](sidestream::error::Error::Invalid) with the position, and what is valid there.
pub fn parse(text: &str) -> Result<Vec<Operator>> {
    let mut reader = Reader { text, at: 0 };
    let mut operators = Vec::new();
    while let Some(name) = reader.name()? {
        operators.push(Operator::new(name, reader.arguments()?)?);
    }
    match operators.is_empty() {
        true => Err(invalid(
            "there is no operator; give at least one, such as Resize((224, 224))".into(),
        )),
        false => Ok(operators),
    }
}

/// Parses an argument's default, which the table has as text; `None` gives none.
pub(super) fn default(text: &str) -> Result<Option<Value>> {
    Reader { text, at: 0 }.value(0).map(Value::unless_none)
}

/// The value of an argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Number(f64),
    /// A word: a Python constant, or the name of a mode.
    Word(String),
    /// Values in parentheses or brackets.
    List(Vec<Value>),
}

impl Value {
    /// Returns the number, if the value is one.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Value::Number(number) => Some(*number),
            Value::Word(_) | Value::List(_) => None,
        }
    }

    /// Returns the part after the last dot in lower case, if the value is a word.
    pub(super) fn last_word(&self) -> Option<String> {
        match self {
            Value::Word(word) => word.rsplit('.').next().map(str::to_ascii_lowercase),
            Value::Number(_) | Value::List(_) => None,
        }
    }

    fn unless_none(self) -> Option<Value> {
        let is_none = matches!(&self, Value::Word(word) if word == "None");
        (!is_none).then_some(self)
    }
}

/// An argument, with its name if it is given by name.
type Argument = (Option<String>, Value);

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

/// Maximum nesting of values; no operator needs more than a pair of pairs.
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

    /// Consumes this character if it is the next.
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

    /// Returns the name of the next operator; none at the end.
    fn name(&mut self) -> Result<Option<&'a str>> {
        self.skip(&[',']);
        if self.rest().is_empty() {
            return Ok(None);
        }
        match self.word() {
            "" => self.fault("the name of an operator"),
            // The name may have a module before it, as in Python.
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
        // The sign of an exponent is a delimiter and ended the word.
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

/// The arguments given for an operator, taken one by one in torchvision's order.
pub(super) struct Given {
    pub operator: String,
    /// Number of positional arguments taken so far.
    positional: usize,
    given: Vec<Argument>,
}

impl Given {
    pub fn new(operator: &str, given: Vec<Argument>) -> Given {
        Given {
            operator: operator.to_owned(),
            positional: 0,
            given,
        }
    }

    /// Takes the value of the next argument; none if it is missing or `None`.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        // Positional arguments come first, in the order in which they are taken.
        let found = match self.given.first() {
            Some((None, _)) => Some(0),
            _ => self
                .given
                .iter()
                .position(|(given, _)| given.as_deref() == Some(name)),
        };
        self.positional += 1;
        self.given.remove(found?).1.unless_none()
    }

    pub fn fault(&self, name: &str, what: &str) -> Error {
        let operator = &self.operator;
        invalid(format!("{name} of {operator} is no {what}"))
    }

    /// Refuses arguments that the operator does not have.
    pub fn finish(&self) -> Result<()> {
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
}
