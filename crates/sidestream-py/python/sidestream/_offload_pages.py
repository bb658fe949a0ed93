"""Weights that stay in files: read into pinned memory ahead of their turn, a few layers at a time.

A tensor of ``torch.load(mmap=True)`` or of safetensors is a mapping of its file. Its bytes are read by
``preadv``, which needs no interpreter, and where a file is shorter than it was returns less instead of ending
the process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sidestream._system import read_at

if TYPE_CHECKING:
    from sidestream._offload_weights import Layer

#: Bytes of each read, and how many threads read: one cannot keep up with the link.
CHUNK, THREADS = 8 << 20, 8
#: How many layers are in pinned memory at once, if there is room.
SLABS = 4


def available() -> int | None:
    """Return the bytes of the host's memory that programs may still take, if the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None


class File:
    """A file that is kept open, so that it may be deleted, and is refused once it has changed."""

    def __init__(self, path: str) -> None:
        self.path, self.descriptor = path, os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        self.begun = self._state()

    def _state(self) -> tuple[int, int]:
        state = os.fstat(self.descriptor)
        return state.st_size, state.st_mtime_ns

    def read(self, at: int, into: memoryview) -> None:
        """Read bytes from a position on.

        Raises:
            RuntimeError: The file is not what it was.
        """
        now, done = self._state(), 0
        while now == self.begun and done < len(into):
            count = read_at(self.descriptor, at + done, into[done:])
            done, now = done + count, now if count else (0, 0)
        if now != self.begun or self._state() != self.begun:
            then, size = self.begun[0], self._state()[0]
            how = "its modification time differs" if size == then else f"{then} bytes then, {size} now"
            raise RuntimeError(
                f"{self.path} has changed since the model was offloaded ({how}), and its weights are read "
                "from there: load the model again"
            )

    def bytes(self, at: int, size: int) -> bytearray:
        """Return bytes from a position on; raises as `read` does."""
        few = bytearray(size)
        self.read(at, memoryview(few))
        return few


@dataclass(frozen=True)
class Piece:
    """Where a weight is in a file, and in its layer."""

    file: File
    at: int
    size: int
    to: int

    def differs(self, tensor: Tensor) -> bool:
        """Whether a tensor of the mapping has other bytes than the file.

        Raises:
            RuntimeError: The file is not what it was.
        """
        begin = tensor.data_ptr()
        # Pages may also be this process's own because of a neighbour that shares them.
        return is_written(begin, self.size) and any(
            ctypes.string_at(begin + done, size) != self.file.bytes(self.at + done, size)
            for done, size in chunks(self.size)
        )


class Files:
    """The files that are mapped into this process now."""

    def __init__(self) -> None:
        self._maps: list[tuple[int, int, int, str]] = []
        self._open: dict[str, File | None] = {}
        #: Files that are not what is mapped any more.
        self.lost: set[str] = set()
        try:
            lines = (
                Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            )
        except OSError:
            return
        for parts in (line.split(maxsplit=5) for line in lines):
            if len(parts) == 6 and parts[5].startswith("/"):
                start, end = (int(each, 16) for each in parts[0].split("-"))
                self._maps.append((start, end, int(parts[2], 16), parts[5]))

    def piece(self, tensor: Tensor, to: int) -> Piece | None:
        """Return where a tensor is in a file; None if it is in memory, or was changed there."""
        begin, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        for start, end, offset, path in self._maps:
            if start <= begin and begin + size <= end and not is_written(begin, size):
                file, at, few = self._file(path), begin - start + offset, min(size, 4096)
                # Another file may have that name by now.
                if (
                    file is not None
                    and at + size <= file.begun[0]
                    and ctypes.string_at(begin, few) == file.bytes(at, few)
                ):
                    return Piece(file, at, size, to)
                self.lost.add(path.removesuffix(" (deleted)"))
                return None
        return None

    def _file(self, path: str) -> File | None:
        if path not in self._open:
            try:
                self._open[path] = File(path)
            except OSError:
                self._open[path] = None
        return self._open[path]


def is_written(begin: int, size: int) -> bool:
    """Whether pages of a mapping are this process's own copies."""
    first, last = begin // mmap.PAGESIZE, (begin + size - 1) // mmap.PAGESIZE
    try:
        with Path("/proc/self/pagemap").open("rb") as pages:
            pages.seek(8 * first)
            raw = bytearray(pages.read(8 * (last - first + 1)))
    except OSError:
        return True
    bits = torch.frombuffer(raw, dtype=torch.int64)
    # Bit 63: in memory; 62: swapped; 61: of a file.
    return bool((((bits >> 63 | bits >> 62) & ~(bits >> 61)) & 1).any())


