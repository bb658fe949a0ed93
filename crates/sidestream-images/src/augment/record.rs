//! The parameters of a kernel for one picture in one pass, as words.
//!
//! `kernels/augment.cu` has a structure with the same layout. All members have four bytes, so there is no padding.

use sidestream::bytemuck::{Pod, Zeroable};

use super::step::{Step, WEIGHTS};

/// A picture within a larger area of one colour.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "sidestream::bytemuck")]
pub struct Canvas {
    /// Maps the result to this picture.
    pub map: [f32; 9],
    pub width: f32,
    pub height: f32,
    /// Colour outside of the picture.
    pub fill: [f32; 3],
    /// Kind of edge: [`HARD`], [`SOFT`] or [`TWICE`].
    pub edge: u32,
}

/// A pixel is either inside or outside.
pub const HARD: u32 = 0;
/// A pixel at the edge is partly inside.
pub const SOFT: u32 = 1;
/// As [`SOFT`], but the inside is multiplied by its weight once more: torchvision's interpolation between picture and
/// fill.
pub const TWICE: u32 = 2;

/// Maximum number of canvases in a pass.
pub const CANVASES: usize = 3;
/// Maximum number of colour steps in a pass.
pub const STEPS: usize = 8;
/// Maximum number of erased parts in a pass.
pub const ERASED: usize = 2;

/// A part of the result that gets one colour: columns and rows from the first two numbers up to the last two.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "sidestream::bytemuck")]
pub struct Erased {
    pub within: [u32; 4],
    pub value: [f32; 3],
}

/// The parameters of one picture in one pass.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "sidestream::bytemuck")]
pub struct Record {
    /// Offset of the window's first pixel, in values: 64 bits. It may precede the picture's memory.
    pub source: [u32; 2],
    /// Strides to the next pixel in a row, the next row and the next colour, in values.
    pub stride: [i32; 3],
    /// 0: no work in this pass. 1: input is bytes. 2: input is the numbers of the previous pass.
    pub kind: u32,
    /// Pixels of the window that may be read: first column and row, last column and row.
    pub readable: [i32; 4],
    /// Width and height of the result.
    pub width: u32,
    pub height: u32,
    /// Offset of the result, in values: 64 bits.
    pub target: [u32; 2],
    /// Maps the result to the window.
    pub map: [f32; 9],
    /// [`NEAREST`], [`BILINEAR`] or [`FOOTPRINT`].
    pub filter: u32,
    /// For a footprint of an affine map: two rows that map a pixel to its place in the footprint, and how far that
    /// reaches.
    pub footprint: [f32; 6],
    pub canvases: u32,
    pub canvas: [Canvas; CANVASES],
    /// Radius of the filter over neighbours; 0 without one.
    pub radius: [u32; 2],
    pub weights: [[f32; WEIGHTS]; 2],
    pub own: f32,
    pub around: f32,
    pub keeps_edge: u32,
    /// Number of steps before that filter, and of all steps.
    pub steps_before: u32,
    pub steps: u32,
    pub step: [Step; STEPS],
    /// Index of the step that needs statistics; [`STEPS`] if none does.
    pub measured: u32,
    /// Whether values are rounded to levels of bytes after each act.
    pub levels: u32,
    pub erased: u32,
    pub erase: [Erased; ERASED],
    pub scale: [f32; 3],
    pub bias: [f32; 3],
    /// Picture that is mixed in, if [`Record::share`] is below 1 or [`Record::within`] is not empty.
    pub partner: u32,
    /// Weight of this picture.
    pub share: f32,
    /// Where the partner replaces this picture.
    pub within: [u32; 4],
}

pub const NEAREST: u32 = 0;
pub const BILINEAR: u32 = 1;
pub const FOOTPRINT: u32 = 2;

pub const SKIPPED: u32 = 0;
pub const BYTES: u32 = 1;
pub const NUMBERS: u32 = 2;

/// Number of words of four bytes in a record.
pub const RECORD_WORDS: usize = size_of::<Record>() / 4;

pub fn wide(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

pub fn long(words: [u32; 2]) -> u64 {
    u64::from(words[0]) | u64::from(words[1]) << 32
}

impl Record {
    pub fn is_mixed(&self) -> bool {
        self.share < 1.0 || self.within[0] < self.within[2]
    }

    pub fn has_neighbours(&self) -> bool {
        self.around != 0.0
    }
}
