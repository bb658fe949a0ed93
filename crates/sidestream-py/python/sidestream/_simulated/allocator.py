"""Simulates PyTorch's allocators: the addresses that they would return, and thus when memory is reused. No
device data is stored at these addresses: a tensor's values are in host memory. Pinned memory is real.
"""

from __future__ import annotations

import bisect
import threading
from collections import deque
from typing import Any

from torch.cuda import _gpu_trace

from sidestream._simulated.streams import Streams
from sidestream._system import fresh_memory

#: Sizes are rounded up to multiples of this, and no smaller piece is split off.
ROUND_BYTES = 512
#: Maximum size that is allocated from small segments.
SMALL_BYTES = 1 << 20
SMALL_SEGMENT_BYTES = 2 << 20
#: Sizes between small ones and this come from segments of one size.
LARGE_FROM_BYTES = 10 << 20
LARGE_SEGMENT_BYTES = 20 << 20
#: Larger segments are rounded up to multiples of this.
SEGMENT_ROUND_BYTES = 2 << 20

#: The first device address, far from host addresses, and the distance between two devices.
DEVICE_BASE = 0x3000_0000_0000
DEVICE_SPAN = 1 << 40
#: Number of devices with separate addresses, including those of earlier simulations.
DEVICES = 32
#: Approximate maximum number of launches by which a host is ahead of a device: beyond that, CUDA blocks the
#: host.
AHEAD = 1024
#: Bytes of memory that a device reports.
CAPACITY_BYTES = 143_771 << 20
#: Minimum bytes of pinned memory that are taken from the system at once.
PINNED_BYTES = 64 << 20


