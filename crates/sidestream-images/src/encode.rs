//! Encodes pixels as a PNG file, for contact sheets.

use crate::{Error, Result, Size};

/// Encodes rows of red, green and blue bytes as a PNG.
///
/// # Errors
/// [`Error::Options`] if `pixels` does not have three bytes for each pixel.
pub fn encode_png(size: Size, pixels: &[u8]) -> Result<Vec<u8>> {
    let refused = |error: png::EncodingError| Error::Options(format!("a PNG: {error}"));
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, size.width, size.height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(refused)?;
    writer.write_image_data(pixels).map_err(refused)?;
    writer.finish().map_err(refused)?;
    Ok(file)
}
