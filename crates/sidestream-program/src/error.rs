//! The two ways in which reading fails.

use std::fmt;

use crate::expect::Expect;

/// The text is not one YAML document that holds stream programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Line of the fault, from 1.
    pub line: usize,
    /// Column of the fault, from 1.
    pub column: usize,
    /// What is wrong and what to do about it, in one line.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, column {}: {}",
            self.line, self.column, self.message
        )
    }
}

impl std::error::Error for Error {}

/// One program of a document breaks the format; a checker prints `BadProgram`.
///
/// Its display is one line that says where, what, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadProgram {
    /// The text of `name`, where there is one, even if it is not a valid name.
    pub name: Option<String>,
    /// Number of the op that breaks the format, or nothing if it is not an op.
    pub at: Option<usize>,
    /// Line of the fault, from 1.
    pub line: usize,
    /// What the op says under `do`, where it is text.
    pub verb: Option<String>,
    /// The field or key at fault, where it is one.
    pub field: Option<String>,
    /// What is wrong and what to do about it, in one line.
    pub message: String,
    /// What the program expects of a checker, if that much could be read: a
    /// test of a checker may well expect `BadProgram`.
    pub expect: Option<Expect>,
}

impl fmt::Display for BadProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if let Some(at) = self.at {
            write!(f, ", op {at}")?;
        }
        if let Some(verb) = &self.verb {
            write!(f, " (`{verb}`)")?;
        }
        if let Some(field) = &self.field {
            let word = if self.at.is_some() { "field" } else { "key" };
            write!(f, ", {word} `{field}`")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for BadProgram {}

/// A fault in one program, before it is known which op it belongs to.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) line: usize,
    pub(crate) field: Option<String>,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> Self {
        Self {
            line,
            field: None,
            message: message.into(),
        }
    }

    /// Names the field at fault, unless a deeper reader has already done so.
    pub(crate) fn in_field(mut self, field: &str) -> Self {
        if self.field.is_none() {
            self.field = Some(shown(field));
        }
        self
    }
}

/// Text of the user as it appears in a message: one line, and not endless.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 48;
    let mut line: String = text
        .chars()
        .take(LONGEST)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}
