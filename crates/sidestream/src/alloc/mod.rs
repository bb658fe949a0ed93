//! The stream-ordered cache of memory: which bytes an allocation gets, and what makes that safe.
//!
//! A freed piece may still be in use on a device, and freeing may not wait for that. So the piece
//! carries its last uses ([`Uses`]) into the cache, and handing it out again needs a reason why
//! that is safe. The reasons are tried in the order of what they cost (the idea of RMM's
//! stream-ordered resources):
//! 1. memory of the taker's own stream: that stream's order is enough;
//! 2. memory on which everything is over, or ordered before the taker already;
//! 3. new memory, up to the limit;
//! 4. memory whose last uses the taker waits for, on the device.
//!
//! If all four fail, wholly idle segments go back to the driver to make room for one that fits, and
//! after that the answer is an error with the sizes.
//!
//! [`Cache`] is data and nothing else: it calls no driver, holds no lock and waits for nothing.
//! What only its caller can do it asks for ([`Need`]), and is then tried again. A new tenant always
//! gets the uses of the ones before it ([`Granted::carried`]). Whoever waits for those at the first
//! use is right whatever piece was chosen; the choice decides only how long that takes.
//!
//! # How much is reserved
//! Sizes that vary leave holes. [`Spare`] says how much may be lost in them before idle segments are
//! given back to make room for one that fits. With 12 percent and without waiting, the recorded logs
//! of five PyTorch programs reserve at most 1.125 times the peak of what they allocate if the device
//! keeps up. Where three or four streams are hundreds of uses behind, that grows to 1.8 and 2.4
//! times: memory is had rather than waited for. A spare that may wait holds it to 1.12 there, too.
//!
//! # How memory is found
//! Freed pieces first lie in stacks by stream and size (`recent`), where the next allocation of
//! that kind takes them back: a pop and a push. Only an allocation that finds its stack empty
//! sorts them all into the table of the address space (`table`). There, neighbouring free pieces
//! form a *hole*. A piece keeps its own uses inside the hole; they are merged when an allocation
//! takes several of them, and not before. Merged early, one late use would make all memory around
//! it look busy to the other streams. The search is for the smallest hole that has a fitting run of
//! pieces that this taker may have.

mod cache;
mod recent;
mod table;

use std::fmt;

pub use cache::Cache;

use crate::backend::Address;
use crate::error::OutOfMemory;
use crate::op::{DeviceId, StreamId};

/// What a freed piece carries: its last uses, on whatever streams. Only the caller can read them.
pub trait Uses: Clone + Default {
    /// These uses and those of another piece. May forget what the caller knows to be over.
    fn merge(&mut self, other: Self);
    /// Who of the streams is among them.
    fn on(&self) -> On;
}

/// The streams that a piece was last used on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    /// None, or everything is known to be over.
    Nobody,
    /// This one and no other: its own order is enough for whoever takes the piece there.
    Only(StreamId),
    /// More than one.
    Several,
}

/// How the uses of a piece look to somebody who would like to have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// All over, for everybody.
    Over,
    /// Over, or ordered before what the taker's stream does next: no wait is needed.
    Ordered,
    /// The taker would have to wait.
    Pending,
}

/// What kind of memory a cache deals in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Which device; none for pinned memory. Only for the text of errors.
    pub device: Option<DeviceId>,
    /// Pieces start at multiples of this and are so many bytes or a multiple. A power of two.
    pub align_bytes: u64,
    /// New memory comes in multiples of this. A multiple of `align_bytes`.
    pub granule_bytes: u64,
    /// Whether a piece may span two segments of which one ends where the other starts. So it is
    /// where segments are mapped into one reserved range of addresses; it is not where each is an
    /// allocation of the driver's, across whose end no copy may reach.
    pub joins: bool,
    /// The most that may be reserved.
    pub limit_bytes: u64,
    /// How much more than the peak of what is allocated should be reserved. Without it, new memory
    /// is had up to the limit.
    pub spare: Option<Spare>,
}

