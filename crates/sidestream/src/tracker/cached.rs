//! Memory for buffers as the runtime keeps it: the cache with its last uses, and the log's ids.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::gone::Gone;
use super::telling::Place;
use super::uses::Uses;
use super::vector::Vector;
use crate::alloc::{Cache, On, Piece, Rules, Segment, Spare};
use crate::backend::{Address, Backend, Caps};
use crate::op::{BufferId, DeviceId, Memory};

/// The memory of one device, or the pinned memory of the machine.
pub(crate) struct Memories {
    pub(super) memory: Memory,
    pub(super) device: DeviceId,
    pub(super) cache: Mutex<Cache<Carried>>,
    pub(super) names: Mutex<Names>,
    /// Segments to be released later, because it was unknown whether they are still in use.
    pub(super) kept: Mutex<Vec<Segment<Carried>>>,
    /// While a sink is attached: segments that were released, and memory of the program that was unpinned.
    pub gone: Gone,
}

/// The log's ids.
#[derive(Default)]
pub(super) struct Names {
    /// The id of all memory of this kind: buffers lie within it, at their addresses.
    pub(super) root: Option<BufferId>,
    /// Per range and source location: the two ids, and which of the two is used next.
    pub(super) of_ranges: HashMap<Range, (bool, [Option<BufferId>; 2])>,
}

/// Address, size in bytes, and the source location of the allocation.
pub(super) type Range = (Address, u64, Place);

/// The memory of a block.
#[derive(Default)]
pub(crate) enum Grant {
    /// A piece of the cache.
    Piece(Piece),
    /// Memory of the program.
    Registered(Vector),
    /// Nothing: the memory was taken out.
    #[default]
    Nothing,
}

/// The last uses of a piece that has no owner.
#[derive(Clone, Default)]
pub(crate) struct Carried(pub(super) Uses);

impl crate::alloc::Uses for Carried {
    fn merge(&mut self, other: Carried) {
        self.0.join(other.0);
    }

    #[inline]
    fn on(&self) -> On {
        let mut streams = self.0.marks().iter().map(|mark| mark.stream());
        match streams.next() {
            None => On::NoStream,
            Some(first) if streams.all(|other| other == first) => On::Only(first),
            Some(_) => On::Several,
        }
    }
}

impl Memories {
    /// Makes the cache of a device with these capabilities, limited to this many bytes.
    pub(crate) fn of_device(
        device: DeviceId,
        caps: &Caps,
        limit_bytes: u64,
        spare: Option<Spare>,
    ) -> Memories {
        let rules = Rules {
            spare,
            joins: caps.extends_memory,
            ..Rules::device(device, limit_bytes)
        };
        Memories::new(Memory::Device, device, rules)
    }

    pub(crate) fn pinned(limit_bytes: u64) -> Memories {
        Memories::new(Memory::Pinned, DeviceId(0), Rules::pinned(limit_bytes))
    }

    fn new(memory: Memory, device: DeviceId, rules: Rules) -> Memories {
        Memories {
            memory,
            device,
            cache: Mutex::new(Cache::new(rules)),
            names: Mutex::default(),
            kept: Mutex::default(),
            gone: Gone::default(),
        }
    }

    /// Takes memory back from a block that is being dropped. Neither waits nor calls the driver.
    #[inline]
    pub(crate) fn give(&self, piece: Piece, uses: Uses) {
        self.cache.lock().free(piece, Carried(uses.all()));
    }

    /// Frees all memory, when no buffer is left. Memory that a device may still use is leaked.
    pub(crate) fn close(&mut self, backend: &dyn Backend, is_over: bool) {
        self.gone.clear();
        let kept = std::mem::take(self.kept.get_mut());
        for segment in self.cache.get_mut().empty_cache().into_iter().chain(kept) {
            if is_over {
                // SAFETY: the cache reserved the segment, no buffer has any of it, and all work is complete.
                unsafe { backend.unreserve(self.memory, self.device, segment.address) };
            }
        }
    }
}
