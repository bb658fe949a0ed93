//! Copies and fills as data, with the checks that the safe API, the explicit style and graphs share.

use std::ops::Range;

use crate::backend::{Address, Copy, Fill};
use crate::buffer::Pod;
use crate::error::{Error, Result};

/// Rows of a table in row-major order: the length of a row, and the number of values from the start of one row to the
/// start of the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// Values in each row.
    pub len: usize,
    /// Number of rows.
    pub count: usize,
    /// Values from the start of a row to the start of the next; at least `len`.
    pub pitch: usize,
}

/// Maximum number of rows of a copy that are tracked one by one. If there are more, the whole range from the first byte
/// to the last is tracked.
const ROWS_TRACKED: usize = 64;

/// A copy of rows. Both sides have equally many rows of the same length, and are large enough for them.
#[derive(Clone, Copy)]
pub(crate) struct CopyPlan {
    from: Rows,
    to: Rows,
    value_bytes: usize,
}

impl CopyPlan {
    /// Copies all values of one side to all of the other.
    pub(crate) fn all<T>(call: &'static str, from: usize, to: usize) -> Result<CopyPlan> {
        if from == to {
            return Ok(CopyPlan::values::<T>(from));
        }
        Err(Error::Invalid {
            call,
            why: format!("{from} values cannot be copied to {to} values; take a slice"),
        })
    }

    /// Copies `len` values that are contiguous on both sides.
    pub(crate) fn values<T>(len: usize) -> CopyPlan {
        let row = Rows {
            len,
            count: 1,
            pitch: len,
        };
        CopyPlan {
            from: row,
            to: row,
            value_bytes: size_of::<T>(),
        }
    }

    /// Copies rows within `from_len` values to rows within `to_len` values.
    #[inline]
    pub(crate) fn rows<T>(
        call: &'static str,
        (from, from_len): (Rows, usize),
        (to, to_len): (Rows, usize),
    ) -> Result<CopyPlan> {
        let why = if (from.len, from.count) != (to.len, to.count) {
            format!(
                "{} rows of {} cannot be copied to {} rows of {}",
                from.count, from.len, to.count, to.len
            )
        } else if !from.fit(from_len) {
            format!("the source has {from_len} values, too few for {from:?}")
        } else if !to.fit(to_len) {
            format!("the destination has {to_len} values, too few for {to:?}")
        } else {
            let value_bytes = size_of::<T>();
            return Ok(CopyPlan {
                from,
                to,
                value_bytes,
            });
        };
        Err(Error::Invalid { call, why })
    }

    /// Returns the copy in the form that a back end takes.
    pub(crate) fn work(&self, from: Address, to: Address) -> Copy {
        let size = self.value_bytes as u64;
        // With one row there is no next row, and the pitch may be any number.
        let pitch = |rows: Rows| match rows.count {
            0 | 1 => rows.len as u64 * size,
            _ => rows.pitch as u64 * size,
        };
        Copy {
            from,
            to,
            row_bytes: self.from.len as u64 * size,
            rows: self.from.count as u64,
            from_pitch: pitch(self.from),
            to_pitch: pitch(self.to),
        }
    }

    /// Calls `tell` with each range of bytes that is read, then with each range that is written, at the granularity
    /// that is tracked. Each side has the position of its first byte and a value `S` that identifies the side.
    #[inline]
    pub(crate) fn each_touched<S: std::marker::Copy>(
        &self,
        (from, from_start): (S, u64),
        (to, to_start): (S, u64),
        mut tell: impl FnMut(S, Range<u64>),
    ) {
        for (side, start, rows) in [(from, from_start, self.from), (to, to_start, self.to)] {
            let bytes = |values: usize| (values * self.value_bytes) as u64;
            let mut push = |first: u64, len: u64| tell(side, first..first + len);
            if rows.count > ROWS_TRACKED {
                push(start, bytes((rows.count - 1) * rows.pitch + rows.len));
            } else {
                for row in 0..rows.count {
                    push(start + bytes(row * rows.pitch), bytes(rows.len));
                }
            }
        }
    }
}

impl Rows {
    /// Returns whether this many values are enough for the rows.
    fn fit(self, values: usize) -> bool {
        let needed = match self.count.checked_sub(1) {
            None => Some(0),
            Some(last) => last
                .checked_mul(self.pitch)
                .and_then(|start| start.checked_add(self.len)),
        };
        self.pitch >= self.len && needed.is_some_and(|needed| needed <= values)
    }
}

/// The value to which memory is set.
#[derive(Clone, Copy)]
pub(crate) struct FillPlan {
    /// The pattern that is repeated.
    word: u32,
    /// Width of the pattern in bytes.
    width: u8,
    /// Number of repetitions of the pattern in one value.
    times: u64,
}

impl FillPlan {
    /// Sets every byte of the values.
    pub(crate) fn bytes<T>(byte: u8) -> FillPlan {
        FillPlan {
            word: u32::from(byte),
            width: 1,
            times: size_of::<T>() as u64,
        }
    }

    /// Sets every value. Devices fill with patterns of one, two or four bytes.
    pub(crate) fn value<T: Pod>(value: &T) -> Result<FillPlan> {
        let bytes = bytemuck::bytes_of(value);
        let repeated =
            bytes.len().is_multiple_of(4) && bytes.chunks(4).all(|part| part == &bytes[..4]);
        let width = match bytes.len() {
            width @ (1 | 2) => width,
            1.. if repeated => 4,
            other => {
                return Err(Error::Invalid {
                    call: "fill_with",
                    why: format!(
                        "a value has {other} bytes, and devices fill with 1, 2 or 4; copy a slice of such values with \
                         memcpy_h2d, or launch a kernel"
                    ),
                });
            }
        };
        let mut word = [0; 4];
        word[..width].copy_from_slice(&bytes[..width]);
        Ok(FillPlan {
            word: u32::from_le_bytes(word),
            width: width as u8,
            times: (bytes.len() / width) as u64,
        })
    }

    /// Returns the fill of `len` values in the form that a back end takes.
    pub(crate) fn work(&self, at: Address, len: u64) -> Fill {
        Fill {
            at,
            value: self.word,
            width: self.width,
            count: len * self.times,
        }
    }
}
