//! Reads a data set from a file that lists paths, all or none of them with labels.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::folder::ends_as_picture;
use super::{A_NUMBER, Dataset, Draft, Place, compressed, number_of, open_file};
use crate::{Error, Result};

/// Longer than any path, so that a file that is not a list is not read into memory as one line.
const MAX_LINE_BYTES: u64 = 1 << 16;

pub(super) fn open(file: &Path) -> Result<Dataset> {
    let mut reader = BufReader::new(open_file(file)?);
    let begin = reader.fill_buf();
    let begin = begin.map_err(|error| Error::source(file.display(), error))?;
    if let Some(why) = compressed(file, begin) {
        return Err(Error::source(file.display(), why));
    }
    if begin.starts_with(&[0xFF, 0xD8, 0xFF]) || begin.starts_with(b"\x89PNG") {
        let why = "it is a picture; give the folder that it is in, or a list of paths";
        return Err(Error::source(file.display(), why));
    }
    let mut draft = Draft::default();
    let mut line = Vec::new();
    // The first line: its number, its text, and whether it has a label.
    let mut first: Option<(u64, String, bool)> = None;
    for number in 1u64.. {
        let place = || format!("{}:{number}", file.display());
        line.clear();
        let read = reader
            .by_ref()
            .take(MAX_LINE_BYTES + 1)
            .read_until(b'\n', &mut line);
        if read.map_err(|error| Error::source(place(), error))? == 0 {
            break;
        }
        if line.len() as u64 > MAX_LINE_BYTES {
            let why =
                format!("the line has more than {MAX_LINE_BYTES} bytes; is this a list of paths?");
            return Err(Error::source(place(), why));
        }
        let text = std::str::from_utf8(&line);
        let text = text.map_err(|_| {
            Error::source(place(), "the line is not UTF-8; is this a list of paths?")
        })?;
        // A file from another system may begin with a byte order mark and have other line ends.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim();
        if text.is_empty() {
            continue;
        }
        if text.contains('\0') {
            return Err(Error::source(
                place(),
                "the line has a zero byte; is this a list of paths?",
            ));
        }
        let (path, label) = labelled(text).map_err(|why| Error::source(place(), why))?;
        match &first {
            None => first = Some((number, text.to_owned(), label.is_some())),
            Some((first, _, true)) if label.is_none() => {
                let why = format!(
                    "`{text}` has no label, and line {first} has one; write `path,label` into every line, where a label is a number, or `path` into every line"
                );
                return Err(Error::source(place(), why));
            }
            Some((first, other, false)) if label.is_some() => {
                let why = format!(
                    "this line has a label, and line {first}, `{other}`, has none; write `path,label` into every line, where a label is a number, or `path` into every line, and no line of titles"
                );
                return Err(Error::source(place(), why));
            }
            Some(_) => {}
        }
        draft.add(path, label)?;
    }
    let root = file.parent().unwrap_or(Path::new("")).to_owned();
    draft.finish(Place::Files(root), Vec::new(), file.display())
}

/// Splits a line into its path and its label, if it has one. The text after the last comma is a label if it is a
/// number. Otherwise it belongs to the path, unless only the text before the comma ends like a picture's file name:
/// then a label was intended, and the line is an error.
fn labelled(text: &str) -> Result<(&str, Option<u32>), String> {
    let Some((path, label)) = text.rsplit_once(',') else {
        return Ok((text, None));
    };
    let (path, label) = (path.trim_end(), label.trim());
    let is_meant = label.parse::<f64>().is_ok()
        || (ends_as_picture(Path::new(path)) && !ends_as_picture(Path::new(text)));
    if !is_meant {
        return Ok((text, None));
    }
    match number_of(label) {
        Some(number) => Ok((path, Some(number))),
        None => Err(format!(
            "`{label}` is not a label: after the last comma {A_NUMBER} is expected; number the classes, or put the pictures of each into a folder of its own"
        )),
    }
}
