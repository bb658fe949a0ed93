//! Errors of a single picture, of the data set, and of the options.

use std::fmt;

use crate::{Region, Size};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a picture cannot be decoded. This concerns one file; [`OnBroken`](crate::load::OnBroken) says what happens to
/// its batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Broken {
    /// The file could not be read.
    Unreadable(String),
    /// The file has no bytes.
    Empty,
    /// The first bytes are those of neither a JPEG nor a PNG.
    Unknown,
    /// The file ends before the picture does.
    Truncated,
    /// The file violates its format.
    Damaged(String),
    /// The picture may be valid, but this decoder does not support it.
    Unsupported(String),
    /// The header announces more pixels than are allowed. No memory was reserved for them.
    TooLarge {
        /// Size in the header.
        size: Size,
        /// Maximum number of pixels.
        max_pixels: u64,
    },
    /// The file has more bytes than are allowed.
    TooLong {
        /// Size of the file.
        size_bytes: u64,
        /// Maximum size of a file.
        max_bytes: u64,
    },
    /// The decoder panicked, which is a bug in the decoder.
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

/// Why a call failed. Each variant names the file, the member of an archive or the option.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A folder, a list or an archive of the data set is invalid.
    Source {
        /// Path of the source, with the line or the archive member.
        place: String,
        /// What is wrong, and what to do about it.
        why: String,
    },
    /// A picture is broken, and broken pictures end the batch.
    Picture {
        /// Index in the unshuffled list.
        sample: u64,
        /// Path, or the archive and the member.
        name: String,
        /// What is wrong with the picture.
        why: Broken,
    },
    /// A picture is broken, and so is every picture that was tried as its replacement.
    NoReplacement {
        /// Name of the first broken picture.
        name: String,
        /// What is wrong with the first broken picture.
        why: Broken,
        /// Number of replacements that were tried.
        tried: u64,
    },
    /// The caller's function asked for a region that is not inside the picture.
    Region {
        /// Name of the picture.
        name: String,
        /// Region that the function returned.
        region: Region,
        /// Size of the picture.
        size: Size,
    },
    /// The caller's function panicked.
    Function {
        /// Name of the picture that the function was called for.
        name: String,
        /// Message of the panic.
        what: String,
    },
    /// The pictures of a batch need more memory than a slab may have.
    Slab {
        /// Bytes that the pictures need.
        size_bytes: u64,
        /// Maximum size of a slab.
        max_bytes: u64,
    },
    /// Memory for a slab could not be allocated.
    Memory(String),
    /// A worker thread could not be started, or panicked outside the decoder and the caller's functions.
    Worker(String),
    /// An option has an invalid value.
    Options(String),
    /// A state does not belong to this data set or these options.
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
                "{name} (sample {sample}): {why}; fix or remove it, or have broken pictures skipped or replaced"
            ),
            Error::NoReplacement { name, why, tried } => write!(
                f,
                "{name}: {why}; the {tried} pictures after it are broken too, so none can replace it: check the data"
            ),
            Error::Region { name, region, size } => write!(
                f,
                "{name}: {} × {} pixels at column {} and row {} were requested, and it has {} × {}; \
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
