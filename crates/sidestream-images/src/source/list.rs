//! A file that lists paths, with a label each or none.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::{Dataset, Draft, Place};
use crate::{Error, Result};

/// No path is as long; a file that is no list should not be read into memory as one line.
const MAX_LINE_BYTES: u64 = 1 << 16;

pub(super) fn open(file: &Path) -> Result<Dataset> {
    let reader = File::open(file).map_err(|error| Error::source(file.display(), error))?;
    let mut reader = BufReader::new(reader);
    let mut draft = Draft::default();
    let mut line = Vec::new();
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
        // A file from another system may begin with a mark, and end its lines otherwise.
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
        let label = text
            .rsplit_once(',')
            .map(|(path, label)| (path.trim_end(), label.trim()));
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (path, label) = match label.filter(|(_, label)| is_number(label)) {
            Some((path, label)) => {
                let number = label.parse().ok();
                let too_large = || {
                    Error::source(
                        place(),
                        format!(
                            "the label {label} is too large; {} is the largest",
                            u32::MAX - 1
                        ),
                    )
                };
                (path, Some(number.ok_or_else(too_large)?))
            }
            None => (text, None),
        };
        draft.add(path, label).map_err(|error| match error {
            Error::Source { why, .. } => Error::source(place(), why),
            error => error,
        })?;
    }
    let root = file.parent().unwrap_or(Path::new("")).to_owned();
    draft.finish(Place::Files(root), Vec::new(), file.display())
}
