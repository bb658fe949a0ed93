//! The stream-ordered memory cache: which bytes an allocation gets, and why that is safe.
//!
//! A freed piece may still be in use on a device, and a free may not wait for that. So the piece carries its last uses
//! ([`Uses`]) into the cache, and every reuse needs a reason why it is safe. The possibilities are tried in the order
//! of their cost (the idea of RMM's stream-ordered resources):
//! 1. memory of the allocating stream itself: stream order is enough;
//! 2. memory whose uses are all complete, or already ordered before the allocating stream;
//! 3. new memory, up to the limit;
//! 4. memory whose last uses the allocating stream waits for, on the device.
//!
//! If all four fail, idle segments are returned to the driver to make room for one that fits, and if that fails too, the
//! allocation returns an error with the sizes.
//!
//! [`Cache`] is pure data: it calls no driver, takes no lock and waits for nothing. The steps that only its caller can
//! take are returned as a [`Need`], after which the caller tries again. An allocation always carries the uses of the
//! earlier ones of its bytes ([`Granted::carried`]). A caller that waits for those before the first use is correct,
//! regardless of the chosen piece; the choice affects only how long that takes.
//!
//! # How much is reserved
//! Varying sizes leave holes. [`Spare`] limits how much may be lost in them before idle segments are returned to make room
//! for one that fits. With 12 percent and without waiting, the recorded logs of five PyTorch programs reserve at most 1.125
//! times the peak of what they allocate if the device keeps up. Where three or four streams are hundreds of uses behind,
//! that grows to 1.8 and 2.4 times: new memory is reserved instead of a wait. A spare that may wait limits it to 1.12
//! there, too.
//!
//! # How memory is found
//! Freed pieces are first kept in stacks by stream and size (`recent`), from which the next allocation of that kind takes
//! them: a push and a pop. Only an allocation that finds its stack empty moves all of them to the table of the address
//! space (`table`). There, neighbouring free pieces form a *hole*. A piece keeps its own uses inside the hole; uses are merged
//! only when an allocation takes several pieces. If they were merged earlier, one late use would make all memory around it
//! look busy to the other streams. The search is for the smallest hole with a sufficient run of pieces that this
//! allocation may use.

mod cache;
mod recent;
mod table;

use std::fmt;

pub use cache::Cache;

use crate::backend::Address;
use crate::error::OutOfMemory;
use crate::op::{DeviceId, StreamId};

/// The last uses of a freed piece, on any streams. Only the caller can interpret them.
pub trait Uses: Clone + Default {
    /// Adds the uses of another piece. May drop those that the caller knows to be complete.
    fn merge(&mut self, other: Self);
    /// Returns the streams of these uses.
    fn on(&self) -> On;
}

/// The streams on which a piece was last used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    /// No stream, or all uses are known to be complete.
    NoStream,
    /// Only this stream: stream order is enough for an allocation on it.
    Only(StreamId),
    /// More than one stream.
    Several,
}

/// The state of a piece's uses with respect to the stream that allocates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// All uses are complete.
    Over,
    /// All uses are complete or ordered before the stream's next work: no wait is needed.
    Ordered,
    /// The stream would have to wait.
    Pending,
}

/// The kind of memory in a cache, and its rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The device; `None` for pinned memory. Used only in error messages.
    pub device: Option<DeviceId>,
    /// The alignment of the addresses and sizes of pieces. A power of two.
    pub align_bytes: u64,
    /// The unit in which new memory is reserved. A multiple of `align_bytes`.
    pub granule_bytes: u64,
    /// Whether a piece may span two adjacent segments. True where segments are mapped into one reserved address range; false
    /// where each is a separate driver allocation, since no copy may cross the end of one.
    pub joins: bool,
    /// Maximum number of bytes that may be reserved.
    pub limit_bytes: u64,
    /// How far the reserved bytes may exceed the peak of the allocated bytes; `None` if new memory may be reserved up
    /// to the limit.
    pub spare: Option<Spare>,
}

/// How far the reserved bytes may exceed the peak of the allocated bytes, and at what cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spare {
    /// The percentage of the peak.
    pub percent: u32,
    /// If false, idle segments whose uses are complete are returned to the driver before new memory is reserved beyond the
    /// spare, which costs driver calls. If true, new memory is the last resort: the allocating stream waits on the device, and
    /// the host waits for segments to return.
    pub waits: bool,
}

/// A piece of memory, owned by one buffer. It must be returned by [`Cache::free`]; if dropped, it stays allocated.
#[derive(PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its address.
    pub address: Address,
    /// Its size in bytes: the requested size, rounded up to the alignment.
    pub bytes: u64,
    record: u32,
    /// The stream for which it was allocated, plus one; zero is the host. Compact, because pieces are moved often.
    home: u32,
}

