//! A picture's bytes become rows of red, green and blue bytes.
//!
//! Nothing here trusts a header: before anything is reserved the size it states is held against a limit, and before
//! anything is written the room is held against the region.
//!
//! What is exact: of a PNG every byte, where 16 bits become the upper 8, grey becomes three equal bytes, and
//! transparency is left out. Of a JPEG the pixels are those of the decoder that [`identity`] names; a region has the same
//! bytes as that region of the whole picture.

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

/// How many pixels a picture may have unless told otherwise: as many as Pillow allows.
pub const MAX_PIXELS: u64 = 178_956_970;

/// How pictures are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Pictures whose header states more pixels are refused before any memory is reserved.
    pub max_pixels: u64,
    /// A progressive JPEG with more scans is refused. One with fewer is, too, if they go over far more of the picture than the file's
    /// bytes can describe: each scan costs as much time as decoding a picture.
    pub max_scans: u32,
    /// What becomes of files that can be decoded, but not without a fault.
    pub damage: Damage,
    /// Whether pictures are turned as EXIF says. By default they are not: neither Pillow nor torchvision does.
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

/// What becomes of a JPEG that has a fault which does not stop the decoder, such as bytes too many or a missing end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Damage {
    /// It is broken. A file that was cut short would otherwise train the model on grey.
    #[default]
    Refuse,
    /// It is taken for what could be decoded.
    Accept,
}

/// Decodes one picture at a time, and keeps its memory for the next.
pub struct Decoder {
    options: Options,
    jpeg: Jpeg,
    /// Pixels that are not yet where they belong.
    unturned: Vec<u8>,
}

/// Scratch memory beyond this is given back after each picture: one huge picture should not be paid for ever after.
const KEPT_BYTES: usize = 32 << 20;

impl Decoder {
    /// A decoder with these options.
    pub fn new(options: Options) -> Decoder {
        Decoder {
            options,
            jpeg: Jpeg::new(options),
            unturned: Vec::new(),
        }
    }

    /// What the header says, if the picture may be decoded.
    ///
    /// # Errors
    /// What [`Header::read`] gives, and [`Broken::TooLarge`].
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

    /// The size of the picture as it comes out, turned or not.
    pub fn size(&self, header: &Header) -> Size {
        match self.options.orient {
            true => header.turned(),
            false => header.size,
        }
    }

    /// Decodes a region into rows of red, green and blue bytes without gaps.
    ///
    /// Only what is needed is decoded, so damage behind the region may go unnoticed. After an error `into` holds anything.
    ///
    /// # Errors
    /// What is wrong with the picture. A panic of a decoder is [`Broken::Panicked`].
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
        // The header is the caller's: it need not be that of these bytes, nor have been looked at.
        if self.look(bytes)? != *header {
            return Err(Broken::Damaged(
                "the header is that of another picture".into(),
            ));
        }
        let decoded = catch_unwind(AssertUnwindSafe(|| {
            self.turned(bytes, header, region, into)
        }));
        decoded.unwrap_or_else(|panic| {
            // Whatever state it was left in.
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
            // Not every decoder notices that the last rows are missing, or that the header says more rows than there are.
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

/// Which decoders these are, with the versions on which pixels depend. Part of what a state of a loader is bound to: from
/// another decoder the pictures would be others, by a little.
pub fn identity() -> &'static str {
    #[cfg(feature = "turbojpeg")]
    return "libjpeg-turbo 3 (turbojpeg-sys 1.2), png 0.18";
    #[cfg(not(feature = "turbojpeg"))]
    "zune-jpeg 0.5, png 0.18"
}

/// How many bytes so many pixels have.
pub(crate) fn size_bytes(size: Size) -> u64 {
    3 * size.area()
}

/// Whether a region has pixels, and all of them within a picture of this size.
pub(crate) fn is_within(region: Region, size: Size) -> bool {
    let fits = |first: u32, many: u32, all: u32| {
        many > 0 && first.checked_add(many).is_some_and(|end| end <= all)
    };
    fits(region.left, region.size.width, size.width)
        && fits(region.top, region.size.height, size.height)
}

/// What a panic says.
pub(crate) fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a message".into())
}

/// Copies a part of some rows, which begin at `from` and have `row_pixels` pixels each.
fn copy_rows(from: &[u8], row_pixels: usize, left: usize, width: usize, into: &mut [u8]) {
    let rows = from
        .chunks_exact(row_pixels * 3)
        .zip(into.chunks_exact_mut(width * 3));
    for (from, into) in rows {
        into.copy_from_slice(&from[left * 3..][..width * 3]);
    }
}

/// Scratch memory, if it is worth keeping.
fn kept(scratch: Vec<u8>) -> Vec<u8> {
    match scratch.capacity() > KEPT_BYTES {
        true => Vec::new(),
        false => scratch,
    }
}
