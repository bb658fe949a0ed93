"""How batches come out of a prefetcher: as tensors of PyTorch, as arrays of our own, or as they went in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from sidestream import _leaves, _sidestream, _tree
from sidestream._devices import device_name, is_of
from sidestream._feed import Entry
from sidestream._stream import Stream


def target(device: Any, copies: bool, stream: Any) -> Target:
    """Return where batches go. PyTorch counts as there if the program has imported it."""
    torch = sys.modules.get("torch")
    name = _name(device, torch)
    if name == "cpu":
        if stream is not None:
            raise ValueError('the processor has no streams; leave out stream, or give device="cuda"')
        return Target("cpu")
    if torch is not None and is_of("cuda", name):
        return _Torch(name, torch, copies, stream)
    return _Arrays(name, copies, stream)


def _name(device: Any, torch: Any) -> str:
    there = torch is not None and torch.cuda.is_available()
    name = ("cuda" if there else "cpu") if device is None else device_name(device)
    return _current(torch) if name in ("cuda", "auto") and there else name


def _current(torch: Any) -> str:
    return f"cuda:{torch.cuda.current_device()}"


class Target:
    """The host itself: batches come out as they went in."""

    #: The device of the ring; None where there is none.
    ring_device: str | None = None
    #: The GPU's number, where tensors of PyTorch are handed out.
    ordinal: int | None = None
    #: Whether transforms have a stream of their own.
    transforms_ahead = False

    def __init__(self, name: str) -> None:
        self.name = name

    def hand_over(self, entry: Entry) -> Any:
        """Return the batch, for work on the current stream."""
        return entry.tree


class _Arrays(Target):
    """A GPU without PyTorch, or a simulated one."""

    def __init__(self, name: str, copies: bool, stream: Any) -> None:
        super().__init__(name)
        self.ring_device = name
        self._copies = copies
        self._stream = Stream(name, name="consumer") if stream is None else stream

    def hand_over(self, entry: Entry) -> Any:
        assert entry.ticket is not None
        lease = entry.ticket.hand_over(self._stream)
        if self._copies:
            lease = lease.copied(self._stream)
        return entry.tree.unflatten(lease.arrays())


class _Torch(Target):
    """A GPU of PyTorch's."""

    transforms_ahead = True

    def __init__(self, name: str, torch: Any, copies: bool, stream: Any) -> None:
        super().__init__(name)
        self.ring_device = name
        self.torch = torch
        if torch.cuda.is_available():
            torch.cuda.init()
        # Without an index there is no CUDA in PyTorch, and the ring will say why.
        self.ordinal = torch.device(name).index or 0
        self._copies = copies
        self._stream = stream
        self._side: Any = None
        #: Where the memory of the last batch lies.
        self.handed_over = 0
        _note_streams_of_our_memory(torch)

    def hand_over(self, entry: Entry) -> Any:
        torch = self.torch
        current = self._stream
        if current is None:
            current = torch._C._cuda_getCurrentRawStream(self.ordinal)
        assert entry.ticket is not None
        lease = entry.ticket.hand_over(current)
        self.handed_over = lease.address()
        tensors, odd = lease.tensors(torch._C._from_dlpack)
        # From here on the tensors keep it.
        del lease
        for at, name, shape in odd:
            tensors[at] = tensors[at].view(getattr(torch, name)).view(shape)
        if self._copies:
            tensors = self._copied(tensors)
        if entry.here:
            tensors = self._with_those_that_were_here(entry, tensors)
        return entry.tree.unflatten(tensors)

    def side_stream(self) -> Any:
        """Return the stream of the transforms. It is one for all iterations, since PyTorch keeps memory for each stream."""
        if self._side is None:
            self._side = self.torch.cuda.Stream(self.ordinal)
        return self._side

    def on_stream(self) -> Any:
        """Return the stream that batches are taken on, as PyTorch's."""
        torch = self.torch
        if self._stream is None:
            return torch.cuda.current_stream(self.ordinal)
        if isinstance(self._stream, torch.cuda.Stream):
            return self._stream
        stream = self._stream if isinstance(self._stream, Stream) else Stream.of(self._stream, device=self.name)
        return stream.torch()

    def _copied(self, tensors: list[Any]) -> list[Any]:
        torch = self.torch
        with torch.no_grad(), torch.cuda.stream(self.on_stream()):
            copies = [torch.empty_like(tensor) for tensor in tensors]
            if copies:
                torch._foreach_copy_(copies, tensors)
        return copies

    def _with_those_that_were_here(self, entry: Entry, uploaded: list[Any]) -> list[Any]:
        # The feeder's stream made them, and this one uses them.
        current = self.on_stream()
        current.wait_event(entry.event)
        rest = iter(uploaded)
        tensors = []
        for at in range(len(uploaded) + len(entry.here)):
            tensor = entry.here.get(at)
            if tensor is None:
                tensor = next(rest)
            else:
                tensor.record_stream(current)
            tensors.append(tensor)
        return tensors


class Transformer:
    """A transform on a stream of its own, of one iteration."""

    def __init__(self, target: Target, transform: Callable[[Any], Any]) -> None:
        assert isinstance(target, _Torch)
        self._target = target
        self._transform = transform
        self._stream = target.side_stream()

    def apply(self, entry: Entry) -> tuple[Any, Any, int]:
        """Put the transform of a batch into its stream.

        Returns:
            What comes out, the event behind it, and where the memory of the batch lies.
        """
        torch = self._target.torch
        # What the transform reads besides may have been written there. It overlaps all the same: the batch
        # that is computed beside it is put into the current stream only after this call.
        self._stream.wait_stream(self._target.on_stream())
        with torch.cuda.device(self._target.ordinal), torch.cuda.stream(self._stream):
            batch = _in_stream(self._target, entry)
            address = self._target.handed_over
            return self._transform(batch), self._stream.record_event(), address

    def hand_over(self, done: tuple[Any, Any, int]) -> Any:
        """Return what came out, for work on the current stream, which waits for the transform."""
        batch, event, address = done
        current = self._target.on_stream()
        current.wait_event(event)
        # Tensors may be in an object that nobody can look into. What the transform made itself is used again only by a later
        # transform, which waits for the current stream first.
        _sidestream.note_stream(address, current.cuda_stream)
        for tensor in _tree.tensors_of(batch)[0]:
            if tensor.is_cuda:
                # Memory of PyTorch's, and of ours too: see below.
                tensor.record_stream(current)
        return batch


def _in_stream(target: _Torch, entry: Entry) -> Any:
    """Take a batch on the current stream, whichever the prefetcher was given."""
    given, target._stream = target._stream, None
    try:
        return target.hand_over(entry)
    finally:
        target._stream = given


def _note_streams_of_our_memory(torch: Any) -> None:
    """Let ``tensor.record_stream`` work on memory of a ring, and on views of it. PyTorch passes over memory that is not its own."""
    known = torch.Tensor.record_stream
    if getattr(known, "_is_of_sidestream", False):
        return

    def record_stream(self: Any, stream: Any) -> None:
        known(self, stream)
        try:
            address = self.data_ptr() if self.is_cuda else 0
        except RuntimeError:
            # It stands for a tensor, as while something is traced, and has no memory.
            return
        if address:
            _sidestream.note_stream(address, stream)

    record_stream.__doc__ = known.__doc__
    record_stream._is_of_sidestream = True  # type: ignore[attr-defined]
    torch.Tensor.record_stream = record_stream
