//! Reads single values of a program: names, numbers, words, accesses.
//!
//! The format determines the type of a scalar, not YAML: where it expects a name, `on` is a name, and where it
//! expects a number, a quoted `"1"` is not one.

use crate::error::Fault;
use crate::names::is_name;
use crate::words::Words;
use crate::yaml::{Items, Kind, View};

pub(crate) fn text<'t>(view: View<'t>, wanted: &str) -> Result<&'t str, Fault> {
    match view.kind() {
        Kind::Scalar(text, _) => Ok(text),
        _ => Err(view.is_not(wanted)),
    }
}

/// Returns the error "`x` is not …; use …".
pub(crate) fn unknown(view: View<'_>, what: &str, words: &str) -> Fault {
    view.fault(format!("{view} is not {what}; use {words}"))
}

/// Reads one of the format's words for a type.
pub(crate) fn word<T: Copy>(view: View<'_>, words: &Words<T>, what: &str) -> Result<T, Fault> {
    let word = text(view, what)?;
    let known = words.find(word);
    known.ok_or_else(|| unknown(view, what, &words.listed()))
}

pub(crate) fn name(view: View<'_>) -> Result<&str, Fault> {
    let text = text(view, "a name")?;
    checked_name(text, view)
}

/// Checks a name that may be part of a longer text.
fn checked_name<'t>(name: &'t str, view: View<'t>) -> Result<&'t str, Fault> {
    is_name(name)
        .then_some(name)
        .ok_or_else(|| not_a_name(view))
}

fn not_a_name(view: View<'_>) -> Fault {
    let what = "a name; use a letter, then letters, digits and `_`, 255 at most";
    view.fault(format!("{view} is not {what}"))
}

pub(crate) fn list<'t>(view: View<'t>, of: &str) -> Result<Items<'t>, Fault> {
    match view.kind() {
        Kind::Sequence(items) => Ok(items),
        _ => Err(view.fault(format!(
            "{view} is given where a list of {of} is expected; write it in brackets, `[…]`"
        ))),
    }
}

pub(crate) fn is_null(view: View<'_>) -> bool {
    matches!(
        view.kind(),
        Kind::Scalar("" | "~" | "null" | "Null" | "NULL", true)
    )
}

pub(crate) fn boolean(view: View<'_>) -> Result<bool, Fault> {
    match view.kind() {
        Kind::Scalar("true" | "True" | "TRUE", true) => Ok(true),
        Kind::Scalar("false" | "False" | "FALSE", true) => Ok(false),
        _ => Err(view.fault(format!("{view} is neither `true` nor `false`"))),
    }
}

/// Reads a whole number between two bounds, both inclusive.
pub(crate) fn integer(view: View<'_>, least: u64, most: u64) -> Result<u64, Fault> {
    signed(view, least.into(), most.into()).map(|number| number.unsigned_abs() as u64)
}

/// Reads a whole number, which may be negative.
pub(crate) fn signed(view: View<'_>, least: i128, most: i128) -> Result<i128, Fault> {
    let written = match view.kind() {
        Kind::Scalar(text, true) => whole_number(text),
        _ => None,
    };
    match written {
        Some(number) if (least..=most).contains(&number) => Ok(number),
        Some(_) => Err(view.fault(format!("{view} is not within {least} to {most}"))),
        None => Err(view.fault(format!(
            "{view} is not a whole number; write digits, without quotes"
        ))),
    }
}

/// Parses a number as in the core schema of YAML 1.2. All numbers that exceed the type are read as the largest one,
/// which is above any bound.
fn whole_number(text: &str) -> Option<i128> {
    let (digits, radix) = match text.get(..2) {
        Some("0x") => (&text[2..], 16),
        Some("0o") => (&text[2..], 8),
        _ => (text.strip_prefix(['-', '+']).unwrap_or(text), 10),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    let size = i128::from_str_radix(digits, radix).unwrap_or(i128::MAX);
    Some(if text.starts_with('-') { -size } else { size })
}

/// A buffer's name and the range of its bytes, as written.
pub(crate) type NamedRange<'t> = (&'t str, Option<(u64, u64)>);

/// Reads `A` or `A[lo:hi]`.
pub(crate) fn named_range(view: View<'_>) -> Result<NamedRange<'_>, Fault> {
    let text = text(view, "an access")?;
    let Some((name, rest)) = text.split_once('[') else {
        return Ok((checked_name(text, view)?, None));
    };
    let bounds = rest
        .strip_suffix(']')
        .and_then(|inner| inner.split_once(':'));
    let range = bounds.and_then(|(low, high)| Some((offset(low)?, offset(high)?)));
    match range {
        Some((low, high)) if is_name(name) && low <= high => Ok((name, range)),
        Some((low, high)) if is_name(name) => Err(view.fault(format!(
            "the range {low}:{high} ends before it starts; write the lower byte first"
        ))),
        _ => Err(view.fault(format!(
            "{view} is not an access; write a buffer or a range of its bytes, as in \"A[0:64]\""
        ))),
    }
}

/// Parses an offset of a range: digits only. Numbers that are too large are out of range anyway.
fn offset(digits: &str) -> Option<u64> {
    let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    number.then(|| digits.parse().unwrap_or(u64::MAX))
}
