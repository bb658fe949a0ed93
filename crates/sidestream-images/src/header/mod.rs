//! Reads the header of a picture without decoding it and without reserving memory.
//!
//! The first bytes determine the format, not the file name. Only headers are read, in one pass from front to back, so
//! the time is bounded by the length of the file. No input causes a panic.

mod exif;
mod jpeg;
mod png;

pub use exif::Orientation;

use crate::{Broken, Size};

/// Properties of a picture that are known before it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Format, with the properties that only this format has.
    pub format: Format,
    /// Size as stored, before any [`Orientation`] is applied.
    pub size: Size,
    /// Bits per channel.
    pub precision_bits: u8,
    /// Number of channels as stored: 1 is grey or a palette.
    pub channels: u8,
    /// How a viewer turns the picture, according to its EXIF data.
    pub orientation: Orientation,
}

/// A format, with the properties that only this format has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JPEG (ITU-T T.81).
    Jpeg {
        /// How the coefficients are coded.
        coding: Coding,
        /// Columns and rows of chroma samples per 8 × 8 block: (2, 2) is 4:2:0, (1, 1) is 4:4:4.
        sampling: (u8, u8),
        /// Blocks between two restart markers; 0 if there are none.
        restart_interval: u16,
        /// The colour transform in Adobe's marker, if there is one.
        adobe_transform: Option<u8>,
    },
    /// PNG (W3C, ISO/IEC 15948).
    Png {
        /// Whether the pixels are stored in seven passes (Adam7).
        interlaced: bool,
        /// Whether the picture has a palette.
        palette: bool,
        /// Whether the picture has transparency: an alpha channel, or a transparent colour. Decoding drops it.
        alpha: bool,
    },
}

/// How the coefficients of a JPEG are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// One scan, or one for each channel: baseline or extended.
    Sequential,
    /// Several scans, each of which adds detail.
    Progressive,
    /// Lossless coding.
    Lossless,
    /// Arithmetic coding instead of Huffman's, in any of the above.
    Arithmetic,
}

impl Header {
    /// Reads the header of a picture.
    ///
    /// # Errors
    /// [`Broken::Empty`], [`Broken::Unknown`], [`Broken::Truncated`] or [`Broken::Damaged`].
    pub fn read(bytes: &[u8]) -> Result<Header, Broken> {
        if bytes.is_empty() {
            return Err(Broken::Empty);
        }
        if bytes.starts_with(&[0xFF, 0xD8, 0xFF]) {
            return jpeg::read(bytes);
        }
        if bytes.starts_with(&png::SIGNATURE) {
            return png::read(bytes);
        }
        Err(Broken::Unknown)
    }

    /// Returns the part of a file that a GPU's hardware [engines](crate::decode::nvjpeg::Engines) accept, without the
    /// bytes after the picture's end. Returns none unless the file is a baseline JPEG of three channels with chroma
    /// in full or half resolution, of at least 64 × 64 and at most 32,768 × 16,384 pixels, and complete by its
    /// markers: the engines may fill missing parts with grey.
    pub fn for_engines(bytes: &[u8]) -> Option<&[u8]> {
        jpeg::for_engines(bytes)
    }

    /// Returns whether a JPEG ends before its picture does, by its markers alone.
    pub(crate) fn is_cut(bytes: &[u8]) -> bool {
        jpeg::is_cut(bytes)
    }

    /// Checks that the time to decode a JPEG is in proportion to its number of bytes.
    ///
    /// # Errors
    /// [`Broken::Damaged`] if it has more than `max_scans` scans, or its scans visit too many blocks for its length.
    pub(crate) fn bound_work(bytes: &[u8], max_scans: u32) -> Result<(), Broken> {
        jpeg::bound_work(bytes, max_scans)
    }

    /// Returns the size after turning.
    pub fn turned(&self) -> Size {
        self.orientation.turned(self.size)
    }
}

/// Reads a big-endian 16-bit number.
fn big16(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(two.try_into().ok()?))
}

/// Reads a big-endian 32-bit number.
fn big32(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(four.try_into().ok()?))
}
