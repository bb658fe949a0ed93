//! Reads tar archives in WebDataset's layout. Each archive is scanned once, from header to header; after that, every
//! sample is a single read at a known position.
//!
//! The crate `tar` reads the headers and verifies their checksums. What follows a header (a name, a label, pax
//! records) is read here, so that its length is bounded.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use sidestream::check::one_line;
use tar::{Archive, Entry, EntryType, PaxExtensions};

use super::{A_NUMBER, Dataset, Draft, NO_LABEL, Place, compressed, number_of, open_file};
use crate::{Error, Result};

/// Names and labels are short; anything longer is refused.
const MAX_NAME_BYTES: u64 = 1 << 16;
const MAX_LABEL_BYTES: u64 = 1 << 20;

/// Archives, and where in them the pictures are.
#[derive(Debug)]
pub(super) struct Shards {
    archives: Vec<(PathBuf, File)>,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    archive: u32,
    at: u64,
    length: u64,
}

impl Shards {
    pub fn archive(&self, sample: u64) -> &Path {
        &self.archives[self.members[sample as usize].archive as usize].0
    }

    /// Returns the file, and the range of bytes of the member in it.
    pub fn member(&self, sample: u64) -> (&File, u64, u64) {
        let Member {
            archive,
            at,
            length,
        } = self.members[sample as usize];
        (&self.archives[archive as usize].1, at, length)
    }
}

/// The members of a sample that have been read so far.
#[derive(Default)]
struct Group {
    key: String,
    picture: Option<(String, Member)>,
    label: Option<u32>,
}

pub(super) fn open(paths: Vec<PathBuf>) -> Result<Dataset> {
    let mut draft = Draft::default();
    let mut shards = Shards {
        archives: Vec::new(),
        members: Vec::new(),
    };
    for (path, archive) in paths.into_iter().zip(0..) {
        let file = open_file(&path)?;
        walk(&path, archive, &file, &mut draft, &mut shards.members)?;
        shards.archives.push((path, file));
    }
    let what = match &shards.archives[..] {
        [] => return Err(Error::source("shards", "no archive is named")),
        [(path, _)] => path.display().to_string(),
        [(first, _), .., (last, _)] => format!("{} to {}", first.display(), last.display()),
    };
    draft.finish(Place::Shards(shards), Vec::new(), what)
}

/// A scan of the members of an archive.
struct Walk<'a> {
    path: &'a Path,
    archive: u32,
    /// Bytes in the whole file.
    length: u64,
    /// Name of the previous member, for messages.
    after: String,
    /// Name of the next member, if a separate entry contains it.
    long_name: Option<Vec<u8>>,
    /// The current sample, and the keys of the earlier ones.
    group: Group,
    done: HashSet<u128>,
}

fn walk(
    path: &Path,
    archive: u32,
    file: &File,
    draft: &mut Draft,
    members: &mut Vec<Member>,
) -> Result<()> {
    let wrong = |error: io::Error| Error::source(path.display(), error);
    let mut first = [0; 8];
    let mut start = file;
    let found = start.read(&mut first).map_err(wrong)?;
    if let Some(why) = compressed(path, &first[..found]) {
        return Err(Error::source(path.display(), why));
    }
    start.rewind().map_err(wrong)?;
    let mut walk = Walk {
        path,
        archive,
        length: file.metadata().map_err(wrong)?.len(),
        after: String::from("the beginning"),
        long_name: None,
        group: Group::default(),
        done: HashSet::new(),
    };
    let mut tar = Archive::new(file);
    let mut end_of_last = 0;
    // Raw: long names and pax records come as entries, and nothing is read implicitly.
    for entry in tar.entries_with_seek().map_err(wrong)?.raw(true) {
        let mut entry = entry.map_err(|error| {
            let after = &walk.after;
            walk.wrong(format!(
                "it is damaged after {after}: {error}; copy it again"
            ))
        })?;
        end_of_last = entry
            .raw_file_position()
            .saturating_add(entry.size())
            .div_ceil(512)
            .saturating_mul(512);
        match entry.header().entry_type() {
            EntryType::GNULongName => {
                let name = walk.content(&mut entry, MAX_NAME_BYTES, "a name")?;
                let name = name.split(|byte| *byte == 0).next();
                walk.long_name = name.map(<[u8]>::to_vec);
            }
            EntryType::XHeader => {
                let records = walk.content(&mut entry, MAX_LABEL_BYTES, "the records of pax")?;
                walk.records(&records)?;
            }
            EntryType::Regular | EntryType::Continuous => {
                walk.member(&mut entry, draft, members)?;
            }
            EntryType::GNUSparse => return Err(walk.wrong(with_holes(&walk.after))),
            // Folders, links and records for the whole archive are not samples. Their long name must not be used for
            // the next member.
            _ => walk.long_name = None,
        }
    }
    // An archive ends with a block of zeros. Without this check, an archive that was cut between two members would
    // just have fewer samples.
    if end_of_last >= walk.length {
        let after = &walk.after;
        return Err(walk.wrong(format!(
            "it ends after {after} without the end-of-archive mark; copy it again"
        )));
    }
    settle(walk.group, draft, members)
}

