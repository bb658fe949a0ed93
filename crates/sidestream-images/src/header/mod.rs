//! What a picture's header says, read without decoding it and without reserving anything.
//!
//! The format is told by the first bytes, never by the name. Only headers are walked, in one pass from front to back, so
//! the time is bounded by the length of the file; no input panics.

mod exif;
mod jpeg;
mod png;

pub use exif::Orientation;

use crate::{Broken, Size};

/// What is known of a picture before it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The format, with what only that format has.
    pub format: Format,
    /// As it is stored, before any [`Orientation`].
    pub size: Size,
    /// Bits of a channel.
    pub precision_bits: u8,
    /// Channels, as they are stored: 1 is grey or a palette.
    pub channels: u8,
    /// How a viewer should turn it, if it says so in EXIF.
    pub orientation: Orientation,
}

/// A format, with what only that format has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JPEG (ITU-T T.81).
    Jpeg {
        /// How it is coded.
        coding: Coding,
        /// How many columns and rows of chroma samples there are for each 8 × 8 block: (2, 2) is 4:2:0, (1, 1) is 4:4:4.
        sampling: (u8, u8),
        /// Blocks between restart markers; 0 if there are none.
        restart_interval: u16,
        /// The colour transform that Adobe's marker names, if there is one.
        adobe_transform: Option<u8>,
    },
    /// PNG (W3C, ISO/IEC 15948).
    Png {
        /// Its pixels come in seven passes.
        interlaced: bool,
        /// It has a palette.
        palette: bool,
        /// It says how much shines through: an own channel, or a colour that is transparent. It is left out.
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
    /// Without loss.
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

    /// That part of a file which a GPU's hardware [engines](crate::decode::nvjpeg::Engines) take, without what stands behind the
    /// picture's end. Nothing if it is no baseline JPEG of three channels with colours in half the resolution at most, is smaller than
    /// 64 × 64 or larger than 32,768 × 16,384, or is not whole by its marks: what is missing the engines may fill with grey.
    pub fn for_engines(bytes: &[u8]) -> Option<&[u8]> {
        jpeg::for_engines(bytes)
    }

    /// Whether a JPEG ends before its picture does, by its marks alone.
    pub(crate) fn is_cut(bytes: &[u8]) -> bool {
        jpeg::is_cut(bytes)
    }

    /// Whether decoding a JPEG takes no more time than its bytes are worth.
    ///
    /// # Errors
    /// [`Broken::Damaged`] if it has more scans than that, or more than its bytes are worth.
    pub(crate) fn bound_work(bytes: &[u8], max_scans: u32) -> Result<(), Broken> {
        jpeg::bound_work(bytes, max_scans)
    }

    /// Its size after it was turned.
    pub fn turned(&self) -> Size {
        self.orientation.turned(self.size)
    }
}

/// Two bytes, the more significant first.
fn big16(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(two.try_into().ok()?))
}

/// Four bytes, the most significant first.
fn big32(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(four.try_into().ok()?))
}
