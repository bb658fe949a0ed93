//! Copies in two and three dimensions, as `cuda.h` describes them.

use sidestream::backend::{Address, Copy};
use sidestream::cuda::driver::{Memcpy2d, Memcpy3d};

use crate::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED};

/// One side of a copy.
struct Side {
    kind: u32,
    host: u64,
    device: u64,
    /// The offset: bytes, rows, slices.
    at: [usize; 3],
    pitch: usize,
    height: usize,
}

/// Returns the copies of a description; none if it is empty.
pub fn plane(of: &Memcpy2d) -> Answer<Vec<Copy>> {
    let from = Side {
        kind: of.src_type,
        host: of.src_host,
        device: of.src_device,
        at: [of.src_x_bytes, of.src_y, 0],
        pitch: of.src_pitch,
        height: of.height,
    };
    let to = Side {
        kind: of.dst_type,
        host: of.dst_host,
        device: of.dst_device,
        at: [of.dst_x_bytes, of.dst_y, 0],
        pitch: of.dst_pitch,
        height: of.height,
    };
    copies(&from, &to, [of.width_bytes, of.height, 1])
}

/// Returns the copies, slice by slice.
pub fn solid(of: &Memcpy3d) -> Answer<Vec<Copy>> {
    let from = Side {
        kind: of.src_type,
        host: of.src_host,
        device: of.src_device,
        at: [of.src_x_bytes, of.src_y, of.src_z],
        pitch: of.src_pitch,
        height: of.src_height,
    };
    let to = Side {
        kind: of.dst_type,
        host: of.dst_host,
        device: of.dst_device,
        at: [of.dst_x_bytes, of.dst_y, of.dst_z],
        pitch: of.dst_pitch,
        height: of.dst_height,
    };
    copies(&from, &to, [of.width_bytes, of.height, of.depth])
}

fn copies(from: &Side, to: &Side, size: [usize; 3]) -> Answer<Vec<Copy>> {
    let [width, height, depth] = size;
    if size.contains(&0) {
        return Ok(Vec::new());
    }
    if depth > MOST_SLICES {
        return Err(NOT_SUPPORTED);
    }
    let (from_pitch, to_pitch) = (from.pitch(size)?, to.pitch(size)?);
    let slice = |z: usize| {
        Ok(Copy {
            from: from.start(z, from_pitch)?,
            to: to.start(z, to_pitch)?,
            row_bytes: width as u64,
            rows: height as u64,
            from_pitch: from_pitch as u64,
            to_pitch: to_pitch as u64,
        })
    };
    (0..depth).map(slice).collect()
}

/// Maximum number of slices, each of which becomes a copy of its own here.
const MOST_SLICES: usize = 4096;

/// `CU_MEMORYTYPE_HOST`, `_DEVICE`, `_ARRAY` and `_UNIFIED`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

impl Side {
    /// Returns the distance between the starts of two rows; it may be omitted if there is only one row.
    fn pitch(&self, [width, height, depth]: [usize; 3]) -> Answer<usize> {
        let row = self.at[0].checked_add(width).ok_or(INVALID_VALUE)?;
        let rows = self.at[1].checked_add(height).ok_or(INVALID_VALUE)?;
        let has_one = rows == 1 && depth == 1 && self.at[2] == 0;
        match self.pitch {
            0 if has_one => Ok(row),
            pitch if pitch < row => Err(INVALID_VALUE),
            _ if depth > 1 && self.height < rows => Err(INVALID_VALUE),
            pitch => Ok(pitch),
        }
    }

    fn start(&self, slice: usize, pitch: usize) -> Answer<Address> {
        let base = match self.kind {
            HOST => self.host,
            DEVICE | UNIFIED => self.device,
            ARRAY => return Err(NOT_SUPPORTED),
            _ => return Err(INVALID_VALUE),
        };
        let [x, y, z] = self.at;
        let rows = z
            .checked_add(slice)
            .and_then(|z| z.checked_mul(self.height))
            .and_then(|rows| rows.checked_add(y));
        let offset = rows
            .and_then(|rows| rows.checked_mul(pitch))
            .and_then(|bytes| bytes.checked_add(x));
        let at = offset.and_then(|offset| base.checked_add(offset as u64));
        at.map(Address).ok_or(INVALID_VALUE)
    }
}