/// The result of an allocation.
#[derive(PartialEq, Eq, Debug)]
pub struct Granted<U> {
    /// The memory.
    pub piece: Piece,
    /// The earlier uses of its bytes, after which every use of the new piece must be ordered.
    pub carried: U,
    /// Whether the allocating stream must wait for some of these uses.
    pub waits: bool,
}

/// The step that the caller must take before it tries an allocation again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need<U> {
    /// New memory is needed: reserve it and call [`Cache::add_segment`], or [`Cache::segment_refused`] if there is none.
    Segment(Growth),
    /// Memory is low. These segments were removed from the cache: wait on the host for their uses and return them to the
    /// driver.
    Release(Vec<Segment<U>>),
    /// Memory is low, and there is no stream that could wait: wait on the host for these uses.
    Wait(U),
    /// The allocation is impossible.
    OutOfMemory(OutOfMemory),
}

/// A request for new memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// The address that the new memory should have, to extend a range; call [`Cache::cannot_extend`] if that is not
    /// possible. `None` if any address will do.
    pub at: Option<Address>,
    /// The number of bytes.
    pub bytes: u64,
}

/// Memory to return to the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment<U> {
    /// Its address.
    pub address: Address,
    /// Its size in bytes, as it was added.
    pub bytes: u64,
    /// The uses that must be complete first.
    pub uses: U,
}

/// The statistics of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Bytes allocated to buffers, rounding included.
    pub allocated_bytes: u64,
    /// The peak of `allocated_bytes`.
    pub allocated_peak_bytes: u64,
    /// Bytes reserved from the driver.
    pub reserved_bytes: u64,
    /// The peak of `reserved_bytes`.
    pub reserved_peak_bytes: u64,
    /// Bytes of buffers, and of freed pieces that a stream may still be using. [`Cache::look`] removes the pieces whose uses have
    /// completed since.
    pub active_bytes: u64,
    /// The peak of `active_bytes`.
    pub active_peak_bytes: u64,
    /// The number of successful allocations.
    pub allocations: u64,
    /// The number of frees.
    pub frees: u64,
    /// Allocations that reused memory of their own stream.
    pub reuses_own: u64,
    /// Allocations that got memory whose uses were complete or already ordered before, or that was never used.
    pub reuses_over: u64,
    /// Allocations that got memory for which their stream must wait.
    pub waits_inserted: u64,
    /// The number of segments now.
    pub segments: u64,
    /// Bytes returned to the driver so far.
    pub released_bytes: u64,
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |now, most| format!("{} (at most {})", Size(now), Size(most));
        writeln!(
            f,
            "held by buffers   {}",
            shown(self.allocated_bytes, self.allocated_peak_bytes)
        )?;
        writeln!(
            f,
            "in use or due     {}",
            shown(self.active_bytes, self.active_peak_bytes)
        )?;
        writeln!(
            f,
            "of the driver     {} in {} segments; {} returned",
            shown(self.reserved_bytes, self.reserved_peak_bytes),
            self.segments,
            Size(self.released_bytes)
        )?;
        write!(
            f,
            "allocations       {}, frees {}; memory of their own stream {}, free or new {}, to be waited for {}",
            self.allocations, self.frees, self.reuses_own, self.reuses_over, self.waits_inserted
        )
    }
}

/// A number of bytes, displayed in powers of 1024.
pub(crate) struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        match bytes {
            0..10_240 => write!(f, "{bytes} bytes"),
            10_240..10_485_760 => write!(f, "{:.1} KiB", bytes as f64 / 1024.0),
            10_485_760..10_737_418_240 => write!(f, "{:.1} MiB", bytes as f64 / 1_048_576.0),
            _ => write!(f, "{:.1} GiB", bytes as f64 / 1_073_741_824.0),
        }
    }
}

impl Rules {
    /// Returns the rules for device memory, whose segments are mapped into one address range.
    pub fn device(device: DeviceId, limit_bytes: u64) -> Rules {
        Rules {
            device: Some(device),
            align_bytes: 512,
            granule_bytes: granule(limit_bytes, 512),
            joins: true,
            limit_bytes,
            spare: Some(Spare {
                percent: 12,
                waits: false,
            }),
        }
    }

    /// Returns the rules for pinned memory, in which each segment is a separate allocation.
    pub fn pinned(limit_bytes: u64) -> Rules {
        Rules {
            device: None,
            align_bytes: 64,
            granule_bytes: granule(limit_bytes, 64),
            joins: false,
            limit_bytes,
            spare: None,
        }
    }
}

/// Returns the unit in which memory is reserved. Where the limit is below the usual unit, it is the alignment of pieces, so
/// that everything up to the limit can be allocated.
fn granule(limit_bytes: u64, align_bytes: u64) -> u64 {
    const GRANULE_BYTES: u64 = 2 << 20;
    if limit_bytes < GRANULE_BYTES {
        align_bytes
    } else {
        GRANULE_BYTES
    }
}
