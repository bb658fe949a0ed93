"""Simulates PyTorch's allocators: the addresses that they would return, and thus when memory is reused. No
device data is stored at these addresses: a tensor's values are in host memory. Pinned memory is real.
"""

from __future__ import annotations

import bisect
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

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
    """A piece of a segment."""

    __slots__ = ("address", "free", "freed_at", "key", "next", "noted", "previous", "size", "turn")

    def __init__(self, address: int, size: int, key: tuple[int, bool, int]) -> None:
        self.address, self.size, self.key = address, size, key
        self.free = True
        self.previous: Block | None = None
        self.next: Block | None = None
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

    def __init__(
        self,
        index: int,
        device: Any,
        streams: Streams,
        number: int,
        allocated: Callable[[int], None],
        freed: Callable[[int], None],
    ) -> None:
        self.index, self.device, self._streams = index, device, streams
        self._allocated, self._freed = allocated, freed
        self._pending: deque[Block] = deque()
        self._looked_at, self._turns = 0, 0
        self._free: dict[tuple[int, bool, int], list[tuple[int, int, Block]]] = {}
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
            block.free = False
            self.live[block.address] = block
            self.bytes += block.size
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        self._allocated(block.address)
        return Memory(self, block, size)

    def release(self, block: Block) -> None:
        self._freed(block.address)
        block.freed_at, block.turn = self._streams.now(), self._turns
        self._returned.append(block)

    def note(self, memory: Memory, stream: int) -> None:
        """Record that a stream other than its home uses the memory: ``record_stream``."""
        if memory.block is not None and memory.block.key[2] != stream:
            memory.block.noted.add(stream)

    def reserved_bytes(self) -> int:
        return sum(self._segments.values())

    def empty_cache(self) -> None:
        """Free the segments that are not in use."""
        with self._lock:
            self._take_back()
            for blocks in self._free.values():
                whole = [entry for entry in blocks if self._segments.get(entry[1]) == entry[0]]
                for entry in whole:
                    blocks.remove(entry)
                    del self._segments[entry[1]]

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
        block.noted.clear()
        block.free = True
        for other in (block.previous, block.next):
            if other is not None and other.free:
                self._remove(other)
                block = _merged(block, other)
        bisect.insort(self._free.setdefault(block.key, []), (block.size, block.address, block))

    def _remove(self, block: Block) -> None:
        blocks = self._free[block.key]
        del blocks[bisect.bisect_left(blocks, (block.size, block.address))]

    def _found(self, size: int, key: tuple[int, bool, int]) -> Block:
        blocks = self._free.setdefault(key, [])
        at = bisect.bisect_left(blocks, (size, 0))
        block = blocks.pop(at)[2] if at < len(blocks) else self._segment(size, key)
        left = block.size - size
        if left >= ROUND_BYTES if key[1] else left > SMALL_BYTES:
            rest = Block(block.address + size, left, key)
            rest.previous, rest.next, block.next = block, block.next, rest
            if rest.next is not None:
                rest.next.previous = rest
            block.size = size
            bisect.insort(blocks, (rest.size, rest.address, rest))
        return block

    def _segment(self, size: int, key: tuple[int, bool, int]) -> Block:
        if key[1]:
            size = SMALL_SEGMENT_BYTES
        elif size < LARGE_FROM_BYTES:
            size = LARGE_SEGMENT_BYTES
        else:
            size = rounded(size, SEGMENT_ROUND_BYTES)
        block = Block(self._next, size, key)
        self._segments[block.address] = size
        # Leave a gap before the next segment, so that no two segments look like one.
        self._next += rounded(size, SEGMENT_ROUND_BYTES) + SEGMENT_ROUND_BYTES
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes())
        return block


def _merged(one: Block, other: Block) -> Block:
    """Merge two neighbours into the one with the lower address."""
    low, high = (one, other) if one.address < other.address else (other, one)
    low.size += high.size
    low.next = high.next
    if high.next is not None:
        high.next.previous = low
    low.free = True
    return low


class Pinned:
    """A storage's pinned memory."""

    __slots__ = ("address", "cache", "device", "size")

    def __init__(self, cache: PinnedCache, address: int, size: int) -> None:
        self.cache, self.address, self.size = cache, address, size
        self.device = None

    def __del__(self) -> None:
        self.cache.returned.append((self.size, self.address))


class PinnedCache:
    """PyTorch's cache of pinned memory: sizes are powers of two, and pinned memory is never unpinned."""

    def __init__(self) -> None:
        self.returned: deque[tuple[int, int]] = deque()
        self._free: dict[int, list[int]] = {}
        self._pieces: list[tuple[int, Any]] = []
        self._at, self._left = 0, 0
        self._lock = threading.Lock()

    def allocate(self, size: int) -> tuple[Pinned, Any, int]:
        """Return pinned memory: its owner, its buffer, and the offset in the buffer."""
        size = max(ROUND_BYTES, 1 << (max(size, 1) - 1).bit_length())
        with self._lock:
            while self.returned:
                length, address = self.returned.popleft()
                self._free.setdefault(length, []).append(address)
            free = self._free.get(size)
            address = free.pop() if free else self._fresh(size)
            start, buffer = next(
                piece for piece in reversed(self._pieces) if piece[0] <= address < piece[0] + len(piece[1])
            )
        return Pinned(self, address, size), buffer, address - start

    def _fresh(self, size: int) -> int:
        if size > self._left:
            length = max(size, PINNED_BYTES)
            buffer = fresh_memory(length)
            self._at, self._left = ctypes.addressof(ctypes.c_char.from_buffer(buffer)), length
            self._pieces.append((self._at, buffer))
        address = self._at
        self._at += size
        self._left -= size
        return address
