//! What a kernel is told of one picture in one pass, as words.
//!
//! The same layout is a structure in `kernels/augment.cu`. All members have four bytes, so that there are no gaps.

use sidestream::bytemuck::{Pod, Zeroable};

use super::step::{Step, WEIGHTS};

/// A picture that lies within another, of which it does not fill the whole.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "sidestream::bytemuck")]
pub struct Canvas {
    /// From the result to this picture.
    pub map: [f32; 9],
    pub width: f32,
    pub height: f32,
    /// The colour outside.
    pub fill: [f32; 3],
    /// How its edge looks: one of [`HARD`], [`SOFT`], [`TWICE`].
    pub edge: u32,
}

/// A pixel is inside or outside.
pub const HARD: u32 = 0;
/// A pixel at the edge is partly inside.
pub const SOFT: u32 = 1;
/// The same, and what is inside is weighed by that once more: torchvision's interpolation between picture and fill.
pub const TWICE: u32 = 2;

/// How many canvases a pass has at most.
pub const CANVASES: usize = 3;
/// How many steps of colour a pass has at most.
pub const STEPS: usize = 8;
/// How many parts a pass erases at most.
pub const ERASED: usize = 2;

/// A part of the result that gets one colour: columns and rows from the first two up to the last two.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "sidestream::bytemuck")]
pub struct Erased {
    pub within: [u32; 4],
    pub value: [f32; 3],
}

/// One picture in one pass.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "sidestream::bytemuck")]
pub struct Record {
    /// The place of the value of the window's first pixel, in values: 64 bits. It may lie before what is there.
    pub source: [u32; 2],
    /// From a pixel to the next one in a row, to the next row, to the next colour; in values.
    pub stride: [i32; 3],
    /// 0: not in this pass. 1: bytes of the input. 2: numbers of the pass before.
    pub kind: u32,
    /// Pixels of the window that may be read: first column and row, last column and row.
    pub readable: [i32; 4],
    /// The size of the result.
    pub width: u32,
    pub height: u32,
    /// Where the result goes, in values: 64 bits.
    pub target: [u32; 2],
    /// From the result to the window.
    pub map: [f32; 9],
    /// [`NEAREST`], [`BILINEAR`] or [`FOOTPRINT`].
    pub filter: u32,
    /// For a footprint of an affine map: two rows that give a pixel's place in the footprint, and how far that reaches.
    pub footprint: [f32; 6],
    pub canvases: u32,
    pub canvas: [Canvas; CANVASES],
    /// Of the filter over neighbours; 0 without one.
    pub radius: [u32; 2],
    pub weights: [[f32; WEIGHTS]; 2],
    pub own: f32,
    pub around: f32,
    pub keeps_edge: u32,
    /// How many steps come before that filter, and how many in all.
    pub steps_before: u32,
    pub steps: u32,
    pub step: [Step; STEPS],
    /// The step that needs statistics; [`STEPS`] if none does.
    pub measured: u32,
    /// Values are rounded to levels of bytes after each act.
    pub levels: u32,
    pub erased: u32,
    pub erase: [Erased; ERASED],
    pub scale: [f32; 3],
    pub bias: [f32; 3],
    /// Which picture is mixed in, if [`Record::share`] is below 1 or the part is not empty.
    pub partner: u32,
    /// How much this picture counts.
    pub share: f32,
    /// Where the partner is shown in its place.
    pub within: [u32; 4],
}

pub const NEAREST: u32 = 0;
pub const BILINEAR: u32 = 1;
pub const FOOTPRINT: u32 = 2;

pub const SKIPPED: u32 = 0;
pub const BYTES: u32 = 1;
pub const NUMBERS: u32 = 2;

/// How many words of four bytes it has.
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
