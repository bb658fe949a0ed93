//! Decodes pictures into rows of red, green and blue bytes.
//!
//! Headers are not trusted: the size in a header is checked against a limit before memory is reserved, and the region
//! is checked against the buffer before anything is written.
//!
//! A PNG is decoded exactly: of 16 bits the upper 8 are kept, grey becomes three equal bytes, and transparency is
//! dropped. The pixels of a JPEG are those of the decoder that [`identity`] names; a decoded region has the same bytes
//! as that region of the whole picture.

#[cfg(not(feature = "turbojpeg"))]
mod in_rust;
pub mod nvjpeg;
mod png;
#[cfg(feature = "turbojpeg")]
mod turbo;

#[cfg(not(feature = "turbojpeg"))]
use in_rust::Jpeg;
#[cfg(feature = "turbojpeg")]
use turbo::Jpeg;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::header::{Format, Header};
use crate::{Broken, Region, Size};

/// Default limit on the pixels of a picture: the limit of Pillow.
pub const MAX_PIXELS: u64 = 178_956_970;

/// How pictures are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A picture whose header states more pixels is refused before memory is reserved.
    pub max_pixels: u64,
    /// A progressive JPEG with more scans is refused. So is one with fewer scans if they visit far more blocks than
    /// the file's bytes can describe, since each scan costs as much time as decoding a picture.
    pub max_scans: u32,
    /// What happens to files that can be decoded, but have a fault.
    pub damage: Damage,
    /// Whether pictures are turned as their EXIF data says. The default is false, as in Pillow and torchvision.
    pub orient: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_pixels: MAX_PIXELS,
            max_scans: 100,
            damage: Damage::Refuse,
            orient: false,
        }
    }
}

/// What happens to a JPEG with a fault that does not stop the decoder, such as extra bytes or a missing end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Damage {
    /// The picture is broken. Otherwise a file that was cut short would train the model on grey.
    #[default]
    Refuse,
    /// The decoder's output is used as it is.
    Accept,
}

/// Decodes one picture at a time, and keeps its memory for the next.
pub struct Decoder {
    options: Options,
    jpeg: Jpeg,
    /// Pixels before they are turned.
    unturned: Vec<u8>,
}

/// Scratch memory beyond this size is freed after each picture, so that one huge picture does not keep memory
/// forever.
const KEPT_BYTES: usize = 32 << 20;

impl Decoder {
    /// Returns a decoder with these options.
    pub fn new(options: Options) -> Decoder {
        Decoder {
            options,
            jpeg: Jpeg::new(options),
            unturned: Vec::new(),
        }
    }

    /// Reads the header, and checks whether the picture may be decoded.
    ///
    /// # Errors
    /// Those of [`Header::read`], and [`Broken::TooLarge`].
    pub fn look(&self, bytes: &[u8]) -> Result<Header, Broken> {
        let header = Header::read(bytes)?;
        let Size { width, height } = header.size;
        if u64::from(width) * u64::from(height) > self.options.max_pixels {
            return Err(Broken::TooLarge {
                size: header.size,
                max_pixels: self.options.max_pixels,
            });
        }
        Ok(header)
    }

    /// Returns the size of the decoded picture, after turning if the options ask for it.
    pub fn size(&self, header: &Header) -> Size {
        if self.options.orient {
            header.turned()
        } else {
            header.size
        }
    }

