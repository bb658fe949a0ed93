//! What a copy or a fill does: checked once, for the safe API, the explicit style and graphs.

use std::ops::Range;

use crate::backend::{Address, Copy, Fill};
use crate::buffer::Pod;
use crate::error::{Error, Result};

/// Rows of a table that lies row by row: how long they are, and how many values lie from the start
/// of one to the start of the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// Values in each row.
    pub len: usize,
    /// How many rows.
    pub count: usize,
    /// Values from the start of a row to the start of the next; at least `len`.
    pub pitch: usize,
}

/// Up to so many rows of a copy are tracked one by one; of more, all that lies between the first
/// byte and the last.
const ROWS_TRACKED: usize = 64;

/// A copy of rows. Both sides have as many, as long ones, and room for them.
#[derive(Clone, Copy)]
pub(crate) struct CopyPlan {
    from: Rows,
    to: Rows,
    value_bytes: usize,
}

impl CopyPlan {
    /// All values of one side to all of the other.
    pub(crate) fn all<T>(call: &'static str, from: usize, to: usize) -> Result<CopyPlan> {
        if from == to {
            return Ok(CopyPlan::values::<T>(from));
        }
        Err(Error::Invalid {
            call,
            why: format!("{from} values cannot be copied to where there are {to}; take a slice"),
        })
    }

    /// So many values, on both sides one behind the other.
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

    /// Rows of a side that has so many values to rows of one that has so many.
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

    /// What a back end is asked for.
    pub(crate) fn work(&self, from: Address, to: Address) -> Copy {
        let size = self.value_bytes as u64;
        // From one row there is no way to a next one, which may be any number of values.
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

    /// The bytes that are read and then those that are written, as they are tracked. Each side starts at such a byte,
    /// and comes with what says so.
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
    /// Whether so many values are enough for them.
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

/// What every value of some memory is set to.
#[derive(Clone, Copy)]
pub(crate) struct FillPlan {
    /// What is written again and again.
    word: u32,
    /// How many bytes of it count.
    width: u8,
    /// How often for one value.
    times: u64,
}

impl FillPlan {
    /// Every byte of the values.
    pub(crate) fn bytes<T>(byte: u8) -> FillPlan {
        FillPlan {
            word: u32::from(byte),
            width: 1,
            times: size_of::<T>() as u64,
        }
    }

    /// Devices fill with one, two or four bytes.
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

    /// What a back end is asked for, for so many values.
    pub(crate) fn work(&self, at: Address, len: u64) -> Fill {
        Fill {
            at,
            value: self.word,
            width: self.width,
            count: len * self.times,
        }
    }
}