impl Walk<'_> {
    fn wrong(&self, why: String) -> Error {
        Error::source(self.path.display(), why)
    }

    /// Returns the contents of an entry that describes the next member.
    fn content(&self, entry: &mut Entry<'_, &File>, most: u64, what: &str) -> Result<Vec<u8>> {
        let (size, after) = (entry.size(), &self.after);
        if size > most {
            return Err(self.wrong(format!(
                "after {after}: {what} of {size} bytes, and {most} are allowed"
            )));
        }
        let mut bytes = Vec::new();
        let read = entry.read_to_end(&mut bytes);
        read.map_err(|error| self.wrong(format!("after {after}: {error}")))?;
        if bytes.len() as u64 == size {
            Ok(bytes)
        } else {
            Err(self.wrong(format!(
                "it ends within {what} after {after}; copy it again"
            )))
        }
    }

    fn records(&mut self, records: &[u8]) -> Result<()> {
        let after = &self.after;
        for record in PaxExtensions::new(records) {
            let record = record.map_err(|error| self.wrong(format!("after {after}: {error}")))?;
            match record.key_bytes() {
                b"path" => self.long_name = Some(record.value_bytes().to_vec()),
                b"size" => {
                    return Err(self.wrong(format!(
                        "after {after}: a member's size is given by pax, so it is larger than 8 GB, which no picture is"
                    )));
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(self.wrong(with_holes(after)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds a file to its sample.
    fn member(
        &mut self,
        entry: &mut Entry<'_, &File>,
        draft: &mut Draft,
        members: &mut Vec<Member>,
    ) -> Result<()> {
        let (at, size) = (entry.raw_file_position(), entry.size());
        let name = self.long_name.take();
        let name = name.unwrap_or_else(|| entry.path_bytes().into_owned());
        let name = String::from_utf8(name).map_err(|_| {
            let after = &self.after;
            self.wrong(format!(
                "after {after}: a name is not UTF-8; rename the member"
            ))
        })?;
        if at.checked_add(size).is_none_or(|end| end > self.length) {
            return Err(self.wrong(format!("it ends within `{name}`; copy it again")));
        }
        self.after = format!("`{name}`");
        let Some((key, end)) = split(&name) else {
            return Ok(());
        };
        if self.group.key != key {
            settle(std::mem::take(&mut self.group), draft, members)?;
            if !self
                .done
                .insert(xxhash_rust::xxh3::xxh3_128(key.as_bytes()))
            {
                return Err(self.wrong(format!(
                    "the members of `{key}` do not follow each other, or there are two such samples"
                )));
            }
            self.group.key = key.to_string();
        }
        match end.to_ascii_lowercase().as_str() {
            "jpg" | "jpeg" | "png" => {
                let member = Member {
                    archive: self.archive,
                    at,
                    length: size,
                };
                if let Some((other, _)) = self.group.picture.replace((name.clone(), member)) {
                    return Err(self.wrong(format!(
                        "`{other}` and `{name}` are two pictures of one sample"
                    )));
                }
            }
            // A `cls` takes precedence over a `json`, since its meaning is clearer.
            "cls" => self.group.label = Some(self.label(entry, &name, of_text)?),
            "json" => {
                let label = self.label(entry, &name, of_json)?;
                self.group.label = self.group.label.or(label);
            }
            _ => {}
        }
        Ok(())
    }

    fn label<T>(
        &self,
        entry: &mut Entry<'_, &File>,
        name: &str,
        read: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<T> {
        let size = entry.size();
        if size > MAX_LABEL_BYTES {
            return Err(self.wrong(format!(
                "`{name}` has {size} bytes, and a label has at most {MAX_LABEL_BYTES}"
            )));
        }
        let mut bytes = Vec::new();
        let whole = entry.read_to_end(&mut bytes);
        whole.map_err(|error| self.wrong(format!("`{name}`: {error}")))?;
        read(&bytes).map_err(|why| self.wrong(format!("`{name}` is not a label: {why}")))
    }
}

fn with_holes(after: &str) -> String {
    format!("after {after}: a member with holes; pack the archive without `--sparse`")
}

/// Adds a complete sample. A sample without a picture is dropped, as in WebDataset's readers.
fn settle(group: Group, draft: &mut Draft, members: &mut Vec<Member>) -> Result<()> {
    if let Some((name, member)) = group.picture {
        draft.add(&name, group.label)?;
        members.push(member);
    }
    Ok(())
}

/// Splits a member's name into key and extension, which begins at the first full stop of the last path component.
fn split(name: &str) -> Option<(&str, &str)> {
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let stop = last + name[last..].find('.')?;
    // A hidden file is not part of a sample.
    (stop > last).then(|| (&name[..stop], &name[stop + 1..]))
}

fn of_text(bytes: &[u8]) -> Result<u32, String> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    number_of(text).ok_or_else(|| {
        let found = excerpt(text);
        format!("it holds `{found}`, and {A_NUMBER} is expected; number the classes")
    })
}

/// Returns the label in a JSON object, if it has one.
fn of_json(bytes: &[u8]) -> Result<Option<u32>, String> {
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!(
            "it is not JSON: there is an error at line {line}, column {column}; write an object such as {{\"label\": 3}}"
        )
    })?;
    let found = ["label", "cls"]
        .iter()
        .find_map(|key| Some((key, value.get(key)?)));
    let Some((key, found)) = found else {
        return Ok(None);
    };
    let label = found.as_u64().and_then(|label| u32::try_from(label).ok());
    let label = label.filter(|label| *label != NO_LABEL);
    label.map(Some).ok_or_else(|| {
        let found = excerpt(&found.to_string());
        format!("its `{key}` is `{found}`, and {A_NUMBER} is expected; number the classes")
    })
}

/// Returns as much of `text` as fits into one line of a message.
fn excerpt(text: &str) -> String {
    let line: String = text.chars().take(40).collect();
    let shown = one_line(&line);
    let more = if line.len() < text.len() { "…" } else { "" };
    format!("{shown}{more}")
}
