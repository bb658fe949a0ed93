//! Copies, memsets, and words of memory by which streams wait for each other.

use sidestream::op::{Accesses, Compare, FlagId, Kind, Memory, Mode, SourceOrder};
use sidestream::order::may_block;
use sidestream_inject::areas::{Area, Copied};
use sidestream_inject::calls::ApiCall;

use super::translate::{Hears, Now, Process};

/// In all tests, CUDA had read memory of the host that is not pinned when the call returned, up to this size. It does not say when
/// it reads more.
const READ_AT_ONCE: u64 = 64 << 10;

impl<T: Hears> Process<T> {
    /// A call that copies.
    pub(super) fn copies(&mut self, call: &ApiCall, now: &Now<'_>) {
        let stream = call.copies_in().map(|stream| now.word(stream));
        for copied in call.copies(now.words) {
            self.copy(now, &copied, call.is_of_device(), stream);
        }
    }

    /// A copy. `of_device` is whether the call says that the destination and the source are in the memory of a device.
    pub(super) fn copy(
        &mut self,
        now: &Now<'_>,
        copied: &Copied,
        of_device: (bool, bool),
        stream: Option<u64>,
    ) {
        let (from, to, accesses) = self.sides(now, copied, of_device);
        let blocking = Kind::CopyBlocking { from, to };
        let blocks = stream.is_none() && may_block(blocking);
        if stream.is_none() && !now.per_thread {
            self.blocks(now);
            self.op(now, blocking, &accesses);
            if blocks {
                self.has_waited(now);
            }
            return;
        }
        let stream = self.stream(now, stream.unwrap_or(0));
        let kind = match copied.order {
            None => Kind::Copy { stream, from, to },
            Some(order) => Kind::CopyBatch {
                stream,
                from,
                to,
                source: match order {
                    2 => SourceOrder::DuringCall,
                    3 => SourceOrder::Any,
                    _ => SourceOrder::Stream,
                },
            },
        };
        self.op(now, kind, &accesses);
        if blocks {
            self.waits(now, Kind::SyncStream { stream });
        }
    }

    /// Returns the kinds of memory of a copy's source and destination, and its accesses.
    fn sides(
        &mut self,
        now: &Now<'_>,
        copied: &Copied,
        of_device: (bool, bool),
    ) -> (Memory, Memory, Accesses) {
        let mut accesses = Accesses::new();
        let mut side = |area: Area, is_device, mode| {
            if is_device {
                self.found(now, area.start, area.width);
            }
            let memory = self.touched(area, mode, &mut accesses);
            let (start, end) = area.bounds();
            // Memory that no call made known is the host's: the driver guesses in the same way.
            if memory.is_none() && (copied.order.is_some() || end - start > READ_AT_ONCE) {
                for (at, bytes) in area.parts() {
                    accesses.push(self.of_host(at, bytes, mode));
                }
            }
            memory.unwrap_or(Memory::Pageable)
        };
        let from = side(copied.from, of_device.1, Mode::Read);
        let to = side(copied.to, of_device.0, Mode::Write);
        (from, to, accesses)
    }

    pub(super) fn memset(&mut self, now: &Now<'_>, area: Area, stream: Option<u64>) {
        let mut accesses = Accesses::new();
        self.found(now, area.start, area.width);
        let to = self
            .touched(area, Mode::Write, &mut accesses)
            .unwrap_or(Memory::Device);
        match stream {
            None if !now.per_thread => {
                self.blocks(now);
                self.op(now, Kind::MemsetBlocking { to }, &accesses);
            }
            stream => {
                let stream = self.stream(now, stream.unwrap_or(0));
                self.op(now, Kind::Memset { stream }, &accesses);
            }
        }
    }

    /// Appends the accesses to an area, as far as it is in known memory; returns its kind.
    pub(super) fn touched(
        &mut self,
        area: Area,
        mode: Mode,
        into: &mut Accesses,
    ) -> Option<Memory> {
        let mut memory = None;
        for (at, bytes) in area.parts() {
            let Some(range) = self.memory.at(at) else {
                continue;
            };
            range.is_in_parts |= at != range.start || at.saturating_add(bytes) < range.end;
            into.push(range.access(at, bytes, mode));
            memory = Some(range.memory);
        }
        memory
    }

    /// Waits for values in memory and writes of them, as `CUstreamBatchMemOpParams`.
    pub(super) fn values(&mut self, now: &Now<'_>, stream: u64, all: &[u64]) {
        for one in all.chunks_exact(6) {
            let (address, value, flags) = (one[1], one[2], one[3]);
            match one[0] as u32 {
                1 | 4 => self.value(now, stream, (address, value), flags, false),
                2 | 5 => self.value(now, stream, (address, value), flags, true),
                _ => {}
            }
        }
    }

    /// A write of a value, or a wait for it.
    pub(super) fn value(
        &mut self,
        now: &Now<'_>,
        stream: u64,
        (address, value): (u64, u64),
        flags: u64,
        writes: bool,
    ) {
        let stream = self.stream(now, stream);
        // Flag 0 is what threads hand over.
        let fresh = FlagId(self.words.len() as u32 + 1);
        let word = *self.words.entry(address).or_insert(fresh);
        let value = value as u32;
        let memory = self.memory.at(address).map(|range| range.memory);
        // The host may be looking for it.
        self.tellers += u32::from(writes && memory == Some(Memory::Pinned));
        let kind = if writes {
            Kind::WriteValue {
                stream,
                word,
                value,
                fenced: flags & 1 == 0,
            }
        } else {
            let compare = match flags & 3 {
                0 => Compare::AtLeast,
                1 => Compare::Equal,
                2 => Compare::And,
                _ => Compare::Nor,
            };
            Kind::WaitValue {
                stream,
                word,
                value,
                compare,
            }
        };
        self.op(now, kind, &[]);
    }
}
