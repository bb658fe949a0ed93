//! Reads the one EXIF entry that changes how a picture is shown: the orientation of the camera.

use crate::{Region, Size};

/// How a viewer turns a picture. The numbers are the values of the EXIF tag 0x0112.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Orientation {
    /// 1: unchanged.
    #[default]
    Upright,
    /// 2: left and right swapped.
    MirroredAcross,
    /// 3: turned by 180 degrees.
    Half,
    /// 4: top and bottom swapped.
    MirroredDown,
    /// 5: transposed: rows and columns swapped.
    Transposed,
    /// 6: a quarter turn clockwise.
    Right,
    /// 7: transposed along the other diagonal.
    Transverse,
    /// 8: a quarter turn counterclockwise.
    Left,
}

/// The orientations in the order of their EXIF values, which start at 1. For each: whether rows of the stored picture
/// become columns, and whether the result is then mirrored across and down.
const PARTS: [(Orientation, bool, [bool; 2]); 8] = [
    (Orientation::Upright, false, [false, false]),
    (Orientation::MirroredAcross, false, [true, false]),
    (Orientation::Half, false, [true, true]),
    (Orientation::MirroredDown, false, [false, true]),
    (Orientation::Transposed, true, [false, false]),
    (Orientation::Right, true, [true, false]),
    (Orientation::Transverse, true, [true, true]),
    (Orientation::Left, true, [false, true]),
];

impl Orientation {
    fn parts(self) -> (bool, [bool; 2]) {
        let (_, swap, mirrored) = PARTS[self as usize];
        (swap, mirrored)
    }

    /// Returns the size of the turned picture, given its stored size.
    pub fn turned(self, stored: Size) -> Size {
        if self.parts().0 {
            Size::new(stored.height, stored.width)
        } else {
            stored
        }
    }

    /// Maps a region of the turned picture to the stored one, whose size is given. The region is within the picture.
    pub(crate) fn stored(self, region: Region, stored: Size) -> Region {
        let (swap, [across, down]) = self.parts();
        let turned = self.turned(stored);
        let mirror = |first: u32, many: u32, all: u32, yes: bool| {
            if yes { all - many - first } else { first }
        };
        let left = mirror(region.left, region.size.width, turned.width, across);
        let top = mirror(region.top, region.size.height, turned.height, down);
        if swap {
            Region {
                left: top,
                top: left,
                size: Size::new(region.size.height, region.size.width),
            }
        } else {
            Region {
                left,
                top,
                size: region.size,
            }
        }
    }

    /// Copies and turns pixels of three bytes. `size` is the size of `from`; `into` has as many bytes.
    pub(crate) fn turn(self, from: &[u8], size: Size, into: &mut [u8]) {
        let (swap, [across, down]) = self.parts();
        let (width, height) = (size.width as usize, size.height as usize);
        let turned = self.turned(size);
        let mirror =
            |at: usize, length: u32, yes: bool| if yes { length as usize - 1 - at } else { at };
        let rows = into.chunks_exact_mut(turned.width as usize * 3);
        for (y, row) in rows.enumerate() {
            let y = mirror(y, turned.height, down);
            for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
                let x = mirror(x, turned.width, across);
                let (column, line) = if swap { (y, x) } else { (x, y) };
                debug_assert!(column < width && line < height);
                let at = (line * width + column) * 3;
                pixel.copy_from_slice(&from[at..at + 3]);
            }
        }
    }
}

/// Reads the orientation from a TIFF structure, the format of EXIF data. If the structure is invalid, the picture
/// stays unturned, as in viewers.
pub(super) fn orientation(tiff: &[u8]) -> Orientation {
    let found = find(tiff).and_then(|number| PARTS.get((number as usize).checked_sub(1)?));
    found
        .map(|(orientation, ..)| *orientation)
        .unwrap_or_default()
}

fn find(tiff: &[u8]) -> Option<u32> {
    let is_little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let number = |at: usize, bytes: usize| -> Option<u32> {
        let bytes = tiff.get(at..at.checked_add(bytes)?)?.iter();
        let add = |sum: u32, byte: &u8| sum << 8 | u32::from(*byte);
        Some(if is_little {
            bytes.rfold(0, add)
        } else {
            bytes.fold(0, add)
        })
    };
    let directory = number(4, 4)? as usize;
    let entries = number(directory, 2)? as usize;
    (0..entries).find_map(|entry| {
        let at = directory.checked_add(2 + entry * 12)?;
        // Tag, type (3 is a 16-bit number), count, and the value itself if it fits into four bytes.
        let is_it = number(at, 2)? == 0x0112 && number(at + 2, 2)? == 3 && number(at + 4, 4)? == 1;
        if is_it { number(at + 8, 2) } else { None }
    })
}
