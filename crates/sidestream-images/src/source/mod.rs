//! Sources of pictures: a folder, a list, the shards of an archive, or memory.
//!
//! A [`Dataset`] is a list of samples whose order depends only on their names. Reading a sample takes a single read
//! at a known position of a file; an archive is scanned once, when it is opened. So any sample can be read at any
//! time, and the samples of all archives are shuffled together, not only within a buffer.

mod folder;
mod list;
mod place;
mod samples;
mod shards;

pub use samples::{Sample, samples, write_samples};

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::{Broken, Error, Result};

/// Default limit on the bytes of one picture's file: 256 MiB.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// Pictures with their labels, in an order that never changes.
#[derive(Debug)]
pub struct Dataset {
    place: Place,
    /// The names one after another, and where each ends: a vector of strings would take three times the memory.
    names: String,
    ends: Vec<u64>,
    /// Empty if no sample has a label.
    labels: Vec<u32>,
    classes: Vec<String>,
    max_file_bytes: u64,
    identity: u64,
}

/// Where the samples are stored.
#[derive(Debug)]
enum Place {
    /// Files, with paths relative to this folder or absolute.
    Files(PathBuf),
    /// Members of archives.
    Shards(shards::Shards),
    /// The file contents of each sample, in memory.
    Memory(Vec<Vec<u8>>),
}

/// The value that marks a sample without a label; no label may have it.
const NO_LABEL: u32 = u32::MAX;
/// How messages describe a valid label.
const A_NUMBER: &str = "a whole number from 0 to 4294967294";

/// Returns the label in a text if it consists of digits alone and is in range.
fn number_of(text: &str) -> Option<u32> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_digits)?;
    (number != NO_LABEL).then_some(number)
}

/// Opens a file that lists samples.
fn open_file(path: &Path) -> Result<File> {
    let wrong = |why: &dyn std::fmt::Display| Error::source(path.display(), why);
    // The check comes before opening the file, since opening a pipe would wait for a writer, perhaps forever.
    let about = path.metadata().map_err(|error| wrong(&error))?;
    if about.is_dir() {
        let why = "it is a folder; where several sources are given, each is an archive";
        return Err(wrong(&why));
    }
    if !about.is_file() {
        let why = "it is a pipe or a device, and samples are read from places in files; save it as a file first";
        return Err(wrong(&why));
    }
    File::open(path).map_err(|error| wrong(&error))
}

/// Returns how to unpack a file whose first bytes are these, if it is compressed. A member of a compressed archive
/// could be reached only by reading everything before it.
fn compressed(path: &Path, first: &[u8]) -> Option<String> {
    let known: [(&[u8], &str, &str, &str); 5] = [
        (&[0x1F, 0x8B], "gzip", "gunzip", "gz"),
        (&[0x28, 0xB5, 0x2F, 0xFD], "zstd", "unzstd", "zst"),
        (&[0xFD, b'7', b'z', b'X', b'Z'], "xz", "unxz", "xz"),
        (b"BZh", "bzip2", "bunzip2", "bz2"),
        (b"PK\x03\x04", "zip", "unzip", ""),
    ];
    let found = known.iter().find(|(begins, ..)| first.starts_with(begins));
    let (_, by, undo, end) = found?;
    let name = path.file_name().unwrap_or(path.as_os_str()).display();
    // These tools derive the name of the unpacked file from the file's name.
    let undo = if name.to_string().ends_with(end) {
        format!("{undo} {name}")
    } else {
        format!("{undo} < {name} > unpacked.tar")
    };
    Some(format!(
        "it is compressed as a whole, by {by}, and pictures are read from their places in a file; unpack it first, by `{undo}`: WebDataset's shards are not compressed, since pictures are"
    ))
}

impl Dataset {
    /// Opens a folder with a sub-folder for each class: `root/cat/1.jpg`. The classes are numbered in the order of
    /// their names. A folder with pictures and no sub-folders gives samples without labels.
    ///
    /// Includes files whose names end in `.jpg`, `.jpeg`, `.jpe`, `.jfif` or `.png`, in any case and at any depth of
    /// a class, except hidden ones; their bytes determine the format. Links are followed; a link that is named as a
    /// picture and leads to nothing is a picture that cannot be read.
    ///
    /// # Errors
    /// [`Error::Source`] if a folder cannot be read, a link leads back to a folder around it, a link that is not named
    /// as a picture leads to nothing, there are no pictures, or there are pictures both outside and inside the
    /// sub-folders.
    pub fn folder(root: impl AsRef<Path>) -> Result<Dataset> {
        folder::open(root.as_ref(), None)
    }

