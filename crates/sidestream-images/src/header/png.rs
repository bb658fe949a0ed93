//! Reads the chunks of a PNG up to its pixels.

use super::exif::{self, Orientation};
use super::{Format, Header, big32};
use crate::{Broken, Size};

pub(super) const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

pub(super) fn read(bytes: &[u8]) -> Result<Header, Broken> {
    let (name, first, mut at) = chunk(bytes, SIGNATURE.len())?;
    if name != b"IHDR" || first.len() != 13 {
        return Err(damaged("it does not begin with a header"));
    }
    let cut = || damaged("the header is cut");
    let width = big32(first, 0).ok_or_else(cut)?;
    let height = big32(first, 4).ok_or_else(cut)?;
    if width == 0 || height == 0 || width > i32::MAX as u32 || height > i32::MAX as u32 {
        return Err(damaged("the size in the header is invalid"));
    }
    let [depth, colour, _, _, interlace] = *first[8..].first_chunk().ok_or_else(cut)?;
    let (channels, depths, alpha): (u8, &[u8], bool) = match colour {
        0 => (1, &[1, 2, 4, 8, 16], false),
        2 => (3, &[8, 16], false),
        3 => (1, &[1, 2, 4, 8], false),
        4 => (2, &[8, 16], true),
        6 => (4, &[8, 16], true),
        _ => {
            return Err(damaged("the header names an unknown colour type"));
        }
    };
    if !depths.contains(&depth) {
        return Err(damaged(
            "the header names a bit depth that its colour type does not allow",
        ));
    }
    let mut transparent = alpha;
    let mut orientation = Orientation::Upright;
    // The walk ends at the pixels; the decoder refuses a file that ends before them.
    while let Ok((name, data, next)) = chunk(bytes, at) {
        match name {
            b"IDAT" | b"IEND" => break,
            b"tRNS" => transparent = true,
            b"eXIf" => orientation = exif::orientation(data),
            _ => {}
        }
        at = next;
    }
    Ok(Header {
        format: Format::Png {
            interlaced: interlace == 1,
            palette: colour == 3,
            alpha: transparent,
        },
        size: Size { width, height },
        precision_bits: depth,
        channels,
        orientation,
    })
}

/// Returns the name and data of a chunk, and where the next begins. The decoder verifies checksums.
fn chunk(bytes: &[u8], at: usize) -> Result<(&[u8; 4], &[u8], usize), Broken> {
    let length = big32(bytes, at).ok_or(Broken::Truncated)? as usize;
    let name = bytes
        .get(at + 4..)
        .and_then(<[u8]>::first_chunk)
        .ok_or(Broken::Truncated)?;
    let end = (at + 8).checked_add(length).ok_or(Broken::Truncated)?;
    let data = match name {
        // The pixels are not needed here, and they are most of a long file.
        b"IDAT" => &[],
        _ => bytes.get(at + 8..end).ok_or(Broken::Truncated)?,
    };
    Ok((name, data, end.saturating_add(4)))
}

fn damaged(why: &str) -> Broken {
    Broken::Damaged(why.into())
}
