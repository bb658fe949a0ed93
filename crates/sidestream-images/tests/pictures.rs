//! Pictures for the tests: generated here, and encoded in all the ways that the tests need.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

/// A random number generator that prints its seed first.
pub struct Draw(pub u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        println!("seed {seed}");
        Draw(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Paints smooth colours with some edges, with this number of channels.
pub fn paint(width: u32, height: u32, channels: u32) -> Vec<u8> {
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            for channel in 0..channels {
                let wave = ((x * (channel + 2)) as f32 / 17.0).sin() + (y as f32 / 11.0).cos();
                let edge = if (x / 24 + y / 16) % 2 == 0 {
                    30.0
                } else {
                    0.0
                };
                pixels.push((128.0 + 45.0 * wave + edge) as u8);
            }
        }
    }
    pixels
}

/// The parameters of a JPEG encoder.
#[derive(Clone)]
pub struct Jpeg {
    pub colours: ColorType,
    pub sampling: SamplingFactor,
    pub progressive: bool,
    pub restart: u16,
    pub orientation: Option<u8>,
}

impl Default for Jpeg {
    fn default() -> Jpeg {
        Jpeg {
            colours: ColorType::Rgb,
            sampling: SamplingFactor::F_2_2,
            progressive: false,
            restart: 0,
            orientation: None,
        }
    }
}

impl Jpeg {
    pub fn encode(&self, width: u32, height: u32) -> Vec<u8> {
        let channels = match self.colours {
            ColorType::Luma => 1,
            ColorType::Cmyk | ColorType::CmykAsYcck => 4,
            _ => 3,
        };
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes, 92);
        encoder.set_sampling_factor(self.sampling);
        encoder.set_progressive(self.progressive);
        if self.restart > 0 {
            encoder.set_restart_interval(self.restart);
        }
        if let Some(number) = self.orientation {
            let mut tiff = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
            tiff.extend([number, 0, 0, 0, 0, 0, 0]);
            encoder.add_exif_metadata(&tiff).unwrap();
        }
        let pixels = paint(width, height, channels);
        encoder
            .encode(&pixels, width as u16, height as u16, self.colours)
            .unwrap();
        bytes
    }
}

/// Encodes these bytes as a PNG.
pub fn png(
    width: u32,
    height: u32,
    colours: png::ColorType,
    depth: png::BitDepth,
    data: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(colours);
    encoder.set_depth(depth);
    if colours == png::ColorType::Indexed {
        encoder.set_palette(vec![250, 10, 20, 0, 200, 30, 7, 8, 9, 40, 50, 60]);
    }
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(data).unwrap();
    writer.finish().unwrap();
    bytes
}
