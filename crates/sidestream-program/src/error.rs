//! The two kinds of read failures: of a document, and of one program.

use std::fmt;

use crate::expect::Expect;

/// The text is not a YAML document of stream programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Line of the error, from 1.
    pub line: usize,
    /// Column of the error, from 1.
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
/// It is displayed as one line with the place, the error, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadProgram {
    /// Text of `name`, if there is one, even if it is not a valid name.
    pub name: Option<String>,
    /// Number of the op that breaks the format; none if the error is not in an op.
    pub at: Option<usize>,
    /// Line of the error, from 1.
    pub line: usize,
    /// Text of the op's `do`, if it is text.
    pub verb: Option<String>,
    /// The invalid field or key, if there is one.
    pub field: Option<String>,
    /// What is wrong and what to do about it, in one line.
    pub message: String,
    /// What the program expects of a checker, if it could be read: a test of a checker may expect `BadProgram`.
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

/// An error in one program.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// The op that it belongs to, and the text of the op's `do`, once they are known.
    pub(crate) at: Option<usize>,
    pub(crate) verb: Option<String>,
    pub(crate) line: usize,
    pub(crate) field: Option<String>,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> Self {
        Self {
            at: None,
            verb: None,
            line,
            field: None,
            message: message.into(),
        }
    }

    /// Names the invalid field, unless a deeper reader has already done so.
    pub(crate) fn in_field(mut self, field: &str) -> Self {
        if self.field.is_none() {
            self.field = Some(shown(field));
        }
        self
    }
}

/// Formats text of the user for a message: in one line, and shortened.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 48;
    let mut line = String::new();
    for character in text.chars().take(LONGEST) {
        match character {
            '"' | '\'' => line.push(character),
            _ => line.extend(character.escape_debug()),
        }
    }
    if text.chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}
