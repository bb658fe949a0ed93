//! The layout and type of results in memory.

use half::{bf16, f16};

use crate::Size;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A byte; values are rounded and clamped to 0 to 255.
    U8,
    /// Half precision.
    F16,
    /// bfloat16: the upper half of a single-precision number, rounded.
    Bf16,
    /// Single precision.
    F32,
}

/// The order of the values of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Pictures, colours, rows, columns: PyTorch's default (contiguous).
    Nchw,
    /// Pictures, rows, columns, colours: PyTorch's `channels_last`.
    Nhwc,
}

/// The layout and type of a batch in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The order of the values.
    pub layout: Layout,
    /// The type of a value.
    pub kind: Kind,
}

impl Kind {
    /// Returns the number of bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Kind::U8 => 1,
            Kind::F16 | Kind::Bf16 => 2,
            Kind::F32 => 4,
        }
    }
}

impl Kind {
    /// Reads a number from the first [`bytes`](Kind::bytes) bytes.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`bytes`](Kind::bytes).
    #[track_caller]
    pub fn value(self, bytes: &[u8]) -> f32 {
        match self {
            Kind::U8 => f32::from(bytes[0]),
            Kind::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Kind::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Kind::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        }
    }
}

impl Form {
    /// The form of the values between two passes.
    pub(crate) const BETWEEN: Form = Form {
        layout: Layout::Nhwc,
        kind: Kind::F32,
    };

    /// Returns the number that identifies the form to a kernel.
    pub(crate) fn code(self) -> u32 {
        let kind = match self.kind {
            Kind::U8 => 0,
            Kind::F16 => 1,
            Kind::Bf16 => 2,
            Kind::F32 => 3,
        };
        kind + 4 * u32::from(self.layout == Layout::Nhwc)
    }

    /// Returns the form with this number.
    pub(crate) fn of_code(code: u32) -> Form {
        Form {
            layout: if code & 4 == 0 {
                Layout::Nchw
            } else {
                Layout::Nhwc
            },
            kind: [Kind::U8, Kind::F16, Kind::Bf16, Kind::F32][code as usize & 3],
        }
    }

    /// Writes a picture, given by rows, to its bytes.
    pub(crate) fn store(self, picture: &[[f32; 3]], size: Size, to: &mut [u8]) {
        let pixels = size.area() as usize;
        let width = self.kind.bytes();
        for (at, pixel) in picture.iter().enumerate() {
            for (colour, &value) in pixel.iter().enumerate() {
                let place = match self.layout {
                    Layout::Nchw => colour * pixels + at,
                    Layout::Nhwc => at * 3 + colour,
                };
                let Some(to) = to.get_mut(place * width..(place + 1) * width) else {
                    return;
                };
                match self.kind {
                    Kind::U8 => to[0] = value.round_ties_even().clamp(0.0, 255.0) as u8,
                    Kind::F16 => to.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                    Kind::Bf16 => to.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                    Kind::F32 => to.copy_from_slice(&value.to_le_bytes()),
                }
            }
        }
    }
}
