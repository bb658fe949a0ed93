//! Which tenancy an address belongs to.
//!
//! PyTorch's allocator tells where memory starts and not how long it is. The size is learned from the
//! tensors that use it, and the checker hears of a tenancy when it is first used: by then its bytes are
//! known, and with them the earlier tenants.

use std::collections::{BTreeMap, HashMap};

use sidestream::log::Within;
use sidestream::op::{BufferId, Memory, StreamId};

/// So many tenancies from one address on have numbers of their own; then the numbers are used again, so that
/// memory does not grow with the length of a run.
const NUMBERS: usize = 4;

/// So many storages of the host's are followed in one check.
const MOST: u32 = 500_000;

/// The memory of all devices; addresses are unique among them.
pub struct Space {
    /// Every byte, for memory that no allocator told of.
    root: BufferId,
    /// A buffer without use, to note what the allocator saw.
    blank: BufferId,
    tenants: BTreeMap<u64, Tenant>,
    past: BTreeMap<u64, Past>,
    numbers: HashMap<u64, (Vec<BufferId>, usize)>,
    bases: Vec<u64>,
    buffers: u32,
    /// Room for what a call has to tell first; reused.
    pub firsts: Vec<First>,
}

struct Tenant {
    end: u64,
    home: StreamId,
    device: u32,
    noted: bool,
    buffer: Option<BufferId>,
}

/// Who was there before.
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

/// What the checker has to hear before an access.
pub enum First {
    /// A buffer that it does not know.
    Buffer(Within),
    /// A tenancy begins.
    Alloc {
        buffer: BufferId,
        home: StreamId,
        saw_events_of: Option<BufferId>,
    },
    /// The bytes were given back to the driver in between, which waits for the device.
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

    /// The number of the buffer that is declared next.
    pub fn next_buffer(&mut self) -> BufferId {
        self.buffers += 1;
        self.bases.push(u64::MAX);
        BufferId(self.buffers - 1)
    }

    /// Where a buffer of this memory starts.
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

    /// The buffer whose tenancy ends, if the checker knows of it. `keep` says whether later tenants have to
    /// hear of it.
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

    /// The buffer of some bytes, and the address where it starts.
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

    /// Whether some bytes are of a tenancy that is known. Where that depends on it, the address where their
    /// storage has to start.
    pub fn whose(&self, ptr: u64, end: u64) -> Whose {
        match self.tenants.range(..=ptr).next_back() {
            None => Whose::Foreign,
            Some((&start, tenant)) if start == ptr || end <= tenant.end => Whose::Known,
            Some((&start, _)) => Whose::KnownIfAt(start),
        }
    }

    /// Where the tenant of an address begins and ends, as far as it is known.
    pub fn bounds(&self, ptr: u64) -> Option<(u64, u64)> {
        let tenant = self.tenants.range(..=ptr).next_back();
        tenant.map(|(&start, tenant)| (start, tenant.end))
    }

    /// Whether an address belongs to a tenant of another stream's.
    pub fn is_away(&self, ptr: u64, stream: StreamId) -> bool {
        let tenant = self.tenants.range(..=ptr).next_back();
        tenant.is_some_and(|(_, tenant)| tenant.home != stream)
    }

    /// A stream is noted for the free. The buffer, if there is one.
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

    /// A tenancy turns out to reach up to `end`.
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

    /// Earlier tenants of the bytes are gone for good. What the allocator saw of them is told.
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
                // Memory keeps its home as long as the allocator has it (R52).
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

/// Host memory that took part in asynchronous copies. Each tenancy has bytes of its own: PyTorch hands pinned
/// memory out again when its copies are done (R58), so an earlier tenant is no concern of a later one.
#[derive(Default)]
pub struct HostMemory {
    /// How many storages there were in all.
    pub made: u32,
    pieces: BTreeMap<u64, Piece>,
}

/// One storage.
pub struct Piece {
    pub end: u64,
    pub buffer: BufferId,
    pub memory: Memory,
    /// Who it is, and a weak reference that keeps the name from being another's.
    pub storage: (u64, u64),
}

impl HostMemory {
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether so many storages were followed that more would take too much memory. Later ones are not.
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

    /// The storage that an address is in.
    pub fn piece(&self, ptr: u64) -> Option<(u64, &Piece)> {
        let (&start, piece) = self.pieces.range(..=ptr).next_back()?;
        (ptr < piece.end).then_some((start, piece))
    }

    /// The storages that meet some bytes, with their sizes.
    pub fn within(&self, start: u64, end: u64) -> Vec<(BufferId, u64)> {
        let before = self.pieces.range(..end);
        let meets = before.filter(|(_, piece)| piece.end > start);
        meets
            .map(|(&at, piece)| (piece.buffer, piece.end - at))
            .collect()
    }

    /// Where the first storage behind an address begins.
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

    /// Forgets all storages that meet the bytes, and gives back their weak references.
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
