//! Types that loading and augmenting share: the key of a picture, its regions, and the place of its bytes.

/// Identifies the random numbers of a picture. Equal keys draw equal numbers, on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Seed of the run.
    pub seed: u64,
    /// Number of epochs before this one.
    pub epoch: u64,
    /// Index of the picture in the unshuffled list of the data set.
    pub sample: u64,
}

impl Key {
    /// Returns the key of a picture in an epoch of a run.
    pub fn new(seed: u64, epoch: u64, sample: u64) -> Key {
        Key {
            seed,
            epoch,
            sample,
        }
    }
}

/// The size of a picture, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Pixels per row.
    pub width: u32,
    /// Number of rows.
    pub height: u32,
}

impl Size {
    /// Returns the size of `width` × `height` pixels.
    pub fn new(width: u32, height: u32) -> Size {
        Size { width, height }
    }

    /// Returns the number of pixels.
    pub fn area(self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }
}

/// A part of a picture, in pixels of the whole picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The first column.
    pub left: u32,
    /// The first row.
    pub top: u32,
    /// Number of columns and rows.
    pub size: Size,
}

impl Region {
    /// Returns the region that covers a whole picture.
    pub fn whole(size: Size) -> Region {
        Region {
            left: 0,
            top: 0,
            size,
        }
    }
}

/// Where the pixels of a picture are in a slab: rows of red, green and blue bytes without gaps.
///
/// A slab may contain only a region of the picture, since only what is needed is decoded. The coordinates of
/// operators still refer to the whole picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Offset of the first byte from the start of the slab's first picture.
    pub offset: u64,
    /// Region of the picture that the slab contains.
    pub held: Region,
    /// Size of the whole picture.
    pub full: Size,
}
