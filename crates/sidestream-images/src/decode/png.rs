//! Decodes PNGs row by row: rows after the last one that is wanted are not decoded.

use std::io::{Cursor, ErrorKind};

use png::{ColorType, DecodingError, Limits, Transformations};

use super::{Options, size_bytes};
use crate::header::{Format, Header};
use crate::{Broken, Region};

/// Memory that the decoder may reserve besides the pixels: for a palette, a profile, rows.
const BESIDE_BYTES: u64 = 64 << 20;

pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    region: Region,
    into: &mut [u8],
    _: Options,
) -> Result<(), Broken> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    // Palettes, low bit depths and transparent colours are expanded to channels of 8 bits; of 16 bits the upper 8 are
    // kept.
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let memory = size_bytes(header.size) / 3 * 8 + BESIDE_BYTES;
    decoder.set_limits(Limits {
        bytes: usize::try_from(memory).unwrap_or(usize::MAX),
    });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(broken)?;
    let info = reader.info();
    if (info.width, info.height) != (header.size.width, header.size.height) {
        return Err(Broken::Damaged("two headers contradict each other".into()));
    }
    let channels = match reader.output_color_type().0 {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb => 3,
        ColorType::Rgba => 4,
        ColorType::Indexed => return Err(Broken::Damaged("its palette is missing".into())),
    };
    let width = region.size.width as usize;
    let columns = region.left as usize * channels..(region.left as usize + width) * channels;
    let interlaced = matches!(
        header.format,
        Format::Png {
            interlaced: true,
            ..
        }
    );
    if interlaced {
        // The last pass contains pixels of all rows.
        let size = reader.output_buffer_size();
        let size =
            size.ok_or_else(|| Broken::Damaged("its pixels do not fit into memory".into()))?;
        let mut all = vec![0; size];
        reader.next_frame(&mut all).map_err(broken)?;
        let row = header.size.width as usize * channels;
        let rows = all.chunks_exact(row).skip(region.top as usize);
        for (from, into) in rows.zip(into.chunks_exact_mut(width * 3)) {
            put(&from[columns.clone()], channels, into);
        }
        return Ok(());
    }
    for _ in 0..region.top {
        reader
            .next_row()
            .map_err(broken)?
            .ok_or(Broken::Truncated)?;
    }
    for into in into.chunks_exact_mut(width * 3) {
        let row = reader
            .next_row()
            .map_err(broken)?
            .ok_or(Broken::Truncated)?;
        put(&row.data()[columns.clone()], channels, into);
    }
    if region.top + region.size.height == header.size.height {
        // The checksum comes after the pixels.
        reader.finish().map_err(broken)?;
    }
    Ok(())
}

/// Converts a row with this number of channels to red, green and blue.
fn put(from: &[u8], channels: usize, into: &mut [u8]) {
    match channels {
        3 => into.copy_from_slice(from),
        4 => {
            for (from, into) in from.chunks_exact(4).zip(into.chunks_exact_mut(3)) {
                into.copy_from_slice(&from[..3]);
            }
        }
        _ => {
            for (from, into) in from.chunks_exact(channels).zip(into.chunks_exact_mut(3)) {
                into.fill(from[0]);
            }
        }
    }
}

fn broken(error: DecodingError) -> Broken {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Broken::Truncated
        }
        DecodingError::LimitsExceeded => {
            Broken::Damaged("it asks for more memory than its pixels need".into())
        }
        error => Broken::Damaged(error.to_string()),
    }
}
