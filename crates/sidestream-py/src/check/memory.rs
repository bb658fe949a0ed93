//! Maps addresses to tenancies.
//!
//! PyTorch's allocator reports where memory starts, but not its size. The size is learned from the tensors that use
//! it, and a tenancy is reported to the checker when it is first used: by then its bytes are known, and so are the
//! earlier tenants.

use std::collections::{BTreeMap, HashMap};

use sidestream::log::Within;
use sidestream::op::{BufferId, DeviceId, Kind, Memory, StreamId};

use super::host::Watch;

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
    /// Earlier tenants, which have a buffer.
    past: BTreeMap<u64, Tenant>,
    numbers: HashMap<u64, (Vec<BufferId>, usize)>,
    /// The start address of each buffer.
    bases: Vec<Option<u64>>,
    /// What the checker must get before a call's accesses; the vector is reused for each call.
    pub firsts: Vec<First>,
}

#[derive(Clone, Copy)]
struct Tenant {
    end: u64,
    home: StreamId,
    device: u32,
    noted: bool,
    buffer: Option<BufferId>,
}

/// Whether memory came from PyTorch's allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    Known,
    KnownIfAt(u64),
    Foreign,
}

/// What the checker needs before an access.
pub enum First {
    /// Declares a buffer.
    Buffer(Within),
    /// A tenancy begins; or its bytes were returned to the driver in between, which waits for the device.
    Call(Kind),
}

impl Space {
    pub fn new(root: BufferId, blank: BufferId) -> Space {
        Space {
            root,
            blank,
            tenants: BTreeMap::new(),
            past: BTreeMap::new(),
            numbers: HashMap::new(),
            bases: vec![Some(0), Some(0)],
            firsts: Vec::new(),
        }
    }

    /// The ID of the next buffer to be declared.
    pub fn next_buffer(&mut self) -> BufferId {
        self.bases.push(None);
        BufferId(self.bases.len() as u32 - 1)
    }

    /// The start address of a buffer of this memory.
    pub fn base_of(&self, buffer: BufferId) -> Option<u64> {
        self.bases.get(buffer.0 as usize).copied().flatten()
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
        let tenant = self.tenants.remove(&ptr)?;
        let buffer = tenant.buffer?;
        if keep {
            self.past.insert(ptr, tenant);
        }
        Some(buffer)
    }

    /// The tenant of an address, and where it starts.
    fn tenant(&self, ptr: u64) -> Option<(u64, &Tenant)> {
        let (&start, tenant) = self.tenants.range(..=ptr).next_back()?;
        Some((start, tenant))
    }

    /// The buffer of a byte range, and the buffer's start address.
    pub fn locate(&mut self, ptr: u64, end: u64) -> (BufferId, u64) {
        let Some((start, &tenant)) = self.tenant(ptr) else {
            return (self.root, 0);
        };
        match tenant.buffer {
            Some(buffer) if tenant.end >= end => (buffer, start),
            _ => match self.grow(start, tenant, end) {
                Some(buffer) => (buffer, start),
                None => (self.root, 0),
            },
        }
    }

    /// Whether a byte range belongs to a known tenancy. If that depends on the storage, the result has the address at
    /// which the storage must start.
    pub fn whose(&self, ptr: u64, end: u64) -> Whose {
        match self.tenant(ptr) {
            None => Whose::Foreign,
            Some((start, tenant)) if start == ptr || end <= tenant.end => Whose::Known,
            Some((start, _)) => Whose::KnownIfAt(start),
        }
    }

    /// The range of the tenant of an address, as far as it is known.
    pub fn bounds(&self, ptr: u64) -> Option<(u64, u64)> {
        self.tenant(ptr).map(|(start, tenant)| (start, tenant.end))
    }

    /// Whether an address belongs to another stream's tenant.
    pub fn is_away(&self, ptr: u64, stream: StreamId) -> bool {
        self.tenant(ptr)
            .is_some_and(|(_, tenant)| tenant.home != stream)
    }

    /// A stream is recorded, which the free waits for. Returns the buffer, if there is one.
    pub fn noted(&mut self, ptr: u64, end: u64, stream: StreamId) -> Option<BufferId> {
        let (buffer, start) = self.locate(ptr, end);
        let tenant = self.tenants.get_mut(&start)?;
        tenant.noted |= tenant.home != stream;
        Some(buffer)
    }

