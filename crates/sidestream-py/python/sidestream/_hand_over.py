"""Hands batches of a prefetcher over to the caller: as PyTorch tensors, as ``DeviceArray``, or unchanged."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from sidestream import _sidestream, _simulate, _tree
from sidestream._devices import device_name, is_of
from sidestream._feed import Entry
from sidestream._stream import Stream


#: Transform streams that no prefetcher uses, by their class and the GPU's number: a check that simulates GPUs
#: has its own class. PyTorch caches memory for each stream, so the next prefetcher reuses one of these.
_idle_streams: dict[tuple[type, int | None], list[Any]] = {}


def empty_cache() -> None:
    """Free the memory that closed prefetchers have left for the next one.

    A prefetcher that is closed or gone leaves its memory, streams and threads to the next one on the same
    device: at most 512 MiB of device memory and 512 MiB of pinned memory, in at most eight pieces of each.
    Prefetchers that exist never share it, and a forked child has none. The memory is also freed when a batch
    finds no memory, and when PyTorch's allocator has run out of memory: that allocation still fails, and the
    next one can use the memory. Like ``torch.cuda.empty_cache()``, this does not affect existing prefetchers
    and batches. Do not call it during a capture.

    Blocks until the uses of the memory are complete on the device.
    """
    _sidestream.empty_cache()


def target(device: Any, copies: bool, stream: Any, depth: int) -> Target:
    """Return the target of ``depth`` batches. PyTorch is used if the program has imported it."""
    torch = sys.modules.get("torch")
    name = _name(device, torch)
    if name == "cpu":
        if stream is not None:
            raise ValueError('the CPU has no streams; leave out stream, or give device="cuda"')
        return Target("cpu")
    if torch is not None and is_of("cuda", name):
        if getattr(torch.cuda, "is_simulated", False):
            return _Simulated(name, torch, copies, stream, depth)
        return _Torch(name, torch, copies, stream)
    return _Arrays(name, copies, stream)


def _name(device: Any, torch: Any) -> str:
    there = torch is not None and torch.cuda.is_available()
    name = ("cuda" if there else "cpu") if device is None else device_name(device)
    return f"cuda:{torch.cuda.current_device()}" if name in ("cuda", "auto") and there else name


class Target:
    """The host as the target: batches are handed over unchanged."""

    #: The device of the ring; None without a ring.
    ring_device: str | None = None
    #: The GPU's number, if PyTorch tensors are handed out.
    ordinal: int | None = None
    #: PyTorch's device, to which objects are moved; None if they are not moved.
    device: Any = None
    #: Whether transforms run on a separate stream.
    transforms_ahead = False

    def __init__(self, name: str) -> None:
        self.name = name

    def hand_over(self, entry: Entry) -> Any:
        """Return the batch, for work on the current stream."""
        return entry.tree


class _Arrays(Target):
    """A GPU without PyTorch, or a simulated GPU, as the target."""

    def __init__(self, name: str, copies: bool, stream: Any) -> None:
        super().__init__(name)
        self.ring_device = name
        self._copies = copies
        self._stream = stream

    def hand_over(self, entry: Entry) -> Any:
        assert entry.ticket is not None
        if self._stream is None:
            # The stream is created after the ring, whose errors explain better what is wrong with a device.
            self._stream = Stream(self.name, name="consumer")
        return entry.tree.unflatten(entry.ticket.arrays(self._stream, self._copies))


class _Torch(Target):
    """A GPU that PyTorch uses, as the target."""

    transforms_ahead = True

    def __init__(self, name: str, torch: Any, copies: bool, stream: Any) -> None:
        super().__init__(name)
        self.torch = torch
        if torch.cuda.is_available():
            torch.cuda.init()
        # Without an index, PyTorch has no CUDA, and the ring will raise an error that says why.
        self.ordinal = torch.device(name).index or 0
        self.device = torch.device("cuda", self.ordinal)
        self._copies = copies
        self._stream = stream
        self._side: Any = None
        #: The device address of the last batch.
        self.handed_over = 0
        self._begin_ring()

    def _begin_ring(self) -> None:
        self.ring_device = self.name
        _note_streams_of_our_memory(self.torch)
        _hear_of_missing_memory(self.torch)

    def __del__(self) -> None:
        side = getattr(self, "_side", None)
        if side is not None and _idle_streams is not None:
            # Work on this stream may be pending: the next transforms are ordered after it.
            _idle_streams.setdefault((type(side), self.ordinal), []).append(side)

    def hand_over(self, entry: Entry) -> Any:
        torch = self.torch
        current = self._stream
        if current is None:
            current = torch._C._cuda_getCurrentRawStream(self.ordinal)
        assert entry.ticket is not None
        tensors, odd, self.handed_over = entry.ticket.tensors(current, torch._C._from_dlpack)
        for at, name, shape in odd:
            tensors[at] = tensors[at].view(getattr(torch, name)).view(shape)
        if self._copies:
            tensors = self._copied(tensors)
        if entry.here:
            tensors = self._with_those_that_were_here(entry, tensors)
        if entry.tree.has_objects and self._stream is not None:
            # The `to` method of an object uses PyTorch's current stream.
            with torch.cuda.stream(self.on_stream()):
                return entry.tree.unflatten(tensors)
        return entry.tree.unflatten(tensors)

    def side_stream(self) -> Any:
        """Return the stream of the transforms: one for all iterations, since PyTorch caches memory for each
        stream.
        """
        if self._side is None:
            try:
                self._side = _idle_streams[(self.torch.cuda.Stream, self.ordinal)].pop()
            except (KeyError, IndexError):
                self._side = self.torch.cuda.Stream(self.ordinal)
        return self._side

    def on_stream(self) -> Any:
        """Return the stream on which batches are taken, as a PyTorch stream."""
        torch = self.torch
        if self._stream is None:
            return torch.cuda.current_stream(self.ordinal)
        if isinstance(self._stream, torch.cuda.Stream):
            return self._stream
        stream = (
            self._stream if isinstance(self._stream, Stream) else Stream.of(self._stream, device=self.name)
        )
        return stream.torch()

    def _copied(self, tensors: list[Any]) -> list[Any]:
        torch = self.torch
        with torch.no_grad(), torch.cuda.stream(self.on_stream()):
            copies = [torch.empty_like(tensor) for tensor in tensors]
            if copies:
                torch._foreach_copy_(copies, tensors)
        return copies

    def _with_those_that_were_here(self, entry: Entry, uploaded: list[Any]) -> list[Any]:
        # These tensors were made on the feeder's stream, and are used on this stream.
        current = self.on_stream()
        current.wait_event(entry.event)
        for at, tensor in entry.here.items():
            tensor.record_stream(current)
            # The indexes ascend.
            uploaded.insert(at, tensor)
        return uploaded


class _Simulated(_Torch):
    """A simulated GPU. Its memory is PyTorch's, so PyTorch's operators upload a batch when it is handed over,
    on the stream that takes it. If work takes time there, the uploads do so ahead, as on a GPU. All else is
    as on a GPU.
    """

    def __init__(self, name: str, torch: Any, copies: bool, stream: Any, depth: int) -> None:
        super().__init__(name, torch, copies, stream)
        entered = _simulate.entered()
        self._ahead = None if entered is None else entered.ahead(depth)

    def _begin_ring(self) -> None:
        self._objects = _tree.Objects(self.device)
        if isinstance(self._stream, int):
            self._stream = self.torch.cuda.ExternalStream(self._stream, device=self.device)

    def hand_over(self, entry: Entry) -> Any:
        leaves, shape = _tree.flatten(entry.tree, self._objects)
        stream = self.on_stream()
        ahead: Any = contextlib.nullcontext()
        if self._ahead is not None:
            sizes = [leaf.nbytes for leaf in leaves if not getattr(leaf, "is_cuda", False)]
            ahead = self._ahead.handing_over(sum(sizes), len(sizes), self.ordinal, stream.cuda_stream)
        with self.torch.cuda.stream(stream), ahead:
            return shape.unflatten([self._uploaded(leaf) for leaf in leaves])

    def _uploaded(self, leaf: Any) -> Any:
        if getattr(leaf, "is_cuda", False):
            return leaf
        return self.torch.as_tensor(leaf, device="cpu").pin_memory().to(self.device, non_blocking=True)


class Transformer:
    """The transform of one iteration, on a separate stream.

    The transform of a batch is issued when that batch is asked for, after the step on the previous batch has
    been submitted to the current stream. The transform does not wait for that step, so the two overlap: while
    the device runs the step, the host issues the transform, which the device runs concurrently. If the
    transform were issued before the step, the host would need time for it first and delay the step. The
    transform waits for the work that was submitted to the current stream before the previous batch was handed
    over.
    """

    def __init__(self, target: Target, transform: Callable[[Any], Any]) -> None:
        assert isinstance(target, _Torch)
        self._target = target
        self._transform = transform
        self._stream = target.side_stream()
        #: An event after the work that was submitted to the current stream before the last batch was handed
        #: over.
        self._before_step: Any = None
        #: Whether a transform returned tensors in an opaque object.
        self._hides = False

    def apply(self, entry: Entry) -> Any:
        """Return the transformed batch, for work on the current stream, which waits for it."""
        target, stream = self._target, self._stream
        torch, current = target.torch, target.on_stream()
        if self._before_step is None or self._hides:
            # `record_stream` cannot be called for tensors in opaque objects. Their memory is reused by
            # transforms only, which then wait for every use.
            stream.wait_stream(current)
        else:
            stream.wait_event(self._before_step)
        with torch.cuda.device(target.ordinal), torch.cuda.stream(stream):
            batch = self._transform(_in_stream(target, entry))
            after = stream.record_event()
        # An opaque object may hold tensors of the batch itself.
        _sidestream.note_stream(target.handed_over, current.cuda_stream)
        tensors, shape = _tree.tensors_of(batch)
        for tensor in tensors:
            if tensor.is_cuda:
                # This covers PyTorch's memory, and the ring's too: see `_note_streams_of_our_memory`.
                tensor.record_stream(current)
        self._hides = self._hides or shape.has_objects
        current.wait_event(after)
        self._before_step = current.record_event()
        return batch


def _in_stream(target: _Torch, entry: Entry) -> Any:
    """Take a batch on the current stream, regardless of the stream that the prefetcher was given."""
    given, target._stream = target._stream, None
    try:
        return target.hand_over(entry)
    finally:
        target._stream = given


_hears = False


def _hear_of_missing_memory(torch: Any) -> None:
    """Free the cached memory when PyTorch's allocator has run out: that allocation fails, and the next one
    can use the memory.
    """
    global _hears
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if not _hears and attach is not None:
        _hears = True
        # A build of PyTorch without CUDA has no allocator that could fail.
        with contextlib.suppress(RuntimeError):
            attach(lambda device, allocated, total, free: _sidestream.empty_cache())


def _note_streams_of_our_memory(torch: Any) -> None:
    """Make ``tensor.record_stream`` work on memory of a ring, and on views of it. PyTorch ignores memory that
    it did not allocate.
    """
    known = torch.Tensor.record_stream
    if getattr(known, "_is_of_sidestream", False):
        return

    def record_stream(self: Any, stream: Any) -> None:
        known(self, stream)
        try:
            address = self.data_ptr() if self.is_cuda else 0
        except RuntimeError:
            # The tensor has no memory, for instance because it is being traced.
            return
        if address:
            _sidestream.note_stream(address, stream)

    record_stream.__doc__ = known.__doc__
    record_stream._is_of_sidestream = True  # type: ignore[attr-defined]
    torch.Tensor.record_stream = record_stream