def rounded(size: int, to: int) -> int:
    return -(-size // to) * to


class Block:
    """A piece of a segment that is in use, or waits for other streams."""

    __slots__ = ("address", "freed_at", "key", "noted", "size", "turn")

    def __init__(self, address: int, size: int, key: tuple[int, bool, int]) -> None:
        self.address, self.size, self.key = address, size, key
        #: The streams on which it was recorded, besides its home stream.
        self.noted: set[int] = set()
        #: The time at which it was freed, and the number of allocations before that.
        self.freed_at, self.turn = 0, 0


class Memory:
    """A storage's device memory, which is freed when the storage dies."""

    __slots__ = ("address", "allocator", "block", "bytes", "device", "index")

    def __init__(self, allocator: DeviceAllocator, block: Block | None, size: int) -> None:
        self.allocator, self.block, self.bytes = allocator, block, size
        self.address = block.address if block is not None else 0
        self.device, self.index = allocator.device, allocator.index

    def __del__(self) -> None:
        if self.block is not None:
            self.allocator.release(self.block)


class DeviceAllocator:
    """The caching allocator of one device: best fit among the free blocks of a stream, with splitting and
    merging.

    A block that was recorded on other streams is free once the host has waited for these streams since then,
    or is so far ahead that CUDA must have made it wait. Until then their work counts as pending.
    """

    def __init__(self, index: int, streams: Streams, number: int) -> None:
        self.index, self.device, self._streams = index, streams.devices[index], streams
        self._pending: deque[Block] = deque()
        self._looked_at, self._turns = 0, 0
        #: The free pieces: of each kind by size and address, and each by its start and by its end.
        self._free: dict[tuple[int, bool, int], list[tuple[int, int]]] = {}
        self._ends: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._segments: dict[int, int] = {}
        self._next = DEVICE_BASE + number % DEVICES * DEVICE_SPAN
        # Storages may die at any time, even during a search for a block.
        self._returned: deque[Block] = deque()
        self._lock = threading.Lock()
        #: The memory pool of the graph that is being captured; 0 is the common pool.
        self.pool = 0
        self.live: dict[int, Block] = {}
        self.bytes, self.peak_bytes, self.reserved_peak_bytes = 0, 0, 0

    def allocate(self, size: int, stream: int) -> Memory:
        """Return memory whose home stream is the given one."""
        if size == 0:
            return Memory(self, None, 0)
        size_rounded = rounded(size, ROUND_BYTES)
        is_small = size_rounded <= SMALL_BYTES
        with self._lock:
            self._turns += 1
            self._take_back()
            block = self._found(
                size_rounded, (self.pool if self._streams.here.capture is not None else 0, is_small, stream)
            )
            self.live[block.address] = block
            self.bytes += block.size
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        self._streams.tell(_gpu_trace.MemoryAllocationCallbacks, self.index, block.address)
        return Memory(self, block, size)

    def release(self, block: Block) -> None:
        # Memory that dies after the simulation must not be reported to a later check.
        if not self._streams.is_over:
            _gpu_trace.MemoryDeallocationCallbacks.fire_callbacks(block.address)
        block.freed_at, block.turn = self._streams.now(), self._turns
        self._returned.append(block)

    def note(self, memory: Memory, stream: int) -> None:
        """Record that a stream other than its home uses the memory: ``record_stream``."""
        if memory.block is not None and memory.block.key[2] != stream:
            memory.block.noted.add(stream)

    def reserved_bytes(self) -> int:
        return sum(self._segments.values())

    def free_and_total_bytes(self) -> tuple[int, int]:
        return CAPACITY_BYTES - self.reserved_bytes(), CAPACITY_BYTES

    def empty_cache(self) -> None:
        """Free the segments that are not in use."""
        with self._lock:
            self._take_back()
            for key, pieces in self._free.items():
                for size, start in tuple(pieces):
                    if self._segments.get(start) == size:
                        self._remove(key, start, start + size)
                        del self._segments[start]

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the blocks that are in use or wait for other streams, in the form of
        ``torch.cuda.memory_snapshot``.
        """
        with self._lock:
            self._take_back()
            return [
                {
                    "device": self.index,
                    "address": block.address,
                    "total_size": block.size,
                    "stream": block.key[2],
                    "segment_type": "small" if block.key[1] else "large",
                    "blocks": [{"address": block.address, "size": block.size, "state": state}],
                }
                for state, blocks in (
                    ("active_allocated", self.live.values()),
                    ("active_pending_free", self._pending),
                )
                for block in blocks
            ]

    def _take_back(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self.bytes -= self.live.pop(block.address).size
            if block.noted:
                self._pending.append(block)
            else:
                self._free_again(block)
        if not self._pending or self._streams.captures:
            return
        if self._looked_at != self._streams.waits:
            self._looked_at = self._streams.waits
            pending, self._pending = self._pending, deque()
            for block in pending:
                if all(
                    self._streams.has_waited(self.index, stream, block.freed_at) for stream in block.noted
                ):
                    self._free_again(block)
                else:
                    self._pending.append(block)
        while self._pending and self._turns - self._pending[0].turn > AHEAD:
            self._free_again(self._pending.popleft())

    def _free_again(self, block: Block) -> None:
        """Merge a block with the free pieces beside it."""
        start, end = block.address, block.address + block.size
        if start in self._starts:
            start = self._remove(block.key, self._starts[start], start)[0]
        if end in self._ends:
            end = self._remove(block.key, end, self._ends[end])[1]
        self._add(block.key, start, end)

    def _add(self, key: tuple[int, bool, int], start: int, end: int) -> None:
        bisect.insort(self._free[key], (end - start, start))
        self._ends[start], self._starts[end] = end, start

    def _remove(self, key: tuple[int, bool, int], start: int, end: int) -> tuple[int, int]:
        pieces = self._free[key]
        del pieces[bisect.bisect_left(pieces, (end - start, start))], self._ends[start], self._starts[end]
        return start, end

    def _found(self, size: int, key: tuple[int, bool, int]) -> Block:
        pieces = self._free.setdefault(key, [])
        at = bisect.bisect_left(pieces, (size, 0))
        if at == len(pieces):
            self._add_segment(size, key)
        length, start = pieces[at]
        self._remove(key, start, start + length)
        left = length - size
        if left >= ROUND_BYTES if key[1] else left > SMALL_BYTES:
            self._add(key, start + size, start + length)
            length = size
        return Block(start, length, key)

    def _add_segment(self, size: int, key: tuple[int, bool, int]) -> None:
        if key[1]:
            size = SMALL_SEGMENT_BYTES
        elif size < LARGE_FROM_BYTES:
            size = LARGE_SEGMENT_BYTES
        else:
            size = rounded(size, SEGMENT_ROUND_BYTES)
        self._segments[self._next] = size
        self._add(key, self._next, self._next + size)
        # Leave a gap before the next segment, so that no two segments look like one.
        self._next += rounded(size, SEGMENT_ROUND_BYTES) + SEGMENT_ROUND_BYTES
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes())


class Pinned:
    """A storage's pinned memory."""

    __slots__ = ("cache", "device", "piece")

    def __init__(self, cache: PinnedCache, piece: tuple[int, Any, int]) -> None:
        self.cache, self.piece = cache, piece
        self.device = None

    def __del__(self) -> None:
        self.cache.returned.append(self.piece)


class PinnedCache:
    """PyTorch's cache of pinned memory: sizes are powers of two, and pinned memory is never unpinned."""

    def __init__(self) -> None:
        #: Pieces: the size, the buffer, and the offset in the buffer.
        self.returned: deque[tuple[int, Any, int]] = deque()
        self._free: dict[int, list[tuple[int, Any, int]]] = {}
        self._buffer: Any = b""
        self._at = 0
        self._lock = threading.Lock()

    def allocate(self, size: int) -> tuple[Pinned, Any, int]:
        """Return pinned memory: its owner, its buffer, and the offset in the buffer."""
        size = max(ROUND_BYTES, 1 << (max(size, 1) - 1).bit_length())
        with self._lock:
            while self.returned:
                piece = self.returned.popleft()
                self._free.setdefault(piece[0], []).append(piece)
            free = self._free.get(size)
            piece = free.pop() if free else self._fresh(size)
        return Pinned(self, piece), *piece[1:]

    def _fresh(self, size: int) -> tuple[int, Any, int]:
        if self._at + size > len(self._buffer):
            self._buffer, self._at = fresh_memory(max(size, PINNED_BYTES)), 0
        self._at += size
        return size, self._buffer, self._at - size
