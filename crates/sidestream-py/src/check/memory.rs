//! Maps addresses to tenancies.
//!
//! PyTorch's allocator reports where memory starts, but not its size. The size is learned from the tensors that use
//! it, and a tenancy is reported to the checker when it is first used: by then its bytes are known, and so are the
//! earlier tenants.

use std::collections::{BTreeMap, HashMap};

use sidestream::log::Within;
use sidestream::op::{BufferId, Memory, StreamId};

/// The number of tenancies from one address that have distinct buffer IDs; later ones reuse the IDs, so that memory
/// use does not grow with the length of a run.
const NUMBERS: usize = 4;

/// The number of host storages that one check tracks.
const MOST: u32 = 500_000;

/// The memory of all devices, whose addresses do not overlap.
pub struct Space {
    /// The buffer of all bytes, for memory that no allocator reported.
    root: BufferId,
    /// An unused buffer, with which the events that the allocator saw are recorded.
    blank: BufferId,
    tenants: BTreeMap<u64, Tenant>,
    past: BTreeMap<u64, Past>,
    numbers: HashMap<u64, (Vec<BufferId>, usize)>,
    bases: Vec<u64>,
    buffers: u32,
    /// Records that must precede a call's accesses; the vector is reused for each call.
    pub firsts: Vec<First>,
}

struct Tenant {
    end: u64,
    home: StreamId,
    device: u32,
    noted: bool,
    buffer: Option<BufferId>,
}

/// An earlier tenant.
struct Past {
    end: u64,
    home: StreamId,
    noted: bool,
    buffer: BufferId,
}

/// Whether memory came from PyTorch's allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    Known,
    KnownIfAt(u64),
    Foreign,
}

/// A record that the checker needs before an access.
pub enum First {
    /// Declares a buffer.
    Buffer(Within),
    /// Begins a tenancy.
    Alloc {
        buffer: BufferId,
        home: StreamId,
        saw_events_of: Option<BufferId>,
    },
    /// The bytes were returned to the driver in between, which waits for the device.
    Unmapped { device: u32 },
}

impl Space {
    pub fn new(root: BufferId, blank: BufferId) -> Space {
        Space {
            root,
            blank,
            tenants: BTreeMap::new(),
            past: BTreeMap::new(),
            numbers: HashMap::new(),
            bases: vec![0, 0],
            buffers: 2,
            firsts: Vec::new(),
        }
    }

    /// The ID of the next buffer to be declared.
    pub fn next_buffer(&mut self) -> BufferId {
        self.buffers += 1;
        self.bases.push(u64::MAX);
        BufferId(self.buffers - 1)
    }

    /// The start address of a buffer of this memory.
    pub fn base_of(&self, buffer: BufferId) -> Option<u64> {
        let base = self.bases.get(buffer.0 as usize).copied();
        base.filter(|base| *base != u64::MAX)
    }

    pub fn allocated(&mut self, ptr: u64, home: StreamId, device: u32) {
        let tenant = Tenant {
            end: ptr,
            home,
            device,
            noted: false,
            buffer: None,
        };
        self.tenants.insert(ptr, tenant);
    }

    /// Ends a tenancy, and returns its buffer if the checker knows it. `keep` says whether later tenants depend on
    /// it.
    pub fn freed(&mut self, ptr: u64, keep: bool) -> Option<BufferId> {
        let Tenant {
            end,
            home,
            noted,
            buffer,
            ..
        } = self.tenants.remove(&ptr)?;
        let buffer = buffer?;
        if keep {
            self.past.insert(
                ptr,
                Past {
                    end,
                    home,
                    noted,
                    buffer,
                },
            );
        }
        Some(buffer)
    }

    /// The buffer of a byte range, and the buffer's start address.
    pub fn locate(&mut self, ptr: u64, end: u64, firsts: &mut Vec<First>) -> (BufferId, u64) {
        let Some((&start, tenant)) = self.tenants.range_mut(..=ptr).next_back() else {
            return (self.root, 0);
        };
        if tenant.end >= end
            && let Some(buffer) = tenant.buffer
        {
            return (buffer, start);
        }
        match self.grow(start, end, firsts) {
            Some(buffer) => (buffer, start),
            None => (self.root, 0),
        }
    }

    /// Whether a byte range belongs to a known tenancy. If that depends on the storage, the result has the address at
    /// which the storage must start.
    pub fn whose(&self, ptr: u64, end: u64) -> Whose {
        match self.tenants.range(..=ptr).next_back() {
            None => Whose::Foreign,
            Some((&start, tenant)) if start == ptr || end <= tenant.end => Whose::Known,
            Some((&start, _)) => Whose::KnownIfAt(start),
        }
    }

    /// The range of the tenant of an address, as far as it is known.
    pub fn bounds(&self, ptr: u64) -> Option<(u64, u64)> {
        let tenant = self.tenants.range(..=ptr).next_back();
        tenant.map(|(&start, tenant)| (start, tenant.end))
    }

    /// Whether an address belongs to another stream's tenant.
    pub fn is_away(&self, ptr: u64, stream: StreamId) -> bool {
        let tenant = self.tenants.range(..=ptr).next_back();
        tenant.is_some_and(|(_, tenant)| tenant.home != stream)
    }

    /// A stream is recorded, which the free waits for. Returns the buffer, if there is one.
    pub fn noted(
        &mut self,
        ptr: u64,
        end: u64,
        stream: StreamId,
        firsts: &mut Vec<First>,
    ) -> Option<BufferId> {
        let (buffer, start) = self.locate(ptr, end, firsts);
        let tenant = self.tenants.get_mut(&start)?;
        tenant.noted |= tenant.home != stream;
        Some(buffer)
    }