/// How much more than the peak of what is allocated should be reserved, and what that may cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spare {
    /// So many percent of it.
    pub percent: u32,
    /// Without waiting, idle segments that are over are given back before new memory is had beyond
    /// the spare, which costs calls of the driver. With it new memory is the last resort: the taker
    /// waits on the device, and the host waits for segments to be given back.
    pub waits: bool,
}

/// A part of the memory, held by one buffer. It has to come back through [`Cache::free`]; dropped,
/// it stays allocated.
#[derive(PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it starts.
    pub address: Address,
    /// How long it is: what was asked for, rounded up to the alignment.
    pub bytes: u64,
    record: u32,
    /// The stream that it was allocated for, plus one; zero is the host. Small, because pieces are
    /// moved a lot.
    home: u32,
}

/// What an allocation gets.
#[derive(PartialEq, Eq, Debug)]
pub struct Granted<U> {
    /// The memory.
    pub piece: Piece,
    /// The uses of the tenants before. They come first, whatever the new one does.
    pub carried: U,
    /// Whether the taker's stream has to wait for some of them.
    pub waits: bool,
}

/// What has to happen outside the cache before an allocation can be tried again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need<U> {
    /// New memory: reserve it, then [`Cache::add_segment`]. If there is none,
    /// [`Cache::segment_refused`].
    Segment(Growth),
    /// Low memory. These segments left the cache: wait on the host for their uses and give them
    /// back to the driver.
    Release(Vec<Segment<U>>),
    /// Low memory, and no stream that could wait: wait on the host for these uses.
    Wait(U),
    /// There is no way.
    OutOfMemory(OutOfMemory),
}

/// New memory that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// Where, to continue what is there. If that cannot be, [`Cache::cannot_extend`]. None if it may
    /// be anywhere.
    pub at: Option<Address>,
    /// How much.
    pub bytes: u64,
}

/// Memory that goes back to the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment<U> {
    /// Where it starts.
    pub address: Address,
    /// How long it is, as it was added.
    pub bytes: u64,
    /// What has to be over first.
    pub uses: U,
}

/// What a cache did so far, and holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Held by buffers, rounding included.
    pub allocated_bytes: u64,
    /// The most that this was.
    pub allocated_peak_bytes: u64,
    /// Taken from the driver.
    pub reserved_bytes: u64,
    /// The most that this was.
    pub reserved_peak_bytes: u64,
    /// Reserved, without what is free and was seen to be over: buffers, and freed pieces that a
    /// stream may still be using. [`Cache::look`] sees to it that nothing in here is over already.
    pub active_bytes: u64,
    /// The most that this was.
    pub active_peak_bytes: u64,
    /// Allocations that were granted.
    pub allocations: u64,
    /// Pieces that came back.
    pub frees: u64,
    /// Allocations that got memory of their own stream.
    pub reuses_own: u64,
    /// Allocations that got memory that was over or ordered already, or was never used.
    pub reuses_over: u64,
    /// Allocations that got memory for which their stream has to wait.
    pub waits_inserted: u64,
    /// Segments that are held now.
    pub segments: u64,
    /// What was given back to the driver so far.
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
            "of the driver     {} in {} segments; {} given back",
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

/// A number of bytes as people read it, in powers of 1024.
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
    /// Device memory that is mapped piece by piece into one range of addresses.
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

    /// Pinned memory, each segment an allocation of its own.
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

/// What memory is taken in. Where not even one of the usual ones may be had, memory is taken in what
/// pieces are rounded to, so that all that fits can be had.
fn granule(limit_bytes: u64, align_bytes: u64) -> u64 {
    const GRANULE_BYTES: u64 = 2 << 20;
    match limit_bytes < GRANULE_BYTES {
        true => align_bytes,
        false => GRANULE_BYTES,
    }
}
