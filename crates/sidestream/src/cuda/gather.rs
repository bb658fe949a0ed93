//! Many small copies by one kernel.
//!
//! The kernel reads a table of pieces from pinned memory. A table is reused when the launch that reads it is
//! complete, which an event recorded after the launch shows.

use std::ptr;

use parking_lot::Mutex;

use super::driver::{
    Code as Answer, CuEvent, CuStream, Driver, EVENT_DISABLE_TIMING, HOST_PORTABLE, SUCCESS,
};
use crate::backend::{Code, Copy, Grid, Image};
use crate::op::DeviceId;
use crate::ptx;

/// Tables that can be reused when their last use is complete.
#[derive(Default)]
pub(super) struct Tables(Mutex<Vec<Table>>);

/// Pinned memory for `capacity` rows, and the event recorded after its last use.
pub(super) struct Table {
    pub address: u64,
    capacity: usize,
    event: CuEvent,
    device: DeviceId,
}

/// A piece in the layout that the kernel reads.
#[repr(C)]
#[derive(Clone, std::marker::Copy)]
struct Row {
    from: u64,
    to: u64,
    bytes: u64,
}

/// Minimum number of rows of a table, enough for most uploads.
const ROWS: usize = 1024;
/// Threads per block, and the bytes that a block requests at once.
const THREADS: u32 = 256;
const BLOCK_BYTES: u64 = 32 << 10;
/// Maximum number of blocks of a launch: more blocks would not request more bytes at once.
const BLOCKS: u32 = 2048;

/// Returns one of the kernels that copy pieces: `gather` copies the pieces of a table, `copy_piece` the piece that its
/// arguments describe.
pub(super) fn code(entry: &str) -> Code {
    Code {
        image: Some(Image::Ptx(ptx::GATHER.clone())),
        ..Code::new(entry)
    }
}

/// Returns a grid with as many blocks for each piece as the longest one needs, within [`BLOCKS`].
pub(super) fn grid(pieces: &[Copy]) -> Grid {
    let longest = pieces
        .iter()
        .map(|piece| piece.row_bytes)
        .max()
        .unwrap_or(0);
    let count = pieces.len() as u32;
    let room = (BLOCKS / count.max(1)).max(1);
    let each = u32::try_from(longest.div_ceil(BLOCK_BYTES)).unwrap_or(room);
    Grid::new(count.saturating_mul(each.clamp(1, room)).max(1), THREADS)
}

impl Tables {
    /// Fills a table that no launch reads with these pieces. The context of the device is current.
    ///
    /// # Errors
    /// The driver's code.
    pub(super) fn fill(
        &self,
        driver: &Driver,
        device: DeviceId,
        pieces: &[Copy],
    ) -> Result<Table, Answer> {
        let free = {
            let mut tables = self.0.lock();
            let fits = |table: &Table| {
                table.device == device
                    && table.capacity >= pieces.len()
                    // SAFETY: the event was created here.
                    && unsafe { (driver.cuEventQuery)(table.event) } == SUCCESS
            };
            let at = tables.iter().position(fits);
            at.map(|at| tables.swap_remove(at))
        };
        let table = match free {
            Some(table) => table,
            None => Table::new(driver, device, pieces.len())?,
        };
        let rows = ptr::with_exposed_provenance_mut::<Row>(table.address as usize);
        for (at, piece) in pieces.iter().enumerate() {
            let row = Row {
                from: piece.from.0,
                to: piece.to.0,
                bytes: piece.row_bytes,
            };
            // SAFETY: the table has room for them, and no launch reads it any more.
            unsafe { rows.add(at).write(row) };
        }
        Ok(table)
    }

    /// Notes that a launch in this stream reads the table.
    ///
    /// # Errors
    /// The driver's code; the table is then never used again.
    pub(super) fn give(
        &self,
        driver: &Driver,
        table: Table,
        stream: CuStream,
    ) -> Result<(), Answer> {
        // SAFETY: the event and the stream are open.
        match unsafe { (driver.cuEventRecord)(table.event, stream) } {
            SUCCESS => {
                self.0.lock().push(table);
                Ok(())
            }
            code => Err(code),
        }
    }

    /// Takes back a table whose launch was refused.
    pub(super) fn unused(&self, table: Table) {
        self.0.lock().push(table);
    }

    /// Frees all tables, when no work is left.
    pub(super) fn close(&self, driver: &Driver) {
        for table in self.0.lock().drain(..) {
            // SAFETY: both were created here, and no launch uses them.
            unsafe {
                (driver.cuEventDestroy_v2)(table.event);
                (driver.cuMemFreeHost)(table.address);
            }
        }
    }
}

impl Table {
    fn new(driver: &Driver, device: DeviceId, pieces: usize) -> Result<Table, Answer> {
        let capacity = pieces.next_power_of_two().max(ROWS);
        let (mut at, mut event) = (0, 0);
        // SAFETY: each writes one handle.
        unsafe {
            match (driver.cuEventCreate)(&mut event, EVENT_DISABLE_TIMING) {
                SUCCESS => {}
                code => return Err(code),
            }
            match (driver.cuMemHostAlloc)(&mut at, capacity * size_of::<Row>(), HOST_PORTABLE) {
                SUCCESS => {}
                code => {
                    (driver.cuEventDestroy_v2)(event);
                    return Err(code);
                }
            }
        }
        Ok(Table {
            address: at,
            capacity,
            event,
            device,
        })
    }
}