    /// Opens a folder with these classes, numbered in this order. Other sub-folders are ignored.
    ///
    /// # Errors
    /// As [`Dataset::folder`], and if a class has no sub-folder or is named twice.
    pub fn folder_of_classes(root: impl AsRef<Path>, classes: &[&str]) -> Result<Dataset> {
        folder::open(root.as_ref(), Some(classes))
    }

    /// Opens a text file with a picture in each line, as a path relative to the list's own folder: `path` or
    /// `path,label`, where a label is a number. The last comma of a line separates path and label if a number follows
    /// it, or if only the text before it ends like a picture's file name. Empty lines are ignored. Either all lines
    /// have a label, or none.
    ///
    /// # Errors
    /// [`Error::Source`] with the line, if it is not a path, if its label is invalid, or if only some lines have
    /// labels.
    pub fn list(file: impl AsRef<Path>) -> Result<Dataset> {
        list::open(file.as_ref())
    }

    /// Opens tar shards in WebDataset's layout: the members of a sample follow each other and have the same name up
    /// to the first full stop after the last slash: `0001.jpg` and `0001.cls`. The picture is `jpg`, `jpeg` or `png`;
    /// the label is a number in `cls`, or `label` or `cls` of an object in `json`.
    ///
    /// # Errors
    /// [`Error::Source`] with archive and member if an archive is damaged or ends early, a sample has two pictures,
    /// or a label is invalid. Archives that are compressed as a whole are refused, since they can only be read from
    /// front to back.
    pub fn shards(archives: &[impl AsRef<Path>]) -> Result<Dataset> {
        shards::open(
            archives
                .iter()
                .map(|path| path.as_ref().to_owned())
                .collect(),
        )
    }

