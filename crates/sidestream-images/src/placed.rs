//! Which picture it is, which part of it is wanted, and where its bytes lie. What loading and augmenting share.

/// Which draw of random numbers a picture gets. Equal keys draw equal numbers, on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Of the whole run.
    pub seed: u64,
    /// How often the data has been seen before.
    pub epoch: u64,
    /// Which picture of the data set, by its place in the unshuffled list.
    pub sample: u64,
}

impl Key {
    /// Of a run, an epoch and a picture.
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
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Size {
    /// So wide and so high.
    pub fn new(width: u32, height: u32) -> Size {
        Size { width, height }
    }

    /// How many pixels it has.
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
    /// How many columns and rows.
    pub size: Size,
}

impl Region {
    /// All of a picture.
    pub fn whole(size: Size) -> Region {
        Region {
            left: 0,
            top: 0,
            size,
        }
    }
}

/// Where the bytes of a picture lie in a slab: rows of red, green and blue bytes without gaps.
///
/// A slab may hold less than the whole picture, since only what is needed is decoded. Operators work in coordinates
/// of the whole picture all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The first byte, counted from that of the first picture.
    pub offset: u64,
    /// The part of the picture that is there.
    pub held: Region,
    /// The size of the whole picture.
    pub full: Size,
}