    /// Decodes a region into rows of red, green and blue bytes without gaps.
    ///
    /// Only what is needed is decoded, so damage after the region may remain undetected. After an error the contents
    /// of `into` are undefined.
    ///
    /// # Errors
    /// What is wrong with the picture. A panic of the decoder is returned as [`Broken::Panicked`].
    ///
    /// # Panics
    /// If the region is empty or not within the picture, or `into` has not exactly three bytes for each of its pixels.
    #[track_caller]
    pub fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        region: Region,
        into: &mut [u8],
    ) -> Result<(), Broken> {
        assert!(
            is_within(region, self.size(header)),
            "{region:?} is not within the picture"
        );
        assert_eq!(
            into.len() as u64,
            size_bytes(region.size),
            "three bytes for each pixel"
        );
        // The caller passes the header: it may belong to other bytes, or may not have been checked.
        if self.look(bytes)? != *header {
            return Err(Broken::Damaged(
                "the header is that of another picture".into(),
            ));
        }
        let decoded = catch_unwind(AssertUnwindSafe(|| {
            self.turned(bytes, header, region, into)
        }));
        decoded.unwrap_or_else(|panic| {
            // The panic may have left the decoder in any state.
            *self = Decoder::new(self.options);
            Err(Broken::Panicked(message(&*panic)))
        })
    }

    fn turned(
        &mut self,
        bytes: &[u8],
        header: &Header,
        region: Region,
        into: &mut [u8],
    ) -> Result<(), Broken> {
        if !self.options.orient || header.orientation == Default::default() {
            return self.stored(bytes, header, region, into);
        }
        let stored = header.orientation.stored(region, header.size);
        let mut unturned = std::mem::take(&mut self.unturned);
        unturned.resize(into.len(), 0);
        self.stored(bytes, header, stored, &mut unturned)?;
        header.orientation.turn(&unturned, stored.size, into);
        self.unturned = kept(unturned);
        Ok(())
    }

    fn stored(
        &mut self,
        bytes: &[u8],
        header: &Header,
        region: Region,
        into: &mut [u8],
    ) -> Result<(), Broken> {
        match header.format {
            // Not every decoder detects that the last rows are missing, or that the header states more rows than the
            // file has.
            Format::Jpeg { .. }
                if self.options.damage == Damage::Refuse && Header::is_cut(bytes) =>
            {
                Err(Broken::Truncated)
            }
            Format::Jpeg { .. } => {
                Header::bound_work(bytes, self.options.max_scans)?;
                self.jpeg.decode(bytes, header, region, into)
            }
            Format::Png { .. } => png::decode(bytes, header, region, into, self.options),
        }
    }
}

/// Returns the names of the decoders, with the versions on which pixels depend. A loader's state is valid for these
/// decoders only, since the pixels of another decoder differ slightly.
pub fn identity() -> &'static str {
    #[cfg(feature = "turbojpeg")]
    return "libjpeg-turbo 3 (turbojpeg-sys 1.2), png 0.18";
    #[cfg(not(feature = "turbojpeg"))]
    "zune-jpeg 0.5, png 0.18"
}

/// Returns the number of bytes in the pixels of a picture of this size.
pub(crate) fn size_bytes(size: Size) -> u64 {
    3 * size.area()
}

/// Returns whether a region is not empty and within a picture of this size.
pub(crate) fn is_within(region: Region, size: Size) -> bool {
    let fits = |first: u32, many: u32, all: u32| {
        many > 0 && first.checked_add(many).is_some_and(|end| end <= all)
    };
    fits(region.left, region.size.width, size.width)
        && fits(region.top, region.size.height, size.height)
}

/// Returns the message of a panic.
pub(crate) fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a message".into())
}

/// Copies a range of columns from rows that begin at `from` and have `row_pixels` pixels each.
fn copy_rows(from: &[u8], row_pixels: usize, left: usize, width: usize, into: &mut [u8]) {
    let rows = from
        .chunks_exact(row_pixels * 3)
        .zip(into.chunks_exact_mut(width * 3));
    for (from, into) in rows {
        into.copy_from_slice(&from[left * 3..][..width * 3]);
    }
}

/// Returns the scratch memory, or an empty vector if it is too large to keep.
fn kept(scratch: Vec<u8>) -> Vec<u8> {
    if scratch.capacity() > KEPT_BYTES {
        Vec::new()
    } else {
        scratch
    }
}
