//! The memory of a program: which addresses belong to which allocation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

use sidestream::op::{Access, BufferId, EventId, Memory, Mode, StreamId};

/// Memory that the program may use.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// The first address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Its buffer.
    pub buffer: BufferId,
    /// Its kind.
    pub memory: Memory,
    /// Whether it came from `cuMemAllocAsync`.
    pub stream_ordered: bool,
    /// Whether a copy or memset has touched a part of it: then a kernel that gets its address may work on another part.
    pub is_in_parts: bool,
    /// Whether launches of a graph allocate it, each at the same address: then no free is the last.
    pub is_of_graph: bool,
}

impl Allocation {
    /// Returns an access to bytes from an address on, as far as they are inside.
    pub fn access(&self, at: u64, bytes: u64, mode: Mode) -> Access {
        Access {
            buffer: self.buffer,
            start: at - self.start,
            end: at.saturating_add(bytes).min(self.end) - self.start,
            mode,
        }
    }

    /// Returns an access to all of it.
    pub fn all(&self, mode: Mode) -> Access {
        self.access(self.start, self.end - self.start, mode)
    }
}

/// All memory of a process.
#[derive(Default, Debug)]
pub struct Allocations {
    by_start: BTreeMap<u64, Allocation>,
    /// The two buffers of each place and size that take turns: memory that is freed and allocated again is another buffer,
    /// and a program may do that as often as it likes.
    buffers: HashMap<(u64, u64, Memory), [Option<BufferId>; 2]>,
    pinned: HashSet<BufferId>,
    /// By first address, memory that was freed in the order of a stream: its end, the stream, and an event after the free.
    freed: BTreeMap<u64, (u64, StreamId, EventId)>,
}

impl Allocations {
    /// Adds memory, in the place of all that lay there. `declare` makes a new buffer.
    pub fn add(
        &mut self,
        start: u64,
        bytes: u64,
        memory: Memory,
        stream_ordered: bool,
        declare: impl FnOnce() -> BufferId,
    ) -> &mut Allocation {
        let end = start.saturating_add(bytes);
        while let Some((&at, _)) = self
            .by_start
            .range(..end)
            .next_back()
            .filter(|(_, there)| there.end > start)
        {
            self.by_start.remove(&at);
        }
        let turns = self.buffers.entry((start, bytes, memory)).or_default();
        turns.swap(0, 1);
        let buffer = *turns[0].get_or_insert_with(declare);
        if memory == Memory::Pinned {
            self.pinned.insert(buffer);
        }
        let range = Allocation {
            start,
            end,
            buffer,
            memory,
            stream_ordered,
            is_in_parts: false,
            is_of_graph: false,
        };
        self.by_start.entry(start).insert_entry(range).into_mut()
    }

    /// Returns the memory that contains an address.
    pub fn at(&mut self, address: u64) -> Option<&mut Allocation> {
        let (_, range) = self.by_start.range_mut(..=address).next_back()?;
        (address < range.end).then_some(range)
    }

    /// Whether this is memory from its first byte to its last.
    pub fn is(&self, start: u64, bytes: u64) -> bool {
        let range = self.by_start.get(&start);
        range.is_some_and(|range| range.end - start == bytes)
    }

    /// Returns the first address of memory after an address.
    pub fn next_after(&self, address: u64) -> Option<u64> {
        let after = (Bound::Excluded(address), Bound::Unbounded);
        self.by_start.range(after).next().map(|(start, _)| *start)
    }

    /// Removes the memory that begins at an address, and returns it.
    pub fn remove(&mut self, start: u64) -> Option<Allocation> {
        match self.by_start.get(&start) {
            Some(range) if range.is_of_graph => Some(range.clone()),
            _ => self.by_start.remove(&start),
        }
    }

    /// Whether a buffer is memory of the host.
    pub fn is_pinned(&self, buffer: BufferId) -> bool {
        self.pinned.contains(&buffer)
    }

    /// Returns the name of a buffer.
    pub fn name(&self, buffer: BufferId) -> String {
        let range = self.by_start.values().find(|range| range.buffer == buffer);
        range.map_or_else(String::new, |range| format!("{:#x}", range.start))
    }

    /// Takes note of memory that was freed in the order of a stream.
    pub fn freed(&mut self, range: &Allocation, stream: StreamId, event: EventId) {
        self.freed.insert(range.start, (range.end, stream, event));
    }

    /// Returns the event of an earlier free at this address, which another free may record again.
    pub fn free_event(&self, start: u64) -> Option<EventId> {
        self.freed.get(&start).map(|(_, _, event)| *event)
    }

    /// Returns the events after the frees in other streams of memory that a stream now gets.
    pub fn reused(&self, start: u64, bytes: u64, by: StreamId) -> Vec<EventId> {
        let before = self.freed.range(..start.saturating_add(bytes)).rev();
        let overlapping = before
            .take(64)
            .filter(|(_, (end, stream, _))| *end > start && *stream != by);
        overlapping.map(|(_, (_, _, event))| *event).collect()
    }
}