    /// Opens a path by its kind: a folder, an archive (`.tar`) or otherwise a list.
    ///
    /// # Errors
    /// Those of [`Dataset::folder`], [`Dataset::shards`] and [`Dataset::list`].
    pub fn open(path: impl AsRef<Path>) -> Result<Dataset> {
        let path = path.as_ref();
        let about = path
            .metadata()
            .map_err(|error| Error::source(path.display(), error))?;
        if about.is_dir() {
            return Dataset::folder(path);
        }
        if path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("tar"))
        {
            Dataset::shards(&[path])
        } else {
            Dataset::list(path)
        }
    }

    /// Creates a data set of pictures in memory, each with a name, the bytes of its file, and a label.
    ///
    /// # Errors
    /// [`Error::Source`] if `pictures` is empty, or only some have a label.
    pub fn memory(pictures: Vec<(String, Vec<u8>, Option<u32>)>) -> Result<Dataset> {
        let mut draft = Draft::default();
        let mut all = Vec::with_capacity(pictures.len());
        for (name, bytes, label) in pictures {
            draft.add(&name, label)?;
            all.push(bytes);
        }
        draft.finish(Place::Memory(all), Vec::new(), "memory")
    }

    /// Sets the limit on the bytes of a file, instead of [`MAX_FILE_BYTES`].
    pub fn with_max_file_bytes(mut self, max_file_bytes: u64) -> Dataset {
        self.max_file_bytes = max_file_bytes;
        self
    }

    /// Returns the number of samples.
    pub fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Returns false: a data set without samples is refused when it is opened.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the names of the classes; empty if they have none.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the label of a sample, if it has one.
    ///
    /// # Panics
    /// If `sample` is not below [`Dataset::len`].
    #[track_caller]
    pub fn label(&self, sample: u64) -> Option<u32> {
        assert!(sample < self.len(), "sample {sample} of {}", self.len());
        let label = self.labels.get(sample as usize).copied();
        label.filter(|label| *label != NO_LABEL)
    }

    /// Returns the name of a sample for messages: its path, or archive and member.
    ///
    /// # Panics
    /// If `sample` is not below [`Dataset::len`].
    #[track_caller]
    pub fn name(&self, sample: u64) -> String {
        let name = self.short_name(sample);
        match &self.place {
            Place::Files(root) => root.join(name).display().to_string(),
            Place::Shards(shards) => format!("{}: {name}", shards.archive(sample).display()),
            Place::Memory(_) => name.to_string(),
        }
    }

    fn short_name(&self, sample: u64) -> &str {
        let sample = sample as usize;
        let start = sample.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.names[start as usize..self.ends[sample] as usize]
    }

    /// Returns a digest of the names and labels: two data sets with equal digests have the same samples with the same
    /// numbers. The digest covers neither the bytes of the pictures, since all would have to be read, nor the folder
    /// that contains them.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Reads the file of a sample into `into` and replaces its contents.
    ///
    /// # Errors
    /// [`Broken::Unreadable`] or [`Broken::TooLong`].
    ///
    /// # Panics
    /// If `sample` is not below [`Dataset::len`].
    pub fn read(&self, sample: u64, into: &mut Vec<u8>) -> Result<(), Broken> {
        into.clear();
        match &self.place {
            Place::Files(root) => {
                let path = root.join(self.short_name(sample));
                // The check comes before opening the file, since opening a pipe would wait for a writer, perhaps
                // forever.
                if !path.metadata().map_err(unreadable)?.is_file() {
                    return Err(Broken::Unreadable("it is not a file".into()));
                }
                let file = File::open(path).map_err(unreadable)?;
                let about = file.metadata().map_err(unreadable)?;
                self.allow(about.len())?;
                into.reserve_exact(about.len() as usize);
                // A file that grows meanwhile is read up to the limit.
                let most = self.max_file_bytes.saturating_add(1);
                file.take(most).read_to_end(into).map_err(unreadable)?;
                self.allow(into.len() as u64)
            }
            Place::Shards(shards) => {
                let (file, at, length) = shards.member(sample);
                self.allow(length)?;
                into.resize(length as usize, 0);
                place::read_exact_at(file, into, at).map_err(unreadable)
            }
            Place::Memory(all) => {
                let bytes = &all[sample as usize];
                self.allow(bytes.len() as u64)?;
                into.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    fn allow(&self, size_bytes: u64) -> Result<(), Broken> {
        if size_bytes > self.max_file_bytes {
            Err(Broken::TooLong {
                size_bytes,
                max_bytes: self.max_file_bytes,
            })
        } else {
            Ok(())
        }
    }
}

fn unreadable(error: std::io::Error) -> Broken {
    Broken::Unreadable(error.to_string())
}

/// A data set whose samples are being listed.
#[derive(Default)]
struct Draft {
    names: String,
    ends: Vec<u64>,
    labels: Vec<u32>,
    labelled: u64,
}

impl Draft {
    fn add(&mut self, name: &str, label: Option<u32>) -> Result<()> {
        if label == Some(NO_LABEL) {
            return Err(Error::source(
                name,
                format!("the label {NO_LABEL} means that there is none; choose another"),
            ));
        }
        self.names.push_str(name);
        self.ends.push(self.names.len() as u64);
        self.labels.push(label.unwrap_or(NO_LABEL));
        self.labelled += u64::from(label.is_some());
        Ok(())
    }

    fn finish(
        self,
        place: Place,
        classes: Vec<String>,
        what: impl std::fmt::Display,
    ) -> Result<Dataset> {
        let many = self.ends.len() as u64;
        if many == 0 {
            return Err(Error::source(what, "there are no pictures"));
        }
        if self.labelled != 0 && self.labelled != many {
            let first = self
                .labels
                .iter()
                .position(|label| *label == NO_LABEL)
                .unwrap_or(0);
            let start = first.checked_sub(1).map_or(0, |before| self.ends[before]);
            let name = &self.names[start as usize..self.ends[first] as usize];
            let some = many - self.labelled;
            let why = format!(
                "{some} of {many} samples have no label, of which `{name}` is the first; label all or none"
            );
            return Err(Error::source(what, why));
        }
        let mut digest = Xxh3::new();
        let mut start = 0;
        for (end, label) in self.ends.iter().zip(&self.labels) {
            digest.update(&(end - start).to_le_bytes());
            digest.update(&label.to_le_bytes());
            start = *end;
        }
        digest.update(self.names.as_bytes());
        for class in &classes {
            digest.update(&(class.len() as u64).to_le_bytes());
            digest.update(class.as_bytes());
        }
        Ok(Dataset {
            place,
            labels: if self.labelled == 0 {
                Vec::new()
            } else {
                self.labels
            },
            names: self.names,
            ends: self.ends,
            classes,
            max_file_bytes: MAX_FILE_BYTES,
            identity: digest.digest(),
        })
    }
}
