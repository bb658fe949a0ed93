//! The one entry of EXIF that changes pixels: how the camera was held.

use crate::{Region, Size};

/// How a viewer should turn a picture. The numbers are those of EXIF (tag 0x0112).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Orientation {
    /// 1: as it is.
    #[default]
    Upright,
    /// 2: left and right exchanged.
    MirroredAcross,
    /// 3: by half a turn.
    Half,
    /// 4: top and bottom exchanged.
    MirroredDown,
    /// 5: rows and columns exchanged.
    Transposed,
    /// 6: a quarter turn clockwise.
    Right,
    /// 7: rows and columns exchanged, from the other corner.
    Transverse,
    /// 8: a quarter turn counterclockwise.
    Left,
}

impl Orientation {
    fn of(number: u16) -> Option<Orientation> {
        Some(match number {
            1 => Orientation::Upright,
            2 => Orientation::MirroredAcross,
            3 => Orientation::Half,
            4 => Orientation::MirroredDown,
            5 => Orientation::Transposed,
            6 => Orientation::Right,
            7 => Orientation::Transverse,
            8 => Orientation::Left,
            _ => return None,
        })
    }

    /// Rows of the stored picture become columns, and the two mirrorings that follow: across and down.
    fn parts(self) -> (bool, bool, bool) {
        match self {
            Orientation::Upright => (false, false, false),
            Orientation::MirroredAcross => (false, true, false),
            Orientation::Half => (false, true, true),
            Orientation::MirroredDown => (false, false, true),
            Orientation::Transposed => (true, false, false),
            Orientation::Right => (true, true, false),
            Orientation::Transverse => (true, true, true),
            Orientation::Left => (true, false, true),
        }
    }

    /// The size of a picture of this size after it was turned.
    pub fn turned(self, stored: Size) -> Size {
        match self.parts().0 {
            true => Size::new(stored.height, stored.width),
            false => stored,
        }
    }

    /// Where a region of the turned picture lies in the stored one, whose size is given. The region lies within it.
    pub(crate) fn stored(self, region: Region, stored: Size) -> Region {
        let (swap, across, down) = self.parts();
        let turned = self.turned(stored);
        let mirror = |first: u32, many: u32, all: u32, yes: bool| match yes {
            true => all - many - first,
            false => first,
        };
        let left = mirror(region.left, region.size.width, turned.width, across);
        let top = mirror(region.top, region.size.height, turned.height, down);
        match swap {
            false => Region {
                left,
                top,
                size: region.size,
            },
            true => Region {
                left: top,
                top: left,
                size: Size::new(region.size.height, region.size.width),
            },
        }
    }

    /// Copies pixels of three bytes, turned. `size` is that of what is read; both have as many bytes.
    pub(crate) fn turn(self, from: &[u8], size: Size, into: &mut [u8]) {
        let (swap, across, down) = self.parts();
        let (width, height) = (size.width as usize, size.height as usize);
        let turned = self.turned(size);
        let rows = into.chunks_exact_mut(turned.width as usize * 3);
        for (y, row) in rows.enumerate() {
            let y = if down {
                turned.height as usize - 1 - y
            } else {
                y
            };
            for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
                let x = if across {
                    turned.width as usize - 1 - x
                } else {
                    x
                };
                let (column, line) = if swap { (y, x) } else { (x, y) };
                debug_assert!(column < width && line < height);
                let at = (line * width + column) * 3;
                pixel.copy_from_slice(&from[at..at + 3]);
            }
        }
    }
}

/// The orientation in a TIFF structure, which is what EXIF is. Whatever is wrong with it, the picture stays upright:
/// so do viewers.
pub(super) fn orientation(tiff: &[u8]) -> Orientation {
    find(tiff).and_then(Orientation::of).unwrap_or_default()
}

fn find(tiff: &[u8]) -> Option<u16> {
    let little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let two = |at: usize| -> Option<u16> {
        let two = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little {
            u16::from_le_bytes(two)
        } else {
            u16::from_be_bytes(two)
        })
    };
    let four = |at: usize| -> Option<u32> {
        let four = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little {
            u32::from_le_bytes(four)
        } else {
            u32::from_be_bytes(four)
        })
    };
    let directory = four(4)? as usize;
    let entries = two(directory)? as usize;
    (0..entries).find_map(|entry| {
        let at = directory.checked_add(2 + entry * 12)?;
        // Tag, type (3 is a 16-bit number), how many, and the value itself if it fits into four bytes.
        let is_it = two(at)? == 0x0112 && two(at + 2)? == 3 && four(at + 4)? == 1;
        if is_it { two(at + 8) } else { None }
    })
}
