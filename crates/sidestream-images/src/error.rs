//! What goes wrong: with a picture, with the data, with what was asked for.

use std::fmt;

use crate::{Region, Size};

/// What the calls of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a picture cannot be decoded. It is about one file; what becomes of the batch is for
/// [`OnBroken`](crate::load::OnBroken) to say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Broken {
    /// The file could not be read.
    Unreadable(String),
    /// There is not one byte.
    Empty,
    /// Neither a JPEG nor a PNG, by its first bytes.
    Unknown,
    /// The file ends before the picture does.
    Truncated,
    /// Something in it is not as its format demands.
    Damaged(String),
    /// It may be a good picture, but not one that this decoder reads.
    Unsupported(String),
    /// It says that it has more pixels than are allowed. Nothing was reserved for them.
    TooLarge {
        /// What its header says.
        size: Size,
        /// How many pixels are allowed.
        max_pixels: u64,
    },
    /// The file has more bytes than are allowed.
    TooLong {
        /// How many it has.
        size_bytes: u64,
        /// How many are allowed.
        max_bytes: u64,
    },
    /// The decoder panicked. That is a defect of the decoder.
    Panicked(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Unreadable(why) => write!(f, "it cannot be read: {why}"),
            Broken::Empty => f.write_str("it is empty"),
            Broken::Unknown => {
                f.write_str("its first bytes are neither those of a JPEG nor of a PNG")
            }
            Broken::Truncated => f.write_str("it ends before the picture does"),
            Broken::Damaged(why) => write!(f, "it is damaged: {why}"),
            Broken::Unsupported(why) => write!(f, "it cannot be decoded: {why}"),
            Broken::TooLarge { size, max_pixels } => write!(
                f,
                "its header says {} × {} pixels, and at most {max_pixels} pixels are allowed (`max_pixels`)",
                size.width, size.height
            ),
            Broken::TooLong {
                size_bytes,
                max_bytes,
            } => write!(
                f,
                "it has {size_bytes} bytes, and at most {max_bytes} are allowed (`max_file_bytes`)"
            ),
            Broken::Panicked(what) => write!(f, "the decoder panicked: {what}"),
        }
    }
}

impl std::error::Error for Broken {}

/// Why a call failed. Each names the file, the member of an archive or the option that it is about.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A folder, a list or an archive that the data consists of.
    Source {
        /// Its path, with the line or the member.
        place: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// A picture, where broken ones are to end the batch.
    Picture {
        /// Its place in the unshuffled list.
        sample: u64,
        /// Its path, or the archive and the member.
        name: String,
        /// What is wrong with it.
        why: Broken,
    },
    /// So many pictures in a row are broken that none was found to stand in for one.
    NoReplacement {
        /// The first of them.
        name: String,
        /// What is wrong with it.
        why: Broken,
        /// How many were tried.
        tried: u64,
    },
    /// The caller's function asked for a part that the picture does not have.
    Region {
        /// The picture.
        name: String,
        /// What it asked for.
        region: Region,
        /// What there is.
        size: Size,
    },
    /// The caller's function panicked.
    Function {
        /// For which picture.
        name: String,
        /// Its message.
        what: String,
    },
    /// The pictures of a batch need more memory than a slab may have.
    Slab {
        /// How many bytes they need.
        size_bytes: u64,
        /// How many are allowed.
        max_bytes: u64,
    },
    /// The memory for a slab could not be had.
    Memory(String),
    /// A worker thread could not be started, or panicked outside the decoder and the caller's functions.
    Worker(String),
    /// An option that cannot be.
    Options(String),
    /// A state that does not belong to this data or these options.
    State(String),
}

impl Error {
    pub(crate) fn source(place: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error::Source {
            place: place.to_string(),
            why: why.to_string(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Source { place, why } => write!(f, "{place}: {why}"),
            Error::Picture { sample, name, why } => write!(
                f,
                "{name} (sample {sample}): {why}; mend or remove it, or have broken pictures skipped or replaced"
            ),
            Error::NoReplacement { name, why, tried } => write!(
                f,
                "{name}: {why}; the {tried} pictures after it are broken too, so none can replace it: check the data"
            ),
            Error::Region { name, region, size } => write!(
                f,
                "{name}: {} × {} pixels from column {} and row {} on were asked for, and it has {} × {}; \
                 ask for at least one pixel, and for none outside it",
                region.size.width,
                region.size.height,
                region.left,
                region.top,
                size.width,
                size.height
            ),
            Error::Function { name, what } => {
                write!(
                    f,
                    "{name}: the function that chooses a region panicked: {what}"
                )
            }
            Error::Slab {
                size_bytes,
                max_bytes,
            } => write!(
                f,
                "the pictures of a batch need {size_bytes} bytes, and a slab may have {max_bytes}; \
                 ask for smaller batches or regions, or raise `max_slab_bytes`"
            ),
            Error::Worker(why) => write!(f, "a worker of the loader failed: {why}"),
            Error::Memory(why) => write!(f, "no memory for a slab: {why}"),
            Error::Options(why) | Error::State(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}