@dataclass(eq=False)
class Slab:
    """Pinned memory for a layer."""

    memory: Tensor
    #: Of the last copy from it.
    copied: Any = None
    reads: list[Future[None]] = field(default_factory=list)


class Pages:
    """Reads layers into slabs of pinned memory, in the order in which they come."""

    def __init__(self, memory: Tensor, largest: int) -> None:
        self._free = deque(Slab(memory[at : at + largest]) for at in range(0, memory.numel(), largest))
        self.memory, self.slabs = memory, len(self._free)
        self._reading: dict[Layer, Slab] = {}
        self._pool = ThreadPoolExecutor(THREADS, "sidestream-pages")
        weakref.finalize(self, self._pool.shutdown, wait=False)
        self._lock, self._active = threading.Lock(), 0
        self._bytes = self._busy = self._since = 0.0
        #: Bytes a second of the last pass.
        self.rate = 0.0

    def ahead(self, layers: Iterable[Layer]) -> None:
        """Begin to read layers, as far as there are slabs, in the place of what is not needed as soon."""
        wanted = list(dict.fromkeys(islice(layers, 4 * self.slabs)))[: self.slabs]
        for layer in wanted:
            if layer not in self._reading:
                if not self._free:
                    self._drop(next(each for each in self._reading if each not in wanted))
                self._begin(layer)

    def is_read(self, layer: Layer) -> bool:
        """Whether a copy of a layer would not block the host."""
        slab = self._reading.get(layer)
        return slab is not None and all(read.done() for read in slab.reads)

    def take(self, layer: Layer) -> Tensor:
        """Return a layer's bytes, and block the host until they are there.

        Raises:
            RuntimeError: They cannot be read.
        """
        if layer not in self._reading:
            if not self._free:
                # What was read last is needed last.
                self._drop(next(reversed(self._reading)))
            self._begin(layer)
        slab = self._reading[layer]
        try:
            for read in slab.reads:
                read.result()
        except BaseException:
            self._drop(layer)
            raise
        return slab.memory[: layer.size]

    def give(self, layer: Layer, copied: Any) -> None:
        """Use a layer's slab for others once an event is complete."""
        slab = self._reading.pop(layer)
        slab.copied = copied
        self._free.append(slab)

    def end_pass(self) -> None:
        """Keep the rate of this pass."""
        with self._lock:
            now = time.perf_counter()
            if self._active:
                self._busy, self._since = self._busy + now - self._since, now
            # On a simulated clock reads take no time.
            if self._busy:
                self.rate = self._bytes / self._busy
                self._bytes = self._busy = 0.0

    def close(self) -> None:
        """Wait for the threads."""
        self._pool.shutdown()

    def _drop(self, layer: Layer) -> None:
        slab = self._reading.pop(layer)
        for read in slab.reads:
            read.cancel()
            if not read.cancelled():
                read.exception()
        self._free.appendleft(slab)

    def _begin(self, layer: Layer) -> None:
        slab = self._reading[layer] = self._free.popleft()
        slab.reads = [self._pool.submit(self._read, slab, slab.copied, *chunk) for chunk in reads(layer)]

    def _read(self, slab: Slab, copied: Any, file: File, at: int, size: int, to: int) -> None:
        if copied is not None:
            copied.synchronize()
        with self._lock:
            self._active += 1
            self._since = time.perf_counter() if self._active == 1 else self._since
        try:
            memory = (ctypes.c_uint8 * size).from_address(slab.memory.data_ptr() + to)
            file.read(at, memoryview(memory).cast("B"))
        finally:
            with self._lock:
                self._active -= 1
                self._bytes += size
                self._busy += 0.0 if self._active else time.perf_counter() - self._since


def chunks(size: int) -> Iterator[tuple[int, int]]:
    """Yield the position and the size of each read."""
    for done in range(0, size, CHUNK):
        yield done, min(CHUNK, size - done)


def reads(layer: Layer) -> Iterator[tuple[File, int, int, int]]:
    """Yield the reads of a layer: a file, a position in it, a size, and a position in the layer."""
    for piece in layer.pieces:
        for done, size in chunks(piece.size):
            yield piece.file, piece.at + done, size, piece.to + done