    /// Extends a tenancy whose uses turn out to reach up to `end`.
    fn grow(&mut self, start: u64, end: u64, firsts: &mut Vec<First>) -> Option<BufferId> {
        let after = start.saturating_add(1);
        let next = self.tenants.range(after..).next().map(|(&next, _)| next);
        let tenant = self.tenants.get_mut(&start)?;
        if next.is_some_and(|next| next < end) {
            return tenant.buffer;
        }
        let (from, home, device) = (tenant.end, tenant.home, tenant.device);
        tenant.end = end.max(from);
        let known = tenant.buffer;
        let buffer = known.unwrap_or_else(|| self.number(start, firsts));
        if known.is_none() {
            firsts.push(First::Alloc {
                buffer,
                home,
                saw_events_of: None,
            });
            self.tenants.get_mut(&start)?.buffer = Some(buffer);
        }
        self.leave(from.max(start), end, home, device, firsts);
        Some(buffer)
    }

    /// Removes earlier tenants of the bytes for good, and reports the events that the allocator saw of them.
    fn leave(&mut self, from: u64, end: u64, home: StreamId, device: u32, firsts: &mut Vec<First>) {
        let before = self.past.range(..from).next_back();
        let reaches = before
            .filter(|(_, past)| past.end > from)
            .map(|(&at, _)| at);
        let first = reaches.unwrap_or(from);
        let mut left: Vec<u64> = self.past.range(first..end).map(|(&at, _)| at).collect();
        for at in left.drain(..) {
            let Some(past) = self.past.remove(&at) else {
                continue;
            };
            if past.home != home {
                // Memory belongs to one stream as long as the allocator has it (R52).
                firsts.push(First::Unmapped { device });
            }
            if past.noted {
                firsts.push(First::Alloc {
                    buffer: self.blank,
                    home,
                    saw_events_of: Some(past.buffer),
                });
            }
            let (noted, buffer, home) = (past.noted, past.buffer, past.home);
            let piece = |end| Past {
                end,
                home,
                noted,
                buffer,
            };
            if at < from {
                self.past.insert(at, piece(from));
            }
            if past.end > end {
                self.past.insert(end, piece(past.end));
            }
        }
    }

    fn number(&mut self, start: u64, firsts: &mut Vec<First>) -> BufferId {
        let known = self.numbers.get(&start).map_or(0, |(ids, _)| ids.len());
        if known < NUMBERS {
            let fresh = self.next_buffer();
            self.bases[fresh.0 as usize] = start;
            let buffer = self.root;
            firsts.push(First::Buffer(Within { buffer, start }));
            self.numbers.entry(start).or_default().0.push(fresh);
            return fresh;
        }
        let (ids, turn) = self.numbers.entry(start).or_default();
        *turn += 1;
        ids[(*turn - 1) % NUMBERS]
    }
}

/// Host memory that asynchronous copies used. Each tenancy gets a buffer of its own: PyTorch reuses pinned memory
/// only once its copies are complete (R58), so an earlier tenant does not affect a later one.
#[derive(Default)]
pub struct HostMemory {
    /// The number of storages so far.
    pub made: u32,
    pieces: BTreeMap<u64, Piece>,
}

/// One host storage.
pub struct Piece {
    pub end: u64,
    pub buffer: BufferId,
    pub memory: Memory,
    /// The storage's identity, and a weak reference that keeps the identity from being reused.
    pub storage: (u64, u64),
}

impl HostMemory {
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether the limit of tracked storages is reached. Later ones are not tracked.
    pub fn is_full(&self) -> bool {
        self.made >= MOST
    }

    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    pub fn insert(
        &mut self,
        start: u64,
        end: u64,
        buffer: BufferId,
        memory: Memory,
        storage: (u64, u64),
    ) {
        let piece = Piece {
            end,
            buffer,
            memory,
            storage,
        };
        self.pieces.insert(start, piece);
    }

    /// The storage that contains an address.
    pub fn piece(&self, ptr: u64) -> Option<(u64, &Piece)> {
        let (&start, piece) = self.pieces.range(..=ptr).next_back()?;
        (ptr < piece.end).then_some((start, piece))
    }

    /// The storages that overlap a byte range, with their sizes.
    pub fn within(&self, start: u64, end: u64) -> Vec<(BufferId, u64)> {
        let before = self.pieces.range(..end);
        let meets = before.filter(|(_, piece)| piece.end > start);
        meets
            .map(|(&at, piece)| (piece.buffer, piece.end - at))
            .collect()
    }

    /// The start of the first storage after an address.
    pub fn next_after(&self, ptr: u64) -> Option<u64> {
        self.pieces.range(ptr..).next().map(|(&start, _)| start)
    }

    pub fn locate(&self, ptr: u64) -> Option<(BufferId, u64)> {
        self.piece(ptr).map(|(start, piece)| (piece.buffer, start))
    }

    pub fn base_of(&self, buffer: BufferId) -> Option<u64> {
        let mut all = self.pieces.iter();
        all.find(|(_, piece)| piece.buffer == buffer)
            .map(|(&start, _)| start)
    }

    /// Forgets all storages that overlap the bytes, and returns their weak references.
    pub fn forget(&mut self, start: u64, end: u64) -> Vec<u64> {
        let meets: Vec<u64> = self
            .pieces
            .range(..end)
            .rev()
            .take_while(|(_, piece)| piece.end > start)
            .map(|(&at, _)| at)
            .collect();
        let gone = meets.iter().filter_map(|at| self.pieces.remove(at));
        gone.map(|piece| piece.storage.1).collect()
    }

    /// The weak references of all storages, with their addresses.
    pub fn storages(&self) -> Vec<(u64, u64)> {
        let all = self.pieces.iter();
        all.map(|(&start, piece)| (start, piece.storage.1))
            .collect()
    }
}