    /// Extends a tenancy whose uses turn out to reach up to `end`.
    fn grow(&mut self, start: u64, tenant: Tenant, end: u64) -> Option<BufferId> {
        let after = start.saturating_add(1);
        let next = self.tenants.range(after..).next().map(|(&next, _)| next);
        if next.is_some_and(|next| next < end) {
            return tenant.buffer;
        }
        let from = tenant.end;
        let buffer = tenant.buffer.unwrap_or_else(|| {
            let buffer = self.number(start);
            self.begin(buffer, tenant.home, None);
            buffer
        });
        let grown = Tenant {
            end: end.max(from),
            buffer: Some(buffer),
            ..tenant
        };
        self.tenants.insert(start, grown);
        self.leave(from.max(start), end, tenant);
        Some(buffer)
    }

    fn begin(&mut self, buffer: BufferId, home: StreamId, saw_events_of: Option<BufferId>) {
        self.firsts.push(First::Call(Kind::Alloc {
            buffer,
            stream: Some(home),
            saw_events_of,
        }));
    }

    /// Removes earlier tenants of the bytes for good, and reports the events that the allocator saw of them.
    fn leave(&mut self, from: u64, end: u64, Tenant { home, device, .. }: Tenant) {
        let before = self.past.range(..from).next_back();
        let reaches = before
            .filter(|(_, past)| past.end > from)
            .map(|(&at, _)| at);
        let first = reaches.unwrap_or(from);
        let left: Vec<u64> = self.past.range(first..end).map(|(&at, _)| at).collect();
        for at in left {
            let Some(past) = self.past.remove(&at) else {
                continue;
            };
            if past.home != home {
                // Memory belongs to one stream as long as the allocator has it (R52).
                let device = Some(DeviceId(device));
                self.firsts.push(First::Call(Kind::SyncDevice { device }));
            }
            if past.noted {
                self.begin(self.blank, home, past.buffer);
            }
            if at < from {
                self.past.insert(at, Tenant { end: from, ..past });
            }
            if past.end > end {
                self.past.insert(end, past);
            }
        }
    }

    fn number(&mut self, start: u64) -> BufferId {
        let known = self.numbers.get(&start).map_or(0, |(ids, _)| ids.len());
        if known < NUMBERS {
            let fresh = self.next_buffer();
            self.bases[fresh.0 as usize] = Some(start);
            let buffer = self.root;
            self.firsts.push(First::Buffer(Within { buffer, start }));
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
    made: u32,
    pieces: BTreeMap<u64, Piece>,
    /// The copies during which the host's own accesses are observed.
    pub watch: Watch,
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
    /// Whether the limit of tracked storages is reached. Later ones are not tracked.
    pub fn is_full(&self) -> bool {
        self.made >= MOST
    }

    pub fn insert(&mut self, start: u64, piece: Piece) {
        self.made += 1;
        self.pieces.insert(start, piece);
    }

    /// The storage that contains an address.
    pub fn piece(&self, ptr: u64) -> Option<(u64, &Piece)> {
        let (&start, piece) = self.pieces.range(..=ptr).next_back()?;
        (ptr < piece.end).then_some((start, piece))
    }

    /// The storages that overlap a byte range: the first and last address of each, and its buffer.
    pub fn within(&self, start: u64, end: u64) -> Vec<(u64, u64, BufferId)> {
        let before = self.pieces.range(..end).rev();
        let meets = before.take_while(|(_, piece)| piece.end > start);
        let mut all: Vec<_> = meets
            .map(|(&at, piece)| (at, piece.end, piece.buffer))
            .collect();
        all.reverse();
        all
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
        let meets = self.within(start, end).into_iter().rev();
        meets
            .filter_map(|(at, ..)| self.pieces.remove(&at))
            .map(|piece| piece.storage.1)
            .collect()
    }

    /// The weak references of all storages, with their addresses.
    pub fn storages(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        let all = self.pieces.iter();
        all.map(|(&start, piece)| (start, piece.storage.1))
    }
}
