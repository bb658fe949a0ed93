//! Decodes JPEGs with zune-jpeg, which decodes whole pictures only.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::{Damage, Options, copy_rows, kept, size_bytes};
use crate::header::{Coding, Format, Header};
use crate::{Broken, Region};

pub(super) struct Jpeg {
    options: Options,
    /// The whole picture, if only a region is wanted.
    all: Vec<u8>,
}

impl Jpeg {
    pub fn new(options: Options) -> Jpeg {
        Jpeg {
            options,
            all: Vec::new(),
        }
    }

    pub fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        region: Region,
        into: &mut [u8],
    ) -> Result<(), Broken> {
        refuse(header)?;
        let options = DecoderOptions::new_fast()
            .set_max_width(header.size.width as usize)
            .set_max_height(header.size.height as usize)
            .set_strict_mode(self.options.damage == Damage::Refuse)
            .jpeg_set_max_scans(self.options.max_scans as usize)
            .jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        decoder.decode_headers().map_err(damaged)?;
        let size = decoder
            .dimensions()
            .map(|(width, height)| (width as u64, height as u64));
        let same = size == Some((header.size.width.into(), header.size.height.into()));
        if !same
            || decoder.output_buffer_size().map(|bytes| bytes as u64)
                != Some(size_bytes(header.size))
        {
            return Err(Broken::Damaged(
                "two frame headers contradict each other".into(),
            ));
        }
        if region == Region::whole(header.size) {
            return decoder.decode_into(into).map_err(damaged);
        }
        let mut all = std::mem::take(&mut self.all);
        all.resize(size_bytes(header.size) as usize, 0);
        decoder.decode_into(&mut all).map_err(damaged)?;
        let row = header.size.width as usize;
        let first = &all[region.top as usize * row * 3..];
        copy_rows(
            first,
            row,
            region.left as usize,
            region.size.width as usize,
            into,
        );
        self.all = kept(all);
        Ok(())
    }
}

fn refuse(header: &Header) -> Result<(), Broken> {
    let what = match header.format {
        Format::Jpeg {
            coding: Coding::Lossless,
            ..
        } => "it is coded without loss",
        Format::Jpeg {
            coding: Coding::Arithmetic,
            ..
        } => "it is coded arithmetically",
        _ if header.precision_bits != 8 => "it has more or fewer than 8 bits a channel",
        _ => return Ok(()),
    };
    let why = format!(
        "{what}, and zune-jpeg does not read such pictures; convert it, or build with the feature `turbojpeg`"
    );
    Err(Broken::Unsupported(why))
}

fn damaged(error: zune_jpeg::errors::DecodeErrors) -> Broken {
    use zune_jpeg::errors::DecodeErrors;
    match error {
        DecodeErrors::ExhaustedData => Broken::Truncated,
        DecodeErrors::Unsupported(what) => Broken::Unsupported(format!("{what:?}")),
        error => Broken::Damaged(error.to_string()),
    }
}
