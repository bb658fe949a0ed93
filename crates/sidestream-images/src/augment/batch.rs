//! Where the pictures of a batch are in memory.

use super::Layout;
use crate::{Placed, Region, Size};

/// Where the bytes of each picture are, relative to the start of one buffer.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(super) pictures: Vec<Picture>,
}

/// A picture: the offset of its first byte, and its strides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Picture {
    pub offset: u64,
    pub held: Region,
    pub full: Size,
    /// Along a row, down a column, and between colours.
    pub stride: [u32; 3],
}

impl Batch {
    /// Returns the batch of the pictures in a slab.
    pub fn placed(pictures: &[Placed]) -> Batch {
        let picture = |placed: &Placed| Picture {
            offset: placed.offset,
            held: placed.held,
            full: placed.full,
            stride: [3, 3 * placed.held.size.width, 1],
        };
        Batch {
            pictures: pictures.iter().map(picture).collect(),
        }
    }

    /// Returns a batch of `count` whole pictures of one size, one after another.
    pub fn uniform(size: Size, count: usize, layout: Layout) -> Batch {
        let Size { width, height } = size;
        let stride = match layout {
            Layout::Nhwc => [3, width.saturating_mul(3), 1],
            Layout::Nchw => [1, width, width.saturating_mul(height)],
        };
        let each = 3 * size.area();
        let picture = |at: u64| Picture {
            offset: at * each,
            held: Region::whole(size),
            full: size,
            stride,
        };
        Batch {
            pictures: (0..count as u64).map(picture).collect(),
        }
    }

    /// Returns the number of pictures.
    pub fn len(&self) -> usize {
        self.pictures.len()
    }

    /// Returns whether the batch has no pictures.
    pub fn is_empty(&self) -> bool {
        self.pictures.is_empty()
    }

    /// Returns the minimum number of bytes of the buffer.
    pub fn bytes(&self) -> u64 {
        let end = |picture: &Picture| picture.offset + 3 * picture.held.size.area();
        self.pictures.iter().map(end).max().unwrap_or_default()
    }
}
